"""Standardized: an exact stream whose rows are divided by the scale of all of them, in one pass."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, final

import numpy as np

from fedpca._typing import Array, DType, RowsLike
from fedpca.backend import Backend
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import ScaleRule, Scaling, divided
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView, View
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

    def with_scaling_of(
        self, rows: RowsLike, weights: Array | None, names: tuple[str, ...] | None, forget: float
    ) -> Self:
        """The same with the scaling of more rows, which the tracker is to learn from as well."""
        return self.with_more(Scaling.of_checked(rows, weights, names, about=self.scaling.mean), forget)

    def in_units(self, rows: RowsLike, weights: Array | None) -> RowsLike:
        """Rows as the tracker takes them."""
        return rows if (self.units == 1).all() else divided(rows, self.units)

    def summary_in_units(self, summary: Summary) -> Summary:
        """Moments of rows as the tracker takes them; of no rows, any summary is the same."""
        return summary.divided(self.units) if isinstance(summary, Moments) else summary

    def with_more(self, scaling: Scaling, forget: float = 1.0) -> Self:
        """The same with the scaling of others merged."""
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
    def _view(self) -> View:
        return SummaryView(self._state, self.tracker.rule, self.tracker.oversample, self.dtype).view()

    def state(self) -> Moments:
        """Everything known: the moments of the rows as they are."""
        return self._state

    def view(self) -> View:
        """What is shown of all rows divided by their scale."""
        return self._view


def _units(scaling: Scaling) -> Array:
    """Powers of two near the deviations; of a feature that does not vary, near its size.

    >>> _units(Scaling([9.0, 9.0, 9.0], [5.0, 700.0, 0.0], [9.0, 0.0, 0.0]))
    array([  4., 512.,   1.])
    """
    size = np.where(scaling.constant, np.abs(scaling.mean), np.sqrt(scaling.variance))
    return np.exp2(np.round(np.log2(np.where(size > 0, size, 1.0))))
