"""scale= in every carrier: StandardScaler and PCA of the pooled rows of owners of unequal size."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import aggregate, bits, power_law, shortfall
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca import (
    Aggregator,
    FederatedPCA,
    Moments,
    Privacy,
    PrivatePCA,
    Scaling,
    StreamingPCA,
    Subspace,
    merge,
)
from fedpca.errors import ModelFileError, SummaryRejected
from fedpca.federation.folder import collect, collect_scaling, publish
from fedpca.federation.one_process.simulate import Faults, simulate
from fedpca.paper.merges import merge_r
from fedpca.privacy import StepSum
from fedpca.summaries.certificate import PRIVATE_SCALE

SIZES = (1, 7, 40, 160, 392)


def owners_of(n_features=8, sizes=SIZES, units=(-6, 9), alpha=0.5):
    """Rows of owners whose means differ, in units from a millionth to a billion, far from the origin."""
    rng = np.random.default_rng(0)
    scale = np.logspace(*units, n_features)
    away = 100 * rng.normal(size=n_features)
    return {
        f"owner {i}": (power_law(rng, size, n_features, alpha) + 0.3 * rng.normal(size=n_features) + away)
        * scale
        for i, size in enumerate(sizes)
    }


def pooled(owners):
    return np.concatenate(list(owners.values()))


def assert_standard(model, rows, n_components, atol=1e-10, weights=None):
    """The model is that of scikit-learn's StandardScaler and PCA of all rows; weights are repetitions."""
    rows = rows if weights is None else np.repeat(rows, weights, axis=0)
    scaler = StandardScaler().fit(rows)
    pca = PCA(n_components, svd_solver="full").fit(scaler.transform(rows))
    model = model.subspace(n_components)
    assert model.count == len(rows)
    np.testing.assert_allclose(model.scale, scaler.scale_, rtol=1e-10)
    np.testing.assert_allclose(model.mean, scaler.mean_ / scaler.scale_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        model.singular_values**2 / (len(rows) - 1), pca.explained_variance_, rtol=atol, atol=atol
    )
    np.testing.assert_allclose(model.explained_variance_ratio, pca.explained_variance_ratio_, rtol=atol)
    found, expected = (basis.T @ basis for basis in (model.components, pca.components_))
    np.testing.assert_allclose(found, expected, atol=100 * atol)


def assert_near_standard(model, rows, n_components):
    """The same for more features than all directions are kept of."""
    standard = StandardScaler().fit(rows)
    np.testing.assert_allclose(model.scale, standard.scale_, rtol=1e-10)
    np.testing.assert_allclose(model.mean * model.scale, standard.mean_, rtol=1e-10)
    assert model.rank == n_components
    assert abs(shortfall(model.components, standard.transform(rows))) < 1e-6
    assert model.total == pytest.approx(rows.size, rel=1e-9)


# --- FederatedPCA ---


@pytest.mark.parametrize("tracker", ["auto", "nystrom", "block"])
def test_clients_in_one_process(tracker):
    """Of moments, one exchange; else two. Nothing is truncated: eight directions of eight features."""
    owners = owners_of()
    pca = FederatedPCA(8, scale="std", tracker=tracker).fit_clients(owners)
    rows = pooled(owners)
    assert_standard(pca.subspace_, rows, 8)
    np.testing.assert_allclose(pca.scale_, rows.std(axis=0), rtol=1e-10)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), rtol=1e-12)
    scores = StandardScaler().fit_transform(rows)
    np.testing.assert_allclose(
        (pca.transform(rows) ** 2).sum(axis=1), (scores**2).sum(axis=1), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(pca.inverse_transform(pca.transform(rows)), rows, rtol=1e-9)
    assert all(
        0.999 < each.captured < 1.001 for name, each in pca.contributions_.items() if name != "owner 0"
    )


def test_groups_and_data_frames():
    owners = owners_of()
    rows, groups = pooled(owners), np.repeat(list(owners), SIZES)
    frame = pd.DataFrame(rows, columns=list("abcdefgh"))
    for tracker in ("auto", "block"):
        pca = FederatedPCA(3, scale="std", tracker=tracker).fit(frame, groups=groups)
        assert_standard(pca.model_, rows, 3, 1e-10 if tracker == "auto" else 1e-6)
        assert list(pca.feature_names_in_) == list("abcdefgh")


def test_more_features_than_moments_are_kept_of():
    owners = owners_of(400, sizes=(60, 150, 500), alpha=2.0)
    pca = FederatedPCA(5, scale="std").fit_clients(owners)
    assert_near_standard(pca.model_, pooled(owners), 5)
    assert pca.contributions_["owner 1"].captured == pytest.approx(captured(owners, "owner 1", pca), abs=1e-3)


def captured(owners, name, pca):
    """The share of an owner's variance along components, of rows divided by the scale of all."""
    rows = owners[name] / pooled(owners).std(axis=0)
    rows = rows - rows.mean(axis=0)
    return ((rows @ pca.components_.T) ** 2).sum() / (rows**2).sum()


@pytest.mark.parametrize("tracker", ["auto", "block"])
def test_contributions_are_those_of_scaled_rows(tracker):
    owners = owners_of()
    pca = FederatedPCA(2, scale="std", tracker=tracker).fit_clients(owners)
    for name in list(owners)[1:]:
        expected = captured(owners, name, pca)
        assert pca.contributions_[name].captured == pytest.approx(
            expected, abs=1e-9 if tracker == "auto" else 0.01
        )


def test_the_same_rows_with_a_given_scale():
    owners = owners_of()
    scale = pooled(owners).std(axis=0)
    for tracker in ("auto", "block"):
        batches = {
            name: np.array_split(rows, 3) if len(rows) > 3 else [rows] for name, rows in owners.items()
        }
        pca = FederatedPCA(8, scale=scale, tracker=tracker).fit_clients(batches)
        assert_standard(pca.subspace_, pooled(owners), 8)


@pytest.mark.parametrize("tracker", ["auto", "block"])
def test_features_that_do_not_vary_are_named_once(tracker):
    owners = owners_of()
    for rows in owners.values():
        rows[:, 2] = 7.7
    owners["owner 1"][:, 4] = 1.0  # only there
    names = [f"feature {letter}" for letter in "abcdefgh"]
    frames = {name: pd.DataFrame(rows, columns=names) for name, rows in owners.items()}
    with pytest.warns(UserWarning, match="^feature c does not vary: it is not scaled.$") as caught:
        pca = FederatedPCA(7, scale="std", tracker=tracker).fit_clients(frames)
    assert len(caught) == 1
    assert pca.scale_[2] == 1
    assert_standard(pca.subspace_, pooled(owners), 7)
    np.testing.assert_allclose(pca.components_[:, 2], 0, atol=1e-10)


@pytest.mark.parametrize("tracker", ["auto", "nystrom"])
def test_the_scale_is_that_of_observed_entries(tracker):
    owners = owners_of(sizes=(50, 150, 300))
    rng = np.random.default_rng(1)
    for rows in owners.values():
        rows[rng.uniform(size=rows.shape) < 0.1] = np.nan
    owners["owner 0"][:, 3] = np.nan  # a feature that it does not measure
    pca = FederatedPCA(3, scale="std", tracker=tracker).fit_clients(owners)
    np.testing.assert_allclose(pca.scale_, np.nanstd(pooled(owners), axis=0), rtol=1e-10)


@pytest.mark.parametrize("tracker", ["auto", "block"])
def test_allele_counts(tracker):
    rng = np.random.default_rng(0)
    owners = {
        f"{i}": rng.binomial(2, rng.uniform(0.2, 0.8, 6), size=(n, 6)) for i, n in enumerate((30, 90, 200))
    }
    pca = FederatedPCA(6, scale="binomial", tracker=tracker).fit_clients(owners)
    rows = pooled(owners).astype(float)
    share = rows.mean(axis=0) / 2
    np.testing.assert_allclose(pca.scale_, np.sqrt(2 * share * (1 - share)), rtol=1e-12)
    expected = PCA(6).fit(rows / pca.scale_)
    np.testing.assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=1e-10)


def test_clients_that_do_not_merge_have_no_part_in_the_scale():
    owners = owners_of()
    others = {"narrow": np.full((50, 3), 1e9) * np.arange(50)[:, None], "x": owners["owner 4"] * 1e9}
    others["x"] = pd.DataFrame(others["x"], columns=list("stuvwxyz"))
    named = {name: pd.DataFrame(rows, columns=list("abcdefgh")) for name, rows in owners.items()}
    for tracker in ("auto", "block"):
        with pytest.warns(UserWarning, match="left out 2 of 7 clients"):
            pca = FederatedPCA(8, scale="std", tracker=tracker, energy=None).fit_clients(named | others)
        assert_standard(pca.subspace_, pooled(owners), 8)
        assert pca.contributions_["x"].rows == 0


@pytest.mark.parametrize("tracker", ["auto", "block"])
@pytest.mark.filterwarnings("ignore:left out features")
def test_owners_whose_columns_differ(tracker):
    owners = owners_of(sizes=(50, 80, 300))
    frames = {name: pd.DataFrame(rows, columns=list("abcdefgh")) for name, rows in owners.items()}
    frames["owner 0"] = frames["owner 0"].drop(columns="c")
    frames["owner 1"] = frames["owner 1"][list("hgfedcba")]
    pca = FederatedPCA(7, scale="std", tracker=tracker, features="intersection").fit_clients(frames)
    assert list(pca.feature_names_in_) == list("abdefgh")
    assert_standard(pca.subspace_, np.delete(pooled(owners), 2, axis=1), 7)


def test_streams_of_few_features_need_one_reading():
    owners = owners_of()
    streams = {name: iter(np.array_split(rows, max(len(rows) // 20, 1))) for name, rows in owners.items()}
    assert_standard(FederatedPCA(4, scale="std").fit_clients(streams).model_, pooled(owners), 4)


def test_rows_that_are_read_once_cannot_be_scaled_by_all_of_them():
    owners = owners_of(sizes=(40, 50))
    read = []

    def stream(rows):
        read.append(len(rows))
        yield rows

    mixed = owners | {"owner 1": stream(owners["owner 1"])}
    remedy = "'owner 1' are batches that are read once; pass tables, or as scale one number per feature"
    with pytest.raises(ValueError, match=remedy):
        FederatedPCA(3, scale="std", tracker="block").fit_clients(mixed)
    assert not read  # before anything is read
    with pytest.raises(ValueError, match="those of a client are batches that are read once"):
        FederatedPCA(3, scale="std", tracker="block").fit_clients(
            {name: stream(rows) for name, rows in owners.items()}
        )


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("mad", "scale must be None, 'std', 'binomial' or one positive number per feature, got 'mad'"),
        (np.ones(7), "scale must have one positive number per feature, 8, got shape"),
        (np.r_[np.ones(7), 0.0], "scale must be positive and finite, got 0 for feature 8"),
        (np.r_[np.ones(7), np.nan], "scale must be positive and finite, got nan"),
        ("binomial", "needs counts of an allele"),
    ],
)
@pytest.mark.parametrize("tracker", ["auto", "block"])
def test_wrong_scales(scale, message, tracker):
    owners = owners_of()
    pca = FederatedPCA(3, scale=scale, tracker=tracker)
    with pytest.raises(ValueError, match=message):
        pca.fit_clients(owners)
    assert not hasattr(pca, "model_")


def test_one_feature_that_dominates_is_a_warning():
    owners = owners_of(units=(0, 12))
    with pytest.warns(UserWarning, match="feature 8 has .* of the variance of all 8 features.*scale='std'"):
        FederatedPCA(2).fit_clients(owners)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedPCA(2, scale=np.ones(8)).fit_clients(owners)


def test_settings_can_be_copied():
    owners = owners_of()
    pca = clone(FederatedPCA(2, scale=pooled(owners).std(axis=0))).fit_clients(owners)
    assert pca.get_params()["scale"].shape == (8,)
    assert_standard(pca.model_, pooled(owners), 2)


# --- private clients ---


def private_owners(n_rows=9000, n_features=5):
    rng = np.random.default_rng(0)
    rows = (power_law(rng, n_rows, n_features, alpha=1.0, mean_size=0) + 3) * np.logspace(-3, 4, n_features)
    return dict(zip("abc", np.split(rows, [n_rows // 6, n_rows // 2]), strict=True))


def test_private_clients_find_the_scale_together():
    owners = private_owners()
    privacy = Privacy(4.0, 1e-5)
    pca = FederatedPCA(2, scale="std", privacy=privacy).fit_clients(owners)
    rows = pooled(owners)
    ratio = pca.scale_ / rows.std(axis=0)
    assert ratio.max() / ratio.min() < 1.1
    truth = PCA(2).fit(StandardScaler().fit_transform(rows))
    assert fedpca.metrics.affinity(pca.components_, truth.components_) > 0.98
    certificate = pca.model_.certificate
    assert certificate.merged == 3
    assert certificate.epsilon == 4.0
    assert certificate.scale.startswith(PRIVATE_SCALE)
    steps = [cost.step for cost in certificate.steps]
    assert (steps[0], *steps[-2:]) == ("scales", "gram", "evaluation")
    # The steps, the release and the evaluation cost what was promised, together.
    assert np.hypot.reduce([cost.mu for cost in certificate.steps]) == pytest.approx(privacy.mu, rel=1e-6)
    assert all(release.spent == pytest.approx(4.0, rel=1e-6) for release in certificate.releases)
    explained, low, high = certificate.evaluation.explained()
    assert low <= explained <= high
    assert pca.explained_variance_ratio_.sum() == pytest.approx(explained, rel=1e-6)
    assert all(each.epsilon == 4.0 and 0 < each.captured <= 1.2 for each in pca.contributions_.values())


def test_a_public_bound_and_center_do_not_keep_the_scale_from_being_found():
    owners = private_owners()
    privacy = Privacy(4.0, 1e-5, 4.0, center="pairs")
    assert not privacy.needs_steps
    pca = FederatedPCA(2, scale="std", privacy=privacy).fit_clients(owners)
    assert pca.model_.certificate.scale.startswith(PRIVATE_SCALE)
    assert pca.scale_.max() / pca.scale_.min() > 1e6


def test_private_clients_with_public_numbers():
    owners = private_owners()
    scale = np.logspace(-3, 4, 5)
    batches = {name: iter(np.array_split(rows, 4)) for name, rows in owners.items()}
    privacy = Privacy(4.0, 1e-5, 6.0, center=np.full(5, 3.0), evaluate=False)
    pca = FederatedPCA(2, scale=scale, privacy=privacy).fit_clients(batches)
    np.testing.assert_array_equal(pca.scale_, scale)
    assert pca.model_.certificate.scale == "public"


def test_who_comes_later_takes_the_scale_that_was_found_as_public():
    owners = private_owners()
    team = {name: PrivatePCA(2, scale="std", epsilon=4.0, delta=1e-5) for name in "ab"}
    while not all(pca.is_prepared for pca in team.values()):
        sums = [pca.step_sum(owners[name]) for name, pca in team.items()]
        for pca in team.values():
            pca.advance(StepSum.pooled(sums))
    releases = [pca.partial_fit(owners[name]).release() for name, pca in team.items()]
    found = releases[0]
    late = Privacy(4.0, 1e-5, found.certificate.bound or "sphere", center=found.mean, evaluate=False)
    last = PrivatePCA(2, scale=found.scale, **late.settings).fit(owners["c"]).release()
    for some in ([*releases, last], [last, *releases]):
        whole = merge(some)
        assert whole.certificate.scale == PRIVATE_SCALE  # corrected by the sum, whoever comes first
        assert merge(some, rank=2).count == 9000


def test_private_streams_cannot_share_a_scale_before_anything_is_spent():
    owners = private_owners()
    privacy = Privacy(4.0, 1e-5)
    with pytest.raises(ValueError, match="'b' are batches that are read once"):
        FederatedPCA(2, scale="std", privacy=privacy).fit_clients(owners | {"b": iter([owners["b"]])})
    with pytest.raises(
        ValueError, match="no client could contribute: ValueError: scale must be None, 'std' or"
    ):
        FederatedPCA(2, scale="binomial", privacy=privacy).fit_clients(owners)


@pytest.mark.parametrize("features", ["same", "intersection"])
def test_private_clients_of_different_columns_do_not_share_a_scale(features):
    owners = {name: pd.DataFrame(rows, columns=list("vwxyz")) for name, rows in private_owners().items()}
    owners["c"] = owners["c"].drop(columns="x")
    privacy = Privacy(4.0, 1e-5)
    with pytest.raises(ValueError, match="the columns of 'a' and 'c' differ; select the same columns of all"):
        FederatedPCA(2, scale="std", privacy=privacy, features=features).fit_clients(owners)


def test_too_few_private_rows_for_a_scale_spend_nothing():
    owners = {name: rows[:40] for name, rows in private_owners().items()}
    message = (
        "no client could contribute: ValueError: scale='std' with privacy needs about .* nothing was spent"
    )
    with pytest.raises(ValueError, match=message):
        FederatedPCA(2, scale="std", privacy=Privacy(1.0, 1e-5)).fit_clients(owners)


# --- Dask ---


@pytest.fixture
def dask_fit():
    dask = pytest.importorskip("dask", reason="the dask adapter needs dask")
    pytest.importorskip("dask.array", reason="the dask adapter is tested with dask arrays")
    from fedpca.federation.engines.dask import fit

    with dask.config.set(scheduler="synchronous"):
        yield fit


def dask_rows(owners):
    import dask.array as da

    return da.concatenate([da.from_array(rows, chunks=(len(rows), -1)) for rows in owners.values()])


@pytest.mark.parametrize("fanout", [2, 8])
def test_dask_of_few_features_takes_one_pass(dask_fit, fanout):
    owners = owners_of()
    computed = []
    data = dask_rows(owners).map_blocks(
        lambda rows: computed.append(len(rows)) or rows, dtype=float, meta=np.zeros((0, 0))
    )
    computed.clear()
    assert_standard(dask_fit(data, 8, scale="std", fanout=fanout), pooled(owners), 8)
    assert sorted(computed) == sorted(SIZES)


@pytest.mark.parametrize("fanout", [2, 8])
def test_dask_of_many_features_takes_two(dask_fit, fanout):
    owners = owners_of(300, sizes=(70, 90, 120, 300), alpha=2.0)
    model = dask_fit(dask_rows(owners), 5, scale="std", fanout=fanout)
    assert_near_standard(model, pooled(owners), 5)


def test_dask_of_as_many_components_as_features_loses_nothing(dask_fit, monkeypatch):
    """With a first pass for the scale, the second sees divided rows."""
    owners = owners_of()
    monkeypatch.setattr("fedpca.federation.engines.partitions.needs_scaling", lambda *_: True)
    assert_standard(dask_fit(dask_rows(owners), 8, scale="std", fanout=2), pooled(owners), 8)


def test_dask_data_frames_gaps_and_constant_columns(dask_fit):
    dataframe = pytest.importorskip("dask.dataframe")
    rows = pooled(owners_of(sizes=(100, 200)))
    rows[:, 2] = 7.7
    rows[np.random.default_rng(0).uniform(size=rows.shape) < 0.05] = np.nan
    data = dataframe.from_pandas(pd.DataFrame(rows, columns=list("abcdefgh")), npartitions=4)
    with pytest.warns(UserWarning, match="^c does not vary: it is not scaled.$") as caught:
        model = dask_fit(data, 3, scale="std")
    assert len(caught) == 1
    expected = np.nanstd(rows, axis=0)
    np.testing.assert_allclose(model.scale, np.where(np.arange(8) == 2, 1, expected), rtol=1e-10)
    assert model.feature_names == tuple("abcdefgh")


def test_dask_scales_are_checked_before_any_row_is_read(dask_fit):
    owners = owners_of()
    data = dask_rows(owners).map_blocks(fail, dtype=float, meta=np.zeros((0, 0)))
    for scale, message in [
        ("mad", "got 'mad'"),
        (np.ones(3), "one positive number per feature, 8, got shape"),
        (-np.ones(8), "must be positive and finite, got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            dask_fit(data, 3, scale=scale)
    scale = pooled(owners).std(axis=0)
    assert_standard(dask_fit(dask_rows(owners), 8, scale=scale), pooled(owners), 8)
    with pytest.warns(UserWarning, match="feature 8 has .* of the variance"):
        dask_fit(dask_rows(owners), 1)


def fail(rows):
    raise RuntimeError("computed")


@pytest.mark.filterwarnings("ignore:.*divide by zero")
def test_dask_allele_counts_of_some_other_kind(dask_fit):
    with pytest.raises(ValueError, match="binomial scale needs counts of an allele"):
        dask_fit(dask_rows(owners_of()), 3, scale="binomial")


# --- aggregators and stores ---


def test_an_aggregator_of_moments_has_the_scale_of_all_rows(tmp_path):
    owners = owners_of()
    aggregator = Aggregator(8, store=tmp_path / "store")
    for name, rows in reversed(owners.items()):
        aggregator.receive(name, 1, Moments.from_rows(rows, scale="std"))
    assert_standard(aggregator.model(), pooled(owners), 8)
    aggregator.close()
    restarted = Aggregator(8, store=tmp_path / "store")
    assert restarted.model() == aggregator.model()
    parent = aggregate([("region", 1, restarted.summary())], rank=8)
    assert_standard(parent.model(), pooled(owners), 8)
    restarted.withdraw("owner 3")
    left = {name: rows for name, rows in owners.items() if name != "owner 3"}
    assert_standard(restarted.model(), pooled(left), 8)


def test_an_aggregator_of_subspaces_has_the_scale_that_was_exchanged():
    owners = owners_of()
    scale = Scaling.merge(map(Scaling.from_rows, owners.values())).scale("std")
    for kinds in ([Subspace] * 5, [Moments] * 5, [Subspace, Moments, Subspace, Moments, Moments]):
        aggregator = Aggregator(8)
        for kind, (name, rows) in zip(kinds, owners.items(), strict=True):
            aggregator.receive(name, 1, kind.from_rows(rows, scale=scale))
        assert_standard(aggregator.model(), pooled(owners), 8)


def test_weights_are_repetitions():
    owners = owners_of(sizes=(15, 20, 60))
    rng = np.random.default_rng(0)
    weights = {name: rng.integers(1, 5, len(rows)) for name, rows in owners.items()}
    scalings = [Scaling.from_rows(rows, sample_weight=weights[name]) for name, rows in owners.items()]
    scale = Scaling.merge(scalings).scale("std")
    for given in ("std", scale):
        aggregator = Aggregator(8)
        for name, rows in owners.items():
            pca = StreamingPCA(8, scale=given).fit(rows, sample_weight=weights[name])
            aggregator.receive(name, 1, pca.summary_)
        assert_standard(aggregator.model(), pooled(owners), 8, weights=np.concatenate(list(weights.values())))


KINDS = {
    "none": lambda rows: Moments.from_rows(rows),
    "std": lambda rows: Moments.from_rows(rows, scale="std"),
    "numbers": lambda rows: Moments.from_rows(rows, scale=np.arange(1.0, 9.0)),
    "subspace, none": lambda rows: Subspace.from_rows(rows),
    "subspace, numbers": lambda rows: Subspace.from_rows(rows, scale=np.arange(1.0, 9.0)),
    "subspace, others": lambda rows: Subspace.from_rows(rows, scale=np.arange(2.0, 10.0)),
}


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_summaries_merge_if_they_have_the_same_scale(first, second):
    owners = owners_of()
    ours, theirs = KINDS[first](owners["owner 3"]), KINDS[second](owners["owner 4"])
    aggregator = aggregate([("ours", 1, ours)], rank=3)
    if first.removeprefix("subspace, ") == second.removeprefix("subspace, "):
        aggregator.receive("theirs", 1, theirs)
        assert aggregator.model().count == 552
        return
    message = r"must have the same scale, got .* and .*; fit all with the same (scale|numbers)"
    with pytest.raises(SummaryRejected, match=message):
        aggregator.receive("theirs", 1, theirs)
    with pytest.raises(ValueError, match=message):
        merge([ours, theirs])
    if isinstance(ours, Subspace) and isinstance(theirs, Subspace):
        with pytest.raises(ValueError, match=message):
            merge_r(ours, theirs, rank=2)
    assert aggregator.model().count == 160
    assert aggregator.history[-1].reason.startswith("summaries must have the same scale")
    # Alone, a child may change its mind.
    assert aggregator.receive("ours", 2, theirs)


def test_other_features_are_reported_before_another_scale():
    aggregator = aggregate([("a", 1, Subspace.from_rows(owners_of()["owner 3"], scale=np.ones(8)))])
    with pytest.raises(SummaryRejected, match="must have the same features, got 8 and 3"):
        aggregator.receive("b", 1, Subspace.from_rows(np.eye(3), scale=np.ones(3)))


def test_the_expected_scale():
    rows = owners_of()["owner 3"]
    expected = Subspace.empty(8).with_about(scale=np.arange(1.0, 9.0))
    aggregator = Aggregator(expected=expected)
    with pytest.raises(SummaryRejected, match="must have the same scale, got numbers and 'std'"):
        aggregator.receive("a", 1, KINDS["std"](rows))
    assert aggregator.receive("a", 1, KINDS["numbers"](rows))
    assert Aggregator(expected=Subspace.empty(8)).receive("a", 1, KINDS["std"](rows))


def test_a_store_of_several_scales_keeps_what_most_have(tmp_path):
    """Only copying files makes one; whoever is in the minority is quarantined, with the reason."""
    owners = owners_of()
    for i, (name, rows) in enumerate(owners.items()):
        kind = "none" if i == 0 else "std"
        with Aggregator(store=tmp_path / kind) as aggregator:
            aggregator.receive(name, 1, KINDS[kind](rows))
    for path in (tmp_path / "none").glob("*.state"):
        path.rename(tmp_path / "std" / path.name)
    with Aggregator(store=tmp_path / "std") as aggregator:
        assert sorted(aggregator.children) == [f"owner {i}" for i in range(1, 5)]
        assert "same scale" in aggregator.quarantined["owner 0"]


def test_a_scaling_that_claims_more_than_the_rows_is_rejected():
    rows = owners_of(units=(0, 2))["owner 4"]
    rows[::7, 1] = np.nan
    honest = StreamingPCA(scale="std").fit(rows).summary_
    aggregator = aggregate([("a", 1, honest)])
    own = honest.scaling
    for forged in (
        Scaling(own.observed * 2, own.mean, own.variance),
        Scaling(own.observed, own.mean, own.variance * 1e30),
        Scaling(own.observed, own.mean + 1e6, own.variance),
    ):
        with pytest.raises(SummaryRejected, match="more observed entries, or larger ones, than its rows"):
            aggregator.receive("b", 1, honest.with_about(scale="std", scaling=forged))
    assert aggregator.receive("b", 1, honest)
    counts = Moments.from_rows(rows[~np.isnan(rows[:, 1])] ** 2 + 3, scale="std").with_about(scale="binomial")
    with pytest.raises(SummaryRejected, match="needs counts of an allele"):
        Aggregator().receive("a", 1, counts)


def test_a_private_summary_states_where_its_scale_came_from():
    privacy = Privacy(4.0, 1e-5, 6.0, center=None, evaluate=False)
    rows = private_owners()["c"]
    scaled = PrivatePCA(2, scale=np.logspace(-3, 4, 5), **privacy.settings).fit(rows).release()
    assert Aggregator(privacy=privacy).receive("a", 1, scaled)
    forged = scaled.with_about(certificate=replace(scaled.certificate, scale="magic"))
    with pytest.raises(SummaryRejected, match="its scale is 'magic'; known are private"):
        Aggregator(privacy=privacy).receive("a", 1, forged)
    forged = scaled.with_about(certificate=replace(scaled.certificate, scale=None))
    with pytest.raises(SummaryRejected, match="must state where its scale came from"):
        Aggregator(privacy=privacy).receive("a", 1, forged)


# --- a shared folder ---


def test_moments_in_a_folder_take_one_exchange(tmp_path):
    owners = owners_of()
    for name, rows in owners.items():
        publish(tmp_path, name, 1, StreamingPCA(3, scale="std").fit(rows).summary_) if len(
            rows
        ) > 1 else publish(tmp_path, name, 1, Moments.from_rows(rows, scale="std"))
    aggregator = Aggregator(8)
    assert collect(tmp_path, aggregator) == []
    assert_standard(aggregator.model(), pooled(owners), 8)


def test_two_exchanges_in_a_folder(tmp_path):
    owners = owners_of()
    for name, rows in owners.items():
        path = publish(tmp_path, name, 1, Scaling.from_rows(rows))
        assert publish(tmp_path, name, 1, Scaling.from_rows(rows)) == path
        assert isinstance(fedpca.load(path), Scaling)
    assert Path(path).name == "owner%204.1.scaling.safetensors"
    collected = collect_scaling(tmp_path)
    assert collected.owners == tuple(owners)
    assert collected.skipped == ()
    scale = collected.scaling.scale("std")
    aggregator = Aggregator(8)
    assert collect(tmp_path, aggregator) == []  # a scaling is no summary
    assert not aggregator.children
    for name, rows in owners.items():
        publish(tmp_path, name, 1, Subspace.from_rows(rows, scale=scale))
    assert collect(tmp_path, aggregator) == []
    assert_standard(aggregator.model(), pooled(owners), 8)
    assert not any(event.warning for event in aggregator.history if event.what == "accepted")
    assert collect_scaling(tmp_path) == collected  # a summary is no scaling


def test_who_was_not_in_the_exchange_is_accepted_and_named(tmp_path):
    owners = owners_of()
    *early, late = owners
    for name in early:
        publish(tmp_path, name, 1, Scaling.from_rows(owners[name]))
    scale = collect_scaling(tmp_path).scaling.scale("std")
    for name, rows in owners.items():
        publish(tmp_path, name, 1, Subspace.from_rows(rows, scale=scale))
    aggregator = Aggregator(8)
    assert collect(tmp_path, aggregator) == []
    assert sorted(aggregator.children) == sorted(owners)
    told = {event.child: event.warning for event in aggregator.history if event.what == "accepted"}
    assert told.pop(late).startswith(
        "not in the scale: its rows are divided by that of the owners who published"
    )
    assert not any(told.values())
    np.testing.assert_allclose(
        aggregator.model().scale, np.concatenate([owners[name] for name in early]).std(axis=0), rtol=1e-10
    )
    # Without numbers there was no exchange to be in.
    other = tmp_path / "other"
    other.mkdir()
    publish(other, "a", 1, Scaling.from_rows(owners[late]))
    publish(other, "b", 1, Moments.from_rows(owners[late], scale="std"))
    plain = Aggregator()
    assert collect(other, plain) == []
    assert plain.history[0].warning == ""


def test_files_of_one_kind_never_count_as_the_other(tmp_path):
    rows = owners_of()["owner 3"]
    scaling = Path(publish(tmp_path, "a", 1, Scaling.from_rows(rows)))
    summary = Path(publish(tmp_path, "b", 1, Moments.from_rows(rows, scale="std")))
    scaling.with_name("a.1.safetensors").write_bytes(scaling.read_bytes())
    scaling.with_name("c.1.safetensors").write_bytes(scaling.read_bytes())
    summary.with_name("b.1.scaling.safetensors").write_bytes(summary.read_bytes())
    summary.with_name("d.1.scaling.safetensors").write_bytes(summary.read_bytes())
    scaling.with_name("e.1.scaling.safetensors").write_bytes(scaling.read_bytes())
    aggregator = Aggregator()
    reasons = {item.file: item.reason for item in collect(tmp_path, aggregator)}
    assert reasons.keys() == {"a.1.safetensors", "c.1.safetensors"}
    assert "got Scaling" in reasons["a.1.safetensors"]
    assert reasons["c.1.safetensors"].startswith("renamed")
    assert list(aggregator.children) == ["b"]
    collected = collect_scaling(tmp_path)
    assert collected.owners == ("a",)
    reasons = {item.file: item.reason.split(":")[0] for item in collected.skipped}
    assert reasons.pop("b.1.scaling.safetensors") == "it must have a scaling, and has 'moments'."
    assert reasons == {"d.1.scaling.safetensors": "renamed", "e.1.scaling.safetensors": "renamed"}
    with pytest.raises(ModelFileError, match="must be a model, but is a Scaling"):
        fedpca.summaries.loading.load_summary(scaling)


def test_no_file_stops_a_collection_of_scalings(tmp_path):
    owners = owners_of()
    for name, rows in owners.items():
        publish(tmp_path, name, 1, Scaling.from_rows(rows))
    expected = collect_scaling(tmp_path)
    publish(tmp_path, "narrow", 1, Scaling.from_rows(np.eye(3)))
    newest = Path(publish(tmp_path, "owner 2", 2, Scaling.from_rows(owners["owner 2"] * 2)))
    newest.write_bytes(newest.read_bytes()[:-9])
    (tmp_path / "large.1.scaling.safetensors").write_bytes(bytes(20_000))
    (tmp_path / "notes.txt").write_text("meeting at ten")
    (tmp_path / ".hidden.1.scaling.safetensors").write_bytes(b"")
    collected = collect_scaling(tmp_path, max_bytes=10_000)
    reasons = {item.file.split(".")[0]: item.reason for item in collected.skipped}
    assert collected.scaling == expected.scaling
    assert collected.owners == expected.owners
    assert reasons["narrow"].startswith("scalings must have the same features, got 8 and 3")
    assert "damaged" in reasons["owner%202"]
    assert "more than max_bytes=10000" in reasons["large"]
    assert set(reasons) == {"narrow", "owner%202", "large"}


def test_an_exchange_without_anybody(tmp_path):
    with pytest.raises(ValueError, match=r"there is no scaling in .*: none yet\. Let every owner publish"):
        collect_scaling(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        collect_scaling(tmp_path / "missing")
    publish(tmp_path, "a", 1, Scaling.from_rows(np.eye(3)))
    with pytest.raises(FileExistsError, match="already exists with other contents"):
        publish(tmp_path, "a", 1, Scaling.from_rows(np.eye(3) * 2))
    with pytest.raises(TypeError, match="a summary must be a Subspace or Moments, got int"):
        publish(tmp_path, "a", 2, 7)


def test_a_newer_scaling_replaces_an_older_one(tmp_path):
    rows = owners_of()["owner 4"]
    publish(tmp_path, "a", 1, Scaling.from_rows(rows[:9]))
    publish(tmp_path, "a", 10, Scaling.from_rows(rows))
    publish(tmp_path, "a", 9, Scaling.from_rows(rows[:50]))
    assert collect_scaling(tmp_path).scaling == Scaling.from_rows(rows)


def test_a_bucket_holds_scalings(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
    rows = owners_of()["owner 4"]
    url = "memory://scalings/study"
    assert publish(url, "a", 1, Scaling.from_rows(rows)) == f"{url}/a.1.scaling.safetensors"
    assert collect_scaling(url).scaling == Scaling.from_rows(rows)
    files, path = fsspec.url_to_fs(url)
    files.rm(path, recursive=True)


# --- simulations and the command line ---


@pytest.mark.parametrize("n_features", [8, 300])
def test_faults_do_not_change_a_scaled_model(n_features):
    owners = owners_of(n_features, sizes=(30, 40, 60, 90), alpha=2.0)
    clients = {name: np.array_split(rows, 3) for name, rows in owners.items()}
    faults = Faults(stragglers=0.5, late=0.3, duplicates=0.5, crashes=0.2, seed=3)
    faulty, reference = (simulate(clients, 3, faults=some, fanout=2, scale="std") for some in (faults, None))
    assert bits(faulty.model) == bits(reference.model)
    (assert_standard if n_features == 8 else assert_near_standard)(faulty.model, pooled(owners), 3)


def test_the_command_line_simulates_and_merges_scaled_models(tmp_path, monkeypatch):
    from command_line import invoke

    def run(*arguments):
        return invoke(arguments)

    monkeypatch.chdir(tmp_path)
    owners = owners_of(sizes=(7, 40, 160), units=(-2, 3))
    frames = [pd.DataFrame(rows, columns=list("abcdefgh")).assign(site=name) for name, rows in owners.items()]
    pd.concat(frames).to_csv("all.csv", index=False)
    result = run("simulate", "all.csv", "--client", "site", "--scale", "std", "-n", 2, "--json")
    assert result.exit_code == 0, result.output
    described = json.loads(result.stdout)
    assert described["same_as_without_faults"] is True
    expected = PCA(2).fit(StandardScaler().fit_transform(pooled(owners)))
    assert described["explained"] == pytest.approx(expected.explained_variance_ratio_.sum(), rel=1e-9)
    assert run("simulate", "--scale", "mad").exit_code == 2
    for i, frame in enumerate(frames):
        frame.to_csv(f"{i}.csv", index=False)
        fitted = run("fit", f"{i}.csv", "--drop", "site", "--scale", "std", "-n", 5, "-o", f"{i}.safetensors")
        assert fitted.exit_code == 0, fitted.output
    models = [f"{i}.safetensors" for i in range(3)]
    assert run("merge", *models, "-o", "whole.safetensors").exit_code == 0
    assert_standard(fedpca.load("whole.safetensors"), pooled(owners), 8)
    raw = run("fit", "0.csv", "--drop", "site", "-n", 2, "-o", "raw.safetensors")
    assert raw.exit_code == 0, raw.output
    failed = run("merge", "raw.safetensors", "1.safetensors", "-o", "wrong.safetensors")
    assert failed.exit_code != 0
    assert (
        "summaries must have the same scale, got none and 'std'; fit all with the same scale" in failed.stderr
    )
    assert not Path("wrong.safetensors").exists()
