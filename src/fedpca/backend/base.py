"""Backend: what fedpca needs of an array library, and of the device its arrays are on."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpca._typing import DeviceArray

NO_CONTEXT = nullcontext()


class Backend(ABC):
    """Where rows are worked on.

    Whatever has as many entries as a row, or as there are rows, is an array of the backend's library. Small
    matrices, with one row per direction, are NumPy arrays of float64 on the host.

    Attributes:
        on_device: whether arrays have to be moved to be NumPy arrays.
        chunk_entries: entries at a time, where rows must be copied.
        has_tensor_cores: whether products of bfloat16 matrices are many times as fast as of float32.
    """

    on_device: ClassVar[bool] = False
    chunk_entries: ClassVar[int]
    has_tensor_cores: ClassVar[bool] = False

    @property
    @abstractmethod
    def xp(self) -> Any:
        """The array-API namespace."""

    @abstractmethod
    def asarray(self, values: DeviceArray, dtype: DTypeLike | None = None) -> DeviceArray:
        """Dense values of any library as an array here, of a numpy dtype; not copied if nothing changes."""

    @abstractmethod
    def fetch(self, *arrays: DeviceArray) -> Callable[[], list[NDArray[np.float64]]]:
        """Begin to copy arrays of this backend, all in one transfer; the result waits for it.

        What is computed between the two calls does not delay it, where the device works by itself.
        """

    def to_numpy(self, *arrays: DeviceArray) -> list[NDArray[np.float64]]:
        """Arrays of this backend as NumPy arrays of float64, all in one transfer."""
        return self.fetch(*arrays)()

    @abstractmethod
    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """An array of zeros, of a numpy dtype."""

    @abstractmethod
    def is_native(self, values: DeviceArray, dtype: DTypeLike) -> bool:
        """Whether dense values are an array of this backend, on its device, of this dtype."""

    @abstractmethod
    def numpy_dtype(self, values: DeviceArray) -> np.dtype[Any]:
        """The numpy dtype that corresponds to that of an array; float16 for bfloat16, which numpy lacks."""

    def compute_context(self) -> AbstractContextManager[object]:
        """The context for computations of this backend."""
        return NO_CONTEXT

    def eigh(self, matrix: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Eigenvalues, ascending, and eigenvectors of a symmetric matrix of float64 of this backend."""
        values, vectors = self.xp.linalg.eigh(matrix)
        return values, vectors

    @property
    def needs_float64(self) -> bool:
        """Whether the user forbids products of float32 rows that round more than float32 does."""
        return False

    def orthonormal_columns(self, matrix: DeviceArray, *, roughly: bool = False) -> DeviceArray:
        """An orthonormal basis of the columns of a tall matrix of float64, as many as these.

        Args:
            roughly: whether it may be a little off, between steps of an iteration, if that is faster.
        """
        return self.xp.linalg.qr(matrix)[0]
