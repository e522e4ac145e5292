"""What the benchmarks share: rows of known spectrum, a fair timing loop, tables."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import THREADS
from reproduction.exact import Array, batches

# Rows.

LATENT = 1000  # directions with their own variance; in more dimensions the rest is isotropic noise
NOISE = 5e-4  # its standard deviation, half that of direction 1000 at alpha = 1


def random_basis(rank: int, d: int, rng: np.random.Generator) -> Array:
    """Random orthonormal rows, shape (rank, d)."""
    return np.ascontiguousarray(np.linalg.qr(rng.standard_normal((d, rank)))[0].T)


def power_law(n: int, d: int, *, alpha: float = 1.0, seed: int = 0, dtype: str = "float64") -> Array:
    """Gaussian rows whose i-th direction has standard deviation i**-alpha, around a random mean of length 3.

    Above d = 1000 only 1000 directions follow the law, and isotropic noise (standard deviation 5e-4) fills
    the rest.
    """
    rng = np.random.default_rng(seed)
    latent = min(d, LATENT)
    basis = random_basis(latent, d, rng)
    mean = rng.standard_normal(d)
    mean *= 3.0 / np.linalg.norm(mean)
    basis *= np.arange(1, latent + 1)[:, None] ** -alpha
    basis, mean = basis.astype(dtype), mean.astype(dtype)
    rows = np.empty((n, d), dtype)
    for part in batches(rows, 1000):
        np.matmul(rng.standard_normal((len(part), latent), dtype), basis, out=part)  # type: ignore[call-overload]
        if d > latent:
            part += np.float32(NOISE) * rng.standard_normal(part.shape, np.float32)
        part += mean
    return rows


# Time.


class OutOfTime(BaseException):
    """A contender took longer than it is given. Not an Exception, so that no library swallows it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop the block after so many seconds (at the next Python instruction: not inside one LAPACK call).

    The alarm is on the wall clock: a timer on CPU time (ITIMER_PROF) has been seen to round `process_time`
    to 4 ms on Linux.
    """

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Timing:
    """Seconds of each run of a contender, what it last returned, and why it was cut short, if it was."""

    seconds: list[float] = field(default_factory=list)
    result: Any = None
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def note(self) -> str:
        return self.problem or ("measured once" if len(self.seconds) == 1 else f"{len(self.seconds)} runs")

    def run(self, contender: Callable[[], Any], limit: float, clock: Callable[[], float]) -> None:
        try:
            with time_limit(limit):
                start = clock()
                result = contender()
                elapsed = clock() - start
            self.seconds.append(elapsed)
            self.result = result
        except OutOfTime:
            self.problem = f"stopped after {limit:.0f} s"
        except Exception as error:  # a contender that breaks is a line in the table, not the end of the run
            self.problem = f"failed: {error!r}"[:110]


def interleave(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int = 5,
    budget: float = 10.0,
    limit: float = 60.0,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Timing]:
    """Run the contenders in turn, round after round, so that a busy moment of the machine hits them all.

    A contender sits out further rounds once it has used `budget` seconds of the clock, by default of CPU
    time; one run is stopped after `limit` seconds.
    """
    timings = {name: Timing() for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            timing = timings[name]
            if not timing.problem and sum(timing.seconds) < budget:
                timing.run(contender, limit, clock)
    return timings


# Words.


def options(description: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with the one option that all benchmarks have."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table, with columns aligned for the terminal too."""
    grid = [list(header), *[list(line) for line in lines]]
    widths = [max(len(line[i]) for line in grid) for i in range(len(header))]
    grid.insert(1, ["-" * width for width in widths])
    for line in grid:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    print(flush=True)


def number(value: float) -> str:
    """Three digits, no exponent where it can be helped."""
    if not np.isfinite(value):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def tiny(value: float) -> str:
    """A shortfall or an angle: one digit and an exponent, 0 below round-off."""
    if not np.isfinite(value):
        return "-"
    return "0" if abs(value) < 1e-13 else f"{value:.1e}"


def verdict(passed: bool, claim: str, found: str) -> None:
    """One PASS or FAIL line: the goal, then what was found."""
    print(f"{'PASS' if passed else 'FAIL'}  {claim}: {found}", flush=True)


def machine() -> str:
    """One line that says where the numbers come from."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{cpu}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}, "
        f"{blas['name']} {blas['version']}; {THREADS} BLAS thread{'s' * (THREADS > 1)}; load {load}"
    )


def heading(title: str) -> None:
    print(f"\n## {title}\n", flush=True)
