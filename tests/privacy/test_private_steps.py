"""What nobody knows about the rows is found privately: right, exact, paid for, shared, and never in vain."""

import copy
import pickle
import warnings
from dataclasses import replace
from itertools import product
from math import ceil, hypot, log2, sqrt
from pathlib import Path

import numpy as np
import pytest
from helpers import edge_of_rounding, interrupted, power_law, secrets_in
from sklearn.datasets import load_digits

import fedpca
from fedpca import (
    Aggregator,
    BudgetExceeded,
    FederatedPCA,
    Ledger,
    Privacy,
    PrivatePCA,
    Subspace,
)
from fedpca.errors import SummaryRejected
from fedpca.privacy import StepSum, steps
from fedpca.privacy.calibration import mu_of
from fedpca.privacy.clipping import MAX_ROWS, RADIUS, Clipping, Pairing
from fedpca.privacy.evaluation import Energies
from fedpca.privacy.exit import Exit
from fedpca.privacy.mechanisms import MECHANISMS as KNOWN
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.search import Found
from fedpca.privacy.search_plan import SearchRule
from fedpca.privacy.tracker import PrivateTracker
from fedpca.summaries.certificate import Certificate
from reproduction.fast_noise import FastNoise

pytestmark = pytest.mark.slow  # all of it together

NAN, INF = np.nan, np.inf
AROUND = np.array([0.5, -0.25, 0.0, 0.125, 2.0])
DIRECTIONS = np.linalg.qr(np.random.default_rng(3).normal(size=(5, 2)))[0].T


def ordinary(n_rows=301, n_features=5, seed=0):
    return power_law(np.random.default_rng(seed), n_rows, n_features) + 0.3


def with_gaps():
    rows = ordinary()
    rows[np.random.default_rng(1).uniform(size=rows.shape) < 0.2] = NAN
    rows[7] = NAN
    return rows


AWKWARD = {
    "ordinary": ordinary(),
    "gaps": with_gaps(),
    "infinities": np.where(np.isnan(with_gaps()), INF, with_gaps()) * np.where(np.arange(5) % 2, 1, -1),
    "1e308": np.concatenate([ordinary(20), np.full((3, 5), 1e308), -np.full((2, 5), 1.7e308)]),
    "subnormal": np.concatenate([ordinary(20) * 1e-310, np.full((2, 5), 5e-324)]),
    "constant": np.full((40, 5), 0.1),
    "powers of two": 2.0 ** np.arange(-70, 70)[:, None] * np.eye(5)[np.arange(140) % 5],
    "zero": np.zeros((40, 5)),
    "float32": ordinary().astype(np.float32),
    "Fortran": np.asfortranarray(ordinary()),
    "every other": np.repeat(ordinary(), 2, axis=1)[:, ::2],
    "integers": np.random.default_rng(2).integers(-9, 9, size=(50, 5)),
    "one row": ordinary(1),
    "two rows": ordinary(2),
}


class InOrder:
    """Pairs of neighbors, to be seen by everybody."""

    permutation = staticmethod(np.arange)


@pytest.fixture
def in_order(monkeypatch):
    init = Pairing.__init__
    monkeypatch.setattr(Pairing, "__init__", lambda self, random: init(self, InOrder()))
    monkeypatch.setattr(PrivateTracker, "random_order", lambda self, n_rows: np.arange(n_rows))


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(ExactNoise, "weighted", lambda self, labels, weights, count, sd: np.zeros(count))


# --- every sum, computed in another way: row by row, without numpy's linear algebra ---


def listed(rows):
    """Rows as lists of floats, None for what is missing; no entry is beyond 1e150."""
    rows = np.asarray(rows, dtype=np.float64).tolist()
    return [[None if x != x or abs(x) == INF else min(max(x, -1e150), 1e150) for x in row] for row in rows]


def less(rows, center):
    return [[None if x is None else x - c for x, c in zip(row, center, strict=True)] for row in rows]


def pairs_of(rows):
    """Differences of neighbors; a row without one is left out."""
    return [
        [None if x is None or y is None else (x - y) / sqrt(2.0) for x, y in zip(one, other, strict=True)]
        for one, other in zip(rows[::2], rows[1::2], strict=False)
    ]


def length(row):
    """The norm that the entries known suggest for all."""
    known = [x for x in row if x is not None]
    return hypot(*known) / sqrt(len(known) / len(row)) if known else 0.0


def bin_of(size, per_octave=1):
    """Bin 0 ends at 2^-60, and each ends 2^(1 / per_octave) times higher; the last has no end."""
    if size <= 2.0**-60:
        return 0
    place = ceil(per_octave * log2(size))
    while size <= 2.0 ** ((place - 1) / per_octave):  # log2 is rounded
        place -= 1
    while size > 2.0 ** (place / per_octave):
        place += 1
    return min(place + 60 * per_octave, 120 * per_octave)


def off_center(rows):
    """Their lengths, but for those of rows at the center: they are as if they were not there."""
    return [length(row) for row in rows if length(row) > 0]


def histogram(sizes, per_octave=1):
    counts = np.zeros(120 * per_octave + 1)
    for size in sizes:
        counts[bin_of(size, per_octave)] += 1
    return counts


def drawn_in(row, radius):
    """The row as it is clipped, in units of the radius; what is missing is at the center."""
    row = [x or 0.0 for x in row]
    return np.array(row) / max(hypot(*row), radius)


def summed(block, rows, cuts=()):
    """What a block makes of rows without noise, in parts."""
    step = steps.Step("mean", (block,)).announced(1.0, "replace-one", Clipping(1.0))
    return step.vector(np.split(np.asarray(rows), sorted(cuts)), InOrder())


CUTS = [(), (1,), (1, 2, 3), (7, 19)]


def cuts_of(rows):
    return [[cut for cut in cuts if cut < len(rows)] for cuts in CUTS]


@pytest.mark.parametrize("kind", AWKWARD)
def test_histograms_are_those_of_lengths_and_differences(kind):
    rows = AWKWARD[kind]
    of_rows, of_pairs = steps.lengths_and_spread(steps.DYADIC, 0.1, 10).blocks
    for cuts in cuts_of(rows):
        np.testing.assert_array_equal(summed(of_rows, rows, cuts), histogram(off_center(listed(rows))))
        expected = histogram(map(length, pairs_of(listed(rows))))
        np.testing.assert_array_equal(summed(of_pairs, rows, cuts), expected)


@pytest.mark.parametrize("kind", AWKWARD)
def test_scales_are_histograms_of_every_feature(kind):
    rows = AWKWARD[kind]
    (block,) = steps.scales(5, 0.1, 10).blocks
    differences = pairs_of(listed(rows))
    expected = [histogram(abs(row[j]) for row in differences if row[j] is not None) for j in range(5)]
    for cuts in cuts_of(rows):
        np.testing.assert_array_equal(summed(block, rows, cuts), np.concatenate(expected))


@pytest.mark.parametrize("per_octave", [1, 4])
@pytest.mark.parametrize("kind", AWKWARD)
def test_a_radius_is_found_from_lengths_about_the_center(kind, per_octave):
    rows = AWKWARD[kind]
    (block,) = steps.radius(steps.Histogram(per_octave), 0.1, 10).blocks
    center = np.zeros(5) if kind == "powers of two" else AROUND  # else rounding decides
    found = block.add(Clipping(1.0, center).deviations(rows))
    np.testing.assert_array_equal(found, histogram(off_center(less(listed(rows), center)), per_octave))


@pytest.mark.parametrize("radius", [1e-9, 0.7, 5.0, 1e6])
@pytest.mark.parametrize("kind", AWKWARD)
def test_a_mean_is_the_sum_of_clipped_rows_about_the_center(kind, radius):
    rows = AWKWARD[kind]
    (block,) = steps.mean(AROUND, radius, 0.1, 10).blocks
    expected = sum(drawn_in(row, radius) for row in less(listed(rows), AROUND)) * RADIUS
    for cuts in cuts_of(rows):
        found = summed(block, rows, cuts)
        np.testing.assert_array_equal(found, np.rint(found))
        assert np.abs(found - expected).max() <= len(rows)  # a row is rounded by less than one


@pytest.mark.parametrize("of_pairs", [False, True])
@pytest.mark.parametrize("radius", [0.7, 5.0])
@pytest.mark.parametrize("kind", AWKWARD)
def test_an_evaluation_sums_energies_along_directions_and_the_rest(kind, radius, of_pairs):
    rows = AWKWARD[kind]
    model = Subspace(DIRECTIONS, [2.0, 1.0], AROUND, 10.0, 6.0)
    (block,) = steps.evaluation(model, radius, 0.05, of_pairs=of_pairs).blocks
    given = pairs_of(listed(rows)) if of_pairs else less(listed(rows), AROUND)
    points = np.array([drawn_in(row, radius) for row in given]).reshape(-1, 5)
    along = (points @ DIRECTIONS.T) ** 2
    rest = (points**2).sum(axis=1) - along.sum(axis=1)
    beyond = sum(length(row) > radius for row in given)
    for cuts in cuts_of(rows):
        *energies, other, outside = summed(block, rows, cuts) / RADIUS**2
        np.testing.assert_allclose(energies, along.sum(axis=0), atol=2e-3 * max(len(points), 1))
        assert other == pytest.approx(rest.sum(), abs=2e-3 * max(len(points), 1))
        assert outside == beyond / 2


@pytest.mark.parametrize("kind", AWKWARD)
def test_sums_of_steps_change_by_no_more_than_their_sensitivity(kind):
    """Replaced by whichever row, or taken out: the noise is scaled to this."""
    model = Subspace(DIRECTIONS, [2.0, 1.0], AROUND, 10.0, 6.0)
    rows = np.asarray(AWKWARD[kind], dtype=np.float64)[:6]
    others = np.concatenate([np.asarray(table, dtype=np.float64)[-2:] for table in AWKWARD.values()])
    some = [
        steps.scales(5, 0.1, 10),
        steps.lengths_and_spread(steps.DYADIC, 0.1, 10),
        steps.mean(AROUND, 0.7, 0.1, 10),
        steps.radius(steps.Histogram(4), 0.1, 10),
        steps.evaluation(model, 0.7, 0.05, of_pairs=False),
        steps.evaluation(model, 0.7, 0.05, of_pairs=True),
    ]
    for block in (block for step in some for block in step.blocks):
        before = summed(block, rows)
        for other in others:
            changed = rows.copy()
            changed[0] = other
            moved = np.linalg.norm(summed(block, changed) - before)
            assert moved <= block.sensitivity("replace-one") * (1 + 1e-12)
        if not block.of_pairs:
            without = np.linalg.norm(summed(block, rows[1:]) - before)
            assert without <= block.sensitivity("zero-out") * (1 + 1e-12)
        assert block.sensitivity("zero-out") <= block.sensitivity("replace-one")


def mixture(n_rows=3000, seed=0):
    """Ordinary rows, and some of every other kind among them."""
    rows = ordinary(n_rows, seed=seed)
    places = np.random.default_rng(seed).permutation(n_rows)
    for place, table in zip(places[::7], AWKWARD.values(), strict=False):
        rows[place] = np.asarray(table, dtype=np.float64)[-1]
    return rows


@pytest.mark.parametrize("settings", [{}, {"center": AROUND}, {"center": None}], ids=["", "public", "none"])
def test_the_sums_that_an_owner_sends_are_those(settings, in_order, no_noise):
    rows = mixture()
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5, insecure_seed_for_tests=0, **settings)
    center = np.zeros(5) if settings.get("center") is None else AROUND
    table, names = listed(rows), []
    while not pca.is_prepared:
        found = pca.step_sum(rows)
        names.append(found.step)
        about = less(table, center)
        if found.step == "lengths and spread":
            per_octave = (len(found.total) - 122) // 120
            counts = histogram(off_center(table)), histogram(map(length, pairs_of(table)), per_octave)
            np.testing.assert_array_equal(found.total, np.concatenate(counts))
        elif found.step == "mean":
            expected = sum(drawn_in(row, found.radius) for row in about) * RADIUS
            assert np.abs(found.total - expected).max() <= len(rows)
            center = center + found.total * (found.radius / RADIUS / len(rows))
        elif found.step == "radius":
            per_octave = (len(found.total) - 1) // 120
            np.testing.assert_array_equal(found.total, histogram(off_center(about), per_octave))
        assert (found.n_rows, found.noise) == (3000, 1)
        pca.advance(found)
    about = less(table, center)
    if settings:
        assert names == ["rows", "radius"]
        sizes = sorted(map(length, about))
    else:
        assert names == ["rows", "lengths and spread", *["mean"] * (len(names) - 2)]
        sizes = sorted(map(length, pairs_of(table)))
    clipping = pca._source.clipping
    np.testing.assert_array_equal(0.0 if clipping.center is None else clipping.center, center)
    assert sizes[int(0.8 * len(sizes))] < clipping.bound
    short, t = 0.25 * np.median(sizes), np.sqrt(5) / (pca._source.privacy.mu * 3000)
    of_sphere, left = (np.mean(1 / np.maximum(sizes, each) ** 2) for each in (short, clipping.bound))
    assert of_sphere < 1.2 * (0.07 / (2**1.25 * t)) ** 0.9 * left  # no more noise than it accepts
    release = pca.partial_fit(rows).release()
    points = np.array([drawn_in(row, clipping.bound) for row in about]) * clipping.bound
    offset = release.mean - center if release.centered else np.zeros(5)
    expected = points.T @ points - 3000 * np.outer(offset, offset)
    np.testing.assert_allclose(release.scatter, expected, atol=0.5)
    model = release.subspace(2)
    found = pca.evaluation(pca.evaluation_sum(rows, model), model)
    along, total = clipped_energies(model.components, less(table, model.mean), found.radius)
    np.testing.assert_allclose(found.energies, along, rtol=2e-3)
    assert found.total == pytest.approx(total, rel=2e-3)
    assert found.beyond == sum(length(row) > found.radius for row in less(table, model.mean)) / 3000


def clipped_energies(components, deviations, radius):
    """Of all rows along components, and in all, if they are clipped to a radius."""
    points = np.array([drawn_in(row, radius) for row in deviations]) * radius
    return ((points @ np.asarray(components).T) ** 2).sum(axis=0), (points**2).sum()


# --- neither batches nor company make a difference ---

STREAMS = [
    {},
    {"center": "pairs"},
    {"bound": "sphere", "center": "pairs"},
    {"adjacency": "zero-out"},
    {"mechanism": "sketch"},
    {"releases": 3},
]


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("settings", STREAMS, ids=str)
def test_a_stream_does_not_depend_on_how_its_rows_come(settings, scale):
    rows = mixture(4000)
    privacy = Privacy(8.0, 1e-6, insecure_seed_for_tests=1, **settings)
    releases = []
    for size in (1, 97, 4000):
        pca = PrivatePCA(2, scale=scale, **privacy.settings)
        parts = [rows[:600], *np.array_split(rows[600:2500], 1900 // size or 1), rows[2500:]]
        for part in parts if size < 4000 else [rows]:
            pca.partial_fit(np.asfortranarray(part) if size == 97 else part)
        releases.append((pca.release(), [entry.stop for entry in pca.ledger_.entries]))
    (first, paid), *others = releases
    for other, other_paid in others:
        assert paid == other_paid
        assert (first.count, first.certificate.bound) == (other.count, other.certificate.bound)
        np.testing.assert_array_equal(first.mean, other.mean)
        of_both = (first, other) if isinstance(first, Subspace) else (first.scatter, other.scatter)
        if isinstance(first, Subspace):
            np.testing.assert_array_equal(*(each.singular_values for each in of_both))
            np.testing.assert_array_equal(*(each.components for each in of_both))
        else:
            np.testing.assert_array_equal(*of_both)


LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2]]


@pytest.mark.parametrize("layout", range(3))
@pytest.mark.parametrize("n_features", [5, 8, 64, 301])
def test_a_row_is_summed_alike_in_any_company(n_features, layout):
    """Points of the sphere, bins and energies, of rows of which the last bit of a norm decides."""
    rng = np.random.default_rng(n_features)
    rows = edge_of_rounding(60, n_features)
    rows[::9] *= 2.0 ** rng.integers(-60, 60, size=(7, 1)) / np.linalg.norm(rows[::9], axis=1, keepdims=True)
    gappy = rows.copy()
    gappy[rng.uniform(size=rows.shape) < 0.1] = NAN
    directions = np.linalg.qr(rng.normal(size=(n_features, 3)))[0].T
    model = Subspace(directions, [3.0, 2.0, 1.0], np.zeros(n_features), 10.0, 20.0)
    evaluation = steps.evaluation(model, 1e-3, 0.05, of_pairs=False).blocks[0]
    radius = steps.radius(steps.Histogram(4), 0.1, 10).blocks[0]
    mean = steps.mean(np.full(n_features, 1e-4), 1e-3, 0.1, 10).blocks[0]
    for table in (rows, gappy):
        for of_rows in (
            lambda part: Clipping(None).points(Clipping(None).deviations(part)),
            lambda part: np.array([evaluation.add(Clipping(None).deviations(part))]),
            lambda part: np.array([radius.add(Clipping(None).deviations(part))]),
            lambda part: np.array([mean.add(Clipping(None).deviations(part))]),
        ):
            alone = np.concatenate([of_rows(row[None]) for row in table])
            for cuts in ((), (1, 2), (30,)):
                together = [of_rows(part) for part in np.split(LAYOUTS[layout](table), cuts)]
                together = np.concatenate(together)
                if len(together) < len(alone):
                    alone, together = alone.sum(axis=0), together.sum(axis=0)
                np.testing.assert_array_equal(together, alone)
                alone = np.concatenate([of_rows(row[None]) for row in table])


def test_a_bin_ends_at_its_power_of_two():
    edges = 2.0 ** (np.arange(-240, 240) / 4)
    for values, offset in ((edges, 0), (np.nextafter(edges, 0), 0), (np.nextafter(edges, INF), 1)):
        bins = steps.Histogram(4).bins(values)
        np.testing.assert_array_equal(bins, np.arange(480) + offset)
    assert list(steps.DYADIC.bins(np.array([0.0, 5e-324, 2.0**-60, 1.0, 2.0**60, 1e300]))) == [
        0, 0, 0, 60, 120, 120,
    ]  # fmt: skip


# --- what was spent: the certificate, the ledger, and both of them ---

MECHANISMS = ["gram", "sketch"]


def paid_by_a_record(entries):
    """The largest sum of squared mus over the entries that contain any one record."""
    return max(
        sum(entry.mu**2 for entry in entries if entry.start <= record < (entry.stop or INF))
        for record in {entry.start for entry in entries}
    )


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_certificate_lists_all_steps_and_they_cost_what_was_promised(
    mechanism, adjacency, evaluate, scale
):
    rows = ordinary(4000)
    privacy = Privacy(4.0, 1e-5, mechanism=mechanism, adjacency=adjacency, evaluate=evaluate)
    pca = PrivatePCA(2, scale=scale, **privacy.settings).fit(rows)
    certificate, entries = pca.release().certificate, pca.ledger_.entries
    names = [step.step for step in certificate.steps]
    expected = ["scales"] * (scale == "std") + ["lengths and spread", "mean", "mean", "mean"]
    ending = [mechanism] + ["evaluation"] * evaluate
    steps_before = names[: -len(ending)]
    assert names[-len(ending) :] == ending
    assert "mean" in names
    assert steps_before == expected[: len(steps_before)]
    assert [(step.step, step.mu) for step in certificate.steps] == [(e.mechanism, e.mu) for e in entries]
    spent = sum(step.mu**2 for step in certificate.steps)
    assert 0.999 * privacy.mu**2 < spent <= privacy.mu**2
    assert certificate.mu == privacy.mu
    assert (certificate.epsilon, certificate.delta) == (4.0, 1e-5)
    assert {(e.start, e.stop or 4000, e.completed, e.adjacency) for e in entries} == {
        (0, 4000, True, adjacency)
    }
    assert certificate.ledger.spent == pca.ledger_.spent() <= 4.0
    assert Certificate.from_json(certificate.to_json()) == certificate


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_record_of_a_stream_pays_for_two_steps(mechanism, adjacency, evaluate, scale):
    rows = ordinary(4000)
    privacy = Privacy(8.0, 1e-5, mechanism=mechanism, adjacency=adjacency, evaluate=evaluate)
    pca = PrivatePCA(2, scale=scale, **privacy.settings)
    for part in np.array_split(rows, 23):
        pca.partial_fit(part)
    release = pca.release()
    evaluated = evaluate and pca.can_evaluate  # noise may hide the lengths of rows
    if evaluated:
        pca.evaluation_sum(rows, release.subspace(2))
    entries = pca.ledger_.entries
    steps_of_stream = entries[: len(release.certificate.steps)]
    listed_steps = [(step.step, step.mu) for step in release.certificate.steps]
    assert listed_steps == [(entry.mechanism, entry.mu) for entry in steps_of_stream]
    assert [entry.start for entry in steps_of_stream[1:]] == [entry.stop for entry in steps_of_stream[:-1]]
    assert len(entries) == len(steps_of_stream) + evaluated
    kept = 0.05 if evaluate and not evaluated else 0.0  # nothing could be evaluated, and no record pays more
    assert (0.999 - kept) * privacy.mu**2 < paid_by_a_record(entries) <= (1 - kept) * privacy.mu**2
    assert release.count == 4000 - steps_of_stream[-1].start
    assert release.certificate.records == 4000


def test_a_second_evaluation_or_one_without_a_budget_is_refused():
    rows = ordinary(3000)
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5).fit(rows)
    model = pca.subspace_.truncate(2)
    with pytest.raises(ValueError, match="evaluated once, and was; fit anew"):
        pca.evaluation_sum(rows, model)
    assert [entry.mechanism for entry in pca.ledger_.entries].count("evaluation") == 1
    for settings in ({"evaluate": False}, {"bound": "sphere", "center": None}):
        pca = PrivatePCA(2, epsilon=4.0, delta=1e-5, **settings).fit(rows)
        assert not pca.can_evaluate
        with pytest.raises(ValueError, match="nothing to evaluate with"):
            pca.evaluation_sum(rows, model)
    with pytest.raises(ValueError, match="needs step_sum before it"):
        PrivatePCA(2, epsilon=4.0, delta=1e-5).evaluation_sum(rows, model)


# --- interrupted at any line ---

FEW = np.random.default_rng(0).normal(size=(2000, 2)) * [3.0, 1.0] + 1.0


def owner_at(step):
    center = None if step == "radius" else "private"
    pca = PrivatePCA(1, epsilon=8.0, delta=1e-5, center=center)
    pca.advance(pca.step_sum(FEW))
    while pca._source.model.step.name != step:
        pca.advance(pca.step_sum(FEW))
    return pca


@pytest.mark.parametrize("step", ["lengths and spread", "mean", "radius"])
def test_a_round_interrupted_at_any_line_draws_its_noise_once(step, drawn):
    at, kinds = 0, set()
    while True:
        at += 1
        pca = owner_at(step)
        before = len(pca.ledger_.entries)
        drawn.clear()
        if not interrupted(lambda pca=pca: pca.step_sum(FEW), at):
            break
        first = set(drawn)
        assert len(first) == len(drawn)
        assert len(pca.ledger_.entries) - before >= bool(first)  # debited before it is drawn
        try:
            pca.step_sum(FEW)
        except (RuntimeError, ValueError) as refusal:
            kinds.add("interrupted" if "interrupted" in str(refusal) else str(refusal).split(" cost ")[0])
        else:
            kinds.add("made now")
            assert not first  # nothing was drawn before
        assert len(drawn) == len(set(drawn))
    assert at > 40
    not_complete = "a round of private steps is not complete: call advance first."
    paid_before = "the release would"  # debited, and not drawn
    assert {"interrupted", "made now"} <= kinds <= {"interrupted", "made now", not_complete, paid_before}


def test_a_round_that_ends_is_interrupted_at_any_line_and_ends_once():
    """Advanced twice, a sum would count as the next one; half advanced, nothing more is done."""
    at, kinds = 0, set()
    while True:
        at += 1
        pca = owner_at("mean")
        pooled = pca.step_sum(FEW)
        if not interrupted(lambda pca=pca, pooled=pooled: pca.advance(pooled), at):
            break
        try:
            pca.advance(pooled)
            kinds.add("advanced now")
        except RuntimeError:
            kinds.add("interrupted")
            continue
        except ValueError:
            kinds.add("had advanced")
        while not pca.is_prepared:
            pca.advance(pca.step_sum(FEW))
        release = pca.partial_fit(FEW).release()
        assert release.certificate.ledger.spent <= 8.0
        paid = [(entry.mechanism, entry.mu) for entry in pca.ledger_.entries]
        assert [(cost.step, cost.mu) for cost in release.certificate.steps] == paid
    assert at > 40
    assert {"advanced now", "interrupted"} <= kinds


def test_an_evaluation_interrupted_at_any_line_draws_its_noise_once(drawn):
    at, kinds, model = 0, set(), Subspace(np.eye(2)[:1], [1.0], np.zeros(2), 200.0, 2.0)
    settings = {"bound": 3.0, "center": None}
    while True:
        at += 1
        pca = PrivatePCA(1, epsilon=8.0, delta=1e-5, **settings).partial_fit(FEW)
        pca.release()
        drawn.clear()
        if not interrupted(lambda pca=pca: pca.evaluation_sum(FEW, model), at):
            break
        first = set(drawn)
        debits = [entry.mechanism for entry in pca.ledger_.entries].count("evaluation")
        assert debits >= bool(first)
        try:
            pca.evaluation_sum(FEW, model)
        except (RuntimeError, ValueError) as refusal:
            kinds.add("interrupted" if "interrupted" in str(refusal) else "once")
        else:
            kinds.add("made now")
            assert not first
        assert len(drawn) == len(set(drawn)) <= 1
        assert pca.ledger_.mu <= mu_of(8.0, 1e-5)
        assert pca.components_.shape == (1, 2)  # what was released stays
    assert at > 40
    assert {"interrupted", "made now"} <= kinds


@pytest.mark.parametrize("first", range(3))
@pytest.mark.long
def test_a_fit_interrupted_at_any_line_has_paid_for_what_it_drew(first, drawn):
    at = 1 + 17 * first
    while True:
        at += 53
        ledger = Ledger(epsilon=80.0, delta=1e-5)
        pca = PrivatePCA(1, epsilon=8.0, delta=1e-5, ledger=ledger)
        drawn.clear()
        if not interrupted(lambda pca=pca: pca.fit(FEW), at):
            break
        paid = [entry.mechanism for entry in ledger.entries]
        assert len(drawn) == len(set(drawn))
        assert hasattr(pca, "_source") <= (paid[-1:] == ["evaluation"])  # whole, or nothing
        # Steps, the release and the evaluation have keys of their own, and every step has a number.
        keys = list(dict.fromkeys(key for key, _ in drawn))
        n_steps = len({label[0] for key, label in drawn if key == keys[0]})
        assert n_steps + max(len(keys) - 1, 0) <= len(paid)
        pca.fit(FEW)  # anew, with another key
        assert len(drawn) == len(set(drawn))
    assert [entry.mechanism for entry in ledger.entries][-1] == "evaluation"


# --- owners who share the steps ---


def rounds(owners, tables):
    while not all(owner.is_prepared for owner in owners):
        pooled = StepSum.pooled([owner.step_sum(rows) for owner, rows in zip(owners, tables, strict=True)])
        for owner in owners:
            owner.advance(pooled)
    return owners


def owners_of(tables, n_components=2, **settings):
    return [PrivatePCA(n_components, epsilon=4.0, delta=1e-5, **settings) for _ in tables]


def far_apart(n_owners=3, n_rows=1500):
    """Owners whose rows are around different means, far from the origin."""
    return [ordinary(n_rows, seed=seed) + 20 + seed for seed in range(n_owners)]


@pytest.mark.parametrize("settings", [{}, {"mechanism": "sketch"}, {"adjacency": "zero-out"}], ids=str)
def test_owners_who_share_steps_clip_alike_and_their_releases_merge(settings):
    tables = far_apart()
    owners = rounds(owners_of(tables, **settings), tables)
    clippings = [owner._source.clipping for owner in owners]
    assert clippings[0].bound is not None
    for clipping in clippings[1:]:
        assert (clipping.bound, clipping.pairs) == (clippings[0].bound, False)
        np.testing.assert_array_equal(clipping.center, clippings[0].center)
    releases = [owner.partial_fit(rows).release() for owner, rows in zip(owners, tables, strict=True)]
    model = fedpca.merge(releases, rank=2)
    exact = Subspace.from_rows(np.concatenate(tables), 2)
    assert fedpca.metrics.affinity(model, exact) > 0.8
    assert np.linalg.norm(model.mean - exact.mean) < 0.5
    assert (model.certificate.merged, model.certificate.epsilon) == (3, 4.0)
    assert model.certificate.bound == clippings[0].bound
    aggregator = Aggregator(2, privacy=Privacy(4.0, 1e-5, adjacency=settings.get("adjacency", "replace-one")))
    for number, release in enumerate(releases):
        assert aggregator.receive(f"{number}", 1, release)
    sums = [owner.evaluation_sum(rows, model) for owner, rows in zip(owners, tables, strict=True)]
    found = owners[0].evaluation(StepSum.pooled(sums), model)
    assert found == owners[2].evaluation(StepSum.pooled(sums), model)
    assert found.records == 4500
    deviations = np.concatenate(tables) - model.mean
    share = ((deviations @ model.components.T) ** 2).sum() / (deviations**2).sum()
    assert found.explained()[0] == pytest.approx(share, abs=0.1)


def test_without_noise_shared_steps_find_what_one_owner_of_all_rows_finds(no_noise, in_order):
    rows = ordinary(9000)  # so many that no large bin drowns
    tables = [rows[:3000], rows[3000:]]
    together = rounds(owners_of(tables), tables)
    (alone,) = rounds(owners_of([rows]), [rows])
    one, other = together[0]._source.clipping, alone._source.clipping
    # Two owners' noise is more, so that less of it can be accepted: by 2^0.45, or 2^0.225 in length.
    assert other.bound / 2**0.225 * 0.97 < one.bound <= other.bound * 1.02
    np.testing.assert_allclose(one.center, other.center, atol=1e-3)


@pytest.mark.parametrize("which", ["lengths and spread", "mean"])
def test_a_pooled_sum_that_no_rows_can_have_costs_nothing_more(which):
    rows = ordinary(3000)
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5)
    while True:
        own = pca.step_sum(rows)
        if own.step == which:
            break
        pca.advance(own)
    paid = len(pca.ledger_.entries)
    impossible = own.total.copy()
    impossible[3] = 1e308 if which == "mean" else 1e9
    with pytest.raises(ValueError, match="rows and noise have at most"):
        pca.advance(replace(own, total=impossible))
    assert len(pca.ledger_.entries) == paid
    pca.advance(own)  # the right one still ends the round


def test_owners_with_other_settings_are_told_so():
    tables = far_apart(2)
    owners = owners_of(tables)
    owners[1] = PrivatePCA(2, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"same settings|same step|nothing to find privately"):
        rounds(owners, tables)
    sums = [StepSum("mean", np.ones(5), 10, radius=radius) for radius in (2.0, 1.0)]
    with pytest.raises(
        ValueError, match="same length add up, got 1 and 2; let all owners have the same settings"
    ):
        StepSum.pooled(sums)


def test_an_owner_who_comes_later_takes_what_was_found_as_public():
    tables = far_apart()
    owners = owners_of(tables[:2])
    assert not hasattr(owners[0], "privacy_")
    rounds(owners, tables[:2])
    releases = [owner.partial_fit(rows).release() for owner, rows in zip(owners, tables[:2], strict=True)]
    public = replace(owners[0].privacy_, evaluate=False)
    clipping = owners[0]._source.clipping
    assert (public.bound, public.center) == (clipping.bound, tuple(clipping.center))
    late = PrivatePCA(2, **public.settings).fit(tables[2])
    assert [entry.mechanism for entry in late.ledger_.entries] == ["gram"]  # all of it on the release
    merged = fedpca.merge([*releases, late.release()], rank=2)
    assert fedpca.metrics.affinity(merged, Subspace.from_rows(np.concatenate(tables), 2)) > 0.8
    assert merged.certificate.center == "private | public"
    aggregator = Aggregator(2, privacy=Privacy(4.0, 1e-5))
    for number, release in enumerate((*releases, late.release())):
        assert aggregator.receive(f"{number}", 1, release)


def test_an_owner_of_few_rows_joins_others_who_take_pairs():
    tables = [ordinary(60, 30, seed=seed) for seed in range(4)]
    owners = [PrivatePCA(1, epsilon=1.0, delta=1e-5) for _ in range(3)]
    releases = [
        owner.partial_fit(rows).release()
        for owner, rows in zip(rounds(owners, tables[:3]), tables[:3], strict=True)
    ]
    assert {release.certificate.clipping for release in releases} == {"sphere, differences of pairs"}
    late = owners[0].privacy_
    assert (late.bound, late.center) == ("sphere", "pairs")
    merged = fedpca.merge([*releases, PrivatePCA(1, **late.settings).fit(tables[3]).release()])
    assert merged.count == 240
    assert merged.certificate.clipping == "sphere, differences of pairs"


KINDS = {
    "ball": {"bound": 3.0, "center": np.zeros(5)},
    "sphere": {"bound": "sphere", "center": np.zeros(5)},
    "ball, differences of pairs": {"bound": 3.0, "center": "pairs"},
    "sphere, differences of pairs": {"bound": "sphere", "center": "pairs"},
}


def test_releases_of_rows_clipped_in_different_ways_are_refused_with_the_remedy():
    releases = {
        kind: PrivatePCA(1, epsilon=4.0, delta=1e-5, **settings).fit(ordinary(1000)).release()
        for kind, settings in KINDS.items()
    }
    assert {kind: release.certificate.clipping for kind, release in releases.items()} == {
        kind: kind for kind in KINDS
    }
    for one in KINDS:
        for other in KINDS:
            if one == other:
                continue
            with pytest.raises(ValueError, match="let all owners take the private steps together, or"):
                fedpca.merge([releases[one], releases[other]])
        aggregator = Aggregator(1, privacy=Privacy(4.0, 1e-5))
        aggregator.receive("one", 1, releases[one])
        for other in KINDS:
            if one != other:
                with pytest.raises(SummaryRejected, match="do not add up"):
                    aggregator.receive("other", 1, releases[other])
        assert aggregator.model().count == 1000


def test_evaluations_of_rows_clipped_to_different_lengths_do_not_add_up():
    tables, model = far_apart(2), Subspace(DIRECTIONS, [2.0, 1.0], np.full(5, 20.0), 10.0, 6.0)
    sums = []
    for rows, bound in zip(tables, (2.0, 3.0), strict=True):
        pca = PrivatePCA(2, epsilon=4.0, delta=1e-5, bound=bound, center=np.full(5, 20.0))
        sums.append(pca.partial_fit(rows).evaluation_sum(rows, model))
    with pytest.raises(ValueError, match="clipped to the same length add up"):
        StepSum.pooled(sums)
    with pytest.raises(ValueError, match="must be of rows clipped to 3"):
        pca.evaluation(sums[0], model)
    with pytest.raises(ValueError, match="must be that of 'evaluation'"):
        pca.evaluation(sums[1], model.truncate(1))


def test_a_federation_evaluates_its_model():
    tables = dict(zip("abc", far_apart(), strict=True))
    pca = FederatedPCA(2, privacy=Privacy(4.0, 1e-5)).fit_clients(tables)
    found = pca.model_.certificate.evaluation
    assert found.records == 4500
    np.testing.assert_allclose(pca.explained_variance_, np.sort(found.energies)[::-1] / 4499)
    assert pca.explained_variance_ratio_.sum() == pytest.approx(found.explained()[0])
    deviations = np.concatenate([*tables.values()]) - pca.mean_
    along, _ = clipped_energies(pca.components_, deviations, found.radius)
    assert np.abs(pca.explained_variance_ - along / 4499).max() < 5 * found.sd / 4499
    streamed = tables | {"c": iter(np.array_split(tables["c"], 5))}
    fitted = FederatedPCA(2, privacy=Privacy(4.0, 1e-5)).fit_clients(streamed)
    assert fitted.model_.certificate.evaluation is None  # rows of a stream are gone


# --- what can go wrong with rows ---

DIGITS = load_digits().data


def two_clusters():
    rows = DIGITS.copy()
    rows[:900, 3] += 1e4
    return rows


def with_rows_at(size, share):
    rows = DIGITS.copy()
    places = np.random.default_rng(0).permutation(len(rows))[: max(1, round(share * len(rows)))]
    rows[places] = size * np.random.default_rng(1).normal(size=(len(places), 64))
    return rows


def affinity(pca, rows=DIGITS):
    shown = pca.n_components_
    return fedpca.metrics.affinity(pca.components_, Subspace.from_rows(rows, shown).components)


FAILURES = {  # rows, how good the components shown are at epsilon 4, and how many are shown, at least
    "digits": (DIGITS, 0.95, 6),
    "all rows equal": (np.tile(DIGITS[:1], (1797, 1)), None, 0),
    "all rows zero": (np.zeros((1797, 64)), None, 0),
    "one row at 1e12": (with_rows_at(1e12, 0), 0.95, 6),
    "1 % of rows at 1e6": (with_rows_at(1e6, 0.01), 0.9, 5),
    "rows + 1e6": (DIGITS + 1e6, 0.8, 4),
    "x 1e-9": (DIGITS * 1e-9, 0.95, 6),
    "x 1e11": (DIGITS * 1e11, 0.95, 6),
    "two clusters": (two_clusters(), None, 1),
    "n = 50": (DIGITS[:50], None, 0),
    "n = 4": (DIGITS[:4], None, 0),
    "constant columns": (np.hstack([DIGITS, np.ones((1797, 20))]), 0.9, 6),
}


def fitted(rows, epsilon, path, **settings):
    """A model of rows, however it comes about, and what it warned of."""
    privacy = Privacy(epsilon, 1e-5, **settings)
    pca = PrivatePCA(6, **privacy.settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if path == "fit":
            pca.fit(rows)
        elif path == "federated":
            names = np.array(list("ab"))[np.arange(len(rows)) % 2]
            pca = FederatedPCA(6, privacy=privacy).fit(rows, groups=names)
        else:
            for part in np.array_split(rows, min(len(rows), 9)):
                pca.partial_fit(part)
            pca.release()
    assert {warning.category for warning in caught} <= {UserWarning}
    return pca, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("path", ["fit", "federated"])
@pytest.mark.parametrize("kind", FAILURES)
def test_rows_of_any_kind_give_finite_components_or_say_that_there_are_none(kind, path):
    rows, least, shown = FAILURES[kind]
    for epsilon in (1.0, 4.0):
        pca, said = fitted(rows, epsilon, path)
        for value in (pca.components_, pca.mean_, pca.explained_variance_, pca.transform(rows)):
            assert np.isfinite(value).all()
        assert np.isfinite(pca.subspace_.total)
        if pca.n_components_ < 6:
            assert any("above the noise" in text for text in said)
        assert pca.subspace_.certificate.private
    assert pca.n_components_ >= (shown if path == "fit" else shown // 2)
    if least is not None and path == "fit":
        assert affinity(pca, rows if kind == "constant columns" else DIGITS) > least
    if kind == "two clusters":
        assert abs(pca.components_[0, 3]) > 0.95
    if kind.startswith(("all rows", "n =")):
        assert pca.n_components_ <= 1


@pytest.mark.parametrize(
    "kind", ["digits", "all rows equal", "all rows zero", "1 % of rows at 1e6", "rows + 1e6"]
)
def test_streams_of_any_kind_do_as_well(kind):
    rows, _, _ = FAILURES[kind]
    pca, said = fitted(np.concatenate([rows, rows]), 4.0, "stream")
    for value in (pca.components_, pca.mean_, pca.explained_variance_, pca.transform(rows)):
        assert np.isfinite(value).all()
    assert pca.n_components_ == 6 or any("above the noise" in text for text in said)
    if kind.startswith("all rows"):
        assert pca.n_components_ <= 1  # the largest eigenvalue of noise may be beyond its edge
    else:
        assert affinity(pca) > 0.7


def test_the_unit_of_rows_makes_no_difference(no_noise):
    privacy = Privacy(4.0, 1e-5, insecure_seed_for_tests=4)
    one, other = (PrivatePCA(4, **privacy.settings).fit(DIGITS * size) for size in (1.0, 2.0**-30))
    np.testing.assert_allclose(other.components_, one.components_, atol=1e-9)
    np.testing.assert_allclose(other.explained_variance_ * 2.0**60, one.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_one_row_has_no_pair_and_that_is_said_before_anything_is_spent(mechanism):
    privacy = Privacy(1.0, 1e-5, mechanism=mechanism, ledger=Ledger(epsilon=1.0, delta=1e-5))
    with pytest.raises(ValueError, match="pairs of rows need two rows or more"):
        PrivatePCA(1, **privacy.settings).fit(DIGITS[:1])
    with pytest.raises(ValueError, match="pairs of rows need two rows or more"):
        FederatedPCA(1, privacy=replace(privacy, ledger=None)).fit(DIGITS[:2], groups=["a", "b"])
    assert privacy.ledger.entries == []


@pytest.mark.parametrize("wild", [NAN, INF, 1e308, -1e12, 0.0])
def test_no_single_row_decides_whether_a_fit_succeeds(wild):
    rows = DIGITS[:600].copy()
    rows[17] = wild
    for path in ("fit", "federated"):
        pca, _ = fitted(rows, 4.0, path)
        assert np.isfinite(pca.components_).all()


@pytest.mark.parametrize("path", ["fit", "stream"])
@pytest.mark.parametrize("n_rows", [4000, 16_000])
def test_the_noise_of_a_center_is_no_component_however_many_rows_follow(path, n_rows):
    rows = np.random.default_rng(0).normal(size=(n_rows, 20)) * [3.0, 2.0, *[0.0] * 18] + 5.0
    for _ in range(3):
        pca = PrivatePCA(epsilon=4.0, delta=1e-6, evaluate=False)
        if path == "fit":
            pca.fit(rows)
        else:
            pca.partial_fit(rows).release()
        assert pca.n_components_ == 2
        assert (pca.components_[:, :2] ** 2).sum(axis=1).min() > 0.95


def test_too_few_rows_for_a_scale_are_refused_before_anything_is_spent():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    pca = PrivatePCA(2, scale="std", epsilon=1.0, delta=1e-5, ledger=ledger)
    with pytest.raises(ValueError, match=r"needs about [\d,]+ rows .* there are 300; nothing was spent"):
        pca.fit(ordinary(300))
    assert ledger.entries == []


def test_units_of_features_make_no_difference_to_scaled_rows():
    rows = ordinary(6000) @ np.diag([1e3, 1.0, 1e-2, 1e5, 1.0]) + [0, 1e4, 0, 0, 5.0]
    pca = PrivatePCA(2, scale="std", epsilon=4.0, delta=1e-5).fit(rows)
    exact = Subspace.from_rows((rows - rows.mean(axis=0)) / rows.std(axis=0), 2)
    assert fedpca.metrics.affinity(pca.components_, exact.components) > 0.8
    np.testing.assert_allclose(pca.scale_, rows.std(axis=0), rtol=0.6)


# --- how good the components are ---

LONG = power_law(np.random.default_rng(5), 1600, 5, mean_size=0.0)
MODEL = Subspace(DIRECTIONS, [2.0, 1.0], np.zeros(5), 1600.0, 6.0)


def evaluations(radius, adjacency, pairs, n_runs=1000):
    """Independent evaluations of the same rows, and the numbers that they have without noise."""
    privacy = Privacy(2.0, 1e-5, adjacency=adjacency)
    found = Found(Clipping(None, pairs=pairs), radius)
    results = []
    for run in range(n_runs):
        energies = Energies(privacy, found)
        announced = energies.sum(MODEL)
        noise = FastNoise(run.to_bytes(32, "little")).entries((0,), announced.length, announced.blocks[0].sd)
        noisy = announced.vector([LONG], InOrder()) + noise
        results.append(energies.result(announced.of(noisy, 1600), MODEL))
    (block,) = steps.evaluation(MODEL, radius, 0.05, of_pairs=pairs).blocks
    *energies, rest, beyond = summed(block, LONG) / RADIUS**2 * (2 if pairs else 1)
    return results, np.array(energies) * radius**2, rest * radius**2, 2 * beyond / 1600


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("radius", [0.8, 3.0])
def test_an_evaluation_is_unbiased_and_its_interval_covers_the_truth(radius, adjacency, pairs):
    results, energies, rest, beyond = evaluations(radius, adjacency, pairs)
    measured = np.array([[*result.energies, result.rest] for result in results])
    sd = results[0].sd
    error = measured - [*energies, rest]
    assert np.abs(error.mean(axis=0)).max() < 4 * sd / sqrt(1000)
    np.testing.assert_allclose(error.std(axis=0), sd, rtol=0.08)
    total = energies.sum() + rest
    if sd * 5 > total:  # nothing can be said, and nothing is
        return
    for n_components in (1, 2):
        share = energies[:n_components].sum() / total
        intervals = [result.explained(n_components) for result in results]
        covered = np.mean([low <= share <= high for _, low, high in intervals])
        assert 0.93 <= covered <= 0.97
    shares = [result.beyond for result in results]
    if 0.2 < beyond < 0.8:
        assert np.mean(shares) == pytest.approx(beyond, abs=0.05)
    assert 0 <= min(shares) <= max(shares) <= 1


def test_the_noise_of_an_evaluation_is_that_of_its_cost():
    results, *_ = evaluations(3.0, "replace-one", False, n_runs=1)
    (found,) = results
    assert found.mu == pytest.approx(sqrt(0.05) * mu_of(2.0, 1e-5))
    assert found.sd == pytest.approx(1.5 * 3.0**2 / found.mu)
    assert found.radius == 3.0


def test_explained_variances_are_those_measured():
    rows = ordinary(5000)
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5).fit(rows)
    found = pca.release().certificate.evaluation
    np.testing.assert_allclose(pca.explained_variance_, np.sort(found.energies)[::-1] / 4999)
    np.testing.assert_allclose(pca.explained_variance_ratio_, np.sort(found.energies)[::-1] / found.total)
    assert pca.subspace_.total == pytest.approx(found.total)
    along, total = clipped_energies(pca.components_, rows - pca.mean_, found.radius)
    assert np.abs(pca.explained_variance_ - along / 4999).max() < 5 * found.sd / 4999
    assert found.beyond < 0.25
    share, low, high = found.explained()
    assert share == pytest.approx(along.sum() / total, abs=high - low)


@pytest.mark.parametrize(
    "settings",
    [{"bound": "sphere"}, {"mechanism": "sketch"}, {"bound": 300.0, "center": "pairs"}],
    ids=str,
)
def test_explained_variances_have_the_unit_of_the_rows(settings):
    """Those of rows scaled to length one would be shares."""
    rows = ordinary(5000) * 100
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5, **settings).fit(rows)
    found = pca.release().certificate.evaluation
    along, _ = clipped_energies(pca.components_, rows - rows.mean(axis=0), found.radius)
    assert np.abs(pca.explained_variance_ - along / 4999).max() < 5 * found.sd / 4999 + 0.02 * along[0] / 4999
    assert pca.explained_variance_[0] > 1000
    assert list(pca.explained_variance_) == sorted(pca.explained_variance_, reverse=True)


def test_a_weight_applies_to_an_evaluation_too():
    release = PrivatePCA(2, epsilon=4.0, delta=1e-5).fit(ordinary(3000)).release()
    half = release.scaled(sqrt(0.5))
    np.testing.assert_allclose(
        half.subspace().explained_variance_ratio, release.subspace().explained_variance_ratio
    )
    assert half.subspace().total == pytest.approx(release.subspace().total / 2)
    assert half.certificate.evaluation.explained() == pytest.approx(
        release.certificate.evaluation.explained()
    )


def test_what_was_measured_outlives_a_file(tmp_path):
    pca = PrivatePCA(2, epsilon=4.0, delta=1e-5).fit(ordinary(3000))
    for name, summary in (("release", pca.release()), ("subspace", pca.subspace_)):
        summary.save(tmp_path / name)
        loaded = fedpca.load(tmp_path / name)
        assert loaded == summary
        assert loaded.certificate.evaluation == pca.release().certificate.evaluation
        assert loaded.subspace().total == pytest.approx(summary.certificate.evaluation.total)


def test_a_merge_forgets_the_evaluations_of_its_parts():
    settings = {"bound": 3.0, "center": np.zeros(5)}
    releases = [
        PrivatePCA(2, epsilon=4.0, delta=1e-5, **settings).fit(ordinary(3000 + seed, seed=seed)).release()
        for seed in range(2)
    ]
    assert all(release.certificate.evaluation is not None for release in releases)
    merged = fedpca.merge(releases)
    assert merged.certificate.evaluation is None
    np.testing.assert_allclose(
        merged.scatter.trace(), sum(release.scatter.trace() for release in releases), rtol=0.2
    )


# --- nothing secret leaves ---


@pytest.mark.parametrize("copier", [pickle.dumps, copy.deepcopy])
def test_rows_in_the_middle_of_the_steps_cannot_be_copied_out(copier):
    streamed = PrivatePCA(2, epsilon=4.0, delta=1e-5).partial_fit(ordinary(50))
    in_rounds = PrivatePCA(2, epsilon=4.0, delta=1e-5)
    in_rounds.advance(in_rounds.step_sum(ordinary(1000)))
    in_rounds.step_sum(ordinary(1000))
    for pca in (streamed, in_rounds):
        assert secrets_in(pca) != []
        with pytest.raises(TypeError, match=r"release\(\) first"):
            copier(pca._source)


@pytest.mark.parametrize(
    "settings",
    [{}, {"bound": 3.0, "center": "pairs"}, {"releases": 3}, {"mechanism": "sketch"}],
    ids=str,
)
def test_copies_and_pickles_hold_nothing_secret(settings):
    rows = ordinary(2500)
    (pca,) = owners_of([rows], **settings)
    if "private" in (pca.bound, pca.center):
        rounds([pca], [rows])
    pca.partial_fit(rows).release()
    keys = [key for kept in secrets_in(pca) if isinstance(kept, Exit) for key in kept._keys.values()]
    assert keys != []  # an evaluation may come, and more releases
    stored = pickle.dumps(pca)
    assert not any(key in stored for key in keys)
    for twin in (pickle.loads(stored), copy.deepcopy(pca)):
        assert secrets_in(twin) == []
        assert not twin.can_evaluate
        np.testing.assert_array_equal(twin.components_, pca.components_)
        with pytest.raises(ValueError, match="nothing to evaluate with"):
            twin.evaluation_sum(rows, twin.subspace_)
        with pytest.raises(BudgetExceeded):
            twin.step_sum(rows)
    pca.evaluation_sum(rows, pca.subspace_)
    if settings.get("releases", 1) == 1:
        assert secrets_in(pca) == []


def test_a_fork_draws_no_noise_of_steps_or_evaluations(monkeypatch):
    rows = ordinary(2000)
    begun = PrivatePCA(2, epsilon=4.0, delta=1e-5)
    pooled = begun.step_sum(rows)
    done = PrivatePCA(2, epsilon=4.0, delta=1e-5, bound=3.0, center=None).partial_fit(rows)
    model = done.release().subspace(2)
    monkeypatch.setattr("fedpca._util.locks._forks", 10**6)  # as the child of a fork sees it
    for call in (
        lambda: begun.advance(pooled),
        lambda: begun.step_sum(rows),
        lambda: done.evaluation_sum(rows, model),
    ):
        with pytest.raises(RuntimeError, match="fork"):
            call()


def test_the_noise_of_steps_does_not_repeat():
    """Two owners with the same rows send different sums, and integers."""
    rows = ordinary(2000)
    sums = []
    for _ in range(2):
        pca = PrivatePCA(2, epsilon=4.0, delta=1e-5)
        pca.advance(pca.step_sum(rows))
        sums.append(pca.step_sum(rows))
        np.testing.assert_array_equal(sums[-1].total, np.rint(sums[-1].total))
    assert (sums[0].total != sums[1].total).mean() > 0.8


# --- constants that the proofs quote ---


def test_the_proofs_quote_the_constants_of_the_code():
    text = (Path(__file__).parents[2] / "docs/explanation/privacy-proofs.md").read_text(encoding="utf-8")
    text = " ".join(text.split())
    assert f"for zero-out; $w = {SUM_WEIGHT:g}$" in text
    assert f"integer point of squared norm at most $2^{{{log2(RADIUS**2):.0f}}}$" in text
    assert f"for up to $2^{{{log2(MAX_ROWS):.0f}}}$ rows" in text
    assert f"{100 * Privacy(1.0, 1e-6).evaluation_share:.0f} % of $\\mu^2$ is set apart" in text
    assert f"half a count beyond the radius | ${sqrt(2 + steps.BEYOND**2):g}$" in text.replace("3/2", "1.5")
    histograms, means, scales, octaves = 0.0, 0.0, 0.0, set()
    for epsilon, n_rows, d in product((0.1, 1.0, 8.0), np.geomspace(50, 1e7, 60), (1, 5, 100)):
        rule = SearchRule(Privacy(epsilon, 1e-9), d, 2, float(n_rows), 1.0, finds_scale=True)
        histograms = max(histograms, 3 * rule.histogram_share / rule.after_scale)
        means, scales = max(means, rule.mean_share / rule.after_scale), max(scales, rule.scale_share)
        assert rule.scale_share + 3 * rule.histogram_share + rule.mean_share < 0.7
        octaves.add(rule.histogram.per_octave)
    assert octaves == {1, 2, 4}
    assert "with public numbers, $2^{k}$, or $2^{k/2}$ or $2^{k/4}$ of many rows" in text
    assert f"histograms at most {100 * histograms:.0f} % and the mean at most {100 * means:.0f} %" in text
    assert scales == 0.25
    assert "`scales` takes at most a quarter" in text
    alone = [n for n in range(1, 9) if (Schedule(n).weights(n) == 1).all()]
    assert alone == [1, 2, 3, 4]
    assert "Up to four, every increment is noised by itself" in text
    Privacy(1e-30, 1e-60)
    for less in ((0.99e-30, 1e-60), (1e-30, 0.99e-60)):
        with pytest.raises(ValueError, match=r"1e-30|1e-60"):
            Privacy(*less)
    assert r"$\varepsilon$ from $10^{-30}$ and $\delta$ from $10^{-60}$, and less is refused" in text


def test_the_proofs_quote_the_sensitivities_of_the_code():
    text = (Path(__file__).parents[2] / "docs/explanation/privacy-proofs.md").read_text(encoding="utf-8")
    d, some, model = 7, np.zeros(7), Subspace.empty(7)
    sizes = {
        "1": 1.0, "2": 2.0, "$3/2$": 1.5,
        r"$\sqrt 2$": sqrt(2), r"$\sqrt 5/2$": sqrt(5) / 2, r"$\sqrt{2d}$": sqrt(2 * d),
    }  # fmt: skip
    of_rows, of_pairs = steps.lengths_and_spread(steps.DYADIC, 0.1, 0).blocks
    radius, mean = steps.radius(steps.DYADIC, 0.1, 0).blocks[0], steps.mean(some, 1.0, 0.1, 0).blocks[0]
    evaluation = [steps.evaluation(model, 1.0, 0.1, of_pairs=pairs).blocks[0] for pairs in (False, True)]
    in_ball = {mean: RADIUS} | dict.fromkeys(evaluation, RADIUS**2)
    quoted = {
        "`scales`": [steps.scales(d, 0.1, 0).blocks[0]],
        "`lengths`, `radius`": [of_rows, radius],
        "`spread`": [of_pairs],
        "`mean`": [mean],
        "`evaluation`": evaluation[:1],
    }
    table = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"
    ]
    for name, blocks in quoted.items():
        ((_, _, replaced, taken_out),) = (row for row in table if row[0] == name)
        if name == "`evaluation`":
            taken_out, _, pairs = taken_out.partition("; of pairs ")
            assert {sizes[pairs]} == {size / RADIUS**2 for size in evaluation[1].sensitivities}
        for block in blocks:
            found = [size / in_ball.get(block, 1.0) for size in block.sensitivities]
            assert found == pytest.approx([sizes[replaced], sizes[taken_out]])
    gram, sketch = (KNOWN[name].sensitivity for name in ("gram", "sketch"))
    assert "| release of pairs | of its pair, what a row adds to `gram` or `sketch` | $\\sqrt 2$; 2 |" in text
    assert [one("replace-one", joint=False) for one in (gram, sketch)] == [sizes[r"$\sqrt 2$"], 2.0]
    assert [one("zero-out", joint=False) for one in (gram, sketch)] == [1.0, 1.0]
    assert "$\\Delta = \\sqrt 2\\,(1 + w^2/2)$, or $\\sqrt{1 + w^2}$ for zero-out" in text
    joint = sqrt(1 + SUM_WEIGHT**2)
    assert gram("replace-one", joint=True) == pytest.approx(sqrt(2) * (1 + SUM_WEIGHT**2 / 2))
    assert gram("zero-out", joint=True) == pytest.approx(joint)
    assert "jointly with $w \\sum x$, by at most $\\sqrt{1 + w^2}$ times that" in " ".join(text.split())
    assert sketch("replace-one", joint=True) == pytest.approx(2 * joint)
    assert sketch("zero-out", joint=True) == pytest.approx(joint)
