"""A board read and checked: every message for itself, and against those it refers to. Anyone can do this."""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedpca._typing import JSON
from fedpca._util.text import join_names, sanitize
from fedpca.errors import SecureError
from fedpca.privacy.noise import too_large
from fedpca.secure import noise_shares, shamir
from fedpca.secure.messages import (
    COLLECTED,
    KINDS,
    Announced,
    Board,
    Kind,
    Message,
    Place,
    SumKeys,
    Total,
    board_name,
    place_of,
)
from fedpca.secure.noise_shares import LEAST_SD, Levels
from fedpca.secure.session import Session

_TAG = 16  # bytes that sealing adds


def relevant(board: Board, index: int) -> dict[str, bytes]:
    """What the owner of this number needs of a board: neither masked words nor what others have opened."""

    def needed(name: str) -> bool:
        place = place_of(name)
        return place is None or not (
            place.kind.name == "masked" or (place.kind.name == "opened" and place.owner != index)
        )

    return {name: board[name] for name in board if needed(name)}


class Waiting(NamedTuple):
    """What a session waits for, by the names on its board.

    Attributes:
        kind: of the messages; None if every sum that was announced has its total: the coordinator announces
            another one, or the study has ended.
        number: of the sum; None before the first.
        expected: numbers of the members who send one.
        there: those of them whose message is there.
        needed: how many are enough to go on.
    """

    kind: Kind | None
    number: int | None = None
    expected: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    needed: int = 0

    @property
    def missing(self) -> tuple[int, ...]:
        """Whose message is not there."""
        return tuple(index for index in self.expected if index not in self.there)

    def describe(self, ids: tuple[str, ...]) -> str:
        """In words, with the ids of the members."""
        if self.kind is None or not self.missing:
            return "waits for the coordinator"
        names = join_names([sanitize(ids[index], 100) for index in self.missing])
        return (
            f"waits for {self.kind.text.format(self.number)} from {names}: {len(self.there)} of "
            f"{len(self.expected)} are there, at least {self.needed} are needed"
        )


class CheckedBoard:
    """The messages of a session. Whatever is read raises SecureError where the board contradicts itself.

    Args:
        session: that the board is of.
        board: messages by name.
    """

    def __init__(self, session: Session, board: Board) -> None:
        self.session, self.terms, self._board = session, session.terms, board
        self._checked: dict[str, Message] = {}

    def has(self, kind: str, index: int | None = None, number: int | None = None) -> bool:
        """Whether there is such a message, good or bad."""
        return board_name(kind, index, number) in self._board

    def names(self, indices: Iterable[int]) -> str:
        """Ids of members, as text."""
        return join_names([repr(self.terms.ids[index])[:80] for index in indices])

    def message(self, kind: str, index: int | None = None, number: int | None = None) -> Message:
        """A message that counts, with all that it refers to; SecureError if it does not."""
        name = board_name(kind, index, number)
        if (known := self._checked.get(name)) is not None:
            return known
        place = Place(KINDS[kind], index, number)
        found = self.session.read(name, self._contents(name))
        try:
            self._check(place, found)
        except SecureError:  # of a message that it refers to
            raise
        except ValueError as error:
            raise self.session.refused(place, error) from error
        if kind != "masked":  # words are large
            self._checked[name] = found
        return found

    def _contents(self, name: str) -> bytes:
        if name not in self._board:
            raise SecureError(
                f"the board must have every message that others refer to, and {name} is missing; wait until "
                "it is there, or ask whoever keeps the board."
            )
        return self._board[name]

    # --- what a message must be beside others ---

    def _check(self, place: Place, message: Message) -> None:
        """Refuse, by ValueError, a message that does not fit those it refers to."""
        kind, index, number = place
        if kind.answers:
            shown = self.answered(kind, number).digest
            if message[kind.answers] != shown:
                raise ValueError(f"it states another {kind.answers} than is on the board: somebody lies")
        field, kinds = kind.lists
        if "masked" not in kinds:  # owners do not see those of others
            for member, digests in message.fields.get(field, {}).items():
                if any(
                    self.message(name, member).digest != stated
                    for name, stated in zip(kinds, digests, strict=True)
                ):
                    raise ValueError(
                        f"it names other {kinds[-1]} of {self.names([member])} than are on the board"
                    )
        match kind.name, index, number:
            case "keys", int(), None:
                self._check_keys(index, message)
            case "keyring", None, None:
                if len({len(self.keys_of(member)) for member in message["keys"]}) > 1:
                    raise ValueError("it names members with keys for different numbers of sums")
            case "shares", int(), None:
                self._check_shares(index, message)
            case "members", None, None:
                if strangers := sorted(set(message["members"]) - set(self.keyring)):
                    raise ValueError(f"it names {self.names(strangers)}, who are not in the keyring")
            case "announced", None, int():
                if message["before"] != self.before(number):
                    raise ValueError("it does not follow the total before")
                self.check_blocks(_announced(message, number))
            case "masked", int(), int():
                length = self.announced(number).length
                if len(message.payload) != 8 * length or message["rows"] != self.rows_of(index):
                    raise ValueError(f"it must have {length} words, of the rows of its owner's keys")
            case "present", None, int():
                self._check_present(number, tuple(message["present"]))
            case "opened", int(), int():
                self._check_opened(index, number, message)
            case "total", None, int():
                self._check_total(number, message)

    def _check_keys(self, index: int, message: Message) -> None:
        declared = self.session.roster.members[self.terms.ids[index]].rows
        if declared is not None and message["rows"] > declared:
            raise ValueError(
                f"a member must have at most the rows it declared, and {self.names([index])} declared "
                f"{declared} and has {message['rows']}; declare them first, in a new roster"
            )

    def _check_shares(self, index: int, message: Message) -> None:
        sealed, receivers = message["sealed"], self.keyring
        size = 2 * shamir.SHARE * self.n_sums + _TAG
        if (
            set(sealed) != set(receivers) - {index}
            or any(len(contents) != size for contents in sealed.values())
            or len(message.payload) != 64 * self.n_sums * len(receivers)
        ):
            raise ValueError("shares must be for every receiver and every sum")

    def check_blocks(self, announced: Announced) -> None:
        """Refuse, by ValueError, a sum without keys, or whose noise cannot be added in parts."""
        if announced.number >= self.n_sums:
            raise ValueError(f"the session has keys for {self.n_sums} sums, and this is one more")
        for _, sd, shift in announced.blocks:
            sds = self.levels.sds(sd, shift)
            if shift != self.levels.shift(sd):
                raise ValueError(f"shift must be {self.levels.shift(sd)} with noise of {sd:g}, got {shift}")
            if sd > 0 and min(sds) < LEAST_SD:
                raise ValueError(f"every part of the noise must be {LEAST_SD:g} or more, got {min(sds):g}")
            if too_large(max(sds)):
                raise ValueError(f"noise must be an integer that float64 holds, got a part of {max(sds):g}")

    def _check_present(self, number: int, present: tuple[int, ...]) -> None:
        if strangers := sorted(set(present) - set(self.members)):
            raise ValueError(f"it names {self.names(strangers)}, who take no part in the session")
        if (same := self.required(number)) is not None and present != same:
            raise ValueError(
                f"sums without noise must be of the same owners, {self.names(same)}, and it is of "
                f"{self.names(present)}: the difference would show the others"
            )

    def _check_opened(self, index: int, number: int, message: Message) -> None:
        present = self.present(number)
        of_seeds, of_keys = message["seeds"], message["keys"]
        if set(of_seeds) != set(present) or set(of_keys) != set(self.members) - set(present):
            raise ValueError("it must open the seeds of those present and the keys of the others")
        place = self.keyring.index(index)
        for which, shares in enumerate((of_seeds, of_keys)):
            for dealer, share in shares.items():
                if not shamir.is_committed(share, self.commitment(dealer, number, which, place)):
                    raise ValueError(
                        f"shares must be opened as they were dealt, and {self.names([index])} lies about "
                        f"that of {self.names([dealer])}"
                    )
        surplus, first = message["surplus"], self.levels.first_surplus(len(present))
        if index not in present:
            holds = surplus is None
        elif first is None or not surplus:
            holds = first is None and surplus == b""
        else:
            steps = noise_shares.anchor_steps(self.terms) - first
            holds = noise_shares.element_after(surplus, steps) == self.keys_of(index)[number].surplus
        if not holds:
            raise ValueError(f"noise must be opened as it was added, and {self.names([index])} lies about it")

    def _check_total(self, number: int, message: Message) -> None:
        opened, length = message["opened"], self.announced(number).length
        if not set(opened) <= set(self.present(number)):
            raise ValueError("opened must be numbers of those present")
        stated = self.total_fields(number, opened)
        if (message["rows"], message["noise"]) != (stated["rows"], stated["noise"]):
            raise ValueError("rows or noise are not those of the sum")
        if len(message.payload) != 8 * length:
            raise ValueError(f"it must have {length} words")

    # --- keys and shares ---

    @cached_property
    def keyring(self) -> tuple[int, ...]:
        """Whose keys count."""
        return tuple(self.message("keyring")["keys"])

    def keys_of(self, index: int) -> tuple[SumKeys, ...]:
        """A member's keys for every sum."""
        keys: tuple[SumKeys, ...] = self.message("keys", index)["sums"]
        return keys

    def rows_of(self, index: int) -> int:
        """How many records a member has."""
        return int(self.message("keys", index)["rows"])

    @cached_property
    def n_sums(self) -> int:
        """For how many sums there are keys."""
        return len(self.keys_of(self.keyring[0]))

    def commitment(self, dealer: int, number: int, which: int, place: int) -> bytes:
        """To the share of a sum's seed (which=0) or key (1) for the receiver at this place of the keyring."""
        start = 32 * ((2 * number + which) * len(self.keyring) + place)
        return bytes(self.message("shares", dealer).payload[start : start + 32])

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The members of the session; keys and shares of each are there."""
        return tuple(self.message("members")["members"])

    @cached_property
    def levels(self) -> Levels:
        """Of the noise among the members of the session."""
        return Levels.of(self.terms, len(self.members))

    @cached_property
    def rows(self) -> int:
        """The number of records of the members of the session."""
        return sum(self.rows_of(index) for index in self.members)

    # --- sums ---

    def announced(self, number: int) -> Announced:
        """What is summed under this number."""
        return _announced(self.message("announced", number=number), number)

    def before(self, number: int) -> str:
        """The digest of what a sum follows."""
        if not number:
            return self.message("members").digest
        for earlier in range(number):  # in order: each needs the last
            found = self.message("total", number=earlier)
        return found.digest

    def required(self, number: int) -> tuple[int, ...] | None:
        """Who must be in a sum: without noise, those of the sum without noise before; None if it is open."""
        if self.announced(number).lacks_noise:
            for earlier in reversed(range(number)):
                if self.announced(earlier).lacks_noise:
                    return self.present(earlier)
        return None

    def present(self, number: int) -> tuple[int, ...]:
        """Who is in a sum."""
        return tuple(self.message("present", number=number)["present"])

    def total(self, number: int) -> Total:
        """The result of a sum."""
        announced, found = self.announced(number), self.message("total", number=number)
        return Total(
            found.digest,
            number,
            announced.name,
            np.frombuffer(found.payload, dtype="<i8"),
            announced.blocks,
            found["rows"],
            tuple(self.terms.ids[index] for index in self.present(number)),
            found["noise"],
            found["opened"],
        )

    def total_fields(self, number: int, opened: Iterable[int]) -> JSON:
        """What the header of a total says, if these owners' surplus was taken off."""
        present, opened = self.present(number), list(opened)
        return {
            "present": self.message("present", number=number).digest,
            "opened": opened,
            "rows": sum(self.rows_of(index) for index in present),
            "noise": self.levels.variance(len(present), len(opened)),
        }

    @property
    def n_totals(self) -> int:
        """How many sums have their result."""
        number = 0
        while self.has("total", number=number):
            number += 1
        return number

    @property
    def totals(self) -> list[Total]:
        """All results, in their order."""
        return [self.total(number) for number in range(self.n_totals)]

    # --- what comes next ---

    @property
    def following(self) -> tuple[Kind, int | None]:
        """The kind of message that the coordinator publishes next, and the number of its sum."""
        for kind in KINDS.values():
            number = self.n_totals if kind.of_sum else None
            if kind.by == "coordinator" and not self.has(kind.name, number=number):
                return kind, number
        raise AssertionError("a sum without a total has none")

    def answered(self, kind: Kind, number: int | None) -> Message:
        """What messages of this kind answer."""
        return self.message(kind.answers, number=number if KINDS[kind.answers].of_sum else None)

    def senders(self, kind: Kind, number: int | None) -> tuple[tuple[int, ...], int]:
        """Who is waited for with messages of this kind, and how many of them are enough."""
        needed = self.terms.least if kind.enough == "least" else self.terms.threshold
        match kind.senders:
            case "":
                return tuple(range(self.terms.n_members)), needed
            case "keyring":
                return self.keyring, needed
            case "present":
                assert number is not None
                return self.present(number), needed
        same = self.required(number) if kind.name == "masked" and number is not None else None
        return (self.members, needed) if same is None else (same, len(same))

    @property
    def waiting(self) -> Waiting:
        """What the session waits for: whose messages count is not looked at."""
        following, number = self.following
        found = Waiting(None)
        for kind in COLLECTED[following.name] if following.name != "announced" or not number else ():
            of_sum = number if kind.of_sum else None
            expected, needed = self.senders(kind, of_sum)
            there = tuple(index for index in expected if self.has(kind.name, index, of_sum))
            found = Waiting(kind, of_sum, expected, there, needed)
            if len(there) < needed:
                break
        return found

    def signers(self, kind: str, number: int | None = None) -> tuple[set[int], set[int]]:
        """Members of the session who signed what is shown here, and who signed something else."""
        same: set[int] = set()
        other: set[int] = set()
        shown = self.answered(KINDS[kind], number).digest
        for index in self.members:
            name = board_name(kind, index, number)
            if name in self._board:
                try:
                    signed = self.session.read(name, self._board[name])[KINDS[kind].answers]
                except SecureError:  # counts as none
                    continue
                (same if signed == shown else other).add(index)
        return same, other


def _announced(message: Message, number: int) -> Announced:
    return Announced(message.digest, number, message["name"], message["blocks"])
