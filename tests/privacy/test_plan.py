"""A plan is right about the noise it announces, and near the truth about the rows it asks for."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from helpers import power_law

import fedpca
from fedpca import Privacy, PrivatePCA, plan
from fedpca.privacy.calibration import mu_of

PRIVACY = Privacy(epsilon=1.0, delta=1e-6, bound=2.0, center=None, evaluate=False)


def vars_of(privacy):
    return {name: getattr(privacy, name) for name in ("bound", "center", "evaluate")}


def test_the_plan_announces_what_the_certificate_will_say():
    rows = power_law(np.random.default_rng(0), 500, 12)
    for settings in (
        {},
        {"adjacency": "zero-out"},
        {"releases": 7},
        {"evaluate": True},
        {"center": "pairs"},
        {"center": "pairs", "adjacency": "zero-out"},
        {"bound": "sphere"},
    ):
        privacy = Privacy(**({"epsilon": 1.0, "delta": 1e-5} | vars_of(PRIVACY) | settings))
        pca = PrivatePCA(2, **privacy.settings)
        for part in np.array_split(rows, privacy.releases):
            certificate = pca.partial_fit(part).release().certificate
        planned = plan(privacy, 12)
        for name in ("mu", "sigma", "sensitivity", "noise_edge"):
            assert getattr(planned, name) == pytest.approx(getattr(certificate, name)), name


def test_rows_needed_are_about_those_that_are_needed():
    """At the rows asked for, the component asked for comes out with a cosine of about 0.9."""
    n_features, spectrum = 60, 1 / np.arange(1.0, 61) ** 2
    privacy = Privacy(1.0, 1e-6, 5.0, center=None, evaluate=False)  # hardly a row is clipped
    planned = plan(privacy, n_features, spectrum=spectrum, n_components=1)
    rows = np.random.default_rng(0).normal(size=(planned.rows_needed, n_features)) * np.sqrt(spectrum)
    seeded = [replace(privacy, insecure_seed_for_tests=seed) for seed in range(20)]
    cosines = [abs(PrivatePCA(1, **each.settings).fit(rows).components_[0, 0]) for each in seeded]
    assert 0.85 < np.mean(cosines) < 0.95


def test_more_privacy_features_components_owners_or_reports_need_more_rows():
    base = plan(PRIVACY, 100).rows_needed
    assert plan(Privacy(0.5, 1e-6, 2.0, center=None, evaluate=False), 100).rows_needed > base
    assert plan(PRIVACY, 400).rows_needed > base
    assert plan(PRIVACY, 100, n_components=3).rows_needed > 2.5 * base
    assert plan(PRIVACY, 100, owners=4).rows_needed == pytest.approx(2 * base, abs=2)
    assert plan(
        Privacy(1.0, 1e-6, 2.0, releases=16, center=None, evaluate=False), 100
    ).rows_needed == pytest.approx(1.94 * base, rel=0.01)
    assert plan(Privacy(1.0, 1e-6, 2.0, center="private", evaluate=False), 100).rows_needed > base
    assert (
        plan(Privacy(1.0, 1e-6, 2.0, adjacency="zero-out", center=None, evaluate=False), 100).rows_needed
        < base
    )
    assert (
        plan(Privacy(1.0, 1e-6, 2.0, mechanism="sketch", center=None, evaluate=False), 100).rows_needed > base
    )
    assert (
        plan(Privacy(1.0, 1e-6, 20.0, center=None, evaluate=False), 100).rows_needed == base
    )  # an assumed spectrum scales with the bound


def test_the_bound_does_not_matter_but_its_ratio_to_the_spectrum_does():
    tight, loose = (
        plan(Privacy(1.0, 1e-6, bound, center=None, evaluate=False), 10, spectrum=[1.0])
        for bound in (1.5, 3.0)
    )
    assert loose.rows_needed == pytest.approx(4 * tight.rows_needed, rel=0.01)
    assert loose.noise_edge == pytest.approx(4 * tight.noise_edge)
    assert tight.noise_edge == pytest.approx(1.5**2 * sqrt(2 * 10) * sqrt(2) / mu_of(1.0, 1e-6))


def test_advice_is_plain():
    drowned = plan(PRIVACY, 784, n_rows=400)
    assert "With 400 rows and 784 features nothing will survive the noise, if rows are" in drowned.advice
    assert drowned.components_found == 0
    some = plan(PRIVACY, 50, n_rows=5000, n_components=40)
    assert 0 < some.components_found < 40
    assert f"about {some.components_found} of 40 components will be found" in some.advice
    enough = plan(PRIVACY, 20, n_rows=50_000, n_components=5)
    assert "5 components will be found" in enough.advice
    assert (
        "mechanism='gram'"
        in plan(Privacy(1.0, 1e-6, 2.0, mechanism="sketch", center=None, evaluate=False), 20).advice
    )
    assert "rows_needed" in repr(enough)


def test_the_advice_says_what_it_is_true_for():
    """An assumed spectrum scales with the bound: whether the bound fits, only the user knows."""
    assert "if rows are about as long as the bound" in plan(PRIVACY, 20, 50_000).advice
    assert "if rows are about as long as the bound" in plan(PRIVACY, 20).advice
    assert "if rows are about 0.3 long" in plan(PRIVACY, 20, 50_000, typical=0.3).advice
    assert "if variances are as given" in plan(PRIVACY, 20, 50_000, [0.1]).advice


def test_a_bound_too_large_for_typical_rows_needs_more_of_them():
    fits, generous = (
        plan(Privacy(1.0, 1e-6, bound, center=None, evaluate=False), 20, typical=2.0).rows_needed
        for bound in (2.0, 20.0)
    )
    assert generous == pytest.approx(100 * fits, rel=0.01)
    longer = plan(Privacy(1.0, 1e-6, 2.0, center=None, evaluate=False), 20, typical=50.0).rows_needed
    assert longer == fits  # rows longer than the bound are clipped to it
    assert plan(PRIVACY, 20).rows_needed == plan(PRIVACY, 20, typical=2.0 * sqrt(0.5)).rows_needed


def test_a_spectrum_of_longer_rows_than_the_bound_is_clipped_and_never_refused():
    spectrum = np.array([40.0, 20.0, 7.9])  # 67.9, and bound² = 64
    clipped = plan(Privacy(1.0, 1e-6, 8.0, center=None, evaluate=False), 10, spectrum=spectrum)
    assert clipped.spectrum.sum() == pytest.approx(64.0)
    np.testing.assert_allclose(clipped.spectrum / clipped.spectrum[0], spectrum / spectrum[0])
    assert (
        clipped.rows_needed
        == plan(Privacy(1.0, 1e-6, 8.0, center=None, evaluate=False), 10, spectrum=100 * spectrum).rows_needed
    )


def test_a_plan_warns_where_a_fit_warns():
    weak = [
        (Privacy(1.0, 1e-3, 11.0, center=None, evaluate=False), "delta=0.001 is above a tenth"),
        (Privacy(20.0, 1e-6, 11.0, center=None, evaluate=False), "epsilon=20"),
    ]
    rows = np.random.default_rng(0).normal(size=(500, 12)) * 3
    for privacy, match in weak:
        with pytest.warns(UserWarning, match=match):
            plan(privacy, 12, 500)
        with pytest.warns(UserWarning, match=match):
            PrivatePCA(1, **privacy.settings).fit(rows)


def test_memory_is_that_of_the_mechanism():
    assert plan(PRIVACY, 1000).memory == 24 * 1000**2
    assert (
        plan(Privacy(1.0, 1e-6, 2.0, mechanism="sketch", center=None, evaluate=False), 20_000).memory
        < 0.05 * 8 * 20_000**2
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((784, 10**7), r"delta must be below one over the number of rows"),
        ((5000,), "mechanism='sketch'"),
        ((0,), "n_features must be at least 1"),
        ((5, 0), "n_rows must be at least 1"),
        ((5, 100, [1.0, -1.0]), "spectrum"),
        ((5, 100, []), "spectrum"),
        ((5, 100, [1.0] * 6), "at most one variance per feature: 5 features, 6 given"),
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
    for typical in (0, -1.0, float("nan"), float("inf"), "long"):
        with pytest.raises(ValueError, match="typical must be the length of a row"):
            plan(PRIVACY, 5, typical=typical)
    with pytest.raises(ValueError, match="give one of them"):
        plan(PRIVACY, 5, spectrum=[1.0], typical=1.0)
    with pytest.raises(ValueError, match="owners"):
        fedpca.plan(PRIVACY, 5, owners=0)


def test_with_a_scale_to_be_found_a_plan_knows_limits_only():
    """Half of the columns are nearly constant, and noise hides them: what is left has other components."""
    rng = np.random.default_rng(0)
    privacy = Privacy(1.0, 1e-5)
    hidden = rng.normal(size=(6000, 2)) @ rng.normal(size=(2, 10)) + rng.normal(size=(6000, 10))
    rare = (rng.random((6000, 10)) < 0.003) * 1.0
    rare[:, 1:] += 3 * rare[:, :1]
    rows = np.hstack([hidden, rare])
    exact = np.linalg.eigh(np.corrcoef(rows, rowvar=False))
    planned = plan(privacy, 20, len(rows), exact[0][::-1].tolist(), n_components=2, scale="std")
    assert planned.affinity is planned.captured is None
    assert "affinity=" not in repr(planned)
    assert f"affinity_limit={planned.affinity_limit:.2f}, captured_limit=" in repr(planned)
    assert "at best be found" in planned.advice
    assert "affinity and captured variance are limits" in planned.advice
    pca = PrivatePCA(2, scale="std", **replace(privacy, insecure_seed_for_tests=0).settings)
    with pytest.warns(UserWarning, match="left out"):
        pca.fit(rows)
    measured = np.square(pca.components_ @ exact[1][:, -2:]).sum() / 2
    assert measured < planned.affinity_limit - 0.3
    without = plan(privacy, 20, len(rows), exact[0][::-1].tolist(), n_components=2)
    assert without.affinity_limit is without.captured_limit is None
    assert 0 < without.affinity < 1
    of_many = plan(Privacy(1.0, 1e-7), 20, 200_000, exact[0][::-1].tolist(), n_components=2, scale="std")
    assert "one value in 99.7% of rows or more" in of_many.advice
