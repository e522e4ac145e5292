"""How fast files are read, and in how much memory, against the library of each format merely reading it.

    python -m benchmarks.readers           # 1,000,000 rows x 100 columns
    python -m benchmarks.readers --quick   # 100,000 rows

Every cell runs in a process of its own, files in the cache of the system. "library" is pyarrow, numpy, h5py,
zarr or bed-reader, batch after batch, into its own kind of batch; "fedpca" is `open_rows`, into arrays of
rows. Time is on the clock, and CPU of all threads. RSS is the growth of the peak resident set after imports
(Linux).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import heading, machine, number, options, table
from benchmarks.memory import resident

D, STEP = 100, 20_000
DTYPES = {"csv": ("float64",), "bed": ("float32",)}  # of the batches, where there is no choice


def parts(n_rows: int, dtype: str) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    for _ in range(n_rows // STEP):
        yield rng.standard_normal((STEP, D), np.float32).astype(dtype)


# --- Writing ---


def write_tables(n_rows: int, dtype: str, open_writer: Callable[[Any], Any]) -> None:
    import pyarrow as pa

    tables = (pa.table({f"c{i}": part[:, i].copy() for i in range(D)}) for part in parts(n_rows, dtype))
    first = next(tables)
    with open_writer(first.schema) as writer:
        writer.write_table(first)
        for more in tables:
            writer.write_table(more)


def write_parquet(path: Path, n_rows: int, dtype: str) -> None:
    from pyarrow.parquet import ParquetWriter

    write_tables(n_rows, dtype, lambda schema: ParquetWriter(path, schema))


def write_arrow(path: Path, n_rows: int, dtype: str) -> None:
    import pyarrow as pa

    write_tables(n_rows, dtype, lambda schema: pa.ipc.new_file(str(path), schema))


def write_csv(path: Path, n_rows: int, dtype: str) -> None:
    from pyarrow.csv import CSVWriter

    write_tables(n_rows // 5, dtype, lambda schema: CSVWriter(str(path), schema))


def write_npy(path: Path, n_rows: int, dtype: str) -> None:
    rows = np.lib.format.open_memmap(path, "w+", dtype, (n_rows, D))
    for i, part in enumerate(parts(n_rows, dtype)):
        rows[i * STEP : (i + 1) * STEP] = part


def write_h5ad(path: Path, n_rows: int, dtype: str) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        rows = file.create_dataset("X", (n_rows, D), dtype, chunks=(1000, D))
        for i, part in enumerate(parts(n_rows, dtype)):
            rows[i * STEP : (i + 1) * STEP] = part
        for group, size in (("obs", n_rows), ("var", D)):
            file.create_dataset(f"{group}/_index", data=np.arange(size).astype("S"))
            file[group].attrs["_index"] = "_index"


def write_zarr(path: Path, n_rows: int, dtype: str) -> None:
    import zarr

    rows = zarr.create_array(str(path), shape=(n_rows, D), chunks=(10_000, D), dtype=dtype)
    for i, part in enumerate(parts(n_rows, dtype)):
        rows[i * STEP : (i + 1) * STEP] = part


def write_bed(path: Path, n_rows: int, dtype: str) -> None:
    from bed_reader import to_bed

    genotypes = np.random.default_rng(0).integers(0, 3, (n_rows // 500, 50 * D), np.int8)
    to_bed(path, genotypes)


# --- Reading ---


def library_parquet(path: Path) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path).iter_batches(STEP)


def library_arrow(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.OSFile(str(path)))
    return map(reader.get_batch, range(reader.num_record_batches))


def library_csv(path: Path) -> Iterator[Any]:
    from pyarrow.csv import open_csv

    return iter(open_csv(str(path)))


def slices(rows: Any, step: int) -> Iterator[Any]:
    return (rows[start : start + step] for start in range(0, rows.shape[0], step))


def library_npy(path: Path) -> Iterator[Any]:
    return (np.array(part) for part in slices(np.load(path, mmap_mode="r"), STEP))


def library_h5ad(path: Path) -> Iterator[Any]:
    import h5py

    return slices(h5py.File(path)["X"], STEP)


def library_zarr(path: Path) -> Iterator[Any]:
    import zarr

    return slices(zarr.open(path, mode="r"), STEP)


def library_bed(path: Path) -> Iterator[Any]:
    from bed_reader import open_bed

    bed = open_bed(path)
    return (bed.read(np.s_[start : start + 400, :]) for start in range(0, bed.shape[0], 400))


Write = Callable[[Path, int, str], None]
FORMATS: dict[str, tuple[Write, Callable[[Path], Iterator[Any]]]] = {
    "parquet": (write_parquet, library_parquet),
    "arrow": (write_arrow, library_arrow),
    "csv": (write_csv, library_csv),
    "npy": (write_npy, library_npy),
    "h5ad": (write_h5ad, library_h5ad),
    "zarr": (write_zarr, library_zarr),
    "bed": (write_bed, library_bed),
}


def child(path: str, who: str) -> dict[str, float]:
    """Read a file in this process, after its first batch has loaded what is needed."""
    from fedpca.readers import open_rows

    def batches() -> Iterator[Any]:
        return iter(open_rows(path)) if who == "fedpca" else FORMATS[Path(path).suffix[1:]][1](Path(path))

    next(batches())
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    wall, cpu = time.perf_counter(), time.process_time()
    rows = sum(batch.num_rows if hasattr(batch, "num_rows") else batch.shape[0] for batch in batches())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"rows": rows, "wall": wall, "cpu": cpu, "rss": (resident("VmHWM") - before) / 1e6}


def measure(path: Path, who: str) -> dict[str, float]:
    """The quickest of three processes."""
    cell = json.dumps({"path": str(path), "who": who})
    command = [sys.executable, "-m", "benchmarks.readers", "--cell", cell]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    return min(runs, key=lambda run: run["cpu"])


def main() -> None:
    parser = options(__doc__, "100,000 rows")
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(child(**arguments.cell)))
        return

    n_rows = 100_000 if arguments.quick else 1_000_000
    print(f"# Reading files, {D} columns (.bed: {50 * D})\n\n{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for kind, (write, _) in FORMATS.items():
            heading(kind)
            lines = []
            for dtype in DTYPES.get(kind, ("float64", "float32")):
                path = Path(folder) / f"{dtype}.{kind}"
                write(path, n_rows, dtype)
                for who in ("library", "fedpca"):
                    run = measure(path, who)
                    cells = (run["rows"] / 1e6 / run["wall"], run["wall"], run["cpu"], run["rss"])
                    lines.append((dtype, f"{run['rows']:,.0f}", who, *map(number, cells)))
            table(("dtype", "rows", "reader", "million rows / s", "s", "CPU s", "RSS MB"), lines)


if __name__ == "__main__":
    main()
