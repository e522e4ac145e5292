"""How good a set of components is: captured variance, angles, affinity, alignment, reconstruction error."""

import numpy as np

from fedpca._typing import Array, ArrayLike, RowsLike
from fedpca.backend import ops
from fedpca.summaries import validation
from fedpca.summaries.algebra import deviations_from_mean
from fedpca.summaries.subspace import Subspace


def captured_variance(components: "Subspace | ArrayLike", rows: RowsLike, *, center: bool = True) -> float:
    """Variance of the rows along the components, as a share of the most that so many directions can capture.

    Args:
        components: a Subspace, a fitted estimator, or an array of shape (r, d), any basis of the subspace.
        rows: shape (n, d).
        center: measure about the rows' mean, or about the origin.

    >>> rows = np.diag([3.0, 2.0, 1.0])
    >>> round(captured_variance([[1, 0, 0], [0, 0, 1]], rows, center=False), 6)  # (9 + 1) / (9 + 4)
    0.769231
    """
    basis = _basis(components)
    deviations = _deviations(rows, basis, center)
    squares = np.linalg.svd(deviations, compute_uv=False)[: len(basis)] ** 2
    best = float(squares.sum())
    return ops.energy(deviations @ basis.T) / best if best else 1.0


def principal_angles(first: "Subspace | ArrayLike", second: "Subspace | ArrayLike") -> Array:
    """Angles between two subspaces in radians, smallest first, shape (min(r1, r2),); accurate near 0 too.

    >>> principal_angles([[1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]]).round(4)
    array([0.7854])
    """
    a, b = _basis(first), _basis(second)
    _same_features(a, b)
    if len(a) < len(b):
        a, b = b, a
    overlap = a @ b.T  # (r1, r2), r1 >= r2
    cosines = np.clip(np.linalg.svd(overlap, compute_uv=False), 0.0, 1.0)
    sines = np.clip(np.linalg.svd(b - overlap.T @ a, compute_uv=False)[: len(b)][::-1], 0.0, 1.0)
    angles: Array = np.where(cosines**2 > 0.5, np.arcsin(sines), np.arccos(cosines))
    return angles


def affinity(first: "Subspace | ArrayLike", second: "Subspace | ArrayLike") -> float:
    """Mean squared cosine of the principal angles: 1 for the same subspace, 0 for orthogonal ones.

    Two random r-dimensional subspaces of d features have r / d.

    >>> round(affinity([[1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]]), 6)
    0.5
    """
    a, b = _basis(first), _basis(second)
    _same_features(a, b)
    return ops.energy(a @ b.T) / min(len(a), len(b)) if len(a) and len(b) else 0.0


def alignment(first: "Subspace | ArrayLike", second: "Subspace | ArrayLike") -> Array:
    """Absolute cosines of components of the same place, shape (min(r1, r2),); the first is the paper's q_A.

    >>> alignment([[1.0, 0.0]], [[-3.0, 4.0]])
    array([0.6])
    """
    a, b = _array(first), _array(second)
    _same_features(a, b)
    pairs = min(len(a), len(b))
    a, b = a[:pairs], b[:pairs]
    cosines: Array = np.abs(np.sum(a * b, axis=1))
    return cosines / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def reconstruction_error(components: "Subspace | ArrayLike", rows: RowsLike, *, center: bool = True) -> float:
    """Mean squared distance of the rows from the subspace, about their own mean or about the origin.

    >>> reconstruction_error([[1, 0]], [[1.0, 2.0], [1.0, -2.0]])
    4.0
    """
    basis = _basis(components)
    deviations = _deviations(rows, basis, center)
    return ops.energy(deviations - (deviations @ basis.T) @ basis) / len(deviations)


def _array(components: "Subspace | ArrayLike") -> Array:
    """Components as a float64 array, from whatever carries them."""
    if isinstance(components, Subspace):
        components = components.components
    components = getattr(components, "components_", components)
    array = np.asarray(components, dtype=np.float64)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError(f"components must be a finite array of shape (r, d), got shape {array.shape}.")
    return array


def _basis(components: "Subspace | ArrayLike") -> Array:
    """An orthonormal basis of the span of components."""
    array = _array(components)
    if len(array) > array.shape[1]:
        raise ValueError(f"there can be at most d components of d features, got shape {array.shape}.")
    return np.linalg.qr(array.T)[0].T


def _deviations(rows: RowsLike, basis: Array, center: bool) -> Array:
    rows = validation.dense_rows(rows)
    _same_features(rows, basis)
    return deviations_from_mean(rows, center=center)[2]


def _same_features(first: Array, second: Array) -> None:
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"both must have the same features, got {first.shape[1]} and {second.shape[1]}.")
