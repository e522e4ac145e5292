"""Clients of a Flower federation, honest and hostile, for the tests with and without real processes."""

from pathlib import Path

import numpy as np
from helpers import rows_of

from fedpca import Ledger, Moments, Subspace
from fedpca.summaries import model_file

REQUEST = {"rank": 3, "center": True, "scale": "none"}
PRIVATE = {"epsilon": 2.0, "delta": 1e-6, "bound": 3.0}


def write(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    else:
        names = ",".join(f"feature {column}" for column in range(rows.shape[1]))
        lines = [names, *(",".join(map(repr, row.tolist())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return path


def config_of(folder, client, seed, ending=".npy", **more):
    """The node config of a client, whose file is written to the folder."""
    source = write(folder / f"{client}{ending}", rows_of(seed, 1500))
    return {"client-id": client, "source": str(source)} | more


def spent(config):
    return Ledger(Path(config["source"] + ".fedpca") / "ledger").spent()


def lies(release):
    """What hostile owners send, and what is reported of it; `release` is one to forge."""
    kind, arrays, facts = model_file.decode(release, "a release")
    honest = Subspace.from_rows(rows_of(9), 3)
    crooked, crooked_facts = honest.arrays, honest.metadata
    crooked["components"] = 1.1 * crooked["components"]
    narrow = Moments.from_rows(rows_of(9, n_features=5))
    other, other_facts = narrow.arrays | {"mean": np.zeros(5)}, narrow.metadata
    other_facts |= {"certificate": facts["certificate"]}
    names = (facts | {"child": f"liar {number}"} for number in range(5))
    return [
        (model_file.encode(kind, arrays | {"mean": np.full(8, np.nan)}, next(names)), "must be finite"),
        (model_file.encode(kind, arrays | {"scatter": np.eye(7)}, next(names)), "shape"),
        (model_file.encode("subspace", crooked, next(names) | crooked_facts), "orthonormal"),
        (model_file.encode(kind, arrays, next(names) | {"count": 1e18}), "count must be above 0 and at most"),
        (model_file.encode(kind, other, next(names) | other_facts), "same features, got 8 and 5"),
        (np.random.default_rng(0).bytes(5000), "not a model file, or is damaged"),
    ]
