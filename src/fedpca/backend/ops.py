"""Arithmetic on rows of any backend, and the limits within which it keeps its digits."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from fedpca._typing import Array, DeviceArray
from fedpca.backend.dispatch import backend_of
from fedpca.parallel import map_parts

_PART_ENTRIES = 2**21  # of a sum that threads share
_BLOCK = 2**13  # entries whose squares are added one after another


def batch_slices(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that make up n_rows.

    >>> list(batch_slices(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def even_cuts(n_rows: int, n_parts: int) -> list[slice]:
    """Contiguous parts of almost the same length.

    >>> even_cuts(10, 4)
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    ends = [n_rows * i // n_parts for i in range(n_parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def blocks(part: slice, size: int) -> list[slice]:
    """A part in pieces of almost the same length, of at least `size` and less than twice as much.

    >>> blocks(slice(10, 19), 4)
    [slice(10, 14, None), slice(14, 19, None)]
    """
    start, n_rows = part.start, part.stop - part.start
    cuts = even_cuts(n_rows, max(n_rows // size, 1))
    return [slice(start + cut.start, start + cut.stop) for cut in cuts]


def dense(rows: DeviceArray) -> DeviceArray:
    """Rows as a dense array, if they are sparse."""
    return rows.toarray() if sparse.issparse(rows) else rows


def working_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.floating]:
    """float32 for float16 and float32 rows, float64 for the rest."""
    return np.dtype(np.float32 if dtype in (np.float16, np.float32) else np.float64)


def energy(rows: DeviceArray) -> float:
    """The sum of squares of all entries, computed at memory speed; not finite if any entry is not.

    By blocks: a sum of millions one after another rounds to 1e-12, which may be more than a direction has.
    """
    if not isinstance(rows, np.ndarray):
        backend = backend_of(rows)
        floats = backend.numpy_dtype(rows) in (np.float32, np.float64)
        return float(backend.xp.linalg.vector_norm(rows)) ** 2 if floats else sum64(row_energies(rows))
    if rows.flags.c_contiguous or rows.flags.f_contiguous:
        flat = rows.ravel(order="K")
        parts = even_cuts(flat.size, max(flat.size // _PART_ENTRIES, 1))
        return sum(map_parts(lambda part: _sum_of_squares(flat[part]), parts))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.einsum("ij,ij->", rows, rows))


def _sum_of_squares(values: Array) -> float:
    n_whole = len(values) - len(values) % _BLOCK
    rest = values[n_whole:]
    last = float(np.vdot(rest, rest))
    if not n_whole:
        return last
    blocks = values[:n_whole].reshape(-1, _BLOCK)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum64(np.vecdot(blocks, blocks)) + last


def row_energies(rows: DeviceArray) -> DeviceArray:
    """The sum of squares of each row, shape (n,)."""
    if sparse.issparse(rows):
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    if isinstance(rows, np.ndarray):
        return np.vecdot(rows, rows)
    backend = backend_of(rows)
    if backend.numpy_dtype(rows) not in (np.float32, np.float64):
        size = max(1, backend.chunk_entries // rows.shape[1])
        parts = (backend.asarray(rows[part, :], np.float32) for part in batch_slices(rows.shape[0], size))
        return backend.xp.concat([row_energies(part) for part in parts])
    return backend.xp.linalg.vector_norm(rows, axis=1) ** 2  # vecdot would write all squares first


def sum64(values: DeviceArray) -> float:
    """The sum of all values, in float64."""
    xp = backend_of(values).xp
    return float(xp.sum(values, dtype=xp.float64))


def min_energy(dtype: DTypeLike) -> float:
    """A sum of squares up to which they have lost their digits in a dtype."""
    info = np.finfo(np.dtype(dtype))
    return float(info.tiny / info.eps)


@cache
def max_energy(dtype: DTypeLike = np.float64) -> float:
    """The largest sum of squares worked with in a dtype: sums over very many such still fit."""
    return 1e-8 * float(np.finfo(np.dtype(dtype)).max)


def max_weight(weights: Array | None) -> float:
    """The largest weight, at least one."""
    return 1.0 if weights is None else float(weights.max(initial=1.0))
