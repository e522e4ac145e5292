"""The two products of a panel of rows: with the probes, and of the scores with the rows again."""

from functools import cache

import numpy as np
from scipy import sparse

from fedpca._typing import Array, DeviceArray, RowsLike
from fedpca.backend import Backend, TorchCudaBackend, backend_of
from fedpca.backend.ops import even_cuts, row_energies
from fedpca.backend.threads import map_parts
from fedpca.trackers.nystrom.probes import Probes, RowStats

_SLICE_ROWS = 2048  # summed at a time in tf32: its sums over 1,000,000 are short by 1e-4, over 2,048 by 3e-6
_MAX_SLICE_ENTRIES = 2**26  # of the sums over all slices, 256 MB
_PART_WORK = 2**27  # multiplications per product that one thread does at a time, a few milliseconds
_LEAST_WORK = 2**23  # the same where there would be no second part otherwise
_MIN_LENGTH = 128  # of a part; products of less are slower


def project_panel(
    backend: Backend, panel: RowsLike, roots: DeviceArray | None, probes: Probes
) -> tuple[DeviceArray, RowStats]:
    """Scores of rows along the probes, and what they tell of the rows.

    Args:
        panel: shape (n, d), dense or CSR; rows times `roots`.
        roots: square roots of the rows' weights; None for weights of one.

    Returns:
        Scores about the mean, the last of each row its root, shape (K + 1, n), and the rows' statistics.
        Outlier rows are zeroed.
    """
    if roots is None and isinstance(backend, TorchCudaBackend) and _has_triton():
        from fedpca.trackers.nystrom import triton_kernel

        if triton_kernel.is_supported(panel, probes.directions):
            return triton_kernel.project_panel(panel, probes)
    if isinstance(panel, np.ndarray):
        scores, energy = _project_in_parts(panel, probes.directions)
    else:
        scores, energy = (panel @ probes.directions.T).T, row_energies(panel)
    root = 1.0 if roots is None else roots
    # |x - mu0|² - |V (x - mu0)|², times the weight
    residual = energy - 2 * scores[-1, :] * root + root**2 * probes.mean_square
    scores[:-1, :] -= probes.offsets[:, None] * root
    scores[-1, :] = root
    residual -= _column_energies(scores[: probes.n_compared, :])
    is_outlier = residual > probes.outlier_energy + probes.residual_rounding * energy
    if backend.on_device:  # without asking whether there are any, which would wait for the device
        flags = backend.asarray(is_outlier, backend.numpy_dtype(energy))
        kept = 1 - flags
        scores *= kept
        return scores, RowStats.from_stacked(backend.xp.stack([energy * kept, residual * kept, flags]))
    n_outliers = np.count_nonzero(is_outlier)
    if n_outliers:
        kept = ~is_outlier
        scores *= kept
        energy, residual = energy * kept, residual * kept
    sums = np.array([energy.sum(dtype=np.float64), residual.sum(dtype=np.float64), n_outliers])
    return scores, RowStats(energy, residual, is_outlier, sums)


def _project_in_parts(panel: Array, directions: Array) -> tuple[Array, Array]:
    """`directions @ panel.T`, and the sum of squares of each row."""
    n_rows, width = len(panel), len(directions)
    # The order of factors that is faster for the dtype: 13 % in float64.
    probes_first = panel.dtype != np.float32
    products = np.empty((width, n_rows) if probes_first else (n_rows, width), panel.dtype)
    energies = np.empty(n_rows, panel.dtype)

    def project(part: slice) -> None:
        rows = panel[part]
        if probes_first:
            np.matmul(directions, rows.T, out=products[:, part])
        else:
            np.matmul(rows, directions.T, out=products[part])
        energies[part] = row_energies(rows)

    map_parts(project, _parts(n_rows, panel.size * width))
    return products if probes_first else products.T, energies


def _parts(length: int, work: int) -> list[slice]:
    """Parts of the rows or columns of a product; they depend on its shape alone, not on the threads."""
    n_parts = max(work // _PART_WORK, min(work // _LEAST_WORK, 2))
    return even_cuts(length, max(min(n_parts, length // _MIN_LENGTH), 1))


def _column_energies(scores: DeviceArray) -> DeviceArray:
    """The sum of squares of each column, shape (n,)."""
    if isinstance(scores, np.ndarray):
        return np.einsum("ij,ij->j", scores, scores)
    return backend_of(scores).xp.linalg.vector_norm(scores, axis=0) ** 2


def score_products(backend: Backend, scores: DeviceArray, panel: RowsLike, uses_tf32: bool) -> DeviceArray:
    """`scores @ panel`, shape (K + 1, d)."""
    if sparse.issparse(panel):
        return (panel.T @ scores.T).T
    if isinstance(panel, np.ndarray):
        return _score_columns(scores, panel)
    if not uses_tf32:
        return scores @ panel
    return sliced_product(backend, scores, panel, _SLICE_ROWS)


def _score_columns(scores: Array, panel: Array) -> Array:
    """`scores @ panel`; threads share the columns."""
    width, n_features = len(scores), panel.shape[1]
    products = np.empty((width, n_features), panel.dtype)

    def multiply(part: slice) -> None:
        np.matmul(scores, panel[:, part], out=products[:, part])

    map_parts(multiply, _parts(n_features, panel.size * width))
    return products


def sliced_product(backend: Backend, scores: DeviceArray, panel: DeviceArray, length: int) -> DeviceArray:
    """`scores @ panel` as a sum over slices of at least `length` rows, each summed by itself."""
    (n_rows, n_features), width = panel.shape, scores.shape[0]
    length = max(length, n_rows * n_features * width // _MAX_SLICE_ENTRIES)
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
