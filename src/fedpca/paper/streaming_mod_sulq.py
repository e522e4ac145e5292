"""Streaming MOD-SuLQ, equation 7 and the first loop of Algorithm 3: the noisy components of one block.

Departures from the paper, of `streaming_mod_sulq`:

1. The mask is symmetrized, (N + N^T) / 2: that is free, and quieter by sqrt(2) off the diagonal.
2. A block is summarized at the scale of the data, sqrt(b lambda). As printed Lambda, the square, is merged
   as if it were Sigma, which gives the components of the sum of squared covariances.
3. Eigenvalues are Rayleigh quotients, found in a second pass over the chunks, and negative ones, which are
   noise, are left out: the singular values of chunks turn them into positive ones.
4. Rows are drawn into the unit ball, and the noise is exact on the integers that their sums then are.
"""

from collections.abc import Iterator

import numpy as np

from fedpca._typing import Array
from fedpca.paper.mask import SymmetricMask
from fedpca.paper.merges import ssvd_r_as_printed
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.privacy.noise import Noise
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.subspace import Subspace

_UNIT = RADIUS**2  # what a product of two points of length one is


def streaming_mod_sulq(block: Array, rank: int, *, sigma: float, noise: Noise, number: int = 0) -> Subspace:
    """The leading directions of a block, shape (b, d), noised by itself, in O(d b) memory.

    Args:
        block: finite rows; those longer than one are shortened to one.
        rank: how many at most.
        sigma: standard deviation of the noise on the sum of x x^T, which is b times omega:
            `paper_omega(epsilon, delta, d, 1)`, or what is enough, `analytic_sigma(epsilon, delta)`.
        noise: with a secret key of its own: `fedpca.privacy.noise.ExactNoise(secrets.token_bytes(32))`.
        number: of the block: every block of a stream needs noise of its own.
    """
    points = clipped(block, 1.0)
    mask = SymmetricMask(noise, block.shape[1], sigma * _UNIT, sigma * _UNIT / np.sqrt(2.0), label=(number,))
    stack, trace = np.zeros((0, block.shape[1])), 0.0
    for columns, chunk in _noisy_chunks(points, mask):
        trace += float(np.trace(chunk[columns]))
        # Twice as many as are kept: about half of what is mostly noise has negative eigenvalues.
        basis, singular_values = leading_singular_pairs(np.concatenate([stack, chunk.T]), 2 * rank)
        stack = singular_values[:, None] * basis
    quotients = np.zeros((len(basis), len(basis)))
    for columns, chunk in _noisy_chunks(points, mask):
        quotients += (basis @ chunk) @ basis[:, columns].T
    values, vectors = np.linalg.eigh((quotients + quotients.T) / 2)
    kept = int(np.count_nonzero(values[-rank:] > 0))
    values, components = values[::-1][:kept] / _UNIT, with_fixed_signs(vectors.T[::-1][:kept] @ basis)
    total = max(trace / _UNIT, float(values.sum()))
    return Subspace(components, np.sqrt(values), np.zeros(block.shape[1]), len(block), total, centered=False)


def streaming_mod_sulq_as_printed(
    block: Array, rank: int, *, omega: float, columns: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """The first loop of Algorithm 3, as printed: U, shape (r, d), and Sigma of a block.

    Args:
        block: B, shape (b, d): rows of norm at most one.
        rank: r.
        omega: standard deviation of the noise.
        columns: c, how many columns of the covariance are noised at a time.
        rng: of the noise.
    """
    n_features = block.shape[1]
    u: Array = np.zeros((0, n_features))
    sigma: Array = np.zeros(0)
    for first in range(0, n_features, columns):
        chunk = block.T @ block[:, first : first + columns] / len(block)
        chunk += omega * rng.standard_normal(chunk.shape)  # equation 7
        u, sigma = ssvd_r_as_printed(chunk.T, u, sigma, rank)
    return u, sigma


def _noisy_chunks(points: Array, mask: SymmetricMask) -> Iterator[tuple[slice, Array]]:
    """Columns of the noisy sum: data and noise are integers, and neither is ever seen without the other."""
    for columns, chunk in strips(mask):
        chunk += points.T @ points[:, columns]
        yield columns, chunk


def strips(mask: SymmetricMask) -> Iterator[tuple[slice, Array]]:
    """The columns of a mask, shape (d, at most 256), one strip at a time: it is never held whole."""
    slices = mask.slices()
    for j, columns in enumerate(slices):
        above = [mask.tile(rows, columns) for rows in slices[: j + 1]]
        below = [mask.tile(columns, rows).T for rows in slices[j + 1 :]]
        yield columns, np.concatenate(above + below)
