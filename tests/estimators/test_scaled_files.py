"""fit_files and the command line with a scale: one pass or two, checkpoints, tables and reports."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca import Scaling, StreamingPCA, fit_files
from fedpca.readers import open_rows
from fedpca.summaries import model_file

NAMES = ["height", "income", "dose", "year"]


@pytest.fixture
def table(rng):
    """Columns of very different units, one of which does not vary."""
    rows = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3)) * [0.1, 2e4, 1e-6] + [1.7, 5e4, 1e-5]
    return pd.DataFrame(rows, columns=NAMES[:3]).assign(year=2024)


@pytest.fixture
def folder(tmp_path, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table[:150].to_csv("north.csv", index=False)
    table[150:].to_csv("south.csv", index=False)
    return tmp_path


def run(*arguments, fails=False):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = invoke(arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result


def expected_of(table, n_components=2):
    return make_pipeline(StandardScaler(), PCA(n_components)).fit(table.to_numpy(dtype=float))


# --- fit_files ---


@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
@pytest.mark.filterwarnings("ignore:year does not vary")
def test_files_are_fitted_with_the_scale_of_all_their_rows(tracker, folder, table):
    pca = StreamingPCA(2, scale="std", tracker=tracker)
    assert fit_files(pca, open_rows("*.csv", batch_rows=7)) == 400
    expected = expected_of(table)
    np.testing.assert_allclose(pca.scale_, expected[0].scale_, rtol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=1e-8)
    assert pca.n_samples_seen_ == 400


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_features_that_do_not_vary_are_named_once_per_fit(tracker, folder):
    with pytest.warns(UserWarning, match="year does not vary: it is not scaled") as caught:
        fit_files(StreamingPCA(2, scale="std", tracker=tracker), open_rows("*.csv", batch_rows=7))
    assert len(caught) == 1


def test_a_dominant_feature_is_named_once_per_fit(folder):
    with pytest.warns(UserWarning, match="income has 100.0% of the variance of all 4 features") as caught:
        fit_files(StreamingPCA(2), open_rows("*.csv", batch_rows=7))
    assert len(caught) == 1


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
@pytest.mark.filterwarnings("ignore:year does not vary")
def test_a_fit_is_stopped_in_either_pass_and_resumed(tracker, folder, table):
    rows = open_rows("*.csv", batch_rows=20)
    checkpoint = folder / "so-far"
    stops = (3, 8, 2) if tracker == "exact" else (3, 30, 15)
    settings = {"scale": "std", "tracker": tracker}
    kinds, learned = [], []
    for stop in stops:
        calls = iter(range(1000))
        stopped = lambda calls=calls, stop=stop: next(calls) >= stop  # noqa: E731
        learned.append(
            fit_files(StreamingPCA(2, **settings), rows, checkpoint=checkpoint, should_stop=stopped)
        )
        kinds.append(model_file.read(checkpoint)[0])
    if tracker == "nystrom":
        assert learned[0] == 0
        assert kinds == ["scaling", "subspace", "subspace"]
    else:
        assert kinds == ["moments"] * 3
    pca = StreamingPCA(2, **settings)
    assert fit_files(pca, rows, checkpoint=checkpoint) == 400
    expected = expected_of(table)
    np.testing.assert_allclose(pca.scale_, expected[0].scale_, rtol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=1e-6)
    with pytest.raises(ValueError, match="a checkpoint of the same files, unchanged, and the same settings"):
        fit_files(StreamingPCA(2, tracker=tracker), rows, checkpoint=checkpoint)


def test_a_checkpoint_of_other_numbers_is_refused(folder):
    rows = open_rows("*.csv", columns=NAMES[:3])
    one, other = np.ones(3), np.array([1.0, 1.0, 2.0])
    fit_files(StreamingPCA(2, scale=one), rows, checkpoint=folder / "x")
    fit_files(StreamingPCA(2, scale=one.copy()), rows, checkpoint=folder / "x")
    with pytest.raises(ValueError, match="same settings"):
        fit_files(StreamingPCA(2, scale=other), rows, checkpoint=folder / "x")


# --- the command line ---


@pytest.mark.slow
def test_a_model_of_scaled_columns_from_fit_to_report(folder, table):
    expected = expected_of(table)
    result = run("fit", "*.csv", "--scale", "std", "-n", 2, "-o", "model")
    assert "year does not vary" in result.stderr
    ratio = expected[-1].explained_variance_ratio_
    assert f"2 components of 400 rows, {ratio.sum():.1%} of the variance" in result.stdout
    shown = run("inspect", "model", "--loadings", "loadings.tsv").stdout
    assert "4 features, divided by their standard deviations; 3 directions carried for merging" in shown
    assert json.loads(run("inspect", "model", "--json").stdout)["scale"] == "std"
    loadings = pd.read_csv("loadings.tsv", sep="\t")
    assert loadings.columns.tolist() == ["feature", "mean", "scale", "pc1", "pc2"]
    np.testing.assert_allclose(loadings["scale"], expected[0].scale_, rtol=1e-9)
    np.testing.assert_allclose(loadings["mean"], expected[0].mean_, rtol=1e-9)
    components = loadings[["pc1", "pc2"]].to_numpy()
    np.testing.assert_allclose(
        components @ components.T, expected[-1].components_.T @ expected[-1].components_, atol=1e-9
    )
    run("transform", "model", "*.csv", "-o", "scores.npy")
    scores = np.load("scores.npy")
    np.testing.assert_allclose(np.abs(scores), np.abs(expected.transform(table.to_numpy(float))), atol=1e-8)
    run("report", "model", "--rows", "north.csv", "-o", "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Every feature was divided by its scale" in page
    assert "features, scaled" in page


def test_models_of_owners_merge_to_that_of_all_rows(folder, table):
    for name in ("north", "south"):
        run("fit", f"{name}.csv", "--scale", "std", "-n", 2, "-o", name)
    run("merge", "north", "south", "-o", "both")
    expected = expected_of(table)
    shown = json.loads(run("inspect", "both", "--json").stdout)
    np.testing.assert_allclose(shown["explained_variance"], expected[-1].explained_variance_, rtol=1e-9)
    run("fit", "south.csv", "-o", "plain")
    text = run("merge", "north", "plain", "-o", "wrong", fails=True).stderr
    assert "summaries must have the same scale, got 'std' and none; fit all with the same scale." in text


def test_a_scale_from_a_file(folder, table):
    scaling = Scaling.from_rows(table)
    scaling.save("scaling")
    np.save("numbers.npy", scaling.scale("std"))
    for name, source in (("one", "scaling"), ("two", "numbers.npy"), ("three", "one")):
        run("fit", "*.csv", "--scale", source, "-n", 2, "-o", name)
        model = fedpca.load(name)
        np.testing.assert_allclose(model.scale, scaling.scale("std"))
        expected = expected_of(table)[-1].singular_values_
        np.testing.assert_allclose(model.subspace().singular_values[:2], expected, rtol=1e-8)
    assert "numbers in the column scale of --loadings" in run("inspect", "one").stdout
    for name, source in (("north", "scaling"), ("south", "numbers.npy")):
        run("fit", f"{name}.csv", "--scale", source, "-n", 2, "-o", name)
    run("merge", "north", "south", "-o", "both")
    run("transform", "both", "*.csv", "-o", "scores.tsv")
    run("fit", "*.csv", "-o", "plain")
    np.save("wrong.npy", np.array([1.0, 0.0, 1.0, 1.0]))
    np.save("objects.npy", np.array([None] * 4))
    Path("junk.npy").write_text("junk")
    Path("cut.npy").write_bytes(Path("wrong.npy").read_bytes()[:-8])
    Path("nothing.npy").touch()
    for source, message in (
        ("max", "--scale must be std, binomial or a file, got 'max'"),
        ("plain", "plain has no numbers to divide by; pass --scale std"),
        ("wrong.npy", "scale must be positive and finite, got 0 for income"),
        *[
            (f"{name}.npy", f"{name}.npy must be a .npy file with one number per column, and is not")
            for name in ("objects", "junk", "cut", "nothing")
        ],
    ):
        text = run("fit", "*.csv", "--scale", source, "-o", "failed", fails=True).output
        assert message in " ".join(text.split()).replace("│ ", "")
    renamed = Scaling.from_rows(table.rename(columns={"dose": "age"}))
    renamed.save("renamed")
    text = run("fit", "*.csv", "--scale", "renamed", "-o", "failed", fails=True).stderr
    assert "same feature names in the same order, got 'dose' and 'age'" in text
    assert not (folder / "failed").exists()


def test_many_columns_are_read_twice_also_from_standard_input(folder, rng):
    rows = rng.normal(size=(60, 300)) @ rng.normal(size=(300, 300)) * np.logspace(-4, 4, 300)
    text = pd.DataFrame(rows).add_prefix("c").to_csv(index=False)
    result = invoke(["fit", "-", "--scale", "std", "-n", "2", "-o", "wide"], input=text)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(fedpca.load("wide").scale, rows.std(axis=0), rtol=1e-9)
    assert json.loads(run("inspect", "wide", "--json").stdout)["scale"] == "numbers"


def test_the_advice_of_a_dominant_column_can_be_taken(folder):
    first = run("fit", "north.csv", "-n", 1, "-o", "raw").stderr
    assert "income has 100.0% of the variance" in first
    assert "(--scale std)" in first
    assert "%" not in run("fit", "north.csv", "-n", 1, "--scale", "std", "-o", "scaled").stderr


def test_a_scale_without_privacy_is_refused_for_a_private_fit(folder, table):
    Scaling.from_rows(table).save("scaling")
    run("fit", "*.csv", "--scale", "std", "-o", "model")
    for source in ("scaling", "model"):
        private = ["--epsilon", 1, "--delta", 1e-6, "--scale", source, "-o", "failed"]
        text = " ".join(run("fit", "*.csv", *private, fails=True).output.split())
        assert "--scale with --epsilon must be numbers that are public" in text
        assert f"{source} was computed from rows without privacy" in text
    assert not (folder / "failed").exists()
