"""What the constants of the arithmetic buy: tables of what other values of them cost.

    python -m benchmarks.constants           # a minute or two
    python -m benchmarks.constants --quick   # fewer seeds

carried     `oversampled_rank`: directions that parts exchange beyond those wanted.
mean        `far_limit`: up to how large a mean products of rows keep their digits.
gram        `_GRAM_FLOOR`, `_GRAM_CLEAN`: up to how steep a spectrum an eigenproblem of products serves.
rounding    `rounding_level`, and what the scatter of a stranger may be off by.
gaps        `_MAX_DEVIATIONS`, `_COLD_START_ITERATIONS`: missing entries.
chunks      `chunk_entries`: entries at a time, where rows must be copied.

One thread. A shortfall is 1 - captured variance / the most that as many directions can capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import heading, machine, number, options, power_law, random_basis, table


@contextmanager
def set_to(owner: Any, name: str, value: object) -> Iterator[None]:
    """Another value of a constant, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def carried(seeds: range) -> None:
    from fedpca import Subspace, merge
    from fedpca.metrics import captured_variance
    from fedpca.summaries.rank import oversampled_rank

    lines = []
    for rank in (1, 5, 10, 20, 50, 100):
        for alpha in (0.5, 1.0):
            widths = (rank, rank + rank // 2, oversampled_rank(rank), 2 * rank, 3 * rank)
            found: dict[int, list[float]] = {width: [] for width in widths}
            for seed in seeds:
                rows = power_law(4000, 400, alpha=alpha, seed=seed)
                for width in widths:
                    parts = [Subspace.from_rows(part, width) for part in np.array_split(rows, 4)]
                    components = merge(parts, rank).components[:rank]
                    found[width].append(1 - captured_variance(components, rows))
            shown = [f"{width}: {np.mean(found[width]):.0e}" for width in widths]
            lines.append((str(rank), f"{alpha:g}", *shown))
    heading(f"Directions exchanged: shortfall, four parts of 4,000 x 400 rows merged, {len(seeds)} seeds")
    table(("r", "alpha", "r", "3/2 r", "the rule", "2 r", "3 r"), lines)


def mean(seeds: range) -> None:
    lines = []
    for dtype in ("float32", "float64"):
        for factor in (0, 1e0, 1e1, 1e2, 1e4, 1e6):
            errors = []
            for seed in seeds:
                rng = np.random.default_rng(seed)
                rows = rng.standard_normal((2000, 50)) * np.logspace(0, -2, 50)
                variance = float(rows.var(axis=0).sum())
                shift = rng.standard_normal(50)
                shift *= np.sqrt(factor * variance) / np.linalg.norm(shift)
                rows = (rows + shift).astype(dtype)
                exact = np.linalg.svd(rows - rows.mean(axis=0, dtype="f8"), compute_uv=False)[-1] ** 2
                center = rows.mean(axis=0, dtype="f8")
                scatter = (rows.T @ rows).astype("f8") - len(rows) * np.outer(center, center)
                errors.append(abs(np.linalg.eigvalsh(scatter)[0] / exact - 1))
            lines.append((dtype, f"{factor:.0e}", f"{np.max(errors):.0e}"))
    heading("Products of rows far from zero: error of the smallest variance, 1e-4 of the largest")
    table(("products in", "mean² / variance", "relative error"), lines)


def gram(seeds: range) -> None:
    from fedpca.summaries import linalg

    lines = []
    for least in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        values, errors, raw = [], [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            spectrum = np.logspace(0, np.log10(least), 20)
            rows = (random_basis(20, 60, rng).T * spectrum) @ random_basis(20, 500, rng)
            for clean, into in ((0.0, raw), (1.0, errors)):
                with set_to(linalg, "_GRAM_FLOOR", 0.0), set_to(linalg, "_GRAM_CLEAN", clean):
                    components, found = linalg.leading_singular_pairs(rows, 20)
                into.append(linalg.orthonormality_error(components))
            values.append(float(np.abs(found / spectrum[: len(found)] - 1).max()))
        lines.append((f"{least:.0e}", f"{np.max(values):.0e}", f"{np.max(raw):.0e}", f"{np.max(errors):.0e}"))
    heading("Singular pairs by an eigenproblem of products: the last this much smaller than the first")
    columns = ("last / first", "error of the last value", "not orthogonal by", "after Cholesky")
    table(columns, lines)


def rounding(seeds: range) -> None:
    heading("Rounding: rows that span 3 directions, what is found beside these")
    results = []
    for n, d in ((20, 20), (300, 20), (300, 300), (2000, 300)):
        found = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            rows = rng.normal(size=(n, 3)) @ rng.normal(size=(3, d))
            values = np.linalg.svd(rows, compute_uv=False)
            products = rows.T @ rows
            energies = np.linalg.eigvalsh(products)
            narrow = rows.astype(np.float32)
            single = (narrow.T @ narrow).astype(np.float64)
            unit = np.finfo(np.float64).eps * np.sqrt(max(n, d))
            found.append(
                (
                    values[3] / values[0] / unit,
                    np.abs(energies[:-3]).max() / energies[-1] / unit,
                    -energies[0] / energies.sum(),
                    -np.linalg.eigvalsh((single + single.T) / 2)[0] / np.trace(single),
                    np.abs(single - single.T).max() / np.abs(single).max(),
                )
            )
        results.append((f"{n} x {d}", *(number(worst) for worst in np.max(found, axis=0))))
    columns = (
        "rows",
        "singular value / (eps sqrt(size))",
        "eigenvalue / (eps sqrt(size))",
        "lowest eigenvalue / trace",
        "of float32 products",
        "their asymmetry",
    )
    table(columns, results)


def gaps(seeds: range) -> None:
    from benchmarks import missing_values as rows_of
    from fedpca import StreamingPCA
    from fedpca.summaries import missing_values

    def shortfalls(share: float, heavy: bool) -> float:
        found = []
        for seed in seeds:
            rows, rng = rows_of.low_rank_rows(seed), np.random.default_rng(seed)
            gappy = np.where(rng.random(rows.shape) < share, np.nan, rows)
            if heavy:  # a few wild entries, which an estimate follows
                wild = rng.random(rows.shape) < 1e-3
                gappy = np.where(wild, 100 * rng.standard_normal(rows.shape), gappy)
            pca = StreamingPCA(rows_of.RANK)
            for part in np.array_split(gappy, 40):
                pca.partial_fit(part)
            found.append(rows_of.shortfall(rows, pca.components_))
        return float(np.mean(found))

    columns = [(0.3, False), (0.7, False), (0.3, True)]
    lines = []
    tried = {"_MAX_DEVIATIONS": (3.0, 5.0, 10.0, np.inf), "_COLD_START_ITERATIONS": (5, 20, 40, 160)}
    for name, values in tried.items():
        for value in values:
            with set_to(missing_values, name, value):
                start = time.process_time()
                found = [shortfalls(*column) for column in columns]
                seconds = (time.process_time() - start) / len(seeds)
            lines.append((name, f"{value:g}", *(f"{each:.1e}" for each in found), number(seconds)))
    heading(f"Missing entries: shortfalls, {len(seeds)} seeds")
    table(("constant", "value", "30 % missing", "70 % missing", "30 %, wild entries", "s, of all"), lines)


def chunks(seeds: range) -> None:
    from fedpca import Scaling, StreamingPCA
    from fedpca.backend import HOST

    lines = []
    for d in (50, 1000):
        rows = power_law(8_000_000 // d, d)
        gappy = rows[: len(rows) // 8].copy()
        gappy[::3, 0] = np.nan
        pca = StreamingPCA(5).fit(rows[:2000])
        for size in (2**16, 2**18, 2**20, 2**22, 2**24):
            with set_to(type(HOST), "chunk_entries", size):
                scaling = fastest(len(seeds), partial(Scaling.from_rows, rows))
                transform = fastest(len(seeds), partial(pca.transform, gappy))
            lines.append((str(d), f"2^{size.bit_length() - 1}", number(scaling), number(transform)))
    heading("Entries at a time: best CPU milliseconds")
    table(("d", "chunk_entries", "Scaling, 8 million entries", "transform, 1 million, some missing"), lines)


def fastest(runs: int, run: Callable[[], object]) -> float:
    """The least CPU milliseconds of some runs."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return min(times)


def main() -> None:
    parts = {
        "carried": carried,
        "mean": mean,
        "gram": gram,
        "rounding": rounding,
        "gaps": gaps,
        "chunks": chunks,
    }
    parser = options(__doc__, "2 seeds instead of 5")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(parts)}; all if none")
    given = parser.parse_args()
    print(f"# Constants\n\n{machine()}")
    for name in given.parts or parts:
        parts[name](range(2 if given.quick else 5))


if __name__ == "__main__":
    main()
