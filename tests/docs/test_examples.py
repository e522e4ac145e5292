"""Every example runs in an empty folder and keeps its promise; so does its code on real data.

`examples/flower/run_loopback.py` is what the tests of the Flower deployment are made of.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from bed_reader import to_bed
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize
from sklearn.utils.sparsefuncs import mean_variance_axis

import fedpca
from fedpca.metrics import captured_variance

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run_example(tmp_path):
    """What an example prints, run in an empty folder."""

    def run(name, *arguments):
        command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *arguments]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"MPLCONFIGDIR": str(tmp_path), "PYTHONPATH": path}
        work = tmp_path / "work"
        work.mkdir()
        ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        return ended.stdout

    return run


@pytest.fixture
def example(monkeypatch):
    """An example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return import_module


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def assert_on_page(printed, page):
    """The page shows what the example prints."""
    assert printed in (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")


@pytest.mark.docs
def test_demo(run_example, tmp_path):
    printed = run_example("demo", tmp_path / "demo")
    shares = dict(re.findall(r"^(.*?)  +\d+ images, captures +([\d.]+)%", printed, re.MULTILINE))
    assert float(shares["merged"]) > 99.9
    assert float(shares["owner of 0-3"]) < float(shares["merged, private, epsilon = 4"]) < 100
    assert (tmp_path / "demo" / "index.html").stat().st_size > 100_000


@pytest.mark.docs
def test_bigger_than_memory(run_example):
    printed = run_example("bigger_than_memory")
    assert number(r"fitted in (\d+) MB", printed) < number(r"^(\d+) MB", printed) / 2
    assert number(r"resumed: ([\d.]+) degrees", printed) < 0.01
    assert "scores of 600000 rows" in printed


@pytest.mark.docs
def test_private_release(run_example, tmp_path):
    printed = run_example("private_release", tmp_path)
    assert printed.count("a second release is refused") == 3
    assert number(r"directions of all rows: ([\d.]+)", printed) > 0.97
    release = fedpca.load(tmp_path / "north.safetensors")
    assert release.certificate.private
    assert release.certificate.epsilon == 1.0


@pytest.mark.docs
def test_sensors(run_example):
    printed = run_example("sensors")
    assert_on_page(printed, "sensors.md")
    assert re.findall(r"pump (\d+): \d+ alarms from hour (\d+) on; it broke in hour (\d+)", printed) == [
        ("7", "150", "150")
    ]


@pytest.mark.slow
def test_a_sensor_that_breaks_goes_unnoticed_in_all_that_drift_has_passed_through(example):
    sensors = example("sensors")
    watch = sensors.Watch(forget=1.0)
    assert not any(watch.see(rows) for rows in sensors.pump(7, sensors.FAULT))


@pytest.mark.docs
def test_biobanks(run_example):
    printed = run_example("biobanks")
    assert_on_page(printed, "ancestry.md")
    assert number(r"all founders: ([\d.]+)", printed) > 0.99
    assert number(r"pooled genotypes: ([\d.]+) degrees", printed) < 1


def test_biobanks_that_count_different_alleles_do_not_merge(example, rng, tmp_path):
    beds = [tmp_path / "north.bed", tmp_path / "south.bed"]
    for bed, alleles in zip(beds, ("ACGTA", "ATGTA"), strict=True):
        genotypes = rng.binomial(2, 0.5, size=(50, 5)).astype(float)
        to_bed(bed, genotypes, properties={"sid": [f"rs{i}" for i in range(5)], "allele_1": [*alleles]})
    with pytest.raises(ValueError, match="only one has 'rs1_C', and only another 'rs1_T'"):
        example("biobanks").federated(beds)


@pytest.mark.docs
def test_single_cell(run_example, tmp_path):
    anndata = pytest.importorskip("anndata")
    printed = run_example("single_cell", tmp_path)
    assert_on_page(printed, "single-cell.md")
    assert number(r"of all cells: ([\d.]+)", printed) > 0.995
    cells = anndata.read_h5ad(tmp_path / "turin.h5ad")
    # What is in the file hangs together: scores are what loadings make of the counts that are still there.
    rows = cells.X.toarray()
    rows = np.log1p(rows / rows.sum(axis=1, keepdims=True) * 1e4)
    scores, loadings = cells.obsm["X_pca"], cells.varm["PCs"]
    np.testing.assert_allclose((rows[1:] - rows[0]) @ loadings, scores[1:] - scores[0], atol=1e-3)
    assert np.any(loadings, axis=1).sum() == cells.var["highly_variable"].sum() == 500
    assert cells.uns["pca"]["variance"].shape == (20,)


# --- on real data ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["motes-light", "motes-voltage"])
def test_a_broken_mote_is_noticed_and_nothing_before(example, real_data, rng, name):
    rows = real_data(name).rows.astype(float)
    rows[rows == 0] = np.nan  # readings that were lost
    batches = np.array_split(rows, 80)
    broken = [batch.copy() for batch in batches]
    for batch in broken[60:]:
        batch[:, 10] += 4 * np.nanstd(rows[:, 10]) * rng.normal(size=len(batch))
    alarms = []
    for stream in (batches, broken):
        watch = example("sensors").Watch(learn=24)
        alarms.append([place for place, batch in enumerate(stream) if watch.see(batch)])
    healthy, noticed = alarms
    assert len(healthy) <= 1
    assert noticed[0] == 60


@pytest.mark.slow
def test_a_fleet_of_phones_knows_more_than_each(real_data):
    """Of users who were not there the others' merged model tells more than that of most single users."""
    data = real_data("wisdm")
    rows = data.rows / np.maximum(np.nanstd(data.rows, axis=0), 1e-12)  # features of many sizes
    models = {
        user: fedpca.StreamingPCA(5, forget=0.99).fit(rows[data.clients == user]).subspace_
        for user in np.unique(data.clients)
    }
    newcomers = list(models)[:5]
    fleet = fedpca.merge([model for user, model in models.items() if user not in newcomers], rank=5)
    for user in newcomers:
        theirs = rows[data.clients == user]
        theirs = np.where(np.isnan(theirs), np.nanmean(rows, axis=0), theirs)
        alone = [captured_variance(models[other].truncate(5), theirs) for other in models if other != user]
        assert captured_variance(fleet, theirs) > np.median(alone)


@pytest.mark.slow
@pytest.mark.parametrize("biobanks", ["one per population", "three at random"])
def test_biobanks_of_the_hapmap_tell_continents_apart(example, real_data, rng, biobanks):
    people = real_data("hapmap")
    population = people.clients.astype(str)
    biobank = population if biobanks == "one per population" else rng.integers(3, size=len(population))
    continent = np.where(np.isin(population, ["HCB", "JPT"]), "Asia", population)
    captured, angle, _, apart, pooled = example("hapmap").compare(
        people.rows.astype(float), biobank, continent, oversample=40
    )
    assert captured > 0.999
    assert angle < 1
    assert apart == pytest.approx(pooled, abs=0.01)
    assert apart > 0.9


@pytest.mark.docs
@pytest.mark.slow
def test_five_biobanks_on_the_command_line(run_example, real_data):
    real_data("hapmap")  # skips without
    printed = run_example("five_biobanks")
    assert number(r"first 2 components and those of all genotypes: ([\d.]+)°", printed) < 2
    assert number(r"first 4 components and those of all genotypes: ([\d.]+)°", printed) < 5
    assert number(r"directions: ([\d.]+)", printed) > 0.999
    apart, pooled = map(float, re.search(r"continents: ([\d.]+), pooled ([\d.]+)", printed).groups())
    assert apart == pytest.approx(pooled, abs=0.005)
    assert number(r"imported, beijing: scores differ by at most (\S+)", printed) < 0.01
    if shutil.which("plink2"):
        assert number(r"missing genotypes by ([\d.]+) units of the sixth digit", printed) <= 0.5  # all digits
    slopes = {
        how: [float(slope) for slope in found.split()]
        for how, found in re.findall(r"left out, (\w+): (.*)", printed)
    }
    assert max(slopes["plain"]) < 0.98
    np.testing.assert_allclose(slopes["asymptotic"], 1.0, atol=0.02)


@pytest.mark.slow
@pytest.mark.long
def test_labs_with_parts_of_pbmc3k_find_what_all_cells_show(example, real_data):
    pytest.importorskip("anndata")
    pbmc3k = example("pbmc3k")
    counts = real_data("pbmc3k").rows
    labs = pbmc3k.labs(counts)

    cells = normalize(sparse.csr_matrix(counts, dtype=float), norm="l1") * 1e4
    cells.data = np.log1p(cells.data)
    together = sparse.csr_matrix(sparse.vstack(labs))
    most = np.sort(mean_variance_axis(cells, axis=0)[1])[-pbmc3k.GENES :]
    np.testing.assert_allclose(np.sort(mean_variance_axis(together, axis=0)[1]), most, rtol=1e-4)

    pooled = PCA(20, svd_solver="covariance_eigh").fit(together.toarray())
    captured, angles = pbmc3k.compare(labs, pooled, tracker="exact", oversample=200)
    assert captured > 0.998
    assert angles[0] < 1


@pytest.mark.client
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scanpy_finds_neighbors_from_our_components(example, capsys, real_data):
    pytest.importorskip("scanpy", reason="in `make test-clients`")
    real_data("pbmc3k")  # skips without
    ours, theirs = example("scanpy_umap").main()
    assert abs(ours.obsp["distances"] - theirs.obsp["distances"]).max() < 0.1
    assert_on_page(capsys.readouterr().out, "single-cell.md")
