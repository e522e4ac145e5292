"""Killed at any step, whoever writes a key, a roster, a signed file or a ledger leaves no half of it."""

import shutil
import signal

import pytest
from helpers import rows_of

import fedpca
from fedpca import Aggregator, Ledger, Roster, SigningKey, Subspace
from fedpca.federation.folder import collect, publish
from fedpca.trust import Member

# Dies before the given call of one of the system's functions: files are written by few.
KILLED = """
import os, signal, sys
from pathlib import Path
import fedpca
from fedpca import Aggregator, Ledger, Roster, SigningKey, Subspace
from fedpca.federation.folder import collect, publish
from fedpca.trust import Member

folder, step = Path(sys.argv[1]), int(sys.argv[2])
key, roster = SigningKey.load(folder / "north.key"), Roster.load(folder / "roster.toml")
other = SigningKey.new()
calls = 0

def deadly(function):
    def call(*arguments, **settings):
        global calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **settings)
    return call

for name in ("open", "link", "replace", "fsync", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
other.save(folder / "other.key")
roster.with_member(Member("other", other.public)).save(folder / "roster.toml")
summary = Subspace.from_rows([[1.0, 2.0], [3.0, 1.0], [0.0, 5.0]])
publish(folder / "shared", "north", 2, summary, signer=roster.signer(key))
with Aggregator(roster=roster, store=folder / "store") as aggregator:
    collect(folder / "shared", aggregator)
ledger = Ledger(folder / "ledger.jsonl", key=key)
ledger.complete(ledger.debit(0, 10, "gram", 0.01))
print("done")
"""


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    (folder / "shared").mkdir(parents=True)
    key = SigningKey.new()
    key.save(folder / "north.key")
    roster = Roster("study-1", [Member("north", key.public)])
    roster.save(folder / "roster.toml")
    publish(folder / "shared", "north", 1, Subspace.from_rows(rows_of(0, 9, 2)), signer=roster.signer(key))
    with Aggregator(roster=roster, store=folder / "store") as aggregator:
        assert collect(folder / "shared", aggregator) == []
    Ledger(folder / "ledger.jsonl", epsilon=1.0, delta=1e-5, key=key)
    return folder


@pytest.mark.slow
def test_killed_at_any_step_everything_is_whole_or_not_there(fork, study, tmp_path):
    statuses, step = [], 0
    while not statuses or statuses[-1] != 0:
        step += 1
        folder = tmp_path / f"copy {step}"
        shutil.copytree(study, folder)
        status, printed, errors = fork(KILLED, folder, step).wait()
        statuses.append(status)
        assert status in (0, -signal.SIGKILL), errors
        key, old = SigningKey.load(folder / "north.key"), Roster.load(study / "roster.toml")
        if (folder / "other.key").exists():
            SigningKey.load(folder / "other.key")
        for part in folder.glob(".fedpca-*.part"):  # what a killed writer left behind
            assert b"PRIVATE" not in part.read_bytes() or not part.stat().st_mode & 0o077
        new = Roster.load(folder / "roster.toml")
        assert new == old or old.hash in new.predecessors
        with Aggregator(roster=old, store=folder / "store") as aggregator:
            assert dict(aggregator.quarantined) == {}
            assert aggregator.versions["north"] in (1, 2)
            assert collect(folder / "shared", aggregator) == []
        for path in (folder / "shared").glob("*.safetensors"):
            old.check(path.read_bytes(), "north")
            fedpca.load(path)
        ledger = Ledger(folder / "ledger.jsonl", key=key)
        ledger.complete(ledger.debit(20, 30, "gram", 0.01))
        assert ledger.signed_by == (key.public,)
        shutil.rmtree(folder)
    assert "done" in printed
    assert len(statuses) > 15
