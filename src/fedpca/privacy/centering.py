"""The private center: the mean of clipped rows, noised, found in two steps.

The first step is about the origin, where clipping may pull the mean in; the second about what the first
found, where it hardly does. All rows at hand: both see all of them, for a twentieth of mu² each. A stream:
they see its first rows, each row in one step only, which costs those rows what the release costs the others.
"""

from math import ceil, sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.lattice import RADIUS, clipped
from fedpca.privacy.noise import Noise
from fedpca.privacy.settings import Privacy

STEP_SHARE = 0.05  # of mu², for a step that sees all rows
STEPS = 2
# Rows for the steps of a stream, in units of those whose noise is as large as the bound.
_STREAM_ROWS = (1.0, 4.0)


def center_sigma(privacy: Privacy, mu: float) -> float:
    """Standard deviation of the noise on a sum of rows in the unit ball: replacing a row moves it by 2."""
    return (2.0 if privacy.adjacency == "replace-one" else 1.0) / mu


def stream_rows(privacy: Privacy, n_features: int) -> tuple[int, ...]:
    """How many of the first rows of a stream each step takes."""
    unit = center_sigma(privacy, privacy.mu) * sqrt(n_features)
    return tuple(ceil(rows * unit) for rows in _STREAM_ROWS)


class PrivateCenter:
    """A center in the making. Whoever calls `finish_step` has paid for it.

    Attributes:
        vector: the center so far, shape (d,).
        step: steps finished.
        count: rows taken for the step under way.
    """

    def __init__(self, privacy: Privacy, n_features: int, noise: Noise) -> None:
        self._privacy = privacy
        self._noise = noise
        self.vector: Array = np.zeros(n_features)
        self.step = 0
        self._begin()

    def _begin(self) -> None:
        self._sum: Array = np.zeros(len(self.vector))
        self.count = 0

    def take(self, rows: Array) -> None:
        """Add complete rows."""
        self._sum += clipped(rows - self.vector, self._privacy.bound).sum(axis=0)
        self.count += len(rows)

    def finish_step(self, mu: float) -> tuple[Array, int]:
        """Move to the noisy mean of the rows taken; returns their noisy sum about the old one, and number."""
        sd = center_sigma(self._privacy, mu) * RADIUS
        noisy = self._sum + self._noise.entries((self.step,), len(self._sum), sd)
        total, count = noisy * (self._privacy.bound / RADIUS), self.count
        self.vector = self.vector + total / count
        self.step += 1
        self._begin()
        return total, count
