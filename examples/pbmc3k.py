"""How many directions labs should share: 2,700 blood cells, split into three labs, and pooled.

Run `PYTHONPATH=. python examples/pbmc3k.py` in a checkout; the first time it downloads 8 MB.
"""

import tempfile
from pathlib import Path

import anndata
import numpy as np
import single_cell
from scipy import sparse
from sklearn.decomposition import PCA

import fedpca
from fedpca.metrics import principal_angles
from reproduction import datasets

GENES = 2000


def labs(counts: sparse.csr_array) -> list[sparse.csr_array]:
    """The most variable genes of three labs with half, a third and the rest of the cells, through files."""
    lab = np.random.default_rng(0).choice(3, size=counts.shape[0], p=[0.5, 0.3, 0.2])
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.h5ad" for i in range(3)]
        for i, file in enumerate(files):
            anndata.AnnData(sparse.csr_matrix(counts[lab == i], dtype=np.float32)).write_h5ad(file)
        genes = single_cell.most_variable(sum(single_cell.gene_sums(file) for file in files), GENES)
        return [sparse.vstack([*single_cell.log_normalized(file)])[:, genes] for file in files]


def compare(cells: list[sparse.csr_array], pooled: PCA, **settings: object) -> tuple[float, list[float]]:
    """Captured variance of the merged model, of the best possible, and angles of its first 2, 5 and 10."""
    rank = pooled.n_components_
    summaries = [fedpca.StreamingPCA(rank, **settings).fit(rows).subspace_ for rows in cells]
    model = fedpca.merge(summaries, rank=rank)
    scores = sparse.vstack(cells) @ model.components.T
    captured = scores.var(axis=0, ddof=1).sum() / pooled.explained_variance_.sum()
    angles = [
        float(np.degrees(principal_angles(model.components[:some], pooled.components_[:some]).max()))
        for some in (2, 5, 10)
    ]
    return float(captured), angles


def main() -> None:
    cells = labs(datasets.load("pbmc3k").rows)
    pooled = PCA(50, svd_solver="covariance_eigh").fit(sparse.vstack(cells).toarray())
    print("| components | tracker | `oversample` | captured | angle of the first 2 | first 5 | first 10 |")
    print("|---|---|---|---|---|---|---|")
    for tracker in ("auto", "exact"):
        for oversample in ("auto", 200):
            captured, angles = compare(cells, pooled, tracker=tracker, oversample=oversample)
            shown = " | ".join(f"{angle:.1f}°" for angle in angles)
            print(f"| 50 | `{tracker}` | {oversample} | {captured:.3f} | {shown} |")


if __name__ == "__main__":
    main()
