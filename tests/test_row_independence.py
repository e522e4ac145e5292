"""A row's scores, anomaly scores and likelihood never depend on the rows it comes with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpca import StreamingPCA

UNITS = 10.0 ** np.array([6, 3, 1, 0, 0, -1, -2, -3])  # income, counts, shares ...
TRACKERS = ("exact", "nystrom", "block")


def mixed_units(n_rows=400, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, 8)) @ (np.eye(8) + 0.3 * rng.normal(size=(8, 8))) * UNITS + 3 * UNITS


FITTED = {}


def fitted(tracker, n_components=5):
    """Fitted once per process."""
    key = tracker, n_components
    if key not in FITTED:
        FITTED[key] = StreamingPCA(n_components, tracker=tracker).fit(mixed_units())
    return FITTED[key]


def results(pca, X):
    spe, t2 = pca.anomaly_scores(X)
    return np.column_stack([pca.transform(X), spe, t2, pca.score_samples(X)])


def assert_alike(together, alone, tolerance=1e-9):
    """Equal up to rounding, relative to the largest value of each column."""
    size = np.abs(alone).max(axis=0) + 1e-300
    np.testing.assert_allclose(together / size, alone / size, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_components", [5, 8])
@pytest.mark.parametrize("tracker", TRACKERS)
def test_complete_rows_are_scored_alike_beside_rows_with_gaps(tracker, n_components):
    pca, rows = fitted(tracker, n_components), mixed_units(60, seed=1)
    expected = pca.transform(rows)
    beside = rows.copy()
    beside[::7, 2] = np.nan
    complete = ~np.isnan(beside).any(axis=1)
    np.testing.assert_allclose(
        pca.transform(beside)[complete], expected[complete], rtol=0, atol=1e-12 * np.abs(rows).max()
    )
    spread = expected.std(axis=0)
    assert (np.abs(pca.transform(beside)[complete] - expected[complete]) < 1e-6 * spread).all()


@settings(max_examples=40)
@given(
    tracker=st.sampled_from(TRACKERS),
    seed=st.integers(0, 5),
    holes=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 7)), max_size=12),
    layout=st.sampled_from(["C", "F", "strided", "reversed"]),
    cut=st.integers(1, 19),
)
def test_a_row_alone_and_in_any_batch_has_the_same_results(tracker, seed, holes, layout, cut):
    pca, rows = fitted(tracker), mixed_units(20, seed=10 + seed)
    for row, column in holes:
        rows[row, column] = np.nan
    alone = np.concatenate([results(pca, rows[i : i + 1]) for i in range(len(rows))])
    wide = np.zeros((20, 16))
    wide[:, ::2] = rows
    batch = {"C": rows, "F": np.asfortranarray(rows), "strided": wide[:, ::2], "reversed": rows[::-1]}[layout]
    together = np.concatenate([results(pca, batch[:cut]), results(pca, batch[cut:])])
    assert_alike(together[::-1] if layout == "reversed" else together, alone)


@pytest.mark.parametrize("gaps", [False, True])
def test_sparse_rows_are_scored_like_dense_ones(gaps):
    pca, rows = fitted("exact"), mixed_units(30, seed=2)
    rows[:, 3] = 0.0
    if gaps:
        rows[4, 1] = rows[5, 0] = np.nan
    assert_alike(pca.transform(sparse.csr_array(rows)), pca.transform(rows))
