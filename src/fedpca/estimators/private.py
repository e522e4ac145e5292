"""PrivatePCA: the scikit-learn face of a private model."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from os import PathLike
from typing import Literal, NoReturn, Self

from sklearn.exceptions import NotFittedError

from fedpca._typing import JSON, Array, DeviceArray, RowsLike
from fedpca.backend import backend_of, batch_slices, dense, ops, to_host
from fedpca.disclosure.policy import Policy
from fedpca.estimators.base import BasePCA, chunk_rows
from fedpca.estimators.one_row import OneRowMixin
from fedpca.estimators.settings import check_unchanged, rank_rule
from fedpca.privacy import Ledger, Privacy, PrivateTracker, StepSum
from fedpca.privacy.calibration import Adjacency
from fedpca.privacy.mechanisms import MechanismName
from fedpca.summaries import validation
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.rank import Oversample
from fedpca.summaries.scale_advice import dominant_feature, no_scale
from fedpca.summaries.scaling import ScaleLike, check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


class PrivatePCA(OneRowMixin, BasePCA):
    """Principal components that are differentially private: nothing else of the rows leaves.

    `fit` finds what it must know about the rows, their scale, center and length, learns the components and
    measures how good they are, all by noisy sums that are paid for within `epsilon` and `delta`.
    `partial_fit` takes rows as they come, and `release` lets a summary of them out; the first rows of a
    stream pay for what has to be found. Releases of several owners merge:
    `fedpca.merge([a.release(), b.release()])`.

    All settings are public, and must be chosen without looking at the rows. All but `whiten` are read at the
    first batch: `partial_fit` rejects a later change. Missing and infinite entries are filled from the center
    or the last release.

    Args:
        n_components: how many components to show, of those that rise above the noise: a whole number, a share
            of the variance in (0, 1), or None for all of these, which may be none.
        epsilon, delta: the guarantee, for all releases together. delta must be below one over the number of
            rows.
        bound: the length, about `center`, that rows are clipped to. "private": found with a part of the
            budget, or none at all where scaling every row to length one ("sphere") loses less; or a public
            number, which scales the noise: a typical length of a row rather than the largest. Clipping cannot
            be switched off.
        center: what is subtracted from rows before they are clipped. "private": the mean, found with a part
            of the budget, or differences of random pairs of rows ("pairs") where that would be too noisy;
            a vector of public numbers; or None for nothing.
        scale: what every feature is divided by: "std", its standard deviation, found with a part of the
            budget; one positive public number per feature; or None.
        whiten: scale the scores to unit variance.
        adjacency: what one row more or less means. "replace-one": any row replaced by any other;
            "zero-out": any row taken out, as if it lay at the center, with 0.7 times the noise. The number
            of rows is public in both.
        mechanism: "gram", one noisy d x d sum, for up to 4096 features; "sketch", a noisy d x k sum, for
            more.
        evaluate: keep 5 % of the budget to measure how much variance the released components explain.
        releases: how many times, at most, a growing stream will be released. `epsilon` covers all of them.
        ledger: a `Ledger`, or the path of its file, in which what was spent outlives the process. A new file
            gets (epsilon, delta) as its total budget. None: in memory, one account for every fit; a second
            fit of the same estimator, or of a clone, warns.
        oversample: directions carried beyond n_components in `subspace_`; "auto" for about as many again.
        insecure_seed_for_tests: makes the noise repeatable, and therefore worthless: the certificate says so.

    Attributes:
        components_: shape (`n_components_`, n_features), by falling variance, the largest entry positive.
        explained_variance_, explained_variance_ratio_, singular_values_: shape (`n_components_`,).
        mean_: shape (n_features,), in the units of the rows.
        scale_: what rows are divided by, shape (n_features,), 1 for features of which no scale was found; or
            None. `components_` and the variances along them are those of the divided rows.
        noise_variance_: mean variance of the discarded directions.
        n_components_: how many components rise above the noise, at most n_components.
        n_samples_seen_: rows seen.
        subspace_: the `Subspace` to save: all directions carried, with their certificate.
        summary_: what was released last: `Moments`, or a `Subspace` of the mechanism "sketch".
        ledger_: the `Ledger` that pays for releases; None in a copy, which cannot release.
        privacy_: these settings as a `Privacy`, with the bound and the center that were found.

    They exist once something was released, `ledger_` and `privacy_` before.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(9000, 5)) * [3.0, 2.0, 0.5, 0.5, 0.5] + 10
    >>> pca = PrivatePCA(2, epsilon=1.0, delta=1e-5).fit(rows)
    >>> pca.subspace_.certificate.epsilon, pca.ledger_.left() < 1e-6
    (1.0, True)
    """

    _private = True  # no row decides on the features

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        epsilon: float,
        delta: float,
        bound: float | Literal["private", "sphere"] = "private",
        center: Literal["private", "pairs"] | Sequence[float] | Array | None = "private",
        scale: ScaleLike = None,
        whiten: bool = False,
        adjacency: Adjacency = "replace-one",
        mechanism: MechanismName = "gram",
        evaluate: bool = True,
        releases: int = 1,
        ledger: Ledger | str | PathLike[str] | None = None,
        oversample: Oversample = "auto",
        insecure_seed_for_tests: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.bound = bound
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.adjacency = adjacency
        self.mechanism = mechanism
        self.evaluate = evaluate
        self.releases = releases
        self.ledger = ledger
        self.oversample = oversample
        self.insecure_seed_for_tests = insecure_seed_for_tests

    _source: PrivateTracker
    _settings: JSON  # those that the stream began with
    _account: Privacy | None = None  # the settings, which count how often they were fitted

    def save(self, path: object) -> NoReturn:
        """Refused: a live stream has sums without noise."""
        raise TypeError(
            "a private stream is not saved: it has sums without noise, which must not reach a disk; save "
            "subspace_, the model that was released."
        )

    # --- all rows at once ---

    def fit(self, X: RowsLike, y: object = None) -> Self:
        """Fit X, shape (n_samples, n_features), and release; any earlier fit is discarded."""
        privacy = self._privacy()
        with self._rollback_on_error():
            X = self._begin(X, privacy)
            _fit_and_release(self._source, partial(_shuffled_parts, X, self._source), X.shape[0])
            self._n_rows_seen = X.shape[0]
        self._warn_of_shortfall()
        return self

    def fit_batches(self, read: Callable[[], Iterable[RowsLike]], n_rows: int) -> Self:
        """Fit batches of rows that can be read again and again, and release; any earlier fit is discarded.

        Args:
            read: called once per pass, for all batches.
            n_rows: how many rows there are, in every pass.
        """
        privacy = self._privacy()
        with self._rollback_on_error():
            first = next(iter(read()), None)
            if first is None:
                raise ValueError("there are no rows to fit.")
            self._begin(first, privacy)

            def parts() -> Iterator[Array]:
                for batch in read():
                    yield from _dense_parts(self._validated(batch, reset=False))

            _fit_and_release(self._source, parts, n_rows)
            self._n_rows_seen = n_rows
        self._warn_of_shortfall()
        return self

    # --- rows as they come ---

    def partial_fit(self, X: RowsLike, y: object = None) -> Self:
        """Learn one more batch, shape (n_samples, n_features), of any size from one row up."""
        privacy = self._privacy()
        with self._rollback_on_error():
            X = self._continued(X, privacy)
            self._source.update(_dense_parts(X), X.shape[0], n_rows_before=self._n_rows_seen)
            self._n_rows_seen += X.shape[0]
            return self  # within: interrupted here, it would not know that the rows were taken

    def release(self, *, policy: Policy | None = None) -> Summary:
        """Let the private summary of all rows so far out: noised, certified, paid for in the ledger.

        Until more rows come, the same again, at no cost. Afterwards the fitted attributes exist.

        Args:
            policy: what may leave, checked before noise is drawn and paid for; None checks nothing. `fit`
                releases, too: call `policy.check_private` before it.

        Returns:
            Noisy `Moments`, cumulative over releases; a `Subspace` from mechanisms that keep no d x d sum.

        Raises:
            PolicyViolation: by the rule that does not hold.

        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(9000, 5)) * [3.0, 2.0, 0.5, 0.5, 0.5]
        >>> pca = PrivatePCA(2, epsilon=1.0, delta=1e-5, bound=4.0).partial_fit(rows)
        >>> pca.release().certificate.epsilon
        1.0
        """
        if policy is not None and self._has_source():
            policy.check_private(self._n_rows_seen, self._source.privacy)
        before = self._source.state() if self.__sklearn_is_fitted__() else None
        released = self._release_for_merging()
        if self._source.state() is not before:
            self._warn_of_shortfall()
        return released

    def _release_for_merging(self) -> Summary:
        """`release`, without a word about components that noise hides: merged with others they may rise."""
        if not self._has_source():
            raise NotFittedError("there is nothing to release: call partial_fit first.")
        return self._source.release()

    # --- steps that several owners take together ---

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to be found privately before rows are learned; see `step_sum`."""
        return self._has_source() and self._source.is_prepared

    def step_sum(self, X: RowsLike) -> StepSum:
        """One round of the private steps that several owners share: the noisy sum over all rows of this one.

        Scale, center and bound, where they are not stated, are found in a few rounds, before any rows are
        learned. A sum may be sent to anybody. The owners' sums, added up by `StepSum.pooled`, end a round
        with `advance`. When `is_prepared`, `partial_fit` takes the same rows, and `release` follows. `fit`
        does all this for one owner, and `FederatedPCA` for many. An owner who comes later takes the bound and
        center of `privacy_`, with `scale="std"` also `summary_.scale`, and spends everything on the release.

        Args:
            X: all rows, shape (n_samples, n_features).

        >>> import fedpca, numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(2000, 3)) * [3.0, 1.0, 1.0] + [20.0, 10.0, 0.0]
        >>> owners = {PrivatePCA(1, epsilon=4.0, delta=1e-5): part for part in (rows[:1200], rows[1200:])}
        >>> while not all(owner.is_prepared for owner in owners):
        ...     pooled = StepSum.pooled([owner.step_sum(part) for owner, part in owners.items()])
        ...     for owner in owners:
        ...         owner.advance(pooled)
        >>> releases = [owner.partial_fit(part).release() for owner, part in owners.items()]
        >>> fedpca.merge(releases, rank=1).count
        2000.0
        """
        privacy = self._privacy()
        with self._rollback_on_error():
            X = self._continued(X, privacy)
            return self._source.step_sum(_shuffled_parts(X, self._source), X.shape[0])

    def advance(self, pooled: StepSum) -> None:
        """End a round of `step_sum`.

        Args:
            pooled: the owners' sums, added up. It must come from such noisy sums, never from rows.
        """
        self._begun("advance").advance(pooled)

    @property
    def can_evaluate(self) -> bool:
        """Whether `evaluation_sum` is possible: a budget was kept for it, and a length of rows is known."""
        return self._has_source() and self._source.can_evaluate

    def evaluation_sum(self, X: RowsLike, model: Subspace) -> StepSum:
        """The noisy sum from which `evaluation` measures how good a model of several owners' releases is.

        Args:
            X: all rows of this owner, shape (n_samples, n_features).
            model: of the releases, merged.
        """
        source = self._begun("evaluation_sum")
        X = self._continued(X, source.privacy)
        return source.evaluation_sum(_shuffled_parts(X, source), X.shape[0], model)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How much of all owners' variance a model explains, by their sums, added up."""
        return self._begun("evaluation").evaluation(pooled, model)

    def _begun(self, method: str) -> PrivateTracker:
        if not self._has_source():
            raise ValueError(f"{method} needs step_sum before it.")
        return self._source

    # --- what was released, spent and found ---

    def __sklearn_is_fitted__(self) -> bool:
        return self._has_source() and self._source.is_fitted

    def _require_fitted(self) -> None:
        if self._has_source() and not self._source.is_fitted:
            raise NotFittedError("this PrivatePCA has released nothing yet: call release() first.")
        super()._require_fitted()

    @property
    def summary_(self) -> Summary:
        """What was released last, to send or merge."""
        self._require_fitted()
        return self._source.state()

    @property
    def ledger_(self) -> Ledger | None:
        """The ledger that pays for releases; None in a copy, which cannot release."""
        if not self._has_source():
            raise AttributeError("ledger_ is opened by fit or partial_fit: call one of them first.")
        return self._source.ledger

    @property
    def privacy_(self) -> Privacy:
        """The settings with the bound and the center that were found, for owners who come later: they need
        not spend anything on them.
        """
        found = self._source.found_settings() if self._has_source() else None
        if found is None:
            raise AttributeError("privacy_ is what private steps found: finish them, or fit, first.")
        return found

    def _warn_of_shortfall(self) -> None:
        """Warn of what a release does not show: components, or the scale of features."""
        source = self._source
        texts = [source.shortfall(), no_scale(source.left_out, self._names())]
        if self.scale is None and source.view().n_components:
            texts.append(dominant_feature(self._summary(), None, self._names()))
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)

    # --- settings and rows ---

    def _privacy(self) -> Privacy:
        """The settings as one value: the same one, which counts its fits, until a setting changes."""
        privacy = Privacy(**{field.name: getattr(self, field.name) for field in fields(Privacy)})
        if privacy != self._account:
            self._account = privacy
        return self._account

    def __sklearn_clone__(self) -> Self:
        made: Self = super().__sklearn_clone__()
        with suppress(ValueError, TypeError):  # of settings that fit will refuse
            made._account = self._privacy()  # a fit of a clone is a fit of these settings, too
        return made

    def _begin(self, X: RowsLike, privacy: Privacy) -> DeviceArray:
        """The rows of a new stream, and its tracker in `_source`."""
        if self.oversample != "auto":
            validation.integer(self.oversample, "oversample", at_least=0)
        self._settings = self._stream_settings()
        X = self._validated(X, reset=True)
        scale = check_scale(self.scale, X.shape[1], self._names())
        self._source = PrivateTracker(
            X.shape[1],
            rank_rule(self.n_components, None, X.shape[1]),
            privacy,
            scale=scale,
            oversample=self.oversample,
            dtype=ops.working_dtype(backend_of(X).numpy_dtype(X)),
            feature_names=self._names(),
        )
        self._n_rows_seen = 0
        return _on_host(X)

    def _continued(self, X: RowsLike, privacy: Privacy) -> DeviceArray:
        """More rows of a stream, or its first."""
        if not self._has_source():
            return self._begin(X, privacy)
        check_unchanged(self._settings, self._stream_settings())
        return _on_host(self._validated(X, reset=False))

    def _stream_settings(self) -> JSON:
        return {name: value for name, value in self.get_params(deep=False).items() if name != "whiten"}


def _on_host(X: DeviceArray) -> DeviceArray:
    """Rows where noise is drawn. No value of a row makes a fit fail: it is clipped, or counts as missing."""
    return to_host(X) if backend_of(X).on_device else X


def _dense_parts(X: RowsLike) -> Iterator[Array]:
    for part in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
        yield dense(X[part])


def _shuffled_parts(X: RowsLike, tracker: PrivateTracker) -> Iterator[Array]:
    order = tracker.random_order(X.shape[0])
    for part in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
        yield dense(X[order[part]])


def _fit_and_release(tracker: PrivateTracker, parts: Callable[[], Iterator[Array]], n_rows: int) -> None:
    """All private steps, the release, and how good it is."""
    while not tracker.is_prepared:
        tracker.advance(tracker.step_sum(parts(), n_rows))
    tracker.update(parts(), n_rows)
    tracker.release()
    view = tracker.view()
    if tracker.can_evaluate and view.n_components:
        model = view.subspace.truncate(view.n_components)
        pooled = tracker.evaluation_sum(parts(), n_rows, model)
        tracker.add_evaluation(tracker.evaluation(pooled, model))
