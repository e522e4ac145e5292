"""Virtual nodes: what the owners of Flower's simulation have, who have no machines to write it down on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca.errors import NodeError
from fedpca.readers.paths import FORMATS


def virtual_config(number: int, run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The node config of a virtual node: its rows are the file of its number in the folder `simulate`.

    It promises what the run asks for, and keeps its release in the folder of the run: another folder is
    another simulation.

    Args:
        number: Flower's "partition-id", from 0.
        run_config: that of the run.
    """
    folder = Path(str(run_config["simulate"]))
    if not run_config["simulate"] or not folder.is_dir():
        raise NodeError(
            f"a simulation needs a folder of files of rows, got simulate={run_config['simulate']!r}."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in FORMATS)
    if number >= len(files):
        raise NodeError(f"there are {len(files)} files in {folder}; set num-supernodes to {len(files)}.")
    source = files[number]
    state = Path(str(run_config["folder"])) / "nodes" / source.name
    config = {"client-id": source.stem, "source": str(source), "state": str(state)}
    if run_config["epsilon"]:
        config |= {key: run_config[key] for key in ("epsilon", "delta", "bound", "adjacency")}
        config |= {"center": "private"} if run_config["center"] else {}
    return config
