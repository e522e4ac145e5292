"""Exact components of rows that can be read again, in several passes: more features than a scatter allows.

Block Lanczos iteration (Golub and Underwood, 1977) on the scatter S of all rows less their mean. A pass gives
S B of the newest block B of an orthonormal basis V. Then S V = V T but for the last block, whose residual is
the next one. The eigenvectors of T = V^T S V are the components once their residuals are small.

Departures from the textbook:

1. Every block is made orthogonal to the whole basis, not to the last two blocks alone, and T is kept whole:
   passes over the rows cost far more, and rounding leaves no copies of components.
2. The mean is not known before the first pass: S B is found as X^T (X B) - n mean (mean^T B).
3. After some blocks the basis starts again from the best directions in it, which bounds the memory.
"""

from collections.abc import Callable, Iterable
from itertools import count as count_from
from typing import Any

import numpy as np
from scipy import sparse

from fedpca._typing import Array
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.subspace import Subspace

# Directions of a block beyond those wanted: the last ones converge as fast as the gap behind the block is
# wide. With as many of 50 wanted of flat single-cell spectra, 10 to 20 passes suffice.
_MORE_DIRECTIONS = 10
_MAX_BLOCKS = 16  # of the basis, then it starts again: 16 blocks of 60 directions are 8 kB per feature
_MAX_PASSES = 64  # several times what any spectrum tried has taken
_RESIDUAL = 1e-5  # of a direction, as a share of its energy; ARPACK's own directions are as close

Read = Callable[[], Iterable[Any]]
"""A pass over all rows: arrays or `csr_array` of shape (n, d), finite, the same at each call."""


def by_passes(read: Read, n_features: int, n_components: int) -> tuple[Subspace, bool]:
    """The leading components of all rows about their mean, none of equal rows; whether all have converged.

    >>> rows = np.random.default_rng(0).normal(size=(500, 80)) * 0.9 ** np.arange(80)
    >>> model, have_converged = by_passes(lambda: [rows[:200], rows[200:]], 80, 3)
    >>> have_converged, np.allclose(model.singular_values, Subspace.from_rows(rows, 3).singular_values)
    (True, True)
    """
    width = min(n_components + _MORE_DIRECTIONS, n_features)
    basis = block = _orthonormal(np.random.default_rng(0).normal(size=(n_features, width)))
    projected: Array = np.zeros((0, 0))  # T
    for n_passes in count_from(1):
        product, mean, count, total = _product(read, block)
        if not total > 0:
            return Subspace(np.zeros((0, n_features)), np.zeros(0), mean, count, 0.0), True
        column = basis.T @ product
        projected = _grown(projected, column)
        rest = product - basis @ column
        rest -= basis @ (basis.T @ rest)  # twice is enough, where a direction nearly lies in the basis
        energies, turns = (found[..., ::-1] for found in np.linalg.eigh(projected))
        energies = energies[:n_components]
        last = turns[-width:, :n_components]
        residuals = np.sum(last * (rest.T @ rest @ last), axis=0)
        have_converged = bool((residuals <= (_RESIDUAL * energies) ** 2).all())
        if have_converged or n_passes == _MAX_PASSES:
            break
        if basis.shape[1] >= min(_MAX_BLOCKS * width, n_features - width):
            basis = block = _orthonormal(basis @ turns[:, :width])
            projected = np.zeros((0, 0))
        else:
            block = _orthonormal(rest)
            block = _orthonormal(block - basis @ (basis.T @ block))
            basis = np.hstack([basis, block])
    components = with_fixed_signs((basis @ turns[:, :n_components]).T)
    return Subspace(components, np.sqrt(np.maximum(energies, 0.0)), mean, count, total), have_converged


def _orthonormal(columns: Array) -> Array:
    return np.asarray(np.linalg.qr(columns)[0])


def _grown(projected: Array, column: Array) -> Array:
    """A symmetric matrix with one more block of columns, and of rows."""
    old, size = len(projected), len(column)
    corner = column[old:]
    grown = np.empty((size, size))
    grown[:old, :old], grown[:old, old:], grown[old:, :old] = projected, column[:old], column[:old].T
    grown[old:, old:] = (corner + corner.T) / 2
    return grown


def _product(read: Read, block: Array) -> tuple[Array, Array, int, float]:
    """The scatter of all rows times a block, shape (d, width); their mean, number and total energy."""
    product, sums, count, energy = np.zeros_like(block), np.zeros(len(block)), 0, 0.0
    for rows in read():
        rows = rows.astype(np.float64)
        product += rows.T @ (rows @ block)
        sums += np.asarray(rows.sum(axis=0)).ravel()
        values = rows.data if sparse.issparse(rows) else rows.ravel()
        energy += float(values @ values)
        count += rows.shape[0]
    mean = sums / count
    return product - np.outer(sums, mean @ block), mean, count, energy - count * float(mean @ mean)
