"""Scores of people from a stream over variants equal those of the pooled genotypes."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedpca


@pytest.mark.skipif(
    "FEDPCA_DATA" not in os.environ, reason="FEDPCA_DATA names no folder with hapmap_geno.npz"
)
@pytest.mark.slow
def test_chromosomes_of_hapmap_merge_into_the_scores_of_its_people():
    with np.load(Path(os.environ["FEDPCA_DATA"]) / "hapmap_geno.npz") as file:
        genotypes, chromosome = file["G"].astype(float), file["chromosome"]
    genotypes[genotypes < 0] = np.nan
    p = np.nanmean(genotypes, axis=0) / 2
    varies = (p > 0) & (p < 1)
    p, chromosome = p[varies], chromosome[varies]
    people = np.nan_to_num((genotypes[:, varies] - 2 * p) / np.sqrt(2 * p * (1 - p)))
    summaries = []
    for number in np.unique(chromosome):
        pca = fedpca.StreamingPCA(10, center=False, tracker="exact")
        for block in np.array_split(people.T[chromosome == number], 3):
            pca.partial_fit(block)
        summaries.append(pca.summary_)
    model = fedpca.merge(summaries).subspace(10)
    scores = model.components.T * model.singular_values
    left, singular_values, _ = np.linalg.svd(people, full_matrices=False)
    expected = (left * singular_values)[:, :10]
    signs = np.sign((scores * expected).sum(axis=0))
    assert np.abs(scores * signs - expected).max() <= 1e-8 * np.abs(expected).max()
