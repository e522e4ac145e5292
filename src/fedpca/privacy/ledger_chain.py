"""The lines of a signed ledger: each names its signer and the hash of all lines before it, and is signed.

So a line that was changed, removed or inserted by hand is found. Lines cut off at the end are not: the
certificate of a release says how many entries there were.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedpca._typing import JSON
from fedpca.trust import envelope
from fedpca.trust.keys import PublicKey, SigningKey

_KIND = "ledger line"
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
        record = json.loads(line)
        if not isinstance(record, dict) or "signature" not in record:
            if keys:
                raise ValueError(f"line {number} is not signed, and those before it are")
            unsigned += 1
        else:
            if record["previous"] != digest.hexdigest():
                raise ValueError(f"line {number} does not follow those before it: one was changed or removed")
            key, value = PublicKey(record["key"]), record.pop("signature")
            spelled = json.dumps(record | {"signature": value}).encode()
            if spelled != line or not envelope.holds(_KIND, record, value, key):
                raise ValueError(f"line {number} was changed: its signature does not hold")
            keys = [*(other for other in keys if other != key), key]
        digest.update(line + b"\n")
    return Chain(len(lines), digest.hexdigest(), tuple(keys), unsigned)


def sealed(record: JSON, chain: Chain, key: SigningKey) -> JSON:
    """The record of the next line, signed."""
    record = record | {"key": key.public.text, "previous": chain.digest}
    return record | {"signature": envelope.signature(_KIND, record, key)}


def unsealed(record: JSON) -> JSON:
    """A record without what a signature needs."""
    return {name: value for name, value in record.items() if name not in _NAMES}
