"""How fast `fedpca fit` learns from a big Parquet file, against pyarrow merely reading it.

    python -m benchmarks.fit_file           # 10,000,000 rows x 100 columns, 8 GB as float64
    python -m benchmarks.fit_file --quick   # 1,000,000 rows

Every run is a process of its own, measured from its start to its end, imports included: time on the clock,
CPU of all threads, and peak resident memory (Linux). They take turns, five rounds of them, files in the cache
of the system as far as it holds them, and may use as many threads as they like; medians are shown. pyarrow
reads all columns in its two ways, of which the faster is the yardstick, and once more with settings that are
its best here. The file is written for the occasion, one dtype after the other: Gaussian rows of falling
variance, a row group of 100,000 rows at a time, no dictionaries.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import heading, machine, number, options, table, verdict

D, GROUP = 100, 100_000
READERS = {
    "pyarrow, iter_batches": (
        "import sys, pyarrow.parquet as pq\n"
        "for batch in pq.ParquetFile(sys.argv[1]).iter_batches(): pass"
    ),
    "pyarrow, dataset": (
        "import sys, pyarrow.dataset as ds\n"
        "for batch in ds.dataset(sys.argv[1]).to_batches(): pass"
    ),
}  # fmt: skip
BEST = {
    "pyarrow, at its best": (
        "import sys, pyarrow.parquet as pq\n"
        "file = pq.ParquetFile(sys.argv[1], pre_buffer=False, buffer_size=2**16)\n"
        "for batch in file.iter_batches(use_threads=False): pass"
    )
}
OURS = "fedpca fit"


class Run(NamedTuple):
    wall: float
    cpu: float
    megabytes: float


def write(path: Path, n_rows: int, dtype: str) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    rng = np.random.default_rng(0)
    scale = (1 / np.arange(1, D + 1)).astype(dtype)
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    schema = pa.schema([(f"c{i}", kind) for i in range(D)])
    with ParquetWriter(path, schema, use_dictionary=False) as writer:
        for _ in range(n_rows // GROUP):
            rows = rng.standard_normal((GROUP, D), dtype) * scale  # type: ignore[call-overload]
            writer.write_table(pa.table(list(np.asfortranarray(rows).T), schema=schema))


def run(command: list[str]) -> Run:
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=free)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)


def measure(path: Path, rounds: int) -> dict[str, Run]:
    """The medians of every contender."""
    fit = [sys.executable, "-m", "fedpca", "fit", str(path), "--out", f"{path}.model", "--force"]
    readers = READERS | BEST
    commands = {who: [sys.executable, "-c", code, str(path)] for who, code in readers.items()} | {OURS: fit}
    runs: dict[str, list[Run]] = {who: [] for who in commands}
    for _ in range(rounds):
        for who, command in commands.items():
            runs[who].append(run(command))
    return {who: Run(*map(statistics.median, zip(*of, strict=True))) for who, of in runs.items()}


def main() -> None:
    arguments = options(__doc__, "1,000,000 rows").parse_args()
    n_rows = 1_000_000 if arguments.quick else 10_000_000
    print(f"# Fitting a file of {n_rows:,} rows x {D} columns\n\n{machine()}")
    for dtype in ("float64", "float32"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.parquet"
            write(path, n_rows, dtype)
            heading(f"{dtype}, {path.stat().st_size / 1e9:.1f} GB")
            medians = measure(path, rounds=5)
        ours = medians[OURS]
        table(
            ("who", "s", "CPU s", "RSS MB", "fedpca fit takes"),
            [
                (who, *map(number, of), f"{ours.wall / of.wall:.2f} times as long")
                for who, of in medians.items()
            ],
        )
        for who in (min(READERS, key=lambda reader: medians[reader].wall), *BEST):
            ratio = ours.wall / medians[who].wall
            verdict(ratio <= 1.5, f"at most 1.5 times as long as {who}", f"{ratio:.2f}")
        verdict(ours.megabytes < 1000, "in less than 1 GB", f"{ours.megabytes:.0f} MB")
    shown = [run([sys.executable, "-m", "fedpca", "--help"]).wall for _ in range(5)]
    verdict(statistics.median(shown) < 0.4, "--help in 0.4 s", f"{statistics.median(shown):.2f} s")


if __name__ == "__main__":
    main()
