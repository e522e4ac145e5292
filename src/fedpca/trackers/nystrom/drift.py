"""The drift test: whether rows have more energy outside the probes than rows had before.

The residual of a row is its energy about the mean outside the probes. Rows are compared 32 at a time with the
mean m and variance v that residuals had before. A part of weight w and total residual e has the excess

    e - m w - sqrt(v w) - rounding,

and the sum of excesses, restarted where it falls below zero, is a CUSUM test: above `drift` + 6 sqrt(32 v)
the rows since the restart are news. So a change is found after as many rows as it takes to tell it from
chance, in whatever batches they come, and it is known where it began.

A single row is an outlier if its residual exceeds `outlier`. News and outliers are not accumulated: products
with the probes cannot see what is orthogonal to them. See docs/explanation/kernel.md.
"""

from typing import NamedTuple

import numpy as np

from fedpca._typing import Array

MAX_OUTLIERS = 0.25  # share of a panel; more make it a panel of new directions, as a whole
PART_ROWS = 32
_ALLOWED = 1.0  # standard deviations by which every part may exceed the mean,
_ALARM = 6.0  # and by which all since the restart may together
# Rounding error of the residual of a whole panel, as a share of its energy: errors of rows cancel in part.
_RESIDUAL_ROUNDING = 1e-6


class Residuals(NamedTuple):
    """Residuals of rows of weight one: their mean, and variance (None if it was not measured)."""

    mean: float
    variance: float | None = None


class Thresholds(NamedTuple):
    """Limits of the energy outside the directions rows are compared with.

    Attributes:
        expected: residuals that are not news.
        drift: excess that is not drift.
        outlier: largest residual of a single row.
        energy: of all rows of a period, up to which its products resolve the directions wanted.
    """

    expected: Residuals
    drift: float
    outlier: float
    energy: float = np.inf

    def news(
        self, energy: Array, residual: Array, roots: Array | None, surplus: float
    ) -> tuple[int, int, float]:
        """Where the first news start and end, both the number of rows if there are none; the sum of excesses.

        Args:
            energy: of each row, shape (n,).
            residual: of each row, shape (n,).
            roots: of the weights of rows; None for weights of one.
            surplus: sum of excesses at the end of the rows before.
        """
        n_rows = len(residual)
        if self.drift == np.inf:
            return n_rows, n_rows, 0.0
        starts = np.arange(0, n_rows, PART_ROWS)
        residuals = np.add.reduceat(residual, starts, dtype=np.float64)
        energies = np.add.reduceat(energy, starts, dtype=np.float64)
        if roots is None:
            weights = np.minimum(n_rows - starts, PART_ROWS)
        else:
            weights = np.add.reduceat(roots**2, starts, dtype=np.float64)
        mean, variance = self.expected
        if variance is None:
            variance = squared_steps(residual) / n_rows
        excesses = (
            residuals
            - mean * weights
            - _ALLOWED * np.sqrt(variance * weights)
            - _RESIDUAL_ROUNDING * energies
        )
        limit, first = self.drift + _ALARM * np.sqrt(PART_ROWS * variance), 0
        for part, excess in enumerate(excesses.tolist()):
            surplus += excess
            if surplus <= 0:
                surplus, first = 0.0, part + 1
            elif surplus > limit:
                return first * PART_ROWS, min((part + 1) * PART_ROWS, n_rows), 0.0
        return n_rows, n_rows, surplus


def squared_steps(values: Array) -> float:
    """As many times their variance, from steps between neighbors: a change of the mean counts little."""
    steps = values[1:] - values[:-1]
    return float(steps @ steps) / 2 * (len(values) / max(len(steps), 1))


ANY_ROWS = Thresholds(Residuals(0.0), np.inf, np.inf)
"""For rows that are known to have new directions."""
