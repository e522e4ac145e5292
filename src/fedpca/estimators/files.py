"""fit_files: the one loop that feeds an estimator from files; it can be stopped and resumed."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedpca import progress
from fedpca._typing import JSON
from fedpca.estimators.detector import PCADetector
from fedpca.estimators.limits import ScoreHistogram
from fedpca.estimators.private import PrivatePCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.parallel import n_threads, prefetch, thread_team
from fedpca.readers.data_file import Batch
from fedpca.readers.row_reader import RowReader
from fedpca.summaries import model_file
from fedpca.summaries.feature_names import warn_if_unknown
from fedpca.summaries.frozen import Frozen
from fedpca.summaries.loading import from_file, scaling_from_file
from fedpca.summaries.scaling import Scaling

_log = logging.getLogger(__name__)
_CHECKPOINT_SECONDS = 60
_HISTOGRAMS = 16  # kept at a time: 1 MB


def fit_files(
    pca: StreamingPCA | PrivatePCA,
    rows: RowReader,
    *,
    checkpoint: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Feed all rows of files to an estimator, reading ahead in a thread; it learns the feature names, too.

    The `n_jobs` threads of the estimator share the work on a batch while the next ones are read. The result
    is the same with any number of threads.

    The files are read once; twice if the estimator has `scale="std"` or "binomial" and its tracker must know
    the scale before it begins, as all but the exact one must. A `PrivatePCA` reads them once for each noisy
    sum, and releases the model.

    Args:
        pca: a `StreamingPCA`, empty if there is a checkpoint; or a `PrivatePCA`.
        rows: from `open_rows`.
        checkpoint: a model file that is written once a minute and when the fit is stopped. If it exists, the
            fit resumes from it, provided that files and settings are the same. Delete it when the model is
            saved. It stores what was learned without noise, so a `PrivatePCA` has none.
        should_stop: called after every batch; if true, the fit ends early.

    Returns:
        How many rows were learned, those of the checkpoint included.

    Raises:
        FileFormatError: a file cannot be read.

    >>> import fedpca, pathlib, tempfile
    >>> from fedpca.readers import open_rows
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("height,weight\\n1.7,60\\n1.8,70\\n1.6,50\\n")
    >>> pca = fedpca.StreamingPCA(1, scale="std")
    >>> fedpca.fit_files(pca, open_rows(path))
    3
    >>> pca.subspace_.feature_names
    ('height', 'weight')
    """
    if isinstance(pca, PrivatePCA):
        if checkpoint is not None:
            raise ValueError("checkpoint cannot be combined with privacy: it stores un-noised sums.")
        return _fit_private(pca, rows, should_stop)
    saved = None if checkpoint is None else _Checkpoint(checkpoint, pca, rows)
    with rows.naming_infinity():
        return _fit_plain(pca, rows, saved, should_stop)


def calibrate_files(detector: PCADetector, rows: RowReader) -> PCADetector:
    """The detector with the limit of all rows of files, which are read once more."""
    found = []
    with rows.naming_infinity(), progress.bar("limit", rows.n_rows, "rows") as bar:
        for batch in rows.batches():
            found.append(detector.score_histogram(batch))
            bar.advance(len(batch))
            if len(found) == _HISTOGRAMS:
                found = [ScoreHistogram.merge(found)]
    return detector.calibrate(ScoreHistogram.merge(found))


def _fit_plain(
    pca: StreamingPCA, rows: RowReader, saved: "_Checkpoint | None", should_stop: Callable[[], bool]
) -> int:
    done = 0 if saved is None else saved.resume()
    if pca._needs_scaling(rows.n_features, rows.feature_names):
        scaling = _scaling_of(rows, saved, should_stop)
        if scaling is None:
            return 0
        pca._use_scaling(scaling)
    with (
        thread_team(n_threads(pca.n_jobs)),
        progress.bar("rows", rows.n_rows, "rows") as bar,
        prefetch(rows.batches(skip=done)) as batches,
    ):
        bar.advance(done)
        for batch in batches:
            pca.partial_fit(batch)
            done += len(batch)
            bar.advance(len(batch))
            stopped = should_stop()
            if saved is not None:
                saved.update(done, now=stopped)
            if stopped:
                return done
    warn_if_unknown(pca.subspace_)
    pca._warn_of_scale(stacklevel=4)
    return done


def _scaling_of(
    rows: RowReader, saved: "_Checkpoint | None", should_stop: Callable[[], bool]
) -> Scaling | None:
    """The scaling of all rows of files, in a pass of its own; None if it was stopped."""
    scaling, done = Scaling.empty(rows.n_features, rows.feature_names), 0
    if saved is not None and saved.scaling is not None:
        scaling, done = saved.scaling
    with progress.bar("scale", rows.n_rows, "rows") as bar, prefetch(rows.batches(skip=done)) as batches:
        bar.advance(done)
        for batch in batches:
            scaling = Scaling.merge([scaling, Scaling.from_rows(batch.rows)])
            done += len(batch)
            bar.advance(len(batch))
            stopped = should_stop()
            if saved is not None:
                saved.update_scaling(scaling, done, now=stopped)
            if stopped:
                return None
    return scaling


def _fit_private(pca: PrivatePCA, rows: RowReader, should_stop: Callable[[], bool]) -> int:
    """A private fit of files, in several passes; 0 rows if it was stopped."""

    def read() -> Iterator[Batch]:
        with progress.bar("rows", n_rows, "rows") as bar, prefetch(rows.batches()) as batches:
            for batch in batches:
                yield batch
                bar.advance(len(batch))
                if should_stop():
                    raise _Stopped

    n_rows = rows.n_rows
    try:
        n_rows = sum(map(len, read())) if n_rows is None else n_rows
        pca.fit_batches(read, n_rows)
    except _Stopped:
        return 0
    return n_rows


class _Stopped(Exception):
    """A private fit that was stopped half-way: what was spent until then is spent."""


class _Checkpoint:
    """What an estimator has learned so far, with the files and settings it was learned from."""

    def __init__(self, path: Path, pca: StreamingPCA, rows: RowReader) -> None:
        settings = pca.get_params()
        settings.pop("n_jobs", None)  # nothing depends on it
        self._path, self._pca = path, pca
        self.scaling: tuple[Scaling, int] | None = None  # of so many rows, where the file has it
        if isinstance(settings.get("scale"), np.ndarray):
            settings["scale"] = settings["scale"].tolist()  # an array is abbreviated
        self._source = hashlib.sha256(f"{rows.fingerprint()} {sorted(settings.items())}".encode()).hexdigest()
        self._due = 0.0  # first written at once: that it cannot be should be known before hours of work

    def resume(self) -> int:
        """Merge what the file contains; returns its number of rows learned."""
        if not self._path.exists():
            return 0
        kind, arrays, metadata = model_file.read(self._path)
        saved = metadata.pop("checkpoint", None)
        metadata.pop("n_components", None)
        if not isinstance(saved, dict) or saved.get("source") != self._source:
            raise ValueError(
                f"{self._path} must be a checkpoint of the same files, unchanged, and the same settings; "
                "delete it, or choose another path."
            )
        _log.info("resuming from %s after %d rows", self._path, saved["rows"])
        if kind == Scaling.kind:
            self.scaling = scaling_from_file(self._path, arrays, metadata), int(saved["rows"])
            return 0
        self._pca._resume(from_file(self._path, kind, arrays, metadata), int(saved["rows"]))
        return int(saved["rows"])

    def update(self, n_rows: int, now: bool) -> None:
        """Write the file if it is due, or `now`."""
        if self._is_due(now):
            self._write(self._pca.summary_, n_rows, {"n_components": self._pca.n_components_})

    def update_scaling(self, scaling: Scaling, n_rows: int, now: bool) -> None:
        """The same in the pass before, of the scaling of so many rows."""
        if self._is_due(now):
            self._write(scaling, n_rows, {})

    def _is_due(self, now: bool) -> bool:
        return now or time.monotonic() >= self._due

    def _write(self, learned: Frozen, n_rows: int, more: JSON) -> None:
        saved = {"checkpoint": {"rows": n_rows, "source": self._source}}
        model_file.write(self._path, learned.kind, learned.arrays, learned.metadata | more | saved)
        self._due = time.monotonic() + _CHECKPOINT_SECONDS
        _log.info("checkpoint %s written after %d rows", self._path, n_rows)
