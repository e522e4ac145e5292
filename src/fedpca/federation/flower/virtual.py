"""Virtual nodes: the node configs of Flower's simulation, where there are no machines to keep them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca._typing import JSON
from fedpca.errors import NodeError
from fedpca.federation.flower.request import NOTHING
from fedpca.readers.paths import FORMATS
from fedpca.trust.agreement import PROMISE


def virtual_config(number: int, run_config: Mapping[str, Any]) -> JSON:
    """The node config of a virtual node: its rows are one file of the folder `simulate`.

    Its privacy is that of the run, and its release is kept in the folder of the run: another folder is
    another simulation.

    Args:
        number: Flower's "partition-id": which file, from 0, in the order of names.
        run_config: that of the run.
    """
    folder = Path(str(run_config["simulate"]))
    if run_config["simulate"] == NOTHING or not folder.is_dir():
        raise NodeError(
            f"a simulation needs a folder of data files, got simulate={run_config['simulate']!r}."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in FORMATS)
    if number >= len(files):
        raise NodeError(f"there are {len(files)} files in {folder}; set num-supernodes to {len(files)}.")
    source = files[number]
    state = Path(str(run_config["folder"])) / "nodes" / source.name
    config = {"client-id": source.stem, "source": str(source), "state": str(state)}
    if run_config["epsilon"] != NOTHING:
        config |= {name: run_config[name] for name in PROMISE if name in run_config}
        config |= {} if run_config["center"] else {"center": "none"}
    return config
