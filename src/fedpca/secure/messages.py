"""What messages say: every value checked, and sizes bounded before anything of that size is made.

Parsers raise ValueError with what is wrong; `Session` says in which message, and what to do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import JSON, Array
from fedpca.secure import masks
from fedpca.secure.noise_shares import MOST_SHIFT
from fedpca.secure.settings import Terms
from fedpca.secure.shamir import SHARE
from fedpca.secure.values import by_index, digest_text, entries, hex_bytes, integer, list_of, share
from fedpca.secure.wire import Signed
from fedpca.summaries import validation

MOST_SUMS = 100  # their numbers have two digits
MOST_ROWS = 2**48
MOST_WORDS = 2**28  # of a sum: 2 GiB
_MOST_BLOCKS = 256
_TAG = 16  # bytes that sealing adds


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


# --- of owners ---


@dataclass(frozen=True)
class Keys:
    """An owner's number of rows and its public keys."""

    digest: str
    rows: int
    enc: bytes
    sums: tuple[SumKeys, ...]

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Keys":
        fields = message.fields
        listed = list_of(fields["sums"], 1, MOST_SUMS, "sums")
        sums = []
        for item in listed:
            if not isinstance(item, dict) or set(item) != {"key", "seed", "surplus"}:
                raise ValueError("each of its sums must have key, seed and surplus")
            sums.append(SumKeys(*(hex_bytes(item[name], 32, name) for name in ("key", "seed", "surplus"))))
        found = cls(
            message.digest,
            integer(fields["rows"], 1, MOST_ROWS, "rows"),
            hex_bytes(fields["enc"], 32, "enc"),
            tuple(sums),
        )
        for key in (found.enc, *(keys.key for keys in sums)):
            masks.require_key(key)
        return found


@dataclass(frozen=True)
class Shares:
    """Shares of an owner's secrets, sealed for their receivers, and commitments to all of them."""

    digest: str
    keyring: str
    sealed: Mapping[int, bytes]
    commitments: memoryview

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Shares":
        sealed = by_index(message.fields["sealed"], terms, lambda text: hex_bytes(text, None, "sealed"))
        return cls(message.digest, digest_text(message.fields["keyring"]), sealed, message.payload)

    def commitment(self, number: int, which: int, place: int, receivers: int) -> bytes:
        """To the share of a sum's seed (which=0) or key (1) for the receiver at this place."""
        start = 32 * ((2 * number + which) * receivers + place)
        return bytes(self.commitments[start : start + 32])

    def fits(self, index: int, n_sums: int, receivers: list[int]) -> bool:
        """Whether it has a share of every secret for every receiver."""
        size = 2 * SHARE * n_sums + _TAG
        return (
            set(self.sealed) == set(receivers) - {index}
            and all(len(sealed) == size for sealed in self.sealed.values())
            and len(self.commitments) == 64 * n_sums * len(receivers)
        )


@dataclass(frozen=True)
class Agreed:
    """An owner's signature on the members of a session."""

    digest: str
    members: str

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Agreed":
        return cls(message.digest, digest_text(message.fields["members"]))


@dataclass(frozen=True)
class Masked:
    """An owner's part of a sum, behind its masks."""

    digest: str
    announced: str
    rows: int
    payload: memoryview

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Masked":
        rows = integer(message.fields["rows"], 1, MOST_ROWS, "rows")
        return cls(message.digest, digest_text(message.fields["announced"]), rows, message.payload)


@dataclass(frozen=True)
class Endorsed:
    """An owner's signature on who is present in a sum."""

    digest: str
    present: str

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Endorsed":
        return cls(message.digest, digest_text(message.fields["present"]))


@dataclass(frozen=True)
class Opened:
    """Shares that an owner holds of seeds of those present and of keys of the others, and its surplus: an
    element of its chain, empty if every part is needed, None of an owner that is not present."""

    digest: str
    present: str
    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]
    surplus: bytes | None

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Opened":
        fields = message.fields
        surplus = fields["surplus"]
        if surplus is not None:
            surplus = hex_bytes(surplus, 0 if surplus == "" else 32, "surplus")
        return cls(
            message.digest,
            digest_text(fields["present"]),
            by_index(fields["seeds"], terms, share),
            by_index(fields["keys"], terms, share),
            surplus,
        )


@dataclass(frozen=True)
class Refused:
    """An owner has not opened a sum, and never will."""

    digest: str

    @classmethod
    def parse(cls, terms: Terms, message: Signed) -> "Refused":
        return cls(message.digest)


OWNERS: dict[str, tuple[tuple[str, ...], bool, Callable[[Terms, Signed], Any]]] = {
    "keys": (("rows", "enc", "sums"), False, Keys.parse),
    "shares": (("keyring", "sealed"), False, Shares.parse),
    "agreed": (("members",), False, Agreed.parse),
    "masked": (("announced", "rows"), True, Masked.parse),
    "signed": (("present",), True, Endorsed.parse),
    "opened": (("present", "seeds", "keys", "surplus"), True, Opened.parse),
    "refused": ((), True, Refused.parse),
}
"""Of each kind of message: the fields of its own, whether it belongs to a sum, and its parser."""


# --- of the coordinator ---


@dataclass(frozen=True)
class Keyring:
    """Whose keys count: the digest of each one's message."""

    digest: str
    keys: Mapping[int, str]

    @classmethod
    def parse(cls, terms: Terms, fields: JSON, digest: str) -> "Keyring":
        listed = entries(fields["keys"], 1, terms)
        return cls(digest, {index: item for index, (item,) in listed.items()})


@dataclass(frozen=True)
class Members:
    """The members of a session: digests of each one's keys and shares."""

    digest: str
    members: Mapping[int, tuple[str, ...]]

    @classmethod
    def parse(cls, terms: Terms, fields: JSON, digest: str) -> "Members":
        return cls(digest, entries(fields["members"], 2, terms))


@dataclass(frozen=True)
class Announced:
    """What is summed next.

    Attributes:
        digest: of the message: masks are bound to it.
        number: of the sum.
        name: of the sum.
        blocks: of its entries.
        before: the digest of the total before; of the members, for the first sum.
    """

    digest: str
    number: int
    name: str
    blocks: tuple[NoiseBlock, ...]
    before: str

    @classmethod
    def parse(cls, fields: JSON, digest: str, number: int) -> "Announced":
        blocks = []
        for item in list_of(fields["blocks"], 1, _MOST_BLOCKS, "blocks"):
            if not isinstance(item, list) or len(item) != 3:
                raise ValueError("each of its blocks must have length, sd and shift")
            length, sd, shift = item
            if type(sd) is not float or not isfinite(sd) or not sd >= 0:  # 9 is not 9.0
                raise ValueError(f"sd must be a float of at least 0, got {sd!r:.80}")
            blocks.append(
                NoiseBlock(
                    integer(length, 1, MOST_WORDS, "length"),
                    sd,
                    integer(shift, 0, MOST_SHIFT, "shift"),
                )
            )
        name = validation.child_name(fields["name"], "the name of a sum")
        found = cls(digest, number, name, tuple(blocks), digest_text(fields["before"]))
        if found.length > MOST_WORDS:
            raise ValueError(f"a sum must have at most {MOST_WORDS} entries, got {found.length}")
        return found

    @property
    def length(self) -> int:
        """The number of entries."""
        return sum(block.length for block in self.blocks)

    @property
    def exact(self) -> bool:
        """Whether entries come without noise: of two such sums, owners in one only would show."""
        return any(block.sd == 0 for block in self.blocks)


@dataclass(frozen=True)
class Present:
    """Who is in a sum: the digest of each one's masked words."""

    digest: str
    announced: str
    present: Mapping[int, str]

    @classmethod
    def parse(cls, terms: Terms, fields: JSON, digest: str) -> "Present":
        listed = entries(fields["present"], 1, terms)
        return cls(
            digest, digest_text(fields["announced"]), {index: item for index, (item,) in listed.items()}
        )


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
