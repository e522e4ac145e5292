"""How good private components are when nothing about the rows is public: Privacy(epsilon, delta) alone.

    python -m benchmarks.private_defaults                # 20 seeds, 3 for the cells, 1000 evaluations
    python -m benchmarks.private_defaults --quick        # 3 seeds, 1 for a part of the cells, 50 evaluations
    python -m benchmarks.private_defaults tables plan    # some of its parts

figures      real data, against the best public bound about the true mean, which nobody has.
tables       the same of tables with long tails and columns that are mostly one value, as they are and with
             scale="std", of rows like word vectors, of vectors of words, and of many images.
cells        507 combinations of data, rows, epsilon and components, by t = sqrt(d) / (mu n).
plan         what fedpca.plan predicts from the true variances, against private fits of every data set.
evaluation   how often the interval of the private evaluation holds the truth.

Everything is found within epsilon: the center, the length that rows are clipped to, and the scale of features
with scale="std"; the evaluation is on. delta = 1e-5, adjacency is replace-one. The answer that components are
compared with is the exact one of the rows as they are, or of standardized columns with scale="std". Affinity
is ||U^T U_hat||_F^2 / r; captured is the variance inside the components over the most that so many can hold.
Where fewer than r components rise above the noise, the r leading directions of the release are judged. Mean ±
standard deviation over the seeds, which change the noise. Floats stand in for the exact noise.
"""

from __future__ import annotations

import csv
import gzip
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.common import Array, batches, heading, machine, options, table, verdict
from benchmarks.private import found, key, mean_and_spread

if TYPE_CHECKING:
    from fedpca import PrivatePCA, StreamingPCA

PARTS = ("figures", "tables", "cells", "plan", "evaluation")
DELTA = 1e-5


# Data.


def complete(rows: Array) -> Array:
    """Gaps filled with the column's mean; columns that do not vary left out."""
    filled = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    return filled[:, filled.std(axis=0) > 0]


def moved(rows: Array) -> Array:
    """Standardized columns, 1.5 times their typical length away from the origin."""
    direction = np.random.default_rng(99).standard_normal(rows.shape[1])
    away = 1.5 * np.sqrt(rows.shape[1]) * direction / np.linalg.norm(direction)
    return (rows - rows.mean(axis=0)) / rows.std(axis=0) + away


def loaded(name: str) -> Array | None:
    """A data set of the library; None, and a line, if there is none."""
    from reproduction.datasets import load

    try:
        return np.asarray(load(name).rows, dtype=np.float64)
    except FileNotFoundError:
        print(f"Left out: {name} is not in the folder that FEDPCA_DATA names.\n", flush=True)
        return None


def air_quality() -> Array | None:
    """The hours in which all is known, without the column of which 90 % are missing."""
    path = found("air_quality_uci.csv.gz")
    if path is None:
        return None
    with gzip.open(path, "rt", newline="") as file:
        hours = list(csv.DictReader(file))
    names = [name for name in hours[0] if name not in ("Date", "Time", "NMHC_GT")]
    rows = np.array([[float(hour[name]) for name in names] for hour in hours])
    return rows[(rows != -200).all(axis=1)]


def laboratory() -> Array | None:
    path = found("intel_lab_30min.npz")
    return None if path is None else np.asarray(np.load(path)["temperature"], dtype=np.float64)


def breast_cancer() -> Array:
    from sklearn.datasets import load_breast_cancer

    return np.asarray(load_breast_cancer().data)


def genes() -> Array | None:
    """log(1 + count) of the 200 genes that vary most."""
    from reproduction.datasets import load

    try:
        counts = load("pbmc3k").rows
    except FileNotFoundError:
        return None
    logs = counts.log1p()
    mean = np.asarray(logs.mean(axis=0)).ravel()
    variances = np.asarray(logs.multiply(logs).mean(axis=0)).ravel() - mean**2
    return logs[:, np.argsort(-variances)[:200]].toarray()


def of_tables(name: str) -> Callable[[], Array | None]:
    """One of several tables in a file; columns that do not vary left out."""

    def load() -> Array | None:
        path = found("tables.npz")
        return None if path is None else complete(np.asarray(np.load(path)[name], dtype=np.float64))

    return load


def words() -> Array:
    """Like word vectors, 20,000 x 100: variances that fall slowly, long tails, a mean in one direction."""
    random = np.random.default_rng(2)
    variances = np.arange(1.0, 101) ** -0.9
    axes = np.linalg.qr(random.standard_normal((100, 100)))[0]
    rows = random.standard_normal((20_000, 100)) * np.sqrt(variances)
    rows *= np.exp(0.5 * random.standard_normal((20_000, 1)))
    moved_rows: Array = (rows + 0.5 * np.sqrt(variances.sum()) * axes[0]) @ axes.T
    return moved_rows


def source_words() -> Array:
    """Vectors of the 20,000 commonest words of Python's own sources, 20,000 x 100.

    Positive pointwise mutual information within four words, and its leading singular vectors times the roots
    of their values, as in Levy, Goldberg and Dagan (2015). How long a vector is depends on where it points.
    """
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.linalg import svds

    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = [
        re.findall("[a-z]{2,}", path.read_text(errors="ignore").lower())
        for path in paths
        if "site-packages" not in path.parts
    ]
    counts = Counter(word for text in texts for word in text)
    numbers = {word: i for i, (word, _) in enumerate(counts.most_common(20_000))}
    known = [np.array([numbers[word] for word in text if word in numbers]) for text in texts]
    together = csr_array((len(numbers), len(numbers)))
    for away in range(1, 5):
        first = np.concatenate([text[:-away] for text in known])
        second = np.concatenate([text[away:] for text in known])
        weights = np.full(len(first), 1 / away)
        together = together + coo_array((weights, (first, second)), shape=together.shape).tocsr()
    pairs = (together + together.T).tocoo()
    of_word = np.bincount(pairs.row, pairs.data, len(numbers))
    context = of_word**0.75 / np.sum(of_word**0.75)
    information = np.log(pairs.data / (of_word[pairs.row] * context[pairs.col]))
    positive = coo_array((np.maximum(information, 0.0), (pairs.row, pairs.col)), shape=pairs.shape)
    left, values, _ = svds(positive.tocsr(), 100, v0=np.ones(len(numbers)))
    vectors: Array = left * np.sqrt(values)
    return vectors


def then(change: Callable[[Array], Array], load: Callable[[], Array | None]) -> Callable[[], Array | None]:
    def changed() -> Array | None:
        rows = load()
        return None if rows is None else change(rows)

    return changed


def of_library(name: str) -> Callable[[], Array | None]:
    return lambda: loaded(name)


SETS: dict[str, Callable[[], Array | None]] = {
    "digits": of_library("digits"),
    "MNIST test": of_library("mnist-test"),
    "MNIST train": of_library("mnist-train"),
    "wine": of_library("wine"),
    "air quality": air_quality,
    "WISDM": then(complete, of_library("wisdm")),
    "ISOLET": of_library("isolet"),
    "Light": of_library("motes-light"),
    "Volt": of_library("motes-voltage"),
    "genes": genes,
    "laboratory": laboratory,
    "HapMap": then(complete, of_library("hapmap")),
    **{name: of_tables(name) for name in ("spam", "ticdata", "satellite", "dna", "randhie", "cardio")},
    "words": words,
    "source words": source_words,
    "wine, moved": then(moved, of_library("wine")),
    "air quality, moved": then(moved, air_quality),
    "WISDM, moved": then(moved, then(complete, of_library("wisdm"))),
    "breast cancer, moved": lambda: moved(breast_cancer()),
}


@cache
def data(name: str) -> Array | None:
    return SETS[name]()


class Case(NamedTuple):
    """Rows and what is wanted of them.

    rows: how many, chosen at random; None for all.  scaled: whether features are to be scaled.
    """

    name: str
    rank: int
    epsilon: float
    rows: int | None = None
    scaled: bool = False

    @property
    def table(self) -> Array:
        rows = data(self.name)
        assert rows is not None
        if self.rows is None or self.rows == len(rows):
            return rows
        return rows[np.random.default_rng(7).permutation(len(rows))[: self.rows]]

    @property
    def truth(self) -> Truth:
        return truth(self.name, self.rows, self.scaled)

    @property
    def mechanism(self) -> str:
        from fedpca.privacy.mechanisms.gram import Gram

        return "gram" if self.truth.n_features <= Gram.max_features else "sketch"

    def __str__(self) -> str:
        scaled = ', scale="std"' * self.scaled
        return f"{self.name}{scaled}, r = {self.rank}, epsilon = {self.epsilon:g}"


def available(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if data(case.name) is not None]


class Truth(NamedTuple):
    """mean, scale: of the rows.  values: the covariance's, descending.  vectors: as rows.

    Of more features than rows there are as many values as rows.
    """

    n_rows: int
    mean: Array
    scale: Array
    values: Array
    vectors: Array

    @property
    def n_features(self) -> int:
        return len(self.mean)

    def score(self, components: Array, rank: int) -> Score:
        """Of orthonormal rows; one that is missing counts as orthogonal to all."""
        cosines = np.square(components[:rank] @ self.vectors.T)
        held = float(cosines.sum(axis=0) @ self.values)
        return Score(float(cosines[:, :rank].sum()) / rank, held / float(self.values[:rank].sum()))


class Score(NamedTuple):
    affinity: float
    captured: float


@cache
def truth(name: str, rows: int | None, scaled: bool) -> Truth:
    x = Case(name, 1, 1.0, rows).table
    mean = x.mean(axis=0)
    scale = x.std(axis=0) if scaled else np.ones_like(mean)
    n, d = x.shape
    if d > n:
        _, singular, vectors = np.linalg.svd((x - mean) / scale, full_matrices=False)
        return Truth(n, mean, scale, singular**2 / n, vectors)
    scatter = np.zeros((d, d))
    for part in batches(x, 1000):
        centered = (part - mean) / scale
        scatter += centered.T @ centered
    values, vectors = np.linalg.eigh(scatter / n)
    return Truth(n, mean, scale, np.maximum(values[::-1], 0.0), vectors.T[::-1])


# Fits.


def settings(case: Case, seed: int) -> dict[str, object]:
    number = int.from_bytes(key(*case, seed)[:8], "little")
    return {"mechanism": case.mechanism, "insecure_seed_for_tests": number}


class Fit(NamedTuple):
    """score: of the leading directions.  shown: how many of them rise above the noise."""

    score: Score
    shown: int


@cache
def fitted(case: Case, seed: int) -> Fit:
    """By the estimator, which is told epsilon and delta."""
    from fedpca import Privacy

    privacy = Privacy(case.epsilon, DELTA, **settings(case, seed))  # type: ignore[arg-type]
    model = PrivatePCA(case.rank, scale="std" if case.scaled else None, **privacy.settings).fit(case.table)
    return Fit(case.truth.score(leading(model, case.rank), case.rank), model.n_components_)


def leading(model: StreamingPCA, rank: int) -> Array:
    """Its components, or the directions of its release where fewer rise above the noise."""
    from scipy.linalg import eigh

    from fedpca import Moments

    released = model.release()
    if model.n_components_ == rank or not isinstance(released, Moments):
        return model.components_
    d = released.n_features
    vectors: Array = eigh(released.scatter, subset_by_index=[d - rank, d - 1])[1].T[::-1]
    return vectors


QUANTILES = (0.1, 0.5, 0.75, 0.9, 0.99)


def best_public(case: Case, seeds: range) -> list[float]:
    """Affinities about the true mean, in true units, with the quantile of true lengths that is best."""
    from fedpca import Privacy

    exact = case.truth
    scale = exact.scale if case.scaled else None
    lengths = np.linalg.norm((case.table - exact.mean) / exact.scale, axis=1)
    tried = []
    for bound in np.quantile(lengths, QUANTILES):
        affinities = []
        for seed in seeds:
            privacy = Privacy(
                case.epsilon,
                DELTA,
                float(bound),
                center=exact.mean,
                evaluate=False,
                **settings(case, seed),  # type: ignore[arg-type]
            )
            model = PrivatePCA(case.rank, scale=scale, **privacy.settings).fit(case.table)
            affinities.append(exact.score(leading(model, case.rank), case.rank).affinity)
        tried.append(affinities)
    return max(tried, key=np.mean)


# The figures.


class Goal(NamedTuple):
    """affinity: the least.  gap: the most that the best public bound and center may be better."""

    affinity: float
    gap: float | None = None


FIGURES: dict[Case, Goal | None] = {
    Case("MNIST test", 6, 1.0): Goal(0.94, 0.015),
    Case("MNIST test", 6, 4.0): Goal(0.99, 0.015),
    Case("digits", 6, 1.0): Goal(0.86, 0.06),
    Case("digits", 6, 4.0): Goal(0.985, 0.06),
    Case("wine", 2, 1.0, scaled=True): Goal(0.97),
    Case("air quality", 2, 1.0, scaled=True): Goal(0.98),
    Case("ISOLET", 6, 4.0): Goal(0.73, 0.09),
    Case("Light", 6, 1.0): None,
    Case("Light", 6, 4.0): None,
    Case("Volt", 6, 1.0): None,
    Case("Volt", 6, 4.0): None,
}


HARD: dict[Case, Goal | None] = {
    **{Case("satellite", 10, epsilon): None for epsilon in (1.0, 2.0, 4.0)},
    **{Case("dna", 2, epsilon): None for epsilon in (2.0, 4.0)},
    **{Case("words", 6, epsilon): Goal(0.97, 0.01) for epsilon in (1.0, 4.0)},
    **{Case("source words", 6, epsilon): None for epsilon in (1.0, 4.0)},
    **{Case("MNIST train", rank, 1.0): Goal(0.99, 0.003) for rank in (2, 6)},
    **{Case("randhie", 2, epsilon, scaled=True): Goal(0.9) for epsilon in (1.0, 4.0)},
    **{
        Case(name, 2, epsilon, scaled=True): None
        for name in ("spam", "ticdata", "satellite", "cardio")
        for epsilon in (1.0, 4.0)
    },
}


def figures(seeds: range, goals: dict[Case, Goal | None]) -> None:
    heading(f"Nothing public: {len(goals)} cases, delta = {DELTA:g}, {len(seeds)} seeds")
    cases = available(list(goals))
    lines = []
    affinities: dict[Case, tuple[float, float]] = {}
    for case in cases:
        fits = [fitted(case, seed) for seed in seeds]
        own = [fit.score.affinity for fit in fits]
        public = best_public(case, seeds)
        affinities[case] = float(np.mean(own)), float(np.mean(public))
        lines.append(
            (
                str(case),
                mean_and_spread(own),
                mean_and_spread([fit.score.captured for fit in fits]),
                f"{np.mean([fit.shown for fit in fits]):.1f}",
                mean_and_spread(public),
                "at most " * case.scaled + f"{predicted(case).affinity:.3f}",
            )
        )
    header = (
        "data",
        "affinity",
        "captured",
        "above noise",
        "affinity, best public bound and center",
        "planned",
    )
    table(header, lines)
    for case in cases:
        goal = goals[case]
        if goal is None:
            continue
        own_mean, public_mean = affinities[case]
        verdict(own_mean >= goal.affinity, f"{case}: affinity >= {goal.affinity:g}", f"{own_mean:.4f}")
        if goal.gap is not None:
            claim = f"{case}: within {goal.gap:g} of the best public bound and center"
            verdict(public_mean - own_mean <= goal.gap, claim, f"{public_mean - own_mean:.4f}")


# The cells.

CELL_SETS = (
    "digits",
    "breast cancer, moved",
    "wine, moved",
    "wine",
    "Light",
    "Volt",
    "air quality, moved",
    "WISDM, moved",
    "genes",
    "ISOLET",
)
RANGES = (0.0, 0.003, 0.01, 0.03, 0.1, np.inf)
CELLS_GOAL = Score(0.709, 0.864)


def all_cells(sizes: Sequence[int], ranks: Sequence[int]) -> Iterator[Case]:
    """Every data set with all of its rows and with fewer."""
    for name in CELL_SETS:
        rows = data(name)
        if rows is None:
            continue
        epsilons = (1.0, 4.0, 8.0) if name == "ISOLET" else (0.5, 1.0, 2.0, 4.0, 8.0)
        for n in (*(n for n in sizes if n < len(rows)), len(rows)):
            for epsilon in epsilons:
                for rank in ranks:
                    yield Case(name, rank, epsilon, n)


def cells(seeds: range, *, quick: bool) -> None:
    from fedpca.privacy.calibration import mu_of

    cases = list(all_cells((300,) if quick else (300, 1000, 3000), (6,) if quick else (2, 6, 10)))
    heading(f"Nothing public: {len(cases)} cells, delta = {DELTA:g}, {len(seeds)} seeds")
    scores = np.array([np.mean([fitted(case, seed).score for seed in seeds], axis=0) for case in cases])
    t = np.array(
        [np.sqrt(case.truth.n_features) / (mu_of(case.epsilon, DELTA) * case.truth.n_rows) for case in cases]
    )
    lines = []
    for low, high in pairwise(RANGES):
        lines.append((f"{low:g} to {high:g}", *averages(scores[(t >= low) & (t < high)])))
    table(("t", "cells", "affinity", "captured"), [*lines, ("all", *averages(scores))])
    names = np.array([case.name for case in cases])
    lines = [(name, *averages(scores[names == name])) for name in dict.fromkeys(names.tolist())]
    table(("data", "cells", "affinity", "captured"), lines)
    if not quick:
        mean = Score(*scores.mean(axis=0))
        for metric, value, goal in zip(Score._fields, mean, CELLS_GOAL, strict=True):
            verdict(value >= goal, f"mean {metric} of the cells >= {goal:g}", f"{value:.4f}")


def averages(scores: Array) -> tuple[str, ...]:
    means = [f"{value:.3f}" for value in scores.mean(axis=0)] if len(scores) else ["-", "-"]
    return (str(len(scores)), *means)


# Plans.

PLANNED = (
    *(Case("digits", 6, epsilon) for epsilon in (1.0, 4.0)),
    *(Case("MNIST test", 6, epsilon) for epsilon in (1.0, 4.0)),
    Case("MNIST train", 6, 1.0),
    *(Case("wine", 2, epsilon, scaled=True) for epsilon in (1.0, 4.0)),
    *(Case("air quality", 2, epsilon, scaled=True) for epsilon in (1.0, 4.0)),
    *(Case("WISDM", 6, epsilon, scaled=True) for epsilon in (1.0, 4.0)),
    *(Case("ISOLET", 6, epsilon) for epsilon in (1.0, 4.0)),
    *(Case("Light", 6, epsilon) for epsilon in (1.0, 4.0)),
    *(Case("Volt", 6, epsilon) for epsilon in (1.0, 4.0)),
    *(Case("genes", 6, epsilon) for epsilon in (1.0, 4.0)),
    *(Case("laboratory", 2, epsilon) for epsilon in (1.0, 4.0)),
    Case("HapMap", 2, 4.0),
)


def predicted(case: Case) -> Score:
    """By a plan that is given the true variances; its limits, of features that are to be scaled."""
    from fedpca import Privacy, plan

    exact = case.truth
    made = plan(
        Privacy(case.epsilon, DELTA, mechanism=case.mechanism),  # type: ignore[arg-type]
        exact.n_features,
        exact.n_rows,
        np.pad(exact.values, (0, exact.n_features - len(exact.values))).tolist(),
        n_components=case.rank,
        scale="std" if case.scaled else None,
    )
    affinity, captured = made.affinity, made.captured
    if case.scaled:
        affinity, captured = made.affinity_limit, made.captured_limit
    assert affinity is not None
    assert captured is not None
    return Score(affinity, captured)


def plan(seeds: range, *, quick: bool) -> None:
    heading(f"What plan predicts from the true variances: delta = {DELTA:g}, {len(seeds)} seeds")
    lines = []
    slow = ("MNIST train", "HapMap") if quick else ()
    for case in available([case for case in PLANNED if case.name not in slow]):
        fits = [fitted(case, seed).score for seed in seeds]
        told = predicted(case)
        line = [str(case), f"{case.truth.n_rows} x {case.truth.n_features}"]
        for metric in Score._fields:
            measured = [getattr(fit, metric) for fit in fits]
            line += ["at most " * case.scaled + f"{getattr(told, metric):.3f}", mean_and_spread(measured)]
        lines.append(line)
    header = ("data", "rows", "affinity: predicted", "measured", "captured: predicted", "measured")
    table(header, lines)


# Evaluations.

EVALUATED = (
    Case("digits", 6, 1.0),
    Case("breast cancer, moved", 2, 4.0),
    Case("wine", 2, 1.0, scaled=True),
)


class Interval(NamedTuple):
    """truth: the share that the components explain of the rows, clipped.  share, low, high: what is said."""

    truth: float
    share: float
    low: float
    high: float


def evaluated(case: Case, seed: int) -> Interval | None:
    """None if nothing was evaluated, or differences of pairs were, whose truth is that of the pairs drawn."""
    from fedpca import Privacy

    privacy = Privacy(case.epsilon, DELTA, **settings(case, seed))  # type: ignore[arg-type]
    model = PrivatePCA(case.rank, scale="std" if case.scaled else None, **privacy.settings).fit(case.table)
    certificate = model.release().certificate
    assert certificate is not None
    if certificate.evaluation is None or "pairs" in certificate.clipping:
        return None
    radius = certificate.evaluation.radius
    shown = model.subspace_
    deviations = case.table / (1.0 if shown.scale is None else shown.scale) - shown.mean
    lengths = np.linalg.norm(deviations, axis=1, keepdims=True)
    clipped = deviations * np.minimum(1.0, radius / np.maximum(lengths, radius / 1e6))
    along = np.square(clipped @ shown.components[: model.n_components_].T).sum()
    return Interval(float(along / np.square(clipped).sum()), *certificate.evaluation.explained())


def evaluation(runs: range) -> None:
    heading(f"The private evaluation: delta = {DELTA:g}, {len(runs)} runs")
    lines, shares = [], {}
    for case in available(EVALUATED):
        intervals = [interval for seed in runs if (interval := evaluated(case, seed)) is not None]
        covered = np.mean([low <= exact <= high for exact, _, low, high in intervals])
        bias = np.mean([share - exact for exact, share, _, _ in intervals])
        width = np.mean([high - low for _, _, low, high in intervals])
        mean = np.mean([exact for exact, _, _, _ in intervals])
        shares[case] = covered
        lines.append(
            (str(case), str(len(intervals)), f"{mean:.3f}", f"{bias:+.4f}", f"{width:.3f}", f"{covered:.1%}")
        )
    table(("data", "evaluations", "true share", "bias", "width of the interval", "covered"), lines)
    for case, covered in shares.items():
        verdict(0.93 <= covered <= 0.97, f"{case}: 93 to 97 % of intervals hold the truth", f"{covered:.1%}")


def main() -> None:
    parser = options(__doc__, "3 seeds, 1 for a part of the cells, 50 evaluations")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all if none is given"
    )
    parser.add_argument("--seeds", type=int, help="how many; by default 20, 3 for cells, 1000 for evaluation")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    quick = arguments.quick
    parts = arguments.parts or PARTS

    def seeds(usual: int, few: int) -> range:
        return range(arguments.seeds or (few if quick else usual))

    for expected in (
        "bound=",
        "n_components=",
        "feature .* of the variance",
        "left out",
        "delta=",
    ):  # what noise hides is counted here
        warnings.filterwarnings("ignore", message=expected)
    print(f"# Private components without public knowledge\n\n{machine()}")
    if "figures" in parts:
        figures(seeds(20, 3), FIGURES)
    if "tables" in parts:
        figures(seeds(20, 3), HARD)
    if "cells" in parts:
        cells(seeds(3, 1), quick=quick)
    if "plan" in parts:
        plan(seeds(20, 3), quick=quick)
    if "evaluation" in parts:
        evaluation(seeds(1000, 50))


if __name__ == "__main__":
    main()
