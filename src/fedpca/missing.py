"""Missing entries: estimated from the observed ones by least squares on a subspace."""

import numpy as np

from fedpca.linalg import Array
from fedpca.subspace import Subspace

_COLD_ROUNDS = 5


def coordinates(rows: Array, subspace: Subspace) -> Array:
    """Coordinates of rows with gaps (NaN) along the components, shape (n, r), float64.

    Least squares on the observed entries, each direction damped by the noise it would take to imitate it,
    so that a row with few entries, or none, stays near the mean.

    >>> subspace = Subspace.from_rows(np.outer([-2.0, -1.0, 1.0, 2.0], [0.6, 0.8]))
    >>> coordinates(np.array([[6.0, np.nan]]), subspace).round(6)
    array([[10.]])
    """
    components = subspace.components.astype(np.float64)
    if not subspace.rank:
        return np.zeros((len(rows), 0))
    gaps = np.isnan(rows)
    damping = _noise_variance(subspace) / (subspace.singular_values**2 / subspace.count)
    # The normal equations over the observed entries: those of all entries less those of the gaps.
    normal = np.broadcast_to(
        components @ components.T + np.diag(damping), (len(rows), *2 * (subspace.rank,))
    ).copy()
    for index in np.flatnonzero(gaps.any(axis=1)):
        hidden = components[:, gaps[index]]
        normal[index] -= hidden @ hidden.T
    observed = np.where(gaps, 0.0, rows - subspace.mean) @ components.T
    solved: Array = (np.linalg.pinv(normal, rcond=1e-12, hermitian=True) @ observed[:, :, None])[:, :, 0]
    return solved


def filled(rows: Array, subspace: Subspace) -> Array:
    """Rows with every NaN replaced by the subspace's estimate; observed entries stay as they are.

    >>> subspace = Subspace.from_rows(np.outer([-2.0, -1.0, 1.0, 2.0], [0.6, 0.8]))
    >>> filled(np.array([[0.3, np.nan]]), subspace).round(6)
    array([[0.3, 0.4]])
    """
    gaps = np.isnan(rows)
    touched = gaps.any(axis=1)
    if not touched.any():
        return rows
    result = rows.copy()
    partial = rows[touched]
    estimate = coordinates(partial, subspace) @ subspace.components + subspace.mean
    result[touched] = np.where(np.isnan(partial), estimate, partial)
    return result


def filled_without_history(rows: Array, rank: int, center: bool) -> Array:
    """The first rows of a stream, filled from themselves: column means, then rounds of their own subspace."""
    gaps = np.isnan(rows)
    observed = np.maximum((~gaps).sum(axis=0), 1)
    means = np.where(gaps, 0.0, rows).sum(axis=0, dtype=np.float64) / observed
    result = np.where(gaps, means, rows).astype(rows.dtype)
    for _ in range(_COLD_ROUNDS):
        own = Subspace.from_rows(result, min(rank, rows.shape[1]), center=center)
        result = np.where(gaps, filled(rows, own), rows)
    return result


def _noise_variance(subspace: Subspace) -> float:
    """Variance, per feature, of what the subspace leaves out."""
    left_out = subspace.total - float(subspace.singular_values @ subspace.singular_values)
    return max(left_out, 0.0) / max(subspace.count * (subspace.n_features - subspace.rank), 1.0)
