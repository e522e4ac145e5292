"""The audit passes every private path there is. What it catches is in test_audit_mutants.py."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import scatter_of

from fedpca import Privacy, StreamingPCA, audit
from fedpca.privacy.audit import _distinguish
from fedpca.privacy.calibration import epsilon_of, mu_of
from fedpca.privacy.tracker import PrivateTracker

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=5.0, center=None, evaluate=False)
MU = mu_of(8.0, 1e-5)

RUNS = [
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
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "runs"), RUNS, ids=str)
def test_every_private_path_keeps_its_promise(settings, runs):
    result = audit(replace(PRIVACY, **settings), runs=runs)
    assert result.passed
    if settings == {}:  # and the test has power: it shows most of what is promised
        assert max(finding.mu for finding in result.findings) > 0.7 * MU
        assert "passed" in repr(result)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("settings", [settings for settings, _ in RUNS], ids=str)
def test_what_is_audited_is_what_the_estimator_releases(settings, at_once, rng):
    """Given the same key, the estimator and the tracker behind it release the same numbers."""
    settings = {"releases": 2} | settings | {"epsilon": 8.0, "insecure_seed_for_tests": 1}
    if isinstance(settings.get("center"), tuple):
        settings["center"] *= 3
    privacy = replace(PRIVACY, **settings)
    batches = rng.normal(size=(2, 40, 3))
    pca = StreamingPCA(privacy=privacy, batch_size=8)
    tracker = PrivateTracker(3, None, privacy, batch_rows=8)
    while at_once and tracker.needs_center:
        total, n_rows = tracker.center_sum([batches[0]], 40)
        tracker.move_center(total / n_rows)
    for report, batch in enumerate(batches):
        learn = pca.fit if at_once and report == 0 else pca.partial_fit
        learn(batch)
        tracker.update([batch], len(batch))
        ours, theirs = tracker.release(), pca.release()
        assert ours.count == theirs.count
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        np.testing.assert_array_equal(scatter_of(ours), scatter_of(theirs))
        assert ours.certificate.mu == theirs.certificate.mu


# --- the test itself ---


@pytest.mark.parametrize("mu", [0.5, 1.67, 3.0])
def test_bounds_hold_for_gaussians_and_come_near(mu):
    rng = np.random.default_rng(0)
    found = [_distinguish(rng.normal(mu, size=4000), rng.normal(size=4000), 1e-5, 1e-3) for _ in range(20)]
    assert all(lower <= mu for _, lower in found)
    assert np.mean([lower for _, lower in found]) > mu - 0.35
    assert all(epsilon <= epsilon_of(mu, 1e-5) for epsilon, _ in found)


def test_two_worlds_that_never_overlap_are_distinguish_without_dividing_by_zero():
    epsilon, mu = _distinguish(np.ones(1000), np.zeros(1000), 1e-5, 1e-3)
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
