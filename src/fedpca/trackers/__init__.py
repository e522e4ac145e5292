"""Trackers: rows in, summary out, in one pass; one algorithm a file."""

from fedpca.summaries.rank import RankRule, VarianceShare
from fedpca.trackers.base import Tracker
from fedpca.trackers.baselines.frequent_directions import FrequentDirections, RobustFrequentDirections
from fedpca.trackers.baselines.grouse import Grouse
from fedpca.trackers.baselines.power_method import PowerMethod
from fedpca.trackers.baselines.spirit import EnergyThresholds, Spirit
from fedpca.trackers.block import Block
from fedpca.trackers.exact import Exact
from fedpca.trackers.nystrom.tracker import Nystrom

__all__ = [
    "BASELINES", "TRACKERS", "Block", "EnergyThresholds", "Exact", "FrequentDirections", "Grouse", "Nystrom",
    "PowerMethod", "RobustFrequentDirections", "Spirit", "Tracker", "fastest",
]  # fmt: skip

TRACKERS: dict[str, type[Tracker]] = {"exact": Exact, "nystrom": Nystrom, "block": Block}

# What others do, to compare with.
BASELINES: dict[str, type[Tracker]] = {
    "frequent-directions": FrequentDirections,
    "robust-frequent-directions": RobustFrequentDirections,
    "grouse": Grouse,
    "power-method": PowerMethod,
    "spirit": Spirit,
}


def fastest(n_features: int, rule: RankRule, *, on_device: bool = False) -> str:
    """The tracker that is fastest for this many features and directions, by measurement.

    >>> from fedpca.summaries.rank import FixedRank
    >>> fastest(64, FixedRank(10)), fastest(784, FixedRank(10)), fastest(784, FixedRank(100))
    ('exact', 'nystrom', 'exact')
    """
    most = max(64 if on_device else 256, 8 * rule.start(n_features))
    if isinstance(rule, VarianceShare):
        most = (
            4096  # how many directions it takes is not known beforehand: keep them all while d² is affordable
        )
    return "exact" if n_features <= most else "nystrom"
