"""SymmetricMask: the noise of MOD-SuLQ, symmetric, whose tiles are drawn again whenever they are needed.

It comes from a source of noise that the caller gives. Nothing here is paid for, or certified.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.noise import Label, Noise

TILE = 256


@dataclass(frozen=True)
class SymmetricMask:
    """A symmetric d x d matrix of noise, never held whole: its tiles are drawn again whenever needed.

    Args:
        noise: where entries come from.
        n_features: d.
        diagonal, off_diagonal: standard deviations. `off_diagonal` = `diagonal` / sqrt(2) is i.i.d. noise on
            all d² entries, symmetrized.
        label: which mask.

    >>> from fedpca.privacy.noise import ExactNoise
    >>> mask = SymmetricMask(ExactNoise(bytes(32)), 3, 100.0, 70.0)
    >>> bool((mask.dense() == mask.dense().T).all())
    True
    """

    noise: Noise
    n_features: int
    diagonal: float
    off_diagonal: float
    label: Label = (0,)

    def slices(self) -> list[slice]:
        """Where the tiles begin and end."""
        return [slice(i, min(i + TILE, self.n_features)) for i in range(0, self.n_features, TILE)]

    def tile(self, rows: slice, columns: slice) -> Array:
        """The entries of one tile, on or above the diagonal."""
        height, width = rows.stop - rows.start, columns.stop - columns.start
        label = (*self.label, rows.start, columns.start)
        if rows != columns:
            return self.noise.entries((*label, 0), height * width, self.off_diagonal).reshape(height, width)
        tile = np.zeros((height, height))
        above = np.triu_indices(height, 1)
        tile[above] = self.noise.entries((*label, 0), len(above[0]), self.off_diagonal)
        tile += tile.T
        tile.flat[:: height + 1] = self.noise.entries((*label, 1), height, self.diagonal)
        return tile

    def tiles(self) -> Iterator[tuple[slice, slice, Array]]:
        """Rows, columns and entries of every tile on or above the diagonal."""
        slices = self.slices()
        for i, rows in enumerate(slices):
            for columns in slices[i:]:
                yield rows, columns, self.tile(rows, columns)

    def add_to(self, matrix: Array) -> Array:
        """Add the mask to a d x d matrix, in place."""
        for rows, columns, tile in self.tiles():
            matrix[rows, columns] += tile
            if rows != columns:
                matrix[columns, rows] += tile.T
        return matrix

    def dense(self) -> Array:
        """The whole mask."""
        return self.add_to(np.zeros((self.n_features, self.n_features)))
