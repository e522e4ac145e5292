"""MOD-SuLQ (Chaudhuri, Sarwate, Sinha 2012), equations 4 to 6: the noisy mean of x x^T, noised once.

Departures from the paper:

1. Rows are drawn into the unit ball, where the paper assumes that they are in it.
2. The mask is added to n A, integers, and exact on them; eigenvalues are on the scale of the data, n A.
3. Negative eigenvalues, which are noise, are left out.
"""

import numpy as np

from fedpca._typing import Array
from fedpca.paper.mask import SymmetricMask
from fedpca.paper.noise import mod_sulq_beta
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.privacy.noise import Noise
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.subspace import Subspace


def mod_sulq(rows: Array, rank: int, *, epsilon: float, delta: float, noise: Noise) -> Subspace:
    """The `rank` leading components of rows, shape (n, d), (epsilon, delta)-private.

    Args:
        rows: finite; those longer than one are shortened to one.
        rank: k.
        epsilon, delta: the promise, where any row may be replaced by any other.
        noise: with a secret key of its own: `fedpca.privacy.noise.ExactNoise(secrets.token_bytes(32))`.

    >>> from fedpca.privacy.noise import ExactNoise
    >>> rows = np.random.default_rng(0).normal(size=(5000, 3)) * [0.5, 0.1, 0.1]
    >>> found = mod_sulq(rows, 1, epsilon=1.0, delta=1e-5, noise=ExactNoise(bytes(32)))
    >>> bool(abs(found.components[0, 0]) > 0.99)
    True
    """
    points = clipped(rows, 1.0)  # in units of 2^-12
    n_rows, n_features = points.shape
    # Equation 6, the standard deviation of the noise on A; here on n A.
    omega = mod_sulq_beta(epsilon, delta, n_features, 1) * RADIUS**2
    # Equation 4: A = (1/n) X X^T + N, with N symmetric and i.i.d. on and above the diagonal.
    noisy = SymmetricMask(noise, n_features, omega, omega).add_to(points.T @ points) / RADIUS**2
    # The k leading eigenvectors.
    return _leading(noisy, rank, n_rows)


def _leading(noisy: Array, rank: int, count: float) -> Subspace:
    """The leading eigenvectors of a noisy sum of x x^T over `count` rows, those of positive eigenvalues."""
    values, vectors = np.linalg.eigh(noisy)
    kept = int(np.count_nonzero(values[-rank:] > 0))
    values, components = values[::-1][:kept], with_fixed_signs(vectors.T[::-1][:kept])
    total = max(float(np.trace(noisy)), float(values.sum()))
    return Subspace(components, np.sqrt(values), np.zeros(len(noisy)), count, total, centered=False)
