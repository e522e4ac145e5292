"""Nystrom: the fast kernel; two matrix products per row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from copy import copy
from typing import Any, Self, final

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca.backend import batch_slices, dense
from fedpca.backend.ops import row_energies
from fedpca.summaries.algebra import rounding_floor
from fedpca.summaries.linalg import orthonormal, orthonormality_error
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.rank import EnergyBand, FixedRank, RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker
from fedpca.trackers.nystrom import solve
from fedpca.trackers.nystrom.coverage import Coverage
from fedpca.trackers.nystrom.drift import Residuals, Thresholds
from fedpca.trackers.nystrom.first_rows import FirstRows
from fedpca.trackers.nystrom.news import outside, standing_out
from fedpca.trackers.nystrom.period import SketchPeriod
from fedpca.trackers.nystrom.start import FirstParts, Part, mean_and_spread, mixed
from fedpca.trackers.nystrom.tuning import TUNING


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
    short stream whose directions hardly differ in energy.

    Args:
        seed: of the choice of recent rows as probes.
    """

    settings = frozenset({"seed"})
    checks_rows = True
    takes_sparse = True

    def __init__(self, n_features: int, rule: RankRule, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self.tuning = TUNING
        self._seed, self._n_choices = seed, 0
        self._basis = self._empty_basis()  # the directions carried, about the origin
        self._period: SketchPeriod | None = None
        self._n_rows = 0.0  # seen, less those forgotten
        self._ill_conditioned = False
        self._flatness = 0.0
        self._usual: Residuals | None = None  # of earlier rows; None: to be taken from what was discarded
        self._coverage: Coverage | None = None  # on the host, until summaries are merged
        self._cached_lack: tuple[Subspace, Array | None] | None = None  # of the directions of a summary
        self._forgets = False
        self._n_young = 0  # directions carried besides, found in news
        self._wary_rows = self.tuning.max_panel_rows  # per panel, fewer after news
        self._first_rows: FirstRows | None = None  # kept, until they are too many
        if self.tuning.kept_bytes and isinstance(rule, FixedRank):  # other rules adapt to rows as they come
            kept_bytes = max(
                self.tuning.kept_bytes, self.tuning.buffer_rows * n_features * self.dtype.itemsize
            )
            self._first_rows = FirstRows(n_features, self.dtype, kept_bytes, center=self.center)

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
        """Directions carried from period to period: all probes but the free ones, and young directions."""
        return max(
            self.n_exchanged, min(self.n_probes - self.tuning.free_probes + self._n_young, self.n_features)
        )

    @property
    def buffer_capacity(self) -> int:
        tuning = self.tuning
        return max(tuning.buffer_per_probe * self.n_probes, tuning.buffer_rows)

    @property
    def min_panel_rows(self) -> int:
        return self.tuning.min_panel_rows if self._basis.count else self.buffer_capacity

    @property
    def max_panel_rows(self) -> int:
        if not self._basis.count:
            return self.buffer_capacity
        done = 0 if self._period is None else self._period.n_rows
        most = self.tuning.max_panel_rows if self._is_steady else self.tuning.max_wary_rows
        return min(most, max(self.min_panel_rows, self._period_rows() - done))

    @property
    def _is_steady(self) -> bool:
        """Whether all rows count alike for a rank that is fixed: then panels and periods may be long."""
        return isinstance(self.rule, FixedRank) and not self._forgets

    def _period_rows(self) -> int:
        """Rows per period. Periods grow with the stream: what one adds to the directions shrinks."""
        tuning, n_probes = self.tuning, self.n_probes
        is_flat = self._flatness > tuning.flat
        ratio = tuning.history_per_row_flat if is_flat else tuning.history_per_row
        per_probe = tuning.max_period_per_probe if self._is_steady else tuning.max_period_forgetting
        most = per_probe * max(n_probes, tuning.min_probes_of_period)
        least = max(tuning.period_per_probe * n_probes, self.min_panel_rows)
        if isinstance(self.rule, EnergyBand):
            most = min(most, tuning.max_period_adaptive)
        return int(max(least, min(self._n_rows / ratio, most)))

    def branch(self) -> Self:
        other = super().branch()
        other._period = copy(self._period)  # which replaces all that it adds up
        return other

    def _next_rng(self) -> np.random.Generator:
        """For one choice of rows: a tracker that is copied before every batch has no generator of its own."""
        self._n_choices += 1
        return np.random.default_rng((self._seed, self._n_choices))

    # --- rows in ---

    @property
    def _absorbed_energy(self) -> float:
        return self._basis.total if self._period is None else self._period.energy

    def _take_first(self, rows: RowsLike, roots: Array | None) -> int:
        """Keep the first rows of a stream as long as there is room, then learn from all of them at once."""
        first, n_rows = self._first_rows, rows.shape[0]
        if first is None:
            return 0
        n_taken = min(first.room, n_rows)
        self._require_finite(rows[:n_taken, :])
        some = rows[:n_taken, :], None if roots is None else roots[:n_taken]
        if n_rows <= first.room:
            self._first_rows = first.with_rows(*some)
            return n_rows
        is_short = first.max_rows <= self.tuning.direct_rows
        rest: Part | None = some
        if is_short or not n_taken or self._must_copy(rows, roots):
            first, rest = first.with_rows(*some), None
        self._first_rows = None
        with self._blas_context():
            self._apply_decay()
            if is_short:
                self._begin_with(first.subspace(self.rank, self.n_carried))
            else:
                self._begin(first, rest)
        return n_taken

    def _begin(self, first: FirstRows, rest: Part | None) -> None:
        """Learn from the first rows, all at hand: from a sample of them, then by passes over all."""
        tuning = self.tuning
        parts = FirstParts([*first.parts(), *([rest] if rest else [])], self._prepared, tuning.max_panel_rows)
        n_sampled = max(tuning.sample_rows, tuning.sample_per_probe * self.n_probes)
        rows, roots = parts.sample(n_sampled, self._next_rng())
        empty = self._begin_with_sample(rows, roots)
        fresh = probes = self._basis.components[:0]
        for n_passes in range(tuning.max_passes):
            found = self._basis.truncate(self.n_probes)
            n_missing = max(self.n_probes - found.rank, 0)
            if n_missing:
                more = self._sample_probes(self._prepared(rows, roots), roots, n_missing, found)
                fresh = np.concatenate([fresh, more])
            if n_passes > 1:  # two were not enough: what the last pass made of its probes, and these
                fresh = np.concatenate([fresh, probes[: self.n_probes]])
            probes = np.concatenate([found.components, solve.residual_directions(fresh, found.components)])
            last = parts.multiply(probes, empty)
            self._basis, self._usual, self._n_rows = last.found, last.usual, last.found.count
            self._adapt()
            limits = self._thresholds()
            fresh = parts.overlooked(last, limits.drift, limits.outlier, tuning.stands_out, self.n_probes)
            if not (len(fresh) or last.gain(self.rank) > tuning.min_gain or len(probes) < self.n_probes):
                break
        self._begin_with(self._basis.truncate(self.n_carried))
        if self._is_ill_conditioned():
            whole = first.with_rows(*rest) if rest else first
            self._origin, self._usual = None, None
            self._begin_with(whole.subspace(self.rank, self.n_carried))

    def _begin_with_sample(self, rows: Array, roots: Array | None) -> Subspace:
        """Carry directions of a few of the first rows; returns the history before all of them."""
        tuning = self.tuning
        step = max(len(rows) // max(tuning.buffer_rows, 2 * self.n_probes), 1)
        mean, spread = mean_and_spread(rows[::step], None if roots is None else roots[::step])
        if self._mean_dominates(mean, spread):
            mean = mean - self._move_origin(mean)
        nothing = self._empty_basis()
        empty = nothing.translated(mean) if self.center else nothing
        few = mixed(self._prepared(rows, roots), roots, empty.mean, step, self._next_rng())
        self._basis = append_rows(nothing, few, None, self.n_probes)
        self._adapt()
        sample = FirstParts([(rows, roots)], self._prepared, tuning.max_panel_rows)
        self._basis = sample.multiply(self._basis.components, empty).found
        self._adapt()
        return empty

    def _begin_with(self, basis: Subspace) -> None:
        """Go on from the directions of the first rows."""
        self._basis, self._n_rows = basis, basis.count
        self._coverage = Coverage.of_all(basis)
        self._adapt()
        self._follow_mean()

    def _absorb(self, panel: RowsLike, roots: Array | None) -> None:
        start, n_rows = 0, panel.shape[0]
        while start < n_rows:
            part = slice(start, min(start + self._wary_rows, n_rows))
            start += self._absorb_part(panel[part, :], None if roots is None else roots[part])
        self._n_rows += n_rows
        if self._period is None:
            self._follow_mean()

    def _absorb_part(self, rows: RowsLike, roots: Array | None) -> int:
        """Learn from the first of some rows; returns how many."""
        n_rows = rows.shape[0]
        if self._period is None:
            if self._needs_exact_update():
                self._append(rows, roots)
                self._usual = None
                return n_rows
            if self._has_few_outside():
                return self._renew(rows, roots, min(self.tuning.look_rows, n_rows), replace=True)
            n_missing = max(self.n_probes - self._basis.rank, 0)
            probes = self._sample_probes(rows, roots, n_missing, self._basis)
            n_krylov = self.rank if self._flatness > self.tuning.flat else 0
            if n_krylov:  # found in the first panel, whose scores are kept
                first = slice(0, self.tuning.max_wary_rows)
                rows, roots = rows[first, :], None if roots is None else roots[first]
            self._period = self._open_period(probes, self._thresholds(), n_krylov)
        added = self._period.add(rows, roots)
        if len(added.left):
            self._close_period()
            self._append(rows[added.left], None if roots is None else roots[added.left])
        if added.is_cut:
            self._wary_rows = self.tuning.wary_rows
            return added.n_tested
        if not added.n_news:
            self._wary_rows = min(2 * self._wary_rows, self.tuning.max_panel_rows)
            if self._period is not None and self._period.n_rows >= self._period_rows():
                self._close_period(settled=True)
            return added.n_tested
        self._wary_rows = self.tuning.wary_rows
        if self._period is not None:
            self._close_period()
        if self._needs_exact_update():
            return added.n_tested
        rest = slice(added.n_tested, None)
        return added.n_tested + self._renew(
            rows[rest, :], None if roots is None else roots[rest], added.n_news
        )

    # --- news ---

    def _has_few_outside(self) -> bool:
        """Whether a few directions make up what rows have outside those carried, and it matters."""
        usual, basis = self._usual, self._basis
        if usual is None or usual.variance is None or self.rank > basis.rank:
            return False
        least = self.tuning.matters * basis.singular_values[self.rank - 1] ** 2
        matters = usual.mean * basis.count > least
        return bool(matters and usual.variance > self.tuning.uneven * usual.mean**2)

    def _renew(self, rows: RowsLike, roots: Array | None, n_news: int, *, replace: bool = False) -> int:
        """Open a period with news, some of whose directions are its probes; returns how many rows it took.

        Args:
            rows: the news first.
            n_news: how many they are.
            replace: whether residuals like theirs are usual from now on; else only if larger.
        """
        tuning, basis = self.tuning, self._basis
        self._require_finite(rows[: tuning.look_rows, :])
        if row_energies(dense(rows[:n_news, :])).sum() > self._thresholds().energy:
            self._append(rows[:n_news, :], None if roots is None else roots[:n_news])
            return n_news
        look = slice(0, min(max(n_news, tuning.look_rows), rows.shape[0]))
        own = None if roots is None else roots[look]
        residual = outside(dense(rows[look, :]), own, basis)
        fresh = standing_out(residual, tuning.stands_out, min(tuning.max_fresh, self.n_features - basis.rank))
        fresh = solve.residual_directions(fresh, basis.components)
        n_left = len(residual) - len(fresh)
        if n_left > 0 and self._usual is not None:
            residual = residual - (residual @ fresh.T) @ fresh
            energies = row_energies(residual) * (len(residual) / n_left)
            if replace or energies.mean() > self._usual.mean:
                self._usual = Residuals(float(energies.mean()), float(energies.var()))
        self._n_young = min(self._n_young + len(fresh), self.n_probes)
        self._period = self._open_period(fresh, self._thresholds())
        self._period.force(rows[:n_news, :], None if roots is None else roots[:n_news])
        return n_news

    def _needs_exact_update(self) -> bool:
        """At the start, on an ill-conditioned spectrum, early on a flat one."""
        short = self._n_rows < self.tuning.very_flat_rows * self.n_probes
        return self._is_ill_conditioned() or (self._flatness > self.tuning.very_flat and short)

    def _is_ill_conditioned(self) -> bool:
        """Whether products would lose a direction wanted, or not all are known: rows may have had them."""
        singular_values = self._basis.singular_values[: self.rank]
        if len(singular_values) < min(self.rank, self.n_features):
            return True
        limit = self.tuning.ill_conditioned * np.sqrt(np.finfo(self.dtype).eps) * singular_values[0]
        if self._ill_conditioned:
            limit *= self.tuning.recovery
        self._ill_conditioned = bool(singular_values[-1] < limit)
        return self._ill_conditioned

    def _append(self, panel: RowsLike, roots: Array | None) -> None:
        """The exact block update, a few rows at a time; the first rows at once."""
        self._require_finite(panel)
        basis = self._basis
        step = 2 * self.n_probes if basis.count else panel.shape[0]
        for part in batch_slices(panel.shape[0], step):
            own = None if roots is None else roots[part]
            basis = append_rows(basis, dense(panel[part, :]), own, self.n_carried)
        self._move_to(basis)
        self._adapt()

    # --- periods ---

    def _open_period(self, extra_probes: Array, thresholds: Thresholds, n_krylov: int = 0) -> SketchPeriod:
        """A period whose probes are the directions carried and others, orthonormal to them, shape (p, d)."""
        return SketchPeriod(self._basis, extra_probes, thresholds, n_krylov)

    def _thresholds(self) -> Thresholds:
        basis = self._basis
        weakest = float(basis.singular_values[self.rank - 1]) ** 2 if self.rank <= basis.rank else 0.0
        expected = self._usual
        if expected is None:
            slack = self.tuning.noise_slack + self.tuning.early_slack * self.n_probes / self._n_rows
            expected = Residuals(slack * basis.discarded / basis.count)
        return Thresholds(
            expected=expected,
            drift=self.tuning.drift_tolerance * weakest,
            outlier=self.tuning.outlier_share * weakest,
            energy=solve.max_energy(weakest, basis, float(np.finfo(self.dtype).eps)),
        )

    def _sample_probes(self, panel: RowsLike, roots: Array | None, n_rows: int, known: Subspace) -> Array:
        """Orthonormal directions of a few rows outside those known."""
        if not n_rows:
            return known.components[:0, :]
        no_mean = self.center and not known.count  # then that of the rows chosen, of which one is redundant
        chosen = self._next_rng().integers(0, panel.shape[0], n_rows + no_mean)
        rows = dense(panel[chosen])
        self._require_finite(rows)
        mean = rows.mean(axis=0) if no_mean else known.mean.astype(self.dtype)
        rows = rows - (mean if roots is None else roots[chosen][:, None] * mean)
        return solve.residual_directions(rows[:n_rows, :], known.components)

    def _close_period(self, *, settled: bool = False) -> None:
        """Renew the directions; after enough rows those found last are no longer spared."""
        assert self._period is not None
        period, self._period = self._period, None
        if settled or period.n_rows >= self.tuning.settled_rows:
            self._n_young = 0
        self._move_to(period.close(self._basis, self.n_carried))
        self._usual = period.residuals(self._basis.rank) or self._usual
        self._adapt()

    def _move_to(self, basis: Subspace) -> None:
        """Carry other directions, of more rows."""
        before, self._basis = self._basis, basis
        if not before.count:
            self._coverage = Coverage.of_all(basis)
        elif self._coverage is not None:
            added = basis.count - before.count
            self._coverage = self._coverage.moved(before.components, basis.components, added)

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
        return basis.count > 0 and self._mean_dominates(basis.mean, basis.total / basis.count)

    # --- summaries, forgetting, merging ---

    def state(self) -> Subspace:
        if self._first_rows is not None:
            few = self._first_rows.n_rows <= self.tuning.buffer_rows  # then nothing is left out
            n_max = max(self.n_carried, self.tuning.buffer_rows) if few else self.n_carried
            return self._first_rows.subspace(self.rank, n_max)
        return self._fair_state()[0]

    def _fair_state(self) -> tuple[Subspace, Array | None]:
        """The state after the first rows, and the energy estimated along its directions, if known."""
        whole = self._with_buffer(self._absorbed())
        coverage = self._coverage_of(whole)
        return (whole, None) if coverage is None else coverage.fair(whole, self.rank)

    def _coverage_of(self, whole: Subspace) -> Coverage | None:
        """The rows that count along the directions of all rows so far; None where that is not known."""
        if self._coverage is None or self._first_rows is not None:
            return None
        coverage = self._coverage.scaled(self._pending_decay)
        return coverage.moved(self._basis.components, whole.components, whole.count - coverage.n_rows)

    def estimated_lack(self) -> Array | None:
        """Energy along the directions of the summary beyond what is certain, shape (k,); None if not known.

        What was discarded before they were found is spread evenly: an estimate, which may exceed the truth.
        """
        summary = self.summary()
        if self._cached_lack is None or self._cached_lack[0] is not summary:
            energies, found = None, None
            if self._coverage is not None and not self._first_rows:
                with self._blas_context():
                    energies = self._fair_state()[1]
            if energies is not None:
                found = (energies[: summary.rank] - summary.singular_values**2).clip(0)
            self._cached_lack = summary, found
        return self._cached_lack[1]

    def _absorbed(self) -> Subspace:
        basis = self._basis if self._period is None else self._period.close(self._basis, self.n_carried)
        components = basis.components
        if orthonormality_error(components) > 64 * np.finfo(self.dtype).eps:
            components = orthonormal(components)
        basis = _with_components(basis, components)
        if self._origin is None:
            return basis
        basis = basis.translated(self._origin)  # only so it shows how large the values are that were rounded
        floor = rounding_floor(basis.total, basis.count, basis.mean, self.dtype)
        kept = int(np.count_nonzero(basis.singular_values > floor))
        return _with_components(basis, basis.components[:kept])

    def _scale(self, factor: float) -> None:
        self._n_rows *= factor**2
        self._basis = self._basis.scaled(factor)
        if self._coverage is not None:
            self._coverage = self._coverage.scaled(factor)
        if self._period is not None:
            self._period.scale(factor)

    def _decay_waiting(self, forget: float) -> None:
        self._forgets = True
        if self._first_rows is not None:
            self._first_rows = self._first_rows.scaled(forget)
        super()._decay_waiting(forget)

    def _merge(self, others: Sequence[Summary]) -> None:
        if self._first_rows is not None:
            self._basis = self._first_rows.subspace(self.rank, self.n_carried)
            self._n_rows, self._first_rows = self._basis.count, None
        self._basis = self._merged(self._absorbed(), others, self.n_carried)
        self._period, self._origin, self._usual, self._coverage = None, None, None, None
        self._n_rows = max(self._n_rows, self._basis.count)
        self._follow_mean()

    def _empty_basis(self) -> Subspace:
        return Subspace.empty(self.n_features, centered=self.center, dtype=self.dtype)


def _with_components(basis: Subspace, components: Array) -> Subspace:
    """The same subspace with other components, or the first of them."""
    return basis.changed(components=components, singular_values=basis.singular_values[: components.shape[0]])
