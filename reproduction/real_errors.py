"""Figure 4a: errors of each method on real data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fedpca._typing import Array
from fedpca.trackers import Tracker
from reproduction import published
from reproduction.base import ROUNDING, Case, Experiment, Outcome, Record, Table, Verdict, format_share
from reproduction.exact import batches
from reproduction.methods import COLORS, components, make_tracker
from reproduction.plots import draw_above, explain_triangles, side_by_side, subplots
from reproduction.rows import SOURCES, STAND_INS, is_motes, paper_rows
from reproduction.scores import Offline, ln_mse

BASELINES = ("FD", "PM", "GROUSE", "SPIRIT")
METHODS = ("fedpca", "F-PCA", "F-PCA adaptive", "FD", "FD 2r", "PM", "GROUSE", "SPIRIT", "SPIRIT adaptive")


@dataclass(frozen=True)
class RealErrors(Experiment):
    """Settings: those of the released script, which differ from the text's b = 50.

    Attributes:
        names: datasets; "lab ..." are stand-ins (`rows.STAND_INS`).
        mote_rank: r for the motes.
        rank: r for MNIST and wine.
        multiple_of: rows beyond a multiple of this are dropped.
        max_rows: rows used per dataset; None for all.
    """

    name: ClassVar[str] = "real-errors"
    figure: ClassVar[str] = "Figure 4a"
    title: ClassVar[str] = "Errors on real data"
    claim: ClassVar[str] = (
        "F-PCA exhibits state-of-the-art performance across all datasets: its log(RMSE) with respect to the "
        "offline PCA is the lowest, by far. FD is excluded from other figures for its exploding errors."
    )
    full_outcome: ClassVar[Outcome] = "did not hold"

    names: tuple[str, ...] = (*SOURCES, *STAND_INS)
    mote_rank: int = 10
    rank: int = 5
    multiple_of: int = 50
    max_rows: int | None = None

    def quick(self) -> Self:
        return replace(self, names=("volt", "mnist", "wine", *STAND_INS), max_rows=2_000)

    def cases(self) -> Sequence[Case]:
        return [{"dataset": name} for name in self.names]

    def measure(self, case: Case) -> list[Record]:
        name = str(case["dataset"])
        rows = paper_rows(name, center=False, multiple_of=self.multiple_of)[: self.max_rows]
        rows = rows - rows.mean(axis=0)
        offline = Offline.of(rows)
        rank = self.mote_rank if is_motes(name) else self.rank
        compared = published.REAL_ERRORS_COMPARED.get(name, rank)
        records: list[Record] = []
        for method in METHODS:
            tracker = make_tracker(method, rows.shape[1], rank, block_rows=2 * rank, seed=self.seed)
            ranks = _ranks_at_the_end(tracker, rows)
            found = components(tracker)
            few = min(compared, len(found))
            compared_ln_mse = ln_mse(offline.components[:few], found[:few])
            scores = offline.scores(found, None if "adaptive" in method else rank)
            own = {"compared_ln_mse": compared_ln_mse, "lowest_rank": min(ranks), "highest_rank": max(ranks)}
            records.append({"method": method, **own, **scores})
        return records

    def draw(self, table: Table) -> Mapping[str, Any]:
        figure, (left, right) = subplots(1, 2, width=13)
        names = table.distinct("dataset")
        for i, (method, color) in enumerate(COLORS.items()):
            rows = table.where(method=method)
            beside = np.arange(len(names)) + side_by_side(i, len(COLORS))
            look: dict[str, Any] = {"color": color, "markersize": 5}
            draw_above(left, beside, rows.column("compared_ln_mse"), rounding=-50, **look)
            draw_above(right, beside, rows.column("shortfall"), label=method, **look)
            printed = [published.REAL_ERRORS.get(name, {}).get(method, np.nan) for name in names]
            left.plot(beside, printed, "_", color=color, markersize=10, markeredgewidth=2)
        for axis in (left, right):
            axis.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
            for i in range(1, len(names)):
                axis.axvline(i - 0.5, color="black", linewidth=0.3)
        left.set_ylabel("ln of mean squared difference of |entries|")
        left.set_title("the paper's metric (bars: as printed)")
        right.set(yscale="log", title="variance missed, relative to the optimum")
        explain_triangles(right)
        right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        text = (
            "Two panels. Left, the paper's metric per method and dataset, with the printed values as bars. "
            "Right, the share of variance that each method misses, on a logarithmic scale. Triangles at the "
            "lower edge: exact to rounding."
        )
        return {text: figure}

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        names = table.distinct("dataset")
        lines = [["method", *names]]
        for method in table.distinct("method"):
            cells = []
            for name in names:
                (row,) = table.where(method=method, dataset=name)
                cells.append(f"{format_share(float(row['excess']))} (r = {row['rank']})")
            lines.append([method, *cells])
        return {
            "Relative excess of the mean squared error over the smallest possible (and the final rank)": lines
        }

    def verdict(self, table: Table) -> Verdict:
        beaten, worst = [], []
        for name in table.distinct("dataset"):
            ours = table.mean("excess", dataset=name, method="F-PCA")
            for baseline in BASELINES:
                theirs = table.mean("excess", dataset=name, method=baseline)
                if theirs < ours - 1e-4:
                    beaten.append(f"{baseline} on {name} ({theirs:.1e} against {ours:.1e})")
            worst.append(f"{name} {ours:.1e}")
        library = max(ROUNDING, *table.where(method="fedpca").column("excess"))
        points = [
            f"Relative excess of the error of F-PCA over the smallest possible at its rank: "
            f"{', '.join(worst)}.",
            f"Better than F-PCA at the same rank: {'; '.join(beaten)}."
            if beaten
            else "No corrected baseline of the same rank is better.",
            "The distances in the figure are artifacts. SPIRIT's entries lack the absolute value; GROUSE "
            "skips its steps on unscaled data, so the figure shows its random start; FD's errors come from a "
            "sketch that takes rows of V for columns: the corrected FD does not explode.",
            *_ranks_of_spirit(table),
            f"fedpca, which carries more directions than it reports, is within {library:.0e} of the optimum.",
        ]
        if stand_ins := [name for name in table.distinct("dataset") if name in STAND_INS]:
            points.append(
                f"{' and '.join(stand_ins)} are stand-ins for the paper's "
                f"{' and '.join(STAND_INS[name] for name in stand_ins)}: other rows of the same laboratory, "
                "for which nothing is printed."
            )
        return Verdict("did not hold" if beaten else "held with a correction", tuple(points))


def _ranks_at_the_end(tracker: Tracker, rows: Array, last: int = 100) -> list[int]:
    """Feed the rows to the tracker; its ranks while it takes the last of them."""
    tracker.update(rows[:-last])
    ranks = []
    for row in batches(rows[-last:], 1):
        tracker.update(row)
        ranks.append(tracker.view().n_components)
    return ranks


def _ranks_of_spirit(table: Table) -> list[str]:
    """How many vectors the figure compares, and why that is an accident of SPIRIT's rank."""
    few = {
        name: count
        for name, count in published.REAL_ERRORS_COMPARED.items()
        if count == 1 and name in table.distinct("dataset")
    }
    if not few:
        return []
    ranks = []
    for name in few:
        (row,) = table.where(dataset=name, method="SPIRIT adaptive")
        ranks.append(
            f"on {name} at {row['rank']}, and over the last 100 rows between {row['lowest_rank']} and "
            f"{row['highest_rank']}"
        )
    return [
        f"On {' and '.join(few)} the figure compares only one vector. The figure compares as many as the "
        "method with the fewest ended with, and the released SPIRIT ended at rank 1 there. That is an "
        "accident of the last rows: with a factor of 0.9 SPIRIT remembers about ten rows, and its rank "
        "follows them. The released code also counts energy along overlapping directions twice, which keeps "
        f"the rank low. Counted once, as here, SPIRIT ends {'; '.join(ranks)}."
    ]
