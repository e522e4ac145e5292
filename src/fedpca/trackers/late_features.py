"""LateFeatures: a stream in which some features have not been observed yet."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self, final

import numpy as np

from fedpca._typing import AnyArray, Array, DType, RowsLike
from fedpca.backend import HOST
from fedpca.summaries.merging import merge
from fedpca.summaries.missing_values import Filled
from fedpca.summaries.patchwork import merge_leaves, restricted
from fedpca.summaries.rank import Oversample, RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView, View
from fedpca.trackers.base import Tracker


@final
class LateFeatures:
    """A tracker for the features known now, and the summary of the rows that came when fewer were.

    To rows that come before the first value of a feature, the feature is unknown: they add nothing to its
    mean, variance or covariances. Where a feature gets its first value, a new tracker goes on.

    Args:
        tracker: a tracker of rows that know these features, or of none.
        known: which features are known, shape (d,), bool.
    """

    backend = HOST  # gaps are filled there

    def __init__(self, tracker: Tracker, known: AnyArray) -> None:
        self.known = known
        self.dtype: DType = tracker.dtype
        self._tracker = tracker
        self._earlier: tuple[Summary, ...] = ()  # one per set of known features
        self._cached_view: SummaryView | None = None  # until more rows come
        self.filled: Filled | None = None

    @property
    def rule(self) -> RankRule:
        """How many directions are wanted."""
        return self._tracker.rule

    @property
    def oversample(self) -> Oversample:
        """Directions carried beyond those."""
        return self._tracker.oversample

    @property
    def center(self) -> bool:
        """Whether the mean is subtracted."""
        return self._tracker.center

    @property
    def n_exchanged(self) -> int:
        """Directions in a summary."""
        return self._tracker.n_exchanged

    def branch(self) -> Self:
        """One that goes on from here instead of this one, which stays as it is."""
        other = copy(self)
        other._tracker = self._tracker.branch()
        return other

    # --- rows and summaries in ---

    def know(self, known: AnyArray, tracker: Tracker) -> None:
        """From now on these features are known; `tracker` is one without rows."""
        self._cached_view = None
        self._add_earlier([self._current()])
        tracker.rank = self._tracker.rank
        self.known, self._tracker = known, tracker

    def update(self, rows: RowsLike, weights: Array | None = None) -> None:
        """Learn from rows, shape (n, d), finite where features are known."""
        self._cached_view = None
        self._tracker.update(rows if self.known.all() else np.where(self.known, rows, 0), weights)

    def decay(self, forget: float) -> None:
        """Scale everything seen so far by `forget`; its count and total by `forget**2`."""
        if forget != 1.0:
            self._cached_view = None
            self.filled = self.filled and self.filled.scaled(forget)
            self._tracker.decay(forget)
            self._earlier = tuple(part.scaled(forget) for part in self._earlier)

    def merge(self, *others: Summary) -> None:
        """Go on as if the rows behind other summaries had been seen too."""
        self._cached_view = None
        leaves = [leaf for other in others for leaf in other.leaves]
        alike = [leaf for leaf in leaves if np.array_equal(leaf.known, self.known)]
        if alike:
            self._tracker.merge(*(replace(leaf, observed=None) for leaf in alike))
        others_known = [leaf for leaf in leaves if not np.array_equal(leaf.known, self.known)]
        self._add_earlier(others_known, known_beside=self.known & self._tracker.has_rows)

    def _add_earlier(self, summaries: Sequence[Summary], known_beside: AnyArray | bool = False) -> None:
        parts = [part for part in (*self._earlier, *summaries) if part.count]
        if parts:
            self._earlier = tuple(merge_leaves(parts, None, known_beside))

    # --- summaries out ---

    def _current(self) -> Summary:
        state = self._tracker.state()
        if isinstance(state, Subspace) and state.components[:, ~self.known].any():
            return restricted(state, self.known)  # left over from a first basis that knew no rows
        return replace(state, observed=np.where(self.known, state.count, 0.0))

    def state(self) -> Summary:
        """Everything known."""
        current = self._current()
        parts = [part for part in (*self._earlier, current) if part.count]
        return merge(parts or [current])

    def _shown(self) -> SummaryView:
        if self._cached_view is None:
            self._cached_view = self._shown_of(self.state())
        return self._cached_view

    def _shown_of(self, summary: Summary) -> SummaryView:
        return SummaryView(summary, self.rule, self.oversample, self.dtype)

    def view(self) -> View:
        """What is shown of all rows so far."""
        return self._shown().view()

    def history(self) -> View:
        """What gaps are filled with: faster than `view`, whose directions can be merged."""
        return self._shown_of(self._shown().whole.without_parts()).view()
