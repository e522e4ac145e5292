"""Stores: where an aggregator keeps the latest message of every child, and its history."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fedpca._util.files import append_json_line, atomic_write, json_lines
from fedpca._util.text import utc_timestamp
from fedpca.errors import ModelFileError
from fedpca.federation.message import Message, file_name

_SUFFIX = ".state"


@dataclass(frozen=True, kw_only=True)
class ChildEvent:
    """A line of the history about a child.

    Attributes:
        child: its name.
        version: of its message.
        what: whether the message was accepted or rejected, or the child withdrawn.
        count: rows of the summary; 0 if it was rejected.
        reason: why it was rejected.
        time: UTC.
    """

    child: str
    version: int
    what: Literal["accepted", "rejected", "withdrawn"]
    count: float = 0.0
    reason: str = ""
    time: str = field(default_factory=utc_timestamp)


@dataclass(frozen=True, kw_only=True)
class ModelEvent:
    """A line of the history about the model.

    Attributes:
        version: of the aggregator.
        count: rows behind the model.
        children: how many contributed.
        explained: the share of the variance along its components.
        angle: in radians, the largest between its components and those of the model recorded before; None if
            that is not known, as for the first model.
        what: "model".
        time: UTC.
    """

    version: int
    count: float
    children: int
    explained: float
    angle: float | None
    what: Literal["model"] = "model"
    time: str = field(default_factory=utc_timestamp)


HistoryEvent = ChildEvent | ModelEvent


class Store(Protocol):
    """The latest message of every child, and the history. A message survives a crash once `put` returns."""

    def messages(self) -> dict[str, Message]:
        """The last message put of every child, by name."""

    def put(self, message: Message) -> None:
        """Replace the message of its child, completely or not at all."""

    def log(self, event: HistoryEvent) -> None:
        """Append an event to the history."""

    def history(self) -> list[HistoryEvent]:
        """All events, oldest first."""


class MemoryStore:
    """Keeps everything in memory: for simulations, and for aggregators that need not survive a restart."""

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._history: list[HistoryEvent] = []

    def messages(self) -> dict[str, Message]:
        return dict(self._messages)

    def put(self, message: Message) -> None:
        self._messages[message.child] = message

    def log(self, event: HistoryEvent) -> None:
        self._history.append(event)

    def history(self) -> list[HistoryEvent]:
        return list(self._history)


class FolderStore:
    """A folder with one file per child, replaced atomically, and a history with one JSON line per event.

    Args:
        folder: created if it does not exist; only one aggregator may write to it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._history = self.folder / "history.jsonl"

    def messages(self) -> dict[str, Message]:
        found = {}
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                message = Message.decode(path.read_bytes(), path)
            except ModelFileError as error:
                raise ModelFileError(f"{error} {_REMEDY}") from error
            found[message.child] = message
        return found

    def put(self, message: Message) -> None:
        with atomic_write(self.folder / f"{file_name(message.child)}{_SUFFIX}") as temporary:
            temporary.write_bytes(message.encode())

    def log(self, event: HistoryEvent) -> None:
        self._history.touch()
        append_json_line(self._history, asdict(event))

    def history(self) -> list[HistoryEvent]:
        if not self._history.exists():
            return []
        lines = json_lines(self._history.read_bytes())
        try:
            return [_event(line) for line in lines if line]
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(f"{self._history} is not a valid history: {error}. {_REMEDY}") from error


_REMEDY = "Restore the store from a backup, or start with an empty folder and have every child send again."


def _event(line: bytes) -> HistoryEvent:
    record = json.loads(line)
    return ModelEvent(**record) if record.get("what") == "model" else ChildEvent(**record)
