"""The noisy sum of x clip(Omega^T x)^T: d k memory, for too many features for d².

Departures from the Nystrom sketch of Tropp, Yurtsever, Udell and Cevher (2017):

1. Omega^T x is clipped, which bounds what a row adds: the sum is that of c x x^T, with c in [0, 1].
2. The shift is the edge of the noise, and not of rounding.
3. Only directions above the noise are kept.
"""

from functools import lru_cache
from math import sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import Adjacency
from fedpca.privacy.clipping import RADIUS, Clipping, clipped
from fedpca.privacy.mechanisms.base import SUM_WEIGHT, Calibration, Mechanism
from fedpca.privacy.sums import NoiseBlock
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.subspace import Subspace

_SEED = 20200612  # of the directions rows are sketched along: public, the same for every owner
_FINE = 2.0**20  # Omega is held in units of 2^-20


class Sketch(Mechanism):
    """The sum of x clip(Omega^T x)^T with noise on its d x k entries.

    Omega is d x k, public, orthonormal but for rounding. Clipped, Omega^T x is c Omega^T x for some c in
    [0, 1], so the statistic is (sum of c x x^T) Omega, and Nystrom's formula gives that sum's directions.
    k is eight times the rank.
    """

    name = "sketch"
    edge_known = False
    rows_factor = 6.0  # measured on MNIST
    max_features = None

    def __init__(
        self, clipping: Clipping, n_features: int, calibration: Calibration, *, joint: bool, rank: int
    ) -> None:
        super().__init__(clipping, n_features, calibration, joint=joint, rank=rank)
        self.size = sketch_size(rank, n_features)
        self.radius = min(1.0, 1.5 * sqrt(self.size / n_features))
        self._omega = _omega(n_features, self.size)
        self._sketch = np.zeros((n_features, self.size))

    @classmethod
    def sensitivity(cls, adjacency: Adjacency, *, joint: bool) -> float:
        """|x| <= 1 times |w| <= 1, once if a row is taken out, twice if it is replaced; so does the sum."""
        rows = 2.0 if adjacency == "replace-one" else 1.0
        return rows * sqrt(1 + SUM_WEIGHT**2) if joint else rows

    @classmethod
    def memory(cls, n_features: int, rank: int) -> int:
        return 8 * 4 * n_features * sketch_size(rank, n_features)

    def total_margin(self, accumulated: float, count: float) -> float:
        sigma = self.calibration.sigma * accumulated
        return sigma * self.radius * self.n_features / sqrt(self.size) + self._sum_margin(sigma, count)

    def take(self, points: Array) -> None:
        """All integers: Omega^T x, its clipped form, and the products."""
        self.count += len(points)
        seen = clipped(points @ self._omega, self.radius * RADIUS * _FINE)
        self._sketch += points.T @ seen
        self._add_to_sum(points)

    def statistic(self) -> Array:
        """The entries of the sketch, row by row, and in a joint release the sum of rows."""
        of_rows = [] if self._sum is None else [self._sum]
        return np.concatenate([self._sketch.ravel(), *of_rows])

    @classmethod
    def most_words(cls, n_features: int, rank: int) -> int:
        return n_features * sketch_size(rank, n_features) + n_features

    def blocks(self) -> tuple[NoiseBlock, ...]:
        unit = RADIUS**2
        return (NoiseBlock(self._sketch.size, self.calibration.sigma * unit, unit), *self._sum_block())

    def summary_of(self, noisy: Array, *, count: float, noise: float, certificate: Certificate) -> Subspace:
        """Only directions above the noise: what is left out of a subspace cannot be found again later."""
        entries, of_rows = np.split(noisy, [self._sketch.size])
        sketch = entries.reshape(self._sketch.shape) * (self.radius / RADIUS**2)
        omega, clipping = self._omega / _FINE, self.clipping
        offset: Array = np.zeros(self.n_features)
        if self._sum is not None:
            total_of_rows = self._shortened(of_rows, noise)
            offset = total_of_rows / count
            sketch -= np.outer(total_of_rows, offset @ omega)
        edge = self.calibration.sigma * sqrt(noise) * self.radius * (sqrt(self.n_features) + sqrt(self.size))
        components, squares = _nystrom(sketch, omega, edge)
        # Omega^T S Omega holds the share k / d of the variance of a random direction's.
        total = max(float(np.sum(omega * sketch)) * self.n_features / self.size, float(squares.sum()))
        return Subspace(
            components,
            sqrt(clipping.unit) * np.sqrt(squares),
            clipping.mean(offset),
            self._rows_of(count),
            clipping.unit * total,
            clipping.centered,
            about=About(clipping.feature_names, clipping.public_scale, certificate),
        )


@lru_cache(maxsize=1)
def _omega(n_features: int, size: int) -> Array:
    """The directions, in units of 2^-20, shape (d, k)."""
    generator = np.random.Generator(np.random.PCG64([_SEED, n_features, size]))
    omega = np.linalg.qr(generator.standard_normal((n_features, size)))[0]
    return np.rint(omega * _FINE)


def sketch_size(rank: int, n_features: int) -> int:
    """How many directions rows are sketched along, for so many wanted."""
    return min(max(8 * rank, 32), n_features)


def _nystrom(sketch: Array, omega: Array, edge: float) -> tuple[Array, Array]:
    """Directions and eigenvalues of S from a noisy S Omega (Tropp et al. 2017), those above the noise.

    The noise has about the norm `edge`. Shifted by it, S is positive definite, and its core is no smaller
    than the shift; noise alone has eigenvalues of up to the edge, once in fifty times more for one or two
    features. The Nystrom tracker solves the same equation by other means: its products have no noise, so its
    shift only has to cover rounding.
    """
    sketch = sketch + edge * omega
    core = omega.T @ sketch
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    values = np.maximum(values, max(1e-9 * values[-1], edge))
    components, singular_values = leading_singular_pairs(((sketch @ vectors) / np.sqrt(values)).T)
    squares = singular_values**2 - edge
    kept = squares > edge
    return with_fixed_signs(components[kept]), squares[kept]
