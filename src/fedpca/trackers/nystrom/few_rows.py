"""Leading singular pairs of rows that are at hand: exact, without the eigenproblem of all of them."""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.linalg import largest_entry, leading_singular_pairs
from fedpca.trackers.nystrom.solve import residual_directions

_DIRECT_SIZE = 768
"""Shorter side of the rows up to which one eigenproblem takes no longer."""
_GUARD = 8
"""Directions beyond those wanted that are improved with them: the wanted converge by the gap behind these."""
_MAX_SHARE = 1 / 5
"""Of all directions, in the subspace: if it takes more, the spectrum is flat, and one eigenproblem faster."""
_TOLERANCE = 1e-10
"""Residual of a pair, in units of the mean energy wanted. What a direction loses is at most its residual."""
_GUARD_TOLERANCE = 1e-6
"""The same of directions that are exchanged but not wanted, in units of their own energy."""
_MIN_ENERGY = 1e-9
"""Least energy wanted, in units of the largest, whose residual is not rounding."""


def exact_pairs(rows: Array, n_wanted: int, n_max: int, floor: float) -> tuple[Array, Array]:
    """The leading right singular pairs of rows, the wanted to 1e-9 of their energy.

    Args:
        rows: centered, float64, shape (n, d).
        n_wanted: pairs that are exact.
        n_max: pairs at most; those beyond `n_wanted` are good to 1e-6.
        floor: singular values up to here are rounding.

    >>> rows = np.random.default_rng(0).normal(size=(900, 700)) * np.arange(1, 701) ** -1.0
    >>> components, singular_values = exact_pairs(rows, 5, 10, 0.0)
    >>> bool(np.allclose(singular_values[:5], np.linalg.svd(rows, compute_uv=False)[:5], rtol=1e-12))
    True
    """
    size = min(rows.shape)
    is_few = size > _DIRECT_SIZE and 2 * (n_max + _GUARD) < _MAX_SHARE * size
    if is_few and 1e-100 < largest_entry(rows) < 1e100:
        pairs = _by_residuals(rows, n_wanted, n_max, int(_MAX_SHARE * size))
        if pairs is not None:
            components, singular_values = pairs
            kept = int(np.count_nonzero(singular_values > floor))
            return components[:kept], singular_values[:kept]
    return leading_singular_pairs(rows, n_max, floor)


def _by_residuals(rows: Array, n_wanted: int, n_max: int, n_limit: int) -> tuple[Array, Array] | None:
    """The pairs from a subspace that grows by what the scatter makes of its directions; None if too many."""
    n_features = rows.shape[1]
    start = np.random.default_rng(0).standard_normal((n_max + _GUARD, len(rows))) @ rows
    block = residual_directions(start, np.zeros((0, n_features)))
    basis, products = np.zeros((0, n_features)), np.zeros((0, n_features))
    scores = np.zeros((len(rows), 0))
    while len(block):
        if len(basis) + len(block) > n_limit:
            return None
        more = rows @ block.T
        scores = np.hstack([scores, more])
        basis, products = np.vstack([basis, block]), np.vstack([products, more.T @ rows])
        inner = products @ basis.T
        squares, vectors = np.linalg.eigh(inner + inner.T)
        squares, vectors = squares[::-1][: n_max + _GUARD] / 2, vectors[:, ::-1][:, : n_max + _GUARD]
        if squares[min(n_wanted, len(squares)) - 1] < _MIN_ENERGY * squares[0]:
            return None
        residuals = vectors.T @ products - squares[:, None] * (vectors.T @ basis)
        sizes = np.sqrt(np.vecdot(residuals, residuals))
        limits = np.where(
            np.arange(len(squares)) < n_wanted,
            _TOLERANCE * squares[:n_wanted].mean(),
            _GUARD_TOLERANCE * np.abs(squares),
        )
        if (sizes <= limits)[:n_max].all():
            break
        block = residual_directions(residuals[sizes > limits], basis)
    _, singular_values, vectors = np.linalg.svd(np.linalg.qr(scores, mode="r"))
    return vectors[:n_max] @ basis, singular_values[:n_max]
