"""Period: products of fixed probes with the scatter of many rows, and the directions that come of them."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import Array
from fedpca.backend import backend_of, ops, to_host
from fedpca.backend.ops import row_energies
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import rounding_floor
from fedpca.summaries.linalg import orthonormal, triangle_inverse
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.nystrom.products import Probes, compared, products

_SHIFT = 32  # rounding of the products, in units of eps times the energy
_TINY = np.finfo(np.float64).tiny


class Closing(NamedTuple):
    """What the end of a period takes from a device.

    Attributes:
        sources: products, and below them the probes, shape (2 m + 2, d).
        gram: sources @ sources.T.
        row_sum: sum of the rows, shape (d,).
    """

    sources: Any
    gram: NDArray[np.float64]
    row_sum: NDArray[np.float64]


class Period:
    """Products of fixed probes with the scatter of the rows of one period.

    Args:
        carried: what the stream has shown so far.
        fresh: more probes, orthonormal to those carried, shape (p, d).
        eps: what products may lose.
        expected: energy outside the directions carried that a row is expected to have.
        tolerated: by how much a panel may exceed it.
        strange: energy outside that no single row may have.
    """

    def __init__(
        self,
        carried: Subspace,
        fresh: Any,
        eps: float,
        *,
        expected: float,
        tolerated: float,
        strange: float,
    ) -> None:
        self.backend = backend = backend_of(carried.components)
        self.dtype = backend.numpy_dtype(carried.components)
        self.eps = eps
        self.n_probes = carried.rank + fresh.shape[0]
        # The last probe is the running mean; its products serve the energy, then give way to the roots of
        # the weights, whose products are the sums that centering needs.
        mean = backend.asarray(carried.mean, self.dtype)
        self.directions = backend.xp.concat([carried.components, fresh, mean[None, :]])
        rounds = bool(eps > np.finfo(self.dtype).eps)
        directions = backend.round_to_tf32(self.directions) if rounds else self.directions
        self.probes = Probes(
            directions,
            offsets=directions[:-1, :] @ mean,
            n_carried=carried.rank,
            mean_square=float(carried.mean @ carried.mean),
            strange=strange,
            rounds=rounds,
        )
        self.expected, self.tolerated = expected, tolerated
        self.n_rows, self.energy = 0, 0.0
        self.inner = np.zeros((self.n_probes + 1, self.n_probes + 1))
        self.products: Any = None  # shape (m + 1, d)
        self.closing: Closing | None = None  # fetched ahead

    def add(self, panel: Any, roots: Any) -> NDArray[np.intp]:
        """Take a panel but for rows that products would not do justice to; returns their places.

        These are all rows, if together they have more energy outside the directions carried than the
        stream has shown so far, or single ones that alone outweigh a direction wanted.
        """
        backend, rounds, n_rows = self.backend, self.probes.rounds, panel.shape[0]
        with backend.tf32_matmul() if rounds else nullcontext():
            scores, facts = compared(backend, panel, roots, self.probes)
            found = products(backend, scores, panel, rounds)
        found = found if self.products is None else self.products + found
        sums = backend.xp.sum(facts, axis=1, dtype=backend.xp.float64)
        closing = None
        if backend.on_device and self.dtype == np.float32:  # whose squares float64 holds in any unit
            sums, inner, closing = self._fetched(found, scores, sums, roots)
        else:
            sums, added = backend.to_numpy(sums, scores @ scores.T)
            inner = self.inner + added
        energy, outside, n_strange = sums.tolist()
        if not energy < ops.max_energy(self.dtype):
            raise NonFiniteError
        news = outside - self.expected * (inner[-1, -1] - self.inner[-1, -1])
        if n_strange >= n_rows / 4 or news > self.tolerated + (1e-4 if rounds else 1e-6) * energy:
            return np.arange(n_rows)
        self.products, self.inner, self.closing = found, inner, closing
        self.energy += energy
        self.n_rows += n_rows - int(n_strange)
        return np.flatnonzero(to_host(facts[-1, :])) if n_strange else np.arange(0)

    def _fetched(
        self, found: Any, scores: Any, sums: Any, roots: Any
    ) -> tuple[NDArray[np.float64], Array, Closing]:
        """In one journey: sums of facts, inner products of all scores, and what the end takes."""
        backend, rounds, n_products = self.backend, self.probes.rounds, self.n_probes + 1
        sources = backend.xp.concat([found, self.directions])
        exact = backend.asarray(sources, np.float64)
        wanted = [sums, exact @ exact.T, found[-1, :], self.probes.offsets]
        if rounds:
            wanted.append(exact[:n_products, :] @ backend.asarray(self.probes.directions, np.float64).T)
        if roots is not None:
            wanted.append(backend.xp.sum(scores[-1, :] ** 2, dtype=backend.xp.float64))
        sums, gram, row_sum, offsets, *others = backend.to_numpy(*wanted)
        along = others.pop(0) if rounds else gram[:n_products, n_products:]
        weight = scores.shape[1] - sums[-1] if roots is None else float(others.pop(0))
        inner = _inner_of(along[:, :-1], offsets, self.inner[-1, -1] + weight)
        return sums, inner, Closing(sources, gram, row_sum)

    def scale(self, factor: float) -> None:
        if self.products is not None:
            self.products, self.closing = self.products * factor**2, None
        self.inner *= factor**2
        self.energy *= factor**2

    def close(self, carried: Subspace, keep: int) -> Subspace:
        """The leading directions of the Nystrom approximation of everything so far; changes nothing."""
        weight = self.inner[-1, -1]
        if not weight:
            return carried
        n_probes, mean = self.n_probes, carried.mean
        count, total = carried.count + weight, carried.total + self.energy
        # Products round relative to all energy. A multiple of the identity above that is added, and taken off
        # again, so that T^-1 does not blow rounding up into directions.
        squares = carried.singular_values**2
        shift = _SHIFT * self.eps * (self.energy + float(squares.max(initial=0.0)))
        # The history: the first probes are the directions carried, so W C0 = [S^2 V; 0].
        added = np.full(n_probes, shift)
        added[: carried.rank] += squares
        inner = self.inner[:-1, :-1] + np.diag(added)
        # All products, of the history and about the new mean, from those of the period and the probes.
        turn = np.hstack([np.eye(n_probes, n_probes + 1), np.diag(added), np.zeros((n_probes, 1))])
        if carried.centered:
            score, jump = self.inner[-1, :-1] / weight, carried.count * weight / count
            inner += (jump - weight) * np.outer(score, score)
            turn[:, n_probes], turn[:, -1] = (jump - weight) / weight * score, -jump * score
        unit = float(np.trace(inner))  # none of the products is longer: no square will overflow
        turn /= unit
        gram: Array
        still: Array | None = None  # to be turned
        if self.closing is None:
            sources = self.backend.xp.concat([self.products, self.directions])
            sources = self.backend.asarray(turn, self.dtype) @ sources
            gram, row_sum = self.backend.to_numpy(sources @ sources.T, self.products[-1, :])
        else:
            sources, gram, row_sum = self.closing
            gram, still = turn @ gram @ turn.T, turn
        if carried.centered:
            new_mean = row_sum / weight
            step = new_mean - mean
            total += jump * float(step @ step) - weight * float(new_mean @ new_mean)
            mean = mean + step * (weight / count)
        components, squares = nystrom_directions(sources, still, gram, inner / unit, keep, self.eps)
        squares = squares * unit - shift
        smallest = max(shift / 4, rounding_floor(total, count, mean, self.dtype) ** 2)
        kept = int(np.count_nonzero(squares > smallest))
        components, singular_values = components[:kept, :], np.sqrt(squares[:kept])
        total = max(total, float(singular_values @ singular_values))
        return Subspace.unchecked(components, singular_values, mean, count, total, carried.centered)


def _inner_of(along: Array, offsets: Array, weight: float) -> Array:
    """Products of scores with one another, the last of them roots, from the products that they made of rows.

    Args:
        along: these, along the probes.
        offsets: of the mean, along the probes.
        weight: the sum of the squares of the roots.
    """
    sums = along[-1, :] - weight * offsets
    half = (along[:-1, :] - np.outer(sums, offsets)) / 2
    inner = np.empty((len(along), len(along)))
    inner[:-1, :-1] = half + half.T
    inner[-1, :-1] = inner[:-1, -1] = sums
    inner[-1, -1] = weight
    return inner


def residual_directions(sample: Any, components: Any) -> Any:
    """Orthonormal directions of a few rows outside the span of orthonormal components."""
    backend = backend_of(sample)
    dtype = backend.numpy_dtype(sample)
    energies = []
    for _ in range(2 if components.shape[0] else 0):  # once more: a small residual is far from orthogonal
        energies.append(row_energies(sample))
        sample = sample - (sample @ components.T) @ components
    gram, *fetched = backend.to_numpy(sample @ sample.T, *energies)
    twice = np.sqrt(np.diag(gram))
    whole, once = np.sqrt(fetched) if fetched else (twice, twice)
    # What is left is rounding if it was, or if it shrinks again.
    long = (once > 32 * float(np.finfo(dtype).eps) * whole) & (twice > 0.5 * once)
    turn = _inverse_root(gram, 1e-2) if long.all() else None
    if turn is None:
        scale = np.where(long, 1 / np.where(long, twice, 1), 0)
        squares, vectors = backend.eigh(np.outer(scale, scale) * gram)
        kept = squares > 1e-4 * squares.max(initial=0.0)  # the same row may have been drawn twice
        turn = (vectors[:, kept] / np.sqrt(squares[kept])).T * scale
    return backend.asarray(turn, dtype) @ sample


def nystrom_directions(
    sources: Any, turn: Array | None, gram: Array, inner: Array, keep: int, eps: float
) -> tuple[Any, Array]:
    """The leading right singular vectors of F with F^T F = Y^T T^+ Y, and their energies.

    Args:
        sources: shape (n, d).
        turn: such that Y = W C = turn @ sources, shape (m, n); None if the sources are Y.
        gram: Y Y^T, shape (m, m), float64.
        inner: T = W C W^T, shape (m, m), float64.
        keep: at most this many pairs.
        eps: what the products have lost, as a share of their size.
    """
    backend = backend_of(sources)
    dtype = backend.numpy_dtype(sources)
    exact = float(np.finfo(dtype).eps)
    if not len(inner):
        return sources[:0, :], np.zeros(0)
    factor = _inverse_root(inner, 300 * np.sqrt(exact))
    if factor is None:  # turn the probes, so that directions of no energy can be left out
        squares, vectors = backend.eigh(inner)
        kept = squares > 4 * len(inner) * exact * squares[-1]
        sources = (
            backend.asarray(_turned((vectors[:, kept] / np.sqrt(squares[kept])).T, turn), dtype) @ sources
        )
        (gram,) = backend.to_numpy(sources @ sources.T)
        turn, factor = None, np.eye(len(gram))
    sizes = np.sqrt(np.maximum(np.diag(gram), _TINY))
    unit_gram = gram / np.outer(sizes, sizes)
    scaled = factor * sizes  # F = scaled @ (Y / sizes)
    squares, vectors = backend.eigh(scaled @ unit_gram @ scaled.T)
    squares, vectors = squares[::-1][:keep], vectors[:, ::-1][:, :keep]
    if not squares[-1] > 1e-11 * squares[0]:  # graded: do not square
        vectors, singular_values, _ = np.linalg.svd(scaled @ _root(unit_gram))
        kept = np.count_nonzero(singular_values[:keep] > 8 * eps * singular_values[0])
        vectors, squares = vectors[:, :kept], singular_values[:kept] ** 2
    components = backend.asarray(_turned((vectors / np.sqrt(squares)).T @ factor, turn), dtype) @ sources
    if len(squares) and squares[-1] < 900 * exact * squares[0]:
        components = orthonormal(components)
    return components, squares


def _turned(matrix: Array, turn: Array | None) -> Array:
    return matrix if turn is None else matrix @ turn


def _inverse_root(matrix: Array, smallest: float) -> Array | None:
    """R with R^T R the inverse of a positive definite matrix; None if that is close to singular.

    Args:
        smallest: share of a row that may depend on the others but for this.
    """
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), _TINY))
    try:
        triangle = np.linalg.cholesky(matrix * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return None
    return triangle_inverse(triangle) * scale if np.diag(triangle).min() > smallest else None


def _root(matrix: Array) -> Array:
    """R with R R^T a positive semidefinite matrix."""
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        squares, vectors = np.linalg.eigh(matrix)
        return vectors * np.sqrt(np.maximum(squares, 0.0))
