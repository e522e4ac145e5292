"""A session: one attempt at a secure study, with fresh keys. Reads and writes its messages."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

from fedpca._typing import JSON
from fedpca._util.text import utc_timestamp
from fedpca.errors import SecureError
from fedpca.secure import wire
from fedpca.secure.messages import OWNERS
from fedpca.secure.settings import Terms
from fedpca.secure.values import hex_bytes
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_FORMAT = "fedpca secure session 1"
_MOST_BYTES = 2**14
_CLOCKS = timedelta(hours=1)  # by which clocks may differ
_CACHED = 2**20  # bytes of the largest message that is kept after it was read
_T = TypeVar("_T")


class Session:
    """One attempt at a study, as its coordinator opened it.

    Args:
        roster: that all members have agreed on.
        contents: the message `session`.

    Attributes:
        id: the digest of the message, in everything that belongs to the session.
        salt: the same, as bytes.
        terms: of the roster.
        opened: when it was opened, by the coordinator's clock.

    Raises:
        SecureError: it is of another study, of another roster, or damaged.
    """

    def __init__(self, roster: Roster, contents: bytes) -> None:
        self.roster, self.terms = roster, Terms.of(roster)
        self.id = wire.digest(contents)
        self.salt = bytes.fromhex(self.id)
        self.opened = self._read(contents)
        self._cache: dict[str, tuple[bytes, Any]] = {}

    @staticmethod
    def new(roster: Roster) -> bytes:
        """The message that opens a session."""
        Terms.of(roster)
        return wire.canonical(
            {
                "format": _FORMAT,
                "study": roster.study,
                "roster": roster.hash,
                "nonce": secrets.token_hex(32),
                "opened": utc_timestamp(),
            }
        )

    def _read(self, contents: bytes) -> datetime:
        try:
            if len(contents) > _MOST_BYTES:
                raise ValueError("it is too long")
            fields, rest = wire.header(contents)
            if set(fields) != {"format", "study", "roster", "nonce", "opened"} or len(rest):
                raise ValueError("it must have format, study, roster, nonce and opened")
            if fields["format"] != _FORMAT:
                raise ValueError(f"its format is {fields['format']!r:.80}, and must be {_FORMAT!r}")
            hex_bytes(fields["nonce"], 32, "its nonce")
            opened = datetime.fromisoformat(str(fields["opened"]))
            if opened.tzinfo is None:
                raise ValueError("the time it was opened must be in UTC")
        except ValueError as error:
            self._refuse(f"a session must be opened by a valid message, and this is not one: {error}")
        if fields["study"] != self.roster.study:
            self._refuse(
                f"the session must be of study {self.roster.study!r:.80}, and is of {fields['study']!r:.80}"
            )
        if fields["roster"] != self.roster.hash:
            raise SecureError(
                f"the session must be under the roster {self.roster.hash[:19]}..., and is under "
                f"{str(fields['roster'])[:19]!r}...; compare the rosters with `fedpca roster show`: all "
                "members and the coordinator must have the same."
            )
        return opened

    def check_clock(self) -> None:
        """Refuse a session that was opened in the future."""
        ahead = self.opened - datetime.now(UTC)
        if ahead > _CLOCKS:
            raise SecureError(
                f"a session must not be opened in the future, and this one was opened at "
                f"{self.opened.isoformat()}, {ahead} ahead of the clock here; set the clock here, or let the "
                "coordinator set its own and open another session."
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise SecureError(f"{problem}; let the coordinator open another session.")

    # --- messages of owners ---

    def sign(
        self, key: SigningKey, kind: str, index: int, number: int | None, fields: JSON, payload: bytes = b""
    ) -> bytes:
        """An owner's message."""
        return wire.sign(key, {**self._expected(kind, index, number), **fields}, payload)

    def _expected(self, kind: str, index: int, number: int | None) -> JSON:
        return {
            "kind": kind,
            "session": self.id,
            "study": self.roster.study,
            "roster": self.roster.hash,
            "from": index,
            "sum": number,
        }

    def owner_message(self, name: str, contents: bytes) -> Any:
        """What an owner's message says; SecureError if it does not count under this name."""
        known = self._cache.get(name)
        if known is not None and known[0] == contents:  # bytes are compared faster than signatures checked
            return known[1]
        found = self._owner_message(name, contents)
        if len(contents) <= _CACHED:
            self._cache[name] = (contents, found)
        return found

    def _owner_message(self, name: str, contents: bytes) -> Any:
        parts = wire.split_name(name)
        if parts is None or parts[0] not in OWNERS or parts[1] >= self.terms.n_members:
            raise SecureError(
                f"messages must have the name of a kind and a member, and {name!r:.80} has not."
            )
        kind, index, number = parts
        names, of_sum, parse = OWNERS[kind]
        member = self.roster.members[self.terms.ids[index]]
        expected = self._expected(kind, index, number)
        try:
            if of_sum != (number is not None):
                raise ValueError("a message of this kind has another name")
            message = wire.read_signed(contents, member.key, expected)
            if set(message.fields) != {*expected, *names, "bytes"}:
                raise ValueError(f"its header must have {', '.join(names) or 'no more'}")
            if kind not in ("shares", "masked") and len(message.payload):
                raise ValueError("it must have no payload")
            return parse(self.terms, message)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise SecureError(
                f"{name} must be a message of {member.id!r:.80} in this session, and does not count: "
                f"{str(error).rstrip('.')}; remove it, and let {member.id!r:.80} send it again."
            ) from error

    # --- messages of the coordinator ---

    def publish(self, fields: JSON, payload: bytes = b"") -> bytes:
        """A message of the coordinator."""
        return wire.canonical({**fields, "session": self.id}) + payload

    def published(
        self, name: str, contents: bytes, names: tuple[str, ...], parse: Callable[[JSON, memoryview, str], _T]
    ) -> _T:
        """What a message of the coordinator says; SecureError if it is not one."""
        try:
            fields, payload = wire.header(contents)
            if set(fields) != {*names, "session"}:
                raise ValueError(f"it must have {', '.join(names)} and session")
            if fields["session"] != self.id:
                raise ValueError("it is of another session")
            if len(payload) and not name.endswith("/total"):
                raise ValueError("it must have one line")
            return parse(fields, payload, wire.digest(contents))
        except SecureError:  # of a message that it refers to
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise SecureError(
                f"{name} must be what the coordinator published in this session, and is not: "
                f"{str(error).rstrip('.')}; answer nothing more, and ask the coordinator."
            ) from error
