"""RowCounts: what a policy has to know about rows and no summary of them tells, counted in one pass."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple, Self

import numpy as np
from scipy.sparse import issparse

from fedpca import progress
from fedpca._typing import JSON, AnyArray, Array, RowsLike
from fedpca._util.text import feature_label, sanitize
from fedpca.parallel import prefetch
from fedpca.readers import RowReader
from fedpca.summaries import validation

_FIRST_ROWS = 64  # after which most columns that are not binary are known not to be


class Rows(NamedTuple):
    """Rows to be counted, whatever they are kept in.

    Attributes:
        length: how many there are, without a look at any.
        n_features: the length of each.
        names: one per feature, or None.
        batches: all of them, as float arrays, or sparse as they are.
    """

    length: Callable[[], int]
    n_features: int
    names: tuple[str, ...] | None
    batches: Callable[[], Iterator[AnyArray]]

    @classmethod
    def of(cls, rows: RowsLike) -> Self:
        """Of an array, a frame, a sparse matrix, or files from `open_rows`."""
        return cls._of_files(rows) if isinstance(rows, RowReader) else cls._of_table(rows)

    @classmethod
    def _of_files(cls, reader: RowReader) -> Self:
        def count() -> int:
            return sum(map(len, reader.batches())) if reader.n_rows is None else reader.n_rows

        def batches() -> Iterator[AnyArray]:
            with progress.bar("count", reader.n_rows, "rows") as bar, prefetch(reader.batches()) as parts:
                for batch in parts:
                    yield batch.rows
                    bar.advance(len(batch))

        return cls(count, reader.n_features, reader.feature_names, batches)

    @classmethod
    def _of_table(cls, table: RowsLike) -> Self:
        validation.require_table(table)
        shape = np.shape(table)
        if len(shape) != 2:
            raise ValueError(f"rows must be a table of shape (n_rows, n_features), got shape {shape}.")

        def batches() -> Iterator[AnyArray]:
            yield table if issparse(table) else np.asarray(table, dtype=np.float64)

        return cls(lambda: shape[0], shape[1], validation.names_of(table), batches)


@dataclass(frozen=True)
class RowCounts:
    """Counts of rows that are not private.

    Attributes:
        rows: rows with any value.
        fewest_values: of the column with the fewest values; columns without any do not count.
        smallest_level: rows in the rarer level of a binary column, the smallest of all columns; None if no
            column is binary. A column is if exactly two different values occur in it.
        column: the column with the smallest level, or "".

    >>> RowCounts.of([[1.5, 0.0], [2.5, 0.0], [3.5, 1.0]])
    RowCounts(rows=3, fewest_values=3, smallest_level=1, column='feature 2')
    """

    rows: int
    fewest_values: int
    smallest_level: int | None
    column: str = ""

    @classmethod
    def of(cls, rows: RowsLike) -> Self:
        """The counts of rows: an array, a frame, a sparse matrix, or files from `open_rows`."""
        given = Rows.of(rows)
        counter = _Counter(given.n_features)
        for batch in given.batches():
            counter.update(batch)
        if not counter.n_rows:
            raise ValueError("there are no rows to count.")
        smallest, column = counter.smallest_level()
        name = "" if column is None else sanitize(feature_label(column, given.names), 100)
        return cls(counter.n_rows, counter.fewest_values(), smallest, name)

    def to_json(self) -> JSON:
        """Numbers only."""
        return {name: value for name, value in asdict(self).items() if name != "column"}

    @classmethod
    def from_json(cls, contents: object) -> Self:
        """The inverse of `to_json`; raises ValueError for anything else."""
        names = {field.name for field in fields(cls)} - {"column"}
        if not isinstance(contents, Mapping) or set(contents) != names:
            raise ValueError(f"counts of rows must be a JSON object with {', '.join(sorted(names))}.")
        for name, value in contents.items():
            if value is None and name == "smallest_level":
                continue
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r:.80}.")
        return cls(**contents)


class _Counter:
    """Per column its first two values, how often each occurs, and whether there is a third."""

    def __init__(self, n_features: int) -> None:
        self.n_rows = 0
        self._values = np.zeros(n_features, dtype=np.int64)
        self._levels: Array = np.full((2, n_features), np.nan)
        self._counts = np.zeros((2, n_features), dtype=np.int64)
        self._many = np.zeros(n_features, dtype=bool)

    def update(self, rows: AnyArray) -> None:
        if issparse(rows):
            self._update_sparse(rows)
            return
        known = ~np.isnan(rows)
        self.n_rows += int(known.any(axis=1).sum())
        self._values += known.sum(axis=0)
        for part in (slice(_FIRST_ROWS), slice(_FIRST_ROWS, None)):
            self._count_dense(rows[part], known[part])

    def _count_dense(self, rows: AnyArray, known: AnyArray) -> None:
        columns = np.flatnonzero(~self._many)
        if not len(rows) or not len(columns):
            return
        rest = known if len(columns) == len(self._many) else known[:, columns]
        rows = rows if len(columns) == len(self._many) else rows[:, columns]
        for level, counts in zip(self._levels, self._counts, strict=True):
            new = np.isnan(level[columns]) & rest.any(axis=0)
            level[columns[new]] = rows[rest[:, new].argmax(axis=0), np.flatnonzero(new)]
            same = rows == level[columns]
            counts[columns] += same.sum(axis=0)
            rest = rest & ~same
        self._many[columns] = rest.any(axis=0)

    def _update_sparse(self, rows: RowsLike) -> None:
        rows = rows.tocsc(copy=True)
        rows.sum_duplicates()  # of one entry, which would be two values
        self.n_rows += rows.shape[0]
        stored = np.diff(rows.indptr)
        self._values += rows.shape[0]
        zeros = rows.shape[0] - stored
        empty = np.flatnonzero(zeros)
        self._count(empty, np.zeros(len(empty)), zeros[empty])
        values = rows.data.astype(np.float64)
        columns = np.repeat(np.arange(rows.shape[1]), stored)
        missing = np.isnan(values)
        self._values -= np.bincount(columns[missing], minlength=rows.shape[1])
        self._count(columns[~missing], values[~missing], np.ones(len(values), dtype=np.int64)[~missing])

    def _count(self, columns: AnyArray, values: Array, times: AnyArray) -> None:
        """Count values, each so many times; columns ascend."""
        known = ~self._many[columns]
        columns, values, times = columns[known], values[known], times[known]
        for level, counts in zip(self._levels, self._counts, strict=True):
            where = np.flatnonzero(np.diff(columns, prepend=-1))
            first = columns[where]
            new = np.isnan(level[first])
            level[first[new]] = values[where[new]]
            same = values == level[columns]
            counts += np.bincount(columns[same], times[same], len(counts)).astype(np.int64)
            columns, values, times = columns[~same], values[~same], times[~same]
        self._many[columns] = True

    def fewest_values(self) -> int:
        known = self._values[self._values > 0]
        return int(known.min()) if len(known) else 0

    def smallest_level(self) -> tuple[int | None, int | None]:
        """Its rows and its column."""
        rarer = self._counts.min(axis=0)
        columns = np.flatnonzero(~self._many & (rarer > 0))
        if not len(columns):
            return None, None
        column = columns[rarer[columns].argmin()]
        return int(rarer[column]), int(column)
