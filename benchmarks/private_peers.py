"""Private PCAs of other libraries, each fit in a process of its own that is killed when its time is over.

Used as their documentation advises, on rows in the unit ball. diffprivlib is told that the rows are centered,
so that it spends nothing on the mean; OpenDP's PCA always spends a third of epsilon on it. Ours is "gram".
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks.common import Array
from benchmarks.private import power_law_task

REMARKS = (
    "fedpca: (epsilon, 1e-5), replace-one. diffprivlib and OpenDP: delta = 0; OpenDP's epsilon is that of\n"
    "adding or removing one record, half of what replacing one costs."
)

Fit = Callable[[Array, int, float, int], Array]  # rows, rank, epsilon, seed -> components


def fedpca(rows: Array, rank: int, epsilon: float, seed: int) -> Array:
    from fedpca import Privacy, PrivatePCA

    privacy = Privacy(epsilon, 1e-5, 1.0, insecure_seed_for_tests=seed, center=None, evaluate=False)
    scatter = PrivatePCA(**privacy.settings).fit(rows).release().scatter
    directions: Array = np.linalg.eigh(scatter)[1][:, ::-1][:, :rank].T  # above the noise or not
    return directions


def diffprivlib(rows: Array, rank: int, epsilon: float, seed: int) -> Array:
    from diffprivlib.models import PCA

    model = PCA(n_components=rank, epsilon=epsilon, data_norm=1.0, centered=True, random_state=seed)
    return model.fit(rows).components_


def opendp(rows: Array, rank: int, epsilon: float, seed: int) -> Array:
    """It takes its random numbers from the system: no seed."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    n, d = rows.shape
    model = dp.sklearn.decomposition.PCA(
        epsilon=epsilon, row_norm=1.0, n_samples=n, n_features=d, n_components=rank
    )
    return model.fit(rows).components_


def import_fedpca() -> None:
    import fedpca  # noqa: F401


def import_diffprivlib() -> None:
    """Its trees, which PCA does not use, ask scikit-learn for two names that 1.9 no longer has."""
    import sklearn.tree._tree as tree

    for name, kind in (("DOUBLE", np.float64), ("DTYPE", np.float32)):
        if not hasattr(tree, name):
            setattr(tree, name, kind)
    import diffprivlib.models  # noqa: F401


def import_opendp() -> None:
    import opendp.prelude
    import randomgen  # noqa: F401  its PCA draws from it

    opendp.prelude.sklearn.decomposition.PCA  # noqa: B018


OURS = "fedpca gram"
LIBRARIES: dict[str, tuple[Callable[[], None], Fit]] = {
    OURS: (import_fedpca, fedpca),
    "diffprivlib": (import_diffprivlib, diffprivlib),
    "OpenDP": (import_opendp, opendp),
}


def available(python: str) -> list[str]:
    """The libraries that can be imported there; a line is printed for each that cannot."""
    found = []
    for name in LIBRARIES:
        command = [_interpreter(name, python), "-m", "benchmarks.private_peers", json.dumps({"name": name})]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            found.append(name)
        else:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(
                f"Left out: {name} (pip install -r requirements/benchmarks.txt): {reason[:100]}\n", flush=True
            )
    return found


def fit(
    name: str, epsilon: float, rank: int, seed: int, *, limit: float, python: str
) -> tuple[Array, float] | str:
    """Components and seconds of one fit to the rows of a seed, or why there are none.

    The limit starts when the process has imported the library and made the rows.
    """
    work = json.dumps({"name": name, "epsilon": epsilon, "rank": rank, "seed": seed})
    process = subprocess.Popen(
        [_interpreter(name, python), "-m", "benchmarks.private_peers", work],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # "ready"
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no result in {limit:g} s"
    if process.returncode:
        return "failed: " + (errors.strip().splitlines() or ["no message"])[-1][:100]
    result = json.loads(output.splitlines()[-1])
    return np.array(result["components"]), result["seconds"]


def _interpreter(name: str, python: str) -> str:
    return sys.executable if name == OURS else python


def child(name: str, epsilon: float = 0.0, rank: int = 0, seed: int = 0) -> None:
    """Import a library and, if a rank is given, fit once."""
    warnings.filterwarnings("ignore")
    prepare, run = LIBRARIES[name]
    prepare()
    if not rank:
        return
    rows = power_law_task(5000, 20, alpha=0.5, rank=rank, seed=seed).rows
    print("ready", flush=True)
    start = time.perf_counter()
    components = run(rows, rank, epsilon, seed)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "components": np.asarray(components).tolist()}))


if __name__ == "__main__":
    child(**json.loads(sys.argv[1]))
