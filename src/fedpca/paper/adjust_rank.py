"""AdjustRank (section 3.3): one direction more or fewer, by E_r = sigma_r / (sigma_1 + ... + sigma_r).

Departures from the paper, of `adjust_rank`:

1. Only the number of directions changes. As printed e_(r+1) is appended, which is not orthogonal to U, with a
   Sigma_(r+1) that does not exist; here the next update finds the direction.
2. alpha and beta are fractions, not percent.

E_r is at most 1 / r: with beta = 0.1 the rank cannot grow past 10. `fedpca.EnergyBand` is the rule that the
trackers of fedpca take.
"""

import numpy as np

from fedpca._typing import Array


def adjust_rank(sigma: Array, alpha: float, beta: float) -> int:
    """How many directions to keep from the next block on.

    Args:
        sigma: the singular values of those kept now.
        alpha, beta: bounds of E_r, fractions.

    >>> adjust_rank(np.array([4.0, 2.0]), alpha=0.01, beta=0.1)
    3
    """
    rank = len(sigma)
    share = float(sigma[-1] / sigma.sum()) if rank and sigma[-1] > 0 else 0.0
    if share > beta:
        return rank + 1
    return rank - 1 if share < alpha and rank > 1 else rank


def adjust_rank_as_printed(components: Array, sigma: Array, alpha: float, beta: float) -> tuple[Array, Array]:
    """AdjustRank, as printed, but for Sigma_(r+1), which is taken as zero.

    Args:
        components, sigma: U, shape (r, d), and Sigma.
        alpha, beta: in percent.

    >>> adjust_rank_as_printed(np.eye(2, 4), np.array([4.0, 2.0]), alpha=1, beta=10)[0]
    array([[1., 0., 0., 0.],
           [0., 1., 0., 0.],
           [0., 0., 1., 0.]])
    """
    rank, n_features = components.shape
    share = 100 * sigma[-1] / sigma.sum()
    if share > beta and rank < n_features:
        return np.vstack([components, np.eye(n_features)[rank]]), np.append(sigma, 0.0)
    return (components[:-1], sigma[:-1]) if share < alpha else (components, sigma)
