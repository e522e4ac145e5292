"""BLAS has one thread while fitting and scoring, and afterwards as many as before."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from fedpca import StreamingPCA
from fedpca.parallel import single_threaded_blas
from fedpca.trackers.base import Tracker

BLAS = ThreadpoolController().select(user_api="blas")


def n_threads():
    return max(library.num_threads for library in BLAS.lib_controllers)


@pytest.fixture(autouse=True)
def two_threads():
    with BLAS.limit(limits=2):
        if n_threads() != 2:
            pytest.skip("this BLAS has one thread")
        yield


@pytest.fixture
def seen(monkeypatch):
    """How many threads there were whenever a tracker computed something."""
    seen = []

    def spy(method):
        def called(self, *arguments):
            seen.append(n_threads())
            return method(self, *arguments)

        return called

    for kind in (Tracker, *Tracker.__subclasses__()):
        for name in ("_prepared", "_view"):
            if name in vars(kind):
                monkeypatch.setattr(kind, name, spy(vars(kind)[name]))
    return seen


@pytest.mark.parametrize("n_features", [20, 300])
def test_fitting_uses_one_thread(seen, n_features):
    rows = np.random.default_rng(0).normal(size=(1500, n_features))
    pca = StreamingPCA(3).fit(rows)
    for row in rows[:100]:
        pca.partial_fit(row[None])
    assert pca.components_.shape == (3, n_features)
    assert set(seen) == {1}
    assert n_threads() == 2


@pytest.mark.slow
def test_large_products_use_one_thread_too(seen):
    StreamingPCA(3, tracker="exact").fit(np.random.default_rng(0).normal(size=(40, 1100)))
    assert set(seen) == {1}


def test_an_error_sets_the_threads_back():
    with pytest.raises(RuntimeError), single_threaded_blas(), single_threaded_blas():
        raise RuntimeError
    assert n_threads() == 2


def test_fits_in_many_threads_set_the_threads_back():
    rows = np.random.default_rng(0).normal(size=(1500, 20))
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: StreamingPCA(3).fit(rows).subspace_, range(40)))
    assert all(model == models[0] for model in models)
    assert n_threads() == 2
