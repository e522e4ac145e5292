"""Subspace and Moments: frozen, exact, checked where they are born."""

import pickle

import numpy as np
import pytest
from helpers import assert_summarizes, power_law, rows_of_clients, scatter_of, shortfall
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Moments, Scaling, Subspace
from fedpca.summaries.about import About


@given(tables=rows_of_clients(max_clients=1), center=st.booleans())
def test_a_summary_is_that_of_its_rows(tables, center):
    for summary in (
        Subspace.from_rows(tables[0], center=center),
        Moments.from_rows(tables[0], center=center),
    ):
        assert_summarizes(summary, tables, center)


@given(tables=rows_of_clients(max_clients=1), rank=st.integers(1, 5))
def test_truncation_keeps_the_leading_directions_and_the_total(tables, rank):
    rows = tables[0]
    rank = min(rank, rows.shape[1])
    whole, part = Subspace.from_rows(rows), Subspace.from_rows(rows, rank)
    assert part.rank == min(rank, whole.rank)
    np.testing.assert_allclose(part.singular_values, whole.singular_values[:rank], rtol=1e-9)
    assert part.total == pytest.approx(whole.total)
    truncated = whole.truncate(rank)
    np.testing.assert_array_equal(truncated.singular_values, whole.singular_values[:rank])
    assert truncated.total == whole.total


def test_numerically_zero_directions_are_left_out():
    assert Subspace.from_rows(np.full((50, 4), 0.1)).rank == 0
    assert Subspace.from_rows(np.full((50, 4), 0.1), center=False).rank == 1
    assert Subspace.from_rows(np.ones((1, 4))).rank == 0
    low_rank = np.outer(np.arange(9.0), [1, 2, 3, 4]) + 1e5
    assert Subspace.from_rows(low_rank).rank == 1
    assert Moments.from_rows(low_rank).subspace().rank == 1


def test_weights_count_as_repeated_rows(rng):
    rows, weights = power_law(rng, 40, 6), rng.integers(0, 4, 40)
    for kind in (Subspace, Moments):
        weighted = kind.from_rows(rows, sample_weight=weights)
        repeated = kind.from_rows(np.repeat(rows, weights, axis=0))
        assert weighted.count == repeated.count
        np.testing.assert_allclose(weighted.mean, repeated.mean)
        np.testing.assert_allclose(scatter_of(weighted), scatter_of(repeated), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, bool])
def test_any_real_dtype_is_summarized(dtype, rng):
    rows = np.maximum(3 * power_law(rng, 40, 6), 0).astype(dtype)
    subspace = Subspace.from_rows(rows)
    assert subspace.components.dtype == (np.float32 if dtype in (np.float16, np.float32) else np.float64)
    assert shortfall(subspace.components[:2], rows) < 1e-6


def test_projecting_and_reconstructing_are_inverse_within_the_subspace(rng):
    rows = power_law(rng, 40, 6, mean_size=5)
    subspace = Subspace.from_rows(rows)
    np.testing.assert_allclose(subspace.reconstruct(subspace.project(rows)), rows)
    np.testing.assert_allclose(subspace.project(subspace.mean[None]), 0, atol=1e-12)


def test_projecting_checks_the_names_of_a_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.diag([1.0, 2.0, 3.0]), columns=["a", "b", "c"])
    subspace = Subspace.from_rows(frame)
    assert subspace.project(frame).shape == subspace.project(frame.to_numpy()).shape
    with pytest.raises(ValueError, match="got 'a' and 'c'"):
        subspace.project(frame[["c", "b", "a"]])


def test_a_summary_does_not_share_memory_with_its_maker_and_cannot_be_changed(rng):
    components = np.eye(2, 4)
    subspace = Subspace(components, [2.0, 1.0], np.zeros(4), 10, 5.0)
    components[:] = 0
    assert subspace.components[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        subspace.components[0, 0] = 2
    with pytest.raises(AttributeError):
        subspace.count = 3


@pytest.mark.parametrize("kind", [Subspace, Moments])
def test_equality_pickling_and_printing(kind, rng):
    rows = power_law(rng, 30, 5)
    summary = kind.from_rows(rows)
    assert summary == kind.from_rows(rows.copy())
    assert summary != kind.from_rows(rows[:-1])
    assert summary != "a string"
    revived = pickle.loads(pickle.dumps(summary))
    assert revived == summary
    assert not revived.mean.flags.writeable
    assert repr(summary).startswith(f"{kind.__name__}(")
    assert "30" in repr(summary)


def test_explained_variance_ratio_counts_what_was_truncated(rng):
    rows = power_law(rng, 100, 10)
    whole = Subspace.from_rows(rows)
    assert whole.explained_variance_ratio.sum() == pytest.approx(1)
    np.testing.assert_allclose(whole.truncate(3).explained_variance_ratio, whole.explained_variance_ratio[:3])
    assert Subspace.empty(3).explained_variance_ratio.shape == (0,)


GOOD = {
    "components": np.eye(2, 4),
    "singular_values": np.array([2.0, 1.0]),
    "mean": np.zeros(4),
    "count": 10.0,
    "total": 6.0,
}


MOMENTS = {"count": 10.0, "mean": np.zeros(4), "scatter": np.eye(4)}
NARROW = {"observed": [10, 10, 10, 0]}
NOT_OBSERVED = r"observed must|could not convert"

BAD = {
    Subspace: [
        ({"components": np.ones((2, 4)) / 2}, "orthonormal"),
        ({"components": np.full((2, 4), np.nan)}, "finite"),
        ({"components": np.eye(2, 3)}, "shapes"),
        ({"components": np.eye(4)[0]}, "shapes"),
        ({"components": np.zeros((5, 4)), "singular_values": np.zeros(5)}, "r <= d"),
        ({"components": [[0.6, 0, 0, 0.8], [0, 1, 0, 0]]} | NARROW, "no row knows"),
        ({"singular_values": np.array([1.0, 2.0])}, "descending"),
        ({"singular_values": np.array([2.0, -1.0])}, "not negative"),
        ({"singular_values": np.array([np.inf, 1.0])}, "finite"),
        ({"total": 4.0}, "at least the kept energy"),
        ({"total": np.nan}, "total"),
        ({"about": About(scale="std")}, "scale of a Subspace must be one number per feature, got 'std'"),
    ],
    Moments: [
        ({"scatter": np.eye(4) + np.eye(4, k=1)}, "symmetric"),
        ({"scatter": np.diag([-1.0, 0, 0, 0])}, "negative"),
        ({"scatter": np.full((4, 4), np.nan)}, "finite"),
        ({"scatter": np.eye(3)}, "shapes"),
        (NARROW, "no row knows"),
        ({"about": About(scaling=Scaling.empty(4))}, "scaling is for moments whose scale is"),
        (
            {"about": About(scale="std", scaling=Scaling.empty(3))},
            "have the 4 features of the moments, got 3",
        ),
        ({"about": About(scale="std", scaling=3)}, "must be a Scaling or None"),
        ({"about": About(scale="std"), "centered": False}, "need the scaling of their rows"),
    ],
}
BAD_IN_BOTH = [
    ({"mean": np.full(4, np.inf)}, "finite"),
    ({"mean": np.ones(4), "centered": False}, "mean of an uncentered summary"),
    ({"mean": [0, 0, 0, 1.0]} | NARROW, "no row knows"),
    ({"count": -1.0}, "count"),
    ({"count": np.inf}, "count"),
    ({"count": np.nan}, "count"),
    ({"count": "10"}, "count"),
    ({"count": 0.0}, "no rows"),
    *(({"observed": bad}, NOT_OBSERVED) for bad in ([10, 5, 0, 0], [10, 10, 0, -10], [10], [[10, 0, 0, 0]])),
    *(({"observed": bad}, NOT_OBSERVED) for bad in (["a", "b", "c", "d"], [np.nan, 0, 0, 0])),
    ({"about": About(("a", "b"))}, "name every feature: 4 features, 2 names"),
    ({"about": About(certificate={"private": True})}, "must be a Certificate or None, got dict"),
    ({"about": None}, "about must be an About, got NoneType"),
]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [(kind, *bad) for kind in (Subspace, Moments) for bad in (*BAD[kind], *BAD_IN_BOTH)],
)
def test_a_summary_that_cannot_be_is_refused(kind, change, message):
    good = GOOD if kind is Subspace else MOMENTS
    assert kind(**good).count == 10
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**(good | change))


@pytest.mark.parametrize(("mean", "total"), [(0.0, 1e100), (1e152, 0.0)])
def test_no_rows_in_range_have_so_much_each(mean, total):
    means, count = np.full(2, mean), 1e-250
    with pytest.raises(ValueError, match="no rows in range have so much"):
        Moments(count, means, total / 2 * np.eye(2))
    with pytest.raises(ValueError, match="no rows in range have so much"):
        Subspace(np.zeros((0, 2)), np.zeros(0), means, count, total)


@pytest.mark.parametrize("shape", [(700, 300), (300, 700)])
@pytest.mark.parametrize("spectrum", ["repeated", "flat", "steep", "few"])
def test_a_few_of_many_directions_are_as_exact_as_all(shape, spectrum, rng):
    size = min(shape)
    values = {
        "repeated": np.repeat(np.arange(30.0, 0.0, -1.0), size // 30),
        "flat": 1 - np.arange(size) / (10 * size),
        "steep": np.geomspace(1, 1e-12, size),
        "few": np.maximum(20.0 - np.arange(size), 0.0),
    }[spectrum]
    left, right = (np.linalg.qr(rng.normal(size=(n, size)))[0] for n in shape)
    rows = (left * values) @ right.T
    found = Subspace.from_rows(rows, 20, center=False)
    np.testing.assert_allclose(found.singular_values, values[:20], rtol=1e-12)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(20), atol=1e-13)
    images = np.linalg.norm(rows @ found.components.T, axis=0)
    np.testing.assert_allclose(images, values[:20], rtol=1e-12)
