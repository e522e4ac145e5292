"""How fast: one pass of fedpca against other PCAs, and against the least any must do, one projection.

    python -m benchmarks.speed           # everything, under 25 minutes on one core
    python -m benchmarks.speed --quick   # the headline cell and a few more, under 4 minutes

One BLAS thread, CPU time, contenders in turn within each round, medians. Ours streams once in batches of 1000
rows, from a cold start to `components_`; most peers hold all rows in memory and pass over them several times.
Rows follow a power law (alpha = 1, see `power_law`); the float64 rows are the float32 rows, widened.
Shortfall: 1 - captured variance / the best possible with as many components, in float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks import peers
from benchmarks.common import (
    Array,
    Timing,
    batches,
    heading,
    interleave,
    machine,
    number,
    options,
    power_law,
    table,
    tiny,
    verdict,
)
from reproduction.exact import Exact

OURS = "fedpca"
ROWS = {64: 100_000, 256: 50_000, 784: 20_000, 1000: 20_000, 4096: 8_000, 20_000: 4_000}
RANKS = (5, 10, 50, 100)
DTYPES = ("float64", "float32")
HEADLINE = (1000, 10)
QUICK = {(64, 10), (784, 50), (1000, 50)}
GRID_PEERS = (
    peers.IPCA_DEFAULT,
    peers.IPCA_BEST,
    peers.RANDOMIZED,
    peers.RANDOMIZED_ONCE,
    peers.COVARIANCE,
    peers.FBPCA,
    peers.INTELEX,
    peers.INTELEX_COVARIANCE,
)
_EIGENPROBLEM = "above d = 1000 its d x d eigenproblem takes too long to be repeated over a grid"
SMALL_ONLY = {
    peers.IPCA_DEFAULT: "above d = 1000 its batch of 5 d is more than the rows: one full SVD",
    peers.COVARIANCE: _EIGENPROBLEM,
    peers.INTELEX: _EIGENPROBLEM,
    peers.INTELEX_COVARIANCE: _EIGENPROBLEM,
}
BATCH = 1000

Key = tuple[int, int, str]  # d, r, dtype


@dataclass(frozen=True)
class Goals:
    """Ratios of the peer's time to ours in the headline cell, and the limits for ours."""

    best_batch: dict[str, float]
    default_batch: dict[str, float]
    projections: float = 3.5
    shortfall: float = 1e-5


GOALS = Goals(best_batch={"float64": 15, "float32": 27}, default_batch={"float64": 50, "float32": 75})


@dataclass
class Cell:
    """Everything measured at one (d, r, dtype): a timing and a shortfall for each contender."""

    n_rows: int
    timings: dict[str, Timing]
    shortfalls: dict[str, float]

    def per_row(self, name: str) -> float:
        return 1e6 * self.timings[name].median / self.n_rows

    def ratio(self, name: str) -> float:
        return self.timings[name].median / self.timings[OURS].median if name in self.timings else float("nan")


def measure(
    rows: Array, exact: Exact, rank: int, found: dict[str, peers.Peer], *, rounds: int, budget: float
) -> tuple[Cell, int]:
    """Time ours and the given peers on the same rows; also returns the best batch of IncrementalPCA."""
    batch = peers.best_batch(rows, rank)
    fits: dict[str, Callable[[Array, int], Array]] = {OURS: peers.fedpca}
    fits |= {name: peer.fit for name, peer in found.items()}
    fits[peers.IPCA_BEST] = functools.partial(peers.incremental_pca, batch=batch)
    runs = {name: functools.partial(fit, rows, rank) for name, fit in fits.items()}
    timings = interleave(runs, rounds, budget)
    shortfalls = {
        name: exact.shortfall(timing.result) if timing.result is not None else float("nan")
        for name, timing in timings.items()
    }
    return Cell(len(rows), timings, shortfalls), batch


def print_headline(cell: Cell, found: dict[str, peers.Peer], batch: int, dtype: str) -> None:
    d, rank = HEADLINE
    heading(f"Headline: d = {d}, r = {rank}, n = {cell.n_rows}, {dtype}")
    sees = {OURS: f"batches of {BATCH}, once", peers.IPCA_BEST: f"batches of {batch}"}
    sees |= {name: peer.sees for name, peer in found.items()}
    fastest_first = sorted(cell.timings.items(), key=lambda item: (item[0] != OURS, item[1].median))
    table(
        ("method", "us/row", "ratio to fedpca", "shortfall", "reads", "runs"),
        [
            (
                name,
                number(cell.per_row(name)),
                number(cell.ratio(name)),
                tiny(cell.shortfalls[name]),
                sees[name],
                timing.note,
            )
            for name, timing in fastest_first
        ],
    )


def print_grid(cells: dict[Key, Cell]) -> None:
    heading("Grid: ratio to fedpca (shortfall)")
    names = [name for name in GRID_PEERS if any(name in cell.timings for cell in cells.values())]

    def entry(cell: Cell, name: str) -> str:
        timing = cell.timings.get(name)
        if timing is None:
            return "-"
        if not timing.seconds:
            return timing.problem
        once = "'" if len(timing.seconds) == 1 else ""
        return f"{number(cell.ratio(name))}{once} ({tiny(cell.shortfalls[name])})"

    table(
        ("d", "r", "dtype", "n", "fedpca us/row", "fedpca shortfall", *names),
        [
            (
                str(d),
                str(rank),
                dtype,
                str(cell.n_rows),
                number(cell.per_row(OURS)) if cell.timings[OURS].seconds else cell.timings[OURS].problem,
                tiny(cell.shortfalls[OURS]),
                *(entry(cell, name) for name in names),
            )
            for (d, rank, dtype), cell in cells.items()
        ],
    )
    print("' measured once, because one run used up its time.")
    if any(d > 1000 for d, _, _ in cells):
        for name, reason in SMALL_ONLY.items():
            print(f"- {name}: left out, {reason}.")


def steady_state(rows: Array, rank: int, *, rounds: int) -> tuple[float, float]:
    """CPU seconds a row of `partial_fit` long after the start, and of the projection of the same batches.

    Each round streams at least 20,000 rows, so that it holds its share of whatever is done now and then.
    """
    from fedpca import StreamingPCA

    model = StreamingPCA(n_components=rank)
    parts = list(batches(rows, BATCH))
    parts = [part for part in parts if len(part) == BATCH]
    lap = max(len(parts), 20_000 // BATCH)
    warm = max(lap, min(800 * rank, 40_000) // BATCH)
    forever = itertools.cycle(parts)
    stream: Callable[[int], Iterable[Array]] = lambda count: itertools.islice(forever, count)  # noqa: E731
    for part in stream(warm):
        model.partial_fit(part)
    basis = model.components_.T

    def update() -> None:
        for part in stream(lap):
            model.partial_fit(part)

    def project() -> None:
        for part in stream(lap):
            part @ basis

    timings = interleave({"update": update, "project": project}, rounds, budget=10.0, limit=120.0)
    if problem := timings["update"].problem:
        print(f"steady state, d = {rows.shape[1]}, r = {rank}, {rows.dtype}: {problem}")
    return timings["update"].median / (lap * BATCH), timings["project"].median / (lap * BATCH)


def print_steady(steady: dict[Key, tuple[float, float]]) -> None:
    heading("Steady state: partial_fit in units of one projection X @ V.T")
    table(
        ("d", "r", "dtype", "fedpca us/row", "projection us/row", "projections"),
        [
            (str(d), str(rank), dtype, number(1e6 * update), number(1e6 * project), number(update / project))
            for (d, rank, dtype), (update, project) in steady.items()
        ],
    )


def print_verdicts(cells: dict[Key, Cell], steady: dict[Key, tuple[float, float]]) -> None:
    heading("Goals")
    for dtype in DTYPES:
        key = (*HEADLINE, dtype)
        cell = cells[key]
        for name, goal in (
            (peers.IPCA_BEST, GOALS.best_batch[dtype]),
            (peers.IPCA_DEFAULT, GOALS.default_batch[dtype]),
            (peers.RANDOMIZED, 1.0),
        ):
            if name in cell.timings:
                ratio = cell.ratio(name)
                verdict(ratio >= goal, f"{dtype} headline, {name} >= {goal:g} x", f"{ratio:.1f} x")
        lost = cell.shortfalls[OURS]
        verdict(lost <= GOALS.shortfall, f"{dtype} headline, shortfall <= {GOALS.shortfall:g}", f"{lost:.1e}")
        update, project = steady[key]
        verdict(
            update <= GOALS.projections * project,
            f"{dtype} headline, steady state <= {GOALS.projections:g} projections",
            f"{update / project:.2f}",
        )
    large = {key: update / project for key, (update, project) in steady.items() if key[0] >= 784}
    worst = max(large, key=lambda key: large[key])
    verdict(
        large[worst] <= GOALS.projections,
        f"every cell here with d >= 784, steady state <= {GOALS.projections:g} projections",
        f"{large[worst]:.2f} at {describe(worst)}",
    )
    closest = min(cells, key=lambda key: cells[key].ratio(peers.RANDOMIZED))
    ratio = cells[closest].ratio(peers.RANDOMIZED)
    found = f"{ratio:.2f} x at {describe(closest)}"
    verdict(ratio > 1.0, f"every cell here, faster than {peers.RANDOMIZED}", found)
    least = max(cells, key=lambda key: cells[key].shortfalls[OURS])
    print(f"      worst shortfall of the grid: {cells[least].shortfalls[OURS]:.1e} at {describe(least)}")


def describe(key: Key) -> str:
    return f"d = {key[0]}, r = {key[1]}, {key[2]}"


def main() -> None:
    quick = options(__doc__, "the headline cell and a few more").parse_args().quick

    print(f"# Speed\n\n{machine()}\n")
    found = peers.available()
    peers.warm_up(found)
    cells: dict[Key, Cell] = {}
    steady: dict[Key, tuple[float, float]] = {}
    for d, n in ROWS.items():
        ranks = [rank for rank in RANKS if rank < d and (not quick or (d, rank) in QUICK | {HEADLINE})]
        if not ranks:
            continue
        narrow = power_law(n, d, dtype="float32")
        exact = Exact.of(narrow, max(ranks))
        here = [name for name in GRID_PEERS if d <= 1000 or name not in SMALL_ONLY]
        few = {name: found[name] for name in here if name in found}
        for dtype in DTYPES:
            rows = narrow.astype(dtype, copy=False)
            for rank in ranks:
                headline = (d, rank) == HEADLINE
                cell, batch = measure(
                    rows,
                    exact,
                    rank,
                    found if headline else few,
                    rounds=7 if headline else 3,
                    budget=(5.0 if quick else 10.0) if headline else 3.0,
                )
                cells[d, rank, dtype] = cell
                if headline:
                    print_headline(cell, found, batch, dtype)
                steady[d, rank, dtype] = steady_state(rows, rank, rounds=3)
                print(f"done: d = {d}, r = {rank}, {dtype}", flush=True)
    print_grid(cells)
    print_steady(steady)
    print_verdicts(cells, steady)


if __name__ == "__main__":
    main()
