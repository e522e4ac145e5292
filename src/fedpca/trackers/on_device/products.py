"""Sums of rows on their device: how a batch becomes a scatter and a sum, in the precision asked for."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import numpy as np

from fedpca._typing import DeviceArray, DType
from fedpca.backend import Backend, batch_slices

_SHIFT_ROWS = 1024  # whose mean is 1/32 of a deviation off: nothing beside what is lost to rounding
_CHUNK_ENTRIES = 2**26  # of a copy of rows: 256 MB in float32


class Sums(NamedTuple):
    """Of rows less a shift, each times the root of its weight: X; in float64, on the device.

    Attributes:
        row_sum: the weighted sum, shape (d,).
        energy: the sum of squares of X, as it is multiplied.
        scatter: gives X^T X, shape (d, d); to be called once. The last product is given to the device only
            then, so that what is fetched before does not wait for it.
    """

    row_sum: DeviceArray
    energy: DeviceArray
    scatter: Callable[[], DeviceArray]


class Products(Protocol):
    """One way to take `Sums`."""

    def __call__(self, rows: DeviceArray, roots: DeviceArray | None, shift: DeviceArray) -> Sums:
        """The sums of rows, shape (n, d), of any real dtype.

        Args:
            rows: on the device.
            roots: of the weights, float32 or float64, shape (n,); None for 1.
            shift: float64, shape (d,).
        """


class LibraryProducts:
    """By the products of the rows' own library, chunk by chunk, added up in float64."""

    def __init__(self, backend: Backend, dtype: DType) -> None:
        self._backend = backend
        self._dtype = dtype

    def __call__(self, rows: DeviceArray, roots: DeviceArray | None, shift: DeviceArray) -> Sums:
        backend, xp = self._backend, self._backend.xp
        n_rows, n_features = rows.shape
        shift = backend.asarray(shift, self._dtype)
        scatter = backend.zeros((n_features, n_features), np.float64)
        row_sum = backend.zeros((n_features,), np.float64)
        for part in batch_slices(n_rows, max(1, _CHUNK_ENTRIES // n_features)):
            chunk = backend.asarray(rows[part, :], self._dtype) - shift
            if roots is None:
                row_sum += xp.sum(chunk, axis=0, dtype=xp.float64)
            else:
                own = backend.asarray(roots[part], self._dtype)[:, None]
                chunk *= own
                row_sum += xp.sum(chunk * own, axis=0, dtype=xp.float64)
            scatter += backend.asarray(chunk.T @ chunk, np.float64)
        return Sums(row_sum, xp.sum(xp.linalg.diagonal(scatter)), lambda: scatter)


def fast_products(backend: Backend) -> Products:
    """The fastest products of float32 rows: on tensor cores where there are any, else the library's own."""
    if backend.has_tensor_cores and find_spec("triton") is not None:
        from fedpca.trackers.on_device.tensor_cores import TensorCoreProducts  # needs torch and Triton

        return TensorCoreProducts()
    return LibraryProducts(backend, np.dtype(np.float32))


def middle_of(backend: Backend, rows: DeviceArray, roots: DeviceArray | None) -> DeviceArray:
    """A shift near the mean of rows, float64, shape (d,): the mean of some, evenly spread over all."""
    xp, step = backend.xp, max(1, rows.shape[0] // _SHIFT_ROWS)
    some = backend.asarray(rows[::step, :], np.float64)
    if roots is None:
        return xp.mean(some, axis=0)
    weights = backend.asarray(roots[::step], np.float64) ** 2
    total = xp.sum(weights)
    return (weights @ some) / xp.where(total > 0, total, xp.ones_like(total))


def random_signs(backend: Backend, n_rows: int, n_columns: int, *, seed: int) -> DeviceArray:
    """A matrix of float64 with entries 1 and -1, the same for the same seed: a bit each to send."""
    xp, n = backend.xp, n_rows * n_columns
    packed = np.frombuffer(np.random.default_rng(seed).bytes(-(-n // 8)), np.uint8)
    places = backend.asarray(np.arange(8, dtype=np.uint8))
    bits = (backend.asarray(packed)[:, None] >> places[None, :]) & 1
    return 2 * backend.asarray(xp.reshape(xp.reshape(bits, (-1,))[:n], (n_rows, n_columns)), np.float64) - 1
