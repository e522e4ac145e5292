"""Secure sums in a shared folder: what an owner and the coordinator do on a visit."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fedpca._util.text import join_names, sanitize
from fedpca.disclosure.policy import Policy
from fedpca.errors import SecureError
from fedpca.federation.folder.board import FolderBoard, board_name, file_name, listed, published
from fedpca.privacy.ledger import Ledger
from fedpca.secure import wire
from fedpca.secure.coordinator import check_total
from fedpca.secure.followed import Followed
from fedpca.secure.messages import MOST_SUMS, OWNERS
from fedpca.secure.owner import Owner
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.proofs import debit_name, find_proof
from fedpca.secure.record import Record, relevant
from fedpca.secure.rows import OwnerRows
from fedpca.secure.session import Session
from fedpca.secure.settings import Terms
from fedpca.secure.study import CoordinatorStudy, OwnerStudy, fit_of, member_facts, privacy_of
from fedpca.secure.wire import Board
from fedpca.summaries.subspace import Subspace
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_WORDS = {
    "keys": "keys",
    "shares": "shares of secrets",
    "agreed": "signatures on the members",
    "masked": "masked words of sum {:02}",
    "signed": "signatures on who is in sum {:02}",
    "opened": "answers to sum {:02}",
}


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
    board = FolderBoard(folder, roster)
    contents = Session.new(roster)
    if not board.is_empty or not board.create("session", contents):
        raise FileExistsError(
            f"{folder} has a session already, and a folder is for one; make another folder for another."
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
    terms, board = Terms.of(roster), FolderBoard(folder, roster)
    index = terms.ids.index(roster.member_of(key.public).id)
    if "session" not in board:
        return Visit((), (), "waits for the coordinator to open a session")
    session = Session(roster, board["session"])
    session.check_clock()
    files, sent = _own_files(state, board, session), list[str]()
    with files.locked():
        board.refresh()  # another process may have been here
        _check_places(files, board, index)
        is_open = files.has_secrets or bool(_unsettled(ledger, session))
        ended = not is_open and has_ended(board, session)
        if not ended:
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
                new = study.reply(_visible(board, index))
                sent += _publish(files, board)
                if not new:
                    break
            ended = study.has_ended
        cancelled = _cancel(board, session, index, ledger)
    return Visit(tuple(sent), cancelled, "" if ended else _next(board, session, index))


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
        SecureError: there is no such sum, this owner has answered it, or its state is not there.
    """
    terms, board = Terms.of(roster), FolderBoard(folder, roster)
    index = terms.ids.index(roster.member_of(key.public).id)
    session = Session(roster, _session(board))
    files = _own_files(state, board, session)
    with files.locked():
        board.refresh()
        _check_places(files, board, index)
        number = _open_sum(board)
        files.resume(member_facts(roster, key))
        owner = Owner(roster, board["session"], key, 1, files.secrets, files.sent)
        files.keep(owner.refuse(number, _visible(board, index)))
        sent = _publish(files, board)
        cancelled = _cancel(board, session, index, ledger)
    return Visit(tuple(sent), cancelled, _next(board, session, index))


def forget(
    folder: str | os.PathLike[str], roster: Roster, key: SigningKey, state: str | os.PathLike[str]
) -> Session:
    """Erase the secrets of an owner's part in a session, for good; the session.

    It drops out. What it has sent stays in its state, so that nothing is sent twice, and so do its debits.

    Raises:
        SecureError: it takes no part in this session, or its state is not there.
    """
    board = FolderBoard(folder, roster)
    session = Session(roster, _session(board))
    files = _own_files(state, board, session)
    with files.locked():
        files.resume(member_facts(roster, key))
        files.erase_all()
    return session


def _own_files(state: str | os.PathLike[str], board: FolderBoard, session: Session) -> OwnerFiles:
    """An owner's files of a session."""
    check_state(state, board.folder)
    return OwnerFiles(Path(state) / session.id[:32])


def check_state(state: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Refuse, by SecureError, a state folder that others could read, or that is a file."""
    if Path(state).resolve().is_relative_to(Path(folder).resolve()):
        raise SecureError(
            f"the state folder has secrets, and must be outside the shared folder {folder}, got {state}; "
            "name another with `--state`."
        )
    if Path(state).exists() and not Path(state).is_dir():
        raise SecureError(f"the state must be a folder, and {state} is a file; name another with `--state`.")


def _check_places(files: OwnerFiles, board: FolderBoard, index: int) -> None:
    """Refuse, before anything is made or paid for, what is in a place of this owner and is no message."""
    for item in board.skipped:
        parts = wire.split_name(name := board_name(item.file) or "")
        if parts is not None and parts[1] == index and name not in files.sent:
            raise SecureError(
                f"an owner must know all it has sent in a session, and {item.file} is there, not of it "
                f"({item.reason.rstrip('.')}); take the state that it was sent with; if that is lost, wait "
                "for another session; else ask who wrote it, and remove it."
            )


def _visible(board: Board, index: int) -> Board:
    """What an owner needs of a board, and all that is there in its name: it may be of somebody else."""
    own = [name for name in board if (parts := wire.split_name(name)) is not None and parts[1] == index]
    return relevant(board, index) | {name: board[name] for name in own}


def _publish(files: OwnerFiles, board: FolderBoard) -> list[str]:
    """Write what an owner has decided to send and is not there, in the order of the protocol."""
    order = list(OWNERS)
    names = [name for name in files.sent if name not in board]
    names.sort(key=lambda name: (name[:2].isdigit(), name[:2], order.index(name.split("/")[-2])))
    board.publish({name: files.sent[name] for name in names})
    return names


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
    cancelled = []
    for name, number in _unsettled(ledger, session).items():
        proof = find_proof(session, board, index, number)
        if ledger is not None and proof is not None:
            ledger.cancel(name, proof)
            cancelled.append(name)
    return tuple(cancelled)


def _unsettled(ledger: Ledger | None, session: Session) -> dict[str, int]:
    """Debits of sums that may or may not come out, and the numbers of the sums."""
    numbers = {debit_name(session.id, number): number for number in range(MOST_SUMS)}
    return {
        entry.release: numbers[entry.release]
        for entry in (ledger.entries if ledger is not None else ())
        if entry.release in numbers and not entry.completed and not entry.cancelled
    }


def _next(board: FolderBoard, session: Session, index: int) -> str:
    """What an owner waits for."""
    for name, field in (("keyring", "keys"), ("members", "members")):
        if name in board and index not in listed(board, name, field):
            return f"left out of this session: {file_name(name)} was published without this member"
    return current_round(board, session).describe(session.terms)


def coordinate(
    folder: str | os.PathLike[str], roster: Roster, *, closing: bool = False, wait: float | None = None
) -> tuple[Visit, dict[str, str]]:
    """Do whatever is next for the coordinator; the visit, and which messages do not count, and why.

    A round ends when the messages of all are there.

    Args:
        folder: the shared folder.
        roster: of the study.
        closing: end the round that is open now with those who are there, if they are enough.
        wait: end every round so with those who are there after so many seconds.

    Raises:
        SecureError: the session is of another study, the board was changed, or a member lied.
    """
    board, done, problems = FolderBoard(folder, roster), list[str](), dict[str, str]()
    study = CoordinatorStudy(roster, _session(board), fit_of(roster))
    while True:
        over = wait is not None and _age_of_round(board) >= wait
        new = study.advance(board, closing=over or (closing and not done))
        problems |= study.coordinator.problems
        if not new:
            break
        board.publish(new)
        done += new
    if study.has_ended:
        return Visit(tuple(done), (), ""), problems
    now = current_round(board, study.coordinator.session)
    return Visit(tuple(done), (), now.describe(study.terms)), problems


def has_ended(board: Board, session: Session) -> bool:
    """Whether all totals are there."""
    followed = Followed(session, fit_of(session.roster))
    followed.follow(board)
    return followed.has_ended


def model(folder: str | os.PathLike[str], roster: Roster) -> Subspace:
    """The model of a study that has ended, with its certificate, computed from the totals.

    Anybody who can read the folder can compute it; `verify` says whether the totals are those of owners.

    Raises:
        SecureError: there is no session, or it has not ended.
    """
    board = FolderBoard(folder, roster)
    session = Session(roster, _session(board))
    followed = Followed(session, fit_of(roster))
    record = followed.follow(board)
    if not followed.has_ended:
        now = current_round(board, session).describe(session.terms)
        raise SecureError(f"a study must have ended before there is a model, and this one {now}.")
    return followed.model(record)


def verify(folder: str | os.PathLike[str], roster: Roster) -> int:
    """Compute all totals again from what owners have signed; how many there are.

    Anybody who can read the folder can. It takes the time and the memory that the coordinator takes.

    Raises:
        SecureError: a total is another than what owners' messages give, or some are missing.
    """
    board = FolderBoard(folder, roster)
    record = Record(Session(roster, _session(board)), board)
    for number in range(record.n_totals):
        check_total(record, number)
    return record.n_totals


def _age_of_round(board: FolderBoard) -> float:
    """Seconds since the coordinator's last message."""
    return board.age([name for name in published(board) if name in board][-1])


def _session(board: FolderBoard) -> bytes:
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

    @property
    def follows_all(self) -> bool:
        """Whether every sum that was announced has its total: the coordinator announces another one, or the
        study has ended."""
        return not self.kind

    def describe(self, terms: Terms) -> str:
        """In words."""
        if not self.missing:
            return "waits for the coordinator"
        what = _WORDS[self.kind].format(self.number)
        names = join_names([sanitize(terms.ids[index], 100) for index in self.missing])
        return (
            f"waits for {what} from {names}: {len(self.there)} of {len(self.expected)} are there, at least "
            f"{self.needed} are needed"
        )


def current_round(board: Board, session: Session) -> Round:
    """What a session waits for, by the names on its board."""
    terms = session.terms
    if "keyring" not in board:
        return _round(board, "keys", None, tuple(range(terms.n_members)), terms.least)
    if "members" not in board:
        return _round(board, "shares", None, listed(board, "keyring", "keys"), terms.least)
    members = listed(board, "members", "members")
    number = next(number for number in count() if f"{number:02}/total" not in board)
    if f"{number:02}/announced" not in board:
        return Round("", None) if number else _round(board, "agreed", None, members, terms.threshold)
    if f"{number:02}/present" not in board:
        fixed = _fixed(board, session, number)
        if fixed is not None:
            return _round(board, "masked", number, fixed, len(fixed))
        return _round(board, "masked", number, members, terms.least)
    present = listed(board, f"{number:02}/present", "present")
    signed = _round(board, "signed", number, present, terms.threshold)
    if len(signed.there) < signed.needed:
        return signed
    return _round(board, "opened", number, present, terms.threshold)


def _fixed(board: Board, session: Session, number: int) -> tuple[int, ...] | None:
    """Who must be in a sum, if that is fixed; None if not, or if the board contradicts itself."""
    try:
        fixed = Record(session, board).fixed(number)
    except SecureError:
        return None
    return None if fixed is None else tuple(fixed)


def _round(board: Board, kind: str, number: int | None, expected: tuple[int, ...], needed: int) -> Round:
    there = tuple(index for index in expected if wire.board_name(kind, index, number) in board)
    return Round(kind, number, expected, there, needed)
