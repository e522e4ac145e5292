"""StreamingPCA: the scikit-learn face of the trackers."""

import warnings
from copy import deepcopy
from typing import Self

import numpy as np

from fedpca._typing import Array, ArrayLike, DeviceArray, RowsLike
from fedpca.backend import batch_slices, ops
from fedpca.estimators.base import warn_if_fewer
from fedpca.estimators.one_row import OneRowMixin
from fedpca.estimators.row_updates import Source, part_of, plain, warn_of_gaps
from fedpca.estimators.stream_file import LiveStream
from fedpca.estimators.stream_settings import StreamSettings
from fedpca.summaries import validation
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.feature_names import warn_if_unknown
from fedpca.summaries.merging import merge_distinct
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import known_to_any
from fedpca.summaries.rank import EnergyBand, Oversample
from fedpca.summaries.scale_advice import constant_features, dominant_feature
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale, in_words, same_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import View
from fedpca.trackers import LateFeatures, Nystrom, Standardized, Tracker, TrackerName


class StreamingPCA(LiveStream, OneRowMixin, StreamSettings):
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
            X, weights, dtype, backend = self._table(X, sample_weight, first=True)
            if weights is not None and not weights.any():
                raise ValueError("sample_weight must not be all zero: no row would count.")
            with self._team(X.shape):
                X, gaps = self._check_values(X, dtype, backend, weights)
                tracker = self._fit_stream(X, weights, gaps, self._new_tracker(X, weights, dtype))
            self._source, self._n_rows_seen = tracker, X.shape[0]
            if isinstance(plain(tracker), LateFeatures):
                warn_if_unknown(self.subspace_)
        self._warn_of_scale(stacklevel=3)
        warn_of_gaps(tracker, stacklevel=2)
        if self.energy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=3)
        return self

    def _fit_stream(
        self, X: DeviceArray, weights: Array | None, gaps: bool | None, tracker: Source
    ) -> Source:
        """A tracker of all rows, as one stream."""
        size = self._batch_rows(X.shape, tracker.backend)
        rows = self._row_updates()
        for part in batch_slices(X.shape[0], size):
            tracker = rows.update(tracker, X[part, :], part_of(weights, part), gaps)
        return tracker

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

    def partial_fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit one more batch, shape (n_samples, n_features), of any size from one row up."""
        first = not self._has_source()
        with self._rollback_on_error():
            X, weights, gaps, tracker = self._prepared(X, sample_weight, first=first)
            with self._team(X.shape):
                self._source = self._row_updates().update(tracker, X, weights, gaps)
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

    def _estimated_lack(self) -> Array | None:
        tracker = plain(self._source)
        return tracker.estimated_lack() if isinstance(tracker, Nystrom) else None

    def _known_spectrum(self) -> Subspace:
        self._require_fitted()
        known = self._with_divisor(self._source.state().subspace())
        return known.with_about(certificate=self._merged_certificate)

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
            own = [self._state_with_scale()] if fitted else []
            names = check_compatible([*own, *summaries], option="fedpca.merge(..., features='intersection')")
            certificates = [part.certificate for part in summaries]
            certificates += [other._merged_certificate for other in others if isinstance(other, StreamingPCA)]
            first = summaries[0]
            if first.centered != bool(self.center):
                raise ValueError(
                    f"center={self.center} here, but the others are "
                    f"{'' if first.centered else 'un'}centered; build all with the same `center`."
                )
            source: Source
            if fitted:
                source = deepcopy(self._source)
            else:
                source, summaries = self._source_for(summaries, names)
            if isinstance(source, Standardized):
                source = source.with_more(Scaling.merge([_scaling(part) for part in summaries]))
                summaries = [source.summary_in_units(part) for part in summaries]
            else:
                summaries = [part.with_about(scale=None) for part in summaries]
            tracker = plain(source)
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
            self._merged_certificate = next(filter(None, [*certificates, self._merged_certificate]), None)
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
        if isinstance(scale, str) and not tracker.gives_moments:
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
            scaling = Scaling.merge([_scaling(part) for part in summaries])
            return Standardized.start(tracker, scale, scaling), summaries
        return tracker, summaries

    def _resume(self, summary: Summary, n_rows: int) -> None:
        """Go on from a summary of so many rows, more than its count if some were forgotten or skipped."""
        self.merge(summary)
        self._n_rows_seen = n_rows

    @property
    def summary_(self) -> Summary:
        """The most exact summary to send or merge: `Moments` where they are known, else a `Subspace`."""
        self._require_fitted()
        return self._with_divisor(self._source.state()).with_about(names=self._names())

    def _view(self) -> View:
        view = self._source.view()
        return view if self._divisor is None else view._replace(subspace=self._with_divisor(view.subspace))


def _scaling(summary: Summary) -> Scaling:
    """Of the rows of moments; of no rows that of any summary."""
    return summary.scaling_of_rows() if isinstance(summary, Moments) else Scaling.empty(summary.n_features)
