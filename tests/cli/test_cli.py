"""The command line does what the library does; what goes wrong is one line, and leaves nothing behind."""

import datetime
import json
import logging
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import fedpca

pa = pytest.importorskip("pyarrow", reason="the cli extra")

import pyarrow.parquet  # noqa: E402, F401
from command_line import invoke  # noqa: E402

from fedpca.cli.app import COMMANDS, GROUPS, make_app  # noqa: E402
from fedpca.parallel import prefetch  # noqa: E402
from fedpca.readers import RowReader  # noqa: E402
from fedpca.summaries import model_file  # noqa: E402

pytestmark = pytest.mark.slow  # all of it together

NAMES = ["length", "width", "depth", "weight"]
PRIVATE = ["--epsilon", "8", "--delta", "1e-6", "--bound", "15"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers(n_rows=300, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, 4)) * [4.0, 3.0, 2.0, 1.0] + 5.0


def write_parquet(path, rows, names=NAMES, **others):
    pa.parquet.write_table(pa.table(dict(zip(names, rows.T, strict=True)) | others), path)


def write_csv(path, rows, names=NAMES):
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")


def run(*arguments):
    return invoke(arguments)


def run_ok(*arguments):
    """The stdout of a command that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def run_warns(*arguments):
    """The stderr of a command that succeeds with warnings, which are errors in other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "filters", [])
        result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stderr


def run_json(*arguments):
    return json.loads(run_ok(*arguments, "--json"))


def run_fails(folder, *arguments):
    """The one line on stderr of a command that fails; it leaves the folder as it was."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fedpca: error: ")
    assert result.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    return result.stderr


def run_misused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.fixture
def shell(fork):
    """Starts a command in a process of its own."""
    return partial(fork, "from fedpca.cli import main; main()")


@pytest.mark.parametrize(
    ("command", "arguments"), [("fit", "PATH"), ("simulate", "[ARGS]"), ("roster add", "ROSTER ID KEY")]
)
def test_the_usage_names_arguments(command, arguments):
    (usage,) = [line for line in run_ok(*command.split(), "--help").splitlines() if "Usage:" in line]
    assert usage.split("[OPTIONS]")[1].strip() == arguments


def test_a_misspelled_command_is_suggested_once():
    assert run_misused("ft").count('Did you mean "fit"?') == 1
    assert run_misused("roster", "ad").count('Did you mean "add"?') == 1


def test_a_misspelled_column_is_suggested_though_there_are_many(tmp_path):
    names = [f"column {number}" for number in range(20)] + ["target"]
    write_csv(tmp_path / "wide.csv", np.random.default_rng(0).normal(size=(30, 21)), names)
    error = run_fails(tmp_path, "fit", tmp_path / "wide.csv", "--drop", "Targt", "-o", tmp_path / "m")
    assert "unknown column 'Targt' in " in error
    assert "; did you mean 'target'? it has column 0, " in error
    error = run_fails(tmp_path, "fit", tmp_path / "wide.csv", "--drop", "age,bmi", "-o", tmp_path / "m")
    assert "unknown columns 'age', 'bmi' in " in error
    assert "did you mean" not in error


def test_models_and_reports_are_not_written_under_names_of_tables(tmp_path):
    write_csv(tmp_path / "rows.csv", np.random.default_rng(0).normal(size=(30, len(NAMES))))
    error = run_misused("fit", tmp_path / "rows.csv", "-o", tmp_path / "scores.csv")
    assert "a model file ends in .safetensors" in error
    assert "fedpca transform" in error
    run_ok("fit", tmp_path / "rows.csv", "-o", tmp_path / "model.safetensors")
    assert "model file ends in" in run_misused("merge", tmp_path / "model.safetensors", "-o", "both.parquet")
    error = run_misused("report", tmp_path / "model.safetensors", "-o", tmp_path / "report.pdf")
    assert "a report must end in .html" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "rows.csv"]


@pytest.mark.filterwarnings("default:n_components=")
def test_fit_warns_of_fewer_components_than_requested(tmp_path):
    write_csv(tmp_path / "few.csv", np.random.default_rng(0).normal(size=(3, len(NAMES))))
    result = run("fit", tmp_path / "few.csv", "-n", 4, "-o", tmp_path / "model.safetensors")
    assert result.exit_code == 0
    assert result.stderr == (
        "fedpca: warning: n_components=4 but only 2 found: the rows span no more directions "
        "that are not rounding of their values.\n"
    )
    assert run_ok("fit", tmp_path / "few.csv", "-o", tmp_path / "default.safetensors")


def same_up_to_sign(ours, theirs):
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-8, atol=1e-10)


# --- what every command has ---


EVERY_COMMAND = {(name,): text for name, text in COMMANDS.items()} | {
    (group, name): text for group, commands in GROUPS.items() for name, text in commands.items()
}


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_command_has_help_with_an_example_and_describes_every_argument(command):
    text = run_ok(*command, "--help")
    assert "Usage: " in text
    assert text.count(f"fedpca {' '.join(command)}") > 1
    found = make_app()
    for name in command:
        found = found[name]
    assert found.default_command.__doc__.startswith(f"{EVERY_COMMAND[command]}\n")
    for argument in found.assemble_argument_collection(parse_docstring=True):
        assert argument.parameter.help or argument.children, argument.name


def test_help_names_every_command_and_imports_nothing_slow():
    program = (
        "import sys; from fedpca.cli import main; sys.argv = ['fedpca', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'numpy', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules), 'slow'"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(command in ended.stdout for command in [*COMMANDS, *GROUPS])


def test_version():
    assert run_ok("--version") == f"fedpca {fedpca.__version__}\n"


def test_debug_shows_the_trace(folder):
    assert isinstance(run("inspect", "none.safetensors", "--debug").exception, FileNotFoundError)


def test_quiet_prints_only_warnings_errors_and_json(folder):
    write_csv("a.csv", numbers())
    fit = ["fit", "a.csv", "-n", 2, "--force", "-o", "m.safetensors"]
    assert run_ok(*fit, "--quiet") == run_ok("inspect", "m.safetensors", "-q") == ""
    assert run_json(*fit, "--quiet")["n_components"] == 2
    result = run("fit", "none.csv", "-o", "n.safetensors", "-q")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_verbose_logs_what_is_done_to_stderr_and_only_then(folder):
    write_csv("a.csv", numbers())
    fit = ["fit", "a.csv", "--checkpoint", "c", "--force", "-o", "m.safetensors"]
    verbose = run(*fit, "--verbose")
    assert verbose.stdout == run_ok(*fit)
    assert "fedpca: opened 1 file" in verbose.stderr
    assert "fedpca: checkpoint c written after 300 rows" in verbose.stderr
    assert "reading a.csv" not in verbose.stderr
    assert "reading a.csv" in run(*fit, "--debug").stderr
    assert logging.getLogger("fedpca").level == logging.NOTSET


def test_the_library_logs_under_its_name_and_says_nothing_by_itself(fork, folder):
    write_csv("a.csv", numbers())
    program = (
        "import fedpca, sys; from fedpca.readers import open_rows\n"
        "fedpca.fit_files(fedpca.StreamingPCA(2), open_rows('a.csv'))\n"
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "open_rows('a.csv')"
    )
    status, printed, logged = fork(program).wait()
    assert (status, printed) == (0, "")
    assert re.fullmatch(r"INFO:fedpca\.readers\.row_reader:opened 1 file .*\n", logged)


def test_without_cyclopts_it_says_what_to_install(fork):
    status, _, errors = fork(
        "import sys; sys.modules['cyclopts'] = None; from fedpca.cli import main; main()"
    ).wait()
    assert status == 1
    assert errors == "fedpca: error: the command line needs cyclopts: pip install 'fedpca[cli]'.\n"


# --- fit, inspect, transform, merge ---


def test_fit_and_transform_are_pca_of_the_files(folder):
    rows = numbers()
    write_parquet("a.parquet", rows[:200], id=[f"p{i}" for i in range(200)])
    write_parquet("b.parquet", rows[200:], id=[f"p{i}" for i in range(200, 300)])
    offline = PCA(2).fit(rows)

    result = run_json("fit", "a.parquet", "b.parquet", "--drop", "id", "-n", 2, "-o", "m.safetensors")
    np.testing.assert_allclose(result["explained_variance"], offline.explained_variance_)
    np.testing.assert_allclose(result["explained_variance_ratio"], offline.explained_variance_ratio_)
    assert result["feature_names"] == NAMES
    assert run_json("inspect", "m.safetensors")["n_components"] == 2
    assert "component  variance  explained  cumulative" in run_ok("inspect", "m.safetensors")
    assert fedpca.load("m.safetensors").subspace().rank > 2  # it carries more, for merging

    scores = offline.transform(rows)
    for out in ("s.parquet", "s.csv", "s.npy"):
        keep = [] if out == "s.npy" else ["--keep", f"id,{NAMES[1]}"]
        command = ["transform", "m.safetensors", "[ab].parquet", *keep, "--batch-rows", 64, "--out", out]
        assert run_json(*command)["rows"] == 300
    same_up_to_sign(np.load("s.npy"), scores)
    table = pa.parquet.read_table("s.parquet")
    assert table.column_names == ["id", NAMES[1], "pc1", "pc2"]
    np.testing.assert_array_equal(table[NAMES[1]], rows[:, 1])
    assert table["id"].to_pylist() == [f"p{i}" for i in range(300)]
    same_up_to_sign(np.stack([table["pc1"], table["pc2"]], axis=1), scores)
    same_up_to_sign(np.loadtxt("s.csv", delimiter=",", skiprows=1, usecols=(2, 3)), scores)


def test_columns_center_components_and_tracker_are_taken(folder):
    rows = numbers()
    write_csv("a.csv", rows)
    result = run_json(
        "fit", "a.csv", "--columns", "depth, length", "--center", "none", "--out", "m.safetensors"
    )
    assert (result["feature_names"], result["centered"]) == (["depth", "length"], False)
    values = np.linalg.svd(rows[:, [2, 0]], compute_uv=False)
    np.testing.assert_allclose(np.array(result["explained_variance"]) * 299, values**2)
    share = run_json("fit", "a.csv", "--components", "0.9", "--tracker", "exact", "--out", "s.safetensors")
    assert share["n_components"] == PCA(0.9).fit(rows).n_components_
    assert run_json("fit", "a.csv", "--components", "all", "--out", "t.safetensors")["n_components"] == 4
    for wrong in ("any", "0", "-3", "1.5", "nan"):
        assert wrong in run_misused("fit", "a.csv", "--components", wrong, "--out", "u.safetensors")


def test_names_with_commas_and_spaces_can_be_given_as_the_remedy_spells_them(folder):
    rows = numbers()
    names = ["body length", '"glucose, fasting"', "depth"]
    write_csv("a.csv", rows[:, :3], names)
    columns = ["--columns", '"glucose, fasting", depth']
    assert run_json("fit", "a.csv", *columns, "--out", "m.safetensors")["feature_names"] == [
        "glucose, fasting",
        "depth",
    ]
    Path("b.csv").write_text('patient id,"ward, bed",x,y\np,w,1,2\nq,v,3,5\n')
    stderr = run_fails(folder, "fit", "b.csv", "--out", "n.safetensors")
    _, remedy = shlex.split(re.search(r"leave them out with .* \((--drop .*)\)\.$", stderr)[1])
    assert run_json("fit", "b.csv", "--drop", remedy, "--out", "n.safetensors")["feature_names"] == ["x", "y"]


def test_oversample_is_how_many_more_directions_are_carried(folder):
    np.save("a.npy", np.random.default_rng(0).normal(size=(100, 300)))
    fit = ["fit", "a.npy", "--components", 3]
    for oversample in (0, 40):
        result = run_json(*fit, "--oversample", oversample, "--out", f"{oversample}.safetensors")
        assert (result["n_components"], result["carried"]) == (3, 3 + oversample)
    assert "--oversample" in run_misused(*fit, "--oversample", -1, "--out", "m.safetensors")


def test_one_thing_is_not_printed_as_many(folder):
    write_csv("a.csv", numbers())
    assert "1 component of 300 rows" in run_ok("fit", "a.csv", "--components", 1, "--out", "m.safetensors")
    assert "300 rows of 1 component\n" in run_ok("transform", "m.safetensors", "a.csv", "--out", "s.csv")


def test_more_components_than_a_model_has_are_refused(folder):
    write_csv("a.csv", numbers()[:, :2], names=NAMES[:2])
    run_ok("fit", "a.csv", "-n", 1, "-o", "m.safetensors")
    assert run_json("transform", "m.safetensors", "a.csv", "-n", 2, "-o", "s.npy")["columns"] == [
        "pc1",
        "pc2",
    ]
    stderr = run_fails(folder, "transform", "m.safetensors", "a.csv", "-n", 9, "-o", "t.npy")
    assert "--components must be at most 2, all directions of m.safetensors, got 9" in stderr
    write_csv("b.csv", numbers(seed=1)[:, :2], names=NAMES[:2])
    run_ok("fit", "b.csv", "-o", "n.safetensors")
    models = ["m.safetensors", "n.safetensors"]
    assert "at most 2" in run_fails(folder, "merge", *models, "-n", 9, "-o", "both.safetensors")


def test_merged_models_are_the_model_of_all_rows(folder):
    rows = numbers()
    for name, part in (("a", rows[:100]), ("b", rows[100:])):
        write_csv(f"{name}.csv", part)
        run_ok("fit", f"{name}.csv", "--components", 2, "--out", f"{name}.safetensors")
    result = run_json("merge", "a.safetensors", "b.safetensors", "--out", "all.safetensors")
    np.testing.assert_allclose(result["explained_variance"], PCA(2).fit(rows).explained_variance_)


def test_gaps_in_transformed_rows_are_bridged(folder):
    rows = numbers()
    write_csv("a.csv", rows)
    rows[3, 1] = np.nan
    write_parquet("b.parquet", rows)
    run_ok("fit", "a.csv", "--components", 2, "--out", "m.safetensors")
    run_ok("transform", "m.safetensors", "b.parquet", "--out", "s.npy")
    assert np.isfinite(np.load("s.npy")).all()


# --- private ---


def test_rows_without_any_value_are_reported(folder):
    rows = numbers()
    rows[[3, 200, 299]] = np.nan
    write_csv("a.csv", rows)
    rows[150, 1:] = np.nan  # has one value
    write_parquet("b.parquet", rows)
    for path in ("a.csv", "b.parquet"):
        fitted = run_json("fit", path, "-o", "m.safetensors", "--force")
        assert (fitted["rows"], fitted["rows_without_values"]) == (297, 3)
        text = run_ok("fit", path, "-o", "m.safetensors", "--force")
        assert "; 3 more rows without any value skipped\n" in text
        text = run_ok("transform", "m.safetensors", path, "-o", "s.npy", "--force")
        assert text.endswith("; 3 rows without any value have scores of 0\n")
    assert not np.load("s.npy")[[3, 200, 299]].any()
    write_csv("c.csv", numbers())
    assert "without" not in run_ok("fit", "c.csv", "-o", "n.safetensors")


def test_a_file_given_twice_is_an_error(folder):
    write_csv("a.csv", numbers())
    assert "a.csv appears more than once" in run_fails(
        folder, "fit", "a.csv", "./a.csv", "-o", "m.safetensors"
    )
    run_ok("fit", "a.csv", "-o", "m.safetensors")
    assert "m.safetensors appears more than once" in run_fails(
        folder, "merge", "m.safetensors", "m.safetensors", "-o", "n.safetensors"
    )


@pytest.mark.parametrize(
    "line",
    [
        ["inspect", "s3://bucket/x.parquet"],
        ["merge", "a.safetensors", "s3://bucket/x.parquet", "-o", "m.safetensors"],
        ["fit", "a.csv", "-o", "s3://bucket/x.parquet"],
    ],
)
def test_urls_of_other_files_than_rows_are_refused_as_written(folder, line):
    write_csv("a.csv", numbers())
    result = run(*line)
    assert result.exit_code in (1, 2)
    assert "remote paths are not supported, got s3://bucket/x.parquet" in " ".join(
        result.stderr.replace("│", " ").split()
    )


def test_text_options_are_taken_by_every_command_that_reads_rows(folder):
    rows = numbers().round(2)
    lines = [";".join(f"{x:.2f}".replace(".", ",") for x in row) for row in rows]
    text = "\n".join(["% 2025", "länge;width;depth;site", *(f"{line}" for line in lines)])
    Path("a.csv").write_text(text, encoding="latin-1")
    options = ["--delimiter", ";", "--decimal", ",", "--comment", "%", "--encoding", "latin-1"]
    options += ["--thousands", ".", "--na-values", "?,-99", "--header"]
    result = run_json("fit", "a.csv", *options, "-n", 2, "-o", "m.safetensors")
    np.testing.assert_allclose(result["explained_variance"], PCA(2).fit(rows).explained_variance_)
    assert result["feature_names"] == ["länge", "width", "depth", "site"]
    run_ok("transform", "m.safetensors", "a.csv", *options, "-o", "s.npy")
    same_up_to_sign(np.load("s.npy"), PCA(2).fit_transform(rows))
    run_ok("report", "m.safetensors", "--rows", "a.csv", *options, "-o", "r.html")
    run_ok("simulate", "a.csv", "--client", "site", *options, "--dropouts", 0)
    Path("b.csv").write_text("\n".join("\t".join(map(str, row)) for row in rows))
    for name in ("tab", "\\t", "\t"):
        result = run_json("fit", "b.csv", "--delimiter", name, "--force", "-o", "m.safetensors")
        assert result["n_features"] == 4
    stderr = run_fails(folder, "fit", "b.csv", "--delimiter", "::", "-o", "n.safetensors")
    assert "delimiter must be one character" in stderr


def test_numeric_only_names_what_it_leaves_out(folder):
    write_parquet("a.parquet", numbers(), city=["Rome", "Oslo"] * 150)
    stderr = run_warns("fit", "a.parquet", "--numeric-only", "-o", "m.safetensors")
    assert stderr == "fedpca: warning: left out because not numeric: city (text).\n"
    assert fedpca.load("m.safetensors").feature_names == tuple(NAMES)
    assert "left out" in run_warns("simulate", "a.parquet", "--client", "width", "--numeric-only", "-n", 1)
    Path("wide.csv").write_text(
        "\n".join([",".join([f"c{i}" for i in range(12)] + ["x"]), "a," * 12 + "1.5", "b," * 12 + "2.5"])
    )
    stderr = run_fails(folder, "fit", "wide.csv", "-o", "n.safetensors")
    assert stderr.endswith(
        "; encode them as numbers, or select the columns to read with columns=[...] (--columns NAMES), or "
        "leave out all such columns with numeric_only=True (--numeric-only).\n"
    )
    assert "c7 (text from line 2) and 4 more" in run_warns(
        "fit", "wide.csv", "--numeric-only", "-o", "n.safetensors"
    )


def test_ids_are_a_warning_but_not_of_private_rows(folder):
    rows = np.column_stack([np.arange(2000), numbers(2000)]).round(3)
    Path("a.csv").write_text(
        "number,a,b,c,d\n" + "\n".join(f"{int(i)},{a},{b},{c},{d}" for i, a, b, c, d in rows)
    )
    stderr = run_warns("fit", "a.csv", "-o", "m.safetensors")
    assert "warning: number may be an id" in stderr
    run_ok("fit", "a.csv", "--drop", "number", "-o", "n.safetensors")
    run_ok("fit", "a.csv", *PRIVATE, "--ledger", "a.ledger", "-o", "p.safetensors")
    text = run_fails(
        folder, "fit", "a.csv", *PRIVATE, "--numeric-only", "--ledger", "b.ledger", "-o", "q.safetensors"
    )
    assert "private rows would decide them; leave columns out with drop=[...] (--drop NAMES)." in text


def test_wine_as_it_comes(folder):
    path = Path(os.environ.get("FEDPCA_DATA", "")) / "winequality-red.csv"
    if not path.is_file():
        pytest.skip("a file of the folder FEDPCA_DATA")
    result = run_json("fit", path, "--drop", "quality", "-n", 2, "-o", "m.safetensors")
    rows = np.loadtxt(path, delimiter=";", skiprows=1)[:, :-1]
    np.testing.assert_allclose(result["explained_variance"], PCA(2).fit(rows).explained_variance_)


@pytest.mark.parametrize("cell", ["?", "1;5", "Rome"])
def test_a_cell_that_is_no_number_is_missing_in_a_private_fit(folder, cell):
    lines = [f"{x},{cell if i < 3 else y}" for i, (x, y, *_) in enumerate(numbers(2000))]
    Path("a.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    run_ok("fit", "a.csv", *PRIVATE, "--ledger", "a.ledger", "--out", "m.safetensors")
    assert "columns must be numeric" in run_fails(folder, "fit", "a.csv", "--out", "n.safetensors")
    Path("b.csv").write_text("\n".join(lines) + "\n")
    private = ["fit", "b.csv", *PRIVATE, "--ledger", "b.ledger", "--out", "n.safetensors"]
    stderr = run_fails(folder, *private)
    assert "private rows; name the columns, or pass header=True (--header) if these are names" in stderr
    assert "pass width=... (--width N)" in stderr
    run_ok(*private, "--width", 2)


def test_standard_input(folder):
    rows = numbers()
    write_csv("a.csv", rows)
    text = Path("a.csv").read_text()

    def pipe(*line):
        result = invoke(line, input=text)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "300 rows" in pipe("fit", "-", "-n", 2, "-o", "m.safetensors")
    assert fedpca.load("m.safetensors").feature_names == tuple(NAMES)
    pipe("transform", "m.safetensors", "-", "-o", "s.npy")
    same_up_to_sign(np.load("s.npy"), PCA(2).fit_transform(rows))
    pipe("fit", "-", *PRIVATE, "--ledger", "p.ledger", "-o", "p.safetensors")
    misused = run_misused("fit", "-", "--checkpoint", "c", "-o", "n.safetensors")
    assert "read again, not standard input" in " ".join(misused.replace("│", " ").split())
    assert "must be the only path" in run_fails(folder, "fit", "-", "a.csv", "-o", "n.safetensors")


@pytest.mark.parametrize("center", ["private", "none"])
def test_a_private_fit_says_which_rows_its_model_is_of(folder, center):
    write_csv("a.csv", numbers(2000))
    private = [*PRIVATE, "--center", center, "--ledger", "m.ledger"]
    stdout = run_ok("fit", "a.csv", *private, "--out", "m.safetensors")
    result = run_json("inspect", "m.safetensors")
    assert result["rows"] == result["certificate"]["records"] == 2000  # in every pass, all of them
    assert "of 2,000 rows" in stdout
    assert "; private: epsilon=8, delta=1e-06\n" in stdout


@pytest.mark.parametrize("mean", [0, 100, 1e9])
def test_a_private_model_does_not_depend_on_how_far_away_the_mean_is(folder, mean):
    """A center that cannot be found is none: differences of pairs of rows need none."""
    write_csv("a.csv", numbers(2000) + mean)
    private = ["--epsilon", 8, "--delta", 1e-6, "-n", 1, "--ledger", "m.ledger"]
    result = run("fit", "a.csv", *private, "--out", "m.safetensors")
    assert (result.exit_code, result.stderr) == (0, "")
    assert abs(fedpca.load("m.safetensors").subspace(1).components[0, 0]) > 0.9
    certificate = run_json("inspect", "m.safetensors")["certificate"]
    assert certificate["center"] == ("none: differences of pairs" if mean == 1e9 else "private")


def test_a_private_fit_without_a_ledger_says_so_in_a_line(folder):
    write_csv("a.csv", numbers(2000))
    result = run("fit", "a.csv", *PRIVATE, "--out", "m.safetensors")
    assert result.exit_code == 0
    assert re.fullmatch(r"fedpca: warning: no ledger\. Fit with --ledger FILE.*\n", result.stderr)


@pytest.mark.long
def test_a_private_model_without_components_is_written_and_merges_into_one_that_has_some(folder):
    rows = np.random.default_rng(0).normal(size=(12_000, 6)) * [1.0, 0.2, 0.2, 0.2, 0.2, 0.2]
    names = [f"{number}.safetensors" for number in range(24)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "filters", [])
        for name, part in zip(names, np.array_split(rows, 24), strict=True):
            write_csv("a.csv", part, list("abcdef"))
            weak = ["--epsilon", 0.1, "--delta", 1e-6, "--bound", 2, "--center", "none", "--no-evaluate"]
            weak += ["--ledger", f"{name}.ledger"]
            result = run("fit", "a.csv", *weak, "--out", name)
            assert result.exit_code == 0
    shown = [run_json("inspect", name)["n_components"] for name in names]
    assert 0 in shown
    none = names[shown.index(0)]
    assert "0 components of 500 rows, 0.0% of the variance" in run_ok("inspect", none)
    assert "none rises above its noise" in run_fails(folder, "transform", none, "a.csv", "--out", "s.npy")
    assert "Nothing rises above the noise" in Path(
        run_json("report", none, "--out", "report.html")["out"]
    ).read_text(encoding="utf-8")
    drowned = [name for name, number in zip(names, shown, strict=True) if not number]
    assert len(drowned) > 12
    assert run_json("merge", *drowned, "--out", "all.safetensors")["n_components"] == 1


@pytest.mark.parametrize("cell", ["", "2.5", "inf"])
def test_no_single_record_decides_whether_a_private_fit_fails(folder, cell):
    lines = [f"{x},{y},{cell if i == 17 else ''}" for i, (x, y, *_) in enumerate(numbers(2000))]
    (folder / "a.csv").write_text("\n".join(["x,y,z", *lines]) + "\n")
    run_ok("fit", "a.csv", *PRIVATE, "--ledger", "a.ledger", "--out", "m.safetensors")
    if not cell:
        plain = run_warns("fit", "a.csv", "--out", "n.safetensors")
        assert "warning: z has no observed value" in plain


def test_few_columns_are_merged_without_loss(folder):
    rows = numbers(400) @ np.random.default_rng(1).normal(size=(4, 60))
    names = [f"x{i}" for i in range(60)]
    for i, part in enumerate(np.array_split(rows, 8)):
        write_csv(f"{i}.csv", part + i, names)
        run_ok("fit", f"{i}.csv", "-n", 1, "-o", f"{i}.safetensors")
    run_ok("merge", *(f"{i}.safetensors" for i in range(8)), "-o", "all.safetensors")
    merged = fedpca.load("all.safetensors")
    assert isinstance(merged, fedpca.Moments)
    every = np.concatenate([part + i for i, part in enumerate(np.array_split(rows, 8))])
    np.testing.assert_allclose(merged.scatter, fedpca.Moments.from_rows(every).scatter, rtol=1e-9, atol=1e-6)


def test_many_columns_are_stored_as_directions(folder):
    np.save("wide.npy", np.random.default_rng(0).normal(size=(60, 1100)))
    run_ok("fit", "wide.npy", "-n", 3, "--tracker", "exact", "-o", "wide.safetensors")
    assert isinstance(fedpca.load("wide.safetensors"), fedpca.Subspace)


def test_private_models_have_a_certificate_and_merge(folder):
    for name in "ab":
        write_csv(f"{name}.csv", numbers(2000, seed=ord(name)))
        private = [*PRIVATE, "--center", "private", "--ledger", f"{name}.ledger"]
        result = run_json("fit", f"{name}.csv", *private, "--out", f"{name}.safetensors")
        assert result["certificate"]["private"] is True
        assert (result["kind"], result["rows"] <= 2000) == ("moments", True)
        truth = PCA().fit(numbers(2000, seed=ord(name))).explained_variance_
        np.testing.assert_allclose(result["explained_variance"][0], truth[0], rtol=0.2)
    merged = run_json("merge", "a.safetensors", "b.safetensors", "--out", "all.safetensors")
    assert (merged["certificate"]["epsilon"], merged["certificate"]["merged"]) == (8.0, 2)
    assert "certificate" in run_ok("inspect", "all.safetensors")
    run_ok("transform", "all.safetensors", "a.csv", "--out", "s.npy")
    again = ["fit", "a.csv", *PRIVATE, "--ledger", "a.ledger", "--out", "c.safetensors"]
    assert "budget" in run_fails(folder, *again)


@pytest.mark.parametrize(
    "options",
    [
        ["--epsilon", "1"],
        ["--center", "private"],
        ["--ledger", "spent"],
        [*PRIVATE[:-1], "x"],
        [*PRIVATE, "--seed", "1"],
        [*PRIVATE, "--mechanism", "none"],
        [*PRIVATE, "--epsilon", "-1"],
    ],
)
def test_wrong_privacy_settings_are_wrong_usage(folder, options):
    write_csv("a.csv", numbers())
    run_misused("fit", "a.csv", *options, "--out", "m.safetensors")


@pytest.mark.parametrize("option", [["--checkpoint", "c"], ["--center", "mean"]])
def test_what_privacy_excludes_is_wrong_usage(folder, option):
    write_csv("a.csv", numbers())
    run_misused("fit", "a.csv", *PRIVATE, "--out", "m.safetensors", *option)


@pytest.mark.parametrize("command", ["fit", "plan", "audit"])
def test_privacy_settings_have_the_same_options_everywhere(command):
    text = run_ok(command, "--help")
    fields = ("epsilon", "delta", "bound", "center", "mechanism", "adjacency")
    assert all(f"--{field} " in text for field in fields)


def test_plan_and_audit():
    options = ["--epsilon", 1, "--delta", 1e-5, "--bound", 1, "--features", 784, "--rows", 400]
    planned = fedpca.plan(fedpca.Privacy(1.0, 1e-5, 1.0), 784, 400)
    assert run_json("plan", *options)["rows_needed"] == planned.rows_needed
    public = fedpca.Privacy(1.0, 1e-5, 1.0, center=None, evaluate=False)
    given = run_json("plan", *options, "--center", "none", "--no-evaluate")
    assert given["rows_needed"] == fedpca.plan(public, 784, 400).rows_needed < planned.rows_needed
    text = run_ok("plan", *options)
    assert f"rows needed  {planned.rows_needed:,} for 1 component\n" in text
    assert f"\n\n{planned.advice}\nFit with --ledger FILE" in text
    assert "Plan(" not in text
    private = [*options, "--center", "private", "--adjacency", "zero-out", "--mechanism", "sketch"]
    settings = fedpca.Privacy(1.0, 1e-5, 1.0, adjacency="zero-out", mechanism="sketch")
    assert run_json("plan", *private)["rows_needed"] == fedpca.plan(settings, 784, 400).rows_needed
    assert run_json("audit", "--bound", 1, "--center", "none", "--no-evaluate", "--runs", 100)["passed"]


def test_a_plan_compares_secure_sums():
    options = ["--epsilon", 2, "--delta", 1e-6, "--features", 64, "-n", 6, "--owners", 10]
    terms = fedpca.SecureSums(least=8, colluding=2)
    planned = fedpca.plan(fedpca.Privacy(2.0, 1e-6), 64, n_components=6, owners=10, secure=terms)
    found = run_json("plan", *options, "--secure", "--least", 8, "--colluding", 2)
    for name in ("rows_needed", "rows_needed_by_least", "rows_needed_alone", "noise", "visits", "threshold"):
        assert found[name] == getattr(planned, name), name
    assert found["owner"] == planned.owner._asdict()
    assert found["rows_needed_alone"] == run_json("plan", *options)["rows_needed"]
    text = run_ok("plan", *options, "--secure", "--least", 8, "--colluding", 2)
    assert "at least 8 of 10 owners in every sum, 2 may collude with the coordinator; 7 open a sum" in text
    assert "wrap-around  excluded" in text
    assert "They exclude robust merging" in text
    for option in ("--least", "--colluding"):
        assert "the terms of secure sums" in run_misused("plan", *options, option, 8)


def test_a_plan_takes_a_spectrum_or_a_typical_length(folder):
    options = ["--epsilon", 1, "--delta", 1e-6, "--bound", 8, "--features", 5, "--rows", 2000, "-n", 2]
    privacy, variances = fedpca.Privacy(1.0, 1e-6, 8.0), [9.0, 4.0, 1.0]
    planned = fedpca.plan(privacy, 5, 2000, variances, n_components=2)
    Path("spectrum.txt").write_text("9 4\n1\n")
    for spectrum in ("9,4,1", "9, 4, 1", "spectrum.txt"):
        assert run_json("plan", *options, "--spectrum", spectrum)["rows_needed"] == planned.rows_needed
    model = fedpca.Subspace.from_rows(numbers(2000))
    model.save("public.safetensors")
    of_model = fedpca.plan(privacy, 5, 2000, model.singular_values**2 / 1999, n_components=2)
    found = run_json("plan", *options, "--spectrum", "public.safetensors")
    assert found["rows_needed"] == of_model.rows_needed
    found = run_json("plan", *options, "--typical", 0.8)
    assert found["rows_needed"] == fedpca.plan(privacy, 5, n_components=2, typical=0.8).rows_needed
    assert "if rows are about 0.8 long" in found["advice"]
    assert run("plan", *options, "--spectrum", "nowhere.txt").exit_code == 2
    assert "give one of them" in run_fails(folder, "plan", *options, "--spectrum", "9,4", "--typical", 1)


def test_an_audit_that_fails_exits_with_1(monkeypatch):
    from fedpca.auditing.audit import Audit, Finding

    module = import_module("fedpca.cli.audit")
    broken = Audit(
        fedpca.Privacy(1.0, 1e-5, 1.0, center=None, evaluate=False),
        0.1,
        False,
        (Finding("pair", epsilon=9.0, mu=2.0, promised=0.1, passed=False),),
        100,
    )
    given = {}
    monkeypatch.setattr(module, "run_audit", lambda *args, **settings: given.update(settings) or broken)
    result = run("audit", "--bound", 1, "--scale", "std")
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout
    assert given["scale"] == "std"


# --- what goes wrong ---


def truncated_parquet(folder):
    write_parquet("bad.parquet", numbers())
    whole = (folder / "bad.parquet").read_bytes()
    (folder / "bad.parquet").write_bytes(whole[: len(whole) // 2])
    return "bad.parquet"


def broken_row(folder):
    lines = ["a,b,c,d"] + ["1,2,3,4"] * 5000 + ["1,2"] + ["1,2,3,4"] * 10
    (folder / "bad.csv").write_text("\n".join(lines))
    return "bad.csv"


def other_columns(folder):
    write_csv("bad1.csv", numbers())
    write_csv("bad2.csv", numbers(), names=["length", "width", "depth", "age"])
    return "bad*.csv"


def not_there(folder):
    return "none.csv"


def unreadable(folder):
    (folder / "loop.csv").symlink_to("loop.csv")
    return "loop.csv"


def text_column(folder):
    write_parquet("bad.parquet", numbers(), city=["Rome"] * 300)
    return "bad.parquet"


def no_rows(folder):
    (folder / "bad.csv").write_text("a,b\n")
    return "bad.csv"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (truncated_parquet, "truncated or corrupt"),
        (broken_row, "line 5002"),
        (other_columns, "weight"),
        (not_there, "no such file"),
        (unreadable, "cannot read"),
        (text_column, "--drop city"),
        (no_rows, "contains no rows"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--checkpoint", "c.safetensors"]])
def test_bad_files_are_refused_by_fit(folder, make, says, options):
    path = make(folder)
    if options and make is broken_row:  # found late: there is a checkpoint, and no model
        result = run("fit", path, "--batch-rows", 100, "--out", "m.safetensors", *options)
        assert (result.exit_code, (folder / "m.safetensors").exists()) == (1, False)
        assert says in result.stderr
        return
    assert says in run_fails(folder, "fit", path, "--out", "m.safetensors", *options)


@pytest.mark.parametrize("out", ["s.parquet", "s.csv", "s.npy"])
@pytest.mark.parametrize("make", [truncated_parquet, broken_row, other_columns, unreadable, no_rows])
def test_bad_files_are_refused_by_transform(folder, make, out):
    path = make(folder)
    rows = numbers()
    write_csv("good.csv", rows, names=["a", "b", "c", "d"] if make in (broken_row, no_rows) else NAMES)
    run_ok("fit", "good.csv", "--out", "m.safetensors")
    run_fails(folder, "transform", "m.safetensors", path, "--out", out, "--batch-rows", 1000)


def test_a_file_without_permission_is_run_fails(folder):
    write_csv("a.csv", numbers())
    os.chmod("a.csv", 0)
    if os.access("a.csv", os.R_OK):
        pytest.skip("this user may read everything")
    result = run("fit", "a.csv", "--out", "m.safetensors")
    assert result.exit_code == 1
    assert "cannot read" in result.stderr


def test_what_exists_is_not_overwritten_without_force(folder):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--out", "m.safetensors")
    for command in (
        ["fit", "a.csv", "--out", "m.safetensors"],
        ["merge", "m.safetensors", "--out", "n.safetensors"],
        ["transform", "m.safetensors", "a.csv", "--out", "s.csv"],
        ["scale", "a.csv", "--out", "scale.safetensors"],
        ["report", "m.safetensors", "--out", "r.html"],
        ["inspect", "m.safetensors", "--loadings", "l.csv"],
        ["package", "m.safetensors", "--out", "m.zip"],
    ):
        run(*command)
        assert "already exists; choose another path or pass --force" in run_fails(folder, *command)
        run_ok(*command, "--force")


def test_rows_are_not_overwritten_even_by_force(folder):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--out", "m.safetensors")
    said = run_fails(folder, "transform", "m.safetensors", "a.csv", "--out", "a.csv", "--force")
    assert "a.csv is read by this command" in said
    before = Path("a.csv").read_bytes()
    assert "ends in .safetensors" in run_misused("scale", "a.csv", "--out", "a.csv", "--force")
    assert Path("a.csv").read_bytes() == before


@pytest.mark.parametrize("out", ["no/folder/m.safetensors", "."])
def test_an_output_that_cannot_be_is_refused_before_the_work(folder, out):
    write_csv("a.csv", numbers())
    run_fails(folder, "fit", "a.csv", "--out", out)


def test_a_model_of_other_features_is_run_fails(folder):
    write_csv("a.csv", numbers())
    write_csv("b.csv", numbers(), names=["p", "q", "r", "s"])
    np.save("c.npy", numbers()[:, :3])
    np.save("d.npy", numbers())
    for name in ("a.csv", "b.csv", "d.npy"):
        run_ok("fit", name, "--out", f"{name[0]}.safetensors")
    assert "length" in run_fails(folder, "transform", "a.safetensors", "b.csv", "--out", "s.csv")
    assert "4 features" in run_fails(folder, "transform", "d.safetensors", "c.npy", "--out", "s.csv")
    refused = run_fails(folder, "merge", "a.safetensors", "b.safetensors", "--out", "all.safetensors")
    assert "only one has 'length', 'width', 'depth', 'weight', and only another 'p', 'q', 'r', 's'" in refused
    assert refused.endswith("; select the same columns.\n")  # they have nothing in common


@pytest.mark.parametrize("place", [0, 9, 60, -1])
def test_one_flipped_byte_of_a_model_is_found(folder, place):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--out", "m.safetensors")
    contents = bytearray((folder / "m.safetensors").read_bytes())
    contents[place] ^= 1
    (folder / "m.safetensors").write_bytes(contents)
    for command in (
        ["inspect", "m.safetensors"],
        ["merge", "m.safetensors", "--out", "all.safetensors"],
        ["transform", "m.safetensors", "a.csv", "--out", "s.npy"],
    ):
        assert "m.safetensors" in run_fails(folder, *command)


@pytest.mark.parametrize(
    ("command", "out"), [(["fit"], "s.safetensors"), (["transform", "m.safetensors"], "s.npy")]
)
def test_a_file_that_grows_while_it_is_read_is_run_fails(folder, command, out, monkeypatch):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--out", "m.safetensors")
    batches = RowReader.batches

    def growing(rows, skip=0):
        for batch in batches(rows, skip):
            yield batch
            with open("a.csv", "a") as file:
                file.write("1,2,3,4\n")

    monkeypatch.setattr(RowReader, "batches", growing)
    result = run(*command, "a.csv", "--out", out)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "changed while it was read" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "m.safetensors"]


@pytest.fixture
def small_disk(folder):
    """A file system of 64 KB."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount, on Linux")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a failed writer may hold it a while


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (["fit", "--components", "150"], "m.safetensors"),
        (["fit", "--out", "n.safetensors", "--components", "150"], "--checkpoint"),
        (["transform", "m.safetensors"], "s.npy"),
        (["transform", "m.safetensors"], "s.csv"),
        (["transform", "m.safetensors"], "s.parquet"),
    ],
)
def test_a_disk_that_is_full_says_so_and_stays_as_it_was(folder, small_disk, command, out):
    np.save("a.npy", np.random.default_rng(0).normal(size=(2000, 200)))
    run_ok("fit", "a.npy", "--out", "m.safetensors")
    where = ["--checkpoint", small_disk / "c"] if out == "--checkpoint" else ["--out", small_disk / out]
    stderr = run_fails(folder, *command, "a.npy", *where)
    assert "No space left on device" in stderr
    assert list(small_disk.iterdir()) == []
    assert not (folder / "n.safetensors").exists()


@pytest.mark.parametrize("out", ["s.npy", "s.csv", "s.parquet"])
def test_a_full_disk_leaves_nothing_behind(folder, out):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--out", "m.safetensors")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        run_fails(folder, "transform", "m.safetensors", "a.csv", "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


NA_VALUES = {"question marks": "?", "late text": "x"}
BAD_COLUMNS = {  # what a CSV file contains; whether it can be read without the bad column
    "text": ("a,b,c\n1,2,x\n3,5,y\n2,2,z\n", True),
    "dates": ("a,b,c\n1,2,2020-01-01\n3,5,2020-01-02\n2,2,2020-01-03\n", True),
    "question marks": ("a,b,c\n1,2,3\n3,5,?\n2,2,7\n", True),
    "thousands separators": ('a,b,c\n1,2,3\n3,5,"1,234.50"\n2,2,7\n', True),
    "late text": ("a,b,c\n" + "1,2,3\n" * 300_000 + "3,5,x\n", True),
    "text and question marks": ("a,b,c\n1,2,x\n3,?,y\n2,2,z\n", False),
    "only text": ("b,c\nv,x\nu,y\nv,z\n", False),
    "an unnamed column": (",b,c\n1,2,3\n3,5,5\n2,2,7\n", True),
    "names or numbers": ("0,1,2\n3,5,5\n2,2,7\n1,4,3\n", True),
    "commas of either kind": ("a;b;c\n1;2;3,500\n3;5;1,250\n2;2;7,125\n", True),
    "a comment": ("# of 2025\na,b,c\n1,2,3\n3,5,4\n2,2,7\n", True),
    "another encoding": ("a,b,größe\n1,2,3\n3,5,4\n2,2,7\n", True),
    "cells in another encoding": ("a,b,c\n1,2,ä\n3,5,ö\n2,2,ü\n", True),
    "an unknown delimiter": ("a:b:c\n1:2:3\n3:5:4\n2:2:7\n", True),
    "a tab that was not expected": ("a\tb\tc\n1\t2\t3\n3\t5\t4\n2\t2\t7\n", True),
    "a line too long": ("a,b,c\n1,2,3\n3,5,4,4\n2,2,7\n", False),
    "an open quote": ('a,b,c\n1,2,3\n3,5,"4\n2,2,7\n', False),
}


FORCE = {"fit": ["--force"], "transform": ["--force"], "report": ["--force"], "simulate": []}


@pytest.mark.parametrize("kind", BAD_COLUMNS)
@pytest.mark.parametrize("command", ["fit", "transform", "report", "simulate"])
@pytest.mark.long
def test_the_options_that_an_error_advises_exist_and_help(folder, command, kind):
    text, readable = BAD_COLUMNS[kind]
    Path("bad.csv").write_text(text, encoding="latin-1")
    names = re.split("[,;:\t]", next(line for line in text.split("\n") if line[0] != "#"))
    given = ["--delimiter", ";"] if kind == "a tab that was not expected" else []
    check_advice(command, "bad.csv", names, kind, readable, given)


BAD_SHEETS = {  # what an Excel file contains
    "text": [["a", "b", "c"], [1, 2, "x"], [3, 5, "y"], [2, 2, "z"]],
    "dates": [["a", "b", "c"], *([i, 2, datetime.date(2025, 1, i)] for i in (1, 2, 3))],
    "question marks": [["a", "b", "c"], [1, 2, 3], [3, 5, "?"], [2, 2, 7]],
    "names or numbers": [[0, 1, 2], [3, 5, 5], [2, 2, 7], [1, 4, 3]],
    "a title": [["of 2025"], ["a", "b", "c"], [1, 2, 3], [3, 5, 4]],
}


def write_sheet(path, rows):
    openpyxl = pytest.importorskip("openpyxl", reason="it writes the files that are read")
    pytest.importorskip("python_calamine", reason="the excel extra")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)


@pytest.mark.parametrize("kind", BAD_SHEETS)
@pytest.mark.parametrize("command", ["fit", "transform", "report", "simulate"])
def test_the_options_that_an_error_about_a_sheet_advises_exist_and_help(folder, command, kind):
    write_sheet("bad.xlsx", BAD_SHEETS[kind])
    names = ["0", "1", "2"] if kind == "names or numbers" else ["a", "b", "c"]
    check_advice(command, "bad.xlsx", names, kind, readable=kind != "a title")


@pytest.mark.parametrize("command", ["fit", "transform", "report", "simulate"])
def test_the_options_that_an_error_about_lists_advises_exist_and_help(folder, command):
    columns = {"a": [1.0, 3.0, 2.0], "b": [2.0, 5.0, 2.0], "v": [[1.0, 2.0], [3.0], [4.0, 5.0]]}
    pa.parquet.write_table(pa.table(columns), "bad.parquet")
    stderr = check_advice(command, "bad.parquet", ["a", "b", "v_0", "v_1"], "lists", readable=True)
    assert "row 2: lists of v must all have 2 elements, as the first one, got 1; correct or empty" in stderr
    assert "(--drop v)" in stderr


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("names or numbers", ".csv"),
        ("names or numbers", ".xlsx"),
        ("an unknown delimiter", ".csv"),
        ("a tab that was not expected", ".csv"),
    ],
)
def test_the_options_that_an_error_about_private_rows_advises_exist_and_help(folder, kind, ending):
    if ending == ".csv":
        Path("bad.csv").write_text(BAD_COLUMNS[kind][0])
    else:
        write_sheet("bad.xlsx", BAD_SHEETS[kind])
    given = ["--delimiter", ";"] if kind == "a tab that was not expected" else []
    stated = ["--n-rows", 3] if ending == ".xlsx" else []
    line = ["fit", f"bad{ending}", *PRIVATE, *stated, "-o", "n.safetensors", "--force"]
    result = run(*line, *given)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 2)  # one about the ledger
    advised = re.findall(r"\((--header|--no-header|--delimiter \S+)\)", result.stderr)
    assert advised, result.stderr
    for options in advised:
        assert run(*line, *shlex.split(options)).exit_code == 0, options


def check_advice(command, bad, names, kind, readable, given=()):
    """Run a command on a bad file and, if it can be read at all, every advice; returns the error."""
    write_csv("good.csv", numbers()[:, : len(names)], names=names)
    run_ok("fit", "good.csv", "--header", *(["--drop", ""] if "" in names else []), "-o", "m.safetensors")
    line = {
        "fit": ["fit", bad, "-o", "n.safetensors"],
        "transform": ["transform", "m.safetensors", bad, "-o", "s.csv"],
        "report": ["report", "m.safetensors", "--rows", bad, "-o", "r.html"],
        "simulate": ["simulate", bad, "--client", "1" if "1" in names else "b"],
    }[command]
    result = run(*line, *given)
    if result.exit_code == 0:  # a model needs no unnamed column, and knows that there is a header
        assert kind in ("an unnamed column", "names or numbers")
        assert command != "fit"
        return ""
    assert result.stderr.count("\n") == 1
    known = {*re.findall(r"--[a-z-]+", run_ok(command, "--help"))}
    advised = re.findall(r"(--[a-z-]+)", result.stderr)
    assert set(advised) <= known or command in ("transform", "report")  # which have the model's columns
    if advised and readable:
        remedies = [each.partition(" or ")[0] for each in re.findall(r" \((--.*?)\)", result.stderr)]
        assert len(remedies) == len([option for option in advised if option != "--no-header"])
        for remedy in remedies:
            options = shlex.split(remedy.replace("VALUES", NA_VALUES.get(kind, "")))
            if options[0] not in known:
                continue
            assert run(*line, *options, *FORCE[command]).exit_code == 0, remedy
    elif not advised:
        assert re.search(r"; (correct|encode|name|write|look) .*\.$", result.stderr)
    return result.stderr


def test_scores_have_a_known_ending_and_npy_has_no_ids(folder):
    write_csv("a.csv", numbers())
    run_ok("fit", "a.csv", "--columns", "length,width", "--out", "m.safetensors")
    run_misused("transform", "m.safetensors", "a.csv", "--out", "s.xlsx")
    run_misused("transform", "m.safetensors", "a.csv", "--out", "s.npy", "--keep", "depth")


def test_a_model_of_rows_that_do_not_vary_has_nothing_to_transform_with(folder):
    write_csv("a.csv", np.ones((20, 4)))
    assert run_json("fit", "a.csv", "--out", "m.safetensors")["n_components"] == 0
    assert "has no components: the training rows do not vary" in run_fails(
        folder, "transform", "m.safetensors", "a.csv", "--out", "s.npy"
    )


def test_names_from_files_do_not_reach_the_terminal_as_they_are(folder):
    write_parquet("a.parquet", numbers(), **{"\x1b[31mred": ["x"] * 300})
    assert "\x1b" not in run_fails(folder, "fit", "a.parquet", "--out", "m.safetensors")
    write_parquet("b.parquet", numbers(), **{"\x1b[31mred": range(300)})
    warned = run_warns("fit", "b.parquet", "--out", "m.safetensors")
    assert warned.startswith("fedpca: warning: ?[31mred may be an id")
    assert "?[31mred" in run_ok("inspect", "m.safetensors")


# --- stopped and resumed ---


def rows_saved(checkpoint):
    return model_file.read(checkpoint)[2]["checkpoint"]["rows"]


def stopped(shell, folder, how):
    """A fit that is stopped while it goes through 300,000 rows one by one."""
    np.save("a.npy", numbers(300_000))
    fit = ["fit", "a.npy", "--components", 2, "--out", "m.safetensors", "--checkpoint", "c.safetensors"]
    process = shell(*fit, "--batch-rows", 1)
    while not (folder / "c.safetensors").exists():
        assert process.is_running(), process.wait()
        time.sleep(0.05)
    process.kill(how)
    return fit, *process.wait()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_fit_leaves_no_model_and_goes_on_from_its_checkpoint(shell, folder, how, monkeypatch):
    fit, code, stdout, stderr = stopped(shell, folder, how)
    assert (code, stdout) == (128 + how, "")
    assert "Traceback" not in stderr
    assert "rerun the same command" in stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a.npy", "c.safetensors"]
    read = rows_saved("c.safetensors")
    assert 0 < read < 300_000
    assert f"{read:,} rows saved in c.safetensors" in stderr
    assert "run the same command again" in run_fails(folder, "inspect", "c.safetensors")

    passed, batches = [], RowReader.batches
    monkeypatch.setattr(RowReader, "batches", lambda rows, skip=0: passed.append(skip) or batches(rows, skip))
    result = run_json(*fit)
    assert passed == [read]
    assert result["rows"] == 300_000
    np.testing.assert_allclose(result["explained_variance"], PCA(2).fit(np.load("a.npy")).explained_variance_)
    assert not (folder / "c.safetensors").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_fit_goes_on_from_its_checkpoint(fork, folder):
    rows = numbers(300_000)
    np.save("a.npy", rows)
    fit = ["fit", "a.npy", "--components", "2", "--batch-rows", "100", "--out", "m.safetensors"]
    program = (
        "import sys; from fedpca.cli import main; from fedpca.estimators import files\n"
        "files._CHECKPOINT_SECONDS = 0\n"
        f"sys.argv = {['fedpca', *fit, '--checkpoint', 'c']}; main()"
    )
    process = fork(program)
    while not Path("c").exists() or rows_saved("c") < 20_000:
        assert process.is_running()
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not Path("m.safetensors").exists()
    assert 20_000 <= rows_saved("c") < 300_000

    resumed = run_json(*fit, "--checkpoint", "c")
    assert not Path("c").exists()
    whole = run_json(*fit, "--force")
    assert resumed["rows"] == whole["rows"] == 300_000
    # Equal but for rounding: a checkpoint holds the moments, and not the running sums behind them.
    np.testing.assert_allclose(resumed["explained_variance"], whole["explained_variance"], rtol=1e-12)


def test_a_checkpoint_of_other_files_or_settings_is_run_fails(folder):
    rows = numbers()
    rows[:, 2] = np.nan
    write_parquet("a.parquet", rows)
    checkpoint = ["--out", "m.safetensors", "--checkpoint", "c"]
    assert run("fit", "a.parquet", *checkpoint).exit_code == 1  # a column is empty: known at the end
    write_csv("b.csv", numbers())
    others = (["--components", 1], ["--oversample", 1], ["--drop", "depth"])
    for other in (["b.csv"], *(["a.parquet", *options] for options in others)):
        assert "delete it" in run_fails(folder, "fit", *other, *checkpoint)
    run_ok("fit", "b.csv", "--out", "n.safetensors")
    other = ["fit", "b.csv", "--out", "m.safetensors", "--checkpoint", "n.safetensors"]
    assert "delete it" in run_fails(folder, *other)
    run_misused("fit", "b.csv", "--out", "m.safetensors", "--checkpoint", "m.safetensors")


def test_a_column_without_values_is_a_warning(folder):
    rows = numbers(1000)
    rows[100:, 2] = np.nan
    rows[:, 3] = np.nan
    write_parquet("a.parquet", rows)
    fit = ["fit", "a.parquet", "--batch-rows", 100, "--out", "m.safetensors", "--checkpoint", "c"]
    assert run_warns(*fit).startswith("fedpca: warning: weight has no observed value")


@pytest.mark.slow
def test_a_stopped_transform_leaves_nothing(shell, folder):
    np.save("a.npy", numbers(300_000))
    run_ok("fit", "a.npy", "--out", "m.safetensors")
    process = shell("transform", "m.safetensors", "a.npy", "--batch-rows", 1, "--out", "s.npy")
    while not list(folder.glob(".fedpca-*.part")):
        assert process.is_running(), process.wait()
        time.sleep(0.05)
    process.kill(signal.SIGINT)
    assert process.wait() == (130, "", "fedpca: stopped.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["a.npy", "m.safetensors"]


# --- reading ahead ---


def test_what_is_read_ahead_comes_in_order_and_then_its_error():
    def numbers():
        yield from range(20)
        raise ValueError("the end")

    seen = []
    with pytest.raises(ValueError, match="the end"), prefetch(numbers()) as items:
        seen.extend(items)
    assert seen == list(range(20))


def test_whoever_stops_early_stops_the_reader_which_is_never_far_ahead():
    read, threads = [], threading.active_count()

    def numbers():
        for number in range(1000):
            read.append(number)
            yield number

    with prefetch(numbers()) as items:
        for item in items:
            assert len(read) <= item + 6
            if item == 10:
                break
    assert len(read) <= 16
    assert threading.active_count() == threads


# --- to try out, to start from ---


@pytest.mark.long
def test_simulate_digits_and_a_file_with_clients(folder):
    result = run_json("simulate", "--components", 3, "--crashes", 0.3)
    assert (result["clients"], result["rows"], result["same_as_without_faults"]) == (10, 1797, True)
    assert result["crashes"] > 0

    rows = numbers()
    write_parquet("a.parquet", rows, site=[f"s{i % 3}" for i in range(300)])
    result = run_json("simulate", "a.parquet", "--client", "site", "--components", 2)
    assert (result["clients"], result["rows"]) == (3, 300)
    assert "bit for bit" in run_ok("simulate", "a.parquet", "--client", "site")
    assert "n_features=2" in run_ok("simulate", "a.parquet", "--client", "site", "--columns", "depth,width")
    assert run_json("simulate", "--dropouts", 1)["dropped_out"] == [f"{digit}" for digit in range(10)]
    run_misused("simulate", "a.parquet")


def test_new_federation(folder):
    run_ok("new-federation", "study")
    assert (folder / "study" / "pyproject.toml").exists()
    assert "new or empty folder" in run_fails(folder, "new-federation", "study")
