"""Which PCA for which rows: time and memory of a complete fit, for rows of many shapes and spectra.

    python -m benchmarks.choosing           # one and two threads, half an hour
    python -m benchmarks.choosing --quick   # one thread, the first shapes

Rows are a float32 array in memory; every method is called once with all of them, as its documentation
advises. Wall time, contenders in turn within each round, medians; so only on a machine without other work.
The peak is the growth of the resident set during one fit in a process of its own. The i-th direction has
standard deviation i**-alpha. Shortfall: 1 - captured variance / the best possible with as many components.
Bold marks the fastest method that falls short by at most 1e-3.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import peers
from benchmarks.common import Array, heading, interleave, machine, number, options, power_law, table, tiny
from benchmarks.memory import resident
from reproduction.exact import Exact

OURS = "fedpca"
METHODS = (
    OURS,
    peers.COVARIANCE,
    peers.RANDOMIZED,
    peers.RANDOMIZED_ONCE,
    peers.IPCA_DEFAULT,
    peers.INTELEX,
    peers.INTELEX_COVARIANCE,
    peers.TORCH,
)
SQUARE = (peers.COVARIANCE, peers.INTELEX, peers.INTELEX_COVARIANCE)  # their d x d matrix
MAX_SQUARE = 5_000  # features: above, one eigenproblem takes minutes, and nothing interrupts it
LIMIT = 10.0  # seconds of one fit
MAX_SHORTFALL = 1e-3


class Shape(NamedTuple):
    """Rows to fit: n x d with exponent alpha, r components."""

    n: int
    d: int
    rank: int
    alpha: float

    def __str__(self) -> str:
        return f"{self.n:,} x {self.d:,}, r = {self.rank}, alpha {self.alpha:g}"

    def rows(self) -> Array:
        return power_law(self.n, self.d, alpha=self.alpha, dtype="float32")


SHAPES = (
    *(Shape(60_000, 1000, 10, alpha) for alpha in (0.25, 0.5, 1.0, 2.0)),
    *(Shape(60_000, 1000, 50, alpha) for alpha in (0.5, 1.0)),
    Shape(400_000, 64, 10, 1.0),
    Shape(200_000, 256, 10, 1.0),
    Shape(60_000, 768, 64, 0.7),
    Shape(60_000, 784, 100, 1.0),
    Shape(20_000, 1536, 128, 0.6),
    Shape(15_000, 4096, 10, 1.0),
    Shape(15_000, 4096, 128, 0.6),
    Shape(4_000, 20_000, 10, 1.0),
    Shape(1_500, 617, 10, 0.5),
    Shape(300, 9_000, 10, 0.25),
)
QUICK = SHAPES[:4]


def ours(rows: Array, rank: int) -> Array:
    from fedpca import StreamingPCA

    return StreamingPCA(n_components=rank).fit(rows).components_


def contenders(d: int) -> dict[str, peers.Fit]:
    """Methods that take so many features."""
    found = {OURS: ours} | {name: peer.fit for name, peer in peers.available().items()}
    return {
        name: found[name] for name in METHODS if name in found and (d <= MAX_SQUARE or name not in SQUARE)
    }


def measure_times(shape: Shape) -> dict[str, Any]:
    """Seconds and shortfall of each method, in this process."""
    rows, fits = shape.rows(), contenders(shape.d)
    peers.warm_up(peers.available())
    exact = Exact.of(rows, shape.rank)
    runs = {name: functools.partial(fit, rows, shape.rank) for name, fit in fits.items()}
    timings = interleave(runs, rounds=5, budget=3.0, limit=LIMIT, clock=time.perf_counter)
    return {
        name: {
            "seconds": timing.median,
            "shortfall": float("nan") if timing.result is None else exact.shortfall(timing.result),
            "problem": timing.problem,
        }
        for name, timing in timings.items()
    }


def measure_peak(shape: Shape, method: str) -> dict[str, Any]:
    """Growth of the resident set during one fit, in this process, in MB."""
    rows, fit = shape.rows(), contenders(shape.d)[method]
    fit(np.array(rows[: 2 * shape.rank + 50]), min(shape.rank, 10))  # imports, buffers of BLAS
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the peak so far
    before = resident("VmRSS")
    fit(rows, shape.rank)
    return {"peak": (resident("VmHWM") - before) / 1e6}


def in_child(shape: Shape, threads: int, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.choosing", "--shape", json.dumps(shape), *arguments]
    environment = os.environ | {"BENCHMARK_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def print_shapes(shapes: tuple[Shape, ...], threads: int) -> None:
    heading(f"Wall time in ms (shortfall), {threads} thread{'s' * (threads > 1)}; peak memory in MB below")
    names = list(contenders(0))
    lines = []
    for shape in shapes:
        found = in_child(shape, threads)
        fastest = min(one["seconds"] for one in found.values() if one["shortfall"] <= MAX_SHORTFALL)
        lines.append([str(shape), *(_entry(found.get(name), fastest) for name in names)])
        if threads == 1:
            peaks = [
                number(in_child(shape, threads, "--peak", name)["peak"])
                if name in found and not found[name]["problem"]
                else "-"
                for name in names
            ]
            lines.append(["peak MB", *peaks])
            print(*lines[-2:], sep="\n", file=sys.stderr, flush=True)
        else:
            print(lines[-1], file=sys.stderr, flush=True)
    table(("rows", *names), lines)


def _entry(found: dict[str, Any] | None, fastest: float) -> str:
    if found is None:
        return "-"
    if not found["seconds"] > 0:
        return found["problem"] or "-"
    text = f"{number(1e3 * found['seconds'])} ({tiny(found['shortfall'])})"
    return f"**{text}**" if found["seconds"] == fastest else text


def main() -> None:
    parser = options(__doc__, "one thread, the first shapes")
    parser.add_argument("--shape", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shape:
        shape = Shape(*arguments.shape)
        found = measure_peak(shape, arguments.peak) if arguments.peak else measure_times(shape)
        print(json.dumps(found))
        return
    print(f"# Choosing\n\n{machine()}\n")
    print_shapes(QUICK if arguments.quick else SHAPES, 1)
    if not arguments.quick:
        print_shapes(SHAPES, 2)


if __name__ == "__main__":
    main()
