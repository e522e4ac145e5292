"""Frequent Directions (Liberty 2013; Ghashami et al. 2016) and its robust variant (Luo et al. 2019)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack, final

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.rank import RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker, TrackerSettings


class _Sketch(SubspaceTracker):
    """A sketch of ell directions, all shrunk by the weakest before the next ell rows.

    Args:
        ell: the papers' sketch size. By default one more than the directions other trackers carry, since
            the weakest does not survive: so a sketch of all d of them shrinks nothing.
    """

    def __init__(
        self, n_features: int, rule: RankRule, *, ell: int | None = None, **settings: Unpack[TrackerSettings]
    ) -> None:
        self._ell = None if ell is None else validation.integer(ell, "ell", at_least=2)
        super().__init__(n_features, rule, **settings)
        self._shrunk = 0.0  # by how much in all, in squares of singular values
        self._sketch = Subspace.empty(n_features, centered=self.center, dtype=self.dtype)  # before it shrinks

    @abstractmethod
    def state(self) -> Subspace: ...

    @property
    def ell(self) -> int:
        return self._ell or self.n_exchanged + 1

    def _exchanged_for(self, rank: int) -> int:
        """Whatever the rank, the sketch that was asked for."""
        return super()._exchanged_for(rank) if self._ell is None else min(self._ell, self.n_features)

    @property
    def shrunk(self) -> float:
        """How much of the rows' scatter the sketch may lack, in any direction: a bound known afterwards."""
        return self._pending_decay**2 * (self._shrunk + self._shrunk_sketch()[1])

    @property
    def min_panel_rows(self) -> int:
        return self.ell

    @property
    def _absorbed_energy(self) -> float:
        return self._sketch.total

    def _absorb(self, panel: Array, roots: Array | None) -> None:
        sketch, amount = self._shrunk_sketch()
        self._shrunk += amount
        self._sketch = append_rows(sketch, panel, roots, self.ell)
        self.rank = self._next_rank(self.rank, self._sketch.singular_values, self._sketch.total)

    def _shrunk_sketch(self) -> tuple[Subspace, float]:
        """The sketch, shrunk until the last of ell directions is zero, and by how much that is."""
        full = self._sketch
        if full.rank < self.ell:
            return full, 0.0
        kept = full.singular_values[: self.ell]
        values = np.sqrt((kept - kept[-1]) * (kept + kept[-1]))
        return _with_singular_values(full, values), float(kept[-1] ** 2)

    def _scale(self, factor: float) -> None:
        self._sketch = self._sketch.scaled(factor)
        self._shrunk *= factor**2

    def _merge(self, others: Sequence[Summary]) -> None:
        sketch, amount = self._shrunk_sketch()
        self._shrunk += amount
        self._sketch = self._merged(sketch, others, min(self.ell, self.n_features))


@final
class FrequentDirections(_Sketch):
    """A sketch of ell directions, all shrunk by the weakest before the next ell rows. For comparison.

    The scatter of all rows exceeds that of the sketch in no direction by more than the energy outside the
    k leading directions over ell - k, for every k < ell; and it never falls short. Centered exactly.

    Args:
        ell: the papers' sketch size. By default one more than the directions other trackers carry, since
            the weakest does not survive: so a sketch of all d of them shrinks nothing.

    >>> from fedpca.summaries.rank import FixedRank
    >>> tracker = FrequentDirections(3, FixedRank(1), ell=2, center=False)
    >>> tracker.update(np.array([[5.0, 0.0, 0.0], [0.0, 4.0, 0.0]]))
    >>> tracker.summary().singular_values
    array([5., 4.])
    >>> tracker.update(np.array([[0.0, 0.0, 2.0]]))  # first 4² is taken off both squares
    >>> tracker.summary().singular_values, tracker.shrunk
    (array([3., 2.]), 16.0)
    """

    def state(self) -> Subspace:
        return self._with_buffer(self._shrunk_sketch()[0] if self._buffer.n_rows else self._sketch)


@final
class RobustFrequentDirections(_Sketch):
    """Frequent Directions with half of what was shrunk given back to all directions. For comparison.

    This halves the largest error, which now has either sign: what is kept may exceed the truth.

    Args:
        ell: as of `FrequentDirections`.
    """

    def state(self) -> Subspace:
        state = self._with_buffer(self._shrunk_sketch()[0])
        alpha = min(self.shrunk / 2, state.discarded / max(state.rank, 1))  # no more energy than was lost
        return _with_singular_values(state, np.sqrt(state.singular_values**2 + alpha))


def _with_singular_values(subspace: Subspace, values: Array) -> Subspace:
    """The leading directions with other singular values, as many as there are of these."""
    return subspace.changed(components=subspace.components[: len(values)], singular_values=values)
