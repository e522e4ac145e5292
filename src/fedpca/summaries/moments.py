"""Moments: the exact count, mean and scatter of rows; they sum exactly, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedpca._typing import Array, ArrayLike, RowsLike
from fedpca.summaries import validation
from fedpca.summaries.algebra import (
    check_centered,
    deviations_from_mean,
    directions_of_features,
    shrink_eigenvalues,
)
from fedpca.summaries.base import BaseSummary, check_certificate
from fedpca.summaries.certificate import Certificate, noise_edge
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.parts import PooledMeans, check_observed, ordered
from fedpca.summaries.rank import part_rank
from fedpca.summaries.subspace import Subspace


@dataclass(frozen=True, eq=False, repr=False)
class Moments(BaseSummary):
    """Count, mean and d x d scatter of rows: d² numbers, so for few features.

    Exact but for rounding. A scatter squares the spectrum: directions below about 1e-7 of the largest are
    lost, features of any scale are not. A `Subspace` keeps both.

    Attributes:
        count: number of rows, or the sum of their weights.
        mean: shape (d,); zeros when not `centered`.
        scatter: shape (d, d), the sum of (row - mean)(row - mean)^T.
        centered: whether the scatter is about the mean (else about the origin).
        feature_names: one per feature, or None.
        certificate: what a private release promises, or None for moments that are not private. The scatter
            of a private release contains noise: its eigenvalues, and diagonal, may be negative.
        observed: number of rows that know each feature, shape (d,); None where all rows know all features.
        parts: the moments of rows that know the same features, if not all do; what merges is these.

    >>> moments = Moments.from_rows([[1.0, 2.0], [3.0, 2.0]])
    >>> moments.count, moments.mean, moments.total
    (2.0, array([2., 2.]), 2.0)
    """

    count: float
    mean: Array
    scatter: Array
    centered: bool = True
    feature_names: tuple[str, ...] | None = None
    certificate: Certificate | None = None
    observed: Array | None = None
    parts: tuple["Moments", ...] = ()

    kind = "moments"
    array_names = ("mean", "scatter")

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
        certificate = check_certificate(self.certificate)
        if certificate is None:
            validation.positive_semidefinite((scatter + scatter.T) / 2, count, mean)
        observed = self.observed if self.parts else check_observed(self.observed, count, len(mean))
        if observed is not None and not self.parts:
            unknown = observed == 0
            if scatter[unknown].any() or mean[unknown].any():
                raise ValueError("scatter and mean must be zero for features that no row knows.")
        self._freeze(
            {
                "count": count,
                "mean": mean,
                "scatter": (scatter + scatter.T) / 2,
                "centered": check_centered(self.centered, mean),
                "feature_names": validation.feature_names(self.feature_names, len(mean)),
                "certificate": certificate,
                "observed": observed,
            }
        )

    @classmethod
    def from_rows(
        cls, rows: RowsLike, *, center: bool = True, sample_weight: ArrayLike | None = None
    ) -> Self:
        """The moments of rows, shape (n, d); a weight counts repetitions of its row."""
        names = validation.names_of(rows)
        rows = validation.dense_rows(
            rows, sample_weight, if_sparse="take fedpca.StreamingPCA(tracker='exact').fit(rows).subspace_"
        )
        count, mean, deviations = deviations_from_mean(rows, sample_weight, center)
        return cls(count, mean, deviations.T @ deviations, center, names)

    @classmethod
    def of_parts(
        cls, parts: Sequence["Moments"], rank: int | None = None, feature_names: tuple[str, ...] | None = None
    ) -> Self:
        """The moments of parts, no two of which know the same features.

        >>> whole = Moments.from_rows([[1.0, 300.0], [3.0, 302.0]])
        >>> narrow = Moments(2, [7.0, 0.0], [[2.0, 0.0], [0.0, 0.0]], observed=[2, 0])
        >>> pooled = Moments.of_parts([whole, narrow])
        >>> pooled.mean, pooled.observed
        (array([  4.5, 301. ]), array([4., 2.]))
        """
        parts = ordered(parts)
        if any(part.certificate for part in parts):
            raise ValueError("private moments know every feature: they are no parts.")
        pooled = PooledMeans.of(parts)
        scatter = sum((part.scatter for part in parts), start=np.zeros_like(parts[0].scatter))
        if parts[0].centered:
            scatter = scatter + pooled.offsets.T @ pooled.offsets
        return cls(
            pooled.count,
            pooled.mean,
            pooled.covariance(scatter),
            parts[0].centered,
            feature_names,
            observed=pooled.observed,
            parts=parts,
        )

    @property
    def total(self) -> float:
        """The trace of the scatter."""
        return float(np.trace(self.scatter))

    def scaled(self, factor: float) -> Self:
        """The moments with the scatter and the count times the square of `factor`."""
        weight = factor**2
        if self.parts:
            return self.of_parts([part.scaled(factor) for part in self.parts], None, self.feature_names)
        return replace(
            self,
            count=self.count * weight,
            scatter=self.scatter * weight,
            certificate=None if self.certificate is None else self.certificate.scaled(weight),
            observed=None if self.observed is None else self.observed * weight,
        )

    def subspace(self, rank: int | None = None) -> Subspace:
        """The `rank` leading directions; all that carry variance by default.

        Of a private release, at most those above the edge of its noise, their variances less what noise adds
        to them; the directions below it are no different from noise, and the total is the released trace.

        >>> Moments.from_rows([[1.0, 2.0], [3.0, 2.0]]).subspace()
        Subspace(rank=1, n_features=2, count=2, explained=100.0%)
        """
        if rank is not None:
            rank = validation.rank(rank, self.n_features)
        if self.parts:
            width = None if rank is None else part_rank(rank, self.n_features)
            return Subspace.of_parts([part.subspace(width) for part in self.parts], rank, self.feature_names)
        evaluated = self.certificate is not None and self.certificate.evaluation is not None
        components, singular_values = self._directions(None if evaluated else rank)
        if edge := noise_edge(self.certificate):
            risen = int(np.count_nonzero(singular_values**2 > edge))
            components = components[:risen]
            singular_values = np.sqrt(shrink_eigenvalues(singular_values[:risen] ** 2, edge))
        subspace = Subspace(
            components=with_fixed_signs(components),
            singular_values=singular_values,
            mean=self.mean,
            count=self.count,
            # A scatter with noise may have negative eigenvalues: what is kept can exceed the trace.
            total=max(self.total, float(singular_values @ singular_values)),
            centered=self.centered,
            feature_names=self.feature_names,
            certificate=self.certificate,
            observed=self.observed,
        )
        found = None if self.certificate is None else self.certificate.evaluation
        if found is None or subspace.rank < len(found.energies):
            return subspace
        return subspace.evaluated(found) if rank is None else subspace.evaluated(found).truncate(rank)

    def _directions(self, rank: int | None) -> tuple[Array, Array]:
        """Leading directions and singular values, of known features only.

        Among the zeros of unknown features, a direction of almost no variance would turn towards them.
        """
        known = np.flatnonzero(self.known)
        if self.observed is None or not len(known):
            return directions_of_features(self.scatter, rank)
        within, singular_values = directions_of_features(
            self.scatter[np.ix_(known, known)], None if rank is None else min(rank, len(known))
        )
        components = np.zeros((len(within), self.n_features))
        components[:, known] = within
        return components, singular_values

    def __repr__(self) -> str:
        private = "" if self.certificate is None else f", {self.certificate.describe()}"
        return f"Moments(count={self.count:g}, n_features={self.n_features}, total={self.total:.6g}{private})"
