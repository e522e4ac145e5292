"""Small and slow streams: what a batch of 50 rows, or a single row, costs in time and memory at d = 48.

    python -m benchmarks.small_streams           # the whole stream of 7712 rows, 7 rounds
    python -m benchmarks.small_streams --quick   # 3 rounds

Time is CPU time with one BLAS thread. Memory is the tracemalloc peak of a model from its creation to the end
of the stream; the rows exist before, and imports and first-call caches are warm.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from benchmarks.common import (
    Array,
    batches,
    heading,
    interleave,
    machine,
    number,
    options,
    power_law,
    table,
    verdict,
)

DIMENSION, RANK, ROWS = 48, 10, 7712
GOAL = 100_000  # bytes


def fedpca_stream(rows: Array, batch: int, tracker: str, *, read: bool) -> object:
    from fedpca import StreamingPCA

    model = StreamingPCA(n_components=RANK, tracker=tracker)
    for part in batches(rows, batch):
        model.partial_fit(part)
        if read:
            model.components_  # noqa: B018  computed on access
    model.components_  # noqa: B018
    return model


def incremental_stream(rows: Array, batch: int) -> object:
    """IncrementalPCA must start with at least as many rows as components: its first batch is 50 or more."""
    from sklearn.decomposition import IncrementalPCA

    model = IncrementalPCA(n_components=RANK)
    first = max(batch, 50)
    model.partial_fit(rows[:first])
    for part in batches(rows[first:], batch):
        if len(part) == batch or batch >= RANK:
            model.partial_fit(part)
    return model


def contenders(rows: Array, batch: int) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for tracker in ("auto", "nystrom", "block"):
        for read in (False, True):
            name = f"fedpca {tracker}" + (", components_ read each batch" if read else "")
            found[name] = lambda tracker=tracker, read=read: fedpca_stream(rows, batch, tracker, read=read)
    found["sklearn IncrementalPCA"] = lambda: incremental_stream(rows, batch)
    return found


def peak_bytes(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes held at the end (the model is alive) and at the peak, above what was allocated before."""
    run()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    model = run()
    peak = tracemalloc.get_traced_memory()[1]
    gc.collect()  # else the free lists of the interpreter count as held
    now = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del model
    return now - before, peak - before


def main() -> None:
    rounds = 3 if options(__doc__, "3 rounds instead of 7").parse_args().quick else 7

    print(f"# Small streams: d = {DIMENSION}, r = {RANK}, {ROWS} rows\n\n{machine()}")
    peaks: dict[tuple[str, int, str], int] = {}
    for dtype in ("float64", "float32"):
        rows = power_law(ROWS, DIMENSION, dtype=dtype)
        for batch in (50, 1):
            # One at a time, reading after every row, a tenth of the stream says as much.
            part = rows if batch > 1 else rows[: ROWS // 10]
            runs = contenders(part, batch)
            timings = interleave(runs, rounds, budget=5.0, limit=30.0)
            count = -(-len(part) // batch)
            ours = timings["fedpca auto"].median
            heading(f"Batches of {batch}, {dtype}, {len(part)} rows")
            lines = []
            for name, run in runs.items():
                timing = timings[name]
                if timing.problem:
                    lines.append((name, "-", "-", "-", "-", timing.problem))
                    continue
                held, peak = peak_bytes(run)
                peaks[dtype, batch, name] = peak
                lines.append(
                    (
                        name,
                        number(1e6 * timing.median / count),
                        number(timing.median / ours),
                        f"{held / 1000:.1f}",
                        f"{peak / 1000:.1f}",
                        timing.note,
                    )
                )
            table(("method", "us/batch", "ratio to fedpca auto", "held KB", "peak KB", "runs"), lines)

    heading("Goals")
    for (dtype, batch, name), peak in peaks.items():
        if name.startswith("fedpca auto"):
            claim = f"{name}, batches of {batch}, {dtype}, peak < {GOAL // 1000} KB"
            verdict(peak < GOAL, claim, f"{peak / 1000:.1f} KB")


if __name__ == "__main__":
    main()
