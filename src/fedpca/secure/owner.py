"""An owner in a session: what it answers to a board. Pure: the same board and state, the same bytes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpca._typing import JSON, AnyArray
from fedpca.errors import SecureError
from fedpca.secure import masks, noise_shares, shamir, wire
from fedpca.secure.masks import Words
from fedpca.secure.messages import Announced, NoiseBlock
from fedpca.secure.owner_secrets import Secrets, seed_hash
from fedpca.secure.record import Record
from fedpca.secure.session import Session
from fedpca.secure.wire import Board, board_name
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_BITS = 62  # of the entries of an owner, shifted; noise and the sum have room beside them


class _Step(NamedTuple):
    """A message to send, about something that the coordinator published."""

    kind: str
    number: int | None
    field: str  # that has the digest of what it is about
    digest: str
    make: Callable[[], tuple[JSON, bytes]]  # its other fields, and its payload


class Owner:
    """One owner in one session.

    Args:
        roster: that all members have agreed on.
        session: the message that opened the session.
        key: the owner's, of the roster.
        rows: how many records it has, which everyone will know.
        secrets: drawn once per session, and stored.
        sent: what it has sent in this session, by name. Whatever is there is never made again.

    Raises:
        SecureError: the session is of another study or roster, or was opened in the future.
    """

    def __init__(
        self,
        roster: Roster,
        session: bytes,
        key: SigningKey,
        rows: int,
        secrets: Secrets,
        sent: Mapping[str, bytes],
    ) -> None:
        self.session = Session(roster, session)
        self.session.check_clock()
        self.terms = self.session.terms
        self.index = self.terms.ids.index(roster.member_of(key.public).id)
        self.rows, self._key, self._secrets, self._sent = rows, key, secrets, sent
        self._received: dict[int, list[tuple[bytes, bytes]]] = {}  # shares of seed and key, by dealer and sum
        self._received_for = ""  # the digest of the members who dealt them

    def reply(self, board: Board, vector: Callable[[Announced], AnyArray]) -> dict[str, bytes]:
        """Everything that this owner can send now and has not sent: store it in `sent` before it leaves.

        Args:
            board: messages by name; those of `relevant` are enough.
            vector: gives this owner's integers of an announced sum, without noise; it compares the sum with
                the one it expects, and debits the ledger before it returns. Whatever it raises is passed on.

        Raises:
            SecureError: the coordinator lies, a member does, or this owner's state is lost. Nothing is sent.
        """
        self._check_state(board)
        new: dict[str, bytes] = {}
        for step in self._steps(Record(self.session, board), vector):
            name = board_name(step.kind, self.index, step.number)
            if name in self._sent:
                self._check_sent(name, step)
                continue
            fields, payload = step.make()
            if step.field:
                fields = {**fields, step.field: step.digest}
            new[name] = self.session.sign(self._key, step.kind, self.index, step.number, fields, payload)
        return new

    def refuse(self, number: int, board: Board | None = None) -> dict[str, bytes]:
        """The message that this owner has not opened a sum, and never will.

        Args:
            number: of the sum.
            board: if there is one, it must have nothing of this owner that it does not know.

        Raises:
            SecureError: it has opened the sum, or its state is lost.
        """
        self._check_state(board or {})
        if (opened := board_name("opened", self.index, number)) in self._sent:
            raise SecureError(
                f"only an owner that has not opened a sum can refuse it, and {opened} was sent; the sum may "
                "be known, and its debit stays."
            )
        name = board_name("refused", self.index, number)
        if name in self._sent:
            return {}
        return {name: self.session.sign(self._key, "refused", self.index, number, {})}

    def ended(self, board: Board) -> list[int]:
        """Sums whose secrets are not needed any more: erase them with `Secrets.without_sum`."""
        if not self._has_sent("shares"):
            return []
        record = Record(self.session, board)
        return [
            number
            for number, item in enumerate(self._secrets.sums)
            if item is not None
            and (
                self._has_sent("opened", number)
                or self._has_sent("refused", number)
                or record.has("total", number=number)
            )
        ]

    # --- what to send, in order ---

    def _steps(self, record: Record, vector: Callable[[Announced], AnyArray]) -> Iterator[_Step]:
        """Messages in their order, as far as the board goes."""
        yield _Step("keys", None, "", "", self._keys)
        if not record.has("keyring") or self.index not in record.keyring.keys:
            return
        self._require_named(record.keyring.keys[self.index], "keys")
        yield _Step("shares", None, "keyring", record.keyring.digest, lambda: self._shares(record))
        if not record.has("members") or self.index not in record.members.members:
            return
        self._require_named(record.members.members[self.index][1], "shares")
        if self._received_for != record.members.digest:
            self._received, self._received_for = self._unsealed(record), record.members.digest
        yield _Step("agreed", None, "members", record.members.digest, lambda: ({}, b""))
        if not self._enough(record, "agreed", "members", record.members.digest):
            return
        for number in range(record.n_totals + 1):
            yield from self._sum_steps(record, number, vector)

    def _sum_steps(
        self, record: Record, number: int, vector: Callable[[Announced], AnyArray]
    ) -> Iterator[_Step]:
        if not record.has("announced", number=number) or self._has_sent("refused", number):
            return
        announced = record.announced(number)
        done = record.has("total", number=number)
        late = record.has("present", number=number)
        fixed = record.fixed(number)
        if self._has_sent("masked", number) or not (late or (fixed is not None and self.index not in fixed)):
            yield _Step(
                "masked",
                number,
                "announced",
                announced.digest,
                lambda: self._masked(record, announced, vector),
            )
        if not late:
            return
        present = record.present(number)
        if self.index in present.present:
            self._require_named(present.present[self.index], "masked", number)
            if self._has_sent("signed", number) or not done:
                yield _Step("signed", number, "present", present.digest, lambda: ({}, b""))
        if self._has_sent("opened", number) or (
            not done and self._enough(record, "signed", "present", present.digest, number)
        ):
            yield _Step("opened", number, "present", present.digest, lambda: self._opened(record, number))

    # --- how it is made ---

    def _keys(self) -> tuple[JSON, bytes]:
        sums = []
        for number in range(len(self._secrets.sums)):
            own = self._secrets.of_sum(number)
            anchor = noise_shares.element_after(own.surplus, noise_shares.anchor_steps(self.terms))
            sums.append(
                {
                    "key": masks.public_key(own.key).hex(),
                    "seed": seed_hash(own.seed).hex(),
                    "surplus": anchor.hex(),
                }
            )
        return {
            "rows": self.rows,
            "enc": masks.public_key(self._secrets.sealing_key).hex(),
            "sums": sums,
        }, b""

    def _shares(self, record: Record) -> tuple[JSON, bytes]:
        receivers = list(record.keyring.keys)
        sums = [self._secrets.of_sum(number) for number in range(len(self._secrets.sums))]
        if record.n_sums != len(sums):
            raise SecureError(
                f"all members must have keys for the same number of sums, and this one has {len(sums)}, the "
                f"others {record.n_sums}; compare versions and rosters, and open another session."
            )
        dealt = [own.shares(receivers, self.terms.threshold) for own in sums]  # by sum and receiver
        sealed = {}
        for place, receiver in enumerate(receivers):
            if receiver != self.index:
                contents = b"".join(share for of_sum in dealt for share in of_sum[place])
                sealed[str(receiver)] = masks.seal(
                    self._seal_key(record, self.index, receiver), contents
                ).hex()
        commitments = b"".join(
            shamir.commitment(pair[which])
            for by_receiver in dealt
            for which in (0, 1)
            for pair in by_receiver
        )
        return {"sealed": sealed}, commitments

    def _seal_key(self, record: Record, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.index else sender
        public = record.keys_of(other).enc
        return masks.seal_key(self._secrets.sealing_key, public, self.session.salt, sender, receiver)

    def _unsealed(self, record: Record) -> dict[int, list[tuple[bytes, bytes]]]:
        """This owner's shares of seed and key, of every other member and sum, as committed to."""
        receivers = list(record.keyring.keys)
        place, found = receivers.index(self.index), {}
        for dealer in record.members.members:
            if dealer == self.index:
                continue
            shares = record.shares_of(dealer)
            contents = masks.unseal(self._seal_key(record, dealer, self.index), shares.sealed[self.index])
            pieces = (
                []
                if contents is None
                else [contents[i : i + shamir.SHARE] for i in range(0, len(contents), shamir.SHARE)]
            )
            pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
            if not pairs or not all(
                shamir.is_committed(pair[which], shares.commitment(number, which, place, len(receivers)))
                for number, pair in enumerate(pairs)
                for which in (0, 1)
            ):
                raise SecureError(
                    "shares must be below the prime, and those that their dealer committed to, and "
                    f"{record.names([dealer])} dealt others to this member; let the coordinator open another "
                    "session without it."
                )
            found[dealer] = pairs
        return found

    def _masked(
        self, record: Record, announced: Announced, vector: Callable[[Announced], AnyArray]
    ) -> tuple[JSON, bytes]:
        number, own = announced.number, self._secrets.of_sum(announced.number)
        context = bytes.fromhex(announced.digest)
        keys = [(masks.self_key(own.seed, self.session.salt, context, self.index), True)]
        for other in record.members.members:
            if other != self.index:
                public = record.keys_of(other).sums[number].key
                key = masks.pair_key(own.key, public, self.session.salt, context, self.index, other)
                keys.append((key, self.index < other))
        words = shifted(vector(announced), announced.blocks)  # the last thing to be refused, and paid for
        words += noise_shares.noise(announced.blocks, record.levels, own.surplus, 0)
        masks.add_masks(words, keys)
        return {"rows": self.rows}, words.astype("<u8", copy=False).tobytes()

    def _opened(self, record: Record, number: int) -> tuple[JSON, bytes]:
        present = record.present(number).present
        own = self._secrets.of_sum(number)
        [mine] = own.shares([self.index], self.terms.threshold)
        seeds, keys = {}, {}
        for member in record.members.members:
            of_seed, of_key = mine if member == self.index else self._received[member][number]
            if member in present:
                seeds[str(member)] = of_seed.hex()
            else:
                keys[str(member)] = of_key.hex()
        surplus = None
        if self.index in present:
            first = record.levels.first_surplus(len(present))
            surplus = "" if first is None else noise_shares.element_after(own.surplus, first).hex()
        return {"seeds": seeds, "keys": keys, "surplus": surplus}, b""

    # --- what must hold ---

    def _has_sent(self, kind: str, number: int | None = None) -> bool:
        return board_name(kind, self.index, number) in self._sent

    def _enough(self, record: Record, kind: str, field: str, hash: str, number: int | None = None) -> bool:
        """Whether so many members signed this that nobody can have enough signatures on anything else."""
        same, other = record.signers(kind, field, hash, number)
        if self.index in record.members.members and self._signs(record, kind, number):
            same, other = same | {self.index}, other - {self.index}
        if len(same) >= self.terms.threshold:
            return True
        if len(record.members.members) - len(other) < self.terms.threshold:  # few liars must not stop others
            raise SecureError(
                f"at least {self.terms.threshold} members must sign the same {field}, and "
                f"{record.names(sorted(other))} signed another than the coordinator shows here; the "
                "coordinator lies, or they do: answer nothing more, and ask them."
            )
        return False

    def _signs(self, record: Record, kind: str, number: int | None) -> bool:
        return kind == "agreed" or (number is not None and self.index in record.present(number).present)

    def _require_named(self, hash: str, kind: str, number: int | None = None) -> None:
        """Refuse that the coordinator names another message of this owner than the one it has sent."""
        name = board_name(kind, self.index, number)
        if name not in self._sent or wire.digest(self._sent[name]) != hash:
            raise SecureError(
                f"the coordinator must name what this owner has sent, and names another {name}; answer "
                "nothing more, and ask the coordinator."
            )

    def _check_sent(self, name: str, step: _Step) -> None:
        """Refuse a board on which something else is now what this owner answered to."""
        if step.field and wire.header(self._sent[name])[0].get(step.field) != step.digest:
            raise SecureError(
                f"an owner answers once, and this one sent {name} about another {step.field} than the "
                "coordinator shows now; answer nothing more, and ask the coordinator."
            )

    def _check_state(self, board: Board) -> None:
        """Refuse a board with messages of this owner that it does not know: it would answer twice."""
        for name in board:
            parts = wire.split_name(name)
            if parts is None or parts[1] != self.index or self._sent.get(name) == board[name]:
                continue
            rule = "an owner must know all it has sent in a session"
            if name in self._sent:
                raise SecureError(
                    f"{rule}, and {name} is not what it sent; ask who changed it, and remove it: it is sent "
                    "again then."
                )
            raise SecureError(
                f"{rule}, and {name} is on the board, and not in its state; take the state that it was sent "
                "with; if that is lost, wait for another session; else ask who wrote it, and remove it."
            )


def shifted(values: Any, blocks: tuple[NoiseBlock, ...]) -> Words:
    """Integers times 2^shift, modulo 2^64; SecureError for anything that could wrap around."""
    values = np.asarray(values)
    length = sum(block.length for block in blocks)
    if values.shape != (length,) or values.dtype.kind not in "fiu":
        raise SecureError(f"a sum of {length} entries needs as many integers, got shape {values.shape}.")
    words = np.empty(length, dtype=np.int64)
    start = 0
    for block in blocks:
        part = values[start : start + block.length]
        limit = 2.0 ** (_BITS - block.shift)
        if not (np.abs(part.astype(np.float64)) < limit).all() or (part != np.rint(part)).any():
            raise SecureError(
                f"entries of a sum must be whole numbers below 2^{_BITS - block.shift}, so that it does not "
                "wrap around, and some are not; take a smaller bound, or fewer rows."
            )
        words[start : start + block.length] = part.astype(np.int64) << block.shift
        start += block.length
    return words.view(np.uint64)
