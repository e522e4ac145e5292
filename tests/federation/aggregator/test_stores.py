"""A store opens whatever is in it, has one writer, and forgets nothing that was acknowledged."""

import errno
import json
import logging
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from helpers import bits, rows_of

from fedpca import Aggregator, Moments, Privacy, PrivatePCA, Subspace
from fedpca._util import files
from fedpca.errors import SummaryRejected
from fedpca.federation import ChildEvent, FolderStore, Limits, MemoryStore, Message, Robust, State
from fedpca.federation.aggregator import store as store_module
from fedpca.federation.aggregator.tree import MergeTree


def summary_of(seed, **settings):
    return Subspace.from_rows(rows_of(seed), **settings)


def contents_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def filled(folder, children="abc", **rules):
    """A store with the versions 1 of these children, closed."""
    with Aggregator(rank=3, store=folder, **rules) as aggregator:
        for seed, child in enumerate(children):
            aggregator.receive(child, 1, summary_of(seed))
    return aggregator


# --- what cannot be read ---

POISON = {
    "zero length": b"",
    "torn": State(Message("b", 9, summary_of(0)), 5).encode()[:-100],
    "nonsense": b"nonsense",
    "no state": Message("b", 9, summary_of(0)).encode(),
    "of another": State(Message("c", 9, summary_of(0)), 5).encode(),
    "not a version": State(Message("b", 9, summary_of(0)), 5)
    .encode()
    .replace(b'"aggregator_version":5', b'"aggregator_version":-5'),
}


@pytest.mark.parametrize("what", POISON)
def test_a_state_that_cannot_be_read_is_quarantined_by_name_and_the_others_count(tmp_path, caplog, what):
    version = filled(tmp_path).version
    (tmp_path / "b.state").write_bytes(POISON[what])
    again = Aggregator(rank=3, store=tmp_path).__enter__()
    assert list(again.children) == ["a", "c"]
    assert again.version > version  # the model is another
    assert list(again.quarantined) == ["b"]
    assert len(again.quarantined["b"]) > 15
    assert "'b'" in caplog.text
    assert (tmp_path / "b.quarantined").read_bytes() == POISON[what]
    assert again.history[-1].what == "quarantined"
    assert again.receive("b", 1, summary_of(1))  # the child may come back
    again.close()
    third = Aggregator(rank=3, store=tmp_path)
    assert list(third.children) == ["a", "b", "c"]
    assert list(third.quarantined) == ["b"]  # it is still there to be looked at
    assert third.quarantined == again.quarantined
    assert bits(third.model()) == bits(again.model())


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop"])
def test_a_state_that_is_not_a_file_is_quarantined_and_never_waited_for(tmp_path, what):
    filled(tmp_path)
    path = tmp_path / "b.state"
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if what == "device" else path)
    again = Aggregator(rank=3, store=tmp_path)
    assert list(again.children) == ["a", "c"]
    assert again.quarantined == {"b": "b.state is not a file."}
    assert os.path.lexists(path)  # until somebody writes
    assert again.receive("b", 1, summary_of(1))
    again.close()
    assert list(Aggregator(rank=3, store=tmp_path).children) == ["a", "b", "c"]


def test_a_copy_of_a_state_does_not_replace_it(tmp_path):
    filled(tmp_path)
    old = (tmp_path / "a.state").read_bytes()
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("a", 2, summary_of(9))
    (tmp_path / "a_backup.state").write_bytes(old)
    again = Aggregator(store=tmp_path)
    assert again.versions["a"] == 2
    assert list(again.quarantined) == ["a_backup"]
    assert "a.state" in again.quarantined["a_backup"]


def test_a_model_file_among_the_states_is_quarantined(tmp_path):
    filled(tmp_path)
    summary_of(0).save(tmp_path / "mine.state")
    assert list(Aggregator(store=tmp_path).quarantined) == ["mine"]


def test_names_of_quarantined_states_are_those_of_the_children(tmp_path):
    filled(tmp_path, ["North/1"])
    (path,) = tmp_path.glob("*.state")
    path.write_bytes(b"")
    with Aggregator(store=tmp_path) as aggregator:
        assert list(aggregator.quarantined) == ["North/1"]
    path.write_bytes(b"again")
    with Aggregator(store=tmp_path) as aggregator:
        assert list(aggregator.quarantined) == ["North/1", "North/11"]
    assert len(list(tmp_path.glob("*.quarantined"))) == 2


# --- states that break the rules ---


@pytest.mark.parametrize(
    "rules",
    [
        {"limits": Limits(max_rows=50)},
        {"limits": Limits(max_rms=0.01)},
        {"privacy": Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)},
    ],
)
def test_states_are_checked_against_the_rules_of_the_aggregator_that_opens_them(tmp_path, rules):
    filled(tmp_path, "a")
    before = contents_of(tmp_path)
    strict = Aggregator(store=tmp_path, **rules)
    for _ in range(2):
        assert dict(strict.children) == dict(strict.versions) == {}
        assert list(strict.quarantined) == ["a"]
        with pytest.raises(ValueError, match="no child has contributed"):
            strict.model()
        if strict.version == json.loads(before["version.json"])["version"]:
            assert contents_of(tmp_path) == before  # a reader sets nothing aside
            strict.__enter__()
    assert (tmp_path / "a.quarantined").read_bytes() == before["a.state"]
    strict.close()
    assert dict(Aggregator(store=tmp_path).children) == {}


def test_a_clean_child_does_not_get_into_a_private_model(tmp_path):
    privacy = Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)
    release = PrivatePCA(2, **privacy.settings).fit(rows_of(0)).release()
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("clean", 1, Subspace.from_rows(rows_of(1), center=False))
        aggregator.receive("private", 1, release)
    again = Aggregator(store=tmp_path, privacy=privacy)
    assert list(again.children) == ["private"]
    assert "no privacy certificate" in again.quarantined["clean"]
    assert again.model().certificate.private


def test_most_states_decide_which_features_a_store_has(tmp_path):
    filled(tmp_path)
    wrong = State(Message("wrong", 1, Subspace.from_rows(rows_of(0)[:, :3])), 1)  # older than the others
    (tmp_path / "wrong.state").write_bytes(wrong.encode())
    again = Aggregator(store=tmp_path)
    assert list(again.children) == ["a", "b", "c"]
    assert "same features" in again.quarantined["wrong"]


def test_a_child_on_whose_account_there_is_no_model_is_named_and_left_out(monkeypatch, caplog):
    """Whatever goes wrong although every message was tried."""
    aggregator = Aggregator(rank=2)
    for seed, child in enumerate("abcdefghijkl"):
        aggregator.receive(child, 1, summary_of(seed))
    merged = MergeTree._merge_parts

    def fails(tree, parts):
        if any(part.count == 7 for part in parts):
            raise TypeError("seven")
        return merged(tree, parts)

    monkeypatch.setattr(MergeTree, "_merge_parts", fails)
    aggregator.receive("culprit", 1, Subspace.from_rows(rows_of(3, 7)))
    before = aggregator.version
    assert aggregator.record()
    assert aggregator.model().count == 12 * 60
    assert list(aggregator.quarantined) == ["culprit"]
    assert "seven" in aggregator.quarantined["culprit"]
    assert "'culprit'" in caplog.text
    assert aggregator.version > before
    assert [e.child for e in aggregator.history if e.what == "quarantined"] == ["culprit"]


def test_if_there_are_several_culprits_the_last_to_come_are_left_out(monkeypatch):
    aggregator = Aggregator(rank=2)
    for seed, child in enumerate("edcba"):
        aggregator.receive(child, 1, summary_of(seed))
    merged = MergeTree._merge_parts

    def fails(tree, parts):
        if sum(part.count for part in parts) > 120:
            raise ValueError("more than two")
        return merged(tree, parts)

    monkeypatch.setattr(MergeTree, "_merge_parts", fails)
    assert aggregator.model().count == 120
    assert list(aggregator.children) == ["d", "e"]


# --- one writer ---


def test_a_second_writer_is_refused_with_a_remedy_and_readers_are_not(tmp_path):
    first = Aggregator(rank=3, store=tmp_path)
    first.receive("a", 1, summary_of(0))
    second = Aggregator(rank=3, store=tmp_path)
    assert second.model() == first.model()
    for write in (
        lambda: second.receive("b", 1, summary_of(1)),
        lambda: second.withdraw("a"),
        second.__enter__,
    ):
        with pytest.raises(BlockingIOError, match=r"another aggregator writes to the store .*close\(\)"):
            write()
    first.close()
    assert second.receive("b", 1, summary_of(1))
    with pytest.raises(BlockingIOError):
        first.receive("c", 1, summary_of(2))


def test_a_withdrawal_by_another_survives(tmp_path):
    filled(tmp_path)
    run = Aggregator(rank=3, store=tmp_path)  # has read the store
    with Aggregator(rank=3, store=tmp_path) as other:
        other.withdraw("b")
    assert run.receive("a", 2, summary_of(7))  # reads again before it writes
    assert list(run.children) == ["a", "c"]
    run.close()
    assert list(Aggregator(store=tmp_path).children) == ["a", "c"]


WRITER = """
import sys, time
from fedpca import Aggregator, Subspace
aggregator = Aggregator(store=sys.argv[1])
aggregator.receive("a", 1, Subspace.from_rows([[1.0, 2.0], [3.0, 4.0]]))
print("wrote", flush=True)
time.sleep(60)
"""


def test_another_process_cannot_write_until_the_first_is_gone(tmp_path, fork):
    process = fork(WRITER, tmp_path)
    assert process.stdout.readline() == "wrote\n"
    ours = Aggregator(store=tmp_path)
    assert list(ours.children) == ["a"]
    with pytest.raises(BlockingIOError):
        ours.withdraw("a")
    process.kill()
    process.wait()
    assert ours.withdraw("a")


def test_a_store_is_unlocked_when_its_aggregator_is_gone(tmp_path):
    Aggregator(store=tmp_path).receive("a", 1, summary_of(0))
    Aggregator(store=tmp_path).receive("b", 1, summary_of(1))
    assert list(Aggregator(store=tmp_path).children) == ["a", "b"]


FORKED = """
import os, sys
from fedpca import Aggregator, Subspace
def rows(count):
    return Subspace.from_rows([[float(number), number % 3.0] for number in range(count)])
aggregator = Aggregator(store=sys.argv[1])
aggregator.receive("north", 1, rows(5))
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
try:
    print(aggregator.receive("north", 2 if pid else 5, rows(9)), flush=True)
except BlockingIOError as error:
    print(error, flush=True)
if not pid:
    os._exit(0)
aggregator.close()
if os.fork() == 0:  # of who holds no lock
    print(aggregator.receive("east", 1, rows(7)), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_does_not_write_under_the_lock_of_its_parent(tmp_path, fork):
    child, parent, later = fork(FORKED, tmp_path).wait()[1].splitlines()
    assert "another aggregator writes to the store" in child
    assert parent == later == "True"
    assert Aggregator(store=tmp_path).versions == {"north": 2, "east": 1}


# --- readers ---


def during_a_load(monkeypatch, change):
    """Calls `change` once, when a reader has read the first state."""
    read, left = FolderStore._read_state, [change]

    def reading(store, path):
        state = read(store, path)
        if left and not store._is_writer:
            left.pop()()
        return state

    monkeypatch.setattr(FolderStore, "_read_state", reading)


@pytest.mark.parametrize("replaced", ["the lock", "the folder"])
def test_who_writes_to_a_store_that_was_replaced_locks_it_again(tmp_path, replaced):
    folder = tmp_path / "store"
    one = Aggregator(rank=2, store=folder)
    one.receive("north", 1, summary_of(1))
    if replaced == "the lock":
        (folder / "lock").unlink()
    else:
        folder.rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", folder)
    other = Aggregator(rank=2, store=folder)
    assert other.receive("south", 1, summary_of(2))
    with pytest.raises(BlockingIOError):
        one.receive("north", 2, summary_of(3))
    other.close()
    assert one.receive("north", 2, summary_of(3))
    assert one.versions == {"north": 2, "south": 1}
    assert one.model() == Aggregator(rank=2, store=folder).model()


@pytest.mark.parametrize("change", ["receive", "withdraw", "quarantine"])
def test_a_reader_has_the_version_of_what_it_read(tmp_path, monkeypatch, change):
    """Else a parent takes an old summary under a new version, and refuses the right one for good."""
    writer, root = filled(tmp_path), Aggregator(rank=3)
    root.receive("region", writer.version, writer.summary())
    changes = {
        "receive": lambda: writer.receive("a", 2, summary_of(7)),
        "withdraw": lambda: writer.withdraw("a"),
        "quarantine": lambda: writer._quarantine(writer.__enter__()._states["a"], "a test"),
    }
    during_a_load(monkeypatch, changes[change])
    for _ in range(2):  # while the writer writes, and afterwards
        region = Aggregator(rank=3, store=tmp_path)
        assert region.version <= writer.version
        root.receive("region", region.version, region.summary())
    assert bits(root.model()) == bits(Aggregator(rank=3, store=tmp_path).model())
    assert root.model().count == writer.model().count


def test_a_reader_of_a_store_that_never_rests_has_no_newer_version_than_states(tmp_path, monkeypatch):
    writer = filled(tmp_path)
    monkeypatch.setattr(store_module, "_SETTLING", 0.05)
    now, versions = FolderStore.now, iter(range(2, 10**6))

    def moving(store):
        if not store._is_writer:
            writer.receive("a", next(versions), summary_of(7))
        return now(store)

    monkeypatch.setattr(FolderStore, "now", moving)
    reader = Aggregator(rank=3, store=tmp_path)
    states = {child: state.version for child, state in reader._states.items()}
    assert reader.version == max(states.values()) <= writer.version


def test_a_reader_of_states_of_several_moments_has_a_version_that_is_older_than_all(tmp_path, monkeypatch):
    """A parent that took a mixture under the newest version would refuse what that version has."""
    writer, root = filled(tmp_path), Aggregator(rank=3)
    monkeypatch.setattr(store_module, "_SETTLING", 0.0)
    read, changed = FolderStore._read_state, []

    def reading(store, path):
        state = read(store, path)
        if not changed:  # what was read first is replaced, and then what is read next
            changed.append(state.message.child)
            changed.extend({*writer.children} - {*changed})
            for child in changed:
                writer.receive(child, 2, summary_of(7))
        return state

    monkeypatch.setattr(FolderStore, "_read_state", reading)
    region = Aggregator(rank=3, store=tmp_path)
    assert changed
    root.receive("region", region.version, region.summary())
    monkeypatch.setattr(FolderStore, "_read_state", read)
    region = Aggregator(rank=3, store=tmp_path)
    root.receive("region", region.version, region.summary())
    assert bits(root.model()) == bits(region.model()) == bits(writer.model())


def test_a_reader_changes_nothing_and_stops_no_writer(tmp_path, monkeypatch):
    writer = filled(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "b.state").write_bytes(b"damaged")
    (tmp_path / ".fedpca-0123456789abcdef.part").write_bytes(b"half a state")
    before = contents_of(tmp_path)
    for rules in ({}, {"limits": Limits(max_rows=50)}):
        reader = Aggregator(store=tmp_path, **rules)
        assert "b" in reader.quarantined
        assert reader.version == writer.version
        assert reader.history
        assert contents_of(tmp_path) == before
    during_a_load(monkeypatch, lambda: writer.receive("d", 1, summary_of(3)))
    assert list(Aggregator(store=tmp_path).children) == ["a", "c", "d"]


@pytest.mark.parametrize("name", ["version.json", "history.jsonl", "lock"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, name, kind):
    filled(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name) if kind == "pipe" else (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} must be a file, and is a folder, a pipe or a device"):
        Aggregator(store=tmp_path).receive("d", 1, summary_of(3))


@pytest.mark.parametrize("version", [2**63 - 1, 2**53 + 1])
def test_a_version_that_no_aggregator_reaches_is_as_good_as_torn(tmp_path, version):
    filled(tmp_path)
    (tmp_path / "version.json").write_text(json.dumps({"version": version, "states": "0"}))
    with Aggregator(store=tmp_path) as aggregator:
        assert aggregator.receive("d", 1, summary_of(3))
    assert list(Aggregator(store=tmp_path).children) == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="version must be at most"):
        State(Message("a", 1, None), version)


# --- what a quarantine does not forget ---


@pytest.mark.parametrize("how", ["damaged", "against a rule"])
def test_an_old_version_stays_old_after_a_quarantine(tmp_path, how):
    with Aggregator(store=tmp_path) as aggregator:
        for version in (1, 2):
            aggregator.receive("a", version, summary_of(version))
        aggregator.receive("a", 3, Subspace.from_rows(rows_of(3, 99)))
        aggregator.receive("b", 1, summary_of(9))
    rules = {}
    if how == "damaged":
        (tmp_path / "a.state").write_bytes(b"damaged")
    else:
        rules = {"limits": Limits(max_rows=80)}
    Aggregator(store=tmp_path, **rules).__enter__().close()
    for _ in range(2):  # after another restart, too
        with Aggregator(store=tmp_path) as aggregator:
            assert list(aggregator.versions) == ["b"]
            assert not aggregator.receive("a", 2, summary_of(2))
            assert list(aggregator.children) == ["b"]
    with Aggregator(store=tmp_path) as aggregator:
        assert aggregator.receive("a", 3, summary_of(3))  # it was not at fault
    assert Aggregator(store=tmp_path).versions == {"a": 3, "b": 1}


# --- versions ---


def test_versions_of_a_region_only_grow(tmp_path):
    """Whatever versions its children use, and if somebody removes their files."""
    seen = []
    with Aggregator(store=tmp_path) as region:
        for child, version in (("a", 2**63 - 1), ("b", 10**18), ("c", 0), ("a", 5), ("c", 1)):
            region.receive(child, version, summary_of(len(child)))
            seen.append(region.version)
        region.withdraw("b")
        seen.append(region.version)
    assert seen[2] == seen[3]  # "a", 5 is older
    assert sorted(set(seen)) == sorted(dict.fromkeys(seen))
    assert max(seen) < 2**53
    again = Aggregator(store=tmp_path)
    assert again.version == seen[-1]
    state = (tmp_path / "a.state").read_bytes()
    (tmp_path / "a.state").unlink()
    assert Aggregator(store=tmp_path).version == seen[-1]  # a reader does not add to it
    with Aggregator(store=tmp_path) as writer:
        without = writer.version
    assert Aggregator(store=tmp_path).version == without > seen[-1]
    (tmp_path / "a.state").write_bytes(state)
    with Aggregator(store=tmp_path) as writer:
        assert writer.version > without
    for path in tmp_path.iterdir():
        path.unlink()
    with Aggregator(store=tmp_path) as lost:  # all of it: the clock is behind the counter
        lost.receive("a", 1, summary_of(0))
        assert lost.version > seen[-1] - 10


def test_states_put_back_are_noticed_whatever_their_versions_add_up_to(tmp_path):
    states = {
        version: State(Message(child, 1, summary_of(0)), version)
        for child, version in (("a", 10), ("b", 13), ("a", 11), ("b", 12))
    }
    store = FolderStore(tmp_path)
    for version in (10, 13):
        store.put(states[version])
    store.close()
    for version in (11, 12):
        (tmp_path / f"{states[version].message.child}.state").write_bytes(states[version].encode())
    with Aggregator(store=tmp_path) as aggregator:
        assert aggregator.version > 13


def test_children_that_count_in_nanoseconds_do_not_break_a_region():
    region, root = Aggregator(rank=2), Aggregator(rank=2)
    for child in range(20):
        region.receive(f"{child}", 1_800_000_000_000_000_000 + child, summary_of(child))
        assert root.receive("region", region.version, region.summary())
    assert root.model().count == 1200


def test_a_crash_between_a_state_and_the_counter_makes_the_version_grow(tmp_path):
    aggregator = filled(tmp_path)
    (tmp_path / "version.json").write_text('{"vers')
    assert Aggregator(store=tmp_path).version == aggregator.version  # that of the newest state
    with Aggregator(store=tmp_path) as again:
        assert again.version == aggregator.version + 1
    assert Aggregator(store=tmp_path).version == again.version


@pytest.mark.parametrize("step", ["fsync_dir", "counter"])
@pytest.mark.parametrize("change", ["receive", "replace", "withdraw"])
def test_a_write_that_fails_half_way_leaves_memory_and_disk_alike(tmp_path, monkeypatch, step, change):
    filled(tmp_path)
    aggregator = Aggregator(rank=3, store=tmp_path)

    def full(*_args, **_settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = store_module.open_file

    def but_for_the_counter(path, flags):
        return full() if path.name == "version.json" and flags & os.O_CREAT else opened(path, flags)

    with monkeypatch.context() as patch, suppress(OSError):
        if step == "counter":
            patch.setattr(store_module, "open_file", but_for_the_counter)
        else:
            patch.setattr(files, step, full)
        if change == "withdraw":
            aggregator.withdraw("b")
        else:
            aggregator.receive("d" if change == "receive" else "b", 2, summary_of(3))
    assert aggregator.receive("e", 1, summary_of(4))
    model, version = bits(aggregator.model()), aggregator.version
    aggregator.close()
    again = Aggregator(rank=3, store=tmp_path)
    assert again.versions == aggregator.versions
    assert bits(again.model()) == model
    assert again.version >= version


def test_a_culprit_that_cannot_be_set_aside_stops_nobody(tmp_path, monkeypatch):
    filled(tmp_path)
    aggregator = Aggregator(rank=3, store=tmp_path)
    aggregator.receive("culprit", 1, Subspace.from_rows(rows_of(3, 7)))
    merged = MergeTree._merge_parts

    def fails(tree, parts):
        if any(part.count == 7 for part in parts):
            raise TypeError("seven")
        return merged(tree, parts)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MergeTree, "_merge_parts", fails)
    monkeypatch.setattr(FolderStore, "log", full)
    with pytest.raises(OSError, match="No space"):
        aggregator.model()
    assert aggregator.model().count == 3 * 60


def test_withdrawing_leaves_the_next_version_to_the_owner(tmp_path):
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("north", 1, summary_of(0))
        aggregator.withdraw("north")
    with Aggregator(store=tmp_path) as aggregator:
        assert aggregator.versions == {"north": 1}
        assert not aggregator.receive("north", 1, summary_of(0))
        assert aggregator.receive("north", 2, summary_of(0))


# --- senders ---


def test_a_name_belongs_to_the_sender_that_used_it_first(tmp_path):
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("north", 1, summary_of(0), sender="key of north")
        aggregator.receive("old", 1, summary_of(1))
        aggregator.receive("old", 2, summary_of(1), sender="key of old")
    with Aggregator(store=tmp_path) as aggregator:
        for version in (1, 10**18):
            for sender in ("key of evil", ""):
                with pytest.raises(SummaryRejected, match=r"belongs to sender 'key of north'.*withdraw"):
                    aggregator.receive("north", version, summary_of(2), sender=sender)
        with pytest.raises(SummaryRejected, match="belongs to sender 'key of old'"):
            aggregator.receive("old", 3, summary_of(2), sender="key of evil")
        assert aggregator.receive("north", 2, summary_of(3), sender="key of north")
        aggregator.withdraw("north")  # a new key
        assert aggregator.receive("north", 3, summary_of(3), sender="new key of north")


@pytest.mark.parametrize("sender", [5, b"x", "x" * 2000])
def test_a_sender_is_text(sender):
    with pytest.raises(SummaryRejected, match="sender must"):
        Aggregator().receive("a", 1, summary_of(0), sender=sender)


# --- the history ---


def test_a_torn_line_of_history_is_left_out_and_the_next_one_is_whole(tmp_path):
    filled(tmp_path)
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("y", 1, summary_of(3))
        assert aggregator.record()
    events = FolderStore(tmp_path).history()
    assert [event.what for event in events] == ["accepted", "accepted", "accepted", "model"]
    assert not Aggregator(store=tmp_path).record()


@pytest.mark.parametrize(
    "line",
    ['{"what": "accepted"}', '{"what": "model", "count": 1}', "[1]", "nonsense", "", "{" * 10_000,
     '{"child": "a", "version": 1, "what": "accepted", "time": "yesterday"}',
     '{"child": "a", "version": 1, "what": "accepted", "count": NaN}',
     '{"child": 5, "version": 1, "what": "accepted"}', '{"child": "a", "version": "x", "what": "accepted"}'],
)  # fmt: skip
def test_lines_of_history_that_are_no_events_are_left_out(tmp_path, line):
    filled(tmp_path)
    path = tmp_path / "history.jsonl"
    path.write_bytes(line.encode() + b"\n" + path.read_bytes())
    aggregator = Aggregator(store=tmp_path)
    assert [event.child for event in aggregator.history] == ["a", "b", "c"]
    assert aggregator.record()


@pytest.mark.parametrize("name", ["history.jsonl", "version.json"])
def test_a_file_nested_too_deeply_to_be_parsed_is_as_good_as_torn(tmp_path, name):
    version = filled(tmp_path).version
    with (tmp_path / name).open("a") as file:
        file.write("[" * 100_000)
    aggregator = Aggregator(rank=3, store=tmp_path)
    assert aggregator.version >= version
    assert aggregator.receive("d", 1, summary_of(3))
    assert [event.child for event in aggregator.history] == ["a", "b", "c", "d"]


def test_a_history_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_HISTORY", 2000)
    store = FolderStore(tmp_path)
    sizes = []
    for number in range(100):
        store.log(ChildEvent(child="a", version=number, what="accepted"))
        sizes.append((tmp_path / "history.jsonl").stat().st_size)
        assert store.history()[-1].version == number
    assert max(sizes) < 2500
    versions = [event.version for event in store.history()]
    assert versions == list(range(100 - len(versions), 100))
    assert len(versions) > 5
    monkeypatch.setattr(store_module, "_MAX_EVENTS", 20)
    memory = MemoryStore()
    for number in range(100):
        memory.log(ChildEvent(child="a", version=number, what="accepted"))
        assert memory.history()[-1].version == number
        assert len(memory.history()) <= 20
    assert len(memory.history()) > 5


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_rejections_push_nothing_else_out_of_a_history(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(store_module, "_MAX_HISTORY", 20_000)
    monkeypatch.setattr(store_module, "_MAX_EVENTS", 100)
    with Aggregator(rank=3, store=None if kind == "memory" else tmp_path) as aggregator:
        aggregator.receive("a", 1, summary_of(0))
        aggregator.receive("b", 1, summary_of(1))
        aggregator.record()
        aggregator.withdraw("b")
        for number in range(600):
            with pytest.raises(SummaryRejected):
                aggregator.receive(f"evil {number % 20}", number, Subspace.from_rows(rows_of(0)[:, :3]))
        found = aggregator.history
    assert [event.what for event in found if event.what != "rejected"] == [
        "accepted",
        "accepted",
        "model",
        "withdrawn",
    ]
    rejected = [event.version for event in found if event.what == "rejected"]
    assert rejected == list(range(600 - len(rejected), 600))
    assert 10 < len(rejected) < 130


def test_the_last_version_of_every_child_stays_in_a_history(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_HISTORY", 20_000)
    store = FolderStore(tmp_path)
    for child in range(10):
        store.log(ChildEvent(child=f"{child}", version=child, what="accepted"))
    for number in range(400):
        store.log(ChildEvent(child="busy", version=number, what="accepted"))
    found = store.history()
    assert [event.child for event in found[:10]] == [f"{child}" for child in range(10)]
    assert len(found) < 200


def test_what_is_collected_again_is_rejected_once_in_a_history(tmp_path):
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("good", 1, summary_of(0))
        for _ in range(5):
            for child in ("x", "y"):
                for version in (1, 2):
                    with pytest.raises(SummaryRejected):
                        aggregator.receive(child, version, Subspace.from_rows(rows_of(0)[:, :3]))
    assert [event.what for event in aggregator.history].count("rejected") == 4


def test_a_rejection_is_logged_once_and_its_reason_is_short(tmp_path):
    named = summary_of(0).with_about(names=[f"{'x' * 10**6}{number}" for number in range(8)])
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("a", 1, summary_of(0).with_about(names=[*"abcdefgh"]))
        size = (tmp_path / "history.jsonl").stat().st_size
        for _ in range(50):
            with pytest.raises(SummaryRejected) as refusal:
                aggregator.receive("b", 1, named)
            assert len(str(refusal.value)) < 1000
        assert (tmp_path / "history.jsonl").stat().st_size < size + 1500
        with pytest.raises(SummaryRejected):
            aggregator.receive("b", 2, named)
    assert [event.what for event in aggregator.history] == ["accepted", "rejected", "rejected"]


# --- files ---


def test_files_are_private_to_their_owner(tmp_path):
    with Aggregator(store=tmp_path / "store") as aggregator:
        aggregator.receive("a", 1, summary_of(0))
        aggregator.receive("a", 2, summary_of(0))
        aggregator.record()
    files = list((tmp_path / "store").iterdir())
    kept = {"a.state", "history.jsonl", "lock", "merged.safetensors", "version.json"}
    assert {path.name for path in files} == kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    filled(tmp_path)
    leftover = tmp_path / ".fedpca-0123456789abcdef.part"
    leftover.write_bytes(b"half a state")
    with Aggregator(store=tmp_path) as writer:
        assert not leftover.exists()
        leftover.write_bytes(b"a state that is being written")
        Aggregator(store=tmp_path)
        assert leftover.exists()
        writer.receive("a", 2, summary_of(0))


def test_an_aggregator_logs_what_it_does(caplog):
    caplog.set_level(logging.INFO, logger="fedpca.federation")
    aggregator = Aggregator()
    aggregator.receive("a\x1b[31m", 1, summary_of(0))
    with pytest.raises(SummaryRejected):
        aggregator.receive("b", 1, Subspace.from_rows(rows_of(0)[:, :3]))
    aggregator.withdraw("a\x1b[31m")
    levels = [(record.levelname, record.message.split()[0]) for record in caplog.records]
    assert levels == [("INFO", "accepted"), ("WARNING", "rejected"), ("INFO", "withdrew")]
    assert "\x1b" not in caplog.text


def test_a_state_survives_its_encoding():
    for summary in (None, summary_of(0), Moments.from_rows(rows_of(1))):
        state = State(Message("a", 3, summary), 17, "a key")
        assert State.decode(state.encode(), "x") == state
        assert State.decode(replace(state, sender="").encode(), "x").sender == ""
        for change in ({"left_out": "c (2 %)"}, {"quarantined": True}):
            changed = replace(state, **change)
            assert State.decode(changed.encode(), "x") == changed


def test_a_store_of_many_opens_with_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    with Aggregator(rank=2, store=tmp_path) as aggregator:
        for child in range(100):
            aggregator.receive(f"{child}", 0, Subspace.from_rows(rng.normal(size=(9, 4))))
    assert bits(Aggregator(rank=2, store=tmp_path).model()) == bits(aggregator.model())
    assert json.loads((tmp_path / "version.json").read_text())["version"] == aggregator.version


# --- the merge that is kept ---


def recorded(folder, **rules):
    """As `filled`, with a model in the history."""
    with Aggregator(rank=3, store=folder, **rules) as aggregator:
        for seed, child in enumerate("abc"):
            aggregator.receive(child, 1, summary_of(seed))
        aggregator.record()
    return aggregator


def merged_in(folder, rank=3, **rules):
    merged = Aggregator.merged_in(folder, rank, **rules)
    return merged.version, merged.n_children, merged.n_known, Message("x", 1, merged.summary).encode()


def merged_anew(folder, rank=3, **rules):
    aggregator = Aggregator(rank, store=folder, **rules)
    summary = Message("x", 1, aggregator.summary()).encode()
    return aggregator.version, len(aggregator.children), len(aggregator.versions), summary


@pytest.mark.parametrize(
    "rules", [{}, {"robust": Robust("cap", 0.4), "limits": Limits(least_rows=2)}], ids=str
)
def test_the_merge_that_the_writer_kept_is_read_without_the_states(tmp_path, monkeypatch, rules):
    recorded(tmp_path, **rules)
    expected, before = merged_anew(tmp_path, **rules), contents_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "states", lambda store: pytest.fail("nothing has changed"))
        assert merged_in(tmp_path, **rules) == expected
    assert contents_of(tmp_path) == before


def test_a_merge_that_was_kept_of_anything_else_does_not_count(tmp_path):
    recorded(tmp_path)
    assert merged_in(tmp_path, 2) == merged_anew(tmp_path, 2)
    assert merged_in(tmp_path, robust="median") == merged_anew(tmp_path, robust="median")
    kept = merged_in(tmp_path)
    with Aggregator(rank=3, store=tmp_path) as writer:
        writer.receive("d", 1, summary_of(7))
        writer.withdraw("a")
    now = merged_in(tmp_path)
    assert now == merged_anew(tmp_path) != kept
    assert now[1:3] == (3, 4)
    (tmp_path / "b.state").unlink()
    assert merged_in(tmp_path) == merged_anew(tmp_path)
    assert merged_in(tmp_path)[1] == 2


@pytest.mark.parametrize("damage", [b"", b"nonsense", "flipped", "torn", "a message"])
def test_a_damaged_merge_is_merged_again(tmp_path, damage, caplog):
    recorded(tmp_path)
    path = tmp_path / "merged.safetensors"
    contents = path.read_bytes()
    damaged = {
        "flipped": contents[:-9] + bytes([contents[-9] ^ 1]) + contents[-8:],
        "torn": contents[:-100],
        "a message": Message("a", 1, summary_of(0)).encode(),
    }
    path.write_bytes(damaged.get(damage, damage))
    assert merged_in(tmp_path) == merged_anew(tmp_path)
    assert "is merged again" in caplog.text


def test_nothing_is_merged_of_a_store_without_children(tmp_path):
    with Aggregator(rank=3, store=tmp_path) as writer:
        writer.receive("a", 1, summary_of(0))
        writer.record()
        writer.withdraw("a")
    merged = Aggregator.merged_in(tmp_path, 3)
    assert (merged.n_children, merged.n_known, merged.summary) == (0, 1, None)
