"""The methods that the paper compares, and fedpca, as trackers about the origin."""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.rank import EnergyBand, FixedRank, RankRule
from fedpca.trackers import TRACKERS, Block, Tracker, fastest
from fedpca.trackers.base import TrackerSettings
from reproduction.baselines import EnergyThresholds, FrequentDirections, Grouse, PowerMethod, Spirit

COLORS = {
    "fedpca": "#0b6623",
    "F-PCA": "#1f5fbf",
    "FD": "#8c564b",
    "FD 2r": "#c98b6b",
    "PM": "#d62728",
    "GROUSE": "#9467bd",
    "SPIRIT": "#e08214",
}


def make_tracker(method: str, n_features: int, rank: int, *, block_rows: int = 50, seed: int = 0) -> Tracker:
    """A tracker by its name in the plots: a correct implementation with the paper's settings.

    * "fedpca": the tracker of `StreamingPCA(rank)`, which carries directions beyond the rank.
    * "F-PCA": the paper's block update of exactly `rank` directions; "F-PCA adaptive" with its AdjustRank.
    * "FD": Frequent Directions with a sketch of `rank` rows; "FD 2r" with twice as many.
    * "PM": Mitliagkas' power method with blocks of d rows.
    * "GROUSE": with the greedy step; "GROUSE 2/k" with the paper's, which is too small or too large.
    * "SPIRIT": `rank` directions without forgetting; "SPIRIT adaptive" with lambda = 0.9 and an
      adaptive rank.
    """
    fixed, plain = FixedRank(rank), TrackerSettings(oversample=0, center=False)
    if method == "fedpca":
        return TRACKERS[fastest(n_features, fixed)](n_features, fixed, center=False)
    if method in ("F-PCA", "F-PCA adaptive"):
        rule: RankRule = fixed if method == "F-PCA" else EnergyBand(0.01, 0.10, first=rank)
        return Block(n_features, rule, block_rows=block_rows, **plain)
    if method in ("FD", "FD 2r"):
        return FrequentDirections(n_features, fixed, ell=rank if method == "FD" else 2 * rank, center=False)
    if method == "PM":
        return PowerMethod(n_features, fixed, seed=seed, **plain)
    if method in ("GROUSE", "GROUSE 2/k"):
        return Grouse(n_features, fixed, step=None if method == "GROUSE" else 2.0, seed=seed, **plain)
    if method == "SPIRIT":
        return Spirit(n_features, fixed, **plain)
    if method == "SPIRIT adaptive":
        return Spirit(n_features, EnergyThresholds(first=rank), remember=0.9, **plain)
    raise ValueError(f"unknown method {method!r}.")


def components(tracker: Tracker) -> Array:
    """The leading components that the tracker reports, shape (k, d), in descending order."""
    return tracker.view().components.astype(np.float64)
