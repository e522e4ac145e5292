"""Tests that others defined, in their settings: what they published stands on docs/outside.md, beside this.

    python -m benchmarks.outside                     # all three
    python -m benchmarks.outside europe --runs 30    # CoinPress' private map of Europe
    python -m benchmarks.outside roipca              # ROIPCA's streams of single rows
    python -m benchmarks.outside spiked              # k-DP-PCA's spiked model

The map needs europe_pcs.npz in the folder that FEDPCA_DATA names. Keys of the noise are made from seeds:
tables repeat. ADBench is in benchmarks.monitoring.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import sqrt
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Array, heading, machine, number, options, random_basis, table, tiny
from benchmarks.private import found

PARTS = ("europe", "roipca", "spiked")

# CoinPress (Biswas et al., NeurIPS 2020): a zero-concentrated budget of rho, and any row replaced.
RHO = 1.0
DELTA = 1e-6  # below one over the number of rows, as fedpca requires

# Its single runs on the map, by the number of steps t: |<v1, v1'>| and |<v2, v2'>|, of its results/europe.
COINPRESS = {1: (0.448, 0.282), 2: (0.953, 0.057), 3: (0.980, 0.476), 4: (0.974, 0.613), 5: (0.959, 0.920)}


# --- the map of Europe ---


class Europe(NamedTuple):
    """People of the POPRES map (Novembre et al. 2008): rows, shape (1387, 20), and where they are from."""

    rows: Array
    country: Array
    longitude: Array
    latitude: Array


def europe() -> Europe | None:
    """CoinPress' rows, before they are rotated; None, and a line, if the file is missing."""
    path = found("europe_pcs.npz")
    if path is None:
        return None
    with np.load(path) as file:
        rows = file["pcs"].astype(float) * file["eigenvalues"] * 20  # as CoinPress scales them
        return Europe(rows, file["country"], file["longitude"], file["latitude"])


def rotated(rows: Array, seed: int) -> Array:
    """In a random basis, so that no axis is a component."""
    return rows @ random_basis(rows.shape[1], rows.shape[1], np.random.default_rng(seed))


def private_pca(rows: Array, mu: float, seed: int, **settings: Any) -> Any:
    """At most two private components, for a budget of mu in total."""
    from fedpca import PrivatePCA
    from fedpca.privacy.calibration import epsilon_within

    pca = PrivatePCA(
        2, epsilon=epsilon_within(mu, DELTA), delta=DELTA, insecure_seed_for_tests=seed, **settings
    )
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of what noise hides, and the seed
        return pca.fit(rows)


def cosines(components: Array, exact: Array) -> Array:
    """|<v, v'>| of each; 0 for a component that was not found."""
    each = np.zeros(len(exact))
    each[: len(components)] = np.abs((components * exact[: len(components)]).sum(axis=1))
    return each


def map_of_europe(runs: int, rows: Array) -> dict[str, Array]:
    """Cosines of both components, shape (runs, 2): everything found privately, or the mean known to be 0."""
    mu = sqrt(2 * RHO)  # a Gaussian sum that is rho-zCDP is sqrt(2 rho)-GDP
    exact = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:2]
    settings: dict[str, dict[str, Any]] = {
        "fedpca, nothing known": {},
        "fedpca, mean 0 known": {"center": None, "evaluate": False},
    }
    scores: dict[str, Array] = {}
    for name, known in settings.items():
        each = []
        for seed in range(runs):
            basis = random_basis(rows.shape[1], rows.shape[1], np.random.default_rng(seed))
            each.append(cosines(private_pca(rows @ basis, mu, seed, **known).components_, exact @ basis))
        scores[name] = np.array(each)
    return scores


def show_europe(runs: int) -> None:
    people = europe()
    if people is None:
        return
    heading(f"Map of Europe, rho = {RHO:g}, one row replaced: cosines with the exact components, {runs} runs")
    scores = map_of_europe(runs, people.rows)
    lines = [
        [f"CoinPress, as published, t = {steps}", "1", *(f"{value:.3f}" for value in values), "", ""]
        for steps, values in COINPRESS.items()
    ]
    for name, each in scores.items():
        lines.append([name, str(runs), *(f"{x:.4f}" for x in (*np.median(each, axis=0), *each.min(axis=0)))])
    table(["method", "runs", "v1, median", "v2, median", "v1, worst", "v2, worst"], lines)


# --- ROIPCA's streams ---

FIRST, UPDATES = 500, 10_000  # ROIPCA: rows at once, then rows one by one


def brownian(n: int, d: int, rng: np.random.Generator) -> tuple[Array, int]:
    """Table 2: covariance min(i, j) / d, and as many components as have 80 % of the variance, at most 10."""
    rows = np.cumsum(rng.standard_normal((n, d)), axis=1) / sqrt(d)
    rows -= rows.mean(axis=0)
    values = np.linalg.eigvalsh(rows.T @ rows)[::-1]
    return rows, min(10, int(np.searchsorted(np.cumsum(values) / values.sum(), 0.8)) + 1)


def weak_spikes(n: int, d: int, rng: np.random.Generator) -> tuple[Array, int]:
    """Table 4: five directions of variance 1.6 to 1.5 in noise of variance 1."""
    spikes = random_basis(5, d, rng) * np.sqrt(np.linspace(0.6, 0.5, 5))[:, None]
    rows = rng.standard_normal((n, 5)) @ spikes + rng.standard_normal((n, d))
    return rows - rows.mean(axis=0), 5


def subspace_error(components: Array, exact: Array) -> float:
    """||P - P'||_F^2 / ||P||_F^2, ROIPCA's; 2 for orthogonal subspaces."""
    return 2 - 2 * float(np.square(components @ exact.T).sum()) / len(exact)


def ours(tracker: str, batch: int) -> Callable[[Array, int, int], tuple[Array, float]]:
    """Components after the stream, and seconds that its updates took, once the first rows were read."""

    def run(rows: Array, m: int, first: int) -> tuple[Array, float]:
        import pandas as pd

        from fedpca import StreamingPCA

        names = [f"x{j}" for j in range(rows.shape[1])]
        pca = StreamingPCA(m, center=False, tracker=tracker)
        if batch > 1:
            pca.partial_fit(rows[:first])
            start = perf_counter()
            for i in range(first, len(rows), batch):
                pca.partial_fit(rows[i : i + batch])
        else:
            pca.partial_fit(pd.DataFrame(rows[:first], columns=names))
            mappings = [dict(zip(names, row, strict=True)) for row in rows[first:].tolist()]
            start = perf_counter()
            for row in mappings:
                pca.learn_one(row)
        return pca.components_, perf_counter() - start

    return run


def incremental(rows: Array, m: int, first: int) -> tuple[Array, float]:
    """scikit-learn's IncrementalPCA, row by row. It centers; the mean of the rows is 0 all the same."""
    from sklearn.decomposition import IncrementalPCA

    pca = IncrementalPCA(m).partial_fit(rows[:first])
    start = perf_counter()
    for i in range(first, len(rows)):
        pca.partial_fit(rows[i : i + 1], check_input=False)
    return pca.components_, perf_counter() - start


def first_rows_only(rows: Array, m: int, first: int) -> tuple[Array, float]:
    return np.linalg.svd(rows[:first], full_matrices=False)[2][:m], 0.0


STREAMS: dict[str, Callable[[Array, int, int], tuple[Array, float]]] = {
    "no update": first_rows_only,
    "fedpca, learn_one": ours("auto", 1),
    "fedpca, batches of 10": ours("auto", 10),
    "fedpca, batches of 100": ours("auto", 100),
    "fedpca, tracker block, learn_one": ours("block", 1),
    "fedpca, tracker block, batches of 100": ours("block", 100),
    "scikit-learn IncrementalPCA, row by row": incremental,
}


def stream_errors(
    rows_of: Callable[..., tuple[Array, int]], trials: int, updates: int, first: int = FIRST, d: int = 100
) -> dict[str, tuple[float, float]]:
    """Median error after all rows, and microseconds per row, of every method."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in STREAMS}
    for seed in range(trials):
        rows, m = rows_of(first + updates, d, np.random.default_rng(seed))
        exact = np.linalg.svd(rows, full_matrices=False)[2][:m]
        for name, run in STREAMS.items():
            components, seconds = run(rows, m, first)
            results[name].append((subspace_error(components, exact), 1e6 * seconds / updates))
    medians = {name: np.median(each, axis=0).tolist() for name, each in results.items()}
    return {name: (error, time) for name, (error, time) in medians.items()}


def show_streams(trials: int) -> None:
    tables = {"Table 2, covariance min(i, j) / d": brownian, "Table 4, weak spikes": weak_spikes}
    for name, rows_of in tables.items():
        heading(f"ROIPCA, {name}: d = 100, {FIRST} rows, then {UPDATES}; median of {trials}")
        errors = stream_errors(rows_of, trials, UPDATES)
        lines = [[method, tiny(error), number(time)] for method, (error, time) in errors.items()]
        table(["method", "error", "microseconds per row"], lines)


# --- k-DP-PCA's spiked model ---


def spiked(n: int, d: int, sigma: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Gaussian rows with variance 10 and 5 along two directions, and sigma^2 everywhere; and the directions.

    The second variance is our choice: the summaries of the paper that can be read do not state it.
    """
    basis = random_basis(2, d, rng)
    rows = (rng.standard_normal((n, 2)) * np.sqrt([10.0, 5.0])) @ basis
    return rows + sigma * rng.standard_normal((n, d)), basis


def spiked_losses(n: int, d: int, sigma: float, trials: int) -> dict[str, float]:
    """1 - the affinity to the true directions, mean of the trials, by what is known of the rows."""
    from fedpca.metrics import affinity
    from fedpca.privacy.calibration import mu_of

    mu = mu_of(1.0, 0.01)  # the paper's epsilon and delta
    losses: dict[str, list[float]] = {"not private": [], "nothing known": [], "length and mean known": []}
    public = {"center": None, "bound": sqrt(15.0), "evaluate": False}
    for seed in range(trials):
        rows, basis = spiked(n, d, sigma, np.random.default_rng(seed))
        losses["not private"].append(1 - affinity(np.linalg.svd(rows, full_matrices=False)[2][:2], basis))
        for name, known in (("nothing known", {}), ("length and mean known", public)):
            release = private_pca(rows, mu, seed, **known).release()
            directions = np.linalg.eigh(release.scatter)[1][:, -2:].T  # above the noise or not
            losses[name].append(1 - affinity(directions, basis))
    return {name: float(np.mean(each)) for name, each in losses.items()}


def show_spiked(trials: int) -> None:
    heading(f"Spiked model, d = 200, k = 2, epsilon = 1, delta = .01: 1 - affinity, mean of {trials}")
    lines = []
    for sigma in (0.025, 0.001):
        for n in (3_000, 10_000, 30_000):
            losses = spiked_losses(n, 200, sigma, trials)
            lines.append([f"{sigma:g}", f"{n:,}", *(number(loss) for loss in losses.values())])
    table(["sigma", "n", *losses], lines)


def main() -> None:
    parser = options(__doc__, "two runs each")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all if none is given"
    )
    parser.add_argument("--runs", type=int, default=5, help="repetitions of each")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {*PARTS}:
        parser.error(f"parts are {', '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    runs = 2 if arguments.quick else arguments.runs
    print(machine())
    shown = {"europe": show_europe, "roipca": show_streams, "spiked": show_spiked}
    for part in arguments.parts or PARTS:
        shown[part](runs)


if __name__ == "__main__":
    main()
