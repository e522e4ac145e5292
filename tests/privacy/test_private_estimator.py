"""A PrivatePCA tells what it released and nothing else, certified and accounted for."""

import copy
import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import sqrt

import numpy as np
import pandas as pd
import pytest
from helpers import power_law, rows_of, secrets_in
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

import fedpca
from fedpca import BudgetExceeded, Ledger, Moments, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.privacy import StepSum
from fedpca.privacy.accounting import composed
from fedpca.privacy.calibration import mu_of
from fedpca.privacy.clipping import clipped
from fedpca.privacy.mechanisms import Mechanism
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.tracker import PrivateTracker
from fedpca.summaries.certificate import Certificate


def make_rows(n_rows=400, n_features=6, seed=0):
    return rows_of(seed, n_rows, n_features)


def nearly_noiseless(**settings):
    return Privacy(
        **({"epsilon": 1e6, "delta": 1e-6, "bound": 3.0, "center": None, "evaluate": False} | settings)
    )


def private(**settings):
    given = {"epsilon": 1.0, "delta": 1e-4, "bound": 3.0, "center": None, "evaluate": False} | settings
    return Privacy(**given)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(ExactNoise, "weighted", lambda self, labels, weights, count, sd: np.zeros(count))


# --- nothing leaves before a release ---

SETTINGS = [
    {},
    {"center": "private"},
    {"center": "pairs"},
    {"bound": "sphere"},
    {"bound": "private", "center": "private"},
    {"evaluate": True},
    {"mechanism": "sketch"},
    {"releases": 3},
    {"releases": 9},
]


def numbers_in(value, depth=0):
    """Every number that can be reached from a public value."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return [value.astype(float).ravel()]
    if isinstance(value, bool) or value is None or isinstance(value, str | bytes) or callable(value):
        return []
    if isinstance(value, int | float | np.number):
        return [np.array([float(value)])]
    if isinstance(value, dict):
        return [n for part in value.values() for n in numbers_in(part, depth + 1)]
    if isinstance(value, list | tuple):
        return [n for part in value for n in numbers_in(part, depth + 1)]
    if isinstance(value, Subspace | Moments):
        return [n for name in value.__dataclass_fields__ for n in numbers_in(getattr(value, name), depth)]
    return []


def everything_offered(pca, tmp_path, rows):
    """All public attributes, the results of all methods without data, the saved files and the pickle."""
    offered = {}
    for name in dir(pca):
        if name.startswith("_"):
            continue
        try:
            value = getattr(pca, name)
        except (AttributeError, NotFittedError):
            continue
        offered[name] = value
    for method in ("get_covariance", "get_params", "get_feature_names_out"):
        try:
            offered[method] = getattr(pca, method)()
        except NotFittedError:
            continue
    for method in ("transform", "anomaly_scores", "score_samples"):
        try:
            offered[method] = getattr(pca, method)(0.5 * np.ones((2, rows.shape[1])))
        except NotFittedError:
            continue
    try:
        offered["pickle"] = pickle.dumps(pca)
    except TypeError:
        assert not hasattr(pca, "components_")
    if hasattr(pca, "subspace_"):
        pca.subspace_.save(tmp_path / "subspace")
        pca.release().save(tmp_path / "release")
        offered["file 1"] = fedpca.load(tmp_path / "subspace")
        offered["file 2"] = fedpca.load(tmp_path / "release")
        offered["bytes"] = (tmp_path / "subspace").read_bytes() + (tmp_path / "release").read_bytes()
        offered["repr"] = repr(pca.subspace_) + repr(pca)
    return offered


def clean_statistics(rows):
    """What must not be seen: about the origin and about the mean, raw and clipped."""
    clipped = rows * np.minimum(1, 3.0 / np.linalg.norm(rows, axis=1))[:, None]
    found = {}
    for name, table in (("raw", rows), ("clipped", clipped)):
        deviations = table - table.mean(axis=0)
        for kind, part in (("sum", table), ("scatter", deviations)):
            scatter = part.T @ part
            values, vectors = np.linalg.eigh(scatter)
            found |= {
                f"{name} {kind} products": scatter.ravel(),
                f"{name} {kind} eigenvalues": values,
                f"{name} {kind} singular values": np.sqrt(np.maximum(values, 0)),
                f"{name} {kind} total": [np.trace(scatter)],
                f"{name} {kind} directions": vectors.ravel(),
            }
        found[f"{name} mean"] = table.mean(axis=0)
        found[f"{name} sums"] = table.sum(axis=0)
        found[f"{name} variances"] = table.var(axis=0)
        found[f"{name} extremes"] = np.concatenate([table.max(axis=0), table.min(axis=0)])
        found[f"{name} norms"] = np.linalg.norm(table, axis=1)
    return {name: np.abs(np.asarray(value, dtype=float).ravel()) for name, value in found.items()}


def assert_nothing_clean(offered, rows):
    numbers = [np.abs(part) for value in offered.values() for part in numbers_in(value)]
    numbers = np.unique(np.concatenate([*numbers, np.zeros(1)]))
    for name, clean in clean_statistics(rows).items():
        for scale in (1.0, 1 / len(rows), 1 / (len(rows) - 1)):
            wanted = clean[clean > 1e-9] * scale
            place = np.clip(np.searchsorted(numbers, wanted), 1, len(numbers) - 1)
            nearest = np.minimum(np.abs(numbers[place] - wanted), np.abs(numbers[place - 1] - wanted))
            assert (nearest > 1e-9 * wanted).all(), f"{name} can be read"
    for value in offered.values():
        if isinstance(value, bytes):
            for clean in clean_statistics(rows).values():
                assert all(np.float64(number).tobytes() not in value for number in clean if number > 1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_attribute_method_or_file_tells_a_clean_statistic(settings, tmp_path):
    rows = make_rows(1200)
    pca = PrivatePCA(3, **private(epsilon=2.0, delta=1e-5, **settings).settings)
    for part in np.array_split(rows, 4):
        pca.partial_fit(part)
        before = everything_offered(pca, tmp_path, rows)
        assert set(before) & {"components_", "mean_", "subspace_", "n_samples_seen_", "pickle"} == set()
        assert_nothing_clean(before, rows)
    pca.release()
    after = everything_offered(pca, tmp_path, rows)
    assert {"components_", "mean_", "subspace_", "pickle", "file 1", "transform"} <= set(after)
    assert_nothing_clean(after, rows)


def test_a_fit_that_finds_everything_tells_no_clean_statistic_either(tmp_path):
    rows = make_rows(2000)
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5).fit(rows)
    steps = [step.step for step in pca.release().certificate.steps]
    assert steps == ["lengths and spread", *["mean"] * (len(steps) - 3), "gram", "evaluation"]
    offered = everything_offered(pca, tmp_path, rows)
    assert {"components_", "explained_variance_", "pickle", "file 1", "transform"} <= set(offered)
    assert_nothing_clean(offered, rows)
    assert secrets_in(pca) == []


def test_the_walk_would_see_a_clean_statistic(tmp_path):
    rows = make_rows()
    with pytest.raises(AssertionError, match="can be read"):
        assert_nothing_clean(everything_offered_plain(rows), rows)
    leaky = PrivatePCA(3, **nearly_noiseless().settings).fit(rows)
    leaky.hint_ = rows.mean(axis=0)
    with pytest.raises(AssertionError, match="mean"):
        assert_nothing_clean(everything_offered(leaky, tmp_path, rows), rows)


def everything_offered_plain(rows):
    return {"subspace_": StreamingPCA(3).fit(rows).subspace_}


@pytest.mark.parametrize(
    "use", ["transform", "inverse_transform", "score", "anomaly_scores", "get_covariance"]
)
def test_using_it_before_a_release_says_what_to_do(use):
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(
        make_rows()
    )
    with pytest.raises(NotFittedError, match=r"release\(\)"):
        getattr(pca, use)(*([] if use == "get_covariance" else [np.ones((2, 6))]))
    with pytest.raises(AttributeError, match=r"release\(\)"):
        pca.components_  # noqa: B018


@pytest.mark.parametrize("copier", [pickle.dumps, copy.deepcopy, copy.copy])
def test_unreleased_rows_cannot_be_copied_out(copier):
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(
        make_rows()
    )
    with pytest.raises(TypeError, match=r"release\(\) first"):
        copier(pca._source)


def test_a_copy_holds_what_was_released_and_takes_no_more_rows():
    pca = PrivatePCA(
        3, epsilon=1.0, delta=1e-4, bound=3.0, releases=5, center=None, evaluate=False
    ).partial_fit(make_rows())
    released = pca.release()
    pca.partial_fit(make_rows(seed=1))
    assert secrets_in(pca) != []
    twin = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(twin.components_, pca.components_)
    assert twin.release() == released
    assert twin.ledger_ is None
    assert secrets_in(twin) == []
    with pytest.raises(BudgetExceeded, match="copy"):
        twin.partial_fit(make_rows())


def test_after_the_last_release_nothing_clean_is_kept():
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).fit(make_rows())
    assert secrets_in(pca) == []
    with pytest.raises(BudgetExceeded, match="all were made"):
        pca.partial_fit(make_rows())


FORKED = """
import os
import numpy as np
from fedpca import PrivatePCA
rows = np.random.default_rng(0).normal(size=(60, 4))
pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(rows)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
for step in (lambda: pca.partial_fit(rows), pca.release):
    try:
        step()
        print("done", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
if not pid:
    os._exit(0)
"""


def test_a_fork_can_neither_take_nor_release_rows(fork):
    """It would have the same key: the same noise on other rows, and the difference reveals the rows."""
    refused = "this process is a fork; call release() in the process that ingested the rows."
    assert fork(FORKED).wait()[1].splitlines() == [refused, refused, "done", "done"]


def test_a_release_that_the_ledger_cannot_complete_is_not_lost(monkeypatch):
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(
        make_rows()
    )

    def full(self, entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "complete", full)
    with pytest.warns(UserWarning, match="could not note"):
        release = pca.release()
    assert pca.release() is release


def test_delta_is_warned_of_once_and_the_stream_survives_a_warning_made_an_error():
    privacy = Privacy(4.0, 5e-4, 3.0, center="private", evaluate=False)
    with pytest.warns(UserWarning, match="delta") as caught:
        PrivatePCA(2, **privacy.settings).fit(make_rows(1000))
    assert len(caught) == 1
    pca = PrivatePCA(2, **privacy.settings).partial_fit(make_rows(1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="delta"):
            pca.release()
    pca.partial_fit(make_rows(10)).release()


def test_threads_that_release_at_once_get_one_release():
    pca = PrivatePCA(3, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(
        make_rows(400, 200)
    )
    with ThreadPoolExecutor(8) as pool:
        releases = list(pool.map(lambda _: pca.release(), range(16)))
    assert all(release is releases[0] for release in releases)
    assert len(pca.ledger_.entries) == 1


def test_many_reports_stay_on_the_lattice_so_that_no_bit_of_them_is_clean():
    """Sums of rounded noises would differ from the lattice by fractions that depend on the rows alone."""
    pca = PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=1.0, releases=6, center=None, evaluate=False)
    for part in np.array_split(make_rows(60), 6):
        points = pca.partial_fit(part).release().scatter * 2.0**24
        np.testing.assert_array_equal(points, np.rint(points))


def test_the_parity_of_many_reports_tells_nothing():
    """With noises z0, z1 rounded before they are weighed, 2 report_2 - report_1 = first increment (mod 2)."""
    rows = make_rows(40, 3)
    first = clipped(rows[:4], 1.0)
    parity = (first.T @ first) % 2
    hits = 0
    for _ in range(300):
        pca = PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=1.0, releases=6, center=None, evaluate=False)
        reports = [pca.partial_fit(rows[4 * j : 4 * j + 4]).release().scatter * 2.0**24 for j in (0, 1)]
        hits += np.sum(((2 * reports[1] - reports[0]) % 2 == parity)[np.triu_indices(3)])
    assert abs(hits / 1800 - 0.5) < 0.06


@pytest.mark.parametrize(
    "settings",
    [{}, {"center": "private"}, {"center": "pairs"}],
    ids=str,
)
def test_a_batch_interrupted_half_way_ends_the_stream_so_that_no_row_counts_twice(settings, monkeypatch):
    privacy = private(**({"epsilon": 4.0, "delta": 1e-5} | settings))
    pca = PrivatePCA(2, **privacy.settings).partial_fit(make_rows(100))
    monkeypatch.setattr("fedpca.estimators.private.chunk_rows", lambda n_features: 150)
    taken = PrivateTracker._take

    def interrupted(self, rows):
        monkeypatch.setattr(PrivateTracker, "_take", taken)
        taken(self, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivateTracker, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pca.partial_fit(make_rows(400))
    for call in (lambda: pca.partial_fit(make_rows(400)), pca.release):
        with pytest.raises(RuntimeError, match="an earlier batch was interrupted"):
            call()


@pytest.mark.parametrize("settings", [{"center": "private"}, {"bound": "private"}], ids=str)
def test_private_steps_are_not_begun_if_the_rows_cannot_be_afforded(settings):
    ledger = Ledger(epsilon=1.0, delta=1e-4)
    ledger.debit(0, 10, "other", 0.1)
    privacy = private(ledger=ledger, **settings)
    for learn in (
        PrivatePCA(2, **privacy.settings).fit,
        PrivatePCA(2, **privacy.settings).partial_fit,
        PrivatePCA(2, **privacy.settings).step_sum,
    ):
        with pytest.raises(BudgetExceeded):
            learn(make_rows(1000))
    assert len(ledger.entries) == 1


def test_a_release_is_not_made_if_its_evaluation_cannot_be_afforded():
    ledger = Ledger(epsilon=1.0, delta=1e-4)
    ledger.debit(0, 10, "other", 0.2 * ledger_mu(ledger))
    with pytest.raises(BudgetExceeded):
        PrivatePCA(2, **private(evaluate=True, ledger=ledger).settings).fit(make_rows())
    assert len(ledger.entries) == 1
    PrivatePCA(2, **private(epsilon=ledger.left() * (1 - 1e-9), ledger=ledger).settings).fit(make_rows())


def ledger_mu(ledger):
    return mu_of(ledger.epsilon, ledger.delta)


def test_noise_too_large_to_be_exact_is_refused_before_anything_is_debited():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="epsilon must be larger"):
        PrivatePCA(2, epsilon=1e-9, delta=1e-12, bound=1.0, ledger=ledger, center=None, evaluate=False).fit(
            make_rows()
        )
    assert ledger.entries == []


def test_gaps_of_a_row_are_filled_the_same_whoever_else_has_gaps(no_noise):
    """The number of rows in a product can decide how the others are rounded."""
    rows = make_rows(600, 40)
    pca = PrivatePCA(2, **nearly_noiseless(releases=2).settings).partial_fit(rows)
    pca.release()
    gappy = np.where(np.random.default_rng(0).uniform(size=rows.shape) < 0.1, np.nan, rows)
    fill = pca._source.model.fill_gaps
    alone = np.concatenate([fill(row[None].copy()) for row in gappy])
    np.testing.assert_array_equal(fill(gappy), alone)


@pytest.mark.parametrize(
    "settings",
    [{}, {"bound": 3.0, "center": None}, {"bound": "sphere", "center": None}, {"releases": 2}],
    ids=str,
)
def test_no_value_of_a_record_stops_a_fit_where_numpy_raises(settings):
    """Warnings and errors of numpy are the caller's to set, and would show what a record is like."""
    rows = np.random.default_rng(0).normal(size=(500, 4))
    extreme = [[1e-310, 1, 0, 0], [1e-200, 1e200, 0, 0], [np.inf, 0, 0, 0], [1e-320] * 4, [np.nan] * 4]
    for row in [*extreme, [np.finfo(float).max] * 4]:
        changed = rows.copy()
        changed[0] = row
        with np.errstate(all="raise"):
            PrivatePCA(1, epsilon=1.0, delta=1e-5, **settings).fit(changed)


def test_a_row_without_any_entry_stays_at_the_center_after_a_release(no_noise):
    """Were it filled from the release, taking a record out could change more than is debited."""
    rows = make_rows(600, 4)
    pca = PrivatePCA(2, **nearly_noiseless(releases=2, adjacency="zero-out").settings).partial_fit(rows)
    pca.release()
    source, empty = pca._source, np.full((1, 4), np.nan)
    clipping = source.clipping
    before = source._summing.total()
    pca.partial_fit(np.concatenate([np.full((3, 4), np.nan), [[np.inf] * 4]]))
    np.testing.assert_array_equal(source._summing.total(), before)
    assert np.isnan(source.model.fill_gaps(clipping.deviations(empty))).all()


# --- what is released is the right thing ---


@pytest.mark.parametrize("settings", [{}, {"releases": 8}], ids=str)
def test_with_hardly_any_noise_it_is_the_pca_of_clipped_rows(settings, no_noise):
    rows = make_rows()
    pca = PrivatePCA(3, **nearly_noiseless(center=rows.mean(axis=0), bound=50.0, **settings).settings).fit(
        rows
    )
    exact = Subspace.from_rows(rows, 3)
    assert fedpca.metrics.affinity(pca, exact) > 1 - 1e-3
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0))
    assert pca.n_components_ == 3
    assert pca.n_samples_seen_ == 400
    assert pca.transform(rows).shape == (400, 3)


def test_release_returns_noisy_moments_that_sum_over_owners():
    owners = np.array_split(power_law(np.random.default_rng(0), 30_000, 10), 3)
    privacy = Privacy(4.0, 1e-6, 3.0, center=np.zeros(10), evaluate=False)
    releases = [PrivatePCA(2, **privacy.settings).partial_fit(rows).release() for rows in owners]
    assert all(isinstance(release, Moments) for release in releases)
    model = fedpca.merge(releases, rank=2)
    assert fedpca.metrics.affinity(model, Subspace.from_rows(np.concatenate(owners), 2, center=False)) > 0.98
    assert model.certificate.private
    assert model.certificate.epsilon == 4.0
    assert model.certificate.merged == 3
    edges = [release.certificate.noise_edge for release in releases]
    assert model.certificate.noise_edge == pytest.approx(sqrt(3) * edges[0])
    assert "private: epsilon=4" in repr(model)


def test_a_merge_of_one_owners_releases_costs_what_its_ledger_says():
    ledger = Ledger(epsilon=5.0, delta=1e-4)
    privacy = Privacy(1.0, 1e-4, 3.0, ledger=ledger, center=None, evaluate=False)
    fits = [PrivatePCA(2, **privacy.settings).fit(make_rows()).release() for _ in range(3)]
    merged = fedpca.merge(fits).certificate
    assert merged.epsilon == pytest.approx(ledger.spent())
    assert merged.epsilon > 1.5
    assert merged.mu == pytest.approx(sqrt(3) * mu_of(1.0, 1e-4))
    other = (
        PrivatePCA(2, epsilon=1.2, delta=1e-4, bound=3.0, center=None, evaluate=False)
        .fit(make_rows())
        .release()
    )
    assert fedpca.merge([fits[0], other]).certificate.epsilon == 1.2


def test_the_tree_of_merges_makes_no_difference_to_the_certificate():
    ledger = Ledger(epsilon=5.0, delta=1e-4)
    own = [
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, ledger=ledger, center=None, evaluate=False)
        .fit(make_rows())
        .release()
        for _ in "ab"
    ]
    others = [
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False)
        .fit(make_rows())
        .release()
        for _ in "cd"
    ]
    flat = fedpca.merge([*own, *others]).certificate
    tree = fedpca.merge([fedpca.merge([own[0], others[0]]), fedpca.merge([own[1], others[1]])]).certificate
    assert flat.epsilon == tree.epsilon == pytest.approx(ledger.spent())
    assert flat.merged == tree.merged == 4
    assert flat.noise_edge == pytest.approx(tree.noise_edge)
    by_tree = fedpca.merge_tree([own[0], others[0], own[1], others[1]], rank=2, fanout=2).certificate
    assert by_tree.epsilon == flat.epsilon
    assert {release.release for release in by_tree.releases} == {
        release.certificate.release for release in (*own, *others)
    }


def test_a_merged_certificate_has_the_bound_of_all_or_lists_those_they_have():
    a, b, c = (
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=bound, center=None, evaluate=False)
        .fit(make_rows())
        .release()
        for bound in (3.0, 3.0, 4.0)
    )
    assert fedpca.merge([a, b]).certificate.bound == 3.0
    assert fedpca.merge([c, fedpca.merge([a, b])]).certificate.bound == (3.0, 4.0)
    assert fedpca.merge([fedpca.merge([a, c]), b]).certificate.bound == (3.0, 4.0)


@pytest.mark.parametrize("missing", ["spent", "spent_delta"])
def test_a_release_that_does_not_say_what_it_cost_is_refused(missing):
    privacy = Privacy(1.0, 1e-4, 3.0, ledger=Ledger(epsilon=5.0, delta=1e-4), center=None, evaluate=False)
    fits = [PrivatePCA(2, **privacy.settings).fit(make_rows()).release() for _ in range(3)]
    stated = fedpca.merge(fits[1:]).certificate.to_json()
    for release in stated["releases"]:
        del release[missing]
    with pytest.raises(ValueError, match="must state what was spent; release them again"):
        Certificate.from_json(stated)


def test_the_same_stream_is_not_merged_twice():
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-5, bound=3.0, releases=3, center=None, evaluate=False)
    reports = [pca.partial_fit(make_rows(seed=seed)).release() for seed in range(3)]
    for parts in (reports, [reports[0], reports[0]], [reports[0].subspace(2), reports[1].subspace(2)]):
        with pytest.raises(ValueError, match="merged twice"):
            fedpca.merge(parts)


def test_a_text_column_is_named_and_not_quoted():
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "diagnosis": ["flu", "flu", "secret"]})
    for pca in (PrivatePCA(1, **nearly_noiseless().settings), StreamingPCA(1)):
        with pytest.raises(ValueError, match="diagnosis contains text: drop or encode") as refusal:
            pca.fit(frame)
        assert "secret" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore:the merge has no certificate")
def test_a_merge_with_anything_not_private_is_not_certified():
    rows = make_rows()
    release = PrivatePCA(2, **nearly_noiseless().settings).partial_fit(rows).release()
    clean = Moments.from_rows(rows, center=False)
    assert fedpca.merge([release, clean]).certificate is None
    noisy = (
        PrivatePCA(
            2, epsilon=0.1, delta=1e-6, bound=3.0, insecure_seed_for_tests=0, center=None, evaluate=False
        )
        .fit(rows)
        .release()
    )
    assert fedpca.merge([noisy, clean]).certificate is None  # its scatter has a negative diagonal
    assert fedpca.merge([release.subspace(2), Subspace.from_rows(rows, center=False)]).certificate is None
    assert StreamingPCA(2, center=False).merge(release).partial_fit(rows).subspace_.certificate is None


def test_noisy_moments_merge_into_an_estimator_without_privacy():
    # So noisy that some variances are negative.
    privacy = Privacy(0.1, 1e-6, 3.0, insecure_seed_for_tests=0, center=None, evaluate=False)
    release = PrivatePCA(2, **privacy.settings).partial_fit(make_rows()).release()
    assert (np.diag(release.scatter) < 0).any()
    assert StreamingPCA(2, center=False).merge(release).n_samples_seen_ == 400


def test_releasing_again_without_new_rows_is_the_same_and_free():
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).partial_fit(
        make_rows()
    )
    assert pca.release() is pca.release()
    assert len(pca.ledger_.entries) == 1


@pytest.mark.parametrize("releases", [3, 7])
def test_reports_of_a_growing_stream_are_cumulative_and_within_budget(releases, no_noise):
    rows = make_rows(700)
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=50.0, releases=releases, center=None, evaluate=False)
    for report, part in enumerate(np.array_split(rows, releases), start=1):
        pca.partial_fit(part)
        released = pca.release()
        assert released.certificate.report == report
        assert released.certificate.planned == releases
    np.testing.assert_allclose(released.scatter, rows.T @ rows, atol=3.0)
    ledger = pca.ledger_
    assert ledger.mu == pytest.approx(mu_of(1.0, 1e-4))
    assert len(ledger.entries) == (releases if releases <= 4 else 1)
    with pytest.raises(BudgetExceeded, match=f"releases={releases}"):
        pca.partial_fit(rows)


def test_noise_of_the_reports_is_that_of_the_schedule():
    """On a stream of nothing, the reports are the noise itself."""
    privacy = Privacy(1.0, 1e-4, 1.0, releases=6, center=None, evaluate=False)
    pca = PrivatePCA(**privacy.settings)
    reports = []
    for _ in range(6):
        pca.partial_fit(np.zeros((10, 150)))
        reports.append(pca.release().scatter[np.triu_indices(150, 1)])
    from fedpca.privacy.schedule import Schedule

    for report, noise in enumerate(reports, start=1):
        expected = Schedule(6).multiplier(report) / privacy.mu
        assert noise.std() == pytest.approx(expected, rel=0.04)
    assert np.corrcoef(reports[0], reports[1])[0, 1] > 0.3  # the first noise is in the second report


# --- center, clipping, gaps ---


def test_a_private_center_of_all_rows_costs_a_part_of_the_budget():
    rows = make_rows(2000) + 2.0
    pca = PrivatePCA(2, **private(epsilon=4.0, delta=1e-5, bound=4.0, center="private").settings).fit(rows)
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.3)
    entries = pca.ledger_.entries
    first, *means, last = [entry.mechanism for entry in entries]
    assert (first, set(means), last) == ("lengths and spread", {"mean"}, "gram")
    mu = mu_of(4.0, 1e-5)
    assert composed(entry.mu for entry in entries) == pytest.approx(mu)
    assert pca.ledger_.mu == pytest.approx(mu)
    assert entries[-1].mu ** 2 > 0.8 * mu**2
    assert {(entry.start, entry.completed) for entry in entries} == {(0, True)}
    assert pca.subspace_.certificate.center == "private"


def test_a_private_center_of_a_stream_takes_its_first_rows():
    rows = make_rows(3000) + 2.0
    pca = PrivatePCA(2, **private(epsilon=4.0, delta=1e-5, bound=4.0, center="private").settings)
    for part in np.array_split(rows, 60):
        pca.partial_fit(part)
    released = pca.release()
    entries = pca.ledger_.entries
    first, *means, last = [entry.mechanism for entry in entries]
    assert (first, set(means), last) == ("lengths and spread", {"mean"}, "gram")
    assert [entry.start for entry in entries] == [0, *(entry.stop for entry in entries[:-1])]
    assert entries[-1].stop == 3000  # no record pays twice
    assert [entry.mu for entry in entries] == pytest.approx([mu_of(4.0, 1e-5)] * len(entries))
    assert released.count == 3000 - entries[-1].start
    assert pca.n_samples_seen_ == 3000
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), atol=0.3)


def rounds_of(pca, rows):
    while not pca.is_prepared:
        pca.advance(pca.step_sum(rows))
    return pca


def test_rounds_of_one_owner_are_what_fit_does():
    rows = make_rows(2000) + 2.0
    rows[3, 2] = np.nan
    privacy = Privacy(4.0, 1e-5, insecure_seed_for_tests=3, evaluate=False)
    by_rounds = rounds_of(PrivatePCA(2, **privacy.settings), rows).partial_fit(rows)
    fitted = PrivatePCA(2, **privacy.settings).fit(rows)
    np.testing.assert_array_equal(by_rounds.release().scatter, fitted.release().scatter)
    np.testing.assert_array_equal(by_rounds.mean_, fitted.mean_)
    assert by_rounds.release().certificate.bound == fitted.release().certificate.bound
    assert by_rounds.n_samples_seen_ == fitted.n_samples_seen_ == 2000
    paid = [
        [(entry.mechanism, entry.start, entry.stop, entry.mu) for entry in pca.ledger_.entries]
        for pca in (by_rounds, fitted)
    ]
    assert paid[0] == paid[1]


def test_a_sum_of_a_private_step_is_noisy_and_paid_for():
    rows = make_rows(2000)
    for step in ("lengths and spread", "mean"):
        sums = []
        for _ in range(2):
            pca = PrivatePCA(2, **private(epsilon=4.0, delta=1e-5, center="private").settings)
            while (summed := pca.step_sum(rows)).step != step:
                pca.advance(summed)
            sums.append(summed)
            last = pca.ledger_.entries[-1]
            assert (last.mechanism, last.start, last.stop, last.completed) == (step, 0, 2000, True)
        assert (sums[0].total != sums[1].total).mean() > 0.9
        assert (sums[0].n_rows, sums[0].noise) == (2000, 1)


def test_rows_are_counted_for_nothing():
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5)
    counted = pca.step_sum(make_rows())
    assert (counted.step, counted.n_rows, counted.total.size) == ("rows", 400, 0)
    assert pca.ledger_.entries == []


def test_rounds_of_private_steps_come_in_order():
    """A second sum for one round would carry the noise of the first."""
    rows = make_rows(2000)
    privacy = private(epsilon=4.0, delta=1e-5, center="private", releases=2)
    pca = PrivatePCA(2, **privacy.settings)
    with pytest.raises(ValueError, match="step_sum before it"):
        pca.advance(StepSum("rows", np.zeros(0), 5))
    counted = pca.step_sum(rows)
    pca.advance(counted)
    for call in (lambda: pca.advance(counted), lambda: pca.advance(StepSum("mean", np.zeros(6), 5))):
        with pytest.raises(ValueError, match="call step_sum first"):
            call()
    with pytest.raises(ValueError, match="rounds of private steps are not complete"):
        pca.partial_fit(rows)  # counting alone was a round, too
    summed = pca.step_sum(rows)
    spoiled = summed.total.copy()
    spoiled[0] = np.nan
    for wrong, match in (
        (lambda: pca.step_sum(rows), "call advance first"),
        (lambda: pca.partial_fit(rows), "rounds of private steps are not complete"),
        (
            lambda: pca.advance(replace(summed, total=np.zeros(3))),
            r"'lengths and spread', 602 numbers",
        ),
        (lambda: pca.advance(replace(summed, step="mean")), "all owners must take the same steps"),
        (lambda: pca.advance(replace(summed, radius=3.0)), "all owners must have the same settings"),
        (lambda: pca.advance(replace(summed, total=spoiled)), "must be finite"),
        (lambda: pca.advance(replace(summed, n_rows=0)), "at least one row"),
        (pca.release, "no rows were taken"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong()
    assert len(pca.ledger_.entries) == 1
    pca.advance(summed)
    rounds_of(pca, rows)
    for call in (lambda: pca.step_sum(rows), lambda: pca.advance(summed)):
        with pytest.raises(ValueError, match="nothing to find privately"):
            call()
    pca.partial_fit(rows).release()
    with pytest.raises(ValueError, match="nothing to find privately"):
        pca.step_sum(rows)
    assert pca.ledger_.entries[-1].mechanism == "gram"
    streamed = PrivatePCA(2, **privacy.settings).partial_fit(rows[:5])
    with pytest.raises(ValueError, match="first rows of a stream"):
        streamed.step_sum(rows)


def test_steps_are_only_taken_where_something_is_to_be_found():
    pca = PrivatePCA(2, **private().settings)
    with pytest.raises(ValueError, match="nothing to find privately"):
        pca.step_sum(make_rows())
    assert not hasattr(pca, "n_features_in_")


def test_too_many_features_are_refused_before_a_center_is_paid_for():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    privacy = Privacy(1.0, 1e-5, ledger=ledger)
    with pytest.raises(ValueError, match="mechanism='sketch'"):
        PrivatePCA(2, **privacy.settings).fit(np.zeros((5, 5000)))
    assert ledger.entries == []


def test_too_short_a_stream_for_its_steps_says_so():
    pca = PrivatePCA(2, epsilon=0.1, delta=1e-5).partial_fit(make_rows(50))
    with pytest.raises(ValueError, match="first rows of a stream, and 50 were not enough; bring more"):
        pca.release()
    assert pca.ledger_.entries == []


def test_a_stream_that_has_paid_for_steps_is_not_told_to_begin_anew():
    rows = np.random.default_rng(0).normal(size=(400, 5)) + 3.0
    pca = PrivatePCA(2, scale="std", epsilon=4.0, delta=1e-5).partial_fit(rows)
    assert pca.ledger_.entries
    with pytest.raises(ValueError, match="400 were not enough; what was found so far is paid for and kept"):
        pca.release()
    pca.partial_fit(np.tile(rows, (5, 1))).release()
    assert pca.ledger_.spent() <= 4.0 + 1e-9


def test_an_outlier_moves_the_release_no_more_than_the_bound(no_noise):
    rows = make_rows(100)
    wild = rows.copy()
    wild[0] *= 1e9
    scatters = [
        PrivatePCA(2, **nearly_noiseless().settings).partial_fit(table).release().scatter
        for table in (rows, wild)
    ]
    assert np.linalg.norm(scatters[1] - scatters[0]) <= sqrt(2) * 3.0**2 * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e16, 1e151, 1.7e308])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_however_large_is_clipped_and_never_a_reason_to_refuse(size, dtype):
    """A client that drops out because of one row tells that the row was there."""
    rows = make_rows().astype(dtype)
    rows[7] = min(size, 3e38) if dtype == np.float32 else size
    privacy = nearly_noiseless(insecure_seed_for_tests=0)
    tame = rows.copy()
    tame[7] = 1e6
    wild, calm = (PrivatePCA(2, **privacy.settings).fit(table).release().scatter for table in (rows, tame))
    np.testing.assert_allclose(wild, calm, atol=1e-2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_infinite_entry_and_an_empty_column_count_as_missing(settings, no_noise):
    """Were they a reason to refuse, a failure would show that a record has, or lacks, an entry."""
    rows = make_rows(600)
    gappy, infinite = rows.copy(), rows.copy()
    gappy[3, 3] = gappy[-1, 2] = np.nan
    infinite[3, 3], infinite[-1, 2] = np.inf, -np.inf
    for table in (gappy, infinite):
        table[:, 5] = np.nan
    released = []
    settings = settings | {"insecure_seed_for_tests": 0}  # of pairs of rows
    for table in (gappy, infinite):
        pca = PrivatePCA(2, **nearly_noiseless(**settings).settings)
        for part in np.array_split(table, 3):
            pca.partial_fit(part)
            if settings.get("releases", 1) > 1:
                pca.release()  # from now on gaps are filled from it
        released.append(pca.release())
    assert released[0].count == released[1].count
    np.testing.assert_array_equal(released[0].scatter, released[1].scatter)
    if "releases" not in settings:
        fitted = [PrivatePCA(2, **nearly_noiseless(**settings).settings).fit(t) for t in (gappy, infinite)]
        np.testing.assert_array_equal(fitted[0].components_, fitted[1].components_)


@pytest.mark.parametrize("to_rows", [np.asarray, sparse.csr_array, pd.DataFrame])
@pytest.mark.parametrize("entry", [np.inf, -np.inf])
def test_an_infinite_entry_counts_as_missing(entry, to_rows, no_noise):
    rows = make_rows()
    rows[3, 3] = np.nan
    infinite = np.where(np.isnan(rows), entry, rows)
    for fit in (
        lambda pca, table: pca.partial_fit(table),
        lambda pca, table: pca.fit(table),
    ):
        missing, known = (
            fit(PrivatePCA(2, **nearly_noiseless().settings), to_rows(table)).release()
            for table in (rows, infinite)
        )
        np.testing.assert_array_equal(missing.scatter, known.scatter)


@pytest.mark.parametrize("size", [1e160, 1.7e308, np.inf])
def test_a_gap_beside_a_huge_entry_is_filled_after_a_release(size):
    rows = make_rows()
    pca = PrivatePCA(2, **nearly_noiseless(releases=2).settings).partial_fit(rows)
    pca.release()
    rows[7], rows[7, 2] = -size, np.nan
    assert np.isfinite(pca.partial_fit(rows).release().scatter).all()


@pytest.mark.parametrize("settings", [{}, {"center": np.full(6, 0.5)}], ids=["origin", "public center"])
def test_gaps_are_filled_from_the_center_before_the_first_release(settings, no_noise):
    rows = make_rows()
    gappy = np.where(np.random.default_rng(1).uniform(size=rows.shape) < 0.2, np.nan, rows)
    gappy[3] = np.nan  # nothing observed: still a record
    filled = np.where(np.isnan(gappy), settings.get("center", np.zeros(6)), gappy)
    released = [
        PrivatePCA(2, **nearly_noiseless(**settings).settings).partial_fit(table).release()
        for table in (gappy, filled)
    ]
    np.testing.assert_array_equal(released[0].scatter, released[1].scatter)
    assert released[0].count == 400


@pytest.mark.parametrize("kind", ["list", "array", "frame"])
@pytest.mark.parametrize("cell", [None, pd.NA, 10**30, 10**400, -(10**400)], ids=lambda cell: f"{cell!s:.5}")
def test_an_object_in_one_cell_is_a_number_or_missing(kind, cell, no_noise):
    """A table is one of objects for a single such cell: were it refused, the failure would show it."""
    rows = make_rows(50).astype(object)
    rows[7, 2] = cell
    as_number = rows.copy()
    as_number[7, 2] = np.nan if cell is pd.NA or cell in (None, 10**400, -(10**400)) else float(cell)
    given = {"list": rows.tolist(), "array": rows, "frame": pd.DataFrame(rows)}[kind]
    pca = PrivatePCA(2, **nearly_noiseless().settings).fit(given)
    expected = PrivatePCA(2, **nearly_noiseless().settings).fit(as_number.astype(float))
    np.testing.assert_array_equal(pca.release().scatter, expected.release().scatter)


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="no longer type")
@pytest.mark.parametrize("size", [1e3, np.longdouble("1e4000")])
def test_a_number_beyond_float64_warns_of_nothing(size):
    rows = make_rows(50).astype(np.longdouble)
    rows[7, 2] = size
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        PrivatePCA(2, **nearly_noiseless().settings).fit(rows)


def test_gaps_are_filled_from_the_last_release_and_from_nothing_else(no_noise):
    """Rows that were not released yet must not help to fill the gaps of others."""
    rows = make_rows()
    gappy = np.where(np.random.default_rng(1).uniform(size=rows.shape) < 0.2, np.nan, rows)
    results = []
    for unreleased in (make_rows(50, seed=5), np.zeros((50, 6))):
        pca = PrivatePCA(
            2, **nearly_noiseless(bound=50.0, releases=2, center=np.zeros(6)).settings
        ).partial_fit(rows)
        pca.release()
        pca.partial_fit(unreleased)
        mechanism = next(secret for secret in secrets_in(pca) if isinstance(secret, Mechanism))
        before = mechanism._products.copy()
        pca.partial_fit(gappy)
        results.append(mechanism._products - before)
    np.testing.assert_array_equal(results[0], results[1])
    exact = rows.T @ rows
    filled, by_zero = results[0] * (50 / 4096) ** 2, np.nan_to_num(gappy).T @ np.nan_to_num(gappy)
    assert np.linalg.norm(filled - exact) < 0.6 * np.linalg.norm(by_zero - exact)


@pytest.mark.parametrize("kind", ["sparse", "float32", "frame", "integers"])
def test_all_kinds_of_rows_are_taken(kind):
    rows = np.round(4 * make_rows())
    table = {
        "sparse": sparse.csr_array(rows),
        "float32": rows.astype(np.float32),
        "frame": pd.DataFrame(rows, columns=list("abcdef")),
        "integers": rows.astype(int),
    }[kind]
    seeded = nearly_noiseless(insecure_seed_for_tests=1)
    pca = PrivatePCA(2, **seeded.settings).fit(table)
    plain = PrivatePCA(2, **seeded.settings).fit(rows)
    np.testing.assert_allclose(pca.components_, plain.components_, atol=1e-6)
    assert pca.components_.dtype == (np.float32 if kind == "float32" else np.float64)
    if kind == "frame":
        assert pca.release().feature_names == tuple("abcdef")
        with pytest.raises(ValueError, match="feature names"):
            pca.transform(table[list("bacdef")])


# --- certificates ---


def test_the_certificate_states_the_promise_and_travels(tmp_path):
    rows = make_rows()
    privacy = Privacy(1.0, 1e-4, 3.0, adjacency="zero-out", center=None, evaluate=False)
    pca = PrivatePCA(2, **privacy.settings).fit(rows)
    certificate = pca.subspace_.certificate
    assert certificate.private is True
    assert certificate.warnings == ()
    expected = {
        "epsilon": 1.0, "delta": 1e-4, "unit": "record", "adjacency": "zero-out", "mechanism": "gram",
        "bound": 3.0, "records": 400, "n_features": 6, "sensitivity": 1.0, "planned": 1,
    }  # fmt: skip
    assert {name: getattr(certificate, name) for name in expected} == expected
    assert certificate.sigma == pytest.approx(1 / mu_of(1.0, 1e-4))
    assert certificate.noise_edge == pytest.approx(sqrt(2 * 6) * certificate.sigma * 9.0)
    assert Certificate.from_json(json.loads(json.dumps(certificate.to_json()))) == certificate
    assert certificate.release == pca.ledger_.entries[0].release
    for name, summary in (("a", pca.subspace_), ("b", pca.release())):
        summary.save(tmp_path / name)
        assert fedpca.load(tmp_path / name) == summary
        assert "private: epsilon=1, delta=0.0001" in repr(fedpca.load(tmp_path / name))


def test_a_seed_makes_noise_repeatable_and_the_certificate_says_it_is_worthless():
    seeded = Privacy(1.0, 1e-4, 3.0, insecure_seed_for_tests=7, center=None, evaluate=False)
    one, other = (PrivatePCA(2, **seeded.settings).fit(make_rows()) for _ in range(2))
    np.testing.assert_array_equal(one.components_, other.components_)
    assert one.subspace_.certificate.private is False
    assert "NOT PRIVATE" in one.subspace_.certificate.warnings[0]
    assert "NOT private" in repr(one.subspace_)
    merged = fedpca.merge(
        [one.release(), PrivatePCA(2, **nearly_noiseless().settings).fit(make_rows()).release()]
    )
    assert merged.certificate.private is False


def test_without_a_seed_no_two_releases_are_alike():
    privacy = Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)
    one, other = (PrivatePCA(2, **privacy.settings).fit(make_rows()).release() for _ in "ab")
    assert not np.isclose(one.scatter, other.scatter, rtol=1e-9).any()


def test_released_numbers_lie_on_the_lattice():
    release = (
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=1.0, center=None, evaluate=False)
        .fit(make_rows())
        .release()
    )
    points = release.scatter * 2.0**24
    np.testing.assert_array_equal(points, np.rint(points))


def test_a_hidden_component_is_shown_only_if_it_rises_above_the_noise():
    rows = np.random.default_rng(0).normal(size=(20_000, 30)) * 0.02
    rows[:, :3] *= [40, 30, 20]
    privacy = Privacy(1.0, 1e-6, 2.0, insecure_seed_for_tests=0, center=None, evaluate=False)
    pca = PrivatePCA(**privacy.settings).fit(rows)
    assert pca.n_components_ == 3
    np.testing.assert_allclose(pca.explained_variance_, [0.64, 0.36, 0.16], rtol=0.1)
    drowned = replace(privacy, epsilon=0.01)
    assert PrivatePCA(**drowned.settings).fit(rows).n_components_ == 0
    assert PrivatePCA(0.9, **privacy.settings).fit(rows).n_components_ == 3
    assert PrivatePCA(**privacy.settings).fit(rows).n_components_ == 3


# --- settings ---


def test_delta_is_refused_at_one_over_n_and_warned_of_above_a_tenth():
    rows = make_rows(100)
    with pytest.raises(ValueError, match=r"delta must be below one over the number of rows, 1/100"):
        PrivatePCA(2, epsilon=1.0, delta=0.01, bound=3.0, center=None, evaluate=False).fit(rows)
    with pytest.warns(UserWarning, match="0.001 or less is advised"):
        PrivatePCA(2, epsilon=1.0, delta=0.005, bound=3.0, center=None, evaluate=False).fit(rows)
    PrivatePCA(2, epsilon=1.0, delta=0.001, bound=3.0, center=None, evaluate=False).fit(
        rows
    )  # a warning would be an error


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"epsilon": 0}, ValueError, "epsilon must lie between 1e-30 and 1e9"),
        ({"epsilon": 1e10}, ValueError, "between 1e-30 and 1e9"),
        ({"bound": 1e-80}, ValueError, "bound"),
        ({"epsilon": float("inf")}, ValueError, "epsilon"),
        ({"epsilon": "1"}, TypeError, "epsilon must be a number"),
        ({"delta": 0}, ValueError, r"delta must lie in \[1e-60, 1\)"),
        ({"delta": 1}, ValueError, "delta"),
        ({"bound": 0}, ValueError, "bound must be a positive number"),
        ({"bound": float("nan")}, ValueError, "bound"),
        ({"adjacency": "add-remove"}, ValueError, "adjacency must be one of 'replace-one', 'zero-out'"),
        ({"mechanism": "wishart"}, ValueError, "mechanism must be one of"),
        ({"releases": 0}, ValueError, "releases must be at least 1"),
        ({"releases": 2.5}, TypeError, "releases"),
        ({"releases": 10**6}, ValueError, "at most 10000"),
        ({"center": "mean"}, ValueError, "center must be None, 'private'"),
        ({"center": [[1.0]]}, ValueError, "center"),
        ({"center": [np.nan]}, ValueError, "center"),
        ({"center": ["a"]}, TypeError, "center"),
        ({"bound": "ball"}, ValueError, "bound must be a number, 'private' or 'sphere', got bound='ball'"),
        ({"bound": None}, TypeError, "bound must be a number, 'private' or 'sphere'"),
        ({"bound": True}, TypeError, "bound must be a number"),
        ({"evaluate": 1}, TypeError, "evaluate must be True or False"),
        ({"ledger": 3}, TypeError, "ledger"),
        ({"insecure_seed_for_tests": -1}, ValueError, "insecure_seed_for_tests"),
    ],
)
def test_bad_settings_give_one_clear_error(settings, error, match):
    with pytest.raises(error, match=match):
        private(**({"delta": 1e-5, "bound": 1.0} | settings))


def test_nothing_but_epsilon_and_delta_has_to_be_known():
    privacy = Privacy(epsilon=1.0, delta=1e-5)
    assert (privacy.bound, privacy.center, privacy.evaluate) == ("private", "private", True)
    assert repr(privacy) == "Privacy(epsilon=1.0, delta=1e-05)"
    with pytest.raises(TypeError, match="delta"):
        Privacy(epsilon=1.0)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scale": "binomial"}, "scale must be None, 'std' or public numbers with privacy"),
        ({"center": [0.0]}, "6 features, 1 numbers"),
        ({"oversample": -1}, "oversample must be at least 0"),
        ({"n_components": 7}, "n_components"),
        ({"epsilon": 0}, "epsilon must lie"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_with_the_rows_are_refused(settings, match):
    pca = PrivatePCA(**({"n_components": 2} | nearly_noiseless().settings | settings))
    for method in (pca.fit, pca.partial_fit, pca.step_sum):
        with pytest.raises((ValueError, TypeError), match=match):
            method(make_rows())
    assert not hasattr(pca, "_source")


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_no_row_counts_beyond_its_bound_by_a_weight(method):
    with pytest.raises(TypeError, match="sample_weight"):
        getattr(PrivatePCA(2, **nearly_noiseless().settings), method)(
            make_rows(), sample_weight=np.full(400, 1e6)
        )


def test_release_needs_rows():
    with pytest.raises(NotFittedError, match="partial_fit"):
        PrivatePCA(2, **nearly_noiseless().settings).release()


def test_settings_are_values():
    privacy = Privacy(1.0, 1e-5, 2.0, center=np.arange(3.0), evaluate=False)
    assert privacy == Privacy(1.0, 1e-5, 2.0, center=(0.0, 1.0, 2.0), evaluate=False)
    assert "center=<3 public numbers>" in repr(privacy)
    pca = clone(PrivatePCA(2, **privacy.settings))
    assert {name: pca.get_params()[name] for name in privacy.settings} == privacy.settings
    assert pickle.loads(pickle.dumps(privacy)) == privacy
    with pytest.raises(AttributeError):
        privacy.epsilon = 9.0


def test_the_ledger_that_pays_is_public():
    ledger = Ledger(epsilon=1.0, delta=1e-4)
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, ledger=ledger, center=None, evaluate=False)
    with pytest.raises(AttributeError, match="ledger_ is opened by"):
        pca.ledger_  # noqa: B018
    assert pca.partial_fit(make_rows()).ledger_ is ledger  # before a release, too


def test_a_shared_ledger_in_memory_counts_over_fits_and_clones():
    ledger = Ledger(epsilon=1.0, delta=1e-4)
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, ledger=ledger, center=None, evaluate=False).fit(
        make_rows()
    )
    assert pca.subspace_.certificate.ledger.spent == pytest.approx(1.0)
    with pytest.raises(BudgetExceeded):
        clone(pca).fit(make_rows())


def test_digits_at_epsilon_one_keep_their_directions():
    digits = load_digits().data / 16
    exact = Subspace.from_rows(digits, 5)
    privacy = Privacy(1.0, 1e-5, 2.45, center=digits.mean(axis=0), evaluate=False)
    found = [PrivatePCA(5, **privacy.settings).fit(digits) for _ in range(5)]
    assert np.mean([fedpca.metrics.affinity(pca, exact) for pca in found]) > 0.82  # 0.90 measured
