"""Keys: an owner signs with a key that stays with it; everyone checks with its public half (Ed25519)."""

import base64
import binascii
import os
import stat
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from fedpca._util.extras import require
from fedpca._util.files import create_exclusive, local_path

_PREFIX = "ed25519:"
_MAX_FILE = 2**16  # bytes
_PURPOSE = "signing and checking signatures"
_PRIME = 2**255 - 19  # coordinates are below it
# The second coordinates of the eight points of small order: under such a key, signatures that nobody had to
# make hold of any text.
_SMALL_ORDER = {
    0,
    1,
    _PRIME - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
}


@dataclass(frozen=True)
class PublicKey:
    """The half of a key that everyone may know: it checks signatures.

    Attributes:
        text: its one spelling, "ed25519:" and 44 characters.

    >>> PublicKey("ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
    PublicKey('ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=')
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"a public key must be a string, got {self.text!r:.80}.")
        if len(raw := self._raw()) != 32 or self.text != _spelled(raw):
            raise ValueError(
                f"a public key must be {_PREFIX!r} and 44 characters, as `fedpca roster key` prints it, got "
                f"{self.text!r:.80}."
            )
        coordinate = int.from_bytes(raw, "little") % 2**255  # the last bit is the sign of the other one
        if coordinate >= _PRIME or coordinate in _SMALL_ORDER:
            raise ValueError(
                f"a public key must be that of a signing key, and anyone can sign for {self.text!r:.80}; "
                "take one that `fedpca roster key` prints."
            )

    def _raw(self) -> bytes:
        if not self.text.startswith(_PREFIX):
            return b""
        try:
            return base64.b64decode(self.text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            return b""

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether the key's owner signed these bytes."""
        module = _ed25519()
        try:
            module.Ed25519PublicKey.from_public_bytes(self._raw()).verify(signature, data)
        except (_invalid_signature(), ValueError):
            return False
        return True

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"PublicKey({self.text!r})"


class SigningKey:
    """A key that signs. It stays with its owner, in a file that nobody else can read; its `public` half may
    be known to everyone. Needs the extra "secure".

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "north.key"
    >>> key = SigningKey.new()
    >>> key.save(path)
    >>> SigningKey.load(path).public == key.public
    True
    >>> key.public.verify(key.sign(b"rows"), b"rows"), key.public.verify(key.sign(b"rows"), b"cows")
    (True, False)
    """

    def __init__(self, private: Any) -> None:
        self._private = private
        serialization = _serialization()
        raw = private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )  # fmt: skip
        self.public = PublicKey(_spelled(raw))

    @classmethod
    def new(cls) -> Self:
        """A new random key."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a key file (PEM).

        Raises:
            PermissionError: others than its owner can read or write it.
            ValueError: it is not an Ed25519 key.
        """
        module, serialization = _ed25519(), _serialization()
        path = local_path(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: no such key file; check the path, or make one with `fedpca roster key {path}`."
            ) from None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"a key must be a file, and {path} is not one.")
            contents = file.read(_MAX_FILE)
        try:
            private = serialization.load_pem_private_key(contents, password=None)
        except (ValueError, TypeError, _unsupported()):
            private = None
        if not isinstance(private, module.Ed25519PrivateKey):
            raise ValueError(
                f"a key file must have one Ed25519 key (PEM, PKCS8, without a password), and {path} has not; "
                "make one with `fedpca roster key`."
            )
        if status.st_mode & 0o077:
            raise PermissionError(
                f"a key file must be closed to all but its owner, and {path} has permissions "
                f"{stat.S_IMODE(status.st_mode):o}; run `chmod 600 {path}`, or make a new key if others may "
                "have read it."
            )
        return cls(private)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key file, complete or not at all, readable by its owner only.

        Raises:
            FileExistsError: there is a file of this name; it is left as it is.
        """
        serialization = _serialization()
        path = local_path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}.")
        contents = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        if not create_exclusive(path, contents, owner_only=True):
            raise FileExistsError(
                f"{path} already exists, and a key is never overwritten; choose another path."
            )

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes: 64 bytes, always the same."""
        return bytes(self._private.sign(data))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key cannot be pickled or copied: it stays in its file; load it there.")

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.text!r})"


def _spelled(raw: bytes) -> str:
    return _PREFIX + base64.b64encode(raw).decode("ascii")


def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519", extra="secure", purpose=_PURPOSE)


def _serialization() -> Any:
    return require("cryptography.hazmat.primitives.serialization", extra="secure", purpose=_PURPOSE)


def _invalid_signature() -> type[Exception]:
    return require("cryptography.exceptions", extra="secure", purpose=_PURPOSE).InvalidSignature


def _unsupported() -> type[Exception]:
    return require("cryptography.exceptions", extra="secure", purpose=_PURPOSE).UnsupportedAlgorithm
