"""Frozen: read-only arrays with JSON metadata, compared, pickled and written to model files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from fedpca._typing import JSON, Array
from fedpca.summaries import model_file


class Frozen(ABC):
    """What frozen dataclasses of read-only arrays share; each is checked once, where it is made."""

    kind: ClassVar[str]  # in model files

    @property
    @abstractmethod
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """The arrays, by name."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (safetensors with JSON metadata)."""
        model_file.write(path, self.kind, self.arrays, self.metadata)

    @classmethod
    def from_file_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        """The inverse of `arrays` and `metadata`, checked like any other value; there may be nothing else."""
        made = cls._of_contents(arrays, metadata)
        model_file.require_exact(cls.kind, (arrays, metadata), (made.arrays, made.metadata))
        return made

    @classmethod
    @abstractmethod
    def _of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        """The value of what it needs of arrays and metadata."""

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
        mine, theirs = self.arrays, other.arrays
        return (
            self.metadata == other.metadata
            and mine.keys() == theirs.keys()
            and all(np.array_equal(array, theirs[name]) for name, array in mine.items())
        )

    __hash__ = None  # type: ignore[assignment]
