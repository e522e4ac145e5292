"""Mechanisms: clipped rows in, one noisy linear statistic out.

Only sums over rows are ever noised. A truncated subspace is not a sum: replacing one row can change it by
as much as all rows weigh, and noise scaled to one row would hide nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import SENSITIVITY, mod_sulq_beta, paper_omega
from fedpca.privacy.lattice import MAX_ROWS, RADIUS, clipped
from fedpca.privacy.noise import Noise, SymmetricMask, too_large
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.settings import Privacy
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.merging import merge
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

MAX_GRAM_FEATURES = 4096
_SUM_WEIGHT = 0.4  # of the sum of rows beside the sum of their products, in a joint release
_SKETCH_SEED = 20200612  # of the directions rows are sketched along: public, the same for every owner


@dataclass(frozen=True)
class ClippingBall:
    """The ball that rows are clipped to: about `center`, with radius `bound`."""

    center: Array | None
    bound: float
    feature_names: tuple[str, ...] | None = None

    def points(self, rows: Array) -> Array:
        """Rows as integer points of the ball of radius 2^12."""
        return clipped(rows if self.center is None else rows - self.center, self.bound)

    def mean(self, offset: Array) -> Array:
        """The mean of the rows, given that of their points in the unit ball."""
        return offset * self.bound if self.center is None else self.center + self.bound * offset


@dataclass(frozen=True)
class Calibration:
    """How noisy a release is. Standard deviations are those of a sum over rows in the unit ball.

    Attributes:
        sensitivity: by how much, at most, one record changes the statistic.
        sigma: of an entry of a plain matrix, or on the diagonal of a symmetric one.
        off_diagonal: of the entries off the diagonal of a symmetric matrix.
        mu: sensitivity / sigma, what the release costs.
    """

    sensitivity: float
    sigma: float
    off_diagonal: float
    mu: float

    def edge(self, n_features: int) -> float:
        """The largest eigenvalue of the mask: noise reaches up to here."""
        return 2 * sqrt(n_features) * self.off_diagonal


def calibrate(
    privacy: Privacy, n_features: int, *, mu: float | None = None, joint: bool = False
) -> Calibration:
    """The noise of one increment under a schedule of releases.

    Args:
        mu: what the release may cost; all of the budget by default.
        joint: whether the sum of rows is released with that of their products.
    """
    mu = privacy.mu if mu is None else mu
    promise = (privacy.epsilon, privacy.delta, n_features, 1)
    sensitivity = SENSITIVITY[privacy.adjacency]
    if joint:
        # The largest ||x x^T - y y^T||² + w² ||x - y||² is at <x, y> = -w²/2.
        squared = _SUM_WEIGHT**2
        sensitivity = (
            sqrt(2.0) * (1 + squared / 2) if privacy.adjacency == "replace-one" else sqrt(1 + squared)
        )
    if privacy.mechanism == "sketch":
        sensitivity = (
            2.0 if privacy.adjacency == "replace-one" else 1.0
        )  # |x| <= 1 times |w| <= 1, once or twice
    norm = Schedule(privacy.releases).column_norm if privacy.mechanism != "streaming-mod-sulq" else 1.0
    sensitivity *= norm
    if privacy.mechanism == "mod-sulq":
        sigma = norm * mod_sulq_beta(*promise)
        return Calibration(sensitivity, sigma, sigma, sensitivity / sigma)
    sigma = sensitivity / mu
    if privacy.calibration == "paper":
        sigma = paper_omega(*promise)
    return Calibration(sensitivity, sigma, sigma / sqrt(2.0), sensitivity / sigma)


class Mechanism(ABC):
    """Points in, private summary out.

    Args:
        frame: back to the units of the data.
        n_features: d.
        calibration: how much noise.
    """

    def __init__(self, frame: ClippingBall, n_features: int, calibration: Calibration) -> None:
        self.frame = frame
        self.n_features = n_features
        self.calibration = calibration
        self.count = 0

    @abstractmethod
    def take(self, points: Array) -> None:
        """Add rows, integer points of the ball of radius 2^12, shape (n, d)."""

    @abstractmethod
    def release(self, noise: Noise, certificate: Certificate) -> Summary:
        """The private summary of all rows so far, in the units of the data."""

    def _in_units_of_data(
        self, components: Array, singular_values: Array, total: float, certificate: Certificate
    ) -> Subspace:
        """The subspace of the rows, given that of their points in the unit ball."""
        frame = self.frame
        return Subspace(
            components,
            frame.bound * singular_values,
            frame.mean(np.zeros(self.n_features)),
            self.count,
            frame.bound**2 * total,
            frame.center is not None,
            frame.feature_names,
            certificate,
        )


class Gram(Mechanism):
    """The sum of x x^T with a symmetric mask: d² memory, the most accurate.

    Noise of standard deviation sigma on all d² entries, symmetrized, costs what it cost before, and is sigma
    on the diagonal and sigma / sqrt(2) off it: less than a mask drawn for the upper triangle alone.

    Args:
        joint: also release the sum of rows, and correct the center by it.
    """

    def __init__(
        self, frame: ClippingBall, n_features: int, calibration: Calibration, *, joint: bool = False
    ) -> None:
        super().__init__(frame, n_features, calibration)
        self._products = np.zeros((n_features, n_features))
        self._sum = np.zeros(n_features) if joint else None

    def take(self, points: Array) -> None:
        """Integers below 2^53: the products are exact, in any order."""
        self.count += len(points)
        self._products += points.T @ points
        if self._sum is not None:
            self._sum += points.sum(axis=0)

    def release(self, noise: Noise, certificate: Certificate) -> Moments:
        calibration, unit = self.calibration, RADIUS**2
        mask = SymmetricMask(
            noise, self.n_features, calibration.sigma * unit, calibration.off_diagonal * unit
        )
        scatter = mask.add_to(self._products.copy())
        scatter /= unit
        offset = np.zeros(self.n_features)
        if self._sum is not None:
            sd = calibration.sigma / _SUM_WEIGHT * RADIUS
            total = (self._sum + noise.entries((1,), self.n_features, sd)) / RADIUS
            offset = total / self.count
            scatter -= np.outer(total, offset)
        return Moments(
            self.count,
            self.frame.mean(offset),
            self.frame.bound**2 * scatter,
            self.frame.center is not None,
            self.frame.feature_names,
            certificate,
        )


class Sketch(Mechanism):
    """The sum of x clip(Omega^T x)^T with noise on its d x k entries: for too many features for d².

    Omega is d x k, public, orthonormal but for rounding. Clipped, Omega^T x is c Omega^T x for some c in
    [0, 1], so the statistic is (sum of c x x^T) Omega, and Nystrom's formula gives that sum's directions.

    Args:
        rank: how many directions are wanted; k is eight times as many.
    """

    _fine = 2.0**20  # Omega in units of 2^-20

    def __init__(self, frame: ClippingBall, n_features: int, calibration: Calibration, *, rank: int) -> None:
        super().__init__(frame, n_features, calibration)
        self.size = sketch_size(rank, n_features)
        self.radius = min(1.0, 1.5 * sqrt(self.size / n_features))
        generator = np.random.Generator(np.random.PCG64([_SKETCH_SEED, n_features, self.size]))
        omega = np.linalg.qr(generator.standard_normal((n_features, self.size)))[0]
        self._omega = np.rint(omega * self._fine)
        self._sketch = np.zeros((n_features, self.size))

    def take(self, points: Array) -> None:
        """All integers: Omega^T x, its clipped form, and the products."""
        self.count += len(points)
        seen = clipped(points @ self._omega, self.radius * RADIUS * self._fine)
        self._sketch += points.T @ seen

    def release(self, noise: Noise, certificate: Certificate) -> Subspace:
        sigma, unit = self.calibration.sigma, RADIUS**2
        drawn = noise.entries((2,), self._sketch.size, sigma * unit).reshape(self._sketch.shape)
        sketch = (self._sketch + drawn) * (self.radius / unit)
        omega = self._omega / self._fine
        shift = sigma * self.radius * (sqrt(self.n_features) + sqrt(self.size))
        components, squares = _nystrom(sketch, omega, shift)
        # Omega^T S Omega holds the share k / d of the variance of a random direction's.
        total = max(float(np.sum(omega * sketch)) * self.n_features / self.size, float(squares.sum()))
        return self._in_units_of_data(components, np.sqrt(squares), total, certificate)


def sketch_size(rank: int, n_features: int) -> int:
    """How many directions rows are sketched along, for so many wanted."""
    return min(max(8 * rank, 32), n_features)


def _nystrom(sketch: Array, omega: Array, shift: float) -> tuple[Array, Array]:
    """Directions and eigenvalues of S from a noisy S Omega (Tropp et al. 2017), shifted so that it is psd."""
    sketch = sketch + shift * omega
    core = omega.T @ sketch
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    values = np.maximum(values, 1e-9 * values[-1])
    components, singular_values = leading_singular_pairs(((sketch @ vectors) / np.sqrt(values)).T)
    squares = singular_values**2 - shift
    kept = squares > 0
    return with_fixed_signs(components[kept]), squares[kept]


class StreamingModSulq(Mechanism):
    """The paper's Algorithm 3 as it should be: every batch is noised by itself, and rank-r parts are merged.

    A batch's noisy matrix is visited in d x 256 strips, its mask drawn again for each, in O(d b) memory.
    Repaired: the noise is that of a batch of b rows; the mask is symmetrized, which is free; eigenvalues are
    the Rayleigh quotients, clipped at zero; and merged at the scale of the data, sqrt(b lambda).

    Args:
        rank: how many directions are wanted; twice as many and ten are kept of every batch.
        batch_rows: b.
        noise: drawn while rows are taken, not when they are released.
    """

    def __init__(
        self,
        frame: ClippingBall,
        n_features: int,
        calibration: Calibration,
        *,
        rank: int,
        batch_rows: int,
        noise: Noise,
    ) -> None:
        super().__init__(frame, n_features, calibration)
        self.keep = min(2 * rank + 10, n_features)
        self.batch_rows = batch_rows
        self._noise = noise
        self._waiting: Array = np.empty((0, n_features))
        self._batches = 0
        self._merged = Subspace.empty(n_features, centered=False)

    def take(self, points: Array) -> None:
        self.count += len(points)
        self._waiting = np.concatenate([self._waiting, points])
        while len(self._waiting) >= self.batch_rows:
            batch, self._waiting = np.split(self._waiting, [self.batch_rows])
            self._absorb(batch)

    def release(self, noise: Noise, certificate: Certificate) -> Subspace:
        if len(self._waiting):
            self._absorb(self._waiting)
            self._waiting = self._waiting[:0]
        part = self._merged
        return self._in_units_of_data(part.components, part.singular_values, part.total, certificate)

    def _absorb(self, batch: Array) -> None:
        unit = RADIUS**2
        sd, off = self.calibration.sigma * unit, self.calibration.off_diagonal * unit
        mask = SymmetricMask(self._noise, self.n_features, sd, off, (self._batches,))
        self._batches += 1
        components, values, trace = self._leading(batch, mask)
        singular_values = np.sqrt(values / unit)
        total = max(trace / unit, float(singular_values @ singular_values))
        part = Subspace(
            components, singular_values, np.zeros(self.n_features), len(batch), total, centered=False
        )
        merged = merge([self._merged, part], self.keep)
        assert isinstance(merged, Subspace)
        self._merged = merged

    def _leading(self, batch: Array, mask: SymmetricMask) -> tuple[Array, Array, float]:
        """Directions of the noisy matrix with positive eigenvalues, these, and its trace.

        One pass over the strips finds a basis, a second the Rayleigh quotients in it: the singular values of
        strips would turn negative eigenvalues into positive ones. All is computed from sums of data and noise
        that are exact; neither is ever used without the other.
        """
        stack, trace = np.zeros((0, self.n_features)), 0.0
        for columns, strip in self._noisy_strips(batch, mask):
            trace += float(np.trace(strip[columns]))
            # Twice as many as are kept: about half of what is mostly noise has negative eigenvalues.
            components, singular_values = leading_singular_pairs(
                np.concatenate([stack, strip.T]), 2 * self.keep
            )
            stack = singular_values[:, None] * components
        quotients = np.zeros((len(components), len(components)))
        for columns, strip in self._noisy_strips(batch, mask):
            quotients += (components @ strip) @ components[:, columns].T
        values, vectors = np.linalg.eigh((quotients + quotients.T) / 2)
        kept = int(np.count_nonzero(values[-self.keep :] > 0))
        order = np.arange(len(values))[::-1][:kept]
        return vectors[:, order].T @ components, values[order], trace

    @staticmethod
    def _noisy_strips(batch: Array, mask: SymmetricMask) -> Iterator[tuple[slice, Array]]:
        for columns, strip in mask.strips():
            strip += batch.T @ batch[:, columns]
            yield columns, strip


def build(
    privacy: Privacy,
    frame: ClippingBall,
    n_features: int,
    *,
    mu: float,
    joint: bool,
    rank: int,
    batch_rows: int,
    noise: Noise,
) -> Mechanism:
    """The mechanism that the settings name."""
    calibration = calibrate(privacy, n_features, mu=mu, joint=joint)
    reports = Schedule(privacy.releases).weights(privacy.releases)
    if too_large(calibration.sigma * RADIUS**2 * float(reports.sum())):
        raise ValueError(
            f"epsilon must be larger, got epsilon={privacy.epsilon:g}: its noise would drown the sum of "
            f"{MAX_ROWS} rows, and is too large to be exact."
        )
    if privacy.mechanism == "sketch":
        return Sketch(frame, n_features, calibration, rank=rank)
    if privacy.mechanism == "streaming-mod-sulq":
        return StreamingModSulq(frame, n_features, calibration, rank=rank, batch_rows=batch_rows, noise=noise)
    if n_features > MAX_GRAM_FEATURES:
        raise ValueError(
            f"mechanism={privacy.mechanism!r} keeps n_features² numbers and takes at most "
            f"{MAX_GRAM_FEATURES} features, got {n_features}; use mechanism='sketch'."
        )
    return Gram(frame, n_features, calibration, joint=joint)
