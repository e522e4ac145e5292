"""PCADetector, contributions and limits, against their definitions and on faults that are known."""

import json
import warnings

import numpy as np
import pytest
from scipy import sparse

import fedpca
from fedpca import Moments, PCADetector, StreamingPCA, Subspace, WindowedPCA
from fedpca.errors import ModelFileError
from fedpca.estimators.limits import AlarmRule, ScoreHistogram, model_distance


def plant(n_rows, seed=0, d=8, noise=0.3):
    rng = np.random.default_rng(seed)
    loadings = np.random.default_rng(99).normal(size=(3, d))
    units = 10.0 ** np.arange(d) / 100
    return (rng.normal(size=(n_rows, 3)) @ loadings + noise * rng.normal(size=(n_rows, d)) + 5) * units


def with_gaps(rows, share=0.1):
    return np.where(np.random.default_rng(7).random(rows.shape) < share, np.nan, rows)


ESTIMATORS = {
    "plain": lambda rows: StreamingPCA(3).fit(rows),
    "scaled": lambda rows: StreamingPCA(3, scale="std").fit(rows),
    "forgetful": lambda rows: StreamingPCA(3, scale="std", forget=0.9).fit(rows),
    "window": lambda rows: WindowedPCA(3, window=200, scale="std").fit(rows),
    "all directions": lambda rows: StreamingPCA(8, scale="std").fit(rows),
    "nystrom": lambda rows: StreamingPCA(3, scale="std", tracker="nystrom").fit(rows),
    "float32": lambda rows: StreamingPCA(3, scale="std").fit(rows.astype(np.float32)),
    "far from zero": lambda rows: StreamingPCA(3, scale="std").fit(rows + 1e6 * rows.std(axis=0)),
}


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("gaps", [False, True])
def test_contributions_are_nonnegative_and_add_up(kind, gaps):
    rows = with_gaps(plant(300)) if gaps and kind != "far from zero" else plant(300)
    pca = ESTIMATORS[kind](rows)
    new = rows[:40] + (1e6 * np.nanstd(rows, axis=0) if kind == "far from zero" else 0)
    found = pca.contributions(new)
    spe, t2 = pca.anomaly_scores(new)
    np.testing.assert_allclose(found.spe.sum(axis=1), spe, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.t2.sum(axis=1), t2, rtol=1e-5)
    np.testing.assert_allclose(found.score.sum(axis=1), pca.anomaly_score(new), rtol=1e-6)
    assert all(part.shape == new.shape and (part >= 0).all() for part in found)
    assert (found.spe[np.isnan(new)] == 0).all()


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("n_components", [3, 8])
def test_the_reduction_is_what_the_best_value_of_the_feature_gains(gaps, n_components):
    """Against a minimum over the entry itself and over all missing ones, of the score of complete rows."""
    rows = plant(300)
    pca = StreamingPCA(n_components, scale="std").fit(rows)
    new = with_gaps(rows[:5]) if gaps else rows[:5]
    precision = np.linalg.inv(np.cov((rows / pca.scale_).T))  # of D²; of T² and SPE by their definitions
    inside = (pca.components_.T / pca.explained_variance_) @ pca.components_
    left_out = 8 - pca.explained_variance_.sum() * 299 / 300
    form = inside / n_components + precision / 8
    if n_components < 8:
        form += (np.eye(8) - pca.components_.T @ pca.components_) / (left_out * 300 / 299)

    def least(row, free):
        """The least score over the entries that are free."""
        fixed = ~free
        best = row.copy()
        best[free] = np.linalg.lstsq(form[np.ix_(free, free)], -form[np.ix_(free, fixed)] @ row[fixed])[0]
        return best @ form @ best

    reduction = pca.contributions(new).reduction
    for row, found in zip((new - pca.mean_) / pca.scale_, reduction, strict=True):
        gap = np.isnan(row)
        for i in np.flatnonzero(~gap):
            free = gap.copy()
            free[i] = True
            assert found[i] == pytest.approx(least(row, gap) - least(row, free), rel=1e-6, abs=1e-8)
        assert (found[gap] == 0).all()


@pytest.mark.parametrize("sensor", range(8))
def test_the_sensor_at_fault_is_named(sensor):
    detector = PCADetector(0.9).fit(plant(1000))
    rows = plant(200, seed=1)
    rows[:, sensor] += 4 * plant(1000)[:, sensor].std()
    assert (detector.contributions(rows).named == sensor).mean() > 0.9
    assert (detector.predict(rows) == -1).mean() > 0.9


# --- the detector ---


@pytest.mark.parametrize(("n_rows", "d"), [(4000, 8), (400, 8), (120, 30)])
def test_false_alarms_of_rows_held_out_are_as_many_as_promised(n_rows, d):
    shares = []
    for seed in range(5):
        detector = PCADetector(3, alarms=0.05).fit(plant(n_rows, seed, d))
        shares.append((detector.predict(plant(2000, 100 + seed, d)) == -1).mean())
    assert 0.03 < np.mean(shares) < 0.08


def test_outliers_among_the_rows_of_the_fit_do_not_hide_each_other():
    rows = plant(1000)
    rows[:60, 2] += 8 * rows[:, 2].std()  # a cluster: without trimming, a direction of its own
    labels = PCADetector(3, contamination=0.06).fit_predict(rows)
    assert (labels[:60] == -1).mean() > 0.95
    assert (labels[60:] == -1).mean() < 0.03


def test_the_limit_is_the_quantile_of_all_rows_that_both_shares_leave():
    rows = plant(2000)
    for contamination, alarms in ((0.0, 0.01), (0.1, 0.02)):
        detector = PCADetector(3, contamination=contamination, alarms=alarms).fit(rows)
        share = (detector.predict(rows) == -1).mean()
        assert share == pytest.approx(1 - (1 - contamination) * (1 - alarms), abs=0.004)
        np.testing.assert_array_equal(
            detector.decision_function(rows), detector.score_samples(rows) - detector.offset_
        )


@pytest.mark.parametrize(
    "kind", ["float32", "sparse", "gaps", "constant", "collinear", "far", "frame", "huge"]
)
def test_hard_rows_are_scored(kind):
    rows = plant(400)
    if kind == "constant":
        rows[:, 3] = 7.0
    if kind == "collinear":
        rows[:, 3] = rows[:, 4]
    if kind == "far":
        rows = rows + 1e8 * rows.std(axis=0)
    if kind == "huge":
        rows = rows * 1e100
    X = {"sparse": sparse.csr_array, "gaps": with_gaps, "float32": np.float32}.get(kind, np.asarray)(rows)
    if kind == "frame":
        X = pytest.importorskip("pandas").DataFrame(rows, columns=list("abcdefgh"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*do(es)? not vary")
        detector = PCADetector(3).fit(X)
    assert 0.001 < (detector.predict(X) == -1).mean() < 0.05
    assert np.isfinite(detector.score_samples(X)).all()
    if kind == "constant":
        rows[0, 3] = 70.0
        assert detector.predict(rows[:1])[0] == -1
        assert detector.contributions(rows[:1]).named[0] == 3


def test_a_row_without_values_is_no_outlier_and_does_not_lower_the_limit():
    rows = plant(1000)
    empty = np.vstack([rows, np.full((1000, 8), np.nan)])
    detector = PCADetector(3).fit(empty)
    assert (detector.predict(empty[1000:]) == 1).all()
    assert (detector.predict(rows) == -1).mean() < 0.02


def test_a_stream_leaves_outliers_out_and_learns_a_shift_that_lasts():
    rng = np.random.default_rng(0)
    detector = PCADetector(3, forget=0.9, contamination=0.08)
    for hour in range(40):
        batch = plant(100, seed=hour)
        batch[:8] += 20 * batch.std(axis=0) * rng.choice([-1, 1], size=8)
        detector.partial_fit(batch)
    clean = PCADetector(3).fit(plant(4000))
    np.testing.assert_allclose(detector.pca_.scale_, clean.pca_.scale_, rtol=0.1)
    shift = 4 * clean.pca_.scale_ * np.eye(8)[2]
    assert (detector.predict(plant(100, 77) + shift) == -1).mean() > 0.9
    for hour in range(60):
        detector.partial_fit(plant(100, seed=100 + hour) + shift)
    assert (detector.predict(plant(1000, 78) + shift) == -1).mean() < 0.12  # 8 % are expected


def test_row_by_row_is_learned_whole():
    detector = PCADetector(3).fit(plant(500))
    for row in plant(50, 1):
        detector.partial_fit(row[None])
    assert detector.pca_.n_samples_seen_ == 450 + 50
    assert detector.histogram_.count == 550


# --- federated ---


def federation(n_owners=4):
    """Rows of owners, of which one has most of the outliers."""
    parts = [plant(500, seed) for seed in range(n_owners)]
    parts[0][:100, 1] += 6 * parts[0][:, 1].std()
    return parts


def test_trimming_and_limits_of_owners_are_those_of_their_rows_together():
    parts = federation()
    settings = {"contamination": 0.05, "n_components": 3}
    plain = PCADetector(**settings).merge(*(PCADetector(**settings, trim=0.0).fit(part) for part in parts))
    detector = plain
    for _ in range(2):
        detector.calibrate(ScoreHistogram.merge([detector.score_histogram(part) for part in parts]))
        detector = PCADetector(**settings).merge(*(detector.trimmed(part) for part in parts))
    detector.calibrate(ScoreHistogram.merge([detector.score_histogram(part) for part in parts]))
    whole = np.concatenate(parts)
    together = PCADetector(**settings).fit(whole)
    np.testing.assert_allclose(detector.score_samples(whole), together.score_samples(whole), rtol=0.02)
    assert detector.limit_ == pytest.approx(together.limit_, rel=0.02)
    assert (detector.predict(parts[0][:100]) == -1).mean() > 0.95


def test_a_merged_detector_has_a_limit_from_trusted_rows():
    detector = PCADetector(3, contamination=0.2)
    detector.merge(*(PCADetector(3).fit(part) for part in federation()[1:]))
    detector.calibrate(plant(2000, 50), contamination=0.0)
    assert (detector.predict(plant(2000, 51)) == -1).mean() == pytest.approx(0.01, abs=0.006)


def test_a_histogram_is_the_same_as_json_and_rejects_what_is_none():
    histogram = ScoreHistogram.of(np.array([0.0, 1e-30, 1.0, 2.0, 1e30, np.inf]))
    again = ScoreHistogram.from_json(json.loads(json.dumps(histogram.to_json())))
    np.testing.assert_array_equal(again.counts, histogram.counts)
    for bad in ({"x": 1}, {"99999": 1}, {"1": -1}, {"1": float("nan")}, {"1": "2"}, {"1": True}):
        with pytest.raises(ValueError, match="scores must be"):
            ScoreHistogram.from_json(bad)


# --- files ---


def test_a_saved_detector_scores_and_alarms_as_before(tmp_path):
    detector = PCADetector(3, contamination=0.05).fit(with_gaps(plant(500)))
    path = tmp_path / "monitor.safetensors"
    detector.save_model(path)
    again, rows = PCADetector.load_model(path), plant(100, 5)
    np.testing.assert_allclose(again.score_samples(rows), detector.score_samples(rows), rtol=1e-9)
    np.testing.assert_array_equal(again.predict(rows), detector.predict(rows))
    assert again.limit_ == detector.limit_
    assert isinstance(fedpca.load(path), Moments)  # the limit stays behind
    with pytest.raises(ValueError, match="learns no rows"):
        again.partial_fit(rows)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"alarms": 2, "contamination": 0, "scores": {"1": 1}},
        {"alarms": 0.1, "contamination": 0, "scores": 3},
    ],
)
def test_limits_in_a_file_are_checked(limits, tmp_path):
    from fedpca.summaries import model_file

    summary = Subspace.from_rows(plant(50), 2)
    path = tmp_path / "model"
    model_file.write(path, summary.kind, summary.arrays, summary.metadata | {"limits": limits})
    with pytest.raises(ModelFileError, match="limits that are not valid"):
        PCADetector.load_model(path)


# --- bad input: one line each ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PCADetector(3).fit(plant(5)), "at least 10 rows, got n_samples=5"),
        (lambda: PCADetector(2).fit(np.ones((20, 3))), "features that vary"),
        (lambda: PCADetector(20).fit(plant(15, d=30)), "more rows than components, got 15 rows"),
        (lambda: PCADetector(contamination=0.7).fit(plant(50)), "contamination must lie"),
        (lambda: PCADetector(trim=-1).fit(plant(50)), "trim must lie"),
        (lambda: PCADetector(alarms=0).fit(plant(50)), "alarms must lie"),
        (
            lambda: PCADetector(3).merge(Subspace.from_rows(plant(50))),
            "got a Subspace, whose rows were not trimmed",
        ),
        (lambda: PCADetector(3).merge(PCADetector(3)), "that are fitted"),
        (
            lambda: PCADetector(3).merge(PCADetector(3).fit(plant(50))).predict(plant(5)),
            "no limit, as its model is merged",
        ),
        (
            lambda: PCADetector(3).merge(PCADetector(3).fit(plant(50))).limit_,
            "no limit, as its model is merged",
        ),
        (
            lambda: PCADetector(3).fit(plant(50)).calibrate(np.full((3, 8), np.nan)),
            "rows with values, got none",
        ),
        (lambda: AlarmRule(3, of=2), "k must be at most the 2 rows"),
        (
            lambda: model_distance(Subspace.from_rows(plant(9)), Subspace.from_rows(plant(9, d=4)), 2),
            "same features",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_a_private_model_is_scored_by_and_not_trimmed():
    private = fedpca.PrivatePCA(2, epsilon=1.0, delta=1e-6, bound=5.0).fit(
        np.random.default_rng(0).normal(size=(3000, 4)) * [2, 1, 0.1, 0.1]
    )
    rows = np.random.default_rng(1).normal(size=(3000, 4)) * [2, 1, 0.1, 0.1]
    detector = PCADetector.of_model(private.subspace_, private.n_components_).calibrate(rows)
    assert (detector.predict(rows) == -1).mean() == pytest.approx(0.01, abs=0.005)
    with pytest.raises(ValueError, match="private model is not trimmed"):
        detector.trimmed(rows)


# --- alarms and models over time ---


def test_an_alarm_needs_k_of_the_latest_rows_whatever_the_batches():
    flags = np.random.default_rng(0).random(300) < 0.3
    expected = [sum(flags[max(0, i - 4) : i + 1]) >= 3 for i in range(300)]
    for cuts in ([], [1, 2, 3, 50], range(1, 300)):
        rule = AlarmRule(3, of=5)
        np.testing.assert_array_equal(
            np.concatenate([rule.see(part) for part in np.split(flags, cuts)]), expected
        )
    many = np.random.default_rng(1).random(500_000) < 0.3
    assert AlarmRule(3, of=5).see(many).mean() == pytest.approx(
        AlarmRule(3, of=5).false_alarms(0.3), rel=0.05
    )


@pytest.mark.parametrize("scale", [None, "std"])
def test_the_distance_of_models_holds_its_limit_and_sees_changes(scale):
    def model(rows, rank=None):
        return Subspace.from_rows(rows, rank, scale=scale)

    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    deviations = np.array([5, 3, 2, 1, 1, 1, 0.5, 0.5])

    def rows(n, change=1.0, shift=0.0):
        return (rng.normal(size=(n, 8)) * deviations * change + shift) @ turned

    false = []
    for _ in range(200):
        value, limit = model_distance(model(rows(400), 5), model(rows(400)), 3)
        false.append(value > limit)
    assert np.mean(false) < 0.05
    then = model(rows(400))
    more = np.where(np.arange(8) == 6, 4.0, 1.0)
    for changed in (rows(400, change=more), rows(400, shift=1.0), rows(400, change=0.6)):
        value, limit = model_distance(model(changed, 5), then, 3)
        assert value > 2 * limit
