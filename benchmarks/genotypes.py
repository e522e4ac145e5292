"""Beyond memory: the components of 100,000 people x 100,000 variants, from genotypes made chunk by chunk.

    python -m benchmarks.genotypes           # 10 GB of int8 genotypes, a few minutes
    python -m benchmarks.genotypes --quick   # a tenth of the people

Four populations of Balding-Nichols frequencies (F = 0.01). Chunks of people are drawn as int8 counts of an
allele and given to `partial_fit` as float32, as the readers of genotype files do, divided by
sqrt(2 p (1 - p)) of frequencies known beforehand; the chunk is the only part of the table that ever exists.
Time of drawing, and of fitting, wall and CPU; growth of the resident peak. The silhouette of held-out people
on the first three components says whether the populations were found.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.common import Array, heading, machine, options, table
from benchmarks.memory import resident

N_PEOPLE = 100_000
N_VARIANTS = 100_000
N_POPULATIONS = 4
N_COMPONENTS = 10
CHUNK = 200
DIFFERENTIATION = 0.01


def frequencies(rng: np.random.Generator) -> Array:
    """Of the populations, shape (populations, variants): Balding and Nichols' model."""
    ancestral = rng.uniform(0.05, 0.95, N_VARIANTS)
    spread = (1 - DIFFERENTIATION) / DIFFERENTIATION
    return rng.beta(ancestral * spread, (1 - ancestral) * spread, (N_POPULATIONS, N_VARIANTS))


def genotypes(thresholds: Array, populations: Array, rng: np.random.Generator) -> Array:
    """Counts 0, 1, 2 as int8, of people of these populations: two draws of 16 bits below a threshold."""
    counts = np.empty((len(populations), N_VARIANTS), np.int8)
    for person, population in enumerate(populations):
        bits = rng.integers(0, 2**16, (2, N_VARIANTS), np.uint16)
        np.sum(bits < thresholds[population], axis=0, dtype=np.int8, out=counts[person])
    return counts


def silhouette(scores: Array, populations: Array) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(scores, populations))


def main() -> None:
    quick = options(__doc__, "a tenth of the people").parse_args().quick
    from fedpca import StreamingPCA

    n_people = N_PEOPLE // 10 if quick else N_PEOPLE
    print(f"# Genotypes\n\n{machine()}\n")
    rng = np.random.default_rng(0)
    by_population = frequencies(rng)
    p = by_population.mean(axis=0)
    thresholds = np.round(by_population * 2**16).clip(0, 2**16 - 1).astype(np.uint16)
    scale = np.sqrt(2 * p * (1 - p))

    StreamingPCA(n_components=2).fit(rng.standard_normal((100, 300)))  # imports
    before = resident("VmRSS")
    drawing = wall = cpu = 0.0
    pca = StreamingPCA(n_components=N_COMPONENTS, scale=scale)
    for start in range(0, n_people, CHUNK):
        begun = time.perf_counter()
        populations = rng.integers(N_POPULATIONS, size=min(CHUNK, n_people - start))
        rows = genotypes(thresholds, populations, rng)
        drawing += time.perf_counter() - begun
        begun, begun_cpu = time.perf_counter(), time.process_time()
        pca.partial_fit(rows.astype(np.float32))
        wall += time.perf_counter() - begun
        cpu += time.process_time() - begun_cpu
    begun, begun_cpu = time.perf_counter(), time.process_time()
    components = pca.components_
    wall += time.perf_counter() - begun
    cpu += time.process_time() - begun_cpu
    peak = resident("VmHWM") - before

    populations = rng.integers(N_POPULATIONS, size=400)
    scores = pca.transform(genotypes(thresholds, populations, rng))[:, :3]
    heading(f"{n_people:,} people x {N_VARIANTS:,} variants, r = {N_COMPONENTS}, chunks of {CHUNK} people")
    entries = n_people * N_VARIANTS
    table(
        ("drawing s", "fit s", "fit CPU s", "us per person", "million genotypes per core second", "peak MB",
         "components MB", "silhouette"),
        [
            (f"{drawing:.0f}", f"{wall:.0f}", f"{cpu:.0f}", f"{1e6 * cpu / n_people:.0f}",
             f"{entries / cpu / 1e6:.0f}", f"{peak / 1e6:.0f}", f"{components.nbytes / 1e6:.0f}",
             f"{silhouette(scores, populations):.3f}")
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
