"""Figure 4a: how well each method finds the components of real data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from fedpca.experiments import published
from fedpca.experiments.base import Case, Experiment, Record, Table, Verdict
from fedpca.experiments.methods import COLOURS, components, make
from fedpca.experiments.pictures import panels
from fedpca.experiments.rows import SOURCES, paper_rows
from fedpca.experiments.scores import Offline, ln_mse

RIVALS = ("FD", "PM", "GROUSE", "SPIRIT")
METHODS = ("fedpca", "F-PCA", "F-PCA adaptive", "FD", "FD 2r", "PM", "GROUSE", "SPIRIT", "SPIRIT adaptive")


@dataclass(frozen=True)
class RealErrors(Experiment):
    """Settings: those of the released script, which differ from the text's b = 50.

    Attributes:
        names: datasets.
        mote_rank: r for the four motes datasets.
        rank: r for MNIST and wine.
        multiple_of: rows beyond a multiple of this are left out.
    """

    name: ClassVar[str] = "real-errors"
    shows: ClassVar[str] = "Figure 4a"
    title: ClassVar[str] = "Errors on real data"
    claim: ClassVar[str] = (
        "F-PCA exhibits state-of-the-art performance across all datasets: its log(RMSE) with respect to the "
        "offline PCA is the lowest, by far. FD is left out of other figures for its exploding errors."
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
        compared = 1 if motes else rank  # SPIRIT ended at rank 1 on the motes, and set the rank for all
        records: list[Record] = []
        for method in METHODS:
            tracker = make(method, rows.shape[1], rank, block_rows=2 * rank, seed=self.seed)
            tracker.update(rows)
            found = components(tracker)
            few = min(compared, len(found))
            compared_ln_mse = ln_mse(offline.components[:few], found[:few])
            scores = offline.scores(found, None if "adaptive" in method else rank)
            records.append({"method": method, "compared_ln_mse": compared_ln_mse, **scores})
        return records

    def draw(self, table: Table) -> Mapping[str, Any]:
        figure, (left, right) = panels(1, 2)
        names = table.distinct("dataset")
        for method, colour in COLOURS.items():
            rows = table.where(method=method)
            left.plot(names, rows.column("compared_ln_mse"), "o", color=colour, label=method)
            right.semilogy(names, rows.column("shortfall").clip(1e-16), "o", color=colour, label=method)
            printed = [published.REAL_ERRORS[name].get(method) for name in names]
            if any(value is not None for value in printed):
                left.plot(names, printed, "_", color=colour, markersize=14, markeredgewidth=2)
        left.set_ylabel("ln of mean squared difference of |entries|")
        left.set_title("the paper's metric (bars: as printed)")
        right.set_title("variance missed, of the most possible")
        right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        text = (
            "Two panels. Left, the paper's metric for every method and dataset, with the printed values as "
            "bars. Right, the share of variance each method misses, on a logarithmic scale."
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
            "Mean squared error beyond the least possible, as a share of it (and the rank reached)": lines
        }

    def verdict(self, table: Table) -> Verdict:
        beaten, worst = [], []
        for name in table.distinct("dataset"):
            ours = table.mean("excess", dataset=name, method="F-PCA")
            for rival in RIVALS:
                theirs = table.mean("excess", dataset=name, method=rival)
                if theirs < ours - 1e-4:
                    beaten.append(f"{rival} on {name} ({theirs:+.1e} against {ours:+.1e})")
            worst.append(f"{name} {ours:+.1e}")
        library = max(0.0, *table.where(method="fedpca").column("excess"))
        why = (
            f"Error of F-PCA beyond the least possible at its rank: {', '.join(worst)}. "
            + ("No repaired baseline at the same rank is better. " if not beaten else "")
            + (f"Better are {'; '.join(beaten)}. " if beaten else "")
            + "The distances in the picture are not real, though: on the motes it compares one vector only, "
            "because SPIRIT's rank fell to 1 and set it for all; SPIRIT's entries lack the absolute value; "
            "GROUSE's step is dropped on unscaled data, so that its random start is what is drawn; and FD's "
            "errors come from a sketch that takes rows of V for columns: repaired, it does not explode. "
            f"fedpca, which carries more directions than it shows, is within {library:.1e} of the best."
        )
        return Verdict("did not hold" if beaten else "held with a correction", why)
