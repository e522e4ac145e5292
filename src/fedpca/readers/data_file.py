"""What every format offers: a file described and read in batches, and errors that name the file."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca.errors import FileFormatError
from fedpca.readers.remote import RemoteFile

if TYPE_CHECKING:
    from fedpca.genetics.variants import VariantMatch

Source = Path | RemoteFile


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Some rows of a file. Estimators take it like an array, and learn or check the names.

    Attributes:
        rows: shape (n, n_features), float32 or float64, NaN where missing; a `csr_array` from sparse files.
        feature_names: one per column of `rows`; None if the file has none.
        passthrough: the passthrough columns, each of n entries.
    """

    rows: Any
    feature_names: tuple[str, ...] | None = None
    passthrough: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.rows.shape[0])

    def n_empty_rows(self) -> int:
        """How many rows have no value at all."""
        if sparse.issparse(self.rows):
            return 0  # what is not stored is 0, not missing
        suspects = self.rows[np.isnan(self.rows[:, 0])]
        return int(np.isnan(suspects).all(axis=1).sum())

    def skip(self, n_rows: int) -> "Batch":
        """The batch without its first rows."""
        return self._part(slice(n_rows, None))

    def first(self, n_rows: int) -> "Batch":
        """The first rows of the batch."""
        return self._part(slice(n_rows))

    def _part(self, part: slice) -> "Batch":
        passthrough = {name: values[part] for name, values in self.passthrough.items()}
        return Batch(self.rows[part], self.feature_names, passthrough)


class ReadRequest(NamedTuple):
    """What to read of a file.

    Attributes:
        columns: names of the features, in order; None for all columns of a file without names.
        passthrough: names of the passthrough columns.
        dtype: of the rows.
        batch_rows: maximum rows per batch.
        skip: rows to skip, at most as many as there are; 0 where `n_rows` is not known.
    """

    columns: tuple[str, ...] | None
    passthrough: tuple[str, ...]
    dtype: np.dtype[Any]
    batch_rows: int
    skip: int


class NonNumeric(NamedTuple):
    """Why a column cannot be a feature.

    Attributes:
        contains: what the column contains, for messages.
        conversion: how its numbers become readable, with a field for its name; "" if it has none.
    """

    contains: str
    conversion: str = ""


class DataFile(ABC):
    """One file, as its format describes it. No handle is held: every pass opens it anew.

    Attributes:
        path: the file.
        names: of the columns that can be features; None if they have none.
        n_columns: their number.
        n_rows: None if it is known only after reading.
        sparse: whether batches are.
        non_numeric: columns that cannot be features, each with the reason.
        passthrough_names: names of what can be passed through.
        lists: columns that contain lists, each with the names of its elements, which are features.
        match: how the variants of a file of genotypes are those asked for; None for other files.
    """

    path: Source
    names: tuple[str, ...] | None
    n_columns: int
    n_rows: int | None = None
    sparse: bool = False
    non_numeric: Mapping[str, NonNumeric]
    passthrough_names: Collection[str]
    lists: Mapping[str, tuple[str, ...]] = {}
    match: "VariantMatch | None" = None

    def place(self, row: int) -> str:
        """Where a row is, for messages; the first is 1."""
        return f"{self.path}, row {row}"

    def other_tables(self) -> list[str]:
        """What to do if another table in the file was meant."""
        return []

    @abstractmethod
    def dtype(self, columns: Sequence[str] | None) -> np.dtype[Any]:
        """Of the named columns read together; of all for None."""

    def starts(self) -> Sequence[int]:
        """Rows at which reading can begin at no cost: from there on, threads can read parts of a file."""
        return (0,)

    @abstractmethod
    def read(self, request: ReadRequest) -> Iterator[Batch]:
        """Batches of at least one row, in order."""


@contextmanager
def translate_errors(path: Source, kind: str, remedy: str = "write or copy it again") -> Iterator[None]:
    """Turn whatever a library raises about a file into one line that names the file."""
    try:
        yield
    except (FileFormatError, ImportError, MemoryError):
        raise
    except Exception as error:  # libraries raise anything on bytes they do not expect
        if isinstance(path, RemoteFile):
            if isinstance(error, ConnectionError | FileNotFoundError | PermissionError):
                raise  # the message names it
        elif isinstance(error, PermissionError):
            raise PermissionError(f"cannot read {path}: Permission denied; ask its owner.") from error
        elif isinstance(error, FileNotFoundError) and not path.exists():
            raise FileNotFoundError(f"{path} was removed while being read; reopen it.") from error
        raise FileFormatError(f"{path} is not a valid {kind} (truncated or corrupt); {remedy}.") from error
