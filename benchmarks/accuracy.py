"""How accurate: trackers on streams that are easy, sorted, changing or degenerate, against the exact answer.

    python -m benchmarks.accuracy           # d = 400 and 1000, 5 seeds
    python -m benchmarks.accuracy --quick   # d = 400, 3 seeds

Every contender gets the same batches of 200 rows, in the same order, in float64.
Shortfall: 1 - captured variance / the best possible.
Angle: sine of the largest principal angle to the exact leading subspace. Median (worst) over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from benchmarks.common import (
    Array,
    batches,
    heading,
    machine,
    options,
    power_law,
    random_basis,
    table,
    tiny,
    verdict,
)
from reproduction.exact import Exact

RANK = 10
BATCH = 200
ROWS = {400: 20_000, 1000: 10_000}
FLOOR = 1e-9  # shortfalls below this count as equal


# Streams: (n, d, seed) -> rows, shape (n, d), in the order in which they arrive.


def flat_power_law(n: int, d: int, seed: int) -> Array:
    return power_law(n, d, alpha=0.5, seed=seed)


def steep_power_law(n: int, d: int, seed: int) -> Array:
    return power_law(n, d, alpha=1.0, seed=seed)


def sorted_rows(n: int, d: int, seed: int) -> Array:
    """Rows arrive in the order of their first component."""
    rows = power_law(n, d, seed=seed)
    first = leading(rows, 1)[0]
    return rows[np.argsort(rows @ first)]


def change_halfway(n: int, d: int, seed: int) -> Array:
    """The second half has other directions and another mean."""
    return np.concatenate([power_law(n // 2, d, seed=seed), power_law(n - n // 2, d, seed=seed + 1000)])


def revealed(n: int, d: int, seed: int) -> Array:
    """Exact rank 10: each tenth of the stream moves along one new direction only."""
    rng = np.random.default_rng(seed)
    basis = random_basis(RANK, d, rng)
    active = np.arange(n) * RANK // n
    return rng.standard_normal((n, 1)) * basis[active] + rng.standard_normal(d) / np.sqrt(d)


def sorted_clusters(n: int, d: int, seed: int) -> Array:
    """Thirty clusters, one after the other; their centers span three times as many directions as are kept."""
    rng = np.random.default_rng(seed)
    count = 3 * RANK
    centers = random_basis(count, d, rng) * rng.permutation(10.0 * np.arange(1, count + 1) ** -0.5)[:, None]
    return centers[np.arange(n) * count // n] + 0.1 * rng.standard_normal((n, d))


def drifting_mean(n: int, d: int, seed: int) -> Array:
    """The mean moves along a quarter circle, five times the largest standard deviation in radius."""
    rng = np.random.default_rng(seed + 2000)
    plane = random_basis(2, d, rng)
    angle = np.linspace(0, np.pi / 2, n)
    return power_law(n, d, seed=seed) + 5.0 * np.column_stack([np.cos(angle), np.sin(angle)]) @ plane


STREAMS: dict[str, Callable[[int, int, int], Array]] = {
    "power law, alpha 0.5": flat_power_law,
    "power law, alpha 1": steep_power_law,
    "sorted along the first component": sorted_rows,
    "directions change halfway": change_halfway,
    "exact rank 10, one direction at a time": revealed,
    "sorted clusters": sorted_clusters,
    "drifting mean": drifting_mean,
}


# Contenders: rows -> components.


def with_tracker(tracker: str) -> Callable[[Array], Array]:
    def fit(rows: Array) -> Array:
        from fedpca import StreamingPCA

        model = StreamingPCA(n_components=RANK, tracker=tracker)
        for part in batches(rows, BATCH):
            model.partial_fit(part)
        return model.components_

    return fit


def incremental_pca(rows: Array) -> Array:
    from sklearn.decomposition import IncrementalPCA

    model = IncrementalPCA(n_components=RANK)
    for part in batches(rows, BATCH):
        model.partial_fit(part)
    return model.components_


NYSTROM, BLOCK = "fedpca nystrom", "fedpca block"
CONTENDERS: dict[str, Callable[[Array], Array]] = {
    NYSTROM: with_tracker("nystrom"),
    BLOCK: with_tracker("block"),
    "fedpca exact": with_tracker("exact"),
    "sklearn IncrementalPCA": incremental_pca,
}


def leading(rows: Array, rank: int) -> Array:
    """Exact leading directions, shape (rank, d)."""
    centered = rows - rows.mean(axis=0)
    return np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, :rank].T


def largest_angle(components: Array, truth: Array) -> float:
    """Sine of the largest principal angle between two row spaces, from the residual (no cancellation)."""
    basis = np.linalg.qr(np.asarray(components, np.float64).T)[0]
    residual = basis - truth.T @ (truth @ basis)
    return float(np.linalg.norm(residual, 2))


Scores = dict[str, list[tuple[float, float]]]  # contender -> (shortfall, angle) of each seed


def score(stream: Callable[[int, int, int], Array], n: int, d: int, seeds: range) -> Scores:
    scores: Scores = {name: [] for name in CONTENDERS}
    for seed in seeds:
        rows = stream(n, d, seed)
        exact, truth = Exact.of(rows, RANK), leading(rows, RANK)
        for name, fit in CONTENDERS.items():
            try:
                components = fit(rows)
                if components.shape != truth.shape:
                    raise ValueError(f"components of shape {components.shape}")
                if not np.isfinite(components).all():
                    raise ValueError("components are not finite")
                scores[name].append((exact.shortfall(components), largest_angle(components, truth)))
            except Exception as error:  # a contender that breaks is a line, not the end of the run
                print(f"- {name} failed on seed {seed}: {type(error).__name__}: {error}", flush=True)
                scores[name].append((float("inf"), float("inf")))
    return scores


def summary(values: list[float]) -> str:
    return f"{tiny(statistics.median(values))} ({tiny(max(values))})"


def main() -> None:
    quick = options(__doc__, "d = 400 and 3 seeds only").parse_args().quick
    seeds = range(3 if quick else 5)
    dimensions = [400] if quick else list(ROWS)

    print(f"# Accuracy\n\n{machine()}")
    found: dict[tuple[int, str], Scores] = {}
    for d in dimensions:
        heading(f"d = {d}, r = {RANK}, n = {ROWS[d]}, {len(seeds)} seeds")
        for name, stream in STREAMS.items():
            found[d, name] = score(stream, ROWS[d], d, seeds)
        for title, which in (("shortfall", 0), ("sine of the largest angle", 1)):
            lines = []
            for name in STREAMS:
                scores = found[d, name]
                lines.append((name, *(summary([seed[which] for seed in scores[who]]) for who in CONTENDERS)))
            table((f"{title}, median (worst)", *CONTENDERS), lines)

    heading("Goals: nystrom not worse than block, in the median and at worst")
    for (d, name), scores in found.items():
        ours, theirs = ([shortfall for shortfall, _ in scores[which]] for which in (NYSTROM, BLOCK))
        usual = statistics.median(ours) <= statistics.median(theirs) + FLOOR
        worst = max(ours) <= max(theirs) + FLOOR
        verdict(usual and worst, f"d = {d}, {name}", f"{summary(ours)} against {summary(theirs)}")


if __name__ == "__main__":
    main()
