"""What both kinds of summary share: frozen fields, equality, names, model files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from fedpca._typing import JSON, Array
from fedpca.summaries import model_file
from fedpca.summaries.certificate import Certificate

if TYPE_CHECKING:
    from fedpca.summaries.subspace import Subspace


class BaseSummary(ABC):
    """A frozen dataclass of read-only arrays and plain values, checked once, where it is made."""

    kind: ClassVar[str]  # in model files
    array_names: ClassVar[tuple[str, ...]]  # its fields that are arrays

    mean: Array
    feature_names: tuple[str, ...] | None
    certificate: Certificate | None

    @property
    def n_features(self) -> int:
        return len(self.mean)

    @abstractmethod
    def subspace(self, rank: int | None = None) -> "Subspace":
        """The leading directions, at most `rank` of them."""

    def with_names(self, feature_names: Iterable[str] | None) -> Self:
        """The same summary with these feature names."""
        return replace(self, feature_names=feature_names)  # type: ignore[type-var]

    @property
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it."""
        names = (field.name for field in fields(self) if field.name not in self.array_names)  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        if self.certificate is not None:
            values["certificate"] = self.certificate.to_json()
        return values

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays, by name."""
        return {name: getattr(self, name) for name in self.array_names}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (safetensors with JSON metadata)."""
        model_file.write(path, self.kind, self.arrays, self.metadata)

    @classmethod
    def from_file_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        """The inverse of `arrays` and `metadata`, checked like any other value."""
        values = {
            field.name: (arrays if field.name in cls.array_names else metadata)[field.name]
            for field in fields(cls)  # type: ignore[arg-type]
        }
        if values["certificate"] is not None:
            values["certificate"] = Certificate.from_json(values["certificate"])
        return cls(**values)

    def _freeze(self, values: JSON) -> None:
        """Set fields of a frozen value; arrays become read-only."""
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __setstate__(self, state: JSON) -> None:
        self._freeze(state)  # arrays stay read-only through pickling

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.metadata == other.metadata and all(
            np.array_equal(mine, other.arrays[name]) for name, mine in self.arrays.items()
        )

    __hash__ = None  # type: ignore[assignment]


def check_certificate(certificate: object) -> Certificate | None:
    """A certificate, or None."""
    if certificate is not None and not isinstance(certificate, Certificate):
        raise TypeError(f"certificate must be a Certificate or None, got {type(certificate).__name__}.")
    return certificate
