"""Figures 2, 10 and 11: real rows on their first two components, with and without privacy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Self

import numpy as np

from fedpca import Privacy
from fedpca._typing import Array
from fedpca.metrics import affinity, alignment
from fedpca.paper.fpca_edge import FPCAEdge
from fedpca.paper.mod_sulq import mod_sulq
from fedpca.paper.noise import mod_sulq_beta, paper_omega
from fedpca.privacy.calibration import analytic_sigma
from fedpca.summaries.linalg import with_fixed_signs
from reproduction.base import Case, Experiment, Outcome, Record, Table, Verdict, format_share
from reproduction.exact import batches
from reproduction.fast_noise import FastNoise
from reproduction.methods import components, make_tracker
from reproduction.plots import subplots
from reproduction.rows import paper_rows
from reproduction.scores import Offline
from reproduction.utility import mod_sulq_as_released, release_components

AS_RUN, PRIVATE = "as run", "private"
OFFLINE, PLAIN, MASK, MOD_SULQ, FEDPCA = "offline", "F-PCA", "F-PCA with mask", "MOD-SuLQ", "fedpca"
MASK_RELEASED, MOD_SULQ_RELEASED = "F-PCA with mask as released", "MOD-SuLQ as released"
MOD_SULQ_UNSCALED, FEDPCA_SMALL_DELTA = "MOD-SuLQ, mask corrected", "fedpca, small delta"
CLIPPED = "offline, rows clipped"
MASKED = {
    AS_RUN: (MASK_RELEASED, MOD_SULQ_RELEASED, MOD_SULQ_UNSCALED),
    PRIVATE: (MASK, MOD_SULQ, FEDPCA, FEDPCA_SMALL_DELTA),
}
COLORED_BY = {"mnist": "digit", "wine": "fixed acidity"}  # the first feature of the rows as run
GOOD = 0.9  # an alignment that counts as learned


@dataclass(frozen=True)
class Projections(Experiment):
    """Settings: those of the paper.

    "as run": unscaled rows about the origin, with the digit among the features of MNIST and the noise of the
    released code. "private": without the digit, clipped to a bound, with the noise that privacy requires;
    compared with offline PCA of the rows before clipping.

    Attributes:
        names: datasets.
        epsilons, delta: the privacy guarantee.
        rank: r.
        block_rows: rows per block of F-PCA, each with its own noise, b.
        mnist_bound: norm that images are clipped to: about that of an image with one in eight pixels white.
        wine_bound: norm that wines are clipped to: the European Union's limit for sulfur dioxide in dry red
            wine, in mg/l. That is by far the largest feature.
        mnist_draws, wine_draws: of the noise; scores are means over them, and plots show the median one.
        points: rows per plot.
        small_delta: a delta that is meaningful for this many rows.
    """

    name: ClassVar[str] = "projections"
    figure: ClassVar[str] = "Figures 2, 10 and 11"
    title: ClassVar[str] = "MNIST and wine on two components"
    claim: ClassVar[str] = (
        "In all cases F-PCA with its mask learns the principal subspace of offline PCA, up to a rotation, "
        "and preserves the structure of the data; in most instances it even does better than MOD-SuLQ."
    )

    full_outcome: ClassVar[Outcome] = "did not hold"

    names: tuple[str, ...] = ("mnist", "wine")
    epsilons: tuple[float, ...] = (0.1, 0.6, 1.0)
    delta: float = 0.1
    rank: int = 6
    block_rows: int = 25
    mnist_bound: float = 2500.0
    wine_bound: float = 150.0
    mnist_draws: int = 3
    wine_draws: int = 30
    points: int = 400
    small_delta: float = 1e-5

    def quick(self) -> Self:
        return replace(self, names=("wine",), wine_draws=5)

    def cases(self) -> Sequence[Case]:
        settings: list[Case] = [{}, *({"epsilon": epsilon} for epsilon in self.epsilons)]
        ways = (AS_RUN, PRIVATE)
        return [
            {"dataset": name, "way": way, **mask} for name in self.names for way in ways for mask in settings
        ]

    def measure(self, case: Case) -> list[Record]:
        name, way = str(case["dataset"]), str(case["way"])
        rows = paper_rows(name, center=False, multiple_of=self.block_rows)
        colors = rows[:, 0]
        if name == "mnist" and way == PRIVATE:
            rows = rows[:, 1:]
        offline = Offline.of(rows)
        if "epsilon" not in case:
            found = {OFFLINE: offline.components}
            if way == AS_RUN:
                tracker = make_tracker(PLAIN, rows.shape[1], self.rank, block_rows=self.block_rows)
                tracker.update(rows)
                found[PLAIN] = components(tracker)
            else:
                shrink = np.minimum(1, self._bound(name) / np.linalg.norm(rows, axis=1))
                found[CLIPPED] = Offline.of(rows * shrink[:, None]).components
            return [
                record
                for method, answer in found.items()
                for record in self._records(method, [answer[: self.rank]], offline, colors)
            ]
        epsilon, rng = float(case["epsilon"]), self.generator(case)
        records: list[Record] = []
        for method in MASKED[way]:
            draws = range(self.mnist_draws if name == "mnist" else self.wine_draws)
            answers = [self._components(method, name, rows, epsilon, rng) for _ in draws]
            score, *points = self._records(method, answers, offline, colors)
            records += [{**score, **self._noise(method, rows, epsilon)}, *points]
        return records

    def _components(
        self, method: str, name: str, rows: Array, epsilon: float, rng: np.random.Generator
    ) -> Array:
        """The components that a method with noise finds, shape (r, d)."""
        n_rows, n_features = rows.shape
        if method in (FEDPCA, FEDPCA_SMALL_DELTA):
            delta = self.small_delta if method == FEDPCA_SMALL_DELTA else self.delta
            privacy = Privacy(epsilon, delta, self._bound(name), center=None, evaluate=False)
            return release_components(rows, privacy, self.rank, rng)
        if method == MOD_SULQ:
            noise, within = FastNoise(rng.bytes(32)), rows / self._bound(name)
            return mod_sulq(within, self.rank, epsilon=epsilon, delta=self.delta, noise=noise).components
        if method == MASK:
            return _masked(rows / self._bound(name), self.rank, self.block_rows, epsilon, self.delta, rng)
        if method == MASK_RELEASED:
            sd = paper_omega(epsilon, self.delta, n_features, n_rows)  # though a block has b rows
            return fpca_as_released(rows, sd, self.rank, self.block_rows, rng)
        sd = mod_sulq_beta(epsilon, self.delta, n_features, n_rows)
        covariance = rows.T @ rows / n_rows
        if method == MOD_SULQ_RELEASED:
            return mod_sulq_as_released(covariance, sd, self.rank, rng)
        upper = np.triu(sd * rng.standard_normal(covariance.shape))
        return np.linalg.eigh(covariance + upper + np.triu(upper, 1).T)[1].T[: -self.rank - 1 : -1]

    def _bound(self, name: str) -> float:
        return self.mnist_bound if name == "mnist" else self.wine_bound

    def _records(self, method: str, found: Sequence[Array], offline: Offline, colors: Array) -> list[Record]:
        """The mean scores of several results, and some rows on the components of the median one."""
        scores = [_scores(offline, answer) for answer in found]
        means = {key: float(np.mean([score[key] for score in scores])) for key in scores[0]}
        median = sorted(range(len(found)), key=lambda i: _worse_axis(scores[i]))[len(found) // 2]
        drawn = {"drawn_q1": scores[median]["q1"], "drawn_q2": scores[median]["q2"]}
        axes = found[median][:2]
        signs = np.sign(np.sum(axes * with_fixed_signs(offline.components[:2]), axis=1))
        every = ceil(len(offline.rows) / self.points)
        coordinates = offline.rows[::every] @ (signs[:, None] * axes).T
        points: list[Record] = [
            {"method": method, "kind": "point", "x": round(x, 2), "y": round(y, 2), "color": color}
            for (x, y), color in zip(coordinates.tolist(), colors[::every].tolist(), strict=True)
        ]
        return [{"method": method, "kind": "score", **means, **drawn}, *points]

    def _noise(self, method: str, rows: Array, epsilon: float) -> Record:
        """The smallest noise of any entry, as a ratio.

        * over_least: to the minimum for (epsilon, delta) and rows of these norms.
        * over_own: to the noise that the method's own theorem requires, scaled to these norms.
        """
        if method in (FEDPCA, FEDPCA_SMALL_DELTA):
            return {"over_least": 1.0, "over_own": 1.0}
        own = paper_omega if method in (MASK, MASK_RELEASED) else mod_sulq_beta
        required = own(epsilon, self.delta, rows.shape[1], 1) / analytic_sigma(epsilon, self.delta)
        unscaled = 1 / float(np.max(np.sum(rows**2, axis=1)))
        present = {
            MASK: 1.0,
            MOD_SULQ: 1.0,
            MASK_RELEASED: unscaled * self.block_rows / len(rows),
            MOD_SULQ_RELEASED: 0.0,  # on half of the entries
            MOD_SULQ_UNSCALED: unscaled,
        }[method]
        return {"over_least": required * present, "over_own": present}

    def draw(self, table: Table) -> Mapping[str, Any]:
        figures = {}
        first, *others = self.epsilons
        as_run = (OFFLINE, PLAIN, MASK_RELEASED, MOD_SULQ_RELEASED)
        private = (OFFLINE, MASK, MOD_SULQ, FEDPCA)
        for name in table.distinct("dataset"):
            rows = table.where(dataset=name)
            figure, axes = subplots(2, 4, width=12, height=6.2, sharex=True, sharey=True)
            for line, way, methods in zip(axes, (AS_RUN, PRIVATE), (as_run, private), strict=True):
                for panel, method in zip(line, methods, strict=True):
                    self._scatter(panel, rows.where(way=way, method=method), first)
                line[0].set_ylabel(f"{way}\nsecond component")
            for panel in axes[-1]:
                panel.set_xlabel("first component")
            self._explain_colors(figure, axes, name)
            figure.suptitle(
                f"{name}, colored by {COLORED_BY[name]}: epsilon = {first:g}, delta = {self.delta:g}"
            )
            text = (
                f"{name} on two components at epsilon = {first:g}. Upper row, as the paper ran it: offline "
                "PCA, F-PCA, F-PCA with mask, MOD-SuLQ. Lower row, with the noise that privacy requires: "
                "offline PCA, F-PCA with mask, MOD-SuLQ, fedpca. Above every panel, the alignment of both "
                "axes with those of offline PCA."
            )
            figures[text] = figure
            if others:
                text = (
                    f"{name} at the other epsilons, one per row: F-PCA with mask and MOD-SuLQ as the paper "
                    "ran them, then both with the noise that privacy requires, then fedpca."
                )
                figures[text] = self._other_epsilons(rows, others)
        return figures

    def _other_epsilons(self, rows: Table, epsilons: Sequence[float]) -> Any:
        methods = (MASK_RELEASED, MOD_SULQ_RELEASED, MASK, MOD_SULQ, FEDPCA)
        size = {"width": 13, "height": 0.6 + 2.7 * len(epsilons)}
        figure, axes = subplots(len(epsilons), 5, **size, sharex=True, sharey=True, squeeze=False)
        for line, epsilon in zip(axes, epsilons, strict=True):
            for panel, method in zip(line, methods, strict=True):
                self._scatter(panel, rows.where(method=method), epsilon)
            line[0].set_ylabel(f"epsilon = {epsilon:g}\nsecond component")
        for panel in axes[-1]:
            panel.set_xlabel("first component")
        name = str(rows[0]["dataset"])
        self._explain_colors(figure, axes, name)
        figure.suptitle(f"{name}, colored by {COLORED_BY[name]}: delta = {self.delta:g}")
        return figure

    def _explain_colors(self, figure: Any, axes: Any, name: str) -> None:
        """A legend of digits, or a color bar."""
        points = axes.flat[0].collections[0]
        if name == "mnist":
            figure.legend(*points.legend_elements(num=range(10)), title="digit", loc="outside right center")
        else:
            figure.colorbar(points, ax=axes, label=f"{COLORED_BY[name]}, g/l")

    def _scatter(self, panel: Any, rows: Table, epsilon: float) -> None:
        """Rows on two components, with the alignment of these components above."""
        if "epsilon" in rows[0]:
            rows = rows.where(epsilon=epsilon)
        points, (score,) = rows.where(kind="point"), rows.where(kind="score")
        scale = (
            {"cmap": "tab10", "vmin": 0, "vmax": 9} if score["dataset"] == "mnist" else {"cmap": "viridis"}
        )
        panel.scatter(points.column("x"), points.column("y"), c=points.column("color"), s=5, **scale)
        panel.set_title(
            f"{score['method']} ({score['drawn_q1']:.2f}, {score['drawn_q2']:.2f})", fontsize="small"
        )

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        tables = {}
        heading = ["method", "epsilon", "|<v1, v̂1>|", "|<v2, v̂2>|", "|<v3, v̂3>|", "affinity"]
        heading += ["variance missed", "noise / minimum"]
        for name in table.distinct("dataset"):
            lines = [heading]
            for row in table.where(kind="score", dataset=name):
                close = [f"{row[key]:.3f}" for key in ("q1", "q2", "q3", "affinity")]
                epsilon = f"{row['epsilon']:g}" if "epsilon" in row else "–"
                noise = f"{row['over_least']:.2g}" if "over_least" in row else "–"
                missed = format_share(float(row["shortfall"]))
                lines.append([f"{row['way']}: {row['method']}", epsilon, *close, missed, noise])
            tables[f"{name}: {self.rank} components against those of offline PCA"] = lines
        return tables

    def verdict(self, table: Table) -> Verdict:
        scores = table.where(kind="score")
        low, high = min(self.epsilons), max(self.epsilons)
        runs = [(name, epsilon) for name in table.distinct("dataset") for epsilon in self.epsilons]

        def worse(method: str, run: tuple[str, float]) -> float:
            (row,) = scores.where(method=method, dataset=run[0], epsilon=run[1])
            return _worse_axis(row)

        def axes(method: str, epsilon: float) -> str:
            rows = scores.where(method=method, epsilon=epsilon)
            return ", ".join(f"{row['dataset']} {row['q1']:.2f} and {row['q2']:.2f}" for row in rows)

        learned = sum(worse(MASK, run) >= GOOD for run in runs)
        ahead = sum(worse(MASK, run) > worse(MOD_SULQ, run) for run in runs)
        corrected = sum(worse(MOD_SULQ_UNSCALED, run) > worse(MASK_RELEASED, run) for run in runs)
        present = ", ".join(
            f"{row['dataset']} {row['over_own']:.0e}"
            for row in scores.where(method=MASK_RELEASED, epsilon=low)
        )
        points = (
            f"As run, at epsilon = {low:g}, the alignments of the axes of F-PCA with mask with those of "
            f"offline PCA are: {axes(MASK_RELEASED, low)}. But its noise is a tiny part of what the paper's "
            f"own lemma requires ({present}): it is calibrated for norms of at most 1 and for all rows at "
            f"once, but these norms are far above 1, and a block has {self.block_rows} rows. So the figures "
            "show PCA without privacy.",
            "With rows clipped to a public bound and the noise that privacy requires, at epsilon = "
            f"{high:g}, the alignments are: {axes(MASK, high)}; both reach {GOOD:g} in {learned} of "
            f"{len(runs)} runs, and are ahead of MOD-SuLQ's in {ahead}.",
            "MOD-SuLQ looks worse in the paper because half of its mask is missing, and the covariance is "
            f"doubled there: {axes(MOD_SULQ_RELEASED, low)}; with the whole mask and the same rows it is "
            f"ahead of F-PCA as run in {corrected} of {len(runs)}. In Figures 10 and 11 the panels called "
            "MOD-SuLQ at epsilon = 1 show the pictures of epsilon = 0.6 once more.",
            f"fedpca is private, with {axes(FEDPCA, low)} at epsilon = {low:g} and {axes(FEDPCA, high)} at "
            f"{high:g}.",
            f"delta = {self.delta:g} guarantees little: publishing each row with that probability would "
            f"satisfy it, too. With delta = {self.small_delta:g} and epsilon = {high:g} fedpca has "
            f"{axes(FEDPCA_SMALL_DELTA, high)}.",
            "Only the axes are private; the dots are rows. The first axis is mostly the mean, because "
            "nothing is centered.",
        )
        if learned < len(runs):
            return Verdict("did not hold", points)
        return Verdict("held" if 2 * ahead > len(runs) else "held with a correction", points)


def fpca_as_released(rows: Array, sd: float, rank: int, block_rows: int, rng: np.random.Generator) -> Array:
    """The components of F-PCA with mask as in the released code, shape (rank, d).

    The covariance of a block, with noise on every entry, is processed b columns at a time (all of them if
    there are fewer than 2b), and its r directions are merged as if they were rows: with equal weights.
    """
    n_features = rows.shape[1]
    width = block_rows if n_features >= 2 * block_rows else n_features
    whole = make_tracker(PLAIN, n_features, rank, block_rows=rank)
    for block in batches(rows, block_rows):
        noisy = block.T @ block / len(block) + sd * rng.standard_normal((n_features, n_features))
        part = make_tracker(PLAIN, n_features, rank, block_rows=width)
        part.update(noisy.T)
        whole.update(components(part))
    return components(whole)


def _masked(
    rows: Array, rank: int, block_rows: int, epsilon: float, delta: float, rng: np.random.Generator
) -> Array:
    """The components of F-PCA with the paper's noise, corrected; more directions are carried."""
    n_features = rows.shape[1]
    edge = FPCAEdge(
        n_features,
        min(2 * rank + 10, n_features),
        block_rows,
        sigma=paper_omega(epsilon, delta, n_features, 1),
        noise=FastNoise(rng.bytes(32)),
    )
    edge.update(rows)
    return edge.summary().components[:rank]


def _scores(offline: Offline, found: Array) -> dict[str, float]:
    """Alignment of the first three components, affinity of all, and `Offline.scores`."""
    q1, q2, q3 = alignment(offline.components, found)[:3]
    near = affinity(offline.components[: len(found)], found)
    scores = {key: float(value) for key, value in offline.scores(found).items()}
    return {"q1": float(q1), "q2": float(q2), "q3": float(q3), "affinity": near, **scores}


def _worse_axis(scores: Mapping[str, Any]) -> float:
    """The smaller alignment of the two axes in the plots."""
    return float(min(scores["q1"], scores["q2"]))
