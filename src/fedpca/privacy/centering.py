"""The private center: the mean of clipped rows, noised, found in two steps.

The first step is about the origin, where clipping may pull the mean in; the second about what the first
found, where it hardly does. All rows at hand: both steps see all of them, for a twentieth of mu² each, in
rounds that several owners may share. A stream: they see its first rows, each row in one step only, which
costs those rows what the release costs the others. Where the mechanism can, the release contains the sum of
its rows as well, which corrects what noise is left in the center.
"""

from collections.abc import Iterable
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.noise import Noise
from fedpca.privacy.settings import Privacy

CENTER_STEPS = 2
_STEP_SHARE = 0.05  # of mu², for a step that sees all rows
# Rows for the steps of a stream, in units of those whose noise is as large as the bound.
_STREAM_ROWS = (1.0, 4.0)


class CenterSum(NamedTuple):
    """The noisy sum of an owner's rows, less the center so far, shape (d,), and how many rows there are."""

    total: Array
    n_rows: int


def center_sigma(privacy: Privacy, mu: float) -> float:
    """Standard deviation of the noise on a sum of rows in the unit ball: replacing a row moves it by 2."""
    return (2.0 if privacy.adjacency == "replace-one" else 1.0) / mu


def stream_rows(privacy: Privacy, n_features: int) -> tuple[int, ...]:
    """How many of the first rows of a stream each step takes."""
    unit = center_sigma(privacy, privacy.mu) * sqrt(n_features)
    return tuple(ceil(rows * unit) for rows in _STREAM_ROWS)


def fill_with_center(rows: Array, center: Array | None) -> Array:
    """Rows with missing entries taken from the center: clipped about it, they count as zero.

    An infinite entry counts as missing: were it refused, the failure would show that a record has one.
    """
    gaps = ~np.isfinite(rows)
    return np.where(gaps, 0.0 if center is None else center, rows) if gaps.any() else rows


class PrivateCenter:
    """A center in the making: by rounds of `sum_rows` and `move`, or from a stream by `take_stream`.

    Every sum is debited in the ledger before its noise is drawn.

    Attributes:
        vector: the center so far, shape (d,).
        last_step: by which it was last moved, shape (d,).
        n_rows: rows of a stream taken so far.
    """

    def __init__(self, privacy: Privacy, n_features: int, noise: Noise, ledger: Ledger) -> None:
        self._privacy = privacy
        self._noise = noise
        self._ledger = ledger
        self._stream_rows = stream_rows(privacy, n_features)
        self.vector: Array = np.zeros(n_features)
        self.last_step: Array = np.zeros(n_features)
        self.n_rows = 0
        self._n_sums = 0
        self._n_moves = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._sum: Array = np.zeros(len(self.vector))
        self._count = 0

    @property
    def found(self) -> bool:
        """Whether all steps are done."""
        return self._n_moves == CENTER_STEPS

    @property
    def mu_left(self) -> float:
        """What is left of mu for the release of the rows after it."""
        return self._privacy.mu if self.n_rows else self._privacy.mu * sqrt(1 - CENTER_STEPS * _STEP_SHARE)

    # --- rounds over all rows ---

    def check_round(self) -> None:
        """Whether a round may begin."""
        if self.n_rows:
            raise ValueError("the first rows of a stream went into its private center already; fit anew.")
        if self.found or self._n_sums > self._n_moves:
            raise ValueError("a round of the private center is not complete; call move_center first.")
        self._check_affordable()

    def sum_rows(self, parts: Iterable[Array]) -> CenterSum:
        """One round: the noisy sum of all rows, less the center so far. `move` has to follow."""
        for rows in parts:
            self._add(rows)
        return self._noisy_sum(0, self._privacy.mu * sqrt(_STEP_SHARE))

    def check_move(self) -> None:
        """Whether a step may end."""
        if self._n_sums == self._n_moves:
            raise ValueError("the center moves by the mean of noisy sums; call center_sum first.")

    def move(self, offset: Array) -> None:
        """End a step: move by an offset that is public, the mean of noisy sums."""
        self.vector = self.vector + offset
        self.last_step = offset
        self._n_moves += 1
        self._begin_step()

    # --- the first rows of a stream ---

    def check_stream(self) -> None:
        """Whether rows of a stream may come."""
        if self._n_sums and not self.n_rows:
            raise ValueError("the rounds of the private center are not complete; finish them, or fit anew.")
        self._check_affordable()

    def take_stream(self, rows: Array) -> Array:
        """Take as many rows as are still needed; returns the others."""
        while not self.found:
            wanted = self._stream_rows[self._n_moves]
            part, rows = np.split(rows, [wanted - self._count])
            self._add(part)
            self.n_rows += len(part)
            if self._count < wanted:
                break
            total, _ = self._noisy_sum(self.n_rows - wanted, self._privacy.mu)
            self.move(total / wanted)
        return rows

    # --- one step ---

    def _check_affordable(self) -> None:
        """Before anything is spent: that the rows after the center can be afforded as well."""
        if not self._n_sums and not self.n_rows:
            self._ledger.check(0, None, self._privacy.mu, adjacency=self._privacy.adjacency)

    def _add(self, rows: Array) -> None:
        self._count += len(rows)
        rows = fill_with_center(rows, self.vector)
        self._sum += clipped(rows - self.vector, self._privacy.bound).sum(axis=0)

    def _noisy_sum(self, start: int, mu: float) -> CenterSum:
        """The noisy sum of the rows added in this step, the records from `start` on."""
        stop, adjacency = start + self._count, self._privacy.adjacency
        entry = self._ledger.debit(start, stop, "center", mu, adjacency=adjacency)
        sd = center_sigma(self._privacy, mu) * RADIUS
        noisy = self._sum + self._noise.entries((self._n_sums,), len(self._sum), sd)
        self._n_sums += 1
        self._ledger.complete(entry)
        return CenterSum(noisy * (self._privacy.bound / RADIUS), self._count)
