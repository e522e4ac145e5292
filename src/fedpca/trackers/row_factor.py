"""RowFactor: at most d rows with the count, mean and scatter of many, by QR factorizations."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpca._typing import Array
from fedpca.backend import ops
from fedpca.summaries.algebra import directions_of_features, pooled, subtract_mean
from fedpca.summaries.moments import Moments
from fedpca.summaries.summary import Summary


@dataclass(frozen=True, slots=True)
class RowFactor:
    """A square root of a scatter: it keeps digits that the scatter, its square, would lose.

    Attributes:
        count: number of rows, or the sum of their weights.
        mean: shape (d,); zeros when rows are not centered.
        rows: shape (k, d), k <= d; their Gram matrix is the scatter about the mean.

    >>> rows = np.array([[1.0, 1e-9], [-1.0, 1e-9], [1.0, -1e-9], [-1.0, -1e-9]])
    >>> factor = RowFactor.from_rows(rows, None, center=True)
    >>> np.abs(factor.joined(RowFactor.from_rows(rows, None, center=True)).rows).diagonal()
    array([2.82842712e+00, 2.82842712e-09])
    """

    count: float
    mean: Array
    rows: Array

    @classmethod
    def from_rows(cls, rows: Array, roots: Array | None, *, center: bool) -> Self:
        """Of rows, each already multiplied by its root."""
        rows = np.array(rows, dtype=np.float64)
        roots = None if roots is None else np.asarray(roots, dtype=np.float64)
        count = float(len(rows)) if roots is None else float(roots @ roots)
        mean = subtract_mean(rows, roots, count) if center and count else np.zeros(rows.shape[1])
        return cls(count, mean, _shortened(rows))

    @classmethod
    def from_moments(cls, count: float, mean: Array, scatter: Array) -> Self:
        components, singular_values = directions_of_features(scatter)
        return cls(count, mean, singular_values[:, None] * components)

    @classmethod
    def from_summary(cls, summary: Summary) -> Self:
        if isinstance(summary, Moments):
            return cls.from_moments(summary.count, summary.mean, summary.scatter)
        rows = summary.singular_values[:, None] * summary.components.astype(np.float64)
        return cls(summary.count, summary.mean, rows)

    def joined(self, *others: Self) -> Self:
        """The factor of all their rows."""
        parts = [self, *others]
        counts, means = np.array([part.count for part in parts]), np.array([part.mean for part in parts])
        (count,), mean, jumps = pooled(counts[:, None], means)
        return type(self)(
            float(count), mean, _shortened(np.concatenate([*(part.rows for part in parts), jumps]))
        )

    def scaled(self, factor: float) -> Self:
        """The same with singular values times `factor`, the count times its square."""
        return type(self)(self.count * factor**2, self.mean, self.rows * factor)

    def translated(self, step: Array) -> Self:
        """The same with all rows moved by `step`, shape (d,)."""
        return type(self)(self.count, self.mean + step, self.rows)

    @property
    def energy(self) -> float:
        return ops.energy(self.rows)

    @property
    def scatter(self) -> Array:
        return self.rows.T @ self.rows


def _shortened(rows: Array) -> Array:
    """At most d rows with the same Gram matrix."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(np.linalg.qr(rows, mode="r"))
