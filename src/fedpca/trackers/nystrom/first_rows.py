"""FirstRows: the rows of a stream while they are few, kept as they came; their directions are exact."""

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from fedpca._typing import Array, DType, RowsLike
from fedpca.backend import dense, ops
from fedpca.summaries.algebra import deviations_from_mean, rounding_floor
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom.few_rows import exact_pairs

_BLOCK_GROWTH = 8
"""Rows of the next block of memory, in units of those before: nothing is copied twice, and blocks are few,
since the first touch of small ones takes longer than the copy."""
_MIN_BLOCK_ENTRIES = 2**14
_MAX_EFFORT = 8
"""Exact solutions that summaries may take together, in units of one for the rows of today: who reads a
summary after every row gets most of them by updates of the last exact one."""
_FREE_ENTRIES = 2**17
"""Up to so many entries every summary is exact: that takes milliseconds."""


class _Solution(NamedTuple):
    """The directions of the first rows.

    Attributes:
        subspace: the directions.
        n_rows: rows they are of.
        n_max: directions there may be.
        effort: rows solved for exactly so far, over all solutions.
    """

    subspace: Subspace
    n_rows: int
    n_max: int
    effort: float


class FirstRows:
    """Rows that wait until they are too many to be kept, or their directions are wanted.

    Replaced, never changed: rows are appended in memory that lies beyond those of before, and is nobody's.

    Args:
        n_features: d.
        dtype: of the rows kept.
        max_bytes: what they may take.
        center: whether directions are about the mean.
    """

    def __init__(self, n_features: int, dtype: DType, max_bytes: int, *, center: bool) -> None:
        self.n_features, self.dtype, self.center = n_features, dtype, center
        self.max_rows = max_bytes // (n_features * dtype.itemsize)
        self.n_rows = 0
        self._blocks: tuple[Array, ...] = ()
        self._n_last = 0  # rows in the last block
        self._roots: Array | None = None
        self._cached_solution: _Solution | None = None

    @property
    def room(self) -> int:
        return self.max_rows - self.n_rows

    def with_rows(self, rows: RowsLike, roots: Array | None) -> Self:
        """With a copy of more rows, no more than there is room for, and of the roots of their weights."""
        other, n_new, start = copy(self), rows.shape[0], 0
        if roots is not None or self._roots is not None:
            old = np.ones(self.n_rows, self.dtype) if self._roots is None else self._roots
            other._roots = np.concatenate([old, np.ones(n_new, self.dtype) if roots is None else roots])
        while start < n_new:
            start += other._fill_block(rows, start)
        return other

    def _fill_block(self, rows: RowsLike, start: int) -> int:
        """Append rows from one on to the last block, or to a new one if that is full; returns how many."""
        n_left = rows.shape[0] - start
        if not self._blocks or self._n_last == len(self._blocks[-1]):
            length = max(n_left, _BLOCK_GROWTH * self.n_rows, _MIN_BLOCK_ENTRIES // self.n_features)
            block = np.empty((min(length, self.room), self.n_features), self.dtype)
            self._blocks, self._n_last = (*self._blocks, block), 0
        last, n_taken = self._blocks[-1], min(n_left, len(self._blocks[-1]) - self._n_last)
        last[self._n_last : self._n_last + n_taken] = dense(rows[start : start + n_taken, :])
        self.n_rows, self._n_last = self.n_rows + n_taken, self._n_last + n_taken
        return n_taken

    def scaled(self, factor: float) -> Self:
        """The same with all weights multiplied by factor²."""
        other, last = copy(self), self._cached_solution
        other._roots = factor * (np.ones(self.n_rows, self.dtype) if self._roots is None else self._roots)
        if last is not None:
            other._cached_solution = last._replace(subspace=last.subspace.scaled(factor))
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Without memory that holds no rows, and without a solution: reading a summary leaves no trace."""
        blocks = (*self._blocks[:-1], *(block[: self._n_last] for block in self._blocks[-1:]))
        return {**vars(self), "_blocks": blocks, "_cached_solution": None}

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # all of it: the memory, too
        return other

    def parts(self, start: int = 0) -> Iterator[tuple[Array, Array | None]]:
        """The rows from one on, and the roots of their weights, as they are in memory."""
        first = 0
        for i, block in enumerate(self._blocks):
            stop = first + (self._n_last if i == len(self._blocks) - 1 else len(block))
            if stop > start:
                skipped = max(start - first, 0)
                roots = None if self._roots is None else self._roots[first + skipped : stop]
                yield block[skipped : stop - first], roots
            first = stop

    def subspace(self, n_wanted: int, n_max: int) -> Subspace:
        """Their leading directions, the wanted exactly, unless that was asked for too often.

        Args:
            n_wanted: directions that are exact.
            n_max: directions at most.
        """
        n_max = min(n_max, self.n_features)
        last = self._cached_solution
        if last is not None and last.n_rows == self.n_rows and last.n_max >= n_max:
            return last.subspace.truncate(n_max)
        effort, is_small = (
            0.0 if last is None else last.effort,
            self.n_rows * self.n_features <= _FREE_ENTRIES,
        )
        if last is None or is_small or n_max > last.n_max or effort <= (_MAX_EFFORT - 1) * self.n_rows:
            found, effort = self._solved(n_wanted, n_max), effort + self.n_rows
        else:
            found = last.subspace
            for rows, roots in self.parts(last.n_rows):
                for part in ops.batch_slices(len(rows), 2 * n_max):
                    own = None if roots is None else roots[part]
                    weighted = rows[part] if own is None else rows[part] * own[:, None]
                    found = append_rows(found, weighted, own, n_max)
        self._cached_solution = _Solution(found, self.n_rows, n_max, effort)
        return found

    def _solved(self, n_wanted: int, n_max: int) -> Subspace:
        if not self.n_rows:
            return Subspace.empty(self.n_features, centered=self.center, dtype=self.dtype)
        weights = None if self._roots is None else self._roots.astype(np.float64) ** 2
        rows = [rows for rows, _ in self.parts()]
        count, mean, deviations = deviations_from_mean(
            rows[0] if len(rows) == 1 else np.concatenate(rows), weights, self.center
        )
        total = ops.energy(deviations)
        floor = rounding_floor(total, count, mean, self.dtype)
        components, singular_values = exact_pairs(deviations, n_wanted, n_max, floor)
        return Subspace.unchecked(
            components=components.astype(self.dtype, copy=False),
            singular_values=singular_values,
            mean=mean,
            count=count,
            total=total,
            centered=self.center,
        )
