"""One organization's large table in Spark: fedpca against MLlib's PCA.

    python -m benchmarks.spark           # 200,000 rows of 1,000 columns, and 2,000 rows of 20,000
    python -m benchmarks.spark --quick   # 20,000 rows of 1,000 columns

r = 10, 16 partitions, power-law rows (alpha = 1) around a mean, float64, one column of vectors, written as
Parquet first. Every run is a new Spark session, local[2] with a driver of 4 GB: driver and executors are one
JVM, whose Python workers are processes of their own. A small table is fitted before the clock starts.

CPU is that of all processes. Memory is the most that they held, resident, above the idle session: of the JVM,
and of all Python workers together (sampled every 20 ms). Shortfall: 1 - captured variance / the most that 10
directions can capture. Beyond 65,535 columns MLlib refuses; at 20,000 its driver has to hold d (d + 1) / 2
numbers, several times.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.fft import dct

from benchmarks.common import Array, heading, machine, number, options, table, tiny

RANK, PARTITIONS, DRIVER = 10, 16, "4g"
LIMIT = 240.0  # seconds


def partition(index: int, n_rows: int, d: int) -> Array:
    """The same rows whenever they are asked for. The directions of the law are cosines: quickly turned to."""
    rows = np.random.default_rng([0, index]).standard_normal((n_rows, d))
    rows *= np.arange(1.0, d + 1) ** -1
    rows = dct(rows, norm="ortho", overwrite_x=True)
    rows += np.random.default_rng(1).standard_normal(d) / 10
    return np.asarray(rows)


def write(folder: Path, n_rows: int, d: int) -> None:
    """The rows as Parquet files of arrays, one per partition."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    size = n_rows // PARTITIONS
    for index in range(PARTITIONS):
        rows = partition(index, size, d)
        ends = pa.array(np.arange(0, rows.size + 1, d, dtype=np.int32))
        lists = pa.ListArray.from_arrays(ends, pa.array(rows.ravel()))
        pq.write_table(pa.table({"x": lists}), folder / f"{index:02}.parquet", compression="none")


def best(n_rows: int, d: int) -> tuple[Array, float]:
    """A square root of the scatter of all rows, shape (*, d), and the most that directions can capture."""
    size = n_rows // PARTITIONS
    parts = [partition(index, size, d) for index in range(PARTITIONS)]
    if n_rows < d:
        rows = np.concatenate(parts)
        root = rows - rows.mean(axis=0)
        return root, float(np.linalg.eigvalsh(root @ root.T)[-RANK:].sum())
    total, products = np.zeros(d), np.zeros((d, d))
    for rows in parts:
        total += rows.sum(axis=0)
        products += rows.T @ rows
    values, vectors = np.linalg.eigh(products - np.outer(total, total) / n_rows)
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T, float(values[-RANK:].sum())


# --- The contenders ---


def rows_only(df: Any) -> None:
    df.selectExpr("sum(size(x))").collect()


def fedpca(df: Any) -> Array:
    from fedpca.federation.engines.spark import fit

    return fit(df, RANK).components


def mllib(df: Any) -> Array:
    from pyspark.ml.feature import PCA
    from pyspark.ml.functions import array_to_vector

    vectors = df.select(array_to_vector("x").alias("v"))
    return np.asarray(PCA(k=RANK, inputCol="v", outputCol="scores").fit(vectors).pc.toArray().T)


CONTENDERS: dict[str, Callable[[Any], Any]] = {
    "reading the rows, once": rows_only,
    "**fedpca**": fedpca,
    "MLlib PCA": mllib,
}


# --- One run, in a process of its own ---


@contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """The CPU seconds, and the peaks of memory in MB above those at the start."""
    import psutil

    here, done = psutil.Process(), threading.Event()

    def seen() -> dict[str, float]:
        held = {"jvm": 0.0, "python": 0.0, "cpu": sum(here.cpu_times()[:2])}
        for process in here.children(recursive=True):
            try:
                kind = "jvm" if "java" in process.name() else "python"
                held[kind] += process.memory_info().rss / 1e6
                held["cpu"] += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return held

    def watch() -> None:
        while not done.wait(0.02):
            now = seen()
            for kind in ("jvm", "python"):
                found[kind] = max(found.get(kind, 0.0), now[kind] - idle[kind])

    idle = seen()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        found["cpu"] = seen()["cpu"] - idle["cpu"]
        done.set()
        watcher.join()


def run(name: str, folder: Path, small: Path, out: Path) -> None:
    """Fit, and write down what it cost and what came out; of a failure, its cause."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", DRIVER)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.files.maxPartitionBytes", "256m")
        .config("spark.sql.files.openCostInBytes", "256m")  # a partition per file
        .getOrCreate()
    )
    contender, costs = CONTENDERS[name], {}
    contender(spark.read.parquet(str(small)))
    df, components, failure = spark.read.parquet(str(folder)), None, ""
    started = time.perf_counter()
    with watched(costs):
        try:
            components = contender(df)
        except Exception as error:
            failure = next(iter(str(error).splitlines()), repr(error))[:300]
    wall = time.perf_counter() - started
    np.savez(
        out, components=np.zeros(0) if components is None else components, failure=failure, wall=wall, **costs
    )


def compare(n_rows: int, d: int) -> None:
    heading(f"{n_rows:,} rows, d = {d:,}, r = {RANK}, {8e-6 * n_rows * d:.0f} MB")
    root, most = best(n_rows, d)
    lines, failures = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder, small, out = (Path(temporary) / name for name in ("rows", "small", "out.npz"))
        write(folder, n_rows, d)
        write(small, 32 * PARTITIONS, 50)
        for name in CONTENDERS:
            out.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "benchmarks.spark",
                "--run",
                name,
                str(folder),
                str(small),
                str(out),
            ]
            environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
            try:
                ended = subprocess.run(
                    command, env=environment, timeout=LIMIT, stderr=subprocess.PIPE, text=True, check=False
                )
            except subprocess.TimeoutExpired:
                failures.append(f"{name}: not finished after {LIMIT:.0f} s")
                continue
            if not out.exists():
                failures.append(f"{name}: the process died")
                continue
            with np.load(out) as saved:
                found = {key: saved[key] for key in saved}
            shortfall = ""
            if str(found["failure"]):
                shortfall = "failed"
                printed = [line for line in ended.stderr.splitlines() if "OutOfMemory" in line]
                failures.append(f"{name}: {(printed or [found['failure']])[0]}")
            elif found["components"].size:
                basis = np.linalg.qr(found["components"].astype(np.float64).T)[0]
                shortfall = tiny(float(1 - ((root @ basis) ** 2).sum() / most))
            costs = [number(float(found[kind])) for kind in ("wall", "cpu")]
            memory = [f"{float(found[kind]):.0f}" for kind in ("jvm", "python")]
            lines.append((name, *costs, *memory, shortfall))
    table(("method", "s", "CPU s", "JVM MB", "Python MB", "shortfall"), lines)
    print("".join(f"\n{failure}\n" for failure in failures))


def main() -> None:
    parser = options(__doc__, "fewer rows, and no 20,000 columns")
    parser.add_argument("--run", nargs=4, help="one run: name, folder, small folder, file of results")
    given = parser.parse_args()
    if given.run:
        name, *paths = given.run
        run(name, *map(Path, paths))
        return
    print(f"# In Spark, local[2], a driver of {DRIVER}, {PARTITIONS} partitions\n\n{machine()}")
    compare(20_000 if given.quick else 200_000, 1000)
    if not given.quick:
        compare(2_000, 20_000)


if __name__ == "__main__":
    main()
