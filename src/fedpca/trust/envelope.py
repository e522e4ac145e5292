"""Envelopes: what is signed, and how.

What is signed is always one line of canonical JSON: values, and the hash of whatever else there is. Such a
line has one spelling, so that whoever checks a signature spells out the values that it uses, and no other
bytes count. Model files, lines of ledgers and messages of secure sums are signed in this way, each under a
name of its own: a signature of one kind is none of another.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from fedpca._typing import JSON
from fedpca.errors import SignatureError
from fedpca.summaries import model_file
from fedpca.trust.keys import PublicKey, SigningKey

_VALUE = re.compile(r"[0-9a-f]{128}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_STUDY = 1000  # characters: no name of a study has more


def canonical(fields: JSON) -> bytes:
    """The only spelling of these values: one line of JSON, without the end of the line.

    >>> canonical({"b": 1.0, "a": [None, "ä"]}).decode()
    '{"a":[null,"ä"],"b":1.0}'
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def parsed(line: bytes) -> JSON:
    """The inverse of `canonical`; ValueError for anything else, such as other spaces or a name twice."""
    try:
        fields = json.loads(line.decode(), parse_constant=_refuse)
        if isinstance(fields, dict) and canonical(fields) == line:
            return fields
    except (ValueError, RecursionError):  # UnicodeDecodeError, too
        pass
    raise ValueError("it must be one line of canonical JSON")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def signature(kind: str, fields: JSON, key: SigningKey) -> str:
    """The signature of these values, 128 hexadecimal digits."""
    return key.sign(_statement(kind, fields)).hex()


def holds(kind: str, fields: JSON, value: object, key: PublicKey) -> bool:
    """Whether the owner of the key has signed these values, as something of this kind."""
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        return False
    return key.verify(bytes.fromhex(value), _statement(kind, fields))


def _statement(kind: str, fields: JSON) -> bytes:
    return f"fedpca {kind} 2\n".encode() + canonical(fields)


# --- model files ---


@dataclass(frozen=True)
class Signature:
    """What a signed file states about its signer; `holds` checks it.

    The checksum is that of kind, facts and arrays of the file, which reading it has checked.

    Attributes:
        checksum: of the file.
        study: the id of the study it was signed for.
        roster: the hash of the roster that its signer had agreed on.
        key: the signer's public key.
        value: the signature itself, 128 hexadecimal digits.
    """

    checksum: str
    study: str
    roster: str
    key: PublicKey
    value: str

    def __post_init__(self) -> None:
        texts = (self.checksum, self.study, self.roster, self.value)
        if not all(isinstance(text, str) for text in texts) or len(self.study) > _MAX_STUDY:
            raise ValueError("checksum, study, roster and value must be strings")
        if not _VALUE.fullmatch(self.value) or not _HASH.fullmatch(self.roster):
            raise ValueError("value or roster is malformed")
        if not isinstance(self.key, PublicKey):
            object.__setattr__(self, "key", PublicKey(self.key))

    def to_json(self) -> dict[str, str]:
        """What is in the header of the file: plain strings."""
        return {"study": self.study, "roster": self.roster, "key": self.key.text, "value": self.value}

    def holds(self) -> bool:
        """Whether the owner of the key that it names signed a file with this checksum."""
        return holds("file", _signed(self.checksum, self.study, self.roster, self.key), self.value, self.key)


def _signed(checksum: str, study: str, roster: str, key: PublicKey) -> JSON:
    return {"checksum": checksum, "study": study, "roster": roster, "key": key.text}


@dataclass(frozen=True, eq=False)
class Envelope:
    """A model file that was read: parsed, hashed and found undamaged, once.

    Attributes:
        kind, arrays, metadata: what it contains.
        signature: what it states about its signer, unchecked; None if it is unsigned.
        contents: the file, byte for byte.
    """

    kind: str
    arrays: dict[str, Any]
    metadata: JSON
    signature: Signature | None
    contents: bytes


def read(contents: bytes, name: object = "the file") -> Envelope:
    """Read a model file, signed or not.

    Raises:
        SignatureError: there is something else in place of a signature.
        ModelFileError: it is no model file, or damaged.
    """
    file = model_file.opened(contents, name)
    try:
        stated = file.signature
        if stated is not None and (not isinstance(stated, dict) or len(stated) != 4):
            raise ValueError("it must have study, roster, key and value")
        found = None if stated is None else Signature(file.checksum, **stated)
    except (TypeError, ValueError) as error:
        raise SignatureError(
            f"{name} has a damaged signature ({error}); let its owner send it again."
        ) from error
    return Envelope(*file.contents, found, contents)


def sign(contents: bytes, key: SigningKey, *, study: str, roster: str) -> bytes:
    """The model file with a signature, which replaces one that it may have.

    Raises:
        ModelFileError: the file has what stays with its owner.
    """
    file = model_file.opened(contents, "a signed file")
    model_file.require_no_own_facts(file.contents[2], "a signed file")
    value = signature("file", _signed(file.checksum, study, roster, key.public), key)
    stated = Signature(file.checksum, study, roster, key.public, value)
    return model_file.with_signature(contents, stated.to_json())
