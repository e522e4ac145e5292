"""Preparation: what nobody knows about the rows, found privately: their scale, their center, their length.

Everything is decided from public numbers (rows, features, epsilon, components wanted) and from noisy sums, so
that each decision costs nothing. With t = sqrt(d) / (mu n), the noise edge of the Gram matrix of rows of
length one is 2 t of their energy.

1. With a scale: that of each feature, from differences of pairs of rows, which need no center.
2. Rows of which hardly anything survives the noise (t > 0.1, or mu n < 40): differences of pairs, each scaled
   to length one. Nothing else has to be found, so that all of the budget is left for the release.
3. Otherwise: how long rows are, and how long differences of pairs are, which is their spread; then the mean,
   in one to five steps, as these and the known noise require, each clipped to a smaller radius about the
   last; if the noise would leave it too far off, differences of pairs again. The release contains the sum of
   its rows as well, which corrects what is left of the center's error.
4. The length that rows are clipped to: the more components are wanted of fewer rows, the shorter; a quantile
   of the lengths of differences or, where noise dominates, every row is scaled to length one. About a public
   center it is a quantile of the lengths about that.

A stream pays with its first rows, each in one step: those cost them what the release costs the others.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from math import ceil, hypot, inf, sqrt
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.privacy import steps
from fedpca.privacy.clipping import RADIUS, Clipping, Pairing
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.privacy.noise import Noise
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import BELOW, DYADIC, Histogram, Step, StepSum

_FEW = 0.1  # t above which only pairs are used
_FEW_ROWS = 40.0  # mu n below which a histogram finds nothing
_QUANTILES = ((0.012, 0.9), (0.027, 0.75), (0.04, 0.5))  # largest r t, and the quantile of lengths
_NEAR, _TOO_FAR = 2.0, 4.0  # (noise of the center / spread)² over t: good enough, and not good enough
_FARTHEST = 0.7  # of the spread
_MEAN_STEPS = 5
_LAST_STEP = 0.65  # of what is spent on the mean
_MOST_FOR_MEAN = 0.4  # of mu²
_LENGTHS = {0.9: 1.15, 0.75: 1.07, 0.5: 1.0}  # quantiles of lengths over their root mean square, if alike
_TYPICAL_FAR = 2.0  # of the spread: the end of the bin that rows as far from the origin as they spread are in
_MARGIN = 1.25  # of a radius over what it has to contain
_UNLIKELY = 2.5  # standard deviations of the length of noise, which vary it by 1 / sqrt(2 d)
_UNCORRECTED = 1.0  # of the energy of a center's noise
_FINE = 4  # bins per octave about a public center, where there are rows enough for them
_FINE_ROWS = 8000.0  # mu n: below, most fine bins would drown
_SCALE_ROWS = 54.0  # times sqrt(2 d) / mu
_SCALE_MARGIN = 1.5
_SCALE_QUANTILE, _SCALE_FACTOR = 0.75, 1.627  # of |differences|: of a Gaussian, in standard deviations
_EVALUATED_QUANTILES = ((2000.0, 0.99), (0.0, 0.95))  # least mu n
_HISTOGRAM_STREAM = 100.0  # rows of a stream, in units of 1 / mu
_MEAN_STREAM = 20.0  # in units of sqrt(d) / mu, or a little more of few features
_HORIZON = 10.0  # a stream is taken to be this many times as long as a mean step


class _Mean(NamedTuple):
    """The steps to a center.

    Attributes:
        noise: standard deviation of its length at the end.
    """

    noise: float
    shares: list[float]
    radii: list[float]


@dataclass(frozen=True)
class _Rule:
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
        return _clamped(needed**2, 0.03, 0.25) if self.finds_scale else 0.0

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
        return _clamped((30 / self.strength) ** 2, 0.003, 0.05) * self.after_scale

    @property
    def histogram(self) -> Histogram:
        """Of lengths about a public center."""
        return Histogram(_FINE if self.strength > _FINE_ROWS else 1)

    @property
    def mean_share(self) -> float:
        """Of mu², for the mean."""
        return _clamped(7 * self.t, 0.05, _MOST_FOR_MEAN) * self.after_scale

    @property
    def evaluated_quantile(self) -> float:
        """Of the lengths, that an evaluation clips rows to."""
        return next(q for least, q in _EVALUATED_QUANTILES if self.strength > least)

    @property
    def quantile(self) -> float:
        """Of the lengths, that rows are clipped to; 0 for the sphere."""
        return next((q for most, q in _QUANTILES if self.rank * self.t < most), 0.0) if self.enough else 0.0

    def planned_mean(self, far: float, spread: float, stream_rows: int | None = None) -> _Mean:
        """As few steps as bring the noise of the center near that of the release, or the most allowed.

        Args:
            far: how long rows are.
            spread: how long they are about their mean.
            stream_rows: rows of a stream for each step, which pay with all they have.
        """
        whole = self.mean_share
        for count in range(1, _MEAN_STEPS + 1):
            first = [whole * (1 - _LAST_STEP) / (count - 1)] * (count - 1) if count > 1 else []
            plan = self._mean_of([*first, whole - sum(first)], far, spread, stream_rows)
            if plan.noise < sqrt(_NEAR * self.t) * spread:
                break
        return plan

    def _mean_of(self, shares: list[float], far: float, spread: float, stream_rows: int | None) -> _Mean:
        radii, radius, noise = [], far, 0.0
        sensitivity = 2.0 if self.privacy.adjacency == "replace-one" else 1.0
        for share in shares:
            radii.append(radius)
            mu, rows = (self.mu * sqrt(share), self.n_rows) if stream_rows is None else (self.mu, stream_rows)
            noise = sensitivity * radius * sqrt(self.n_features * self.noise) / (mu * rows)
            radius = _MARGIN * hypot(spread, noise * (1 + _UNLIKELY / sqrt(2 * self.n_features)))
        return _Mean(noise, shares, radii)

    def is_good(self, plan: _Mean, spread: float) -> bool:
        """Whether a center with this noise is better than none."""
        return plan.noise <= min(_FARTHEST, sqrt(_TOO_FAR * self.t)) * spread

    def spike(self, plan: _Mean, spread: float) -> float:
        """Energy that the noise of the center gives a direction, in units of the edge.

        At most what the sum of rows, released with their products, does not correct.
        """
        return min((plan.noise / spread) ** 2 / (2 * self.t), self.t / SUM_WEIGHT**2)


def _clamped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


class CenterNoise(NamedTuple):
    """How the noise of a private center shows in a release about it.

    The sum of rows, released with their products, corrects a shift of all points alike. A shift of rows is
    not one of their points where these are clipped: up to all of its energy may stay.

    Attributes:
        offset: its length, in units of the spread of rows.
        spike: the energy of what is corrected, after that, in units of the edge of all owners' noise.
    """

    offset: float
    spike: float

    def margin(self, n_rows: float, edge: float) -> float:
        """By how much it raises the edge of noise, of so many rows of length one."""
        spike = max(self.spike, _UNCORRECTED * n_rows * self.offset**2 / edge)
        return spike + 1 / (4 * spike) if spike > 0.5 else 1.0


class Found(NamedTuple):
    """The outcome: all of it public from then on.

    Attributes:
        clipping: how rows become points.
        radius: that an evaluation clips rows to; 0 where no length was found.
        center_noise: of a private center.
    """

    clipping: Clipping
    radius: float
    center_noise: CenterNoise = CenterNoise(0.0, 0.0)


class Outlook(NamedTuple):
    """What a preparation is expected to come to, from public numbers alone.

    Attributes:
        clipping: with the length of rows as their unit, where it is not public.
        mu: what will be left for the release.
        joint: whether the sum of rows will be released with it.
        quantile: of the lengths, that rows will be clipped to; 0 for a public length, or the sphere.
        offset: how far off the center will be, in units of the length of rows.
        steps: the sums before the release.
        evaluates: whether there will be a length for an evaluation.
    """

    clipping: Clipping
    mu: float
    joint: bool
    quantile: float
    offset: float
    steps: tuple[Step, ...]
    evaluates: bool


def expected(
    privacy: Privacy, n_features: int, rank: int, n_rows: float, noise: float, *, finds_scale: bool
) -> Outlook:
    """The outlook for so many rows, if their mean is about as far off as they spread.

    Args:
        noise: the variance of that of a sum, in units of that of one owner's.
    """
    rule = _Rule(privacy, n_features, rank, n_rows, noise, finds_scale)
    bound = None if isinstance(privacy.bound, str) else privacy.bound
    spent, quantile, offset = rule.scale_share, 0.0, 0.0
    taken = [steps.scales(n_features, rule.scale_share, 0)] if finds_scale else []
    finds_center = privacy.center == "private" and rule.enough
    has_length = finds_center or bound is not None
    if finds_center:
        spent += 3 * rule.histogram_share
        taken.append(steps.lengths_and_spread(rule.histogram_share, 0))
        plan = rule.planned_mean(_TYPICAL_FAR, 1.0)
        finds_center = rule.is_good(plan, 1.0)
    if finds_center:
        spent += rule.mean_share
        offset = sqrt(2 * rule.t * rule.spike(plan, 1.0))
        origin = np.zeros(n_features)
        taken += [steps.mean(origin, *each, 0) for each in zip(plan.radii, plan.shares, strict=True)]
    pairs = privacy.center in ("private", "pairs") and not finds_center
    if privacy.bound == "private" and not pairs and rule.quantile:
        if not finds_center:
            spent += rule.histogram_share
            taken.append(steps.radius(rule.histogram, rule.histogram_share, 0))
        quantile, has_length = rule.quantile, True
        bound = _LENGTHS[quantile]
    return Outlook(
        Clipping(bound, pairs=pairs),
        rule.mu * sqrt(1 - spent),
        finds_center,
        quantile,
        offset,
        tuple(taken),
        evaluates=has_length and privacy.evaluation_share > 0,
    )


def rows_for_scale(privacy: Privacy, n_features: int, noise: float) -> int:
    """How many rows the scale of features takes, of all owners together."""
    return _Rule(privacy, n_features, 1, 1, noise, finds_scale=True).rows_for_scale


class BlockSum:
    """The sum of a block in the making."""

    def __init__(self, block: steps.Block, random: np.random.Generator) -> None:
        self._block = block
        self._pairing = Pairing(random) if block.of_pairs else None
        self.total: Array = np.zeros(block.length)

    def take(self, rows: Array) -> None:
        for part in (rows,) if self._pairing is None else self._pairing.take(rows):
            self.total += self._block.add(part)

    def flush(self) -> None:
        if self._pairing is not None and self._pairing.n_waiting:
            self.total += self._block.add(self._pairing.flush())


class Search:
    """The steps one at a time, as far as they are public: what is to be summed next, and what sums say.

    Args:
        privacy: the settings; what they state is not looked for.
        n_features: d.
        rank: how many components are wanted.
        scale: what features are divided by, if it is public; "std" to find it; None for nothing.
        feature_names: one per feature, or None.

    Attributes:
        step: the next one; None when all is found.
        found: the outcome, then.
        costs: the mu of every step so far, with its name.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        *,
        scale: Array | str | None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        self._privacy = privacy
        self._d = n_features
        self._rank = rank
        self._finds_scale = isinstance(scale, str)
        self._clipping = Clipping(
            None, scale=None if isinstance(scale, str) else scale, feature_names=feature_names
        )
        self.costs: list[tuple[str, float]] = []
        self.found: Found | None = None
        self.step: Step | None = None
        self._is_stream = False
        self._spent = 0.0  # of mu², evaluation apart
        self._search = self._find()
        self._next(None)

    @staticmethod
    def most_steps(privacy: Privacy, *, finds_scale: bool) -> int:
        """How many steps with a sum there are at most."""
        of_center = 1 + _MEAN_STEPS if privacy.center == "private" else int(privacy.bound == "private")
        return finds_scale + of_center

    @staticmethod
    def most_words(n_features: int, *, finds_scale: bool) -> int:
        """The length of the longest sum of a step."""
        of_scale = DYADIC.n_bins * n_features if finds_scale else 0
        return max(of_scale, n_features, 2 * DYADIC.n_bins, Histogram(_FINE).n_bins)

    # --- one step ---

    def raw_sum(self, parts: Iterable[Array], random: np.random.Generator) -> Array:
        """The sum of the step over rows, without noise: integers, never to leave as they are.

        Args:
            parts: the rows.
            random: of the pairs.
        """
        assert self.step is not None
        blocks = [BlockSum(block, random) for block in self.step.blocks]
        for rows in parts:
            self._add(rows, blocks)
        self._flush(blocks)
        return np.concatenate([block.total for block in blocks])

    @property
    def cost(self) -> float:
        """The mu of the step, taken over all rows."""
        assert self.step is not None
        return self._mu * sqrt(self.step.share)

    @property
    def deviations(self) -> list[float]:
        """Standard deviation of one owner's noise in every block of the step, taken over all rows."""
        assert self.step is not None
        return [self._sd(self.step, i, self.cost) for i in range(len(self.step.blocks))]

    def replay(self, pooled: StepSum, *, paid: bool) -> None:
        """End a round without a sum over rows: its share is spent only if it was paid for before."""
        assert self.step is not None
        if paid and self.step.blocks:
            self.costs.append((self.step.name, self.cost))
            self._spent += self.step.share
        self._next(pooled)

    def check_pooled(self, pooled: StepSum) -> None:
        """Refuse a sum over owners that is not one of this step."""
        assert self.step is not None
        if pooled.step != self.step.name or pooled.total.shape != (self.step.length,):
            raise ValueError(
                f"this round sums {self.step.name!r}, {self.step.length} numbers, got {pooled.step!r} with "
                f"{pooled.total.shape}: all owners must take the same steps."
            )
        if not steps.same_radius(pooled.radius, self.step.radius):
            raise ValueError(
                f"this round clips rows to {self.step.radius:g}, got a sum of rows clipped to "
                f"{pooled.radius:g}: all owners must have the same settings."
            )
        if not np.isfinite(pooled.total).all() or pooled.n_rows < 1 or not 1 <= pooled.noise < inf:
            raise ValueError("the sum of a round must be finite, of at least one row and one owner's noise.")

    @property
    def _mu(self) -> float:
        """What there is for the steps and the release."""
        return self._privacy.mu * sqrt(1 - self._privacy.evaluation_share)

    @property
    def mu_left(self) -> float:
        """What is left of mu for the release of the rows that come next.

        Where nothing can be evaluated, the release gets what was kept for that.
        """
        evaluates = self.found is None or self.found.radius > 0
        whole = self._mu if evaluates else self._privacy.mu
        if not self.costs:
            return whole
        spent = 0.0 if self._is_stream else self._spent * self._mu**2
        return sqrt(whole**2 - spent) * BELOW

    def _next(self, pooled: StepSum | None) -> None:
        """Let the search go on, to its next step or its end."""
        try:
            self.step = self._search.send(pooled)  # type: ignore[arg-type]
        except StopIteration as end:
            self.step, self.found = None, end.value

    def _add(self, rows: Array, blocks: "list[BlockSum]") -> None:
        rows = self._clipping.deviations(rows)
        for block in blocks:
            block.take(rows)

    @staticmethod
    def _flush(blocks: "list[BlockSum]") -> None:
        for block in blocks:
            block.flush()

    def _sd(self, step: Step, block: int, mu: float) -> float:
        """Standard deviation of the noise of a block, in a step that costs mu."""
        part = step.blocks[block]
        return part.sensitivity(self._privacy.adjacency) / (mu * sqrt(part.share / step.share))

    # --- the search: everything in it is public ---

    def _find(self) -> Generator[Step, StepSum, Found]:
        privacy = self._privacy
        bound = None if isinstance(privacy.bound, str) else privacy.bound
        center = privacy.public_center(self._d)
        if not self._finds_scale and not privacy.needs_steps:
            pairs = privacy.center == "pairs"
            return Found(self._clipping.about(center, bound=bound, pairs=pairs), bound or 0.0)
        counted = yield steps.count_rows()
        n_rows = _HORIZON * self._mean_rows if self._is_stream else counted.n_rows
        self._rule = rule = _Rule(privacy, self._d, self._rank, n_rows, counted.noise, self._finds_scale)
        if self._finds_scale:
            yield from self._find_scale()
        if privacy.center == "private" and rule.enough:
            return (yield from self._find_center(bound))
        if privacy.center in ("private", "pairs"):
            return Found(replace(self._clipping, bound=bound, pairs=True), bound or 0.0)
        self._clipping = self._clipping.about(center)
        if privacy.bound != "private" or not rule.quantile:
            return Found(replace(self._clipping, bound=bound), bound or 0.0)
        histogram = rule.histogram
        step = steps.radius(histogram, rule.histogram_share, self._histogram_rows)
        counts = yield step
        sd = self._pooled_sd(step, 0, counts)
        length = histogram.quantile(counts.total, rule.quantile, sd)
        radius = histogram.quantile(counts.total, rule.evaluated_quantile, sd)
        return Found(replace(self._clipping, bound=length or None), radius)

    @property
    def _histogram_rows(self) -> int:
        """Rows of a stream for a histogram."""
        return ceil(_HISTOGRAM_STREAM / self._mu)

    @property
    def _mean_rows(self) -> int:
        """Rows of a stream for one step of the mean."""
        return ceil(_MEAN_STREAM * (sqrt(self._d) + _UNLIKELY / sqrt(2)) / self._mu)

    def _pooled_sd(self, step: Step, block: int, pooled: StepSum) -> float:
        """Standard deviation of the noise of a block in the sum over the owners that sent one."""
        mu = self._mu if self._is_stream else self._mu * sqrt(step.share)
        return self._sd(step, block, mu) * sqrt(pooled.noise)

    def _find_scale(self) -> Generator[Step, StepSum, None]:
        needed, n_rows = self._rule.rows_for_scale, int(self._rule.n_rows)
        if n_rows < needed and not self._is_stream:
            raise ValueError(
                f"scale='std' with privacy needs about {needed:,} rows to find the scale of {self._d} "
                f"features, and there are {n_rows:,}; nothing was spent. Bring more rows, a larger epsilon "
                "or fewer features, or give the scale as public numbers."
            )
        step = steps.scales(self._d, self._rule.scale_share, ceil(needed / 2))
        counts = yield step
        sd = self._pooled_sd(step, 0, counts)
        found = np.array(
            [
                DYADIC.quantile(of_feature, _SCALE_QUANTILE, sd, self._d)
                for of_feature in counts.total.reshape(self._d, -1)
            ]
        )
        scale = np.where(found > 0, found * (sqrt(2.0) / _SCALE_FACTOR), np.inf)
        self._clipping = replace(self._clipping, scale=scale)

    def _find_center(self, bound: float | None) -> Generator[Step, StepSum, Found]:
        """The center, or pairs if it cannot be found, and the length to clip to, if it is not public."""
        rule, in_pairs = self._rule, replace(self._clipping, bound=bound, pairs=True)
        step = steps.lengths_and_spread(rule.histogram_share, self._histogram_rows)
        counts = yield step
        of_rows, of_pairs = np.split(counts.total, 2)
        far = DYADIC.quantile(of_rows, 0.5, self._pooled_sd(step, 0, counts), 2, edge=True)

        def spread(q: float) -> float:
            return DYADIC.quantile(of_pairs, q, self._pooled_sd(step, 1, counts), 2)

        near, radius = spread(0.5), bound or spread(rule.evaluated_quantile)
        if not far or not near:
            return Found(in_pairs, radius)
        plan = rule.planned_mean(max(far, near), near, self._mean_rows if self._is_stream else None)
        if not rule.is_good(plan, near):
            return Found(in_pairs, radius)
        center = np.zeros(self._d)
        for share, length in zip(plan.shares, plan.radii, strict=True):
            moved = yield steps.mean(center, length, share, self._mean_rows)
            center = center + moved.total * (length / RADIUS / moved.n_rows)
        if self._privacy.bound == "private" and rule.quantile:
            bound = spread(rule.quantile) or None
        noise = CenterNoise(plan.noise / near, rule.spike(plan, near))
        return Found(replace(self._clipping, bound=bound, center=center), radius, noise)


class Preparation(Search):
    """A search whose sums are noised and paid for here: `sum_rows` and `advance`, or `take_stream`.

    Args:
        privacy, n_features, rank, scale, feature_names: as for a `Search`.
        noise: of the steps.
        random: of the pairs.
        ledger: what pays.

    Attributes:
        n_rows: rows of a stream taken so far.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        *,
        scale: Array | str | None,
        noise: Noise,
        random: np.random.Generator,
        ledger: Ledger,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        self._noise = noise
        self._random = random
        self._ledger = ledger
        self.n_rows = 0
        self._summed = False
        self._advanced = False
        super().__init__(privacy, n_features, rank, scale=scale, feature_names=feature_names)

    # --- rounds over all rows ---

    def sum_rows(self, parts: Iterable[Array], n_rows: int) -> StepSum:
        """One round: the noisy sum of the step over all rows. `advance` has to follow."""
        assert self.step is not None
        if not self.step.blocks:
            self._summed = True
            return StepSum(self.step.name, np.zeros(0), n_rows)
        return self._noisy(self.raw_sum(parts, self._random), 0, n_rows, self.cost)

    def check_round(self) -> None:
        """Whether a round over all rows may begin."""
        if self._is_stream:
            raise ValueError("the first rows of a stream went into its private steps already; fit anew.")
        if self._summed:
            raise ValueError("a round of private steps is not complete: call advance first.")
        self._check_affordable()

    def check_advance(self, pooled: StepSum) -> None:
        """Whether a round may end with this sum."""
        if self.step is None or not self._summed:
            raise ValueError("a round of private steps ends with a sum: call step_sum first.")
        self.check_pooled(pooled)

    def advance(self, pooled: StepSum) -> None:
        """End a round with the sum over one or many owners, which is public."""
        assert self.step is not None
        self._advanced = True
        self._spent += self.step.share
        self._next(pooled)

    # --- rounds that others took, or an earlier preparation of the same rows ---

    def check_replay(self, pooled: StepSum) -> None:
        """Whether a round may end with this sum, without one over the rows of this owner."""
        if self.step is None:
            raise ValueError("all private steps were taken already.")
        if self._summed or self.n_rows:
            raise ValueError("a round of private steps that began here ends here: call advance.")
        self.check_pooled(pooled)

    def replay(self, pooled: StepSum, *, paid: bool) -> None:
        self._advanced = True
        super().replay(pooled, paid=paid)

    def check_sum(self, own: StepSum) -> None:
        """Refuse the sum of an owner that cannot be one of the next step."""
        if self.step is None:
            raise ValueError("all private steps were taken already.")
        steps.check_sum(own, self.step, self.deviations)

    # --- the first rows of a stream ---

    def check_stream(self) -> None:
        """Whether rows of a stream may come."""
        if (self._summed or self._advanced) and not self._is_stream:
            raise ValueError("the rounds of private steps are not complete; finish them, or fit anew.")
        self._check_affordable()

    def take_stream(self, rows: Array) -> Array:
        """Take as many rows as are still needed; returns the others."""
        if not self._is_stream:
            self._is_stream = True
            self._next(StepSum("rows", np.zeros(0), 0))
            self._begin_stream_step()
        while self.step is not None:
            part, rows = np.split(rows, [self.step.stream_rows - self._n_taken])
            self._add(part, self._blocks)
            self._n_taken += len(part)
            self.n_rows += len(part)
            if self._n_taken < self.step.stream_rows:
                break
            self._flush(self._blocks)
            total = np.concatenate([block.total for block in self._blocks])
            pooled = self._noisy(total, self.n_rows - self._n_taken, self._n_taken, self._mu)
            self._next(pooled)
            self._begin_stream_step()
        return rows

    def _begin_stream_step(self) -> None:
        self._n_taken = 0
        self._blocks = (
            [] if self.step is None else [BlockSum(block, self._random) for block in self.step.blocks]
        )

    # --- one step ---

    def _next(self, pooled: StepSum | None) -> None:
        self._summed = False
        super()._next(pooled)

    def _check_affordable(self) -> None:
        """Before anything is spent: that the rows after the steps can be afforded as well."""
        if not self.costs and not self.n_rows:
            self._ledger.check(0, None, self._privacy.mu, adjacency=self._privacy.adjacency)

    def _noisy(self, total: Array, start: int, n_rows: int, mu: float) -> StepSum:
        """The sum of the step with noise, debited before it is drawn."""
        assert self.step is not None
        adjacency = self._privacy.adjacency
        entry = self._ledger.debit(start, start + n_rows, self.step.name, mu, adjacency=adjacency)
        self._summed = True
        number = len(self.costs)
        self.costs.append((self.step.name, mu))
        drawn = [
            self._noise.entries((number, i), block.length, self._sd(self.step, i, mu))
            for i, block in enumerate(self.step.blocks)
        ]
        self._ledger.complete(entry)
        return StepSum(self.step.name, total + np.concatenate(drawn), n_rows, radius=self.step.radius)
