"""Studies by secure sums through a shared folder: members with rows, keys and states, for several tests."""

import numpy as np
from secure_sessions import KEYS

from fedpca import Ledger, Roster
from fedpca.federation.folder.secure import SharedSession
from fedpca.secure import CheckedBoard
from fedpca.secure.rows import OwnerRows
from fedpca.secure.study import fit_of
from fedpca.trust import Member

PLAIN = {"largest": 100.0}
PRIVATE = {"epsilon": 4.0, "delta": 1e-6}


class FolderStudy:
    """A session in a folder.

    Args:
        home: a folder; the shared one is in it, and the states of members.
        n_members: how many.
        settings: of the roster.
    """

    def __init__(self, home, n_members=5, seed=0, **settings):
        self.home, self.shared = home, home / "shared"
        self.shared.mkdir()
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(2, 3))
        self.tables = [
            rng.normal(size=(20 + i, 2)) @ common + 0.1 * rng.normal(size=(20 + i, 3))
            for i in range(n_members)
        ]
        members = [Member(f"owner-{i:02}", KEYS[i].public) for i in range(n_members)]
        self.roster = Roster("study-1", members, {"rank": 2, "n_features": 3, "colluding": 1, **settings})
        self.is_private = "epsilon" in settings
        SharedSession.new(self.shared, self.roster)

    def open(self):
        return SharedSession(self.shared, self.roster)

    def board(self):
        return self.open().board

    def session(self):
        return self.open().session

    def shown(self):
        shared = self.open()
        return CheckedBoard(shared.session, shared.board)

    def ledger(self, index):
        if not self.is_private:
            return None
        path = self.home / f"ledger-{index}.jsonl"
        return Ledger.planned(path, 4.0, 1e-6, key=KEYS[index])

    def visit(self, index, folder=None, roster=None, **changes):
        given = {
            "key": KEYS[index],
            "rows": lambda: OwnerRows.of_table(self.tables[index]),
            "state": self.home / f"state-{index}",
            "ledger": self.ledger(index),
        }
        return SharedSession(folder or self.shared, roster or self.roster).visit(**given | changes)

    def coordinate(self, **settings):
        return self.open().coordinate(**settings)[0]

    def model(self):
        return self.open().model()

    def refuse(self, index):
        return self.open().refuse(KEYS[index], self.home / f"state-{index}", ledger=self.ledger(index))

    def forget(self, index):
        return self.open().forget(KEYS[index], self.home / f"state-{index}")

    def run(self, visits=lambda index, round: True, rounds=200):
        """Until nothing moves, or the study has ended: `visits` says who comes in which round.

        A round is closed without those who do not come.
        """
        for round in range(rounds):
            sent = []
            for index in range(len(self.tables)):
                if visits(index, round):
                    sent += self.visit(index).sent
            done = self.coordinate(closing=False)
            if not done.sent and not sent:
                done = self.coordinate(closing=True)
            if not done.waits_for or not (done.sent or sent):
                return done
        raise AssertionError("no end")

    def expected_total(self, number):
        """The sum of the integers of those present, computed from their rows without any mask."""
        shown = self.shown()
        present = shown.present(number)
        total = 0
        for index in present:
            fit = fit_of(self.roster)
            members = len(shown.members)
            fit.begin(shown.rows, shown.levels.variance(members, members))
            for earlier in range(number):
                fit.add(shown.total(earlier))
            values = fit.vector(OwnerRows.of_table(self.tables[index]).parts(), np.random.default_rng(0))
            total = total + np.asarray(values).astype(np.int64)
        return total
