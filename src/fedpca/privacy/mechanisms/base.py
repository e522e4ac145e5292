"""What every mechanism is: clipped rows in, one noisy linear statistic out.

Only sums over rows are ever noised. A truncated subspace is not a sum: replacing one row can change it by
as much as all rows weigh, and noise scaled to one row would hide nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import Adjacency, noise_sd
from fedpca.privacy.clipping import RADIUS, Clipping
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.sums import NoiseBlock, Sum, Summing
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.summary import Summary

SUM_WEIGHT = 0.15
"""Weight of the sum of rows beside the sum of their products, in a joint release."""


@dataclass(frozen=True)
class Calibration:
    """How noisy a release is. Standard deviations are those of a sum over rows in the unit ball.

    Attributes:
        sensitivity: by how much, at most, one record changes the statistic.
        sigma: of an entry of a plain matrix, or on the diagonal of a symmetric one.
        off_diagonal: of the entries off the diagonal of a symmetric matrix.
        mu: the cost of the release, no less than sensitivity / sigma.
    """

    sensitivity: float
    sigma: float
    off_diagonal: float
    mu: float

    @classmethod
    def symmetrized(cls, sensitivity: float, mu: float) -> "Calibration":
        """Independent noise on all d² entries, symmetrized: sqrt(2) smaller off the diagonal, for free."""
        sigma = noise_sd(sensitivity, mu)
        return cls(sensitivity, sigma, sigma / sqrt(2.0), mu)

    def edge(self, n_features: int) -> float:
        """The largest eigenvalue of the mask: noise reaches up to here."""
        return 2 * sqrt(n_features) * self.off_diagonal


class Mechanism(ABC):
    """Points in, one sum over them out; and the private summary that follows from it, once it is noised.

    So the statistics of several owners add up: `statistic` of each, noise of the deviations of `blocks`, and
    `summary_of` the noisy total.

    Whatever other modules need to know about a mechanism is declared here, so that none compares names.

    Args:
        clipping: how rows become points.
        n_features: d.
        calibration: how much noise.
        joint: also release the sum of rows, and correct the center by it.
        rank: how many directions are wanted.

    Attributes:
        name: what `Privacy(mechanism=)` calls it.
        edge_known: the noise of a release is a symmetric mask whose largest eigenvalue is known.
        rows_factor: how many times as many rows are needed as by a noisy d x d sum.
        max_features: the largest d, or None.
    """

    name: ClassVar[str]
    edge_known: ClassVar[bool]
    rows_factor: ClassVar[float]
    max_features: ClassVar[int | None]

    def __init__(
        self, clipping: Clipping, n_features: int, calibration: Calibration, *, joint: bool, rank: int
    ) -> None:
        self.clipping = clipping
        self.n_features = n_features
        self.calibration = calibration
        self.count = 0
        self._sum = np.zeros(n_features) if joint else None

    # --- how much noise ---

    @classmethod
    @abstractmethod
    def sensitivity(cls, adjacency: Adjacency, *, joint: bool) -> float:
        """By how much, at most, one record changes the statistic of one release; rows in the unit ball."""

    @classmethod
    def calibrate(cls, mu: float, *, releases: int, joint: bool, adjacency: Adjacency) -> Calibration:
        """The noise of one increment under the schedule of releases, at a cost of mu."""
        sensitivity = cls.sensitivity(adjacency, joint=joint) * Schedule(releases).column_norm
        return Calibration.symmetrized(sensitivity, mu)

    @abstractmethod
    def total_margin(self, accumulated: float, count: float) -> float:
        """By how much noise may lower a released total: on average, and one standard deviation; unit ball.

        Args:
            accumulated: standard deviation of the noise, in units of that of one increment.
            count: of points.
        """

    # --- what it takes ---

    @classmethod
    @abstractmethod
    def memory(cls, n_features: int, rank: int) -> int:
        """Bytes at an owner of rows."""

    @classmethod
    def check_features(cls, n_features: int) -> None:
        """Refuse more features than the mechanism can hold."""
        if cls.max_features is not None and n_features > cls.max_features:
            raise ValueError(
                f"mechanism={cls.name!r} keeps n_features² numbers and takes at most {cls.max_features} "
                f"features, got {n_features}; use mechanism='sketch'."
            )

    # --- rows in ---

    @abstractmethod
    def take(self, points: Array) -> None:
        """Add rows, integer points of the ball of radius 2^12, shape (n, d)."""

    def _rows_of(self, count: float) -> float:
        """Rows behind so many points."""
        return 2 * count if self.clipping.pairs else count

    def _add_to_sum(self, points: Array) -> None:
        if self._sum is not None:
            self._sum += points.sum(axis=0)

    def _sum_margin(self, sigma: float, count: float) -> float:
        """By how much a joint release lowers a total on average: the square of the sum's noise comes off."""
        return 0.0 if self._sum is None else self.n_features * (sigma / SUM_WEIGHT) ** 2 / count

    # --- the sum and its summary ---

    @classmethod
    @abstractmethod
    def most_words(cls, n_features: int, rank: int) -> int:
        """The length of the statistic of a joint release, the longest there is."""

    @abstractmethod
    def statistic(self) -> Array:
        """The sums over all points so far: integers, shape (length,), never to leave as they are."""

    def announced(self, begin: Callable[[np.random.Generator], Summing] | None = None) -> Sum:
        """The release as a sum, given how it is begun."""
        per_row = 0.5 if self.clipping.pairs else 1.0
        blocks = tuple(block._replace(largest=block.largest * per_row) for block in self.blocks())
        return Sum(self.name, blocks, self.calibration.mu, purpose="release", begin=begin)

    @abstractmethod
    def blocks(self) -> tuple[NoiseBlock, ...]:
        """How the statistic is noised, part by part."""

    @abstractmethod
    def summary_of(self, noisy: Array, *, count: float, noise: float, certificate: Certificate) -> Summary:
        """The private summary, in the units of the data, of a noisy statistic.

        Args:
            noisy: the sum over one or many owners, shape (length,), noise included.
            count: of points.
            noise: the variance of the noise, in units of that of `blocks`.
        """

    def _sum_block(self) -> tuple[NoiseBlock, ...]:
        """The block of the sum of rows, in a joint release."""
        if self._sum is None:
            return ()
        return (NoiseBlock(self.n_features, self._sum_sd, RADIUS),)

    @property
    def _sum_sd(self) -> float:
        return self.calibration.sigma / SUM_WEIGHT * RADIUS

    def _shortened(self, noisy: Array, noise: float) -> Array:
        """The sum of rows in the unit ball, given that of points with noise of so many times the variance.

        It is shortened by what noise adds to its length, to nothing if that is all there is.
        """
        total = noisy / RADIUS
        of_noise = self.n_features * (self.calibration.sigma / SUM_WEIGHT) ** 2 * noise
        shortened: Array = total * sqrt(max(0.0, 1 - of_noise / max(float(total @ total), 1e-300)))
        return shortened
