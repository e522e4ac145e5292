"""Nothing rides along in a model file: what is read is what its kind has, and nothing else is read."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from command_line import invoke
from helpers import rows_of

import fedpca
from fedpca import (
    Aggregator,
    FederatedPCA,
    Moments,
    Privacy,
    PrivatePCA,
    Roster,
    Scaling,
    SigningKey,
    Subspace,
)
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.message import Message
from fedpca.federation.folder import collect, collect_scaling, publish
from fedpca.privacy.mechanisms import MECHANISMS
from fedpca.secure import SecureSums
from fedpca.summaries import model_file
from fedpca.summaries.certificate import LedgerState, StepCost
from fedpca.trust import Member

ROWS = rows_of(0, 60, 5)
SUMMARIES = {"subspace": Subspace.from_rows(ROWS, 2), "moments": Moments.from_rows(ROWS)}


def relaid(contents, change):
    """The same arrays behind a header that was changed: a function of its JSON."""
    end = 8 + int.from_bytes(contents[:8], "little")
    changed = change(json.loads(contents[8:end]))
    changed = changed if isinstance(changed, bytes) else json.dumps(changed, separators=(",", ":")).encode()
    text = changed + b" " * (-len(changed) % 8)
    return len(text).to_bytes(8, "little") + text + contents[end:]


def ours(change):
    """A change of what is under "fedpca"."""

    def changed(header):
        header["__metadata__"]["fedpca"] = change(header["__metadata__"]["fedpca"])
        return header

    return changed


TRICKS = {
    "trailing bytes": lambda contents: contents + b"row of a patient",
    "spaces in the header": lambda contents: relaid(contents, lambda it: json.dumps(it).encode()),
    "more padding": lambda contents: relaid(
        contents, lambda it: json.dumps(it, separators=(",", ":")).encode() + b"\t" * 64
    ),
    "a key twice": lambda contents: relaid(
        contents,
        lambda it: (
            json.dumps(it, separators=(",", ":")).replace('"mean":{', '"mean":{"x":1},"mean":{').encode()
        ),
    ),
    "another text in the metadata": lambda contents: relaid(
        contents, lambda it: it | {"__metadata__": it["__metadata__"] | {"note": "patient 17"}}
    ),
    "a key in the description of an array": lambda contents: relaid(
        contents, lambda it: it | {"mean": it["mean"] | {"note": [17.5]}}
    ),
    "arrays in another order": lambda contents: relaid(contents, lambda it: dict(reversed(it.items()))),
    "a key of our own": lambda contents: relaid(
        contents, ours(lambda it: it[:-1] + ', "note": "patient 17"}')
    ),
    "a fact twice": lambda contents: relaid(
        contents, ours(lambda it: it.replace('{\\"centered', '{\\"count\\": 17.5, \\"centered'))
    ),
    "spaces in our own": lambda contents: relaid(contents, ours(lambda it: it.replace(", ", ",  "))),
    "letters as escapes": lambda contents: relaid(
        contents, ours(lambda it: it.replace("checksum", "\\u0063hecksum"))
    ),
}


@pytest.mark.parametrize("kind", SUMMARIES)
@pytest.mark.parametrize("trick", TRICKS)
def test_what_is_beside_the_contents_is_refused(trick, kind, tmp_path):
    contents = Message("north", 1, SUMMARIES[kind]).encode()
    changed = TRICKS[trick](contents)
    assert changed != contents
    (tmp_path / "north.1.safetensors").write_bytes(changed)
    with pytest.raises(ModelFileError):
        Message.decode(changed)
    with pytest.raises(ModelFileError):
        fedpca.load(tmp_path / "north.1.safetensors")
    aggregator = Aggregator(rank=1)
    assert len(collect(tmp_path, aggregator)) == 1
    assert not aggregator.children


def smuggled(message, arrays=None, facts=None):
    kind, own, metadata = message.contents()
    return model_file.encode(kind, own | (arrays or {}), metadata | (facts or {}))


@pytest.mark.parametrize(
    "facts", [{"note": "x"}, {"counted": {}}, {"reading": {}}, {"limits": {}}, {"sender": "x"}]
)
def test_a_message_has_its_child_and_version_beside_its_summary(facts):
    with pytest.raises(ModelFileError, match=next(iter(facts))):
        Message.decode(smuggled(Message("north", 1, SUMMARIES["moments"]), facts=facts))


def test_a_signature_does_not_let_rows_in(tmp_path):
    pytest.importorskip("cryptography")
    key = SigningKey.new()
    roster = Roster("heart", [Member("north", key.public)])
    signed = roster.signer(key).sign(smuggled(Message("north", 1, SUMMARIES["moments"]), {"rows": ROWS}))
    (tmp_path / "north.1.safetensors").write_bytes(signed)
    aggregator = Aggregator(rank=1, roster=roster, store=tmp_path / "store")
    skipped = collect(tmp_path, aggregator)[0]
    assert "rows" in skipped.reason
    assert not aggregator.children
    with pytest.raises(ModelFileError, match="limits"):
        roster.signer(key).sign(smuggled(Message("north", 1, SUMMARIES["moments"]), facts={"limits": {}}))


def test_a_scaling_in_a_folder_has_nothing_else(tmp_path):
    publish(tmp_path, "south", 1, Scaling.from_rows(ROWS))
    path = tmp_path / "south.1.scaling.safetensors"
    kind, arrays, metadata = model_file.read(path)
    (tmp_path / "evil").mkdir()
    path.rename(tmp_path / "evil" / path.name)
    (tmp_path / "evil" / path.name).write_bytes(model_file.encode(kind, arrays | {"rows": ROWS}, metadata))
    with pytest.raises(ValueError, match="'rows' that no scaling has"):
        collect_scaling(tmp_path / "evil")


def test_a_file_of_one_s_own_has_more(tmp_path):
    summary = SUMMARIES["subspace"]
    model_file.write(
        tmp_path / "m", summary.kind, summary.arrays, summary.metadata | {"reading": {"sep": ";"}}
    )
    assert fedpca.load(tmp_path / "m") == summary


def _with_metadata(text):
    return '{"__metadata__":{"fedpca":' + json.dumps(text) + "}}"


@pytest.mark.parametrize("where", ["header", "arrays", "ours", "facts"])
def test_a_large_header_costs_little_memory(where):
    """JSON of lists takes 25 times its size."""
    lists = '{"a": [' + "[]," * 2**21 + "[]]}"
    begun = '{"format_version": 1, "kind": "x", "facts": '
    text = {
        "header": lists,
        "arrays": '{"__metadata__":{"fedpca":"x"},' + lists[1:],
        "ours": _with_metadata(begun + '"{}", ' + lists[1:]),
        "facts": _with_metadata(begun + json.dumps(lists) + ', "checksum": ""}'),
    }[where].encode()
    contents = len(text).to_bytes(8, "little") + text
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        Message.decode(contents)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * len(contents)


def test_facts_have_as_many_values_as_their_features_explain():
    """With a right checksum; they are counted before they are parsed."""
    contents = model_file.encode("x", {}, {"a": [[]] * 2**20})
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="too many values for 0 features"):
        Message.decode(contents)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * len(contents)
    with pytest.raises(ModelFileError, match="its header is too large"):
        Message.decode(model_file.encode("x", {}, {"a": "x" * 2**24}))


def test_any_file_that_is_read_is_written_the_same():
    rng = np.random.default_rng(0)
    for message in (Message("a", 1, each) for each in SUMMARIES.values()):
        contents = message.encode()
        assert Message.decode(contents).encode() == contents
        for place in rng.choice(len(contents), 200, replace=False):
            changed = bytearray(contents)
            changed[place] ^= 1 << int(rng.integers(8))
            with pytest.raises(ModelFileError):
                Message.decode(bytes(changed))


def test_check_and_package_refuse_what_rides_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text("least_rows = 5\n")
    summary = SUMMARIES["moments"]
    counted = {"rows": 60, "fewest_values": 60, "smallest_level": None}
    facts = summary.metadata | {"n_components": 2, "counted": counted}
    for name, arrays, more in (
        ("rows", {"rows": ROWS}, {}),
        ("own", {}, {"reading": {"a": 1}, "limits": {}}),
    ):
        model_file.write(f"{name}.safetensors", summary.kind, summary.arrays | arrays, facts | more)

    def run(*arguments):
        return invoke([*arguments, "--policy", "policy.toml"])

    assert run("check", "rows.safetensors").exit_code == run("check", "own.safetensors").exit_code == 1
    assert run("package", "rows.safetensors", "-o", "study").exit_code == 1
    assert not (tmp_path / "study").exists()
    assert run("package", "own.safetensors", "-o", "study").exit_code == 0
    assert model_file.read("study/model.safetensors")[2].keys() == facts.keys()


# --- texts of certificates ---


def releases(n_features=5, **privacy):
    rows = rows_of(3, 6000, n_features)
    settings = {"epsilon": 3.0, "delta": 1e-6} | privacy
    return PrivatePCA(2, **settings).fit(rows).summary_


def certificates():
    """Of every mechanism and every way to center, clip and scale, of merges and of secure sums."""
    rows = {name: rows_of(seed, 2000, 5) for seed, name in enumerate(("north", "south", "East 1"))}
    yield releases().certificate
    yield releases(bound=3.0, center=np.zeros(5), adjacency="zero-out").certificate
    yield releases(bound=3.0, center=None, evaluate=False).certificate
    yield releases(releases=3, bound="sphere").certificate
    for mechanism in MECHANISMS:
        yield releases(mechanism=mechanism, bound=4.0, center=np.zeros(5), evaluate=False).certificate
    yield PrivatePCA(2, scale="std", epsilon=3.0, delta=1e-6).fit(rows["north"]).summary_.certificate
    privacy = Privacy(3.0, 1e-6)
    federated = FederatedPCA(2, privacy=privacy, scale="std").fit_clients(rows)
    yield federated.model_.certificate
    yield (
        FederatedPCA(2, privacy=privacy, secure=SecureSums(colluding=1)).fit_clients(rows).model_.certificate
    )
    public = replace(privacy, bound=4.0, center=np.zeros(5))
    yield FederatedPCA(2, privacy=public).fit_clients(rows).model_.certificate


def test_what_the_library_writes_in_certificates_may_leave(tmp_path):
    for number, certificate in enumerate(certificates()):
        path = tmp_path / f"{number}.safetensors"
        SUMMARIES["moments"].with_about(certificate=certificate).save(path)
        done = invoke(["check", str(path)])
        assert "fedpca writes" not in done.stderr, done.stderr


WORDS = [
    ("public", "patient 17: 120 80 4.5"),
    ("mechanism", "gram | MTIwLDgwLDQuNQ"),
    ("adjacency", "replace-one 120"),
    ("release", "patient 17"),
    ("stream", "0" * 65),
    ("time", "120,80,4.5"),
    ("fedpca", "1.0 patient"),
    ("assumes", "x"),
    ("steps", (StepCost("120,80,4.5", 0.1),)),
    ("ledger", LedgerState("0f", "in row 17", 1.0, 1e-6, 0.5)),
]


@pytest.mark.parametrize(("field", "text"), WORDS, ids=[field for field, _ in WORDS])
@pytest.mark.parametrize("command", ["check", "package"])
def test_a_certificate_has_no_words_of_its_own(tmp_path, monkeypatch, field, text, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text("least_rows = 5\n")
    summary = releases(bound=3.0, center=np.zeros(5))
    summary.with_about(certificate=replace(summary.certificate, **{field: text})).save("m.safetensors")
    more = ["-o", "study"] if command == "package" else []
    done = invoke([command, "m.safetensors", "--policy", "policy.toml", *more])
    assert done.exit_code == 1
    assert "no text but what fedpca writes" in " ".join(done.stderr.split())
    assert not (tmp_path / "study").exists()
