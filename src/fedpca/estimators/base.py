"""What every fitted PCA offers: its attributes, and what can be done with rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca._typing import Array
from fedpca.backend.base import HOST, Backend, backend_of, batch_slices, dense, to_host
from fedpca.summaries import validation
from fedpca.summaries.imputation import coordinates
from fedpca.summaries.subspace import Subspace


class Source(Protocol):
    """Where the components come from: a tracker of rows, or of releases."""

    dtype: np.dtype[Any]

    @property
    def is_fitted(self) -> bool:
        """Whether there is anything to tell yet."""

    def summary(self) -> Subspace:
        """All directions carried."""

    def shown(self) -> int:
        """How many of them are the answer."""

    def feature_variances(self) -> Array | None:
        """Variance of each feature, where it is known."""

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""


class BasePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The scikit-learn face of a `Source`, kept in `_tracker` once there is one."""

    whiten: bool
    _tracker: Source
    _n_rows_seen: int

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        """A call that refuses its input leaves the object as it was: trackers only ever see checked rows."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """X as an array or CSR of real numbers with the features fitted; its values are not looked at yet."""
        if np.ma.isMaskedArray(X):
            raise TypeError("X is a masked array: mark missing entries as NaN instead, X.filled(np.nan).")
        nameless = not reset and not hasattr(self, "feature_names_in_")
        plain = type(X) is np.ndarray and X.ndim == 2 and X.dtype in (np.float32, np.float64) and len(X)
        if nameless and plain and X.shape[1] == self.n_features_in_:
            return X  # the common case, without the price of all other checks
        if backend_of(X).on_device:
            X = validation.device_rows(X)
            if reset:  # as validate_data does, which takes longer than to begin a fit
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_: int = X.shape[1]
            return X if reset else validate_data(self, X, reset=False, skip_check_array=True)
        _check_columns(X)
        X = validate_data(
            self, X, reset=reset, accept_sparse=("csr", "csc"), dtype="numeric", ensure_all_finite=False
        )
        validation.real_dtype(X.dtype)
        return X.tocsr() if sparse.issparse(X) else X

    # --- what was learned ---

    def _fitted(self) -> Source:
        if hasattr(self, "_tracker") and not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"this {type(self).__name__} has released nothing yet: call release() first."
            )
        check_is_fitted(self)
        return self._tracker

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
        return hasattr(self, "_tracker") and self._tracker.is_fitted

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # --- using it ---

    def transform(self, X: Any) -> Any:
        """Coordinates of rows along the components, shape (n_samples, `n_components_`); gaps are bridged.

        Those of rows on a device are there, too.
        """
        backend = backend_of(X)
        X, gaps = self._checked(X)
        components, subspace = self._components_for(X), self._tracker.summary()
        far = self._tracker.mean_dominates(subspace.mean, subspace.total / max(subspace.count, 1.0))
        if not gaps and not far and self._fits(X):
            offsets = subspace.mean @ self.components_.T.astype(np.float64)
            scores = X @ components.T - backend_of(X).asarray(offsets, self._dtype_for(X))
        else:
            scores = backend_of(X).xp.concat([scores for _, scores in self._scored(X, gaps)])
        if self.whiten:
            scores = scores / backend_of(X).asarray(self._scale(), self._dtype_for(X))
        return backend.asarray(scores)

    def inverse_transform(self, X: Any) -> Any:
        """Rows with these coordinates, shape (n_samples, n_features): the inverse within the components."""
        self._fitted()
        backend = backend_of(X)
        if backend.on_device:
            X = validation.device_rows(X)
        else:
            X = check_array(X, dtype=[np.float64, np.float32], ensure_min_features=0)
        if X.shape[1] != self.n_components_:
            raise ValueError(
                f"X must have one column a component, {self.n_components_}, got shape {tuple(X.shape)}."
            )
        dtype = validation.working_dtype(backend.numpy_dtype(X))
        X, components = backend.asarray(X, dtype), self.components_
        if backend.on_device:
            components = backend.asarray(components, dtype)
        if self.whiten:
            X = X * backend.asarray(self._scale(), dtype)
        return X @ components + backend.asarray(self.mean_, dtype)

    def anomaly_scores(self, X: Any) -> tuple[Any, Any]:
        """How far rows lie from what was learned, two ways.

        Returns:
            spe, the squared prediction error: the squared distance from the subspace, over observed entries;
            and t2, Hotelling's T²: the squared distance from the mean within it, in units of its variances.

        >>> import fedpca
        >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [5.0, 3.0, 0.1]
        >>> spe, t2 = fedpca.StreamingPCA(2).fit(rows).anomaly_scores([[0.0, 0.0, 9.0], [50.0, 0.0, 0.0]])
        >>> int(spe.argmax()), int(t2.argmax())         # outside the plane of the rows; far out within it
        (0, 1)
        """
        back = backend_of(X)
        X, gaps = self._checked(X)
        backend, spe, t2 = backend_of(X), [], []
        components, variances = self._components_for(X), backend.asarray(self.explained_variance_, np.float64)
        for deviations, scores in self._scored(X, gaps):
            residual = deviations - scores @ components
            if gaps:
                residual = np.nan_to_num(residual)
            spe.append(backend.xp.sum(backend.asarray(residual, np.float64) ** 2, axis=1))
            t2.append(backend.xp.sum(backend.asarray(scores, np.float64) ** 2 / variances, axis=1))
        return back.asarray(backend.xp.concat(spe)), back.asarray(backend.xp.concat(t2))

    def anomaly_limits(self, confidence: float = 0.99) -> tuple[float, float]:
        """What such a share of rows like those learned stay below in `anomaly_scores`, if they are Gaussian.

        Real rows seldom are: see how many of those you trust are above. What the model does not carry is
        taken to be spread evenly over all other directions.

        Returns:
            of spe, by Box's approximation: a multiple of a chi-squared variable with the mean and variance
            that the spectrum left out gives; and of t2, by the F distribution. Infinite where the components
            leave nothing out, and where there are too few rows.

        >>> import fedpca
        >>> rows = np.random.default_rng(0).normal(size=(1000, 3)) * [5.0, 3.0, 0.1]
        >>> pca = fedpca.StreamingPCA(2).fit(rows)
        >>> spe, t2 = pca.anomaly_scores(rows)
        >>> most_spe, most_t2 = pca.anomaly_limits()
        >>> int((spe > most_spe).sum()), int((t2 > most_t2).sum())
        (8, 10)
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1), got confidence={confidence}.")
        subspace, shown = self._fitted().summary(), self.n_components_
        count, others = subspace.count, subspace.n_features - subspace.rank
        spe = t2 = np.inf
        if 0 < shown < count - 1:
            scale = shown * (count**2 - 1) / (count * (count - shown))
            t2 = float(scale * special.fdtri(shown, count - shown, confidence))
        energies = subspace.singular_values[shown:] ** 2
        even = subspace.discarded / others if others else 0.0
        left_out = float(energies.sum()) + others * even
        if left_out > 1e-9 * subspace.total:  # else it is rounding
            squares = float(energies @ energies) + others * even**2
            divisor = _divisor(count)
            spe = chi_squared_limit(left_out / divisor, 2 * squares / divisor**2, confidence)
        return spe, t2

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
        """Rows to use, and whether any entry is missing; those on a device come to the host if it is."""
        self._fitted()
        X = self._validated(X, reset=False)
        if backend_of(X).on_device:
            if validation.energy(X) < validation.max_energy(self._dtype_for(X)):
                return X, False
            X = to_host(X)
        return X, validation.has_nan(stored_values(X), self._dtype_for(X))

    def _dtype_for(self, X: Any) -> np.dtype[Any]:
        """The more precise of the components' dtype and that of X."""
        return np.result_type(validation.working_dtype(backend_of(X).numpy_dtype(X)), self._tracker.dtype)

    def _components_for(self, X: Any) -> Any:
        return backend_of(X).asarray(self.components_, self._dtype_for(X))

    def _fits(self, X: Any) -> bool:
        """Whether rows can be multiplied as they are."""
        if backend_of(X).on_device:
            return backend_of(X).is_native(X, self._dtype_for(X))
        return sparse.issparse(X) or X.dtype in (np.float32, np.float64)

    def _scored(self, X: Any, gaps: bool) -> Iterator[tuple[Any, Any]]:
        """Deviations from the mean and coordinates, a few rows at a time."""
        subspace, backend, dtype = self._tracker.summary(), backend_of(X), self._dtype_for(X)
        components, mean = self._components_for(X), backend.asarray(self.mean_, dtype)
        size = chunk_rows(X.shape[1], backend)
        variances = self._tracker.feature_variances() if gaps else None
        for part in batch_slices(X.shape[0], size):
            rows = dense(X[part, :])
            if backend.on_device:
                rows = backend.asarray(rows, dtype)
            deviations = rows - mean
            if gaps:
                scores = coordinates(rows, subspace, variances)[:, : len(components)].astype(dtype)
            else:
                scores = deviations @ components.T
            yield deviations, scores

    def _scale(self) -> Array:
        """Standard deviations along the components, by which whitening divides."""
        return np.sqrt(self.explained_variance_)


def _check_columns(X: Any) -> None:
    """Refuse text columns of a data frame by name; other libraries' errors would quote a cell."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return
    kinds = list(getattr(X.dtypes, "values", X.dtypes))
    text = [
        str(name)
        for i, (name, kind) in enumerate(zip(X.columns, kinds, strict=True))
        if str(kind).lower() in _TEXT_KINDS or (str(kind) == "object" and _holds_text(X.iloc[:, i]))
    ]
    if text:
        raise ValueError(f"columns must be numbers, and {', '.join(text)} hold text: drop or encode them.")


def _holds_text(column: Any) -> bool:
    """Whether a column of anything, such as older pandas keeps text in, holds any."""
    return any(isinstance(value, str) for value in column)


_TEXT_KINDS = ("str", "string", "category", "enum", "binary", "utf8", "large_string")


def chunk_rows(n_features: int, backend: Backend = HOST) -> int:
    """Rows to work on at a time where copies are made: about 8 MB on the host."""
    return min(backend.chunk_entries // 256, max(64, backend.chunk_entries // n_features))


def chi_squared_limit(mean: float, variance: float, confidence: float) -> float:
    """What a multiple of a chi-squared variable with this mean and variance stays below, so likely.

    >>> round(chi_squared_limit(1.0, 2.0, 0.99), 3)  # one degree of freedom: 2.576²
    6.635
    """
    return float(variance / (2 * mean) * special.chdtri(2 * mean**2 / variance, 1 - confidence))


def stored_values(rows: Any) -> NDArray[Any]:
    return rows.data if sparse.issparse(rows) else rows


def _divisor(count: float) -> float:
    """What turns energy into variance: count - 1, or the count itself where weights sum to one or less."""
    return count - 1 if count > 1 else max(count, np.finfo(float).tiny)
