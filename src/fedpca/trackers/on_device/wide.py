"""DeviceWide: rows on a device that are too wide for d x d numbers, a randomized PCA per chunk, merged."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, final

import numpy as np

from fedpca._typing import Array, DeviceArray, DType, RowsLike
from fedpca.backend import Backend, batch_slices, ops
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import rounding_floor
from fedpca.summaries.merging import merge
from fedpca.summaries.rank import RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View
from fedpca.trackers.base import Tracker
from fedpca.trackers.on_device.products import middle_of, random_signs

_FLOAT64: DType = np.dtype(np.float64)
_CHUNK_ROWS = 131_072
_CHUNK_ENTRIES = 2**31  # 4 GB of bfloat16
_COLLECTED_BYTES = 2**28  # of batches smaller than a chunk
_COPIED_ENTRIES = 2**26  # of rows at a time, where they are copied for a product
_FRESH = 8  # random vectors beside the directions so far: what they find of new ones, later passes refine
_FIRST_PASSES = 3  # from random vectors alone
_GRAM_NOISE = 1e-13  # of the largest energy: eps times some hundred columns
_LEAST_SHARE = 1e-5  # of all energy, that of the last direction wanted: below, float64 products


class _State(NamedTuple):
    """Directions of all rows so far, on the device; replaced, never changed.

    Attributes:
        weight: of all rows.
        mean: float64, shape (d,).
        directions: float64, shape (k, d), orthonormal.
        energies: of the directions, on the host, descending.
        total: energy of all rows about their mean.
    """

    weight: float
    mean: DeviceArray
    directions: DeviceArray
    energies: Array
    total: float


class _Chunk(NamedTuple):
    """Rows about their mean, times the roots of their weights: C, shape (n, d).

    Attributes:
        times: C W, float64, of W of shape (d, k).
        times_transposed: C^T Q, float64, of Q of shape (n, k).
        mean: float64, shape (d,).
        weight: of all rows.
        total: the sum of squares of C.
    """

    times: Callable[[DeviceArray], DeviceArray]
    times_transposed: Callable[[DeviceArray], DeviceArray]
    mean: DeviceArray
    weight: float
    total: float


@final
class DeviceWide(Tracker):
    """Directions of chunks of many rows, by a randomized PCA that begins with those so far, merged exactly.

    Every chunk finds its own directions, so no test for drift is needed. Batches smaller than a chunk are
    collected up to 256 MiB; those count in every summary all the same.

    Halko, Martinsson and Tropp (2011), Algorithm 4.4, with three departures: a chunk after the first begins
    with the directions so far and eight random vectors, and takes one pass instead of three; columns are made
    orthonormal by Cholesky factors; and what is merged is C^T Q, with Q orthonormal, whose singular values
    never exceed those of the rows.
    """

    settings = frozenset({"backend", "precise"})

    def __init__(self, n_features: int, rule: RankRule, *, precise: bool = False, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._may_round = not precise and self.dtype != _FLOAT64
        self._is_fast = self._may_round
        self._n_chunks = 0
        zeros = self.backend.zeros
        self._state = _State(
            0.0, zeros((n_features,), np.float64), zeros((0, n_features), np.float64), np.zeros(0), 0.0
        )

    # --- sizes ---

    @property
    def max_panel_rows(self) -> int:
        return min(_CHUNK_ROWS, max(1, _CHUNK_ENTRIES // self.n_features))

    @property
    def min_panel_rows(self) -> int:
        collected = _COLLECTED_BYTES // (self.n_features * self.dtype.itemsize)
        return min(self.max_panel_rows, max(collected, 4 * self.n_carried))

    @property
    def buffer_capacity(self) -> int:
        return self.min_panel_rows

    @property
    def n_carried(self) -> int:
        """Directions from chunk to chunk: twice those wanted, which a flat spectrum needs."""
        return min(max(self.n_exchanged, 2 * self.rank + 16), self.n_features)

    def _must_copy(self, rows: RowsLike, roots: DeviceArray | None) -> bool:
        return False

    def _prepared(self, rows: RowsLike, roots: DeviceArray | None) -> RowsLike:
        return self.backend.asarray(ops.dense(rows))  # centered and weighted where they are multiplied

    # --- rows in ---

    @property
    def _absorbed_energy(self) -> float:
        return self._state.total

    def _absorb(self, panel: DeviceArray, roots: DeviceArray | None) -> None:
        state = self._with_chunk(panel, roots, fast=self._is_fast)
        if self._is_fast and self._is_steep(state):
            state = self._with_chunk(panel, roots, fast=False)
        self._is_fast = self._may_round and not self._is_steep(state)
        self._state, self._n_chunks = state, self._n_chunks + 1
        self.rank = fixed_point(self.rule, self.rank, self.n_features, np.sqrt(state.energies), state.total)

    def _is_steep(self, state: _State) -> bool:
        last = state.energies[self.rank - 1] if len(state.energies) >= self.rank else 0.0
        return bool(last < _LEAST_SHARE * state.total)

    def _with_chunk(self, rows: DeviceArray, roots: DeviceArray | None, *, fast: bool) -> _State:
        """The state with the directions of one more chunk."""
        backend = self.backend
        if fast and backend.has_tensor_cores:
            chunk = _rounded_chunk(backend, rows, roots, self.center)
        else:
            dtype = self.dtype if fast else _FLOAT64
            chunk = _chunk(backend, rows, roots, dtype, self.center)
        if not chunk.total < ops.max_energy(self.dtype):
            raise NonFiniteError
        if not chunk.weight:
            return self._state
        return _merged(backend, self._state, chunk, self._found(chunk, rows.shape[0]), self.n_carried)

    def _found(self, chunk: _Chunk, n_rows: int) -> DeviceArray:
        """C^T Q: the directions of a chunk with their sizes, shape (d, k)."""
        backend, xp = self.backend, self.backend.xp
        known = self._state.directions
        width = min(max(self.n_carried, known.shape[0]) + _FRESH, self.n_features)
        if n_rows <= width:  # Q is all of the rows' space
            return chunk.times_transposed(backend.asarray(np.eye(n_rows), np.float64))
        fresh = random_signs(backend, self.n_features, width - known.shape[0], seed=self._n_chunks)
        W = xp.concat([known.T, fresh / self.n_features**0.5], axis=1)
        for _ in range(_FIRST_PASSES if not known.shape[0] else 1):
            Q = backend.orthonormal_columns(chunk.times(W))
            found = chunk.times_transposed(Q)
            W = backend.orthonormal_columns(found)
        return found

    def _scale(self, factor: float) -> None:
        share, state = factor**2, self._state
        self._state = state._replace(
            weight=share * state.weight, energies=share * state.energies, total=share * state.total
        )

    # --- summaries out ---

    def _current(self) -> Self:
        """A tracker of everything so far that has no buffer and no decay ahead; to be read only."""
        current = self.branch()
        if current._buffer.n_rows:
            current._flush()
        current._apply_decay()
        return current

    def state(self) -> Subspace:
        with self.backend.compute_context():
            return self._current()._on_host()

    def _view(self) -> View:
        current = self._current()
        state, rank = current._on_host(), current.rank
        n_components = self.rule.n_components(rank, state.singular_values, state.total)
        summary = state.truncate(self._exchanged_for(max(rank, n_components))).with_fixed_signs()
        n_components = self.rule.n_components(rank, summary.singular_values, summary.total)
        return View(summary, n_components, None)

    def _on_host(self) -> Subspace:
        """What was absorbed."""
        state = self._state
        directions, mean = self.backend.to_numpy(state.directions, state.mean)
        floor = rounding_floor(state.total, state.weight, mean, self.dtype)
        real = np.sqrt(state.energies) > floor
        return Subspace.unchecked(
            components=directions[real].astype(self.dtype),
            singular_values=np.sqrt(state.energies[real]),
            mean=mean,
            count=state.weight,
            total=state.total,
            centered=self.center,
        )

    def _merge(self, others: Sequence[Summary]) -> None:
        merged, backend = merge([self._on_host(), *others], self.n_carried).subspace(), self.backend
        self._state = _State(
            merged.count,
            backend.asarray(merged.mean, np.float64),
            backend.asarray(merged.components, np.float64),
            merged.singular_values**2,
            merged.total,
        )


def _chunk(
    backend: Backend, rows: DeviceArray, roots: DeviceArray | None, dtype: DType, center: bool
) -> _Chunk:
    """Rows multiplied by their own library in a dtype, some at a time."""
    xp, n_features = backend.xp, rows.shape[1]
    parts = list(batch_slices(rows.shape[0], max(1, _COPIED_ENTRIES // n_features)))
    weights = None if roots is None else backend.asarray(roots, np.float64) ** 2
    count = float(rows.shape[0]) if weights is None else float(xp.sum(weights))
    mean = backend.zeros((n_features,), np.float64)
    if center and count:
        shift = middle_of(backend, rows, roots)  # a sum of differences from it keeps its digits
        for part in parts:
            aside = backend.asarray(rows[part, :], np.float64) - shift
            mean += xp.sum(aside, axis=0) if weights is None else weights[part] @ aside
        mean = shift + mean / count
    middle = backend.asarray(mean, dtype)

    def centered(part: slice) -> DeviceArray:
        own = backend.asarray(rows[part, :], dtype) - middle
        return own if roots is None else own * backend.asarray(roots[part], dtype)[:, None]

    def times(W: DeviceArray) -> DeviceArray:
        W = backend.asarray(W, dtype)
        return backend.asarray(xp.concat([centered(part) @ W for part in parts]), np.float64)

    def times_transposed(Q: DeviceArray) -> DeviceArray:
        Q, total = backend.asarray(Q, dtype), backend.zeros((n_features, Q.shape[1]), np.float64)
        for part in parts:
            total += backend.asarray(centered(part).T @ Q[part, :], np.float64)
        return total

    total = sum(ops.sum64(ops.row_energies(centered(part))) for part in parts)
    return _Chunk(times, times_transposed, mean, count, total)


def _rounded_chunk(backend: Backend, rows: DeviceArray, roots: DeviceArray | None, center: bool) -> _Chunk:
    """Rows rounded to bfloat16 about a shift near their mean; what is left of the mean is taken off after."""
    import torch

    from fedpca.trackers.on_device.tensor_cores import rounded_rows

    n_rows, n_features = rows.shape
    shift = middle_of(backend, rows, roots) if center else backend.zeros((n_features,), np.float64)
    H, row_sum, energy = rounded_rows(rows, roots, shift)
    ones = torch.ones(n_rows, dtype=torch.float64, device=rows.device) if roots is None else roots.double()
    count = float(n_rows) if roots is None else float(ones @ ones)
    offset = row_sum / count if center and count else torch.zeros_like(row_sum)

    def times(W: DeviceArray) -> DeviceArray:
        product = torch.mm(H, _padded(W, H).bfloat16(), out_dtype=torch.float32)
        return product.double() - ones[:, None] * (offset @ W)[None, :]

    def times_transposed(Q: DeviceArray) -> DeviceArray:
        product = torch.mm(H.T, Q.bfloat16(), out_dtype=torch.float32)[:n_features]
        return product.double() - offset[:, None] * (ones @ Q)[None, :]

    total = float(energy - count * (offset @ offset))
    return _Chunk(times, times_transposed, shift + offset, count, total)


def _padded(W: DeviceArray, H: DeviceArray) -> DeviceArray:
    """W with rows of zeros for the columns that H has more than the rows."""
    import torch

    return torch.nn.functional.pad(W, (0, 0, 0, H.shape[1] - W.shape[0]))


def _merged(backend: Backend, own: _State, chunk: _Chunk, found: DeviceArray, n_kept: int) -> _State:
    """The leading directions of those so far and of a chunk, and of the step between their means."""
    xp, weight = backend.xp, own.weight + chunk.weight
    step = chunk.mean - own.mean
    apart = own.weight * chunk.weight / weight
    sizes = backend.asarray(np.sqrt(own.energies), np.float64)
    columns = xp.concat([own.directions.T * sizes[None, :], found, (apart**0.5 * step)[:, None]], axis=1)
    gram = columns.T @ columns
    ascending, turn = backend.eigh((gram + gram.T) / 2)
    energies, jump = backend.to_numpy(ascending, step @ step)
    first = max(len(energies) - n_kept, int(np.sum(energies <= _GRAM_NOISE * energies[-1])))
    energies, turn = energies[first:][::-1].copy(), xp.flip(turn[:, first:], axis=1)
    turned = turn / backend.asarray(np.sqrt(energies))[None, :]
    total = own.total + chunk.total + apart * float(jump)
    mean = own.mean + (chunk.weight / weight) * step
    return _State(weight, mean, (columns @ turned).T, energies, max(total, 0.0))
