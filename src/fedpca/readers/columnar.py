"""Parquet and Arrow files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedpca.readers.data_file import ReadRequest, Source, translate_errors
from fedpca.readers.remote import RemoteFile
from fedpca.readers.tables import TableFile, pyarrow

_COLUMN_BUFFER = 2**16  # bytes read at a time from a column of a Parquet file
_BIG_BATCH = 2**28  # record batches of an Arrow file larger than this, in bytes, are memory-mapped


class ParquetFile(TableFile):
    """A Parquet file, page after page of each column; from a URL, row group after row group."""

    def __init__(self, path: Source, private: bool) -> None:
        self.path = path
        with translate_errors(path, "Parquet file"), _open_parquet(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        self._group_starts = [0, *accumulate(sizes[:-1])]
        names = tuple(schema.names)
        self._describe(path, names, dict(zip(names, schema.types, strict=True)), n_rows, private)

    def starts(self) -> Sequence[int]:
        return self._group_starts

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


@contextmanager
def _open_parquet(path: Source) -> Iterator[Any]:
    pq = pyarrow("pyarrow.parquet")
    if isinstance(path, RemoteFile):
        # Every read is a request: as few as there are row groups, or little more.
        with path.open(at_random=True) as file, pq.ParquetFile(file, pre_buffer=True) as parquet:
            yield parquet
        return
    # A small buffer for each column, and nothing ahead: memory is the batch, not the row group.
    with pq.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False) as parquet:
        yield parquet


class ArrowFile(TableFile):
    """An Arrow file or stream, a record batch at a time. Feather (version 2) is an Arrow file."""

    def __init__(self, path: Path, private: bool) -> None:
        pa = pyarrow("pyarrow")
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
        pa, path = pyarrow("pyarrow"), str(self.path)
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
