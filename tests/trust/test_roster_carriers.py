"""With a roster, only members are heard, on every carrier: folders and stores."""

import logging
import os
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers import bits, rows_of

import fedpca
from fedpca import (
    Aggregator,
    Moments,
    Privacy,
    PrivatePCA,
    Roster,
    Scaling,
    SigningKey,
    Subspace,
)
from fedpca.errors import ModelFileError, OutdatedRoster, SignatureError, SummaryRejected
from fedpca.federation import FolderStore, MemoryStore, State
from fedpca.federation.aggregator.message import Message
from fedpca.federation.folder import collect, collect_scaling, publish
from fedpca.summaries import model_file
from fedpca.trust import Member

KEYS = {name: SigningKey.new() for name in ("north", "south", "eve", "new")}
NORTH, SOUTH = KEYS["north"], KEYS["south"]


@pytest.fixture
def roster():
    return Roster("study-1", [Member("north", NORTH.public, rows=100), Member("south", SOUTH.public)])


def summary_of(seed, n_rows=60):
    return Subspace.from_rows(rows_of(seed, n_rows, 5), rank=4)


def send(aggregator, child, version, summary, roster=None, key=None):
    """Sign under a roster with the child's key, encode, decode, and hand over: as every carrier does."""
    contents = Message(child, version, summary).encode()
    signed = (roster or aggregator.roster).signer(key or KEYS[child]).sign(contents)
    return aggregator.receive_message(Message.decode(signed))


# --- aggregators ---


def test_members_are_heard_and_the_model_is_the_same_as_without_a_roster(roster):
    plain, checked = Aggregator(rank=3), Aggregator(rank=3, roster=roster)
    assert checked.not_heard_from == ("north", "south")
    for child, seed in (("north", 0), ("south", 1)):
        plain.receive(child, 1, summary_of(seed))
        assert send(checked, child, 1, summary_of(seed))
    assert bits(checked.model()) == bits(plain.model())
    assert (checked.not_heard_from, plain.not_heard_from) == ((), ())
    checked.withdraw("south")
    assert checked.not_heard_from == ("south",)


def test_only_what_was_signed_counts(roster):
    """A message that was changed after it was decoded, or put together otherwise, has no signature."""
    aggregator = Aggregator(roster=roster)
    message = Message.decode(roster.signer(NORTH).sign(Message("north", 1, summary_of(0)).encode()))
    model = roster.signer(NORTH).sign(model_file.encode(*message.contents()[:2], message.summary.metadata))
    for change in ({"content": summary_of(1)}, {"version": 2}, {"child": "south"}, {}):
        with pytest.raises(SummaryRejected, match="is unsigned"):
            aggregator.receive_message(replace(message, **change))
    for field in ("signature", "signed"):
        with pytest.raises(TypeError, match=field):
            Message("north", 1, summary_of(1), **{field: getattr(message, field)})
    with pytest.raises(ModelFileError, match="'child' is missing"):  # of no child and no version
        Message.decode(model)
    assert aggregator.receive_message(message)


def test_a_name_is_its_members_whoever_sends(roster):
    aggregator = Aggregator(roster=roster)
    for version, sender in ((1, "who repeats it"), (2, "north's machine"), (3, "another of its machines")):
        signed = roster.signer(NORTH).sign(Message("north", version, summary_of(version)).encode())
        assert aggregator.receive_message(Message.decode(signed), sender=sender)


def test_the_same_version_under_a_newer_roster_is_the_same(roster):
    newer = roster.with_member(Member("eve", KEYS["eve"].public))
    aggregator = Aggregator(roster=newer)
    assert send(aggregator, "north", 1, summary_of(0), roster)
    assert not send(aggregator, "north", 1, summary_of(0), newer)


def test_no_more_rows_than_declared(roster):
    aggregator = Aggregator(roster=roster)
    assert send(aggregator, "north", 1, summary_of(0, 100))
    with pytest.raises(SummaryRejected, match="'north' declared 100 rows in the roster, and this is of 101"):
        send(aggregator, "north", 2, summary_of(0, 101))
    assert send(aggregator, "south", 1, summary_of(0, 5000))  # it declared none


def named(text):
    return summary_of(0).with_about(names=tuple(text))


def made(kind, **settings):
    return kind.from_rows(rows_of(0, 9, 5), **settings)


NUMBERS = [2.0] * 5


@pytest.mark.parametrize(
    ("settings", "good", "bad", "problem"),
    [
        (
            {"n_features": 5},
            lambda: summary_of(0),
            lambda: Subspace.from_rows(rows_of(0, 9, 4)),
            "n_features must be 5, as in the roster of .*, got 4",
        ),
        (
            {"features": list("abcde")},
            lambda: named("abcde"),
            lambda: summary_of(0),
            "features must be 5 names in their order, as in the roster of .*, got none",
        ),
        (
            {"features": list("edcba")},
            lambda: named("edcba"),
            lambda: named("abcde"),
            "features must be 5 names in their order, as in the roster of .*, got others",
        ),
        (
            {"center": False},
            lambda: made(Subspace, center=False),
            lambda: summary_of(0),
            "center must be False, as in the roster of .*, got True",
        ),
        (
            {"scale": "std"},
            lambda: made(Moments, scale="std"),
            lambda: made(Moments),
            "scale must be 'std', as in the roster of .*, got 'none'",
        ),
        (
            {"scale": "none"},
            lambda: made(Moments),
            lambda: made(Subspace, scale=NUMBERS),
            "scale must be 'none', as in the roster of .*, got 'numbers'",
        ),
        (
            {"scale": "std"},
            lambda: made(Subspace, scale=NUMBERS),
            lambda: made(Subspace),
            "scale must be 'std', as in the roster of .*, got 'none'",
        ),
    ],
)
def test_settings_are_those_of_the_roster(roster, settings, good, bad, problem):
    agreed = roster.with_settings(**settings)
    with pytest.raises(SummaryRejected, match=problem):
        send(Aggregator(roster=agreed), "south", 1, bad())
    assert send(Aggregator(roster=agreed), "south", 1, good())


def test_rank_and_privacy_are_those_of_the_roster(roster):
    agreed = roster.with_settings(rank=2, epsilon=1.0, delta=1e-5, bound=3.0, mechanism="gram")
    aggregator = Aggregator(roster=agreed)
    assert aggregator.rank == 2
    assert aggregator.privacy is not None
    with pytest.raises(SummaryRejected, match="no privacy certificate"):
        send(aggregator, "south", 1, summary_of(0))
    for epsilon, accepted in ((1.0, True), (2.0, False)):
        privacy = Privacy(epsilon, 1e-5, 3.0, center=None, evaluate=False)
        release = PrivatePCA(2, **privacy.settings).fit(rows_of(0, 300, 5)).release()
        if accepted:
            assert send(aggregator, "south", 1, release)
        else:
            with pytest.raises(SummaryRejected, match="its epsilon is 2; at most 1 is accepted"):
                send(aggregator, "south", 2, release)
    with pytest.raises(ValueError, match=r"rank must be 2, as in the roster of .*, got 3"):
        Aggregator(3, roster=agreed)
    with pytest.raises(ValueError, match=r"epsilon must be 1\.0, as in the roster of .*, got 5\.0"):
        Aggregator(roster=agreed, privacy=Privacy(5.0, 1e-5, 3.0))
    assert Aggregator(2, roster=agreed, privacy=Privacy(1.0, 1e-5, 3.0)).rank == 2


@pytest.mark.parametrize("bound", [2.0, "private"])
def test_rows_are_clipped_as_the_roster_says(roster, bound):
    """Rows clipped to other lengths do not add up, shorter ones included."""
    agreed = roster.with_settings(epsilon=4.0, delta=1e-5, bound=30.0)
    privacy = Privacy(4.0, 1e-5, bound, evaluate=False)
    release = PrivatePCA(2, **privacy.settings).fit(rows_of(0, 300, 5)).release()
    with pytest.raises(SummaryRejected, match=r"bound must be 30\.0, as in the roster of "):
        send(Aggregator(roster=agreed), "south", 1, release)


def test_no_rule_depends_on_a_clock(roster, tmp_path, monkeypatch):
    """Signed when the clock was at 1970, in the year 2100, and read by others: nothing changes."""
    for version, now in enumerate((0, 4102444800, 1)):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now * 10**9)
        monkeypatch.setattr(time, "time", lambda now=now: float(now))
        with Aggregator(roster=roster, store=tmp_path) as aggregator:
            assert send(aggregator, "north", version, summary_of(version))
            with pytest.raises(SummaryRejected, match="equivocation"):
                send(aggregator, "north", version, summary_of(9))
    path = tmp_path / "north.state"
    os.utime(path, (0, 0))
    assert Aggregator(roster=roster, store=tmp_path).versions == {"north": 2}


# --- stores ---


@pytest.fixture
def store(tmp_path, roster):
    with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator:
        send(aggregator, "north", 1, summary_of(0))
        send(aggregator, "south", 1, Moments.from_rows(rows_of(1, 60, 5)))
    return tmp_path


def test_a_store_keeps_what_was_signed_byte_for_byte(store, roster):
    for child, summary in (("north", summary_of(0)), ("south", Moments.from_rows(rows_of(1, 60, 5)))):
        signed = roster.signer(KEYS[child]).sign(Message(child, 1, summary).encode())
        state = State.decode((store / f"{child}.state").read_bytes(), "it")
        assert state.message.signed == signed
        assert roster.check(state.message.signed, child)
    again = Aggregator(rank=3, roster=roster, store=store)
    assert list(again.children) == ["north", "south"]
    assert bits(again.model()) == bits(Aggregator(rank=3, store=store).model())
    with pytest.raises(SummaryRejected, match="equivocation"):
        send(again, "north", 1, summary_of(5))


def test_a_message_with_spaces_of_its_own_is_refused():
    contents = Message("north", 1, summary_of(0)).encode()
    length = int.from_bytes(contents[:8], "little")
    spaced = (length + 8).to_bytes(8, "little") + contents[8 : 8 + length] + b" " * 8 + contents[8 + length :]
    with pytest.raises(ModelFileError, match="not exactly what fedpca writes"):
        Message.decode(spaced)


def test_a_state_changed_by_hand_is_quarantined(store, roster):
    """Every part of it, with checksums that are right: what is beside the message, and the message."""
    path = store / "north.state"
    original = path.read_bytes()
    state = State.decode(original, "it")
    message, signature = state.message, state.message.signature
    kind, arrays, metadata = model_file.decode(message.signed, "it")

    def kept(arrays=arrays, facts=metadata, **change):
        made = model_file.encode(kind, arrays, facts)
        made = model_file.with_signature(made, signature.to_json() | change)
        return replace(state, message=Message.decode(made)).encode()

    unsigned = replace(message)
    changes = {
        "arrays": kept(arrays=arrays | {"mean": arrays["mean"] + 1}),
        "version": kept(facts=metadata | {"version": 0}),
        "rows": kept(facts=metadata | {"count": metadata["count"] + 1}),
        "study": kept(study="study-2"),
        "roster": kept(roster="sha256:" + 64 * "0"),
        "unsigned": replace(state, message=unsigned).encode(),
        "a signature beside it": replace(state, message=unsigned, signature=signature).encode(),
        "first line": original.replace(b'"left_out":""', b'"left_out":"x"', 1),
        "first line, spelled otherwise": original.replace(b'"left_out":""', b'"left_out": ""', 1),
        "a line twice": original[: original.index(b"\n") + 1] + original,
    }
    for what, changed in changes.items():
        assert changed != original, what
        path.write_bytes(changed)
        with Aggregator(rank=3, roster=roster, store=store) as again:
            assert list(again.children) == ["south"], what
            assert "north" in again.quarantined, what
        (store / "north.quarantined").unlink()
    path.write_bytes(original)
    assert list(Aggregator(rank=3, roster=roster, store=store).children) == ["north", "south"]


def test_a_merge_that_nobody_signed_is_not_read_under_a_roster(store, roster):
    with Aggregator(rank=3, roster=roster, store=store) as writer:
        send(writer, "south", 9, summary_of(7))
        assert writer.record()
    right = Aggregator.merged_in(store, 3, roster=roster)
    assert right.summary.count == writer.model().count
    assert not (store / "merged.safetensors").exists()
    with Aggregator(rank=3, store=store) as careless:  # without a roster a merge is kept, and may be changed
        careless.withdraw("north")
        careless.record()
    path = store / "merged.safetensors"
    kind, arrays, metadata = model_file.read(path)
    path.write_bytes(model_file.encode(kind, arrays | {"mean": arrays["mean"] + 1}, metadata))
    assert Aggregator.merged_in(store, 3).summary.mean[0] == arrays["mean"][0] + 1
    checked = Aggregator.merged_in(store, 3, roster=roster).summary
    assert bits(checked) == bits(Aggregator(rank=3, roster=roster, store=store).summary())


def test_states_that_nobody_signed_are_quarantined_under_a_roster(tmp_path, roster):
    with Aggregator(store=tmp_path) as aggregator:
        aggregator.receive("north", 1, summary_of(0))
    again = Aggregator(store=tmp_path, roster=roster)
    assert "is unsigned" in again.quarantined["north"]
    assert send(again, "north", 1, summary_of(0))


def test_signatures_that_came_before_the_roster_count(tmp_path, roster):
    with Aggregator(store=tmp_path) as aggregator:
        send(aggregator, "north", 1, summary_of(0), roster)
    assert list(Aggregator(store=tmp_path, roster=roster).children) == ["north"]


def test_a_roster_changed_under_way(store, roster):
    """A member added, one removed, a key replaced: what is in the store counts while its key is unchanged."""
    larger = roster.with_member(Member("new", KEYS["new"].public))
    with Aggregator(rank=3, roster=larger, store=store) as aggregator:
        assert list(aggregator.children) == ["north", "south"]
        assert aggregator.not_heard_from == ("new",)
        assert send(aggregator, "new", 1, summary_of(2), larger)
    fewer = larger.without_member("south")
    with Aggregator(rank=3, roster=fewer, store=store) as aggregator:
        assert list(aggregator.children) == ["new", "north"]
        assert "'south' is not a member" in aggregator.quarantined["south"]
    replaced = fewer.without_member("north").with_member(Member("north", KEYS["eve"].public))
    with Aggregator(rank=3, roster=replaced, store=store) as aggregator:
        assert list(aggregator.children) == ["new"]
        assert "wrong key" in aggregator.quarantined["north"]
        with pytest.raises(SummaryRejected, match="wrong key"):
            send(aggregator, "north", 2, summary_of(0), roster)
        assert send(aggregator, "north", 1, summary_of(0), key=KEYS["eve"])  # the owner, with its new key


def test_the_roster_of_another_study_changes_nothing(store, roster):
    model = bits(Aggregator(roster=roster, store=store).model())
    with pytest.raises(SignatureError, match="the store must be of study 'study-2', and is of 'study-1'"):
        Aggregator(roster=Roster("study-2", roster.members.values()), store=store)
    again = Aggregator(roster=roster, store=store)
    assert (bits(again.model()), dict(again.quarantined)) == (model, {})


def test_an_older_roster_than_that_of_the_store_changes_nothing(store, roster):
    newer = roster.with_settings(rank=3)
    with Aggregator(roster=newer, store=store) as aggregator:
        assert send(aggregator, "north", 2, summary_of(3))
    with pytest.raises(OutdatedRoster, match="get the newest roster"):
        Aggregator(roster=roster, store=store)
    assert sorted(path.name for path in store.glob("*.state")) == ["north.state", "south.state"]
    assert Aggregator(roster=newer, store=store).versions == {"north": 2, "south": 1}


def test_of_common_features_the_signer_is_kept(tmp_path, roster):
    """What is left out cannot be checked again; who signed can."""
    wide = summary_of(0).with_about(names=tuple("abcde"))
    agreed = roster.with_settings(features=["c", "a"])
    settings = {"features": "intersection", "store": tmp_path}
    with Aggregator(roster=agreed, **settings) as aggregator:
        assert send(aggregator, "north", 1, wide)
        assert not send(aggregator, "north", 1, wide)
        with pytest.raises(SummaryRejected, match="equivocation"):
            send(aggregator, "north", 1, summary_of(1).with_about(names=tuple("abcde")))
    with Aggregator(roster=agreed, **settings) as again:
        assert list(again.children) == ["north"]
        assert again.model().feature_names == ("c", "a")
    replaced = agreed.without_member("north").with_member(Member("north", KEYS["eve"].public))
    assert "wrong key" in Aggregator(roster=replaced, **settings).quarantined["north"]


@pytest.mark.parametrize("kept", [MemoryStore, FolderStore])
def test_a_failed_write_leaves_nothing_half_written(tmp_path, roster, monkeypatch, kept):
    store = kept() if kept is MemoryStore else kept(tmp_path)
    with Aggregator(rank=3, roster=roster, store=store) as aggregator:
        assert send(aggregator, "north", 1, summary_of(0))
        before = bits(aggregator.model())
        put = store.put
        monkeypatch.setattr(store, "put", lambda state: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            send(aggregator, "north", 2, summary_of(1))
        assert (aggregator.versions, bits(aggregator.model())) == ({"north": 1}, before)
        monkeypatch.setattr(store, "put", put)
        assert send(aggregator, "north", 2, summary_of(1))


# --- folders ---


@pytest.fixture
def folder(tmp_path, roster):
    shared = tmp_path / "shared"
    shared.mkdir()
    for seed, child in enumerate(roster.members):
        publish(shared, child, 1, summary_of(seed), signer=roster.signer(KEYS[child]))
    return shared


def reasons(skipped):
    return {item.file: item.reason for item in skipped}


def test_a_signed_folder_gives_the_same_model(folder, roster):
    checked, plain = Aggregator(rank=3, roster=roster), Aggregator(rank=3)
    assert collect(folder, checked) == collect(folder, plain) == []
    assert bits(checked.model()) == bits(plain.model())
    assert fedpca.load(folder / "north.1.safetensors") == summary_of(0)


def test_a_folder_says_that_anyone_may_speak(folder, roster, caplog):
    caplog.set_level(logging.INFO, logger="fedpca")
    collect(folder, Aggregator(roster=roster))
    assert "senders are not verified" not in caplog.text
    collect(folder, Aggregator())
    assert "no roster: senders are not verified" in caplog.text


def test_changed_bytes_in_a_folder_are_refused(folder, roster):
    """One byte of each part of the file; the reader without a roster sees only what the checksum is about."""
    path = folder / "north.1.safetensors"
    original = path.read_bytes()
    length = int.from_bytes(original[:8], "little")
    value = model_file.opened(original, "it").signature["value"].encode()
    roster_hash = roster.hash.encode()
    places = {
        "length": 0,
        "header": 8 + length // 2,
        "padding or brace": 7 + length,
        "first array": 8 + length,
        "last array": len(original) - 1,
        "signature": original.index(value) + 5,
        "last digit": original.index(value) + len(value) - 1,
        "roster": original.index(roster_hash) + 20,
        "key": original.index(NORTH.public.text.encode()) + 20,
        "study": original.index(b"study-1") + 6,
    }
    for what, place in places.items():
        changed = bytearray(original)
        changed[place] ^= 1
        path.write_bytes(changed)
        aggregator = Aggregator(roster=roster)
        assert list(reasons(collect(folder, aggregator))) == [path.name], what
        assert list(aggregator.versions) == ["south"], what


def test_a_file_replaced_or_rolled_back_in_a_folder_is_named(folder, roster):
    aggregator = Aggregator(rank=3, roster=roster)
    signer = roster.signer(NORTH)
    publish(folder, "north", 2, summary_of(5), signer=signer)
    assert collect(folder, aggregator) == []
    before = bits(aggregator.model())
    path = folder / "north.2.safetensors"
    kept = path.read_bytes()
    path.write_bytes(signer.sign(Message("north", 2, summary_of(6)).encode()))
    skipped = collect(folder, aggregator)
    assert "equivocation: 'north'" in reasons(skipped)[path.name]
    assert collect(folder, aggregator, before=skipped) == skipped
    path.unlink()
    assert (
        "rolled back: version 2 of 'north' is known"
        in reasons(collect(folder, aggregator))["north.1.safetensors"]
    )
    path.write_bytes(kept)
    assert collect(folder, aggregator) == []
    assert bits(aggregator.model()) == before


def test_files_that_count_are_not_read_again(folder, roster, monkeypatch):
    aggregator = Aggregator(rank=3, roster=roster)
    assert collect(folder, aggregator) == []
    monkeypatch.setattr(
        "fedpca.federation.folder.exchange._read", lambda *arguments: pytest.fail("read again")
    )
    assert collect(folder, aggregator) == []


def test_publishing_again_under_a_newer_roster_changes_nothing(folder, roster):
    newer = roster.with_member(Member("new", KEYS["new"].public))
    before = (folder / "north.1.safetensors").read_bytes()
    publish(folder, "north", 1, summary_of(0), signer=newer.signer(NORTH))
    assert (folder / "north.1.safetensors").read_bytes() == before
    with pytest.raises(FileExistsError, match="publish a newer version"):
        publish(folder, "north", 1, summary_of(1), signer=newer.signer(NORTH))
    replaced = newer.without_member("north").with_member(Member("north", KEYS["eve"].public))
    with pytest.raises(FileExistsError, match="publish a newer version"):
        publish(folder, "north", 1, summary_of(0), signer=replaced.signer(KEYS["eve"]))
    publish(folder, "north", 2, summary_of(0), signer=replaced.signer(KEYS["eve"]))
    aggregator = Aggregator(roster=replaced)
    collect(folder, aggregator)
    assert aggregator.versions == {"north": 2, "south": 1}


def test_paths_and_keys_in_place_of_what_they_hold_are_refused_by_name(folder, roster):
    for problem, attempt in {
        r"roster must be a Roster, got 'roster\.toml'; load it": lambda: Aggregator(roster="roster.toml"),
        r"roster must be a Roster, got 'r\.toml'; load it": lambda: collect_scaling(folder, roster="r.toml"),
        "signer must be a Signer, got SigningKey": lambda: publish(
            folder, "x", 1, summary_of(0), signer=NORTH
        ),
        r"key must be a SigningKey, got 'north\.key'": lambda: roster.signer("north.key"),
        "members must be a Member each, got 'north'": lambda: Roster("study-1", ["north"]),
    }.items():
        with pytest.raises(TypeError, match=problem):
            attempt()


def test_nobody_publishes_under_another_name(folder, roster):
    with pytest.raises(ValueError, match="the key is that of 'south', who cannot publish as 'north'"):
        publish(folder, "north", 5, summary_of(0), signer=roster.signer(SOUTH))
    assert not (folder / "north.5.safetensors").exists()


def test_scalings_of_members_only(tmp_path, roster):
    rows = {child: rows_of(seed, 40, 5) for seed, child in enumerate(("north", "south", "eve"))}
    for child in roster.members:
        publish(tmp_path, child, 1, Scaling.from_rows(rows[child]), signer=roster.signer(KEYS[child]))
    publish(tmp_path, "eve", 1, Scaling.from_rows(rows["eve"] * 1e6))
    publish(tmp_path, "north", 2, Scaling.from_rows(rows["eve"] * 1e6))
    found = collect_scaling(tmp_path, roster=roster)
    assert found.owners == ("north", "south")
    both = np.vstack([rows["north"], rows["south"]])
    np.testing.assert_allclose(found.scaling.scale("std"), both.std(axis=0))
    assert all("is unsigned" in item.reason for item in found.skipped)
    assert len(found.skipped) == 2
    assert collect_scaling(tmp_path).owners == ("eve", "north", "south")
    publish(tmp_path, "north", 3, Scaling.from_rows(rows_of(0, 101, 5)), signer=roster.signer(NORTH))
    assert "declared 100 rows" in str(collect_scaling(tmp_path, roster=roster).skipped)


# --- an older roster, and none ---


def signed(roster, key, child, version):
    return roster.signer(key).sign(Message(child, version, summary_of(version)).encode())


def receive(aggregator, contents):
    return aggregator.receive_message(Message.decode(contents))


@pytest.mark.parametrize("change", ["a member more", "another key", "signed again"])
def test_an_older_roster_than_that_of_the_store_sets_nobody_aside(tmp_path, roster, change):
    key = KEYS["new"]
    if change == "another key":
        newer = roster.without_member("north").with_member(Member("north", KEYS["new"].public))
        child = "north"
    else:
        newer = roster.with_member(Member("east", KEYS["new"].public))
        child = "east"
    with Aggregator(rank=3, roster=newer, store=tmp_path) as aggregator:
        receive(aggregator, signed(newer, key, child, 1))
        if change == "signed again":
            receive(aggregator, signed(newer, SOUTH, "south", 1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for _ in range(2):
        with pytest.raises(OutdatedRoster, match=r"signed under the roster .* get the newest roster"):
            Aggregator(rank=3, roster=roster, store=tmp_path).__enter__()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert child in Aggregator(rank=3, roster=newer, store=tmp_path).children


def test_a_member_that_was_removed_does_not_come_back_with_an_older_roster(tmp_path, roster):
    with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator:
        receive(aggregator, signed(roster, NORTH, "north", 1))
        receive(aggregator, signed(roster, SOUTH, "south", 1))
    without = roster.without_member("north")
    with Aggregator(rank=3, roster=without, store=tmp_path) as aggregator:  # and nothing is signed under it
        assert list(aggregator.children) == ["south"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutdatedRoster, match=r"written under the roster .* get the newest roster"):
        Aggregator(rank=3, roster=roster, store=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Aggregator(rank=3, store=tmp_path):  # an aggregator without a roster knows of none
        pass
    with pytest.raises(OutdatedRoster, match="written under the roster"):
        Aggregator(rank=3, roster=roster, store=tmp_path)
    back = without.with_member(Member("north", NORTH.public))
    assert list(Aggregator(rank=3, roster=back, store=tmp_path).children) == ["south"]


def test_a_replay_is_refused_after_a_quarantine_unless_the_key_is_another(tmp_path, roster):
    files = [signed(roster, NORTH, "north", version) for version in (1, 2, 3)]
    with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator:
        for file in files:
            receive(aggregator, file)
    damaged = bytearray((tmp_path / "north.state").read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "north.state").write_bytes(damaged)
    for _ in range(2):
        old = pytest.raises(SummaryRejected, match="rolled back: version 3 of 'north' is known")
        with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator, old:
            receive(aggregator, files[0])
    with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator:
        assert receive(aggregator, files[2])
    without = roster.without_member("north")
    Aggregator(rank=3, roster=without, store=tmp_path).__enter__().close()
    back = without.with_member(Member("north", NORTH.public))
    old = pytest.raises(SummaryRejected, match="rolled back")
    with Aggregator(rank=3, roster=back, store=tmp_path) as aggregator, old:
        receive(aggregator, files[0])
    replaced = back.without_member("north").with_member(Member("north", KEYS["new"].public))
    with Aggregator(rank=3, roster=replaced, store=tmp_path) as aggregator:
        assert receive(aggregator, signed(replaced, KEYS["new"], "north", 0))


def test_without_a_roster_who_has_signed_goes_on_to_sign(tmp_path, roster):
    with Aggregator(rank=3, roster=roster, store=tmp_path) as aggregator:
        receive(aggregator, signed(roster, NORTH, "north", 1))
    with Aggregator(rank=3, store=tmp_path) as aggregator:
        for file in (
            Message("north", 9, summary_of(2)).encode(),
            signed(Roster(roster.study, [Member("north", KEYS["new"].public)]), KEYS["new"], "north", 9),
        ):
            with pytest.raises(
                SummaryRejected, match=r"signed with the key that 'north' signed with .*withdraw"
            ):
                receive(aggregator, file)
        assert receive(aggregator, signed(roster, NORTH, "north", 2))
        aggregator.withdraw("north")
        assert receive(aggregator, Message("north", 9, summary_of(2)).encode())
