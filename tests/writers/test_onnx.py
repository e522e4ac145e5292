"""Exported models give, in onnxruntime, the scores that `transform` gives."""

import json

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca.writers import write_onnx

onnx = pytest.importorskip("onnx", reason="the onnx extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="runs what is exported")
pytestmark = pytest.mark.client

ROUNDING = {"float32": 2e-6, "float64": 1e-14}
FITS = {"float32": 2e-6, "float64": 1e-12}  # of two algorithms that find the components


def some_rows(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(400, 12)) @ rng.normal(size=(12, 12)) + np.arange(12.0)


def run(path, rows):
    session = onnxruntime.InferenceSession(path)
    return session.run(None, {"rows": rows})[0], session.get_modelmeta()


def assert_close(scores, expected, dtype, tolerance=ROUNDING):
    assert scores.dtype == dtype
    assert scores.shape == expected.shape
    assert np.abs(scores - expected).max() <= tolerance[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("whiten", [False, True])
def test_scores_are_those_of_scikit_learn(tmp_path, dtype, scale, whiten):
    rows = some_rows()
    units = StandardScaler().fit(rows).scale_ if scale else 1.0
    reference = PCA(5, whiten=whiten, svd_solver="full").fit(rows / units)
    pca = fedpca.StreamingPCA(5, scale=scale, whiten=whiten).fit(rows)
    write_onnx(pca, tmp_path / "model.onnx", dtype=dtype)
    scores, _ = run(tmp_path / "model.onnx", rows.astype(dtype))
    signs = np.sign(np.sum(reference.components_ * pca.components_, axis=1))
    assert_close(scores, reference.transform(rows / units) * signs, dtype, FITS)
    assert_close(scores, pca.transform(rows), dtype)


@pytest.mark.parametrize("n_rows", [1, 7])
def test_any_number_of_rows(tmp_path, n_rows):
    pca = fedpca.StreamingPCA(3, center=False).fit(some_rows())
    write_onnx(pca, tmp_path / "model.onnx", dtype="float64")
    rows = some_rows(seed=1)[:n_rows]
    assert_close(run(tmp_path / "model.onnx", rows)[0], rows @ pca.components_.T, "float64")


@pytest.mark.parametrize("kind", ["Subspace", "Moments"])
def test_a_summary_as_fedpca_loads_it(tmp_path, kind):
    rows = some_rows()
    summary = getattr(fedpca, kind).from_rows(rows).with_about(names=[f"f{i}" for i in range(12)])
    summary.save(tmp_path / "model.safetensors")
    write_onnx(
        fedpca.load(tmp_path / "model.safetensors"), tmp_path / "model.onnx", n_components=4, dtype="float64"
    )
    scores, meta = run(tmp_path / "model.onnx", rows)
    assert_close(scores, summary.subspace().truncate(4).project(rows), "float64")
    facts = meta.custom_metadata_map
    assert facts["fedpca_version"] == fedpca.__version__
    assert json.loads(facts["feature_names"]) == [f"f{i}" for i in range(12)]
    assert len(json.loads(facts["explained_variance_ratio"])) == 4
    assert "certificate" not in facts


def test_the_certificate_of_a_private_model_goes_with_it(tmp_path):
    privacy = fedpca.Privacy(epsilon=8.0, delta=1e-6, bound=20.0)
    pca = fedpca.PrivatePCA(2, **privacy.settings).fit(np.repeat(some_rows(), 50, axis=0))
    write_onnx(pca, tmp_path / "model.onnx")
    _, meta = run(tmp_path / "model.onnx", some_rows().astype("float32"))
    assert json.loads(meta.custom_metadata_map["certificate"]) == pca.subspace_.certificate.to_json()


def test_a_feature_that_no_row_knows_adds_nothing(tmp_path):
    rows = some_rows()
    rows[:, 3] = np.nan
    with pytest.warns(UserWarning, match="feature 4 has no observed value"):
        pca = fedpca.StreamingPCA(2).fit(rows)
    write_onnx(pca, tmp_path / "model.onnx", dtype="float64")
    later = some_rows(seed=2)
    assert_close(run(tmp_path / "model.onnx", later)[0], pca.transform(later), "float64")


def test_the_file_is_valid_and_readable_by_old_runtimes(tmp_path):
    write_onnx(fedpca.Subspace.from_rows(some_rows(), rank=2), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Sub", "MatMul"]
    assert model.opset_import[0].version == 13


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 13}, "n_components must be at most 12, got 13"),
        ({"n_components": 0}, "n_components"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64', got 'float16'"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        write_onnx(fedpca.Subspace.from_rows(some_rows()), tmp_path / "model.onnx", **settings)
    assert list(tmp_path.iterdir()) == []


def test_bad_models_and_paths_are_rejected(tmp_path):
    with pytest.raises(TypeError, match="model must be a fitted PCA, a Subspace or Moments, got ndarray"):
        write_onnx(np.eye(3), tmp_path / "model.onnx")
    summary = fedpca.Subspace.from_rows(some_rows())
    with pytest.raises(FileNotFoundError, match=r"cannot write .*model.onnx: there is no folder"):
        write_onnx(summary, tmp_path / "none" / "model.onnx")
    with pytest.raises(IsADirectoryError, match="it is a folder; choose another name"):
        write_onnx(summary, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_numbers_too_large_for_float32_are_rejected(tmp_path):
    summary = fedpca.Subspace.from_rows(some_rows() * 1e100)
    with pytest.raises(ValueError, match=r"mean of the model must fit dtype='float32'.*float64"):
        write_onnx(summary, tmp_path / "model.onnx")
    write_onnx(summary, tmp_path / "model.onnx", dtype="float64")


def test_the_command(tmp_path):
    from command_line import invoke

    pytest.importorskip("pyarrow", reason="the cli extra")
    rows = some_rows()
    np.save(tmp_path / "rows.npy", rows)
    model, out = str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx")
    assert invoke(["fit", str(tmp_path / "rows.npy"), "-n", "3", "-o", model]).exit_code == 0
    ended = invoke(["export", model, "--onnx", out, "--whiten", "--dtype", "float64"])
    assert ended.exit_code == 0, ended.output
    assert ended.output == f"{out}: 3 components of 12 features\n"
    whitened = fedpca.StreamingPCA(3, whiten=True).fit(rows)
    assert_close(run(out, rows)[0], whitened.transform(rows), "float64")
    again = invoke(["export", model, "--onnx", out])
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    more = invoke(["export", model, "--onnx", out, "-n", "13", "--force"])
    assert (more.exit_code, "--components must be at most 12" in more.output) == (1, True)
    ended = invoke(["export", model])
    assert (ended.exit_code, "--onnx model.onnx" in ended.output) == (2, True)
