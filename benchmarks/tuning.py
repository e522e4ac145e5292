"""What each threshold of the fast kernel is worth: other values of it, on easy and hard streams.

    python -m benchmarks.tuning           # d = 400, n = 8000, 3 seeds
    python -m benchmarks.tuning --quick   # 1 seed

One field of `TUNING` at a time has another value; the first line of each table is the default. Time: CPU
time of all streams, relative to the default, one BLAS thread. Other columns: shortfall, 1 - captured variance
/ the best possible, mean over seeds. The reasons for the defaults are in docs/explanation/kernel.md.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.accuracy import BATCH, RANK, change_halfway, drifting_mean, sorted_clusters, steep_power_law
from benchmarks.common import Array, batches, heading, machine, options, power_law, table, tiny
from reproduction.exact import Exact

ROWS, DIMENSION = 8000, 400
ROUNDS = 3


def very_flat(n: int, d: int, seed: int) -> Array:
    return power_law(n, d, alpha=0.1, seed=seed)


def flat(n: int, d: int, seed: int) -> Array:
    return power_law(n, d, alpha=0.5, seed=seed)


def heavy_tails(n: int, d: int, seed: int) -> Array:
    """Single rows outweigh directions."""
    return np.random.default_rng(seed).standard_t(2.5, size=(n, d))


def late_direction(n: int, d: int, seed: int) -> Array:
    """Nine strong directions in noise, and a tenth in the last hundredth of the stream."""
    rng = np.random.default_rng(seed)
    rows = 0.1 * rng.standard_normal((n, d))
    rows[:, :9] += rng.standard_normal((n, 9)) * np.arange(9, 0, -1)
    rows[-n // 100 :, -1] += 8 * rng.standard_normal(n // 100)
    return rows


STREAMS: dict[str, Callable[[int, int, int], Array]] = {
    "alpha 0.1": very_flat,
    "alpha 0.5": flat,
    "alpha 1": steep_power_law,
    "changes halfway": change_halfway,
    "sorted clusters": sorted_clusters,
    "drifting mean": drifting_mean,
    "heavy tails": heavy_tails,
    "late direction": late_direction,
}

VALUES: dict[str, tuple[Any, ...]] = {
    "noise_slack": (1.0, 1.25, 2.0, 4.0, 1e9),
    "early_slack": (0.0, 2.0, 32.0),
    "drift_tolerance": (0.0, 1e-4, 1e-2, 0.1),
    "outlier_share": (0.05, 0.25, 1.0, 4.0, math.inf),
    "flat": (0.0, 0.5, 2.0, 4.0, math.inf),
    "very_flat": (2.0, 4.0, 16.0, math.inf),
    "very_flat_rows": (16, 32, 128, 512),
    "free_probes": (0, 2, 4),
    "buffer_rows": (32, 64, 256, 512),
    "min_panel_rows": (8, 16, 64, 128),
    "max_panel_rows": (128, 256, 512, 2048),
    "period_per_probe": (1, 4, 8),
    "history_per_row": (0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
}
TOGETHER = {"history_per_row": ("history_per_row_flat",)}


def main() -> None:
    from fedpca.summaries.rank import FixedRank
    from fedpca.trackers import Nystrom
    from fedpca.trackers.nystrom.tuning import TUNING

    seeds = range(1 if options(__doc__, "1 seed instead of 3").parse_args().quick else 3)
    print(f"# Tuning of the fast kernel: d = {DIMENSION}, r = {RANK}, n = {ROWS}\n\n{machine()}")
    data = {
        name: [(rows, Exact.of(rows, RANK)) for rows in (make(ROWS, DIMENSION, seed) for seed in seeds)]
        for name, make in STREAMS.items()
    }

    def measure(**changes: Any) -> tuple[float, list[float]]:
        """CPU seconds of all streams, the best of some rounds, and the shortfall of each."""
        seconds, shortfalls = 0.0, []
        for streams in data.values():
            found = []
            for rows, exact in streams:
                times = []
                for _ in range(ROUNDS):
                    tracker = Nystrom(DIMENSION, FixedRank(RANK))
                    tracker.tuning = replace(TUNING, **changes)
                    start = time.process_time()
                    for part in batches(rows, BATCH):
                        tracker.update(part)
                    components = tracker.summary().components[:RANK]
                    times.append(time.process_time() - start)
                seconds += min(times)
                found.append(max(exact.shortfall(components), 0.0))
            shortfalls.append(statistics.mean(found))
        return seconds, shortfalls

    measure()  # warm up
    for name, values in VALUES.items():
        heading(name)
        default, usual = measure()
        lines = [(f"{getattr(TUNING, name)} (default)", "1.00", *map(tiny, usual))]
        for value in values:
            seconds, shortfalls = measure(**dict.fromkeys((name, *TOGETHER.get(name, ())), value))
            lines.append((f"{value}", f"{seconds / default:.2f}", *map(tiny, shortfalls)))
        table((name, "time", *STREAMS), lines)


if __name__ == "__main__":
    main()
