"""WindowedPCA is the PCA of the rows that its blocks cover; and rows one by one, as in river."""

import datetime
import pickle
from datetime import UTC, timedelta

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA

import fedpca
from fedpca import StreamingPCA, WindowedPCA

pytestmark = pytest.mark.slow  # all of it together


def drifting_rows(n_rows, n_features=12, seed=0):
    """Rows whose directions turn while they come, far from the origin."""
    rng = np.random.default_rng(seed)
    start, end = rng.normal(size=(2, 4, n_features))
    share = np.linspace(0, 1, n_rows)[:, None]
    factors = rng.normal(size=(n_rows, 4)) * [5.0, 3.0, 2.0, 1.0]
    noise = 0.1 * rng.normal(size=(n_rows, n_features))
    return (1 - share) * (factors @ start) + share * (factors @ end) + noise + 100 * share


def projection_distance(one, other):
    """Between the projections onto the rows of two bases, in the spectral norm."""
    return np.linalg.norm(one.T @ one - other.T @ other, 2)


def assert_is_pca_of(pca, rows, n_components=3):
    """By a singular value decomposition of numpy."""
    deviations = rows - rows.mean(axis=0)
    _, values, components = np.linalg.svd(deviations, full_matrices=False)
    assert pca.n_samples_seen_ == len(rows)
    assert np.allclose(pca.mean_, rows.mean(axis=0))
    assert np.allclose(pca.singular_values_, values[:n_components], rtol=1e-6)
    assert np.allclose(pca.explained_variance_ratio_, values[:n_components] ** 2 / (values @ values))
    assert projection_distance(pca.components_, components[:n_components]) < 1e-6


def covered(n_seen, window):
    """How many of the latest rows count, by the rule as it is documented."""
    block = -(-window // 16)
    oldest = n_seen - window  # the number of the oldest row of the window
    return n_seen if oldest <= 0 else n_seen - oldest // block * block


@pytest.mark.parametrize("window", [1, 5, 16, 100, 333])
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_a_window_of_rows(window, batch):
    rows, pca = drifting_rows(1000), WindowedPCA(3, window=window)
    for start in range(0, 1000, batch):
        pca.partial_fit(rows[start : start + batch])
    n_covered = covered(1000, window)
    assert window <= n_covered < window + -(-window // 16)
    if window > 3:
        assert_is_pca_of(pca, rows[-n_covered:])
    assert pca.n_samples_seen_ == n_covered


def test_at_every_row_exactly_the_covered_rows_count():
    rows, pca = drifting_rows(150), WindowedPCA(3, window=40)
    for seen in range(1, 151):
        pca.partial_fit(rows[seen - 1 : seen])
        assert pca.n_samples_seen_ == covered(seen, 40)
        if seen > 4:
            assert_is_pca_of(pca, rows[seen - covered(seen, 40) : seen])


@pytest.mark.parametrize("unit", ["timedelta", "timedelta64"])
def test_a_window_of_time(unit):
    rng = np.random.default_rng(3)
    rows = drifting_rows(800)
    minutes = np.cumsum(rng.exponential(2.0, size=800))
    minutes[500:] += 600  # a gap
    times = np.datetime64("2026-01-01") + (minutes * 60e9).astype("timedelta64[ns]")
    pca = WindowedPCA(3, window=timedelta(hours=4) if unit == "timedelta" else np.timedelta64(4, "h"))
    block = np.timedelta64(15, "m")
    quarters = times.astype("datetime64[m]").astype(int) // 15
    for start in range(0, 800, 50):
        stop = start + 50
        pca.partial_fit(rows[start:stop], timestamps=times[start:stop])
        limit = times[stop - 1] - np.timedelta64(4, "h")
        oldest = np.flatnonzero(times[:stop] > limit)[0]  # of the window; with it counts all of its block
        first = np.flatnonzero(quarters == quarters[oldest])[0]
        assert times[oldest] - times[first] < block
        assert_is_pca_of(pca, rows[first:stop])


def test_a_block_leaves_whole_or_not_at_all():
    times = np.datetime64("2026-01-01") + np.array([0, 14, 15, 239, 240, 254, 255]) * np.timedelta64(1, "m")
    pca, counts = WindowedPCA(1, window=timedelta(hours=4)), []
    for row, time in zip(drifting_rows(7), times, strict=True):
        pca.partial_fit(row[None], timestamps=[time])
        counts.append(pca.n_samples_seen_)
    assert counts == [1, 2, 3, 4, 5, 4, 4]


def test_datetimes_with_a_zone_are_the_same_as_in_utc():
    zone = datetime.timezone(timedelta(hours=5))
    start = datetime.datetime(2026, 1, 1, tzinfo=zone)
    rows = drifting_rows(60)
    times = [start + timedelta(minutes=i) for i in range(60)]
    aware = WindowedPCA(2, window=timedelta(minutes=30)).fit(rows, timestamps=times)
    naive = [time.astimezone(UTC).replace(tzinfo=None) for time in times]
    plain = WindowedPCA(2, window=timedelta(minutes=30)).fit(rows, timestamps=naive)
    assert aware.subspace_ == plain.subspace_
    pandas = pytest.importorskip("pandas")
    index = pandas.DatetimeIndex(times)
    assert (
        WindowedPCA(2, window=timedelta(minutes=30)).fit(rows, timestamps=index).subspace_ == plain.subspace_
    )


def test_fit_is_the_same_as_one_row_at_a_time():
    rows = drifting_rows(300)
    whole, single = WindowedPCA(2, window=100).fit(rows), WindowedPCA(2, window=100)
    for row in rows:
        single.partial_fit(row[None])
    assert whole.n_samples_seen_ == single.n_samples_seen_
    assert projection_distance(whole.components_, single.components_) < 1e-8


def test_many_features_stay_bounded_and_capture_the_variance():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 30)) * np.geomspace(10, 0.5, 30) @ rng.normal(size=(30, 600)) / 20
    rows += 0.05 * rng.normal(size=rows.shape)
    pca = WindowedPCA(5, window=800)
    sizes = []
    for start in range(0, 2000, 50):
        pca.partial_fit(rows[start : start + 50])
        sizes.append(len(pickle.dumps(pca)))
    assert max(sizes[20:]) < 1.3 * sizes[17]
    latest = rows[-pca.n_samples_seen_ :]
    best = PCA(5).fit(latest).explained_variance_.sum()
    assert (latest @ pca.components_.T).var(axis=0, ddof=1).sum() > 0.98 * best


def test_scale_is_that_of_the_window():
    rows = drifting_rows(500) * np.geomspace(1, 1000, 12)
    pca = WindowedPCA(3, window=100, scale="std").fit(rows)
    latest = rows[-pca.n_samples_seen_ :]
    assert np.allclose(pca.scale_, latest.std(axis=0))
    reference = PCA(3).fit((latest - latest.mean(axis=0)) / latest.std(axis=0))
    assert projection_distance(pca.components_, reference.components_) < 1e-6
    with pytest.raises(ValueError, match="scale must be numbers for 300 features"):
        WindowedPCA(3, window=100, scale="std").fit(np.random.default_rng(0).normal(size=(50, 300)))


def test_sparse_rows_names_whitening_copies_and_files(tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = np.maximum(drifting_rows(200), 0)
    dense, thin = (
        WindowedPCA(2, window=64, whiten=True).fit(some) for some in (rows, sparse.csr_array(rows))
    )
    assert projection_distance(dense.components_, thin.components_) < 1e-8
    assert np.allclose(dense.transform(rows[-64:]).std(axis=0, ddof=1), 1, atol=0.2)
    frame = pandas.DataFrame(rows, columns=[f"f{i}" for i in range(12)])
    named = WindowedPCA(2, window=64).fit(frame)
    named.subspace_.save(tmp_path / "model.safetensors")
    assert fedpca.load(tmp_path / "model.safetensors").feature_names == tuple(frame.columns)
    assert pickle.loads(pickle.dumps(named)).subspace_ == named.subspace_
    assert clone(named).window == 64


def test_missing_values_are_imputed_in_their_block():
    rows = drifting_rows(400)
    gaps = np.where(np.random.default_rng(1).random(rows.shape) < 0.05, np.nan, rows)
    found, complete = (WindowedPCA(2, window=160).fit(some) for some in (gaps, rows))
    assert projection_distance(found.components_, complete.components_) < 0.05


def test_rows_that_cannot_be_learned_change_nothing():
    rows, pca = drifting_rows(100), WindowedPCA(2, window=32)
    before = pca.partial_fit(rows).subspace_
    bad = rows.copy()
    bad[-1, 0] = np.inf
    with pytest.raises(ValueError, match="inf"):
        pca.partial_fit(bad)
    assert pca.subspace_ == before
    assert pca.n_samples_seen_ == 32


@pytest.mark.parametrize(
    ("window", "timestamps", "message"),
    [
        (0, None, "window must be positive, got 0"),
        (timedelta(0), None, "window must be positive"),
        (10**30, None, r"window must be less than 2\*\*63 rows, got 1000"),
        (2.5, None, "window must be a number of rows or a timedelta, got 2.5"),
        (True, None, "window must be a number of rows or a timedelta"),
        (5, ["2026-01-01"] * 3, "timestamps must be None with a window of rows"),
        (timedelta(1), None, "timestamps must be given with a window of time"),
        (timedelta(1), [1.0, 2.0, 3.0], "timestamps must be datetimes, got float64"),
        (timedelta(1), np.array(["2026-01-01"] * 2, "M8[s]"), r"one entry per row, 3, got shape \(2,\)"),
        (timedelta(1), np.array(["2026-01-02", "2026-01-01", "2026-01-03"], "M8[s]"), "must not decrease"),
        (
            timedelta(1),
            np.array(["1500-01-01", "1500-01-02", "2026-01-01"], "M8[D]"),
            "between 1678 and 2262",
        ),
        (
            timedelta(1),
            np.array(["2026-01-01", "2026-01-02", "9999-12-31"], "M8[s]"),
            "between 1678 and 2262",
        ),
        (timedelta(1), [datetime.datetime(1500, 1, day) for day in (1, 2, 3)], "between 1678 and 2262"),
        (timedelta(days=365_000), None, "window must be at most 292 years"),
        (np.timedelta64(1, "M"), None, "window must be a time of known length.*give days or seconds"),
        (np.timedelta64("NaT", "s"), None, "window must be a time of known length"),
        (timedelta(1), np.array(["2026-01-02", "NaT", "2026-01-03"], "M8[s]"), "must not be missing"),
    ],
)
def test_bad_windows_and_times(window, timestamps, message):
    with pytest.raises((ValueError, TypeError), match=message):
        WindowedPCA(2, window=window).partial_fit(drifting_rows(3), timestamps=timestamps)


@pytest.mark.parametrize("change", [{"window": 20}, {"n_components": 3}, {"scale": "std"}, {"center": False}])
def test_a_setting_that_changes_in_mid_stream_is_an_error(change):
    rows, pca = drifting_rows(100), WindowedPCA(2, window=32)
    before = pca.partial_fit(rows).subspace_
    with pytest.raises(ValueError, match=f"{next(iter(change))} must stay .*begin again with fit"):
        pca.set_params(**change).partial_fit(rows)
    assert pca.subspace_ == before
    assert pca.set_params(whiten=True).fit(rows).n_samples_seen_ == change.get("window", 32)
    assert pca.set_params(whiten=False).partial_fit(rows).n_samples_seen_ == change.get("window", 32)


def test_times_must_not_decrease_between_batches():
    pca = WindowedPCA(1, window=timedelta(days=1))
    pca.partial_fit(drifting_rows(2), timestamps=np.array(["2026-01-02"] * 2, "M8[D]"))
    with pytest.raises(ValueError, match=r"must not decrease, got 2026-01-01T.* after 2026-01-02T.*; sort"):
        pca.partial_fit(drifting_rows(1), timestamps=np.array(["2026-01-01"], "M8[D]"))
    with pytest.raises(ValueError, match="or t= to learn_one"):
        WindowedPCA(1, window=timedelta(days=1)).learn_one({"a": 1.0, "b": 2.0})


# --- rows one by one ---


def dictionaries(rows):
    return [{f"f{i}": value for i, value in enumerate(row)} for row in rows]


@pytest.mark.parametrize("pca", [StreamingPCA(3), WindowedPCA(3, window=1000)])
def test_one_by_one_is_the_same_as_all_at_once(pca):
    rows, pca = drifting_rows(80), clone(pca)
    assert pca.transform_one(dictionaries(rows)[0]) == {0: 0.0, 1: 0.0, 2: 0.0}
    for x in dictionaries(rows):
        assert pca.learn_one(x) is None
    assert_is_pca_of(pca, rows)
    scores = [pca.transform_one(dict(reversed(x.items()))) for x in dictionaries(rows)]
    assert np.allclose([[*score.values()] for score in scores], pca.transform(rows_of(pca, rows)))
    assert [*scores[0]] == [0, 1, 2]


def rows_of(pca, rows):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows, columns=pca.feature_names_in_)


def test_a_row_may_lack_features_but_not_have_others():
    pca = StreamingPCA(2)
    for x in dictionaries(drifting_rows(50)):
        pca.learn_one(x)
    x = dictionaries(drifting_rows(1))[0]
    del x["f3"]
    pca.learn_one(x)
    assert all(np.isfinite([*pca.transform_one(x).values()]))
    with pytest.raises(ValueError, match="unknown feature colour; the first row"):
        pca.learn_one(x | {"colour": 1.0})
    with pytest.raises(ValueError, match="need features with names"):
        StreamingPCA(2).fit(drifting_rows(20)).learn_one(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"height": "tall", "weight": 3.0}, "feature height must be a number, got 'tall'; encode"),
        ({"height": 10**400, "weight": 3.0}, "feature height must be a number, got 1000"),
        ({1: 2.0, "1": 3.0}, "features must have different names, got 1 twice"),
        ([1.0, 2.0], "a row must be a mapping of names to values, got list"),
    ],
)
def test_what_is_no_row(x, message):
    for pca in (StreamingPCA(1), WindowedPCA(1, window=9)):
        with pytest.raises((TypeError, ValueError), match=message):
            pca.learn_one(x)
        pca.learn_one({"height": 1.0, "weight": None})


def test_one_by_one_in_a_window_of_time():
    pca = WindowedPCA(1, window=timedelta(hours=1))
    for minute, x in enumerate(dictionaries(drifting_rows(200))):
        pca.learn_one(x, t=datetime.datetime(2026, 1, 1) + timedelta(minutes=minute))
    assert 60 <= pca.n_samples_seen_ < 64


def test_a_missing_time_of_pandas():
    pandas = pytest.importorskip("pandas")
    pca = WindowedPCA(1, window=timedelta(hours=1))
    with pytest.raises(ValueError, match="timestamps must not be missing, got NaT"):
        pca.learn_one({"a": 1.0, "b": 2.0}, t=pandas.NaT)


@pytest.mark.parametrize("pca", [StreamingPCA(2), WindowedPCA(2, window=100)])
def test_clones_for_unions_and_ensembles_of_river(pca):
    pca = clone(pca)
    for x in dictionaries(drifting_rows(50)):
        pca.learn_one(x)
    fresh, learned = pca.clone({"n_components": 3}), pca.clone(include_attributes=True)
    assert fresh.n_components == 3
    assert fresh.transform_one(x) == {0: 0.0, 1: 0.0, 2: 0.0}
    assert learned.transform_one(x) == pca.transform_one(x)
    learned.learn_one(x)
    assert (pca.n_samples_seen_, learned.n_samples_seen_) == (50, 51)


@pytest.mark.client
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("pca", [StreamingPCA(2), WindowedPCA(2, window=100)])
def test_pipelines_of_river(pca):
    base = pytest.importorskip("river.base", reason="river is not installed")
    from river import compose, linear_model, metrics, preprocessing

    base.Transformer.register(type(pca))
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=400)
    rows = np.outer(hidden, rng.uniform(1, 2, size=12)) + 0.3 * rng.normal(size=(400, 12))
    model = compose.Pipeline(preprocessing.StandardScaler(), clone(pca), linear_model.LogisticRegression())
    model = model.clone()
    metric = metrics.ROCAUC()
    for x, y in zip(dictionaries(rows), (hidden > 0).tolist(), strict=True):
        metric.update(y, model.predict_proba_one(x))
        model.learn_one(x, y)
    assert metric.get() > 0.9
    assert len(model.transform_one(dictionaries(rows)[0])) == 2


def test_rows_are_learned_without_a_copy_of_their_block(rng):
    pca = fedpca.WindowedPCA(2, window=160_000).partial_fit(rng.normal(size=(2000, 20)))
    block = pca._source.current
    pca.partial_fit(rng.normal(size=(1, 20)))
    assert pca._source.current is block
    assert pca.n_samples_seen_ == 2001


@pytest.mark.parametrize("bad", [5, 15, 25])
def test_a_batch_over_several_blocks_is_learned_as_a_whole_or_not_at_all(bad, rng):
    """Blocks have ten rows: the first five go on with one, the others begin new ones."""
    rows, batch = rng.normal(size=(5, 4)), rng.normal(size=(30, 4))
    pca = fedpca.WindowedPCA(2, window=160).partial_fit(rows)
    before = pca.subspace_
    spoiled = batch.copy()
    spoiled[bad, 0] = np.inf
    with pytest.raises(ValueError, match="infinit"):
        pca.partial_fit(spoiled)
    assert pca.n_samples_seen_ == 5
    assert pca.subspace_ == before
    pca.partial_fit(batch)
    np.testing.assert_allclose(pca.mean_, np.concatenate([rows, batch]).mean(axis=0))
