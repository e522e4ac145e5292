"""Parts: rows in which different features are known, kept apart so that they merge exactly in any order.

A feature is unknown to rows if no value of it had been observed when they came: a sensor that starts late,
a site that does not measure it. Unknown is not zero. Such rows say nothing about that feature's mean, nor
about its covariance with any other. With parts p of n_p rows, means m_p and scatters S_p, each over the
features it knows, and with sums over the parts that know feature j, or both j and k,

    mean_j = sum n_p m_pj / sum n_p,
    cov_jk = sum (S_p,jk + n_p (m_pj - mean_j)(m_pk - mean_k)) / sum n_p.

Covariances of different rows may not be those of any one table: where the matrix has negative eigenvalues
these are set to zero, and the variances restored.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca._util.text import feature_label, join_names
from fedpca.summaries import validation
from fedpca.summaries.base import BaseSummary
from fedpca.summaries.linalg import leading_singular_pairs, rounding_level

_S = TypeVar("_S", bound=BaseSummary)

_MAX_WEIGHT = 1e15  # of a feature that few rows know
_MAX_CLASSES = 256  # of features known to the same parts
_MAX_PAIRED = 2048  # size of the eigenproblem of all classes together
MAX_PARTS = 16  # more sets of known features than this are not kept apart


@dataclass(frozen=True, slots=True)
class PooledMeans:
    """What the means of several parts give.

    Attributes:
        count: number of all rows.
        observed: rows that know each feature, shape (d,).
        mean: of each feature over those, shape (d,).
        offsets: sqrt(n_p) (m_p - mean), zero where unknown, shape (p, d).
        known: which part knows which feature, 0.0 or 1.0, shape (p, d).
        counts: rows of each part, shape (p,).
    """

    count: float
    observed: Array
    mean: Array
    offsets: Array
    known: Array
    counts: Array

    @classmethod
    def of(cls, parts: Sequence[BaseSummary]) -> "PooledMeans":
        counts = np.array([part.count for part in parts])
        known = np.array([part.known for part in parts], dtype=np.float64)
        means = np.array([part.mean for part in parts])
        observed = counts @ known
        mean = counts @ (known * means) / np.maximum(observed, np.finfo(np.float64).tiny)
        offsets = np.sqrt(counts)[:, None] * known * (means - mean)
        return cls(float(counts.sum()), observed, mean, offsets, known, counts)

    def feature_weights(self) -> Array:
        """All rows per row that knows a feature, shape (d,); 0 for a feature that none knows."""
        return _ratio(self.count, self.observed)

    def covariance(self, scatter: Array) -> Array:
        """The scatter of all rows, if all knew all features, shape (d, d): `count` times the covariances.

        Args:
            scatter: the sum of the parts' scatters and of the outer products of `offsets`.
        """
        scatter = scatter * self._pair_weights(self.known)
        return _nearest_scatter(scatter)

    def covariance_rows(self, rows: Array) -> Array:
        """Rows, shape (k, d), whose Gram matrix is `covariance` of that of `rows`.

        Weights are the same for all features known to the same parts, so the problem is one of a few
        directions per such class of features. With very many classes only the leading directions have the
        weights of pairs; the others have those of single features, which make covariances too small.
        """
        columns, classes = np.unique(self.known, axis=1, return_inverse=True)
        n_classes = columns.shape[1]
        n_paired = _MAX_PAIRED // n_classes if n_classes <= _MAX_CLASSES else 0
        components, singular_values = leading_singular_pairs(rows)
        rows = singular_values[:, None] * components
        leading = self._paired_rows(rows[:n_paired], columns, classes.reshape(-1))
        return np.concatenate([leading, rows[n_paired:] * np.sqrt(self.feature_weights())])

    def _paired_rows(self, rows: Array, columns: Array, classes: AnyArray) -> Array:
        """`covariance_rows` with the weights of pairs; `columns` of `known`, one per class of features."""
        if not len(rows):
            return rows
        weights = self._pair_weights(columns)
        members = [np.flatnonzero(classes == c) for c in range(len(weights))]
        bases, triangles = zip(*(np.linalg.qr(rows[:, own].T) for own in members), strict=True)
        blocks = [
            [weight * (one @ other.T) for weight, other in zip(row, triangles, strict=True)]
            for row, one in zip(weights, triangles, strict=True)
        ]
        squares, vectors = np.linalg.eigh(np.block(blocks))
        factors = np.sqrt(np.maximum(squares, 0.0)) * vectors
        result = np.zeros((len(squares), rows.shape[1]))
        stop = 0
        for own, basis in zip(members, bases, strict=True):
            start, stop = stop, stop + basis.shape[1]
            result[:, own] = (basis @ factors[start:stop]).T
        wanted = self.feature_weights() * np.sum(rows**2, axis=0)
        return result * np.sqrt(_ratio(wanted, np.sum(result**2, axis=0)))

    def _pair_weights(self, known: Array) -> Array:
        """All rows per row that knows both features, 0 if none does; `known` has shape (p, features)."""
        return _ratio(self.count, (known * self.counts[:, None]).T @ known)


def _ratio(numerator: Array | float, denominator: Array) -> Array:
    """Their ratio, limited; 0 where the denominator is."""
    with np.errstate(over="ignore"):
        ratio = np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)
    return np.minimum(ratio, _MAX_WEIGHT)


def _nearest_scatter(matrix: Array) -> Array:
    """The matrix without its negative eigenvalues, its diagonal as it was."""
    squares, vectors = np.linalg.eigh(matrix)
    if squares[0] >= -rounding_level(len(matrix)) * squares[-1]:
        return matrix
    positive = (vectors * np.maximum(squares, 0.0)) @ vectors.T
    scale = np.sqrt(_ratio(np.maximum(np.diag(matrix), 0.0), np.diag(positive)))
    return scale[:, None] * positive * scale


def ordered(parts: Iterable[_S]) -> tuple[_S, ...]:
    """Checked parts in an order of their own, whatever the one they come in, without names."""
    parts = sorted(parts, key=pattern)
    if not 2 <= len(parts) <= MAX_PARTS:
        raise ValueError(f"parts must be 2 to {MAX_PARTS}, got {len(parts)}.")
    if len({pattern(part) for part in parts}) < len(parts):
        raise ValueError("parts must not know the same features; merge those that do.")
    if len({(part.n_features, part.centered) for part in parts}) > 1 or any(part.parts for part in parts):
        raise ValueError("parts must have the same features, be centered alike, and have no parts.")
    if not all(part.count for part in parts):
        raise ValueError("parts must have rows.")
    for part in parts:  # times their weights, energies must not overflow
        energy = part.total + part.count * float(part.mean @ part.mean)  # type: ignore[attr-defined]
        validation.raw_energy(_MAX_WEIGHT * part.n_features * energy, 0.0, part.mean)
    return tuple(part.with_about(names=None) if part.feature_names else part for part in parts)


def pattern(part: BaseSummary) -> bytes:
    """Which features a part knows, as a key."""
    return part.known.tobytes()


def check_observed(observed: object, count: float, n_features: int) -> Array | None:
    """Rows that know each feature: all of a part's rows, or none. None if every feature is known."""
    if observed is None:
        return None
    values = np.array(observed, dtype=np.float64)
    if values.shape != (n_features,):
        raise ValueError(f"observed must have one number per feature, got shape {values.shape}.")
    if not np.isin(values, (0.0, count)).all():
        raise ValueError("observed must be the count, or 0 for a feature that no row knows.")
    return None if (values == count).all() else values


def feature_labels(which: AnyArray, names: Sequence[str] | None) -> str:
    """The labels of some features, for a message.

    >>> feature_labels(np.array([True, False, True]), None)
    'feature 1, feature 3'
    """
    return join_names([feature_label(i, names) for i in np.flatnonzero(which).tolist()])


def warn_if_unknown(summary: BaseSummary) -> None:
    """Warn of features without any observed value, by name."""
    unknown = ~summary.known
    if unknown.any() and summary.count:
        has = "has" if np.count_nonzero(unknown) == 1 else "have"
        warnings.warn(
            f"{feature_labels(unknown, summary.feature_names)} {has} no observed value: the model knows "
            "nothing about it. Merge it with one that does, or leave it out.",
            stacklevel=3,
        )
