"""Federation: children send summaries, in any order; an aggregator keeps the latest ones and merges them.

Everything exported here needs numpy, scipy and safetensors only. In the rooms: `aggregator`, the model of
what children sent; `one_process`, with `fedpca.FederatedPCA`; the carriers `folder` and `flower`; `engines`,
where one organization's table lies in Dask or Spark.
"""

from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator.admission import Limits
from fedpca.federation.aggregator.aggregator import Aggregator, ChildInfo
from fedpca.federation.aggregator.influence import Influence
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.robust import Robust
from fedpca.federation.aggregator.store import (
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
    "Limits",
    "MemoryStore",
    "Message",
    "ModelEvent",
    "Robust",
    "State",
    "Store",
    "SummaryRejected",
]
