"""StreamingPCA(scale=...): StandardScaler and PCA of all rows, in batches of any size."""

import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from helpers import assert_pca_of, cut, exact_scaling, fit_in_batches, mixed_units, rows_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca import Moments, PrivatePCA, Scaling, StreamingPCA, Subspace, merge
from fedpca.trackers import Exact, Standardized

quiet = pytest.mark.filterwarnings("ignore:.* not vary:UserWarning")
UNITS = np.logspace(-6, 9, 8)


def far_rows(seed=0, n_rows=400):
    """Rows of 8 features in units of their own, with means thousands of deviations away."""
    return (rows_of(seed, n_rows) + 1e3 * np.sin(np.arange(8.0))) * UNITS


def standard_pca(rows, n_components, **settings):
    return make_pipeline(StandardScaler(), PCA(n_components, **settings)).fit(rows)


def assert_like(pca, expected, rows, atol=1e-10):
    """The estimator has the components, variances and scores of a pipeline of scikit-learn."""
    scaler, other = expected[0], expected[-1]
    np.testing.assert_allclose(pca.explained_variance_, other.explained_variance_, rtol=atol)
    np.testing.assert_allclose(pca.explained_variance_ratio_, other.explained_variance_ratio_, rtol=atol)
    projector, others = (basis.T @ basis for basis in (pca.components_, other.components_))
    np.testing.assert_allclose(projector, others, atol=atol)
    np.testing.assert_allclose(pca.scale_, scaler.scale_, rtol=atol)
    np.testing.assert_allclose(pca.mean_ / scaler.scale_, scaler.mean_ / scaler.scale_, rtol=1e-12, atol=atol)
    scores, theirs = pca.transform(rows), expected.transform(rows)
    np.testing.assert_allclose(np.abs(scores), np.abs(theirs), atol=100 * atol)
    np.testing.assert_allclose(
        pca.inverse_transform(scores) / scaler.scale_,
        expected.inverse_transform(theirs) / scaler.scale_,
        rtol=1e-12,
        atol=100 * atol,
    )


@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
@pytest.mark.parametrize("whiten", [False, True])
def test_it_is_the_standard_scaler_and_pca_of_scikit_learn(tracker, whiten):
    rows = far_rows()
    pca = StreamingPCA(3, scale="std", tracker=tracker, whiten=whiten).fit(rows)
    atol = 1e-10 if tracker == "exact" else 1e-6
    assert_like(pca, standard_pca(rows, 3, whiten=whiten), rows, atol)
    assert isinstance(pca.summary_, Moments) == (tracker == "exact")


@quiet
@given(rows=mixed_units(min_rows=3), data=st.data())
def test_streams_in_mixed_units_in_batches_of_any_size(rows, data):
    pca = StreamingPCA(scale="std")
    for batch in cut(data.draw, rows):
        pca.partial_fit(batch)
    assert_pca_of(pca.summary_, rows)
    assert_pca_of(pca.subspace_, rows)
    np.testing.assert_allclose(pca.var_, rows.var(axis=0), rtol=1e-8, atol=1e-12 * np.abs(rows).max() ** 2)


@quiet
@given(rows=mixed_units(min_rows=3), data=st.data())
def test_streams_of_owners_merge_in_any_order(rows, data):
    owners = [StreamingPCA(scale="std").partial_fit(part) for part in cut(data.draw, rows)]
    assert_pca_of(merge([owner.summary_ for owner in owners]), rows)
    together = StreamingPCA(scale="std").merge(*owners)
    assert_pca_of(together.summary_, rows)
    first = deepcopy(owners[0])
    assert_pca_of(first.merge(*owners[1:]).summary_ if owners[1:] else first.summary_, rows)
    assert first.n_samples_seen_ == len(rows)


@quiet
@given(rows=mixed_units(min_rows=2, max_rows=12), seed=st.integers(0, 99))
def test_rows_one_at_a_time_with_weights(rows, seed):
    weights = np.random.default_rng(seed).integers(1, 4, len(rows))
    pca = StreamingPCA(scale="std")
    for row, weight in zip(rows, weights, strict=True):
        pca.partial_fit(row[None], sample_weight=[weight])
    assert_pca_of(pca.summary_, rows, weights)


@pytest.mark.parametrize("kind", ["csr", "fortran", "int", "frame", "float32"])
@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_rows_of_any_kind(kind, tracker, rng):
    dense = np.round(rng.normal(size=(600, 6)) @ rng.normal(size=(6, 6)) * np.logspace(2, 5, 6))
    dense[rng.uniform(size=dense.shape) < 0.5] = 0
    rows = {
        "csr": lambda: sparse.csr_array(dense),
        "fortran": lambda: np.asfortranarray(dense),
        "int": lambda: dense.astype(np.int64),
        "frame": lambda: pd.DataFrame(dense, columns=list("abcdef")),
        "float32": lambda: dense.astype(np.float32),
    }[kind]()
    pca = StreamingPCA(2, scale="std", tracker=tracker).fit(rows)
    expected = standard_pca(dense, 2)
    rtol = 1e-5 if kind == "float32" or tracker == "nystrom" else 1e-10
    np.testing.assert_allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=rtol)
    np.testing.assert_allclose(
        np.abs(pca.transform(rows)), np.abs(expected.transform(dense)), atol=100 * rtol
    )
    assert pca.components_.dtype == (np.float32 if kind == "float32" else np.float64)


def test_float32_rows_whose_squares_overflow(rng):
    rows = (rng.normal(size=(500, 4)) * [1e-12, 1.0, 1e9, 1e18]).astype(np.float32)
    expected = standard_pca(rows.astype(np.float64), 4)
    for scale in ("std", rows.astype(np.float64).std(axis=0)):
        pca = StreamingPCA(scale=scale).fit(rows)
        np.testing.assert_allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=1e-5)


def test_columns_that_depend_on_each_other(rng):
    """One-hot columns, copies in other units: products alone would not resolve all directions."""
    kinds = np.eye(4)[rng.integers(0, 4, 500)]
    sizes = rng.normal(size=(500, 2))
    rows = np.column_stack([kinds, sizes, sizes[:, 0] * 1e-9 + 1e-9, sizes.sum(axis=1) * 1e6])
    pca = fit_in_batches(StreamingPCA(scale="std"), rows)
    assert isinstance(pca.summary_, Moments)
    expected = standard_pca(rows, None)[-1].explained_variance_
    np.testing.assert_allclose(pca.explained_variance_[:5], expected[:5], rtol=1e-10)
    assert (pca.explained_variance_[5:] < 1e-12).all()
    halves = [fit_in_batches(StreamingPCA(scale="std"), part) for part in (rows[:9], rows[9:])]
    together = merge([half.summary_ for half in halves]).subspace()
    np.testing.assert_allclose(together.singular_values[:5] ** 2 / 499, expected[:5], rtol=1e-10)


def test_a_mean_that_moves_far_while_the_past_is_forgotten(rng):
    """After the drift, the deviation of the small feature is a millionth of its way."""
    steps = [rng.normal(size=(64, 2)) * [1e3, 1e-3] + [0, i] for i in range(200)]
    pca = StreamingPCA(scale="std", forget=0.3)
    for rows in steps:
        pca.partial_fit(rows)
    weights = np.repeat(0.3 ** (2 * np.arange(199, -1, -1)), 64)
    rows = np.concatenate(steps)[-64 * 30 :]
    assert_pca_of(pca.summary_, rows, weights[-64 * 30 :], atol=1e-9)


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_with_gaps_the_scale_is_that_of_the_observed_entries(tracker, rng):
    rows = rng.normal(size=(900, 3)) @ rng.normal(size=(3, 5)) * [1, 1e3, 1e-3, 5, 9] + [5, 1e4, 0, 0, 0]
    gaps = rng.uniform(size=rows.shape) < [0, 0.1, 0.2, 0.3, 0.4]
    rows[gaps] = np.nan
    pca = StreamingPCA(3, scale="std", tracker=tracker).fit(rows)
    expected = StandardScaler().fit(rows)
    np.testing.assert_allclose(pca.scale_, expected.scale_, rtol=1e-12)
    if tracker == "exact":
        halves = [fit_in_batches(StreamingPCA(3, scale="std"), part) for part in (rows[:100], rows[100:])]
        merged = merge([half.summary_ for half in halves])
        np.testing.assert_allclose(merged.subspace().scale, expected.scale_, rtol=1e-12)
        np.testing.assert_array_equal(merged.scaling.observed, (~gaps).sum(axis=0))
    scores = pca.transform(rows)
    assert np.isfinite(scores).all()
    restored = pca.inverse_transform(scores)
    np.testing.assert_allclose(
        (restored - rows)[~gaps] / np.broadcast_to(pca.scale_, rows.shape)[~gaps], 0, atol=0.3
    )


def test_features_that_start_late(rng):
    rows = rng.normal(size=(600, 3)) @ rng.normal(size=(3, 3)) * [1, 1e4, 1e-4] + [0, 0, 7.0]
    rows[:300, 2] = np.nan
    pca = fit_in_batches(StreamingPCA(scale="std"), rows, 64)
    summary = pca.summary_
    assert summary.parts
    np.testing.assert_allclose(pca.scale_, np.nanstd(rows, axis=0), rtol=1e-10)
    np.testing.assert_allclose(pca.mean_, np.nanmean(rows, axis=0), rtol=1e-8)
    again = StreamingPCA(scale="std").merge(summary)
    np.testing.assert_allclose(again.explained_variance_, pca.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(again.scale_, pca.scale_, rtol=1e-12)
    again.partial_fit(rows[300:])
    np.testing.assert_allclose(
        again.scaling_ if False else again.scale_,
        np.nanstd(np.concatenate([rows, rows[300:]]), axis=0),
        rtol=1e-10,
    )


@pytest.mark.parametrize("tracker", ["exact", "nystrom", "block"])
def test_numbers_divide_the_rows_and_merge(tracker):
    rows = far_rows()
    scale = Scaling.from_rows(rows).scale("std")
    expected = standard_pca(rows, 3)
    owners = [
        fit_in_batches(StreamingPCA(3, scale=scale, tracker=tracker), part)
        for part in (rows[:30], rows[30:35], rows[35:])
    ]
    atol = 1e-9 if tracker == "exact" else 1e-6
    assert_like(owners[0].merge(*owners[1:]), expected, rows, atol)
    model = merge(
        [
            fit_in_batches(StreamingPCA(3, scale=scale.tolist()), part).subspace_
            for part in (rows[:9], rows[9:])
        ],
        rank=3,
    )
    restored = StreamingPCA(3, scale=model.scale, tracker=tracker).merge(model)
    assert_like(restored, expected, rows, atol)
    assert owners[0].summary_.scale is not None


def test_the_binomial_scale_of_genotypes(rng):
    share = rng.uniform(0.05, 0.95, (5, 300)).repeat(60, axis=0)  # of five peoples
    counts = rng.binomial(2, share).astype(np.float32)
    p = counts.astype(float).mean(axis=0) / 2
    expected = PCA(4).fit((counts - 2 * p) / np.sqrt(2 * p * (1 - p)))
    for tracker, rtol in (("exact", 1e-5), ("nystrom", 0.02)):
        pca = StreamingPCA(4, scale="binomial", tracker=tracker).fit(counts)
        np.testing.assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=rtol)
        np.testing.assert_allclose(pca.scale_, np.sqrt(2 * p * (1 - p)), rtol=1e-6)
    for tracker in ("exact", "nystrom"):
        pca = StreamingPCA(4, scale="binomial", tracker=tracker)
        with pytest.raises(ValueError, match=r"means from 0 to 2, but that of 'c' is 2.5"):
            pca.partial_fit(pd.DataFrame(np.arange(12.0).reshape(2, 6) % 5, columns=list("abcdef")))
        assert not hasattr(pca, "components_")


def test_covariance_precision_and_likelihood_are_in_the_units_of_the_rows(rng):
    rows = rng.normal(size=(500, 4)) @ rng.normal(size=(4, 4)) * [1, 100, 0.01, 3] + 5
    for n_components in (2, 4):
        pca = StreamingPCA(n_components, scale="std").fit(rows)
        covariance = pca.get_covariance()
        if n_components == 4:
            np.testing.assert_allclose(covariance, np.cov(rows.T), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(pca.get_precision() @ covariance, np.eye(4), atol=1e-9)
        expected = stats.multivariate_normal(pca.mean_, covariance).logpdf(rows)
        np.testing.assert_allclose(pca.score_samples(rows), expected, rtol=1e-9)


def test_anomaly_scores_are_those_of_the_divided_rows(rng):
    rows = rng.normal(size=(500, 4)) @ rng.normal(size=(4, 4))
    rows[3, 1] = np.nan
    scale = np.array([1e6, 1e-3, 1.0, 7.0])
    plain = StreamingPCA(2).fit(rows)
    scaled = StreamingPCA(2, scale=scale).fit(rows * scale)
    for ours, theirs in zip(scaled.anomaly_scores(rows * scale), plain.anomaly_scores(rows), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scaled.anomaly_limits(), plain.anomaly_limits(), rtol=1e-9)
    standard = StreamingPCA(2, scale="std").fit(rows * scale)
    np.testing.assert_allclose(
        standard.anomaly_limits(), StreamingPCA(2, scale="std").fit(rows).anomaly_limits(), rtol=1e-9
    )


def test_uncentered_rows_are_divided_by_their_deviation(rng):
    rows = (rng.normal(size=(300, 4)) + 3) * [1, 100, 0.01, 3]
    scaled = rows / rows.std(axis=0)
    expected = np.linalg.svd(scaled, compute_uv=False)
    pca = fit_in_batches(StreamingPCA(center=False, scale="std"), rows)
    np.testing.assert_allclose(pca.singular_values_, expected, rtol=1e-10)
    halves = [StreamingPCA(center=False, scale="std").fit(part).summary_ for part in (rows[:9], rows[9:])]
    np.testing.assert_allclose(merge(halves).subspace().singular_values, expected, rtol=1e-10)


def test_it_is_cloned_pickled_and_resumed(rng):
    rows = far_rows()
    pca = StreamingPCA(3, scale="std").fit(rows[:100])
    for copy in (pickle.loads(pickle.dumps(pca)), deepcopy(pca)):
        assert_like(copy.partial_fit(rows[100:]), standard_pca(rows, 3), rows)
    assert clone(pca).scale == "std"
    scale = np.arange(1.0, 9.0)
    numbers = clone(StreamingPCA(3, scale=scale)).partial_fit(rows[:50])
    numbers.scale = scale.copy()
    numbers.partial_fit(rows[50:])
    with pytest.raises(ValueError, match="scale must stay"):
        numbers.set_params(scale="std").partial_fit(rows)
    plain = StreamingPCA(3).partial_fit(rows)
    assert plain.scale_ is None
    with pytest.raises(AttributeError, match="scale_ is learned by fit"):
        _ = StreamingPCA(3).scale_


def test_another_fit_forgets_the_scale(rng):
    rows = rng.normal(size=(50, 3)) * [1, 2, 3]
    pca = StreamingPCA(2, scale=[1.0, 2.0, 3.0]).fit(rows)
    assert pca.set_params(scale=None).fit(rows).scale_ is None
    assert pca.summary_.scale is None
    pca.set_params(scale="std").fit(rows)
    assert isinstance(pca._source, Standardized)
    np.testing.assert_allclose(pca.scale_, rows.std(axis=0))


def test_what_was_scaled_otherwise_is_not_merged(rng):
    rows = rng.normal(size=(50, 300)) * np.linspace(1, 9, 300)
    small = rows[:, :4]
    standard, plain = StreamingPCA(2, scale="std").fit(small), StreamingPCA(2).fit(small)
    numbers = StreamingPCA(2, scale=[1.0, 2.0, 3.0, 4.0]).fit(small)
    for one, other in ((standard, plain), (plain, numbers), (numbers, standard)):
        before = one.summary_
        with pytest.raises(ValueError, match="must have the same scale, got"):
            one.merge(other)
        assert one.summary_ == before
    with pytest.raises(ValueError, match="scale must be that of what is merged, numbers, got none; pass"):
        StreamingPCA(2).merge(numbers.subspace_)
    with pytest.raises(ValueError, match="'std', got numbers"):
        StreamingPCA(2, scale=np.ones(4)).merge(standard)
    with pytest.raises(ValueError, match="none, got 'std'"):
        StreamingPCA(2, scale="std").merge(plain)
    halves = [StreamingPCA(2, scale="std").fit(part) for part in (rows[:20], rows[20:])]
    with pytest.raises(ValueError, match="such as those of a Scaling merged from all owners"):
        halves[0].merge(halves[1])
    with pytest.raises(ValueError, match="such as those of a Scaling merged from all owners"):
        merge([half.summary_ for half in halves])
    restored = StreamingPCA(2, scale="std").merge(halves[0].subspace_)  # large: the scale that comes first
    np.testing.assert_array_equal(restored.scale_, halves[0].scale_)
    moments = Moments.from_rows(rows, scale="std")
    from_moments = StreamingPCA(2, scale="std").merge(moments)
    np.testing.assert_allclose(from_moments.scale_, rows.std(axis=0))


def test_the_first_batch_decides_for_trackers_that_must_know_the_scale(rng):
    rows = rng.normal(size=(400, 300)) * np.linspace(1, 9, 300)
    pca = StreamingPCA(2, scale="std").partial_fit(rows[:100])
    pca.partial_fit(rows[100:])
    np.testing.assert_allclose(pca.scale_, rows[:100].std(axis=0))
    with pytest.raises(ValueError, match="first batch, in which no feature varies; begin with more rows"):
        StreamingPCA(2, scale="std").partial_fit(rows[:1])
    rows[:50, 7] = 3.0
    with pytest.warns(UserWarning, match="feature 8 does not vary in the first batch: it is not scaled"):
        StreamingPCA(2, scale="std").partial_fit(rows[:50])


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_features_that_do_not_vary_are_named_once(tracker, rng):
    rows = pd.DataFrame(rng.normal(size=(60, 4)), columns=list("abcd"))
    rows["b"], rows["d"] = 0.1, 1e9
    pca = StreamingPCA(2, scale="std", tracker=tracker)
    with pytest.warns(UserWarning, match="b, d do not vary: they are not scaled") as caught:
        pca.fit(rows)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert pca.scale_[[1, 3]].tolist() == [1, 1]
    np.testing.assert_allclose(pca.components_[:, [1, 3]], 0, atol=1e-9)
    expected = standard_pca(rows.to_numpy(), 2)
    np.testing.assert_allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(pca.mean_[[1, 3]], [0.1, 1e9], rtol=1e-12)


@pytest.mark.parametrize("n_features", [3, 300])
def test_one_feature_with_nearly_all_variance_is_named(n_features, rng):
    rows = pd.DataFrame(rng.normal(size=(200, n_features)), columns=[f"c{i}" for i in range(n_features)])
    rows["c1"] *= 1e3
    with pytest.warns(
        UserWarning, match=r"c1 has (100.0|99.\d)% of the variance of all \d+ features: .* scale='std'"
    ) as caught:
        StreamingPCA(2).fit(rows)
    assert len(caught) == 1
    for settings in ({"scale": "std"}, {"center": False}, {"scale": np.ones(n_features)}):
        StreamingPCA(2, **settings).fit(rows)  # warnings are errors
    StreamingPCA(2).partial_fit(rows)
    StreamingPCA(1).fit(rows[["c1"]])
    StreamingPCA(1).fit(rows[["c1"]].assign(c0=0.0))


@pytest.mark.parametrize("scale", ["max", [1.0, 0.0], [1.0, np.nan], [1.0, -1.0], [1.0], 3, object()])
@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_a_bad_scale_is_refused_before_anything_is_learned(scale, tracker):
    pca = StreamingPCA(1, scale=scale, tracker=tracker)
    for way in (pca.fit, pca.partial_fit):
        with pytest.raises((ValueError, TypeError), match=r"^scale must"):
            way(np.eye(2))
    with pytest.raises((ValueError, TypeError), match=r"^scale must"):
        pca.merge(Subspace.from_rows(np.eye(2)))
    assert not hasattr(pca, "components_")


def test_a_scale_beyond_float32_is_refused():
    with pytest.raises(ValueError, match="within the range of float32, the dtype of the rows; pass float64"):
        StreamingPCA(1, scale=[1.0, 1e-60]).fit(np.eye(2, dtype=np.float32))
    assert StreamingPCA(1, scale=[1e-60, 1e-60]).fit(1e-60 * np.eye(2)).n_components_ == 1


def test_a_private_fit_is_that_of_rows_divided_by_public_numbers(rng):
    rows = rng.normal(size=(3000, 3)) * [1, 1e3, 1e-3]
    scale = np.array([1.0, 1e3, 1e-3])
    settings = {"epsilon": 1.0, "delta": 1e-5, "bound": 4.0}
    pca = PrivatePCA(2, scale=scale, **settings).fit(rows)
    released = pca.release()
    np.testing.assert_array_equal(released.scale, scale)
    np.testing.assert_array_equal(pca.subspace_.scale, scale)
    assert released.certificate.epsilon == 1.0
    assert released.total / released.count == pytest.approx(3, rel=0.2)
    assert pca.release() == released
    assert pca.inverse_transform(pca.transform(rows)).std(axis=0)[1] > 10
    found = PrivatePCA(2, scale="std", **settings).fit(rows)
    np.testing.assert_allclose(found.scale_, rows.std(axis=0), rtol=0.6)
    with pytest.raises(ValueError, match="'std' or public numbers with privacy, got scale='binomial'"):
        PrivatePCA(2, scale="binomial", **settings).fit(rows)


def test_the_exact_tracker_of_mixed_units_has_moments_whatever_the_rows(rng):
    from fedpca.summaries.rank import FixedRank

    rows = rng.normal(size=(200, 3))[:, [0, 0, 1, 2]]
    tracker = Exact(4, FixedRank(4), mixed_units=True)
    tracker.update(rows)
    state = tracker.state()
    assert isinstance(state, Moments)
    np.testing.assert_allclose(state.scatter / 200, np.cov(rows.T, bias=True), atol=1e-12)
    _, mean, _ = exact_scaling(rows)
    np.testing.assert_allclose(state.mean, mean.astype(float), atol=1e-14)
