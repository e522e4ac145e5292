"""Limits that hold: histograms of scores on public bins, alarms by k of n rows, and how far a model has
moved.

A limit that assumes Gaussian rows seldom holds; one that is a quantile of scores does. Scores of several
owners are counted in bins that everybody knows beforehand, so that their counts add up and no row is sent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from scipy import special, stats

from fedpca._typing import JSON, AnyArray, Array
from fedpca.summaries import validation
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.subspace import Subspace

_PER_OCTAVE = 64  # bins are 1.1 % wide, far less than a quantile of 10,000 scores errs
_OCTAVES = 64  # below 2^-64 and above 2^64, scores of any model are alike


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """How many scores lie in each of the public bins: what owners exchange to agree on a limit.

    Bin i has the scores up to 2^(i / 64 - 64). It says how many rows have scores of about that size, and
    nothing else of any row; the largest score, to about 1 %.

    Attributes:
        counts: shape (8193,), one per bin; of a stream that forgets, sums of weights.

    >>> north, south = ScoreHistogram.of(np.array([1.0, 2.0])), ScoreHistogram.of(np.array([3.0, 400.0]))
    >>> both = ScoreHistogram.merge([north, south])
    >>> both.count, round(both.quantile(0.75), 1)
    (4.0, 3.0)
    """

    counts: Array

    @classmethod
    def empty(cls) -> Self:
        return cls(np.zeros(2 * _OCTAVES * _PER_OCTAVE + 1))

    @classmethod
    def of(cls, scores: Array) -> Self:
        """The histogram of these scores, shape (n,)."""
        empty = cls.empty()
        with np.errstate(divide="ignore"):
            places = np.ceil(np.log2(np.asarray(scores, np.float64)) * _PER_OCTAVE) + _OCTAVES * _PER_OCTAVE
        places = np.clip(places, 0, len(empty.counts) - 1).astype(int)
        return cls(np.bincount(places, minlength=len(empty.counts)).astype(np.float64))

    @classmethod
    def merge(cls, histograms: Iterable["ScoreHistogram"]) -> Self:
        """That of all their rows."""
        return cls(sum((each.counts for each in histograms), start=cls.empty().counts))

    @property
    def count(self) -> float:
        """How many scores there are."""
        return float(self.counts.sum())

    def faded(self, factor: float) -> Self:
        """The same with counts times `factor`."""
        return type(self)(self.counts * factor)

    def quantile(self, share: float) -> float:
        """The end of the first bin up to which there is this share of the scores."""
        if not self.count:
            raise ValueError("a limit needs scores, got a histogram without any.")
        reached = np.cumsum(self.counts) >= share * self.count * (1 - 1e-12)
        return float(np.exp2(int(reached.argmax()) / _PER_OCTAVE - _OCTAVES))

    def to_json(self) -> JSON:
        """As a JSON object: the counts that are not zero, by number of bin."""
        return {str(i): float(self.counts[i]) for i in np.flatnonzero(self.counts)}

    @classmethod
    def from_json(cls, counts: Mapping[str, float]) -> Self:
        """The inverse of `to_json`, checked as what came from others."""
        found = cls.empty().counts
        for name, value in counts.items():
            if not (name.isascii() and name.isdigit() and int(name) < len(found)):
                raise ValueError(
                    f"bins of scores must be numbers from 0 to {len(found) - 1}, got {name!r:.40}."
                )
            if not validation.is_real(value) or not 0 < value < 2**63:
                raise ValueError(f"counts of scores must be positive, got {value!r:.40} in bin {name}.")
            found[int(name)] = value
        return cls(found)


class AlarmRule:
    """An alarm where at least `k` of the latest `n` rows are above the limit: one row alone seldom means
    much.

    >>> rule = AlarmRule(2, of=3)
    >>> rule.see([True, False, True]), rule.see([False, False])        # rows as they come
    (array([False, False,  True]), array([False, False]))
    >>> f"{rule.false_alarms(0.01):.4f}"                # share of rows with an alarm, 1 % being above
    '0.0003'
    """

    def __init__(self, k: int, of: int) -> None:
        self.of = validation.integer(of, "of", at_least=1)
        self.k = validation.integer(k, "k", at_least=1)
        if self.k > self.of:
            raise ValueError(f"k must be at most the {self.of} rows it is of, got k={k}.")
        self._latest: AnyArray = np.zeros(self.of - 1, dtype=bool)

    def see(self, above: Iterable[bool] | AnyArray) -> AnyArray:
        """Whether there is an alarm at each of these rows, shape (n,), which follow those seen before."""
        flags = np.concatenate([self._latest, np.asarray(above, dtype=bool)])
        so_far = np.concatenate([[0], np.cumsum(flags)])
        self._latest = flags[len(flags) - (self.of - 1) :]
        return so_far[self.of :] - so_far[: -self.of] >= self.k

    def false_alarms(self, rate: float) -> float:
        """The share of normal rows with an alarm, if this share is above the limit, each by itself."""
        return float(special.bdtrc(self.k - 1, self.of, rate))


class ModelDistance(NamedTuple):
    """How far a model has moved from an earlier one.

    Attributes:
        value: by how much the mean of T² / k + SPE / E[SPE] of the rows of the model now, by the model then,
            differs from that of rows like those then, which is 2: 0 if nothing changed.
        limit: what 99 % of models stay below, if nothing changed and rows are Gaussian and independent.
    """

    value: float
    limit: float


def model_distance(now: Subspace, then: Subspace, n_components: int) -> ModelDistance:
    """How far the model now is from the model then, from the two summaries alone.

    Args:
        now: of recent rows, for example of a window.
        then: of rows that were normal.
        n_components: of `then` that scores are by.

    >>> rng = np.random.default_rng(0)
    >>> then = Subspace.from_rows(rng.normal(size=(500, 4)) * [3, 2, 1, 1])
    >>> same = Subspace.from_rows(rng.normal(size=(500, 4)) * [3, 2, 1, 1])
    >>> moved = Subspace.from_rows(rng.normal(size=(500, 4)) * [3, 2, 2, 1])
    >>> [bool(value > limit) for value, limit in (model_distance(each, then, 2) for each in (same, moved))]
    [False, True]
    """
    if now.n_features != then.n_features:
        raise ValueError(
            f"models must have the same features, got {now.n_features} now and {then.n_features} then."
        )
    validation.same_names(then.feature_names, now.feature_names)
    k = min(validation.integer(n_components, "n_components", at_least=1), then.rank)
    if now.count <= 1 or then.count <= k + 2:
        raise ValueError(
            f"models must have more rows than components and two more, got {now.count:g} rows now and "
            f"{then.count:g} then."
        )
    covariance, units = _Covariance.of(then), _units(now, then)
    variances = covariance.variances[:k]
    left_out = covariance.total - float(variances.sum())
    moved = _Covariance.of(now).times(units)
    shift = now.mean * units - then.mean
    components = then.components[:k].astype(np.float64)
    along = moved.along(components) + (components @ shift) ** 2
    # New rows are farther out than those of the fit, as the variances are estimates (the F distribution).
    expected = (then.count - 1) / (then.count - k - 2) * (1 + 1 / then.count)
    found, variance = float((along / variances).sum()) / k / expected - 1, 2 / k
    if left_out > 1e-9 * covariance.total:
        found += (moved.total + float(shift @ shift) - float(along.sum())) / left_out - 1
        variance += 2 * (covariance.energy - float(variances @ variances)) / left_out**2
    deviation = np.sqrt(variance * (1 / now.count + 1 / then.count))
    return ModelDistance(abs(found), float(stats.norm.ppf(0.995) * deviation))


class _Covariance(NamedTuple):
    """The covariance that a subspace stands for: its directions, and the rest spread evenly over all others.

    Attributes:
        rows: directions times their deviations beyond the rest, shape (r, d).
        variances: along the directions, shape (r,).
        rest: variance of each feature that comes on top, shape (d,).
    """

    rows: Array
    variances: Array
    rest: Array

    @classmethod
    def of(cls, subspace: Subspace) -> Self:
        variances = subspace.singular_values**2 / degrees_of_freedom(subspace.count)
        others = max(subspace.n_known - subspace.rank, 1)
        even = subspace.discarded / degrees_of_freedom(subspace.count) / others
        deviations = np.sqrt(np.maximum(variances - even, 0.0))
        return cls(deviations[:, None] * subspace.components, variances, even * subspace.known)

    def times(self, units: Array) -> Self:
        """That of rows multiplied by this, one number per feature; the variances are not needed any more."""
        return self._replace(rows=self.rows * units, rest=self.rest * units**2)

    def along(self, directions: Array) -> Array:
        """The variance along directions, shape (k, d)."""
        found: Array = np.sum((self.rows @ directions.T) ** 2, axis=0) + directions**2 @ self.rest
        return found

    @property
    def total(self) -> float:
        return float(np.sum(self.rows**2) + self.rest.sum())

    @property
    def energy(self) -> float:
        """The sum of the squares of all its eigenvalues, if it is in the units of its subspace."""
        n_others = np.count_nonzero(self.rest) - len(self.variances)
        return float(self.variances @ self.variances + max(n_others, 0) * self.rest.max(initial=0.0) ** 2)


def _units(now: Subspace, then: Subspace) -> Array:
    """What the divided rows of `now` are multiplied by to be those of `then`, shape (d,)."""
    ones = np.ones(now.n_features)
    return (ones if now.scale is None else now.scale) / (ones if then.scale is None else then.scale)
