"""Federated-PCA (Algorithm 1): every client runs FPCA-Edge, and subspaces are merged up a tree.

Departures from the paper, of `federated_pca`:

1. Those of `fpca_edge` and `merge_r`.
2. Every batch has B rows and the noise that B rows need. As printed the first has T rows, and later ones,
   which are smaller, the same noise: these are not private. (T as printed is far below one row.)
3. The rows left over at a client are its last batch.
"""

from collections.abc import Sequence

import numpy as np

from fedpca._typing import Array
from fedpca.paper.fpca_edge import FPCAEdge, fpca_edge_as_printed
from fedpca.paper.merges import merge_r, merged_as_printed
from fedpca.privacy.noise import Noise
from fedpca.summaries.subspace import Subspace


def federated_pca(
    clients: Sequence[Array],
    rank: int,
    batch_rows: int,
    *,
    band: tuple[float, float] | None = None,
    sigma: float = 0.0,
    noises: Sequence[Noise] | None = None,
) -> Subspace:
    """Algorithm 1, corrected: the principal subspace of the rows of all clients.

    Args:
        clients: the rows of each, shape (n_i, d).
        rank: r.
        batch_rows: B.
        band, sigma: as of `FPCAEdge`.
        noises: one per client, with keys of their own; None without a mask.

    >>> rows = np.random.default_rng(0).normal(size=(400, 5)) * [4.0, 2.0, 0.1, 0.1, 0.1]
    >>> federated_pca(np.array_split(rows, 4), rank=2, batch_rows=20)
    Subspace(rank=2, n_features=5, count=400, explained=99.8%)
    """
    subspaces = []
    for number, rows in enumerate(clients):
        # 1. Initialize clients.
        noise = None if noises is None else noises[number]
        edge = FPCAEdge(rows.shape[1], rank, batch_rows, band=band, sigma=sigma, noise=noise)
        # 2. Computation of local updates.
        edge.update(rows)
        subspaces.append(edge.summary())
    # 3. Recursive subspace merge: neighbors, level by level.
    while len(subspaces) > 1:
        pairs, odd = zip(subspaces[::2], subspaces[1::2], strict=False), subspaces[len(subspaces) // 2 * 2 :]
        subspaces = [merge_r(first, second, rank) for first, second in pairs] + odd
    return subspaces[0]


def federated_pca_as_printed(
    clients: Sequence[Array],
    rank: int,
    batch_rows: int,
    first_batch: int,
    *,
    omega: float,
    columns: int,
    rng: np.random.Generator,
    band: tuple[float, float] | None = None,
) -> tuple[Array, Array]:
    """Algorithm 1, as printed: U, shape (r, d), and Sigma of all clients.

    Args:
        clients: the rows of each, of norm at most one; those left over at the end are dropped.
        rank: r.
        batch_rows: B.
        first_batch: T, rounded up.
        omega, columns, rng, band: as of `fpca_edge_as_printed`.
    """
    parts = []
    for rows in clients:
        # 1. Initialize clients.
        u: Array = np.zeros((0, rows.shape[1]))
        sigma: Array = np.zeros(0)
        start, stop = 0, first_batch
        # 2. Computation of local updates.
        while stop <= len(rows):
            u, sigma = fpca_edge_as_printed(
                rows[start:stop], u, sigma, rank, omega=omega, columns=columns, rng=rng, band=band
            )
            start, stop = stop, stop + batch_rows
        parts.append((u, sigma))
    # 3. Recursive subspace merge.
    while len(parts) > 1:
        pairs, odd = zip(parts[::2], parts[1::2], strict=False), parts[len(parts) // 2 * 2 :]
        parts = [merged_as_printed(*first, *second, rank) for first, second in pairs] + odd
    return parts[0]
