"""Mechanisms: exact sums of clipped rows, the sensitivities claimed, the right noise on each statistic."""

from math import sqrt
from typing import get_args

import numpy as np
import pytest
from helpers import power_law
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpca import Privacy, Subspace
from fedpca.privacy.clipping import RADIUS, Clipping, clipped
from fedpca.privacy.mechanisms import MECHANISMS, Mechanism, MechanismName, build, calibrate
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.privacy.mechanisms.sketch import Sketch, _nystrom, sketch_size
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.schedule import Schedule
from fedpca.summaries.certificate import Certificate
from reproduction.noisy_summary import noisy_summary

CERTIFICATE = Certificate(private=False, epsilon=1.0, delta=1e-5, mu=0.3)


class NoNoise:
    """The mechanism without its noise."""

    sampler, safe = "none", False

    def entries(self, label, count, sd):
        return np.zeros(count)


def rows_in_ball(n_rows=200, n_features=10, seed=0):
    rows = power_law(np.random.default_rng(seed), n_rows, n_features)
    return rows / np.linalg.norm(rows, axis=1).max()


def mechanism(privacy, n_features, *, center=None, rank=3, joint=False):
    return build(privacy, Clipping(privacy.bound, center), n_features, joint=joint, rank=rank)


# --- what every mechanism declares ---


def test_every_mechanism_is_registered_under_its_name_and_type():
    assert tuple(MECHANISMS) == get_args(MechanismName)
    for name, kind in MECHANISMS.items():
        assert kind.name == name
        assert Privacy(1.0, 1e-5, mechanism=name).mechanism == name


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_declares_what_other_modules_ask_for(name):
    declared = Mechanism.__annotations__
    assert set(declared) == {*declared} & set(dir(MECHANISMS[name]))
    kind = MECHANISMS[name]
    assert kind.memory(100, 5) > 0
    assert kind.rows_factor >= 1
    calibration = calibrate(Privacy(1.0, 1e-5, 1.0, mechanism=name, center=None, evaluate=False))
    assert calibration.sensitivity == kind.sensitivity("replace-one", joint=False)


# --- clipping ---

tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8)),
    elements=st.one_of(
        st.floats(-10, 10), st.floats(-1e200, 1e200), st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e150])
    ),
)


@given(tables, st.sampled_from([1.0, 3.7, 1e-9, 1e30]))
def test_clipped_rows_are_integers_in_the_ball(rows, bound):
    points = clipped(rows, bound)
    np.testing.assert_array_equal(points, np.rint(points))
    assert all(sum(int(v) ** 2 for v in point) <= 2**24 for point in points)


@given(tables, st.sampled_from([1.0, 3.7]))
def test_clipping_keeps_directions_and_rows_inside_the_ball(rows, bound):
    points = clipped(rows, bound) * bound / RADIUS
    norms = np.array([float(np.linalg.norm(row / max(np.abs(row).max(), 1e-300))) for row in rows])
    norms *= np.abs(rows).max(axis=1)
    factor = np.minimum(1.0, bound / np.maximum(norms, 1e-300))[:, None]
    assert np.abs(points - factor * rows).max() <= 1.01 * bound / RADIUS


def test_a_row_is_clipped_the_same_whatever_comes_with_it():
    rows = np.random.default_rng(0).normal(size=(50, 7)) * 3
    together = clipped(rows, 2.0)
    np.testing.assert_array_equal(together, np.concatenate([clipped(row[None], 2.0) for row in rows]))


# --- sensitivities, on the integers that are released ---


def pair_statistics(privacy, one, other, n_features, *, joint=True):
    """What two worlds that differ in one row add to the sums of a mechanism, as plain numbers."""
    sums = []
    for row in (one, other):
        m = mechanism(privacy, n_features, joint=True)
        m.take(m.clipping.points(m.clipping.deviations(row[None])))
        products = m._sketch if isinstance(m, Sketch) else m._products
        parts = [products.ravel() / RADIUS**2, SUM_WEIGHT * m._sum / RADIUS]
        sums.append(np.concatenate(parts if joint else parts[:1]))
    return np.linalg.norm(sums[0] - sums[1])


vectors = hnp.arrays(np.float64, 6, elements=st.floats(-3, 3))


@given(vectors, vectors, st.sampled_from(["gram", "sketch"]))
def test_no_pair_of_rows_moves_the_statistic_beyond_its_sensitivity(one, other, name):
    for adjacency in ("replace-one", "zero-out"):
        privacy = Privacy(1.0, 1e-5, 1.0, mechanism=name, adjacency=adjacency, center=None, evaluate=False)
        other = np.zeros(6) if adjacency == "zero-out" else other
        limit = calibrate(privacy, joint=True).sensitivity
        assert pair_statistics(privacy, one, other, 6) <= limit * (1 + 1e-12)


def test_the_joint_sensitivity_of_the_sketch_is_attained():
    privacy = Privacy(1.0, 1e-5, 1.0, mechanism="sketch", adjacency="zero-out", center=None, evaluate=False)
    limit = calibrate(privacy, joint=True).sensitivity
    assert limit == pytest.approx(sqrt(1 + SUM_WEIGHT**2))
    assert 0.999 * limit < pair_statistics(privacy, np.eye(6)[0], np.zeros(6), 6) <= limit


def test_rows_that_the_sketch_sees_all_of_are_clipped_to_its_radius():
    """Along its own directions a row's projection is as long as the row, not shorter by sqrt(k / d)."""
    privacy = Privacy(1.0, 1e-5, 1.0, mechanism="sketch", adjacency="zero-out", center=None, evaluate=False)
    m = mechanism(privacy, 400)
    assert m.radius < 0.5
    inside = m._omega[:, :5].T / 2.0**20
    for row in inside / np.linalg.norm(inside, axis=1, keepdims=True):
        assert (
            0.99 < pair_statistics(privacy, row, np.zeros(400), 400, joint=False) <= m.calibration.sensitivity
        )


def test_the_sensitivity_of_the_gram_is_attained():
    privacy = Privacy(1.0, 1e-5, 1.0, center=None, evaluate=False)
    assert calibrate(privacy).sensitivity == pytest.approx(sqrt(2))
    one, other = np.eye(3)[:2]
    products = [np.outer(point, point) for point in clipped(np.array([one, other]), 1.0) / RADIUS]
    assert np.linalg.norm(products[0] - products[1]) == pytest.approx(sqrt(2))


# --- statistics ---


@pytest.mark.parametrize("center", [None, "public"])
def test_gram_without_noise_is_the_scatter_of_clipped_rows(center):
    rows = 5 * rows_in_ball() + 1.0
    center = None if center is None else np.ones(10)
    privacy = Privacy(1.0, 1e-5, 2.0, center=None, evaluate=False)
    m = mechanism(privacy, 10, center=center)
    for part in np.array_split(rows, 7):
        m.take(m.clipping.points(m.clipping.deviations(part)))
    released = noisy_summary(m, NoNoise(), CERTIFICATE)
    deviations = rows - (0.0 if center is None else center)
    deviations *= np.minimum(1, 2.0 / np.linalg.norm(deviations, axis=1))[:, None]
    np.testing.assert_allclose(released.scatter, deviations.T @ deviations, atol=1e-3 * 200 * 4)
    np.testing.assert_array_equal(released.mean, np.zeros(10) if center is None else center)
    assert released.centered == (center is not None)
    assert released.count == 200


def test_the_order_and_cut_of_rows_leave_no_trace():
    rows = rows_in_ball()
    privacy = Privacy(1.0, 1e-5, 0.7, center=None, evaluate=False)
    sums = []
    for seed, pieces in ((0, 1), (1, 3), (2, 50)):
        m = mechanism(privacy, 10)
        for part in np.array_split(rows[np.random.default_rng(seed).permutation(200)], pieces):
            m.take(m.clipping.points(m.clipping.deviations(part)))
        sums.append(m._products)
    np.testing.assert_array_equal(sums[0], sums[1])
    np.testing.assert_array_equal(sums[0], sums[2])


@pytest.mark.parametrize("name", ["gram", "sketch"])
def test_a_joint_release_corrects_the_center(name):
    rows = rows_in_ball() + 0.3
    center = np.full(10, 0.2)
    m = mechanism(
        Privacy(1e9, 0.5, 3.0, mechanism=name, center=None, evaluate=False), 10, center=center, joint=True
    )
    m.take(m.clipping.points(m.clipping.deviations(rows)))
    released = noisy_summary(m, NoNoise(), CERTIFICATE)
    deviations = rows - rows.mean(axis=0)
    np.testing.assert_allclose(released.mean, rows.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(released.scatter, deviations.T @ deviations, atol=0.2)


def test_the_noise_of_a_release_is_what_its_calibration_says():
    privacy = Privacy(1.0, 1e-5, 3.0, center=None, evaluate=False)
    m = mechanism(privacy, 300)
    m.take(np.zeros((5, 300)))
    noise = noisy_summary(m, ExactNoise(bytes(32)), CERTIFICATE).scatter / 3.0**2
    calibration = m.calibration
    assert calibration.mu <= privacy.mu * (1 + 1e-12)
    assert np.diag(noise).std() == pytest.approx(calibration.sigma, rel=0.15)
    assert noise[np.triu_indices(300, 1)].std() == pytest.approx(calibration.off_diagonal, rel=0.02)
    assert np.abs(np.linalg.eigvalsh(noise)).max() == pytest.approx(calibration.edge(300), rel=0.06)
    # The symmetric mask is sqrt(2) quieter off the diagonal, for free.
    assert calibration.sigma == pytest.approx(sqrt(2) / privacy.mu)
    assert calibration.off_diagonal == pytest.approx(1 / privacy.mu)


def test_sketch_without_noise_finds_the_directions():
    rows = power_law(np.random.default_rng(3), 500, 60, alpha=2.0, mean_size=0.0)
    rows /= np.linalg.norm(rows, axis=1).max()
    m = mechanism(Privacy(1.0, 1e-5, 1.0, mechanism="sketch", center=None, evaluate=False), 60, rank=3)
    m.take(m.clipping.points(m.clipping.deviations(rows)))
    assert m._omega.shape == (60, sketch_size(3, 60)) == (60, 32)
    nearly_none = Privacy(1e9, 0.5, 1.0, mechanism="sketch", center=None, evaluate=False)
    m.calibration = calibrate(nearly_none)  # a shift of next to nothing
    released = noisy_summary(m, NoNoise(), CERTIFICATE).truncate(3)
    exact = Subspace.from_rows(rows, 3, center=False)
    assert np.linalg.norm(released.components @ exact.components.T) ** 2 / 3 > 0.99
    np.testing.assert_allclose(released.singular_values, exact.singular_values, rtol=0.35)  # clipped: smaller


@pytest.mark.parametrize("n_features", [1, 2, 6, 40, 200])
def test_a_sketch_of_noise_alone_shows_nothing(n_features):
    """The core of a shifted sketch of few features is often not positive: divided by it, noise was huge."""
    shown, privacy = 0, Privacy(1.0, 1e-5, 1.0, mechanism="sketch", center=None, evaluate=False)
    for seed in range(100 if n_features < 40 else 10):
        m = mechanism(privacy, n_features, rank=1)
        m.take(np.zeros((5, n_features)))
        released = noisy_summary(m, ExactNoise(bytes([seed]) * 32), CERTIFICATE)
        edge = m.calibration.sigma * m.radius * (sqrt(n_features) + sqrt(m.size))
        assert (released.singular_values**2 < 2 * edge).all()
        shown += released.rank > 0
    assert shown <= 8


@pytest.mark.parametrize("report", [1, 2, 4])
def test_the_edge_of_a_sketch_grows_with_the_noise_of_its_reports(report):
    privacy = Privacy(1.0, 1e-5, 1.0, mechanism="sketch", releases=4, center=None, evaluate=False)
    for seed in range(20):
        m = mechanism(privacy, 40)
        m.take(np.zeros((5, 40)))
        noise = ExactNoise(bytes([seed]) * 32)
        assert noisy_summary(m, noise, CERTIFICATE, reports=report).rank == 0


def test_noise_that_outweighs_the_shift_of_a_sketch_does_not_explode():
    """Noise is not symmetric: a value of the core may be next to zero where its column is not."""
    rng, shift, omega = np.random.default_rng(0), 100.0, np.eye(6)
    noise = rng.normal(size=(6, 6)) * 20
    for smallest in (-1.0, 0.0, 1e-9, 1e-3, 1.0):
        shifted = np.diag([smallest, *np.full(5, shift)]) + noise - noise.T
        _, squares = _nystrom(shifted - shift * omega, omega, shift)
        assert squares.sum() < 10 * shift


def test_the_sketch_is_public_and_the_same_for_every_owner():
    one, other = (
        mechanism(Privacy(1.0, 1e-5, b, mechanism="sketch", center=None, evaluate=False), 50)
        for b in (1.0, 2.0)
    )
    np.testing.assert_array_equal(one._omega, other._omega)


def test_too_many_features_for_a_square_are_refused():
    privacy = Privacy(1.0, 1e-5, 1.0, center=None, evaluate=False)
    with pytest.raises(ValueError, match="mechanism='sketch'"):
        mechanism(privacy, 4097)
    assert mechanism(privacy, 64).n_features == 64


# --- several reports ---


@pytest.mark.parametrize("releases", [1, 2, 4, 5, 16, 100])
def test_a_schedule_factors_the_prefix_sums(releases):
    schedule = Schedule(releases)
    lower = np.tril(np.ones((releases, releases), dtype=int))
    index = np.subtract.outer(np.arange(releases), np.arange(releases))
    noise_weights = schedule.weights(releases)[::-1]
    b = np.where(lower, noise_weights[index], 0.0)
    c = np.where(lower, schedule.column[index], 0.0)
    np.testing.assert_allclose(b @ c, lower, atol=1e-10)
    assert schedule.column_norm >= np.linalg.norm(c, axis=0).max()
    assert schedule.weights(1) == [1.0]
    np.testing.assert_allclose(schedule.accumulated(releases), np.linalg.norm(b[-1]), rtol=1e-12)


@pytest.mark.parametrize(("releases", "expected"), [(16, 1.80), (64, 2.23), (256, 2.67)])
def test_many_reports_carry_little_more_noise_than_one(releases, expected):
    schedule = Schedule(releases)
    reports = [schedule.multiplier(report) for report in range(1, releases + 1)]
    assert np.sqrt(np.mean(np.square(reports))) == pytest.approx(expected, abs=0.01)


def test_few_reports_are_noised_increment_by_increment():
    assert [Schedule(4).multiplier(report) for report in (1, 2, 4)] == pytest.approx([1, sqrt(2), 2])
    assert Schedule(4).disjoint
    assert not Schedule(5).disjoint
