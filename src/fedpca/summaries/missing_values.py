"""Missing entries: estimated from the observed ones by least squares on a subspace."""

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.summaries.subspace import Subspace

_COLD_START_ITERATIONS = 5
_LATE_CHANCE = 1e-6  # below this probability a gap at the beginning is a late start


def partial_scores(rows: Array, subspace: Subspace, variances: Array | None = None) -> Array:
    """Scores of rows with missing entries (NaN) along the components, shape (n, r), float64.

    The most likely ones given the observed entries: least squares in which a feature counts the less the
    more of its variance the subspace leaves out, and a direction stays the nearer to the mean the less
    it varies. So a row with few entries, or none, stays near the mean.

    Args:
        rows: shape (n, d), NaN for missing.
        subspace: its directions, mean and variances.
        variances: of each feature, shape (d,), if known; else the variance left out is shared out evenly.

    >>> subspace = Subspace.from_rows(np.outer([-2.0, -1.0, 1.0, 2.0], [0.6, 0.8]))
    >>> partial_scores(np.array([[6.0, np.nan]]), subspace).round(6)
    array([[10.]])
    """
    if not subspace.rank:
        return np.zeros((len(rows), 0))
    components = subspace.components.astype(np.float64)
    spread = subspace.singular_values**2 / subspace.count
    noise = _noise(subspace, components, spread, variances)
    typical = float(noise.mean())
    trust = typical / noise if typical else np.ones(len(noise))
    weighted = components * trust
    gaps = np.isnan(rows)
    # The normal equations over the observed entries: those of all entries less those of the gaps.
    shape = (len(rows), subspace.rank, subspace.rank)
    normal = np.broadcast_to(weighted @ components.T + np.diag(typical / spread), shape).copy()
    for index in np.flatnonzero(gaps.any(axis=1)):
        hidden = gaps[index]
        normal[index] -= weighted[:, hidden] @ components[:, hidden].T
    observed = np.where(gaps, 0.0, rows - subspace.mean) @ weighted.T
    solved: Array = (np.linalg.pinv(normal, rcond=1e-12, hermitian=True) @ observed[:, :, None])[:, :, 0]
    return solved


def impute(rows: Array, subspace: Subspace, variances: Array | None = None) -> Array:
    """Rows with every NaN replaced by the subspace's estimate; observed entries stay as they are.

    What is filled in is never stranger than ordinary rows are: coordinates far out are drawn back.

    >>> subspace = Subspace.from_rows(np.outer([-2.0, -1.0, 1.0, 2.0], [0.6, 0.8]))
    >>> impute(np.array([[0.3, np.nan]]), subspace).round(6)
    array([[0.3, 0.4]])
    """
    gaps = np.isnan(rows)
    touched = gaps.any(axis=1)
    if not touched.any():
        return rows
    result = rows.copy()
    partial = rows[touched]
    scores = partial_scores(partial, subspace, variances)
    if subspace.rank:
        distance = np.sum(scores**2 / (subspace.singular_values**2 / subspace.count), axis=1, keepdims=True)
        ordinary = subspace.rank + 4 * np.sqrt(2 * subspace.rank)  # chi-squared: its mean and four deviations
        scores *= np.sqrt(ordinary / np.maximum(distance, ordinary))
    estimate = scores @ subspace.components + subspace.mean
    result[touched] = np.where(np.isnan(partial), estimate, partial)
    return result


def impute_cold_start(rows: Array, rank: int, center: bool) -> Array:
    """The first rows of a stream, filled from themselves: column means, then rounds of their own subspace."""
    gaps = np.isnan(rows)
    observed = np.maximum((~gaps).sum(axis=0), 1)
    means = np.where(gaps, 0.0, rows).sum(axis=0, dtype=np.float64) / observed
    variances = np.where(gaps, 0.0, (rows - means) ** 2).sum(axis=0, dtype=np.float64) / observed
    result = np.where(gaps, means, rows).astype(rows.dtype)
    for _ in range(_COLD_START_ITERATIONS):
        own = Subspace.from_rows(result, min(rank, rows.shape[1]), center=center)
        result = np.where(gaps, impute(rows, own, variances), rows)
    return result


def late_starts(rows: Array, known: AnyArray) -> list[int]:
    """Where to cut rows: 0, and the first values of features that start late.

    A feature that is not known yet starts late if its gap at the beginning is too long to be chance, given
    its share of gaps from there on. Rows before that are not to be filled from later ones.

    >>> rows = np.ones((60, 2))
    >>> rows[:40, 1] = np.nan
    >>> late_starts(rows, np.array([False, False]))
    [0, 40]
    """
    observed = ~np.isnan(rows[:, ~known])
    if not len(rows) or observed.all():
        return [0]
    starts = observed.argmax(axis=0)
    after = len(rows) - starts
    gaps = after - observed.sum(axis=0)
    chance = starts * np.log((gaps + 1) / (after + 1))
    late = observed.any(axis=0) & (chance < np.log(_LATE_CHANCE))
    return sorted({0, *starts[late].tolist()})


def _noise(subspace: Subspace, components: Array, spread: Array, variances: Array | None) -> Array:
    """Variance of each feature that the subspace leaves out, shape (d,)."""
    if variances is None:
        even = subspace.discarded / max(subspace.count * (subspace.n_features - subspace.rank), 1.0)
        if subspace.rank == subspace.n_features:  # all directions are known: weigh them by their variances
            even = 1e-6 * float(spread.mean())
        return np.full(subspace.n_features, even)
    noise = variances - spread @ components**2
    # Rounding may leave less than nothing. The floor of a feature is in its own unit.
    floor = np.maximum(1e-6 * variances, np.finfo(np.float64).eps * variances.max(initial=0.0))
    return np.maximum(noise, floor)
