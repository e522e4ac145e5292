"""Principal components of three labs' cells, written to each lab's own file in scanpy's layout.

Run `python examples/single_cell.py [FOLDER]`; it needs `pip install anndata`. The counts are synthetic.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anndata
import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA

import fedpca
from fedpca.readers import open_rows

COMPONENTS, GENES = 20, 500


def log_normalized(path: Path) -> Iterator[sparse.csr_array]:
    """Batches of cells, each scaled to 10,000 counts in total, as log(1 + count); zeros stay zeros."""
    for counts in open_rows(path):
        total = counts.sum(axis=1)
        yield (sparse.diags_array(1e4 / np.maximum(total, 1.0)) @ counts).tocsr().log1p()


def gene_sums(path: Path) -> np.ndarray:
    """Per gene: cells, sum and sum of squares in a lab, shape (3, n_genes)."""
    sums = 0.0
    for rows in log_normalized(path):
        cells = np.full(rows.shape[1], rows.shape[0])
        sums = sums + np.stack([cells, rows.sum(axis=0), rows.power(2).sum(axis=0)])
    return sums


def most_variable(sums: np.ndarray, genes: int) -> np.ndarray:
    """Indices of the genes with the largest variance over the cells of all labs."""
    cells, total, squares = sums
    return np.sort(np.argsort(total**2 / cells - squares)[:genes])


def summary(path: Path, genes: np.ndarray) -> fedpca.Subspace:
    """The summary of a lab: leading directions of its cells."""
    # Single-cell spectra have a long, flat tail: track all of it, and share more directions than usual.
    pca = fedpca.StreamingPCA(COMPONENTS, tracker="exact", oversample=200)
    for rows in log_normalized(path):
        pca.partial_fit(rows[:, genes])
    return pca.subspace_


def annotate(path: Path, model: fedpca.Subspace, genes: np.ndarray) -> None:
    """Write the model and the scores of every cell to a lab's file, where scanpy expects them."""
    pca = fedpca.StreamingPCA(model.rank).merge(model)  # transforms sparse rows as well
    scores = np.concatenate([pca.transform(rows[:, genes]) for rows in log_normalized(path)])
    cells = anndata.read_h5ad(path, backed="r+")  # the counts stay on disk
    loadings = np.zeros((cells.n_vars, model.rank))
    loadings[genes] = model.components.T
    cells.var["highly_variable"] = np.isin(np.arange(cells.n_vars), genes)
    cells.obsm["X_pca"] = scores.astype(np.float32)
    cells.varm["PCs"] = loadings
    cells.uns["pca"] = {
        "params": {"zero_center": True, "use_highly_variable": True, "mask_var": "highly_variable"},
        "variance": model.singular_values**2 / (model.count - 1),
        "variance_ratio": model.explained_variance_ratio,
    }
    cells.write()
    cells.file.close()


def write_labs(folder: Path) -> list[Path]:
    """Files with counts of three labs with different shares of four cell types."""
    rng = np.random.default_rng(0)
    expressed = rng.gamma(0.3, 2.0, 2000)
    types = expressed * np.exp(rng.normal(size=(4, 2000)) * (rng.uniform(size=2000) < 0.2))
    shares = {"leiden": [0.5, 0.3, 0.2, 0.0], "lyon": [0.1, 0.2, 0.3, 0.4], "turin": [0.0, 0.0, 0.5, 0.5]}
    files = [folder / f"{name}.h5ad" for name in shares]
    for path, share in zip(files, shares.values(), strict=True):
        of = rng.choice(4, size=600, p=share)
        depth = rng.lognormal(0.0, 0.4, size=(600, 1))  # sequencing depth differs between cells
        counts = sparse.csr_array(rng.poisson(types[of] * depth).astype(np.float32))
        cells = anndata.AnnData(counts)
        cells.var_names = [f"gene{gene}" for gene in range(2000)]
        cells.obs_names = [f"{path.stem}-{cell}" for cell in range(600)]
        cells.write_h5ad(path)
    return files


def main(folder: Path) -> None:
    files = write_labs(folder)
    genes = most_variable(sum(gene_sums(path) for path in files), GENES)  # first round
    model = fedpca.merge([summary(path, genes) for path in files], rank=COMPONENTS)  # second round
    for path in files:
        annotate(path, model, genes)
    print(f"merged: {model}")

    everything = sparse.vstack([rows[:, genes] for path in files for rows in log_normalized(path)]).toarray()
    share = fedpca.metrics.captured_variance(model, everything)
    print(f"variance captured, of the best {COMPONENTS} directions of all cells: {share:.3f}")
    pooled = PCA(3).fit(everything)
    angle = np.degrees(fedpca.metrics.principal_angles(model.components[:3], pooled.components_).max())
    print(f"angle between its first three components and those of pooled cells: {angle:.1f} degrees")
    for path in files:
        cells = anndata.read_h5ad(path)
        print(f"{path.name}: obsm {[*cells.obsm]}, varm {[*cells.varm]}, uns {[*cells.uns]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
