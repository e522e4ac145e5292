"""CSV, TSV, Parquet and Arrow: columns read by pyarrow, turned into rows."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch, Part, Reading, missing_extra, reading

_TEXT_BLOCK = 2**20  # bytes parsed at a time
_LONGEST_LINE = 2**26
_COLUMN_BUFFER = 2**16  # bytes read at a time from a column of a Parquet file
_BIG_BATCH = 2**28  # bytes of an Arrow record batch from which on it is not read whole

Records = Callable[[Reading], Iterator[Any]]


def open_parquet(path: Path) -> Part:
    """A Parquet file, page after page of each column."""
    pq = _pyarrow("pyarrow.parquet")

    def open_file() -> Any:
        # A small buffer for each column, and nothing ahead: memory is the batch, not the row group.
        return pq.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False)

    def records(wanted: Reading) -> Iterator[Any]:
        with reading(path, "Parquet"), open_file() as file:
            left = wanted.skip
            for group in range(file.num_row_groups):
                n_rows = file.metadata.row_group(group).num_rows
                if left >= n_rows:
                    left -= n_rows
                    continue
                columns = _columns(wanted, names)
                for batch in file.iter_batches(wanted.size, [group], columns, use_threads=False):
                    yield batch.slice(left)  # nothing, if all are to be passed over
                    left = max(left - batch.num_rows, 0)

    with reading(path, "Parquet"), open_file() as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
    names = tuple(schema.names)
    return _table(path, names, dict(zip(names, schema.types, strict=True)), records, n_rows)


def open_arrow(path: Path) -> Part:
    """An Arrow file or stream, a record batch at a time. Feather (version 2) is an Arrow file."""
    pa = _pyarrow("pyarrow")

    @contextmanager
    def open_batches(columns: Sequence[str]) -> Iterator[Any]:
        """Their number and a way to get each, or None and their stream."""
        options = pa.ipc.IpcReadOptions(included_fields=[places[name] for name in columns])
        with pa.OSFile(str(path)) as file:
            if is_stream:
                yield None, pa.ipc.open_stream(file, options=options)
                return
            batches = pa.ipc.open_file(file, options=options)
            if file.size() <= _BIG_BATCH * batches.num_record_batches:
                yield batches.num_record_batches, batches.get_batch
                return
        with pa.memory_map(str(path)) as file:
            batches = pa.ipc.open_file(file, options=options)
            yield batches.num_record_batches, batches.get_batch

    def records(wanted: Reading) -> Iterator[Any]:
        with reading(path, "an Arrow file"), open_batches(_columns(wanted, names)) as (count, batches):
            if count is None:
                yield from batches
                return
            left = wanted.skip
            for batch in map(batches, range(count)):
                yield batch.slice(left)
                left = max(left - batch.num_rows, 0)

    with reading(path, "an Arrow file"):
        with path.open("rb") as start:
            is_stream = start.read(6) != b"ARROW1"
        with pa.OSFile(str(path)) as file:
            schema = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file).schema
        names = tuple(schema.names)
        places = {name: place for place, name in enumerate(names)}
        with open_batches(names[:1]) as (count, batches):
            n_rows = None if count is None else sum(batches(i).num_rows for i in range(count))
    return _table(path, names, dict(zip(names, schema.types, strict=True)), records, n_rows)


def open_text(path: Path, delimiter: str, header: bool | None) -> Part:
    """Lines of cells; the first holds the names if `header` says so or, for None, if no number is in it."""
    pa, pc = _pyarrow("pyarrow"), _pyarrow("pyarrow.csv")
    cells, first_lines, longest = _first_line(path, delimiter)
    if header is None:
        header = _are_names(path, cells)
    names = tuple(cells) if header else tuple(f"column {i + 1}" for i in range(len(cells)))

    def blocks(types: Mapping[str, Any], columns: Sequence[str] = ()) -> Any:
        # In one thread pyarrow knows the number of a line that is no good, and is no slower.
        return pc.open_csv(
            str(path),
            pc.ReadOptions(
                use_threads=False,
                block_size=max(_TEXT_BLOCK, 4 * longest),
                skip_rows=first_lines if header else 0,
                column_names=names,
            ),
            pc.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pc.ConvertOptions(column_types=types, include_columns=columns),
        )

    def records(wanted: Reading) -> Iterator[Any]:
        columns = _columns(wanted, names)
        # What is a number in the first block must be one in all; what is kept aside stays as it is written.
        read_as = {name: pa.string() if name in wanted.aside else types[name] for name in columns}
        with _lines(path, names), blocks(read_as, columns) as batches:
            yield from batches

    def first_line_of_text(name: str) -> str:
        try:
            with blocks({name: pa.float64()}, [name]):
                return "text"
        except pa.ArrowInvalid as error:
            return f"text from line {_found('Row #', error)}"

    with _lines(path, names), blocks({}) as batches:
        inferred = batches.schema
    types = {}
    for name, kind in zip(inferred.names, inferred.types, strict=True):
        types[name] = pa.float64() if _held(kind) is None and kind != pa.bool_() else kind
    part = _table(path, names if header else None, types, records)
    text = [name for name, held in part.others.items() if held == "text"]
    return replace(part, others={**part.others, **{name: first_line_of_text(name) for name in text[:8]}})


def _table(
    path: Path,
    names: tuple[str, ...] | None,
    types: Mapping[str, Any],
    records: Records,
    n_rows: int | None = None,
) -> Part:
    def dtype(columns: Sequence[str] | None) -> np.dtype[Any]:
        kinds = [str(types[name]) for name in (types if columns is None else columns)]
        return np.dtype(np.float32 if all(kind in ("float", "halffloat") for kind in kinds) else np.float64)

    def read(wanted: Reading) -> Iterator[Batch]:
        features = list(types if wanted.columns is None else wanted.columns)
        for batch in records(wanted):
            for start in range(0, batch.num_rows, wanted.size):
                part = batch.slice(start, wanted.size)
                aside = {name: _values(part.column(name)) for name in wanted.aside}
                yield Batch(_rows(part.select(features), wanted.dtype), aside)

    held = {name: _held(kind) for name, kind in types.items()}
    return Part(
        path=path,
        names=names,
        n_columns=len(types),
        dtype=dtype,
        read=read,
        others={name: what for name, what in held.items() if what is not None},
        asides=names or (),
        n_rows=n_rows,
    )


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
    """A column kept aside: whole numbers stay whole where some are missing."""
    if column.null_count or str(column.type).startswith("dictionary"):
        return np.array([*column.to_pylist(), None], object)[:-1]
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _columns(wanted: Reading, names: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys([*(names if wanted.columns is None else wanted.columns), *wanted.aside]))


@cache
def _held(kind: Any) -> str | None:
    """What a column of this type holds; None for numbers."""
    types = _pyarrow("pyarrow").types
    if types.is_dictionary(kind):
        return _held(kind.value_type)
    if any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)):
        return None
    if types.is_null(kind):
        return None
    if types.is_temporal(kind):
        return "dates or times"
    if any(word in str(kind) for word in ("string", "binary")) and not types.is_nested(kind):
        return "text"
    return f"values of type {kind}"


# Text.


def _first_line(path: Path, delimiter: str) -> tuple[list[str], int, int]:
    """Its cells, how many lines it ends, and the length in bytes of the longer of that and the next."""
    with reading(path, "text in UTF-8"):
        with _pyarrow("pyarrow").input_stream(str(path), compression="detect") as stream:
            start = b""
            while (
                start.count(b"\n") < 2 and len(start) < _LONGEST_LINE and (more := stream.read(_TEXT_BLOCK))
            ):
                start += more
        lines = csv.reader(io.StringIO(start.decode("utf-8-sig", "surrogateescape")), delimiter=delimiter)
        cells = next(filter(None, lines), [])
        "".join(cells).encode()  # what comes later may be cut inside a letter; names must be whole
    if not cells:
        raise FileFormatError(f"{path} must hold rows, and is empty.")
    if len(cells) == 1 and delimiter == "," and ";" in cells[0]:
        raise FileFormatError(
            f"{path}: cells must be separated by commas, and seem to be by semicolons; write it with commas, "
            "and points in numbers."
        )
    longest = max(map(len, start.split(b"\n")[: lines.line_num + 1]))
    if longest >= _LONGEST_LINE:
        raise FileFormatError(
            f"{path}: lines must be shorter than {_LONGEST_LINE} bytes; end them as text files do."
        )
    return cells, lines.line_num, longest


def _are_names(path: Path, cells: list[str]) -> bool:
    gaps = _pyarrow("pyarrow.csv").ConvertOptions().null_values
    filled = [cell for cell in cells if cell.strip() not in gaps]
    if filled and not any(_is_number(cell) for cell in filled):
        return True
    if len(filled) > 2 and filled in ([str(i + first) for i in range(len(filled))] for first in (0, 1)):
        raise FileFormatError(
            f"{path}: the first line counts up, and may hold names or numbers; say which: header=True or "
            "header=False (--header, --no-header)."
        )
    return False


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


@contextmanager
def _lines(path: Path, names: Sequence[str]) -> Iterator[None]:
    """What pyarrow says of a line, without the data it quotes."""
    try:
        with reading(path, "text of numbers"):
            yield
    except FileFormatError as error:
        said = str(error.__cause__)
    else:
        return
    line = _found("Row #", said)
    where = f"{path}, line {line}" if line else f"{path}"
    if column := _found("In CSV column #", said):
        name = names[int(column)]
        kind = "text in UTF-8" if "UTF8" in said else "a number"
        problem = f"{name} must be {kind}, and is not; correct or empty the cell, or leave out the column."
    elif found := _found("columns, got ", said):
        problem = f"{found} cells, where {_found('Expected ', said)} are expected; correct the line."
    else:
        problem = "a line cannot be read; look for an open quote or a line without end."
    raise FileFormatError(f"{where}: {problem}") from None


def _found(before: str, said: object) -> str:
    """The number behind some words, or nothing."""
    match = re.search(rf"{before}(\d+)", str(said))
    return match[1] if match else ""


def _pyarrow(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra("pyarrow") from error
