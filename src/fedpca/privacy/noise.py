"""Gaussian noise that is exact on the integers, drawn from a key, and can be drawn again piece by piece.

An entry is the real Gaussian rounded to the nearest integer, decided exactly. Added to an integer
statistic it is the rounding of the real Gaussian mechanism's answer, so that mechanism's guarantee holds to
the letter; noise made of floating-point numbers has gaps that reveal what it was added to (Mironov 2012).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, getcontext, localcontext
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from fedpca._typing import Array

_MAGNITUDE = np.uint64(2**63 - 1)
_MAX_NOISE = 2.0**52  # sums with a statistic stay exact
_MAX_SDS = 16.0  # standard deviations; farther out are fewer than 2^-180 of all draws
# scipy's ndtri is off by less than this, relative and absolute, 50 times over (tests/privacy/test_noise.py).
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

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """`count` independent draws with standard deviation `sd`."""

    def weighted(self, labels: Sequence[Label], weights: Sequence[float], count: int, sd: float) -> Array:
        """Draws with several labels, each times its weight, added up."""


@dataclass(frozen=True, repr=False)
class ExactNoise:
    """The real Gaussian rounded to integers, one 64-bit word of SHAKE128 per entry, more where needed.

    Args:
        key: 32 secret bytes.

    >>> noise = ExactNoise(bytes(32))
    >>> noise.entries((0,), 4, sd=1000.0) == noise.entries((0,), 6, sd=1000.0)[:4]
    array([ True,  True,  True,  True])
    """

    key: bytes
    sampler = "rounded Gaussian, exact on the integers; words of SHAKE128 from a random 256-bit key"

    def entries(self, label: Label, count: int, sd: float) -> Array:
        """Integers, as float64."""
        return self.weighted([label], [1.0], count, sd)

    @np.errstate(all="ignore")
    def weighted(self, labels: Sequence[Label], weights: Sequence[float], count: int, sd: float) -> Array:
        """A weighted sum of real Gaussians, then rounded: not a sum of rounded ones, which would show."""
        if too_large(sd * sum(map(abs, weights))):
            raise ValueError("noise this large is not exact: raise epsilon.")
        streams = [np.frombuffer(self._bytes(label, 8 * count), dtype="<u8") for label in labels]
        total, margin = np.zeros(count), np.zeros(count)
        known, size = np.empty(count), np.empty(count)  # used again: new arrays cost page faults
        for words, weight in zip(streams, weights, strict=True):
            # A sign bit and 63 bits: the magnitude is that whose upper tail lies in (tail, tail + 1) / 2^64.
            np.add(words & _MAGNITUDE, 0.5, out=known)
            np.multiply(known, 2.0**-64, out=size)
            ndtri(np.minimum(size, 0.5, out=size), out=size)
            size *= -sd * abs(weight)
            # What float64, ndtri and the bits not drawn yet may be off by.
            margin += np.divide(2 * sd * abs(weight), known, out=known)
            relative = _RELATIVE * max(1.0, len(labels) / 256)  # sums of very many round, too
            margin += np.multiply(size, relative, out=known)
            margin += _ABSOLUTE * sd * abs(weight)
            total += np.negative(size, out=size, where=(words > _MAGNITUDE) ^ (weight < 0))
        drawn = np.rint(total)
        total -= drawn
        np.abs(total, out=total)
        total -= 0.5
        for index in np.flatnonzero(np.abs(total) <= margin):  # a rounding boundary is within the margin
            words_there = [int(words[index]) for words in streams]
            drawn[index] = self._decided(labels, weights, int(index), words_there, sd)
        return drawn

    def _bytes(self, label: Label, length: int) -> bytes:
        return hashlib.shake_128(self.key + _packed(label)).digest(length)

    def _decided(
        self, labels: Sequence[Label], weights: Sequence[float], index: int, words: Sequence[int], sd: float
    ) -> float:
        """The integer an entry rounds to, with as many more bits and digits as that takes."""
        tails, more = [word & int(_MAGNITUDE) for word in words], 0
        while True:
            bits = 64 * (1 + more)
            if min(tails) >> 20:  # else the tail is not known well enough to begin with
                with localcontext(_context(30 + bits // 3)):  # errors far below what is not known yet
                    middle = half = Decimal(0)
                    for word, tail, weight in zip(words, tails, weights, strict=True):
                        size, width = _quantile(tail, bits)
                        scale = Decimal(sd) * Decimal(weight)
                        middle += -scale * size if word >> 63 else scale * size
                        half += abs(scale) * width
                    low, high = ((middle + side).to_integral_value() for side in (-half, half))
                    if low == high:
                        return float(low)
            more += 1
            for i, label in enumerate(labels):
                drawn = self._bytes((*label, 2**63, index), 8 * more)[-8:]
                tails[i] = (tails[i] << 64) + int.from_bytes(drawn, "little")


def too_large(sd: float) -> bool:
    """Whether noise of this standard deviation would leave the integers that float64 holds."""
    return not sd * _MAX_SDS < _MAX_NOISE


def _context(digits: int) -> Context:
    """Arithmetic of so many digits, whatever rounding and traps the caller has set."""
    least, most = -999_999, 999_999
    return Context(digits, ROUND_HALF_EVEN, least, most, capitals=1, clamp=0, flags=[], traps=[])


def _packed(label: Label) -> bytes:
    return b"".join(part.to_bytes(8, "little") for part in label)


def _quantile(tail: int, bits: int) -> tuple[Decimal, Decimal]:
    """The distance whose upper tail is in (tail, tail + 1) / 2^bits, and twice what it may be off by.

    Newton's method, from scipy's value, which has 13 digits or more: every step doubles them.
    """
    exact = (Decimal(tail) + Decimal("0.5")) / 2**bits
    distance = Decimal(-float(ndtri(min((tail + 0.5) / 2.0**bits, 0.5))))
    step, density = Decimal(1), Decimal(1)
    while abs(step) > Decimal(10) ** (-getcontext().prec // 2 + 2):
        square = distance * distance
        density = (-square / 2).exp() / _TWO_PI.sqrt()
        step = (Decimal("0.5") - density * _series(distance, square) - exact) / density
        distance += step
    return distance, 1 / (density * 2**bits)


def _series(distance: Decimal, square: Decimal) -> Decimal:
    """(P(Z < distance) - 1/2) / density: distance + distance³/3 + distance⁵/(3 5) + ..."""
    term = total = distance
    divisor, smallest = 1, Decimal(10) ** -(getcontext().prec + 5)
    while abs(term) > smallest:
        divisor += 2
        term = term * square / divisor
        total += term
    return total
