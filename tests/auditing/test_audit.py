"""The audit passes every private path there is. What it catches is in test_audit_mutants.py.

What is audited at random is checked by brute force as well: no pair of rows moves a sum of a private step by
more than its sensitivity, and some pair moves it by that much.
"""

import sys
from dataclasses import replace
from itertools import product
from math import hypot, sqrt

import numpy as np
import pytest
from helpers import scatter_of
from scipy.optimize import minimize

from fedpca import Privacy, PrivatePCA, Subspace, audit
from fedpca.auditing.distinguish import distinguish
from fedpca.auditing.looks import combined
from fedpca.auditing.run import Run
from fedpca.estimators import private
from fedpca.privacy import steps
from fedpca.privacy.accounting import total_mu
from fedpca.privacy.calibration import epsilon_of, mu_of
from fedpca.privacy.clipping import Clipping, Pairing
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.privacy.mechanisms.gram import Gram
from fedpca.privacy.sums import StepSum
from fedpca.privacy.tracker import PrivateTracker
from reproduction.fast_noise import FastNoise

pytestmark = pytest.mark.slow  # all of it together

AUDIT = sys.modules[audit.__module__]
PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=5.0, center=None, evaluate=False)
UNKNOWN = {"center": "private", "bound": "private", "evaluate": True}
MU = mu_of(8.0, 1e-5)
ADJACENCIES = ("replace-one", "zero-out")

SETTINGS = [
    {},
    {"adjacency": "zero-out"},
    {"center": (7.0,)},
    {"evaluate": True},
    {"mechanism": "sketch"},
    {"releases": 3},
    {"releases": 5},
    {"center": "pairs"},
    {"center": "pairs", "bound": "sphere", "adjacency": "zero-out"},
    {"bound": "sphere"},
    {"center": "private"},
    {"bound": "private"},
    UNKNOWN,
    {**UNKNOWN, "adjacency": "zero-out"},
]


@pytest.mark.audit
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_private_path_keeps_its_promise(settings):
    assert audit(replace(PRIVACY, **settings), runs=200).passed


def only(monkeypatch, *names):
    """Let the audit look at these pairs of worlds only."""
    cases = AUDIT.cases
    monkeypatch.setattr(AUDIT, "cases", lambda *args: (case for case in cases(*args) if case.name in names))


@pytest.mark.audit
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_private_scale_keeps_its_promise(monkeypatch, adjacency):
    only(monkeypatch, "many rows", "no center", "scales alone", "stream, scales", "stream, release")
    assert audit(replace(PRIVACY, **UNKNOWN, adjacency=adjacency), scale="std", runs=200).passed


@pytest.mark.audit
def test_the_audit_has_power_it_shows_most_of_what_is_promised(monkeypatch):
    only(monkeypatch, "diagonal")
    result = audit(PRIVACY, runs=4000)
    assert result.passed
    assert result.mu == pytest.approx(MU)
    assert max(finding.mu for finding in result.findings) > 0.7 * MU
    assert "passed" in repr(result)


@pytest.mark.audit
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_of_the_whole_the_audit_shows_most_of_what_is_promised(monkeypatch, adjacency):
    """Steps, release and evaluation together: their squares add up to the promise."""
    only(monkeypatch, "many rows")
    monkeypatch.setattr("fedpca.privacy.exit.ExactNoise", FastNoise)  # rounded, small noise shows less
    whole = audit(replace(PRIVACY, **UNKNOWN, adjacency=adjacency), runs=1000).findings[0]
    assert whole.passed
    assert whole.promised == pytest.approx(MU)
    assert whole.mu > 0.5 * MU


def test_every_step_is_audited(monkeypatch):
    """By itself, in the whole, and in a stream; of every pair, the noises of two sums that follow."""
    monkeypatch.setattr(AUDIT, "distinguish", lambda *args: (0.0, 0.0))
    looks = AUDIT.looks
    monkeypatch.setattr(AUDIT, "looks", lambda case, runs: looks(case, 4))

    def names(scale=None, **settings):
        found = audit(replace(PRIVACY, **UNKNOWN | settings), scale=scale).findings
        assert all(finding.promised > 0 for finding in found)
        return {finding.pair for finding in found}

    in_rounds = {"scales alone", "lengths alone", "spread alone", "mean alone", "many rows", "no center"}
    evaluated = {"evaluation alone", "evaluation of pairs alone"}
    of_stream = {"stream, scales", "stream, lengths and spread", "stream, mean", "stream, release"}
    assert in_rounds | evaluated | of_stream <= names("std", adjacency="zero-out")
    assert {"radius alone", "stream, radius"} <= names(center=None)
    noises = ("lengths and spread", "spread and mean", "mean and release", "release and evaluation")
    paths = {"few rows", "fewer rows, noise of mean and release"}  # pairs at once; a center and the sphere
    assert paths | {f"many rows, noise of {both}" for both in noises} <= names()


def test_a_step_alone_is_audited_where_it_costs_what_the_whole_does():
    cases = {case.name: case for case in AUDIT.cases(Privacy(8.0, 1e-5), None, 3)}
    for name in ("lengths", "spread", "mean", "evaluation", "evaluation of pairs"):
        case = cases[f"{name} alone"]
        block = next(block for block in Run(case, case.ours).blocks if block.name == name)
        assert block.promised == pytest.approx(MU)


def in_rounds_and_evaluated(tracker, rows):
    while not tracker.is_prepared:
        tracker.advance(tracker.step_sum([rows], len(rows)))
    tracker.update([rows], len(rows))
    tracker.release()
    view = tracker.view()
    if tracker.can_evaluate and view.n_components:
        directions = view.subspace.truncate(view.n_components)
        pooled = tracker.evaluation_sum([rows], len(rows), directions)
        tracker.add_evaluation(tracker.evaluation(pooled, directions))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("settings", [*SETTINGS, UNKNOWN | {"mechanism": "sketch"}], ids=str)
def test_what_is_audited_is_what_the_estimator_releases(settings, at_once, rng, monkeypatch):
    """Given the same key, the estimator and the tracker behind it release the same numbers."""
    settings = {"releases": 2} | settings | {"epsilon": 8.0, "insecure_seed_for_tests": 1}
    if isinstance(settings.get("center"), tuple):
        settings["center"] *= 3
    privacy = replace(PRIVACY, **settings)
    monkeypatch.setattr(private, "_shuffled_parts", lambda rows, _: iter([rows]))
    batches = rng.normal(size=(2, 400, 3)) + 2.0
    pca = PrivatePCA(**privacy.settings)
    tracker = PrivateTracker(3, None, privacy)
    for report, batch in enumerate(batches):
        if at_once and report == 0:
            pca.fit(batch)
            in_rounds_and_evaluated(tracker, batch)
        else:
            pca.partial_fit(batch)
            tracker.update([batch], len(batch))
        ours, theirs = tracker.release(), pca.release()
        assert ours.count == theirs.count
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        np.testing.assert_array_equal(scatter_of(ours), scatter_of(theirs))
        assert ours.certificate.mu == theirs.certificate.mu
        assert ours.certificate.steps == theirs.certificate.steps


# --- sensitivities, by brute force ---

D = 4
LIMIT, SHIFT = 1.5, 0.25


def model(rank, seed=0, shift=0.0):
    components = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0][:rank]
    return Subspace(components, np.ones(rank), np.full(D, shift), 10.0, float(D))


STEPS = {
    "scales": steps.scales(D, 0.1, 0),
    "lengths and spread": steps.lengths_and_spread(steps.Histogram(2), 0.1, 0),
    "mean": steps.mean(np.array([1.0, 0.0, -2.0, 0.5]), 1.5, 0.1, 0),
    "radius": steps.radius(steps.DYADIC, 0.1, 0),
    "fine radius": steps.radius(steps.Histogram(4), 0.1, 0),
} | {
    f"evaluation of {rank} components{', pairs' * pairs}": steps.evaluation(
        model(rank, shift=0.0 if pairs else SHIFT), LIMIT * (1 + 1e-9), 0.05, of_pairs=pairs
    )
    for rank, pairs in product((1, 3, D), (False, True))
}


def awkward_rows():
    """Rows of all lengths and directions, at bin edges, with gaps, and last one without any entry."""
    rng = np.random.default_rng(0)
    directions = np.concatenate([np.eye(D), -np.eye(D), model(D).components, rng.normal(size=(8, D))])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sizes = (1e-200, 1e-3, 0.5, 1.0, LIMIT, 1.001 * LIMIT, sqrt(2) * LIMIT, 1e6, 1e149)
    rows = np.concatenate([size * directions for size in sizes])
    rows = np.concatenate([np.zeros((1, D)), rows, SHIFT + LIMIT * directions])
    gaps = rows[rng.permutation(len(rows))[:60]]
    gaps[rng.random(gaps.shape) < 0.4] = np.nan
    infinite = rows[:2].copy()
    infinite[:, 0] = np.inf
    return Clipping(None).deviations(np.concatenate([rows, gaps, infinite, np.full((1, D), np.nan)]))


def sums_of_single_rows(block, rows):
    """What each row adds, shape (n, length), or each pair with one partner, for several partners."""
    if not block.of_pairs:
        yield np.array([block.add(row[None]) for row in rows])
        return
    for partner in rows[::23]:
        with np.errstate(invalid="ignore", over="ignore"):
            yield np.array([block.add((row - partner)[None] / sqrt(2)) for row in rows])


def distances(sums):
    sums = sums[:, sums.any(axis=0)] if sums.any() else sums[:, :1]
    products = sums @ sums.T
    squares = np.diag(products)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0.0))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", STEPS)
def test_no_pair_of_rows_moves_a_step_beyond_its_sensitivity(name, adjacency):
    """Replaced by any other, or taken out: a row at the center of the step, or one without any entry.

    And some row moves it by that much: no noise is wasted.
    """
    rows = awkward_rows()
    for block in STEPS[name].blocks:
        largest = 0.0
        for sums in sums_of_single_rows(block, rows):
            moved = distances(sums)
            if adjacency == "zero-out" and not block.of_pairs:
                moved = moved[-1]  # from the row without any entry
                assert not sums[-1].any()  # which adds nothing
            largest = max(largest, moved.max())
        assert 0.99 * block.sensitivity(adjacency) < largest <= block.sensitivity(adjacency) * (1 + 1e-9)


def test_a_row_at_the_center_adds_nothing_to_any_step():
    """It is as if it were not there, which zero-out needs."""
    origin = np.zeros((1, D))
    for block in (*STEPS["lengths and spread"].blocks[:1], *STEPS["radius"].blocks):
        assert not block.add(origin).any()
    center = np.array([[1.0, 0.0, -2.0, 0.5]])
    assert not STEPS["mean"].blocks[0].add(center).any()
    assert not STEPS["evaluation of 3 components"].blocks[0].add(np.full((1, D), SHIFT)).any()


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_energies_of_an_evaluation_are_those_of_one_row_at_most(rank):
    """Along directions that are not quite orthogonal, too, no row has more than the radius squared."""
    rng = np.random.default_rng(rank)
    components = model(rank).components + 1e-9 * rng.normal(size=(rank, D))
    almost = Subspace(components, np.ones(rank), np.zeros(D), 10.0, float(D))
    (block,) = steps.evaluation(almost, 1.0, 0.05, of_pairs=False).blocks
    rows = np.concatenate([rng.normal(size=(2000, D)), rng.normal(size=(500, rank)) @ components])
    for row in rows:
        *energies, beyond = block.add(row[None])
        assert min(energies) >= 0
        assert sum(energies) <= steps.ENERGY
        assert beyond in (0.0, steps.BEYOND * steps.ENERGY)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_two_rows_of_the_ball_move_a_release_beyond_its_sensitivity(adjacency, joint):
    """Ascent from many starts, over rows of any length up to one: those of the sphere, the ball and pairs.

    Of the products alone, and of the products and the sum together.
    """

    def negative(both):
        x, y = (row / max(np.linalg.norm(row), 1.0) for row in both.reshape(2, 3))
        y = y * (adjacency == "replace-one")
        products = np.linalg.norm(np.outer(x, x) - np.outer(y, y))
        return -hypot(products, joint * SUM_WEIGHT * np.linalg.norm(x - y))

    rng = np.random.default_rng(0)
    starts = rng.normal(size=(20, 6)) * rng.uniform(0.1, 2.0, size=(20, 1))
    largest = max(-minimize(negative, start, method="Nelder-Mead").fun for start in starts)
    allowed = Gram.sensitivity(adjacency, joint=joint)
    assert 0.999 * allowed < largest <= allowed * (1 + 1e-9)


@pytest.mark.parametrize("n_rows", [1, 2, 9, 30])
def test_every_row_is_in_one_pair_at_most(n_rows):
    pairing = Pairing(np.random.default_rng(0))
    rows = np.eye(n_rows)
    parts = [part for start in range(0, n_rows, 7) for part in pairing.take(rows[start : start + 7])]
    differences = np.concatenate([*parts, pairing.flush()])
    assert differences.shape == (n_rows // 2, n_rows)
    used = np.abs(differences).sum(axis=0) * sqrt(2)
    np.testing.assert_allclose(used, np.round(used), atol=1e-12)
    assert used.max(initial=0.0) <= 1 + 1e-12
    assert used.sum() == pytest.approx(n_rows // 2 * 2)


# --- the books: squares of mus add up to the promise, whatever is found ---


def any_sum(step, rng):
    """A sum that other owners could report, honest or not: no longer than so many rows can make it."""
    n_rows = int(10 ** rng.uniform(0, 8))
    noise = min(int(10 ** rng.uniform(0, 3)), n_rows)
    parts = []
    for block in step.blocks:
        part, kind = np.zeros(block.length), rng.integers(3)
        if kind == 0:
            part = rng.normal(size=block.length)
        elif kind == 1:
            part[rng.integers(block.length)] = 1.0
        most = n_rows * min(block.sensitivities) / (2 if block.of_pairs else 1)
        most *= rng.choice([1.0, 10.0 ** rng.uniform(-8, 0)])
        parts.append(part * most / max(np.linalg.norm(part), 1.0))
    return StepSum(step.name, np.concatenate([np.zeros(0), *parts]), n_rows, noise, step.radius)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_whatever_other_owners_report_a_record_never_pays_more_than_is_promised(adjacency):
    """Shares follow from what was released before: the sum of squared mus stays below mu²."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 3))
    paths = set()
    for _ in range(150):
        settings = replace(PRIVACY, **UNKNOWN, epsilon=10 ** rng.uniform(-1, 1.5), adjacency=adjacency)
        scale = "std" if rng.random() < 0.3 else None
        tracker = PrivateTracker(3, None, settings, scale=scale)
        try:
            while not tracker.is_prepared:
                step = tracker.model.step
                tracker.step_sum([rows], len(rows))
                tracker.advance(any_sum(step, rng))
        except ValueError as error:
            assert "scale='std' with privacy needs" in str(error)  # noqa: PT017
            assert not tracker.ledger.entries
            continue
        tracker.update([rows], len(rows))
        certificate = tracker.release().certificate
        if tracker.can_evaluate:
            tracker.evaluation_sum([rows], len(rows), Subspace.empty(3))
        entries = tracker.ledger.entries
        assert tracker.ledger.mu <= settings.mu * (1 + 1e-9)
        assert tracker.ledger.mu == pytest.approx(settings.mu)  # and none of it is lost
        debits = [(entry.mechanism, entry.mu) for entry in entries if entry.mechanism != "evaluation"]
        assert debits == [(cost.step, cost.mu) for cost in certificate.steps]
        paths.add(tuple(entry.mechanism for entry in entries))
    assert len(paths) > 8


@pytest.mark.parametrize("seed", range(5))
def test_a_record_of_a_stream_is_in_one_step_or_in_the_release(seed):
    rows = np.random.default_rng(0).normal(size=(2000, 3)) + 2.0
    settings = replace(PRIVACY, **UNKNOWN, epsilon=8.0, adjacency="zero-out", insecure_seed_for_tests=seed)
    tracker = PrivateTracker(3, None, settings, scale="std")
    for batch in np.array_split(rows, 37):
        tracker.update([batch], len(batch))
    tracker.release()
    entries, evaluated = tracker.ledger.entries, []
    assert [entry.mechanism for entry in entries[:2]] == ["scales", "lengths and spread"]
    if tracker.can_evaluate:  # unless too few rows showed how long they are
        tracker.evaluation_sum([rows], len(rows), Subspace.empty(3))
        evaluated = tracker.ledger.entries[-1:]
        assert (evaluated[0].start, evaluated[0].stop) == (0, 2000)
    assert [entry.start for entry in entries] == [0, *(entry.stop for entry in entries[:-1])]
    assert entries[-1].stop == 2000
    for entry in entries:
        cost = total_mu([entry, *evaluated])
        assert cost <= settings.mu * (1 + 1e-9)
        assert cost == pytest.approx(settings.mu) or not evaluated


# --- the test itself ---


@pytest.mark.parametrize("mu", [0.5, 1.67, 3.0])
def test_bounds_hold_for_gaussians_and_come_near(mu):
    rng = np.random.default_rng(0)
    found = [distinguish(rng.normal(mu, size=4000), rng.normal(size=4000), 1e-5, 1e-3) for _ in range(20)]
    assert all(lower <= mu for _, lower in found)
    assert np.mean([lower for _, lower in found]) > mu - 0.35
    assert all(epsilon <= epsilon_of(mu, 1e-5) for epsilon, _ in found)


def test_scores_are_combined_as_is_best_for_gaussians():
    """Squared mus add up, noise that is common cancels, and numbers that say nothing do no harm."""
    rng = np.random.default_rng(0)

    def mu_of_combined(*, shared):
        noises = rng.normal(size=(2, 20_000, 3))
        noises[:, :, 1] = noises[:, :, 0] if shared else noises[:, :, 1]
        ours, theirs = noises[0] + [0.6, -0.8, 0.0], noises[1]
        scores = combined((ours[:, :1], theirs[:, :1]), (ours[:, 1:], theirs[:, 1:]))
        return (scores[0].mean() - scores[1].mean()) / scores[1].std()

    assert mu_of_combined(shared=False) == pytest.approx(1.0, abs=0.05)
    assert mu_of_combined(shared=True) > 100


def test_two_worlds_that_never_overlap_are_distinguish_without_dividing_by_zero():
    epsilon, mu = distinguish(np.ones(1000), np.zeros(1000), 1e-5, 1e-3)
    assert epsilon > 3
    assert mu > 3


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"runs": 5}, "runs must be at least"),
        ({"n_features": 1}, "n_features"),
        ({"confidence": 1}, "confidence"),
        ({"scale": (1.0, 1.0, 1.0)}, "scale must be 'std' or None"),
    ],
)
def test_bad_arguments(settings, match):
    with pytest.raises(ValueError, match=match):
        audit(PRIVACY, **settings)
    with pytest.raises(TypeError, match="audit needs a Privacy"):
        audit(1.0)
