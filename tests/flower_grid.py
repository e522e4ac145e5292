"""A Flower federation in one process: nodes that reply at once, honest or not, and a run of the ServerApp."""

import json
import threading

import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedpca.federation.flower import client_app, server_app
from fedpca.federation.flower.round import Round

RUN = {
    "rank": 3, "center": True, "scale": "none", "features": "none",
    "deadline": 60.0, "expect": 0, "quorum": 1, "retries": 2,
    "max-bytes": 2**20, "max-rows": "none", "max-rms": "none", "least-rows": 0,
    "roster": "none", "robust": "none", "max-share": "none",
    "epsilon": "none", "delta": 1e-6, "bound": "private", "adjacency": "replace-one",
}  # fmt: skip


class FakeGrid:
    """Nodes in this process by number: what replies to a message; None is silent, an exception unreadable."""

    def __init__(self, **nodes):
        self.nodes = {int(name[1:]): node for name, node in nodes.items()}
        self.replies = {}
        self.requested = []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            name = f"message {len(self.requested)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.requested.append(node)
            reply = None if self.nodes[node] is None else self.nodes[node](message)
            if reply is not None:
                self.replies[name] = reply
            yield name

    def pull_messages(self, names):
        replies = [self.replies.pop(name) for name in names if name in self.replies]
        for reply in replies:
            if isinstance(reply, Exception):  # as Flower does, whatever else it was to pull
                raise reply
            if isinstance(reply, threading.Event):
                reply.wait()
        return replies


def client(config):
    """A node that runs the ClientApp."""
    return lambda message: client_app.app(message, Context(1, 1, config, RecordDict(), {}))


def sends(contents, kind="release"):
    """A node that sends something else as its release, or another kind of reply."""
    encoded = Array("uint8", (len(contents),), "", contents)
    reply = RecordDict({kind: ArrayRecord({"message": encoded})})
    return lambda message: Message(reply, reply_to=message)


def run(grid, folder, *, replies=0, **config):
    """A run; with `replies`, to the end of so many, whatever they are, instead of the deadline."""
    folder.mkdir(exist_ok=True)
    config = RUN | {name.replace("_", "-"): value for name, value in config.items()}
    with pytest.MonkeyPatch.context() as patch:
        if replies:
            complete = property(lambda self: len(self.replies) >= replies)
            patch.setattr(Round, "_complete", complete)
        server_app.run(grid, config, folder)
    return summary_in(folder)


def summary_in(folder):
    return json.loads((folder / "summary.json").read_text())


def pretend_to_be_flower(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
