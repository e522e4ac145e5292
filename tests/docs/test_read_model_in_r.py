"""examples/read_model.R, a reader written from docs/reference/model-file.md, gives the scores of fedpca."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import subspace_angles

import fedpca

pytestmark = pytest.mark.client
READER = Path(__file__).parents[2] / "examples" / "read_model.R"
NAMES = ["length", "width", "depth", "weight", "age"]


@pytest.fixture(scope="module")
def rscript():
    program = shutil.which("Rscript")
    if (
        program is None
        or subprocess.run([program, "-e", "library(jsonlite)"], capture_output=True).returncode
    ):
        pytest.skip("Rscript with jsonlite is not installed")
    return program


def some_rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5)) * [1.0, 5.0, 20.0, 1.0, 3.0] + 40.0


def scores_by_r(rscript, folder, rows):
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g")
    command = [rscript, READER, "model.safetensors", "rows.csv", "scores.csv"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return np.loadtxt(folder / "scores.csv", delimiter=",")


@pytest.mark.parametrize("kind", ["Subspace", "Moments"])
@pytest.mark.parametrize("scale", [None, "std", [1.0, 2.0, 3.0, 4.0, 5.0]])
@pytest.mark.parametrize("center", [True, False])
def test_scores_are_those_of_fedpca(rscript, tmp_path, kind, scale, center):
    rows = some_rows()
    summary = getattr(fedpca, kind).from_rows(rows, scale=scale, center=center).with_about(names=NAMES)
    summary.save(tmp_path / "model.safetensors")
    found, expected = scores_by_r(rscript, tmp_path, rows), summary.subspace().project(rows)
    signs = np.sign(np.sum(found * expected, axis=0))
    assert np.abs(found * signs - expected).max() < 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize("scale", ["std", "binomial"])
def test_a_scale_of_rows_with_gaps_and_a_constant_feature(rscript, tmp_path, scale):
    rng = np.random.default_rng(0)
    rows = rng.binomial(2, [0.1, 0.5, 0.3, 0.0, 0.4], size=(300, 5)).astype(float)
    gappy = np.where(rng.uniform(size=rows.shape) < 0.2, np.nan, rows)
    for some in (rows, gappy):
        with pytest.warns(UserWarning, match="weight"):  # which does not vary
            pca = fedpca.StreamingPCA(3, scale=scale).fit(fedpca.readers.Batch(some, tuple(NAMES)))
        assert isinstance(pca.summary_, fedpca.Moments)
        pca.summary_.save(tmp_path / "model.safetensors")
        found = scores_by_r(rscript, tmp_path, rows)[:, :3]
        expected = pca.subspace_.truncate(3).project(rows)
        signs = np.sign(np.sum(found * expected, axis=0))
        assert np.abs(found * signs - expected).max() < 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize("n_features", [1, 5])
def test_one_row_one_feature_and_other_columns(rscript, tmp_path, n_features):
    rows, names = some_rows(), NAMES[:n_features]
    subspace = fedpca.Subspace.from_rows(rows[:, :n_features], 1).with_about(names=names)
    subspace.save(tmp_path / "model.safetensors")
    (tmp_path / "rows.csv").write_text(
        f"who,{','.join(NAMES)}\nx,{','.join(map(str, rows[0].tolist()))}\n"  # of which some are no features
    )
    command = [rscript, READER, "model.safetensors", "rows.csv", "scores.csv"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / "scores.csv"), subspace.project(rows[:1, :n_features])[0, 0]
    )
    (tmp_path / "rows.csv").write_text("width\n1\n")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "the rows lack features of the model: length" in ran.stderr


def test_float32_and_files_of_the_command_line(rscript, tmp_path):
    pytest.importorskip("pyarrow", reason="the cli extra")
    from command_line import invoke

    rows = some_rows()
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header=",".join(NAMES), comments="")
    command = ["fit", str(tmp_path / "rows.csv"), "-n", "2", "-o", str(tmp_path / "model.safetensors")]
    assert invoke(command).exit_code == 0
    assert scores_by_r(rscript, tmp_path, rows).shape == (300, 2)
    subspace = fedpca.Subspace.from_rows(rows.astype(np.float32), rank=2).with_about(names=NAMES)
    assert subspace.components.dtype == np.float32
    subspace.save(tmp_path / "model.safetensors")
    found = scores_by_r(rscript, tmp_path, rows)
    assert np.degrees(subspace_angles(found, subspace.project(rows))).max() < 1e-3
