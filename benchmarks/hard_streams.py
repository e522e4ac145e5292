"""Streams that are hard for a one-pass PCA: flat, spiked, sorted, drifting, sparse, short; and real rows.

Each is a function of a seed that returns the rows in the order in which they arrive. Unless its name or entry
says otherwise a stream has 20,000 rows of 400 features, and 10 components are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Array, power_law, random_basis

ROWS, DIMENSION, RANK = 20_000, 400, 10


class Stream(NamedTuple):
    """A stream: rows of a seed, and the number of components wanted of them."""

    rows: Callable[[int], Array]
    rank: int = RANK


def noise(seed: int, n: int = ROWS, d: int = DIMENSION, sd: float = 1.0) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(seed)
    return rng, sd * rng.standard_normal((n, d))


def along(rng: np.random.Generator, rows: Array, sizes: Array, basis: Array | None = None) -> Array:
    """Add independent scores along orthonormal directions; sizes: of each row and direction, or direction."""
    basis = random_basis(sizes.shape[-1], rows.shape[1], rng) if basis is None else basis
    rows += (rng.standard_normal((len(rows), len(basis))) * sizes) @ basis
    return rows


# --- directions that come and go ---


def in_sequence(
    count: int, *, jitter: bool = False, n: int = ROWS, d: int = DIMENSION
) -> Callable[[int], Array]:
    """One direction after the other; with jitter, of different sizes and for different times."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, n, d, 0.2)
        ends = np.linspace(0, n, count + 1)[1:-1]
        sizes = np.full(count, 5.0)
        if jitter:
            ends, sizes = np.sort(rng.integers(0, n, count - 1)), rng.uniform(2.0, 8.0, count)
        active = np.searchsorted(ends, np.arange(n), side="right")
        return along(rng, rows, sizes * (active[:, None] == np.arange(count)))

    return make


def new_direction(size: float, d: int = DIMENSION) -> Callable[[int], Array]:
    """Nine strong directions, and from the middle a tenth of this size; noise of size 1."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, d=d)
        sizes = np.tile(np.r_[np.arange(28, 10, -2.0), size], (ROWS, 1))
        sizes[: ROWS // 2, -1] = 0
        return along(rng, rows, sizes)

    return make


def at_end(size: float, share: float, sd: float) -> Callable[[int], Array]:
    """Nine directions, and a tenth in the last rows only."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=sd)
        sizes = np.tile(np.r_[np.arange(10, 1, -1.0), size], (ROWS, 1))
        sizes[: round(ROWS * (1 - share)), -1] = 0
        return along(rng, rows, sizes)

    return make


def ramp(seed: int) -> Array:
    """Ten directions fade while ten others grow."""
    rng, rows = noise(seed, sd=0.3)
    rising = np.linspace(0, 2.0, ROWS)[:, None] * np.ones(RANK)
    return along(rng, rows, np.hstack([2.0 - rising, 1.2 * rising]))


def replaced(before: float, after: float, sd: float = 1.0) -> Callable[[int], Array]:
    """Ten directions give way to ten others half-way."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=sd)
        early = np.arange(ROWS)[:, None] < ROWS // 2
        return along(rng, rows, np.hstack([before * early * np.ones(RANK), after * ~early * np.ones(RANK)]))

    return make


def alternating(seed: int) -> Array:
    """Two sets of eight directions take turns, a thousand rows each."""
    rng, rows = noise(seed, sd=0.1)
    turn = (np.arange(ROWS) // 1000 % 2)[:, None] == np.repeat([0, 1], 8)
    return along(rng, rows, turn * np.r_[8:0:-1, 8:0:-1].astype(float))


def rotating(turns: float) -> Callable[[int], Array]:
    """Three directions that turn in planes of their own."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=0.1)
        basis = random_basis(6, DIMENSION, rng)
        angle = np.linspace(0, 2 * np.pi * turns, ROWS)[:, None]
        scores = rng.standard_normal((ROWS, 3)) * [3.0, 2.0, 1.0]
        return rows + (scores * np.cos(angle)) @ basis[:3] + (scores * np.sin(angle)) @ basis[3:]

    return make


def clusters(count: int, *, shuffled: bool = False) -> Callable[[int], Array]:
    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=0.5)
        label = np.arange(ROWS) * count // ROWS
        rows += (
            5
            * random_basis(min(count, DIMENSION), DIMENSION, rng)[
                rng.permutation(label) if shuffled else label
            ]
        )
        return rows

    return make


def swelling(seed: int) -> Array:
    """A power law whose rows grow tenfold."""
    return power_law(ROWS, DIMENSION, alpha=0.5, seed=seed) * np.linspace(1, 10, ROWS)[:, None]


# --- spectra ---


def power(alpha: float, n: int = ROWS, d: int = DIMENSION, dtype: str = "float64") -> Callable[[int], Array]:
    return lambda seed: power_law(n, d, alpha=alpha, seed=seed, dtype=dtype)


def spiked(size: float, count: int = RANK) -> Callable[[int], Array]:
    """So many directions of one size over noise of size 1."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed)
        return along(rng, rows, np.full(count, np.sqrt(size**2 - 1)))

    return make


def graded(decades: float, dtype: str) -> Callable[[int], Array]:
    """Sizes of directions from 1 down by so many decades over 20 directions, then no further."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=10.0**-decades)
        return along(rng, rows, np.logspace(0, -decades, 20)).astype(dtype)

    return make


def mixed_scales(seed: int) -> Array:
    """Features in units of very different size, otherwise alike."""
    rng, rows = noise(seed)
    return along(rng, rows, np.full(5, 3.0)) * 10.0 ** rng.uniform(-4, 4, DIMENSION)


def shifted(mean: float, trend: float = 0.0) -> Callable[[int], Array]:
    def make(seed: int) -> Array:
        rows = power_law(ROWS, DIMENSION, alpha=0.5, seed=seed)
        direction = np.random.default_rng(seed + 1).standard_normal(DIMENSION)
        return rows + (mean + trend * np.linspace(0, 1, ROWS)[:, None]) * direction

    return make


# --- heavy, rare, repeated, few ---


def heavy_rows(freedom: float) -> Callable[[int], Array]:
    def make(seed: int) -> Array:
        rows = power_law(ROWS, DIMENSION, alpha=0.5, seed=seed)
        return rows * np.random.default_rng(seed + 1).standard_t(freedom, size=(ROWS, 1))

    return make


def lognormal(seed: int) -> Array:
    return np.random.default_rng(seed).lognormal(0, 1.5, (ROWS, DIMENSION))


def rare(share: float, sd: float) -> Callable[[int], Array]:
    """Five directions, each in a small share of the rows only, of size 30, in noise."""

    def make(seed: int) -> Array:
        rng, rows = noise(seed, sd=sd)
        return along(rng, rows, 30.0 * (rng.random((ROWS, 5)) < share))

    return make


def copies(cyclic: bool) -> Callable[[int], Array]:
    """Forty rows, five hundred times each: one after the other, or in turn."""

    def make(seed: int) -> Array:
        rows = noise(seed, 40)[1]
        return np.tile(rows, (ROWS // 40, 1)) if cyclic else np.repeat(rows, ROWS // 40, axis=0)

    return make


def few(n: int, d: int) -> Callable[[int], Array]:
    return lambda seed: noise(seed, n, d)[1]


def zeros_first(seed: int) -> Array:
    rows = np.zeros((ROWS, DIMENSION))
    rows[-300:] = noise(seed, 300)[1]
    return rows


def text(seed: int, n: int = 4482, words: int = 2000, topics: int = 60) -> Array:
    """tf-idf of documents of Zipf words, each of one to three topics; unit length."""
    rng = np.random.default_rng(seed)
    usual = 1.0 / np.arange(1, words + 1)
    own = rng.gamma(0.05, size=(topics, words)) * usual
    own /= own.sum(axis=1, keepdims=True)
    counts = np.zeros((n, words))
    for row in counts:
        mixed = 0.5 * usual / usual.sum() + 0.5 * own[rng.integers(0, topics, rng.integers(1, 4))].mean(
            axis=0
        )
        np.add.at(row, rng.choice(words, size=rng.integers(40, 200), p=mixed / mixed.sum()), 1)
    rows = np.log1p(counts) * np.log(n / np.maximum((counts > 0).sum(axis=0), 1))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def one_hot(ordered: bool) -> Callable[[int], Array]:
    """One of 2000 categories per row, of Zipf frequencies."""

    def make(seed: int, n: int = 6000, d: int = 2000) -> Array:
        frequency = 1.0 / np.arange(1, d + 1)
        drawn = np.random.default_rng(seed).choice(d, size=n, p=frequency / frequency.sum())
        rows = np.zeros((n, d))
        rows[np.arange(n), np.sort(drawn) if ordered else drawn] = 1
        return rows

    return make


def sparse_entries(seed: int) -> Array:
    rng, rows = noise(seed, 6000, 1000)
    return rows * (rng.random(rows.shape) < 0.02)


def patches(seed: int, n: int = 8000, side: int = 24) -> Array:
    """Patches of each of the photographs that come with scikit-learn: the first component is most of them."""
    from sklearn.datasets import load_sample_images

    rng, found = np.random.default_rng(seed), []
    for image in load_sample_images().images:
        windows = np.lib.stride_tricks.sliding_window_view(image.mean(axis=2), (side, side))
        chosen = [rng.integers(0, size, n) for size in windows.shape[:2]]
        found.append(windows[chosen[0], chosen[1]].reshape(n, -1))
    return rng.permutation(np.concatenate(found))


def without_brightness(seed: int) -> Array:
    rows = patches(seed)
    return rows - rows.mean(axis=1, keepdims=True)


# --- real rows, from the folder FEDPCA_DATA ---


def real(name: str, *, ordered: bool = False, most: int = 10_000) -> Callable[[int], Array]:
    """Rows of a data set, shuffled by the seed, or sorted by class."""

    def make(seed: int) -> Array:
        rows, label = _loaded(name)
        order = np.random.default_rng(seed).permutation(len(rows))[:most]
        if ordered:
            order = order[np.argsort(label[order], kind="stable")]
        return rows[order]

    return make


def _loaded(name: str) -> tuple[Array, Array]:
    with np.load(Path(os.environ["FEDPCA_DATA"]) / f"{name}.npz") as file:
        if name == "hapmap_geno":
            rows = np.where(file["G"] < 0, 0, file["G"]).astype(float)
            return rows, file["population"]
        if name == "pbmc3k_counts":
            return _expressed(file), np.zeros(2700)
        return file["X"].astype(float), file["y"] if "y" in file else file["letter"]


def _expressed(file: np.lib.npyio.NpzFile) -> Array:
    """log1p of counts per ten thousand, of the 2000 genes that vary most."""
    from scipy import sparse

    counts = sparse.csr_array((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    scaled = sparse.diags_array(1e4 / counts.sum(axis=1)) @ counts.astype(float)
    rows = np.log1p(scaled.tocsc())
    variances = rows.power(2).mean(axis=0) - rows.mean(axis=0) ** 2
    return np.asarray(rows[:, np.argsort(variances)[-2000:]].toarray())


STREAMS: dict[str, Stream] = {
    "20 in sequence": Stream(in_sequence(20)),
    "20 in sequence, uneven": Stream(in_sequence(20, jitter=True)),
    "100 in sequence, d=784 r=50": Stream(in_sequence(100, n=10_000, d=784), 50),
    "new direction, size 8": Stream(new_direction(8.0)),
    "new direction, size 11": Stream(new_direction(11.0)),
    "new direction, d=1000": Stream(new_direction(11.0, 1000)),
    "late direction, strong": Stream(at_end(8.0, 0.03, 0.1)),
    "late direction, weak": Stream(at_end(4.0, 0.03, 0.5)),
    "ramp": Stream(ramp),
    "10 replaced by 10": Stream(replaced(2.0, 1.6)),
    "10 replaced by 10, no noise": Stream(replaced(1.6, 1.4, 0.2)),
    "alternating, r=16": Stream(alternating, 16),
    "rotating, quarter turn": Stream(rotating(0.25)),
    "rotating, 15 turns": Stream(rotating(15.0)),
    "15 clusters, sorted": Stream(clusters(15)),
    "100 clusters, sorted": Stream(clusters(100)),
    "100 clusters, shuffled": Stream(clusters(100, shuffled=True)),
    "swelling": Stream(swelling),
    "power .25": Stream(power(0.25)),
    "power .5": Stream(power(0.5)),
    "power 1": Stream(power(1.0)),
    "power 3": Stream(power(3.0)),
    "power 1, d=1000": Stream(power(1.0, d=1000)),
    "power .7, d=784 r=50": Stream(power(0.7, 10_000, 784), 50),
    "spiked 1.2": Stream(spiked(1.2)),
    "spiked 1.5": Stream(spiked(1.5)),
    "spiked 2": Stream(spiked(2.0)),
    "spiked 3": Stream(spiked(3.0)),
    "spiked 1.5, r=50": Stream(spiked(1.5, 50), 50),
    "isotropic": Stream(few(ROWS, DIMENSION)),
    "graded 1e-12": Stream(graded(12, "float64")),
    "graded 1e-6, float32": Stream(graded(6, "float32")),
    "mixed scales": Stream(mixed_scales),
    "mean 1e6": Stream(shifted(1e6)),
    "trending mean": Stream(shifted(0.0, 1e2)),
    "rows times t2": Stream(heavy_rows(2.0)),
    "rows times t1": Stream(heavy_rows(1.0)),
    "lognormal entries": Stream(lognormal),
    "rare directions": Stream(rare(1e-3, 0.1), 5),
    "rare directions, flat noise, r=5": Stream(rare(1e-4, 1.0), 5),
    "40 rows copied, in blocks": Stream(copies(False)),
    "40 rows copied, cyclic": Stream(copies(True)),
    "279 x 3000": Stream(few(279, 3000)),
    "500 x 1000": Stream(few(500, 1000)),
    "900 x 1000": Stream(few(900, 1000)),
    "zeros, then 300 rows": Stream(zeros_first),
    "tf-idf, r=20": Stream(text, 20),
    "one-hot, r=20": Stream(one_hot(False), 20),
    "one-hot sorted, r=20": Stream(one_hot(True), 20),
    "sparse 2 %, r=5": Stream(sparse_entries, 5),
    "photographs, r=20": Stream(patches, 20),
    "photographs less their mean, r=20": Stream(without_brightness, 20),
}

REAL: dict[str, Stream] = {
    "MNIST, r=20": Stream(real("mnist_test"), 20),
    "MNIST by class, r=20": Stream(real("mnist_test", ordered=True), 20),
    "MNIST, r=50": Stream(real("mnist_test"), 50),
    "isolet, r=20": Stream(real("isolet1"), 20),
    "hapmap": Stream(real("hapmap_geno")),
    "pbmc3k, r=20": Stream(real("pbmc3k_counts"), 20),
}
