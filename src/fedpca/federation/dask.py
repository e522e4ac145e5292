"""Dask: PCA of one organization's large table, without moving its rows."""

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpca._util.extras import require
from fedpca.estimators.base import warn_if_fewer
from fedpca.estimators.streaming import StreamingPCA
from fedpca.summaries import validation
from fedpca.summaries.merging import all_moments, merge
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.scale_advice import constant_features, dominant_feature
from fedpca.summaries.scaling import Scale, ScaleLike, ScaleRule, Scaling, check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_RETRIES = 3
_INNER_RANK = 128  # directions that inner nodes keep, where there are too many features for all


def fit(
    data: Any, n_components: int, *, center: bool = True, scale: ScaleLike = None, fanout: int = 8
) -> Subspace:
    """The principal components of a dask array or dataframe, in one pass over its rows.

    Every partition is summarized on its worker; the summaries merge up a tree; only the model is returned.
    It runs on the scheduler in use: threads, processes, or the cluster of the current `Client`. The work of a
    lost worker is repeated, and a task that fails is retried a few times; rows that cannot be fitted are not.

    Args:
        data: shape (n_rows, n_features), a dask array (dense or sparse chunks) or dataframe of numbers.
            Rows may be split in any way, and their number may be unknown; NaN marks a missing entry.
        n_components: how many components to keep.
        center: subtract the mean; False gives the paper's uncentered algebra.
        scale: what every feature is divided by: "std", its standard deviation; "binomial", of counts of an
            allele, sqrt(2 p (1 - p)); one positive number per feature; or None. "std" and "binomial" take a
            second pass over more features than 256, or 8 per component.
        fanout: summaries merged at a time.

    Returns:
        The model of all rows, with a dataframe's column names.

    >>> import dask.array as da, numpy as np
    >>> rows = da.random.default_rng(0).normal(size=(1000, 4), chunks=(100, 4)) * np.array([5, 1, 1, 1])
    >>> fit(rows, n_components=1)
    Subspace(rank=1, n_features=4, count=1000, explained=89.7%)
    """
    dask = require("dask", extra="dask", purpose="fedpca.federation.dask")
    n_components = validation.integer(n_components, "n_components", at_least=1)
    validation.integer(fanout, "fanout", at_least=2)
    parts = _partitions(data, n_components)
    checked, text = _checked_scale(data, scale), ""
    if isinstance(checked, str) and _needs_scaling(data, n_components, checked):
        merge_scalings = dask.delayed(_merged_scaling, pure=True)
        scalings = [dask.delayed(_scaling, pure=True)(part) for part in parts]
        scaling = _reduced(dask, scalings, merge_scalings, merge_scalings, fanout)
        checked, text = scaling.scale(checked), constant_features(scaling.constant, scaling.feature_names)
    summarize = dask.delayed(_summary, pure=True)
    summaries = [summarize(part, n_components, center, checked) for part in parts]
    inner, root = (
        dask.delayed(partial(step, n_components=n_components), pure=True) for step in (_inner, _root)
    )
    model, more = _reduced(dask, summaries, inner, root, fanout)
    if text or more:
        warnings.warn(text or more, stacklevel=2)
    warn_if_fewer(n_components, model.rank, stacklevel=3)
    kinds = [data.dtype] if hasattr(data, "dtype") else list(data.dtypes)
    single = all(kind in (np.float16, np.float32) for kind in kinds)
    return model.astype(np.float32) if single else model


def _checked_scale(data: Any, scale: ScaleLike) -> Scale:
    """The scale, checked before any row is read; its length is not if the number of features is unknown."""
    n_features = data.shape[1]
    if n_features != n_features:  # NaN
        n_features = np.size(scale)  # type: ignore[arg-type]  # of anything
    names = tuple(map(str, data.columns)) if hasattr(data, "columns") else None
    return check_scale(scale, n_features, names)


def _needs_scaling(data: Any, n_components: int, scale: ScaleRule) -> bool:
    """Whether the scale of all rows must be known before partitions are summarized; else it follows."""
    n_features = data.shape[1]
    return n_features != n_features or _estimator(n_components, n_features, scale=scale)._needs_scaling(
        n_features
    )


def _reduced(dask: Any, leaves: list[Any], inner: Any, root: Any, fanout: int) -> Any:
    """The result of a tree of tasks, `fanout` at a time."""
    while len(leaves) > fanout:
        leaves = [inner(leaves[i : i + fanout]) for i in range(0, len(leaves), fanout)]
    (result,) = dask.compute(root(leaves), retries=_RETRIES)
    if isinstance(result, _Failure):
        raise result.error
    if result is None:
        raise ValueError("data must have rows, got none with an entry in any partition.")
    return result


def _partitions(data: Any, n_components: int) -> list[Any]:
    """Blocks of complete rows, each computed on some worker."""
    if not hasattr(data, "to_delayed") or getattr(data, "ndim", None) != 2:
        shape = f" of {data.ndim} dimensions" if hasattr(data, "to_delayed") and hasattr(data, "ndim") else ""
        raise TypeError(
            f"data must be a dask array or dataframe of rows and columns, got {type(data).__name__}{shape}; "
            "StreamingPCA().fit(data) takes data in memory."
        )
    validation.require_numeric_columns(getattr(data, "_meta", None))  # without any values
    validation.require_numeric_columns(data._meta)  # before any row is read
    n_features = data.shape[1]
    if n_features == n_features:  # else it is NaN: not known yet
        validation.rank(n_components, n_features, "n_components")
    if hasattr(data, "rechunk"):
        data = data.rechunk({1: -1}) if data.numblocks[1] > 1 else data
        return list(data.to_delayed().ravel())
    return list(data.to_delayed())


class _Failure(NamedTuple):
    """Rows that cannot be fitted: a result, since a task that raises is tried again."""

    error: Exception


class _Model(NamedTuple):
    """The model of all rows, and what to say about the scale of its features, or ""."""

    model: Subspace
    text: str


_Result = Summary | _Failure | None  # None: no rows


def _estimator(n_components: int, n_features: int, **settings: Any) -> StreamingPCA:
    """That of a partition, with as many directions as the inner nodes of `merge_tree` keep."""
    extra = exchange_rank(n_components, n_features) - n_components
    return StreamingPCA(n_components, oversample=extra, **settings)


def _summary(rows: Any, n_components: int, center: bool, scale: Scale) -> _Result:
    """The summary of a partition."""
    n_rows, n_features = rows.shape
    if not n_rows:
        return None
    try:
        pca = _estimator(n_components, n_features, center=center, scale=scale)
        return pca.partial_fit(rows).summary_
    except (ValueError, TypeError) as error:
        return _Failure(error)


def _inner(results: list[_Result], n_components: int) -> _Result:
    return _merged(results, max(_INNER_RANK, n_components))


def _root(results: list[_Result], n_components: int) -> _Model | _Failure | None:
    merged = _merged(results, n_components)
    if merged is None or isinstance(merged, _Failure):
        return merged
    if not merged.count:
        return None
    model = merged.subspace(min(n_components, merged.n_features))
    if isinstance(merged, Moments) and isinstance(merged.scale, str):
        return _Model(model, constant_features(merged.scaling_of_rows().constant, merged.feature_names))
    if merged.scale is not None or not merged.centered:
        return _Model(model, "")
    energies = np.diag(merged.scatter) if isinstance(merged, Moments) else None
    return _Model(model, dominant_feature(model, energies, merged.feature_names))


def _merged(results: list[_Result], rank: int) -> _Result:
    """The summary of all partitions, or the first error; moments are kept whole."""
    if failure := _failure_in(results):
        return failure
    parts = [result for result in results if isinstance(result, Summary)]
    if not parts:
        return None
    return merge(parts, None if all_moments(parts) else min(rank, parts[0].n_features))


_ScalingResult = Scaling | _Failure | None  # None: no rows


def _scaling(rows: Any) -> _ScalingResult:
    """The scaling of a partition."""
    try:
        return Scaling.from_rows(rows) if rows.shape[0] else None
    except (ValueError, TypeError) as error:
        return _Failure(error)


def _merged_scaling(results: list[_ScalingResult]) -> _ScalingResult:
    """The scaling of all partitions, or the first error."""
    parts = [result for result in results if isinstance(result, Scaling)]
    return _failure_in(results) or (Scaling.merge(parts) if parts else None)


def _failure_in(results: Iterable[object]) -> _Failure | None:
    return next((result for result in results if isinstance(result, _Failure)), None)
