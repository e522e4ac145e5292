"""CSV and other lines of cells."""

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from fedpca.errors import FileFormatError
from fedpca.readers.data_file import NonNumeric, ReadRequest, Source, translate_errors
from fedpca.readers.dialect import Dialect, is_like_a_number, other_delimiter
from fedpca.readers.private_lines import PrivateLines, usual_width
from fedpca.readers.tables import TableFile, non_numeric, number_after, pyarrow
from fedpca.readers.text_stream import MAX_LINE, TEXT_BLOCK, encoding_error, first_lines, open_text

_MAX_EXAMINED = 8  # columns of text in which numbers are looked for
_COMMA = {"thousands": Dialect(thousands=","), "decimal": Dialect(decimal=",")}  # what commas may be
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
    """

    def __init__(
        self, path: Source, delimiters: str, header: bool | None, dialect: Dialect, private: bool
    ) -> None:
        self.path, self._private = path, private
        first_is_row = private and header is False  # and decides nothing, then
        if first_is_row and dialect.encoding is None:
            dialect = replace(dialect, encoding="utf-8")
        start, is_whole = first_lines(path, dialect, private)
        look_at = start if is_whole else start[: start.rfind("\n") + 1] or start
        self._dialect = dialect.found_in("" if first_is_row else look_at, delimiters, only_first_line=private)
        delimiter = self._dialect.delimiter or ","
        if first_is_row:
            cells, self._first_lines, self._longest = [""] * usual_width(look_at, delimiter), 0, 0
        else:
            cells, self._first_lines, self._longest = _first_line(path, start, delimiter, private)
        if not cells:
            raise FileFormatError(f"{path} contains no rows.")
        self._starts_with_hash = cells[0].startswith("#")
        self._header = are_names(path, cells, self._dialect, private) if header is None else header
        self._columns = tuple(cells) if self._header else tuple(f"column {i + 1}" for i in range(len(cells)))
        self._whole: list[str] = []  # columns of whole numbers
        types = dict.fromkeys(self._columns, pyarrow("pyarrow").float64()) if private else self._infer()
        self._describe(path, self._columns if self._header else None, types, private=private)
        text = [name for name, kind in self.non_numeric.items() if kind.contains == "text"]
        examined = {name: self._examine_text(name) for name in text[:_MAX_EXAMINED]}
        self.non_numeric = {**self.non_numeric, **examined}
        if len(cells) == 1 and (self._header if private else self.non_numeric):
            self._require_no_other_delimiter(look_at)

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
        if self._dialect.thousands is not None:
            for name in [name for name, kind in types.items() if kind == pa.string()]:
                with self._open({name: pa.string()}, [name]) as batches:
                    if None not in map(self._dialect.number, self._filled(batches.read_next_batch())):
                        types[name] = pa.float64()
        return types

    def _integers(self) -> Collection[str]:
        return self._whole

    def _filled(self, batch: Any) -> list[str]:
        """The cells of the one column of a batch that are not missing."""
        gaps = set(self._dialect.gaps)
        return [cell for cell in batch.column(0).to_pylist() if cell.strip() not in gaps]

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        # What is a number in the first block must be one in all; passthrough columns stay as written.
        pa = pyarrow("pyarrow")
        features = [name for name in columns if name not in request.passthrough]
        numbers = [name for name in features if self._types[name] == pa.float64()]
        as_text = numbers if self._private or self._dialect.thousands else []
        types = {name: self._types[name] for name in features} | dict.fromkeys(
            [*as_text, *request.passthrough], pa.string()
        )
        read = [self._first_lines if self._header else 0]
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
        skip = self._first_lines if self._header else 0
        rows, block = None, max(TEXT_BLOCK, 4 * self._longest)
        if self._private:
            lines = PrivateLines(self._dialect.delimiter or ",", len(self._columns))
            rows, skip, block = partial(lines.rows, skip=skip), 0, 4 * lines.max_bytes
        # In one thread pyarrow knows the number of a bad line, and is no slower.
        read = pc.ReadOptions(use_threads=False, block_size=block, skip_rows=skip, column_names=self._columns)
        parse = pc.ParseOptions(delimiter=self._dialect.delimiter, newlines_in_values=True)
        convert = pc.ConvertOptions(
            column_types=types,
            include_columns=columns,
            decimal_point=self._dialect.decimal,
            null_values=self._dialect.gaps,
        )
        with open_text(self.path, self._dialect, self._private, rows) as text, ExitStack() as stack:
            try:
                batches = stack.enter_context(pc.open_csv(text, read, parse, convert))
            except pa.ArrowInvalid as error:
                if not any(report in str(error) for report in _NOTHING_FOLLOWS):
                    raise
                # Nothing follows the header: a table without rows, as with one line end more.
                schema = pa.schema([(name, types.get(name, pa.null())) for name in columns or self._columns])
                batches = pa.RecordBatchReader.from_batches(schema, [])
            yield batches

    def _parsed(self, cells: Any, name: str, line: int) -> Any:
        """Numbers from text, which pyarrow.csv itself does not read; `line` is the one before."""
        pa, compute, dialect = pyarrow("pyarrow"), pyarrow("pyarrow.compute"), self._dialect
        cells = _without(compute.ascii_trim_whitespace(cells), dialect.gaps)
        plain = cells
        if dialect.thousands:
            grouped = compute.match_substring_regex(cells, dialect.grouped)
            plain = compute.if_else(grouped, compute.replace_substring(cells, dialect.thousands, ""), cells)
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
                    raise self._bad_cell(f"{self.path}, line {line + i}", name, "a number")
        return pa.array(numbers, pa.float64())

    def _examine_text(self, name: str) -> NonNumeric:
        """What a column of text contains, from which line on: text, or numbers in most of its cells."""
        pa = pyarrow("pyarrow")
        if pa.types.is_binary(self._types[name]):
            return NonNumeric("text that is not UTF-8")
        try:
            with self._open({name: pa.float64()}, [name]):
                line = ""
        except pa.ArrowInvalid as error:
            line = number_after("Row #", str(error))
        with self._open({name: pa.string()}, [name]) as batches:
            cells = self._filled(batches.read_next_batch())
        count = {
            how: sum(dialect.number(cell) is not None for cell in cells) for how, dialect in _COMMA.items()
        }
        if 2 * max(count.values()) <= len(cells):
            return NonNumeric(f"text from line {line}" if line else "text")
        how = [how for how in count if count[how] == len(cells) and getattr(self._dialect, how) != ","]
        if self._dialect.delimiter == ",":
            how = [each for each in how if each != "decimal"]
        if how:
            which = {"thousands": "thousands separators", "decimal": "decimal commas"}
            found = f"numbers with {' or '.join(which[each] for each in how)}, from line {line}"
            options = " or ".join(f"{{{{{each}}}}}" for each in how)
            return NonNumeric(found, f"read {{}} with {options}", dict.fromkeys(how, ","))
        return NonNumeric(
            f"numbers and, in line {line}, text",
            "correct or empty the cells of {} that are not numbers, or list what stands for a missing value "
            "with {{na_values}}",
            {"na_values": None},
        )

    def _require_no_other_delimiter(self, text: str) -> None:
        """Reject one column that is several, divided by something else."""
        if other := other_delimiter(text, only_first_line=self._private):
            mine = self._dialect.delimiter
            raise FileFormatError(
                f"{self.path}: the delimiter must be in the first line, and {mine!r} is not",
                "pass {delimiter} if that divides the cells",
                delimiter=other,
            )

    def _bad_cell(self, where: str, name: str, kind: str) -> FileFormatError:
        if kind == "a number":
            remedy = "list what stands for a missing value with {na_values}"
        else:
            remedy = "name the encoding of the file, as in {encoding}"
        return FileFormatError(
            f"{where}: {name} must be {kind}",
            "correct or empty the cell",
            remedy,
            *(["leave the column out with {drop}"] if self._header else []),
            na_values=None,
            encoding="latin-1",
            drop=[name],
        )

    @contextmanager
    def _errors(self, read: Sequence[int] = (0,)) -> Iterator[None]:
        """What pyarrow reports of a line, without the data it quotes; `read` lines are before its block."""
        try:
            with translate_errors(self.path, "table of numbers"):
                yield
        except FileFormatError as error:
            if error.remedies:  # written here
                raise
            report = str(error.__cause__)
        else:
            return
        if "codec can't decode" in report:
            raise FileFormatError(
                f"{self.path} must be text in {self._dialect.encoding}",
                "name its encoding, as in {encoding}",
                encoding="latin-1",
            ) from None
        line = number_after("Row #", report)
        where = f"{self.path}, line {line}" if line else f"{self.path}"
        if column := number_after("In CSV column #", report):
            name = self._columns[int(column)]
            kind = "text in UTF-8" if "UTF8" in report else "a number"
            raise self._bad_cell(where, name, kind) from None
        if found := number_after("columns, got ", report):
            remedies = ["correct the line"]
            if self._starts_with_hash:
                remedies.append("pass {comment} if lines that start so are comments")
            problem = f"{where}: expected {number_after('Expected ', report)} cells, got {found}"
            raise FileFormatError(problem, *remedies, comment="#") from None
        raise FileFormatError(
            f"{where}, after line {read[0]}: cannot be parsed; look for an open quote or a line without end."
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


def _first_line(path: Source, start: str, delimiter: str, private: bool) -> tuple[list[str], int, int]:
    """Its cells, how many lines it spans, and the length in bytes of the longer of it and the next.

    The next one of private rows is not looked at.
    """
    lines = csv.reader(io.StringIO(start), delimiter=delimiter)
    with translate_errors(path, "text file"):
        cells = next(filter(None, lines), [])
    try:
        "".join(cells).encode()  # what comes later may be cut inside a letter; names must be whole
    except UnicodeError:
        raise encoding_error(path) from None
    if private and "\ufffd" in "".join(cells):  # what is no text has become this
        raise encoding_error(path)
    n_lines = lines.line_num if private else lines.line_num + 1
    longest = max(len(line.encode(errors="surrogateescape")) for line in start.split("\n")[:n_lines])
    if longest >= MAX_LINE:
        raise FileFormatError(f"{path}: lines must be shorter than {MAX_LINE} bytes; check its line endings.")
    return cells, lines.line_num, longest


def have_no_numbers(cells: Sequence[str], dialect: Dialect) -> bool:
    """Whether cells may be names: none is a number, and not all are missing."""
    filled = [cell for cell in cells if cell.strip() not in dialect.gaps]
    return bool(filled) and not any(is_like_a_number(cell) for cell in filled)


def are_names(path: Source, cells: Sequence[str], dialect: Dialect, private: bool) -> bool:
    """Whether the cells of the first line are names; an error if that is not clear."""
    if have_no_numbers(cells, dialect):
        return True
    if private:
        raise FileFormatError(
            f"{path}: the first line must contain names only, because nothing is detected from private rows",
            "name the columns",
            "pass {header}",
            header=None,
        )
    filled = [cell for cell in cells if cell.strip() not in dialect.gaps]
    if len(filled) > 2 and filled in ([str(i + first) for i in range(len(filled))] for first in (0, 1)):
        raise FileFormatError(
            f"{path}: the first line counts up, so it may contain names or numbers",
            "name the columns",
            "pass {header}",
            header=None,
        )
    return False
