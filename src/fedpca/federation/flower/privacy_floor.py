"""PrivacyFloor: the weakest privacy that a run accepts, from its run config to every node."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from fedpca._typing import JSON
from fedpca.errors import NodeError
from fedpca.privacy import Privacy
from fedpca.privacy.calibration import Adjacency


@dataclass(frozen=True)
class PrivacyFloor:
    """Releases need at most this epsilon, delta and, unless it is 0, bound, and this adjacency.

    >>> floor = PrivacyFloor.from_config({"rank": 10, "epsilon": 2.0, "delta": 1e-6, "bound": 40.0,
    ...                                   "adjacency": "replace-one"})
    >>> floor.to_config()
    {'epsilon': 2.0, 'delta': 1e-06, 'bound': 40.0, 'adjacency': 'replace-one'}
    """

    epsilon: float
    delta: float
    bound: float
    adjacency: Adjacency

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """The floor in a run config or a request; None without an epsilon: no privacy is required."""
        if not config.get("epsilon"):
            return None
        return cls(**{field.name: config[field.name] for field in fields(cls)})

    def to_config(self) -> JSON:
        """The same as keys of a request or a node config."""
        return asdict(self)

    @property
    def privacy(self) -> Privacy:
        """The same as the argument of an `Aggregator`."""
        return Privacy(**asdict(self) | {"bound": self.bound or "private"})

    def check(self, privacy: Privacy | None) -> None:
        """Raise a NodeError for settings whose releases the run would reject."""
        if privacy is None:
            raise NodeError(
                "the run accepts only private releases: set epsilon and delta in the node config."
            )
        if self.bound and isinstance(privacy.bound, str):
            raise NodeError(
                f"bound must be a number of at most {self.bound:g} in this run, got {privacy.bound!r}."
            )
        for name in ("epsilon", "delta", "bound") if self.bound else ("epsilon", "delta"):
            mine, limit = getattr(privacy, name), getattr(self, name)
            if mine > limit:
                raise NodeError(f"{name} must be at most {limit:g} in this run, got {mine:g}.")
        if privacy.adjacency != self.adjacency:
            raise NodeError(f"adjacency must be {self.adjacency!r}, got {privacy.adjacency!r}.")
