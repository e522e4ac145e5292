"""StreamingPCA: the scikit-learn face of the trackers."""

import os
import warnings
from contextlib import AbstractContextManager
from typing import Self

import numpy as np

from fedpca._typing import AnyArray, Array, ArrayLike, DeviceArray, DType, RowsLike
from fedpca.backend import HOST, Backend, backend_of, batch_slices, ops
from fedpca.backend.base import NO_CONTEXT
from fedpca.estimators.base import BasePCA, chunk_rows, stored_values, warn_if_fewer
from fedpca.estimators.one_row import OneRowMixin
from fedpca.estimators.row_updates import (
    RowUpdates,
    Source,
    checked_rows,
    part_of,
    plain,
    scaling_of,
    warn_of_gaps,
)
from fedpca.estimators.settings import StreamSettings, check_unchanged
from fedpca.estimators.stream_file import LiveStream
from fedpca.parallel import n_threads, thread_team
from fedpca.summaries import validation
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.feature_names import warn_if_unknown
from fedpca.summaries.merging import merge_distinct
from fedpca.summaries.rank import EnergyBand, Oversample
from fedpca.summaries.scale_advice import constant_features, dominant_feature
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale, divided, in_words, same_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers import (
    TRACKERS,
    Divided,
    LateFeatures,
    Nystrom,
    Standardized,
    Tracker,
    TrackerName,
    device_tracker,
)

BATCH_ROWS = 1024  # the documented default of `batch_size`, and rows enough to know the size of features by
_MIN_UNCHECKED_ENTRIES = 2**17  # of a batch: fewer are checked in the time of a few Python calls
_MIN_SHARED_ENTRIES = 2**17  # the products of fewer take less than to share them


class StreamingPCA(LiveStream, OneRowMixin, BasePCA):
    """Principal components of a stream of rows, in one pass and O(d r) memory, mergeable with others.

    Rows come in batches of any size, from one row up, dense or sparse (CSR, CSC), with NaN for missing
    entries; torch and CuPy arrays are processed on their own device. Fitted attributes are computed when they
    are read, so a long stream pays for them once.

    Args:
        n_components: how many components to keep: a whole number, a share of the variance in (0, 1), or
            None for all. With `energy`, the initial rank. Fewer if the rows span fewer; `fit` warns of fewer
            than asked for. Like all settings but `forget` and `whiten` it is read at the first batch:
            `partial_fit` rejects a later change.
        energy: an `EnergyBand`, or its (low, high), to adapt the rank to the stream as the paper does.
        forget: in (0, 1]. Every batch scales the singular values of all earlier rows by it, and their count
            by its square: memory fades over about 1 / (1 - forget²) batches.
        center: subtract the running mean; False gives the paper's uncentered algebra.
        scale: what every feature is divided by: "std", its standard deviation, as `StandardScaler` does;
            "binomial", of counts of an allele, sqrt(2 p (1 - p)); one positive number per feature; or None.
            The exact tracker needs one pass for it, also in `partial_fit`. Other trackers must know it before
            they begin: `fit` reads the rows twice, and `partial_fit` takes the scale of the first batch for
            all rows; give numbers, as of `Scaling.scale`, to have that of others. With missing entries it is
            the scale of the observed ones.
        whiten: scale the scores to unit variance.
        tracker: "exact" (d² memory), "nystrom" (the fast one), "block" (the paper's), or "auto": exact for
            at most max(256, 8 n_components) features, nystrom above; or a class of trackers.
        oversample: directions carried beyond n_components, which keeps truncation errors small;
            "auto" for about as many again (20 for 10, 45 for 20, 150 for 100).
        batch_size: rows per batch in `fit` with `forget`; the block size of the block tracker. None for 1024
            and, for the block tracker, twice the directions carried.
        random_state: seed of the nystrom tracker's choice of probes; None for a fixed seed.
        n_jobs: threads that share the work on many rows: None for as many as NumPy would use for a product of
            matrices, -1 for all cores. The result is the same with any number.

    Attributes:
        components_: shape (`n_components_`, n_features), by falling variance, the largest entry positive.
        explained_variance_, explained_variance_ratio_, singular_values_: shape (`n_components_`,). The
            nystrom tracker adds an estimate of what it discarded to what is certain, which `subspace_` has.
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

    _source: Source
    _settings: StreamSettings  # those that the stream began with
    _constant: AnyArray | None = None  # features that do not vary in the rows that the scale comes from
    _scaling: Scaling | None = None  # of rows read beforehand, for a tracker that must know the scale
    _merged_certificate: Certificate | None = None  # of a private summary among those merged: there is noise

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        energy: EnergyBand | tuple[float, float] | None = None,
        forget: float = 1.0,
        center: bool = True,
        scale: ScaleLike = None,
        whiten: bool = False,
        tracker: TrackerName | type[Tracker] = "auto",
        oversample: Oversample = "auto",
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.energy = energy
        self.forget = forget
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tracker = tracker
        self.oversample = oversample
        self.batch_size = batch_size
        self.random_state = random_state
        self.n_jobs = n_jobs

    # --- fitting ---

    def fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit X, shape (n_samples, n_features); any earlier fit is discarded."""
        with self._rollback_on_error():
            self._scaling = None
            X, weights = self._table(X, sample_weight, first=True)
            if weights is not None and not weights.any():
                raise ValueError("sample_weight must not be all zero: no row would count.")
            self._source = self._with_rows(None, X, weights, in_batches=True)
            self._n_rows_seen = X.shape[0]
            if isinstance(plain(self._source), LateFeatures):
                warn_if_unknown(self.subspace_)
        self._warn_of_scale(stacklevel=3)
        warn_of_gaps(self._source, stacklevel=2)
        if self.energy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=3)
        return self

    def partial_fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit one more batch, shape (n_samples, n_features), of any size from one row up."""
        first = not self._has_source()
        with self._rollback_on_error():
            X, weights = self._table(X, sample_weight, first=first)
            self._source = self._with_rows(None if first else self._source, X, weights)
            self._n_rows_seen = X.shape[0] + (0 if first else self._n_rows_seen)
            if first and self._constant is not None and self._scaling is None:
                if self._constant.all():
                    raise ValueError(
                        f"scale={self.scale!r} is here that of the first batch, in which no feature varies; "
                        "begin with more rows, or give one number per feature."
                    )
                if text := constant_features(self._constant, self._names(), " in the first batch"):
                    warnings.warn(text, stacklevel=2)
            warn_of_gaps(self._source, stacklevel=2)
            return self  # within: interrupted here, it would not know that the rows were taken

    def _table(
        self, X: RowsLike, sample_weight: ArrayLike | None, *, first: bool
    ) -> tuple[DeviceArray, Array | None]:
        """Rows whose values are not checked yet, and weights."""
        self._check_settings(first=first)
        X = self._validated(X, reset=first)
        return X, validation.sample_weight(sample_weight, X.shape[0])

    def _check_settings(self, *, first: bool) -> None:
        """Note the settings that a stream begins with; reject a change in mid-stream."""
        if first:
            self._settings, self._merged_certificate = StreamSettings.of(self), None
        else:
            check_unchanged(vars(self._settings), vars(self))

    def _with_rows(
        self, source: Source | None, X: DeviceArray, weights: Array | None, *, in_batches: bool = False
    ) -> Source:
        """A source with more rows, as one batch or in batches; a new one if there is none yet."""
        if source is None:
            dtype, backend = ops.working_dtype(backend_of(X).numpy_dtype(X)), self._backend_for(X)
        else:
            dtype, backend = source.dtype, source.backend
        with self._team(X.shape):
            gaps = None
            if not self._tracker_checks(X, dtype, weights):
                # Divided, rows that fit float64 may fit float32.
                checked_as = dtype if self.scale is None else np.dtype(np.float64)
                X, gaps = checked_rows(X, checked_as, backend, weights)
            if source is None:
                source = self._new_source(X, weights, dtype)
            updates = self._updates()
            if not in_batches:
                return updates.update(source, X, weights, gaps)
            for part in batch_slices(X.shape[0], self._batch_rows(X.shape, backend)):
                source = updates.update(source, X[part, :], part_of(weights, part), gaps)
            return source

    def _tracker_checks(self, X: RowsLike, dtype: DType, weights: Array | None) -> bool:
        """Whether the tracker checks rows as it multiplies them: many, which it takes as they are."""
        if not isinstance(X, np.ndarray) or X.size < _MIN_UNCHECKED_ENTRIES or X.dtype != dtype:
            return False
        if weights is not None or self.scale is not None:
            return False
        return self._settings.kind(X.shape[1]).tracker.checks_rows

    def _updates(self) -> RowUpdates:
        """How rows and summaries reach the tracker of this stream."""
        return RowUpdates(validation.forget(self.forget), self._names(), self._settings.new_tracker)

    def _batch_rows(self, shape: tuple[int, int], backend: Backend) -> int:
        """Rows per batch of a fit: before each, earlier rows are forgotten; scaled rows are a copy."""
        if validation.forget(self.forget) != 1:
            return self.batch_size or BATCH_ROWS
        return shape[0] if self.scale is None else chunk_rows(shape[1], backend)

    def _team(self, shape: tuple[int, int]) -> AbstractContextManager[object]:
        """Threads that share the work on rows, unless these are few."""
        threads = n_threads(self.n_jobs)
        return thread_team(threads) if shape[0] * shape[1] >= _MIN_SHARED_ENTRIES else NO_CONTEXT

    def _backend_for(self, X: RowsLike) -> Backend:
        """The backend for the first rows of a stream."""
        named = self.tracker if isinstance(self.tracker, str) else ""
        backend = backend_of(X)
        if not backend.on_device:
            return HOST
        if device_tracker(named, X.shape[1]) is not None:
            _warn_if_emulated()
            return backend
        if named in TRACKERS:
            warnings.warn(
                f"tracker={named!r} works on the host, and batches are copied there; "
                "tracker='auto' stays on the device.",
                stacklevel=4,
            )
        return HOST

    def _new_source(self, X: RowsLike, weights: Array | None, dtype: DType) -> Source:
        """A source for the first rows of a stream, which it does not have yet."""
        scale = check_scale(self.scale, X.shape[1], self._names())
        self._constant = None
        if not backend_of(X).on_device:  # there it is checked while updating
            some = X if scale is None or isinstance(scale, str) else divided(X[:BATCH_ROWS], scale)
            validation.require_no_underflow(stored_values(some), dtype)
        tracker = self._settings.new_tracker(X.shape[1], dtype, backend_of(X))
        if isinstance(scale, str) and tracker.gives_moments:
            first = slice(0, min(BATCH_ROWS, X.shape[0]))
            return Standardized.start(
                tracker, scale, Scaling.of_checked(X[first, :], part_of(weights, first))
            )
        if isinstance(scale, str):
            scaling = self._scaling or Scaling.of_checked(X, weights, self._names())
            scale, self._constant = scaling.scale(scale), scaling.constant
        return tracker if scale is None else Divided(tracker, scale)

    # --- scale ---

    def _needs_scaling(
        self, n_features: int, names: tuple[str, ...] | None = None, backend: Backend = HOST
    ) -> bool:
        """Whether a stream of so many features would take its scale from its first batch."""
        if self._has_source():
            return False
        scale = check_scale(self.scale, n_features, names)
        return isinstance(scale, str) and not StreamSettings.of(self).kind(n_features, backend).gives_moments

    def _use_scaling(self, scaling: Scaling) -> None:
        """Take the scale from this scaling of all rows to come, instead of the first batch."""
        scaling.scale(self.scale)  # type: ignore[arg-type]  # raises if the rule does not fit the features
        self._scaling = scaling

    def _warn_of_scale(self, stacklevel: int) -> None:
        """Warn of features that do not vary, if they are to be scaled, or else of one that dominates."""
        constant = self._constant
        if isinstance(self._source, Standardized):
            constant = self._source.scaling.constant
        text = constant_features(constant, self._names())
        if self.scale is None and self.center:
            subspace, _, variances = self._view()
            energies = None if variances is None else variances * subspace.count
            text = dominant_feature(subspace, energies, self._names())
        if text:
            warnings.warn(text, stacklevel=stacklevel)

    # --- merging ---

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
            summaries = [other.summary_ if isinstance(other, StreamingPCA) else other for other in others]
            fitted = self._has_source()
            self._check_settings(first=not fitted)
            own: list[Summary] = []
            if fitted:  # as far as it has to go with others
                own = [self.summary_ if isinstance(self._source, Standardized) else self.subspace_]
            names = check_compatible([*own, *summaries], option="fedpca.merge(..., features='intersection')")
            certificates = [part.certificate for part in summaries]
            certificates += [other._merged_certificate for other in others if isinstance(other, StreamingPCA)]
            first = summaries[0]
            if first.centered != bool(self.center):
                raise ValueError(
                    f"center={self.center} here, but the others are "
                    f"{'' if first.centered else 'un'}centered; build all with the same `center`."
                )
            source, summaries = (self._source, summaries) if fitted else self._source_for(summaries, names)
            self._source = self._updates().merge(source, summaries)
            rows = [
                other._n_rows_seen if isinstance(other, StreamingPCA) else other.count for other in others
            ]
            self._n_rows_seen = round(sum(rows)) + (self._n_rows_seen if fitted else 0)
            self._merged_certificate = next(filter(None, [*certificates, self._merged_certificate]), None)
            self.n_features_in_ = first.n_features
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _source_for(
        self, summaries: list[Summary], names: tuple[str, ...] | None
    ) -> tuple[Source, list[Summary]]:
        """A stream without rows that can go on from summaries, and these as it takes them."""
        first = next((part for part in summaries if part.count), summaries[0])
        dtype = first.components.dtype if isinstance(first, Subspace) else np.dtype(np.float64)
        tracker = self._settings.new_tracker(first.n_features, dtype)
        scale = check_scale(self.scale, first.n_features, names)
        self._constant = None
        if isinstance(scale, str) and not tracker.gives_moments:
            # It must know the scale before it begins: that of the rows that come first.
            if isinstance(first.scale, str):
                together = merge_distinct(summaries).subspace()
                summaries, known = [together], together.scale
            else:
                known = first.scale
            is_same = known is not None
        else:
            known = None if isinstance(scale, str) else scale
            is_same = not first.count or same_scale(scale, first.scale)
        if not is_same:
            remedy = "pass scale=summary.scale."
            if isinstance(scale, str) and isinstance(first, Subspace):
                remedy = (
                    f"to go on with scale={scale!r}, merge summary_ instead of subspace_; pass "
                    "scale=summary.scale to keep these numbers."
                )
            raise ValueError(
                f"scale must be that of what is merged, {in_words(first.scale)}, got {in_words(scale)}; "
                f"{remedy}"
            )
        if isinstance(scale, str) and tracker.gives_moments:
            scaling = Scaling.merge([scaling_of(part) for part in summaries])
            return Standardized.start(tracker, scale, scaling), summaries
        return tracker if known is None else Divided(tracker, known), summaries

    def _resume(self, summary: Summary, n_rows: int) -> None:
        """Go on from a summary of so many rows, more than its count if some were forgotten or skipped."""
        self.merge(summary)
        self._n_rows_seen = n_rows

    # --- what is shown ---

    @property
    def summary_(self) -> Summary:
        """The most exact summary to send or merge: `Moments` where they are known, else a `Subspace`."""
        self._require_fitted()
        return self._source.state().with_about(names=self._names())

    def _estimated_lack(self) -> Array | None:
        tracker = plain(self._source)
        return tracker.estimated_lack() if isinstance(tracker, Nystrom) else None

    def _known_spectrum(self) -> Subspace:
        self._require_fitted()
        return self._source.state().subspace().with_about(certificate=self._merged_certificate)


def _warn_if_emulated() -> None:
    """Warn if the environment has cuBLAS make up products of float32 or float64 from others.

    Such products are not those of IEEE numbers: they may change between versions of the toolkit and with
    other work on the device, and need not keep NaN and infinity, by which a batch is refused.
    """
    found = sorted(name for name in os.environ if name.startswith("CUBLAS_EMULAT"))
    if found:
        warnings.warn(
            f"the environment sets {', '.join(found)}: products on a GPU are then emulated, and may differ "
            "from run to run; unset it.",
            stacklevel=5,
        )
