"""OwnerSum: one owner's noisy sum of a private step, as a message carries it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Self

import numpy as np

from fedpca._typing import JSON, AnyArray
from fedpca.errors import ModelFileError
from fedpca.privacy import StepSum
from fedpca.summaries import model_file, validation

Features = tuple[int, tuple[str, ...] | None]
"""How many, and their names, or None."""


@dataclass(frozen=True, eq=False)
class OwnerSum:
    """The noisy sum of one owner.

    Attributes:
        own: the sum.
        features: of its rows: owners of others do not take steps together.
    """

    own: StepSum
    features: Features
    kind: ClassVar = "sum"

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """Of its model file."""
        return {"total": self.own.total}

    @property
    def metadata(self) -> JSON:
        """Of its model file."""
        n_features, names = self.features
        return facts_of(self.own) | {"n_features": n_features, "names": names}

    @classmethod
    def from_file(cls, name: object, arrays: Mapping[str, AnyArray], metadata: JSON) -> Self:
        """The sum in a model file, every value checked but for those that depend on the step."""
        try:
            n_features = validation.integer(metadata["n_features"], "n_features", at_least=1)
            names = metadata["names"]
            names = None if names is None else validation.feature_names(names, n_features)
            found = cls(step_sum(metadata, arrays["total"]), (n_features, names))
            model_file.require_exact(cls.kind, (arrays, metadata), (found.arrays, found.metadata))
            return found
        except KeyError as error:
            raise ModelFileError(f"{name} is not a valid sum: {error} is missing.") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"{name} is not a valid sum: {error}") from error


def facts_of(pooled: StepSum) -> JSON:
    """What is known of a sum, beside its total."""
    return {
        "step": pooled.step,
        "n_rows": pooled.n_rows,
        "noise": float(pooled.noise),
        "radius": pooled.radius,
    }


def step_sum(facts: JSON, total: AnyArray) -> StepSum:
    """The inverse of `facts_of`, every value checked."""
    step = facts["step"]
    if not isinstance(step, str) or len(step) > 100:
        raise TypeError(f"step must be a short text, got {step!r:.80}.")
    if total.ndim != 1:
        raise ValueError(f"a sum must have one dimension, got shape {total.shape}.")
    n_rows = validation.integer(facts["n_rows"], "n_rows", at_least=1)
    noise, radius = facts["noise"], facts["radius"]
    if not validation.is_real(noise) or not 1 <= noise < inf:
        raise ValueError(f"noise must be a number of at least 1, got {noise!r:.80}.")
    if not validation.is_real(radius) or not 0 <= radius < inf:
        raise ValueError(f"radius must be a length, got {radius!r:.80}.")
    return StepSum(step, np.asarray(total, dtype=np.float64), int(n_rows), float(noise), float(radius))
