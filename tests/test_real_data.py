"""Shards of MNIST, merged in any order and any tree, give the PCA of all images."""

import numpy as np
import pytest

import fedpca
from fedpca import StreamingPCA, Subspace


@pytest.fixture(scope="module")
def images(real_data):
    return real_data("mnist-test").rows.astype(np.float64)


@pytest.fixture(scope="module")
def digits(real_data):
    return real_data("mnist-test").labels


@pytest.fixture(scope="module")
def spectrum(images):
    """The scatter of all images and its eigenvalues, by numpy."""
    deviations = images - images.mean(axis=0)
    scatter = deviations.T @ deviations
    return scatter, np.linalg.eigvalsh(scatter)[::-1]


def captured(components, spectrum):
    scatter, eigenvalues = spectrum
    components = components.astype(np.float64)
    return float(np.sum((components @ scatter) * components)) / eigenvalues[: len(components)].sum()


@pytest.fixture(scope="module")
def shards(images):
    sizes = np.cumsum([40, 900, 3, 2500, 1200, 1, 1700, 800, 1500])
    return np.split(images, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("fanout", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_lost_without_truncation(shards, spectrum, fanout, seed):
    summaries = [Subspace.from_rows(shards[i]) for i in np.random.default_rng(seed).permutation(len(shards))]
    merged = fedpca.merge_tree(summaries, fanout=fanout)
    assert captured(merged.components[:20], spectrum) == pytest.approx(1, abs=1e-9)
    eigenvalues = spectrum[1][: merged.rank]
    np.testing.assert_allclose(merged.singular_values**2, eigenvalues, atol=1e-9 * eigenvalues[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n_components=")  # one shard has three rows
@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
@pytest.mark.parametrize("split", ["by size", "by digit"])
def test_little_is_lost_with_truncation(shards, images, digits, spectrum, tracker, split):
    if split == "by digit":
        shards = [images[digits == digit] for digit in range(10)]
    summaries = [StreamingPCA(20, tracker=tracker).fit(shard).subspace_ for shard in shards]
    assert max(summary.rank for summary in summaries) == 45
    for fanout in (2, 3, 10):
        for order in (summaries, summaries[::-1]):
            merged = fedpca.merge_tree(order, 20, fanout=fanout)
            assert captured(merged.components, spectrum) >= 1 - 1e-4
