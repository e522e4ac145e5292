"""NumpyBackend: NumPy on the host."""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpca._typing import DeviceArray
from fedpca.backend.array_api import to_host
from fedpca.backend.base import Backend


@final
class NumpyBackend(Backend):
    """NumPy on the host, for whatever NumPy can convert."""

    chunk_entries = 2**20  # 8 MB; from 2^18 to 2^24 times are the same (`benchmarks.constants chunks`)
    xp: Any = np

    def asarray(self, values: DeviceArray, dtype: DTypeLike | None = None) -> NDArray[np.generic]:
        return np.asarray(to_host(values), dtype)

    def fetch(self, *arrays: DeviceArray) -> Callable[[], list[NDArray[np.float64]]]:
        return lambda: [np.asarray(array, np.float64) for array in arrays]

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        return np.zeros(shape, dtype)

    def is_native(self, values: DeviceArray, dtype: DTypeLike) -> bool:
        return isinstance(values, np.ndarray) and values.dtype == dtype

    def numpy_dtype(self, values: DeviceArray) -> np.dtype[Any]:
        return values.dtype


HOST = NumpyBackend()
