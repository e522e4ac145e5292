"""HapMap split into biobanks: do federated components separate its populations as pooled ones do?

Run `PYTHONPATH=. python examples/hapmap.py` in a checkout with the data set "hapmap" (see docs/data-sets.md).
"""

import tempfile
from pathlib import Path

import biobanks
import numpy as np
from bed_reader import to_bed
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from fedpca.metrics import captured_variance, principal_angles
from reproduction import datasets


def compare(
    genotypes: np.ndarray, biobank: np.ndarray, continent: np.ndarray, oversample: int
) -> list[float]:
    """Compare the federated model with the PCA of pooled genotypes.

    Returns:
        Captured variance relative to the best possible; the largest angle between the first two components,
        and between all, in degrees; silhouettes of the continents on the first two, federated and pooled.
    """
    order = np.argsort(biobank, kind="stable")
    with tempfile.TemporaryDirectory() as folder:
        beds = [Path(folder) / f"{name}.bed" for name in np.unique(biobank)]
        for bed in beds:
            to_bed(bed, genotypes[biobank.astype(str) == bed.stem])
        model, frequency = biobanks.federated(beds, oversample)
        scores = np.concatenate([biobanks.scores(bed, model, frequency) for bed in beds])
    everybody = biobanks.standardized(genotypes[order], frequency)
    pooled = PCA(model.rank, svd_solver="full").fit(everybody)
    angles = [
        np.degrees(principal_angles(model.components[:some], pooled.components_[:some]).max())
        for some in (2, model.rank)
    ]
    apart = [
        silhouette_score(found[:, :2], continent[order]) for found in (scores, pooled.transform(everybody))
    ]
    return [captured_variance(model, everybody), *angles, *apart]


def main() -> None:
    people = datasets.load("hapmap")
    genotypes, population = people.rows.astype(float), people.clients.astype(str)
    continent = np.where(np.isin(population, ["HCB", "JPT"]), "Asia", population)
    splits = {
        "one per population": population,
        "three at random": np.random.default_rng(0).integers(3, size=len(population)),
    }
    print("| biobanks | directions each | captured | angle, 2 | angle, 4 | silhouette | pooled |")
    print("|---|---|---|---|---|---|---|")
    for name, biobank in splits.items():
        for oversample in (8, 20, 40, 100):
            found = compare(genotypes, biobank, continent, oversample)
            captured, first, all_four, apart, together = found
            print(
                f"| {name} | {biobanks.COMPONENTS + oversample} | {captured:.4f} | {first:.1f}° "
                f"| {all_four:.1f}° | {apart:.3f} | {together:.3f} |"
            )


if __name__ == "__main__":
    main()
