"""Noise in shares: every owner adds a part of what the sum needs, and takes back what turns out superfluous.

With u owners in a sum, of whom `colluding` tell their noise, u - colluding honest ones must add up to the
variance sd². Before u is known, each owner adds noise for the smallest sum, in parts, one per level of
owners; once u is signed, it opens the parts above the level that u reaches. The parts come from a chain of
hashes: an element opens all parts from its own on, and none before.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Self

import numpy as np

from fedpca.privacy.noise import ExactNoise
from fedpca.secure.masks import Words
from fedpca.secure.settings import Terms

LEAST_SD = 4.0  # of a part: below, sums of rounded parts differ from rounded sums
_TARGET_SD = 2.0**10  # which shifted parts reach
MOST_SHIFT = 40


@dataclass(frozen=True)
class Levels:
    """The parts of the noise of a session, and what is kept of them.

    Attributes:
        sizes: numbers of owners, from all members of the session down to `least`.
        colluding: how many owners may side with the coordinator.

    >>> Levels.of(Terms(tuple("abcdefg"), least=5, colluding=1), 7)
    Levels(sizes=(7, 6, 5), colluding=1)
    """

    sizes: tuple[int, ...]
    colluding: int

    @classmethod
    def of(cls, terms: Terms, members: int) -> Self:
        """Each level has the smallest noise that is at most 1.1 times that of the next larger one."""
        sizes = [members]
        while sizes[-1] > terms.least:
            # In whole numbers, -(-a // b) is a / b rounded up. A step of 1.1 leaves at most 10 % more noise
            # than needed, for 9 parts among 100 or 1,000 owners; 1.05 takes 18 parts, and 1.2 leaves 20 %
            # more (`benchmarks.secure`, levels).
            next_size = terms.colluding - (-10 * (sizes[-1] - terms.colluding) // 11)
            sizes.append(max(terms.least, min(next_size, sizes[-1] - 1)))
        return cls(tuple(sizes), terms.colluding)

    def reached(self, present: int) -> int:
        """The first level that so many owners reach: parts above it are superfluous."""
        return next(level for level, size in enumerate(self.sizes) if size <= present)

    def first_surplus(self, present: int) -> int | None:
        """The first superfluous part; None if every part is needed."""
        level = self.reached(present)
        return level + 1 if level + 1 < len(self.sizes) else None

    @property
    def fractions(self) -> list[float]:
        """The variance of each part, in units of sd²."""
        kept = [1 / (size - self.colluding) for size in self.sizes]
        return [kept[0], *(larger - smaller for smaller, larger in pairwise(kept))]

    def variance(self, present: int, opened: int) -> float:
        """Of the noise in a sum, in units of sd², if so many of those present have opened their surplus."""
        needed, all_parts = self.sizes[self.reached(present)], self.sizes[-1]
        return opened / (needed - self.colluding) + (present - opened) / (all_parts - self.colluding)

    def sds(self, sd: float, shift: int) -> list[float]:
        """The standard deviation of each part, shifted."""
        return [sd * sqrt(fraction) * 2**shift for fraction in self.fractions]

    def shift(self, sd: float) -> int:
        """How far integers are shifted, so that noise of this size has large parts."""
        smallest = min(self.sds(sd, 0))
        if smallest <= 0:
            return 0
        return next((k for k in range(MOST_SHIFT) if smallest * 2**k >= _TARGET_SD), MOST_SHIFT)


def next_element(element: bytes) -> bytes:
    """The element of a chain after this one."""
    return hashlib.sha256(b"fedpca secure surplus\n" + element).digest()


def element_after(element: bytes, steps: int) -> bytes:
    """The element so many steps on."""
    for _ in range(steps):
        element = next_element(element)
    return element


def anchor_steps(terms: Terms) -> int:
    """Where in a chain its published element is: beyond every part."""
    return terms.n_members - terms.least + 1


def noise(blocks: Sequence[tuple[int, float, int]], levels: Levels, element: bytes, first: int) -> Words:
    """The sum of an owner's parts from the first on, for every block (length, sd, shift), modulo 2^64.

    `element` is that of the first part in the owner's chain.
    """
    total = np.zeros(sum(length for length, _, _ in blocks), dtype=np.int64)
    for part in range(first, len(levels.sizes)):
        source = ExactNoise(hashlib.sha256(b"fedpca secure noise\n" + element).digest())
        start = 0
        for number, (length, sd, shift) in enumerate(blocks):
            if sd > 0:
                drawn = source.entries((number,), length, levels.sds(sd, shift)[part])
                total[start : start + length] += drawn.astype(np.int64)
            start += length
        element = next_element(element)
    return total.view(np.uint64)
