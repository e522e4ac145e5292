"""Figure 4a: errors of each method on real data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from reproduction import published
from reproduction.base import Case, Experiment, Record, Table, Verdict
from reproduction.methods import COLORS, components, make_tracker
from reproduction.plots import subplots
from reproduction.rows import SOURCES, paper_rows
from reproduction.scores import Offline, ln_mse

BASELINES = ("FD", "PM", "GROUSE", "SPIRIT")
METHODS = ("fedpca", "F-PCA", "F-PCA adaptive", "FD", "FD 2r", "PM", "GROUSE", "SPIRIT", "SPIRIT adaptive")


@dataclass(frozen=True)
class RealErrors(Experiment):
    """Settings: those of the released script, which differ from the text's b = 50.

    Attributes:
        names: datasets.
        mote_rank: r for the four motes datasets.
        rank: r for MNIST and wine.
        multiple_of: rows beyond a multiple of this are dropped.
    """

    name: ClassVar[str] = "real-errors"
    figure: ClassVar[str] = "Figure 4a"
    title: ClassVar[str] = "Errors on real data"
    claim: ClassVar[str] = (
        "F-PCA exhibits state-of-the-art performance across all datasets: its log(RMSE) with respect to the "
        "offline PCA is the lowest, by far. FD is excluded from other figures for its exploding errors."
    )

    names: tuple[str, ...] = tuple(SOURCES)
    mote_rank: int = 10
    rank: int = 5
    multiple_of: int = 50

    def quick(self) -> Self:
        return replace(self, names=("volt", "wine"))

    def cases(self) -> Sequence[Case]:
        return [{"dataset": name} for name in self.names]

    def measure(self, case: Case) -> list[Record]:
        name = str(case["dataset"])
        rows = paper_rows(name, center=True, multiple_of=self.multiple_of)
        offline = Offline.of(rows)
        motes = name not in ("mnist", "wine")
        rank = self.mote_rank if motes else self.rank
        compared = 1 if motes else rank  # as in the paper: SPIRIT's rank 1 on the motes is used for all
        records: list[Record] = []
        for method in METHODS:
            tracker = make_tracker(method, rows.shape[1], rank, block_rows=2 * rank, seed=self.seed)
            tracker.update(rows)
            found = components(tracker)
            few = min(compared, len(found))
            compared_ln_mse = ln_mse(offline.components[:few], found[:few])
            scores = offline.scores(found, None if "adaptive" in method else rank)
            records.append({"method": method, "compared_ln_mse": compared_ln_mse, **scores})
        return records

    def draw(self, table: Table) -> Mapping[str, Any]:
        figure, (left, right) = subplots(1, 2)
        names = table.distinct("dataset")
        for method, color in COLORS.items():
            rows = table.where(method=method)
            left.plot(names, rows.column("compared_ln_mse"), "o", color=color, label=method)
            right.semilogy(names, rows.column("shortfall").clip(1e-16), "o", color=color, label=method)
            printed = [published.REAL_ERRORS[name].get(method) for name in names]
            if any(value is not None for value in printed):
                left.plot(names, printed, "_", color=color, markersize=14, markeredgewidth=2)
        left.set_ylabel("ln of mean squared difference of |entries|")
        left.set_title("the paper's metric (bars: as printed)")
        right.set_title("variance missed, relative to the optimum")
        right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        text = (
            "Two panels. Left, the paper's metric per method and dataset, with the printed values as bars. "
            "Right, the share of variance that each method misses, on a logarithmic scale."
        )
        return {text: figure}

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        names = table.distinct("dataset")
        lines = [["method", *names]]
        for method in table.distinct("method"):
            cells = []
            for name in names:
                (row,) = table.where(method=method, dataset=name)
                cells.append(f"{row['excess']:+.2e} (r = {row['rank']})")
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
                    beaten.append(f"{baseline} on {name} ({theirs:+.1e} against {ours:+.1e})")
            worst.append(f"{name} {ours:+.1e}")
        library = max(0.0, *table.where(method="fedpca").column("excess"))
        why = (
            "Relative excess of the error of F-PCA over the smallest possible at its rank: "
            f"{', '.join(worst)}. "
            + ("No corrected baseline of the same rank is better. " if not beaten else "")
            + (f"Better are {'; '.join(beaten)}. " if beaten else "")
            + "The distances in the figure are artifacts, though: on the motes it compares only one vector, "
            "because SPIRIT's rank fell to 1 and was used for all; SPIRIT's entries lack the absolute value; "
            "GROUSE skips its steps on unscaled data, so the figure shows its random start; and FD's errors "
            "come from a sketch that takes rows of V for columns: the corrected FD does not explode. "
            f"fedpca, which carries more directions than it reports, is within {library:.1e} of the optimum."
        )
        return Verdict("did not hold" if beaten else "held with a correction", why)
