"""Variances along components: certain in summaries, with an estimate of what was discarded in estimators."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers import fit_in_batches, power_law, singular_values
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_sample_images

import fedpca
from fedpca.trackers.nystrom import tuning


def late_clusters(rng, n_features=300):
    """Rows near fifteen centers, one center after the other; more than are kept."""
    centers = 0.8 * rng.normal(size=(15, n_features))
    return np.concatenate([center + rng.normal(size=(400, n_features)) for center in centers])


def test_reported_variances_contain_an_estimate_of_what_was_discarded(rng, monkeypatch):
    monkeypatch.setattr("fedpca.trackers.nystrom.tracker.TUNING", replace(tuning.TUNING, kept_bytes=2**20))
    rows = late_clusters(rng)
    pca = fit_in_batches(fedpca.StreamingPCA(10, tracker="nystrom"), rows, 500)
    deviations = rows - rows.mean(axis=0)
    captured = np.sum((deviations @ pca.components_.T) ** 2, axis=0)
    reported = pca.singular_values_**2
    certain = pca.subspace_.singular_values[:10] ** 2
    assert (certain <= captured * (1 + 1e-9)).all()
    assert certain.sum() < 0.99 * captured.sum()  # this stream is one that loses more
    assert abs(reported.sum() / captured.sum() - 1) < 0.01
    assert (reported >= certain).all()
    assert (np.diff(reported) <= 0).all()
    total = pca.subspace_.total
    np.testing.assert_allclose(pca.explained_variance_, reported / (len(rows) - 1))
    np.testing.assert_allclose(pca.explained_variance_ratio_, reported / total)
    assert pca.explained_variance_ratio_.sum() < 1
    scores = fedpca.StreamingPCA(10, tracker="nystrom", whiten=True).fit(rows).transform(rows)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1).mean(), 1, atol=0.02)


def test_where_nothing_was_discarded_there_is_nothing_to_estimate(rng):
    rows = power_law(rng, 2000, 300)
    kept = fedpca.StreamingPCA(5, tracker="nystrom").fit(rows)
    merged = (
        fedpca.StreamingPCA(5, tracker="nystrom")
        .fit(rows[:1000])
        .merge(fedpca.StreamingPCA(5, tracker="nystrom").fit(rows[1000:]))
    )
    for pca in (kept, merged, fedpca.StreamingPCA(5, tracker="exact").fit(rows)):
        assert np.array_equal(pca.singular_values_, pca.subspace_.singular_values[:5])


# --- every number, against a singular value decomposition of all rows ---


def energies_along(rows, components):
    """Sums of squares about the mean; less the first row before, since a mean may be far larger."""
    deviations = rows.astype(np.float64) - rows[0].astype(np.float64)
    deviations -= deviations.mean(axis=0)
    return deviations, np.sum((deviations @ np.asarray(components, np.float64).T) ** 2, axis=0)


def check_every_number(pca, rows, n_components, tolerance):
    """Components, each variance, mean and total; a component may lack `tolerance` of what it captures."""
    deviations, along = energies_along(rows, pca.components_)
    best = np.linalg.svd(np.linalg.qr(deviations, mode="r"), compute_uv=False) ** 2
    assert pca.n_components_ == n_components
    np.testing.assert_allclose(pca.singular_values_**2, along, rtol=tolerance)
    np.testing.assert_allclose(pca.explained_variance_, along / (len(rows) - 1), rtol=tolerance)
    np.testing.assert_allclose(along, best[:n_components], rtol=tolerance)
    np.testing.assert_allclose(pca.subspace_.total, best.sum(), rtol=1e-5)
    deviation = np.sqrt(best.sum() / deviations.size)
    np.testing.assert_allclose(pca.mean_, np.asarray(rows, np.float64).mean(axis=0), atol=1e-3 * deviation)
    certain = pca.subspace_.singular_values
    rounding = 1e-14 * certain[0] * certain
    along = energies_along(rows, pca.subspace_.components)[1]
    assert (certain**2 <= along * (1 + 1e-6) + rounding).all()


@pytest.fixture(scope="module")
def patches():
    """Patches of the photographs that come with scikit-learn: the first component is most of them."""
    rng = np.random.default_rng(0)
    found = []
    for image in load_sample_images().images:
        windows = sliding_window_view(image.mean(axis=2), (24, 24))
        rows, columns = (rng.integers(0, size, 8000) for size in windows.shape[:2])
        found.append(windows[rows, columns].reshape(-1, 576))
    return rng.permutation(np.concatenate(found))


@pytest.mark.long
@pytest.mark.parametrize("size", [32, 64, 100, 128, 1000])
def test_variances_of_patches_whatever_the_batches(size, patches):
    pca = fedpca.StreamingPCA(20, whiten=True)
    worst = []
    for start in range(0, len(patches), size):
        pca.partial_fit(patches[start : start + size])
        if start >= 9000 and start // size % (6400 // size) == 0:  # rows are buffered at some reads only
            along = energies_along(patches[: start + size], pca.components_)[1]
            worst.append(np.min(pca.singular_values_**2 / along))
    assert min(worst) > 0.95
    check_every_number(pca, patches, 20, 0.05)
    np.testing.assert_allclose(pca.transform(patches).std(axis=0), 1, atol=0.03)
    assert abs(pca.anomaly_scores(patches)[1].mean() - 20) < 0.5


@pytest.mark.long
def test_directions_beyond_the_components_keep_their_energy_for_merging(patches):
    """Photographs less their mean; read while rows are buffered."""
    rows = patches - patches.mean(axis=1, keepdims=True)
    halves = [fit_in_batches(fedpca.StreamingPCA(20), half, 48) for half in (rows, rows[::-1])]
    for pca in halves:
        along = energies_along(rows, pca.subspace_.components)[1]
        assert (pca.subspace_.singular_values**2 > 0.7 * along).all()
    merged = fedpca.merge([pca.subspace_ for pca in halves], rank=20)
    along = 2 * energies_along(rows, merged.components)[1]
    assert (merged.singular_values**2 > 0.9 * along).all()


def awkward(kind, rng):
    """More rows than are kept; ten directions of which nine are far weaker than the first."""
    rows = rng.normal(size=(16_000, 300)) * np.r_[np.arange(10, 0, -1.0), np.full(290, 0.1)]
    strength = float(kind.split()[-1])
    if kind.startswith("column"):
        rows[:, 7] *= strength
    elif kind.startswith("time"):
        rows[:, 0] = strength * np.linspace(0, 1, len(rows))
    elif kind.startswith("jump"):
        rows[8000:] += strength * rng.normal(size=300) / np.sqrt(300)
    elif kind.startswith("late"):
        rows[15_000:, 0] *= strength
    elif kind.startswith("outlier"):
        rows[8000] *= strength
    return rows


KINDS = ["column 1e5", "column 1e11", "time 1e9", "jump 1e9", "late 1e7", "late 1e9", "outlier 1e7"]
KINDS += ["outlier 1e11"]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("column 1e9", 1000, marks=pytest.mark.slow),
        *(pytest.param(kind, size, marks=pytest.mark.long) for kind in KINDS for size in (100, 1000, None)),
    ],
)
def test_strong_columns_jumps_and_outliers_hide_no_component(kind, size, rng):
    rows = awkward(kind, rng)
    pca = fedpca.StreamingPCA(10)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "feature . has")  # true
        pca = pca.fit(rows) if size is None else fit_in_batches(pca, rows, size)
    check_every_number(pca, rows, 10, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "length"), [(0, 1e6), (7000, 1e7)])
def test_one_long_row_among_the_first_stops_no_search(place, length, rng):
    """Variances that fall slowly: what is found of the others is no share of all that is found."""
    rows = power_law(rng, 16_000, 300, 0.7)
    rows[place] *= length
    check_every_number(fit_in_batches(fedpca.StreamingPCA(10), rows, 1000), rows, 10, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("place", [20_000, 27_000])
def test_rounding_of_one_long_row_in_float32_is_no_variance(place):
    """Of its component, in one update after the other: it passed for variance that was discarded."""
    rows = power_law(np.random.default_rng(0), 32_000, 300, 0.7)
    rows[place] *= 1e6
    rows = rows.astype(np.float32)
    pca = fit_in_batches(fedpca.StreamingPCA(10), rows, 1000)
    along = energies_along(rows, pca.components_)[1]
    np.testing.assert_allclose(pca.singular_values_**2, along, rtol=0.01)
    np.testing.assert_allclose(along, singular_values(rows)[:10] ** 2, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize(("n_rows", "mean"), [(3000, 1e5), (24_000, 1e6)])
def test_a_mean_far_above_the_deviations_in_float32_hides_no_component(mean, n_rows, size, rng):
    """Truth is that of the rounded values."""
    rows = rng.normal(size=(n_rows, 400)) * np.r_[np.arange(20, 10, -1.0), np.full(390, 1.0)]
    rows = (rows + mean * rng.normal(size=400)).astype(np.float32)
    pca = fedpca.StreamingPCA(10)
    pca = pca.fit(rows) if size is None else fit_in_batches(pca, rows, size)
    check_every_number(pca, rows, 10, 0.01)


def test_whole_numbers_near_the_largest_that_are_exact(rng):
    rows = np.round(rng.normal(size=(2000, 300)) * np.r_[np.arange(200, 100, -10.0), np.full(290, 10.0)])
    rows = rows.astype(np.int64) + 10**15
    for pca in (fedpca.StreamingPCA(10).fit(rows), fit_in_batches(fedpca.StreamingPCA(10), rows, 64)):
        assert pca.n_components_ == 10
        np.testing.assert_allclose(
            pca.singular_values_**2, energies_along(rows, pca.components_)[1], rtol=1e-6
        )


def test_rounding_of_a_far_mean_is_no_component(rng):
    rows = (rng.normal(size=(30_000, 3)) @ rng.normal(size=(3, 300)) + 1e4).astype(np.float32)
    with pytest.warns(UserWarning, match="only 3 found: .* that are not rounding of their values"):
        assert fedpca.StreamingPCA(10).fit(rows).n_components_ == 3
    assert fit_in_batches(fedpca.StreamingPCA(10), rows, 64).n_components_ == 3


def test_a_total_keeps_its_digits_beside_one_large_value():
    """What rounding leaves of it would count as variance that was lost."""
    rows = np.full((20_000, 200), np.sqrt(1.7e-4))
    rows[0, 0] = 1e6
    total = fedpca.Subspace.from_rows(rows, rank=1, center=False).total
    assert abs(total / math.fsum((rows**2).ravel()) - 1) < 1e-13
