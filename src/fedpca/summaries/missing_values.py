"""Missing entries: estimated from the observed ones by least squares on a subspace.

Departures from probabilistic PCA (Tipping, Bishop 1999), which iterates over all rows:

1. Rows are filled once, as they come, from the summary of those before; only the first rows iterate.
2. Every feature has a noise variance of its own where its variance is known, as in factor analysis.
3. An estimated score is cut off at five standard deviations.
4. In the first rows, loadings have a prior where features outnumber rows, as in Bayesian PCA (Bishop 1999).
"""

from typing import NamedTuple, Self

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.backend import ops
from fedpca.summaries.linalg import leading_singular_pairs
from fedpca.summaries.subspace import Subspace

_MAX_DEVIATIONS = 5.0
"""Standard deviations of an estimated score. Where one entry in a thousand is wild, no limit loses three
times as much, 10 1.4 times and 3 .7 times; otherwise none matters (`benchmarks.constants gaps`)."""
_COLD_START_ITERATIONS = 40
"""At most. With 30 % missing 5 would do. With 70 % of 100 first rows missing, 5 lose half as much and 160 1.5
times: the later ones fit the noise (`benchmarks.constants gaps`)."""
_COLD_START_TOLERANCE = 1e-3  # of the noise
_COLD_START_RANK = 20  # directions; more would take long, and first rows seldom support them
_COLD_START_NOISE = 1e-8  # least variance of the noise, in units of the features' own
_MIN_SHARE = 1e-12  # of the largest weight: the only value of a feature counts, whatever its weight
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
    # In units of the directions' deviations: one that hardly varies would else outweigh all others.
    deviation = np.sqrt(spread)
    loadings = deviation[:, None] * components
    weighted = loadings * trust
    gaps = np.isnan(rows)
    # The normal equations over the observed entries: those of all entries less those of the gaps.
    shape = (len(rows), subspace.rank, subspace.rank)
    normal = np.broadcast_to(weighted @ loadings.T + typical * np.eye(subspace.rank), shape).copy()
    observed = np.empty(shape[:2])
    deviations = np.where(gaps, 0.0, rows - subspace.mean)
    for index, hidden in enumerate(gaps):
        # One row at a time: a product of many rounds a row by its company, and these are ill-conditioned.
        observed[index] = weighted @ np.ascontiguousarray(deviations[index])
        if hidden.any():
            normal[index] -= weighted[:, hidden] @ loadings[:, hidden].T
    solved: Array = (np.linalg.pinv(normal, rcond=1e-12, hermitian=True) @ observed[:, :, None])[:, :, 0]
    return solved * deviation


def impute(rows: Array, subspace: Subspace, variances: Array | None = None) -> Array:
    """Rows with every NaN replaced by the subspace's estimate; observed entries stay as they are.

    What is filled in lies within five standard deviations along every direction.

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
    limits = _MAX_DEVIATIONS * subspace.singular_values / np.sqrt(max(subspace.count, 1.0))
    scores = np.clip(scores, -limits, limits)
    estimate = scores @ subspace.components + subspace.mean
    result[touched] = np.where(np.isnan(partial), estimate, partial)
    return result


def impute_cold_start(rows: Array, rank: int, center: bool, weights: Array | None = None) -> Array:
    """The first rows of a stream, filled from themselves; every feature has an observed value.

    A weight, positive, counts repetitions of its row.

    Probabilistic PCA of the observed entries, in units of each feature's standard deviation, by expectation
    maximization (Tipping, Bishop 1999): with loadings W, shape (d, r), and noise of variance v, the scores
    of a row are normal with covariance v (W^T W + v)^-1 over its observed entries. Where features
    outnumber rows loadings have a prior, as in Bayesian PCA (Bishop 1999): else they would fit the noise.
    """
    gaps = np.isnan(rows)
    observed = (~gaps).astype(np.float64)
    weights = np.ones(len(rows)) if weights is None else np.maximum(weights / weights.max(), _MIN_SHARE)
    prior = float(weights.mean()) if rows.shape[0] < rows.shape[1] else 0.0
    counts = weights @ observed
    mean = weights @ np.where(gaps, 0.0, rows) / counts if center else np.zeros(len(counts))
    unit = np.sqrt(weights @ np.where(gaps, 0.0, (rows - mean) ** 2) / counts)
    unit[unit == 0] = 1.0
    scaled = np.where(gaps, 0.0, (rows - mean) / unit)
    model = _ProbabilisticPCA.start(scaled, observed, weights, min(rank, _COLD_START_RANK), prior)
    for _ in range(_COLD_START_ITERATIONS):
        noise = model.noise
        model = model.improved(scaled, observed, weights, center)
        if abs(model.noise - noise) <= _COLD_START_TOLERANCE * noise:
            break
    estimate = model.scores(scaled, observed)[0] @ model.loadings.T + model.mean
    return np.where(gaps, estimate * unit + mean, rows).astype(rows.dtype)


class _ProbabilisticPCA(NamedTuple):
    """Loadings (d, r), mean (d,) and variance of the noise; of rows that are zero where not observed.

    The prior of the loadings along a direction has their own variance, and this weight.
    """

    loadings: Array
    mean: Array
    noise: float
    prior: float

    @classmethod
    def start(cls, rows: Array, observed: Array, weights: Array, rank: int, prior: float) -> Self:
        components, singular_values = leading_singular_pairs(np.sqrt(weights)[:, None] * rows, rank)
        n_present = float(weights @ observed.mean(axis=1))
        loadings = (singular_values / np.sqrt(n_present))[:, None] * components
        noise = max(1.0 - ops.energy(loadings) / rows.shape[1], _COLD_START_NOISE)
        return cls(loadings.T, np.zeros(rows.shape[1]), noise, prior)

    def scores(self, rows: Array, observed: Array) -> tuple[Array, Array]:
        """Expected scores of rows, shape (n, r), and their covariances over the noise, shape (n, r, r)."""
        precision = self._products(observed)
        precision += self.noise * np.eye(precision.shape[1])
        covariances = np.linalg.inv(precision)
        projected = np.where(observed, rows - self.mean, 0.0) @ self.loadings
        return np.einsum("nij,nj->ni", covariances, projected), covariances

    def improved(self, rows: Array, observed: Array, weights: Array, center: bool) -> Self:
        """One iteration: the most likely model given the expected scores under this one."""
        scores, covariances = self.scores(rows, observed)
        n_rows, rank = scores.shape
        regressors = np.concatenate([scores, np.ones((n_rows, 1))], axis=1) if center else scores
        moments = regressors[:, :, None] * regressors[:, None, :]
        moments[:, :rank, :rank] += self.noise * covariances
        width = regressors.shape[1]
        weighted = weights[:, None] * observed
        normal = (weighted.T @ moments.reshape(n_rows, width**2)).reshape(-1, width, width)
        ridge = np.full(width, _COLD_START_NOISE)
        spreads = np.maximum(np.mean(self.loadings**2, axis=0), _COLD_START_NOISE)
        ridge[:rank] += self.prior * self.noise / spreads
        normal += np.diag(ridge)
        solved = np.linalg.solve(normal, (rows.T @ (weights[:, None] * regressors))[:, :, None])[:, :, 0]
        loadings, mean = solved[:, :rank], solved[:, rank] if center else self.mean
        residual = np.where(observed, rows - scores @ loadings.T - mean, 0.0)
        spread = np.vdot(self._replace(loadings=loadings)._products(weighted), covariances)
        noise = (ops.energy(np.sqrt(weights)[:, None] * residual) + self.noise * spread) / weighted.sum()
        return self._replace(loadings=loadings, mean=mean, noise=max(float(noise), _COLD_START_NOISE))

    def _products(self, observed: Array) -> Array:
        """W^T W over the observed entries of each row, shape (n, r, r)."""
        n_features, rank = self.loadings.shape
        squares = (self.loadings[:, :, None] * self.loadings[:, None, :]).reshape(n_features, rank**2)
        return (observed @ squares).reshape(len(observed), rank, rank)


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
        even = subspace.discarded / max(subspace.count * (subspace.n_known - subspace.rank), 1.0)
        if subspace.rank == subspace.n_known:  # all directions are known: weigh them by their variances
            even = 1e-6 * float(spread.mean())
        return np.full(subspace.n_features, even)
    noise = variances - spread @ components**2
    # Rounding may leave less than nothing. The floor of a feature is in its own unit.
    floor = np.maximum(1e-6 * variances, np.finfo(np.float64).eps * variances.max(initial=0.0))
    return np.maximum(noise, floor)
