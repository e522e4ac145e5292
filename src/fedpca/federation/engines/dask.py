"""Dask: PCA of one organization's large table, without moving its rows."""

import warnings
from functools import partial
from typing import Any

import numpy as np

from fedpca._typing import RowsLike
from fedpca._util.extras import require
from fedpca.estimators.base import warn_if_fewer
from fedpca.federation.engines import partitions
from fedpca.summaries import validation
from fedpca.summaries.feature_names import warn_if_unknown
from fedpca.summaries.scaling import Scale, ScaleLike, check_scale
from fedpca.summaries.subspace import Subspace

_RETRIES = 3


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
    dask = require("dask", extra="dask", purpose="fedpca.federation.engines.dask")
    n_components = validation.integer(n_components, "n_components", at_least=1)
    validation.integer(fanout, "fanout", at_least=2)
    parts = _partitions(data, n_components)
    checked, text = _checked_scale(data, scale), ""
    if isinstance(checked, str) and partitions.needs_scaling(_n_features(data), n_components, checked):
        merge_scalings = dask.delayed(partitions.merged_scaling, pure=True)
        scalings = [dask.delayed(_scaling, pure=True)(part) for part in parts]
        scaling = _reduced(dask, scalings, merge_scalings, merge_scalings, fanout)
        checked, text = partitions.scale_of(scaling, checked)
    summarize = dask.delayed(_summary, pure=True)
    summaries = [summarize(part, n_components, center, checked) for part in parts]
    inner, root = (
        dask.delayed(partial(step, n_components=n_components), pure=True)
        for step in (partitions.inner, partitions.root)
    )
    model, more = _reduced(dask, summaries, inner, root, fanout)
    if text or more:
        warnings.warn(text or more, stacklevel=2)
    warn_if_unknown(model)
    warn_if_fewer(n_components, model.rank, stacklevel=3)
    kinds = [data.dtype] if hasattr(data, "dtype") else list(data.dtypes)
    single = all(kind in (np.float16, np.float32) for kind in kinds)
    return model.astype(np.float32) if single else model


def _n_features(data: Any) -> int | None:
    """The number of columns; None if it is not known yet, which is NaN in dask."""
    n_features = data.shape[1]
    return int(n_features) if n_features == n_features else None


def _checked_scale(data: Any, scale: ScaleLike) -> Scale:
    """The scale, checked before any row is read; its length is not if the number of features is unknown."""
    n_features = _n_features(data)
    names = tuple(map(str, data.columns)) if hasattr(data, "columns") else None
    return check_scale(scale, np.size(scale) if n_features is None else n_features, names)  # type: ignore[arg-type]


def _reduced(dask: Any, leaves: list[Any], inner: Any, root: Any, fanout: int) -> Any:
    """The result of a tree of tasks, `fanout` at a time."""
    while len(leaves) > fanout:
        leaves = [inner(leaves[i : i + fanout]) for i in range(0, len(leaves), fanout)]
    (result,) = dask.compute(root(leaves), retries=_RETRIES)
    if isinstance(result, partitions.Failure):
        raise result.error
    if result is None:
        raise ValueError(partitions.NO_ROWS)
    return result


def _partitions(data: Any, n_components: int) -> list[Any]:
    """Blocks of complete rows, each computed on some worker."""
    if not hasattr(data, "to_delayed") or getattr(data, "ndim", None) != 2:
        shape = f" of {data.ndim} dimensions" if hasattr(data, "to_delayed") and hasattr(data, "ndim") else ""
        raise TypeError(
            f"data must be a dask array or dataframe of rows and columns, got {type(data).__name__}{shape}; "
            "StreamingPCA().fit(data) takes data in memory."
        )
    validation.require_numeric_columns(data._meta)  # before any row is read
    if (n_features := _n_features(data)) is not None:
        validation.rank(n_components, n_features, "n_components")
    if hasattr(data, "rechunk"):
        data = data.rechunk({1: -1}) if data.numblocks[1] > 1 else data
        return list(data.to_delayed().ravel())
    return list(data.to_delayed())


def _summary(rows: RowsLike, n_components: int, center: bool, scale: Scale) -> partitions.Result:
    """The summary of a partition."""
    return partitions.summary([(rows, None)], n_components, center, scale)


def _scaling(rows: RowsLike) -> partitions.ScalingResult:
    """The scaling of a partition."""
    return partitions.scaling([(rows, None)])
