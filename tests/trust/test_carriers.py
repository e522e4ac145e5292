"""One contract of all carriers: of what is sent to a study with a roster, only what members signed counts.

Each attack is tried in memory, in a folder, in a bucket and over Flower, and refused for the same reason.
"""

import json
from dataclasses import replace

import pytest
from flower_grid import FakeGrid, pretend_to_be_flower, run, sends
from helpers import rows_of

from fedpca import Aggregator, Moments, Roster, SigningKey, Subspace
from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator.message import Message, file_name
from fedpca.federation.folder import collect
from fedpca.summaries import model_file
from fedpca.trust import Member

KEYS = {name: SigningKey.new() for name in ("north", "south", "eve")}
CARRIERS = ("memory", "folder", "bucket", "flower")


def summary_of(seed, n_rows=60):
    return Subspace.from_rows(rows_of(seed, n_rows, 5), rank=4)


class Memory:
    """What arrives is decoded and handed to an aggregator."""

    def __init__(self, tmp_path, roster):
        self.aggregator = Aggregator(rank=3, roster=roster)

    def deliver(self, child, version, contents):
        """Why it does not count; "" if it does."""
        try:
            self.aggregator.receive_message(Message.decode(contents))
        except (SummaryRejected, ValueError) as error:
            return str(error)
        return ""

    @property
    def versions(self):
        return dict(self.aggregator.versions)


class Folder(Memory):
    """Every file comes alone, as an attacker with access to the folder can arrange it."""

    def __init__(self, tmp_path, roster):
        super().__init__(tmp_path, roster)
        self.root, self.number = tmp_path, 0

    def deliver(self, child, version, contents):
        self.number += 1
        path = self.root / f"shared {self.number}"
        path.mkdir()
        name = f"{file_name(child)}.{version}.safetensors"
        (path / name).write_bytes(contents)
        return "".join(item.reason for item in collect(path, self.aggregator))


class Bucket(Folder):
    def deliver(self, child, version, contents):
        fsspec = pytest.importorskip("fsspec")
        self.number += 1
        path = f"memory://{self.root.name}-{self.number}"
        with fsspec.open(f"{path}/{file_name(child)}.{version}.safetensors", "wb") as file:
            file.write(contents)
        return "".join(item.reason for item in collect(path, self.aggregator))


class Flower:
    """A run per message: the node that sends it was admitted by Flower."""

    def __init__(self, tmp_path, roster):
        self.folder, self.path = tmp_path / "server", tmp_path / "roster.toml"
        roster.save(self.path)

    def deliver(self, child, version, contents):
        summary = run(FakeGrid(n1=sends(contents)), self.folder, replies=1, roster=str(self.path))
        [reply] = summary["replies"]
        assert reply["client"] == ("" if "damaged signature" in reply["reason"] else child)
        assert (reply["what"] == "rejected") == bool(reply["reason"])
        return reply["reason"]

    @property
    def versions(self):
        summary = json.loads((self.folder / "summary.json").read_text())
        return {child: each["version"] for child, each in summary["contributors"].items()}


@pytest.fixture
def roster():
    members = [Member(name, KEYS[name].public, rows) for name, rows in (("north", 100), ("south", 100))]
    return Roster("study-1", members)


@pytest.fixture(params=CARRIERS)
def carrier(request, tmp_path, roster, monkeypatch):
    """A carrier on which north has sent version 2."""
    pretend_to_be_flower(monkeypatch)
    kinds = dict(zip(CARRIERS, (Memory, Folder, Bucket, Flower), strict=True))
    carrier = kinds[request.param](tmp_path, roster)
    assert carrier.deliver("north", 2, message(roster, "north", 2)) == ""
    assert carrier.versions == {"north": 2}
    return carrier


def message(roster, child, version=1, seed=0, n_rows=60, key=None, change=None):
    """Signed under a roster by the child, or with another key; and changed since."""
    contents = Message(child, version, summary_of(seed, n_rows)).encode()
    signed = roster.signer(KEYS[key or child]).sign(contents)
    if change is None:
        return signed
    kind, arrays, metadata = model_file.decode(signed, "it")
    changed = model_file.encode(kind, *change(arrays, metadata))
    return model_file.with_signature(changed, model_file.opened(signed, "it").signature)


def with_eve(roster):
    return roster.with_member(Member("eve", KEYS["eve"].public))


ATTACKS = {
    "unsigned": (
        "south",
        1,
        lambda roster: Message("south", 1, summary_of(1)).encode(),
        "must be signed by a member of study 'study-1', and is unsigned",
    ),
    "a stranger": (
        "eve",
        1,
        lambda roster: message(with_eve(roster), "eve"),
        "'eve' is not a member of study 'study-1'",
    ),
    "another study": (
        "south",
        1,
        lambda roster: message(Roster("study-2", roster.members.values()), "south"),
        "signed for study 'study-2', and this is 'study-1'",
    ),
    "changed rows": (
        "south",
        1,
        lambda roster: message(
            roster, "south", change=lambda arrays, facts: (arrays | {"mean": arrays["mean"] + 1}, facts)
        ),
        "was changed after 'south' signed it",
    ),
    "changed version": (
        "south",
        7,
        lambda roster: message(
            roster, "south", change=lambda arrays, facts: (arrays, facts | {"version": 7})
        ),
        "was changed after 'south' signed it",
    ),
    "the key of another member": (
        "south",
        1,
        lambda roster: message(roster, "south", key="north"),
        "signed with a wrong key, that of 'north'",
    ),
    "a key that is nobody's": (
        "south",
        1,
        lambda roster: message(
            Roster("study-1", [Member("south", KEYS["eve"].public)]), "south", key="eve"
        ),
        "signed with a wrong key, no member's",
    ),
    "a roster that the reader does not know": (
        "south",
        1,
        lambda roster: message(with_eve(roster), "south"),
        "get the newest roster",
    ),
    "an older version": (
        "north",
        1,
        lambda roster: message(roster, "north", 1),
        "rolled back: version 2 of 'north' is known, and this is version 1",
    ),
    "another summary of one version": (
        "north",
        2,
        lambda roster: message(roster, "north", 2, seed=1),
        "equivocation: 'north' has signed two different summaries as version 2",
    ),
    "more rows than declared": (
        "south",
        1,
        lambda roster: message(roster, "south", n_rows=101),
        "'south' declared 100 rows in the roster, and this is of 101",
    ),
    "a damaged signature": (
        "south",
        1,
        lambda roster: model_file.with_signature(message(roster, "south"), {"study": "study-1"}),
        "has a damaged signature",
    ),
    "a withdrawal of another": (
        "north",
        3,
        lambda roster: roster.signer(KEYS["south"]).sign(Message("north", 3, None).encode()),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_by_name_and_changes_nothing(carrier, roster, attack):
    child, version, made, reason = ATTACKS[attack]
    found = carrier.deliver(child, version, made(roster))
    assert found
    assert reason in found
    assert carrier.versions == {"north": 2}
    assert carrier.deliver("south", 1, message(roster, "south")) == ""  # the owner itself is heard
    assert carrier.versions == {"north": 2, "south": 1}


def test_the_same_again_changes_nothing_under_a_newer_roster_as_well(carrier, roster):
    assert carrier.deliver("north", 2, message(roster, "north", 2)) == ""
    assert carrier.versions == {"north": 2}
    assert carrier.deliver("north", 3, message(roster, "north", 3, seed=4)) == ""
    assert carrier.versions == {"north": 3}


def test_moments_are_signed_like_directions(carrier, roster):
    contents = Message("south", 1, Moments.from_rows(rows_of(1, 60, 5))).encode()
    signed = roster.signer(KEYS["south"]).sign(contents)
    assert carrier.deliver("south", 1, signed) == ""
    assert replace(Message.decode(signed)) == Message.decode(contents)
