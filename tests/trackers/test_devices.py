"""Rows in arrays of other libraries, on devices: worked on where they are, with summaries like any other.

Runs with array-api-strict, which has nothing but the array API, and where they are installed with torch, on a
GPU if there is one, else on the CPU, and CuPy.
"""

import pickle

import numpy as np
import pytest
from helpers import fit_in_batches, power_law, shortfall, singular_values
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca.backend import backend_of, to_host
from fedpca.backend.array_api import DeviceBackend

pytestmark = pytest.mark.slow  # all of it together

LIBRARIES = ["array_api_strict", "torch", "cupy"]


class ToDevice:
    """A library, and the device that is tested."""

    def __init__(self, name):
        self.xp = pytest.importorskip(name)
        self.where = {}
        if name == "torch":
            self.where = {"device": "cuda" if self.xp.cuda.is_available() else "cpu"}

    def __call__(self, rows):
        return self.xp.asarray(np.array(rows), **self.where)


@pytest.fixture(params=LIBRARIES)
def to_device(request):
    return ToDevice(request.param)


def test_the_likelihood_of_rows_on_a_device(to_device, rng):
    rows = rng.normal(size=(300, 8))
    pca = fedpca.StreamingPCA(3).fit(rows)
    assert np.allclose(pca.score_samples(to_device(rows)), pca.score_samples(rows))
    assert pca.score(to_device(rows)) == pytest.approx(pca.score(rows))


def fitted(rows, batch=None, **settings):
    pca = fedpca.StreamingPCA(**({"n_components": 5} | settings))
    return fit_in_batches(pca, rows, batch or rows.shape[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_features", "tracker"), [(40, "exact"), (400, "auto")])
@pytest.mark.parametrize("batch", [None, 1000, 37])
def test_the_components_are_those_of_the_pooled_rows(to_device, dtype, n_features, tracker, batch, rng):
    rows = power_law(rng, 12_000 if batch != 37 else 1_500, n_features).astype(dtype)
    pca = fitted(to_device(rows), batch, tracker=tracker)
    assert pca._source.backend.on_device
    assert pca.components_.dtype == dtype
    assert shortfall(pca.components_, rows) < 1e-5
    assert pca.n_samples_seen_ == pca.subspace_.count == len(rows)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0, dtype=np.float64), atol=1e-6)
    total = np.sum((rows - rows.mean(axis=0, dtype=np.float64)) ** 2)
    assert pca.subspace_.total == pytest.approx(total, rel=1e-5)
    np.testing.assert_allclose(pca.singular_values_, singular_values(rows)[:5], rtol=1e-3)


@pytest.mark.parametrize("settings", [{}, {"whiten": True}, {"center": False}])
@pytest.mark.parametrize("n_features", [30, 300])
def test_what_is_done_with_rows_stays_where_they_are(to_device, settings, n_features, rng):
    rows = power_law(rng, 3000, n_features) + 1
    far = rows + 1e5 if settings.get("center", True) else rows  # summed about an origin of their own
    for values in (rows, far):
        pca = fitted(to_device(values), tracker="exact", **settings)
        host = fitted(values, tracker="exact", **settings)
        scores = pca.transform(to_device(values))
        assert backend_of(scores) == backend_of(to_device(values))
        scale = np.abs(host.transform(values)).max()
        np.testing.assert_allclose(to_host(scores), host.transform(values), atol=1e-6 * scale)
        back = pca.inverse_transform(scores)
        assert backend_of(back) == backend_of(scores)
        np.testing.assert_allclose(to_host(back), host.inverse_transform(host.transform(values)), rtol=1e-5)
        for ours, theirs in zip(
            pca.anomaly_scores(to_device(values)), host.anomaly_scores(values), strict=True
        ):
            assert backend_of(ours) == backend_of(scores)
            np.testing.assert_allclose(to_host(ours), theirs, rtol=1e-5, atol=1e-6)
    # and the same model takes rows of either kind
    np.testing.assert_allclose(pca.transform(far), to_host(pca.transform(to_device(far))), atol=1e-6 * scale)


@pytest.mark.slow
def test_a_stream_that_changes_its_directions_is_followed(to_device, rng):
    first, second = rng.normal(size=(2, 9000, 300)) * 0.01
    first[:, :3] += rng.normal(size=(9000, 3))
    second[:, 3:6] += rng.normal(size=(9000, 3))
    rows = np.concatenate([first, second])
    assert shortfall(fitted(to_device(rows), n_components=6).components_, rows) < 1e-5


def test_single_rows_that_are_directions_of_their_own_are_not_lost(to_device, rng):
    rows = rng.normal(size=(20_000, 300)) * 0.1
    rows[:, :3] += rng.normal(size=(20_000, 3))
    rows[15_000:15_002, 100:102] = 500 * np.eye(2)
    assert shortfall(fitted(to_device(rows)).components_, rows) < 1e-4


def test_rows_of_low_rank_are_recovered(to_device, rng):
    rows = rng.normal(size=(9000, 4)) @ rng.normal(size=(4, 300)) + rng.normal(size=300)
    pca = fitted(to_device(rows), n_components=6)
    assert pca.n_components_ == 4
    assert shortfall(pca.components_, rows) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "n_components", "bound"), [(0.25, 10, 1e-6), (0.5, 10, 1e-6), (2, 16, 1e-6)]
)
def test_flat_and_steep_spectra_are_resolved_as_on_the_host(to_device, alpha, n_components, bound, rng):
    rows = power_law(rng, 40_000, 200, alpha).astype(np.float32)
    pca = fitted(to_device(rows), n_components=n_components)
    assert shortfall(pca.components_, rows) < bound


def test_an_ill_conditioned_spectrum_is_followed_row_by_row(to_device, rng):
    rows = (rng.normal(size=(6000, 300)) * 10.0 ** -np.arange(300)).astype(np.float32)
    assert shortfall(fitted(to_device(rows), n_components=6, batch=3000).components_, rows) < 1e-6


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_a_stream_may_begin_with_rows_that_are_all_alike(to_device, constant, rng):
    rows = np.full((60_000, 100), constant, np.float32)
    pca = fitted(to_device(rows[:20_000]))
    assert pca.n_components_ == 0
    assert pca.subspace_.count == 20_000
    rows[20_000:, :3] += rng.normal(size=(40_000, 3))
    pca.partial_fit(to_device(rows[20_000:]))
    assert pca.n_components_ == 3
    assert shortfall(pca.components_, rows) < 1e-5


@pytest.mark.parametrize("n_rows", [20_000, 7])
@pytest.mark.parametrize("tracker", ["exact", "auto"])
def test_rows_too_small_to_square_are_refused(to_device, tracker, n_rows, rng):
    pca = fedpca.StreamingPCA(3, tracker=tracker)
    with pytest.raises(ValueError, match="too small to square in float32: rescale them"):
        pca.partial_fit(to_device((1e-25 * rng.normal(size=(n_rows, 100))).astype(np.float32)))
    assert not hasattr(pca, "n_features_in_")


@pytest.mark.parametrize("n_rows", [1, 2, 7])
def test_few_rows(to_device, n_rows, rng):
    rows = rng.normal(size=(n_rows, 300))
    pca = fitted(to_device(rows))
    assert pca.n_components_ == min(5, n_rows - 1)
    assert pca.subspace_.total == pytest.approx(np.sum((rows - rows.mean(axis=0)) ** 2), abs=1e-9)


def test_weights_count_repetitions(to_device, rng):
    rows, weights = power_law(rng, 6000, 300), rng.integers(0, 4, 6000)
    pca = fedpca.StreamingPCA(5).partial_fit(to_device(rows), sample_weight=weights)
    repeated = np.repeat(rows, weights, axis=0)
    assert pca.subspace_.count == len(repeated)
    assert shortfall(pca.components_, repeated) < 1e-5


@pytest.mark.slow
def test_forgetting(to_device, rng):
    rows = rng.normal(size=(12_000, 300)) * 0.01
    rows[:6000, :3] += rng.normal(size=(6000, 3))
    rows[6000:, 3:6] += rng.normal(size=(6000, 3))
    pca = fitted(to_device(rows), batch=1000, forget=0.3, n_components=3)
    assert shortfall(pca.components_, rows[6000:]) < 1e-4
    fit = fedpca.StreamingPCA(3, forget=0.3, batch_size=1000).fit(to_device(rows))
    np.testing.assert_allclose(fit.singular_values_, pca.singular_values_, rtol=1e-9)


def test_what_fades_still_counts_exactly_in_float32(to_device, rng):
    rows = rng.normal(size=(20_000, 100)).astype(np.float32)
    pca = fitted(to_device(rows), batch=2000, forget=0.95)
    assert pca.subspace_.count == pytest.approx(2000 * np.sum(0.95 ** (2 * np.arange(10))), rel=1e-6)


def test_summaries_merge_with_any_other(to_device, rng):
    rows = power_law(rng, 9000, 300)
    here, away = fitted(rows[:4000]), fitted(to_device(rows[4000:]))
    merged = fedpca.merge([here.subspace_, away.subspace_], rank=5)
    assert merged.count == 9000
    assert shortfall(merged.components, rows) < 1e-5
    assert fedpca.StreamingPCA(5).merge(here, away).subspace_.count == 9000
    away.merge(here).partial_fit(to_device(rows[:4000]))  # goes on there
    assert away._source.backend.on_device
    assert away.subspace_.count == 13_000


def test_rows_may_come_from_either_side(to_device, rng):
    rows = power_law(rng, 9000, 300)
    pca = fedpca.StreamingPCA(5)
    pca.partial_fit(to_device(rows[:3000])).partial_fit(rows[3000:6000]).partial_fit(to_device(rows[6000:]))
    assert shortfall(pca.components_, rows) < 1e-5
    pca = fedpca.StreamingPCA(5).partial_fit(rows[:3000]).partial_fit(to_device(rows[3000:]))
    assert not pca._source.backend.on_device
    assert shortfall(pca.components_, rows) < 1e-5


def test_trackers_of_the_host_get_their_rows_there(to_device, rng):
    rows = power_law(rng, 2000, 50)
    with pytest.warns(UserWarning, match="tracker='block' works on the host"):
        on_device = fitted(to_device(rows), tracker="block", batch=100)
    np.testing.assert_array_equal(on_device.components_, fitted(rows, tracker="block", batch=100).components_)


@pytest.mark.slow
def test_missing_entries_make_the_trip_through_the_host(to_device, rng):
    rows = rng.normal(size=(3000, 3)) @ rng.normal(size=(3, 300))
    holes = np.where(rng.uniform(size=rows.shape) < 0.1, np.nan, rows)
    pca = fitted(to_device(holes), n_components=3, batch=1000)
    assert shortfall(pca.components_, rows) < 1e-3
    scores = pca.transform(to_device(holes))
    assert backend_of(scores) == backend_of(to_device(rows))
    np.testing.assert_allclose(to_host(scores), pca.transform(rows), atol=0.5)


def test_private_rows(to_device, rng):
    rows = power_law(rng, 5000, 20)
    privacy = fedpca.Privacy(epsilon=5, delta=1e-5, bound=3, center=None, evaluate=False)
    model = fedpca.PrivatePCA(3, **privacy.settings).fit(to_device(rows)).subspace_
    assert model.certificate.epsilon == 5
    assert shortfall(model.components[:3], rows) < 0.1


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e18])
def test_a_refused_batch_changes_nothing(to_device, bad, rng):
    rows = power_law(rng, 5000, 300).astype(np.float32)
    pca = fitted(to_device(rows), forget=0.9)
    before, seen = pca.subspace_, pca.n_samples_seen_
    broken = rows.copy()
    broken[-1, 7] = bad
    with pytest.raises(ValueError, match=r"infinity|too large to square"):
        pca.partial_fit(to_device(broken))
    assert pca.subspace_ == before
    assert pca.n_samples_seen_ == seen
    with pytest.raises(ValueError, match=r"infinity|too large to square"):
        pca.transform(to_device(broken))


def test_a_batch_waits_for_the_device_once(to_device, monkeypatch, rng):
    rows = power_law(rng, 60_000, 300).astype(np.float32)
    pca = fit_in_batches(fedpca.StreamingPCA(4), to_device(rows[:40_000]), 40_000)
    transfers, fetch = [], DeviceBackend.fetch
    monkeypatch.setattr(DeviceBackend, "fetch", lambda *arguments: transfers.append(1) or fetch(*arguments))
    for batch in np.split(rows[40_000:], 4):
        transfers.clear()
        pca.partial_fit(to_device(batch))
        assert len(transfers) == 1


def test_the_nystrom_tracker_copies_rows_to_the_host_and_says_so(to_device, rng):
    rows = power_law(rng, 3000, 300)
    with pytest.warns(UserWarning, match="tracker='nystrom' works on the host"):
        pca = fedpca.StreamingPCA(5, tracker="nystrom").fit(to_device(rows))
    np.testing.assert_array_equal(
        pca.components_, fedpca.StreamingPCA(5, tracker="nystrom").fit(rows).components_
    )


def test_emulated_products_are_warned_of(to_device, monkeypatch, rng):
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    with pytest.warns(UserWarning, match="sets CUBLAS_EMULATE_DOUBLE_PRECISION: products on a GPU"):
        fedpca.StreamingPCA(2).fit(to_device(rng.normal(size=(50, 5))))


@pytest.mark.parametrize(("n_features", "kind"), [(256, fedpca.Moments), (257, fedpca.Subspace)])
def test_no_more_leaves_a_device_than_the_host(to_device, n_features, kind, rng):
    rows = power_law(rng, 2000, n_features)
    sent = fitted(to_device(rows)).summary_
    assert type(sent) is type(fitted(rows).summary_) is kind
    if kind is fedpca.Subspace:
        assert sent.rank == 13  # five and eight more
    assert type(fitted(to_device(rows), tracker="exact").summary_) is fedpca.Moments


@pytest.mark.parametrize("batch", [None, 4000])
def test_directions_that_rounding_would_drown_are_multiplied_in_float64(to_device, batch, rng):
    rows = power_law(rng, 20_000, 60, 3).astype(np.float32)
    pca = fitted(to_device(rows), batch, n_components=8)  # the last has 4e-6 of the first's energy
    np.testing.assert_allclose(pca.singular_values_, singular_values(rows)[:8], rtol=1e-5)
    # while rows of a gentle spectrum are multiplied in float32, or less
    assert pca._source._state.n_fast == 0
    assert fitted(to_device(power_law(rng, 2000, 60).astype(np.float32)))._source._state.n_fast == 2000


def test_a_stream_that_turns_steep_goes_on_in_float64(to_device, rng):
    gentle = rng.normal(size=(3000, 300)).astype(np.float32)
    steep = gentle * np.array([1e4] + [1.0] * 299, np.float32)
    pca = fedpca.StreamingPCA(5).partial_fit(to_device(gentle)).partial_fit(to_device(steep))
    rows = np.concatenate([gentle, steep])
    np.testing.assert_allclose(pca.singular_values_, singular_values(rows)[:5], rtol=1e-5)
    assert pca.partial_fit(to_device(steep))._source._state.n_fast == 3000


def test_a_stream_that_wants_what_was_rounded_away_warns(to_device, rng):
    rows = rng.normal(size=(3000, 20)).astype(np.float32)
    first, then = np.full((2, 20), 1e-4, np.float32)
    first[0], then[0], then[1:11] = 1.0, 1.3, 1.2e-3
    pca = fedpca.StreamingPCA(1 - 2e-6).partial_fit(to_device(rows * first))
    assert pca.n_components_ == 1
    with pytest.warns(UserWarning, match="the first 3000 rows were multiplied in bfloat16"):
        pca.partial_fit(to_device(rows * then))


def test_reading_leaves_the_stream_as_it_is(to_device, rng):
    rows = power_law(rng, 4000, 300).astype(np.float32)
    one, other = fedpca.StreamingPCA(5, forget=0.9), fedpca.StreamingPCA(5, forget=0.9)
    for batch in np.split(rows, 8):
        one.partial_fit(to_device(batch))
        other.partial_fit(to_device(batch)).components_  # noqa: B018
    assert one.subspace_.count == other.subspace_.count
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-4)
    np.testing.assert_allclose(one.singular_values_, other.singular_values_, rtol=1e-7)


# --- rows too wide for d x d numbers ---


@pytest.fixture
def wide(monkeypatch):
    """Few features are many already."""
    monkeypatch.setattr("fedpca.trackers.registry._MAX_EXACT_FEATURES_ON_DEVICE", 100)
    monkeypatch.setattr("fedpca.trackers.on_device.wide._CHUNK_ROWS", 1500)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch", [None, 1000, 37])
def test_wide_rows(to_device, dtype, batch, rng):
    rows = power_law(rng, 6000 if batch != 37 else 1_500, 400).astype(dtype) + 3
    pca = fitted(to_device(rows), batch)
    assert type(pca._source).__name__ == "DeviceWide"
    assert pca.components_.dtype == dtype
    assert shortfall(pca.components_, rows) < 1e-5
    assert pca.n_samples_seen_ == pca.subspace_.count == len(rows)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0, dtype=np.float64), atol=1e-6)
    total = np.sum((rows - rows.mean(axis=0, dtype=np.float64)) ** 2)
    assert pca.subspace_.total == pytest.approx(total, rel=1e-5)
    true = singular_values(rows)[:5]
    np.testing.assert_allclose(pca.singular_values_, true, rtol=1e-3)
    # Never more than there is, but for what rounding of rows does to products: 2^-9 at random, 1e-4 here.
    rounding = 3e-4 if pca._source.backend.has_tensor_cores and dtype == np.float32 else 1e-6
    assert (pca.subspace_.singular_values[:5] <= true * (1 + rounding)).all()


@pytest.mark.usefixtures("wide")
def test_wide_rows_with_weights_forgetting_and_other_summaries(to_device, rng):
    rows, weights = power_law(rng, 3000, 300), rng.integers(0, 4, 3000)
    repeated = np.repeat(rows, weights, axis=0)
    pca = fedpca.StreamingPCA(5).partial_fit(to_device(rows), sample_weight=weights)
    assert pca.subspace_.count == pytest.approx(len(repeated))
    assert shortfall(pca.components_, repeated) < 1e-5
    np.testing.assert_allclose(pca.mean_, repeated.mean(axis=0), atol=1e-9)
    pca.merge(fitted(rows)).partial_fit(to_device(rows[:100]))
    together = np.concatenate([repeated, rows, rows[:100]])
    assert pca.subspace_.count == pytest.approx(len(together))
    assert shortfall(pca.components_, together) < 1e-5
    fading = fitted(to_device(rows), 500, forget=0.5)
    host = fitted(rows, 500, forget=0.5)
    assert fading.subspace_.count == pytest.approx(host.subspace_.count)
    np.testing.assert_allclose(fading.singular_values_, host.singular_values_, rtol=1e-3)


@pytest.mark.usefixtures("wide")
def test_wide_rows_of_low_rank_uncentered_or_steep(to_device, rng):
    rows = rng.normal(size=(4000, 4)) @ rng.normal(size=(4, 300)) + rng.normal(size=300)
    pca = fitted(to_device(rows), n_components=6)
    assert pca.n_components_ == 4
    assert shortfall(pca.components_, rows) < 1e-10
    raw = fitted(to_device(rows), n_components=3, center=False)
    host = fitted(rows, n_components=3, center=False)
    np.testing.assert_allclose(raw.singular_values_, host.singular_values_, rtol=1e-6)
    steep = power_law(rng, 4000, 300, 3).astype(np.float32)
    found = fitted(to_device(steep), n_components=10)
    np.testing.assert_allclose(found.singular_values_, singular_values(steep)[:10], rtol=1e-3)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("bad", [np.inf, 1e18])
def test_a_refused_batch_of_wide_rows_changes_nothing(to_device, bad, rng):
    rows = power_law(rng, 5000, 300).astype(np.float32)
    pca = fitted(to_device(rows), forget=0.9)
    before, seen = pca.subspace_, pca.n_samples_seen_
    rows[-1, 7] = bad
    with pytest.raises(ValueError, match=r"infinity|too large to square"):
        pca.partial_fit(to_device(rows))
    assert pca.subspace_ == before
    assert pca.n_samples_seen_ == seen


STREAMS = {
    "float64": {},
    "uncentered": {"center": False},
    "forgetting": {"forget": 0.7},
    "a share of the variance": {"n_components": 0.9},
    "an energy band": {"n_components": 2, "energy": (0.8, 0.9)},
    "scale, of the first batch": {"scale": "std"},
    "scale, in one pass": {"scale": "std", "tracker": "exact"},
    "gaps": {},
    "late features": {},
}


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("stream", STREAMS)
def test_what_the_table_says_of_rows_on_a_device(to_device, is_wide, stream, request, rng):
    """The table of docs/explanation/devices.md."""
    if is_wide:
        request.getfixturevalue("wide")
    rows, settings = power_law(rng, 3000, 300), {"n_components": 4} | STREAMS[stream]
    if stream == "gaps":
        rows[rng.random(rows.shape) < 0.02] = np.nan
    if stream == "late features":
        rows[:1500, 7] = np.nan
    there, here = fitted(to_device(rows), 500, **settings), fitted(rows, 500, **settings)
    assert there._source.backend.on_device == (stream != "late features")
    assert there.n_components_ == here.n_components_
    k = min(3, here.n_components_)
    rtol = 2e-3 if stream in ("gaps", "late features") else 1e-4  # imputed from approximate directions
    np.testing.assert_allclose(there.explained_variance_[:k], here.explained_variance_[:k], rtol=rtol)


@pytest.mark.parametrize("is_wide", [False, True])
def test_what_the_table_says_of_a_stream_that_goes_on(to_device, is_wide, request, rng):
    """Pickled, merged, weighted, in given units, as integers, in a window, and by a tracker of the host."""
    if is_wide:
        request.getfixturevalue("wide")
    rows = power_law(rng, 3000, 300)
    whole = fitted(rows, n_components=4)

    def agrees(pca, host, rtol=1e-4):
        np.testing.assert_allclose(pca.explained_variance_[:3], host.explained_variance_[:3], rtol=rtol)

    half = pickle.loads(pickle.dumps(fitted(to_device(rows[:1500]), n_components=4)))
    assert half._source.backend.on_device
    agrees(clone(half).merge(half, fitted(to_device(rows[1500:]), n_components=4)), whole)
    agrees(half.partial_fit(to_device(rows[1500:])), whole)
    weights = rng.integers(1, 4, 3000)
    weighted = fedpca.StreamingPCA(4).fit(to_device(rows), sample_weight=weights)
    assert weighted._source.backend.on_device
    agrees(weighted, fitted(np.repeat(rows, weights, axis=0), n_components=4))
    units = {"n_components": 4, "scale": rng.uniform(1, 2, 300)}
    scaled = fitted(to_device(rows), **units)
    assert scaled._source.backend.on_device
    agrees(scaled, fitted(rows, **units))
    counts = np.rint(100 * rows).astype(np.int64)
    agrees(fitted(to_device(counts), n_components=4), fitted(counts, n_components=4))
    window = {"n_components": 4, "window": 1000}
    agrees(
        fit_in_batches(fedpca.WindowedPCA(**window), to_device(rows), 500),
        fit_in_batches(fedpca.WindowedPCA(**window), rows, 500),
        rtol=1e-3,  # blocks are merged by as many directions as are exchanged
    )
    with pytest.warns(UserWarning, match="tracker='nystrom' works on the host"):
        copied = fitted(to_device(rows), n_components=4, tracker="nystrom")
    assert not copied._source.backend.on_device


def test_more_features_than_a_scatter_can_have(rng):
    torch = pytest.importorskip("torch")
    rows = (rng.normal(size=(400, 6)) @ rng.normal(size=(6, 8200))).astype(np.float32)
    pca = fitted(torch.asarray(rows), 150, n_components=4)
    assert type(pca._source).__name__ == "DeviceWide"
    assert shortfall(pca.components_, rows) < 1e-6


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 5), (5, 0)])
def test_shapes_are_checked(to_device, shape):
    with pytest.raises(ValueError, match="shape"):
        fedpca.StreamingPCA(2).fit(to_device(np.zeros(shape)))


def test_the_number_of_features_is_checked(to_device, rng):
    pca = fitted(to_device(rng.normal(size=(50, 8))))
    with pytest.raises(ValueError, match="8 features"):
        pca.transform(to_device(rng.normal(size=(50, 9))))


def test_copies_and_pickles(to_device, rng):
    rows = power_law(rng, 6000, 300)
    pca = fitted(to_device(rows))
    assert clone(pca).get_params() == pca.get_params()
    again = pickle.loads(pickle.dumps(pca)).partial_fit(to_device(rows))
    assert again.n_samples_seen_ == 12_000
    assert shortfall(again.components_, rows) < 1e-5


def test_integers(to_device, rng):
    rows = rng.integers(0, 5, size=(4000, 30))
    assert shortfall(fitted(to_device(rows)).components_, rows) < 1e-9


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_is_worked_on_in_float32(kind, rng):
    torch = pytest.importorskip("torch")
    rows = torch.asarray(power_law(rng, 6000, 300)).to(getattr(torch, kind))
    pca = fitted(rows, batch=2500)
    assert pca.components_.dtype == np.float32
    assert shortfall(pca.components_, rows.double().numpy()) < 1e-5
    assert pca.transform(rows).dtype == torch.float32


def test_rows_that_are_being_differentiated(rng):
    torch = pytest.importorskip("torch")
    rows = torch.asarray(power_law(rng, 3000, 300)).requires_grad_()
    assert not fitted(rows).transform(rows).requires_grad


def test_owners_on_devices_federate(to_device, rng):
    rows = power_law(rng, 9000, 300)
    owners = {f"{owner}": to_device(part) for owner, part in enumerate(np.array_split(rows, 3))}
    pca = fedpca.FederatedPCA(5).fit_clients(owners)
    assert shortfall(pca.components_, rows) < 1e-5


@pytest.mark.parametrize("tracker", ["exact", "auto"])
@pytest.mark.parametrize("scale", ["std", "numbers"])
def test_scaled_rows_on_a_device(to_device, tracker, scale, rng):
    rows = rng.normal(size=(2000, 6)) @ rng.normal(size=(6, 6)) * np.logspace(-3, 3, 6) + 1
    numbers = rows.std(axis=0)
    assert np.allclose(fedpca.Scaling.from_rows(to_device(rows)).scale("std"), numbers, rtol=1e-12)
    settings = {"scale": numbers if scale == "numbers" else "std", "tracker": tracker}
    pca = fedpca.StreamingPCA(2, **settings).fit(to_device(rows))
    assert pca._source.backend.on_device
    expected = make_pipeline(StandardScaler(), PCA(2)).fit(rows)
    assert np.allclose(pca.explained_variance_, expected[-1].explained_variance_, rtol=1e-4)
    scores = pca.transform(to_device(rows))
    assert backend_of(scores).on_device
    assert np.allclose(np.abs(to_host(scores)), np.abs(expected.transform(rows)), atol=1e-2)
    restored = to_host(pca.inverse_transform(scores)) / numbers
    assert np.allclose(restored, expected.inverse_transform(expected.transform(rows)) / numbers, atol=1e-2)
    rows[3, 2], rows[5, 4] = np.nan, np.nan
    with_gaps = fedpca.StreamingPCA(2, **settings).fit(to_device(rows))
    assert np.allclose(with_gaps.scale_, np.nanstd(rows, axis=0), rtol=1e-12 if scale == "std" else 1e-3)
    before = with_gaps.summary_
    rows[7, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        with_gaps.partial_fit(to_device(rows))
    assert with_gaps.summary_ == before


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta:UserWarning")
@pytest.mark.parametrize("layout", ["csr", "coo", "csc"])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_sparse_tensors_are_rows_like_those_of_scipy(layout, name, rng):
    torch = pytest.importorskip("torch")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    values = np.where(rng.uniform(size=(700, 300)) < 0.1, power_law(rng, 700, 300), 0)
    dense = torch.asarray(values, dtype=getattr(torch, name), device=where)
    rows = getattr(dense, {"csr": "to_sparse_csr", "coo": "to_sparse_coo", "csc": "to_sparse_csc"}[layout])()
    exact = dense.to(torch.float64).cpu().numpy()
    pca = fedpca.StreamingPCA(5).fit(rows)
    assert shortfall(pca.components_, exact) < 1e-9
    again = fedpca.StreamingPCA(5).partial_fit(dense).partial_fit(rows)
    assert shortfall(again.components_, np.concatenate([exact, exact])) < 1e-5
    scores = pca.transform(rows)
    assert scores.device == dense.device
    np.testing.assert_allclose(to_host(scores), to_host(pca.transform(dense)), rtol=1e-3, atol=1e-4)
