"""Lines of private text, each of which becomes one row, whatever it contains.

A line that cannot be parsed must neither stop a private fit nor change how the next lines are read, because
whether that happens would show that a record has one.
"""

import re
from collections import Counter
from functools import cached_property

import numpy as np

from fedpca.readers.text_stream import TEXT_BLOCK, Blocks, whole_lines

_LINES_COUNTED = 50
_BYTES_PER_CELL = 64
_MAX_SPAN = 1000  # lines of a row
_QUOTED = rb'"(?:[^"]|"")*+"'


class PrivateLines:
    """How lines of private text become rows.

    A line that has another number of cells, an open quote, or is empty or too long becomes a row of missing
    values. A quoted cell may span lines, provided that none of them is a row of its own.

    Args:
        delimiter: between cells.
        n_cells: the number of cells of a row.

    Attributes:
        max_bytes: of a row; longer lines are rows of missing values.

    >>> lines = PrivateLines(",", 2)
    >>> b"".join(lines.rows(iter([b'x,y\\n1,2\\n1,2,3\\n', b'"1,2\\n\\n"3\\n4",2\\n5,6']), skip=1))
    b'1,2\\nNA,\\nNA,\\nNA,\\n"3\\n4",2\\n5,6\\n'
    """

    def __init__(self, delimiter: str, n_cells: int) -> None:
        self._delimiter, self._n_cells = delimiter.encode(), n_cells
        self._missing = b"NA" + self._delimiter * (n_cells - 1)
        self.max_bytes = max(TEXT_BLOCK // 4, _BYTES_PER_CELL * n_cells)

    def rows(self, blocks: Blocks, skip: int) -> Blocks:
        """Blocks of lines, after the first `skip`, as blocks of rows."""
        held: list[bytes] = []  # lines from one with an open quote on
        for block in _after(whole_lines(blocks, self.max_bytes), skip):
            block = block.replace(b"\r\n", b"\n")
            block = block if block.endswith(b"\n") else block + b"\n"
            if held or b'"' in block or b"\r" in block:
                rows = [row for line in block[:-1].split(b"\n") for row in self._next(held, line)]
                if rows:
                    yield b"\n".join([*rows, b""])
            else:
                yield self._plain_rows(block)
        if held:
            yield b"\n".join([*self._give_up(held), b""])

    def _plain_rows(self, block: bytes) -> bytes:
        """Of lines without quotes."""
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

    def _next(self, held: list[bytes], line: bytes) -> list[bytes]:
        """The rows that are complete after one more line."""
        rows = []
        if held:
            if self._is_row(line):
                return [*self._give_up(held), line]
            if len(held) == _MAX_SPAN or sum(map(len, held)) + len(line) > self.max_bytes:
                rows = self._give_up(held)
            elif line.count(b'"') % 2 == 0:  # the quote stays open
                held.append(line)
                return []
            elif self._quoted.fullmatch(joined := b"\n".join([*held, line])):
                held.clear()
                return [joined]
            else:
                rows = self._give_up(held)
        if len(line) <= self.max_bytes and line and self._lenient.fullmatch(line):
            return [*rows, line]
        if self._open.fullmatch(line):
            held.append(line)
            return rows
        return [*rows, self._missing]

    def _give_up(self, held: list[bytes]) -> list[bytes]:
        rows = [self._missing] * len(held)
        held.clear()
        return rows

    def _is_row(self, line: bytes) -> bool:
        return 0 < len(line) <= self.max_bytes and bool(self._quoted.fullmatch(line))

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        """A row in which quotes are around cells only."""
        return self._row(_QUOTED, rb'[^"\r\n%b]*+' % re.escape(self._delimiter))

    @cached_property
    def _lenient(self) -> re.Pattern[bytes]:
        """A row as pyarrow reads it: a quote inside of a cell is part of it."""
        rest = rb"[^\r\n%b]*+" % re.escape(self._delimiter)
        return self._row(_QUOTED + rest, rb'(?!")' + rest)

    def _row(self, quoted: bytes, plain: bytes) -> re.Pattern[bytes]:
        cell, delimiter = rb"(?:%b|%b)" % (quoted, plain), re.escape(self._delimiter)
        return re.compile(rb"%b(?:%b%b){%d}" % (cell, delimiter, cell, self._n_cells - 1))

    @cached_property
    def _open(self) -> re.Pattern[bytes]:
        """A line that ends inside of a quoted cell."""
        delimiter = re.escape(self._delimiter)
        cell = rb'(?:%b|[^"\r\n%b]*+)' % (_QUOTED, delimiter)
        return re.compile(rb'(?:%b%b)*+"(?:[^"]|"")*+' % (cell, delimiter))


def usual_width(text: str, delimiter: str) -> int:
    """The number of cells that most of the first lines have, so that no one decides it; 0 without lines."""
    lines = [line for line in text.split("\n") if line.strip()][:_LINES_COUNTED]
    unquoted = (re.sub(_QUOTED.decode(), "", line) for line in lines)
    ((width, _),) = Counter(line.count(delimiter) + 1 for line in unquoted).most_common(1) or [(0, 0)]
    return width


def _after(blocks: Blocks, n_lines: int) -> Blocks:
    for block in blocks:
        while n_lines and block:
            block = block[block.find(b"\n") + 1 or len(block) :]
            n_lines -= 1
        if block:
            yield block
