"""The text of a file, as a stream of UTF-8 that pyarrow parses."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedpca._util.extras import require
from fedpca._util.option_text import advice
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Source, translate_errors
from fedpca.readers.dialect import Dialect
from fedpca.readers.remote import RemoteFile

TEXT_BLOCK = 2**20  # bytes parsed at a time
MAX_LINE = 2**26

_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}

Blocks = Iterator[bytes]


@contextmanager
def open_text(path: Source, dialect: Dialect) -> Iterator[Any]:
    """The text of a file as UTF-8, decompressed, after the lines to skip, with comments as empty lines."""
    pa = require("pyarrow", extra="files", purpose="reading CSV, Parquet and Arrow files")
    encoding = dialect.encoding
    if encoding is None:
        with open_bytes(path) as stream:
            encoding = "utf-16" if stream.read(2) in (b"\xff\xfe", b"\xfe\xff") else None
    with open_bytes(path) as stream:
        text = stream if encoding is None else pa.transcoding_input_stream(stream, encoding, "utf8")
        blocks = whole_lines(read_blocks(text))
        if dialect.skip_lines:
            blocks = after_lines(blocks, dialect.skip_lines)
        if dialect.comment is not None:
            blocks = _without_comments(blocks, dialect.comment.encode())
        changed = dialect.skip_lines or dialect.comment is not None
        yield as_file(blocks) if changed else text


def as_file(blocks: Blocks) -> Any:
    """Blocks of bytes as a file that pyarrow reads."""
    pa = require("pyarrow", extra="files", purpose="reading CSV, Parquet and Arrow files")
    return pa.PythonFile(BlockFile(blocks), mode="r")


@contextmanager
def open_bytes(path: Source) -> Iterator[Any]:
    """A stream of bytes, decompressed."""
    pa = require("pyarrow", extra="files", purpose="reading CSV, Parquet and Arrow files")
    if not isinstance(path, RemoteFile):
        with pa.input_stream(str(path), compression="detect") as stream:
            yield stream
        return
    with (
        path.open() as file,
        pa.input_stream(file, compression=_PACKED.get(path.suffixes[-1].lower())) as stream,
    ):
        yield stream


def first_lines(path: Source, dialect: Dialect) -> tuple[str, bool]:
    """At least two lines, and whether there are no more."""
    more = start = b""
    try:
        with translate_errors(path, "text file"), open_text(path, dialect) as stream:
            while start.count(b"\n") < 2 and len(start) < MAX_LINE and (more := stream.read(TEXT_BLOCK)):
                start += more
    except FileFormatError as error:
        if isinstance(error.__cause__, UnicodeError):
            raise encoding_error(path) from None
        raise
    return start.decode("utf-8-sig", "surrogateescape"), not more


def after_lines(blocks: Blocks, n_lines: int) -> Blocks:
    """Blocks of whole lines without the first lines."""
    for block in blocks:
        while n_lines and block:
            block = block[block.find(b"\n") + 1 or len(block) :]
            n_lines -= 1
        if block:
            yield block


def whole_lines(blocks: Blocks, max_bytes: int | None = None) -> Blocks:
    """Blocks that end where lines do, except the last; what a line has beyond `max_bytes` may be cut."""
    rest = b""
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        elif max_bytes is None or len(rest) <= max_bytes:
            rest += block
    if rest:
        yield rest


def read_blocks(stream: Any) -> Blocks:
    while block := stream.read(TEXT_BLOCK):
        yield block


def _without_comments(blocks: Blocks, comment: bytes) -> Blocks:
    """Lines of comments as empty lines."""
    pattern = re.compile(rb"^[ \t]*" + re.escape(comment) + rb"[^\n]*", re.MULTILINE)
    for block in blocks:
        if text := pattern.sub(b"", block) if comment in block else block:
            yield text


class BlockFile(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Blocks) -> None:
        self._left, self._ready = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(TEXT_BLOCK), b""))
        if not self._ready:
            self._ready = memoryview(next(self._left, b""))
        part, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return part


def encoding_error(path: Source) -> FileFormatError:
    """Of bytes that are no UTF-8."""
    return FileFormatError(
        f"{path} is not a valid UTF-8 text file",
        "save it again as UTF-8",
        f"name its encoding, as in {advice('encoding', 'latin-1')}",
    )


def require_line_feeds(path: Source, start: str) -> None:
    """Reject lines that end in a carriage return alone."""
    if "\r" in start.rstrip("\r\n") and "\n" not in start:
        raise FileFormatError(
            f"{path}: lines must end with a line feed, and end with a carriage return alone, as on old Macs; "
            "convert them, as with tr '\\r' '\\n', or save the file with other line ends."
        )


def require_short(path: Source, n_bytes: int) -> None:
    """Reject the length of a line."""
    if n_bytes >= MAX_LINE:
        raise FileFormatError(f"{path}: lines must be shorter than {MAX_LINE} bytes; check its line endings.")
