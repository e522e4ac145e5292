"""JSON Lines."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from fedpca.errors import FileFormatError
from fedpca.readers.data_file import ReadRequest, Source, translate_errors
from fedpca.readers.dialect import Dialect
from fedpca.readers.tables import TableFile, is_list, non_numeric, number_after, pyarrow
from fedpca.readers.text_stream import TEXT_BLOCK, first_lines, open_text


class JsonFile(TableFile):
    """One JSON object per line; those of the first block define the columns and their types."""

    def __init__(self, path: Source) -> None:
        pa = pyarrow("pyarrow")
        self.path = path
        start, _ = first_lines(path, Dialect())
        longest = max(len(line.encode(errors="surrogateescape")) for line in start.split("\n")[:2])
        self._block = max(TEXT_BLOCK, 4 * longest)
        with self._errors([0]), self._open(None) as batches:
            schema = batches.schema
        types = {}
        self._whole = [field.name for field in schema if pa.types.is_integer(field.type)]
        for field in schema:
            kind, is_number = field.type, non_numeric(field.type) is None and field.type != pa.bool_()
            types[field.name] = (
                (pa.list_(pa.float64()) if is_list(kind) else pa.float64()) if is_number else kind
            )
        self._describe(path, tuple(schema.names), types)

    def _integers(self) -> Collection[str]:
        return self._whole

    def _records(self, request: ReadRequest, columns: list[str]) -> Iterator[Any]:
        done = [0]
        schema = pyarrow("pyarrow").schema({name: self._types[name] for name in columns})
        with self._errors(done), self._open(schema) as batches:
            for batch in batches:
                yield batch
                done[0] += batch.num_rows

    @contextmanager
    def _open(self, schema: Any) -> Iterator[Any]:
        json = pyarrow("pyarrow.json")
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
        row = number_after("in row ", report)
        where = f"{self.path}, row {done[0] + int(row) + 1}" if row else f"{self.path}"
        if found := re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", report):
            problem = f"values of {found[1]} must all be of one type, got {found[2]} and {found[3]}"
            raise FileFormatError(f"{where}: {problem}; correct the row.") from None
        raise FileFormatError(f"{where}: each line must contain one JSON object; correct the row.") from None
