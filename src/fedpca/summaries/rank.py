"""How many directions to keep: a fixed number, the paper's energy band, or a share of the variance."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation

Oversample = int | Literal["auto"]

_MAX_FEATURES_KEPT_WHOLE = 256  # as for the tracker that keeps all moments


class RankRule(Protocol):
    """Decides, once per block, how many directions are wanted."""

    def start(self, n_features: int) -> int:
        """The rank before any row was seen."""

    def next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        """The rank wanted next, given the spectrum carried now (which may be longer than `rank`)."""

    def n_components(self, rank: int, singular_values: Array, total: float) -> int:
        """How many of the directions carried now are shown."""

    def n_weak(self, n_features: int, share: float) -> int:
        """The most directions wanted if some of them may have less than this share of the total; else 0."""


def fixed_point(rule: RankRule, rank: int, n_features: int, singular_values: Array, total: float) -> int:
    """The rank at which a rule stops changing, or the first above the directions that are carried."""
    for _ in range(n_features):
        following = min(rule.next_rank(rank, singular_values, total), n_features)
        if following == rank:
            break
        rank = following
        if rank > len(singular_values):
            break
    return rank


@dataclass(frozen=True, slots=True)
class FixedRank:
    """Always the same number of directions."""

    rank: int

    def start(self, n_features: int) -> int:
        return min(self.rank, n_features)

    def next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        return rank

    def n_components(self, rank: int, singular_values: Array, total: float) -> int:
        return min(rank, len(singular_values))

    def n_weak(self, n_features: int, share: float) -> int:
        return self.start(n_features)


@dataclass(frozen=True, slots=True)
class EnergyBand:
    """The paper's AdjustRank: keep sigma_r / (sigma_1 + ... + sigma_r) within [low, high].

    Above `high` one more direction is kept from the next block on, below `low` one fewer; once per block in
    the block tracker, as in the paper, until the ratio is within the band in the exact tracker, and every 256
    rows in the nystrom tracker. The ratio never exceeds 1/r, so the rank cannot grow past 1/high: 10 for the
    paper's 10 %. Choose `high` below one over the largest rank you would accept, and `low` below 0.3 * high.

    Args:
        low: the paper's alpha, as a fraction.
        high: the paper's beta, as a fraction.
        first: the rank to begin with.

    >>> band = EnergyBand(low=0.01, high=0.10)
    >>> band.next_rank(2, np.array([4.0, 2.0, 0.1]), total=20.01)
    3
    >>> band.next_rank(3, np.array([4.0, 2.0, 0.05]), total=20.0025)
    2
    """

    low: float = 0.01
    high: float = 0.10
    first: int = 1

    def __post_init__(self) -> None:
        validation.integer(self.first, "first", at_least=1)
        if not (validation.is_real(self.low) and validation.is_real(self.high)):
            raise TypeError(f"an energy band needs two numbers, got low={self.low!r}, high={self.high!r}.")
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(
                f"an energy band needs 0 <= low < high <= 1, got low={self.low}, high={self.high}; "
                "the paper's 1 % and 10 % are low=0.01, high=0.10."
            )

    def start(self, n_features: int) -> int:
        return min(self.first, n_features)

    def next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        rank = min(rank, len(singular_values))
        if not rank:
            return 1
        if self._share(singular_values, rank) > self.high:
            carried = len(singular_values) > rank
            wasted = carried and self._share(singular_values, rank + 1) < self.low  # would be dropped at once
            return rank if wasted else rank + 1
        return rank - 1 if self._share(singular_values, rank) < self.low and rank > 1 else rank

    @staticmethod
    def _share(singular_values: Array, rank: int) -> float:
        return float(singular_values[rank - 1] / singular_values[:rank].sum())

    def n_components(self, rank: int, singular_values: Array, total: float) -> int:
        return min(rank, len(singular_values))

    def n_weak(self, n_features: int, share: float) -> int:
        if self.low**2 > share * n_features:  # the first has at least one in n_features of the total
            return 0
        return min(max(self.first, int(1 / self.high) + 1), n_features)


@dataclass(frozen=True, slots=True)
class VarianceShare:
    """As many directions as explain a share of the total variance; more are carried until they do.

    >>> VarianceShare(0.9).n_components(3, np.array([3.0, 2.0, 1.0]), total=14.0)
    2
    """

    share: float

    def start(self, n_features: int) -> int:
        return min(32, n_features)  # doubled until they are enough: at most twice as many

    def next_rank(self, rank: int, singular_values: Array, total: float) -> int:
        needed = self._needed(singular_values, total)
        return needed if needed <= len(singular_values) else 2 * max(rank, len(singular_values))

    def n_components(self, rank: int, singular_values: Array, total: float) -> int:
        return min(self._needed(singular_values, total), len(singular_values))

    def n_weak(self, n_features: int, share: float) -> int:
        # The last one wanted and all that follow have more than 1 - self.share together.
        return n_features if 1 - self.share < share * n_features else 0

    def _needed(self, singular_values: Array, total: float) -> int:
        explained = np.cumsum(singular_values**2)
        return int(np.searchsorted(explained, self.share * total * (1 - 1e-12))) + 1


def oversampled_rank(rank: int, oversample: Oversample = "auto") -> int:
    """Directions to carry and exchange for the sake of `rank` good ones.

    On MNIST (rank 20, two halves merged) truncating to the rank itself costs 20 times the error of twice
    the rank, and to 1.5 times the rank 5 times.

    The rule keeps the shortfall of merging four parts of 400 features at 3e-5 or less up to rank 20, where
    r directions lose up to 4e-4 and 3/2 r up to 8e-5; half as many again for 50 and 100 lose 2e-4 and 3e-4,
    a third or less of what r do, and are three quarters of 2 r (singular values i^-1/2; for i^-1 it is 5e-7
    at most; `benchmarks.constants carried`).

    Args:
        rank: directions wanted.
        oversample: how many more; "auto" for about as many again.

    >>> [oversampled_rank(rank) for rank in (1, 10, 20, 50, 100)]
    [9, 20, 45, 75, 150]
    """
    if oversample != "auto":
        return rank + int(oversample)
    return rank + max(8, min(rank * 3 // 2 - 5, 25), rank // 2)


def exchange_rank(rank: int, n_features: int) -> int:
    """Directions that inner nodes of a tree keep for a model of `rank` directions.

    Twice what clients exchange: inner nodes then lose next to nothing, even of very different clients.
    """
    return min(2 * oversampled_rank(rank), n_features)


def part_rank(rank: int, n_features: int) -> int:
    """Directions that parts with different known features keep for a model of `rank` directions."""
    return n_features if n_features <= _MAX_FEATURES_KEPT_WHOLE else exchange_rank(rank, n_features)
