"""Exact: the whole d x d scatter; for few features both the fastest tracker and free of any error."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpca._typing import Array
from fedpca.backend import backend_of, ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import principal_directions, rounding_floor
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.moments import Moments, sum_moments
from fedpca.summaries.rank import fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import Tracker


class Exact(Tracker):
    """Count, sum and scatter of all rows, one symmetric product a panel; eigenvectors only when asked for.

    Memory is d² numbers. The result is that of the pooled rows, whatever their order.

    >>> from fedpca.summaries.rank import FixedRank
    >>> tracker = Exact(3, FixedRank(1), center=False)
    >>> tracker.update(np.diag([1.0, 2.0, 5.0]))
    >>> tracker.summary().singular_values
    array([5., 2., 1.])
    """

    takes_devices = True

    @property
    def largest_panel(self) -> int:
        return 2**20 if self.backend.on_device else 2048

    @property
    def buffer_rows(self) -> int:
        return 1024 if self.backend.on_device else 32

    @property
    def smallest_panel(self) -> int:
        return self.buffer_rows

    def __init__(self, n_features: int, rule: Any, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._count = 0.0
        self._sum: Array = np.zeros(n_features)  # of rows less the anchor
        self._scatter: Array = np.zeros((n_features, n_features))  # about the anchor
        self._answer_rank = self.rank  # these two belong to the summary
        self._answer_variances: Array | None = None
        self._discarded = 0.0  # energy that merged subspaces had already lost

    def _absorb(self, panel: Any, roots: Any) -> None:
        added, added_sum, scatter = _sums(panel, roots)
        if not np.trace(scatter) < ops.max_energy(self.dtype):
            raise NonFiniteError
        if added and not self._count:
            mean = added_sum / added
            if self.mean_dominates(mean, float(np.trace(scatter)) / added - float(mean @ mean)):
                step = self.backend.asarray(self._move_anchor(mean), self.dtype)
                panel = panel - (step if roots is None else roots[:, None] * step)
                added, added_sum, scatter = _sums(panel, roots)
        self._count += added
        self._sum += added_sum
        self._scatter += scatter
        self._stay_near_origin()

    def _stay_near_origin(self) -> None:
        if not self._count:
            return
        mean = self._sum / self._count
        if self.mean_dominates(mean, float(np.trace(self._scatter)) / self._count - float(mean @ mean)):
            step = self._move_anchor(mean)
            cross = np.outer(self._sum, step)
            self._scatter += self._count * np.outer(step, step) - cross - cross.T
            self._sum -= self._count * step

    def _moments(self) -> tuple[float, Array, Array]:
        """Count, mean and centered scatter of everything so far, waiting rows included."""
        fade = self._fade**2
        count, total, scatter = fade * self._count, fade * self._sum, fade * self._scatter
        if self._n_waiting:
            panel = self._prepared(self._waiting[: self._n_waiting, :], self._waiting_roots)
            added, added_sum, added_scatter = _sums(panel, self._waiting_roots)
            count += added
            total += added_sum
            scatter += added_scatter
            del added_scatter  # d² numbers are all the memory there is
        mean: Array = np.zeros(self.n_features)
        if self.center and count:
            mean = total / count
            scatter -= total[:, None] @ mean[None, :]  # np.outer would take three times the memory
            mean = mean if self._anchor is None else mean + self._anchor
        return count, mean, scatter

    def state(self) -> Summary:
        # Moments cannot say that energy was lost before it came here; a subspace of all directions can.
        return self._leading(self.n_features) if self._discarded else Moments(*self._moments(), self.center)

    def _leading(self, rank: int | None = None) -> Subspace:
        """The first directions of all rows: `rank` of them, or as many as the rule carries."""
        count, mean, scatter = self._moments()
        kept = max(float(np.trace(scatter)), 0.0)
        total = kept + self._fade**2 * self._discarded
        # Products round feature by feature, relative to the rows' size about the anchor.
        offset = mean if self._anchor is None else mean - self._anchor
        sizes = np.diag(scatter) + count * offset**2
        components, singular_values = principal_directions(scatter)
        self._answer_variances = np.diag(scatter) / count if count else None
        del scatter
        noise = 32 * np.finfo(self.dtype).eps * (components**2 @ sizes)
        real = singular_values**2 > np.maximum(noise, rounding_floor(total, count, mean, self.dtype) ** 2)
        components, singular_values = components[real], singular_values[real]
        if rank is None:
            self._answer_rank = fixed_point(self.rule, self.rank, self.n_features, singular_values, total)
            rank = self._oversampled(self._answer_rank)
        components, singular_values = components[:rank], singular_values[:rank]
        total = max(total, float(singular_values @ singular_values))
        components = with_fixed_signs(components).astype(self.dtype, copy=False)
        return Subspace.unchecked(components, singular_values, mean, count, total, self.center)

    def feature_variances(self) -> Array | None:
        self.summary()
        return self._answer_variances

    def shown(self) -> int:
        summary = self.summary()
        return self.rule.shown(self._answer_rank, summary.singular_values, summary.total)

    def _scale(self, factor: float) -> None:
        self._count *= factor**2
        self._sum *= factor**2
        self._scatter *= factor**2
        self._discarded *= factor**2

    def _merge(self, others: Sequence[Summary]) -> None:
        parts = [(Moments(*self._moments(), self.center), 1.0)]
        for other in others:
            if isinstance(other, Subspace):
                scaled = other.singular_values[:, None] * other.components
                self._discarded += max(other.total - ops.energy(scaled), 0.0)
                other = Moments(other.count, other.mean, scaled.T @ scaled, other.centered)
            parts.append((other, 1.0))
        merged = sum_moments(parts)
        self._anchor, offset = None, merged.mean
        if merged.count and self.mean_dominates(offset, merged.total / merged.count):
            offset = offset - self._move_anchor(offset)
        self._count, self._sum = merged.count, merged.count * offset
        self._scatter = merged.scatter + np.outer(self._sum, offset)


def _sums(panel: Any, roots: Any) -> tuple[float, Array, Array]:
    """Count, sum and scatter about the origin of rows already multiplied by their roots."""
    backend = backend_of(panel)
    weights = roots
    if roots is None:
        weights = backend.zeros((panel.shape[0],), backend.numpy_dtype(panel)) + 1
    (sums,) = backend.to_numpy(weights @ panel)
    return float(weights @ weights), sums, to_host(panel.T @ panel)
