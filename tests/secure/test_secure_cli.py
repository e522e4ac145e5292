"""fedpca secure on the command line: a study from its roster to its model, with real files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedpca

pytest.importorskip("pyarrow", reason="the cli extra")

from command_line import invoke

NAMES = ("east", "north", "south", "west")


def run(*arguments):
    return invoke(arguments)


def run_ok(*arguments, code=0):
    result = run(*arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def error_of(*arguments, code=1):
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 or code == 2
    return " ".join(result.stderr.split())


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with a roster of four members, their keys and rows, and an empty shared folder."""
    monkeypatch.chdir(tmp_path)
    begin("--set", "epsilon=4", "--set", "delta=1e-6")
    return tmp_path


def begin(*settings):
    shared = ["--set", "rank=2", "--set", "features=a,b,c", "--set", "colluding=1"]
    run_ok("roster", "new", "heart", *shared, *settings)
    rng = np.random.default_rng(0)
    common = rng.normal(size=(2, 3))
    for count, name in enumerate(NAMES, 30):
        public = run_ok("roster", "key", f"{name}.key").strip()
        run_ok("roster", "add", "roster.toml", name, public)
        rows = rng.normal(size=(count, 2)) @ common + 0.1 * rng.normal(size=(count, 3))
        np.savetxt(f"{name}.csv", rows, delimiter=",", header="a,b,c", comments="")
    Path("shared").mkdir()
    run_ok("secure", "new", "shared", "--roster", "roster.toml")


def step(name, *options, code=0):
    arguments = ["secure", "step", "shared", f"{name}.csv", "--roster", "roster.toml", "--key", f"{name}.key"]
    return run_ok(*arguments, *options, code=code)


def coordinate(*options, code=0):
    return run_ok("secure", "coordinate", "shared", "--roster", "roster.toml", *options, code=code)


def all_step():
    return [run("secure", "step", "shared", f"{name}.csv", *of(name)).exit_code for name in NAMES]


def of(name):
    return ["--roster", "roster.toml", "--key", f"{name}.key"]


def test_forgetting_a_session(study):
    step("north")
    shown = run_ok("secure", "forget", "shared", *of("north"))
    assert shown.startswith("north: erased the secrets of session ")
    [head] = Path("north.state").glob("*/session.json")
    assert json.loads(head.read_text())["secrets"]["enc"] is None
    assert "has no" in error_of("secure", "forget", "shared", *of("east"))


@pytest.mark.slow
def test_from_roster_to_model(study):
    assert step("north") == (
        "north: wrote keys-001; waits for keys from east, south, west: 1 of 4 are there, at least 3 are "
        "needed\n"
    )
    assert step("north", code=3).startswith("north: waits for keys from east, south, west")
    assert step("north", "-q", code=3) == ""
    for name in ("east", "south"):
        step(name)
    assert coordinate(code=3).startswith("coordinator: waits for keys from west: 3 of 4 are there")
    step("west")
    assert json.loads(coordinate("--json"))["wrote"] == ["keyring"]
    assert "must have ended" in error_of("secure", "model", "shared", "--roster", "roster.toml", "-o", "m")
    while "has ended" not in run_ok("secure", "status", "shared", "--roster", "roster.toml"):
        assert set(all_step()) <= {0, 3}
        coordinate(code=0 if run_ready() else 3)
    ended = "the study has ended: `fedpca secure model` writes its model\n"
    assert coordinate() == f"coordinator: {ended}"
    assert step("north").endswith(ended)
    shown = run_ok("secure", "model", "shared", "--roster", "roster.toml", "-o", "model.safetensors")
    model = fedpca.load("model.safetensors")
    assert shown == f"model.safetensors: {model.rank} components of {model.count:.0f} rows\n"
    certificate = model.certificate
    assert certificate.secure.members == NAMES
    shown = run_ok("secure", "status", "shared", "--roster", "roster.toml")
    assert "now:      the study has ended" in shown
    assert "member  keys  shares  agreed  sum 00" in shown
    data = json.loads(run_ok("secure", "status", "shared", "--roster", "roster.toml", "--json"))
    assert {row["sum 00"] for row in data["members"]} == {"answered"}
    assert data["waits_for"] is None
    n_sums = len(certificate.secure.sums)
    shown = run_ok("secure", "verify", "shared", "--roster", "roster.toml")
    assert shown == f"shared: {n_sums} totals are those of the messages that owners have signed\n"
    ledger = fedpca.Ledger("north.state/ledger.jsonl")
    assert ledger.entries
    assert all(entry.completed for entry in ledger.entries)
    verified = run_ok("roster", "verify", "roster.toml", "north.state/ledger.jsonl")
    assert "signed by north" in verified
    assert Path("north.state").stat().st_mode & 0o077 == 0


def run_ready():
    """Whether the coordinator has something to do."""
    data = json.loads(run_ok("secure", "status", "shared", "--roster", "roster.toml", "--json"))
    return data["waits_for"] == "waits for the coordinator"


def until_announced():
    while not Path("shared/00-announced").exists():
        all_step()
        run("secure", "coordinate", "shared", "--roster", "roster.toml")


@pytest.mark.slow
def test_refusals_and_a_ledger_with_a_cancelled_debit(study):
    until_announced()
    all_step()
    for name in ("east", "north"):
        wrote = run_ok("secure", "refuse", "shared", *of(name))
        assert wrote.startswith(f"{name}: wrote 00-refused-00")
    assert "cancelled" in run_ok("secure", "refuse", "shared", *of("south"))
    assert "cancelled" in step("west")
    entry = fedpca.Ledger("west.state/ledger.jsonl").entries[0]
    assert entry.cancelled
    assert fedpca.Ledger("west.state/ledger.jsonl").spent() == 0
    verified = run_ok("roster", "verify", "roster.toml", "west.state/ledger.jsonl")
    assert "1 entry, 1 of them cancelled by proof" in verified
    shown = run_ok("secure", "status", "shared", "--roster", "roster.toml")
    assert [line.split()[-1] for line in shown.splitlines()[-4:]] == [
        "refused",
        "refused",
        "refused",
        "masked",
    ]

    class Forged:
        release = "x"

        def to_json(self):
            return json.loads(entry.proof)

    key = fedpca.SigningKey.load("west.key")
    ledger = fedpca.Ledger("west.state/ledger.jsonl", key=key)
    ledger.debit(0, 33, "gram", 0.1, release="x")
    ledger.cancel("x", Forged())
    result = run("roster", "verify", "roster.toml", "west.state/ledger.jsonl")
    assert result.exit_code == 1
    assert "the debit x was cancelled, and its proof does not hold" in result.stdout
    assert "of another debit or member" in result.stdout


def test_mistakes_are_one_line(study):
    options = ["--roster", "roster.toml"]
    assert "has a session already" in error_of("secure", "new", "shared", *options)
    Path("empty").mkdir()
    for command in ("coordinate", "status"):
        assert "empty has no session" in error_of("secure", command, "empty", *options)
    assert "make or mount it first" in error_of("secure", "status", "nowhere", *options)
    nobody = run_ok("secure", "step", "empty", "north.csv", *of("north"), code=3)
    assert nobody == "north: waits for the coordinator to open a session\n"
    assert "no such key file" in error_of(
        "secure", "step", "shared", "north.csv", *options, "--key", "no.key"
    )
    run_ok("roster", "new", "plain", "--set", "rank=2", "-o", "plain.toml")
    assert "colluding" in error_of("secure", "new", "empty", "--roster", "plain.toml")
    few = ["--set", "rank=2", "--set", "n_features=3", "--set", "colluding=1", "--set", "largest=1"]
    run_ok("roster", "new", "few", *few, "-o", "few.toml")
    for name in ("north", "south"):
        key = fedpca.SigningKey.load(f"{name}.key").public.text
        run_ok("roster", "add", "few.toml", name, key)
    assert "3 to 1000 members, got 2" in error_of("secure", "new", "empty", "--roster", "few.toml")
    assert "not standard input" in error_of("secure", "step", "shared", "-", *of("north"), code=2)
    columns = error_of("secure", "step", "shared", "north.csv", *of("north"), "--columns", "a,b")
    assert "must have the 3 features of the roster, in its order, got 2, without 'c'" in columns
    Path("wide.csv").write_text("a,b,c,note\n1,2,3,4\n")
    assert "got 4, with 'note'" in error_of("secure", "step", "shared", "wide.csv", *of("north"))
    for command in (["step", "shared", "north.csv"], ["refuse", "shared"]):
        inside = error_of("secure", *command, *of("north"), "--state", "shared/state")
        assert "must be outside the shared folder" in inside
        assert "the state must be a folder, and north.csv is a file" in error_of(
            "secure", *command, *of("north"), "--state", "north.csv"
        )
    assert "north.csv has not; make one" in error_of(
        "secure", "step", "shared", "north.csv", *options, "--key", "north.csv"
    )
    assert "only a sum that was announced" in error_of("secure", "refuse", "shared", *of("north"))
    assert sorted(path.name for path in Path("shared").iterdir()) == ["session"]


def test_the_key_of_another_member_is_named(study):
    step("north")
    rows = error_of("secure", "step", "shared", "south.csv", *of("north"))
    assert "north.key is the key of 'north': the number of rows changed since this session began" in rows
    member = error_of("secure", "step", "shared", "south.csv", *of("south"), "--state", "north.state")
    assert "south.key is the key of 'south': the member and the number of rows changed" in member
    fedpca.Ledger("small.jsonl", epsilon=0.1, delta=1e-7, key=fedpca.SigningKey.load("west.key"))
    budget = error_of("secure", "step", "shared", "south.csv", *of("west"), "--ledger", "small.jsonl")
    assert "west.key is the key of 'west': the release would cost some record" in budget
    refusal = error_of("secure", "refuse", "shared", *of("west"))
    assert "west.key is the key of 'west': only a sum that was announced" in refusal


def test_a_lost_state_folder_is_named(study):
    step("north")
    shutil.rmtree("north.state")
    lost = error_of("secure", "step", "shared", "north.csv", *of("north"))
    assert "keys/001 is on the board, and not in its state; take the state that it was sent with" in lost


def test_too_few_owners_never_go_on(study):
    for name in ("north", "west"):
        step(name)
    text = coordinate("--close", code=3)
    assert "waits for keys from east, south: 2 of 4 are there, at least 3 are needed" in text
    assert "--wait" in error_of(
        "secure", "coordinate", "shared", "--roster", "roster.toml", "--wait", "-1", code=2
    )
