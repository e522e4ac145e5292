"""The paper's pairwise merges: uncentered, two summaries at a time."""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.linalg import leading_singular_pairs, orthonormal, rounding_level, with_fixed_signs
from fedpca.summaries.merging import check_compatible
from fedpca.summaries.subspace import Subspace


def merge_r(first: Subspace, second: Subspace, rank: int | None = None) -> Subspace:
    """The paper's Algorithm 2, Merge_r, made safe.

    As printed it fails where the second basis lies (nearly) in the first: the residual is rounding noise
    and its QR factor is not orthogonal to the first basis. Here the residual is projected twice and
    numerically zero directions are left out.
    """
    _check_uncentered(first, second)
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


def _check_uncentered(first: Subspace, second: Subspace) -> None:
    check_compatible([first, second], option="fedpca.merge(..., features='intersection')")
    if not (isinstance(first, Subspace) and isinstance(second, Subspace)):
        raise TypeError("the paper's merges take two Subspace values, not Moments; those have .subspace().")
    if first.centered:
        raise ValueError("the paper's merges have no means: build with center=False, or use fedpca.merge.")


def _stacked(first: Subspace, second: Subspace, forget: float, enhance: float) -> Array:
    _check_uncentered(first, second)
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
    noise = rounding_level(first.n_features) * singular_values.max(initial=0.0)
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
    return Subspace(components, singular_values, first.mean, count, total, False, names, scale=first.scale)
