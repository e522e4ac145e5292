"""Start: the directions of the first rows, all at hand, by passes of products over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca.backend import batch_slices, dense
from fedpca.summaries.linalg import orthonormal, orthonormality_error
from fedpca.summaries.merging import append_rows
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom import solve
from fedpca.trackers.nystrom.drift import ANY_ROWS, PART_ROWS, Residuals, squared_steps
from fedpca.trackers.nystrom.first_rows import FirstRows
from fedpca.trackers.nystrom.news import outside, standing_out
from fedpca.trackers.nystrom.period import SketchPeriod

if TYPE_CHECKING:
    from fedpca.trackers.nystrom.tracker import Nystrom

Part = tuple[RowsLike, Array | None]

_UNUSUAL = 6.0  # standard deviations above the median at which 32 rows are searched for directions
_MAX_SEARCHED = 256  # rows, those with the largest residuals
_FAR_ABOVE = 1000.0
"""Energy of a direction, in units of the weakest wanted, beside which a share of all says nothing of that:
with one row a million times as long as the others, tenth components lacked 12 % of their variance."""


def begin(tracker: Nystrom, parts: Sequence[Part]) -> None:
    """Learn from the first rows, all at hand: from a sample of them, then by passes over all."""
    tuning = tracker.tuning
    first = FirstParts(parts, tracker._prepared, tuning.max_panel_rows)
    rows, roots = first.sample(
        max(tuning.sample_rows, tuning.sample_per_probe * tracker.n_probes), tracker.next_rng()
    )
    step = max(len(rows) // max(tuning.buffer_rows, 2 * tracker.n_probes), 1)
    mean, spread = mean_and_spread(rows[::step], None if roots is None else roots[::step])
    if tracker.mean_dominates(mean, spread):
        mean = mean - tracker._move_origin(mean)
    nothing = tracker._empty_basis()
    empty = nothing.translated(mean) if tracker.center else nothing
    few = mixed(tracker._prepared(rows, roots), roots, empty.mean, step, tracker.next_rng())
    tracker._basis = append_rows(nothing, few, None, tracker.n_probes)
    tracker._adapt()
    sample = FirstParts([(rows, roots)], tracker._prepared, tuning.max_panel_rows)
    tracker._basis = sample.multiply(tracker._basis.components, empty).found
    tracker._adapt()
    fresh = probes = tracker._basis.components[:0]
    for n_passes in range(tuning.max_passes):
        found = tracker._basis.truncate(tracker.n_probes)
        n_missing = max(tracker.n_probes - found.rank, 0)
        if n_missing:
            fresh = np.concatenate(
                [fresh, tracker._sample_probes(tracker._prepared(rows, roots), roots, n_missing, found)]
            )
        if n_passes > 1:  # two were not enough: what the last pass made of its probes, and these
            fresh = np.concatenate([fresh, probes[: tracker.n_probes]])
        known = found.components
        if orthonormality_error(known) > np.sqrt(np.finfo(tracker.dtype).eps):
            known = orthonormal(known)  # of rows far longer than all that probes were made from
        probes = np.concatenate([known, solve.residual_directions(fresh, known)])
        last = first.multiply(probes, empty)
        tracker._basis, tracker._usual, tracker._n_rows = last.found, last.usual, last.found.count
        tracker._adapt()
        limits = tracker._thresholds()
        fresh = first.overlooked(last, limits.drift, limits.outlier, tuning.stands_out, tracker.n_probes)
        if not (len(fresh) or last.gain(tracker.rank) > tuning.min_gain or len(probes) < tracker.n_probes):
            break
    tracker._begin_with(tracker._basis.truncate(tracker.n_carried))
    if tracker._is_ill_conditioned():
        whole = FirstRows(tracker.n_features, tracker.dtype, tuning.kept_bytes, center=tracker.center)
        for part in parts:
            whole.append(*part)
        tracker._origin, tracker._usual = None, None
        tracker._begin_with(whole.subspace(tracker.rank, tracker.n_carried))


class Pass(NamedTuple):
    """What one pass over rows found.

    Attributes:
        found: their leading directions, one per probe.
        within: energies of the rows in the span of the probes, descending.
        residual: of each row outside the probes, shape (n,).
    """

    found: Subspace
    within: Array
    residual: Array

    def gain(self, rank: int) -> float:
        """Share of the energy of the leading directions that the probes themselves did not capture.

        Of all of them, or, if that is more, of those beside which the first do not hide it.
        """
        energies = self.found.singular_values[:rank] ** 2
        if not len(energies):
            return 0.0
        first = int(np.count_nonzero(energies > _FAR_ABOVE * energies[-1]))
        return max(1 - float(self.within[i:rank].sum() / energies[i:].sum()) for i in {0, first})

    @property
    def usual(self) -> Residuals:
        count = self.found.count
        return Residuals(float(self.residual.sum()) / count, squared_steps(self.residual) / count)


class FirstParts:
    """Rows at hand, in parts; each pass over them multiplies them by probes.

    Args:
        parts: rows and the roots of their weights.
        prepared: makes a panel of rows.
        panel_rows: most rows per panel.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        prepared: Callable[[RowsLike, Array | None], RowsLike],
        panel_rows: int,
    ) -> None:
        self._parts, self._prepared, self._panel_rows = parts, prepared, panel_rows
        self.n_rows = sum(rows.shape[0] for rows, _ in parts)

    def sample(self, n_rows: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        """Some of the rows as they came, drawn at random, and the roots of their weights."""
        return self._take(np.sort(rng.choice(self.n_rows, min(n_rows, self.n_rows), replace=False)))

    def _take(self, chosen: Array) -> tuple[Array, Array | None]:
        """Rows of these places, ascending."""
        ends = np.cumsum([rows.shape[0] for rows, _ in self._parts])
        cuts = np.r_[0, np.searchsorted(chosen, ends)]
        taken = np.empty((len(chosen), self._parts[0][0].shape[1]), self._parts[0][0].dtype)
        roots = None if all(own is None for _, own in self._parts) else np.ones(len(chosen))
        for (rows, own), end, low, high in zip(self._parts, ends, cuts[:-1], cuts[1:], strict=True):
            places = chosen[low:high] - (end - rows.shape[0])
            if isinstance(rows, np.ndarray):
                np.take(rows, places, axis=0, out=taken[low:high], mode="clip")  # without a copy on the way
            else:
                taken[low:high] = dense(rows[places])
            if roots is not None and own is not None:
                roots[low:high] = own[places]
        return taken, roots

    def multiply(self, probes: Array, empty: Subspace) -> Pass:
        """Products of the rows with orthonormal probes, shape (p, d)."""
        period, residuals = SketchPeriod(empty, probes, ANY_ROWS), []
        for rows, roots in self._panels():
            residuals.append(period.force(rows, roots).residual)
        T, _ = solve.probe_scatter(period.M, empty, 0.0)
        return Pass(
            found=period.close(empty, period.n_probes),
            within=np.linalg.eigvalsh(T)[::-1],
            residual=np.concatenate(residuals),
        )

    def _panels(self) -> Iterator[Part]:
        for rows, roots in self._parts:
            for part in batch_slices(rows.shape[0], self._panel_rows):
                own = None if roots is None else roots[part]
                yield self._prepared(rows[part, :], own), own

    def overlooked(self, last: Pass, tolerance: float, outlier: float, ratio: float, n_max: int) -> Array:
        """Directions of rows that have unusually much outside the directions found, orthonormal to these.

        Args:
            last: a pass over all rows.
            tolerance: excess residual of some rows that does not matter.
            outlier: residual that makes a single row unusual.
            ratio: least energy of a direction among those rows, in units of the median.
            n_max: at most this many.
        """
        residual = last.residual
        sums = np.add.reduceat(residual, np.arange(0, len(residual), PART_ROWS))
        usual = np.median(sums)
        limit = usual + tolerance + _UNUSUAL * 1.4826 * np.median(np.abs(sums - usual))
        unusual = np.repeat(sums > limit, PART_ROWS)[: len(residual)] | (residual > outlier)
        chosen = np.flatnonzero(unusual)
        chosen = chosen[np.argsort(residual[chosen])[::-1][:_MAX_SEARCHED]]
        if not len(chosen):
            return last.found.components[:0]
        rows, roots = self._take(np.sort(chosen))
        rest = outside(np.asarray(self._prepared(rows, roots)), roots, last.found)
        return solve.residual_directions(standing_out(rest, ratio, n_max), last.found.components)


def mixed(panel: Array, roots: Array | None, mean: Array, step: int, rng: np.random.Generator) -> Array:
    """Sums of `step` rows each, about a mean, with random signs: of the same scatter, but for chance.

    Where rows are orthogonal to each other, as those of different categories, products with a few of them
    would never find the others.
    """
    n_sums = len(panel) // step
    signs = rng.choice(np.array([-1, 1], panel.dtype), (n_sums, 1, step))
    own = signs if roots is None else signs * roots[: n_sums * step].reshape(signs.shape)
    sums = (signs @ panel[: n_sums * step].reshape(n_sums, step, -1))[:, 0, :]
    return np.asarray(sums - own.sum(axis=2) * mean, panel.dtype)


def mean_and_spread(rows: Array, roots: Array | None) -> tuple[Array, float]:
    """Mean and mean squared deviation of rows not yet multiplied by the roots of their weights."""
    weights = np.ones(len(rows)) if roots is None else roots.astype(np.float64) ** 2
    weights /= weights.sum() or 1.0
    mean = weights @ rows
    deviations = rows - mean
    return mean, float(weights @ np.vecdot(deviations, deviations))
