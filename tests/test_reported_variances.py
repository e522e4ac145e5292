"""Variances along components: certain in summaries, with an estimate of what was discarded in estimators."""

from dataclasses import replace

import numpy as np
from helpers import fit_in_batches, power_law

import fedpca
from fedpca.trackers.nystrom import tuning


def late_clusters(rng, n_features=300):
    """Rows near fifteen centers, one center after the other; more than are kept."""
    centers = 0.8 * rng.normal(size=(15, n_features))
    return np.concatenate([center + rng.normal(size=(400, n_features)) for center in centers])


def test_reported_variances_contain_an_estimate_of_what_was_discarded(rng, monkeypatch):
    monkeypatch.setattr(tuning, "HOST_TUNING", replace(tuning.HOST_TUNING, kept_bytes=2**20))
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
