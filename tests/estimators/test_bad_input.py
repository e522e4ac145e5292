"""Bad input gives one clear error, and everything stays as it was: the object, its arguments, its future."""

import copy
import re
import types
import warnings
from dataclasses import replace
from datetime import date
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import fedpca
from fedpca import EnergyBand, Moments, PrivatePCA, StreamingPCA, Subspace, merge, merge_tree
from fedpca.paper.merges import basic_merge, faster_merge, merge_r
from fedpca.readers import open_rows

D = 20
TRACKERS = ("exact", "nystrom", "block")
NAMES = [f"feature {i}" for i in range(D)]


def good(n_rows=40, seed=1, n_features=D):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_features)) * np.linspace(3, 1, n_features) + 1


def frame(names=NAMES, seed=1):
    return pd.DataFrame(good(seed=seed), columns=names)


def fitted(tracker, **settings):
    """In mid-stream: some rows are absorbed, some still wait, with weights."""
    pca = StreamingPCA(2, tracker=tracker, forget=0.9, **settings)
    pca.partial_fit(good(100, seed=2)).partial_fit(good(33, seed=3))
    return pca.partial_fit(good(5, seed=4), sample_weight=[1, 2, 0.5, 3, 1])


fitted_once = cache(fitted)


def estimator(tracker, state):
    return (
        copy.deepcopy(fitted_once(tracker))
        if state == "fitted"
        else StreamingPCA(2, tracker=tracker, forget=0.9)
    )


each_tracker = pytest.mark.parametrize("tracker", TRACKERS)
each_state = pytest.mark.parametrize("state", ["unfitted", "fitted"])
each_way_to_learn = pytest.mark.parametrize("learn", ["fit", "partial_fit"])


def snapshot(value):
    """All that an object holds, down to the bytes of its arrays; caches of answers do not count."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.ndarray | list | tuple):
        return type(value), [snapshot(item) for item in value]
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, np.random.Generator):
        return snapshot(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return snapshot(value.get_state(legacy=False))
    if sparse.issparse(value):
        return type(value), [snapshot(array) for array in (value.data, value.indices, value.indptr)]
    if isinstance(value, pd.DataFrame):
        return type(value), list(value.columns), list(value.index), snapshot(value.to_numpy())
    if hasattr(value, "__dict__") and not isinstance(value, type):
        state = {key: item for key, item in vars(value).items() if not key.startswith("_cached")}
        return type(value), snapshot(state)
    return value


def assert_refused(object_, call, error, match):
    """The call raises this error, and the object stays as it was."""
    before = snapshot(object_)
    with pytest.raises(error, match=match) as caught:
        call()
    assert isinstance(caught.value, ValueError | TypeError)
    assert snapshot(object_) == before


def assert_goes_on_alike(pca, twin):
    """Whatever comes next, both give the same."""
    for step in range(3):
        assert (
            pca.partial_fit(good(21, seed=step)).subspace_ == twin.partial_fit(good(21, seed=step)).subspace_
        )
    assert pca.n_samples_seen_ == twin.n_samples_seen_


def test_a_snapshot_sees_any_change():
    for tracker in TRACKERS:
        pca = estimator(tracker, "fitted")
        before = snapshot(pca)
        assert snapshot(copy.deepcopy(pca)) == before
        assert snapshot(pca.partial_fit(good(1))) != before
    assert snapshot(good()) != snapshot(np.nextafter(good(), 9))


# --- Rows ---


def with_entry(value, dtype=np.float64):
    """Good rows but for one entry, in the last row."""
    rows = good().astype(dtype)
    rows[-1, 3] = value
    return rows


def dated(value):
    """A frame of good rows with one more column."""
    frame = pd.DataFrame(good(), columns=[f"c{i}" for i in range(D)]).iloc[:, 1:]
    frame["when"] = pd.Series([value] * len(frame))
    return frame


class Endless:
    """Without end for numpy, which takes it for a list of lists of lists."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return self


BAD_ROWS = {
    "infinite": (lambda: with_entry(np.inf), ValueError, "infinity"),
    "minus infinite": (lambda: with_entry(-np.inf), ValueError, "infinity"),
    "infinite and missing": (
        lambda: np.where(good() < 0, np.nan, with_entry(np.inf)),
        ValueError,
        "infinity",
    ),
    "infinite float16": (lambda: with_entry(np.inf, np.float16), ValueError, "infinity"),
    "infinite frame": (lambda: pd.DataFrame(with_entry(np.inf)), ValueError, "infinity"),
    "infinite object": (lambda: with_entry(np.inf, object), ValueError, "infinity"),
    "too large": (lambda: with_entry(1e200), ValueError, r"1e\+200, too large to square in float64: rescale"),
    "too large, negative": (lambda: with_entry(-1e200), ValueError, r"1e\+200, too large"),
    "too large and missing": (
        lambda: np.where(good() < 0, np.nan, with_entry(1e200)),
        ValueError,
        r"1e\+200, too large",
    ),
    "too large, Fortran": (lambda: np.asfortranarray(with_entry(1e200)), ValueError, "too large"),
    "too large, strided": (lambda: np.repeat(with_entry(1e200), 2, axis=1)[:, ::2], ValueError, "too large"),
    "complex": (lambda: good() + 0j, ValueError, "[Cc]omplex"),
    "complex object": (lambda: with_entry(1j, object), (ValueError, TypeError), "complex"),
    "numbers as text": (lambda: good().astype(str), ValueError, "real numbers|strings"),
    "text": (lambda: np.full((40, D), "red"), ValueError, "real numbers|strings"),
    "text in an object array": (lambda: with_entry("red", object), ValueError, "red"),
    "text in a frame": (
        lambda: pd.DataFrame(with_entry("red", object)),
        ValueError,
        "3 contains text",
    ),
    "dates in a frame": (
        lambda: dated(pd.Timestamp("2020-01-01")),
        ValueError,
        "when contains dates or times",
    ),
    "times with a zone in a frame": (
        lambda: dated(pd.Timestamp("2020-01-01", tz="UTC")),
        ValueError,
        "when contains dates or times",
    ),
    "durations in a frame": (lambda: dated(pd.Timedelta("1h")), ValueError, "when contains dates or times"),
    "date objects in a frame": (lambda: dated(date(2020, 1, 1)), ValueError, "when contains dates or times"),
    "months in a frame": (lambda: dated(pd.Period("2020-01")), ValueError, "when contains dates or times"),
    "complex numbers in a frame": (lambda: dated(1j), ValueError, "when contains complex numbers"),
    "lists in a frame": (lambda: dated([1.0, 2.0]), ValueError, "when contains values of type list"),
    "dates": (lambda: np.zeros((40, D), "datetime64[s]"), (ValueError, TypeError), "datetime64|DateTime64"),
    "one row, 1-D": (lambda: good()[0], ValueError, r"1D array|shape \(20,\)"),
    "3-D": (lambda: good()[None], ValueError, r"dim 3|shape \(1, 40, 20\)"),
    "a number": (lambda: 3.0, TypeError, "must be a table of numbers.*got float"),
    "nothing": (lambda: None, TypeError, "must be a table of numbers.*got NoneType"),
    "a path": (lambda: "rows.csv", TypeError, r"got str; open files with fedpca\.readers\.open_rows"),
    "a generator": (lambda: (row for row in good()), TypeError, "must be a table of numbers.*got generator"),
    "a dict": (lambda: {"a": [1.0]}, TypeError, "must be a table of numbers.*got dict"),
    "what numpy would descend into": (Endless, TypeError, "must be a table of numbers.*got Endless"),
    "annotated data": (
        lambda: types.SimpleNamespace(X=good(), obs=None, var=None),
        TypeError,
        r"pass adata\.X",
    ),
    "no features": (lambda: np.zeros((40, 0)), ValueError, r"0 feature|\(40, 0\)"),
    "ragged": (lambda: [[1.0] * D, [1.0]], ValueError, "inhomogeneous|shape"),
}
BAD_FOR_ESTIMATORS = {
    "no rows": (lambda: good()[:0], ValueError, "0 sample"),
    "no sparse rows": (lambda: sparse.csr_array((0, D)), ValueError, "0 sample"),
    "infinite sparse": (lambda: sparse.csr_array(with_entry(np.inf)), ValueError, "infinity"),
    "infinite sparse columns": (lambda: sparse.csc_array(with_entry(-np.inf)), ValueError, "infinity"),
    "too large sparse": (lambda: sparse.csr_array(with_entry(1e200)), ValueError, "too large"),
    "complex sparse": (lambda: sparse.csr_array(good() + 1j), ValueError, "[Cc]omplex"),
}
each_bad_table = pytest.mark.parametrize(
    ("make", "error", "match"),
    [*BAD_ROWS.values(), *BAD_FOR_ESTIMATORS.values()],
    ids=[*BAD_ROWS, *BAD_FOR_ESTIMATORS],
)


@each_tracker
@each_state
@each_bad_table
def test_bad_rows_teach_nothing(make, error, match, state, tracker):
    pca = estimator(tracker, state)
    assert_refused(pca, lambda: pca.partial_fit(make()), error, match)
    assert_refused(pca, lambda: pca.fit(make()), error, match)
    assert_goes_on_alike(pca, estimator(tracker, state))


@each_bad_table
def test_bad_rows_are_not_transformed(make, error, match):
    pca = estimator("exact", "fitted")
    assert_refused(pca, lambda: pca.transform(make()), error, match)
    assert_refused(pca, lambda: pca.anomaly_scores(make()), error, match)


@pytest.mark.parametrize("make_summary", [Subspace.from_rows, Moments.from_rows], ids=["Subspace", "Moments"])
@pytest.mark.parametrize(("make", "error", "match"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_not_summarized(make, error, match, make_summary):
    with pytest.raises(error, match=match):
        make_summary(make())


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_columns_of_other_frames_are_refused_by_name(library):
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    column = good()[:, 0]
    for values, content in (
        ([date(2020, 1, 1)] * 40, "dates or times"),
        (["red"] * 40, "text"),
        ([[1.0, 2.0]] * 40, "values of type list"),
    ):
        with pytest.raises(ValueError, match=f"but other contains {content}.*drop or encode it"):
            StreamingPCA(1).fit(make({"height": column, "other": values}))
    assert StreamingPCA(1).fit(make({"height": column, "other": -column})).n_features_in_ == 2


def test_annotated_data_and_readers_are_refused_with_the_remedy(tmp_path):
    np.save(tmp_path / "rows.npy", good())
    with pytest.raises(TypeError, match=r"got a RowReader: use fedpca\.fit_files"):
        StreamingPCA(1).fit(open_rows(tmp_path / "rows.npy"))
    anndata = pytest.importorskip("anndata")
    for use in (StreamingPCA(1).fit, StreamingPCA(1).fit(good()).transform, Subspace.from_rows):
        with pytest.raises(TypeError, match=r"got AnnData; pass adata\.X"):
            use(anndata.AnnData(good()))


@pytest.mark.parametrize("make_summary", [Subspace.from_rows, Moments.from_rows], ids=["Subspace", "Moments"])
def test_summaries_of_gaps_and_sparse_rows_point_to_the_estimator(make_summary):
    with pytest.raises(ValueError, match=r"NaN.*StreamingPCA"):
        make_summary(with_entry(np.nan))
    with pytest.raises(TypeError, match=r"sparse.*StreamingPCA"):
        make_summary(sparse.csr_array(good()))


@pytest.mark.parametrize("center", [True, False])
def test_sparse_rows_are_projected_as_the_error_says(center):
    subspace = Subspace.from_rows(good(), rank=2, center=center)
    rows = sparse.csr_array(good())
    with pytest.raises(TypeError, match="sparse") as refusal:
        subspace.project(rows)
    remedy = re.search(r"take (.*\.transform\(rows\))", str(refusal.value))[1]
    scores = eval(remedy, {"fedpca": fedpca, "subspace": subspace, "rows": rows})
    np.testing.assert_allclose(scores, subspace.project(good()), atol=1e-12)


@pytest.mark.parametrize(
    "form", [np.asarray, sparse.csr_array, sparse.csc_array, pd.DataFrame, np.ndarray.tolist]
)
@pytest.mark.parametrize("width", [1, D - 1, D + 1])
@each_tracker
def test_another_number_of_features_is_refused_with_both_numbers(tracker, width, form):
    pca = estimator(tracker, "fitted")
    rows = form(good(n_features=width))
    for use in (pca.partial_fit, pca.transform, pca.anomaly_scores):
        assert_refused(pca, lambda use=use: use(rows), ValueError, f"{width} features.* {D} features")
    assert_goes_on_alike(pca, estimator(tracker, "fitted"))


@pytest.mark.parametrize("names", [NAMES[::-1], ["other", *NAMES[1:]]], ids=["reordered", "renamed"])
@pytest.mark.parametrize("use", ["partial_fit", "transform", "anomaly_scores"])
@each_tracker
def test_other_feature_names_are_refused(tracker, use, names):
    pca = StreamingPCA(2, tracker=tracker).fit(frame())
    twin = copy.deepcopy(pca)
    assert_refused(pca, lambda: getattr(pca, use)(frame(names)), ValueError, "feature names")
    assert pca.partial_fit(frame(seed=5)).subspace_ == twin.partial_fit(frame(seed=5)).subspace_


@each_way_to_learn
@each_state
def test_frames_with_names_of_mixed_types_are_refused(state, learn):
    pca = estimator("exact", state)
    assert_refused(pca, lambda: getattr(pca, learn)(frame([0, *NAMES[1:]])), TypeError, "[Ff]eature names")


@pytest.mark.parametrize(("scale", "dtype"), [(1e-200, np.float64), (1e-30, np.float32)])
def test_a_stream_must_not_begin_too_small_to_square(scale, dtype):
    rows = (good() * scale).astype(dtype)
    for learn in (StreamingPCA(2).fit, StreamingPCA(2).partial_fit, Subspace.from_rows, Moments.from_rows):
        with pytest.raises(ValueError, match="too small to square"):
            learn(rows)
    StreamingPCA(2).fit(good().astype(dtype)).partial_fit(rows).transform(rows)  # later it does no harm


# --- Values too large for the precision of the stream ---

TOO_LARGE_FOR_FLOAT32 = {
    "float32": with_entry(1e25, np.float32),
    "float64": with_entry(1e25),
    "float64 beyond float32": with_entry(1e200),
    "float64 that float32 cannot square": with_entry(1e20),
    "whole numbers": with_entry(0).astype(np.int64) + 2**62,
    "unsigned": with_entry(0).astype(np.uint64) + np.uint64(2**64 - 2**32),
}


@pytest.mark.parametrize("rows", TOO_LARGE_FOR_FLOAT32.values(), ids=TOO_LARGE_FOR_FLOAT32)
@each_tracker
def test_a_float32_stream_refuses_what_float32_cannot_square(tracker, rows):
    pca = StreamingPCA(2, tracker=tracker).partial_fit(good(90).astype(np.float32))
    twin = copy.deepcopy(pca)
    assert_refused(
        pca, lambda: pca.partial_fit(rows), ValueError, r"too large to square in float32.*pass float64"
    )
    assert_goes_on_alike(pca, twin)


@each_tracker
@each_way_to_learn
def test_float32_rows_too_large_to_begin_with(learn, tracker):
    pca = StreamingPCA(2, tracker=tracker)
    rows = with_entry(1e25, np.float32)
    assert_refused(
        pca, lambda: getattr(pca, learn)(rows), ValueError, r"1e\+25, too large to square in float32"
    )


@pytest.mark.parametrize("make_summary", [Subspace.from_rows, Moments.from_rows], ids=["Subspace", "Moments"])
def test_summaries_refuse_what_cannot_be_squared(make_summary):
    with pytest.raises(ValueError, match=r"1e\+25, too large to square in float32"):
        make_summary(with_entry(1e25, np.float32))


@pytest.mark.filterwarnings("ignore:n_components=")
@each_tracker
def test_what_is_just_small_enough_gives_finite_results(tracker):
    for largest in (np.float32(1e13), np.float64(1e145)):
        pca = StreamingPCA(2, tracker=tracker).fit(with_entry(largest, type(largest)))
        assert np.isfinite(pca.components_).all()
        assert np.isfinite(pca.explained_variance_).all()


# --- Weights ---


def weights_with(value, dtype=np.float64):
    weights = np.ones(40).astype(dtype)
    weights[-1] = value
    return weights


BAD_WEIGHTS = {
    "negative": (weights_with(-0.5), ValueError, "sample_weight must not be negative, got -0.5"),
    "NaN": (weights_with(np.nan), ValueError, "sample_weight must be finite"),
    "infinite": (weights_with(np.inf), ValueError, "sample_weight must be finite"),
    "None inside": (weights_with(None, object), ValueError, "sample_weight must be finite"),
    "too few": (np.ones(39), ValueError, r"sample_weight.* 40, got shape \(39,\)"),
    "too many": (np.ones(41), ValueError, r"sample_weight.* 40, got shape \(41,\)"),
    "none at all": ([], ValueError, r"sample_weight.* 40, got shape \(0,\)"),
    "one a feature": (np.ones((40, D)), ValueError, r"sample_weight.* 40, got shape \(40, 20\)"),
    "a column": (np.ones((40, 1)), ValueError, r"sample_weight.* 40, got shape \(40, 1\)"),
    "text": (np.array(["heavy"] * 40), (TypeError, ValueError), "sample_weight.*heavy"),
    "text inside": (weights_with("heavy", object), (TypeError, ValueError), "sample_weight.*heavy"),
    "complex": (weights_with(1j, complex), (TypeError, ValueError), "sample_weight.*complex"),
    "a negative number": (-1, ValueError, "sample_weight must not be negative, got -1"),
    "too large to add up": (np.full(40, 1e308), ValueError, "sample_weight.*large"),
    "too large to multiply": (np.full(40, 1e306), ValueError, "large"),
}
each_bad_weight = pytest.mark.parametrize(
    ("weights", "error", "match"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS
)


@each_tracker
@each_state
@each_bad_weight
def test_bad_weights_teach_nothing(weights, error, match, state, tracker):
    pca = estimator(tracker, state)
    assert_refused(pca, lambda: pca.partial_fit(good(), sample_weight=weights), error, match)
    assert_refused(pca, lambda: pca.fit(good(), sample_weight=weights), error, match)
    assert_goes_on_alike(pca, estimator(tracker, state))


@pytest.mark.parametrize("make_summary", [Subspace.from_rows, Moments.from_rows], ids=["Subspace", "Moments"])
@each_bad_weight
def test_bad_weights_are_not_summarized(weights, error, match, make_summary):
    with pytest.raises(error, match=match):
        make_summary(good(), sample_weight=weights)


@each_tracker
def test_weights_too_large_for_a_float32_stream_teach_nothing(tracker):
    pca = StreamingPCA(2, tracker=tracker).partial_fit(good(90).astype(np.float32))
    twin = copy.deepcopy(pca)
    assert_refused(
        pca, lambda: pca.partial_fit(good(), sample_weight=weights_with(1e80)), ValueError, "large"
    )
    assert_goes_on_alike(pca, twin)


@each_tracker
@each_state
def test_fitting_to_weights_of_zero_is_refused(state, tracker):
    pca = estimator(tracker, state)
    assert_refused(
        pca, lambda: pca.fit(good(), sample_weight=np.zeros(40)), ValueError, "sample_weight.*zero"
    )


# --- Settings ---

BAD_SETTINGS = [
    # a setting, the error, its rule, and values that break it, which the error names
    ("n_components", ValueError, "must be at most the number of features, 20", [D + 1]),
    ("n_components", ValueError, "must be at least 1", [0, -3]),
    ("n_components", ValueError, "must be a whole number, a share", [0.0, 1.5, np.nan]),
    ("n_components", TypeError, "must be a whole number, a share", [True, "many", [2]]),
    ("forget", ValueError, "must lie in (0, 1]", [0, -1, 1.1, np.nan]),
    ("forget", TypeError, "must be a number in (0, 1]", ["a", True, None]),
    ("tracker", ValueError, f"must be 'auto', one of {list(TRACKERS)}", ["fast", None, ["exact"]]),
    ("batch_size", ValueError, "must be at least 1", [0, -1]),
    ("batch_size", TypeError, "must be a whole number", [2.5, True, "auto"]),
    ("oversample", ValueError, "must be at least 0", [-1]),
    ("oversample", TypeError, "must be ", [1.5, "much", None]),
    ("energy", ValueError, "band needs 0 <= low < high <= 1", [(0.2, 0.1), (0.1, 0.1), (-0.1, 0.1)]),
    ("energy", ValueError, "band needs 0 <= low < high <= 1", [(0.1, 1.1), (np.nan, 0.1)]),
    ("energy", TypeError, "band needs two numbers", [("a", "b")]),
    ("energy", TypeError, "must be an EnergyBand or its (low, high)", [0.1, (0.01, 0.1, 1, 1)]),
]


def refusal(name, rule, value):
    """The pattern of an error: the rule, then the value."""
    got = f"low={value[0]!r}, high={value[1]!r}" if rule.startswith("band") else repr(value)
    return f"{name}.*{re.escape(rule)}.*{re.escape(got)}"


each_bad_setting = pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        pytest.param(name, value, error, refusal(name, rule, value), id=f"{name}={value}")
        for name, error, rule, values in BAD_SETTINGS
        for value in values
    ],
)
WAYS_TO_BEGIN = {
    "fit": lambda pca: pca.fit(good()),
    "partial_fit": lambda pca: pca.partial_fit(good()),
    "merge": lambda pca: pca.merge(Subspace.from_rows(good())),
}


@pytest.mark.parametrize("begin", WAYS_TO_BEGIN.values(), ids=WAYS_TO_BEGIN)
@each_bad_setting
def test_bad_settings_are_refused_at_the_first_rows(name, value, error, match, begin):
    pca = StreamingPCA(**{name: value})
    assert_refused(pca, lambda: begin(pca), error, match)
    pca.set_params(**{name: getattr(StreamingPCA(), name)})
    assert begin(pca).subspace_ == begin(StreamingPCA()).subspace_


@each_bad_setting
def test_fitting_anew_with_a_bad_setting_keeps_what_was_learned(name, value, error, match):
    for tracker in TRACKERS:
        pca, twin = estimator(tracker, "fitted"), estimator(tracker, "fitted")
        pca.set_params(**{name: value})
        assert_refused(pca, lambda pca=pca: pca.fit(good()), error, match)
        assert_goes_on_alike(pca.set_params(**{name: getattr(twin, name)}), twin)


def test_keeping_all_of_very_many_components_is_refused_with_the_price():
    pca = StreamingPCA()
    assert_refused(pca, lambda: pca.fit(np.zeros((2, 5000))), ValueError, "n_components=None .*5000 .*0.2 GB")


@pytest.mark.parametrize("value", [0, -1, 1.1, np.nan, "a", None])
@each_tracker
def test_a_bad_forget_set_in_mid_stream_is_refused_too(tracker, value):
    """`forget` acts at every batch, so it is looked at with every batch."""
    pca, twin = estimator(tracker, "fitted"), estimator(tracker, "fitted")
    pca.set_params(forget=value)
    assert_refused(pca, lambda: pca.partial_fit(good()), (TypeError, ValueError), "forget must")
    assert_goes_on_alike(pca.set_params(forget=0.9), twin)


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
@each_state
def test_a_bad_seed_is_refused(state, seed):
    pca = estimator("nystrom", state).set_params(random_state=seed)
    assert_refused(pca, lambda: pca.fit(good()), ValueError, "seed|Seed")


@each_way_to_learn
def test_bad_rows_draw_nothing_from_a_random_state(learn):
    pca = StreamingPCA(2, tracker="nystrom", random_state=np.random.RandomState(0))
    assert_refused(pca, lambda: getattr(pca, learn)(with_entry(np.inf)), ValueError, "infinity")


@pytest.mark.parametrize(
    ("band", "match"),
    [
        ({"low": 0.2, "high": 0.1}, "low=0.2, high=0.1"),
        ({"low": -0.1}, "low=-0.1"),
        ({"high": 1.5}, "high=1.5"),
        ({"low": np.nan}, "low=nan"),
        ({"high": np.nan}, "high=nan"),
        ({"low": "a"}, "energy band.*a"),
        ({"first": 0}, "first.*0"),
        ({"first": -1}, "first.*-1"),
        ({"first": 1.5}, "first.*1.5"),
        ({"first": True}, "first.*True"),
    ],
    ids=str,
)
def test_a_bad_energy_band_is_refused(band, match):
    with pytest.raises((TypeError, ValueError), match=match):
        EnergyBand(**band)


# --- Merging ---


def summary(kind=Subspace, n_features=D, names=None, center=True):
    rows = good(n_features=n_features)
    return kind.from_rows(rows if names is None else pd.DataFrame(rows, columns=names), center=center)


def moments(**change):
    facts = {"count": 9.0, "mean": np.zeros(D), "scatter": np.eye(D)} | change
    return Moments(**facts)


def subspace(**change):
    facts = {
        "components": np.eye(2, D),
        "singular_values": [2.0, 1.0],
        "mean": np.zeros(D),
        "count": 9,
        "total": 8.0,
    }
    return Subspace(**(facts | change))


BAD_PARTNERS = {
    # what to merge with a centered summary of D features, named NAMES
    "fewer features": (lambda: [summary(n_features=D - 1)], ValueError, "same features, got 20 and 19"),
    "more features": (
        lambda: [summary(Moments, n_features=D + 1)],
        ValueError,
        "same features, got 20 and 21",
    ),
    "other names": (
        lambda: [summary(names=["other", *NAMES[1:]])],
        ValueError,
        "only one has 'feature 0', and only another 'other'; .* with .*features='intersection'",
    ),
    "other order": (
        lambda: [summary(Moments, names=NAMES[::-1])],
        ValueError,
        "same order: one has 'feature 0' where another has 'feature 19'; .* with .*features='intersection'",
    ),
    "uncentered": (lambda: [summary(center=False)], ValueError, "centered and uncentered"),
    "uncentered moments": (lambda: [summary(Moments, center=False)], ValueError, "centered and uncentered"),
    "text": (lambda: ["model.fedpca"], TypeError, "only Subspace and Moments merge, got str"),
    "an array": (lambda: [good()], TypeError, "only Subspace and Moments merge, got ndarray"),
    "None": (lambda: [None], TypeError, "only Subspace and Moments merge, got NoneType"),
    "a list of summaries": (lambda: [[summary()]], TypeError, "only Subspace and Moments merge, got list"),
    "one good, one bad": (lambda: [summary(), summary(n_features=D - 1)], ValueError, "20 and 19"),
    "good ones, then text": (lambda: [summary(), summary(Moments), "text"], TypeError, "got str"),
}
OVERFLOWING = {
    # summaries whose numbers are finite one by one, but not together: refused when made or when merged
    "counts": lambda: [subspace(count=1e308), subspace(count=1e308)],
    "counts of moments": lambda: [moments(count=1e308), moments(count=1e308)],
    "totals": lambda: [subspace(total=1e308), subspace(total=1e308)],
    "scatters": lambda: [moments(scatter=1e308 * np.eye(D)), moments(scatter=1e308 * np.eye(D))],
    "mean": lambda: [subspace(mean=np.full(D, 1e200))],
    "mean of moments": lambda: [moments(mean=np.full(D, 1e200))],
    "singular values": lambda: [subspace(singular_values=[1e200, 1.0], total=1e308)],
}
each_bad_partner = pytest.mark.parametrize(
    ("make", "error", "match"), BAD_PARTNERS.values(), ids=BAD_PARTNERS
)
each_overflow = pytest.mark.parametrize("make", OVERFLOWING.values(), ids=OVERFLOWING)
each_merge = pytest.mark.parametrize("join", [merge, merge_tree])


@each_merge
@each_bad_partner
def test_what_does_not_fit_is_not_merged(make, error, match, join):
    partners = make()
    before = snapshot(partners)
    with pytest.raises(error, match=match):
        join([summary(names=NAMES), *partners])
    assert snapshot(partners) == before


@each_tracker
@each_bad_partner
def test_what_does_not_fit_teaches_an_estimator_nothing(make, error, match, tracker):
    pca = StreamingPCA(2, tracker=tracker).fit(frame())
    twin, partners = copy.deepcopy(pca), make()
    before = snapshot(partners)
    assert_refused(pca, lambda: pca.merge(*partners), error, match)
    assert snapshot(partners) == before
    assert pca.partial_fit(frame(seed=5)).subspace_ == twin.partial_fit(frame(seed=5)).subspace_


UNFIT_TO_BEGIN_WITH = {name: case for name, case in BAD_PARTNERS.items() if name not in (
    "fewer features", "more features", "other names", "other order", "uncentered", "uncentered moments"
)}  # fmt: skip


@each_tracker
@pytest.mark.parametrize(("make", "error", "match"), UNFIT_TO_BEGIN_WITH.values(), ids=UNFIT_TO_BEGIN_WITH)
def test_an_unfitted_estimator_stays_so_when_a_merge_fails(make, error, match, tracker):
    pca = StreamingPCA(2, tracker=tracker)
    assert_refused(pca, lambda: pca.merge(*make()), error, match)
    assert not hasattr(pca, "n_features_in_")


@each_tracker
@each_state
def test_an_estimator_merges_no_other_centering_and_no_unfitted(state, tracker):
    pca, twin = estimator(tracker, state), estimator(tracker, state)
    uncentered = StreamingPCA(2, center=False).fit(good())
    assert_refused(pca, lambda: pca.merge(uncentered), ValueError, "centered")
    assert_refused(pca, lambda: pca.merge(summary(center=False)), ValueError, "centered")
    assert_refused(
        pca, lambda: pca.merge(summary(), StreamingPCA()), NotFittedError, "StreamingPCA.*not fitted"
    )
    assert_refused(pca, lambda: pca.merge(), ValueError, "at least one")
    assert_goes_on_alike(pca, twin)


@each_merge
@each_overflow
def test_numbers_that_overflow_together_are_not_merged(make, join):
    with pytest.raises(ValueError, match=r"large|finite|count|total"):
        join([summary(), *make()])


@each_tracker
@each_state
@each_overflow
def test_numbers_that_overflow_together_teach_an_estimator_nothing(make, state, tracker):
    pca, twin = estimator(tracker, state), estimator(tracker, state)
    assert_refused(pca, lambda: pca.merge(summary(), *make()), ValueError, "large|finite|count|total")
    assert_goes_on_alike(pca, twin)


def assert_merges_whole_or_not_at_all(pca, *others):
    twin, before = copy.deepcopy(pca), snapshot(pca)
    try:
        pca.merge(*others)
    except ValueError:
        assert snapshot(pca) == before
        assert_goes_on_alike(pca, twin)
    else:
        for _ in range(9):
            pca.partial_fit(good())
        assert pca.n_components_ == 2
        for values in (pca.components_, pca.explained_variance_, pca.explained_variance_ratio_):
            assert np.isfinite(values).all()


@each_tracker
def test_a_float32_stream_merges_what_float32_cannot_square_whole_or_not_at_all(tracker):
    pca = StreamingPCA(2, tracker=tracker).partial_fit(good(90).astype(np.float32))
    assert_merges_whole_or_not_at_all(pca, Subspace.from_rows(1e30 * good()))


@each_tracker
@each_state
def test_moments_with_negative_eigenvalues_merge_whole_or_not_at_all(state, tracker):
    """Noise gives a released scatter negative eigenvalues; its diagonal stays positive."""
    noisy = np.full((D, D), 5.0)
    np.fill_diagonal(noisy, 1.0)
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-5, bound=5.0, center=None, evaluate=False).partial_fit(good())
    with warnings.catch_warnings(action="ignore"):  # few rows, much noise
        released = replace(pca.release(), scatter=noisy)
    assert_merges_whole_or_not_at_all(estimator(tracker, state), summary(), released)


def test_only_private_moments_may_have_negative_eigenvalues():
    noisy = np.full((D, D), 5.0)
    np.fill_diagonal(noisy, 1.0)
    with pytest.raises(ValueError, match="positive semidefinite"):
        moments(scatter=noisy)


@each_merge
def test_merging_nothing_is_refused(join):
    for nothing in ([], (), iter([]), {}):
        with pytest.raises(ValueError, match="at least one summary"):
            join(nothing)


@each_merge
def test_merging_what_is_no_list_is_refused_with_a_remedy(join):
    """merge(a, b), without the brackets, is the first thing people try."""
    with pytest.raises(TypeError, match=r"list|summaries"):
        join(summary(), summary())
    with pytest.raises(TypeError, match=r"StreamingPCA.*subspace_"):
        join([StreamingPCA(2).fit(good())])


BAD_RANKS = [
    (D + 1, ValueError, "rank must be at most the number of features, 20, got rank=21"),
    (0, ValueError, "rank must be at least 1, got rank=0"),
    (-1, ValueError, "rank must be at least 1, got rank=-1"),
    (1.5, TypeError, "rank must be a whole number, got rank=1.5"),
    (2.0, TypeError, "rank must be a whole number, got rank=2.0"),
    (True, TypeError, "rank must be a whole number, got rank=True"),
    ("all", TypeError, "rank must be a whole number, got rank='all'"),
]
RANKED = {
    "Subspace.from_rows": lambda rank: Subspace.from_rows(good(), rank),
    "truncate": lambda rank: summary().truncate(rank),
    "Moments.subspace": lambda rank: summary(Moments).subspace(rank),
    "merge": lambda rank: merge([summary(), summary()], rank),
    "merge of moments": lambda rank: merge([summary(Moments)], rank),
    "merge_tree": lambda rank: merge_tree([summary()] * 3, rank, fanout=2),
    "merge_r": lambda rank: merge_r(summary(center=False), summary(center=False), rank),
    "basic_merge": lambda rank: basic_merge(summary(center=False), summary(center=False), rank),
    "faster_merge": lambda rank: faster_merge(summary(center=False), summary(center=False), rank),
}


@pytest.mark.parametrize(("rank", "error", "match"), BAD_RANKS, ids=[str(rank) for rank, *_ in BAD_RANKS])
@pytest.mark.parametrize("call", RANKED.values(), ids=RANKED)
def test_a_bad_rank_is_refused(call, rank, error, match):
    with pytest.raises(error, match=re.escape(match)):
        call(rank)


@pytest.mark.parametrize(
    ("forget", "error"),
    [(0, ValueError), (-1, ValueError), (1.1, ValueError), (np.nan, ValueError), ("a", TypeError)],
)
@pytest.mark.parametrize("kind", [Subspace, Moments])
def test_a_bad_forget_is_not_merged_with(kind, forget, error):
    with pytest.raises(error, match=rf"forget must .*\(0, 1\], got forget={forget!r}"):
        merge([summary(kind), summary(kind)], forget=forget)


@pytest.mark.parametrize(
    ("fanout", "error"),
    [
        (1, ValueError),
        (0, ValueError),
        (-2, ValueError),
        (2.5, TypeError),
        (True, TypeError),
        ("8", TypeError),
    ],
)
@pytest.mark.parametrize("n_summaries", [1, 9])
def test_a_bad_fanout_is_refused(n_summaries, fanout, error):
    with pytest.raises(error, match=f"fanout must be .*got fanout={fanout!r}"):
        merge_tree([summary()] * n_summaries, fanout=fanout)


@pytest.mark.parametrize("join", [merge_r, basic_merge, faster_merge])
def test_the_papers_merges_refuse_what_they_cannot_do(join):
    with pytest.raises(ValueError, match="center=False"):
        join(summary(), summary())
    with pytest.raises(ValueError, match="20 and 19"):
        join(summary(center=False), summary(n_features=D - 1, center=False))
    with pytest.raises(TypeError, match="Moments"):
        join(summary(Moments, center=False), summary(Moments, center=False))


@pytest.mark.parametrize("join", [basic_merge, faster_merge])
@pytest.mark.parametrize("enhance", [0.5, 0, -1, np.nan, np.inf, "a"])
def test_a_bad_enhance_is_refused(enhance, join):
    with pytest.raises((TypeError, ValueError), match=f"enhance must .*{enhance}"):
        join(summary(center=False), summary(center=False), enhance=enhance)


# --- Using what was learned ---


@pytest.mark.parametrize("shape", [(4, D - 1), (4, D + 1), (4, 1), (D,), (1, 4, D), ()])
def test_rows_of_another_shape_are_not_projected(shape):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        Subspace.from_rows(good()).project(np.ones(shape))


@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (4, D), (2,), (1, 4, 2), ()])
def test_coordinates_of_another_shape_are_not_reconstructed(shape):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        Subspace.from_rows(good(), 2).reconstruct(np.ones(shape))


BAD_COORDINATES = {
    "text": (np.full((4, 2), "red"), "real numbers|strings|red"),
    "complex": (np.ones((4, 2)) + 1j, "[Cc]omplex"),
    "infinite": (np.full((4, 2), np.inf), "infinity|finite"),
    "NaN": (np.full((4, 2), np.nan), "NaN|finite"),
}


@pytest.mark.parametrize(("coordinates", "match"), BAD_COORDINATES.values(), ids=BAD_COORDINATES)
def test_coordinates_that_are_not_numbers_are_refused(coordinates, match):
    pca = estimator("exact", "fitted")
    for inverse in (pca.inverse_transform, Subspace.from_rows(good(), 2).reconstruct):
        with pytest.raises((TypeError, ValueError), match=match):
            inverse(coordinates)


@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (4, D), (0, 2), (2,), (1, 4, 2)])
def test_coordinates_of_another_shape_are_not_transformed_back(shape):
    pca = estimator("exact", "fitted")
    assert_refused(
        pca, lambda: pca.inverse_transform(np.ones(shape)), ValueError, f"{re.escape(str(shape))}|1D|dim 3"
    )


LEARNED = [
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_",
    "noise_variance_", "n_components_", "n_samples_seen_", "subspace_", "n_features_in_",
]  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_does_not_exist_before(name):
    pca = StreamingPCA(2)
    assert not hasattr(pca, name)
    with pytest.raises(AttributeError, match=name):
        getattr(pca, name)
    assert hasattr(pca.fit(good()), name)


@pytest.mark.parametrize("use", ["transform", "inverse_transform", "anomaly_scores"])
def test_an_unfitted_estimator_says_so(use):
    pca = StreamingPCA(2)
    assert_refused(pca, lambda: getattr(pca, use)(good()), NotFittedError, "StreamingPCA.*not fitted")


@each_bad_table
def test_a_failed_first_batch_leaves_no_trace(make, error, match):
    pca = StreamingPCA(2)
    with pytest.raises(error):
        pca.partial_fit(make())
    assert [name for name in LEARNED if hasattr(pca, name)] == []
    assert vars(pca) == vars(StreamingPCA(2))


@each_tracker
@pytest.mark.parametrize(
    "use", ["transform", "anomaly_scores", "subspace_", "components_", "noise_variance_"]
)
def test_using_what_was_learned_changes_nothing(use, tracker):
    pca, twin = estimator(tracker, "fitted"), estimator(tracker, "fitted")
    before = snapshot(pca)
    value = getattr(pca, use)
    if callable(value):
        value(np.where(good() < 0, np.nan, good()))
    assert snapshot(pca) == before
    assert_goes_on_alike(pca, twin)


ADAPTIVE = [{"energy": (0.05, 0.3)}, {"n_components": 0.5}]
each_adaptive = pytest.mark.parametrize("settings", ADAPTIVE, ids=str)


@each_adaptive
@each_tracker
def test_a_failed_merge_does_not_move_an_adaptive_rank(tracker, settings):
    pca = StreamingPCA(tracker=tracker, **settings).partial_fit(good(100)).partial_fit(good(30, seed=2))
    twin = copy.deepcopy(pca)
    assert_refused(pca, lambda: pca.merge(summary(n_features=3)), ValueError, "same features")
    assert_goes_on_alike(pca, twin)


@each_adaptive
@each_tracker
def test_looking_does_not_move_an_adaptive_rank(tracker, settings):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        watched, unwatched = (StreamingPCA(tracker=tracker, **settings) for _ in range(2))
        for _ in range(4):
            rows = rng.normal(size=(20, 12)) * rng.uniform(size=12) ** 3
            assert watched.partial_fit(rows).n_components_ > 0
            unwatched.partial_fit(rows)
        assert watched.subspace_ == unwatched.subspace_
        assert watched.n_components_ == unwatched.n_components_


# --- Arguments are never modified, and may be read-only ---

FORMS = {
    "rows": good,
    "one row": lambda: good(1),
    "many rows": lambda: good(1100),
    "float32": lambda: good().astype(np.float32),
    "float16": lambda: good().astype(np.float16),
    "whole numbers": lambda: good().astype(int),
    "Fortran": lambda: np.asfortranarray(good()),
    "reversed": lambda: good()[::-1, ::-1],
    "strided": lambda: np.repeat(good(), 2, axis=1)[:, ::2],
    "far away": lambda: good(100) + 1e8,
    "object": lambda: good().astype(object),
    "frame": frame,
}
FORMS_FOR_ESTIMATORS = FORMS | {
    "gaps": lambda: np.where(good(200) < 0, np.nan, good(200)),
    "csr": lambda: sparse.csr_array(np.maximum(good(), 0)),
    "csc": lambda: sparse.csc_array(np.maximum(good(), 0)),
    "csr gaps": lambda: sparse.csr_array(np.where(good() < 0, np.nan, good())),
    "csr unsorted": lambda: sparse.csr_array(
        (np.arange(1.0, 5.0), np.array([3, 1, 2, 0]), np.array([0, 2, 4])), shape=(2, D)
    ),
}


def read_only(value):
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif sparse.issparse(value):
        for array in (value.data, value.indices, value.indptr):
            array.flags.writeable = False
    return value


@pytest.mark.filterwarnings("ignore:n_components=")
@each_tracker
@pytest.mark.parametrize("make", FORMS_FOR_ESTIMATORS.values(), ids=FORMS_FOR_ESTIMATORS)
def test_an_estimator_leaves_its_arguments_alone(make, tracker):
    pca = StreamingPCA(2, tracker=tracker, forget=0.9)
    for protect in (read_only, lambda value: value):
        rows = protect(make())
        weights = protect(np.linspace(0.5, 2, rows.shape[0]))
        before = snapshot([rows, weights])
        pca.fit(rows, sample_weight=weights)
        pca.partial_fit(rows).partial_fit(rows, sample_weight=weights)
        pca.anomaly_scores(rows)
        coordinates = protect(pca.transform(rows))
        learned = snapshot(coordinates)
        pca.inverse_transform(coordinates)
        assert snapshot([rows, weights]) == before
        assert snapshot(coordinates) == learned


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("center", [True, False])
def test_summaries_leave_their_arguments_alone(center, make):
    rows, weights = read_only(make()), read_only(np.linspace(0.5, 2, len(make())))
    before = snapshot([rows, weights])
    Moments.from_rows(rows, center=center, sample_weight=weights)
    subspace = Subspace.from_rows(rows, center=center, sample_weight=weights)
    subspace.reconstruct(read_only(subspace.project(rows)))
    assert snapshot([rows, weights]) == before


@each_tracker
@pytest.mark.parametrize("n_rows", [1, 10, 64, 300])
def test_an_estimator_does_not_hold_on_to_the_rows_it_was_given(n_rows, tracker):
    rows, weights = good(n_rows), np.ones(n_rows)
    pca, twin = (StreamingPCA(2, tracker=tracker).partial_fit(rows, sample_weight=weights) for _ in range(2))
    expected = twin.subspace_
    rows[:], weights[:] = np.nan, np.nan
    assert pca.subspace_ == expected
    assert_goes_on_alike(pca, twin)


def test_summaries_do_not_hold_on_to_their_arguments():
    arrays = {"components": np.eye(2, 3), "singular_values": np.array([2.0, 1.0]), "mean": np.ones(3)}
    made = Subspace(**arrays, count=3, total=6)
    before = snapshot(made)
    for array in arrays.values():
        array[:] = np.nan
    assert snapshot(made) == before


@each_tracker
@pytest.mark.parametrize("state", ["unfitted", "fitted"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: [summary()],
        lambda: [summary(Moments)],
        lambda: [summary(names=NAMES), summary(Moments), summary()],
        lambda: [estimator("exact", "fitted")],
        lambda: [estimator("nystrom", "fitted")],
        lambda: [estimator("block", "fitted")],
        lambda: [estimator("exact", "fitted").merge(subspace())],
    ],
    ids=["subspace", "moments", "several", "exact", "nystrom", "block", "exact that merged"],
)
def test_merging_leaves_the_others_alone_then_and_later(make, state, tracker):
    pca, others = estimator(tracker, state), make()
    before = snapshot(others)
    pca.merge(*others).subspace_  # noqa: B018 -- reading computes
    assert snapshot(others) == before
    rows = frame() if hasattr(pca, "feature_names_in_") else good()
    for _ in range(5):
        pca.partial_fit(rows)
    assert snapshot(others) == before
    learned = snapshot(pca)
    for other in others:
        if isinstance(other, StreamingPCA):
            other.partial_fit(good(100))
    assert snapshot(pca) == learned


@each_merge
def test_merging_summaries_leaves_them_alone(join):
    parts = [summary(), summary(Moments), summary(names=NAMES), subspace(), Subspace.empty(D)]
    before = snapshot(parts)
    join(parts)
    join(parts, 2)
    merge(parts, forget=0.5)
    assert snapshot(parts) == before
    assert len(parts) == 5


def test_merging_an_estimator_with_itself_doubles_its_counts():
    pca = StreamingPCA(2).fit(good())
    once = pca.subspace_
    twice = pca.merge(pca).subspace_
    assert (twice.count, pca.n_samples_seen_) == (80, 80)
    np.testing.assert_allclose(twice.total, 2 * once.total)
