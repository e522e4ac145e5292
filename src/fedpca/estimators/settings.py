"""The settings that a stream of rows keeps from its first batch on, and the trackers that they make."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import NamedTuple, Self

import numpy as np
from sklearn.utils import check_random_state

from fedpca._typing import JSON, DTypeLike
from fedpca.backend import HOST, Backend
from fedpca.summaries import validation
from fedpca.summaries.rank import EnergyBand, FixedRank, Oversample, RankRule, VarianceShare
from fedpca.summaries.scaling import ScaleLike
from fedpca.trackers import TRACKERS, Tracker, TrackerName, device_tracker, fastest

_MAX_FEATURES_FOR_ALL = 4096  # all directions of so many are 134 MB; of more nobody means to keep all


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


@dataclass(frozen=True)
class StreamSettings:
    """Settings of `StreamingPCA`, which explains them, that must stay as they were when a stream began."""

    n_components: int | float | None
    energy: EnergyBand | tuple[float, float] | None
    center: bool
    scale: ScaleLike
    tracker: TrackerName | type[Tracker]
    oversample: Oversample
    batch_size: int | None
    random_state: int | np.random.RandomState | None

    @classmethod
    def of(cls, estimator: object) -> Self:
        return cls(**{field.name: getattr(estimator, field.name) for field in fields(cls)})

    def kind(self, n_features: int, backend: Backend = HOST) -> KindOfTracker:
        """The class of trackers for so many features, and what they are to find."""
        if self.batch_size is not None:
            validation.integer(self.batch_size, "batch_size", at_least=1)
        if self.oversample != "auto":
            validation.integer(self.oversample, "oversample", at_least=0)
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

    def _rank_rule(self, n_features: int) -> RankRule:
        rule = rank_rule(self.n_components, self.energy, n_features)
        if rule is None and n_features > _MAX_FEATURES_FOR_ALL and self.tracker != "exact":
            raise ValueError(
                f"n_components=None keeps all {n_features} directions, {8e-9 * n_features**2:.1f} GB; "
                "choose n_components (tracker='exact' keeps all in any case)."
            )
        return FixedRank(n_features) if rule is None else rule

    def new_tracker(self, n_features: int, dtype: DTypeLike, backend: Backend = HOST) -> Tracker:
        """A tracker without rows."""
        kind, rule, gives_moments = self.kind(n_features, backend)
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


def rank_rule(n_components: object, energy: object, n_features: int) -> RankRule | None:
    """The rule for rows of `n_features`; None where both settings are None: all directions.

    >>> rank_rule(3, None, n_features=8), rank_rule(0.9, None, n_features=8)
    (FixedRank(rank=3), VarianceShare(share=0.9))
    """
    if energy is not None:
        band = EnergyBand(*energy) if isinstance(energy, tuple | list) and len(energy) == 2 else energy
        if not isinstance(band, EnergyBand):
            raise TypeError(f"energy must be an EnergyBand or its (low, high), got {energy!r}.")
        if n_components is not None:
            band = replace(band, first=validation.rank(n_components, n_features, "n_components"))
        return band
    if n_components is None:
        return None
    if isinstance(n_components, Integral) and not isinstance(n_components, bool):
        return FixedRank(validation.rank(n_components, n_features, "n_components"))
    rule = "n_components must be a whole number, a share of the variance in (0, 1) or None"
    if not validation.is_real(n_components):
        raise TypeError(f"{rule}, got {n_components!r}.")
    if not 0 < n_components < 1:
        raise ValueError(f"{rule}, got {n_components!r}.")
    return VarianceShare(float(n_components))


def check_unchanged(before: Mapping[str, object], now: Mapping[str, object]) -> None:
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
