"""Secure sums through a shared folder: whoever drops out, and whatever the folder does."""

import json
import os
import shutil
from contextlib import contextmanager, suppress
from datetime import timedelta

import numpy as np
import pytest
from secure_folders import PLAIN, PRIVATE, FolderStudy
from secure_sessions import KEYS

import fedpca
from fedpca.errors import SecureError
from fedpca.federation.folder import storage as shared_files
from fedpca.federation.folder.secure import SharedSession
from fedpca.secure import session as session_module
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.rows import OwnerRows
from fedpca.trust import Member
from fedpca.trust.keys import PublicKey

pytestmark = pytest.mark.slow  # all of it together


def check_totals(study):
    """Every total is the plain sum of those present, bit for bit; returns how many there are."""
    record = study.shown()
    for number in range(record.n_totals):
        np.testing.assert_array_equal(record.total(number).words, study.expected_total(number))
    return record.n_totals


def check_ended(study, done):
    """There is a model, or too few were there in some round."""
    if not done.waits_for:
        assert study.model().n_features == 3
        return True
    now = study.shown().waiting
    assert len(now.there) < now.needed
    assert f"at least {now.needed} are needed" in done.waits_for
    with pytest.raises(SecureError, match="must have ended before there is a model"):
        study.model()
    return False


@pytest.mark.slow
def test_all_there_gives_the_model_of_all_rows(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    assert study.run().waits_for == ""
    assert check_totals(study) == 2
    model = study.model()
    rows = np.concatenate(study.tables)
    assert model.count == len(rows)
    np.testing.assert_allclose(model.mean, rows.mean(axis=0), atol=1e-6)
    covariance = np.cov(rows.T)
    top = np.linalg.eigh(covariance)[1][:, ::-1][:, :2].T
    assert fedpca.metrics.affinity(model.components[:2], top) > 1 - 1e-9
    assert study.visit(0).sent == ()  # nothing twice, nothing after the end


def drop_outs(seed, n_members):
    """Who comes in which round: some stay away for a round, some for good."""
    rng = np.random.default_rng(seed)
    late, gone = rng.uniform(0, 0.5), rng.uniform(0, 0.04)
    away = rng.uniform(size=(n_members, 201)) < late
    away |= np.logical_or.accumulate(rng.uniform(size=(n_members, 201)) < gone, axis=1)
    return lambda index, round: not away[index, round]


@pytest.mark.engine
@pytest.mark.parametrize("part", range(10))
def test_whoever_drops_out_totals_are_those_of_who_is_in_or_there_is_none(tmp_path, part):
    ended = []
    for seed in range(20 * part, 20 * part + 20):
        (tmp_path / str(seed)).mkdir()
        n_members = 4 + seed % 3
        study = FolderStudy(tmp_path / str(seed), n_members, seed, **PLAIN)
        done = study.run(drop_outs(seed, n_members))
        check_totals(study)
        ended.append(check_ended(study, done))
    assert 0 < sum(ended) < 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_few_drop_outs(tmp_path, seed):
    study = FolderStudy(tmp_path, 5, seed, **PLAIN)
    check_ended(study, study.run(drop_outs(seed, 5)))
    check_totals(study)


# --- what is spent ---


def debits(study, index):
    """Names of the debits of a member, and which are completed and cancelled."""
    entries = study.ledger(index).entries
    return [(entry.release[-2:], entry.completed, entry.cancelled) for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_debit_for_every_masked_upload_and_none_for_a_sum_without_it(tmp_path, seed):
    study = FolderStudy(tmp_path, 5, seed, **PRIVATE)
    done = study.run(drop_outs(seed, 5))
    ended = check_ended(study, done)
    for index in range(5):
        study.visit(index)
    board, record = study.board(), study.shown()
    for index in range(5):
        masked = [number for number in range(9) if f"{number:02}/masked/{index:03}" in board]
        totals = [number for number in masked if number < record.n_totals]
        inside = {number: index in record.present(number) for number in totals}
        found = debits(study, index)
        assert [int(name) for name, _, _ in found] == masked
        for name, completed, cancelled in found:
            assert (completed, cancelled) in [(True, False), (False, True), (False, False)]
            if int(name) in inside:
                assert (completed, cancelled) == (inside[int(name)], not inside[int(name)])
        assert study.ledger(index).signed_by in ((), (KEYS[index].public,))
    if ended:
        certificate = study.model().certificate
        assert certificate.epsilon == pytest.approx(4.0)


def until_masked(tmp_path, late=()):
    """A private study whose first sum all but the late have uploaded, and the late have in their state."""
    study = FolderStudy(tmp_path, **PRIVATE)
    while "00/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    for index in range(5):
        study.visit(index)
    for index in late:
        (study.shared / f"00-masked-{index:03}").unlink()
    return study


@pytest.mark.slow
def test_an_upload_that_came_too_late_costs_nothing_once_others_have_signed(tmp_path):
    study = until_masked(tmp_path, late=[4])
    study.coordinate(closing=True)
    assert "00/present" in study.board()
    assert study.visit(4).sent == ("00/masked/004",)  # the same bytes, and worthless
    for index in range(3):
        study.visit(index)
    assert study.visit(4).cancelled == ()
    assert study.ledger(4).mu > 0
    study.visit(3)
    name = study.ledger(4).entries[0].release
    assert study.visit(4).cancelled == (name,)
    assert debits(study, 4) == [("00", False, True)]
    assert study.ledger(4).mu == 0
    assert study.run().waits_for == ""  # it takes part in the sums that follow
    assert debits(study, 4)[0] == ("00", False, True)
    assert {cancelled for _, _, cancelled in debits(study, 4)[1:]} == {False}


def test_refusals_cancel_the_debits_of_a_sum_that_nobody_can_open(tmp_path):
    study = until_masked(tmp_path)
    for index in range(2):
        assert study.refuse(index).sent == (f"00/refused/{index:03}",)
        assert study.ledger(index).mu > 0
    assert study.refuse(1).sent == ()
    assert len(study.refuse(2).cancelled) == 1
    for index in (0, 1, 3):
        assert len(study.visit(index).cancelled) == 1
        assert study.ledger(index).mu == 0
    assert study.coordinate().sent == ("00/present",)
    for index in (0, 1, 2, 3, 4, 3, 4):
        assert not any("/opened/" in name for name in study.visit(index).sent)


def test_who_has_answered_cannot_refuse_and_before_a_sum_nobody_can(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    with pytest.raises(SecureError, match="only a sum that was announced"):
        study.refuse(0)
    while "00/opened/000" not in study.board():
        study.coordinate()
        for index in (*range(5), 0):
            study.visit(index)
    with pytest.raises(SecureError, match="00/opened/000 was sent"):
        study.refuse(0)


def test_who_has_lost_its_state_cannot_refuse(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    before = tmp_path / "backup"
    while "00/opened/000" not in study.board():
        if "00/announced" in study.board() and not before.exists():
            shutil.copytree(tmp_path / "state-0", before)
        for index in range(5):
            study.visit(index)
        study.coordinate()
    shutil.rmtree(tmp_path / "state-0")
    with pytest.raises(SecureError, match="must be that of a member"):
        study.refuse(0)
    shutil.rmtree(tmp_path / "state-0")
    shutil.copytree(before, tmp_path / "state-0")
    with pytest.raises(SecureError, match="must know all it has sent"):
        study.refuse(0)
    assert "00/refused/000" not in study.board()


def test_sums_without_noise_are_of_the_same_owners_in_every_session(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    assert study.run().waits_for == ""

    def again():
        study.shared = tmp_path / f"shared-{len(list(tmp_path.iterdir()))}"
        study.shared.mkdir()
        SharedSession.new(study.shared, study.roster)

    again()
    with pytest.raises(SecureError, match="would show who is in one and not in the other"):
        study.run(lambda index, round: index != 2)
    assert "00/present" in study.board()
    assert not any("/signed/" in name or "/opened/" in name for name in study.board())
    again()
    assert study.run().waits_for == ""


# --- rounds and their ends ---


def test_a_round_ends_when_all_are_there_when_it_is_closed_or_after_a_wait(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    for index in range(3):
        study.visit(index)
    assert (
        "owner-03, owner-04: 3 of 5 are there, at least 4 are needed"
        in study.coordinate(closing=True).waits_for
    )
    study.visit(3)
    assert study.coordinate().sent == ()
    assert study.coordinate(wait=3600).sent == ()
    before = os.stat(study.shared / "session")
    os.utime(study.shared / "session", (before.st_atime, before.st_mtime - 3601))
    assert study.coordinate(wait=3600).sent == ("keyring",)
    for index in range(4):
        study.visit(index)
    assert study.coordinate(wait=3600).sent == ("members",)
    assert "left out of this session" in study.visit(4).waits_for


# --- what folders do ---


@pytest.mark.slow
def test_a_file_that_is_still_growing_is_not_there(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    study.run()
    files = sorted(study.shared.iterdir())
    assert len(files) > 30
    for path in files:
        contents = path.read_bytes()
        for size in (0, 1, len(contents) // 2, len(contents) - 1):
            path.write_bytes(contents[:size])
            board = study.board()
            assert path.name.replace("-", "/") not in board
            assert path.name in [item.file for item in board.skipped]
        path.write_bytes(contents)
        assert path.name.replace("-", "/") in study.board()


@pytest.mark.slow
def test_a_message_waits_for_those_that_it_follows(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    study.run()
    whole = set(study.board())
    for name, hidden in {
        "keys-002": {"keyring", "members", "00/announced", "01/total"},
        "shares-004": {"members", "00/announced", "01/total"},
        "00-announced": {"00/present", "00/total", "01/announced"},
        "00-total": {"01/announced", "01/present", "01/total"},
    }.items():
        contents = (study.shared / name).read_bytes()
        (study.shared / name).unlink()
        board = study.board()
        assert hidden <= whole - set(board)
        assert any("is not there yet" in item.reason for item in board.skipped)
        (study.shared / name).write_bytes(contents)
    assert set(study.board()) == whole


def test_foreign_files_links_pipes_and_unreadable_files_do_not_stop_anybody(tmp_path, monkeypatch):
    study = FolderStudy(tmp_path, **PLAIN)
    study.visit(0)
    (study.shared / "notes.txt").write_text("meeting at ten")
    (study.shared / "keyring (conflicted copy)").write_bytes(b"{}")
    (study.shared / ".keys-001.swp").write_bytes(b"x")
    (study.shared / "keys-001").symlink_to("/etc/passwd")
    os.mkfifo(study.shared / "keys-002")
    (study.shared / "00-masked-000").mkdir()
    board = study.board()
    assert set(board) == {"session", "keys/000"}
    assert {item.file for item in board.skipped} == {
        "notes.txt", "keyring (conflicted copy)", "keys-001", "keys-002", "00-masked-000",
    }  # fmt: skip
    (study.shared / "keys-003").write_bytes(b"something else\n")
    with pytest.raises(SecureError, match="keys/003 is on the board, and not in its state"):
        study.visit(3)
    with pytest.raises(SecureError, match=r"written once, and .*keys-003 is there with other contents"):
        study.board().publish({"keys/003": b"{}\n"})

    def denied(self, name, max_bytes):
        if name == "keys-000":
            raise PermissionError(13, "Permission denied")
        return read(self, name, max_bytes)

    read = shared_files.LocalFolder.read
    with monkeypatch.context() as patch:
        patch.setattr(shared_files.LocalFolder, "read", denied)
        board = study.board()
        assert "keys/000" not in board
        assert any("Permission denied" in item.reason for item in board.skipped)
    assert "keys/000" in study.board()


def test_what_is_no_file_in_the_place_of_a_message_is_named(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    (study.shared / "keys-000").mkdir()
    (study.shared / "keys-001").symlink_to("/etc/passwd")
    for index in (0, 1):
        with pytest.raises(SecureError, match=rf"keys-00{index} is there, not of it \(not a regular file\)"):
            study.visit(index)


def test_a_file_larger_than_any_message_is_not_read(tmp_path, read_sizes):
    study = FolderStudy(tmp_path, **PLAIN)
    for name in ("keys-001", "shares-001", "00-signed-001", "00-masked-001"):
        with (study.shared / name).open("wb") as file:
            file.truncate(2**26)  # sparse
    board = study.board()
    assert set(board) == {"session"}
    assert {item.file for item in board.skipped} == {
        "keys-001", "shares-001", "00-signed-001", "00-masked-001",
    }  # fmt: skip
    assert max(read_sizes) <= 2**24


def test_secrets_are_not_kept_in_the_shared_folder(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    for state in (study.shared, study.shared / "owner-00.state", tmp_path / "x" / ".." / "shared" / "y"):
        with pytest.raises(SecureError, match="must be outside the shared folder"):
            study.visit(0, state=state)
    assert [path.name for path in study.shared.iterdir()] == ["session"]


@pytest.mark.slow
def test_no_secrets_are_left_when_the_study_has_ended(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    assert study.run(lambda index, round: index != 4 or not round).waits_for == ""
    for index in range(5):
        [folder] = (tmp_path / f"state-{index}").glob("*/sent")
        (folder.parent / ".fedpca-0123456789abcdef.part").write_bytes(b"of one that was killed")
        assert study.visit(index) == ((), (), "")
        head = json.loads((folder.parent / "session.json").read_bytes())
        assert head["secrets"] == {"enc": None, "sums": [None, None]}
        assert not list(folder.parent.glob(".fedpca-*"))
        gone = {"rows": lambda: pytest.fail("nothing is left to do")}
        assert study.visit(index, **gone).waits_for == ""
    (study.shared / "00-total").unlink()
    with pytest.raises(
        SecureError, match="this session has ended here, or was forgotten, and its secrets are erased"
    ):
        study.visit(0)


@pytest.mark.parametrize(
    "planted",
    [
        {"keyring": '{"keys":[[Infinity,"x"]]}'},
        {"keyring": '{"keys":[]}', "members": '{"members":[[-1e999,"x"]]}'},
        {"00-announced": '{"blocks":[[Infinity,0,0]]}', "00-total": "{}"},
        {"00-announced": '{"blocks":[[NaN,0,0]]}', "00-total": "{}"},
    ],
)
def test_numbers_that_are_no_indices_are_told(tmp_path, planted):
    study = FolderStudy(tmp_path, **PLAIN)
    for name, contents in planted.items():
        (study.shared / name).write_text(contents + "\n")
    for act in (lambda: study.visit(0), study.coordinate):
        with suppress(SecureError):
            act()
    assert study.open().waits_for()


def test_a_message_that_somebody_removed_is_written_again(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    study.visit(0)
    contents = (study.shared / "keys-000").read_bytes()
    (study.shared / "keys-000").unlink()
    assert study.visit(0).sent == ("keys/000",)
    assert (study.shared / "keys-000").read_bytes() == contents


def test_a_folder_is_for_one_session(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    with pytest.raises(FileExistsError, match="has a session already"):
        SharedSession.new(study.shared, study.roster)
    with pytest.raises(FileNotFoundError, match="make or mount it first"):
        SharedSession.new(tmp_path / "nowhere", study.roster)
    (tmp_path / "empty").mkdir()
    assert (
        study.visit(0, folder=tmp_path / "empty").waits_for == "waits for the coordinator to open a session"
    )
    assert len(SharedSession(tmp_path / "empty", study.roster).board) == 0


# --- lies, losses and mistakes: nothing is sent, nothing is spent ---


def nothing_sent(study, index, match, **changes):
    before = {path.name: path.read_bytes() for path in study.shared.iterdir()}
    with pytest.raises((SecureError, ValueError), match=match) as refused:
        study.visit(index, **changes)
    assert "\n" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in study.shared.iterdir()} == before
    assert study.ledger(index).mu == 0


def test_a_wrong_roster_an_unknown_study_and_a_stranger_are_refused(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    other = fedpca.Roster("study-2", study.roster.members.values(), study.roster.settings)
    nothing_sent(study, 0, "must be under the roster", roster=study.roster.with_settings(rank=1))
    nothing_sent(study, 0, "must be of study 'study-2', and is of 'study-1'", roster=other)
    nothing_sent(study, 0, "is that of no member", key=KEYS[9])
    plain = study.roster.with_settings(colluding=None)
    nothing_sent(study, 0, "must have `colluding`", roster=plain)


def test_a_lost_state_is_not_taken_for_a_new_owner(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    study.visit(0)
    nothing_sent(study, 0, "state", state=tmp_path / "another")
    (tmp_path / "state-0" / study.session().id[:32] / "session.json").unlink()
    nothing_sent(study, 0, "state folder is incomplete")


def test_other_rows_than_those_of_the_session_are_refused(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    study.visit(0)
    study.tables[0] = study.tables[0][:-1]
    nothing_sent(study, 0, "changed since this session began")
    study.tables[0] = study.tables[0][:, :2]
    nothing_sent(study, 0, "must have the 3 features of the roster")


def test_more_rows_than_declared_are_refused_before_keys_leave(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    ids = list(study.roster.members)
    members = [Member(id, KEYS[i].public, rows=20) for i, id in enumerate(ids)]
    study.roster = fedpca.Roster("study-1", members, study.roster.settings)
    study.shared = tmp_path / "declared"
    study.shared.mkdir()
    SharedSession.new(study.shared, study.roster)
    assert study.visit(0).sent == ("keys/000",)
    with pytest.raises(SecureError, match="declared 20 and has 21; nothing was sent"):
        study.visit(1)
    assert "keys/001" not in study.board()


def test_two_members_never_have_the_same_secrets(tmp_path):
    study = until_masked(tmp_path)
    (study.shared / "00-masked-001").unlink()
    given = {"state": tmp_path / "state-0", "rows": lambda: OwnerRows.of_table(study.tables[0])}
    with pytest.raises(SecureError, match="the member changed since this session began"):
        study.visit(1, **given)
    with pytest.raises(SecureError, match="the member changed since this session began"):
        study.open().refuse(KEYS[1], tmp_path / "state-0", ledger=study.ledger(1))
    assert "00/masked/001" not in study.board()
    assert "00/refused/001" not in study.board()


def test_a_clock_far_off_is_noticed(tmp_path, monkeypatch):
    study = FolderStudy(tmp_path, **PRIVATE)

    class Behind(session_module.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) - timedelta(days=400)

    monkeypatch.setattr(session_module, "datetime", Behind)
    nothing_sent(study, 0, "opened in the future")


def test_masked_words_of_somebody_else_stop_their_owner_before_it_pays(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    while "00/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    shutil.copy(study.shared / "agreed-000", study.shared / "00-masked-003")
    with pytest.raises(SecureError, match="00/masked/003 is on the board, and not in its state"):
        study.visit(3)
    assert not study.ledger(3).entries


@pytest.mark.parametrize("kind", ["cut off", "a folder", "too large"])
def test_so_does_what_is_no_message_in_their_place(tmp_path, kind):
    study = until_masked(tmp_path)
    while "01/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    path = study.shared / "01-masked-000"
    if kind == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b'{"bytes":9000}\n' + bytes(8000 if kind == "cut off" else 80_000))
    before = debits(study, 0)
    with pytest.raises(SecureError, match="01-masked-000 is there, not of it"):
        study.visit(0)
    assert debits(study, 0) == before


def test_of_two_visits_at_once_one_writes(tmp_path, monkeypatch):
    study = FolderStudy(tmp_path, **PLAIN)
    locked, others = OwnerFiles.locked, []

    @contextmanager
    def overtaken(self):
        """Another process was there first."""
        monkeypatch.setattr(OwnerFiles, "locked", locked)
        others.append(study.visit(0))
        with locked(self):
            yield

    monkeypatch.setattr(OwnerFiles, "locked", overtaken)
    assert study.visit(0).sent == ()
    assert [other.sent for other in others] == [("keys/000",)]


def test_a_changed_message_is_named_and_does_not_count(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    for index in range(5):
        study.visit(index)
    contents = bytearray((study.shared / "keys-002").read_bytes())
    contents[-70] ^= 1
    (study.shared / "keys-002").write_bytes(contents)
    done, problems = study.open().coordinate(closing=True)
    assert done.sent == ("keyring",)
    assert "keys/002 must be a message of 'owner-02'" in problems["keys/002"]
    with pytest.raises(SecureError, match=r"keys/002 is not what it sent; .* remove it"):
        study.visit(2)
    (study.shared / "keys-002").unlink()
    assert study.visit(2).sent == ("keys/002",)


def shown_differently(study, name, first, other):
    """Owners visit, and the coordinator shows two of them one message and the others another.

    Returns the lines of those who refuse.
    """
    lines = []
    for index in [*range(5)] * 3:
        (study.shared / name).unlink(missing_ok=True)
        (study.shared / name).write_bytes(first if index < 2 else other)
        with suppress(SecureError):
            study.visit(index)
            continue
        with pytest.raises(SecureError) as refused:
            study.visit(index)
        lines.append(str(refused.value))
    assert not any("\n" in line for line in lines)
    return lines


def test_two_sets_of_those_present_open_nothing(tmp_path):
    study = until_masked(tmp_path)
    study.coordinate()
    first = (study.shared / "00-present").read_bytes()
    (study.shared / "00-present").unlink()
    (study.shared / "00-masked-004").rename(study.shared / ".hidden")
    study.coordinate(closing=True)
    other = (study.shared / "00-present").read_bytes()
    (study.shared / ".hidden").rename(study.shared / "00-masked-004")
    assert first != other
    lines = shown_differently(study, "00-present", first, other)
    assert any("signed another than the coordinator shows here" in line for line in lines)
    assert not any("/opened/" in name for name in study.board())
    assert "00/total" not in study.board()


def test_two_lists_of_members_agree_on_nothing(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    for _ in range(2):
        for index in range(5):
            study.visit(index)
        study.coordinate()
    first = (study.shared / "members").read_bytes()
    (study.shared / "members").unlink()
    (study.shared / "shares-004").rename(study.shared / ".hidden")
    study.coordinate(closing=True)
    other = (study.shared / "members").read_bytes()
    (study.shared / ".hidden").rename(study.shared / "shares-004")
    lines = shown_differently(study, "members", first, other)
    assert any("signed another than the coordinator shows here" in line for line in lines)
    assert not any("/masked/" in name for name in study.board())
    assert all(study.ledger(index).mu == 0 for index in range(5))


def test_a_policy_stops_an_owner_before_its_keys(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    policy = fedpca.Policy(least_rows=1000)
    nothing_sent(study, 0, "least_rows", policy=policy)


@pytest.mark.parametrize(
    ("settings", "policy"),
    [(PRIVATE, fedpca.Policy(least_rows=1000)), (PLAIN, fedpca.Policy(privacy_required=True))],
)
def test_a_policy_that_came_later_stops_an_owner_before_it_masks(tmp_path, settings, policy):
    study = FolderStudy(tmp_path, **settings)
    while "00/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    with pytest.raises(fedpca.PolicyViolation):
        study.visit(0, policy=policy)
    assert "00/masked/000" not in study.board()
    assert study.ledger(0) is None or study.ledger(0).mu == 0


def test_a_ledger_that_cannot_pay_for_the_study_stops_an_owner_before_its_keys(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    small = fedpca.Ledger(tmp_path / "small", epsilon=1.0, delta=1e-6, key=KEYS[0])
    with pytest.raises(fedpca.BudgetExceeded):
        study.visit(0, ledger=small)
    assert set(study.board()) == {"session"}


def test_a_session_that_is_forgotten_has_no_secrets_and_sends_nothing_more(tmp_path):
    study = FolderStudy(tmp_path, least=4, **PRIVATE)
    while "00-masked-002" not in {path.name for path in study.shared.iterdir()}:
        for index in range(5):
            study.visit(index)
        study.coordinate()
    state = tmp_path / "state-2" / study.session().id[:32]
    head = json.loads((state / "session.json").read_text())
    known = [head["secrets"]["enc"], *head["secrets"]["sums"][0].values()]
    debits = study.ledger(2).entries
    assert len(debits) == 1
    study.forget(2)
    for path in tmp_path.glob("state-2/**/*"):
        assert path.is_dir() or not any(secret.encode() in path.read_bytes() for secret in known)
    with pytest.raises(SecureError, match="has ended here, or was forgotten"):
        study.visit(2)
    assert study.ledger(2).entries == debits
    assert study.refuse(2).sent == ("00/refused/002",)
    for _ in range(30):
        for index in (0, 1, 3, 4):
            study.visit(index)
        study.coordinate(closing=True)
    assert study.model().n_features == 3  # the others open the sum, with its numbers
    assert study.visit(2).waits_for == ""


def test_only_a_session_that_was_taken_part_in_is_forgotten(tmp_path):
    study = FolderStudy(tmp_path, least=4, **PLAIN)
    with pytest.raises(SecureError, match="the state must be that of a member that takes part") as refused:
        study.forget(2)
    assert str(tmp_path) not in str(refused.value)


def test_an_entry_above_the_bound_is_told_at_the_first_step(tmp_path):
    study = FolderStudy(tmp_path, least=4, **PLAIN)
    study.tables[1][7, 2] = 100.5
    with pytest.raises(
        ValueError, match=r"larger than largest=100, and one has size 100.5; nothing was sent"
    ):
        study.visit(1)
    assert study.board().get("keys/001") is None
    study.tables[1][7, 2] = 99.5
    assert study.visit(1).sent == ("keys/001",)


def test_every_signature_is_verified_once_per_visit(tmp_path, monkeypatch):
    study, verified, real = FolderStudy(tmp_path, **PLAIN), [], PublicKey.verify

    def counted(key, signature, data):
        verified.append(signature)
        return real(key, signature, data)

    monkeypatch.setattr(PublicKey, "verify", counted)
    ended = False
    while not ended:
        for index in range(5):
            verified.clear()
            study.visit(index)
            assert len(verified) == len(set(verified))
        verified.clear()
        ended = not study.coordinate().waits_for
        assert len(verified) == len(set(verified)) > 0
