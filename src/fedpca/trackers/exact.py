"""Exact: the whole d x d scatter; for few features both the fastest tracker and the most accurate."""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple, final

import numpy as np

from fedpca._typing import Array, DType
from fedpca.backend import ops
from fedpca.backend.ops import blocks, even_cuts
from fedpca.errors import NonFiniteError
from fedpca.parallel import map_parts
from fedpca.summaries.algebra import (
    directions_of_features,
    rounding_share,
    without_negative_eigenvalues,
)
from fedpca.summaries.linalg import far_limit, leading_singular_pairs, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.pooling import sum_moments
from fedpca.summaries.rank import RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View
from fedpca.trackers.base import Tracker
from fedpca.trackers.resolution import EVERYTHING, NOTHING, Resolved, min_energy, resolved
from fedpca.trackers.row_factor import RowFactor

# Fewer rows are buffered, since each panel adds d² numbers to d²; more make another panel.
_MIN_PANEL_ROWS, _MAX_PANEL_ROWS = 32, 65_536
_COPIED_ROWS = 4096  # of a panel whose rows have to be moved or factorized: 8 MB of 256 features
_BLOCK_ROWS = 4096
"""That one thread multiplies at a time: adding up products of fewer would take longer than the products,"""
_NARROW_BLOCK_ROWS, _NARROW = 1024, 256
"""unless these are small; then rows that stay in the cache are faster."""
_MAX_PARTS = 16
_MAX_KEPT = 2**23  # entries of all products of a panel together, 64 MB, before they are added up
_TILE_FEATURES, _MAX_WHOLE = 512, 1024
"""Features that are multiplied with as many others, where there are more than this."""
_ALL = slice(None)
_FLOAT64: DType = np.dtype(np.float64)
_RETRY_GROWTH = 2.0  # of the energy, until products are tried again
_PRODUCT_NOISE = 32
"""Energy of a direction that rounding of products alone can give, in units of eps and its features' sizes."""


class _Sums(NamedTuple):
    """Weight, sum, scatter and its trace, of rows less the origin."""

    weight: float
    row_sum: Array
    scatter: Array
    energy: float

    @property
    def mean(self) -> Array:
        return self.row_sum / self.weight if self.weight else np.zeros(len(self.row_sum))

    def with_more(self, other: "_Sums", *, in_place: bool = False) -> "_Sums":
        """The sums of all rows; `in_place` uses up the scatter of the others: two take memory enough."""
        return _Sums(
            self.weight + other.weight,
            self.row_sum + other.row_sum,
            np.add(self.scatter, other.scatter, out=other.scatter if in_place else None),
            self.energy + other.energy,
        )

    def scaled(self, weight: float) -> "_Sums":
        own_weight, row_sum, scatter, energy = self
        return _Sums(weight * own_weight, weight * row_sum, weight * scatter, weight * energy)

    def moved(self, step: Array) -> "_Sums":
        """The sums of the same rows less `step`."""
        cross = np.outer(self.row_sum, step)
        scatter: Array = self.scatter + (self.weight * np.outer(step, step) - cross - cross.T)
        return _Sums(self.weight, self.row_sum - self.weight * step, scatter, float(np.trace(scatter)))


class _Spectrum(NamedTuple):
    """All directions of all rows, and what else is known of them."""

    components: Array
    singular_values: Array
    mean: Array
    weight: float
    total: float
    variances: Array | None


@final
class Exact(Tracker):
    """Count, sum and scatter of all rows, one symmetric product per panel; eigenvectors only on demand.

    Memory is d² numbers. The result is that of the pooled rows, whatever their order.

    Products square the spectrum: in float32 they lose directions below 3e-4 of the largest, in float64 below
    1e-7. Where a direction wanted comes near that, products are taken about the mean, then in float64. Where
    this is not enough, rows with the same scatter are kept instead, by one QR factorization per panel: some
    six times as slow, and as accurate as a singular value decomposition of all rows.

    Args:
        mixed_units: whether features have units of their own, to be divided by their deviations in the end:
            then a mean is far if it is so for its own feature, however small that is beside others, and the
            state is always moments.

    >>> from fedpca.summaries.rank import FixedRank
    >>> tracker = Exact(3, FixedRank(1), center=False)
    >>> tracker.update(np.diag([1.0, 2.0, 5.0]))
    >>> tracker.summary().singular_values
    array([5., 2., 1.])
    """

    settings = frozenset({"mixed_units"})
    checks_rows = True
    gives_moments = True

    def __init__(
        self, n_features: int, rule: RankRule, *, mixed_units: bool = False, **settings: Any
    ) -> None:
        super().__init__(n_features, rule, **settings)
        self.mixed_units = mixed_units
        self._n_rows = 0
        self._sums = _Sums(0.0, np.zeros(n_features), np.zeros((n_features, n_features)), 0.0)
        self._noise: Array = np.zeros(n_features)  # of earlier products that were less precise
        self._product_dtype: DType = self.dtype
        self._resolved = NOTHING
        self._factor: RowFactor | None = None  # of rows less the origin; then there are no sums
        self._discarded = 0.0  # energy that merged subspaces had already lost

    @property
    def min_panel_rows(self) -> int:
        return _MIN_PANEL_ROWS

    @property
    def max_panel_rows(self) -> int:
        return _MAX_PANEL_ROWS

    @property
    def _absorbed_energy(self) -> float:
        return self._sums.energy if self._factor is None else self._factor.energy

    # --- rows in ---

    def _absorb(self, panel: Array, roots: Array | None) -> None:
        n_rows, sums = panel.shape[0], None
        self._n_rows += n_rows
        if self._factor is None:
            sums = self._products(panel, roots, self._product_dtype)
            is_far = not self._sums.weight and self._is_far(sums)
            if not is_far and (self._is_covered(sums) or self._resolves(sums, self.dtype)):
                self._add(sums)
                return
        if n_rows > _COPIED_ROWS:
            self._n_rows -= n_rows
            origin = self._offset
            for part in ops.batch_slices(n_rows, _COPIED_ROWS):
                own = None if roots is None else roots[part]
                self._absorb(self._moved(panel[part], own, self._offset - origin), own)
            return
        if sums is not None:
            if self._resolves_otherwise(panel, roots, sums):
                return
            self._keep(RowFactor.from_moments(*self._centered(self._sums)))
        self._absorb_rows(panel, roots)

    def _resolves_otherwise(self, panel: Array, roots: Array | None, sums: _Sums) -> bool:
        """Whether products about the mean, or else in float64, resolve a panel; then it is added."""
        before = self._origin, self._sums
        if self.center:
            step = self._move_origin(self._sums.with_more(sums).mean)
            if self._sums.weight:
                self._sums = self._sums.moved(step)
            panel = self._moved(panel, roots, step)
            sums = self._products(panel, roots, self.dtype)
            if self._resolves(sums, self.dtype):
                self._add(sums)
                return True
        if self.dtype != _FLOAT64:
            sums = self._products(panel, roots, _FLOAT64)
            if self._resolves(sums, _FLOAT64):
                self._add(sums)
                return True
        self._origin, self._sums = before
        return False

    def _is_covered(self, sums: _Sums) -> bool:
        """Whether products resolve what comes, by an earlier test."""
        own = self._sums
        sizes = own.scatter.diagonal(), sums.scatter.diagonal()
        return self._resolved.covers(own.energy + sums.energy, *sizes, self._n_spanned)

    def _resolves(self, sums: _Sums, dtype: DType) -> bool:
        """Whether products in a dtype resolve all rows with those that come; then they are taken in it."""
        found = self._resolution(self._sums.with_more(sums), dtype, in_place=True)
        if found is None:
            return False
        self._resolved = found
        self._use_dtype(dtype)
        return True

    def _products(self, panel: Array, roots: Array | None, dtype: DType) -> _Sums:
        """The sums of rows already multiplied by their roots."""
        row_sum, scatter = _row_sum_and_gram(panel, roots, dtype)
        energy = float(np.trace(scatter))
        if not energy < ops.max_energy(self.dtype):
            raise NonFiniteError
        weight = float(len(panel)) if roots is None else float(roots @ roots)
        return _Sums(weight, row_sum, scatter, energy)

    def _moved(self, panel: Array, roots: Array | None, step: Array) -> Array:
        """Rows of a panel after a step of the origin."""
        if not step.any():
            return panel
        moved = step.astype(self.dtype)
        return np.asarray(panel - (moved if roots is None else roots[:, None] * moved))

    @property
    def _offset(self) -> Array:
        return np.zeros(self.n_features) if self._origin is None else self._origin

    def _add(self, sums: _Sums) -> None:
        self._sums = self._sums.with_more(sums, in_place=True)
        if self._is_far(self._sums):
            self._sums = self._sums.moved(self._move_origin(self._sums.mean))

    def _is_far(self, sums: _Sums) -> bool:
        """Whether rows lie so far from the origin that products would lose too many digits."""
        if not sums.weight:
            return False
        mean = sums.mean
        if self.mixed_units:
            return self._any_far(mean, np.diag(sums.scatter) / sums.weight - mean**2)
        return self._mean_dominates(mean, sums.energy / sums.weight - float(mean @ mean))

    def _any_far(self, mean: Array, variances: Array) -> bool:
        """The same of each feature on its own; what rounding of the origin leaves of a mean is not far."""
        size = mean if self._origin is None else mean + self._origin
        least = (rounding_share(self.dtype) * size) ** 2
        limit = far_limit(self.dtype)
        return self.center and bool((mean**2 > limit * np.maximum(variances, 0.0) + least).any())

    def _use_dtype(self, dtype: DType) -> None:
        """Take products in this dtype from now on."""
        if dtype != self._product_dtype:
            self._noise = self._product_noise() if dtype == _FLOAT64 else np.zeros(self.n_features)
            self._product_dtype = dtype

    def _product_noise(self) -> Array:
        """Rounding of the diagonal of the scatter, shape (d,)."""
        return self._noise + float(np.finfo(self._product_dtype).eps) * self._sums.scatter.diagonal()

    def _keep(self, factor: RowFactor) -> None:
        """Keep rows with the scatter of all, instead of the scatter."""
        self._factor = factor
        self._sums = _Sums(0.0, np.zeros(0), np.zeros((0, 0)), 0.0)
        self._resolved = Resolved(_RETRY_GROWTH * factor.energy, None, np.inf)

    def _absorb_rows(self, panel: Array, roots: Array | None) -> None:
        """Absorb a panel without products, or go back to them where they resolve everything again."""
        assert self._factor is not None
        if not ops.energy(panel) < ops.max_energy(self.dtype):
            raise NonFiniteError
        added = RowFactor.from_rows(panel, roots, center=self.center)
        factor = self._factor = self._factor.joined(added)
        if factor.energy <= self._resolved.energy:
            return
        self._resolved = Resolved(_RETRY_GROWTH * factor.energy, None, np.inf)
        self._use_products(factor)

    def _use_products(self, factor: RowFactor) -> None:
        """Go over to products, if they resolve the rows of a factor."""
        about_mean = _Sums(factor.count, np.zeros(self.n_features), factor.scatter, factor.energy)
        for dtype in dict.fromkeys((self.dtype, _FLOAT64)):
            if found := self._resolution(about_mean, dtype):
                offset = factor.mean - self._move_origin(factor.mean) if self.center else factor.mean
                self._sums = about_mean.moved(-offset)
                self._noise = np.zeros(self.n_features)
                self._resolved, self._product_dtype, self._factor = found, dtype, None
                return

    # --- resolution ---

    @property
    def _n_spanned(self) -> int:
        """Directions that so many rows can span."""
        return self._n_rows - self.center

    def _resolution(self, sums: _Sums, dtype: DType, *, in_place: bool = False) -> Resolved | None:
        """How far products in a dtype resolve the rows behind some sums; None if they do not."""
        n_wanted = self.rule.n_weak(self.n_features, min_energy(self.n_features, dtype))
        if not n_wanted:
            return EVERYTHING
        sizes = sums.scatter.diagonal().copy()
        _, mean, scatter = self._centered(sums, in_place=in_place)
        varying = np.diag(scatter) > self._value_rounding(sums.weight, mean, np.diag(scatter))
        max_growth = self._resolved.growth if dtype == self._product_dtype else np.inf
        return resolved(scatter, sizes, varying, n_wanted, self._n_spanned, dtype, max_growth)

    def _value_rounding(self, count: float, offset: Array, energies: Array) -> Array:
        """Energies of the features that rounding of their values alone can give, shape (d,).

        Args:
            offset: the mean, less the origin.
            energies: of the features about their mean.
        """
        mean = offset if self._origin is None else offset + self._origin
        return rounding_share(self.dtype) ** 2 * (energies + count * mean**2)

    # --- summaries out ---

    def _current(self) -> "Exact":
        """A tracker of everything so far that has no buffer and no decay ahead."""
        if not self._buffer.n_rows and self._pending_decay == 1.0:
            return self
        current = self.branch()
        if current._buffer.n_rows:
            current._flush()
        current._apply_decay()
        return current

    def _centered(self, sums: _Sums, *, in_place: bool = False) -> tuple[float, Array, Array]:
        """Count, mean less the origin, and centered scatter; `in_place` uses up that of the sums."""
        scatter = sums.scatter if in_place else sums.scatter.copy()
        mean: Array = np.zeros(self.n_features)
        if self.center and sums.weight:
            mean = sums.mean
            scatter -= sums.row_sum[:, None] @ mean[None, :]  # np.outer would take three times the memory
        return sums.weight, mean, scatter

    def _absorbed_spectrum(self) -> _Spectrum:
        if self._factor is None:
            count, offset, scatter = self._centered(self._sums)
            energies = np.diag(scatter).copy()
            components, singular_values = directions_of_features(scatter)
            del scatter
            noise = _PRODUCT_NOISE * self._product_noise()
        else:
            count, offset = self._factor.count, self._factor.mean
            energies = np.sum(self._factor.rows**2, axis=0)
            components, singular_values = leading_singular_pairs(self._factor.rows)
            noise = np.zeros(self.n_features)
        noise = np.maximum(noise, self._value_rounding(count, offset, energies))
        real = singular_values**2 > components**2 @ noise
        return _Spectrum(
            components[real],
            singular_values[real],
            offset if self._origin is None else offset + self._origin,
            count,
            max(float(energies.sum()), 0.0) + self._discarded,
            energies / count if count else None,
        )

    def _truncated(self, spectrum: _Spectrum, rank: int) -> Subspace:
        return Subspace.unchecked(
            components=with_fixed_signs(spectrum.components[:rank]).astype(self.dtype, copy=False),
            singular_values=spectrum.singular_values[:rank],
            mean=spectrum.mean,
            count=spectrum.weight,
            total=spectrum.total,
            centered=self.center,
        )

    def state(self) -> Summary:
        current = self._current()
        # Moments cannot have lost energy, and would lose digits; a subspace of all directions serves both.
        if not self.mixed_units and (current._discarded or current._factor is not None):
            return current._truncated(current._absorbed_spectrum(), self.n_features)
        return current._moments()

    def _moments(self) -> Moments:
        """The moments of everything absorbed."""
        if self._factor is None:
            count, offset, scatter = self._centered(self._sums)
        else:
            count, offset, scatter = self._factor.count, self._factor.mean, self._factor.scatter
        mean = offset if self._origin is None else offset + self._origin
        if self.dtype != _FLOAT64:  # products of strided rows are not even symmetric
            scatter = without_negative_eigenvalues((scatter + scatter.T) / 2)
        return Moments(count, mean, scatter, self.center)

    def _view(self) -> View:
        spectrum = self._current()._absorbed_spectrum()
        rank = fixed_point(self.rule, self.rank, self.n_features, spectrum.singular_values, spectrum.total)
        summary = self._truncated(spectrum, self._exchanged_for(rank))
        n_components = self.rule.n_components(rank, summary.singular_values, summary.total)
        return View(summary, n_components, spectrum.variances)

    def _scale(self, factor: float) -> None:
        weight = factor**2
        self._sums = self._sums.scaled(weight)
        self._noise = weight * self._noise
        self._resolved = self._resolved.scaled(weight)
        self._factor = None if self._factor is None else self._factor.scaled(factor)
        self._discarded *= weight

    # --- merging ---

    def _merge(self, others: Sequence[Summary]) -> None:
        for other in others:
            self._n_rows += math.ceil(other.count)
            if isinstance(other, Subspace):
                self._discarded += other.discarded
        if self._factor is None and self._merge_sums(others):
            return
        own = self._factor or RowFactor.from_moments(*self._centered(self._sums))
        if self._origin is not None:
            own, self._origin = own.translated(self._origin), None
        self._keep(own.joined(*(RowFactor.from_summary(other) for other in others)))

    def _merge_sums(self, others: Sequence[Summary]) -> bool:
        """Add up the moments of other summaries, if products resolve the result; whether they do."""
        moments = [Moments(other.count, other.mean, other.scatter, other.centered) for other in others]
        own = self._moments()
        merged = sum_moments([own, *moments], own.about)
        origin, self._origin = self._origin, None
        offset = merged.mean
        if merged.count and (
            self._any_far(offset, np.diag(merged.scatter) / merged.count)
            if self.mixed_units
            else self._mean_dominates(offset, merged.total / merged.count)
        ):
            offset = offset - self._move_origin(offset)
        row_sum = merged.count * offset
        scatter = merged.scatter + np.outer(row_sum, offset)
        sums = _Sums(merged.count, row_sum, scatter, float(np.trace(scatter)))
        for dtype in dict.fromkeys((self.dtype, _FLOAT64)):
            if found := self._resolution(sums, dtype):
                self._use_dtype(dtype)
                self._sums, self._resolved = sums, found
                return True
        self._origin = origin
        return False


def _row_sum_and_gram(panel: Array, roots: Array | None, dtype: DType) -> tuple[Array, Array]:
    """`roots @ panel` and `panel.T @ panel`, by products in a dtype; a team shares rows and tiles."""
    n_rows, d = panel.shape
    size = _NARROW_BLOCK_ROWS if d <= _NARROW else _BLOCK_ROWS
    if n_rows <= size and d <= _MAX_WHOLE:
        return _block_sums(panel, roots, dtype)
    rows = even_cuts(n_rows, max(min(n_rows // size, _MAX_PARTS, _MAX_KEPT // d**2), 1))
    tiles = even_cuts(d, -(-d // _TILE_FEATURES) if d > _MAX_WHOLE else 1)
    parts = list(product(rows, combinations_with_replacement(tiles, 2)))

    def multiply(part: tuple[slice, tuple[slice, slice]]) -> tuple[Array, Array]:
        sums = (
            _block_sums(panel[block], None if roots is None else roots[block], dtype, *part[1])
            for block in blocks(part[0], size)
        )
        row_sum, gram = next(sums)
        for more, products in sums:
            row_sum += more
            gram += products
        return row_sum, gram

    row_sum, gram = np.zeros(d), np.zeros((d, d))
    for (_, (left, right)), (own_sum, own) in zip(parts, map_parts(multiply, parts), strict=True):
        gram[left, right] += own
        if left is right:
            row_sum[left] += own_sum
        else:
            gram[right, left] += own.T
    return row_sum, gram


def _block_sums(
    rows: Array, roots: Array | None, dtype: DType, left: slice = _ALL, right: slice = _ALL
) -> tuple[Array, Array]:
    """The same of few rows: the sums of some features, and their products with some."""
    rows = rows.astype(dtype, copy=False)
    roots = np.ones(len(rows), dtype) if roots is None else roots.astype(dtype, copy=False)
    row_sum, gram = roots @ rows[:, left], rows[:, left].T @ rows[:, right]
    return row_sum.astype(np.float64, copy=False), gram.astype(np.float64, copy=False)
