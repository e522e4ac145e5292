"""StreamSettings: what the settings of a stream of rows mean, and the trackers that follow from them."""

import os
import warnings
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import numpy as np
from sklearn.utils import check_random_state

from fedpca._typing import JSON, AnyArray, Array, ArrayLike, DeviceArray, DType, DTypeLike, RowsLike
from fedpca.backend import HOST, Backend, backend_of, ops
from fedpca.backend.base import NO_CONTEXT
from fedpca.estimators.base import BasePCA, chunk_rows, stored_values
from fedpca.estimators.rank_rule import rank_rule
from fedpca.estimators.row_updates import RowUpdates, Source, checked_rows, part_of
from fedpca.parallel import n_threads, thread_team
from fedpca.summaries import validation
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.rank import EnergyBand, FixedRank, Oversample, RankRule
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale, divided
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trackers import TRACKERS, Standardized, Tracker, TrackerName, device_tracker, fastest

BATCH_ROWS = 1024
_MIN_UNCHECKED_ENTRIES = 2**17  # of a batch: fewer are checked in the time of a few Python calls
_MIN_SHARED_ENTRIES = 2**17  # the products of fewer take less than to share them
_MAX_FEATURES_FOR_ALL = 4096

# Settings that a stream takes from its first batch on; a later change would have no effect.
_STREAM_SETTINGS = (
    "n_components", "energy", "center", "scale", "tracker", "oversample", "batch_size", "random_state",
)  # fmt: skip

_S = TypeVar("_S", Subspace, Summary)


class KindOfTracker(NamedTuple):
    """Which tracker serves a stream.

    Attributes:
        tracker: its class.
        rule: how many directions are wanted.
        gives_moments: whether what it sends is the moments of all rows.
    """

    tracker: type[Tracker]
    rule: RankRule
    gives_moments: bool


class StreamSettings(BasePCA):
    """The settings of `StreamingPCA`, which explains them, and the trackers that follow from them."""

    n_components: int | float | None
    energy: EnergyBand | tuple[float, float] | None
    forget: float
    center: bool
    scale: ScaleLike
    tracker: TrackerName | type[Tracker]
    oversample: Oversample
    batch_size: int | None
    random_state: int | np.random.RandomState | None
    n_jobs: int | None

    _source: Source
    _settings: JSON  # those that the stream began with
    _divisor: Array | None = None  # of rows on their way to the tracker
    _constant: AnyArray | None = None  # features that do not vary in the rows that the divisor comes from
    _scaling: Scaling | None = None  # of rows read beforehand, for a tracker that must know the scale
    _merged_certificate: Certificate | None = None  # of a private summary among those merged: there is noise

    # --- settings ---

    def _check_settings(self, *, first: bool) -> None:
        """Note the settings that a stream begins with; reject a change in mid-stream."""
        if first:
            self._settings = {name: getattr(self, name) for name in _STREAM_SETTINGS}
            self._merged_certificate = None
            return
        check_unchanged(self._settings, self.__dict__)

    def _check_sizes(self) -> None:
        if self.batch_size is not None:
            validation.integer(self.batch_size, "batch_size", at_least=1)
        if self.oversample != "auto":
            validation.integer(self.oversample, "oversample", at_least=0)

    def _rank_rule(self, n_features: int) -> RankRule:
        rule = rank_rule(self.n_components, self.energy, n_features)
        if rule is None and n_features > _MAX_FEATURES_FOR_ALL and self.tracker != "exact":
            raise ValueError(
                f"n_components=None keeps all {n_features} directions, {8e-9 * n_features**2:.1f} GB; "
                "choose n_components (tracker='exact' keeps all in any case)."
            )
        return FixedRank(n_features) if rule is None else rule

    # --- rows ---

    def _prepared(
        self, X: RowsLike, sample_weight: ArrayLike | None, *, first: bool
    ) -> tuple[DeviceArray, Array | None, bool | None, Source]:
        """Rows, weights, what `_check_values` says of gaps, and the tracker: new for the first rows."""
        X, weights, dtype, backend = self._table(X, sample_weight, first=first)
        X, gaps = self._check_values(X, dtype, backend, weights)
        return X, weights, gaps, self._new_tracker(X, weights, dtype) if first else self._source

    def _table(
        self, X: RowsLike, sample_weight: ArrayLike | None, *, first: bool
    ) -> tuple[DeviceArray, Array | None, DType, Backend]:
        """Rows whose values are not checked yet, weights, and the dtype and backend they are worked on in."""
        self._check_settings(first=first)
        X = self._validated(X, reset=first)
        weights = validation.sample_weight(sample_weight, X.shape[0])
        if not first:
            return X, weights, self._source.dtype, self._source.backend
        return X, weights, ops.working_dtype(backend_of(X).numpy_dtype(X)), self._backend_for(X)

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
                stacklevel=5,
            )
        return HOST

    def _check_values(
        self, X: RowsLike, dtype: DTypeLike, backend: Backend, weights: Array | None
    ) -> tuple[DeviceArray, bool | None]:
        """Rows on the backend, and whether any entry is missing; None if the tracker will check them."""
        if self._tracker_checks(X, dtype, weights):
            return X, None
        return checked_rows(X, dtype, backend, weights, is_scaled=self.scale is not None)

    def _tracker_checks(self, X: RowsLike, dtype: DTypeLike, weights: Array | None) -> bool:
        """Whether the tracker checks rows as it multiplies them: many, which it takes as they are."""
        if not isinstance(X, np.ndarray) or X.size < _MIN_UNCHECKED_ENTRIES or X.dtype != dtype:
            return False
        if weights is not None or self.scale is not None:
            return False
        return self._kind_of_tracker(X.shape[1]).tracker.checks_rows

    def _row_updates(self) -> RowUpdates:
        """How rows reach the tracker of this stream."""
        return RowUpdates(
            validation.forget(self.forget),
            bool(self.center),
            self._divisor,
            self.scale is not None,
            self._names(),
            self._plain_tracker,
        )

    def _batch_rows(self, shape: tuple[int, int], backend: Backend) -> int:
        """Rows per batch of a fit: before each, earlier rows are forgotten; scaled rows are a copy."""
        if validation.forget(self.forget) != 1:
            return self.batch_size or BATCH_ROWS
        return shape[0] if self.scale is None else chunk_rows(shape[1], backend)

    def _team(self, shape: tuple[int, int]) -> AbstractContextManager[object]:
        """Threads that share the work on rows, unless these are few."""
        threads = n_threads(self.n_jobs)
        return thread_team(threads) if shape[0] * shape[1] >= _MIN_SHARED_ENTRIES else NO_CONTEXT

    # --- trackers ---

    def _new_tracker(self, X: RowsLike, weights: Array | None, dtype: DTypeLike) -> Source:
        """A tracker for the first rows of a stream."""
        scale = check_scale(self.scale, X.shape[1], self._names())
        self._divisor = self._constant = None
        self._divisor = None if isinstance(scale, str) else scale
        if not backend_of(X).on_device:  # there it is checked while updating
            first = X if self._divisor is None else divided(X[:BATCH_ROWS], self._divisor)
            validation.require_no_underflow(stored_values(first), dtype)
        tracker = self._plain_tracker(X.shape[1], dtype, backend_of(X))
        if isinstance(scale, str) and tracker.gives_moments:
            some = slice(0, min(BATCH_ROWS, X.shape[0]))
            first_rows = Scaling.of_checked(X[some, :], part_of(weights, some))
            return Standardized.start(tracker, scale, first_rows)
        if isinstance(scale, str):
            scaling = self._scaling or Scaling.of_checked(X, weights, self._names())
            self._divisor, self._constant = scaling.scale(scale), scaling.constant
        return tracker

    def _kind_of_tracker(self, n_features: int, backend: Backend = HOST) -> KindOfTracker:
        """The class of trackers for so many features, and what they are to find."""
        validation.forget(self.forget)
        self._check_sizes()
        rule = self._rank_rule(n_features)
        if isinstance(self.tracker, type) and issubclass(self.tracker, Tracker):
            return KindOfTracker(self.tracker, rule, gives_moments=self.tracker.gives_moments)
        name = fastest(n_features, rule) if self.tracker == "auto" else self.tracker
        if not isinstance(name, str) or name not in TRACKERS:
            raise ValueError(
                f"tracker must be 'auto', one of {list(TRACKERS)} or a class of trackers, got "
                f"{self.tracker!r}."
            )
        kind = device_tracker(self.tracker, n_features) if backend.on_device else TRACKERS[name]
        assert kind is not None  # else the backend is the host
        return KindOfTracker(kind, rule, gives_moments=name == "exact")

    def _plain_tracker(self, n_features: int, dtype: DTypeLike, backend: Backend = HOST) -> Tracker:
        kind, rule, gives_moments = self._kind_of_tracker(n_features, backend)
        settings: JSON = {
            "block_rows": self.batch_size,
            "backend": backend,
            "gives_moments": gives_moments,
            "mixed_units": isinstance(self.scale, str),
            "precise": self.tracker == "exact" or backend.needs_float64,
        }
        if "seed" in kind.settings and self.random_state is not None:
            settings["seed"] = check_random_state(self.random_state).randint(2**31)
        settings = {name: value for name, value in settings.items() if name in kind.settings}
        return kind(
            n_features, rule, oversample=self.oversample, center=bool(self.center), dtype=dtype, **settings
        )

    # --- scale ---

    def _needs_scaling(
        self, n_features: int, names: tuple[str, ...] | None = None, backend: Backend = HOST
    ) -> bool:
        """Whether a stream of so many features would take its scale from its first batch."""
        if self._has_source():
            return False
        scale = check_scale(self.scale, n_features, names)
        return isinstance(scale, str) and not self._kind_of_tracker(n_features, backend).gives_moments

    def _use_scaling(self, scaling: Scaling) -> None:
        """Take the scale from this scaling of all rows to come, instead of the first batch."""
        scaling.scale(self.scale)  # type: ignore[arg-type]  # raises if the rule does not fit the features
        self._scaling = scaling

    def _with_divisor(self, summary: _S) -> _S:
        """A summary of rows as the tracker has them, with what they were divided by."""
        return summary if self._divisor is None else summary.with_about(scale=self._divisor)


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
            stacklevel=6,
        )


def check_unchanged(before: JSON, now: JSON) -> None:
    """Reject settings that are not those that a stream began with."""
    for name, value in before.items():
        if now[name] is not value and not _is_same(value, now[name]):
            raise ValueError(
                f"{name} must stay {value!r}, as it was when the stream began, got "
                f"{name}={now[name]!r}; set it back, or begin again with fit."
            )


def _is_same(before: object, now: object) -> bool:
    """Whether a setting has not changed."""
    try:
        return bool(before == now)
    except ValueError:  # of arrays
        return np.array_equal(before, now)  # type: ignore[arg-type]
