"""Secure sessions in memory: owners, a coordinator and a board, for several files of tests."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedpca import Roster, SigningKey
from fedpca.secure import Coordinator, Owner, Secrets, Session, relevant
from fedpca.trust import Member

KEYS = [
    SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)) for number in range(12)
]


def secure_roster(n_members=5, study="study-1", **settings):
    members = [Member(f"owner-{number:02}", KEYS[number].public) for number in range(n_members)]
    return Roster(study, members, {"rank": 2, "n_features": 3, "colluding": 1, **settings})


@dataclass
class Sum:
    name: str
    blocks: tuple[tuple[int, float], ...]

    @property
    def length(self):
        return sum(length for length, _ in self.blocks)


@dataclass
class Study:
    """A session whose owners have random integers for each of its sums."""

    roster: Roster
    sums: list[Sum]
    seed: int = 0
    board: dict = field(default_factory=dict)

    def __post_init__(self):
        n_members = len(self.roster.members)
        rng = np.random.default_rng(self.seed)
        self.session = Session.new(self.roster)
        self.board["session"] = self.session
        self.x = [
            [rng.integers(-(2**40), 2**40, item.length) for _ in range(n_members)] for item in self.sums
        ]
        self.secrets = [
            Secrets.new(len(self.sums), self._random(f"{self.seed} {index}")) for index in range(n_members)
        ]
        self.sent = [{} for _ in range(n_members)]
        self.asked = []  # (owner, sum) of every vector that was asked for: what ledgers are debited of
        self.coordinator = Coordinator(self.roster, self.session)

    @staticmethod
    def _random(name):
        counter = iter(range(10**6))
        return lambda size: hashlib.shake_128(f"{name} {next(counter)}".encode()).digest(size)

    def owner(self, index):
        """As after a restart: nothing is remembered but secrets and what was sent."""
        secrets = Secrets.from_json(self.secrets[index].to_json())
        return Owner(self.roster, self.session, KEYS[index], 10 + index, secrets, self.sent[index])

    def reply(self, index, board=None):
        def vector(announced):
            self.asked.append((index, announced.number))
            return self.x[announced.number][index]

        board = self.board if board is None else board
        owner = self.owner(index)
        new = owner.reply(relevant(board, index), vector)
        self.sent[index].update(new)
        for number in owner.ended(board):
            self.secrets[index] = self.secrets[index].without_sum(number)
        return new

    def advance(self, closing=True, board=None):
        board = self.board if board is None else board
        number = sum(name.endswith("/total") for name in board)
        announce = lambda: self.sums[number] if number < len(self.sums) else None  # noqa: E731
        new = self.coordinator.next(board, closing=closing, announce=announce)
        assert len(new) <= 1
        board.update(new)
        return new

    def run(self, answers=lambda index, state: True, rounds=100):
        """Until nothing moves: `answers` says who answers in which state of the coordinator."""
        for _ in range(rounds):
            before = len(self.board)
            while self.advance(closing=False):
                pass
            for index in range(len(self.roster.members)):
                if answers(index, self.coordinator.state):
                    self.board.update(self.reply(index))
            while self.advance(closing=False):
                pass
            if len(self.board) == before and not self.advance(closing=True):
                return self.coordinator.state
        raise AssertionError("no end")
