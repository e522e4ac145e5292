"""A row's scores, anomaly scores, likelihood, imputation and lattice point never depend on its company.

Those of rows in files, in every format: tests/test_readers.py.
"""

import numpy as np
import pytest
from helpers import assert_same_results, edge_of_rounding, row_results
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpca import FederatedPCA, StreamingPCA
from fedpca.privacy.clipping import clipped
from fedpca.summaries.missing_values import impute

UNITS = 10.0 ** np.array([6, 3, 1, 0, 0, -1, -2, -3])  # income, counts, shares ...
EQUAL = np.ones(8)
TRACKERS = ("exact", "nystrom", "block")
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "every other row": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "reversed": lambda rows: np.ascontiguousarray(rows[::-1, ::-1])[::-1, ::-1],
    "CSR": sparse.csr_array,
    "CSC": sparse.csc_array,
}


def make_rows(n_rows, seed, units=UNITS, dtype=np.float64):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 8)) @ (np.eye(8) + 0.3 * rng.normal(size=(8, 8))) * units + 3 * units
    return rows.astype(dtype)


FITTED = {}


def fitted(tracker, n_components=5, dtype=np.float64):
    """Fitted once per process; float32 to features of one unit, for it cannot hold the others."""
    key = tracker, n_components, dtype
    if key not in FITTED:
        units = UNITS if dtype is np.float64 else EQUAL
        if tracker == "federated":
            pca, groups = FederatedPCA(n_components), np.arange(400) % 3
            FITTED[key] = pca.fit(make_rows(400, 0, units, dtype), groups=groups)
        else:
            FITTED[key] = StreamingPCA(n_components, tracker=tracker).fit(make_rows(400, 0, units, dtype))
    return FITTED[key]


def with_holes(rows, holes):
    for row, column in holes:
        rows[row, column] = np.nan
    return rows


HOLES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 7)), max_size=40)


@pytest.mark.parametrize("n_components", [5, 8])
@pytest.mark.parametrize("tracker", TRACKERS)
def test_complete_rows_are_scored_alike_beside_rows_with_gaps(tracker, n_components):
    pca, rows = fitted(tracker, n_components), make_rows(60, seed=1)
    expected = pca.transform(rows)
    beside = rows.copy()
    beside[::7, 2] = np.nan
    complete = ~np.isnan(beside).any(axis=1)
    np.testing.assert_allclose(
        pca.transform(beside)[complete], expected[complete], rtol=0, atol=1e-12 * np.abs(rows).max()
    )
    spread = expected.std(axis=0)
    assert (np.abs(pca.transform(beside)[complete] - expected[complete]) < 1e-6 * spread).all()


@pytest.mark.slow
@settings(max_examples=120)
@given(
    tracker=st.sampled_from([*TRACKERS, "federated"]),
    n_components=st.sampled_from([1, 5, 8]),
    dtype=st.sampled_from([np.float64, np.float32]),
    seed=st.integers(0, 5),
    holes=HOLES,
    layout=st.sampled_from(sorted(LAYOUTS)),
    cuts=st.lists(st.integers(1, 19), max_size=4),
    order=st.permutations(range(20)),
)
def test_a_row_alone_and_in_any_company_has_the_same_results(
    tracker, n_components, dtype, seed, holes, layout, cuts, order
):
    pca = fitted(tracker, n_components, dtype)
    units = UNITS if dtype is np.float64 else EQUAL
    rows = with_holes(make_rows(20, 10 + seed, units, dtype), holes)
    alone = [row_results(pca, rows[i : i + 1]) for i in range(20)]
    batch = LAYOUTS[layout](rows[order])
    if layout == "CSC":  # which cannot be cut into rows
        cuts = []
    ends = [0, *sorted(set(cuts)), 20]
    together = [row_results(pca, batch[ends[i] : ends[i + 1], :]) for i in range(len(ends) - 1)]
    assert_same_results(pca, rows[order], together, [alone[i] for i in order])


@settings(max_examples=60)
@given(seed=st.integers(0, 5), holes=HOLES, layout=st.sampled_from(["C", "F", "strided", "reversed"]))
def test_a_row_alone_and_in_any_company_is_imputed_alike(seed, holes, layout):
    pca = fitted("exact")
    rows = with_holes(make_rows(20, 20 + seed), holes)
    model = pca.subspace_, pca.var_
    alone = np.concatenate([impute(rows[i : i + 1], *model) for i in range(20)])
    together = impute(LAYOUTS[layout](rows), *model)
    size = np.linalg.norm(alone, axis=1, keepdims=True)
    np.testing.assert_allclose(together / size, alone / size, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(
    n_features=st.sampled_from([8, 64, 301]),
    layout=st.sampled_from(sorted(set(LAYOUTS) - {"CSR", "CSC"})),
    cuts=st.lists(st.integers(1, 99), max_size=5),
)
def test_a_row_alone_and_in_any_company_has_the_same_lattice_point(n_features, layout, cuts):
    rows = edge_of_rounding(100, n_features)
    alone = np.concatenate([clipped(rows[i : i + 1], 1e-3) for i in range(100)])
    parts = np.split(LAYOUTS[layout](rows), sorted(cuts))
    np.testing.assert_array_equal(np.concatenate([clipped(part, 1e-3) for part in parts]), alone)
