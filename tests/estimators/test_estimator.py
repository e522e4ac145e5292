"""StreamingPCA: scikit-learn's PCA, one batch at a time."""

import pickle

import numpy as np
import pytest
from helpers import awkward, fit_in_batches, power_law, scatter_of, shortfall, sparse_rows
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca import EnergyBand, Moments, StreamingPCA, Subspace
from fedpca.metrics import principal_angles

TRACKERS = ["exact", "nystrom", "block"]


@pytest.fixture(scope="module")
def digits():
    return load_digits().data


@pytest.mark.parametrize("whiten", [False, True])
def test_it_gives_what_scikit_learns_pca_gives(digits, whiten):
    ours = fit_in_batches(StreamingPCA(n_components=10, whiten=whiten), digits)
    theirs = PCA(n_components=10, whiten=whiten, svd_solver="full").fit(digits)
    for attribute in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(ours, attribute), getattr(theirs, attribute), rtol=1e-9, atol=1e-9)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_)
    assert (ours.n_components_, ours.n_samples_seen_, ours.n_features_in_) == (10, 1797, 64)
    assert principal_angles(ours, theirs).max() < 1e-6
    np.testing.assert_allclose(np.abs(ours.transform(digits)), np.abs(theirs.transform(digits)), atol=1e-7)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(digits)),
        theirs.inverse_transform(theirs.transform(digits)),
        atol=1e-7,
    )


@pytest.mark.parametrize("tracker", TRACKERS)
def test_fit_forgets_what_partial_fit_learned_and_equals_it_otherwise(tracker, rng):
    rows = power_law(rng, 600, 80)
    pca = StreamingPCA(n_components=4, tracker=tracker).partial_fit(100 * rng.normal(size=(50, 80)))
    pca.fit(rows)
    again = fit_in_batches(StreamingPCA(n_components=4, tracker=tracker), rows, batch=600)
    assert pca.n_samples_seen_ == 600
    assert principal_angles(pca, again).max() < 1e-3
    np.testing.assert_allclose(pca.mean_, again.mean_)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_first_batch_may_be_smaller_than_n_components(tracker, rng):
    rows = power_law(rng, 300, 40)
    pca = StreamingPCA(n_components=10, tracker=tracker)
    assert pca.partial_fit(rows[:1]).n_components_ == 0
    assert pca.transform(rows).shape == (300, 0)
    assert pca.partial_fit(rows[1:4]).n_components_ == 3
    assert pca.transform(rows).shape == (300, 3)
    fit_in_batches(pca, rows[4:], batch=7)
    assert pca.n_components_ == 10
    assert shortfall(pca.components_, rows) < 1e-4


@pytest.mark.parametrize("tracker", TRACKERS)
def test_signs_and_results_repeat(tracker, rng):
    rows = power_law(rng, 500, 300)
    first, second = (StreamingPCA(5, tracker=tracker).fit(rows) for _ in range(2))
    np.testing.assert_array_equal(first.components_, second.components_)
    largest = np.abs(first.components_).argmax(axis=1)
    assert (first.components_[np.arange(5), largest] > 0).all()
    flipped = StreamingPCA(5, tracker=tracker).fit(-rows)
    np.testing.assert_allclose(first.components_, flipped.components_, atol=1e-6)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_signs_are_fixed_whether_or_not_rows_wait(tracker, rng):
    for n_rows in (400, 417):
        pca = StreamingPCA(5, tracker=tracker, batch_size=50).fit(power_law(rng, n_rows, 300))
        largest = np.abs(pca.components_).argmax(axis=1)
        assert (pca.components_[np.arange(5), largest] > 0).all()


@pytest.mark.slow
def test_a_random_state_is_respected(rng):
    rows = power_law(rng, 15_000, 300, alpha=0.3)  # more than are kept: fewer have an exact result
    make = lambda seed: StreamingPCA(5, tracker="nystrom", random_state=seed).fit(rows).components_  # noqa: E731
    np.testing.assert_array_equal(make(1), make(1))
    np.testing.assert_array_equal(make(np.random.RandomState(1)), make(np.random.RandomState(1)))
    assert (make(1) != make(2)).any()


def test_a_share_of_variance_picks_the_rank(digits):
    ours, theirs = StreamingPCA(0.9).fit(digits), PCA(0.9, svd_solver="full").fit(digits)
    assert ours.n_components_ == theirs.n_components_
    for tracker in ("nystrom", "block"):
        pca = fit_in_batches(StreamingPCA(0.9, tracker=tracker), digits)
        assert theirs.n_components_ <= pca.n_components_ <= theirs.n_components_ + 1
        assert pca.explained_variance_ratio_.sum() >= 0.9


@pytest.mark.parametrize("n_rows", [100, 400])
def test_a_share_of_variance_is_reached_whatever_the_rows(n_rows, rng):
    rows = rng.normal(size=(n_rows, 600))
    pca = StreamingPCA(0.95).fit(rows)
    assert pca.n_components_ == PCA(0.95, svd_solver="full").fit(rows).n_components_


def test_likelihood_and_covariance_are_those_of_scikit_learn(digits):
    digits = digits[:, digits.std(axis=0) > 0]
    ours, theirs = StreamingPCA(8).fit(digits), PCA(8, svd_solver="full").fit(digits)
    np.testing.assert_allclose(ours.score_samples(digits), theirs.score_samples(digits), rtol=1e-6)
    assert ours.score(digits) == pytest.approx(theirs.score(digits))
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-8)
    search = GridSearchCV(StreamingPCA(), {"n_components": [2, 8]}, cv=3).fit(digits)
    assert search.best_params_ == {"n_components": 8}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_an_energy_band_adapts_the_rank(tracker, rng):
    rows = power_law(rng, 4000, 60)
    pca = fit_in_batches(StreamingPCA(energy=(0.02, 0.2), tracker=tracker), rows, batch=200)
    spectrum = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    share = spectrum[pca.n_components_ - 1] / spectrum[: pca.n_components_].sum()
    assert 0.02 <= share <= 0.2
    seeded = StreamingPCA(6, energy=EnergyBand(0.0, 1.0), tracker=tracker).fit(rows)
    assert seeded.n_components_ == 6  # a band this wide never moves the rank it began with


def test_all_components_are_kept_by_default(rng):
    rows = power_law(rng, 100, 12)
    assert StreamingPCA().fit(rows).n_components_ == 12
    assert StreamingPCA().fit(rows[:5]).n_components_ == 4  # five rows about their mean span four directions


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, sparse.csc_array])
@pytest.mark.parametrize("tracker", TRACKERS)
def test_sparse_rows(form, tracker, rng):
    rows = sparse_rows(rng, 900, 300)
    pca = StreamingPCA(5, tracker=tracker)
    for start in range(0, 900, 300):
        pca.partial_fit(form(rows[start : start + 300]))
    dense = fit_in_batches(StreamingPCA(5, tracker=tracker), rows.toarray(), batch=300)
    np.testing.assert_allclose(pca.explained_variance_, dense.explained_variance_, rtol=1e-7)
    np.testing.assert_allclose(pca.transform(form(rows)), pca.transform(rows.toarray()), atol=1e-12)
    for ours, theirs in zip(pca.anomaly_scores(form(rows)), pca.anomaly_scores(rows.toarray()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_weights_count_as_repeated_rows(rng):
    rows, weights = power_law(rng, 200, 20), rng.integers(0, 4, 200)
    weighted = StreamingPCA(5).fit(rows, sample_weight=weights)
    repeated = PCA(5, svd_solver="full").fit(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(weighted.explained_variance_, repeated.explained_variance_)
    assert principal_angles(weighted, repeated).max() < 1e-6
    batches = StreamingPCA(5)
    for part in np.array_split(np.arange(200), 7):
        batches.partial_fit(rows[part], sample_weight=weights[part])
    np.testing.assert_allclose(batches.explained_variance_, weighted.explained_variance_)


def test_weights_that_sum_to_one_still_give_finite_variances(rng):
    rows = power_law(rng, 50, 5)
    pca = StreamingPCA(2).fit(rows, sample_weight=np.full(50, 0.02))
    population = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:2] ** 2 / 50
    np.testing.assert_allclose(pca.explained_variance_, population)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_stays_float32(dtype, rng):
    rows = power_law(rng, 500, 300).astype(dtype)
    pca = StreamingPCA(4).fit(rows)
    assert pca.components_.dtype == pca.transform(rows).dtype == dtype
    assert pca.inverse_transform(pca.transform(rows)).dtype == dtype
    assert pca.explained_variance_.dtype == np.float64


def test_integer_rows_are_converted_panel_by_panel(digits):
    ours = StreamingPCA(8).fit(digits.astype(np.uint8))
    np.testing.assert_allclose(ours.explained_variance_, StreamingPCA(8).fit(digits).explained_variance_)
    np.testing.assert_allclose(ours.transform(digits.astype(np.int16)), ours.transform(digits), atol=1e-12)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_merging_equals_seeing_all_rows(tracker, rng):
    rows = power_law(rng, 900, 50, mean_size=2)
    parts = [
        fit_in_batches(StreamingPCA(5, tracker=tracker), part, batch=40) for part in np.array_split(rows, 3)
    ]
    before = [pickle.dumps(part) for part in parts[1:]]
    merged = parts[0].merge(*parts[1:])
    assert merged is parts[0]
    assert [pickle.dumps(part) for part in parts[1:]] == before
    assert merged.n_samples_seen_ == 900
    assert shortfall(merged.components_, rows) < (1e-12 if tracker == "exact" else 1e-5)
    np.testing.assert_allclose(merged.mean_, rows.mean(axis=0), atol=1e-10)
    merged.partial_fit(rows[:100])
    assert merged.n_samples_seen_ == 1000


def test_an_empty_estimator_begins_with_what_it_merges(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(power_law(rng, 100, 3), columns=["a", "b", "c"])
    fitted = StreamingPCA(2).fit(frame)
    for other in (fitted, fitted.subspace_, Moments.from_rows(frame)):
        merged = StreamingPCA(2).merge(other)
        assert list(merged.feature_names_in_) == ["a", "b", "c"]
        assert merged.n_samples_seen_ == 100
        np.testing.assert_allclose(merged.explained_variance_, fitted.explained_variance_)


def test_what_is_exchanged_carries_more_than_is_shown(rng, tmp_path):
    rows = power_law(rng, 2000, 300)
    pca = StreamingPCA(10).fit(rows)
    assert pca.subspace_.rank == 20
    np.testing.assert_array_equal(pca.subspace_.components[:10], pca.components_)
    pca.subspace_.save(tmp_path / "model.safetensors")
    loaded = fedpca.load(tmp_path / "model.safetensors")
    assert loaded == pca.subspace_
    np.testing.assert_allclose(loaded.project(rows)[:, :10], pca.transform(rows), atol=1e-9)


def test_forgetting_acts_once_a_batch_and_equals_merging(rng):
    parts = [power_law(rng, 60, 10) for _ in range(4)]
    pca = StreamingPCA(10, forget=0.8)
    expected = Subspace.empty(10)
    for part in parts:
        pca.partial_fit(part)
        expected = fedpca.merge([expected, Subspace.from_rows(part)], forget=0.8)
    np.testing.assert_allclose(scatter_of(pca.subspace_), scatter_of(expected), atol=1e-10)
    fitted = StreamingPCA(10, forget=0.8, batch_size=60).fit(np.concatenate(parts))
    np.testing.assert_allclose(fitted.explained_variance_, pca.explained_variance_)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_anomaly_limits_are_passed_as_often_as_they_say(rng, confidence):
    spread = np.array([5.0, 4.0, 3.0, 1.5, 1.2, 1.0, 1.0, 1.0])
    pca = StreamingPCA(3).fit(rng.normal(size=(20_000, 8)) * spread)
    fresh = rng.normal(size=(100_000, 8)) * spread
    for scores, limit in zip(pca.anomaly_scores(fresh), pca.anomaly_limits(confidence), strict=True):
        assert np.mean(scores > limit) == pytest.approx(1 - confidence, rel=0.15)


def test_the_exact_tracker_knows_the_spectrum_beyond_its_summary(rng):
    spread = np.arange(1, 201) ** -0.4
    pca = StreamingPCA(5).fit(rng.normal(size=(20_000, 200)) * spread)
    spe, _ = pca.anomaly_scores(rng.normal(size=(20_000, 200)) * spread)
    assert np.mean(spe > pca.anomaly_limits(0.99)[0]) == pytest.approx(0.01, abs=0.004)


def test_anomaly_limits_of_tiny_rows_are_in_proportion(rng):
    rows = rng.normal(size=(200, 6))
    spe, t2 = StreamingPCA(2).fit(rows).anomaly_limits()
    tiny_spe, tiny_t2 = StreamingPCA(2).fit(1e-120 * rows).anomaly_limits()
    assert tiny_spe == pytest.approx(1e-240 * spe)
    assert tiny_t2 == t2


@pytest.mark.filterwarnings("ignore:n_components=")
def test_anomaly_limits_that_cannot_be_known_are_infinite(rng):
    assert StreamingPCA().fit(rng.normal(size=(3, 3))).anomaly_limits() == (np.inf, np.inf)
    assert StreamingPCA(1).fit(np.ones((5, 3))).anomaly_limits() == (np.inf, np.inf)
    with pytest.raises(ValueError, match=r"confidence must lie in \(0, 1\), got confidence=99"):
        StreamingPCA(1).fit(np.eye(3)).anomaly_limits(99)


def test_anomaly_scores_tell_apart_two_kinds_of_strangers(rng):
    rows = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 10)) + 0.1 * rng.normal(size=(500, 10))
    pca = StreamingPCA(2).fit(rows)
    spe, t2 = pca.anomaly_scores(rows)
    deviations = rows - rows.mean(axis=0)
    scores = deviations @ pca.components_.T
    np.testing.assert_allclose(spe, ((deviations - scores @ pca.components_) ** 2).sum(axis=1))
    np.testing.assert_allclose(t2, (scores**2 / pca.explained_variance_).sum(axis=1))
    outside = np.linalg.svd(pca.components_)[2][2:3]  # a direction orthogonal to both components
    off_plane, far_within = pca.mean_ + 9 * outside, pca.mean_ + 60 * pca.components_[:1]
    assert pca.anomaly_scores(off_plane)[0] > 10 * spe.max()
    assert pca.anomaly_scores(off_plane)[1] < t2.max()
    assert pca.anomaly_scores(far_within)[0] < spe.max()
    assert pca.anomaly_scores(far_within)[1] > 10 * t2.max()


def test_frames_names_and_set_output(rng):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pandas.DataFrame(power_law(rng, 60, 3), columns=["a", "b", "c"])
    pca = StreamingPCA(2).fit(frame)
    assert pca.subspace_.feature_names == ("a", "b", "c")
    assert list(pca.get_feature_names_out()) == ["streamingpca0", "streamingpca1"]
    shown = pca.set_output(transform="pandas").transform(frame)
    assert list(shown.columns) == ["streamingpca0", "streamingpca1"]
    assert isinstance(pca.set_output(transform="polars").transform(frame), polars.DataFrame)
    StreamingPCA(2).fit(polars.from_pandas(frame))


def test_pipelines_cloning_and_pickling(digits):
    pipeline = make_pipeline(StandardScaler(), StreamingPCA(6, random_state=3)).fit(digits)
    assert pipeline.transform(digits).shape == (1797, 6)
    pca = pipeline[-1]
    assert clone(pca).get_params() == pca.get_params()
    assert not hasattr(clone(pca), "components_")
    revived = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(revived.components_, pca.components_)


@pytest.mark.parametrize("kind", ["constant", "zero", "low rank", "constant columns", "far from the origin"])
@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("whiten", [False, True])
def test_awkward_rows_never_give_nan(kind, tracker, whiten):
    rows = awkward(kind, 120, 9, seed=1)
    pca = fit_in_batches(StreamingPCA(5, tracker=tracker, whiten=whiten), rows, batch=11)
    arrays = (pca.transform(rows), pca.inverse_transform(pca.transform(rows)), *pca.anomaly_scores(rows))
    assert all(np.isfinite(array).all() for array in arrays)
    assert pca.n_components_ == {"constant": 0, "zero": 0, "low rank": 2}.get(kind, pca.n_components_)


def test_memory_does_not_hold_the_stream(rng):
    """Rows are kept up to 32 MB, then no more of them than a few: what is pickled is the whole state."""
    batch, pca, sizes = power_law(rng, 1000, 300), StreamingPCA(5), []
    for _ in range(20):
        sizes.append(len(pickle.dumps(pca.partial_fit(batch))))
    assert max(sizes) < 1.01 * 2**25
    assert max(sizes[-6:]) < 2**20


# --- settings in mid-stream ---

CHANGES = {
    "n_components": 3,
    "energy": (0.01, 0.1),
    "center": False,
    "tracker": "block",
    "oversample": 3,
    "batch_size": 7,
    "random_state": 1,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changed_in_mid_stream_is_refused(name, rng):
    rows = rng.normal(size=(60, 6))
    pca = StreamingPCA(2).fit(rows)
    before = getattr(pca, name)
    pca.set_params(**{name: CHANGES[name]})
    with pytest.raises(ValueError, match=f"^{name} must stay .*set it back, or begin again with fit"):
        pca.partial_fit(rows)
    if name != "privacy":  # a private estimator merges nothing
        with pytest.raises(ValueError, match=f"^{name} must stay|center=False here"):
            pca.merge(StreamingPCA(2).fit(rows))
    assert pca.n_samples_seen_ == 60
    pca.set_params(**{name: before}).partial_fit(rows)
    assert pca.n_samples_seen_ == 120
    pca.set_params(**{name: CHANGES[name]}).fit(rows)
    assert pca.n_samples_seen_ == 60


def test_forget_and_whiten_may_change_in_mid_stream_and_act(rng):
    rows = rng.normal(size=(60, 6))
    pca = StreamingPCA(2).fit(rows).set_params(forget=0.5, whiten=True).partial_fit(rows)
    assert pca.subspace_.count == pytest.approx(0.25 * 60 + 60)
    assert np.allclose(pca.transform(rows).std(axis=0), 1, rtol=0.1)


def test_equal_settings_are_no_change(rng):
    rows = rng.normal(size=(60, 6))
    pca = StreamingPCA(2, energy=(0.01, 0.1)).fit(rows)
    pickle.loads(pickle.dumps(pca)).set_params(n_components=np.int64(2), energy=(0.01, 0.1)).partial_fit(rows)


# --- fewer components than requested ---


def test_fewer_components_than_requested_are_warned_of_once(rng):
    rows = rng.normal(size=(10, 30))
    with pytest.warns(UserWarning, match="n_components=20 but only 9 found: the rows span no more") as caught:
        StreamingPCA(20).fit(rows)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="n_components=2 but only 0 found"):
        assert StreamingPCA(2).fit(rows[:1]).transform(rows).shape == (10, 0)
    with pytest.warns(UserWarning, match="n_components=20 but only 9 found") as caught:
        fedpca.FederatedPCA(20).fit(rows, groups=np.arange(10) % 2)
    assert caught[0].filename == __file__
    StreamingPCA().fit(rows)  # as many as there are
    StreamingPCA(20).partial_fit(rows)  # more may come
