"""Fits that a team of threads shares: the same bits with any number, right, checked, and all or nothing."""

import os
import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import ThreadpoolController

from fedpca import EnergyBand, FederatedPCA, StreamingPCA, fit_files, metrics, parallel
from fedpca.readers import open_rows

pytestmark = pytest.mark.slow  # all of it together

BLAS = ThreadpoolController().select(user_api="blas")
MB = 2**20


@pytest.fixture(autouse=True)
def many_helpers(monkeypatch):
    """As many threads as asked for, whatever the machine has."""
    with ThreadPoolExecutor(15) as pool:
        monkeypatch.setattr(parallel, "_pool", lambda: pool)
        yield


def make_rows(n_rows=20_000, n_features=800, exponent=1.0, dtype=np.float32):
    """By default 64 MB, of which the tracker keeps the first half: the rest are panels in several parts."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n_rows, n_features), np.float32)
    rows /= np.arange(1, n_features + 1, dtype=np.float32) ** np.float32(exponent)
    return (rows + rng.standard_normal(n_features, np.float32)).astype(dtype)


def few_features(dtype=np.float64):
    return make_rows(60_000, 40, dtype=dtype)


def drifting():
    """Directions change halfway; some rows are far larger."""
    rows = make_rows()
    rows[15_000:] = rows[15_000:, ::-1]
    rows[::700] *= 30
    return rows


def sparse_rows():
    rows = make_rows(12_000, 800)
    return sparse.csr_array(np.where(np.random.default_rng(1).uniform(size=rows.shape) < 0.1, rows, 0))


CASES = {
    "nystrom": ({}, make_rows),
    "nystrom-float64": ({}, lambda: make_rows(12_000, dtype=np.float64)),
    "drifting": ({}, drifting),
    "flat": ({}, lambda: make_rows(exponent=0.25)),
    "exact": ({}, few_features),
    "exact-float32": ({}, lambda: few_features(np.float32)),
    "exact-share": ({"n_components": 0.9}, few_features),
    "exact-tiles": ({"tracker": "exact"}, lambda: make_rows(5000, 1100)),
    "uncentered": ({"center": False}, make_rows),
    "far": ({}, lambda: make_rows() + np.float32(100)),
    "std": ({"scale": "std"}, few_features),
    "std-nystrom": ({"scale": "std", "oversample": 100}, lambda: make_rows(12_000, 300)),
    "sparse": ({}, sparse_rows),
    "columns": ({}, lambda: np.asfortranarray(make_rows())),
    "forget": ({"forget": 0.99}, make_rows),
    "energy": ({"n_components": None, "energy": EnergyBand(0.02, 0.1)}, make_rows),
}


def pca_of(case, jobs):
    return StreamingPCA(**({"n_components": 5} | CASES[case][0]), n_jobs=jobs)


def state(pca):
    return pca.components_, pca.singular_values_, pca.mean_, pca.subspace_


def assert_same_bits(first, *others):
    for other in others:
        *arrays, subspace = state(first)
        *theirs, their_subspace = state(other)
        assert subspace == their_subspace
        for ours, their in zip(arrays, theirs, strict=True):
            assert np.array_equal(ours, their)


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_threads_gives_the_same_bits(case):
    rows = CASES[case][1]()
    models = [pca_of(case, jobs).fit(rows) for jobs in (1, 2, 3, 16)]
    assert_same_bits(*models)
    assert models[0].n_samples_seen_ == rows.shape[0]


@pytest.mark.parametrize("case", ["nystrom", "drifting", "exact"])
def test_batches_have_the_same_bits_with_any_number_of_threads(case):
    rows, models = CASES[case][1](), []
    for jobs in (1, 2, 16):
        pca = pca_of(case, jobs)
        for batch in np.array_split(rows, 3):
            pca = pca.partial_fit(batch)
        models.append(pca)
    assert_same_bits(*models)


@pytest.mark.parametrize("case", ["nystrom", "exact-share", "exact-tiles"])
def test_neither_threads_of_blas_nor_other_fits_change_a_bit(case):
    rows = CASES[case][1]()
    expected = pca_of(case, 1).fit(rows)
    for limit in (1, 2):
        with BLAS.limit(limits=limit):
            assert_same_bits(expected, pca_of(case, None).fit(rows))
    with BLAS.limit(limits=2), ThreadPoolExecutor(3) as pool:
        models = list(pool.map(lambda jobs: pca_of(case, jobs).fit(rows), (1, 2, 3)))
        found = list(pool.map(state, models))
        assert {library["num_threads"] for library in BLAS.info()} == {2}
    for *arrays, subspace in found:
        *wanted, wanted_subspace = state(expected)
        assert subspace == wanted_subspace
        assert all(np.array_equal(*pair) for pair in zip(arrays, wanted, strict=True))


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("forget", "energy")])
def test_a_fit_agrees_with_numpy(case):
    rows = CASES[case][1]()
    pca = pca_of(case, 2).fit(rows)
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float64)
    deviations = dense - (dense.mean(axis=0) if pca.center else 0)
    deviations = deviations / (1 if pca.scale_ is None else pca.scale_)
    scatter, shown = deviations.T @ deviations, pca.n_components_
    squares = np.linalg.eigvalsh(scatter)[::-1][:shown]
    components = np.linalg.qr(pca.components_.T.astype(np.float64))[0].T
    shortfall = 1 - np.trace(components @ scatter @ components.T) / squares.sum()
    is_flat = case in ("std-nystrom", "sparse", "flat")  # directions differ little
    assert shortfall < (0.03 if is_flat else 1e-5 if case == "drifting" else 1e-6)
    late = 0.01  # what was discarded before a direction was found is an estimate
    tolerance = 0.15 if is_flat else late if case == "drifting" else 2e-3
    assert np.allclose(pca.singular_values_**2, squares, rtol=tolerance)
    if pca.center:
        assert np.allclose(pca.mean_, dense.mean(axis=0), atol=1e-4)
    assert pca.subspace_.total == pytest.approx(float(np.trace(scatter)), rel=1e-5)


@pytest.mark.parametrize("case", ["nystrom", "exact"])
def test_weights_count_as_repetitions(case):
    rows = CASES[case][1]()
    weights = np.random.default_rng(3).integers(0, 3, len(rows)).astype(float)
    models = [pca_of(case, jobs).fit(rows, sample_weight=weights) for jobs in (1, 3)]
    assert_same_bits(*models)
    repeated = np.repeat(rows, weights.astype(int), axis=0)
    assert metrics.captured_variance(models[0], repeated) > 1 - 1e-6
    assert models[0].subspace_.count == pytest.approx(weights.sum(), rel=1e-6)


def test_clients_have_the_same_bits_with_any_number_of_threads():
    clients = {str(i): part for i, part in enumerate(np.array_split(make_rows(30_000), 3))}
    models = [FederatedPCA(5, n_jobs=jobs).fit_clients(clients) for jobs in (1, 2, 3, 16)]
    assert_same_bits(*models)


@pytest.mark.parametrize("name", ["rows.npy", "rows.parquet"])
def test_files_have_the_same_bits_with_any_number_of_threads(name, tmp_path):
    rows = make_rows()
    if name.endswith("npy"):
        np.save(tmp_path / name, rows)
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({f"f{j}": rows[:, j] for j in range(rows.shape[1])})
        parquet.write_table(table, tmp_path / name, row_group_size=5000)
    models = []
    for jobs in (1, 2, 16):
        models.append(StreamingPCA(5, n_jobs=jobs))
        assert fit_files(models[-1], open_rows(tmp_path / name)) == len(rows)
    assert_same_bits(*models)
    assert metrics.captured_variance(models[0], rows) > 1 - 1e-6


# --- memory ---


@pytest.mark.parametrize("case", ["nystrom", "far", "exact", "exact-tiles"])
def test_memory_beside_the_rows_does_not_grow_with_them(case):
    """The first rows, the products of all parts, and copies of rows that must be moved."""
    peaks = []
    for n_copies in (1, 3):
        rows = np.concatenate([CASES[case][1]()] * n_copies)
        pca = pca_of(case, 2)
        tracemalloc.start()
        pca.fit(rows)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 32 * MB
    assert peaks[1] < 128 * MB


# --- rows that are not finite are found while they are multiplied ---


@pytest.mark.parametrize("case", ["nystrom", "exact"])
@pytest.mark.parametrize("place", [3, 0.6, 0.999])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e25])
def test_an_error_leaves_the_estimator_as_it_was(case, place, n_jobs, bad):
    rows = make_rows() if case == "nystrom" else few_features(np.float32)
    pca = StreamingPCA(5, n_jobs=n_jobs).fit(rows)
    before, components = dict(vars(pca)), pca.components_.copy()
    broken = rows.copy()
    broken[int(place * len(rows)) if place < 1 else place, 3] = bad
    for learn in (pca.fit, pca.partial_fit):
        with pytest.raises(ValueError, match=r"infinity|too large"):
            learn(broken)
        assert vars(pca) == before
        assert np.array_equal(pca.components_, components)
    unfitted = StreamingPCA(5, n_jobs=n_jobs)
    with pytest.raises(ValueError, match=r"infinity|too large"):
        unfitted.fit(broken)
    assert vars(unfitted) == vars(StreamingPCA(5, n_jobs=n_jobs))


@pytest.mark.parametrize("case", ["nystrom", "exact"])
@pytest.mark.parametrize("place", [3, 0.6, 0.999])
def test_late_gaps_are_imputed_as_early_ones_are(case, place):
    rows = make_rows() if case == "nystrom" else few_features(np.float32)
    gappy = rows.copy()
    gappy[int(place * len(rows)) if place < 1 else place, 3] = np.nan
    whole = [StreamingPCA(5, n_jobs=jobs).fit(gappy) for jobs in (1, 3)]
    assert_same_bits(*whole)
    assert metrics.captured_variance(whole[0], rows) > 1 - 1e-6
    batches = StreamingPCA(5)
    for batch in np.array_split(gappy, 2):
        batches.partial_fit(batch)
    assert metrics.captured_variance(batches, rows) > 1 - 1e-6
    assert whole[0].n_samples_seen_ == batches.n_samples_seen_ == whole[0].subspace_.count == len(rows)


def test_an_interrupt_ends_all_threads_and_rolls_back():
    rows, pca = make_rows(100_000), StreamingPCA(5, n_jobs=2)
    before = dict(vars(pca))

    # Shells make background processes ignore the signal, such as a run of all tests in the background.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()  # in the midst of the first fit
    try:
        with pytest.raises(KeyboardInterrupt):
            pca.fit(rows)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert vars(pca) == before
    with parallel.thread_team(2):
        assert parallel.map_parts(lambda i: time.sleep(0.01) or i, range(4)) == list(range(4))


def test_a_fit_that_follows_another_has_the_same_bits():
    rows = few_features()
    for settings in ({}, {"scale": "std"}):
        pca = StreamingPCA(5, **settings, n_jobs=2).fit(rows)
        first = pca.subspace_
        assert pca.fit(rows).subspace_ == first
