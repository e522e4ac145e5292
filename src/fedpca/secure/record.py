"""What a board says, read by anyone: every message checked, and against those it refers to."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from fedpca._typing import JSON
from fedpca._util.text import join_names
from fedpca.errors import SecureError
from fedpca.secure.messages import Announced, Keyring, Keys, Members, Present, Shares, Total
from fedpca.secure.noise_shares import LEAST_SD, Levels
from fedpca.secure.session import Session
from fedpca.secure.wire import Board, board_name, digest, split_name

_REMEDY = "answer nothing more, and ask the coordinator"


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

    def has(self, kind: str, index: int | None = None, number: int | None = None) -> bool:
        """Whether there is such a message, good or bad."""
        return board_name(kind, index, number) in self._board

    def message(self, kind: str, index: int, number: int | None = None) -> Any:
        """An owner's message; SecureError if it does not count."""
        name = board_name(kind, index, number)
        if name not in self._board:
            raise SecureError(
                f"the board must have every message that the coordinator names, and {name} is missing; wait "
                f"until it is there, or ask {self.terms.ids[index]!r:.80} for it."
            )
        return self.session.owner_message(name, self._board[name])

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

    @cached_property
    def keyring(self) -> Keyring:
        """Whose keys count; every one of them is there."""
        found = self._published(
            "keyring", ("keys",), lambda fields, _, hash: Keyring.parse(self.terms, fields, hash)
        )
        keys = {index: self.keys_of(index) for index in found.keys}
        for index, hash in found.keys.items():
            self._require(keys[index].digest == hash, f"keyring must name the keys of {self.names([index])}")
        sizes = {len(item.sums) for item in keys.values()}
        self._require(len(sizes) == 1, "keyring must have members with keys for the same number of sums")
        return found

    @cached_property
    def n_sums(self) -> int:
        """For how many sums there are keys."""
        return len(self.keys_of(next(iter(self.keyring.keys))).sums)

    def shares_of(self, index: int) -> Shares:
        """What a member of the keyring has dealt."""
        shares: Shares = self.message("shares", index)
        if shares.keyring != self.keyring.digest:
            raise SecureError(
                f"all members must deal shares for one keyring, and {self.names([index])} has signed another; "
                f"the coordinator has shown two: {_REMEDY}."
            )
        if not shares.fits(index, self.n_sums, list(self.keyring.keys)):
            raise SecureError(
                f"shares must be for every receiver and every sum, and those of {self.names([index])} are "
                "not; let the coordinator go on without this member."
            )
        return shares

    @cached_property
    def members(self) -> Members:
        """The members of the session; keys and shares of each are there."""
        found = self._published(
            "members", ("members",), lambda fields, _, hash: Members.parse(self.terms, fields, hash)
        )
        for index, (keys, shares) in found.members.items():
            self._require(
                self.keyring.keys.get(index) == keys and self.shares_of(index).digest == shares,
                f"members must name the keys and shares of {self.names([index])}",
            )
        return found

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
        same, other = set(), set()
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
        found = self._published(
            "announced",
            ("name", "blocks", "before"),
            lambda fields, _, hash: Announced.parse(fields, hash, number),
            number,
        )
        before = (
            digest(self._board[board_name("total", number=number - 1)]) if number else self.members.digest
        )
        what = f"{board_name('announced', number=number)} must"
        self._require(found.before == before, f"{what} follow the total before")
        self._require(number < self.n_sums, f"{what} be one of the {self.n_sums} sums with keys")
        for _, sd, shift in found.blocks:
            self._require(
                shift == self.levels.shift(sd), f"{what} shift noise of {sd:g} by {self.levels.shift(sd)}"
            )
            small = min(self.levels.sds(sd, shift))
            self._require(
                sd == 0 or small >= LEAST_SD, f"{what} have noise in parts of at least {LEAST_SD:g}"
            )
        return found

    def present(self, number: int) -> Present:
        """Who is in a sum."""
        found = self._published(
            "present",
            ("announced", "present"),
            lambda fields, _, hash: Present.parse(self.terms, fields, hash),
            number,
        )
        what = f"{board_name('present', number=number)} must"
        self._require(found.announced == self.announced(number).digest, f"{what} be of the sum announced")
        strangers = set(found.present) - set(self.members.members)
        self._require(not strangers, f"{what} name members of the session only")
        return found

    def total(self, number: int) -> Total:
        """The result of a sum."""
        announced, present = self.announced(number), self.present(number)

        def parse(fields: JSON, payload: memoryview, hash: str) -> Total:
            opened = fields["opened"]
            if not isinstance(opened, list) or opened != [i for i in present.present if i in opened]:
                raise ValueError("opened must be numbers of those present, in order")
            expected = self.total_fields(present, opened)
            if fields != {**expected, "session": self.session.id}:
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
        return self.session.published(name, self._board[name], names, parse)

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise SecureError(f"{rule}, and does not; {_REMEDY}.")
