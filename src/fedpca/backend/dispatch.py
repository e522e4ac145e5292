"""Which backend an array belongs to."""

import numpy as np

from fedpca._typing import RowsLike
from fedpca.backend.array_api import ArrayApiBackend, library_of
from fedpca.backend.base import Backend
from fedpca.backend.numpy import HOST
from fedpca.backend.torch_cuda import TorchCudaBackend


def backend_of(rows: RowsLike) -> Backend:
    """The backend of rows: that of a torch, CuPy or similar array, else the host.

    >>> backend_of([[1.0, 2.0]]) is HOST
    True
    """
    if isinstance(rows, np.ndarray):
        return HOST
    library = library_of(rows)
    if not library:
        return HOST
    if library == "array_api_compat.torch" and rows.device.type == "cuda":
        return TorchCudaBackend(library, rows.device)
    return ArrayApiBackend(library, rows.device)
