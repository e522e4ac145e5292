"""Steps: the noisy sums that come before and after the release of a private summary.

Every step is a sum over records of integer vectors, of bounded length, that depend on one record (or pair of
records) and on public numbers only. So the sums of several owners add up, and each step is one Gaussian
mechanism, debited in the ledger before its noise is drawn. These are all of them:

    scales      per feature, a histogram of differences of pairs      sensitivity sqrt(2 d)
    lengths     a histogram of lengths of rows                        sqrt(2)
    spread      a histogram of lengths of differences of pairs        sqrt(2)
    mean        the sum of rows clipped about the center so far       2
    radius      a histogram of lengths about the center               sqrt(2)
    evaluation  energies along released directions, and the rest      3/2

and, as ever, the release itself (see `mechanisms`). Sensitivities are for a record that is replaced. One that
is taken out lies at the center and adds nothing (a length of zero is in no bin): for rows, a histogram then
has 1, a mean 1, an evaluation sqrt(5) / 2; for pairs, where it leaves its partner, all stays the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Literal

import numpy as np
from scipy.special import ndtri

from fedpca._typing import AnyArray, Array
from fedpca.privacy.calibration import Adjacency, noise_sd
from fedpca.privacy.clipping import RADIUS, UNNOTICED, Clipping, Pairing, clipped, lengths
from fedpca.privacy.sums import NoiseBlock, Sum
from fedpca.summaries.subspace import Subspace

LOWEST, HIGHEST = -60, 60
"""Powers of two between which lengths are told apart: public, whatever the rows."""
_FALSE_BINS = 3e-4  # expected in a histogram of nothing
_FINE = 2.0**20
BELOW = 1 - 1e-12
"""By which the last part of a budget is smaller, so that rounding takes no sum of parts above the whole."""
ENERGY = RADIUS**2
"""An energy of one, in an evaluation."""
BEYOND = 0.5
"""Weight of the number of rows beyond the radius, in an evaluation."""


@dataclass(frozen=True)
class Block:
    """A part of a step's sum with a sensitivity and noise of its own.

    Attributes:
        length: of the sum.
        share: of mu².
        of_pairs: whether it takes differences of pairs, and not rows.
        sensitivities: by how much one record changes it, replaced and taken out.
        add: rows in, shape (n, d), NaN for missing; their sum out, shape (length,).
    """

    length: int
    share: float
    of_pairs: bool
    sensitivities: tuple[float, float]
    add: Callable[[Array], Array]

    def sensitivity(self, adjacency: Adjacency) -> float:
        return self.sensitivities[adjacency == "zero-out"]


StepName = Literal["rows", "scales", "lengths and spread", "mean", "radius", "evaluation"]


@dataclass(frozen=True)
class Step:
    """One exchange: blocks that are summed at once.

    Attributes:
        name: see the list above.
        blocks: parts of the sum; none where only the rows are counted, which costs nothing.
        stream_rows: how many of the first rows of a stream it takes.
        radius: the length that rows are clipped to; 0 where they are not.
    """

    name: StepName
    blocks: tuple[Block, ...]
    stream_rows: int = 0
    radius: float = 0.0

    @property
    def share(self) -> float:
        """Of mu²."""
        return sum(block.share for block in self.blocks)

    @property
    def length(self) -> int:
        return sum(block.length for block in self.blocks)

    def announced(self, mu: float, adjacency: Adjacency, clipping: Clipping) -> Sum:
        """The step as a sum that costs mu, over rows clipped like this."""
        blocks = tuple(
            NoiseBlock(
                block.length,
                noise_sd(block.sensitivity(adjacency), mu * sqrt(block.share / self.share)),
                min(block.sensitivities) / (2 if block.of_pairs else 1),
            )
            for block in self.blocks
        )
        begin = partial(_StepSumming, self.blocks, clipping)
        return Sum(self.name, blocks, mu, self.radius, self.stream_rows, begin=begin)


class _StepSumming:
    """The sum of a step in the making."""

    def __init__(self, blocks: tuple[Block, ...], clipping: Clipping, random: np.random.Generator) -> None:
        self._clipping = clipping
        self._blocks = [
            (block, Pairing(random) if block.of_pairs else None, np.zeros(block.length)) for block in blocks
        ]

    @UNNOTICED
    def take(self, rows: Array) -> None:
        rows = self._clipping.deviations(rows)
        for block, pairing, total in self._blocks:
            for part in (rows,) if pairing is None else pairing.take(rows):
                total += block.add(part)

    @UNNOTICED
    def total(self) -> Array:
        for block, pairing, total in self._blocks:
            if pairing is not None and pairing.n_waiting:
                total += block.add(pairing.flush())
        return np.concatenate([total for *_, total in self._blocks])


@dataclass(frozen=True)
class Lengths:
    """How long rows are, as a histogram shows it: so many between each end and the next.

    Attributes:
        ends: upper ends of the bins; the first holds lengths of about zero.
        counts: how many rows are in each, shape of `ends`; none anywhere if nothing was found.
    """

    ends: Array
    counts: Array

    def quantile(self, q: float, *, end: bool = False) -> float:
        """The length that a share `q` of rows does not exceed; 0 if it is not found, or is 0.

        Args:
            end: the upper end of the bin; else a point within it.
        """
        sums = np.cumsum(self.counts)
        if not sums[-1] > 0:
            return 0.0
        index = min(int(np.searchsorted(sums, q * sums[-1])), int(np.flatnonzero(self.counts)[-1]))
        if not index:
            return 0.0
        within = (q * sums[-1] - sums[index] + self.counts[index]) / self.counts[index]
        within = 1.0 if end else min(max(within, 0.0), 1.0)
        return float(self.ends[index] * (self.ends[index - 1] / self.ends[index]) ** (1 - within))

    @property
    def resolution(self) -> float:
        """The upper end of a bin over its lower end."""
        return float(self.ends[1] / self.ends[0])

    def mean_square(self) -> float:
        """Of the lengths; 0 if nothing was found."""
        squares = np.square(self._middles)
        squares[0] = 0.0
        rows = float(self.counts.sum())
        return float(self.counts @ squares) / rows if rows > 0 else 0.0

    def clipped(self, radius: float, shortest: float) -> tuple[float, float]:
        """What clipping to a radius, or to the sphere if that is 0, does to the rows.

        As points of the ball they are divided by the radius or, if they are longer, by their length.

        Args:
            shortest: rows that are shorter count as if they were as long as this.

        Returns:
            energy: of points along a direction in which all rows vary alike.
            bending: by how much the weights that rows have as points differ: the standard deviation over the
                mean of their squared factors, each row counted by its energy; 0 if no row is clipped.
        """
        factors = 1 / np.maximum(self._middles, max(radius, shortest)) ** 2
        energies = self.counts * np.square(self._middles)
        mean = energies @ factors / energies.sum()
        bending = sqrt(energies @ np.square(factors / mean - 1) / energies.sum())
        return float(self.counts @ factors / self.counts.sum()), float(bending)

    @property
    def _middles(self) -> Array:
        return self.ends / sqrt(self.resolution)


@dataclass(frozen=True)
class Histogram:
    """Bins of lengths at powers of two, or a few per power: bin k holds lengths up to 2^(k / per_octave)."""

    per_octave: int = 1

    @property
    def n_bins(self) -> int:
        return (HIGHEST - LOWEST) * self.per_octave + 1

    @property
    def _ends(self) -> Array:
        """Upper ends of all bins; the last one takes whatever is longer, too."""
        ends: Array = 2.0 ** (np.arange(self.n_bins) / self.per_octave + LOWEST)
        return ends

    def bins(self, values: Array) -> AnyArray:
        """The bin of every value, by comparisons alone: exact, in whatever company a value comes."""
        return np.searchsorted(self._ends[:-1], values)

    def counts(self, values: Array) -> Array:
        """How many values are in every bin."""
        return np.bincount(self.bins(values), minlength=self.n_bins).astype(np.float64)

    def least(self, sd: float, histograms: int = 1) -> float:
        """The rows in an octave that noise alone hardly ever has.

        Args:
            sd: standard deviation of the noise of a bin.
            histograms: how many are looked at together: none of them should have a false octave.
        """
        unlikely = _FALSE_BINS / (HIGHEST - LOWEST + 1) / histograms
        return float(-ndtri(unlikely)) * sd * sqrt(self.per_octave)

    def lengths(self, counts: Array, sd: float, histograms: int = 1) -> Lengths:
        """What counts with noise say: octaves with fewer rows than `least` count as empty."""
        least = self.least(sd, histograms)
        octaves = counts[1:].reshape(-1, self.per_octave)
        sums = octaves.sum(axis=1)
        sums = np.where(sums > least, sums, 0.0)
        within = np.maximum(octaves, 0.0)
        of_octave = within.sum(axis=1)
        within *= np.divide(sums, of_octave, out=np.zeros_like(sums), where=of_octave > 0)[:, None]
        zero = counts[0] if counts[0] > least else 0.0
        return Lengths(self._ends, np.concatenate([[zero], within.ravel()]))


DYADIC = Histogram()


def count_rows() -> Step:
    """How many rows there are, and owners: public."""
    return Step("rows", ())


def scales(n_features: int, share: float, stream_rows: int) -> Step:
    """A histogram per feature of |differences of pairs|."""

    def add(differences: Array) -> Array:
        bins = DYADIC.bins(np.abs(np.nan_to_num(differences)))
        bins += DYADIC.n_bins * np.arange(n_features)
        counts = np.bincount(bins[~np.isnan(differences)], minlength=DYADIC.n_bins * n_features)
        return counts.astype(np.float64)

    root = sqrt(2.0 * n_features)
    block = Block(DYADIC.n_bins * n_features, share, True, (root, root), add)
    return Step("scales", (block,), stream_rows)


def lengths_and_spread(histogram: Histogram, share: float, stream_rows: int) -> Step:
    """Two histograms at once: of lengths of rows, and of differences of pairs, which are half as many.

    Args:
        histogram: of the differences.
    """

    def add(differences: Array) -> Array:
        return histogram.counts(lengths(differences))

    of_rows = Block(DYADIC.n_bins, share, False, (sqrt(2.0), 1.0), partial(_counts_off_center, DYADIC))
    of_pairs = Block(histogram.n_bins, 2 * share, True, (sqrt(2.0), sqrt(2.0)), add)
    return Step("lengths and spread", (of_rows, of_pairs), stream_rows)


def mean(center: Array, radius: float, share: float, stream_rows: int) -> Step:
    """The sum of rows less the center so far, clipped to a radius."""

    def add(rows: Array) -> Array:
        total: Array = clipped(np.nan_to_num(rows - center), radius).sum(axis=0)
        return total

    block = Block(len(center), share, False, (2.0 * RADIUS, RADIUS), add)
    return Step("mean", (block,), stream_rows, radius)


def radius(histogram: Histogram, share: float, stream_rows: int) -> Step:
    """A histogram of lengths of rows about the center."""
    add = partial(_counts_off_center, histogram)
    return Step("radius", (Block(histogram.n_bins, share, False, (sqrt(2.0), 1.0), add),), stream_rows)


def _counts_off_center(histogram: Histogram, rows: Array) -> Array:
    """How many rows are in every bin, but for those at the center: they are as if they were not there."""
    of_rows = lengths(rows)
    return histogram.counts(of_rows[of_rows > 0])


def evaluation(model: Subspace, limit: float, share: float, *, of_pairs: bool) -> Step:
    """Energies of rows about the mean along directions, what is left of them, and who lies beyond a radius.

    A row has an energy of at most one, in units of the radius squared, in all numbers together: rows that
    lie beyond are clipped. As no number is negative, replacing a row changes them by sqrt(2) at most. The
    directions are held in units of 2^-20: products of integers are exact, in whatever company a row comes.
    """
    directions = np.rint(model.components.astype(np.float64) * _FINE)
    norm = max(float(np.linalg.norm(directions, 2)) / _FINE, 1.0) * (1 + 1e-9) if model.rank else 1.0

    def add(rows: Array) -> Array:
        deviations = rows if of_pairs else rows - model.mean
        beyond = np.count_nonzero(lengths(deviations) > limit)
        points = clipped(np.nan_to_num(deviations), limit)
        along = np.floor((points @ directions.T / (norm * _FINE)) ** 2)
        rest = np.maximum(np.einsum("ij,ij->i", points, points) - along.sum(axis=1), 0.0)
        return np.concatenate([along.sum(axis=0), [rest.sum(), beyond * BEYOND * ENERGY]])

    sensitivities = sqrt(2 + BEYOND**2) * ENERGY, sqrt(1 + BEYOND**2) * ENERGY
    sensitivities = sensitivities[0], sensitivities[0] if of_pairs else sensitivities[1]
    block = Block(model.rank + 2, share, of_pairs, sensitivities, add)
    return Step("evaluation", (block,), radius=limit)
