"""Stores: where an aggregator keeps the latest state of every child, so that a restart finds it again."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from fedpca._typing import Array
from fedpca._util.files import append_json_line, json_lines
from fedpca.federation.message import file_name
from fedpca.summaries import model_file
from fedpca.summaries.summary import Summary, from_file

_ENDING = ".state"


@dataclass(frozen=True)
class State:
    """What a child last said: a version, and its summary, or None once it has left."""

    version: int
    summary: Summary | None


@dataclass(frozen=True)
class Event:
    """A line of the history.

    Attributes:
        time: UTC.
        child: who; "" of the model.
        version: of what it said, or of the aggregator.
        what: "accepted", "withdrawn" or "refused"; or "model", how the model of all stood then.
        count: rows behind it.
        reason: why it was refused.
        children: of a model, how many contributed.
        explained: of a model, the share of the variance along its components.
        angle: of a model, in radians: the largest between its components and those of the model recorded
            before; None if that is not known, as of the first.
    """

    time: str
    child: str
    version: int
    what: str
    count: float = 0.0
    reason: str = ""
    children: int = 0
    explained: float = 0.0
    angle: float | None = None


class Store(Protocol):
    """States and history. What was put survives a crash from the moment `put` returns."""

    def states(self) -> dict[str, State]:
        """The last state put of every child."""

    def put(self, child: str, state: State) -> None:
        """Replace the state of a child, whole or not at all."""

    def note(self, event: Event) -> None:
        """Add an event to the history."""

    def history(self) -> list[Event]:
        """All events noted, oldest first."""


class MemoryStore:
    """Keeps everything in memory: for simulations, and aggregators that may forget."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._history: list[Event] = []

    def states(self) -> dict[str, State]:
        return dict(self._states)

    def put(self, child: str, state: State) -> None:
        self._states[child] = state

    def note(self, event: Event) -> None:
        self._history.append(event)

    def history(self) -> list[Event]:
        return list(self._history)


class FolderStore:
    """A folder with one file a child, replaced atomically and synced, and a history of one line an event.

    Args:
        folder: made if there is none; one aggregator writes to it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = self.folder / "history.jsonl"

    def states(self) -> dict[str, State]:
        found = {}
        for path in sorted(self.folder.glob(f"*{_ENDING}")):
            kind, arrays, facts = model_file.read(path)
            summary = None if kind == "withdrawn" else from_file(path, kind, arrays, facts["summary"])
            found[facts["child"]] = State(facts["version"], summary)
        return found

    def put(self, child: str, state: State) -> None:
        kind = "withdrawn"
        arrays: dict[str, Array] = {}
        facts: dict[str, Any] = {}
        if state.summary is not None:
            kind = state.summary.kind
            arrays, facts = state.summary.arrays, state.summary.metadata
        facts = {"child": child, "version": state.version, "summary": facts}
        model_file.write(self.folder / f"{file_name(child)}{_ENDING}", kind, arrays, facts)

    def note(self, event: Event) -> None:
        self._log.touch()
        append_json_line(self._log, asdict(event))

    def history(self) -> list[Event]:
        if not self._log.exists():
            return []
        return [Event(**json.loads(line)) for line in json_lines(self._log.read_bytes()) if line]
