"""The streaming power method (Mitliagkas, Caramanis, Jain 2013): one power step per block of rows."""

from typing import Unpack, final

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.rank import RankRule
from fedpca.trackers.base import TrackerSettings
from reproduction.baselines.basis import BasisTracker, random_basis


@final
class PowerMethod(BasisTracker):
    """After each block, the basis is that of the block's scatter times the basis before. For comparison.

    It is a function of the last few blocks only: rows of an unfinished block do not move it yet. No row is
    kept and no scatter formed: two products per panel. A block's energies along the new directions are
    estimated by the singular values of that product, which are right once the basis is.

    Args:
        block_rows: rows per block; d by default.
        seed: of the random basis to begin with.

    >>> from fedpca.summaries.rank import FixedRank
    >>> rows = np.random.default_rng(0).normal(size=(300, 4)) * [9.0, 1.0, 1.0, 1.0]
    >>> tracker = PowerMethod(4, FixedRank(1), block_rows=50, oversample=0, center=False)
    >>> tracker.update(rows)
    >>> bool(tracker.summary().components[0, 0] > 0.99)
    True
    """

    settings = frozenset({"block_rows", "seed"})

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        block_rows: int | None = None,
        seed: int = 0,
        **settings: Unpack[TrackerSettings],
    ) -> None:
        self.block_rows = (
            n_features if block_rows is None else validation.integer(block_rows, "block_rows", at_least=1)
        )
        self.seed = seed
        super().__init__(n_features, rule, **settings)
        self._start_block()

    def _first_basis(self) -> Array:
        return random_basis(self.n_exchanged, self.n_features, self.seed)

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

    def _scale_history(self, factor: float) -> None:
        self._product *= factor**2
        self._moment_before *= factor**2

    def _after_merge(self) -> None:
        self._start_block()
