"""The leading directions of cells, exactly: from one pass over few genes, or several over many.

Single-cell spectra have a long, flat tail. A one-pass method with little memory does not find its single
directions, so all of the scatter is kept or, where it is too large, cells are read again.
"""

import warnings
from collections.abc import Callable, Iterable
from itertools import count as count_from
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from fedpca._typing import Array
from fedpca.backend import dense
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.subspace import Subspace

MAX_GENES_AT_ONCE = 5000
"""Up to here the scatter of all genes is kept: 200 MB."""
_PANEL_ROWS = 2048  # cells per product
_MORE_DIRECTIONS = 10  # of a block, beyond those wanted
_MAX_BLOCKS = 16  # of the basis; then it starts again from the best directions in it
_MAX_PASSES = 64
_RESIDUAL = 1e-5  # of a direction, as a share of its energy; ARPACK's own directions are as close

Read = Callable[[], Iterable[tuple[Any, Any]]]
"""A pass over all cells: pairs of an owner and rows of some of its cells, dense or CSR."""


def leading(read: Read, n_genes: int, n_comps: int) -> Subspace:
    """The leading directions of all cells of all owners, shape (n_comps, n_genes).

    Up to 5,000 genes, the scatters of all owners are merged. With more, owners add up the products of their
    cells with a basis, pass after pass.
    """
    if n_genes <= MAX_GENES_AT_ONCE:
        return _by_scatter(read, n_genes, n_comps)
    return _by_passes(read, n_genes, n_comps)


# --- one pass ---


def _by_scatter(read: Read, n_genes: int, n_comps: int) -> Subspace:
    sums = _Sums(n_genes)
    for owner, rows in read():
        sums.add(owner, rows)
    count, mean, scatter = sums.totals()
    total = _checked_total(float(np.trace(scatter)))
    start = np.random.default_rng(0).normal(size=n_genes)
    energies, directions = eigsh(scatter, n_comps, v0=start)
    order = np.argsort(-energies)
    return _subspace(directions[:, order].T, energies[order], mean, count, total)


class _Sums:
    """Count, mean and scatter of cells that come in batches of any size, merged as they come.

    Some thousand cells make a panel. What each owner has in it is summarized by itself, and all of that is
    merged with what came before: scatters add up, and differences of means are added as further rows.
    However many owners there are, one scatter is kept.
    """

    def __init__(self, n_genes: int) -> None:
        self._count, self._mean, self._scatter = 0, np.zeros(n_genes), np.zeros((n_genes, n_genes))
        self._pending: dict[Any, list[Any]] = {}
        self._n_pending = 0

    def add(self, owner: Any, rows: Any) -> None:
        self._pending.setdefault(owner, []).append(rows)
        self._n_pending += rows.shape[0]
        if self._n_pending >= _PANEL_ROWS:
            self._absorb()

    def totals(self) -> tuple[int, Array, Array]:
        """Count, mean and scatter of all cells."""
        if self._pending:
            self._absorb()
        return self._count, self._mean, self._scatter

    def _absorb(self) -> None:
        parts = [np.concatenate([dense(rows) for rows in some]) for some in self._pending.values()]
        self._pending, self._n_pending = {}, 0
        parts = [part.astype(np.float64) for part in parts]
        counts = np.array([self._count, *map(len, parts)], float)
        means = np.stack([self._mean, *(part.mean(axis=0) for part in parts)])
        mean = counts @ means / counts.sum()
        for part, center in zip(parts, means[1:], strict=True):
            part -= center
        rows = np.concatenate([*parts, np.sqrt(counts)[:, None] * (means - mean)])
        self._scatter += rows.T @ rows
        self._count, self._mean = int(counts.sum()), mean


# --- several passes ---


def _by_passes(read: Read, n_genes: int, n_comps: int) -> Subspace:
    """Block Lanczos iteration: a pass multiplies the scatter by the newest block of an orthonormal basis.

    The scatter times the basis is the basis times `projected`, but for the last block: what that leaves
    is the residual of every direction found so far, and the next block.
    """
    width = n_comps + _MORE_DIRECTIONS
    block = _orthonormal(np.random.default_rng(0).normal(size=(n_genes, width)))
    basis = block
    projected: Array = np.zeros((0, 0))
    for n_passes in count_from(1):
        product, mean, count, total = _product(read, block)
        _checked_total(total)
        column = basis.T @ product
        projected = _grown(projected, column)
        rest = product - basis @ column
        rest -= basis @ (basis.T @ rest)
        energies, turns = (found[..., ::-1] for found in np.linalg.eigh(projected))
        last = turns[-width:, :n_comps]
        residuals = np.sum(last * (rest.T @ rest @ last), axis=0)
        is_found = bool((residuals <= (_RESIDUAL * energies[:n_comps]) ** 2).all())
        if is_found or n_passes == _MAX_PASSES:
            break
        if basis.shape[1] >= min(_MAX_BLOCKS * width, n_genes - width):
            basis = block = _orthonormal(basis @ turns[:, :width])
            projected = np.zeros((0, 0))
        else:
            block = _orthonormal(rest)
            block = _orthonormal(block - basis @ (basis.T @ block))
            basis = np.hstack([basis, block])
    if not is_found:
        warnings.warn(
            f"the last of {n_comps} components have not converged after {_MAX_PASSES} passes; take fewer "
            "components or genes.",
            stacklevel=4,
        )
    return _subspace((basis @ turns[:, :n_comps]).T, energies[:n_comps], mean, count, total)


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
    """The scatter of all cells times a block, shape (n_genes, width); their mean, number and total energy."""
    product, sums, count, energy = np.zeros_like(block), np.zeros(len(block)), 0, 0.0
    for _, rows in read():
        rows = rows.astype(np.float64)
        product += rows.T @ (rows @ block)
        sums += np.asarray(rows.sum(axis=0)).ravel()
        values = rows.data if sparse.issparse(rows) else rows.ravel()
        energy += float(values @ values)
        count += rows.shape[0]
    mean = sums / count
    return product - np.outer(sums, mean @ block), mean, count, energy - count * float(mean @ mean)


# --- both ---


def _checked_total(total: float) -> float:
    if not total > 0:
        raise ValueError("cells must differ in the genes selected, but all are equal.")
    return total


def _subspace(directions: Array, energies: Array, mean: Array, count: float, total: float) -> Subspace:
    """Signs are those of scikit-learn, and so of scanpy: the largest entry of a component is positive."""
    return Subspace(with_fixed_signs(directions), np.sqrt(np.maximum(energies, 0.0)), mean, count, total)
