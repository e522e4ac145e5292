"""Several reports from one stream: how their noise is correlated, and the cost of a record."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedpca._typing import Array

_MAX_DISJOINT = 4


@dataclass(frozen=True)
class Schedule:
    """Reports 1 ... R of a growing sum; report j carries sum_k weight_k z_(j-k) of independent noises z.

    Up to four reports every increment is noised by itself and the noises add up (weights of one). Above, the
    weights are those of the square root of the all-ones matrix, sum_k binom(2k, k) 4^-k x^k (Fichtenberger,
    Henzinger, Upadhyay 2023): each report carries 1.8 (R = 16) to 2.7 (R = 256) times the noise of a
    single one instead of 2.9 to 11.3.

    The reports are the prefix sums A x + B z; as A = B C, they are B applied to C x + z, one Gaussian
    mechanism whose sensitivity is that of an increment times the longest column of C = B^-1 A. The noises are
    real numbers until their weighted sum is rounded: a sum of rounded ones would be off the lattice by
    an amount that reveals C x.

    >>> Schedule(16).multiplier(16)
    1.94
    """

    releases: int

    @property
    def disjoint(self) -> bool:
        """Whether a record shows in the noise budget of one report only."""
        return self.releases <= _MAX_DISJOINT

    def weights(self, report: int) -> Array:
        """Weights of the noises 0 ... report - 1 in a report."""
        return _weights(self.releases)[:report][::-1]

    @property
    def column(self) -> Array:
        """The first, longest, column of C = B^-1 A: how an increment shows in the noises of all reports."""
        return _column(self.releases)

    @property
    def column_norm(self) -> float:
        """By how much more than one increment the whole schedule is sensitive to a record, rounded up."""
        return 1.0 if self.disjoint else float(np.linalg.norm(self.column)) * (1 + 1e-12)

    def accumulated(self, report: int) -> float:
        """Standard deviation of a report's noise in units of that of one of the independent noises."""
        return float(np.linalg.norm(self.weights(report)))

    def multiplier(self, report: int) -> float:
        """Standard deviation of a report's noise in units of that of a single release."""
        return self.column_norm * self.accumulated(report)


@lru_cache
def _weights(releases: int) -> Array:
    """The first column of B."""
    if releases <= _MAX_DISJOINT:
        return np.ones(releases)
    k = np.arange(1.0, releases)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


@lru_cache
def _column(releases: int) -> Array:
    """The power series 1 / ((1 - x) B(x)), B with its weights as float64 has them."""
    weights = _weights(releases)
    column: Array = np.zeros(releases)
    for k in range(releases):
        column[k] = 1 - weights[1 : k + 1] @ column[:k][::-1]
    return column
