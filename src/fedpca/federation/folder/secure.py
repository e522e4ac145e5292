"""Secure sums in a shared folder: what an owner and the coordinator do on a visit."""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from fedpca.disclosure.policy import Policy
from fedpca.errors import SecureError
from fedpca.federation.folder.board import FolderBoard, file_name, message_name
from fedpca.privacy.ledger import Ledger
from fedpca.secure.board import relevant
from fedpca.secure.coordinator import Coordinator, check_total
from fedpca.secure.messages import KINDS, MOST_SUMS, Board, owner_of, place_of
from fedpca.secure.owner import Owner, member_facts, refusal
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.progress import Progress
from fedpca.secure.proofs import debit_name, find_proof
from fedpca.secure.rows import OwnerRows
from fedpca.secure.session import Session
from fedpca.secure.settings import Terms
from fedpca.secure.study import fit_of, privacy_of
from fedpca.summaries.subspace import Subspace
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_ORDER = list(KINDS)


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


class SharedSession:
    """The session of a study in a shared folder: one object per visit, which reads and verifies once.

    Args:
        folder: that all members and the coordinator read and write.
        roster: the visitor's own copy.

    Attributes:
        board: the messages in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], roster: Roster) -> None:
        self._roster, self._terms, self._fit = roster, Terms.of(roster), fit_of(roster)
        self.board = FolderBoard(folder, self._terms.n_members, self._fit.most_words)

    @classmethod
    def new(cls, folder: str | os.PathLike[str], roster: Roster) -> Self:
        """Open a session of a study in a folder that has none.

        Raises:
            FileExistsError: there is a session; another attempt needs another folder.
        """
        shared, contents = cls(folder, roster), Session.new(roster)
        if not shared.board.is_empty or not shared.board.create("session", contents):
            raise FileExistsError(
                f"{folder} has a session already, and a folder is for one; make another folder for another."
            )
        shared.board.refresh()
        return shared

    @property
    def is_open(self) -> bool:
        """Whether the coordinator has opened the session."""
        return "session" in self.board

    @cached_property
    def progress(self) -> Progress:
        """The session, and the model of its totals; SecureError if there is none."""
        if not self.is_open:
            raise SecureError(
                f"{self.board.folder} has no session; check the path, or open one with `fedpca secure new`."
            )
        return Progress(Session(self._roster, self.board["session"]), self._fit)

    @property
    def session(self) -> Session:
        """The session; SecureError if there is none."""
        return self.progress.session

    @property
    def has_ended(self) -> bool:
        """Whether all totals are there."""
        self.progress.follow(self.board)
        return self.progress.has_ended

    def waits_for(self, index: int | None = None) -> str:
        """What comes next, in words; "" once the study has ended, and what is wrong with a board that lies.

        Args:
            index: of the owner who wants to know, who may have been left out.
        """
        try:
            shown = self.progress.follow(self.board)
            for name in ("keyring", "members"):
                if index is not None and shown.has(name) and index not in getattr(shown, name):
                    return f"left out of this session: {file_name(name)} was published without this member"
            return "" if self.progress.has_ended else shown.waiting.describe(self._terms.ids)
        except SecureError as error:
            return f"stopped: {error}"

    # --- owners ---

    def visit(
        self,
        key: SigningKey,
        rows: Callable[[], OwnerRows],
        state: str | os.PathLike[str],
        *,
        ledger: Ledger | None = None,
        policy: Policy | None = None,
    ) -> Visit:
        """Do whatever is next for an owner, and nothing twice.

        Args:
            key: the owner's.
            rows: opens the owner's rows; called only if there is something to do.
            state: a folder of the owner's own, closed to others, for what it keeps of its sessions.
            ledger: what pays for private sums; None without privacy.
            policy: of the owner; None checks nothing.

        Raises:
            SecureError: the board contradicts what this owner knows, or the session is of another study.
                Nothing was sent.
        """
        index = self._terms.ids.index(self._roster.member_of(key.public).id)
        if not self.is_open:
            return Visit((), (), "waits for the coordinator to open a session")
        self.session.check_clock()
        files, sent = self._own_files(state), list[str]()
        with files.locked():
            self.board.refresh()  # another process may have been here
            self._check_places(files, index)
            is_open = files.has_secrets or bool(self._unsettled(ledger))
            ended = not is_open and self.has_ended
            if not ended:
                privacy = privacy_of(self._roster)
                owner = Owner(
                    self.progress, key, rows(), files, privacy=privacy, ledger=ledger, policy=policy
                )
                while True:
                    new = owner.reply(_visible(self.board, index))
                    sent += self._publish(files)
                    if not new:
                        break
                ended = owner.has_ended
            cancelled = self._cancel(index, ledger)
        return Visit(tuple(sent), cancelled, "" if ended else self.waits_for(index))

    def refuse(
        self, key: SigningKey, state: str | os.PathLike[str], *, ledger: Ledger | None = None
    ) -> Visit:
        """Never answer the sum that is open now; take its debit back as soon as enough members have refused.

        Raises:
            SecureError: there is no such sum, this owner has answered it, or its state is not there.
        """
        session, index = self.session, self.session.index_of(key)
        session.check_clock()
        files = self._own_files(state)
        with files.locked():
            self.board.refresh()
            self._check_places(files, index)
            number = self._open_sum()
            files.resume(member_facts(self._roster, key))
            refusal(session, key, files, number, _visible(self.board, index))
            sent = self._publish(files)
            cancelled = self._cancel(index, ledger)
        return Visit(tuple(sent), cancelled, self.waits_for(index))

    def forget(self, key: SigningKey, state: str | os.PathLike[str]) -> None:
        """Erase the secrets of an owner's part in the session, for good.

        It drops out. What it has sent stays in its state, so that nothing is sent twice, and so do its
        debits.

        Raises:
            SecureError: it takes no part in this session, or its state is not there.
        """
        files = self._own_files(state)
        with files.locked():
            files.resume(member_facts(self._roster, key))
            files.erase_all()

    def _own_files(self, state: str | os.PathLike[str]) -> OwnerFiles:
        """An owner's files of the session."""
        check_state(state, self.board.folder)
        return OwnerFiles(Path(state) / self.session.id[:32])

    def _check_places(self, files: OwnerFiles, index: int) -> None:
        """Refuse, before anything is made or paid for, what is in a place of this owner and is no message."""
        for item in self.board.skipped:
            name = message_name(item.file) or ""
            if owner_of(name) == index and name not in files.sent:
                raise SecureError(
                    f"an owner must know all it has sent in a session, and {item.file} is there, not of it "
                    f"({item.reason.rstrip('.')}); take the state that it was sent with; if that is lost, "
                    "wait for another session; else ask who wrote it, and remove it."
                )

    def _publish(self, files: OwnerFiles) -> list[str]:
        """Write what an owner has decided to send and is not there, in the order of the protocol."""
        names = sorted((name for name in files.sent if name not in self.board), key=_order)
        self.board.publish({name: files.sent[name] for name in names})
        return names

    def _open_sum(self) -> int:
        """The number of the sum that has been announced and has no total."""
        for number in range(MOST_SUMS):
            if f"{number:02}/total" not in self.board:
                if f"{number:02}/announced" in self.board:
                    return number
                break
        raise SecureError(
            "only a sum that was announced and has no total can be refused, and there is none now."
        )

    def _cancel(self, index: int, ledger: Ledger | None) -> tuple[str, ...]:
        """Take back what the board proves not to have been spent."""
        cancelled = []
        for name, number in self._unsettled(ledger).items():
            proof = find_proof(self.session, self.board, index, number)
            if ledger is not None and proof is not None:
                ledger.cancel(name, proof)
                cancelled.append(name)
        return tuple(cancelled)

    def _unsettled(self, ledger: Ledger | None) -> dict[str, int]:
        """Debits of sums that may or may not come out, and the numbers of the sums."""
        numbers = {debit_name(self.session.id, number): number for number in range(MOST_SUMS)}
        return {
            entry.release: numbers[entry.release]
            for entry in (ledger.entries if ledger is not None else ())
            if entry.release in numbers and not entry.completed and not entry.cancelled
        }

    # --- the coordinator, and anybody ---

    def coordinate(self, *, closing: bool = False, wait: float | None = None) -> tuple[Visit, dict[str, str]]:
        """Do whatever is next for the coordinator; the visit, and which messages do not count, and why.

        A round ends when the messages of all are there.

        Args:
            closing: end the round that is open now with those who are there, if they are enough.
            wait: end every round so with those who are there after so many seconds.

        Raises:
            SecureError: the session is of another study, the board was changed, or a member lied.
        """
        coordinator, done, problems = Coordinator(self.progress), list[str](), dict[str, str]()
        while True:
            over = wait is not None and self._age_of_round() >= wait
            new = coordinator.advance(self.board, closing=over or (closing and not done))
            problems |= coordinator.problems
            if not new:
                break
            self.board.publish(new)
            done += new
        return Visit(tuple(done), (), self.waits_for()), problems

    def _age_of_round(self) -> float:
        """Seconds since the coordinator's last message."""
        return self.board.age([name for name in self.board.published if name in self.board][-1])

    def model(self) -> Subspace:
        """The model of a study that has ended, with its certificate, computed from the totals.

        Anybody who can read the folder can compute it; `verify` says whether the totals are those of owners.

        Raises:
            SecureError: there is no session, or it has not ended.
        """
        if not self.has_ended:
            raise SecureError(
                f"a study must have ended before there is a model, and this one {self.waits_for()}."
            )
        return self.progress.model(self.board)

    def verify(self) -> int:
        """Compute all totals again from what owners have signed; how many there are.

        Anybody who can read the folder can. It takes the time and the memory that the coordinator takes.

        Raises:
            SecureError: a total is another than what owners' messages give, or some are missing.
        """
        shown = self.progress.follow(self.board)
        for number in range(shown.n_totals):
            check_total(shown, number)
        return shown.n_totals


def check_state(state: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Refuse, by SecureError, a state folder that others could read, or that is a file."""
    if Path(state).resolve().is_relative_to(Path(folder).resolve()):
        raise SecureError(
            f"the state folder has secrets, and must be outside the shared folder {folder}, got {state}; "
            "name another with `--state`."
        )
    if Path(state).exists() and not Path(state).is_dir():
        raise SecureError(f"the state must be a folder, and {state} is a file; name another with `--state`.")


def _visible(board: Board, index: int) -> Board:
    """What an owner needs of a board, and all that is there in its name: it may be of somebody else."""
    return relevant(board, index) | {name: board[name] for name in board if owner_of(name) == index}


def _order(name: str) -> tuple[int, int]:
    place = place_of(name)
    assert place is not None  # it was sent
    return -1 if place.number is None else place.number, _ORDER.index(place.kind.name)
