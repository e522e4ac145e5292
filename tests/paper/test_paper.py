"""The paper's algorithms: as printed, what is wrong with them; corrected, what they promise."""

from math import ceil, log, pi, sqrt

import numpy as np
import pytest
from helpers import geometric, power_law, track
from hypothesis import given
from hypothesis import strategies as st

from fedpca import EnergyBand, Subspace
from fedpca.metrics import affinity, principal_angles
from fedpca.paper import streaming_mod_sulq as module
from fedpca.paper.adjust_rank import adjust_rank, adjust_rank_as_printed
from fedpca.paper.federated_pca import federated_pca, federated_pca_as_printed
from fedpca.paper.fpca_edge import FPCAEdge, fpca_edge_as_printed
from fedpca.paper.mask import SymmetricMask
from fedpca.paper.mod_sulq import mod_sulq
from fedpca.paper.noise import (
    analytic_minimum_batch,
    minimum_batch,
    minimum_batch_as_printed,
    mod_sulq_beta,
    paper_omega,
    repaired_omega,
    sulq_rate,
)
from fedpca.paper.streaming_mod_sulq import streaming_mod_sulq, streaming_mod_sulq_as_printed, strips
from fedpca.privacy.calibration import SENSITIVITY, analytic_sigma, delta_of, epsilon_of, mu_of
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.privacy.noise import ExactNoise
from fedpca.trackers import Block
from reproduction.fast_noise import FastNoise

EPSILONS, DELTAS = geometric(1e-3, 50), geometric(1e-12, 0.5)
KEY = bytes(32)


class NoNoise:
    """A mask of zeros."""

    sampler, safe = "none", False

    def entries(self, label, count, sd):
        return np.zeros(count)


@pytest.fixture(scope="module")
def rows():
    """In the unit ball."""
    drawn = power_law(np.random.default_rng(1), 430, 20, alpha=2.0, mean_size=0.0)
    return drawn / np.linalg.norm(drawn, axis=1).max()


# --- MOD-SuLQ ---


@pytest.mark.parametrize("n_features", [3, 300])  # a tile, and several
def test_mod_sulq_is_the_eigenvectors_of_one_noisy_matrix(n_features, rng):
    rows = rng.normal(size=(500, n_features)) / n_features
    found = mod_sulq(rows, 2, epsilon=50.0, delta=1e-5, noise=ExactNoise(KEY))
    points = clipped(rows, 1.0)
    sd = mod_sulq_beta(50.0, 1e-5, n_features, 500) * 500 * RADIUS**2
    mask = SymmetricMask(ExactNoise(KEY), n_features, sd, sd).dense()
    np.testing.assert_array_equal(mask, mask.T)  # not the data twice below the diagonal
    values, vectors = np.linalg.eigh((points.T @ points + mask) / RADIUS**2)
    np.testing.assert_allclose(found.singular_values**2, values[:-3:-1], rtol=1e-9)
    assert principal_angles(found, vectors.T[-2:]).max() < 1e-7
    assert found.count == 500


def test_mod_sulq_of_noise_alone_has_the_standard_deviation_of_equation_6():
    sums = []
    for seed in range(400):
        noise = ExactNoise(seed.to_bytes(32, "little"))
        found = mod_sulq(np.zeros((7, 1)), 1, epsilon=1.0, delta=1e-5, noise=noise)
        sums.append(found.total)  # a negative sum is left out
    positive = [total for total in sums if total > 0]
    assert len(positive) / 400 == pytest.approx(0.5, abs=0.1)
    assert np.sqrt(np.mean(np.square(positive))) == pytest.approx(mod_sulq_beta(1.0, 1e-5, 1, 1), rel=0.12)


def test_rows_beyond_the_unit_ball_are_drawn_into_it():
    promise = {"epsilon": 1.0, "delta": 1e-5, "noise": ExactNoise(KEY)}
    one, far = (mod_sulq(length * np.eye(2), 1, **promise) for length in (1.0, 9.0))
    assert one == far


# --- streaming MOD-SuLQ ---


@pytest.mark.parametrize("n_features", [20, 300])
def test_a_block_without_noise_is_its_pca(n_features):
    rows = power_law(np.random.default_rng(1), 430, n_features, alpha=2.0, mean_size=0.0)
    rows /= np.linalg.norm(rows, axis=1).max()
    found = streaming_mod_sulq(rows, 4, sigma=0.0, noise=NoNoise())
    exact = Subspace.from_rows(rows, 4, center=False)
    assert found.count == 430
    np.testing.assert_allclose(found.singular_values, exact.singular_values, rtol=0.01)
    assert affinity(found, exact) > 0.999


def test_strips_find_what_the_whole_noisy_matrix_shows(monkeypatch):
    """With more features than a tile, the strips and Rayleigh quotients give the dense matrix's answer."""
    rows = power_law(np.random.default_rng(1), 4000, 300, alpha=1.0, mean_size=0.0)
    rows /= np.linalg.norm(rows, axis=1).max()
    sigma, found = analytic_sigma(8.0, 1e-5), []
    for whole in (False, True):
        if whole:
            monkeypatch.setattr(module, "strips", lambda mask: [(slice(0, mask.n_features), mask.dense())])
        found.append(streaming_mod_sulq(rows, 20, sigma=sigma, noise=ExactNoise(KEY)))
    by_strip, dense = found
    np.testing.assert_allclose(by_strip.singular_values[:3], dense.singular_values[:3], rtol=0.01)
    assert affinity(by_strip.components[:3], dense.components[:3]) > 0.98


@pytest.mark.parametrize("source", [ExactNoise(KEY), FastNoise(KEY)], ids=["exact", "fast"])
@pytest.mark.parametrize("n_features", [1, 2, 255, 256, 257, 600])
def test_strips_are_the_columns_of_the_mask(source, n_features):
    mask = SymmetricMask(source, n_features, 1000.0, 600.0, (3,))
    columns = [strip for _, strip in strips(mask)]
    assert all(strip.shape[1] <= 256 for strip in columns)
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), mask.dense())


@pytest.mark.parametrize("source", [ExactNoise(KEY), FastNoise(KEY)], ids=["exact", "fast"])
@pytest.mark.parametrize("n_features", [1, 2, 255, 256, 257, 600])
def test_tiles_and_products_are_of_one_symmetric_mask(source, n_features):
    mask = SymmetricMask(source, n_features, 1000.0, 600.0, (3,))
    dense = mask.dense()
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_array_equal(mask.add_to(np.ones(dense.shape)), dense + 1)


def test_a_mask_has_the_standard_deviations_asked_for():
    dense = SymmetricMask(ExactNoise(KEY), 900, 1000.0, 600.0).dense()
    upper = dense[np.triu_indices(900, 1)]
    assert np.diag(dense).std() == pytest.approx(1000, rel=0.1)
    assert upper.std() == pytest.approx(600, rel=0.01)
    assert abs(np.corrcoef(upper[:-1], upper[1:])[0, 1]) < 0.01
    assert np.abs(np.linalg.eigvalsh(dense)).max() == pytest.approx(2 * 30 * 600, rel=0.05)  # the edge


def test_masks_with_other_labels_are_other_masks():
    one, other = (SymmetricMask(ExactNoise(KEY), 40, 1e4, 1e4, (label,)).dense() for label in (0, 1))
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1


def test_every_block_has_noise_of_its_own():
    zeros = np.zeros((5, 8))
    first, again, other = (
        streaming_mod_sulq(zeros, 8, sigma=5.0, noise=ExactNoise(KEY), number=number) for number in (0, 0, 1)
    )
    assert first == again
    assert not np.allclose(first.singular_values[0], other.singular_values[0])
    edge = FPCAEdge(8, 8, block_rows=5, sigma=5.0, noise=ExactNoise(KEY))
    edge.update(np.zeros((10, 8)))
    assert not np.allclose(edge.summary().singular_values[0], sqrt(2) * first.singular_values[0])


@pytest.mark.parametrize("columns", [7, 20])
def test_as_printed_the_sigma_of_a_block_is_a_square(rows, columns, rng):
    """Whatever the chunks, if nothing is truncated: the singular values of (1/b) B B^T."""
    u, sigma = streaming_mod_sulq_as_printed(rows, 20, omega=0.0, columns=columns, rng=rng)
    singular_values = np.linalg.svd(rows, compute_uv=False)
    np.testing.assert_allclose(sigma, singular_values**2 / len(rows), rtol=1e-9, atol=1e-12)
    assert principal_angles(u[:4], np.linalg.svd(rows)[2][:4]).max() < 1e-6


def test_as_printed_negative_eigenvalues_become_positive_ones(rng):
    _, sigma = streaming_mod_sulq_as_printed(np.zeros((50, 30)), 30, omega=1.0, columns=30, rng=rng)
    noise = streaming_mod_sulq(np.zeros((50, 30)), 30, sigma=50.0, noise=ExactNoise(KEY))
    assert (sigma > 0).all()
    assert 10 <= noise.rank <= 20


# --- FPCA-Edge and AdjustRank ---


@pytest.mark.parametrize("block_rows", [10, 50, 1000])
def test_fpca_edge_without_a_mask_is_the_block_tracker(rows, block_rows):
    edge = FPCAEdge(20, 3, block_rows)
    for part in np.array_split(rows, 9):
        edge.update(part)
    tracked = track(Block, rows, 3, 100, block_rows=block_rows, oversample=0, center=False).summary()
    found = edge.summary().truncate(3)
    np.testing.assert_allclose(found.singular_values, tracked.singular_values[:3], rtol=1e-3)
    assert affinity(found, tracked.components[:3]) > 1 - 1e-6
    assert found.count == 430  # no row is dropped


def test_fpca_edge_adapts_its_rank(rng):
    edge = FPCAEdge(20, 1, 50, band=(0.01, 0.05))
    edge.update(rng.normal(size=(1000, 20)) * np.r_[[1.0] * 6, [1e-3] * 14])
    assert edge.summary().rank == 6
    assert edge.rank == 7  # tried again


@given(st.lists(geometric(1e-3, 1.0), min_size=1, max_size=20))
def test_adjust_rank_is_the_step_of_the_energy_band(values):
    sigma = np.sort(values)[::-1]
    rank = adjust_rank(sigma, 0.01, 0.1)
    assert rank == EnergyBand(0.01, 0.1).next_rank(len(sigma), sigma, float(sigma @ sigma))
    u, _ = adjust_rank_as_printed(np.eye(len(sigma), 30), sigma, 1, 10)
    assert len(u) == rank or len(sigma) == 1


def test_as_printed_a_new_direction_is_not_orthogonal(rng):
    u = np.linalg.qr(rng.normal(size=(9, 3)))[0].T
    more, sigma = adjust_rank_as_printed(u, np.array([3.0, 2.0, 1.0]), 1, 10)
    assert np.abs(more @ more.T - np.eye(4)).max() > 0.05
    assert list(sigma) == [3.0, 2.0, 1.0, 0.0]


def test_with_a_beta_of_ten_percent_the_rank_never_exceeds_ten(rng):
    edge = FPCAEdge(30, 5, 60, band=(0.01, 0.1))
    edge.update(rng.normal(size=(3000, 30)))
    edge.summary()
    assert edge.rank == 10


def test_as_printed_directions_of_few_strong_blocks_are_lost():
    """Squares are merged as if they were Sigma: the components of the sum of squared covariances."""
    rng, blocks = np.random.default_rng(3), 40
    scales = [np.array([0.05, 0.12]) if number % 10 < 3 else np.array([0.1, 0.0]) for number in range(blocks)]
    parts = [rng.normal(size=(50, 2)) * scale for scale in scales]
    u, sigma = np.zeros((0, 2)), np.zeros(0)
    for part in parts:
        u, sigma = fpca_edge_as_printed(part, u, sigma, 2, omega=0.0, columns=2, rng=rng)
    edge = FPCAEdge(2, 2, 50, sigma=0.0, noise=NoNoise())
    edge.update(np.concatenate(parts))
    exact = Subspace.from_rows(np.concatenate(parts), 2, center=False)
    np.testing.assert_allclose(edge.summary().singular_values, exact.singular_values, rtol=1e-2)
    ratio = exact.singular_values[1] / exact.singular_values[0]
    assert abs(sigma[1] / sigma[0] - ratio) > 0.1


# --- Federated-PCA ---


@pytest.mark.parametrize("n_clients", [1, 2, 5])
def test_a_federation_that_truncates_nothing_is_pca(rows, n_clients):
    found = federated_pca(np.array_split(rows, n_clients), 20, 30)
    exact = Subspace.from_rows(rows, center=False)
    np.testing.assert_allclose(found.singular_values, exact.singular_values[: found.rank], rtol=1e-6)
    assert found.count == 430


def test_masked_clients_find_the_first_component(rng):
    rows = rng.normal(size=(20_000, 5)) * [0.5, 0.1, 0.1, 0.1, 0.1]
    noises = [ExactNoise(bytes([number]) * 32) for number in range(4)]
    found = federated_pca(np.array_split(rows, 4), 3, 1000, sigma=analytic_sigma(1.0, 1e-5), noises=noises)
    assert abs(found.components[0, 0]) > 0.99


def test_as_printed_a_federation_of_alike_blocks_has_the_directions_of_pca(rows, rng):
    u, _ = federated_pca_as_printed(
        np.array_split(rows, 3), 3, 20, first_batch=40, omega=0.0, columns=20, rng=rng, band=(0.01, 100)
    )
    assert u.shape == (3, 20)
    assert principal_angles(u[:1], Subspace.from_rows(rows, 1, center=False)).max() < 0.2


# --- omega, beta, T ---

TABLE = [
    # d, epsilon, delta; omega, repaired, MOD-SuLQ, analytic, omega / analytic, true mu, TV, epsilon at 1e-5
    ((20, 0.1, 0.05), "3218 1674 812 6.35 507 4.4e-4 1.8e-4 7.1e-4"),
    ((20, 1.0, 0.05), "322.8 167.5 81.9 1.885 171 4.4e-3 1.7e-3 .011"),
    ((20, 4.0, 0.05), "81.0 41.9 20.7 .771 105 1.7e-2 7.0e-3 .050"),
    ((20, 1.0, 1e-5), "462 235 120 5.28 88 3.1e-3 1.2e-3 7.2e-3"),
    ((784, 1.0, 1e-5), "21693 11002 5352 5.28 4112 6.5e-5 2.6e-5 4.3e-5"),
    ((784, 0.1, 0.1), "170116 87036 41572 4.03 42253 8.3e-6 3.3e-6 0"),
]


def half_a_unit_in_the_last_place(printed):
    digits, _, power = printed.partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(power or 0) - decimals)


@pytest.mark.parametrize(("setting", "printed"), TABLE, ids=[str(setting) for setting, _ in TABLE])
def test_the_known_figures(setting, printed):
    n_features, epsilon, delta = setting
    omega = paper_omega(epsilon, delta, n_features, 1)
    analytic = analytic_sigma(epsilon, delta)
    mu = sqrt(2) / omega
    figures = (
        omega,
        repaired_omega(epsilon, delta, n_features, 1),
        mod_sulq_beta(epsilon, delta, n_features, 1),
        analytic,
        omega / analytic,
        mu,
        delta_of(mu, 0.0),
        epsilon_of(mu, 1e-5),
    )
    for figure, text in zip(figures, printed.split(), strict=True):
        assert figure == pytest.approx(float(text), abs=half_a_unit_in_the_last_place(text), rel=0)
    assert 0.505 <= figures[1] / omega <= 0.535


PUBLISHED = [paper_omega, repaired_omega, mod_sulq_beta]
GRID = [
    (epsilon, delta, n_features)
    for epsilon in (1e-3, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 50.0, 1e3, 1e5)
    for delta in (1e-12, 1e-9, 1e-5, 1e-3, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    for n_features in (2, 3, 5, 20, 100, 784, 10_000)
]


@pytest.mark.parametrize("formula", PUBLISHED)
def test_published_formulas_ask_for_enough_noise(formula):
    for setting in GRID:
        epsilon, delta, _ = setting
        true_mu = SENSITIVITY["replace-one"] / formula(*setting, 1)
        assert true_mu < mu_of(epsilon, delta), setting


@given(epsilon=geometric(1e-3, 1e4), delta=geometric(1e-12, 0.99), n_features=st.integers(2, 10_000))
def test_published_formulas_ask_for_enough_noise_anywhere(epsilon, delta, n_features):
    needed = analytic_sigma(epsilon, delta)
    for formula in PUBLISHED:
        assert formula(epsilon, delta, n_features, 1) > needed


@given(epsilon=EPSILONS, delta=DELTAS, n_features=st.integers(2, 10_000), n_rows=st.integers(1, 10**6))
def test_the_repaired_omega_solves_its_quadratic(epsilon, delta, n_features, n_rows):
    omega = repaired_omega(epsilon, delta, n_features, n_rows)
    tail = sqrt(2 * log(2 * n_features**2 / (delta * sqrt(2 * pi))))
    terms = (2 * epsilon * omega**2, -4 * n_features * tail / n_rows * omega, -4 / n_rows**2)
    assert sum(terms) == pytest.approx(0, abs=1e-9 * terms[0])
    assert omega < 0.7 * paper_omega(epsilon, delta, n_features, n_rows)


@given(epsilon=geometric(0.1, 4.0), delta=geometric(1e-6, 0.1), n_features=st.integers(20, 10_000))
def test_the_repaired_omega_is_about_half(epsilon, delta, n_features):
    ratio = repaired_omega(epsilon, delta, n_features, 1) / paper_omega(epsilon, delta, n_features, 1)
    assert 0.505 < ratio < 0.525


@pytest.mark.parametrize("formula", [*PUBLISHED, sulq_rate])
def test_noise_on_the_mean_falls_with_the_rows_and_grows_with_the_rest(formula):
    noise = formula(1.0, 1e-5, 20, 1)
    assert formula(1.0, 1e-5, 20, 50) == pytest.approx(noise / 50)
    assert noise < min(formula(0.5, 1e-5, 20, 1), formula(1.0, 1e-6, 20, 1), formula(1.0, 1e-5, 21, 1))


@given(epsilon=geometric(1e-3, 10), delta=DELTAS, n_features=st.integers(2, 10_000))
def test_sulq_is_noisier_than_its_successor_up_to_an_epsilon_of_ten(epsilon, delta, n_features):
    assert sulq_rate(epsilon, delta, n_features, 1) > mod_sulq_beta(epsilon, delta, n_features, 1)


def test_sulq_as_quoted_is_no_promise_for_large_epsilon():
    """It falls as 1 / epsilon, what privacy needs as 1 / sqrt(epsilon)."""
    assert sulq_rate(2.0, 1e-5, 20, 50) ** 2 == pytest.approx(8 * (20 * log(20 / 1e-5) / (50 * 2.0)) ** 2)
    assert sulq_rate(50.0, 0.5, 2, 1) < mod_sulq_beta(50.0, 0.5, 2, 1)
    assert sulq_rate(100.0, 0.5, 2, 1) < analytic_sigma(100.0, 0.5)


def test_minimum_batches():
    setting = {"epsilon": 1.0, "delta": 0.05, "omega": 0.1}
    paper, analytic = minimum_batch(n_features=20, **setting), analytic_minimum_batch(**setting)
    assert (round(paper), round(analytic)) == (3228, 19)
    assert minimum_batch_as_printed(n_features=20, **setting) == pytest.approx(0.031, rel=1e-2)
    assert ceil(minimum_batch(1.0, 0.05, 20, 0.01)) == 32_278


@given(epsilon=EPSILONS, delta=DELTAS, n_features=st.integers(2, 10_000), omega=geometric(1e-4, 10))
def test_at_the_minimum_batch_the_noise_is_as_asked(epsilon, delta, n_features, omega):
    rows = minimum_batch(epsilon, delta, n_features, omega)
    assert paper_omega(epsilon, delta, n_features, rows) == pytest.approx(omega)
    assert paper_omega(epsilon, delta, n_features, rows + 1) < omega
    assert analytic_sigma(epsilon, delta) / analytic_minimum_batch(epsilon, delta, omega) == pytest.approx(
        omega
    )
