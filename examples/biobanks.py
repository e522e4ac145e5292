"""Ancestry components of three biobanks that share no genotypes, compared with the PCA of pooled genotypes.

Run `python examples/biobanks.py [FOLDER]`; it needs `pip install bed-reader` to write the PLINK files.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from bed_reader import to_bed
from sklearn.decomposition import PCA

import fedpca
from fedpca.readers import open_rows

COMPONENTS = 4


def federated(beds: Sequence[Path], oversample: int = 100) -> tuple[fedpca.Subspace, np.ndarray]:
    """The model of all biobanks and the frequencies of allele 1, from two rounds of messages."""
    counts = [allele_counts(bed) for bed in beds]
    frequency = sum(copies for copies, _ in counts) / sum(alleles for _, alleles in counts)
    summaries = [summary(bed, frequency, oversample) for bed in beds]
    return fedpca.merge(summaries, rank=COMPONENTS), frequency


def allele_counts(bed: Path) -> tuple[np.ndarray, np.ndarray]:
    """Per variant: copies of allele 1 among the founders of a biobank, and the number of alleles read."""
    copies = alleles = 0
    for rows in founders(bed):
        copies = copies + np.nansum(rows, axis=0, dtype=float)
        alleles = alleles + 2 * np.sum(~np.isnan(rows), axis=0)
    return copies, alleles


def summary(bed: Path, frequency: np.ndarray, oversample: int) -> fedpca.Subspace:
    """The summary of a biobank: leading directions of its founders, scaled by everybody's frequencies."""
    pca = fedpca.StreamingPCA(COMPONENTS, oversample=oversample)  # many: genotypes have a long, flat tail
    for rows in founders(bed):
        pca.partial_fit(standardized(rows, frequency))
    return pca.subspace_.with_about(names=open_rows(bed).feature_names)


def scores(bed: Path, model: fedpca.Subspace, frequency: np.ndarray) -> np.ndarray:
    """Scores of everybody in a biobank, including relatives, who are not in the model."""
    batches = open_rows(bed).batches()
    return np.concatenate([model.project(standardized(batch.rows, frequency)) for batch in batches])


def founders(bed: Path) -> Iterable[np.ndarray]:
    """Batches of people without parents in the file."""
    for batch in open_rows(bed, passthrough=["father", "mother"]).batches():
        alone = (batch.passthrough["father"] == "0") & (batch.passthrough["mother"] == "0")
        if alone.any():
            yield batch.rows[alone]


def standardized(rows: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Genotypes in units of their expected standard deviation; missing or constant ones become average."""
    spread = np.sqrt(2 * frequency * (1 - frequency))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num((rows - 2 * frequency) / spread, posinf=0.0, neginf=0.0)


def write_biobanks(folder: Path, variants: int = 3000) -> dict[str, np.ndarray]:
    """PLINK files of three biobanks with different shares of three populations; returns each person's."""
    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.1, 0.9, variants)
    apart = 0.05  # Fst
    likely = (1 - apart) / apart * np.stack([ancestral, 1 - ancestral])
    populations = rng.beta(*likely, size=(3, variants))
    shares = {"north": [0.8, 0.1, 0.1], "south": [0.1, 0.7, 0.2], "west": [0.3, 0.0, 0.7]}
    members = {}
    for name, share in shares.items():
        of = np.sort(rng.choice(3, size=200, p=share))
        genotypes = rng.binomial(2, populations[of]).astype(float)
        # Every tenth person is a child of the previous two: one allele from each.
        child, mother, father = np.arange(2, 200, 10), np.arange(0, 198, 10), np.arange(1, 199, 10)
        genotypes[child] = rng.binomial(1, genotypes[mother] / 2) + rng.binomial(1, genotypes[father] / 2)
        genotypes[rng.uniform(size=genotypes.shape) < 0.01] = np.nan
        people = np.array([f"{name}{person}" for person in range(200)])
        parents = np.full((2, 200), "0", dtype=object)
        parents[:, child] = people[father], people[mother]
        to_bed(
            folder / f"{name}.bed",
            genotypes,
            properties={
                "iid": people,
                "father": parents[0],
                "mother": parents[1],
                "sid": [f"rs{variant}" for variant in range(variants)],
                "allele_1": ["A"] * variants,
                "allele_2": ["G"] * variants,
            },
        )
        members[name] = of
    return members


def main(folder: Path) -> None:
    members = write_biobanks(folder)
    beds = [folder / f"{name}.bed" for name in members]
    model, frequency = federated(beds)
    print(f"merged: {model}")

    everybody = np.concatenate([standardized(rows, frequency) for bed in beds for rows in founders(bed)])
    share = fedpca.metrics.captured_variance(model, everybody)
    print(f"variance captured, of the best {COMPONENTS} directions of all founders: {share:.3f}")
    pooled = PCA(2).fit(everybody)
    angle = np.degrees(fedpca.metrics.principal_angles(model.components[:2], pooled.components_).max())
    print(f"angle between its first two components and those of pooled genotypes: {angle:.1f} degrees")
    for bed in beds:
        first = scores(bed, model, frequency)[:, :2]
        of = members[bed.stem]
        means = [first[of == group].mean(axis=0).round().astype(int).tolist() for group in np.unique(of)]
        print(f"{bed.stem}: {len(first)} people, population means {means}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
