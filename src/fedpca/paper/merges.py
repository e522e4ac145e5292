"""The paper's pairwise merges: uncentered, two summaries at a time.

Its matrices stand on end here: U (d x r) is the transpose of `components`, and Sigma `singular_values`.

Departures from the paper, of `merge_r`, `basic_merge` and `faster_merge`:

1. Numerically zero directions are left out. As printed (Algorithm 2) the QR factor of a residual that is
   rounding noise is not orthogonal to the first basis.
2. `merge_r` projects the residual twice.
3. Counts and totals are added up, and signs fixed, as in every `Subspace`.
"""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.linalg import leading_singular_pairs, orthonormal, rounding_level, with_fixed_signs
from fedpca.summaries.subspace import Subspace


def merge_r(first: Subspace, second: Subspace, rank: int | None = None) -> Subspace:
    """Algorithm 2, Merge_r, corrected.

    As printed it fails where the second basis lies (nearly) in the first: the residual is rounding noise
    and its QR factor is not orthogonal to the first basis. Here the residual is projected twice and
    numerically zero directions are left out.
    """
    _check_uncentered(first, second)
    if rank is not None:
        rank = validation.rank(rank, first.n_features)
    u1, u2 = first.components.astype(np.float64), second.components.astype(np.float64)
    s1, s2 = first.singular_values, second.singular_values[:, None]
    # Line 1: Z = U1^T U2, transposed.
    z = u2 @ u1.T
    # Line 2: QR of U2 - U1 Z. Projected again, for what rounding left of U1 in it.
    residual = u2 - z @ u1
    correction = residual @ u1.T
    residual -= correction @ u1
    q, _ = leading_singular_pairs(residual, floor=1e-14)
    q = orthonormal(q - (q @ u1.T) @ u1)
    # Line 3: SVD_r of [[Sigma1, Z Sigma2], [0, R Sigma2]], transposed, with R = Q^T of the residual.
    small = np.block(
        [[np.diag(s1), np.zeros((len(s1), len(q)))], [s2 * (z + correction), s2 * (residual @ q.T)]]
    )
    rotation, singular_values = leading_singular_pairs(small, rank)
    # Line 4: U'' = [U1, Q] U'.
    return _pair(first, second, rotation @ np.concatenate([u1, q]), singular_values, 1.0, 1.0)


def merge_r_as_printed(first: Subspace, second: Subspace, rank: int) -> tuple[Array, Array]:
    """Algorithm 2, Merge_r, as printed: components, shape (rank, d), and singular values.

    The components are orthonormal only where no direction of the second basis lies (nearly) in the first.

    >>> one = Subspace([[1.0, 0.0, 0.0]], [2.0], np.zeros(3), 9, 4.0, False)
    >>> other = Subspace([[0.0, 1.0, 0.0]], [3.0], np.zeros(3), 9, 9.0, False)
    >>> merge_r_as_printed(one, other, 2)[1]
    array([3., 2.])
    """
    _check_uncentered(first, second)
    u1, u2 = first.components.astype(np.float64), second.components.astype(np.float64)
    return merged_as_printed(u1, first.singular_values, u2, second.singular_values, rank)


def ssvd_r_as_printed(d: Array, u: Array, sigma: Array, rank: int) -> tuple[Array, Array]:
    """SSVD_r (section 3.3), as printed: SVD_r(D) at first, then Merge_r(U, Sigma, D, I).

    Args:
        d: the next columns D, as rows, shape (n, d).
        u, sigma: components, shape (k, d), and singular values before; k = 0 at first.
        rank: r.
    """
    if not len(u):
        _, singular_values, components = np.linalg.svd(d, full_matrices=False)
        return components[:rank], singular_values[:rank]
    return merged_as_printed(u, sigma, d, np.ones(len(d)), rank)


def merged_as_printed(first: Array, s1: Array, second: Array, s2: Array, rank: int) -> tuple[Array, Array]:
    """`merge_r_as_printed` of components, shape (k, d), and singular values."""
    u1, u2 = first.T, second.T
    z = u1.T @ u2  # line 1
    q, r = np.linalg.qr(u2 - u1 @ z)  # line 2
    below = np.zeros((len(r), len(s1)))
    u, sigma, _ = np.linalg.svd(np.block([[np.diag(s1), z * s2], [below, r * s2]]))  # line 3
    return (np.hstack([u1, q]) @ u[:, :rank]).T, sigma[:rank]  # line 4


def basic_merge(
    first: Subspace, second: Subspace, rank: int | None = None, *, forget: float = 1.0, enhance: float = 1.0
) -> Subspace:
    """BasicMerge (appendix): the SVD of the scaled bases side by side.

    Args:
        first: U1, Sigma1.
        second: U2, Sigma2.
        rank: r; by default all directions that are not numerically zero.
        forget: lambda1, the forgetting factor.
        enhance: lambda2, the enhancing factor.
    """
    # SVD_r of [lambda1 U1 Sigma1, lambda2 U2 Sigma2].
    stack = _stacked(first, second, forget, enhance)
    _, singular_values, components = np.linalg.svd(stack, full_matrices=False)
    return _truncated_pair(first, second, components, singular_values, rank, forget, enhance)


def faster_merge(
    first: Subspace, second: Subspace, rank: int | None = None, *, forget: float = 1.0, enhance: float = 1.0
) -> Subspace:
    """FasterMerge (appendix): QR of the scaled bases, then the SVD of the small triangle.

    Args: as those of `basic_merge`.
    """
    # Line 1: QR of [lambda1 U1 Sigma1 | lambda2 U2 Sigma2].
    basis, triangle = np.linalg.qr(_stacked(first, second, forget, enhance).T)
    # Line 2: SVD_r of R.
    rotation, singular_values, _ = np.linalg.svd(triangle, full_matrices=False)
    # Line 3: U' = Q U_R.
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
    about = About(first.feature_names or second.feature_names, first.scale)
    return Subspace(components, singular_values, first.mean, count, total, False, about=about)
