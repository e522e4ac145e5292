"""Gaussian noise that is exact on the integers, drawn from a key, and can be drawn again piece by piece.

An entry is the real Gaussian rounded to the nearest integer, decided exactly. Added to an integer
statistic it is the rounding of the real Gaussian mechanism's answer, so that mechanism's guarantee holds to
the letter; noise made of floating-point numbers has gaps that tell what it was added to (Mironov 2012).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, getcontext, localcontext
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from fedpca.linalg import Array

TILE = 256
_LARGEST = 2.0**52  # of noise: sums with a statistic stay exact
_FARTHEST = 16.0  # standard deviations; farther out are fewer than 2^-180 of all draws
# scipy's ndtri is off by less than this, relative and absolute, 50 times over (tests/test_noise.py).
_RELATIVE, _ABSOLUTE = 2.0**-44, 2.0**-48
_TWO_PI = Decimal(
    "6.2831853071795864769252867665590057683943387987502116419498891846156328125724"
    "17997256069650684234135964296173026564613294187689219"
)

Label = tuple[int, ...]


class Noise(Protocol):
    """A source of Gaussian noise: the same label, the same noise."""

    @property
    def sampler(self) -> str:
        """How draws are made, for the certificate."""

    @property
    def safe(self) -> bool:
        """Whether the draws' low-order bits betray nothing."""

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """`count` independent draws with standard deviation `sd`."""


@dataclass(frozen=True, repr=False)
class ExactNoise:
    """The real Gaussian rounded to integers, one 64-bit word of SHAKE128 an entry, more where it must be.

    Args:
        key: 32 secret bytes.

    >>> noise = ExactNoise(bytes(32))
    >>> noise.entries((0,), 4, sd=1000.0) == noise.entries((0,), 6, sd=1000.0)[:4]
    array([ True,  True,  True,  True])
    """

    key: bytes
    sampler = "rounded Gaussian, exact on the integers; words of SHAKE128 from a random 256-bit key"
    safe = True

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """Integers, as float64."""
        if not sd * _FARTHEST < _LARGEST:
            raise ValueError(
                f"noise of standard deviation {sd / 2**24:.3g} times bound² is too large to be exact: "
                "raise epsilon."
            )
        words = np.frombuffer(self._bytes(label, 8 * count), dtype="<u8")
        # A sign bit and 63 bits: the magnitude is that whose upper tail lies in (tail, tail + 1) / 2^64.
        tail = words & np.uint64(2**63 - 1)
        known = tail.astype(np.float64)
        known += 0.5
        size = ndtri(np.minimum(known * 2.0**-64, 0.5))
        size *= -sd
        drawn = np.rint(size)
        # What float64, ndtri and the bits not drawn yet may be off by: is a rounding boundary within it?
        margin = np.divide(2 * sd, known, out=known)
        margin += _RELATIVE * size
        margin += _ABSOLUTE * sd
        size -= drawn
        np.abs(size, out=size)
        size -= 0.5
        for index in np.flatnonzero(np.abs(size) <= margin):
            drawn[index] = self._decided(label, int(index), int(tail[index]), drawn[index], sd)
        return np.where(words >> np.uint64(63), -drawn, drawn)

    def _bytes(self, label: Label, length: int) -> bytes:
        return hashlib.shake_128(self.key + _packed(label)).digest(length)

    def _decided(self, label: Label, index: int, tail: int, guess: float, sd: float) -> float:
        """The integer an entry rounds to, with as many more bits and digits as that takes."""
        drawn, words, bits = round(guess) if np.isfinite(guess) else 0, 1, 64
        while True:
            with localcontext() as context:
                context.prec = 30 + bits // 3  # an error far below the width of the interval
                low, high = Decimal(tail) / 2**bits, Decimal(tail + 1) / 2**bits
                slack = Decimal(10) ** (8 - context.prec)
                above = self._boundary(drawn, sd)  # magnitudes beyond drawn + 1/2 have tails below this
                if high < above - slack:
                    drawn += 1
                    continue
                below = self._boundary(drawn - 1, sd)
                if low > below + slack:
                    drawn -= 1
                    continue
                if low > above + slack and high < below - slack:
                    return float(drawn)
            more = self._bytes((*label, 2**63, index), 8 * words)[-8:]
            tail, bits, words = (tail << 64) + int.from_bytes(more, "little"), bits + 64, words + 1

    @staticmethod
    def _boundary(drawn: int, sd: float) -> Decimal:
        return _upper_tail((Decimal(drawn) + Decimal("0.5")) / Decimal(sd))


@dataclass(frozen=True, repr=False)
class FastNoise:
    """numpy's floating-point Gaussian, for experiments: low-order bits can betray what it was added to."""

    key: bytes
    sampler = "numpy floating-point Gaussian: UNSAFE, for experiments only"
    safe = False

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """Floats."""
        seed = hashlib.blake2b(_packed(label), key=self.key, digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))
        return sd * generator.standard_normal(count)


NOISES: dict[str, Callable[[bytes], Noise]] = {"exact": ExactNoise, "fast": FastNoise}


@dataclass(frozen=True, repr=False)
class CorrelatedNoise:
    """A weighted sum of the noise of releases 0, 1, ...: what one report of a schedule carries.

    Weights are whole numbers over 2^12, so sums of integers stay exact.
    """

    source: Noise
    weights: Sequence[int]
    scale = 2.0**12

    @property
    def sampler(self) -> str:
        return self.source.sampler

    @property
    def safe(self) -> bool:
        return self.source.safe

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """The sum of the releases' entries, release numbers put before the label."""
        total = np.zeros(count)
        for release, weight in enumerate(self.weights):
            total += weight * self.source.entries((release, *label), count, sd)
        return total / self.scale


@dataclass(frozen=True)
class SymmetricMask:
    """A symmetric d x d matrix of noise, never held whole: its tiles are drawn again whenever needed.

    Args:
        noise: where entries come from.
        n_features: d.
        diagonal, off_diagonal: standard deviations. `off_diagonal` = `diagonal` / sqrt(2) is i.i.d. noise on
            all d² entries, symmetrised.
        label: which mask.

    >>> mask = SymmetricMask(ExactNoise(bytes(32)), 3, 100.0, 70.0)
    >>> bool((mask.dense() == mask.dense().T).all())
    True
    """

    noise: Noise
    n_features: int
    diagonal: float
    off_diagonal: float
    label: Label = (0,)

    def _slices(self) -> list[slice]:
        return [slice(i, min(i + TILE, self.n_features)) for i in range(0, self.n_features, TILE)]

    def _tile(self, rows: slice, columns: slice) -> Array:
        """The entries of one tile, on or above the diagonal."""
        height, width = rows.stop - rows.start, columns.stop - columns.start
        place = (*self.label, rows.start, columns.start)
        if rows != columns:
            return self.noise.entries((*place, 0), height * width, self.off_diagonal).reshape(height, width)
        tile = np.zeros((height, height))
        above = np.triu_indices(height, 1)
        tile[above] = self.noise.entries((*place, 0), len(above[0]), self.off_diagonal)
        tile += tile.T
        tile.flat[:: height + 1] = self.noise.entries((*place, 1), height, self.diagonal)
        return tile

    def tiles(self) -> Iterator[tuple[slice, slice, Array]]:
        """Rows, columns and entries of every tile on or above the diagonal."""
        slices = self._slices()
        for i, rows in enumerate(slices):
            for columns in slices[i:]:
                yield rows, columns, self._tile(rows, columns)

    def strips(self) -> Iterator[tuple[slice, Array]]:
        """The columns of the mask, shape (d, at most 256), one strip at a time."""
        slices = self._slices()
        for j, columns in enumerate(slices):
            above = [self._tile(rows, columns) for rows in slices[: j + 1]]
            below = [self._tile(columns, rows).T for rows in slices[j + 1 :]]
            yield columns, np.concatenate(above + below)

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

    def product(self, vectors: Array) -> Array:
        """The mask times vectors, shape (d, k), in O(d k) memory."""
        result = np.zeros(vectors.shape)
        for rows, columns, tile in self.tiles():
            result[rows] += tile @ vectors[columns]
            if rows != columns:
                result[columns] += tile.T @ vectors[rows]
        return result


def _packed(label: Label) -> bytes:
    return b"".join(part.to_bytes(8, "little") for part in label)


def _upper_tail(distance: Decimal) -> Decimal:
    """P(Z > distance) of the standard Gaussian, in the context's precision, absolute."""
    square = distance * distance
    term = total = distance
    divisor, smallest = 1, Decimal(10) ** -(getcontext().prec + 5)
    while abs(term) > smallest:
        divisor += 2
        term = term * square / divisor
        total += term
    return Decimal("0.5") - total * (-square / 2).exp() / _TWO_PI.sqrt()
