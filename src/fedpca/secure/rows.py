"""OwnerRows: the rows of one owner, read once per secure sum, whatever they are kept in."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca.backend import HOST, batch_slices, dense
from fedpca.parallel import prefetch
from fedpca.readers import RowReader


@dataclass(frozen=True)
class OwnerRows:
    """Rows that can be read again.

    Attributes:
        n_rows, n_features: their shape.
        feature_names: one per feature, or None.
        parts: all rows from the first, in dense parts, NaN for missing.
        source: what they are read from.
    """

    n_rows: int
    n_features: int
    feature_names: tuple[str, ...] | None
    parts: Callable[[], Iterator[Array]]
    source: RowsLike | RowReader

    @classmethod
    def of_reader(cls, reader: RowReader) -> Self:
        """The rows of files."""
        n_rows = reader.n_rows
        if n_rows is None:
            n_rows = sum(len(batch) for batch in reader.batches())
        size = _chunk_rows(reader.n_features)

        def parts() -> Iterator[Array]:
            with prefetch(reader.batches()) as batches:
                for batch in batches:
                    for part in batch_slices(len(batch), size):
                        yield np.asarray(dense(batch.rows[part]), dtype=np.float64)

        return cls(n_rows, reader.n_features, reader.feature_names, parts, reader)

    @classmethod
    def of_table(cls, rows: RowsLike, feature_names: tuple[str, ...] | None = None) -> Self:
        """The rows of an array or a sparse matrix in memory."""
        n_rows, n_features = rows.shape
        size = _chunk_rows(n_features)

        def parts() -> Iterator[Array]:
            for part in batch_slices(n_rows, size):
                yield np.asarray(dense(rows[part]), dtype=np.float64)

        return cls(n_rows, n_features, feature_names, parts, rows)


class HashedParts:
    """Parts of rows, hashed as they are read: the same rows in other parts have the same digest.

    >>> rows = np.arange(6.0).reshape(3, 2)
    >>> whole, halves = HashedParts([rows]), HashedParts([rows[:1], rows[1:]])
    >>> len(list(whole)), len(list(halves)), whole.digest() == halves.digest()
    (1, 2, True)
    """

    def __init__(self, parts: Iterable[Array]) -> None:
        self._parts = iter(parts)
        self._hash = hashlib.blake2b(digest_size=32)

    def __iter__(self) -> Iterator[Array]:
        for part in self._parts:
            self._hash.update(np.ascontiguousarray(part, dtype="<f8").data)
            yield part

    def digest(self) -> str:
        """Of all rows; those that nobody has read yet are read now."""
        for _ in self:
            pass
        return self._hash.hexdigest()


def _chunk_rows(n_features: int) -> int:
    return max(64, HOST.chunk_entries // n_features)
