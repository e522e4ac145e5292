"""Two worlds that differ in one row, and one run of one of them.

Private steps end with a sum over the owners of a federation, which is public. So the auditor plays the other
owners: what they report leads every run along the path that is wanted, and what one owner adds, a few rows
and noise, is looked at.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Literal, NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.accounting import total_mu
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.model import PrivateModel
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import DYADIC, HIGHEST, LOWEST, Histogram, Step
from fedpca.privacy.sums import StepSum
from fedpca.privacy.tracker import PrivateTracker
from fedpca.summaries.subspace import Subspace

ROWS = 64
RELEASE, EVALUATION = "release", "evaluation"
_FAR = 8  # a power of two: how far from the origin rows are
_LONGER = 1  # a power of two: the length of half of the rows; the sphere would bend them
_PARTS = {
    "rows": (),
    "scales": ("scales",),
    "lengths and spread": ("lengths", "spread"),
    "mean": ("mean",),
    "radius": ("radius",),
}

Scale = Literal["std"] | None


@dataclass(frozen=True)
class Owners:
    """The other owners, as they report themselves: half of their rows of length one about the origin.

    Attributes:
        n_rows: how many they have.
        far: how long their rows are said to be before a center is known, a power of two; None if that is not
            found, so that there is no center.
    """

    n_rows: int
    far: int | None = _FAR

    def sum(self, step: Step) -> StepSum:
        """Their sum, which ends the round."""
        total = np.zeros(step.length)
        if step.name == "scales":
            total.reshape(-1, DYADIC.n_bins)[:, -LOWEST] = self.n_rows / 2
        elif step.name == "lengths and spread":
            self._add_lengths(total[DYADIC.n_bins :], self.n_rows / 2)
            if self.far is not None:
                total[self.far - LOWEST] = self.n_rows
        elif step.name == "radius":
            self._add_lengths(total, self.n_rows)
        return StepSum(step.name, total, self.n_rows, radius=step.radius)

    def _add_lengths(self, counts: Array, n: float) -> None:
        per_octave = histogram_of(len(counts)).per_octave
        counts[-LOWEST * per_octave] += n / 2
        counts[(_LONGER - LOWEST) * per_octave] += n / 2


def histogram_of(length: int) -> Histogram:
    """The histogram of so many bins."""
    return Histogram((length - 1) // (HIGHEST - LOWEST))


@dataclass(frozen=True, eq=False)
class Case:
    """Two worlds that differ in one row, how they run, and where that row shows.

    Attributes:
        ours, theirs: the row, shape (d,).
        others: all other rows, shape (n - 1, d).
        look: directions in which it shows, shape (2, d).
        center, partner: what it lies about, and what it is paired with, shape (d,).
        index: which row it is.
        owners: the others, in rounds; None in a stream.
        step: of a stream, the one that takes the row; None where it is released.
        only: the block that alone is looked at, and with which a run ends; None for all.
    """

    name: str
    privacy: Privacy
    scale: Scale
    ours: Array
    theirs: Array
    others: Array
    look: Array
    center: Array
    partner: Array
    index: int = 0
    owners: Owners | None = None
    step: Step | None = None
    only: str | None = None

    def opposite(self) -> "Case":
        """The same with a row that is replaced by the one across the center, where means differ most."""
        if self.privacy.adjacency == "zero-out":
            return self
        return replace(self, theirs=2 * self.center - self.ours)


class Block(NamedTuple):
    """A noisy sum that left the trust boundary, or a part with noise of its own.

    Attributes:
        promised: the mu that the ledger was debited for it.
    """

    name: str
    numbers: Array
    promised: float


class Run:
    """One run of a world.

    Attributes:
        blocks: all that was seen.
        pairs: whether differences of pairs were released.
        scale: what features were divided by, in rounds; 1 for nothing.
        radius: that of the evaluation, if there is one.
        promised: the mu that the ledger was debited for the row in question.
    """

    def __init__(self, case: Case, row: Array) -> None:
        self._case = case
        self._rows = np.insert(case.others, case.index, row, axis=0)
        self._ledger = Ledger(epsilon=case.privacy.epsilon, delta=case.privacy.delta)
        privacy = replace(case.privacy, ledger=self._ledger)
        self._tracker = PrivateTracker(len(row), None, privacy, scale=case.scale)
        assert self._tracker.model is not None
        self._model: PrivateModel = self._tracker.model
        self.blocks: list[Block] = []
        self.pairs = False
        self.scale: Array | float = 1.0
        self.radius = 0.0
        ended = False
        if case.owners is not None:
            ended = self._go_rounds(case.owners)
        if not ended:
            self._release()
            self._evaluate()
        self.promised = self._debited()

    def _debited(self, since: int = 0) -> float:
        """For the row in question, by entries of the ledger."""
        index, entries = self._case.index, self._ledger.entries[since:]
        return total_mu([e for e in entries if e.start <= index < (inf if e.stop is None else e.stop)])

    def _go_rounds(self, owners: Owners) -> bool:
        """All rounds of private steps, or those up to the block that is looked at; whether there was one."""
        while not self._tracker.is_prepared:
            before = len(self._ledger.entries)
            step, scale = self._model.step, self._model.clipping.scale
            assert step is not None
            self.scale = 1.0 if scale is None else scale
            summed = self._tracker.step_sum([self._rows], len(self._rows))
            self._add_blocks(step, summed.total, self._debited(before))
            if self._case.only in _PARTS[step.name]:
                return True
            self._tracker.advance(owners.sum(step))
        return False

    def _add_blocks(self, step: Step, total: Array, promised: float) -> None:
        ends = np.cumsum([block.length for block in step.blocks])[:-1]
        parts = np.split(total, ends) if step.blocks else []
        for name, block, numbers in zip(_PARTS[step.name], step.blocks, parts, strict=True):
            self.blocks.append(Block(name, numbers, promised * sqrt(block.share / step.share)))

    def _release(self) -> None:
        tracker, rows, seen = self._tracker, self._rows, []
        more = np.repeat(self._case.others[-1:], ROWS, axis=0)
        before = len(self._ledger.entries)
        tracker.update([rows], len(rows))
        while not tracker.is_prepared:  # a stream that took more steps than usual
            tracker.update([more], ROWS)
        for report in range(self._case.privacy.releases):
            if report:
                tracker.update([more], ROWS)
            release = tracker.release()
            seen += [release.scatter.ravel(), release.mean]
        assert release.certificate is not None
        self.pairs = "pairs" in (release.certificate.clipping or "")
        if (step := self._case.step) is not None:
            taken = (summed.total for known, summed in self._model.taken if known.name == step.name)
            self._add_blocks(step, next(taken, np.zeros(step.length)), 0.0)
        self.blocks.append(Block(RELEASE, np.concatenate(seen), self._debited(before)))

    def _evaluate(self) -> None:
        """Along public directions: those in which the row shows."""
        if self._model.found is None or not self._model.can_evaluate:
            return
        self.radius = self._model.found.radius
        case, before = self._case, len(self._ledger.entries)
        ones = np.ones(2)
        model = Subspace(case.look, ones, case.center, float(ROWS), 2.0)
        total = self._tracker.evaluation_sum([self._rows], len(self._rows), model).total
        name = f"{EVALUATION} of pairs" if self.pairs else EVALUATION
        self.blocks.append(Block(name, total, self._debited(before)))
