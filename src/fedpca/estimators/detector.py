"""PCADetector: one score per row, a limit that holds, and the feature that causes an alarm."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from fedpca._typing import JSON, AnyArray, Array, RowsLike
from fedpca.backend import to_host
from fedpca.errors import ModelFileError
from fedpca.estimators.base import BasePCA
from fedpca.estimators.contributions import Contributions
from fedpca.estimators.limits import ScoreHistogram
from fedpca.estimators.scoring import ModelPCA
from fedpca.estimators.stream_file import LiveStream
from fedpca.estimators.streaming import StreamingPCA
from fedpca.readers.data_file import Batch
from fedpca.summaries import model_file, validation
from fedpca.summaries.loading import from_file, split_facts
from fedpca.summaries.scaling import ScaleLike
from fedpca.summaries.summary import Summary
from fedpca.trackers import Tracker, TrackerName

_PASSES = 2
"""Of trimming. None loses .012 AUROC on ADBench (`benchmarks.monitoring adbench`)."""
_LEAST_ROWS = 10  # so that the model of the other folds is of several rows
_FOLDS = 5  # of rows, each scored by the model of the others
_ROWS_PER_FEATURE = 50
"""With fewer rows per feature of the fit, limits come from rows that the model did not see: scores of the
rows of a fit are too low by about d / n, at 50 too little to see (`benchmarks.monitoring alarms`)."""


class PCADetector(LiveStream, OutlierMixin, BaseEstimator):
    """Outliers and faults by PCA: a score per row, its limit, and what each feature contributes.

    The score is T² / k + SPE / E[SPE] + D² / E[D²], of k components and the squared Mahalanobis distance D²:
    3 in the mean. The fit is robust: twice, the tenth of the rows with the highest scores is left out, and
    the model is fitted again. The limit is a quantile of the scores of all rows under that model, whatever
    their distribution; of few rows per feature, each row is scored by the model of others.

    Args:
        n_components: how many components to keep: a whole number, or a share of the variance in (0, 1).
        contamination: share of the rows of the fit that are taken to be outliers, in [0, 0.5).
        alarms: share of normal rows that may be above the limit, in (0, 1).
        trim: share of rows that are left out of the model, in [0, 0.5): those with the highest scores.
        scale: what features are divided by, as in `StreamingPCA`.
        forget: in (0, 1]: every batch scales the weights of all earlier rows, and of their scores, by its
            square.
        tracker: as in `StreamingPCA`.
        random_state: likewise.
        n_jobs: likewise.

    Attributes:
        pca_: the `StreamingPCA` of the rows that were not left out.
        histogram_: the `ScoreHistogram` that the limit is a quantile of; None of a merged detector.
        limit_: the score above which a row is an outlier.
        offset_: its negative, for scikit-learn.

    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(500, 6))
    >>> rows[7, 3] += 5.0                                           # a sensor fails
    >>> detector = PCADetector(2, alarms=0.002).fit(rows)
    >>> np.flatnonzero(detector.predict(rows) == -1), detector.contributions(rows[7:8]).named
    (array([7]), array([3]))
    """

    pca_: StreamingPCA | ModelPCA
    histogram_: ScoreHistogram | None
    _expected: float  # the share of outliers among the rows of the histogram

    def __init__(
        self,
        n_components: int | float = 0.5,
        *,
        contamination: float = 0.0,
        alarms: float = 0.01,
        trim: float = 0.1,
        scale: ScaleLike = "std",
        forget: float = 1.0,
        tracker: TrackerName | type[Tracker] = "auto",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.contamination = contamination
        self.alarms = alarms
        self.trim = trim
        self.scale = scale
        self.forget = forget
        self.tracker = tracker
        self.random_state = random_state
        self.n_jobs = n_jobs

    # --- fitting ---

    def fit(self, X: RowsLike, y: object = None) -> Self:
        """Fit X, shape (n_samples, n_features), NaN if missing; any earlier fit is discarded."""
        self._check_settings()
        pca = self._new_pca()
        with _fewer_components_are_fine():
            pca.fit(X)
        rows = self._rows(X, pca)
        _require_enough(pca, rows.shape[0], self.n_components)
        keep = np.ones(rows.shape[0], dtype=bool)
        for _ in range(_PASSES if self.trim else 0):
            keep = _lowest(_scores_of(pca, rows), rows.shape[0] - int(self.trim * rows.shape[0]))
            pca = self._fitted_to(rows[keep], pca)
        seen = _has_values(rows)
        self.histogram_ = ScoreHistogram.of(self._unseen_scores(pca, rows, keep)[seen])
        self.pca_, self._expected = pca, self.contamination
        return self

    def partial_fit(self, X: RowsLike, y: object = None) -> Self:
        """Fit one more batch of rows, without those that the model so far scores as high as `trim` of all
        rows.

        At most that share of the batch is left out: a change that lasts is learned. The first batch is fitted
        as by `fit`; every later one is scored before it is learned. Of a batch of fewer than 1 / `trim` rows,
        all are learned.
        """
        if not hasattr(self, "pca_"):
            return self.fit(X)
        self._check_settings()
        if not isinstance(self.pca_, StreamingPCA):
            raise ValueError(
                "a detector of a model learns no rows: keep the live stream, see PCADetector.save."
            )
        histogram = self._histogram()
        rows = self._rows(X, self.pca_)
        scores = _scores_of(self.pca_, rows)
        above = int(np.count_nonzero(scores > histogram.quantile(1 - self.trim)))
        keep = _lowest(scores, len(scores) - min(above, int(self.trim * len(scores))))
        self.pca_.partial_fit(Batch(rows[keep], self.pca_._names()))
        seen = ScoreHistogram.of(scores[_has_values(rows)])
        self.histogram_ = ScoreHistogram.merge([histogram.faded(self.forget**2), seen])
        return self

    def _unseen_scores(self, pca: StreamingPCA, rows: Any, keep: AnyArray) -> Array:
        """Scores by the model or, of few rows, by models of the other rows that it keeps."""
        n, d = rows.shape
        if n >= _ROWS_PER_FEATURE * d:
            return _scores_of(pca, rows)
        scores, fold = np.empty(n), np.arange(n) % _FOLDS
        for each in range(_FOLDS):
            others = self._fitted_to(rows[keep & (fold != each)], pca)
            scores[fold == each] = _scores_of(others, rows[fold == each])
        return scores

    def _new_pca(self) -> StreamingPCA:
        return StreamingPCA(
            self.n_components,
            forget=self.forget,
            scale=self.scale,
            tracker=self.tracker,
            random_state=self.random_state,
            n_jobs=self.n_jobs,
        )

    def _fitted_to(self, rows: Any, like: StreamingPCA) -> StreamingPCA:
        """A model of these rows, with the names of another."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say, the first fit has said
            return self._new_pca().fit(Batch(rows, like._names()))

    def _check_settings(self) -> None:
        for name in ("contamination", "trim"):
            value = getattr(self, name)
            if not validation.is_real(value) or not 0 <= value < 0.5:
                raise ValueError(f"{name} must lie in [0, 0.5), got {name}={value!r}.")
        if not validation.is_real(self.alarms) or not 0 < self.alarms < 1:
            raise ValueError(f"alarms must lie in (0, 1), got alarms={self.alarms!r}.")

    # --- scores ---

    def score_samples(self, X: RowsLike) -> Array:
        """The negative score of each row, shape (n_samples,): -3 in the mean, lower if unusual."""
        check_is_fitted(self)
        return -self.pca_.anomaly_score(X)

    def decision_function(self, X: RowsLike) -> Array:
        """How far below the limit the score of each row is, shape (n_samples,); negative for outliers."""
        check_is_fitted(self)
        limit = self.limit_
        return limit + self.score_samples(X)

    def predict(self, X: RowsLike) -> AnyArray:
        """-1 for outliers, whose score is above the limit, and 1 for all others, shape (n_samples,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def contributions(self, X: RowsLike) -> Contributions:
        """What each feature adds to the score of each row, and the feature to name: `Contributions`."""
        check_is_fitted(self)
        return self.pca_.contributions(X)

    @property
    def limit_(self) -> float:
        return self._histogram().quantile((1 - self._expected) * (1 - self.alarms))

    @property
    def offset_(self) -> float:
        return -self.limit_

    @property
    def n_features_in_(self) -> int:
        return self._fitted_pca("n_features_in_").n_features_in_

    @property
    def feature_names_in_(self) -> AnyArray:
        return self._fitted_pca("feature_names_in_").feature_names_in_

    def _fitted_pca(self, attribute: str) -> BasePCA:
        if "pca_" not in self.__dict__:
            raise AttributeError(f"{attribute} is learned by fit: call it first.")
        return self.pca_

    def _histogram(self) -> ScoreHistogram:
        check_is_fitted(self)
        if self.histogram_ is None:
            raise NotFittedError(
                "this detector has no limit, as its model is merged: call calibrate with rows, or with the "
                "score_histogram of every owner."
            )
        return self.histogram_

    @staticmethod
    def _rows(X: RowsLike, pca: BasePCA) -> Any:
        """Checked rows on the host, dense or CSR."""
        rows, _ = pca._checked(X)
        return rows if sparse.issparse(rows) else to_host(rows)

    # --- merging ---

    def merge(self, *others: "PCADetector") -> Self:
        """Learn what others learned, as if their rows had come here; the others stay as they are.

        The limit is not known then: `calibrate` sets it.
        """
        for other in others:
            if not isinstance(other, PCADetector):
                raise TypeError(
                    f"merge takes PCADetector objects, got a {type(other).__name__}, whose rows were not "
                    "trimmed; score with it by PCADetector.of_model."
                )
        parts = [other for other in (self, *others) if hasattr(other, "pca_")]
        if not others or len(parts) < len(others):
            raise NotFittedError("merge needs other detectors that are fitted: call fit first.")
        if any(not isinstance(part.pca_, StreamingPCA) for part in parts):
            raise ValueError(
                "a detector of a model does not merge; merge the models, then PCADetector.of_model."
            )
        self.pca_ = self._new_pca().merge(*(part.pca_ for part in parts))
        self.histogram_, self._expected = None, self.contamination
        return self

    def score_histogram(self, X: RowsLike) -> ScoreHistogram:
        """The scores of rows on public bins: what an owner sends for the limit of a merged detector."""
        check_is_fitted(self)
        rows = self._rows(X, self.pca_)
        return ScoreHistogram.of(_scores_of(self.pca_, rows)[_has_values(rows)])

    def calibrate(self, scores: "RowsLike | ScoreHistogram", *, contamination: float | None = None) -> Self:
        """Take the limit from these rows, or from the merged histograms of all owners, and no others.

        Args:
            scores: rows, or a `ScoreHistogram`.
            contamination: share of them that are outliers; 0 for rows that are trusted. By default that of
                the detector.
        """
        found = scores if isinstance(scores, ScoreHistogram) else self.score_histogram(scores)
        if not found.count:
            raise ValueError("calibrate needs rows with values, got none.")
        expected = self.contamination if contamination is None else contamination
        if not validation.is_real(expected) or not 0 <= expected < 0.5:
            raise ValueError(f"contamination must lie in [0, 0.5), got contamination={expected!r}.")
        self.histogram_, self._expected = found, float(expected)
        return self

    def trimmed(self, X: RowsLike) -> Self:
        """A detector of an owner's rows without those that this one, merged and calibrated, scores highest.

        The trimmed pass of a federation: all owners leave out what is above the same score, that above which
        `trim` of the rows of all are; the results merge.
        """
        check_is_fitted(self)
        if self.pca_.subspace_.certificate is not None:
            raise ValueError(
                "a private model is not trimmed in this version: which rows are left out would have to be "
                "private, too; use it as it is."
            )
        rows, limit = self._rows(X, self.pca_), self._histogram().quantile(1 - self.trim)
        own = clone(self)
        keep = _scores_of(self.pca_, rows) <= limit
        if not keep.any():
            raise ValueError("no row is left: all are among those that the merged detector leaves out.")
        own.pca_ = own._fitted_to(rows[keep], self.pca_)
        own.histogram_, own._expected = None, own.contamination
        return own

    # --- files ---

    @classmethod
    def of_model(cls, model: Summary, n_components: int, **settings: Any) -> Self:
        """A detector by a model as it stands, private or not; `calibrate` sets its limit.

        Args:
            model: a summary.
            n_components: how many of its directions to score by.
            settings: `contamination` and `alarms`.
        """
        made = cls(n_components, **settings)
        made._check_settings()
        made.pca_, made.histogram_, made._expected = ModelPCA(model, n_components), None, made.contamination
        return made

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write a model file with the limit, which stays with its owner: it cannot be sent as it is.

        It has the model and the histogram of scores, and no rows; `save` keeps the live stream.
        """
        model_file.write(path, *self._contents())

    def _contents(self) -> model_file.Contents:
        check_is_fitted(self)
        summary = self.pca_.model if isinstance(self.pca_, ModelPCA) else self.pca_.summary_
        facts: JSON = {"n_components": self.pca_.n_components_}
        facts |= {} if self.histogram_ is None else {"limits": self.limits_}
        return summary.kind, dict(summary.arrays), summary.metadata | facts

    @property
    def limits_(self) -> JSON:
        """The limit as a model file has it, for its owner alone."""
        scores = self._histogram().to_json()
        return {"alarms": self.alarms, "contamination": self._expected, "scores": scores}

    @classmethod
    def load_model(cls, path: str | os.PathLike[str]) -> Self:
        """The detector in a file that `save_model` wrote; it scores, and learns no more rows."""
        kind, arrays, metadata = model_file.read(path)
        facts, beside = split_facts(path, metadata)
        summary = from_file(path, kind, arrays, facts)
        shown = beside.get("n_components", summary.subspace().rank)
        if not 1 <= shown <= summary.n_features:
            raise ModelFileError(f"{path} has no components to score rows by.")
        limits = beside.get("limits")
        if limits is None:
            return cls.of_model(summary, shown)
        try:
            made = cls.of_model(summary, shown, alarms=limits["alarms"])
            found = ScoreHistogram.from_json(limits["scores"])
            return made.calibrate(found, contamination=limits["contamination"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(f"{path} has limits that are not valid: {error}") from error

    # --- scikit-learn ---

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "pca_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def _scores_of(pca: BasePCA, rows: Any) -> Array:
    """The score of rows that have lost their names on the way."""
    return pca.anomaly_score(Batch(rows, pca._names()))


def _lowest(scores: Array, count: int) -> AnyArray:
    """Where the `count` lowest scores are, as a mask; of equal ones the first."""
    keep = np.zeros(len(scores), dtype=bool)
    keep[np.argsort(scores, kind="stable")[:count]] = True
    return keep


def _has_values(rows: Any) -> AnyArray:
    """Which rows have any value, shape (n,): the others say nothing of a limit."""
    if sparse.issparse(rows):
        return np.ones(rows.shape[0], dtype=bool)
    return ~np.isnan(rows).all(axis=1)


def _require_enough(pca: StreamingPCA, n_rows: int, n_components: object) -> None:
    """Refuse rows that no limit can be learned from."""
    if n_rows < _LEAST_ROWS:
        raise ValueError(f"a limit needs at least {_LEAST_ROWS} rows, got n_samples={n_rows}.")
    if isinstance(n_components, int) and n_rows <= n_components:
        raise ValueError(
            f"a detector needs more rows than components, got {n_rows} rows and n_components={n_components}."
        )
    if not pca.n_components_:
        raise ValueError("a detector needs features that vary, got rows that are all the same.")


@contextmanager
def _fewer_components_are_fine() -> Iterator[None]:
    """No warning that rows span fewer directions: there is a score of those that they span."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_components=.* but only")
        yield
