"""Secure sums in a shared folder: a board whose messages are files, each written once."""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fedpca._util.text import join_names, sanitize
from fedpca.errors import SecureError
from fedpca.federation.shared_files import Entry, LocalFolder, SkippedFile
from fedpca.privacy.ledger import Ledger
from fedpca.secure import wire
from fedpca.secure.messages import MOST_SUMS
from fedpca.secure.owner import Owner
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.proofs import debit_name, find_proof
from fedpca.secure.record import relevant
from fedpca.secure.rows import OwnerRows
from fedpca.secure.session import Session
from fedpca.secure.settings import Terms
from fedpca.secure.study import CoordinatorStudy, OwnerStudy, fit_of, privacy_of
from fedpca.secure.wire import Board
from fedpca.trust.keys import SigningKey
from fedpca.trust.policy import Policy
from fedpca.trust.roster import Roster

_MAX_BYTES = 2**32  # of a message
_CACHED = 2**20  # bytes: masked words are larger, and are read when they are needed
_SIGNATURE = 64  # bytes
_MODEL = "model.safetensors"
_NAME = re.compile(
    r"session|keyring|members|(?:keys|shares|agreed)-\d{3}"
    r"|\d\d-(?:announced|present|total)|\d\d-(?:masked|signed|opened|refused)-\d{3}"
)

_WORDS = {
    "keys": "keys",
    "shares": "shares of secrets",
    "agreed": "signatures on the members",
    "masked": "masked words",
    "signed": "signatures on who is in it",
    "opened": "answers",
    "refused": "refusal",
}
_NAMES = {"keyring": ("keys", ("keys",)), "members": ("members", ("keys", "shares"))}


class FolderBoard(Mapping[str, bytes]):
    """The messages of a session in a folder that all members and the coordinator can read and write.

    A file appears whole or not at all where it is written. Where a service copies it, it may grow for a while:
    a file that is shorter than it says is not there yet. Files of other names, links and what cannot be read
    are skipped.

    Args:
        folder: a folder of this machine, or a mounted one.

    Attributes:
        skipped: files that do not count, and why.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
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
            elif (name := board_name(entry.name)) is None:
                self.skipped.append(entry.skipped("not a message of a session."))
            elif entry.size > _MAX_BYTES:
                self.skipped.append(entry.skipped(f"{entry.size} bytes are more than {_MAX_BYTES}."))
            else:
                self._entries[name] = entry
        for name, entry in list(self._entries.items()):
            try:
                whole = name == "model" or self._is_whole(name, entry)
            except OSError as error:  # networks and permissions change; the next visit tries again
                whole, reason = False, f"cannot be read: {error.strerror or error}."
            else:
                reason = "not all of it is there yet, or it was cut off."
            if not whole:
                del self._entries[name]
                self.skipped.append(entry.skipped(reason))
        self._hold_back()

    def _hold_back(self) -> None:
        """Leave out what the coordinator published as long as something it refers to has not arrived."""
        missing: str | None = None
        for name in _published(self._entries):
            missing = missing or (None if name in self._entries else name)
            missing = missing or next(
                (other for other in self._named(name) if other not in self._entries), None
            )
            if missing and name in self._entries:
                entry = self._entries.pop(name)
                self.skipped.append(
                    entry.skipped(f"it follows {file_name(missing)}, which is not there yet.")
                )

    def _named(self, name: str) -> list[str]:
        """Owners' messages that a message of the coordinator names, and that all need."""
        if name not in _NAMES:
            return []
        field, kinds = _NAMES[name]
        return [wire.board_name(kind, index) for index in listed(self, name, field) for kind in kinds]

    def _is_whole(self, name: str, entry: Entry) -> bool:
        """Whether a file is as long as it says."""
        contents = self._start(name, entry)
        end = contents.find(b"\n") + 1
        if not end:
            return False
        try:
            fields = json.loads(contents[:end])
            if name.endswith("/total"):
                announced = self[f"{name[:2]}/announced"]
                payload = 8 * sum(int(block[0]) for block in json.loads(announced)["blocks"])
            else:
                payload = fields["bytes"] + _SIGNATURE if "bytes" in fields else 0
            return bool(entry.size >= end + payload)
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            return True  # whoever reads it says what is wrong with it

    def _start(self, name: str, entry: Entry) -> bytes:
        """A small file, or the start of a large one with its first line."""
        if entry.size <= _CACHED:
            return self[name]
        start = self._storage.read(entry.name, _CACHED)
        return start if b"\n" in start else self[name]

    def __getitem__(self, name: str) -> bytes:
        entry = self._entries[name]
        stamp, contents = self._cache.get(name, ("", b""))
        if stamp != entry.stamp:
            contents = self._storage.read(entry.name, _MAX_BYTES)
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
            file = file_name(name)
            if not self._storage.create(file, contents) and self._storage.read(file, _MAX_BYTES) != contents:
                raise SecureError(
                    f"every message is written once, and {self.folder / file} is there with other contents; "
                    "somebody else wrote it, or is still copying it: try again, or ask the coordinator to "
                    "open another session in another folder."
                )
        self.refresh()

    @property
    def is_empty(self) -> bool:
        """Whether there is no message, not even a part of one."""
        return not self._entries and not any(board_name(item.file) for item in self.skipped)

    def age(self, name: str) -> float:
        """Seconds since a message was written, by the clock of the folder."""
        probe = self.folder / f".fedpca-{secrets.token_hex(8)}.part"
        try:
            probe.touch()
            now = probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
        return now - (self.folder / file_name(name)).stat().st_mtime


class Visit(NamedTuple):
    """What one visit to a folder did.

    Attributes:
        sent: names of messages that were written.
        cancelled: names of debits that were taken back, by proof.
        waits_for: what comes next, in words; "" once the study has ended.
    """

    sent: tuple[str, ...]
    cancelled: tuple[str, ...]
    waits_for: str


def open_session(folder: str | os.PathLike[str], roster: Roster) -> None:
    """Open a session of a study in a folder that has none.

    Raises:
        FileExistsError: there is a session; another attempt needs another folder.
    """
    board = FolderBoard(folder)
    fit_of(roster)
    contents = Session.new(roster)
    if not board.is_empty or not LocalFolder(board.folder).create(file_name("session"), contents):
        raise FileExistsError(
            f"{folder} has a session already, and a folder is for one; make another folder for another attempt."
        )


def visit(
    folder: str | os.PathLike[str],
    roster: Roster,
    key: SigningKey,
    rows: Callable[[], OwnerRows],
    state: str | os.PathLike[str],
    *,
    ledger: Ledger | None = None,
    policy: Policy | None = None,
) -> Visit:
    """Do whatever is next for an owner, and nothing twice.

    Args:
        folder: the shared folder.
        roster: the owner's own copy.
        key: the owner's.
        rows: opens the owner's rows; called only if there is something to do.
        state: a folder of the owner's own, closed to others, for what it keeps of its sessions.
        ledger: what pays for private sums; None without privacy.
        policy: of the owner; None checks nothing.

    Raises:
        SecureError: the board contradicts what this owner knows, or the session is of another study. Nothing
            was sent.
    """
    terms, board = Terms.of(roster), FolderBoard(folder)
    index = terms.ids.index(roster.member_of(key.public).id)
    if "session" not in board:
        return Visit((), (), "waits for the coordinator to open a session")
    session = Session(roster, board["session"])
    session.check_clock()
    files, sent = OwnerFiles(Path(state) / session.id[:16]), []
    with files.locked():
        if "model" not in board:
            study = OwnerStudy(
                roster,
                board["session"],
                key,
                fit_of(roster),
                rows(),
                files,
                privacy=privacy_of(roster),
                ledger=ledger,
                policy=policy,
            )
            while True:
                new = study.reply(relevant(board, index))
                unpublished = {name: files.sent[name] for name in files.sent if name not in board}
                board.publish(unpublished)
                sent += unpublished
                if not new:
                    break
        cancelled = _cancel(board, session, index, ledger)
    return Visit(tuple(sent), cancelled, _next(board, terms, index))


def refuse(
    folder: str | os.PathLike[str],
    roster: Roster,
    key: SigningKey,
    state: str | os.PathLike[str],
    *,
    ledger: Ledger | None = None,
) -> Visit:
    """Never answer the sum that is open now; take its debit back as soon as enough members have refused.

    Raises:
        SecureError: there is no such sum, or this owner has answered it.
    """
    terms, board = Terms.of(roster), FolderBoard(folder)
    index = terms.ids.index(roster.member_of(key.public).id)
    session = Session(roster, _session(board))
    number = _open_sum(board)
    files = OwnerFiles(Path(state) / session.id[:16])
    with files.locked():
        files.keep(Owner(roster, board["session"], key, 1, files.secrets, files.sent).refuse(number))
        unpublished = {name: files.sent[name] for name in files.sent if name not in board}
        board.publish(unpublished)
        cancelled = _cancel(board, session, index, ledger)
    return Visit(tuple(unpublished), cancelled, _next(board, terms, index))


def _open_sum(board: Board) -> int:
    """The number of the sum that has been announced and has no total."""
    for number in range(MOST_SUMS):
        if f"{number:02}/total" not in board:
            if f"{number:02}/announced" in board:
                return number
            break
    raise SecureError("only a sum that was announced and has no total can be refused, and there is none now.")


def _cancel(board: Board, session: Session, index: int, ledger: Ledger | None) -> tuple[str, ...]:
    """Take back what the board proves not to have been spent."""
    if ledger is None:
        return ()
    cancelled = []
    names = {debit_name(session.id, number): number for number in range(MOST_SUMS)}
    for entry in ledger.entries:
        if entry.release in names and not entry.completed and not entry.cancelled:
            proof = find_proof(session, board["session"], board, index, names[entry.release])
            if proof is not None:
                ledger.cancel(entry.release, proof)
                cancelled.append(entry.release)
    return tuple(cancelled)


def _next(board: "FolderBoard", terms: Terms, index: int) -> str:
    """What an owner waits for."""
    for name, field in (("keyring", "keys"), ("members", "members")):
        if name in board and "model" not in board and index not in listed(board, name, field):
            return f"left out of this session: {file_name(name)} was published without this member"
    found = current_round(board, terms)
    return "" if found is None else found.describe(terms)


def coordinate(
    folder: str | os.PathLike[str], roster: Roster, *, closing: bool = False, wait: float | None = None
) -> tuple[Visit, dict[str, str]]:
    """Do whatever is next for the coordinator; the visit, and which messages do not count, and why.

    A round ends when the messages of all are there. The model is written last.

    Args:
        folder: the shared folder.
        roster: of the study.
        closing: end the round that is open now with those who are there, if they are enough.
        wait: end every round so with those who are there after so many seconds.

    Raises:
        SecureError: the session is of another study, the board was changed, or a member lied.
    """
    board, published = FolderBoard(folder), []
    study = CoordinatorStudy(roster, _session(board), fit_of(roster))
    while True:
        over = wait is not None and _age_of_round(board) >= wait
        new = study.advance(board, closing=over or (closing and not published))
        if not new:
            break
        board.publish(new)
        published += new
    found = current_round(board, study.terms)
    waits_for = "" if found is None else found.describe(study.terms)
    return Visit(tuple(published), (), waits_for), dict(study.coordinator.problems)


def _age_of_round(board: "FolderBoard") -> float:
    """Seconds since the coordinator's last message."""
    return board.age([name for name in _published(board) if name in board][-1])


def _session(board: "FolderBoard") -> bytes:
    if "session" not in board:
        raise SecureError(
            f"{board.folder} has no session; check the path, or open one with `fedpca secure new`."
        )
    return board["session"]


class Round(NamedTuple):
    """What a session waits for.

    Attributes:
        kind: of the messages; "" if the coordinator is next.
        number: of the sum; None before the first.
        expected: numbers of the members who send one.
        there: those of them whose message is there.
        needed: how many are enough to go on.
    """

    kind: str
    number: int | None
    expected: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    needed: int = 0

    @property
    def missing(self) -> tuple[int, ...]:
        """Whose message is not there."""
        return tuple(index for index in self.expected if index not in self.there)

    def describe(self, terms: Terms) -> str:
        """In words."""
        if not self.missing:
            return "waits for the coordinator"
        of_sum = "" if self.number is None else f" of sum {self.number:02}"
        names = join_names([sanitize(terms.ids[index], 100) for index in self.missing])
        return (
            f"waits for {_WORDS[self.kind]}{of_sum} from {names}: {len(self.there)} of {len(self.expected)} are "
            f"there, at least {self.needed} are needed"
        )


def current_round(board: Board, terms: Terms) -> Round | None:
    """What a session waits for, by the names on its board; None once there is a model."""
    if "model" in board:
        return None
    everybody = tuple(range(terms.n_members))
    if "session" not in board:
        return Round("", None)
    if "keyring" not in board:
        return _round(board, "keys", None, everybody, terms.least)
    if "members" not in board:
        return _round(board, "shares", None, listed(board, "keyring", "keys"), terms.least)
    members = listed(board, "members", "members")
    number = next(number for number in count() if f"{number:02}/total" not in board)
    if f"{number:02}/announced" not in board:
        return Round("", None) if number else _round(board, "agreed", None, members, terms.threshold)
    if f"{number:02}/present" not in board:
        return _round(board, "masked", number, members, terms.least)
    present = listed(board, f"{number:02}/present", "present")
    signed = _round(board, "signed", number, present, terms.threshold)
    if len(signed.there) < signed.needed:
        return signed
    return _round(board, "opened", number, present, terms.threshold)


def _round(board: Board, kind: str, number: int | None, expected: tuple[int, ...], needed: int) -> Round:
    there = tuple(index for index in expected if wire.board_name(kind, index, number) in board)
    return Round(kind, number, expected, there, needed)


def listed(board: Board, name: str, field: str) -> tuple[int, ...]:
    """Numbers of the members that a message of the coordinator names; none if it is damaged."""
    try:
        return tuple(int(item[0]) for item in json.loads(board[name])[field])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return ()


def _published(names: Iterable[str]) -> list[str]:
    """Names of what the coordinator publishes, in order, up to the last that is there."""
    numbers = [int(name[:2]) for name in names if name[:2].isdigit()]
    last = max(numbers, default=-1)
    sums = [f"{number:02}/{kind}" for number in range(last + 1) for kind in ("announced", "present", "total")]
    return ["session", "keyring", "members", *sums]


def file_name(name: str) -> str:
    """The file of a message.

    >>> file_name("00/masked/003"), file_name("model")
    ('00-masked-003', 'model.safetensors')
    """
    return _MODEL if name == "model" else name.replace("/", "-")


def board_name(file: str) -> str | None:
    """The message in a file of this name; None if it is none.

    >>> board_name("00-masked-003"), board_name("00-masked-003 (copy)")
    ('00/masked/003', None)
    """
    if file == _MODEL:
        return "model"
    return file.replace("-", "/") if _NAME.fullmatch(file) else None
