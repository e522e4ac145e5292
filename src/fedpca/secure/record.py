"""What a board says, read by anyone: every message checked, and against those it refers to."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from fedpca._typing import JSON
from fedpca._util.text import join_names
from fedpca.errors import SecureError
from fedpca.privacy.noise import too_large
from fedpca.secure.messages import Announced, Keyring, Keys, Members, Present, Shares, Total
from fedpca.secure.noise_shares import LEAST_SD, Levels
from fedpca.secure.session import Session
from fedpca.secure.wire import Board, board_name, canonical, split_name


def relevant(board: Board, index: int) -> dict[str, bytes]:
    """What the owner of this number needs of a board: neither masked words nor what others have opened."""

    def needed(name: str) -> bool:
        parts = split_name(name)
        return parts is None or parts[0] not in ("masked", "opened") or parts[:2] == ("opened", index)

    return {name: board[name] for name in board if needed(name)}


class Record:
    """The state of a session on a board. Properties raise SecureError where the board contradicts itself.

    Args:
        session: that the board is of.
        board: messages by name.
    """

    def __init__(self, session: Session, board: Board) -> None:
        self.session, self.terms, self._board = session, session.terms, board
        self._read: dict[str, Any] = {}  # of the coordinator's messages

    def has(self, kind: str, index: int | None = None, number: int | None = None) -> bool:
        """Whether there is such a message, good or bad."""
        return board_name(kind, index, number) in self._board

    def message(self, kind: str, index: int, number: int | None = None) -> Any:
        """An owner's message; SecureError if it does not count."""
        name = board_name(kind, index, number)
        return self.session.owner_message(name, self._contents(name))

    def names(self, indices: Iterable[int]) -> str:
        """Ids of members, as text."""
        return join_names([repr(self.terms.ids[index])[:80] for index in indices])

    # --- keys and shares ---

    def keys_of(self, index: int) -> Keys:
        """A member's keys, for no more rows than it declared."""
        keys: Keys = self.message("keys", index)
        declared = self.session.roster.members[self.terms.ids[index]].rows
        if declared is not None and keys.rows > declared:
            raise SecureError(
                f"a member must have at most the rows it declared, and {self.names([index])} declared "
                f"{declared} and has {keys.rows}; declare them first, in a new roster."
            )
        return keys

    @property
    def keyring(self) -> Keyring:
        """Whose keys count; every one of them is there."""

        def parse(fields: JSON, _: memoryview, hash: str) -> Keyring:
            found = Keyring.parse(self.terms, fields, hash)
            keys = {index: self.keys_of(index) for index in found.keys}
            if other := [index for index, item in keys.items() if item.digest != found.keys[index]]:
                raise ValueError(f"it names other keys of {self.names(other)} than are on the board")
            if len({len(item.sums) for item in keys.values()}) > 1:
                raise ValueError("it names members with keys for different numbers of sums")
            return found

        return self._published("keyring", ("keys",), parse)

    @cached_property
    def n_sums(self) -> int:
        """For how many sums there are keys."""
        return len(self.keys_of(next(iter(self.keyring.keys))).sums)

    def shares_of(self, index: int) -> Shares:
        """What a member of the keyring has dealt."""
        shares: Shares = self.message("shares", index)
        if shares.keyring != self.keyring.digest:
            raise SecureError(
                f"all members must deal shares for one keyring, and {self.names([index])} has signed "
                "another; the coordinator has shown two: answer nothing more, and ask the coordinator."
            )
        if not shares.fits(index, self.n_sums, list(self.keyring.keys)):
            raise SecureError(
                f"shares must be for every receiver and every sum, and those of {self.names([index])} are "
                "not; let the coordinator go on without this member."
            )
        return shares

    @property
    def members(self) -> Members:
        """The members of the session; keys and shares of each are there."""

        def parse(fields: JSON, _: memoryview, hash: str) -> Members:
            found = Members.parse(self.terms, fields, hash)
            for index, digests in found.members.items():
                if digests != (self.keyring.keys.get(index), self.shares_of(index).digest):
                    raise ValueError(f"it names other keys or shares of {self.names([index])} than it should")
            return found

        return self._published("members", ("members",), parse)

    @cached_property
    def levels(self) -> Levels:
        """Of the noise among the members of the session."""
        return Levels.of(self.terms, len(self.members.members))

    @cached_property
    def rows(self) -> int:
        """The number of records of the members of the session."""
        return sum(self.keys_of(index).rows for index in self.members.members)

    def signers(
        self, kind: str, field: str, hash: str, number: int | None = None
    ) -> tuple[set[int], set[int]]:
        """Members of the session who signed this, and who signed something else in its place."""
        same: set[int] = set()
        other: set[int] = set()
        for index in self.members.members:
            if not self.has(kind, index, number):
                continue
            try:
                message = self.message(kind, index, number)
            except SecureError:  # counts as none
                continue
            (same if getattr(message, field) == hash else other).add(index)
        return same, other

    # --- sums ---

    def announced(self, number: int) -> Announced:
        """What is summed under this number."""

        def parse(fields: JSON, _: memoryview, hash: str) -> Announced:
            found = Announced.parse(fields, hash, number)
            if found.before != self.before(number):
                raise ValueError("it does not follow the total before")
            self.check_blocks(found)
            return found

        return self._published("announced", ("name", "blocks", "before"), parse, number)

    def before(self, number: int) -> str:
        """The digest of what a sum follows."""
        if not number:
            return self.members.digest
        return [self.total(earlier) for earlier in range(number)][-1].digest  # in order: each needs the last

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

    def fixed(self, number: int) -> list[int] | None:
        """Who must be in a sum: without noise, those of the sum without noise before; None if it is open."""
        if self.announced(number).exact:
            for earlier in reversed(range(number)):
                if self.announced(earlier).exact:
                    return list(self.present(earlier).present)
        return None

    def present(self, number: int) -> Present:
        """Who is in a sum."""

        def parse(fields: JSON, _: memoryview, hash: str) -> Present:
            found = Present.parse(self.terms, fields, hash)
            if found.announced != self.announced(number).digest:
                raise ValueError("it is of another sum than was announced")
            if strangers := sorted(set(found.present) - set(self.members.members)):
                raise ValueError(f"it names {self.names(strangers)}, who take no part in the session")
            if (fixed := self.fixed(number)) is not None and list(found.present) != fixed:
                raise ValueError(
                    f"sums without noise must be of the same owners, {self.names(fixed)}, and it is of "
                    f"{self.names(found.present)}: the difference would show the others"
                )
            return found

        return self._published("present", ("announced", "present"), parse, number)

    def total(self, number: int) -> Total:
        """The result of a sum."""
        announced, present = self.announced(number), self.present(number)

        def parse(fields: JSON, payload: memoryview, hash: str) -> Total:
            stated = fields["opened"]
            opened = [i for i in present.present if isinstance(stated, list) and i in stated]
            if canonical({"opened": stated}) != canonical({"opened": opened}):  # true is not 1
                raise ValueError("opened must be numbers of those present, in order")
            expected = self.total_fields(present, opened)
            if canonical(fields) != canonical({**expected, "session": self.session.id}):
                raise ValueError("present, rows or noise are not those of the sum")
            if len(payload) != 8 * announced.length:
                raise ValueError(f"it must have {announced.length} words")
            return Total(
                hash,
                number,
                announced.name,
                np.frombuffer(payload, dtype="<i8"),
                announced.blocks,
                expected["rows"],
                tuple(self.terms.ids[index] for index in present.present),
                expected["noise"],
                tuple(opened),
            )

        return self._published("total", ("present", "opened", "rows", "noise"), parse, number)

    def total_fields(self, present: Present, opened: list[int]) -> JSON:
        """What the header of a total says, if these owners' surplus was taken off."""
        return {
            "present": present.digest,
            "opened": opened,
            "rows": sum(self.keys_of(index).rows for index in present.present),
            "noise": self.levels.variance(len(present.present), len(opened)),
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

    def _published(self, kind: str, names: tuple[str, ...], parse: Any, number: int | None = None) -> Any:
        name = board_name(kind, number=number)
        if name not in self._read:
            self._read[name] = self.session.published(name, self._contents(name), names, parse)
        return self._read[name]

    def _contents(self, name: str) -> bytes:
        if name not in self._board:
            raise SecureError(
                f"the board must have every message that others refer to, and {name} is missing; wait until "
                "it is there, or ask whoever keeps the board."
            )
        return self._board[name]
