"""One row at a time, as dictionaries: the protocol of river's transformers."""

from collections import Counter
from collections.abc import Hashable, Mapping
from copy import deepcopy
from numbers import Integral
from typing import Any, Self

import numpy as np
import sklearn.base

from fedpca._util.text import join_names
from fedpca.readers.data_file import Batch


class OneRowMixin:
    """`learn_one`, `transform_one` and `clone`, by `partial_fit`, `transform` and scikit-learn's `clone`."""

    _supervised = False  # what pipelines of river look at
    _private = False  # whether no row may decide on the features

    def learn_one(self, x: Mapping[Hashable, float]) -> None:
        """Learn one row.

        Args:
            x: values by the name of their feature. The first row decides on the features; a later one may
                lack some, which are missing values, and their order does not matter. Of a `PrivatePCA` no row
                decides on them: `partial_fit` of a frame must come first. Then values of other names are
                ignored, and what is no number is missing.

        >>> import fedpca
        >>> pca = fedpca.StreamingPCA(1)
        >>> for height in (1.6, 1.7, 1.9):
        ...     pca.learn_one({"height": height, "weight": 100 * (height - 1)})
        >>> pca.transform_one({"weight": 90.0, "height": 1.9})
        {0: 16.7}
        """
        self.partial_fit(self._one_row(x))  # type: ignore[attr-defined]

    def transform_one(self, x: Mapping[Hashable, float]) -> dict[int, float]:
        """The scores of one row, by number of component, from 0; 0 for components not known yet."""
        asked = getattr(self, "n_components", None)
        known = np.zeros(0)
        if self.__sklearn_is_fitted__():  # type: ignore[attr-defined]
            known = np.asarray(self.transform(self._one_row(x)))[0]  # type: ignore[attr-defined]
        scores = dict(enumerate(known.tolist()))
        more = range(len(scores), int(asked) if isinstance(asked, Integral) else 0)
        return scores | dict.fromkeys(more, 0.0)

    def clone(self, new_params: Mapping[str, object] | None = None, include_attributes: bool = False) -> Self:
        """Another one with these settings, for river's unions and ensembles.

        Args:
            new_params: settings that differ, by name.
            include_attributes: whether it has learned what this one has.
        """
        made: Any = deepcopy(self) if include_attributes else sklearn.base.clone(self)
        made.set_params(**(new_params or {}))
        return made

    def _one_row(self, x: Mapping[Hashable, float]) -> Batch:
        """A batch of one row, with the features in the order of the first."""
        if not isinstance(x, Mapping):
            raise TypeError(f"a row must be a mapping of names to values, got {type(x).__name__}.")
        values: dict[str, object] = {str(name): value for name, value in x.items()}
        names = getattr(self, "feature_names_in_", None)
        if self._private:
            if names is None:
                raise ValueError(
                    "with privacy no row may decide on the features; begin with partial_fit of a frame."
                )
            return Batch(np.array([[_number_or_nan(values.get(name)) for name in names]]), tuple(names))
        if len(values) < len(x):
            ((repeated, _),) = Counter(map(str, x)).most_common(1)
            raise ValueError(f"features must have different names, got {repeated} twice.")
        if names is None:
            if hasattr(self, "n_features_in_"):
                raise ValueError("rows by name need features with names; begin with learn_one, or a frame.")
            names = tuple(values)
        unknown = values.keys() - {*names}
        if unknown:
            raise ValueError(f"unknown feature {join_names(sorted(unknown))}; the first row decides on them.")
        row = [_number(name, values.get(name)) for name in names]
        return Batch(np.array([row]), tuple(names))


def _number(name: str, value: Any) -> float:
    """A value, NaN if it is missing."""
    try:
        return np.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"feature {name} must be a number, got {value!r:.80}; encode it, or leave it out."
        ) from None


def _number_or_nan(value: Any) -> float:
    """A value of a private row, whatever it is; one beyond all numbers is infinite."""
    try:
        return np.nan if value is None else float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf
    except (TypeError, ValueError):
        return np.nan
