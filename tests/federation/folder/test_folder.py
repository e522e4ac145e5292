"""A shared folder is a federation: the model is that of the newest good files, whatever else lies there."""

import os
import random
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from fuzz import seal
from helpers import aggregate, bits, disk_full, rows_of
from hypothesis import given
from hypothesis import strategies as st

import fedpca
from fedpca import Aggregator, Moments, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.federation import Limits, MemoryStore
from fedpca.federation.aggregator.message import Message
from fedpca.federation.folder import SkippedFile, collect, publish
from fedpca.summaries import model_file


def summary_of(seed, n_rows=60, n_features=8):
    return Subspace.from_rows(rows_of(seed, n_rows, n_features), rank=min(6, n_features))


def collected(folder, **settings):
    aggregator = Aggregator(rank=3)
    return aggregator, collect(folder, aggregator, **settings)


@pytest.fixture
def bucket():
    """An empty URL of its own, in memory."""
    fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
    url = f"memory://{os.urandom(4).hex()}/study"
    yield url
    files, path = fsspec.url_to_fs(url)
    files.rm(str(Path(path).parent), recursive=True)


@pytest.fixture(params=["folder", "bucket"])
def shared(request, tmp_path):
    if request.param == "bucket":
        return request.getfixturevalue("bucket")
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def put(folder, name, contents):
    """A file by another hand."""
    if "://" not in str(folder):
        (Path(folder) / name).write_bytes(contents)
        return
    import fsspec

    files, path = fsspec.url_to_fs(folder)
    files.pipe_file(f"{path}/{name}", contents)


def contents_of(path):
    if "://" not in str(path):
        return Path(path).read_bytes()
    import fsspec

    files, path = fsspec.url_to_fs(path)
    return files.cat_file(path)


# --- the model ---


def test_three_owners_one_of_them_private_make_the_model_of_an_aggregator(shared):
    privacy = Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)
    release = PrivatePCA(2, **privacy.settings).fit(rows_of(0)).release()
    uncentered = [Moments.from_rows(rows_of(1), center=False), Subspace.from_rows(rows_of(2), center=False)]
    messages = [("private", 1, release), ("exact", 7, uncentered[0]), ("small", 0, uncentered[1])]
    for message in messages:
        publish(shared, *message)
    aggregator, ignored = collected(shared)
    assert ignored == []
    assert bits(aggregator.model()) == bits(aggregate(messages).model())
    assert aggregator.children == aggregate(messages).children


def test_any_order_with_repetitions_gives_the_same_bits(shared):
    messages = [(f"child {c}", v, summary_of(c, 20 * (v + 1))) for c in range(4) for v in range(3)]
    aggregator = Aggregator(rank=3)
    shuffled = messages * 2
    random.Random(3).shuffle(shuffled)
    for message in shuffled:
        publish(shared, *message)
        assert collect(shared, aggregator) == []
    late, _ = collected(shared)
    assert bits(aggregator.model()) == bits(late.model()) == bits(aggregate(messages).model())


def test_an_old_version_that_comes_late_changes_nothing(shared):
    publish(shared, "a", 10, summary_of(1))
    aggregator, _ = collected(shared)
    publish(shared, "a", 9, summary_of(2))
    assert collect(shared, aggregator) == []
    assert aggregator.children["a"].version == 10  # newer as a number, though "9" sorts after "10"
    assert collected(shared)[0].children["a"].version == 10


def test_what_is_known_is_not_read_again_even_after_a_restart(tmp_path, monkeypatch):
    folder, store = tmp_path / "shared", tmp_path / "store"
    folder.mkdir()
    for seed in range(3):
        publish(folder, f"{seed}", 1, summary_of(seed))
    put(folder, "bad.1.safetensors", b"nonsense")
    aggregator = Aggregator(store=store)
    before = collect(folder, aggregator)
    aggregator.close()
    opened, reads = model_file.opened, []
    monkeypatch.setattr(model_file, "opened", lambda data, name: (reads.append(name), opened(data, name))[1])
    again = Aggregator(store=store)
    reads.clear()  # those of the store
    assert collect(folder, again, before=before) == before
    assert reads == []
    publish(folder, "1", 2, summary_of(5))
    assert collect(folder, again, before=before) == before
    assert reads == ["1.2.safetensors"]
    put(folder, "bad.1.safetensors", b"other nonsense")
    assert len(collect(folder, again, before=before)) == 1
    assert reads == ["1.2.safetensors", "bad.1.safetensors"]


def test_what_was_withdrawn_stays_out_until_there_is_a_newer_version(shared):
    for seed in range(2):
        publish(shared, f"{seed}", 1, summary_of(seed))
    aggregator = Aggregator()
    collect(shared, aggregator)
    aggregator.withdraw("0")
    assert collect(shared, aggregator) == []
    assert list(aggregator.children) == ["1"]
    assert aggregator.versions == {"0": 1, "1": 1}
    publish(shared, "0", 2, summary_of(5))  # the owner's next version
    collect(shared, aggregator)
    assert list(aggregator.children) == ["0", "1"]


def test_a_refusal_is_noted_once_however_often_the_folder_is_looked_at(shared):
    publish(shared, "a", 1, summary_of(0))
    publish(shared, "b", 1, summary_of(1, n_features=3))
    aggregator, ignored = Aggregator(), ()
    for _ in range(3):
        ignored = collect(shared, aggregator, before=ignored)
    assert [item.file for item in ignored] == ["b.1.safetensors"]
    assert [event.what for event in aggregator.history] == ["accepted", "rejected", "model"]


def test_where_exact_moments_travel_the_model_is_exact(shared):
    rows = rows_of(0, 900, 60) + np.repeat(np.arange(3), 300)[:, None]
    for child, part in zip("abc", np.array_split(rows, 3), strict=True):
        publish(shared, child, 1, StreamingPCA(2).fit(part).summary_)
    model = collected(shared)[0].model()
    exact = Subspace.from_rows(rows, 3)
    np.testing.assert_allclose(model.singular_values, exact.singular_values, rtol=1e-10)
    np.testing.assert_allclose(np.abs(model.components @ exact.components.T), np.eye(3), atol=1e-8)


@pytest.mark.parametrize("limits", [{"max_rows": 100}, {"max_rms": 1e6}])
def test_limits_are_those_of_the_aggregator(shared, limits):
    publish(shared, "good", 1, summary_of(0))
    publish(shared, "huge", 1, Subspace.from_rows(1e100 * np.eye(8)[:2]))
    publish(shared, "many", 1, summary_of(1, 200))
    aggregator = Aggregator(rank=3, limits=Limits(**limits))
    (item,) = collect(shared, aggregator)
    assert item.file == ("many.1.safetensors" if "max_rows" in limits else "huge.1.safetensors")
    assert "good" in aggregator.children


# --- dropping ---


def test_a_version_is_written_once(shared):
    path = publish(shared, "a", 1, summary_of(0))
    contents = contents_of(path)
    assert publish(shared, "a", 1, summary_of(0)) == path
    for other in (summary_of(1), summary_of(0, 200), Subspace.from_rows(rows_of(0))):
        with pytest.raises(FileExistsError, match="newer version"):
            publish(shared, "a", 1, other)
    assert contents_of(path) == contents
    publish(shared, "a", 2, summary_of(1))
    assert collected(shared)[0].children["a"].version == 2


def test_a_dropped_file_is_a_model_file_like_any_other(tmp_path):
    for summary in (summary_of(0), Moments.from_rows(rows_of(0))):
        assert fedpca.load(publish(tmp_path, type(summary).__name__, 1, summary)) == summary
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}  # and no temporary ones


def test_where_links_are_not_to_be_had_a_file_is_still_whole(tmp_path, monkeypatch):
    def no_links(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    test_a_version_is_written_once(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_drop_that_fails_leaves_nothing(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match="No space left"):
            publish(shared, "a", 1, summary_of(0))
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("child", "version", "summary", "rule"),
    [
        ("", 0, None, "must not be empty"),
        (3, 0, None, "must be a string"),
        ("x" * 1001, 0, None, "1000"),
        ("\ud800", 0, None, "UTF-8"),
        ("a", -1, None, "at least 0"),
        ("a", 1.5, None, "whole number"),
        ("a", 2**63, None, "at most"),
        ("a", 0, "hello", "Subspace or Moments"),
    ],
)
def test_what_cannot_be_dropped_is_said(tmp_path, child, version, summary, rule):
    with pytest.raises((TypeError, ValueError), match=rule):
        publish(tmp_path, child, version, summary or summary_of(0))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    for call in (
        lambda where: publish(where, "a", 1, summary_of(0)),
        lambda where: collect(where, Aggregator()),
    ):
        with pytest.raises(FileNotFoundError, match="make or mount it"):
            call(tmp_path / "not mounted")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_place_gives_an_empty_aggregator(shared):
    aggregator, ignored = collected(shared)
    assert ignored == []
    assert not aggregator.children
    publish(shared, "a", 0, summary_of(0))  # so that the bucket has something to clear away


# --- names ---

NAMES = ["../../etc/passwd", "a/b", "..", ".hidden", "ünïcode", "x" * 900, "x" * 901, "con", "a%2Fb", "a.1",
         " ", "A", "a", "a\n", "a\0b", "-rf", "North Hospital", "日本"]  # fmt: skip


def test_names_come_back_as_they_were_and_stay_in_the_folder(shared):
    for seed, child in enumerate(NAMES):
        path = publish(shared, child, 3, summary_of(seed))
        name = str(path).removeprefix(f"{shared}/")
        assert "/" not in name
        assert name == name.lower()  # so that "A" and "a" differ on drives that ignore case
        assert len(name) < 200
    aggregator, ignored = collected(shared)
    assert ignored == []
    assert set(aggregator.children) == set(NAMES)
    if "://" not in str(shared):
        assert len(list(shared.iterdir())) == len(NAMES)
        assert {path.name for path in shared.parent.iterdir()} == {shared.name}


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), st.integers(0, 2**63 - 1)
    )
)
def test_any_text_is_a_name_and_any_number_a_version(children):
    summary = summary_of(0, 10, 2)
    with tempfile.TemporaryDirectory() as folder:
        for child, version in children.items():
            publish(folder, child, version, summary)
        aggregator, ignored = collected(folder)
    assert ignored == []
    assert {name: child.version for name, child in aggregator.children.items()} == children


def test_a_file_that_was_renamed_does_not_count(shared):
    contents = contents_of(publish(shared, "a", 1, summary_of(0)))
    for name in ("b.1.safetensors", "a.2.safetensors", "a%2e%2e.1.safetensors"):
        put(shared, name, contents)
    aggregator, ignored = collected(shared)
    assert {name: child.version for name, child in aggregator.children.items()} == {"a": 1}
    assert {item.reason for item in ignored} == {"renamed: it is version 1 of 'a'."}
    assert len(ignored) == 3


# --- strangers' files ---


def test_bad_files_are_told_and_the_rest_count(shared):
    good = [("a", 1, summary_of(0)), ("b", 1, summary_of(1))]
    for message in good:
        publish(shared, *message)
    whole = contents_of(publish(shared, "half", 1, summary_of(2)))
    put(shared, "half.1.safetensors", whole[: len(whole) // 2])
    contents = contents_of(publish(shared, "flipped", 1, summary_of(3)))
    put(shared, "flipped.1.safetensors", contents[:-9] + bytes([contents[-9] ^ 1]) + contents[-8:])
    put(shared, "noise.5.safetensors", random.Random(0).randbytes(5000))
    put(shared, "nothing.5.safetensors", b"")
    put(shared, "notes.txt", b"what we did")
    put(shared, "a.02.safetensors", whole)
    put(shared, "A.2.safetensors", whole)
    put(shared, ".fedpca-0123.part", whole[:100])
    publish(shared, "narrow", 1, summary_of(4, n_features=3))
    publish(shared, "uncentered", 1, Subspace.from_rows(rows_of(5), center=False))
    aggregator, ignored = collected(shared)
    assert bits(aggregator.model()) == bits(aggregate(good).model())
    reasons = {item.file: item.reason for item in ignored}
    expected = {
        "A.2.safetensors": "file name is not",
        "a.02.safetensors": "file name is not",
        "flipped.1.safetensors": "flipped.1.safetensors is damaged",
        "half.1.safetensors": "half.1.safetensors is not a model file",
        "narrow.1.safetensors": "rejected: 'narrow', version 1: summaries must have the same features",
        "noise.5.safetensors": "not a model file",
        "notes.txt": "file name is not",
        "nothing.5.safetensors": "not a model file",
        "uncentered.1.safetensors": "uncentered",
    }
    assert list(reasons) == sorted(expected)
    assert [file for file, reason in reasons.items() if expected[file] not in reason] == []


def test_while_the_newest_is_half_written_the_one_before_counts(shared):
    publish(shared, "a", 1, summary_of(0))
    whole = contents_of(publish(shared, "a", 2, summary_of(1)))
    put(shared, "a.2.safetensors", whole[:300])
    aggregator, ignored = collected(shared)
    assert aggregator.children["a"].version == 1
    put(shared, "a.2.safetensors", whole)
    assert collect(shared, aggregator, before=ignored) == []
    assert aggregator.children["a"].version == 2


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255), cut=st.booleans())
def test_no_flipped_byte_and_no_cut_changes_the_model(position, flip, cut):
    """Either the file is ignored, or, where JSON allows the change, it says the same."""
    message = ("a", 1, summary_of(0, 20, 3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(publish(folder, *message))
        contents = path.read_bytes()
        position %= len(contents)
        changed = contents[position] ^ flip
        path.write_bytes(contents[:position] + (b"" if cut else bytes([changed]) + contents[position + 1 :]))
        aggregator, ignored = collected(folder)
    assert len(ignored) + len(aggregator.children) == 1
    if not ignored:
        assert bits(aggregator.model()) == bits(aggregate([message]).model())


def test_large_files_are_not_read(shared):
    path = publish(shared, "a", 1, summary_of(0))
    publish(shared, "b", 1, summary_of(1, 10, 2))
    size = len(contents_of(path))
    aggregator, (item,) = collected(shared, max_bytes=size - 1)
    assert item.file == "a.1.safetensors"
    assert item.reason == f"{size} bytes are more than max_bytes={size - 1}."
    assert list(aggregator.children) == ["b"]
    assert collect(shared, Aggregator(), max_bytes=size)[0].file == "b.1.safetensors"  # other features


def test_a_small_file_takes_little_memory(shared):
    publish(shared, "north", 1, summary_of(0))
    tracemalloc.start()
    aggregator, _ = collected(shared)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(aggregator.children) == ["north"]
    assert most < 2**23  # bytes, and not the most that a file may have


def test_links_pipes_and_folders_are_left_alone(tmp_path):
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.mkdir()
    publish(shared, "a", 1, summary_of(0))
    (shared / "secret.1.safetensors").symlink_to(publish(elsewhere, "secret", 1, summary_of(1)))
    (shared / "endless.1.safetensors").symlink_to("/dev/zero")
    os.mkfifo(shared / "pipe.1.safetensors")  # to open it would wait for a writer
    (shared / "folder.1.safetensors").mkdir()
    (shared / os.fsdecode(b"\xff.1.safetensors")).mkdir()
    aggregator, ignored = collected(shared)
    assert list(aggregator.children) == ["a"]
    assert {item.reason for item in ignored} == {"not a regular file."}
    assert len(ignored) == 5
    "".join(item.file for item in ignored).encode()  # can be printed


def test_a_file_swapped_for_a_pipe_or_grown_after_it_was_listed_does_not_stop_the_others(
    tmp_path, monkeypatch
):
    from fedpca.federation.folder import storage as shared_files

    def entries(self):
        found = list_entries(self)
        for child in "ab":
            (tmp_path / f"{child}.1.safetensors").unlink()
        os.mkfifo(tmp_path / "a.1.safetensors")
        (tmp_path / "d.1.safetensors").write_bytes(bytes(10**6))
        return found

    for child in "abcd":
        publish(tmp_path, child, 1, summary_of(0))
    list_entries = shared_files.LocalFolder.entries
    monkeypatch.setattr(shared_files.LocalFolder, "entries", entries)
    aggregator, ignored = collected(tmp_path, max_bytes=10**5)
    assert list(aggregator.children) == ["c"]
    assert ["regular file" in ignored[0].reason, "No such file" in ignored[1].reason] == [True, True]
    assert "grown" in ignored[2].reason


def test_a_forged_author_is_no_author(tmp_path):
    summary = summary_of(0)
    arrays, facts = summary.arrays, summary.metadata
    forged = [{}, {"child": 3, "version": 1}, {"child": "a", "version": True}, {"child": "a", "version": "1"},
              {"child": "", "version": 1}, {"child": "x" * 5000, "version": 1},
              {"child": "\ud800", "version": 1}, {"child": ["a"], "version": 1}]  # fmt: skip
    for more in forged:
        model_file.write(tmp_path / "a.1.safetensors", "subspace", arrays, facts | more)
        aggregator, (item,) = collected(tmp_path)
        assert not aggregator.children
        assert item.file == "a.1.safetensors"
        assert len(item.reason) <= 500


def test_trouble_of_the_aggregator_is_not_blamed_on_the_file(tmp_path):
    class Full(MemoryStore):
        def put(self, message):
            raise OSError(28, "No space left on device")

    publish(tmp_path, "a", 1, summary_of(0))
    with pytest.raises(OSError, match="No space left"):
        collect(tmp_path, Aggregator(store=Full()))


def test_a_file_that_could_not_be_read_is_read_again(tmp_path, monkeypatch):
    from fedpca.federation.folder import storage as shared_files

    def denied(self, name, max_bytes):
        raise PermissionError(13, "Permission denied")

    publish(tmp_path, "a", 1, summary_of(0))
    aggregator = Aggregator()
    with monkeypatch.context() as patch:
        patch.setattr(shared_files.LocalFolder, "read", denied)
        before = collect(tmp_path, aggregator)
    assert "Permission denied" in before[0].reason
    assert collect(tmp_path, aggregator, before=before) == []
    assert list(aggregator.children) == ["a"]


def test_a_file_whose_decoding_failed_for_another_reason_is_read_again(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    publish(tmp_path, "a", 1, summary_of(0))
    aggregator = Aggregator()
    with monkeypatch.context() as patch:
        patch.setattr(model_file, "opened", full)
        before = collect(tmp_path, aggregator)
    assert "No space left" in before[0].reason
    assert collect(tmp_path, aggregator, before=before) == []


def test_a_rejected_file_is_read_again_once_the_aggregator_has_changed(shared):
    publish(shared, "a", 1, summary_of(0, n_features=3))
    for child in "bc":
        publish(shared, child, 1, summary_of(1))
    aggregator = Aggregator()
    before = collect(shared, aggregator)
    assert [item.file for item in before] == ["b.1.safetensors", "c.1.safetensors"]
    assert collect(shared, aggregator, before=before) == before
    assert len(aggregator.history) == 4  # one accepted, two rejected once each, one model
    aggregator.withdraw("a")
    assert collect(shared, aggregator, before=before) == []
    assert list(aggregator.children) == ["b", "c"]


def test_whatever_goes_wrong_with_one_summary_the_others_count(tmp_path, monkeypatch):
    def receive(self, message, **more):
        if message.child == "b":
            raise OverflowError("int too large to convert to float")
        return accept(self, message, **more)

    accept = Aggregator.receive_message
    monkeypatch.setattr(Aggregator, "receive_message", receive)
    for child in "abc":
        publish(tmp_path, child, 1, summary_of(0))
    aggregator, (item,) = collected(tmp_path)
    assert list(aggregator.children) == ["a", "c"]
    assert (item.file, item.reason) == (
        "b.1.safetensors", "rejected: OverflowError: int too large to convert to float",
    )  # fmt: skip


HOSTILE_CERTIFICATES = [
    {"noise_edge": 10**400}, {"x": float("nan")}, {"warnings": 5}, {"warnings": [1, "a"]}, {"releases": 7},
    {"stream": ["x"]}, {"mu": 10**400}, {"mu": "x"}, {"releases": [{}]}, {"releases": "abc"},
]  # fmt: skip


@pytest.mark.parametrize("certificate", HOSTILE_CERTIFICATES, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("private", [False, True], ids=["clean", "private"])
@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_one_certificate_does_not_stop_a_folder(tmp_path, certificate, private, stored):
    privacy = Privacy(2.0, 1e-5, 3.0, center=None, evaluate=False) if private else None
    folder = tmp_path / "shared"
    folder.mkdir()
    for seed, child in enumerate(("a", "evil", "north")):
        pca = StreamingPCA(2, center=False) if privacy is None else PrivatePCA(2, **privacy.settings)
        publish(folder, child, 1, pca.fit(rows_of(seed, 200)).summary_)
    kind, arrays, metadata = model_file.decode((folder / "evil.1.safetensors").read_bytes(), "evil")
    forged = (metadata.get("certificate") or {}) | certificate
    (folder / "evil.1.safetensors").write_bytes(seal(kind, arrays, metadata | {"certificate": forged}))
    store = tmp_path / "store" if stored else None
    with Aggregator(rank=2, privacy=privacy, store=store) as aggregator:
        (item,) = collect(folder, aggregator)
        assert item.file == "evil.1.safetensors"
        assert list(aggregator.children) == ["a", "north"]
        assert aggregator.model().count == 400


def test_a_copied_private_release_is_that_of_its_owner(tmp_path):
    privacy = Privacy(2.0, 1e-5, 3.0, center=None, evaluate=False)
    for seed, child in enumerate(("north", "south")):
        pca = PrivatePCA(2, **privacy.settings).fit(rows_of(seed, 200))
        publish(tmp_path, child, 1, pca.release())
    publish(tmp_path, "copycat", 1, fedpca.load(tmp_path / "north.1.safetensors"))
    aggregator = Aggregator(rank=2, privacy=privacy)
    (item,) = collect(tmp_path, aggregator)
    assert "stream" in item.reason
    assert aggregator.model().count == 400  # whoever came first; the other one is named


def test_a_message_that_withdraws_does_not_count(tmp_path):
    (tmp_path / "a.1.safetensors").write_bytes(Message("a", 1, None).encode())
    assert "no summary" in collected(tmp_path)[1][0].reason


# --- many at once ---

OWNER = """
import sys
import numpy as np
from fedpca import Subspace
from fedpca.federation.aggregator.message import Message
from fedpca.federation.folder import publish

folder, child = sys.argv[1:]
for version in range(20):
    rows = np.random.default_rng([ord(child), version]).normal(size=(10 + version, 5))
    publish(folder, child, version, Subspace.from_rows(rows))
"""

RIVAL = """
import sys
import numpy as np
from fedpca import Subspace
from fedpca.federation.aggregator.message import Message
from fedpca.federation.folder import publish

folder, seed = sys.argv[1], int(sys.argv[2])
won = 0
for version in range(50):
    try:
        publish(folder, "same", version, Subspace.from_rows(np.random.default_rng(seed).normal(size=(10, 5))))
        won += 1
    except FileExistsError:
        pass
print(won)
"""


def test_processes_may_drop_while_others_collect(fork, tmp_path):
    owners = [fork(OWNER, tmp_path, child) for child in "abc"]
    aggregator = Aggregator(rank=3)
    while any(owner.is_running() for owner in owners):
        assert collect(tmp_path, aggregator) == []  # never half a file
    assert [owner.wait() for owner in owners] == [(0, "", "")] * 3
    collect(tmp_path, aggregator)
    assert {name: child.version for name, child in aggregator.children.items()} == dict.fromkeys("abc", 19)
    assert aggregator.model().count == 3 * 29
    assert bits(aggregator.model()) == bits(collected(tmp_path)[0].model())


def test_of_two_who_claim_the_same_version_one_is_refused(fork, tmp_path):
    rivals = [fork(RIVAL, tmp_path, seed) for seed in range(2)]
    won = [int(rival.wait()[1]) for rival in rivals]
    assert sum(won) == 50
    assert len(list(tmp_path.iterdir())) == 50


def test_without_fsspec_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"fedpca\[folder\]"):
        collect("s3://bucket/study", Aggregator())


def test_a_file_url_is_a_folder(tmp_path):
    publish(f"file://{tmp_path}", "a", 1, summary_of(0))
    assert collected(tmp_path)[0].children["a"].version == 1
    assert SkippedFile("a", "because", "1 2 3") != SkippedFile("a", "because", "1 2 4")
