"""How long exact noise takes, and how little memory a mask needs that is never held whole.

    python -m benchmarks.private_noise           # 25 rounds
    python -m benchmarks.private_noise --quick   # 5 rounds

One thread, CPU time, contenders in turn, medians and quartiles. Noise is that of (epsilon, delta) = (1, 1e-5)
unless said, on the integers that sums of rows are. numpy's are floats: fast, and not safe.
"""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from collections.abc import Callable

import numpy as np

from benchmarks.common import Array, Timing, heading, interleave, machine, number, options, table, verdict

ENTRIES = 2**18
VECTORS = 32


def spread(timing: Timing) -> tuple[str, str]:
    """Median in milliseconds, and the quartiles."""
    if timing.problem:
        return timing.problem, "-"
    first, _, third = statistics.quantiles(timing.seconds, n=4) if len(timing.seconds) > 1 else [np.nan] * 3
    return number(1e3 * timing.median), f"{number(1e3 * first)} to {number(1e3 * third)}"


def one_mask(rounds: int) -> None:
    from fedpca.paper.mask import SymmetricMask
    from fedpca.paper.noise import mod_sulq_beta, paper_omega
    from fedpca.privacy.calibration import analytic_sigma
    from fedpca.privacy.clipping import RADIUS
    from fedpca.privacy.noise import ExactNoise
    from reproduction.fast_noise import FastNoise

    d = 784
    sigma = analytic_sigma(1.0, 1e-5)
    noises = {"ExactNoise": ExactNoise(bytes(32)), "FastNoise": FastNoise(bytes(32))}
    rng = np.random.default_rng(0)
    numpy_name = f"numpy, {d} x {d} standard normals"
    runs: dict[str, Callable[[], object]] = {numpy_name: lambda: rng.standard_normal((d, d))}
    for name, noise in noises.items():
        mask = SymmetricMask(noise, d, sigma * RADIUS**2, sigma * RADIUS**2 / np.sqrt(2))
        runs[f"symmetric mask, {name}"] = mask.dense
    timings = interleave(runs, rounds, budget=60.0)
    heading(f"One {d} x {d} mask, {rounds} rounds")
    base = timings[numpy_name].median
    table(
        ("what", "ms", "quartiles", "times numpy"),
        [(name, *spread(timing), number(timing.median / base)) for name, timing in timings.items()],
    )
    ratio = timings["symmetric mask, ExactNoise"].median / base
    verdict(ratio < 10, f"exact {d} x {d} mask below 10 times numpy's time", f"{ratio:.1f} times")

    heading(f"Entries a second, {ENTRIES} at a time")
    scales = {
        "analytic": sigma,
        "MOD-SuLQ's beta": mod_sulq_beta(1.0, 1e-5, d, 1),
        "paper's omega": paper_omega(1.0, 1e-5, d, 1),
    }
    runs = {
        f"{name}, {scale}": lambda noise=noise, sd=sd: noise.entries((0,), ENTRIES, sd * RADIUS**2)
        for name, noise in noises.items()
        for scale, sd in scales.items()
    }
    timings = interleave(runs, rounds, budget=10.0)
    table(
        ("source, standard deviation", "million entries a second", "ms", "quartiles", "runs"),
        [
            (name, number(ENTRIES / timing.median / 1e6), *spread(timing), timing.note)
            for name, timing in timings.items()
        ],
    )


def product(rounds: int) -> None:
    from fedpca.paper.mask import SymmetricMask
    from fedpca.paper.streaming_mod_sulq import strips
    from fedpca.privacy.calibration import analytic_sigma
    from fedpca.privacy.clipping import RADIUS
    from fedpca.privacy.noise import ExactNoise

    d = 4096
    sd = analytic_sigma(1.0, 1e-5) * RADIUS**2
    mask = SymmetricMask(ExactNoise(bytes(32)), d, sd, sd / np.sqrt(2))
    vectors = np.random.default_rng(0).standard_normal((d, VECTORS))

    def multiply() -> Array:
        return np.concatenate([strip.T @ vectors for _, strip in strips(mask)])  # it is symmetric

    timing = interleave({"product": multiply}, max(3, rounds // 5), budget=60.0)["product"]
    gc.collect()
    tracemalloc.start()
    multiply()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = 8 * d**2
    heading(f"A {d} x {d} exact mask times {VECTORS} vectors, never held whole")
    table(
        ("ms", "quartiles", "traced peak MB", "the matrix MB", "share", "runs"),
        [
            (
                *spread(timing),
                f"{peak / 1e6:.1f}",
                f"{whole / 1e6:.1f}",
                f"{peak / whole:.3f}",
                timing.note,
            )
        ],
    )


def release(rounds: int) -> None:
    """Of the sums that a client has: noise and certificate, then the eigenvectors of the noisy sum."""
    from fedpca import Privacy
    from fedpca.privacy import PrivateTracker

    lines, peaks = [], []
    for d in (784, 2048, 4096):
        rows = np.random.default_rng(0).standard_normal((256, d)) / np.sqrt(d)

        def tracker(rows: Array = rows) -> PrivateTracker:
            privacy = Privacy(1.0, 1e-5, 1.0, center=None, evaluate=False)
            made = PrivateTracker(rows.shape[1], None, privacy)
            made.update([rows], len(rows))
            return made

        made = tracker()
        gc.collect()
        tracemalloc.start()
        made.release()
        peaks.append((str(d), f"{tracemalloc.get_traced_memory()[1] / (8 * d**2):.2f}"))
        tracemalloc.stop()
        if d == 4096:
            continue
        summary = made.state()
        runs = {
            "rows and release": lambda tracker=tracker: tracker().release(),
            "subspace(10)": lambda summary=summary: summary.subspace(10),
        }
        timings = interleave(runs, max(3, rounds // 3), budget=30.0)
        lines.extend((str(d), name, *spread(timing), timing.note) for name, timing in timings.items())
    heading("A whole release of gram, and its components")
    table(("d", "what", "ms", "quartiles", "runs"), lines)
    heading("Traced peak of a release, its own products apart")
    table(("d", "d x d matrices of float64"), peaks)


def main() -> None:
    rounds = 5 if options(__doc__, "5 rounds instead of 25").parse_args().quick else 25

    print(f"# Noise\n\n{machine()}")
    one_mask(rounds)
    product(rounds)
    release(rounds)


if __name__ == "__main__":
    main()
