"""Secure sessions in memory: owners, a coordinator and a board, for several files of tests."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedpca import Roster, SigningKey
from fedpca.secure import Coordinator, Owner, Record, Secrets, Session, relevant
from fedpca.trust import Member

KEYS = [
    SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)) for number in range(12)
]


def secure_roster(n_members=5, study="study-1", **settings):
    members = [Member(f"owner-{number:02}", KEYS[number].public) for number in range(n_members)]
    return Roster(study, members, {"rank": 2, "n_features": 3, "colluding": 1, **settings})


def drawn(name):
    """Random bytes that are the same every time, of any size per call."""
    counter = iter(range(10**6))
    return lambda size: hashlib.shake_128(f"{name} {next(counter)}".encode()).digest(size)


@dataclass
class Sum:
    name: str
    blocks: tuple[tuple[int, float], ...]

    @property
    def length(self):
        return sum(length for length, _ in self.blocks)


@dataclass
class Study:
    """A session whose owners have random integers for each of its sums.

    Owners forget everything between replies but their secrets and what they have sent, if they `restart`.
    """

    roster: Roster
    sums: list[Sum]
    seed: int = 0
    restart: bool = False
    board: dict = field(default_factory=dict)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        members = range(len(self.roster.members))
        self.session = Session.new(self.roster)
        self.board["session"] = self.session
        self.x = [[rng.integers(-(2**40), 2**40, item.length) for _ in members] for item in self.sums]
        self.secrets = [Secrets.new(len(self.sums), drawn(f"{self.seed} {index}")) for index in members]
        self.sent = [{} for _ in members]
        self.asked = []  # (owner, sum) of every vector that was asked for: what ledgers are debited of
        self.coordinator = Coordinator(self.roster, self.session)
        self._owners = {}

    @property
    def members(self):
        return range(len(self.roster.members))

    @property
    def record(self):
        return Record(self.coordinator.session, self.board)

    def owner(self, index):
        if self.restart or index not in self._owners:
            secrets = Secrets.from_json(self.secrets[index].to_json())
            self._owners[index] = Owner(
                self.roster, self.session, KEYS[index], 10 + index, secrets, self.sent[index]
            )
        return self._owners[index]

    def reply(self, index, board=None):
        """What an owner sends on seeing this board; it is in `sent`, and not on the board yet."""

        def vector(announced):
            self.asked.append((index, announced.number))
            return self.x[announced.number][index]

        board = self.board if board is None else board
        owner = self.owner(index)
        new = owner.reply(relevant(board, index), vector)
        assert not set(new) & set(self.sent[index])
        self.sent[index].update(new)
        if self.restart:
            for number in owner.ended(board):
                self.secrets[index] = self.secrets[index].without_sum(number)
        return new

    def advance(self, closing=True, board=None):
        """What the coordinator publishes next on seeing this board; it is on the study's board, too."""
        board = self.board if board is None else board
        number = sum(name.endswith("/total") for name in board)
        following = self.sums[number] if number < len(self.sums) else None
        new = self.coordinator.next(board, closing=closing, announce=lambda: following)
        assert len(new) <= 1
        self.board.update(new)
        return new

    def run(self, answers=lambda index, state: True, until=None):
        """Until nothing moves, or a message of this name is published.

        `answers` says who answers in which state of the coordinator.
        """
        while until not in self.board:
            before = len(self.board)
            while until not in self.board and self.advance(closing=False):
                pass
            for index in self.members:
                if until not in self.board and answers(index, self.coordinator.state):
                    self.reply(index)
                    self.board.update(self.sent[index])
            if len(self.board) == before and not self.advance(closing=True):
                return self.coordinator.state
        return self.coordinator.state
