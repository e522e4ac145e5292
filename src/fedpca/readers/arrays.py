"""Arrays in files, dense or CSR, read slice by slice; those of NumPy."""

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca._util.text import join_names
from fedpca.backend import ops
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch, Part, Reading, reading

_BLOCK_BYTES = 2**28  # the most that is read at once to spare a chunk being decoded again
_STORED_NUMBERS = 2**21  # of a sparse batch


class Stored(NamedTuple):
    """An open file.

    Attributes:
        rows: has `shape` and `dtype`, and gives `rows[start:stop]`.
        names: of the columns, if they have any.
        aside: columns beside, which give slices too.
        unit: rows that are stored, and so best read, together.
    """

    rows: Any
    names: tuple[str, ...] | None = None
    aside: Mapping[str, Any] = {}
    unit: int = 1


Opener = Callable[[Path], AbstractContextManager[Stored]]


def part_of(path: Path, kind: str, open_stored: Opener) -> Part:
    """The part that reads what `open_stored` opens."""

    def read(wanted: Reading) -> Iterator[Batch]:
        with reading(path, kind), open_stored(path) as stored:
            picked = None
            if wanted.columns not in (None, stored.names):
                places = {name: place for place, name in enumerate(stored.names or ())}
                picked = [places[name] for name in wanted.columns or ()]
            cut = _sparse_cuts if isinstance(stored.rows, Csr) else _cuts
            for start, rows in cut(stored, wanted):
                if picked is not None:
                    rows = rows[:, picked]
                stop = start + rows.shape[0]
                aside = {name: np.asarray(stored.aside[name][start:stop]) for name in wanted.aside}
                yield Batch(rows.astype(wanted.dtype, copy=False), aside)

    with reading(path, kind), open_stored(path) as stored:
        shape, dtype = stored.rows.shape, stored.rows.dtype
        if len(shape) != 2:
            raise FileFormatError(f"{path} must have rows and columns, got shape {shape}; reshape it.")
        if dtype.kind not in "fiub":
            raise FileFormatError(f"{path} must hold real numbers, got {dtype}; convert it.")
        if not shape[1]:
            raise FileFormatError(f"{path} must have columns, got shape {shape}.")
        return Part(
            path=path,
            names=stored.names,
            n_columns=shape[1],
            dtype=lambda _: ops.working_dtype(dtype.newbyteorder("=")),
            read=read,
            asides=tuple(stored.aside),
            n_rows=shape[0],
            sparse=isinstance(stored.rows, Csr),
        )


def _cuts(stored: Stored, wanted: Reading) -> Iterator[tuple[int, NDArray[Any]]]:
    """Batches with their first row's number, from blocks that end where units end."""
    n_rows, n_columns = stored.rows.shape
    size, unit = wanted.size, stored.unit
    block = size
    if unit > size and unit * n_columns * stored.rows.dtype.itemsize <= _BLOCK_BYTES:
        block = unit
    elif unit <= size:
        block = size - size % unit
    start = wanted.skip
    while start < n_rows:
        rows = stored.rows[start : min(n_rows, (start // block + 1) * block)]
        for first in range(0, len(rows), size):
            yield start + first, np.ascontiguousarray(rows[first : first + size])
        start += len(rows)


def _sparse_cuts(stored: Stored, wanted: Reading) -> Iterator[tuple[int, Any]]:
    """Batches with their first row's number, small enough whichever rows are full."""
    start = wanted.skip
    while start < stored.rows.shape[0]:
        ends = stored.rows.ends[start : start + wanted.size + 1]
        fit = int(np.searchsorted(ends[1:] - ends[0], _STORED_NUMBERS, side="right"))
        stop = start + max(1, min(fit, len(ends) - 1))
        yield start, stored.rows.read(ends[: stop - start + 1])
        start = stop


class Csr:
    """Sparse rows, of which a file holds the three arrays.

    Attributes:
        ends: where each row starts in the other two, and the last one ends.
    """

    def __init__(self, data: Any, indices: Any, ends: Any, shape: Sequence[int]) -> None:
        self.data, self.indices, self.ends = data, indices, ends
        self.shape, self.dtype = tuple(int(size) for size in shape), data.dtype
        if ends.shape != (self.shape[0] + 1,) or data.shape != indices.shape:
            raise ValueError("arrays of different lengths")

    def read(self, ends: NDArray[Any]) -> Any:
        """The rows that start and end there."""
        first, last = int(ends[0]), int(ends[-1])
        stored = self.data[first:last], self.indices[first:last], ends - first
        rows = sparse.csr_array(stored, shape=(len(ends) - 1, self.shape[1]))
        rows.check_format(full_check=True)  # places outside the row would be written to, unchecked
        return rows


# NumPy.


class Npy:
    """An array in the .npy format, read and not mapped: a map dies with the file, and counts as memory."""

    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        self.shape, self.by_column, self.dtype = header(file)
        self.file, self.start = file, file.tell()
        if n_bytes < self.start + self.dtype.itemsize * math.prod(self.shape):
            raise ValueError("cut short")

    def read(self) -> NDArray[Any]:
        """All of it; for small ones."""
        out = np.empty(self.shape, self.dtype, order="F" if self.by_column else "C")
        self._fill(out.T if self.by_column else out, 0)
        return out

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        width = self.dtype.itemsize
        if self.by_column and len(self.shape) == 2:
            out = np.empty((last - first, self.shape[1]), self.dtype, order="F")
            for j in range(self.shape[1]):
                self._fill(out[:, j], (j * self.shape[0] + first) * width)
        else:
            out = np.empty((last - first, *self.shape[1:]), self.dtype)
            self._fill(out, first * width * math.prod(self.shape[1:]))
        return out

    def _fill(self, out: NDArray[Any], offset: int) -> None:
        if self.dtype.hasobject:
            raise FileFormatError(
                f"arrays must hold numbers or text, got {self.dtype}; nothing is unpickled."
            )
        self.file.seek(self.start + offset)
        view = out.reshape(-1).view(np.uint8).data
        while len(view):
            if not (n_bytes := self.file.readinto(view)):  # type: ignore[attr-defined]
                raise EOFError
            view = view[n_bytes:]


def open_npy(path: Path) -> Part:
    """A table of numbers in an .npy file."""
    return part_of(path, "an .npy file", _open_npy)


@contextmanager
def _open_npy(path: Path) -> Iterator[Stored]:
    with path.open("rb", buffering=0) as file:
        yield Stored(Npy(file, path.stat().st_size))


def open_npz(path: Path) -> Part:
    """The one table in an .npz file, or what `scipy.sparse.save_npz` wrote; columns may be beside a table."""
    return part_of(path, "an .npz file", _open_npz)


@contextmanager
def _open_npz(path: Path) -> Iterator[Stored]:
    with zipfile.ZipFile(path) as file, ExitStack() as opened:
        arrays = {
            name.removesuffix(".npy"): Npy(
                opened.enter_context(file.open(name)), file.getinfo(name).file_size
            )
            for name in file.namelist()
        }
        if {"format", "shape", "indptr"} <= set(arrays):
            layout = arrays["format"].read().item().decode()
            if layout != "csr":
                raise FileFormatError(
                    f"{path} must hold sparse rows as CSR, got {layout}; save rows.tocsr()."
                )
            shape = arrays["shape"].read().tolist()
            yield Stored(Csr(arrays["data"], arrays["indices"], arrays["indptr"], shape))
            return
        tables = [name for name, array in arrays.items() if len(array.shape) == 2]
        if len(tables) != 1:
            raise FileFormatError(
                f"{path} must hold one table, got {join_names(tables) or 'none'}; save the rows alone."
            )
        rows = arrays.pop(tables[0])
        beside = {name: array for name, array in arrays.items() if array.shape == rows.shape[:1]}
        yield Stored(rows, aside=beside)
