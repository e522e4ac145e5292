"""Metrics against scipy and first principles."""

import numpy as np
import pytest
from helpers import power_law
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from fedpca import StreamingPCA, Subspace
from fedpca.metrics import affinity, alignment, captured_variance, principal_angles, reconstruction_error


def test_the_best_subspace_captures_everything_it_can(rng):
    rows = power_law(rng, 200, 30)
    best = PCA(5, svd_solver="full").fit(rows)
    assert captured_variance(best, rows) == pytest.approx(1)
    assert captured_variance(StreamingPCA(5).fit(rows), rows) == pytest.approx(1)
    assert captured_variance(Subspace.from_rows(rows, 5), rows) == pytest.approx(1)
    mixed = rng.normal(size=(5, 5)) @ best.components_  # another basis of the same subspace
    assert captured_variance(mixed, rows) == pytest.approx(1)
    worse = rng.normal(size=(5, 30))
    basis = np.linalg.qr(worse.T)[0]
    expected = (((rows - rows.mean(axis=0)) @ basis) ** 2).sum() / (best.singular_values_**2).sum()
    assert captured_variance(worse, rows) == pytest.approx(expected)
    assert captured_variance(best, np.ones((4, 30))) == 1.0


@pytest.mark.parametrize("ranks", [(3, 3), (2, 5), (5, 2)])
def test_angles_agree_with_scipy(ranks, rng):
    first, second = (rng.normal(size=(rank, 12)) for rank in ranks)
    np.testing.assert_allclose(
        principal_angles(first, second), np.sort(subspace_angles(first.T, second.T)), atol=1e-12
    )
    cosines = np.cos(principal_angles(first, second))
    assert affinity(first, second) == pytest.approx(np.mean(cosines**2))


def test_tiny_angles_are_not_lost():
    for angle in (0.0, 1e-12, 1e-8, 1e-3, 1.0, np.pi / 2):
        turned = [[np.cos(angle), np.sin(angle), 0.0]]
        assert principal_angles([[1.0, 0.0, 0.0]], turned)[0] == pytest.approx(angle, rel=1e-9, abs=1e-15)


def test_alignment_compares_component_by_component():
    np.testing.assert_allclose(alignment(np.eye(3), -np.eye(3)[[0, 2]]), [1, 0])


def test_reconstruction_error_is_the_mean_squared_distance(rng):
    rows = power_law(rng, 100, 8)
    pca = PCA(3, svd_solver="full").fit(rows)
    back = pca.inverse_transform(pca.transform(rows))
    assert reconstruction_error(pca, rows) == pytest.approx(((rows - back) ** 2).sum(axis=1).mean())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="same features, got 3 and 4"):
        affinity(np.eye(3), np.eye(4))
    with pytest.raises(ValueError, match="same features"):
        captured_variance(np.eye(3), np.ones((5, 4)))
    with pytest.raises(ValueError, match="finite array"):
        principal_angles(np.full((1, 3), np.nan), np.eye(3))
    with pytest.raises(ValueError, match="at most d"):
        affinity(np.ones((4, 3)), np.eye(3))
