"""News: directions that a few rows have, and the directions carried have not."""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.subspace import Subspace

_ROWS_PER_DIRECTION = 4  # fewer rows do not tell a direction from their noise


def outside(rows: Array, roots: Array | None, known: Subspace) -> Array:
    """What rows have about the mean outside the directions known, shape (n, d)."""
    mean = known.mean.astype(rows.dtype)
    deviations = rows - (mean if roots is None else roots[:, None] * mean)
    return deviations - (deviations @ known.components.T) @ known.components


def standing_out(residual: Array, ratio: float, n_max: int) -> Array:
    """The leading directions of residuals, not normalized: those above the median, at least one.

    Args:
        residual: shape (n, d).
        ratio: least energy of a direction, in units of the median.
        n_max: at most this many.

    >>> rows = np.random.default_rng(0).normal(size=(32, 50))
    >>> rows[:, 7] += np.linspace(-40, 40, 32)
    >>> np.abs(standing_out(rows, 10.0, 8)).argmax(axis=1)
    array([7])
    """
    squares, vectors = np.linalg.eigh(residual @ residual.T)
    n_found = int(np.count_nonzero(squares > ratio * np.median(squares)))
    n_found = min(max(n_found, 1), n_max, max(len(residual) // _ROWS_PER_DIRECTION, 1))
    return np.asarray(vectors[:, ::-1][:, :n_found].T @ residual)
