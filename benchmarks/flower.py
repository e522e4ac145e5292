"""What a Flower federation costs: real SuperNodes on loopback, with TLS, and releases of 40 MB.

    python -m benchmarks.flower           # 5 and 10 nodes, and a release of 1 GB
    python -m benchmarks.flower --quick   # 3 nodes

It needs the extra "flower", and psutil. Every node has rows with d = 100,000 and sends 51 directions in
float64. Processes are looked at five times a second: CPU seconds are those of a process when it was last
seen, memory is its largest resident set. A SuperNode is two processes, and for every ask a ClientApp, which
makes the release, is a third.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np
import psutil

from benchmarks.common import heading, machine, number, options, table
from fedpca import Subspace
from fedpca.summaries import model_file

D, RANK, ROWS = 100_000, 34, 100  # of rank 34, 51 directions travel: 41 MB
LARGE = 1_250  # directions of the largest release: 1 GB
ROLES = ("flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp", "flower-superlink")
DEADLINE = 300.0


def run_loopback() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "flower" / "run_loopback.py"
    specification = importlib.util.spec_from_file_location("run_loopback", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Watch:
    """CPU seconds and largest resident set of every Flower process below this one, by role and number."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[int, float]] = defaultdict(dict)
        self.bytes: dict[str, dict[int, int]] = defaultdict(dict)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    role = next(
                        (role for role in ROLES if any(role in word for word in process.cmdline())), ""
                    )
                    times = process.cpu_times()
                    seen = self.bytes[role].get(process.pid, 0)
                    self.bytes[role][process.pid] = max(seen, process.memory_info().rss)
                    self.seconds[role][process.pid] = times.user + times.system

    def cell(self, role: str) -> str:
        seconds, sizes = self.seconds[role].values(), self.bytes[role].values()
        return f"{number(sum(seconds) / len(seconds))} s, {max(sizes) / 1e6:.0f} MB"


def federation(loopback: Any, home: Path, configs: dict[str, dict[str, Any]], title: str) -> list[str]:
    """Start a federation, run it once, and say what it took."""
    with Watch() as watch, loopback.Deployment(home / "deployment") as deployment:
        deployment.register(*configs)
        for name, config in configs.items():
            deployment.start_node(name, config)
        started = time.monotonic()
        said = deployment.run(
            folder=str(home / "server"), rank=RANK, quorum=1, expect=len(configs), deadline=DEADLINE
        )
        wall = time.monotonic() - started
    if not (home / "server" / "summary.json").exists():
        raise RuntimeError(f"the ServerApp failed:\n{said[-3000:]}")
    summary = json.loads((home / "server" / "summary.json").read_text())
    for answer in summary["replies"]:
        if answer["reason"]:
            print(f"{answer['client']!r} {answer['what']}: {answer['reason']}")
    return [title, str(len(summary["contributors"])), number(wall), *(watch.cell(role) for role in ROLES)]


def many(loopback: Any, nodes: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = np.random.default_rng(0).standard_normal((ROWS, D))
        np.save(home / "rows.npy", rows)
        configs = {
            f"node-{place}": {
                "client-id": f"client {place}",
                "source": str(home / "rows.npy"),
                "state": str(home / f"state-{place}"),
            }
            for place in range(nodes)
        }
        return federation(loopback, home, configs, f"{nodes} nodes, 41 MB each")


def large(loopback: Any) -> list[str]:
    """One node repeats a release of 1 GB, made here."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        spread = np.arange(LARGE, 0.0, -1)
        summary = Subspace(np.eye(LARGE, D), spread, np.zeros(D), ROWS, float((spread**2).sum()))
        arrays, facts = summary.arrays, summary.metadata
        made = {"child": "large", "version": 1, "rank": LARGE, "settings": {"center": True}}
        model_file.write(home / "release-1.safetensors", summary.kind, arrays, facts | made)
        del summary, arrays
        config = {"client-id": "large", "source": str(home / "rows.npy"), "state": str(home)}
        return federation(loopback, home, {"node": config}, "1 node, 1 GB")


def main() -> None:
    arguments = options(__doc__, "3 nodes, and no release of 1 GB").parse_args()
    loopback = run_loopback()
    print(f"# Flower\n\n{machine()}\n")
    heading(f"One run, d = {D:,}: mean CPU seconds and largest memory of a process")
    header = ("", "answered", "wall s", "SuperNode", "SuperExec", "ClientApp", "ServerApp", "SuperLink")
    for nodes in (3,) if arguments.quick else (5, 10):
        table(header, [many(loopback, nodes)])
    if not arguments.quick:
        table(header, [large(loopback)])


if __name__ == "__main__":
    main()
