"""The best that r directions can do on given rows: what trackers and other libraries are compared with.

It imports numpy only: benchmarks import every library, fedpca included, when they measure it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Exact:
    """Exact float64 eigenvalues of the scatter of rows, so the most energy that any r directions capture.

    Attributes:
        rows: shape (n, d), of any floating-point type.
        mean: what the scatter is about, shape (d,).
        energies: the largest eigenvalues of the scatter, descending.
    """

    rows: Array
    mean: Array
    energies: Array

    @classmethod
    def of(cls, rows: Array, rank: int) -> Self:
        """About the mean of the rows, for up to `rank` directions.

        >>> Exact.of(np.diag([4.0, 0.0]), 1).shortfall(np.array([[3.0, 4.0]]))
        0.64
        """
        mean = rows.mean(axis=0, dtype=np.float64)
        n, d = rows.shape
        if d <= n:
            gram = _sum_over(rows, mean, lambda part: part.T @ part)
        else:  # the same eigenvalues from the smaller side
            centered = rows - mean
            gram = centered @ centered.T
        return cls(rows, mean, np.linalg.eigvalsh(gram)[::-1][:rank])

    def captured(self, components: Array) -> float:
        """Energy of the rows inside the span of `components`, shape (k, d)."""
        basis = np.linalg.qr(np.asarray(components, np.float64).T)[0]
        return float(_sum_over(self.rows, self.mean, lambda part: np.square(part @ basis).sum()))

    def shortfall(self, components: Array, rank: int | None = None) -> float:
        """1 - captured energy / the most that `rank` directions capture, by default as many as given."""
        rank = len(components) if rank is None else rank
        return 1.0 - self.captured(components) / float(self.energies[:rank].sum())


def batches(rows: Array, size: int) -> Iterator[Array]:
    """Cut rows into views of `size` rows; the last may be shorter."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _sum_over(rows: Array, mean: Array, term: Callable[[Array], Any]) -> Any:
    """Sum of `term(centered part)` over parts of the rows: no float64 copy of all rows is made."""
    return sum(term(part - mean) for part in batches(rows, 1000))
