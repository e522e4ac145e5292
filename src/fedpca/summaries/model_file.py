"""The one place that writes and reads model files: safetensors, JSON facts, a checksum, never pickle."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedpca._util.files import atomic_write
from fedpca.errors import ModelFileError

FORMAT_VERSION = 1


def write(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    """Write arrays and JSON facts as one file, whole or not at all."""
    contents = encode(kind, arrays, facts)
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}.")
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(contents)


def encode(kind: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> bytes:
    """Arrays and JSON facts as the bytes of a model file; the same contents, the same bytes."""
    # safetensors writes the buffer of a strided array as if it were contiguous: force C order here.
    tensors = {
        name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        for name, array in arrays.items()
    }
    text = json.dumps(facts, sort_keys=True, allow_nan=False)
    header = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "facts": text,
        "checksum": _checksum(kind, tensors, text),
    }
    return save(tensors, metadata={"fedpca": json.dumps(header)})


Contents = tuple[str, dict[str, NDArray[Any]], dict[str, Any]]


def decode(contents: bytes, name: str) -> Contents:
    """Read what `encode` gave; errors speak of `name`."""
    with tempfile.TemporaryDirectory() as private:  # safetensors hands out metadata of files only
        path = Path(private) / "contents"
        path.write_bytes(contents)
        try:
            return read(path)
        except ModelFileError as error:
            raise ModelFileError(str(error).replace(str(path), name)) from error


def read(path: str | os.PathLike[str]) -> Contents:
    """Read what `write` wrote: its kind, arrays and facts. Anything else is one `ModelFileError`."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file; name a file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}; correct the path.")
    try:
        with safe_open(path, framework="np") as file:
            header = _header(path, file.metadata())
            tensors = {}
            for name in file.keys():  # noqa: SIM118 -- not a dict
                if file.get_slice(name).get_dtype() not in ("F32", "F64"):
                    raise ModelFileError(f"{path} is not a model file: its array {name!r} is not of floats.")
                tensors[name] = file.get_tensor(name)
        kind, text = str(header.get("kind")), str(header.get("facts"))
        if header.get("checksum") != _checksum(kind, tensors, text):
            raise ModelFileError(f"{path} is damaged: its checksum does not match; fetch or save it again.")
        facts = json.loads(text)
    except ModelFileError:
        raise
    except (SafetensorError, ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not a model file, or is damaged ({error}); name another, or fetch it again."
        ) from error
    if not isinstance(facts, dict):
        raise ModelFileError(f"{path} is damaged: its facts are not a JSON object.")
    return kind, tensors, facts


def _header(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    header = json.loads((metadata or {}).get("fedpca", "null"))
    if not isinstance(header, dict):
        raise ModelFileError(f"{path} is a safetensors file, but was not written by fedpca.")
    if (version := header.get("format_version")) != FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version!r}; this fedpca reads version {FORMAT_VERSION}: "
            "upgrade fedpca."
        )
    return header


def _checksum(kind: str, tensors: Mapping[str, NDArray[Any]], text: str) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
