"""Lines of private text, each of which becomes one row, whatever it contains.

A line that cannot be parsed must neither stop a private fit nor change how other lines are read, because
whether that happens would show that a record has one. So a row is a function of its own line.
"""

import re

import numpy as np

from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Source, translate_errors
from fedpca.readers.dialect import Dialect
from fedpca.readers.text_stream import (
    MAX_LINE,
    TEXT_BLOCK,
    Blocks,
    after_lines,
    encoding_error,
    open_bytes,
    read_blocks,
    require_line_feeds,
    require_short,
    whole_lines,
)

_BYTES_PER_CELL = 64  # a number has at most 25, and its thousands separators and blanks have room
_ASCII = bytes(range(128))
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_QUOTED = rb'"(?:[^"\r\n]|"")*+"'


class PrivateLines:
    """How lines of private text become rows of UTF-8.

    A line that has another number of cells, an open quote, or is empty, a comment or too long becomes a row
    of missing values. No cell contains a line break. Bytes that are no text become U+FFFD.

    Args:
        encoding: of the lines.
        comment: starts a line that is ignored, if there is any.
        delimiter: between cells.
        n_cells: the number of cells of a row.

    Attributes:
        max_bytes: of a row; longer lines are rows of missing values.

    >>> lines = PrivateLines("utf-8", None, ",", 2)
    >>> b"".join(lines.rows(iter([b'x,y\\n1,2\\n1,2,3\\n', b'"1,2\\n\\n"3",4\\r\\n5,6']), skip=1))
    b'1,2\\nNA,\\nNA,\\nNA,\\n"3",4\\n5,6\\n'
    """

    def __init__(self, encoding: str, comment: str | None, delimiter: str, n_cells: int) -> None:
        self._encoding, self._comment = encoding, None if comment is None else comment.encode()
        self._delimiter, self._n_cells = delimiter.encode(), n_cells
        self._missing = b"NA" + self._delimiter * (n_cells - 1)
        self.max_bytes = max(TEXT_BLOCK // 4, _BYTES_PER_CELL * n_cells)
        rest = rb"[^\r\n%b]*+" % re.escape(self._delimiter)  # as pyarrow reads it: a quote inside is part
        cell = rb'(?:%b%b|(?!")%b)' % (_QUOTED, rest, rest)
        self._row = re.compile(rb"%b(?:%b%b){%d}" % (cell, re.escape(self._delimiter), cell, n_cells - 1))

    def rows(self, blocks: Blocks, skip: int) -> Blocks:
        """Blocks of bytes, after the first `skip` lines, as blocks of rows."""
        for block in after_lines(whole_lines(blocks, self.max_bytes), skip):
            block = block.replace(b"\r\n", b"\n")
            block = block if block.endswith(b"\n") else block + b"\n"
            if self._is_plain(block):
                yield self._plain_rows(block)
            else:
                yield b"\n".join([*map(self._row_of, block[:-1].split(b"\n")), b""])

    def _row_of(self, line: bytes) -> bytes:
        if len(line) > self.max_bytes:
            return self._missing
        text = line.decode(self._encoding, "replace").encode(errors="replace")
        if not text or not self._row.fullmatch(text):
            return self._missing
        if self._comment is not None and text.lstrip(b" \t").startswith(self._comment):
            return self._missing
        return text

    def _is_plain(self, block: bytes) -> bool:
        """Whether a row is its line, if that has the right number of cells: that is faster to tell of all."""
        if self._encoding != "utf-8" or b'"' in block or b"\r" in block:
            return False
        if self._comment is not None and self._comment in block:
            return False
        try:
            block.decode()
        except UnicodeError:
            return False
        return True

    def _plain_rows(self, block: bytes) -> bytes:
        text = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero((text == ord("\n")) | (text == ord(self._delimiter)))
        last = np.flatnonzero(text[marks] == ord("\n"))
        ends = marks[last]
        widths, lengths = np.diff(last, prepend=-1), np.diff(ends, prepend=-1) - 1
        bad = np.flatnonzero((widths != self._n_cells) | (lengths == 0) | (lengths > self.max_bytes))
        pieces, start = [], 0
        for end, length in zip(ends[bad].tolist(), lengths[bad].tolist(), strict=True):
            pieces += [block[start : end - length], self._missing]
            start = end
        return b"".join([*pieces, block[start:]]) if pieces else block


def require_ascii(path: object, encoding: str) -> None:
    """Reject an encoding, such as UTF-16, in which bytes of one record could move others."""
    try:
        extends_ascii = _ASCII.decode(encoding) == _ASCII.decode()
    except UnicodeError:
        extends_ascii = False
    if not extends_ascii:
        raise FileFormatError(
            f"{path}: private text must be in an encoding that extends ASCII, got {encoding}; "
            "save it as UTF-8."
        )


def header_line(path: Source, dialect: Dialect) -> tuple[str, int]:
    """The first line of private text that is neither empty nor a comment, and how many lines end with it.

    Nothing is read of the lines after it.
    """
    encoding, comment, number = dialect.encoding, dialect.comment, 0
    with translate_errors(path, "text file"), open_bytes(path) as stream:
        for block in whole_lines(read_blocks(stream), MAX_LINE):
            if not number and encoding is None and block[:2] in _UTF16_MARKS:
                require_ascii(path, "utf-16")
            for line in block.removesuffix(b"\n").split(b"\n"):
                number += 1
                if number <= dialect.skip_lines:
                    continue
                require_short(path, len(line))
                require_line_feeds(path, line.decode("latin-1"))
                try:
                    text = line.decode(encoding or "utf-8").removeprefix("\ufeff").removesuffix("\r")
                except UnicodeError:
                    raise encoding_error(path) from None
                if text and not (comment is not None and text.lstrip(" \t").startswith(comment)):
                    return text, number
    raise FileFormatError(f"{path} contains no rows.")
