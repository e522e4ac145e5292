"""Proofs that a sum cannot contain an owner's rows, by messages that other members have signed.

A debit is made before masked words leave: from then on the others can open the sum without their owner. Two
things show that they never will:

- a set of those present without this owner, signed by `threshold` members: no other set can have as many
  signatures, and without them nobody opens;
- "I have not answered this sum, and never will" of more than M - threshold + colluding members: those who
  have not said so, and `colluding` who have and lie, are too few to open it.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fedpca._typing import JSON
from fedpca.errors import SecureError
from fedpca.secure.messages import MOST_SUMS, Board, Message, board_name
from fedpca.secure.session import Session
from fedpca.secure.settings import MOST_MEMBERS
from fedpca.secure.wire import digest
from fedpca.trust.roster import Roster

_FORMAT = "fedpca secure proof 1"


def debit_name(session: str, number: int) -> str:
    """The name of the debit of a sum: the same whenever it is paid for.

    >>> debit_name("5f" * 32, 3)
    '5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f-03'
    """
    return f"{session[:32]}-{number:02}"


@dataclass(frozen=True)
class Proof:
    """That a sum does not contain the rows of a member, and never will; made by `find_proof`.

    Attributes:
        member: the number of the member.
        number: of the sum.
        messages: that show it, by their names on the board, with the session's own.
    """

    member: int
    number: int
    messages: Mapping[str, bytes]

    @property
    def release(self) -> str:
        """The name of the debit that it cancels."""
        return debit_name(digest(self.messages["session"]), self.number)

    def check(self, roster: Roster) -> None:
        """Check it against the roster of its session; SecureError if it proves nothing."""
        session = Session(roster, self.messages.get("session", b""))
        if board_name("present", number=self.number) in self.messages:
            self._check_left_out(session)
        else:
            self._check_refused(session)

    def _check_left_out(self, session: Session) -> None:
        present = _present(session, self.messages, self.number)
        if self.member in present["present"]:
            raise SecureError(
                f"a debit is cancelled for a member who is not in the sum, and "
                f"{session.terms.ids[self.member]!r:.80} is in sum {self.number}; the debit counts."
            )
        signed = _endorsing(session, self.messages, self.number, present)
        _require(len(signed), session.terms.threshold, "signatures on who is in the sum", self.number)

    def _check_refused(self, session: Session) -> None:
        refused = _valid(session, self.messages, "refused", self.number)
        _require(len(refused), _n_refusals(session), "members who never answer the sum", self.number)

    def to_json(self) -> JSON:
        """All of it, for a ledger."""
        messages = {name: base64.b64encode(contents).decode() for name, contents in self.messages.items()}
        return {"format": _FORMAT, "member": self.member, "sum": self.number, "messages": messages}

    @classmethod
    def from_json(cls, fields: JSON) -> Self:
        """A proof as a ledger has it, not checked yet; ValueError if it is none."""
        try:
            if fields["format"] != _FORMAT:
                raise ValueError
            messages = {
                str(name): base64.b64decode(text, validate=True) for name, text in fields["messages"].items()
            }
            return cls(
                _number(fields["member"], MOST_MEMBERS),
                _number(fields["sum"], MOST_SUMS),
                messages,
            )
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise ValueError("it is not the proof of a cancelled debit, or is damaged") from None


def _number(value: object, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError
    return value


def find_proof(session: Session, board: Board, member: int, number: int) -> Proof | None:
    """A proof on the board that a sum has nothing of a member, and never will; None if there is none.

    Args:
        session: that the board is of.
        board: messages by name.
        member: the number of the member.
        number: of the sum.
    """
    if board_name("present", number=number) in board:
        try:
            present = _present(session, board, number)
        except SecureError:  # whoever answers it is told why
            return None
        signed = _endorsing(session, board, number, present)
        if member not in present["present"] and len(signed) >= session.terms.threshold:
            names = ["session", board_name("present", number=number), *signed]
            return Proof(member, number, {name: board[name] for name in names})
    if board_name("total", number=number) in board:
        return None
    refused = _valid(session, board, "refused", number)
    answered = _valid(session, board, "opened", number)
    refusals = [name for index, name in refused.items() if index not in answered]
    if len(refusals) < _n_refusals(session):
        return None
    return Proof(member, number, {name: board[name] for name in ("session", *refusals)})


def _n_refusals(session: Session) -> int:
    """How many must refuse, so that those who answer, with those who lie, are fewer than the threshold."""
    return session.terms.n_members - session.terms.threshold + session.terms.colluding + 1


def _present(session: Session, messages: Board, number: int) -> Message:
    name = board_name("present", number=number)
    return session.read(name, messages[name])


def _endorsing(session: Session, messages: Board, number: int, present: Message) -> list[str]:
    """Names of the messages of those present who signed that set."""
    found = _valid(session, messages, "signed", number)
    return [
        name
        for index, name in found.items()
        if index in present["present"] and session.read(name, messages[name])["present"] == present.digest
    ]


def _valid(session: Session, messages: Board, kind: str, number: int) -> dict[int, str]:
    """Messages of this kind that count, by the member's number."""
    found = {}
    for index in range(session.terms.n_members):
        name = board_name(kind, index, number)
        if name in messages:
            try:
                session.read(name, messages[name])
            except SecureError:  # counts as none
                continue
            found[index] = name
    return found


def _require(found: int, needed: int, what: str, number: int) -> None:
    if found < needed:
        raise SecureError(
            f"to cancel the debit of sum {number} there must be at least {needed} {what}, and there are "
            f"{found}; the debit counts."
        )
