"""The two products of a panel of rows: with the probes, and of the scores with the rows again."""

import numpy as np
from scipy import sparse

from fedpca._typing import Array, RowsLike
from fedpca.backend.ops import even_cuts, row_energies
from fedpca.backend.threads import map_parts
from fedpca.trackers.nystrom.probes import Probes, RowStats

_PART_WORK = 2**27  # multiplications per product that one thread does at a time, a few milliseconds
_LEAST_WORK = 2**23  # the same where there would be no second part otherwise
_MIN_LENGTH = 128  # of a part; products of less are slower
_ROW_ROUNDING = 1e-4  # error of a row's residual, as a share of its energy: measured 7e-7 in float32


def project_panel(panel: RowsLike, roots: Array | None, probes: Probes) -> tuple[Array, RowStats]:
    """Scores of rows along the probes, and what they tell of the rows.

    Args:
        panel: shape (n, d), dense or CSR; rows times `roots`.
        roots: square roots of the rows' weights; None for weights of one.

    Returns:
        Scores about the mean, the last of each row its root, shape (K + 1, n), and the rows' statistics.
        Outlier rows are zeroed.
    """
    if isinstance(panel, np.ndarray):
        scores, energy = _project_in_parts(panel, probes.directions)
    else:
        scores, energy = (panel @ probes.directions.T).T, row_energies(panel)
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


def score_products(scores: Array, panel: RowsLike) -> Array:
    """`scores @ panel`, shape (K + 1, d)."""
    return (panel.T @ scores.T).T if sparse.issparse(panel) else _score_columns(scores, panel)


def _score_columns(scores: Array, panel: Array) -> Array:
    """`scores @ panel`; threads share the columns."""
    width, n_features = len(scores), panel.shape[1]
    products = np.empty((width, n_features), panel.dtype)

    def multiply(part: slice) -> None:
        np.matmul(scores, panel[:, part], out=products[:, part])

    map_parts(multiply, _parts(n_features, panel.size * width))
    return products
