"""Trackers: rows in, summary out, in one pass; one algorithm per file."""

from fedpca.trackers.base import Tracker
from fedpca.trackers.block import Block
from fedpca.trackers.divided import Divided
from fedpca.trackers.exact import Exact
from fedpca.trackers.late_features import LateFeatures
from fedpca.trackers.nystrom.tracker import Nystrom
from fedpca.trackers.on_device.exact import DeviceExact
from fedpca.trackers.on_device.wide import DeviceWide
from fedpca.trackers.registry import TRACKERS, TrackerName, device_tracker, fastest
from fedpca.trackers.standardized import Standardized

__all__ = [
    "TRACKERS", "Block", "DeviceExact", "DeviceWide", "Divided", "Exact", "LateFeatures", "Nystrom",
    "Standardized", "Tracker", "TrackerName", "device_tracker", "fastest",
]  # fmt: skip
