"""FastNoise: numpy's floating-point Gaussian, for experiments with many draws that nobody attacks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.noise import Label


@dataclass(frozen=True, repr=False)
class FastNoise:
    """As `fedpca.privacy.noise.ExactNoise`, but for low-order bits: they can reveal what it was added to."""

    key: bytes
    sampler = "numpy floating-point Gaussian: UNSAFE, for experiments only"

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """Floats."""
        return self.weighted([label], [1.0], count, sd)

    def weighted(self, labels: Sequence[Label], weights: Sequence[float], count: int, sd: float) -> Array:
        """Floats."""
        drawn = (self._normals(label, count) for label in labels)
        return sum((sd * weight * part for part, weight in zip(drawn, weights, strict=True)), np.zeros(count))

    def _normals(self, label: Label, count: int) -> Array:
        packed = b"".join(part.to_bytes(8, "little") for part in label)
        seed = hashlib.blake2b(packed, key=self.key, digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))
        return generator.standard_normal(count)
