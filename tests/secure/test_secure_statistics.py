"""What a coordinator sees, with the secrets of colluding owners: nothing but the sum, and enough noise on it.

Every entry of a sum has masks and noise of its own, so that one session with many entries is as many runs.
"""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from secure_sessions import Study, Sum, coordinator_of, secure_roster

from fedpca.auditing.distinguish import distinguish
from fedpca.privacy.calibration import epsilon_of, mu_of
from fedpca.secure import CheckedBoard, Session, masks, noise_shares, shamir, wire
from fedpca.secure.noise_shares import Levels

UNLIKELY = 1e-5
ENTRIES = 20_000
COLLUDER = 0


def session_of(x, sd=0.0, seed=0, **settings):
    """A session with the same randomness every time; x has shape (owners, entries)."""
    roster = secure_roster(len(x), **settings)
    study = Study(roster, [Sum("sum", ((x.shape[1], sd),))], seed)
    study.session = wire.canonical(
        {
            "format": "fedpca secure session 1",
            "study": roster.study,
            "roster": roster.hash,
            "nonce": hashlib.sha256(f"nonce {seed}".encode()).hexdigest(),
            "opened": "2025-01-02T03:04:05+00:00",
        }
    )
    study.board = {"session": study.session}
    study.coordinator = coordinator_of(roster, study.session, study.sums)
    study.x = [list(x)]
    return Seen(study)


class Seen:
    """A session, and what whoever has all secrets can compute of it."""

    def __init__(self, study):
        self.study = study
        self.secrets = list(study.secrets)  # a study erases its own

    def run(self, **answers):
        self.study.run(**answers)
        return self

    @property
    def shown(self):
        return CheckedBoard(Session(self.study.roster, self.study.session), self.study.board)

    @property
    def total(self):
        """Words, and by how much they are shifted."""
        found = self.shown.total(0)
        return found.words.astype(np.int64), found.blocks[0].shift

    def words(self, index):
        """What an owner has uploaded."""
        message = (
            self.study.board.get(f"00/masked/{index:03}") or self.study.sent(index)[f"00/masked/{index:03}"]
        )
        _, payload = wire.header(message)
        return np.frombuffer(bytes(payload[:-64]), dtype="<u8").copy()

    def without_pairs(self, words, index, others):
        """Less the masks between an owner and others."""
        announced = bytes.fromhex(self.shown.announced(0).digest)
        salt = self.shown.session.salt
        private = self.secrets[index].sums[0].key
        for other in others:
            public = masks.public_key(self.secrets[other].sums[0].key)
            key = masks.pair_key(private, public, salt, announced, index, other)
            masks.add_masks(words, [(key, index > other)])
        return words

    def without_self(self, words, index, seed):
        announced = bytes.fromhex(self.shown.announced(0).digest)
        key = masks.self_key(seed, self.shown.session.salt, announced, index)
        masks.add_masks(words, [(key, False)])
        return words

    def noise_left(self, index):
        """Of an owner, in the total."""
        shown = self.shown
        blocks, levels = shown.announced(0).blocks, shown.levels
        first = levels.first_surplus(len(shown.present(0)))
        chain = self.secrets[index].sums[0].surplus
        noise = noise_shares.noise(blocks, levels, chain, 0)
        if first is not None and f"00/opened/{index:03}" in self.study.board:
            noise -= noise_shares.noise(blocks, levels, noise_shares.element_after(chain, first), first)
        return noise.view(np.int64)


def how_uniform(words):
    """The probability that uniform words have bytes so uneven."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue


# --- uploads ---


@pytest.fixture(scope="module")
def zeros():
    """Five owners who add nothing but masks."""
    return session_of(np.zeros((5, ENTRIES), dtype=np.int64)).run()


def test_every_upload_is_uniform(zeros):
    for index in range(5):
        assert how_uniform(zeros.words(index)) > UNLIKELY


def test_uploads_of_some_owners_are_uniform_together(zeros):
    """Also with the masks that colluding owners know taken off."""
    for some in ([1, 2], [2, 4], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4]):
        words = np.zeros(ENTRIES, dtype=np.uint64)
        for index in some:
            words += zeros.without_pairs(zeros.words(index), index, [] if index == COLLUDER else [COLLUDER])
        assert how_uniform(words) > UNLIKELY


def test_without_self_masks_the_sum_of_all_is_the_total(zeros):
    """So that what is uniform above is not uniform by mistake."""
    words = np.zeros(ENTRIES, dtype=np.uint64)
    for index in range(5):
        words += zeros.without_self(zeros.words(index), index, zeros.secrets[index].sums[0].seed)
    assert not words.any()


def test_with_fewer_than_threshold_shares_a_self_mask_stays_on(zeros):
    """Of an owner whose step key was opened: all its pair masks are known."""
    owner, threshold = 3, zeros.shown.terms.threshold
    shares = dict(enumerate(pair[0] for pair in zeros.secrets[owner].sums[0].shares(range(5), threshold)))
    fewer = {index: shares[index] for index in range(threshold - 1)}
    others = [index for index in range(5) if index != owner]
    words = zeros.without_pairs(zeros.words(owner), owner, others)
    assert how_uniform(words) > UNLIKELY
    guessed = shamir.combine(fewer) or bytes(32)
    assert how_uniform(zeros.without_self(words.copy(), owner, guessed)) > UNLIKELY
    enough = {**fewer, threshold: shares[threshold]}
    assert not zeros.without_self(words.copy(), owner, shamir.combine(enough)).any()


def test_fewer_than_threshold_shares_are_the_same_for_any_secret():
    """Two of three, together."""
    tables = []
    for secret in (bytes(32), b"\xff" * 32):
        counts = np.zeros(256)
        for number in range(8000):
            polynomial = shamir.coefficients(secret[:1] + number.to_bytes(31, "big"), b"seed", 2)
            first, second = (shamir.deal(secret, polynomial, receiver) for receiver in (0, 4))
            counts[16 * (first[1] >> 4) + (second[1] >> 4)] += 1
        assert stats.chisquare(counts).pvalue > UNLIKELY
        tables.append(counts)
    assert stats.chi2_contingency(np.array(tables)).pvalue > UNLIKELY


# --- two inputs with the same sum ---


def view(values, seed):
    """What the coordinator has with the secrets of one owner, of five, the last of whom it calls late.

    Statistics of every entry, by name: what is left of each honest upload when every mask that is known is
    taken off, sums of some of these, and the total.
    """
    seen = session_of(np.repeat(np.array(values)[:, None], ENTRIES, axis=1), sd=1000.0, seed=seed)
    study = seen.study

    def advance(closing=True, board=None):
        hidden = {name: item for name, item in study.board.items() if name != "00/masked/004"}
        new = Study.advance(study, closing, hidden)
        study.board.update(new)
        return new

    study.advance = advance
    seen.run()
    assert list(seen.shown.present(0)) == [0, 1, 2, 3]
    left = {4: seen.without_pairs(seen.words(4), 4, range(4))}
    for index in (1, 2, 3):
        words = seen.without_pairs(seen.words(index), index, [COLLUDER, 4])
        left[index] = seen.without_self(words, index, seen.secrets[index].sums[0].seed)
    sums = {f"{i} and {j}": left[i] + left[j] for i, j in ((1, 2), (1, 3), (2, 3), (1, 4))}
    words, _ = seen.total
    honest = left[1] + left[2] + left[3]
    return {**left, **sums, "honest": honest.view(np.int64), "total": words - seen.noise_left(COLLUDER)}


INPUTS = [0, 0, 0, 0, 0], [0, 2**40, -(2**40) - 77, 77, 12345]


def how_different(ours, theirs):
    """The least probability of such differences, of any statistic, if there is none."""
    found = []
    for name in ours:
        high = [stats.ks_2samp(*(item[name].astype(np.float64) for item in (ours, theirs))).pvalue]
        low = [np.bincount(item[name].view(np.uint8)[::8], minlength=256) for item in (ours, theirs)]
        found += [*high, stats.chi2_contingency(np.array(low)[:, np.sum(low, axis=0) > 0]).pvalue]
    return min(found)


@pytest.mark.slow
def test_a_view_shows_no_difference_between_inputs_with_the_same_sum():
    assert how_different(view(INPUTS[0], seed=1), view(INPUTS[1], seed=2)) > UNLIKELY


@pytest.mark.slow
def test_a_view_shows_inputs_whose_sums_differ():
    other = [*INPUTS[1][:3], INPUTS[1][3] + 2000, INPUTS[1][4]]
    assert how_different(view(INPUTS[0], seed=1), view(other, seed=2)) < UNLIKELY


@pytest.mark.slow
def test_self_masks_that_are_known_show_a_late_upload(monkeypatch):
    monkeypatch.setattr(masks, "self_key", lambda *_: bytes(32))

    def late(values, seed):
        words = view(values, seed)[4]
        masks.add_masks(words, [(bytes(32), False)])
        return {"late": words}

    assert how_different(late(INPUTS[0], 1), late(INPUTS[1], 2)) == 0


@pytest.mark.slow
def test_pair_masks_that_are_known_show_every_upload(monkeypatch):
    monkeypatch.setattr(masks, "pair_key", lambda *_: bytes(32))

    def first(values, seed):
        words = view(values, seed)[1]
        masks.add_masks(words, [(bytes(32), False)] * 2)  # those with the second and the third
        return {"first": words}

    assert how_different(first(INPUTS[0], 1), first(INPUTS[1], 2)) == 0


# --- two worlds ---

DELTA = 1e-5
MU = mu_of(8.0, DELTA)
CHANGE = 4096.0  # of a sum, by one row


def audited(**run):
    """Lower bounds on mu of the total alone, and of the view with the colluder's noise; both pass or not."""
    scores = []
    for seed, change in enumerate((0, int(CHANGE))):
        x = np.zeros((5, ENTRIES), dtype=np.int64)
        x[1] += change  # of an honest owner
        seen = session_of(x, sd=CHANGE / MU, seed=seed + 10).run(**run)
        words, shift = seen.total
        # Every entry counts once.
        scores.append([words * 2.0**-shift, (words - seen.noise_left(COLLUDER)) * 2.0**-shift])
    (alone, view), (other_alone, other_view) = scores
    found = []
    for ours, theirs in ((other_alone, alone), (other_view, view)):
        epsilon, mu = distinguish(ours, theirs, DELTA, alpha=1e-4)
        found.append((mu, mu <= MU and epsilon <= epsilon_of(MU, DELTA)))
    return found


def never_masks(index, state):
    return not (index == 4 and state == "masked")


def never_opens(index, state):
    return not (index == 4 and state in ("signed", "opened"))


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "n_present"), [(None, 5), (never_masks, 4)])
def test_total_and_view_keep_their_promise(answers, n_present):
    alone, view = audited(**({} if answers is None else {"answers": answers}))
    assert alone[1]
    assert view[1]
    # Honest owners have exactly the noise that is promised; all of them, a little more.
    assert view[0] > 0.9 * MU
    assert alone[0] < MU * ((n_present - 1) / n_present) ** 0.5


@pytest.mark.slow
def test_a_surplus_that_is_not_opened_is_more_noise():
    _, view = audited(answers=never_opens)
    assert view[1]
    assert view[0] < 0.97 * MU


@pytest.mark.slow
def test_noise_shares_that_forget_who_colludes_are_caught(monkeypatch):
    def fractions(self):
        kept = [1 / size for size in self.sizes]
        return [kept[0], *(after - before for before, after in pairwise(kept))]

    monkeypatch.setattr(Levels, "fractions", property(fractions))
    alone, view = audited()
    assert alone[1]  # the total has enough for one who sees nothing else
    assert not view[1]


@pytest.mark.slow
def test_a_surplus_opened_before_it_is_known_who_is_present_is_caught(monkeypatch):
    """As if all were present, and then one is left out."""
    monkeypatch.setattr(Levels, "reached", lambda self, present: 0)
    _, view = audited(answers=never_masks)
    assert not view[1]


@pytest.mark.slow
def test_noise_shares_that_are_too_small_are_caught(monkeypatch):
    original = Levels.sds
    monkeypatch.setattr(Levels, "sds", lambda self, sd, shift: original(self, 0.8 * sd, shift))
    assert not audited()[1][1]
