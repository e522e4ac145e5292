"""The merge identity, for summaries of rows that know the same features.

With counts n_i, means m_i and scatters S_i of the parts, n = sum n_i and m = sum n_i m_i / n, a row x of
part i deviates from m by (x - m_i) + (m_i - m), and the first term sums to zero over the part. So the scatter
of all rows about their common mean is

    S = sum S_i + sum n_i (m_i - m)(m_i - m)^T.

Moments are added as they are, before anything is truncated. Subspaces, for which S_i = C_i^T s_i^2 C_i, are
merged by one factorization of the stacked rows [s_i C_i ; sqrt(n_i) (m_i - m)], whose Gram matrix is S: exact
if nothing is truncated. About the origin there are no means, and no rows of them.
"""

from collections.abc import Sequence

import numpy as np

from fedpca._typing import Array
from fedpca.backend import ops
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.algebra import pooled, rounding_floor, subtract_mean
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.certificate_merging import combine
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


def pool(parts: Sequence[Summary], rank: int | None, about: About) -> Summary:
    """All rows behind the parts, at least one; `rank` is for what is a subspace then."""
    if len(parts) == 1:
        only = parts[0].changed(about=about)
        return only if rank is None else only.subspace(rank)
    plain = [part for part in parts if isinstance(part, Moments) and part.certificate is None]
    private = [part for part in parts if isinstance(part, Moments) and part.certificate is not None]
    kinds = [same for same in (plain, private) if same]  # apart: only private scatters may be indefinite
    if [len(same) for same in kinds] == [len(parts)]:
        merged = sum_moments(kinds[0], about)
        return merged if rank is None else merged.subspace(rank)
    sums = [sum_moments(same, About(certificate=combined(same, summed=True))) for same in kinds]
    subspaces = [part for part in parts if isinstance(part, Subspace)]
    return _stacked([*(moments.subspace() for moments in sums), *subspaces], rank, about)


def combined(parts: Sequence[Summary], *, summed: bool) -> Certificate | None:
    """The certificate of all parts together."""
    return combine([part.certificate for part in parts], summed=summed)


def sum_moments(parts: Sequence[Moments], about: About) -> Moments:
    """S = sum S_i + sum n_i (m_i - m)(m_i - m)^T."""
    count, mean, offsets = _pooled(parts)
    scatter = offsets.T @ offsets
    for part in parts:
        scatter += part.scatter
    validation.raw_energy(float(np.abs(np.diag(scatter)).sum()), count, mean)
    observed = None if parts[0].observed is None else count * parts[0].known
    return parts[0].changed(count=count, mean=mean, scatter=scatter, observed=observed, about=about)


def _stacked(parts: Sequence[Subspace], rank: int | None, about: About) -> Subspace:
    """The leading directions of the rows [s_i C_i ; sqrt(n_i) (m_i - m)]."""
    count, mean, offsets = _pooled(parts)
    rows = [part.singular_values[:, None] * part.components for part in parts]
    total = sum(part.total for part in parts) + ops.energy(offsets)
    dtype = np.result_type(*(part.components.dtype for part in parts))
    floor = rounding_floor(total, count, mean, dtype)
    stack = np.concatenate([*rows, offsets] if parts[0].centered else rows)
    components, singular_values = leading_singular_pairs(stack, rank, floor)
    return Subspace.unchecked(
        components=with_fixed_signs(components).astype(dtype, copy=False),
        singular_values=singular_values,
        mean=mean,
        count=count,
        total=total,
        centered=parts[0].centered,
        observed=None if parts[0].observed is None else count * parts[0].known,
        about=about,
    )


def _pooled(parts: Sequence[Summary]) -> tuple[float, Array, Array]:
    """n, m, and the rows sqrt(n_i) (m_i - m)."""
    counts = np.array([[part.count] for part in parts])
    total, mean, offsets = pooled(counts, np.array([part.mean for part in parts]))
    return float(total[0]), mean, offsets


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
    stack[:rank_before] = subspace.components
    # As long as they were: else the rounding of a component in float32 takes or adds energy, once per update,
    # which passes for energy that was discarded, or hides that.
    lengths = np.sqrt(np.vecdot(stack[:rank_before], stack[:rank_before]))
    stack[:rank_before] *= (subspace.singular_values / lengths)[:, None]
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
