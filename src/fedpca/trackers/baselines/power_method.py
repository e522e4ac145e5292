"""The streaming power method (Mitliagkas, Caramanis, Jain 2013): one power step a block of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.rank import RankRule
from fedpca.summaries.summary import Summary
from fedpca.trackers.baselines.basis import BasisTracker, random_basis


class PowerMethod(BasisTracker):
    """After each block, the basis is that of the block's scatter times the basis before. For comparison.

    It is a function of the last few blocks only: rows of an unfinished block do not move it yet. No row is
    kept and no scatter formed: two products a panel. A block's energies along the new directions are
    estimated by the singular values of that product, which are right once the basis is.

    Args:
        block_rows: rows a block; d by default.
        seed: of the random basis to begin with.

    >>> from fedpca.summaries.rank import FixedRank
    >>> rows = np.random.default_rng(0).normal(size=(300, 4)) * [9.0, 1.0, 1.0, 1.0]
    >>> tracker = PowerMethod(4, FixedRank(1), block_rows=50, oversample=0, center=False)
    >>> tracker.update(rows)
    >>> bool(tracker.summary().components[0, 0] > 0.99)
    True
    """

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        block_rows: int | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.block_rows = (
            n_features if block_rows is None else validation.integer(block_rows, "block_rows", at_least=1)
        )
        self.seed = seed
        super().__init__(n_features, rule, **settings)
        self._start_block()

    def _first_basis(self) -> Array:
        return random_basis(self.keep, self.n_features, self.seed)

    def _start_block(self) -> None:
        self._n_in_block = 0
        self._product = np.zeros_like(self._basis)  # of the basis and the scatter of the block
        self._moment_before = self._moment.copy()

    def _follow(self, rows: Array) -> None:
        while len(rows):
            part, rows = np.split(rows, [self.block_rows - self._n_in_block])
            scores = part @ self._basis.T
            self._product += scores.T @ part
            self._moment += scores.T @ scores
            self._n_in_block += len(part)
            if self._n_in_block == self.block_rows:
                self._turn()
                self._start_block()

    def _turn(self) -> None:
        basis, triangle = np.linalg.qr(self._product.T)
        rotation, energies, _ = np.linalg.svd(triangle)
        if energies[0]:
            turned = rotation.T @ basis.T
            overlap = turned @ self._basis.T
            self._moment = overlap @ self._moment_before @ overlap.T + np.diag(energies)
            self._basis = turned

    def _scale(self, factor: float) -> None:
        super()._scale(factor)
        self._product *= factor**2
        self._moment_before *= factor**2

    def _merge(self, others: Sequence[Summary]) -> None:
        super()._merge(others)
        self._start_block()
