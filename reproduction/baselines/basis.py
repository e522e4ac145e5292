"""What trackers that follow a basis, and no spectrum, share: exact means and totals, estimated energies."""

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Self, Unpack, final

import numpy as np

from fedpca._typing import Array
from fedpca.backend import ops
from fedpca.summaries.algebra import principal_directions, rounding_floor
from fedpca.summaries.rank import FixedRank, RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers.base import SubspaceTracker, TrackerSettings

_PANEL_ENTRIES = 2**17
_TINY = np.finfo(np.float64).tiny


class BasisTracker(SubspaceTracker):
    """A basis that turns after the rows; works in float64 whatever the rows' dtype.

    Count, mean and total are exact. Singular values are estimates: the second moment of the rows' scores
    as they went by, each along the basis of its time. They order the directions, and understate their
    energy by what the rows of a time when the basis was still far off did not show. As in all trackers,
    directions are carried beyond the rank; oversample=0 gives the papers' own.

    With `center`, the basis sees each row less the mean of those before it, scaled so that the scatter of
    what it sees is exactly the centered one.
    """

    min_panel_rows = 1
    buffer_capacity = 1
    adapts = False  # whether the rank may change

    def __init__(self, n_features: int, rule: RankRule, **settings: Unpack[TrackerSettings]) -> None:
        super().__init__(n_features, rule, **settings)
        if not (self.adapts or isinstance(rule, FixedRank)):
            raise ValueError(
                f"{type(self).__name__} keeps the rank it starts with, got {rule}; "
                "give it FixedRank(...), or n_components as a whole number."
            )
        self._basis = self._first_basis()
        self._moment: Array = np.zeros((self.n_exchanged, self.n_exchanged))  # of the scores
        self._count, self._total = 0.0, 0.0
        self._mean: Array = np.zeros(n_features)

    def branch(self) -> Self:
        return deepcopy(self)  # directions and moments change in place

    @property
    def max_panel_rows(self) -> int:
        return max(1, _PANEL_ENTRIES // self.n_features)

    @abstractmethod
    def _first_basis(self) -> Array:
        """Orthonormal rows to begin with, shape (k, d)."""

    @abstractmethod
    def _follow(self, rows: Array) -> None:
        """Turn the basis after rows, which may be overwritten, and add their scores to the moment."""

    @abstractmethod
    def _scale_history(self, factor: float) -> None:
        """Scale what else depends on the size of rows absorbed."""

    @abstractmethod
    def _after_merge(self) -> None:
        """Go on from the basis and moment that a merge has left."""

    @property
    def _absorbed_energy(self) -> float:
        return self._total

    @final
    def _absorb(self, panel: Array, roots: Array | None) -> None:
        rows = panel.astype(np.float64)
        weights = np.ones(len(rows)) if roots is None else roots.astype(np.float64) ** 2
        if self.center:
            self._subtract_means(rows, weights)
        self._count += float(weights.sum())
        self._total += ops.energy(rows)
        self._follow(rows)

    def _subtract_means(self, rows: Array, weights: Array) -> None:
        """Replace rows, times their roots, by what each adds to the centered scatter (Welford's update).

        A row x of weight w after rows of weight W and mean m adds w W / (w + W) (x - m)(x - m)^T.
        """
        counting = np.flatnonzero(weights)
        if not len(counting):
            return
        roots = np.sqrt(weights)[:, None]
        if not self._count:  # sums about the first row lose no digits to a large mean
            self._mean = rows[counting[0]] / roots[counting[0]]
        after = self._count + np.cumsum(weights)
        before = np.concatenate([[self._count], after[:-1]])
        rows -= roots * self._mean
        sums = np.cumsum(roots * rows, axis=0)
        self._mean = self._mean + sums[-1] / after[-1]
        rows[1:] -= roots[1:] * (sums[:-1] / np.maximum(before[1:, None], _TINY))
        rows *= np.sqrt(before / np.maximum(after, _TINY))[:, None]

    @final
    def state(self) -> Subspace:
        return self._with_buffer(self._absorbed())

    def _absorbed(self) -> Subspace:
        if not self._count:
            return Subspace.empty(self.n_features, centered=self.center, dtype=self.dtype)
        rotation, singular_values = principal_directions(self._moment)
        floor = rounding_floor(self._total, self._count, self._mean, self.dtype)
        kept = int(np.count_nonzero(singular_values > floor))
        components = (rotation[:kept] @ gram_schmidt(self._basis)).astype(self.dtype)
        return Subspace.unchecked(
            components=components,
            singular_values=singular_values[:kept],
            mean=self._mean,
            count=self._count,
            total=self._total,
            centered=self.center,
        )

    @final
    def _scale(self, factor: float) -> None:
        self._count *= factor**2
        self._total *= factor**2
        self._moment *= factor**2
        self._scale_history(factor)

    @final
    def _merge(self, others: Sequence[Summary]) -> None:
        merged = self._merged(self._absorbed(), others, self.n_exchanged)
        directions = merged.components.astype(np.float64)
        self._basis = gram_schmidt(np.concatenate([directions, self._basis]))[: self.n_exchanged]
        self._moment = np.diag(np.pad(merged.singular_values**2, (0, self.n_exchanged - merged.rank)))
        self._count, self._total, self._mean = merged.count, merged.total, merged.mean
        self._after_merge()


def random_basis(rank: int, n_features: int, seed: int) -> Array:
    """Orthonormal rows in random directions, shape (rank, d)."""
    return gram_schmidt(np.random.default_rng(seed).normal(size=(rank, n_features)))


def gram_schmidt(rows: Array) -> Array:
    """The first rows made orthonormal, at most d of them; dependent ones give way to arbitrary directions.

    >>> gram_schmidt(np.array([[3.0, 4.0], [0.0, 5.0], [7.0, 7.0]]))
    array([[ 0.6,  0.8],
           [-0.8,  0.6]])
    """
    basis, triangle = np.linalg.qr(rows[: rows.shape[1]].T)
    return np.ascontiguousarray(basis.T) * np.where(np.diag(triangle) < 0, -1.0, 1.0)[:, None]
