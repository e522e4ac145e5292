"""NumpyBackend: NumPy on the host."""

from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpca._typing import DeviceArray
from fedpca.backend.array_api import to_host
from fedpca.backend.base import NO_CONTEXT, Backend


@final
class NumpyBackend(Backend):
    """NumPy on the host, for whatever NumPy can convert."""

    on_device = False
    chunk_entries = 2**20
    xp: Any = np

    def asarray(self, values: DeviceArray, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
        return np.asarray(to_host(values), dtype)

    def to_numpy(self, *arrays: DeviceArray) -> list[NDArray[np.float64]]:
        return [np.asarray(array, np.float64) for array in arrays]

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        return np.zeros(shape, dtype)

    def is_native(self, values: DeviceArray, dtype: DTypeLike) -> bool:
        return isinstance(values, np.ndarray) and values.dtype == dtype

    def numpy_dtype(self, values: DeviceArray) -> np.dtype[Any]:
        return values.dtype

    def orthonormal_columns(self, matrix: DeviceArray) -> DeviceArray:
        return np.linalg.qr(matrix).Q

    def compute_context(self) -> AbstractContextManager[object]:
        return NO_CONTEXT


HOST = NumpyBackend()
