"""CSV, TSV, Parquet and Arrow: columns read by pyarrow, turned into rows."""

import csv
import io
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch, DataFile, NonNumeric, ReadRequest, translate_errors

_TEXT_BLOCK = 2**20  # bytes parsed at a time
_MAX_LINE = 2**26
_COLUMN_BUFFER = 2**16  # bytes read at a time from a column of a Parquet file
_BIG_BATCH = 2**28  # record batches of an Arrow file larger than this, in bytes, are memory-mapped
_MAX_EXAMINED = 8  # columns of text in which numbers are looked for
_WITH_SEPARATORS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")


class TableFile(DataFile):
    """A file that pyarrow reads as record batches; subclasses define how."""

    def _describe(
        self, path: Path, names: tuple[str, ...] | None, types: Mapping[str, Any], n_rows: int | None = None
    ) -> None:
        """Set what a `DataFile` has, from the Arrow types of all columns."""
        self.path, self.names, self.n_columns, self.n_rows = path, names, len(types), n_rows
        self._types = types
        kinds = {name: _non_numeric(kind) for name, kind in types.items()}
        self.non_numeric = {name: kind for name, kind in kinds.items() if kind is not None}
        self.passthrough_names = names or ()

    def dtype(self, columns: Sequence[str] | None) -> np.dtype[Any]:
        kinds = [str(self._types[name]) for name in (self._types if columns is None else columns)]
        return np.dtype(np.float32 if all(kind in ("float", "halffloat") for kind in kinds) else np.float64)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        features = list(self._types if request.columns is None else request.columns)
        for record in self._records(request, list(dict.fromkeys([*features, *request.passthrough]))):
            for start in range(0, record.num_rows, request.batch_rows):
                part = record.slice(start, request.batch_rows)
                passthrough = {name: _values(part.column(name)) for name in request.passthrough}
                yield Batch(_rows(part.select(features), request.dtype), request.columns, passthrough)

    @abstractmethod
    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        """Record batches with these columns, of any size."""


class ParquetFile(TableFile):
    """A Parquet file, page after page of each column."""

    def __init__(self, path: Path) -> None:
        with translate_errors(path, "Parquet file"), _open_parquet(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
        names = tuple(schema.names)
        self._describe(path, names, dict(zip(names, schema.types, strict=True)), n_rows)

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        with translate_errors(self.path, "Parquet file"), _open_parquet(self.path) as file:
            left = request.skip
            for group in range(file.num_row_groups):
                n_rows = file.metadata.row_group(group).num_rows
                if left >= n_rows:
                    left -= n_rows
                    continue
                for batch in file.iter_batches(request.batch_rows, [group], columns, use_threads=False):
                    yield batch.slice(left)  # empty, if all of it is skipped
                    left = max(left - batch.num_rows, 0)


def _open_parquet(path: Path) -> Any:
    # A small buffer for each column, and nothing ahead: memory is the batch, not the row group.
    pq = _pyarrow("pyarrow.parquet")
    return pq.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False)


class ArrowFile(TableFile):
    """An Arrow file or stream, a record batch at a time. Feather (version 2) is an Arrow file."""

    def __init__(self, path: Path) -> None:
        pa = _pyarrow("pyarrow")
        with translate_errors(path, "Arrow file"):
            with path.open("rb") as start:
                self._is_stream = start.read(6) != b"ARROW1"
            with pa.OSFile(str(path)) as file:
                schema = (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file).schema
            names = tuple(schema.names)
            self._describe(path, names, dict(zip(names, schema.types, strict=True)))
            with self._open(names[:1]) as (count, batches):
                self.n_rows = None if count is None else sum(batches(i).num_rows for i in range(count))

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        with translate_errors(self.path, "Arrow file"), self._open(columns) as (count, batches):
            if count is None:
                yield from batches
                return
            left = request.skip
            for batch in map(batches, range(count)):
                yield batch.slice(left)
                left = max(left - batch.num_rows, 0)

    @contextmanager
    def _open(self, columns: Sequence[str]) -> Iterator[Any]:
        """The number of record batches and a way to get each, or None and their stream."""
        pa, path = _pyarrow("pyarrow"), str(self.path)
        indices = {name: i for i, name in enumerate(self._types)}
        options = pa.ipc.IpcReadOptions(included_fields=[indices[name] for name in columns])
        with pa.OSFile(path) as file:
            if self._is_stream:
                yield None, pa.ipc.open_stream(file, options=options)
                return
            batches = pa.ipc.open_file(file, options=options)
            if file.size() <= _BIG_BATCH * batches.num_record_batches:
                yield batches.num_record_batches, batches.get_batch
                return
        with pa.memory_map(path) as file:
            batches = pa.ipc.open_file(file, options=options)
            yield batches.num_record_batches, batches.get_batch


class TextFile(TableFile):
    """Lines of cells.

    Args:
        path: the file.
        delimiter: between cells.
        header: whether the first line contains the names; for None, if there is no number in it.
    """

    def __init__(self, path: Path, delimiter: str, header: bool | None) -> None:
        pa = _pyarrow("pyarrow")
        cells, self._first_lines, self._longest = _first_line(path, delimiter)
        self._header = _are_names(path, cells) if header is None else header
        self._delimiter = delimiter
        self._columns = tuple(cells) if self._header else tuple(f"column {i + 1}" for i in range(len(cells)))
        self.path = path
        with self._errors(), self._open({}) as batches:
            inferred = batches.schema
        types = {}
        for name, kind in zip(inferred.names, inferred.types, strict=True):
            types[name] = pa.float64() if _non_numeric(kind) is None and kind != pa.bool_() else kind
        self._describe(path, self._columns if self._header else None, types)
        text = [name for name, kind in self.non_numeric.items() if kind.contains == "text"]
        examined = {name: self._examine_text(name) for name in text[:_MAX_EXAMINED]}
        self.non_numeric = {**self.non_numeric, **examined}

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        # What is a number in the first block must be one in all; passthrough columns stay as written.
        text = _pyarrow("pyarrow").string()
        types = {name: text if name in request.passthrough else self._types[name] for name in columns}
        with self._errors(), self._open(types, columns) as batches:
            yield from batches

    def _open(self, types: Mapping[str, Any], columns: Sequence[str] = ()) -> Any:
        pc = _pyarrow("pyarrow.csv")
        # In one thread pyarrow knows the number of a bad line, and is no slower.
        return pc.open_csv(
            str(self.path),
            pc.ReadOptions(
                use_threads=False,
                block_size=max(_TEXT_BLOCK, 4 * self._longest),
                skip_rows=self._first_lines if self._header else 0,
                column_names=self._columns,
            ),
            pc.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            pc.ConvertOptions(column_types=types, include_columns=columns),
        )

    def _examine_text(self, name: str) -> NonNumeric:
        """What a column of text contains, from which line on: text, or numbers in most of its cells."""
        pa = _pyarrow("pyarrow")
        try:
            with self._open({name: pa.float64()}, [name]):
                line = ""
        except pa.ArrowInvalid as error:
            line = _number_after("Row #", str(error))
        with self._open({name: pa.string()}, [name]) as batches:
            gaps = _pyarrow("pyarrow.csv").ConvertOptions().null_values
            cells = [cell for cell in batches.read_next_batch().column(0).to_pylist() if cell not in gaps]
        numbers = sum(map(_is_number, cells))
        separated = sum(bool(_WITH_SEPARATORS.fullmatch(cell)) for cell in cells)
        if 2 * (numbers + separated) <= len(cells):
            return NonNumeric(f"text from line {line}" if line else "text")
        if numbers + separated == len(cells):
            found = f"numbers with thousands separators, from line {line}"
            return NonNumeric(found, "write {} without thousands separators")
        return NonNumeric(
            f"numbers and, in line {line}, text", "correct or empty the cells of {} that are not numbers"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What pyarrow reports about a line, without the data it quotes."""
        try:
            with translate_errors(self.path, "table of numbers"):
                yield
        except FileFormatError as error:
            report = str(error.__cause__)
        else:
            return
        line = _number_after("Row #", report)
        where = f"{self.path}, line {line}" if line else f"{self.path}"
        if column := _number_after("In CSV column #", report):
            name = self._columns[int(column)]
            kind = "text in UTF-8" if "UTF8" in report else "a number"
            raise FileFormatError(
                f"{where}: {name} must be {kind}",
                "correct or empty the cell",
                *(["leave the column out with {drop}"] if self._header else []),
                drop=[name],
            ) from None
        if found := _number_after("columns, got ", report):
            problem = f"expected {_number_after('Expected ', report)} cells, got {found}; correct the line."
        else:
            problem = "cannot be parsed; look for an open quote or a line without end."
        raise FileFormatError(f"{where}: {problem}") from None


def _rows(batch: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A record batch as an array, nulls as NaN.

    It stays column by column, as it comes: to turn it costs half as much again as reading, and no fit gains.
    """
    pa = _pyarrow("pyarrow")
    kind = pa.from_numpy_dtype(dtype)
    columns = [column if column.type == kind else column.cast(kind, safe=False) for column in batch.columns]
    same = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    rows: NDArray[Any] = same.to_tensor(null_to_nan=True, row_major=False).to_numpy()
    return rows


def _values(column: Any) -> NDArray[Any]:
    """A passthrough column: whole numbers stay whole where some are missing."""
    if column.null_count or str(column.type).startswith("dictionary"):
        return np.array([*column.to_pylist(), None], object)[:-1]
    return np.asarray(column.to_numpy(zero_copy_only=False))


@cache
def _non_numeric(kind: Any) -> NonNumeric | None:
    """Why a column of this type cannot be a feature; None for numbers."""
    types = _pyarrow("pyarrow").types
    if types.is_dictionary(kind):
        return _non_numeric(kind.value_type)
    if any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)):
        return None
    if types.is_null(kind):
        return None
    if types.is_temporal(kind):
        return NonNumeric("dates or times")
    if any(word in str(kind) for word in ("string", "binary")) and not types.is_nested(kind):
        return NonNumeric("text")
    if "list" in str(kind) and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return NonNumeric(
            f"lists of numbers ({kind})",
            "write the elements of {} as separate columns, or save them as a .npy file",
        )
    return NonNumeric(f"values of type {kind}")


def _first_line(path: Path, delimiter: str) -> tuple[list[str], int, int]:
    """Its cells, how many lines it spans, and the length in bytes of the longer of it and the next."""
    with translate_errors(path, "UTF-8 text file", "save it again as UTF-8"):
        with _pyarrow("pyarrow").input_stream(str(path), compression="detect") as stream:
            start = b""
            while start.count(b"\n") < 2 and len(start) < _MAX_LINE and (more := stream.read(_TEXT_BLOCK)):
                start += more
        lines = csv.reader(io.StringIO(start.decode("utf-8-sig", "surrogateescape")), delimiter=delimiter)
        cells = next(filter(None, lines), [])
        "".join(cells).encode()  # what comes later may be cut inside a letter; names must be whole
    if not cells:
        raise FileFormatError(f"{path} contains no rows.")
    if len(cells) == 1 and delimiter == "," and ";" in cells[0]:
        raise FileFormatError(
            f"{path}: cells must be separated by commas, but seem to be by semicolons; write it with commas, "
            "and decimal points in numbers."
        )
    longest = max(map(len, start.split(b"\n")[: lines.line_num + 1]))
    if longest >= _MAX_LINE:
        raise FileFormatError(
            f"{path}: lines must be shorter than {_MAX_LINE} bytes; check its line endings."
        )
    return cells, lines.line_num, longest


def _are_names(path: Path, cells: list[str]) -> bool:
    gaps = _pyarrow("pyarrow.csv").ConvertOptions().null_values
    filled = [cell for cell in cells if cell.strip() not in gaps]
    if filled and not any(_is_number(cell) for cell in filled):
        return True
    if len(filled) > 2 and filled in ([str(i + first) for i in range(len(filled))] for first in (0, 1)):
        raise FileFormatError(
            f"{path}: the first line counts up, so it may contain names or numbers",
            "name the columns",
            "pass {header}",
            header=None,
        )
    return False


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _number_after(before: str, text: str) -> str:
    """The number behind some words, or nothing."""
    match = re.search(rf"{before}(\d+)", text)
    return match[1] if match else ""


def _pyarrow(module: str) -> Any:
    return require(module, extra="files", purpose="reading CSV, Parquet and Arrow files")
