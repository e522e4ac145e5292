"""DeviceExact: the whole scatter of rows on a device; to sum it takes little longer than to read them."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from fedpca._typing import Array, DeviceArray, DType, RowsLike
from fedpca.backend import ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.summaries.algebra import rounding_share, without_negative_eigenvalues
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import FixedRank, RankRule, fixed_point
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View
from fedpca.trackers.base import Tracker
from fedpca.trackers.on_device.leading import block_width, complete, leading
from fedpca.trackers.on_device.products import LibraryProducts, Products, fast_products, middle_of

_FLOAT64: DType = np.dtype(np.float64)
# Of all energy, that of the last direction wanted: below, float64 products. Measured on an H200, rotated rows
# of 1,000 features: bfloat16 products turn a direction of 3e-5 of the trace by 2e-5, one of 1e-5 by 6e-4, and
# lose one of 1e-6.
_LEAST_SHARE = 1e-5
_LEAST_SHARE_TO_RETURN = 4e-5  # to the faster products: streams near the limit do not go to and fro
_GROWTH = 2.0  # of the energy, until the next look at how steep the spectrum is
_NOISE = 32
"""Energy of a direction that rounding alone can give, in units of eps: of its features' sizes by products, of
the largest energy by the iteration for leading directions."""


class _State(NamedTuple):
    """Moments of all rows so far, on the device; replaced, never changed.

    Attributes:
        weight: of all rows.
        mean: float64, shape (d,), on the host; zeros if rows are not centered.
        scatter: float64, shape (d, d), about the mean.
        total: its trace.
        rounded: energy of rows as bfloat16 saw them, about a shift near the mean of their batch.
        n_fast: rows that did not go through float64 products.
    """

    weight: float
    mean: Array
    scatter: DeviceArray
    total: float
    rounded: float = 0.0
    n_fast: int = 0

    @property
    def energy(self) -> float:
        """What rounding to bfloat16 is measured against."""
        return max(self.rounded, self.total)


class _Spectrum(NamedTuple):
    vectors: DeviceArray  # (k, d), on the device
    values: Array  # energies, descending


@final
class DeviceExact(Tracker):
    """Count, mean and scatter of all rows on their device, one fused pass and one product per batch.

    A batch is summed apart, about a shift near its own mean, and added once it is known to be finite: a
    refused one changes nothing. Products of float32, float16 and bfloat16 rows are taken in bfloat16 on
    tensor cores, which loses directions below 1e-5 of all variance. Where the last direction wanted comes
    near that, the batch is summed again in float64, and those that follow are, too. Scatters only grow, so
    what was rounded before does no harm, but for directions that are wanted only now.

    No more leaves the device than is asked for: the directions to exchange, or moments.

    Args:
        gives_moments: whether `state` is `Moments`, d² numbers, rather than the directions to exchange.
        precise: whether all products are in float64, as they always are of float64 rows.
    """

    settings = frozenset({"backend", "gives_moments", "precise"})

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        gives_moments: bool = False,
        precise: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(n_features, rule, **settings)
        self.gives_moments = gives_moments
        self._may_round = not precise and self.dtype != _FLOAT64
        self._is_fast = self._may_round
        self._next_look = 0.0  # energy at which the spectrum may have become steep, or be so no more
        scatter = self.backend.zeros((n_features, n_features), np.float64)
        self._state = _State(0.0, np.zeros(n_features), scatter, 0.0)
        self._discarded = 0.0  # energy that merged subspaces had already lost
        self._spectrum: _Spectrum | None = None  # of the state, if it is known
        self._start: DeviceArray | None = None  # directions known before

    # --- sizes: a batch is one panel, as it is ---

    @property
    def min_panel_rows(self) -> int:
        return 1

    @property
    def max_panel_rows(self) -> int:
        return 2**62

    @property
    def buffer_capacity(self) -> int:
        return 1

    def _must_copy(self, rows: RowsLike, roots: DeviceArray | None) -> bool:
        return False

    def _prepared(self, rows: RowsLike, roots: DeviceArray | None) -> RowsLike:
        return self.backend.asarray(ops.dense(rows))  # shifted and weighted where they are multiplied

    # --- rows in ---

    @property
    def _absorbed_energy(self) -> float:
        return self._state.total

    def _absorb(self, panel: DeviceArray, roots: DeviceArray | None) -> None:
        before, start = self._state, self._spectrum.vectors if self._spectrum else self._start
        after = self._with_batch(panel, roots, fast=self._is_fast)
        spectrum = None
        if self._may_round and after.energy >= self._next_look:
            spectrum = self._spectrum_of(after, start)
            least = _LEAST_SHARE if self._is_fast else _LEAST_SHARE_TO_RETURN
            is_steep = self._last_wanted(after, spectrum) < least * after.energy
            if self._is_fast and is_steep:
                del after  # there is no room for three
                after = self._with_batch(panel, roots, fast=False)
                spectrum = self._spectrum_of(after, spectrum.vectors)
                if self._last_wanted(after, spectrum) < _LEAST_SHARE * before.rounded:
                    _warn_of(before.n_fast)
            self._is_fast = not is_steep
            self._next_look = self._look_after(after, spectrum)
        self._state, self._spectrum, self._start = after, spectrum, start

    def _look_after(self, state: _State, spectrum: _Spectrum) -> float:
        """The energy up to which it stays as it is whether the spectrum is steep, for all that is known.

        A scatter only grows, and so does the energy of its last direction wanted, if that stays the same one.
        """
        if self._is_fast and isinstance(self.rule, FixedRank):
            return self._last_wanted(state, spectrum) / _LEAST_SHARE
        return _GROWTH * state.energy

    def _with_batch(self, rows: DeviceArray, roots: DeviceArray | None, *, fast: bool) -> _State:
        """The state with one more batch; NonFiniteError, and nothing learned, if it is not finite."""
        backend, xp, own = self.backend, self.backend.xp, self._state
        if self.center:
            shift = middle_of(backend, rows, roots)
        else:
            shift = backend.zeros((self.n_features,), np.float64)
        sums = self._products(fast)(rows, roots, shift)
        facts = [sums.energy, sums.row_sum, shift]
        if roots is not None:
            facts.append(xp.sum(backend.asarray(roots, np.float64) ** 2))
        fetched = backend.fetch(*facts)
        scatter = sums.scatter()
        energy, row_sum, middle, *weights = fetched()  # the only wait
        if not energy < ops.max_energy(self.dtype):
            raise NonFiniteError
        weight = float(weights[0]) if weights else float(rows.shape[0])
        mean, total = own.mean, own.total + float(energy)
        if self.center and weight:
            share = weight / (own.weight + weight)
            offset = row_sum / weight
            step = middle + offset - own.mean  # to the mean of the batch
            apart = own.weight * share
            sides = backend.asarray(np.stack([-row_sum, apart * step, offset, step]), np.float64)
            scatter += sides[:2, :].T @ sides[2:, :]
            total += apart * float(step @ step) - float(row_sum @ offset)
            mean = own.mean + share * step
        scatter += own.scatter
        return _State(
            own.weight + weight,
            mean,
            scatter,
            max(total, 0.0),
            own.rounded + (float(energy) if fast else 0.0),
            own.n_fast + (rows.shape[0] if fast else 0),
        )

    def _products(self, fast: bool) -> Products:
        return fast_products(self.backend) if fast else LibraryProducts(self.backend, _FLOAT64)

    def _last_wanted(self, state: _State, spectrum: _Spectrum) -> float:
        """Energy of the last direction wanted; zero before there are so many."""
        rank = min(self._rank_of(state, spectrum), self.n_features)
        return float(spectrum.values[rank - 1]) if rank <= len(spectrum.values) else 0.0

    # --- the spectrum ---

    def _rank_of(self, state: _State, spectrum: _Spectrum) -> int:
        if isinstance(self.rule, FixedRank):
            return self.rank
        total = state.total + self._discarded
        return fixed_point(self.rule, self.rank, self.n_features, np.sqrt(spectrum.values), total)

    def _spectrum_of(self, state: _State, start: DeviceArray | None) -> _Spectrum:
        if not isinstance(self.rule, FixedRank):
            return _Spectrum(*complete(self.backend, state.scatter))
        rank = min(self.rank, self.n_features)
        width = min(block_width(rank, self._exchanged_for(rank)), self.n_features)
        return _Spectrum(*leading(self.backend, state.scatter, state.total, rank, width, start))

    def _current(self) -> tuple[_State, _Spectrum]:
        """State and spectrum, decayed as is due; what the stream goes on from stays as it is."""
        if self._spectrum is None:
            self._spectrum = self._spectrum_of(self._state, self._start)
        current = self.branch()
        current._apply_decay()
        assert current._spectrum is not None
        return current._state, current._spectrum

    # --- summaries out ---

    def _view(self) -> View:
        state, spectrum = self._current()
        rank, backend = self._rank_of(state, spectrum), self.backend
        n = self._exchanged_for(rank)
        vectors = spectrum.vectors[:n, :]
        (diagonal,) = backend.to_numpy(backend.xp.linalg.diagonal(state.scatter))
        energies = np.maximum(diagonal, 0.0)
        values = spectrum.values[:n]
        (noise,) = backend.to_numpy(vectors**2 @ backend.asarray(self._rounding(state, energies)))
        of_solver = _NOISE * float(np.finfo(_FLOAT64).eps) * values[:1].sum()
        real = values > np.maximum(noise, of_solver)
        components = to_host(backend.asarray(vectors, self.dtype))  # narrowed where it is fast
        summary = Subspace.unchecked(
            components=with_fixed_signs(components[real]),
            singular_values=np.sqrt(values[real]),
            mean=state.mean,
            count=state.weight,
            total=float(energies.sum()) + self._discarded,
            centered=self.center,
        )
        n_components = self.rule.n_components(rank, summary.singular_values, summary.total)
        return View(summary, n_components, energies / state.weight if state.weight else None)

    def _rounding(self, state: _State, energies: Array) -> Array:
        """Energies of the features that rounding of products or of values alone can give, shape (d,)."""
        of_values = rounding_share(self.dtype) ** 2 * (energies + state.weight * state.mean**2)
        return np.maximum(of_values, _NOISE * float(np.finfo(_FLOAT64).eps) * energies)

    def state(self) -> Summary:
        if not self.gives_moments or self._discarded:  # moments cannot have lost energy
            return self.summary()
        current = self.branch()
        with self.backend.compute_context():
            current._apply_decay()
            (scatter,) = self.backend.to_numpy(current._state.scatter)
        scatter = (scatter + scatter.T) / 2
        if self.dtype != _FLOAT64:
            scatter = np.asarray(without_negative_eigenvalues(scatter), np.float64)
        return Moments(current._state.weight, current._state.mean, scatter, self.center)

    # --- forgetting and merging ---

    def _scale(self, factor: float) -> None:
        share, state = factor**2, self._state
        self._state = state._replace(
            weight=share * state.weight,
            scatter=share * state.scatter,
            total=share * state.total,
            rounded=share * state.rounded,
        )
        self._next_look *= share
        self._discarded *= share
        if self._spectrum is not None:
            self._spectrum = self._spectrum._replace(values=share * self._spectrum.values)

    def _merge(self, others: Sequence[Summary]) -> None:
        for other in others:
            if isinstance(other, Subspace):
                self._discarded += other.discarded
            if other.count:
                self._state = self._with_summary(other)
        self._spectrum = None

    def _with_summary(self, other: Summary) -> _State:
        backend, own = self.backend, self._state
        if isinstance(other, Subspace):
            rows = backend.asarray(other.components * other.singular_values[:, None], np.float64)
            scatter = rows.T @ rows
        else:
            scatter = backend.asarray(other.scatter, np.float64)
        mean, total = own.mean, own.total + other.total
        if self.center:
            share = other.count / (own.weight + other.count)
            step = other.mean - own.mean
            total += own.weight * share * float(step @ step)
            jump = backend.asarray(np.sqrt(own.weight * share) * step, np.float64)
            scatter += jump[:, None] * jump[None, :]
            mean = own.mean + share * step
        scatter += own.scatter
        return own._replace(weight=own.weight + other.count, mean=mean, scatter=scatter, total=total)


def _warn_of(n_rows: int) -> None:
    warnings.warn(
        f"the first {n_rows} rows were multiplied in bfloat16, which loses directions below 1e-5 of all "
        "variance; such directions are wanted now, and may be inexact: begin again with tracker='exact'.",
        stacklevel=2,
    )
