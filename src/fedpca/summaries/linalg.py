"""Small dense linear algebra shared by merging and tracking; mostly NumPy, which releases the GIL."""

import numpy as np
from scipy.linalg import eigh, lapack

from fedpca._typing import Array, DeviceArray
from fedpca.backend import backend_of, to_host

# A Gram matrix squares the spectrum: a direction at 1e-3 of the largest keeps 10 digits; Cholesky restores
# its orthogonality. Below that the rows themselves are factorized.
_GRAM_FLOOR = 1e-3
_GRAM_CLEAN = 1e-2
"""Of singular values, last to first. At the floor the last is off by 2e-11 and directions are not orthogonal
by 3e-11, above 1e-2 by 1e-13, which needs no Cholesky (`benchmarks.constants gram`)."""
_FEW_PAIRS = 1 / 7
"""Of all pairs: up to this share LAPACK's solver for some of them takes .5 to .9 of the time of that for all;
from 1/5 on (1/4 of 1,000) it takes longer."""
_MIN_SIZE = 128
"""Pairs from which it is used: of fewer at most a tenth of a millisecond is gained. Ten directions of
moments of 250 features take 2.1 ms instead of 3.5, of 1,000 features 105 instead of 200."""


def mean_dominates(mean: Array, spread: float, dtype: np.dtype[np.floating]) -> bool:
    """Whether products of rows, in a dtype, would lose too many digits to a mean this large."""
    return float(mean @ mean) > far_limit(dtype) * spread


def far_limit(dtype: np.dtype[np.floating]) -> float:
    """Up to how many times the variance the square of a mean may be for products of rows in a dtype.

    At the limit a variance of 1e-4 of the largest is off by 4e-3 in float32 and by 7e-9 in float64, and
    above it by about as much more as the square grows (`benchmarks.constants mean`).
    """
    return 1e1 if dtype == np.float32 else 1e4


def leading_singular_pairs(rows: Array, rank: int | None = None, floor: float = 0.0) -> tuple[Array, Array]:
    """The leading right singular pairs of a stack of rows, numerically zero directions left out.

    Args:
        rows: shape (n, d).
        rank: at most this many pairs; all of them by default.
        floor: singular values up to here are rounding noise of whoever made the rows.

    Returns:
        components (r, d), orthonormal rows, and singular_values (r,), descending; both float64.

    >>> components, singular_values = leading_singular_pairs(np.array([[3.0, 0.0], [0.0, 1.0]]), rank=1)
    >>> np.round(singular_values, 3), np.abs(np.round(components, 3))
    (array([3.]), array([[1., 0.]]))
    """
    rows = np.asarray(rows, dtype=np.float64)
    n_rows, n_features = rows.shape
    limit = min(n_rows, n_features) if rank is None else min(rank, n_rows, n_features)
    largest = largest_entry(rows) if limit else 0.0
    if largest <= floor / max(1.0, np.sqrt(rows.size)) or largest == 0.0:
        return np.zeros((0, n_features)), np.zeros(0)
    unit = 1.0 if 1e-100 < largest < 1e100 else largest  # squares must neither overflow nor vanish
    if unit != 1.0:
        rows = rows / unit
    pairs = _leading_by_gram(rows, limit) or _leading_by_qr(rows, limit)
    components, singular_values = pairs
    noise = rounding_level(max(n_rows, n_features)) * singular_values[0]
    kept = int(np.count_nonzero(singular_values > max(noise, floor / unit)))
    return components[:kept], singular_values[:kept] * unit


def largest_entry(rows: Array) -> float:
    """The size of the largest entry, without a copy of the rows; 0 if there is none.

    >>> largest_entry(np.array([[1.0, -3.0]]))
    3.0
    """
    return float(max(rows.max(initial=0.0), -rows.min(initial=0.0)))


def rounding_level(size: int) -> float:
    """The share of the largest singular value up to which others are noise; size: the longer side.

    Rounding leaves .2 eps sqrt(size) at most, a twentieth of this; eigenvalues of products have as much
    (`benchmarks.constants rounding`).
    """
    return float(4 * np.finfo(np.float64).eps * np.sqrt(size))


def _leading_by_gram(rows: Array, limit: int) -> tuple[Array, Array] | None:
    """The pairs by an eigenproblem on the smaller side, or None where squaring costs too many digits."""
    wide = rows.shape[0] <= rows.shape[1]
    squares, vectors = leading_eigenpairs(rows @ rows.T if wide else rows.T @ rows, limit)
    if not squares[-1] > _GRAM_FLOOR**2 * squares[0]:
        return None
    singular_values = np.sqrt(squares)
    if not wide:
        return np.ascontiguousarray(vectors.T), singular_values
    components = (vectors / singular_values).T @ rows
    if singular_values[-1] < _GRAM_CLEAN * singular_values[0]:
        components = orthonormal(components)
    return components, singular_values


def leading_eigenpairs(gram: Array, limit: int) -> tuple[Array, Array]:
    """The largest eigenvalues, descending, and their eigenvectors as columns, orthonormal to rounding."""
    size = len(gram)
    if size >= _MIN_SIZE and limit <= _FEW_PAIRS * size:
        squares, vectors = eigh(
            gram, subset_by_index=[size - limit, size - 1], driver="evr", check_finite=False
        )
    else:
        squares, vectors = np.linalg.eigh(gram)
    return squares[::-1][:limit], vectors[:, ::-1][:, :limit]


def _leading_by_qr(rows: Array, limit: int) -> tuple[Array, Array]:
    """The pairs by orthogonal factorizations of the rows themselves: full precision."""
    if rows.shape[0] > rows.shape[1]:
        _, singular_values, components = np.linalg.svd(np.linalg.qr(rows, mode="r"))
        return components[:limit], singular_values[:limit]
    basis, triangle = np.linalg.qr(rows.T)
    _, singular_values, rotation = np.linalg.svd(triangle.T)
    return rotation[:limit] @ basis.T, singular_values[:limit]


def orthonormal(rows: DeviceArray) -> DeviceArray:
    """Nearly orthonormal rows, wherever they are, made orthonormal to rounding; the first change least.

    >>> tilted = np.array([[1.0, 1e-4], [1e-4, 1.0]])
    >>> basis = orthonormal(tilted)
    >>> bool(np.allclose(basis @ basis.T, np.eye(2), atol=1e-15))
    True
    """
    if not rows.shape[0]:
        return rows
    backend = backend_of(rows)
    dtype = backend.numpy_dtype(rows)
    try:
        for _ in range(2):
            triangle = np.linalg.cholesky(*backend.to_numpy(rows @ rows.T))
            rows = backend.asarray(triangle_inverse(triangle), dtype) @ rows
        return rows
    except np.linalg.LinAlgError:
        return backend.asarray(np.ascontiguousarray(np.linalg.qr(to_host(rows).T)[0].T))


def triangle_inverse(triangle: Array) -> Array:
    """The inverse of a lower triangle in float64.

    >>> triangle_inverse(np.array([[2.0, 0.0], [1.0, 1.0]]))
    array([[ 0.5,  0. ],
           [-0.5,  1. ]])
    """
    inverse: Array = lapack.dtrtri(triangle, lower=1)[0]
    return inverse


def count_eigenvalues_above(matrix: Array, threshold: float) -> int:
    """How many eigenvalues of a symmetric matrix exceed a threshold, by Sylvester's law of inertia.

    >>> count_eigenvalues_above(np.diag([1.0, 5.0, 3.0]), 2.0)
    2
    """
    shifted = matrix.copy()
    shifted.flat[:: len(matrix) + 1] -= threshold
    factorize = lapack.ssytrf if matrix.dtype == np.float32 else lapack.dsytrf
    factors, pivots, _ = factorize(shifted.T, lower=1, lwork=64 * len(matrix), overwrite_a=1)
    alone = pivots > 0  # the others are 2 x 2 blocks, with one positive eigenvalue each
    positive = np.count_nonzero(np.diag(factors)[alone] > 0)
    return int(positive + np.count_nonzero(~alone) // 2)


def is_positive_definite(matrix: Array) -> bool:
    """Whether a symmetric matrix is positive definite, whatever the units of its rows and columns."""
    diagonal = np.diag(matrix)
    if not (diagonal > 0).all():
        return False
    scale = 1 / np.sqrt(diagonal)
    return bool(lapack.dpotrf(matrix * np.outer(scale, scale), lower=1)[1] == 0)


def orthonormality_error(rows: Array) -> float:
    """The largest entry of `rows @ rows.T - identity`.

    >>> orthonormality_error(np.eye(2, 3))
    0.0
    """
    with np.errstate(over="ignore", invalid="ignore"):
        gram = (rows @ rows.T).astype(np.float64)
    gram.flat[:: len(gram) + 1] -= 1.0
    error = float(np.abs(gram).max(initial=0.0))
    return error if np.isfinite(error) else np.inf


def with_fixed_signs(components: Array) -> Array:
    """The same directions, each with its largest entry positive, so that results repeat.

    >>> with_fixed_signs(np.array([[0.6, -0.8], [0.8, 0.6]]))
    array([[-0.6,  0.8],
           [ 0.8,  0.6]])
    """
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    signs[signs == 0] = 1
    return components * signs[:, None].astype(components.dtype)
