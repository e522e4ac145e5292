"""How much faster fits are with more threads, and what cutting the rows costs.

    python -m benchmarks.threads           # 600,000 rows x 1,000 float32 (2.4 GB)
    python -m benchmarks.threads --quick   # 120,000 rows

Threads: 1, 2, 4, ... up to the cores of this process. Seconds on the clock, best of three; CPU seconds of all
threads in parentheses, which other load disturbs less. "bare products" is what no fit can do without: two
products of every panel with as many probes, and its sum of squares, in the same threads. "one stream" is the
fit without cuts. Files lie in the cache of the system as far as it holds them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.common import heading, machine, options, power_law, table
from fedpca import FederatedPCA, StreamingPCA, fit_files
from fedpca.backend.ops import even_cuts
from fedpca.backend.threads import available_cores, map_in_threads
from fedpca.estimators import shards
from fedpca.readers import open_rows
from fedpca.summaries.rank import oversampled_rank
from reproduction.exact import Array

D, PANEL, REPEATS = 1000, 1024, 3


def threads() -> list[int]:
    return [2**i for i in range(available_cores().bit_length()) if 2**i <= available_cores()]


def best(run: Callable[[], object]) -> str:
    """Least time on the clock, and least CPU time."""
    clock, cpu = [], []
    for _ in range(REPEATS):
        started, used = time.perf_counter(), time.process_time()
        run()
        clock.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return f"{min(clock):.3f} ({min(cpu):.3f})"


def bare_products(rows: Array, n_probes: int, n_threads: int) -> None:
    """Products of all rows with fixed probes."""
    probes = np.linalg.qr(np.random.default_rng(0).standard_normal((D, n_probes)))[0].astype(rows.dtype)

    def run(part: slice, check: Callable[[], None]) -> Array:
        products = np.zeros((n_probes, D), rows.dtype)
        for start in range(part.start, part.stop, PANEL):
            panel = rows[start : min(start + PANEL, part.stop)]
            products += (panel @ probes).T @ panel
            np.vecdot(panel, panel)
        return products

    map_in_threads(run, even_cuts(len(rows), n_threads), n_threads)


@contextmanager
def one_stream() -> Iterator[None]:
    most, shards.MAX_SHARDS = shards.MAX_SHARDS, 1
    try:
        yield
    finally:
        shards.MAX_SHARDS = most


def write_files(folder: Path, rows: Array) -> list[str]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    np.save(folder / "rows.npy", rows)
    columns = pa.table({f"f{j}": rows[:, j] for j in range(D)})
    pa.parquet.write_table(columns, folder / "groups.parquet", row_group_size=10_000, use_dictionary=False)
    pa.parquet.write_table(columns, folder / "one-group.parquet", use_dictionary=False)
    pa.csv.write_csv(columns.slice(0, len(rows) // 10), folder / "tenth.csv")
    return ["rows.npy", "groups.parquet", "one-group.parquet", "tenth.csv"]


def main() -> None:
    arguments = options(__doc__, "fewer rows").parse_args()
    rows = power_law(120_000 if arguments.quick else 600_000, D, dtype="float32")
    numbers = threads()
    heading(f"Threads, {len(rows):,} x {D:,} float32: seconds (CPU seconds)")
    print(machine())
    lines = []

    def line(name: str, run: Callable[[int], object], once: bool = False) -> None:
        cells = [best(lambda: run(number)) for number in ([1] if once else numbers)]  # noqa: B023
        lines.append([name, *cells, *[""] * (len(numbers) - len(cells))])
        print("; ".join(lines[-1]), flush=True)  # at once: the whole takes minutes

    for r in (10, 50):
        n_probes = oversampled_rank(r) + 3
        line(f"bare products, r = {r}", lambda n: bare_products(rows, n_probes, n))  # noqa: B023
        with one_stream():
            line(f"one stream, r = {r}", lambda _: StreamingPCA(r).fit(rows).components_, once=True)  # noqa: B023
        line(f"fit, r = {r}", lambda n: StreamingPCA(r, n_jobs=n).fit(rows).components_)  # noqa: B023
    clients = {str(i): part for i, part in enumerate(np.array_split(rows, 16))}
    line("FederatedPCA, 16 clients, r = 10", lambda n: FederatedPCA(10, n_jobs=n).fit_clients(clients))
    with tempfile.TemporaryDirectory() as folder:
        for name in write_files(Path(folder), rows):
            path = Path(folder) / name
            line(f"{name}, r = 10", lambda n: fit_files(StreamingPCA(10, n_jobs=n), open_rows(path)))  # noqa: B023
    table(["", *(f"threads: {number}" for number in numbers)], lines)


if __name__ == "__main__":
    main()
