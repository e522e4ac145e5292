"""The wire: names on a board, canonical JSON, and messages that their owners signed."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fedpca._typing import JSON
from fedpca.trust.keys import PublicKey, SigningKey

Board = Mapping[str, bytes]
"""Messages by name, each written once."""

_DOMAIN = b"fedpca secure message 1\n"  # a signature of anything else is none of a message
_SIGNATURE = 64  # bytes
MOST_HEADER = 2**24  # bytes
_NAME = re.compile(r"(?:(\d\d)/)?([a-z]+)/(\d\d\d)", re.ASCII)


def board_name(kind: str, index: int | None = None, number: int | None = None) -> str:
    """The name of a message on a board.

    >>> board_name("keys", 3), board_name("masked", 3, 0), board_name("present", number=12)
    ('keys/003', '00/masked/003', '12/present')
    """
    prefix = "" if number is None else f"{number:02}/"
    return prefix + kind + ("" if index is None else f"/{index:03}")


def split_name(name: str) -> tuple[str, int, int | None] | None:
    """Kind, member and number of the sum of an owner's message; None for any other name.

    >>> split_name("00/masked/003"), split_name("keys/003"), split_name("00/total")
    (('masked', 3, 0), ('keys', 3, None), None)
    """
    if (found := _NAME.fullmatch(name)) is None:
        return None
    number, kind, index = found.groups()
    return kind, int(index), None if number is None else int(number)


def canonical(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON: the only spelling of these values."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def digest(contents: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(contents).hexdigest()


def header(contents: bytes) -> tuple[JSON, memoryview]:
    """The first line as JSON, and the rest, which is not looked at; ValueError if it is not canonical."""
    end = contents.find(b"\n", 0, MOST_HEADER)
    if end < 0:
        raise ValueError("it has no header")
    line = contents[: end + 1]
    try:
        fields = json.loads(line.decode(), parse_constant=_refuse)
        if isinstance(fields, dict) and canonical(fields) == line:
            return fields, memoryview(contents)[end + 1 :]
    except (ValueError, RecursionError):  # UnicodeDecodeError, too
        pass
    raise ValueError("its header must be one line of canonical JSON")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


@dataclass(frozen=True)
class Signed:
    """A message whose signature holds.

    Attributes:
        fields: of its header.
        payload: what follows.
        digest: of all its bytes.
    """

    fields: JSON
    payload: memoryview
    digest: str


def sign(key: SigningKey, fields: JSON, payload: bytes | memoryview = b"") -> bytes:
    """A message: header, payload and signature."""
    line = canonical({**fields, "bytes": len(payload)})
    body = hashlib.sha256(line)
    body.update(payload)
    return b"".join((line, payload, key.sign(_DOMAIN + body.digest())))


def read_signed(contents: bytes, key: PublicKey, expected: JSON) -> Signed:
    """A message with the expected fields, signed with this key; ValueError says what is wrong."""
    fields, rest = header(contents)
    size = fields.get("bytes")
    if type(size) is not int or size < 0 or len(rest) != size + _SIGNATURE:
        raise ValueError("it is cut off, or longer than it says")
    stated = {name: fields.get(name) for name in expected}
    if canonical(stated) != canonical(expected):  # true is not 1
        name = next((name for name in expected if stated[name] != expected[name]), "header")
        raise ValueError(f"its {name} is {stated.get(name)!r:.80}, and must be {expected.get(name)!r:.80}")
    body = hashlib.sha256(memoryview(contents)[:-_SIGNATURE])
    signature = bytes(rest[size:])
    if not key.verify(signature, _DOMAIN + body.digest()):
        raise ValueError("its signature does not hold: it was changed, or signed with another key")
    body.update(signature)
    return Signed(fields, rest[:size], body.hexdigest())
