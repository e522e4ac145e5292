"""WindowedPCA: principal components of the latest rows only."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np

from fedpca._typing import JSON, AnyArray, ArrayLike, RowsLike
from fedpca.estimators.base import BasePCA, warn_if_fewer
from fedpca.estimators.one_row import OneRowMixin
from fedpca.estimators.settings import check_unchanged, rank_rule
from fedpca.estimators.stream_file import LiveStream
from fedpca.estimators.streaming import StreamingPCA
from fedpca.summaries.merging import merge
from fedpca.summaries.rank import RankRule
from fedpca.summaries.scaling import ScaleLike
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView, View
from fedpca.trackers import Tracker, TrackerName

_BLOCKS = 16  # of a window


class WindowedPCA(LiveStream, OneRowMixin, BasePCA):
    """Principal components of the latest rows of a stream: those of a window of rows, or of time.

    Rows are summarized in blocks, 16 to a window, whose summaries are merged when components are read. Rows
    leave block by block: a block leaves when all its rows are older than the window. So all rows of the
    window count, and at most a sixteenth of a window of older ones. Memory is that of 18 summaries.

    Up to max(256, 8 n_components) features, the components are exactly those of these rows; above, the
    trackers of `StreamingPCA` approximate them. `StreamingPCA(forget=...)` needs less memory, and lets old
    rows fade instead.

    Args:
        n_components: how many components to keep: a whole number, a share of the variance in (0, 1), or
            None for all.
        window: how many rows; or how much time, a `timedelta` or `numpy.timedelta64`: then rows come with
            `timestamps`. Like all settings but `whiten` it is read at the first batch: `partial_fit` rejects
            a later change.
        center: subtract the mean of the window.
        scale: "std" or "binomial", of the rows that count; one positive number per feature; or None. With
            more features than above it must be numbers.
        whiten: scale the scores to unit variance.
        tracker: as in `StreamingPCA`.

    Attributes:
        components_: shape (`n_components_`, n_features), by falling variance, the largest entry positive.
        explained_variance_, explained_variance_ratio_, singular_values_: shape (`n_components_`,).
        mean_, scale_, noise_variance_, n_components_, subspace_: as in `StreamingPCA`.
        n_samples_seen_: how many rows count: those of the window, and the older ones of its oldest block.

    Missing entries are imputed from the other rows of their block.

    >>> rng = np.random.default_rng(0)
    >>> before, after = rng.normal(size=(2, 500, 3)) * [[[9.0, 1.0, 1.0]], [[1.0, 1.0, 9.0]]]
    >>> pca = WindowedPCA(1, window=300).partial_fit(before).partial_fit(after)
    >>> pca.n_samples_seen_, int(np.abs(pca.components_).argmax())
    (316, 2)
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        window: int | timedelta | np.timedelta64,
        center: bool = True,
        scale: ScaleLike = None,
        whiten: bool = False,
        tracker: TrackerName | type[Tracker] = "auto",
    ) -> None:
        self.n_components = n_components
        self.window = window
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tracker = tracker

    _source: "_Ring"

    def fit(self, X: RowsLike, y: object = None, *, timestamps: ArrayLike | None = None) -> Self:
        """Fit the latest of these rows, shape (n_samples, n_features); any earlier fit is discarded.

        Args:
            X: rows, oldest first.
            y: ignored.
            timestamps: as in `partial_fit`.
        """
        with self._rollback_on_error():
            self.__dict__.pop("_source", None)
            self.partial_fit(X, timestamps=timestamps)
        warn_if_fewer(self.n_components, self.n_components_, stacklevel=3)
        return self

    def partial_fit(self, X: RowsLike, y: object = None, *, timestamps: ArrayLike | None = None) -> Self:
        """Fit more rows, oldest first, and let those that are too old leave.

        Args:
            X: shape (n_samples, n_features), of any size from one row up.
            y: ignored.
            timestamps: with a window of time, when the rows were measured, shape (n_samples,): datetimes
                that never decrease. Those with a time zone are taken in UTC.
        """
        first = not self._has_source()
        with self._rollback_on_error():
            X = self._validated(X, reset=first)
            if not first:
                check_unchanged(self._source.settings | {"window": self._source.window}, self.__dict__)
            ring = self._new_ring(X.shape[1]) if first else self._source
            self._source = ring.with_rows(X, ring.stamps(X.shape[0], timestamps))
            self._n_rows_seen = self._source.n_rows
        return self

    def learn_one(self, x: Any, t: datetime | np.datetime64 | None = None) -> None:
        """Learn one row; with a window of time, that of time `t`. As in `StreamingPCA` else."""
        self.partial_fit(self._one_row(x), timestamps=None if t is None else np.array([t], object))

    def _new_ring(self, n_features: int) -> "_Ring":
        names = ("n_components", "center", "scale", "tracker")
        ring = _Ring(
            self.window,
            *_checked_window(self.window),
            rank_rule(self.n_components, None, n_features),
            {name: getattr(self, name) for name in names},
        )
        if ring.new_block()._needs_scaling(n_features):
            raise ValueError(
                f"scale must be numbers for {n_features} features, got {self.scale!r}: blocks would have "
                "different scales; give one number per feature, as of Scaling.from_rows(rows).scale('std')."
            )
        return ring


class _Block(NamedTuple):
    """A block that takes no more rows."""

    n_rows: int
    newest: int  # stamp
    summary: Summary


@dataclass(frozen=True)
class _Ring:
    """The blocks of a window, oldest first, and the one that takes rows: it alone changes, by whole batches.

    A stamp is a point of time in nanoseconds or, in a window of rows, the number of a row. A block has the
    rows whose stamps, divided by a sixteenth of the window, are equal.
    """

    window: int | timedelta | np.timedelta64
    length: int  # of the window, in rows or nanoseconds
    is_time: bool
    rule: RankRule | None
    settings: JSON  # of the estimators of blocks
    closed: tuple[_Block, ...] = ()
    current: StreamingPCA | None = None
    newest: int = -1

    def new_block(self) -> StreamingPCA:
        return StreamingPCA(**self.settings)

    @property
    def span(self) -> int:
        return -(-self.length // _BLOCKS)

    @property
    def n_rows(self) -> int:
        """Rows that count."""
        return sum(block.n_rows for block in self.closed) + self._current.n_samples_seen_

    @property
    def _current(self) -> StreamingPCA:
        assert self.current is not None
        return self.current

    def stamps(self, n_rows: int, timestamps: ArrayLike | None) -> AnyArray:
        """The stamps of the next rows, shape (n_rows,)."""
        if self.is_time != (timestamps is not None):
            raise ValueError(
                "timestamps must be given with a window of time; pass timestamps=, or t= to learn_one."
                if self.is_time
                else "timestamps must be None with a window of rows; leave them out, or give a timedelta."
            )
        if timestamps is None:
            return np.arange(self.newest + 1, self.newest + 1 + n_rows)
        stamps = _nanoseconds(timestamps)
        if stamps.shape != (n_rows,):
            raise ValueError(f"timestamps must have one entry per row, {n_rows}, got shape {stamps.shape}.")
        times = stamps if self.current is None else np.concatenate([[self.newest], stamps])
        falls = np.flatnonzero(np.diff(times) < 0)
        if falls.size:
            earlier, later = times[falls[0] : falls[0] + 2].astype("M8[ns]").astype("M8[us]")
            raise ValueError(
                f"timestamps must not decrease, got {later} after {earlier}; sort the rows by time."
            )
        return stamps

    def with_rows(self, rows: Any, stamps: AnyArray) -> "_Ring":
        """The ring with more rows, without blocks that are too old."""
        newest = int(stamps[-1])
        oldest = newest - self.length  # no longer in the window
        pieces = list(self._pieces(stamps, oldest))
        goes_on = (
            self.current is not None and int(stamps[pieces[0][0]]) // self.span == self.newest // self.span
        )
        blocks = [] if self.current is None else [(self.current, self.newest)]
        for start, stop in pieces[goes_on:]:
            blocks.append((self.new_block().partial_fit(rows[start:stop, :]), int(stamps[stop - 1])))
        if goes_on:  # last: rows that cannot be learned, here or in a new block, change nothing
            start, stop = pieces[0]
            blocks[0] = self._current.partial_fit(rows[start:stop, :]), int(stamps[stop - 1])
        closed = [*self.closed]
        closed += [_Block(block.n_samples_seen_, last, block.summary_) for block, last in blocks[:-1]]
        current = blocks[-1][0]
        kept = tuple(block for block in closed if block.newest > oldest)
        ring = replace(self, closed=kept, current=current, newest=newest)
        is_same = len(kept) == len(closed) == len(self.closed)
        if is_same and "_merged" in self.__dict__:
            ring.__dict__["_merged"] = self._merged
        return ring

    def _pieces(self, stamps: AnyArray, oldest: int) -> Iterator[tuple[int, int]]:
        """Where rows of one block start and stop; blocks that would leave at once are left out."""
        blocks = stamps // self.span
        edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(stamps)]
        for start, stop in pairwise(edges):
            if stamps[stop - 1] > oldest:
                yield start, stop

    # --- what BasePCA shows ---

    @cached_property
    def _merged(self) -> Summary | None:
        """Of all blocks but the current one, which changes more often."""
        return merge([block.summary for block in self.closed]) if self.closed else None

    @cached_property
    def _view(self) -> View:
        current = self._current.summary_
        whole = current if self._merged is None else merge([self._merged, current])
        return SummaryView(whole, self.rule, "auto", self._current._source.dtype).view()

    def view(self) -> View:
        """What is shown of the rows that count."""
        return self._view


def _checked_window(window: Any) -> tuple[int, bool]:
    """A number of rows or of nanoseconds, and whether it is one of time."""
    is_time = isinstance(window, timedelta | np.timedelta64)
    if is_time:
        length = _window_nanoseconds(window)
    elif isinstance(window, Integral) and not isinstance(window, bool):
        length = int(window)
    else:
        raise TypeError(f"window must be a number of rows or a timedelta, got {window!r}.")
    if length < 1:
        raise ValueError(f"window must be positive, got {window!r}.")
    if length >= 2**63:
        raise ValueError(f"window must be less than 2**63 rows, got {window!r:.80}.")
    return length, is_time


def _nanoseconds(timestamps: Any) -> AnyArray:
    """Points of time as whole numbers."""
    values = np.asarray(timestamps)
    if values.dtype == object:
        values = np.array([_utc(value) for value in values.ravel()]).reshape(values.shape)
    if values.dtype.kind != "M":
        raise TypeError(f"timestamps must be datetimes, got {values.dtype}; convert with numpy or pandas.")
    if np.isnat(values).any():
        raise ValueError("timestamps must not be missing, got NaT.")
    stamps = values.astype("datetime64[ns]")
    if (stamps.astype(values.dtype) != values).any():
        raise ValueError(f"timestamps must lie between 1678 and 2262, got {values.min()} to {values.max()}.")
    return stamps.astype(np.int64)


def _window_nanoseconds(window: timedelta | np.timedelta64) -> int:
    length = np.timedelta64(window)
    if np.datetime_data(length.dtype)[0] in ("Y", "M", "generic") or np.isnat(length):
        raise ValueError(f"window must be a time of known length, got {window!r}; give days or seconds.")
    stamp = length.astype("timedelta64[ns]")
    if stamp.astype(length.dtype) != length:
        raise ValueError(f"window must be at most 292 years, got {window!r}.")
    return int(stamp.astype(np.int64))


def _utc(value: Any) -> Any:
    """A datetime without a time zone, for numpy."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if not isinstance(value, datetime):
        return value
    return np.datetime64(value) if value == value else np.datetime64("NaT")  # of pandas
