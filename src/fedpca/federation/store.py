"""Stores: where an aggregator keeps the latest message of every child, and its history."""

import errno
import json
import logging
import os
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Literal, Protocol, Self

from fedpca._typing import JSON
from fedpca._util.files import append_json_line, atomic_write, file_lock, json_lines, remove_leftovers
from fedpca._util.text import sanitize, utc_timestamp
from fedpca.errors import ModelFileError
from fedpca.federation.message import Message, child_name, file_name, name_in, version_number
from fedpca.summaries import model_file
from fedpca.trust.signature import Signature

_log = logging.getLogger("fedpca.federation")

_SUFFIX = ".state"
_QUARANTINED = ".quarantined"
_MAX_HISTORY = 2**24  # bytes: about 80,000 events; then the older half is dropped
_MAX_EVENTS = 50_000  # in memory
_MAX_REASON = 500  # characters
_OF_STATE = ("aggregator_version", "sender", "left_out", "signature", "signed")  # beside a message's facts


@dataclass(frozen=True, kw_only=True)
class ChildEvent:
    """A line of the history about a child.

    Attributes:
        child: its name.
        version: of its message.
        what: whether the message was accepted or rejected, or the child withdrawn or quarantined.
        count: rows of the summary; 0 if it was rejected.
        reason: why it was rejected or quarantined.
        warning: what is suspicious about an accepted message, or "".
        left_out: which features were left out of an accepted summary, and their share of its variance, or "".
        time: UTC.
    """

    child: str
    version: int
    what: Literal["accepted", "rejected", "withdrawn", "quarantined"]
    count: float = 0.0
    reason: str = ""
    warning: str = ""
    left_out: str = ""
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
        warning: which children have far more energy than rows, or "".
        what: "model".
        time: UTC.
    """

    version: int
    count: float
    children: int
    explained: float
    angle: float | None
    warning: str = ""
    what: Literal["model"] = "model"
    time: str = field(default_factory=utc_timestamp)


HistoryEvent = ChildEvent | ModelEvent


@dataclass(frozen=True)
class State:
    """What an aggregator keeps of a child.

    Attributes:
        message: the latest one that was accepted.
        version: of the aggregator, since this message.
        sender: who sent it, as the network knows them, such as a key; "" if that is not known.
        left_out: which features were left out of its summary, and their share of its variance, or "".
        signature: that of the message as it came, if features were left out or reordered since: it is no
            longer about what is kept. None otherwise: `message.signed` has it, if there is one.
    """

    message: Message
    version: int
    sender: str = ""
    left_out: str = ""
    signature: Signature | None = None

    def encode(self) -> bytes:
        """A model file that also has the child, its version, the sender and the aggregator's version.

        Of a signed message it has the header, too, and the same arrays: so the message comes back byte for
        byte.
        """
        kind, arrays, metadata = self.message.contents()
        header: JSON = {"aggregator_version": self.version, "sender": self.sender}
        if self.left_out:
            header["left_out"] = self.left_out
        if self.signature is not None:
            header["signature"] = self.signature.to_json()
        if not self.message.signed:
            return model_file.encode(kind, arrays, metadata | header)
        header["signed"] = model_file.split(self.message.signed)[0].decode()
        _, arrays, _ = model_file.decode(self.message.signed, "the signed message")  # bit for bit
        return model_file.encode(kind, arrays, metadata | header)

    @classmethod
    def decode(cls, contents: bytes, name: object) -> Self:
        """The inverse of `encode`, every value checked; raises ModelFileError."""
        kind, arrays, metadata = model_file.decode(contents, name)
        facts = {fact: value for fact, value in metadata.items() if fact not in _OF_STATE}
        message = Message.from_contents(kind, arrays, facts, name)
        try:
            version, sender = version_number(metadata["aggregator_version"]), metadata["sender"]
            left_out = metadata.get("left_out", "")
            if not isinstance(left_out, str):
                raise TypeError(f"left_out must be a string, got {left_out!r:.80}.")
            sender = "" if sender == "" else child_name(sender, "sender")
            found = metadata.get("signature")
            signature = None if found is None else Signature.from_json(found)
            if "signed" in metadata:
                message = _as_signed(contents, metadata["signed"], message)
            return cls(message, version, sender, sanitize(left_out, _MAX_REASON), signature)
        except KeyError as error:
            raise ModelFileError(f"{name} is not a state: {error} is missing.") from error
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{name} is not a valid state: {error}") from error


def _as_signed(contents: bytes, header: JSON, message: Message) -> Message:
    """The message that was signed, byte for byte, from its header and the arrays of its state."""
    if not isinstance(header, str):
        raise TypeError(f"signed must be a string, got {header!r:.80}.")
    signed = Message.decode(model_file.joined(header.encode(), model_file.split(contents)[1]))
    if signed != message:
        raise ValueError("it differs from what was signed.")
    return signed


class Store(Protocol):
    """The latest state of every child, and the history. A state survives a crash once `put` returns.

    Attributes:
        version: the aggregator's latest; it only grows.
    """

    version: int

    def lock(self) -> bool:
        """Become the one writer, until `close`.

        Returns:
            Whether others may have written since the states were read: read them again.

        Raises:
            BlockingIOError: another aggregator is the writer.
        """

    def close(self) -> None:
        """Let others write."""

    def states(self) -> dict[str, State]:
        """The last state put of every child, by name; what cannot be read is quarantined. Lock first."""

    def put(self, state: State) -> None:
        """Replace the state of its child, completely or not at all."""

    def quarantine(self, event: ChildEvent, version: int) -> None:
        """Set the state of the event's child aside, and log the event; `version` is the aggregator's now."""

    def quarantined(self) -> dict[str, str]:
        """What was quarantined, by name, with the reason."""

    def log(self, event: HistoryEvent) -> None:
        """Append an event to the history."""

    def history(self) -> list[HistoryEvent]:
        """The latest events, oldest first."""


class MemoryStore:
    """Keeps everything in memory: for simulations, and for aggregators that need not survive a restart."""

    def __init__(self) -> None:
        self.version = 0
        self._states: dict[str, State] = {}
        self._quarantined: dict[str, str] = {}
        self._history: deque[HistoryEvent] = deque(maxlen=_MAX_EVENTS)

    def lock(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def states(self) -> dict[str, State]:
        return dict(self._states)

    def put(self, state: State) -> None:
        self._states[state.message.child] = state
        self.version = max(self.version, state.version)

    def quarantine(self, event: ChildEvent, version: int) -> None:
        del self._states[event.child]
        self._quarantined[event.child] = event.reason
        self.version = max(self.version, version)
        self.log(event)

    def quarantined(self) -> dict[str, str]:
        return dict(self._quarantined)

    def log(self, event: HistoryEvent) -> None:
        self._history.append(event)

    def history(self) -> list[HistoryEvent]:
        return list(self._history)


class FolderStore:
    """A folder with one file per child, replaced atomically, and a history with one JSON line per event.

    Any number of aggregators may read it, and one at a time write to it: the first that does locks it until
    it is closed or gone. Files are readable by their owner only.

    A state that cannot be read, or has the name of another child, is renamed to <name>.quarantined, and the
    others are used. Of a history of more than 16 MiB the older half is dropped; lines of it that cannot be
    read are left out.

    Args:
        folder: created if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version = 0
        self._history = self.folder / "history.jsonl"
        self._counter = self.folder / "version.json"
        self._lock: ExitStack | None = None
        self._versions: dict[str, int] = {}  # of the states
        self._sum = 0  # of these
        self._counter_read = b""  # what the counter was when the states were read
        self._reasons: dict[str, str] = {}  # why states were quarantined by this process

    # --- one writer ---

    def lock(self) -> bool:
        if self._lock is not None:
            return False
        path = self.folder / "lock"
        with ExitStack() as stack:
            path.touch(0o600)
            try:
                stack.enter_context(file_lock(path, wait=False))
            except BlockingIOError as error:
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"another aggregator writes to the store {self.folder}; wait until it has ended, or call "
                    "its close()",
                ) from error
            self._lock = stack.pop_all()
        return self._read_counter() != self._counter_read

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- states ---

    def states(self) -> dict[str, State]:
        if self._lock is not None:
            remove_leftovers(self.folder)
        self._counter_read = self._read_counter()
        found, unreadable = {}, {}
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                if not path.is_file():  # reading a pipe or a device may never end
                    raise ModelFileError(f"{path.name} is not a file.")
                state = State.decode(path.read_bytes(), path.name)
                _check_file_name(path, state)
            except (ModelFileError, OSError) as error:
                unreadable[path] = sanitize(error, _MAX_REASON)
            else:
                found[state.message.child] = state
        self._versions = {child: state.version for child, state in found.items()}
        self._sum = sum(self._versions.values())
        self._read_version()
        for path, reason in unreadable.items():
            child = name_in(path.name.removesuffix(_SUFFIX))
            self._set_aside(path, ChildEvent(child=child, version=0, what="quarantined", reason=reason))
        if self._lock is not None and self.version:
            self._write_counter()
        return found

    def put(self, state: State) -> None:
        self.lock()
        path = self._path(state.message.child)
        contents = state.encode()
        with atomic_write(path, owner_only=True) as temporary:
            temporary.write_bytes(contents)
        self._sum += state.version - self._versions.get(state.message.child, 0)
        self._versions[state.message.child] = state.version
        self.version = max(self.version, state.version)
        self._write_counter()

    def quarantine(self, event: ChildEvent, version: int) -> None:
        self._sum -= self._versions.pop(event.child)
        self._set_aside(self._path(event.child), event)
        self.version = max(self.version, version)
        if self._lock is not None:
            self._write_counter()

    def quarantined(self) -> dict[str, str]:
        files = sorted(self.folder.glob(f"*{_QUARANTINED}"))
        reasons = {name_in(path.name.removesuffix(_QUARANTINED)): "quarantined earlier" for path in files}
        for event in self.history() if reasons else ():
            if event.what == "quarantined" and event.child in reasons:
                reasons[event.child] = event.reason
        return reasons | self._reasons

    def _path(self, child: str) -> Path:
        return self.folder / f"{file_name(child)}{_SUFFIX}"

    def _set_aside(self, path: Path, event: ChildEvent) -> None:
        """Rename a state; if another writes here, only leave it out."""
        if self._lock is not None:
            stem = path.name.removesuffix(_SUFFIX)
            targets = (path.with_name(f"{stem}{number or ''}{_QUARANTINED}") for number in count())
            os.replace(path, next(target for target in targets if not target.exists()))
            self.log(event)
        self._reasons[event.child] = event.reason

    # --- the version ---

    def _read_version(self) -> None:
        """The largest version known; one more if the states are not those last put: someone removed some."""
        try:
            counter = json.loads(self._read_counter())
            known, states = version_number(counter["version"]), counter["states"]
        except (ValueError, TypeError, KeyError, RecursionError):  # new or torn
            known, states = 0, None
        latest = max(known, self.version, *self._versions.values(), 0)
        self.version = latest + (latest > 0 and states != self._fingerprint())

    def _fingerprint(self) -> str:
        """Differs if a state was added, removed, or replaced by an older one."""
        return f"{len(self._versions)} of {self._sum}"

    def _read_counter(self) -> bytes:
        return self._counter.read_bytes() if self._counter.exists() else b""

    def _write_counter(self) -> None:
        """Not synced, nor needed: whatever is lost of it is noticed, and the version grows by one."""
        text = json.dumps({"version": self.version, "states": self._fingerprint()})
        try:
            self._counter.touch(0o600)
            self._counter.write_text(text, encoding="ascii")
        except OSError as error:  # the states are on disk, and they count
            _log.warning("%s cannot be written: %s", self._counter, error)
        self._counter_read = text.encode()

    # --- the history ---

    def log(self, event: HistoryEvent) -> None:
        self.lock()
        self._history.touch(0o600)
        if self._history.stat().st_size > _MAX_HISTORY:
            kept = self._history.read_bytes()[-_MAX_HISTORY // 2 :].partition(b"\n")[2]
            with atomic_write(self._history, owner_only=True) as temporary:
                temporary.write_bytes(kept)
        append_json_line(self._history, asdict(event))

    def history(self) -> list[HistoryEvent]:
        if not self._history.exists():
            return []
        found, bad = [], 0
        for line in json_lines(self._history.read_bytes()):
            try:
                found += [_event(line)] if line else []
            except (TypeError, ValueError, AttributeError, RecursionError):
                bad += 1
        if bad:
            _log.warning("%s: left out %d lines that are not events", self._history, bad)
        return found


def _check_file_name(path: Path, state: State) -> None:
    expected = f"{file_name(state.message.child)}{_SUFFIX}"
    if path.name != expected:
        raise ModelFileError(f"{path.name} has the state of {state.message.child!r}; its name is {expected}.")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "children": int,
    "count": (int, float),
    "explained": (int, float),
}


def _event(line: bytes) -> HistoryEvent:
    record = json.loads(line)
    event = ModelEvent(**record) if record.get("what") == "model" else ChildEvent(**record)
    for name, value in record.items():
        if not isinstance(value, _TYPES.get(name, str)) and not (name == "angle" and _is_angle(value)):
            raise TypeError(f"{name} is {value!r:.80}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name} is {value}")
    datetime.fromisoformat(event.time)  # raises ValueError
    return event


def _is_angle(value: object) -> bool:
    return value is None or isinstance(value, int | float)
