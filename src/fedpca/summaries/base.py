"""What all kinds of summary share: frozen fields, what they are about, equality, model files."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.frozen import Frozen
from fedpca.summaries.notebook import card
from fedpca.summaries.scaling import Scale, Scaling

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace


class BaseSummary(Frozen):
    """A frozen dataclass of read-only arrays and plain values, checked once, where it is made."""

    array_names: ClassVar[tuple[str, ...]]  # its fields that are arrays

    mean: Array
    count: float
    centered: bool
    observed: Array | None
    about: About
    parts: tuple[Any, ...] = ()  # of a patchwork: the summaries of rows that know the same features

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """One per feature, or None."""
        return self.about.names

    @property
    def scale(self) -> Scale:
        """What the rows were divided by, or a rule for what they are to be; None if nothing."""
        return self.about.scale

    @property
    def scaling(self) -> Scaling | None:
        """What a rule of scale needs to know of the rows, where the moments do not tell it."""
        return self.about.scaling

    @property
    def certificate(self) -> Certificate | None:
        """What a private release promises."""
        return self.about.certificate

    @property
    def n_features(self) -> int:
        return len(self.mean)

    @property
    def known(self) -> AnyArray:
        """Whether any value of each feature was observed, shape (d,)."""
        return np.ones(self.n_features, dtype=bool) if self.observed is None else self.observed > 0

    @property
    def n_known(self) -> int:
        """Features of which any value was observed."""
        return self.n_features if self.observed is None else int(np.count_nonzero(self.known))

    @property
    def leaves(self) -> tuple[Any, ...]:
        """The parts, or the summary itself: in each, a feature is known to all rows or to none.

        A part has no scale of its own: that of the whole holds for it.
        """
        return self.parts or (self,)

    def without_parts(self) -> Self:
        """What a summary shows, as if all rows knew what any of them knows; it no longer merges exactly.

        Its first directions stay the same however it is truncated: to score rows with.
        """
        return self

    @abstractmethod
    def subspace(self, rank: int | None = None) -> "Subspace":
        """The leading directions, at most `rank` of them."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same summary with singular values times `factor`; count and total times its square."""

    def with_about(self, **changes: Any) -> Self:
        """The same numbers with other names, scale or certificate: nothing is divided or multiplied.

        A new scale has no scaling but one given with it.

        >>> from fedpca import Moments
        >>> Moments.from_rows([[1.0, 2.0], [3.0, 2.0]]).with_about(names=["age", "dose"]).feature_names
        ('age', 'dose')
        """
        if "scale" in changes:
            changes = {"scaling": None} | changes
        return self.changed(about=self._checked_about(replace(self.about, **changes)))

    def changed(self, **changes: Any) -> Self:
        """The same summary but for fields that this library has just made: they are not checked again."""
        other = copy(self)
        other._freeze(changes)
        return other

    def _checked_about(self, about: object) -> About:
        if not isinstance(about, About):
            raise TypeError(f"about must be an About, got {type(about).__name__}.")
        return about.checked(self.n_features)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card(self.kind.capitalize(), self)

    @property
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it."""
        apart = {*self.array_names, "observed", "about"}
        names = (field.name for field in fields(self) if field.name not in apart)  # type: ignore[arg-type]
        return self.about.facts | {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays, by name."""
        arrays = self.about.arrays | {name: getattr(self, name) for name in self.array_names}
        return arrays if self.observed is None else arrays | {"observed": self.observed}

    @classmethod
    def _of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        values: JSON = {
            field.name: (arrays if field.name in cls.array_names else metadata)[field.name]
            for field in fields(cls)  # type: ignore[arg-type]
            if field.name not in ("observed", "about")
        }
        about = About.of_contents(arrays, metadata)
        return cls(**values | {"observed": arrays.get("observed"), "about": about})


def check_observed(observed: object, count: float, n_features: int) -> Array | None:
    """Rows that know each feature: all of a summary's rows, or none. None if every feature is known."""
    if observed is None:
        return None
    values = np.array(observed, dtype=np.float64)
    if values.shape != (n_features,):
        raise ValueError(f"observed must have one number per feature, got shape {values.shape}.")
    if not np.isin(values, (0.0, count)).all():
        raise ValueError("observed must be the count, or 0 for a feature that no row knows.")
    return None if (values == count).all() else values
