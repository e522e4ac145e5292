"""The merge of all children, kept beside their states: who only reads a store need not merge them again.

Of stores without a roster: nobody signs a merge.
"""

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass

from fedpca._typing import JSON
from fedpca._util.files import atomic_write
from fedpca._util.locks import open_file
from fedpca._util.version import __version__
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.admission import Limits
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.robust import Robust
from fedpca.federation.aggregator.store import FolderStore, Moment
from fedpca.summaries import model_file
from fedpca.summaries.summary import Summary

_log = logging.getLogger("fedpca.federation")

_FILE = "merged.safetensors"
_NAME = "all children"


@dataclass(frozen=True)
class Merged:
    """What the children of a store have together.

    Attributes:
        version: of the aggregator.
        n_children: how many contribute.
        n_known: how many have sent something, including those who were withdrawn.
        summary: the merge; None if no child contributes.
    """

    version: int
    n_children: int
    n_known: int
    summary: Summary | None


@dataclass(frozen=True)
class MergeSettings:
    """What the merge of the same states depends on; see `Aggregator`."""

    rank: int | None
    fanout: int
    limits: Limits
    robust: Robust | None

    def of(self, moment: Moment) -> str:
        """A digest of settings and states: whatever changes one of them, another merge is needed."""
        counter, stamps = moment
        states = [counter.decode(errors="replace"), sorted(stamps.items())]
        text = json.dumps([asdict(self), __version__, *states])
        return hashlib.sha256(text.encode()).hexdigest()


def keep(store: FolderStore, settings: MergeSettings, merged: Merged) -> None:
    """Write what the writer of a store has merged, of the states as it last read or wrote them."""
    kind, arrays, metadata = Message(_NAME, merged.version, merged.summary).contents()
    kept = {"of": settings.of(store.moment), "children": [merged.n_children, merged.n_known]}
    contents = model_file.encode(kind, arrays, metadata | {"kept": kept})
    try:
        with atomic_write(store.folder / _FILE, owner_only=True) as temporary:
            temporary.write_bytes(contents)
    except OSError as error:  # the states are on disk, and they count
        _log.warning("%s cannot be written: %s", store.folder / _FILE, error)


def read_kept(store: FolderStore, settings: MergeSettings) -> Merged | None:
    """What was kept, if it is of the states as they are now and of these settings; else None."""
    try:
        with open_file(store.folder / _FILE, os.O_RDONLY) as file:
            kind, arrays, metadata = model_file.decode(file.readall(), _FILE)
        kept: JSON = metadata.pop("kept")
        if kept["of"] != settings.of(store.now()):
            return None
        n_children, n_known = kept["children"]
        message = Message.from_contents(kind, arrays, metadata, _FILE)
    except (OSError, ModelFileError, KeyError, TypeError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("%s is merged again: %s", store.folder / _FILE, error)
        return None
    return Merged(message.version, n_children, n_known, message.summary)
