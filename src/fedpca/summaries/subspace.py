"""Subspace: the low-rank summary of rows that travels and merges."""

import os
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from fedpca._typing import AnyArray, Array, ArrayLike, DTypeLike, RowsLike
from fedpca.backend import ops
from fedpca.summaries import validation
from fedpca.summaries.about import NOTHING, About
from fedpca.summaries.algebra import check_centered, deviations_from_mean, rounding_floor
from fedpca.summaries.base import BaseSummary, check_observed
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.linalg import leading_singular_pairs, orthonormality_error, with_fixed_signs
from fedpca.summaries.notebook import card
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale, divided
from fedpca.summaries.shrinkage import Shrinkage, check_shrinkage, shrinkage_factors

_UNKNOWN = 1e-6  # of a loading of a feature that no row knows: 8 eps of float32, and set to zero


@dataclass(frozen=True, eq=False, repr=False)
class Subspace(BaseSummary):
    """The r leading directions of rows, with what is needed to merge them exactly: O(d r) numbers.

    What it keeps never exceeds the truth, so `total - sum(singular_values**2)` bounds what was left out.
    Arrays are read-only copies, float32 or float64 components, checked once, here.

    Attributes:
        components: shape (r, d), orthonormal rows.
        singular_values: shape (r,), descending, of the centered rows.
        mean: shape (d,); zeros when not `centered`.
        count: number of rows, or the sum of their weights.
        total: trace of the whole scatter, truncated directions included.
        centered: whether rows were centered (else the scatter is about the origin).
        observed: number of rows that know each feature, shape (d,); None where all rows know all features.
        about: names, scale and certificate; components, singular values, mean and total are those of the
            divided rows.

    >>> rows = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> subspace = Subspace.from_rows(rows, rank=1)
    >>> subspace
    Subspace(rank=1, n_features=2, count=4, explained=80.0%)
    >>> subspace.project(rows).ravel()
    array([ 2., -2.,  0.,  0.])
    """

    components: Array
    singular_values: Array
    mean: Array
    count: float
    total: float
    centered: bool = True
    observed: Array | None = None
    about: About = NOTHING

    kind = "subspace"
    array_names = ("components", "singular_values", "mean")

    def __post_init__(self) -> None:
        components = np.array(self.components)
        if components.dtype != np.float32:
            components = components.astype(np.float64, copy=False)
        singular_values = np.array(self.singular_values, dtype=np.float64)
        mean = np.array(self.mean, dtype=np.float64)
        _check_shapes(components, singular_values, mean)
        count = validation.count(self.count)
        validation.raw_energy(self.total, count, mean)
        observed = check_observed(self.observed, count, len(mean))
        if observed is not None:
            unknown = observed == 0
            if np.abs(components[:, unknown]).max(initial=0.0) > _UNKNOWN or mean[unknown].any():
                raise ValueError("components and mean must be zero for features that no row knows.")
            components[:, unknown] = 0.0
        self._freeze(
            {
                "components": components,
                "singular_values": singular_values,
                "mean": mean,
                "count": count,
                "total": _checked_total(components, singular_values, count, self.total),
                "centered": check_centered(self.centered, mean),
                "observed": observed,
            }
        )
        self._freeze({"about": self._checked_about(self.about)})

    def _checked_about(self, about: object) -> About:
        about = super()._checked_about(about)
        if isinstance(about.scale, str):
            raise ValueError(f"scale of a Subspace must be one number per feature, got {about.scale!r:.80}.")
        return about

    @property
    def scale(self) -> Array | None:
        """What the rows were divided by, shape (d,), or None."""
        return cast("Array | None", self.about.scale)

    @classmethod
    def unchecked(
        cls,
        *,
        components: Array,
        singular_values: Array,
        mean: Array,
        count: float,
        total: float,
        centered: bool = True,
        observed: Array | None = None,
        about: About = NOTHING,
    ) -> Self:
        """A subspace of arrays that this library has just made: neither copied nor checked.

        `total` is raised to the kept energy, which rounding may have left above it.
        """
        if observed is not None:
            components = np.where(observed > 0, components, 0)  # without what rounding left there
        subspace = object.__new__(cls)
        subspace._freeze(
            {
                "components": components,
                "singular_values": singular_values,
                "mean": mean,
                "count": count,
                "total": max(total, float(singular_values @ singular_values)),
                "centered": centered,
                "observed": observed,
                "about": about,
            }
        )
        return subspace

    def changed(self, **changes: Any) -> Self:
        """The same subspace but for fields that this library has just made: they are not checked again."""
        if (singular_values := changes.get("singular_values")) is not None:
            total = changes.get("total", self.total)
            changes["total"] = max(total, float(singular_values @ singular_values))  # but for rounding
        return super().changed(**changes)

    @classmethod
    def from_rows(
        cls,
        rows: RowsLike,
        rank: int | None = None,
        *,
        center: bool = True,
        sample_weight: ArrayLike | None = None,
        scale: ScaleLike = None,
    ) -> Self:
        """The exact summary of rows, shape (n, d), by one singular value decomposition.

        A weight counts repetitions of its row. No rows give the identity of merging. `scale` divides the rows
        first: "std" by their standard deviations, "binomial" by those of counts of an allele, or one number
        per feature. Summaries of rows divided by different scales do not merge.
        """
        names = validation.names_of(rows)
        rows = validation.dense_rows(
            rows, sample_weight, if_sparse="take fedpca.StreamingPCA(rank).fit(rows).subspace_"
        )
        if rank is not None:
            rank = validation.rank(rank, rows.shape[1])
        scale = check_scale(scale, rows.shape[1], names)
        constant: AnyArray = np.zeros(rows.shape[1], dtype=bool)
        if isinstance(scale, str):
            scaling = Scaling.from_rows(rows, sample_weight=sample_weight).with_names(names)
            scale, constant = scaling.scale(scale), scaling.constant & center
        count, mean, deviations = deviations_from_mean(rows, sample_weight, center)
        deviations[:, constant] = 0.0
        if scale is not None:
            deviations, mean = deviations / scale, mean / scale
        total = ops.energy(deviations)
        # A feature that does not vary rounds nothing: it adds nothing.
        floor = rounding_floor(total, count, np.where(constant, 0.0, mean), rows.dtype)
        components, singular_values = leading_singular_pairs(deviations, rank, floor)
        components = with_fixed_signs(components).astype(rows.dtype, copy=False)
        return cls(components, singular_values, mean, count, total, center, about=About(names, scale))

    @classmethod
    def empty(
        cls,
        n_features: int,
        *,
        centered: bool = True,
        dtype: DTypeLike = np.float64,
        about: About = NOTHING,
    ) -> Self:
        """The summary of no rows: merging with it changes nothing.

        >>> Subspace.empty(3)
        Subspace(rank=0, n_features=3, count=0, explained=0.0%)
        """
        components = np.zeros((0, n_features), dtype=dtype)
        return cls(components, np.zeros(0), np.zeros(n_features), 0.0, 0.0, centered, about=about)

    @property
    def rank(self) -> int:
        return len(self.singular_values)

    @property
    def explained_variance_ratio(self) -> Array:
        """Share of the total variance along each component, shape (r,)."""
        squares: Array = self.singular_values**2
        return squares / self.total if self.total else squares

    @property
    def discarded(self) -> float:
        """Energy of the rows outside the components, which truncation lost."""
        return max(self.total - float(self.singular_values @ self.singular_values), 0.0)

    def truncate(self, rank: int) -> Self:
        """The same summary with at most `rank` directions; `total` remembers the rest.

        >>> Subspace.from_rows(np.diag([3.0, 2.0, 1.0]), center=False).truncate(2).discarded
        1.0
        """
        rank = min(validation.rank(rank, self.n_features), self.rank)
        return self.changed(components=self.components[:rank, :], singular_values=self.singular_values[:rank])

    def subspace(self, rank: int | None = None) -> Self:
        """The summary itself, truncated to `rank` directions."""
        return self if rank is None else self.truncate(rank)

    @property
    def scatter(self) -> Array:
        """The scatter of the kept directions, shape (d, d)."""
        scaled = self.singular_values[:, None] * self.components
        return scaled.T @ scaled

    def scaled(self, factor: float) -> Self:
        """The same directions with singular values times `factor`; count and total times its square."""
        weight = factor**2
        return self.changed(
            observed=None if self.observed is None else self.observed * weight,
            singular_values=self.singular_values * factor,
            count=self.count * weight,
            total=self.total * weight,
            about=self.about.weighted(weight),
        )

    def evaluated(self, found: Evaluation) -> Self:
        """The directions that were evaluated, with the energies found along them, by falling energy.

        Where noise makes some negative, the others are lowered: together they stay as unbiased as they were.
        """
        energies = np.maximum(found.energies, 0.0)
        if energies.any():
            energies *= max(sum(found.energies), 0.0) / energies.sum()
        order = np.argsort(-energies, kind="stable")
        about = self.about
        if about.certificate is not None and about.certificate.evaluation is None:
            about = replace(about, certificate=about.certificate.evaluated(found))
        return self.changed(
            about=about,
            components=self.components[order],
            singular_values=np.sqrt(energies[order]),
            total=max(found.total, float(energies.sum())),
        )

    def translated(self, step: Array) -> Self:
        """The summary of the same rows moved by `step`, shape (d,)."""
        return self.changed(mean=self.mean + step)

    def astype(self, dtype: DTypeLike) -> Self:
        """The same subspace with components of another float type."""
        return self.changed(components=self.components.astype(dtype, copy=False))

    def with_fixed_signs(self) -> Self:
        """The same subspace, the largest entry of each component positive."""
        return self.changed(components=with_fixed_signs(self.components))

    def project(self, rows: RowsLike, *, shrinkage: Shrinkage | None = None) -> Array:
        """Coordinates of rows along the components, shape (n, r).

        With shrinkage="asymptotic" those of new rows are where they would be had they been in the fit; see
        `StreamingPCA.transform`. All r components then count as signal.
        """
        validation.same_names(self.feature_names, validation.names_of(rows))
        center = "" if self.centered else ", center=False"
        instead = f"take fedpca.StreamingPCA({self.rank}{center}).merge(subspace).transform(rows)"
        rows = self._checked(validation.dense_rows(rows, if_sparse=instead), self.n_features, "features")
        if self.scale is not None:
            rows = divided(rows, self.scale)
        projected: Array = (rows - self.mean.astype(rows.dtype)) @ self.components.T
        if check_shrinkage(shrinkage):
            projected /= shrinkage_factors(self, self.rank).astype(projected.dtype)
        return projected

    def reconstruct(self, coordinates: ArrayLike) -> Array:
        """Rows with these coordinates, shape (n, d): the inverse of `project` within the subspace.

        >>> rows = np.array([[1.0, 2.0], [3.0, 6.0], [2.0, 4.0]])
        >>> subspace = Subspace.from_rows(rows, rank=1)
        >>> bool(np.allclose(subspace.reconstruct(subspace.project(rows)), rows))
        True
        """
        coordinates = self._checked(
            validation.dense_rows(coordinates, min_features=0), self.rank, "coordinates"
        )
        rows: Array = coordinates @ self.components + self.mean
        return rows if self.scale is None else rows * self.scale

    @staticmethod
    def _checked(rows: Array, width: int, what: str) -> Array:
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(f"rows must have the summary's {width} {what}, got shape {rows.shape}.")
        return rows

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Subspace":
        """Read a model file; moments come back as the subspace of all their directions."""
        from fedpca.summaries.loading import load_summary

        return load_summary(path).subspace()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card("Subspace", self, self, self.rank)

    def __repr__(self) -> str:
        explained = 100 * float(self.explained_variance_ratio.sum())
        private = "" if self.certificate is None else f", {self.certificate.describe()}"
        scaled = "" if self.scale is None else ", scaled"
        return (
            f"Subspace(rank={self.rank}, n_features={self.n_features}, count={self.count:g}, "
            f"explained={explained:.1f}%{scaled}{private})"
        )


def _check_shapes(components: Array, singular_values: Array, mean: Array) -> None:
    if (
        components.ndim != 2
        or singular_values.shape != components.shape[:1]
        or mean.shape != components.shape[1:]
    ):
        raise ValueError(
            "components, singular_values and mean must have shapes (r, d), (r,) and (d,), got "
            f"{components.shape}, {singular_values.shape} and {mean.shape}."
        )
    if not len(mean) or len(components) > len(mean):
        raise ValueError(f"a subspace needs 1 <= d and r <= d, got components of shape {components.shape}.")
    if not all(np.isfinite(array).all() for array in (components, singular_values, mean)):
        raise ValueError("components, singular_values and mean must be finite.")


def _checked_total(components: Array, singular_values: Array, count: float, total: float) -> float:
    """The total, raised to the kept energy where only rounding separates them."""
    # More than rounding leaves: singular values are then off by half as much, as a share of themselves.
    tolerance = float(np.sqrt(np.finfo(components.dtype).eps))
    if (singular_values < 0).any() or (np.diff(singular_values) > 0).any():
        raise ValueError(f"singular_values must be descending and not negative, got {singular_values}.")
    if (error := orthonormality_error(components)) > tolerance:
        raise ValueError(f"components must be orthonormal within {tolerance:.1g}, off by {error:.2g}.")
    with np.errstate(over="ignore"):
        kept = float(singular_values @ singular_values)
    if not kept <= total * (1 + tolerance):
        raise ValueError(f"total must be at least the kept energy {kept:g}, got total={total!r}.")
    if count == 0 and (len(components) or total):
        raise ValueError("a summary of no rows must have no components and total 0.")
    return max(float(total), kept)
