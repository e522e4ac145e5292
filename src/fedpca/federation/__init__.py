"""Federation: children send summaries, in any order; an aggregator keeps the latest ones and merges them.

Everything exported here needs numpy, scipy and safetensors only. The rest is imported from its own module:
`federation.simulate`, `.folder`, `.dask`, `.flower`, and `fedpca.FederatedPCA`.
"""

from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator import Aggregator, ChildInfo
from fedpca.federation.influence import Influence
from fedpca.federation.message import Message
from fedpca.federation.store import (
    ChildEvent,
    FolderStore,
    HistoryEvent,
    MemoryStore,
    ModelEvent,
    State,
    Store,
)

__all__ = [
    "Aggregator",
    "ChildEvent",
    "ChildInfo",
    "FolderStore",
    "HistoryEvent",
    "Influence",
    "MemoryStore",
    "Message",
    "ModelEvent",
    "State",
    "Store",
    "SummaryRejected",
]
