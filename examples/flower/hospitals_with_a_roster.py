"""Five hospitals with a roster, policies and one dishonest member, in a shared folder and on Flower.

    python examples/flower/hospitals_with_a_roster.py [FOLDER]

West is dishonest: its table has a direction, forty times as long, that no other table has. Eve, who is not a
member, sends a summary as north. The model is still that of the four honest hospitals. Two reports are
written to FOLDER.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from run_loopback import HOSPITALS, NAMES, SPREAD, Deployment, finished, write_tables

import fedpca
from fedpca import Aggregator, Policy, Roster, SigningKey, StreamingPCA, fit_files
from fedpca.federation import Limits
from fedpca.federation.folder import collect, publish
from fedpca.readers import open_rows
from fedpca.report import write_report
from fedpca.trust import Member

SETTINGS = {"rank": 2, "scale": "std", "center": True, "features": NAMES}
POLICY = 'preset = "tre"\nleast_rows = 100\n'
LIAR, IMPOSTOR = "west", "eve"
ROBUST, LEAST_ROWS = "trim", 100
REPLY = "[Fleet.PushMessages] Push replies"  # in the log of the SuperLink
PATIENCE = 600.0  # seconds


def set_up(home):
    """Tables, keys and policies at the hospitals, and the roster that all of them agree on."""
    write_tables(home)
    lie(home / f"{LIAR}.csv")
    members = []
    for name, people in HOSPITALS.items():
        key = SigningKey.new()
        key.save(home / f"{name}.key")
        members.append(Member(name, key.public, rows=people))
        (home / f"{name}.policy.toml").write_text(POLICY)
    roster = Roster("hospitals-2f81", members, SETTINGS)
    roster.save(home / "roster.toml")
    return roster


def lie(table):
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    rng = np.random.default_rng(7)
    rows += 40 * rng.normal(size=(len(rows), 1)) * (SPREAD * rng.normal(size=8) / np.sqrt(8))
    np.savetxt(table, rows, fmt="%.6g", delimiter=",", header=",".join(NAMES), comments="")


def fitted(table):
    """The summary of a table, and its rows."""
    rows = open_rows(table)
    pca = StreamingPCA(2, scale="std")
    fit_files(pca, rows)
    return pca.summary_, rows


def in_a_folder(home, roster):
    """Five hospitals publish, and eve does; whoever has the roster collects."""
    shared, run = home / "shared", home / "folder-study"
    shared.mkdir()
    for name in HOSPITALS:  # each on its own machine
        summary, rows = fitted(home / f"{name}.csv")
        signer = roster.signer(SigningKey.load(home / f"{name}.key"))
        policy = Policy.load(home / f"{name}.policy.toml")
        publish(shared, name, 1, summary, signer=signer, policy=policy, rows=rows)
    publish(shared, "north", 2, fitted(home / f"{LIAR}.csv")[0])  # eve, who has no key
    with Aggregator(
        roster=roster, store=run / "store", robust=ROBUST, limits=Limits(least_rows=LEAST_ROWS)
    ) as aggregator:
        for skipped in collect(shared, aggregator):
            print(f"refused: {skipped.file}: {skipped.reason}")
        aggregator.record()
        model = aggregator.model()
    model.save(run / "model.safetensors")
    write_report(run / "report.html", model, run=run / "store")
    return model


def on_flower(home, deployment):
    """The same with a SuperLink, five SuperNodes, and that of eve, whom Flower has admitted."""
    folder = home / "flower-study"
    deployment.register(*HOSPITALS, IMPOSTOR)
    configs = {
        name: {
            "client-id": name,
            "source": str(home / f"{name}.csv"),
            "key": str(home / f"{name}.key"),
            "roster": str(home / "roster.toml"),
            "policy": str(home / f"{name}.policy.toml"),
        }
        for name in HOSPITALS
    }
    configs[IMPOSTOR] = {"client-id": "north", "source": str(home / f"{LIAR}.csv"), "version": 2}
    configs[IMPOSTOR]["state"] = str(home / "eve.fedpca")
    *first, last = HOSPITALS
    for name in (IMPOSTOR, *first):
        deployment.start_node(name, configs[name])
    before = deployment.log("superlink").count(REPLY)
    settings = {"folder": str(folder), "roster": str(home / "roster.toml"), "rank": 2, "scale": "std"}
    run = deployment.start_run(
        **settings, robust=ROBUST, least_rows=LEAST_ROWS, expect=5, quorum=3, deadline=PATIENCE
    )
    end = time.monotonic() + PATIENCE
    while deployment.log("superlink").count(REPLY) < before + 5 and time.monotonic() < end:
        time.sleep(0.2)
    deployment.start_node(last, configs[last])  # the last one ends the run
    finished(run, 2 * PATIENCE)
    summary = json.loads((folder / "summary.json").read_text())
    for reply in summary["replies"]:
        print(f"{reply['what']}: {reply['client']}, node {reply['node']}. {reply['reason']}")
    model = fedpca.load(folder / "model.safetensors")
    write_report(folder / "report.html", model, run=folder)
    return summary, model


def degrees_from_the_truth(home, model):
    """How far the directions are from those of the four honest hospitals together."""
    honest = fedpca.merge([fitted(home / f"{name}.csv")[0] for name in HOSPITALS if name != LIAR], rank=2)
    return np.degrees(fedpca.metrics.principal_angles(honest, model).max())


def main(home):
    roster = set_up(home)
    print(f"{len(roster.members)} members of study {roster.study}, roster {roster.hash}")
    everyone = fedpca.merge([fitted(home / f"{name}.csv")[0] for name in HOSPITALS], rank=2)
    print(
        f"without a defense the liar moves the model by {degrees_from_the_truth(home, everyone):.0f} degrees"
    )
    model = in_a_folder(home, roster)
    print(f"in a folder: {degrees_from_the_truth(home, model):.1f} degrees from the honest hospitals")
    with Deployment(home / "deployment") as deployment:
        _, model = on_flower(home, deployment)
    print(f"on Flower: {degrees_from_the_truth(home, model):.1f} degrees from the honest hospitals")
    print(f"reports: {home}/folder-study/report.html, {home}/flower-study/report.html")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir()
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="fedpca-roster-") as folder:
            main(Path(folder))
