"""fedpca sql: from a table in a database to a model file."""

import csv
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

import fedpca


@pytest.fixture
def readings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal([70, 1e6, 0], [5, 2, 1], size=(300, 3))
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE readings (heat, load, drift, site)")
    connection.executemany(
        "INSERT INTO readings VALUES (?, ?, ?, ?)",
        [(*row, "north" if i < 200 else "a/b") for i, row in enumerate(rows.tolist())],
    )
    return rows, connection


def run(script, connection, files):
    """What a database's client does: every SELECT of the script as CSV, in one file or in one each."""
    statements = [part for part in Path(script).read_text().split(";\n") if "SELECT" in part]
    for i, statement in enumerate(statements):
        cursor = connection.execute(statement)
        with open(files[min(i, len(files) - 1)], "a", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([column[0] for column in cursor.description])
            writer.writerows(cursor)


QUERY = ["sql", "query", "readings", "--columns", "heat,load,drift", "--dialect", "sqlite", "-o", "q.sql"]


def test_from_a_table_to_a_model(readings):
    rows, connection = readings
    assert invoke(QUERY).stdout == "q.sql: 1 query for 3 columns\n"
    run("q.sql", connection, ["r.csv"])
    result = invoke(["sql", "import", "q.sql", "r.csv", "-o", "m.safetensors", "-n", 2])
    assert result.stdout.startswith("m.safetensors: 2 components of 300 rows")
    model = fedpca.load("m.safetensors")
    assert model.feature_names == ("heat", "load", "drift")
    np.testing.assert_allclose(model.scatter, fedpca.Moments.from_rows(rows).scatter, rtol=1e-9, atol=1e-6)


def test_several_results_in_one_file(readings):
    rows = np.random.default_rng(1).normal(size=(20, 50))
    names = [f"x{i}" for i in range(50)]
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE wide ({', '.join(names)})")
    connection.executemany(f"INSERT INTO wide VALUES ({', '.join('?' * 50)})", rows.tolist())
    query = ["sql", "query", "wide", "--columns", ",".join(names), "--dialect", "sqlite", "-o", "w.sql"]
    assert "2 queries" in invoke(query).stdout
    run("w.sql", connection, ["all.csv"])
    run("w.sql", connection, ["first.csv", "second.csv"])
    for files in (["all.csv"], ["first.csv", "second.csv"]):
        result = invoke(["sql", "import", "w.sql", *files, "-o", "m.safetensors", "--force"])
        assert result.exit_code == 0, result.stderr
        np.testing.assert_allclose(fedpca.load("m.safetensors").mean, rows.mean(axis=0))


def test_groups_are_models_in_a_folder(readings):
    _, connection = readings
    invoke([*QUERY, "--group", "site"])
    run("q.sql", connection, ["r.csv"])
    result = invoke(["sql", "import", "q.sql", "r.csv", "-o", "models"])
    assert result.exit_code == 0, result.stderr
    counts = {path.name: fedpca.load(path).count for path in Path("models").iterdir()}
    assert counts == {"group-1.safetensors": 100, "north.safetensors": 200}


def test_no_group_takes_the_file_of_another(readings):
    _, connection = readings
    connection.execute("UPDATE readings SET site = 'group-1' WHERE site = 'north'")
    invoke([*QUERY, "--group", "site"])
    run("q.sql", connection, ["r.csv"])
    assert invoke(["sql", "import", "q.sql", "r.csv", "-o", "models"]).exit_code == 0
    assert sorted(fedpca.load(path).count for path in Path("models").iterdir()) == [100, 200]


def test_a_policy_applies_to_what_comes_back(readings):
    _, connection = readings
    invoke(QUERY)
    run("q.sql", connection, ["r.csv"])
    Path("policy.toml").write_text("least_rows = 1000\nleast_level = 0\n")
    result = invoke(["sql", "import", "q.sql", "r.csv", "-o", "m.safetensors", "--policy", "policy.toml"])
    assert result.exit_code == 1
    assert "1,000 rows" in result.stderr
    with pytest.raises(FileNotFoundError):
        fedpca.load("m.safetensors")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            ["sql", "query", "t", "--columns", "a,a", "--dialect", "sqlite", "-o", "q.sql"],
            "must be different",
        ),
        (["sql", "query", "t", "--columns", "a", "--dialect", "oracle", "-o", "q.sql"], "oracle"),
        (["sql", "import", "q.sql", "-o", "m.safetensors"], "CSV"),
    ],
)
def test_wrong_usage(readings, line, problem):
    result = invoke(line)
    assert result.exit_code == 2
    assert problem in result.stderr
