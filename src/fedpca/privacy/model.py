"""PrivateModel: the machine that every private model is made by, whoever sums and draws noise.

It says which sum comes next, turns rows into integers, and goes from a total to the next sum: what is found
privately, the release, and its evaluation. All it holds is public: no noise, no key, no ledger and no row.
"""

from dataclasses import replace
from math import hypot, sqrt
from typing import NamedTuple

import numpy as np

from fedpca._typing import AnyArray, Array, DTypeLike
from fedpca.privacy.certify import Receipt, make_certificate
from fedpca.privacy.clipping import MAX_ENTRY, UNNOTICED, Clipping, Pairing
from fedpca.privacy.evaluation import Energies
from fedpca.privacy.mechanisms import Mechanism, build, mechanism_class
from fedpca.privacy.release_checks import bound_warning
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.search import Found, Search
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import Step
from fedpca.privacy.sums import StepSum, Sum
from fedpca.summaries.certificate import Evaluation, StepCost
from fedpca.summaries.missing_values import impute
from fedpca.summaries.rank import Oversample, RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.view import SummaryView

NOTHING_TO_EVALUATE_WITH = (
    "there is nothing to evaluate with: evaluate=False, or no length of rows is known to clip to."
)


class Taken(NamedTuple):
    """A step that was taken, and the sum that ended it."""

    step: Step
    pooled: StepSum


class PrivateModel:
    """The sums of a private model, one after the other.

    `next` is the next sum, whose `vector` gives the integers of rows; `add` takes the noisy total. All sums
    together cost what the settings state.

    Args:
        privacy: the settings; their ledger is not used here.
        n_features: d.
        rule: how many directions are shown; None for those that rise above the noise.
        scale: what features are divided by, public numbers; "std" to find it; None for nothing.
        oversample: directions carried beyond those.
        dtype: of the components shown.
        feature_names: one per feature, or None.

    Attributes:
        rank: how many components the sums are planned for.
        taken: the steps so far.
        found: how rows are clipped; None as long as something of it is to be found.
        reports: how many releases were made.
        view: the last release; None before.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rule: RankRule | None,
        *,
        scale: Array | str | None = None,
        oversample: Oversample = "auto",
        dtype: DTypeLike = np.float64,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        if isinstance(scale, str) and scale != "std":
            raise ValueError(
                f"scale must be None, 'std' or public numbers with privacy, got scale={scale!r}; take public "
                "frequencies for the numbers."
            )
        mechanism_class(privacy).check_features(n_features)
        self.privacy = privacy
        self.n_features = n_features
        self.feature_names = feature_names
        self.rank = min(8, n_features) if rule is None else rule.start(n_features)
        self.taken: list[Taken] = []
        self.found: Found | None = None
        self.reports = 0
        self.view: SummaryView | None = None
        self._finds_scale = isinstance(scale, str)
        self._shown = rule, oversample, dtype
        self._search = Search(privacy, n_features, self.rank, scale=scale, feature_names=feature_names)
        self._schedule = Schedule(privacy.releases)
        self._release: Sum | None = None
        self._is_evaluated = False
        self._margin = 0.0
        self._end_search()

    # --- what comes next ---

    @property
    def most_sums(self) -> int:
        """How many sums there are at most: public, and known before the first."""
        steps = Search.most_steps(self.privacy, finds_scale=self._finds_scale)
        return steps + self.privacy.releases + self.privacy.evaluate

    @property
    def most_words(self) -> int:
        """The length of the longest sum: public, and known before the first."""
        return max(
            mechanism_class(self.privacy).most_words(self.n_features, self.rank),
            Search.most_words(self.privacy, self.n_features, finds_scale=self._finds_scale),
            self.rank + 2,
        )

    @property
    def step(self) -> Step | None:
        """The step to be taken; None when scale, center and bound are found."""
        return self._search.step

    @property
    def clipping(self) -> Clipping:
        """How rows become points, as far as it is found."""
        return self._search.clipping if self.found is None else self.found.clipping

    @property
    def costs(self) -> list[StepCost]:
        """Of the steps so far that the rows at hand are in."""
        return self._search.costs

    @property
    def next(self) -> Sum | None:
        """The next sum; None when all are taken."""
        if self.step is not None:
            return replace(self._search.next(), purpose="step", number=len(self.taken))
        if self.reports < self.privacy.releases:
            assert self._release is not None
            weights = tuple(self._schedule.weights(self.reports + 1).tolist())
            return replace(self._release, number=self.reports, weights=weights)
        if self.can_evaluate and not self._is_evaluated and self.view and self.view.n_components():
            return self.evaluation_sum(self.model)
        return None

    def begin_stream(self) -> None:
        """Let the first rows of a stream pay for the steps: each of these takes its `stream_rows`."""
        self._search.begin_stream()
        self._end_search()

    @property
    def pays_once(self) -> bool:
        """Whether one debit pays for all releases: each of them has the noise of those before."""
        return not self._schedule.disjoint

    @property
    def mu_to_come(self) -> float:
        """What a release and the evaluation cost together."""
        assert self._release is not None
        return hypot(self._release.mu, self._energies.mu if self.can_evaluate else 0.0)

    # --- a total, and on ---

    def add(self, total: StepSum, *, paid: bool = True, receipt: Receipt | None = None) -> None:
        """Take the total of the next sum, and go on.

        Args:
            total: it must come from noisy sums, never from rows.
            paid: of a step, whether the rows at hand are in it; if not, its cost is left for the release.
            receipt: of a release or its evaluation, what the certificate states of the debit.
        """
        if (announced := self.next) is None:
            raise ValueError("all sums were taken already.")
        announced.check(total)
        if (step := self.step) is not None:
            self._search.add(total, paid=paid)
            self.taken.append(Taken(step, total))
            self._end_search()
        elif self.reports < self.privacy.releases:
            self._add_release(total, receipt)
        else:
            self.add_evaluation(self.evaluation(total, self.model), receipt)

    def add_pooled(self, pooled: StepSum, *, paid: bool) -> None:
        """`add` of a step's sum over owners each of which has added its noise."""
        self.next_step().check_pooled(pooled)
        self.add(pooled, paid=paid)

    def check_own(self, own: StepSum) -> None:
        """Refuse the sum of an owner that cannot be one of the next step, by its name, size or numbers."""
        self.next_step().check_own(own)

    def next_step(self) -> Sum:
        """The next step, as a sum."""
        if self.step is None or self.next is None:
            raise ValueError(
                "there is nothing to find privately: scale, center and bound are given, or found already."
            )
        return self.next

    def _end_search(self) -> None:
        """Once all is found: the release that follows.

        A private center is corrected by the sum of the rows about it, so that its noise is no component.
        """
        if self._search.found is None:
            return
        self.found = self._search.found
        self._release = self._mechanism().announced(self._begin_release)

    def _mechanism(self) -> Mechanism:
        """The mechanism of the release, without rows."""
        assert self.found is not None
        clipping = self.found.clipping
        joint = self.privacy.center == "private" and not clipping.pairs
        mu = self._search.mu_left
        return build(self.privacy, clipping, self.n_features, mu=mu, joint=joint, rank=self.rank)

    def _begin_release(self, random: np.random.Generator) -> "_ReleaseSumming":
        return _ReleaseSumming(self, self._mechanism(), random)

    def _add_release(self, total: StepSum, receipt: Receipt | None) -> None:
        assert self.found is not None
        mechanism, report = self._mechanism(), self.reports + 1
        count = total.n_rows / 2 if mechanism.clipping.pairs else total.n_rows
        noise = total.noise * self._schedule.accumulated(report) ** 2
        certificate = make_certificate(
            self.privacy,
            mechanism,
            count=count,
            noise=noise,
            report=report,
            steps=tuple(self.costs),
            center_noise=self.found.center_noise,
            receipt=receipt or Receipt(records=total.n_rows),
        )
        released = mechanism.summary_of(total.total, count=count, noise=noise, certificate=certificate)
        self._margin = mechanism.clipping.unit * mechanism.total_margin(sqrt(noise), count)
        self.view, self.reports = SummaryView(released, *self._shown), report

    # --- the release, which is public ---

    @property
    def model(self) -> Subspace:
        """The directions that are shown, with their certificate."""
        assert self.view is not None
        return self.view.summary().truncate(max(self.view.n_components(), 1))

    @property
    def left_out(self) -> AnyArray | None:
        """Which features have no scale that was found, shape (d,)."""
        found = self.found
        return None if found is None or found.clipping.scale is None else found.clipping.left_out

    def bound_warning(self) -> str:
        """A warning if the release shows that a public bound does not fit, else ""."""
        bound = self.privacy.bound
        if isinstance(bound, str) or self.view is None:
            return ""
        return bound_warning(self.view.whole, bound, self._margin)

    @UNNOTICED
    def fill_gaps(self, deviations: Array) -> Array:
        """Gaps filled by the last release; those of earlier rows stay at the center.

        So does a row without any entry: as a record that is taken out, it has to be where that is.

        One row at a time: in a product of many, how the others are rounded can depend on how many there are.
        """
        missing, clipping = np.isnan(deviations), self.clipping
        gaps = missing.any(axis=1) & ~missing.all(axis=1)
        if self.view is None or clipping.pairs or clipping.scale is not None or not gaps.any():
            return deviations
        center = 0.0 if clipping.center is None else clipping.center
        for index in np.flatnonzero(gaps):
            row = np.clip(deviations[index : index + 1] + center, -MAX_ENTRY, MAX_ENTRY)  # no overflow
            deviations[index] = impute(row, self.view.summary())[0] - center
        return deviations

    # --- how good components are ---

    @property
    def can_evaluate(self) -> bool:
        """Whether components can be evaluated: a length of rows is known, and a budget was kept."""
        return self.found is not None and self.found.radius > 0 and self.privacy.evaluate

    @property
    def _energies(self) -> Energies:
        if self.found is None or not self.can_evaluate:
            raise ValueError(NOTHING_TO_EVALUATE_WITH)
        return Energies(self.privacy, self.found)

    def evaluation_sum(self, model: Subspace) -> Sum:
        """The sum that evaluates a model made of releases: this one, or one of many owners."""
        return self._energies.sum(model)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How good a model is, by the sum over all owners' rows."""
        return self._energies.result(pooled, model)

    def add_evaluation(self, found: Evaluation, receipt: Receipt | None = None) -> None:
        """Let the last release state how good its components are, and what that cost."""
        assert self.view is not None
        certificate = self.view.whole.certificate
        assert certificate is not None
        if receipt is not None and receipt.ledger is not None:
            certificate = certificate.with_ledgers([receipt.ledger])
        self.view, self._is_evaluated = self.view.evaluated(certificate.evaluated(found)), True


def check_one_release(privacy: object, of: str) -> None:
    """Refuse what is not one release, with noise from random keys."""
    if not isinstance(privacy, Privacy):
        raise TypeError(f"privacy must be a fedpca.Privacy, got {type(privacy).__name__}.")
    if privacy.releases != 1:
        raise ValueError(f"{of} make one release, got releases={privacy.releases}; leave it out.")
    if privacy.insecure_seed_for_tests is not None:
        raise ValueError(f"{of} draw noise from random keys; leave out insecure_seed_for_tests.")


class _ReleaseSumming:
    """The sum of a release in the making, over all rows of a stream."""

    def __init__(self, model: PrivateModel, mechanism: Mechanism, random: np.random.Generator) -> None:
        self._model = model
        self._mechanism = mechanism
        self._pairing = Pairing(random)

    def take(self, rows: Array) -> None:
        clipping = self._mechanism.clipping
        deviations = self._model.fill_gaps(clipping.deviations(rows))
        for part in self._pairing.take(deviations) if clipping.pairs else (deviations,):
            self._mechanism.take(clipping.points(part))

    def total(self) -> Array:
        if self._pairing.n_waiting:
            self._mechanism.take(self._mechanism.clipping.points(self._pairing.flush()))
        return self._mechanism.statistic()
