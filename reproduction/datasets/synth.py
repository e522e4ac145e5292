"""Synth(alpha), the paper's rows with a power-law spectrum, in the three definitions it has."""

import copy
from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation

Seed = int | np.random.Generator


def synth(
    alpha: float,
    n_features: int,
    n_rows: int,
    *,
    definition: Literal["code", "footnote", "appendix"] = "code",
    seed: Seed,
) -> Array:
    """Rows whose spectrum falls as a power of i along random directions, shape (n_rows, n_features).

    The paper defines Synth(alpha) twice, and its code a third time. They differ: at alpha = 1 the second
    variance is 1/4 of the first in two of them, and 1/2 of it in the other.

    Args:
        alpha: how fast the spectrum falls; at 0 it is flat.
        n_features: how many features, d.
        n_rows: how many rows, n.
        definition: "code" makes the paper's pictures: Gaussian rows with standard deviations i^-alpha, then
            all divided by the largest norm of a row. (That the code first divides by sqrt(n - 1) is undone by
            this.) "footnote" is the definition of the main text: the singular values are i^-alpha, exactly;
            it needs n >= d. "appendix": Gaussian rows whose covariance has the eigenvalues i^-alpha, so
            standard deviations i^(-alpha/2).
        seed: an integer, or a generator, which moves on.

    >>> rows = synth(1.0, 20, 500, definition="footnote", seed=0)
    >>> np.linalg.svd(rows, compute_uv=False)[:3].round(2)
    array([1.  , 0.5 , 0.33])
    """
    if definition != "footnote":
        return next(synth_batches(alpha, n_features, n_rows, n_rows, definition=definition, seed=seed))
    spread, rng = _power_law(alpha, n_features), np.random.default_rng(seed)
    if validation.integer(n_rows, "n_rows", at_least=1) < n_features:
        raise ValueError(
            'definition="footnote" needs a row for every singular value: n_rows must be at least '
            f"n_features={n_features}, got n_rows={n_rows}."
        )
    directions = _directions(rng, n_features)
    coordinates = np.linalg.qr(rng.standard_normal((n_rows, n_features)))[0]
    return (coordinates * spread) @ directions


def synth_batches(
    alpha: float,
    n_features: int,
    n_rows: int,
    batch_size: int,
    *,
    definition: Literal["code", "appendix"] = "code",
    seed: Seed,
) -> Iterator[Array]:
    """The rows of `synth`, a batch at a time: more than fit in memory, all along the same directions.

    The largest norm, which "code" divides by, is found by drawing all rows once before. "footnote" is defined
    for all rows at once only.

    >>> [batch.shape for batch in synth_batches(1.0, 20, 500, 200, seed=0)]
    [(200, 20), (200, 20), (100, 20)]
    """
    if definition not in ("code", "appendix"):
        raise ValueError(
            f'definition must be "code" or "appendix" ("footnote" is for synth, which has all rows at once), '
            f"got definition={definition!r}."
        )
    spread = _power_law(alpha, n_features)
    if definition == "appendix":
        spread = np.sqrt(spread)
    validation.integer(n_rows, "n_rows", at_least=1)
    validation.integer(batch_size, "batch_size", at_least=1)
    rng = np.random.default_rng(seed)
    return _batches(rng, spread, n_rows, batch_size, bounded=definition == "code")


def _batches(
    rng: np.random.Generator, spread: Array, n_rows: int, batch_size: int, *, bounded: bool
) -> Iterator[Array]:
    sizes = [min(batch_size, n_rows - start) for start in range(0, n_rows, batch_size)]
    directions = _directions(rng, len(spread))
    if bounded:
        norm_rng = copy.deepcopy(rng)
        norms = (np.linalg.norm(norm_rng.standard_normal((n, len(spread))) * spread, axis=1) for n in sizes)
        spread = spread / max(batch.max() for batch in norms)  # a rotation does not change the norm
    for size in sizes:
        yield (rng.standard_normal((size, len(spread))) * spread) @ directions


def _power_law(alpha: float, n_features: int) -> Array:
    if not (validation.is_real(alpha) and 0 <= alpha < np.inf):
        raise ValueError(f"alpha must be a finite number >= 0, got alpha={alpha!r}.")
    return np.arange(1.0, validation.integer(n_features, "n_features", at_least=1) + 1) ** -alpha


def _directions(rng: np.random.Generator, n_features: int) -> Array:
    """Orthonormal rows, shape (d, d)."""
    return np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
