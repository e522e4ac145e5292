"""Vectors of secure sums: the library and a second implementation agree on all of them, good and bad."""

import ast
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import make_secure_vectors
import numpy as np
import pytest
import secure_reference as reference
from secure_scenes import FOLDER, SESSIONS, Scene, decoded, load, parts

from fedpca.errors import SecureError
from fedpca.privacy.noise import ExactNoise
from fedpca.secure import Terms, masks, noise_shares, shamir
from fedpca.secure.noise_shares import Levels

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "secure-protocol.md"
PRIMITIVES, BAD = load("primitives"), load("bad")


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


# --- rules ---


def rules_of_the_page():
    """The first column of the tables in the section of rules."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Rules\n")[1].split("\n## ")[0]
    return Counter(re.findall(r"^\| `([a-z0-9-]+)` \|", section, flags=re.MULTILINE))


def rules_of_the_reference():
    """The names in `require(holds, name)` and `Refused(name)`."""
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    place = {"require": 1, "Refused": 0}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [node.args[place[node.func.id]] for node in calls if getattr(node.func, "id", "") in place]
    return {node.value for node in named if isinstance(node, ast.Constant)}


def test_every_rule_is_on_the_page_and_in_the_reference_and_has_a_bad_vector():
    page = rules_of_the_page()
    assert set(page.values()) == {1}
    assert set(page) == rules_of_the_reference()
    assert set(page) == {case["rule"] for case in BAD}


# --- bad ones ---


def changed(scenes, case):
    scene = scenes[case["session"]]
    if "settings" in case:
        known = load(case["session"])
        roster = {**known["roster"], "settings": case["settings"]}
        scene = Scene({**known, "roster": roster, "roster_hash": case["roster_hash"]})
    if "vector" in case:
        scene = Scene(load(case["session"]))
        _, index, n = parts(case["refused"])
        scene.sums[n]["vectors"][index] = case["vector"]
    board = scene.before(case["before"])
    for name, contents in case["change"].items():
        board.pop(name, None)
        if contents is not None:
            board[name] = decoded(contents)
    return scene, board


def answered(scene, who, refused, board, sent=None):
    """By the library: everything that an owner sends."""
    kind, _, n = parts(refused)
    return scene.refuse(who, board, n) if kind == "refused" else scene.reply(who, board, sent)


def published(scene, board, refused):
    """By the library: what the coordinator publishes, and what it finds wrong."""
    try:
        return scene.publish(board)
    except SecureError as error:  # of what cannot be made good any more; it names who did it
        return {}, {refused: str(error)} if scene.study.ids[parts(refused)[1]] in str(error) else {}


OF_OWNERS = [case for case in BAD if case["who"] != "coordinator"]
OF_COORDINATORS = [case for case in BAD if case["who"] == "coordinator"]


def name_of(case):
    return f"{case['rule']}: {case['about']}"


@pytest.mark.parametrize("case", OF_OWNERS, ids=name_of)
def test_owners_refuse_bad_boards(scenes, case):
    scene, board = changed(scenes, case)
    with pytest.raises(reference.Refused) as refused:
        scene.by_reference(case["refused"], board)
    assert refused.value.rule == case["rule"]
    of_roster = ValueError if case["rule"].startswith("roster-") else SecureError  # as it is read
    try:
        before = scene.before(case["before"]) if case.get("sent") == "before" else None
        sent = answered(scene, case["who"], case["refused"], board, before)
    except (SecureError, of_roster):
        sent = {}
    assert case["refused"] not in sent


@pytest.mark.parametrize("case", OF_OWNERS, ids=name_of)
def test_the_same_boards_unchanged_are_answered(scenes, case):
    scene = scenes[case["session"]]
    board, refused = scene.before(case["before"]), case["refused"]
    assert refused not in board
    if refused in scene.board:
        assert refused in answered(scene, case["who"], refused, board)
        assert scene.by_reference(refused, board)
    else:  # one of a sum that there is not, or of an owner that has answered
        assert case["rule"] in ("announced-number", "refused-opened")


@pytest.mark.parametrize("case", OF_COORDINATORS, ids=name_of)
def test_coordinators_name_bad_messages(scenes, case):
    scene, board = changed(scenes, case)
    expected = {name: decoded(contents) for name, contents in (case["expected"] or {}).items()}
    found, problems = published(scene, board, case["refused"])
    assert found == expected
    assert list(problems) == [case["refused"]]
    if case["expected"] is None:
        with pytest.raises(reference.Refused) as refused:
            scene.by_reference(case["before"], board)
        assert case["rule"] in (refused.value.rule, refused.value.problems.get(case["refused"]))
    else:
        found, problems = scene.by_reference(case["before"], board)
        assert {case["before"]: found} == expected
        assert problems == {case["refused"]: case["rule"]}
