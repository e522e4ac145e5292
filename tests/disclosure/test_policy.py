"""A policy refuses what its rules do not let out, before anything leaves or is spent, and says which rule."""

import json
import logging
import pickle
from dataclasses import fields, replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest
from helpers import secured
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_breast_cancer

import fedpca
from fedpca import (
    Aggregator,
    Moments,
    Policy,
    PolicyViolation,
    Privacy,
    PrivatePCA,
    Scaling,
    StreamingPCA,
    Subspace,
)
from fedpca.disclosure import RowCounts
from fedpca.disclosure.policy import NO_POLICY, PRESETS
from fedpca.errors import SummaryRejected
from fedpca.federation import Limits
from fedpca.federation.folder import publish
from fedpca.readers import open_rows
from fedpca.summaries.certificate import Certificate

PRIVATE = Privacy(epsilon=1.0, delta=1e-6, bound=3.0, center="pairs", evaluate=False)
LOOSE = {"least_rows": 0, "most_features_per_row": inf, "least_level": 0, "most_directions_per_row": inf}


@pytest.fixture
def rows(rng):
    """Two columns of measurements, and one of two levels: 80 rows of one, 20 of the other."""
    table = rng.normal(size=(100, 3)) + 5.0
    table[:, 2] = np.arange(100) % 5 == 0
    return table


def rule_of(error):
    return error.value.rule


def broken(policy, summary, rows=None):
    """The rules that do not hold."""
    return [each.rule for each in policy.results(summary, rows) if each.result == "broken"]


# --- the file ---


def written(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_practice(tmp_path):
    """DataSHIELD: 0.33 and 3; the Medical Informatics Platform and UK environments: 10 rows."""
    policy = Policy.load(written(tmp_path, "# all as usual\n"))
    assert policy == Policy() == Policy.preset("default")
    assert (policy.least_rows, policy.most_features_per_row, policy.least_level) == (10, 0.33, 3)
    assert not policy.privacy_required
    assert not policy.secure_sums_required
    assert policy.mean_allowed


def test_every_key_can_be_set_in_a_file(tmp_path):
    text = (
        "least_rows = 20\nmost_features_per_row = 1\nleast_level = 5\nmost_directions_per_row = inf\n"
        "privacy_required = true\nlargest_epsilon = 2.5\nsecure_sums_required = true\nmean_allowed = false\n"
    )
    policy = Policy.load(written(tmp_path, text))
    assert policy == Policy(20, 1.0, 5, inf, True, 2.5, True, False)
    assert len(text.splitlines()) == len(fields(Policy))


def test_a_preset_is_no_laxer_than_the_default_and_its_keys_can_be_changed(tmp_path):
    usual = Policy()
    for name in PRESETS:
        policy = Policy.preset(name)
        assert policy.least_rows >= usual.least_rows
        assert policy.least_level >= usual.least_level
        assert policy.most_features_per_row <= usual.most_features_per_row
        assert policy.largest_epsilon <= usual.largest_epsilon
    assert Policy.load(written(tmp_path, 'preset = "strict"\nleast_rows = 500\n')) == Policy.preset(
        "strict", least_rows=500
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("least_row = 10\nlevels = 3\n", "unknown keys: least_row, levels; known are preset, least_rows"),
        ('preset = "lax"\n', "preset must be one of default, ohdsi, tre, strict, got 'lax'"),
        ("preset = 3\n", "preset must be one of"),
        ("least_rows = 10.5\n", "least_rows must be a whole number"),
        ('least_rows = "ten"\n', "least_rows must be a whole number"),
        ("least_rows = true\n", "least_rows must be a whole number"),
        ("least_rows = -1\n", "least_rows must be at least 0"),
        ("least_level = nan\n", "least_level must be a whole number"),
        ("most_features_per_row = nan\n", "most_features_per_row must be above 0"),
        ("most_features_per_row = 0\n", "most_features_per_row must be above 0"),
        ("most_directions_per_row = -0.1\n", "most_directions_per_row must be above 0"),
        ("most_directions_per_row = [1]\n", "most_directions_per_row must be a number"),
        ("largest_epsilon = -inf\n", "largest_epsilon must be above 0"),
        ("largest_epsilon = true\n", "largest_epsilon must be a number"),
        ("privacy_required = 1\n", "privacy_required must be true or false"),
        ('mean_allowed = "no"\n', "mean_allowed must be true or false"),
        ("[policy]\nleast_rows = 10\n", "unknown keys: policy"),
        ("least_rows 10\n", "must be a TOML file, and is not"),
        ("least_rows = 10\nleast_rows = 20\n", "must be a TOML file, and is not"),
        ("a = " + "[" * 5000, "must be a TOML file, and is not"),
        ("least_rows = 1" + "0" * 5000, "must be a TOML file, and is not"),
        ("least_rows = 1" + "0" * 400, "least_rows must be at most 9007199254740992"),
        ("most_features_per_row = 1" + "0" * 400, "most_features_per_row must be above 0 and at most"),
        ("largest_epsilon = 1e300", "largest_epsilon must be above 0 and at most"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as error:
        Policy.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such policy; check the path"):
        Policy.load(tmp_path / "missing.toml")
    with pytest.raises(IsADirectoryError, match="is a folder, not a policy"):
        Policy.load(tmp_path)
    with pytest.raises(ValueError, match="remote paths are not supported"):
        Policy.load("https://example.org/policy.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# Universit\xe4t\n")
    with pytest.raises(ValueError, match="must be a TOML file"):
        Policy.load(path)


@pytest.mark.parametrize("changes", [{"least_rows": nan}, {"largest_epsilon": nan}, {"least_level": None}])
def test_limits_that_are_no_numbers_are_refused_in_python_too(changes):
    with pytest.raises((TypeError, ValueError), match=next(iter(changes))):
        Policy(**changes)


def test_the_hash_is_that_of_the_rules_not_of_the_file(tmp_path):
    one = Policy.load(written(tmp_path, "least_level=10\n"))
    other = Policy.load(written(tmp_path, '# as usual\npreset = "tre"\nleast_rows = 10\n'))
    assert one.hash == other.hash != Policy().hash
    assert Policy(largest_epsilon=inf).to_json()["largest_epsilon"] is None


# --- counting rows ---


def smallest_level_by_pandas(table):
    found = [counts for name in table if len(counts := table[name].value_counts()) == 2]
    return min((int(counts.min()) for counts in found), default=None)


@given(
    st.integers(1, 200),
    st.integers(1, 6),
    st.integers(2, 4),
    st.floats(0, 0.5),
    st.integers(0, 2**32 - 1),
)
def test_levels_are_those_that_pandas_counts(n_rows, n_features, n_values, missing, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, n_values, size=(n_rows, n_features)) * rng.integers(0, 2, size=n_features) * 1.5
    table[rng.random(table.shape) < missing] = np.nan
    table[0] = 0.0
    frame = pd.DataFrame(table, columns=[f"c{i}" for i in range(n_features)])
    counts = RowCounts.of(frame)
    assert counts.rows == len(frame.dropna(how="all"))
    assert counts.fewest_values == frame.count().min()
    assert counts.smallest_level == smallest_level_by_pandas(frame)
    if counts.column:
        assert frame[counts.column].value_counts().min() == counts.smallest_level
    stored = RowCounts.of(sparse.csr_array(table))  # which has no row without values
    assert (stored.smallest_level, stored.fewest_values) == (counts.smallest_level, counts.fewest_values)


def test_files_are_counted_batch_after_batch(tmp_path, rows):
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows, columns=["a", "b", "smoker"]).to_csv(path, index=False)
    for batch_rows in (1, 7, 100):
        assert RowCounts.of(open_rows(path, batch_rows=batch_rows)) == RowCounts(100, 100, 20, "smoker")


def test_a_third_value_that_comes_late_ends_a_binary_column(rows):
    rows = np.concatenate([rows] * 3)
    rows[-1, 2] = 7.0
    assert RowCounts.of(rows).smallest_level is None


def test_counts_of_nothing_are_refused():
    with pytest.raises(ValueError, match="there are no rows to count"):
        RowCounts.of(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="shape"):
        RowCounts.of(np.zeros(3))
    with pytest.raises(TypeError, match="open files with"):
        RowCounts.of("rows.csv")


@pytest.mark.parametrize(
    "contents",
    [
        None,
        [],
        {"rows": 3},
        {"rows": -1, "fewest_values": 1, "smallest_level": 1},
        {"rows": 3, "fewest_values": 1.5, "smallest_level": None},
    ],
)
def test_counts_from_a_file_are_checked(contents):
    with pytest.raises(ValueError, match=r"counts of rows must be|must be a whole number"):
        RowCounts.from_json(contents)


# --- rules without privacy ---


def test_a_model_of_enough_rows_may_leave(rows):
    for summary in (Subspace.from_rows(rows), Moments.from_rows(rows)):
        Policy().check(summary, rows)
        Policy.preset("tre").check(summary, rows)


@pytest.mark.parametrize("kind", [Subspace, Moments])
def test_least_rows(rows, kind):
    Policy(least_rows=100).check(kind.from_rows(rows), rows)
    with pytest.raises(PolicyViolation, match=r"at least 101 rows .* got 100; wait for more") as error:
        Policy(least_rows=101).check(kind.from_rows(rows), rows)
    assert (error.value.rule, error.value.limit, error.value.value) == ("least_rows", 101, 100.0)


def test_weights_make_no_rows(rows):
    summary = Subspace.from_rows(rows[:5], sample_weight=np.full(5, 1000.0))
    assert summary.count == 5000
    assert "least_rows" in broken(Policy(), summary, rows[:5])


@pytest.mark.parametrize("kind", [Subspace, Moments])
def test_weights_make_no_rows_per_column_or_direction(rng, kind):
    rows = rng.normal(size=(12, 12))
    rules = broken(Policy(), kind.from_rows(rows, sample_weight=np.full(12, 1000.0)), rows)
    assert rules == broken(Policy(), kind.from_rows(rows), rows)
    assert rules == ["most_features_per_row", "most_directions_per_row"]


def test_rows_with_other_columns_are_not_counted_instead(rows):
    with pytest.raises(ValueError, match=r"those behind what leaves, with \d features, got 1; pass the rows"):
        Policy().check(Subspace.from_rows(rows), rows[:, :1])


def test_an_entry_in_two_pieces_is_one_value():
    pieces = sparse.csr_array(([1.0, 1.0, 2.0], [0, 0, 0], [0, 2, 3, *[3] * 48]), shape=(50, 1))
    assert RowCounts.of(pieces) == RowCounts.of(pieces.toarray())
    assert pieces.nnz == 3


def test_a_column_that_few_rows_know_is_few_rows(rows):
    rows[5:, 1] = np.nan
    assert "least_rows" in broken(Policy(), StreamingPCA(1).fit(rows).summary_, rows)


def test_rows_that_alone_know_a_feature_are_few_rows(rows):
    """Parts travel: the mean of a part of one row is that row."""
    many = replace(Moments.from_rows(rows * [1, 1, 0]), observed=[100, 100, 0])
    merged = fedpca.merge([many, Moments.from_rows(rows[:4])])
    assert merged.count == 104
    assert len(merged.parts) == 2
    assert "least_rows" in broken(Policy(least_level=0), merged)
    enough = fedpca.merge([many, Moments.from_rows(rows[:20])])
    assert broken(Policy(least_level=0), enough) == []


def test_most_features_per_row(rng):
    wide = rng.normal(size=(100, 34))
    assert broken(Policy(), Subspace.from_rows(wide[:, :33], 5), wide[:, :33]) == []
    with pytest.raises(PolicyViolation, match=r"at most 0.33 features per row may leave, got 0.34"):
        Policy().check(Subspace.from_rows(wide, 5), wide)


def test_most_directions_per_row_counts_what_is_carried(rng):
    wide = rng.normal(size=(50, 200))
    policy = Policy(most_features_per_row=inf)
    assert broken(policy, Subspace.from_rows(wide, 16), wide) == []
    assert broken(policy, Subspace.from_rows(wide, 17), wide) == ["most_directions_per_row"]
    assert broken(policy, Subspace.from_rows(wide), wide) == ["most_directions_per_row"]
    assert broken(policy, Moments.from_rows(wide), wide) == ["most_directions_per_row"]


def test_least_level_needs_the_rows(rows):
    summary = Moments.from_rows(rows)
    Policy(least_level=20).check(summary, rows)
    with pytest.raises(
        PolicyViolation, match=r"at least 21 rows, and one of 'feature 3' has 20; leave the column"
    ) as e:
        Policy(least_level=21).check(summary, RowCounts.of(rows))
    assert rule_of(e) == "least_level"
    with pytest.raises(
        PolicyViolation, match=r"the rows must be counted.*pass the rows, or set least_level = 0"
    ):
        Policy().check(summary)
    Policy(least_level=0).check(summary)
    Policy().check(Moments.from_rows(rows[:, :2]), rows[:, :2])  # no column of two levels


def test_the_mean_may_be_kept(rows):
    policy = Policy(mean_allowed=False)
    for summary in (Moments.from_rows(rows), Subspace.from_rows(rows, center=False)):
        with pytest.raises(PolicyViolation, match=r"subtract the mean of every column from the rows first"):
            policy.check(summary, rows)
    for dtype in (np.float64, np.float32):
        centered = (rows - rows.mean(axis=0)).astype(dtype)
        policy.check(StreamingPCA(2).fit(centered).summary_, rows)
    with pytest.raises(PolicyViolation, match="mean_allowed"):
        policy.check(Scaling.from_rows(rows), rows)


def test_privacy_and_secure_sums_can_be_required(rows):
    summary = Moments.from_rows(rows)
    with pytest.raises(PolicyViolation, match="only private releases may leave") as error:
        Policy(privacy_required=True).check(summary, rows)
    assert rule_of(error) == "privacy_required"
    released = PrivatePCA(2, **PRIVATE.settings).partial_fit(rows).release()
    for each in (summary, released, Scaling.from_rows(rows)):
        with pytest.raises(PolicyViolation, match="only secure sums may leave, and this is none"):
            Policy(secure_sums_required=True).check(each, rows)


def test_what_is_part_of_a_secure_sum_may_leave_and_nothing_else(rows):
    policy = Policy(secure_sums_required=True)
    assert policy.check_secure(rows, least=5, colluding=1) == RowCounts.of(rows)
    assert policy.check_secure(rows, privacy=PRIVATE, least=5, colluding=1) is None
    with pytest.raises(PolicyViolation, match="only secure sums may leave") as error:
        policy.check_rows(rows)
    assert rule_of(error) == "secure_sums_required"
    with pytest.raises(PolicyViolation, match="only secure sums may leave"):
        policy.check_private(len(rows), PRIVATE)


def test_a_model_of_secure_sums_may_leave(rows):
    policy, release = Policy(secure_sums_required=True), released(rows)
    assert broken(policy, release) == ["secure_sums_required"]
    assert broken(policy, secured(release)) == []
    found = {each.rule: each for each in policy.results(secured(release))}
    assert found["secure_sums_required"].value is True


def test_a_merge_with_what_is_no_secure_sum_is_none(rows):
    policy, one, other = Policy(secure_sums_required=True), released(rows), released(rows)
    both = fedpca.merge([secured(one), secured(other)])
    assert broken(policy, both) == []
    assert broken(policy, fedpca.merge([secured(one), other])) == ["secure_sums_required"]


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_a_sum_that_the_others_can_take_apart_is_none(rows, privacy):
    with pytest.raises(
        PolicyViolation, match="at least 2 owners beside those who collude must be in every sum, got 1"
    ):
        Policy(secure_sums_required=True).check_secure(rows, privacy=privacy, least=3, colluding=2)
    Policy().check_secure(rows, privacy=privacy, least=3, colluding=2)


@pytest.mark.parametrize(
    ("changes", "privacy", "reason"),
    [
        ({"least_rows": 101}, None, "at least 101 rows"),
        ({"least_rows": 101}, PRIVATE, "at least 101 rows"),
        ({"least_level": 30}, None, "one of 'feature 3' has 20"),
        ({"most_features_per_row": 0.02}, None, "0.02 features per row"),
        ({"most_directions_per_row": 0.02}, None, "0.02 directions per row"),
        ({"mean_allowed": False}, None, "the means of columns"),
        ({"mean_allowed": False}, replace(PRIVATE, center=None), "the means of columns"),
        ({"privacy_required": True}, None, "only private releases"),
        ({"largest_epsilon": 0.5}, PRIVATE, "at most 0.5 may be spent"),
        ({}, replace(PRIVATE, insecure_seed_for_tests=1), "comes from a seed"),
    ],
)
def test_all_other_rules_hold_for_secure_sums_as_well(rows, changes, privacy, reason):
    with pytest.raises(PolicyViolation, match=reason):
        Policy(**changes).check_secure(rows, privacy=privacy, least=5, colluding=1)


def test_private_rows_of_a_secure_sum_are_not_looked_at(rows, no_look):
    Policy(secure_sums_required=True).check_secure(rows, privacy=PRIVATE, least=5, colluding=1)
    with pytest.raises(PolicyViolation, match="only private releases"):
        Policy(privacy_required=True).check_secure(rows, least=5, colluding=1)


def test_several_broken_rules_are_all_named(rows):
    with pytest.raises(PolicyViolation, match=r"^least_rows: .*\. Also broken: least_level\.$"):
        Policy(least_rows=1000, least_level=50).check(Moments.from_rows(rows), rows)


def test_a_violation_survives_pickling(rows):
    with pytest.raises(PolicyViolation) as error:
        Policy(least_rows=101).check(Moments.from_rows(rows), rows)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.rule, again.limit) == (str(error.value), "least_rows", 101)


def test_what_is_no_summary_is_not_checked(rows):
    with pytest.raises(TypeError, match="got StreamingPCA; pass summary_"):
        Policy().check(StreamingPCA(2).fit(rows), rows)


def test_what_is_required_is_checked_before_rows_are_read(rows, no_look):
    with pytest.raises(PolicyViolation, match="privacy_required"):
        Policy(privacy_required=True).check_rows(rows)


def test_a_scaling_is_checked_too(rows):
    Policy().check(Scaling.from_rows(rows), rows)
    assert broken(Policy(), Scaling.from_rows(rows)) == ["least_level"]
    rows[4:, 0] = np.nan
    assert broken(Policy(), Scaling.from_rows(rows), rows) == ["least_rows"]
    assert broken(Policy.preset("strict"), Scaling.from_rows(rows), rows) == [
        "least_rows",
        "privacy_required",
    ]


def test_results_are_json_whatever_they_found():
    policy = Policy(**LOOSE)
    results = policy.results(Subspace.empty(3))
    assert inf in [result.value for result in results]
    json.dumps([result.to_json() for result in results], allow_nan=False)


def test_a_summary_of_no_rows_does_not_leave():
    assert "least_rows" in broken(Policy(), Subspace.empty(3))
    assert broken(Policy(**LOOSE), Subspace.empty(3)) == []


# --- rules with privacy ---


def released(rows, privacy=PRIVATE):
    return PrivatePCA(2, **privacy.settings).partial_fit(rows).release()


def test_rules_on_rows_are_waived_under_privacy(rng):
    wide = rng.normal(size=(40, 60))
    wide[:, 0] = np.arange(40) == 7
    results = {each.rule: each for each in Policy().results(released(wide))}
    assert {rule for rule, each in results.items() if each.result == "broken"} == set()
    for rule in ("most_features_per_row", "least_level", "most_directions_per_row"):
        assert (results[rule].result, results[rule].value) == ("waived", None)


def test_public_numbers_decide_under_privacy(rows):
    summary = released(rows)
    assert broken(Policy(least_rows=101), summary) == ["least_rows"]
    assert broken(Policy(largest_epsilon=1.0), summary) == []
    with pytest.raises(PolicyViolation, match=r"largest_epsilon: at most 0.5 may be spent, got 1"):
        Policy(largest_epsilon=0.5).check(summary)
    assert broken(Policy(privacy_required=True), summary) == []


def test_a_weak_promise_waives_nothing(rows):
    """Else a release with epsilon = 1e6 would leave without any rule."""
    summary = Moments.from_rows(rows)
    weak = Certificate(private=True, epsilon=1e6, delta=1e-6, mu=1e3, records=100)
    assert broken(Policy(), summary.with_about(certificate=weak)) == ["largest_epsilon"]
    certain = replace(weak, epsilon=1.0, delta=0.01)
    with pytest.raises(PolicyViolation, match=r"its delta, 0.01, is not below one over its rows"):
        Policy().check(summary.with_about(certificate=certain))
    seeded = released(rows, replace(PRIVATE, insecure_seed_for_tests=1))
    with pytest.raises(PolicyViolation, match="its noise came from a seed"):
        Policy().check(seeded)
    doubtful = replace(weak, epsilon=1.0, warnings=("the noise came from a bad day",))
    with pytest.raises(PolicyViolation, match="weakened"):
        Policy().check(summary.with_about(certificate=doubtful))


def test_every_owner_of_a_private_merge_needs_enough_rows(rows):
    merged = fedpca.merge([released(rows), released(rows[:8])])
    assert broken(Policy(), merged) == ["least_rows"]


def test_the_mean_of_a_private_release_is_decided_by_its_settings(rows):
    policy = Policy(mean_allowed=False)
    policy.check(released(rows))
    public = replace(PRIVATE, center=(5.0, 5.0, 0.5))
    assert broken(policy, released(rows, public)) == ["mean_allowed"]
    assert broken(policy, released(rows, replace(PRIVATE, center=None))) == ["mean_allowed"]


@pytest.fixture
def no_look(monkeypatch):
    """Whoever looks at rows fails."""

    def look(rows):
        raise AssertionError("rows were looked at")

    monkeypatch.setattr(RowCounts, "of", look)


def test_private_rows_are_not_looked_at(rows, no_look, tmp_path):
    policy = Policy(least_level=50)
    summary = released(rows)
    policy.check(summary, rows)
    assert policy.check_rows(rows, privacy=PRIVATE) is None
    publish(tmp_path, "north", 1, summary, policy=policy, rows=rows)


def test_rows_are_refused_before_they_are_fitted(rows, tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows, columns=["a", "b", "smoker"]).to_csv(path, index=False)
    reader = open_rows(path)
    assert reader.n_rows is None
    assert Policy().check_rows(reader) == RowCounts(100, 100, 20, "smoker")
    for each, privacy in ((reader, None), (rows, None), (reader, PRIVATE), (rows, PRIVATE)):
        with pytest.raises(PolicyViolation, match="least_rows"):
            Policy(least_rows=101).check_rows(each, privacy=privacy)
    with pytest.raises(PolicyViolation, match="privacy_required"):
        Policy(privacy_required=True).check_rows(reader)
    with pytest.raises(PolicyViolation, match="most_features_per_row"):
        Policy(most_features_per_row=0.02).check_rows(reader)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"insecure_seed_for_tests": 1}, "comes from a seed"),
        ({"epsilon": 11.0}, "largest_epsilon: at most 10 may be spent, got 11"),
    ],
)
def test_settings_that_promise_too_little_are_refused_before_anything_is_spent(
    rows, settings, reason, tmp_path
):
    privacy = replace(PRIVATE, ledger=tmp_path / "ledger", **settings)
    pca = PrivatePCA(2, **privacy.settings).partial_fit(rows)
    with pytest.raises(PolicyViolation, match=reason):
        pca.release(policy=Policy())
    assert pca.ledger_.entries == []
    assert not (tmp_path / "ledger").exists()


def test_a_release_that_may_leave_is_the_same_with_a_policy(rows):
    pca = PrivatePCA(2, **PRIVATE.settings).partial_fit(rows)
    with pytest.raises(PolicyViolation, match="least_rows"):
        pca.release(policy=Policy(least_rows=500))
    first = pca.release(policy=Policy())
    assert pca.release() == first


# --- carriers ---


def test_publishing_asks_the_policy_first(rows, tmp_path, caplog):
    summary = Moments.from_rows(rows)
    for counted, rule in ((None, "least_level"), (rows[:4], "least_rows")):
        with pytest.raises(PolicyViolation, match=rule):
            publish(tmp_path, "north", 1, summary, policy=Policy(), rows=counted)
    with pytest.raises(PolicyViolation, match="privacy_required"):
        publish(tmp_path, "north", 1, Scaling.from_rows(rows), policy=Policy.preset("strict"), rows=rows)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match=r"policy must be a Policy or None, got str; use Policy.load"):
        publish(tmp_path, "north", 1, summary, policy="policy.toml")
    with caplog.at_level(logging.INFO, "fedpca"):
        path = publish(tmp_path, "north", 1, summary, policy=Policy(), rows=rows)
        assert NO_POLICY not in caplog.text
        assert publish(tmp_path, "north", 1, summary) == path
    assert NO_POLICY in caplog.text


def test_an_aggregator_may_demand_rows_of_what_arrives(rows, tmp_path):
    aggregator = Aggregator(rank=1, limits=Limits(least_rows=20), store=tmp_path)
    with pytest.raises(
        SummaryRejected, match=r"at least least_rows=20 rows must be behind a summary, got 19;"
    ):
        aggregator.receive("small", 1, Moments.from_rows(rows[:19]))
    assert aggregator.receive("large", 1, Moments.from_rows(rows[:20]))
    alone = fedpca.merge(
        [replace(Moments.from_rows(rows * [1, 1, 0]), observed=[100, 100, 0]), Moments.from_rows(rows[:4])]
    )
    with pytest.raises(SummaryRejected, match="got 4 that alone know the same features"):
        aggregator.receive("gaps", 1, alone)
    aggregator.close()
    assert list(Aggregator(rank=1, limits=Limits(least_rows=21), store=tmp_path).quarantined) == ["large"]


@pytest.mark.parametrize("value", [-1, 2.5, "10", nan, True])
def test_least_rows_of_an_aggregator_is_a_whole_number(value):
    with pytest.raises((TypeError, ValueError), match="least_rows"):
        Limits(least_rows=value)


def test_real_patients_under_every_preset():
    """569 tumors and 30 measurements leave a research environment, and under "strict" only with noise."""
    data = load_breast_cancer().data
    pca = StreamingPCA(5).fit(data)
    for name in ("default", "ohdsi", "tre"):
        Policy.preset(name).check(pca.summary_, data)
    assert broken(Policy.preset("strict"), pca.summary_, data) == ["privacy_required"]
    assert broken(Policy(), StreamingPCA(5).fit(data[:60]).summary_, data[:60]) == [
        "most_features_per_row",
        "most_directions_per_row",
    ]
