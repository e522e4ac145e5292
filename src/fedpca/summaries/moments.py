"""Moments: the exact count, mean and scatter of rows; they sum exactly, in any order."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import certificate as certificates
from fedpca.summaries import model_file, validation
from fedpca.summaries.linalg import with_fixed_signs

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace


@dataclass(frozen=True, eq=False, repr=False)
class Moments:
    """Count, mean and d x d scatter of rows: exact, and d² large, so for few features.

    Attributes:
        count: number of rows, or the sum of their weights.
        mean: shape (d,); zeros when not `centered`.
        scatter: shape (d, d), the sum of (row - mean)(row - mean)^T.
        centered: whether the scatter is about the mean (else about the origin).
        feature_names: one a feature, or None.
        certificate: what a private release promises, or None for moments that are not private. The scatter
            of a private release carries noise: its eigenvalues, and diagonal, may be negative.

    >>> moments = Moments.from_rows([[1.0, 2.0], [3.0, 2.0]])
    >>> moments.count, moments.mean, moments.total
    (2.0, array([2., 2.]), 2.0)
    """

    count: float
    mean: Array
    scatter: Array
    centered: bool = True
    feature_names: tuple[str, ...] | None = None
    certificate: Mapping[str, Any] | None = None

    kind = "moments"  # in model files

    def __post_init__(self) -> None:
        mean = np.array(self.mean, dtype=np.float64)
        scatter = np.array(self.scatter, dtype=np.float64)
        if mean.ndim != 1 or not len(mean) or scatter.shape != 2 * mean.shape:
            raise ValueError(
                f"mean and scatter must have shapes (d,) and (d, d), got {mean.shape} and {scatter.shape}."
            )
        count = validation.count(self.count)
        if not (np.isfinite(mean).all() and np.isfinite(scatter).all()):
            raise ValueError("mean and scatter must be finite.")
        largest = float(np.abs(scatter).max())
        validation.raw_energy(len(mean) * largest, count, mean)
        if not count and largest:
            raise ValueError("moments of no rows must have a scatter of zeros.")
        if np.abs(scatter - scatter.T).max() > 1e-8 * largest:
            raise ValueError("scatter must be symmetric.")
        certificate = certificates.checked(self.certificate)
        if certificate is None and (np.diag(scatter) < -1e-8 * largest).any():
            raise ValueError("scatter must not have negative entries on its diagonal.")
        check_centered(self.centered, mean)
        names = validation.feature_names(self.feature_names, len(mean))
        scatter = (scatter + scatter.T) / 2
        values = {"count": count, "mean": mean, "scatter": scatter}
        freeze(self, values | {"feature_names": names, "certificate": certificate})

    def __setstate__(self, state: dict[str, Any]) -> None:
        freeze(self, state)

    @classmethod
    def from_rows(cls, rows: Any, *, center: bool = True, sample_weight: Any = None) -> Self:
        """The moments of rows, shape (n, d); a weight counts repetitions of its row."""
        names = validation.names_of(rows)
        rows = validation.dense_rows(
            rows, sample_weight, if_sparse="take fedpca.StreamingPCA(tracker='exact').fit(rows).subspace_"
        )
        count, mean, deviations = deviations_from_mean(rows, sample_weight, center)
        return cls(count, mean, deviations.T @ deviations, center, names)

    @property
    def n_features(self) -> int:
        return len(self.mean)

    @property
    def total(self) -> float:
        """The trace of the scatter."""
        return float(np.trace(self.scatter))

    def subspace(self, rank: int | None = None) -> "Subspace":
        """The `rank` leading directions; all that carry variance by default.

        Of a private release, those of the noisy scatter, their variances less what noise adds to them.

        >>> Moments.from_rows([[1.0, 2.0], [3.0, 2.0]]).subspace()
        Subspace(rank=1, n_features=2, count=2, explained=100.0%)
        """
        from fedpca.summaries.subspace import Subspace

        if rank is not None:
            rank = validation.rank(rank, self.n_features)
        components, singular_values = principal_directions(self.scatter, rank)
        if edge := certificates.noise_edge(self.certificate):
            singular_values = np.sqrt(shrink_eigenvalues(singular_values**2, edge))
        # A scatter with noise may have negative eigenvalues: what is kept can exceed the trace.
        total = max(self.total, float(singular_values @ singular_values))
        components = with_fixed_signs(components)
        facts = (self.centered, self.feature_names, self.certificate)
        return Subspace(components, singular_values, self.mean, self.count, total, *facts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (safetensors with JSON metadata)."""
        model_file.write(path, self.kind, *self.file_contents())

    def file_contents(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and facts of a model file."""
        facts = ("count", "centered", "feature_names", "certificate")
        return {"mean": self.mean, "scatter": self.scatter}, {name: getattr(self, name) for name in facts}

    @classmethod
    def from_file_contents(cls, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Self:
        """What `save` wrote, checked like any other value."""
        return cls(
            facts["count"],
            arrays["mean"],
            arrays["scatter"],
            facts["centered"],
            facts["feature_names"],
            facts["certificate"],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Moments):
            return NotImplemented
        return (
            (self.count, self.centered, self.feature_names, self.certificate)
            == (other.count, other.centered, other.feature_names, other.certificate)
            and np.array_equal(self.mean, other.mean)
            and np.array_equal(self.scatter, other.scatter)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        private = certificates.summary_line(self.certificate)
        return f"Moments(count={self.count:g}, n_features={self.n_features}, total={self.total:.6g}{private})"


def freeze(summary: Any, values: Mapping[str, Any]) -> None:
    """Set attributes of a frozen value; arrays become read-only, and stay so through pickling."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(summary, name, value)


def deviations_from_mean(
    rows: Array, sample_weight: Any = None, center: bool = True
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
    """Centre rows, each multiplied by its root, in place; returns their mean. `count` is the sum of roots**2.

    Twice: a sum of many rows rounds, and rows that are all the same must become zero.
    """
    mean = np.zeros(rows.shape[1])
    for _ in range(2):
        step = (rows.sum(axis=0) if roots is None else roots @ rows) / count
        rows -= step if roots is None else roots[:, None] * step
        mean += step
    return mean


def principal_directions(scatter: Array, rank: int | None = None) -> tuple[Array, Array]:
    """Leading eigenvectors (as rows) of a scatter and the singular values of the rows behind it.

    Eigenvalues up to rounding of the largest count as zero.

    >>> directions, singular_values = principal_directions(np.diag([4.0, 0.0, 9.0]))
    >>> singular_values, np.abs(directions)
    (array([3., 2.]), array([[0., 0., 1.],
           [1., 0., 0.]]))
    """
    squares, vectors = np.linalg.eigh(scatter)
    squares = squares[::-1][: len(scatter) if rank is None else rank]
    noise = 8 * np.finfo(np.float64).eps * np.sqrt(len(scatter)) * max(squares[0], 0.0)
    kept = int(np.count_nonzero(squares > noise))
    return vectors.T[::-1][:kept], np.sqrt(squares[:kept])


def shrink_eigenvalues(eigenvalues: Array, edge: float) -> Array:
    """What eigenvalues of a scatter were before symmetric noise with spectrum [-edge, edge] came on top.

    Above the edge, an eigenvalue y stems from (y + sqrt(y² - edge²)) / 2. Below, from something between 0
    and edge / 2: more cannot be said, and y / 2 keeps the order.

    >>> shrink_eigenvalues(np.array([5.0, 4.0, 2.0]), edge=4.0)
    array([4., 2., 1.])
    """
    above = np.sqrt(np.maximum(eigenvalues - edge, 0.0)) * np.sqrt(eigenvalues + edge)
    return (np.maximum(eigenvalues, 0.0) + np.where(eigenvalues > edge, above, 0.0)) / 2


def check_centered(centered: Any, mean: Array) -> None:
    """Whether a summary is centred is a yes or no; without centring there is no mean."""
    if not isinstance(centered, bool | np.bool_):
        raise TypeError(f"centered must be True or False, got {centered!r}.")
    if not centered and mean.any():
        raise ValueError("the mean of an uncentred summary must be zero.")


def pooled_mean(counts: Array, means: Array) -> tuple[float, Array, Array]:
    """Count and mean of all parts together, and the rows sqrt(count_i) (mean_i - mean), shape (parts, d)."""
    count = float(counts.sum())
    mean = counts @ means / count if count else np.zeros(means.shape[1])
    return count, mean, np.sqrt(counts)[:, None] * (means - mean)


def sum_moments(parts: Iterable[tuple[Moments, float]]) -> Moments:
    """The moments of all rows together, each part's rows counted with its weight.

    The scatter of a union is the sum of the scatters and of count (mean - overall mean)(...)^T.
    """
    parts = list(parts)
    first = parts[0][0]
    counts = np.array([weight * part.count for part, weight in parts])
    count, mean, offsets = pooled_mean(counts, np.array([part.mean for part, _ in parts]))
    scatter = offsets.T @ offsets
    for part, weight in parts:
        scatter += weight * part.scatter
    names = next((part.feature_names for part, _ in parts if part.feature_names), None)
    certificate = certificates.combine(
        [part.certificate for part, _ in parts], [weight for _, weight in parts], summed=True
    )
    return Moments(count, mean, scatter, first.centered, names, certificate)
