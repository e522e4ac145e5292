"""What several parts of the library say about the same thing is the same."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
from command_line import invoke

import fedpca
from fedpca import Subspace
from fedpca.report import write_report
from fedpca.writers import write_onnx

FLIPPED = Subspace([[-1.0, 0.0]], [2.0], [0.0, 0.0], 9, 5.0, True)
ROW = np.array([[3.0, 4.0]])


def cli(*arguments):
    result = invoke(arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def transformed(folder, model, rows, n_components=1):
    """The scores that the command line gives of rows."""
    path, table = folder / "model.safetensors", folder / "rows.csv"
    model.save(path)
    names = model.feature_names or [f"x{i}" for i in range(rows.shape[1])]
    with table.open("w", newline="") as file:
        cells = [["" if np.isnan(value) else repr(float(value)) for value in row] for row in rows]
        csv.writer(file).writerows([names, *cells])
    text = cli("transform", path, table, "-n", n_components, "--out", "-")
    return np.array([list(map(float, line.split(","))) for line in text.splitlines()[1:]])


def plotted(model, rows):
    """The points of rows in a plot of scores, in the order of the first component."""
    points = np.concatenate([line.get_xydata() for line in fedpca.plot.scores(model, rows).lines])
    return points[np.argsort(points[:, 0])]


def page_data(path):
    return json.loads(
        re.search(r'<script type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)[1]
    )


def column(data, table, name):
    """A column of a table of the page, as it is shown."""
    found = next(each for each in data["tables"][table]["columns"] if each["name"] == name)
    return found["values"] if "values" in found else [found["texts"][code] for code in found["codes"]]


def paired(data, name):
    """A column of the table of features, by feature."""
    return dict(zip(column(data, "features", "feature"), column(data, "features", name), strict=True))


@pytest.mark.slow
def test_scores_have_the_sign_of_the_model(tmp_path):
    assert FLIPPED.project(ROW).tolist() == [[-3.0]]
    assert transformed(tmp_path, FLIPPED, ROW).tolist() == [[-3.0]]
    points = plotted(FLIPPED, ROW)
    assert points[0, 0] == -3.0
    data = page_data(write_report(tmp_path / "page.html", FLIPPED, rows=ROW))
    assert column(data, "rows", "component 1") == [-3]
    loadings = paired(data, "loading on 1")
    assert loadings["feature 1"] == -1


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
@pytest.mark.parametrize("gaps", [False, True])
def test_scores_by_a_saved_model_are_those_of_its_estimator(rng, tmp_path, tracker, gaps):
    rows = rng.normal(size=(300, 40)) * np.linspace(5, 0.1, 40) + 3
    pca = fedpca.StreamingPCA(3, tracker=tracker).fit(rows)
    some = rows[:20].copy()
    if gaps:
        some[rng.random(some.shape) < 0.1] = np.nan
    expected = pca.transform(some)
    # An exact fit knows the variance of each feature, which helps to bridge gaps; its moments do, too.
    model = pca.summary_ if tracker == "exact" else pca.subspace_
    written = transformed(tmp_path, model, some, 3)
    np.testing.assert_allclose(written, expected, atol=1e-9 * np.abs(expected).max())
    if tracker == "nystrom" or not gaps:
        in_order = expected[np.argsort(expected[:, 0]), :2]
        np.testing.assert_allclose(plotted(model, some), in_order, atol=1e-9 * np.abs(expected).max())


def test_gaps_are_bridged_beside_a_direction_of_hardly_any_variance(rng):
    rows = rng.normal(size=(200, 12)) * np.linspace(6, 1, 12)
    model = Subspace.from_rows(rows)
    lengths = np.r_[model.singular_values[:5], 1e-9 * model.singular_values[0]]
    ranks = (6, 5)
    faint, known = (
        Subspace(model.components[:r], lengths[:r], model.mean, 200, model.total, True) for r in ranks
    )
    some = rows[:20].copy()
    some[:, 2] = np.nan
    expected = plotted(known, some)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(plotted(faint, some), expected, atol=0.1 * np.abs(expected).max())


@pytest.mark.slow
def test_variances_have_one_divisor(rng, tmp_path):
    rows = rng.normal(size=(30, 4)) * [4, 3, 2, 1]
    pca = fedpca.StreamingPCA(2).fit(rows, sample_weight=np.full(30, 0.05))
    variances = pca.explained_variance_
    assert pca.subspace_.count == pytest.approx(1.5)
    path = tmp_path / "model.safetensors"
    pca.subspace_.truncate(2).save(path)
    np.testing.assert_allclose(json.loads(cli("inspect", path, "--json"))["explained_variance"], variances)
    data = page_data(write_report(tmp_path / "page.html", pca))
    shown = paired(data, "variance")
    true = 0.05 * np.sum((rows - rows.mean(axis=0)) ** 2, axis=0) / (1.5 - 1)
    np.testing.assert_allclose([shown[f"feature {j}"] for j in range(1, 5)], true, rtol=1e-2)
    cli("transform", path, _csv(tmp_path, rows), "--whiten", "-o", tmp_path / "scores.npy")
    whitened = np.load(tmp_path / "scores.npy")
    np.testing.assert_allclose(whitened, pca.transform(rows) / np.sqrt(variances), rtol=1e-9)


def test_whitening_by_onnx_divides_by_the_same_deviations(rng, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rows = rng.normal(size=(30, 4)).astype(np.float32)
    pca = fedpca.StreamingPCA(2, whiten=True).fit(rows, sample_weight=np.full(30, 0.05))
    write_onnx(pca, tmp_path / "model.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"rows": rows})
    np.testing.assert_allclose(scores, pca.transform(rows), atol=1e-4)


@pytest.mark.slow
def test_unnamed_features_are_counted_from_one_everywhere(rng, tmp_path):
    rows = rng.normal(size=(60, 3)) * [1.0, 9000.0, 1.0]
    with pytest.warns(UserWarning, match="feature 2 has .* of the variance of all 3 features"):
        pca = fedpca.StreamingPCA(2).fit(rows)
    assert fedpca.plot.loadings(pca).get_yticklabels()[0].get_text() == "feature 2"
    data = page_data(write_report(tmp_path / "page.html", pca))
    assert sorted(column(data, "features", "feature")) == ["feature 1", "feature 2", "feature 3"]
    path = tmp_path / "model.safetensors"
    pca.subspace_.save(path)
    cli("inspect", path, "--loadings", tmp_path / "loadings.csv")
    lines = (tmp_path / "loadings.csv").read_text().splitlines()
    assert [line["feature"] for line in csv.DictReader(lines)] == ["feature 1", "feature 2", "feature 3"]
    rows[:, 2] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fedpca.StreamingPCA(2).fit(rows)
    assert any("feature 3 has no observed value" in str(one.message) for one in caught)
    with pytest.raises(ValueError, match="finite, got 0 for feature 3"):
        fedpca.StreamingPCA(2, scale=[1.0, 1.0, 0.0]).fit(rows)


def _csv(folder, rows):
    path = folder / "some.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d", comments="", fmt="%.17g")
    return path


def test_anomaly_scores_of_the_command_line_are_those_of_the_estimator(rng, tmp_path):
    rows = rng.normal(size=(50, 4)) * [4, 3, 2, 1]
    path, table = tmp_path / "model.safetensors", _csv(tmp_path, rows)
    pca = fedpca.StreamingPCA(2).fit(rows)
    pca.summary_.save(path)
    expected = dict(zip(("spe", "t2"), pca.anomaly_scores(rows), strict=True))
    cli("transform", path, table, "-n", 2, "--scores", "t2,spe", "-o", tmp_path / "s.csv")
    lines = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert list(lines[0]) == ["t2", "spe"]
    for name, values in expected.items():
        np.testing.assert_allclose([float(line[name]) for line in lines], values, rtol=1e-9)
    cli("transform", path, table, "-n", 2, "--scores", "components,spe,t2", "-o", tmp_path / "s.npy")
    everything = np.column_stack([pca.transform(rows), *expected.values()])
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), everything, rtol=1e-9, atol=1e-12)


def test_a_message_says_how_to_resume_a_scaled_stream(rng):
    rows = rng.normal(size=(100, 4)) * [1, 10, 100, 1000]
    pca = fedpca.StreamingPCA(2, scale="std").fit(rows)
    resumed = fedpca.StreamingPCA(2, scale="std")
    with pytest.raises(ValueError, match=r"merge summary_ instead of subspace_"):
        resumed.merge(pca.subspace_)
    np.testing.assert_allclose(resumed.merge(pca.summary_).scale_, pca.scale_)


@pytest.mark.parametrize("scores", ["spe,spe", "t3", "spe,"])
def test_scores_that_do_not_exist_are_refused(tmp_path, scores):
    arguments = ["transform", "m.safetensors", "a.csv", "--scores", scores, "-o", tmp_path / "s.csv"]
    result = invoke(arguments)
    assert result.exit_code == 2
    assert "components, spe, t2" in " ".join(result.output.replace("│", " ").split())


def test_formats_of_components_have_no_other_scores(tmp_path):
    arguments = ["transform", "m.safetensors", "a.csv", "--scores", "spe", "-o", tmp_path / "s.h5ad"]
    assert invoke(arguments).exit_code == 2
