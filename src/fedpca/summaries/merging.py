"""Merging summaries: k at once, or up a tree; and adding rows to one.

With counts n_i, means m_i and scatters S_i of the parts, and n = sum n_i, m = sum n_i m_i / n, the scatter of
all rows about their common mean is

    S = sum S_i + sum n_i (m_i - m)(m_i - m)^T.

Moments are added as they are, before anything is truncated. Subspaces are merged by one factorization of
the stacked rows [s_i * components_i ; sqrt(n_i) (m_i - m)], whose Gram matrix is S: exact if nothing is
truncated.

That holds for rows that know the same features. Rows that know others are kept apart, as `parts`.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.backend import ops
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.algebra import pooled_mean, rounding_floor, subtract_mean
from fedpca.summaries.certificate_merging import combine, merge_warning
from fedpca.summaries.feature_names import Names, difference
from fedpca.summaries.features import (
    FeatureRule,
    LeftOut,
    check_rule,
    columns_of,
    common_names,
    left_out,
    with_columns,
)
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.parts import MAX_PARTS, feature_labels, pattern
from fedpca.summaries.rank import exchange_rank, part_rank
from fedpca.summaries.scaling import Scaling, different_scales, same_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_MAX_OWNERS = 4  # named in a warning


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

    >>> rows = np.random.default_rng(0).normal(size=(60, 5)) + [3, 0, 0, 0, 1]
    >>> hospitals = [Subspace.from_rows(part) for part in np.array_split(rows, 3)]
    >>> together, pooled = merge(hospitals), Subspace.from_rows(rows)
    >>> bool(np.allclose(together.singular_values, pooled.singular_values))
    True
    """
    summaries = _of_rule(_as_list(summaries), features)
    merged = merge_distinct(summaries, rank, forget)
    _warn_of_certificates(summaries)
    return merged


def merge_distinct(summaries: Sequence[Summary], rank: int | None = None, forget: float = 1.0) -> Summary:
    """`merge` of summaries that are known to be of different rows: it does not ask whether they are."""
    names = check_compatible(summaries)
    forget = validation.forget(forget)
    if rank is not None:
        rank = validation.rank(rank, summaries[0].n_features)
    weights = [forget**2] * (len(summaries) - 1) + [1.0]
    parts = list(zip(summaries, weights, strict=True))
    if any(summary.scale is not None for summary in summaries):
        return _merge_scaled(parts, rank, names)
    return _merge_plain(parts, rank, names)


def _merge_scaled(
    summaries: Sequence[tuple[Summary, float]], rank: int | None, names: tuple[str, ...] | None
) -> Summary:
    """The merge of summaries of rows with the same scale.

    Moments whose scale is a rule are added up as they are; then the rows of all are divided by their scale.
    """
    some = [(summary, weight) for summary, weight in summaries if summary.count] or summaries[:1]
    scale = some[0][0].scale
    plain = [(summary.with_about(scale=None), weight) for summary, weight in some]
    if not isinstance(scale, str) and not all_moments(summary for summary, _ in some):
        return _merge_plain(plain, rank, names).with_about(scale=scale)
    scaling = None
    if any(summary.scaling is not None for summary, _ in some):
        scaling = Scaling.merge(
            summary.scaling_of_rows().weighted(weight)  # type: ignore[union-attr]  # only moments have a rule
            for summary, weight in some
        )
    merged = _merge_plain(plain, None, names)
    merged = merged.with_about(scale=scale, scaling=scaling)
    return merged if rank is None else merged.subspace(rank)


def _merge_plain(
    summaries: Sequence[tuple[Summary, float]], rank: int | None, names: tuple[str, ...] | None
) -> Summary:
    if any(summary.observed is not None for summary, _ in summaries):
        return _merge_parts(summaries, rank, names)
    return _merge_known_alike(summaries, rank, names)


def _merge_parts(
    summaries: Sequence[tuple[Summary, float]], rank: int | None, names: tuple[str, ...] | None
) -> Summary:
    """Merge what knows the same features; if that is not all, what remains are the parts of the result."""
    parts = merge_leaves(summaries, rank)
    if len(parts) == 1:
        merged = parts[0].with_about(names=names)
    elif all_moments(parts) and not any(part.certificate for part in parts):
        merged = Moments.of_parts(parts, None, About(names))  # type: ignore[arg-type]
    else:
        return Subspace.of_parts([part.subspace() for part in parts], rank, About(names))
    return merged if rank is None else merged.subspace(rank)


def merge_leaves(
    summaries: Iterable[tuple[Summary, float]], rank: int | None = None, known_beside: AnyArray | bool = False
) -> list[Summary]:
    """One summary for each set of known features, at most `MAX_PARTS`, of summaries and their weights.

    `rank` is that of the whole; without it nothing is truncated. There is a warning of features that none
    of the result knows any more, but for those that are `known_beside` it.
    """
    summaries = list(summaries)
    leaves = [(leaf, weight) for summary, weight in summaries for leaf in summary.leaves if leaf.count]
    parts = every = _merge_by_pattern(leaves or summaries[:1], rank)
    while len(parts) > MAX_PARTS:
        parts = _merge_by_pattern(_with_one_pattern_fewer(parts), rank)
    if parts is not every:
        names = next((summary.feature_names for summary, _ in summaries if summary.feature_names), None)
        _warn_of_lost_features(known_to_any(every) & ~(known_to_any(parts) | known_beside), names)
    return parts


def known_to_any(summaries: Iterable[Summary]) -> AnyArray:
    """Which features any of the summaries knows, shape (d,), bool."""
    known: AnyArray = np.logical_or.reduce([summary.known for summary in summaries])
    return known


def _warn_of_lost_features(lost: AnyArray, names: tuple[str, ...] | None) -> None:
    if lost.any():
        warnings.warn(
            f"more than {MAX_PARTS} different sets of known features are not kept apart: the result knows "
            f"nothing about {feature_labels(lost, names)}. Leave out what few owners know.",
            stacklevel=2,
        )


def _merge_by_pattern(leaves: Sequence[tuple[Summary, float]], rank: int | None) -> list[Summary]:
    groups: dict[bytes, list[tuple[Summary, float]]] = {}
    for leaf, weight in leaves:
        groups.setdefault(pattern(leaf), []).append((leaf, weight))
    n_features = leaves[0][0].n_features
    width = None if rank is None else part_rank(rank, n_features)
    return [_merge_known_alike(group, width, None) for group in groups.values()]


def _with_one_pattern_fewer(parts: Sequence[Summary]) -> list[tuple[Summary, float]]:
    """The parts, two of them restricted to the features that both know.

    Of all pairs the one that forgets the fewest entries, and if possible no feature altogether.
    """
    known = np.array([part.known for part in parts])

    def loss(pair: tuple[int, int]) -> tuple[bool, float, list[bytes]]:
        both, others = known[[*pair]].all(axis=0), np.delete(known, pair, axis=0).any(axis=0)
        lost = known[[*pair]] & ~both
        entries = sum(parts[i].count * np.count_nonzero(own) for i, own in zip(pair, lost, strict=True))
        return bool((lost & ~others).any()), entries, sorted(pattern(parts[i]) for i in pair)

    pair = min(combinations(range(len(parts)), 2), key=loss)
    both: AnyArray = known[pair[0]] & known[pair[1]]
    return [(restricted(part, both) if i in pair else part, 1.0) for i, part in enumerate(parts)]


def restricted(part: Summary, known: AnyArray) -> Summary:
    """The part without what it knows of other features than these."""
    observed, mean = part.count * known, part.mean * known
    if isinstance(part, Moments):
        return replace(part, mean=mean, scatter=part.scatter * np.outer(known, known), observed=observed)
    rows = part.singular_values[:, None] * part.components * known
    components, singular_values = leading_singular_pairs(rows)
    return Subspace.unchecked(
        components=components.astype(part.components.dtype, copy=False),
        singular_values=singular_values,
        mean=mean,
        count=part.count,
        total=ops.energy(rows) + part.discarded * np.count_nonzero(known) / np.count_nonzero(part.known),
        centered=part.centered,
        observed=observed,
    )


def _merge_known_alike(
    parts: Sequence[tuple[Summary, float]], rank: int | None, names: tuple[str, ...] | None
) -> Summary:
    """The merge of summaries, with weights, whose rows know the same features."""
    if len(parts) == 1 and parts[0][1] == 1.0:
        only = parts[0][0].with_about(names=names)
        return only if rank is None else only.subspace(rank)
    sums, subspaces = _with_moments_summed(parts)
    if len(sums) == 1 and not subspaces:
        return sums[0] if rank is None else sums[0].subspace(rank)
    whole = [(moments.subspace(), 1.0) for moments in sums] + subspaces
    return _merge_subspaces([part for part, _ in whole], [weight for _, weight in whole], rank, names)


def _with_moments_summed(
    parts: Iterable[tuple[Summary, float]],
) -> tuple[list[Moments], list[tuple[Subspace, float]]]:
    """Parts with their weights: the sum of all plain moments, that of all private ones, and the subspaces.

    Plain and private moments are not added: only private scatters may be indefinite.
    """
    moments: dict[bool, list[tuple[Moments, float]]] = {}
    subspaces = []
    for part, weight in parts:
        if isinstance(part, Moments):
            moments.setdefault(part.certificate is not None, []).append((part, weight))
        else:
            subspaces.append((part, weight))
    return [sum_moments(same) for same in moments.values()], subspaces


def all_moments(summaries: Iterable[Summary]) -> bool:
    """Whether all are moments: merged without a rank they stay moments, and lose nothing."""
    return all(isinstance(summary, Moments) for summary in summaries)


def sum_moments(parts: Iterable[tuple[Moments, float]]) -> Moments:
    """The moments of all rows together, each part's rows counted with its weight."""
    parts = list(parts)
    first = parts[0][0]
    counts = np.array([weight * part.count for part, weight in parts])
    count, mean, offsets = pooled_mean(counts, np.array([part.mean for part, _ in parts]))
    scatter = offsets.T @ offsets
    for part, weight in parts:
        scatter += weight * part.scatter
    names = next((part.feature_names for part, _ in parts if part.feature_names), None)
    certificate = combine(
        [part.certificate for part, _ in parts], [weight for _, weight in parts], summed=True
    )
    observed = None if first.observed is None else count * first.known
    about = About(names, certificate=certificate)
    return Moments(count, mean, scatter, first.centered, observed, about=about)


def _merge_subspaces(
    subspaces: Sequence[Subspace], weights: Sequence[float], rank: int | None, names: tuple[str, ...] | None
) -> Subspace:
    """One factorization of the stacked rows [s_i * components_i ; sqrt(n_i) (mean_i - mean)]."""
    first = subspaces[0]
    counts = np.array([weight * part.count for part, weight in zip(subspaces, weights, strict=True)])
    count, mean, offsets = pooled_mean(counts, np.array([part.mean for part in subspaces]))
    stack = [
        (np.sqrt(weight) * part.singular_values)[:, None] * part.components
        for part, weight in zip(subspaces, weights, strict=True)
    ]
    if first.centered:
        stack.append(offsets)
    total = float(np.dot(weights, [part.total for part in subspaces])) + ops.energy(offsets)
    dtype = np.result_type(*(part.components.dtype for part in subspaces))
    floor = rounding_floor(total, count, mean, dtype)
    components, singular_values = leading_singular_pairs(np.concatenate(stack), rank, floor)
    certificate = combine([part.certificate for part in subspaces], weights, summed=False)
    return Subspace.unchecked(
        components=with_fixed_signs(components).astype(dtype, copy=False),
        singular_values=singular_values,
        mean=mean,
        count=count,
        total=total,
        centered=first.centered,
        observed=None if first.observed is None else count * first.known,
        about=About(names, certificate=certificate),
    )


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

    >>> parts = [Subspace.from_rows(np.eye(4)[[i]] * (i + 1), center=False) for i in range(4)]
    >>> merge_tree(parts, rank=2, fanout=2).singular_values
    array([4., 3.])
    """
    summaries = _of_rule(_as_list(summaries), features)
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


def _warn_of_certificates(summaries: Sequence[Summary]) -> None:
    if text := merge_warning([summary.certificate for summary in summaries if summary.count]):
        warnings.warn(text, stacklevel=3)


def _as_list(summaries: Iterable[Summary]) -> list[Summary]:
    if isinstance(summaries, Summary):
        raise TypeError("summaries must be a list of them: merge([a, b]), not merge(a, b).")
    return list(summaries)


# --- summaries of different features ---


def _of_rule(summaries: list[Summary], features: object) -> list[Summary]:
    """The summaries to merge; a warning says what was left out of them."""
    if not check_rule(features):
        return summaries
    owners = [f"summary {i}" for i in range(len(summaries))]
    summaries, lost = intersect(summaries, owners)
    if text := left_out_warning(dict(zip(owners, lost, strict=True))):
        warnings.warn(text, stacklevel=3)
    return summaries


def intersect(
    summaries: Sequence[Summary], owners: Sequence[str]
) -> tuple[list[Summary], list[LeftOut | None]]:
    """The summaries of the features that all have, in the order of the first; what each has lost.

    Args:
        summaries: with feature names.
        owners: what to call each in an error.
    """
    _require_summaries(summaries)
    names = common_names(summaries, owners)
    chosen = []
    for summary, owner in zip(summaries, owners, strict=True):
        try:
            chosen.append(select(summary, names))
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from error
    return chosen, [left_out(before, after) for before, after in zip(summaries, chosen, strict=True)]


def select(summary: Summary, names: Names) -> Summary:
    """The summary of these of its features, in this order; it must have them all.

    >>> moments = Moments(9, [1.0, 2.0], [[4.0, 1.0], [1.0, 3.0]], about=About(("age", "dose")))
    >>> select(moments, ("dose",)).scatter
    array([[3.]])
    """
    if summary.feature_names == names:
        return summary
    assert summary.feature_names is not None
    columns = columns_of(summary.feature_names, names)
    scale = summary.scale[columns] if isinstance(summary.scale, np.ndarray) else summary.scale
    if scale is not None:
        scaling = summary.scaling and summary.scaling.with_columns(columns)
        return select(summary.with_about(scale=None), names).with_about(scale=scale, scaling=scaling)
    if not summary.parts:
        return with_columns(summary, columns, names)
    leaves = [(with_columns(part, columns, None), 1.0) for part in summary.parts]
    rank = min(summary.rank or 1, len(names)) if isinstance(summary, Subspace) else None
    return _merge_parts(leaves, rank, names)


def left_out_warning(lost: Mapping[str, LeftOut | None]) -> str:
    """What was left out of whose features, or ""."""
    texts = [f"{owner}: {what}" for owner, what in lost.items() if what is not None]
    if not texts:
        return ""
    more = f"; and of {len(texts) - _MAX_OWNERS} more" if len(texts) > _MAX_OWNERS else ""
    return f"left out features that not all have, of {'; of '.join(texts[:_MAX_OWNERS])}{more}."


def _require_summaries(summaries: Sequence[Summary]) -> None:
    if not summaries:
        raise ValueError("merge needs at least one summary, got none.")
    for summary in summaries:
        if not isinstance(summary, Summary):
            remedy = "; pass its subspace_" if hasattr(summary, "subspace_") else ""
            raise TypeError(f"only Subspace and Moments merge, got {type(summary).__name__}{remedy}.")


def check_compatible(
    summaries: Sequence[Summary], option: str = "features='intersection'"
) -> tuple[str, ...] | None:
    """Reject summaries that do not merge; return the feature names, if any summary has them.

    `option` is how the caller asks for the features that all have.
    """
    _require_summaries(summaries)
    first = summaries[0]
    names = next((summary.feature_names for summary in summaries if summary.feature_names), None)
    for summary in summaries:
        if names and summary.feature_names and summary.feature_names != names:
            raise ValueError(difference(names, summary.feature_names, option))
        if summary.n_features != first.n_features:
            raise ValueError(
                f"summaries must have the same features, got {first.n_features} and {summary.n_features}; "
                f"select the same columns, or name them and leave out what not all have with {option}."
            )
        if summary.centered != first.centered:
            raise ValueError(
                "centered and uncentered summaries do not merge; build all with the same `center`, or the "
                "same kind of Privacy(center=...)."
            )
    with_rows = [summary for summary in summaries if summary.count]
    check_scales(with_rows)
    check_spheres(with_rows)
    return names


def check_spheres(summaries: Sequence[Summary]) -> None:
    """Reject private releases of rows scaled to length one about different centers.

    Their scatters have no length, and the distance of their centers has: nothing says how they add up.
    """
    spheres = [part for part in summaries if part.certificate and part.certificate.clipping == "sphere"]
    for part in spheres[1:]:
        check_same_center(spheres[0].mean, part.mean)


def check_same_center(ours: Array, theirs: Array) -> None:
    """Reject two centers of rows scaled to length one that differ by more than rounding."""
    distance = float(np.linalg.norm(theirs - ours))
    if distance > 1e-6 * float(np.linalg.norm(ours)):
        raise ValueError(
            f"private releases of rows scaled to length one must have the same center, and these are "
            f"{distance:.3g} apart; let all owners take the private steps together, or give all the same "
            "center, or a bound."
        )


def check_scales(summaries: Sequence[Summary]) -> None:
    """Reject summaries of rows that were not divided by the same scale."""
    for summary in summaries[1:]:
        if not same_scale(summaries[0].scale, summary.scale):
            raise ValueError(different_scales(summaries[0].scale, summary.scale))


def append_rows(subspace: Subspace, rows: Array, roots: Array | None, rank: int) -> Subspace:
    """The subspace of what was summarized and of new rows: SVD_r([U S, rows]), the paper's SSVD, with means.

    Args:
        rows: shape (n, d), dense; each already multiplied by its entry of `roots`.
        roots: square roots of the rows' weights; None for weights of one.
        rank: directions to keep.
    """
    added = float(len(rows)) if roots is None else float(roots @ roots)
    if not added:
        return subspace
    rank_before, dtype = subspace.rank, subspace.components.dtype
    count, total, mean = subspace.count + added, subspace.total, subspace.mean
    # What was kept, the new rows, the jump of the mean.
    stack = np.zeros((rank_before + len(rows) + 1, rows.shape[1]))
    np.multiply(subspace.singular_values[:, None], subspace.components, out=stack[:rank_before])
    stack[rank_before:-1] = rows
    if subspace.centered:
        new_mean = subtract_mean(stack[rank_before:-1], roots, added)
        stack[-1] = np.sqrt(subspace.count * added / count) * (new_mean - mean)
        mean = mean + (new_mean - mean) * (added / count)
    total += ops.energy(stack[rank_before:])
    floor = rounding_floor(total, count, mean, dtype)
    components, singular_values = leading_singular_pairs(stack, rank, floor)
    return Subspace.unchecked(
        components=components.astype(dtype, copy=False),
        singular_values=singular_values,
        mean=mean,
        count=count,
        total=total,
        centered=subspace.centered,
    )
