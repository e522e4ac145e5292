"""The two products of rows: with the probes, and of the scores with the rows again; a team shares them."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedpca._typing import Array, RowsLike
from fedpca.backend.ops import blocks, even_cuts, row_energies
from fedpca.parallel import map_parts
from fedpca.trackers.nystrom.probes import Probes, RowStats

_BLOCK_ENTRIES = 2**20
"""Of rows that go through both products at a time. With 16 threads a fit of 600,000 x 1,000 takes 0.28 s, and
0.46 with half as many, since between products threads wait for each other; one thread loses 1 %."""
_PART_ENTRIES = 3 * 2**17
"""Fewer are not worth another thread."""
_LEAST_ROWS = 256
"""Of a block or a part: products of fewer are slower."""
_MAX_PARTS = 16
_MAX_KEPT = 2**23
"""Entries of the products of all parts together, 64 MB."""
_SPARSE_COST = 8  # of an entry that is stored, in dense ones
_ROW_ROUNDING = 1e-4  # error of a row's residual, as a share of its energy: measured 7e-7 in float32


class PartSums(NamedTuple):
    """Products of some rows, in the letters of `solve`, and what they tell of each row."""

    Q: Array
    M: Array
    stats: RowStats


def cut_rows(panel: RowsLike, width: int) -> list[slice]:
    """Parts of a panel for products with so many probes; they depend on shapes alone, not on threads."""
    n_rows, n_features = panel.shape
    if sparse.issparse(panel):  # every part makes dense products
        n_parts = min(_SPARSE_COST * panel.nnz // _PART_ENTRIES, panel.nnz // (4 * n_features))
        n_parts = min(n_parts, n_rows // _LEAST_ROWS)
    else:
        n_parts = n_rows // max(_PART_ENTRIES // n_features, _LEAST_ROWS)
    n_parts = min(n_parts, _MAX_PARTS, _MAX_KEPT // (width * n_features))
    return even_cuts(n_rows, max(n_parts, 1))


def multiply_parts(
    panel: RowsLike, roots: Array | None, probes: Probes, parts: list[slice]
) -> list[PartSums]:
    """The products of parts of a panel; outliers are zeroed."""

    n_rows, n_features = panel.shape
    size = n_rows if sparse.issparse(panel) else max(_BLOCK_ENTRIES // n_features, _LEAST_ROWS)

    def multiply(part: slice) -> PartSums:
        sums, stats = None, []
        for block in blocks(part, size):
            rows = panel[block, :]
            scores, own = project(rows, None if roots is None else roots[block], probes)
            Q, M = score_products(scores, rows), score_squares(scores)
            if sums is not None:
                Q, M = np.add(sums[0], Q, out=sums[0]), sums[1] + M
            sums = Q, M
            stats.append(own)
        assert sums is not None
        return PartSums(*sums, RowStats.joined(stats))

    return map_parts(multiply, parts)


def project(rows: RowsLike, roots: Array | None, probes: Probes) -> tuple[Array, RowStats]:
    """Scores of rows along the probes, and what they tell of the rows.

    Args:
        rows: shape (n, d), dense or CSR; rows times `roots`.
        roots: square roots of the rows' weights; None for weights of one.

    Returns:
        Scores about the mean, the last of each row its root, shape (K + 1, n), and the rows' statistics.
        Outlier rows are zeroed.
    """
    energy = row_energies(rows)  # first: it brings rows into the cache faster than products do, 10 %
    # The order of factors that is faster for the dtype: 13 % in float64.
    if isinstance(rows, np.ndarray) and rows.dtype != np.float32:
        scores = probes.directions @ rows.T
    else:
        scores = (rows @ probes.directions.T).T
    root = 1.0 if roots is None else roots
    # |x - mu0|² - |W (x - mu0)|², times the weight
    residual = energy - 2 * scores[-1, :] * root + root**2 * probes.mean_square
    scores[:-1, :] -= probes.offsets[:, None] * root
    scores[-1, :] = root
    residual -= np.einsum("ij,ij->j", scores[:-1, :], scores[:-1, :])
    is_outlier = residual > probes.outlier_energy + _ROW_ROUNDING * energy
    if is_outlier.any():
        kept = ~is_outlier
        scores *= kept
        energy, residual = energy * kept, residual * kept
    return scores, RowStats(energy, residual, is_outlier)


def score_products(scores: Array, rows: RowsLike) -> Array:
    """`scores @ rows`, shape (K + 1, d)."""
    return (rows.T @ scores.T).T if sparse.issparse(rows) else scores @ rows


def score_squares(scores: Array) -> Array:
    """`scores @ scores.T`, shape (K + 1, K + 1), float64."""
    return np.asarray(scores @ scores.T, np.float64)
