"""Dask: PCA of one organization's large table, without moving its rows."""

from typing import Any, NamedTuple

import numpy as np

from fedpca._util.extras import require
from fedpca.estimators.base import warn_if_fewer
from fedpca.estimators.streaming import StreamingPCA
from fedpca.summaries import validation
from fedpca.summaries.merging import all_moments, merge
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_RETRIES = 3
_INNER_RANK = 128  # directions that inner nodes keep, where there are too many features for all


def fit(data: Any, n_components: int, *, center: bool = True, fanout: int = 8) -> Subspace:
    """The principal components of a dask array or dataframe, in one pass over its rows.

    Every partition is summarized on its worker; the summaries merge up a tree; only the model is returned.
    It runs on the scheduler in use: threads, processes, or the cluster of the current `Client`. The work of a
    lost worker is repeated, and a task that fails is retried a few times; rows that cannot be fitted are not.

    Args:
        data: shape (n_rows, n_features), a dask array (dense or sparse chunks) or dataframe of numbers.
            Rows may be split in any way, and their number may be unknown; NaN marks a missing entry.
        n_components: how many components to keep.
        center: subtract the mean; False gives the paper's uncentered algebra.
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
    summarize, inner, root = (dask.delayed(step, pure=True) for step in (_summary, _inner, _root))
    summaries = [summarize(part, n_components, center) for part in _partitions(data, n_components)]
    while len(summaries) > fanout:
        groups = [summaries[i : i + fanout] for i in range(0, len(summaries), fanout)]
        summaries = [inner(group, n_components) for group in groups]
    (model,) = dask.compute(root(summaries, n_components), retries=_RETRIES)
    if isinstance(model, _Failure):
        raise model.error
    if model is None or not model.count:
        raise ValueError("data must have rows, got none with an entry in any partition.")
    warn_if_fewer(n_components, model.rank, stacklevel=3)
    kinds = [data.dtype] if hasattr(data, "dtype") else list(data.dtypes)
    single = all(kind in (np.float16, np.float32) for kind in kinds)
    return model.astype(np.float32) if single else model


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


_Result = Summary | _Failure | None  # None: no rows


def _summary(rows: Any, n_components: int, center: bool) -> _Result:
    """The summary of a partition."""
    n_rows, n_features = rows.shape
    if not n_rows:
        return None
    # As many directions as the inner nodes of `merge_tree` keep.
    extra = exchange_rank(n_components, n_features) - n_components
    try:
        return StreamingPCA(n_components, center=center, oversample=extra).partial_fit(rows).summary_
    except (ValueError, TypeError) as error:
        return _Failure(error)


def _inner(results: list[_Result], n_components: int) -> _Result:
    return _merged(results, max(_INNER_RANK, n_components))


def _root(results: list[_Result], n_components: int) -> _Result:
    merged = _merged(results, n_components, all_of_moments=False)
    return merged.subspace() if isinstance(merged, Summary) else merged


def _merged(results: list[_Result], rank: int, *, all_of_moments: bool = True) -> _Result:
    """The summary of all partitions, or the first error; moments are kept whole if `all_of_moments`."""
    parts: list[Summary] = []
    for result in results:
        if isinstance(result, _Failure):
            return result
        if result is not None:
            parts.append(result)
    if not parts:
        return None
    whole = all_of_moments and all_moments(parts)
    return merge(parts, None if whole else min(rank, parts[0].n_features))
