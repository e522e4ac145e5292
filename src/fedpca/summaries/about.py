"""About: what a summary says of its rows beside their numbers, so that summaries merge, or do not."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpca._typing import JSON, Array
from fedpca.summaries import validation
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.scaling import Scale, Scaling, check_scale


@dataclass(frozen=True, eq=False)
class About:
    """Names of features, what rows were divided by, and what a private release promises.

    Attributes:
        names: one per feature, or None.
        scale: what the rows were divided by, shape (d,), or None; of moments also "std" or "binomial": then
            they are those of the rows as they are, and directions those of the rows divided by this scale of
            all of them. So moments of owners add up, and the scale is that of all rows together.
        certificate: what a private release promises, or None for a summary that is not private.
        scaling: with "std" or "binomial", the `Scaling` of the observed entries; None where the moments tell
            it: no entry was missing, and the scatter is about the mean.

    >>> from fedpca import About, Moments
    >>> Moments(9, [1.0, 2.0], [[4.0, 1.0], [1.0, 3.0]], about=About(names=("age", "dose"))).feature_names
    ('age', 'dose')
    """

    names: tuple[str, ...] | None = None
    scale: Scale = None
    certificate: Certificate | None = None
    scaling: Scaling | None = None

    def checked(self, n_features: int) -> "About":
        """The same of so many features; raises for what cannot be said of them."""
        names = validation.feature_names(self.names, n_features)
        scale, scaling = check_scale(self.scale, n_features, names), self.scaling
        if self.certificate is not None and not isinstance(self.certificate, Certificate):
            found = type(self.certificate).__name__
            raise TypeError(f"certificate must be a Certificate or None, got {found}.")
        if scaling is not None:
            if not isinstance(scaling, Scaling):
                raise TypeError(f"scaling must be a Scaling or None, got {type(scaling).__name__}.")
            if not isinstance(scale, str):
                raise ValueError("scaling is for moments whose scale is 'std' or 'binomial'.")
            if scaling.n_features != n_features:
                raise ValueError(
                    f"scaling must have the {n_features} features of the moments, got {scaling.n_features}."
                )
            scaling = scaling.with_names(None)
        return About(names, scale, self.certificate, scaling)

    def weighted(self, weight: float) -> "About":
        """That of the same rows, each with its weight times this one."""
        certificate = None if self.certificate is None else self.certificate.scaled(weight)
        scaling = None if self.scaling is None else self.scaling.weighted(weight)
        return About(self.names, self.scale, certificate, scaling)

    @property
    def facts(self) -> JSON:
        """Names, a rule as scale and the certificate, as JSON has them."""
        rule = {"scale": self.scale} if isinstance(self.scale, str) else {}
        certificate = None if self.certificate is None else self.certificate.to_json()
        return {"feature_names": self.names, "certificate": certificate} | rule

    @property
    def arrays(self) -> dict[str, Array]:
        """Scale and scaling, by their names in model files."""
        scale = {"scale": self.scale} if isinstance(self.scale, np.ndarray) else {}
        scaling = {} if self.scaling is None else self.scaling.arrays
        return scale | {f"scaling.{name}": array for name, array in scaling.items()}

    @classmethod
    def of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> "About":
        """The inverse of `facts` and `arrays`, among those of a summary."""
        of_scaling = with_prefix(arrays, "scaling.")
        scaling = Scaling.from_file_contents(of_scaling, {"feature_names": None}) if of_scaling else None
        certificate = metadata["certificate"]
        if certificate is not None:
            certificate = Certificate.from_json(certificate)
        scale = arrays.get("scale", metadata.get("scale"))
        return cls(metadata["feature_names"], scale, certificate, scaling)

    def __setstate__(self, state: JSON) -> None:
        if isinstance(state["scale"], np.ndarray):
            state["scale"].flags.writeable = False  # arrays stay read-only through pickling
        self.__dict__.update(state)


NOTHING = About()
"""Of a summary without names, scale and certificate."""


def with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names begin so, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
