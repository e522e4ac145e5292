"""What trees of merges lose, and how fast summaries merge: at once, in a tree, in turn, and as in the paper.

    python -m benchmarks.merging           # depth up to 6; d = 1000 and 20000, up to 256 summaries
    python -m benchmarks.merging --quick   # depth up to 4; d = 1000 up to 64, d = 20000 up to 16

Depth: clients of 20 rows (d = 64), each around a mean of its own, and all nodes above keep k = 10 directions.
Energies are in units of what all rows have outside their 10 leading directions. Lost: what the first r = 5
of the model capture less than the best 5 directions. `discarded`, known from the model alone, is no less.

Speed: each client summarizes 100 rows by k = 20 directions (what is exchanged for r = 10); merges in turn
keep 20, the others end with 10, and the first 10 are judged. Rows follow a power law (alpha = 1) in a random
subspace of 500 dimensions, around a mean that differs between clients. The paper's algorithms carry no mean:
they merge uncentered summaries of the same rows, and are judged against the best uncentered subspace.
Shortfall: 1 - captured energy / the best possible. CPU time, one BLAS thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import Array, heading, interleave, machine, number, options, random_basis, table, tiny

RANK, KEPT = 10, 20
ROWS_EACH, LATENT = 100, 500
BUDGET = 4.0  # CPU seconds for a contender in a cell; one that needs more is left out of the larger cells


TREE_D, TREE_ROWS, TREE_KEPT, TREE_RANK = 64, 20, 10, 5


class Rows:
    """Rows of ever new clients, and the exact sums over all of them."""

    def __init__(self, alpha: float) -> None:
        self.rng = np.random.default_rng(0)
        self.scale = np.arange(1.0, TREE_D + 1) ** -alpha
        self.count, self.total, self.products = 0, np.zeros(TREE_D), np.zeros((TREE_D, TREE_D))

    def client(self) -> Array:
        rows = self.rng.standard_normal((TREE_ROWS, TREE_D)) + self.rng.standard_normal(TREE_D)
        rows *= self.scale
        self.count += TREE_ROWS
        self.total += rows.sum(axis=0)
        self.products += rows.T @ rows
        return rows

    def scatter(self) -> Array:
        return self.products - np.outer(self.total, self.total) / self.count


def grown(rows: Rows, depth: int, fanout: int) -> Any:
    """The model at the root of a tree of new clients."""
    from fedpca import Subspace, merge

    if not depth:
        return Subspace.from_rows(rows.client(), TREE_KEPT)
    return merge([grown(rows, depth - 1, fanout) for _ in range(fanout)], TREE_KEPT)


def depths(deepest: int) -> None:
    from fedpca.paper.theory import merge_error_bound

    for alpha in (1.0, 0.5):
        lines = []
        for fanout in (2, 8):
            for depth in range(1, deepest + 1):
                rows = Rows(alpha)
                model = grown(rows, depth, fanout)
                scatter = rows.scatter()
                energies = np.linalg.eigvalsh(scatter)[::-1]
                tail = float(energies[TREE_KEPT:].sum())
                first = model.components[:TREE_RANK]
                lost = energies[:TREE_RANK].sum() - np.trace(first @ scatter @ first.T)
                lines.append(
                    (
                        str(fanout),
                        str(depth),
                        f"{fanout**depth:,}",
                        tiny(lost / tail),
                        number(merge_error_bound(depth, tail) / tail),
                        number(model.discarded / tail),
                        number(merge_error_bound(depth + 1, tail) / tail),
                        number(((1 + np.sqrt(2)) ** (depth + 1) - 1) ** 2),
                    )
                )
        heading(
            f"Depth: alpha = {alpha:g}, energies in units of those outside the {TREE_KEPT} best directions"
        )
        header = (
            "fanout",
            "depth",
            "clients",
            f"lost by the first {TREE_RANK}",
            "at most",
            "`discarded`",
            "at most",
        )
        table((*header, "the paper's bound, squared"), lines)


class Clients:
    """Summaries of `count` clients, and the scatter of their rows in the subspace in which all rows lie."""

    def __init__(self, count: int, d: int) -> None:
        from fedpca import Subspace

        rng = np.random.default_rng(0)
        self.basis = random_basis(LATENT, d, rng)
        scale = np.arange(1, LATENT + 1) ** -1.0
        self.centered: list[Any] = []
        self.uncentered: list[Any] = []
        self.latent: list[Array] = []
        for _ in range(count):
            latent = (rng.standard_normal((ROWS_EACH, LATENT)) + 0.5 * rng.standard_normal(LATENT)) * scale
            rows = latent @ self.basis
            self.latent.append(latent)
            self.centered.append(Subspace.from_rows(rows, rank=KEPT))
            self.uncentered.append(Subspace.from_rows(rows, rank=KEPT, center=False))

    def shortfall(self, components: Array, count: int, *, center: bool) -> float:
        """Exact, in the 500 dimensions in which the rows of the first `count` clients lie."""
        rows = np.concatenate(self.latent[:count])
        if center:
            rows = rows - rows.mean(axis=0)
        directions = np.linalg.qr(np.asarray(components[:RANK], np.float64).T)[0]
        best = np.linalg.eigvalsh(rows.T @ rows)[-RANK:].sum()
        return float(1.0 - np.square(rows @ (self.basis @ directions)).sum() / best)


def contenders() -> dict[str, tuple[bool, Callable[[list[Any]], Any]]]:
    """Name -> (centered?, merge of a list of summaries)."""
    from fedpca import merge, merge_tree
    from fedpca.paper.merges import basic_merge, faster_merge, merge_r

    def in_turn(pair: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
        return lambda summaries: functools.reduce(pair, summaries)

    found: dict[str, tuple[bool, Callable[[list[Any]], Any]]] = {
        "merge, all at once": (True, lambda summaries: merge(summaries, rank=RANK)),
        "merge, pairwise and sequentially": (
            True,
            in_turn(lambda first, second: merge([first, second], rank=KEPT)),
        ),
    }
    for fanout in (2, 4, 8):
        found[f"merge_tree, fanout {fanout}"] = (
            True,
            lambda summaries, fanout=fanout: merge_tree(summaries, rank=RANK, fanout=fanout),
        )
    for name, pair in (("merge_r", merge_r), ("basic_merge", basic_merge), ("faster_merge", faster_merge)):
        found[f"{name}, sequentially (uncentered)"] = (False, in_turn(functools.partial(pair, rank=KEPT)))
    return found


def main() -> None:
    quick = options(__doc__, "fewer summaries").parse_args().quick

    print(f"# Merging\n\n{machine()}")
    depths(4 if quick else 6)
    for d, most in ((1000, 64), (20_000, 16)) if quick else ((1000, 256), (20_000, 256)):
        clients = Clients(most, d)
        counts = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
        runs = contenders()
        cells: dict[str, list[str]] = {name: [] for name in runs}
        too_slow: set[str] = set()
        for count in counts:
            timings = interleave(
                {
                    name: functools.partial(run, (clients.centered if center else clients.uncentered)[:count])
                    for name, (center, run) in runs.items()
                    if name not in too_slow
                },
                rounds=5,
                budget=BUDGET,
                limit=30.0,
            )
            for name, (center, _) in runs.items():
                timing = timings.get(name)
                if timing is None:
                    cells[name].append("omitted")
                elif not timing.seconds:
                    cells[name].append(timing.problem)
                    too_slow.add(name)
                else:
                    shortfall = clients.shortfall(timing.result.components, count, center=center)
                    cells[name].append(f"{number(1e3 * timing.median)} ({tiny(shortfall)})")
                    if timing.median > BUDGET:
                        too_slow.add(name)
        heading(f"Speed: d = {d}, k = {KEPT}, r = {RANK}: ms (shortfall) by number of summaries")
        table(("method", *map(str, counts)), [(name, *line) for name, line in cells.items()])
        if any("omitted" in line for line in cells.values()):
            print(f"omitted: a run with half as many took more than {BUDGET:g} s, or failed.")


if __name__ == "__main__":
    main()
