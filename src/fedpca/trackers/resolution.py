"""Resolution: whether products of rows keep the digits of every direction wanted.

An entry of X^T X rounds relative to the sizes of its two features, sqrt(N_ii N_jj) for N = diag(X^T X). A
direction is lost where its energy is below that. With S the scatter and e a small multiple of the rounding
error, the leading directions wanted are resolved

* if as many eigenvalues of S exceed e trace(N), or
* if S > e N: then all directions are, whatever the units of the features.

Scatters only grow, so this holds until the sizes of the features have grown by more than the test allowed.

Rows that span fewer directions than are wanted say nothing of the smallest: those to come may be below the
rounding of products taken now. A direction of energy s² tilts by e / s², so it spoils others of size e / s.
Until enough rows have come, products are taken in float64, and only where this stays below what is promised.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

from fedpca._typing import AnyArray, Array
from fedpca.summaries.linalg import count_eigenvalues_above, is_positive_definite

# Least energy of a direction, in units of eps and all energy: smaller ones have errors above about 1 % in
# float32, in float64, where it costs nothing to ask for more, above 0.1 %.
_MIN_ENERGY_32 = 16
_MIN_ENERGY_64 = 1000
# The same while rows span too few directions: others down to 1e-13 of the largest are yet to come.
_MIN_ENERGY_EARLY = (float(np.finfo(np.float64).eps) / 1e-13) ** 2
# How much sizes may grow until the next test: the first for which everything is resolved. A test takes a
# Cholesky factor or two: with 2^20, streams of float64 have one in a million times their first energy.
_GROWTHS_32 = (16.0, 4.0, 2.0)
_GROWTHS_64 = (2.0**20, 16.0, 2.0)


def min_energy(n_features: int, dtype: DTypeLike) -> float:
    """The least share of all energy at which products in a dtype resolve a direction.

    Rounding errors of many features average out; of few they may all fall on one direction.
    """
    return _relative_noise(dtype) * (1 + 8 / np.sqrt(n_features))


def _relative_noise(dtype: DTypeLike) -> float:
    dtype = np.dtype(dtype)
    return (_MIN_ENERGY_32 if dtype == np.float32 else _MIN_ENERGY_64) * float(np.finfo(dtype).eps)


class Resolved(NamedTuple):
    """How far sums may grow and still resolve the directions wanted.

    Attributes:
        energy: sum of squares of all rows about their origin.
        sizes: sum of squares of each feature, shape (d,); None if they were not tested.
        n_spanned: directions that so many rows can span.
        growth: how much the test allowed.
    """

    energy: float
    sizes: Array | None
    n_spanned: float
    growth: float = np.inf

    def covers(self, energy: float, sizes: Array, more: Array, n_spanned: int) -> bool:
        """Whether sums need no test: their energy, sizes before and sizes added, directions spanned."""
        if n_spanned > self.n_spanned:
            return False
        return energy <= self.energy or (self.sizes is not None and bool((sizes + more <= self.sizes).all()))

    def scaled(self, weight: float) -> Self:
        return self._replace(
            energy=self.energy * weight, sizes=None if self.sizes is None else self.sizes * weight
        )


NOTHING = Resolved(-1.0, None, -1)
EVERYTHING = Resolved(np.inf, None, np.inf)


def resolved(
    scatter: Array,
    sizes: Array,
    varying: AnyArray,
    n_wanted: int,
    n_spanned: int,
    dtype: DTypeLike,
    max_growth: float = np.inf,
) -> Resolved | None:
    """How far products in a dtype resolve a scatter; None if they do not.

    Args:
        scatter: about the mean, shape (d, d).
        sizes: sum of squares of each feature about the origin, shape (d,).
        varying: whether each feature has any variance, shape (d,).
        n_wanted: leading directions wanted.
        n_spanned: directions that so many rows can span.
        dtype: of the products.
        max_growth: tests for more are left out: the last one failed.
    """
    n_varying = int(np.count_nonzero(varying))
    is_single, is_early = np.dtype(dtype) == np.float32, n_spanned < n_wanted
    until = n_spanned if is_early else np.inf
    n_wanted = min(n_wanted, n_spanned, n_varying)
    if n_wanted <= 0:
        return Resolved(np.inf, None, until)
    n_features, energy = len(scatter), float(sizes.sum())
    if is_early:
        enough = not is_single and count_eigenvalues_above(scatter, _MIN_ENERGY_EARLY * energy) >= n_wanted
        return Resolved(energy, None, until) if enough else None
    least = min_energy(n_features, dtype) * energy
    scatter = scatter.astype(np.float32) if is_single else scatter
    growths = _GROWTHS_32 if is_single else _GROWTHS_64
    for growth in (growth for growth in growths if growth <= max_growth):
        if count_eigenvalues_above(scatter, growth * least) >= n_wanted:
            return Resolved(growth * energy, None, until, growth)
        if n_spanned >= n_varying:
            # Independent errors of the size of their features, d x d, have a norm of about sqrt(d).
            noise = growth * np.sqrt(n_features) * _relative_noise(dtype) * sizes
            if is_positive_definite((scatter - np.diag(noise))[np.ix_(varying, varying)]):
                return Resolved(-1.0, growth * sizes, until, growth)
    return None
