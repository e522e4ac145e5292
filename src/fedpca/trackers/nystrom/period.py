"""SketchPeriod: products of fixed probes with the scatter of many rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import Array, RowsLike
from fedpca.backend import ops
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import rounding_floor
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom import solve
from fedpca.trackers.nystrom.drift import MAX_OUTLIERS, Residuals, Thresholds, squared_steps
from fedpca.trackers.nystrom.probes import Probes, RowStats
from fedpca.trackers.nystrom.products import (
    PartSums,
    cut_rows,
    multiply_parts,
    project,
    score_products,
    score_squares,
)


class Added(NamedTuple):
    """What became of the rows of a panel.

    Attributes:
        n_tested: rows before the first news; those that follow were left.
        n_news: how many of the rows that follow are known to be news.
        left: indices of rows before the news that were not accumulated either.
        is_cut: whether the rows that follow were left because something about them is unusual.
    """

    n_tested: int
    n_news: int
    left: NDArray[np.intp]
    is_cut: bool = False


_NONE = np.arange(0)
MIN_MEASURED = 64  # rows whose residuals have a mean and a variance


class SketchPeriod:
    """Products of fixed probes with the scatter of the rows of one period; see `solve` for the letters.

    Args:
        history: what came before the period.
        extra_probes: orthonormal to the directions of the history, shape (p, d).
        thresholds: which rows are accumulated.
        n_krylov: leading directions from whose products with the first panel more probes are made.
    """

    def __init__(
        self, history: Subspace, extra_probes: Array, thresholds: Thresholds, n_krylov: int = 0
    ) -> None:
        self.dtype = history.components.dtype
        self.eps = float(np.finfo(self.dtype).eps)
        self.thresholds = thresholds
        self.n_probes = history.rank + len(extra_probes)
        # Rows are multiplied by the mean like by a probe. These scores serve the energy about the mean, then
        # give way to the roots of the weights, whose products are the sums that centering needs.
        mean = history.mean.astype(self.dtype)
        self.directions = np.concatenate([history.components, extra_probes, mean[None, :]])
        self.probes = Probes(
            self.directions,
            offsets=self.directions[:-1] @ mean,
            mean_square=float(history.mean @ history.mean),
            outlier_energy=thresholds.outlier,
        )
        self.n_rows, self.energy = 0, 0.0
        self.M: Array = np.zeros((self.n_probes + 1, self.n_probes + 1))
        self.Q: Array | None = None  # until the first panel
        self._n_krylov = n_krylov
        self._surplus = 0.0  # of the drift test
        self._residuals = np.zeros(3)  # weight, sum of residuals, as many times their variance

    def add(self, panel: RowsLike, roots: Array | None) -> Added:
        """Accumulate the rows of a panel up to the first news, without outliers; none if those are many.

        Of a long panel, whose parts are multiplied before they are judged, the parts before the first unusual
        one: the rows that follow are to come again, as few that they are one part.
        """
        n_rows = panel.shape[0]
        parts = cut_rows(panel, len(self.directions))
        wants_scores = self._n_krylov and self.Q is None
        if len(parts) > 1 and not wants_scores:
            return self._add_parts(parts, multiply_parts(panel, roots, self.probes, parts), roots)
        scores, stats = project(panel, roots, self.probes)
        n_tested, stop, self._surplus = self.thresholds.news(
            stats.energy, stats.residual, roots, self._surplus
        )
        n_news = stop - n_tested
        if not n_tested:
            return Added(0, n_news, _NONE)
        if n_tested < n_rows:
            panel, scores, stats = panel[:n_tested, :], scores[:, :n_tested], stats.first(n_tested)
        Q = score_products(scores, panel)
        if wants_scores:
            scores, Q = self._with_krylov_probes(panel, scores, Q)
        if self._is_unusual(stats):
            return Added(n_tested, n_news, np.arange(n_tested))
        self._accumulate([PartSums(Q, score_squares(scores), stats)], stats)
        return Added(n_tested, n_news, np.flatnonzero(stats.is_outlier))

    def _add_parts(self, parts: list[slice], sums: list[PartSums], roots: Array | None) -> Added:
        """All parts at once if none is unusual, else one after the other."""
        left = self._add_usual(sums, roots)
        if left is not None:
            return Added(parts[-1].stop, 0, left)
        outliers = [_NONE]
        for part, own in zip(parts, sums, strict=True):
            left = self._add_usual([own], None if roots is None else roots[part])
            if left is None:
                return Added(part.start, 0, np.concatenate(outliers), is_cut=True)
            outliers.append(part.start + left)
        return Added(parts[-1].stop, 0, np.concatenate(outliers))

    def _add_usual(self, sums: list[PartSums], roots: Array | None) -> NDArray[np.intp] | None:
        """Accumulate rows in which nothing is unusual, and find the outliers; None if something is."""
        stats = RowStats.joined([part.stats for part in sums])
        n_tested, _, surplus = self.thresholds.news(stats.energy, stats.residual, roots, self._surplus)
        if self._is_unusual(stats) or n_tested < len(stats.energy):
            return None
        self._surplus = surplus
        self._accumulate(sums, stats)
        return np.flatnonzero(stats.is_outlier)

    def _is_unusual(self, stats: RowStats) -> bool:
        """Whether rows are too many outliers, or too large for the products of one period."""
        energy, _, n_outliers = stats.sums
        if not energy < ops.max_energy(self.dtype):
            raise NonFiniteError
        too_large = self.energy + energy > self.thresholds.energy
        return too_large or n_outliers >= MAX_OUTLIERS * len(stats.energy)

    def _accumulate(self, sums: Sequence[PartSums], stats: RowStats) -> None:
        for part in sums:
            self.Q, self.M = part.Q if self.Q is None else self.Q + part.Q, self.M + part.M
        weight = sum(float(part.M[-1, -1]) for part in sums)
        energy, residual, n_outliers = stats.sums
        self.energy += energy
        self.n_rows += len(stats.energy) - n_outliers
        self._residuals = self._residuals + np.array([weight, residual, squared_steps(stats.residual)])

    def force(self, panel: RowsLike, roots: Array | None) -> RowStats:
        """Accumulate all rows of a panel, whatever their residuals."""
        probes = self.probes._replace(outlier_energy=np.inf)
        sums = multiply_parts(panel, roots, probes, cut_rows(panel, len(self.directions)))
        stats = RowStats.joined([part.stats for part in sums])
        self._accumulate(sums, stats)
        return stats

    def residuals(self, n_kept: int) -> Residuals | None:
        """Residuals of the rows so far outside the strongest probes, if enough rows were measured."""
        weight, total, squares = self._residuals
        if weight < MIN_MEASURED:
            return None
        along = np.diag(self.M)[:-1] / self.M[-1, -1] - (self.M[-1, :-1] / self.M[-1, -1]) ** 2
        dropped = np.sort(along)[: max(self.n_probes - n_kept, 0)]
        return Residuals(total / weight + float(dropped.sum()), squares / weight)

    def _with_krylov_probes(self, panel: RowsLike, scores: Array, Q: Array) -> tuple[Array, Array]:
        """Scores and Q with more probes: directions that the first panel has besides the leading ones."""
        mean, n = self.directions[-1, :], self._n_krylov
        outside = Q[:n, :] - (scores[:n, :] @ scores[-1, :])[:, None] * mean
        more = solve.residual_directions(outside, self.directions[:-1, :])
        self.n_probes += more.shape[0]
        self.directions = np.concatenate([self.directions[:-1, :], more, mean[None, :]])
        offsets = more @ mean
        extra = (panel @ more.T).T - offsets[:, None] * scores[-1, :]
        extra = extra * (scores[-1, :] != 0)
        self.probes = self.probes._replace(
            directions=self.directions, offsets=np.concatenate([self.probes.offsets, offsets])
        )
        self.M = np.zeros((self.n_probes + 1, self.n_probes + 1))
        products = score_products(extra, panel)
        scores = np.concatenate([scores[:-1, :], extra, scores[-1:, :]])
        return scores, np.concatenate([Q[:-1, :], products, Q[-1:, :]])

    def scale(self, factor: float) -> None:
        """Scale all that was accumulated, as if every weight had been multiplied by factor²."""
        if self.Q is not None:
            self.Q = self.Q * factor**2
        self.M = self.M * factor**2
        self.energy *= factor**2
        self._residuals = self._residuals * (factor**2, factor**2, 1.0)

    def close(self, history: Subspace, n_max: int) -> Subspace:
        """The leading directions of the Nystrom approximation of history and period; changes nothing."""
        w = self.M[-1, -1]
        if not w:
            return history
        count = history.count + w
        sigma = solve.shift(self.energy, history.singular_values, self.eps)
        T, B = solve.probe_scatter(self.M, history, sigma)
        unit = float(np.trace(T))  # no row of Y is longer: no square will overflow
        assert self.Q is not None
        Y = (B / unit).astype(self.dtype) @ np.concatenate([self.Q, self.directions])
        mean, total = solve.common_mean(history, self.Q[-1, :].astype(np.float64), w, self.energy)
        components, squares = solve.nystrom_eigenpairs(Y, T / unit, n_max, self.eps)
        squares = squares * unit - sigma
        smallest = max(solve.LEAST_KEPT * sigma, rounding_floor(total, count, mean, self.dtype) ** 2)
        kept = int(np.count_nonzero(squares > smallest))
        return Subspace.unchecked(
            components=components[:kept, :],
            singular_values=np.sqrt(squares[:kept]),
            mean=mean,
            count=count,
            total=total,
            centered=history.centered,
        )
