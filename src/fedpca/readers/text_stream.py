"""The text of a file, as a stream of UTF-8 that pyarrow parses."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpca._util.extras import require
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import translate_errors
from fedpca.readers.dialect import Dialect

TEXT_BLOCK = 2**20  # bytes parsed at a time
MAX_LINE = 2**26


@contextmanager
def open_text(path: Path, dialect: Dialect) -> Iterator[Any]:
    """The text of a file as UTF-8, decompressed, with comments as empty lines."""
    pa = require("pyarrow", extra="files", purpose="reading CSV, Parquet and Arrow files")
    encoding = dialect.encoding
    if encoding is None:
        with pa.input_stream(str(path), compression="detect") as stream:
            encoding = "utf-16" if stream.read(2) in (b"\xff\xfe", b"\xfe\xff") else None
    with pa.input_stream(str(path), compression="detect") as stream:
        text = stream if encoding is None else pa.transcoding_input_stream(stream, encoding, "utf8")
        if dialect.comment is not None:
            text = pa.PythonFile(_WithoutComments(text, dialect.comment.encode()), mode="r")
        yield text


def first_lines(path: Path, dialect: Dialect) -> tuple[str, bool]:
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


class _WithoutComments(io.RawIOBase):
    """A stream in which lines of comments are empty."""

    def __init__(self, stream: Any, comment: bytes) -> None:
        self._stream, self._comment = stream, comment
        self._pattern = re.compile(rb"^[ \t]*" + re.escape(comment) + rb"[^\n]*", re.MULTILINE)
        self._ready, self._rest = memoryview(b""), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(TEXT_BLOCK), b""))
        while not self._ready:
            more = self._stream.read(TEXT_BLOCK)
            text = self._rest + more
            if not text:
                return b""
            end = text.rfind(b"\n") + 1 if more else len(text)
            whole, self._rest = text[:end], text[end:]
            self._ready = memoryview(self._pattern.sub(b"", whole) if self._comment in whole else whole)
            if not more and not self._ready:
                return b""
        part, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return part


def encoding_error(path: Path) -> FileFormatError:
    """Of bytes that are no UTF-8."""
    return FileFormatError(
        f"{path} is not a valid UTF-8 text file",
        "save it again as UTF-8",
        "name its encoding, as in {encoding}",
        encoding="latin-1",
    )
