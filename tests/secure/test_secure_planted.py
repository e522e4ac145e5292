"""Files that somebody puts into the shared folder of a secure study: models, and what is too large."""

import numpy as np
import pytest
from secure_folders import PLAIN, PRIVATE, FolderStudy

import fedpca
from fedpca import Roster, SigningKey, Subspace
from fedpca.errors import SecureError
from fedpca.federation.folder.secure import coordinate, has_ended, verify
from fedpca.secure.record import Record
from fedpca.secure.same_model import difference
from fedpca.secure.sizes import Sizes
from fedpca.secure.study import fit_of
from fedpca.summaries import model_file
from fedpca.trust import Member

pytestmark = pytest.mark.slow  # all of it together

MODEL = "model.safetensors"


def other_model():
    rows = np.random.default_rng(7).normal(size=(50, 3))
    model = Subspace.from_rows(rows, 2)
    return model_file.encode(model.kind, model.arrays, model.metadata)


PLANTED = [b"", b"something else", other_model()]


@pytest.mark.parametrize("planted", PLANTED, ids=["empty", "nonsense", "a model"])
@pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_a_planted_model_is_not_the_end_of_a_study(tmp_path, settings, planted):
    study = FolderStudy(tmp_path, **settings)
    (study.shared / MODEL).write_bytes(planted)
    assert study.visit(0).sent == ("keys/000",)
    done, problems = coordinate(study.shared, study.roster)
    assert done.waits_for.startswith("waits for keys from owner-01")
    assert "remove it" in problems["model"]
    assert not has_ended(study.board(), study.session())
    with pytest.raises(SecureError, match="the model must be that of the totals"):
        study.run()  # goes on to the end; then there is no place for the model
    for index in range(5):
        with pytest.raises(SecureError, match=r"Do not use it; remove it"):
            study.visit(index)
    with pytest.raises(SecureError, match="the model must be that of the totals"):
        has_ended(study.board(), study.session())
    (study.shared / MODEL).unlink()
    assert study.coordinate().waits_for == ""
    assert has_ended(study.board(), study.session())
    assert [study.visit(index) for index in range(5)] == [((), (), "")] * 5


def test_a_model_that_was_exchanged_after_the_end_is_told_by_owners_and_strangers_to_the_session(tmp_path):
    study = FolderStudy(tmp_path, **PRIVATE)
    assert study.run(lambda index, round: index != 4).waits_for == ""
    for index in range(5):
        assert study.visit(index).waits_for == ""
    true = (study.shared / MODEL).read_bytes()
    (study.shared / MODEL).write_bytes(other_model())
    gone = {"rows": lambda: pytest.fail("nothing is left to do")}
    for index in range(5):  # 4 has never taken part
        with pytest.raises(SecureError, match="Somebody else wrote it, or the coordinator lies"):
            study.visit(index, **gone)
    with pytest.raises(SecureError, match="let the coordinator write it again"):
        study.coordinate()
    (study.shared / MODEL).write_bytes(true)
    assert [study.visit(index, **gone).waits_for for index in range(5)] == [""] * 5


def test_a_model_that_was_accepted_is_not_computed_again(tmp_path, monkeypatch):
    study = FolderStudy(tmp_path, **PLAIN)
    study.run()
    assert [study.visit(0).waits_for for _ in range(2)] == ["", ""]
    monkeypatch.setattr("fedpca.federation.folder.secure.Followed", None)
    assert study.visit(0).waits_for == ""


def changed(model, **values):
    """A model file with other values, which `fedpca.load` reads."""
    arrays, metadata = {**model.arrays}, {**model.metadata}
    for name, value in values.items():
        (arrays if name in arrays else metadata)[name] = value
    return model_file.encode(model.kind, arrays, metadata)


@pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_what_a_false_model_differs_in(tmp_path, settings):
    study = FolderStudy(tmp_path, **settings)
    study.run()
    model = fedpca.load(study.shared / MODEL)
    whole = model  # all that is needed of it: its directions

    def told(contents):
        return difference(contents, model, whole)

    turned = np.linalg.qr((model.components + np.array([0.0, 0.01, 0.0])).T)[0].T
    assert told(changed(model)) == ""
    assert told(changed(model, components=-model.components)) == ""
    assert told(changed(model, mean=model.mean * (1 + 1e-12))) == ""
    assert told(changed(model, mean=model.mean + 1e-3)) == "its array mean differs"
    larger = model.singular_values * 1.001
    assert told(changed(model, singular_values=larger)) == "its array singular_values differs"
    assert told(changed(model, components=turned)) == "its array components differs"
    assert told(changed(model, components=2 * model.components)) == "its array components differs"
    assert told(changed(model, components=np.nan * model.components)) == "its array components differs"
    assert told(changed(model, count=model.count + 1)) == "its certificate or its counts differ"
    assert told(changed(model, feature_names=["a", "b", "c"])) == "its certificate or its counts differ"
    assert told(changed(model, components=model.components[:, :2])) == "it has other arrays"
    assert "is not a model file" in told(b"")
    if model.certificate is not None:
        certificate = model.certificate.to_json()
        assert told(changed(model, certificate=certificate)) == ""
        assert "certificate" in told(changed(model, certificate={**certificate, "epsilon": 0.1}))
        secure = {**certificate["secure"], "colluding": 2}
        assert "certificate" in told(changed(model, certificate={**certificate, "secure": secure}))


def test_directions_of_the_same_variance_may_turn():
    rows = np.concatenate([np.eye(4), -np.eye(4)]) * [[2.0, 2.0, 1.0, 0.0]]
    whole = Subspace.from_rows(rows, 4)
    model = whole.truncate(2)
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    assert difference(changed(model, components=turn @ model.components), model, whole) == ""
    other = model.components.copy()
    other[1] = whole.components[2]
    assert difference(changed(model, components=other), model, whole) == "its array components differs"


# --- what is read ---


def test_nothing_is_read_that_is_larger_than_it_can_be(tmp_path, read_sizes):
    study = FolderStudy(tmp_path, **PRIVATE)
    names = [
        "keys-001", "shares-001", "agreed-001", "keyring", "members", "00-announced", "00-present",
        "00-total", "00-masked-001", "00-signed-001", "00-opened-001", "00-refused-001",
        "99-masked-004", MODEL,
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
    assert Record(study.session(), study.board()).announced(0).length == 242
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
    sizes, fit = Sizes.of(roster), fit_of(roster)
    assert sizes.most(f"keys/{n_members:03}") == 0
    header = 3000  # study, roster and session
    assert sizes.most("00/masked/000") >= header + 8 * fit.most_words + 64
    assert sizes.most("00/masked/000", 10) < 2**14
    assert sizes.most("shares/000") >= header + n_members * (
        2 * (66 * fit.most_sums + 16) + 64 * fit.most_sums
    )
    assert sizes.most("00/opened/000") >= header + 75 * n_members
    assert sizes.most("members") >= 500 + 140 * n_members


@pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_messages_of_a_study_have_the_sizes_they_can_have(tmp_path, settings):
    study = FolderStudy(tmp_path, **settings)
    assert study.run().waits_for == ""
    board, sizes = study.board(), Sizes.of(study.roster)
    assert not board.skipped
    for name, contents in board.items():
        assert len(contents) <= sizes.most(name)
        if "/masked/" in name:
            words = Record(study.session(), board).announced(int(name[:2])).length
            assert 8 * words < len(contents) <= sizes.most(name, words) < len(contents) + 2**14


# --- computing it again ---


def test_what_was_published_follows_from_what_owners_signed(tmp_path):
    study = FolderStudy(tmp_path, 6, **PRIVATE, least=4)
    assert verify(study.shared, study.roster) == (0, False)
    # 5 never sends its masked words, and 4 answers nothing: its surplus stays in the first total.
    done = study.run(lambda index, round: index < 4 or round < {4: 4, 5: 3}[index])
    assert done.waits_for == ""
    n_totals = Record(study.session(), study.board()).n_totals
    assert verify(study.shared, study.roster) == (n_totals, True)
    first = Record(study.session(), study.board()).total(0)
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
    assert has_ended(study.board(), study.session())
    with pytest.raises(SecureError, match="the total of sum 00 must be that of the words of those present"):
        verify(study.shared, study.roster)


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
        verify(study.shared, study.roster)
