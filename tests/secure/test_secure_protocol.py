"""Secure sums: totals are the plain sums of those present, bit for bit, whoever drops out when."""

import hashlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from secure_sessions import KEYS, Study, Sum, coordinator_of, drawn, owner_of, secure_roster

from fedpca import Roster
from fedpca.errors import SecureError
from fedpca.privacy.noise import ExactNoise
from fedpca.secure import NoiseBlock, OwnerMemory, Secrets, SecureSums, Terms, masks, relevant, shamir
from fedpca.secure.noise_shares import Levels
from fedpca.secure.owner import shifted
from fedpca.trust import Member

# --- what a sum must be, computed again here ---


def levels_by_hand(terms, members):
    sizes = [members]
    while sizes[-1] > terms.least:
        enough = [
            size
            for size in range(terms.least, sizes[-1])
            if size - terms.colluding >= Fraction(10, 11) * (sizes[-1] - terms.colluding)
        ]
        sizes.append(min(enough, default=sizes[-1] - 1))
    return sizes


def noise_by_hand(study, number, index, n_parts):
    """The first parts of an owner's noise in a sum, added up."""
    announced, terms = study.shown.announced(number), study.shown.terms
    sizes = levels_by_hand(terms, len(study.shown.members))
    variances = [1 / (size - terms.colluding) for size in sizes]
    fractions = [variances[0]] + [variances[k] - variances[k - 1] for k in range(1, len(sizes))]
    element = Secrets.new(len(study.sums), drawn(f"{study.seed} {index}")).sums[number].surplus
    total = np.zeros(announced.length, dtype=np.int64)
    for fraction in fractions[:n_parts]:
        source = ExactNoise(hashlib.sha256(b"fedpca secure noise\n" + element).digest())
        drawn_parts = [
            source.entries((b,), length, sd * math.sqrt(fraction) * 2**shift) if sd else np.zeros(length)
            for b, (length, sd, shift) in enumerate(announced.blocks)
        ]
        total += np.concatenate(drawn_parts).astype(np.int64)
        element = hashlib.sha256(b"fedpca secure surplus\n" + element).digest()
    return total


def check_total(study, number):
    """A total is the sum over those present and of the noise that they have kept."""
    total, present = study.shown.total(number), list(study.shown.present(number))
    terms = study.shown.terms
    sizes = levels_by_hand(terms, len(study.shown.members))
    kept = next(k for k, size in enumerate(sizes) if size <= len(present)) + 1
    opened = json.loads(study.board[f"{number:02}/total"].split(b"\n")[0])["opened"]
    shifts = np.repeat([block.shift for block in total.blocks], [block.length for block in total.blocks])
    expected, variance = np.zeros(len(shifts), dtype=np.int64), 0.0
    for index in present:
        n_parts = kept if index in opened else len(sizes)
        expected += (study.x[number][index] << shifts) + noise_by_hand(study, number, index, n_parts)
        variance += 1 / (sizes[n_parts - 1] - terms.colluding)
    np.testing.assert_array_equal(total.words, expected)
    np.testing.assert_array_equal(total.values, expected / 2.0**shifts)
    assert total.owners == tuple(terms.ids[index] for index in present)
    assert len(present) >= terms.least
    assert total.rows == sum(10 + index for index in present)
    assert total.noise == pytest.approx(variance)
    assert total.noise >= len(present) / (len(present) - terms.colluding) - 1e-12
    return total


def random_study(seed):
    rng = np.random.default_rng(seed)
    n_members = int(rng.integers(3, 8))
    colluding = int(rng.integers(1, max(2, n_members - 3)))
    threshold = (n_members + colluding) // 2 + 1
    least = int(rng.integers(threshold, n_members + 1))
    sds = [0.0] if seed % 3 == 0 else [3.0, 1000.0, 2.0**30]
    sums = [
        Sum(f"sum {number}", tuple((int(rng.integers(1, 40)), float(rng.choice(sds))) for _ in range(2)))
        for number in range(int(rng.integers(1, 4)))
    ]
    roster = secure_roster(n_members, least=least, colluding=colluding)
    return Study(roster, sums, seed=seed, restart=seed % 5 == 0), rng


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 20 else []) for seed in range(200)]
)
def test_whoever_drops_out_a_total_is_the_plain_sum_of_those_present_or_there_is_none(seed):
    study, rng = random_study(seed)
    lives = rng.geometric(rng.choice([0.005, 0.03, 0.2]), len(study.members)) + rng.integers(0, 12)
    absent = rng.choice([0.0, 0.3])

    def answers(index, state):
        lives[index] -= 1
        if lives[index] == 0:  # killed after it stored its answer, and before it sent it
            study.reply(index)
        return lives[index] > 0 and rng.random() >= absent

    state = study.run(answers)
    shown, terms = study.shown, study.shown.terms
    for number in range(shown.n_totals):
        check_total(study, number)
    assert len(set(study.paid)) == len(study.paid)  # nobody pays twice for a sum
    if state == "done":
        assert shown.n_totals == len(study.sums)
        return
    number = shown.n_totals
    kind, needed = {
        "keys": ("keys/", terms.least),
        "shares": ("shares/", terms.least),
        "agreed": ("agreed/", terms.threshold),
        "masked": (f"{number:02}/masked/", terms.least),
        "signed": (f"{number:02}/signed/", terms.threshold),
        "opened": (f"{number:02}/opened/", terms.threshold),
    }[state]
    if state == "masked" and number and shown.announced(number).lacks_noise:
        needed = len(shown.present(number - 1))  # all of them again
    assert sum(name.startswith(kind) for name in study.board) < needed
    assert f"{number:02}/total" not in study.board


def test_some_patterns_end_and_some_do_not():
    """Else the test above would test little: whoever is needed is there, or not."""
    study, _ = random_study(1)
    assert study.run() == "done"
    study, _ = random_study(1)
    assert study.run(lambda index, state: index < 2) == "keys"


def test_all_present_leave_little_noise_and_a_missing_answer_leaves_more():
    sums = [Sum("gram", ((1000, 50.0),))]
    study = Study(secure_roster(7, least=5), sums)
    study.run()
    assert check_total(study, 0).noise == 7 / 6
    assert np.std(study.shown.total(0).values - sum(study.x[0])) == pytest.approx(
        50 * math.sqrt(7 / 6), rel=0.1
    )
    study = Study(secure_roster(7, least=5), sums)
    study.run(lambda index, state: index != 3 or state != "opened")
    assert check_total(study, 0).noise == pytest.approx(6 / 6 + 1 / 4)


# --- the machines ---


def test_an_owner_repeats_nothing_and_answers_the_same_after_a_restart():
    study = Study(secure_roster(4), [Sum("a", ((30, 7.0),)), Sum("b", ((30, 7.0),))])
    kinds = []
    while study.advance(closing=False) or study.coordinator.state != "done":
        stored = OwnerMemory(study.states[2].secrets, study.sent(2))  # of one that is killed before it stores
        new = study.reply(2)
        assert study.reply(2) == {}
        assert study.owner(2, stored).reply(study.board) == new
        kinds += [name.removesuffix("/002") for name in new]
        for index in study.members:
            study.reply(index)
        for index in study.members:
            study.board.update(study.sent(index))
    of_sums = [f"0{number}/{kind}" for number in (0, 1) for kind in ("masked", "signed", "opened")]
    assert kinds == ["keys", "shares", "agreed", *of_sums]


def test_the_coordinator_says_what_it_collects_and_whom_it_waits_for():
    study = Study(secure_roster(5, least=4), [Sum("gram", ((3, 0.0),))])
    for state in ("keys", "shares", "agreed", "masked", "signed"):
        while study.advance(closing=False):
            pass
        for index in (0, 1, 2):
            study.board.update(study.reply(index))
        assert study.advance(closing=False) == study.advance(closing=True) == {}  # three are too few
        assert study.coordinator.state == state
        assert study.coordinator.waiting_for == ["owner-03", "owner-04"]
        assert not study.coordinator.problems
        for index in (3, 4):
            study.board.update(study.reply(index))
    assert study.advance(closing=False) == study.advance(closing=True) == {}
    assert study.coordinator.state == "opened"
    assert study.coordinator.waiting_for == ["owner-00", "owner-01", "owner-02"]
    assert study.run() == "done"
    assert study.coordinator.waiting_for == []
    check_total(study, 0)


def test_an_owner_needs_little_of_a_board():
    study = Study(secure_roster(3), [Sum("gram", ((3, 0.0),))])
    study.run()
    kept = relevant(study.board, 1)
    left_out = set(study.board) - set(kept)
    assert left_out == {"00/masked/000", "00/masked/001", "00/masked/002", "00/opened/000", "00/opened/002"}
    assert study.reply(1) == {}


def test_secrets_of_a_sum_are_erased_when_it_is_answered():
    study = Study(secure_roster(3), [Sum("a", ((3, 4.0),)), Sum("b", ((3, 4.0),))], restart=True)
    study.run(until="01/announced")
    left = [state.secrets.sums for state in study.states]
    assert all(first is None and second is not None for first, second in left)
    assert study.run() == "done"
    assert all(state.secrets.sums == (None, None) for state in study.states)
    check_total(study, 1)
    with pytest.raises(SecureError, match="sum 0 has ended here, and its secrets are erased"):
        study.states[0].secrets.of_sum(0)


def test_secrets_survive_json_and_are_not_shown():
    secrets = Secrets.new(3).without_sum(1)
    assert Secrets.from_json(json.loads(json.dumps(secrets.to_json()))) == secrets
    assert secrets.enc.hex() not in repr(secrets)
    assert len({secrets.enc, *secrets.sums[0], *secrets.sums[2]}) == 9
    assert Secrets.new(1) != Secrets.new(1)


def test_an_owner_that_refuses_never_opens():
    study = Study(secure_roster(4, least=3), [Sum("gram", ((3, 0.0),))])
    study.run(lambda index, state: state != "signed")
    assert set(study.refuse(2)) == {"00/refused/002"}
    assert study.refuse(2) == {}
    assert study.run() == "done"
    assert "00/opened/002" not in study.board
    assert "00/signed/002" not in study.board
    with pytest.raises(SecureError, match="00/opened/001 was sent; the sum may be known"):
        study.refuse(1)


# --- the parts ---


def _is_prime(number):
    """By Miller and Rabin, with so many bases that a composite passes with probability 4^-64."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    rng = np.random.default_rng(0)
    for _ in range(64):
        power = pow(int.from_bytes(rng.bytes(40), "big") % (number - 3) + 2, odd, number)
        if power not in (1, number - 1) and all(
            (power := power * power % number) != number - 1 for _ in range(twos - 1)
        ):
            return False
    return True


def test_shares_are_over_the_first_prime_above_all_secrets():
    assert [number for number in range(2**256, shamir.PRIME + 1) if _is_prime(number)] == [shamir.PRIME]


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_any_threshold_shares_give_the_secret_and_fewer_give_others(secret):
    rng = np.random.default_rng(0)
    for threshold in (2, 3, 7):
        coefficients = shamir.coefficients(b"seed", b"label", threshold - 1)
        shares = {index: shamir.deal(secret, coefficients, index) for index in (0, 1, 2, 5, 9, 50, 99, 999)}
        for _ in range(5):
            chosen = rng.permutation(list(shares))[:threshold]
            assert shamir.combine({int(index): shares[index] for index in chosen}) == secret
            fewer = {int(index): shares[index] for index in chosen[1:]}
            assert shamir.combine(fewer) != secret
        assert all(len(share) == shamir.SHARE for share in shares.values())


def test_shares_of_no_secret_are_told():
    shares = {index: (2**256 + 5).to_bytes(33, "big") for index in (1, 2)}  # a constant above all secrets
    assert shamir.combine(shares) is None


@pytest.mark.parametrize("length", [1, 7, 2**14 - 1, 2**14, 2**14 + 1, 40_000])
def test_masks_are_words_of_chacha20(length):
    keys = [bytes([number]) * 32 for number in range(3)]
    words = np.arange(length, dtype=np.uint64)
    masks.add_masks(words, [(keys[0], True), (keys[1], False), (keys[2], True)])
    streams = [
        np.frombuffer(Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * length)), "<u8")
        for key in keys
    ]
    expected = np.arange(length, dtype=np.uint64) + streams[0] - streams[1] + streams[2]
    np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("n_members", [3, 4, 7, 10, 30, 100])
@pytest.mark.parametrize("colluding", [1, 2, 5])
def test_honest_owners_always_keep_the_noise_of_one_pool(n_members, colluding):
    if colluding > n_members - 2:
        return
    ids = tuple(map(str, range(n_members)))
    threshold = (n_members + colluding) // 2 + 1
    for least in {threshold, (threshold + n_members) // 2, n_members}:
        terms = Terms(ids, least, colluding)
        for members in range(least, n_members + 1):
            levels = Levels.of(terms, members)
            assert list(levels.sizes) == levels_by_hand(terms, members)
            assert sum(levels.fractions) == pytest.approx(1 / (least - colluding))
            for present in range(least, members + 1):
                kept = sum(levels.fractions[: levels.reached(present) + 1])
                assert (present - colluding) * kept >= 1 - 1e-12  # of honest owners only
                needed = 1 / (present - colluding)
                next_larger = 1 / (present - 1 - colluding) if present > least else needed
                assert kept <= max(1.1 * needed, next_larger, needed) + 1e-12
                assert levels.variance(present, present) == pytest.approx(present * kept)
                assert levels.variance(present, 0) == pytest.approx(present / (least - colluding))


def test_noise_is_shifted_until_its_parts_are_large():
    levels = Levels((10, 9, 8, 7, 6), 1)
    for sd in (1e-3, 1.0, 30.0, 1e5, 1e9):
        shift = levels.shift(sd)
        assert min(levels.sds(sd, shift)) >= 2**10
        assert shift == 0 or min(levels.sds(sd, shift - 1)) < 2**10
    assert levels.shift(0.0) == 0


def test_entries_that_could_wrap_around_are_refused():
    blocks = (NoiseBlock(2, 0.0, 0), NoiseBlock(1, 0.0, 20))
    assert shifted([3.0, -4.0, 5.0], blocks).view(np.int64).tolist() == [3, -4, 5 << 20]
    assert shifted(np.array([2**62 - 2**10, -5, 1 - 2**41]), blocks).view(np.int64)[0] == 2**62 - 2**10
    for bad in ([2.0**62, 0, 0], [0, 0, 2.0**42], [0, 0.5, 0], [np.nan, 0, 0], [0, -np.inf, 0]):
        with pytest.raises(SecureError, match=r"whole numbers below 2.*smaller bound, or fewer rows"):
            shifted(bad, blocks)
    with pytest.raises(SecureError, match=r"a sum of 3 entries needs as many integers, got shape \(2,\)"):
        shifted([1, 2], blocks)


# --- terms ---


def test_terms_follow_from_the_roster():
    assert Terms.of(secure_roster(7, least=5)) == Terms(tuple(f"owner-{i:02}" for i in range(7)), 5, 1)
    assert [Terms.of(secure_roster(n)).threshold for n in (3, 4, 5, 7, 10)] == [3, 3, 4, 5, 6]
    assert Terms.of(secure_roster(10, colluding=3)).least == 7
    assert SecureSums().terms(list("abcde")) == Terms(tuple("abcde"), 4, 1)


@pytest.mark.parametrize(
    ("n_members", "settings", "message"),
    [
        (2, {}, "3 to 1000 members, got 2"),
        (5, {"least": 3}, "least must be from 4 to 5, for 5 members of whom 1 may collude, got least=3"),
        (5, {"least": 6}, "least must be from 4 to 5"),
        (5, {"colluding": 4}, "colluding must be at most 3 of 5 members, got colluding=4"),
    ],
)
def test_terms_that_are_not_safe_are_refused(n_members, settings, message):
    with pytest.raises(ValueError, match=message):
        Terms.of(secure_roster(n_members, **settings))


def test_a_roster_that_is_not_of_a_secure_study_is_refused():
    roster = Roster("study-1", [Member("a", KEYS[0].public)], {"rank": 2})
    with pytest.raises(ValueError, match=r"must have `colluding` in .settings.*--set colluding=1"):
        Terms.of(roster)
    with pytest.raises(ValueError, match="must have `colluding`"):
        coordinator_of(roster, b"", [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": 3}, "with least must have colluding"),
        ({"largest": 1.0}, "with largest must have colluding"),
        ({"colluding": 0}, "colluding must be at least 1"),
        ({"colluding": 1.5}, "colluding must be a whole number"),
        ({"colluding": 1, "least": "x"}, "least must be a whole number"),
        ({"colluding": 1, "largest": -1.0}, "largest must be a number above 0"),
        (
            {"colluding": 1, "largest": 1.0, "epsilon": 1.0, "delta": 1e-5},
            "or largest without privacy, not both",
        ),
    ],
)
def test_settings_of_secure_sums_are_checked(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Roster("study-1", [], settings)


@pytest.mark.parametrize("arguments", [{"least": 0}, {"colluding": 0}, {"largest": 0}, {"largest": math.inf}])
def test_secure_sums_are_checked(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SecureSums(**arguments)
    with pytest.raises(TypeError, match=next(iter(arguments))):
        SecureSums(**dict.fromkeys(arguments, "many"))


def test_settings_of_secure_sums_survive_the_file(tmp_path):
    roster = secure_roster(5, least=4, largest=10)
    roster.save(tmp_path / "roster.toml")
    assert Roster.load(tmp_path / "roster.toml") == roster
    assert dict(roster.settings)["largest"] == 10.0


def test_an_owner_that_is_no_member_is_told():
    roster = secure_roster(3)
    with pytest.raises(ValueError, match="is that of no member"):
        owner_of(roster, Study(roster, []).session, 9, 10, Secrets.new(1), {})
