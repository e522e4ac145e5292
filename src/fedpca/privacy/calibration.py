"""How much noise: small pure functions between (epsilon, delta), mu and standard deviations.

A Gaussian mechanism with noise of standard deviation sigma on a statistic of l2 sensitivity Delta is
mu-GDP with mu = Delta / sigma (Dong, Roth, Su 2022). That one number composes exactly and converts to
(epsilon, delta) without slack, so everything here goes through it. Rows are in the unit ball; sensitivities
are those of the sum of x x^T, never divided by the number of rows.
"""

from collections.abc import Callable
from functools import lru_cache
from math import exp, expm1, inf, sqrt
from typing import Literal

from scipy.special import log_ndtr

Adjacency = Literal["replace-one", "zero-out"]

SENSITIVITY: dict[Adjacency, float] = {"replace-one": sqrt(2.0), "zero-out": 1.0}
"""Frobenius sensitivity of the sum of x x^T, by adjacency.

Replacing x by y changes it by ||x||^4 + ||y||^4 - 2 <x, y>^2 <= 2, squared; taking x out, by ||x||^4 <= 1.
"""

_UP = 1 + 2.0**-49
"""By which a standard deviation is larger than its formula: its few products are rounded by a tenth."""

# Of logarithms, relative: their arguments are rounded, log_ndtr is, and so is their difference, which is
# small where both epsilon and delta are. Against 80 digits four units of 2^-53 were enough, and two were not,
# for epsilon from 1e-30 to 1e9 and delta from 1e-60 to 0.5.
_LOG_ERROR = 16 * 2.0**-53


# --- Gaussian differential privacy ---


def noise_sd(sensitivity: float, mu: float) -> float:
    """The standard deviation of noise by which a sum costs no more than mu: rounded up."""
    return sensitivity / mu * _UP


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta at which a mu-GDP mechanism is (epsilon, delta)-private, rounded up.

    Balle and Wang 2018, theorem 8: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), in logarithms.

    >>> delta_of(mu=1.0, epsilon=1.0)
    0.12693
    """
    if mu <= 0:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = float(log_ndtr(-mu / 2 - epsilon / mu))
    if first == -inf:
        return 0.0
    error = _LOG_ERROR * (abs(first) + abs(second) + epsilon)
    return max(0.0, -exp(min(first + error, 0.0)) * expm1(epsilon + second - first - error))


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-private, rounded up."""
    if _holds(mu, 0.0, delta):
        return 0.0
    return _bisect(lambda epsilon: not _holds(mu, epsilon, delta))[1]


def epsilon_within(mu: float, delta: float) -> float:
    """The largest epsilon whose mu is no more than this, rounded down."""
    epsilon = epsilon_of(mu, delta)
    while epsilon > 0 and mu_of(epsilon, delta) > mu:
        epsilon *= 1 - 2.0**-44  # beyond what delta's last digits are off by
    return epsilon


@lru_cache(maxsize=4096)
def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private, rounded down: the analytic Gaussian mechanism.

    From Balle and Wang 2018.
    Noise of standard deviation Delta / mu is all that (epsilon, delta) needs; the classic
    Delta sqrt(2 ln(1.25/delta)) / epsilon is more, and holds for epsilon <= 1 only.

    >>> mu_of(epsilon=1.0, delta=1e-5)
    0.268
    """
    return _bisect(lambda mu: _holds(mu, epsilon, delta))[0]


def _holds(mu: float, epsilon: float, delta: float) -> bool:
    """Whether a mu-GDP mechanism is (epsilon, delta)-private."""
    return delta_of(mu, epsilon) <= delta


def _bisect(below: Callable[[float], bool]) -> tuple[float, float]:
    """The two neighboring numbers between which `below` turns from true to false on (0, inf)."""
    low, high = 0.0, 1.0
    while below(high):
        low, high = high, 2 * high
        if high == inf:
            return low, high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


def analytic_sigma(epsilon: float, delta: float, adjacency: Adjacency = "replace-one") -> float:
    """What this library adds to sum x x^T instead: sensitivity / mu, whatever the number of features.

    >>> analytic_sigma(1.0, 1e-5)
    5.28
    """
    return noise_sd(SENSITIVITY[adjacency], mu_of(epsilon, delta))
