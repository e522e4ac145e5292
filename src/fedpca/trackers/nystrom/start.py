"""Start: passes of products over the first rows, all at hand, and what they overlook."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca.backend import batch_slices, dense
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom import solve
from fedpca.trackers.nystrom.drift import ANY_ROWS, PART_ROWS, Residuals, squared_steps
from fedpca.trackers.nystrom.news import outside, standing_out
from fedpca.trackers.nystrom.period import SketchPeriod

Part = tuple[RowsLike, Array | None]

_UNUSUAL = 6.0  # standard deviations above the median at which 32 rows are searched for directions
_MAX_SEARCHED = 256  # rows, those with the largest residuals: their eigenproblem takes milliseconds
_DEVIATIONS = 1.4826  # standard deviations in a median absolute deviation of normal values
_FAR_ABOVE = 1000.0
"""Energy of a direction, in units of the weakest wanted, beside which a share of all says nothing of that:
with one row a million times as long as the others, tenth components lacked 12 % of their variance."""


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
        limit = usual + tolerance + _UNUSUAL * _DEVIATIONS * np.median(np.abs(sums - usual))
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
