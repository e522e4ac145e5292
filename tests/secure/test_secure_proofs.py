"""Debits are cancelled by proof alone: what members have signed, checked against the roster."""

import json

import pytest
from secure_sessions import KEYS, Study, Sum, secure_roster

from fedpca import Ledger
from fedpca.errors import SecureError
from fedpca.secure.proofs import Proof, debit_name, find_proof
from fedpca.secure.session import Session


def study_until_masked(late=(), n_members=5, **settings):
    """A study whose first sum has a set of those present, which all of them have signed."""
    study = Study(secure_roster(n_members, **settings), [Sum("a", ((4, 0.0),))])
    study.run(lambda index, state: state in ("keys", "shares", "agreed"))
    for index in range(n_members):
        if index not in late:
            study.board.update(study.reply(index))
    if late:
        study.advance(closing=True)
        for index in late:
            study.paid.append((index, 0))
    return study


def session_of(study):
    return Session(study.roster, study.session)


def signed_by(study, indices):
    for index in indices:
        study.board.update(study.reply(index))
    return study


@pytest.fixture
def left_out():
    """Owner 4 was too late; the four others have signed so."""
    study = study_until_masked(late=[4])
    return signed_by(study, range(4))


def test_who_is_left_out_of_a_signed_set_has_a_proof(left_out):
    proof = find_proof(session_of(left_out), left_out.board, 4, 0)
    proof.check(left_out.roster)
    assert proof.release == debit_name(session_of(left_out).id, 0)
    assert set(proof.messages) == {"session", "00/present", *(f"00/signed/00{index}" for index in range(4))}
    assert [find_proof(session_of(left_out), left_out.board, index, 0) for index in range(4)] == [None] * 4


def test_too_few_signatures_are_none():
    study = signed_by(study_until_masked(late=[4]), range(3))
    assert study.roster.settings["colluding"] == 1
    assert find_proof(session_of(study), study.board, 4, 0) is None
    assert find_proof(session_of(study), study.board, 4, 1) is None


def test_a_proof_survives_a_ledger(left_out, tmp_path):
    proof = find_proof(session_of(left_out), left_out.board, 4, 0)
    ledger = Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5, key=KEYS[4])
    ledger.debit(0, 14, "a", 0.1, release=proof.release)
    ledger.cancel(proof.release, proof)
    again = Ledger(tmp_path / "ledger")
    assert again.mu == 0
    kept = Proof.from_json(json.loads(again.entries[0].proof))
    assert kept == proof
    kept.check(left_out.roster)


@pytest.mark.parametrize(
    "change",
    [
        "one signature less",
        "a changed signature",
        "another roster",
        "another study",
        "another sum",
        "a set with the member",
        "another session",
        "signatures of one who is not in it",
        "no session",
    ],
)
def test_what_proves_nothing(left_out, change):
    proof = find_proof(session_of(left_out), left_out.board, 4, 0)
    messages, roster, number, member = dict(proof.messages), left_out.roster, 0, 4
    match change:
        case "one signature less":
            del messages["00/signed/003"]
        case "a changed signature":
            messages["00/signed/003"] = messages["00/signed/003"][:-1] + b"x"
        case "another roster":
            roster = roster.with_settings(rank=1)
        case "another study":
            roster = secure_roster(5, study="study-2")
        case "another sum":
            messages = {name.replace("00/", "01/"): contents for name, contents in messages.items()}
            number = 1
        case "a set with the member":
            member = 3
        case "another session":
            messages["session"] = Session.new(roster)
        case "signatures of one who is not in it":
            messages["00/signed/004"] = session_of(left_out).sign(
                KEYS[4], "signed", 4, 0, {"present": left_out.coordinator.session.id}
            )
            del messages["00/signed/003"]
        case "no session":
            del messages["session"]
    with pytest.raises(SecureError):
        Proof(member, number, messages).check(roster)


def refused_by(study, indices):
    for index in indices:
        study.refuse(index)
    return study


@pytest.mark.parametrize(("n_members", "colluding", "needed"), [(5, 1, 3), (7, 1, 4), (7, 2, 5), (10, 3, 7)])
def test_refusals_count_once_those_left_with_those_who_lie_are_too_few(n_members, colluding, needed):
    study = study_until_masked(n_members=n_members, colluding=colluding)
    terms = session_of(study).terms
    refused_by(study, range(needed - 1))
    assert find_proof(session_of(study), study.board, 0, 0) is None
    # The others and `colluding` liars among those who refused could still open the sum.
    assert n_members - (needed - 1) + colluding >= terms.threshold
    refused_by(study, range(needed))
    assert n_members - needed + colluding < terms.threshold
    for member in range(n_members):
        find_proof(session_of(study), study.board, member, 0).check(study.roster)


def test_a_refusal_of_one_who_answered_does_not_count(left_out):
    answer = left_out.reply(2)
    assert "00/opened/002" in answer
    refused_by(left_out, [0, 1])
    left_out.board.update(session_message(left_out, "refused", 2))
    assert find_proof(session_of(left_out), left_out.board, 3, 0) is not None
    for index in (0, 1):
        assert not any(name.startswith("00/opened") for name in left_out.reply(index))
    left_out.board.update(answer)
    assert find_proof(session_of(left_out), left_out.board, 3, 0) is None


def session_message(study, kind, index):
    return {f"00/{kind}/00{index}": session_of(study).sign(KEYS[index], kind, index, 0, {})}


def test_a_sum_that_came_out_has_no_proof_but_for_those_left_out(left_out):
    signed_by(left_out, range(4))
    left_out.advance(closing=True)
    assert "00/total" in left_out.board
    for index in range(3):
        left_out.board.update(session_message(left_out, "refused", index))
    assert find_proof(session_of(left_out), left_out.board, 0, 0) is None
    assert find_proof(session_of(left_out), left_out.board, 4, 0) is not None


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "x"},
        {"sum": -1},
        {"sum": "0"},
        {"member": None},
        {"messages": []},
        {"messages": {"session": "%"}},
        {"messages": {"session": 3}},
    ],
)
def test_a_damaged_proof_is_none(left_out, damage):
    proof = find_proof(session_of(left_out), left_out.board, 4, 0).to_json()
    with pytest.raises(ValueError, match="not the proof of a cancelled debit"):
        Proof.from_json(proof | damage)
    with pytest.raises(ValueError, match="not the proof of a cancelled debit"):
        Proof.from_json({name: value for name, value in proof.items() if name not in damage})
