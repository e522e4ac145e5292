"""Files that somebody puts into the shared folder of a secure study, and totals computed again."""

import pytest
from secure_folders import PLAIN, PRIVATE, FolderStudy

from fedpca import Roster, SigningKey
from fedpca.errors import SecureError
from fedpca.secure.messages import place_of
from fedpca.secure.study import fit_of
from fedpca.trust import Member

pytestmark = pytest.mark.slow  # all of it together


def test_a_planted_model_is_no_message(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    (study.shared / "model.safetensors").write_bytes(b"somebody's")
    assert [item.file for item in study.board().skipped] == ["model.safetensors"]
    assert study.run().waits_for == ""
    assert study.model().count == sum(map(len, study.tables))


def test_before_the_end_there_is_no_model(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    study.visit(0)
    with pytest.raises(SecureError, match=r"must have ended .* this one waits for keys from owner-01"):
        study.model()


# --- what is read ---


def test_nothing_is_read_that_is_larger_than_it_can_be(tmp_path, read_sizes):
    study = FolderStudy(tmp_path, **PRIVATE)
    names = [
        "keys-001", "shares-001", "agreed-001", "keyring", "members", "00-announced", "00-present",
        "00-total", "00-masked-001", "00-signed-001", "00-opened-001", "00-refused-001",
        "99-masked-004",
    ]  # fmt: skip
    for name in names:
        with (study.shared / name).open("wb") as file:
            file.truncate(2**21)  # sparse
    board = study.board()
    assert set(board) == {"session"}
    assert {item.file for item in board.skipped} == set(names)
    assert max(read_sizes) < 2**12
    with pytest.raises(SecureError, match="00-masked-001 is there, not of it"):
        study.visit(1)
    assert study.visit(0).sent == ("keys/000",)
    assert max(read_sizes) < 2**14


def test_masked_words_and_totals_are_as_long_as_their_sum(tmp_path, read_sizes):
    study = FolderStudy(tmp_path, **PRIVATE)
    while "00/present" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    assert study.shown().announced(0).length == 242
    for number in (0, 1):  # 1 has not been announced
        (study.shared / f"{number:02}-masked-007").write_bytes(b"{}\n")
        path = study.shared / f"{number:02}-masked-004"
        path.write_bytes(b'{"bytes":11000}\n' + bytes(11064))
    read_sizes.clear()
    reasons = {item.file: item.reason for item in study.board().skipped}
    assert "more than the" in reasons["00-masked-004"]
    assert reasons["00-masked-007"] == reasons["01-masked-007"] == "no member has its number."
    assert reasons["01-masked-004"] == "it follows 01-announced, which is not there yet."
    assert max(read_sizes) < 20_000


def test_a_sum_that_somebody_announces_is_no_reason_to_read_more(tmp_path, read_sizes):
    study = FolderStudy(tmp_path, **PLAIN)
    while "00/announced" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    announced = study.shared / "00-announced"
    announced.write_bytes(announced.read_bytes().replace(b"[[3,", b"[[268435456,"))
    for index in range(5):
        (study.shared / f"00-masked-{index:03}").write_bytes(b'{"bytes":4000000}\n' + bytes(4000064))
    read_sizes.clear()
    assert not [name for name in study.board() if "/masked/" in name]
    with pytest.raises(SecureError, match="00-masked-000 is there, not of it"):
        study.visit(0)
    assert max(read_sizes) < 2**16


@pytest.mark.parametrize("n_members", [3, 40])
@pytest.mark.parametrize(
    "settings",
    [
        {"n_features": 300, "rank": 40, "largest": 1.0},
        {"features": ["ä" * 50, "b\n" * 30, "c"], "rank": 1, "epsilon": 1.0, "delta": 1e-6},
        {"n_features": 300, "rank": 1, "scale": "std", "epsilon": 9.0, "delta": 1e-6},
        {"n_features": 5000, "rank": 9, "mechanism": "sketch", "epsilon": 1.0, "delta": 1e-6},
    ],
)
def test_sizes_leave_room_for_every_message(n_members, settings):
    key = SigningKey.new
    members = [Member("é" * 200 + str(number), key().public) for number in range(n_members)]
    roster = Roster("study-" + "ü" * 900, members, {"colluding": 1, **settings})
    fit = fit_of(roster)

    def most(name, words=fit.most_words):
        return place_of(name).most_bytes(n_members, words)

    header = 3000  # study, roster and session
    assert most("00/masked/000") >= header + 8 * fit.most_words + 64
    assert most("00/masked/000", 10) < 2**14
    assert most("shares/000") >= header + n_members * (2 * (66 * fit.most_sums + 16) + 64 * fit.most_sums)
    assert most("00/opened/000") >= header + 75 * n_members
    assert most("members") >= 500 + 140 * n_members


@pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_messages_of_a_study_have_the_sizes_they_can_have(tmp_path, settings):
    study = FolderStudy(tmp_path, **settings)
    assert study.run().waits_for == ""
    board, most_words = study.board(), fit_of(study.roster).most_words
    assert not board.skipped
    for name, contents in board.items():
        assert len(contents) <= place_of(name).most_bytes(5, most_words)
        if "/masked/" in name:
            words = study.shown().announced(int(name[:2])).length
            assert 8 * words < len(contents) <= place_of(name).most_bytes(5, words) < len(contents) + 2**14


# --- computing it again ---


def test_what_was_published_follows_from_what_owners_signed(tmp_path):
    study = FolderStudy(tmp_path, 6, **PRIVATE, least=4)
    assert study.open().verify() == 0
    # 5 never sends its masked words, and 4 answers nothing: its surplus stays in the first total.
    done = study.run(lambda index, round: index < 4 or round < {4: 4, 5: 3}[index])
    assert done.waits_for == ""
    n_totals = study.shown().n_totals
    assert study.open().verify() == n_totals
    first = study.shown().total(0)
    assert first.owners == tuple(f"owner-{i:02}" for i in range(5))
    assert first.opened == (0, 1, 2, 3)


def test_a_false_total_is_told_by_computing_it_again(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    while "00/total" not in study.board():
        for index in range(5):
            study.visit(index)
        study.coordinate()
    path = study.shared / "00-total"
    true = path.read_bytes()
    path.write_bytes(true[:-1] + bytes([true[-1] ^ 1]))
    (study.shared / "01-announced").unlink()
    assert study.run().waits_for == ""  # a model of a false total, and nobody's rows tell
    with pytest.raises(SecureError, match="the total of sum 00 must be that of the words of those present"):
        study.open().verify()


@pytest.mark.parametrize("change", ["remove", "damage"])
def test_what_cannot_be_computed_again_is_told(tmp_path, change):
    study = FolderStudy(tmp_path, **PRIVATE)
    study.run()
    path = study.shared / "00-opened-002"
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(SecureError, match=r"sum 00 can be computed again from .* without 'owner-02'"):
        study.open().verify()
