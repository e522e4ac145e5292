"""ShardedFits: fits that threads share: shards of many rows, of a table or of files, or parts of products."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from fedpca._typing import Array, DeviceArray, DType, RowsLike
from fedpca.backend import HOST, backend_of, batch_slices
from fedpca.backend.base import NO_CONTEXT
from fedpca.backend.ops import even_cuts
from fedpca.backend.threads import map_in_threads, n_threads, thread_team
from fedpca.estimators.row_updates import PlainSource, part_of
from fedpca.estimators.shards import NotCuttable, Part, Shard, fit_shards, n_shards
from fedpca.estimators.stream_settings import BATCH_ROWS, StreamSettings
from fedpca.privacy import PrivateTracker
from fedpca.readers.data_file import Batch
from fedpca.summaries import validation
from fedpca.summaries.scaling import Scaling
from fedpca.trackers import Standardized

_MIN_SHARED_ENTRIES = 2**17  # of a batch: the products of fewer take less than to share them


class ShardedFits(StreamSettings):
    """The fits of `StreamingPCA` that threads share."""

    def _fit_in_shards(
        self, X: DeviceArray, weights: Array | None, dtype: DType, threads: int
    ) -> PlainSource | None:
        """A tracker of all rows of a table, which are not checked yet; None if they are to be one stream."""
        cuts = [] if backend_of(X).on_device else self._cuts(X.shape, getattr(X, "nnz", None))
        if len(cuts) < 2:
            return None
        scaling = None
        if isinstance(self.scale, str) and not self._kind_of_tracker(X.shape[1]).gives_moments:
            scaling = self._scaling_in_shards(X, weights, cuts, threads)
        self._check_values(X[:BATCH_ROWS, :], dtype, HOST, part_of(weights, slice(BATCH_ROWS)))
        sources = self._new_sources(X, weights, dtype, scaling, len(cuts))
        shards = [
            Shard(source, partial(self._batches, X, weights, cut))
            for source, cut in zip(sources, cuts, strict=True)
        ]
        del sources
        try:
            return fit_shards(self._row_updates(), shards, threads)
        except NotCuttable:
            return None

    def _team(self, shape: tuple[int, int]) -> AbstractContextManager[object]:
        """Threads that share the products of rows that are one stream, unless these are few."""
        threads = n_threads(self.n_jobs)
        return thread_team(threads) if shape[0] * shape[1] >= _MIN_SHARED_ENTRIES else NO_CONTEXT

    def _batch_rows(self, n_features: int) -> int:
        """Rows per batch of a fit; products of the exact tracker are faster with more."""
        if self.batch_size is not None or validation.forget(self.forget) != 1:  # which is per batch
            return self.batch_size or BATCH_ROWS
        return 4 * BATCH_ROWS if self._kind_of_tracker(n_features).gives_moments else BATCH_ROWS

    def _cuts(self, shape: tuple[int, int], n_stored: int | None = None) -> list[slice]:
        """Where to cut rows into shards; one for not at all. With forgetting, order matters."""
        number = 1
        if self.privacy is None and validation.forget(self.forget) == 1:
            kind, rule, _ = self._kind_of_tracker(shape[1])
            number = n_shards(kind, rule, self.oversample, shape, n_stored)
        return even_cuts(shape[0], number)

    def _cuts_of_files(self, shape: tuple[int, int]) -> list[slice]:
        """The same for the rows of files; a stream that has begun goes on as one."""
        return [slice(0, shape[0])] if self._has_source() else self._cuts(shape)

    def _fit_ranges(
        self, first: Batch, cuts: Sequence[slice], read: Callable[[slice], Iterator[Batch]]
    ) -> bool:
        """Fit rows that threads read by themselves; False, and nothing learned, if they must be one stream.

        Args:
            first: some rows from the beginning.
            cuts: the shards.
            read: gives the batches of a shard.
        """
        threads, seen = n_threads(self.n_jobs), [0] * len(cuts)

        def batches(shard: int) -> Iterator[Part]:
            for batch in read(cuts[shard]):
                yield self._validated(batch, reset=False), None
                seen[shard] += len(batch)

        try:
            with self._rollback_on_error():
                X, _, dtype, _ = self._table(first, None, first=True)
                self._check_values(X, dtype, HOST, None)
                shards = [
                    Shard(source, partial(batches, i))
                    for i, source in enumerate(self._new_sources(X, None, dtype, None, len(cuts)))
                ]
                self._source = fit_shards(self._row_updates(), shards, threads)
                self._n_rows_seen = sum(seen)
        except NotCuttable:
            return False
        return True

    def _new_sources(
        self, X: RowsLike, weights: Array | None, dtype: DType, scaling: Scaling | None, number: int
    ) -> list[PlainSource]:
        """Trackers for the shards of rows."""
        first = self._new_tracker(X, weights, dtype, scaling)
        assert not isinstance(first, PrivateTracker)
        others = [self._plain_tracker(X.shape[1], dtype) for _ in range(number - 1)]
        if not isinstance(first, Standardized):
            return [first, *others]
        return [first, *(first.with_tracker(other) for other in others if other.gives_moments)]

    def _scaling_in_shards(
        self, X: RowsLike, weights: Array | None, cuts: Sequence[slice], threads: int
    ) -> Scaling:
        """The scaling of all rows of a table."""

        def scaling(cut: slice, check: Callable[[], None]) -> Scaling:
            rows, own = X[cut, :], part_of(weights, cut)
            self._check_values(rows, np.float64, HOST, own)
            return Scaling.of_checked(rows, own, self._names())

        return Scaling.merge(map_in_threads(scaling, cuts, threads))

    def _batches(self, X: RowsLike, weights: Array | None, cut: slice) -> Iterator[Part]:
        """The rows of a shard, a few at a time: read once from memory, they are then in the cache."""
        for part in batch_slices(cut.stop - cut.start, self._batch_rows(X.shape[1])):
            own = slice(cut.start + part.start, cut.start + part.stop)
            yield X[own, :], part_of(weights, own)
