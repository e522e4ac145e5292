"""Nystrom: the fast kernel; two matrix products a row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca.linalg import Array, orthonormal, orthonormality_error
from fedpca.merge import Summary, append_rows
from fedpca.subspace import Subspace, rounding_floor
from fedpca.trackers.base import Tracker

# When is a panel news? When its energy outside the directions carried exceeds what the stream has shown, with
# slack for chance, by more than this share of the weakest direction wanted.
_NOISE_SLACK = 1.5
_NEWS = 1e-3
_STRANGE = 0.5  # and a single row, when its own energy outside exceeds this share of that direction
# A flat spectrum takes more probes, and while the stream is short the rows themselves, to be told apart.
_FLAT = 1.0
_VERY_FLAT = 8.0
_SHIFT = 32  # rounding of the products, in units of eps times the energy
_TINY = np.finfo(np.float64).tiny


class Nystrom(Tracker):
    """Directions kept fixed as probes over a period of many rows, then renewed from what the period saw.

    For probes W (the directions carried and residuals of recent rows) a period accumulates
    Y = W C and T = W C W^T of the scatter C of everything so far, mean and history included: two
    products of width len(W) a row. At its end C is replaced by its Nystrom approximation
    Y^T T^-1 Y, which but for rounding never exceeds C, and the leading directions of that are carried on.

    Safeguards send rows through the exact block update instead: panels with more energy outside the
    directions carried than the stream has shown so far (its directions change), single rows that alone
    outweigh a direction wanted, a spectrum too graded for products of rows (sigma_r below about
    sqrt(eps) sigma_1), and a short stream whose directions hardly differ in energy.

    Args:
        seed: of the choice of recent rows as probes.
    """

    takes_sparse = True

    def __init__(self, n_features: int, rule: Any, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._rng = np.random.default_rng(seed)
        self._carried = Subspace.empty(n_features, centered=self.center, dtype=self.dtype)  # about the anchor
        self._period: _Period | None = None
        self._n_rows = 0.0  # that still count
        self._graded = False
        self._flatness = 0.0  # energy left out, in units of that of as many directions as are carried

    @property
    def width(self) -> int:
        """Probes in a period: with the one for the mean a multiple of 8, which suits the products."""
        wanted = 2 * self.keep if self._flatness > _FLAT else self.keep
        return min(-(-(wanted + 2) // 8) * 8 - 1, self.n_features)

    @property
    def carry(self) -> int:
        """Directions carried from period to period: all probes but one, at no cost; `keep` are exchanged."""
        return max(self.keep, self.width - 1)

    @property
    def buffer_rows(self) -> int:
        return max(2 * self.width, 128)  # the first rows are factorised exactly: enough for good first probes

    @property
    def smallest_panel(self) -> int:
        return 32 if self._carried.count else self.buffer_rows

    @property
    def largest_panel(self) -> int:
        if not self._carried.count:
            return self.buffer_rows
        seen = 0 if self._period is None else self._period.n_rows
        return min(1024, max(32, self._period_rows() - seen))

    def _absorb(self, panel: Any, roots: Array | None) -> None:
        if self._period is None and self._needs_rows():
            self._append(panel, roots)
        else:
            self._period = self._period or self._open(panel, roots)
            left = self._period.add(panel, roots)
            if len(left):
                self._close()
                self._append(panel[left], None if roots is None else roots[left])
            elif self._period.n_rows >= self._period_rows():
                self._close()
        self._n_rows += panel.shape[0]
        if self._period is None:
            self._stay_near_origin()

    def _needs_rows(self) -> bool:
        """Whether products will not do: at the start, on a graded spectrum, early on a flat one."""
        singular_values = self._carried.singular_values[: self.rank]
        if not len(singular_values):
            return True
        limit = 8 * np.sqrt(np.finfo(self.dtype).eps) * singular_values[0]
        self._graded = bool(singular_values[-1] < (4 * limit if self._graded else limit))  # must not flicker
        return self._graded or (self._flatness > _VERY_FLAT and self._n_rows < 64 * self.width)

    def _append(self, panel: Any, roots: Array | None) -> None:
        """The exact block update, a few rows at a time; the first rows at once."""
        step = 2 * self.width if self._carried.count else panel.shape[0]
        for start in range(0, panel.shape[0], step):
            rows = panel[start : start + step]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            part = None if roots is None else roots[start : start + step]
            self._carried = append_rows(self._carried, rows, part, self.carry)
        self._adapt()

    def _open(self, panel: Any, roots: Array | None) -> "_Period":
        carried = self._carried
        missing = self.width - carried.rank
        chosen = self._rng.integers(0, panel.shape[0], max(missing, 0))
        sample = panel[chosen].toarray() if sparse.issparse(panel) else panel[chosen]
        chosen_roots = np.ones(len(chosen)) if roots is None else roots[chosen]
        sample = sample - np.outer(chosen_roots, carried.mean).astype(self.dtype)
        weakest = carried.singular_values[self.rank - 1] if self.rank <= carried.rank else 0.0
        return _Period(
            carried,
            residual_directions(sample, carried.components),
            expected=(_NOISE_SLACK + 8 * self.width / self._n_rows) * carried.left_out / carried.count,
            tolerated=_NEWS * float(weakest) ** 2,
            strange=_STRANGE * float(weakest) ** 2,
        )

    def _period_rows(self) -> int:
        """Longer periods as the stream grows: what one adds to the directions shrinks."""
        return int(np.clip(self._n_rows / 3, 2 * self.width, 128 * max(self.width, 32)))

    def _close(self) -> None:
        assert self._period is not None
        self._carried = self._period.close(self._carried, self.carry)
        self._period = None
        self._adapt()

    def _adapt(self) -> None:
        """After new directions: how many are wanted, and how much energy they leave out."""
        carried = self._carried
        self.rank = self._next_rank(self.rank, carried.singular_values, carried.total)
        if carried.rank:
            weakest = float(carried.singular_values[min(self.rank, carried.rank) - 1])
            self._flatness = carried.left_out / (carried.rank * weakest**2)

    def _stay_near_origin(self) -> None:
        carried = self._carried
        if carried.count and self.is_far(carried.mean, carried.total / carried.count):
            self._carried = carried.moved(-self._move_anchor(carried.mean))

    def state(self) -> Subspace:
        return self._with_waiting(self._absorbed())

    def _absorbed(self) -> Subspace:
        carried = self._carried if self._period is None else self._period.close(self._carried, self.carry)
        components = carried.components
        if orthonormality_error(components) > 64 * np.finfo(self.dtype).eps:
            components = orthonormal(components)
        mean = carried.mean if self._anchor is None else carried.mean + self._anchor
        facts = (carried.singular_values, mean, carried.count, carried.total, self.center)
        return Subspace.trusted(components, *facts)

    def _scale(self, factor: float) -> None:
        self._n_rows *= factor**2
        self._carried = self._carried.scaled(factor)
        if self._period is not None:
            self._period.scale(factor)

    def _merge(self, others: Sequence[Summary]) -> None:
        self._carried = self._merged(self._absorbed(), others, self.carry)
        self._period, self._anchor = None, None
        self._n_rows = max(self._n_rows, self._carried.count)
        self._stay_near_origin()


class _Period:
    """Products of fixed probes with the scatter of the rows of one period."""

    def __init__(
        self, carried: Subspace, fresh: Array, *, expected: float, tolerated: float, strange: float
    ) -> None:
        dtype = carried.components.dtype
        self.n_carried, self.n_probes = carried.rank, carried.rank + len(fresh)
        self.mean_square = float(carried.mean @ carried.mean)
        # The last probe is the running mean; its products serve the energy, then give way to the roots of
        # the weights, whose products are the sums that centring needs.
        self.probes = np.concatenate([carried.components, fresh, carried.mean[None].astype(dtype)])
        self.offsets = self.probes[:-1] @ self.probes[-1]
        self.expected, self.tolerated, self.strange = expected, tolerated, strange
        self.n_rows, self.energy = 0, 0.0
        self.inner = np.zeros((self.n_probes + 1, self.n_probes + 1))
        self.products = np.zeros_like(self.probes)

    def add(self, panel: Any, roots: Array | None) -> NDArray[np.intp]:
        """Take a panel but for rows that products would not do justice to; returns their places.

        These are all rows, if together they have more energy outside the directions carried than the
        stream has shown so far, or single ones that alone outweigh a direction wanted.
        """
        last, n_rows = self.n_probes, panel.shape[0]
        scores = _scores(self.probes, panel)
        weights = np.ones(n_rows, scores.dtype) if roots is None else roots
        energies = _row_energies(panel)
        outside = energies - 2 * scores[last] * weights + weights**2 * scores.dtype.type(self.mean_square)
        scores[:last] -= self.offsets[:, None] * (1 if roots is None else roots)
        scores[last] = weights
        outside -= np.einsum("ij,ij->j", scores[: self.n_carried], scores[: self.n_carried])
        strange = np.flatnonzero(outside > self.strange + 1e-4 * energies)
        if 0 < len(strange) < n_rows / 4:
            rest = np.setdiff1d(np.arange(n_rows), strange)
            return np.union1d(strange, rest[self.add(panel[rest], None if roots is None else roots[rest])])
        inner = (scores @ scores.T).astype(np.float64)
        energy, weight = float(energies.sum(dtype=np.float64)), float(inner[last, last])
        news = float(outside.sum(dtype=np.float64)) - self.expected * weight
        if len(strange) or news > self.tolerated + 1e-6 * energy:
            return np.arange(n_rows)
        self.products += (panel.T @ scores.T).T if sparse.issparse(panel) else scores @ panel
        self.inner += inner
        self.energy += energy
        self.n_rows += n_rows
        return np.arange(0)

    def scale(self, factor: float) -> None:
        self.products *= self.products.dtype.type(factor**2)
        self.inner *= factor**2
        self.energy *= factor**2

    def close(self, carried: Subspace, keep: int) -> Subspace:
        """The leading directions of the Nystrom approximation of everything so far; changes nothing."""
        weight = self.inner[-1, -1]
        if not weight:
            return carried
        products, inner = self.products[:-1].copy(), self.inner[:-1, :-1].copy()
        mean, count, total = carried.mean, carried.count + weight, carried.total + self.energy
        if carried.centered:
            new_mean = self.products[-1].astype(np.float64) / weight
            step, score = new_mean - mean, self.inner[-1, :-1] / weight
            jump = carried.count * weight / count
            products += np.outer(score, jump * step - weight * new_mean).astype(products.dtype)
            inner += (jump - weight) * np.outer(score, score)
            total += jump * float(step @ step) - weight * float(new_mean @ new_mean)
            mean = mean + step * (weight / count)
        # The history: the first probes are the directions carried, so W C0 = [S^2 V; 0].
        dtype, rank, squares = products.dtype, carried.rank, carried.singular_values**2
        products[:rank] += squares[:, None].astype(dtype) * carried.components
        inner[:rank, :rank] += np.diag(squares)
        # Products round relative to all energy. A multiple of the identity above that is added, and taken off
        # again, so that T^-1 does not blow rounding up into directions.
        shift = _SHIFT * float(np.finfo(dtype).eps) * (self.energy + float(squares[0]))
        products += dtype.type(shift) * self.probes[:-1]
        inner.flat[:: len(inner) + 1] += shift
        components, singular_values = nystrom_directions(products, inner, keep)
        squares = singular_values**2 - shift
        smallest = max(shift / 4, rounding_floor(total, count, mean, dtype) ** 2)
        kept = int(np.count_nonzero(squares > smallest))
        components, singular_values = components[:kept], np.sqrt(squares[:kept])
        total = max(total, float(singular_values @ singular_values))
        return Subspace.trusted(components, singular_values, mean, count, total, carried.centered)


def _row_energies(panel: Any) -> Array:
    """The sum of squares of each row, shape (n,)."""
    if sparse.issparse(panel):
        return np.asarray(panel.multiply(panel).sum(axis=1)).ravel()
    return np.vecdot(panel, panel)


def _scores(probes: Array, panel: Any) -> Array:
    """probes @ panel.T, computed the way round that is faster for the dtype (measured: 13 % in float64)."""
    if sparse.issparse(panel) or panel.dtype == np.float32:
        return (panel @ probes.T).T
    return probes @ panel.T


def residual_directions(sample: Array, components: Array) -> Array:
    """Orthonormal directions of a few rows outside the span of orthonormal components."""
    sample = _unit_rows(sample, 0.0)
    sample = _unit_rows(sample - (sample @ components.T) @ components, 32 * float(np.finfo(sample.dtype).eps))
    # Once more: a small residual is far from orthogonal. One that shrinks again was rounding.
    sample = _unit_rows(sample - (sample @ components.T) @ components, 0.5)
    if len(sample) < 2:
        return sample
    squares, vectors = np.linalg.eigh((sample @ sample.T).astype(np.float64))
    kept = squares > 1e-4 * squares[-1]  # the same row may have been drawn twice
    return (vectors[:, kept] / np.sqrt(squares[kept])).T.astype(sample.dtype) @ sample


def _unit_rows(rows: Array, shortest: float) -> Array:
    """Rows longer than `shortest`, scaled to length one."""
    lengths = np.linalg.norm(rows, axis=1)
    long = lengths > shortest
    return rows[long] / lengths[long, None]


def nystrom_directions(products: Array, inner: Array, keep: int) -> tuple[Array, Array]:
    """The leading right singular pairs of F with F^T F = Y^T T^+ Y.

    Args:
        products: Y = W C, shape (m, d).
        inner: T = W C W^T, shape (m, m), float64.
        keep: at most this many pairs.
    """
    dtype = products.dtype
    eps = float(np.finfo(dtype).eps)
    sizes = np.maximum(np.abs(products).max(axis=1), np.finfo(dtype).tiny)
    units = products / sizes[:, None]  # so that the Gram matrix below can neither overflow nor vanish
    gram = (units @ units.T).astype(np.float64)
    factor = _inverse_root(inner, eps) * sizes  # F = factor @ units
    squares, vectors = np.linalg.eigh(factor @ gram @ factor.T)
    squares, vectors = squares[::-1][:keep], vectors[:, ::-1][:, :keep]
    if squares[-1] > 1e-11 * squares[0]:
        singular_values = np.sqrt(squares)
    else:  # graded: do not square
        vectors, singular_values, _ = np.linalg.svd(factor @ _root(gram))
        kept = np.count_nonzero(singular_values[:keep] > 8 * eps * singular_values[0])
        vectors, singular_values = vectors[:, :kept], singular_values[:kept]
    components = ((vectors / singular_values).T @ factor).astype(dtype) @ units
    if len(singular_values) and singular_values[-1] < 30 * np.sqrt(eps) * singular_values[0]:
        components = orthonormal(components)
    return components, singular_values


def _inverse_root(matrix: Array, eps: float) -> Array:
    """R with R^T R the pseudo-inverse of a positive semidefinite matrix, scaled to unit diagonal first."""
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), _TINY))
    matrix = matrix * np.outer(scale, scale)
    try:
        triangle = np.linalg.cholesky(matrix)
        if np.diag(triangle).min() > 30 * np.sqrt(eps):
            return np.linalg.inv(triangle) * scale
    except np.linalg.LinAlgError:
        pass
    squares, vectors = np.linalg.eigh(matrix)
    kept = squares > 10 * max(len(matrix) * eps, 1e-12)
    return (vectors[:, kept] / np.sqrt(squares[kept])).T * scale


def _root(matrix: Array) -> Array:
    """R with R R^T a positive semidefinite matrix."""
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        squares, vectors = np.linalg.eigh(matrix)
        return vectors * np.sqrt(np.maximum(squares, 0.0))
