"""Trackers: rows in, summary out, in one pass; one algorithm a file."""

from fedpca.rank import RankRule, VarianceShare
from fedpca.trackers.base import Tracker
from fedpca.trackers.block import Block
from fedpca.trackers.exact import Exact
from fedpca.trackers.nystrom import Nystrom

__all__ = ["TRACKERS", "Block", "Exact", "Nystrom", "Tracker", "fastest"]

TRACKERS: dict[str, type[Tracker]] = {"exact": Exact, "nystrom": Nystrom, "block": Block}


def fastest(n_features: int, rule: RankRule) -> str:
    """The tracker that is fastest for this many features and directions, by measurement.

    >>> from fedpca.rank import FixedRank
    >>> fastest(64, FixedRank(10)), fastest(784, FixedRank(10)), fastest(784, FixedRank(100))
    ('exact', 'nystrom', 'exact')
    """
    most = max(256, 8 * rule.start(n_features))
    if isinstance(rule, VarianceShare):
        most = (
            4096  # how many directions it takes is not known beforehand: keep them all while d² is affordable
        )
    return "exact" if n_features <= most else "nystrom"
