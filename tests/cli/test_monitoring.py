"""Limits and alarms on the command line: from files to the column that drifts."""

import numpy as np
import pytest
from command_line import invoke

from fedpca import PCADetector
from fedpca.readers import Batch
from fedpca.summaries import model_file

NAMES = [f"tag{i}" for i in range(6)]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 2)) @ np.random.default_rng(9).normal(size=(2, 6))
    return (hidden + 0.3 * rng.normal(size=(n, 6))) * 10.0 ** np.arange(6)


def written(path, table):
    lines = [",".join(NAMES), *(",".join(map(repr, line)) for line in table.tolist())]
    path.write_text("\n".join(lines))


def read(path):
    head, *lines = (line.replace('"', "").split(",") for line in path.read_text().splitlines())
    return {name: [line[i] for line in lines] for i, name in enumerate(head)}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "normal.csv", rows(2000))
    today = rows(300, seed=1)
    today[200:, 4] += 6 * rows(2000)[:, 4].std()
    written(tmp_path / "today.csv", today)
    (tmp_path / "policy.toml").write_text("least_rows = 5\n")

    def run(*arguments):
        found = invoke([*arguments])
        return found.exit_code, " ".join(found.output.replace("│", " ").split())

    fit = ("fit", "normal.csv", "--scale", "std", "-n", "0.9", "--alarms", "0.02")
    assert run(*fit, "-o", "model.safetensors")[0] == 0
    return run


def test_alarms_are_raised_and_the_column_is_named(run, tmp_path):
    what = "score,alarm,named,contributions,spe,t2"
    assert run("transform", "model.safetensors", "today.csv", "--scores", what, "-o", "out.csv")[0] == 0
    found = read(tmp_path / "out.csv")
    alarms = np.array(found["alarm"], float)
    assert alarms[200:].mean() > 0.95
    assert alarms[:200].mean() < 0.06
    assert (np.array(found["named"])[200:] == "tag4").mean() > 0.95
    numbers = {name: np.array(values, float) for name, values in found.items() if name != "named"}
    added = sum(numbers[f"contribution {name}"] for name in NAMES)
    np.testing.assert_allclose(added, numbers["score"], rtol=1e-6)
    detector = PCADetector.load_model("model.safetensors")
    np.testing.assert_array_equal(alarms == 1, numbers["score"] > detector.limit_)
    normal, some = (Batch(rows(n, seed), tuple(NAMES)) for n, seed in ((2000, 0), (300, 1)))
    assert (detector.predict(normal) == -1).mean() == pytest.approx(0.02, abs=0.003)
    np.testing.assert_allclose(numbers["spe"][:200], detector.pca_.anomaly_scores(some)[0][:200], rtol=1e-6)


def test_limits_stay_with_their_owner(run):
    assert "limits" in model_file.read("model.safetensors")[2]
    assert "limits learned from its rows" in run("check", "model.safetensors", "--policy", "policy.toml")[1]
    run("fit", "today.csv", "--scale", "std", "-o", "other.safetensors", "--policy", "policy.toml")
    assert run("merge", "model.safetensors", "other.safetensors", "-o", "merged.safetensors")[0] == 0
    assert "limits" not in model_file.read("merged.safetensors")[2]
    fit = ("fit", "normal.csv", "--alarms", "0.01", "--policy", "policy.toml", "-o", "counted.safetensors")
    assert run(*fit)[0] == 0
    assert run("package", "counted.safetensors", "--policy", "policy.toml", "-o", "study")[0] == 0
    assert "limits" not in model_file.read("study/model.safetensors")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fit", "normal.csv", "--alarms", "2"],
            "--alarms must be a share of the rows between 0 and 1, got 2",
        ),
        (["fit", "-", "--alarms", "0.1"], "--alarms needs files that can be read again"),
        (
            ["fit", "normal.csv", "--alarms", "0.1", "--epsilon", "1", "--delta", "1e-6"],
            "combined with --epsilon",
        ),
        (
            ["transform", "merged.safetensors", "today.csv", "--scores", "alarm"],
            "has no limit; fit it with --alarms",
        ),
        (["transform", "model.safetensors", "today.csv", "--scores", "alarm", "-n", "1"], "leave -n out"),
        (["transform", "model.safetensors", "today.csv", "--scores", "x"], "--scores must be some of"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, run):
    run("fit", "today.csv", "-o", "merged.safetensors")
    status, output = run(*arguments, "-o", "out.csv" if arguments[0] == "transform" else "out.safetensors")
    assert status != 0
    assert message in output
