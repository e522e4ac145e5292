"""PrivateTracker: the trust boundary. Rows go in, certified releases come out, nothing else does."""

import hashlib
import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import numpy as np

from fedpca._typing import JSON, AnyArray, Array, DTypeLike
from fedpca.backend import HOST
from fedpca.errors import BudgetExceeded, NotReleasedError
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.certify import state_of
from fedpca.privacy.clipping import MAX_ENTRY, MAX_ROWS, UNNOTICED, Clipping
from fedpca.privacy.evaluation import PrivateEvaluation
from fedpca.privacy.guard import Guard
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.mechanisms.registry import build, mechanism_class
from fedpca.privacy.noise import BoundNoise, ExactNoise, Noise
from fedpca.privacy.preparation import Preparation
from fedpca.privacy.release_checks import bound_warning
from fedpca.privacy.rules import check_delta_for_rows, warn_of_weak_settings
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import StepSum
from fedpca.privacy.sums import PrivateSums
from fedpca.summaries.certificate import Evaluation, StepCost
from fedpca.summaries.missing_values import impute
from fedpca.summaries.rank import Oversample, RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView


@dataclass(frozen=True)
class _Preparing:
    """The first stage, where something has to be found privately: no row counts yet.

    Attributes:
        noise, evaluation_noise: of the releases and the evaluation to come.
    """

    preparation: Preparation
    noise: Noise
    evaluation_noise: Noise


@dataclass(frozen=True)
class _Closed:
    """The last stage: the key and the sums are gone, and only what was released is left.

    Attributes:
        reason: why no more rows are taken.
    """

    reason: str


class PrivateTracker:
    """Clips rows, adds them up, and reveals nothing until `release`.

    Rows are clipped about a center and added to a mechanism's sums, which never leave. A release is debited
    in the ledger, noised and certified, and is from then on all that can be read. A copy, or a pickle, holds
    what was released and nothing else.

    It goes through three stages, each with an object that holds what that stage must keep secret:
    `_Preparing`, where the scale, the center or the bound is to be found; `PrivateSums`, rows in and
    releases out; and `_Closed`, after the last planned release and in every copy.

    Args:
        n_features: d.
        rule: how many directions are shown; None for those that rise above the noise.
        privacy: the settings.
        scale: what features are divided by, public numbers; "std" to find it; None for nothing.
        oversample: directions carried beyond those.
        dtype: of the components shown.
        feature_names: one per feature, or None.
        key: 32 secret bytes that all noise and pairs follow from; None for random ones. With the key of an
            earlier tracker this one draws the same noise again: give it the same rows and sums, or the
            difference of what comes out reveals them.
        bound_to: called when the first noise of a purpose is drawn; the noise follows from what it returns,
            too. A digest of the rows, which are summed by then, gives other rows independent noise. None:
            noise follows from the key alone.

    Attributes:
        ledger: what pays for the releases; None in a copy.
    """

    backend = HOST  # rows come to where their noise is drawn

    def __init__(
        self,
        n_features: int,
        rule: RankRule | None,
        privacy: Privacy,
        *,
        scale: Array | Literal["std"] | None = None,
        oversample: Oversample = "auto",
        dtype: DTypeLike = np.float64,
        feature_names: tuple[str, ...] | None = None,
        key: bytes | None = None,
        bound_to: Callable[[], bytes] | None = None,
    ) -> None:
        self.n_features = n_features
        self.rule = rule
        self.privacy = privacy
        self.oversample = oversample
        self.dtype = np.dtype(dtype)
        self.feature_names = feature_names
        self._guard = Guard()
        self._n_rows = 0  # records so far, those of the center included
        self._n_rows_released = 0  # of which the last release knew
        self._released: SummaryView | None = None
        self._settings_checked = False
        ledger = privacy.open_ledger()
        self.ledger: Ledger | None = ledger
        mechanism_class(privacy).check_features(n_features)  # before anything is spent
        if key is None:
            key = _new_key(privacy)
        elif len(key) != 32:
            raise ValueError(f"key must have 32 bytes, got {len(key)}.")
        self._random = np.random.default_rng(list(hashlib.blake2b(b"pairs", key=key).digest()))
        self._evaluation: PrivateEvaluation | None = None
        self._clipping: Clipping | None = None
        preparation = Preparation(
            privacy,
            n_features,
            self._rank,
            scale=scale,
            noise=_noise(key, "steps", bound_to),
            random=self._random,
            ledger=ledger,
            feature_names=feature_names,
        )
        self._stage: _Preparing | PrivateSums | _Closed = _Preparing(
            preparation,
            _noise(key, "rows", bound_to),
            _noise(key, "evaluation", bound_to),
        )
        self._open_if_found()

    @property
    def _rank(self) -> int:
        """How many directions are wanted."""
        return min(8, self.n_features) if self.rule is None else self.rule.start(self.n_features)

    def _open_if_found(self) -> None:
        """Go on to the stage that takes rows, once everything is found that it needs.

        A private center is corrected by the sum of the rows about it, so that its noise is no component.
        """
        assert isinstance(self._stage, _Preparing)
        assert self.ledger is not None
        preparation, noise = self._stage.preparation, self._stage.noise
        if preparation.found is None:
            return
        clipping = preparation.found.clipping
        self._clipping = clipping
        if self.privacy.evaluation_share and preparation.found.radius:
            self._evaluation = PrivateEvaluation(
                self.privacy, preparation.found, self._stage.evaluation_noise, self._random, self.ledger
            )
        mechanism = build(
            self.privacy,
            clipping,
            self.n_features,
            mu=preparation.mu_left,
            joint=self.privacy.center == "private" and not clipping.pairs,
            rank=self._rank,
        )
        self._stage = PrivateSums(
            self.privacy,
            self.ledger,
            mechanism,
            noise,
            random=self._random,
            start=self._n_rows,
            stream=secrets.token_hex(8),
            steps=tuple(StepCost(*cost) for cost in preparation.costs),
            reserved=0.0 if self._evaluation is None else self._evaluation.mu,
            center_noise=preparation.found.center_noise,
        )

    def random_order(self, n_rows: int) -> AnyArray:
        """An order of rows: where pairs of them are taken, they should not be neighbors."""
        return self._random.permutation(n_rows)

    # --- private steps over rows that are all at hand, in rounds ---

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to be found before rows are taken."""
        return not isinstance(self._stage, _Preparing)

    def found_settings(self) -> Privacy | None:
        """The settings with what was found filled in, as public numbers, for owners who come later.

        None as long as something is to be found.
        """
        clipping = self._clipping
        if clipping is None:
            return None
        settings = replace(self.privacy, bound=clipping.bound or "sphere", ledger=None)
        if clipping.pairs:
            return replace(settings, center="pairs")
        return replace(settings, center=clipping.center_of_rows)

    @property
    def clipping(self) -> Clipping | None:
        """How rows become points of the unit ball; None as long as something of it is to be found."""
        return self._clipping

    def step_sum(self, parts: Iterable[Array], n_rows: int) -> StepSum:
        """One round: the noisy sum of the next step over all rows, given in parts.

        `advance` has to follow, with the sum over one or many owners; when `is_prepared`, `update` takes the
        rows.
        """
        with self._guard.exclusive():
            self._check_open(n_rows)
            preparation = self._preparation()
            self._check_settings(n_rows)
            preparation.check_round()
            with self._guard.whole("a round of private steps"):
                return preparation.sum_rows(parts, n_rows)

    def advance(self, pooled: StepSum) -> None:
        """End a round with the sum over all owners' rows."""
        with self._guard.exclusive():
            self._guard.check_intact()
            preparation = self._preparation()
            preparation.check_advance(pooled)
            with self._guard.whole("a round of private steps"):
                preparation.advance(pooled)
                self._open_if_found()

    def replay(self, pooled: StepSum, *, paid: bool) -> None:
        """End a round in which no rows are summed here, with the sum over the owners that took part in it.

        Args:
            pooled: it must come from noisy sums, never from rows.
            paid: whether these rows took part, in an earlier tracker, and so have paid for the round. If not,
                what it costs is left for the release.
        """
        with self._guard.exclusive():
            self._guard.check_intact()
            preparation = self._preparation()
            preparation.check_replay(pooled)
            with self._guard.whole("a round of private steps"):
                preparation.replay(pooled, paid=paid)
                self._open_if_found()

    def check_sum(self, own: StepSum) -> None:
        """Refuse the sum of an owner that cannot be one of the next step, by its name, size or numbers."""
        self._preparation().check_sum(own)

    def _preparation(self) -> Preparation:
        if not isinstance(self._stage, _Preparing):
            raise ValueError(
                "there is nothing to find privately: scale, center and bound are given, or found already."
            )
        return self._stage.preparation

    # --- how good the released components are ---

    @property
    def can_evaluate(self) -> bool:
        """Whether what is released can be evaluated: a length of rows is known, and a budget was kept."""
        return self._evaluation is not None

    def evaluation_sum(self, parts: Iterable[Array], n_rows: int, model: Subspace) -> StepSum:
        """The noisy energies of all rows along the directions of a model made of releases."""
        with self._guard.exclusive():
            self._guard.check_intact()
            private = self._private_evaluation()
            private.check()
            with self._guard.whole("an evaluation"):
                return private.sum_rows(parts, n_rows, model)

    def check_evaluation_sum(self, own: StepSum, model: Subspace) -> None:
        """Refuse the sum of an owner that cannot be one of this evaluation, by its name, size or numbers."""
        self._private_evaluation().check_sum(own, model)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How good a model is, by the sum over all owners' rows."""
        return self._private_evaluation().result(pooled, model)

    def add_evaluation(self, found: Evaluation) -> None:
        """Let the last release state how good its components are, and what that cost."""
        view = self._view()
        certificate = view.whole.certificate
        assert certificate is not None
        assert self.ledger is not None
        certificate = certificate.with_ledgers([state_of(self.ledger)])
        self._released = view.evaluated(certificate.evaluated(found))

    def _private_evaluation(self) -> PrivateEvaluation:
        if self._evaluation is None:
            raise ValueError(
                "there is nothing to evaluate with: evaluate=False, or no length of rows is known to clip to."
            )
        return self._evaluation

    # --- rows in ---

    def update(self, parts: Iterable[Array], n_rows: int, *, n_rows_before: int | None = None) -> None:
        """Take a batch of `n_rows` rows in parts: dense, shape (n, d), NaN or infinity for missing.

        Args:
            n_rows_before: rows that the caller knows were taken before; another number means that a batch
                was taken and the caller interrupted before it knew.
        """
        with self._guard.exclusive():
            self._check_open(n_rows)
            if n_rows_before not in (None, self._n_rows):
                raise RuntimeError(
                    "an earlier batch was interrupted after its rows were taken; fit anew, so that none "
                    "counts twice."
                )
            if isinstance(self._stage, _Preparing):
                self._stage.preparation.check_stream()
            with self._guard.whole("an earlier batch"):
                for rows in parts:
                    self._take(rows)

    def _check_open(self, n_rows: int) -> None:
        """Whether so many more rows may come."""
        self._guard.check_intact()
        if isinstance(self._stage, _Closed):
            raise BudgetExceeded(self._stage.reason)
        if self._n_rows + n_rows > MAX_ROWS:
            raise ValueError(f"a private client takes at most {MAX_ROWS} rows; use several and merge.")

    def _take(self, rows: Array) -> None:
        if isinstance(self._stage, _Preparing):
            preparation = self._stage.preparation
            rows = preparation.take_stream(rows)
            self._n_rows = preparation.n_rows
            self._open_if_found()
        if isinstance(self._stage, PrivateSums):
            self._n_rows += len(rows)
            deviations = self._stage.clipping.deviations(rows)
            self._stage.take(self._fill_gaps(deviations, self._stage.clipping))

    @UNNOTICED
    def _fill_gaps(self, deviations: Array, clipping: Clipping) -> Array:
        """Gaps filled by the last release, which is public; those of earlier rows stay at the center.

        So does a row without any entry: as a record that is taken out, it has to be where that is.

        One row at a time: in a product of many, how the others are rounded can depend on how many there are.
        """
        missing = np.isnan(deviations)
        gaps = missing.any(axis=1) & ~missing.all(axis=1)
        if self._released is None or clipping.pairs or clipping.scale is not None or not gaps.any():
            return deviations
        center = 0.0 if clipping.center is None else clipping.center
        for index in np.flatnonzero(gaps):
            row = np.clip(deviations[index : index + 1] + center, -MAX_ENTRY, MAX_ENTRY)  # no overflow
            deviations[index] = impute(row, self.summary())[0] - center
        return deviations

    # --- releases out ---

    def release(self) -> Summary:
        """Noise, certify and return the summary of all rows so far; the same again until more rows come."""
        if isinstance(self._stage, _Closed):
            return self.state()
        with self._guard.exclusive():
            if isinstance(self._stage, _Closed):  # by another thread, in the meantime
                return self.state()
            self._guard.check_intact()
            if self._released is not None and self._n_rows_released == self._n_rows:
                return self.state()
            return self._release()

    def _release(self) -> Summary:
        stage = self._stage
        if not self._n_rows:
            raise ValueError("there is nothing to release: no rows were taken.")
        if isinstance(stage, PrivateSums) and stage.is_empty and stage.clipping.pairs:
            raise ValueError(
                "differences of pairs of rows need two rows or more; bring more, or give a public center."
            )
        if not isinstance(stage, PrivateSums) or stage.is_empty:
            paid = self.ledger is not None and self.ledger.mu > 0
            raise ValueError(
                "what is not public about the rows, scale, center and bound, is found from the first rows of "
                f"a stream, and {self._n_rows} were not enough; "
                + (
                    "what was found so far is paid for and kept: bring more."
                    if paid
                    else "bring more, give public numbers, or use fit, which reads the rows several times."
                )
            )
        self._check_settings(self._n_rows)
        entry = stage.debit(self._n_rows)
        with self._guard.whole("an earlier release"):  # from the first draw of its noise on
            released = stage.release(entry, self._n_rows)
            self._released = SummaryView(released, self.rule, self.oversample, self.dtype)
            self._n_rows_released = self._n_rows
            if stage.finished:
                self._stage = _Closed(
                    f"this was planned for releases={self.privacy.releases}, and all were made: more rows "
                    "could never leave. Plan more releases, Privacy(releases=...), or fit anew."
                )
        try:
            stage.complete(entry)
        except OSError as error:  # the debit counts all the same
            warnings.warn(f"the ledger could not note that the release came out: {error}", stacklevel=4)
        self._warn_of_bad_fit(stage, released)
        return released

    def _warn_of_bad_fit(self, stage: PrivateSums, released: Summary) -> None:
        """Warn if the release shows that a public bound does not fit: that reveals no more."""
        bound = self.privacy.bound
        if not isinstance(bound, str) and (text := bound_warning(released, bound, stage.total_margin)):
            warnings.warn(text, stacklevel=5)

    def _check_settings(self, n_rows: int) -> None:
        """Refuse a delta of one over the number of rows; warn once of what weakens the guarantee."""
        check_delta_for_rows(self.privacy.delta, n_rows)
        if self._settings_checked:
            return
        self._settings_checked = True
        warn_of_refit(self.privacy, stacklevel=5)
        warn_of_weak_settings(self.privacy.epsilon, self.privacy.delta, n_rows, stacklevel=5)

    # --- what was released ---

    @property
    def is_fitted(self) -> bool:
        """Whether anything was released."""
        return self._released is not None

    def state(self) -> Summary:
        """The last release."""
        return self._view().whole

    def summary(self) -> Subspace:
        """The leading directions of the last release."""
        return self._view().summary()

    def n_components(self) -> int:
        """How many directions of the summary are the answer."""
        return self._view().n_components()

    def shortfall(self) -> str:
        """What is missing of the components asked for because it does not rise above noise, or ""."""
        return self._view().shortfall()

    def _view(self) -> SummaryView:
        if self._released is None:
            raise NotReleasedError("nothing was released yet: call release() first.")
        return self._released

    @property
    def left_out(self) -> AnyArray | None:
        """Which features have no scale that was found, shape (d,)."""
        return None if self._clipping is None or self._clipping.scale is None else self._clipping.left_out

    def feature_variances(self) -> None:
        """Not estimated from a release."""

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return self._view().mean_dominates(mean, spread)

    def __getstate__(self) -> JSON:
        if self._released is None:
            raise TypeError(
                "rows not released yet cannot be copied or pickled: they would leave without noise. "
                "Call release() first."
            )
        copied = _Closed(
            "this is a copy of what was released, and cannot release more: go on with the original."
        )
        kept = ("n_features", "rule", "privacy", "oversample", "dtype", "feature_names")
        return {name: getattr(self, name) for name in kept} | {
            "ledger": None,
            "_n_rows": self._n_rows_released,
            "_n_rows_released": self._n_rows_released,
            "_released": self._released,
            "_settings_checked": self._settings_checked,
            "_evaluation": None,
            "_clipping": self._clipping,
            "_stage": self._stage if isinstance(self._stage, _Closed) else copied,
        }

    def __setstate__(self, state: JSON) -> None:
        vars(self).update(state, _guard=Guard())


def warn_of_refit(privacy: Privacy, *, stacklevel: int) -> None:
    """Count a fit; warn if settings without a ledger were fitted before in this process."""
    if privacy.ledger is None and (fits := privacy.count_fit()) > 1:
        epsilon = epsilon_of(privacy.mu * sqrt(fits), privacy.delta)
        warnings.warn(
            f"this is fit number {fits} with the same settings, and no ledger adds them up. If the rows are "
            f"the same, a record has paid epsilon={epsilon:.3g} by now, not {privacy.epsilon:g}: name a "
            "file, ledger=.... For the rows of other people make another PrivatePCA, or another Privacy.",
            stacklevel=stacklevel + 1,
        )


def _new_key(privacy: Privacy) -> bytes:
    if privacy.insecure_seed_for_tests is None:
        return secrets.token_bytes(32)
    return hashlib.blake2b(str(privacy.insecure_seed_for_tests).encode(), digest_size=32).digest()


def _noise(key: bytes, purpose: str, bound_to: Callable[[], bytes] | None) -> Noise:
    own = hashlib.blake2b(purpose.encode(), key=key, digest_size=32).digest()
    return ExactNoise(own) if bound_to is None else BoundNoise(own, bound_to)
