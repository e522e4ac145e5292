"""Model files: safetensors with JSON metadata and a checksum, never pickle.

The one string in the safetensors metadata, under "fedpca", is a JSON object with `format_version`, `kind`,
`facts` (the summary's metadata, as JSON text), `checksum` and, of a signed file, `signature`.

The same contents have one encoding, and only that is read: every byte of a file is known from its kind, its
arrays and its facts. Nothing else can be in it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from fedpca._typing import JSON, AnyArray
from fedpca._util.files import atomic_write, local_path
from fedpca.errors import ModelFileError

FORMAT_VERSION = 1
OWN_FACTS = {
    "limits": "limits learned from its rows",
    "reading": "how its rows are to be read",
    "stream": "all that a live stream knows, raw rows included",
}
"""Facts of a file of one's own, which stay with their owner."""
_DTYPES: dict[str, np.dtype] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
_MAX_ARRAYS = 128  # more than any summary has
# Headers are read before anything is known of their sender, and JSON takes up to 25 times its size in memory:
# "[]," are 3 bytes, and a list of 64 or more.
_MAX_LAYOUT = 2**16  # bytes of a header about arrays and checksum, 300 per array
_MAX_HEADER = 2**24  # bytes of all of it; certificates of 40,000 releases fit
_MAX_NAME = 2**10  # bytes more for every feature: names of genetic variants can have hundreds
_MAX_VALUES = 2**20  # values in the facts; certificates of 40,000 releases fit
_VALUES_PER_FEATURE = 4  # more: its name, and room

_STRING = r'("(?:[^"\\]|\\.)*+")'
_HEADER = re.compile(rb'\{"__metadata__":\{"fedpca":' + _STRING.encode() + rb"\}")
_OURS = re.compile(
    r'\{"format_version": ([^,"]{1,20}|"[^"]{0,20}"), "kind": ("[^"]{0,100}"), "facts": ' + _STRING
)
_IN_STRING = re.compile(_STRING)

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
    tensors = {name: _little_endian(array) for name, array in arrays.items()}
    text = _text_of(metadata)
    header = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "facts": text,
        "checksum": _checksum(kind, tensors, text),
    }
    layout = _Layout.of({name: (array.dtype, array.shape) for name, array in tensors.items()})
    start = layout.header(header)
    return b"".join(
        (len(start).to_bytes(8, "little"), start, *(tensors[name].data for name in layout.shapes))
    )


def _little_endian(array: AnyArray) -> AnyArray:
    """The array as it is stored: in C order, which a strided or transposed one is not."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _text_of(metadata: JSON) -> str:
    return json.dumps(metadata, sort_keys=True, allow_nan=False)


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


class Opened(NamedTuple):
    """A file that was read.

    Attributes:
        contents: kind, arrays and metadata.
        checksum: of these; it is right.
        signature: whatever the header has under this name, unchecked; None if nothing.
    """

    contents: Contents
    checksum: str
    signature: object


def decode(contents: bytes, name: object) -> Contents:
    """The inverse of `encode`, of what it gives and nothing else; `name` is used in error messages."""
    return opened(contents, name).contents


def opened(contents: bytes, name: object) -> Opened:
    """`decode`, with the checksum and the signature of the file."""
    with _damage_named(name):
        found = _File.opened(contents, name)
        arrays = found.arrays(contents)
        kind, text = found.header["kind"], found.header["facts"]
        checksum = _checksum(kind, arrays, text)
        if found.header.get("checksum") != checksum:
            raise ModelFileError(f"{name} is damaged: its checksum does not match; fetch or save it again.")
        return Opened((kind, arrays, found.metadata()), checksum, found.header.get("signature"))


def require_exact(
    kind: str,
    found: tuple[Mapping[str, AnyArray], JSON],
    made: tuple[Mapping[str, AnyArray], JSON],
) -> None:
    """Refuse arrays and metadata that are not those of the value made of them: a file has nothing else.

    Entries of arrays may differ by what their checks allow, such as the rounding of a symmetric one.

    Raises:
        ValueError: an array or a fact is unknown, missing, of another dtype or shape, or in another form.
    """
    remedy = "let fedpca write it again"
    for what, names, known in zip(("an array", "a fact"), found, made, strict=True):
        if unknown := sorted(names.keys() - known.keys()):
            raise ValueError(f"it has {what} {unknown[0]!r:.80} that no {kind} has; {remedy}.")
        if missing := sorted(known.keys() - names.keys()):
            raise ValueError(f"{missing[0]} is missing; {remedy}.")
    (arrays, metadata), (own, facts) = found, made
    for name, array in arrays.items():
        kept = own[name]
        if (array.dtype, array.shape) != (kept.dtype, kept.shape):
            raise ValueError(
                f"{name} must be of {kept.dtype} and shape {kept.shape}, got {array.dtype} and "
                f"{array.shape}; {remedy}."
            )
    for name, value in facts.items():
        if json.dumps(metadata[name], sort_keys=True) != json.dumps(value, sort_keys=True):
            raise ValueError(f"{name} must be as fedpca writes it, got {metadata[name]!r:.80}; {remedy}.")


def require_no_own_facts(metadata: JSON, name: object) -> None:
    """Refuse what stays with its owner in a file that is to leave."""
    if own := [f"{words} ({fact})" for fact, words in OWN_FACTS.items() if fact in metadata]:
        raise ModelFileError(
            f"{name} must not leave as it is: it says {' and '.join(own)}, for its owner alone; hand over "
            "what fedpca package or fedpca merge makes of it, without that."
        )


def with_signature(contents: bytes, signature: JSON | None) -> bytes:
    """The same file with another signature in its header, which the checksum is not about, or none."""
    with _damage_named("the file"):
        found = _File.opened(contents, "the file")
    header = {name: value for name, value in found.header.items() if name != "signature"}
    added = {} if signature is None else {"signature": signature}
    text = found.layout.header(header | added)
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(contents)[found.start :]))


@dataclass(frozen=True)
class _Layout:
    """Where the arrays of a file are: one after another, without gaps, in this order.

    Attributes:
        shapes: dtypes and shapes by name, those of the larger dtype first, then by name, as safetensors
            itself orders them: all are aligned.
    """

    shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> "_Layout":
        return cls(dict(sorted(shapes.items(), key=lambda item: (-item[1][0].itemsize, item[0]))))

    def places(self) -> Iterator[tuple[str, np.dtype, tuple[int, ...], int, int]]:
        """Name, dtype, shape, first byte and end of every array, counted from the end of the header."""
        start = 0
        for name, (dtype, shape) in self.shapes.items():
            end = start + dtype.itemsize * prod(shape)
            yield name, dtype, shape, start, end
            start = end

    def header(self, ours: JSON) -> bytes:
        """The text of a header, of a length that aligns the arrays behind it."""
        tensors: JSON = {"__metadata__": {"fedpca": json.dumps(ours)}}
        for name, dtype, shape, start, end in self.places():
            tensors[name] = {
                "dtype": f"{dtype.kind.upper()}{8 * dtype.itemsize}",
                "shape": list(shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(tensors, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)


@dataclass(frozen=True)
class _File:
    """What the header of a file says, exactly as it would be written.

    Attributes:
        header: what fedpca put into it.
        layout: where its arrays are.
        start: where they begin, in bytes.
    """

    header: JSON
    layout: _Layout
    start: int

    @classmethod
    def opened(cls, contents: bytes, name: object) -> "_File":
        """Read a header, and no more of it than its sender's arrays explain.

        Memory: three times the header, and no more for what is not fedpca's.
        """
        start = 8 + int.from_bytes(contents[:8], "little")
        if not 8 < start <= len(contents):
            raise ValueError("its header is cut short")
        match = _HEADER.match(contents, 8, start)
        if match is None:
            if start <= _MAX_LAYOUT and isinstance(json.loads(contents[8:start]), dict):
                raise ModelFileError(f"{name} is a safetensors file, but was not written by fedpca.")
            raise ValueError("its header is not one of fedpca")
        layout = _layout_in(contents[match.end() : start], name)
        end = max((end for *_, end in layout.places()), default=0)
        if len(contents) != start + end:
            raise ValueError(f"it must have {end} bytes of arrays, got {len(contents) - start}")
        shapes = [shape for _, shape in layout.shapes.values() if 0 not in shape]
        n_features = max(map(max, shapes), default=0)
        if start > _MAX_HEADER + _MAX_NAME * n_features:
            raise ValueError(f"its header is too large, {start} bytes for {n_features} features")
        header = _ours_in(json.loads(match[1]), name)
        _require_few_values(header["facts"], n_features)
        if layout.header(header) != contents[8:start]:
            raise ValueError("its header is not exactly what fedpca writes")
        return cls(header, layout, start)

    def arrays(self, contents: bytes) -> dict[str, AnyArray]:
        """Views of the bytes of a file, in this machine's byte order."""
        found: dict[str, AnyArray] = {}
        for name, dtype, shape, start, _ in self.layout.places():
            values = np.frombuffer(contents, dtype, prod(shape), self.start + start).reshape(shape)
            found[name] = values.astype(dtype.newbyteorder("="), copy=False)
        return found

    def metadata(self) -> JSON:
        """The facts as JSON, if they are exactly as they would be written."""
        text = self.header["facts"]
        metadata = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(metadata, dict):
            raise ValueError("its metadata is not a JSON object")
        if _text_of(metadata) != text:
            raise ValueError("its metadata is not exactly what fedpca writes")
        return metadata


def _layout_in(text: bytes, name: object) -> _Layout:
    """The layout of arrays in the end of a header."""
    if len(text) > _MAX_LAYOUT:
        raise ValueError("its header has too much beside fedpca's metadata")
    tensors = json.loads(b'{"":0' + text)
    del tensors[""]
    if len(tensors) > _MAX_ARRAYS:
        raise ModelFileError(f"{name} is not a model file: it has {len(tensors)} arrays.")
    shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for tensor, description in tensors.items():
        dtype = _DTYPES.get(description["dtype"])
        if dtype is None:
            raise ModelFileError(f"{name} is not a model file: its array {tensor!r} is not of floats.")
        shape = description["shape"]
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
            raise ValueError(f"its array {tensor!r:.80} has no valid shape")
        shapes[tensor] = dtype, tuple(shape)
    return _Layout.of(shapes)


def _ours_in(text: object, name: object) -> JSON:
    """What fedpca put into a header: strings beside the version and the signature."""
    match = _OURS.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError("its metadata is not that of fedpca")
    assert isinstance(text, str)
    if type(version := json.loads(match[1])) is not int or version != FORMAT_VERSION:
        raise ModelFileError(
            f"{name} has format version {version!r}; this fedpca reads version {FORMAT_VERSION}: "
            "upgrade fedpca."
        )
    if len(text) - match.end() > _MAX_LAYOUT:
        raise ValueError("its metadata has too much beside the facts")
    others = json.loads('{"":0' + text[match.end() :])
    del others[""]
    if not {"checksum"} <= others.keys() <= {"checksum", "signature"}:
        raise ValueError("its metadata is not that of fedpca")
    facts = {"format_version": version, "kind": json.loads(match[2]), "facts": json.loads(match[3])}
    return facts | others


def _require_few_values(text: str, n_features: int) -> None:
    """Refuse facts of more values than a summary has: each takes up to 100 bytes of memory."""
    most = _MAX_VALUES + _VALUES_PER_FEATURE * n_features
    if len(text) <= most:
        return
    without_strings = _IN_STRING.sub("", text)
    if sum(map(without_strings.count, "[{,:")) > most:
        raise ValueError(f"its metadata has too many values for {n_features} features")


@contextmanager
def _damage_named(name: object) -> Iterator[None]:
    """Whatever is wrong inside, as a ModelFileError."""
    try:
        yield
    except ModelFileError:
        raise
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{name} is not a model file, or is damaged ({error}); check the path, or copy the file again."
        ) from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _checksum(kind: str, tensors: Mapping[str, AnyArray], text: str) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
