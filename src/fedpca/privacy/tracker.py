"""PrivateTracker: the trust boundary of one owner. Rows go in, noisy sums come out, nothing else does."""

import hashlib
import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import sqrt

import numpy as np

from fedpca._typing import JSON, AnyArray, Array, DTypeLike
from fedpca.backend import HOST
from fedpca.errors import BudgetExceeded, NotReleasedError
from fedpca.privacy.accounting import Entry
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.certify import Receipt
from fedpca.privacy.clipping import MAX_ROWS, Clipping
from fedpca.privacy.exit import Exit, Guard
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.model import NOTHING_TO_EVALUATE_WITH, PrivateModel
from fedpca.privacy.rules import check_delta_for_rows, warn_of_weak_settings
from fedpca.privacy.settings import Privacy
from fedpca.privacy.sums import StepSum, Sum, Summing
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.rank import Oversample, RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView, View

_BATCH = "an earlier batch"
_COPY = "this is a copy of what was released, and cannot release more: go on with the original."


class PrivateTracker:
    """One owner's rows and their exit, driven by a `PrivateModel`: nothing is revealed but noisy sums.

    Rows that are all at hand take the steps in rounds, `step_sum` and `advance`; a stream pays for them with
    its first rows. Then `update` takes rows and `release` lets their sum out. A copy, or a pickle, holds what
    was released and nothing else.

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
        bound_to: see `Exit`.

    Attributes:
        ledger: what pays for the releases; None in a copy.
        model: what comes next, all of it public; None in a copy.
    """

    backend = HOST  # rows come to where their noise is drawn

    def __init__(
        self,
        n_features: int,
        rule: RankRule | None,
        privacy: Privacy,
        *,
        scale: Array | str | None = None,
        oversample: Oversample = "auto",
        dtype: DTypeLike = np.float64,
        feature_names: tuple[str, ...] | None = None,
        key: bytes | None = None,
        bound_to: Callable[[], bytes] | None = None,
    ) -> None:
        self.privacy = privacy
        self.model: PrivateModel | None = PrivateModel(
            privacy,
            n_features,
            rule,
            scale=scale,
            oversample=oversample,
            dtype=dtype,
            feature_names=feature_names,
        )
        self.dtype = np.dtype(dtype)
        key = _new_key(privacy) if key is None else key
        self.ledger: Ledger | None = privacy.open_ledger()
        self._exit = Exit(self.ledger, privacy.adjacency, key, bound_to=bound_to)
        self._guard = self._exit.guard
        self._random = np.random.default_rng(list(hashlib.blake2b(b"pairs", key=key).digest()))
        self._summing: Summing | None = None  # rows of a stream
        self._n_summed = 0  # in the step of a stream
        self._n_rows = 0  # records so far, those of the steps of a stream included
        self._n_rows_released = 0  # of which the last release knew
        self._start = 0  # the first record of the release
        self._paid: Entry | None = None  # the one debit for all releases, where there is only one
        self._is_waiting = False  # for the sum that ends a round
        self._closed = ""  # why no more rows are taken
        self._view: SummaryView | None = None
        self._clipping: Clipping | None = None
        self._stream = secrets.token_hex(8)
        self._settings_checked = False
        self._note_found()

    def _note_found(self) -> None:
        """What copies have, too."""
        model = self._open_model()
        self._view = model.view
        self._clipping = None if model.found is None else model.found.clipping

    def _open_model(self) -> PrivateModel:
        if self.model is None:
            raise BudgetExceeded(self._closed)
        return self.model

    def random_order(self, n_rows: int) -> AnyArray:
        """An order of rows: where pairs of them are taken, they should not be neighbors."""
        return self._random.permutation(n_rows)

    # --- private steps over rows that are all at hand, in rounds ---

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to be found before rows are taken."""
        return self._clipping is not None

    def found_settings(self) -> Privacy | None:
        """The settings with what was found filled in, as public numbers, for owners who come later.

        None as long as something is to be found.
        """
        clipping = self._clipping
        if clipping is None:
            return None
        settings = replace(self.privacy, bound=clipping.bound or "sphere", ledger=None)
        return replace(settings, center="pairs" if clipping.pairs else clipping.center_of_rows)

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
            announced = self._open_model().next_step()
            self._check_settings(n_rows)
            if self._summing is not None:
                raise ValueError("the first rows of a stream went into its private steps already; fit anew.")
            if self._is_waiting:
                raise ValueError("a round of private steps is not complete: call advance first.")
            self._check_affordable()
            summed = StepSum(announced.name, np.zeros(0), n_rows)  # rows are public
            if announced.blocks:
                summed = self._let_out_step(announced, announced.vector(parts, self._random), 0, n_rows)
            self._is_waiting = True
            return summed

    def advance(self, pooled: StepSum) -> None:
        """End a round with the sum over all owners' rows."""
        with self._guard.exclusive():
            self._guard.check_intact()
            announced = self._open_model().next_step()
            if not self._is_waiting:
                raise ValueError("a round of private steps ends with a sum: call step_sum first.")
            self._end_round(announced, pooled, paid=True)

    def replay(self, pooled: StepSum, *, paid: bool) -> None:
        """End a round in which no rows are summed here, with the sum over the owners that took part in it.

        Args:
            pooled: it must come from noisy sums, never from rows.
            paid: whether these rows took part, in an earlier tracker, and so have paid for the round. If not,
                what it costs is left for the release.
        """
        with self._guard.exclusive():
            self._guard.check_intact()
            announced = self._open_model().next_step()
            if self._is_waiting or self._summing is not None:
                raise ValueError("a round of private steps that began here ends here: call advance.")
            self._end_round(announced, pooled, paid=paid)

    def _end_round(self, announced: Sum, pooled: StepSum, *, paid: bool) -> None:
        announced.check_pooled(pooled)
        with self._guard.whole("a round of private steps"):
            self._is_waiting = False
            self._open_model().add(pooled, paid=paid)
            self._note_found()

    def _let_out_step(
        self, announced: Sum, exact: Array, start: int, n_rows: int, *, during: str = ""
    ) -> StepSum:
        def take(noisy: Array, _: Entry) -> StepSum:
            return announced.of(noisy, n_rows)

        return self._exit.let_out(announced, exact, (start, start + n_rows), take, during=during)

    def _check_affordable(self) -> None:
        """Before anything is spent: that the rows after the steps can be afforded as well."""
        if self.ledger is not None and not self._n_rows and not self._open_model().costs:
            self.ledger.check(0, None, self.privacy.mu, adjacency=self.privacy.adjacency)

    # --- how good components are ---

    @property
    def can_evaluate(self) -> bool:
        """Whether what is released can be evaluated: a length of rows is known, and a budget was kept."""
        return self.model is not None and self.model.can_evaluate

    def evaluation_sum(self, parts: Iterable[Array], n_rows: int, model: Subspace) -> StepSum:
        """The noisy energies of all rows along the directions of a model made of releases."""
        with self._guard.exclusive():
            self._guard.check_intact()
            if self.model is None:
                raise ValueError(NOTHING_TO_EVALUATE_WITH)
            announced = self.model.evaluation_sum(model)
            if not self._exit.is_open("evaluation"):
                raise ValueError(
                    "a private model is evaluated once, and was; fit anew, with a budget of its own."
                )

            def take(noisy: Array, _: Entry) -> StepSum:
                self._exit.forget("evaluation")
                return announced.of(noisy, n_rows)

            exact = announced.vector(parts, self._random)
            return self._exit.let_out(announced, exact, (0, n_rows), take)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How good a model is, by the sum over all owners' rows."""
        return self._open_model().evaluation(pooled, model)

    def add_evaluation(self, found: Evaluation) -> None:
        """Let the last release state how good its components are, and what that cost."""
        assert self.ledger is not None
        self._open_model().add_evaluation(found, Receipt(ledger=self.ledger.state()))
        self._note_found()

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
            if not self.is_prepared:
                if self._is_waiting or (self._open_model().taken and self._summing is None):
                    raise ValueError(
                        "the rounds of private steps are not complete; finish them, or fit anew."
                    )
                self._check_affordable()
            with self._guard.whole(_BATCH):
                for rows in parts:
                    self._take(rows)

    def _check_open(self, n_rows: int) -> None:
        """Whether so many more rows may come."""
        self._guard.check_intact()
        if self._closed:
            raise BudgetExceeded(self._closed)
        if self._n_rows + n_rows > MAX_ROWS:
            raise ValueError(f"a private client takes at most {MAX_ROWS} rows; use several and merge.")

    def _take(self, rows: Array) -> None:
        """Rows of a stream: each step takes its first ones, and the release all others."""
        model = self._open_model()
        if self._summing is None:
            if not self.is_prepared:
                model.begin_stream()
                self._note_found()
            self._begin_sum()
        while not self.is_prepared:
            announced = self._open_model().next_step()
            part, rows = np.split(rows, [announced.stream_rows - self._n_summed])
            self._sum(part)
            if self._n_summed < announced.stream_rows:
                return
            assert self._summing is not None
            exact, taken = self._summing.total(), self._n_summed
            start = self._n_rows - taken
            model.add(self._let_out_step(announced, exact, start, taken, during=_BATCH))
            self._note_found()
            self._begin_sum()
        self._sum(rows)

    def _begin_sum(self) -> None:
        announced = self._open_model().next
        assert announced is not None
        assert announced.begin is not None
        self._summing, self._n_summed, self._start = announced.begin(self._random), 0, self._n_rows

    def _sum(self, rows: Array) -> None:
        assert self._summing is not None
        self._n_rows += len(rows)
        self._n_summed += len(rows)
        self._summing.take(rows)

    # --- releases out ---

    def release(self) -> Summary:
        """Noise, certify and return the summary of all rows so far; the same again until more rows come."""
        if self._closed:
            return self.state()
        with self._guard.exclusive():
            if self._closed:  # by another thread, in the meantime
                return self.state()
            self._guard.check_intact()
            if self._view is not None and self._n_rows_released == self._n_rows:
                return self.state()
            return self._release()

    def _release(self) -> Summary:
        self._check_enough()
        self._check_settings(self._n_rows)
        model, ledger = self._open_model(), self.ledger
        announced = model.next
        assert announced is not None
        assert ledger is not None
        assert self._summing is not None
        records = self._start, None if model.pays_once else self._n_rows
        if self._paid is None:
            ledger.check(*records, model.mu_to_come, adjacency=self.privacy.adjacency)
        self._exit.let_out(announced, self._summing.total(), records, self._take_release, paid=self._paid)
        if text := model.bound_warning():
            warnings.warn(text, stacklevel=4)
        return self.state()

    def _take_release(self, noisy: Array, entry: Entry) -> None:
        model = self._open_model()
        assert self.ledger is not None
        receipt = self._exit.receipt(entry, self._n_rows, self._stream)
        announced, is_last = model.next, model.reports + 1 == self.privacy.releases
        assert announced is not None
        if is_last:  # sums of many features are large
            self._summing = None
        model.add(announced.of(noisy, self._n_summed), receipt=receipt)
        self._note_found()
        self._n_rows_released = self._n_rows
        if model.pays_once:
            self._paid = entry
        else:
            self._start = self._n_rows
        if is_last:
            self._closed = (
                f"this was planned for releases={self.privacy.releases}, and all were made: more rows could "
                "never leave. Plan more releases, Privacy(releases=...), or fit anew."
            )
            self._exit.forget("step", "release")
            if not model.can_evaluate:
                self._exit.forget("evaluation")

    def _check_enough(self) -> None:
        """Whether there is anything to release."""
        if not self._n_rows:
            raise ValueError("there is nothing to release: no rows were taken.")
        if self._clipping is not None and self._clipping.pairs and self._n_summed < 2 and not self.is_fitted:
            raise ValueError(
                "differences of pairs of rows need two rows or more; bring more, or give a public center."
            )
        if self._clipping is None or not (self._n_summed or self.is_fitted):
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
        return self._view is not None

    def state(self) -> Summary:
        """The last release."""
        return self._released.whole

    def view(self) -> View:
        """What is shown of the last release."""
        return self._released.view()

    def shortfall(self) -> str:
        """What is missing of the components asked for because it does not rise above noise, or ""."""
        return self._released.shortfall()

    @property
    def _released(self) -> SummaryView:
        if self._view is None:
            raise NotReleasedError("nothing was released yet: call release() first.")
        return self._view

    @property
    def left_out(self) -> AnyArray | None:
        """Which features have no scale that was found, shape (d,)."""
        return None if self._clipping is None or self._clipping.scale is None else self._clipping.left_out

    def __getstate__(self) -> JSON:
        if self._view is None:
            raise TypeError(
                "rows not released yet cannot be copied or pickled: they would leave without noise. "
                "Call release() first."
            )
        return {
            "privacy": self.privacy,
            "dtype": self.dtype,
            "_n_rows": self._n_rows_released,
            "_n_rows_released": self._n_rows_released,
            "_view": self._view,
            "_clipping": self._clipping,
            "_closed": self._closed or _COPY,
        }

    def __setstate__(self, state: JSON) -> None:
        vars(self).update(state, model=None, ledger=None, _guard=Guard(), _settings_checked=True)


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
