"""The noisy sum of x x^T: d² memory, the most accurate.

Departures from Analyze Gauss (Dwork, Talwar, Thakurta, Zhang 2014):

1. The noise solves the exact condition of Balle and Wang, as large as (epsilon, delta) need and no larger.
2. The mask is that of all d² entries, symmetrized, and so quieter by sqrt(2) off the diagonal.
3. Rows are integer points, and so are the noise and all sums: none is rounded.
4. The sum of rows may be released with it, which corrects a private center.
"""

from math import sqrt
from typing import ClassVar

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import SENSITIVITY, Adjacency
from fedpca.privacy.clipping import RADIUS, Clipping
from fedpca.privacy.mechanisms.base import SUM_WEIGHT, Calibration, Mechanism, NoiseBlock
from fedpca.privacy.noise import Noise, SymmetricMask
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.moments import Moments


class Gram(Mechanism):
    """The sum of x x^T with a symmetric mask: the default.

    Noise of standard deviation sigma on all d² entries, symmetrized, costs what it cost before, and is sigma
    on the diagonal and sigma / sqrt(2) off it: less than a mask drawn for the upper triangle alone.
    """

    name = "gram"
    edge_known = True
    rows_factor = 1.0
    max_features: ClassVar[int] = 4096

    def __init__(
        self, clipping: Clipping, n_features: int, calibration: Calibration, *, joint: bool, rank: int
    ) -> None:
        super().__init__(clipping, n_features, calibration, joint=joint, rank=rank)
        self._products = np.zeros((n_features, n_features))

    @classmethod
    def sensitivity(cls, adjacency: Adjacency, *, joint: bool) -> float:
        if not joint:
            return SENSITIVITY[adjacency]
        # The largest ||x x^T - y y^T||² + w² ||x - y||² is at <x, y> = -w²/2.
        squared = SUM_WEIGHT**2
        return sqrt(2.0) * (1 + squared / 2) if adjacency == "replace-one" else sqrt(1 + squared)

    @classmethod
    def memory(cls, n_features: int, rank: int) -> int:
        return 8 * 3 * n_features**2

    def total_margin(self, accumulated: float, count: float) -> float:
        sigma = self.calibration.sigma * accumulated
        return sigma * sqrt(self.n_features) + self._sum_margin(sigma, count)

    def take(self, points: Array) -> None:
        """Integers below 2^53: the products are exact, in any order."""
        self.count += len(points)
        self._products += points.T @ points
        self._add_to_sum(points)

    def release(self, noise: Noise, certificate: Certificate) -> Moments:
        calibration, unit = self.calibration, RADIUS**2
        mask = SymmetricMask(
            noise, self.n_features, calibration.sigma * unit, calibration.off_diagonal * unit
        )
        products, total = mask.add_to(self._products.copy()), self._noisy_sum(noise)
        total = None if total is None else self._shortened(total)
        return self._moments(products, total, self.count, certificate)

    def statistic(self) -> Array:
        """The diagonal of the sum of x x^T, what is above it, row by row, and in a joint release the sum."""
        above = [self._products[i, i + 1 :] for i in range(self.n_features)]
        of_rows = [] if self._sum is None else [self._sum]
        return np.concatenate([np.diag(self._products), *above, *of_rows])

    @classmethod
    def most_words(cls, n_features: int, rank: int) -> int:
        return n_features * (n_features + 1) // 2 + n_features

    def blocks(self) -> tuple[NoiseBlock, ...]:
        d, unit = self.n_features, RADIUS**2
        diagonal = NoiseBlock(d, self.calibration.sigma * unit, unit)
        above = NoiseBlock(d * (d - 1) // 2, self.calibration.off_diagonal * unit, unit / sqrt(2.0))
        return (diagonal, above, *self._sum_block())

    def summary_of(self, noisy: Array, *, count: float, noise: float, certificate: Certificate) -> Moments:
        d = self.n_features
        products, start = np.diag(noisy[:d]), d
        for i in range(d):
            stop = start + d - i - 1
            products[i, i + 1 :] = products[i + 1 :, i] = noisy[start:stop]
            start = stop
        total = None if self._sum is None else self._shortened(noisy[start:], noise)
        return self._moments(products, total, count, certificate)

    def _moments(
        self, products: Array, total: Array | None, count: float, certificate: Certificate
    ) -> Moments:
        """The moments of the rows, given noisy products of points and the sum of rows in the unit ball."""
        scatter = products
        scatter /= RADIUS**2
        offset: Array = np.zeros(self.n_features)
        if total is not None:
            offset = total / count
            scatter -= np.outer(total, offset)
        if self.clipping.scale is not None:  # what is left out has noise and nothing else
            scatter[self.clipping.left_out] = scatter[:, self.clipping.left_out] = 0.0
        return Moments(
            self._rows_of(count),
            self.clipping.mean(offset),
            self.clipping.unit * scatter,
            self.clipping.centered,
            about=About(self.clipping.feature_names, self.clipping.public_scale, certificate),
        )
