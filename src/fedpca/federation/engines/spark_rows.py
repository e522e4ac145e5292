"""Columns of a Spark DataFrame, and Arrow batches of them as rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from fedpca._typing import AnyArray, Array, RowsLike
from fedpca._util.text import join_names
from fedpca.backend import batch_slices, dense
from fedpca.estimators.base import chunk_rows
from fedpca.federation.engines.partitions import different_widths

_ROWS, _WEIGHTS = "rows", "weights"
_DENSE = 1  # the type of a dense vector, in the struct that Spark keeps vectors in


class Features(NamedTuple):
    """Which columns are the features.

    Attributes:
        positions: of the columns, in the DataFrame.
        names: of the features; None for those of a vector or an array.
        single: whether all are float32.
        expression: builds one column of them: an array, or the vector.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...] | None
    single: bool
    expression: Any

    @property
    def n_features(self) -> int | None:
        """How many there are; None if only the rows know."""
        return None if self.names is None else len(self.names)


def require_frame(df: Any) -> None:
    """Reject whatever is not a DataFrame with an end."""
    if not hasattr(df, "mapInArrow"):
        raise TypeError(
            f"df must be a Spark DataFrame, got {type(df).__name__}; StreamingPCA().fit(data) takes data in "
            "memory."
        )
    if df.isStreaming:
        raise ValueError("df must not be a streaming DataFrame: it has no end; write it out, and read that.")


def features_of(df: Any, columns: object, apart: int | None = None) -> Features:
    """The columns that are asked for, by name; None for all but the one at the position `apart`."""
    fields = df.schema.fields
    if columns is None:
        positions = [position for position in range(len(fields)) if position != apart]
    else:
        wanted = [columns] if isinstance(columns, str) else columns
        if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
            raise TypeError(
                f"columns must be names of columns, or None for all, got columns={columns!r:.80}."
            )
        positions = [position_of(df, name, "columns") for name in wanted]
    if not positions:
        raise ValueError("columns must name at least one column of df, got none.")
    if len(set(positions)) < len(positions):
        raise ValueError(f"columns must name every column once, got columns={columns!r:.200}.")
    kinds = [_kind(fields[position].dataType) for position in positions]
    if len(kinds) == 1 and kinds[0] in ("vector", "float[]", "double[]"):
        return _of_one_column(positions[0], kinds[0])
    if bad := [
        f"{fields[position].name} contains {fields[position].dataType.simpleString()}"
        for position, kind in zip(positions, kinds, strict=True)
        if kind not in ("float", "double")
    ]:
        raise ValueError(
            f"columns must be numeric, or one column of vectors or arrays of numbers, but {join_names(bad)}; "
            "name the others with columns=."
        )
    for name in dict.fromkeys(fields[position].name for position in positions):
        position_of(df, name, "columns")  # the model finds them by these names: each must be one column's
    single = all(kind == "float" for kind in kinds)
    return _of_numbers(positions, tuple(fields[position].name for position in positions), single)


def position_of(df: Any, name: str, argument: str) -> int:
    """The position of a column."""
    if (found := df.columns.count(name)) == 1:
        return int(df.columns.index(name))
    if found:
        raise ValueError(
            f"{argument} must name one column of df, and {found} are called {name!r}; rename them."
        )
    raise ValueError(
        f"{argument} must name columns of df, and there is no {name!r}; it has {join_names(df.columns)}."
    )


def _kind(kind: Any) -> str:
    """What a column contains: numbers (float or double), arrays of them, or vectors; "" for the rest."""
    from pyspark.sql import types

    if isinstance(kind, types.FloatType):
        return "float"
    if isinstance(kind, types.NumericType | types.BooleanType):
        return "double"
    if isinstance(kind, types.ArrayType) and (inner := _kind(kind.elementType)) in ("float", "double"):
        return f"{inner}[]"
    return "vector" if type(kind).__name__ == "VectorUDT" else ""


def _of_one_column(position: int, kind: str) -> Features:
    from pyspark.sql import functions

    column = functions.col(_temporary(position))
    expression = column if kind == "vector" else column.cast(f"array<{kind[:-2]}>")
    return Features((position,), None, kind == "float[]", expression)


def _of_numbers(positions: Sequence[int], names: tuple[str, ...], single: bool) -> Features:
    from pyspark.sql import functions

    kind = "float" if single else "double"
    columns = [functions.col(_temporary(position)).cast(kind) for position in positions]
    return Features(tuple(positions), names, single, functions.array(*columns))


def renamed(df: Any) -> Any:
    """The DataFrame with columns named by their positions, so that no name is ambiguous or needs quotes."""
    return df.toDF(*map(_temporary, range(len(df.columns))))


def _temporary(position: int) -> str:
    return f"c{position}"


def selected(df: Any, features: Features, weights: int | None) -> Any:
    """The features as one column, and the column of weights at a position."""
    from pyspark.sql import functions

    columns = [features.expression.alias(_ROWS)]
    if weights is not None:
        columns.append(functions.col(_temporary(weights)).cast("double").alias(_WEIGHTS))
    return renamed(df).select(*columns)


def with_features(df: Any, features: Features) -> Any:
    """All columns, and behind them the features as one."""
    return renamed(df).select("*", features.expression.alias(_ROWS))


def weights_position(df: Any, weights: object) -> int:
    """The position of the column of weights."""
    if not isinstance(weights, str):
        raise TypeError(f"weights must be the name of a column, or None, got weights={weights!r:.80}.")
    position = position_of(df, weights, "weights")
    if _kind(kind := df.schema.fields[position].dataType) not in ("float", "double"):
        raise ValueError(
            f"weights must name a column of numbers, and {weights} contains {kind.simpleString()}."
        )
    return position


# --- in the tasks ---


def read(batches: Iterable[Any]) -> Iterator[tuple[RowsLike, Array | None]]:
    """Rows and weights of the batches of a partition, all of one width."""
    width = None
    for batch in batches:
        if not batch.num_rows:
            continue
        column = batch.column(_ROWS)
        if column.null_count:
            raise ValueError("every row must have its vector or array, and one is null; drop these rows.")
        rows = rows_of(column)
        if width not in (None, rows.shape[1]):
            raise ValueError(different_widths(sorted((width, rows.shape[1]))))
        width = rows.shape[1]
        yield rows, _weights(batch.column(_WEIGHTS)) if _WEIGHTS in batch.schema.names else None


def read_private(batches: Iterable[Any], width: int) -> Iterator[Array]:
    """Rows of the batches of a partition, in dense parts; one that is null or has another width has no entry.

    So no row decides how others are read, nor whether any are.
    """
    for batch in batches:
        column = batch.column(_ROWS)
        fits = _lengths(column) == width
        for part in batch_slices(len(column), chunk_rows(width)):
            rows = np.full((part.stop - part.start, width), np.nan)
            if (fitting := fits[part]).any():
                rows[fitting] = dense(rows_of(column.take(np.flatnonzero(fitting) + part.start)))
            yield rows


def _lengths(column: Any) -> AnyArray:
    """How many numbers the arrays or vectors of an Arrow column have; -1 for those that are null."""
    import pyarrow.compute as compute

    lengths = column
    if column.type.num_fields == 1:
        lengths = compute.list_value_length(column)
    else:
        kinds, values, sizes = (column.field(name) for name in ("type", "values", "size"))
        lengths = compute.if_else(compute.equal(kinds, _DENSE), compute.list_value_length(values), sizes)
    lengths = compute.if_else(column.is_valid(), lengths, -1)
    found: AnyArray = compute.fill_null(lengths, -1).to_numpy(zero_copy_only=False)
    return found


def rows_of(column: Any) -> RowsLike:
    """The rows of an Arrow column without nulls: arrays, or vectors, of which sparse ones stay sparse."""
    if column.type.num_fields == 1:
        return _equally_long(column)
    is_dense = column.field("type").to_numpy() == _DENSE
    if is_dense.all():
        return _equally_long(column.field("values"))
    return _sparse(column, is_dense)


def _equally_long(lists: Any) -> Array:
    """Lists of numbers, all of one length, as a table; without a copy if none is null."""
    ends = lists.offsets.to_numpy()
    width = _width(np.diff(ends))
    values: Array = lists.flatten().to_numpy(zero_copy_only=False)  # NaN for null
    return values.reshape(len(lists), width)


def _sparse(vectors: Any, is_dense: AnyArray) -> RowsLike:
    values, indices = vectors.field("values"), vectors.field("indices")
    stored = np.diff(values.offsets.to_numpy())
    sizes = vectors.field("size").to_numpy(zero_copy_only=False)
    width = _width(np.where(is_dense, stored, np.nan_to_num(sizes)).astype(np.int64))
    ends = np.concatenate([[0], np.cumsum(stored)])
    places = np.empty(ends[-1], dtype=np.int32)
    of_dense = np.repeat(is_dense, stored)
    places[of_dense] = np.tile(np.arange(width, dtype=np.int32), int(is_dense.sum()))
    places[~of_dense] = indices.flatten().to_numpy(zero_copy_only=False)
    data = values.flatten().to_numpy(zero_copy_only=False)
    return sparse.csr_array((data, places, ends), shape=(len(vectors), width))


def _width(widths: AnyArray) -> int:
    shortest, longest = int(widths.min()), int(widths.max())
    if shortest != longest:
        raise ValueError(different_widths((shortest, longest)))
    if not longest:
        raise ValueError("rows must have at least one feature, and the vectors or arrays are empty.")
    return longest


def lists_of(rows: Array, column: Any) -> Any:
    """An Arrow column of rows, shape (n, k), where another one is not null; null elsewhere."""
    import pyarrow as pa

    is_null = column.is_null().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(~is_null)]).astype(np.int32) * rows.shape[1]
    mask = pa.array(is_null) if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(rows.ravel()), mask=mask)


def _weights(column: Any) -> Array:
    weights: Array = column.to_numpy(zero_copy_only=False)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            "weights must be finite and not negative, and some are null, NaN, infinite or below 0; drop "
            "these rows."
        )
    return weights
