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
from fedpca.federation.folder.secure import SharedSession
from fedpca.secure import CheckedBoard, Secrets, Session, noise_shares
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.study import fit_of
from fedpca.trust import Member

PLAIN = {"rank": 2, "n_features": 3, "scale": "none", "center": True, "largest": 20.0}
PROMISE = {"epsilon": 8.0, "delta": 1e-5, "adjacency": "replace-one"}
PRIVATE = {"rank": 2, "n_features": 3, "scale": "none", "center": False, "bound": 8.0} | PROMISE
"""Two sums: the release, and its evaluation."""


class SecureClub:
    """A secure study: files of its server and of its members."""

    def __init__(self, folder, n=5, *, settings=PLAIN, n_rows=12, config=None, **more):
        self.folder, self.server, self.path = folder, folder / "server", folder / "roster.toml"
        self.keys, self.configs = {}, {}
        private = {} if "epsilon" not in settings else {name: settings[name] for name in PROMISE}
        if private:
            private |= {"bound": settings["bound"]} if "bound" in settings else {}
            private |= {} if settings["center"] else {"center": "none"}
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
                **private,
                **(config or {}),
            }
            members.append(Member(name, self.keys[name].public))
        self.agree(Roster("heart", members, settings | {"colluding": 1} | more))

    def agree(self, roster):
        self.roster = roster
        roster.save(self.path)

    @property
    def run_config(self):
        """The part of a run config that this study needs."""
        settings = self.roster.settings
        agreed = {name: settings[name] for name in (*PROMISE, "rank", "center", "bound") if name in settings}
        return agreed | {"roster": str(self.path), "scale": settings["scale"]}

    def nodes(self):
        return {number: client(config) for number, config in enumerate(self.configs.values(), start=1)}

    def grid(self, **others):
        return FakeGrid(**{f"n{number}": node for number, node in self.nodes().items()} | others)

    @property
    def board(self):
        return SharedSession(self.server / f"secure-{1 + len(self.roster.predecessors)}", self.roster).board

    def rows(self, name):
        return np.load(self.configs[name]["source"])

    def check_totals(self, heads=None):
        """Every total is the sum of what its owners have, bit for bit; returns who is in which.

        Args:
            heads: of private studies, what owners have drawn, by name; see `remember_secrets`.
        """
        board = self.board
        shown = CheckedBoard(Session(self.roster, board["session"]), board)
        fit = fit_of(self.roster)
        if not shown.has("members"):
            return []
        fit.begin(shown.rows, 1.0)
        for total in shown.totals:
            shifts = [block.shift for block in total.blocks for _ in range(block.length)]
            expected = np.zeros(fit.next.length, dtype=np.uint64)
            for name in total.owners:
                vector = fit.vector(iter([self.rows(name)]), np.random.default_rng(0))
                expected += (np.asarray(vector).astype(np.int64) << shifts).view(np.uint64)
                if heads:
                    expected += kept_noise(shown, total, heads[name])
            assert np.array_equal(total.words.view(np.uint64), expected)
            assert total.rows == sum(len(self.rows(name)) for name in total.owners)
            assert len(total.owners) >= shown.terms.least
            fit.add(total)
        return [total.owners for total in shown.totals]


def kept_noise(shown, total, head):
    """An owner's noise in a total: all of it, or without the surplus that it opened."""
    chain = Secrets.from_json(head["secrets"]).of_sum(total.number).surplus
    noise = noise_shares.noise(total.blocks, shown.levels, chain, 0)
    header = json.loads(shown._board[f"{total.number:02}/total"].partition(b"\n")[0])
    first = shown.levels.first_surplus(len(total.owners))
    if first is not None and head["index"] in header["opened"]:
        opened = noise_shares.element_after(chain, first)
        noise = noise - noise_shares.noise(total.blocks, shown.levels, opened, first)
    return noise


def remember_secrets(monkeypatch, club):
    """What owners draw, by name: they erase it when a sum has ended."""
    heads, begin = {}, OwnerFiles.begin

    def remembered(self, facts, n_sums):
        begin(self, facts, n_sums)
        for index, (name, config) in enumerate(club.configs.items()):
            if str(self._folder).startswith(config["source"]):
                heads.setdefault(name, self._head | {"index": index})

    monkeypatch.setattr(OwnerFiles, "begin", remembered)
    return heads


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
