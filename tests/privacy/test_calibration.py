"""How much noise: against independent accountants, by inversion, and against the worst pair of rows."""

from functools import cache
from math import inf, log, sqrt

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from helpers import geometric
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Privacy
from fedpca.privacy.accounting import composed
from fedpca.privacy.calibration import (
    SENSITIVITY,
    analytic_sigma,
    delta_of,
    epsilon_of,
    mu_of,
)
from fedpca.privacy.clipping import RADIUS, Clipping
from fedpca.privacy.mechanisms import build, calibrate
from fedpca.privacy.mechanisms.base import SUM_WEIGHT

ADJACENCIES = ("replace-one", "zero-out")


EPSILONS, DELTAS, MUS = geometric(1e-3, 50), geometric(1e-12, 0.5), geometric(1e-4, 30)


# --- Gaussian differential privacy ---


def exact_delta(mu, epsilon):
    """Balle and Wang's formula with sixty digits."""
    with mpmath.workdps(120):  # of which the difference may take sixty
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        shift = epsilon / mu
        return float(mpmath.ncdf(mu / 2 - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - shift))


@given(epsilon=EPSILONS, delta=DELTAS)
def test_mu_spends_all_of_the_promise_and_no_more(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta
    assert delta_of(mu * (1 + 1e-6), epsilon) > delta
    assert exact_delta(mu, epsilon) == pytest.approx(delta, rel=1e-8)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-8)


@given(epsilon=geometric(1e-30, 1e9), delta=geometric(1e-60, 0.5))
def test_rounded_numbers_never_cost_more_than_the_promise(epsilon, delta):
    """Not by the last digit, and not where differences of logarithms have hardly any digits."""
    mu = mu_of(epsilon, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu, epsilon_of(mu, delta)) <= delta
    assert delta_of(mu, epsilon) >= exact_delta(mu, epsilon)


@given(mu=MUS, delta=DELTAS)
def test_epsilon_inverts_delta(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta
    if epsilon > 0:
        assert exact_delta(mu, epsilon) == pytest.approx(delta, rel=1e-8)
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
    else:
        assert exact_delta(mu, 0) <= delta * (1 + 1e-8)


@given(mu=MUS, epsilon=st.floats(0, 50))
def test_delta_agrees_with_sixty_digits(mu, epsilon):
    assert delta_of(mu, epsilon) == pytest.approx(exact_delta(mu, epsilon), rel=1e-8, abs=1e-30)


@given(mu=MUS, epsilon=EPSILONS, delta=DELTAS, more=st.floats(1.01, 10))
def test_everything_is_monotone(mu, epsilon, delta, more):
    assert delta_of(mu * more, epsilon) >= delta_of(mu, epsilon) >= delta_of(mu, epsilon * more)
    assert epsilon_of(mu * more, delta) >= epsilon_of(mu, delta) >= epsilon_of(mu, min(delta * more, 0.9))
    assert mu_of(epsilon * more, delta) > mu_of(epsilon, delta) > mu_of(epsilon, delta / more)


def test_at_the_ends_of_the_range_delta_is_no_more_than_promised():
    """Down to the smallest epsilon and delta that settings take; and nearly all of it where both count."""
    random = np.random.default_rng(0)
    for lowest in ((-14, -14), (-30, -60)):
        for _ in range(100):
            epsilon, delta = 10 ** random.uniform(lowest[0], 4.5), 10 ** random.uniform(lowest[1], -0.5)
            spent = exact_delta(mu_of(epsilon, delta), epsilon)
            assert 0 < spent <= delta
            assert spent > 0.8 * delta or min(epsilon, delta) < 1e-14


@pytest.mark.parametrize("settings", [(1e-31, 1e-6), (1.0, 1e-61), (0.0, 1e-6), (1.0, 0.0)])
def test_what_calibration_was_not_compared_for_is_refused(settings):
    with pytest.raises(ValueError, match=r"1e-30|1e-60"):
        Privacy(*settings)
    Privacy(1e-30, 1e-60)


def test_the_ends():
    assert delta_of(0.0, 1.0) == delta_of(1e-320, 1.0) == epsilon_of(0.0, 1e-9) == 0
    assert delta_of(inf, 1.0) == delta_of(1e200, 5.0) == 1
    assert epsilon_of(inf, 0.1) == inf
    assert delta_of(1.0, 0.0) == pytest.approx(exact_delta(1, 0))  # the total variation distance
    assert epsilon_of(1e-3, 0.1) == 0
    assert 0 < mu_of(1e-3, 1e-300) < mu_of(1e-3, 1e-12) < mu_of(50, 0.5) < mu_of(1e4, 0.5)


@given(epsilon=EPSILONS, delta=DELTAS)
def test_the_standard_deviation_is_dp_accountings(epsilon, delta):
    for adjacency in ADJACENCIES:
        with np.errstate(divide="ignore"):
            expected = SENSITIVITY[adjacency] * dp_accounting.get_sigma_gaussian(epsilon, delta)
        # Theirs is right to 1e-11 or so; ours is rounded up.
        assert expected * (1 - 1e-10) <= analytic_sigma(epsilon, delta, adjacency) <= expected * (1 + 1e-9)


@given(mu=MUS, delta=DELTAS)
def test_epsilon_is_dp_accountings(mu, delta):
    """Never less than theirs, and at most theirs of a mu that is a little larger."""
    with np.errstate(divide="ignore"):  # the logarithm of a delta of zero
        least, most = (dp_accounting.get_epsilon_gaussian(1 / each, delta) for each in (mu, mu * (1 + 1e-9)))
    assert least * (1 - 1e-10) - 1e-11 <= epsilon_of(mu, delta) <= most * (1 + 1e-10) + 1e-11


@pytest.mark.parametrize("releases", [1, 16, 100])
@pytest.mark.parametrize("promise", [(1.0, 1e-5), (0.5, 0.05), (4.0, 1e-9)])
def test_composition_is_that_of_privacy_loss_distributions(releases, promise):
    epsilon, delta = promise
    mu = mu_of(epsilon, delta) / sqrt(releases)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for _ in range(releases):  # each convolved with the rest: told of all at once, it would take a root too
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier=1 / mu))
    assert epsilon_of(composed([mu] * releases), delta) == pytest.approx(epsilon, rel=1e-12)
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=2e-4)


def test_unequal_releases_compose_too():
    mus = [0.1, 0.7, 0.05, 0.3, 0.3]
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for mu in mus:
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier=1 / mu))
    for delta in (1e-9, 1e-5, 0.01):
        assert epsilon_of(composed(mus), delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-4)
    assert composed(mus) == composed(reversed(mus)) > max(mus)
    assert composed([]) == 0


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_the_classic_formula_asks_for_more(epsilon, delta):
    assert analytic_sigma(epsilon, delta, "zero-out") < sqrt(2 * log(1.25 / delta)) / epsilon


# --- Sensitivity ---


def pairs_in_the_plane(norms, cosines):
    """Pairs of rows in the unit ball, of all norms and cosines given: any pair lies in some plane."""
    first, second, cosine = (grid.ravel() for grid in np.meshgrid(norms, norms, cosines, indexing="ij"))
    sine = np.sqrt(1 - cosine**2)
    return np.stack([first, 0 * first], axis=1), second[:, None] * np.stack([cosine, sine], axis=1)


def change(first, second, calibration=None, sum_weight=0.0):
    """By how much the sums differ, in standard deviations of the noise of a symmetric release.

    Without a calibration: in the Frobenius norm.
    """
    products = np.einsum("ni,nj->nij", first, first) - np.einsum("ni,nj->nij", second, second)
    diagonal, off_diagonal = (1.0, sqrt(0.5)) if calibration is None else calibration
    squares = np.einsum("nii->n", products**2) / diagonal**2
    squares += np.einsum("nij->n", np.triu(products, 1) ** 2) / off_diagonal**2
    return np.sqrt(squares + (sum_weight / diagonal) ** 2 * np.sum((first - second) ** 2, axis=1))


@cache
def worst_pairs(adjacency):
    """Pairs of rows, or of a row and a blank."""
    first, second = pairs_in_the_plane(np.linspace(0, 1, 21), np.linspace(-1, 1, 801))
    return (first, second) if adjacency == "replace-one" else (first, np.zeros_like(first))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_pair_of_rows_changes_the_sum_by_more_than_the_sensitivity(adjacency, rng):
    assert change(*worst_pairs(adjacency)).max() == pytest.approx(SENSITIVITY[adjacency], rel=1e-12)
    for n_features in (1, 2, 3, 10):
        first, second = rng.normal(size=(2, 5000, n_features))
        first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, second))
        first *= rng.uniform(size=(5000, 1)) ** 0.1
        second *= rng.uniform(size=(5000, 1)) ** 0.1 if adjacency == "replace-one" else 0
        assert change(first, second).max() <= SENSITIVITY[adjacency]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_upper_triangle_alone_is_as_sensitive(adjacency):
    """For MOD-SuLQ's mask, as large off the diagonal as on it: worst at e1 and e2."""
    costs = change(*worst_pairs(adjacency), (1.0, 1.0))
    assert costs.max() == pytest.approx(SENSITIVITY[adjacency], rel=1e-12)
    spread = [np.full((1, 2), sqrt(0.5)), np.array([[sqrt(0.5), -sqrt(0.5)]])]
    assert change(*spread, (1.0, 1.0))[0] == pytest.approx(1.0)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("joint", [False, True])
def test_a_release_costs_the_worst_pair_of_rows_what_it_says(joint, adjacency):
    privacy = Privacy(1.0, 1e-5, bound=1.0, adjacency=adjacency, center=None, evaluate=False)
    calibration = calibrate(privacy, joint=joint)
    noise = (calibration.sigma, calibration.off_diagonal)
    worst = change(*worst_pairs(adjacency), noise, SUM_WEIGHT if joint else 0.0).max()
    assert worst <= calibration.mu * (1 + 1e-12)
    assert calibration.mu <= privacy.mu
    assert worst == pytest.approx(calibration.mu, rel=1e-5)
    assert calibration.mu == pytest.approx(privacy.mu)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_joint_sensitivity_is_the_largest_of_a_fine_scan(adjacency):
    privacy = Privacy(1.0, 1e-5, bound=1.0, adjacency=adjacency, center=None, evaluate=False)
    claimed = calibrate(privacy, joint=True).sensitivity
    found = change(*worst_pairs(adjacency), sum_weight=SUM_WEIGHT)
    assert found.max() == pytest.approx(claimed, rel=1e-5)
    assert found.max() <= claimed * (1 + 1e-12)
    if adjacency == "replace-one":
        first, second = (rows[found.argmax()] for rows in worst_pairs(adjacency))
        assert np.linalg.norm(first) == pytest.approx(1)
        assert np.linalg.norm(second) == pytest.approx(1)
        assert first @ second == pytest.approx(-(SUM_WEIGHT**2) / 2, abs=2e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_sketch_is_as_sensitive_as_products_of_two_vectors_in_the_ball(adjacency, rng):
    privacy = Privacy(
        1.0, 1e-5, bound=1.0, mechanism="sketch", adjacency=adjacency, center=None, evaluate=False
    )
    claimed = calibrate(privacy).sensitivity
    assert claimed == pytest.approx({"replace-one": 2.0, "zero-out": 1.0}[adjacency])
    vectors = rng.normal(size=(4, 5000, 3))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1)
    vectors[:, 0] = [1.0, 0.0, 0.0]
    vectors[3, 0] *= -1
    first = np.einsum("ni,nj->nij", vectors[0], vectors[1])
    second = np.einsum("ni,nj->nij", vectors[2], vectors[3]) * (adjacency == "replace-one")
    assert np.linalg.norm(first - second, axis=(1, 2)).max() == pytest.approx(claimed, rel=1e-12)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_an_adversary_gets_close_to_the_sensitivity_of_the_sketch(adjacency, rng):
    """Two rows almost alike, but opposite along the few directions that the sketch sees and magnifies."""
    n_features = 8192
    privacy = Privacy(
        1.0, 1e-5, bound=1.0, mechanism="sketch", adjacency=adjacency, center=None, evaluate=False
    )
    calibration = calibrate(privacy)
    sketch = build(privacy, Clipping(1.0), n_features, rank=1)
    omega = sketch._omega / np.linalg.norm(sketch._omega, axis=0)
    hidden = rng.normal(size=n_features)
    hidden -= omega @ (omega.T @ hidden)
    hidden *= sqrt(1 - (1.05 * sketch.radius) ** 2) / np.linalg.norm(hidden)
    seen = 1.05 * sketch.radius * omega[:, 0]
    adversarial = np.stack([hidden + seen, hidden - seen])
    usual = rng.normal(size=(2, n_features))

    def distance(rows):
        sums = []
        for row in rows:
            sketch._sketch[:] = 0
            sketch.take(sketch.clipping.points(sketch.clipping.deviations(row[None])))
            sums.append(sketch._sketch / RADIUS**2)
        return np.linalg.norm(sums[0] - (sums[1] if adjacency == "replace-one" else 0))

    assert 0.97 * calibration.sensitivity < distance(adversarial) <= calibration.sensitivity
    assert distance(usual) <= calibration.sensitivity
