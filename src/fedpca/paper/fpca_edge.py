"""FPCA-Edge (Algorithm 3): streaming MOD-SuLQ of a block, subspace tracking, AdjustRank.

Departures from the paper, of `fpca_edge`:

1. Those of `streaming_mod_sulq`, `merge_r` and `adjust_rank`.
2. Without a mask a block is not squared: SSVD_r(B, U, Sigma), as in section 3.3.
"""

import numpy as np

from fedpca._typing import Array
from fedpca.paper.adjust_rank import adjust_rank, adjust_rank_as_printed
from fedpca.paper.merges import merge_r, merged_as_printed
from fedpca.paper.streaming_mod_sulq import streaming_mod_sulq, streaming_mod_sulq_as_printed
from fedpca.privacy.noise import Noise
from fedpca.summaries.pooling import append_rows
from fedpca.summaries.subspace import Subspace


class FPCAEdge:
    """A stream of rows through FPCA-Edge; of rows left over at the end, the last block has fewer.

    Args:
        n_features: d.
        rank: r to begin with.
        block_rows: b.
        band: alpha and beta, as fractions; None for a fixed rank.
        sigma, noise: as of `streaming_mod_sulq`; without a mask None.

    >>> rows = np.random.default_rng(0).normal(size=(230, 4)) * [3.0, 2.0, 0.1, 0.1]
    >>> edge = FPCAEdge(4, rank=2, block_rows=50)
    >>> edge.update(rows)
    >>> edge.summary()
    Subspace(rank=2, n_features=4, count=230, explained=99.8%)
    """

    def __init__(
        self,
        n_features: int,
        rank: int,
        block_rows: int,
        *,
        band: tuple[float, float] | None = None,
        sigma: float = 0.0,
        noise: Noise | None = None,
    ) -> None:
        self.rank = rank
        self.block_rows = block_rows
        self._band, self._sigma, self._noise = band, sigma, noise
        self._number = 0
        self._waiting: Array = np.empty((0, n_features))
        self._subspace = Subspace.empty(n_features, centered=False)

    def update(self, rows: Array) -> None:
        """Learn from rows, shape (n, d), dense and finite."""
        self._waiting = np.concatenate([self._waiting, rows])
        while len(self._waiting) >= self.block_rows:
            block, self._waiting = np.split(self._waiting, [self.block_rows])
            self._learn(block)

    def summary(self) -> Subspace:
        """The subspace of all rows so far; rows that wait are a block from now on."""
        block, self._waiting = self._waiting, self._waiting[:0]
        if len(block):
            self._learn(block)
        return self._subspace

    def _learn(self, block: Array) -> None:
        number, self._number = self._number, self._number + 1  # before its noise is drawn: never twice
        self._subspace, self.rank = fpca_edge(
            block, self._subspace, self.rank, self._band, sigma=self._sigma, noise=self._noise, number=number
        )


def fpca_edge(
    block: Array,
    previous: Subspace,
    rank: int,
    band: tuple[float, float] | None = None,
    *,
    sigma: float = 0.0,
    noise: Noise | None = None,
    number: int = 0,
) -> tuple[Subspace, int]:
    """Algorithm 3, corrected: the subspace after a block, shape (b, d), and the rank for the next one.

    Args: as those of `FPCAEdge` and `streaming_mod_sulq`; `previous` is that of the rows before.
    """
    if noise is None:
        tracked = append_rows(previous, block, None, rank)
    else:
        # Streaming MOD-SuLQ.
        masked = streaming_mod_sulq(block, rank, sigma=sigma, noise=noise, number=number)
        # Subspace tracking.
        tracked = merge_r(masked, previous, rank)
    if band is not None:
        rank = min(adjust_rank(tracked.singular_values, *band), tracked.n_features)
    return tracked, rank


def fpca_edge_as_printed(
    block: Array,
    u: Array,
    sigma: Array,
    rank: int,
    *,
    omega: float,
    columns: int,
    rng: np.random.Generator,
    band: tuple[float, float] | None = None,
) -> tuple[Array, Array]:
    """Algorithm 3, as printed: U, shape (k, d), and Sigma after a block.

    Args:
        block: B, shape (b, d).
        u, sigma: those before; u has no rows at first.
        rank: r.
        omega, columns, rng: as of `streaming_mod_sulq_as_printed`.
        band: alpha and beta, in percent; None for a fixed rank.
    """
    # Streaming MOD-SuLQ.
    masked, values = streaming_mod_sulq_as_printed(block, rank, omega=omega, columns=columns, rng=rng)
    # Subspace tracking: Merge_r(U, Sigma, U_(k-1), Sigma_(k-1)).
    if len(u):
        masked, values = merged_as_printed(masked, values, u, sigma, rank)
    # AdjustRank.
    return (masked, values) if band is None else adjust_rank_as_printed(masked, values, *band)
