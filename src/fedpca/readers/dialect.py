"""How the cells of a text file are written: as given, or as found in its first lines."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fedpca._util.extras import require
from fedpca.summaries import validation

DELIMITERS = {"csv": ",;\t|", "tsv": "\t", "txt": "\t,;| "}  # by format; the first is the default
_LINES_LOOKED_AT = 50
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_GROUPS_OF_THREE = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+")
_DECIMAL_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+([eE][+-]?[0-9]+)?")
# What pandas writes, and cells of blanks, which programs pad to the width of a column: 32 is more than any
# number has.
_MORE_GAPS = ("None", "<NA>", *(" " * width for width in range(1, 33)))
_ALIKE = {" ": " \u00a0\u202f", "'": "'\u2019"}  # thousands separators of which one stands for all
_IN_CELLS = "\"'.+-_()[]%$"  # common in names or numbers
_LIKE_A_NUMBER = re.compile(r"[+-]?[0-9][0-9.,' ]*")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The conventions of a text file; None where they are to be found.

    Attributes:
        delimiter: between cells.
        decimal: between the whole and the fractional part of a number.
        thousands: between groups of three digits.
        na_values: cells that stand for a missing value, besides an empty cell, NA, null and NaN.
        comment: starts a line that is ignored.
        encoding: of the bytes; UTF-8 if None, or UTF-16 if the file starts with its mark.
        skip_lines: how many lines are above the header, or the first row.
    """

    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    na_values: tuple[str, ...] = ()
    comment: str | None = None
    encoding: str | None = None
    skip_lines: int = 0

    def __post_init__(self) -> None:
        for name in ("delimiter", "decimal", "thousands"):
            value = getattr(self, name)
            may_be_any = name == "thousands"  # pyarrow knows no others
            if value is not None and (
                len(value) != 1 or not (value.isascii() or may_be_any) or value in '\n\r"' or value.isalnum()
            ):
                raise ValueError(f"{name} must be one character, such as {_EXAMPLES[name]!r}, got {value!r}.")
        if self.decimal is not None and self.decimal in (self.delimiter, self.thousands):
            other = "delimiter" if self.decimal == self.delimiter else "thousands"
            raise ValueError(f"decimal and {other} must differ, got {self.decimal!r} for both.")
        if self.comment is not None and (not self.comment.strip() or "\n" in self.comment):
            raise ValueError(f"comment must be the start of a line, such as '#', got {self.comment!r}.")
        validation.integer(self.skip_lines, "skip_lines", at_least=0)
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)
            except LookupError:
                raise ValueError(
                    f"encoding must be one that Python knows, such as 'latin-1', got {self.encoding!r}."
                ) from None

    @property
    def given(self) -> list[str]:
        """The names of what is not to be found."""
        return [name for name in self.__slots__ if getattr(self, name)]

    @property
    def gaps(self) -> list[str]:
        """Cells that stand for a missing value."""
        known = require("pyarrow.csv", extra="files", purpose="reading text").ConvertOptions().null_values
        return [*known, *_MORE_GAPS, *self.na_values]

    @property
    def codes(self) -> list[float]:
        """Numbers that stand for a missing value, however they are written."""
        numbers = [self.number(value) for value in self.na_values]
        return [number for number in numbers if number is not None and not math.isnan(number)]

    def plain(self, cell: str) -> str:
        """A number as Python writes it; other cells are still no numbers."""
        cell = cell.strip()
        if self.thousands and re.fullmatch(self.grouped, cell):
            cell = re.sub(self.separator, "", cell)
        if self.decimal not in (None, "."):
            cell = cell.replace(".", "!").replace(self.decimal or "", ".")
        return cell

    @property
    def grouped(self) -> str:
        """A pattern of numbers with thousands separators; 0,280 is none."""
        decimal = re.escape(self.decimal or ".")
        return rf"^[+-]?[1-9][0-9]{{0,2}}({self.separator}[0-9]{{3}})+({decimal}[0-9]*)?$"

    @property
    def separator(self) -> str:
        """A pattern of thousands separators: a space may be one that does not break, an apostrophe curly."""
        return f"[{re.escape(_ALIKE.get(self.thousands or '', self.thousands or ''))}]"

    def read_as(self, convention: Mapping[str, str]) -> "Dialect | None":
        """With another decimal point or thousands separator; None if that is no other, or cannot be."""
        try:
            other = replace(self, **convention)  # type: ignore[arg-type]
        except ValueError:
            return None
        return other if other != self else None

    def number(self, cell: str) -> float | None:
        """The value of a cell; None if it is no number."""
        plain = self.plain(cell)
        try:
            return None if "_" in plain else float(plain)
        except ValueError:
            return None

    def found_in(self, text: str, delimiters: str, only_first_line: bool) -> "Dialect":
        """With the delimiter and the decimal point of a text, as far as they are not given."""
        n_lines = 1 if only_first_line else _LINES_LOOKED_AT
        delimiter = self.delimiter
        if delimiter is None:
            candidates = [each for each in delimiters if each != self.decimal] or [";"]
            tables = {each: _records(text, each, n_lines) for each in candidates}
            delimiter = max(candidates, key=lambda each: _likelihood(tables[each], each))
        decimal = self.decimal
        if decimal is None:
            cells = [] if only_first_line or delimiter == "," else _records(text, delimiter, n_lines)
            decimal = "," if _has_decimal_commas([cell for line in cells for cell in line]) else "."
        return replace(
            self, delimiter=delimiter, decimal="." if decimal in (delimiter, self.thousands) else decimal
        )


_EXAMPLES = {"delimiter": ";", "decimal": ",", "thousands": ","}


def other_delimiter(text: str, only_first_line: bool) -> str | None:
    """A character, whichever it is, that divides all of the first lines evenly; None if there is none.

    Names have spaces, too: one line alone does not show whether these divide it.

    >>> other_delimiter("width:depth\\n1.5:2\\n", only_first_line=False)
    ':'
    """
    n_lines = 1 if only_first_line else _LINES_LOOKED_AT
    first = next(iter(text.strip().splitlines()), "")
    found = {
        each: _likelihood(_records(text, each, n_lines), each)
        for each in dict.fromkeys(first)
        if each.isascii() and not each.isalnum() and each not in _IN_CELLS + " " * only_first_line
    }
    best = max(found, key=lambda each: found[each], default=None)
    return best if best is not None and found[best][0] else None


def are_aligned(text: str) -> bool:
    """Whether all of the first lines have as many words, divided by several blanks somewhere.

    >>> are_aligned("width   depth\\n  1.5       2\\n"), are_aligned("width,gross  depth\\n1.5,2\\n")
    (True, False)
    """
    lines = [line.strip(" ") for line in text.splitlines()[:_LINES_LOOKED_AT] if line.strip()]
    words = {len(line.split()) for line in lines}
    return len(words) == 1 and words.pop() > 1 and any("  " in line for line in lines)


def _records(text: str, delimiter: str, n_lines: int) -> list[list[str]]:
    lines = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        return list(islice(filter(None, lines), n_lines))
    except csv.Error:  # a cell without end
        return []


def _likelihood(lines: Sequence[Sequence[str]], delimiter: str) -> tuple[bool, bool, int]:
    """Whether all lines have as many cells as the first; whether commas are in numbers; how many cells.

    The number is 0 for one, or if most lines have not as many. Commas in numbers would divide lines, too.
    """
    widths = [len(line) for line in lines] or [0]
    agree = widths.count(widths[0])
    if widths[0] < 2 or 2 * agree <= len(widths):
        return False, False, 0
    decimal = delimiter != "," and _has_decimal_commas([cell for line in lines for cell in line])
    return agree == len(widths), decimal, widths[0]


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether commas can be nothing else: 1,234 may be a whole number."""
    cells = [cell.strip() for cell in cells]
    commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
    clear = any(not _GROUPS_OF_THREE.fullmatch(cell) for cell in commas)
    return clear and not any(_DECIMAL_POINT.fullmatch(cell) for cell in cells)


def is_like_a_number(cell: str) -> bool:
    """Whether a cell of the first line is a number in some dialect, and so no name."""
    return Dialect().number(cell) is not None or bool(_LIKE_A_NUMBER.fullmatch(cell.strip()))
