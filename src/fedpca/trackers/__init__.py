"""Trackers: rows in, summary out, in one pass; one algorithm per file."""

from fedpca.trackers.base import Tracker
from fedpca.trackers.baselines.frequent_directions import FrequentDirections, RobustFrequentDirections
from fedpca.trackers.baselines.grouse import Grouse
from fedpca.trackers.baselines.power_method import PowerMethod
from fedpca.trackers.baselines.spirit import EnergyThresholds, Spirit
from fedpca.trackers.block import Block
from fedpca.trackers.exact import Exact
from fedpca.trackers.late_features import LateFeatures
from fedpca.trackers.nystrom.tracker import Nystrom
from fedpca.trackers.on_device.exact import DeviceExact
from fedpca.trackers.on_device.wide import DeviceWide
from fedpca.trackers.registry import BASELINES, TRACKERS, TrackerName, device_tracker, fastest
from fedpca.trackers.standardized import Standardized

__all__ = [
    "BASELINES", "TRACKERS", "Block", "DeviceExact", "DeviceWide", "EnergyThresholds", "Exact",
    "FrequentDirections", "Grouse",
    "LateFeatures", "Nystrom", "PowerMethod", "RobustFrequentDirections", "Spirit", "Standardized", "Tracker",
    "TrackerName", "device_tracker", "fastest",
]  # fmt: skip
