"""A message survives its encoding unchanged; bytes that are anything else are rejected in one line."""

import time

import numpy as np
import pytest
from helpers import power_law
from hypothesis import given
from hypothesis import strategies as st

import fedpca
from fedpca import ModelFileError, Moments, PrivatePCA, Subspace
from fedpca.federation import ChildEvent, FolderStore, Message, ModelEvent, State
from fedpca.summaries import model_file

ROWS = power_law(np.random.default_rng(0), 50, 6)
SUMMARIES = {
    "subspace": lambda: Subspace.from_rows(ROWS, rank=3),
    "single": lambda: Subspace.from_rows(ROWS.astype(np.float32)).with_about(names=list("abcdef")),
    "moments": lambda: Moments.from_rows(ROWS, center=False),
    "private": lambda: (
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).fit(ROWS).release()
    ),
    "withdrawn": lambda: None,
}


@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_decoded_message_is_the_one_encoded(kind):
    message = Message("north", np.int64(7), SUMMARIES[kind]())
    assert type(message.version) is int
    assert Message.decode(message.encode()) == message
    assert message.encode() == message.encode()


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=100), st.integers(0, 2**63 - 1))
def test_any_name_and_version_survive(child, version):
    message = Message(child, version, None)
    assert Message.decode(message.encode()) == message


def test_a_message_is_a_model_file_unless_it_is_a_withdrawal(tmp_path):
    summary = SUMMARIES["subspace"]()
    (tmp_path / "message").write_bytes(Message("north", 1, summary).encode())
    assert fedpca.load(tmp_path / "message") == summary
    (tmp_path / "message").write_bytes(Message("north", 1, None).encode())
    with pytest.raises(ModelFileError, match="contains 'withdrawn'"):
        fedpca.load(tmp_path / "message")


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({}, "x is not a message: 'child' is missing; send the summary again"),
        ({"child": "a"}, "'version' is missing"),
        ({"child": 3, "version": 1}, "child must be a string, got 3"),
        ({"child": "a", "version": True}, "version must be a whole number"),
        ({"child": "a", "version": 1.0}, "version must be a whole number"),
        ({"child": "a", "version": -1}, "version must be at least 0"),
        ({"child": "a", "version": 2**63}, "version must be at most"),
        ({"child": "\ud800", "version": 1}, "child must be encodable as UTF-8"),
        ({"child": "a" * 1001, "version": 1}, "child must have at most 1000 characters, got 1001"),
    ],
)
def test_anything_else_is_rejected(metadata, rule):
    summary = SUMMARIES["subspace"]()
    contents = model_file.encode("subspace", summary.arrays, summary.metadata | metadata)
    with pytest.raises(ModelFileError, match=rule):
        Message.decode(contents, "x")


@pytest.mark.parametrize("summary", ["hello", 3, np.eye(2)])
def test_a_message_has_a_summary(summary):
    with pytest.raises(TypeError, match="a summary must be a Subspace or Moments"):
        Message("north", 1, summary)


# --- stores ---


def test_a_folder_store_gives_back_what_was_put_and_logged(tmp_path):
    store = FolderStore(tmp_path)
    states = [
        State(Message(kind, 3, make()), n, "key"[:n]) for n, (kind, make) in enumerate(SUMMARIES.items())
    ]
    for state in states:
        store.put(state)
    events = [
        ChildEvent(child="a", version=1, what="rejected", reason="why"),
        ModelEvent(version=2, count=5.0, children=1, explained=0.5, angle=None),
    ]
    for event in events:
        store.log(event)
    again = FolderStore(tmp_path)
    assert again.states() == {state.message.child: state for state in states}
    assert again.history() == events
    assert again.version == 4


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308])
@pytest.mark.parametrize("kind", ["subspace", "moments"])
@pytest.mark.parametrize("name", ["total", "count"])
def test_numbers_too_large_for_a_float_are_rejected_like_any_other(kind, name, value):
    summary = SUMMARIES[kind]()
    contents = model_file.encode(
        kind, summary.arrays, summary.metadata | {name: value, "child": "a", "version": 1}
    )
    if name in summary.metadata:
        with pytest.raises(ModelFileError, match=rf"{name} must be .{{10,200}}$"):
            Message.decode(contents)


def test_a_file_of_very_many_arrays_is_rejected_by_its_header():
    tensors = {f"{number}": np.zeros(0) for number in range(20_000)}
    contents = model_file.encode("subspace", tensors, {})
    started = time.perf_counter()
    with pytest.raises(ModelFileError, match="too much beside fedpca's metadata"):
        Message.decode(contents)
    assert time.perf_counter() - started < 2


def test_feature_names_that_look_alike_are_shown_letter_by_letter():
    one, two = (SUMMARIES["subspace"]().with_about(names=[name, *"bcdef"]) for name in ("\u00e9", "e\u0301"))
    with pytest.raises(ValueError, match=r"only one has '\\xe9', and only another 'e\\u0301'"):
        fedpca.merge([one, two])
    with pytest.raises(ValueError, match="only one has '\u00e9', and only another 'x'"):
        fedpca.merge([one, SUMMARIES["subspace"]().with_about(names=[*"xbcdef"])])
