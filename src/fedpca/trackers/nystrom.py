"""Nystrom: the fast kernel; two matrix products a row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca import checks
from fedpca.linalg import Array, orthonormal, orthonormality_error
from fedpca.merge import Summary, append_rows
from fedpca.places import NotFinite, cuts, dense, place_of, row_energies, sum_of, to_host
from fedpca.subspace import Subspace, rounding_floor
from fedpca.trackers.base import Tracker
from fedpca.trackers.panels import Probes, compared, products

# When is a panel news? When its energy outside the directions carried exceeds what the stream has shown, with
# slack for chance, by more than this share of the weakest direction wanted.
_NOISE_SLACK = 1.5
_NEWS = 1e-3
_STRANGE = 0.5  # and a single row, when its own energy outside exceeds this share of that direction
# A flat spectrum takes more probes, and while the stream is short the rows themselves, to be told apart.
_GRADED = 8  # a weakest direction below this times the root of eps is lost in products
_FLAT = 1.0
_VERY_FLAT = 8.0
_SHIFT = 32  # rounding of the products, in units of eps times the energy
# On a device a launch costs as much as thousands of rows: panels and periods are long, and few.
_DEVICE_ROWS = 16_384  # in the first panel, and waiting for one
_DEVICE_ENTRIES = 2**26  # of the products of a panel with the probes
_DEVICE_GROWTH = 256  # of the stream, from period to period
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
    sqrt(eps) sigma_1), and a short stream whose directions hardly differ in energy. On a device, where that
    update would take long, many such rows are searched for directions first, by products as well.

    Args:
        seed: of the choice of recent rows as probes.
    """

    takes_sparse = True
    takes_devices = True

    def __init__(self, n_features: int, rule: Any, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._rng = np.random.default_rng(seed)
        # About the anchor; its components are where the rows are.
        self._carried = self._placed(Subspace.empty(n_features, centered=self.center, dtype=self.dtype))
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
        """Directions carried from period to period, at no cost: all probes, but on the host for one, to which
        every period gives a new one a chance; `keep` are exchanged."""
        return self.width if self.place.on_device else max(self.keep, self.width - 1)

    @property
    def buffer_rows(self) -> int:
        if self.place.on_device:
            return max(2 * self.width, min(_DEVICE_ROWS, 2**24 // self.n_features))
        return max(2 * self.width, 128)  # the first rows are factorised exactly: enough for good first probes

    @property
    def smallest_panel(self) -> int:
        return 32 if self._carried.count and not self.place.on_device else self.buffer_rows

    @property
    def largest_panel(self) -> int:
        if not self._carried.count:
            return self.buffer_rows
        most = _DEVICE_ENTRIES // (self.width + 1) if self.place.on_device else 1024
        seen = 0 if self._period is None else self._period.n_rows
        return min(most, max(self.smallest_panel, self._period_rows() - seen))

    def _absorb(self, panel: Any, roots: Any) -> None:
        if self._period is None and self._needs_rows():
            self._absorb_news(panel, roots)
        else:
            if self._period is None:
                missing = max(self.width - self._carried.rank, 0)
                self._period = self._open(self._sample(panel, roots, missing))
            left = self._period.add(panel, roots)
            if len(left):
                self._close()
                self._absorb_news(
                    self.place.take(panel, left), None if roots is None else self.place.take(roots, left)
                )
            elif self._period.n_rows >= self._period_rows():
                self._close()
        self._n_rows += panel.shape[0]
        if self._period is None:
            self._stay_near_origin()

    def _absorb_news(self, panel: Any, roots: Any) -> None:
        """Rows whose directions are not among the probes: exactly, but for many of them on a device."""
        if self.place.on_device and not self._graded and panel.shape[0] > 2 * self.width:
            self._learn_anew(panel, roots)
        else:
            self._append(panel, roots)

    def _learn_anew(self, panel: Any, roots: Any) -> None:
        """Many such rows on a device: more and more at a time, with as many of them as probes again."""
        if not self._carried.count:
            panel = self._near_origin(panel, roots)
        start, size = 0, self.buffer_rows
        while start < panel.shape[0]:
            cut = slice(start, min(start + size, panel.shape[0]))
            rows, part = panel[cut, :], None if roots is None else roots[cut]
            probes = self._sample(rows, part, self.width + 32)
            if self._n_follow < 8 * size or probes.shape[0] < 4 * self.rank:  # look twice
                search = self._open(probes, news=True)
                search.add(rows, part)
                probes = self._residual(search.close(self._carried, self.carry).components)
            self._period = self._open(probes, news=True)
            self._period.add(rows, part)
            self._close()
            start, size = start + size, _DEVICE_GROWTH * size

    def _near_origin(self, panel: Any, roots: Any) -> Any:
        """The first rows less an anchor, if they need one."""
        count = max(panel.shape[0] if roots is None else float(roots @ roots), _TINY)
        sums = self.place.xp.sum(panel, axis=0) if roots is None else roots @ panel
        mean = to_host(sums).astype(np.float64) / count
        spread = sum_of(row_energies(panel)) / count - float(mean @ mean)
        if not self.is_far(mean, spread):
            return panel
        step = self.place.put(self._move_anchor(mean), self.dtype)
        return panel - (step if roots is None else roots[:, None] * step)

    def _needs_rows(self) -> bool:
        """Whether products will not do: at the start, on a graded spectrum, early on a flat one."""
        singular_values = self._carried.singular_values[: self.rank]
        if not len(singular_values):
            return True
        limit = _GRADED * np.sqrt(np.finfo(self.dtype).eps) * singular_values[0]
        self._graded = bool(singular_values[-1] < (4 * limit if self._graded else limit))  # must not flicker
        flat = self._flatness > _VERY_FLAT and self._n_rows < 64 * self.width
        return self._graded or (flat and not self.place.on_device)

    def _append(self, panel: Any, roots: Any) -> None:
        """The exact block update, on the host, a few rows at a time; the first rows at once."""
        carried = _with_components(self._carried, to_host(self._carried.components))
        step = 2 * self.width if carried.count else panel.shape[0]
        for cut in cuts(panel.shape[0], step):
            rows, part = to_host(dense(panel[cut, :])), None if roots is None else to_host(roots[cut])
            carried = append_rows(carried, rows, part, self.carry)
        self._carried = self._placed(carried)
        self._adapt()

    def _open(self, more: Any, *, news: bool = False) -> "_Period":
        """A period whose probes are the directions carried and more, orthonormal to them.

        Args:
            more: shape (p, d).
            news: whether its rows are known to be news, and all to be taken.
        """
        carried = self._carried
        weakest = carried.singular_values[self.rank - 1] if self.rank <= carried.rank else 0.0
        return _Period(
            carried,
            more,
            self._products_eps(),
            expected=np.inf if news else self._expected(),
            tolerated=_NEWS * float(weakest) ** 2,
            strange=np.inf if news else _STRANGE * float(weakest) ** 2,
        )

    def _sample(self, panel: Any, roots: Any, n_rows: int) -> Any:
        """Orthonormal directions of a few rows outside those carried."""
        chosen = self._rng.integers(0, panel.shape[0], n_rows)
        if not n_rows:
            return self._carried.components[:0, :]
        rows, mean = dense(self.place.take(panel, chosen)), self.place.put(self._carried.mean, self.dtype)
        if self.center and not self._carried.count:  # of which nothing is known yet
            mean = self.place.xp.mean(rows, axis=0)
        rows = rows - (mean if roots is None else self.place.take(roots, chosen)[:, None] * mean)
        return residual_directions(rows, self._carried.components)

    def _residual(self, directions: Any) -> Any:
        """What orthonormal directions have besides those carried."""
        carried = self._carried.components
        return residual_directions(directions, carried) if carried.shape[0] else directions

    def _expected(self) -> float:
        """Energy that a row is expected to have outside the directions carried."""
        slack = _NOISE_SLACK + 8 * self.width / self._n_rows
        return slack * self._carried.left_out / self._carried.count

    def _products_eps(self) -> float:
        """What products may lose: less where the spectrum is too graded for fast ones."""
        exact = float(np.finfo(self.dtype).eps)
        fast = self.place.fast_eps(self.dtype)
        singular_values = self._carried.singular_values[: self.rank]
        if fast > exact and len(singular_values) == self.rank:
            return fast if singular_values[-1] > 2 * _GRADED * np.sqrt(fast) * singular_values[0] else exact
        return exact

    def _period_rows(self) -> int:
        """Longer periods as the stream grows: what one adds to the directions shrinks."""
        if self.place.on_device:
            well_begun = self._n_rows >= 16 * self.n_features and self.width + 32 >= 4 * self.rank
            return max(self.buffer_rows, int((_DEVICE_GROWTH if well_begun else 16) * self._n_rows))
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
        if self._n_waiting and self.place.on_device:  # too many to be factorised
            copy = deepcopy(self)
            copy._flush()
            return copy.state()
        return self._with_waiting(self._absorbed())

    def _absorbed(self) -> Subspace:
        carried = self._carried if self._period is None else self._period.close(self._carried, self.carry)
        components = to_host(carried.components)
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
        self._carried = self._placed(self._merged(self._absorbed(), others, self.carry))
        self._period, self._anchor = None, None
        self._n_rows = max(self._n_rows, self._carried.count)
        self._stay_near_origin()

    def _placed(self, carried: Subspace) -> Subspace:
        return _with_components(carried, self.place.put(carried.components, self.dtype))


class _Period:
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


def _with_components(carried: Subspace, components: Any) -> Subspace:
    """The same subspace, its components elsewhere."""
    facts = (carried.singular_values, carried.mean, carried.count, carried.total, carried.centered)
    return Subspace.trusted(components, *facts)


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
