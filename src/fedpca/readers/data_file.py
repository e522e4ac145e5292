"""What every format gives: one file, opened, and the error that names it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca.errors import FileFormatError


class Batch(NamedTuple):
    """Some rows of a file.

    Attributes:
        rows: shape (n, n_features), float32 or float64, NaN where missing; a `csr_array` from sparse files.
        aside: the columns kept aside, each of n entries.
    """

    rows: Any
    aside: dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file, as its format describes it. No handle is held: every pass opens it anew.

    Attributes:
        path: where it is.
        names: of the columns that can be features; None if they have none.
        n_columns: their number.
        dtype: of the named columns read together; of all for None.
        read: batches of at most `size` rows.
        others: columns that hold no numbers, each with a word for what it holds.
        asides: names of what can be kept aside.
        n_rows: None if only reading tells.
        sparse: whether batches are.
    """

    path: Path
    names: tuple[str, ...] | None
    n_columns: int
    dtype: Callable[[Sequence[str] | None], np.dtype[Any]]
    read: Callable[["Reading"], Iterator[Batch]]
    others: Mapping[str, str] = field(default_factory=dict)
    asides: Collection[str] = ()
    n_rows: int | None = None
    sparse: bool = False


class Reading(NamedTuple):
    """What to read of a file.

    Attributes:
        columns: names of the features, in order; all columns for None.
        aside: names of what to keep aside.
        dtype: of the rows.
        size: the most rows of a batch.
        skip: rows to pass over, at most as many as there are; 0 where `n_rows` is not known.
    """

    columns: tuple[str, ...] | None
    aside: tuple[str, ...]
    dtype: np.dtype[Any]
    size: int
    skip: int


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever a library says about a file becomes one line that names the file."""
    try:
        yield
    except (FileFormatError, ImportError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there any more; read again what is there now.") from error
    except PermissionError as error:
        raise PermissionError(f"{path} must be readable, got: Permission denied; ask its owner.") from error
    except Exception as error:  # libraries raise anything on bytes they do not expect
        raise FileFormatError(
            f"{path} must be {kind}, and is cut short, damaged or something else; write or copy it again."
        ) from error


def missing_extra(package: str) -> ImportError:
    """The error for a library that is not installed."""
    return ImportError(f"this file needs {package}: pip install 'fedpca[files]'.")
