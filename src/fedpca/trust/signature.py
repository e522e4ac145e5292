"""Signatures of model files: who signed a file, in which study, under which roster.

A signature is in the header of a model file, beside the checksum. It is about every byte of the file, with
its own value taken as zeros. So a signed file is a model file like any other, and nothing is ever encoded
again to check it.
"""

import hashlib
import re
from dataclasses import dataclass

from fedpca._typing import JSON
from fedpca.errors import SignatureError
from fedpca.summaries import model_file
from fedpca.trust.keys import PublicKey, SigningKey

_DOMAIN = b"fedpca signed file 1\n"  # a signature of anything else is none of a file
_VALUE = re.compile(r"[0-9a-f]{128}")
_ZEROS = b"0" * 128
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_STUDY = 1000  # characters


@dataclass(frozen=True)
class Signature:
    """What a signed file states about its signer; `holds` checks it.

    Attributes:
        study: the id of the study it was signed for.
        roster: the hash of the roster that its signer had agreed on.
        key: the signer's public key.
        value: the signature itself, 128 hexadecimal digits.
    """

    study: str
    roster: str
    key: PublicKey
    value: str

    @classmethod
    def read(cls, contents: bytes, name: object = "the file") -> "tuple[Signature | None, JSON]":
        """The signature in a model file, unchecked, None if there is none; and the file's metadata.

        Raises:
            SignatureError: there is something else in its place.
            ModelFileError: it is no model file.
        """
        found, metadata = model_file.signature(contents, name)
        if found is None:
            return None, metadata
        try:
            return cls.from_json(found), metadata
        except (TypeError, ValueError) as error:
            raise SignatureError(
                f"{name} has a damaged signature ({error}); let its owner send it again."
            ) from error

    @classmethod
    def from_json(cls, found: object) -> "Signature":
        """The inverse of `to_json`; raises TypeError or ValueError for anything else."""
        if not isinstance(found, dict) or set(found) != {"study", "roster", "key", "value"}:
            raise ValueError("it must have study, roster, key and value")
        if not all(isinstance(text, str) for text in found.values()) or len(found["study"]) > _MAX_STUDY:
            raise ValueError("study, roster, key and value must be strings")
        if not _VALUE.fullmatch(found["value"]) or not _HASH.fullmatch(found["roster"]):
            raise ValueError("value or roster is malformed")
        return cls(found["study"], found["roster"], PublicKey(found["key"]), found["value"])

    def to_json(self) -> dict[str, str]:
        """Plain strings."""
        return {"study": self.study, "roster": self.roster, "key": self.key.text, "value": self.value}

    def holds(self, contents: bytes) -> bool:
        """Whether the owner of the key that it names signed exactly these bytes."""
        try:
            digest = _digest(contents, self.value)
        except ValueError:
            return False
        return self.key.verify(bytes.fromhex(self.value), digest)


def sign(contents: bytes, key: SigningKey, *, study: str, roster: str) -> bytes:
    """The model file with a signature, which replaces one that it may have.

    Raises:
        ModelFileError: the file has what stays with its owner.
    """
    model_file.require_no_own_facts(model_file.decode(contents, "a signed file")[2], "a signed file")
    blank = {"study": study, "roster": roster, "key": key.public.text, "value": _ZEROS.decode()}
    unsigned = model_file.with_signature(contents, blank)
    value = key.sign(_digest(unsigned, blank["value"])).hex().encode()
    position = _position(unsigned, _ZEROS)
    return b"".join((unsigned[:position], value, unsigned[position + len(value) :]))


def _digest(contents: bytes, value: str) -> bytes:
    """What is signed: the hash of all bytes, with the value of the signature taken as zeros."""
    position = _position(contents, value.encode())
    view = memoryview(contents)
    digest = hashlib.sha256(view[:position])
    digest.update(_ZEROS)
    digest.update(view[position + len(value) :])
    return _DOMAIN + digest.digest()


def _position(contents: bytes, value: bytes) -> int:
    """Where in the header the value is: once, as a whole string."""
    end = 8 + int.from_bytes(contents[:8], "little")
    quoted = b'\\"' + value + b'\\"'
    position = contents.find(quoted, 8, end)
    if position < 0 or contents.find(quoted, position + 1, end) >= 0:
        raise ValueError("the value of the signature must be in the header, once.")
    return position + 2
