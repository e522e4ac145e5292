"""FederatedPCA: the same components as if all clients' rows were in one place."""

import pickle
import threading
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import power_law, shortfall
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import fedpca
from fedpca import BudgetExceeded, FederatedPCA, Ledger, Privacy, PrivatePCA, StreamingPCA


def unequal_clients(n_features=12, seed=0):
    """Clients of different sizes, means and directions."""
    rng = np.random.default_rng(seed)
    sizes = [5, 60, 400, 30, 200]
    return {
        f"client {i}": power_law(rng, n, n_features) + rng.normal(size=n_features)
        for i, n in enumerate(sizes)
    }


def test_the_components_are_those_of_all_rows():
    clients = unequal_clients()
    rows = np.concatenate(list(clients.values()))
    pca, pooled = FederatedPCA(4).fit_clients(clients), PCA(4).fit(rows)
    np.testing.assert_allclose(pca.explained_variance_, pooled.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_ratio_, pooled.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(pca.components_ @ pooled.components_.T), np.eye(4), atol=1e-7)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0))
    assert pca.n_samples_seen_ == len(rows)
    assert pca.model_.rank == 4
    assert pca.model_.count == len(rows)


@pytest.mark.parametrize("tracker", ["auto", "nystrom", "block", "exact"])
def test_every_tracker_and_many_features(tracker):
    clients = unequal_clients(n_features=300)
    rows = np.concatenate(list(clients.values()))
    pca = FederatedPCA(5, tracker=tracker, fanout=2).fit_clients(clients)
    assert shortfall(pca.components_, rows) < 1e-3


def test_groups_are_clients():
    rows = np.concatenate(list(unequal_clients().values()))
    groups = np.repeat(["a", "b", "c"], [100, 195, 400])
    pca = FederatedPCA(3).fit(rows, groups=groups)
    assert {name: given.rows for name, given in pca.contributions_.items()} == {"a": 100, "b": 195, "c": 400}
    alone = FederatedPCA(3).fit(rows)
    assert list(alone.contributions_) == ["all"]
    np.testing.assert_allclose(pca.explained_variance_, alone.explained_variance_)
    shuffled = np.random.default_rng(0).permutation(695)
    again = FederatedPCA(3).fit(rows[shuffled], groups=groups[shuffled])
    np.testing.assert_allclose(again.explained_variance_, pca.explained_variance_)


@pytest.mark.parametrize(
    "fit",
    [
        lambda rows: FederatedPCA(1).fit_clients({"": rows, "a": rows}),
        lambda rows: FederatedPCA(1).fit(rows, groups=["", "a"] * 15),
        lambda rows: FederatedPCA(1).fit_clients({"x" * 1001: rows}),
    ],
)
def test_a_client_without_a_name_of_its_own_is_rejected(fit):
    with pytest.raises((TypeError, ValueError), match="the name of a client must"):
        fit(np.random.default_rng(0).normal(size=(30, 4)))


@pytest.mark.parametrize(
    "fit",
    [
        lambda rows: FederatedPCA(1).fit_clients({1: rows[:15], "1": rows[15:]}),
        lambda rows: FederatedPCA(1).fit(rows, groups=np.array([1, "1"] * 15, dtype=object)),
    ],
)
def test_two_clients_of_one_name_are_rejected(fit):
    with pytest.raises(ValueError, match="two are called '1'; rename one"):
        fit(np.random.default_rng(0).normal(size=(30, 4)))


@pytest.mark.parametrize(
    "groups",
    [
        np.array(["a", None] * 15, dtype=object),
        pd.Series(["a", pd.NA] * 15),
        pd.Series(["a", np.nan] * 15, dtype=object),
        np.array([1.0, np.nan] * 15),
        np.array(["2026-01-01", "NaT"] * 15, dtype="datetime64[ns]"),
    ],
)
def test_rows_without_a_client_are_rejected(groups):
    rows = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(ValueError, match="15 of 30 have none, the first at index 1; name their client"):
        FederatedPCA(1).fit(rows, groups=groups)


def test_groups_of_several_types_are_clients():
    rows = np.random.default_rng(0).normal(size=(30, 4))
    pca = FederatedPCA(1).fit(rows, groups=np.array(["b", 7, ("x", 1)] * 10, dtype=object))
    assert {name: given.rows for name, given in pca.contributions_.items()} == {
        "7": 10, "b": 10, "('x', 1)": 10,
    }  # fmt: skip


def test_most_clients_decide_on_the_features():
    rows = power_law(np.random.default_rng(0), 400, 8)
    expected = FederatedPCA(2).fit_clients({"b": rows[100:200], "c": rows[200:300], "d": rows[300:]})
    with pytest.warns(UserWarning, match="left out 1 of 4 clients.*8 and 5"):
        pca = FederatedPCA(2).fit_clients(
            {"a": rows[:100, :5], "b": rows[100:200], "c": rows[200:300], "d": rows[300:]}
        )
    assert pca.model_ == expected.model_
    assert pca.n_features_in_ == 8
    with pytest.warns(UserWarning, match="left out 1 of 2 clients"):  # of as many, those with more rows
        assert FederatedPCA(2).fit_clients({"a": rows[:100, :5], "b": rows[100:]}).model_.count == 300


def test_most_clients_decide_on_the_names():
    frame = pd.DataFrame(power_law(np.random.default_rng(0), 80, 3), columns=list("abc"))
    clients = {"1": frame[:10].to_numpy(), "2": frame[10:30][list("bac")], "3": frame[30:50], "4": frame[50:]}
    with pytest.warns(UserWarning, match="left out 1 of 4 clients.*'2'"):
        pca = FederatedPCA(2).fit_clients(clients)
    assert pca.model_.feature_names == ("a", "b", "c")
    assert list(pca.feature_names_in_) == ["a", "b", "c"]
    again = pca.fit_clients({"1": frame.to_numpy()})
    assert not hasattr(again, "feature_names_in_")


def test_the_precision_is_that_of_the_most_precise_client():
    rows = power_law(np.random.default_rng(0), 90, 4)
    coarse, half = rows[:30].astype(np.float32), rows[:30].astype(np.float16)
    assert FederatedPCA(2).fit_clients({"a": coarse, "b": rows[30:]}).components_.dtype == np.float64
    assert FederatedPCA(2).fit_clients({"a": coarse, "b": half}).components_.dtype == np.float32


@pytest.mark.filterwarnings("ignore:n_components=")
def test_rows_that_do_not_vary_have_a_model_without_components():
    pca = FederatedPCA(2).fit_clients({"a": np.ones((5, 3)), "b": np.ones((7, 3))})
    assert (pca.n_components_, pca.model_.rank, pca.model_.count) == (0, 0, 12)
    np.testing.assert_array_equal(pca.model_.mean, 1.0)


def test_clients_bring_rows_in_any_form_and_any_number_of_batches():
    clients = unequal_clients()
    rows = np.concatenate(list(clients.values()))
    forms = dict(clients)
    forms["client 0"] = sparse.csr_array(clients["client 0"])
    forms["client 2"] = (batch for batch in np.array_split(clients["client 2"], 13))
    forms["client 3"] = [clients["client 3"][:1], clients["client 3"][1:]]
    forms["client 4"] = clients["client 4"].astype(np.float32)
    pca = FederatedPCA(3).fit_clients(forms)
    np.testing.assert_allclose(pca.explained_variance_, PCA(3).fit(rows).explained_variance_, rtol=1e-6)


def test_the_result_does_not_depend_on_threads_or_on_the_order_of_clients():
    clients = unequal_clients(n_features=300)
    models = [
        FederatedPCA(3, n_jobs=jobs).fit_clients(dict(sorted(clients.items(), reverse=turn))).components_
        for jobs, turn in ((1, False), (4, True), (None, False))
    ]
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])


def test_clients_run_in_threads_at_once():
    barrier = threading.Barrier(3, timeout=20)

    def batches(seed):
        barrier.wait()  # only passes if all three are running
        yield power_law(np.random.default_rng(seed), 50, 5)

    pca = FederatedPCA(2, n_jobs=3).fit_clients({str(seed): batches(seed) for seed in range(3)})
    assert pca.n_samples_seen_ == 150


def test_contributions_say_what_each_gave():
    clients = unequal_clients()
    pca = FederatedPCA(3).fit_clients(clients)
    assert list(pca.contributions_) == sorted(clients)
    for name, given in pca.contributions_.items():
        rows = clients[name]
        deviations = rows - rows.mean(axis=0)
        share = np.sum((deviations @ pca.components_.T) ** 2) / np.sum(deviations**2)
        assert given.captured == pytest.approx(share, rel=1e-6)
        assert (given.rows, given.epsilon, given.problem) == (len(rows), None, "")


def test_a_client_that_fails_is_left_out_with_a_warning():
    clients = unequal_clients()
    right = FederatedPCA(3).fit_clients({name: clients[name] for name in ("client 1", "client 2")})

    def breaks():
        yield clients["client 3"]
        raise OSError("the disk is gone")

    bad = {
        "client 1": clients["client 1"],
        "client 2": clients["client 2"],
        "breaks": breaks(),
        "infinite": np.full((3, 12), np.inf),
        "too large for a summary": 1e149 * np.vander(np.linspace(-1, 1, 40), 12),
        "other features": np.ones((4, 7)),
        "no rows": 7,
        "empty": [],
    }
    with pytest.warns(UserWarning, match="left out 6 of 8 clients"):
        pca = FederatedPCA(3).fit_clients(bad)
    np.testing.assert_array_equal(pca.components_, right.components_)
    problems = {name: given.problem for name, given in pca.contributions_.items() if given.problem}
    assert set(problems) == set(bad) - {"client 1", "client 2"}
    assert "below 1.8e+300" in problems["too large for a summary"]
    assert "the disk is gone" in problems["breaks"]
    assert "infinity" in problems["infinite"]
    assert "12 and 7" in problems["other features"]


def test_nothing_is_learned_if_nobody_can_contribute():
    pca = FederatedPCA(2)
    with pytest.raises(ValueError, match="no client could contribute"):
        pca.fit_clients({"a": np.full((3, 4), np.inf), "b": []})
    with pytest.raises(ValueError, match="infinity"):
        pca.fit(np.full((3, 4), np.inf))
    assert not hasattr(pca, "components_")


@pytest.mark.parametrize(
    ("settings", "call", "match"),
    [
        ({"fanout": 1}, {}, "fanout"),
        ({"n_jobs": 0}, {}, "n_jobs"),
        ({}, {"groups": [1, 2]}, "groups must name the client of every row, 30"),
        ({"n_components": 99}, {}, "n_components"),
        ({"tracker": "magic"}, {}, "tracker"),
        ({"privacy": 3}, {}, "privacy"),
    ],
)
def test_bad_settings(settings, call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        FederatedPCA(**settings).fit(np.ones((30, 4)), **call)


@pytest.mark.parametrize("clients", [{}, [np.ones((3, 2))], None])
def test_clients_must_have_names(clients):
    with pytest.raises(TypeError, match="mapping from names"):
        FederatedPCA(1).fit_clients(clients)


def test_feature_names_are_kept_and_checked():
    frame = pd.DataFrame(power_law(np.random.default_rng(0), 60, 3), columns=list("abc"))
    pca = FederatedPCA(2).fit_clients({"x": frame[:20], "y": frame[20:]})
    assert pca.model_.feature_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="feature names"):
        pca.transform(frame[list("bac")])
    with pytest.warns(UserWarning, match="left out"):
        FederatedPCA(2).fit_clients({"x": frame[:20], "y": frame[20:][list("bac")]})


def test_it_is_a_transformer_that_copies_and_pickles():
    rows = np.concatenate(list(unequal_clients().values()))
    pca = FederatedPCA(3, whiten=True).fit(rows)
    twin = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(twin.transform(rows), pca.transform(rows))
    assert clone(pca).get_params() == pca.get_params()
    plain = StreamingPCA(3, whiten=True).fit(rows)
    np.testing.assert_allclose(np.abs(pca.transform(rows)), np.abs(plain.transform(rows)), atol=1e-6)


@pytest.mark.parametrize("n_components", [None, 0.9])
def test_the_number_of_components_may_be_left_open(n_components):
    rows = np.concatenate(list(unequal_clients().values()))
    pca = FederatedPCA(n_components).fit(rows, groups=np.arange(len(rows)) % 3)
    expected = 12 if n_components is None else StreamingPCA(0.9).fit(rows).n_components_
    assert pca.n_components_ == expected


# --- private ---


def test_private_clients_release_and_are_summed():
    rows = power_law(np.random.default_rng(0), 30_000, 10, mean_size=0.0)
    privacy = Privacy(4.0, 1e-6, 3.0, center=np.zeros(10), evaluate=False)
    pca = FederatedPCA(2, privacy=privacy).fit(rows, groups=np.arange(30_000) % 3)
    certificate = pca.model_.certificate
    assert certificate.private
    assert (certificate.epsilon, certificate.merged) == (4.0, 3)
    assert fedpca.metrics.affinity(pca, fedpca.Subspace.from_rows(rows, 2)) > 0.98
    assert {given.epsilon for given in pca.contributions_.values()} == {4.0}
    drowned = replace(privacy, epsilon=0.02)
    assert FederatedPCA(privacy=drowned).fit(rows).n_components_ < 10  # those above the noise


@pytest.mark.parametrize("bound", [40.0, "private"])
def test_private_clients_share_what_they_find(bound):
    """What each would find alone is noisier, and does not add up."""
    digits = load_digits().data
    exact, groups = fedpca.Subspace.from_rows(digits, 5), np.arange(len(digits)) % 10
    privacy = Privacy(2.0, 1e-5, bound, evaluate=False)
    shared = [FederatedPCA(5, privacy=privacy).fit(digits, groups=groups) for _ in range(3)]
    together = np.mean([fedpca.metrics.affinity(pca, exact) for pca in shared])
    assert together > 0.55  # 0.70 ± 0.03, 0.75 ± 0.03
    assert {pca.model_.certificate.center for pca in shared} == {"private"}
    apart = [PrivatePCA(5, **privacy.settings).fit(digits[groups == g]).release() for g in range(10)]
    if bound == "private" or len({release.certificate.clipping for release in apart}) > 1:  # noise decides
        remedy = "let all owners take the private steps together, or give all the"
        with pytest.raises(ValueError, match=remedy):
            fedpca.merge(apart, rank=5)


def test_shared_private_steps_are_paid_for_by_every_client(tmp_path):
    rows = power_law(np.random.default_rng(0), 2000, 5)
    ledger = Ledger(tmp_path / "ledger", epsilon=2.0, delta=1e-5)
    pca = FederatedPCA(2, privacy=Privacy(2.0, 1e-5, ledger=ledger)).fit(rows)
    paid = [(entry.mechanism, entry.mu) for entry in ledger.entries]
    first, *means, released, evaluated = [name for name, _ in paid]
    assert (first, released, evaluated) == ("lengths and spread", "gram", "evaluation")
    assert set(means) == {"mean"}
    certificate = pca.model_.certificate
    assert [(step.step, step.mu) for step in certificate.steps] == paid
    assert ledger.spent() == pytest.approx(2.0)
    assert certificate.ledger.spent == ledger.spent()


def test_a_client_with_other_features_neither_shares_the_center_nor_moves_it():
    rows = power_law(np.random.default_rng(0), 2000, 6) + 1.0
    privacy = Privacy(4.0, 1e-5, 4.0, center="private", insecure_seed_for_tests=1, evaluate=False)
    others = {"a": rows[:900], "b": rows[900:]}
    with pytest.warns(UserWarning, match="left out 1 of 3 clients"):
        pca = FederatedPCA(2, privacy=privacy).fit_clients(others | {"c": rows[:, :4]})
    expected = FederatedPCA(2, privacy=privacy).fit_clients(others)
    np.testing.assert_array_equal(pca.mean_, expected.mean_)
    np.testing.assert_array_equal(pca.components_, expected.components_)


def test_private_clients_may_stream():
    rows = power_law(np.random.default_rng(0), 3000, 6, mean_size=0.0)
    privacy = Privacy(4.0, 1e-6, 3.0, center=None, evaluate=False)
    batches = {str(i): iter(np.array_split(part, 5)) for i, part in enumerate(np.array_split(rows, 3))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pca = FederatedPCA(2, privacy=privacy, center=False).fit_clients(batches)
    assert pca.n_samples_seen_ == 3000
    assert pca.model_.certificate.merged == 3


def test_one_ledger_is_not_for_several_clients(tmp_path):
    rows = power_law(np.random.default_rng(0), 600, 5)
    for ledger in (tmp_path / "ledger", Ledger(tmp_path / "another", epsilon=9.0, delta=1e-5)):
        privacy = Privacy(1.0, 1e-5, 3.0, ledger=ledger, center=None, evaluate=False)
        with pytest.raises(ValueError, match="one PrivatePCA per client, each with its own ledger"):
            FederatedPCA(2, privacy=privacy).fit(rows, groups=np.arange(600) % 3)
    assert not (tmp_path / "ledger").exists()
    assert Ledger(tmp_path / "another").spent() == 0


def test_clients_that_share_a_ledger_are_one_owner(tmp_path):
    rows = power_law(np.random.default_rng(0), 600, 5)
    ledger = Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    privacy = Privacy(1.0, 1e-5, 3.0, ledger=ledger, center=None, evaluate=False)
    FederatedPCA(2, privacy=privacy).fit(rows)
    with pytest.raises(BudgetExceeded):
        FederatedPCA(2, privacy=privacy).fit(rows)
