"""The audit passes every private path there is, and fails the mistakes that others have shipped."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import fedpca
from fedpca import Privacy, audit
from fedpca.privacy import centering, mechanisms, noise, schedule
from fedpca.privacy.audit import _told_apart
from fedpca.privacy.calibration import mu_of

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=5.0)
MU = mu_of(8.0, 1e-5)


def failing_pairs(result):
    return [f.pair for f in result.findings if f.mu > result.mu or f.epsilon > result.privacy.epsilon]


# --- right ---


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, 4000),
        ({"adjacency": "zero-out"}, 1000),
        ({"center": (7.0,)}, 1000),
        ({"mechanism": "mod-sulq"}, 1000),
        ({"mechanism": "streaming-mod-sulq"}, 500),
        ({"mechanism": "streaming-mod-sulq", "calibration": "paper"}, 500),
        ({"mechanism": "sketch"}, 500),
        ({"center": "private"}, 500),
        ({"releases": 3}, 300),
        ({"releases": 5}, 300),
        ({"noise": "fast"}, 500),
    ],
    ids=str,
)
def test_every_private_path_keeps_its_promise(settings, runs):
    result = audit(replace(PRIVACY, **settings), runs=runs)
    assert result.passed
    assert failing_pairs(result) == []
    if settings == {}:  # and the test has power: it shows most of what is promised
        assert max(finding.mu for finding in result.findings) > 0.7 * MU
        assert "passed" in repr(result)


# --- wrong: each mutant is a mistake found in published code, or the nearest to it ---


PAPER = replace(PRIVACY, mechanism="streaming-mod-sulq", calibration="paper")


def mutate_calibration(monkeypatch, **factors):
    """Noise other than what the books say: sigma, off_diagonal times these."""
    calibrate = mechanisms.calibrate

    def wrong(*args, **settings):
        right = calibrate(*args, **settings)
        return replace(right, **{name: factor * getattr(right, name) for name, factor in factors.items()})

    monkeypatch.setattr(mechanisms, "calibrate", wrong)


def test_noise_for_all_rows_instead_of_the_batch_is_caught(monkeypatch):
    mutate_calibration(monkeypatch, sigma=1 / 100, off_diagonal=1 / 100)  # n = 100 b
    result = audit(PAPER, runs=500)
    assert not result.passed
    assert "FAILED" in repr(result)


def test_the_ledger_refuses_noise_for_all_rows_instead_of_the_batch_by_itself(monkeypatch):
    omega = mechanisms.paper_omega
    monkeypatch.setattr(mechanisms, "paper_omega", lambda e, d, f, n: omega(e, d, f, 100 * n))
    with pytest.raises(fedpca.BudgetExceeded):
        audit(PAPER, runs=100)


def test_no_clipping_is_caught(monkeypatch):
    monkeypatch.setattr(
        mechanisms, "clipped", lambda rows, bound: np.rint(np.asarray(rows) * (4096.0 / bound))
    )
    result = audit(PRIVACY, runs=1000)
    assert failing_pairs(result) == ["outlier, 8 times the bound"]


def test_noise_too_small_by_the_root_of_two_is_caught(monkeypatch):
    monkeypatch.setitem(mechanisms.SENSITIVITY, "replace-one", 1.0)
    assert not audit(PRIVACY, runs=4000).passed


def test_halved_noise_off_the_diagonal_is_caught(monkeypatch):
    mutate_calibration(monkeypatch, off_diagonal=1 / 2)
    result = audit(PRIVACY, runs=2000)
    assert set(failing_pairs(result)) <= {"off the diagonal", "lower triangle"}
    assert not result.passed


def test_a_mask_that_copies_the_data_off_the_diagonal_is_caught(monkeypatch):
    """The lower triangle without noise, as in a released MOD-SuLQ: whoever reads it reads the data."""

    def copying(self, matrix):
        for rows, columns, tile in self.tiles():
            matrix[rows, columns] += np.diag(np.diag(tile)) if rows == columns else 0.0
        return matrix

    monkeypatch.setattr(noise.SymmetricMask, "add_to", copying)
    result = audit(replace(PRIVACY, mechanism="mod-sulq"), runs=1000)
    assert {"off the diagonal", "lower triangle"} <= set(failing_pairs(result))


def test_a_schedule_that_forgets_its_sensitivity_is_caught(monkeypatch):
    assert schedule.Schedule(5).column_norm == pytest.approx(1.25, abs=0.01)
    monkeypatch.setattr(schedule.Schedule, "column_norm", 0.6)
    assert not audit(replace(PRIVACY, releases=5), runs=400).passed


def test_the_same_noise_in_every_report_is_caught(monkeypatch):
    weighted = noise.ExactNoise.weighted

    def same(self, labels, weights, count, sd):
        return weighted(self, [(0, *label[1:]) for label in labels], weights, count, sd)

    monkeypatch.setattr(noise.ExactNoise, "weighted", same)
    assert "difference of reports" in failing_pairs(audit(replace(PRIVACY, releases=5), runs=300))


def test_the_same_noise_in_every_batch_is_caught(monkeypatch):
    monkeypatch.setattr(mechanisms.StreamingModSulq, "_batches", 0, raising=False)
    absorb = mechanisms.StreamingModSulq._absorb

    def same(self, batch):
        self._batches = 0
        absorb(self, batch)

    monkeypatch.setattr(mechanisms.StreamingModSulq, "_absorb", same)
    result = audit(replace(PRIVACY, mechanism="streaming-mod-sulq"), runs=500)
    assert "difference of reports" in failing_pairs(result)


def test_a_center_without_noise_is_caught(monkeypatch):
    right = centering.center_sigma
    stream = centering.stream_rows
    monkeypatch.setattr(sys.modules["fedpca.privacy.audit"], "stream_rows", lambda *args: (3, 9))
    monkeypatch.setattr("fedpca.privacy.tracker.stream_rows", lambda *args: (3, 9))
    assert stream(Privacy(8.0, 1e-5, 5.0, center="private"), 3) == (3, 9)
    monkeypatch.setattr(centering, "center_sigma", lambda privacy, mu: 1e-6 * right(privacy, mu))
    result = audit(replace(PRIVACY, center="private"), runs=300)
    assert "first row, mean, all at once" in failing_pairs(result)


def test_a_sum_of_rows_without_noise_is_caught(monkeypatch):
    monkeypatch.setattr(mechanisms, "_SUM_WEIGHT", 1e9)
    calibrate = mechanisms.calibrate
    monkeypatch.setattr(mechanisms, "calibrate", lambda p, n, mu=None, joint=False: calibrate(p, n, mu=mu))
    assert "mean" in failing_pairs(audit(replace(PRIVACY, center="private"), runs=300))


def test_mod_sulq_is_held_to_its_own_certificate(monkeypatch):
    mutate_calibration(monkeypatch, sigma=1 / 8, off_diagonal=1 / 8)  # within (8, 1e-5), but not as certified
    assert not audit(replace(PRIVACY, mechanism="mod-sulq"), runs=1000).passed


# --- the test itself ---


@pytest.mark.parametrize("mu", [0.5, 1.67, 3.0])
def test_bounds_hold_for_gaussians_and_come_near(mu):
    rng = np.random.default_rng(0)
    found = [_told_apart(rng.normal(mu, size=4000), rng.normal(size=4000), 1e-5, 1e-3) for _ in range(20)]
    assert all(lower <= mu for _, lower in found)
    assert np.mean([lower for _, lower in found]) > mu - 0.35
    from fedpca.privacy.calibration import epsilon_of

    assert all(epsilon <= epsilon_of(mu, 1e-5) for epsilon, _ in found)


def test_two_worlds_that_never_overlap_are_told_apart_without_dividing_by_zero():
    epsilon, mu = _told_apart(np.ones(1000), np.zeros(1000), 1e-5, 1e-3)
    assert epsilon > 3
    assert mu > 3


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"runs": 5}, "runs must be at least"),
        ({"n_features": 1}, "n_features"),
        ({"confidence": 1}, "confidence"),
    ],
)
def test_bad_arguments(settings, match):
    with pytest.raises(ValueError, match=match):
        audit(PRIVACY, **settings)
    with pytest.raises(TypeError, match="audit needs a Privacy"):
        audit(1.0)
