"""Excel files: one sheet, whose first row that is not empty may contain names."""

import datetime
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca._util.option_text import advice
from fedpca._util.text import join_names
from fedpca.errors import FileFormatError
from fedpca.readers.conventions import OR_MISSING, Conventions
from fedpca.readers.data_file import NonNumeric, ReadRequest, translate_errors
from fedpca.readers.dialect import Dialect
from fedpca.readers.tables import TableFile, pyarrow, too_many_rows
from fedpca.readers.text import are_names, have_no_numbers, lenient_number, numbered

_DATES = (datetime.date, datetime.time, datetime.timedelta)


class ExcelFile(TableFile):
    """The table in one sheet of an .xlsx file; the sheet is in memory while it is read.

    Args:
        path: the file.
        sheet: its name; the first one for None.
        header: as of a `TextFile`.
        dialect: how numbers are written that are stored as text, and which values are missing.
        private: as of a `TextFile`. Columns are those that the header names.
    """

    def __init__(
        self,
        path: Path,
        sheet: str | None,
        header: bool | None,
        dialect: Dialect,
        private: bool,
        private_rows: int | None,
    ) -> None:
        self.path, self._private, self._dialect = path, private, dialect
        self._private_rows = private_rows
        if private and private_rows is None:
            raise FileFormatError(
                f"{path}: a sheet does not tell how many private rows it has, because an empty last one "
                "leaves no trace",
                f"pass {advice('n_rows')}",
            )
        self._others: list[str] = []  # sheets that may be meant
        self._sheet = self._find(sheet)
        self._gaps, self._codes = {"", *dialect.gaps}, set(dialect.codes)
        self._first, cells = next(self._filled_rows(), (0, []))
        if not cells:
            other = self.other_tables()
            problem = f"{path}: its first sheet contains no rows" if other else f"{path} contains no rows."
            raise FileFormatError(problem, *other)
        filled = [i for i, cell in enumerate(cells) if cell != ""]
        named = slice(filled[0], filled[-1] + 1)
        names = tuple(_text(cell) or "" for cell in cells[named])
        if header is None:
            if private:
                header = have_no_numbers(names, dialect)
            else:
                following = [_text(cell) or "" for cell in next(self._filled_rows(self._first), (0, []))[1]]
                header = are_names(path, names, following, dialect, False)
        if private and not header:
            raise FileFormatError(
                f"{path}: the first row must contain names, because nothing is detected from private rows",
                "name the columns",
                f"pass {advice('header', True)} if it does",
            )
        self._first += header
        self._span = named if header else slice(0, len(cells))
        columns = names if header else numbered(len(cells))
        self._places = {name: i for i, name in enumerate(columns)}
        contents = {name: _Contents(dialect) for name in columns}
        found = self._look_at(contents)
        n_rows = found if private_rows is None else private_rows
        pa = pyarrow("pyarrow")
        reasons = {name: found.reason() for name, found in contents.items()}
        types = {name: pa.float64() if reason is None else pa.string() for name, reason in reasons.items()}
        self._whole = [name for name, found in contents.items() if found.is_whole]
        self._describe(path, columns if header else None, types, n_rows, private)
        self.non_numeric = {name: reason for name, reason in reasons.items() if reason is not None}

    def _look_at(self, contents: Mapping[str, "_Contents"]) -> int:
        """Collect what columns contain, unless it is private; returns the number of rows."""
        n_rows = 0
        for number, row in self._table_rows():
            n_rows += 1
            for name, found in () if self._private else contents.items():
                cell = row[self._places[name]]
                found.add(number, cell, self._number(cell))
        return n_rows

    def _integers(self) -> Collection[str]:
        return self._whole

    def _find(self, sheet: str | None) -> str:
        """The name of the sheet to read."""
        cells = _calamine().SheetTypeEnum.WorkSheet  # and not a chart
        with translate_errors(self.path, "Excel file"):
            sheets = [each.name for each in self._workbook().sheets_metadata if each.typ == cells]
        if not sheets:
            raise FileFormatError(f"{self.path} contains no sheets of cells.")
        if sheet is not None and sheet not in sheets:
            raise FileFormatError(f"{self.path} has no sheet {sheet!r}; it has {join_names(sheets)}.")
        if sheet is None:
            sheet, *self._others = sheets
        return sheet

    def other_tables(self) -> list[str]:
        if not self._others:
            return []
        return [f"read another sheet ({join_names(self._others)}) with {advice('sheet', self._others[0])}"]

    def place(self, row: int) -> str:
        number = next(islice((number for number, _ in self._table_rows()), row - 1, None))
        return f"{self.path}, row {number}"

    def first_row(self) -> int:
        """The number of rows of the sheet up to the names."""
        return self._first - 1

    def _workbook(self) -> Any:
        return _calamine().CalamineWorkbook.from_path(self.path)

    def _all_rows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows of the sheet with their numbers, from 1."""
        with translate_errors(self.path, "Excel file"):
            yield from enumerate(self._workbook().get_sheet_by_name(self._sheet).iter_rows(), 1)

    def _filled_rows(self, after: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """The rows that are not empty, after those to skip and the first ones."""
        first = max(after, self._dialect.skip_lines)
        rows = (each for each in self._all_rows() if each[0] > first)
        return ((number, row) for number, row in rows if any(cell != "" for cell in row))

    def _table_rows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows of the table. Empty ones are skipped, unless they are private."""
        first = True
        for number, row in self._all_rows() if self._private else self._filled_rows():
            if number < self._first:
                continue
            if self._private_rows is not None and number >= self._first + self._private_rows:
                if any(cell != "" for cell in row):
                    raise too_many_rows(self.path, self._private_rows)
                continue
            inside = row[self._span]
            if not self._private and len(inside) < len(row):
                outside = [*row[: self._span.start], *row[self._span.stop :]]
                if any(cell != "" for cell in outside):
                    title = f"pass {advice('skip_lines', number - 1)} if the rows above are a title"
                    raise FileFormatError(
                        f"{self.path}, row {number}: cells must be below a name",
                        "correct the row",
                        *([title] if first else []),
                        *self.other_tables(),
                    )
            first = False
            yield number, inside

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        pa = pyarrow("pyarrow")
        rows = islice((row for _, row in self._table_rows()), request.skip, None)
        while block := list(islice(rows, request.batch_rows)):
            arrays = []
            for name in columns:
                cells = [row[self._places[name]] for row in block]
                if name in request.passthrough:
                    arrays.append(pa.array([_text(cell) for cell in cells], pa.string()))
                else:
                    arrays.append(pa.array(self._numbers(cells)))
            yield pa.RecordBatch.from_arrays(arrays, columns)

    def _numbers(self, cells: Sequence[Any]) -> NDArray[Any]:
        return np.array([self._number(cell) for cell in cells], float)  # None is NaN

    def _number(self, cell: Any) -> float | None:
        """The value of a cell, NaN if it is missing; None if it is no number."""
        if isinstance(cell, str):
            text = cell.strip()
            if text in self._gaps:
                return np.nan
            number = lenient_number(self._dialect, text)
        elif isinstance(cell, _DATES):
            return None
        else:
            number = float(cell)
        return np.nan if number in self._codes else number


class _Contents:
    """What a column contains, cell by cell.

    Attributes:
        is_whole: whether it contains whole numbers only.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.is_whole = True
        self._n_numbers = self._n_dates = self._n_texts = 0
        self._first_bad = 0  # its row
        self._conventions = Conventions(dialect)

    def add(self, row: int, cell: Any, number: float | None) -> None:
        """Add a cell with its value, None if it is no number."""
        if number is not None:
            self._n_numbers += not math.isnan(number)
            self.is_whole = self.is_whole and number.is_integer()
            return
        self.is_whole = False
        self._first_bad = self._first_bad or row
        if isinstance(cell, _DATES):
            self._n_dates += 1
        else:
            self._n_texts += 1
            self._conventions.add([cell])

    def reason(self) -> NonNumeric | None:
        """Why it cannot be a feature; None if it can."""
        if not self._first_bad:
            return None
        if not self._n_dates:
            self._conventions.add([1.0] * self._n_numbers)
            if found := self._conventions.reason(f"row {self._first_bad}"):
                return found
        what = " and ".join(["dates or times"] * bool(self._n_dates) + ["text"] * bool(self._n_texts))
        if self._n_numbers <= self._n_dates + self._n_texts:
            return NonNumeric(f"{what} from row {self._first_bad}")
        return NonNumeric(
            f"numbers and, from row {self._first_bad} on, {what}",
            f"correct or empty the cells of {{}} that are not numbers, {OR_MISSING}",
        )


def _text(cell: Any) -> str | None:
    """A cell as text; None if it is empty.

    >>> [_text(cell) for cell in ("a", 7.0, 2.5, True, datetime.date(2025, 1, 31), "")]
    ['a', '7', '2.5', 'True', '2025-01-31', None]
    """
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell) or None


def _calamine() -> Any:
    return require("python_calamine", extra="excel", purpose="reading Excel files")
