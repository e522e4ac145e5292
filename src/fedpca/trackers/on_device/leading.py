"""Leading directions of a scatter on its device, by block power iterations in float64."""

import numpy as np

from fedpca._typing import Array, DeviceArray
from fedpca.backend import Backend
from fedpca.trackers.on_device.products import random_signs

# Products with the scatter between two looks at what the wanted directions miss. One round serves spectra of
# lambda_i = i^(-2 alpha) from alpha = .6 on; flat ones take two or three.
_PRODUCTS_PER_ROUND = 14
_MAX_ROUNDS = 8  # then the complete eigenproblem, which always ends, is as fast
# Products between two times that columns are made orthonormal, which takes longer. Two of them lose what has
# less than 1e-4 of the largest energy: then one.
_PRODUCTS_TOGETHER = 2
_TOLERANCE = 1e-8  # of the energy of all directions wanted together
_TOLERANCE_EACH = 1e-5  # of that of each
_LARGE = 1e60  # energies, whose fourth powers are taken
_SKEW = 1e-10  # of products of columns that should be orthonormal: more changes energies in their tenth digit
_DEPENDENT = 0.5  # squared length that a combination of nearly orthonormal columns never has


def block_width(n_wanted: int, n_shown: int) -> int:
    """Vectors to iterate with: half as many again as wanted, so that their errors fall fast."""
    return max(n_shown, n_wanted + max(16, n_wanted // 2))


def leading(
    backend: Backend,
    scatter: DeviceArray,
    total: float,
    n_wanted: int,
    width: int,
    start: DeviceArray | None = None,
) -> tuple[DeviceArray, Array]:
    """The leading eigenvectors of a scatter, shape (width, d), and their eigenvalues on the host, descending.

    Args:
        scatter: float64, shape (d, d), positive semidefinite.
        total: about its trace.
        n_wanted: eigenvectors that have to be right; the others, up to `width`, are nearly so.
        start: what the eigenvectors may be near to, shape (k, d).
    """
    n_features, xp = scatter.shape[0], backend.xp
    if 2 * width >= n_features:
        return complete(backend, scatter)
    if total and not 1 / _LARGE < total < _LARGE:  # they would leave float64
        vectors, values = leading(backend, scatter / total, 1.0, n_wanted, width, start)
        return vectors, total * values
    together = _PRODUCTS_TOGETHER
    for _ in range(_MAX_ROUNDS):
        V = _start(backend, n_features, width, start)
        for i in range(1, _PRODUCTS_PER_ROUND + 1):
            V = scatter @ V
            if i % together == 0:
                V = backend.orthonormal_columns(V, roughly=True)
        V = backend.orthonormal_columns(V, roughly=True)
        image = scatter @ V
        on_device, turn = _solved(backend, V.T @ V, V.T @ image)
        V, image = V @ turn, image @ turn
        values, residuals = backend.to_numpy(on_device, xp.sum((image - V * on_device[None, :]) ** 2, axis=0))
        wanted, missed, start = values[:n_wanted], _missed(values, residuals, n_wanted), V.T
        if len(values) < width and together > 1:
            together = 1
            continue
        if missed.sum() <= _TOLERANCE * wanted.sum() and (missed <= _TOLERANCE_EACH * wanted).all():
            return V.T, np.maximum(values, 0.0)
    vectors, values = complete(backend, scatter)
    return vectors[:width, :], values[:width]


def _solved(backend: Backend, products: DeviceArray, small: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Eigenvalues, descending, and combinations of columns V that solve V^T S V w = value V^T V w.

    Columns that rounding alone keeps apart, as those of a scatter of low rank, are left out.
    """
    xp, unit = backend.xp, backend.asarray(np.eye(products.shape[0]))
    basis = None
    if backend.to_numpy(xp.max(xp.abs(products - unit)))[0] > _SKEW:
        squares, basis = backend.eigh((products + products.T) / 2)
        first = int((backend.to_numpy(squares)[0] <= _DEPENDENT).sum())
        basis = basis[:, first:] / xp.sqrt(squares[first:])[None, :]
        small = basis.T @ small @ basis
    values, turn = backend.eigh((small + small.T) / 2)
    return xp.flip(values), xp.flip(turn if basis is None else basis @ turn, axis=1)


def complete(backend: Backend, scatter: DeviceArray) -> tuple[DeviceArray, Array]:
    """All eigenvectors, shape (d, d), and eigenvalues, descending."""
    xp = backend.xp
    ascending, vectors = backend.eigh(scatter)
    (values,) = backend.to_numpy(ascending)
    return xp.flip(vectors, axis=1).T, np.maximum(values[::-1], 0.0)


def _start(backend: Backend, n_features: int, width: int, near: DeviceArray | None) -> DeviceArray:
    """Columns to begin with: random signs, the same every time, and what is at hand."""
    columns = random_signs(backend, n_features, width, seed=0)
    if near is None:
        return columns
    near = near[: min(near.shape[0], width), :]
    return backend.xp.concat([near.T, columns[:, near.shape[0] :]], axis=1)


def _missed(values: Array, residuals: Array, n_wanted: int) -> Array:
    """About how much energy each of the first eigenvectors misses: residual² / gap to what is left out.

    The gap of an eigenvalue that is not separated from the last of the block says nothing; a tenth of the
    eigenvalue then stands for it.
    """
    wanted = values[:n_wanted]
    gaps = np.maximum(wanted - values[-1:], wanted / 10)
    return np.divide(residuals[:n_wanted], gaps, out=np.zeros(len(wanted)), where=gaps > 0)
