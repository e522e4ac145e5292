"""Real clients, unequal and unlike, by every road: the components of all their rows."""

import numpy as np
import pytest
from helpers import shortfall

import fedpca
from fedpca import Aggregator, FederatedPCA, StreamingPCA
from fedpca.federation import folder

RANK = 10


@pytest.fixture(scope="module", params=["hapmap", "isolet", "wisdm"])
def clients(request, real_clients):
    return real_clients(request.param)


def assert_found(components, clients):
    assert abs(shortfall(components, np.concatenate(list(clients.values())))) < 1e-6


@pytest.mark.slow
def test_in_one_process(clients):
    pca = FederatedPCA(RANK).fit_clients(clients)
    assert_found(pca.components_, clients)
    assert sum(given.rows for given in pca.contributions_.values()) == sum(map(len, clients.values()))


@pytest.mark.slow
@pytest.mark.long
def test_through_a_folder(clients, tmp_path):
    for name, rows in clients.items():
        folder.publish(tmp_path, name, 0, StreamingPCA(RANK, oversample=100).fit(rows).subspace_)
    aggregator = Aggregator()
    assert folder.collect(tmp_path, aggregator) == []
    assert_found(aggregator.model().truncate(RANK).components, clients)


@pytest.mark.slow
def test_with_dask(clients):
    da = pytest.importorskip("dask.array", reason="needs the dask extra")
    from fedpca.federation.engines.dask import fit

    rows = da.concatenate([da.from_array(part, chunks=(len(part), -1)) for part in clients.values()])
    assert_found(fit(rows, RANK).components, clients)


@pytest.mark.slow
def test_private_clients_by_population_or_user_keep_their_promise(clients):
    """Too few rows for anything to survive, perhaps, but certified all the same."""
    n_features = len(next(iter(clients.values()))[0])
    mechanism = "gram" if n_features <= 4096 else "sketch"
    privacy = fedpca.Privacy(1.0, 1e-5, 10.0, mechanism=mechanism, center=None, evaluate=False)
    pca = FederatedPCA(2, privacy=privacy).fit_clients(clients)
    assert pca.model_.certificate.private
    assert pca.model_.certificate.merged == len(clients)
