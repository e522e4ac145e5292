"""A plan with secure sums announces what a study then has: noise, sums, visits and traffic."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest
from secure_sessions import Study, Sum, secure_roster

from fedpca import Privacy, plan
from fedpca.privacy.search_plan import expected
from fedpca.secure import OwnerMemory, Secrets, SecureSums, relevant
from fedpca.secure.fit import PrivateFit
from fedpca.secure.noise_shares import Levels
from fedpca.secure.planning import SecurePlan, expected_sums

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=2.0, center=None, evaluate=False)


def planned(owners=10, privacy=PRIVACY, n_features=100, **settings):
    terms = {name: settings.pop(name) for name in ("least", "colluding") if name in settings}
    return plan(privacy, n_features, owners=owners, secure=SecureSums(**terms), **settings)


def test_rows_needed_are_those_of_one_pool_and_a_little_more():
    pool, alone = (plan(PRIVACY, 100, owners=owners).rows_needed for owners in (1, 10))
    found = planned(least=6)
    assert isinstance(found, SecurePlan)
    assert found.rows_needed_alone == alone == pytest.approx(sqrt(10) * pool, abs=4)
    assert found.rows_needed == pytest.approx(sqrt(10 / 9) * pool, abs=2)
    assert found.rows_needed_by_least == pytest.approx(sqrt(6 / 5) * pool, abs=2)
    assert (found.noise, found.noise_of_least) == pytest.approx((10 / 9, 6 / 5))
    assert found.noise_edge == pytest.approx(sqrt(10 / 9) * plan(PRIVACY, 100).noise_edge)


def test_what_least_and_colluding_cost():
    usual, careful = planned(), planned(colluding=3)
    assert (usual.least, usual.colluding, usual.threshold) == (6, 1, 6)
    assert (careful.least, careful.threshold) == (7, 7)
    assert careful.noise == pytest.approx(10 / 7)
    assert careful.rows_needed > usual.rows_needed
    demanding = planned(least=10)
    assert demanding.rows_needed_by_least == demanding.rows_needed == usual.rows_needed
    assert demanding.owner.seconds < usual.owner.seconds  # fewer parts of noise
    assert planned(owners=100).noise == pytest.approx(100 / 99)


@dataclass
class Total:
    """The sum over five owners, with its noise, as a secure one would be."""

    name: str
    values: np.ndarray
    rows: int
    noise: float
    owners: tuple[str, ...] = tuple("abcde")


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"bound": 2.0, "center": None, "evaluate": False}, None),
        ({"bound": 30.0, "center": None}, None),
        ({"center": [2.0] * 20}, None),
        ({}, None),
        ({}, "std"),
        ({"center": "pairs", "bound": 30.0}, None),
        ({"mechanism": "sketch"}, None),
    ],
)
def test_the_sums_are_those_that_a_study_takes(settings, scale):
    """Rows whose mean is about as far off as they spread, as a plan takes them to be."""
    privacy = Privacy(**{"epsilon": 4.0, "delta": 1e-6} | settings)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 20)) * np.linspace(3.0, 1.0, 20) + 2.0
    found = planned(5, privacy, 20, n_rows=6000, n_components=2, scale=scale, least=4)
    outlook = expected(privacy, 20, 2, 6000, found.noise, finds_scale=scale is not None)
    fit, taken = PrivateFit(privacy, 20, 2, scale=scale), []
    fit.begin(6000, found.noise)
    while (following := fit.next) is not None:
        sds = np.repeat([sd for _, sd in following.blocks], [length for length, _ in following.blocks])
        noise = sqrt(found.noise) * sds * rng.normal(size=len(sds))
        fit.add(Total(following.name, fit.vector([rows], rng) + noise, 6000, found.noise))
        taken.append(following)
    assert found.sums == tuple(each.name for each in taken)
    assert len(taken) <= found.most_sums == fit.most_sums
    for planned_sum, actual in zip(expected_sums(privacy, 20, 2, outlook), taken, strict=True):
        assert [block.length for block in planned_sum.blocks] == [length for length, _ in actual.blocks]
        sds = [sd for _, sd in actual.blocks]
        assert [block.sd for block in planned_sum.blocks] == pytest.approx(sds, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("least", [5, 8])
def test_traffic_and_visits_are_those_of_a_session(least):
    n_features, owners, rows = 20, 8, 5000
    privacy = Privacy(4.0, 1e-6)
    found = planned(owners, privacy, n_features, n_rows=rows, n_components=2, least=least)
    roster = secure_roster(owners, least=least)
    levels = Levels.of(SecureSums(least=least).terms(list(roster.members)), owners)
    noise = levels.variance(owners, owners)
    outlook = expected(privacy, n_features, 2, rows, noise, finds_scale=False)
    sums = expected_sums(privacy, n_features, 2, outlook)
    study = Study(roster, [Sum(each.name, [block[:2] for block in each.blocks]) for each in sums])
    study.states = [OwnerMemory(Secrets.new(found.most_sums)) for _ in range(owners)]
    visits = 0
    while study.coordinator.state != "done":
        for index in range(owners):
            study.board.update(study.reply(index))
        visits += 1
        while study.advance(closing=False):
            pass
    assert visits == found.visits
    size = lambda messages: sum(map(len, messages.values()))  # noqa: E731
    of_owners = {name: each for index in range(owners) for name, each in study.sent(index).items()}
    received = size(relevant(study.board, 0)) - size(relevant(study.sent(0), 0))
    assert found.owner.sent == pytest.approx(size(study.sent(0)), rel=0.1)
    assert found.owner.received == pytest.approx(received, rel=0.1)
    assert found.coordinator.received == pytest.approx(size(of_owners), rel=0.1)
    assert found.coordinator.sent == pytest.approx(owners * received, rel=0.1)


def test_large_sums_dominate_the_traffic():
    found = planned(10, Privacy(2.0, 1e-6), 784)
    words = 784 * 785 // 2
    assert 8 * words < found.owner.sent < 8.5 * words
    assert found.coordinator.received == 10 * found.owner.sent
    assert found.owner.seconds < found.coordinator.seconds


def test_sums_cannot_wrap_around():
    usual = planned(n_rows=5000).bits
    assert 24 + np.log2(5000) < usual < 45  # products are below 2^24
    assert planned(n_rows=90_000).bits > usual
    assert planned(privacy=Privacy(1e-6, 1e-12, 2.0, center=None, evaluate=False)).bits < 63


def test_advice_says_what_secure_sums_exclude():
    found = planned(least=6)
    assert "They exclude robust merging: a lie cannot be seen in a sum." in found.advice
    assert "if all 10 owners take part" in found.advice
    assert repr(found).startswith("SecurePlan(mu=")
    assert "rows_needed_alone=" in repr(found)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"owners": 2}, "3 to 1000 members, got 2"),
        ({"least": 5}, "least must be from 6 to 10"),
        ({"colluding": 9}, "colluding must be at most 8"),
        ({"privacy": Privacy(1.0, 1e-6, 2.0, releases=3, center=None, evaluate=False)}, "releases=3"),
    ],
)
def test_what_cannot_be_summed_securely_is_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        planned(**settings)


def test_secure_must_be_secure_sums():
    with pytest.raises(TypeError, match="secure must be a SecureSums or None, got 6"):
        plan(PRIVACY, 5, owners=10, secure=6)
