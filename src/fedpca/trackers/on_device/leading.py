"""Leading directions of a scatter on its device, by block power iterations in float64."""

import numpy as np

from fedpca._typing import Array, DeviceArray
from fedpca.backend import Backend
from fedpca.trackers.on_device.products import random_signs

# Rounds of so many products each, until what the wanted directions miss is below the tolerance. One round
# serves spectra of lambda_i = i^(-2 alpha) from alpha = .5 on; flat ones take two or three.
_PRODUCTS_PER_ROUND = 8
_MAX_ROUNDS = 8  # then the complete eigenproblem, which always ends, is as fast
_TOLERANCE = 1e-8  # of the energy of all directions wanted together
_TOLERANCE_EACH = 1e-5  # of that of each
_LARGE = 1e100  # energies, whose squares are taken
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
    if total and not 1 / _LARGE < total < _LARGE:  # squares would leave float64
        vectors, values = leading(backend, scatter / total, 1.0, n_wanted, width, start)
        return vectors, total * values
    V = backend.orthonormal_columns(_start(backend, n_features, width, start))
    for _ in range(_MAX_ROUNDS):
        for _ in range(_PRODUCTS_PER_ROUND):
            V = backend.orthonormal_columns(scatter @ V, roughly=True)
        V = backend.orthonormal_columns(V)
        image = scatter @ V
        values, turn = _solved(backend, *backend.to_numpy(V.T @ V, V.T @ image))
        turned = backend.asarray(turn, np.float64)
        V, image = V @ turned, image @ turned
        (residuals,) = backend.to_numpy(xp.sum((image - V * backend.asarray(values)[None, :]) ** 2, axis=0))
        wanted, missed = values[:n_wanted], _missed(values, residuals, n_wanted)
        if missed.sum() <= _TOLERANCE * wanted.sum() and (missed <= _TOLERANCE_EACH * wanted).all():
            return V.T, np.maximum(values, 0.0)
    vectors, values = complete(backend, scatter)
    return vectors[:width, :], values[:width]


def _solved(backend: Backend, products: Array, small: Array) -> tuple[Array, Array]:
    """Eigenvalues, descending, and combinations of columns V that solve V^T S V w = value V^T V w.

    Columns that rounding alone keeps apart, as those of a scatter of low rank, are left out.
    """
    basis = np.eye(len(products))
    if np.abs(products - basis).max() > _SKEW:
        squares, basis = backend.eigh((products + products.T) / 2)
        basis = basis[:, squares > _DEPENDENT] / np.sqrt(squares[squares > _DEPENDENT])
        small = basis.T @ small @ basis
    values, turn = backend.eigh((small + small.T) / 2)
    return np.ascontiguousarray(values[::-1]), np.ascontiguousarray((basis @ turn)[:, ::-1])


def complete(backend: Backend, scatter: DeviceArray) -> tuple[DeviceArray, Array]:
    """All eigenvectors, shape (d, d), and eigenvalues, descending."""
    xp = backend.xp
    ascending, vectors = xp.linalg.eigh(scatter)
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
