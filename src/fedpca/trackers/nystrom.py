"""Nystrom: the fast kernel; two matrix products a row, and a small eigenproblem once in many rows."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from fedpca.linalg import orthonormal, orthonormality_error
from fedpca.merge import Summary, append_rows
from fedpca.places import cuts, dense, row_energies, sum_of, to_host
from fedpca.subspace import Subspace
from fedpca.trackers.base import Tracker
from fedpca.trackers.period import Period, residual_directions

# When is a panel news? When its energy outside the directions carried exceeds what the stream has shown, with
# slack for chance, by more than this share of the weakest direction wanted.
_NOISE_SLACK = 1.5
_NEWS = 1e-3
_STRANGE = 0.5  # and a single row, when its own energy outside exceeds this share of that direction
# A flat spectrum takes more probes, and while the stream is short the rows themselves, to be told apart.
_GRADED = 8  # a weakest direction below this times the root of eps is lost in products
_FLAT = 1.0
_VERY_FLAT = 8.0
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
        self._period: Period | None = None
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


def _with_components(carried: Subspace, components: Any) -> Subspace:
    """The same subspace, its components elsewhere."""
    facts = (carried.singular_values, carried.mean, carried.count, carried.total, carried.centered)
    return Subspace.trusted(components, *facts)
