"""Merging summaries: k at once, up a tree, and the paper's three pairwise algorithms."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import certificate as certificates
from fedpca.summaries import validation
from fedpca.summaries.linalg import leading_singular_pairs, orthonormal, oversampled_rank, with_fixed_signs
from fedpca.summaries.moments import Moments, pooled_mean, subtract_mean, sum_moments
from fedpca.summaries.subspace import Subspace, rounding_floor

Summary = Subspace | Moments


def merge(summaries: Iterable[Summary], rank: int | None = None, *, forget: float = 1.0) -> Summary:
    """The summary of all rows behind the summaries, as if they had been in one place.

    Exact when nothing is truncated, whatever the order: means, counts and totals are merged too.
    The cost grows with the square of all directions together; for more than a few dozen summaries
    `merge_tree` is faster.

    Args:
        summaries: at least one; of the same features; left as they are.
        rank: directions to keep; all by default.
        forget: in (0, 1]; scales the singular values of all summaries but the last.

    Returns:
        A Subspace; Moments when every summary is one and no rank is asked for.

    >>> rows = np.random.default_rng(0).normal(size=(60, 5)) + [3, 0, 0, 0, 1]
    >>> hospitals = [Subspace.from_rows(part) for part in np.array_split(rows, 3)]
    >>> together, pooled = merge(hospitals), Subspace.from_rows(rows)
    >>> bool(np.allclose(together.singular_values, pooled.singular_values))
    True
    """
    summaries = _listed(summaries)
    names = same_space(summaries)
    forget = validation.forget(forget)
    if rank is not None:
        rank = validation.rank(rank, summaries[0].n_features)
    weights = [forget**2] * (len(summaries) - 1) + [1.0]
    if _sum_up(summaries):
        moments = sum_moments(zip(summaries, weights, strict=True))  # type: ignore[arg-type]
        return moments if rank is None else moments.subspace(rank)
    subspaces = [summary.subspace() if isinstance(summary, Moments) else summary for summary in summaries]
    return _merge_subspaces(subspaces, weights, rank, names)


def _sum_up(summaries: Sequence[Summary]) -> bool:
    """Whether all are moments, and all private or none: noise may be negative where rows cannot be."""
    private = {summary.certificate is not None for summary in summaries}
    return all(isinstance(summary, Moments) for summary in summaries) and len(private) == 1


def _merge_subspaces(
    subspaces: Sequence[Subspace], weights: Sequence[float], rank: int | None, names: tuple[str, ...] | None
) -> Subspace:
    """One factorisation of the stacked rows [s_i * components_i ; sqrt(n_i) (mean_i - mean)]."""
    first = subspaces[0]
    counts = np.array([weight * part.count for part, weight in zip(subspaces, weights, strict=True)])
    count, mean, offsets = pooled_mean(counts, np.array([part.mean for part in subspaces]))
    stack = [
        (np.sqrt(weight) * part.singular_values)[:, None] * part.components
        for part, weight in zip(subspaces, weights, strict=True)
    ]
    if first.centered:
        stack.append(offsets)
    total = float(np.dot(weights, [part.total for part in subspaces])) + validation.energy(offsets)
    dtype = np.result_type(*(part.components.dtype for part in subspaces))
    floor = rounding_floor(total, count, mean, dtype)
    components, singular_values = leading_singular_pairs(np.concatenate(stack), rank, floor)
    total = max(total, float(singular_values @ singular_values))
    components = with_fixed_signs(components).astype(dtype, copy=False)
    certificate = certificates.combine([part.certificate for part in subspaces], weights, summed=False)
    facts = (first.centered, names, certificate)
    return Subspace.unchecked(components, singular_values, mean, count, total, *facts)


def merge_tree(summaries: Iterable[Summary], rank: int | None = None, *, fanout: int = 8) -> Summary:
    """The same as `merge`, `fanout` summaries at a time, level by level.

    Inner nodes keep more than `rank` directions, so little is lost on the way up.

    >>> parts = [Subspace.from_rows(np.eye(4)[[i]] * (i + 1), center=False) for i in range(4)]
    >>> merge_tree(parts, rank=2, fanout=2).singular_values
    array([4., 3.])
    """
    summaries = _listed(summaries)
    same_space(summaries)
    validation.integer(fanout, "fanout", at_least=2)
    inner_rank = None
    if rank is not None:
        n_features = summaries[0].n_features
        # Twice what clients exchange: inner nodes then lose next to nothing, even of very unlike clients.
        inner_rank = min(2 * oversampled_rank(validation.rank(rank, n_features)), n_features)
    while len(summaries) > fanout:
        groups = [summaries[i : i + fanout] for i in range(0, len(summaries), fanout)]
        summaries = [merge(group, inner_rank) for group in groups]
    return merge(summaries, rank)


def _listed(summaries: Iterable[Summary]) -> list[Summary]:
    if isinstance(summaries, Subspace | Moments):
        raise TypeError("summaries must be a list of them: merge([a, b]), not merge(a, b).")
    return list(summaries)


def same_space(summaries: Sequence[Summary]) -> tuple[str, ...] | None:
    """Refuse to merge what does not fit together; return the feature names, if any summary has them."""
    if not summaries:
        raise ValueError("merge needs at least one summary, got none.")
    for summary in summaries:
        if not isinstance(summary, Subspace | Moments):
            remedy = "; pass its subspace_" if hasattr(summary, "subspace_") else ""
            raise TypeError(f"only Subspace and Moments merge, got {type(summary).__name__}{remedy}.")
    first = summaries[0]
    names = next((summary.feature_names for summary in summaries if summary.feature_names), None)
    for summary in summaries:
        if summary.n_features != first.n_features:
            raise ValueError(
                f"summaries must have the same features, got {first.n_features} and {summary.n_features}."
            )
        if summary.centered != first.centered:
            raise ValueError(
                "centred and uncentred summaries do not merge; build all with the same `center`, or the same "
                "kind of Privacy(center=...)."
            )
        validation.same_names(names, summary.feature_names)
    return names


def append_rows(subspace: Subspace, rows: Array, roots: Array | None, rank: int) -> Subspace:
    """The subspace of what was summarised and of new rows: SVD_r([U S, rows]), the paper's SSVD, with means.

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
    total += validation.energy(stack[rank_before:])
    floor = rounding_floor(total, count, mean, dtype)
    components, singular_values = leading_singular_pairs(stack, rank, floor)
    total = max(total, float(singular_values @ singular_values))
    components = components.astype(dtype, copy=False)
    return Subspace.unchecked(components, singular_values, mean, count, total, subspace.centered)


# --- The paper's pairwise algorithms: uncentred, two summaries at a time ---


def merge_r(first: Subspace, second: Subspace, rank: int | None = None) -> Subspace:
    """The paper's Algorithm 2, Merge_r, made safe.

    As printed it fails where the second basis lies (nearly) in the first: the residual is rounding noise
    and its QR factor is not orthogonal to the first basis. Here the residual is projected twice and
    numerically zero directions are left out.
    """
    _uncentred(first, second)
    if rank is not None:
        rank = validation.rank(rank, first.n_features)
    u, v = first.components.astype(np.float64), second.components.astype(np.float64)
    overlap = v @ u.T
    residual = v - overlap @ u
    correction = residual @ u.T
    residual -= correction @ u
    basis, _ = leading_singular_pairs(residual, floor=1e-14)
    basis = orthonormal(basis - (basis @ u.T) @ u)
    s1, s2 = first.singular_values, second.singular_values[:, None]
    small = np.block(
        [
            [np.diag(s1), np.zeros((len(s1), len(basis)))],
            [s2 * (overlap + correction), s2 * (residual @ basis.T)],
        ]
    )
    rotation, singular_values = leading_singular_pairs(small, rank)
    return _pair(first, second, rotation @ np.concatenate([u, basis]), singular_values, 1.0, 1.0)


def basic_merge(
    first: Subspace, second: Subspace, rank: int | None = None, *, forget: float = 1.0, enhance: float = 1.0
) -> Subspace:
    """The paper's BasicMerge: the SVD of the scaled bases side by side."""
    stack = _stacked(first, second, forget, enhance)
    _, singular_values, components = np.linalg.svd(stack, full_matrices=False)
    return _truncated_pair(first, second, components, singular_values, rank, forget, enhance)


def faster_merge(
    first: Subspace, second: Subspace, rank: int | None = None, *, forget: float = 1.0, enhance: float = 1.0
) -> Subspace:
    """The paper's FasterMerge: QR of the scaled bases, then the SVD of the small triangle."""
    basis, triangle = np.linalg.qr(_stacked(first, second, forget, enhance).T)
    rotation, singular_values, _ = np.linalg.svd(triangle, full_matrices=False)
    return _truncated_pair(first, second, rotation.T @ basis.T, singular_values, rank, forget, enhance)


def _uncentred(first: Subspace, second: Subspace) -> None:
    same_space([first, second])
    if not (isinstance(first, Subspace) and isinstance(second, Subspace)):
        raise TypeError("the paper's merges take two Subspace values, not Moments; those have .subspace().")
    if first.centered:
        raise ValueError("the paper's merges have no means: build with center=False, or use fedpca.merge.")


def _stacked(first: Subspace, second: Subspace, forget: float, enhance: float) -> Array:
    _uncentred(first, second)
    validation.forget(forget)
    if not validation.is_real(enhance) or not 1 <= enhance < np.inf:
        raise ValueError(f"enhance must be a number of at least 1, got enhance={enhance!r}.")
    return np.concatenate(
        [
            (forget * first.singular_values)[:, None] * first.components,
            (enhance * second.singular_values)[:, None] * second.components,
        ]
    )


def _truncated_pair(
    first: Subspace,
    second: Subspace,
    components: Array,
    singular_values: Array,
    rank: int | None,
    forget: float,
    enhance: float,
) -> Subspace:
    """Numerically zero directions left out, then the first `rank`."""
    noise = 4 * np.finfo(np.float64).eps * np.sqrt(first.n_features) * singular_values.max(initial=0.0)
    kept = int(np.count_nonzero(singular_values > noise))
    kept = kept if rank is None else min(kept, validation.rank(rank, first.n_features))
    return _pair(first, second, components[:kept], singular_values[:kept], forget, enhance)


def _pair(
    first: Subspace,
    second: Subspace,
    components: Array,
    singular_values: Array,
    forget: float,
    enhance: float,
) -> Subspace:
    count = forget**2 * first.count + enhance**2 * second.count
    total = forget**2 * first.total + enhance**2 * second.total
    total = max(total, float(singular_values @ singular_values))
    components = with_fixed_signs(components)
    names = first.feature_names or second.feature_names
    return Subspace(components, singular_values, first.mean, count, total, False, names)
