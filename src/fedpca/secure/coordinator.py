"""The coordinator of a session: what it publishes next. It has no key, and need not be trusted.

Whoever reads the board can do the same: unmasking needs nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from fedpca.errors import SecureError
from fedpca.secure import masks, noise_shares, shamir
from fedpca.secure.messages import Announced, Keys, Masked, Opened, Shares
from fedpca.secure.owner_secrets import seed_hash
from fedpca.secure.record import Record
from fedpca.secure.session import Session
from fedpca.secure.wire import Board, board_name, digest
from fedpca.trust.roster import Roster


class Sum(Protocol):
    """What is to be summed: blocks of entries, each (length, standard deviation of its noise)."""

    @property
    def name(self) -> str: ...

    @property
    def blocks(self) -> Iterable[tuple[int, float]]: ...


class Coordinator:
    """Collects messages, and publishes what follows from them.

    Args:
        roster: that all members have agreed on.
        session: the message that opened the session.

    Attributes:
        state: what it collects: "keys", "shares", "agreement", "masked", "signatures", "opening"; or "done".
        waiting_for: ids of members it waits for.
        problems: why a message does not count, by its name.
    """

    def __init__(self, roster: Roster, session: bytes) -> None:
        self.session = Session(roster, session)
        self.terms = self.session.terms
        self.state = "keys"
        self.waiting_for: list[str] = []
        self.problems: dict[str, str] = {}

    def next(self, board: Board, *, closing: bool, announce: Callable[[], Sum | None]) -> dict[str, bytes]:
        """The next message to publish; empty while it waits, and at the end.

        Args:
            board: all messages, its own included.
            closing: go on with those that are there, if they are enough.
            announce: gives the next sum, or None after the last.

        Raises:
            SecureError: the board was changed, or a member has dealt shares of nothing.
        """
        self.waiting_for, self.problems = [], {}
        record = Record(self.session, board)
        if not record.has("keyring"):
            return self._publish_keyring(record, closing)
        if not record.has("members"):
            return self._publish_members(record, closing)
        number = record.n_totals
        if not record.has("announced", number=number):
            return self._announce(record, number, closing, announce)
        if not record.has("present", number=number):
            return self._publish_present(record, number, closing)
        return self._publish_total(record, number, closing)

    def _publish_keyring(self, record: Record, closing: bool) -> dict[str, bytes]:
        self.state = "keys"
        found: dict[int, Keys] = self._collect(record, "keys", range(self.terms.n_members), record.keys_of)
        sizes = [len(keys.sums) for keys in found.values()]
        usual = max(sizes, key=sizes.count, default=0)
        for index in [index for index, keys in found.items() if len(keys.sums) != usual]:
            name = board_name("keys", index)
            self.problems[name] = (
                f"{name} must have keys for {usual} sums, as the others, and has {len(found[index].sums)}."
            )
            del found[index]
        if not self._enough(found, self.terms.n_members, self.terms.least, closing):
            return {}
        listed = [[index, keys.digest] for index, keys in found.items()]
        return {"keyring": self.session.publish({"keys": listed})}

    def _publish_members(self, record: Record, closing: bool) -> dict[str, bytes]:
        self.state = "shares"
        keyring = record.keyring.keys
        found: dict[int, Shares] = self._collect(record, "shares", keyring, record.shares_of)
        if not self._enough(found, len(keyring), self.terms.least, closing):
            return {}
        listed = [[index, keyring[index], shares.digest] for index, shares in found.items()]
        return {"members": self.session.publish({"members": listed})}

    def _announce(
        self, record: Record, number: int, closing: bool, announce: Callable[[], Sum | None]
    ) -> dict[str, bytes]:
        members = record.members
        if number == 0:
            self.state = "agreement"
            agreed = self._collect(
                record, "agreed", members.members, self._about(record, "agreed", "members", members.digest)
            )
            if not self._enough(agreed, len(members.members), self.terms.threshold, closing):
                return {}
        following = announce()
        if following is None:
            self.state = "done"
            return {}
        blocks = [[int(length), float(sd), record.levels.shift(float(sd))] for length, sd in following.blocks]
        fields = {"name": following.name, "blocks": blocks, "before": record.before(number)}
        try:
            record.check_blocks(Announced.parse(fields, "", number))
        except ValueError as error:
            raise SecureError(
                f"sum {number}, {following.name!r:.80}, cannot be announced: {error}."
            ) from error
        self.state = "masked"
        return {board_name("announced", number=number): self.session.publish(fields)}

    def _publish_present(self, record: Record, number: int, closing: bool) -> dict[str, bytes]:
        self.state = "masked"
        announced, fixed = record.announced(number), record.fixed(number)
        wanted = list(record.members.members) if fixed is None else fixed
        found: dict[int, str] = self._collect(
            record, "masked", wanted, lambda index: masked_of(record, announced, index).digest, number
        )
        if not self._enough(found, len(wanted), self.terms.least, closing and fixed is None):
            return {}
        fields = {"announced": announced.digest, "present": [list(item) for item in found.items()]}
        return {board_name("present", number=number): self.session.publish(fields)}

    def _publish_total(self, record: Record, number: int, closing: bool) -> dict[str, bytes]:
        present = record.present(number)
        self.state = "signatures"
        signed = self._collect(
            record,
            "signed",
            present.present,
            self._about(record, "signed", "present", present.digest, number),
            number,
        )
        if len(signed) < self.terms.threshold:
            return {}
        self.state = "opening"
        found: dict[int, Opened] = self._collect(
            record, "opened", record.members.members, lambda index: opened_of(record, number, index), number
        )
        missing = [index for index in present.present if index not in found]
        self.waiting_for = [self.terms.ids[index] for index in missing]
        if len(found) < self.terms.threshold or (missing and not closing):
            return {}
        return {board_name("total", number=number): total_of(record, number, found)}

    # --- collecting ---

    def _collect(
        self,
        record: Record,
        kind: str,
        indices: Iterable[int],
        read: Callable[[int], Any],
        number: int | None = None,
    ) -> dict[int, Any]:
        """What of the messages of these members counts; the others are waited for."""
        found = {}
        for index in indices:
            if record.has(kind, index, number):
                try:
                    found[index] = read(index)
                except SecureError as error:
                    self.problems[board_name(kind, index, number)] = str(error)
        self.waiting_for = [self.terms.ids[index] for index in indices if index not in found]
        return found

    def _about(
        self, record: Record, kind: str, field: str, hash: str, number: int | None = None
    ) -> Callable[[int], Any]:
        """Reads a member's signature on this."""

        def read(index: int) -> Any:
            message = record.message(kind, index, number)
            if getattr(message, field) != hash:
                raise SecureError(
                    f"all members must sign the same {field}, and {record.names([index])} signed another."
                )
            return message

        return read

    def _enough(self, found: Mapping[int, Any], wanted: int, least: int, closing: bool) -> bool:
        return len(found) == wanted or (closing and len(found) >= least)


def masked_of(record: Record, announced: Announced, index: int) -> Masked:
    """A member's masked words of a sum."""
    masked: Masked = record.message("masked", index, announced.number)
    name = board_name("masked", index, announced.number)
    if masked.announced != announced.digest:
        raise SecureError(f"{name} must be of the sum that was announced, and is of another.")
    if len(masked.payload) != 8 * announced.length or masked.rows != record.keys_of(index).rows:
        raise SecureError(f"{name} must have {announced.length} words, of the rows of its owner's keys.")
    return masked


def opened_of(record: Record, number: int, index: int) -> Opened:
    """What a member has opened of a sum, as its dealers committed to it."""
    opened: Opened = record.message("opened", index, number)
    present, members = record.present(number), record.members.members
    name, liar = board_name("opened", index, number), record.names([index])
    if opened.present != present.digest:
        raise SecureError(f"{name} must be about those who are present, and is about others.")
    if set(opened.seeds) != set(present.present) or set(opened.keys) != set(members) - set(present.present):
        raise SecureError(f"{name} must open the seeds of those present and the keys of the others.")
    receivers = list(record.keyring.keys)
    place = receivers.index(index)
    for which, shares in enumerate((opened.seeds, opened.keys)):
        for dealer, share in shares.items():
            expected = record.shares_of(dealer).commitment(number, which, place, len(receivers))
            if not shamir.is_committed(share, expected):
                raise SecureError(
                    f"shares must be opened as they were dealt, and {liar} lies in {name} about that of "
                    f"{record.names([dealer])}; it does not count."
                )
    first = record.levels.first_surplus(len(present.present))
    if index not in present.present:
        holds = opened.surplus is None
    elif first is None or not opened.surplus:
        holds = first is None and opened.surplus == b""
    else:
        steps = noise_shares.anchor_steps(record.terms) - first
        anchor = record.keys_of(index).sums[number].surplus
        holds = noise_shares.element_after(opened.surplus, steps) == anchor
    if not holds:
        raise SecureError(
            f"noise must be opened as it was added, and {liar} lies in {name}; it does not count."
        )
    return opened


def total_of(
    record: Record, number: int, opened: Mapping[int, Opened], returned: Iterable[int] | None = None
) -> bytes:
    """The message with the total of a sum, from what `threshold` members or more have opened.

    Args:
        record: of the board.
        number: of the sum.
        opened: by member.
        returned: whose surplus is taken off; None for that of all who opened it.
    """
    announced, present, members = record.announced(number), record.present(number), record.members.members
    openers = sorted(opened)[: record.terms.threshold]
    weights = shamir.weights_of(openers)
    session, context = record.session.salt, bytes.fromhex(announced.digest)
    keys: list[tuple[bytes, bool]] = []
    for member in members:
        published = record.keys_of(member).sums[number]
        of = "seeds" if member in present.present else "keys"
        secret = shamir.combine({index: getattr(opened[index], of)[member] for index in openers}, weights)
        if secret is None or (
            seed_hash(secret) != published.seed
            if member in present.present
            else masks.public_key(secret) != published.key
        ):
            raise SecureError(
                f"shares must give the secret that was published, and those that {record.names([member])} "
                "dealt do not: it lied; open another session without it."
            )
        if member in present.present:
            keys.append((masks.self_key(secret, session, context, member), False))
            continue
        for other in present.present:
            public = record.keys_of(other).sums[number].key
            key = masks.pair_key(secret, public, session, context, member, other)
            keys.append((key, other > member))  # whoever has the smaller number added it
    total = np.zeros(announced.length, dtype=np.uint64)
    for index, named in present.present.items():
        masked = masked_of(record, announced, index)
        if masked.digest != named:
            raise SecureError(
                f"masked words of {record.names([index])} must be those in the sum, and changed."
            )
        total += np.frombuffer(masked.payload, dtype="<u8")
    masks.add_masks(total, keys)
    first = record.levels.first_surplus(len(present.present))
    if returned is None:
        returned = [] if first is None else [index for index in present.present if index in opened]
    for index in returned:
        assert first is not None
        element = opened[index].surplus
        assert element
        total -= noise_shares.noise(announced.blocks, record.levels, element, first)
    fields = record.total_fields(present, list(returned))
    return record.session.publish(fields, total.astype("<u8", copy=False).tobytes())


def check_total(record: Record, number: int) -> None:
    """Compute a total again, from what owners have signed.

    Raises:
        SecureError: it is another one, or messages that it was made of are not on the board any more.
    """
    published = record.total(number)
    opened: dict[int, Opened] = {}
    for index in record.members.members:
        if record.has("opened", index, number):
            with suppress(SecureError):  # does not count
                opened[index] = opened_of(record, number, index)
    missing = [index for index in published.opened if index not in opened]
    if missing or len(opened) < record.terms.threshold:
        raise SecureError(
            f"sum {number:02} can be computed again from the answers of at least {record.terms.threshold} "
            f"members and of those in its total, and there are {len(opened)}"
            + (f", without {record.names(missing)}" if missing else "")
            + ": somebody removed or changed messages, or the total is false."
        )
    if digest(total_of(record, number, opened, published.opened)) != published.digest:
        raise SecureError(
            f"the total of sum {number:02} must be that of the words of those present, and is another: the "
            "coordinator lies, or somebody changed it. Do not use the model; open another session with "
            "another coordinator."
        )
