"""Rows on a GPU: a complete streaming fit beside one reading of the rows, and beside what else there is.

    python -m benchmarks.gpu           # all sizes; needs a GPU with 60 GB
    python -m benchmarks.gpu --quick   # an eighth of the rows, the first size only

Power-law rows around a mean of length 3 (see benchmarks/common.py), rotated, made on the device. A fit is
StreamingPCA(r).fit(rows), its components read: checks, start and summary included; "batches" is `partial_fit`
of 100,000 rows at a time. Beside them X'X in tf32 with eigh, torch.pca_lowrank, and scikit-learn's PCA on the
device through the array API. All times are wall-clock, from an idle device to an idle device, interleaved,
medians of seven rounds. Shortfall: 1 - captured variance / the most that r directions can capture, by the
scatter in float64.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before scipy is imported: scikit-learn's PCA needs it
import sklearn
from sklearn.decomposition import PCA

import fedpca
from benchmarks.common import LATENT, NOISE, heading, number, options, table, tiny
from fedpca.parallel import prefetch_to_device

try:
    import torch
except ImportError:
    sys.exit("benchmarks.gpu needs torch: pip install torch.")


class Case(NamedTuple):
    """Rows, and how many components are wanted."""

    n_rows: int
    n_features: int
    rank: int
    alpha: float
    dtype: str = "float32"


CASES = [
    Case(3_200_000, 1000, 10, 1.0),
    Case(3_200_000, 1000, 50, 1.0),
    Case(3_200_000, 1000, 10, 0.5),
    Case(3_200_000, 1000, 50, 2.0),  # in float64: the last direction has 4e-7 of the first one's energy
    Case(4_000_000, 768, 64, 0.7),
    Case(4_000_000, 768, 64, 0.7, "bfloat16"),
    Case(2_000_000, 1536, 128, 0.6),
    Case(800_000, 4096, 128, 0.6),
    Case(12_500_000, 256, 50, 1.0),
    Case(195_000, 16_384, 10, 1.0),
    Case(195_000, 16_384, 100, 1.0),
    Case(195_000, 16_384, 100, 0.5),
]
ROUNDS = 7
BATCH = 100_000


def power_law(n: int, d: int, alpha: float = 1.0, dtype: str = "float32", seed: int = 0) -> Any:
    """Rows on the device, shape (n, d)."""
    random = torch.Generator("cuda").manual_seed(seed)
    latent = min(d, LATENT)
    basis = torch.linalg.qr(torch.randn(d, latent, generator=random, device="cuda"))[0].T
    basis = basis / torch.arange(1, latent + 1, device="cuda")[:, None] ** alpha
    mean = torch.randn(d, generator=random, device="cuda")
    mean *= 3 / mean.norm()
    rows = torch.empty(n, d, device="cuda", dtype=getattr(torch, dtype))
    for part in rows.split(50_000):
        made = torch.randn(len(part), latent, generator=random, device="cuda") @ basis
        if d > latent:
            made += NOISE * torch.randn(part.shape, generator=random, device="cuda")
        part.copy_(made + mean)
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
    rows.sum(dtype=torch.float32)


def fit(rows: Any, rank: int) -> Any:
    return fedpca.StreamingPCA(rank).fit(rows).components_


def fit_in_batches(rows: Any, rank: int) -> Any:
    pca = fedpca.StreamingPCA(rank)
    for batch in rows.split(BATCH):
        pca.partial_fit(batch)
    return pca.components_


def by_scatter(rows: Any, rank: int) -> Any:
    """The d x d scatter as torch multiplies it on tensor cores, then its eigenvectors."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        mean = rows.float().mean(0) if rows.dtype == torch.float32 else rows.mean(0, dtype=torch.float32)
        scatter = (rows.T @ rows).float() - len(rows) * torch.outer(mean, mean)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    return torch.linalg.eigh(scatter)[1].T.flip(0)[:rank]


def low_rank(rows: Any, rank: int) -> Any:
    """torch.pca_lowrank as it comes, with twice the directions wanted."""
    return torch.pca_lowrank(rows.float(), q=2 * rank)[2].T[:rank]


def sklearn_pca(rows: Any, rank: int) -> Any:
    """scikit-learn's PCA on the device."""
    with sklearn.config_context(array_api_dispatch=True):
        return PCA(rank, svd_solver="covariance_eigh").fit(rows.float()).components_


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


def sizes(cases: list[Case], share: float, rounds: int) -> None:
    heading("A complete fit beside one reading of the rows, milliseconds (and shortfall)")
    lines = []
    for case in cases:
        rows = power_law(round(case.n_rows * share), case.n_features, case.alpha, case.dtype)
        exact, rank = Exact(rows, case.rank), case.rank
        contenders = {
            "read": partial(read, rows),
            "fedpca": partial(fit, rows, rank),
            "batches": partial(fit_in_batches, rows, rank),
            "X'X, eigh": partial(by_scatter, rows, rank),
            "pca_lowrank": partial(low_rank, rows, rank),
            "scikit-learn": partial(sklearn_pca, rows, rank),
        }
        if case.n_features > 4096:  # an eigenproblem of minutes
            contenders = {name: contenders[name] for name in ("read", "fedpca", "batches", "pca_lowrank")}
        found = timed(contenders, rounds)
        cells = [f"{len(rows):,} x {case.n_features:,}", case.dtype, str(rank), str(case.alpha)]
        for name in ("read", "fedpca", "batches", "X'X, eigh", "pca_lowrank", "scikit-learn"):
            milliseconds, components = found.get(name, (float("nan"), None))
            missed = "" if components is None else f" ({tiny(exact.shortfall(components))})"
            cells.append(f"{number(milliseconds)}{missed}")
        lines.append(cells)
        print(" ".join(cells), file=sys.stderr, flush=True)
        del rows, exact, contenders, found
        torch.cuda.empty_cache()
    header = ["rows", "dtype", "r", "alpha", "read", "fedpca", "batches", "X'X, eigh", "pca_lowrank"]
    table([*header, "scikit-learn"], lines)


def from_the_host(share: float, rounds: int) -> None:
    heading("Rows on the host: 16 batches of d = 1000 in pinned memory, milliseconds")
    rows = power_law(round(800_000 * share), 1000)
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
        for batch in prefetch_to_device(batches):
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


def two_streams(share: float, rounds: int) -> None:
    heading("Two owners on two streams of one device, merged")
    rows = power_law(round(3_200_000 * share), 1000)
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
    share = 1 / 8 if arguments.quick else 1.0
    sizes(CASES[:1] if arguments.quick else CASES, share, ROUNDS)
    from_the_host(share, ROUNDS)
    two_streams(share, ROUNDS)


if __name__ == "__main__":
    main()
