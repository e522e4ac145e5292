"""BasePCA: the fitted attributes of every PCA here, and the transformation of rows."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Protocol

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpca._typing import AnyArray, Array, DeviceArray, DType, RowsLike
from fedpca.backend import HOST, Backend, backend_of, batch_slices, dense, ops, sparse_to_host, to_host
from fedpca.estimators.anomaly_limits import log_likelihood, spe_limit, t2_limit
from fedpca.estimators.contributions import CombinedScore, Contributions
from fedpca.parallel import single_threaded_blas
from fedpca.readers.data_file import Batch
from fedpca.readers.row_reader import RowReader
from fedpca.summaries import validation
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.linalg import mean_dominates
from fedpca.summaries.missing_values import partial_scores
from fedpca.summaries.notebook import card
from fedpca.summaries.scaling import divided
from fedpca.summaries.shrinkage import Shrinkage, check_shrinkage, shrinkage_factors
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.view import View


class ComponentSource(Protocol):
    """Where the components come from: a tracker of rows, or a summary."""

    def view(self) -> View:
        """What is shown now."""


class BasePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The scikit-learn face of a `ComponentSource`, kept in `_source` once there is one."""

    whiten: bool
    _source: ComponentSource
    _n_rows_seen: int
    _names_compared: tuple[DeviceArray, DeviceArray] = (
        None,
        None,
    )  # those of a batch and our own, last found equal
    _score: tuple[Subspace, int, Subspace, CombinedScore] | None = None  # of this summary, so many shown

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        """A call that raises leaves the object as it was; trackers only ever see checked rows."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _validated(self, X: RowsLike, *, reset: bool) -> DeviceArray:
        """X as an array or CSR of real numbers with the features fitted; its values are not checked yet."""
        if np.ma.isMaskedArray(X):
            raise TypeError("X is a masked array: mark missing entries as NaN instead, X.filled(np.nan).")
        nameless = not reset and not hasattr(self, "feature_names_in_")
        if nameless and _is_plain(X) and X.shape[1] == self.n_features_in_:
            return X  # the common case, without the price of all other checks
        if isinstance(X, Batch):
            return self._validated_batch(X, reset=reset)
        X = sparse_to_host(X)
        if backend_of(X).on_device:
            X = validation.device_rows(X)
            if reset:  # as validate_data does, which takes longer than to begin a fit
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_: int = X.shape[1]
            return X if reset else validate_data(self, X, reset=False, skip_check_array=True)
        if isinstance(X, RowReader):
            raise TypeError(
                "X must be rows, got a RowReader: use fedpca.fit_files(pca, X), or pass its batches."
            )
        validation.require_table(X)
        X = validation.objects_as_numbers(X)
        X = validate_data(
            self, X, reset=reset, accept_sparse=("csr", "csc"), dtype="numeric", ensure_all_finite=False
        )
        validation.real_dtype(X.dtype)
        return X.tocsr() if sparse.issparse(X) else X

    def _validated_batch(self, batch: Batch, *, reset: bool) -> DeviceArray:
        """The rows of a batch of a file. Its names are learned with the first one, then they must match."""
        names = batch.feature_names
        if reset:
            X = self._validated(batch.rows, reset=True)
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
            return X
        known = getattr(self, "feature_names_in_", None)
        if names is not None and known is not None:
            before = self._names_compared  # all batches of a file have the same tuple: it is compared once
            if names is not before[0] or known is not before[1]:
                if tuple(known) != names:
                    raise ValueError("rows must have the feature names of the fit, in the same order.")
                self._names_compared = names, known
        X = batch.rows
        if not _is_plain(X):
            X = check_array(X, accept_sparse="csr", dtype="numeric", ensure_all_finite=False)
            validation.real_dtype(X.dtype)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"rows must have {self.n_features_in_} features, got {X.shape[1]}.")
        return X

    # --- fitted attributes ---

    def _require_fitted(self) -> None:
        check_is_fitted(self)

    def _fitted_view(self, attribute: str) -> View:
        """What is shown, for a fitted attribute, which does not exist before."""
        if not self._has_source():
            raise AttributeError(
                f"{attribute} is learned by fit, partial_fit or merge: call one of them first."
            )
        return self._view()

    def _view(self) -> View:
        """What is shown, with the scale of the rows."""
        return self._source.view()

    def _summary(self) -> Subspace:
        """The directions carried."""
        return self._view().subspace

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(names)

    @property
    def subspace_(self) -> Subspace:
        return self._fitted_view("subspace_").subspace.with_about(names=self._names())

    @property
    def n_components_(self) -> int:
        return int(self._fitted_view("n_components_").n_components)

    @property
    def components_(self) -> Array:
        return self._fitted_view("components_").components

    @property
    def singular_values_(self) -> Array:
        view = self._fitted_view("singular_values_")
        certain = view.subspace.singular_values[: view.n_components]
        lack = self._estimated_lack()
        if lack is None:
            return certain
        # In the order of what is certain: an estimate that is out of it is taken down.
        return np.sqrt(np.minimum.accumulate(certain**2 + lack[: len(certain)]))

    def _estimated_lack(self) -> Array | None:
        """Energy along the components that was discarded before they were found; None where nothing was."""
        return None

    @property
    def mean_(self) -> Array:
        subspace = self._fitted_view("mean_").subspace
        return subspace.mean if subspace.scale is None else subspace.mean * subspace.scale

    @property
    def scale_(self) -> Array | None:
        """What rows are divided by, shape (n_features,); None if they are not."""
        return self._fitted_view("scale_").subspace.scale

    @property
    def var_(self) -> Array:
        subspace, _, variances = self._fitted_view("var_")
        scale = subspace.scale
        if variances is None:
            raise AttributeError(
                "var_ is known only to the exact tracker, without privacy; fit with tracker='exact', or take "
                "the diagonal of get_covariance()."
            )
        return variances.copy() if scale is None else variances * scale**2

    @property
    def explained_variance_(self) -> Array:
        subspace = self._fitted_view("explained_variance_").subspace
        return self.singular_values_**2 / degrees_of_freedom(subspace.count)

    @property
    def explained_variance_ratio_(self) -> Array:
        total = self._fitted_view("explained_variance_ratio_").subspace.total
        squares = self.singular_values_**2
        return squares / total if total else np.zeros_like(squares)

    @property
    def noise_variance_(self) -> float:
        subspace, shown, _ = self._fitted_view("noise_variance_")
        left_out = max(subspace.total - float(self.singular_values_ @ self.singular_values_), 0.0)
        directions = min(subspace.n_known, self.n_samples_seen_) - shown
        return left_out / degrees_of_freedom(subspace.count) / directions if directions > 0 else 0.0

    @property
    def n_samples_seen_(self) -> int:
        if not self.__sklearn_is_fitted__():
            self._fitted_view("n_samples_seen_")  # raises
        return self._n_rows_seen

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _has_source(self) -> bool:
        """Whether any rows or summaries have come."""
        return "_source" in self.__dict__

    def __sklearn_is_fitted__(self) -> bool:
        return self._has_source()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # --- notebooks ---

    def _repr_html_inner(self) -> str:
        return super()._repr_html_inner() + self._card()

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        """What a notebook shows: scikit-learn's diagram, and once fitted the model."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._card()
        return bundle

    def _card(self) -> str:
        """Facts about the model, as HTML; nothing before there is one."""
        if not self.__sklearn_is_fitted__():
            return ""
        subspace = self.subspace_
        return card("Fitted model", subspace, subspace, self.n_components_, self._facts())

    def _facts(self) -> list[str]:
        """What else to say about the model."""
        return []

    # --- rows ---

    def transform(self, X: RowsLike, *, shrinkage: Shrinkage | None = None) -> DeviceArray:
        """Scores of rows along the components, shape (n_samples, `n_components_`); missing entries
        are estimated. Rows on a device have their scores there, too.

        Scores of new rows are shrunk towards the center, the more the fewer the rows of the fit are and the
        more features there are. With shrinkage="asymptotic" they are where those rows would be had they
        been in the fit: for new rows only, and components well above the noise.
        """
        unshrink = check_shrinkage(shrinkage)
        backend = backend_of(X)
        X, gaps = self._checked(X)
        view = self._view()
        subspace, components = view.subspace, view.components
        far = mean_dominates(subspace.mean, subspace.total / max(subspace.count, 1.0), components.dtype)
        # One product, unless entries are estimated, digits lost to the mean, or rows converted.
        if not gaps and not far and subspace.observed is None and self._fits(X):
            offsets = subspace.mean @ components.T.astype(np.float64)
            if subspace.scale is not None:
                components = components / subspace.scale
            scores = X @ self._as_here(components, X).T - self._as_here(offsets, X)
        else:
            with single_threaded_blas():
                scores = backend_of(X).xp.concat([scores for _, scores in self._scored(X, gaps)])
        if unshrink:
            factors = shrinkage_factors(self._known_spectrum(), view.n_components)
            scores = scores / self._as_here(factors, X)
        if self.whiten:
            scores = scores / self._as_here(self._deviations(), X)
        return backend.asarray(scores)

    def inverse_transform(self, X: RowsLike) -> DeviceArray:
        """Rows with these scores, shape (n_samples, n_features): the inverse within the components."""
        self._require_fitted()
        backend = backend_of(X)
        if backend.on_device:
            X = validation.device_rows(X)
        else:
            X = check_array(X, dtype=[np.float64, np.float32], ensure_min_features=0)
        if X.shape[1] != self.n_components_:
            raise ValueError(
                f"X must have one column per component, {self.n_components_}, got shape {tuple(X.shape)}."
            )
        dtype = ops.working_dtype(backend.numpy_dtype(X))
        X, components = backend.asarray(X, dtype), self.components_
        if backend.on_device:
            components = backend.asarray(components, dtype)
        if self.whiten:
            X = X * backend.asarray(self._deviations(), dtype)
        subspace = self._summary()
        rows = X @ components + backend.asarray(subspace.mean, dtype)
        return rows if subspace.scale is None else rows * backend.asarray(subspace.scale, dtype)

    def anomaly_scores(self, X: RowsLike) -> tuple[DeviceArray, DeviceArray]:
        """How unusual rows are: squared prediction error and Hotelling's T².

        Returns:
            spe, the squared distance from the subspace, over observed entries; and t2, the squared distance
            from the mean within the subspace, in units of its variances. Each of shape (n_samples,), and of
            the rows divided by `scale_`.

        >>> import fedpca
        >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [5.0, 3.0, 0.1]
        >>> spe, t2 = fedpca.StreamingPCA(2).fit(rows).anomaly_scores([[0.0, 0.0, 9.0], [50.0, 0.0, 0.0]])
        >>> int(spe.argmax()), int(t2.argmax())         # outside the plane of the rows; far out within it
        (0, 1)
        """
        back = backend_of(X)
        X, gaps = self._checked(X)
        backend, spe, t2 = backend_of(X), [], []
        components = self._as_here(self.components_, X)
        variances = backend.asarray(self.explained_variance_, np.float64)
        with single_threaded_blas():
            for deviations, scores in self._scored(X, gaps):
                residual = deviations - scores @ components
                if gaps:
                    residual = np.nan_to_num(residual)
                spe.append(backend.xp.sum(backend.asarray(residual, np.float64) ** 2, axis=1))
                t2.append(backend.xp.sum(backend.asarray(scores, np.float64) ** 2 / variances, axis=1))
        return back.asarray(backend.xp.concat(spe)), back.asarray(backend.xp.concat(t2))

    def contributions(self, X: RowsLike) -> Contributions:
        """What each feature adds to the anomaly scores of rows, and the feature that explains them best.

        Returns:
            `Contributions`, on the host: to spe, to t2 and to `anomaly_score`; by how much this falls if the
            feature is reconstructed from the others, each of shape (n_samples, n_features); and `named`, the
            feature where it falls most, shape (n_samples,).

        >>> import fedpca
        >>> rng = np.random.default_rng(0)
        >>> rows = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(500, 5))
        >>> pca = fedpca.StreamingPCA(2).fit(rows)
        >>> rows[0, 3] += 2.0                                           # a sensor fails
        >>> found = pca.contributions(rows[:1])
        >>> spe, t2 = pca.anomaly_scores(rows[:1])
        >>> found.named, bool(np.allclose(found.spe.sum(axis=1), spe))
        (array([3]), True)
        """
        found = [score.contributions(*part) for score, *part in self._scored_by_all(X)]
        return Contributions(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def anomaly_score(self, X: RowsLike) -> Array:
        """One score of each row, shape (n_samples,), on the host: how unusual it is, 3 in the mean of the
        fit.

        It is T² / k + SPE / E[SPE] + D² / E[D²], of k components and the squared Mahalanobis distance D².
        """
        return np.concatenate([score.of(*part) for score, *part in self._scored_by_all(X)])

    def _scored_by_all(self, X: RowsLike) -> Iterator[tuple[CombinedScore, Array, Array]]:
        """The one score, with deviations and scores along all directions known, a chunk of rows at a time."""
        rows, gaps = self._checked(X)
        known, score = self._combined_score()
        with single_threaded_blas():
            for deviations, scores in self._scored(rows, gaps, known):
                yield score, to_host(deviations).astype(np.float64), to_host(scores).astype(np.float64)

    def _combined_score(self) -> tuple[Subspace, CombinedScore]:
        """All directions known, and the one score by them."""
        summary, shown, _ = self._source.view()
        if self._score is None or self._score[0] is not summary or self._score[1] != shown:
            known = self._known_spectrum()  # for a row at a time, this would take longer than to score it
            self._score = summary, shown, known, CombinedScore.of_model(known, self.explained_variance_)
        return self._score[2:]

    def anomaly_limits(self, confidence: float = 0.99) -> tuple[float, float]:
        """Upper limits of `anomaly_scores` for this share of rows like those fitted, if they are Gaussian.

        Real rows seldom are: check how many of those you trust exceed them. Variance outside the directions
        carried is taken to be spread evenly over all others: where it falls slowly instead, the limit of spe
        is too low, and about 2 % of Gaussian rows exceed that of 99 %; with fewer rows than features, more of
        new rows do. The exact tracker knows all of them.

        Returns:
            the limit of spe, by Box's approximation: a multiple of a chi-squared variable with the mean and
            variance of the discarded spectrum; and that of t2, by the F distribution. Infinite where the
            components discard nothing, and where there are too few rows.

        >>> import fedpca
        >>> rows = np.random.default_rng(0).normal(size=(1000, 3)) * [5.0, 3.0, 0.1]
        >>> pca = fedpca.StreamingPCA(2).fit(rows)
        >>> spe, t2 = pca.anomaly_scores(rows)
        >>> max_spe, max_t2 = pca.anomaly_limits()
        >>> int((spe > max_spe).sum()), int((t2 > max_t2).sum())
        (8, 10)
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1), got confidence={confidence}.")
        subspace, shown = self._known_spectrum(), self.n_components_
        return spe_limit(subspace, shown, confidence), t2_limit(subspace.count, shown, confidence)

    def _known_spectrum(self) -> Subspace:
        """All directions that are known, also those beyond a summary."""
        self._require_fitted()
        return self._summary()

    def score_samples(self, X: RowsLike) -> Array:
        """Log-likelihood of rows under the probabilistic PCA model, shape (n_samples,).

        It is that of the features of which any value was observed in the fit.
        """
        spe, t2 = (to_host(scores) for scores in self.anomaly_scores(X))
        subspace = self._summary()
        likelihoods = log_likelihood(
            spe, t2, self.explained_variance_, self.noise_variance_, subspace.n_known
        )
        if subspace.scale is None:
            return likelihoods
        return likelihoods - float(np.log(subspace.scale[subspace.known]).sum())

    def score(self, X: RowsLike, y: object = None) -> float:
        """Mean log-likelihood of rows, for example to choose n_components by cross-validation."""
        with np.errstate(over="ignore"):  # of a sum: then the mean is next to minus infinity as well
            return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> Array:
        """Covariance of the features as the components and the noise variance explain it, shape (d, d).

        Zero for features without any observed value.
        """
        self._require_fitted()
        subspace = self._summary()
        scaled = (self.explained_variance_ - self.noise_variance_)[:, None] * self.components_
        covariance: Array = self.components_.T @ scaled
        covariance.flat[:: self.n_features_in_ + 1] += self.noise_variance_ * subspace.known
        if subspace.scale is not None:
            covariance *= np.outer(subspace.scale, subspace.scale)
        return covariance

    def get_precision(self) -> Array:
        """The inverse of `get_covariance()`, shape (d, d); the pseudo-inverse where it has none."""
        self._require_fitted()
        subspace = self._summary()
        noise = self.noise_variance_
        background = 1 / noise if noise else 0.0
        scaled = (1 / self.explained_variance_ - background)[:, None] * self.components_
        precision: Array = self.components_.T @ scaled
        precision.flat[:: self.n_features_in_ + 1] += background * subspace.known
        if subspace.scale is not None:
            precision /= np.outer(subspace.scale, subspace.scale)
        return precision

    def _checked(self, X: RowsLike) -> tuple[DeviceArray, bool]:
        """Checked rows, and whether any entry is missing; if so, rows on a device come to the host."""
        self._require_fitted()
        X = self._validated(X, reset=False)
        if backend_of(X).on_device:
            if ops.energy(X) < ops.max_energy(self._dtype_for(X)):
                return X, False
            X = to_host(X)
        return X, validation.has_nan(stored_values(X), self._dtype_for(X))

    def _dtype_for(self, X: RowsLike) -> DType:
        """The more precise of the components' dtype and that of X."""
        components = self._view().subspace.components
        return np.result_type(ops.working_dtype(backend_of(X).numpy_dtype(X)), components.dtype)

    def _as_here(self, values: Array, X: RowsLike) -> DeviceArray:
        """Values where rows are, in the dtype that these are worked on in."""
        return backend_of(X).asarray(values, self._dtype_for(X))

    def _fits(self, X: RowsLike) -> bool:
        """Whether rows can be multiplied as they are."""
        if backend_of(X).on_device:
            return backend_of(X).is_native(X, self._dtype_for(X))
        return sparse.issparse(X) or X.dtype in (np.float32, np.float64)

    def _scored(
        self, X: RowsLike, gaps: bool, known_directions: Subspace | None = None
    ) -> Iterator[tuple[DeviceArray, DeviceArray]]:
        """Deviations from the mean, and scores along the components or these directions, by chunks."""
        view, backend, dtype = self._view(), backend_of(X), self._dtype_for(X)
        subspace = known_directions or view.subspace
        shown = view.components if known_directions is None else subspace.components
        components, mean = self._as_here(shown, X), backend.asarray(subspace.mean, dtype)
        size = chunk_rows(X.shape[1], backend)
        known = None if subspace.observed is None else backend.asarray(subspace.known)
        for part in batch_slices(X.shape[0], size):
            rows = dense(X[part, :])
            if backend.on_device:
                rows = backend.asarray(rows, dtype)
            if subspace.scale is not None:
                rows = divided(rows, subspace.scale)
            if known is not None:  # values of a feature that no row of the fit had say nothing
                rows = backend.xp.where(known, rows, mean)
            deviations = rows - mean
            incomplete = np.isnan(rows).any(axis=1) if gaps else np.zeros(0, dtype=bool)
            if not incomplete.any():
                scores = deviations @ components.T
            else:  # complete rows are projected as ever: their scores do not depend on their company
                scores = np.nan_to_num(deviations) @ components.T
                estimated = partial_scores(rows[incomplete], subspace, view.variances)
                scores[incomplete] = estimated[:, : len(components)].astype(dtype)
            yield deviations, scores

    def _deviations(self) -> Array:
        """Standard deviations along the components, by which whitening divides."""
        return np.sqrt(self.explained_variance_)


def warn_if_fewer(n_components: object, found: int, *, stacklevel: int) -> None:
    """Warn of fewer components than requested: there are as many columns of scores."""
    if isinstance(n_components, Integral) and found < int(n_components):
        warnings.warn(
            f"n_components={n_components} but only {found} found: the rows span no more directions "
            "that are not rounding of their values.",
            stacklevel=stacklevel,
        )


def _is_plain(X: RowsLike) -> bool:
    """Whether rows are as most are: an array of floats that needs no conversion."""
    return type(X) is np.ndarray and X.ndim == 2 and X.dtype in (np.float32, np.float64) and len(X) > 0


def chunk_rows(n_features: int, backend: Backend = HOST) -> int:
    """Rows per chunk where copies are made: about 8 MB on the host."""
    return min(backend.chunk_entries // 256, max(64, backend.chunk_entries // n_features))


def stored_values(rows: RowsLike) -> AnyArray:
    return rows.data if sparse.issparse(rows) else rows
