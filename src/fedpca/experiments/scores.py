"""How well a subspace was found: the paper's metric, and sound ones beside it."""

from dataclasses import dataclass

import numpy as np

from fedpca._typing import Array
from fedpca.experiments.base import Record
from fedpca.metrics import principal_angles


@dataclass(frozen=True)
class Offline:
    """The exact answer for rows that are all at hand, about the origin: numpy's SVD.

    Attributes:
        rows: shape (n, d).
        components: all of them, shape (min(n, d), d).
        singular_values: descending.
    """

    rows: Array
    components: Array
    singular_values: Array

    @classmethod
    def of(cls, rows: Array) -> "Offline":
        _, singular_values, components = np.linalg.svd(rows, full_matrices=False)
        return cls(rows, components, singular_values)

    def best_error(self, rank: int) -> float:
        """The least mean squared distance of the rows from any subspace of so many directions."""
        return float(np.sum(self.singular_values[rank:] ** 2)) / len(self.rows)

    def error(self, basis: Array) -> float:
        """Mean squared distance of the rows from the span of orthonormal rows, without cancellation."""
        return float(np.sum((self.rows - self.rows @ basis.T @ basis) ** 2)) / len(self.rows)

    def scores(self, components: Array, rank: int | None = None) -> Record:
        """How good components, shape (k, d), are; any basis of what they span, the leading ones first.

        * rank: k.
        * ln_mse: the paper's: the logarithm of the mean squared difference of absolute entries.
        * error: mean squared distance of the rows from the subspace.
        * excess: by which share the error exceeds the least possible.
        * shortfall: by which share the variance captured falls short of the most possible.
        * sine: of the largest angle to the exact subspace.

        Args:
            rank: of the best subspace to compare error and variance with; k by default.
        """
        exact = self.components[: len(components)]
        rank = len(components) if rank is None else rank
        basis = np.linalg.qr(components.T)[0].T
        error, best = self.error(basis), self.best_error(rank)
        captured = float(np.sum((self.rows @ basis.T) ** 2))
        most = float(np.sum(self.singular_values[:rank] ** 2))
        return {
            "rank": len(components),
            "ln_mse": ln_mse(exact, components),
            "error": error,
            "excess": error / best - 1 if best > 0 else 0.0,
            "shortfall": 1 - captured / most,
            "sine": float(np.sin(principal_angles(basis, exact).max())),
        }


def ln_mse(exact: Array, found: Array) -> float:
    """The paper's metric, which its pictures call log(RMSE): blind to signs, but not to rotations.

    A random basis has ln(0.727 / d). Below about -70 it is rounding.
    """
    rounding = np.finfo(np.float64).eps ** 2
    return float(np.log(np.mean((np.abs(exact) - np.abs(found)) ** 2) + rounding))
