"""What every tracker shares: cutting a stream into panels, weighing rows, answering with a summary."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from fedpca._typing import Array
from fedpca.backend import HOST, Backend, dense, ops
from fedpca.errors import NonFiniteError
from fedpca.summaries.linalg import mean_dominates
from fedpca.summaries.merging import append_rows, merge
from fedpca.summaries.rank import RankRule, oversampled_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_FAINTEST = 1e-100  # forgotten, but not yet a division by zero


class Tracker(ABC):
    """Rows in, summary out: one pass, any batch size from one row up.

    A concrete tracker absorbs panels: rows of its own dtype, already multiplied by the square roots of
    their weights. Rows too few for a panel wait in a small buffer and count in every summary all the
    same. Asking for a summary never changes the stream.

    Args:
        n_features: d.
        rule: how many directions are wanted.
        oversample: directions carried beyond those; "auto" for about as many again, fewer for large ranks.
        center: whether to subtract the running mean.
        dtype: float32 or float64, the precision in which rows are worked on.
        backend: where rows are worked on; only the host, for trackers without `takes_devices`.
    """

    takes_sparse = False
    takes_devices = False
    takes_gaps = False  # else rows have none: they were filled
    is_fitted = True  # before any row, too: the summary of none

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        oversample: int | str = "auto",
        center: bool = True,
        dtype: Any = np.float64,
        backend: Backend = HOST,
    ) -> None:
        self.n_features = n_features
        self.rule = rule
        self.oversample = oversample
        self.center = center
        self.dtype = np.dtype(dtype)
        self.backend = backend
        self.rank = rule.start(n_features)
        self._anchor: Array | None = None  # subtracted from rows where their mean dwarfs their spread
        self._fade = 1.0  # forgetting not yet applied to what was absorbed
        self._waiting: Any = backend.zeros((0, n_features), self.dtype)
        self._waiting_roots: Any = None
        self._n_waiting = 0
        self.started = False  # whether any row has come
        self._n_follow = 0  # rows of the batch after those being absorbed
        self._answer: Subspace | None = None  # the summary, until more rows come

    @property
    def is_faint(self) -> bool:
        """Whether rows so far might be too small to square: True if in doubt."""
        return True

    @property
    def keep(self) -> int:
        """Directions carried and exchanged."""
        return self._oversampled(self.rank)

    def _oversampled(self, rank: int) -> int:
        more = oversampled_rank(rank) if self.oversample == "auto" else rank + int(self.oversample)
        return min(more, self.n_features)

    @property
    @abstractmethod
    def smallest_panel(self) -> int:
        """Fewer rows than this wait for more."""

    @property
    @abstractmethod
    def largest_panel(self) -> int:
        """More rows than this make several panels."""

    @property
    @abstractmethod
    def buffer_rows(self) -> int:
        """How many rows may wait, at least `smallest_panel`."""

    @abstractmethod
    def _absorb(self, panel: Any, roots: Array | None) -> None:
        """Take a panel (dense, or CSR where `takes_sparse`) of rows times `roots`."""

    @abstractmethod
    def state(self) -> Summary:
        """All the tracker knows, waiting rows included; changes nothing."""

    @abstractmethod
    def _scale(self, factor: float) -> None:
        """Scale the singular values of all that was absorbed."""

    @abstractmethod
    def _merge(self, others: Sequence[Summary]) -> None:
        """Add summaries to all that was absorbed; no rows wait."""

    # --- rows in ---

    def update(self, rows: Any, weights: Array | None = None) -> None:
        """Take rows, shape (n, d), dense or CSR, finite; a weight counts repetitions of its row.

        Raises:
            NonFiniteError: on a device, where nobody has looked at all rows before; the tracker is spoiled.
        """
        self.started = True
        self._answer = None
        with self.backend.compute_context():
            roots = None if weights is None else self.backend.asarray(np.sqrt(weights), self.dtype)
            start, n_rows = 0, rows.shape[0]
            while start < n_rows:
                waits = self._n_waiting or n_rows - start < self.smallest_panel
                most = self.buffer_rows - self._n_waiting if waits else self._panel_rows(rows, roots)
                part = slice(start, min(start + most, n_rows))
                part_roots = None if roots is None else roots[part]
                self._n_follow = n_rows - part.stop
                if waits:
                    self._wait(rows[part, :], part_roots)
                else:
                    self._take(rows[part, :], part_roots)
                start = part.stop

    def _panel_rows(self, rows: Any, roots: Array | None) -> int:
        most = self.largest_panel
        if self._must_copy(rows, roots):
            most = min(most, max(self.smallest_panel, self.backend.chunk_entries // self.n_features))
        return most

    def _stays_sparse(self, rows: Any) -> bool:
        return (
            sparse.issparse(rows)
            and self.takes_sparse
            and self._anchor is None
            and not self.backend.on_device
        )

    def _must_copy(self, rows: Any, roots: Array | None) -> bool:
        if sparse.issparse(rows):
            return not self._stays_sparse(rows)
        return roots is not None or self._anchor is not None or not self.backend.is_native(rows, self.dtype)

    def _wait(self, rows: Any, roots: Array | None) -> None:
        """Put rows in the buffer, which grows as needed; a full one is taken as one panel."""
        before, now = self._n_waiting, self._n_waiting + rows.shape[0]
        if now > self._waiting.shape[0]:
            length = min(max(now, 2 * before), self.buffer_rows)
            longer = self.backend.zeros((length, self.n_features), self.dtype)
            longer[:before, :] = self._waiting[:before, :]
            self._waiting = longer
        rows = dense(rows)
        if self.backend.on_device:
            rows = self.backend.asarray(rows, self.dtype)
            if not ops.energy(rows) < ops.max_energy(self.dtype):
                raise NonFiniteError
        self._waiting[before:now, :] = rows
        if roots is not None or self._waiting_roots is not None:
            old = self._ones(before) if self._waiting_roots is None else self._waiting_roots
            new = self._ones(now - before) if roots is None else roots
            self._waiting_roots = self.backend.xp.concat([old, new])
        self._n_waiting = now
        if now == self.buffer_rows:
            self._flush()

    def _flush(self) -> None:
        """Take the rows that wait as one panel."""
        rows, roots = self._waiting[: self._n_waiting, :], self._waiting_roots
        self._waiting_roots, self._n_waiting = None, 0
        self._take(rows, roots)

    def _take(self, rows: Any, roots: Any) -> None:
        """Prepare a panel and absorb it."""
        self._apply_fade()
        self._absorb(self._prepared(rows, roots), roots)

    def _apply_fade(self) -> None:
        if self._fade != 1.0:
            self._scale(self._fade)
            self._fade = 1.0

    def _prepared(self, rows: Any, roots: Array | None) -> Any:
        """Rows in the tracker's dtype, less the anchor, times the roots of their weights."""
        if self._stays_sparse(rows):
            rows = rows.astype(self.dtype, copy=False)
            return rows if roots is None else sparse.diags_array(roots) @ rows
        rows = self.backend.asarray(dense(rows), self.dtype)
        if self._anchor is not None:
            rows = rows - self.backend.asarray(self._anchor, self.dtype)
        return rows if roots is None else rows * roots[:, None]

    def _ones(self, n_rows: int) -> Any:
        return self.backend.zeros((n_rows,), self.dtype) + 1

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return self.center and mean_dominates(mean, spread, self.dtype)

    def _move_anchor(self, step: Array) -> Array:
        """Move the anchor by about `step`; returns by how much: it is a number of the rows' own dtype."""
        before = np.zeros(self.n_features) if self._anchor is None else self._anchor
        self._anchor = (before + step).astype(self.dtype).astype(np.float64)
        return self._anchor - before

    def decay(self, forget: float) -> None:
        """Scale everything seen so far by `forget`; its count and total by `forget**2`."""
        if forget != 1.0:
            self._answer = None
            self._fade = max(self._fade * forget, _FAINTEST)
            if self._waiting_roots is None:
                self._waiting_roots = self._ones(self._n_waiting)
            self._waiting_roots = self._waiting_roots * float(forget)

    # --- summaries out ---

    def summary(self) -> Subspace:
        """The leading directions of all rows so far: as many as are carried, more than are wanted."""
        if self._answer is None:
            with self.backend.compute_context():
                self._answer = self._leading()
        return self._answer

    def feature_variances(self) -> Array | None:
        """Variance of each feature, shape (d,), where the tracker knows it."""
        return None

    def shown(self) -> int:
        """How many directions of the summary are the answer."""
        summary = self.summary()
        return self.rule.shown(self.rank, summary.singular_values, summary.total)

    def _leading(self) -> Subspace:
        state = self.state()
        assert isinstance(state, Subspace)
        shown = self.rule.shown(self.rank, state.singular_values, state.total)
        return state.truncate(self._oversampled(max(self.rank, shown))).with_fixed_signs()

    def merge(self, *others: Summary) -> None:
        """Go on as if the rows behind other summaries had been seen too."""
        self._answer = None
        if self._n_waiting:
            self._flush()
        self._apply_fade()
        self._merge(others)

    def _with_waiting(self, absorbed: Subspace) -> Subspace:
        """What was absorbed, faded as is due, and the rows that wait; nothing is truncated."""
        if self._fade != 1.0:
            absorbed = absorbed.scaled(self._fade)
        if not self._n_waiting:
            return absorbed
        rows, roots = self._waiting[: self._n_waiting], self._waiting_roots
        rows = rows if roots is None else rows * roots[:, None]
        return append_rows(absorbed, rows, roots, min(absorbed.rank + len(rows), self.n_features))

    def _merged(self, absorbed: Subspace, others: Sequence[Summary], rank: int) -> Subspace:
        """What was absorbed and other summaries, in the tracker's own dtype."""
        both = merge([absorbed, *others], rank)
        assert isinstance(both, Subspace)
        return both.astype(self.dtype)

    def _next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        return min(self.rule.next_rank(rank, singular_values, total), self.n_features)
