"""TorchCudaBackend: torch on an NVIDIA GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import DeviceArray
from fedpca.backend.array_api import DeviceBackend
from fedpca.parallel import single_threaded_blas

_RIDGE = 1e-12  # of squared lengths: far above what rounding of a few hundred columns gives, 1e-14
_TINY = 1e-300  # the squared length of a column of zeros, which stays one


@final
class TorchCudaBackend(DeviceBackend):
    """torch on an NVIDIA GPU, where rows may be rounded to bfloat16 to be multiplied on tensor cores.

    `torch.backends.cuda.matmul.fp32_precision = "ieee"` forbids that, and so does a torch before 2.9.
    """

    has_tensor_cores = True

    def _send(self, values: NDArray[np.generic]) -> DeviceArray:
        """In half the time of the array API's asarray."""
        import torch

        return torch.from_numpy(values if values.flags.writeable else values.copy()).to(self.device)

    def _begin_to_host(self, values: DeviceArray) -> Callable[[], NDArray[Any]]:
        """Waits for this copy alone, not for what the device was given to do after it."""
        import torch

        copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copied.copy_(values, non_blocking=True)
        done = torch.cuda.current_stream(self.device).record_event()

        def arrive() -> NDArray[Any]:
            done.synchronize()
            return np.asarray(copied)

        return arrive

    @contextmanager
    def compute_context(self) -> Iterator[None]:
        """Single-threaded BLAS and no autograd inside."""
        import torch

        with single_threaded_blas(), torch.inference_mode():
            yield

    @property
    def needs_float64(self) -> bool:
        return getattr(_matmul_settings(), "fp32_precision", "ieee") == "ieee"

    def orthonormal_columns(self, matrix: DeviceArray, *, roughly: bool = False) -> DeviceArray:
        return orthonormal_columns(matrix, n_rounds=1 if roughly else 2)


def orthonormal_columns(matrix: DeviceArray, n_rounds: int = 2) -> DeviceArray:
    """An orthonormal basis of the columns of a tall matrix, by Cholesky factors of their products.

    A Householder factorization of 1,000 x 75 takes many times as long on a GPU. One round leaves columns as
    far from orthogonal as the square of their condition times eps; the second one repairs that. What is added
    to the diagonal keeps columns that depend on others finite; the second round makes them of length one.
    Small triangles are inverted, since to solve with a tall matrix takes many times as long as to multiply.
    """
    import torch

    for _ in range(n_rounds):
        products = matrix.T @ matrix
        products.diagonal().mul_(1 + _RIDGE).add_(_TINY)
        factor = torch.linalg.cholesky_ex(products).L  # without a wait for its verdict
        unit = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        matrix = matrix @ torch.linalg.solve_triangular(factor, unit, upper=False).T
    return matrix


def _matmul_settings() -> Any:
    import torch

    return torch.backends.cuda.matmul
