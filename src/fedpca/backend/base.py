"""Where rows are worked on: by numpy on the host, or on a device by the library that holds them there."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

# What sums of products of float32 rows lose where their factors are rounded to 11 bits (tf32), as a share of
# their size: measured on an H200, over 2048 rows at a time.
_TF32_EPS = 3e-6
_AS_IT_IS = nullcontext()
_SMALL = 64  # sides of a matrix that the host decomposes faster than a device


class Backend:
    """The host. What has as many entries as a row, or as there are rows, lives where the rows do."""

    xp: Any = np
    on_device = False
    chunk_entries = 2**20  # entries at a time, where rows must be copied to be worked on

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        """Dense values from anywhere as an array here, of a numpy dtype; not copied if nothing changes."""
        return np.asarray(to_host(values), dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def is_native(self, values: Any, dtype: Any) -> bool:
        """Whether dense values are here, and of this dtype, already."""
        return isinstance(values, np.ndarray) and values.dtype == dtype

    def numpy_dtype(self, values: Any) -> np.dtype[Any]:
        """The dtype of values here, as numpy calls it."""
        return values.dtype

    def to_numpy(self, *values: Any) -> list[NDArray[np.float64]]:
        """Arrays from here on the host, in float64: all in one go, since each would cost a wait."""
        return [np.asarray(value, np.float64) for value in values]

    def take(self, rows: Any, places: NDArray[np.intp]) -> Any:
        """Some of the rows."""
        return rows[places]

    def eigh(self, matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Eigenvalues, rising, and eigenvectors of a symmetric matrix on the host."""
        return np.linalg.eigh(matrix)

    def matmul_eps(self, dtype: Any) -> float:
        """What products within `fast` lose, as a share of their size."""
        return float(np.finfo(dtype).eps)

    def tf32_matmul(self) -> AbstractContextManager[Any]:
        return _AS_IT_IS

    def round_to_tf32(self, values: Any) -> Any:
        """Values as products within `fast` take them."""
        return values

    def compute_context(self) -> AbstractContextManager[Any]:
        """Within it nothing is spent on many threads for small matrices, or on derivatives."""
        return _AS_IT_IS


HOST = Backend()


@dataclass(frozen=True)
class ArrayApiBackend(Backend):
    """A device known through the array API.

    Attributes:
        library: the module that speaks the array API there.
        device: as that library calls it.
    """

    library: str
    device: Any

    on_device = True
    chunk_entries = 2**26

    @property
    def xp(self) -> Any:
        return import_module(self.library)

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        if backend_of(values) == self:
            here = values.dtype if dtype is None else self._dtype(dtype)
            return values if here == values.dtype else self.xp.astype(values, here)
        return self._sent(np.asarray(to_host(values), dtype))

    def _sent(self, values: NDArray[Any]) -> Any:
        return self.xp.asarray(values, device=self.device, copy=True)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.zeros(shape, dtype=self._dtype(dtype), device=self.device)

    def is_native(self, values: Any, dtype: Any) -> bool:
        return backend_of(values) == self and values.dtype == self._dtype(dtype)

    def numpy_dtype(self, values: Any) -> np.dtype[Any]:
        name = str(values.dtype).rpartition(".")[2]
        return np.dtype("float16" if name == "bfloat16" else name)  # which numpy has not

    def to_numpy(self, *values: Any) -> list[NDArray[np.float64]]:
        together = to_host(self.xp.concat([self.xp.reshape(value, (-1,)) for value in values]))
        together, start, parts = together.astype(np.float64), 0, []
        for value in values:
            stop = start + math.prod(value.shape)
            parts.append(together[start:stop].reshape(value.shape))
            start = stop
        return parts

    def take(self, rows: Any, places: NDArray[np.intp]) -> Any:
        return self.xp.take(rows, self.asarray(places), axis=0)

    def compute_context(self) -> AbstractContextManager[Any]:
        return _threads().limit(limits=1)

    def _dtype(self, dtype: Any) -> Any:
        return _dtype(self.library, np.dtype(dtype))

    def eigh(self, matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if len(matrix) <= _SMALL:
            return np.linalg.eigh(matrix)
        values, vectors = self.xp.linalg.eigh(self.asarray(matrix, np.float64))
        return to_host(values), to_host(vectors)


class TorchCudaBackend(ArrayApiBackend):
    """torch on an NVIDIA GPU, where products of float32 rows in tf32 take half the time.

    `torch.backends.cuda.matmul.fp32_precision = "ieee"` forbids it, and so does a torch before 2.9.
    """

    def _sent(self, values: NDArray[Any]) -> Any:  # in half the time
        import torch

        return torch.from_numpy(values if values.flags.writeable else values.copy()).to(self.device)

    @contextmanager
    def compute_context(self) -> Iterator[None]:
        import torch

        with super().compute_context(), torch.inference_mode():
            yield

    def matmul_eps(self, dtype: Any) -> float:
        forbidden = getattr(_products(), "fp32_precision", "ieee") == "ieee"
        return super().matmul_eps(dtype) if forbidden or dtype != np.float32 else _TF32_EPS

    def round_to_tf32(self, values: Any) -> Any:
        """To the nearest tf32: the matrix units would cut the last 13 bits off, and all sums be short."""
        import torch

        return ((values.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    @contextmanager
    def tf32_matmul(self) -> Iterator[None]:
        products = _products()
        before = products.fp32_precision
        products.fp32_precision = "tf32"
        try:
            yield
        finally:
            products.fp32_precision = before


def backend_of(rows: Any) -> Backend:
    """Where rows are: the host, for whatever numpy takes, or the device of a torch, CuPy or similar array."""
    if isinstance(rows, np.ndarray):
        return HOST
    library = _libraries.get(type(rows))
    if library is None:
        library = _libraries[type(rows)] = _library(rows)
    return _device(library, rows.device) if library else HOST


_libraries: dict[type, str] = {}


def _library(rows: Any) -> str:
    """The module that speaks the array API for rows of this type; "" if it is to be numpy."""
    if not hasattr(rows, "__dlpack__"):
        return ""
    try:
        import array_api_compat as arrays
    except ImportError as error:
        library = type(rows).__module__.partition(".")[0]
        raise ImportError(
            f"rows in {library} arrays need array-api-compat: pip install 'fedpca[gpu]'."
        ) from error
    if not arrays.is_array_api_obj(rows) or arrays.is_lazy_array(rows) or not arrays.is_writeable_array(rows):
        return ""
    return arrays.array_namespace(rows).__name__


def _device(library: str, device: Any) -> ArrayApiBackend:
    on_cuda = library == "array_api_compat.torch" and device.type == "cuda"
    return TorchCudaBackend(library, device) if on_cuda else ArrayApiBackend(library, device)


@cache
def _dtype(library: str, dtype: np.dtype[Any]) -> Any:
    return getattr(import_module(library), dtype.name)


def batch_slices(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that make up n_rows.

    >>> list(batch_slices(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def dense(rows: Any) -> Any:
    """Rows, no longer sparse."""
    return rows.toarray() if sparse.issparse(rows) else rows


def to_host(values: Any) -> NDArray[Any]:
    """Dense values from anywhere, as numpy has them."""
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack__"):
        return np.asarray(values)
    import array_api_compat as arrays

    if backend_of(values).numpy_dtype(values) == np.float16:  # numpy has not all kinds of these
        values = arrays.array_namespace(values).astype(values, arrays.array_namespace(values).float32)
    on_cpu = values.__dlpack_device__()[0] == 1
    return np.from_dlpack(values) if on_cpu else np.asarray(arrays.to_device(values, "cpu"))


def row_energies(rows: Any) -> Any:
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


def sum64(values: Any) -> float:
    """The sum of all values, in float64."""
    xp = backend_of(values).xp
    return float(xp.sum(values, dtype=xp.float64))


@cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _products() -> Any:
    import torch

    return torch.backends.cuda.matmul
