"""Array backends: NumPy on the host, or any array-API library on its own device."""

from fedpca.backend.array_api import ArrayApiBackend, sparse_to_host, to_host
from fedpca.backend.base import Backend
from fedpca.backend.dispatch import backend_of
from fedpca.backend.numpy import HOST, NumpyBackend
from fedpca.backend.ops import batch_slices, dense
from fedpca.backend.torch_cuda import TorchCudaBackend

__all__ = [
    "HOST", "ArrayApiBackend", "Backend", "NumpyBackend", "TorchCudaBackend", "backend_of", "batch_slices",
    "dense", "sparse_to_host", "to_host",
]  # fmt: skip
