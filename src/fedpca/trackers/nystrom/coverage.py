"""Coverage: how many rows count along each direction carried, and the directions that are fair to late ones.

What rows had along a direction before it was found was discarded. So the eigenvectors of what was kept favor
old directions over new ones, and tilt new ones towards old noise. But the energy discarded is known in total,
and so is the number of rows that count along every direction: spread evenly over the rows and directions that
it was lost in, it is an estimate of what each direction lacks. The estimate decides which directions lead.
What is kept along them is what is certain: it never exceeds the truth.
"""

from typing import NamedTuple, Self

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.subspace import Subspace

_MIN_LACK = 1e-3  # of the energy of the weakest direction wanted: estimates below it change nothing
_MAX_LOSS = 5e-3
"""Share of what is certain along the directions wanted that a summary may give up; what is reported of them
gives up nothing,"""
_MAX_LOSS_ALONG = 0.05
"""and the share of any one of them, which may be far weaker than the first. Measured on late directions: with
0.02 up to three times as much is lost of the variance captured."""
_MAX_SHARE = 0.3
"""The same along the others, which count when summaries merge: without a limit merging loses three times as
much (patches of photographs less their mean)."""
_MIN_DISCARDED = 1e-12
"""Share of the total that is not its rounding, after up to a million updates that round by eps each."""
_FAR_ABOVE = 1e8
"""Energy of a direction, in units of all that is lacking, from which on the estimate tilts it by less than
1e-8, and squares of the others would lose more."""
_WEIGHTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08, 0.04, 0.0)
"""Of the estimate, tried in this order: steps of a third, since each takes k x k eigenproblems. The last
takes nothing, so it always serves."""


class Coverage(NamedTuple):
    """Rows that count along the directions carried.

    Attributes:
        rows: shape (k, k), in the basis of those directions; along v there are v^T rows v.
        n_rows: number of all rows.
    """

    rows: Array
    n_rows: float

    @classmethod
    def of_all(cls, basis: Subspace) -> Self:
        """All rows count along directions that were found in all of them."""
        return cls(basis.count * np.eye(basis.rank), basis.count)

    def moved(self, before: Array, after: Array, added: float) -> Self:
        """The same for other directions, along which so many rows more count."""
        rotation = np.asarray(after @ before.T, np.float64)
        rows = rotation @ self.rows @ rotation.T
        rows.flat[:: len(rows) + 1] += added
        return type(self)(rows, self.n_rows + added)

    def scaled(self, factor: float) -> Self:
        """The same with all weights multiplied by factor²."""
        return self if factor == 1.0 else type(self)(self.rows * factor**2, self.n_rows * factor**2)

    def lack(self, basis: Subspace) -> Array:
        """An estimate of what directions lack: the energy discarded, spread evenly over what it was lost in.

        Args:
            basis: the directions, all that are known.

        Returns:
            Shape (k, k), in the basis of the directions; zero where rounding of the total hides it.
        """
        n_lost = self.n_rows * basis.n_features - float(np.trace(self.rows))
        is_known = basis.discarded > _MIN_DISCARDED * basis.total
        per_row = basis.discarded / n_lost if n_lost > 0 and is_known else 0.0
        return per_row * (self.n_rows * np.eye(basis.rank) - self.rows)

    def fair(self, basis: Subspace, n_wanted: int) -> tuple[Subspace, Array]:
        """The same with the directions wanted chosen by what each has and is estimated to lack; and the sums.

        As far as that takes little of what is certain: the estimate is weighed by up to 1.

        Returns:
            The directions, with what is certain along all together, and the energy estimated along each.
        """
        squares, lack = basis.singular_values**2, self.lack(basis)
        # Far stronger directions stay as they are: their squares would drown all others.
        first = int(np.count_nonzero(squares > _FAR_ABOVE * np.trace(lack)))
        is_little = 0 < n_wanted < basis.rank and np.trace(lack) < _MIN_LACK * squares[n_wanted - 1]
        if not first < n_wanted < basis.rank or is_little:
            return basis, squares + np.diag(lack)
        rest = slice(first, None)
        for weight in _WEIGHTS:
            chosen = _chosen(squares[rest], lack[rest, rest], weight, n_wanted - first)
            if chosen is not None:
                break
        assert chosen is not None  # at weight 0 nothing is taken
        U, kept, known = chosen
        components = basis.components.copy()
        components[rest] = U.T.astype(components.dtype) @ components[rest]
        lacking = np.diag(lack).copy()
        lacking[rest] = np.vecdot(U.T, (lack[rest, rest] @ U).T)
        fair = basis.changed(components=components, singular_values=np.sqrt(np.r_[squares[:first], kept]))
        return fair, np.r_[squares[:first], known] + lacking


def _chosen(squares: Array, lack: Array, weight: float, n_wanted: int) -> tuple[Array, Array, Array] | None:
    """Directions U, in the basis of those carried, and what is known along them; None if too little is kept.

    With G = U^T S² U and its blocks a, b, c of the wanted and the others, what is kept along all together is
    diag(a - b (t c)^-1 b^T, (1 - t) c): for any t in (0, 1] it does not exceed G. Along each alone it is
    diag(G).

    Returns:
        U, shape (k, k); what is kept, descending; and diag(G).
    """
    U = np.linalg.eigh(np.diag(squares) + weight * lack)[1] if weight else np.eye(len(squares))
    order = np.argsort(-(U**2).T @ squares - np.vecdot(U.T, (lack @ U).T))
    U = np.hstack([_rotated(U[:, order[:n_wanted]], squares), _rotated(U[:, order[n_wanted:]], squares)])
    G = (U.T * squares) @ U
    a, b, c = G[:n_wanted, :n_wanted], G[:n_wanted, n_wanted:], np.diag(G)[n_wanted:]
    coupling, t = (b / c) @ b.T, 0.0
    if weight:
        sizes = np.sqrt(np.diag(a))
        worst = float(np.linalg.eigvalsh(coupling / np.outer(sizes, sizes))[-1])
        loss = float(np.trace(coupling))
        t = max(np.sqrt(loss / c.sum()), loss / (_MAX_LOSS * np.trace(a)), worst / _MAX_LOSS_ALONG)
        if t > _MAX_SHARE:
            return None
    wanted, rotation = np.linalg.eigh(a - coupling / t if t else a)
    U[:, :n_wanted] = U[:, :n_wanted] @ rotation[:, ::-1]
    kept = np.r_[wanted[::-1], np.minimum((1 - t) * c, wanted[0])]
    return U, np.maximum(kept, 0.0), (U**2).T @ squares


def _rotated(U: Array, squares: Array) -> Array:
    """The same span in the directions in which what is kept there has no covariance, descending."""
    return np.asarray(U @ np.linalg.eigh((U.T * squares) @ U)[1][:, ::-1])
