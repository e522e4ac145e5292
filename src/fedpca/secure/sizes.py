"""Sizes: how large the messages of a study can be. Anyone may write a file, and everyone reads it."""

from typing import Self

from fedpca.secure.messages import MOST_SUMS
from fedpca.secure.settings import Terms
from fedpca.secure.shamir import SHARE
from fedpca.secure.study import fit_of
from fedpca.secure.wire import split_name
from fedpca.trust.roster import Roster

_HEADER = 2**13  # bytes of a header, what it lists apart: names have up to 1,000 characters
_LISTED = 160  # of a member in a list: its number and two digests, or a share, in hexadecimal digits
_KEYS = 256  # of the keys of a sum
_ANNOUNCED = 2**15  # of blocks


class Sizes:
    """The most bytes that every message of a study can have.

    Args:
        terms: of the study.
        words: the length of its longest sum.
    """

    def __init__(self, terms: Terms, words: int) -> None:
        self._members = terms.n_members
        self._words = words

    @classmethod
    def of(cls, roster: Roster) -> Self:
        """Those of the study that the members have agreed on."""
        return cls(Terms.of(roster), fit_of(roster).most_words)

    def most(self, name: str, words: int | None = None) -> int:
        """The most bytes of a message; 0 if no message of the study has this name.

        Args:
            name: on the board.
            words: the length of the sum it belongs to, if that was announced.
        """
        of_sum = 8 * (self._words if words is None else min(words, self._words))
        if (parts := split_name(name)) is None:
            kind = name.split("/")[-1]
            known = {
                "session": 0,
                "announced": _ANNOUNCED,
                "total": of_sum + _LISTED * self._members,
            }
            return _HEADER + known.get(kind, _LISTED * self._members)
        kind, index, _ = parts
        if index >= self._members:
            return 0
        dealt = 2 * (2 * SHARE * MOST_SUMS + 16) + 2 * 32 * MOST_SUMS  # to one member: sealed, committed to
        known = {
            "keys": _KEYS * MOST_SUMS,
            "shares": (dealt + _LISTED) * self._members,
            "masked": of_sum,
            "opened": _LISTED * self._members,
        }
        return _HEADER + known.get(kind, 0)
