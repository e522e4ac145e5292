"""Standardized: an exact stream whose rows are divided by the scale of all of them, in one pass."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, final

import numpy as np

from fedpca._typing import Array, DType, RowsLike
from fedpca.backend import Backend
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import ScaleRule, Scaling, divided
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView
from fedpca.trackers.base import Tracker
from fedpca.trackers.late_features import LateFeatures

# Of units, up to which products tell features apart well enough, and dividing them would only take time.
_MAX_RATIO = {"float32": 2.0, "float64": 2.0**10}


@final
@dataclass(frozen=True)
class Standardized:
    """A tracker that knows the moments of all rows, and the scaling of their observed entries.

    The scale is known when all rows have come, and moments can be divided by it then. Until then rows are
    divided by powers of two near their deviations, which rounds nothing, where these differ so much that
    products of rows would not tell all features apart.

    Attributes:
        tracker: of the rows in `units`, missing entries filled in.
        rule: how features are scaled.
        units: powers of two, shape (d,), or all 1.
        scaling: of the rows as they are.
    """

    tracker: Tracker | LateFeatures
    rule: ScaleRule
    units: Array
    scaling: Scaling

    is_fitted = True

    @classmethod
    def start(cls, tracker: Tracker, rule: ScaleRule, first: Scaling) -> Self:
        """A stream without rows, in units that suit the first ones."""
        units = _units(first)
        if units.max() <= _MAX_RATIO[str(tracker.dtype)] * units.min():
            units = np.ones_like(units)
        return cls(tracker, rule, units, Scaling.empty(first.n_features))

    @property
    def dtype(self) -> DType:
        return self.tracker.dtype

    @property
    def backend(self) -> Backend:
        return self.tracker.backend

    # --- rows and summaries in ---

    def in_units(self, rows: RowsLike) -> RowsLike:
        """Rows as the tracker takes them."""
        return rows if (self.units == 1).all() else divided(rows, self.units)

    def summary_in_units(self, summary: Summary) -> Summary:
        """Moments of rows as the tracker takes them; of no rows, any summary is the same."""
        return summary.divided(self.units) if isinstance(summary, Moments) else summary

    def with_more(self, scaling: Scaling, forget: float = 1.0) -> Self:
        """The same with the scaling of more rows, which the tracker is to learn from as well."""
        merged = Scaling.merge([self.scaling.weighted(forget**2), scaling])
        merged.scale(self.rule)  # raises if the rule does not fit the features
        return replace(self, scaling=merged)

    def with_tracker(self, tracker: Tracker | LateFeatures) -> Self:
        return replace(self, tracker=tracker)

    # --- summaries out ---

    @cached_property
    def _state(self) -> Moments:
        state = self.tracker.state()
        assert isinstance(state, Moments)
        return state.divided(1 / self.units).with_about(scale=self.rule, scaling=self.scaling)

    @cached_property
    def _view(self) -> SummaryView:
        return SummaryView(self._state, self.tracker.rule, self.tracker.oversample, self.dtype)

    def state(self) -> Moments:
        """Everything known: the moments of the rows as they are."""
        return self._state

    def summary(self) -> Subspace:
        """The leading directions of all rows divided by their scale: those to exchange."""
        return self._view.summary()

    def n_components(self) -> int:
        """How many directions of the summary are wanted."""
        return self._view.n_components()

    def feature_variances(self) -> Array | None:
        """Variance of each feature of the divided rows, shape (d,)."""
        return self._view.feature_variances()

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return self.tracker.mean_dominates(mean, spread)


def _units(scaling: Scaling) -> Array:
    """Powers of two near the deviations; of a feature that does not vary, near its size.

    >>> _units(Scaling([9.0, 9.0, 9.0], [5.0, 700.0, 0.0], [9.0, 0.0, 0.0]))
    array([  4., 512.,   1.])
    """
    size = np.where(scaling.constant, np.abs(scaling.mean), np.sqrt(scaling.variance))
    return np.exp2(np.round(np.log2(np.where(size > 0, size, 1.0))))
