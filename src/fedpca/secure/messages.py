"""The protocol of secure sums as one table: a row per kind of message, in the order in which they are sent.

A row says who sends the message, whom it answers, what its fields must be, how large it can be, and how many
of its kind the coordinator waits for. What may be on a board, what is read of it, what comes next and what
is refused for its size all follow from this table. Checks raise ValueError with what is wrong.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import JSON, Array
from fedpca.secure import masks
from fedpca.secure.noise_shares import MOST_SHIFT
from fedpca.secure.settings import Terms
from fedpca.secure.shamir import SHARE
from fedpca.summaries import validation

Board = Mapping[str, bytes]
"""Messages by name, each written once."""

FORMAT = "fedpca secure session 1"
MOST_SUMS = 100  # their numbers have two digits
MOST_ROWS = 2**48
MOST_WORDS = 2**28  # of a sum: 2 GiB
_MOST_BLOCKS = 256
_TAG = 16  # bytes that sealing adds

Check = Callable[[Any, Terms], Any]
"""Gives what a field says; ValueError if it cannot be that."""


class NoiseBlock(NamedTuple):
    """Entries of a sum with noise of one size.

    Attributes:
        length: how many.
        sd: the standard deviation of the noise that honest owners add up to; 0 for none.
        shift: integers and noise are multiplied by 2^shift, so that rounding is negligible.
    """

    length: int
    sd: float
    shift: int


class SumKeys(NamedTuple):
    """What an owner publishes for one sum: its step key, the hash of its self-mask seed, and the anchor of
    its noise."""

    key: bytes
    seed: bytes
    surplus: bytes


# --- what a field must be ---


def _whole(least: int, most: int) -> Check:
    def check(value: Any, terms: Terms) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, got {value!r:.80}")
        return value

    return check


def _real(value: Any, terms: Terms) -> float:
    if type(value) is not float or not isfinite(value) or not value >= 0:  # 9 is not 9.0
        raise ValueError(f"must be a float of at least 0, got {value!r:.80}")
    return value


_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def _hex(size: int | None = None) -> Check:
    def check(value: Any, terms: Terms) -> bytes:
        is_text = isinstance(value, str) and (size is None or len(value) == 2 * size)
        if not is_text or not _HEX.fullmatch(value):
            raise ValueError("must be hexadecimal digits" + (f" of {size} bytes" if size else ""))
        return bytes.fromhex(value)

    return check


def _digest(value: Any, terms: Terms) -> str:
    return str(_hex(32)(value, terms).hex())


def _list(least: int, most: int) -> Check:
    def check(value: Any, terms: Terms) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValueError(f"must be a list of {least} to {most}")
        return value

    return check


def _public_key(value: Any, terms: Terms) -> bytes:
    key: bytes = _hex(32)(value, terms)
    try:
        masks.require_key(key)
    except ValueError as error:
        raise ValueError(f"must be a key: {error}") from error
    return key


def _part(name: str, check: Check, value: Any, terms: Terms) -> Any:
    """A value within a field."""
    try:
        return check(value, terms)
    except ValueError as error:
        raise ValueError(f"must each have a {name}, which {error}") from error


def _sum_keys(value: Any, terms: Terms) -> tuple[SumKeys, ...]:
    found = []
    for item in _list(1, MOST_SUMS)(value, terms):
        if not isinstance(item, dict) or set(item) != set(SumKeys._fields):
            raise ValueError("must have key, seed and surplus of each sum")
        checks = zip(SumKeys._fields, (_public_key, _hex(32), _hex(32)), strict=True)
        found.append(SumKeys(*(_part(name, check, item[name], terms) for name, check in checks)))
    return tuple(found)


@lru_cache(maxsize=1)
def _numbers(n_members: int) -> dict[str, int]:
    return {str(index): index for index in range(n_members)}


def _by_index(check: Check) -> Check:
    """A JSON object by members' numbers."""

    def read(value: Any, terms: Terms) -> dict[int, Any]:
        if not isinstance(value, dict) or len(value) > terms.n_members:
            raise ValueError("must be an object with at most one value per member")
        numbers = _numbers(terms.n_members)
        if unknown := [key for key in value if key not in numbers]:
            raise ValueError(f"must be of members, and {unknown[0]!r:.80} is the number of none")
        return {numbers[key]: check(item, terms) for key, item in value.items()}

    return read


def _ascending(indices: list[Any], terms: Terms) -> list[int]:
    found = [_whole(0, terms.n_members - 1)(index, terms) for index in indices]
    if any(later <= earlier for earlier, later in pairwise(found)):
        raise ValueError("must have members in order, each once")
    return found


def _indices(value: Any, terms: Terms) -> tuple[int, ...]:
    return tuple(_ascending(_list(0, terms.n_members)(value, terms), terms))


def _listed(n_digests: int) -> Check:
    """Lists of a member's number and digests, in the order of members, `least` of them or more."""

    def read(value: Any, terms: Terms) -> dict[int, tuple[str, ...]]:
        items = _list(0, terms.n_members)(value, terms)
        if not all(isinstance(item, list) and len(item) == n_digests + 1 for item in items):
            raise ValueError("must have a member's number and digests in each entry")
        indices = _ascending([item[0] for item in items], terms)
        if len(indices) < terms.least:
            raise ValueError(f"must have at least {terms.least} members, and has {len(indices)}")
        return {
            index: tuple(_digest(text, terms) for text in item[1:])
            for index, item in zip(indices, items, strict=True)
        }

    return read


def _blocks(value: Any, terms: Terms) -> tuple[NoiseBlock, ...]:
    blocks = []
    for item in _list(1, _MOST_BLOCKS)(value, terms):
        if not isinstance(item, list) or len(item) != 3:
            raise ValueError("must have length, sd and shift of each")
        length, sd, shift = item
        blocks.append(
            NoiseBlock(
                _part("length", _whole(1, MOST_WORDS), length, terms),
                _part("sd", _real, sd, terms),
                _part("shift", _whole(0, MOST_SHIFT), shift, terms),
            )
        )
    if (words := sum(block.length for block in blocks)) > MOST_WORDS:
        raise ValueError(f"must be of at most {MOST_WORDS} entries, got {words}")
    return tuple(blocks)


def _sum_name(value: Any, terms: Terms) -> str:
    return validation.child_name(value, "")


def _surplus(value: Any, terms: Terms) -> bytes | None:
    return None if value is None else bytes(_hex(0 if value == "" else 32)(value, terms))


def _format(value: Any, terms: Terms) -> str:
    if value != FORMAT:
        raise ValueError(f"is {value!r:.80}, and must be {FORMAT!r}")
    return FORMAT


def _time(value: Any, terms: Terms) -> datetime:
    found = datetime.fromisoformat(str(value))
    if found.tzinfo is None:
        raise ValueError("must be a time in UTC")
    return found


def _any(value: Any, terms: Terms) -> Any:
    return value


# --- the table ---


class Size(NamedTuple):
    """The most bytes beside a header of the usual fields."""

    fixed: int = 0
    per_member: int = 0
    per_word: int = 0  # of the sum


_SMALL = Size()
_HEADER = 2**13  # bytes of a header, but for what it lists: names have up to 1,000 characters
_LISTED = Size(per_member=160)  # a number with two digests, or a share, in hexadecimal digits
_DEALT = 2 * (2 * SHARE * MOST_SUMS + _TAG) + 64 * MOST_SUMS + 160  # to a member: sealed, and commitments
_WORD = 8  # bytes


@dataclass(frozen=True)
class Kind:
    """One kind of message.

    Attributes:
        name: the word in its name on a board.
        by: who sends it; what owners send is signed.
        of_sum: whether there is one per sum; else there is one per session.
        answers: the coordinator's message whose digest it states, in a field of that name; "" for none.
        fields: of its own, each with its check.
        lists: with what the coordinator's message names members by: a field, and the kinds of the messages
            whose digests stand in it.
        has_payload: whether bytes follow the header.
        size: the most it can have.
        senders: of an owner's message: the coordinator's message that names who is waited for; "" for all.
        enough: how many of those must send it: "least" or "threshold"; "" for none: it may come any time.
        text: what it is, for people.
    """

    name: str
    by: Literal["owner", "coordinator"]
    of_sum: bool = False
    answers: str = ""
    fields: Mapping[str, Check] = field(default_factory=dict)
    lists: tuple[str, tuple[str, ...]] = ("", ())
    has_payload: bool = False
    size: Size = _SMALL
    senders: str = ""
    enough: Literal["least", "threshold", ""] = ""
    text: str = ""

    @cached_property
    def checks(self) -> dict[str, Check]:
        """Of all its fields."""
        listing, kinds = self.lists
        of_list = {listing: _listed(len(kinds))} if listing else {}
        of_answer: dict[str, Check] = {self.answers: _digest} if self.answers else {}
        return {**self.fields, **of_list, **of_answer}


_OPENING = {"format": _format, "study": _any, "roster": _any, "nonce": _hex(32), "opened": _time}
_KEYS = {"rows": _whole(1, MOST_ROWS), "enc": _public_key, "sums": _sum_keys}
_SUM = {"name": _sum_name, "blocks": _blocks, "before": _digest}
_SHARES = {"seeds": _by_index(_hex(SHARE)), "keys": _by_index(_hex(SHARE)), "surplus": _surplus}
_TOTAL = {"opened": _indices, "rows": _whole(1, MOST_ROWS * 1000), "noise": _real}

KINDS = {
    kind.name: kind
    for kind in (
        Kind("session", "coordinator", fields=_OPENING),
        Kind("keys", "owner", fields=_KEYS, size=Size(256 * MOST_SUMS), enough="least", text="keys"),
        Kind("keyring", "coordinator", lists=("keys", ("keys",)), size=_LISTED),
        Kind(
            "shares",
            "owner",
            answers="keyring",
            fields={"sealed": _by_index(_hex())},
            has_payload=True,
            size=Size(per_member=_DEALT),
            senders="keyring",
            enough="least",
            text="shares of secrets",
        ),
        Kind("members", "coordinator", lists=("members", ("keys", "shares")), size=_LISTED),
        Kind(
            "agreed",
            "owner",
            answers="members",
            senders="members",
            enough="threshold",
            text="signatures on the members",
        ),
        Kind("announced", "coordinator", of_sum=True, fields=_SUM, size=Size(2**15)),
        Kind(
            "masked",
            "owner",
            of_sum=True,
            answers="announced",
            fields={"rows": _whole(1, MOST_ROWS)},
            has_payload=True,
            size=Size(per_word=_WORD),
            senders="members",
            enough="least",
            text="masked words of sum {:02}",
        ),
        Kind(
            "present",
            "coordinator",
            of_sum=True,
            answers="announced",
            lists=("present", ("masked",)),
            size=_LISTED,
        ),
        Kind(
            "signed",
            "owner",
            of_sum=True,
            answers="present",
            senders="present",
            enough="threshold",
            text="signatures on who is in sum {:02}",
        ),
        Kind(
            "opened",
            "owner",
            of_sum=True,
            answers="present",
            fields=_SHARES,
            size=_LISTED,
            senders="present",
            enough="threshold",
            text="answers to sum {:02}",
        ),
        Kind("refused", "owner", of_sum=True),
        Kind(
            "total",
            "coordinator",
            of_sum=True,
            answers="present",
            fields=_TOTAL,
            has_payload=True,
            size=Size(per_member=_LISTED.per_member, per_word=_WORD),
        ),
    )
}
"""All messages, in the order of the protocol; those of a sum come once per sum."""


def _collected() -> dict[str, tuple[Kind, ...]]:
    found, waiting = {}, list[Kind]()
    for kind in KINDS.values():
        if kind.by == "coordinator":
            found[kind.name], waiting = tuple(waiting), []
        elif kind.enough:
            waiting.append(kind)
    return found


COLLECTED = _collected()
"""Of each message of the coordinator: what owners send before it, in order."""


# --- names and messages ---


class Place(NamedTuple):
    """What the name of a message says: its kind, the number of its owner and that of its sum."""

    kind: Kind
    owner: int | None
    number: int | None

    def most_bytes(self, members: int, words: int) -> int:
        """The most a message in this place can have, of so many members and words."""
        size = self.kind.size
        return _HEADER + size.fixed + size.per_member * members + size.per_word * words


_NAME = re.compile(r"(?:(\d\d)/)?([a-z]+)(?:/(\d\d\d))?", re.ASCII)


def board_name(kind: str, index: int | None = None, number: int | None = None) -> str:
    """The name of a message on a board.

    >>> board_name("keys", 3), board_name("masked", 3, 0), board_name("present", number=12)
    ('keys/003', '00/masked/003', '12/present')
    """
    prefix = "" if number is None else f"{number:02}/"
    return prefix + kind + ("" if index is None else f"/{index:03}")


@lru_cache(maxsize=2**14)
def place_of(name: str) -> Place | None:
    """What a name on a board says; None if no message has it.

    >>> place_of("00/masked/003").kind.name, place_of("keys/003").owner, place_of("00/total").number
    ('masked', 3, 0)
    >>> place_of("00/keys/003"), place_of("masked/003"), place_of("12/present/003")
    (None, None, None)
    """
    if (found := _NAME.fullmatch(name)) is None or (kind := KINDS.get(found[2])) is None:
        return None
    number, index = (None if text is None else int(text) for text in (found[1], found[3]))
    if kind.of_sum != (number is not None) or (kind.by == "owner") != (index is not None):
        return None
    return Place(kind, index, number)


def owner_of(name: str) -> int | None:
    """The number of the member who sends the message of this name; None if none does."""
    place = place_of(name)
    return None if place is None else place.owner


@dataclass(frozen=True)
class Message:
    """A message whose signature and fields hold.

    Attributes:
        digest: of all its bytes.
        fields: what they say; also by `message[name]`.
        payload: what follows the header.
    """

    digest: str
    fields: Mapping[str, Any]
    payload: memoryview

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def checked(kind: Kind, fields: JSON, terms: Terms) -> dict[str, Any]:
    """What the fields of a message say; ValueError names the one that is wrong."""
    if set(fields) != set(kind.checks):
        raise ValueError(f"its header must have {', '.join(kind.checks) or 'no more'}")
    found = {}
    for name, check in kind.checks.items():
        try:
            found[name] = check(fields[name], terms)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{name} {str(error).strip()}") from error
    return found


@dataclass(frozen=True)
class Announced:
    """What is summed next.

    Attributes:
        digest: of the message: masks are bound to it.
        number: of the sum.
        name: of the sum.
        blocks: of its entries.
    """

    digest: str
    number: int
    name: str
    blocks: tuple[NoiseBlock, ...]

    @property
    def length(self) -> int:
        """The number of entries."""
        return sum(block.length for block in self.blocks)

    @property
    def lacks_noise(self) -> bool:
        """Whether entries come without noise: of two such sums, owners in one only would show."""
        return any(block.sd == 0 for block in self.blocks)


@dataclass(frozen=True)
class Total:
    """The result of a sum.

    Attributes:
        digest: of the message.
        number: of the sum.
        name: of the sum.
        words: the integers of the sum, shifted.
        blocks: of its entries.
        rows: the number of records behind it.
        owners: ids of those whose rows are in it.
        noise: the variance of its noise, in units of the square of its blocks' sd.
        opened: numbers of those whose surplus was taken off.
    """

    digest: str
    number: int
    name: str
    words: NDArray[np.int64]
    blocks: tuple[NoiseBlock, ...]
    rows: int
    owners: tuple[str, ...]
    noise: float
    opened: tuple[int, ...] = ()

    @cached_property
    def values(self) -> Array:
        """The sum in the units of the fit: float64, not shifted."""
        scales = [2.0**-block.shift for block in self.blocks]
        return self.words * np.repeat(scales, [block.length for block in self.blocks])
