"""A plan is right about the noise it announces, and near the truth about the rows it asks for."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from helpers import WITHOUT_ADVICE, power_law

import fedpca
from fedpca import Privacy, StreamingPCA, plan
from fedpca.privacy.calibration import mu_of

pytestmark = WITHOUT_ADVICE

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=2.0)


def test_the_plan_announces_what_the_certificate_will_say():
    rows = power_law(np.random.default_rng(0), 500, 12)
    for settings in ({}, {"adjacency": "zero-out"}, {"mechanism": "mod-sulq"}, {"releases": 7}):
        privacy = Privacy(1.0, 1e-5, 2.0, **settings)
        pca = StreamingPCA(2, privacy=privacy)
        for part in np.array_split(rows, privacy.releases):
            certificate = pca.partial_fit(part).release().certificate
        planned = plan(privacy, 12)
        for name in ("mu", "sigma", "sensitivity", "noise_edge"):
            assert getattr(planned, name) == pytest.approx(getattr(certificate, name)), name


def test_rows_needed_are_about_those_that_are_needed():
    """At the rows asked for, the component asked for comes out with a cosine of about 0.9."""
    n_features, spectrum = 60, 1 / np.arange(1.0, 61) ** 2
    privacy = Privacy(1.0, 1e-6, 5.0)  # hardly a row is clipped
    planned = plan(privacy, n_features, spectrum=spectrum, n_components=1)
    rows = np.random.default_rng(0).normal(size=(planned.rows_needed, n_features)) * np.sqrt(spectrum)
    seeded = [replace(privacy, insecure_seed_for_tests=seed) for seed in range(20)]
    cosines = [abs(StreamingPCA(1, privacy=each).fit(rows).components_[0, 0]) for each in seeded]
    assert 0.85 < np.mean(cosines) < 0.95


def test_more_privacy_features_components_owners_or_reports_need_more_rows():
    base = plan(PRIVACY, 100).rows_needed
    assert plan(Privacy(0.5, 1e-6, 2.0), 100).rows_needed > base
    assert plan(PRIVACY, 400).rows_needed > base
    assert plan(PRIVACY, 100, n_components=3).rows_needed > 2.5 * base
    assert plan(PRIVACY, 100, owners=4).rows_needed == pytest.approx(2 * base, abs=2)
    assert plan(Privacy(1.0, 1e-6, 2.0, releases=16), 100).rows_needed == pytest.approx(1.94 * base, rel=0.01)
    assert plan(Privacy(1.0, 1e-6, 2.0, center="private"), 100).rows_needed > base
    assert plan(Privacy(1.0, 1e-6, 2.0, adjacency="zero-out"), 100).rows_needed < base
    assert plan(Privacy(1.0, 1e-6, 2.0, mechanism="streaming-mod-sulq"), 100).rows_needed >= base
    assert plan(Privacy(1.0, 1e-6, 2.0, mechanism="sketch"), 100).rows_needed > base
    paper = Privacy(1.0, 1e-6, 2.0, mechanism="streaming-mod-sulq", calibration="paper")
    assert plan(paper, 100).rows_needed > 10_000 * base
    assert (
        plan(Privacy(1.0, 1e-6, 20.0), 100).rows_needed == base
    )  # an assumed spectrum scales with the bound


def test_the_bound_does_not_matter_but_its_ratio_to_the_spectrum_does():
    tight, loose = (plan(Privacy(1.0, 1e-6, bound), 10, spectrum=[1.0]) for bound in (1.5, 3.0))
    assert loose.rows_needed == pytest.approx(4 * tight.rows_needed, rel=0.01)
    assert loose.noise_edge == pytest.approx(4 * tight.noise_edge)
    assert tight.noise_edge == pytest.approx(1.5**2 * sqrt(2 * 10) * sqrt(2) / mu_of(1.0, 1e-6))


def test_advice_is_plain():
    drowned = plan(PRIVACY, 784, n_rows=400)
    assert "With 400 rows and 784 features nothing will survive the noise." in drowned.advice
    assert drowned.components_found == 0
    some = plan(PRIVACY, 50, n_rows=5000, n_components=40)
    assert 0 < some.components_found < 40
    assert f"about {some.components_found} of 40 components will be found" in some.advice
    enough = plan(PRIVACY, 20, n_rows=500_000, n_components=5)
    assert "5 components will be found" in enough.advice
    assert "mechanism='gram'" in plan(Privacy(1.0, 1e-6, 2.0, mechanism="mod-sulq"), 20).advice
    assert "rows_needed" in repr(enough)


def test_memory_is_that_of_the_mechanism():
    assert plan(PRIVACY, 1000).memory == 24 * 1000**2
    assert plan(Privacy(1.0, 1e-6, 2.0, mechanism="sketch"), 20_000).memory < 0.05 * 8 * 20_000**2
    assert plan(Privacy(1.0, 1e-6, 2.0, mechanism="streaming-mod-sulq"), 20_000).memory < 0.2 * 8 * 20_000**2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((784, 10**7), r"delta must be below one over the number of rows"),
        ((5000,), "mechanism='sketch'"),
        ((0,), "n_features must be at least 1"),
        ((5, 0), "n_rows must be at least 1"),
        ((5, 100, [1.0, -1.0]), "spectrum"),
        ((5, 100, []), "spectrum"),
        ((5, 100, [5.0]), "more than bound²"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        plan(PRIVACY, *arguments)


def test_more_bad_arguments():
    with pytest.raises(ValueError, match="3 wanted, 1 given"):
        plan(PRIVACY, 5, spectrum=[1.0], n_components=3)
    with pytest.raises(TypeError, match="plan needs a Privacy"):
        plan(1.0, 5)
    with pytest.raises(ValueError, match="owners"):
        fedpca.plan(PRIVACY, 5, owners=0)
