"""A board of secure sums in a shared folder: every message is a file, and is written once."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedpca.errors import SecureError
from fedpca.federation.folder.storage import Entry, LocalFolder, SkippedFile
from fedpca.secure import wire
from fedpca.secure.messages import KINDS, Place, board_name, place_of

_CACHED = 2**20  # bytes: masked words are larger, and are read when they are needed
_NONSENSE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)  # of JSON of anyone


class FolderBoard(Mapping[str, bytes]):
    """The messages of a session in a folder that all members and the coordinator can read and write.

    Where a file is written, it appears whole or not at all. Where a service copies it, it may grow for a
    while: a file that is shorter than it says is not there yet, and neither is what refers to it. Files of
    other names, links, what cannot be read, and what is larger than the message of this name can be, are
    skipped.

    Args:
        folder: a folder of this machine, or a mounted one.
        n_members: of the study.
        most_words: the length of its longest sum: with the members, it says how large messages can be.

    Attributes:
        skipped: files that do not count, and why.
    """

    def __init__(self, folder: str | os.PathLike[str], n_members: int, most_words: int) -> None:
        self.folder = Path(folder)
        self._n_members, self._most_words = n_members, most_words
        self._storage = LocalFolder(self.folder)
        self._entries: dict[str, Entry] = {}
        self._cache: dict[str, tuple[str, bytes]] = {}  # stamps and contents of small files
        self.skipped: list[SkippedFile] = []
        self.refresh()

    def refresh(self) -> None:
        """See what has come since."""
        self._entries, self.skipped = {}, []
        for entry in sorted(self._storage.entries()):
            if entry.name.startswith("."):
                continue
            if not entry.is_file:
                self.skipped.append(entry.skipped("not a regular file."))
            elif (name := message_name(entry.name)) is None:
                self.skipped.append(entry.skipped("not a message of a session."))
            else:
                self._entries[name] = entry
        for name, entry in list(self._entries.items()):  # what is announced before masked words and totals
            try:
                reason = self._flaw(name, entry)
            except OSError as error:  # networks and permissions change; the next visit tries again
                reason = f"cannot be read: {error.strerror or error}."
            if reason:
                del self._entries[name]
                self.skipped.append(entry.skipped(reason))
        self._hold_back()

    def _flaw(self, name: str, entry: Entry) -> str:
        """Why a file does not count, "" if it does: nothing larger than it can be is read."""
        if excess := self._excess(name, entry.size):
            return excess
        words = self._announced_words(name)
        if words is None and _place(name).kind.size.per_word:
            return f"it follows {name[:2]}-announced, which is not there yet."
        if self._is_whole(name, entry, words or 0):
            return ""
        return "not all of it is there yet, or it was cut off."

    def _excess(self, name: str, size: int) -> str:
        """Why no message of this name has so many bytes; "" if one can."""
        if (_place(name).owner or 0) >= self._n_members:
            return "no member has its number."
        most = self._most_bytes(name)
        return "" if size <= most else f"{size} bytes are more than the {most} it can have."

    def _most_bytes(self, name: str) -> int:
        words = self._announced_words(name)
        words = self._most_words if words is None else min(words, self._most_words)
        return _place(name).most_bytes(self._n_members, words)

    def check_size(self, name: str, size: int) -> None:
        """Refuse a message that is larger than one of this name can be."""
        excess = "no message has its name." if place_of(name) is None else self._excess(name, size)
        if excess:
            raise SecureError(f"{name!r:.80} is not a message of this study: {excess}")

    def _announced_words(self, name: str) -> int | None:
        """The length of the sum that masked words or a total belong to; None if it was not announced."""
        place = _place(name)
        announced = board_name("announced", number=place.number)
        if not place.kind.size.per_word or announced not in self._entries:
            return None
        try:
            return sum(int(block[0]) for block in json.loads(self[announced])["blocks"])
        except _NONSENSE:
            return 0

    def _hold_back(self) -> None:
        """Leave out what the coordinator published as long as something it refers to has not arrived."""
        missing: str | None = None
        for name in self.published:
            needed = [name, *(self._named(name) if name in self else ())]
            missing = missing or next((other for other in needed if other not in self), None)
            if missing and name in self:
                reason = f"it follows {file_name(missing)}, which is not there yet."
                self.skipped.append(self._entries.pop(name).skipped(reason))

    @property
    def published(self) -> list[str]:
        """Names of what the coordinator publishes, in order, up to the last that is there."""
        last = max((place.number for name in self if (place := _place(name)).number is not None), default=-1)
        own = [kind for kind in KINDS.values() if kind.by == "coordinator"]
        return [kind.name for kind in own if not kind.of_sum] + [
            board_name(kind.name, number=number) for number in range(last + 1) for kind in own if kind.of_sum
        ]

    def _named(self, name: str) -> list[str]:
        """Owners' messages that a message of the coordinator names, and that all need."""
        place = _place(name)
        field, kinds = place.kind.lists
        if place.kind.of_sum or not kinds:
            return []
        try:
            indices = [int(item[0]) for item in json.loads(self[name])[field]]
        except _NONSENSE:
            return []
        return [board_name(kind, index) for index in indices for kind in kinds]

    def _is_whole(self, name: str, entry: Entry, words: int) -> bool:
        """Whether a file is as long as it says, or as the sum it is the total of."""
        contents = self._start(name, entry)
        end = contents.find(b"\n") + 1
        if not end:
            return False
        kind = _place(name).kind
        try:
            payload = kind.size.per_word * words
            if kind.by == "owner":
                payload = json.loads(contents[:end])["bytes"] + wire.SIGNATURE
            return bool(entry.size >= end + payload)
        except _NONSENSE:
            return True  # whoever reads it says what is wrong with it

    def _start(self, name: str, entry: Entry) -> bytes:
        """A small file, or the start of a large one with its first line."""
        if entry.size <= _CACHED:
            return self[name]
        start = self._storage.read(entry.name, _CACHED)
        return start if b"\n" in start else self._storage.read(entry.name, wire.MOST_HEADER)

    def __getitem__(self, name: str) -> bytes:
        entry = self._entries[name]
        stamp, contents = self._cache.get(name, ("", b""))
        if stamp != entry.stamp:
            contents = self._storage.read(entry.name, self._most_bytes(name))
            if entry.size <= _CACHED:
                self._cache[name] = (entry.stamp, contents)
        return contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def publish(self, messages: Mapping[str, bytes]) -> None:
        """Write messages, each whole or not at all, and never over another.

        Raises:
            SecureError: a file of this name has other contents; it is left as it is.
        """
        for name, contents in messages.items():
            if not self.create(name, contents) and not self._is_there(name, contents):
                raise SecureError(
                    f"every message is written once, and {self.folder / file_name(name)} is there with other "
                    "contents; somebody else wrote it, or is still copying it: try again, or remove it, and "
                    "ask who wrote it."
                )
        self.refresh()

    def _is_there(self, name: str, contents: bytes) -> bool:
        try:
            return self._storage.read(file_name(name), len(contents) + 1) == contents
        except (OSError, ValueError):  # a folder, a link, or closed to us
            return False

    def create(self, name: str, contents: bytes) -> bool:
        """Write a message; False if its file is there."""
        return self._storage.create(file_name(name), contents)

    @property
    def is_empty(self) -> bool:
        """Whether there is no message, not even a part of one."""
        return not self._entries and not any(message_name(item.file) for item in self.skipped)

    def age(self, name: str) -> float:
        """Seconds since a message was written, by the clock of the folder."""
        probe = self.folder / f".fedpca-{secrets.token_hex(8)}.part"
        try:
            probe.touch()
            now = probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
        return now - (self.folder / file_name(name)).stat().st_mtime


def file_name(name: str) -> str:
    """The file of a message.

    >>> file_name("00/masked/003")
    '00-masked-003'
    """
    return name.replace("/", "-")


def message_name(file: str) -> str | None:
    """The message in a file of this name; None if it is none.

    >>> message_name("00-masked-003"), message_name("00-masked-003 (copy)")
    ('00/masked/003', None)
    """
    name = file.replace("-", "/")
    return name if "/" not in file and place_of(name) is not None else None


def _place(name: str) -> Place:
    place = place_of(name)
    assert place is not None  # other files are skipped
    return place
