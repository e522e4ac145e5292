"""Search: what nobody knows about the rows, found privately: their scale, their center, their length.

Everything is decided from public numbers, in `search_plan`, and from noisy sums, so that each decision costs
nothing.

1. With a scale: that of each feature, from differences of pairs of rows, which need no center.
2. Rows of which hardly anything survives the noise (sqrt(d) / (mu n) > 0.1, or mu n < 40): differences of
   pairs, each scaled to length one. Nothing else has to be found, so that all of the budget is left for the
   release.
3. Otherwise: how long rows are, and how long differences of pairs are, which is their spread; then the mean,
   in one to five steps, as these and the known noise require, each clipped to a smaller radius about the
   last; if the noise would leave it too far off, differences of pairs again. The release contains the sum of
   its rows as well, which corrects what is left of the center's error.
4. The length that rows are clipped to, if every row is not scaled to length one: whichever the histogram of
   the lengths of differences promises to lose least by noise and by bending together. The more components
   are wanted of fewer rows, the shorter. About a public center it is the lengths about that.

A stream pays with its first rows, each in one step: those cost them what the release costs the others.
"""

from collections.abc import Generator
from dataclasses import replace
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.privacy import steps
from fedpca.privacy.clipping import RADIUS, Clipping
from fedpca.privacy.search_plan import FINEST, MEAN_STEPS, UNLIKELY, SearchRule
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import BELOW, DYADIC, Step
from fedpca.privacy.sums import StepSum, Sum
from fedpca.summaries.certificate import StepCost

_UNCORRECTED = 1.0  # of the energy of a center's noise
_HISTOGRAM_STREAM = 100.0  # rows of a stream, in units of 1 / mu
_MEAN_STREAM = 20.0  # in units of sqrt(d) / mu, or a little more of few features
_HORIZON = 10.0  # a stream is taken to be this many times as long as a mean step


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
        costs: of every step so far that the rows at hand are in.
        clipping: as far as it is found.
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
        self.clipping = Clipping(
            None, scale=None if isinstance(scale, str) else scale, feature_names=feature_names
        )
        self.costs: list[StepCost] = []
        self.found: Found | None = None
        self.step: Step | None = None
        self._is_stream = False
        self._spent = 0.0  # of mu², evaluation apart
        self._search = self._find()
        self._go_on(None)

    @staticmethod
    def most_steps(privacy: Privacy, *, finds_scale: bool) -> int:
        """How many steps with a sum there are at most."""
        of_center = 1 + MEAN_STEPS if privacy.center == "private" else int(privacy.bound == "private")
        return finds_scale + of_center

    @staticmethod
    def most_words(privacy: Privacy, n_features: int, *, finds_scale: bool) -> int:
        """The length of the longest sum of a step; 0 if there is none."""
        of_scale = DYADIC.n_bins * n_features if finds_scale else 0
        if privacy.center == "private":
            return max(of_scale, n_features, DYADIC.n_bins + FINEST.n_bins)
        return max(of_scale, FINEST.n_bins if privacy.bound == "private" else 0)

    # --- one step ---

    def next(self) -> Sum:
        """The step that is to be summed, as a sum."""
        assert self.step is not None
        return self.step.announced(self._cost(self.step), self._privacy.adjacency, self.clipping)

    def _cost(self, step: Step) -> float:
        """The mu of a step: all there is, of the rows of a stream that it takes."""
        return self._mu if self._is_stream else self._mu * sqrt(step.share)

    def begin_stream(self) -> None:
        """Let the first rows of a stream pay for the steps."""
        self._is_stream = True
        self._go_on(StepSum("rows", np.zeros(0), 0))

    def add(self, pooled: StepSum, *, paid: bool) -> None:
        """Take the sum of the step, and go on.

        Args:
            paid: whether the rows at hand are in it. If not, its share is left for the release.
        """
        assert self.step is not None
        if paid and self.step.blocks:
            self.costs.append(StepCost(self.step.name, self._cost(self.step)))
            self._spent += self.step.share
        self._go_on(pooled)

    @property
    def _mu(self) -> float:
        """What there is for the steps and the release."""
        return self._privacy.mu * sqrt(1 - self._privacy.evaluation_share)

    @property
    def mu_left(self) -> float:
        """What is left of mu for the release of the rows that come next.

        Where nothing can be evaluated, the release gets what was kept for that; not in a stream, in which
        others have paid for steps: no record of a fit pays more than its first, or a ledger would count too
        little for two fits of the same people in another order.
        """
        evaluates = self.found is None or self.found.radius > 0
        whole = self._mu if evaluates or self._is_stream else self._privacy.mu
        if not self.costs:
            return whole
        spent = 0.0 if self._is_stream else self._spent * self._mu**2
        return sqrt(whole**2 - spent) * BELOW

    def _go_on(self, pooled: StepSum | None) -> None:
        """Let the search go on, to its next step or its end."""
        try:
            self.step = self._search.send(pooled)  # type: ignore[arg-type]
        except StopIteration as end:
            self.step, self.found = None, end.value

    # --- the search: everything in it is public ---

    def _find(self) -> Generator[Step, StepSum, Found]:
        privacy = self._privacy
        bound = None if isinstance(privacy.bound, str) else privacy.bound
        center = privacy.public_center(self._d)
        if not self._finds_scale and not privacy.needs_steps:
            pairs = privacy.center == "pairs"
            clipping = replace(self.clipping.about(center), bound=bound, pairs=pairs)
            return Found(clipping, bound or 0.0)
        counted = yield steps.count_rows()
        n_rows = _HORIZON * self._mean_rows if self._is_stream else counted.n_rows
        self._rule = rule = SearchRule(privacy, self._d, self._rank, n_rows, counted.noise, self._finds_scale)
        if self._finds_scale:
            yield from self._find_scale()
        if privacy.center == "private" and rule.enough:
            return (yield from self._find_center(bound))
        if privacy.center in ("private", "pairs"):
            return Found(replace(self.clipping, bound=bound, pairs=True), bound or 0.0)
        self.clipping = self.clipping.about(center)
        if privacy.bound != "private" or not rule.may_bend_less:
            return Found(replace(self.clipping, bound=bound), bound or 0.0)
        histogram = rule.histogram
        counts = yield steps.radius(histogram, rule.histogram_share, self._histogram_rows)
        lengths = histogram.lengths(counts.total, self._pooled_sd(0, counts))
        bound = rule.radius(lengths) or None
        return Found(replace(self.clipping, bound=bound), lengths.quantile(rule.evaluated_quantile))

    @property
    def _histogram_rows(self) -> int:
        """Rows of a stream for a histogram."""
        return ceil(_HISTOGRAM_STREAM / self._mu)

    @property
    def _mean_rows(self) -> int:
        """Rows of a stream for one step of the mean."""
        return ceil(_MEAN_STREAM * (sqrt(self._d) + UNLIKELY / sqrt(2)) / self._mu)

    def _pooled_sd(self, block: int, pooled: StepSum) -> float:
        """Standard deviation of the noise of a block in the sum over the owners that sent one."""
        return self.next().blocks[block].sd * sqrt(pooled.noise)

    def _find_scale(self) -> Generator[Step, StepSum, None]:
        needed, n_rows = self._rule.rows_for_scale, int(self._rule.n_rows)
        if n_rows < needed and not self._is_stream:
            raise ValueError(
                f"scale='std' with privacy needs about {needed:,} rows to find the scale of {self._d} "
                f"features, and there are {n_rows:,}; nothing was spent. Bring more rows, a larger epsilon "
                "or fewer features, or give the scale as public numbers."
            )
        counts = yield steps.scales(self._d, self._rule.scale_share, ceil(needed / 2))
        sd = self._pooled_sd(0, counts)
        found = np.array(
            [
                sqrt(DYADIC.lengths(of_feature, sd, self._d).mean_square())
                for of_feature in counts.total.reshape(self._d, -1)
            ]
        )
        scale = np.where(found > 0, found, np.inf)
        self.clipping = replace(self.clipping, scale=scale)

    def _find_center(self, bound: float | None) -> Generator[Step, StepSum, Found]:
        """The center, or pairs if it cannot be found, and the length to clip to, if it is not public."""
        rule, in_pairs = self._rule, replace(self.clipping, bound=bound, pairs=True)
        counts = yield steps.lengths_and_spread(rule.histogram, rule.histogram_share, self._histogram_rows)
        of_rows, of_pairs = np.split(counts.total, [DYADIC.n_bins])
        far = DYADIC.lengths(of_rows, self._pooled_sd(0, counts), 2).quantile(0.5, end=True)
        spread = rule.histogram.lengths(of_pairs, self._pooled_sd(1, counts), 2)
        near, radius = spread.quantile(0.5), bound or spread.quantile(rule.evaluated_quantile)
        if not far or not near:
            return Found(in_pairs, radius)
        plan = rule.planned_mean(max(far, near), near, self._mean_rows if self._is_stream else None)
        if not rule.is_good(plan, near):
            return Found(in_pairs, radius)
        center = np.zeros(self._d)
        for share, length in zip(plan.shares, plan.radii, strict=True):
            moved = yield steps.mean(center, length, share, self._mean_rows)
            center = center + moved.total * (length / RADIUS / moved.n_rows)
        if self._privacy.bound == "private":
            bound = rule.radius(spread) or None
        noise = CenterNoise(plan.noise / near, rule.spike(plan, near))
        return Found(replace(self.clipping, bound=bound, center=center), radius, noise)
