"""Leading directions of a scatter on its device, by block power iterations in float64."""

import numpy as np

from fedpca._typing import Array, DeviceArray
from fedpca.backend import Backend
from fedpca.trackers.on_device.products import random_signs

# Rounds of so many products each, until what the wanted directions miss is below the tolerance. One round
# serves spectra of lambda_i = i^(-2 alpha) from alpha = .5 on; flat ones take two or three.
_PRODUCTS_PER_ROUND = 8
_WARM_PRODUCTS = 2  # where earlier directions are at hand
_MAX_ROUNDS = 8  # then the complete eigenproblem, which always ends, is as fast
_TOLERANCE = 1e-8  # of the energy of all directions wanted together
_TOLERANCE_EACH = 1e-5  # of that of each


def block_width(n_wanted: int, n_shown: int) -> int:
    """Vectors to iterate with: half as many again as wanted, so that their errors fall fast."""
    return max(n_shown, n_wanted + max(16, n_wanted // 2))


def leading(
    backend: Backend, scatter: DeviceArray, n_wanted: int, width: int, start: DeviceArray | None = None
) -> tuple[DeviceArray, Array]:
    """The leading eigenvectors of a scatter, shape (width, d), and their eigenvalues on the host, descending.

    Args:
        scatter: float64, shape (d, d), positive semidefinite.
        n_wanted: eigenvectors that have to be right; the others, up to `width`, are nearly so.
        start: what the eigenvectors may be near to, shape (k, d).
    """
    n_features, xp = scatter.shape[0], backend.xp
    if 2 * width >= n_features:
        return complete(backend, scatter)
    V = backend.orthonormal_columns(_start(backend, n_features, width, start))
    n_products = _PRODUCTS_PER_ROUND if start is None else _WARM_PRODUCTS
    for _ in range(_MAX_ROUNDS):
        for _ in range(n_products):
            V = backend.orthonormal_columns(scatter @ V)
        V = backend.orthonormal_columns(V)
        image = scatter @ V
        (small,) = backend.to_numpy(V.T @ image)
        values, turn = np.linalg.eigh((small + small.T) / 2)
        values = np.ascontiguousarray(values[::-1])
        turned = backend.asarray(np.ascontiguousarray(turn[:, ::-1]), np.float64)
        V, image = V @ turned, image @ turned
        (residuals,) = backend.to_numpy(xp.sum((image - V * backend.asarray(values)[None, :]) ** 2, axis=0))
        wanted, missed = values[:n_wanted], _missed(values, residuals, n_wanted)
        if missed.sum() <= _TOLERANCE * wanted.sum() and (missed <= _TOLERANCE_EACH * wanted).all():
            return V.T, np.maximum(values, 0.0)
        n_products = _PRODUCTS_PER_ROUND
    vectors, values = complete(backend, scatter)
    return vectors[:width, :], values[:width]


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
    gaps = np.maximum(wanted - values[-1], wanted / 10)
    return np.divide(residuals[:n_wanted], gaps, out=np.zeros(len(wanted)), where=gaps > 0)
