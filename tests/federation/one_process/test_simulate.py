"""Whatever goes wrong in a federation, the model is that of what was contributed."""

from collections import Counter

import numpy as np
import pytest
from helpers import assert_summarizes, power_law
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from fedpca.federation.one_process.simulate import Faults, simulate

shares = st.floats(0, 1)


def streams(n_clients=7, n_batches=6, n_features=5):
    rng = np.random.default_rng(0)
    return {
        f"client {c}": [power_law(rng, 8, n_features) + c for _ in range(n_batches)] for c in range(n_clients)
    }


@pytest.mark.slow
@settings(max_examples=40)
@given(st.builds(Faults, shares, shares, shares, shares, shares, st.integers(0, 999)), st.integers(2, 9))
@pytest.mark.long
def test_the_model_is_that_of_all_that_was_delivered(faults, fanout):
    clients = streams()
    result = simulate(clients, 5, faults=faults, fanout=fanout)
    sent = Counter()
    for delivery in result.timeline:
        sent[delivery.client] = max(sent[delivery.client], delivery.version + 1)
    assert_summarizes(result.model, [batch for name in clients for batch in clients[name][: sent[name]]])
    assert set(result.dropped_out) == {name for name in clients if sent[name] < 6}
    assert result.timeline[-1].rows == result.model.count


@pytest.mark.slow
def test_faults_that_lose_nothing_leave_no_trace_in_any_bit():
    reference = simulate(streams(), 2, fanout=3)
    for seed in range(10):
        faults = Faults(stragglers=0.5, late=0.5, duplicates=0.5, crashes=0.3, seed=seed)
        faulty = simulate(streams(), 2, faults=faults, fanout=3)
        assert faulty.model == reference.model
        assert faulty.crashes > 0
        assert len(faulty.timeline) > len(reference.timeline)
        assert not all(delivery.changed for delivery in faulty.timeline)


def test_snapshots_lead_to_the_final_model():
    clients = streams()
    result = simulate(clients, 2, faults=Faults(stragglers=0.3, duplicates=0.5, crashes=0.3, seed=1))
    assert sum(result.contributions.values()) == result.model.count
    assert set(result.contributions) == set(clients)
    assert len(result.timeline) > len(result.snapshots) == 40
    first, last = result.snapshots[0], result.snapshots[-1]
    delivery = result.timeline[0]
    alone = PCA(2).fit(np.concatenate(clients[delivery.client][: delivery.version + 1]))
    assert (first.time, first.rows, first.clients) == (delivery.time, delivery.rows, 1)
    angle = subspace_angles(alone.components_.T, result.model.components.T).max()
    np.testing.assert_allclose(first.angle, angle, atol=1e-6)
    np.testing.assert_allclose(first.explained, alone.explained_variance_ratio_.sum())
    assert (last.rows, last.clients, last.angle < 1e-7) == (result.model.count, 7, True)


def test_rows_that_do_not_vary():
    result = simulate({"a": [np.ones((3, 4))] * 2, "b": [np.ones((3, 4))]}, 2)
    assert result.model.rank == 0
    assert {(look.explained, look.angle) for look in result.snapshots} == {(0.0, 0.0)}


def test_the_same_seed_goes_wrong_in_the_same_way():
    faults = Faults(stragglers=0.5, dropouts=0.5, duplicates=0.5, crashes=0.3, seed=3)
    assert simulate(streams(), 2, faults=faults) == simulate(streams(), 2, faults=faults)
    other = simulate(streams(), 2, faults=Faults(stragglers=0.5, dropouts=0.5, duplicates=0.5, seed=4))
    assert other.timeline != simulate(streams(), 2, faults=faults).timeline


def test_time_runs_forward_and_stragglers_arrive_last():
    result = simulate(streams(), 2, faults=Faults(stragglers=0.3, seed=1))
    times = [delivery.time for delivery in result.timeline]
    assert times == sorted(times)
    assert times[-1] > 20


@pytest.mark.parametrize("wrong", [{"stragglers": 2}, {"late": -0.1}, {"crashes": "often"}])
def test_shares_are_checked(wrong):
    with pytest.raises(ValueError, match="share between 0 and 1"):
        Faults(**wrong)
