"""OwnerRows: the rows of one owner, read once per secure sum, whatever they are kept in."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca.backend import HOST, batch_slices, dense
from fedpca.backend.prefetch import prefetch
from fedpca.readers import RowReader


@dataclass(frozen=True)
class OwnerRows:
    """Rows that can be read again.

    Attributes:
        n_rows, n_features: their shape.
        feature_names: one per feature, or None.
        fingerprint: changes when the rows do.
        parts: all rows from the first, in dense parts, NaN for missing.
        source: what they are read from.
    """

    n_rows: int
    n_features: int
    feature_names: tuple[str, ...] | None
    fingerprint: str
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

        return cls(n_rows, reader.n_features, reader.feature_names, reader.fingerprint(), parts, reader)

    @classmethod
    def of_table(cls, rows: RowsLike, feature_names: tuple[str, ...] | None = None) -> Self:
        """The rows of an array or a sparse matrix in memory."""
        n_rows, n_features = rows.shape
        size = _chunk_rows(n_features)

        def parts() -> Iterator[Array]:
            for part in batch_slices(n_rows, size):
                yield np.asarray(dense(rows[part]), dtype=np.float64)

        digest = hashlib.sha256(f"{n_rows} {n_features}".encode()).hexdigest()
        return cls(n_rows, n_features, feature_names, digest, parts, rows)


def _chunk_rows(n_features: int) -> int:
    return max(64, HOST.chunk_entries // n_features)
