"""The paper's Algorithm 3, repaired, for comparison: every batch noised by itself, rank-r parts merged."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.calibration import SENSITIVITY, Adjacency, paper_omega
from fedpca.privacy.clipping import RADIUS
from fedpca.privacy.mechanisms.base import Calibration, CalibrationName, Mechanism, Setup
from fedpca.privacy.noise import TILE, Noise, SymmetricMask
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.linalg import leading_singular_pairs
from fedpca.summaries.merging import merge
from fedpca.summaries.subspace import Subspace

if TYPE_CHECKING:
    from fedpca.privacy.settings import Privacy

BATCH_ROWS = 1024
"""Rows noised at a time by default, and assumed by `plan`."""


class StreamingModSulq(Mechanism):
    """Noisy sums of x x^T of b rows each; the directions of each are merged at the scale of the data.

    A batch's noisy matrix is visited in d x 256 strips, its mask drawn again for each, in O(d b) memory.
    Repaired: the noise is that of a batch of b rows; the mask is symmetrized, which is free; eigenvalues are
    the Rayleigh quotients, clipped at zero; and merged at the scale of the data, sqrt(b lambda). Twice the
    rank and ten directions are kept of every batch.
    """

    name = "streaming-mod-sulq"
    calibrations = ("analytic", "paper")
    continuous = True
    supports_joint = False
    edge_known = False
    less_accurate = True
    max_features = None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.keep = min(_kept(setup.rank), self.n_features)
        self.batch_rows = setup.batch_rows or BATCH_ROWS
        assert setup.noise is not None
        self._noise = setup.noise
        self._waiting: Array = np.empty((0, self.n_features))
        self._batches = 0
        self._merged = Subspace.empty(self.n_features, centered=False)

    @classmethod
    def calibrated_by_mu(cls, calibration: CalibrationName) -> bool:
        return calibration == "analytic"

    @classmethod
    def sensitivity(cls, adjacency: Adjacency, *, joint: bool) -> float:
        return SENSITIVITY[adjacency]

    @classmethod
    def calibrate(
        cls, privacy: "Privacy", n_features: int, *, mu: float, joint: bool, adjacency: Adjacency
    ) -> Calibration:
        """The paper's omega or sensitivity / mu, on the sum over a batch; every record is in one batch."""
        sensitivity = cls.sensitivity(adjacency, joint=joint)
        sigma = sensitivity / mu
        if privacy.calibration == "paper":
            sigma = paper_omega(privacy.epsilon, privacy.delta, n_features, 1)
        return Calibration.symmetrized(sensitivity, sigma)

    @classmethod
    def memory(cls, n_features: int, rank: int) -> int:
        return 8 * n_features * (2 * BATCH_ROWS + 3 * TILE + 4 * _kept(rank))

    @classmethod
    def rows_factor(cls, n_rows: float) -> float:
        """The noise of n / b batches adds up."""
        return max(n_rows / BATCH_ROWS, 1.0)

    def total_margin(self, accumulated: float, count: float) -> float:
        """Noise only ever raises the total: a batch of noise alone counts its positive eigenvalues."""
        return 0.0

    def take(self, points: Array) -> None:
        self.count += len(points)
        self._waiting = np.concatenate([self._waiting, points])
        while len(self._waiting) >= self.batch_rows:
            batch, self._waiting = np.split(self._waiting, [self.batch_rows])
            self._absorb(batch)

    def release(self, noise: Noise, certificate: Certificate) -> Subspace:
        batch, self._waiting = self._waiting, self._waiting[:0]
        if len(batch):
            self._absorb(batch)
        part = self._merged
        return self._subspace(
            part.components,
            part.singular_values,
            count=self.count,
            total=part.total,
            certificate=certificate,
        )

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


def _kept(rank: int) -> int:
    return 2 * rank + 10
