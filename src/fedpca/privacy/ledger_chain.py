"""The lines of a signed ledger: each names its signer and the hash of all lines before it, and is signed.

So a line that was changed, removed or inserted by hand is found. Lines cut off at the end are not: the
certificate of a release says how many entries there were.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedpca._typing import JSON
from fedpca.trust.keys import PublicKey, SigningKey

_DOMAIN = b"fedpca ledger line 1\n"
_SIGNATURE = re.compile(rb', "signature": "([0-9a-f]{128})"}\Z')
_NAMES = ("key", "previous", "signature")


@dataclass(frozen=True)
class Chain:
    """What is known about the lines of a ledger.

    Attributes:
        lines: how many there are.
        digest: the hash of all of them.
        keys: who signed any, the last signer last.
        unsigned: how many lines there are before the first signed one.
    """

    lines: int = 0
    digest: str = hashlib.sha256().hexdigest()
    keys: tuple[PublicKey, ...] = ()
    unsigned: int = 0


def check_chain(lines: Sequence[bytes], known: Chain) -> Chain:
    """Check all lines, but for those that are known to hold; ValueError if one does not."""
    digest = hashlib.sha256()
    for line in lines[: known.lines]:
        digest.update(line + b"\n")
    if len(lines) < known.lines or digest.hexdigest() != known.digest:
        known, digest = Chain(), hashlib.sha256()
    keys, unsigned = list(known.keys), known.unsigned
    for number, line in enumerate(lines[known.lines :], known.lines + 1):
        found = _SIGNATURE.search(line)
        if found is None:
            if keys:
                raise ValueError(f"line {number} is not signed, and those before it are")
            unsigned += 1
        else:
            _check_follows(line, number, digest.hexdigest())
            key = PublicKey(json.loads(line)["key"])
            if not key.verify(bytes.fromhex(found[1].decode()), _DOMAIN + line[: found.start()] + b"}"):
                raise ValueError(f"line {number} was changed: its signature does not hold")
            keys = [*(other for other in keys if other != key), key]
        digest.update(line + b"\n")
    return Chain(len(lines), digest.hexdigest(), tuple(keys), unsigned)


def _check_follows(line: bytes, number: int, before: str) -> None:
    if json.loads(line)["previous"] != before:
        raise ValueError(f"line {number} does not follow those before it: one was changed or removed")


def sealed(record: JSON, chain: Chain, key: SigningKey) -> JSON:
    """The record of the next line, signed."""
    record = record | {"key": key.public.text, "previous": chain.digest}
    return record | {"signature": key.sign(_DOMAIN + json.dumps(record).encode()).hex()}


def unsealed(record: JSON) -> JSON:
    """A record without what a signature needs."""
    return {name: value for name, value in record.items() if name not in _NAMES}
