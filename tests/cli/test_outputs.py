"""What the command line writes: scores and loadings, in the formats that other programs read."""

import gzip
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from bed_reader import to_bed
from command_line import invoke
from scipy import sparse
from test_cli import NAMES, numbers, run, run_fails, run_json, run_misused, run_ok, write_csv, write_parquet

from fedpca import StreamingPCA, load
from fedpca.readers import RowReader

pytestmark = pytest.mark.slow  # all of it together

ENDINGS = [".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".npy", ".h5ad", ".eigenvec"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(fork):
    """Starts a command in a process of its own."""
    return partial(fork, "from fedpca.cli import main; main()")


@pytest.fixture
def people(folder):
    """Rows with ids and other columns in people.parquet, their model of two components, and its scores."""
    rows = numbers()
    others = {
        "id": [f"p{i}" for i in range(300)],
        "ward": ["B", "A", None] * 100,
        "visits": [1, None, 3] * 100,
        "smokes": [True, None, False] * 100,
        "age": np.linspace(20.0, 80.0, 300),
        "born": np.arange(300).astype("datetime64[D]"),
    }
    write_parquet("people.parquet", rows, **others)
    run_ok("fit", "people.parquet", "--columns", ",".join(NAMES), "-n", 2, "-o", "m.safetensors")
    return StreamingPCA(2).fit(rows).transform(rows)


def transform(out, *options):
    return run_ok("transform", "m.safetensors", "people.parquet", "--batch-rows", 64, "-o", out, *options)


# --- tables ---


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".tsv.gz"])
def test_scores_as_text_can_be_read_by_others(people, ending):
    assert transform(f"s{ending}", "--keep", "id,ward") == f"s{ending}: 300 rows of 2 components\n"
    table = pd.read_csv(f"s{ending}", sep="\t" if "tsv" in ending else ",")
    assert list(table) == ["id", "ward", "pc1", "pc2"]
    np.testing.assert_allclose(table[["pc1", "pc2"]], people, rtol=1e-12)
    assert table["id"][299] == "p299"
    assert table["ward"].isna().sum() == 100
    if ending.endswith(".gz"):
        gzip.decompress(Path(f"s{ending}").read_bytes())


def test_scores_go_to_standard_output_as_csv_and_nothing_else_does(people):
    transform("s.csv", "--keep", "id")
    assert transform("-", "--keep", "id") == Path("s.csv").read_text()
    assert transform("-", "--keep", "id", "--quiet") == Path("s.csv").read_text()
    assert "--out -" in run_misused("transform", "m.safetensors", "people.parquet", "-o", "-", "--json")
    assert not Path("-").exists()


def test_rows_without_values_are_reported_beside_standard_output(folder):
    rows = numbers()
    write_parquet("people.parquet", rows)
    run_ok("fit", "people.parquet", "-o", "m.safetensors")
    rows[7] = np.nan
    write_parquet("people.parquet", rows)
    result = run("transform", "m.safetensors", "people.parquet", "-o", "-")
    assert result.stdout.count("\n") == 301
    assert result.stderr.endswith("1 row without any value has scores of 0\n")


@pytest.mark.slow
def test_a_reader_that_stops_early_ends_the_command_silently(people):
    program = [sys.executable, "-m", "fedpca", "transform", "m.safetensors", "people.parquet", "-o", "-"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.long
def test_a_full_disk_behind_standard_output_is_an_error(people):
    program = [sys.executable, "-m", "fedpca", "transform", "m.safetensors", "people.parquet", "-o", "-"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert b"No space left on device" in ended.stderr


# --- whitened ---


def test_whitened_scores_are_those_of_the_estimator(people):
    transform("s.npy", "--whiten")
    scores, rows = np.load("s.npy"), numbers()
    np.testing.assert_allclose(scores, StreamingPCA(2, whiten=True).fit(rows).transform(rows), rtol=1e-9)
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1.0)
    transform("s.h5ad", "--whiten")
    cells = anndata.read_h5ad("s.h5ad")
    np.testing.assert_allclose(cells.obsm["X_pca"], scores, rtol=1e-6)
    np.testing.assert_allclose(cells.uns["pca"]["variance"], people.var(axis=0, ddof=1))


# --- .h5ad ---


def test_h5ad_has_scores_loadings_and_variances_where_scanpy_has_them(people):
    transform("s.h5ad", "--keep", "id,ward,visits,smokes,age,born")
    cells, pca = anndata.read_h5ad("s.h5ad"), StreamingPCA(2).fit(numbers())
    assert cells.shape == (300, 4)
    assert cells.X is None
    np.testing.assert_allclose(cells.obsm["X_pca"], people, rtol=1e-6)
    np.testing.assert_allclose(cells.varm["PCs"], pca.components_.T, rtol=1e-9)
    np.testing.assert_allclose(cells.uns["pca"]["variance"], pca.explained_variance_)
    np.testing.assert_allclose(cells.uns["pca"]["variance_ratio"], pca.explained_variance_ratio_)
    assert cells.uns["pca"]["params"] == {"zero_center": True, "use_highly_variable": False}
    assert list(cells.var_names) == NAMES
    assert list(cells.obs_names[:2]) == ["0", "1"]
    before = pd.read_parquet("people.parquet")
    assert list(cells.obs["id"]) == list(before["id"])
    assert list(cells.obs["ward"].cat.categories) == ["A", "B"]
    assert cells.obs["ward"][:3].tolist() == ["B", "A", np.nan]
    assert cells.obs["visits"][:3].tolist() == [1, pd.NA, 3]
    assert cells.obs["smokes"][:3].tolist() == [True, pd.NA, False]
    np.testing.assert_array_equal(cells.obs["age"], before["age"])
    assert cells.obs["born"].iloc[1].startswith("1970-01-02")
    cells.write_h5ad("again.h5ad")


def test_cells_keep_their_names_without_being_asked(folder):
    cells = anndata.AnnData(sparse.csr_array(np.random.default_rng(0).poisson(1.0, (60, 5)).astype(float)))
    cells.obs_names, cells.var_names = [f"c{i}" for i in range(60)], [f"g{i}" for i in range(5)]
    cells.obs["type"] = pd.Categorical(["b", "t", "t"] * 20)
    cells.write_h5ad("cells.h5ad")
    run_ok("fit", "cells.h5ad", "--center", "none", "-n", 2, "-o", "m.safetensors")
    result = run_json("transform", "m.safetensors", "cells.h5ad", "-o", "s.h5ad")
    assert result["columns"] == ["obs_names", "pc1", "pc2"]
    run_ok("transform", "m.safetensors", "cells.h5ad", "--keep", "type", "-o", "t.h5ad")
    scores, typed = anndata.read_h5ad("s.h5ad"), anndata.read_h5ad("t.h5ad")
    assert list(scores.obs_names) == list(cells.obs_names)
    assert list(scores.var_names) == list(cells.var_names)
    assert scores.obsm["X_pca"].dtype == np.float32
    assert not scores.uns["pca"]["params"]["zero_center"]
    assert typed.obs["type"].tolist() == cells.obs["type"].tolist()
    np.testing.assert_array_equal(typed.obsm["X_pca"], scores.obsm["X_pca"])


def test_h5ad_of_rows_without_names(folder):
    np.save("a.npy", numbers())
    run_ok("fit", "a.npy", "-n", 3, "-o", "m.safetensors")
    run_ok("transform", "m.safetensors", "a.npy", "-o", "s.h5ad")
    cells = anndata.read_h5ad("s.h5ad")
    assert list(cells.var_names) == ["feature 1", "feature 2", "feature 3", "feature 4"]
    assert cells.obsm["X_pca"].shape == (300, 3)


def test_without_anndata_it_says_what_to_install(people, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    assert "pip install 'fedpca[single-cell]'" in run_fails(
        folder, "transform", "m.safetensors", "people.parquet", "-o", "s.h5ad"
    )


def test_names_that_h5ad_cannot_have_are_refused(folder):
    write_parquet("people.parquet", numbers(), **{"a/b": [0] * 300})
    run_ok("fit", "people.parquet", "--drop", "a/b", "-o", "m.safetensors")
    assert "a/b" in run_misused(
        "transform", "m.safetensors", "people.parquet", "--keep", "a/b", "-o", "s.h5ad"
    )
    assert not Path("s.h5ad").exists()


# --- .eigenvec ---


def test_genotypes_give_the_files_of_plink_2(folder):
    genotypes = np.random.default_rng(0).binomial(2, 0.4, (50, 8)).astype(float)
    ids = {"fid": [f"f{i // 2}" for i in range(50)], "iid": [f"i{i}" for i in range(50)]}
    to_bed("a.bed", genotypes, properties=ids)
    run_ok("fit", "a.bed", "-n", 3, "-o", "m.safetensors")
    assert run_json("transform", "m.safetensors", "a.bed", "-o", "s.eigenvec")["rows"] == 50
    assert Path("s.eigenvec").read_text().startswith("#FID\tIID\tPC1\tPC2\tPC3\nf0\ti0\t")
    table = pd.read_csv("s.eigenvec", sep=r"\s+")
    assert table["#FID"].tolist() == ids["fid"]
    assert table["IID"].tolist() == ids["iid"]
    rows = genotypes.astype(np.float32)
    pca = StreamingPCA(3).fit(rows)
    np.testing.assert_allclose(np.abs(table[["PC1", "PC2", "PC3"]]), np.abs(pca.transform(rows)), atol=1e-4)
    np.testing.assert_allclose(np.loadtxt("s.eigenval"), pca.explained_variance_, rtol=1e-5)
    run_ok("transform", "m.safetensors", "a.bed", "--keep", "iid", "-o", "t.eigenvec")
    assert Path("t.eigenvec").read_text().startswith("#IID\tPC1\tPC2\tPC3\ni0\t")


def test_eigenvec_needs_one_or_two_ids_without_spaces(people, folder):
    line = ["transform", "m.safetensors", "people.parquet", "-o", "s.eigenvec"]
    before = sorted(folder.iterdir())
    assert "--keep" in run_misused(*line)
    assert "--keep" in run_misused(*line, "--keep", "id,ward,age")
    assert "ward" in run_fails(folder, *line, "--keep", "ward")
    assert sorted(folder.iterdir()) == before


def test_ids_named_like_scores_are_refused(folder):
    write_parquet("a.parquet", numbers(), pc1=[f"p{i}" for i in range(300)])
    run_ok("fit", "a.parquet", "--drop", "pc1", "-o", "m.safetensors")
    for out in ("s.eigenvec", "s.csv"):
        assert "pc1" in run_misused("transform", "m.safetensors", "a.parquet", "--keep", "pc1", "-o", out)
    run_ok("transform", "m.safetensors", "a.parquet", "--keep", "pc1", "-o", "s.h5ad")
    assert anndata.read_h5ad("s.h5ad").obs["pc1"].iloc[1] == "p1"


def test_neither_of_the_two_files_is_overwritten_without_force(people, folder):
    line = ["transform", "m.safetensors", "people.parquet", "--keep", "id", "-o", "s.eigenvec"]
    Path("s.eigenval").write_text("mine")
    assert "s.eigenval already exists" in run_fails(folder, *line)
    run_ok(*line, "--force")
    assert len(np.loadtxt("s.eigenval")) == 2


# --- nothing half-written ---


@pytest.mark.parametrize("ending", ENDINGS)
def test_rows_that_cannot_be_read_leave_no_output(folder, ending):
    write_csv("a.csv", numbers(), names=["iid", *NAMES[1:]])
    run_ok("fit", "a.csv", "--drop", "iid", "-o", "m.safetensors")
    with open("a.csv", "a") as file:
        file.write("1,2,3\n")
    run_fails(folder, "transform", "m.safetensors", "a.csv", "-o", f"s{ending}", "--batch-rows", 10)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_disk_leaves_no_output(folder, ending):
    resource = pytest.importorskip("resource")
    write_csv("a.csv", numbers(), names=["iid", *NAMES[1:]])
    run_ok("fit", "a.csv", "--drop", "iid", "-o", "m.safetensors")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        run_fails(folder, "transform", "m.safetensors", "a.csv", "-o", f"s{ending}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interrupt_leaves_no_output(folder, ending, monkeypatch):
    write_csv("a.csv", numbers(), names=["iid", *NAMES[1:]])
    run_ok("fit", "a.csv", "--drop", "iid", "-o", "m.safetensors")
    batches = RowReader.batches

    def interrupted(rows, skip=0):
        yield from batches(rows, skip)
        raise KeyboardInterrupt

    monkeypatch.setattr(RowReader, "batches", interrupted)
    result = run("transform", "m.safetensors", "a.csv", "-o", f"s{ending}")
    assert (result.exit_code, result.stderr) == (130, "fedpca: stopped.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "m.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".csv.gz", ".eigenvec"])
def test_a_stopped_transform_leaves_no_output(shell, folder, ending):
    rows = numbers(100_000)
    write_parquet("a.parquet", rows, iid=np.arange(len(rows)))
    run_ok("fit", "a.parquet", "--drop", "iid", "-o", "m.safetensors")
    process = shell("transform", "m.safetensors", "a.parquet", "--batch-rows", 1, "-o", f"s{ending}")
    while not list(folder.glob(".fedpca-*.part")):
        assert process.is_running(), process.wait()
        time.sleep(0.05)
    process.kill(signal.SIGINT)
    assert process.wait() == (130, "", "fedpca: stopped.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["a.parquet", "m.safetensors"]


# --- inspect ---


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_loadings_and_spectrum_are_written_as_tables(people, ending):
    plain = run_ok("inspect", "m.safetensors")
    options = ["--loadings", f"l{ending}", "--spectrum", f"s{ending}"]
    assert run_ok("inspect", "m.safetensors", *options) == f"{plain}\nwritten: l{ending}, s{ending}\n"
    sep = "\t" if ending == ".tsv" else ","
    read = pd.read_parquet if ending == ".parquet" else partial(pd.read_csv, sep=sep)
    loadings, spectrum = read(f"l{ending}"), read(f"s{ending}")
    pca = StreamingPCA(2).fit(numbers())
    assert list(loadings) == ["feature", "mean", "pc1", "pc2"]
    assert list(loadings["feature"]) == NAMES
    np.testing.assert_allclose(loadings["mean"], numbers().mean(axis=0))
    np.testing.assert_allclose(loadings[["pc1", "pc2"]], pca.components_.T, rtol=1e-9)
    assert list(spectrum["component"]) == [1, 2]
    np.testing.assert_allclose(spectrum["explained_variance"], pca.explained_variance_)
    np.testing.assert_allclose(spectrum["explained_variance_ratio"], pca.explained_variance_ratio_)
    np.testing.assert_allclose(spectrum["cumulative"], pca.explained_variance_ratio_.cumsum())


def test_features_without_names_have_numbers_in_the_table_of_loadings(folder):
    np.save("a.npy", numbers())
    run_ok("fit", "a.npy", "-n", 1, "-o", "m.safetensors")
    run_json("inspect", "m.safetensors", "--loadings", "l.csv")
    assert pd.read_csv("l.csv")["feature"].tolist() == [f"feature {i}" for i in (1, 2, 3, 4)]


def test_a_model_without_components_has_means_only(folder):
    write_csv("a.csv", np.ones((20, 4)))
    run_ok("fit", "a.csv", "-o", "m.safetensors")
    run_ok("inspect", "m.safetensors", "--loadings", "l.csv", "--spectrum", "s.csv")
    assert list(pd.read_csv("l.csv")) == ["feature", "mean"]
    assert len(pd.read_csv("s.csv")) == 0


def test_tables_of_a_model_are_refused_before_any_is_written(people, folder):
    line = ["inspect", "m.safetensors", "--loadings"]
    before = sorted(folder.iterdir())
    assert ".csv" in run_misused(*line, "l.npy")
    assert ".csv" in run_misused(*line, "-")
    assert "two files" in run_misused(*line, "l.csv", "--spectrum", "l.csv")
    assert sorted(folder.iterdir()) == before
    Path("s.csv").write_text("mine")
    assert "s.csv already exists" in run_fails(folder, *line, "l.csv", "--spectrum", "s.csv")
    run_ok(*line, "l.csv", "--spectrum", "s.csv", "--force")
    assert Path("s.csv").read_text().startswith('"component"')


def test_a_minus_as_a_value_is_itself(folder):
    Path("t.csv").write_text("a,b\n1,-\n2,3\n4,9\n-,1\n")
    run("fit", "t.csv", "--na-values", "-", "-o", "m.safetensors")
    Path("u.csv").write_text(Path("t.csv").read_text().replace("-", ""))
    run("fit", "u.csv", "-o", "u.safetensors")
    assert load("m.safetensors") == load("u.safetensors")
    assert "'-'" in run_fails(folder, "fit", "t.csv", "--columns", "-", "-o", "n.safetensors")
    assert "unexpected argument: -." in run_misused("inspect", "m.safetensors", "-")


@pytest.mark.parametrize(
    "arguments",
    [
        ["transform", "m.safetensors", "t.csv", "-o", "s.csv", "-n", "1.6"],
        ["fit", "t.csv", "--jobs", "1.5"],
        ["audit", "--runs", "0x10"],
        ["simulate", "--seed", "-"],
    ],
)
def test_decimals_are_no_integers(folder, arguments):
    assert f"must be an integer, got '{arguments[-1]}'" in run_misused(*arguments)


def test_help_before_or_after_a_command_is_the_same():
    before, after = invoke(["--help", "fit"]), invoke(["fit", "--help"])
    assert "--policy, a model" in after.stdout
    assert before.stdout == after.stdout
