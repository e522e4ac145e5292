"""Names and versions of children: the rules they meet, and the files they become."""

import hashlib
import re
from typing import Any

from fedpca.summaries import validation

_LONGEST = 1000
_LAST_VERSION = 2**63 - 1


def child_name(child: Any) -> str:
    """A child's name: text that UTF-8 can write, not empty, not too long."""
    if not isinstance(child, str) or not child:
        raise TypeError(f"child must be a name, got {child!r}.")
    if len(child) > _LONGEST:
        raise ValueError(f"child must be a name of at most {_LONGEST} characters, got {len(child)}.")
    try:
        child.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"child must be a name that UTF-8 can write, got {child!r}.") from error
    return child


def version_number(version: Any) -> int:
    """A version: a whole number from 0."""
    if validation.integer(version, "version", at_least=0) > _LAST_VERSION:
        raise ValueError(f"version must be at most {_LAST_VERSION}, got one of {len(str(version))} digits.")
    return int(version)


def file_name(child: str) -> str:
    """The name as part of a file name: never a path, hidden, too long, or different only in case.

    >>> file_name("north"), file_name("../North")
    ('north', '%2e%2e%2f%4eorth')
    """

    def escaped(match: re.Match[bytes]) -> bytes:
        return b"%%%02x" % match[0][0]

    raw = child.encode(errors="surrogatepass")
    stem = re.sub(rb"[^a-z0-9_-]", escaped, raw).decode()
    if len(stem) <= 150:
        return stem
    return f"{stem[:100]}-{hashlib.sha256(raw).hexdigest()}"
