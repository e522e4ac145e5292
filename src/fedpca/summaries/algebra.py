"""The algebra of means and scatters that all summaries share."""

import numpy as np

from fedpca._typing import Array, ArrayLike, DTypeLike
from fedpca.summaries import validation
from fedpca.summaries.linalg import (
    is_positive_definite,
    leading_eigenpairs,
    leading_singular_pairs,
    rounding_level,
)


def deviations_from_mean(
    rows: Array, sample_weight: ArrayLike | None = None, center: bool = True
) -> tuple[float, Array, Array]:
    """Count, mean, and the weighted float64 rows whose Gram matrix is the scatter.

    >>> deviations_from_mean(np.array([[0.0], [3.0]]), sample_weight=[2, 1])
    (3.0, array([1.]), array([[-1.41421356],
           [ 2.        ]]))
    """
    n_rows, n_features = rows.shape
    weights = validation.sample_weight(sample_weight, n_rows)
    count = float(n_rows) if weights is None else float(weights.sum())
    deviations: Array = rows.astype(np.float64)
    mean: Array = np.zeros(n_features)
    roots = None if weights is None else np.sqrt(weights)
    if roots is not None:
        deviations *= roots[:, None]
    if center and count:
        mean = subtract_mean(deviations, roots, count)
    return count, mean, deviations


def subtract_mean(rows: Array, roots: Array | None, count: float) -> Array:
    """Center rows, each multiplied by its root, in place; returns their mean. `count` is the sum of roots**2.

    Twice: a sum of many rows rounds, and rows that are all the same must become zero.
    """
    mean = np.zeros(rows.shape[1])
    for _ in range(2):
        step = (rows.sum(axis=0) if roots is None else roots @ rows) / count
        rows -= step if roots is None else roots[:, None] * step
        mean += step
    return mean


def degrees_of_freedom(count: float) -> float:
    """The divisor that turns energy into variance: count - 1, or the count where weights sum to at most 1."""
    return count - 1 if count > 1 else max(count, np.finfo(float).tiny)


def principal_directions(scatter: Array, rank: int | None = None) -> tuple[Array, Array]:
    """Leading eigenvectors (as rows) of a scatter and the singular values of the rows behind it.

    Eigenvalues up to rounding of the largest count as zero.

    >>> directions, singular_values = principal_directions(np.diag([4.0, 0.0, 9.0]))
    >>> singular_values, np.abs(directions)
    (array([3., 2.]), array([[0., 0., 1.],
           [1., 0., 0.]]))
    """
    squares, vectors = leading_eigenpairs(scatter, len(scatter) if rank is None else rank)
    noise = 2 * rounding_level(len(scatter)) * max(squares[0], 0.0)  # twice: the products have rounded, too
    kept = int(np.count_nonzero(squares > noise))
    return vectors.T[:kept], np.sqrt(squares[:kept])


def directions_of_features(scatter: Array, rank: int | None = None) -> tuple[Array, Array]:
    """`principal_directions` of the scatter of features, whose scales may differ by any factor.

    An eigenproblem rounds relative to the largest feature, entries of a scatter relative to their own two.

    >>> _, singular_values = directions_of_features(np.array([[1e24, 1e11], [1e11, 1.0]]))
    >>> np.round(singular_values, 3)
    array([1.000e+12, 9.950e-01])
    """
    components, singular_values = principal_directions(scatter, rank)
    is_whole = len(singular_values) == (len(scatter) if rank is None else rank)
    if is_whole and singular_values[-1] > _ACCURATE_RATIO * singular_values[0]:
        return components, singular_values
    if _scales_differ(np.diag(scatter)):
        graded = _directions_of_graded(scatter, rank)
        if len(graded[1]) >= len(singular_values):
            return graded
    return components, singular_values


_UNNOTICED = 1e-10
"""Of the trace: negative eigenvalues up to this stay. Products in float64 leave 2e-16, in float32 1e-8 to
8e-8 (`benchmarks.constants rounding`), and a receiver refuses more than 1e-8."""
_ACCURATE_RATIO = 1e-4  # of singular values, from which on an eigenproblem gives them to 1e-8
_MAX_SCALES = 2.0**12  # ratio of the sizes of features from which on they are brought to one scale


def _scales_differ(sizes: Array) -> bool:
    """Whether features of these sums of squares differ much in scale; those without any do not count."""
    sizes = sizes[sizes > 0]
    return bool(len(sizes)) and float(sizes.max()) > _MAX_SCALES**2 * float(sizes.min())


def _directions_of_graded(scatter: Array, rank: int | None) -> tuple[Array, Array]:
    """The pairs by way of rows with this scatter, found with features scaled to the same size."""
    sizes = np.maximum(np.diag(scatter), 0.0)
    scale = np.exp2(np.round(np.log2(np.sqrt(np.where(sizes > 0, sizes, 1.0)))))  # multiplies exactly
    squares, vectors = np.linalg.eigh(scatter / scale / scale[:, None])
    noise = 2 * rounding_level(len(scatter)) * squares[-1]
    if squares[0] < -noise:  # noise was added: there are no such rows
        return np.zeros((0, len(scatter))), np.zeros(0)
    kept = squares > noise
    rows = np.sqrt(squares[kept])[:, None] * vectors[:, kept].T * scale
    return leading_singular_pairs(rows, rank)


def without_negative_eigenvalues(scatter: Array) -> Array:
    """The nearest scatter that rows can have: products in float32 round some eigenvalues below zero.

    Features that do not vary stay exactly so: some may not be known at all.

    >>> without_negative_eigenvalues(np.diag([2.0, -1e-7]))
    array([[2., 0.],
           [0., 0.]])
    """
    lifted = scatter.copy()
    lifted.flat[:: len(scatter) + 1] += _UNNOTICED * float(np.trace(scatter))
    if is_positive_definite(lifted):
        return scatter
    squares, vectors = np.linalg.eigh(scatter)
    varies = scatter.any(axis=0)
    return ((vectors * np.maximum(squares, 0.0)) @ vectors.T) * np.outer(varies, varies)


def shrink_eigenvalues(eigenvalues: Array, edge: float) -> Array:
    """What eigenvalues of a scatter were before symmetric noise with spectrum [-edge, edge] came on top.

    Above the edge, an eigenvalue y stems from (y + sqrt(y² - edge²)) / 2. Below, from something between 0
    and edge / 2: more cannot be said, and y / 2 keeps the order.

    >>> shrink_eigenvalues(np.array([5.0, 4.0, 2.0]), edge=4.0)
    array([4., 2., 1.])
    """
    above = np.sqrt(np.maximum(eigenvalues - edge, 0.0)) * np.sqrt(eigenvalues + edge)
    return (np.maximum(eigenvalues, 0.0) + np.where(eigenvalues > edge, above, 0.0)) / 2


def check_centered(centered: object, mean: Array) -> bool:
    """Refuse a flag that is not one; an uncentered summary has no mean."""
    if not isinstance(centered, bool | np.bool_):
        raise TypeError(f"centered must be True or False, got {centered!r}.")
    if not centered and mean.any():
        raise ValueError("the mean of an uncentered summary must be zero.")
    return bool(centered)


def pooled(weights: Array, means: Array) -> tuple[Array, Array, Array]:
    """Weights and means of all parts together, and the rows sqrt(w_i) (m_i - m) that their means add.

    About the mean of the heaviest part: where all means are the same, nothing is added, not even rounding.

    Args:
        weights: w_i, of each part, shape (parts, 1), or of each feature of it, shape (parts, d).
        means: m_i, shape (parts, d).

    >>> pooled(np.array([[3.0], [1.0]]), np.array([[0.0], [4.0]]))
    (array([4.]), array([1.]), array([[-1.73205081],
           [ 3.        ]]))
    """
    total = weights.sum(axis=0)
    origin = means[weights.argmax(axis=0), np.arange(means.shape[1])]
    step = np.sum(weights * (means - origin), axis=0) / np.maximum(total, np.finfo(np.float64).tiny)
    mean = np.where(total > 0, origin + step, 0.0)
    return total, mean, np.sqrt(weights) * (means - origin - step)


def rounding_floor(total: float, count: float, mean: Array, dtype: DTypeLike) -> float:
    """The singular value that rounding alone can give to rows of this size: smaller ones are no direction.

    Entries round independently of each other, by about eps / sqrt(12) of their size: n rows of d entries of
    size m then have singular values up to eps m (sqrt(n) + sqrt(d)) / sqrt(12), of which this is 14 times as
    much. As much as that have features that all round alike, if they are at most 190. How the variance is
    shared out among features is not known here: deviations from the mean may all belong to one.
    """
    sizes = np.abs(mean)
    largest, length = float(sizes.max(initial=0.0)), float(np.linalg.norm(mean))
    of_mean = np.sqrt(count) * min(largest + length / np.sqrt(max(count, 1.0)), length)
    return rounding_share(dtype) * float(np.hypot(np.sqrt(total), of_mean))


def rounding_share(dtype: DTypeLike) -> float:
    """The share of the length of rows up to which a singular value may be rounding of their entries."""
    return float(4 * np.finfo(dtype).eps)
