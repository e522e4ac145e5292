"""Spark: PCA of one organization's large DataFrame; the driver sees neither rows nor a d x d matrix."""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca.estimators.base import warn_if_fewer
from fedpca.estimators.scoring import ModelPCA
from fedpca.federation.engines import partitions, private_parts, spark_rows
from fedpca.federation.engines.private_parts import PartResult, PartSum, PartTask, PrivateParts
from fedpca.federation.engines.spark_tree import reduced
from fedpca.parallel import single_threaded_blas
from fedpca.privacy import Privacy
from fedpca.summaries import model_file, validation
from fedpca.summaries.feature_names import warn_if_unknown
from fedpca.summaries.loading import from_file
from fedpca.summaries.scaling import Scale, ScaleLike, check_scale
from fedpca.summaries.subspace import Subspace


def fit(
    df: Any,
    n_components: int,
    *,
    columns: str | Sequence[str] | None = None,
    weights: str | None = None,
    center: bool = True,
    scale: ScaleLike = None,
    privacy: Privacy | None = None,
    width: int | None = None,
    fanout: int = 8,
) -> Subspace:
    """The principal components of a Spark DataFrame, in one pass over its rows.

    Every partition is summarized where it is; the summaries merge up a tree on the executors, and the driver
    gets the model. The work of a lost executor is repeated. It needs the DataFrame API only.

    Args:
        df: a DataFrame. Null and NaN mark missing entries.
        n_components: how many components to keep.
        columns: the features: names of numeric columns, or of one column of vectors (`pyspark.ml.linalg`,
            dense or sparse) or of arrays of numbers. None for all columns but `weights`.
        weights: name of a column of weights; a weight counts repetitions of its row.
        center: subtract the mean; False gives the paper's uncentered algebra.
        scale: what every feature is divided by: "std", its standard deviation; "binomial", of counts of an
            allele, sqrt(2 p (1 - p)); one positive number per feature; or None. "std" and "binomial" take a
            second pass over vectors, arrays, and more columns than 256, or 8 per component.
        privacy: a `Privacy`, for one differentially private release of the whole table. The exact sums of all
            partitions are added up, and noise is drawn once, on the driver. It takes one pass to count the
            rows, one per private step and one for the release; `center` is that of the `Privacy`.
        width: with `privacy`, how many numbers a vector or array has, which no row may decide; others are
            rows of missing values.
        fanout: summaries merged at a time.

    Returns:
        The model of all rows, with the names of numeric columns.

    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.master("local[2]").getOrCreate()
    >>> df = spark.range(1000).selectExpr("sin(id) * 5 as a", "cos(id) as b", "sin(id) + cos(id) as c")
    >>> fit(df, n_components=2)
    Subspace(rank=2, n_features=3, count=1000, explained=100.0%)
    """
    _require_spark()
    spark_rows.require_frame(df)
    n_components = validation.integer(n_components, "n_components", at_least=1)
    validation.integer(fanout, "fanout", at_least=2)
    position = None if weights is None else spark_rows.weights_position(df, weights)
    features = spark_rows.features_of(df, columns, apart=position)
    if features.n_features is not None:
        validation.rank(n_components, features.n_features, "n_components")
    known = np.size(scale) if features.n_features is None else features.n_features  # type: ignore[arg-type]  # of anything
    checked, text = check_scale(scale, known, features.names), ""
    frame = spark_rows.selected(df, features, position)
    if privacy is not None:
        n_features = _stated_width(features, width)
        return _fit_private(frame, features, n_features, n_components, weights, checked, privacy, fanout)
    if width is not None:
        raise ValueError("width is for fits with privacy; leave it out.")
    if isinstance(checked, str) and partitions.needs_scaling(features.n_features, n_components, checked):
        merge = partitions.merged_scaling
        scaling, _ = reduced(frame, _scaling, merge, merge, fanout)
        checked, text = partitions.scale_of(scaling.with_names(features.names), checked)
    model, more = reduced(
        frame,
        partial(_summary, n_components=n_components, center=bool(center), scale=checked),
        partial(partitions.inner, n_components=n_components),
        partial(partitions.root, n_components=n_components, names=features.names),
        fanout,
    )
    if text or more:
        warnings.warn(text or more, stacklevel=2)
    warn_if_unknown(model)
    warn_if_fewer(n_components, model.rank, stacklevel=3)
    return model.astype(np.float32) if features.single else model


def transform(
    df: Any, model: Subspace, *, columns: str | Sequence[str] | None = None, output: str = "scores"
) -> Any:
    """The DataFrame with the scores of every row along the model's components, as one more column.

    It is an array of numbers: one column however many components there are. SQL reads it as `scores[0]`, and
    `pyspark.ml.functions.array_to_vector` makes a vector of it. Missing entries are estimated as
    `StreamingPCA.transform` does; a row whose vector or array is null has null for its scores.

    Args:
        df: a DataFrame; its other columns stay as they are.
        model: the components.
        columns: the features, as in `fit`; None for the columns that the model names, or else for all.
        output: name of the new column.

    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.master("local[2]").getOrCreate()
    >>> df = spark.createDataFrame([("x", 1.0, 2.0), ("y", 3.0, 4.0), ("z", 5.0, 9.0)], ["id", "a", "b"])
    >>> model = fit(df, n_components=1, columns=["a", "b"])
    >>> [(row.id, round(row.scores[0], 3)) for row in transform(df, model).collect()]
    [('x', -3.592), ('y', -0.878), ('z', 4.469)]
    """
    _require_spark()
    spark_rows.require_frame(df)
    if not isinstance(model, Subspace):
        raise TypeError(
            f"model must be a Subspace, as fit gives it, got {type(model).__name__}; Moments have "
            "subspace(n_components), and estimators subspace_."
        )
    if not model.rank:
        raise ValueError("model must have components, and has none; fit it to rows that vary.")
    if not isinstance(output, str) or output in df.columns:
        raise ValueError(
            f"output must be the name of a new column, got output={output!r:.80}; choose another."
        )
    features = spark_rows.features_of(df, model.feature_names if columns is None else columns)
    validation.same_names(model.feature_names, features.names)
    if features.n_features not in (None, model.n_features):
        raise ValueError(
            f"columns must be the model's {model.n_features} features, got {features.n_features}."
        )
    from pyspark.sql import types

    kept = spark_rows.renamed(df).schema.fields
    scores = types.StructField("scores", types.ArrayType(types.DoubleType()))
    contents = model_file.encode(model.kind, model.arrays, model.metadata)
    scored = spark_rows.with_features(df, features).mapInArrow(
        partial(_scored, contents=contents), types.StructType([*kept, scores])
    )
    return scored.toDF(*df.columns, output)


def _require_spark() -> None:
    for module in ("pyspark", "pyarrow"):
        require(module, extra="spark", purpose="fedpca.federation.engines.spark")


# --- tasks ---


def _summary(
    batches: Iterator[Any], number: int, n_components: int, center: bool, scale: Scale
) -> partitions.Result:
    return partitions.summary(spark_rows.read(batches), n_components, center, scale)


def _scaling(batches: Iterator[Any], number: int) -> partitions.ScalingResult:
    return partitions.scaling(spark_rows.read(batches))


def _scored(batches: Iterator[Any], contents: bytes) -> Iterator[Any]:
    """The batches without the column of features, and with one of scores."""
    import pyarrow as pa

    model = from_file("the model", *model_file.decode(contents, "the model")).subspace()
    pca = ModelPCA(model.with_about(names=None), model.rank)
    for batch in batches:
        *kept, column = batch.columns
        scores = np.zeros((0, model.rank))
        if len(column) > column.null_count:
            with single_threaded_blas():
                scores = np.asarray(pca.transform(spark_rows.rows_of(column.drop_null())), dtype=np.float64)
        yield pa.RecordBatch.from_arrays(
            [*kept, spark_rows.lists_of(scores, column)], names=[*batch.schema.names[:-1], "scores"]
        )


# --- with privacy ---


def _fit_private(
    frame: Any,
    features: spark_rows.Features,
    n_features: int,
    n_components: int,
    weights: str | None,
    scale: Scale,
    privacy: Privacy,
    fanout: int,
) -> Subspace:
    if not isinstance(privacy, Privacy):
        raise TypeError(f"privacy must be a Privacy or None, got privacy={privacy!r}.")
    if weights is not None:
        raise ValueError(
            "weights must be None with privacy: a weight would let a row count beyond its bound."
        )
    validation.rank(n_components, n_features, "n_components")
    counted, _ = reduced(frame, _count, private_parts.added, private_parts.added, fanout)
    parts = PrivateParts(
        privacy, n_features, n_components, counted.n_rows, scale=scale, feature_names=features.names
    )
    while (task := parts.task) is not None:
        total, _ = reduced(
            frame, partial(_part_sum, task=vars(task)), private_parts.added, private_parts.added, fanout
        )
        parts.add(total)
    for text in parts.warnings():
        warnings.warn(text, stacklevel=3)
    return parts.model


def _stated_width(features: spark_rows.Features, width: int | None) -> int:
    """How many features private rows have: as columns or the caller say."""
    if features.n_features is None and width is None:
        raise ValueError(
            "width must say how many numbers each vector or array has, because no private row may decide it; "
            "pass width=."
        )
    if features.n_features is not None and width is not None:
        raise ValueError("width is for one column of vectors or arrays; leave it out.")
    return features.n_features or validation.integer(width, "width", at_least=1)


def _count(batches: Iterator[Any], number: int) -> PartResult:
    """The number of rows of a partition."""
    n_rows = sum(batch.num_rows for batch in batches)
    return PartSum(np.zeros(0), n_rows) if n_rows else None


def _part_sum(batches: Iterator[Any], number: int, task: JSON) -> PartResult:
    """The exact sum over the rows of a partition."""
    asked = PartTask(**task)
    return asked.part_sum(spark_rows.read_private(batches, asked.n_features), number)
