"""Block: the paper's FPCA-Edge without a mask (MOSES' block update), at any block size."""

from collections.abc import Sequence
from typing import Unpack, final

from fedpca._typing import Array
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.rank import RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker, TrackerSettings


@final
class Block(SubspaceTracker):
    """SVD_r of what was kept and the next b rows, then AdjustRank, block after block.

    As in the paper, but centered, with the rows left over at the end processed too, and with directions
    carried beyond the rank (oversample=0 for the paper's own).

    Args:
        block_rows: the paper's b; twice the directions carried by default, the fastest.

    >>> import numpy as np
    >>> from fedpca.summaries.rank import FixedRank
    >>> tracker = Block(3, FixedRank(1), block_rows=2, center=False)
    >>> tracker.update(np.diag([1.0, 2.0, 5.0]))
    >>> tracker.summary().singular_values
    array([5., 2., 1.])
    """

    settings = frozenset({"block_rows"})

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        block_rows: int | None = None,
        **settings: Unpack[TrackerSettings],
    ) -> None:
        super().__init__(n_features, rule, **settings)
        self.block_rows = block_rows
        self._subspace = Subspace.empty(n_features, centered=self.center, dtype=self.dtype)

    @property
    def min_panel_rows(self) -> int:
        return self.block_rows or 2 * self.n_exchanged

    def _absorb(self, panel: Array, roots: Array | None) -> None:
        self._subspace = append_rows(self._subspace, panel, roots, self.n_exchanged)
        self.rank = self._next_rank(self.rank, self._subspace.singular_values, self._subspace.total)

    @property
    def _absorbed_energy(self) -> float:
        return self._subspace.total

    def state(self) -> Subspace:
        return self._with_buffer(self._subspace)

    def _scale(self, factor: float) -> None:
        self._subspace = self._subspace.scaled(factor)

    def _merge(self, others: Sequence[Summary]) -> None:
        self._subspace = self._merged(self._subspace, others, self.n_exchanged)
