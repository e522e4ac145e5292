"""Federation: children hand summaries up, in any order; aggregators keep the latest and merge them."""

from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator import Aggregator, Child
from fedpca.federation.simulate import Delivery, Faults, Simulation, Snapshot, simulate
from fedpca.federation.store import Event, FolderStore, MemoryStore, State, Store

__all__ = [
    "Aggregator",
    "Child",
    "Delivery",
    "Event",
    "Faults",
    "FolderStore",
    "MemoryStore",
    "Simulation",
    "Snapshot",
    "State",
    "Store",
    "SummaryRejected",
    "simulate",
]
