"""Owners and coordinators of secure sums, killed at random moments: the same bytes, one debit, one answer."""

import random
import signal
import time

import numpy as np
import pytest
from secure_folders import PRIVATE, FolderStudy
from secure_sessions import KEYS

VISIT = """
import sys
from pathlib import Path
import numpy as np
from fedpca import Ledger, Roster, SigningKey
from fedpca.federation.folder.secure import SharedSession
from fedpca.secure.rows import OwnerRows

home, index = Path(sys.argv[1]), sys.argv[2]
roster, key = Roster.load(home / "roster.toml"), SigningKey.load(home / "victim.key")
ledger = Ledger.planned(home / f"ledger-{index}.jsonl", 4.0, 1e-6, key=key)
rows = lambda: OwnerRows.of_table(np.load(home / "victim.npy"))
print("ready", flush=True)
SharedSession(home / "shared", roster).visit(key, rows, home / f"state-{index}", ledger=ledger)
"""
COORDINATE = """
import sys
from pathlib import Path
from fedpca import Roster
from fedpca.federation.folder.secure import SharedSession

home = Path(sys.argv[1])
roster = Roster.load(home / "roster.toml")
print("ready", flush=True)
SharedSession(home / "shared", roster).coordinate(closing=True)
"""
KILLS = 50


class Folder:
    """What is in a shared folder never changes: a name stands for the same bytes forever."""

    def __init__(self, path):
        self.path, self.known = path, {}

    def check(self):
        found = {item.name: item.read_bytes() for item in self.path.iterdir() if item.name[0] != "."}
        assert self.known.items() <= found.items()
        self.known = found


class Killer:
    """Runs a program, and kills it at a random moment of the time that it usually takes.

    Attributes:
        kills: how often it came before the end of the program.
    """

    def __init__(self, fork, program, *arguments):
        self._start = lambda: fork(program, *arguments)
        self._usual = 0.05  # seconds
        self.kills = 0

    def run(self, kill=True):
        """Returns whether the program came to its end."""
        process, start = self._start(), time.monotonic()
        assert process.stdout.readline() == "ready\n"
        if kill:
            time.sleep(random.uniform(0, self._usual))
            if process.is_running():
                process.kill()
        status, _, errors = process.wait()
        assert status in (0, -signal.SIGKILL), errors
        self.kills += status != 0
        if not kill:
            self._usual = time.monotonic() - start
        return status == 0


def finish(study):
    """Without kills; the whole study has ended well."""
    for _ in range(40):
        for index in range(len(study.tables)):
            study.visit(index)
        if not study.coordinate(closing=True).waits_for:
            break
    for index in range(len(study.tables)):
        study.visit(index)
    board = study.board()
    record = study.shown()
    for index in range(len(study.tables)):
        masked = [number for number in range(9) if f"{number:02}/masked/{index:03}" in board]
        entries = study.ledger(index).entries
        debits = [int(entry.release[-2:]) for entry in entries]
        assert debits == sorted({*debits, *masked})  # each once
        for number, entry in zip(debits, entries, strict=True):
            assert entry.completed != entry.cancelled
            assert number in masked or entry.cancelled  # killed after the debit, before the words left
    assert study.model().count == record.total(record.n_totals - 1).rows


def prepared(home, seed):
    study = FolderStudy(home, 4, seed, **PRIVATE)
    study.roster.save(home / "roster.toml")
    KEYS[3].save(home / "victim.key")
    np.save(home / "victim.npy", study.tables[3])
    return study


@pytest.mark.engine
def test_an_owner_killed_at_random_moments_never_answers_twice(fork, tmp_path):
    random.seed(1)
    kills, seed = 0, 0
    while kills < KILLS:
        (home := tmp_path / str(seed)).mkdir()
        study, killer = prepared(home, seed), Killer(fork, VISIT, home, 3)
        folder = Folder(study.shared)
        while not study.open().has_ended:
            for index in range(3):
                study.visit(index)
            for attempt in range(3):
                if killer.run(kill=attempt < 2 or random.random() < 0.2):  # else the others go on without it
                    break
                folder.check()
            study.coordinate(closing=True)
            folder.check()
            debits = [entry.release[-2:] for entry in study.ledger(3).entries]
            uploads = [name[:2] for name in study.board() if name.endswith("/masked/003")]
            assert set(uploads) <= set(debits)  # on disk before the words left
        finish(study)
        folder.check()
        kills, seed = kills + killer.kills, seed + 1


@pytest.mark.engine
def test_a_coordinator_killed_at_random_moments_publishes_the_same(fork, tmp_path):
    random.seed(2)
    kills, seed = 0, 0
    while kills < KILLS:
        (home := tmp_path / str(seed)).mkdir()
        study, killer = prepared(home, seed), Killer(fork, COORDINATE, home)
        folder = Folder(study.shared)
        while not study.open().has_ended:
            for index in range(4):
                study.visit(index)
            for attempt in range(3):
                ended = killer.run(kill=attempt < 2)
                folder.check()
                if ended:
                    break
        finish(study)
        folder.check()
        kills, seed = kills + killer.kills, seed + 1
