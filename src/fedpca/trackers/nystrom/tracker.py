"""Nystrom: the fast kernel; two matrix products per row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, final

import numpy as np

from fedpca._typing import DeviceArray, RowsLike
from fedpca.backend import batch_slices, dense, to_host
from fedpca.summaries.linalg import orthonormal, orthonormality_error
from fedpca.summaries.merging import append_rows
from fedpca.summaries.rank import RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker
from fedpca.trackers.nystrom.drift import ANY_ROWS, Thresholds
from fedpca.trackers.nystrom.period import SketchPeriod
from fedpca.trackers.nystrom.solve import residual_directions
from fedpca.trackers.nystrom.tuning import tuning_for


@final
class Nystrom(SubspaceTracker):
    """Directions kept fixed as probes over a period of many rows, then renewed from what the period saw.

    For probes W (the directions carried and residuals of recent rows) a period accumulates
    Y = W C and T = W C W^T of the scatter C of everything so far, mean and history included: two
    products of width len(W) per row. At its end C is replaced by its Nystrom approximation
    Y^T T^-1 Y, which but for rounding never exceeds C, and the leading directions of that are carried on.

    Some rows go through the exact block update instead: panels with more energy outside the directions
    carried than the stream has had so far (its directions change), single rows that alone outweigh a
    direction wanted, rows of an ill-conditioned spectrum (sigma_r below about sqrt(eps) sigma_1), and a
    short stream whose directions hardly differ in energy. On a device, where that update would take long,
    the directions of many such rows are found by products as well.

    Args:
        seed: of the choice of recent rows as probes.
    """

    settings = frozenset({"backend", "seed"})
    takes_sparse = True

    def __init__(self, n_features: int, rule: RankRule, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self.tuning = tuning_for(self.backend)
        self._rng = np.random.default_rng(seed)
        self._basis = self._empty_basis()  # the directions carried, about the origin; on the backend
        self._period: SketchPeriod | None = None
        self._n_rows = 0.0  # seen, less those forgotten
        self._ill_conditioned = False
        self._flatness = 0.0

    # --- sizes ---

    @property
    def n_probes(self) -> int:
        """Probes in a period: with the one for the mean a multiple of 8, which suits the products."""
        wanted = self.n_exchanged
        if self._flatness > self.tuning.flat:
            wanted *= 2
        return min(-(-(wanted + 2) // 8) * 8 - 1, self.n_features)

    @property
    def n_carried(self) -> int:
        """Directions carried from period to period, at no cost: all probes but the free ones."""
        return max(self.n_exchanged, self.n_probes - self.tuning.free_probes)

    @property
    def buffer_capacity(self) -> int:
        tuning = self.tuning
        rows = min(tuning.buffer_rows, tuning.buffer_entries // self.n_features)
        return max(tuning.buffer_per_probe * self.n_probes, rows)

    @property
    def min_panel_rows(self) -> int:
        if self._basis.count and self.tuning.min_panel_rows is not None:
            return self.tuning.min_panel_rows
        return self.buffer_capacity

    @property
    def max_panel_rows(self) -> int:
        if not self._basis.count:
            return self.buffer_capacity
        most = min(self.tuning.max_panel_rows, self.tuning.max_panel_scores // (self.n_probes + 1))
        done = 0 if self._period is None else self._period.n_rows
        return min(most, max(self.min_panel_rows, self._period_rows() - done))

    def _period_rows(self) -> int:
        """Rows per period. Periods grow with the stream: what one adds to the directions shrinks."""
        tuning, n_probes = self.tuning, self.n_probes
        if self._flatness > tuning.flat:
            ratio = tuning.history_per_row_flat
        elif (
            self._n_rows < tuning.early_rows_per_feature * self.n_features
            or n_probes + tuning.extra_probes < 4 * self.rank
        ):
            ratio = tuning.history_per_row_early
        else:
            ratio = tuning.history_per_row
        most = tuning.max_period_per_probe * max(n_probes, 32)
        least = max(tuning.period_per_probe * n_probes, self.min_panel_rows)
        return int(max(least, min(self._n_rows / ratio, most)))

    # --- rows in ---

    @property
    def _absorbed_energy(self) -> float:
        return self._basis.total if self._period is None else self._period.energy

    def _absorb(self, panel: RowsLike, roots: DeviceArray | None) -> None:
        if self._period is None and self._needs_exact_update():
            self._absorb_novel(panel, roots)
        else:
            if self._period is None:
                n_missing = max(self.n_probes - self._basis.rank, 0)
                probes = self._sample_probes(panel, roots, n_missing, self._basis)
                self._period = self._open_period(probes, self._thresholds())
            novel = self._period.add(panel, roots)
            if len(novel):
                self._close_period()
                take = self.backend.take
                self._absorb_novel(take(panel, novel), None if roots is None else take(roots, novel))
            elif self._period.n_rows >= self._period_rows():
                self._close_period()
        self._n_rows += panel.shape[0]
        if self._period is None:
            self._follow_mean()

    def _needs_exact_update(self) -> bool:
        """At the start, on an ill-conditioned spectrum, early on a flat one."""
        tuning, basis, eps = self.tuning, self._basis, np.finfo(self.dtype).eps
        singular_values = basis.singular_values[: self.rank]
        if not len(singular_values):
            return True
        limit = tuning.ill_conditioned * np.sqrt(eps) * singular_values[0]
        if self._ill_conditioned:
            limit *= tuning.recovery
        lacking = len(singular_values) < self.rank and basis.discarded > 16 * eps * basis.total
        self._ill_conditioned = bool(lacking or singular_values[-1] < limit)
        short = self._n_rows < tuning.very_flat_rows * self.n_probes
        return self._ill_conditioned or (self._flatness > tuning.very_flat and short)

    def _absorb_novel(self, panel: RowsLike, roots: DeviceArray | None) -> None:
        """Learn from rows whose directions are not among the probes."""
        many = panel.shape[0] > self.tuning.restart_per_probe * self.n_probes
        if many and not self._ill_conditioned:
            self._restart(panel, roots)
        else:
            self._append(panel, roots)

    def _append(self, panel: RowsLike, roots: DeviceArray | None) -> None:
        """The exact block update, on the host, a few rows at a time; the first rows at once."""
        basis = _with_components(self._basis, to_host(self._basis.components))
        step = 2 * self.n_probes if basis.count else panel.shape[0]
        for part in batch_slices(panel.shape[0], step):
            rows, part_roots = to_host(dense(panel[part, :])), None if roots is None else to_host(roots[part])
            basis = append_rows(basis, rows, part_roots, self.n_carried)
        self._basis = self._on_backend(basis)
        self._adapt()

    def _restart(self, panel: DeviceArray, roots: DeviceArray | None) -> None:
        """Learn from many rows with new directions by products, more and more rows at a time."""
        first, start, size = not self._basis.count, 0, self.buffer_capacity
        while start < panel.shape[0]:
            part = slice(start, min(start + size, panel.shape[0]))
            self._refine_probes(panel[part, :], None if roots is None else roots[part])
            start, size = start + size, self.tuning.restart_growth * size
        if first and self._origin is None and self._is_far_from_origin():  # start again, at another origin
            step = self.backend.asarray(self._move_origin(self._basis.mean), self.dtype)
            self._basis = self._empty_basis()
            self._restart(panel - (step if roots is None else roots[:, None] * step), roots)
        elif first and self._needs_exact_update():
            self._basis = self._empty_basis()
            self._append(panel, roots)

    def _refine_probes(self, rows: DeviceArray, roots: DeviceArray | None) -> None:
        """Directions of rows by products with some of them; if need be again, with the directions found."""
        n_extra = max(self.tuning.extra_probes, self.n_probes // 4)
        probes = self._sample_probes(rows, roots, self.n_probes + n_extra, self._basis)
        passes = 2 if self._rows_remaining < 8 * rows.shape[0] or probes.shape[0] < 4 * self.rank else 1
        n_found, energy = 0, 0.0
        while True:
            period = self._open_period(probes, ANY_ROWS)
            period.add(rows, roots)
            found = period.close(self._basis, period.n_probes)
            self._flatness = self._flatness_of(found)
            n_before, n_found = n_found, min(found.rank, self.rank)
            energy_before, energy = energy, float(np.sum(found.singular_values[: self.rank] ** 2))
            passes -= 1
            is_lacking = n_before < n_found < self.rank
            has_gained = energy > (1 + self.tuning.min_gain) * energy_before
            if passes <= 0 and not is_lacking and not (self._flatness > self.tuning.flat and has_gained):
                break
            found = found.truncate(self.n_probes)
            others = self._sample_probes(rows, roots, n_extra, found)
            probes = self._outside_basis(self.backend.xp.concat([found.components, others]))
        self._basis = found.truncate(self.n_carried)
        self._adapt()

    # --- periods ---

    def _open_period(self, extra_probes: DeviceArray, thresholds: Thresholds) -> SketchPeriod:
        """A period whose probes are the directions carried and others, orthonormal to them, shape (p, d)."""
        return SketchPeriod(
            self._basis, extra_probes, self._products_eps(), thresholds, self.tuning.prefetches
        )

    def _thresholds(self) -> Thresholds:
        basis = self._basis
        slack = self.tuning.noise_slack + self.tuning.early_slack * self.n_probes / self._n_rows
        weakest = float(basis.singular_values[self.rank - 1]) ** 2 if self.rank <= basis.rank else 0.0
        return Thresholds(
            expected_residual=slack * basis.discarded / basis.count,
            drift=self.tuning.drift_tolerance * weakest,
            outlier=self.tuning.outlier_share * weakest,
        )

    def _products_eps(self) -> float:
        """Relative rounding error of products: less where the spectrum is too ill-conditioned for tf32."""
        exact = float(np.finfo(self.dtype).eps)
        fast = self.backend.matmul_eps(self.dtype)
        singular_values = self._basis.singular_values[: self.rank]
        if fast > exact and len(singular_values) == self.rank:
            limit = 2 * self.tuning.ill_conditioned * np.sqrt(fast) * singular_values[0]
            return fast if singular_values[-1] > limit else exact
        return exact

    def _sample_probes(
        self, panel: RowsLike, roots: DeviceArray | None, n_rows: int, known: Subspace
    ) -> DeviceArray:
        """Orthonormal directions of a few rows outside those known."""
        if not n_rows:
            return known.components[:0, :]
        no_mean = self.center and not known.count  # then that of the rows chosen, of which one is redundant
        chosen = self._rng.integers(0, panel.shape[0], n_rows + no_mean)
        rows = dense(self.backend.take(panel, chosen))
        mean = self.backend.xp.mean(rows, axis=0) if no_mean else self.backend.asarray(known.mean, self.dtype)
        rows = rows - (mean if roots is None else self.backend.take(roots, chosen)[:, None] * mean)
        return residual_directions(rows[:n_rows, :], known.components)

    def _outside_basis(self, directions: DeviceArray) -> DeviceArray:
        """Directions that orthonormal ones have besides those carried."""
        carried = self._basis.components
        return residual_directions(directions, carried) if carried.shape[0] else directions

    def _close_period(self) -> None:
        assert self._period is not None
        self._basis = self._period.close(self._basis, self.n_carried)
        self._period = None
        self._adapt()

    def _adapt(self) -> None:
        """After new directions: how many are wanted, and how flat their spectrum is."""
        basis = self._basis
        self.rank = fixed_point(self.rule, self.rank, self.n_features, basis.singular_values, basis.total)
        self._flatness = self._flatness_of(basis)

    def _flatness_of(self, found: Subspace) -> float:
        """Energy outside the directions to exchange, in units of as many like the weakest wanted."""
        squares = found.singular_values[: self.n_exchanged] ** 2
        if not len(squares):
            return 0.0
        return float((found.total - squares.sum()) / (len(squares) * squares[: self.rank][-1]))

    # --- the origin ---

    def _follow_mean(self) -> None:
        """Move the origin to the mean where that has moved too far away."""
        if self._is_far_from_origin():
            self._basis = self._basis.translated(-self._move_origin(self._basis.mean))

    def _is_far_from_origin(self) -> bool:
        basis = self._basis
        return basis.count > 0 and self.mean_dominates(basis.mean, basis.total / basis.count)

    # --- summaries, forgetting, merging ---

    def state(self) -> Subspace:
        if self._n_buffered and self.tuning.absorbs_buffer:
            copy = deepcopy(self)
            copy._flush()
            return copy.state()
        return self._with_buffer(self._absorbed())

    def _absorbed(self) -> Subspace:
        basis = self._basis if self._period is None else self._period.close(self._basis, self.n_carried)
        components = to_host(basis.components)
        if orthonormality_error(components) > 64 * np.finfo(self.dtype).eps:
            components = orthonormal(components)
        basis = _with_components(basis, components)
        return basis if self._origin is None else basis.translated(self._origin)

    def _scale(self, factor: float) -> None:
        self._n_rows *= factor**2
        self._basis = self._basis.scaled(factor)
        if self._period is not None:
            self._period.scale(factor)

    def _merge(self, others: Sequence[Summary]) -> None:
        self._basis = self._on_backend(self._merged(self._absorbed(), others, self.n_carried))
        self._period, self._origin = None, None
        self._n_rows = max(self._n_rows, self._basis.count)
        self._follow_mean()

    def _empty_basis(self) -> Subspace:
        return Subspace.unchecked(
            components=self.backend.zeros((0, self.n_features), self.dtype),
            singular_values=np.zeros(0),
            mean=np.zeros(self.n_features),
            count=0.0,
            total=0.0,
            centered=self.center,
        )

    def _on_backend(self, basis: Subspace) -> Subspace:
        return _with_components(basis, self.backend.asarray(basis.components, self.dtype))


def _with_components(basis: Subspace, components: DeviceArray) -> Subspace:
    """The same subspace with its components elsewhere."""
    return Subspace.unchecked(
        components=components,
        singular_values=basis.singular_values,
        mean=basis.mean,
        count=basis.count,
        total=basis.total,
        centered=basis.centered,
    )
