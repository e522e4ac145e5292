"""The content of the files of a dataset, and its checksum."""

import hashlib
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedpca._typing import AnyArray, RowsLike


class Content(NamedTuple):
    """Rows, with their labels, clients and names."""

    rows: RowsLike
    labels: AnyArray | None = None
    clients: AnyArray | None = None
    feature_names: tuple[str, ...] | None = None

    def sha256(self) -> str:
        """Checksum of rows, labels and clients, whatever the file format.

        It is of the numbers and not of the bytes of a file, because the same numbers are in many files: as
        published, as an .npz that somebody converted (no two of which are the same to the byte), compressed
        by another version of gzip. Names of features are left out: copies distinguish duplicates
        differently.
        """
        digest = hashlib.sha256()
        for part in (*_parts(self.rows), self.labels, self.clients):
            values = np.zeros(0) if part is None else np.asarray(part)
            digest.update(repr(values.shape).encode())
            if values.dtype.kind == "f":
                values = np.where(np.isnan(values), np.nan, values + 0.0)  # one kind of NaN, and of zero
            elif values.dtype.kind == "U":
                values = np.frombuffer("\n".join(values).encode(), np.uint8)
            digest.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


def _parts(rows: RowsLike) -> tuple[AnyArray, ...]:
    if not sparse.issparse(rows):
        return (rows,)
    return rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64), np.array(rows.shape)
