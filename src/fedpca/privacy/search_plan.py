"""What a search for scale, center and length will do, decided from public numbers before it begins.

These are rows, features, epsilon and components wanted. With t = sqrt(d) / (mu n), the noise edge of the Gram
matrix of rows of length one is 2 t of their energy.
"""

from dataclasses import dataclass
from math import ceil, hypot, sqrt
from typing import NamedTuple

import numpy as np

from fedpca.privacy import steps
from fedpca.privacy.clipping import Clipping
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import Histogram, Lengths, Step

_FEW = 0.1  # t above which only pairs are used
_FEW_ROWS = 40.0  # mu n below which a histogram finds nothing
# What bending costs, in units of noise, see `radius`: fitted to half of the data sets, for 2, 6 and 10
# components and epsilon from 0.5 to 8, so that MNIST, rows like word vectors and satellite images lose least.
_BENDING, _RANK_POWER = 0.06, 1.25
_SHORT = 0.25  # of the median: shorter rows, as of a table of few different ones, promise no less noise
_NEAR, _TOO_FAR = 2.0, 4.0  # (noise of the center / spread)² over t: good enough, and not good enough
_FARTHEST = 0.7  # of the spread
MEAN_STEPS = 5
_LAST_STEP = 0.65  # of what is spent on the mean
_MOST_FOR_MEAN = 0.4  # of mu²
_MOST_FOR_HISTOGRAM = 0.05  # of mu²; there are three
_TYPICAL_LONG = 1.15  # the radius, over the root mean square of lengths, if these are alike
_TYPICAL_FAR = 2.0  # of the spread: the end of the bin that rows as far from the origin as they spread are in
_MARGIN = 1.25  # of a radius over what it has to contain
UNLIKELY = 2.5  # standard deviations of the length of noise, which vary it by 1 / sqrt(2 d)
_HISTOGRAMS = (
    (1000.0, Histogram(4)),
    (400.0, Histogram(2)),
    (0.0, Histogram(1)),
)  # least mu n: finer ones drown
FINEST = _HISTOGRAMS[0][1]
_SCALE_ROWS = 54.0  # times sqrt(2 d) / mu
_SCALE_MARGIN = 1.5
_LEAST_FOR_SCALE, _MOST_FOR_SCALE = (
    0.08,
    0.25,
)  # of mu²: with 0.03, ever more of rarely varying features drown
_RADII = 2.0 ** (np.arange(-12, 961) / 8)  # those that are tried, in units of the median
_EVALUATED_QUANTILES = ((2000.0, 0.99), (0.0, 0.95))  # least mu n


class MeanPlan(NamedTuple):
    """The steps to a center.

    Attributes:
        noise: standard deviation of its length at the end.
    """

    noise: float
    shares: list[float]
    radii: list[float]


@dataclass(frozen=True)
class SearchRule:
    """What is decided before anything is looked at, from public numbers.

    Attributes:
        rank: components wanted.
        n_rows: of all owners.
        noise: the variance of that of a sum, in units of that of one owner's.
        finds_scale: whether features are to be scaled.
    """

    privacy: Privacy
    n_features: int
    rank: int
    n_rows: float
    noise: float
    finds_scale: bool

    @property
    def mu(self) -> float:
        """What an owner can spend on steps and release."""
        return self.privacy.mu * sqrt(1 - self.privacy.evaluation_share)

    @property
    def effective_mu(self) -> float:
        """The mu at which replacing a record would show in the Gram matrix of all owners."""
        pooled = self.mu / sqrt(self.noise)
        return pooled if self.privacy.adjacency == "replace-one" else pooled * sqrt(2.0)

    @property
    def rows_for_scale(self) -> int:
        """Below these, most features are not found."""
        return ceil(_SCALE_MARGIN * _SCALE_ROWS * sqrt(2 * self.n_features) / self.effective_mu)

    @property
    def scale_share(self) -> float:
        """Of mu², for the scale."""
        needed = 50 * sqrt(2 * self.n_features) / (self.effective_mu * self.n_rows)
        return _clamped(needed**2, _LEAST_FOR_SCALE, _MOST_FOR_SCALE) if self.finds_scale else 0.0

    @property
    def least_variation(self) -> float:
        """The share of rows in which a feature has to differ from its commonest value, to get a scale.

        Two rows differ in 2 p (1 - p) of all pairs, if it differs in p of the rows.
        """
        sd = sqrt(2 * self.n_features * self.noise / self.scale_share) / self.mu
        pairs = steps.DYADIC.least(sd, self.n_features) / (self.n_rows / 2)
        return (1 - sqrt(max(1 - 2 * pairs, 0.0))) / 2

    @property
    def after_scale(self) -> float:
        return 1 - self.scale_share

    @property
    def strength(self) -> float:
        """Rows in units of the noise of a count."""
        return self.effective_mu * sqrt(self.after_scale) * self.n_rows

    @property
    def t(self) -> float:
        """Half the edge of the noise, in units of the energy of rows of length one."""
        return sqrt(self.n_features) / self.strength

    @property
    def enough(self) -> bool:
        """Whether a center and a length can be found."""
        return self.t < _FEW and self.strength > _FEW_ROWS

    @property
    def histogram_share(self) -> float:
        """Of mu², for a histogram."""
        return _clamped((30 / self.strength) ** 2, 0.006, _MOST_FOR_HISTOGRAM) * self.after_scale

    @property
    def histogram(self) -> Histogram:
        """Of the lengths that decide on a radius."""
        return next(histogram for least, histogram in _HISTOGRAMS if self.strength > least)

    @property
    def mean_share(self) -> float:
        """Of mu², for the mean."""
        return _clamped(7 * self.t, 0.05, _MOST_FOR_MEAN) * self.after_scale

    @property
    def evaluated_quantile(self) -> float:
        """Of the lengths, that an evaluation clips rows to."""
        return next(q for least, q in _EVALUATED_QUANTILES if self.strength > least)

    @property
    def noise_to_signal(self) -> float:
        """Of the sphere, for the last component: those of many vary less, and noise harms them more."""
        return self.t * self.rank**_RANK_POWER

    @property
    def may_bend_less(self) -> bool:
        """Whether a length may be better than the sphere, whose bending costs hardly more than this."""
        return self.enough and self.noise_to_signal < _BENDING

    def radius(self, lengths: Lengths) -> float:
        """The length that rows are clipped to; 0 for the sphere.

        The longer it is, the less are rows bent, and the more noise there is to the energy of a typical row.
        Of all lengths, and the sphere, it is the one where the sum of both is least.
        """
        half = lengths.quantile(0.5)
        if not half or not self.may_bend_less:
            return 0.0
        radii = [0.0, *half * _RADII[half * _RADII <= lengths.quantile(1.0, end=True)]]
        losses = []
        for radius in radii:
            energy, bending = lengths.clipped(radius, _SHORT * half)
            losses.append(self.noise_to_signal / (half**2 * energy) + _BENDING * bending)
        return float(radii[int(np.argmin(losses))])

    def planned_mean(self, far: float, spread: float, stream_rows: int | None = None) -> MeanPlan:
        """As few steps as bring the noise of the center near that of the release, or the most allowed.

        Args:
            far: how long rows are.
            spread: how long they are about their mean.
            stream_rows: rows of a stream for each step, which pay with all they have.
        """
        whole = self.mean_share
        for count in range(1, MEAN_STEPS + 1):
            first = [whole * (1 - _LAST_STEP) / (count - 1)] * (count - 1) if count > 1 else []
            plan = self._mean_of([*first, whole - sum(first)], far, spread, stream_rows)
            if plan.noise < sqrt(_NEAR * self.t) * spread:
                break
        return plan

    def _mean_of(self, shares: list[float], far: float, spread: float, stream_rows: int | None) -> MeanPlan:
        radii, radius, noise = [], far, 0.0
        sensitivity = 2.0 if self.privacy.adjacency == "replace-one" else 1.0
        for share in shares:
            radii.append(radius)
            mu, rows = (self.mu * sqrt(share), self.n_rows) if stream_rows is None else (self.mu, stream_rows)
            noise = sensitivity * radius * sqrt(self.n_features * self.noise) / (mu * rows)
            radius = _MARGIN * hypot(spread, noise * (1 + UNLIKELY / sqrt(2 * self.n_features)))
        return MeanPlan(noise, shares, radii)

    def is_good(self, plan: MeanPlan, spread: float) -> bool:
        """Whether a center with this noise is better than none."""
        return plan.noise <= min(_FARTHEST, sqrt(_TOO_FAR * self.t)) * spread

    def spike(self, plan: MeanPlan, spread: float) -> float:
        """Energy that the noise of the center gives a direction, in units of the edge.

        At most what the sum of rows, released with their products, does not correct.
        """
        return min((plan.noise / spread) ** 2 / (2 * self.t), self.t / SUM_WEIGHT**2)


def _clamped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


class Outlook(NamedTuple):
    """What a preparation is expected to come to, from public numbers alone.

    Attributes:
        clipping: with the length of rows as their unit, where it is not public.
        mu: what will be left for the release.
        joint: whether the sum of rows will be released with it.
        rule: where rows will be clipped to a length that it finds; None for a public length, or the sphere.
        offset: how far off the center will be, in units of the length of rows.
        steps: the sums before the release.
        evaluates: whether there will be a length for an evaluation.
        least_variation: share of rows in which a feature has to differ from its commonest value, to get a
            scale; 0 if none is looked for.
    """

    clipping: Clipping
    mu: float
    joint: bool
    rule: SearchRule | None
    offset: float
    steps: tuple[Step, ...]
    evaluates: bool
    least_variation: float


def expected(
    privacy: Privacy, n_features: int, rank: int, n_rows: float, noise: float, *, finds_scale: bool
) -> Outlook:
    """The outlook for so many rows, if their mean is about as far off as they spread.

    Args:
        noise: the variance of that of a sum, in units of that of one owner's.
    """
    rule = SearchRule(privacy, n_features, rank, n_rows, noise, finds_scale)
    bound = None if isinstance(privacy.bound, str) else privacy.bound
    spent, offset = rule.scale_share, 0.0
    taken = [steps.scales(n_features, rule.scale_share, 0)] if finds_scale else []
    finds_center = privacy.center == "private" and rule.enough
    has_length = finds_center or bound is not None
    if finds_center:
        spent += 3 * rule.histogram_share
        taken.append(steps.lengths_and_spread(rule.histogram, rule.histogram_share, 0))
        plan = rule.planned_mean(_TYPICAL_FAR, 1.0)
        finds_center = rule.is_good(plan, 1.0)
    if finds_center:
        spent += rule.mean_share
        offset = sqrt(2 * rule.t * rule.spike(plan, 1.0))
        origin = np.zeros(n_features)
        taken += [steps.mean(origin, *each, 0) for each in zip(plan.radii, plan.shares, strict=True)]
    pairs = privacy.center in ("private", "pairs") and not finds_center
    finds_length = privacy.bound == "private" and not pairs and rule.may_bend_less
    if finds_length:
        if not finds_center:
            spent += rule.histogram_share
            taken.append(steps.radius(rule.histogram, rule.histogram_share, 0))
        has_length = True
        bound = min(_TYPICAL_LONG, sqrt(_BENDING / rule.noise_to_signal))
    return Outlook(
        Clipping(bound, pairs=pairs),
        rule.mu * sqrt(1 - spent),
        finds_center,
        rule if finds_length else None,
        offset,
        tuple(taken),
        evaluates=has_length and privacy.evaluation_share > 0,
        least_variation=rule.least_variation if finds_scale else 0.0,
    )


def rows_for_scale(privacy: Privacy, n_features: int, noise: float) -> int:
    """How many rows the scale of features takes, of all owners together."""
    return SearchRule(privacy, n_features, 1, 1, noise, finds_scale=True).rows_for_scale
