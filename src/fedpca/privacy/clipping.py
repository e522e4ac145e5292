"""Clipping: rows become integer points of the ball of radius 2^12, so that their sums are exact.

Sums of products of integers below 2^53 are exact in float64 whatever their order, so one record changes a
sum by exactly what the mathematics says and no more. A difference in rounding, from which floating-point
sums can reveal a record (Casacuberta et al. 2022), cannot arise.
"""

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import Array

RADIUS = 2.0**12
MAX_ENTRY = 1e150
"""Its square is still a number, and a row with such an entry is clipped all the same."""
MAX_ROWS = 2**28
"""Sums over more rows might leave the integers that float64 holds."""


def clipped(rows: Array, bound: float) -> Array:
    """Rows, shape (n, d), drawn into the ball of radius `bound`, in units of bound / 2^12: integers.

    Each row is scaled by min(1, bound / its norm), then rounded; should rounding take it out of the ball,
    it is rounded toward zero instead. Every result has an integer squared norm of at most 2^24, exactly.

    >>> clipped(np.array([[3.0, 4.0], [0.5, 0.0]]), bound=1.0)
    array([[2457., 3276.],
           [2048.,    0.]])
    """
    # C order: in other layouts numpy sums a row in another order, and a norm may differ in its last bit.
    with np.errstate(over="ignore"):  # of a longer type: a warning would show that a record is this large
        rows = np.clip(np.asarray(rows, dtype=np.float64, order="C"), -MAX_ENTRY, MAX_ENTRY)
    largest = np.abs(rows).max(axis=1, initial=0.0)[:, None]
    safe = np.where(largest > 0, largest, 1.0)
    norms = largest * np.linalg.norm(rows / safe, axis=1, keepdims=True)  # no square vanishes
    scaled = rows * (RADIUS / np.maximum(norms, bound))
    points = np.rint(scaled)
    if (outside := _outside(points)).any():
        points[outside] = np.trunc(scaled[outside])
        if (outside := _outside(points)).any():  # the norm itself was rounded down
            points[outside] = np.trunc(scaled[outside] * (1 - 2.0**-12))
    return points


def _outside(points: Array) -> NDArray[np.bool_]:
    squares: Array = np.einsum("ij,ij->i", points, points)  # exact: integers below 2^53
    return squares > RADIUS**2
