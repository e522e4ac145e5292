"""Partitions of one organization's table: each is summarized where it is, and summaries merge up a tree.

What an engine such as Dask or Spark runs in its tasks. Rows that cannot be fitted are a result, since a task
that raises is tried again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array, RowsLike
from fedpca._util.text import join_names
from fedpca.estimators.streaming import StreamingPCA
from fedpca.summaries import validation
from fedpca.summaries.merging import merge
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.scale_advice import constant_features, dominant_feature
from fedpca.summaries.scaling import Scale, ScaleRule, Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary, all_moments

NO_ROWS = "data must have rows, got none with an entry in any partition."
_INNER_RANK = 128  # directions that inner nodes keep, where there are too many features for all


class Failure(NamedTuple):
    """Rows that cannot be fitted, and why."""

    error: Exception


class Model(NamedTuple):
    """The model of all rows, and what to say about the scale of its features, or ""."""

    model: Subspace
    text: str


Batches = Iterable[tuple[RowsLike, Array | None]]
"""Rows of a partition, shape (n, d), with their weights, or None."""

Result = Summary | Failure | None
"""Of a partition or an inner node; None for no rows."""


def needs_scaling(n_features: int | None, n_components: int, scale: Scale) -> bool:
    """Whether the scale of all rows must be known before partitions are summarized; else it follows.

    Args:
        n_features: None if it is not known yet.
    """
    if not isinstance(scale, str):
        return False
    return n_features is None or _estimator(n_components, n_features, scale)._needs_scaling(n_features)


def _estimator(n_components: int, n_features: int, scale: Scale, *, center: bool = True) -> StreamingPCA:
    """That of a partition, with as many directions as the inner nodes of `merge_tree` keep."""
    extra = exchange_rank(n_components, n_features) - n_components
    return StreamingPCA(n_components, oversample=extra, scale=scale, center=center)


def summary(batches: Batches, n_components: int, center: bool, scale: Scale) -> Result:
    """The summary of a partition."""
    pca: StreamingPCA | None = None
    try:
        for rows, weights in batches:
            n_rows, n_features = rows.shape
            if not n_rows or (weights is not None and not weights.any()):
                continue
            if pca is None:
                validation.rank(n_components, n_features, "n_components")
                pca = _estimator(n_components, n_features, scale, center=center)
            pca.partial_fit(rows, sample_weight=weights)
        return None if pca is None else pca.summary_
    except (ValueError, TypeError) as error:
        return Failure(error)


def inner(results: Sequence[Result], n_components: int) -> Result:
    """An inner node of the tree."""
    return _merged(results, max(_INNER_RANK, n_components))


def root(
    results: Sequence[Result], n_components: int, names: tuple[str, ...] | None = None
) -> Model | Failure | None:
    """The root: the model; `names` are those of features that summaries do not know the names of."""
    merged = _merged(results, n_components)
    if merged is None or isinstance(merged, Failure):
        return merged
    if not merged.count:
        return None
    if names is not None:
        merged = merged.with_about(names=names)
    model = merged.subspace(min(n_components, merged.n_features))
    if isinstance(merged, Moments) and isinstance(merged.scale, str):
        return Model(model, constant_features(merged.scaling_of_rows().constant, merged.feature_names))
    if merged.scale is not None or not merged.centered:
        return Model(model, "")
    energies = np.diag(merged.scatter) if isinstance(merged, Moments) else None
    return Model(model, dominant_feature(model, energies, merged.feature_names))


def _merged(results: Sequence[Result], rank: int) -> Result:
    """The summary of all partitions, or the first error; moments are kept whole."""
    parts = [result for result in results if isinstance(result, Summary)]
    if failure := _failure_in(results) or _different_widths(parts):
        return failure
    if not parts:
        return None
    return merge(parts, None if all_moments(parts) else min(rank, parts[0].n_features))


ScalingResult = Scaling | Failure | None
"""Of a partition or a node of the tree; None for no rows."""


def scaling(batches: Batches) -> ScalingResult:
    """The scaling of a partition."""
    total: Scaling | None = None
    try:
        for rows, weights in batches:
            if rows.shape[0]:
                part = Scaling.from_rows(rows, sample_weight=weights)
                total = part if total is None else Scaling.merge([total, part])
        return total
    except (ValueError, TypeError) as error:
        return Failure(error)


def merged_scaling(results: Sequence[ScalingResult]) -> ScalingResult:
    """The scaling of all partitions, or the first error."""
    parts = [result for result in results if isinstance(result, Scaling)]
    return _failure_in(results) or _different_widths(parts) or (Scaling.merge(parts) if parts else None)


def scale_of(scaling: Scaling, rule: ScaleRule) -> tuple[Array, str]:
    """What features are divided by, and what to say about those that do not vary, or ""."""
    return scaling.scale(rule), constant_features(scaling.constant, scaling.feature_names)


def _failure_in(results: Iterable[object]) -> Failure | None:
    return next((result for result in results if isinstance(result, Failure)), None)


def _different_widths(parts: Sequence[Summary | Scaling]) -> Failure | None:
    """What to say of partitions that cannot be those of one table."""
    if len(widths := sorted({part.n_features for part in parts})) < 2:
        return None
    return Failure(ValueError(different_widths(widths)))


def different_widths(widths: Sequence[int]) -> str:
    """The message of rows with different numbers of features."""
    found = join_names([str(width) for width in widths])
    return f"all rows must have the same number of features, got {found}; drop or pad the shorter ones."
