"""The noisy sum of x x^T: d² memory, the most accurate.

Departures from Analyze Gauss (Dwork, Talwar, Thakurta, Zhang 2014):

1. The noise solves the exact condition of Balle and Wang, as large as (epsilon, delta) need and no larger.
2. The mask is that of all d² entries, symmetrized, and so quieter by sqrt(2) off the diagonal.
3. Rows are integer points, and so are the noise and all sums: none is rounded.
4. The sum of rows may be released with it, which corrects a private center.
"""

from functools import cached_property
from math import sqrt
from typing import ClassVar

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import SENSITIVITY, Adjacency
from fedpca.privacy.clipping import RADIUS
from fedpca.privacy.mechanisms.base import SUM_WEIGHT, Mechanism
from fedpca.privacy.sums import NoiseBlock
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

    @cached_property
    def _products(self) -> Array:
        """The sum, made when rows come: who summarizes the noisy one needs none."""
        return np.zeros((self.n_features, self.n_features))

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
        """In place, as far as that goes: a d x d matrix is large."""
        d, clipping = self.n_features, self.clipping
        scatter, start = np.diag(noisy[:d]), d
        for i in range(d):
            stop = start + d - i - 1
            scatter[i, i + 1 :] = scatter[i + 1 :, i] = noisy[start:stop]
            start = stop
        scatter /= RADIUS**2
        offset: Array = np.zeros(d)
        if self._sum is not None:
            total = self._shortened(noisy[start:], noise)
            offset = total / count
            for row, length in zip(scatter, total, strict=True):
                row -= length * offset
        if clipping.scale is not None:  # what is left out has noise and nothing else
            scatter[clipping.left_out] = scatter[:, clipping.left_out] = 0.0
        scatter *= clipping.unit
        return Moments(
            self._rows_of(count),
            clipping.mean(offset),
            scatter,
            clipping.centered,
            about=About(clipping.feature_names, clipping.public_scale, certificate),
        )
