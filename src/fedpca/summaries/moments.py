"""Moments: the exact count, mean and scatter of rows; they sum exactly, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedpca._typing import AnyArray, Array, ArrayLike, RowsLike
from fedpca.summaries import validation
from fedpca.summaries.about import NOTHING, About
from fedpca.summaries.algebra import (
    check_centered,
    deviations_from_mean,
    directions_of_features,
    shrink_eigenvalues,
)
from fedpca.summaries.base import BaseSummary, check_observed
from fedpca.summaries.certificate import CORRECTED_SCALE, PRIVATE_SCALE, noise_edge
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale
from fedpca.summaries.subspace import Subspace

_ASYMMETRY = 1e-8
"""Of the largest entry: numbers written with 8 digits. BLAS leaves none (`benchmarks.constants rounding`)."""
_MOST_DIAGONAL_NOISE = 0.1  # of the diagonal of a private scatter, if it is to correct the scale


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
        observed: number of rows that know each feature, shape (d,); None where all rows know all features.
        about: names, scale and certificate. The scatter of a private release contains noise: its
            eigenvalues, and diagonal, may be negative.

    >>> moments = Moments.from_rows([[1.0, 2.0], [3.0, 2.0]])
    >>> moments.count, moments.mean, moments.total
    (2.0, array([2., 2.]), 2.0)
    """

    count: float
    mean: Array
    scatter: Array
    centered: bool = True
    observed: Array | None = None
    about: About = NOTHING

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
        if np.abs(scatter - scatter.T).max() > _ASYMMETRY * largest:
            raise ValueError("scatter must be symmetric.")
        centered = check_centered(self.centered, mean)
        about = self._checked_about(self.about)
        if about.certificate is None:
            validation.positive_semidefinite((scatter + scatter.T) / 2, count, mean)
        observed = check_observed(self.observed, count, len(mean))
        if observed is not None:
            unknown = observed == 0
            if scatter[unknown].any() or mean[unknown].any():
                raise ValueError("scatter and mean must be zero for features that no row knows.")
        self._freeze(
            {
                "count": count,
                "mean": mean,
                "scatter": (scatter + scatter.T) / 2,
                "centered": centered,
                "observed": observed,
                "about": about,
            }
        )

    def _checked_about(self, about: object) -> About:
        about = super()._checked_about(about)
        if isinstance(about.scale, str) and about.certificate is not None:
            raise ValueError("scale of private moments must be one number per feature, or None.")
        if isinstance(about.scale, str) and about.scaling is None and not self.centered:
            raise ValueError("uncentered moments with a rule as scale need the scaling of their rows.")
        return about

    @classmethod
    def from_rows(
        cls,
        rows: RowsLike,
        *,
        center: bool = True,
        sample_weight: ArrayLike | None = None,
        scale: ScaleLike = None,
    ) -> Self:
        """The moments of rows, shape (n, d); a weight counts repetitions of its row.

        `scale` is that of the moments: numbers divide the rows, "std" and "binomial" divide them by the scale
        of all rows that the moments are merged with, when directions are taken.

        >>> Moments.from_rows([[1.0, 200.0], [3.0, 900.0]], scale="std").subspace().scale
        array([  1., 350.])
        """
        names = validation.names_of(rows)
        rows = validation.dense_rows(
            rows, sample_weight, if_sparse="take fedpca.StreamingPCA(tracker='exact').fit(rows).subspace_"
        )
        scale, scaling = check_scale(scale, rows.shape[1], names), None
        count, mean, deviations = deviations_from_mean(rows, sample_weight, center)
        if isinstance(scale, str):
            scaling = Scaling.from_rows(rows, sample_weight=sample_weight)
        elif scale is not None:
            deviations, mean = deviations / scale, mean / scale
        scatter = deviations.T @ deviations
        return cls(count, mean, scatter, center, about=About(names, scale, scaling=scaling))

    @classmethod
    def from_sums(
        cls,
        count: float,
        sums: ArrayLike,
        products: ArrayLike,
        *,
        origin: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """The moments of rows of which only sums are known, as a database returns them.

        Args:
            count: number of rows, or the sum of their weights.
            sums: shape (d,), of the rows minus the origin.
            products: shape (d, d), the sum of (row - origin)(row - origin)^T.
            origin: shape (d,), the closer to the mean the fewer digits are lost; zeros by default.
            names: one per feature, or None.

        >>> Moments.from_sums(2, [4.0, 4.0], [[10.0, 8.0], [8.0, 8.0]]).scatter
        array([[2., 0.],
               [0., 0.]])
        """
        sums, products = np.array(sums, dtype=np.float64), np.array(products, dtype=np.float64)
        if sums.ndim != 1 or products.shape != 2 * sums.shape:
            raise ValueError(
                f"sums and products must have shapes (d,) and (d, d), got {sums.shape} and {products.shape}."
            )
        if not validation.count(count):
            raise ValueError("count must be positive: sums of no rows have no mean.")
        offset = sums / count
        start = np.zeros_like(offset) if origin is None else np.asarray(origin, dtype=np.float64)
        if start.shape != offset.shape:
            raise ValueError(f"origin must have shape {offset.shape}, got {start.shape}.")
        about = About(None if names is None else tuple(names))
        return cls(count, start + offset, products - np.outer(sums, offset), about=about)

    @property
    def total(self) -> float:
        """The trace of the scatter."""
        return float(np.trace(self.scatter))

    def scaled(self, factor: float) -> Self:
        """The moments with the scatter and the count times the square of `factor`."""
        weight = factor**2
        return replace(
            self,
            count=self.count * weight,
            scatter=self.scatter * weight,
            observed=None if self.observed is None else self.observed * weight,
            about=self.about.weighted(weight),
        )

    def scaling_of_rows(self) -> Scaling:
        """The weight, mean and variance of every feature of the rows."""
        if self.scaling is not None:
            return self.scaling
        if not self.centered:
            raise ValueError("uncentered moments do not know the variances of their features.")
        leaves = [
            Scaling(
                leaf.count * leaf.known,
                leaf.mean,
                np.maximum(np.diag(leaf.scatter), 0.0) / leaf.count
                if leaf.count
                else np.zeros(leaf.n_features),
            )
            for leaf in self.leaves
        ]
        return Scaling.merge(leaves)

    def divided(self, divisor: Array) -> Self:
        """The moments of the rows divided by `divisor`, shape (d,), with no scale."""
        scatter = self.scatter / divisor / divisor[:, None]
        about = replace(self.about, scale=None, scaling=None)
        return replace(self, mean=self.mean / divisor, scatter=scatter, about=about)

    def standardized(self) -> Self:
        """The moments of the rows divided by the scale that "std" or "binomial" stands for; else the same.

        Features that do not vary have no scatter then: what products of their values round is left out.
        """
        if not isinstance(self.scale, str):
            return self
        scaling = self.scaling_of_rows().with_names(self.feature_names)
        scale = scaling.scale(self.scale)
        varying = self.without_scatter_of(scaling.constant & self.centered)
        return varying.divided(scale).with_about(scale=scale)

    def _with_equal_diagonal(self) -> Self:
        """Private moments divided once more, by the root of their own diagonal, where noise is small in it.

        Found from a histogram, the scale was rough; the release knows better, at no cost. The diagonal keeps
        its mean, so that the edge of the noise stays about the same.
        """
        assert self.certificate is not None
        assert isinstance(self.scale, np.ndarray)
        diagonal = np.diag(self.scatter)
        varying = diagonal > 0
        certificate = replace(self.certificate, scale=CORRECTED_SCALE)
        changed = self.with_about(certificate=certificate)
        if not varying.any():
            return changed
        level = float(diagonal[varying].mean())
        noise = noise_edge(self.certificate) / np.sqrt(2 * self.n_features)
        if noise > _MOST_DIAGONAL_NOISE * level:
            return changed
        divisor = np.sqrt(np.where(varying, diagonal, level) / level)
        return changed.divided(divisor).with_about(scale=self.scale * divisor)

    def without_scatter_of(self, which: AnyArray) -> Self:
        """The moments as if these features did not vary."""
        if not which.any():
            return self
        return replace(self, scatter=np.where(which | which[:, None], 0.0, self.scatter))

    def subspace(self, rank: int | None = None) -> Subspace:
        """The `rank` leading directions; all that carry variance by default.

        For a private release, at most those above the edge of its noise, with variances less what noise adds
        to them; directions below it cannot be told from noise, and the total is the released trace.

        >>> Moments.from_rows([[1.0, 2.0], [3.0, 2.0]]).subspace()
        Subspace(rank=1, n_features=2, count=2, explained=100.0%)
        """
        if rank is not None:
            rank = validation.rank(rank, self.n_features)
        if isinstance(self.scale, str):
            return self.standardized().subspace(rank)
        private_scale = self.certificate is not None and self.certificate.scale == PRIVATE_SCALE
        if private_scale and self.scale is not None:
            return self._with_equal_diagonal().subspace(rank)
        return self._leading(rank)

    def _leading(self, rank: int | None) -> Subspace:
        """The leading directions of the rows as they are."""
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
            observed=self.observed,
            about=self.about,
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
        scaled = "" if self.scale is None else ", scaled"
        if isinstance(self.scale, str):
            scaled = f", scale={self.scale!r}"
        size = f"count={self.count:g}, n_features={self.n_features}, total={self.total:.6g}"
        return f"Moments({size}{scaled}{private})"
