"""By how much scores of new rows shrink towards the center, and the factors that undo it.

Components fit the noise of their own rows: these lie further out along them than new rows do. Let n be the
rows, d_k the variance along component k, and λ_j those along all n directions of the rows that are noise, 0
for those that the features do not span. Scores of new rows are those of rows in the fit times

    ρ_k = 1 / mean_j(d_k / (d_k - λ_j)),

the limit for many rows and features, whether their noise is correlated or not: docs/explanation/shrinkage.md.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

from fedpca._typing import Array

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace

Shrinkage = Literal["asymptotic"]
"""How scores of new rows are corrected for shrinkage."""

_POINTS = 1000  # of the spectrum of noise
_ROUNDING = 1e-9  # share of the variance that is none


def check_shrinkage(shrinkage: object) -> bool:
    """Whether scores are to be corrected; rejects what is not a way to do it."""
    if shrinkage not in (None, "asymptotic"):
        raise ValueError(f"shrinkage must be None or 'asymptotic', got shrinkage={shrinkage!r}.")
    return shrinkage is not None


def shrinkage_factors(subspace: "Subspace", n_components: int) -> Array:
    """Scores of new rows along the first components, relative to those of rows in the fit, shape (k,).

    All other directions are taken to be noise: those that the summary carries, with their variances, and the
    rest with the variance left, spread over them as that of independent noise (Marchenko-Pastur).

    Args:
        subspace: of exact numbers, which leaves some variance to directions beyond the components.
        n_components: how many of its directions are signal.

    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(200, 1000)) + 3 * rng.normal(size=(200, 1)) * (np.arange(1000) < 10)
    >>> from fedpca import Subspace
    >>> shrinkage_factors(Subspace.from_rows(rows, rank=5), 1).round(2)
    array([0.95])
    """
    if subspace.certificate is not None:
        raise ValueError("shrinkage cannot be corrected in a private model: its variances contain noise.")
    rows = max(subspace.count - subspace.centered, 1.0)
    variances = subspace.singular_values**2 / rows
    signal, carried = variances[:n_components], variances[n_components:]
    spanned = min(rows, subspace.n_known)
    left = spanned - subspace.rank
    if not len(carried) and not (left > 0 and subspace.discarded > _ROUNDING * subspace.total):
        raise ValueError(
            "shrinkage is corrected by the variance that the components leave out, and the model has none; "
            "show fewer components, or fit with more."
        )
    noise, counts = [carried, np.zeros(1)], [np.ones(len(carried)), np.array([rows - spanned])]
    if left > 0:
        shape, weights = _noise_below(subspace.n_known / rows, len(carried) / (left + len(carried)))
        spread = shape * (subspace.discarded / rows / left / (weights @ shape))
        noise.append(np.minimum(spread, variances[-1]))
        counts.append(left * weights)
    values, number = np.concatenate(noise), np.concatenate(counts)
    # Directions nearer to each other than this are not told apart.
    gaps = np.maximum(1 - values / signal[:, None], rows ** (-2 / 3))
    return number.sum() / ((1 / gaps) @ number)


def _noise_below(ratio: float, share: float) -> tuple[Array, Array]:
    """Variances of independent noise with this ratio of features to rows, but for the largest; their weights.

    Args:
        ratio: of features to rows.
        share: of all directions, those with the largest variances, which are left out.
    """
    angles = (np.arange(_POINTS) + 0.5) * np.pi / _POINTS
    values: Array = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(angles)
    weights: Array = np.sin(angles) ** 2 / values
    weights /= weights.sum()
    kept = np.cumsum(weights) > share
    return values[kept], weights[kept] / weights[kept].sum()
