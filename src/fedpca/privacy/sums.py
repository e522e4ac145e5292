"""Sums: what a private model is made of, how each is noised, what it costs, and which totals are possible."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot, isclose, sqrt
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.clipping import MAX_ROWS

Purpose = Literal["step", "release", "evaluation"]
_TAIL = 10.0  # standard deviations, by which the norm of Gaussian noise never exceeds what is expected
_ROUNDED = 1e-9  # relative: what machines round differently in a norm or a radius


class NoiseBlock(NamedTuple):
    """A part of a sum whose entries have equal noise.

    Attributes:
        length: of the part.
        sd: standard deviation of the noise of an entry; 0 for none.
        largest: the largest norm that one row gives the part.
    """

    length: int
    sd: float
    largest: float


@dataclass(frozen=True)
class StepSum:
    """The noisy sum of a step over the rows of one owner, or of several: it may be sent to anybody.

    Attributes:
        step: name of the step.
        total: integers, shape (length,).
        n_rows: how many rows.
        noise: the variance of its noise, in units of that of one owner's sum.
        radius: the length that rows were clipped to; 0 where they were not.
    """

    step: str
    total: Array
    n_rows: int
    noise: float = 1.0
    radius: float = 0.0

    @classmethod
    def pooled(cls, sums: Sequence["StepSum"]) -> Self:
        """The sum over all owners' rows.

        >>> StepSum.pooled([StepSum("mean", np.ones(2), 5), StepSum("mean", np.ones(2), 7)]).n_rows
        12
        """
        first = sums[0]
        if any(part.step != first.step or part.total.shape != first.total.shape for part in sums):
            raise ValueError("only sums of the same step, of equally many features, add up.")
        if not all(same_radius(part.radius, first.radius) for part in sums):
            given = " and ".join(f"{radius:g}" for radius in sorted({part.radius for part in sums}))
            raise ValueError(
                f"only sums of rows clipped to the same length add up, got {given}; "
                "let all owners have the same settings and take the private steps together."
            )
        total: Array = sum((part.total for part in sums), start=np.zeros_like(first.total))
        n_rows, noise = (sum(getattr(part, name) for part in sums) for name in ("n_rows", "noise"))
        return cls(first.step, total, n_rows, noise, first.radius)


def same_radius(ours: float, theirs: float) -> bool:
    """Whether rows were clipped to the same length, to what machines round differently."""
    return isclose(ours, theirs, rel_tol=_ROUNDED)


class Summing(Protocol):
    """A sum over rows in the making: it never leaves as it is."""

    def take(self, rows: Array) -> None:
        """Add rows, shape (n, d), NaN or infinity for missing."""

    def total(self) -> Array:
        """The integers so far, shape (length,)."""


@dataclass(frozen=True)
class Sum:
    """A sum over rows, as it is announced: a Gaussian mechanism.

    Attributes:
        name: what is summed.
        blocks: its parts, and their noise; none where only the rows are counted, which costs nothing.
        mu: what it costs every row, of Gaussian differential privacy.
        radius: the length that rows are clipped to; 0 where they are not.
        stream_rows: how many of the first rows of a stream it takes; 0 for all.
        purpose, number: what it is for, and which of the sums for it: no two of a model share both.
        weights: of the noises of the last sums for this purpose, its own last: reports have noise in common.
        begin: a sum in the making, given where pairs of rows come from: never the rows.
    """

    name: str
    blocks: tuple[NoiseBlock, ...]
    mu: float
    radius: float = 0.0
    stream_rows: int = 0
    purpose: Purpose = "step"
    number: int = 0
    weights: tuple[float, ...] = (1.0,)
    begin: Callable[[np.random.Generator], Summing] | None = field(default=None, compare=False, repr=False)

    @property
    def length(self) -> int:
        return sum(block.length for block in self.blocks)

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> Array:
        """The integers of the sum over rows, without noise: they must not leave like this.

        Args:
            parts: dense rows, shape (n, d), NaN for missing.
            random: of pairs of rows.
        """
        assert self.begin is not None
        summing = self.begin(random)
        for rows in parts:
            summing.take(rows)
        return summing.total()

    def of(self, noisy: Array, n_rows: int) -> StepSum:
        """The noisy sum over the rows of one owner, as it may be sent."""
        return StepSum(self.name, noisy, n_rows, radius=self.radius)

    # --- which totals are possible ---

    def check(self, total: StepSum) -> None:
        """Refuse a sum over one or many owners that is none of this, or impossible for so many rows."""
        if total.step != self.name or total.total.shape != (self.length,):
            raise ValueError(
                f"the sum must be that of {self.name!r}, {self.length} numbers, got {total.step!r:.80} with "
                f"shape {total.total.shape}: all owners must take the same steps."
            )
        if not same_radius(total.radius, self.radius):
            raise ValueError(
                f"the sum must be of rows clipped to {self.radius:g}, got {total.radius:g}: all owners must "
                "have the same settings."
            )
        if not np.isfinite(total.total).all():
            raise ValueError(f"the sum of {self.name!r} must be finite.")
        rest, of_noise = total.total, sqrt(total.noise) * hypot(*self.weights)
        for block in self.blocks:
            part, rest = np.split(rest, [block.length])
            noise = block.sd * of_noise * (sqrt(block.length) + _TAIL)
            most = (total.n_rows * block.largest + noise) * (1 + _ROUNDED)
            with np.errstate(over="ignore"):
                length = float(np.linalg.norm(part))
            if not length <= most:
                raise ValueError(
                    f"its sum of {self.name!r} is {length:.4g} long; {total.n_rows} rows and noise have at "
                    f"most {most:.4g}."
                )

    def check_pooled(self, total: StepSum) -> None:
        """Refuse what is no sum over owners of which each has added its noise.

        Every owner has a row: more noise than rows would excuse any sum.
        """
        if not 1 <= total.noise <= total.n_rows:
            raise ValueError(
                "a sum must be of at least one row, and of the noise of one owner or of at most as many as "
                f"there are rows, got n_rows={total.n_rows}, noise={total.noise:g}."
            )
        self.check(total)

    def check_own(self, own: StepSum) -> None:
        """Refuse a sum that no single owner can have sent.

        A lie within these limits does no more than other rows could.
        """
        if own.noise != 1.0 or not 1 <= own.n_rows <= MAX_ROWS:
            raise ValueError(f"a sum must be of one owner with 1 to {MAX_ROWS} rows, got {own.n_rows}.")
        self.check(own)
        if (own.total != np.rint(own.total)).any():
            raise ValueError("the sum must consist of whole numbers, as exact noise has them.")
