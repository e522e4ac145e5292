"""Scores of a subspace: the paper's metric, and sound ones beside it."""

from dataclasses import dataclass

import numpy as np

from fedpca._typing import Array
from fedpca.metrics import principal_angles
from reproduction.base import Record
from reproduction.exact import Exact


@dataclass(frozen=True)
class Offline:
    """Offline PCA of all rows about the origin, by numpy's SVD.

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
        """The smallest mean squared distance of the rows from any subspace of this rank."""
        return float(np.sum(self.singular_values[rank:] ** 2)) / len(self.rows)

    def error(self, basis: Array) -> float:
        """Mean squared distance of the rows from the span of an orthonormal basis, without cancellation."""
        return float(np.sum((self.rows - self.rows @ basis.T @ basis) ** 2)) / len(self.rows)

    def scores(self, components: Array, rank: int | None = None) -> Record:
        """Scores of components, shape (k, d), in descending order; they need not be orthonormal.

        * rank: k.
        * ln_mse: the paper's metric, the logarithm of the mean squared difference of absolute entries.
        * error: mean squared distance of the rows from the subspace.
        * excess: relative excess of the error over the smallest possible.
        * shortfall: relative shortfall of the captured variance from the largest possible.
        * sine: of the largest angle to the exact subspace.

        Args:
            rank: of the best subspace that error and variance are compared with; by default k.
        """
        exact = self.components[: len(components)]
        rank = len(components) if rank is None else rank
        basis = np.linalg.qr(components.T)[0].T
        error, best = self.error(basis), self.best_error(rank)
        optimum = Exact(self.rows, np.zeros(self.rows.shape[1]), self.singular_values**2)
        return {
            "rank": len(components),
            "ln_mse": ln_mse(exact, components),
            "error": error,
            "excess": error / best - 1 if best > 0 else 0.0,
            "shortfall": optimum.shortfall(components, rank),
            "sine": float(np.sin(principal_angles(basis, exact).max())),
        }


def ln_mse(exact: Array, found: Array) -> float:
    """The paper's metric, which its figures call log(RMSE): invariant to signs, but not to rotations.

    A random basis has ln(0.727 / d). Values below about -70 are rounding errors.
    """
    rounding = np.finfo(np.float64).eps ** 2
    return float(np.log(np.mean((np.abs(exact) - np.abs(found)) ** 2) + rounding))
