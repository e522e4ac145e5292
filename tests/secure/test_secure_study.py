"""Studies by secure sums, protocol and fit together, on a board in memory."""

import numpy as np
import pytest

from fedpca import Ledger, Privacy, Roster, SigningKey
from fedpca.errors import BudgetExceeded, SecureError
from fedpca.secure import Coordinator, Owner, OwnerFiles, OwnerMemory, Progress, Session
from fedpca.secure.rows import OwnerRows
from fedpca.secure.study import fit_of, privacy_of
from fedpca.trust.roster import Member

D = 12


class Studied:
    """Owners and a coordinator on one board."""

    def __init__(self, settings, *, n_owners=5, n_rows=400, states=None):
        random = np.random.default_rng(0)
        self.rows = [random.normal(size=(n_rows, D)) * np.arange(D, 0, -1) + 5.0 for _ in range(n_owners)]
        self.keys = {f"owner {i}": SigningKey.new() for i in range(n_owners)}
        members = [Member(name, key.public) for name, key in self.keys.items()]
        self.roster = Roster("a study", members, {"rank": 3, "n_features": D, "colluding": 1} | settings)
        self.board = {"session": Session.new(self.roster)}
        self.coordinator = Coordinator(self.progress())
        privacy = privacy_of(self.roster)
        self.ledgers = [
            None if privacy is None else Ledger(epsilon=privacy.epsilon, delta=privacy.delta)
            for _ in self.rows
        ]
        self.states = states or [OwnerMemory() for _ in self.rows]
        self.owners = [self.owner(index) for index in range(n_owners)]

    def progress(self):
        return Progress(Session(self.roster, self.board["session"]), fit_of(self.roster))

    def owner(self, index, rows=None):
        return Owner(
            self.progress(),
            list(self.keys.values())[index],
            OwnerRows.of_table(self.rows[index] if rows is None else rows),
            self.states[index],
            privacy=privacy_of(self.roster),
            ledger=self.ledgers[index],
        )

    def run(self, gone=lambda index, board: False):
        while True:
            new = {}
            for index, owner in enumerate(self.owners):
                if not gone(index, self.board):
                    new |= owner.reply(self.board)
            new |= self.coordinator.advance(self.board | new)
            if self.coordinator.has_ended:
                break
            new = new or self.coordinator.advance(self.board, closing=True)
            assert new
            self.board |= new

    def model(self):
        return self.coordinator.progress.model(self.board)


def best(rows, rank=3):
    _, _, vectors = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return vectors[:rank]


def affinity(components, rows):
    return np.sum((components @ best(rows, len(components)).T) ** 2) / len(components)


def test_sums_without_noise_give_numpys_components_of_all_rows(tmp_path):
    study = Studied({"largest": 100.0})
    study.run()
    model, pooled = study.model(), np.concatenate(study.rows)
    assert model.count == len(pooled)
    np.testing.assert_allclose(model.mean, pooled.mean(axis=0), rtol=1e-7)
    assert affinity(model.components, pooled) > 1 - 1e-9
    assert model.certificate is None


def test_a_private_study_promises_what_the_roster_states(tmp_path):
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    study.run()
    model = study.model()
    certificate = model.certificate
    assert (certificate.epsilon, certificate.delta) == (4.0, 1e-6)
    assert certificate.secure.members == tuple(study.roster.members)
    assert certificate.secure.least == certificate.secure.threshold == 4
    assert all(part.owners == tuple(study.roster.members) for part in certificate.secure.sums)
    assert certificate.evaluation is not None
    assert affinity(model.components, np.concatenate(study.rows)) > 0.9
    mu = Privacy(4.0, 1e-6).mu
    for ledger in study.ledgers:
        assert all(entry.completed for entry in ledger.entries)
        assert 0.9 * mu < ledger.mu <= mu * (1 + 1e-9)
    assert [entry.mechanism for entry in study.ledgers[0].entries] == [
        part.sum for part in certificate.secure.sums
    ]


def test_a_study_goes_on_without_those_who_leave(tmp_path):
    """One sends no masked words from the second sum on; all are in the first."""
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    study.run(lambda index, board: index == 2 and "00/total" in board)
    sums = study.model().certificate.secure.sums
    assert len(sums[0].owners) == 5
    assert all("owner 2" not in part.owners and len(part.owners) == 4 for part in sums[1:])
    assert [entry.mechanism for entry in study.ledgers[2].entries] == [sums[0].sum]


def test_too_few_owners_end_nothing():
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    for index in (0, 1, 2):
        study.board |= study.owners[index].reply(study.board)
    assert study.coordinator.advance(study.board, closing=True) == {}
    assert study.coordinator.waiting_for == ["owner 3", "owner 4"]
    assert not any(ledger.entries for ledger in study.ledgers)


@pytest.mark.long
def test_an_owner_that_restarts_sends_the_same_bytes_and_pays_once(tmp_path):
    """Every reply comes from a new process, of which every second one dies before anything is kept."""
    states = [OwnerFiles(tmp_path / str(index)) for index in range(5)]
    for state in states:
        with state.locked():
            pass

    study = Studied({"epsilon": 4.0, "delta": 1e-6}, states=states)
    while not study.coordinator.has_ended:
        for index in range(5):
            killed, keep = study.owner(index), states[index].keep
            states[index].keep = lambda messages: None
            lost = killed.reply(study.board)
            states[index].keep = keep
            study.states[index] = states[index] = OwnerFiles(tmp_path / str(index))
            sent = study.owner(index).reply(study.board)
            assert sent == lost
            study.board |= sent
        study.board |= study.coordinator.advance(study.board)
    for ledger in study.ledgers:
        assert ledger.mu <= Privacy(4.0, 1e-6).mu * (1 + 1e-9)


def test_a_lost_state_is_refused():
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    for owner in study.owners:
        study.board |= owner.reply(study.board)
    study.states[1] = OwnerMemory()
    with pytest.raises(SecureError, match="state"):
        study.owner(1).reply(study.board)


def test_rows_that_change_are_refused(tmp_path):
    states = [OwnerFiles(tmp_path / str(index)) for index in range(5)]
    for state in states:
        with state.locked():
            pass
    study = Studied({"epsilon": 4.0, "delta": 1e-6}, states=states)
    study.owners[0].reply(study.board)
    with pytest.raises(SecureError, match="the number of rows changed"):
        study.owner(0, study.rows[0][:-1])


def test_a_ledger_that_cannot_pay_sends_nothing():
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    study.ledgers[0] = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(BudgetExceeded):
        study.owner(0).reply(study.board)
    assert not study.states[0].sent


def test_announced_noise_that_is_too_small_is_refused(monkeypatch):
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    announcement = Progress.announcement.fget

    def smaller(progress):
        name, blocks = announcement(progress)
        return name, [(length, 0.9 * sd) for length, sd in blocks]

    monkeypatch.setattr(Progress, "announcement", property(smaller))
    with pytest.raises(SecureError, match="standard deviation"):
        study.run()
    assert not any(ledger.entries for ledger in study.ledgers)


def test_secrets_of_a_sum_are_erased_when_it_has_ended(tmp_path):
    states = [OwnerFiles(tmp_path / str(index) / "session") for index in range(5)]
    for state in states:
        with state.locked():
            pass
    study = Studied({"largest": 100.0}, states=states)
    study.run()
    for state in states:
        assert state.secrets.sums == (None, None)
        assert (tmp_path / "0" / "session" / "session.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["agreed", "signed"])
def test_one_who_signs_something_else_does_not_stop_the_others(kind, tmp_path):
    study = Studied({"epsilon": 4.0, "delta": 1e-6})
    session, key, honest = (
        Session(study.roster, study.board["session"]),
        study.keys["owner 0"],
        study.owners[0],
    )
    name, about = ("agreed/000", "members") if kind == "agreed" else ("00/signed/000", "present")

    class Liar:
        def reply(self, board):
            if ("members" if kind == "agreed" else "00/present") not in board:
                return honest.reply(board)
            number = None if kind == "agreed" else 0
            return {name: session.sign(key, kind, 0, number, {about: "00" * 32})}

    study.owners[0] = Liar()
    study.run(lambda index, board: index == 0 and name in board)
    sums = study.model().certificate.secure.sums
    assert ("owner 0" in sums[0].owners) == (kind == "signed")
    assert all("owner 0" not in part.owners for part in sums[1:])
