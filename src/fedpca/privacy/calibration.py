"""How much noise: small pure functions between (epsilon, delta), mu and standard deviations.

A Gaussian mechanism with noise of standard deviation sigma on a statistic of l2 sensitivity Delta is
mu-GDP with mu = Delta / sigma (Dong, Roth, Su 2022). That one number composes exactly and converts to
(epsilon, delta) without slack, so everything here goes through it. Rows are in the unit ball; sensitivities
are those of the sum of x x^T, never divided by the number of rows.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import exp, expm1, inf, log, pi, sqrt
from typing import Literal

from scipy.special import log_ndtr

Adjacency = Literal["replace-one", "zero-out"]

SENSITIVITY: dict[Adjacency, float] = {"replace-one": sqrt(2.0), "zero-out": 1.0}
"""Frobenius sensitivity of the sum of x x^T, by adjacency.

Replacing x by y changes it by ||x||^4 + ||y||^4 - 2 <x, y>^2 <= 2, squared; taking x out, by ||x||^4 <= 1.
"""

ROUNDING = 1e-9
"""By how much a sum of costs may exceed a budget, relative to mu: sums of a hundred err by 1e-14.

`mu_of` is as much smaller, so that what a budget admits never exceeds its promise.
"""

# Of logarithms, relative: their arguments are rounded, log_ndtr is, and so is their difference, which is
# small where both epsilon and delta are. Against 80 digits four units of 2^-53 were enough, and two were not,
# for epsilon from 1e-30 to 1e9 and delta from 1e-60 to 0.5.
_LOG_ERROR = 16 * 2.0**-53


# --- Gaussian differential privacy ---


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
    """Whether a mu-GDP mechanism is (epsilon, delta)-private, and one that costs more by `ROUNDING`."""
    return delta_of(mu * (1 + ROUNDING), epsilon) <= delta


def composed(mus: Iterable[float]) -> float:
    """The mu of several Gaussian releases of the same record: the root of the sum of squares, exactly.

    >>> composed([3.0, 4.0])
    5.0
    """
    return sqrt(sum(mu**2 for mu in mus))


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


# --- The paper and its predecessors, for comparison and reproduction ---


def paper_omega(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """The paper's omega as printed (Lemma 2): standard deviation of i.i.d. noise on (1/n) sum x x^T.

    It is larger than needed: an l1 bound of 2d stands where the Frobenius norm, sqrt(2), would do. With the
    paper's delta = 0.05, for epsilon = 4 and 0.1, and 20 and 784 features, these times:

    >>> settings = [(d, epsilon) for d in (20, 784) for epsilon in (4.0, 0.1)]
    >>> [round(paper_omega(e, 0.05, d, 1) / analytic_sigma(e, 0.05)) for d, e in settings]
    [105, 507, 5646, 27431]

    Its proof also takes 4 for the squared sensitivity 2, a one-sided tail, drops P(G in S) and solves its
    quadratic wrongly (4d for 2d), errors that together require more noise, not less. `n_rows` is the batch.

    >>> round(paper_omega(1.0, 1e-5, 784, 1))
    21693
    """
    tail = sqrt(2 * log(n_features**2 / (delta * sqrt(2 * pi))))
    return (4 * n_features / epsilon * tail + sqrt(2 / epsilon)) / n_rows


def repaired_omega(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """The paper's omega with its proof repaired: two-sided tail and the right root of its quadratic.

    The root of 2 epsilon w^2 - (4 d t / n) w - 4 / n^2 = 0 with t = sqrt(2 ln(2 d^2 / (delta sqrt(2 pi)))):
    about half of what is printed, still far above `analytic_sigma`.

    >>> round(repaired_omega(1.0, 1e-5, 784, 1))
    11002
    """
    tail = n_features * sqrt(2 * log(2 * n_features**2 / (delta * sqrt(2 * pi))))
    return (tail + sqrt(tail**2 + 2 * epsilon)) / (epsilon * n_rows)


def mod_sulq_beta(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """MOD-SuLQ's beta (Chaudhuri, Sarwate, Sinha 2012), the paper's equation 6.

    Standard deviation of a symmetric mask, i.i.d. on and above the diagonal, on (1/n) sum x x^T.

    >>> round(mod_sulq_beta(1.0, 1e-5, 784, 1))
    5352
    """
    tail = sqrt(2 * log((n_features**2 + n_features) / (2 * delta * sqrt(2 * pi))))
    return ((n_features + 1) / epsilon * tail + 1 / sqrt(epsilon)) / n_rows


def sulq_rate(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """SuLQ's standard deviation (Blum et al. 2005) as the paper quotes it, for comparison only."""
    return sqrt(8.0) * n_features * log(n_features / delta) / (n_rows * epsilon)


def analytic_sigma(epsilon: float, delta: float, adjacency: Adjacency = "replace-one") -> float:
    """What this library adds to sum x x^T instead: sensitivity / mu, whatever the number of features.

    >>> analytic_sigma(1.0, 1e-5)
    5.28
    """
    return SENSITIVITY[adjacency] / mu_of(epsilon, delta)


def minimum_batch(epsilon: float, delta: float, n_features: int, omega: float) -> float:
    """The paper's T (Lemma 2, part 2), corrected: rows a batch needs for its omega to be at most `omega`.

    As printed the bracket is inverted, and T = 0.03 rows would be private at d=20 and omega=0.1.

    >>> round(minimum_batch(1.0, 0.05, 20, omega=0.1))
    3228
    """
    return paper_omega(epsilon, delta, n_features, 1) / omega


def analytic_minimum_batch(epsilon: float, delta: float, omega: float) -> float:
    """The same with the analytic calibration: rows for which noise `omega` on the mean of x x^T is enough.

    >>> round(analytic_minimum_batch(1.0, 0.05, omega=0.1))
    19
    """
    return analytic_sigma(epsilon, delta) / omega
