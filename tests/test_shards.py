"""A fit in shards: the same with any number of threads, as good as one stream, and all or nothing."""

import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import ThreadpoolController

from fedpca import FederatedPCA, StreamingPCA, fit_files, metrics
from fedpca.backend.ops import even_cuts
from fedpca.backend.threads import available_cores, map_in_threads, n_threads
from fedpca.estimators import row_updates, shards
from fedpca.readers import open_rows
from fedpca.trackers import Nystrom
from fedpca.trackers.nystrom import tuning
from reproduction.baselines import Grouse

pytestmark = pytest.mark.slow  # all of it together

BLAS = ThreadpoolController().select(user_api="blas")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of about a thousand rows, so that small tables have several, and hardly any rows are kept."""
    few_kept = replace(tuning.TUNING, kept_bytes=2**18)
    monkeypatch.setattr("fedpca.trackers.nystrom.tracker.TUNING", few_kept)
    monkeypatch.setattr(shards, "_ENTRIES", 150_000)
    monkeypatch.setattr(shards, "_ROWS_PER_DIRECTION", 10)
    monkeypatch.setattr(shards, "_ROWS_PER_EXACT_FEATURE", 1)


def one_stream(monkeypatch):
    monkeypatch.setattr(shards, "MAX_SHARDS", 1)


def make_rows(n_rows=4000, n_features=260, exponent=1.0, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) / np.arange(1, n_features + 1) ** exponent
    return (rows + rng.normal(size=n_features)).astype(dtype)


def equal_bits(first, second):
    ours, theirs = first.subspace_, second.subspace_
    return all(
        np.array_equal(getattr(ours, name), getattr(theirs, name))
        for name in ("components", "singular_values", "mean", "count", "total")
    )


@pytest.fixture
def n_streams(monkeypatch):
    """How many trackers learned from rows of the last fit."""
    seen = []
    learned = shards._learned

    def spy(*arguments):
        seen.append(threading.current_thread())
        return learned(*arguments)

    monkeypatch.setattr(shards, "_learned", spy)
    return seen


def sparse_rows():
    kept = np.random.default_rng(1).uniform(size=(4000, 260)) < 0.3
    return sparse.csr_array(np.where(kept, make_rows(), 0))


def few_features(dtype=np.float64):
    return make_rows(20_000, 30, dtype=dtype)


CASES = {
    "nystrom": ({}, make_rows),
    "nystrom-float32": ({}, partial(make_rows, dtype=np.float32)),
    "exact": ({}, few_features),
    "exact-float32": ({}, partial(few_features, np.float32)),
    "exact-share": ({"n_components": 0.9}, few_features),
    "uncentered": ({"center": False}, make_rows),
    "std": ({"scale": "std"}, few_features),
    "std-nystrom": ({"scale": "std", "oversample": 100}, make_rows),
    "numbers": ({"scale": [1.0] * 259 + [2.0]}, make_rows),
    "seed": ({"random_state": 7}, make_rows),
    "sparse": ({}, sparse_rows),
    "columns": ({}, lambda: np.asfortranarray(make_rows())),
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_threads_gives_the_same_bits(case, n_streams):
    settings, make = CASES[case]
    rows = make()
    models = [StreamingPCA(**({"n_components": 5} | settings), n_jobs=jobs).fit(rows) for jobs in (1, 2, 3)]
    assert len(n_streams) > 3, "the rows were not cut"
    assert equal_bits(models[0], models[1])
    assert equal_bits(models[0], models[2])
    assert models[0].n_samples_seen_ == rows.shape[0] == models[0].subspace_.count


@pytest.mark.parametrize("case", CASES)
def test_shards_agree_with_numpy(case, monkeypatch):
    settings, make = CASES[case]
    rows = make()
    pca = StreamingPCA(**({"n_components": 5} | settings), n_jobs=2).fit(rows)
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float64)
    deviations = dense - (dense.mean(axis=0) if pca.center else 0)
    deviations = deviations / (1 if pca.scale_ is None else pca.scale_)
    scatter, shown = deviations.T @ deviations, pca.n_components_
    squares = np.linalg.eigvalsh(scatter)[::-1][:shown]

    def shortfall(components):
        components = np.linalg.qr(components.T.astype(np.float64))[0].T
        return 1 - np.trace(components @ scatter @ components.T) / squares.sum()

    one_stream(monkeypatch)
    alone = StreamingPCA(**({"n_components": 5} | settings)).fit(rows)
    assert shortfall(pca.components_) < 3 * shortfall(alone.components_) + 1e-6
    is_flat = case in ("std-nystrom", "sparse")  # where directions differ little, variances come out short
    assert np.allclose(pca.singular_values_**2, squares, rtol=0.15 if is_flat else 2e-3)
    if pca.center:
        assert np.allclose(pca.mean_, dense.mean(axis=0), atol=1e-5)
    assert pca.subspace_.total == pytest.approx(float(np.trace(scatter)), rel=1e-5)


def test_weights_count_as_repetitions(n_streams):
    rows = make_rows()
    weights = np.random.default_rng(3).integers(0, 3, len(rows)).astype(float)
    models = [StreamingPCA(5, n_jobs=jobs).fit(rows, sample_weight=weights) for jobs in (1, 3)]
    assert n_streams
    assert equal_bits(*models)
    repeated = np.repeat(rows, weights.astype(int), axis=0)
    assert metrics.captured_variance(models[0], repeated) > 1 - 1e-5
    assert models[0].subspace_.count == weights.sum()


def test_a_shard_without_any_weight_adds_nothing():
    rows, weights = make_rows(), np.ones(4000)
    weights[:2000] = 0
    pca = StreamingPCA(5, n_jobs=2).fit(rows, sample_weight=weights)
    assert np.allclose(pca.mean_, rows[2000:].mean(axis=0))
    assert metrics.captured_variance(pca, rows[2000:]) > 1 - 1e-5


@pytest.mark.parametrize("n_features", [30, 260])
def test_gaps_are_imputed_in_shards(n_features, n_streams, monkeypatch):
    rows = make_rows(5000 if n_features == 260 else 20_000, n_features)
    gappy = np.where(np.random.default_rng(1).uniform(size=rows.shape) < 0.1, np.nan, rows)
    models = [StreamingPCA(5, n_jobs=jobs).fit(gappy) for jobs in (1, 2)]
    assert len(n_streams) > 2
    assert equal_bits(*models)
    assert models[0].subspace_.observed is None
    one_stream(monkeypatch)
    alone = StreamingPCA(5).fit(gappy)
    short = [1 - metrics.captured_variance(pca, rows) for pca in (models[0], alone)]
    assert short[0] < 2 * short[1] + 1e-5


def test_a_feature_unknown_to_a_shard_makes_one_stream(monkeypatch):
    rows = make_rows()
    rows[:3000, 7] = np.nan
    sharded = StreamingPCA(5, n_jobs=2).fit(rows)
    one_stream(monkeypatch)
    assert equal_bits(sharded, StreamingPCA(5).fit(rows))


@pytest.mark.parametrize(
    "settings",
    [{"forget": 0.9}, {"energy": (0.01, 0.1)}, {"tracker": "block"}, {"tracker": Grouse}],
    ids=str,
)
def test_what_depends_on_the_order_of_rows_is_one_stream(settings, n_streams):
    StreamingPCA(3 if "energy" not in settings else None, **settings, n_jobs=2).fit(make_rows())
    assert not n_streams


def test_small_tables_are_one_stream(n_streams, monkeypatch):
    monkeypatch.undo()
    assert len(even_cuts(10, 1)) == 1
    for n_rows, n_features in ((10_000, 1000), (100_000, 100), (1, 5)):
        assert shards.n_shards(Nystrom, shards.FixedRank(5), "auto", (n_rows, n_features)) == 1


def test_cuts_depend_on_the_table_alone():
    numbers = {shards.n_shards(Nystrom, shards.FixedRank(10), "auto", (120_000, 1000)) for _ in range(3)}
    assert numbers == {64}
    assert [cut.stop - cut.start for cut in even_cuts(11, 4)] == [2, 3, 3, 3]


# --- as good as one stream ---


def streams():
    rng = np.random.default_rng(0)
    n, d = 8000, 260
    falling = 1 / np.arange(1, d + 1)
    noise = rng.normal(size=(n, d))
    time_of = np.linspace(0, 1, n)[:, None]
    classes = np.arange(n) * 8 // n
    return {
        "power law": noise * falling,
        "flat": noise * falling**0.25,
        "spiked": noise * np.where(np.arange(d) < 5, 3.0, 1.0),
        "drifting": noise * ((1 - time_of) * falling + time_of * falling[::-1]),
        "sorted": noise * falling[(np.arange(d) + 31 * classes[:, None]) % d]
        + rng.normal(size=(8, d))[classes],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["power law", "flat", "spiked", "drifting", "sorted"])
def test_shards_capture_as_much_as_one_stream(name, monkeypatch):
    rows = streams()[name]
    monkeypatch.setattr(shards, "MAX_SHARDS", 4)
    sharded = 1 - metrics.captured_variance(StreamingPCA(5, n_jobs=2).fit(rows), rows)
    one_stream(monkeypatch)
    alone = 1 - metrics.captured_variance(StreamingPCA(5).fit(rows), rows)
    assert sharded < 3 * alone + 1e-6


# --- errors and interrupts ---


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("bad", [np.inf, 1e200])
def test_an_error_in_a_shard_leaves_the_estimator_as_it_was(bad, n_jobs):
    rows = make_rows()
    pca = StreamingPCA(5, n_jobs=n_jobs).fit(rows)
    before, components = dict(vars(pca)), pca.components_.copy()
    broken = rows.copy()
    broken[3500, 3] = bad
    with pytest.raises(ValueError, match=r"infinity|too large"):
        pca.fit(broken)
    assert vars(pca) == before
    assert np.array_equal(pca.components_, components)
    unfitted = StreamingPCA(5, n_jobs=n_jobs)
    with pytest.raises(ValueError, match=r"infinity|too large"):
        unfitted.fit(broken)
    assert not hasattr(unfitted, "components_")
    assert vars(unfitted) == vars(StreamingPCA(5, n_jobs=n_jobs))


def test_of_several_errors_the_first_is_raised():
    def task(number, check):
        time.sleep(0.02 * (4 - number))
        raise ValueError(f"item {number}")

    for _ in range(3):
        with pytest.raises(ValueError, match="item 0"):
            map_in_threads(task, range(4), 4)


def test_an_error_ends_the_tasks_that_follow():
    ended = threading.Event()

    def task(number, check):
        if not number:
            raise ValueError("item 0")
        while not ended.wait(0.001):
            check()

    with pytest.raises(ValueError, match="item 0"):
        map_in_threads(task, range(3), 2)


def test_an_interrupt_ends_all_threads_and_rolls_back(monkeypatch):
    rows, pca = make_rows(12_000), StreamingPCA(5, n_jobs=2)
    before, threads = dict(vars(pca)), set(threading.enumerate())
    update = row_updates.RowUpdates.update
    main = threading.main_thread().ident

    def slow(self, *arguments):
        if threading.get_ident() != main and not interrupted.is_set():
            interrupted.set()
            time.sleep(0.05)  # the main thread waits for the others by then
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.005)
        return update(self, *arguments)

    interrupted = threading.Event()
    monkeypatch.setattr(row_updates.RowUpdates, "update", slow)
    # Shells make background processes ignore the signal, such as a run of all tests in the background.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pca.fit(rows)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert vars(pca) == before
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive()


# --- how many threads ---


def test_n_jobs_means_what_it_means_in_scikit_learn():
    assert n_threads(3) == 3
    assert n_threads(-1) == available_cores()
    assert n_threads(-2) == max(1, available_cores() - 1)
    assert n_threads(np.int64(2)) == 2
    with pytest.raises(ValueError, match="got n_jobs=0"):
        n_threads(0)
    for wrong in (1.5, True, "2"):
        with pytest.raises(TypeError, match="whole number"):
            n_threads(wrong)
    with pytest.raises(ValueError, match="n_jobs"):
        StreamingPCA(2, n_jobs=0).fit(make_rows(50, 5))


def test_the_default_follows_blas():
    with BLAS.limit(limits=1):
        assert n_threads(None) == 1
    with BLAS.limit(limits=2):
        assert n_threads(None) == min(2, available_cores())


def most_threads(monkeypatch, fit):
    """How many trackers work at a time, at most, while `fit` runs."""
    at_once, most, lock = 0, 0, threading.Lock()
    absorb = Nystrom._absorb

    def counted(self, *arguments):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.002)
        absorb(self, *arguments)
        with lock:
            at_once -= 1

    with monkeypatch.context() as patched:
        patched.setattr(Nystrom, "_absorb", counted)
        fit()
    return most


def test_as_many_threads_as_asked_for(monkeypatch):
    rows = make_rows()
    for jobs in (1, 2, 3):
        assert most_threads(monkeypatch, partial(StreamingPCA(5, n_jobs=jobs).fit, rows)) == jobs


def test_clients_and_joblib_threads_do_not_multiply(monkeypatch):
    from joblib import Parallel, delayed

    rows = make_rows(6000)
    with BLAS.limit(limits=2):
        pca = FederatedPCA(5, n_jobs=2)
        clients = dict(zip("abcd", np.array_split(rows, 4), strict=True))
        assert most_threads(monkeypatch, lambda: pca.fit_clients(clients)) <= 2

        def fit_two():
            Parallel(n_jobs=2, backend="threading")(delayed(StreamingPCA(5).fit)(rows) for _ in range(4))

        assert most_threads(monkeypatch, fit_two) <= 2


def test_fits_in_threads_of_others_agree():
    rows = make_rows()
    expected = StreamingPCA(5, n_jobs=1).fit(rows)
    with ThreadPoolExecutor(3) as pool:
        models = list(pool.map(lambda _: StreamingPCA(5).fit(rows), range(6)))
    assert all(equal_bits(model, expected) for model in models)


def test_a_fitted_stream_goes_on():
    rows = make_rows(5000)
    pca = StreamingPCA(5, n_jobs=2).fit(rows[:4000]).partial_fit(rows[4000:])
    assert pca.n_samples_seen_ == 5000
    assert metrics.captured_variance(pca, rows) > 1 - 1e-5


def test_sklearn_clones_and_checks_n_jobs():
    from sklearn.base import clone

    assert clone(StreamingPCA(2, n_jobs=3)).get_params()["n_jobs"] == 3


# --- files ---


def write_files(folder, rows):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    np.save(folder / "rows.npy", rows)
    table = pyarrow.table({f"f{j}": rows[:, j] for j in range(rows.shape[1])})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=1100)
    for i, part in enumerate(np.array_split(rows, 3)):
        np.save(folder / f"part-{i}.npy", part)


@pytest.mark.parametrize("name", ["rows.npy", "rows.parquet", "part-*.npy"])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.long
def test_files_are_read_and_learned_in_shards(name, scale, tmp_path, n_streams):
    rows = make_rows(6000)
    write_files(tmp_path, rows)
    models = []
    for jobs in (1, 2, 3):
        pca = StreamingPCA(5, scale=scale, n_jobs=jobs)
        assert fit_files(pca, open_rows(tmp_path / name, batch_rows=300)) == len(rows)
        models.append(pca)
    assert len(n_streams) > 6
    assert equal_bits(models[0], models[1])
    assert equal_bits(models[0], models[2])
    assert models[0].n_samples_seen_ == models[0].subspace_.count == len(rows)
    assert (models[0].subspace_.feature_names is not None) == name.endswith("parquet")
    alone = StreamingPCA(5, scale=scale, n_jobs=1).fit(rows)
    if scale is None:
        assert metrics.captured_variance(models[0], rows) > 1 - 1e-5
    assert np.allclose(models[0].mean_, alone.mean_)


def test_a_file_that_cannot_be_entered_in_its_midst_is_one_stream(tmp_path, n_streams):
    rows = make_rows(6000)
    np.savez_compressed(tmp_path / "rows.npz", rows)
    assert fit_files(StreamingPCA(5, n_jobs=2), open_rows(tmp_path / "rows.npz")) == 6000
    assert not n_streams


def test_files_with_a_feature_unknown_to_a_shard_are_one_stream(tmp_path, monkeypatch):
    rows = make_rows(6000)
    rows[:4000, 7] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    models = [StreamingPCA(5, n_jobs=2), StreamingPCA(5)]
    assert fit_files(models[0], open_rows(tmp_path / "rows.npy", batch_rows=500)) == 6000
    one_stream(monkeypatch)
    fit_files(models[1], open_rows(tmp_path / "rows.npy", batch_rows=500))
    assert equal_bits(*models)


def test_a_stopped_fit_of_files_knows_the_rows_it_learned(tmp_path):
    rows = make_rows(6000)
    np.save(tmp_path / "rows.npy", rows)
    pca, calls = StreamingPCA(5, n_jobs=2), []
    stopped = lambda: bool(calls.append(1)) or len(calls) > 4  # noqa: E731
    n_rows = fit_files(pca, open_rows(tmp_path / "rows.npy", batch_rows=100), should_stop=stopped)
    assert 400 < n_rows < 6000
    assert pca.n_samples_seen_ == pca.subspace_.count == n_rows


def test_an_error_in_a_file_leaves_the_estimator_as_it_was(tmp_path):
    rows = make_rows(6000)
    rows[5000, 3] = np.inf
    np.save(tmp_path / "rows.npy", rows)
    pca = StreamingPCA(5, n_jobs=2)
    with pytest.raises(ValueError, match="infinity"):
        fit_files(pca, open_rows(tmp_path / "rows.npy"))
    assert vars(pca) == vars(StreamingPCA(5, n_jobs=2))


def test_memory_of_files_does_not_grow_with_their_rows(tmp_path):
    peaks = []
    for n_rows in (6000, 24_000):
        np.save(tmp_path / "rows.npy", make_rows(n_rows))
        reader = open_rows(tmp_path / "rows.npy", batch_rows=200)
        fit_files(StreamingPCA(5, n_jobs=2), reader)
        tracemalloc.start()
        fit_files(StreamingPCA(5, n_jobs=2), reader)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 24_000 * 260 * 8 / 8


def test_a_fit_that_follows_another_has_the_same_bits():
    rows = make_rows()
    for settings in ({}, {"scale": "std"}):
        pca = StreamingPCA(5, **settings, n_jobs=2).fit(rows)
        first = pca.subspace_
        assert np.array_equal(pca.fit(rows).subspace_.components, first.components)
