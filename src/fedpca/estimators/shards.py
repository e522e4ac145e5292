"""Shards: a fit of many rows cut into several streams, which threads run and merging puts together.

Where rows are cut depends on the rows alone, never on the number of threads: the result is the same, bit for
bit, with any number. Shards are contiguous: each follows a drift, or rows sorted by class, by itself.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fedpca._typing import Array, RowsLike
from fedpca.backend.threads import map_in_threads
from fedpca.estimators.row_updates import PlainSource, RowUpdates, checked_rows, plain
from fedpca.summaries.rank import FixedRank, Oversample, RankRule, oversampled_rank
from fedpca.summaries.scaling import Scaling
from fedpca.trackers import Exact, LateFeatures, Nystrom, Standardized, Tracker

MAX_SHARDS = 64
# A shard has its own start, with short periods, and its own summary to merge. Of this size, these cost a
# tenth of its time: 24,000 rows of 1,000 features, and 320 more per direction carried.
_ENTRIES = 24_000_000
_ROWS_PER_DIRECTION = 320
_ROWS_PER_EXACT_FEATURE = 64  # an eigenproblem of all features
_SPARSE_COST = 8  # of an entry that is stored, in dense ones
_MAX_EXACT_FEATURES = 1024  # above, BLAS uses its own threads, and every shard would take d² numbers

Part = tuple[RowsLike, Array | None]
"""Some rows, and their weights."""


class NotCuttable(Exception):
    """These rows have to be one stream: some feature is unknown to the first rows of a shard."""


class Shard:
    """A part of the rows.

    Args:
        source: a tracker without rows; it is given away once, so that it lives no longer than needed.
        read: gives its batches, once.
    """

    def __init__(self, source: PlainSource, read: Callable[[], Iterable[Part]]) -> None:
        self._source, self.read = [source], read

    def begin(self) -> PlainSource:
        """Its tracker."""
        return self._source.pop()


def n_shards(
    kind: type[Tracker],
    rule: RankRule,
    oversample: Oversample,
    shape: tuple[int, int],
    n_stored: int | None = None,
) -> int:
    """In how many shards to cut rows: a power of two, 1 for not at all.

    A rank that adapts to the stream depends on the order of rows: they are not cut. Nor are those of other
    trackers.

    Args:
        kind: the class of trackers.
        rule: how many directions are wanted.
        oversample: directions carried beyond those.
        shape: of the rows.
        n_stored: entries of sparse rows; None of dense ones.
    """
    n_rows, n_features = shape
    entries_per_row = float(n_features)
    if n_stored is not None:
        entries_per_row = max(_SPARSE_COST * n_stored / n_rows, 1.0)
    if kind is Exact and n_features <= _MAX_EXACT_FEATURES:
        extra = _ROWS_PER_EXACT_FEATURE * n_features
    elif kind is Nystrom and isinstance(rule, FixedRank):
        extra = _ROWS_PER_DIRECTION * oversampled_rank(rule.rank, oversample)
    else:
        return 1
    wanted = n_rows / (_ENTRIES / entries_per_row + extra)
    return 2 ** round(math.log2(min(max(wanted, 1.0), MAX_SHARDS)))


def fit_shards(updates: RowUpdates, shards: Sequence[Shard], n_threads: int) -> PlainSource:
    """A tracker of the rows of all shards.

    Neighbors are merged as soon as both are done, then those two with the next two, and so on: few trackers
    are in memory at a time, and which merges with which does not depend on the order in which they are done.

    Raises:
        NotCuttable: the rows have to be one stream.
    """
    lock = threading.Lock()
    waiting: dict[tuple[int, int], PlainSource] = {}  # by level of the tree, and position there

    def run(position: int, check: Callable[[], None]) -> PlainSource | None:
        source, level, n_there = _learned(updates, shards[position], check), 0, len(shards)
        while n_there > 1:
            neighbor = position ^ 1
            if neighbor < n_there:
                with lock:
                    if (level, neighbor) not in waiting:
                        waiting[level, position] = source
                        return None
                    other = waiting.pop((level, neighbor))
                source = _joined(source, other) if position < neighbor else _joined(other, source)
            position, level, n_there = position // 2, level + 1, (n_there + 1) // 2
        return source

    return next(found for found in map_in_threads(run, range(len(shards)), n_threads) if found is not None)


def _learned(updates: RowUpdates, shard: Shard, check: Callable[[], None]) -> PlainSource:
    """The tracker of one shard."""
    source = shard.begin()
    for rows, weights in shard.read():
        check()
        rows, gaps = checked_rows(rows, source.dtype, source.backend, weights, is_scaled=updates.is_scaled)
        source = updates.update(source, rows, weights, gaps)
        if isinstance(plain(source), LateFeatures):
            raise NotCuttable
    return source


def _joined(first: PlainSource, second: PlainSource) -> PlainSource:
    """The first tracker with the rows of the second."""
    tracker = plain(first)
    tracker.merge(plain(second).state())
    if not (isinstance(first, Standardized) and isinstance(second, Standardized)):
        return first
    return replace(first, tracker=tracker, scaling=Scaling.merge([first.scaling, second.scaling]))
