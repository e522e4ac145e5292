"""CSV and other text, JSON Lines, Parquet and Arrow: columns read by pyarrow, turned into rows."""

import csv
import io
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch, DataFile, NonNumeric, ReadRequest, translate_errors
from fedpca.readers.dialect import Dialect, encoding_error, is_like_a_number, open_text

_TEXT_BLOCK = 2**20  # bytes parsed at a time
_MAX_LINE = 2**26
_COLUMN_BUFFER = 2**16  # bytes read at a time from a column of a Parquet file
_BIG_BATCH = 2**28  # record batches of an Arrow file larger than this, in bytes, are memory-mapped
_MAX_EXAMINED = 8  # columns of text in which numbers are looked for
_MAX_INTEGERS = 64  # columns of whole numbers in which ids are looked for
_ROWS_COMPARED, _MIN_COMPARED, _MIN_COUNTED = 1000, 100, 10  # first rows in which ids never repeat
_ROWS_LOOKED_AT = 64  # at a time, to find how long lists are
_NO_SIZE = NonNumeric(
    "lists without a fixed size, which private rows must not decide", "write {} as lists of a fixed size"
)
_COMMA = {"thousands": Dialect(thousands=","), "decimal": Dialect(decimal=",")}  # what commas may be


class TableFile(DataFile):
    """A file that pyarrow reads as record batches; subclasses define how."""

    def _describe(
        self,
        path: Path,
        names: tuple[str, ...] | None,
        types: Mapping[str, Any],
        n_rows: int | None = None,
        private: bool = False,
    ) -> None:
        """Set what a `DataFile` has, from the Arrow types of all columns."""
        self.path, self.n_rows, self._types, self._private = path, n_rows, types, private
        kinds = {name: _non_numeric(kind) for name, kind in types.items()}
        lists = {}
        for name, kind in types.items():
            if kinds[name] is None and _is_list(kind):
                width = self._list_size(name)
                lists[name] = tuple(f"{name}_{i}" for i in range(width))
                if not width:
                    kinds[name] = _NO_SIZE if private else NonNumeric("lists without elements")
        self.lists = {name: elements for name, elements in lists.items() if elements}
        self._sources = {
            feature: (name, i) for name in types for i, feature in enumerate(self.lists.get(name, (name,)))
        }
        features = [feature for name in names or () for feature in self.lists.get(name, (name,))]
        self.names, self.n_columns = None if names is None else tuple(features), len(features) or len(types)
        self.non_numeric = {name: kind for name, kind in kinds.items() if kind is not None}
        self.passthrough_names = names or ()

    def _list_size(self, name: str) -> int:
        """The length of the first list of a column; 0 if it has none, or none that may be looked at."""
        pa, compute = _pyarrow("pyarrow"), _pyarrow("pyarrow.compute")
        kind = self._types[name]
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if self._private:
            return 0
        request = ReadRequest((name,), (), np.dtype(np.float64), _ROWS_LOOKED_AT, 0)
        for record in self._records(request, [name]):
            sizes = compute.list_value_length(record.column(0)).drop_null()
            if len(sizes):
                return int(sizes[0].as_py())
        return 0

    def dtype(self, columns: Sequence[str] | None) -> np.dtype[Any]:
        wanted = self._sources if columns is None else columns
        types = {str(_number_type(self._types[self._sources[name][0]])) for name in wanted}
        return np.dtype(np.float32 if types <= {"float", "halffloat"} else np.float64)

    def counters(self, columns: Collection[str]) -> list[str]:
        """Those of the columns whose first rows contain whole numbers that never repeat, as ids do."""
        integers = [name for name in self._integers() if name in columns][:_MAX_INTEGERS]
        if not integers:
            return []
        request = ReadRequest(tuple(integers), (), np.dtype(np.float64), _ROWS_COMPARED, 0)
        first = next(self._records(request, integers), None)
        if first is None:
            return []
        return [name for name in integers if _never_repeats(first.column(name)[:_ROWS_COMPARED])]

    def _integers(self) -> Collection[str]:
        """The names of columns of whole numbers."""
        types = _pyarrow("pyarrow").types
        return [name for name, kind in self._types.items() if types.is_integer(kind)]

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        features = [
            self._sources[name] for name in (self._sources if request.columns is None else request.columns)
        ]
        columns = list(dict.fromkeys([*(name for name, _ in features), *request.passthrough]))
        done = request.skip
        for record in self._records(request, columns):
            for start in range(0, record.num_rows, request.batch_rows):
                part = record.slice(start, request.batch_rows)
                passthrough = {name: _values(part.column(name)) for name in request.passthrough}
                yield Batch(self._rows(part, features, request.dtype, done), request.columns, passthrough)
                done += part.num_rows

    def _rows(
        self, part: Any, features: list[tuple[str, int]], dtype: np.dtype[Any], done: int
    ) -> NDArray[Any]:
        """A record batch as an array, nulls as NaN; `done` rows are before it."""
        if not self.lists:
            return _numbers(part.select([name for name, _ in features]), dtype)
        blocks = []
        for name, group in groupby(features, key=lambda feature: feature[0] in self.lists and feature[0]):
            elements = list(group)
            if not name:
                blocks.append(_numbers(part.select([column for column, _ in elements]), dtype))
                continue
            block = self._list_rows(part.column(name), name, dtype, done)
            indices = [i for _, i in elements]
            blocks.append(block if indices == list(range(block.shape[1])) else block[:, indices])
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def _list_rows(self, column: Any, name: str, dtype: np.dtype[Any], done: int) -> NDArray[Any]:
        """A column of lists as an array, a missing list as NaN."""
        pa, compute = _pyarrow("pyarrow"), _pyarrow("pyarrow.compute")
        size, n_rows = len(self.lists[name]), len(column)
        if pa.types.is_fixed_size_list(column.type):
            values = column.values.slice(column.offset * size, n_rows * size)  # of missing lists, too
            present = None
        else:
            sizes = compute.list_value_length(column)
            other = compute.index(compute.not_equal(sizes, size), True).as_py()
            if other >= 0:
                raise FileFormatError(
                    f"{self.path}, row {done + other + 1}: lists of {name} must all have {size} elements, as "
                    f"the first one, got {sizes[other].as_py()}",
                    "correct or empty the row",
                    "leave the column out with {drop}",
                    drop=[name],
                )
            values, present = column.flatten(), column.is_valid()
        kind = pa.from_numpy_dtype(dtype)
        values = values if values.type == kind else values.cast(kind, safe=False)
        rows: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(-1, size)
        if not column.null_count:
            return rows
        if present is None:
            return np.where(
                column.is_valid().to_numpy(zero_copy_only=False)[:, None], rows, dtype.type(np.nan)
            )
        full = np.full((n_rows, size), np.nan, dtype)
        full[present.to_numpy(zero_copy_only=False)] = rows
        return full

    @abstractmethod
    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        """Record batches with these columns, of any size."""


class ParquetFile(TableFile):
    """A Parquet file, page after page of each column."""

    def __init__(self, path: Path, private: bool) -> None:
        self.path = path
        with translate_errors(path, "Parquet file"), _open_parquet(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
        names = tuple(schema.names)
        self._describe(path, names, dict(zip(names, schema.types, strict=True)), n_rows, private)

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

    def __init__(self, path: Path, private: bool) -> None:
        pa = _pyarrow("pyarrow")
        with translate_errors(path, "Arrow file"):
            with path.open("rb") as start:
                self._is_stream = start.read(6) != b"ARROW1"
            with pa.OSFile(str(path)) as file:
                schema = (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file).schema
            names = tuple(schema.names)
            self._describe(path, names, dict(zip(names, schema.types, strict=True)), private=private)
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
        delimiters: those that may be between cells, the usual one first.
        header: whether the first line contains the names; for None, if there is no number in it.
        dialect: how cells are written, as far as it is given.
        private: whether nothing may be found in the rows; a cell that is not a number is missing then.
    """

    def __init__(
        self, path: Path, delimiters: str, header: bool | None, dialect: Dialect, private: bool
    ) -> None:
        self.path, self._private = path, private
        start, is_whole = _first_lines(path, dialect)
        look_at = start if is_whole else start[: start.rfind("\n") + 1] or start
        if private and header is False:
            look_at = ""  # the first line is a row
        self._dialect = dialect.found_in(look_at, delimiters, only_first_line=private)
        cells, self._first_lines, self._longest = _first_line(path, start, self._dialect.delimiter)
        self._starts_with_hash = cells[0].startswith("#")
        self._header = _are_names(path, cells, self._dialect, private) if header is None else header
        self._columns = tuple(cells) if self._header else tuple(f"column {i + 1}" for i in range(len(cells)))
        self._whole: list[str] = []  # columns of whole numbers
        types = dict.fromkeys(self._columns, _pyarrow("pyarrow").float64()) if private else self._infer()
        self._describe(path, self._columns if self._header else None, types, private=private)
        text = [name for name, kind in self.non_numeric.items() if kind.contains == "text"]
        examined = {name: self._examine_text(name) for name in text[:_MAX_EXAMINED]}
        self.non_numeric = {**self.non_numeric, **examined}

    def _infer(self) -> dict[str, Any]:
        """The types of columns, from the first block."""
        pa = _pyarrow("pyarrow")
        with self._errors(), self._open({}) as batches:
            inferred = batches.schema
        types = {}
        for name, kind in zip(inferred.names, inferred.types, strict=True):
            if pa.types.is_integer(kind):
                self._whole.append(name)
            types[name] = pa.float64() if _non_numeric(kind) is None and kind != pa.bool_() else kind
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
        pa = _pyarrow("pyarrow")
        features = [name for name in columns if name not in request.passthrough]
        numbers = [name for name in features if self._types[name] == pa.float64()]
        as_text = numbers if self._private or self._dialect.thousands else []
        types = {name: self._types[name] for name in features} | dict.fromkeys(
            [*as_text, *request.passthrough], pa.string()
        )
        line = self._first_lines if self._header else 0
        with self._errors(), self._open(types, columns) as batches:
            for batch in batches:
                for name in as_text:
                    batch = _with_column(batch, name, self._parsed(batch.column(name), name, line))
                for name in numbers if self._dialect.codes else ():
                    batch = _with_column(batch, name, _without(batch.column(name), self._dialect.codes))
                line += batch.num_rows
                yield batch

    @contextmanager
    def _open(self, types: Mapping[str, Any], columns: Sequence[str] = ()) -> Iterator[Any]:
        pc = _pyarrow("pyarrow.csv")
        # In one thread pyarrow knows the number of a bad line, and is no slower.
        with (
            open_text(self.path, self._dialect) as text,
            pc.open_csv(
                text,
                pc.ReadOptions(
                    use_threads=False,
                    block_size=max(_TEXT_BLOCK, 4 * self._longest),
                    skip_rows=self._first_lines if self._header else 0,
                    column_names=self._columns,
                ),
                pc.ParseOptions(delimiter=self._dialect.delimiter, newlines_in_values=True),
                pc.ConvertOptions(
                    check_utf8=not self._private,
                    column_types=types,
                    include_columns=columns,
                    decimal_point=self._dialect.decimal,
                    null_values=self._dialect.gaps,
                ),
            ) as batches,
        ):
            yield batches

    def _parsed(self, cells: Any, name: str, line: int) -> Any:
        """Numbers from text, which pyarrow.csv itself does not read; `line` is the one before."""
        pa, compute, dialect = _pyarrow("pyarrow"), _pyarrow("pyarrow.compute"), self._dialect
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
        raw = [
            None if cell is None else cell.decode(errors="replace")
            for cell in cells.cast(pa.binary()).to_pylist()
        ]
        numbers = [None if cell is None else _lenient_number(dialect, cell) for cell in raw]
        if not self._private:
            for i, (cell, number) in enumerate(zip(raw, numbers, strict=True), 1):
                if cell is not None and number is None:
                    raise self._bad_cell(f"{self.path}, line {line + i}", name, "a number")
        return pa.array(numbers, pa.float64())

    def _examine_text(self, name: str) -> NonNumeric:
        """What a column of text contains, from which line on: text, or numbers in most of its cells."""
        pa = _pyarrow("pyarrow")
        try:
            with self._open({name: pa.float64()}, [name]):
                line = ""
        except pa.ArrowInvalid as error:
            line = _number_after("Row #", str(error))
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
    def _errors(self) -> Iterator[None]:
        """What pyarrow reports about a line, without the data it quotes."""
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
        line = _number_after("Row #", report)
        where = f"{self.path}, line {line}" if line else f"{self.path}"
        if column := _number_after("In CSV column #", report):
            name = self._columns[int(column)]
            kind = "text in UTF-8" if "UTF8" in report else "a number"
            raise self._bad_cell(where, name, kind) from None
        if found := _number_after("columns, got ", report):
            remedies = ["correct the line"]
            if self._starts_with_hash:
                remedies.append("pass {comment} if lines that start so are comments")
            problem = f"{where}: expected {_number_after('Expected ', report)} cells, got {found}"
            raise FileFormatError(problem, *remedies, comment="#") from None
        raise FileFormatError(
            f"{where}: cannot be parsed; look for an open quote or a line without end."
        ) from None


class JsonFile(TableFile):
    """One JSON object per line; those of the first block define the columns and their types."""

    def __init__(self, path: Path) -> None:
        pa = _pyarrow("pyarrow")
        self.path = path
        start, _ = _first_lines(path, Dialect())
        longest = max(len(line.encode(errors="surrogateescape")) for line in start.split("\n")[:2])
        self._block = max(_TEXT_BLOCK, 4 * longest)
        with self._errors([0]), self._open(None) as batches:
            schema = batches.schema
        types = {}
        self._whole = [field.name for field in schema if pa.types.is_integer(field.type)]
        for field in schema:
            kind, is_number = field.type, _non_numeric(field.type) is None and field.type != pa.bool_()
            types[field.name] = (
                (pa.list_(pa.float64()) if _is_list(kind) else pa.float64()) if is_number else kind
            )
        self._describe(path, tuple(schema.names), types)

    def _integers(self) -> Collection[str]:
        return self._whole

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        done = [0]
        schema = _pyarrow("pyarrow").schema({name: self._types[name] for name in columns})
        with self._errors(done), self._open(schema) as batches:
            for batch in batches:
                yield batch
                done[0] += batch.num_rows

    @contextmanager
    def _open(self, schema: Any) -> Iterator[Any]:
        json = _pyarrow("pyarrow.json")
        behavior = "infer" if schema is None else "ignore"
        with (
            open_text(self.path, Dialect()) as text,
            json.open_json(
                text,
                json.ReadOptions(use_threads=False, block_size=self._block),
                json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior),
            ) as batches,
        ):
            yield batches

    @contextmanager
    def _errors(self, done: list[int]) -> Iterator[None]:
        """What pyarrow reports about a row; as many as `done` contains are before its block."""
        try:
            with translate_errors(self.path, "JSON Lines file"):
                yield
        except FileFormatError as error:
            report = str(error.__cause__)
            if "JSON" not in report and "straddling" not in report:
                raise
        else:
            return
        if "straddling" in report:
            raise FileFormatError(
                f"{self.path}: lines must be shorter than {self._block} bytes; write one object per line."
            ) from None
        row = _number_after("in row ", report)
        where = f"{self.path}, row {done[0] + int(row) + 1}" if row else f"{self.path}"
        if found := re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", report):
            problem = f"values of {found[1]} must all be of one type, got {found[2]} and {found[3]}"
            raise FileFormatError(f"{where}: {problem}; correct the row.") from None
        raise FileFormatError(f"{where}: each line must contain one JSON object; correct the row.") from None


def _numbers(batch: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
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


def _is_list(kind: Any) -> bool:
    types = _pyarrow("pyarrow").types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _number_type(kind: Any) -> Any:
    """Of the elements of a list; of a number it is the type itself."""
    return kind.value_type if _is_list(kind) else kind


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
    if _is_list(kind) and not types.is_nested(kind.value_type) and _non_numeric(kind.value_type) is None:
        return None
    return NonNumeric(f"values of type {kind}")


def _never_repeats(column: Any) -> bool:
    """Whether whole numbers are all different: too many for a measurement, or one after another."""
    values = column.drop_null().to_numpy(zero_copy_only=False)
    if len(values) < len(column) or len(values) < _MIN_COUNTED:
        return False
    return bool((np.diff(values) == 1).all()) or (
        len(values) >= _MIN_COMPARED and len(np.unique(values)) == len(values)
    )


def _with_column(batch: Any, name: str, column: Any) -> Any:
    pa = _pyarrow("pyarrow")
    columns = [column if each == name else batch.column(each) for each in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _without(column: Any, values: Sequence[Any]) -> Any:
    """A column with nulls for some values."""
    pa, compute = _pyarrow("pyarrow"), _pyarrow("pyarrow.compute")
    found = compute.is_in(column, value_set=pa.array(values, column.type))
    return compute.if_else(found, pa.scalar(None, column.type), column)


def _lenient_number(dialect: Dialect, cell: str) -> float | None:
    """The value of a cell, which may be true or false; None if it is no number."""
    return {"true": 1.0, "false": 0.0}.get(cell.lower(), dialect.number(cell))


def _first_lines(path: Path, dialect: Dialect) -> tuple[str, bool]:
    """At least two lines, and whether there are no more."""
    more = start = b""
    try:
        with translate_errors(path, "text file"), open_text(path, dialect) as stream:
            while start.count(b"\n") < 2 and len(start) < _MAX_LINE and (more := stream.read(_TEXT_BLOCK)):
                start += more
    except FileFormatError as error:
        if isinstance(error.__cause__, UnicodeError):
            raise encoding_error(path) from None
        raise
    return start.decode("utf-8-sig", "surrogateescape"), not more


def _first_line(path: Path, start: str, delimiter: str | None) -> tuple[list[str], int, int]:
    """Its cells, how many lines it spans, and the length in bytes of the longer of it and the next."""
    lines = csv.reader(io.StringIO(start), delimiter=delimiter or ",")
    with translate_errors(path, "text file"):
        cells = next(filter(None, lines), [])
    try:
        "".join(cells).encode()  # what comes later may be cut inside a letter; names must be whole
    except UnicodeError:
        raise encoding_error(path) from None
    if not cells:
        raise FileFormatError(f"{path} contains no rows.")
    longest = max(
        len(line.encode(errors="surrogateescape")) for line in start.split("\n")[: lines.line_num + 1]
    )
    if longest >= _MAX_LINE:
        raise FileFormatError(
            f"{path}: lines must be shorter than {_MAX_LINE} bytes; check its line endings."
        )
    return cells, lines.line_num, longest


def _are_names(path: Path, cells: list[str], dialect: Dialect, private: bool) -> bool:
    filled = [cell for cell in cells if cell.strip() not in dialect.gaps]
    if filled and not any(is_like_a_number(cell) for cell in filled):
        return True
    if private:
        raise FileFormatError(
            f"{path}: the first line must contain names only, because nothing is detected from private rows",
            "name the columns",
            "pass {header}",
            header=None,
        )
    if len(filled) > 2 and filled in ([str(i + first) for i in range(len(filled))] for first in (0, 1)):
        raise FileFormatError(
            f"{path}: the first line counts up, so it may contain names or numbers",
            "name the columns",
            "pass {header}",
            header=None,
        )
    return False


def _number_after(before: str, text: str) -> str:
    """The number behind some words, or nothing."""
    match = re.search(rf"{before}(\d+)", text)
    return match[1] if match else ""


def _pyarrow(module: str) -> Any:
    return require(module, extra="files", purpose="reading CSV, Parquet and Arrow files")
