"""Other published algorithms, corrected, to compare with: trackers, which `StreamingPCA(tracker=)` takes."""

from fedpca.trackers import Tracker
from reproduction.baselines.frequent_directions import FrequentDirections, RobustFrequentDirections
from reproduction.baselines.grouse import Grouse
from reproduction.baselines.power_method import PowerMethod
from reproduction.baselines.spirit import EnergyThresholds, Spirit

BASELINES: tuple[type[Tracker], ...] = (
    FrequentDirections, RobustFrequentDirections, Grouse, PowerMethod, Spirit,
)  # fmt: skip

__all__ = [
    "BASELINES", "EnergyThresholds", "FrequentDirections", "Grouse", "PowerMethod",
    "RobustFrequentDirections", "Spirit",
]  # fmt: skip
