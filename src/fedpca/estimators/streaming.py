"""StreamingPCA: the scikit-learn face of the trackers."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from fedpca._typing import JSON, AnyArray, Array, ArrayLike, DeviceArray, DTypeLike, RowsLike
from fedpca.backend import HOST, Backend, backend_of, batch_slices, dense, ops, to_host
from fedpca.errors import NonFiniteError
from fedpca.estimators.base import BasePCA, chunk_rows, stored_values, warn_if_fewer
from fedpca.estimators.rank_rule import rank_rule
from fedpca.privacy import Ledger, Privacy, PrivateTracker, StepSum
from fedpca.summaries import validation
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.merging import check_compatible, known_to_any, merge_distinct
from fedpca.summaries.missing_values import impute, impute_cold_start, late_starts
from fedpca.summaries.moments import Moments
from fedpca.summaries.parts import warn_if_unknown
from fedpca.summaries.rank import EnergyBand, FixedRank, Oversample, RankRule
from fedpca.summaries.scale_advice import constant_features, dominant_feature, no_scale
from fedpca.summaries.scaling import Scale, ScaleLike, Scaling, check_scale, divided, in_words, same_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers import (
    BASELINES,
    TRACKERS,
    Exact,
    LateFeatures,
    Standardized,
    Tracker,
    TrackerName,
    fastest,
)
from fedpca.trust.policy import Policy

_BATCH_ROWS = 1024
_MAX_FEATURES_FOR_ALL = 4096

# Settings that a stream takes from its first batch on; a later change would have no effect.
_STREAM_SETTINGS = (
    "n_components", "energy", "center", "scale", "tracker", "privacy", "oversample", "batch_size",
    "random_state",
)  # fmt: skip

_Source = Tracker | LateFeatures | Standardized | PrivateTracker

_S = TypeVar("_S", Subspace, Summary)


class StreamingPCA(BasePCA):
    """Principal components of a stream of rows, in one pass and O(d r) memory, mergeable with others.

    Rows come in batches of any size, from one row up, dense or sparse (CSR, CSC), with NaN for missing
    entries; torch and CuPy arrays are processed on their own device. Fitted attributes are computed when they
    are read, so a long stream pays for them once.

    Args:
        n_components: how many components to keep: a whole number, a share of the variance in (0, 1), or
            None for all. With `privacy`, only those that rise above the noise, and None may show none. With
            `energy`, the initial rank. Fewer if the rows span fewer; `fit` warns of fewer than asked for.
            Like all settings but `forget` and `whiten` it is read at the first batch: `partial_fit` rejects a
            later change.
        energy: an `EnergyBand`, or its (low, high), to adapt the rank to the stream as the paper does.
        forget: in (0, 1]. Every batch scales the singular values of all earlier rows by it, and their count
            by its square: memory fades over about 1 / (1 - forget²) batches.
        center: subtract the running mean; False gives the paper's uncentered algebra.
        scale: what every feature is divided by: "std", its standard deviation, as `StandardScaler` does;
            "binomial", of counts of an allele, sqrt(2 p (1 - p)); one positive number per feature; or None.
            The exact tracker needs one pass for it, also in `partial_fit`. Other trackers must know it before
            they begin: `fit` reads the rows twice, and `partial_fit` takes the scale of the first batch for
            all rows; give numbers, as of `Scaling.scale`, to have that of others. With missing entries it is
            the scale of the observed ones. With `privacy`, "std" is found privately.
        whiten: scale the scores to unit variance.
        tracker: "exact" (d² memory), "nystrom" (the fast one), "block" (the paper's), or "auto": exact for
            at most max(256, 8 n_components) features, nystrom above. For comparison only:
            "frequent-directions", "robust-frequent-directions", "grouse", "power-method", "spirit".
        privacy: a `Privacy`, to make all that leaves differentially private. Fitted attributes then exist
            after `release()`, or `fit`, which releases once. Its `center` replaces this one; weights,
            forgetting and `tracker` are not supported. Infinite entries count as missing, and missing ones
            are filled from the center or the last release. None for no privacy.
        oversample: directions carried beyond n_components, which keeps truncation errors small;
            "auto" for about as many again (20 for 10, 45 for 20, 150 for 100).
        batch_size: rows per batch in `fit`; the block size of the block tracker and of the power method.
            None for 1024 and, for the block tracker, twice the directions carried, for the power method d.
        random_state: seed of the nystrom tracker's choice of probes, and of the first basis of grouse, the
            power method and spirit; None for a fixed seed.

    Attributes:
        components_: shape (`n_components_`, n_features), by falling variance, the largest entry positive.
        explained_variance_, explained_variance_ratio_, singular_values_: shape (`n_components_`,).
        mean_: shape (n_features,), in the units of the rows.
        scale_: what rows are divided by, shape (n_features,), 1 for features that do not vary; or None.
            `components_` and the variances along them are those of the divided rows; `transform` divides and
            `inverse_transform` multiplies.
        var_: variance of each feature, shape (n_features,), with divisor n; only the exact tracker knows it.
        noise_variance_: mean variance of the discarded directions.
        n_components_: at most n_components; fewer while the rows seen span fewer.
        n_samples_seen_: rows seen, merged ones included.
        subspace_: the `Subspace` to save, send or merge: all directions carried, more than `n_components_`.
        summary_: the most exact summary: `Moments` where they are known, else a `Subspace`.
        ledger_: the `Ledger` that pays for releases; None without privacy.
        privacy_: `privacy` with the bound and the center that were found.

    Missing entries (NaN) are imputed by least squares on the observed ones with the subspace so far; those of
    the first batch by probabilistic PCA of that batch. A feature without an observed value so far is unknown:
    it adds nothing to mean and scatter.

    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().data
    >>> pca = StreamingPCA(n_components=10)
    >>> for batch in np.array_split(digits, 20):
    ...     pca = pca.partial_fit(batch)
    >>> pca.transform(digits).shape
    (1797, 10)
    >>> print(f"{pca.explained_variance_ratio_.sum():.3f}")
    0.738
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        energy: EnergyBand | tuple[float, float] | None = None,
        forget: float = 1.0,
        center: bool = True,
        scale: ScaleLike = None,
        whiten: bool = False,
        tracker: TrackerName = "auto",
        privacy: Privacy | None = None,
        oversample: Oversample = "auto",
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.energy = energy
        self.forget = forget
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tracker = tracker
        self.privacy = privacy
        self.oversample = oversample
        self.batch_size = batch_size
        self.random_state = random_state

    _source: _Source
    _settings: JSON  # those that the stream began with
    _divisor: Array | None = None  # of rows on their way to the tracker
    _constant: AnyArray | None = None  # features that do not vary in the rows that the divisor comes from
    _scaling: Scaling | None = None  # of rows read beforehand, for a tracker that must know the scale

    # --- fitting ---

    def fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit X, shape (n_samples, n_features); any earlier fit is discarded."""
        with self._rollback_on_error():
            self._scaling = None
            X, weights, gaps, tracker = self._prepared(X, sample_weight, first=True)
            if weights is not None and not weights.any():
                raise ValueError("sample_weight must not be all zero: no row would count.")
            if isinstance(tracker, PrivateTracker):
                _fit_private(tracker, partial(_shuffled_parts, X, tracker), X.shape[0])
            else:
                size = self.batch_size or _BATCH_ROWS
                if tracker.backend.on_device and validation.forget(self.forget) == 1:
                    # Without forgetting, one batch gives the same result faster; scaled rows are a copy.
                    size = X.shape[0] if self.scale is None else chunk_rows(X.shape[1], tracker.backend)
                for part in batch_slices(X.shape[0], size):
                    tracker = self._update(tracker, X[part, :], _part(weights, part), gaps)
            self._source, self._n_rows_seen = tracker, X.shape[0]
            if isinstance(_plain(tracker), LateFeatures):
                warn_if_unknown(self.subspace_)
        if self.privacy is not None:
            self._warn_of_shortfall()
        else:
            self._warn_of_scale(stacklevel=3)
            if self.energy is None:
                warn_if_fewer(self.n_components, self.n_components_, stacklevel=3)
        return self

    def _warn_of_scale(self, stacklevel: int) -> None:
        """Warn of features that do not vary, if they are to be scaled, or else of one that dominates."""
        constant = self._constant
        if isinstance(self._source, Standardized):
            constant = self._source.scaling.constant
        text = constant_features(constant, self._names())
        if self.scale is None and self.center:
            subspace, variances = self._summary(), self._source.feature_variances()
            energies = None if variances is None else variances * subspace.count
            text = dominant_feature(subspace, energies, self._names())
        if text:
            warnings.warn(text, stacklevel=stacklevel)

    def partial_fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit one more batch, shape (n_samples, n_features), of any size from one row up."""
        first = not self._has_source()
        with self._rollback_on_error():
            X, weights, gaps, tracker = self._prepared(X, sample_weight, first=first)
            self._source = self._update(tracker, X, weights, gaps)
            self._n_rows_seen = X.shape[0] + (0 if first else self._n_rows_seen)
            if first and self._constant is not None and self._scaling is None:
                if self._constant.all():
                    raise ValueError(
                        f"scale={self.scale!r} is here that of the first batch, in which no feature varies; "
                        "begin with more rows, or give one number per feature."
                    )
                if text := constant_features(self._constant, self._names(), " in the first batch"):
                    warnings.warn(text, stacklevel=2)
            return self  # within: interrupted here, it would not know that the rows were taken

    def _prepared(
        self, X: RowsLike, sample_weight: ArrayLike | None, *, first: bool
    ) -> tuple[DeviceArray, Array | None, bool, _Source]:
        """Rows, weights, whether entries are missing, and the tracker for them: new for the first rows."""
        self._check_settings(first=first)
        X = self._validated(X, reset=first)
        weights = validation.sample_weight(sample_weight, X.shape[0])
        dtype = ops.working_dtype(backend_of(X).numpy_dtype(X)) if first else self._source.dtype
        backend = self._backend_for(X) if first else self._source.backend
        X, gaps = self._check_values(X, dtype, backend, weights)
        return X, weights, gaps, self._new_tracker(X, weights, dtype) if first else self._source

    def _needs_scaling(
        self, n_features: int, names: tuple[str, ...] | None = None, backend: Backend = HOST
    ) -> bool:
        """Whether a stream of so many features would take its scale from its first batch."""
        if self._has_source() or self.privacy is not None:
            return False
        scale = check_scale(self.scale, n_features, names)
        return isinstance(scale, str) and not isinstance(
            self._plain_tracker(n_features, np.float64, backend), Exact
        )

    def _use_scaling(self, scaling: Scaling) -> None:
        """Take the scale from this scaling of all rows to come, instead of the first batch."""
        scaling.scale(self.scale)  # type: ignore[arg-type]  # raises if the rule does not fit the features
        self._scaling = scaling

    def _known_spectrum(self) -> Subspace:
        source = self._fitted()
        if isinstance(source, Tracker | LateFeatures | Standardized):
            return source.state().subspace()
        return source.summary()

    def _check_settings(self, *, first: bool) -> None:
        """Note the settings that a stream begins with; reject a change in mid-stream."""
        if first:
            self._settings = {name: getattr(self, name) for name in _STREAM_SETTINGS}
            if self.privacy is not None:
                self._settings["forget"] = self.forget
            return
        now = self.__dict__  # for speed
        for name, value in self._settings.items():
            if now[name] is not value and not _is_same(value, now[name]):
                raise ValueError(
                    f"{name} must stay {value!r}, as it was when the stream began, got "
                    f"{name}={now[name]!r}; set it back, or begin again with fit."
                )

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to be found privately before rows are learned; see `step_sum`."""
        if not self._has_source():
            return False
        return not isinstance(self._source, PrivateTracker) or self._source.is_prepared

    def step_sum(self, X: RowsLike) -> StepSum:
        """One round of the private steps that several owners share: the noisy sum over all rows of this one.

        Scale, center and bound, where `Privacy` does not state them, are found in a few rounds, before any
        rows are learned. A sum may be sent to anybody. The owners' sums, added up by `StepSum.pooled`, end a
        round with `advance`. When `is_prepared`, `partial_fit` takes the same rows, and `release` follows.
        `fit` does all this for one owner, and `FederatedPCA` for many. An owner who comes later takes
        `privacy_` for its settings, and spends everything on the release.

        Args:
            X: all rows, shape (n_samples, n_features).

        >>> rows = np.random.default_rng(0).normal(size=(2000, 3)) * [3.0, 1.0, 1.0] + [20.0, 10.0, 0.0]
        >>> owners = {StreamingPCA(1, privacy=Privacy(epsilon=4.0, delta=1e-5)): part
        ...           for part in (rows[:1200], rows[1200:])}
        >>> while not all(owner.is_prepared for owner in owners):
        ...     pooled = StepSum.pooled([owner.step_sum(part) for owner, part in owners.items()])
        ...     for owner in owners:
        ...         owner.advance(pooled)
        >>> import fedpca
        >>> releases = [owner.partial_fit(part).release() for owner, part in owners.items()]
        >>> fedpca.merge(releases, rank=1).count
        2000.0
        """
        first = not self._has_source()
        with self._rollback_on_error():
            X, _, _, tracker = self._prepared(X, None, first=first)
            if not isinstance(tracker, PrivateTracker):
                raise ValueError("step_sum needs StreamingPCA(privacy=Privacy(...)).")
            summed = tracker.step_sum(_shuffled_parts(X, tracker), X.shape[0])
            if first:
                self._source, self._n_rows_seen = tracker, 0
        return summed

    def advance(self, pooled: StepSum) -> None:
        """End a round of `step_sum`.

        Args:
            pooled: the owners' sums, added up. It must come from such noisy sums, never from rows.
        """
        self._private_source("advance").advance(pooled)

    @property
    def can_evaluate(self) -> bool:
        """Whether `evaluation_sum` is possible: a budget was kept for it, and a length of rows is known."""
        source = getattr(self, "_source", None)
        return isinstance(source, PrivateTracker) and source.can_evaluate

    def evaluation_sum(self, X: RowsLike, model: Subspace) -> StepSum:
        """The noisy sum from which `evaluation` measures how good a model of several owners' releases is.

        Args:
            X: all rows of this owner, shape (n_samples, n_features).
            model: of the releases, merged.
        """
        source = self._private_source("evaluation_sum")
        X, *_ = self._prepared(X, None, first=False)
        return source.evaluation_sum(_shuffled_parts(X, source), X.shape[0], model)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How much of all owners' variance a model explains, by their sums, added up."""
        return self._private_source("evaluation").evaluation(pooled, model)

    def _private_source(self, method: str) -> PrivateTracker:
        if not self._has_source() or not isinstance(self._source, PrivateTracker):
            raise ValueError(f"{method} needs StreamingPCA(privacy=Privacy(...)), and step_sum before it.")
        return self._source

    def fit_private(self, read: Callable[[], Iterable[RowsLike]], n_rows: int) -> Self:
        """Fit batches of rows that can be read again and again; any earlier fit is discarded.

        Args:
            read: called once per pass, for all batches.
            n_rows: how many rows there are, in every pass.
        """
        with self._rollback_on_error():
            first = next(iter(read()), None)
            if first is None:
                raise ValueError("there are no rows to fit.")
            *_, tracker = self._prepared(first, None, first=True)
            if not isinstance(tracker, PrivateTracker):
                raise ValueError("fit_private needs StreamingPCA(privacy=Privacy(...)).")

            def parts() -> Iterator[Array]:
                for batch in read():
                    yield from _dense_parts(self._validated(batch, reset=False))

            _fit_private(tracker, parts, n_rows)
            self._source, self._n_rows_seen = tracker, n_rows
        self._warn_of_shortfall()
        return self

    def release(self, *, policy: Policy | None = None) -> Summary:
        """Let the private summary of all rows so far out: noised, certified, paid for in the ledger.

        Until more rows come, the same again, at no cost. Afterwards the fitted attributes exist. Owners'
        releases merge: `fedpca.merge([a.release(), b.release()], rank=10)`.

        Args:
            policy: what may leave, checked before noise is drawn and paid for; None checks nothing. `fit`
                releases, too: call `policy.check_private` before it.

        Returns:
            Noisy `Moments`, cumulative over releases; a `Subspace` from mechanisms that keep no d x d sum.

        Raises:
            PolicyViolation: by the rule that does not hold.

        >>> rows = np.random.default_rng(0).normal(size=(9000, 5)) * [3.0, 2.0, 0.5, 0.5, 0.5]
        >>> pca = StreamingPCA(2, privacy=Privacy(epsilon=1.0, delta=1e-5, bound=4.0)).partial_fit(rows)
        >>> pca.release().certificate.epsilon
        1.0
        """
        if policy is not None and self.privacy is not None and self._has_source():
            policy.check_private(self._n_rows_seen, self.privacy)
        before = self._source.state() if self.__sklearn_is_fitted__() else None
        released = self._release_for_merging()
        if self._source.state() is not before:
            self._warn_of_shortfall()
        return released

    def _release_for_merging(self) -> Summary:
        """`release`, without a word about components that noise hides: merged with others they may rise."""
        if not self._has_source():
            raise NotFittedError("there is nothing to release: call partial_fit first.")
        if not isinstance(self._source, PrivateTracker):
            raise ValueError(
                "release is for private summaries, StreamingPCA(privacy=Privacy(...)); share subspace_ "
                "without."
            )
        return self._source.release()

    def _warn_of_shortfall(self) -> None:
        """Warn of what a release does not show: components, or the scale of features."""
        source = self._source
        if not isinstance(source, PrivateTracker):
            return
        texts = [source.shortfall(), no_scale(source.left_out, self._names())]
        if self.scale is None and source.n_components():
            texts.append(dominant_feature(self._summary(), None, self._names()))
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)

    def merge(self, *others: "StreamingPCA | Summary") -> Self:
        """Learn what others learned, as if their rows had come here; the others stay as they are.

        Args:
            others: fitted StreamingPCA objects, or summaries (`Subspace`, `Moments`) of the same features.

        >>> rows = np.random.default_rng(0).normal(size=(100, 5))
        >>> north, south = StreamingPCA(2).fit(rows[:60]), StreamingPCA(2).fit(rows[60:])
        >>> north.merge(south).n_samples_seen_
        100
        """
        if not others:
            raise ValueError("merge needs at least one other StreamingPCA, Subspace or Moments, got none.")
        with self._rollback_on_error():
            if self.privacy is not None:
                raise ValueError(
                    "a private estimator takes rows only; merge what is released: "
                    "fedpca.merge([a.release(), b.release()])."
                )
            summaries = [other.summary_ if isinstance(other, StreamingPCA) else other for other in others]
            fitted = self._has_source()
            self._check_settings(first=not fitted)
            own = [self._state_with_scale()] if fitted else []
            names = check_compatible([*own, *summaries], option="fedpca.merge(..., features='intersection')")
            first = summaries[0]
            if first.centered != bool(self.center):
                raise ValueError(
                    f"center={self.center} here, but the others are "
                    f"{'' if first.centered else 'un'}centered; build all with the same `center`."
                )
            source: Tracker | LateFeatures | Standardized
            if fitted:
                assert not isinstance(self._source, PrivateTracker)
                source = deepcopy(self._source)
            else:
                source, summaries = self._source_for(summaries, names)
            if isinstance(source, Standardized):
                source = source.with_more(Scaling.merge([_scaling(part) for part in summaries]))
                summaries = [source.summary_in_units(part) for part in summaries]
            else:
                summaries = [part.with_scale(None) for part in summaries]
            tracker = _plain(source)
            # Noise makes some eigenvalues of a private release negative; rows have none.
            summaries = [
                part.subspace() if isinstance(part, Moments) and part.certificate else part
                for part in summaries
            ]
            largest = max(validation.raw_energy(part.total, part.count, part.mean) for part in summaries)
            if not largest < ops.max_energy(tracker.dtype):
                raise ValueError(
                    f"a summary of rows this large, sum of squares {largest:.3g}, does not fit a stream of "
                    f"{tracker.dtype}; rescale the features."
                )
            if isinstance(tracker, Tracker) and any(part.observed is not None for part in summaries):
                leaves = [leaf for part in summaries for leaf in part.leaves]
                widest = max((leaf.known for leaf in leaves), key=np.count_nonzero)
                tracker = LateFeatures(tracker, np.ones_like(widest) if tracker.has_rows else widest)
            tracker.merge(*summaries)
            if isinstance(tracker, LateFeatures):
                known = tracker.known | known_to_any(summaries)
                if not np.array_equal(known, tracker.known):
                    tracker.know(known, self._plain_tracker(first.n_features, tracker.dtype))
            rows = [
                other._n_rows_seen if isinstance(other, StreamingPCA) else other.count for other in others
            ]
            self._n_rows_seen = round(sum(rows)) + (self._n_rows_seen if fitted else 0)
            self._source = source.with_tracker(tracker) if isinstance(source, Standardized) else tracker
            self.n_features_in_ = first.n_features
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _state_with_scale(self) -> Summary:
        """What the stream knows, as far as another summary has to go with it."""
        return self.summary_ if isinstance(self._source, Standardized) else self.subspace_

    def _source_for(
        self, summaries: list[Summary], names: tuple[str, ...] | None
    ) -> tuple[Tracker | Standardized, list[Summary]]:
        """A stream without rows that can go on from summaries, and these as it takes them."""
        first = next((part for part in summaries if part.count), summaries[0])
        dtype = first.components.dtype if isinstance(first, Subspace) else np.dtype(np.float64)
        tracker = self._plain_tracker(first.n_features, dtype)
        scale = check_scale(self.scale, first.n_features, names)
        self._constant = None
        if isinstance(scale, str) and not isinstance(tracker, Exact):
            # It must know the scale before it begins: that of the rows that come first.
            if isinstance(first.scale, str):
                together = merge_distinct(summaries).subspace()
                summaries, self._divisor = [together], together.scale
            else:
                self._divisor = first.scale
            is_same = self._divisor is not None
        else:
            self._divisor = None if isinstance(scale, str) else scale
            is_same = not first.count or same_scale(scale, first.scale)
        if not is_same:
            raise ValueError(
                f"scale must be that of what is merged, {in_words(first.scale)}, got {in_words(scale)}; pass "
                "scale=summary.scale."
            )
        if isinstance(scale, str) and isinstance(tracker, Exact):
            scaling = Scaling.merge([_scaling(part) for part in summaries])
            return Standardized.start(tracker, scale, scaling), summaries
        return tracker, summaries

    def _resume(self, summary: Summary, n_rows: int) -> None:
        """Go on from a summary of so many rows, more than its count if some were forgotten or skipped."""
        self.merge(summary)
        self._n_rows_seen = n_rows

    def _update(self, tracker: _Source, X: RowsLike, weights: Array | None, gaps: bool) -> _Source:
        """The tracker with one more batch: earlier rows decay once, missing entries are imputed."""
        if isinstance(tracker, PrivateTracker):
            _no_weights(weights)
            known = self._n_rows_seen if self._has_source() and tracker is self._source else 0
            tracker.update(_dense_parts(X), X.shape[0], n_rows_before=known)
            return tracker
        if isinstance(tracker, Standardized):
            more = Scaling.of_checked(X, weights, self._names(), about=tracker.scaling.mean)
            scaled = tracker.with_more(more, validation.forget(self.forget))
            updated = self._update_plain(tracker.tracker, tracker.in_units(X), weights, gaps)
            assert isinstance(updated, Exact | LateFeatures)
            return scaled.with_tracker(updated)
        if self._divisor is not None:
            X = divided(X, self._divisor)
            if not backend_of(X).on_device:
                validation.has_nan(stored_values(X), tracker.dtype, ops.max_weight(weights))
        return self._update_plain(tracker, X, weights, gaps)

    def _update_plain(
        self, tracker: Tracker | LateFeatures, X: RowsLike, weights: Array | None, gaps: bool
    ) -> Tracker | LateFeatures:
        """`_update` of a tracker that takes rows as they are."""
        if isinstance(tracker, LateFeatures):
            X, gaps = self._check_values(X, tracker.dtype, HOST, weights)
        elif not isinstance(X, np.ndarray) and backend_of(X).on_device:
            trial = deepcopy(tracker) if tracker.has_rows else tracker
            try:
                trial.decay(validation.forget(self.forget))
                trial.update(X, weights)  # finiteness is checked there
                if trial is tracker and trial.may_underflow:
                    validation.require_no_underflow(X, tracker.dtype)
                return trial
            except NonFiniteError:
                if trial is tracker:
                    tracker = self._plain_tracker(X.shape[1], tracker.dtype, tracker.backend)
                X, gaps = self._check_values(X, tracker.dtype, HOST, weights)
        tracker.decay(validation.forget(self.forget))
        if weights is not None and not weights.all():  # a row of weight zero is no row: it fills no gaps
            X, weights = X[weights > 0], weights[weights > 0]
        if isinstance(tracker, LateFeatures):
            is_complete = tracker.known.all() and not gaps
        else:
            is_complete = not gaps or (tracker.takes_gaps and tracker.has_rows)
        if is_complete:
            tracker.update(X, weights)
            return tracker
        for cut in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
            rows, part = dense(X[cut]).astype(tracker.dtype, copy=False), _part(weights, cut)
            present = ~np.isnan(rows).all(axis=1)  # rows that are entirely missing are skipped
            if not present.all():
                rows, part = rows[present], None if part is None else part[present]
            if not len(rows):
                continue
            starts = late_starts(rows, _known(tracker, X.shape[1]))
            for own in map(slice, starts, [*starts[1:], len(rows)]):
                tracker = self._update_filled(tracker, rows[own], _part(part, own))
        return tracker

    def _update_filled(
        self, tracker: Tracker | LateFeatures, rows: Array, weights: Array | None
    ) -> Tracker | LateFeatures:
        """The tracker with more rows: gaps are imputed; a feature without any value so far stays unknown."""
        gaps, before = np.isnan(rows), _known(tracker, rows.shape[1])
        known = before | ~gaps.all(axis=0)
        new = known & ~before
        if gaps[:, before].any():
            history = tracker.history() if isinstance(tracker, LateFeatures) else tracker.summary()
            imputed = impute(rows, history, tracker.feature_variances())
            rows = np.where(gaps & before, imputed, rows)
        if gaps[:, new].any():
            rows = rows.copy()
            rows[:, known] = impute_cold_start(
                rows[:, known], tracker.n_exchanged, bool(self.center), weights
            )
        if isinstance(tracker, LateFeatures):
            if new.any():
                tracker.know(known, self._plain_tracker(len(known), tracker.dtype))
        elif not known.all():
            tracker = LateFeatures(tracker, known)
        tracker.update(rows, weights)
        return tracker

    def _backend_for(self, X: RowsLike) -> Backend:
        """The backend for the first rows of a stream."""
        named = self.tracker if isinstance(self.tracker, str) else ""
        takes_devices = named == "auto" or "backend" in (TRACKERS | BASELINES).get(named, Tracker).settings
        return backend_of(X) if takes_devices and self.privacy is None else HOST

    def _check_values(
        self, X: RowsLike, dtype: DTypeLike, backend: Backend, weights: Array | None
    ) -> tuple[DeviceArray, bool]:
        """Rows on the backend, and whether any entry is missing; rows on a device are not checked yet."""
        if not isinstance(X, np.ndarray) and backend_of(X).on_device:
            if backend.on_device:
                return X, False
            X = to_host(X)
        if self.privacy is None:
            if self.scale is not None:
                dtype = np.dtype(np.float64)  # divided, they may fit float32
            return X, validation.has_nan(stored_values(X), dtype, ops.max_weight(weights))
        return X, False  # no value of a row makes a private fit fail: it is clipped, or counts as missing

    def _new_tracker(self, X: RowsLike, weights: Array | None, dtype: DTypeLike) -> _Source:
        """A tracker for the first rows of a stream."""
        scale = check_scale(self.scale, X.shape[1], self._names())
        self._divisor = self._constant = None
        if self.privacy is not None:
            return self._private_tracker(X.shape[1], weights, dtype, scale)
        self._divisor = None if isinstance(scale, str) else scale
        if not backend_of(X).on_device:  # there it is checked while updating
            first = X if self._divisor is None else divided(X[:_BATCH_ROWS], self._divisor)
            validation.require_no_underflow(stored_values(first), dtype)
        tracker = self._plain_tracker(X.shape[1], dtype, backend_of(X))
        if isinstance(scale, str) and isinstance(tracker, Exact):
            scaling = Scaling.of_checked(X[:_BATCH_ROWS, :], _part(weights, slice(_BATCH_ROWS)))
            return Standardized.start(tracker, scale, scaling)
        if isinstance(scale, str):
            scaling = self._scaling or Scaling.of_checked(X, weights, self._names())
            self._divisor, self._constant = scaling.scale(scale), scaling.constant
        return tracker

    def _private_tracker(
        self, n_features: int, weights: Array | None, dtype: DTypeLike, scale: Scale
    ) -> PrivateTracker:
        if isinstance(scale, str) and scale != "std":
            raise ValueError(
                f"scale must be None, 'std' or public numbers with privacy, got scale={scale!r}; take public "
                "frequencies for the numbers."
            )
        if not isinstance(self.privacy, Privacy):
            raise TypeError(f"privacy must be a Privacy or None, got privacy={self.privacy!r}.")
        _no_weights(weights)
        if validation.forget(self.forget) != 1.0:
            raise ValueError(f"forget must be 1 with privacy, got forget={self.forget}: sums stay exact.")
        if self.tracker != "auto":
            raise ValueError(
                f"tracker must be 'auto' with privacy, got tracker={self.tracker!r}: "
                "Privacy(mechanism=...) decides."
            )
        self._check_sizes()
        return PrivateTracker(
            n_features,
            rank_rule(self.n_components, self.energy, n_features),
            self.privacy,
            scale=scale,
            oversample=self.oversample,
            batch_rows=self.batch_size,
            dtype=dtype,
            feature_names=self._names(),
        )

    def _check_sizes(self) -> None:
        if self.batch_size is not None:
            validation.integer(self.batch_size, "batch_size", at_least=1)
        if self.oversample != "auto":
            validation.integer(self.oversample, "oversample", at_least=0)

    def _plain_tracker(self, n_features: int, dtype: DTypeLike, backend: Backend = HOST) -> Tracker:
        validation.forget(self.forget)
        self._check_sizes()
        rule = self._rank_rule(n_features)
        name = (
            fastest(n_features, rule, on_device=backend.on_device) if self.tracker == "auto" else self.tracker
        )
        known = TRACKERS | BASELINES
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"tracker must be 'auto' or one of {list(known)}, got {self.tracker!r}.")
        kind = known[name]
        mixed_units = isinstance(self.scale, str)
        settings: JSON = {"block_rows": self.batch_size, "backend": backend, "mixed_units": mixed_units}
        if "seed" in kind.settings and self.random_state is not None:
            settings["seed"] = check_random_state(self.random_state).randint(2**31)
        settings = {name: value for name, value in settings.items() if name in kind.settings}
        return kind(
            n_features, rule, oversample=self.oversample, center=bool(self.center), dtype=dtype, **settings
        )

    def _rank_rule(self, n_features: int) -> RankRule:
        rule = rank_rule(self.n_components, self.energy, n_features)
        if rule is None and n_features > _MAX_FEATURES_FOR_ALL and self.tracker != "exact":
            raise ValueError(
                f"n_components=None keeps all {n_features} directions, {8e-9 * n_features**2:.1f} GB; "
                "choose n_components (tracker='exact' keeps all in any case)."
            )
        return FixedRank(n_features) if rule is None else rule

    @property
    def ledger_(self) -> Ledger | None:
        """The ledger that pays for releases; None without privacy, and in a copy, which cannot release."""
        if not self._has_source():
            raise AttributeError("ledger_ is opened by fit or partial_fit: call one of them first.")
        return self._source.ledger if isinstance(self._source, PrivateTracker) else None

    @property
    def privacy_(self) -> Privacy:
        """`privacy` with the bound and the center that were found, for owners who come later: they need not
        spend anything on them. With `scale="std"` they take `summary_.scale` for their scale.
        """
        source = self._source if self._has_source() else None
        found = source.found_settings() if isinstance(source, PrivateTracker) else None
        if found is None:
            raise AttributeError(
                "privacy_ is what private steps found: finish them, or fit with privacy=Privacy(...), first."
            )
        return found

    @property
    def summary_(self) -> Summary:
        """The most exact summary to send or merge: `Moments` where they are known, else a `Subspace`."""
        self._fitted()
        return replace(self._with_divisor(self._source.state()), feature_names=self._names())

    def _summary(self) -> Subspace:
        return self._with_divisor(self._source.summary())

    def _with_divisor(self, summary: _S) -> _S:
        """A summary of rows as the tracker has them, with what they were divided by."""
        return summary if self._divisor is None else summary.with_scale(self._divisor)


def _known(tracker: Tracker | LateFeatures, n_features: int) -> AnyArray:
    """Which features have been observed so far, shape (d,)."""
    return tracker.known if isinstance(tracker, LateFeatures) else np.full(n_features, tracker.has_rows)


def _is_same(before: object, now: object) -> bool:
    """Whether a setting has not changed."""
    try:
        return bool(before == now)
    except ValueError:  # of arrays
        return np.array_equal(before, now)  # type: ignore[arg-type]


def _plain(source: _Source) -> Any:
    """The tracker behind a source."""
    return source.tracker if isinstance(source, Standardized) else source


def _scaling(summary: Summary) -> Scaling:
    """Of the rows of moments; of no rows that of any summary."""
    return summary.scaling_of_rows() if isinstance(summary, Moments) else Scaling.empty(summary.n_features)


def _part(values: Array | None, part: slice) -> Array | None:
    return None if values is None else values[part]


def _dense_parts(X: RowsLike) -> Iterator[Array]:
    size = chunk_rows(X.shape[1])
    for part in batch_slices(X.shape[0], size):
        yield dense(X[part])


def _fit_private(tracker: PrivateTracker, parts: Callable[[], Iterator[Array]], n_rows: int) -> None:
    """All private steps, the release, and how good it is."""
    while not tracker.is_prepared:
        tracker.advance(tracker.step_sum(parts(), n_rows))
    tracker.update(parts(), n_rows)
    tracker.release()
    if tracker.can_evaluate and (shown := tracker.n_components()):
        model = tracker.summary().truncate(shown)
        pooled = tracker.evaluation_sum(parts(), n_rows, model)
        tracker.add_evaluation(tracker.evaluation(pooled, model))


def _shuffled_parts(X: RowsLike, tracker: PrivateTracker) -> Iterator[Array]:
    order = tracker.random_order(X.shape[0])
    for part in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
        yield dense(X[order[part]])


def _no_weights(weights: Array | None) -> None:
    if weights is not None:
        raise ValueError(
            "sample_weight must be None with privacy: a weight would let a row count beyond its bound."
        )
