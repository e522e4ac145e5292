"""SketchPeriod: products of fixed probes with the scatter of many rows."""

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import Array, DeviceArray, RowsLike
from fedpca.backend import backend_of, ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import rounding_floor
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom import solve
from fedpca.trackers.nystrom.drift import MAX_OUTLIERS, Residuals, Thresholds, squared_steps
from fedpca.trackers.nystrom.probes import Probes, RowStats
from fedpca.trackers.nystrom.products import project_panel, score_products


class SolveInputs(NamedTuple):
    """What `SketchPeriod.close` needs from a device.

    Attributes:
        stacked_rows: X = [Q; W; mu0^T], shape (2 K + 2, d).
        gram: X X^T, on the host.
        row_sum: p, shape (d,), on the host.
    """

    stacked_rows: DeviceArray
    gram: NDArray[np.float64]
    row_sum: NDArray[np.float64]


class Added(NamedTuple):
    """What became of the rows of a panel.

    Attributes:
        n_tested: rows before the first news; those that follow were left.
        n_news: how many of the rows that follow are known to be news.
        left: indices of rows before the news that were not accumulated either.
    """

    n_tested: int
    n_news: int
    left: NDArray[np.intp]


_NONE = np.arange(0)
MIN_MEASURED = 64  # rows whose residuals have a mean and a variance


class SketchPeriod:
    """Products of fixed probes with the scatter of the rows of one period; see `solve` for the letters.

    Args:
        history: what came before the period.
        extra_probes: orthonormal to the directions of the history, shape (p, d).
        eps: relative rounding error of products.
        thresholds: which rows are accumulated.
        prefetch: whether to fetch what `close` needs with the sums of every panel, in one transfer.
        n_krylov: leading directions from whose products with the first panel more probes are made.
    """

    def __init__(
        self,
        history: Subspace,
        extra_probes: DeviceArray,
        eps: float,
        thresholds: Thresholds,
        prefetch: bool,
        n_krylov: int = 0,
    ) -> None:
        self.backend = backend = backend_of(history.components)
        self.dtype = backend.numpy_dtype(history.components)
        self.eps = eps
        self.thresholds = thresholds
        self.n_probes = history.rank + extra_probes.shape[0]
        # Rows are multiplied by the mean like by a probe. These scores serve the energy about the mean, then
        # give way to the roots of the weights, whose products are the sums that centering needs.
        mean = backend.asarray(history.mean, self.dtype)
        self.directions = backend.xp.concat([history.components, extra_probes, mean[None, :]])
        uses_tf32 = bool(eps > np.finfo(self.dtype).eps)
        directions = backend.round_to_tf32(self.directions) if uses_tf32 else self.directions
        self.probes = Probes(
            directions,
            offsets=directions[:-1, :] @ mean,
            n_compared=history.rank if backend.on_device else self.n_probes,
            mean_square=float(history.mean @ history.mean),
            outlier_energy=thresholds.outlier,
            uses_tf32=uses_tf32,
        )
        self.n_rows, self.energy = 0, 0.0
        self.M: Array = np.zeros((self.n_probes + 1, self.n_probes + 1))
        self.Q: DeviceArray = None  # until the first panel
        self.prefetched: SolveInputs | None = None
        # In float64 squares of entries in any unit might not fit, and Y has to be scaled before.
        self._prefetches = prefetch and self.dtype == np.float32
        self._n_krylov = n_krylov
        self._surplus = 0.0  # of the drift test
        self._residuals = np.zeros(3)  # weight, sum of residuals, as many times their variance

    def add(self, panel: RowsLike, roots: DeviceArray | None) -> Added:
        """Accumulate the rows of a panel up to the first news, without outliers; none if those are many.

        On a device a panel is accumulated as a whole, or left.
        """
        backend, uses_tf32, n_rows = self.backend, self.probes.uses_tf32, panel.shape[0]
        n_tested, n_news = n_rows, 0
        with backend.tf32_matmul() if uses_tf32 else nullcontext():
            scores, stats = project_panel(backend, panel, roots, self.probes)
            if not backend.on_device:
                n_tested, stop, self._surplus = self.thresholds.news(
                    stats.energy, stats.residual, roots, self._surplus
                )
                n_news = stop - n_tested
                if not n_tested:
                    return Added(0, n_news, _NONE)
                if n_tested < n_rows:
                    panel, scores, stats = panel[:n_tested, :], scores[:, :n_tested], stats.first(n_tested)
            Q = score_products(backend, scores, panel, uses_tf32)
        if self._n_krylov and self.Q is None:
            scores, Q = self._with_krylov_probes(panel, scores, Q)
        Q = Q if self.Q is None else self.Q + Q
        prefetched = None
        if self._prefetches:
            sums, M, prefetched = self._sync_to_host(Q, scores, stats.sums, roots)
        else:
            sums, added = backend.to_numpy(stats.sums, scores @ scores.T)
            M = self.M + added
        energy, residual, n_outliers = sums.tolist()
        if not energy < ops.max_energy(self.dtype):
            raise NonFiniteError
        weight = M[-1, -1] - self.M[-1, -1]
        is_too_large = self.energy + energy > self.thresholds.energy
        if (
            is_too_large
            or n_outliers >= MAX_OUTLIERS * n_tested
            or (backend.on_device and self.thresholds.is_drift(residual, weight, energy, uses_tf32))
        ):
            return Added(n_tested, n_news, np.arange(n_tested))
        self.Q, self.M, self.prefetched = Q, M, prefetched
        self.energy += energy
        self.n_rows += n_tested - int(n_outliers)
        if not backend.on_device:
            self._residuals = self._residuals + np.array([weight, residual, squared_steps(stats.residual)])
        return Added(n_tested, n_news, np.flatnonzero(to_host(stats.is_outlier)) if n_outliers else _NONE)

    def force(self, panel: RowsLike, roots: DeviceArray | None) -> RowStats:
        """Accumulate all rows of a panel, on the host, whatever their residuals."""
        probes = self.probes._replace(outlier_energy=np.inf)
        scores, stats = project_panel(self.backend, panel, roots, probes)
        Q = score_products(self.backend, scores, panel, False)
        self.Q, self.M = Q if self.Q is None else self.Q + Q, self.M + scores @ scores.T
        self.energy += float(stats.sums[0])
        self.n_rows += panel.shape[0]
        return stats

    def residuals(self, n_kept: int) -> Residuals | None:
        """Residuals of the rows so far outside the strongest probes, if enough rows were measured."""
        weight, total, squares = self._residuals
        if weight < MIN_MEASURED:
            return None
        along = np.diag(self.M)[:-1] / self.M[-1, -1] - (self.M[-1, :-1] / self.M[-1, -1]) ** 2
        dropped = np.sort(along)[: max(self.n_probes - n_kept, 0)]
        return Residuals(total / weight + float(dropped.sum()), squares / weight)

    def _with_krylov_probes(
        self, panel: RowsLike, scores: DeviceArray, Q: DeviceArray
    ) -> tuple[DeviceArray, DeviceArray]:
        """Scores and Q with more probes: directions that the first panel has besides the leading ones."""
        xp, mean, n = self.backend.xp, self.directions[-1, :], self._n_krylov
        outside = Q[:n, :] - (scores[:n, :] @ scores[-1, :])[:, None] * mean
        more = solve.residual_directions(outside, self.directions[:-1, :])
        self.n_probes += more.shape[0]
        self.directions = xp.concat([self.directions[:-1, :], more, mean[None, :]])
        offsets = more @ mean
        extra = (panel @ more.T).T - offsets[:, None] * scores[-1, :]
        extra = extra * (scores[-1, :] != 0)
        self.probes = self.probes._replace(
            directions=self.directions, offsets=xp.concat([self.probes.offsets, offsets])
        )
        self.M = np.zeros((self.n_probes + 1, self.n_probes + 1))
        products = score_products(self.backend, extra, panel, False)
        return xp.concat([scores[:-1, :], extra, scores[-1:, :]]), xp.concat([Q[:-1, :], products, Q[-1:, :]])

    def _sync_to_host(
        self, Q: DeviceArray, scores: DeviceArray, sums: DeviceArray, roots: DeviceArray | None
    ) -> tuple[NDArray[np.float64], Array, SolveInputs]:
        """In one device-to-host transfer: sums of row statistics, M, and what `close` needs."""
        backend, uses_tf32, n_products = self.backend, self.probes.uses_tf32, self.n_probes + 1
        stacked_rows = backend.xp.concat([Q, self.directions])
        exact = backend.asarray(stacked_rows, np.float64)
        wanted = [sums, exact @ exact.T, Q[-1, :], self.probes.offsets]
        if uses_tf32:
            wanted.append(exact[:n_products, :] @ backend.asarray(self.probes.directions, np.float64).T)
        if roots is not None:
            wanted.append(backend.xp.sum(scores[-1, :] ** 2, dtype=backend.xp.float64))
        sums, gram, row_sum, offsets, *others = backend.to_numpy(*wanted)
        along = others.pop(0) if uses_tf32 else gram[:n_products, n_products:]
        weight = scores.shape[1] - sums[-1] if roots is None else float(others.pop(0))
        M = solve.score_gram(along[:, :-1], offsets, self.M[-1, -1] + weight)
        return sums, M, SolveInputs(stacked_rows, gram, row_sum)

    def scale(self, factor: float) -> None:
        """Scale all that was accumulated, as if every weight had been multiplied by factor²."""
        if self.Q is not None:
            self.Q, self.prefetched = self.Q * factor**2, None
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
        stacked_rows, coefficients, gram, p = self._rows_of_Y(B / unit)
        mean, total = solve.common_mean(history, p, w, self.energy)
        components, squares = solve.nystrom_eigenpairs(
            stacked_rows, coefficients, gram, T / unit, n_max, self.eps
        )
        squares = squares * unit - sigma
        smallest = max(sigma / 4, rounding_floor(total, count, mean, self.dtype) ** 2)
        kept = int(np.count_nonzero(squares > smallest))
        return Subspace.unchecked(
            components=components[:kept, :],
            singular_values=np.sqrt(squares[:kept]),
            mean=mean,
            count=count,
            total=total,
            centered=history.centered,
        )

    def _rows_of_Y(self, B: Array) -> tuple[DeviceArray, Array | None, Array, Array]:
        """Rows X and pending coefficients B of Y = B X, or Y and None; with Y Y^T and p on the host."""
        if self.prefetched is not None:
            stacked_rows, gram, row_sum = self.prefetched
            return stacked_rows, B, B @ gram @ B.T, row_sum
        stacked_rows = self.backend.xp.concat([self.Q, self.directions])
        Y = self.backend.asarray(B, self.dtype) @ stacked_rows
        gram, row_sum = self.backend.to_numpy(Y @ Y.T, self.Q[-1, :])
        return Y, None, gram, row_sum
