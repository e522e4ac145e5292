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
    result = np.zeros((len(rows), subspace.rank))
    if not subspace.rank:
        return result
    damping = _noise_variance(subspace) / (subspace.singular_values**2 / subspace.count)
    # Rows with the same gaps share one small system.
    patterns, which = np.unique(np.isnan(rows), axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        members = np.flatnonzero(which == index)
        seen = components[:, ~pattern]
        deviations = rows[np.ix_(members, ~pattern)] - subspace.mean[~pattern]
        normal = seen @ seen.T + np.diag(damping)
        result[members] = np.linalg.lstsq(normal, seen @ deviations.T, rcond=1e-12)[0].T
    return result


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
