"""CSV and other lines of cells."""

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from math import isclose, isfinite
from typing import Any

from fedpca._util.option_text import advice
from fedpca._util.text import pluralize
from fedpca.errors import FileFormatError
from fedpca.readers.conventions import Conventions
from fedpca.readers.data_file import NonNumeric, ReadRequest, Source, translate_errors
from fedpca.readers.dialect import Dialect, are_aligned, is_like_a_number, other_delimiter
from fedpca.readers.private_lines import PrivateLines, header_line, require_ascii
from fedpca.readers.tables import TableFile, non_numeric, number_after, pyarrow
from fedpca.readers.text_stream import (
    TEXT_BLOCK,
    BlockFile,
    as_file,
    encoding_error,
    first_lines,
    open_bytes,
    open_text,
    read_blocks,
    require_line_feeds,
    require_short,
)

_YEARS = (1500, 2500)  # that four digits of a name may be
_YEARS_IN_ORDER = 3  # so many years of a header are in order; those of a person may be, too
_IN_ORDER = 8  # so many numbers are in order by chance in 2 of 8! lines, one of 20,000
_NOTHING_FOLLOWS = ("Empty CSV file", "Could not skip initial")  # what pyarrow reports of a header alone


class TextFile(TableFile):
    """Lines of cells.

    Args:
        path: the file.
        delimiters: those that may be between cells, the usual one first.
        header: whether the first line contains the names; for None, if there is no number in it.
        dialect: how cells are written, as far as it is given.
        private: whether nothing may be found in the rows; a cell that is not a number is missing then, and
            so are all of a line that cannot be parsed.
        width: the number of cells of a private row, where there is no header.
        private_rows: the number of private rows; None for that of the lines.
    """

    def __init__(
        self,
        path: Source,
        delimiters: str,
        header: bool | None,
        dialect: Dialect,
        private: bool,
        width: int | None,
        private_rows: int | None,
    ) -> None:
        self.path, self._private, self._private_rows = path, private, private_rows
        following: list[str] = []
        if width is not None and header is None:
            header = False  # that is what it says
        if private:
            require_ascii(path, dialect.encoding or "utf-8")
            cells = self._private_start(dialect, delimiters, header, width)
        else:
            cells, following = self._start(dialect, delimiters)
        self._starts_with_hash = cells[0].startswith("#")
        if header is None:
            header = are_names(path, cells, following, self._dialect, private)
        self._header = header
        self._columns = tuple(cells) if header else numbered(len(cells))
        self._whole: list[str] = []  # columns of whole numbers
        self._parsed_here: set[str] = set()  # columns of numbers that pyarrow does not parse
        types = dict.fromkeys(self._columns, pyarrow("pyarrow").float64()) if private else self._infer()
        self._describe(path, self._columns if self._header else None, types, private=private)
        self.non_numeric = {**self.non_numeric, **self._examine_text()}
        if len(cells) == 1 and (header if private else self.non_numeric):
            self._require_no_other_delimiter()

    def _start(self, dialect: Dialect, delimiters: str) -> tuple[list[str], list[str]]:
        """The cells of the first two lines, which show how cells are written."""
        start, is_whole = first_lines(self.path, dialect)
        require_line_feeds(self.path, start)
        self._look_at = start if is_whole else start[: start.rfind("\n") + 1] or start
        self._dialect = dialect.found_in(self._look_at, delimiters, only_first_line=False)
        if dialect.delimiter is None and self._dialect.delimiter == " ":
            self._require_not_aligned()
        lines = csv.reader(io.StringIO(start), delimiter=self._dialect.delimiter or ",")
        with translate_errors(self.path, "text file"):
            cells = next(filter(None, lines), [])
        self._first_lines = lines.line_num
        following = []
        with suppress(csv.Error):  # what it is shows later
            following = next(filter(None, lines), [])
        try:
            "".join(cells).encode()  # what comes later may be cut inside a letter; names must be whole
        except UnicodeError:
            raise encoding_error(self.path) from None
        first = start.split("\n")[: self._first_lines + 1]
        self._longest = max(len(line.encode(errors="surrogateescape")) for line in first)
        require_short(self.path, self._longest)
        if not cells:
            raise FileFormatError(f"{self.path} contains no rows.")
        return cells, following

    def _private_start(
        self, dialect: Dialect, delimiters: str, header: bool | None, width: int | None
    ) -> list[str]:
        """The cells of the header; empty ones where the caller tells how many a row has."""
        if header is False:
            if width is None:
                raise FileFormatError(
                    f"{self.path}: rows without a header do not tell how many cells they have, because one "
                    "private row could decide it",
                    f"pass {advice('width')}",
                )
            self._look_at, self._first_lines = "", dialect.skip_lines
            self._dialect = dialect.found_in("", delimiters, only_first_line=True)
            return [""] * width
        if width is not None:
            raise ValueError("width is for private rows without a header; leave it out.")
        self._look_at, self._first_lines = header_line(self.path, dialect)
        self._dialect = dialect.found_in(self._look_at, delimiters, only_first_line=True)
        if self._look_at.count('"') % 2:
            raise FileFormatError(
                f"{self.path}: private text must have all names in one line, but a quote in it is open; "
                "rename the columns."
            )
        with translate_errors(self.path, "text file"):
            return next(csv.reader([self._look_at], delimiter=self._dialect.delimiter or ","))

    def first_row(self) -> int:
        """The number of lines up to the names."""
        return self._dialect.skip_lines + self._first_lines

    def _infer(self) -> dict[str, Any]:
        """The types of columns, from the first block."""
        pa = pyarrow("pyarrow")
        with self._errors(), self._open({}) as batches:
            inferred = batches.schema
        types = {}
        for name, kind in zip(inferred.names, inferred.types, strict=True):
            if pa.types.is_integer(kind):
                self._whole.append(name)
            types[name] = pa.float64() if non_numeric(kind) is None and kind != pa.bool_() else kind
        for name, cells in self._text_cells([n for n, kind in types.items() if kind == pa.string()]):
            if None not in map(self._dialect.number, self._filled(cells)):  # pyarrow knows no padding
                types[name] = pa.float64()
                self._parsed_here.add(name)
        return types

    def _integers(self) -> Collection[str]:
        return self._whole

    def _text_cells(self, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """The first cells of columns, as they are written."""
        if names:
            with self._open(dict.fromkeys(names, pyarrow("pyarrow").string()), names) as batches:
                first = batches.read_next_batch()
            for name in names:
                yield name, first.column(name).to_pylist()

    def _filled(self, cells: Sequence[str]) -> list[str]:
        """Those that are not missing."""
        gaps = set(self._dialect.gaps)
        return [cell for cell in cells if cell.strip() not in gaps]

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        # What is a number in the first block must be one in all; passthrough columns stay as written.
        pa = pyarrow("pyarrow")
        features = [name for name in columns if name not in request.passthrough]
        numbers = [name for name in features if self._types[name] == pa.float64()]
        everywhere = self._private or self._dialect.thousands
        as_text = [name for name in numbers if everywhere or name in self._parsed_here]
        types = {name: self._types[name] for name in features} | dict.fromkeys(
            [*as_text, *request.passthrough], pa.string()
        )
        read = [0]
        with self._errors(read), self._open(types, columns) as batches:
            for batch in batches:
                for name in as_text:
                    batch = _with_column(batch, name, self._parsed(batch.column(name), name, read[0]))
                for name in numbers if self._dialect.codes else ():
                    batch = _with_column(batch, name, _without(batch.column(name), self._dialect.codes))
                read[0] += batch.num_rows
                yield batch

    @contextmanager
    def _open(self, types: Mapping[str, Any], columns: Sequence[str] = ()) -> Iterator[Any]:
        pa, pc = pyarrow("pyarrow"), pyarrow("pyarrow.csv")
        dialect, delimiter = self._dialect, self._dialect.delimiter or ","
        with ExitStack() as stack:
            if self._private:
                lines = PrivateLines(
                    dialect.encoding or "utf-8", dialect.comment, delimiter, len(self._columns)
                )
                stream = stack.enter_context(open_bytes(self.path))
                text = as_file(lines.rows(read_blocks(stream), self._first_lines))
                skip, block = 0, 4 * lines.max_bytes
            else:
                text = stack.enter_context(open_text(self.path, dialect))
                skip = self._first_lines if self._header else 0
                block = max(TEXT_BLOCK, 4 * self._longest)
            # In one thread pyarrow knows the number of a bad line, and is no slower.
            read = pc.ReadOptions(
                use_threads=False, block_size=block, skip_rows=skip, column_names=self._columns
            )
            parse = pc.ParseOptions(delimiter=delimiter, newlines_in_values=not self._private)
            convert = pc.ConvertOptions(
                column_types=types,
                include_columns=columns,
                decimal_point=dialect.decimal,
                null_values=dialect.gaps,
            )
            try:
                batches = stack.enter_context(pc.open_csv(text, read, parse, convert))
            except pa.ArrowInvalid as error:
                if not any(report in str(error) for report in _NOTHING_FOLLOWS):
                    raise
                # Nothing follows the header: a table without rows, as with one line end more.
                schema = pa.schema([(name, types.get(name, pa.null())) for name in columns or self._columns])
                batches = pa.RecordBatchReader.from_batches(schema, [])
            yield batches

    def _parsed(self, cells: Any, name: str, done: int) -> Any:
        """Numbers from text, which pyarrow.csv itself does not read; `done` rows are before them."""
        pa, compute, dialect = pyarrow("pyarrow"), pyarrow("pyarrow.compute"), self._dialect
        cells = _without(compute.utf8_trim_whitespace(cells), dialect.gaps)
        plain = cells
        if dialect.thousands:
            grouped = compute.match_substring_regex(cells, dialect.grouped)
            joined = compute.replace_substring_regex(cells, dialect.separator, "")
            plain = compute.if_else(grouped, joined, cells)
        if dialect.decimal != ".":
            plain = compute.replace_substring(
                compute.replace_substring(plain, ".", "!"), dialect.decimal, "."
            )
        try:
            return plain.cast(pa.float64())
        except pa.ArrowInvalid:
            pass  # its message quotes the cell
        raw = cells.to_pylist()
        numbers = [None if cell is None else lenient_number(dialect, cell) for cell in raw]
        if not self._private:
            for i, (cell, number) in enumerate(zip(raw, numbers, strict=True), 1):
                if cell is not None and number is None:
                    raise self._bad_cell(f"{self.path}, line {self._line(done + i)}", name, "a number")
        return pa.array(numbers, pa.float64())

    def place(self, row: int) -> str:
        return f"{self.path}, line {self._line(row)}"

    def _line(self, row: int) -> int:
        """The number of the line on which a row starts; the first row is 1."""
        left = row + self._header
        with open_text(self.path, self._dialect) as text:
            buffered = io.BufferedReader(BlockFile(read_blocks(text)))
            decoded = io.TextIOWrapper(buffered, "utf-8", "replace", newline="")
            lines = csv.reader(decoded, delimiter=self._dialect.delimiter or ",")
            start = 0
            with suppress(csv.Error):  # of a cell without end
                for cells in lines:
                    left -= bool(cells)
                    if not left:
                        break
                    start = lines.line_num
        return self._dialect.skip_lines + start + 1

    def _examine_text(self) -> dict[str, NonNumeric]:
        """What columns of text contain, from which line on: text, or numbers in most of their cells."""
        pa = pyarrow("pyarrow")
        text = [name for name, kind in self.non_numeric.items() if kind.contains == "text"]
        binary = [name for name in text if pa.types.is_binary(self._types[name])]
        found = dict.fromkeys(binary, NonNumeric("text that is not UTF-8"))
        with self._errors():
            for name, cells in self._text_cells([name for name in text if name not in found]):
                found[name] = self._examined(cells)
        return found

    def _examined(self, cells: Sequence[str]) -> NonNumeric:
        number, gaps = self._dialect.number, {*self._dialect.gaps}
        bad = [cell.strip() not in gaps and number(cell) is None for cell in cells]
        line = self._line(bad.index(True) + 1) if any(bad) else 0
        found = Conventions(self._dialect)
        found.add(self._filled(cells))
        return found.reason(f"line {line}") or NonNumeric(f"text from line {line}" if line else "text")

    def _require_no_other_delimiter(self) -> None:
        """Reject one column that is several, divided by something else."""
        self._require_not_aligned()
        if other := other_delimiter(self._look_at, only_first_line=self._private):
            mine = self._dialect.delimiter
            raise FileFormatError(
                f"{self.path}: the delimiter must be in the first line, and {mine!r} is not",
                f"pass {advice('delimiter', other)} if that divides the cells",
            )

    def _require_not_aligned(self) -> None:
        """Reject cells that are divided by as many blanks as align them."""
        if are_aligned(self._look_at):
            raise FileFormatError(
                f"{self.path}: one character must divide cells, and these are aligned by several blanks",
                "write commas instead, as with awk -v OFS=, '{$1=$1}1'",
                f"pass {advice('delimiter', ' ')} if every blank divides two cells",
            )

    def _bad_cell(self, where: str, name: str, kind: str) -> FileFormatError:
        if kind == "a number":
            remedy = f"list what stands for a missing value with {advice('na_values')}"
        else:
            remedy = f"name the encoding of the file, as in {advice('encoding', 'latin-1')}"
        return FileFormatError(
            f"{where}: {name} must be {kind}",
            "correct or empty the cell",
            remedy,
            *([f"leave the column out with {advice('drop', [name])}"] if self._header else []),
        )

    @contextmanager
    def _errors(self, read: Sequence[int] = (0,)) -> Iterator[None]:
        """What pyarrow reports of a line, without the data it quotes; `read` rows are before its block."""
        try:
            with translate_errors(self.path, "table of numbers"):
                yield
        except FileFormatError as error:
            if error.__cause__ is None:  # written here
                raise
            report = str(error.__cause__)
        else:
            return
        if "codec can't decode" in report:
            raise FileFormatError(
                f"{self.path} must be text in {self._dialect.encoding}",
                f"name its encoding, as in {advice('encoding', 'latin-1')}",
            ) from None
        where, above, row = f"{self.path}", 0, 0
        if line := number_after("Row #", report):  # pyarrow does not count empty lines
            row = int(line) - (self._first_lines if self._header else 0)
            above = self._line(row) - 1
            where += f", line {above + 1}"
        if column := number_after("In CSV column #", report):
            name = self._columns[int(column)]
            kind = "text in UTF-8" if "UTF8" in report else "a number"
            raise self._bad_cell(where, name, kind) from None
        if found := number_after("columns, got ", report):
            remedies = ["correct the line"]
            if self._starts_with_hash:
                remedies.append(f"pass {advice('comment', '#')} if lines that start so are comments")
            elif 1 in (len(self._columns), row):  # as of a title, and seldom of a table
                remedies.append(f"pass {advice('skip_lines', above)} if the lines above are a title")
            expected = pluralize(float(number_after("Expected ", report)), "cell")
            problem = f"{where}: expected {expected}, got {found}"
            raise FileFormatError(problem, *remedies) from None
        raise FileFormatError(
            f"{where}, after line {self._line(read[0])}: cannot be parsed; look for an open quote or a line "
            "without end."
        ) from None


def _with_column(batch: Any, name: str, column: Any) -> Any:
    pa = pyarrow("pyarrow")
    columns = [column if each == name else batch.column(each) for each in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _without(column: Any, values: Sequence[Any]) -> Any:
    """A column with nulls for some values."""
    pa, compute = pyarrow("pyarrow"), pyarrow("pyarrow.compute")
    found = compute.is_in(column, value_set=pa.array(values, column.type))
    return compute.if_else(found, pa.scalar(None, column.type), column)


def lenient_number(dialect: Dialect, cell: str) -> float | None:
    """The value of a cell, which may be true or false; None if it is no number."""
    return {"true": 1.0, "false": 0.0}.get(cell.lower(), dialect.number(cell))


def numbered(n_columns: int) -> tuple[str, ...]:
    """What columns without names are called, if they must be."""
    return tuple(f"column {i + 1}" for i in range(n_columns))


def have_no_numbers(cells: Sequence[str], dialect: Dialect) -> bool:
    """Whether cells may be names: none is a number, and not all are missing."""
    filled = [cell for cell in cells if cell.strip() not in dialect.gaps]
    return bool(filled) and not any(is_like_a_number(cell) for cell in filled)


def are_names(
    path: Source, cells: Sequence[str], following: Sequence[str], dialect: Dialect, private: bool
) -> bool:
    """Whether the cells of the first line are names; an error if that is not clear."""
    if have_no_numbers(cells, dialect):
        return True
    if private:
        raise FileFormatError(
            f"{path}: the first line must contain names only, because nothing is detected from private rows",
            "name the columns",
            f"pass {advice('header', True)} if these are names",
            f"pass {advice('width')} if there are none",
        )
    first = _finite_numbers(cells, dialect)
    second = _finite_numbers(following, dialect)
    if _may_be_names([*first.values()], [second[i] for i in first if i in second]):
        raise FileFormatError(
            f"{path}: the first line counts up or down, or contains years: it may contain names or numbers",
            "name the columns",
            f"pass {advice('header')}",
        )
    return False


def _finite_numbers(cells: Sequence[str], dialect: Dialect) -> dict[int, float]:
    """The values of the cells that are numbers, by column."""
    numbers = {i: dialect.number(cell) for i, cell in enumerate(cells) if cell.strip() not in dialect.gaps}
    return {i: number for i, number in numbers.items() if number is not None and isfinite(number)}


def _may_be_names(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether numbers of a first line may be names: they count columns, or are what those below are not."""
    if [*first] in ([*range(len(first))], [*range(1, len(first) + 1)]):
        return len(first) >= 3 or (len(first) == 2 and any(value % 1 != 0 for value in second))
    return bool(_likeness(first) - _likeness(second))


def _likeness(values: Sequence[float]) -> set[str]:
    """What names of columns have and rows seldom: different years, equal steps, an order."""
    if len(values) < 2:
        return set()
    steps = [after - before for before, after in pairwise(values)]
    years = all(value == int(value) and _YEARS[0] <= value <= _YEARS[1] for value in values)
    in_order = min(steps) > 0 or max(steps) < 0
    found = {
        "years": years and len(set(values)) == len(values),
        "equal steps": len(steps) > 1
        and steps[0] != 0
        and all(isclose(step, steps[0], rel_tol=1e-6) for step in steps),
        "order": in_order and len(values) >= (_YEARS_IN_ORDER if years else _IN_ORDER),
    }
    return {name for name, is_so in found.items() if is_so}
