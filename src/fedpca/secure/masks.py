"""Masks: words that look random, which two owners, or an owner and those with shares, can make again."""

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca.errors import SecureError

Words = NDArray[np.uint64]

_CHUNK = 2**14  # words: they and those of a mask stay in a core's cache
_ZEROS = bytes(8 * _CHUNK)
_PURPOSE = "secure sums"


def derive(secret: bytes, session: bytes, info: bytes) -> bytes:
    """A key of 32 bytes: HKDF-SHA256, salted with the id of the session."""
    hkdf, hashes = _hazmat("kdf.hkdf"), _hazmat("hashes")
    return hkdf.HKDF(algorithm=hashes.SHA256(), length=32, salt=session, info=info).derive(secret)


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return _curve().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange(private: bytes, public: bytes) -> bytes:
    """What the owners of two X25519 keys share; SecureError for a point that gives the same with any key."""
    curve = _curve()
    try:
        return curve.X25519PrivateKey.from_private_bytes(private).exchange(
            curve.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise SecureError(f"a public key must be that of a secret key, and {public.hex()} is not.") from None


@lru_cache(maxsize=2**14)
def require_key(public: bytes) -> None:
    """Refuse a public key with which anyone would share a known secret."""
    exchange(b"\x01" * 32, public)  # any secret key: with these points, all give zeros


def pair_key(private: bytes, public: bytes, session: bytes, context: bytes, owner: int, other: int) -> bytes:
    """The key of the mask between two owners; the context is the hash of what was announced."""
    info = b"fedpca secure pair\n" + context + _packed(min(owner, other)) + _packed(max(owner, other))
    return derive(exchange(private, public), session, info)


def self_key(seed: bytes, session: bytes, context: bytes, owner: int) -> bytes:
    """The key of an owner's own mask."""
    return derive(seed, session, b"fedpca secure self\n" + context + _packed(owner))


def seal_key(private: bytes, public: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """The key that seals the shares of one owner for another, used once."""
    info = b"fedpca secure shares\n" + _packed(sender) + _packed(receiver)
    return derive(exchange(private, public), session, info)


def seal(key: bytes, contents: bytes) -> bytes:
    """Contents that only the other holder of the key can read or make."""
    return _hazmat("ciphers.aead").ChaCha20Poly1305(key).encrypt(bytes(12), contents, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The inverse of `seal`; None for what was not sealed with this key."""
    try:
        return _hazmat("ciphers.aead").ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except require("cryptography.exceptions", extra="secure", purpose=_PURPOSE).InvalidTag:
        return None


def add_masks(words: Words, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add to words, in place, the mask of every key, or subtract it where the key comes with False.

    >>> words = np.arange(5, dtype="<u8")
    >>> add_masks(words, [(bytes(32), True)])
    >>> hex(words[0])
    '0x903df1a0ade0b876'
    >>> add_masks(words, [(bytes(32), False)])
    >>> words
    array([0, 1, 2, 3, 4], dtype=uint64)
    """
    ciphers = _hazmat("ciphers")
    streams = [
        (ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor(), added)
        for key, added in masks
    ]
    buffer = bytearray(8 * _CHUNK)
    mask = np.frombuffer(buffer, dtype="<u8")
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        size = 8 * len(part)
        for stream, added in streams:
            stream.update_into(memoryview(_ZEROS)[:size], memoryview(buffer)[:size])
            (np.add if added else np.subtract)(part, mask[: len(part)], out=part)


def _packed(index: int) -> bytes:
    return index.to_bytes(4, "big")


def _curve() -> Any:
    return _hazmat("asymmetric.x25519")


@cache
def _hazmat(module: str) -> Any:
    return require(f"cryptography.hazmat.primitives.{module}", extra="secure", purpose=_PURPOSE)
