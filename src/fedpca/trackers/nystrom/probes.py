"""Probes, and what they tell of each row: the values that the products of a panel take and return."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from fedpca._typing import AnyArray, Array


class Probes(NamedTuple):
    """Directions that rows are multiplied by.

    Attributes:
        directions: [W; mu0], shape (K + 1, d): the K probes, and the running mean.
        offsets: W mu0, shape (K,).
        mean_square: |mu0|².
        outlier_energy: residual that makes a row an outlier.
    """

    directions: Array
    offsets: Array
    mean_square: float
    outlier_energy: float


class RowStats(NamedTuple):
    """What is known of rows from their products with probes; zero for outliers.

    Attributes:
        energy: sum of squares, shape (n,).
        residual: sum of squares about the mean outside the probes, shape (n,).
        is_outlier: whether a row is an outlier, shape (n,).
    """

    energy: Array
    residual: Array
    is_outlier: AnyArray

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Those of the rows of several parts."""
        return (
            parts[0]
            if len(parts) == 1
            else cls(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        )

    @property
    def sums(self) -> tuple[float, float, int]:
        """Of energies and of residuals, in float64, and how many outliers there are."""
        energy, residual = (float(np.sum(part, dtype=np.float64)) for part in self[:2])
        return energy, residual, int(np.count_nonzero(self.is_outlier))

    def first(self, n_rows: int) -> Self:
        """Those of the first rows."""
        return type(self)(*(values[:n_rows] for values in self))
