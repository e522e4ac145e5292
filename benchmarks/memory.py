"""How much memory: the peak of `partial_fit` at d = 20000, against d * r * 8 bytes and the batch itself.

    python -m benchmarks.memory           # ranks 10 and 50, batches of 10 to 1000, dense and sparse
    python -m benchmarks.memory --quick   # batches of 10 and 1000

Each cell runs in a process of its own. "traced" is what tracemalloc sees: numpy arrays, and not the buffers
inside the BLAS. "RSS" is the growth of the peak resident set and holds those too (Linux). Both are counted
from just before the model exists, with imports done, caches warm and one batch in memory, to the end of a
stream of 5000 rows and `components_`; "held" is what remains then.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import heading, machine, options, table

DIMENSION = 20_000
STREAM = 5_000
COLUMNS = (
    "r",
    "dtype",
    "batch",
    "batch MB",
    "d r 8 MB",
    "held MB",
    "traced peak MB",
    "RSS peak MB",
    "traced peak / (d r 8)",
)
DENSITY = 0.01  # of the sparse batches


def make_batch(size: int, dtype: str, sparse: bool, rng: np.random.Generator) -> Any:
    """One batch, fed again and again: low rank plus noise, or a random CSR matrix."""
    if sparse:
        from scipy.sparse import random_array

        return random_array((size, DIMENSION), density=DENSITY, format="csr", dtype=dtype, rng=rng)
    rows = rng.standard_normal((size, DIMENSION), np.float32)
    rows *= np.arange(1, DIMENSION + 1, dtype=np.float32) ** -1.0
    return rows.astype(dtype, copy=False)


def resident(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{key} is not in /proc/self/status: resident memory is measured on Linux only.")


def child(rank: int, size: int, dtype: str, sparse: bool, traced: bool) -> dict[str, int]:
    """Measure one cell in this process, by tracemalloc or by resident set (tracing itself takes memory)."""
    from fedpca import StreamingPCA

    rng = np.random.default_rng(0)
    small = make_batch(200, dtype, sparse, rng)[:, :300]
    warm = StreamingPCA(n_components=rank, tracker="nystrom").partial_fit(small)
    warm.components_  # noqa: B018  computed on access
    del warm, small
    batch = make_batch(size, dtype, sparse, rng)
    gc.collect()

    if traced:
        tracemalloc.start()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = resident("VmRSS")
    model = StreamingPCA(n_components=rank)
    for _ in range(max(1, STREAM // size)):
        model.partial_fit(batch)
    model.components_  # noqa: B018
    if traced:
        held, peak = tracemalloc.get_traced_memory()
    else:
        held, peak = resident("VmRSS") - before, resident("VmHWM") - before
    size_in_bytes = batch.data.nbytes + batch.indices.nbytes + batch.indptr.nbytes if sparse else batch.nbytes
    return {"held": held, "peak": peak, "batch": size_in_bytes}


def measure(rank: int, size: int, dtype: str, sparse: bool, traced: bool) -> dict[str, int] | str:
    """Run one cell in a new process; a failure comes back as its last line."""
    cell = json.dumps({"rank": rank, "size": size, "dtype": dtype, "sparse": sparse, "traced": traced})
    command = [sys.executable, "-m", "benchmarks.memory", "--cell", cell]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "stopped after 120 s"
    if done.returncode:
        return "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    return json.loads(done.stdout)


def main() -> None:
    parser = options(__doc__, "batches of 10 and 1000 only")
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(child(**arguments.cell)))
        return

    print(f"# Memory: d = {DIMENSION}, streams of {STREAM} rows\n\n{machine()}")
    sizes = (10, 1000) if arguments.quick else (10, 50, 200, 1000)
    for sparse in (False, True):
        heading(f"CSR batches, density {DENSITY}" if sparse else "Dense batches")
        lines = []
        for rank in (10, 50):
            for dtype in ("float64", "float32"):
                for size in sizes:
                    state = DIMENSION * rank * 8
                    name = [str(rank), dtype, str(size)]
                    traced, whole = (measure(rank, size, dtype, sparse, flag) for flag in (True, False))
                    if isinstance(traced, str) or isinstance(whole, str):
                        problem = traced if isinstance(traced, str) else str(whole)
                        lines.append((*name, "-", f"{state / 1e6:.1f}", problem, "-", "-", "-"))
                        continue
                    cells = (whole["batch"], state, traced["held"], traced["peak"], whole["peak"])
                    megabytes = (f"{value / 1e6:.1f}" for value in cells)
                    lines.append((*name, *megabytes, f"{traced['peak'] / state:.1f}"))
        table(COLUMNS, lines)


if __name__ == "__main__":
    main()
