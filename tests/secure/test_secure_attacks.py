"""Attacks on secure sums: what a lying coordinator or member tries, each of which must fail.

Where an attack fails because of one rule, a mutant without that rule shows that the attack is a real one.
"""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from secure_sessions import KEYS, Study, Sum, coordinator_of, owner_of, secure_roster

from fedpca import Roster
from fedpca.errors import SecureError
from fedpca.secure import Owner, OwnerMemory, Secrets, Session, masks, relevant, shamir
from fedpca.secure.wire import canonical, digest, header
from fedpca.trust import Member

EXACT, NOISY = [Sum("gram", ((50, 0.0),))], [Sum("gram", ((50, 9.0),))]


def words(message):
    """The payload of a message, as integers."""
    fields, rest = header(message)
    return np.frombuffer(rest[: fields["bytes"]], dtype="<u8").copy()


def changed(study, name, /, **fields):
    """A message of the coordinator with other contents."""
    known, payload = header(study.board[name])
    return canonical({**known, **fields}) + bytes(payload)


def signed_again(study, name, /, payload=None, **fields):
    """A message of a member that lies: other contents, well signed."""
    kind, index = name.split("/")[-2:]
    known, rest = header(study.board.get(name) or study.sent(int(index))[name])
    own = {key: value for key, value in known.items() if key not in ("bytes",)} | fields
    number = int(name[:2]) if name[0].isdigit() else None
    body = bytes(rest[:-64]) if payload is None else payload
    return study.coordinator.session.sign(KEYS[int(index)], kind, int(index), number, own, body)


def opened_secret(boards, which, member, threshold):
    """What shares in answers give of a member, if there are enough of them."""
    shares = {}
    for board in boards:
        for name, message in board.items():
            fields = header(message)[0] if "/opened/" in name else {}
            if str(member) in fields.get(which, {}):
                shares[fields["from"]] = bytes.fromhex(fields[which][str(member)])
    if len(shares) < threshold:
        return None
    return shamir.combine(dict(list(shares.items())[:threshold]))


def unmasked(study, owners, seeds, keys):
    """The sum of these owners' masked words, without all masks that known seeds and step keys give."""
    announced = study.shown.announced(0)
    context, session = bytes.fromhex(announced.digest), study.coordinator.session.salt
    public = {index: study.shown.keys_of(index)[0].key for index in study.members}
    total = np.zeros(announced.length, dtype=np.uint64)
    known = [(masks.self_key(seed, session, context, index), False) for index, seed in seeds.items()]
    for index in owners:
        total += words(study.sent(index)[f"00/masked/{index:03}"])
        for other in set(study.members) - set(owners):
            for mine, theirs in ((index, other), (other, index)):
                if mine in keys:
                    key = masks.pair_key(keys[mine], public[theirs], session, context, index, other)
                    known.append((key, index > other))
                    break
    masks.add_masks(total, known)
    return total.view(np.int64)


# --- late uploads, and the self mask ---


def late_upload(study):
    """Owner 4 is late, so that the others open its key. What the coordinator makes of its words then."""
    study.run(lambda index, state: index != 4 or state in ("keys", "shares", "agreed"), until="00/present")
    study.reply(4, {name: message for name, message in study.board.items() if name != "00/present"})
    study.run(lambda index, state: index != 4)
    np.testing.assert_array_equal(study.shown.total(0).words, sum(study.x[0][:4]))
    key = opened_secret([study.board], "keys", 4, study.shown.terms.threshold)
    assert masks.public_key(key) == study.shown.keys_of(4)[0].key
    return unmasked(study, [4], {}, {4: key})


def test_a_late_upload_is_worthless():
    study = Study(secure_roster(5, least=4), EXACT)
    guess = late_upload(study)
    assert not (guess == study.x[0][4]).any()
    assert opened_secret([study.board], "seeds", 4, 1) is None  # nobody opened a share of it
    again = {name: message for name, message in study.board.items() if name != "00/total"}
    study.states[1] = OwnerMemory(study.secrets[1], study.sent(1))  # of one that has not seen the end
    with pytest.raises(SecureError, match="another present than the coordinator shows now"):
        study.reply(1, {**again, "00/present": _present(study, range(5))})


def test_mutant_without_self_mask_gives_the_late_upload_away(monkeypatch):
    real = masks.add_masks
    monkeypatch.setattr(masks, "self_key", lambda *_: b"")
    monkeypatch.setattr(masks, "add_masks", lambda words, keys: real(words, [key for key in keys if key[0]]))
    study = Study(secure_roster(5, least=4), EXACT)
    np.testing.assert_array_equal(late_upload(study), study.x[0][4])


# --- sets that differ from owner to owner ---


def _present(study, indices):
    listed = [[index, digest(study.sent(index)[f"00/masked/{index:03}"])] for index in indices]
    return study.coordinator.session.publish(
        {"announced": study.shown.announced(0).digest, "present": listed}
    )


def different_sets(study):
    """Every owner is shown another set of six, each with owners 0 to 3; the sum of these four is wanted."""
    study.run(until="00/present")
    del study.board["00/present"]
    sets = {index: [0, 1, 2, 3, 4 + index % 6, 4 + (index + 1) % 6] for index in study.members}
    boards = {
        index: {**study.board, "00/present": _present(study, sorted(sets[index]))} for index in study.members
    }
    for index in study.members:
        boards[index] |= study.reply(index, boards[index])
    return boards


def test_different_sets_of_legal_size_open_nothing():
    study = Study(secure_roster(10), EXACT)
    boards = different_sets(study)
    assert not any("/opened/" in name for board in boards.values() for name in board)
    signed = {name: board[name] for board in boards.values() for name in board if "/signed/" in name}
    for index in study.members:
        assert study.reply(index, {**boards[index], **signed}) == {}


def test_mutant_that_opens_before_it_has_seen_signatures_gives_four_owners_away(monkeypatch):
    monkeypatch.setattr(Owner, "_enough", lambda *_: True)
    study = Study(secure_roster(10), EXACT)
    boards = list(different_sets(study).values())
    seeds = {index: opened_secret(boards, "seeds", index, 6) for index in range(4)}
    keys = {index: opened_secret(boards, "keys", index, 6) for index in range(4, 10)}
    assert all(seeds.values())
    assert all(keys.values())
    study.board["00/present"] = boards[0]["00/present"]
    np.testing.assert_array_equal(unmasked(study, range(4), seeds, keys), sum(study.x[0][:4]))


def test_an_owner_signs_one_set_per_sum():
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/present")
    study.board.update(study.reply(0))
    assert "00/signed/000" in study.board
    smaller = {**study.board, "00/present": _present(study, range(4))}
    with pytest.raises(SecureError, match="sent 00/signed/000 about another present"):
        study.reply(0, smaller)


@pytest.mark.parametrize("indices", [[0, 1, 2], [0, 1, 2, 2, 3], [3, 2, 1, 0], [0, 1, 2, 7]])
def test_a_set_that_is_too_small_or_not_a_set_is_refused(indices):
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/present")
    fields, _ = header(study.board["00/present"])
    digests = dict(fields["present"])
    listed = [[index, digests.get(index, "00" * 32)] for index in indices]
    board = {**study.board, "00/present": changed(study, "00/present", present=listed)}
    with pytest.raises(SecureError, match=r"00/present must be what the coordinator published"):
        study.reply(0, board)


def test_a_set_with_someone_who_takes_no_part_is_refused():
    study = Study(secure_roster(6, least=4), NOISY)
    study.run(lambda index, state: index != 5, until="00/present")
    listed = [*header(study.board["00/present"])[0]["present"], [5, "00" * 32]]
    board = {**study.board, "00/present": changed(study, "00/present", present=listed)}
    with pytest.raises(SecureError, match="it names 'owner-05', who take no part in the session"):
        study.reply(0, board)


def test_an_owner_refuses_a_set_with_other_words_of_its_own():
    study = Study(secure_roster(5), NOISY)
    study.run(until="00/present")
    listed = header(study.board["00/present"])[0]["present"]
    listed[0][1] = "00" * 32
    with pytest.raises(SecureError, match="names another 00/masked/000"):
        study.reply(0, {**study.board, "00/present": changed(study, "00/present", present=listed)})


def test_sums_without_noise_are_of_the_same_owners():
    """Else their difference shows whoever is in one only."""
    study = Study(secure_roster(5, least=4), [Sum("a", ((5, 0.0),)), Sum("b", ((5, 0.0),))])
    state = study.run(lambda index, state: index != 4 or "00/total" not in study.board)
    assert (state, study.coordinator.waiting_for) == ("masked", ["owner-04"])
    listed = [
        [index, digest(study.sent(index)[f"01/masked/{index:03}"])] for index in range(4)
    ]  # by a coordinator that does not care
    announced = study.shown.announced(1).digest
    study.board["01/present"] = study.coordinator.session.publish({"announced": announced, "present": listed})
    with pytest.raises(SecureError, match="sums without noise must be of the same owners"):
        study.reply(0)


def two_sets_of_members(study):
    """Owners 0 and 1 are shown another set A than 2, 3 and 4."""
    study.run(until="members")
    four = [item for item in header(study.board["members"])[0]["members"] if item[0] != 4]
    other = {**study.board, "members": changed(study, "members", members=four)}
    return study.board, other


def test_two_sets_of_members_mask_nothing():
    study = Study(secure_roster(5, least=4), EXACT)
    first, second = two_sets_of_members(study)
    agreed = {**study.reply(0, second), **study.reply(1, second)}
    assert set(agreed) == {"agreed/000", "agreed/001"}
    for index in (2, 3, 4):
        agreed |= study.reply(index, first)
    first |= agreed
    study.advance()
    assert study.coordinator.state == "agreed"
    assert set(study.coordinator.problems) == {"agreed/000", "agreed/001"}
    assert "00/announced" not in first
    with pytest.raises(
        SecureError, match="must sign the same members, and 'owner-00', 'owner-01' signed another"
    ):
        study.reply(2, first)
    with pytest.raises(SecureError, match="sent agreed/000 about another members"):
        study.reply(0, first)


def test_two_keyrings_deal_no_shares_twice():
    study = Study(secure_roster(5, least=4), EXACT)
    study.run(until="keyring")
    board = dict(study.board)
    study.reply(0)
    four = header(board["keyring"])[0]["keys"][:4]
    other = {**board, "keyring": changed(study, "keyring", keys=four)}
    with pytest.raises(SecureError, match="sent shares/000 about another keyring"):
        study.reply(0, other)
    for index in (1, 2, 3):
        other |= study.reply(index, other)
    study.board.update(study.sent(0) | study.sent(1))
    study.advance(closing=False)
    assert "it states another keyring than is on the board" in study.coordinator.problems["shares/001"]


# --- rosters and sessions ---


def test_two_rosters_are_told_apart():
    one, two = secure_roster(5), secure_roster(5, scale="std")
    study = Study(one, EXACT)
    with pytest.raises(SecureError, match=r"must be under the roster sha256:.*, and is under .* same"):
        owner_of(two, study.session, 0, 10, Secrets.new(1), {})
    other = Study(two, EXACT)
    study.board.update(study.reply(0))
    study.board["keys/001"] = other.reply(1)["keys/001"]  # of an owner that was shown the other roster
    study.advance()
    assert "does not count: its session is" in study.coordinator.problems["keys/001"]


def test_an_unknown_study_is_refused():
    study = Study(secure_roster(3, study="study-2"), EXACT)
    with pytest.raises(SecureError, match="must be of study 'study-1', and is of 'study-2'; let the coord"):
        owner_of(secure_roster(3), study.session, 0, 10, Secrets.new(1), {})


@pytest.mark.parametrize(
    "contents",
    [b"", b"\n", b"{}\n", b"[]\n", b"x" * 10**6, b"[" * 10**4 + b"\n", b'{"a":1,"a":1}\n', b"\xff\xfe\n"],
)
def test_damaged_sessions_are_refused(contents):
    with pytest.raises(SecureError, match="a session must be opened by a valid message"):
        coordinator_of(secure_roster(3), contents, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "fedpca secure session 2"),
        ("nonce", "00"),
        ("opened", "soon"),
        ("opened", "2026-01-01T00:00"),
    ],
)
def test_sessions_with_strange_values_are_refused(field, value):
    roster = secure_roster(3)
    fields, _ = header(Session.new(roster))
    with pytest.raises(SecureError, match="a session must be opened by a valid message"):
        Session(roster, canonical({**fields, field: value}))


def test_a_session_of_the_future_is_refused():
    roster = secure_roster(3)
    fields, _ = header(Session.new(roster))
    for hours, refused in ((0.5, False), (2, True), (24 * 365, True)):
        opened = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        session = canonical({**fields, "opened": opened})
        if refused:
            with pytest.raises(SecureError, match=r"must not be opened in the future.*set the clock"):
                owner_of(roster, session, 0, 10, Secrets.new(1), {})
        else:
            owner_of(roster, session, 0, 10, Secrets.new(1), {})


def test_a_lost_state_is_told():
    study = Study(secure_roster(3), EXACT)
    study.run(until="keyring")
    lost = owner_of(study.roster, study.session, 1, 11, Secrets.new(1), {}, EXACT)
    with pytest.raises(SecureError, match="keys/001 is on the board, and not in its state; take the state"):
        lost.reply(study.board)
    sent = {"keys/001": b"older"}
    restored = owner_of(study.roster, study.session, 1, 11, Secrets.new(1), sent, EXACT)
    with pytest.raises(SecureError, match="keys/001 is not what it sent"):
        restored.reply(study.board)


# --- a coordinator that wants another answer ---


def test_a_coordinator_that_claims_failure_gets_nothing_new():
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/total")
    withheld = {name: message for name, message in study.board.items() if name != "00/total"}
    for index in study.members:
        assert study.reply(index, withheld) == {}
        with pytest.raises(SecureError, match="only an owner that has not opened a sum can refuse it"):
            study.refuse(index)
    again = {name: message for name, message in withheld.items() if "00/" not in name}
    again["00/announced"] = changed(study, "00/announced", name="second try")
    with pytest.raises(SecureError, match="sent 00/masked/000 about another announced"):
        study.reply(0, again)
    assert len(study.paid) == 5  # one debit per owner


def test_another_attempt_has_other_keys_noise_and_debits():
    study = Study(secure_roster(5, least=4), NOISY)
    study.run()
    again = Study(study.roster, NOISY, seed=1)
    again.x = study.x
    again.run()
    assert again.session != study.session
    assert len(again.paid) == 5
    assert not (again.shown.total(0).words == study.shown.total(0).words).all()
    for index in study.members:
        masked = [words(item.sent(index)[f"00/masked/{index:03}"]) for item in (study, again)]
        assert not (masked[0] == masked[1]).any()


# --- replays, changed bytes, forged signatures, wrong keys ---


@pytest.fixture(scope="module")
def finished():
    study = Study(secure_roster(4, least=3), [Sum("a", ((20, 5.0),)), Sum("b", ((20, 5.0),))])
    assert study.run() == "done"
    return study


NAMES = ["keys/002", "shares/002", "agreed/002", "00/masked/002", "00/signed/002", "00/opened/002"]
STAGES = {"keys": "keyring", "shares": "members", "agreed": "00/announced", "masked": "00/present"}


def collecting(study, name):
    """The board while the coordinator collects messages like this."""
    end = STAGES.get(name.split("/")[-2], "00/total")
    names = list(study.board)
    return {key: study.board[key] for key in names[: names.index(end)] if not key.startswith("01/")}


def problem_with(study, name, message):
    """What the coordinator says about a message in the place of another."""
    board = {**collecting(study, name), name: message}
    coordinator = coordinator_of(study.roster, study.session, study.sums)
    new = coordinator.advance(board, closing=True)
    named = {"keyring": "keys", "members": "members", "00/present": "present", "00/total": "opened"}
    for kind, field in named.items():
        if kind in new and "signed" not in name:
            listed = [item if kind == "00/total" else item[0] for item in header(new[kind])[0][field]]
            assert listed == [0, 1, 3]
    return coordinator.problems[name]


@pytest.mark.parametrize("name", NAMES)
def test_messages_count_in_their_place_only(finished, name):
    other = Study(finished.roster, finished.sums)
    other.run()
    assert "its session is" in problem_with(finished, name, other.board[name])
    assert "its from is 1" in problem_with(finished, name, finished.board[name.replace("002", "001")])
    if name[0].isdigit():
        of_next = finished.board["01" + name[2:]]
        assert "its sum is 1" in problem_with(finished, name, of_next)
    kind = finished.board["agreed/002" if "keys" in name else "keys/002"]
    assert "its kind is" in problem_with(finished, name, kind)


@pytest.mark.parametrize("name", NAMES)
def test_changed_bytes_are_told(finished, name):
    message = finished.board[name]
    rng = np.random.default_rng(0)
    for place in {0, len(message) - 1, *rng.integers(0, len(message), 12).tolist()}:
        flipped = bytearray(message)
        flipped[place] ^= 1 << int(rng.integers(8))
        assert f"{name} must be a message of 'owner-02'" in problem_with(finished, name, bytes(flipped))
    for cut in (b"", message[:-1], message + b"\n", message[:40], b"{" * 50_000 + b"\n"):
        assert "does not count" in problem_with(finished, name, cut)


@pytest.mark.parametrize("name", NAMES)
def test_forged_signatures_are_told(finished, name):
    fields, rest = header(finished.board[name])
    number = fields["sum"]
    own = {key: value for key, value in fields.items() if key != "bytes"}
    forged = finished.coordinator.session.sign(KEYS[3], own["kind"], 2, number, own, bytes(rest[:-64]))
    assert "its signature does not hold" in problem_with(finished, name, forged)
    zeros = finished.board[name][:-64] + bytes(64)
    assert "its signature does not hold" in problem_with(finished, name, zeros)


def test_owners_refuse_changed_keys_and_shares_of_others(finished):
    for name, until in (("keys/002", "keyring"), ("shares/002", "members")):
        study = Study(finished.roster, finished.sums)
        study.run(until=until)
        for place in (10, -10):
            flipped = bytearray(study.board[name])
            flipped[place] ^= 1
            with pytest.raises(SecureError, match=f"{name} must be a message of 'owner-02'"):
                study.reply(0, {**study.board, name: bytes(flipped)})
        with pytest.raises(SecureError, match=f"{name} is missing; wait until"):
            study.reply(0, {key: value for key, value in study.board.items() if key != name})


def test_owners_refuse_keys_that_the_coordinator_did_not_name():
    study = Study(secure_roster(4), EXACT)
    study.run(until="keyring")
    other = signed_again(study, "keys/002", rows=99)  # a member that equivocates
    with pytest.raises(SecureError, match="it names other keys of 'owner-02' than are on the board"):
        study.reply(0, {**study.board, "keys/002": other})


@pytest.mark.parametrize(
    ("point", "field"),
    [(0, "enc"), (1, "enc"), (0, "key"), (2**255 - 20, "key")],
)
def test_keys_with_which_anyone_shares_a_secret_do_not_count(point, field):
    study = Study(secure_roster(4, least=3), EXACT)
    for index in study.members:
        study.board.update(study.reply(index))
    point = point.to_bytes(32, "little")
    known = header(study.board["keys/002"])[0]
    sums = [{**known["sums"][0], **({"key": point.hex()} if field == "key" else {})}]
    enc = point.hex() if field == "enc" else known["enc"]
    study.board["keys/002"] = signed_again(study, "keys/002", enc=enc, sums=sums)
    study.advance()
    assert "a public key must be that of a secret key" in study.coordinator.problems["keys/002"]
    assert [index for index, _ in header(study.board["keyring"])[0]["keys"]] == [0, 1, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 0}, "rows must be a whole number from 1"),
        ({"rows": True}, "rows must be a whole number from 1"),
        ({"rows": 2**60}, "rows must be a whole number from 1"),
        ({"enc": "00"}, "enc must be hexadecimal digits of 32 bytes"),
        ({"enc": 5}, "enc must be hexadecimal"),
        ({"sums": []}, "sums must be a list of 1 to 100"),
        ({"sums": [{}]}, "sums must have key, seed and surplus of each"),
        ({"sums": [{}] * 101}, "sums must be a list of 1 to 100"),
        ({"more": 1}, "its header must have rows, enc, sums"),
    ],
)
def test_strange_keys_do_not_count(fields, message):
    study = Study(secure_roster(4, least=3), EXACT)
    study.board.update(study.reply(2))
    study.board["keys/002"] = signed_again(study, "keys/002", **fields)
    study.advance()
    assert message in study.coordinator.problems["keys/002"]


def test_more_rows_than_declared_do_not_count():
    members = [Member(f"owner-{number:02}", KEYS[number].public, rows=12) for number in range(3)]
    study = Study(Roster("study-1", members, {"colluding": 1}), EXACT)
    for index in study.members:
        study.board.update(study.reply(index))
    study.board["keys/002"] = signed_again(study, "keys/002", rows=13)
    study.advance()
    assert "'owner-02' declared 12 and has 13" in study.coordinator.problems["keys/002"]


def test_keys_for_another_number_of_sums_do_not_count():
    study = Study(secure_roster(4, least=3), EXACT)
    study.states[1] = OwnerMemory(Secrets.new(2))
    for index in study.members:
        study.board.update(study.reply(index))
    study.advance()
    assert "keys/001 must have keys for 1 sums" in study.coordinator.problems["keys/001"]
    assert "keyring" in study.board


# --- small secrets ---


@pytest.mark.parametrize("folded", [True, False])
def test_mutant_with_a_small_secret_is_found_by_trying_all(monkeypatch, folded):
    """A coordinator with owner 2 wants owner 0: it lacks only the mask between owners 0 and 1.

    Folded to 32 bits, the secret of a pair is found in minutes; here to 12, so that the test ends sooner.
    """
    real = masks.exchange
    if folded:
        monkeypatch.setattr(masks, "exchange", lambda *pair: _folded(real(*pair)))
    study = Study(secure_roster(3), EXACT)
    study.run()
    announced, session = study.shown.announced(0), study.coordinator.session.salt
    context = bytes.fromhex(announced.digest)
    seed = opened_secret([study.board], "seeds", 0, 3)
    rest = unmasked(study, [0], {0: seed}, {2: study.secrets[2].sums[0].key}).view(np.uint64)[:4]
    found = []
    for guess in range(2**12):
        info = b"fedpca secure pair\n" + context + (0).to_bytes(4, "big") + (1).to_bytes(4, "big")
        tried = rest.copy()
        masks.add_masks(tried, [(masks.derive(guess.to_bytes(32, "big"), session, info), False)])
        if (np.abs(tried.view(np.int64)) <= 2**40).all():  # what entries are known to be
            found.append(tried.view(np.int64))
    if folded:
        np.testing.assert_array_equal(found, [study.x[0][0][:4]])
    else:
        assert found == []


def _folded(secret):
    return (int.from_bytes(secret, "big") % 2**12).to_bytes(32, "big")


# --- members that lie ---


def test_a_dealer_that_lies_to_one_member_is_named_by_it():
    study = Study(secure_roster(5, least=4), EXACT)
    study.run(until="members")
    sealed = header(study.board["shares/001"])[0]["sealed"]
    sealed["3"] = sealed["2"]  # sealed for another
    study.board["shares/001"] = signed_again(study, "shares/001", sealed=sealed)
    listed = header(study.board["members"])[0]["members"]
    listed[1][2] = digest(study.board["shares/001"])
    study.board["members"] = changed(study, "members", members=listed)
    study.sent(1)["shares/001"] = study.board["shares/001"]
    with pytest.raises(SecureError, match="'owner-01' dealt others to this member; let the coord"):
        study.reply(3)
    assert "agreed/002" in study.reply(2)


def lying_shares(study, dealer, receivers, change):
    """Shares of sum 0 for these receivers, changed and committed to as they are."""
    state = study.states[dealer]
    real = state.secrets.sums[0]

    class Liar(type(real)):
        def shares(self, places, threshold):
            dealt = super().shares(places, threshold)
            return [
                change(pair) if place in receivers else pair
                for place, pair in zip(places, dealt, strict=True)
            ]

    study.states[dealer] = OwnerMemory(Secrets(state.secrets.enc, (Liar(*real),)), state.sent)


def test_a_dealer_whose_shares_give_no_secret_is_named_by_the_coordinator():
    study = Study(secure_roster(5, least=4), EXACT)
    lying_shares(study, 1, {0}, lambda pair: (bytes(32) + b"\x07", pair[1]))
    with pytest.raises(SecureError, match="those that 'owner-01' dealt do not: it lied; open another"):
        study.run()
    assert "00/total" not in study.board


@pytest.mark.parametrize("which", ["seeds", "keys", "surplus", "missing", "both", "null"])
def test_a_member_that_opens_something_else_is_named_and_does_not_count(which):
    study = Study(secure_roster(6, least=4), NOISY)
    study.run(lambda index, state: index != 5 or state in ("keys", "shares", "agreed"), until="00/total")
    del study.board["00/total"]
    fields = header(study.board["00/opened/002"])[0]
    lie = {name: fields[name] for name in ("seeds", "keys", "surplus")}
    wrong = "00" * 32 + "07"
    match which:
        case "seeds":
            lie["seeds"] = {**lie["seeds"], "0": wrong}
        case "keys":
            lie["keys"] = {"5": wrong}
        case "surplus":
            lie["surplus"] = "07" * 32
        case "missing":
            lie["seeds"] = {name: value for name, value in lie["seeds"].items() if name != "0"}
        case "both":
            lie["keys"] = {**lie["keys"], "0": wrong}
        case "null":
            lie["surplus"] = None
    study.board["00/opened/002"] = signed_again(study, "00/opened/002", **lie)
    assert study.advance(closing=False) == {}  # whoever is named may send what is right
    assert study.coordinator.waiting_for == ["owner-02"]
    problem = study.coordinator.problems["00/opened/002"]
    assert ("'owner-02' lies about" in problem) == (which in ("seeds", "keys", "surplus", "null"))
    assert "00/total" in study.advance(closing=True)
    assert header(study.board["00/total"])[0]["opened"] == [0, 1, 3, 4]
    assert study.shown.total(0).noise == pytest.approx(4 / 4 + 1 / 3)  # of five, one has kept everything


def test_a_share_above_the_prime_does_not_count():
    study = Study(secure_roster(4, least=3), EXACT)
    study.run(until="00/total")
    del study.board["00/total"]
    seeds = header(study.board["00/opened/001"])[0]["seeds"] | {"0": "ff" * 33}
    study.board["00/opened/001"] = signed_again(study, "00/opened/001", seeds=seeds)
    study.advance()
    assert "'owner-01' lies about" in study.coordinator.problems["00/opened/001"]


def plus_prime(share):
    """The same number modulo the prime, in as many bytes."""
    return (int.from_bytes(share, "big") + shamir.PRIME).to_bytes(shamir.SHARE, "big")


@pytest.mark.parametrize("which", [0, 1])
def test_a_dealer_of_shares_above_the_prime_is_named_by_all_before_anything_is_paid(which):
    """They give the same secret, and have the commitments that their dealer made of them."""
    study = Study(secure_roster(5, least=4), NOISY)
    others = {index for index in study.members if index != 1}
    lying_shares(
        study,
        1,
        others,
        lambda pair: tuple(plus_prime(share) if i == which else share for i, share in enumerate(pair)),
    )
    study.run(until="members")
    for index in others:
        with pytest.raises(SecureError, match=r"below the prime.*'owner-01' dealt others to this member"):
            study.reply(index)
    study.board.update(study.reply(1))
    assert study.advance(closing=True) == {}
    assert study.coordinator.state == "agreed"
    assert study.paid == []


def test_mutant_that_does_not_compare_shares_with_the_prime_has_the_honest_named_after_all_paid(monkeypatch):
    real = shamir.is_committed
    study = Study(secure_roster(5, least=4), NOISY)
    lying_shares(study, 1, {0, 2, 3, 4}, lambda pair: (plus_prime(pair[0]), pair[1]))
    with monkeypatch.context() as without:
        without.setattr(shamir, "is_committed", lambda share, hash: shamir.commitment(share) == hash)
        study.run(lambda index, state: state != "opened")
        for index in study.members:
            study.board.update(study.reply(index))
    assert shamir.is_committed is real
    assert len(study.paid) == 5
    assert study.advance(closing=True) == {}
    assert all(
        f"'owner-{index:02}' lies about" in study.coordinator.problems[f"00/opened/{index:03}"]
        for index in (0, 2, 3, 4)
    )


@pytest.mark.parametrize("change", ["length", "rows", "announced"])
def test_masked_words_of_something_else_do_not_count(change):
    study = Study(secure_roster(4, least=3), EXACT)
    study.run(until="00/present")
    del study.board["00/present"]
    name = "00/masked/001"
    study.board[name] = {
        "length": lambda: signed_again(study, name, payload=bytes(8 * 49)),
        "rows": lambda: signed_again(study, name, rows=1),
        "announced": lambda: signed_again(study, name, announced="00" * 32),
    }[change]()
    study.advance()
    assert name in study.coordinator.problems
    assert [index for index, _ in header(study.board["00/present"])[0]["present"]] == [0, 2, 3]


def test_a_member_that_signs_nonsense_stops_nobody():
    study = Study(secure_roster(6, least=4), EXACT)
    study.run(until="00/announced")
    study.board["agreed/005"] = signed_again(study, "agreed/005", members="00" * 32)
    study.sent(5)["agreed/005"] = study.board["agreed/005"]
    assert study.run(lambda index, state: index != 5) == "done"
    np.testing.assert_array_equal(study.shown.total(0).words, sum(study.x[0][:5]))


# --- announcements that lie ---


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": [[50, 9.0, 0]]}, "shift must be 9 with noise of 9, got 0"),  # rounding would show
        ({"blocks": [[50, 9.0, 30]]}, "shift must be 9 with noise of 9, got 30"),  # sums could wrap around
        ({"blocks": [[50, 9.0, 41]]}, "shift, which must be a whole number from 0 to 40, got 41"),
        ({"blocks": [[50, 9.0, -1]]}, "shift, which must be a whole number"),
        ({"blocks": [[50, 1e-12, 40]]}, "every part of the noise must be 4 or more"),
        ({"blocks": [[50, 1e30, 0]]}, "noise must be an integer that float64 holds"),
        ({"blocks": [[50, -9.0, 9]]}, "sd, which must be a float of at least 0"),
        ({"blocks": [[50, "9", 9]]}, "sd, which must be a float of at least 0"),
        ({"blocks": [[50, 9, 9]]}, "sd, which must be a float of at least 0"),
        ({"blocks": [[50, True, 9]]}, "sd, which must be a float of at least 0"),
        ({"blocks": [[2**40, 9.0, 9]]}, "length, which must be a whole number from 1 to"),
        ({"blocks": [[2**28, 9.0, 9]] * 2}, "blocks must be of at most 268435456 entries"),
        ({"blocks": [[0, 9.0, 9]]}, "length, which must be a whole number from 1 to"),
        ({"blocks": [[50, 9.0]]}, "blocks must have length, sd and shift of each"),
        ({"blocks": []}, "blocks must be a list of 1 to 256"),
        ({"blocks": [[1, 0.0, 0]] * 257}, "blocks must be a list of 1 to 256"),
        ({"before": "00" * 32}, "it does not follow the total before"),
        ({"name": ""}, "name must not be empty"),
        ({"name": 5}, "name must be a string"),
        ({"session": "00" * 32}, "it is of another session"),
        ({"more": 1}, "its header must have name, blocks, before"),
    ],
)
def test_announcements_that_lie_are_refused_before_anything_is_spent(fields, message):
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/announced")
    board = {**study.board, "00/announced": changed(study, "00/announced", **fields)}
    with pytest.raises(SecureError, match=f"00/announced must be what the coordinator published.*{message}"):
        study.reply(0, board)
    assert study.paid == []


def test_an_announcement_of_another_length_is_refused():
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/announced")
    board = {**study.board, "00/announced": changed(study, "00/announced", blocks=[[49, 9.0, 9]])}
    with pytest.raises(
        SecureError, match=r"must be the next one of the fit, 'gram' of 50 numbers, got 'gram' of 49"
    ):
        study.reply(0, board)


def test_an_owner_that_expects_another_sum_makes_and_sends_nothing(monkeypatch):
    study = Study(secure_roster(5, least=4), NOISY)
    study.run(until="00/announced")
    monkeypatch.setattr("fedpca.secure.noise_shares.noise", None)  # the length may be a lie, too
    study.sums[0] = Sum("gram", ((50, 10.0),))
    with pytest.raises(SecureError, match="a standard deviation of 10, and 9 was announced"):
        study.reply(0, dict(study.board))
    assert "00/masked/000" not in study.sent(0)


def test_no_sum_has_keys_of_another():
    study = Study(secure_roster(3), EXACT)
    study.run()
    before = digest(study.board["00/total"])
    study.board["01/announced"] = changed(study, "00/announced", before=before)
    assert study.reply(0) == {}  # nothing follows
    study.sums.append(study.sums[0])
    study.states[0] = OwnerMemory(study.secrets[0], study.sent(0))  # of one that has not ended
    with pytest.raises(SecureError, match="the session has keys for 1 sums, and this is one more"):
        study.reply(0, dict(study.board))
    del study.board["01/announced"]
    with pytest.raises(SecureError, match="sum 1, 'gram', cannot be announced: the session has keys for 1"):
        study.advance(board=dict(study.board))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 1}, "rows or noise are not those of the sum"),
        ({"noise": 0.5}, "rows or noise are not those of the sum"),
        ({"opened": [3, 1]}, "opened must have members in order, each once"),
        ({"opened": [9]}, "opened must be a whole number from 0 to 3"),
        ({"opened": 5}, "opened must be a list"),
        ({"opened": [0, True, 2, 3]}, "opened must be a whole number"),
        ({"opened": [0, 1.0, 2, 3]}, "opened must be a whole number"),
        ({"rows": 46.0}, "rows must be a whole number"),
        ({"present": "00" * 32}, "it states another present than is on the board"),
    ],
)
def test_totals_that_contradict_the_board_are_refused(finished, fields, message):
    study = Study(finished.roster, finished.sums)
    study.run(until="00/total")
    study.board["00/total"] = changed(study, "00/total", **fields)
    with pytest.raises(SecureError, match=f"00/total must be what the coordinator.*{message}"):
        study.shown.total(0)
    study.board["00/total"] = study.board["00/total"][:-8]
    with pytest.raises(SecureError, match="00/total must be what the coordinator"):
        study.shown.total(0)


def test_owners_that_were_shown_other_totals_are_not_summed_with_the_rest():
    study = Study(secure_roster(3), [Sum("a", ((3, 9.0),)), Sum("b", ((3, 9.0),))])
    study.run(until="01/announced")
    lie = bytearray(study.board["00/total"])
    lie[-1] ^= 1
    board = {**study.board, "00/total": bytes(lie)}
    with pytest.raises(SecureError, match="it does not follow the total before"):
        study.reply(0, board)
    board["01/announced"] = changed(study, "01/announced", before=digest(bytes(lie)))
    study.board.update(study.reply(0, board))
    study.board.update(study.reply(1))
    study.board.update(study.reply(2))
    study.advance()
    assert "it states another announced" in study.coordinator.problems["01/masked/000"]


def test_boards_of_nonsense_are_refused():
    study = Study(secure_roster(3), EXACT)
    study.run()
    for name in ("keyring", "members", "00/announced", "00/present"):
        for contents in (b"", b"\n", b"{}\n", b"null\n", study.board[name] + b" ", b"9" * 5000 + b"\n"):
            with pytest.raises(SecureError, match=f"{name} must be what the coordinator published"):
                study.reply(0, {**relevant(study.board, 0), name: contents})
    assert study.reply(0, {**relevant(study.board, 0), "99/strange/000x": b"", "notes": b""}) == {}


def test_entries_of_json_are_what_they_seem():
    """One line, one spelling: nobody reads a header in two ways."""
    for text in ('{"a": 1}\n', '{"b":1,"a":2}\n', '{"a":NaN}\n', '{"a":1.00}\n', '{"a":1,"a":2}\n', '"a"\n'):
        with pytest.raises(ValueError, match="canonical JSON"):
            header(text.encode())
    assert header(b'{"a":[1.5,"\xc3\xa9"]}\nrest')[0] == json.loads('{"a":[1.5,"\u00e9"]}')
