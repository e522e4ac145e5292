"""One organization's large table on a Dask cluster: fedpca against dask-ml's PCA and IncrementalPCA.

    python -m benchmarks.dask           # 200,000 rows, three rounds
    python -m benchmarks.dask --quick   # 32,000 rows, one round

d = 1000, r = 10, 16 partitions, power-law rows (alpha = 1) around a mean. Workers make a partition whenever
it is asked for, as they would read it from storage: nothing holds all rows unless a contender does, and what
one pass over them costs is a line of its own. Every run has a new cluster of two worker processes with one
thread each, and a small table is fitted before the clock starts.

CPU is that of all processes, the scheduler's included. Memory is the most that they held together, above the
idle cluster (resident, sampled every 20 ms). Shortfall: 1 - captured variance / the most that 10 directions
can capture, by the full scatter in float64.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.fft import dct

from benchmarks.common import Array, heading, machine, number, options, table, tiny

D, RANK, PARTITIONS, WORKERS = 1000, 10, 16, 2
LOCAL = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}

Fit = Callable[[Any], Any]


def partition(index: int, n_rows: int, dtype: str) -> Array:
    """The same rows whenever they are asked for. The directions of the law are cosines: quickly turned to."""
    rows = np.random.default_rng([0, index]).standard_normal((n_rows, D), dtype)  # type: ignore[call-overload]
    rows *= np.arange(1, D + 1, dtype=dtype) ** -1
    rows = dct(rows, norm="ortho", overwrite_x=True)
    rows += np.random.default_rng(1).standard_normal(D).astype(dtype) / 10
    return np.asarray(rows)


def table_of(n_rows: int, dtype: str) -> Any:
    """The partitions as one dask array."""
    import dask
    import dask.array as da

    make = dask.delayed(partition, pure=True)
    size = n_rows // PARTITIONS
    parts = [make(index, size, dtype) for index in range(PARTITIONS)]
    return da.concatenate([da.from_delayed(part, (size, D), dtype=dtype) for part in parts])


class Exact:
    """The scatter of all rows, a partition at a time, and what directions capture of it."""

    def __init__(self, n_rows: int, dtype: str) -> None:
        size = n_rows // PARTITIONS
        total, products = np.zeros(D), np.zeros((D, D))
        for index in range(PARTITIONS):
            rows = partition(index, size, dtype).astype(np.float64)
            total += rows.sum(axis=0)
            products += rows.T @ rows
        self.scatter = products - np.outer(total, total) / n_rows
        self.best = np.linalg.eigvalsh(self.scatter)[-RANK:].sum()

    def shortfall(self, components: Array) -> float:
        basis = np.linalg.qr(np.asarray(components, np.float64).T)[0]
        return float(1 - np.trace(basis.T @ self.scatter @ basis) / self.best)


# --- The contenders ---


def rows_only(data: Any) -> None:
    import dask

    dask.compute(*(dask.delayed(len)(part) for part in data.to_delayed().ravel()))


def fedpca(data: Any) -> Array:
    from fedpca.federation.engines.dask import fit

    return fit(data, RANK).components


def dask_ml(kind: str, data: Any, **settings: Any) -> Array:
    import dask_ml.decomposition

    model = getattr(dask_ml.decomposition, kind)(RANK, random_state=0, **settings)
    return np.asarray(model.fit(data).components_)


CONTENDERS: dict[str, Fit] = {
    "making the rows, once": rows_only,
    "**fedpca**": fedpca,
    "dask-ml PCA": partial(dask_ml, "PCA", svd_solver="randomized"),
    "dask-ml PCA, iterated_power=2": partial(dask_ml, "PCA", svd_solver="randomized", iterated_power=2),
    "dask-ml IncrementalPCA": partial(dask_ml, "IncrementalPCA"),
    "dask-ml IncrementalPCA, iterated_power=4": partial(dask_ml, "IncrementalPCA", iterated_power=4),
}


# --- What a run costs ---


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, CPU seconds and the peak of memory in MB, of all processes; what came out."""

    wall: float
    cpu: float
    memory: float
    components: Any


def processes() -> list[Any]:
    import psutil

    here = psutil.Process()
    return [here, *here.children(recursive=True)]


def cpu_seconds() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes())


@contextmanager
def watched_memory(found: list[float]) -> Iterator[None]:
    """Puts the most resident MB of all processes together, above those at the start, into `found`."""
    watched, done = processes(), threading.Event()

    def resident() -> float:
        return sum(process.memory_info().rss for process in watched) / 1e6

    def watch() -> None:
        while not done.wait(0.02):
            found[0] = max(found[0], resident() - idle)

    idle = resident()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def cost(contender: Fit, n_rows: int, dtype: str) -> Cost:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, **LOCAL) as cluster, Client(cluster):
        contender(table_of(PARTITIONS * 100, dtype))
        peak = [0.0]
        with watched_memory(peak):
            before, started = cpu_seconds(), time.perf_counter()
            components = contender(table_of(n_rows, dtype))
            wall, cpu = time.perf_counter() - started, cpu_seconds() - before
    return Cost(wall, cpu, peak[0], components)


def compare(n_rows: int, dtype: str, rounds: int) -> None:
    exact = Exact(n_rows, dtype)
    installed = importlib.util.find_spec("dask_ml") is not None
    costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS if installed or "dask-ml" not in name}
    for _ in range(rounds):
        for name, runs in costs.items():
            runs.append(cost(CONTENDERS[name], n_rows, dtype))
    size = n_rows * D * np.dtype(dtype).itemsize / 1e6
    heading(f"{n_rows:,} rows, d = {D}, r = {RANK}, {dtype}, {size:.0f} MB")
    lines = []
    for name, runs in costs.items():
        wall, cpu, memory = (
            statistics.median(getattr(run, what) for run in runs) for what in ("wall", "cpu", "memory")
        )
        components = runs[-1].components
        shortfall = "" if components is None else tiny(exact.shortfall(components))
        lines.append((name, number(wall), number(cpu), f"{memory:.0f}", shortfall))
    table(("method", "s", "CPU s", "peak MB", "shortfall"), lines)


def main() -> None:
    quick = options(__doc__, "fewer rows, one round").parse_args().quick
    warnings.filterwarnings("ignore")
    logging.getLogger("distributed").setLevel(logging.ERROR)
    print(f"# On a Dask cluster of {WORKERS} workers, {PARTITIONS} partitions\n\n{machine()}")
    for dtype in ("float32", "float64"):
        compare(32_000 if quick else 200_000, dtype, rounds=1 if quick else 3)


if __name__ == "__main__":
    main()
