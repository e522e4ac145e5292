"""Seven hospitals sum securely on Flower, on this machine, and two of them drop out on the way.

    python examples/flower/hospitals_secure.py [FOLDER]

Nobody, the server included, sees more than sums over at least five hospitals, and the sums carry the noise of
one pool. Harbor drops out before it has sent its masked sum, and is not in it. Lake drops out after that,
before anything is opened, and is in it. FOLDER gets the report, with the certificate.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from run_loopback import Deployment, finished

import fedpca
from fedpca import Roster, SigningKey, Subspace
from fedpca.report import write_report
from fedpca.trust import Member

HOSPITALS = {
    "north": 4000, "south": 2500, "east": 3500, "west": 1800, "center": 5200, "harbor": 3000, "lake": 2200,
}  # fmt: skip
NAMES = ("age", "weight", "systolic", "glucose", "creatinine", "platelets", "crp", "albumin")
PROMISE = {"epsilon": 1.0, "delta": 1e-6, "bound": 6.0}
TERMS = {"least": 5, "colluding": 1}
SETTINGS = {"rank": 2, "center": False, "scale": "none", "features": NAMES} | TERMS | PROMISE
DROPS = {"harbor": "members", "lake": "00-present"}  # as soon as the server has published this
PATIENCE = 900.0  # seconds


def set_up(home):
    """Tables, in units of public reference ranges, and keys, at the hospitals; and the roster of all."""
    shared = np.random.default_rng(0).normal(size=(2, 8)) * [[0.9], [0.6]]
    members = []
    for number, (name, people) in enumerate(HOSPITALS.items()):
        rng = np.random.default_rng([1, number])
        rows = rng.normal(size=(people, 2)) @ shared + 0.5 * rng.normal(size=(people, 8))
        np.savetxt(home / f"{name}.csv", rows, "%.6g", ",", header=",".join(NAMES), comments="")
        key = SigningKey.new()
        key.save(home / f"{name}.key")
        members.append(Member(name, key.public, rows=people))
        (home / f"{name}.policy.toml").write_text("secure_sums_required = true\nlargest_epsilon = 1.0\n")
    roster = Roster("hospitals-5c02", members, SETTINGS)
    roster.save(home / "roster.toml")
    return roster


def table(home, name):
    return np.loadtxt(home / f"{name}.csv", delimiter=",", skiprows=1)


def on_flower(home, deployment, drops=DROPS):
    """A run with seven SuperNodes, of which some are stopped on the way."""
    folder = home / "study"
    deployment.register(*HOSPITALS)
    for name in HOSPITALS:
        config = {
            "client-id": name,
            "source": str(home / f"{name}.csv"),
            "key": str(home / f"{name}.key"),
            "roster": str(home / "roster.toml"),
            "policy": str(home / f"{name}.policy.toml"),
            **PROMISE,
            "center": "none",
        }
        deployment.start_node(name, config)
    settings = {"folder": str(folder), "roster": str(home / "roster.toml"), "rank": 2, "center": False}
    run = deployment.start_run(**settings, **PROMISE, deadline=PATIENCE)
    for name, published in drops.items():
        end = time.monotonic() + PATIENCE
        while not (folder / "secure-1" / published).exists() and time.monotonic() < end:
            time.sleep(0.05)
        deployment.stop(name)
        print(f"{name} drops out: {published} was published")
    finished(run, 2 * PATIENCE)
    summary = json.loads((folder / "summary.json").read_text())
    model = fedpca.load(folder / "model.safetensors")
    write_report(home / "report.html", model, run=folder)
    return summary, model


def main(home):
    roster = set_up(home)
    print(f"{len(roster.members)} members of study {roster.study}, roster {roster.hash}")
    with Deployment(home / "deployment") as deployment:
        summary, model = on_flower(home, deployment)
    for entry in summary["secure"]["sums"]:
        print(f"{entry['sum']}: {entry['rows']} rows of {', '.join(entry['owners'])}")
    for reply in summary["replies"]:
        print(f"{reply['client']}: {reply['what']}; {reply['reason'] or 'it is in all sums.'}")
    print(model)
    print(model.certificate.secure.describe())
    pooled = np.concatenate([table(home, name) for name in summary["secure"]["sums"][0]["owners"]])
    angle = fedpca.metrics.principal_angles(Subspace.from_rows(pooled, 2, center=False), model).max()
    print(f"{np.degrees(angle):.1f} degrees from the components of these rows, pooled and without noise")
    print(f"report: {home}/report.html")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir()
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="fedpca-secure-") as folder:
            main(Path(folder))
