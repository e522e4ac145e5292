"""Fit: the list of sums over owners that a model is made of; `PrivateFit` is that of a private model.

Owners and the coordinator each have a fit, built from the same public settings. Every fit names the next sum;
an owner's gives the integers of its rows; the total, which is public, takes every fit to the next sum. What a
sum is protected by, masks and noise, is not known here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Protocol

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.errors import SecureError
from fedpca.privacy.certify import Receipt
from fedpca.privacy.clipping import MAX_ROWS
from fedpca.privacy.model import PrivateModel, check_one_release
from fedpca.privacy.rules import check_delta_for_rows
from fedpca.privacy.settings import Privacy
from fedpca.privacy.sums import StepSum
from fedpca.summaries import validation
from fedpca.summaries.certificate import SecureSum
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.view import SummaryView

_TAIL = 10.0  # standard deviations, by which the norm of Gaussian noise never exceeds what is expected
SAMPLER = (
    "sum of owners' rounded Gaussians, exact on the integers; words of SHAKE128 from random 256-bit keys"
)


class Total(Protocol):
    """A sum over owners, as it was published.

    Attributes:
        name: of the sum.
        values: in the units of the fit, shape (length,).
        rows: of all owners in it.
        owners: ids of these.
        noise: the variance of the noise in it, in units of that of the sum's blocks.
    """

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Array: ...
    @property
    def rows(self) -> int: ...
    @property
    def owners(self) -> Sequence[str]: ...
    @property
    def noise(self) -> float: ...


@dataclass(frozen=True)
class Sum:
    """A sum over all owners' rows.

    Attributes:
        name: what is summed.
        blocks: length and standard deviation of the noise of every part; 0 for no noise.
        mu: what it costs every row, of Gaussian differential privacy.
        largest: per part, the largest size of an entry of the total of honest owners, without noise.
        norms: per part, the largest norm that one row gives it.
    """

    name: str
    blocks: tuple[tuple[int, float], ...]
    mu: float
    largest: tuple[float, ...]
    norms: tuple[float, ...]

    @property
    def length(self) -> int:
        return sum(length for length, _ in self.blocks)

    def check(self, total: Total, rows: int) -> None:
        """Refuse a total that no honest owners can have.

        Args:
            rows: of all owners that may be in it.
        """
        if total.name != self.name or total.values.shape != (self.length,):
            raise ValueError(
                f"the total must be that of {self.name!r}, {self.length} numbers, got {total.name!r:.80} "
                f"with shape {total.values.shape}."
            )
        if not 1 <= total.rows <= rows:
            raise ValueError(f"the total must be of 1 to {rows} rows, got {total.rows}.")
        least = 1.0 if any(sd for _, sd in self.blocks) else 0.0
        if not least <= total.noise < inf:
            raise ValueError(f"the noise of a total must be {least:g} or more, got {total.noise!r:.80}.")
        rest = total.values
        for (length, sd), of_row in zip(self.blocks, self.norms, strict=True):
            part, rest = np.split(rest, [length])
            most = of_row * total.rows + sd * sqrt(total.noise) * (sqrt(length) + _TAIL)
            norm = float(np.linalg.norm(part))
            if not norm <= most * (1 + 1e-9):
                raise SecureError(
                    f"the total of {self.name!r} is {norm:.4g} long; {total.rows} rows and noise have at "
                    f"most {most:.4g}: an owner has sent other numbers than those of its rows. Find out who, "
                    "and begin the study anew without it."
                )


class Fit(Protocol):
    """A model made of sums over owners.

    Attributes:
        n_features: of the rows.
        feature_names: one per feature, or None.
        most_sums: how many there are at most.
        most_words: the length of the longest.
        next: the next one; None when all are taken.
        taken: who took part in those so far.
        view: the model when all are taken, and how many of its directions are shown.
        model: the directions that are shown, with the certificate of a private model.
    """

    @property
    def n_features(self) -> int: ...
    @property
    def feature_names(self) -> tuple[str, ...] | None: ...
    @property
    def most_sums(self) -> int: ...
    @property
    def most_words(self) -> int: ...

    def begin(self, rows: int, noise: float) -> None:
        """Let the sums begin.

        Args:
            rows: of all owners that may take part.
            noise: the variance of the noise in a total of all of these, in units of that of its blocks.
        """

    @property
    def next(self) -> Sum | None: ...
    @property
    def taken(self) -> tuple[SecureSum, ...]: ...

    def check_rows(self, parts: Iterable[Array]) -> None:
        """Refuse, by ValueError, rows that no sum takes, before anything leaves.

        Args:
            parts: dense rows, shape (n, d), NaN for missing.
        """

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> AnyArray:
        """The integers of the next sum over an owner's rows, without noise: they must not leave like this.

        Args:
            parts: dense rows, shape (n, d), NaN for missing.
            random: of pairs of rows; never the rows.
        """

    def add(self, total: Total) -> None:
        """Take the total of the next sum, and go on."""

    @property
    def view(self) -> SummaryView: ...
    @property
    def model(self) -> Subspace: ...


class PrivateFit:
    """A private model over owners, of all of whom the rows are known before the first sum.

    Args:
        privacy: the settings; its ledger is not used here.
        n_features: d.
        rank: how many components are wanted.
        scale: what features are divided by, public numbers; "std" to find it; None for nothing.
        feature_names: one per feature, or None.

    Attributes:
        machine: the sums, without the owners.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        *,
        scale: Array | str | None = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        check_one_release(privacy, "secure sums")
        rule = FixedRank(validation.rank(rank, n_features))
        self.machine = PrivateModel(privacy, n_features, rule, scale=scale, feature_names=feature_names)
        self.n_features = n_features
        self.feature_names = feature_names
        self._rows = 0  # of all that may take part
        self._taken: list[SecureSum] = []

    @property
    def most_sums(self) -> int:
        """How many sums there are at most: public, and known before the first."""
        return self.machine.most_sums

    @property
    def most_words(self) -> int:
        """The length of the longest sum: public, and known before the first."""
        return self.machine.most_words

    def begin(self, rows: int, noise: float) -> None:
        """Let the sums begin; see `Fit`."""
        if not 2 <= rows <= MAX_ROWS:
            raise ValueError(f"secure sums must be of 2 to {MAX_ROWS} rows of all owners, got {rows}.")
        check_delta_for_rows(self.machine.privacy.delta, rows)
        self._rows = rows
        if self.machine.step is not None:
            self.machine.add(StepSum("rows", np.zeros(0), rows, noise))

    @property
    def next(self) -> Sum | None:
        """The next sum; None when all are taken."""
        if not self._rows:
            raise ValueError("the sums must begin first: call begin.")
        if (announced := self.machine.next) is None:
            return None
        blocks = tuple((block.length, block.sd) for block in announced.blocks)
        norms = tuple(block.largest for block in announced.blocks)
        return Sum(announced.name, blocks, announced.mu, tuple(self._rows * norm for norm in norms), norms)

    @property
    def taken(self) -> tuple[SecureSum, ...]:
        """Who took part in the sums so far."""
        return tuple(self._taken)

    def check_rows(self, parts: Iterable[Array]) -> None:
        """Nothing: private rows are of any values, and are not looked at before they are paid for."""

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> Array:
        """The integers of the next sum over an owner's rows, without noise; see `Fit`."""
        assert self.machine.next is not None
        return self.machine.next.vector(parts, random)

    def add(self, total: Total) -> None:
        """Take the total of the next sum, and go on."""
        if (announced := self.next) is None:
            raise ValueError("all sums were taken already.")
        announced.check(total, self._rows)
        assert self.machine.next is not None
        pooled = StepSum(total.name, total.values, total.rows, total.noise, self.machine.next.radius)
        self.machine.add(pooled, receipt=Receipt(SAMPLER, total.rows))
        self._taken.append(SecureSum(announced.name, tuple(total.owners), total.rows, float(total.noise)))

    @property
    def view(self) -> SummaryView:
        """The model, and how many of its directions are shown."""
        if self.machine.view is None:
            raise ValueError("there is no model yet: the sums are not complete.")
        return self.machine.view

    @property
    def model(self) -> Subspace:
        """The directions that are shown, with their certificate."""
        return self.view.summary().truncate(max(self.view.n_components(), 1))

    @property
    def left_out(self) -> AnyArray | None:
        """Which features have no scale that was found, shape (d,)."""
        return self.machine.left_out

    def bound_warning(self) -> str:
        """A warning if the release shows that a public bound does not fit, else ""."""
        return self.machine.bound_warning()
