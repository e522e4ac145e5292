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
from fedpca.trackers.nystrom.drift import MAX_OUTLIERS, Thresholds
from fedpca.trackers.nystrom.probes import Probes
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


class SketchPeriod:
    """Products of fixed probes with the scatter of the rows of one period; see `solve` for the letters.

    Args:
        history: what came before the period.
        extra_probes: orthonormal to the directions of the history, shape (p, d).
        eps: relative rounding error of products.
        thresholds: which rows are accumulated.
        prefetch: whether to fetch what `close` needs with the sums of every panel, in one transfer.
    """

    def __init__(
        self, history: Subspace, extra_probes: DeviceArray, eps: float, thresholds: Thresholds, prefetch: bool
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
            n_carried=history.rank,
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

    def add(self, panel: RowsLike, roots: DeviceArray | None) -> NDArray[np.intp]:
        """Accumulate a panel; returns the indices of rows that were not accumulated.

        These are all rows, if the panel drifts or has many outliers, else its outliers.
        """
        backend, uses_tf32, n_rows = self.backend, self.probes.uses_tf32, panel.shape[0]
        with backend.tf32_matmul() if uses_tf32 else nullcontext():
            scores, stats = project_panel(backend, panel, roots, self.probes)
            Q = score_products(backend, scores, panel, uses_tf32)
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
        if n_outliers >= MAX_OUTLIERS * n_rows or self.thresholds.is_drift(
            residual, weight, energy, uses_tf32
        ):
            return np.arange(n_rows)
        self.Q, self.M, self.prefetched = Q, M, prefetched
        self.energy += energy
        self.n_rows += n_rows - int(n_outliers)
        return np.flatnonzero(to_host(stats.is_outlier)) if n_outliers else np.arange(0)

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
        self.M *= factor**2
        self.energy *= factor**2

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
