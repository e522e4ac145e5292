"""Parts of one product in the threads of a team: the same bits with any number, and none goes on alone."""

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers import power_law, shortfall
from threadpoolctl import ThreadpoolController

from fedpca import EnergyBand, StreamingPCA
from fedpca.backend import threads
from fedpca.backend.threads import map_in_threads, map_parts, thread_team
from fedpca.trackers import exact
from fedpca.trackers.nystrom import products, tuning

BLAS = ThreadpoolController().select(user_api="blas")


def threads_of(n_threads, n_parts=4):
    """The threads that worked on parts of equal length."""
    with thread_team(n_threads):
        return set(map_parts(lambda _: time.sleep(0.02) or threading.get_ident(), range(n_parts)))


@pytest.fixture(autouse=True)
def three_helpers(monkeypatch):
    """Threads of a pool for as many cores as a test wants, whatever the machine has."""
    with ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(threads, "_pool", lambda: pool)
        yield


@pytest.mark.parametrize("n_threads", [1, 2, 4, 9])
@pytest.mark.parametrize("n_parts", [0, 1, 3, 20])
def test_results_are_in_the_order_of_the_parts(n_threads, n_parts):
    with thread_team(n_threads):
        assert map_parts(lambda i: i**2, range(n_parts)) == [i**2 for i in range(n_parts)]


def test_a_team_has_as_many_threads_as_it_was_given():
    assert threads_of(1) == {threading.get_ident()}
    assert len(threads_of(2)) == 2
    assert len(threads_of(4)) == 4
    assert len(threads_of(4, n_parts=2)) == 2


def test_without_a_team_and_inside_other_threads_parts_are_done_one_by_one():
    own = threading.get_ident()
    assert set(map_parts(lambda _: threading.get_ident(), range(4))) == {own}
    with thread_team(4):
        inside = map_in_threads(
            lambda _, check: len(set(map_parts(lambda _: threading.get_ident(), range(4)))), range(2), 2
        )
    assert inside == [1, 1]


def test_a_team_ends_with_its_block_also_after_an_error():
    with pytest.raises(ZeroDivisionError), thread_team(4):
        map_parts(lambda i: 1 // i, [1, 2, 0, 3])
    assert len(set(map_parts(lambda _: threading.get_ident(), range(4)))) == 1


@pytest.mark.parametrize("place", range(4))
def test_an_error_in_any_part_is_raised_and_no_part_goes_on(place):
    running, lock = 0, threading.Lock()

    def task(i):
        nonlocal running
        with lock:
            running += 1
        time.sleep(0.005)
        with lock:
            running -= 1
        if i == place:
            raise ValueError(f"part {i}")
        return i

    with pytest.raises(ValueError, match=f"part {place}"), thread_team(3):
        map_parts(task, range(4))
    assert running == 0


def test_a_pool_that_is_busy_leaves_all_parts_to_the_caller():
    release = threading.Event()
    blockers = [threads._pool().submit(release.wait, 10) for _ in range(3)]
    try:
        with thread_team(4):
            assert map_parts(lambda i: i, range(5)) == list(range(5))
    finally:
        release.set()
    assert all(blocker.result() for blocker in blockers)


def test_settings_of_the_caller_hold_in_all_parts():
    big = np.full((2, 2), 1e200)
    with warnings.catch_warnings(), np.errstate(over="ignore"), thread_team(3):
        warnings.simplefilter("error")
        assert all(np.isinf(found).all() for found in map_parts(lambda _: big * big, range(8)))


FORKING = """
import os
from fedpca.backend.threads import map_parts, thread_team

def parts():
    with thread_team(2):
        return map_parts(lambda i: i + 1, range(8))

assert parts() == list(range(1, 9))
child = os.fork()
if not child:
    os._exit(parts() != list(range(1, 9)))
assert os.waitpid(child, 0)[1] == 0
"""


def test_the_child_of_a_fork_has_a_pool_of_its_own(fork):
    status, _, errors = fork(FORKING).wait()
    assert not status, errors


@pytest.fixture
def small_parts(monkeypatch):
    """Products in many parts, of rows of which hardly any are kept."""
    monkeypatch.setattr("fedpca.trackers.nystrom.tracker.TUNING", replace(tuning.TUNING, kept_bytes=2**18))
    monkeypatch.setattr(products, "_PART_WORK", 2**16)
    monkeypatch.setattr(products, "_MIN_LENGTH", 8)
    monkeypatch.setattr(exact, "_PART_ROWS", 100)


def drifting(rng, dtype):
    """Rows whose directions change halfway, with a far mean and some outliers."""
    first, second = power_law(rng, 1500, 260), power_law(rng, 1500, 260)[:, ::-1]
    rows = np.concatenate([first, second]) + 5
    rows[::700] *= 30
    return rows.astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "settings",
    [
        {"tracker": "nystrom"},
        {"tracker": "exact"},
        {"tracker": "nystrom", "forget": 0.99},
        {"tracker": "nystrom", "energy": EnergyBand(0.02, 0.1)},
    ],
    ids=str,
)
def test_one_stream_has_the_same_bits_with_any_number_of_threads(dtype, settings, rng, small_parts):
    rows = drifting(rng, dtype)
    weights = rng.uniform(0.5, 2, len(rows))
    if "energy" not in settings:
        settings = settings | {"n_components": 8}
    whole = [StreamingPCA(**settings, n_jobs=n).fit(rows, sample_weight=weights) for n in (1, 3)]
    batches = []
    for n in (1, 3):
        pca = StreamingPCA(**settings, n_jobs=n)
        for batch in np.array_split(rows, 5):
            pca.partial_fit(batch)
        batches.append(pca)
    for first, *others in (whole, batches):
        for other in others:
            assert np.array_equal(first.components_, other.components_)
            assert np.array_equal(first.explained_variance_, other.explained_variance_)
    if "forget" not in settings and "energy" not in settings:
        assert shortfall(batches[0].components_, rows) < 1e-4


def test_threads_of_a_team_take_part_in_a_fit(rng, small_parts, monkeypatch):
    seen, project = set(), np.matmul

    def spy(*arguments, **keywords):
        seen.add(threading.get_ident())
        time.sleep(0.001)
        return project(*arguments, **keywords)

    monkeypatch.setattr(products.np, "matmul", spy)
    StreamingPCA(5, tracker="nystrom", n_jobs=3).fit(power_law(rng, 3000, 300))
    assert len(seen) > 1


@pytest.mark.parametrize(("n_features", "most"), [(200, 1), (1100, 2)])
def test_blas_has_its_own_threads_only_where_products_are_not_shared(rng, monkeypatch, n_features, most):
    seen, gram = set(), exact._gram

    def spy(panel):
        seen.update(library["num_threads"] for library in BLAS.info())
        return gram(panel)

    monkeypatch.setattr(exact, "_gram", spy)
    rows = rng.normal(size=(1500, n_features))
    with BLAS.limit(limits=2):
        StreamingPCA(3, tracker="exact").fit(rows)
        assert max(seen) == most
        seen.clear()
        StreamingPCA(3, tracker="exact").partial_fit(rows)
        assert max(seen) == most
