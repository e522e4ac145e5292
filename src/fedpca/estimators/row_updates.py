"""RowUpdates: how rows and summaries reach a tracker, whatever their scale, weights and gaps."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpca._typing import AnyArray, Array, DeviceArray, DTypeLike, RowsLike
from fedpca.backend import HOST, Backend, backend_of, batch_slices, dense, ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.estimators.base import chunk_rows, stored_values
from fedpca.summaries import validation
from fedpca.summaries.missing_values import Filled, fill, impute_cold_start, late_starts
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import known_to_any
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary
from fedpca.trackers import Divided, LateFeatures, Standardized, Tracker

_MUCH_LOST = 0.25  # of the variance; what is reported is up to twice as far off

Scaled = Divided | Standardized  # what divides rows on their way to a tracker
Source = Tracker | LateFeatures | Scaled


class RowUpdates(NamedTuple):
    """Rows and summaries into trackers. It keeps nothing, so that several threads may share it.

    Attributes:
        forget: what earlier rows are scaled by before every batch.
        names: of the features, if they have any.
        new_tracker: makes a tracker of so many features, of a dtype, on a backend.
    """

    forget: float
    names: tuple[str, ...] | None
    new_tracker: Callable[[int, DTypeLike, Backend], Tracker]

    def update(self, source: Source, X: RowsLike, weights: Array | None, gaps: bool | None) -> Source:
        """The tracker with one more batch: earlier rows decay once, missing entries are imputed.

        Args:
            gaps: whether entries are missing; None of rows that are not checked yet.
        """
        if not isinstance(source, Scaled):
            return self._update_plain(source, X, weights, gaps)
        scaled = source.with_scaling_of(X, weights, self.names, self.forget)
        updated = self._update_plain(source.tracker, source.in_units(X, weights), weights, gaps)
        return scaled.with_tracker(updated)

    def merge(self, source: Source, summaries: list[Summary]) -> Source:
        """The source, which stays as it is, with the rows behind summaries of its scale."""
        if isinstance(source, Standardized):
            source = source.with_more(Scaling.merge([scaling_of(part) for part in summaries]))
        summaries = [
            source.summary_in_units(part) if isinstance(source, Scaled) else part.with_about(scale=None)
            for part in summaries
        ]
        # Noise makes some eigenvalues of a private release negative; rows have none.
        summaries = [
            part.subspace() if isinstance(part, Moments) and part.certificate else part for part in summaries
        ]
        tracker = plain(source).branch()
        largest = max(validation.raw_energy(part.total, part.count, part.mean) for part in summaries)
        if not largest < ops.max_energy(tracker.dtype):
            raise ValueError(
                f"a summary of rows this large, sum of squares {largest:.3g}, does not fit a stream of "
                f"{tracker.dtype}; rescale the features."
            )
        if isinstance(tracker, Tracker) and any(part.observed is not None for part in summaries):
            leaves = [leaf for part in summaries for leaf in part.leaves]
            # The tracker itself takes what knows the same features as it does; the rest is kept beside it,
            # and its features become known below, for the rows to come.
            widest = max((leaf.known for leaf in leaves), key=np.count_nonzero)
            tracker = LateFeatures(tracker, np.ones_like(widest) if tracker.has_rows else widest)
        tracker.merge(*summaries)
        if isinstance(tracker, LateFeatures):
            known = tracker.known | known_to_any(summaries)
            if not np.array_equal(known, tracker.known):
                tracker.know(known, self.new_tracker(len(known), tracker.dtype, HOST))
        return source.with_tracker(tracker) if isinstance(source, Scaled) else tracker

    def _update_plain(
        self, tracker: Tracker | LateFeatures, X: RowsLike, weights: Array | None, gaps: bool | None
    ) -> Tracker | LateFeatures:
        """`update` of a tracker that takes rows as they are."""
        if gaps is None and isinstance(tracker, Tracker):
            try:  # as fast as to multiply rows: their products show what is not finite
                return self._unchecked(tracker, X, weights)
            except NonFiniteError:
                pass
        if gaps is None:
            X, gaps = checked_rows(X, tracker.dtype, HOST, weights)
        tracker = tracker.branch()
        tracker.decay(self.forget)
        if weights is not None and not weights.all():  # a row of weight zero is no row: it fills no gaps
            X, weights = X[weights > 0], weights[weights > 0]
        if not gaps and (not isinstance(tracker, LateFeatures) or tracker.known.all()):
            tracker.update(X, weights)
            return tracker
        for cut in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
            rows, part = dense(X[cut]).astype(tracker.dtype, copy=False), part_of(weights, cut)
            present = ~np.isnan(rows).all(axis=1)  # rows that are entirely missing are skipped
            if not present.all():
                rows, part = rows[present], None if part is None else part[present]
            if not len(rows):
                continue
            starts = late_starts(rows, _known(tracker, X.shape[1]))
            for own in map(slice, starts, [*starts[1:], len(rows)]):
                tracker = self._update_filled(tracker, rows[own], part_of(part, own))
        return tracker

    def _unchecked(self, tracker: Tracker, X: RowsLike, weights: Array | None) -> Tracker:
        """`update` with rows that nobody has checked; NonFiniteError if they have gaps or infinity."""
        branch = tracker.branch()
        branch.decay(self.forget)
        with np.errstate(over="ignore", invalid="ignore"):  # of what is found not to be finite
            branch.update(X, weights, is_checked=False)
        if not tracker.has_rows and branch.may_underflow:
            validation.require_no_underflow(X, tracker.dtype)
        return branch

    def _update_filled(
        self, tracker: Tracker | LateFeatures, rows: Array, weights: Array | None
    ) -> Tracker | LateFeatures:
        """The tracker with more rows: gaps are imputed; a feature without any value so far stays unknown."""
        gaps, before = np.isnan(rows), _known(tracker, rows.shape[1])
        known = before | ~gaps.all(axis=0)
        new = known & ~before
        filled = tracker.filled or Filled.nothing(len(known))
        if gaps[:, before].any():
            history = tracker.history() if isinstance(tracker, LateFeatures) else tracker.view()
            imputed, filled = fill(rows, history.subspace, history.variances, weights, filled)
            rows = np.where(gaps & before, imputed, rows)
        if gaps[:, new].any():
            rows = rows.copy()
            rows[:, known], lacking = impute_cold_start(
                rows[:, known], tracker.n_exchanged, tracker.center, weights
            )
            filled = filled.with_more(rows, gaps, new, weights, lacking)
        if isinstance(tracker, LateFeatures):
            if new.any():
                tracker.know(known, self.new_tracker(len(known), tracker.dtype, HOST))
        elif not known.all():
            tracker = LateFeatures(tracker, known)
        tracker.filled = filled
        tracker.update(rows, weights)
        return tracker


def checked_rows(
    X: RowsLike, dtype: DTypeLike, backend: Backend, weights: Array | None
) -> tuple[DeviceArray, bool | None]:
    """Rows on the backend, and whether any entry is missing; None on a device: they are not checked yet."""
    if not isinstance(X, np.ndarray) and backend_of(X).on_device:
        if backend.on_device:
            return X, None
        X = to_host(X)
    return X, validation.has_nan(stored_values(X), dtype, ops.max_weight(weights))


def warn_of_gaps(source: Source, stacklevel: int) -> None:
    """Warn, once in a stream, that much of the variance is lost with what is missing."""
    tracker = plain(source)
    filled = tracker.filled if isinstance(tracker, Tracker | LateFeatures) else None
    if filled is None or filled.warned or not filled.lacking:
        return
    summary = tracker.view().subspace
    lost = filled.lacking / (summary.count * summary.n_known)
    if lost > _MUCH_LOST:
        tracker.filled = filled._replace(warned=True)
        warnings.warn(
            f"about {lost:.0%} of the variance is lost with missing entries, of which others tell little: "
            "variances are too small, and so are limits of anomaly scores. Larger batches lose less.",
            stacklevel=stacklevel + 1,
        )


def _known(tracker: Tracker | LateFeatures, n_features: int) -> AnyArray:
    """Which features have been observed so far, shape (d,)."""
    return tracker.known if isinstance(tracker, LateFeatures) else np.full(n_features, tracker.has_rows)


def scaling_of(summary: Summary) -> Scaling:
    """Of the rows of moments; of no rows that of any summary."""
    return summary.scaling_of_rows() if isinstance(summary, Moments) else Scaling.empty(summary.n_features)


def plain(source: Source) -> Any:
    """The tracker behind a source."""
    return source.tracker if isinstance(source, Scaled) else source


def part_of(values: Array | None, part: slice) -> Array | None:
    """A slice of weights, if there are any."""
    return None if values is None else values[part]
