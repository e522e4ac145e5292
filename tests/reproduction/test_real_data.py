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
@pytest.mark.long
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


@pytest.fixture(scope="module")
def owners(images, digits):
    """Ten owners that are alike, and ten with shares of every digit from Dirichlet(0.5)."""
    rng = np.random.default_rng(0)
    unlike = [[] for _ in range(10)]
    for digit in range(10):
        own = rng.permutation(np.flatnonzero(digits == digit))
        stops = (np.cumsum(rng.dirichlet(np.full(10, 0.5)))[:-1] * len(own)).astype(int)
        for owner, part in zip(unlike, np.split(own, stops), strict=True):
            owner.append(part)
    alike = np.array_split(rng.permutation(len(images)), 10)
    return {"alike": alike, "unlike": [np.concatenate(parts) for parts in unlike]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alike", "unlike"])
@pytest.mark.long
def test_a_warning_of_the_one_owner_who_lies(images, owners, kind):
    tables = {f"{i}": images[own] for i, own in enumerate(owners[kind])}
    summaries = {name: Subspace.from_rows(rows, 40) for name, rows in tables.items()}
    rng = np.random.default_rng(1)
    rows = tables["4"]
    spike = rng.normal(size=(len(rows), 1)) * rng.choice([-1.0, 1.0], size=784) / 28
    spike *= np.sqrt(np.sum((rows - rows.mean(axis=0)) ** 2) / np.sum(spike**2))
    lies = {
        "spike": rows + spike,
        "far mean": rows + 3 * np.sqrt(np.mean(rows**2)) * spike[0] / abs(spike[0]),
    }
    for rank in (5, 10, 20):
        assert warned(summaries, rank) == []
        for lie in lies.values():
            assert warned(summaries | {"4": Subspace.from_rows(lie, 40)}, rank) == ["4"]


def warned(summaries, rank):
    aggregator = fedpca.Aggregator(rank)
    for name, summary in summaries.items():
        aggregator.receive(name, 1, summary)
    aggregator.record()
    names = [name for name, one in aggregator.influence().items() if one.suspicious]
    assert all(repr(name) in aggregator.history[-1].warning for name in names)
    assert names or not aggregator.history[-1].warning
    return names
