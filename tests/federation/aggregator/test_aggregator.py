"""A model depends on the latest word of every child, and on nothing else: not order, not crashes."""

import itertools
import os
import pickle
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers import assert_summarizes, bits, disk_full, rows_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

import fedpca
from fedpca import Aggregator, Moments, Privacy, PrivatePCA, Subspace
from fedpca.errors import SummaryRejected
from fedpca.federation import FolderStore, Limits
from fedpca.summaries.about import About


def storm(n_children=5, n_versions=4):
    """Messages of several children, each version with more rows."""
    return [
        (f"child {c}", v, Subspace.from_rows(rows_of(c, 20 * (v + 1)), rank=6))
        for c in range(n_children)
        for v in range(n_versions)
    ]


def test_the_model_is_that_of_all_rows():
    tables = [rows_of(seed) for seed in range(6)]
    aggregator = Aggregator()
    for child, rows in enumerate(tables):
        assert aggregator.receive(f"{child}", 0, Subspace.from_rows(rows))
    assert_summarizes(aggregator.model(), tables)
    assert list(aggregator.children) == [str(child) for child in range(6)]
    assert sum(child.count for child in aggregator.children.values()) == 360
    assert "6 children, 360 rows" in repr(aggregator)


def test_any_order_and_any_repetition_gives_the_same_bits():
    messages, models = storm(), set()
    for seed in range(20):
        shuffled = messages * 2
        random.Random(seed).shuffle(shuffled)
        aggregator = Aggregator(rank=3)
        for message in shuffled:
            aggregator.receive(*message)
        models.add(bits(aggregator.model()))
    assert len(models) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12))
def test_the_latest_version_of_each_child_counts(messages):
    aggregator, latest = Aggregator(), {}
    for child, version in messages:
        summary = Subspace.from_rows(rows_of(ord(child), 10 + version, 3))
        newer = version > latest.get(child, -1)
        assert aggregator.receive(child, version, summary) is newer
        latest[child] = max(version, latest.get(child, -1))
    assert {name: child.version for name, child in aggregator.children.items()} == latest
    if latest:
        assert aggregator.model().count == sum(10 + version for version in latest.values())


def test_a_model_can_be_had_at_any_time_and_is_computed_once():
    aggregator = Aggregator(rank=2)
    with pytest.raises(ValueError, match="no child has contributed"):
        aggregator.model()
    aggregator.receive("a", 0, Subspace.from_rows(rows_of(0)))
    first = aggregator.model()
    assert aggregator.model() is first
    aggregator.receive("b", 0, Subspace.from_rows(rows_of(1)))
    assert aggregator.model() is not first
    assert aggregator.model().count == 120


def test_an_aggregator_is_a_child_of_its_parent():
    tables = [rows_of(seed) for seed in range(12)]
    regions = [Aggregator(rank=4) for _ in range(3)]
    root = Aggregator(rank=4)
    for index, rows in enumerate(tables):
        region = regions[index % 3]
        region.receive(f"{index}", 0, Subspace.from_rows(rows))
        root.receive(f"region {index % 3}", region.version, region.summary())  # after every change
    flat = Aggregator(rank=4)
    for index, rows in enumerate(tables):
        flat.receive(f"{index}", 0, Subspace.from_rows(rows))
    assert root.model().count == flat.model().count == 720
    assert fedpca.metrics.affinity(root.model(), flat.model()) > 1 - 1e-9
    np.testing.assert_allclose(root.model().singular_values, flat.model().singular_values, rtol=1e-9)


def test_a_child_that_leaves_takes_its_rows_with_it():
    aggregator = Aggregator()
    for child in "abc":
        aggregator.receive(child, 3, Subspace.from_rows(rows_of(ord(child))))
    version = aggregator.version
    assert aggregator.withdraw("b")
    assert not aggregator.withdraw("b")
    assert not aggregator.withdraw("nobody")
    assert_summarizes(aggregator.model(), [rows_of(ord("a")), rows_of(ord("c"))])
    assert aggregator.version > version
    assert not aggregator.receive("b", 3, Subspace.from_rows(rows_of(ord("b"))))  # a late duplicate
    assert aggregator.model().count == 120
    assert aggregator.receive("b", 4, Subspace.from_rows(rows_of(ord("b"))))
    assert aggregator.model().count == 180


def test_history_says_who_did_what():
    aggregator = Aggregator()
    aggregator.receive("a", 1, Subspace.from_rows(rows_of(0)))
    aggregator.receive("a", 1, Subspace.from_rows(rows_of(0)))
    with pytest.raises(SummaryRejected):
        aggregator.receive("b", 1, "hello")
    aggregator.withdraw("a")
    assert [(e.child, e.version, e.what) for e in aggregator.history] == [
        ("a", 1, "accepted"),
        ("b", 1, "rejected"),
        ("a", 1, "withdrawn"),  # the owner's next version is still free
    ]
    assert aggregator.history[0].count == 60
    assert "str" in aggregator.history[1].reason


def models_of(aggregator):
    return [event for event in aggregator.history if event.what == "model"]


def test_history_says_how_the_model_moved():
    aggregator = Aggregator(rank=3)
    assert not aggregator.record()  # there is none yet
    expected = [None]
    for seed in range(4):
        before = aggregator.model().components if seed else None
        aggregator.receive(f"{seed}", 1, Subspace.from_rows(rows_of(seed)))
        assert aggregator.record()
        assert not aggregator.record()  # it has not moved
        if seed:
            expected.append(subspace_angles(before.T, aggregator.model().components.T).max())
    events = models_of(aggregator)
    assert [(event.count, event.children) for event in events] == [(60, 1), (120, 2), (180, 3), (240, 4)]
    versions = [event.version for event in events]
    assert versions == sorted(set(versions))
    assert events[0].angle is None
    np.testing.assert_allclose([event.angle for event in events[1:]], expected[1:], atol=1e-9)
    assert events[-1].explained == aggregator.model().explained_variance_ratio.sum()


def test_after_a_restart_the_record_goes_on(tmp_path):
    for seed in range(3):
        aggregator = Aggregator(rank=2, store=tmp_path)
        assert not aggregator.record()  # the model that was recorded last
        aggregator.receive(f"{seed}", 1, Subspace.from_rows(rows_of(seed)))
        assert aggregator.record()
    assert [event.angle is None for event in models_of(aggregator)] == [True, False, False]
    aggregator.receive("3", 1, Subspace.from_rows(rows_of(3)))  # and killed before it was recorded
    aggregator.close()
    again = Aggregator(rank=2, store=tmp_path)
    assert again.record()
    assert models_of(again)[-1].angle is None
    assert models_of(again)[-1].count == 240


def test_models_that_cannot_be_compared_have_no_angle():
    aggregator = Aggregator()
    aggregator.receive("a", 1, Subspace.from_rows(np.ones((5, 4))))  # rows that do not vary
    aggregator.record()
    aggregator.receive("b", 1, Subspace.from_rows(rows_of(0, n_features=4)))
    aggregator.record()
    aggregator.withdraw("a")
    aggregator.withdraw("b")
    assert not aggregator.record()
    aggregator.receive("c", 1, Subspace.from_rows(rows_of(0, n_features=3)))
    assert aggregator.record()
    assert [event.angle for event in models_of(aggregator)] == [None, None, None]


# --- what arrives is checked ---


def forged(**changes):
    """A summary that never met its own checks, as one that came by some other way than its constructor."""
    good = Subspace.from_rows(rows_of(0), rank=4)
    for name, value in changes.items():
        object.__setattr__(good, name, value)
    return good


BAD = {
    "nan": {"components": np.full((4, 8), np.nan)},
    "infinite": {"singular_values": np.array([np.inf, 1.0, 1.0, 1.0])},
    "not orthonormal": {"components": np.ones((4, 8))},
    "not ordered": {"singular_values": np.array([1.0, 2.0, 3.0, 4.0])},
    "negative": {"singular_values": np.array([4.0, 3.0, 2.0, -1.0])},
    "wrong shape": {"singular_values": np.ones(3)},
    "other features": {"components": np.eye(4, 9), "mean": np.zeros(9)},
    "energy above total": {"total": 1.0},
    "nan total": {"total": np.nan},
    "negative count": {"count": -5.0},
    "nan count": {"count": np.nan},
    "huge count": {"count": 1e300},
    "no rows": {"count": 0.0},
    "uncentered": {"centered": False, "mean": np.zeros(8)},
    "other names": {"about": About(tuple("hgfedcba"))},
    "names of another length": {"about": About(("a",))},
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_summary_is_refused_with_a_reason_and_the_rest_go_on(what):
    aggregator = Aggregator()
    named = Subspace.from_rows(rows_of(1)).with_about(names=tuple("abcdefgh"))
    aggregator.receive("good", 0, named)
    aggregator.receive("turncoat", 0, Subspace.from_rows(rows_of(2)))
    before = bits(aggregator.model())
    for child in ("bad", "turncoat"):
        with pytest.raises(SummaryRejected, match=child) as refusal:
            aggregator.receive(child, 7, forged(**BAD[what]))
        assert len(str(refusal.value)) > 30
    assert bits(aggregator.model()) == before
    assert [event.what for event in aggregator.history[2:]] == ["rejected", "rejected"]
    aggregator.receive("turncoat", 7, Subspace.from_rows(rows_of(2)))  # the version is still free


@pytest.mark.parametrize("thing", [None, "x", b"random bytes", 3, np.eye(3), {"components": 1}])
def test_what_is_no_summary_is_refused(thing):
    with pytest.raises(SummaryRejected, match="Subspace or Moments"):
        Aggregator().receive("a", 0, thing)


@pytest.mark.parametrize(
    ("child", "version"),
    [
        ("", 0),
        (3, 0),
        ("x" * 2000, 0),
        ("a", -1),
        ("a", 1.5),
        ("a", True),
        ("a", 2**63),
        ("\ud800", 0),
    ],
)
def test_names_and_versions_are_checked(child, version):
    with pytest.raises(SummaryRejected):
        Aggregator().receive(child, version, Subspace.from_rows(rows_of(0)))


def test_names_of_features_are_compared_with_those_of_all_children():
    """The first may have none: two others that disagree must not both be taken."""
    aggregator = Aggregator()
    aggregator.receive("nameless", 0, Subspace.from_rows(rows_of(0)))
    aggregator.receive("b", 0, Subspace.from_rows(rows_of(1)).with_about(names=tuple("abcdefgh")))
    with pytest.raises(SummaryRejected, match="same features in the same order"):
        aggregator.receive("c", 0, Subspace.from_rows(rows_of(2)).with_about(names=tuple("hgfedcba")))
    assert aggregator.model().count == 120


def test_what_is_expected_can_be_said_beforehand():
    aggregator = Aggregator(expected=Subspace.empty(8, about=About(tuple("abcdefgh"))))
    for summary, rule in (
        (Subspace.from_rows(rows_of(0)[:, :5]), "same features, got 8 and 5"),
        (Subspace.from_rows(rows_of(0), center=False), "uncentered"),
        (Subspace.from_rows(rows_of(0)).with_about(names=tuple("hgfedcba")), "same order"),
    ):
        with pytest.raises(SummaryRejected, match=rule):
            aggregator.receive("first", 0, summary)
    assert aggregator.receive("second", 0, Subspace.from_rows(rows_of(0)))


def test_a_forged_count_is_refused_where_a_limit_is_set():
    aggregator = Aggregator(limits=Limits(max_rows=1000))
    with pytest.raises(SummaryRejected, match="at most 1000"):
        aggregator.receive("boaster", 0, forged(count=1e6))


# --- privacy ---


def private_release(privacy, seed=0, **changes):
    release = PrivatePCA(2, **privacy.settings).fit(rows_of(seed) - 0.1 * seed).release()
    return replace(release, **changes)


@pytest.mark.filterwarnings("ignore:n_components=")
def test_a_region_of_many_small_owners_may_have_the_noise_of_all():
    privacy = Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)
    region, root = Aggregator(privacy=privacy), Aggregator(privacy=privacy)
    for seed in range(40):
        rows = np.random.default_rng(seed).normal(size=(20, 6)) / 10
        region.receive(f"{seed}", 0, PrivatePCA(2, **privacy.settings).fit(rows).release().subspace())
    assert root.receive("region", region.version, region.summary())
    few = replace(region.summary(), count=30.0)
    with pytest.raises(SummaryRejected, match="30 rows cannot be in 40 releases"):
        root.receive("boaster", 1, few)


def test_private_releases_are_summed_and_others_refused():
    privacy = Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)
    aggregator = Aggregator(rank=2, privacy=privacy)
    for seed in range(3):
        aggregator.receive(f"{seed}", 0, private_release(privacy, seed))
    assert aggregator.model().certificate.merged == 3
    assert isinstance(aggregator.summary(), Moments)
    with pytest.raises(SummaryRejected, match="no privacy certificate"):
        aggregator.receive("clean", 0, Moments.from_rows(rows_of(0), center=False))
    with pytest.raises(SummaryRejected, match="epsilon is 2;"):
        aggregator.receive("loose", 0, private_release(replace(privacy, epsilon=2.0)))
    with pytest.raises(SummaryRejected, match="adjacency"):
        aggregator.receive("other", 0, private_release(replace(privacy, adjacency="zero-out")))
    with pytest.raises(SummaryRejected, match="came from a seed"):
        aggregator.receive("seeded", 0, private_release(replace(privacy, insecure_seed_for_tests=1)))
    with pytest.raises(SummaryRejected, match="more than 60 rows"):
        aggregator.receive("large", 0, private_release(privacy, scatter=np.eye(8) * 1e4))


# --- stores ---


def test_a_restart_gives_the_same_model_bit_for_bit(tmp_path):
    first = Aggregator(rank=3, store=tmp_path / "store")
    for message in storm():
        first.receive(*message)
    first.withdraw("child 2")
    first.close()
    again = Aggregator(rank=3, store=tmp_path / "store")
    assert bits(again.model()) == bits(first.model())
    assert again.children == first.children
    assert again.version == first.version
    assert again.history == first.history
    assert not again.receive("child 2", 3, storm()[0][2])  # the tombstone is there, too


@pytest.mark.parametrize(
    "child", ["../../etc/passwd", "a/b", ".hidden", "ünïcode", "x" * 900, "con", "a%2Fb", " "]
)
def test_no_name_leaves_the_folder_or_meets_another(tmp_path, child):
    store = tmp_path / "store"
    aggregator = Aggregator(store=store)
    aggregator.receive(child, 0, Subspace.from_rows(rows_of(0)))
    aggregator.receive("a", 0, Subspace.from_rows(rows_of(1)))
    assert {path.parent for path in tmp_path.rglob("*.state")} == {store}
    assert set(Aggregator(store=store).children) == {child, "a"}


def test_a_store_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    aggregator = Aggregator(store=tmp_path / "store")
    aggregator.receive("a", 0, Subspace.from_rows(rows_of(0)))
    before = bits(aggregator.model())

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match="No space left"):
            aggregator.receive("a", 1, Subspace.from_rows(rows_of(1)))
    assert bits(aggregator.model()) == before
    assert bits(Aggregator(store=tmp_path / "store").model()) == before
    assert list(tmp_path.rglob("*.part")) == []
    assert aggregator.receive("a", 1, Subspace.from_rows(rows_of(1)))


def test_moments_are_kept_as_moments(tmp_path):
    aggregator = Aggregator(store=tmp_path)
    moments = Moments.from_rows(rows_of(0))
    aggregator.receive("a", 0, moments)
    (kept,) = FolderStore(tmp_path).states().values()
    assert kept.message.summary == moments


SERVER = """
import sys
import numpy as np
from fedpca import Aggregator, Subspace

store, seed = sys.argv[1], int(sys.argv[2])
aggregator = Aggregator(rank=3, store=store)
rng = np.random.default_rng(seed)
print("ready", flush=True)
while True:
    child = f"child {rng.integers(6)}"
    version = aggregator.children[child].version + 1 if child in aggregator.children else 0
    rows = np.random.default_rng([int(child[-1]), version]).normal(size=(10 + version, 5))
    aggregator.receive(child, version, Subspace.from_rows(rows))
    print(child, version, sep=",", flush=True)          # the acknowledgement
"""


@pytest.mark.slow
@pytest.mark.long
def test_fifty_kills_in_a_storm_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path, fork):
    """The aggregator is killed at random moments; after each, what it acknowledged is there, once."""
    store, rng, latest = tmp_path / "store", random.Random(0), {}
    for kill in range(50):
        process = fork(SERVER, store, kill)
        assert process.stdout.readline() == "ready\n"
        for _ in range(rng.randrange(1, 6)):
            acknowledge(process.stdout.readline(), latest)
        time.sleep(rng.uniform(0, 0.005))
        process.kill()
        status, printed, _ = process.wait()
        assert status == -signal.SIGKILL
        for line in printed.splitlines(keepends=True):  # what was acknowledged before the kill reached it
            acknowledge(line, latest)
        found = Aggregator(rank=3, store=store)
        for child, version in latest.items():
            assert found.children[child].version >= version
        for child, known in found.children.items():  # at most one more: taken, but not acknowledged in time
            assert known.version <= latest.get(child, -1) + 1
            assert known.count == 10 + known.version
            latest[child] = known.version
    assert sum(latest.values()) > 100


def acknowledge(line, latest):
    if line.endswith("\n"):
        child, version = line.strip().split(",")
        latest[child] = max(latest.get(child, -1), int(version))


def test_threads_may_send_at_once():
    from concurrent.futures import ThreadPoolExecutor

    messages = storm(8, 5)
    aggregator = Aggregator(rank=3)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda message: aggregator.receive(*message), messages))
    alone = Aggregator(rank=3)
    for message in messages:
        alone.receive(*message)
    assert bits(aggregator.model()) == bits(alone.model())


def test_children_that_differ_only_in_case_or_order_are_told_apart():
    names = ["a", "A", "b", "B"]
    models = set()
    for order in itertools.permutations(names):
        aggregator = Aggregator(rank=2)
        for name in order:
            aggregator.receive(name, 0, Subspace.from_rows(rows_of(names.index(name))))
        models.add(bits(aggregator.model()))
    assert len(models) == 1
    assert pickle.loads(pickle.dumps(aggregator.model())) == aggregator.model()
