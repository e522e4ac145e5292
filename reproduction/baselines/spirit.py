"""SPIRIT (Papadimitriou, Sun, Faloutsos 2005): one direction after another, as many as the energy takes."""

from dataclasses import dataclass
from math import sqrt
from typing import Unpack, final

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.rank import FixedRank, RankRule
from fedpca.trackers.base import TrackerSettings
from reproduction.baselines.basis import BasisTracker, gram_schmidt

_FIRST_INERTIA = 0.01  # of a new direction: the paper's small d


@dataclass(frozen=True, slots=True)
class EnergyThresholds:
    """SPIRIT's rule for the rank: keep between a share `low` and a share `high` of the energy.

    Below `low` one more direction is kept, above `high` one fewer, unless too little would then be left.

    Args:
        low: the paper's f_E.
        high: the paper's F_E.
        first: the rank to begin with.

    >>> rule = EnergyThresholds(low=0.8, high=0.9)
    >>> [rule.next_rank(rank, np.sqrt([60.0, 25.0, 14.0]), total=100.0) for rank in (1, 2, 3)]
    [2, 2, 2]
    """

    low: float = 0.95
    high: float = 0.98
    first: int = 1

    def __post_init__(self) -> None:
        validation.integer(self.first, "first", at_least=1)
        if not (validation.is_real(self.low) and validation.is_real(self.high)):
            raise TypeError(f"energy thresholds must be numbers, got low={self.low!r}, high={self.high!r}.")
        if not 0 < self.low < self.high <= 1:
            raise ValueError(
                f"energy thresholds need 0 < low < high <= 1, got low={self.low}, high={self.high}."
            )

    def start(self, n_features: int) -> int:
        return min(self.first, n_features)

    def next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        kept = np.cumsum(singular_values[:rank] ** 2)
        if not len(kept) or kept[-1] < self.low * total:
            return rank + 1
        enough_without = rank > 1 and kept[-2] >= self.low * total
        return rank - 1 if kept[-1] > self.high * total and enough_without else rank

    def n_components(self, rank: int, singular_values: Array, total: float) -> int:
        return min(rank, len(singular_values))

    def n_weak(self, n_features: int, share: float) -> int:
        return n_features if 1 - self.high < share * n_features else 0


@final
class Spirit(BasisTracker):
    """Each row is taken apart direction by direction, and each direction turns toward its remainder.

    For comparison. A direction with score y of the remainder e moves by e y / d, d being its inertia: the
    energy it has met so far. With `FixedRank` there are so many directions; with `EnergyThresholds`, the
    paper's own rule, their number adapts to the stream.

    Args:
        remember: the paper's lambda, in (0, 1]: each row scales the energies before it by this. For
            `EnergyThresholds` less than 1: what was missed before a direction came must decay.
        holdoff: rows from one change of the rank to the next, at least: a new direction needs some to show
            its energy.
        seed: of the random directions to begin with. None for the paper's unit vectors, which never move
            where a feature is always zero.

    >>> rows = np.random.default_rng(0).normal(size=(500, 6)) * [8.0, 4.0, 2.0, 0.1, 0.1, 0.1]
    >>> tracker = Spirit(6, EnergyThresholds(0.9, 0.98), remember=0.98, oversample=0, center=False)
    >>> tracker.update(rows)
    >>> tracker.view().n_components
    2
    """

    settings = frozenset({"seed"})
    adapts = True

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        remember: float = 1.0,
        holdoff: int = 10,
        seed: int | None = 0,
        **settings: Unpack[TrackerSettings],
    ) -> None:
        if not (validation.is_real(remember) and 0 < remember <= 1):
            raise ValueError(f"remember must be a number in (0, 1], got remember={remember!r}.")
        self.remember = float(remember)
        self.holdoff = validation.integer(holdoff, "holdoff", at_least=0)
        self._rng = None if seed is None else np.random.default_rng(seed)
        super().__init__(n_features, rule, **settings)
        self._inertias = [_FIRST_INERTIA] * self.n_exchanged
        self._energies: Array = np.zeros(self.n_exchanged)  # along each direction
        self._energy = 0.0  # of the rows
        self._since_change = 0

    def _first_basis(self) -> Array:
        return gram_schmidt(self._new_directions(0, self.n_exchanged))

    def _new_directions(self, start: int, stop: int) -> Array:
        if self._rng is None:
            return np.eye(stop - start, self.n_features, start)
        return self._rng.normal(size=(stop - start, self.n_features))

    def _follow(self, rows: Array) -> None:
        for row in rows:
            self._energy = self.remember * self._energy + float(row.dot(row))
            scores = self._turn(row)
            self._energies = self.remember * self._energies + scores * scores
            self._moment += scores[:, None] * scores
            if not isinstance(self.rule, FixedRank):
                self._adapt()

    def _turn(self, rest: Array) -> Array:
        """Turn the directions, one after the other, toward what the earlier ones leave of a row.

        Returns its scores: along each direction, of the row less its shares of the earlier ones.
        """
        scores, change, left = np.zeros(len(self._basis)), np.empty(self.n_features), 1.0
        for index, direction in enumerate(self._basis):
            score = float(direction.dot(rest))
            inertia = self.remember * self._inertias[index] + score * score
            self._inertias[index] = inertia
            if inertia and left:
                scores[index] = score / left
                np.multiply(direction, score, out=change)
                rest -= change
                np.multiply(rest, score / inertia, out=change)
                direction += change
                direction /= sqrt(direction.dot(direction))
                # Less the share of the direction where it is now, the same remainder is left, but shorter.
                shorter = 1 - score * score / inertia
                rest *= shorter
                left *= shorter
        return scores

    def _adapt(self) -> None:
        self._since_change += 1
        if self._since_change > self.holdoff:
            rank = self._next_rank(self.rank, np.sqrt(self._energies), self._energy)
            if rank != self.rank:
                self.rank, self._since_change = rank, 0
                self._resize(self.n_exchanged)

    def _resize(self, size: int) -> None:
        """Leave out the last directions, or add new ones, orthogonal to the others."""
        more = max(size - len(self._basis), 0)
        if more:
            self._basis = gram_schmidt(np.concatenate([self._basis, self._new_directions(size - more, size)]))
        self._basis = self._basis[:size]
        self._moment = np.pad(self._moment, (0, more))[:size, :size]
        self._energies = np.pad(self._energies, (0, more))[:size]
        self._inertias = (self._inertias + more * [_FIRST_INERTIA])[:size]

    def _scale_history(self, factor: float) -> None:
        self._energy *= factor**2
        self._energies = self._energies * factor**2
        self._inertias = [inertia * factor**2 for inertia in self._inertias]

    def _after_merge(self) -> None:
        self._energy, self._energies = self._total, np.diag(self._moment).copy()
        self._inertias = [max(energy, _FIRST_INERTIA) for energy in self._energies.tolist()]
