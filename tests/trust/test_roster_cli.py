"""Rosters and signatures on the command line, with real files."""

import json
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fedpca
from fedpca import Ledger, Roster, SigningKey
from fedpca.trust import Member

pytest.importorskip("pyarrow", reason="the cli extra")

from command_line import invoke

from fedpca.cli.roster import add

pytestmark = pytest.mark.slow  # all of it together

PRIVATE = ["--epsilon", "1", "--delta", "1e-5", "--bound", "15", "--center", "none"]


def run(*arguments):
    return invoke(arguments)


def run_ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def error_of(*arguments, code=1):
    result = run(*arguments)
    assert result.exit_code == code, result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with a roster of two members, their keys, and rows of each."""
    monkeypatch.chdir(tmp_path)
    run_ok("roster", "new", "heart", "--set", "n_features=4")
    for seed, name in enumerate(("north", "south")):
        public = run_ok("roster", "key", f"{name}.key").strip()
        run_ok("roster", "add", "roster.toml", name, public, "--rows", 300)
        rows = np.random.default_rng(seed).normal(size=(300, 4)) * [4, 3, 2, 1]
        np.savetxt(f"{name}.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    return tmp_path


def fit(name, *options):
    signed = ["--roster", "roster.toml", "--key", f"{name}.key"]
    return run_ok("fit", f"{name}.csv", *signed, *options, "-o", f"{name}.safetensors", "--force")


# --- the roster ---


def test_a_roster_from_nothing(study):
    roster = Roster.load("roster.toml")
    assert list(roster.members) == ["north", "south"]
    assert roster.study.startswith("heart-")
    assert len(roster.study) == len("heart-") + 8
    assert len(roster.predecessors) == 2
    assert stat.S_IMODE(Path("north.key").stat().st_mode) == 0o600
    shown = run_ok("roster", "show", "roster.toml")
    for text in (
        roster.study,
        roster.hash,
        "n_features=4",
        "up to 300 rows",
        str(roster.members["north"].key),
    ):
        assert text in shown
    data = json.loads(run_ok("roster", "show", "roster.toml", "--json"))
    assert data["hash"] == roster.hash
    assert [member["id"] for member in data["members"]] == ["north", "south"]


def test_settings_as_they_are_typed(study):
    options = [
        "rank=3", "features=a,b,c,d", "center=false", "scale=std", "epsilon=1", "delta=1e-6", "bound=private",
        "adjacency=zero-out", "mechanism=gram",
    ]  # fmt: skip
    run_ok("roster", "new", "x", "-o", "x.toml", *(part for option in options for part in ("--set", option)))
    assert dict(Roster.load("x.toml").settings) == {
        "rank": 3, "features": ["a", "b", "c", "d"], "center": False, "scale": "std", "epsilon": 1.0,
        "delta": 1e-6, "bound": "private", "adjacency": "zero-out", "mechanism": "gram",
    }  # fmt: skip
    secure = [part for option in ("colluding=1", "least=5", "largest=10") for part in ("--set", option)]
    run_ok("roster", "new", "s", "-o", "s.toml", *secure)
    assert dict(Roster.load("s.toml").settings) == {"colluding": 1, "least": 5, "largest": 10.0}
    assert "with least must have colluding" in error_of("roster", "new", "s", "-o", "t.toml", *secure[2:4])
    assert "'ranks'" in error_of("roster", "new", "x", "-o", "y.toml", "--set", "ranks=3")
    assert "adjacency must be one of" in error_of(
        "roster",
        "new",
        "x",
        "-o",
        "y.toml",
        "--set",
        "epsilon=1",
        "--set",
        "delta=1e-6",
        "--set",
        "adjacency=no",
    )
    assert "NAME=VALUE" in error_of("roster", "new", "x", "-o", "y.toml", "--set", "rank", code=2)
    assert not Path("y.toml").exists()


def test_nothing_is_overwritten_unasked(study):
    before = Path("north.key").read_bytes(), Path("roster.toml").read_bytes()
    assert "never overwritten" in error_of("roster", "key", "north.key")
    assert "already exists" in error_of("roster", "new", "other")
    assert "is a member already" in error_of(
        "roster", "add", "roster.toml", "north", Roster.load("roster.toml").members["south"].key
    )
    assert (Path("north.key").read_bytes(), Path("roster.toml").read_bytes()) == before


def test_changes_made_at_the_same_time_all_count(study):
    names = [f"member {number}" for number in range(8)]
    keys = {name: SigningKey.new().public for name in names}
    with ThreadPoolExecutor(len(names)) as pool:
        futures = [pool.submit(add, Path("roster.toml"), name, keys[name].text) for name in names]
        assert [future.result() for future in futures] == [None] * len(names)
    found = Roster.load("roster.toml")
    assert [*found.members] == [*names, "north", "south"]
    assert len(found.predecessors) == 2 + len(names)


def test_a_link_to_a_roster_stays_one(study):
    (study / "kept").mkdir()
    Path("roster.toml").rename("kept/roster.toml")
    Path("roster.toml").symlink_to("kept/roster.toml")
    run_ok("roster", "remove", "roster.toml", "south")
    assert Path("roster.toml").is_symlink()
    assert [*Roster.load("kept/roster.toml").members] == ["north"]


def test_a_roster_must_continue_the_one_agreed_on(study):
    Path("old.toml").write_bytes(Path("roster.toml").read_bytes())
    assert "nothing changed" in run_ok("roster", "verify", "roster.toml", "--after", "old.toml")
    run_ok("roster", "remove", "roster.toml", "south")
    run_ok("roster", "add", "roster.toml", "south", run_ok("roster", "key", "new.key").strip())
    run_ok("roster", "add", "roster.toml", "east", run_ok("roster", "key", "east.key").strip())
    Roster.load("roster.toml").with_settings(rank=2).save("roster.toml")
    found = run_ok("roster", "verify", "roster.toml", "--after", "old.toml")
    for text in ("added east", "another key of south", "rank: null before, 2 now"):
        assert text in found
    assert "must continue" in error_of("roster", "verify", "old.toml", "--after", "roster.toml")
    run_ok("roster", "new", "heart", "-o", "other.toml")
    assert "of one study" in error_of("roster", "verify", "other.toml", "--after", "old.toml")


# --- fit, inspect, merge, report ---


def test_a_signed_model_is_the_same_model(study):
    out = fit("north", "-n", 2)
    assert "signed by north" in out
    run_ok("fit", "north.csv", "-n", 2, "-o", "plain.safetensors")
    assert fedpca.load("north.safetensors") == fedpca.load("plain.safetensors")
    found = run_ok("inspect", "north.safetensors", "--roster", "roster.toml")
    assert "signature: holds: signed by north, a member, under this roster" in found
    data = json.loads(run_ok("inspect", "north.safetensors", "--roster", "roster.toml", "--json"))
    assert data["signature"]["holds"] is True
    assert data["signature"]["member"] == "north"
    found = run_ok("inspect", "north.safetensors")
    assert "signature: holds: signed with the key ed25519:" in found
    assert "no roster: senders are not verified" in found
    assert "signature: none; no roster: senders are not verified" in run_ok("inspect", "plain.safetensors")
    assert json.loads(run_ok("inspect", "plain.safetensors", "--json"))["signature"]["holds"] is None
    found = run_ok("inspect", "plain.safetensors", "--roster", "roster.toml")
    assert "signature: does not hold: the file must be signed" in found


def test_inspect_says_what_does_not_hold(study):
    fit("north")
    contents = Path("north.safetensors").read_bytes()
    study = Roster.load("roster.toml").hash.encode()
    other = study[:-1] + (b"0" if study[-1:] != b"0" else b"1")
    Path("north.safetensors").write_bytes(contents.replace(study, other))  # the checksum does not see it
    assert "signature: does not hold: signed with the key" in run_ok("inspect", "north.safetensors")
    found = run_ok("inspect", "north.safetensors", "--roster", "roster.toml")
    assert "does not hold: the file was changed after 'north' signed it" in found
    assert "1 file must not be used: north.safetensors" in error_of(
        "roster", "verify", "roster.toml", "north.safetensors"
    )


def test_a_signed_file_is_shown_where_signatures_cannot_be_checked(study, monkeypatch):
    fit("north")
    for module in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, module, None)
    found = run_ok("inspect", "north.safetensors")
    assert "signature: not checked: signed with the key ed25519:" in found
    assert "pip install 'fedpca[secure]'" in found
    assert json.loads(run_ok("inspect", "north.safetensors", "--json"))["signature"]["holds"] is None
    assert "needs cryptography" in error_of("inspect", "north.safetensors", "--roster", "roster.toml")


def test_the_report_shows_the_signature(study):
    pytest.importorskip("matplotlib", reason="the report extra")
    fit("north")
    run_ok("report", "north.safetensors", "--roster", "roster.toml", "-o", "page.html")
    assert "Holds: signed by north, a member, under this roster." in Path("page.html").read_text()
    run_ok("report", "north.safetensors", "-o", "page.html", "--force")
    assert "no roster: senders are not verified." in Path("page.html").read_text()


def test_merge_takes_what_members_signed_and_nothing_else(study):
    fit("north")
    files = ["north.safetensors", "south.safetensors"]
    run_ok("fit", "south.csv", "-o", "south.safetensors")
    merged = ["-o", "both.safetensors", "--roster", "roster.toml"]
    assert "south.safetensors must be signed" in error_of("merge", *files, *merged)
    fit("south")
    out = run_ok("merge", *files, *merged)
    assert "signed by members of study 'heart-" in out
    assert "north, south" in out
    run_ok("merge", *files, "-o", "plain.safetensors")
    assert fedpca.load("both.safetensors") == fedpca.load("plain.safetensors")
    data = json.loads(run_ok("merge", "north.safetensors", *merged, "--force", "--json"))
    assert data["roster"]["not_heard_from"] == ["south"]
    Path("copy.safetensors").write_bytes(Path("north.safetensors").read_bytes())
    assert "'north' has signed north.safetensors and copy.safetensors" in error_of(
        "merge", "north.safetensors", "copy.safetensors", *merged, "--force"
    )
    result = run("merge", *files, "-o", "plain.safetensors", "--force", "--verbose")
    assert "senders are not verified" in result.stderr


def test_merge_checks_declared_rows_and_settings(study):
    roster = Roster.load("roster.toml")
    fit("north")
    roster.with_settings(center=False).save("other.toml")
    merged = ["-o", "both.safetensors", "--roster", "other.toml"]
    assert "north.safetensors: center must be False, as in the roster of study" in error_of(
        "merge", "north.safetensors", *merged
    )
    roster.with_settings(epsilon=1.0, delta=1e-5).save("other.toml")
    assert "no privacy certificate" in error_of("merge", "north.safetensors", *merged)
    declared = roster.without_member("north").with_member(Member("north", roster.members["north"].key, 299))
    declared.save("other.toml")
    assert "declared 299 rows" in error_of("merge", "north.safetensors", *merged)
    assert not Path("both.safetensors").exists()


def test_a_fit_that_is_not_what_was_agreed_is_refused_before_anything_is_written(study):
    roster = Roster.load("roster.toml")
    signed = ["--roster", "other.toml", "--key", "north.key", "-o", "out.safetensors"]
    for settings, problem in (
        ({"n_features": 5}, "n_features must be 5, as in the roster of study"),
        (
            {"n_features": None, "features": ["a", "b", "c", "e"]},
            "features must be 4 names in their order",
        ),
        ({"center": False}, "center must be False, as in the roster"),
        ({"scale": "std"}, "scale must be 'std', as in the roster"),
    ):
        roster.with_settings(**settings).save("other.toml")
        assert problem in error_of("fit", "north.csv", *signed)
    roster.with_settings(epsilon=1, delta=1e-5, bound=15).save("other.toml")
    assert "add --epsilon 1 --delta 1e-05" in error_of("fit", "north.csv", *signed, code=2)
    dear = ["--epsilon", "2", "--delta", "1e-5", "--bound", "15", "--center", "none", "--ledger", "l.jsonl"]
    assert "epsilon must be 1.0, as in the roster of study" in error_of("fit", "north.csv", *signed, *dear)
    roster.without_member("north").save("other.toml")
    assert "is that of no member" in error_of("fit", "north.csv", *signed)
    declared = roster.without_member("north").with_member(Member("north", roster.members["north"].key, 299))
    declared.save("other.toml")
    assert "declared 299 rows" in error_of("fit", "north.csv", *signed)
    spending = [*PRIVATE, "--ledger", "l.jsonl"]
    assert "declared 299 rows" in error_of("fit", "north.csv", *signed, *spending)
    Path("north.key").chmod(0o644)
    assert "chmod 600 north.key" in error_of("fit", "north.csv", *signed)
    assert "need each other" in error_of(
        "fit", "north.csv", "--key", "north.key", "-o", "out.safetensors", code=2
    )
    assert not Path("out.safetensors").exists()
    assert not Path("l.jsonl").exists()


def test_a_ledger_is_signed_with_the_model_and_checked_against_it(study):
    fit("north", *PRIVATE, "--ledger", "ledger.jsonl")
    ledger = Ledger("ledger.jsonl")
    assert ledger.signed_by == (Roster.load("roster.toml").members["north"].key,)
    certificate = fedpca.load("north.safetensors").certificate
    assert 0 < certificate.ledger.entries <= len(ledger.entries)
    found = run_ok("roster", "verify", "roster.toml", "north.safetensors", "ledger.jsonl")
    assert "north.safetensors: signed by north" in found
    assert "ledger.jsonl: signed by north; " in found
    before = Path("ledger.jsonl").read_bytes()
    lines = before.splitlines(keepends=True)
    Path("ledger.jsonl").write_bytes(lines[0])
    result = run("roster", "verify", "roster.toml", "north.safetensors", "ledger.jsonl", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["holds"] is False
    assert "lines were cut off at the end" in data["files"]["ledger.jsonl"]["text"]
    Path("ledger.jsonl").write_bytes(before.replace(b'"mu": ', b'"mu":  ', 1))
    assert "must not be used" in error_of("roster", "verify", "roster.toml", "ledger.jsonl")
    Path("ledger.jsonl").write_bytes(before)
    run_ok("fit", "south.csv", *PRIVATE, "--ledger", "unsigned.jsonl", "-o", "s.safetensors")
    assert "must not be used" in error_of("roster", "verify", "roster.toml", "unsigned.jsonl")
    refused = error_of("fit", "north.csv", *PRIVATE, "--ledger", "ledger.jsonl", "-o", "again.safetensors")
    assert "only a key may write to it" in refused
    assert Path("ledger.jsonl").read_bytes() == before


def test_lines_that_were_written_without_a_key_are_named(study):
    Ledger("ledger.jsonl", epsilon=2.0, delta=1e-4)
    fit("north", *PRIVATE, "--ledger", "ledger.jsonl")
    found = run_ok("roster", "verify", "roster.toml", "north.safetensors", "ledger.jsonl")
    assert "; before them 1 line without a key" in found
