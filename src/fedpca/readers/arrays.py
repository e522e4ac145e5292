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
from fedpca.readers.data_file import Batch, DataFile, ReadRequest, translate_errors

_BLOCK_BYTES = 2**28  # at most this much is read at once to avoid decoding a chunk twice
_SPARSE_ENTRIES = 2**21  # stored entries of a sparse batch


class OpenFile(NamedTuple):
    """The contents of a file while it is open.

    Attributes:
        rows: has `shape` and `dtype`, and gives `rows[start:stop]`.
        names: of the columns, if they have any.
        passthrough: columns beside the rows, which give slices too.
        chunk_rows: rows that are stored, and so best read, together.
    """

    rows: Any
    names: tuple[str, ...] | None = None
    passthrough: Mapping[str, Any] = {}
    chunk_rows: int = 1


class ArrayFile(DataFile):
    """A file that contains one two-dimensional array, dense or CSR.

    Args:
        path: the file.
        kind: what it should be, for messages.
        open_file: opens it.
        starts_anywhere: whether it can be read from any row on, by several threads.
    """

    path: Path

    def __init__(
        self,
        path: Path,
        kind: str,
        open_file: Callable[[Path], AbstractContextManager[OpenFile]],
        *,
        starts_anywhere: bool = False,
    ) -> None:
        self.path, self._kind, self._open = path, kind, open_file
        self._starts_anywhere = starts_anywhere
        with translate_errors(path, kind), open_file(path) as file:
            shape, dtype = file.rows.shape, file.rows.dtype
            if len(shape) != 2:
                raise FileFormatError(f"{path} must have rows and columns, got shape {shape}; reshape it.")
            if dtype.kind not in "fiub":
                raise FileFormatError(f"{path} must contain real numbers, got {dtype}; convert it.")
            if not shape[1]:
                raise FileFormatError(f"{path} must have columns, got shape {shape}.")
            self.names, (self.n_rows, self.n_columns) = file.names, shape
            self.sparse = isinstance(file.rows, Csr)
            self.non_numeric, self.passthrough_names = {}, tuple(file.passthrough)
        self._dtype = ops.working_dtype(dtype.newbyteorder("="))

    def dtype(self, columns: Sequence[str] | None) -> np.dtype[Any]:
        return self._dtype

    def starts(self) -> Sequence[int]:
        return range(self.n_rows or 0) if self._starts_anywhere else (0,)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        with translate_errors(self.path, self._kind), self._open(self.path) as file:
            selected = None
            if request.columns not in (None, file.names):
                indices = {name: i for i, name in enumerate(file.names or ())}
                selected = [indices[name] for name in request.columns or ()]
            cut = _sparse_batches if self.sparse else _dense_batches
            for start, rows in cut(file, request):
                if selected is not None:
                    rows = rows[:, selected]
                stop = start + rows.shape[0]
                passthrough = {
                    name: np.asarray(file.passthrough[name][start:stop]) for name in request.passthrough
                }
                yield Batch(rows.astype(request.dtype, copy=False), request.columns, passthrough)


def _dense_batches(file: OpenFile, request: ReadRequest) -> Iterator[tuple[int, NDArray[Any]]]:
    """Batches with the index of their first row, from blocks that end where chunks end."""
    n_rows, n_columns = file.rows.shape
    size, chunk = request.batch_rows, file.chunk_rows
    block = size
    if chunk > size and chunk * n_columns * file.rows.dtype.itemsize <= _BLOCK_BYTES:
        block = chunk
    elif chunk <= size:
        block = size - size % chunk
    start = request.skip
    while start < n_rows:
        rows = file.rows[start : min(n_rows, (start // block + 1) * block)]
        for first in range(0, len(rows), size):
            yield start + first, np.ascontiguousarray(rows[first : first + size])
        start += len(rows)


def _sparse_batches(file: OpenFile, request: ReadRequest) -> Iterator[tuple[int, Any]]:
    """Batches with the index of their first row, small enough however full the rows are."""
    start = request.skip
    while start < file.rows.shape[0]:
        ends = file.rows.ends[start : start + request.batch_rows + 1]
        fit = int(np.searchsorted(ends[1:] - ends[0], _SPARSE_ENTRIES, side="right"))
        stop = start + max(1, min(fit, len(ends) - 1))
        yield start, file.rows.read(ends[: stop - start + 1])
        start = stop


class Csr:
    """Sparse rows, stored as three arrays.

    Attributes:
        ends: where each row starts in the other two, and where the last one ends.
    """

    def __init__(self, data: Any, indices: Any, ends: Any, shape: Sequence[int]) -> None:
        self.data, self.indices, self.ends = data, indices, ends
        self.shape, self.dtype = tuple(int(size) for size in shape), data.dtype
        if ends.shape != (self.shape[0] + 1,) or data.shape != indices.shape:
            raise ValueError("arrays of different lengths")

    def read(self, ends: NDArray[Any]) -> Any:
        """The rows that start and end at these offsets."""
        first, last = int(ends[0]), int(ends[-1])
        stored = self.data[first:last], self.indices[first:last], ends - first
        rows = sparse.csr_array(stored, shape=(len(ends) - 1, self.shape[1]))
        rows.check_format(full_check=True)  # indices outside the row would be written to, unchecked
        return rows


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
            raise ValueError("truncated")

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
                f"arrays must contain numbers or text, got {self.dtype}; pickled objects are not loaded."
            )
        self.file.seek(self.start + offset)
        view = out.reshape(-1).view(np.uint8).data
        while len(view):
            if not (n_bytes := self.file.readinto(view)):  # type: ignore[attr-defined]
                raise EOFError
            view = view[n_bytes:]


def open_npy(path: Path) -> ArrayFile:
    """A table of numbers in an .npy file."""
    return ArrayFile(path, ".npy file", _open_npy, starts_anywhere=True)


@contextmanager
def _open_npy(path: Path) -> Iterator[OpenFile]:
    with path.open("rb", buffering=0) as file:
        yield OpenFile(Npy(file, path.stat().st_size))


def open_npz(path: Path) -> ArrayFile:
    """The one table in an .npz file, or what `scipy.sparse.save_npz` wrote; columns may be beside a table."""
    return ArrayFile(path, ".npz file", _open_npz)


@contextmanager
def _open_npz(path: Path) -> Iterator[OpenFile]:
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
                raise FileFormatError(f"{path}: sparse rows must be CSR, got {layout}; save rows.tocsr().")
            shape = arrays["shape"].read().tolist()
            yield OpenFile(Csr(arrays["data"], arrays["indices"], arrays["indptr"], shape))
            return
        tables = [name for name, array in arrays.items() if len(array.shape) == 2]
        if len(tables) != 1:
            raise FileFormatError(
                f"{path} must contain one table, got {join_names(tables) or 'none'}; save the rows alone."
            )
        rows = arrays.pop(tables[0])
        beside = {name: array for name, array in arrays.items() if array.shape == rows.shape[:1]}
        yield OpenFile(rows, passthrough=beside)
