"""fedpca.single_cell.pca gives what scanpy gives, from memory and from files, and files survive it."""

import os
import signal
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

anndata = pytest.importorskip("anndata", reason="the single-cell extra")
pytest.importorskip("h5py", reason="the files extra")
pytest.importorskip("zarr", reason="the files extra")

from fedpca import single_cell  # noqa: E402
from fedpca.single_cell import components, stores  # noqa: E402
from fedpca.trackers import passes  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Writing zarr v2 data")]
PLACES = ("memory", "backed", "h5ad", "zarr")


def some_cells(n_cells=400, n_genes=60, seed=0, layout=sparse.csr_matrix):
    """Log-normalized cells of a few kinds, two thirds of the genes highly variable, in two batches."""
    rng = np.random.default_rng(seed)
    kinds = rng.gamma(0.6, 2.0, size=(5, n_genes))
    counts = rng.poisson(kinds[rng.integers(5, size=n_cells)]).astype(np.float32)
    logs = np.log1p(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) * 1e4)
    adata = anndata.AnnData(layout(logs))
    adata.layers["counts"] = layout(counts)
    adata.obs_names = [f"cell{i}" for i in range(n_cells)]
    adata.var_names = [f"gene{i}" for i in range(n_genes)]
    adata.var["highly_variable"] = np.arange(n_genes) % 3 != 0
    adata.obs["batch"] = np.where(rng.random(n_cells) < 0.3, "lyon", "turin")
    return adata


def run(adata, place, folder, *args, **settings):
    """The AnnData object after `pca`, wherever it was."""
    if place == "memory":
        single_cell.pca(adata, *args, **settings)
        return adata
    if place == "zarr":
        adata.write_zarr(folder / "cells.zarr")
        single_cell.pca(folder / "cells.zarr", *args, **settings)
        return anndata.read_zarr(folder / "cells.zarr")
    adata.write_h5ad(folder / "cells.h5ad")
    if place == "h5ad":
        single_cell.pca(str(folder / "cells.h5ad"), *args, **settings)
        return anndata.read_h5ad(folder / "cells.h5ad")
    backed = anndata.read_h5ad(folder / "cells.h5ad", backed="r+")
    single_cell.pca(backed, *args, **settings)
    backed.write()
    backed.file.close()
    return anndata.read_h5ad(folder / "cells.h5ad")


def svd(rows, n_comps):
    """Scores, components and variances by numpy, signs as scikit-learn has them."""
    rows = np.asarray(rows.todense() if sparse.issparse(rows) else rows, np.float64)
    deviations = rows - rows.mean(axis=0)
    _, values, components = np.linalg.svd(deviations, full_matrices=False)
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(len(components)), largest])[:, None]
    return deviations @ components[:n_comps].T, components[:n_comps], values**2 / (len(rows) - 1)


def assert_is_pca(adata, rows, mask, n_comps, names=("X_pca", "PCs", "pca")):
    scores, components, variances = svd(rows[:, mask], n_comps)
    obsm, varm, uns = names
    found = adata.obsm[obsm]
    assert found.dtype == np.float32
    assert np.abs(found - scores).max() < 1e-4 * np.abs(scores).max()
    assert np.abs(adata.varm[varm][mask] - components.T).max() < 1e-4
    assert not adata.varm[varm][~mask].any()
    assert np.allclose(adata.uns[uns]["variance"], variances[:n_comps], rtol=1e-5)
    assert np.allclose(adata.uns[uns]["variance_ratio"], variances[:n_comps] / variances.sum(), rtol=1e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", [sparse.csr_matrix, np.array], ids=["sparse", "dense"])
def test_slots_are_those_of_numpys_svd(tmp_path, place, layout):
    adata = some_cells(layout=layout)
    rows, mask = adata.X.copy(), np.asarray(adata.var["highly_variable"])
    after = run(adata, place, tmp_path, 7)
    assert_is_pca(after, rows, mask, 7)
    assert dict(after.uns["pca"]["params"]) == {
        "zero_center": True, "use_highly_variable": True, "mask_var": "highly_variable",
    }  # fmt: skip
    assert abs(after.X - rows).sum() == 0
    assert list(after.obs_names) == [f"cell{i}" for i in range(400)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".fedpca")] == []


@pytest.mark.parametrize("place", PLACES)
def test_more_genes_than_a_scatter_is_kept_of(tmp_path, place, monkeypatch):
    monkeypatch.setattr(components, "_MAX_GENES_AT_ONCE", 30)
    adata = some_cells()
    rows, mask = adata.X.copy(), np.asarray(adata.var["highly_variable"])
    assert_is_pca(run(adata, place, tmp_path, 7), rows, mask, 7)


def test_a_basis_that_has_to_start_again(monkeypatch):
    monkeypatch.setattr(components, "_MAX_GENES_AT_ONCE", 30)
    monkeypatch.setattr(passes, "_MAX_BLOCKS", 2)
    adata = some_cells(n_genes=120)
    single_cell.pca(adata, 7, mask_var=None)
    assert_is_pca(adata, adata.X, np.ones(120, bool), 7)


def test_passes_that_do_not_suffice_are_a_warning(monkeypatch):
    monkeypatch.setattr(components, "_MAX_GENES_AT_ONCE", 30)
    monkeypatch.setattr(passes, "_MAX_PASSES", 2)
    with pytest.warns(UserWarning, match="of 7 components have not converged") as warned:
        single_cell.pca(some_cells(n_genes=120), 7)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("batch_rows", [1, 7, 400])
@pytest.mark.long
def test_any_batches(tmp_path, place, batch_rows, monkeypatch):
    monkeypatch.setattr(single_cell.tables, "BATCH_ROWS", batch_rows)
    adata = some_cells(n_cells=90)
    rows, mask = adata.X.copy(), np.asarray(adata.var["highly_variable"])
    assert_is_pca(run(adata, place, tmp_path, 5), rows, mask, 5)


@pytest.mark.parametrize("place", PLACES)
def test_mask_layer_and_names_of_slots(tmp_path, place):
    adata = some_cells()
    rows, mask = adata.layers["counts"].copy(), np.arange(60) < 20
    after = run(adata, place, tmp_path, 4, layer="counts", mask_var=mask, key_added="pca_counts")
    assert_is_pca(after, rows, mask, 4, ("pca_counts",) * 3)
    params = after.uns["pca_counts"]["params"]
    assert params["layer"] == "counts"
    assert np.array_equal(params["mask_var"], mask)
    assert "X_pca" not in after.obsm


@pytest.mark.parametrize("place", PLACES)
def test_all_genes(tmp_path, place):
    adata = some_cells()
    rows = adata.X.copy()
    after = run(adata, place, tmp_path, 4, mask_var=None)
    assert_is_pca(after, rows, np.ones(60, bool), 4)
    assert after.uns["pca"]["params"]["mask_var"] is None


def test_without_highly_variable_genes_all_are_used():
    adata = some_cells()
    del adata.var["highly_variable"]
    single_cell.pca(adata, 4)
    assert_is_pca(adata, adata.X, np.ones(60, bool), 4)


@pytest.mark.parametrize("layout", [sparse.csr_matrix, np.array], ids=["sparse", "dense"])
def test_counts_are_normalized_over_all_genes(layout):
    adata = some_cells(layout=layout)
    counts = adata.to_df("counts").to_numpy()
    counts[3] = 0  # a cell without any
    adata.layers["counts"] = layout(counts)
    logs = np.log1p(1e4 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    single_cell.pca(adata, 4, layer="counts", log_normalize=1e4)
    assert_is_pca(adata, logs, np.asarray(adata.var["highly_variable"]), 4)
    assert adata.uns["pca"]["params"]["log_normalize"] == 1e4


@pytest.mark.parametrize("limit", [30, 5000], ids=["passes", "moments"])
@pytest.mark.parametrize("place", PLACES)
def test_batches_as_owners_give_the_components_of_all_cells(tmp_path, place, limit, monkeypatch):
    monkeypatch.setattr(components, "_MAX_GENES_AT_ONCE", limit)
    adata = some_cells()
    adata.obs.loc["cell7", "batch"] = "alone"
    adata.obs["batch"] = adata.obs["batch"].astype("category")
    rows, mask = adata.X.copy(), np.asarray(adata.var["highly_variable"])
    after = run(adata, place, tmp_path, 6, batch_key="batch")
    assert_is_pca(after, rows, mask, 6)
    assert after.uns["pca"]["params"]["batch_key"] == "batch"


def test_memory_does_not_grow_with_the_batches():
    """Scatters of 300 batches are 2.4 GB."""
    adata = some_cells(900, 1500, layout=np.array)
    adata.obs["donor"] = np.random.default_rng(1).permutation(np.arange(900) % 300)
    tracemalloc.start()
    single_cell.pca(adata, 6, batch_key="donor")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_is_pca(adata, adata.X, np.asarray(adata.var["highly_variable"]), 6)
    assert peak < 100e6


def test_several_files_as_owners(tmp_path):
    whole = some_cells()
    parts = [whole[:150].copy(), whole[150:].copy()]
    parts[0].write_h5ad(tmp_path / "lyon.h5ad")
    parts[1].write_zarr(tmp_path / "turin.zarr")
    model = single_cell.pca([tmp_path / "lyon.h5ad", tmp_path / "turin.zarr"], 6)
    single_cell.pca(whole, 6)
    lyon, turin = anndata.read_h5ad(tmp_path / "lyon.h5ad"), anndata.read_zarr(tmp_path / "turin.zarr")
    found = np.concatenate([lyon.obsm["X_pca"], turin.obsm["X_pca"]])
    assert np.abs(found - whole.obsm["X_pca"]).max() < 1e-4
    assert np.allclose(lyon.varm["PCs"], turin.varm["PCs"])
    assert model.count == 400
    assert model.feature_names == tuple(whole.var_names[whole.var["highly_variable"]])


@pytest.mark.filterwarnings("ignore:zarr v3 autosharding", "ignore:Consolidated metadata")
def test_version_3_of_zarr(tmp_path):
    adata = some_cells()
    rows, mask = adata.X.copy(), np.asarray(adata.var["highly_variable"])
    with anndata.settings.override(zarr_write_format=3):
        assert_is_pca(run(adata, "zarr", tmp_path, 4), rows, mask, 4)
    assert (tmp_path / "cells.zarr" / "zarr.json").exists()


def test_a_second_run_replaces_the_first(tmp_path):
    for place in ("h5ad", "zarr"):
        run(some_cells(), place, tmp_path, 9)
        path = tmp_path / f"cells.{place}"
        single_cell.pca(path, 3)
        read = anndata.read_h5ad if place == "h5ad" else anndata.read_zarr
        assert read(path).obsm["X_pca"].shape == (400, 3)
        assert read(path).varm["PCs"].shape == (60, 3)


@pytest.mark.parametrize("place", ["h5ad", "zarr"])
def test_a_link_stays_one_and_its_target_changes(tmp_path, place):
    adata, link = some_cells(), tmp_path / "here" / f"link.{place}"
    run(adata, place, tmp_path, 4)
    link.parent.mkdir()
    link.symlink_to(tmp_path / f"cells.{place}")
    single_cell.pca(link, 7)
    read = anndata.read_h5ad if place == "h5ad" else anndata.read_zarr
    assert read(tmp_path / f"cells.{place}").obsm["X_pca"].shape == (400, 7)
    assert link.is_symlink()
    assert [path.name for path in link.parent.iterdir()] == [link.name]


def test_the_default_is_fifty_components_or_one_less_than_possible():
    assert single_cell.pca(some_cells(n_cells=20)).rank == 19
    assert single_cell.pca(some_cells(n_genes=30)).rank == 19
    assert single_cell.pca(some_cells(n_genes=200)).rank == 50


def test_column_major_cells_in_memory_are_converted():
    adata = some_cells(layout=sparse.csc_matrix)
    single_cell.pca(adata, 4)
    assert_is_pca(adata, adata.X, np.asarray(adata.var["highly_variable"]), 4)


@pytest.mark.parametrize("layout", [sparse.csr_matrix, np.array], ids=["sparse", "dense"])
def test_cells_in_dask_arrays(layout):
    dask = pytest.importorskip("dask.array", reason="dask is not installed")
    adata = some_cells(layout=layout)
    rows, mask = adata.X, np.asarray(adata.var["highly_variable"])
    adata.X = dask.from_array(rows, chunks=(150, 60), asarray=False)
    single_cell.pca(adata, 5)
    assert_is_pca(adata, rows, mask, 5)


def test_genes_with_the_same_name(tmp_path):
    adata = some_cells()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata.var_names = ["gene0"] * 60
        rows = adata.X.copy()
        after = run(adata, "h5ad", tmp_path, 4)
    assert_is_pca(after, rows, np.asarray(adata.var["highly_variable"]), 4)


# --- bad input ---


def bad(change):
    adata = some_cells()
    change(adata)
    return adata


def set_value(adata, value):
    rows = adata.X.toarray()
    rows[5, 4] = value
    adata.X = sparse.csr_matrix(rows)


BAD = {
    "no column": ({"mask_var": "hvg"}, None, r"unknown column 'hvg' in var of .*; it has highly_variable"),
    "nothing selected": (
        {"mask_var": "none"}, lambda a: a.var.insert(0, "none", False), "must select genes, but all of it is",
    ),
    "not boolean": (
        {"mask_var": "score"}, lambda a: a.var.insert(0, "score", 0.5), "for every gene, got 0.5",
    ),
    "partly unknown": (
        {}, lambda a: a.var.__setitem__("highly_variable", pd.array([True, None] * 30, dtype="boolean")),
        r"var\['highly_variable'\] of .* must be True or False for every gene, got <NA> and the like for 30",
    ),
    "mask too short": ({"mask_var": [True] * 5}, None, r"one boolean per gene, 60, got shape \(5,\)"),
    "names as mask": ({"mask_var": ["gene1", "gene2"]}, None, r"var_names\.isin\(names\) makes a mask"),
    "no layer": ({"layer": "raw"}, None, "unknown layer 'raw' in .*; it has counts"),
    "too many": ({"n_comps": 40}, None, r"n_comps must be less than .*cells, 400.*genes used, 40, got 40"),
    "none": ({"n_comps": 0}, None, "n_comps"),
    "no batch": ({"batch_key": "lab"}, None, "unknown column 'lab' in obs of .*; it has batch"),
    "NaN": ({}, lambda a: set_value(a, np.nan), "values must be finite, got NaN or infinity"),
    "infinity": ({}, lambda a: set_value(a, np.inf), "values must be finite, got NaN or infinity"),
    "negative": ({"log_normalize": 1e4}, lambda a: set_value(a, -1), "counts must not be negative, got -1"),
    "target": ({"log_normalize": -1.0}, None, "log_normalize must be a positive number or None, got -1.0"),
    "constant": ({}, lambda a: setattr(a, "X", np.ones((400, 60))), "cells must differ"),
    "no name": ({"key_added": ""}, None, "key_added must be a name without a slash, or None, got ''"),
    "path as name": ({"key_added": "pca/all"}, None, "key_added must be a name without a slash"),
    "one cell": ({}, lambda a: a._inplace_subset_obs(slice(0, 1)), "at least 2 cells and 2 genes, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_changes_nothing(tmp_path, place, case):
    settings, change, message = BAD[case]
    adata = bad(change or (lambda adata: None))
    with pytest.raises(ValueError, match=message) as error:
        run(adata, place, tmp_path, **({"n_comps": 4} | settings))
    assert "\n" not in str(error.value)
    if place in ("h5ad", "zarr"):
        read = anndata.read_h5ad if place == "h5ad" else anndata.read_zarr
        adata = read(tmp_path / f"cells.{place}")
        assert [path.name for path in tmp_path.iterdir()] == [f"cells.{place}"]
    assert "X_pca" not in adata.obsm
    assert "pca" not in adata.uns


@pytest.mark.parametrize("place", ["backed", "h5ad", "zarr"])
def test_column_major_cells_on_disk_are_refused(tmp_path, place):
    with pytest.raises(ValueError, match=r"must be (CSR|a csr_matrix).* got csc"):
        run(some_cells(layout=sparse.csc_matrix), place, tmp_path, 4)


def test_what_is_no_anndata(tmp_path):
    import h5py
    import zarr

    (tmp_path / "cells.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.h5ad").write_text("a,b\n1,2\n")
    with h5py.File(tmp_path / "other.h5ad", "w") as file:
        file["table"] = np.eye(3)
    with h5py.File(tmp_path / "bare.h5ad", "w") as file:
        file["X"] = np.eye(3)
    zarr.save(tmp_path / "array.zarr", np.eye(5))
    (tmp_path / "empty.zarr").mkdir()
    for name, message in {
        "cells.csv": "must end in .h5ad or .zarr",
        "missing.h5ad": "no such file",
        "text.h5ad": "not a valid .h5ad file",
        "other.h5ad": "must be written by AnnData, and has no X",
        "bare.h5ad": "not a valid .h5ad file",
        "empty.zarr": "not a valid Zarr array",
        "array.zarr": "must be written by AnnData, but is one array",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            single_cell.pca(tmp_path / name)
    with pytest.raises(TypeError, match="got ndarray; wrap an array"):
        single_cell.pca(np.eye(5))
    with pytest.raises(ValueError, match="empty list"):
        single_cell.pca([])
    with pytest.raises(ValueError, match="remote paths are not supported"):
        single_cell.pca("s3://bucket/cells.h5ad")


def test_owners_must_have_the_same_genes_and_mask(tmp_path):
    one, other = some_cells(), some_cells(seed=1)
    with pytest.raises(ValueError, match=r"same genes in the same order.*in another order"):
        single_cell.pca([one, other[:, ::-1].copy()], 4)
    with pytest.raises(ValueError, match="gene59 in one only"):
        single_cell.pca([one, other[:, :59].copy()], 4)
    other.var["highly_variable"] = True
    with pytest.raises(ValueError, match="must select the same genes in all data"):
        single_cell.pca([one, other], 4)
    one.write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(ValueError, match="more than once"):
        single_cell.pca([tmp_path / "cells.h5ad"] * 2, 4)


def test_an_object_given_twice_is_refused():
    adata = some_cells()
    with pytest.raises(ValueError, match="data must be given once"):
        single_cell.pca([adata, adata], 4)
    assert not adata.obsm


def test_cells_must_be_real_numbers():
    for dtype in (object, complex):
        adata = some_cells(layout=np.array)
        adata.X = adata.X.astype(dtype)
        with pytest.raises(ValueError, match=r"cells must be real numbers, got dtype"):
            single_cell.pca(adata, 4)


def test_a_view_of_backed_cells_is_refused_before_it_is_read(tmp_path, monkeypatch):
    some_cells().write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    monkeypatch.setattr(components, "eigsh", None)
    with pytest.raises(ValueError, match=r"must not be a view of backed cells; take \.to_memory\(\)"):
        single_cell.pca(backed[:100], 4)
    backed.file.close()


@pytest.mark.parametrize("place", ["h5ad", "zarr"])
def test_a_read_only_file_is_refused_before_it_is_read(tmp_path, place, monkeypatch):
    path = tmp_path / f"cells.{place}"
    adata = some_cells()
    (adata.write_h5ad if place == "h5ad" else adata.write_zarr)(path)
    path.chmod(0o555)
    monkeypatch.setattr(single_cell.tables.FileTable, "batches", None)
    with pytest.raises(PermissionError, match="must be writable"):
        single_cell.pca(path, 4)
    path.chmod(0o755)


@pytest.mark.parametrize("place", ["h5ad", "zarr"])
def test_a_file_that_changes_meanwhile_is_not_replaced(tmp_path, place, monkeypatch):
    path = tmp_path / f"cells.{place}"
    adata = some_cells()
    (adata.write_h5ad if place == "h5ad" else adata.write_zarr)(path)
    write_rows = stores.write_rows

    changed = next(file for file in [path, *path.rglob("*")] if file.is_file())

    def slow_write(*args):
        write_rows(*args)
        os.utime(changed, ns=(1, 1))

    monkeypatch.setattr(stores, "write_rows", slow_write)
    with pytest.raises(ValueError, match="changed while it was read"):
        single_cell.pca(path, 4)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("place", ["h5ad", "zarr"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, place, monkeypatch):
    path = tmp_path / f"cells.{place}"
    adata = some_cells()
    (adata.write_h5ad if place == "h5ad" else adata.write_zarr)(path)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "write_rows", full)
    with pytest.raises(OSError, match="No space left"):
        single_cell.pca(path, 4)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    read = anndata.read_h5ad if place == "h5ad" else anndata.read_zarr
    assert list(read(path).obsm) == []


KILLED = """
import sys, time
from fedpca.single_cell import pca, stores
write_rows = stores.write_rows
def slow(*args):
    write_rows(*args)
    print("writing", flush=True)
    time.sleep(60)
stores.write_rows = slow
pca(sys.argv[1], 5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["h5ad", "zarr"])
@pytest.mark.long
def test_a_process_killed_while_writing_leaves_the_file_as_it_was(tmp_path, place):
    path = tmp_path / f"cells.{place}"
    adata = some_cells()
    single_cell.pca(adata, 3)
    (adata.write_h5ad if place == "h5ad" else adata.write_zarr)(path)
    with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
    read = anndata.read_h5ad if place == "h5ad" else anndata.read_zarr
    after = read(path)
    assert np.array_equal(after.obsm["X_pca"], adata.obsm["X_pca"])
    assert (after.X != adata.X).sum() == 0
    single_cell.pca(path, 5)
    assert read(path).obsm["X_pca"].shape == (400, 5)


# --- real data, and scanpy ---


@pytest.fixture(scope="module")
def blood_cells():
    """2,700 blood cells, log-normalized, with 2,000 highly variable genes, by scanpy."""
    scanpy = pytest.importorskip("scanpy", reason="in `make test-clients`")
    if "FEDPCA_DATA" not in os.environ:
        pytest.skip("FEDPCA_DATA names no folder with pbmc3k_counts.npz")
    counts = np.load(Path(os.environ["FEDPCA_DATA"]) / "pbmc3k_counts.npz")
    stored = counts["data"].astype(np.float32), counts["indices"], counts["indptr"]
    adata = anndata.AnnData(sparse.csr_matrix(stored, shape=tuple(counts["shape"])))
    adata.var_names = [f"gene{i}" for i in range(adata.n_vars)]
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.pp.filter_genes(adata, min_cells=3)
        adata.layers["counts"] = adata.X.copy()
        scanpy.pp.normalize_total(adata, target_sum=1e4)
        scanpy.pp.log1p(adata)
        scanpy.pp.highly_variable_genes(adata, n_top_genes=2000)
    adata.obs["lab"] = np.random.default_rng(0).choice(["leiden", "lyon", "turin"], adata.n_obs)
    return adata


def correlations(found, expected):
    """Of each component's scores; as scanpy, with signs."""
    return np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(found.T, expected.T, strict=True)])


@pytest.mark.client
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("settings", [{}, {"batch_key": "lab"}, {"layer": "counts", "log_normalize": 1e4}])
def test_fifty_components_of_blood_cells_are_scanpys(tmp_path, blood_cells, settings):
    import scanpy

    ours, theirs = blood_cells.copy(), blood_cells.copy()
    scanpy.pp.pca(theirs, n_comps=50)
    ours = run(ours, "h5ad", tmp_path, 50, **settings)
    assert correlations(ours.obsm["X_pca"], theirs.obsm["X_pca"]).min() > 0.9999
    assert np.abs(ours.varm["PCs"] - theirs.varm["PCs"]).max() < 1e-3
    for name in ("variance", "variance_ratio"):
        assert np.allclose(ours.uns["pca"][name], theirs.uns["pca"][name], rtol=1e-4)
    assert dict(theirs.uns["pca"]["params"]).items() <= dict(ours.uns["pca"]["params"]).items()
    for place in ("obsm", "varm", "uns"):
        assert set(getattr(ours, place)) == set(getattr(theirs, place))


@pytest.mark.client
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_genes_of_blood_cells_are_scanpys(blood_cells):
    import scanpy

    ours, theirs = blood_cells.copy(), blood_cells.copy()
    scanpy.pp.pca(theirs, n_comps=50, mask_var=None)
    single_cell.pca(ours, 50, mask_var=None)
    assert ours.n_vars > components._MAX_GENES_AT_ONCE
    assert correlations(ours.obsm["X_pca"], theirs.obsm["X_pca"]).min() > 0.999


@pytest.mark.client
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_neighbors_and_plots_of_scanpy_follow(blood_cells):
    import matplotlib
    import scanpy

    matplotlib.use("Agg")
    ours, theirs = blood_cells.copy(), blood_cells.copy()
    single_cell.pca(ours)
    scanpy.pp.pca(theirs)
    for adata in (ours, theirs):
        scanpy.pp.neighbors(adata)
    assert abs(ours.obsp["distances"] - theirs.obsp["distances"]).max() < 0.1
    scanpy.tl.umap(ours)
    assert np.isfinite(ours.obsm["X_umap"]).all()
    scanpy.pl.pca_variance_ratio(ours, show=False)
    scanpy.pl.pca_loadings(ours, show=False)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["h5ad", "zarr"])
@pytest.mark.long
def test_memory_does_not_grow_with_the_cells(tmp_path, place):
    """120,000 cells of 500 genes are 240 MB."""
    path = tmp_path / f"cells.{place}"
    rng = np.random.default_rng(0)
    small = rng.poisson(0.5, size=(6000, 500)).astype(np.float32)
    adata = anndata.AnnData(np.tile(small, (20, 1)))
    (adata.write_h5ad if place == "h5ad" else adata.write_zarr)(path)
    code = (
        "import resource, sys, anndata, fedpca.single_cell as s\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "s.pca(sys.argv[1], 10)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    kilobytes = int(ran.stdout) * (1 if sys.platform == "linux" else 1 / 1024)
    assert kilobytes < 150_000
