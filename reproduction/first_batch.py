"""Algorithm 1 and Lemma 2: the smallest private batch, T, as the first batch of a stream."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Self

import numpy as np

from fedpca._typing import Array
from fedpca.metrics import alignment
from fedpca.paper.noise import (
    analytic_minimum_batch,
    minimum_batch,
    minimum_batch_as_printed,
    paper_omega,
)
from fedpca.privacy.calibration import SENSITIVITY, analytic_sigma, epsilon_of
from reproduction.base import Case, Experiment, Outcome, Record, Table, Verdict
from reproduction.datasets import synth
from reproduction.plots import subplots
from reproduction.utility import chance

AS_PRINTED = "T as printed"
FIRST_ONLY = "T first, then B: fixed noise"
OWN_NOISE = "T first, then B: noise of each batch"
EVERY = "T for every batch"
ANALYTIC = "analytic T for every batch"
ONCE = "all rows at once"
COLORS = {
    AS_PRINTED: "#b3261e",
    FIRST_ONLY: "#e08214",
    OWN_NOISE: "#9467bd",
    EVERY: "#1f5fbf",
    ANALYTIC: "#4c9a5f",
    ONCE: "#0b6623",
}
DASHES = {AS_PRINTED: "--", FIRST_ONLY: ":"}


@dataclass(frozen=True)
class FirstBatch(Experiment):
    """Settings: those of Figure 3 but for more rows; the paper has no experiment with T.

    Noise goes to the covariance of each batch, which is symmetrized, cut to its r first directions and merged
    at the scale of the rows. Rows are divided by the largest norm, as in Figure 3.

    * "T as printed": the batch that the printed formula asks for, which is less than B: every batch has B
      rows and noise of standard deviation omega.
    * "T first, then B: fixed noise": Algorithm 1 with T corrected: a first batch of T rows, then batches of
      B rows, all with noise omega.
    * "T first, then B: noise of each batch": the same with the noise that Lemma 2 requires for B rows.
    * "T for every batch", and the same with the T of the analytic calibration: all with noise omega.
    * "all rows at once": the analytic calibration.

    Attributes:
        epsilon, delta: the privacy guarantee.
        omega: the fixed standard deviation of the noise, the paper's omega_0.
        alpha: of Synth(alpha).
        n_features: d.
        n_rows: n.
        rank: r.
        batch_rows: B, the rows of later batches.
        simulations: draws of rows and noise.
    """

    name: ClassVar[str] = "first-batch"
    figure: ClassVar[str] = "Algorithm 1 and Lemma 2"
    title: ClassVar[str] = "The smallest private batch"
    claim: ClassVar[str] = (
        "From T rows on, a noise mask of fixed variance is enough for (epsilon, delta)-differential privacy. "
        "Clients therefore begin with a batch of T rows, and go on with batches of any size B."
    )
    full_outcome: ClassVar[Outcome] = "did not hold"

    epsilon: float = 1.0
    delta: float = 0.05
    omega: float = 0.01
    alpha: float = 1.0
    n_features: int = 20
    n_rows: int = 200_000
    rank: int = 5
    batch_rows: int = 50
    simulations: int = 10

    def quick(self) -> Self:
        return replace(self, n_rows=100_000, simulations=2)

    def cases(self) -> Sequence[Case]:
        return [{"simulation": number} for number in range(self.simulations)]

    def measure(self, case: Case) -> list[Record]:
        rng = self.generator(case)
        rows = synth(self.alpha, self.n_features, self.n_rows, seed=rng)
        exact = np.linalg.eigh(rows.T @ rows)[1].T[::-1]
        records: list[Record] = []
        for way in COLORS:
            batches = list(self.batches(way))
            weakest = max(_epsilon(size, sd, self.delta) for size, sd in batches)
            own: Record = {"way": way, "first": batches[0][0], "later": batches[-1][0], "epsilon": weakest}
            for seen, found in noisy_stream(rows, batches, self.rank, rng):
                records.append({**own, "rows": seen, "q": float(alignment(exact[: self.rank], found)[0])})
        return records

    def printed_minimum(self) -> float:
        """T as the paper prints it: with the bracket inverted."""
        return minimum_batch_as_printed(self.epsilon, self.delta, self.n_features, self.omega)

    def batches(self, way: str) -> Iterator[tuple[int, float]]:
        """Rows and noise of every batch; rows that do not fill the last one are not used."""
        enough = ceil(minimum_batch(self.epsilon, self.delta, self.n_features, self.omega))
        own = paper_omega(self.epsilon, self.delta, self.n_features, self.batch_rows)
        first, later, sd = {
            AS_PRINTED: (max(ceil(self.printed_minimum()), self.batch_rows), self.batch_rows, self.omega),
            FIRST_ONLY: (enough, self.batch_rows, self.omega),
            OWN_NOISE: (enough, self.batch_rows, own),
            EVERY: (enough, enough, self.omega),
            ANALYTIC: (
                *2 * (ceil(analytic_minimum_batch(self.epsilon, self.delta, self.omega)),),
                self.omega,
            ),
            ONCE: (self.n_rows, self.n_rows, analytic_sigma(self.epsilon, self.delta) / self.n_rows),
        }[way]
        yield first, sd if way == ONCE else self.omega
        for _ in range((self.n_rows - first) // later):
            yield later, sd

    def draw(self, table: Table) -> Mapping[str, Any]:
        figure, (left, right) = subplots(1, 2, height=4.4)
        for way, color in COLORS.items():
            parts = table.where(way=way).groups("rows")
            course = [(rows, part.mean("q")) for (rows,), part in parts]
            style = {"color": color, "linestyle": DASHES.get(way, "-"), "marker": ".", "label": way}
            left.plot(*zip(*course, strict=True), **style)
            right.plot(table.where(way=way)[0]["epsilon"], way, "o", color=color)
        left.axhline(chance(self.n_features), color="black", linewidth=0.8, linestyle=":")
        left.set(xlabel="rows seen", ylabel="q_A (dotted: chance)", xscale="log", ylim=(0, 1.03))
        left.set_title("the first component while rows arrive")
        right.axvline(self.epsilon, color="black", linewidth=0.8, label="promised")
        right.invert_yaxis()
        right.set_xlabel(f"epsilon of the weakest batch, at delta = {self.delta:g}")
        right.set_title("what the noise guarantees (line: promised)")
        text = (
            "Two panels. Left, the alignment of the first component against the rows seen, on a logarithmic "
            "scale, with a line per choice of batches. Right, the epsilon that the weakest batch of each "
            "has, with the promised one as a line: above it are T as printed and T for the first batch only."
        )
        return {text: figure}

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        lines = [["batches", "first, rows", "later, rows", "epsilon", "q_A at the end"]]
        for way in COLORS:
            rows = table.where(way=way)
            sizes = [f"{rows[0][name]:,}" for name in ("first", "later")]
            lines.append([way, *sizes, f"{rows[0]['epsilon']:.3g}", f"{_at_the_end(rows):.3f}"])
        return {
            f"Batches, the epsilon of the weakest at delta = {self.delta:g}, and the first component "
            f"(mean of {self.simulations}; chance: {chance(self.n_features):.2f})": lines
        }

    def verdict(self, table: Table) -> Verdict:
        epsilon = {way: float(table.where(way=way)[0]["epsilon"]) for way in COLORS}
        first = {way: int(table.where(way=way)[0]["first"]) for way in COLORS}
        q = {way: _at_the_end(table.where(way=way)) for way in COLORS}
        points = (
            f"As printed T is {self.printed_minimum():.2g} rows: the bracket is inverted. Any batch would "
            f"do; with {self.batch_rows} rows and omega = {self.omega:g} the guarantee is epsilon = "
            f"{epsilon[AS_PRINTED]:.2g}, not {self.epsilon:g}.",
            f"Corrected, T is {first[EVERY]:,} rows. Used for the first batch only, as in Algorithm 1, it "
            f"does not help: later batches of {self.batch_rows} rows with the same noise have epsilon = "
            f"{epsilon[FIRST_ONLY]:.2g}. Every batch needs T rows.",
            f"With the noise that Lemma 2 requires for {self.batch_rows} rows they are private, and of "
            "little use: each adds as much noise as the first batch of T rows, and few rows. q_A ends at "
            f"{q[OWN_NOISE]:.2f}.",
            f"With T rows in every batch it ends at {q[EVERY]:.2f}. The noise would be enough for epsilon = "
            f"{epsilon[EVERY]:.2g}: the lemma asks for far more rows than needed.",
            f"With the analytic calibration T is {first[ANALYTIC]:,} rows, which give {q[ANALYTIC]:.2f}; "
            f"noise added once, to the sum of all rows, {q[ONCE]:.4f}.",
        )
        broken = self.printed_minimum() < 1 or epsilon[FIRST_ONLY] > self.epsilon
        return Verdict("did not hold" if broken else "held", points)


def noisy_stream(
    rows: Array, batches: Sequence[tuple[int, float]], rank: int, rng: np.random.Generator
) -> Iterator[tuple[int, Array]]:
    """Rows seen, and the components so far, after the first batch and whenever the rows have doubled.

    Args:
        batches: of each, how many rows, and the standard deviation of the noise on its covariance.
    """
    n_features = rows.shape[1]
    kept, seen, shown = np.zeros((n_features, n_features)), 0, 0
    for number, (size, sd) in enumerate(batches, start=1):
        batch = rows[seen : seen + size]
        noisy = batch.T @ batch / size + sd * rng.standard_normal(kept.shape)
        values, vectors = np.linalg.eigh((noisy + noisy.T) / 2)
        values, vectors = values[-rank:].clip(0), vectors[:, -rank:]
        values, vectors = np.linalg.eigh(kept + size * (values * vectors) @ vectors.T)
        values, vectors = values[-rank:], vectors[:, -rank:]
        kept = (values * vectors) @ vectors.T
        seen += size
        if seen >= 2 * shown or number == len(batches):
            shown = seen
            yield seen, vectors.T[::-1]


def _epsilon(n_rows: int, sd: float, delta: float) -> float:
    """The smallest epsilon that noise on the covariance of n rows of norm 1 guarantees at this delta."""
    return epsilon_of(SENSITIVITY["replace-one"] / (n_rows * sd), delta)


def _at_the_end(table: Table) -> float:
    return table.mean("q", rows=max(table.column("rows")))
