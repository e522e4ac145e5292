"""Tracker: rows in, summary out, in one pass; the contract of all trackers, and what they share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple, Self, TypedDict, final

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from fedpca._typing import Array, DeviceArray, DType, RowsLike
from fedpca.backend import HOST, Backend, dense, ops
from fedpca.backend.base import NO_CONTEXT
from fedpca.errors import NonFiniteError
from fedpca.parallel import has_blas_threads, single_threaded_blas
from fedpca.summaries.linalg import mean_dominates
from fedpca.summaries.merging import merge
from fedpca.summaries.missing_values import Filled
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.rank import Oversample, RankRule, oversampled_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View

_MIN_DECAY = 1e-100  # as good as zero, but safe to divide by


class TrackerSettings(TypedDict, total=False):
    """Those settings of a `Tracker` that all have."""

    oversample: Oversample
    center: bool
    dtype: DTypeLike
    backend: Backend


class Buffer(NamedTuple):
    """Rows too few for a panel; replaced, never changed.

    Attributes:
        memory: shape (m, d), m >= n_rows. Rows are appended in it: what lies beyond n_rows is nobody's.
        n_rows: how many there are.
        roots: of their weights, shape (n_rows,); None for weights of one.
    """

    memory: DeviceArray
    n_rows: int = 0
    roots: DeviceArray | None = None

    @property
    def rows(self) -> DeviceArray:
        return self.memory[: self.n_rows, :]


class Tracker(ABC):
    """Rows in, summary out: one pass, any batch size from one row up.

    The base class cuts a stream into panels: rows of the tracker's dtype, less its origin, times the square
    roots of their weights. Rows too few for a panel are buffered, and count in every summary all the same.
    Reading a summary never changes the stream. A concrete tracker implements the abstract members below;
    what is final is the same for all.

    What a tracker holds is replaced, never changed in place. So a `branch` that shares all of it can learn
    rows, and is dropped if these turn out to be bad: the tracker stays as it was.

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
        self._buffer = self._no_rows = Buffer(backend.zeros((0, n_features), self.dtype))
        self._is_checked = True  # the rows at hand
        self._cached_view: View | None = None  # until more rows come
        self.filled: Filled | None = None  # where entries were missing
        self._limits_threads = not backend.on_device and has_blas_threads()  # read once: it takes time

    # --- contract ---

    @property
    @abstractmethod
    def min_panel_rows(self) -> int:
        """Fewer rows than this are buffered."""

    @property
    def max_panel_rows(self) -> int:
        """More rows than this make several panels."""
        return self.min_panel_rows

    @property
    def buffer_capacity(self) -> int:
        """How many rows the buffer holds, at least `min_panel_rows`; a full one is absorbed as one panel."""
        return self.min_panel_rows

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
    def _view(self) -> View:
        """The directions to exchange, of all rows, with fixed signs; how many are wanted; and variances."""

    def branch(self) -> Self:
        """A tracker that goes on from here instead of this one, which stays as it is until it learns more.

        A tracker that changes in place what it holds must copy that.
        """
        other = object.__new__(type(self))  # a fifth of the time of copy(), which counts for single rows
        other.__dict__.update(self.__dict__)
        return other

    # --- rows in ---

    def update(self, rows: RowsLike, weights: Array | None = None, *, is_checked: bool = True) -> None:
        """Learn from rows, shape (n, d), dense or CSR, finite; a weight counts repetitions of its row.

        Raises:
            NonFiniteError: of rows that were not checked beforehand; discard the tracker.
        """
        self._is_checked = is_checked
        self.has_rows = self.has_rows or weights is None or bool(np.any(weights))
        self._cached_view = None
        with self.backend.compute_context():
            roots = None if weights is None else self.backend.asarray(np.sqrt(weights), self.dtype)
            start, n_rows = self._take_first(rows, roots), rows.shape[0]
            while start < n_rows:
                is_buffered = self._buffer.n_rows or n_rows - start < self.min_panel_rows
                capacity = self.buffer_capacity if is_buffered else 0
                size = capacity - self._buffer.n_rows if capacity else self._panel_rows(rows, roots)
                part = slice(start, min(start + size, n_rows))
                part_roots = None if roots is None else roots[part]
                if capacity:
                    self._append_to_buffer(rows[part, :], part_roots, capacity)
                else:
                    self._process(rows[part, :], part_roots)
                start = part.stop

    def _take_first(self, rows: RowsLike, roots: DeviceArray | None) -> int:
        """How many of the rows were taken otherwise than by panels, at the start of a stream."""
        return 0

    def _panel_rows(self, rows: RowsLike, roots: DeviceArray | None) -> int:
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

    def _append_to_buffer(self, rows: RowsLike, roots: DeviceArray | None, capacity: int) -> None:
        """Append rows to the buffer, which grows as needed up to its capacity, and is then processed."""
        memory, before, old = self._buffer
        now = before + rows.shape[0]
        if now > memory.shape[0]:
            memory = self.backend.zeros((min(max(now, 2 * before), capacity), self.n_features), self.dtype)
            memory[:before, :] = self._buffer.rows
        rows = dense(rows)
        if self.backend.on_device:
            rows = self.backend.asarray(rows, self.dtype)
        self._require_finite(rows)
        memory[before:now, :] = rows
        if roots is not None or old is not None:
            old = self._ones(before) if old is None else old
            roots = self.backend.xp.concat([old, self._ones(now - before) if roots is None else roots])
        self._buffer = Buffer(memory, now, roots)
        if now == capacity:
            self._flush()

    def _require_finite(self, rows: DeviceArray) -> None:
        """Check rows that are not to be multiplied, if nobody did."""
        if not (self._is_checked or ops.energy(rows) < ops.max_energy(self.dtype)):
            raise NonFiniteError

    def _flush(self) -> None:
        """Process the buffered rows as one panel."""
        rows, roots = self._buffer.rows, self._buffer.roots
        self._buffer = self._no_rows  # the memory may be that of another branch, too
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
    def _mean_dominates(self, mean: Array, spread: float) -> bool:
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
            self._cached_view = None
            self.filled = self.filled and self.filled.scaled(forget)
            self._pending_decay = max(self._pending_decay * forget, _MIN_DECAY)
            self._decay_waiting(float(forget))

    def _decay_waiting(self, forget: float) -> None:
        """Scale the rows that were not absorbed yet."""
        memory, n_rows, roots = self._buffer
        self._buffer = Buffer(memory, n_rows, forget * (self._ones(n_rows) if roots is None else roots))

    def _apply_decay(self) -> None:
        if self._pending_decay != 1.0:
            self._scale(self._pending_decay)
            self._pending_decay = 1.0

    @final
    def merge(self, *others: Summary) -> None:
        """Go on as if the rows behind other summaries had been seen too."""
        self.has_rows = self.has_rows or any(other.count for other in others)
        self._cached_view = None
        if self._buffer.n_rows:
            self._flush()
        self._apply_decay()
        self._merge(others)

    # --- summaries out ---

    @final
    def view(self) -> View:
        """What is shown of all rows so far: the directions to exchange, which are more than are wanted."""
        if self._cached_view is None:
            with self.backend.compute_context(), self._blas_context():
                self._cached_view = self._view()
        return self._cached_view

    @final
    def summary(self) -> Subspace:
        """The leading directions of all rows so far: those to exchange, more than are wanted."""
        return self.view().subspace

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

    def _view(self) -> View:
        state = self.state()
        n_components = self.rule.n_components(self.rank, state.singular_values, state.total)
        summary = state.truncate(self._exchanged_for(max(self.rank, n_components))).with_fixed_signs()
        n_components = self.rule.n_components(self.rank, summary.singular_values, summary.total)
        return View(summary, n_components, None)

    def _with_buffer(self, absorbed: Subspace) -> Subspace:
        """What was absorbed, decayed as is due, and the buffered rows; nothing is truncated."""
        if self._pending_decay != 1.0:
            absorbed = absorbed.scaled(self._pending_decay)
        if not self._buffer.n_rows:
            return absorbed
        rows, roots = self._buffer.rows, self._buffer.roots
        rows = rows if roots is None else rows * roots[:, None]
        return append_rows(absorbed, rows, roots, min(absorbed.rank + len(rows), self.n_features))

    def _merged(self, absorbed: Subspace, others: Sequence[Summary], rank: int) -> Subspace:
        """What was absorbed and other summaries, in the tracker's own dtype."""
        return merge([absorbed, *others], rank).subspace().astype(self.dtype)
