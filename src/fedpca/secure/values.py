"""Values in messages: each checked for its type and its size. ValueError says what is wrong."""

import re
from collections.abc import Callable
from typing import Any

from fedpca.secure.settings import Terms
from fedpca.secure.shamir import SHARE

_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def list_of(value: Any, least: int, most: int, name: str) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{name} must be a list of {least} to {most}")
    return value


def integer(value: Any, least: int, most: int, name: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r:.80}")
    return value


def hex_bytes(value: Any, size: int | None, name: str) -> bytes:
    if (
        not isinstance(value, str)
        or (size is not None and len(value) != 2 * size)
        or not _HEX.fullmatch(value)
    ):
        raise ValueError(f"{name} must be hexadecimal digits" + (f" of {size} bytes" if size else ""))
    return bytes.fromhex(value)


def share(value: Any) -> bytes:
    return hex_bytes(value, SHARE, "a share")


def digest_text(value: Any) -> str:
    return hex_bytes(value, 32, "a digest").hex()


def by_index(value: Any, terms: Terms, parse: Callable[[Any], bytes]) -> dict[int, bytes]:
    """A JSON object by members' numbers."""
    if not isinstance(value, dict) or len(value) > terms.n_members:
        raise ValueError("it must have an object with at most one value per member")
    numbers = {str(index): index for index in range(terms.n_members)}
    if unknown := [key for key in value if key not in numbers]:
        raise ValueError(f"{unknown[0]!r:.80} is the number of no member")
    return {numbers[key]: parse(item) for key, item in value.items()}


def entries(value: Any, n_digests: int, terms: Terms) -> dict[int, tuple[str, ...]]:
    """Lists of a member's number and digests, in the order of members, `least` of them or more."""
    found: dict[int, tuple[str, ...]] = {}
    for item in list_of(value, 0, terms.n_members, "members"):
        if not isinstance(item, list) or len(item) != n_digests + 1:
            raise ValueError("each entry must have a member's number and digests")
        index = integer(item[0], 0, terms.n_members - 1, "a member's number")
        if found and index <= next(reversed(found)):
            raise ValueError("members must be in order, each once")
        found[index] = tuple(map(digest_text, item[1:]))
    if len(found) < terms.least:
        raise ValueError(f"it must have at least {terms.least} members, and has {len(found)}")
    return found
