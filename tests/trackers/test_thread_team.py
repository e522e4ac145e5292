"""A team of threads: parts in order, errors, forks, how many; and one thread of BLAS in each."""

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from fedpca import StreamingPCA, parallel
from fedpca.parallel import available_cores, map_parts, n_threads, thread_team

BLAS = ThreadpoolController().select(user_api="blas")


def threads_of(n_threads, n_parts=4):
    """The threads that worked on parts of equal length."""
    with thread_team(n_threads):
        return set(map_parts(lambda _: time.sleep(0.1) or threading.get_ident(), range(n_parts)))


@pytest.fixture(autouse=True)
def three_helpers(monkeypatch):
    """Threads of a pool for as many cores as a test wants, whatever the machine has."""
    with ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(parallel, "_pool", lambda: pool)
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
    with thread_team(4), ThreadPoolExecutor(1) as other:
        inside = other.submit(map_parts, lambda _: threading.get_ident(), range(4)).result()
    assert len(set(inside)) == 1


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
    blockers = [parallel._pool().submit(release.wait, 10) for _ in range(3)]
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
from fedpca.parallel import map_parts, thread_team

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
        StreamingPCA(2, n_jobs=0).fit(np.ones((50, 5)))


def test_the_default_follows_blas_and_the_team():
    with BLAS.limit(limits=1):
        assert n_threads(None) == 1
    with BLAS.limit(limits=2):
        assert n_threads(None) == min(2, available_cores())
    with thread_team(5):
        assert n_threads(None) == 5


def test_sklearn_clones_and_checks_n_jobs():
    from sklearn.base import clone

    assert clone(StreamingPCA(2, n_jobs=3)).get_params()["n_jobs"] == 3
