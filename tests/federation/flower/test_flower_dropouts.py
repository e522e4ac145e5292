"""Secure sums of real Flower processes that drop out: the exact sum of those who are in it, or a refusal.

The example with seven hospitals runs as it is, but for apps that start at once.

Some patterns of drop-outs are tried; FEDPCA_DROPOUTS=20 tries twenty, which takes minutes.
"""

import importlib.util
import json
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import Forks

import fedpca

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flower_dropouts import IMPORTS, LEAVING, PROGRAMS, SITE, random_drop_outs
from flower_secure import PLAIN, PRIVATE, SecureClub, summary_in

pytestmark = pytest.mark.engine

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower" / "run_loopback.py"
specification = importlib.util.spec_from_file_location("quick_loopback", EXAMPLE)
run_loopback = importlib.util.module_from_spec(specification)
specification.loader.exec_module(run_loopback)

N_PATTERNS = int(os.environ.get("FEDPCA_DROPOUTS", "6"))
STUDIES = (PLAIN, PRIVATE)  # each has a deployment, which its patterns share
OWNERS, LEAST = 4, 3
DEADLINE = 120.0  # seconds; a run takes less than 30 on a quiet machine
PATIENCE = 300.0


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Commands of Flower, of which those of apps start at once, for all deployments of this file."""
    tools = tmp_path_factory.mktemp("tools")
    for tool in run_loopback.TOOLS.glob("fl*w*r*"):
        (tools / tool.name).symlink_to(tool)
    with Forks(IMPORTS) as forks, pytest.MonkeyPatch.context() as patch:
        for name, program in PROGRAMS.items():
            (tools / name).unlink()
            forks.command(tools / name, program)
        patch.setattr(run_loopback, "TOOLS", tools)
        yield forks


class QuickDeployment(run_loopback.Deployment):
    """One whose SuperLink keeps nothing in files."""

    def __init__(self, folder):
        super().__init__(folder)
        site = self.folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        self.environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        }

    def _start(self, name, command, *arguments, **environment):
        arguments = [":flwr-in-memory:" if each == "superlink.db" else each for each in arguments]
        super()._start(name, command, *arguments, **environment)


class Outcome(NamedTuple):
    """Of a pattern: the summary and log of a run, who is in which sum, and the same when all are back."""

    pattern: dict
    summary: dict
    log: str
    sums: list
    again: dict
    final: list


class Federation:
    """A SuperLink, and a SuperNode per owner, for one secure study after another."""

    def __init__(self, home, settings):
        home.mkdir()
        self.home, self.settings, self.current = home, settings, home / "current"
        self.deployment = QuickDeployment(home / "deployment")
        self._nodes = {}  # the name of its SuperNode, by owner
        self._n_started = 0

    def begin(self, name, pattern):
        """Another study, of the SuperNodes that are there: their files are others, under the same names."""
        (self.home / name).mkdir()
        self.current.unlink(missing_ok=True)
        self.current.symlink_to(name)
        (self.current / "pattern.json").write_text(json.dumps(pattern))
        self.club = SecureClub(self.current, OWNERS, settings=self.settings, least=LEAST)
        self._start_missing()

    def come_back(self, pattern):
        """Let nobody drop out any more, and start those again that have."""
        (self.current / "pattern.json").write_text("{}")
        for owner, (moment, mode, _) in pattern.items():
            asked = self.current / f"{owner}.asked"
            if mode in LEAVING and asked.exists() and len(asked.read_text()) > moment:
                self.deployment.kill(self._nodes.pop(owner))
        self._start_missing()

    def _start_missing(self):
        """With new keys: for a while the SuperLink believes that those who were killed are there."""
        deployment, missing = self.deployment, [each for each in self.club.configs if each not in self._nodes]
        for owner in missing:
            self._n_started += 1
            self._nodes[owner] = f"{owner}-{self._n_started}"
        deployment.register(*(self._nodes[owner] for owner in missing))
        for owner in missing:
            deployment.start_node(self._nodes[owner], self.club.configs[owner])
            (self.home / f"{owner}.pid").write_text(str(deployment.processes[self._nodes[owner]].pid))
        until(lambda: all("SuperNode ID" in deployment.log(self._nodes[owner]) for owner in missing))

    def start_run(self, **settings):
        agreed = self.club.run_config | {"folder": str(self.club.server), "deadline": DEADLINE}
        return self.deployment.start_run(**agreed | settings)

    def run(self, **settings):
        """A run to its end: its summary and its log."""
        log, _ = self.start_run(**settings).communicate(timeout=DEADLINE + PATIENCE)
        return summary_in(self.club.server), log

    def check_totals(self):
        """See `SecureClub.check_totals`."""
        drawn = {name: self.current / f"{name}.npy.drawn" for name in self.club.configs}
        heads = {
            name: json.loads(path.read_text()) | {"index": index}
            for index, (name, path) in enumerate(drawn.items())
            if path.exists()
        }
        return self.club.check_totals(heads if self.settings is PRIVATE else None)

    def attempt(self, seed):
        """A run with random drop-outs and, if there is no model then, another one with all."""
        rng = random.Random(seed)
        pattern = random_drop_outs(rng, [f"owner{number}" for number in range(OWNERS)])
        self.begin(f"study-{seed}", pattern)
        summary, log = self.run(expect=rng.choice((0, LEAST)), retries=1)
        sums, again = self.check_totals(), summary
        self.come_back(pattern)
        if summary["model"] is None:
            again, _ = self.run()
        return Outcome(pattern, summary, log, sums, again, self.check_totals())


@pytest.fixture(scope="module")
def outcomes(forks, tmp_path_factory):
    """By number of the pattern. The deployments work at the same time."""
    home, found = tmp_path_factory.mktemp("dropouts"), {}

    def work(first):
        federation = Federation(home / str(first), STUDIES[first])
        with federation.deployment:
            for seed in range(first, N_PATTERNS, len(STUDIES)):
                found[seed] = federation.attempt(seed)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work, first) for first in range(len(STUDIES))]:
            done.result()
    return found


@pytest.mark.parametrize("seed", range(N_PATTERNS))
def test_patterns(outcomes, seed):
    _, summary, log, sums, again, final = outcomes[seed]
    assert summary["finished"], log
    if summary["model"] is None:
        assert "too few members were there in time" in summary["problem"], log
    else:
        assert summary["problem"] == ""
        assert [entry["owners"] for entry in summary["secure"]["sums"]] == [list(owners) for owners in sums]
    assert again["problem"] == ""
    assert again["secure"]["session"] == summary["secure"]["session"]  # what was begun went on
    assert final[: len(sums)] == sums
    assert len(final) == 2


def test_the_example(forks, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = importlib.import_module("hospitals_secure")
    monkeypatch.setattr(example, "Deployment", QuickDeployment)
    (tmp_path / "pattern.json").write_text("{}")  # nobody drops out but as the example says
    example.main(tmp_path)
    printed = capsys.readouterr().out
    assert "gram: 19200 rows of center, east, lake, north, south, west\n" in printed
    assert "evaluation: 17000 rows of center, east, north, south, west\n" in printed
    assert "lake: accepted; it was not there for 'evaluation'.\n" in printed
    assert "harbor: waiting; the sums were taken without it" in printed
    assert "north: accepted; it is in all sums.\n" in printed
    assert float(re.search(r"([\d.]+) degrees from", printed)[1]) < 3
    page = (tmp_path / "report.html").read_text()
    assert "6 of 7 members are in a sum; in none: harbor." in page
    assert fedpca.load(tmp_path / "study" / "model.safetensors").certificate.epsilon == 1.0
