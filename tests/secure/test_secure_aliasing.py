"""Sums of rounded Gaussians against exact probabilities: they keep the promise of the Gaussian mechanism."""

from itertools import pairwise
from math import exp, log10, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from fedpca.privacy.calibration import delta_of
from fedpca.secure.aliasing import aliasing, require_negligible
from fedpca.secure.noise_shares import LEAST_SD, Levels
from fedpca.secure.progress import SAME
from fedpca.secure.settings import Terms

PARTS = [
    (0.5, 0.5),
    (0.7, 0.7, 0.7),
    (1.0, 0.4),
    (0.9, 0.6, 0.45, 0.4),
    (0.6,) * 6,
    (1.1, 1.1, 0.5, 0.5),
]
REACH = 24  # beyond it these Gaussians have less than 1e-16


def rounded_sum(sds):
    """Exact probabilities of the sum of rounded Gaussians, of -(parts) REACH to (parts) REACH."""
    integers = np.arange(-REACH, REACH + 1)
    total = np.ones(1)
    for sd in sds:
        # Upper tails on both sides, where they are exact.
        tail = ndtr(-(np.abs(integers) - 0.5) / sd) - ndtr(-(np.abs(integers) + 0.5) / sd)
        total = np.convolve(total, tail)
    return total


def gaussian_with_uniforms(sds):
    """Probabilities of the Gaussian of all variances plus a uniform per part but one, rounded.

    That is the density at integers with one uniform more: its Fourier integral, by the trapezoidal rule,
    whose error is that of a density beyond the integers looked at.
    """
    reach, variance = len(sds) * REACH, sum(sd**2 for sd in sds)
    frequencies = np.arange(-3000, 3001) * (pi / (2 * reach + 2))
    transform = np.exp(-variance * frequencies**2 / 2) * np.sinc(frequencies / (2 * pi)) ** len(sds)
    integers = np.arange(-reach, reach + 1)
    return (transform * np.cos(np.outer(integers, frequencies))).sum(axis=1) / (2 * reach + 2) / 2


@pytest.mark.parametrize("sds", PARTS, ids=str)
def test_a_sum_of_rounded_gaussians_is_a_blurred_gaussian_rounded_but_for_aliasing(sds):
    exact, ideal = rounded_sum(sds), gaussian_with_uniforms(sds)
    assert exact.sum() == pytest.approx(1, abs=1e-13)
    assert ideal.sum() == pytest.approx(1, abs=1e-13)
    allowed = aliasing(sds, entries=1, epsilon=0.0)  # twice the distance in total variation
    assert np.abs(exact - ideal).sum() <= allowed + 1e-13
    seen = ideal > 1e-10
    assert np.abs(exact[seen] / ideal[seen] - 1).max() <= allowed + 1e-4 * allowed


def test_two_parts_come_within_a_factor_of_the_bound():
    sds = (0.6, 0.6)
    exact, ideal = (values[REACH:-REACH] for values in (rounded_sum(sds), gaussian_with_uniforms(sds)))
    ratio = np.abs(exact / ideal - 1)[np.abs(np.arange(-REACH, REACH + 1)) < 4].max()
    assert ratio > 0.4 * aliasing(sds, entries=1, epsilon=0.0)  # (2 / pi)²: uniforms blur the phase


def test_it_is_not_the_rounded_gaussian_of_the_total_variance():
    sds = (2.0,) * 5
    single = rounded_sum((sqrt(20.0),))
    several = rounded_sum(sds)[4 * REACH : -4 * REACH]
    assert np.abs(several - single).sum() > 1e6 * aliasing(sds, entries=1, epsilon=0.0)


@pytest.mark.parametrize("sds", PARTS, ids=str)
@pytest.mark.parametrize("change", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 5.0])
def test_delta_is_that_of_the_gaussian_mechanism_and_the_aliasing_term(sds, change, epsilon):
    """Of a statistic that one row changes by `change`, with all outcomes counted."""
    probabilities = rounded_sum(sds)
    ours, theirs = np.pad(probabilities, (change, 0)), np.pad(probabilities, (0, change))
    delta = np.maximum(ours - exp(epsilon) * theirs, 0).sum()
    promised = delta_of(change / sqrt(sum(sd**2 for sd in sds)), epsilon)
    assert delta <= promised + aliasing(sds, entries=1, epsilon=epsilon) + 1e-13


@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=12), st.integers(1, 10**6), st.floats(0, 10))
def test_terms_grow_with_entries_and_epsilon_and_fall_with_noise(sds, entries, epsilon):
    term = aliasing(sds, entries, epsilon)
    assert 0 <= term <= 1 + exp(epsilon)
    assert aliasing(sds, entries + 1, epsilon) >= term
    assert aliasing(sds, entries, epsilon + 0.5) >= term
    assert aliasing([1.1 * sd for sd in sds], entries, epsilon) <= term
    assert aliasing(sds[::-1], entries, epsilon) == term


def test_parts_of_four_and_more_are_negligible_at_any_size():
    assert aliasing([4.0] * 1000, entries=10**9, epsilon=20.0) < 1e-40


def test_what_is_not_negligible_is_refused():
    require_negligible(aliasing([2.0, 2.0], 10**6, 1.0), delta=1e-6)
    with pytest.raises(ValueError, match=r"at most 0\.001 of delta=1e-06, and it adds .*; raise the shift"):
        require_negligible(aliasing([1.0, 1.0], 10**6, 1.0), delta=1e-6)
    with pytest.raises(ValueError, match="above 1e-9, got"):
        aliasing([1.0, 0.0], 1, 1.0)


def test_aliasing_of_any_epsilon_is_a_number():
    """Also where float64 does not hold a factor of it."""
    for epsilon in (0.0, 1.0, 300.0, 699.5):
        growth = (1 + exp(epsilon + 1)) / (1 + exp(epsilon))
        assert aliasing([4.0] * 3, 10, epsilon + 1) == pytest.approx(
            aliasing([4.0] * 3, 10, epsilon) * growth, rel=1e-10
        )
    assert aliasing([8.0] * 2, 1, 660.0) == pytest.approx(exp(660 - 2 * pi**2 * 32), rel=1e-9)
    assert aliasing([9.0] * 2, 1, 1000.0) == pytest.approx(exp(1000 - 2 * pi**2 * 40.5), rel=1e-9)
    assert aliasing([1024.0] * 2, 10**8, 10_000.0) == 0.0
    with pytest.raises(ValueError, match="and it adds inf"):
        require_negligible(aliasing([4.0] * 3, 10, 1000.0), delta=1e-6)


# --- constants that the proofs quote ---


def proofs():
    page = Path(__file__).parents[2] / "docs/explanation/privacy-proofs.md"
    return " ".join(page.read_text(encoding="utf-8").split())


def test_the_proofs_quote_the_least_parts_and_the_largest_term():
    text = proofs()
    assert f"parts with $s = {LEAST_SD:g}$ add $10^{{-68}}$ per entry" in text
    assert aliasing([LEAST_SD] * 2, 1, 0.0) < 1e-68 < aliasing([LEAST_SD * 0.9] * 2, 1, 0.0)
    assert (
        f"Parts below {LEAST_SD:g} are refused, and so is a sum whose term is more than a thousandth" in text
    )
    require_negligible(0.999e-9, delta=1e-6)
    with pytest.raises(ValueError, match=r"at most 0\.001 of delta"):
        require_negligible(1.001e-9, delta=1e-6)


def test_the_proofs_quote_how_much_more_noise_than_needed_is_left():
    left = 1.0
    for members in range(3, 200):
        ids = tuple(f"{i:03}" for i in range(members))
        for colluding in {1, max(1, members // 3)}:
            least = max(Terms(ids, least=members, colluding=colluding).threshold, members // 2)
            sizes = Levels.of(Terms(ids, least=least, colluding=colluding), members).sizes
            left = max(
                left, *((b - colluding) / (a - colluding) for b, a in pairwise(sizes) if b > a + 1), 1.0
            )
    assert 1.09 < left <= 1.1
    assert "at most 1.1 times the needed variance is left, as $v_{k-1} - c \\le 1.1\\,(v_k - c)$" in proofs()


def test_the_proofs_quote_how_much_less_noise_owners_accept():
    assert f"$\\sigma$ may be smaller by $10^{{{log10(SAME):.0f}}}$ of itself" in proofs()
    for epsilon, mu in ((0.1, 0.03), (2.0, 0.45), (8.0, 1.6)):
        delta = delta_of(mu, epsilon)
        assert delta_of(mu / (1 - SAME), epsilon) < delta * (1 + 1e-10)
    assert "which changes $\\delta$ by less than $10^{-10}$ of itself" in proofs()
