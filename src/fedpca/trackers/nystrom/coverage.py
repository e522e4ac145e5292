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
_MAX_LOSS = 5e-3  # of what is certain along the directions wanted
_WEIGHTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08, 0.04, 0.0)  # of the estimate, tried in this order


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
            Shape (k, k), in the basis of the directions.
        """
        n_lost = self.n_rows * basis.n_features - float(np.trace(self.rows))
        per_row = basis.discarded / n_lost if n_lost > 0 else 0.0
        return max(per_row, 0.0) * (self.n_rows * np.eye(basis.rank) - self.rows)

    def fair(self, basis: Subspace, n_wanted: int) -> Subspace:
        """The same with the directions wanted chosen by what each has and is estimated to lack.

        As far as that takes little of what is certain: the estimate is weighed by up to 1.
        """
        squares, lack = basis.singular_values**2, self.lack(basis)
        if not 0 < n_wanted < basis.rank or np.trace(lack) < _MIN_LACK * squares[n_wanted - 1]:
            return basis
        for weight in _WEIGHTS:
            chosen = _chosen(squares, lack, weight, n_wanted)
            if chosen is not None:
                break
        assert chosen is not None  # at weight 0 nothing is taken
        U, kept = chosen
        return Subspace.unchecked(
            components=U.T.astype(basis.components.dtype) @ basis.components,
            singular_values=np.sqrt(kept),
            mean=basis.mean,
            count=basis.count,
            total=basis.total,
            centered=basis.centered,
        )


def _chosen(squares: Array, lack: Array, weight: float, n_wanted: int) -> tuple[Array, Array] | None:
    """Directions U, in the basis of those carried, and what is kept along each; None if that is too little.

    With G = U^T S² U and its blocks a, b, c of the wanted and the others, kept is
    diag(a - b (t c)^-1 b^T, (1 - t) c): for any t in (0, 1] it does not exceed G.
    """
    U = np.linalg.eigh(np.diag(squares) + weight * lack)[1] if weight else np.eye(len(squares))
    order = np.argsort(-(U**2).T @ squares - np.vecdot(U.T, (lack @ U).T))
    U = np.hstack([_rotated(U[:, order[:n_wanted]], squares), _rotated(U[:, order[n_wanted:]], squares)])
    G = (U.T * squares) @ U
    a, b, c = G[:n_wanted, :n_wanted], G[:n_wanted, n_wanted:], np.diag(G)[n_wanted:]
    coupling = (b / c) @ b.T
    loss, t = float(np.trace(coupling)), 0.0
    if weight:
        t = max(np.sqrt(loss / c.sum()), loss / (_MAX_LOSS * np.trace(a)))
        if t > 1:
            return None
    wanted, rotation = np.linalg.eigh(a - coupling / t if t else a)
    U[:, :n_wanted] = U[:, :n_wanted] @ rotation
    kept = np.r_[wanted[::-1], np.minimum((1 - t) * c, wanted[0])]
    U[:, :n_wanted] = U[:, :n_wanted][:, ::-1]
    return U, np.maximum(kept, 0.0)


def _rotated(U: Array, squares: Array) -> Array:
    """The same span in the directions in which what is kept there has no covariance, descending."""
    return np.asarray(U @ np.linalg.eigh((U.T * squares) @ U)[1][:, ::-1])
