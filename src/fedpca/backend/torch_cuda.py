"""TorchCudaBackend: torch on an NVIDIA GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpca._typing import DeviceArray
from fedpca.backend.array_api import DeviceBackend
from fedpca.backend.threads import single_threaded_blas

# Relative error of sums of products of float32 rows whose factors are rounded to tf32 (11 bits): measured on
# an H200, over 2048 rows at a time.
_TF32_EPS = 3e-6


@final
class TorchCudaBackend(DeviceBackend):
    """torch on an NVIDIA GPU, where products of float32 rows take half the time in tf32.

    `torch.backends.cuda.matmul.fp32_precision = "ieee"` forbids tf32, and so does a torch before 2.9.
    """

    def _send(self, values: NDArray[np.generic]) -> DeviceArray:
        """In half the time of the array API's asarray."""
        import torch

        return torch.from_numpy(values if values.flags.writeable else values.copy()).to(self.device)

    @contextmanager
    def compute_context(self) -> Iterator[None]:
        """Single-threaded BLAS and no autograd inside."""
        import torch

        with single_threaded_blas(), torch.inference_mode():
            yield

    def matmul_eps(self, dtype: DTypeLike) -> float:
        forbidden = getattr(_matmul_settings(), "fp32_precision", "ieee") == "ieee"
        if forbidden or dtype != np.float32:
            return float(np.finfo(np.dtype(dtype)).eps)
        return _TF32_EPS

    @contextmanager
    def tf32_matmul(self) -> Iterator[None]:
        settings = _matmul_settings()
        before = settings.fp32_precision
        settings.fp32_precision = "tf32"
        try:
            yield
        finally:
            settings.fp32_precision = before

    def round_to_tf32(self, values: DeviceArray) -> DeviceArray:
        """Tensor cores would truncate the last 13 bits, which biases every sum downwards."""
        import torch

        return ((values.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def _matmul_settings() -> Any:
    import torch

    return torch.backends.cuda.matmul
