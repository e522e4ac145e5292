"""What both kinds of summary share: frozen fields, equality, names, model files."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.frozen import Frozen
from fedpca.summaries.notebook import summary_card
from fedpca.summaries.scaling import Scaling

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace

_APART = ("observed", "parts", "scale", "scaling")  # fields that not every summary has


class BaseSummary(Frozen):
    """A frozen dataclass of read-only arrays and plain values, checked once, where it is made."""

    array_names: ClassVar[tuple[str, ...]]  # its fields that are arrays

    mean: Array
    count: float
    centered: bool
    feature_names: tuple[str, ...] | None
    certificate: Certificate | None
    observed: Array | None
    parts: tuple[Any, ...]
    scale: Any
    scaling: Scaling | None

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
    def of_parts(
        cls, parts: Sequence[Any], rank: int | None = None, feature_names: tuple[str, ...] | None = None
    ) -> Self:
        """The summary of parts, no two of which know the same features."""

    @abstractmethod
    def subspace(self, rank: int | None = None) -> "Subspace":
        """The leading directions, at most `rank` of them."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same summary with singular values times `factor`; count and total times its square."""

    def with_names(self, feature_names: Iterable[str] | None) -> Self:
        """The same summary with these feature names."""
        return replace(self, feature_names=feature_names)  # type: ignore[type-var]

    @abstractmethod
    def _checked_scale(self, scale: object, scaling: object) -> JSON:
        """The fields that say what rows were, or are to be, divided by."""

    def with_scale(self, scale: object, scaling: Scaling | None = None) -> Self:
        """The same numbers as those of rows with another `scale`: nothing is divided or multiplied."""
        changed = copy(self)
        changed._freeze(self._checked_scale(scale, scaling))
        return changed

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return summary_card(self)

    @property
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it; of a summary of parts, theirs."""
        rule = {"scale": self.scale} if isinstance(self.scale, str) else {}
        if self.parts:
            parts = [part.metadata for part in self.parts]
            return {"feature_names": self.feature_names, "parts": parts} | rule
        apart = {*self.array_names, *_APART}
        names = (field.name for field in fields(self) if field.name not in apart)  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names} | rule
        if self.certificate is not None:
            values["certificate"] = self.certificate.to_json()
        return values

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
        scale = arrays.get("scale", metadata.get("scale"))
        of_features = _with_prefix(arrays, "scaling.")
        scaling = Scaling.from_file_contents(of_features, {"feature_names": None}) if of_features else None
        if "parts" in metadata:
            whole = cls.of_parts(
                [
                    cls.from_file_contents(_with_prefix(arrays, f"{i}."), part)
                    for i, part in enumerate(_checked_parts(metadata["parts"]))
                ],
                metadata.get("rank"),
                metadata["feature_names"],
            )
            return whole.with_scale(scale, scaling)
        values: JSON = {
            field.name: (arrays if field.name in cls.array_names else metadata)[field.name]
            for field in fields(cls)  # type: ignore[arg-type]
            if field.name not in _APART
        }
        if values["certificate"] is not None:
            values["certificate"] = Certificate.from_json(values["certificate"])
        return cls(**values | {"observed": arrays.get("observed")}).with_scale(scale, scaling)


def _with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _checked_parts(parts: object) -> list[JSON]:
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TypeError("parts must be a list of JSON objects.")
    if any("parts" in part for part in parts):
        raise ValueError("parts must not have parts of their own.")
    return parts


def check_certificate(certificate: object) -> Certificate | None:
    """A certificate, or None."""
    if certificate is not None and not isinstance(certificate, Certificate):
        raise TypeError(f"certificate must be a Certificate or None, got {type(certificate).__name__}.")
    return certificate
