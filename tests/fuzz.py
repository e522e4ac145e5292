"""Fuzzed files and messages, and what must hold for them: no exception but the documented one.

    python tests/fuzz.py 100000        # how many; progress and the number of accepted ones are printed

`fuzzed(seed, count)` gives the bytes: valid messages with changes in their certificates, headers, arrays,
lengths and JSON types, most of them sealed with a valid checksum, so that the checks behind it are reached.
"""

import hashlib
import json
import math
import random
import shutil
import sys
import tempfile
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedpca import Aggregator, Moments, Privacy, PrivatePCA, Subspace, load, merge
from fedpca.errors import ModelFileError, SignatureError, SummaryRejected
from fedpca.federation import Message, State
from fedpca.federation.aggregator.message import file_name
from fedpca.summaries import model_file
from fedpca.summaries.merging import merge_distinct
from fedpca.trust.envelope import canonical

D = 5
PRIVACY = Privacy(2.0, 1e-4, 3.0, center=None, evaluate=False)
ODD = [
    None, True, False, 0, 1, -1, 2, 5, 10**18, 2**63 - 1, 2**63, 10**400, -(10**400), 0.5, -0.0, 1e-320,
    1e150, 1e299, 1e300, 1e308, -1e308, math.nan, math.inf, -math.inf, "", "x", "a" * 5000, "\x00", "\ud800",
    "NaN", "1", [], [1], [[1]], ["a", 5], [None] * 3, [math.nan], {}, {"x": 1}, {"": {}}, "private", "public",
    "gram | x",
]  # fmt: skip


def released(rows, privacy):
    """The release of one owner's rows, so few that hardly a component rises above the noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrivatePCA(2, **privacy.settings).fit(rows).release()


def corpus():
    """Valid messages of every kind, as kind, arrays and metadata."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(40, D)) * [3, 2, 1, 1, 0.1] for _ in range(4)]
    releases = [released(part / 4, PRIVACY) for part in rows]
    centered = released(rows[0] / 4, replace(PRIVACY, center="private"))
    scatter = np.diag([3.0, 2.0, 1.0, 1.0, 0.0])
    narrow = Subspace(np.eye(2, D), [3.0, 2.0], np.zeros(D), 40, 20.0, observed=[40, 40, 40, 40, 0])
    summaries = [
        Subspace.from_rows(rows[0], 3),
        Subspace.from_rows(rows[1].astype(np.float32)).with_about(names=[*"abcde"]),
        Subspace.from_rows(rows[2], 2, center=False),
        Moments.from_rows(rows[0]),
        Moments.from_rows(rows[1], center=False),
        releases[0],
        merge_distinct(releases[1:3]),
        releases[3].subspace(2),
        centered,
        Moments(40, [*rows[0][:, :4].mean(axis=0), 0], scatter, observed=[40, 40, 40, 40, 0]),
        merge([narrow, Subspace.from_rows(rows[1], 2)]),
        merge([Moments(40, np.zeros(D), scatter, observed=[40, 40, 40, 40, 0]), Moments.from_rows(rows[1])]),
        None,
    ]
    return [Message(f"c{i}", i, summary).contents() for i, summary in enumerate(summaries)]


def seal(kind, arrays, metadata):
    """The bytes of a model file with these contents, valid or not, and a checksum that matches."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata, sort_keys=True)
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {
        "format_version": model_file.FORMAT_VERSION,
        "kind": kind,
        "facts": text,
        "checksum": model_file._checksum(kind, tensors, text),
    }
    return save(tensors, metadata={"fedpca": json.dumps(header)})


def fuzzed(seed, count, corpus_of=corpus):
    """Bytes of so many fuzzed messages; the same for the same seed."""
    random_ = random.Random(seed)
    parts = corpus_of()
    for _ in range(count):
        kind, arrays, metadata = deepcopy(random_.choice(parts))
        # Of a child of its own.
        child, version = f"c{random_.randrange(10**6)}", random_.randrange(9)
        renew(random_, metadata.get("certificate"))
        metadata |= {"child": child, "version": version}
        if random_.random() < 0.1:
            kind = random_.choice(["subspace", "moments", "withdrawn", "", "x"])
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(random_.choice([0, 1, 1, 1, 2, 4])):
                random_.choice([change_metadata] * 3 + [change_arrays] * 2)(random_, arrays, metadata)
        contents = seal(kind, arrays, metadata)
        if random_.random() < 0.2:
            contents = damage(random_, contents)
        yield contents


def renew(random_, certificate):
    """Streams and ledgers of its own, or those of others now and then."""
    for record in [certificate, *certificate.get("releases", [])] if certificate else []:
        if record.get("stream"):
            record["stream"] = f"stream {random_.randrange(10**5)}"
        if isinstance(record.get("ledger"), str):
            record["ledger"] = f"ledger {random_.randrange(10**5)}"


def change_metadata(random_, arrays, metadata):
    """Another value, no value, or one key more, anywhere in the metadata."""
    holder = metadata
    while True:
        if isinstance(holder, dict) and random_.random() < 0.1:
            holder[random_.choice(["x", "releases", "noise_edge", "total", "merged"])] = deepcopy(
                random_.choice(ODD)
            )
            return
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        if not keys:
            return
        key = random_.choice(keys)
        inner = holder[key]
        depth = 0.9 if key == "certificate" else 0.6
        if isinstance(inner, dict | list) and inner and random_.random() < depth:
            holder = inner
        elif random_.random() < 0.2:
            del holder[key]
            return
        elif isinstance(inner, int | float) and not isinstance(inner, bool) and random_.random() < 0.4:
            factor = random_.choice([-1, 0, 2, 0.5, 1e6, 1e-6, 1 + 1e-7])
            holder[key] = inner * (factor if abs(inner) < 1e300 else 2)
            return
        else:
            holder[key] = deepcopy(random_.choice(ODD))
            return


def change_arrays(random_, arrays, metadata):
    """Other entries, shapes, types or names."""
    if not arrays:
        return
    name = random_.choice(list(arrays))
    array = np.array(arrays[name])
    match random_.randrange(9):
        case 0:
            del arrays[name]
        case 1:
            arrays[name] = array.astype(random_.choice(["f4", "f8", "i8", "f2", "?"]))
        case 2:
            arrays[name] = array.reshape(-1)[: random_.randrange(array.size + 1)]
        case 3:
            arrays[name] = np.zeros(random_.choice([(0,), (0, D), (D, 0), (1, D), (D, D, 1), (2 * D,)]))
        case 4:
            arrays[random_.choice(["x", "mean", "scatter", "components"])] = array
        case 5:
            arrays[name] = array * random_.choice([-1, 0, 1e150, 1e-300, 1e308])
        case 6 | 7:  # most often still valid
            arrays[name] = array * array.dtype.type(random_.choice([0.5, 2, 1 + 1e-7]))
        case _:
            array = array.astype(array.dtype if array.dtype.kind == "f" else float)
            if array.size:
                odd = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 1e150, 1e-320, 1.0]
                array.reshape(-1)[random_.randrange(array.size)] = random_.choice(odd)
            arrays[name] = array


def damage(random_, contents):
    """Bytes changed, lost, repeated, or a header of another length."""
    data = bytearray(contents)
    match random_.randrange(6):
        case 0:
            for _ in range(random_.randrange(1, 9)):
                data[random_.randrange(len(data))] = random_.randrange(256)
        case 1:
            del data[random_.randrange(len(data)) :]
        case 2:
            start = random_.randrange(len(data))
            data[start:start] = data[start : start + random_.randrange(64)]
        case 3:
            data[:8] = random_.choice([0, 1, 7, len(data), 2**31, 2**63 - 1, 2**64 - 1]).to_bytes(8, "little")
        case 4:
            data = bytearray(random_.randbytes(random_.randrange(200)))
        case 5:
            data += random_.randbytes(random_.randrange(1, 30))
    return bytes(data)


# --- what must hold ---


def check_load(contents, folder):
    """A fuzzed file is a summary, or a ModelFileError."""
    path = Path(folder) / "model.safetensors"
    path.write_bytes(contents)
    try:
        summary = load(path)
    except ModelFileError:
        return False
    repr(summary)
    summary.subspace()
    return True


class Federation:
    """An aggregator with two honest children, which receives what is fuzzed."""

    def __init__(self, privacy=None):
        self.privacy = privacy
        self.start()

    def start(self):
        rng = np.random.default_rng(7)
        self.aggregator = Aggregator(2, privacy=self.privacy)
        for child in ("honest 1", "honest 2"):
            rows = rng.normal(size=(50, D)) / 4
            if self.privacy is None:
                summary = Moments.from_rows(rows)
            else:
                summary = released(rows, self.privacy)
            self.aggregator.receive(child, 2**63 - 1, summary)

    def check_receive(self, contents):
        """A fuzzed message is taken, ignored, or a SummaryRejected; the model comes out in any case."""
        try:
            message = Message.decode(contents)
        except (ModelFileError, SignatureError):
            return False
        try:
            accepted = self.aggregator.receive(message.child, message.version, message.summary)
        except SummaryRejected:
            return False
        if accepted:
            Message("model", 0, self.aggregator.model()).encode()
            self.aggregator.record()
            assert dict(self.aggregator.quarantined) == {}
            assert {"honest 1", "honest 2"} <= set(self.aggregator.children)
            if len(self.aggregator.children) > 50:
                self.start()
        return accepted


def state_of(contents, number):
    """A state with this message; now and then with an odd value beside it, or without its first line."""
    facts = {"aggregator_version": 1, "sender": "", "left_out": "", "quarantined": False, "signature": None}
    if number % 5 == 1:
        facts[list(facts)[number % len(facts)]] = [3, "", None, True, {}, "x" * 10**5][number % 6]
    line = canonical(facts | {"hash": hashlib.sha256(canonical(facts)).hexdigest()})
    return contents if number % 7 == 0 else line + b"\n" + contents


def state_name(state, number):
    """The name that it has in a store, if it is valid; now and then another."""
    try:
        return file_name(State.decode(state, "x").message.child) if number % 5 else f"x{number}"
    except ModelFileError:
        return f"x{number}"


def check_stores(batch, folder, privacy=None):
    """A store with these among its states opens, and gives the model of the others."""
    store = Path(folder) / "store"
    shutil.rmtree(store, ignore_errors=True)
    rules = {"privacy": privacy, "expected": Subspace.empty(D, centered=privacy is None)}
    with Aggregator(2, store=store, **rules) as aggregator:
        rows = np.random.default_rng(7).normal(size=(50, D)) / 4
        summary = Moments.from_rows(rows) if privacy is None else released(rows, privacy)
        aggregator.receive("honest", 1, summary)
    batch = [state_of(contents, number) for number, contents in enumerate(batch)]
    for number, contents in enumerate(batch):
        (store / f"{state_name(contents, number)}.state").write_bytes(contents)
    aggregator = Aggregator(2, store=store, **rules)
    assert "honest" in aggregator.children
    aggregator.model()
    aggregator.record()
    assert len(aggregator.history) > 0
    left = {path.stem for path in store.glob("*.state")}
    assert len(left) + len(aggregator.quarantined) >= len(set(map(state_name, batch, range(len(batch))))) + 1
    aggregator.close()


def run(count, seed, folder, show=lambda text: None):
    """Put so many fuzzed messages through load, receive and stores; returns how many were accepted."""
    taken = {"load": 0, "receive": 0, "receive, private": 0}
    clean, private = Federation(), Federation(PRIVACY)
    batch = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, contents in enumerate(fuzzed(seed, count), 1):
            taken["load"] += check_load(contents, folder)
            taken["receive"] += clean.check_receive(contents)
            taken["receive, private"] += private.check_receive(contents)
            batch.append(contents)
            if len(batch) == 100 or number == count:
                check_stores(batch, folder, privacy=PRIVACY if number % 200 else None)
                batch = []
            if number % 10_000 == 0:
                show(f"{number}: accepted {taken}")
    return taken


if __name__ == "__main__":
    import logging

    logging.disable()
    with tempfile.TemporaryDirectory() as scratch:
        print(run(int(sys.argv[1]), seed=0, folder=scratch, show=print))  # noqa: T201
