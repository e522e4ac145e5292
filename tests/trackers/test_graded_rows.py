"""Rows whose directions differ in size by many orders of magnitude, against NumPy's singular values."""

import numpy as np
import pytest
from helpers import power_law
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca import Moments, StreamingPCA, merge
from fedpca.summaries.algebra import directions_of_features
from fedpca.summaries.linalg import count_eigenvalues_above, is_positive_definite
from fedpca.summaries.rank import EnergyBand, FixedRank, VarianceShare
from fedpca.trackers import Exact

TRACKERS = ("exact", "nystrom", "block")
RESOLUTION = {np.float64: 2e-13, np.float32: 1e-6}  # singular values, in units of the length of all rows


def offline(rows):
    """Singular values of the centered rows in float64, and which of them rounding of the rows leaves."""
    wide = rows.astype(np.float64)
    deviations = wide - wide.mean(axis=0)
    deviations -= deviations.mean(axis=0)
    values = np.linalg.svd(deviations, compute_uv=False)
    return values, values > RESOLUTION[rows.dtype.type] * np.linalg.norm(wide)


def fit_in_batches(rows, sizes, n_components=None, **settings):
    pca, start, turn = StreamingPCA(n_components, **settings), 0, 0
    while start < len(rows):
        pca.partial_fit(rows[start : start + sizes[turn % len(sizes)]])
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    return pca


def assert_as_offline(pca, rows, rtol=1e-2):
    values, resolved = offline(rows)
    wanted = np.flatnonzero(resolved)[: pca.n_components]
    assert pca.n_components_ >= len(wanted)
    assert np.allclose(pca.singular_values_[: len(wanted)], values[wanted], rtol=rtol, atol=0)
    variances = pca.transform(rows.astype(np.float64)).var(axis=0) * len(rows)
    small = np.finfo(rows.dtype).eps * np.linalg.norm(rows)  # rounding of the components, times the rows
    found = np.sqrt(variances[: len(wanted)])
    assert np.allclose(found, values[wanted], rtol=2 * rtol, atol=20 * small)


def rotation(rng, n_features):
    return np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]


@st.composite
def graded_rows(draw):
    """Few to many rows of mixed scales or a steep spectrum, about means far or near, of either dtype."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    n_rows, n_features = draw(st.sampled_from([1, 2, 20, 90, 400])), draw(st.integers(1, 8))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    reach = 12 if dtype == np.float64 else 6
    scale = 10.0 ** rng.uniform(-reach, reach, n_features)
    rows = rng.normal(size=(n_rows, n_features))
    match draw(st.sampled_from(["scales", "correlated scales", "spectrum", "ordinary"])):
        case "scales":
            rows = rows * scale
        case "correlated scales":
            rows = rows @ rng.normal(size=(n_features, n_features)) * scale
        case "spectrum":
            rows = rows * np.logspace(0, -reach, n_features) @ rotation(rng, n_features)
    mean = draw(st.sampled_from([0.0, 1.0, 1e3, 1e6])) * rng.normal(size=n_features)
    rows = rows + mean * np.abs(rows).mean(axis=0)
    return rows.astype(dtype)


@settings(max_examples=150)
@given(
    rows=graded_rows(),
    sizes=st.lists(st.sampled_from([1, 7, 31, 32, 100, 1000]), min_size=1, max_size=3),
    tracker=st.sampled_from(TRACKERS),
)
def test_every_direction_that_numpy_finds_is_found(rows, sizes, tracker):
    assert_as_offline(fit_in_batches(rows, sizes, tracker=tracker), rows)


@settings(max_examples=60)
@given(rows=graded_rows(), n_components=st.integers(1, 8))
def test_the_first_of_them_are_found_when_few_are_wanted(rows, n_components):
    n_components = min(n_components, rows.shape[1])
    assert_as_offline(fit_in_batches(rows, [50], n_components), rows)


@pytest.mark.parametrize("scale", [1e4, 1e8, 1e12])
def test_a_column_in_small_units_hides_no_other(scale, rng):
    rows = rng.normal(size=(5000, 6))
    rows[:, 0] *= scale
    assert StreamingPCA(3).fit(rows).transform(rows).shape == (5000, 3)
    pca = StreamingPCA().fit(rows)
    assert np.allclose(pca.singular_values_, offline(rows)[0], rtol=1e-3, atol=0)
    assert np.allclose(pca.inverse_transform(pca.transform(rows)), rows, atol=1e-14 * scale)
    assert np.allclose(
        Moments.from_rows(rows).subspace().singular_values, offline(rows)[0], rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("smallest", [1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_steep_float32_spectrum_is_found_whole(smallest, mean, rng):
    spread = np.geomspace(1, smallest, 100)
    rows = (rng.normal(size=(5000, 100)) * spread @ rotation(rng, 100)).astype(np.float32)
    rows += np.float32(0.2 * mean)
    pca = fit_in_batches(rows, [500])
    assert pca.n_components_ == 100
    assert np.allclose(pca.singular_values_, offline(rows)[0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [1, 32, 50])
def test_the_first_rows_span_too_little_to_settle_on_float32(size, rng):
    """Thirty rows of a steep spectrum look flat: they hide what is below the rounding of their products."""
    spread = np.geomspace(1, 2e-6, 160)
    rows = (rng.normal(size=(640, 160)) * spread @ rotation(rng, 160)).astype(np.float32)
    pca = fit_in_batches(rows, [size])
    assert np.allclose(pca.singular_values_, offline(rows)[0], rtol=1e-2, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_rows_span_too_little_to_settle_on_products(seed):
    rng = np.random.default_rng(seed)
    spread = np.concatenate([np.geomspace(1, 1e-4, 31), np.geomspace(1e-8, 1e-12, 69)])
    rows = rng.normal(size=(200, 100)) * spread @ rotation(rng, 100)
    pca = fit_in_batches(rows, [32])
    assert np.allclose(pca.singular_values_, offline(rows)[0], rtol=1e-3, atol=0)


def test_a_spectrum_down_to_1e_12_is_found_whole(rng):
    rows = rng.normal(size=(3000, 60)) * np.geomspace(1, 1e-12, 60) @ rotation(rng, 60)
    pca = fit_in_batches(rows, [500])
    assert np.allclose(pca.singular_values_, offline(rows)[0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_jump_of_the_mean_hides_no_direction(tracker, rng):
    rows = rng.normal(size=(3000, 300)) * np.where(np.arange(300) < 3, 5, 0.1) @ rotation(rng, 300)
    rows[1500:] += 1e8 * rng.normal(size=300)
    pca = fit_in_batches(rows, [500], 3, tracker=tracker)
    assert np.allclose(pca.singular_values_, offline(rows)[0][:3], rtol=1e-4, atol=0)


def test_graded_streams_merge_without_loss(rng):
    rows = rng.normal(size=(3000, 40)) * np.geomspace(1, 1e-10, 40) @ rotation(rng, 40)
    parts = [StreamingPCA().fit(part) for part in np.array_split(rows, 3)]
    expected = offline(rows)[0]
    together = merge([part.summary_ for part in parts])
    assert np.allclose(together.singular_values, expected, rtol=1e-3, atol=0)
    others = StreamingPCA().fit(rows[:1000]).merge(*parts[1:])
    assert np.allclose(others.singular_values_, expected, rtol=1e-3, atol=0)
    ordinary = StreamingPCA().fit(power_law(rng, 500, 40))
    assert ordinary.merge(*parts).n_components_ == 40


def test_an_ordinary_stream_takes_the_fast_way_again(rng):
    """Rows that do not vary yet, then ordinary ones."""
    rows = power_law(rng, 4000, 12)
    tracker = Exact(12, FixedRank(12))
    for part in (rows[:40, :1] * np.ones(12), *np.array_split(rows, 8)):
        tracker.update(part)
    assert tracker._factor is None
    values, _ = offline(np.concatenate([rows[:40, :1] * np.ones(12), rows]))
    assert np.allclose(tracker.summary().singular_values, values, rtol=1e-9, atol=0)


@pytest.mark.parametrize("n_rows", [2, 20, 31])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_buffered_rows_far_from_the_origin_lose_no_digits(n_rows, dtype, rng):
    far = 1e3 if dtype == np.float32 else 1e9
    rows = (rng.normal(size=(n_rows, 5)) + far).astype(dtype)
    pca = fit_in_batches(rows, [1])
    values, _ = offline(rows)
    assert np.allclose(pca.singular_values_, values[: min(n_rows - 1, 5)], rtol=1e-4)
    assert pca.subspace_.total == pytest.approx(values @ values, rel=1e-4)


def test_weights_and_forgetting_of_graded_rows(rng):
    rows = rng.normal(size=(400, 10)) * np.geomspace(1, 1e-10, 10) @ rotation(rng, 10)
    weights = rng.integers(0, 4, 400)
    weighted = StreamingPCA().partial_fit(rows, sample_weight=weights)
    repeated = np.repeat(rows, weights, axis=0)
    assert np.allclose(weighted.singular_values_, offline(repeated)[0], rtol=1e-3)
    fading = StreamingPCA(forget=0.5, center=False)
    for part in np.array_split(rows, 4):
        fading.partial_fit(part)
    faded = np.concatenate([part * 0.5 ** (3 - i) for i, part in enumerate(np.array_split(rows, 4))])
    assert np.allclose(fading.singular_values_, np.linalg.svd(faded, compute_uv=False), rtol=1e-3)


def test_a_rule_that_wants_no_weak_direction_needs_no_test():
    assert VarianceShare(0.9).n_weak(100, 1e-4) == 0
    assert VarianceShare(0.9999).n_weak(100, 1e-4) == 100
    assert EnergyBand(0.01, 0.1).n_weak(100, 1e-7) == 0
    assert EnergyBand(0.0, 0.1).n_weak(100, 1e-7) == 11
    assert FixedRank(7).n_weak(100, 1e-7) == 7


@given(seed=st.integers(0, 1000), size=st.integers(1, 12))
def test_eigenvalues_above_a_threshold_are_counted(seed, size):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size))
    matrix = matrix + matrix.T
    eigenvalues = np.linalg.eigvalsh(matrix)
    for threshold in (*((eigenvalues[1:] + eigenvalues[:-1]) / 2), -100.0, 100.0):
        assert count_eigenvalues_above(matrix, threshold) == np.count_nonzero(eigenvalues > threshold)
    assert is_positive_definite(matrix - (eigenvalues[0] - 1e-3) * np.eye(size))
    assert not is_positive_definite(matrix - (eigenvalues[0] + 1e-3) * np.eye(size))


def test_a_scatter_with_noise_has_no_more_directions_for_its_scales(rng):
    """A private scatter is indefinite: features of small scale are below its noise."""
    noise = rng.normal(size=(20, 20))
    scatter = np.diag(np.geomspace(1e12, 1, 20)) + 10 * (noise + noise.T)
    _, singular_values = directions_of_features(scatter)
    assert len(singular_values) == np.count_nonzero(np.linalg.eigvalsh(scatter) > 1e-2)


def test_float32_moments_are_those_of_rows(rng):
    """Products in float32 round eigenvalues that nobody asked for below zero."""
    for mean in (0.0, 1.0, 3.0):
        rows = (rng.normal(size=(3000, 100)) * np.geomspace(1, 1e-6, 100) @ rotation(rng, 100)) + mean * 0.1
        pca = fit_in_batches(rows.astype(np.float32), [1000], 2)
        assert isinstance(pca.summary_, Moments)
        assert np.linalg.eigvalsh(pca.summary_.scatter)[0] > -1e-9 * pca.summary_.total
        assert pca.summary_.total == pytest.approx(pca.subspace_.total, rel=1e-5)
