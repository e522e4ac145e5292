"""A test that tells two worlds apart by scores of their runs, and lower bounds on epsilon and mu from it."""

from dataclasses import dataclass
from math import inf, log

import numpy as np
from scipy.special import betaincinv, ndtri

from fedpca._typing import Array


def distinguish(ours: Array, theirs: Array, delta: float, alpha: float) -> tuple[float, float]:
    """Lower bounds on epsilon and mu: thresholds are chosen on one half of the runs, judged on the other."""
    half = len(ours) // 2
    first, second = (ours[:half], theirs[:half]), (ours[half:], theirs[half:])
    thresholds = np.unique(np.quantile(np.concatenate(first), np.linspace(0.002, 0.998, 250)))
    by_epsilon = max(thresholds, key=lambda threshold: _epsilon(_rates(*first, threshold, alpha / 4), delta))
    by_mu = max(thresholds, key=lambda threshold: _mu(_rates(*first, threshold, alpha / 2)))
    epsilon = _epsilon(_rates(*second, by_epsilon, alpha / 4), delta)
    mu = _mu(_rates(*second, by_mu, alpha / 2))
    return max(epsilon, 0.0), max(mu, 0.0)


@dataclass(frozen=True)
class _Rates:
    """How often scores lie above and below a threshold: at least, or at most, but for the error allowed."""

    hit: float
    false_alarm: float
    true_negative: float
    miss: float


def _rates(ours: Array, theirs: Array, threshold: float, alpha: float) -> _Rates:
    hit = _at_least(int(np.sum(ours > threshold)), len(ours), alpha)
    true_negative = _at_least(int(np.sum(theirs <= threshold)), len(theirs), alpha)
    return _Rates(hit, 1 - true_negative, true_negative, 1 - hit)


def _epsilon(rates: _Rates, delta: float) -> float:
    """hit <= e^epsilon false_alarm + delta, and the same for the complements."""
    return max(
        _log_ratio(rates.hit - delta, rates.false_alarm), _log_ratio(rates.true_negative - delta, rates.miss)
    )


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0:
        return -inf
    return log(numerator / denominator) if denominator > 0 else inf


def _mu(rates: _Rates) -> float:
    """The best test of a mu-GDP mechanism has Phi^-1(hit) - Phi^-1(false_alarm) = mu."""
    if rates.hit <= 0 or rates.false_alarm >= 1:
        return -inf
    return float(ndtri(rates.hit) - ndtri(rates.false_alarm))


def _at_least(successes: int, runs: int, alpha: float) -> float:
    """The lower end for a probability (Clopper, Pearson 1934)."""
    return float(betaincinv(successes, runs - successes + 1, alpha)) if successes else 0.0
