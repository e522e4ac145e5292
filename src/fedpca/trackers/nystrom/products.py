"""The two products of a panel of rows with probes, and what is special about them on a device."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from fedpca.backend import Backend, TorchCudaBackend, backend_of
from fedpca.backend.ops import row_energies

_SLICE = 2048  # rows summed at a time in tf32: its sums over 1,000,000 are short by 1e-4, over 2,048 by 3e-6
_SLICED = 2**26  # entries of such sums


class Probes(NamedTuple):
    """Directions that rows are compared with.

    Attributes:
        directions: shape (m + 1, d): those carried, others, and the running mean; rounded for tf32.
        offsets: scores of the mean along all but the last, shape (m,).
        n_carried: how many are carried.
        mean_square: of the mean.
        strange: energy about the mean outside those carried that no single row may have.
        rounds: whether products are in tf32.
    """

    directions: Any
    offsets: Any
    n_carried: int
    mean_square: float
    strange: float
    rounds: bool

    @property
    def slack(self) -> float:
        """What rounding may add to a row's energy outside, as a share of its energy."""
        return 1e-3 if self.rounds else 1e-4


def compared(backend: Backend, panel: Any, roots: Any, probes: Probes) -> tuple[Any, Any]:
    """What is known of rows from their products with the probes.

    Args:
        panel: shape (n, d), dense or CSR; rows times `roots`.
        roots: of the rows' weights; None for weights of one.

    Returns:
        Scores about the mean, the last of each row its root, shape (m + 1, n); and facts about the rows,
        shape (3, n): their energies, those about the mean outside the directions carried, and whether they
        are strange. Strange rows have nothing but zeros otherwise.
    """
    directions, offsets, n_carried, mean_square, strange, _ = probes
    if roots is None and isinstance(backend, TorchCudaBackend) and _has_triton():
        from fedpca.trackers.nystrom import triton_kernel

        if triton_kernel.suits(panel, directions):
            return triton_kernel.compared(panel, probes)
    # The way round that is faster for the dtype: 13 % in float64.
    one_way = isinstance(panel, np.ndarray) and panel.dtype != np.float32
    scores = directions @ panel.T if one_way else (panel @ directions.T).T
    weights = 1.0 if roots is None else roots
    energies = row_energies(panel)
    outside = energies - 2 * scores[-1, :] * weights + weights**2 * mean_square
    scores[:-1, :] -= offsets[:, None] * weights
    scores[-1, :] = weights
    outside -= _column_energies(scores[:n_carried, :])
    left_out = outside > strange + probes.slack * energies
    flags = backend.asarray(left_out, backend.numpy_dtype(energies))
    if backend.on_device or left_out.any():
        kept = 1 - flags
        scores *= kept
        energies, outside = energies * kept, outside * kept
    return scores, backend.xp.stack([energies, outside, flags])


def _column_energies(scores: Any) -> Any:
    """The sum of squares of each column, shape (n,)."""
    if isinstance(scores, np.ndarray):
        return np.einsum("ij,ij->j", scores, scores)
    return backend_of(scores).xp.linalg.vector_norm(scores, axis=0) ** 2


def products(backend: Backend, scores: Any, panel: Any, rounds: bool) -> Any:
    """`scores @ panel`, shape (m, d)."""
    if sparse.issparse(panel):
        return (panel.T @ scores.T).T
    if not rounds:
        return scores @ panel
    (n_rows, n_features), width = panel.shape, scores.shape[0]
    length = max(_SLICE, n_rows * n_features * width // _SLICED)
    n_slices = n_rows // length
    sliced, xp = n_slices * length, backend.xp
    left = xp.reshape(scores.T[:sliced, :], (n_slices, length, width))
    right = xp.reshape(panel[:sliced, :], (n_slices, length, n_features))
    return xp.sum(xp.matrix_transpose(left) @ right, axis=0) + scores[:, sliced:] @ panel[sliced:, :]


@cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
