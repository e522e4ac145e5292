"""The drift test: whether a panel of rows has more energy outside the directions carried than expected.

The residual of a row is its energy about the mean outside the directions carried. A panel of total weight w
drifts if

    sum of residuals - expected_residual * w > drift + rounding,

and a single row is an outlier if its residual exceeds `outlier`. Such rows are not accumulated: products with
the probes cannot see what is orthogonal to them. See docs/explanation/kernel.md.
"""

from typing import NamedTuple

import numpy as np

MAX_OUTLIERS = 0.25  # share of a panel; more make it a panel of new directions, as a whole
# Rounding error of the residual of a whole panel, as a share of its energy: errors of rows cancel in part.
_RESIDUAL_ROUNDING = 1e-6
_TF32_RESIDUAL_ROUNDING = 1e-4


class Thresholds(NamedTuple):
    """Limits of the energy outside the directions carried.

    Attributes:
        expected_residual: residual of a row of weight one.
        drift: excess residual of a panel that is not drift.
        outlier: largest residual of a single row.
    """

    expected_residual: float
    drift: float
    outlier: float

    def is_drift(self, residual: float, weight: float, energy: float, uses_tf32: bool) -> bool:
        """Whether a panel of this total residual, weight and energy has new directions."""
        excess = residual - self.expected_residual * weight
        return excess > self.drift + (_TF32_RESIDUAL_ROUNDING if uses_tf32 else _RESIDUAL_ROUNDING) * energy


ANY_ROWS = Thresholds(0.0, np.inf, np.inf)
"""For rows that are known to have new directions."""
