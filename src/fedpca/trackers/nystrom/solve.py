"""The algebra of the kernel, in the letters of its derivation in docs/explanation/kernel.md.

History: count n0, mean mu0, orthonormal directions V with singular values S.
Probes: W (K x d), orthonormal; the first of them are V.
Period: rows x_i with weights w_i and scores a_i = W (x_i - mu0) give

    M = sum of w_i [a_i; 1] [a_i; 1]^T = [[A, a], [a^T, w]]     (K + 1 x K + 1)
    Q = sum of w_i [a_i; 1] x_i^T      = [P; p^T]               (K + 1 x d)

C is the scatter of history and period about their common mean, plus sigma I; it is never formed. What it does
to the probes is Y = W C and T = W C W^T, and Y^T T^+ Y is its Nystrom approximation. Y = B X, of coefficients
B and the stacked rows X = [Q; W; mu0^T].
"""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.linalg import orthonormal, triangle_inverse
from fedpca.summaries.subspace import Subspace

_USUAL_GROWTH = 4.0
"""Energy of a period in units of the history's, which is at least three times as long."""
_TINY = np.finfo(np.float64).tiny

SHIFT = 32
"""sigma in units of eps times the energy: rounding of T stays below it."""
LEAST_KEPT = 0.25
"""Least energy of a direction that is carried on, in units of sigma. Measured for singular values like i^-1.5
to i^-6: kept energies exceed those of the rows by no more than with 1, which loses three times as much of a
direction that comes up among rows 30 times as large."""
_MIN_PIVOT = 300
"""Least pivot of a Cholesky factor of T that is inverted, in units of sqrt(eps): eps / pivot² is 1e-5."""
_MIN_EIGENVALUE = 4
"""Least eigenvalue of T otherwise, in units of K eps times the largest: below, it is rounding."""
_MIN_SQUARED_RATIO = 1e-11
"""Least ratio of eigenvalues of F F^T that keep five digits in float64; else F is not squared."""
_MIN_SINGULAR_RATIO = 8
"""Least ratio of singular values of F, in units of eps: below, it is rounding."""
_ORTHOGONAL_RATIO = 900
"""Ratio of eigenvalues, in units of eps, from which components are orthonormal to sqrt(eps) / 30."""
_MIN_RESIDUAL = 32
"""Least residual of a row outside V that is not rounding, in units of eps times its length."""
_MIN_SAMPLE_PIVOT = 1e-2
_MIN_SAMPLE_EIGENVALUE = 1e-4  # its square


def shift(energy: float, S: Array, eps: float) -> float:
    """sigma, which exceeds the rounding errors of T.

    Products round relative to all energy. Without a shift, T^-1 would amplify their rounding into directions.
    """
    return SHIFT * eps * (energy + float((S**2).max(initial=0.0)))


def max_energy(weakest: float, history: Subspace, eps: float) -> float:
    """Energy of a period up to which its products keep a direction of the history with this energy.

    A stream may suddenly grow along directions carried, where the others do not show as residuals. Then they
    must stay above half the shift. And where the growth is along no single probe, T is nearly singular, and
    rounding of Y Y^T is amplified to eps energy² / weakest: that must stay below 1e-3 of the weakest, unless
    the energy is as usual.
    """
    if not weakest:
        return np.inf
    resolved = 2 * weakest / (SHIFT * eps) - float((history.singular_values**2).max(initial=0.0))
    usual = _USUAL_GROWTH * (history.total + history.count * float(history.mean @ history.mean))
    return max(min(resolved, max(usual, weakest * np.sqrt(1e-3 / eps))), 0.0)


def between_weight(n0: float, w: float) -> float:
    """j = n0 w / (n0 + w): weight of the scatter between the mean of the history and that of the period."""
    return n0 * w / (n0 + w)


def probe_scatter(M: Array, history: Subspace, sigma: float) -> tuple[Array, Array]:
    """T, shape (K, K), and the coefficients B of Y = B X, shape (K, 2 K + 2).

    With s = a / w, j = n0 w / (n0 + w) and D = diag(S², 0) + sigma I:

        T = D + A + (j - w) s s^T
        Y = D W + P + (j / w - 1) s p^T - j s mu0^T = [I, (j / w - 1) s, D, -j s] [P; p^T; W; mu0^T]

    Without centering the terms of s are left out.
    """
    A, a, w = M[:-1, :-1], M[-1, :-1], M[-1, -1]
    K = len(A)
    D = np.full(K, sigma)
    D[: history.rank] += history.singular_values**2
    T = A + np.diag(D)
    B = np.hstack([np.eye(K, K + 1), np.diag(D), np.zeros((K, 1))])
    if history.centered:
        s, j = a / w, between_weight(history.count, w)
        T += (j - w) * np.outer(s, s)
        B[:, K], B[:, -1] = (j - w) / w * s, -j * s
    return T, B


def common_mean(history: Subspace, p: Array, w: float, energy: float) -> tuple[Array, float]:
    """Mean and total of history and period together.

    Args:
        p: weighted sum of the period's rows.
        w: sum of their weights.
        energy: weighted sum of their squares.
    """
    mu0, n0, total = history.mean, history.count, history.total + energy
    if not history.centered:
        return mu0, total
    mean = p / w
    step = mean - mu0
    total += between_weight(n0, w) * float(step @ step) - w * float(mean @ mean)
    return mu0 + step * (w / (n0 + w)), total


def nystrom_eigenpairs(Y: Array, T: Array, n_max: int, eps: float) -> tuple[Array, Array]:
    """The leading eigenvectors of Y^T T^+ Y, as rows, and their eigenvalues, descending.

    With R^T R = T^+ and F = R Y, they are the right singular vectors of F. If U and L are the leading
    eigenvectors and eigenvalues of F F^T = R (Y Y^T) R^T, the vectors are L^-1/2 U^T R Y.

    Args:
        Y: shape (K, d).
        T: shape (K, K), float64.
        n_max: at most this many pairs.
        eps: relative rounding error of the products.
    """
    dtype_eps = float(np.finfo(Y.dtype).eps)
    if not len(T):
        return Y[:0], np.zeros(0)
    R = inverse_root(T, _MIN_PIVOT * np.sqrt(dtype_eps))
    if R is None:  # rotate the probes, so that directions without energy can be left out
        squares, vectors = np.linalg.eigh(T)
        kept = squares > _MIN_EIGENVALUE * len(T) * dtype_eps * squares[-1]
        R = (vectors[:, kept] / np.sqrt(squares[kept])).T
        Y, R = R.astype(Y.dtype) @ Y, np.eye(len(R))  # F itself
    wide = Y.astype(np.float64, copy=False)  # products in float32 would lose half of its digits
    gram = wide @ wide.T
    sizes = np.sqrt(np.maximum(np.diag(gram), _TINY))  # of the rows of Y, to scale them to unit length
    unit_gram = gram / np.outer(sizes, sizes)
    scaled_R = R * sizes
    squares, U = np.linalg.eigh(scaled_R @ unit_gram @ scaled_R.T)
    squares, U = squares[::-1][:n_max], U[:, ::-1][:, :n_max]
    if not squares[-1] > _MIN_SQUARED_RATIO * squares[0]:
        U, singular_values, _ = np.linalg.svd(scaled_R @ root(unit_gram))
        n_kept = np.count_nonzero(singular_values[:n_max] > _MIN_SINGULAR_RATIO * eps * singular_values[0])
        U, squares = U[:, :n_kept], singular_values[:n_kept] ** 2
    components = ((U / np.sqrt(squares)).T @ R).astype(Y.dtype) @ Y
    if len(squares) and squares[-1] < _ORTHOGONAL_RATIO * dtype_eps * squares[0]:
        components = orthonormal(components)
    return components, squares


def residual_directions(sample: Array, V: Array) -> Array:
    """Orthonormal directions of a few rows outside the span of orthonormal V.

    Args:
        sample: shape (n, d).
        V: shape (r, d).

    Returns:
        shape (at most n, d); rows that add nothing to V and to one another are left out.
    """
    if not sample.shape[0]:
        return sample
    dtype = sample.dtype
    energies = []
    for _ in range(2 if V.shape[0] else 0):  # twice: a small residual is far from orthogonal after one step
        energies.append(np.vecdot(sample, sample).astype(np.float64))
        sample = sample - (sample @ V.T) @ V
    gram = np.asarray(sample @ sample.T, np.float64)
    after_two = np.sqrt(np.diag(gram))
    before, after_one = np.sqrt(energies) if energies else (after_two, after_two)
    # A residual is rounding if it was after one step, or if it halves once more.
    long = (after_one > _MIN_RESIDUAL * float(np.finfo(dtype).eps) * before) & (after_two > 0.5 * after_one)
    R = inverse_root(gram, _MIN_SAMPLE_PIVOT) if long.all() else None
    if R is None:
        scale = np.where(long, 1 / np.where(long, after_two, 1), 0)
        squares, vectors = np.linalg.eigh(np.outer(scale, scale) * gram)
        kept = squares > _MIN_SAMPLE_EIGENVALUE * squares.max(initial=0.0)  # rows may be drawn twice
        R = (vectors[:, kept] / np.sqrt(squares[kept])).T * scale
    return R.astype(dtype) @ sample


def inverse_root(matrix: Array, min_pivot: float) -> Array | None:
    """R with R^T R the inverse of a positive definite matrix; None if that is close to singular.

    Args:
        min_pivot: least pivot of the Cholesky factor of the matrix scaled to a unit diagonal.
    """
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), _TINY))
    try:
        triangle = np.linalg.cholesky(matrix * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return None
    return triangle_inverse(triangle) * scale if np.diag(triangle).min() > min_pivot else None


def root(matrix: Array) -> Array:
    """R with R R^T a positive semidefinite matrix."""
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        squares, vectors = np.linalg.eigh(matrix)
        return vectors * np.sqrt(np.maximum(squares, 0.0))
