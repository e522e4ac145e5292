"""The audit fails the mistakes that others have shipped: mutants found in published code, or near it.

The number of runs is such that the chance to miss a mutant is below one in a million. Two worlds that never
overlap give the same bound every time, mu = 2.65 in 200 runs where 1.67 is promised. Noise smaller by a small
factor takes more runs, in two pairs of worlds that are independent of each other, or at a larger epsilon.
"""

import sys
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from fedpca import Ledger, Privacy, audit
from fedpca.privacy import clipping, evaluation, exit, noise, schedule, steps, sums
from fedpca.privacy.mechanisms import base, gram, registry
from reproduction.fast_noise import FastNoise

pytestmark = pytest.mark.slow  # all of it together

AUDIT = sys.modules[audit.__module__]
PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=5.0, center=None, evaluate=False)
UNKNOWN = Privacy(epsilon=1.0, delta=1e-6)  # center and bound are found privately
ZERO_OUT = replace(UNKNOWN, adjacency="zero-out")
LARGE = 16.0  # mu = 2.9: where noise too small by sqrt(2) is found in the fewest runs


@pytest.fixture
def unrounded(monkeypatch):
    """Noise that is not rounded: a little of it shows less than its calibration says, if it is."""
    monkeypatch.setattr(exit, "ExactNoise", FastNoise)


def failing_pairs(result):
    return [finding.pair for finding in result.findings if not finding.passed]


def failing(monkeypatch, privacy, *pairs, runs, **settings):
    """Which of these pairs of worlds fail."""
    all_cases = AUDIT.cases
    with monkeypatch.context() as patch:
        patch.setattr(AUDIT, "cases", lambda *args: (c for c in all_cases(*args) if c.name in pairs))
        result = audit(privacy, runs=runs, confidence=0.99, **settings)
    looked_at = {finding.pair for finding in result.findings}
    assert set(pairs) <= looked_at, "no such pair of worlds"
    return failing_pairs(result)


def mutate_calibration(monkeypatch, **factors):
    """Noise other than what the books say: sigma, off_diagonal times these."""
    calibrate = registry.calibrate

    def wrong(*args, **settings):
        right = calibrate(*args, **settings)
        return replace(right, **{name: factor * getattr(right, name) for name, factor in factors.items()})

    monkeypatch.setattr(registry, "calibrate", wrong)


def mutate_step(monkeypatch, name, block=0, *, sensitivity):
    """A step with noise for another sensitivity in one of its blocks: for what `sensitivity` makes of it."""
    module = evaluation if name == "evaluation" else steps
    right = getattr(module, name)

    def wrong(*args, **settings):
        step = right(*args, **settings)
        blocks = list(step.blocks)
        of_block = tuple(map(sensitivity, blocks[block].sensitivities))
        blocks[block] = replace(blocks[block], sensitivities=of_block)
        return replace(step, blocks=tuple(blocks))

    monkeypatch.setattr(module, name, wrong)
    monkeypatch.setattr(sums.Sum, "check", lambda *sums: None)  # it would notice by the same number


# --- the release ---


def test_no_clipping_is_caught(monkeypatch):
    monkeypatch.setattr(clipping, "clipped", lambda rows, bound: np.rint(np.asarray(rows) * (4096.0 / bound)))
    result = audit(PRIVACY, runs=200)
    assert failing_pairs(result) == ["outlier, 8 times the bound"]


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
def test_noise_too_small_by_the_root_of_two_is_caught(monkeypatch):
    monkeypatch.setitem(gram.SENSITIVITY, "replace-one", 1.0)
    assert failing(monkeypatch, PRIVACY, "diagonal", runs=1500, epsilon=LARGE)


@pytest.mark.audit
def test_halved_noise_off_the_diagonal_is_caught(monkeypatch):
    mutate_calibration(monkeypatch, off_diagonal=1 / 2)
    assert failing_pairs(audit(PRIVACY, runs=500)) == ["off the diagonal"]


def test_a_mask_that_copies_the_data_off_the_diagonal_is_caught(monkeypatch):
    """What is above the diagonal without noise, as in a released MOD-SuLQ: it is the data."""
    blocks = gram.Gram.blocks

    def copying(self):
        diagonal, above, *rest = blocks(self)
        return (diagonal, above._replace(sd=1e-6 * above.sd), *rest)

    monkeypatch.setattr(gram.Gram, "blocks", copying)
    monkeypatch.setattr(sums.Sum, "check", lambda *sums: None)
    assert "off the diagonal" in failing_pairs(audit(PRIVACY, runs=200))


@pytest.mark.audit
def test_a_schedule_that_forgets_its_sensitivity_is_caught(monkeypatch):
    assert schedule.Schedule(5).column_norm == pytest.approx(1.25, abs=0.01)
    monkeypatch.setattr(schedule.Schedule, "column_norm", 0.6)
    assert failing(monkeypatch, replace(PRIVACY, releases=5), "diagonal", runs=400)


@pytest.mark.audit
def test_the_same_noise_in_every_report_is_caught(monkeypatch):
    weighted = noise.ExactNoise.weighted

    def same(self, labels, weights, count, sd):
        return weighted(self, [(0, *label[1:]) for label in labels], weights, count, sd)

    monkeypatch.setattr(noise.ExactNoise, "weighted", same)
    assert failing(monkeypatch, replace(PRIVACY, releases=5), "diagonal", runs=200)


def test_a_sum_of_rows_without_noise_is_caught(monkeypatch):
    monkeypatch.setattr(base, "SUM_WEIGHT", 1e9)
    calibrate = registry.calibrate
    monkeypatch.setattr(
        registry, "calibrate", lambda *args, joint=False, **settings: calibrate(*args, **settings)
    )
    assert "many rows" in failing(monkeypatch, UNKNOWN, "many rows", runs=200)


def test_rows_on_the_sphere_that_are_longer_than_one_are_caught(monkeypatch):
    on_sphere = clipping.on_sphere
    monkeypatch.setattr(clipping, "on_sphere", lambda *args: 2 * on_sphere(*args))
    assert "fewer rows" in failing(monkeypatch, UNKNOWN, "fewer rows", runs=200)


# --- private steps ---

HISTOGRAMS = [
    ("scales", 0, "scales alone"),
    ("lengths_and_spread", 0, "lengths alone"),
    ("lengths_and_spread", 1, "spread alone"),
    ("radius", 0, "radius alone"),
]


def scale_of(name):
    return "std" if name == "scales" else None


def finding(name, privacy):
    """Settings that find this: lengths about a center are looked for where the center is public."""
    return replace(privacy, center=None) if name == "radius" else privacy


@pytest.mark.parametrize(("step", "block", "pair"), [*HISTOGRAMS, ("mean", 0, "mean alone")])
def test_a_step_without_noise_is_caught(monkeypatch, step, block, pair):
    mutate_step(monkeypatch, step, block, sensitivity=lambda right: 1e-6 * right)
    assert failing(monkeypatch, finding(step, UNKNOWN), pair, runs=200, scale=scale_of(step))


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
@pytest.mark.parametrize(("step", "block", "pair"), HISTOGRAMS)
def test_a_histogram_that_forgets_the_root_of_two_is_caught(monkeypatch, step, block, pair):
    mutate_step(monkeypatch, step, block, sensitivity=lambda right: right / sqrt(2))
    assert failing(monkeypatch, finding(step, UNKNOWN), pair, runs=1500, epsilon=LARGE, scale=scale_of(step))


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
def test_scales_with_the_sensitivity_of_one_feature_are_caught(monkeypatch):
    mutate_step(monkeypatch, "scales", sensitivity=lambda right: sqrt(2))
    assert failing(monkeypatch, UNKNOWN, "scales alone", runs=800, epsilon=LARGE, scale="std")


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
def test_a_mean_for_rows_that_are_taken_out_where_they_are_replaced_is_caught(monkeypatch):
    mutate_step(monkeypatch, "mean", sensitivity=lambda right: clipping.RADIUS)
    assert failing(monkeypatch, UNKNOWN, "mean alone", runs=500)


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
def test_rows_at_the_center_that_are_counted_are_caught(monkeypatch):
    """A row that is taken out would move from one bin to another: sqrt(2), with noise for 1."""
    monkeypatch.setattr(steps, "_counts_off_center", lambda hist, rows: hist.counts(clipping.lengths(rows)))
    assert failing(monkeypatch, ZERO_OUT, "lengths alone", runs=1500, epsilon=LARGE)


# --- pairs ---


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
def test_a_release_of_pairs_with_noise_for_rows_that_are_taken_out_is_caught(monkeypatch):
    calibrate = registry.calibrate
    monkeypatch.setattr(
        registry, "calibrate", lambda *args, pairs=False, **settings: calibrate(*args, **settings)
    )
    assert failing(monkeypatch, ZERO_OUT, "few rows", runs=1500, epsilon=LARGE)


@pytest.mark.usefixtures("unrounded")
@pytest.mark.audit
@pytest.mark.parametrize(("step", "block", "pair"), [HISTOGRAMS[0], HISTOGRAMS[2]])
def test_histograms_of_pairs_with_noise_for_rows_that_are_taken_out_are_caught(
    monkeypatch, step, block, pair
):
    mutate_step(monkeypatch, step, block, sensitivity=lambda right: right / sqrt(2))
    assert failing(monkeypatch, ZERO_OUT, pair, runs=1500, epsilon=LARGE, scale=scale_of(step))


@pytest.mark.parametrize(
    ("pair", "privacy"),
    [
        ("few rows", UNKNOWN),
        ("spread alone", UNKNOWN),
        ("evaluation of pairs alone", UNKNOWN),
        ("diagonal", replace(PRIVACY, center="pairs")),
    ],
)
def test_a_record_in_two_pairs_is_caught(monkeypatch, pair, privacy):
    def round_robin(self):
        rows = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        return (rows - np.roll(rows, 1, axis=0)) / sqrt(2)

    monkeypatch.setattr(clipping.Pairing, "flush", round_robin)
    assert pair in failing(monkeypatch, privacy, pair, runs=400, epsilon=LARGE)


# --- the evaluation ---


def test_an_evaluation_of_rows_that_are_not_clipped_is_caught(monkeypatch):
    monkeypatch.setattr(steps, "clipped", lambda rows, bound: np.rint(np.asarray(rows) * (4096.0 / bound)))
    assert failing(monkeypatch, UNKNOWN, "evaluation alone", runs=200)


@pytest.mark.parametrize("pair", ["evaluation alone", "evaluation of pairs alone"])
def test_an_evaluation_with_the_noise_of_another_budget_is_caught(monkeypatch, pair):
    share = UNKNOWN.evaluation_share
    mutate_step(monkeypatch, "evaluation", sensitivity=lambda right: sqrt(share) * right)  # for all of mu
    assert failing(monkeypatch, UNKNOWN, pair, runs=200)


# --- the books ---


@pytest.mark.parametrize(
    ("step", "pair"),
    [
        ("scales", "scales alone"),
        ("lengths and spread", "lengths alone"),
        ("mean", "mean alone"),
        ("radius", "radius alone"),
        ("evaluation", "evaluation alone"),
        ("gram", "many rows"),
    ],
)
@pytest.mark.long
def test_a_step_that_is_not_debited_is_caught(monkeypatch, step, pair):
    debit = Ledger.debit

    def forgetful(self, start, stop, mechanism, mu, **settings):
        return debit(self, start, stop, mechanism, 0.0 if mechanism == step else mu, **settings)

    monkeypatch.setattr(Ledger, "debit", forgetful)
    privacy = finding(step, UNKNOWN)
    assert pair in failing(monkeypatch, privacy, pair, runs=400, epsilon=LARGE, scale=scale_of(step))


@pytest.mark.long
def test_a_step_of_a_stream_that_is_debited_for_other_records_is_caught(monkeypatch):
    debit = Ledger.debit

    def confused(self, start, stop, mechanism, mu, **settings):
        late = 10**6 if mechanism == "lengths and spread" else 0
        return debit(self, start + late, stop and stop + late, mechanism, mu, **settings)

    monkeypatch.setattr(Ledger, "debit", confused)
    assert failing(monkeypatch, UNKNOWN, "stream, lengths and spread", runs=400, epsilon=LARGE)


def test_the_same_noise_in_two_steps_is_caught(monkeypatch):
    weighted = noise.ExactNoise.weighted
    monkeypatch.setattr(
        noise.ExactNoise, "weighted", lambda self, labels, *args: weighted(self, [(0,)] * len(labels), *args)
    )
    failed = failing(monkeypatch, UNKNOWN, "many rows", runs=200)
    assert any("noise of" in pair for pair in failed)


def test_the_same_noise_in_evaluation_and_steps_is_caught(monkeypatch):
    """One key for all purposes, and labels that do not tell them apart."""
    derived, entries = exit._derived, noise.ExactNoise.weighted
    monkeypatch.setattr(exit, "_derived", lambda key, purpose: derived(key, b""))
    monkeypatch.setattr(
        noise.ExactNoise, "weighted", lambda self, labels, *args: entries(self, [(0,)] * len(labels), *args)
    )
    assert failing(monkeypatch, replace(UNKNOWN, bound=5.0), "no center", runs=200)
