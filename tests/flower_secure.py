"""A secure study on Flower for tests: its members, what they sum, and grids on which nodes drop out."""

import json
import random
from queue import Empty, Queue
from types import SimpleNamespace

import numpy as np
from flower_clients import write
from flower_grid import FakeGrid, client

from fedpca import Roster, SigningKey
from fedpca.federation.flower import round as round_module
from fedpca.federation.flower import secure_run
from fedpca.federation.secure_board import FolderBoard
from fedpca.secure import Record, Session
from fedpca.secure.study import fit_of
from fedpca.trust import Member

PLAIN = {"rank": 2, "n_features": 3, "scale": "none", "center": True, "largest": 20.0}
PRIVATE = {
    "rank": 2, "n_features": 3, "scale": "std", "center": True,
    "epsilon": 8.0, "delta": 1e-5, "adjacency": "replace-one", "mechanism": "gram",
}  # fmt: skip
RUN = {"rank": 2, "adjacency": "replace-one"}
PROMISE = {"epsilon": 8.0, "delta": 1e-5}


class SecureClub:
    """A secure study: files of its server and of its members."""

    def __init__(self, folder, n=5, *, settings=PLAIN, n_rows=12, study="heart", config=None, **more):
        self.folder, self.server, self.path = folder, folder / "server", folder / "roster.toml"
        self.keys, self.configs = {}, {}
        folder.mkdir(exist_ok=True)
        members = []
        for number in range(n):
            name = f"owner{number}"
            self.keys[name] = SigningKey.new()
            self.keys[name].save(folder / f"{name}.key")
            rows = np.random.default_rng([7, number]).normal(size=(n_rows + number, 3)) * [4, 2, 1] + 1
            source = write(folder / f"{name}.npy", rows)
            self.configs[name] = {
                "client-id": name,
                "source": str(source),
                "key": str(folder / f"{name}.key"),
                "roster": str(self.path),
            } | (config or {})
            members.append(Member(name, self.keys[name].public))
        self.agree(Roster(study, members, settings | {"colluding": 1} | more))

    def agree(self, roster):
        self.roster = roster
        roster.save(self.path)

    @property
    def run_config(self):
        """The part of a run config that this study needs."""
        private = "epsilon" in self.roster.settings
        scale = self.roster.settings["scale"].replace("none", "")
        return RUN | {"roster": str(self.path), "scale": scale} | (PROMISE if private else {})

    def nodes(self):
        return {number: client(config) for number, config in enumerate(self.configs.values(), start=1)}

    def grid(self, **others):
        return FakeGrid(**{f"n{number}": node for number, node in self.nodes().items()} | others)

    @property
    def board(self):
        return FolderBoard(self.server / f"secure-{1 + len(self.roster.predecessors)}")

    def rows(self, name):
        return np.load(self.configs[name]["source"])

    def check_totals(self):
        """Every total is the sum of what its owners have, bit for bit; returns who is in which."""
        board = self.board
        record = Record(Session(self.roster, board["session"]), board)
        fit = fit_of(self.roster)
        if not record.has("members"):
            return []
        fit.begin(record.rows, 1.0)
        for total in record.totals:
            expected = np.zeros(fit.next.length, dtype=np.uint64)
            for name in total.owners:
                vector = fit.vector(iter([self.rows(name)]), np.random.default_rng(0))
                expected += np.asarray(vector).astype(np.int64).view(np.uint64)
            assert np.array_equal(total.words.view(np.uint64), expected)
            assert total.rows == sum(len(self.rows(name)) for name in total.owners)
            assert len(total.owners) >= record.terms.least
            fit.add(total)
        return [total.owners for total in record.totals]


class DroppingGrid(FakeGrid):
    """Nodes that drop out: before a request or after it, with or without a word, for a while or for good.

    Args:
        nodes: by number.
        pattern: by number of a node, what it does at which of its requests: a (mode, absence) each.
    """

    def __init__(self, nodes, pattern):
        super().__init__()
        self.nodes = dict(nodes)
        self._pattern = pattern
        self._n_requests = dict.fromkeys(nodes, 0)
        self._absent = {}  # node: when it is back, in requests of all

    def get_node_ids(self):
        count = len(self.requested)
        return [node for node in self.nodes if self._absent.get(node, 0) <= count]

    def push_messages(self, messages):
        for message in messages:
            node = message.metadata.dst_node_id
            mode, absence = self._pattern.get(node, {}).get(self._n_requests[node], ("", 0))
            self._n_requests[node] += 1
            answer = self.nodes[node]
            if mode in ("gone", "lost"):
                self._absent[node] = len(self.requested) + absence
            if mode in ("gone", "silent"):  # it never got the request, or does nothing with it
                self.nodes[node] = None
            elif mode == "lost":  # it did what it was asked for, and its reply is lost
                self.nodes[node] = lambda message, answer=answer: answer(message) and None
            try:
                yield from super().push_messages([message])
            finally:
                self.nodes[node] = answer


def without_waiting(monkeypatch):
    """Let time pass when all wait, and at no other time; replies come at once, and in order."""
    now = [0.0]

    class Incoming(Queue):
        def get(self, timeout):
            try:
                return super().get(block=False)
            except Empty:
                now[0] += timeout
                raise

    class Listener:
        def __init__(self, target, args, daemon):
            self._round, (self._name, self._node) = target.__self__, args

        def start(self):
            for reply in self._round._grid.pull_messages([self._name]):
                self._round._incoming.put((self._node, reply))

    for module in (round_module, secure_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(round_module, "Queue", Incoming)
    monkeypatch.setattr(round_module, "Thread", Listener)
    monkeypatch.setattr(round_module, "_PAUSE", 20.0)


def random_pattern(rng: random.Random, nodes, n_requests=9):
    """Which nodes drop out, at which of their requests, and for how long."""
    return {
        node: {
            rng.randrange(n_requests): (
                rng.choice(("gone", "silent", "lost")),
                rng.choice((2, 10, 10**6)),
            )
            for _ in range(rng.choice((1, 1, 2)))
        }
        for node in nodes
        if rng.random() < 0.35
    }


def summary_in(folder):
    return json.loads((folder / "summary.json").read_text())
