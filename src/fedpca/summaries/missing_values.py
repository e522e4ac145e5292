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
_HIDDEN = 5  # one in so many observed entries is hidden once, to see how well the others tell it
_MAX_LEVERAGE = 0.999  # of an entry in its own estimate: beyond, the others say nothing of it
_FULL_TRUST = 1.5
"""Estimates that explain two thirds of the variance of observed entries count in full, others in proportion
to what they explain. In full from a half on, five factors with as much noise are farther off than with column
means, from nothing on categories (DNA), too; in proportion to the end, variances come out smaller."""
_MORE_ENERGY = 1.1  # of estimates from the other entries alone, which are larger than those from all
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
    return _solved(rows, subspace, variances)[0]


def _solved(
    rows: Array, subspace: Subspace, variances: Array | None, *, with_leverage: bool = False
) -> tuple[Array, Array]:
    """Scores, and by how much of its deviation an observed entry moves its own estimate, shape (n, d)."""
    leverage = np.zeros(rows.shape if with_leverage else 0)
    if not subspace.rank:
        return np.zeros((len(rows), 0)), leverage
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
    inverse = np.linalg.pinv(normal, rcond=1e-12, hermitian=True)
    solved: Array = (inverse @ observed[:, :, None])[:, :, 0]
    for index in range(len(leverage)):
        leverage[index] = np.vecdot((inverse[index] @ loadings).T, weighted.T)
    return solved * deviation, leverage


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
    limits = _limits(subspace)
    scores = np.clip(scores, -limits, limits)
    estimate = scores @ subspace.components + subspace.mean
    result[touched] = np.where(np.isnan(partial), estimate, partial)
    return result


class Filled(NamedTuple):
    """What was filled into a stream so far.

    Attributes:
        counts: weight of the entries filled in, by feature, shape (d,).
        sums: of these entries.
        agreement: of observed entries with their estimates from the others of their rows: the sums of
            products, of squared estimates and of squared deviations.
        lacking: variance that the entries filled in lack, in units of that of an entry.
        warned: whether anyone was told.
    """

    counts: Array
    sums: Array
    agreement: Array
    lacking: float = 0.0
    warned: bool = False

    @classmethod
    def nothing(cls, n_features: int) -> Self:
        return cls(np.zeros(n_features), np.zeros(n_features), np.zeros(3))

    def scaled(self, factor: float) -> Self:
        """The same with all weights multiplied by factor²."""
        square = factor**2
        return self._replace(
            counts=square * self.counts,
            sums=square * self.sums,
            agreement=square * self.agreement,
            lacking=square * self.lacking,
        )

    def with_more(
        self, rows: Array, gaps: AnyArray, features: AnyArray, weights: Array | None, lacking: float
    ) -> Self:
        """With the gaps of more rows in some features, as filled; each lacks this share of its variance."""
        own = (gaps & features) * (1.0 if weights is None else weights[:, None])
        return self._replace(
            counts=self.counts + own.sum(axis=0),
            sums=self.sums + np.where(own > 0, own * rows, 0.0).sum(axis=0),
            lacking=self.lacking + lacking * float(own.sum()),
        )

    def observed_mean(self, rows: Array, gaps: AnyArray, weights: Array | None, history: Subspace) -> Array:
        """The mean of the observed entries of the rows so far, and of more."""
        if not history.centered:
            return history.mean
        own = ~gaps if weights is None else weights[:, None] * ~gaps
        counts = history.count if history.observed is None else history.observed
        added = np.where(np.isnan(rows), 0.0, own * (rows - history.mean)).sum(axis=0)
        total = np.maximum(counts - self.counts, 0.0) + own.sum(axis=0)
        step = self.counts * history.mean - self.sums + added
        return history.mean + np.where(total > 0, step / np.where(total > 0, total, 1.0), 0.0)


def fill(
    rows: Array, history: Subspace, variances: Array | None, weights: Array | None, before: Filled
) -> tuple[Array, Filled]:
    """Rows with every NaN replaced of features that are known, and what was filled so far.

    By the mean of the entries observed so far, and what the subspace says of a row besides, as far as it has
    told observed entries from the others of their rows: a subspace of few entries fits their noise.

    Args:
        rows: shape (n, d).
        history: of the rows so far.
        variances: of each feature, if known.
        weights: of the rows, if not one.
        before: what was filled into the rows so far.
    """
    gaps = np.isnan(rows) & history.known
    mean = before.observed_mean(rows, gaps, weights, history)
    touched = gaps.any(axis=1)
    partial = rows[touched] - (mean - history.mean)
    scores, leverage = _solved(partial, history, variances, with_leverage=True)
    limits = _limits(history)
    estimate = np.clip(scores, -limits, limits) @ history.components
    deviations = partial - history.mean
    ends = np.sqrt((limits**2) @ history.components.astype(np.float64) ** 2)
    leverage = np.clip(leverage, 0.0, _MAX_LEVERAGE)
    left_out = np.clip((estimate - leverage * deviations) / (1 - leverage), -ends, ends)
    own = None if weights is None else weights[touched]
    after = before._replace(agreement=before.agreement + _agreement(deviations, left_out, own))
    trust, lacking = _trusted(after.agreement)
    result = rows.copy()
    result[touched] = np.where(gaps[touched], mean + trust * estimate, rows[touched])
    return result, after.with_more(result, gaps, history.known, weights, lacking)


def _limits(subspace: Subspace) -> Array:
    """Most that a score may be estimated to be, by direction."""
    return _MAX_DEVIATIONS * subspace.singular_values / np.sqrt(max(subspace.count, 1.0))


def _agreement(deviations: Array, estimates: Array, weights: Array | None) -> Array:
    """Sums over observed entries, which are not NaN: of products with estimates, and of both squared."""
    is_known = ~np.isnan(deviations)
    roots = np.ones((len(deviations), 1)) if weights is None else np.sqrt(weights)[:, None]
    true, told = (roots * deviations)[is_known], (roots * estimates)[is_known]
    return np.array([true @ told, told @ told, true @ true])


def _trusted(agreement: Array) -> tuple[float, float]:
    """By how much to multiply estimates, and the share of its variance that an entry then lacks."""
    products, told, true = agreement.tolist()
    if not (products > 0 and told > 0):
        return 0.0, 1.0
    explained = products / told * products / true
    most = (_MORE_ENERGY * true / told) ** 0.5  # they invent no variance
    trust = min(1.0, _FULL_TRUST * explained, most)
    return trust, max(1.0 - trust**2 * told / true, 0.0)


def impute_cold_start(
    rows: Array, rank: int, center: bool, weights: Array | None = None
) -> tuple[Array, float]:
    """The first rows of a stream, filled from themselves; every feature has an observed value.

    A weight, positive, counts repetitions of its row.

    Probabilistic PCA of the observed entries, in units of each feature's standard deviation, by expectation
    maximization (Tipping, Bishop 1999): with loadings W, shape (d, r), and noise of variance v, the scores
    of a row are normal with covariance v (W^T W + v)^-1 over its observed entries. Where features
    outnumber the entries of each loadings have a prior, as in Bayesian PCA (Bishop 1999): else they would fit
    the noise. The estimates count as far as they tell entries that were hidden.

    Returns:
        The rows, and the share of its variance that an entry filled in lacks.
    """
    gaps = np.isnan(rows)
    counted = np.ones(len(rows)) if weights is None else np.maximum(weights / weights.max(), _MIN_SHARE)
    mean, unit, estimate = _estimated(rows, rank, center, counted)
    hidden = ~gaps & ((_places(rows)[:, None] + np.arange(rows.shape[1])) % _HIDDEN == 0)
    others = np.where(hidden, np.nan, rows)
    told = ~np.isnan(others).all(axis=0)
    agreement: Array = np.zeros(3)
    if hidden[:, told].any():
        own_mean, own_unit, own = _estimated(others[:, told], rank, center, counted)
        true = np.where(hidden, rows, np.nan)[:, told]
        agreement = _agreement((true - own_mean) / unit[told], own * own_unit / unit[told], counted)
    trust, lacking = _trusted(agreement)
    return np.where(gaps, trust * estimate * unit + mean, rows).astype(rows.dtype), lacking


def _places(rows: Array) -> Array:
    """The number of each row; repetitions have that of the first."""
    before = rows[:-1]
    same = (rows[1:] == before) | (np.isnan(rows[1:]) & np.isnan(before))
    return np.cumsum(np.r_[True, ~same.all(axis=1)])


def _estimated(rows: Array, rank: int, center: bool, weights: Array) -> tuple[Array, Array, Array]:
    """Mean and deviation of each feature, and all entries as estimated, about the mean and in deviations."""
    gaps = np.isnan(rows)
    observed = (~gaps).astype(np.float64)
    prior = float(weights.mean()) if observed.sum() < rows.shape[1] ** 2 else 0.0
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
    return mean, unit, model.scores(scaled, observed)[0] @ model.loadings.T + model.mean


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
