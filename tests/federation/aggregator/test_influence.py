"""Influence: against the model of all other rows, by NumPy, or by an aggregator without the child."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from fedpca import Aggregator, FederatedPCA, Moments, Privacy, Subspace
from fedpca.federation.aggregator.influence import influence
from fedpca.federation.one_process import federated_pca
from fedpca.metrics import principal_angles

pytestmark = pytest.mark.slow  # all of it together

RANK = 3


def tables_of(n_children, n_features=24, n_rows=15, seed=0, unlike=0.3):
    """Children that differ in size, mean and directions."""
    rng = np.random.default_rng(seed)
    scale = 2.0 ** -np.arange(n_features)
    scale = np.maximum(scale, 0.02)
    tables = {}
    for i in range(n_children):
        turn = np.eye(n_features) + unlike * rng.normal(size=(n_features, n_features)) / np.sqrt(n_features)
        rows = rng.normal(size=(n_rows + i % 7, n_features)) * scale @ turn
        tables[f"{i:04}"] = rows + unlike * rng.normal(size=n_features) * scale
    return tables


def aggregator_of(summaries, rank=RANK, **settings):
    aggregator = Aggregator(rank, **settings)
    for name, summary in summaries.items():
        aggregator.receive(name, 1, summary)
    return aggregator


def directions(rows, rank=RANK, center=True):
    rows = rows - rows.mean(axis=0) if center else rows
    return np.linalg.svd(rows, full_matrices=False)[2][:rank]


def captured(rows, components, center=True):
    rows = rows - rows.mean(axis=0) if center else rows
    return np.sum((rows @ components.T) ** 2) / np.sum(rows**2)


def assert_influence(found, tables, rank=RANK, center=True, atol=1e-5):
    """That of children whose summaries have lost nothing."""
    pooled = np.concatenate(list(tables.values()))
    mean = pooled.mean(axis=0) if center else 0.0
    model = directions(pooled, rank, center)
    assert list(found) == sorted(tables)
    for name, rows in tables.items():
        others = np.concatenate([other for key, other in tables.items() if key != name])
        without = directions(others, rank, center)
        one = found[name]
        assert one.row_share == pytest.approx(len(rows) / len(pooled))
        assert one.angle == pytest.approx(principal_angles(model, without).max(), abs=atol)
        assert one.captured == pytest.approx(captured(rows, model, center), abs=atol)
        assert one.captured_without == pytest.approx(captured(rows, without, center), abs=atol)
        own, whole = (rows - mean) @ model.T, (pooled - mean) @ model.T
        ratio = np.linalg.eigvals(np.linalg.solve(whole.T @ whole, own.T @ own)).real.max()
        assert one.direction_share == pytest.approx(ratio, abs=atol)


def summary_of(kind, rows, center=True):
    return {"subspaces": Subspace, "moments": Moments}[kind].from_rows(rows, center=center)


@pytest.mark.parametrize("center", [True, False], ids=["centered", "uncentered"])
@pytest.mark.parametrize("n_children", [2, 5, 40])
@pytest.mark.parametrize("kind", ["subspaces", "moments"])
def test_it_is_that_of_the_pooled_rows(kind, n_children, center):
    tables = tables_of(n_children)
    found = aggregator_of({name: summary_of(kind, rows, center) for name, rows in tables.items()}).influence()
    assert_influence(found, tables, center=center)


def test_of_subspaces_and_moments_together():
    tables = tables_of(20)
    kinds = ["subspaces", "moments"]
    summaries = {name: summary_of(kinds[i % 2], rows) for i, (name, rows) in enumerate(tables.items())}
    assert_influence(aggregator_of(summaries).influence(), tables, atol=1e-4)  # what merging truncates


@pytest.mark.slow
def test_it_is_accurate_where_the_joint_basis_is_not_all_there_is():
    tables = tables_of(60, n_features=120, n_rows=20)
    found = aggregator_of({name: Subspace.from_rows(rows) for name, rows in tables.items()}).influence()
    assert_influence(found, tables, atol=2e-3)


def scaled_by_all(tables):
    """Rows divided by the standard deviations of all of them."""
    scaler = StandardScaler().fit(np.concatenate(list(tables.values())))
    return {name: scaler.transform(rows) for name, rows in tables.items()}


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
def test_of_rows_divided_by_numbers(kind):
    tables = tables_of(30)
    numbers = np.linspace(0.5, 2, 24)
    make = {"subspaces": Subspace, "moments": Moments}[kind]
    summaries = {name: make.from_rows(rows, scale=numbers) for name, rows in tables.items()}
    found = aggregator_of(summaries).influence()
    assert_influence(found, {name: rows / numbers for name, rows in tables.items()})


@pytest.mark.parametrize("n_children", [4, 30])
def test_without_a_child_the_scale_is_that_of_the_others(n_children):
    tables = {name: rows * np.linspace(1, 9, 24) for name, rows in tables_of(n_children).items()}
    summaries = {name: Moments.from_rows(rows, scale="std") for name, rows in tables.items()}
    found = aggregator_of(summaries).influence()
    model = directions(np.concatenate(list(scaled_by_all(tables).values())))
    for name, rows in tables.items():
        others = {key: other for key, other in tables.items() if key != name}
        scaler = StandardScaler().fit(np.concatenate(list(others.values())))
        without = directions(np.concatenate(list(scaled_by_all(others).values())))
        assert found[name].angle == pytest.approx(principal_angles(model, without).max(), abs=1e-6)
        assert found[name].captured_without == pytest.approx(
            captured(scaler.transform(rows), without), abs=1e-6
        )


def assert_as_without(aggregator, summaries, atol=1e-6, **settings):
    """As aggregators that never had the child say."""
    model = aggregator.model()
    for name, one in aggregator.influence().items():
        others = aggregator_of({key: each for key, each in summaries.items() if key != name}, **settings)
        without = others.model()
        if not without.rank or not model.rank:
            assert one.angle is None
        else:
            assert one.angle == pytest.approx(principal_angles(model, without).max(), abs=atol)


@pytest.mark.parametrize("n_children", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [None, "std"])
def test_private_moments_keep_the_rules_of_noise(n_children, scale, monkeypatch):
    rng = np.random.default_rng(0)
    sizes = [9, 7, 5, 1, 1, 1] @ (np.eye(6) + 0.3)
    clients = {
        f"{i}": (rng.normal(size=(1, 4)) + rng.normal(size=(500, 4))) @ rng.normal(size=(4, 6))
        for i in range(n_children)
    }
    clients = {name: rows + rng.normal(size=rows.shape) * sizes for name, rows in clients.items()}
    sent = {}

    def influence_of(summaries, *others):
        sent.update(summaries)
        return influence(summaries, *others)

    monkeypatch.setattr(federated_pca, "influence", influence_of)
    privacy = Privacy(8.0, 1e-5, evaluate=False)
    pca = FederatedPCA(4, privacy=privacy, scale=scale, random_state=0).fit_clients(clients)
    assert set(pca.influence_) == set(clients)
    assert pca.model_.rank
    assert all(each.certificate for each in sent.values())
    assert_as_without(aggregator_of(sent, 4), sent, rank=4)


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
@pytest.mark.parametrize("n_children", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_where_children_do_not_know_all_features(kind, n_children):
    summaries = {}
    for i, (name, rows) in enumerate(tables_of(n_children, n_features=8).items()):
        known = np.ones(8, bool)
        if i % 3 == 1:
            known[5:] = False
        rows = rows * known
        summary = summary_of(kind, rows)
        summaries[name] = replace(summary, observed=summary.count * known)
    aggregator = aggregator_of(summaries)
    assert aggregator.model().parts
    assert_as_without(aggregator, summaries)
    shares = [one.direction_share for one in aggregator.influence().values()]
    assert all(0 < share < 1 for share in shares)


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
def test_one_child_is_the_model(kind):
    rows = tables_of(1)["0000"]
    (one,) = aggregator_of({"only": summary_of(kind, rows)}).influence().values()
    assert (one.row_share, one.angle, one.captured_without) == (1.0, None, None)
    assert one.direction_share == pytest.approx(1)
    assert one.captured == pytest.approx(captured(rows, directions(rows)))
    assert not one.suspicious


def test_no_child_has_no_influence():
    assert Aggregator(2).influence() == {}


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
@pytest.mark.parametrize("n_children", [3, 20])
def test_rows_that_do_not_vary_have_no_directions(kind, n_children):
    found = aggregator_of({f"{i}": summary_of(kind, np.ones((3, 4))) for i in range(n_children)}).influence()
    assert all(one.angle is None and one.direction_share == 0 for one in found.values())


@pytest.mark.parametrize("size", [1e3, 1e8, 1e60])
@pytest.mark.parametrize("n_features", [24, 100])
@pytest.mark.parametrize("kind", ["subspaces", "moments"])
def test_a_child_that_takes_the_model_hides_nothing(kind, n_features, size):
    """What is left without it is not the rounding of a difference."""
    tables = tables_of(20, n_features)
    tables["0003"] = size * np.random.default_rng(1).normal(size=(2, n_features))
    summaries = {name: summary_of(kind, rows) for name, rows in tables.items()}
    found = aggregator_of(summaries).influence()
    without = directions(np.concatenate([rows for name, rows in tables.items() if name != "0003"]))
    assert found["0003"].angle > 1
    assert found["0003"].captured_without == pytest.approx(captured(tables["0003"], without), abs=1e-4)
    assert found["0003"].suspicious


@pytest.mark.slow
def test_ranks_that_differ():
    """Children of one direction each, and of more than the joint basis has."""
    rng = np.random.default_rng(0)
    tables = tables_of(30, 100, n_rows=60)
    summaries = {name: Subspace.from_rows(rows, rank=1 + rng.integers(60)) for name, rows in tables.items()}
    tables["0000"] *= 30
    summaries["0000"] = Subspace.from_rows(tables["0000"])
    assert_as_without(aggregator_of(summaries), summaries, atol=2e-3)


def test_all_directions_of_a_model_without_a_rank():
    tables = tables_of(20, n_features=6)
    summaries = {name: Subspace.from_rows(rows) for name, rows in tables.items()}
    found = aggregator_of(summaries, rank=None).influence()
    assert all(one.angle == pytest.approx(0, abs=1e-7) for one in found.values())
    assert all(one.captured_without == pytest.approx(1) for one in found.values())


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
def test_it_depends_on_the_children_alone(kind):
    summaries = {name: summary_of(kind, rows) for name, rows in tables_of(80).items()}
    one, other = aggregator_of(summaries), aggregator_of(dict(reversed(summaries.items())))
    model = one.model()
    first = one.influence()
    assert first == one.influence()
    assert first == other.influence()
    assert one.model() == model
    one.withdraw("0003")
    assert "0003" not in one.influence()
    one.receive("0003", 2, summaries["0003"])
    assert one.influence() == first


@pytest.mark.slow
def test_of_a_thousand_children():
    tables = tables_of(1000, n_features=12, n_rows=4)
    found = aggregator_of({name: Subspace.from_rows(rows) for name, rows in tables.items()}).influence()
    some = dict(list(found.items())[::200])
    pooled = np.concatenate(list(tables.values()))
    for name, one in some.items():
        others = np.concatenate([rows for key, rows in tables.items() if key != name])
        expected = principal_angles(directions(pooled), directions(others)).max()
        assert one.angle == pytest.approx(expected, abs=1e-5)
    assert sum(one.row_share for one in found.values()) == pytest.approx(1)


# --- warnings ---


def record(summaries, rank=RANK):
    aggregator = aggregator_of(summaries, rank)
    aggregator.record()
    return aggregator.history[-1].warning


def spiked(rows, times=1.0):
    """Rows that also vary, with the energy they have, along a direction that no other child has."""
    added = np.random.default_rng(5).normal(size=(len(rows), 1))
    direction = np.ones(rows.shape[1]) / np.sqrt(rows.shape[1])
    rows = rows - rows.mean(axis=0)
    return rows + np.sqrt(times * np.sum(rows**2) / np.sum(added**2)) * added * direction


@pytest.mark.parametrize("kind", ["subspaces", "moments"])
@pytest.mark.parametrize("n_children", [5, 10, 40])
def test_a_warning_of_children_with_far_more_influence_than_rows(kind, n_children, caplog):
    tables = tables_of(n_children, unlike=0.1)
    assert record({name: summary_of(kind, rows) for name, rows in tables.items()}) == ""
    tables["0002"] = spiked(tables["0002"], 2 * n_children)
    summaries = {name: summary_of(kind, rows) for name, rows in tables.items()}
    with caplog.at_level(logging.WARNING, "fedpca.federation"):
        warning = record(summaries)
    assert "far more influence than rows: '0002'; the first has" in warning
    assert "of the variance along a direction of the model, but only" in warning
    assert warning in caplog.messages
    found = aggregator_of(summaries).influence()
    assert [name for name, one in found.items() if one.suspicious] == ["0002"]
    assert found["0002"].warning() in warning
    assert found["0001"].warning() == ""


def test_no_warning_of_children_with_a_third_of_the_rows():
    tables = tables_of(3)
    tables["0002"] = spiked(tables["0002"], 50)
    assert "influence" not in record({name: Subspace.from_rows(rows) for name, rows in tables.items()})


@pytest.mark.parametrize("rows", [np.eye(24)[:2] * 1e100, np.full((2, 24), 1e4)], ids=["long", "far"])
@pytest.mark.parametrize("first", [True, False])
def test_a_warning_of_few_rows_that_are_far_longer_than_those_of_others(rows, first):
    tables = tables_of(6)
    tables = {"huge": rows} | tables if first else tables | {"huge": rows}
    for kind in ("subspaces", "moments"):
        found = record({name: summary_of(kind, each) for name, each in tables.items()})
        assert found.startswith("far more influence than rows: 'huge'; the first has ")


# --- FederatedPCA ---


def test_federated_pca_has_it():
    tables = tables_of(20)
    pca = FederatedPCA(RANK).fit_clients(tables)
    assert_influence(pca.influence_, tables)
    assert pca.influence_["0001"].captured == pytest.approx(pca.contributions_["0001"].captured)
    assert set(FederatedPCA(2).fit(tables["0000"]).influence_) == {"all"}


def test_federated_pca_warns_of_a_client_with_far_more_influence_than_rows():
    tables = tables_of(10)
    with pytest.warns(UserWarning, match=r"far more influence than rows: '0003'; the first has"):
        FederatedPCA(RANK).fit_clients(tables | {"0003": spiked(tables["0003"], 1e3)})
