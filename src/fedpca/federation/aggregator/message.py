"""Message: what a child sends, with its name and version; one encoding for folders, Flower and stores."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar
from urllib.parse import unquote

from fedpca._typing import JSON, AnyArray
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.owner_sum import Features, OwnerSum
from fedpca.summaries import model_file, validation
from fedpca.summaries.loading import from_file, scaling_from_file
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary
from fedpca.summaries.validation import child_name as child_name
from fedpca.trust import envelope
from fedpca.trust.envelope import Envelope, Signature

_MAX_VERSION = 2**63 - 1
_HEADER = ("child", "version")  # facts of a message beside those of its summary
_WITHDRAWN = "withdrawn"  # the kind of a message without content

Content = Summary | Scaling | OwnerSum
_Content = TypeVar("_Content", Scaling, OwnerSum)


@dataclass(frozen=True)
class Message:
    """What an owner sends: a summary, its scaling or a noisy sum; and what an aggregator stores.

    Attributes:
        child: the name of the child: any text.
        version: a whole number from 0. A newer version replaces all older ones.
        content: of all rows of the child so far; None if the child was withdrawn.
        signature: of the file that it was decoded from, unchecked; None if that is unsigned, or there is
            none. Messages that differ only in this are equal.
        signed: that file, byte for byte, if it has a signature; b"" if not.

    >>> from fedpca import Subspace
    >>> message = Message("north", 1, Subspace.from_rows([[1.0, 2.0], [3.0, 2.0]]))
    >>> Message.decode(message.encode()) == message
    True
    """

    child: str
    version: int
    content: Content | None
    signature: Signature | None = field(default=None, init=False, compare=False, repr=False)
    signed: bytes = field(default=b"", init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "child", child_name(self.child))
        object.__setattr__(self, "version", version_number(self.version))
        if self.content is not None and not isinstance(self.content, Scaling | OwnerSum):
            require_summary(self.content)

    @property
    def summary(self) -> Summary | None:
        """The content, if it is a summary; of nothing else an aggregator makes a model."""
        return self.content if isinstance(self.content, Summary) else None

    @property
    def n_rows(self) -> float:
        """How many rows it claims to be of."""
        match self.content:
            case Scaling() as scaling:
                return float(scaling.observed.max())
            case OwnerSum() as each:
                return each.own.n_rows
            case None:
                return 0.0
            case summary:
                return summary.count

    @property
    def features(self) -> Features:
        """How many features its rows have, and their names, or None."""
        assert self.content is not None
        if isinstance(self.content, OwnerSum):
            return self.content.features
        return self.content.n_features, self.content.feature_names

    def of(self, wanted: type[_Content]) -> _Content:
        """The content, if it is of this kind."""
        if not isinstance(self.content, wanted):
            raise ValueError(f"it must have a {wanted.kind}, and has {self.contents()[0]!r:.80}.")
        return self.content

    def encode(self) -> bytes:
        """A model file that also has the child and the version; equal messages give equal bytes, unsigned."""
        return self.signed or model_file.encode(*self.contents())

    def contents(self) -> model_file.Contents:
        """Kind, arrays and metadata of its model file."""
        header: JSON = {"child": self.child, "version": self.version}
        if self.content is None:
            return _WITHDRAWN, {}, header
        return self.content.kind, self.content.arrays, self.content.metadata | header

    @classmethod
    def decode(cls, contents: bytes, name: object = "the message") -> Self:
        """The inverse of `encode`, every value checked; `name` is used in error messages.

        Raises:
            ModelFileError: the contents are anything else.
            SignatureError: there is something else in place of a signature.
        """
        return cls.from_envelope(envelope.read(contents, name), name)

    @classmethod
    def from_envelope(cls, file: Envelope, name: object = "the message") -> Self:
        """The message in a file that was read; with the file's signature, of which nothing else makes one."""
        message = cls.from_contents(file.kind, file.arrays, file.metadata, name)
        if file.signature is not None:
            object.__setattr__(message, "signature", file.signature)
            object.__setattr__(message, "signed", file.contents)
        return message

    @classmethod
    def from_contents(cls, kind: str, arrays: Mapping[str, AnyArray], metadata: JSON, name: object) -> Self:
        """The inverse of `contents`, every value checked."""
        facts = {fact: value for fact, value in metadata.items() if fact not in _HEADER}
        content: Content | None = None
        if kind == Scaling.kind:
            content = scaling_from_file(name, arrays, facts)
        elif kind == OwnerSum.kind:
            content = OwnerSum.from_file(name, arrays, facts)
        elif kind != _WITHDRAWN:
            content = from_file(name, kind, arrays, facts)
        try:
            if content is None:
                model_file.require_exact(kind, (arrays, facts), ({}, {}))
            return cls(metadata["child"], metadata["version"], content)
        except KeyError as error:
            raise ModelFileError(
                f"{name} is not a message: {error} is missing; send the summary again."
            ) from error
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{name} is not a valid message: {error}") from error


def require_summary(value: object) -> Summary:
    """The value, if it is a summary."""
    if not isinstance(value, Summary):
        raise TypeError(f"a summary must be a Subspace or Moments, got {type(value).__name__}.")
    return value


def version_number(version: object) -> int:
    """A valid version: a whole number from 0 that fits 64 bits."""
    number = validation.integer(version, "version", at_least=0)
    if number > _MAX_VERSION:
        raise ValueError(f"version must be at most {_MAX_VERSION}, got a larger number.")
    return number


def file_name(child: str) -> str:
    """The name as part of a file name: never a path, hidden, too long, or different only in case.

    >>> file_name("north"), file_name("../North")
    ('north', '%2e%2e%2f%4eorth')
    """

    def escaped(match: re.Match[bytes]) -> bytes:
        return b"%%%02x" % match[0][0]

    raw = child.encode()
    stem = re.sub(rb"[^a-z0-9_-]", escaped, raw).decode()
    if len(stem) <= 150:
        return stem
    return f"{stem[:100]}-{hashlib.sha256(raw).hexdigest()}"


def name_in(stem: str) -> str:
    """The name of the child that `file_name` made this of; of a very long one, only its beginning.

    >>> name_in("%2e%2e%2f%4eorth")
    '../North'
    """
    return unquote(stem, errors="replace")
