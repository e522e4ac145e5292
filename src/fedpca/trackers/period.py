"""Period: products of fixed probes with the scatter of many rows, and the directions that come of them."""

from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca import checks
from fedpca.linalg import Array, orthonormal
from fedpca.places import NotFinite, place_of, row_energies, sum_of, to_host
from fedpca.subspace import Subspace, rounding_floor
from fedpca.trackers.panels import Probes, compared, products

_SHIFT = 32  # rounding of the products, in units of eps times the energy
_TINY = np.finfo(np.float64).tiny


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
        self.place = place = place_of(carried.components)
        self.dtype = place.host_dtype(carried.components)
        self.eps = eps
        self.n_carried, self.n_probes = carried.rank, carried.rank + fresh.shape[0]
        self.mean_square = float(carried.mean @ carried.mean)
        # The last probe is the running mean; its products serve the energy, then give way to the roots of
        # the weights, whose products are the sums that centring needs.
        mean = place.put(carried.mean, self.dtype)
        self.probes = place.xp.concat([carried.components, fresh, mean[None, :]])
        self.offsets = self.probes[:-1, :] @ mean
        self.expected, self.tolerated, self.strange = expected, tolerated, strange
        self.n_rows, self.energy = 0, 0.0
        self.inner = np.zeros((self.n_probes + 1, self.n_probes + 1))
        self.products = place.zeros(self.probes.shape, self.dtype)

    def add(self, panel: Any, roots: Any) -> NDArray[np.intp]:
        """Take a panel but for rows that products would not do justice to; returns their places.

        These are all rows, if together they have more energy outside the directions carried than the
        stream has shown so far, or single ones that alone outweigh a direction wanted.
        """
        place, last, n_rows = self.place, self.n_probes, panel.shape[0]
        rounds = self.eps > np.finfo(self.dtype).eps
        probes = Probes(self.probes, self.offsets, self.n_carried, self.mean_square, rounds)
        with place.fast() if rounds else nullcontext():
            scores, energies, outside = compared(place, panel, roots, probes)
            strange = outside > self.strange + (1e-3 if rounds else 1e-4) * energies
            n_strange = int(place.xp.count_nonzero(strange))
            left = np.arange(0)
            if 0 < n_strange < n_rows / 4:
                left = np.flatnonzero(to_host(strange))
                kept = place.put(~strange, self.dtype)
                scores, energies, outside = scores * kept, energies * kept, outside * kept
            inner = to_host(scores @ scores.T).astype(np.float64)
            energy, weight = sum_of(energies), float(inner[last, last])
            if not energy < checks.size_limit(self.dtype):
                raise NotFinite
            news = sum_of(outside) - self.expected * weight
            if n_strange >= n_rows / 4 or news > self.tolerated + (1e-4 if rounds else 1e-6) * energy:
                return np.arange(n_rows)
            self.products += products(place, scores, panel, rounds)
        self.inner += inner
        self.energy += energy
        self.n_rows += n_rows - len(left)
        return left

    def scale(self, factor: float) -> None:
        self.products *= factor**2
        self.inner *= factor**2
        self.energy *= factor**2

    def close(self, carried: Subspace, keep: int) -> Subspace:
        """The leading directions of the Nystrom approximation of everything so far; changes nothing."""
        weight = self.inner[-1, -1]
        if not weight:
            return carried
        place, dtype = self.place, self.dtype
        mean, count, total = carried.mean, carried.count + weight, carried.total + self.energy
        # Products round relative to all energy. A multiple of the identity above that is added, and taken off
        # again, so that T^-1 does not blow rounding up into directions.
        squares = carried.singular_values**2
        shift = _SHIFT * self.eps * (self.energy + float(squares.max(initial=0.0)))
        # The history: the first probes are the directions carried, so W C0 = [S^2 V; 0].
        added = np.full(self.n_probes, shift)
        added[: carried.rank] += squares
        inner = self.inner[:-1, :-1] + np.diag(added)
        score, moved = np.zeros(self.n_probes), np.zeros_like(mean)
        if carried.centered:
            new_mean = to_host(self.products[-1, :]).astype(np.float64) / weight
            step, score = new_mean - mean, self.inner[-1, :-1] / weight
            jump = carried.count * weight / count
            moved = jump * step - weight * new_mean
            inner += (jump - weight) * np.outer(score, score)
            total += jump * float(step @ step) - weight * float(new_mean @ new_mean)
            mean = mean + step * (weight / count)
        small = place.put(np.concatenate([added, score, moved]), dtype)  # in one go
        added, score, moved = small[: len(added)], small[len(added) : -len(mean)], small[-len(mean) :]
        products = self.products[:-1, :] + added[:, None] * self.probes[:-1, :]
        products += score[:, None] * moved
        components, singular_values = nystrom_directions(products, inner, keep, self.eps)
        squares = singular_values**2 - shift
        smallest = max(shift / 4, rounding_floor(total, count, mean, dtype) ** 2)
        kept = int(np.count_nonzero(squares > smallest))
        components, singular_values = components[:kept, :], np.sqrt(squares[:kept])
        total = max(total, float(singular_values @ singular_values))
        return Subspace.trusted(components, singular_values, mean, count, total, carried.centered)


def residual_directions(sample: Any, components: Any) -> Any:
    """Orthonormal directions of a few rows outside the span of orthonormal components."""
    place = place_of(sample)
    dtype = place.host_dtype(sample)
    energies = [row_energies(sample)]
    for _ in range(2):  # once more: a small residual is far from orthogonal
        if components.shape[0]:
            sample = sample - (sample @ components.T) @ components
        energies.append(row_energies(sample))
    whole, once, twice = np.sqrt(to_host(place.xp.stack(energies)).astype(np.float64))
    # What is left is rounding if it was, or if it shrinks again.
    long = (once > 32 * float(np.finfo(dtype).eps) * whole) & (twice > 0.5 * once)
    scale = np.where(long, 1 / np.where(long, twice, 1), 0)
    gram = np.outer(scale, scale) * to_host(sample @ sample.T).astype(np.float64)
    squares, vectors = place.eigh(gram)
    kept = squares > 1e-4 * squares.max(initial=0.0)  # the same row may have been drawn twice
    return place.put(((vectors[:, kept] / np.sqrt(squares[kept])).T * scale), dtype) @ sample


def nystrom_directions(products: Any, inner: Array, keep: int, eps: float) -> tuple[Any, Array]:
    """The leading right singular pairs of F with F^T F = Y^T T^+ Y.

    Args:
        products: Y = W C, shape (m, d).
        inner: T = W C W^T, shape (m, m), float64.
        keep: at most this many pairs.
        eps: what the products have lost, as a share of their size.
    """
    place = place_of(products)
    dtype = place.host_dtype(products)
    unit = float(np.trace(inner))  # none of the products is longer: no square will overflow
    units = products / unit
    exact = float(np.finfo(dtype).eps)
    factor = None if place.prefers(inner) else _inverse_root(inner, exact)
    if factor is None:  # turn the probes, so that directions of no energy can be left out
        squares, vectors = place.eigh(inner)
        kept = squares > 4 * len(inner) * exact * squares[-1]
        units = place.put((vectors[:, kept] * (unit / np.sqrt(squares[kept]))).T, dtype) @ units
        unit = 1.0
    gram = to_host(units @ units.T).astype(np.float64)
    sizes = np.sqrt(np.maximum(np.diag(gram), _TINY))
    unit_gram = gram / np.outer(sizes, sizes)
    scaled = np.diag(sizes) if factor is None else unit * factor * sizes  # F = scaled @ (units / sizes)
    squares, vectors = place.eigh(gram if factor is None else scaled @ unit_gram @ scaled.T)
    squares, vectors = squares[::-1][:keep], vectors[:, ::-1][:, :keep]
    if squares[-1] > 1e-11 * squares[0]:
        singular_values = np.sqrt(squares)
    else:  # graded: do not square
        vectors, singular_values, _ = np.linalg.svd(scaled @ _root(unit_gram))
        kept = np.count_nonzero(singular_values[:keep] > 8 * eps * singular_values[0])
        vectors, singular_values = vectors[:, :kept], singular_values[:kept]
    turn = (vectors / singular_values).T
    components = place.put(turn if factor is None else unit * turn @ factor, dtype) @ units
    if len(singular_values) and singular_values[-1] < 30 * np.sqrt(exact) * singular_values[0]:
        components = orthonormal(components)
    return components, singular_values


def _inverse_root(matrix: Array, eps: float) -> Array | None:
    """R with R^T R the inverse of a positive definite matrix; None if that is close to singular."""
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), _TINY))
    try:
        triangle = np.linalg.cholesky(matrix * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return None
    return np.linalg.inv(triangle) * scale if np.diag(triangle).min() > 300 * np.sqrt(eps) else None


def _root(matrix: Array) -> Array:
    """R with R R^T a positive semidefinite matrix."""
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        squares, vectors = np.linalg.eigh(matrix)
        return vectors * np.sqrt(np.maximum(squares, 0.0))
