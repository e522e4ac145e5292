"""Missing entries: bridged by the subspace, in learning and in use."""

import numpy as np
import pytest
from helpers import shortfall
from scipy import sparse

from fedpca import StreamingPCA, Subspace
from fedpca.summaries.missing_values import impute, impute_cold_start, partial_scores


def with_gaps(rng, rows, share=0.1):
    return np.where(rng.uniform(size=rows.shape) < share, np.nan, rows)


@pytest.fixture
def plane(rng):
    """Rows near a plane in 12 dimensions, away from the origin."""
    return rng.normal(size=(1500, 2)) @ rng.normal(size=(2, 12)) + 5 + 0.01 * rng.normal(size=(1500, 12))


def test_gaps_in_rows_of_the_subspace_are_filled_exactly(rng):
    rows = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 12)) + 5
    gappy = with_gaps(rng, rows, 0.3)
    np.testing.assert_allclose(impute(gappy, Subspace.from_rows(rows)), rows, atol=1e-6)


def test_observed_entries_stay_as_they_are(rng, plane):
    gappy = with_gaps(rng, plane[:100])
    result = impute(gappy, Subspace.from_rows(plane[100:], 2))
    seen = ~np.isnan(gappy)
    np.testing.assert_array_equal(result[seen], gappy[seen])
    assert np.isfinite(result).all()


def test_a_row_with_few_entries_stays_near_the_mean(rng, plane):
    subspace = Subspace.from_rows(plane)
    empty = np.full((1, 12), np.nan)
    np.testing.assert_allclose(impute(empty, subspace)[0], subspace.mean)
    one = empty.copy()
    one[0, 3] = subspace.mean[3] + 0.5
    assert np.abs(impute(one, subspace) - subspace.mean).max() < 20


def test_coordinates_of_complete_rows_are_projections(plane):
    subspace = Subspace.from_rows(plane, 2)
    np.testing.assert_allclose(partial_scores(plane, subspace), subspace.project(plane), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_learning_from_rows_with_gaps(tracker, method, rng, plane):
    gappy = with_gaps(rng, plane, 0.2)
    pca = StreamingPCA(2, tracker=tracker)
    if method == "fit":
        pca.fit(gappy)
    else:
        for start in range(0, len(gappy), 70):
            pca.partial_fit(gappy[start : start + 70])
    assert pca.n_samples_seen_ == 1500
    assert shortfall(pca.components_, plane) < 1e-3
    np.testing.assert_allclose(pca.mean_, plane.mean(axis=0), atol=0.05)


@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
def test_features_of_very_different_size_invent_no_variance(tracker, rng):
    rows = rng.normal(size=(3000, 20)) @ np.diag([2000.0, 900.0, 300.0, *[1.0] * 17]) + 100
    gappy = rows.copy()
    gappy[:, :3] = with_gaps(rng, rows[:, :3], 0.2)
    pca, complete = (StreamingPCA(2, tracker=tracker).fit(table) for table in (gappy, rows))
    ratio = pca.explained_variance_ / complete.explained_variance_
    assert (ratio > 0.7).all()
    assert (ratio < 1.2).all()


def test_better_than_column_means(rng, plane):
    gappy = with_gaps(rng, plane, 0.4)
    means = np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)
    ours = StreamingPCA(2).fit(gappy)
    naive = StreamingPCA(2).fit(means)
    assert shortfall(ours.components_, plane) < 0.3 * shortfall(naive.components_, plane)


def test_using_rows_with_gaps(rng, plane):
    pca = StreamingPCA(2).fit(plane)
    gappy = with_gaps(rng, plane, 0.2)
    scores = pca.transform(gappy)
    assert np.abs(scores - pca.transform(plane)).max() < 0.2
    spe, t2 = pca.anomaly_scores(gappy)
    assert np.isfinite(spe).all()
    assert np.isfinite(t2).all()
    broken = plane[:1].copy()
    broken[0, 0] = np.nan
    broken[0, 5] += 3
    assert pca.anomaly_scores(broken)[0] > 10 * spe.max()


def test_gaps_in_sparse_rows(rng, plane):
    gappy = with_gaps(rng, plane)
    dense, kept = StreamingPCA(2).fit(gappy), StreamingPCA(2).fit(sparse.csr_array(gappy))
    np.testing.assert_allclose(kept.explained_variance_, dense.explained_variance_)
    np.testing.assert_allclose(kept.transform(sparse.csc_array(gappy)), dense.transform(gappy))


@pytest.mark.filterwarnings("ignore:n_components=")
def test_a_feature_never_seen_and_a_row_never_seen(rng, plane):
    gappy = with_gaps(rng, plane)
    gappy[:, 4] = np.nan
    gappy[::10] = np.nan
    pca = StreamingPCA(2)
    with pytest.warns(UserWarning, match="feature 5 has no observed value"):
        pca.fit(gappy)
    assert pca.subspace_.count == 1350  # rows of which nothing was observed say nothing
    np.testing.assert_allclose(pca.components_[:, 4], 0, atol=1e-15)
    assert np.isfinite(pca.transform(gappy)).all()
    nothing = StreamingPCA(2).fit(np.full((5, 3), np.nan))
    assert nothing.n_components_ == 0
    assert nothing.transform(np.ones((2, 3))).shape == (2, 0)


def test_the_first_rows_are_filled_from_themselves(rng, plane):
    gappy = with_gaps(rng, plane[:300], 0.2)
    result, _ = impute_cold_start(gappy, rank=2, center=True)
    gaps = np.isnan(gappy)
    means = np.nanmean(gappy, axis=0)
    error = np.abs(result - plane[:300])[gaps].mean()
    assert error < 0.1 * np.abs(means - plane[:300])[gaps].mean()


def test_the_caller_keeps_the_gaps(rng, plane):
    gappy = with_gaps(rng, plane)
    before = gappy.copy()
    StreamingPCA(2).fit(gappy).transform(gappy)
    np.testing.assert_array_equal(gappy, before)


@pytest.mark.parametrize(("share", "limit"), [(0.1, 1e-5), (0.5, 2e-4), (0.8, 3e-3), (0.9, 1e-2)])
def test_most_entries_missing(share, limit):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(3000, 4)) * [4, 3, 2, 1.5]) @ rng.normal(size=(4, 60)) * 0.4
    rows += 0.3 * rng.normal(size=rows.shape) + 2 * rng.normal(size=60)
    gappy = with_gaps(rng, rows, share)
    pca = StreamingPCA(4)
    for part in np.split(gappy, 3):
        pca.partial_fit(part)
    assert shortfall(pca.components_, rows) < limit
    best = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:4] ** 2 / 2999
    np.testing.assert_allclose(pca.explained_variance_, best, rtol=0.02 if share <= 0.5 else 0.25)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_first_rows_are_filled_alike_in_any_unit(unit, rng, plane):
    gappy = with_gaps(rng, plane[:300], 0.3)
    units = np.where(np.arange(12) % 2, unit, 1.0)
    filled, scaled = (impute_cold_start(rows, 4, center=True)[0] for rows in (gappy, gappy * units))
    np.testing.assert_allclose(scaled / units, filled, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e-150, 1.0, 1e150])
def test_first_rows_that_are_all_alike(value):
    rows = np.full((5, 3), value)
    rows[1, 0] = rows[2, 1] = np.nan
    np.testing.assert_allclose(impute_cold_start(rows, 2, center=True)[0], value, rtol=1e-12)


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e6])
def test_a_weight_counts_repetitions_of_a_row_with_gaps(unit, rng, plane):
    rows = with_gaps(rng, plane[:200], 0.3)
    weights = rng.integers(0, 4, size=len(rows))
    weighted = StreamingPCA(2).fit(rows, sample_weight=unit * weights)
    repeated = StreamingPCA(2).fit(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, rtol=1e-9)
    np.testing.assert_allclose(
        weighted.singular_values_, np.sqrt(unit) * repeated.singular_values_, rtol=1e-9
    )


def test_rows_of_weight_zero_fill_no_gaps(rng):
    rows = rng.normal(size=(12, 3)) + np.array([0.0, 0.0, 300.0])
    rows[:6, 2] = np.nan
    weights = np.repeat([1.0, 0.0], 6)
    pca = StreamingPCA(2).partial_fit(rows, sample_weight=weights)
    assert pca.mean_[2] == 0
    assert pca.summary_.observed[2] == 0
    first = StreamingPCA(2).partial_fit(rows[6:], sample_weight=weights[6:]).partial_fit(rows[:6])
    assert first.summary_.observed[2] == 0
    first.partial_fit(rows[6:])
    assert first.mean_[2] == pytest.approx(rows[6:, 2].mean())


def test_few_rows_of_many_features_are_not_filled_with_their_noise():
    """Estimates from rows without structure are hardly worse than the average."""
    rng = np.random.default_rng(0)
    complete = rng.normal(size=(40, 400))
    gaps = rng.uniform(size=complete.shape) < 0.02
    filled, _ = impute_cold_start(np.where(gaps, np.nan, complete), rank=20, center=True)
    assert np.sqrt(np.mean((filled - complete)[gaps] ** 2)) < 1.1


# --- gaps in most entries, in small batches ---


def with_running_means(gappy, batch):
    """Components of rows filled with the means of the entries observed so far."""
    sums, counts = np.zeros(gappy.shape[1]), np.zeros(gappy.shape[1])
    pca = StreamingPCA(5)
    for start in range(0, len(gappy), batch):
        rows = gappy[start : start + batch]
        sums, counts = sums + np.nansum(rows, axis=0), counts + np.sum(~np.isnan(rows), axis=0)
        pca.partial_fit(np.where(np.isnan(rows), sums / np.maximum(counts, 1), rows))
    return pca


def weakly_related(kind, rng):
    if kind == "factors":
        return rng.normal(size=(2000, 5)) @ rng.normal(size=(5, 60)) + rng.normal(size=(2000, 60)) + 5
    if kind == "flat":
        return rng.normal(size=(2000, 60)) * np.arange(1, 61) ** -0.25 + 3
    if kind == "categories":
        return np.eye(4)[rng.integers(0, 4, size=(2000, 15))].reshape(2000, 60)
    rotation = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    return (rng.normal(size=(2000, 60)) * np.arange(1, 61) ** -0.5) @ rotation * 1e3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:about .* of the variance is lost")
@pytest.mark.parametrize("batch", [50, 500])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("kind", ["factors", "flat", "categories", "power law"])
@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_most_entries_missing_in_small_batches(tracker, kind, share, batch, rng):
    """Never farther off than running means, nor with more variance than there is."""
    rows = weakly_related(kind, rng)
    gappy = with_gaps(rng, rows, share)
    means = with_running_means(gappy, batch)
    pca = StreamingPCA(5, tracker=tracker)
    for start in range(0, len(gappy), batch):
        pca.partial_fit(gappy[start : start + batch])
    assert shortfall(pca.components_, rows) < shortfall(means.components_, rows) + 0.02
    along = np.var((rows - rows.mean(axis=0)) @ pca.components_.T, axis=0)
    assert (pca.explained_variance_ < np.maximum(1.3 * along, 1.3 * means.explained_variance_.max())).all()
    observed = np.nanmean(gappy, axis=0)
    errors = np.abs([pca.mean_ - observed, means.mean_ - observed]) / rows.std(axis=0)
    assert errors[0].max() < errors[1].max() + 0.1


def test_lost_variance_is_told_once_in_a_stream(rng):
    gappy = with_gaps(rng, rng.normal(size=(1000, 30)) + 2, 0.75)
    pca = StreamingPCA(3)
    with pytest.warns(UserWarning, match=r"about 7\d% of the variance is lost with missing entries"):
        pca.partial_fit(gappy[:500])
    pca.partial_fit(gappy[500:])  # pytest makes a second warning an error
    related = rng.normal(size=(1000, 2)) @ rng.normal(size=(2, 30))
    StreamingPCA(2).fit(with_gaps(rng, related, 0.5))  # the others tell all of them: nothing is lost


@pytest.mark.parametrize("forget", [1.0, 0.9])
def test_complete_batches_and_merges_count_as_observed(forget, rng):
    rows = rng.normal(size=(600, 20)) + 100
    pca = StreamingPCA(2, forget=forget).partial_fit(rows[:200])
    pca.partial_fit(with_gaps(rng, rows[200:300])).partial_fit(rows[300:500])
    pca.merge(StreamingPCA(2).fit(rows[500:]))
    pca.partial_fit(np.where(rng.uniform(size=(100, 20)) < 0.9, np.nan, rows[:100]))
    assert np.abs(pca.mean_ - 100).max() < 0.5
