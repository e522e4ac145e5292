"""What both kinds of summary share: frozen fields, equality, names, model files."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca.summaries.about import NOTHING, About
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.frozen import Frozen
from fedpca.summaries.notebook import summary_card
from fedpca.summaries.scaling import Scale, Scaling

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace

_APART = ("observed", "parts", "about")  # fields that files have in another form, or not at all


class BaseSummary(Frozen):
    """A frozen dataclass of read-only arrays and plain values, checked once, where it is made."""

    array_names: ClassVar[tuple[str, ...]]  # its fields that are arrays

    mean: Array
    count: float
    centered: bool
    observed: Array | None
    parts: tuple[Any, ...]
    about: About

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
    def leaves(self) -> tuple[Self, ...]:
        """The parts, or the summary itself: in each, a feature is known to all rows or to none.

        A part has no scale of its own: that of the whole holds for it.
        """
        return self.parts or (self,)

    def without_parts(self) -> Self:
        """What the summary shows, as if all rows knew what any of them knows; it no longer merges exactly.

        Its first directions stay the same however it is truncated: to score rows with.
        """
        if not self.parts:
            return self
        observed = None if self.known.all() else np.where(self.known, self.count, 0.0)
        return replace(self, parts=(), observed=observed)  # type: ignore[type-var]

    @classmethod
    @abstractmethod
    def of_parts(cls, parts: Sequence[Any], rank: int | None = None, about: About = NOTHING) -> Self:
        """The summary of parts, no two of which know the same features."""

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
        return summary_card(self)

    @property
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it; of a summary of parts, theirs."""
        about: JSON = {"feature_names": self.feature_names}
        if isinstance(self.scale, str):
            about["scale"] = self.scale
        if self.parts:
            return about | {"parts": [part.metadata for part in self.parts]}
        about["certificate"] = None if self.certificate is None else self.certificate.to_json()
        apart = {*self.array_names, *_APART}
        names = (field.name for field in fields(self) if field.name not in apart)  # type: ignore[arg-type]
        return about | {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays, by name; those of part i as "i.name"."""
        arrays: dict[str, Array] = {}
        if isinstance(self.scale, np.ndarray):
            arrays["scale"] = self.scale
        if self.scaling is not None:
            arrays |= {f"scaling.{name}": array for name, array in self.scaling.arrays.items()}
        if self.parts:
            return arrays | {
                f"{i}.{name}": array
                for i, part in enumerate(self.parts)
                for name, array in part.arrays.items()
            }
        arrays |= {name: getattr(self, name) for name in self.array_names}
        return arrays if self.observed is None else arrays | {"observed": self.observed}

    @classmethod
    def _of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        of_features = _with_prefix(arrays, "scaling.")
        about = About(
            metadata["feature_names"],
            arrays.get("scale", metadata.get("scale")),
            scaling=Scaling.from_file_contents(of_features, {"feature_names": None}) if of_features else None,
        )
        if "parts" in metadata:
            parts = [
                cls.from_file_contents(_with_prefix(arrays, f"{i}."), part)
                for i, part in enumerate(_checked_parts(metadata["parts"]))
            ]
            return cls.of_parts(parts, metadata.get("rank"), about)
        if metadata["certificate"] is not None:
            about = replace(about, certificate=Certificate.from_json(metadata["certificate"]))
        values: JSON = {
            field.name: (arrays if field.name in cls.array_names else metadata)[field.name]
            for field in fields(cls)  # type: ignore[arg-type]
            if field.name not in _APART
        }
        return cls(**values | {"observed": arrays.get("observed"), "about": about})


def _with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _checked_parts(parts: object) -> list[JSON]:
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TypeError("parts must be a list of JSON objects.")
    if any("parts" in part for part in parts):
        raise ValueError("parts must not have parts of their own.")
    return parts
