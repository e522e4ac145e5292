"""Rows and totals of secure sums: what an owner refuses, and what it must not refuse."""

from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from secure_folders import PLAIN, PRIVATE, FolderStudy
from secure_sessions import KEYS

from fedpca import Roster
from fedpca._util.files import append_json_line
from fedpca.errors import SecureError
from fedpca.federation.folder.secure import SharedSession
from fedpca.readers import open_rows
from fedpca.secure import wire
from fedpca.secure.rows import OwnerRows

pytestmark = pytest.mark.slow  # all of it together


def falsify(study, contents):
    """The coordinator makes up the first total, and announces what follows from it."""
    present, session = study.board()["00/present"], study.session()
    fields = wire.header(present)[0]
    rows = sum(map(len, study.tables))
    noise = study.shown().levels.variance(len(fields["present"]), len(fields["present"]))
    total = {"present": wire.digest(present), "opened": [index for index, _ in fields["present"]]}
    payload = np.asarray(contents).astype("<i8").tobytes()
    (study.shared / "00-total").write_bytes(session.publish(total | {"rows": rows, "noise": noise}, payload))


def before_the_first_total(tmp_path, tables, **settings):
    study = FolderStudy(tmp_path, len(tables), **settings)
    study.tables = tables
    while "00/present" not in study.board():
        for index in range(len(tables)):
            study.visit(index)
        study.coordinate()
    return study


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.0), (0.0, 1e-3), (0.0, 1e-2), (-1.0, 0.0), (0.5, 0.2)])
def test_no_false_total_makes_an_owner_tell_of_its_rows_by_refusing(tmp_path, mean, spread):
    rng = np.random.default_rng(0)
    tables = [scale * rng.normal(size=(20, 3)) for scale in (0.001, 0.1, 5.0, 20.0)]
    study = before_the_first_total(tmp_path, tables, **PLAIN)
    unit = 80 * 2.0**55  # all rows, each of the largest size: 2^(62 - 7) per row
    moments = [80] * 3 + [round(unit * mean)] * 3 + [round(unit * (mean**2 + spread**2))] * 3
    falsify(study, moments)
    assert study.coordinate().sent == ("01/announced",)
    for index in range(4):
        assert study.visit(index).sent == (f"01/masked/{index:03}",)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_first_total_beyond_the_public_bound_is_refused_by_all(tmp_path, block):
    tables = [np.random.default_rng(index).normal(size=(20, 3)) for index in range(4)]
    study = before_the_first_total(tmp_path, tables, **PLAIN)
    moments = np.array([[40] * 3, [0] * 3, [0] * 3])  # 40 of 80 entries are known
    moments[block] = [81] * 3 if block == 0 else [41 * 2**55] * 3
    falsify(study, moments.ravel())
    for index in range(4):
        with pytest.raises(SecureError, match=r"not one of rows|rows and noise have at most"):
            study.visit(index)


@pytest.mark.long
def test_sums_without_noise_are_of_the_same_rows_in_every_session(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    assert study.run().waits_for == ""
    original = study.tables[2]
    for number, table in enumerate((np.vstack([original, original[:1]]), original + 1e-9, original)):
        study.tables[2] = table
        study.shared = tmp_path / f"shared-{number}"
        study.shared.mkdir()
        SharedSession.new(study.shared, study.roster)
        if table is original:
            assert study.run().waits_for == ""
            continue
        with pytest.raises(SecureError, match=r"difference of two sums would show what changed.*new study"):
            study.run()
        assert "00/masked/002" not in study.board()


@pytest.mark.slow
def test_so_they_are_if_the_coordinator_hid_that_a_sum_was_opened(tmp_path):
    study = before_the_first_total(tmp_path, [np.full((20, 3), float(index)) for index in range(5)], **PLAIN)
    for index in [0, 1, 3, 4] * 2:  # they sign and open; owner 2 never sees who is present
        study.visit(index)
    study.coordinate(closing=True)
    assert "owner-02" in study.shown().total(0).owners
    study.tables[2][7, 1] += 1.0
    study.shared = tmp_path / "another"
    study.shared.mkdir()
    SharedSession.new(study.shared, study.roster)
    with pytest.raises(SecureError, match="difference of two sums would show what changed"):
        study.run()
    assert "00/masked/002" not in study.board()


def test_rows_of_the_same_shape_that_changed_are_refused(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    while "01/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    debits = len(study.ledger(0).entries)
    study.tables[0] = study.tables[0] + 1e-9
    with pytest.raises(SecureError, match="the rows changed since this session began"):
        study.visit(0)
    assert "01/masked/000" not in study.board()
    assert len(study.ledger(0).entries) == debits


def test_rows_that_were_written_again_are_the_same(tmp_path):
    study, path = FolderStudy(tmp_path, **PLAIN), tmp_path / "rows.npy"
    for _ in range(12):
        for index in range(5):
            np.save(path, study.tables[index])  # a new file of the same rows, on every visit
            study.visit(index, rows=lambda: OwnerRows.of_reader(open_rows(path)))
        study.coordinate()
    assert study.visit(0).waits_for == ""


# --- liars are named, and nobody sees a traceback ---


def test_a_total_that_gives_no_model_is_refused_in_one_line(tmp_path):
    tables = [np.random.default_rng(index).normal(size=(20, 3)) for index in range(4)]
    study = before_the_first_total(tmp_path, tables, **PLAIN)
    while "01/present" not in study.board():
        for index in range(4):
            study.visit(index)
        study.coordinate()
    first, present = study.board()["00/total"], study.board()["01/present"]
    fields = wire.header(first)[0] | {"present": wire.digest(present)}
    payload = np.full(9, 2**62).astype("<i8").tobytes()
    (study.shared / "01-total").write_bytes(wire.canonical(fields) + payload)
    for act in (lambda: study.visit(0), study.coordinate):
        with pytest.raises(
            SecureError, match=r"total of 'products' is not one of rows.*Find out who"
        ) as error:
            act()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("rows", [2**48, 2**28])
def test_a_member_that_states_too_many_rows_is_named(tmp_path, rows):
    study = FolderStudy(tmp_path, 4, **PRIVATE)
    for index in range(4):
        study.visit(index)
    contents = study.board()["keys/002"]
    fields = {name: value for name, value in wire.header(contents)[0].items() if name != "bytes"}
    secrets = tmp_path / "state-2" / study.session().id[:32]
    for path in (study.shared / "keys-002", secrets / "sent" / "keys-002"):
        path.write_bytes(wire.sign(KEYS[2], fields | {"rows": rows}))
    study.coordinate()
    for index in range(4):
        study.visit(index)
    with pytest.raises(SecureError, match=f"'owner-02' states the most, {rows}"):
        study.coordinate()
    with pytest.raises(SecureError, match=f"'owner-02' states the most, {rows}"):
        study.visit(0)


def test_an_announced_number_of_any_size_is_refused_in_one_line(tmp_path):
    tables = [np.random.default_rng(index).normal(size=(20, 3)) for index in range(4)]
    study = FolderStudy(tmp_path, 4, **PRIVATE)
    study.tables = tables
    while "00/announced" not in study.board():
        for index in range(4):
            study.visit(index)
        study.coordinate()
    announced = wire.header(study.board()["00/announced"])[0]
    announced["blocks"][0][1] = 10**400
    (study.shared / "00-announced").write_bytes(wire.canonical(announced))
    with pytest.raises(SecureError, match="00/announced must be what the coordinator published") as error:
        study.visit(0)
    assert "\n" not in str(error.value)


def test_digits_of_other_scripts_name_no_message(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    study.visit(0)
    (study.shared / "keys-\u0660\u0660\u0660").write_bytes(study.board()["keys/000"])
    assert study.visit(0).sent == ()
    assert [item.reason for item in study.board().skipped] == ["not a message of a session."]


def test_columns_in_another_order_are_named(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    settings = {"rank": 2, "features": ["a", "b", "c"], "colluding": 1, **PLAIN}
    study.roster = Roster("study-1", list(study.roster.members.values()), settings)
    (study.shared / "session").unlink()
    SharedSession.new(study.shared, study.roster)
    rows = OwnerRows.of_table(study.tables[0], ("a", "c", "b"))
    with pytest.raises(SecureError, match="number 2 is 'b' there, and 'c' in the rows; select and order"):
        study.visit(0, rows=lambda: rows)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_named(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    ledger.symlink_to("/dev/full")
    with (
        FileIO(ledger, "rb+") as file,
        pytest.raises(OSError, match=r"No space left on device: .*ledger.jsonl"),
    ):
        append_json_line(file, {"event": "debit"})
