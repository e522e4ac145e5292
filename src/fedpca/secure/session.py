"""A session: one attempt at a secure study, with fresh keys. Reads and writes its messages."""

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from fedpca._typing import JSON
from fedpca._util.text import utc_timestamp
from fedpca.errors import SecureError
from fedpca.secure import wire
from fedpca.secure.messages import FORMAT, KINDS, Message, Place, board_name, checked, place_of
from fedpca.secure.settings import Terms
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_MOST_BYTES = 2**14
# By which clocks may differ: a time zone set wrong is an hour or more. A session of the future is refused,
# as its time stands in the certificate; one of last year may still go on: rounds may take as long as they do.
_CLOCKS = timedelta(hours=1)
# Bytes of the largest message that is kept after it was read: shares of 10 sums among 100 members: 0.3 MB,
# masked words of 784 features 2.5 MB, of every member. What is larger is verified whenever it is read.
_KEPT = 2**20


class Session:
    """One attempt at a study, as its coordinator opened it.

    Every message is verified once in the life of this object, unless it is large: a visit has one session.

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
        self.opened = self._read_opening(contents)
        self._known: dict[str, tuple[bytes, Message]] = {}

    @staticmethod
    def new(roster: Roster) -> bytes:
        """The message that opens a session."""
        Terms.of(roster)
        return wire.canonical(
            {
                "format": FORMAT,
                "study": roster.study,
                "roster": roster.hash,
                "nonce": secrets.token_hex(32),
                "opened": utc_timestamp(),
            }
        )

    def _read_opening(self, contents: bytes) -> datetime:
        try:
            if len(contents) > _MOST_BYTES:
                raise ValueError("it is too long")
            fields, rest = wire.header(contents)
            if len(rest):
                raise ValueError("it must have one line")
            opened: datetime = checked(KINDS["session"], fields, self.terms)["opened"]
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

    def index_of(self, key: SigningKey) -> int:
        """The number of the member who has this key."""
        return self.terms.ids.index(self.roster.member_of(key.public).id)

    # --- messages ---

    def sign(
        self, key: SigningKey, kind: str, index: int, number: int | None, fields: JSON, payload: bytes = b""
    ) -> bytes:
        """An owner's message."""
        return wire.sign(key, {**self._expected(Place(KINDS[kind], index, number)), **fields}, payload)

    def publish(self, fields: JSON, payload: bytes = b"") -> bytes:
        """A message of the coordinator."""
        return wire.canonical({**fields, "session": self.id}) + payload

    def read(self, name: str, contents: bytes) -> Message:
        """What a message says; SecureError if it does not count under this name."""
        known = self._known.get(name)
        if known is not None and known[0] == contents:  # bytes are compared faster than signatures verified
            return known[1]
        place = place_of(name)
        if place is None or (place.owner or 0) >= self.terms.n_members:
            raise SecureError(
                f"messages must have the name of a kind and a member, and {name!r:.80} has not."
            )
        try:
            found = self._read(place, contents)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self.refused(place, error) from error
        if len(contents) <= _KEPT:
            self._known[name] = (contents, found)
        return found

    def _read(self, place: Place, contents: bytes) -> Message:
        expected = self._expected(place)
        if place.owner is None:
            fields, payload = wire.header(contents)
            if fields.get("session") != self.id:
                raise ValueError("it is of another session")
            digest = wire.digest(contents)
        else:
            key = self.roster.members[self.terms.ids[place.owner]].key
            fields, payload, digest = wire.read_signed(contents, key, expected)
            del fields["bytes"]
        if len(payload) and not place.kind.has_payload:
            raise ValueError("it must have no payload")
        own = {name: value for name, value in fields.items() if name not in expected}
        return Message(digest, checked(place.kind, own, self.terms), payload)

    def _expected(self, place: Place) -> dict[str, Any]:
        """What the header of a message says of where it belongs."""
        if place.owner is None:
            return {"session": self.id}
        return {
            "kind": place.kind.name,
            "session": self.id,
            "study": self.roster.study,
            "roster": self.roster.hash,
            "from": place.owner,
            "sum": place.number,
        }

    def refused(self, place: Place, error: Exception) -> SecureError:
        """That a message does not count, whose it is, and what to do."""
        name, problem = board_name(place.kind.name, place.owner, place.number), str(error).rstrip(".")
        if place.owner is None:
            return SecureError(
                f"{name} must be what the coordinator published in this session, and is not: {problem}; "
                "answer nothing more, and ask the coordinator."
            )
        member = self.terms.ids[place.owner]
        return SecureError(
            f"{name} must be a message of {member!r:.80} in this session, and does not count: {problem}; "
            f"remove it, and let {member!r:.80} send it again."
        )
