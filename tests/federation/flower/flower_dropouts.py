"""Flower processes that drop out of secure runs: by a signal, in the middle of an exchange.

SuperLinks and SuperNodes are Flower's. Their apps have processes of their own, too, which start in
milliseconds (see `processes`). A ClientApp that has come to its moment sends a signal to its SuperNode.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

PROGRAMS = {
    "flwr": "from flwr.cli.app import app; app()",
    "flwr-serverapp": "import flower_dropouts; flower_dropouts.serverapp()",
    "flwr-clientapp": "import flower_dropouts; flower_dropouts.clientapp()",
}
IMPORTS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.environ |= {{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}}
import flower_dropouts
flower_dropouts.be_quick()
import flwr.cli.app, flwr.superlink.cli, flwr.supernode.cli
import fedpca.federation.flower.client_app, fedpca.federation.flower.server_app
"""
SITE = f"""
import sys
if sys.argv[0].endswith(("flower-superlink", "flower-supernode")):
    sys.path.append({str(Path(__file__).parent)!r})
    import flower_dropouts
    flower_dropouts.be_quick()
"""
"""sitecustomize.py of Flower's processes."""

N_REQUESTS = 9  # to a node: keys, shares, members; for each of two sums its words, a signature, an answer
LEAVING = ("kill", "leave", "silent")  # those who are not there again in this run
MODES = (*LEAVING, "crash", "late")


def be_quick():
    """Let a SuperLink lose a node after 20 seconds, not 60, and SuperNodes look for messages twice a second,
    not every three seconds."""
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = 10
    from flwr.supernode import start_client_internal

    start_client_internal.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, 0.5)))


def serverapp():
    """Flower's process of a ServerApp."""
    from flwr.superlink.cli import flwr_serverapp

    from fedpca.federation.flower import round as round_module

    round_module._PAUSE = 0.25
    sys.exit(flwr_serverapp())


def clientapp():
    """Flower's process of a ClientApp. Its node drops out if that is in the pattern beside its rows.

    What the owner draws is kept there, too: it erases it when a sum has ended, and the test needs it.
    """
    from flwr.supernode.cli import flwr_clientapp

    from fedpca.federation.flower.node import Node
    from fedpca.secure.owner_state import OwnerFiles

    secure_reply, begin = Node.secure_reply, OwnerFiles.begin

    def reply(self, request, board, known):
        folder = Path(self.source).parent
        mode, after = next_moment(folder, self.client)
        if mode and not after:
            drop_out(mode, folder.parent / f"{self.client}.pid")
        messages = secure_reply(self, request, board, known)
        if mode and after:
            drop_out(mode, folder.parent / f"{self.client}.pid")
        return messages

    def kept(self, facts, n_sums):
        begin(self, facts, n_sums)
        drawn = Path(str(self._folder).partition(".fedpca")[0] + ".drawn")
        if not drawn.exists():
            drawn.write_text(json.dumps(self._head))

    Node.secure_reply, OwnerFiles.begin = reply, kept
    sys.exit(flwr_clientapp())


def next_moment(folder, name):
    """Counts a request, and says how the node drops out now, if it does, and whether its work is done."""
    asked = folder / f"{name}.asked"
    count = len(asked.read_text()) if asked.exists() else 0
    asked.write_text("x" * (count + 1))
    pattern = json.loads((folder / "pattern.json").read_text())
    moment, mode, after = pattern.get(name, (None, "", False))
    return (mode, after) if moment == count else ("", False)


def drop_out(mode, pid_file):
    """Drop out: for good, until this process is started again, or for some seconds."""
    node = int(pid_file.read_text())
    if mode == "late":
        os.killpg(node, signal.SIGSTOP)
        time.sleep(3)
        os.killpg(node, signal.SIGCONT)
        return
    if mode == "leave":
        os.kill(node, signal.SIGTERM)
    elif mode != "crash":
        os.killpg(node, signal.SIGKILL if mode == "kill" else signal.SIGSTOP)
    os._exit(1)


def random_drop_outs(rng: random.Random, names):
    """By name, at which of its requests a node drops out, how, and whether after it has done its work."""
    return {
        name: (rng.randrange(N_REQUESTS), rng.choice(MODES), rng.random() < 0.5)
        for name in names
        if rng.random() < 0.4
    }
