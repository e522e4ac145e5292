"""Divided: a stream whose rows are divided by numbers that are known before it begins."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, final

from scipy import sparse

from fedpca._typing import Array, DType, RowsLike
from fedpca.backend import Backend, backend_of, ops
from fedpca.summaries import validation
from fedpca.summaries.scaling import divided
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View
from fedpca.trackers.base import Tracker
from fedpca.trackers.late_features import LateFeatures


@final
@dataclass(frozen=True)
class Divided:
    """A tracker of divided rows, whose summaries say what these were divided by.

    Attributes:
        tracker: of the divided rows.
        scale: what each feature is divided by, shape (d,).
    """

    tracker: Tracker | LateFeatures
    scale: Array

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
        """The same: rows do not change the scale."""
        return self

    def in_units(self, rows: RowsLike, weights: Array | None) -> RowsLike:
        """Rows as the tracker takes them, which must fit its dtype; on a device it checks them itself."""
        rows = divided(rows, self.scale)
        if not backend_of(rows).on_device:
            stored = rows.data if sparse.issparse(rows) else rows
            validation.has_nan(stored, self.dtype, ops.max_weight(weights))
        return rows

    def summary_in_units(self, summary: Summary) -> Summary:
        """A summary of rows with this scale as the tracker takes it."""
        return summary.with_about(scale=None)

    def with_tracker(self, tracker: Tracker | LateFeatures) -> Self:
        return replace(self, tracker=tracker)

    # --- summaries out ---

    def state(self) -> Summary:
        """Everything known."""
        return self.tracker.state().with_about(scale=self.scale)

    @cached_property
    def _view(self) -> View:
        view = self.tracker.view()
        return view._replace(subspace=view.subspace.with_about(scale=self.scale))

    def view(self) -> View:
        """What is shown of all divided rows."""
        return self._view
