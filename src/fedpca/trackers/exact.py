"""Exact: the whole d x d scatter; for few features both the fastest tracker and free of any error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from fedpca._typing import Array, DeviceArray
from fedpca.backend import backend_of, ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import principal_directions, rounding_floor
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.merging import sum_moments
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import Tracker


class _PanelRows(NamedTuple):
    smallest: int
    largest: int


_HOST_PANELS = _PanelRows(32, 2048)
_ONE_THREAD_FEATURES = 1024
_DEVICE_PANELS = _PanelRows(1024, 2**20)  # where a launch costs as much as thousands of rows


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """All directions of all rows, and what else is known of them."""

    components: Array
    singular_values: Array
    mean: Array
    count: float
    total: float
    variances: Array | None


@final
class Exact(Tracker):
    """Count, sum and scatter of all rows, one symmetric product per panel; eigenvectors only on demand.

    Memory is d² numbers. The result is that of the pooled rows, whatever their order.

    >>> from fedpca.summaries.rank import FixedRank
    >>> tracker = Exact(3, FixedRank(1), center=False)
    >>> tracker.update(np.diag([1.0, 2.0, 5.0]))
    >>> tracker.summary().singular_values
    array([5., 2., 1.])
    """

    settings = frozenset({"backend"})

    def __init__(self, n_features: int, rule: RankRule, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._panels = _DEVICE_PANELS if self.backend.on_device else _HOST_PANELS
        self._count = 0.0
        self._sum: Array = np.zeros(n_features)  # of rows less the origin
        self._scatter: Array = np.zeros((n_features, n_features))  # about the origin
        self._discarded = 0.0  # energy that merged subspaces had already lost
        self._cached_rank = self.rank  # these two belong to the cached summary
        self._cached_variances: Array | None = None

    @property
    def gains_from_threads(self) -> bool:
        return self.n_features > _ONE_THREAD_FEATURES

    @property
    def min_panel_rows(self) -> int:
        return self._panels.smallest

    @property
    def max_panel_rows(self) -> int:
        return self._panels.largest

    @property
    def buffer_capacity(self) -> int:
        return self._panels.smallest

    @property
    def _absorbed_energy(self) -> float:
        return float(np.trace(self._scatter))

    def _absorb(self, panel: DeviceArray, roots: DeviceArray | None) -> None:
        count, row_sum, scatter = _sums(panel, roots)
        if not np.trace(scatter) < ops.max_energy(self.dtype):
            raise NonFiniteError
        if count and not self._count:
            mean = row_sum / count
            if self.mean_dominates(mean, float(np.trace(scatter)) / count - float(mean @ mean)):
                step = self.backend.asarray(self._move_origin(mean), self.dtype)
                panel = panel - (step if roots is None else roots[:, None] * step)
                count, row_sum, scatter = _sums(panel, roots)
        self._count += count
        self._sum += row_sum
        self._scatter += scatter
        self._follow_mean()

    def _follow_mean(self) -> None:
        """Move the origin to the mean where that has moved too far away."""
        if not self._count:
            return
        mean = self._sum / self._count
        if self.mean_dominates(mean, float(np.trace(self._scatter)) / self._count - float(mean @ mean)):
            step = self._move_origin(mean)
            cross = np.outer(self._sum, step)
            self._scatter += self._count * np.outer(step, step) - cross - cross.T
            self._sum -= self._count * step

    def _moments(self) -> tuple[float, Array, Array]:
        """Count, mean and centered scatter of everything so far, buffered rows included."""
        weight = self._pending_decay**2
        count, row_sum, scatter = weight * self._count, weight * self._sum, weight * self._scatter
        if self._n_buffered:
            panel = self._prepared(self._buffer[: self._n_buffered, :], self._buffer_roots)
            added, added_sum, added_scatter = _sums(panel, self._buffer_roots)
            count += added
            row_sum += added_sum
            scatter += added_scatter
            del added_scatter  # d² numbers are all the memory there is
        mean: Array = np.zeros(self.n_features)
        if self.center and count:
            mean = row_sum / count
            scatter -= row_sum[:, None] @ mean[None, :]  # np.outer would take three times the memory
            mean = mean if self._origin is None else mean + self._origin
        return count, mean, scatter

    def _spectrum(self) -> _Spectrum:
        count, mean, scatter = self._moments()
        total = max(float(np.trace(scatter)), 0.0) + self._pending_decay**2 * self._discarded
        # Products round feature by feature, relative to the rows' size about the origin.
        offset = mean if self._origin is None else mean - self._origin
        sizes = np.diag(scatter) + count * offset**2
        components, singular_values = principal_directions(scatter)
        variances = np.diag(scatter) / count if count else None
        del scatter
        noise = 32 * np.finfo(self.dtype).eps * (components**2 @ sizes)
        real = singular_values**2 > np.maximum(noise, rounding_floor(total, count, mean, self.dtype) ** 2)
        return _Spectrum(components[real], singular_values[real], mean, count, total, variances)

    def _truncated(self, spectrum: _Spectrum, rank: int) -> Subspace:
        return Subspace.unchecked(
            components=with_fixed_signs(spectrum.components[:rank]).astype(self.dtype, copy=False),
            singular_values=spectrum.singular_values[:rank],
            mean=spectrum.mean,
            count=spectrum.count,
            total=spectrum.total,
            centered=self.center,
        )

    def state(self) -> Summary:
        if self._discarded:  # moments cannot have lost energy; a subspace of all directions can
            return self._truncated(self._spectrum(), self.n_features)
        return Moments(*self._moments(), self.center)

    def _leading(self) -> Subspace:
        spectrum = self._spectrum()
        self._cached_variances = spectrum.variances
        self._cached_rank = fixed_point(
            self.rule, self.rank, self.n_features, spectrum.singular_values, spectrum.total
        )
        return self._truncated(spectrum, self._exchanged_for(self._cached_rank))

    def n_components(self) -> int:
        summary = self.summary()
        return self.rule.n_components(self._cached_rank, summary.singular_values, summary.total)

    def feature_variances(self) -> Array | None:
        self.summary()
        return self._cached_variances

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
        self._origin, offset = None, merged.mean
        if merged.count and self.mean_dominates(offset, merged.total / merged.count):
            offset = offset - self._move_origin(offset)
        self._count, self._sum = merged.count, merged.count * offset
        self._scatter = merged.scatter + np.outer(self._sum, offset)


def _sums(panel: DeviceArray, roots: DeviceArray | None) -> tuple[float, Array, Array]:
    """Count, sum and scatter about the origin of rows already multiplied by their roots."""
    backend = backend_of(panel)
    if roots is None:
        roots = backend.zeros((panel.shape[0],), backend.numpy_dtype(panel)) + 1
    (sums,) = backend.to_numpy(roots @ panel)
    return float(roots @ roots), sums, to_host(panel.T @ panel)
