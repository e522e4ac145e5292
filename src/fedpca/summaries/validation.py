"""Input validation: one function and one error message per rule."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from numbers import Integral
from typing import Any, TypeGuard
from unicodedata import normalize

import numpy as np

from fedpca._typing import AnyArray, Array, ArrayLike, DeviceArray, DType, DTypeLike, RowsLike
from fedpca._util.text import join_names
from fedpca.backend import backend_of, ops, to_host

_MAX_NAME = 1000  # characters
_NEGATIVE = 1e-8
"""Of the trace: what a stranger's scatter may have below zero. Products in float64 leave 2e-16, those in
float32 up to 8e-8, which are to be set to zero first (`benchmarks.constants rounding`)."""
_OF_SQUARES = 64 * float(np.finfo(np.float64).eps)
"""Of the sum of squares about the origin: who subtracts n m m^T from it is off by a few eps of it."""


def child_name(child: object, what: str = "child") -> str:
    """A valid name of a child: a non-empty string, not too long, that UTF-8 can encode."""
    if not isinstance(child, str):
        raise TypeError(f"{what} must be a string, got {child!r:.80}.")
    if not child:
        raise ValueError(f"{what} must not be empty.")
    if len(child) > _MAX_NAME:
        raise ValueError(f"{what} must have at most {_MAX_NAME} characters, got {len(child)}.")
    try:
        child.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be encodable as UTF-8, got {child!r:.80}.") from error
    return child


def feature_names(names: Iterable[object] | None, n_features: int) -> tuple[str, ...] | None:
    """Names as a tuple of strings, one per feature.

    >>> feature_names(["height", "weight"], 2)
    ('height', 'weight')
    """
    if names is None:
        return None
    if isinstance(names, str | Mapping):
        raise TypeError(f"feature_names must be a list of names, got {names!r}.")
    names = tuple(names)
    if len(names) != n_features:
        raise ValueError(f"feature_names must name every feature: {n_features} features, {len(names)} names.")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("feature_names must be strings; rename the columns or pass a plain array.")
    return tuple(str(name) for name in names)


def names_of(rows: RowsLike) -> tuple[str, ...] | None:
    """The column names of a data frame whose columns are all strings; None for anything else."""
    columns = tuple(getattr(rows, "columns", ()))
    return columns if columns and all(isinstance(name, str) for name in columns) else None


def same_names(ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None) -> None:
    """Reject other features, or the same in another order; unnamed ones are trusted."""
    if ours and theirs and ours != theirs:
        first, second = next(
            (pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), (ours, theirs)
        )
        # é can be one letter or two.
        alike = isinstance(first, str) and normalize("NFKC", first) == normalize("NFKC", str(second))
        shown = [ascii(name) if alike else repr(name) for name in (first, second)]
        raise ValueError(
            f"both must have the same feature names in the same order, got {shown[0]:.200} and "
            f"{shown[1]:.200}; select and order the columns alike."
        )


def is_real(value: object) -> TypeGuard[float]:
    """Whether a value is a single real number, and not a boolean."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def integer(value: object, name: str, *, at_least: int) -> int:
    """A whole number with a lower bound."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {name}={value!r}.")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {name}={value}.")
    return int(value)


def rank(value: object, n_features: int, name: str = "rank") -> int:
    """A number of directions between 1 and the number of features."""
    rank = integer(value, name, at_least=1)
    if rank > n_features:
        raise ValueError(f"{name} must be at most the number of features, {n_features}, got {name}={value}.")
    return rank


def forget(value: object) -> float:
    """A forgetting factor in (0, 1]."""
    if not is_real(value):
        raise TypeError(f"forget must be a number in (0, 1], got forget={value!r}.")
    if not 0 < value <= 1:
        raise ValueError(
            f"forget must lie in (0, 1], got forget={value}; 1 forgets nothing, 0.99 fades what is older."
        )
    return float(value)


def real_dtype(dtype: DType) -> None:
    """Reject rows that are not real numbers."""
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: rows must be real numbers, got {dtype}; "
            "pass real and imaginary parts as separate features."
        )
    if dtype.kind not in "fiub":
        raise ValueError(f"rows must be real numbers, got {dtype}; encode or drop the columns that are not.")


def require_table(rows: RowsLike) -> None:
    """Reject what numpy would convert element by element or not at all, and columns that are not numbers."""
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind == "c":
            real_dtype(rows.dtype)  # other errors would quote the rows
        return
    kind = type(rows).__name__
    if isinstance(rows, str | bytes | os.PathLike):
        raise TypeError(
            f"X must be a table of numbers, got {kind}; open files with fedpca.readers.open_rows and pass "
            "their batches."
        )
    if hasattr(rows, "obs") and hasattr(rows, "X"):
        raise TypeError(f"X must be a table of numbers, got {kind}; pass adata.X.")
    if not isinstance(rows, Sequence) and not any(hasattr(rows, name) for name in _TABLE_ATTRIBUTES):
        raise TypeError(
            "X must be a table of numbers: an array, a data frame, a sparse matrix or a list of rows, got "
            f"{kind}; pass its rows as one of these."
        )
    require_numeric_columns(rows)


_TABLE_ATTRIBUTES = ("__array__", "__array_interface__", "__dlpack__", "__dataframe__", "toarray")


def require_numeric_columns(frame: RowsLike) -> None:
    """Reject columns of a data frame that are not numbers, by name; other errors would quote a cell."""
    if hasattr(frame, "column_names") and hasattr(frame, "schema"):  # an Arrow table
        names, kinds = frame.column_names, frame.schema.types
    elif hasattr(frame, "columns") and hasattr(frame, "dtypes"):
        names, kinds = frame.columns, list(getattr(frame.dtypes, "values", frame.dtypes))
    else:
        return
    contents = {
        str(name): _objects(frame.iloc[:, i]) if str(kind) == "object" else _contents(str(kind))
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    bad = [f"{name} contains {content}" for name, content in contents.items() if content]
    if bad:
        them = "it" if len(bad) == 1 else "them"
        raise ValueError(f"columns must be numeric, but {join_names(bad)}: drop or encode {them}.")


def _contents(kind: str) -> str:
    """What a column of this type contains instead of numbers: the types of pandas, polars and Arrow."""
    kind = kind.lower()
    if re.match(r"(u?int|float|halffloat|double|bool|boolean|decimal|null|sparse)(?![a-z])", kind):
        return ""
    if kind.startswith("complex"):
        return "complex numbers"
    if re.search("date|time|period|duration", kind):
        return "dates or times"
    return "text" if re.search("str|utf8|categor|enum|binary|dictionary", kind) else f"values of type {kind}"


def _objects(column: Iterable[object]) -> str:
    """What a column of objects contains instead of numbers: the first value that is none."""
    for value in column:
        if isinstance(value, str):
            return "text"
        if isinstance(value, date | time | timedelta):
            return "dates or times"
        if isinstance(value, Sequence | Mapping | np.ndarray):
            return f"values of type {type(value).__name__}"
    return ""


def objects_as_numbers(rows: RowsLike) -> RowsLike:
    """Rows with Python objects as numbers: None and NA are missing, integers too large for float64 infinite.

    Whether a table has objects can depend on a single cell, and a private fit must not fail for one.

    >>> objects_as_numbers([[1, None], [-(10**400), 2.5]])
    array([[ 1. ,  nan],
           [-inf,  2.5]])
    """
    if isinstance(rows, Sequence):
        try:
            table = np.asarray(rows)
        except ValueError:  # rows of different lengths
            return rows
        return _numbers(table) if table.dtype.kind == "O" else rows
    if isinstance(rows, np.ndarray):
        return _numbers(rows) if rows.dtype.kind == "O" else rows
    if hasattr(rows, "isetitem"):  # a pandas data frame
        objects = [i for i, kind in enumerate(rows.dtypes) if str(kind) == "object"]
        rows = rows.copy(deep=False) if objects else rows
        for i in objects:
            rows.isetitem(i, _numbers(rows.iloc[:, i].to_numpy()))
    return rows


def _numbers(objects: AnyArray) -> Array:
    try:
        return objects.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in objects.flat], dtype=np.float64).reshape(objects.shape)


def _number(value: Any) -> float:
    if value is None or type(value).__name__ == "NAType":  # pandas' NA
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def dense_rows(
    rows: RowsLike, weights: ArrayLike | None = None, *, min_features: int = 1, if_sparse: str = ""
) -> Array:
    """Rows as a finite (n, d) array of float32 (from float16 and float32) or float64 (from the rest).

    Args:
        rows: anything numpy makes a table of; sparse rows are rejected.
        weights: of the rows.
        min_features: the fewest columns.
        if_sparse: what to do with sparse rows instead.
    """
    if hasattr(rows, "toarray"):
        remedy = f"{if_sparse}, or pass rows.toarray()" if if_sparse else "pass rows.toarray()"
        raise TypeError(f"rows must be dense here, got sparse ones: {remedy}.")
    require_table(rows)
    rows = np.asarray(rows)
    if rows.ndim != 2:
        raise ValueError(f"rows must be a table of shape (n_rows, n_features), got shape {rows.shape}.")
    if rows.shape[1] < min_features:
        raise ValueError(f"rows must have at least one feature, got shape {rows.shape}.")
    if rows.dtype.kind == "O":
        try:
            rows = rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"rows must be real numbers ({error}); encode or drop other columns.") from error
    real_dtype(rows.dtype)
    rows = rows.astype(ops.working_dtype(rows.dtype), copy=False)
    if has_nan(rows, rows.dtype, ops.max_weight(sample_weight(weights, len(rows)))):
        raise ValueError(
            "rows contain NaN: Subspace and Moments need complete rows; StreamingPCA fills gaps."
        )
    require_no_underflow(rows, rows.dtype)
    return rows


def device_rows(rows: RowsLike) -> DeviceArray:
    """Rows on a device, shape (n, d), of real numbers, detached from automatic differentiation."""
    if rows.ndim != 2:
        raise ValueError(
            f"rows must be a table of shape (n_rows, n_features), got shape {tuple(rows.shape)}."
        )
    if not rows.shape[0] or not rows.shape[1]:
        raise ValueError(f"X must have at least one row and one feature, got shape {tuple(rows.shape)}.")
    real_dtype(backend_of(rows).numpy_dtype(rows))
    return rows.detach() if hasattr(rows, "detach") else rows


def has_nan(values: AnyArray, dtype: DTypeLike, max_weight: float = 1.0) -> bool:
    """Whether any entry is NaN; rejects infinite entries and those too large to square in `dtype`.

    Args:
        values: entries, dense rows or the stored ones of sparse rows.
        dtype: the precision they will be worked on in.
        max_weight: the largest weight of a row.

    >>> has_nan(np.array([[1.0, np.nan]]), np.float64)
    True
    """
    limit = ops.max_energy(dtype) / max(max_weight, 1.0)  # type: ignore[arg-type]  # every dtype is hashable
    if not values.size or values.dtype.kind == "b":
        return False
    if values.dtype.itemsize >= 4 and values.dtype.kind == "f" and ops.energy(values) < limit:
        return False
    with np.errstate(invalid="ignore"):
        largest = max(float(np.fmax.reduce(values, axis=None)), -float(np.fmin.reduce(values, axis=None)))
    if np.isinf(largest):
        raise ValueError(
            "Input X contains infinity: entries must be finite (NaN marks a missing one); drop or clip them."
        )
    if largest * largest * values.size >= limit:
        weighted = f" with weights up to {max_weight:.3g} (sample_weight)" if max_weight > 1 else ""
        remedy = " or pass float64 from the first batch on." if np.dtype(dtype) == np.float32 else "."
        raise ValueError(
            f"rows contain values up to {largest:.3g}{weighted}, too large to square in {np.dtype(dtype)}: "
            f"rescale them{remedy}"
        )
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def require_no_underflow(values: AnyArray, dtype: DTypeLike) -> None:
    """Reject first rows whose squares underflow in `dtype`; zeros are fine."""
    kind = backend_of(values).numpy_dtype(values)
    if kind.kind != "f" or kind.itemsize < 4:
        return
    first = values[: min(64, values.shape[0]), ...]
    if not all(ops.energy(part) <= ops.min_energy(dtype) for part in (first, values)):
        return
    values = to_host(values)
    if values.any():
        raise ValueError(
            f"rows contain values up to {float(np.abs(values).max()):.3g}, too small to square in "
            f"{np.dtype(dtype)}: rescale them."
        )


def sample_weight(weights: ArrayLike | None, n_rows: int) -> Array | None:
    """Weights of rows: finite, none negative, one per row."""
    if weights is None:
        return None
    try:
        weights = np.asarray(weights)
        if weights.dtype.kind == "c":
            raise TypeError("they are complex")
        weights = weights.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be real numbers, one per row ({error}).") from error
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight must have one entry per row, {n_rows}, got shape {weights.shape}.")
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight must be finite; drop the rows whose weight is not known.")
    if (weights < 0).any():
        raise ValueError(
            f"sample_weight must not be negative, got {weights.min()}; a weight counts its row's repetitions."
        )
    if n_rows and float(weights.max()) * n_rows > ops.max_energy(np.float32):
        raise ValueError(
            f"sample_weight must not be this large, got {weights.max():.3g}; rescale the weights."
        )
    return weights


def count(value: object) -> float:
    """A number of rows, or sum of weights: finite, not negative."""
    if not is_real(value):
        raise ValueError(f"count must be a number, got count={value!r}.")
    if not 0 <= value < ops.max_energy():
        raise ValueError(f"count must be a finite number >= 0, got count={value!r:.80}.")
    return float(value)


def raw_energy(total: object, count: float, mean: Array) -> float:
    """The raw sum of squares of summarized rows, small enough to go on computing with."""
    if not is_real(total) or not abs(total) < ops.max_energy():
        raise ValueError(
            f"total must be a finite number below {ops.max_energy():.1e}, got total={total!r:.80}."
        )
    with np.errstate(over="ignore"):
        raw = float(total) + count * float(mean @ mean)
    if not raw < ops.max_energy():
        raise ValueError(
            f"total + count * |mean|² must stay below {ops.max_energy():.1e} to be worked with, got "
            f"total={total!r} and a mean up to {np.abs(mean).max():.3g}; rescale the features."
        )
    if 0 < count < raw / ops.max_energy():
        raise ValueError(
            f"total / count + |mean|² must stay below {ops.max_energy():.1e} to be worked with, got "
            f"total={total!r} and count={count:g}; no rows in range have so much."
        )
    return raw


def positive_semidefinite(scatter: Array, count: float, mean: Array) -> None:
    """Reject a scatter that no rows can have: one with a negative eigenvalue, beyond rounding.

    The tolerance is a share of the energies, which add up: a sum of accepted scatters is accepted.

    Args:
        scatter: symmetric, shape (d, d).
        count, mean: of the rows.
    """
    largest = float(np.abs(scatter).max())
    if not largest:
        return
    trace = abs(float(np.trace(scatter)))
    tolerance = _NEGATIVE * trace + _OF_SQUARES * (trace + count * float(mean @ mean))
    lifted = scatter / largest
    lifted.flat[:: len(scatter) + 1] += tolerance / largest
    try:
        np.linalg.cholesky(lifted)
    except np.linalg.LinAlgError as error:
        lowest = float(np.linalg.eigvalsh(scatter)[0])
        raise ValueError(
            f"scatter must be positive semidefinite, got an eigenvalue of {lowest:.3g}; only private moments "
            "may have negative ones."
        ) from error
