"""Which trackers there are, by name, and which of them is the fastest."""

from typing import Literal

from fedpca.summaries.rank import RankRule, VarianceShare
from fedpca.trackers.base import Tracker
from fedpca.trackers.block import Block
from fedpca.trackers.exact import Exact
from fedpca.trackers.nystrom.tracker import Nystrom
from fedpca.trackers.on_device.exact import DeviceExact
from fedpca.trackers.on_device.wide import DeviceWide

TrackerName = Literal["auto", "exact", "nystrom", "block"]
TRACKERS: dict[str, type[Tracker]] = {"exact": Exact, "nystrom": Nystrom, "block": Block}

# Until so many features d x d products are faster than two products with the probes, by measurement.
_MAX_EXACT_FEATURES = 256
_MAX_EXACT_FEATURES_PER_COMPONENT = 8
# A share of the variance takes an unknown number of directions: all are kept while d² numbers are affordable.
_MAX_EXACT_FEATURES_FOR_SHARE = 4096
# On a device d x d products are faster than any sketch while three d x d matrices of float64 fit (1.6 GB).
_MAX_EXACT_FEATURES_ON_DEVICE = 8192


def fastest(n_features: int, rule: RankRule) -> str:
    """The tracker that is fastest on the host for this many features and directions.

    >>> from fedpca.summaries.rank import FixedRank
    >>> fastest(64, FixedRank(10)), fastest(784, FixedRank(10)), fastest(784, FixedRank(100))
    ('exact', 'nystrom', 'exact')
    """
    if isinstance(rule, VarianceShare):
        limit = _MAX_EXACT_FEATURES_FOR_SHARE
    else:
        limit = max(_MAX_EXACT_FEATURES, _MAX_EXACT_FEATURES_PER_COMPONENT * rule.start(n_features))
    return "exact" if n_features <= limit else "nystrom"


def device_tracker(name: str, n_features: int) -> type[Tracker] | None:
    """The tracker for rows on a device; None for those that work on the host alone."""
    if name == "exact" or (name == "auto" and n_features <= _MAX_EXACT_FEATURES_ON_DEVICE):
        return DeviceExact
    return DeviceWide if name == "auto" else None
