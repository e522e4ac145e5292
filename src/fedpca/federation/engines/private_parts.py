"""PrivateParts: a private model of one owner's rows in many places: exact sums there, one noise here.

Every sum that a private model is made of is one of integers over rows. Those of the parts are added up, and
the total is paid for and noised once. A task that is repeated draws no noise, and releases nothing.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedpca._typing import JSON, Array
from fedpca.federation.engines.partitions import Failure
from fedpca.privacy.accounting import Entry
from fedpca.privacy.exit import Exit
from fedpca.privacy.model import PrivateModel, check_one_release
from fedpca.privacy.rules import check_delta_for_rows, warn_of_weak_settings
from fedpca.privacy.settings import Privacy
from fedpca.privacy.sums import StepSum
from fedpca.privacy.tracker import warn_of_refit
from fedpca.summaries import model_file, validation
from fedpca.summaries.loading import from_file
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.scale_advice import dominant_feature, no_scale
from fedpca.summaries.subspace import Subspace


@dataclass(frozen=True)
class PartSum:
    """The integers of a sum over some rows, without noise: they stay with the owner.

    Attributes:
        values: shape (length,).
        n_rows: how many rows.
    """

    values: Array
    n_rows: int

    kind = "sum over rows"

    @property
    def arrays(self) -> dict[str, Array]:
        return {"values": self.values}

    @property
    def metadata(self) -> JSON:
        return {"n_rows": self.n_rows}


PartResult = PartSum | Failure | None
"""Of a part or several; None for no rows."""


def added(results: Sequence[PartResult]) -> PartResult:
    """The sum over several parts, or the first error: integers below 2^53, exact in any order."""
    if failure := next((result for result in results if isinstance(result, Failure)), None):
        return failure
    parts = [result for result in results if isinstance(result, PartSum)]
    if not parts:
        return None
    return PartSum(np.sum([part.values for part in parts], axis=0), sum(part.n_rows for part in parts))


@dataclass(frozen=True)
class PartTask:
    """What has to be known of the next sum where a part of the rows is: all of it is public, and plain.

    Attributes:
        settings: of the `Privacy`, without its ledger.
        n_features, rank, scale: of the fit.
        steps: the noisy sums so far, up to the release.
        model: the bytes of the model that is evaluated; b"" if another sum is next.
        seed: of pairs of rows.
    """

    settings: JSON
    n_features: int
    rank: int
    scale: Array | str | None
    steps: tuple[StepSum, ...]
    model: bytes
    seed: int

    def part_sum(self, parts: Iterable[Array], number: int) -> PartResult:
        """The sum over the rows of a part, of this number among all parts."""
        rule = FixedRank(self.rank)
        machine = PrivateModel(Privacy(**self.settings), self.n_features, rule, scale=self.scale)
        for total in self.steps:
            machine.add(total)
        announced = machine.next
        if self.model:
            model = from_file("the model", *model_file.decode(self.model, "the model")).subspace()
            announced = machine.evaluation_sum(model)
        assert announced is not None
        counted = _Counted(parts)
        try:
            values = announced.vector(counted, np.random.default_rng([self.seed, number]))
        except (ValueError, TypeError) as error:
            return Failure(error)
        return PartSum(values, counted.n_rows) if counted.n_rows else None


class _Counted:
    """Parts that count their rows."""

    def __init__(self, parts: Iterable[Array]) -> None:
        self._parts = parts
        self.n_rows = 0

    def __iter__(self) -> Iterator[Array]:
        for part in self._parts:
            self.n_rows += len(part)
            yield part


class PrivateParts:
    """The sums of a private model over all parts, each debited in the ledger before its one noise is drawn.

    Args:
        privacy: the settings, with the ledger.
        n_features: d.
        rank: how many components are wanted.
        n_rows: of all parts.
        scale: what features are divided by, public numbers; "std" to find it; None for nothing.
        feature_names: one per feature, or None.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        n_rows: int,
        *,
        scale: Array | str | None = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        check_one_release(privacy, "parts of one table")
        check_delta_for_rows(privacy.delta, n_rows)
        rule = FixedRank(validation.rank(rank, n_features))
        self._machine = PrivateModel(privacy, n_features, rule, scale=scale, feature_names=feature_names)
        ledger = privacy.open_ledger()
        ledger.check(0, None, privacy.mu, adjacency=privacy.adjacency)
        self._exit = Exit(ledger, privacy.adjacency, secrets.token_bytes(32))
        self._privacy = privacy
        self._n_rows = n_rows
        self._scale = scale
        if self._machine.step is not None:
            self._machine.add(StepSum("rows", np.zeros(0), n_rows))
        warn_of_refit(privacy, stacklevel=4)
        warn_of_weak_settings(privacy.epsilon, privacy.delta, n_rows, stacklevel=4)

    @property
    def task(self) -> PartTask | None:
        """What the parts sum next; None when the model is complete."""
        machine = self._machine
        if machine.next is None:
            return None
        model = b""
        if machine.view is not None:
            model = model_file.encode(machine.model.kind, machine.model.arrays, machine.model.metadata)
        settings = {name: value for name, value in self._privacy.settings.items() if name != "ledger"}
        return PartTask(
            settings,
            machine.n_features,
            machine.rank,
            self._scale,
            tuple(step.pooled for step in machine.taken),
            model,
            secrets.randbits(64),
        )

    def add(self, total: PartSum) -> None:
        """Take the exact sum over all parts: it is paid for, noised, and only then looked at."""
        announced = self._machine.next
        assert announced is not None
        if total.n_rows != self._n_rows:
            raise ValueError(
                f"all passes must read the same rows, and one had {self._n_rows:,}, another "
                f"{total.n_rows:,}; cache the data, or write it out and read that."
            )
        if total.values.shape != (announced.length,):
            raise ValueError(
                f"the sum must be that of {announced.name!r}, {announced.length} numbers, got "
                f"{total.values.shape}."
            )

        def take(noisy: Array, entry: Entry) -> None:
            receipt = self._exit.receipt(entry, self._n_rows, secrets.token_hex(8))
            self._machine.add(announced.of(noisy, self._n_rows), receipt=receipt)

        self._exit.let_out(announced, total.values.copy(), (0, self._n_rows), take)

    @property
    def model(self) -> Subspace:
        """The components that rise above the noise, with their certificate."""
        return self._machine.model

    def warnings(self) -> list[str]:
        """What the release does not show, or shows to be wrong."""
        machine = self._machine
        view, names = machine.view, machine.feature_names
        assert view is not None
        texts = [view.shortfall(), no_scale(machine.left_out, names), machine.bound_warning()]
        if self._scale is None and view.n_components():
            texts.append(dominant_feature(view.summary(), None, names))
        return [text for text in texts if text]
