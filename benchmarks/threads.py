"""How much faster fits are with more threads.

    python -m benchmarks.threads                       # 600,000 rows x 1,000 float32 (2.4 GB)
    python -m benchmarks.threads --quick               # 120,000 rows
    python -m benchmarks.threads --no-files --cells fit,partial_fit --threads 1,16

Threads: 1, 2, 4, ... up to the cores of this process. Seconds on the clock, best of three; CPU seconds of all
threads in parentheses, which other load disturbs less. "bare products" is what no fit can do without: two
products of all rows with as many probes, and their sums of squares, in the same threads. `partial_fit` has
batches of 20,000 rows. Files lie in the cache of the system as far as it holds them. Cells: bare, fit,
partial_fit, federated, files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common import heading, machine, options, power_law, table
from fedpca import FederatedPCA, StreamingPCA, fit_files
from fedpca.backend.ops import batch_slices, even_cuts
from fedpca.parallel import available_cores, map_parts, thread_team
from fedpca.readers import open_rows
from fedpca.summaries.rank import oversampled_rank
from reproduction.exact import Array

D, BLOCK, REPEATS = 1000, 512, 3
BATCH = 20_000
CELLS = ("bare", "fit", "partial_fit", "federated", "files")


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

    def run(part: slice) -> Array:
        products = np.zeros((n_probes, D), rows.dtype)
        for cut in batch_slices(part.stop - part.start, BLOCK):
            block = rows[part.start + cut.start : part.start + cut.stop]
            products += (block @ probes).T @ block
            np.vecdot(block, block)
        return products

    with thread_team(n_threads):
        map_parts(run, even_cuts(len(rows), n_threads))


def in_batches(rows: Array, r: int, n_threads: int) -> Array:
    pca = StreamingPCA(r, n_jobs=n_threads)
    for batch in batch_slices(len(rows), BATCH):
        pca.partial_fit(rows[batch])
    return pca.components_


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
    parser = options(__doc__, "fewer rows")
    parser.add_argument("--no-files", action="store_true", help="leave files out")
    parser.add_argument("--cells", default=",".join(CELLS), help="which to measure")
    parser.add_argument("--threads", help="how many threads, such as 1,16")
    arguments = parser.parse_args()
    wanted = set(arguments.cells.split(",")) - ({"files"} if arguments.no_files else set())
    numbers = [int(number) for number in arguments.threads.split(",")] if arguments.threads else threads()
    rows = power_law(120_000 if arguments.quick else 600_000, D, dtype="float32")
    heading(f"Threads, {len(rows):,} x {D:,} float32: seconds (CPU seconds)")
    print(machine())
    lines = []

    def line(cell: str, name: str, run: Callable[[int], object]) -> None:
        if cell in wanted:
            lines.append([name, *(best(lambda: run(number)) for number in numbers)])  # noqa: B023
            print("; ".join(lines[-1]), flush=True)  # at once: the whole takes minutes

    for r in (10, 50):
        width = oversampled_rank(r) + 4
        line("bare", f"bare products, r = {r}", lambda n: bare_products(rows, width, n))  # noqa: B023
        line("fit", f"fit, r = {r}", lambda n: StreamingPCA(r, n_jobs=n).fit(rows).components_)  # noqa: B023
        line("partial_fit", f"partial_fit, r = {r}", lambda n: in_batches(rows, r, n))  # noqa: B023
    clients = {str(i): part for i, part in enumerate(np.array_split(rows, 16))}
    name = "FederatedPCA, 16 clients, r = 10"
    line("federated", name, lambda n: FederatedPCA(10, n_jobs=n).fit_clients(clients).components_)
    if "files" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            for name in write_files(Path(folder), rows):
                path = Path(folder) / name
                line(
                    "files",
                    f"{name}, r = 10",
                    lambda n: fit_files(StreamingPCA(10, n_jobs=n), open_rows(path)),  # noqa: B023
                )
    table(["", *(f"threads: {number}" for number in numbers)], lines)


if __name__ == "__main__":
    main()
