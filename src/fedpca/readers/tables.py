"""Columns read by pyarrow, turned into rows: what all formats that it reads have in common."""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca._util.option_text import advice
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch, DataFile, NonNumeric, ReadRequest, Source

_MAX_INTEGERS = 64  # columns of whole numbers in which ids are looked for
_ROWS_COMPARED, _MIN_COMPARED, _MIN_COUNTED = 1000, 100, 10  # first rows in which ids never repeat
_ROWS_LOOKED_AT = 64  # at a time, to find how long lists are
_NO_SIZE = NonNumeric(
    "lists without a fixed size, which private rows must not decide", "write {} as lists of a fixed size"
)


class TableFile(DataFile):
    """A file that pyarrow reads as record batches; subclasses define how."""

    _private_rows: int | None = None  # their number, where the caller states it

    def _describe(
        self,
        path: Source,
        names: tuple[str, ...] | None,
        types: Mapping[str, Any],
        n_rows: int | None = None,
        private: bool = False,
    ) -> None:
        """Set what a `DataFile` has, from the Arrow types of all columns."""
        self.path, self.n_rows, self._types, self._private = path, n_rows, types, private
        kinds = {name: non_numeric(kind) for name, kind in types.items()}
        lists = {}
        for name, kind in types.items():
            if kinds[name] is None and is_list(kind):
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

    def number_columns(self) -> None:
        """Give columns without names the names that their numbers make."""
        self.names = self.passthrough_names = tuple(self._types)

    def _list_size(self, name: str) -> int:
        """The length of the first list of a column; 0 if it has none, or none that may be looked at."""
        pa, compute = pyarrow("pyarrow"), pyarrow("pyarrow.compute")
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
        types = pyarrow("pyarrow").types
        return [name for name, kind in self._types.items() if types.is_integer(kind)]

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        features = [
            self._sources[name] for name in (self._sources if request.columns is None else request.columns)
        ]
        columns = list(dict.fromkeys([*(name for name, _ in features), *request.passthrough]))
        done, stated = request.skip, self._private_rows
        for record in self._records(request, columns):
            if stated is not None and done + record.num_rows > stated:
                raise too_many_rows(self.path, stated)
            for start in range(0, record.num_rows, request.batch_rows):
                part = record.slice(start, request.batch_rows)
                passthrough = {name: _values(part.column(name)) for name in request.passthrough}
                yield Batch(self._rows(part, features, request.dtype, done), request.columns, passthrough)
                done += part.num_rows
        while stated is not None and done < stated:  # rows at the end that have left no trace
            size = min(stated - done, request.batch_rows)
            gaps = np.full((size, len(features)), np.nan, request.dtype)
            missing = {name: np.full(size, None, object) for name in request.passthrough}
            yield Batch(gaps, request.columns, missing)
            done += size

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
        pa, compute = pyarrow("pyarrow"), pyarrow("pyarrow.compute")
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
                    f"leave the column out with {advice('drop', [name])}",
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


def _numbers(batch: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A record batch as an array, nulls as NaN.

    It stays column by column, as it comes: to turn it costs half as much again as reading, and no fit gains.
    """
    pa = pyarrow("pyarrow")
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


def too_many_rows(path: Source, stated: int) -> FileFormatError:
    return FileFormatError(
        f"{path} must have at most the {stated} rows that n_rows states, and has more",
        f"pass their number with {advice('n_rows')}",
    )


def is_list(kind: Any) -> bool:
    types = pyarrow("pyarrow").types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _number_type(kind: Any) -> Any:
    """Of the elements of a list; of a number it is the type itself."""
    return kind.value_type if is_list(kind) else kind


@cache
def non_numeric(kind: Any) -> NonNumeric | None:
    """Why a column of this type cannot be a feature; None for numbers."""
    types = pyarrow("pyarrow").types
    if types.is_dictionary(kind):
        return non_numeric(kind.value_type)
    if any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)):
        return None
    if types.is_null(kind):
        return None
    if types.is_temporal(kind):
        return NonNumeric("dates or times")
    if any(word in str(kind) for word in ("string", "binary")) and not types.is_nested(kind):
        return NonNumeric("text")
    if is_list(kind) and not types.is_nested(kind.value_type) and non_numeric(kind.value_type) is None:
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


def number_after(before: str, text: str) -> str:
    """The number behind some words, or nothing."""
    match = re.search(rf"{before}(\d+)", text)
    return match[1] if match else ""


def pyarrow(module: str) -> Any:
    return require(module, extra="files", purpose="reading CSV, Parquet and Arrow files")
