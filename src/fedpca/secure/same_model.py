"""Whether a model file has the model that follows from the totals of a study, but for rounding."""

from math import isclose
from typing import Any

import numpy as np

from fedpca._typing import Array
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_ROUNDING = 1e-6  # relative; machines differ by much less, but for directions of almost the same variance
_SAME_VARIANCE = 1e-9  # of the largest: such directions turn into each other by rounding


def difference(contents: bytes, expected: Subspace, whole: Summary) -> str:
    """In what a model file differs from the model that is expected; "" if in nothing.

    Args:
        contents: of the file.
        expected: the model.
        whole: what it was taken from: it tells which directions rounding can exchange.
    """
    if contents == model_file.encode(expected.kind, expected.arrays, expected.metadata):
        return ""
    try:
        kind, arrays, metadata = model_file.decode(contents, "it")
    except ModelFileError as error:
        return str(error).rstrip(".")
    if kind != expected.kind or {name: array.shape for name, array in arrays.items()} != {
        name: array.shape for name, array in expected.arrays.items()
    }:
        return "it has other arrays"
    if not _same_values(metadata, _plain(expected.metadata)):
        return "its certificate or its counts differ"
    for name, array in expected.arrays.items():
        if name != "components" and not _same_numbers(arrays[name], array):
            return f"its array {name} differs"
    if not _same_directions(arrays["components"], expected, whole):
        return "its array components differs"
    return ""


def _plain(metadata: Any) -> Any:
    """As JSON has it: lists for tuples."""
    if isinstance(metadata, dict):
        return {name: _plain(value) for name, value in metadata.items()}
    return [_plain(value) for value in metadata] if isinstance(metadata, list | tuple) else metadata


def _same_values(mine: Any, other: Any) -> bool:
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(_same_values(mine[name], other[name]) for name in mine)
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_same_values, mine, other))
    if isinstance(mine, float) and isinstance(other, float | int) and not isinstance(other, bool):
        return isclose(mine, other, rel_tol=_ROUNDING, abs_tol=1e-12)
    return type(mine) is type(other) and bool(mine == other)


def _same_numbers(mine: Array, other: Array) -> bool:
    scale = float(np.abs(other).max(initial=0.0))
    return bool((np.abs(mine - other) <= _ROUNDING * scale + 1e-300).all())  # NaN is not the same


def _same_directions(components: Array, expected: Subspace, whole: Summary) -> bool:
    """Whether every direction is that of its variance, or in the span of those of almost the same one."""
    if not _same_numbers(components @ components.T, np.eye(len(components))):
        return False
    every = whole.subspace()
    variances = every.singular_values.astype(np.float64) ** 2
    largest = float(variances.max(initial=0.0))
    for component, value in zip(components, expected.singular_values, strict=True):
        variance = float(value) ** 2
        if variance <= _SAME_VARIANCE * largest:
            continue  # nothing but rounding
        near = every.components[np.abs(variances - variance) <= _SAME_VARIANCE * largest]
        if not 1 - float(np.sum((near @ component) ** 2)) <= _ROUNDING:
            return False
    return True
