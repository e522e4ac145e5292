"""Nearest neighbors after a reduction of dimensions: what an index of half as many finds.

    FEDPCA_DATA=FOLDER python -m benchmarks.recall           # 20,000 of MNIST's images, 2,000 queries
    FEDPCA_DATA=FOLDER python -m benchmarks.recall --quick   # 4,000 and 500

recall@10: how many of the 10 nearest vectors are among the 10 nearest after the reduction, in the mean over
queries that are not in the index. `components` are those of the indexed vectors, by one pass of StreamingPCA;
`whitened` divides scores by their standard deviations; `truncated` keeps the first dimensions, in which an
embedding trained for it has what matters; `random` is a Gaussian random projection.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.common import Array, heading, machine, options, table

SHARES = (2, 4, 8)
NEAREST = 10


def images(n: int) -> Array:
    """So many of MNIST's images, in random order."""
    folder = os.environ.get("FEDPCA_DATA")
    if folder is None:
        raise SystemExit("set FEDPCA_DATA to the folder with mnist_train.npz.")
    with np.load(Path(folder) / "mnist_train.npz") as file:
        rows = next(file[name] for name in file.files if file[name].ndim > 1)
    chosen = np.random.default_rng(0).permutation(len(rows))[:n]
    return rows.reshape(len(rows), -1)[chosen].astype(np.float32)


def nearest(rows: Array, queries: Array) -> Array:
    """The numbers of the 10 nearest rows of each query, shape (n, 10)."""
    distances = (rows**2).sum(axis=1) - 2 * queries @ rows.T
    found: Array = np.argpartition(distances, NEAREST, axis=1)[:, :NEAREST]
    return found


def recall(found: Array, true: Array) -> float:
    return float(np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(found, true, strict=True)]))


def reductions(rows: Array, d: int) -> dict[str, Array]:
    """Matrices of shape (D, d), and what is subtracted before does not change a distance."""
    from fedpca import StreamingPCA

    pca = StreamingPCA(d).fit(rows)
    components = pca.components_.T.astype(np.float32)
    random = np.random.default_rng(1).standard_normal((rows.shape[1], d)).astype(np.float32)
    return {
        "components": components,
        "whitened": components / np.sqrt(pca.explained_variance_).astype(np.float32),
        "truncated": np.eye(rows.shape[1], d, dtype=np.float32),
        "random": random,
    }


def main() -> None:
    arguments = options(__doc__, "fewer vectors").parse_args()
    n, n_queries = (4_000, 500) if arguments.quick else (20_000, 2_000)
    print(machine())
    vectors = images(n + n_queries)
    rows, queries = vectors[:n], vectors[n:]
    true = nearest(rows, queries)
    heading(f"recall@{NEAREST}, {n} images of MNIST, D = {rows.shape[1]}")
    lines = []
    for share in SHARES:
        d = rows.shape[1] // share
        found = {name: nearest(rows @ by, queries @ by) for name, by in reductions(rows, d).items()}
        lines.append([f"1/{share}", str(d)] + [f"{recall(each, true):.3f}" for each in found.values()])
    table(["dimensions", "d", "components", "whitened", "truncated", "random"], lines)


if __name__ == "__main__":
    main()
