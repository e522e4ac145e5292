"""Tables as files, in the format that the ending of the name selects."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fedpca._typing import AnyArray
from fedpca._util.extras import require
from fedpca._util.files import atomic_write

Columns = Mapping[str, AnyArray | Sequence[object]]
WriteTable = Callable[[Columns], None]

TABLES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


def ending(path: str | os.PathLike[str], endings: Sequence[str]) -> str:
    """The ending of an output, which must be one of `endings`."""
    name = os.fspath(path).lower()
    found = next((ending for ending in endings if name.endswith(ending)), None)
    if found is None:
        raise ValueError(f"outputs must end in one of {', '.join(endings)}, got {os.fspath(path)}.")
    return found


def write_tables(tables: Mapping[Path, Columns]) -> None:
    """Write tables, each a mapping from names to columns of one length: all files or none.

    Args:
        tables: the columns of each file, whose name ends in .parquet, .csv, .tsv, .csv.gz or .tsv.gz.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "spectrum.csv"
    >>> write_tables({path: {"component": [1, 2], "variance": [3.5, 1.0]}})
    >>> print(path.read_text(), end="")
    "component","variance"
    1,3.5
    2,1
    """
    with ExitStack() as stack:
        for path, columns in tables.items():
            kind = ending(path, TABLES)
            with open_table(kind, stack.enter_context(atomic_write(path))) as write:
                write(columns)


@contextmanager
def open_table(kind: str, target: Path | BinaryIO, **text_options: object) -> Iterator[WriteTable]:
    """A function that appends rows, given as columns. `target` is a path or, for text, an open file."""
    purpose = f"writing {kind}"
    arrow = require("pyarrow", extra="files", purpose=purpose)
    with ExitStack() as stack:
        sink: Any = str(target) if isinstance(target, Path) else target
        if kind == ".parquet":
            open_writer = require("pyarrow.parquet", extra="files", purpose=purpose).ParquetWriter
        else:
            csv = require("pyarrow.csv", extra="files", purpose=purpose)
            delimiter = "," if kind.startswith(".csv") else "\t"
            options = csv.WriteOptions(delimiter=delimiter, **text_options)
            open_writer = partial(csv.CSVWriter, write_options=options)
        if kind.endswith(".gz"):
            sink = stack.enter_context(arrow.CompressedOutputStream(sink, "gzip"))
        writer: Any = None
        schema: Any = None

        def write(columns: Columns) -> None:
            nonlocal writer, schema
            table = arrow.table(columns)
            if writer is None:
                # A column that is missing everywhere so far may still contain text.
                types = [arrow.string() if arrow.types.is_null(each) else each for each in table.schema.types]
                schema = arrow.schema(list(zip(table.column_names, types, strict=True)))
                writer = stack.enter_context(open_writer(sink, schema))
            writer.write_table(table.cast(schema))

        yield write
