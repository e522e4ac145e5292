"""Virtual nodes: the node configs of Flower's simulation, where there are no machines to keep them."""

from collections.abc import Mapping
from pathlib import Path

from fedpca._typing import JSON
from fedpca.errors import NodeError
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.readers.paths import FORMATS


def virtual_config(number: int, run_config: Mapping[str, object]) -> JSON:
    """The node config of a virtual node: its rows are one file of the folder `simulate`.

    Its privacy is that of the run, and its release is kept in the folder of the run: another folder is
    another simulation.

    Args:
        number: Flower's "partition-id": which file, from 0, in the order of names.
        run_config: that of the run.
    """
    folder = Path(str(run_config["simulate"]))
    if not run_config["simulate"] or not folder.is_dir():
        raise NodeError(
            f"a simulation needs a folder of data files, got simulate={run_config['simulate']!r}."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in FORMATS)
    if number >= len(files):
        raise NodeError(f"there are {len(files)} files in {folder}; set num-supernodes to {len(files)}.")
    source = files[number]
    state = Path(str(run_config["folder"])) / "nodes" / source.name
    config = {"client-id": source.stem, "source": str(source), "state": str(state)}
    if floor := PrivacyFloor.from_config(run_config):
        config |= {key: value for key, value in floor.to_config().items() if key != "bound" or value}
        config |= {} if run_config["center"] else {"center": "none"}
    return config
