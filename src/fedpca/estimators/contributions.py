"""One score of rows, what each feature adds to it, and the feature that explains it best.

A row x, about the mean and divided by any scale, has scores t = V x along the components V, shape (k, d), of
variances L, and the residual e = x - V' t. Each statistic is the squared length of a vector with one entry
per feature, so that the squares of the entries are nonnegative and add up to it, without any constant:

    SPE = |e|²                     SPE_i = e_i²
    T²  = |V' L^-1/2 t|²           T²_i  = (V' L^-1/2 t)_i²

(Nomikos, MacGregor 1995 for SPE; the symmetric root of Westerhuis, Gurden, Smilde 2000 for T².) D², the
squared Mahalanobis distance, is T² of all directions that are known. The score is the sum of the three, each
divided by its mean: the combined index of Yue and Qin (2001), and the likelihood.

A large contribution need not be the cause: residuals smear over features that go together. The feature to
name is the one whose reconstruction from the others lowers the score most (Dunia, Qin 1998; Alcala, Qin
2009). With the score x' F x, the best value of entry i lowers it by (F x)_i² / F_ii, which is largest for the
feature that a single fault is in, once the fault is large.
"""

from typing import NamedTuple, Self

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.subspace import Subspace

_LEAST_VARIANCE = 1e-9
"""Of all variance. Directions with less are rounding: D² leaves them out, as in `benchmarks.monitoring
adbench`."""


class Contributions(NamedTuple):
    """What each feature adds to the anomaly scores of rows. All arrays have shape (n, d).

    Attributes:
        spe: adds up to SPE, feature by feature; 0 where an entry is missing.
        t2: adds up to T²; a missing entry counts as estimated.
        score: adds up to the one score.
        reduction: by how much that score falls if this entry is reconstructed from the others; 0 where it is
            missing. The feature with the largest one is the one to name.
    """

    spe: Array
    t2: Array
    score: Array
    reduction: Array

    @property
    def named(self) -> AnyArray:
        """The number of the feature that explains each row best, shape (n,)."""
        return self.reduction.argmax(axis=1)


class CombinedScore(NamedTuple):
    """T² / k + SPE / E[SPE] + D² / E[D²] of rows: 3 in the mean, if they are like those of the fit.

    Attributes:
        directions: all that are known, shape (r, d), of which the first `shown` are the components.
        variances: along them, shape (r,).
        shown: k.
        spe_mean: variance outside of the components.
        precisions: what D² multiplies squares along the directions by, shape (r,): 1 over the variance, or 0.
        outside: what it multiplies squares outside of all directions by.
        d2_mean: directions that D² has.
        has_outside: whether there are other directions.
    """

    directions: Array
    variances: Array
    shown: int
    spe_mean: float
    precisions: Array
    outside: float
    d2_mean: float
    has_outside: bool

    @classmethod
    def of_model(cls, known: Subspace, shown: Array) -> Self:
        """By the directions known, of which the first have these variances, shape (k,)."""
        variances = known.singular_values**2 / degrees_of_freedom(known.count)
        variances[: len(shown)] = shown
        rest = known.discarded / degrees_of_freedom(known.count)
        n_rest = known.n_known - known.rank
        total = float(variances.sum()) + rest
        least = max(_LEAST_VARIANCE * total, float(np.finfo(np.float64).tiny))
        counts = variances > least
        has_rest = n_rest > 0 and rest > n_rest * least
        return cls(
            known.components.astype(np.float64),
            variances,
            len(shown),
            max(float(variances[len(shown) :].sum()) + rest, least),
            np.divide(1.0, variances, out=np.zeros_like(variances), where=counts),
            n_rest / rest if has_rest else 0.0,
            max(float(np.count_nonzero(counts)) + (n_rest if has_rest else 0), 1.0),
            n_rest > 0,
        )

    def of(self, deviations: Array, scores: Array) -> Array:
        """The score of rows about the mean, shape (n, d), by their scores, shape (n, r); NaN if missing."""
        squares, k = scores**2, self.shown
        if np.isnan(deviations).any():
            residual, beyond = self._residuals(deviations, scores)
            spe, far = _lengths(residual), _lengths(beyond)
        else:  # the residual is that of all directions, and what those beyond the components have
            far = (
                _lengths(deviations - scores @ self.directions) if self.has_outside else np.zeros(len(scores))
            )
            spe = squares[:, k:].sum(axis=1) + far
        found: Array = squares[:, :k] @ (1 / self.variances[:k]) / max(k, 1) + spe / self.spe_mean
        return found + (squares @ self.precisions + self.outside * far) / self.d2_mean

    def contributions(self, deviations: Array, scores: Array) -> Contributions:
        """Of the same rows and scores."""
        k, gaps = self.shown, np.isnan(deviations)
        residual, beyond = self._residuals(deviations, scores)
        spe = residual**2
        t2 = ((scores[:, :k] / np.sqrt(self.variances[:k])) @ self.directions[:k]) ** 2
        d2 = ((scores * np.sqrt(self.precisions)) @ self.directions + np.sqrt(self.outside) * beyond) ** 2
        score = t2 / max(k, 1) + spe / self.spe_mean + d2 / self.d2_mean
        inside, outside = self._weights()
        squares = self.directions**2
        slope = (scores * inside) @ self.directions + outside * beyond
        reduction = _ratio(slope**2, inside @ squares + outside * np.maximum(1 - squares.sum(axis=0), 0.0))
        for index in np.flatnonzero(gaps.any(axis=1)):
            reduction[index] = self._reduction_with_gaps(deviations[index], inside, outside)
        return Contributions(spe, t2, score, reduction)

    def _residuals(self, deviations: Array, scores: Array) -> tuple[Array, Array]:
        """What the components leave of rows, and what all directions leave; 0 where an entry is missing."""
        k = self.shown
        residual = np.nan_to_num(deviations - scores[:, :k] @ self.directions[:k])
        return residual, np.where(np.isnan(deviations), 0.0, residual - scores[:, k:] @ self.directions[k:])

    def _weights(self) -> tuple[Array, float]:
        """What the score of a complete row multiplies squares by: along directions, outside of them."""
        k = self.shown
        inside = self.precisions / self.d2_mean
        inside[:k] += 1 / (max(k, 1) * self.variances[:k])
        inside[k:] += 1 / self.spe_mean
        if not self.has_outside:  # any number will do
            return inside, float(inside.max(initial=1.0))
        return inside, 1 / self.spe_mean + self.outside / self.d2_mean

    def _reduction_with_gaps(self, row: Array, inside: Array, outside: float) -> Array:
        """(F x)_i² / F_ii of a row with gaps, with the least score over all values of its missing entries.

        That is x' C^-1 x of the entries observed, C the inverse of F there; C^-1 by Woodbury's formula.
        """
        observed = ~np.isnan(row)
        known = self.directions[:, observed]
        gain = 1 / inside - 1 / outside
        inner = np.eye(len(gain)) + outside * (known @ known.T) * gain
        less = outside**2 * gain[:, None] * np.linalg.pinv(inner)
        slope = outside * row[observed] - known.T @ (less @ (known @ row[observed]))
        curvature = outside - np.einsum("ki,ki->i", known, less @ known)
        reduction = np.zeros(len(row))
        reduction[observed] = _ratio(slope**2, np.maximum(curvature, 0.0))
        return reduction


def _lengths(rows: Array) -> Array:
    """The squared length of each row."""
    found: Array = np.einsum("ij,ij->i", rows, rows)
    return found


def _ratio(squares: Array, curvature: Array) -> Array:
    """Squares over curvature, 0 where an entry does not matter to the score."""
    least = 1e-12 * float(curvature.max(initial=0.0))
    ratio: Array = np.divide(squares, curvature, out=np.zeros_like(squares), where=curvature > least)
    return ratio
