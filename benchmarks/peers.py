"""Other PCAs behind one signature, `fit(rows, rank) -> components`, each used as its documentation advises.

Peers that do not center are given centered rows, and the centering is part of their time, as it is of ours.
"""

from __future__ import annotations

import importlib.util
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks import THREADS
from benchmarks.common import Array, batches

Fit = Callable[[Array, int], Array]

BATCH_SIZES = (20, 50, 100, 200, 500, 1000)  # among which the best for IncrementalPCA is sought


def fedpca(rows: Array, rank: int, *, batch: int = 1000, tracker: str = "auto") -> Array:
    """Ours: one pass in batches, from a cold start to the components."""
    from fedpca import StreamingPCA

    model = StreamingPCA(n_components=rank, tracker=tracker)
    for part in batches(rows, batch):
        model.partial_fit(part)
    return model.components_


def incremental_pca(rows: Array, rank: int, *, batch: int | None = None) -> Array:
    """scikit-learn IncrementalPCA; its default batch is five times the number of features."""
    from sklearn.decomposition import IncrementalPCA

    return IncrementalPCA(n_components=rank, batch_size=batch).fit(rows).components_


def best_batch(rows: Array, rank: int, sample: int = 2000) -> int:
    """The batch size with which IncrementalPCA is fastest per row on the first `sample` rows."""

    def seconds(batch: int) -> float:
        start = time.process_time()
        incremental_pca(rows[:sample], rank, batch=batch)
        return time.process_time() - start

    best, least = 0, float("inf")
    for batch in BATCH_SIZES:
        if rank <= batch <= len(rows):
            spent = seconds(batch)
            if spent > 2 * least:  # past the optimum: larger ones only get slower
                break
            if spent < least:
                best, least = batch, spent
    return best


def pca_randomized(rows: Array, rank: int, *, iterations: int | str = "auto") -> Array:
    from sklearn.decomposition import PCA

    model = PCA(n_components=rank, svd_solver="randomized", iterated_power=iterations, random_state=0)
    return model.fit(rows).components_


def pca_randomized_once(rows: Array, rank: int) -> Array:
    return pca_randomized(rows, rank, iterations=1)


def pca_covariance(rows: Array, rank: int) -> Array:
    from sklearn.decomposition import PCA

    return PCA(n_components=rank, svd_solver="covariance_eigh").fit(rows).components_


def gensim_lsi(rows: Array, rank: int) -> Array:
    from gensim.models import LsiModel
    from gensim.utils import FakeDict
    from scipy.sparse import csc_matrix

    centered = rows - rows.mean(axis=0)
    model = LsiModel(num_topics=rank, id2word=FakeDict(rows.shape[1]), dtype=rows.dtype.type, random_seed=0)
    for part in batches(centered, 1000):
        model.add_documents(csc_matrix(part.T))
    return model.projection.u[:, :rank].T


def dask_incremental(rows: Array, rank: int) -> Array:
    import dask
    import dask.array as da
    from dask_ml.decomposition import IncrementalPCA

    batch = max(200, rank)
    with dask.config.set(scheduler="synchronous"):
        lazy = da.from_array(rows, chunks=(1000, rows.shape[1]))
        return IncrementalPCA(n_components=rank, batch_size=batch).fit(lazy).components_


def dask_randomized(rows: Array, rank: int) -> Array:
    import dask
    import dask.array as da
    from dask_ml.decomposition import PCA

    with dask.config.set(scheduler="synchronous"):
        lazy = da.from_array(rows, chunks=(1000, rows.shape[1]))
        return PCA(n_components=rank, svd_solver="randomized", random_state=0).fit(lazy).components_


def torch_lowrank(rows: Array, rank: int, *, iterations: int = 2) -> Array:
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    wide = min(rank + (rank + 1) // 2, *rows.shape)
    basis = torch.pca_lowrank(torch.from_numpy(rows), q=wide, niter=iterations)[2]
    return basis[:, :rank].numpy().T


def intelex_incremental(rows: Array, rank: int) -> Array:
    """scikit-learn-intelex: the d x d cross product, online."""
    import daal4py
    from sklearnex.preview.decomposition import IncrementalPCA

    daal4py.daalinit(THREADS)
    return IncrementalPCA(n_components=rank, batch_size=2000).fit(rows).components_


def intelex_covariance(rows: Array, rank: int) -> Array:
    """scikit-learn-intelex: the covariance, online, and numpy's eigenvectors of it."""
    import daal4py
    from sklearnex.covariance import IncrementalEmpiricalCovariance

    daal4py.daalinit(THREADS)
    covariance = IncrementalEmpiricalCovariance(batch_size=2000).fit(rows).covariance_
    return np.linalg.eigh(covariance)[1][:, ::-1][:, :rank].T


def fbpca_pca(rows: Array, rank: int) -> Array:
    import fbpca

    np.random.seed(0)  # noqa: NPY002  fbpca draws from the global generator
    return fbpca.pca(rows, k=rank, raw=False, n_iter=2)[2]


def scipy_svds(rows: Array, rank: int) -> Array:
    from scipy.sparse.linalg import svds

    return svds(rows - rows.mean(axis=0), k=rank, return_singular_vectors="vh", random_state=0)[2]


@dataclass(frozen=True)
class Peer:
    """A contender: the module it needs, the package that brings it, how it sees the rows."""

    fit: Fit
    module: str
    package: str
    sees: str = "all rows at once"


IPCA_DEFAULT = "sklearn IncrementalPCA, default batch"
IPCA_BEST = "sklearn IncrementalPCA, best batch"
RANDOMIZED = "sklearn PCA randomized"
RANDOMIZED_ONCE = "sklearn PCA randomized, 1 iteration"
COVARIANCE = "sklearn PCA covariance_eigh"
FBPCA = "fbpca"
INTELEX = "scikit-learn-intelex IncrementalPCA"
INTELEX_COVARIANCE = "scikit-learn-intelex covariance"
TORCH = "torch.pca_lowrank, 2 iterations"

# IncrementalPCA with its best batch is not listed: the batch is sought per cell (`best_batch`).
PEERS = {
    IPCA_DEFAULT: Peer(incremental_pca, "sklearn", "scikit-learn", "batches of 5 d"),
    RANDOMIZED: Peer(pca_randomized, "sklearn", "scikit-learn"),
    RANDOMIZED_ONCE: Peer(pca_randomized_once, "sklearn", "scikit-learn"),
    COVARIANCE: Peer(pca_covariance, "sklearn", "scikit-learn"),
    "scipy svds": Peer(scipy_svds, "scipy", "scipy"),
    FBPCA: Peer(fbpca_pca, "fbpca", "fbpca"),
    INTELEX: Peer(intelex_incremental, "sklearnex", "scikit-learn-intelex", "batches of 2000"),
    INTELEX_COVARIANCE: Peer(intelex_covariance, "sklearnex", "scikit-learn-intelex", "batches of 2000"),
    TORCH: Peer(torch_lowrank, "torch", "torch"),
    "gensim LsiModel, sparse chunks": Peer(gensim_lsi, "gensim", "gensim", "batches of 1000"),
    "dask-ml IncrementalPCA, batch 200": Peer(dask_incremental, "dask_ml", "dask-ml", "batches of 200"),
    "dask-ml PCA randomized": Peer(dask_randomized, "dask_ml", "dask-ml"),
}


def available() -> dict[str, Peer]:
    """The peers that are installed; a line is printed for each that is not."""
    found = {}
    for name, peer in PEERS.items():
        if importlib.util.find_spec(peer.module):
            found[name] = peer
        else:
            print(f"Left out: {name} (pip install {peer.package})", flush=True)
    return found


def warm_up(peers: dict[str, Peer]) -> None:
    """Import everything and fill first-call caches, so that no contender pays for it in the timing."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    rows = np.random.default_rng(0).standard_normal((400, 60))
    for fit in (fedpca, *(peer.fit for peer in peers.values())):
        try:
            fit(rows, 5)
        except Exception:  # reported later, in the table, where it is timed
            continue
