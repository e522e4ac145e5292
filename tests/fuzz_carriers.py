"""Fuzzed messages through the carriers: a shared folder, and a run of the Flower server in this process.

    python tests/fuzz_carriers.py 100000        # how many; progress is printed

Whatever comes, `collect` and the run end, the honest owner is in the model, and every other message is
either in it or reported with a reason; the run writes its summary.
"""

import logging
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from flower_grid import FakeGrid, pretend_to_be_flower, run, sends
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from fuzz import PRIVACY, D, fuzzed, released

import fedpca
from fedpca import Aggregator, Moments, Subspace
from fedpca.errors import ModelFileError
from fedpca.federation import Message as ChildMessage
from fedpca.federation.aggregator.message import file_name
from fedpca.federation.flower import round as flower_round
from fedpca.federation.folder import collect, publish

BATCH = 200


def honest(privacy):
    rows = np.random.default_rng(7).normal(size=(50, D)) / 4
    return Moments.from_rows(rows) if privacy is None else released(rows, privacy)


def check_collect(batch, folder, privacy, memory):
    """All files of a folder count or are listed, in every call, with and without what was skipped before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    publish(folder, "honest", 1, honest(privacy))
    for number, contents in enumerate(batch):
        name = f"x{number}.{number}"
        try:
            message = ChildMessage.decode(contents)
            name = f"{file_name(message.child)}.{message.version}" if number % 5 else name
        except ModelFileError:
            pass
        (folder / f"{name}.safetensors").write_bytes(contents)
    files = {path.name for path in folder.iterdir()}
    store = None if memory else folder.parent / "store"
    shutil.rmtree(folder.parent / "store", ignore_errors=True)
    with Aggregator(2, store=store, privacy=privacy, expected=expected(privacy)) as aggregator:
        skipped = collect(folder, aggregator)
        assert "honest" in aggregator.children
        newest = {
            f"{file_name(child)}.{version}.safetensors" for child, version in aggregator.versions.items()
        }
        assert newest <= files
        stems = {name.partition(".")[0] for name in newest}
        older = {name for name in files if name.partition(".")[0] in stems}
        assert files - older <= {item.file for item in skipped}
        assert all(item.reason for item in skipped)
        again = collect(folder, aggregator, before=skipped)
        assert {item.file for item in again} == {item.file for item in skipped}
        aggregator.model().save(folder.parent / "model.safetensors")
        return len(aggregator.children) - 1


def check_run(batch, folder, privacy, random_):
    """Every node has a reply in the summary of a run that has a model."""
    shutil.rmtree(folder, ignore_errors=True)
    nodes = {f"n{number}": hostile(contents, random_) for number, contents in enumerate(batch, start=2)}
    nodes["n1"] = sends(ChildMessage("honest", 1, honest(privacy)).encode())
    floor = {} if privacy is None else {key: getattr(privacy, key) for key in ("epsilon", "delta", "bound")}
    config = {"features": D, "center": privacy is None, "retries": 0, "rank": 2} | floor
    summary = run(FakeGrid(**nodes), folder, replies=len(nodes), **config)
    assert (summary["problem"], summary["model"]) == ("", "model.safetensors")
    assert "honest" in summary["contributors"]
    assert len(summary["replies"]) == len(nodes)
    reasons = [reply["reason"] for reply in summary["replies"] if reply["what"] != "accepted"]
    assert all(reasons)
    assert max(map(len, reasons), default=0) <= 500
    fedpca.load(folder / "model.safetensors")
    return len(summary["contributors"]) - 1


def hostile(contents, random_):
    """A node that sends the contents as its release; now and then as anything else that Flower carries."""
    array = Array(random_.choice(["uint8", "float64", "x"]), (len(contents),), "", contents)
    records = [
        {"release": ArrayRecord({"message": array})},
        {"release": ArrayRecord({"other": array})},
        {"release": ConfigRecord({"message": contents})},
        {"release": MetricRecord({"message": 1.0})},
        {"sum": ArrayRecord({"message": array})},
        {"scaling": ArrayRecord({"message": array})},
        {"waits": ArrayRecord({"message": array})},
        {"failed": ConfigRecord({"client": "x" * 9999, "reason": "\x00" * 9999})},
        {"failed": ConfigRecord({"client": 5, "reason": [1.5]})},
        {"failed": ConfigRecord({})},
        {"failed": ArrayRecord({"client": array})},
        {},
    ]
    if (number := random_.randrange(100)) == 99:
        return lambda message: Message(Error(3, "\x1b" * 9999), reply_to=message)
    if number == 98:
        return lambda message: ValueError("hostile " * 999)
    record = RecordDict(records[number] if number < len(records) else records[0])
    return lambda message: Message(record, reply_to=message)


def expected(privacy):
    return Subspace.empty(D, centered=privacy is None)


def check(count, seed, folder, show=lambda text: None):
    """Put so many fuzzed messages through `collect` and through runs; returns how many were accepted."""
    taken, random_, batch = {"collect": 0, "run": 0}, random.Random(seed), []
    patch = pytest.MonkeyPatch()
    pretend_to_be_flower(patch)
    patch.setattr(flower_round, "_PAUSE", 0.01)
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number, contents in enumerate(fuzzed(seed, count), start=1):
                batch.append(contents)
                if len(batch) < BATCH and number < count:
                    continue
                privacy = PRIVACY if number // BATCH % 2 else None
                memory = bool(number // BATCH % 3)
                taken["collect"] += check_collect(batch, Path(folder, "shared"), privacy, memory)
                taken["run"] += check_run(batch, Path(folder, "server"), privacy, random_)
                batch = []
                if number % 10_000 == 0:
                    show(f"{number}: accepted {taken}")
    finally:
        logging.disable(logging.NOTSET)
        patch.undo()
    return taken


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(check(int(sys.argv[1]), seed=0, folder=scratch, show=print))  # noqa: T201
