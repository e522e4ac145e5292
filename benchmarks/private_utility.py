"""How good private components are: fedpca's mechanisms, the paper's, and other libraries' at one epsilon.

    python -m benchmarks.private_utility                    # 20 seeds, 200 for the figure
    python -m benchmarks.private_utility --quick            # 3 seeds, a shorter wait for the other libraries
    python -m benchmarks.private_utility figure data        # some of its parts

figure      the paper's utility figure: d = 20, n = 5000, r = 5, delta = 0.05, batches of 50.
data        MNIST, digits, red wine, and what it costs to find the center privately as well.
reports     several reports from one stream: two schedules of noise.
libraries   diffprivlib and OpenDP on the rows of the figure, each fit with a limit on its time.

q_A is |<v1, v1_hat>|; affinity is ||U^T U_hat||_F^2 / r; captured is the variance inside the components over
the most that so many can hold. Mean ± standard deviation over the seeds; a seed changes the noise and, for
synthetic rows, the rows. Adjacency is replace-one. See `benchmarks.private` for what is treated as public.

"gram" and "sketch" release once. Streaming MOD-SuLQ noises every batch by itself: "paper" with the paper's
omega for a batch, "analytic" with the least noise that does. It is the corrected one of `fedpca.paper`: the
mask is symmetrized, and 2r + 10 directions are kept of every batch instead of r. MOD-SuLQ is the predecessor:
one release of all rows with its published noise.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Sequence
from math import comb, sqrt

import numpy as np

from benchmarks import private_peers
from benchmarks.common import Array, batches, heading, machine, number, options, table, verdict
from benchmarks.private import (
    GRAM,
    MECHANISMS,
    MOD_SULQ,
    PAPER,
    SKETCH,
    STREAMING,
    Score,
    Task,
    at_chance,
    digits_task,
    key,
    mean_and_spread,
    mnist_task,
    power_law_task,
    released,
    wine_task,
)

PARTS = ("figure", "data", "reports", "libraries")

Scores = list[Score]  # one a seed


def column(scores: Scores, metric: str) -> list[float]:
    return [getattr(score, metric) for score in scores]


def cells(scores: Scores) -> tuple[str, ...]:
    return tuple(mean_and_spread(column(scores, metric)) for metric in Score._fields)


# The paper's figure.

FIGURE_SEEDS = 200  # |<v1, v1_hat>| of random directions varies by 0.13 at d = 20
ALPHAS, EPSILONS, FIGURE_DELTA = (0.01, 0.1, 0.5, 1.0), (0.1, 1.0, 4.0), 0.05


def figure_task(alpha: float, seed: int) -> Task:
    return power_law_task(5000, 20, alpha=alpha, rank=5, seed=seed)


def figure(seeds: range) -> None:
    scores: dict[tuple[float, float, str], Scores] = {}
    for alpha in ALPHAS:
        for seed in seeds:
            task = figure_task(alpha, seed)
            for epsilon in EPSILONS:
                for name in MECHANISMS:
                    score = released(task, name, epsilon, FIGURE_DELTA, seed=seed, batch=50)
                    scores.setdefault((alpha, epsilon, name), []).append(score)
    heading(f"The paper's figure: {task.shape}, delta = {FIGURE_DELTA}, batches of 50, {len(seeds)} seeds")
    for metric, title in zip(Score._fields, ("q_A", "affinity", "captured variance"), strict=True):
        print(
            f"{title}; chance is {getattr(task.chance, metric):.3f}" + " (alpha = 1)" * (metric == "captured")
        )
        print()
        lines = []
        for alpha in ALPHAS:
            for epsilon in EPSILONS:
                found = [mean_and_spread(column(scores[alpha, epsilon, name], metric)) for name in MECHANISMS]
                lines.append((f"{alpha:g}", f"{epsilon:g}", *found))
        table(("alpha", "epsilon", *MECHANISMS), lines)
    for alpha in (0.5, 1.0):
        values = column(scores[alpha, 1.0, GRAM], "q")
        verdict(
            np.mean(values) >= 0.99,
            f"gram, alpha = {alpha:g}, epsilon = 1, q_A >= 0.99",
            mean_and_spread(values),
        )
    above = [
        f"{mean_and_spread(values)} at alpha = {alpha:g}, epsilon = {epsilon:g}"
        for (alpha, epsilon, name), found in scores.items()
        if name == PAPER and not at_chance(values := column(found, "q"), task.chance.q)
    ]
    claim = f"the paper's omega, q_A at chance ({task.chance.q:.3f} + 3 standard errors) in all cells"
    verdict(not above, claim, "; ".join(above) or "in all")


# Data sets.

MNIST_BUDGETS = ((1.0, 1e-5), (4.0, 1e-5), (0.1, 0.1))
FITTED, STREAMED = "gram, private center, fit", "gram, private center, partial_fit"


def privately_centered(task: Task, name: str, epsilon: float, delta: float, seed: int) -> Score:
    """Components of the estimator when the center has to be found within epsilon too."""
    from fedpca import Privacy, PrivatePCA

    privacy = Privacy(
        epsilon, delta, task.bound, center="private", insecure_seed_for_tests=seed, evaluate=False
    )
    model = PrivatePCA(**privacy.settings)
    if name == FITTED:
        model.fit(task.rows)
    else:
        order = np.random.default_rng(seed).permutation(len(task.rows))
        for part in batches(task.rows[order], 1000):
            model.partial_fit(part)
        model.release()
    return task.score(leading(model.release().scatter, task.rank))


def clipped_away(task: Task) -> str:
    """How far clipping alone moves the answer."""
    centered = task.rows - task.center
    exact = np.linalg.eigh(centered.T @ centered)[1].T[::-1]
    return f"affinity of the exact components without and with clipping {task.score(exact).affinity:.3f}"


def data(seeds: range, *, mnist_batch: int) -> None:
    mnist = mnist_task()
    others = (SKETCH, STREAMING, MOD_SULQ, PAPER)
    runs = [(digits_task(), (1.0, 1e-5), (GRAM, FITTED, STREAMED, *others), 25)]
    if (wine := wine_task()) is not None:
        runs.append((wine, (1.0, 1e-5), (GRAM, *others), 25))
    if mnist is not None:
        others = (SKETCH, MOD_SULQ, PAPER)
        runs.append((mnist, MNIST_BUDGETS[0], (GRAM, FITTED, STREAMED, *others), mnist_batch))
        runs.extend((mnist, budget, (GRAM, *others), mnist_batch) for budget in MNIST_BUDGETS[1:])
    found: dict[tuple[str, tuple[float, float], str], Scores] = {}
    for task, budget, names, batch in runs:
        heading(f"{task.name}: {task.shape}, (epsilon, delta) = {budget}, {len(seeds)} seeds")
        chance = ", ".join(f"{value:.3f}" for value in task.chance)
        print(f"Chance {chance}; batches of {batch}; {clipped_away(task)}.\n")
        for name in names:
            for seed in seeds:
                if name in MECHANISMS:
                    score = released(task, name, *budget, seed=seed, batch=batch)
                else:
                    score = privately_centered(task, name, *budget, seed)
                found.setdefault((task.name, budget, name), []).append(score)
        lines = [(name, *cells(found[task.name, budget, name])) for name in names]
        table(("mechanism", "q_A", "affinity", "captured variance"), lines)
    if mnist is not None:
        data_goals(mnist, found)


def data_goals(mnist: Task, found: dict[tuple[str, tuple[float, float], str], Scores]) -> None:
    for budget, goal in (((1.0, 1e-5), 0.92), ((0.1, 0.1), 0.95)):
        values = column(found[mnist.name, budget, GRAM], "affinity")
        claim = f"MNIST, {budget}, affinity of gram >= {goal}"
        verdict(np.mean(values) >= goal, claim, mean_and_spread(values))
    for budget in MNIST_BUDGETS:
        values = column(found[mnist.name, budget, PAPER], "affinity")
        claim = (
            f"MNIST, {budget}, the paper's omega at chance ({mnist.chance.affinity:.4f} + 3 standard errors)"
        )
        verdict(at_chance(values, mnist.chance.affinity), claim, mean_and_spread(values, 4))
    public, private = (
        float(np.mean(column(found[mnist.name, (1.0, 1e-5), name], "affinity"))) for name in (GRAM, FITTED)
    )
    claim = "MNIST, (1, 1e-5), affinity with a private center (fit) within 0.02 of that with a public one"
    verdict(public - private <= 0.02, claim, f"{private:.3f} against {public:.3f}")


# Several reports.

DISJOINT, TOEPLITZ = "disjoint increments", "sqrt-Toeplitz"
REPORTS_BUDGET = (1.0, 1e-5)


def multipliers(schedule: str, releases: int) -> Array:
    """Standard deviations of the noise of reports 1 ... R, in units of that of a single release."""
    if schedule == DISJOINT:
        weights, column_norm = np.ones(releases), 1.0
    else:
        weights = np.array([comb(2 * k, k) / 4**k for k in range(releases)])
        column_norm = float(np.linalg.norm(weights))
    return column_norm * np.sqrt(np.cumsum(weights**2))


def own_schedule(releases: int) -> str:
    """The one that the library takes."""
    from fedpca.privacy.schedule import Schedule

    return DISJOINT if Schedule(releases).disjoint else TOEPLITZ


def by_estimator(task: Task, releases: int, seed: int) -> list[Array]:
    """The components of every report of an estimator that was told how many there will be."""
    from fedpca import Privacy, PrivatePCA

    privacy = Privacy(
        *REPORTS_BUDGET,
        task.bound,
        center=None,
        evaluate=False,
        releases=releases,
        insecure_seed_for_tests=seed,
    )
    model = PrivatePCA(**privacy.settings)
    found = []
    for part in np.array_split(task.rows, releases):
        model.partial_fit(part)
        found.append(leading(model.release().scatter, task.rank))
    return found


def reports(seeds: range) -> None:
    from fedpca.privacy.calibration import analytic_sigma
    from fedpca.privacy.clipping import RADIUS
    from fedpca.privacy.schedule import Schedule

    sigma = analytic_sigma(*REPORTS_BUDGET)
    counts = (4, 16, 64)
    found: dict[tuple[int, str], list[float]] = {}
    for seed in seeds:
        task = power_law_task(50_000, 100, alpha=0.5, rank=5, seed=seed)
        rng = np.random.default_rng(int.from_bytes(key("reports", seed)[:8], "little"))
        for releases in counts:
            grams = np.cumsum(
                [part.T @ part for part in np.array_split(task.points / RADIUS, releases)], axis=0
            )
            truths = [leading(gram, task.rank) for gram in grams]
            for schedule in (DISJOINT, TOEPLITZ):
                if schedule == own_schedule(releases):
                    answers = by_estimator(task, releases, seed)
                else:
                    masks = (symmetric(100, sigma * m, rng) for m in multipliers(schedule, releases))
                    answers = [leading(gram + m, task.rank) for gram, m in zip(grams, masks, strict=True)]
                close = [np.square(a @ b.T).sum() / task.rank for a, b in zip(answers, truths, strict=True)]
                found.setdefault((releases, schedule), []).append(float(np.mean(close)))
    heading(f"Several reports: {task.shape}, alpha = 0.5, {REPORTS_BUDGET}, {len(seeds)} seeds")
    print(
        "Noise in units of that of a single release; affinity to the exact components of the rows so far,\n"
        "mean over the reports. fedpca's own schedule runs through the estimator; the other is drawn with\n"
        "numpy at its standard deviation.\n"
    )
    lines = []
    for (releases, schedule), values in found.items():
        name, noise = schedule, multipliers(schedule, releases)
        if schedule == own_schedule(releases):
            name += " (fedpca's own)"
            reported = range(1, releases + 1)
            noise = np.array([Schedule(releases).multiplier(report) for report in reported])
        rms = sqrt(float(np.mean(noise**2)))
        lines.append((str(releases), name, f"{rms:.2f}", f"{noise[-1]:.2f}", mean_and_spread(values)))
    table(("reports", "schedule", "noise, rms", "noise, last", "affinity"), lines)


def symmetric(d: int, sigma: float, rng: np.random.Generator) -> Array:
    """i.i.d. noise, symmetrized: sigma on the diagonal, sigma / sqrt(2) off it."""
    mask = rng.standard_normal((d, d))
    return (mask + mask.T) * (sigma / 2)


def leading(gram: Array, rank: int) -> Array:
    return np.linalg.eigh(gram)[1].T[::-1][:rank]


# Other libraries.


def libraries(seeds: range, *, limit: float, python: str, ranks: Sequence[int], patience: int) -> None:
    heading(f"Other libraries: d = 20, n = 5000, alpha = 0.5, {len(seeds)} seeds, {limit:g} s per fit")
    names = private_peers.available(python)
    lines = []
    for rank in ranks:
        for epsilon in (0.1, 1.0):
            for name in names:
                scores: Scores = []
                seconds: list[float] = []
                problem, tried, late = "", 0, 0
                for seed in seeds:
                    task = power_law_task(5000, 20, alpha=0.5, rank=rank, seed=seed)
                    outcome = private_peers.fit(name, epsilon, rank, seed, limit=limit, python=python)
                    tried += 1
                    if isinstance(outcome, str):
                        problem, late = outcome, late + 1
                    else:
                        components, spent = outcome
                        scores.append(task.score(components))
                        seconds.append(spent)
                    if late == patience:
                        break
                fits = f"{len(scores)} of {tried}" + (f"; else: {problem}" if problem and scores else "")
                if scores:
                    q, affinity, captured = cells(scores)
                    time = number(1000 * statistics.median(seconds))
                    lines.append((str(rank), f"{epsilon:g}", name, q, affinity, captured, time, fits))
                else:
                    lines.append((str(rank), f"{epsilon:g}", name, problem, "-", "-", "-", fits))
    table(
        (
            "r",
            "epsilon",
            "library",
            "q_A",
            "affinity",
            "captured variance",
            "fit ms (median)",
            "fits finished",
        ),
        lines,
    )
    print(private_peers.REMARKS, flush=True)


def main() -> None:
    parser = options(__doc__, "3 seeds, one rank and a few seconds for the other libraries")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all if none is given"
    )
    parser.add_argument(
        "--seeds", type=int, help="how many; by default 20, 200 for the figure; 3 with --quick"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds for a fit of another library; 60, or 5 with --quick"
    )
    parser.add_argument(
        "--libraries-python",
        default=sys.executable,
        help="interpreter that has the other libraries; this one",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    quick = arguments.quick
    parts = arguments.parts or PARTS
    seeds = range(arguments.seeds or (3 if quick else 20))
    warnings.filterwarnings("ignore", message="delta=")  # a tenth of one over the number of rows, on purpose

    print(f"# Utility of private components\n\n{machine()}")
    if "figure" in parts:
        figure(seeds if quick or arguments.seeds else range(FIGURE_SEEDS))
    if "data" in parts:
        data(seeds, mnist_batch=250 if quick else 25)
    if "reports" in parts:
        reports(seeds)
    if "libraries" in parts:
        libraries(
            seeds,
            limit=arguments.limit or (5.0 if quick else 60.0),
            python=arguments.libraries_python,
            ranks=(1,) if quick else (1, 5),
            patience=1 if quick else 3,
        )


if __name__ == "__main__":
    main()
