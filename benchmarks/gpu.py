"""Rows on a GPU: a complete streaming fit beside one reading of the rows, and beside what else torch offers.

    python -m benchmarks.gpu           # all sizes; needs a GPU with 60 GB
    python -m benchmarks.gpu --quick   # an eighth of the rows, the first size only

Power-law rows (alpha = 1 but where it says otherwise, around a mean of length 3; see benchmarks/common.py),
float32, 12.8 GB of them, made on the device. A fit is StreamingPCA(r).fit(rows), its components read: checks,
start and summary included. All times are wall-clock, from an idle device to an idle device, interleaved,
medians of seven rounds, for other alphas of three. Shortfall: 1 - captured variance / the most that r
directions can capture, by the scatter in float64.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fedpca
from benchmarks.common import LATENT, NOISE, heading, number, options, table, tiny
from fedpca.backend import prefetch

try:
    import torch
except ImportError:
    sys.exit("benchmarks.gpu needs torch: pip install torch.")

ENTRIES = 3_200_000_000
SIZES = [(1000, 10), (1000, 50), (1000, 100), (256, 10), (256, 50), (256, 100)]
SIZES += [(4096, 10), (4096, 50), (4096, 100), (16_384, 10), (16_384, 50), (16_384, 100)]
ROUNDS = 7


def power_law(n: int, d: int, alpha: float = 1.0, seed: int = 0) -> Any:
    """Rows on the device, shape (n, d)."""
    random = torch.Generator("cuda").manual_seed(seed)
    latent = min(d, LATENT)
    basis = torch.linalg.qr(torch.randn(d, latent, generator=random, device="cuda"))[0].T
    basis = basis / torch.arange(1, latent + 1, device="cuda")[:, None] ** alpha
    mean = torch.randn(d, generator=random, device="cuda")
    mean *= 3 / mean.norm()
    rows = torch.empty(n, d, device="cuda")
    for part in rows.split(50_000):
        torch.matmul(torch.randn(len(part), latent, generator=random, device="cuda"), basis, out=part)
        if d > latent:
            part += NOISE * torch.randn(part.shape, generator=random, device="cuda")
        part += mean
    return rows


class Exact:
    """The scatter of rows in float64, and the energies of its leading directions."""

    def __init__(self, rows: Any, rank: int) -> None:
        mean = sum(part.sum(0, dtype=torch.float64) for part in rows.split(50_000)) / len(rows)
        self.scatter = 0
        for part in rows.split(50_000):
            part = part.double() - mean
            self.scatter = self.scatter + part.T @ part
        basis = torch.randn(rows.shape[1], min(rank + 100, rows.shape[1]), device="cuda").double()
        for _ in range(40):
            basis = torch.linalg.qr(self.scatter @ basis)[0]
        self.energies = torch.linalg.eigvalsh(basis.T @ self.scatter @ basis).flip(0)

    def shortfall(self, components: Any) -> float:
        basis = torch.linalg.qr(torch.asarray(components, device="cuda", dtype=torch.float64, copy=True).T)[0]
        captured = torch.trace(basis.T @ self.scatter @ basis)
        return float(1 - captured / self.energies[: basis.shape[1]].sum())


def read(rows: Any) -> None:
    rows.sum()


def fit(rows: Any, rank: int) -> Any:
    return fedpca.StreamingPCA(rank).fit(rows).components_


def fit_ieee(rows: Any, rank: int) -> Any:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        return fit(rows, rank)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


def by_scatter(rows: Any, rank: int, precision: str) -> Any:
    """The d x d scatter in float32, then its eigenvectors."""
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        mean = rows.mean(0)
        scatter = rows.T @ rows - len(rows) * torch.outer(mean, mean)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    return torch.linalg.eigh(scatter)[1].T.flip(0)[:rank]


def low_rank(rows: Any, rank: int) -> Any:
    """torch.pca_lowrank as it comes, with as many directions more as fedpca carries."""
    return torch.pca_lowrank(rows, q=2 * rank)[2].T[:rank]


def timed(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, Any]]:
    """Median milliseconds of each, and what it returned."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            try:
                torch.cuda.synchronize()
                start = time.perf_counter()
                results[name] = contender()
                torch.cuda.synchronize()
                if turn:  # the first warms up
                    times[name].append(1e3 * (time.perf_counter() - start))
            except torch.OutOfMemoryError:
                results[name] = None
    return {name: (statistics.median(times[name] or [float("nan")]), results[name]) for name in contenders}


def sizes(cases: list[tuple[int, int]], entries: int, rounds: int) -> None:
    heading("A complete fit beside one reading of the rows, milliseconds (and shortfall)")
    lines = []
    made: tuple[int, Any, Any] = (0, None, None)
    for d, rank in cases:
        if made[0] != d:
            made = (0, None, None)
            torch.cuda.empty_cache()
            rows = power_law(entries // d, d)
            made = (d, rows, Exact(rows, 100))
        _, rows, exact = made
        contenders = {
            "read": partial(read, rows),
            "fedpca": partial(fit, rows, rank),
            "fedpca, no tf32": partial(fit_ieee, rows, rank),
            "scatter, tf32": partial(by_scatter, rows, rank, "tf32"),
            "scatter, float32": partial(by_scatter, rows, rank, "ieee"),
            "pca_lowrank": partial(low_rank, rows, rank),
        }
        if d > 4096:  # an eigenproblem of minutes
            contenders = {name: run for name, run in contenders.items() if "scatter" not in name}
        found = timed(contenders, rounds if d <= 4096 else 3)
        reading = found.pop("read")[0]
        cells = [str(d), str(rank), f"{len(rows):,}", number(reading), number(found["fedpca"][0] / reading)]
        for name in ("fedpca", "fedpca, no tf32", "scatter, tf32", "scatter, float32", "pca_lowrank"):
            milliseconds, components = found.get(name, (float("nan"), None))
            missed = "-" if components is None else tiny(exact.shortfall(components))
            cells.append(f"{number(milliseconds)} ({missed})")
        lines.append(cells)
        print(" ".join(cells), file=sys.stderr, flush=True)
    header = ["d", "r", "rows", "read", "fedpca / read", "fedpca", "fedpca, no tf32"]
    table([*header, "scatter, tf32", "scatter, float32", "pca_lowrank"], lines)


def spectra(entries: int, rounds: int) -> None:
    heading("Flatter and steeper spectra, d = 1000, milliseconds (and shortfall)")
    lines = []
    for alpha in (0.25, 0.5, 0.75, 1.0, 2.0):
        rows = power_law(entries // 1000, 1000, alpha)
        exact = Exact(rows, 50)
        found = timed({str(rank): partial(fit, rows, rank) for rank in (10, 50)}, rounds)
        cells = [f"{number(time)} ({tiny(exact.shortfall(parts))})" for time, parts in found.values()]
        lines.append([str(alpha), *cells])
        del rows, exact
    table(["alpha", "r = 10", "r = 50"], lines)


def from_the_host(entries: int, rounds: int) -> None:
    heading("Rows on the host: 16 batches of d = 1000 in pinned memory, milliseconds")
    rows = power_law(entries // 4000, 1000)
    batches = [part.cpu().pin_memory() for part in rows.split(len(rows) // 16)]
    del rows

    def copy() -> None:
        for batch in batches:
            batch.to("cuda", non_blocking=True)

    def one_after_the_other() -> Any:
        pca = fedpca.StreamingPCA(10)
        for batch in batches:
            pca.partial_fit(batch.to("cuda"))
        return pca.components_

    def prefetched() -> Any:
        pca = fedpca.StreamingPCA(10)
        for batch in prefetch.prefetch_to_device(batches):
            pca.partial_fit(batch)
        return pca.components_

    found = timed(
        {"copy": copy, "copy, then fit": one_after_the_other, "prefetch_to_device": prefetched}, rounds
    )
    copying = found["copy"][0]
    table(
        ["", "milliseconds", "times the copy"],
        [[name, number(time), number(time / copying)] for name, (time, _) in found.items()],
    )


def two_streams(entries: int, rounds: int) -> None:
    heading("Two owners on two streams of one device, merged")
    rows = power_law(entries // 1000, 1000)
    exact = Exact(rows, 10)
    halves = rows.split(len(rows) // 2)
    streams = [torch.cuda.Stream() for _ in halves]

    def both() -> Any:
        owners = []
        for half, stream in zip(halves, streams, strict=True):
            with torch.cuda.stream(stream):
                owners.append(fedpca.StreamingPCA(10).fit(half).subspace_)
        return fedpca.merge(owners, rank=10).components

    found = timed({"one stream": partial(fit, rows, 10), "two, merged": both}, rounds)
    lines = [[name, number(time), tiny(exact.shortfall(parts))] for name, (time, parts) in found.items()]
    table(["", "milliseconds", "shortfall"], lines)


def main() -> None:
    arguments = options(__doc__, "an eighth of the rows, the first size only").parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs an NVIDIA GPU, and torch finds none.")
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    entries = ENTRIES // 8 if arguments.quick else ENTRIES
    sizes(SIZES[:1] if arguments.quick else SIZES, entries, ROUNDS)
    spectra(entries, 3)
    from_the_host(entries, ROUNDS)
    two_streams(entries, ROUNDS)


if __name__ == "__main__":
    main()
