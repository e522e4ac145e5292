"""Missing values: what one pass loses against many passes of probabilistic PCA over all rows.

    python -m benchmarks.missing_values           # 5 seeds
    python -m benchmarks.missing_values --quick   # 2 seeds

Rows of 4 directions and noise, d = 60, n = 4000, entries missing at random. One rival holds all rows in
memory and runs expectation maximization over them 100 times (Tipping, Bishop 1999); the other replaces
missing values by column means.
"""

from __future__ import annotations

import numpy as np

from benchmarks.common import Array, batches, heading, machine, options, table

DIMENSION, RANK, ROWS = 60, 4, 4000
ITERATIONS = 100


def low_rank_rows(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(ROWS, RANK)) * [4.0, 3.0, 2.0, 1.5]
    directions = 3 * rng.normal(size=(RANK, DIMENSION)) / np.sqrt(DIMENSION)
    return scores @ directions + 0.3 * rng.normal(size=(ROWS, DIMENSION)) + 2 * rng.normal(size=DIMENSION)


def shortfall(rows: Array, components: Array) -> float:
    centered = rows - rows.mean(axis=0)
    best = np.sum(np.linalg.svd(centered, compute_uv=False)[:RANK] ** 2)
    return float(1 - np.sum((centered @ components.T) ** 2) / best)


def streamed(gappy: Array, batch: int) -> tuple[Array, Array]:
    from fedpca import StreamingPCA

    model = StreamingPCA(RANK)
    for part in batches(gappy, batch):
        model.partial_fit(part)
    return model.components_, model.explained_variance_


def mean_filled(gappy: Array) -> Array:
    filled = np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)
    return np.linalg.svd(filled - filled.mean(axis=0), full_matrices=False)[2][:RANK]


def many_passes(gappy: Array) -> Array:
    """Probabilistic PCA by expectation maximization, feature by feature, written without fedpca."""
    seen = (~np.isnan(gappy)).astype(float)
    rows = np.nan_to_num(gappy)
    loadings = np.random.default_rng(0).normal(size=(DIMENSION, RANK))
    mean, noise = rows.sum(axis=0) / seen.sum(axis=0), 1.0
    for _ in range(ITERATIONS):
        precision = np.einsum("nd,di,dj->nij", seen, loadings, loadings) + noise * np.eye(RANK)
        covariance = np.linalg.inv(precision)
        scores = np.einsum("nij,nj->ni", covariance, (seen * (rows - mean)) @ loadings)
        design = np.concatenate([scores, np.ones((ROWS, 1))], axis=1)
        moments = design[:, :, None] * design[:, None, :]
        moments[:, :RANK, :RANK] += noise * covariance
        normal = np.einsum("nd,nij->dij", seen, moments)
        solved = np.linalg.solve(normal, (rows.T @ design)[:, :, None])[:, :, 0]
        loadings, mean = solved[:, :RANK], solved[:, RANK]
        residual = seen * (rows - scores @ loadings.T - mean)
        inside = np.einsum("nd,di,dj,nij->", seen, loadings, loadings, covariance, optimize=True)
        noise = (np.sum(residual**2) + noise * inside) / seen.sum()
    return np.linalg.svd(loadings, full_matrices=False)[0].T


def main() -> None:
    args = options(__doc__, "2 seeds").parse_args()
    print(machine())
    heading("Shortfall, median; in brackets the smallest share of a component's variance that is reported")
    lines = []
    for share in (0.1, 0.5, 0.8, 0.9):
        cells: dict[str, list[float]] = {}
        shares: dict[str, list[float]] = {}
        for seed in range(2 if args.quick else 5):
            rows = low_rank_rows(seed)
            gaps = np.random.default_rng(100 + seed).random(rows.shape) < share
            gappy = np.where(gaps, np.nan, rows)
            true = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:RANK] ** 2 / (ROWS - 1)
            for batch in (200, 1000, ROWS):
                components, variances = streamed(gappy, batch)
                cells.setdefault(f"batches of {batch}", []).append(shortfall(rows, components))
                shares.setdefault(f"batches of {batch}", []).append(float(np.min(variances / true)))
            cells.setdefault("column means", []).append(shortfall(rows, mean_filled(gappy)))
            cells.setdefault("100 passes", []).append(shortfall(rows, many_passes(gappy)))
        lines.append(
            [f"{share:.0%}"]
            + [
                f"{np.median(values):.1e}" + (f" ({np.median(shares[name]):.2f})" if name in shares else "")
                for name, values in cells.items()
            ]
        )
    table(["missing", *cells], lines)


if __name__ == "__main__":
    main()
