"""ArrayApiBackend: any library that follows the array API, on its own device."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from fedpca._typing import DeviceArray, RowsLike
from fedpca._util.extras import require
from fedpca.backend.base import Backend
from fedpca.parallel import single_threaded_blas

_CPU = 1  # kDLCPU of the DLPack protocol
# Sides of a matrix that one core decomposes as fast as an H200: 75 in 0.5 ms, 192 in 3 to 5 instead of 1.7.
_SMALL = 80


@dataclass(frozen=True)
class DeviceBackend(Backend):
    """What all libraries do alike through the array API.

    Attributes:
        library: the module that has the array-API functions.
        device: the device, as that library names it.
    """

    library: str
    device: Any

    on_device = True
    chunk_entries = 2**26  # 512 MB of float64: parts that keep a chip busy for milliseconds

    @abstractmethod
    def _send(self, values: NDArray[np.generic]) -> DeviceArray:
        """A copy of a NumPy array on the device."""

    @property
    def xp(self) -> Any:
        return import_module(self.library)

    def holds(self, values: DeviceArray) -> bool:
        return library_of(values) == self.library and bool(values.device == self.device)

    def asarray(self, values: DeviceArray, dtype: DTypeLike | None = None) -> DeviceArray:
        if not self.holds(values):
            return self._send(np.asarray(to_host(values), dtype))
        wanted = values.dtype if dtype is None else _native_dtype(self.library, np.dtype(dtype))
        return values if wanted == values.dtype else self.xp.astype(values, wanted)

    def fetch(self, *arrays: DeviceArray) -> Callable[[], list[NDArray[np.float64]]]:
        shapes = [array.shape for array in arrays]
        stops = np.cumsum([math.prod(shape) for shape in shapes])
        arrive = self._begin_to_host(self.xp.concat([self.xp.reshape(array, (-1,)) for array in arrays]))

        def arrived() -> list[NDArray[np.float64]]:
            parts = np.split(arrive().astype(np.float64), stops[:-1])
            return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

        return arrived

    def _begin_to_host(self, values: DeviceArray) -> Callable[[], NDArray[Any]]:
        """Begin to copy one array; what is returned waits for it."""
        return lambda: to_host(values)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        return self.xp.zeros(shape, dtype=_native_dtype(self.library, np.dtype(dtype)), device=self.device)

    def is_native(self, values: DeviceArray, dtype: DTypeLike) -> bool:
        return self.holds(values) and values.dtype == _native_dtype(self.library, np.dtype(dtype))

    def numpy_dtype(self, values: DeviceArray) -> np.dtype[Any]:
        return _numpy_dtype(values)

    def eigh(self, matrix: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        if matrix.shape[0] > _SMALL:
            return super().eigh(matrix)
        (on_host,) = self.to_numpy(matrix)
        values, vectors = np.linalg.eigh(on_host)
        return self.asarray(values), self.asarray(vectors)


@final
class ArrayApiBackend(DeviceBackend):
    """CuPy, torch on a CPU and others: nothing but the array API."""

    def _send(self, values: NDArray[np.generic]) -> DeviceArray:
        return self.xp.asarray(values, device=self.device, copy=True)

    @contextmanager
    def compute_context(self) -> Iterator[None]:
        """Single-threaded BLAS inside, and no warnings of NumPy's, if it is below: sums are checked."""
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            yield


def library_of(values: DeviceArray) -> str:
    """The module with the array-API functions for values of this type; "" if NumPy is to convert them."""
    library = _library_by_type.get(type(values))
    if library is None:
        library = _library_by_type[type(values)] = _find_library(values)
    return library


# Finding the library takes up to 80 us and needs an array, of which functools.cache would keep the memory.
_library_by_type: dict[type, str] = {np.ndarray: ""}


def _find_library(values: DeviceArray) -> str:
    if not hasattr(values, "__dlpack__"):
        return ""
    compat = _array_api_compat(values)
    if (
        not compat.is_array_api_obj(values)
        or compat.is_lazy_array(values)
        or not compat.is_writeable_array(values)
    ):
        return ""
    return compat.array_namespace(values).__name__


def to_host(values: DeviceArray) -> NDArray[Any]:
    """Dense values of any library as a NumPy array; not copied if they are one, or on the CPU."""
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack__"):
        return np.asarray(values)
    compat = _array_api_compat(values)
    if _numpy_dtype(values) == np.float16:  # or bfloat16, which numpy lacks
        xp = compat.array_namespace(values)
        values = xp.astype(values, xp.float32)
    if values.__dlpack_device__()[0] == _CPU:
        return np.from_dlpack(values)
    return np.asarray(compat.to_device(values, "cpu"))


def sparse_to_host(rows: RowsLike) -> RowsLike:
    """Sparse rows of torch or CuPy as those of SciPy; all other rows as they are."""
    library = type(rows).__module__.partition(".")[0]
    if library == "cupyx":
        return rows.get()
    layout = str(rows.layout) if library == "torch" else ""
    if "sparse" not in layout:
        return rows
    rows = rows.detach().cpu()
    shape = tuple(rows.shape)
    if layout == "torch.sparse_coo":
        rows = rows.coalesce()
        return sparse.csr_array((to_host(rows.values()), to_host(rows.indices())), shape=shape)
    if layout == "torch.sparse_csr":
        parts = rows.values(), rows.col_indices(), rows.crow_indices()
        return sparse.csr_array(tuple(map(to_host, parts)), shape=shape)
    if layout == "torch.sparse_csc":
        parts = rows.values(), rows.row_indices(), rows.ccol_indices()
        return sparse.csc_array(tuple(map(to_host, parts)), shape=shape)
    raise TypeError(f"sparse rows must be CSR, CSC or COO, got {layout}; convert them with to_sparse_csr().")


def _array_api_compat(values: DeviceArray) -> Any:
    library = type(values).__module__.partition(".")[0]
    return require("array_api_compat", extra="gpu", purpose=f"support for {library} arrays")


def _numpy_dtype(values: DeviceArray) -> np.dtype[Any]:
    name = str(values.dtype).rpartition(".")[2]
    return np.dtype("float16" if name == "bfloat16" else name)


@cache
def _native_dtype(library: str, dtype: np.dtype[np.generic]) -> Any:
    return getattr(import_module(library), dtype.name)
