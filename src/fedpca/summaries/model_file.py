"""Model files: safetensors with JSON metadata and a checksum, never pickle.

The one string in the safetensors metadata, under "fedpca", is a JSON object with `format_version`, `kind`,
`facts` (the summary's metadata, as JSON text), `checksum` and, of a signed file, `signature`. Files of every
format version so far are read by every later release. Version 3 is that of scaled summaries and of scalings,
version 2 that of summaries in which some rows do not know all features; all others are still written as
version 1.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedpca._typing import JSON, AnyArray
from fedpca._util.files import atomic_write, local_path
from fedpca.errors import ModelFileError

FORMAT_VERSION = 3
_MAX_ARRAYS = 128  # more than any summary has
_MAX_HEADER = 2**28  # bytes; names of a million features fit

Contents = tuple[str, dict[str, AnyArray], JSON]


def write(path: str | os.PathLike[str], kind: str, arrays: Mapping[str, AnyArray], metadata: JSON) -> None:
    """Write arrays and JSON metadata as one file, atomically."""
    write_bytes(path, encode(kind, arrays, metadata))


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write what `encode` gave, atomically."""
    path = local_path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}.")
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(contents)


def encode(kind: str, arrays: Mapping[str, AnyArray], metadata: JSON) -> bytes:
    """Arrays and JSON metadata as the bytes of a model file; the same contents give the same bytes."""
    # safetensors writes the buffer of a strided array as if it were contiguous: force C order here.
    tensors = {
        name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        for name, array in arrays.items()
    }
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    header = {
        "format_version": _needed_version(kind, arrays, metadata),
        "kind": kind,
        "facts": text,
        "checksum": _checksum(kind, tensors, text),
    }
    return save(tensors, metadata={"fedpca": json.dumps(header)})


def _needed_version(kind: str, arrays: Mapping[str, AnyArray], metadata: JSON) -> int:
    if kind == "scaling" or "scale" in arrays or "scale" in metadata:
        return 3
    return 2 if "parts" in metadata or "observed" in arrays else 1


def read(path: str | os.PathLike[str]) -> Contents:
    """Read what `write` wrote: kind, arrays and metadata. Raises ModelFileError otherwise."""
    return decode(read_bytes(path), path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, for `decode`."""
    path = local_path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file; name a file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such model file; check the path.")
    return path.read_bytes()


def decode(contents: bytes, name: object) -> Contents:
    """The inverse of `encode`; `name` is used in error messages."""
    with _damage_named(name):
        found = _header(contents, name)
        tensors = load(contents)
        kind, text = str(found.get("kind")), str(found.get("facts"))
        if found.get("checksum") != _checksum(kind, tensors, text):
            raise ModelFileError(f"{name} is damaged: its checksum does not match; fetch or save it again.")
        return kind, tensors, _metadata(text, name)


def signature(contents: bytes, name: object) -> tuple[object, JSON]:
    """What a file has as its signature, None if nothing, and its metadata; only the header is read."""
    with _damage_named(name):
        found = _header(contents, name)
        return found.get("signature"), _metadata(str(found.get("facts")), name)


def with_signature(contents: bytes, signature: JSON | None) -> bytes:
    """The same file with another signature in its header, which the checksum is not about, or none."""
    text, arrays = split(contents)
    tensors = json.loads(text)
    header = json.loads(tensors["__metadata__"]["fedpca"])
    header.pop("signature", None)
    added = {} if signature is None else {"signature": signature}
    tensors["__metadata__"]["fedpca"] = json.dumps(header | added)
    return joined(_padded(tensors), arrays)


def with_metadata(contents: bytes, metadata: JSON) -> bytes:
    """The same file with other metadata and without a signature; its arrays stay as they are, bit for bit."""
    text, arrays = split(contents)
    tensors = json.loads(text)
    header = json.loads(tensors["__metadata__"]["fedpca"])
    header.pop("signature", None)
    facts = json.dumps(metadata, sort_keys=True, allow_nan=False)
    checksum = _checksum(header["kind"], load(contents), facts)
    tensors["__metadata__"]["fedpca"] = json.dumps(header | {"facts": facts, "checksum": checksum})
    return joined(_padded(tensors), arrays)


def split(contents: bytes) -> tuple[bytes, memoryview]:
    """The text of a file's header, and all bytes of its arrays."""
    end = 8 + int.from_bytes(contents[:8], "little")
    return contents[8:end], memoryview(contents)[end:]


def joined(text: bytes, arrays: memoryview) -> bytes:
    """The inverse of `split`."""
    return b"".join((len(text).to_bytes(8, "little"), text, arrays))


def _padded(tensors: JSON) -> bytes:
    """The text of a header, of a length that aligns the arrays behind it."""
    text = json.dumps(tensors, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


@contextmanager
def _damage_named(name: object) -> Iterator[None]:
    """Whatever is wrong inside, as a ModelFileError."""
    try:
        yield
    except ModelFileError:
        raise
    except (SafetensorError, ValueError, OverflowError, RecursionError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{name} is not a model file, or is damaged ({error}); check the path, or copy the file again."
        ) from error


def _metadata(text: str, name: object) -> JSON:
    metadata = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(metadata, dict):
        raise ModelFileError(f"{name} is damaged: its metadata is not a JSON object.")
    return metadata


def _header(contents: bytes, name: object) -> JSON:
    """What fedpca put into the safetensors header: 8 bytes of length, then JSON, then the arrays."""
    length = int.from_bytes(contents[:8], "little")
    if len(contents) < 8 or not length <= min(len(contents) - 8, _MAX_HEADER):
        raise ValueError("its header is too large or cut short")
    tensors = json.loads(contents[8 : 8 + length])
    if not isinstance(tensors, dict):
        raise ValueError("its header is not a JSON object")
    metadata = tensors.pop("__metadata__", {})
    header = json.loads(metadata.get("fedpca", "null")) if isinstance(metadata, dict) else None
    if not isinstance(header, dict):
        raise ModelFileError(f"{name} is a safetensors file, but was not written by fedpca.")
    if (version := header.get("format_version")) not in range(1, FORMAT_VERSION + 1):
        raise ModelFileError(
            f"{name} has format version {version!r}; this fedpca reads versions up to {FORMAT_VERSION}: "
            "upgrade fedpca."
        )
    if len(tensors) > _MAX_ARRAYS:
        raise ModelFileError(f"{name} is not a model file: it has {len(tensors)} arrays.")
    for tensor, description in tensors.items():
        if description["dtype"] not in ("F32", "F64"):
            raise ModelFileError(f"{name} is not a model file: its array {tensor!r} is not of floats.")
    return header


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _checksum(kind: str, tensors: Mapping[str, AnyArray], text: str) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
