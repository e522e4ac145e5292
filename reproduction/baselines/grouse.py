"""GROUSE (Balzano, Nowak, Recht 2010): one gradient step on the Grassmannian per row, with gaps."""

from math import atan2, cos, pi, sin, sqrt
from typing import Unpack, final

import numpy as np
from scipy import sparse

from fedpca._typing import Array, RowsLike
from fedpca.summaries import validation
from fedpca.summaries.rank import RankRule
from fedpca.trackers.base import TrackerSettings
from reproduction.baselines.basis import BasisTracker, gram_schmidt, random_basis

# A direction of which a row shows less than this, relative to the best observed one, counts as unobserved.
_HARDLY_OBSERVED = 0.01
_ROWS_TO_DRIFT = 1000  # rotations round: after so many rows the basis is made orthonormal again


@final
class Grouse(BasisTracker):
    """Each row turns the basis toward itself; there is no memory but the basis. For comparison.

    With scores w of row v and residual e, the direction along w turns by theta toward e.

    Rows may have gaps (NaN): their scores are the least-squares ones of the observed entries, as in the
    paper, and they count as rows completed by those.

    Args:
        step: None for the greedy theta = atan(|e| / |w|), which turns until the basis holds the row. A
            number c for the paper's diminishing theta = c |e| |w| / k at the k-th row, which depends on
            the scale of the rows, and skips a row where theta reaches a right angle.
        seed: of the random basis to begin with.

    >>> from fedpca.summaries.rank import FixedRank
    >>> rows = np.random.default_rng(0).normal(size=(200, 2)) @ np.eye(2, 5)
    >>> rows[::2, 4] = np.nan
    >>> tracker = Grouse(5, FixedRank(2), oversample=0, center=False)
    >>> tracker.update(rows)
    >>> bool(np.abs(tracker.summary().components[:, 2:]).max() < 1e-9)
    True
    """

    settings = frozenset({"seed"})
    takes_gaps = True

    def __init__(
        self,
        n_features: int,
        rule: RankRule,
        *,
        step: float | None = None,
        seed: int = 0,
        **settings: Unpack[TrackerSettings],
    ) -> None:
        if step is not None and not (validation.is_real(step) and 0 < step < np.inf):
            raise ValueError(
                f"step must be a positive number, or None for the greedy step, got step={step!r}."
            )
        self.step = step
        self.seed = seed
        self._n_rows = 0
        super().__init__(n_features, rule, **settings)

    def _first_basis(self) -> Array:
        return random_basis(self.n_exchanged, self.n_features, self.seed)

    def update(self, rows: RowsLike, weights: Array | None = None, *, is_checked: bool = True) -> None:
        """Take rows, shape (n, d), dense or CSR, NaN for missing; a weight counts repetitions of its row."""
        values = rows.data if sparse.issparse(rows) else rows
        if values.dtype.kind != "f" or not np.isnan(values).any():
            super().update(rows, weights)
            return
        for index in range(rows.shape[0]):
            row = rows[[index]].toarray() if sparse.issparse(rows) else rows[[index]]
            if not np.isnan(row).all():  # skip rows that are entirely missing
                super().update(self._completed(row), None if weights is None else weights[[index]])

    def _completed(self, row: Array) -> Array:
        """A row, shape (1, d), with its gaps filled by least squares on the observed entries."""
        seen = ~np.isnan(row[0])
        if seen.all():
            return row
        observed = np.where(seen, row[0] - self._mean, 0.0)
        squares, vectors = np.linalg.eigh((self._basis * seen) @ self._basis.T)
        observed_enough = squares > _HARDLY_OBSERVED * squares[-1]
        squares, vectors = squares[observed_enough], vectors[:, observed_enough]
        scores = vectors @ ((vectors.T @ (self._basis @ observed)) / squares)
        return np.where(seen, row, self._mean + scores @ self._basis)

    def _follow(self, rows: Array) -> None:
        basis, scores = self._basis, np.zeros((len(rows), len(self._basis)))
        seen, residual, change = np.empty(self.n_features), np.empty(self.n_features), np.empty_like(basis)
        for row, score in zip(rows, scores, strict=True):
            self._n_rows += 1
            np.dot(basis, row, out=score)
            np.dot(score, basis, out=seen)
            np.subtract(row, seen, out=residual)
            size, miss = sqrt(score.dot(score)), sqrt(residual.dot(residual))
            theta = self._angle(size, miss)
            if theta and size:
                # The unit vector along the projection gives way to one turned by theta toward the residual.
                seen *= (cos(theta) - 1) / size
                residual *= sin(theta) / miss
                residual += seen
                np.multiply((score / size)[:, None], residual, out=change)
                basis += change
            if self._n_rows % _ROWS_TO_DRIFT == 0:
                basis[:] = gram_schmidt(basis)
        self._moment += scores.T @ scores

    def _scale_history(self, factor: float) -> None:
        """There is none."""

    def _after_merge(self) -> None:
        """Nothing but the basis is kept."""

    def _angle(self, size: float, miss: float) -> float:
        if self.step is None:
            return atan2(miss, size)
        theta = self.step * miss * size / self._n_rows
        return theta if theta < pi / 2 else 0.0
