"""Scaling and scaled summaries: what StandardScaler and PCA of all rows together give."""

import pickle
import warnings
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from helpers import assert_pca_of, cut, exact_scaling, mixed_units, rows_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca import ModelFileError, Moments, Scaling, Subspace, merge, merge_tree
from fedpca.paper.merges import basic_merge
from fedpca.summaries.about import About

# --- Scaling ---


@given(rows=mixed_units(), data=st.data())
def test_a_scaling_is_that_of_all_rows_in_any_order(rows, data):
    rng = np.random.default_rng(0)
    rows = np.where(rng.uniform(size=rows.shape) < data.draw(st.sampled_from([0.0, 0.3])), np.nan, rows)
    observed, mean, variance = exact_scaling(rows)
    merged = Scaling.merge([Scaling.from_rows(part) for part in cut(data.draw, rows)])
    for scaling in (Scaling.from_rows(rows), merged):
        np.testing.assert_array_equal(scaling.observed, observed.astype(float))
        size = np.sqrt(variance + mean**2).astype(float)
        np.testing.assert_allclose(scaling.mean, mean.astype(float), atol=1e-300, rtol=1e-12)
        floor = (1e-14 * size) ** 2
        assert (abs(scaling.variance - variance.astype(float)) <= 1e-9 * variance + floor).all()


@pytest.mark.parametrize("kind", ["float32", "int", "csr", "csc", "fortran", "frame", "list"])
def test_a_scaling_of_any_rows(kind, rng):
    dense = np.round(rng.normal(size=(300, 4)) * [1, 10, 100, 1000] + 5000)
    dense[rng.uniform(size=dense.shape) < 0.5] = 0
    rows = {
        "float32": lambda: dense.astype(np.float32),
        "int": lambda: dense.astype(np.int64),
        "csr": lambda: sparse.csr_array(dense),
        "csc": lambda: sparse.csc_matrix(dense),
        "fortran": lambda: np.asfortranarray(dense),
        "frame": lambda: pd.DataFrame(dense, columns=list("abcd")),
        "list": lambda: dense.tolist(),
    }[kind]()
    scaling = Scaling.from_rows(rows)
    assert scaling.feature_names == (tuple("abcd") if kind == "frame" else None)
    np.testing.assert_allclose(scaling.mean, dense.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.variance, dense.var(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale("std"), StandardScaler().fit(dense).scale_, rtol=1e-12)


def test_sparse_rows_with_gaps_and_weights(rng):
    dense = np.where(rng.uniform(size=(500, 6)) < 0.7, 0.0, 3 + rng.normal(size=(500, 6)))
    dense[rng.uniform(size=dense.shape) < 0.2] = np.nan
    dense[:, 5] = np.nan
    weights = rng.uniform(0, 3, 500) * (rng.uniform(size=500) > 0.1)
    found = Scaling.from_rows(sparse.csr_array(dense), sample_weight=weights)
    observed, mean, variance = exact_scaling(dense, weights)
    np.testing.assert_allclose(found.observed, observed.astype(float), rtol=1e-12)
    np.testing.assert_allclose(found.mean, mean.astype(float), rtol=1e-12)
    np.testing.assert_allclose(found.variance, variance.astype(float), rtol=1e-11)
    assert found.observed[5] == 0
    assert not found.constant[5]
    assert found.scale("std")[5] == 1
    twice = sparse.csr_array((np.ones(2), ([0, 0], [1, 1])), shape=(2, 3))  # an entry of 2 in two parts
    np.testing.assert_allclose(Scaling.from_rows(twice).mean, [0, 1, 0])


def test_weights_count_as_repeated_rows(rng):
    rows, weights = rng.normal(size=(40, 3)) + 1e6, rng.integers(0, 4, 40)
    weighted = Scaling.from_rows(rows, sample_weight=weights)
    repeated = Scaling.from_rows(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(weighted.observed, repeated.observed)
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-14)
    np.testing.assert_allclose(weighted.variance, repeated.variance, rtol=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e9, -3.7, 1e-300])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 1000, 50_000])
def test_constant_features_are_found_as_scikit_learn_finds_them(value, n_rows, rng):
    rows = np.column_stack([np.full(n_rows, value), rng.normal(size=n_rows) * 1e-6 + 1])
    scaling = Scaling.merge([Scaling.from_rows(part) for part in np.array_split(rows, 3) if len(part)])
    assert scaling.constant.tolist() == [True, n_rows == 1]
    np.testing.assert_allclose(scaling.scale("std"), StandardScaler().fit(rows).scale_, rtol=1e-7)


def test_a_far_mean_of_very_many_rows_is_not_constant():
    scaling = Scaling([1e12], [1e6], [1.0])
    assert not scaling.constant.any()


def test_the_binomial_scale_is_that_of_genetics(rng):
    share = rng.uniform(0.05, 0.95, 5)
    counts = rng.binomial(2, share, size=(400, 5)).astype(float)
    counts[:, 3] = 2.0
    scaling = Scaling.from_rows(pd.DataFrame(counts, columns=[f"rs{i}" for i in range(5)]))
    p = counts.mean(axis=0) / 2
    np.testing.assert_allclose(scaling.scale("binomial")[:3], np.sqrt(2 * p * (1 - p))[:3])
    assert scaling.scale("binomial")[3] == 1
    with pytest.raises(ValueError, match="means from 0 to 2, but that of 'rs1' is 3; use 'std'"):
        Scaling([5.0, 5.0], [1.0, 3.0], [1.0, 1.0], ("rs0", "rs1")).scale("binomial")
    with pytest.raises(ValueError, match="'std' or 'binomial', got 'max'"):
        scaling.scale("max")


def test_a_scaling_is_frozen_compared_pickled_and_saved(tmp_path, rng):
    scaling = Scaling.from_rows(pd.DataFrame(rng.normal(size=(9, 2)), columns=["a", "b"]))
    assert repr(scaling) == "Scaling(n_features=2, observed=9)"
    scaling.save(tmp_path / "scaling")
    for again in (fedpca.load(tmp_path / "scaling"), pickle.loads(pickle.dumps(scaling)), deepcopy(scaling)):
        assert again == scaling
        assert not again.mean.flags.writeable
    assert scaling != Scaling.from_rows(rng.normal(size=(9, 2)))
    with pytest.raises(ValueError, match="read-only"):
        scaling.mean[0] = 1
    with pytest.raises(ModelFileError, match="must be a model, but is a Scaling"):
        Subspace.load(tmp_path / "scaling")


def test_no_rows_are_the_identity_of_merging(rng):
    scaling = Scaling.from_rows(rng.normal(size=(9, 2)))
    assert Scaling.merge([Scaling.empty(2), scaling]) == scaling
    assert Scaling.from_rows(np.zeros((0, 2))) == Scaling.empty(2)
    assert Scaling.empty(2).scale("std").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0, 2.0], [1.0]), "one number per feature, got"),
        (([], [], []), "one number per feature, got"),
        (([1.0], [np.nan], [1.0]), "must be finite"),
        (([-1.0], [1.0], [1.0]), "must not be negative"),
        (([1.0], [1.0], [-1.0]), "must not be negative"),
        (([0.0], [1.0], [0.0]), "must be 0 for features without an observed entry"),
        (([1.0], [1e200], [1.0]), "rescale the features"),
        (([1.0], [1.0], [1.0], ("a", "b")), "feature_names must name every feature"),
    ],
)
def test_a_scaling_of_impossible_numbers_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Scaling(*arguments)


def test_scalings_of_other_features_do_not_merge(rng):
    narrow, wide = Scaling.empty(2), Scaling.empty(3)
    with pytest.raises(ValueError, match="same features, got 2 and 3"):
        Scaling.merge([narrow, wide])
    with pytest.raises(ValueError, match="at least one Scaling"):
        Scaling.merge([])
    with pytest.raises(TypeError, match="a list of them"):
        Scaling.merge(narrow)
    with pytest.raises(ValueError, match="same feature names"):
        Scaling.merge([Scaling.empty(1, ["a"]), Scaling.empty(1, ["b"])])
    for rows, message in (
        ([[np.inf]], "infinity"),
        ([1.0, 2.0], "shape"),
        ([["x"]], "real numbers|could not"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            Scaling.from_rows(rows)


# --- summaries ---


@given(rows=mixed_units(min_rows=3), data=st.data())
def test_moments_of_owners_give_the_pca_of_standardized_rows(rows, data):
    parts = [Moments.from_rows(part, scale="std") for part in cut(data.draw, rows)]
    merged = merge(parts)
    assert isinstance(merged, Moments)
    assert merged.scale == "std"
    assert_pca_of(merged, rows)
    assert_pca_of(merge_tree(parts, fanout=2), rows)
    without = [part.with_about(scale="std") for part in parts]  # the scale from mean and scatter alone
    assert without[0].scaling is None
    assert_pca_of(merge(without), rows)


@given(rows=mixed_units(min_rows=3), data=st.data())
def test_subspaces_with_the_scale_of_all_rows_give_the_same(rows, data):
    owners = cut(data.draw, rows)
    scale = Scaling.merge([Scaling.from_rows(part) for part in owners]).scale("std")
    assert_pca_of(Subspace.from_rows(rows, scale="std"), rows)
    for kind in (Subspace, Moments):
        assert_pca_of(kind.from_rows(rows, scale=scale), rows)
    constant = np.ptp(rows, axis=0) == 0
    if not (np.abs(rows[:, constant]) > 1e6).any():
        merged = merge([Subspace.from_rows(part, scale=scale) for part in owners])
        assert_pca_of(merged, rows, atol=1e-9)


@pytest.mark.parametrize("n_rows", [40, 400])
def test_scores_and_variances_are_those_of_scikit_learn(n_rows, rng):
    rows = rows_of(3, n_rows) * np.logspace(-6, 9, 8)
    scaler = StandardScaler().fit(rows)
    pca = PCA(3).fit(scaler.transform(rows))
    parts = [Moments.from_rows(part, scale="std") for part in np.array_split(rows, [5, 6, 20])]
    for model in (merge(parts, rank=3), Subspace.from_rows(rows, 3, scale="std")):
        np.testing.assert_allclose(model.singular_values, pca.singular_values_, rtol=1e-10)
        np.testing.assert_allclose(model.explained_variance_ratio, pca.explained_variance_ratio_, rtol=1e-10)
        projector, expected = (basis.T @ basis for basis in (model.components, pca.components_))
        np.testing.assert_allclose(projector, expected, atol=1e-10)
        np.testing.assert_allclose(
            np.abs(model.project(rows)), np.abs(pca.transform(scaler.transform(rows))), atol=1e-9
        )
        restored = scaler.inverse_transform(pca.inverse_transform(pca.transform(scaler.transform(rows))))
        np.testing.assert_allclose(
            model.reconstruct(model.project(rows)) / scaler.scale_, restored / scaler.scale_, atol=1e-9
        )


def test_weights_and_uncentered_rows(rng):
    rows, weights = (rows_of(1, 50) + 2) * np.logspace(-3, 3, 8), rng.integers(0, 4, 50)
    assert_pca_of(Moments.from_rows(rows, sample_weight=weights, scale="std"), rows, weights)
    scaler = StandardScaler(with_mean=False).fit(rows, sample_weight=weights)
    expected = np.linalg.svd(np.sqrt(weights)[:, None] * scaler.transform(rows), compute_uv=False)
    parts = [
        Moments.from_rows(rows[own], sample_weight=weights[own], scale="std", center=False)
        for own in (slice(20), slice(20, None))
    ]
    for found in (
        merge(parts).subspace(),
        Subspace.from_rows(rows, sample_weight=weights, scale="std", center=False),
    ):
        np.testing.assert_allclose(found.singular_values, expected, rtol=1e-10)
        np.testing.assert_allclose(found.scale, scaler.scale_)


def test_forgetting_weighs_the_scale_too(rng):
    old, new = rng.normal(size=(30, 3)) * [1, 10, 100], rng.normal(size=(20, 3)) * [5, 10, 1]
    merged = merge([Moments.from_rows(rows, scale="std") for rows in (old, new)], forget=0.5)
    weights = np.repeat([0.25, 1.0], [30, 20])
    assert_pca_of(merged, np.concatenate([old, new]), weights)
    assert_pca_of(Moments.from_rows(new, scale="std").scaled(0.5), new)


def test_rows_that_know_other_features_have_the_scale_of_those_that_do(rng):
    rows = rng.normal(size=(60, 3)) * [1, 50, 1e-3] + [0, 1e3, 5]
    wide = Moments.from_rows(rows[:40], scale="std")
    part = Moments.from_rows(rows[40:, :2])
    narrow = Moments(
        20, [*part.mean, 0], np.pad(part.scatter, (0, 1)), observed=[20, 20, 0], about=About(scale="std")
    )
    for merged in (merge([wide, narrow]), merge([narrow, wide])):
        assert merged.parts
        assert merged.scale == "std"
        expected = [rows[:, 0].std(), rows[:, 1].std(), rows[:40, 2].std()]
        np.testing.assert_allclose(merged.subspace().scale, expected, rtol=1e-12)
        np.testing.assert_allclose(merged.subspace().scatter.diagonal(), 60, rtol=1e-9)
        assert merge([wide, narrow], rank=2).rank == 2
        np.testing.assert_allclose(merge([wide, narrow], rank=2).scale, expected, rtol=1e-12)


def scaled_summaries(rng):
    rows = rng.normal(size=(30, 3)) * [1, 10, 100]
    scale = [1.0, 10.0, 100.0]
    narrow = Moments(9, [1.0, 2.0, 0.0], np.diag([1.0, 1.0, 0.0]), observed=[9, 9, 0])
    return [
        Subspace.from_rows(rows, 2, scale=scale),
        Moments.from_rows(rows, scale=scale),
        Moments.from_rows(rows, scale="std"),
        Moments.from_rows(rows, scale="std").with_about(scale="binomial"),
        merge([Moments.from_rows(rows, scale="std"), narrow.with_about(scale="std")]),
        merge([Moments.from_rows(rows, scale=scale), narrow.with_about(scale=scale)]),
        merge([Subspace.from_rows(rows, 2, scale=scale), narrow.with_about(scale=scale)], rank=2),
    ]


@pytest.mark.parametrize("index", range(7))
def test_a_scaled_summary_is_compared_pickled_and_saved(index, tmp_path, rng):
    summary = scaled_summaries(rng)[index]
    summary.save(tmp_path / "model")
    for again in (fedpca.load(tmp_path / "model"), pickle.loads(pickle.dumps(summary)), deepcopy(summary)):
        assert again == summary
        np.testing.assert_array_equal(again.scale, summary.scale)
        assert again.scaling == summary.scaling
    assert summary != summary.with_about(scale=None)
    assert summary.with_about(scale=None) != summary
    assert "scale" in repr(summary)
    assert summary.with_about(names=["a", "b", "c"]).scale is not None
    if summary.kind == "subspace":
        for changed in (summary.truncate(1), summary.scaled(0.5), summary.astype(np.float32)):
            np.testing.assert_array_equal(changed.scale, summary.scale)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        ("max", ValueError, "'std', 'binomial' or one positive number per feature, got 'max'"),
        ([1.0, 0.0, 2.0], ValueError, "positive and finite, got 0 for b; use 1"),
        ([1.0, np.nan, 2.0], ValueError, "positive and finite, got nan for b"),
        ([1.0, -3.0, 2.0], ValueError, "positive and finite, got -3 for b"),
        ([1.0, np.inf, np.inf], ValueError, "positive and finite, got inf for b, c"),
        ([1.0, 2.0], ValueError, r"per feature, 3, got shape \(2,\)"),
        (2.0, ValueError, r"per feature, 3, got shape \(\)"),
        ([[1.0, 1.0, 1.0]], ValueError, "got shape"),
        (["a", "b", "c"], TypeError, "one positive number per feature"),
        (object(), TypeError, "one positive number per feature"),
        (Scaling.empty(3), TypeError, "pass its scale"),
    ],
)
def test_a_bad_scale_is_one_clear_error(scale, error, message):
    rows = pd.DataFrame(np.eye(3), columns=list("abc"))
    for kind in (Subspace, Moments):
        with pytest.raises(error, match=message):
            kind.from_rows(rows, scale=scale)


def test_summaries_of_different_scales_do_not_merge(rng):
    rows = rng.normal(size=(9, 2))
    plain, standard = Moments.from_rows(rows), Moments.from_rows(rows, scale="std")
    one, other = (Subspace.from_rows(rows, scale=scale) for scale in ([1.0, 2.0], [1.0, 3.0]))
    together = "fit all with the same numbers, such as those of a Scaling merged from all owners"
    for summaries, message in (
        ([plain, standard], "the same scale, got none and 'std'; fit all with the same scale"),
        ([standard, standard.with_about(scale="binomial")], "got 'std' and 'binomial'"),
        ([one, other], f"got numbers and other numbers; {together}"),
        ([standard, one], f"got 'std' and numbers; {together}"),
        ([Subspace.from_rows(rows), one], "got none and numbers"),
    ):
        for way in (merge, merge_tree):
            with pytest.raises(ValueError, match=message):
                way(summaries)
    assert merge([one, one.with_about(scale=[1.0, 2.0 * (1 + 1e-13)])]).count == 18
    assert merge([Subspace.empty(2), standard]).scale == "std"
    assert merge([standard, Subspace.empty(2)], rank=1).scale is not None


def test_the_papers_merges_keep_the_scale(rng):
    rows = rng.normal(size=(20, 3))
    halves = [
        Subspace.from_rows(part, 2, center=False, scale=[1.0, 2.0, 3.0]) for part in (rows[:9], rows[9:])
    ]
    assert basic_merge(*halves).scale.tolist() == [1, 2, 3]


def test_a_damaged_scale_in_a_file_is_refused(tmp_path, rng):
    from fedpca.summaries import model_file

    summary = Moments.from_rows(rng.normal(size=(9, 2)), scale="std")
    for arrays, metadata in (
        ({"scale": np.array([1.0, 0.0])}, {"scale": None}),
        ({}, {"scale": "max"}),
        ({}, {"scale": 3}),
        ({"scaling.mean": np.zeros(3)}, {}),
        ({"scaling.variance": -np.ones(2)}, {}),
    ):
        model_file.write(tmp_path / "x", "moments", summary.arrays | arrays, summary.metadata | metadata)
        with pytest.raises(ModelFileError), warnings.catch_warnings():
            fedpca.load(tmp_path / "x")
