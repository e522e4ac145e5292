"""Nystrom: the fast kernel; two matrix products a row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, final

import numpy as np

from fedpca.backend import batch_slices, dense, to_host
from fedpca.summaries.linalg import orthonormal, orthonormality_error
from fedpca.summaries.merging import append_rows
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker
from fedpca.trackers.nystrom.period import Period, residual_directions

# When is a panel news? When its energy outside the directions carried exceeds what the stream has shown, with
# slack for chance, by more than this share of the weakest direction wanted.
_NOISE_SLACK = 1.5
_NEWS = 1e-3
_STRANGE = 0.5  # and a single row, when its own energy outside exceeds this share of that direction
# A flat spectrum takes more probes, and while the stream is short the rows themselves, to be told apart.
_GRADED = 8  # a weakest direction below this times the root of eps is lost in products
_FLAT = 1.0
_FOUND = 1e-3  # share of the energy that another look at the same rows must add, to be worth one more
_VERY_FLAT = 8.0
# On a device a launch costs as much as thousands of rows: panels and periods are long, and few.
_DEVICE_ROWS = 16_384  # in the first panel, and waiting for one
_DEVICE_ENTRIES = 2**27  # of the products of a panel with the probes
_DEVICE_PROBES = 24  # more than the width, among the first rows
_DEVICE_GROWTH = 256  # of the stream, from period to period


@final
class Nystrom(SubspaceTracker):
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
    settings = frozenset({"backend", "seed"})

    def __init__(self, n_features: int, rule: Any, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(n_features, rule, **settings)
        self._rng = np.random.default_rng(seed)
        # About the anchor; its components are where the rows are.
        self._carried = self._nothing()
        self._period: Period | None = None
        self._n_rows = 0.0  # that still count
        self._graded = False
        self._flatness = 0.0

    @property
    def _absorbed_energy(self) -> float:
        return self._carried.total if self._period is None else self._period.energy

    @property
    def width(self) -> int:
        """Probes in a period: with the one for the mean a multiple of 8, which suits the products."""
        wanted = 2 * self.n_exchanged if self._flatness > _FLAT else self.n_exchanged
        return min(-(-(wanted + 2) // 8) * 8 - 1, self.n_features)

    @property
    def carry(self) -> int:
        """Directions carried from period to period, at no cost: all probes, but on the host for one, to which
        every period gives a new one a chance; `keep` are exchanged."""
        return self.width if self.backend.on_device else max(self.n_exchanged, self.width - 1)

    @property
    def buffer_capacity(self) -> int:
        if self.backend.on_device:
            return max(16 * self.width, min(_DEVICE_ROWS, 2**24 // self.n_features))
        return max(2 * self.width, 128)  # the first rows are factorized exactly: enough for good first probes

    @property
    def min_panel_rows(self) -> int:
        return 32 if self._carried.count and not self.backend.on_device else self.buffer_capacity

    @property
    def max_panel_rows(self) -> int:
        if not self._carried.count:
            return self.buffer_capacity
        most = _DEVICE_ENTRIES // (self.width + 1) if self.backend.on_device else 1024
        seen = 0 if self._period is None else self._period.n_rows
        return min(most, max(self.min_panel_rows, self._period_rows() - seen))

    def _absorb(self, panel: Any, roots: Any) -> None:
        if self._period is None and self._needs_rows():
            self._absorb_news(panel, roots)
        else:
            if self._period is None:
                missing = max(self.width - self._carried.rank, 0)
                self._period = self._open(self._sample(panel, roots, missing, self._carried))
            left = self._period.add(panel, roots)
            if len(left):
                self._close()
                self._absorb_news(
                    self.backend.take(panel, left), None if roots is None else self.backend.take(roots, left)
                )
            elif self._period.n_rows >= self._period_rows():
                self._close()
        self._n_rows += panel.shape[0]
        if self._period is None:
            self._stay_near_origin()

    def _absorb_news(self, panel: Any, roots: Any) -> None:
        """Rows whose directions are not among the probes: exactly, but for many of them on a device."""
        if self.backend.on_device and not self._graded and panel.shape[0] > 2 * self.width:
            self._learn_anew(panel, roots)
        else:
            self._append(panel, roots)

    def _learn_anew(self, panel: Any, roots: Any) -> None:
        """Many such rows on a device: more and more at a time, with some of them as probes."""
        first, start, size = not self._carried.count, 0, self.buffer_capacity
        while start < panel.shape[0]:
            cut = slice(start, min(start + size, panel.shape[0]))
            self._search(panel[cut, :], None if roots is None else roots[cut])
            start, size = start + size, _DEVICE_GROWTH * size
        if first and self._origin is None and self._is_far_off():  # start again, near the origin
            step = self.backend.asarray(self._move_origin(self._carried.mean), self.dtype)
            self._carried = self._nothing()
            self._learn_anew(panel - (step if roots is None else roots[:, None] * step), roots)
        elif first and self._needs_rows():
            self._carried = self._nothing()
            self._append(panel, roots)

    def _search(self, rows: Any, roots: Any) -> None:
        """Directions of rows by products with some of them; if need be again, with what was found."""
        more = max(_DEVICE_PROBES, self.width // 4)
        probes = self._sample(rows, roots, self.width + more, self._carried)
        looks = 2 if self._rows_remaining < 8 * rows.shape[0] or probes.shape[0] < 4 * self.rank else 1
        n_found, energy = 0, 0.0
        while True:
            period = self._open(probes, news=True)
            period.add(rows, roots)
            found = period.close(self._carried, period.n_probes)
            self._flatness = self._flatness_of(found)
            n_before, n_found = n_found, min(found.rank, self.rank)
            energy_before, energy = energy, float(np.sum(found.singular_values[: self.rank] ** 2))
            looks -= 1
            is_lacking = n_before < n_found < self.rank
            is_learning = self._flatness > _FLAT and energy > (1 + _FOUND) * energy_before
            if looks <= 0 and not is_lacking and not is_learning:
                break
            found = found.truncate(self.width)
            others = self._sample(rows, roots, more, found)
            probes = self._residual(self.backend.xp.concat([found.components, others]))
        self._carried = found.truncate(self.carry)
        self._adapt()

    def _needs_rows(self) -> bool:
        """Whether products will not do: at the start, on a graded spectrum, early on a flat one."""
        carried, eps = self._carried, np.finfo(self.dtype).eps
        singular_values = carried.singular_values[: self.rank]
        if not len(singular_values):
            return True
        limit = _GRADED * np.sqrt(eps) * singular_values[0]
        missing = len(singular_values) < self.rank and carried.discarded > 16 * eps * carried.total
        self._graded = bool(missing or singular_values[-1] < (4 * limit if self._graded else limit))
        flat = self._flatness > _VERY_FLAT and self._n_rows < 64 * self.width
        return self._graded or (flat and not self.backend.on_device)

    def _append(self, panel: Any, roots: Any) -> None:
        """The exact block update, on the host, a few rows at a time; the first rows at once."""
        carried = _with_components(self._carried, to_host(self._carried.components))
        step = 2 * self.width if carried.count else panel.shape[0]
        for cut in batch_slices(panel.shape[0], step):
            rows, part = to_host(dense(panel[cut, :])), None if roots is None else to_host(roots[cut])
            carried = append_rows(carried, rows, part, self.carry)
        self._carried = self._placed(carried)
        self._adapt()

    def _open(self, more: Any, *, news: bool = False) -> Period:
        """A period whose probes are the directions carried and more, orthonormal to them.

        Args:
            more: shape (p, d).
            news: whether its rows are known to be news, and all to be taken.
        """
        carried = self._carried
        weakest = carried.singular_values[self.rank - 1] if self.rank <= carried.rank else 0.0
        return Period(
            carried,
            more,
            self._products_eps(),
            expected=np.inf if news else self._expected(),
            tolerated=_NEWS * float(weakest) ** 2,
            strange=np.inf if news else _STRANGE * float(weakest) ** 2,
        )

    def _sample(self, panel: Any, roots: Any, n_rows: int, known: Subspace) -> Any:
        """Orthonormal directions of a few rows outside those known."""
        if not n_rows:
            return known.components[:0, :]
        unknown = self.center and not known.count  # is the mean; then one row less tells as much
        chosen = self._rng.integers(0, panel.shape[0], n_rows + unknown)
        rows = dense(self.backend.take(panel, chosen))
        mean = self.backend.xp.mean(rows, axis=0) if unknown else self.backend.asarray(known.mean, self.dtype)
        rows = rows - (mean if roots is None else self.backend.take(roots, chosen)[:, None] * mean)
        return residual_directions(rows[:n_rows, :], known.components)

    def _residual(self, directions: Any) -> Any:
        """What orthonormal directions have besides those carried."""
        carried = self._carried.components
        return residual_directions(directions, carried) if carried.shape[0] else directions

    def _expected(self) -> float:
        """Energy that a row is expected to have outside the directions carried."""
        slack = _NOISE_SLACK + 8 * self.width / self._n_rows
        return slack * self._carried.discarded / self._carried.count

    def _products_eps(self) -> float:
        """What products may lose: less where the spectrum is too graded for fast ones."""
        exact = float(np.finfo(self.dtype).eps)
        fast = self.backend.matmul_eps(self.dtype)
        singular_values = self._carried.singular_values[: self.rank]
        if fast > exact and len(singular_values) == self.rank:
            return fast if singular_values[-1] > 2 * _GRADED * np.sqrt(fast) * singular_values[0] else exact
        return exact

    def _period_rows(self) -> int:
        """Longer periods as the stream grows: what one adds to the directions shrinks."""
        if self.backend.on_device:
            well_begun = self._n_rows >= 16 * self.n_features and self.width + _DEVICE_PROBES >= 4 * self.rank
            growth = 1 if self._flatness > _FLAT else _DEVICE_GROWTH if well_begun else 16
            return max(self.buffer_capacity, int(growth * self._n_rows))
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
        self._flatness = self._flatness_of(carried)

    def _flatness_of(self, found: Subspace) -> float:
        """Energy outside the directions to keep, in units of as many like the weakest wanted."""
        squares = found.singular_values[: self.n_exchanged] ** 2
        if not len(squares):
            return 0.0
        return float((found.total - squares.sum()) / (len(squares) * squares[: self.rank][-1]))

    def _stay_near_origin(self) -> None:
        if self._is_far_off():
            self._carried = self._carried.translated(-self._move_origin(self._carried.mean))

    def _is_far_off(self) -> bool:
        carried = self._carried
        return carried.count > 0 and self.mean_dominates(carried.mean, carried.total / carried.count)

    def state(self) -> Subspace:
        if self._n_buffered and self.backend.on_device:  # too many to be factorized
            copy = deepcopy(self)
            copy._flush()
            return copy.state()
        return self._with_buffer(self._absorbed())

    def _absorbed(self) -> Subspace:
        carried = self._carried if self._period is None else self._period.close(self._carried, self.carry)
        components = to_host(carried.components)
        if orthonormality_error(components) > 64 * np.finfo(self.dtype).eps:
            components = orthonormal(components)
        mean = carried.mean if self._origin is None else carried.mean + self._origin
        return Subspace.unchecked(
            components=components,
            singular_values=carried.singular_values,
            mean=mean,
            count=carried.count,
            total=carried.total,
            centered=self.center,
        )

    def _scale(self, factor: float) -> None:
        self._n_rows *= factor**2
        self._carried = self._carried.scaled(factor)
        if self._period is not None:
            self._period.scale(factor)

    def _merge(self, others: Sequence[Summary]) -> None:
        self._carried = self._placed(self._merged(self._absorbed(), others, self.carry))
        self._period, self._origin = None, None
        self._n_rows = max(self._n_rows, self._carried.count)
        self._stay_near_origin()

    def _nothing(self) -> Subspace:
        """What a stream has shown before its first row."""
        components = self.backend.zeros((0, self.n_features), self.dtype)
        zeros = np.zeros(self.n_features)
        return Subspace.unchecked(components, np.zeros(0), zeros, 0.0, 0.0, self.center)

    def _placed(self, carried: Subspace) -> Subspace:
        return _with_components(carried, self.backend.asarray(carried.components, self.dtype))


def _with_components(carried: Subspace, components: Any) -> Subspace:
    """The same subspace, its components elsewhere."""
    return Subspace.unchecked(
        components=components,
        singular_values=carried.singular_values,
        mean=carried.mean,
        count=carried.count,
        total=carried.total,
        centered=carried.centered,
    )
