"""Algorithms 4 and 5: merges with a forgetting and an enhancing factor, on a stream that changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fedpca._typing import Array
from fedpca.paper.merges import basic_merge, faster_merge
from fedpca.summaries.subspace import Subspace
from reproduction.base import Case, Experiment, Outcome, Record, Table, Verdict, format_share
from reproduction.datasets import synth
from reproduction.exact import batches
from reproduction.plots import log_ticks, subplots
from reproduction.scores import Offline

CHANGED, SAME = "directions change half-way", "directions stay"
STYLES = ("#0b6623", "#8fb8f0", "#1f5fbf", "#9467bd", "#e08214", "#b3261e")  # one per pair of factors


@dataclass(frozen=True)
class Forgetting(Experiment):
    """Settings: chosen here; the paper defines both factors, and uses neither in an experiment.

    Each block of rows is summarized exactly and merged into the subspace so far by BasicMerge, and again by
    FasterMerge.

    Attributes:
        factors: pairs of lambda_1, the forgetting factor, and lambda_2, the enhancing factor.
        alpha: of Synth(alpha).
        n_features: d.
        n_rows: n. In the second half of a stream that changes, the directions are others.
        block_rows: b.
        rank: r.
        next_rows: errors are measured on so many rows to come.
        n_simulations: draws of the rows.
    """

    name: ClassVar[str] = "forgetting"
    figure: ClassVar[str] = "Algorithms 4 and 5"
    title: ClassVar[str] = "Forgetting and enhancing factors"
    claim: ClassVar[str] = (
        "BasicMerge and FasterMerge take a forgetting factor lambda_1, in (0, 1), that allocates less weight "
        "to the previous subspace, and an enhancing factor lambda_2 >= 1 for the newer one."
    )
    full_outcome: ClassVar[Outcome] = "held with a correction"

    factors: tuple[tuple[float, float], ...] = (
        (1.0, 1.0),
        (0.99, 1.0),
        (0.9, 1.0),
        (0.5, 1.0),
        (1.0, 1 / 0.9),
        (0.9, 1 / 0.9),
    )
    alpha: float = 1.0
    n_features: int = 50
    n_rows: int = 10_000
    block_rows: int = 50
    rank: int = 5
    next_rows: int = 500
    n_simulations: int = 10

    def quick(self) -> Self:
        return replace(self, n_simulations=2)

    def cases(self) -> Sequence[Case]:
        return [
            {"stream": stream, "simulation": number}
            for stream in (CHANGED, SAME)
            for number in range(self.n_simulations)
        ]

    def measure(self, case: Case) -> list[Record]:
        rng = self.generator(case)
        if case["stream"] == CHANGED:
            halves = [synth(self.alpha, self.n_features, self.n_rows // 2, seed=rng) for _ in range(2)]
            rows = np.concatenate(halves)
        else:
            rows = synth(self.alpha, self.n_features, self.n_rows, seed=rng)
        blocks = [
            Subspace.from_rows(block, self.rank, center=False) for block in batches(rows, self.block_rows)
        ]
        records: list[Record] = []
        for forget, enhance in self.factors:
            basic = faster = None
            for number, block in enumerate(blocks, start=1):
                if basic is None or faster is None:
                    basic = faster = block
                else:
                    basic = basic_merge(basic, block, self.rank, forget=forget, enhance=enhance)
                    faster = faster_merge(faster, block, self.rank, forget=forget, enhance=enhance)
                seen = number * self.block_rows
                if seen % self.next_rows == 0 and seen < len(rows):
                    to_come = Offline.of(rows[seen : seen + self.next_rows])
                    whole = np.linalg.norm(rows[:seen] @ basic.components[0])
                    records.append(
                        {
                            "factors": _name(forget, enhance),
                            "t": seen,
                            "excess": to_come.scores(basic.components)["excess"],
                            "apart": _distance(basic.components, faster.components),
                            "scale": float(basic.singular_values[0] / whole),
                            "first": " ".join(f"{entry:.17g}" for entry in basic.components[0]),
                        }
                    )
        return records

    def draw(self, table: Table) -> Mapping[str, Any]:
        figure, (changed, same, scale) = subplots(1, 3, width=13, height=4.6)
        for axis, stream in ((changed, CHANGED), (same, SAME)):
            self._curves(axis, table.where(stream=stream), "excess")
            axis.set_title(f"{stream}: relative excess of\nthe error on the next {self.next_rows} rows")
        self._curves(scale, table.where(stream=SAME), "scale")
        scale.set_title("first singular value over\nthat of all rows so far")
        for axis in (changed, same, scale):
            axis.set_xlabel("rows")
        figure.legend(
            *same.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="small"
        )
        text = (
            "Three panels against the rows seen, with a curve per pair of factors. Left and middle, the "
            "error on the next rows beyond the smallest possible, where the directions change half-way and "
            "where they stay: curves with and without an enhancing factor coincide. Right, the first "
            "singular value relative to that of all rows so far, which the enhancing factor only scales."
        )
        return {text: figure}

    def _curves(self, axis: Any, table: Table, column: str) -> None:
        for color, (forget, enhance) in zip(STYLES, self.factors, strict=False):
            rows = table.where(factors=_name(forget, enhance))
            course = [(t, part.mean(column)) for (t,), part in rows.groups("t")]
            line = "--" if enhance > 1 else "-"
            axis.plot(*zip(*course, strict=True), line, color=color, label=_name(forget, enhance))
        log_ticks(axis)

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        last = table.where(t=max(table.column("t")))
        lines = [["lambda_1, lambda_2", CHANGED, SAME, "first singular value / that of all rows"]]
        for (name,), rows in last.groups("factors"):
            errors = [format_share(rows.mean("excess", stream=stream)) for stream in (CHANGED, SAME)]
            lines.append([name, *errors, f"{rows.mean('scale', stream=SAME):.2g}"])
        return {
            f"At the end: relative excess of the error on the next {self.next_rows} rows, and scale": lines
        }

    def verdict(self, table: Table) -> Verdict:
        last = table.where(t=max(table.column("t")))
        none, some, both = (1.0, 1.0), (0.9, 1.0), (0.9, 1 / 0.9)

        def error(stream: str, factors: tuple[float, float]) -> float:
            return last.where(stream=stream, factors=_name(*factors)).mean("excess")

        forgets = error(CHANGED, some) < error(CHANGED, none) / 2
        first_components = (
            [np.array([str(row["first"]).split()], dtype=np.float64) for row in last.where(factors=name)]
            for name in (_name(*some), _name(*both))
        )
        apart = max(_distance(*pair) for pair in zip(*first_components, strict=True))
        enhanced, plain = (
            last.where(stream=SAME, factors=_name(*pair)).mean("scale") for pair in (both, some)
        )
        points = (
            f"Forgetting does what it is for. After the directions have changed, the error on the next "
            f"{self.next_rows} rows exceeds the smallest possible by {error(CHANGED, none):.1%} without it "
            f"and by {error(CHANGED, some):.1%} with lambda_1 = {some[0]:g}.",
            f"It has a price. Where the directions stay, the excess is {error(SAME, none):.2%} without and "
            f"{error(SAME, some):.2%} with lambda_1 = {some[0]:g}, which leaves about "
            f"{1 / (1 - some[0] ** 2):.0f} blocks to learn from, and {error(SAME, (0.5, 1.0)):.1%} with 0.5.",
            "BasicMerge and FasterMerge agree with any factors: their projections differ by at most "
            f"{table.column('apart').max():.0e}.",
            "In a stream the enhancing factor does nothing for the directions: every block but the first is "
            f"enhanced once, so all have the same weight as before. With lambda_1 = {some[0]:g} and lambda_2 "
            f"= {both[1]:.3g} the first components are those without lambda_2, to {max(apart, 1e-15):.0e}; "
            f"the singular values are {enhanced / plain:.3f} times as large, and no longer those of the "
            "rows.",
            "In a single merge only the ratio of the two factors matters for the directions.",
            "Merge_r (Algorithm 2) has neither factor, although equation 2, which it is to compute, has the "
            "first.",
        )
        held = forgets and apart < 1e-6 and table.column("apart").max() < 1e-6
        return Verdict("held with a correction" if held else "did not hold", points)


def _name(forget: float, enhance: float) -> str:
    return f"{forget:.3g}, {enhance:.3g}"


def _distance(first: Array, second: Array) -> float:
    """The largest singular value of the difference of the projections onto two orthonormal bases."""
    return float(np.linalg.norm(first.T @ first - second.T @ second, 2))
