"""Unknown is not zero: a feature without an observed value adds nothing to mean and scatter."""

import itertools
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedpca
from fedpca import FederatedPCA, Moments, StreamingPCA, Subspace, fit_files, merge, merge_tree
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.readers import open_rows
from fedpca.summaries import model_file
from fedpca.summaries.patchwork import MAX_PARTS
from reproduction.baselines import BASELINES

pytestmark = pytest.mark.slow  # all of it together

TRACKERS = ["exact", "nystrom", "block"]


def leaf(rows, missing=()):
    """Moments of rows that do not know the missing features."""
    known = ~np.isin(np.arange(rows.shape[1]), list(missing))
    moments = Moments.from_rows(np.where(known, rows, 0.0))
    return replace(moments, observed=np.where(known, moments.count, 0.0))


def available_cases(rows):
    """Means and covariances over the rows that have the entries, by numpy alone."""
    present = ~np.isnan(rows)
    mean = np.where(present, rows, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    deviations = np.where(present, rows - mean, 0.0)
    pairs = present.T.astype(float) @ present
    return mean, deviations.T @ deviations / np.maximum(pairs, 1)


@pytest.fixture
def late(rng):
    """A sensor about 300 that starts half-way, correlated with another; and the same without gaps."""
    rows = rng.normal(size=(2000, 6))
    rows[:, 3] += 300
    rows[:, 2] = 0.5 * rows[:, 2] + rows[:, 3] - 300
    gappy = rows.copy()
    gappy[:1000, 3] = np.nan
    return gappy, rows


def in_batches(pca, rows, size):
    for start in range(0, len(rows), size):
        pca.partial_fit(rows[start : start + size])
    return pca


# --- streams ---


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("size", [1, 7, 100, 333, 2000])
def test_a_sensor_that_starts_half_way(tracker, size, late):
    gappy, rows = late
    pca = in_batches(StreamingPCA(6, tracker=tracker), gappy, size)
    true_mean, true_covariance = rows.mean(axis=0), np.cov(rows.T)
    np.testing.assert_allclose(pca.mean_, true_mean, atol=0.1)
    covariance = pca.summary_.scatter / pca.summary_.count
    assert covariance[3, 3] == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(covariance, true_covariance, atol=0.15)
    np.testing.assert_allclose(pca.explained_variance_, np.linalg.eigvalsh(true_covariance)[::-1], atol=0.15)
    assert pca.n_samples_seen_ == 2000


@pytest.mark.parametrize("tracker", BASELINES, ids=lambda tracker: tracker.__name__)
@pytest.mark.parametrize("size", [100, 2000])
def test_a_late_sensor_in_the_trackers_for_comparison(tracker, size, late):
    gappy, rows = late
    early = in_batches(StreamingPCA(2, tracker=tracker), gappy[:1000], size)
    assert not early.components_[:, 3].any()
    assert early.summary_.observed[3] == 0
    pca = in_batches(StreamingPCA(2, tracker=tracker), gappy, size)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.1)
    assert pca.explained_variance_[0] < 1.1 * np.linalg.eigvalsh(np.cov(rows.T))[-1]


@pytest.mark.parametrize("size", [100, 1000, 2000])
def test_batches_that_end_with_the_gap_give_the_same(size, late):
    gappy, _ = late
    pca = in_batches(StreamingPCA(6), gappy, size)
    mean, covariance = available_cases(gappy)
    np.testing.assert_allclose(pca.mean_, mean, rtol=1e-12)
    np.testing.assert_allclose(pca.summary_.scatter / 2000, covariance, atol=1e-10)
    np.testing.assert_array_equal(pca.summary_.observed, [2000, 2000, 2000, 1000, 2000, 2000])


def test_a_long_file_in_one_fit(rng):
    rows = rng.normal(size=(20_000, 4)) + np.array([0, 100, 0, 0])
    rows[:10_000, 1] = np.nan
    pca = StreamingPCA(2).fit(rows)
    assert pca.mean_[1] == pytest.approx(100, abs=0.1)
    assert pca.explained_variance_[0] < 1.1


@pytest.mark.parametrize("tracker", TRACKERS)
def test_many_features_that_start_at_different_times(tracker, rng):
    rows = rng.normal(size=(3000, 40)) * np.linspace(3, 1, 40) + np.arange(40) * 10
    gappy = rows.copy()
    for feature in range(0, 40, 2):
        gappy[: 50 * feature, feature] = np.nan
    pca = in_batches(StreamingPCA(40, tracker=tracker), gappy, 150)
    assert len(pca.summary_.parts) <= MAX_PARTS
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.5)
    variances = np.diag(pca.summary_.scatter) / pca.summary_.count
    np.testing.assert_allclose(variances, rows.var(axis=0), rtol=0.2)


def test_weights_and_forgetting(rng):
    rows = rng.normal(size=(400, 3)) + np.array([0, 0, 50])
    rows[:200, 2] = np.nan
    weights = rng.integers(1, 4, size=400).astype(float)
    weighted = StreamingPCA(3).fit(rows, sample_weight=weights).summary_
    repeated = StreamingPCA(3).fit(np.repeat(rows, weights.astype(int), axis=0)).summary_
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-12)
    np.testing.assert_allclose(weighted.scatter, repeated.scatter, rtol=1e-9, atol=1e-9)

    forgetful = StreamingPCA(3, forget=0.5).partial_fit(rows[:200]).partial_fit(rows[200:])
    assert forgetful.summary_.count == pytest.approx(0.25 * 200 + 200)
    np.testing.assert_allclose(forgetful.summary_.observed, [250, 250, 200])
    assert forgetful.mean_[2] == pytest.approx(rows[200:, 2].mean())


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("as_rows", [np.float32, sparse.csr_array])
def test_float32_sparse_and_uncentered(center, as_rows, rng):
    rows = rng.normal(size=(600, 5)) + 3
    rows[:300, 4] = np.nan
    given = sparse.csr_array(rows) if as_rows is sparse.csr_array else rows.astype(np.float32)
    pca = StreamingPCA(5, center=center).fit(given)
    if center:
        assert pca.mean_[4] == pytest.approx(3, abs=0.2)
    else:
        known = rows[300:, 4]
        assert pca.summary_.scatter[4, 4] / 600 == pytest.approx(np.mean(known**2), rel=1e-5)


def test_gaps_before_and_after_the_start_are_imputed(rng):
    basis = rng.normal(size=(2, 8))
    rows = rng.normal(size=(3000, 2)) @ basis + 5 + 0.01 * rng.normal(size=(3000, 8))
    gappy = np.where(rng.uniform(size=rows.shape) < 0.1, np.nan, rows)
    gappy[:1500, 6] = np.nan
    pca = in_batches(StreamingPCA(2), gappy, 100)
    centered = rows - rows.mean(axis=0)
    best = np.linalg.svd(centered, compute_uv=False)[:2]
    captured = np.linalg.norm(centered @ pca.components_.T) ** 2
    assert 1 - captured / np.sum(best**2) < 5e-3
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.2)


# --- merging ---


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_order_and_any_tree_give_the_covariances_of_the_available_cases(data):
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    n_features = data.draw(st.integers(2, 7))
    sites, rows = [], []
    for _ in range(data.draw(st.integers(2, 6))):
        part = rng.normal(size=(int(rng.integers(1, 40)), n_features)) @ rng.normal(size=2 * (n_features,))
        part += data.draw(st.sampled_from([0.0, 3.0, 1000.0])) * rng.normal(size=n_features)
        missing = data.draw(st.sets(st.integers(0, n_features - 1), max_size=n_features - 1))
        sites.append(leaf(part, missing))
        part[:, list(missing)] = np.nan
        rows.append(part)
    order = data.draw(st.permutations(range(len(sites))))
    cut = data.draw(st.integers(1, len(sites) - 1))
    moved = [sites[i] for i in order]
    tree = merge([merge(moved[:cut]), merge(moved[cut:])])
    flat = merge(sites)
    size = max(np.abs(flat.scatter).max(), 1e-300) + flat.count * np.square(flat.mean).max()
    np.testing.assert_allclose(tree.scatter, flat.scatter, atol=1e-8 * size)
    np.testing.assert_allclose(tree.mean, flat.mean, rtol=1e-9, atol=1e-9)
    subspace = merge([merge([site.subspace() for site in moved[:cut]]), *moved[cut:]])
    np.testing.assert_allclose(subspace.scatter, flat.scatter, atol=1e-7 * size)
    assert subspace.total == pytest.approx(flat.total, rel=1e-7, abs=1e-7 * size)

    mean, covariance = available_cases(np.concatenate(rows))
    np.testing.assert_allclose(flat.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        np.diag(flat.scatter) / flat.count, np.diag(covariance), atol=1e-8 * size / flat.count
    )
    eigenvalues = np.linalg.eigvalsh(flat.scatter)
    assert eigenvalues[0] >= -1e-9 * size
    if np.linalg.eigvalsh(covariance)[0] >= 0:
        np.testing.assert_allclose(flat.scatter / flat.count, covariance, atol=1e-8 * size / flat.count)


def test_all_orders_of_five_sites(rng):
    mixing = rng.normal(size=(8, 8))
    sites = [
        leaf(rng.normal(size=(n, 8)) @ mixing + shift, missing)
        for n, shift, missing in [(100, 0, ()), (80, 5, [0]), (70, -3, [1, 2]), (60, 1, [0]), (50, 2, ())]
    ]
    whole = merge(sites)
    assert len(whole.parts) == 3
    for order in itertools.permutations(range(5)):
        moved = [sites[i] for i in order]
        tree = merge([merge(moved[:2]), merge(moved[2:4]), moved[4]])
        np.testing.assert_allclose(tree.scatter, whole.scatter, rtol=1e-10, atol=1e-8)
        np.testing.assert_allclose(tree.mean, whole.mean, rtol=1e-12)
        assert merge_tree(moved, fanout=2).total == pytest.approx(whole.total)


def test_many_features_are_merged_through_few_directions(rng):
    basis = rng.normal(size=(5, 400))
    rows = (rng.normal(size=(900, 5)) * [9, 7, 5, 4, 3]) @ basis + rng.normal(size=400) * 20
    rows += 0.01 * rng.normal(size=rows.shape)
    gappy = rows.copy()
    gappy[:300, :150] = np.nan
    gappy[300:600, 100:250] = np.nan
    sites = [StreamingPCA(5).partial_fit(part).summary_ for part in np.split(gappy, 3)]
    mean, covariance = available_cases(gappy)
    model = merge(sites, rank=5)
    np.testing.assert_allclose(model.mean, mean, rtol=1e-9, atol=1e-9)
    eigenvalues = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(model.singular_values**2 / model.count, eigenvalues[:5], rtol=0.02)


def test_very_many_combinations_of_known_features(rng):
    """As many as there are features: pairs are then weighed by their single features."""
    rows = (rng.normal(size=(16 * 40, 4)) * 5) @ rng.normal(size=(4, 3000)) + rng.normal(size=3000)
    sites = []
    for part in np.split(rows, 16):
        known = rng.uniform(size=3000) < 0.9
        whole = Subspace.from_rows(np.where(known, part, 0.0), 4)
        sites.append(replace(whole, observed=np.where(known, whole.count, 0.0)))
    model = merge(sites, rank=4)  # an eigenproblem of all features would take minutes
    gappy = np.concatenate(
        [np.where(site.known, part, np.nan) for site, part in zip(sites, np.split(rows, 16), strict=True)]
    )
    np.testing.assert_allclose(model.mean, np.nanmean(gappy, axis=0), rtol=1e-6, atol=1e-6)
    assert model.total == pytest.approx(640 * np.nanvar(gappy, axis=0).sum(), rel=1e-3)
    assert fedpca.metrics.affinity(model, Subspace.from_rows(rows, 4)) > 0.99


def test_more_sets_of_known_features_than_are_kept_apart(rng):
    rows = rng.normal(size=(60 * 50, 30)) + np.arange(30)
    sites = [leaf(part, rng.choice(30, size=5, replace=False)) for part in np.split(rows, 60)]
    whole = merge(sites)
    assert len(whole.parts) == MAX_PARTS
    assert whole.count == 3000
    np.testing.assert_allclose(whole.mean, np.arange(30), atol=0.5)
    np.testing.assert_allclose(np.diag(whole.scatter) / 3000, 1, atol=0.3)


def test_a_feature_that_is_lost_among_too_many_sets_is_named(rng):
    rows = rng.normal(size=(20 * 30, 21)) + 100
    own = [leaf(part, set(range(1, 21)) - {i + 1}) for i, part in enumerate(np.split(rows, 20))]
    assert merge(own[:MAX_PARTS]).observed[MAX_PARTS] == 30
    with pytest.warns(UserWarning, match=r"nothing about feature 17, feature 18"):
        whole = merge(own)
    assert whole.observed[0] == 600
    assert np.count_nonzero(whole.observed) == MAX_PARTS
    with pytest.warns(UserWarning, match="knows nothing about q"):
        merge([part.with_about(names=list("abcdefghijklmnopqrstu")) for part in own])
    with pytest.warns(UserWarning, match=r"knows nothing about feature 1[78]"):
        StreamingPCA(2).merge(*own)
    complete = StreamingPCA(2).fit(rows).merge(*own)  # which knows all features itself
    assert (complete.summary_.observed >= 600).all()


@pytest.mark.filterwarnings("ignore:n_components=")
def test_an_estimator_merges_what_others_do_not_know(late):
    gappy, _ = late
    mean, covariance = available_cases(gappy)
    early, after = StreamingPCA(6).partial_fit(gappy[:1000]), StreamingPCA(6).fit(gappy[1000:])
    for merged in (
        deepcopy(early).merge(after),
        deepcopy(after).merge(early),
        StreamingPCA(6).merge(early, after),
        StreamingPCA(6).merge(merge([early.summary_, after.summary_])),
        pickle.loads(pickle.dumps(early)).merge(after),
    ):
        np.testing.assert_allclose(merged.mean_, mean, rtol=1e-10)
        np.testing.assert_allclose(merged.summary_.scatter / 2000, covariance, atol=1e-8)
        assert merged.n_samples_seen_ == 2000
    going_on = StreamingPCA(6).merge(early).partial_fit(gappy[1000:])
    np.testing.assert_allclose(going_on.mean_, mean, rtol=1e-10)


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("kind", ["summary_", "subspace_"])
def test_what_was_merged_is_known_to_the_rows_that_follow(tracker, kind, late):
    gappy, rows = late
    whole = StreamingPCA(6, tracker=tracker).fit(rows)
    expected = deepcopy(whole).partial_fit(gappy[:100])
    assert expected.summary_.observed is None
    restored = StreamingPCA(6, tracker=tracker).merge(getattr(whole, kind)).partial_fit(gappy[:100])
    np.testing.assert_allclose(restored.mean_, expected.mean_, rtol=1e-9)
    np.testing.assert_allclose(restored.summary_.scatter, expected.summary_.scatter, rtol=1e-7, atol=1e-6)


def test_rows_that_follow_a_merge_know_what_anybody_knew(late):
    gappy, rows = late
    narrow, whole = StreamingPCA(6).partial_fit(gappy[:1000]), StreamingPCA(6).fit(rows[1000:])
    orders = [
        deepcopy(narrow).merge(whole),
        deepcopy(whole).merge(narrow),
        StreamingPCA(6).merge(narrow, whole),
    ]
    one, *others = [pca.partial_fit(gappy[:100]) for pca in orders]
    assert one.summary_.observed[3] == 1100
    for other in others:
        np.testing.assert_allclose(other.mean_, one.mean_, rtol=1e-9)
        np.testing.assert_allclose(other.summary_.scatter, one.summary_.scatter, rtol=1e-7, atol=1e-6)


# --- carriers ---


def test_a_client_without_the_feature(late):
    gappy, rows = late
    pca = FederatedPCA(2).fit_clients({"a": gappy[:1000], "b": gappy[1000:]})
    assert pca.mean_[3] == pytest.approx(300, abs=0.1)
    assert pca.explained_variance_[0] == pytest.approx(np.linalg.eigvalsh(np.cov(rows.T))[-1], rel=0.1)


@pytest.mark.filterwarnings("ignore:n_components=")
def test_an_aggregator_takes_them_in_any_order(late, tmp_path):
    gappy, _ = late
    mean, covariance = available_cases(gappy)
    states = {
        name: StreamingPCA(6).partial_fit(part).summary_
        for name, part in zip("abcd", np.split(gappy, 4), strict=True)
    }
    for i, order in enumerate(itertools.permutations("abcd")):
        aggregator = Aggregator(rank=6, store=tmp_path / str(i) if i < 2 else None)
        for name in order:
            assert aggregator.receive(name, 1, states[name])
        model = aggregator.model()
        np.testing.assert_allclose(model.mean, mean, rtol=1e-10)
        np.testing.assert_allclose(model.scatter / 2000, covariance, atol=1e-8)
    np.testing.assert_allclose(Aggregator(rank=6, store=tmp_path / "0").model().mean, mean, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:n_components=")
def test_partitions_of_a_dask_array(late):
    dask_array = pytest.importorskip("dask.array")
    from fedpca.federation.engines.dask import fit

    gappy, _ = late
    model = fit(dask_array.from_array(gappy, chunks=(250, 6)), 6)
    mean, covariance = available_cases(gappy)
    np.testing.assert_allclose(model.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(model.scatter / 2000, covariance, atol=1e-8)


def test_a_fit_of_files_resumes_with_them(late, tmp_path):
    gappy, _ = late
    np.save(tmp_path / "rows.npy", gappy)
    rows = open_rows(tmp_path / "rows.npy", batch_rows=100)
    saved, calls = tmp_path / "so-far", itertools.count()
    stopped = fit_files(StreamingPCA(6), rows, checkpoint=saved, should_stop=lambda: next(calls) == 4)
    assert stopped == 500
    resumed, whole = StreamingPCA(6), StreamingPCA(6)
    assert fit_files(resumed, rows, checkpoint=saved) == fit_files(whole, rows) == 2000
    np.testing.assert_allclose(resumed.mean_, whole.mean_, rtol=1e-10)
    np.testing.assert_allclose(resumed.summary_.scatter, whole.summary_.scatter, rtol=1e-8, atol=1e-6)


# --- use ---


def test_values_of_a_feature_that_was_never_observed_say_nothing(rng):
    rows = rng.normal(size=(500, 5)) + 2
    rows[:, 4] = np.nan
    with pytest.warns(UserWarning, match="feature 5 has no observed value"):
        pca = StreamingPCA(2).fit(rows)
    narrow = StreamingPCA(2).fit(rows[:, :4])
    assert not pca.components_[:, 4].any()
    assert pca.mean_[4] == 0
    np.testing.assert_allclose(pca.explained_variance_, narrow.explained_variance_, rtol=1e-10)
    filled = rows[:20].copy()
    filled[:, 4] = 1e6
    expected = np.abs(narrow.transform(filled[:, :4]))
    for use in (rows[:20], filled):
        np.testing.assert_allclose(np.abs(pca.transform(use)), expected, rtol=1e-9, atol=1e-12)
        spe, t2 = pca.anomaly_scores(use)
        narrow_spe, narrow_t2 = narrow.anomaly_scores(filled[:, :4])
        np.testing.assert_allclose(spe, narrow_spe, rtol=1e-9)
        np.testing.assert_allclose(t2, narrow_t2, rtol=1e-9)
        np.testing.assert_allclose(pca.score_samples(use), narrow.score_samples(filled[:, :4]), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:feature 4 has no observed value")
def test_a_feature_is_unknown_also_where_single_precision_rounds(rng):
    rows = rng.binomial(2, 0.4, (30, 40)).astype(np.float32)  # fewer rows than features
    rows[:, 3] = rows[5, 7] = np.nan
    pca = StreamingPCA(2).fit(rows)
    assert not pca.summary_.scatter[3].any()
    assert not pca.components_[:, 3].any()


@pytest.mark.filterwarnings("ignore:feature 5 has no observed value")
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_feature_that_was_never_observed_has_no_noise(tracker, rng):
    rows = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5)) + 2
    rows[:, 4] = np.nan
    pca, narrow = (StreamingPCA(2, tracker=tracker).fit(part) for part in (rows, rows[:, :4]))
    assert pca.noise_variance_ == pytest.approx(narrow.noise_variance_)
    assert pca.anomaly_limits() == pytest.approx(narrow.anomaly_limits())
    for method in ("get_covariance", "get_precision"):
        matrix = getattr(pca, method)()
        np.testing.assert_allclose(matrix[:4, :4], getattr(narrow, method)(), rtol=1e-8)
        assert not matrix[4].any()


@pytest.mark.parametrize("tracker", TRACKERS)
def test_small_directions_do_not_mix_with_what_is_unknown(tracker, rng):
    """Uncentered rows far from the origin: their spread is 3e-5 of their length."""
    rows = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 40)) + 0.3 * rng.normal(size=(400, 40)) + 1e4
    rows[:200, 1] = np.nan
    pca = in_batches(StreamingPCA(3, tracker=tracker, center=False), rows, 100)
    assert pca.explained_variance_[0] == pytest.approx(40e8, rel=0.01)
    merged = merge([pca.summary_, pca.subspace_])
    assert merged.observed[1] == 400
    early = merged.parts[0] if merged.parts[0].observed is not None else merged.parts[1]
    assert not early.subspace().components[:, 1].any()


# --- files ---


def composite(rng, kind="moments"):
    rows = rng.normal(size=(90, 5)) + 4
    parts = [leaf(rows[:30], [0]), leaf(rows[30:60], [1, 2]), leaf(rows[60:])]
    return merge(parts) if kind == "moments" else merge(parts, rank=3)


@pytest.mark.parametrize("kind", ["moments", "subspace"])
def test_files_keep_the_parts(kind, rng, tmp_path):
    summary = composite(rng, kind).with_about(names=list("abcde"))
    summary.save(tmp_path / "model")
    again = fedpca.load(tmp_path / "model")
    assert again == summary
    np.testing.assert_array_equal(again.observed, summary.observed)
    np.testing.assert_array_equal(again.mean, summary.mean)
    np.testing.assert_array_equal(again.subspace().components, summary.subspace().components)
    assert len(again.parts) == 3
    part = summary.parts[0]
    part.save(tmp_path / "part")
    assert fedpca.load(tmp_path / "part") == part


def test_complete_rows_pay_nothing(rng):
    summary = StreamingPCA(2).fit(rng.normal(size=(50, 4))).summary_
    assert summary.observed is None
    assert set(summary.arrays) == {"mean", "scatter"}
    assert "parts" not in summary.metadata


def _twice(arrays):
    return arrays | {f"1.{name[2:]}": array for name, array in arrays.items() if name.startswith("0.")}


@pytest.mark.parametrize("kind", ["moments", "subspace"])
@pytest.mark.parametrize("parts", [5, [], [5, 6], [{}, {}], [{"parts": []}, {}], "one", "twice"])
def test_hostile_parts_are_refused(parts, kind, rng, tmp_path):
    summary = composite(rng, kind)
    known = summary.metadata["parts"]
    arrays = _twice(summary.arrays) if parts == "twice" else summary.arrays
    metadata = summary.metadata | {"parts": {"one": known[:1], "twice": known}.get(str(parts), parts)}
    model_file.write(tmp_path / "model", summary.kind, arrays, metadata)
    with pytest.raises(ModelFileError):
        fedpca.load(tmp_path / "model")


@pytest.mark.parametrize("rank", [-1, 10**400])
def test_parts_of_a_hostile_rank_are_refused(rank, rng, tmp_path):
    summary = composite(rng, "subspace")
    model_file.write(tmp_path / "model", summary.kind, summary.arrays, summary.metadata | {"rank": rank})
    with pytest.raises(ModelFileError):
        fedpca.load(tmp_path / "model")


def test_directions_of_almost_no_variance_do_not_turn_towards_unknown_features(rng):
    known = np.array([0, 2, 3, 4, 5])
    for level in np.geomspace(3e-16, 1e-14, 40):
        rows = np.zeros((4, 6))
        rows[:, known] = rng.normal(size=(4, 2)) @ rng.normal(size=(2, 5))
        slight = np.zeros(6)
        slight[known] = rng.normal(size=5)
        moments = Moments.from_rows(rows)
        scatter = moments.scatter + level * moments.scatter.max() * np.outer(slight, slight)
        observed = np.where(np.isin(np.arange(6), known), 4.0, 0.0)
        moments = Moments(4.0, moments.mean, scatter, observed=observed)
        subspace = moments.subspace()
        assert not subspace.components[:, 1].any()
        np.testing.assert_allclose(
            (subspace.components.T * subspace.singular_values**2) @ subspace.components,
            scatter,
            atol=1e-12 * scatter.max(),
        )
        assert moments.subspace(5).rank <= 5
        assert moments.subspace(6).rank <= 5


def test_rows_that_know_nothing_have_no_directions():
    nothing = Moments(5.0, np.zeros(3), np.zeros((3, 3)), observed=np.zeros(3))
    assert nothing.subspace().rank == nothing.subspace(2).rank == 0
    aggregator = Aggregator(rank=2)
    aggregator.receive("nothing", 1, nothing)
    assert aggregator.model().rank == 0
