"""2,700 blood cells through scanpy, with components that fedpca finds in the file without loading it.

Run `PYTHONPATH=. python examples/scanpy_umap.py` in a checkout; it needs `pip install scanpy`, and downloads
8 MB the first time.
"""

import tempfile
import warnings
from pathlib import Path

import anndata
import numpy as np
import scanpy as sc
from scipy import sparse

import fedpca.single_cell
from reproduction import datasets


def write_cells(path: Path) -> None:
    """Log-normalized cells with 2,000 highly variable genes."""
    cells = anndata.AnnData(sparse.csr_matrix(datasets.load("pbmc3k").rows, dtype=np.float32))
    sc.pp.filter_genes(cells, min_cells=3)
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    sc.pp.highly_variable_genes(cells, n_top_genes=2000)
    cells.write_h5ad(path)


def neighbors_and_umap(cells: anndata.AnnData) -> anndata.AnnData:
    sc.pp.neighbors(cells)
    sc.tl.umap(cells)
    return cells


def main() -> tuple[anndata.AnnData, anndata.AnnData]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.h5ad"
        write_cells(path)
        theirs = sc.pp.pca(anndata.read_h5ad(path), copy=True)
        print(fedpca.single_cell.pca(path))
        ours = anndata.read_h5ad(path)
    same = [
        np.corrcoef(a, b)[0, 1] for a, b in zip(ours.obsm["X_pca"].T, theirs.obsm["X_pca"].T, strict=True)
    ]
    print(f"least correlation with scanpy's scores, of {len(same)} components: {min(same):.6f}")
    return neighbors_and_umap(ours), neighbors_and_umap(theirs)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scanpy's dependencies
        main()
