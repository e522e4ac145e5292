"""The coordinator of a session: what it publishes next. It has no key, and need not be trusted.

Whoever reads the board can do the same: unmasking needs nothing else.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from fedpca._typing import JSON
from fedpca.errors import SecureError
from fedpca.secure import masks, noise_shares, shamir
from fedpca.secure.board import CheckedBoard
from fedpca.secure.messages import COLLECTED, Announced, Board, Kind, Message, NoiseBlock, board_name
from fedpca.secure.owner_secrets import seed_hash
from fedpca.secure.progress import Progress
from fedpca.secure.wire import digest


class Coordinator:
    """Collects messages, and publishes what follows from them: all of it is on the board.

    Args:
        progress: the session, and the model of what its members have agreed on.

    Attributes:
        state: the kind of message that it collects; "done" at the end.
        waiting_for: ids of members it waits for.
        problems: why a message does not count, by its name.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.session = progress, progress.session
        self.terms = self.session.terms
        self.state = "keys"
        self.waiting_for: list[str] = []
        self.problems: dict[str, str] = {}

    def advance(self, board: Board, *, closing: bool = False) -> dict[str, bytes]:
        """The next message to publish; empty while it waits, and at the end.

        Args:
            board: all messages, its own included.
            closing: go on with those that are there, if they are enough.

        Raises:
            SecureError: the board was changed, or a member lied.
        """
        self.waiting_for, self.problems = [], {}
        shown = self.progress.follow(board)
        following, number = shown.following
        found: dict[int, Message] = {}
        for kind in COLLECTED[following.name] if following.name != "announced" or not number else ():
            found = self._collect(shown, kind, number if kind.of_sum else None)
            if not self._enough(shown, kind, number, found, closing):
                return {}
        match following.name, number:
            case "keyring", _:
                new: JSON | None = {"keys": [[index, keys.digest] for index, keys in found.items()]}
            case "members", _:
                keys = shown.message("keyring")["keys"]
                new = {"members": [[index, *keys[index], item.digest] for index, item in found.items()]}
            case "announced", int():
                new = self._announcement(shown, number)
            case "present", int():
                listed = [[index, masked.digest] for index, masked in found.items()]
                new = {"announced": shown.announced(number).digest, "present": listed}
            case _:
                assert number is not None
                return {board_name("total", number=number): total_of(shown, number, found)}
        if new is None:
            self.state = "done"
            return {}
        return {board_name(following.name, number=number): self.session.publish(new)}

    @property
    def has_ended(self) -> bool:
        """Whether all totals were on the latest board."""
        return self.progress.has_ended

    def _collect(self, board: CheckedBoard, kind: Kind, number: int | None) -> dict[int, Message]:
        """What counts of the messages of this kind; the others are waited for."""
        self.state, found = kind.name, {}
        expected, _ = board.senders(kind, number)
        # Whoever is not in a sum can help to open it.
        for index in board.members if kind.name == "opened" else expected:
            if board.has(kind.name, index, number):
                try:
                    found[index] = board.message(kind.name, index, number)
                except SecureError as error:
                    self.problems[board_name(kind.name, index, number)] = str(error)
        if kind.name == "keys":
            self._drop_other_numbers_of_sums(found)
        self.waiting_for = [self.terms.ids[index] for index in expected if index not in found]
        return found

    def _drop_other_numbers_of_sums(self, found: dict[int, Message]) -> None:
        """Keys must be for the same number of sums. That of most counts: one liar, who may be the first to
        send keys, must not make those of all others wrong."""
        sizes = [len(keys["sums"]) for keys in found.values()]
        usual = max(sizes, key=sizes.count, default=0)
        for index in [index for index, keys in found.items() if len(keys["sums"]) != usual]:
            name = board_name("keys", index)
            self.problems[name] = (
                f"{name} must have keys for {usual} sums, as the others, and has {len(found[index]['sums'])}."
            )
            del found[index]

    def _enough(
        self, board: CheckedBoard, kind: Kind, number: int | None, found: Mapping[int, Message], closing: bool
    ) -> bool:
        """Whether to go on: with all, or with those that are there."""
        _, needed = board.senders(kind, number)
        return len(found) >= needed and (closing or kind.name == "signed" or not self.waiting_for)

    def _announcement(self, board: CheckedBoard, number: int) -> JSON | None:
        """The next sum; None after the last."""
        if (following := self.progress.announcement) is None:
            return None
        name, sizes = following
        blocks = tuple(NoiseBlock(length, sd, board.levels.shift(sd)) for length, sd in sizes)
        try:
            board.check_blocks(Announced("", number, name, blocks))
        except ValueError as error:
            raise SecureError(f"sum {number}, {name!r:.80}, cannot be announced: {error}.") from error
        self.state = "masked"
        return {"name": name, "blocks": [list(block) for block in blocks], "before": board.before(number)}


def total_of(
    board: CheckedBoard, number: int, opened: Mapping[int, Message], returned: Iterable[int] | None = None
) -> bytes:
    """The message with the total of a sum, from what `threshold` members or more have opened.

    Args:
        board: with all masked words.
        number: of the sum.
        opened: by member.
        returned: whose surplus is taken off; None for that of all who opened it.
    """
    announced, present = board.announced(number), board.present(number)
    named = board.message("present", number=number)["present"]
    keys = _known_masks(board, announced, opened)
    total = np.zeros(announced.length, dtype=np.uint64)
    for index in present:
        masked = board.message("masked", index, number)
        if (masked.digest,) != named[index]:
            raise SecureError(
                f"masked words of {board.names([index])} must be those in the sum, and changed."
            )
        total += np.frombuffer(masked.payload, dtype="<u8")
    masks.add_masks(total, keys)
    first = board.levels.first_surplus(len(present))
    if returned is None:
        returned = [] if first is None else [index for index in present if index in opened]
    returned = list(returned)
    for index in returned:
        assert first is not None
        total -= noise_shares.noise(announced.blocks, board.levels, opened[index]["surplus"], first)
    return board.session.publish(
        board.total_fields(number, returned), total.astype("<u8", copy=False).tobytes()
    )


def _known_masks(
    board: CheckedBoard, announced: Announced, opened: Mapping[int, Message]
) -> list[tuple[bytes, bool]]:
    """Keys of the masks left in the sum of those present, and whether to add or to subtract them."""
    number, present = announced.number, board.present(announced.number)
    openers = sorted(opened)[: board.terms.threshold]
    weights = shamir.weights_of(openers)
    session, context = board.session.salt, bytes.fromhex(announced.digest)
    keys: list[tuple[bytes, bool]] = []
    for member in board.members:
        published, of = board.keys_of(member)[number], "seeds" if member in present else "keys"
        secret = shamir.combine({index: opened[index][of][member] for index in openers}, weights)
        if secret is None or (
            seed_hash(secret) != published.seed
            if member in present
            else masks.public_key(secret) != published.key
        ):
            raise SecureError(
                f"shares must give the secret that was published, and those that {board.names([member])} "
                "dealt do not: it lied; open another session without it."
            )
        if member in present:
            keys.append((masks.self_key(secret, session, context, member), False))
            continue
        for other in present:
            public = board.keys_of(other)[number].key
            key = masks.pair_key(secret, public, session, context, member, other)
            keys.append((key, other > member))  # whoever has the smaller number added it
    return keys


def check_total(board: CheckedBoard, number: int) -> None:
    """Compute a total again, from what owners have signed.

    Raises:
        SecureError: it is another one, or messages that it was made of are not on the board any more.
    """
    published = board.total(number)
    opened: dict[int, Message] = {}
    for index in board.members:
        if board.has("opened", index, number):
            with suppress(SecureError):  # does not count
                opened[index] = board.message("opened", index, number)
    missing = [index for index in published.opened if index not in opened]
    if missing or len(opened) < board.terms.threshold:
        raise SecureError(
            f"sum {number:02} can be computed again from the answers of at least {board.terms.threshold} "
            f"members and of those in its total, and there are {len(opened)}"
            + (f", without {board.names(missing)}" if missing else "")
            + ": somebody removed or changed messages, or the total is false."
        )
    if digest(total_of(board, number, opened, published.opened)) != published.digest:
        raise SecureError(
            f"the total of sum {number:02} must be that of the words of those present, and is another: the "
            "coordinator lies, or somebody changed it. Do not use the model; open another session with "
            "another coordinator."
        )
