"""Secure sessions in memory: owners, a coordinator and a board, for several files of tests."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedpca import Roster, SigningKey
from fedpca.secure import (
    CheckedBoard,
    Coordinator,
    Owner,
    OwnerMemory,
    Progress,
    Secrets,
    Session,
    relevant,
)
from fedpca.secure.fit import Sum as NeededSum
from fedpca.secure.owner import refusal
from fedpca.secure.rows import OwnerRows
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


class ListedSums:
    """What is summed, as a list: the `Fit` of a session whose sums are of given integers.

    Args:
        sums: in their order.
        integers: gives an owner's integers of the sum of a number; the coordinator has none.
    """

    n_features, feature_names = 3, None

    def __init__(self, sums, integers=None):
        self._sums, self._integers, self._n_taken = sums, integers, 0
        self.most_sums, self.most_words = len(sums), max((item.length for item in sums), default=1)

    def begin(self, rows, noise):
        pass

    @property
    def next(self):
        if self._n_taken == len(self._sums):
            return None
        name, blocks = self._sums[self._n_taken].name, self._sums[self._n_taken].blocks
        return NeededSum(name, tuple(blocks), 0.0, (0.0,) * len(blocks), (0.0,) * len(blocks))

    def check_rows(self, parts):
        pass

    def vector(self, parts, random):
        return self._integers(self._n_taken)

    def add(self, total):
        self._n_taken += 1


def rows_of(n_rows):
    """Rows of an owner whose integers are given: how many there are is all that matters."""
    return OwnerRows.of_table(np.zeros((n_rows, 3)))


def owner_of(roster, session, index, n_rows, secrets, sent, sums=(), integers=None):
    """An owner with given secrets, integers and messages sent before."""
    progress = Progress(Session(roster, session), ListedSums(sums, integers))
    return Owner(progress, KEYS[index], rows_of(n_rows), OwnerMemory(secrets, sent))


def coordinator_of(roster, session, sums):
    return Coordinator(Progress(Session(roster, session), ListedSums(sums)))


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
        self.states = [OwnerMemory(drawn_once) for drawn_once in self.secrets]  # they erase theirs
        self.paid = []  # (owner, sum) of every vector that was needed: what ledgers are debited of
        self.coordinator = coordinator_of(self.roster, self.session, self.sums)
        self._owners = {}

    @property
    def members(self):
        return range(len(self.roster.members))

    @property
    def shown(self):
        return CheckedBoard(self.coordinator.session, self.board)

    def sent(self, index):
        return self.states[index].sent

    def owner(self, index, state=None):
        """One that is made anew has seen no board."""

        def integers(number):
            self.paid.append((index, number))
            return self.x[number][index]

        progress = Progress(Session(self.roster, self.session), ListedSums(self.sums, integers))
        return Owner(progress, KEYS[index], rows_of(10 + index), state or self.states[index])

    def reply(self, index, board=None):
        """What an owner sends on seeing this board; it is in its state, and not on the board yet."""
        board = self.board if board is None else board
        if self.restart or index not in self._owners or board is not self.board:
            owner = self.owner(index)
        else:
            owner = self._owners[index]
        if board is self.board:
            self._owners[index] = owner
        before = set(self.sent(index))
        new = owner.reply(relevant(board, index))
        assert not set(new) & before
        assert set(self.sent(index)) == before | set(new)
        return new

    def refuse(self, index, number=0):
        """The refusal of an owner; it is on the board, too."""
        session = self.coordinator.session
        new = refusal(session, KEYS[index], self.states[index], number, relevant(self.board, index))
        self.board.update(new)
        return new

    def advance(self, closing=True, board=None):
        """What the coordinator publishes next on seeing this board; it is on the study's board, too."""
        coordinator = self.coordinator
        if board is not None and board is not self.board:
            coordinator = coordinator_of(self.roster, self.session, self.sums)
        new = coordinator.advance(self.board if board is None else board, closing=closing)
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
                    self.board.update(self.sent(index))
            if len(self.board) == before and not self.advance(closing=True):
                return self.coordinator.state
        return self.coordinator.state
