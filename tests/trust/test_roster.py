"""Keys, signatures of model files and rosters: who may speak, and what is refused by name."""

import base64
import copy
import json
import os
import pickle
import stat
import tomllib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from safetensors.numpy import load as load_tensors

import fedpca
from fedpca import Roster, SigningKey, Subspace
from fedpca.errors import ModelFileError, OutdatedRoster, SignatureError
from fedpca.federation.aggregator.message import Message
from fedpca.trust import Member, PublicKey, envelope

NORTH, SOUTH, STRANGER = (  # the same in every process: names of tests contain them
    SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in (1, 2, 3)
)


@pytest.fixture
def roster():
    members = [Member("north", NORTH.public, rows=100), Member("south", SOUTH.public)]
    return Roster("study-1", members, {"rank": 2})


def message(child="north", version=1, seed=0):
    rows = np.random.default_rng(seed).normal(size=(20, 3))
    return Message(child, version, Subspace.from_rows(rows)).encode()


# --- keys ---


def test_a_key_file_is_closed_to_others_and_never_overwritten(tmp_path):
    path = tmp_path / "north.key"
    old = os.umask(0)
    try:
        NORTH.save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    contents = path.read_bytes()
    with pytest.raises(FileExistsError, match="never overwritten"):
        SOUTH.save(path)
    assert path.read_bytes() == contents
    assert [item.name for item in tmp_path.iterdir()] == ["north.key"]
    assert SigningKey.load(path).public == NORTH.public


def test_a_key_file_is_that_of_any_other_program(tmp_path):
    NORTH.save(tmp_path / "north.key")
    private = load_pem_private_key((tmp_path / "north.key").read_bytes(), None)
    raw = base64.b64decode(NORTH.public.text.removeprefix("ed25519:"))
    ed25519.Ed25519PublicKey.from_public_bytes(raw).verify(private.sign(b"rows"), b"rows")
    assert private.sign(b"rows") == NORTH.sign(b"rows")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_that_others_can_use_is_refused_with_the_remedy(tmp_path, mode):
    path = tmp_path / "north.key"
    NORTH.save(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=rf"{mode:o}; run `chmod 600 {path}`"):
        SigningKey.load(path)


def test_what_is_no_key_is_refused(tmp_path):
    path = tmp_path / "other.key"
    other = rsa.generate_private_key(65537, 2048)
    private = ed25519.Ed25519PrivateKey.generate()
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    for contents in (
        b"",
        b"no key",
        other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        locked,
    ):
        path.write_bytes(contents)
        path.chmod(0o600)
        with pytest.raises(ValueError, match="must have one Ed25519 key"):
            SigningKey.load(path)
    with pytest.raises(FileNotFoundError, match="no such key file"):
        SigningKey.load(tmp_path / "missing.key")
    with pytest.raises((ValueError, OSError)):
        SigningKey.load(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="must be a file"):
        SigningKey.load(tmp_path / "pipe")


def test_a_key_does_not_leave_its_process_and_is_not_shown(tmp_path):
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            way(NORTH)
    NORTH.save(tmp_path / "north.key")
    secret = (tmp_path / "north.key").read_text().splitlines()[1]
    assert secret not in repr(NORTH)
    assert repr(NORTH) == f"SigningKey(public='{NORTH.public}')"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        "rsa:AAAA",
        NORTH.public.text[:-1],
        NORTH.public.text + "\n",
        NORTH.public.text.replace("ed25519", "ED25519"),
        "ed25519:" + "A" * 88,
        "ed25519:" + "é" * 44,
    ],
)
def test_a_public_key_has_one_spelling(text):
    with pytest.raises(ValueError, match="a public key must be"):
        PublicKey(text)


@pytest.mark.parametrize(
    "point",
    [
        "00" * 32,
        "00" * 31 + "80",
        "01" + "00" * 31,
        "01" + "00" * 30 + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
        "ff" * 32,
    ],
)
def test_a_key_that_anyone_can_sign_for_is_refused(point):
    text = "ed25519:" + base64.b64encode(bytes.fromhex(point)).decode()
    with pytest.raises(ValueError, match="a public key must be that of a signing key, and anyone can sign"):
        Member("north", text)


def test_rows_are_declared_as_any_whole_number():
    declared = [Member("north", NORTH.public, rows=rows) for rows in (500, np.int64(500))]
    assert Roster("study-1", declared[:1]) == Roster("study-1", declared[1:])


# --- signatures of files ---


def test_a_signed_file_is_still_a_model_file(tmp_path, roster):
    contents = message()
    signed = roster.signer(NORTH).sign(contents)
    assert Message.decode(signed) == Message.decode(contents)
    (tmp_path / "model.safetensors").write_bytes(signed)
    assert fedpca.load(tmp_path / "model.safetensors") == Message.decode(contents).summary
    assert load_tensors(signed).keys() == load_tensors(contents).keys()
    found = roster.check(signed, "north")
    assert (found.study, found.roster, found.key) == ("study-1", roster.hash, NORTH.public)


def test_signing_again_replaces_the_signature(roster):
    signed = roster.signer(NORTH).sign(message())
    assert roster.signer(NORTH).sign(signed) == signed
    assert roster.check(roster.signer(SOUTH).sign(roster.signer(NORTH).sign(message("south"))), "south")


def test_every_changed_byte_is_found(roster):
    """Each byte of the header, of the arrays and of the signature itself, changed alone."""
    signed = roster.signer(NORTH).sign(message())
    length = int.from_bytes(signed[:8], "little")
    value = envelope.read(signed).signature.value.encode()
    start = signed.index(value)
    positions = {
        *range(8 + length),
        *range(start, start + len(value)),
        *range(8 + length, len(signed)),
    }
    for position in sorted(positions):
        changed = bytearray(signed)
        changed[position] ^= 1
        with pytest.raises((SignatureError, ModelFileError)):
            roster.check(bytes(changed), "north")
    for changed in (signed[:-1], signed + b"\0", signed[:8], b""):
        with pytest.raises((SignatureError, ModelFileError)):
            roster.check(changed, "north")


def test_a_signature_spelled_otherwise_does_not_hold(roster):
    signed = roster.signer(NORTH).sign(message())
    value = envelope.read(signed).signature.value.encode()
    assert value.upper() != value
    with pytest.raises(SignatureError, match="damaged signature"):
        roster.check(signed.replace(value, value.upper()), "north")


def test_the_signature_of_another_file_does_not_hold(roster):
    signer = roster.signer(NORTH)
    one, other = signer.sign(message(seed=0)), signer.sign(message(seed=1))
    values = [envelope.read(contents).signature.value.encode() for contents in (one, other)]
    with pytest.raises(SignatureError, match="was changed after 'north' signed it"):
        roster.check(one.replace(*values), "north")


def test_a_signature_of_another_kind_does_not_hold(roster):
    found = envelope.read(roster.signer(NORTH).sign(message())).signature
    fields = {name: value for name, value in found.to_json().items() if name != "value"}
    fields["checksum"] = found.checksum
    assert envelope.holds("file", fields, found.value, NORTH.public)
    assert found.value == envelope.signature("file", fields, NORTH)
    for other in ("ledger line", "message", "file 2", ""):
        assert not envelope.holds(other, fields, found.value, NORTH.public)
    for name in fields:
        assert not envelope.holds("file", fields | {name: "x"}, found.value, NORTH.public)


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"a": 1}', b'{"a":1}\n', b' {"a":1}', b'{"b":1,"a":1}', b'{"a":1,"a":1}', b'{"a":1.00}'),
        *(b'{"a":"\\u00e4"}', b'{"a":NaN}', b"[1]", b"1", b"", b"\xff", b'{"a":' + 10**5 * b"[" + b"}"),
    ],
)
def test_a_line_has_one_spelling(line):
    with pytest.raises(ValueError, match="must be one line of canonical JSON"):
        envelope.parsed(line)


def test_names_that_look_like_a_signature_do_no_harm(roster):
    names = ('"' + "0" * 128 + '"', "0" * 128)
    summary = Subspace.from_rows([[1.0, 2.0], [3.0, 1.0]]).with_about(names=names)
    odd = Roster('"' + "0" * 128 + '"', roster.members.values())
    signed = odd.signer(NORTH).sign(Message("north", 1, summary).encode())
    assert odd.check(signed, "north").study == odd.study
    assert Message.decode(signed).summary.feature_names == names


# --- rosters: who may speak ---


def test_unsigned(roster):
    with pytest.raises(
        SignatureError, match="must be signed by a member of study 'study-1', and is unsigned"
    ):
        roster.check(message(), "north")


def test_a_stranger(roster):
    other = Roster("study-1", [*roster.members.values(), Member("eve", STRANGER.public)])
    signed = other.signer(STRANGER).sign(message("eve"))
    with pytest.raises(SignatureError, match="'eve' is not a member of study 'study-1'"):
        roster.check(signed, "eve")
    with pytest.raises(SignatureError, match="is that of no member"):
        roster.check(signed)
    with pytest.raises(SignatureError, match="is that of no member"):
        roster.signer(STRANGER)


def test_a_replay_of_another_study(roster):
    other = Roster("study-2", roster.members.values(), roster.settings)
    with pytest.raises(SignatureError, match="signed for study 'study-2', and this is 'study-1'"):
        roster.check(other.signer(NORTH).sign(message()), "north")


def test_a_wrong_key(roster):
    forged = Roster("study-1", [Member("north", STRANGER.public)]).signer(STRANGER).sign(message())
    with pytest.raises(SignatureError, match="signed with a wrong key, no member's"):
        roster.check(forged, "north")
    with pytest.raises(SignatureError, match="signed with a wrong key, that of 'south'"):
        roster.check(roster.signer(SOUTH).sign(message("north")), "north")
    with pytest.raises(SignatureError, match="signed by 'south', and names 'north' as its owner"):
        roster.check(roster.signer(SOUTH).sign(message("north")))


def test_a_claimed_key_needs_its_signature(roster):
    """A stranger writes north's public key into a file, with a signature of its own."""
    signed = roster.signer(NORTH).sign(message())
    forged = Roster("study-1", [Member("north", STRANGER.public)]).signer(STRANGER).sign(message(seed=1))
    claimed = forged.replace(STRANGER.public.text.encode(), NORTH.public.text.encode())
    claimed = claimed.replace(envelope.read(forged).signature.roster.encode(), roster.hash.encode())
    assert envelope.read(claimed).signature.key == envelope.read(signed).signature.key
    with pytest.raises(SignatureError, match="was changed after 'north' signed it"):
        roster.check(claimed, "north")


# --- a roster that changes ---


def test_a_message_under_an_older_roster_counts_while_its_key_is_unchanged(roster):
    old = roster.signer(NORTH).sign(message())
    larger = roster.with_member(Member("east", STRANGER.public))
    assert larger.study == roster.study
    assert larger.predecessors == (roster.hash,)
    assert larger.check(old, "north").roster == roster.hash
    fewer = larger.without_member("south")
    assert fewer.predecessors == (roster.hash, larger.hash)
    assert fewer.check(old, "north")
    with pytest.raises(SignatureError, match="'south' is not a member"):
        fewer.check(roster.signer(SOUTH).sign(message("south")), "south")


def test_a_lost_key_is_withdrawn_and_another_added(roster):
    old = roster.signer(NORTH).sign(message())
    with pytest.raises(ValueError, match="is a member already; remove it first"):
        roster.with_member(Member("north", STRANGER.public))
    changed = roster.without_member("north").with_member(Member("north", STRANGER.public))
    with pytest.raises(SignatureError, match="wrong key, no member's"):
        changed.check(old, "north")
    assert changed.check(changed.signer(STRANGER).sign(message()), "north")


def test_a_message_under_a_newer_roster_asks_for_it(roster):
    newer = roster.with_settings(rank=3)
    with pytest.raises(OutdatedRoster, match="get the newest roster"):
        roster.check(newer.signer(NORTH).sign(message()), "north")
    assert roster.with_settings(rank=None).settings == {}


# --- the file ---


def test_the_file_gives_the_same_roster(tmp_path, roster):
    odd = roster.with_member(Member('we"st \\ \x7f\n☃ \U0001f600', STRANGER.public, rows=7))
    odd = odd.with_settings(features=["a", "b\t"], center=False, scale="std", epsilon=1, delta=1e-6, bound=2)
    odd = odd.with_settings(adjacency="zero-out", mechanism="gram")
    odd.save(tmp_path / "roster.toml")
    again = Roster.load(tmp_path / "roster.toml")
    assert again == odd
    assert hash(again) == hash(odd)
    assert (again.study, again.members, again.settings) == (odd.study, odd.members, odd.settings)
    assert again.predecessors == odd.predecessors
    assert tomllib.loads((tmp_path / "roster.toml").read_text())["members"][0]["id"] == "north"


def test_the_hash_is_of_the_contents(tmp_path, roster):
    path = tmp_path / "roster.toml"
    roster.save(path)
    found = tomllib.loads(path.read_text())
    members = "\n".join(
        f"[[members]]  # {member['id']}\n" + "\n".join(f"{k}   = {json.dumps(v)}" for k, v in member.items())
        for member in reversed(found["members"])
    )
    path.write_text(f"# the same\n\nstudy='study-1'\n{members}\n[settings]\nrank   =2\n")
    assert Roster.load(path).hash == roster.hash
    others = [
        Roster("study-2", roster.members.values(), roster.settings),
        roster.with_settings(rank=3),
        roster.without_member("south"),
        Roster(
            "study-1", [Member("north", NORTH.public, rows=101), Member("south", SOUTH.public)], {"rank": 2}
        ),
        Roster("study-1", roster.members.values(), roster.settings, [roster.hash]),
    ]
    assert len({roster.hash, *(other.hash for other in others)}) == 6
    assert Roster("a", (), {"epsilon": 1, "delta": 0.1}) == Roster("a", (), {"epsilon": 1.0, "delta": 0.1})


KEY = NORTH.public.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("study = 'a'\nquorum = 3", "a roster must have only .*, got 'quorum'"),
        ("study = 'a'\n[settings]\nranks = 3", "'ranks'"),
        (
            f"study = 'a'\n[[members]]\nid = 'n'\nkey = '{KEY}'\nadmin = true",
            "a member must have only .*'admin'",
        ),
        ("[settings]", "study must be a string"),
        ("study = ''", "study must not be empty"),
        ("study = 'a'\nmembers = 3", "members must be tables"),
        ("study = 'a'\n[[members]]\nid = 'n'", "a public key must be a string, got None"),
        (f"study = 'a'\n[[members]]\nkey = '{KEY}'", "a member's id must be a string"),
        ("study = 'a'\n[[members]]\nid = 'n'\nkey = 'k'", "a public key must be"),
        (f"study = 'a'\n[[members]]\nid = 'n'\nkey = '{KEY}'\nrows = 0", "rows must be at least 1"),
        (f"study = 'a'\n[[members]]\nid = 'n'\nkey = '{KEY}'\nrows = true", "rows must be a whole number"),
        ("study = 'a'\npredecessors = ['sha256:1']", "predecessors must be hashes"),
        ("study = 'a'\npredecessors = 'x'", "predecessors must be a list"),
        ("study = 'a'\n[settings]\nepsilon = 1", "epsilon and delta, or neither"),
        ("study = 'a'\n[settings]\nbound = 1", "with bound must have epsilon"),
        ("study = 'a'\n[settings]\nepsilon = nan\ndelta = 0.1", "epsilon must be a number above 0"),
        (f"study = 'a'\n[settings]\nepsilon = {10**400}\ndelta = 0.1", "epsilon must be a number above 0"),
        ("study = 'a'\n[settings]\nfeatures = ['a']\nn_features = 1", "features or n_features, not both"),
        ("study = 'a'\n[settings]\nfeatures = ['a', 'a']", "different names"),
        ("study = 'a'\n[settings]\ncenter = 1", "center must be true or false"),
        ("study = 'a'\n[settings]\nscale = 'max'", "scale must be one of"),
        ("study = 'a'\nstudy = 'b'", "not a valid roster"),
        ("study", "not a valid roster"),
        ("\x00", "not a valid roster"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, problem):
    path = tmp_path / "roster.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem) as caught:
        Roster.load(path)
    assert str(path) in str(caught.value)


def test_two_members_with_one_id_or_key_are_refused():
    one = Member("north", NORTH.public)
    with pytest.raises(ValueError, match="must have an id of its own, and two have 'north'"):
        Roster("a", [one, Member("north", SOUTH.public)])
    with pytest.raises(ValueError, match="must have a key of its own"):
        Roster("a", [one, Member("south", NORTH.public)])


@pytest.mark.parametrize("other", ["north ", " north", "north\u200b", "\uff4eorth", "nor\u202eth"])
def test_ids_that_look_alike_are_refused_with_their_codes(roster, other):
    with pytest.raises(
        ValueError, match=r"looks like no other's, and 'north' and |and .* and 'north' look"
    ) as it:
        roster.with_member(Member(other, STRANGER.public))
    assert ascii(other) in str(it.value)
    with pytest.raises(ValueError, match=r"'e\\u0301' and '\\xe9' look alike|'\\xe9' and 'e\\u0301'"):
        Roster("a", [Member("\u00e9", NORTH.public), Member("e\u0301", SOUTH.public)])
    assert len(roster.with_member(Member("North", STRANGER.public)).members) == 3


def test_a_roster_does_not_change(roster):
    for name in ("study", "hash", "members", "settings", "predecessors"):
        with pytest.raises(AttributeError):
            setattr(roster, name, None)
    with pytest.raises(TypeError):
        roster.members["eve"] = Member("eve", STRANGER.public)
    with pytest.raises(TypeError):
        roster.settings["rank"] = 5
