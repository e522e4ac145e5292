"""Tracker: rows in, summary out, in one pass; the contract of all trackers, and what they share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from typing import ClassVar, Self, TypedDict, final

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from fedpca._typing import Array, DeviceArray, DType, RowsLike
from fedpca.backend import HOST, Backend, dense, ops
from fedpca.backend.base import NO_CONTEXT
from fedpca.errors import NonFiniteError
from fedpca.parallel import has_blas_threads, single_threaded_blas
from fedpca.summaries.linalg import mean_dominates
from fedpca.summaries.merging import append_rows, merge
from fedpca.summaries.missing_values import Filled
from fedpca.summaries.rank import Oversample, RankRule, oversampled_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_MIN_DECAY = 1e-100  # as good as zero, but safe to divide by


class TrackerSettings(TypedDict, total=False):
    """Those settings of a `Tracker` that all have."""

    oversample: Oversample
    center: bool
    dtype: DTypeLike
    backend: Backend


class Tracker(ABC):
    """Rows in, summary out: one pass, any batch size from one row up.

    The base class cuts a stream into panels: rows of the tracker's dtype, less its origin, times the square
    roots of their weights. Rows too few for a panel are buffered, and count in every summary all the same.
    Reading a summary never changes the stream. A concrete tracker implements the abstract members below;
    what is final is the same for all.

    Args:
        n_features: d.
        rule: how many directions are wanted.
        oversample: directions carried beyond those; "auto" for about as many again, fewer for large ranks.
        center: whether to subtract the running mean.
        dtype: float32 or float64, the precision in which rows are worked on.
        backend: where rows are worked on; the host, for trackers without this setting.

    Attributes:
        has_rows: whether any row has come, itself or in a summary; rows of weight zero do not count.
        rank: directions wanted at present.
    """

    settings: ClassVar[frozenset[str]] = frozenset()
    """Which of "backend", "block_rows", "mixed_units" and "seed" the constructor takes besides the others."""
    takes_sparse: ClassVar[bool] = False
    """Whether panels may be CSR; else they are made dense."""
    checks_rows: ClassVar[bool] = False
    """Whether rows may come unchecked: NaN and infinity then show in the products."""
    gives_moments: bool = False
    """Whether `state` is the moments of all rows, if nothing was lost before they came."""
    is_fitted: ClassVar[bool] = True
    """Before any row, too: there is a summary of no rows."""

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        oversample: Oversample = "auto",
        center: bool = True,
        dtype: DTypeLike = np.float64,
        backend: Backend = HOST,
    ) -> None:
        self.n_features = n_features
        self.rule = rule
        self.oversample = oversample
        self.center = center
        self.dtype: DType = np.dtype(dtype)
        self.backend = backend
        self.rank = rule.start(n_features)
        self.has_rows = False
        self._origin: Array | None = None  # subtracted from rows where their mean dominates their spread
        self._pending_decay = 1.0  # forgetting not yet applied to what was absorbed
        self._buffer: DeviceArray = backend.zeros((0, n_features), self.dtype)
        self._buffer_roots: DeviceArray | None = None
        self._n_buffered = 0
        self._is_checked = True  # the rows at hand
        self._cached_summary: Subspace | None = None  # until more rows come
        self.filled: Filled | None = None  # where entries were missing
        self._limits_threads = not backend.on_device and has_blas_threads()  # read once: it takes time

    # --- contract ---

    @property
    @abstractmethod
    def min_panel_rows(self) -> int:
        """Fewer rows than this are buffered."""

    @property
    @abstractmethod
    def max_panel_rows(self) -> int:
        """More rows than this make several panels."""

    @property
    @abstractmethod
    def buffer_capacity(self) -> int:
        """How many rows the buffer holds, at least `min_panel_rows`; a full one is absorbed as one panel."""

    @abstractmethod
    def _absorb(self, panel: RowsLike, roots: DeviceArray | None) -> None:
        """Learn from a panel (dense, or CSR where `takes_sparse`) of rows times `roots`."""

    @property
    @abstractmethod
    def _absorbed_energy(self) -> float:
        """The sum of squares of the rows absorbed, about the origin or about their mean."""

    @abstractmethod
    def _scale(self, factor: float) -> None:
        """Scale the singular values of everything absorbed."""

    @abstractmethod
    def _merge(self, others: Sequence[Summary]) -> None:
        """Add summaries to everything absorbed; the buffer is empty."""

    @abstractmethod
    def state(self) -> Summary:
        """Everything the tracker knows, buffered rows included; changes nothing."""

    @abstractmethod
    def _leading(self) -> Subspace:
        """The directions to exchange, of all rows, with fixed signs."""

    @abstractmethod
    def n_components(self) -> int:
        """How many directions of the summary are wanted."""

    @abstractmethod
    def feature_variances(self) -> Array | None:
        """Variance of each feature, shape (d,), where the tracker knows it."""

    def branch(self) -> Self:
        """A tracker that goes on from here instead of this one, which stays as it is until it learns more."""
        return deepcopy(self)

    def _with_own_buffer(self) -> Self:
        """A copy that shares everything but the buffered rows; for trackers that replace what they change."""
        other = copy(self)
        if self._n_buffered:
            other._buffer = self.backend.zeros(self._buffer.shape, self.dtype) + self._buffer
        return other

    # --- rows in ---

    def update(self, rows: RowsLike, weights: Array | None = None, *, is_checked: bool = True) -> None:
        """Learn from rows, shape (n, d), dense or CSR, finite; a weight counts repetitions of its row.

        Raises:
            NonFiniteError: of rows that were not checked beforehand; discard the tracker.
        """
        self._is_checked = is_checked
        self.has_rows = self.has_rows or weights is None or bool(np.any(weights))
        self._cached_summary = None
        with self.backend.compute_context():
            roots = None if weights is None else self.backend.asarray(np.sqrt(weights), self.dtype)
            start, n_rows = self._take_first(rows, roots), rows.shape[0]
            while start < n_rows:
                n_left = n_rows - start
                capacity = 0  # of the buffer, if that is to be used
                if self._n_buffered or n_left < self.min_panel_rows:
                    capacity = self.buffer_capacity
                size = capacity - self._n_buffered if capacity else self._panel_rows(rows, roots, n_left)
                part = slice(start, min(start + size, n_rows))
                part_roots = None if roots is None else roots[part]
                if capacity:
                    self._buffer_rows(rows[part, :], part_roots, capacity)
                else:
                    self._process(rows[part, :], part_roots)
                start = part.stop

    def _take_first(self, rows: RowsLike, roots: DeviceArray | None) -> int:
        """How many of the rows were taken otherwise than by panels, at the start of a stream."""
        return 0

    def _panel_rows(self, rows: RowsLike, roots: DeviceArray | None, n_left: int) -> int:
        """How many of the rows left of a batch are the next panel, if they are that many."""
        size = self.max_panel_rows
        if self._must_copy(rows, roots):
            size = min(size, max(self.min_panel_rows, self.backend.chunk_entries // self.n_features))
        return size

    def _must_copy(self, rows: RowsLike, roots: DeviceArray | None) -> bool:
        if sparse.issparse(rows):
            return not self._stays_sparse(rows)
        return roots is not None or self._origin is not None or not self.backend.is_native(rows, self.dtype)

    def _stays_sparse(self, rows: RowsLike) -> bool:
        return (
            sparse.issparse(rows)
            and self.takes_sparse
            and self._origin is None
            and not self.backend.on_device
        )

    def _buffer_rows(self, rows: RowsLike, roots: DeviceArray | None, capacity: int) -> None:
        """Append rows to the buffer, which grows as needed up to its capacity, and is then processed."""
        before, now = self._n_buffered, self._n_buffered + rows.shape[0]
        if now > self._buffer.shape[0]:
            length = min(max(now, 2 * before), capacity)
            longer = self.backend.zeros((length, self.n_features), self.dtype)
            longer[:before, :] = self._buffer[:before, :]
            self._buffer = longer
        rows = dense(rows)
        if self.backend.on_device:
            rows = self.backend.asarray(rows, self.dtype)
        self._require_finite(rows)
        self._buffer[before:now, :] = rows
        if roots is not None or self._buffer_roots is not None:
            old = self._ones(before) if self._buffer_roots is None else self._buffer_roots
            new = self._ones(now - before) if roots is None else roots
            self._buffer_roots = self.backend.xp.concat([old, new])
        self._n_buffered = now
        if now == capacity:
            self._flush()

    def _require_finite(self, rows: DeviceArray) -> None:
        """Check rows that are not to be multiplied, if nobody did."""
        if not (self._is_checked or ops.energy(rows) < ops.max_energy(self.dtype)):
            raise NonFiniteError

    def _flush(self) -> None:
        """Process the buffered rows as one panel."""
        rows, roots = self._buffer[: self._n_buffered, :], self._buffer_roots
        self._buffer_roots, self._n_buffered = None, 0
        self._process(rows, roots)

    def _process(self, rows: RowsLike, roots: DeviceArray | None) -> None:
        """Make a panel of rows and absorb it."""
        with self._blas_context():
            self._apply_decay()
            self._absorb(self._prepared(rows, roots), roots)

    def _blas_context(self) -> AbstractContextManager[object]:
        """On the host, one thread of BLAS where more do not pay; a device has its own context."""
        return single_threaded_blas() if self._limits_threads else NO_CONTEXT

    def _prepared(self, rows: RowsLike, roots: DeviceArray | None) -> RowsLike:
        """Rows in the tracker's dtype, less the origin, times the roots of their weights."""
        if self._stays_sparse(rows):
            rows = rows.astype(self.dtype, copy=False)
            return rows if roots is None else sparse.diags_array(roots) @ rows
        rows = self.backend.asarray(dense(rows), self.dtype)
        if self._origin is not None:
            rows = rows - self.backend.asarray(self._origin, self.dtype)
        return rows if roots is None else rows * roots[:, None]

    def _ones(self, n_rows: int) -> DeviceArray:
        return self.backend.zeros((n_rows,), self.dtype) + 1

    @final
    @property
    def may_underflow(self) -> bool:
        """Whether the rows so far may be too small to square."""
        return not self._absorbed_energy > ops.min_energy(self.dtype)

    # --- the origin ---

    @final
    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return self.center and mean_dominates(mean, spread, self.dtype)

    def _move_origin(self, step: Array) -> Array:
        """Move the origin by about `step`; returns by how much: it is a number of the rows' own dtype."""
        before = np.zeros(self.n_features) if self._origin is None else self._origin
        self._origin = (before + step).astype(self.dtype).astype(np.float64)
        return self._origin - before

    # --- forgetting and merging ---

    @final
    def decay(self, forget: float) -> None:
        """Scale everything seen so far by `forget`; its count and total by `forget**2`."""
        if forget != 1.0:
            self._cached_summary = None
            self.filled = self.filled and self.filled.scaled(forget)
            self._pending_decay = max(self._pending_decay * forget, _MIN_DECAY)
            self._decay_waiting(float(forget))

    def _decay_waiting(self, forget: float) -> None:
        """Scale the rows that were not absorbed yet."""
        if self._buffer_roots is None:
            self._buffer_roots = self._ones(self._n_buffered)
        self._buffer_roots = self._buffer_roots * forget

    def _apply_decay(self) -> None:
        if self._pending_decay != 1.0:
            self._scale(self._pending_decay)
            self._pending_decay = 1.0

    @final
    def merge(self, *others: Summary) -> None:
        """Go on as if the rows behind other summaries had been seen too."""
        self.has_rows = self.has_rows or any(other.count for other in others)
        self._cached_summary = None
        if self._n_buffered:
            self._flush()
        self._apply_decay()
        self._merge(others)

    # --- summaries out ---

    @final
    def summary(self) -> Subspace:
        """The leading directions of all rows so far: those to exchange, more than are wanted."""
        if self._cached_summary is None:
            with self.backend.compute_context(), self._blas_context():
                self._cached_summary = self._leading()
        return self._cached_summary

    @final
    @property
    def n_exchanged(self) -> int:
        """Directions in a summary: those wanted, and more for the sake of their accuracy."""
        return self._exchanged_for(self.rank)

    def _exchanged_for(self, rank: int) -> int:
        return min(oversampled_rank(rank, self.oversample), self.n_features)

    def _next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        return min(self.rule.next_rank(rank, singular_values, total), self.n_features)


class SubspaceTracker(Tracker):
    """A tracker that knows no more than a `Subspace`."""

    @abstractmethod
    def state(self) -> Subspace: ...

    @final
    def _leading(self) -> Subspace:
        state = self.state()
        n_components = self.rule.n_components(self.rank, state.singular_values, state.total)
        return state.truncate(self._exchanged_for(max(self.rank, n_components))).with_fixed_signs()

    @final
    def n_components(self) -> int:
        summary = self.summary()
        return self.rule.n_components(self.rank, summary.singular_values, summary.total)

    @final
    def feature_variances(self) -> None:
        return None

    def _with_buffer(self, absorbed: Subspace) -> Subspace:
        """What was absorbed, decayed as is due, and the buffered rows; nothing is truncated."""
        if self._pending_decay != 1.0:
            absorbed = absorbed.scaled(self._pending_decay)
        if not self._n_buffered:
            return absorbed
        rows, roots = self._buffer[: self._n_buffered], self._buffer_roots
        rows = rows if roots is None else rows * roots[:, None]
        return append_rows(absorbed, rows, roots, min(absorbed.rank + len(rows), self.n_features))

    def _merged(self, absorbed: Subspace, others: Sequence[Summary], rank: int) -> Subspace:
        """What was absorbed and other summaries, in the tracker's own dtype."""
        return merge([absorbed, *others], rank).subspace().astype(self.dtype)
