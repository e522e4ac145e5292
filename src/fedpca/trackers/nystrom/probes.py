"""Probes, and what they tell of each row: the values that the products of a panel take and return."""

from typing import NamedTuple, Self

from fedpca._typing import DeviceArray
from fedpca.backend import backend_of


class Probes(NamedTuple):
    """Directions that rows are multiplied by.

    Attributes:
        directions: [W; mu0], shape (K + 1, d): the K probes, of which the first are carried, and the running
            mean; rounded to tf32 where products are.
        offsets: W mu0, shape (K,).
        n_compared: probes that the residual of a row is outside of: those carried on a device, else all.
        mean_square: |mu0|².
        outlier_energy: residual that makes a row an outlier.
        uses_tf32: whether products are in tf32.
    """

    directions: DeviceArray
    offsets: DeviceArray
    n_compared: int
    mean_square: float
    outlier_energy: float
    uses_tf32: bool

    @property
    def residual_rounding(self) -> float:
        """Rounding error of a row's residual, as a share of its energy."""
        return 1e-3 if self.uses_tf32 else 1e-4


class RowStats(NamedTuple):
    """What is known of rows from their products with probes; zero for outliers.

    Attributes:
        energy: sum of squares, shape (n,).
        residual: sum of squares about the mean outside the directions compared with, shape (n,).
        is_outlier: whether a row is an outlier, shape (n,).
        sums: of these three, shape (3,), float64.
    """

    energy: DeviceArray
    residual: DeviceArray
    is_outlier: DeviceArray
    sums: DeviceArray

    @classmethod
    def from_stacked(cls, values: DeviceArray) -> Self:
        """From one array of shape (3, n), so that a device sums it in one go."""
        xp = backend_of(values).xp
        return cls(values[0, :], values[1, :], values[2, :], xp.sum(values, axis=1, dtype=xp.float64))

    def first(self, n_rows: int) -> Self:
        """Those of the first rows."""
        energy, residual, is_outlier = (values[:n_rows] for values in self[:3])
        xp = backend_of(energy).xp
        sums = [xp.sum(values, dtype=xp.float64) for values in (energy, residual, is_outlier)]
        return type(self)(energy, residual, is_outlier, xp.stack(sums))
