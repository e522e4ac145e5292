"""Stores: where an aggregator keeps the latest message of every child, and its history."""

import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from io import FileIO
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Literal, Protocol, Self

from fedpca._typing import JSON
from fedpca._util.files import append_json_line, atomic_write, json_lines, remove_leftovers
from fedpca._util.locks import file_lock, is_at, open_file
from fedpca._util.text import sanitize, utc_timestamp
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.message import (
    Message,
    child_name,
    file_name,
    name_in,
    require_summary,
    version_number,
)
from fedpca.trust.envelope import Signature, canonical, parsed

_log = logging.getLogger("fedpca.federation")

_SUFFIX = ".state"
_QUARANTINED = ".quarantined"
_MAX_HISTORY = 2**24  # bytes: about 80,000 events; then half of it is dropped
_MAX_EVENTS = 50_000  # in memory
_REJECTIONS = 0.25  # of what is kept of a history that became too long: anybody can cause them
_MAX_VERSION = 2**53  # of an aggregator: milliseconds, for 280,000 years, and exact in every language
_Stamp = tuple[int, int, int]
Moment = tuple[bytes, dict[str, _Stamp]]
"""The counter and what tells files of states apart: another pair after every change of a state."""
_SETTLING = (
    5.0  # seconds in which a reader of 10,000 states finds a moment between two writes, if there is one
)
_MAX_REASON = 500  # characters
_MAX_LINE = 2**16  # bytes of the first line of a state: each of its values has a limit of its own


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
            longer about what is kept. None otherwise: the message has it, if there is one.
        quarantined: whether this is all that is kept of a child whose summary was set aside: its version,
            under which it may come again, and who signed it.
    """

    message: Message
    version: int
    sender: str = ""
    left_out: str = ""
    signature: Signature | None = None
    quarantined: bool = False

    def __post_init__(self) -> None:
        if version_number(self.version) > _MAX_VERSION:
            raise ValueError(f"an aggregator's version must be at most {_MAX_VERSION}, got {self.version}.")
        if self.message.content is not None:
            require_summary(self.message.content)
        if self.sender:
            child_name(self.sender, "sender")
        if not isinstance(self.left_out, str) or not isinstance(self.quarantined, bool):
            raise TypeError(
                f"left_out must be a string and quarantined true or false, got {self.left_out!r:.80} and "
                f"{self.quarantined!r:.80}."
            )
        object.__setattr__(self, "left_out", sanitize(self.left_out, _MAX_REASON))

    @property
    def signed_by(self) -> Signature | None:
        """The signature of the message as it came, unchecked; None if there is none."""
        return self.message.signature or self.signature

    def encode(self) -> bytes:
        """A line with what is known beside the message, and its hash; then the message, byte for byte."""
        facts: JSON = {
            "aggregator_version": self.version,
            "sender": self.sender,
            "left_out": self.left_out,
            "quarantined": self.quarantined,
            "signature": None if self.signature is None else asdict(self.signature),
        }
        if self.signature is not None:
            facts["signature"] |= {"key": self.signature.key.text}
        line = canonical(facts | {"hash": _hash_of(facts)})
        return b"".join((line, b"\n", self.message.encode()))

    @classmethod
    def decode(cls, contents: bytes, name: object) -> Self:
        """The inverse of `encode`, every value checked; raises ModelFileError."""
        end = contents.find(b"\n", 0, _MAX_LINE)
        try:
            facts = parsed(contents[: max(end, 0)])
            if facts.pop("hash", "") != _hash_of(facts):
                raise ValueError("its first line is damaged")
            found = facts["signature"]
            return cls(
                Message.decode(contents[end + 1 :], name),
                facts["aggregator_version"],
                facts["sender"],
                facts["left_out"],
                None if found is None else Signature(**found),
                facts["quarantined"],
            )
        except KeyError as error:
            raise ModelFileError(f"{name} is not a state: {error} is missing.") from error
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{name} is not a valid state: {error}") from error


def _hash_of(facts: JSON) -> str:
    return hashlib.sha256(canonical(facts)).hexdigest()


class Store(Protocol):
    """The latest state of every child, and the history. A state survives a crash once `put` returns.

    Attributes:
        version: the aggregator's latest, that of the states as they were read; it only grows.
        roster: the hash of the roster that its writer had last; "" if there was none.
    """

    version: int
    roster: str

    def lock(self) -> bool:
        """Become the one writer, until `close`.

        Returns:
            Whether the states have to be read again: others may have written since, or something in the
            store is to be mended, which only its writer does.

        Raises:
            BlockingIOError: another aggregator is the writer.
        """

    def close(self) -> None:
        """Let others write."""

    def remember(self, roster: str) -> None:
        """Keep the hash of the roster that the writer has."""

    def states(self) -> dict[str, State]:
        """The last state put of every child, by name, all of one moment.

        What cannot be read is left out and, by the writer, quarantined.
        """

    def put(self, state: State) -> None:
        """Replace the state of its child, completely or not at all."""

    def quarantine(self, event: ChildEvent, state: State) -> None:
        """Set the state of the event's child aside, keep `state` in its place, and log the event.

        Who is not the writer only leaves the child out.
        """

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
        self.roster = ""
        self._states: dict[str, State] = {}
        self._quarantined: dict[str, str] = {}
        self._history: list[HistoryEvent] = []

    def lock(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def remember(self, roster: str) -> None:
        self.roster = roster

    def states(self) -> dict[str, State]:
        return dict(self._states)

    def put(self, state: State) -> None:
        self._states[state.message.child] = state
        self.version = max(self.version, state.version)

    def quarantine(self, event: ChildEvent, state: State) -> None:
        self._quarantined[event.child] = event.reason
        self.put(state)
        self.log(event)

    def quarantined(self) -> dict[str, str]:
        return dict(self._quarantined)

    def log(self, event: HistoryEvent) -> None:
        self._history.append(event)
        if len(self._history) > _MAX_EVENTS:
            kept = _latest(self._history, [1] * len(self._history), _MAX_EVENTS // 2)
            self._history = [self._history[place] for place in kept]

    def history(self) -> list[HistoryEvent]:
        return list(self._history)


class FolderStore:
    """A folder with one file per child, replaced atomically, and a history with one JSON line per event.

    Any number of aggregators may read it, also where nothing can be written, and one at a time write to it:
    the first that does locks it until it is closed or gone. Who reads changes nothing, and needs no lock: it
    reads until all states are of one moment, and has the version of that moment. Files are readable by their
    owner only.

    A state that cannot be read, or has the name of another child, is left out, and the writer renames it to
    <name>.quarantined. Of a history of more than 16 MiB half is dropped, the oldest events first, but for the
    last of every child; of the rest, messages that were rejected are at most a quarter. Lines that cannot be
    read are left out.

    Args:
        folder: created if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version = 0
        self.roster = ""
        self._history = self.folder / "history.jsonl"
        self._max_history = _MAX_HISTORY
        self._counter = self.folder / "version.json"
        self._lock = ExitStack()
        self._lock_file: FileIO | None = None
        self._versions: dict[str, int] = {}  # of the states
        self._marks = 0  # the sum of those of all states
        self._counter_read = b""  # before the states were
        self._stamps: dict[str, _Stamp] = {}  # of the files of states, as they were read or written
        self._to_mend = False  # whether the writer has to do what a reader must not
        self._reasons: dict[str, str] = {}  # why states were left out by this process

    # --- one writer ---

    @property
    def _is_writer(self) -> bool:
        """Whether the lock is ours; a fork does not have it."""
        return self._lock_file is not None and not self._lock_file.closed

    def lock(self) -> bool:
        path = self.folder / "lock"
        if self._lock_file is not None and self._is_writer:
            if is_at(self._lock_file, path):
                return False
            self.close()  # another store has taken its place, as a restore puts one there
        with ExitStack() as stack:
            try:
                self._lock_file = stack.enter_context(file_lock(path, wait=False))
            except BlockingIOError as error:
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"another aggregator writes to the store {self.folder}; wait until it has ended, or call "
                    "its close()",
                ) from error
            remove_leftovers(self.folder)
            changed = self._to_mend or self.moment != self.now()
            self._lock = stack.pop_all()
        return changed

    def close(self) -> None:
        self._lock.close()

    def remember(self, roster: str) -> None:
        if roster != self.roster:
            self.roster = roster
            self._write_counter()

    # --- states ---

    def states(self) -> dict[str, State]:
        files, at_once = self._read()
        found = {file.message.child: file for file in files.values() if isinstance(file, State)}
        self._versions = {child: state.version for child, state in found.items()}
        self._marks = sum(_mark(child, version) for child, version in self._versions.items())
        self._read_version(at_once)
        unreadable = {name: reason for name, reason in files.items() if isinstance(reason, str)}
        last = self._last_versions() if unreadable and self._is_writer else {}
        for name, reason in unreadable.items():
            child = name_in(name.removesuffix(_SUFFIX))
            event = ChildEvent(child=child, version=last.get(child, 0), what="quarantined", reason=reason)
            kept = None
            if child in last and self._path(child).name == name:
                kept = State(Message(child, last[child], None), self.version, quarantined=True)
                found |= {child: kept} if self._is_writer else {}
            self._set_aside(name, event, kept)
        if self._is_writer and self.version:
            self._write_counter()
        return found

    def _read(self) -> tuple[dict[str, State | str], bool]:
        """Every state, or why it is none, by the name of its file; and whether all are of one moment.

        If they are not, each is at least as new as the counter that was read before them.
        """
        files: dict[str, State | str | None] = {}
        before, give_up = None, time.monotonic() + _SETTLING
        while True:
            now = self.now()
            if before is not None and (now == before or time.monotonic() > give_up):
                break
            files = {
                name: files[name]
                if before is not None and before[1].get(name) == stamp
                else self._read_state(self.folder / name)
                for name, stamp in now[1].items()
            }
            before = now
            if self._is_writer:
                break
        self._counter_read, self._stamps = before
        return {name: file for name, file in files.items() if file is not None}, now == before

    @property
    def moment(self) -> Moment:
        """That of the states as this process has read or written them."""
        return self._counter_read, self._stamps

    def now(self) -> Moment:
        """That of the folder."""
        counter, stamps = self._read_counter(), {}
        with os.scandir(self.folder) as listing:
            for entry in listing:
                if entry.name.endswith(_SUFFIX) and (stamp := _stamp(entry)) is not None:
                    stamps[entry.name] = stamp
        return counter, stamps

    def _read_state(self, path: Path) -> State | str | None:
        """The state, why it is none, or None if the file is gone."""
        if not path.is_file():  # reading a pipe or a device may never end
            return f"{path.name} is not a file." if os.path.lexists(path) else None
        try:
            with open_file(path, os.O_RDONLY) as file:
                state = State.decode(file.readall(), path.name)
            _check_file_name(path, state)
        except FileNotFoundError:
            return None
        except (ModelFileError, OSError, ValueError) as error:
            return sanitize(error, _MAX_REASON)
        return state

    def put(self, state: State) -> None:
        self.lock()
        self._write(state)
        self._write_counter()

    def _write(self, state: State) -> None:
        child = state.message.child
        path, contents = self._path(child), state.encode()
        with atomic_write(path, owner_only=True) as temporary:
            temporary.write_bytes(contents)
        self._forget(child)
        self._versions[child] = state.version
        self._marks += _mark(child, state.version)
        self.version = max(self.version, state.version)
        if (stamp := _stamp(path)) is not None:
            self._stamps[path.name] = stamp

    def quarantine(self, event: ChildEvent, state: State) -> None:
        self._set_aside(self._path(event.child).name, event, state)
        if self._is_writer:
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

    def _set_aside(self, name: str, event: ChildEvent, kept: State | None) -> None:
        """Give the file of a state another name, and put what is kept there; a reader leaves it out."""
        self._reasons[event.child] = event.reason
        if not self._is_writer:
            self._to_mend = True
            return
        path, stem = self.folder / name, name.removesuffix(_SUFFIX)
        targets = (path.with_name(f"{stem}{number or ''}{_QUARANTINED}") for number in count())
        target = next(target for target in targets if not os.path.lexists(target))
        try:
            os.link(path, target, follow_symlinks=False)  # the name is never free, whenever we are killed
        except OSError:  # a folder, or there are no hard links
            os.replace(path, target)
        if kept is not None:
            self._write(kept)
        else:
            path.unlink(missing_ok=True)
            self._stamps.pop(name, None)
            self._forget(event.child)
        self.log(event)

    def _last_versions(self) -> dict[str, int]:
        """The last version of every child that the history has."""
        found: dict[str, int] = {}
        for event in self.history():
            if isinstance(event, ChildEvent) and event.what != "rejected":
                found[event.child] = max(event.version, found.get(event.child, 0))
        return found

    # --- the version ---

    def _read_version(self, at_once: bool) -> None:
        """The version of the states that were read.

        The largest that is known, if all states are of one moment; else that of the counter, for what is
        newer than a version may be sent under it, and what is older must not. The writer adds one if the
        states are not those last put, because someone removed some.
        """
        try:
            counter = json.loads(self._counter_read)
            known, states = version_number(counter["version"]), counter["states"]
            self.roster = str(counter.get("roster", ""))
            if known > _MAX_VERSION:
                raise ValueError(f"version {known} was not written by an aggregator")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # new or torn
            known, states = 0, None
        latest = max(known, *self._versions.values(), 0) if at_once else known
        others = latest > 0 and states != self._fingerprint()
        self._to_mend = others and not self._is_writer
        self.version = max(latest, self.version) + others if self._is_writer else latest

    def _fingerprint(self) -> str:
        """Differs if a state was added, removed or replaced: by chance the same for one in 2^64 changes.

        It is a sum, so that a put costs as much for many children as for few.
        """
        return f"{self._marks % 2**64:016x}"

    def _forget(self, child: str) -> None:
        if (version := self._versions.pop(child, None)) is not None:
            self._marks -= _mark(child, version)

    def _read_counter(self) -> bytes:
        try:
            with open_file(self._counter, os.O_RDONLY) as file:
                return file.readall()
        except FileNotFoundError:
            return b""

    def _write_counter(self) -> None:
        """Not synced, nor needed: whatever is lost of it is noticed, and the version grows by one."""
        counter = {"version": self.version, "states": self._fingerprint()}
        text = json.dumps(counter | ({"roster": self.roster} if self.roster else {})).encode()
        try:
            with open_file(self._counter, os.O_RDWR | os.O_CREAT) as file:
                file.truncate(file.write(text))
        except OSError as error:  # the states are on disk, and they count
            _log.warning("%s cannot be written: %s", self._counter, error)
        self._counter_read = text

    # --- the history ---

    def log(self, event: HistoryEvent) -> None:
        self.lock()
        with open_file(self._history, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
            size = append_json_line(file, asdict(event))
        if size > self._max_history:
            self._shorten()

    def _shorten(self) -> None:
        events, lines = self._events()
        kept = _latest(events, [len(line) + 1 for line in lines], _MAX_HISTORY // 2)
        contents = b"".join(lines[place] + b"\n" for place in kept)
        with atomic_write(self._history, owner_only=True) as temporary:
            temporary.write_bytes(contents)
        self._max_history = max(_MAX_HISTORY, 2 * len(contents))  # not at once again, of very many children

    def history(self) -> list[HistoryEvent]:
        return self._events()[0]

    def _events(self) -> tuple[list[HistoryEvent], list[bytes]]:
        """The events, and the lines that they are in."""
        try:
            with open_file(self._history, os.O_RDONLY) as file:
                contents = file.readall()
        except FileNotFoundError:
            return [], []
        events, lines, bad = [], [], 0
        for line in filter(None, json_lines(contents)):
            try:
                events.append(_event(line))
                lines.append(line)
            except (TypeError, ValueError, AttributeError, RecursionError):
                bad += 1
        if bad:
            _log.warning("%s: left out %d lines that are not events", self._history, bad)
        return events, lines


def _latest(events: Sequence[HistoryEvent], sizes: Sequence[int], limit: int) -> list[int]:
    """Which events of a history that became too long are kept, by number.

    The newest, and the last of every child that tells its version: so no other event pushes these out, and
    rejections, which anybody can cause, push out none but rejections.
    """
    left = {True: limit * _REJECTIONS, False: limit * (1 - _REJECTIONS)}
    kept: list[int] = []
    known: set[str | None] = {None}
    for place in reversed(range(len(events))):
        event = events[place]
        rejected = event.what == "rejected"
        left[rejected] -= sizes[place]
        child = event.child if isinstance(event, ChildEvent) and not rejected else None
        if left[rejected] >= 0 or child not in known:
            kept.append(place)
        known.add(child)
    return kept[::-1]


def _mark(child: str, version: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{version} {child}".encode()).digest()[:8])


def _stamp(file: os.DirEntry[str] | Path) -> _Stamp | None:
    """What changes when a file does; None if it is gone."""
    try:
        status = file.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


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
