"""Shamir's secret sharing: `threshold` shares give the secret, fewer tell nothing about it."""

import hashlib
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297  # the smallest above all secrets
SHARE = 33  # bytes
_DRAW = 48  # bytes per coefficient: modulo the prime they are uniform up to 2^-127


def coefficients(seed: bytes, label: bytes, count: int) -> list[int]:
    """Uniform coefficients, the same for the same seed and label, so that shares can be dealt again."""
    drawn = hashlib.shake_256(b"fedpca secure coefficients\n" + seed + label).digest(_DRAW * count)
    return [int.from_bytes(drawn[i : i + _DRAW], "big") % PRIME for i in range(0, len(drawn), _DRAW)]


def deal(secret: bytes, coefficients: Sequence[int], receiver: int) -> bytes:
    """The share of the receiver of this number: the polynomial at its number + 1.

    >>> shares = {receiver: deal(bytes(31) + b"7", [3, 5], receiver) for receiver in (0, 4, 9)}
    >>> combine(shares)[-1:]
    b'7'
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value + coefficient) * (receiver + 1) % PRIME
    return ((value + int.from_bytes(secret, "big")) % PRIME).to_bytes(SHARE, "big")


def commitment(share: bytes) -> bytes:
    """What a dealer publishes of a share, so that nobody can lie about it."""
    return hashlib.sha256(b"fedpca secure share\n" + share).digest()


def is_committed(share: bytes, commitment_to_it: bytes) -> bool:
    """Whether it is the share that its dealer has committed to, below the prime: the same number plus the
    prime would have another commitment."""
    return int.from_bytes(share, "big") < PRIME and commitment(share) == commitment_to_it


def combine(shares: Mapping[int, bytes], weights: Sequence[int] | None = None) -> bytes | None:
    """The secret of 32 bytes behind shares, by receiver; None if no secret gives them.

    `weights` are those of `weights_of`, if many secrets are combined from shares of the same receivers.
    """
    weights = weights_of(list(shares)) if weights is None else weights
    numbers = [int.from_bytes(share, "big") for share in shares.values()]
    value = sum(weight * number for weight, number in zip(weights, numbers, strict=True)) % PRIME
    return value.to_bytes(32, "big") if value < 2**256 else None


def weights_of(receivers: Sequence[int]) -> list[int]:
    """Lagrange's weights of the receivers' shares in the secret."""
    found = []
    for i in receivers:
        above = below = 1
        for j in receivers:
            if j != i:
                above = above * (j + 1) % PRIME
                below = below * (j - i) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found
