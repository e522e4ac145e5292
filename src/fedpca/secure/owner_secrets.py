"""The randomness of an owner in a session, and what it publishes of it."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from fedpca._typing import JSON
from fedpca.errors import SecureError
from fedpca.secure import shamir


def seed_hash(seed: bytes) -> bytes:
    """What is published of a self-mask seed."""
    return hashlib.sha256(b"fedpca secure seed\n" + seed).digest()


class SumSecrets(NamedTuple):
    """An owner's randomness for one sum: its step key, its self-mask seed, the first element of its noise
    chain, and the seed of the polynomials that share the first two."""

    key: bytes
    seed: bytes
    surplus: bytes
    coefficients: bytes

    def shares(self, receivers: Sequence[int], threshold: int) -> list[tuple[bytes, bytes]]:
        """Every receiver's shares of seed and key."""
        of_seed = shamir.coefficients(self.coefficients, b"seed", threshold - 1)
        of_key = shamir.coefficients(self.coefficients, b"key", threshold - 1)
        return [
            (shamir.deal(self.seed, of_seed, receiver), shamir.deal(self.key, of_key, receiver))
            for receiver in receivers
        ]


@dataclass(frozen=True, repr=False)
class Secrets:
    """All randomness of an owner in one session, drawn once: store it before anything is sent, closed to
    others.

    Attributes:
        enc: the key under which others seal shares for this owner; None once the study has ended.
        sums: one per sum; None for one that has ended.
    """

    enc: bytes | None
    sums: tuple[SumSecrets | None, ...]

    @classmethod
    def new(cls, n_sums: int, random: Callable[[int], bytes] | None = None) -> Self:
        """Fresh secrets for so many sums; `random` gives bytes, by default those of the system."""
        random = random or secrets.token_bytes
        sums = [SumSecrets(*(random(32) for _ in SumSecrets._fields)) for _ in range(n_sums)]
        return cls(random(32), tuple(sums))

    def without_sum(self, number: int) -> Self:
        """What is left when a sum has ended."""
        sums = [None if place == number else item for place, item in enumerate(self.sums)]
        return replace(self, sums=tuple(sums))

    def without_any(self) -> Self:
        """What is left when the study has ended: `enc` of enough owners would take sums apart."""
        return replace(self, enc=None, sums=(None,) * len(self.sums))

    @property
    def sealing_key(self) -> bytes:
        """`enc`; SecureError if it is erased."""
        if self.enc is None:
            raise SecureError(
                "this session has ended here, or was forgotten, and its secrets are erased; nothing more is "
                "sent."
            )
        return self.enc

    def of_sum(self, number: int) -> SumSecrets:
        """Those of a sum; SecureError if they are erased."""
        if (found := self.sums[number]) is None:
            raise SecureError(
                f"sum {number} has ended here, and its secrets are erased; nothing more is sent."
            )
        return found

    def to_json(self) -> JSON:
        """Plain values."""
        sums = [item and {name: value.hex() for name, value in item._asdict().items()} for item in self.sums]
        return {"enc": self.enc and self.enc.hex(), "sums": sums}

    @classmethod
    def from_json(cls, contents: JSON) -> Self:
        """The inverse of `to_json`."""
        sums = [
            item and SumSecrets(**{name: bytes.fromhex(value) for name, value in item.items()})
            for item in contents["sums"]
        ]
        enc = contents["enc"]
        return cls(None if enc is None else bytes.fromhex(enc), tuple(sums))
