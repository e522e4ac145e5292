"""The bytes of a message: one line of canonical JSON, a payload, and the signature of its owner."""

import hashlib

from fedpca._typing import JSON
from fedpca.trust import envelope
from fedpca.trust.keys import PublicKey, SigningKey

_DOMAIN = b"fedpca secure message 1\n"  # a signature of anything else is none of a message
SIGNATURE = 64  # bytes
MOST_HEADER = 2**24  # bytes: with 1,000 members, shares and names of 1,000 characters take a tenth of it


def canonical(fields: JSON) -> bytes:
    """The first line of a message: the only spelling of these values."""
    return envelope.canonical(fields) + b"\n"


def digest(contents: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(contents).hexdigest()


def header(contents: bytes) -> tuple[JSON, memoryview]:
    """The first line as JSON, and the rest, which is not looked at; ValueError if it is not canonical."""
    end = contents.find(b"\n", 0, MOST_HEADER)
    if end < 0:
        raise ValueError("it has no header")
    return envelope.parsed(contents[:end]), memoryview(contents)[end + 1 :]


def sign(key: SigningKey, fields: JSON, payload: bytes | memoryview = b"") -> bytes:
    """An owner's message: header, payload and signature."""
    line = canonical({**fields, "bytes": len(payload)})
    body = hashlib.sha256(line)
    body.update(payload)
    return b"".join((line, payload, key.sign(_DOMAIN + body.digest())))


def read_signed(contents: bytes, key: PublicKey, expected: JSON) -> tuple[JSON, memoryview, str]:
    """Header, payload and digest of a message that has the expected fields and is signed with this key.

    ValueError says what is wrong.
    """
    fields, rest = header(contents)
    size = fields.get("bytes")
    if type(size) is not int or size < 0 or len(rest) != size + SIGNATURE:
        raise ValueError("it is cut off, or longer than it says")
    stated = {name: value for name, value in fields.items() if name in expected}
    if canonical(stated) != canonical(expected):  # true is not 1, and null is not nothing
        name = next((name for name in expected if stated.get(name) != expected[name]), "header")
        raise ValueError(f"its {name} is {stated.get(name)!r:.80}, and must be {expected.get(name)!r:.80}")
    body = hashlib.sha256(memoryview(contents)[:-SIGNATURE])
    signature = bytes(rest[size:])
    if not key.verify(signature, _DOMAIN + body.digest()):
        raise ValueError("its signature does not hold: it was changed, or signed with another key")
    body.update(signature)
    return fields, rest[:size], body.hexdigest()
