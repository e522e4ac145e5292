"""Limits of anomaly scores, and the likelihood of rows, from a spectrum alone."""

import numpy as np
from scipy import special

from fedpca._typing import Array
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.subspace import Subspace


def spe_limit(subspace: Subspace, shown: int, confidence: float) -> float:
    """The quantile of SPE outside the first `shown` directions; infinite if they discard nothing."""
    others = max(subspace.n_known - subspace.rank, 0)
    energies = subspace.singular_values[shown:] ** 2
    even = subspace.discarded / others if others else 0.0
    left_out = float(energies.sum()) + others * even
    if not left_out > 1e-9 * subspace.total:  # rounding
        return np.inf
    shares = energies / left_out  # the squares of small energies would underflow
    spread = 2 * (float(shares @ shares) + others * (even / left_out) ** 2)
    return chi_squared_limit(left_out / degrees_of_freedom(subspace.count), spread, confidence)


def t2_limit(count: float, shown: int, confidence: float) -> float:
    """The quantile of T² with this many rows and directions; infinite with too few rows."""
    if not 0 < shown < count - 1:
        return np.inf
    scale = shown * (count**2 - 1) / (count * (count - shown))
    return float(scale * special.fdtri(shown, count - shown, confidence))


def chi_squared_limit(mean: float, spread: float, confidence: float) -> float:
    """The quantile of a multiple of a chi-squared variable with this mean, and variance over squared mean.

    >>> round(chi_squared_limit(1.0, 2.0, 0.99), 3)  # one degree of freedom: 2.576²
    6.635
    """
    return float(mean * spread / 2 * special.chdtri(2 / spread, 1 - confidence))


def log_likelihood(spe: Array, t2: Array, variances: Array, noise_variance: float, n_features: int) -> Array:
    """Log-likelihood of rows under probabilistic PCA, from their anomaly scores, shape (n,).

    Without noise variance, that of rows off the components is next to minus infinity.
    """
    left_out = n_features - len(variances)
    noise = max(noise_variance, float(np.finfo(np.float64).tiny))
    log_volume = float(np.log(variances).sum()) + left_out * np.log(noise)
    with np.errstate(over="ignore"):
        distances = t2 + (spe / noise if left_out else 0.0)
    likelihoods: Array = -0.5 * (n_features * np.log(2 * np.pi) + log_volume + distances)
    return likelihoods
