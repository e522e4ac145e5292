"""StreamingPCA: the scikit-learn face of the trackers."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca import checks
from fedpca.linalg import Array
from fedpca.merge import Summary, same_space
from fedpca.missing import coordinates, filled, filled_without_history
from fedpca.rank import EnergyBand, FixedRank, RankRule, VarianceShare
from fedpca.subspace import Subspace
from fedpca.trackers import TRACKERS, Tracker, fastest

_BATCH_ROWS = 1024
_MOST_FEATURES_FOR_ALL = 4096


class StreamingPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components of a stream of rows, in one pass and O(d r) memory, mergeable with others.

    Rows come in batches of any size, from one row up, dense or sparse (CSR, CSC), with NaN for missing
    entries. Fitted attributes are computed when they are read, so a long stream pays for them once.

    Args:
        n_components: how many components to keep: a whole number, a share of the variance in (0, 1), or
            None for all. With `energy`, the rank to begin with. Like the other settings it is taken from the
            first batch on.
        energy: an `EnergyBand`, or its (low, high), to adapt the rank to the stream as the paper does.
        forget: in (0, 1]. Every batch scales the singular values of all that came before by it, and their
            count by its square: memory fades over about 1 / (1 - forget²) batches.
        center: subtract the running mean; False gives the paper's uncentred algebra.
        whiten: scale the coordinates to unit variance.
        tracker: "exact" (d² memory, no error), "nystrom" (the fast one), "block" (the paper's), or "auto":
            exact for at most max(256, 8 n_components) features, nystrom above.
        oversample: directions carried beyond n_components, which keeps truncation errors small;
            "auto" for about as many again (20 for 10, 45 for 20, 150 for 100).
        batch_size: rows a batch when `fit` cuts its X; the block size of the block tracker. None for 1024
            and, for the block tracker, twice the directions carried.
        random_state: seed of the nystrom tracker's choice of probes; None always takes the same.

    Attributes:
        components_: shape (n_components_, n_features), by falling variance, the largest entry positive.
        explained_variance_, explained_variance_ratio_, singular_values_: shape (n_components_,).
        mean_: shape (n_features,).
        noise_variance_: mean variance of a direction left out.
        n_components_: at most n_components; fewer while the rows seen span fewer.
        n_samples_seen_: rows seen, merged ones included.
        subspace_: the `Subspace` to save, send or merge: all directions carried, more than n_components_.

    Missing entries (NaN) are filled by least squares on the observed ones with the subspace so far; the
    first rows of a stream from their own column means and, for a few rounds, their own subspace. With
    many gaps the variance along filled entries is somewhat too small.

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
        whiten: bool = False,
        tracker: str = "auto",
        oversample: int | str = "auto",
        batch_size: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.energy = energy
        self.forget = forget
        self.center = center
        self.whiten = whiten
        self.tracker = tracker
        self.oversample = oversample
        self.batch_size = batch_size
        self.random_state = random_state

    # --- learning ---

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X, shape (n_samples, n_features), alone: whatever was learned before is dropped."""
        with self._intact_on_error():
            X = self._validated(X, reset=True)
            weights = checks.sample_weight(sample_weight, X.shape[0])
            if weights is not None and not weights.any():
                raise ValueError("sample_weight must not be all zero: no row would count.")
            dtype = checks.working_dtype(X.dtype)
            gaps = checks.has_gaps(_values(X), dtype, checks.heaviest(weights))
            checks.not_too_small(_values(X), dtype)
            tracker = self._new_tracker(X.shape[1], dtype)
            size = self.batch_size or _BATCH_ROWS
            for start in range(0, X.shape[0], size):
                part = slice(start, start + size)
                self._learn(tracker, X[part], None if weights is None else weights[part], gaps)
            self._tracker, self._n_rows_seen = tracker, X.shape[0]
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch, shape (n_samples, n_features), of any size from one row up."""
        first = not hasattr(self, "_tracker")
        with self._intact_on_error():
            X = self._validated(X, reset=first)
            weights = checks.sample_weight(sample_weight, X.shape[0])
            dtype = checks.working_dtype(X.dtype) if first else self._tracker.dtype
            gaps = checks.has_gaps(_values(X), dtype, checks.heaviest(weights))
            if first:
                checks.not_too_small(_values(X), dtype)
                self._tracker, self._n_rows_seen = self._new_tracker(X.shape[1], dtype), 0
            self._learn(self._tracker, X, weights, gaps)
            self._n_rows_seen += X.shape[0]
        return self

    def merge(self, *others: "StreamingPCA | Summary") -> Self:
        """Learn what others learned, as if their rows had come here; the others stay as they are.

        Args:
            others: fitted StreamingPCA objects, or summaries (`Subspace`, `Moments`) of the same features.
        """
        if not others:
            raise ValueError("merge needs at least one other StreamingPCA, Subspace or Moments, got none.")
        with self._intact_on_error():
            summaries = [other._state() if isinstance(other, StreamingPCA) else other for other in others]
            fitted = hasattr(self, "_tracker")
            names = same_space([self.subspace_, *summaries] if fitted else summaries)
            first = summaries[0]
            if first.centered != bool(self.center):
                raise ValueError(
                    f"center={self.center} here, but the others are {'' if first.centered else 'un'}centred; "
                    "build all with the same `center`."
                )
            if fitted:
                tracker = deepcopy(self._tracker)
            else:
                dtype = first.components.dtype if isinstance(first, Subspace) else np.dtype(np.float64)
                tracker = self._new_tracker(first.n_features, dtype)
            largest = max(checks.size(part.total, part.count, part.mean) for part in summaries)
            if not largest < checks.size_limit(tracker.dtype):
                raise ValueError(
                    f"a summary of rows this large, sum of squares {largest:.3g}, does not fit a stream of "
                    f"{tracker.dtype}; rescale the features."
                )
            tracker.merge(*summaries)
            rows = [
                other._n_rows_seen if isinstance(other, StreamingPCA) else other.count for other in others
            ]
            self._n_rows_seen = round(sum(rows)) + (self._n_rows_seen if fitted else 0)
            self._tracker, self.n_features_in_ = tracker, first.n_features
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        return self

    @contextmanager
    def _intact_on_error(self) -> Iterator[None]:
        """A call that refuses its input leaves the object as it was: trackers only ever see checked rows."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, tracker: Tracker, X: Any, weights: Array | None, gaps: bool) -> None:
        """Take one batch of checked rows: what came before fades once, gaps are filled a few at a time."""
        tracker.decay(checks.forget(self.forget))
        if not gaps:
            tracker.update(X, weights)
            return
        size = _few_rows(X.shape[1])
        for start in range(0, X.shape[0], size):
            rows = _dense(X[start : start + size]).astype(tracker.dtype, copy=False)
            part = None if weights is None else weights[start : start + size]
            missing = np.isnan(rows)
            if missing.any():
                seen = ~missing.all(axis=1)  # a row of which nothing was observed says nothing
                rows, part = rows[seen], None if part is None else part[seen]
                history = tracker.summary()
                if history.count:
                    rows = filled(rows, history, tracker.feature_variances())
                else:
                    rows = filled_without_history(rows, tracker.keep, bool(self.center))
            tracker.update(rows, part)

    def _new_tracker(self, n_features: int, dtype: Any) -> Tracker:
        checks.forget(self.forget)
        if self.batch_size is not None:
            checks.whole_number(self.batch_size, "batch_size", at_least=1)
        if self.oversample != "auto":
            checks.whole_number(self.oversample, "oversample", at_least=0)
        rule = self._rank_rule(n_features)
        name = fastest(n_features, rule) if self.tracker == "auto" else self.tracker
        if not isinstance(name, str) or name not in TRACKERS:
            raise ValueError(f"tracker must be 'auto' or one of {sorted(TRACKERS)}, got {self.tracker!r}.")
        settings: dict[str, Any] = {}
        if name == "block":
            settings["block_rows"] = self.batch_size
        if name == "nystrom" and self.random_state is not None:
            settings["seed"] = check_random_state(self.random_state).randint(2**31)
        settings.update(oversample=self.oversample, center=bool(self.center), dtype=dtype)
        return TRACKERS[name](n_features, rule, **settings)

    def _rank_rule(self, n_features: int) -> RankRule:
        wanted = self.n_components
        if self.energy is not None:
            band = self.energy
            if isinstance(band, tuple | list) and len(band) == 2:
                band = EnergyBand(*band)
            if not isinstance(band, EnergyBand):
                raise TypeError(f"energy must be an EnergyBand or its (low, high), got {self.energy!r}.")
            if wanted is not None:
                band = replace(band, first=checks.rank(wanted, n_features, "n_components"))
            return band
        if wanted is None:
            if n_features > _MOST_FEATURES_FOR_ALL and self.tracker != "exact":
                raise ValueError(
                    f"n_components=None keeps all {n_features} directions, {8e-9 * n_features**2:.1f} GB; "
                    "say how many you want (tracker='exact' keeps all the same)."
                )
            return FixedRank(n_features)
        if isinstance(wanted, Integral) and not isinstance(wanted, bool):
            return FixedRank(checks.rank(wanted, n_features, "n_components"))
        rule = "n_components must be a whole number, a share of the variance in (0, 1) or None"
        if not checks.is_real(wanted):
            raise TypeError(f"{rule}, got {wanted!r}.")
        if not 0 < wanted < 1:
            raise ValueError(f"{rule}, got {wanted!r}.")
        return VarianceShare(float(wanted))

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """X as an array or CSR of real numbers with the features fitted; its values are not looked at yet."""
        if np.ma.isMaskedArray(X):
            raise TypeError("X is a masked array: mark missing entries as NaN instead, X.filled(np.nan).")
        nameless = not reset and not hasattr(self, "feature_names_in_")
        plain = type(X) is np.ndarray and X.ndim == 2 and X.dtype in (np.float32, np.float64) and len(X)
        if nameless and plain and X.shape[1] == self.n_features_in_:
            return X  # the common case, without the price of all other checks
        X = validate_data(
            self, X, reset=reset, accept_sparse=("csr", "csc"), dtype="numeric", ensure_all_finite=False
        )
        checks.real_dtype(X.dtype)
        return X.tocsr() if sparse.issparse(X) else X

    # --- what was learned ---

    def _fitted(self) -> Tracker:
        check_is_fitted(self)
        tracker: Tracker = self._tracker
        return tracker

    def _learned(self, attribute: str) -> Subspace:
        """The directions carried, for a fitted attribute, which does not exist before."""
        if not hasattr(self, "_tracker"):
            raise AttributeError(
                f"{attribute} is learned by fit, partial_fit or merge: call one of them first."
            )
        return self._tracker.summary()

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(names)

    def _state(self) -> Summary:
        return replace(self._fitted().state(), feature_names=self._names())

    @property
    def subspace_(self) -> Subspace:
        return replace(self._learned("subspace_"), feature_names=self._names())

    @property
    def n_components_(self) -> int:
        self._learned("n_components_")
        return int(self._tracker.shown())

    @property
    def components_(self) -> Array:
        return self._learned("components_").components[: self.n_components_]

    @property
    def singular_values_(self) -> Array:
        return self._learned("singular_values_").singular_values[: self.n_components_]

    @property
    def mean_(self) -> Array:
        return self._learned("mean_").mean

    @property
    def explained_variance_(self) -> Array:
        subspace = self._learned("explained_variance_")
        return self.singular_values_**2 / _divisor(subspace.count)

    @property
    def explained_variance_ratio_(self) -> Array:
        return self._learned("explained_variance_ratio_").explained_variance_ratio[: self.n_components_]

    @property
    def noise_variance_(self) -> float:
        subspace = self._learned("noise_variance_")
        left_out = max(subspace.total - float(self.singular_values_ @ self.singular_values_), 0.0)
        directions = min(subspace.n_features, self.n_samples_seen_) - self.n_components_
        return left_out / _divisor(subspace.count) / directions if directions > 0 else 0.0

    @property
    def n_samples_seen_(self) -> int:
        self._learned("n_samples_seen_")
        return self._n_rows_seen

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_tracker")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # --- using it ---

    def transform(self, X: Any) -> Array:
        """Coordinates of rows along the components, shape (n_samples, n_components_); gaps are bridged."""
        X, gaps = self._checked(X)
        components, subspace = self._components_for(X), self._tracker.summary()
        far = self._tracker.is_far(subspace.mean, subspace.total / max(subspace.count, 1.0))
        if not gaps and not far and (sparse.issparse(X) or X.dtype in (np.float32, np.float64)):
            scores: Array = X @ components.T - (subspace.mean @ components.T).astype(components.dtype)
        else:
            scores = np.concatenate([scores for _, scores in self._scored(X, gaps)])
        return scores / self._scale(scores.dtype) if self.whiten else scores

    def inverse_transform(self, X: Any) -> Array:
        """Rows with these coordinates, shape (n_samples, n_features): the inverse within the components."""
        self._fitted()
        X = check_array(X, dtype=[np.float64, np.float32], ensure_min_features=0)
        if X.shape[1] != self.n_components_:
            raise ValueError(
                f"X must have one column a component, {self.n_components_}, got shape {X.shape}."
            )
        if self.whiten:
            X = X * self._scale(X.dtype)
        rows: Array = X @ self.components_ + self.mean_.astype(X.dtype)
        return rows

    def anomaly_scores(self, X: Any) -> tuple[Array, Array]:
        """How far rows lie from what was learned, two ways.

        Returns:
            spe: squared prediction error, the squared distance from the subspace, over observed entries.
            t2: Hotelling's T², the squared distance from the mean within it, in units of its variances.
        """
        X, gaps = self._checked(X)
        spe, t2 = [], []
        variances = self.explained_variance_
        for deviations, scores in self._scored(X, gaps):
            residual = deviations - scores @ self.components_
            spe.append(np.nansum(residual.astype(np.float64) ** 2, axis=1))
            t2.append(np.sum(scores.astype(np.float64) ** 2 / variances, axis=1))
        return np.concatenate(spe), np.concatenate(t2)

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood of rows under the probabilistic PCA of what was learned, shape (n_samples,)."""
        spe, t2 = self.anomaly_scores(X)
        left_out = self.n_features_in_ - self.n_components_
        noise = max(self.noise_variance_, float(np.finfo(np.float64).tiny))
        log_volume = float(np.log(self.explained_variance_).sum()) + left_out * np.log(noise)
        distances = t2 + (spe / noise if left_out else 0.0)
        likelihoods: Array = -0.5 * (self.n_features_in_ * np.log(2 * np.pi) + log_volume + distances)
        return likelihoods

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of rows: what a search over n_components can compare."""
        return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> Array:
        """Covariance of the features as the components and the noise left out explain it, shape (d, d)."""
        self._fitted()
        scaled = (self.explained_variance_ - self.noise_variance_)[:, None] * self.components_
        covariance: Array = self.components_.T @ scaled
        covariance.flat[:: self.n_features_in_ + 1] += self.noise_variance_
        return covariance

    def _checked(self, X: Any) -> tuple[Any, bool]:
        """Rows to use, and whether any entry is missing."""
        self._fitted()
        X = self._validated(X, reset=False)
        return X, checks.has_gaps(_values(X), self._dtype_for(X))

    def _dtype_for(self, X: Any) -> np.dtype[Any]:
        """The more precise of the components' dtype and that of X."""
        return np.result_type(checks.working_dtype(X.dtype), self._tracker.dtype)

    def _components_for(self, X: Any) -> Array:
        return self.components_.astype(self._dtype_for(X), copy=False)

    def _scored(self, X: Any, gaps: bool) -> Iterator[tuple[Array, Array]]:
        """Deviations from the mean and coordinates, a few rows at a time."""
        subspace = self._tracker.summary()
        components = self._components_for(X)
        mean = subspace.mean.astype(components.dtype)
        size = _few_rows(X.shape[1])
        variances = self._tracker.feature_variances() if gaps else None
        for start in range(0, X.shape[0], size):
            rows = _dense(X[start : start + size])
            deviations = rows - mean
            if gaps:
                scores = coordinates(rows, subspace, variances)[:, : len(components)].astype(components.dtype)
            else:
                scores = deviations @ components.T
            yield deviations, scores

    def _scale(self, dtype: Any) -> Array:
        """Standard deviations along the components, by which whitening divides."""
        return np.sqrt(self.explained_variance_).astype(dtype)


def _few_rows(n_features: int) -> int:
    """Rows to work on at a time where copies are made: about 8 MB."""
    return min(4096, max(64, 2**20 // n_features))


def _dense(rows: Any) -> NDArray[Any]:
    return rows.toarray() if sparse.issparse(rows) else rows


def _values(rows: Any) -> NDArray[Any]:
    return rows.data if sparse.issparse(rows) else rows


def _divisor(count: float) -> float:
    """What turns energy into variance: count - 1, or the count itself where weights sum to one or less."""
    return count - 1 if count > 1 else max(count, np.finfo(float).tiny)
