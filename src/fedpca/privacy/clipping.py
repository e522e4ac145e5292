"""Clipping: rows become integer points of the ball of radius 2^12, so that their sums are exact.

Sums of products of integers below 2^53 are exact in float64 whatever their order, so one record changes a
sum by exactly what the mathematics says and no more. A difference in rounding, from which floating-point
sums can reveal a record (Casacuberta et al. 2022), cannot arise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import Array

RADIUS = 2.0**12
MAX_ENTRY = 1e150
"""Its square is still a number, and a row with such an entry is clipped all the same."""
MAX_ROWS = 2**28
"""Sums over more rows might leave the integers that float64 holds."""
UNNOTICED = np.errstate(all="ignore")
"""Around what touches private rows: numpy, set to warn or raise, would show what a record is like."""
_BLOCK_ENTRIES = 2**22  # of rows that are paired with each other
_BLOCK_ROWS = 8192


@dataclass(frozen=True)
class Clipping:
    """How rows become points of the unit ball: divided by a scale, less a center, clipped.

    All of it is public, or was found privately.

    Attributes:
        bound: rows are clipped to this length; None scales every row to length one (the sphere).
        center: what is subtracted, in the units of divided rows; None for nothing.
        pairs: rows are replaced by the differences of random pairs, over sqrt(2): that needs no center.
        scale: what features are divided by; infinite for features that are left out; None for nothing.
        feature_names: one per feature, or None.
    """

    bound: float | None
    center: Array | None = None
    pairs: bool = False
    scale: Array | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def unit(self) -> float:
        """The scatter of rows, in units of that of their points."""
        return (1.0 if self.bound is None else self.bound**2) * (2.0 if self.pairs else 1.0)

    @property
    def public_scale(self) -> Array | None:
        """What features are divided by: 1 for those that are left out."""
        return None if self.scale is None else np.where(self.left_out, 1.0, self.scale)

    @property
    def left_out(self) -> NDArray[np.bool_]:
        """Whether each feature is left out, shape (d,)."""
        assert self.scale is not None
        return np.isinf(self.scale)

    @property
    def centered(self) -> bool:
        """Whether the scatter is about the mean."""
        return self.pairs or self.center is not None

    @property
    def kind(self) -> str:
        """For certificates: what does not add up with others."""
        shape = "ball" if self.bound is not None else "sphere"
        return f"{shape}, differences of pairs" if self.pairs else shape

    def about(self, center: Array | None) -> Self:
        """The same clipping about a center in the units of the rows."""
        if center is not None and self.scale is not None:
            center = center / self.scale
        return replace(self, center=center)

    @property
    def center_of_rows(self) -> Array | None:
        """The center in the units of the rows; 0 for features that are left out."""
        if self.center is None or self.scale is None:
            return self.center
        return self.center * np.where(self.left_out, 0.0, self.scale)

    @UNNOTICED
    def deviations(self, rows: Array) -> Array:
        """Rows as float64, divided and less the center; NaN for entries that are missing or infinite.

        An infinite entry counts as missing: were it refused, the failure would show that a record has one.
        """
        # C order: in other layouts numpy sums a row in another order, and a norm may differ in its last bit.
        rows = np.array(rows, dtype=np.float64, order="C")
        rows[np.isinf(rows)] = np.nan
        np.clip(rows, -MAX_ENTRY, MAX_ENTRY, out=rows)
        if self.scale is not None:
            rows /= self.scale
            np.clip(rows, -MAX_ENTRY, MAX_ENTRY, out=rows)
        return rows if self.center is None else rows - self.center

    @UNNOTICED
    def points(self, deviations: Array) -> Array:
        """Integer points of the ball of radius 2^12. A missing entry is at the center.

        On the sphere a row has length one, or the root of the share of its entries that are not missing.
        """
        missing = np.isnan(deviations)
        gaps = missing.any()
        deviations = np.where(missing, 0.0, deviations) if gaps else deviations
        if self.bound is not None:
            return clipped(deviations, self.bound)
        return on_sphere(deviations, np.sqrt(1 - missing.mean(axis=1)) if gaps else None)

    def mean(self, offset: Array) -> Array:
        """The mean of divided rows, given that of their points in the unit ball."""
        center = np.zeros_like(offset) if self.center is None else self.center
        return center if self.bound is None or self.pairs else center + self.bound * offset


class Pairing:
    """Rows in, differences of pairs of them out, over sqrt(2), every row in one pair at most.

    Rows are paired at random within blocks of consecutive rows. The differences have the scatter of the rows
    about their mean, wherever that is. How rows are cut into batches makes no difference.

    Args:
        random: where the pairs come from: never the rows.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._waiting: list[Array] = []
        self._n_waiting = 0

    def take(self, rows: Array) -> Iterator[Array]:
        """Add rows, shape (n, d), NaN for missing; yields the differences of complete blocks."""
        block = min(_BLOCK_ROWS, max(2, _BLOCK_ENTRIES // rows.shape[1]))
        while len(rows):
            part, rows = np.split(rows, [block - self._n_waiting])
            self._waiting.append(part)
            self._n_waiting += len(part)
            if self._n_waiting == block:
                yield self.flush()

    @UNNOTICED
    def flush(self) -> Array:
        """The differences of the rows that wait; of an odd number one is left out."""
        rows = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        order = self._random.permutation(len(rows))[: len(rows) // 2 * 2]
        differences: Array = (rows[order[::2]] - rows[order[1::2]]) / sqrt(2.0)
        return differences

    @property
    def n_waiting(self) -> int:
        """How many rows wait for a partner."""
        return self._n_waiting


@UNNOTICED
def lengths(deviations: Array) -> Array:
    """Norms of rows, shape (n,): of one with missing entries, the norm that the others suggest."""
    missing = np.isnan(deviations)
    observed = np.maximum(1 - missing.mean(axis=1), 1 / max(deviations.shape[1], 1))
    return _norms(np.where(missing, 0.0, deviations))[0] / np.sqrt(observed)


@UNNOTICED
def clipped(rows: Array, bound: float) -> Array:
    """Rows, shape (n, d), drawn into the ball of radius `bound`, in units of bound / 2^12: integers.

    Each row is scaled by min(1, bound / its norm), then rounded; should rounding take it out of the ball,
    it is rounded toward zero instead. Every result has an integer squared norm of at most 2^24, exactly.

    >>> clipped(np.array([[3.0, 4.0], [0.5, 0.0]]), bound=1.0)
    array([[2457., 3276.],
           [2048.,    0.]])
    """
    rows = np.clip(np.asarray(rows, dtype=np.float64, order="C"), -MAX_ENTRY, MAX_ENTRY)
    norms, _ = _norms(rows)
    return _rounded(rows * (RADIUS / np.maximum(norms, bound))[:, None])


@UNNOTICED
def on_sphere(rows: Array, lengths: Array | None = None) -> Array:
    """Rows, shape (n, d), scaled to length one, or to `lengths`, at most one, in units of 2^-12: integers.

    Rounding never takes a row out of the ball. A row of zeros stays.

    >>> on_sphere(np.array([[30.0, 40.0], [0.0, 0.0]]))
    array([[2457., 3276.],
           [   0.,    0.]])
    """
    norms, relative = _norms(rows)
    factors = RADIUS / np.where(norms > 0, _norms(relative)[0], 1.0)
    return _rounded(relative * (factors if lengths is None else factors * lengths)[:, None])


def _norms(rows: Array) -> tuple[Array, Array]:
    """Norms of rows, shape (n,), and the rows divided by their largest entries: no square vanishes."""
    largest = np.abs(rows).max(axis=1, initial=0.0)[:, None]
    relative = rows / np.where(largest > 0, largest, 1.0)
    return largest[:, 0] * np.linalg.norm(relative, axis=1), relative


def _rounded(scaled: Array) -> Array:
    """Rows of the ball of radius 2^12 rounded to integer points of it."""
    points = np.rint(scaled)
    if (outside := _outside(points)).any():
        points[outside] = np.trunc(scaled[outside])
        if (outside := _outside(points)).any():  # the norm itself was rounded down
            points[outside] = np.trunc(scaled[outside] * (1 - 2.0**-12))
    return points


def _outside(points: Array) -> NDArray[np.bool_]:
    squares: Array = np.einsum("ij,ij->i", points, points)  # exact: integers below 2^53
    return squares > RADIUS**2
