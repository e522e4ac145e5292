"""Vectors of secure sums: the library and a second implementation agree on all of them, good and bad."""

import base64
import json
from types import SimpleNamespace

import make_secure_vectors
import numpy as np
import pytest
import secure_reference as reference

from fedpca.errors import SecureError
from fedpca.privacy.noise import ExactNoise
from fedpca.secure import Coordinator, Owner, Record, Secrets, Terms, masks, noise_shares, shamir
from fedpca.secure.noise_shares import Levels
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Member, Roster

FOLDER = make_secure_vectors.FOLDER
SESSIONS = ("all-present", "drop-outs", "levels", "fewest", "without-noise")


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def decoded(contents):
    return base64.b64decode(contents)


PRIMITIVES, BAD = load("primitives"), load("bad")


class Scene:
    """A session's vector, as both implementations read it."""

    def __init__(self, vector):
        self.board = {name: decoded(contents) for name, contents in vector["board"].items()}
        self.owners, self.sums, self.roster_hash = vector["owners"], vector["sums"], vector["roster_hash"]
        found = vector["roster"]
        members = [Member(item["id"], item["key"], item["rows"]) for item in found["members"]]
        self.roster = Roster(found["study"], members, found["settings"])
        self.keys = [make_secure_vectors.signing_key(bytes.fromhex(of["signing_key"])) for of in self.owners]
        self.study = reference.Study(
            found["study"],
            vector["roster_hash"],
            tuple(item["id"] for item in found["members"]),
            tuple(key.public_key().public_bytes_raw() for key in self.keys),
            tuple(item["rows"] for item in found["members"]),
            found["settings"]["least"],
            found["settings"]["colluding"],
            len(self.sums),
        )

    def before(self, name):
        names = list(self.board)
        return {other: self.board[other] for other in names[: names.index(name)]}

    # --- by the reference ---

    def by_reference(self, name, board):
        """The message of this name."""
        session = reference.Session.of(self.study, board["session"])
        kind, index, n = parts(name)
        if index is None:
            if kind == "announced":
                before = board["members" if n == 0 else f"{n - 1:02}/total"]
                a = len(reference.read_members(session, board))
                of_levels = reference.levels(a, self.study.least, self.study.colluding)
                blocks = [
                    [length, sd, reference.shift_of(of_levels, self.study.colluding, sd)]
                    for length, sd in self.sums[n]["blocks"]
                ]
                fields = {"name": self.sums[n]["name"], "blocks": blocks}
                digest = reference.sha256(before).hex()
                return reference.coordinator_message(session, before=digest, **fields), {}
            return getattr(reference, kind)(session, board, *([] if n is None else [n]))
        of = self.owners[index]
        sums = tuple({key: bytes.fromhex(value) for key, value in item.items()} for item in of["sums"])
        secrets = reference.Secrets(bytes.fromhex(of["enc"]), sums)
        owner = reference.Owner(session, index, self.keys[index], of["rows"], secrets)
        if kind == "keys":
            return owner.keys()
        if kind == "masked":
            return owner.masked(board, n, self.sums[n]["vectors"][index], self.expected(n))
        return getattr(owner, kind)(board, *([] if n is None else [n]))

    def expected(self, n):
        return [self.sums[n]["name"], self.sums[n]["blocks"]]

    # --- by the library ---

    def owner(self, index, board):
        of = self.owners[index]
        sums = [
            {"surplus" if name == "chain" else name: value for name, value in item.items()}
            for item in of["sums"]
        ]
        secrets = Secrets.from_json({"enc": of["enc"], "sums": sums})
        sent = {name: contents for name, contents in board.items() if parts(name)[1] == index}
        key = SigningKey(self.keys[index])
        return Owner(self.roster, board["session"], key, of["rows"], secrets, sent)

    def reply(self, index, board):
        """Everything that an owner sends, as a study makes it: it reads all totals before the next sum."""
        owner = self.owner(index, board)

        def vector(announced):
            totals = Record(owner.session, board).totals
            blocks = [[length, sd] for length, sd, _ in announced.blocks]
            if [announced.name, blocks] != self.expected(len(totals)):
                raise SecureError("another sum was announced than follows")
            return np.array(self.sums[announced.number]["vectors"][index])

        return owner.reply(board, vector)

    def publish(self, board):
        """What the coordinator publishes, and what it finds wrong."""
        coordinator = Coordinator(self.roster, board["session"])

        def announce():
            n = sum(name.endswith("/total") for name in board)
            if n == len(self.sums):
                return None
            return SimpleNamespace(name=self.sums[n]["name"], blocks=self.sums[n]["blocks"])

        return coordinator.next(board, closing=True, announce=announce), coordinator.problems


def parts(name):
    """Kind, index and number of the sum in a board name; None where there is none."""
    words = name.split("/")
    n = int(words.pop(0)) if words[0].isdigit() else None
    return words[0], int(words[1]) if len(words) > 1 else None, n


@pytest.fixture(scope="module")
def scenes():
    return {name: Scene(load(name)) for name in SESSIONS}


@pytest.mark.slow
def test_the_command_makes_the_vectors_again():
    for name, made in make_secure_vectors.vectors().items():
        assert make_secure_vectors.text(made) == (FOLDER / f"{name}.json").read_text(encoding="utf-8"), name


# --- good ones ---


@pytest.mark.parametrize("name", SESSIONS)
def test_the_roster_has_the_hash_of_its_vector(scenes, name):
    assert scenes[name].roster.hash == scenes[name].roster_hash
    assert Terms.of(scenes[name].roster).threshold == load(name)["threshold"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SESSIONS)
def test_the_reference_makes_every_message(scenes, name):
    scene = scenes[name]
    for place in list(scene.board)[1:]:
        made = scene.by_reference(place, scene.before(place))
        if parts(place)[1] is None:
            made, problems = made
            assert problems == {}
        assert made == scene.board[place], place


@pytest.mark.slow
@pytest.mark.parametrize("name", SESSIONS)
def test_the_library_makes_every_message(scenes, name):
    scene = scenes[name]
    for place in list(scene.board)[1:]:
        board, (_, index, _) = scene.before(place), parts(place)
        if index is None:
            made, problems = scene.publish(board)
            assert problems == {}
        else:
            made = scene.reply(index, board)
        assert made[place] == scene.board[place], place


@pytest.mark.parametrize("name", SESSIONS)
def test_totals_are_the_sums_of_those_present_and_their_noise(scenes, name):
    """Integers that no protocol is needed for: what owners put in, and the parts they kept."""
    scene = scenes[name]
    session = reference.Session.of(scene.study, scene.board["session"])
    a = len(reference.read_members(session, scene.board))
    of_levels = reference.levels(a, scene.study.least, scene.study.colluding)
    for n in range(len(scene.sums)):
        header, values = reference.read_total(session, scene.board, n)
        there = reference.read_present(session, scene.board, n)
        blocks = reference.read_announced(session, scene.board, n)["blocks"]
        shifts = np.repeat([shift for *_, shift in blocks], [length for length, *_ in blocks])
        expected = sum(np.array(scene.sums[n]["vectors"][i]) for i in there) << shifts
        kept = reference.kept(of_levels, len(there))
        for i in there:
            first = bytes.fromhex(scene.owners[i]["sums"][n]["chain"])
            last = kept if i in header["opened"] else len(of_levels) - 1
            which = range(last + 1)
            expected += np.array(reference.parts_of(blocks, of_levels, scene.study.colluding, first, which))
        assert list(values) == list(expected)


# --- single parts ---


def test_key_agreement_and_derivation():
    agreed, derived = PRIMITIVES["x25519"], PRIMITIVES["hkdf"]
    private, public = bytes.fromhex(agreed["private"]), bytes.fromhex(agreed["public"])
    assert masks.exchange(private, public).hex() == agreed["shared"]
    args = (bytes.fromhex(derived[name]) for name in ("key", "salt", "info"))
    assert masks.derive(*args).hex() == derived["out"]


def test_keystream():
    found = PRIMITIVES["keystream"]
    words = np.zeros(len(found["words"]), dtype=np.uint64)
    masks.add_masks(words, [(bytes.fromhex(found["key"]), True)])
    assert words.tolist() == found["words"]


@pytest.mark.parametrize("found", PRIMITIVES["shares"], ids=lambda found: found["secret"][:4])
def test_shares(found):
    coefficients = shamir.coefficients(bytes.fromhex(found["coefficients"]), b"seed", found["threshold"] - 1)
    secret = bytes.fromhex(found["secret"])
    shares = [shamir.deal(secret, coefficients, j) for j in range(len(found["shares"]))]
    assert [share.hex() for share in shares] == found["shares"]
    assert [shamir.commitment(share).hex() for share in shares] == found["commitments"]
    for chosen in ([0, 1, 2, 3], [5, 2, 0, 4]):
        assert shamir.combine({j: shares[j] for j in chosen}) == secret
        assert reference.secret_of({j: shares[j] for j in chosen}) == secret


def test_chain():
    found = PRIMITIVES["chain"]
    first = bytes.fromhex(found["first"])
    elements = [noise_shares.element_after(first, k).hex() for k in range(len(found["elements"]))]
    assert elements == found["elements"]


def levels_of(found):
    terms = SimpleNamespace(least=found["least"], colluding=found["colluding"])
    return Levels.of(terms, found["members"])


@pytest.mark.parametrize("found", PRIMITIVES["levels"], ids=lambda found: str(found["members"]))
def test_levels(found):
    assert list(levels_of(found).sizes) == found["levels"]


@pytest.mark.parametrize("found", PRIMITIVES["deviations"], ids=lambda found: str(found["sd"]))
def test_deviations_of_parts(found):
    levels = levels_of(found)
    assert levels.shift(found["sd"]) == found["shift"]
    assert levels.sds(found["sd"], found["shift"]) == found["sds"]


@pytest.mark.parametrize("found", PRIMITIVES["noise"], ids=lambda found: str(found["sd"]))
def test_rounded_gaussians(found):
    drawn = ExactNoise(bytes.fromhex(found["key"])).entries(
        (found["label"],), len(found["entries"]), found["sd"]
    )
    assert drawn.tolist() == found["entries"]


def test_one_of_the_gaussians_needs_more_than_64_bits(monkeypatch):
    found, decided = PRIMITIVES["noise"][-1], []
    original = ExactNoise._bytes

    def counted(self, label, length):
        decided.append(label)
        return original(self, label, length)

    monkeypatch.setattr(ExactNoise, "_bytes", counted)
    ExactNoise(bytes.fromhex(found["key"])).entries((found["label"],), 1, found["sd"])
    assert decided == [(found["label"],), (found["label"], 2**63, 0)]


# --- bad ones ---


def changed(scenes, case):
    scene = scenes[case["session"]]
    board = scene.before(case["before"])
    for name, contents in case["change"].items():
        board.pop(name, None)
        if contents is not None:
            board[name] = decoded(contents)
    return scene, board


OF_OWNERS = [case for case in BAD if case["who"] != "coordinator"]
OF_COORDINATORS = [case for case in BAD if case["who"] == "coordinator"]


@pytest.mark.parametrize("case", OF_OWNERS, ids=lambda case: case["about"])
def test_owners_refuse_bad_boards(scenes, case):
    scene, board = changed(scenes, case)
    with pytest.raises(reference.Refused):
        scene.by_reference(case["refused"], board)
    try:
        sent = scene.reply(case["who"], board)
    except SecureError:
        sent = {}
    assert case["refused"] not in sent


@pytest.mark.parametrize("case", OF_OWNERS, ids=lambda case: case["about"])
def test_the_same_boards_unchanged_are_answered(scenes, case):
    scene = scenes[case["session"]]
    board = scene.before(case["before"])
    assert case["refused"] not in board
    assert case["refused"] in scene.reply(case["who"], board)
    assert scene.by_reference(case["refused"], board)


@pytest.mark.parametrize("case", OF_COORDINATORS, ids=lambda case: case["about"])
def test_coordinators_name_bad_messages(scenes, case):
    scene, board = changed(scenes, case)
    published, problems = scene.publish(board)
    expected = {name: decoded(contents) for name, contents in (case["expected"] or {}).items()}
    assert published == expected
    assert list(problems) == [case["refused"]]
    if case["expected"] is None:
        with pytest.raises(reference.Refused):
            scene.by_reference(case["before"], board)
    else:
        found, problems = scene.by_reference(case["before"], board)
        assert {case["before"]: found} == expected
        assert list(problems) == [case["refused"]]
