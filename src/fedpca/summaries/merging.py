"""Merging summaries: k at once, or up a tree; `agreement` has the conditions, `pooling` the arithmetic."""

import warnings
from collections.abc import Iterable, Sequence

from fedpca.summaries import validation
from fedpca.summaries.agreement import check_compatible, merged_about
from fedpca.summaries.certificate_merging import merge_warning
from fedpca.summaries.features import FeatureRule, of_rule
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import merge_patches
from fedpca.summaries.pooling import pool
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary, all_moments


def merge(
    summaries: Iterable[Summary],
    rank: int | None = None,
    *,
    forget: float = 1.0,
    features: FeatureRule = "same",
) -> Summary:
    """The summary of all rows behind the summaries, as if they had been in one place.

    Exact when nothing is truncated, whatever the order: means, counts and totals are merged too.
    The cost grows with the square of all directions together; for more than a few dozen summaries
    `merge_tree` is faster.

    Args:
        summaries: at least one; left as they are.
        rank: directions to keep; all by default.
        forget: in (0, 1]; scales the singular values of all summaries but the last.
        features: "same" rejects summaries of different features. "intersection" matches features by name,
            in the order of the first summary, and leaves out those that not all have, with a warning.

    Returns:
        A Subspace; Moments when every summary is one and no rank is asked for.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(60, 5)) + [3, 0, 0, 0, 1]
    >>> hospitals = [Subspace.from_rows(part) for part in np.array_split(rows, 3)]
    >>> together, pooled = merge(hospitals), Subspace.from_rows(rows)
    >>> bool(np.allclose(together.singular_values, pooled.singular_values))
    True
    """
    summaries = of_rule(_as_list(summaries), features)
    merged = merge_distinct(summaries, rank, forget)
    _warn_of_certificates(summaries)
    return merged


def merge_distinct(summaries: Sequence[Summary], rank: int | None = None, forget: float = 1.0) -> Summary:
    """`merge` of summaries that are known to be of different rows: it does not ask whether they are."""
    if (forget := validation.forget(forget)) != 1.0:
        summaries = [*(summary.scaled(forget) for summary in summaries[:-1]), *summaries[-1:]]
    about = merged_about(summaries)
    if rank is not None:
        rank = validation.rank(rank, summaries[0].n_features)
    if about.scale is not None:
        summaries = [summary for summary in summaries if summary.count] or summaries[:1]
    width = None if all_moments(summaries) else rank  # they are divided by their scale first, all together
    known_alike = all(summary.observed is None for summary in summaries)
    merged = (pool if known_alike else merge_patches)(summaries, width, about)
    return merged if rank is None else merged.subspace(rank)


def merge_tree(
    summaries: Iterable[Summary],
    rank: int | None = None,
    *,
    fanout: int = 8,
    features: FeatureRule = "same",
) -> Summary:
    """The same as `merge`, `fanout` subspaces at a time, level by level; moments are added up.

    Inner nodes keep more than `rank` directions, so little is lost on the way up. A sum of moments is
    truncated at the root only: of moments alone the result is that of `merge`.

    >>> import numpy as np
    >>> parts = [Subspace.from_rows(np.eye(4)[[i]] * (i + 1), center=False) for i in range(4)]
    >>> merge_tree(parts, rank=2, fanout=2).singular_values
    array([4., 3.])
    """
    summaries = of_rule(_as_list(summaries), features)
    check_compatible(summaries)
    _warn_of_certificates(summaries)
    validation.integer(fanout, "fanout", at_least=2)
    inner_rank = None
    if rank is not None:
        n_features = summaries[0].n_features
        inner_rank = exchange_rank(validation.rank(rank, n_features), n_features)
    moments = [summary for summary in summaries if isinstance(summary, Moments)]
    subspaces = [summary for summary in summaries if isinstance(summary, Subspace)]
    private = [summary for summary in moments if summary.certificate is not None]
    plain = [summary for summary in moments if summary.certificate is None]
    sums = [merge_distinct(same) for same in (plain, private) if same]
    while len(subspaces) > fanout:
        groups = [subspaces[i : i + fanout] for i in range(0, len(subspaces), fanout)]
        subspaces = [merge_distinct(group, inner_rank).subspace() for group in groups]
    return merge_distinct([*sums, *subspaces], rank)


def _as_list(summaries: Iterable[Summary]) -> list[Summary]:
    if isinstance(summaries, Summary):
        raise TypeError("summaries must be a list of them: merge([a, b]), not merge(a, b).")
    return list(summaries)


def _warn_of_certificates(summaries: Sequence[Summary]) -> None:
    if text := merge_warning([summary.certificate for summary in summaries if summary.count]):
        warnings.warn(text, stacklevel=3)
