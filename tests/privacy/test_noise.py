"""Noise is the exactly rounded Gaussian, the same whenever it is drawn again, and as large as it claims."""

import decimal
import importlib.util
import secrets
from math import log2
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri
from secure_sessions import secure_roster

from fedpca import Privacy, PrivatePCA
from fedpca.privacy import noise as module
from fedpca.privacy.noise import ExactNoise
from fedpca.secure import Secrets, Session

KEY = bytes(range(32))


def words_of(noise, label, count):
    return np.frombuffer(noise._bytes(label, 8 * count), dtype="<u8")


def rounded_by_mpmath(word, sd):
    """What the middle of a word's interval rounds to, in 60 digits; and its distance from a half."""
    with mpmath.workdps(60):
        tail = (mpmath.mpf(int(word) & (2**63 - 1)) + 0.5) / mpmath.mpf(2) ** 64
        size = -mpmath.mpf(sd) * mpmath.sqrt(2) * mpmath.erfinv(2 * tail - 1)
        sign = -1 if int(word) >> 63 else 1
        return sign * int(mpmath.nint(size)), float(abs(abs(size - mpmath.nint(size)) - 0.5))


@pytest.mark.parametrize("sd", [0.3, 1.0, 12345.678, 5.28 * 2**24, 1e12])
def test_every_entry_is_the_gaussian_quantile_of_its_word_rounded(sd):
    noise = ExactNoise(KEY)
    drawn = noise.entries((1, 2, 3), 400, sd)
    for value, word in zip(drawn, words_of(noise, (1, 2, 3), 400), strict=True):
        expected, distance = rounded_by_mpmath(word, sd)
        if distance > 1e-15 * sd:  # else the middle of the interval does not decide
            assert value == expected


@pytest.mark.parametrize("sd", [0.7, 1000.0, 5.28 * 2**24])
def test_the_careful_path_agrees_with_the_fast_one(sd, monkeypatch):
    fast = ExactNoise(KEY).entries((7,), 300, sd)
    monkeypatch.setattr(module, "_ABSOLUTE", 1.0)  # nothing is far enough from a boundary any more
    monkeypatch.setattr(ExactNoise, "_decided", counted := CountedDecisions(ExactNoise._decided))
    careful = ExactNoise(KEY).entries((7,), 300, sd)
    np.testing.assert_array_equal(careful, fast)
    assert counted.calls == 300


class CountedDecisions:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __get__(self, instance, owner):
        def call(*args):
            self.calls += 1
            return self.function(instance, *args)

        return call


def decided(key, word, sd, index=5):
    return ExactNoise(key)._decided([(0,)], [1.0], index, [word], sd)


def word_at(distance):
    """The word whose interval of tails holds that of a distance."""
    with mpmath.workdps(60):
        return int(mpmath.floor(mpmath.erfc(mpmath.mpf(distance) / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** 64))


def test_an_entry_on_a_boundary_draws_more_bits_and_is_the_same_again():
    word = word_at("0.5005")  # of a standard deviation of 1000: the boundary between 500 and 501
    drawn = {decided(bytes([i]) * 32, word, 1000.0) for i in range(20)}
    assert drawn == {500.0, 501.0}  # the further bits decide, and they come from the key
    assert decided(KEY, word, 1000.0) == decided(KEY, word, 1000.0)
    assert {decided(KEY, word, 1000.0, index) for index in range(20)} == {500.0, 501.0}


def test_the_sign_bit_is_the_sign():
    word = word_at("0.5")
    assert decided(KEY, word, 1000.0) == 500.0
    assert decided(KEY, word + 2**63, 1000.0) == -500.0


@pytest.mark.parametrize("tail", [0, 1, 5, 2**20])
def test_the_rarest_words_are_decided_too(tail):
    assert 3 * 6 < decided(KEY, tail, 3.0) < 3 * 20


@pytest.mark.parametrize("rounding", [decimal.ROUND_DOWN, decimal.ROUND_UP, decimal.ROUND_CEILING])
def test_draws_are_the_same_whatever_decimal_context_the_caller_has_set(rounding):
    """At this standard deviation ties decide many entries."""
    noise = ExactNoise(bytes(32))
    expected = noise.entries((5,), 20_000, 1e12)
    traps = [decimal.Inexact, decimal.FloatOperation, decimal.Subnormal, decimal.Rounded]
    caller = decimal.Context(prec=3, rounding=rounding, Emin=-1, Emax=1, traps=traps)
    with decimal.localcontext(caller), np.errstate(all="raise"):
        np.testing.assert_array_equal(noise.entries((5,), 20_000, 1e12), expected)


def test_quantiles_against_mpmath():
    from decimal import localcontext

    def exact(tail):
        return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(tail) / mpmath.mpf(2) ** 64)

    with localcontext() as context, mpmath.workdps(80):
        context.prec = 60
        for tail in (2**25, 2**40, 2**55 + 12345, 2**62, 2**63 - 1):
            size, width = module._quantile(tail, 64)
            assert abs(mpmath.mpf(str(size)) - exact(tail + mpmath.mpf("0.5"))) < mpmath.mpf(10) ** -45
            for end in (tail, tail + 1):
                assert abs(mpmath.mpf(str(size)) - exact(end)) < 0.51 * mpmath.mpf(str(width))


@pytest.mark.slow
def test_ndtri_is_fifty_times_more_exact_than_we_rely_on():
    rng = np.random.default_rng(0)
    tails = np.concatenate([10.0 ** rng.uniform(-19, -0.302, 1500), rng.uniform(0, 0.5, 1500)])
    with mpmath.workdps(40):
        exact = [mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(tail)) - 1) for tail in tails]
        errors = [abs(mpmath.mpf(float(ours)) - true) for ours, true in zip(ndtri(tails), exact, strict=True)]
        allowed = [module._RELATIVE * abs(true) + module._ABSOLUTE for true in exact]
        assert max(float(error / limit) for error, limit in zip(errors, allowed, strict=True)) < 1 / 50


def test_the_proofs_quote_what_we_rely_on():
    page = Path(__file__).parents[2] / "docs/explanation/privacy-proofs.md"
    assert f"`ndtri` errs by less than $2^{{{log2(module._RELATIVE):.0f}}}$" in page.read_text(
        encoding="utf-8"
    )


def test_draws_follow_the_gaussian():
    sd = 1e6
    drawn = ExactNoise(KEY).entries((9,), 200_000, sd)
    assert stats.kstest(drawn / sd, "norm").pvalue > 1e-4
    assert drawn.std() == pytest.approx(sd, rel=0.01)
    small = ExactNoise(KEY).entries((10,), 200_000, 0.8)  # where rounding shows
    values, counts = np.unique(small, return_counts=True)
    kept = np.abs(values) <= 3
    expected = np.diff(stats.norm.cdf(np.arange(-3.5, 4), scale=0.8))
    assert stats.chisquare(counts[kept], expected / expected.sum() * counts[kept].sum()).pvalue > 1e-4


def test_labels_and_keys_give_independent_noise():
    streams = [ExactNoise(KEY).entries(label, 5000, 1e6) for label in [(0,), (1,), (0, 0), (0, 1), (2**62,)]]
    streams.append(ExactNoise(bytes(32)).entries((0,), 5000, 1e6))
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 0.08


@given(count=st.integers(0, 50), more=st.integers(0, 50), label=st.lists(st.integers(0, 2**63), max_size=4))
def test_a_longer_draw_begins_like_a_shorter_one(count, more, label):
    noise = ExactNoise(KEY)
    short, long = (noise.entries(tuple(label), size, 1e5) for size in (count, count + more))
    np.testing.assert_array_equal(short, long[:count])


def test_noise_too_large_to_be_exact_is_refused():
    with pytest.raises(ValueError, match="raise epsilon"):
        ExactNoise(KEY).entries((0,), 1, 1e15)


def test_correlated_noise_is_the_rounded_sum_of_real_gaussians_not_a_sum_of_rounded_ones():
    weights, sd, source = [0.3125, 0.5, 1.0], 3.0, ExactNoise(KEY)
    drawn = source.weighted([(release, 5) for release in range(3)], weights, 300, sd)
    streams = [words_of(source, (release, 5), 300) for release in range(3)]
    np.testing.assert_array_equal(drawn, np.rint(drawn))
    for index in range(300):
        with mpmath.workdps(50):
            total = mpmath.mpf(0)
            for words, weight in zip(streams, weights, strict=True):
                word = int(words[index])
                tail = (mpmath.mpf(word & (2**63 - 1)) + 0.5) / mpmath.mpf(2) ** 64
                size = -mpmath.sqrt(2) * mpmath.erfinv(2 * tail - 1)
                total += weight * sd * (-size if word >> 63 else size)
            assert drawn[index] == int(mpmath.nint(total))
    parts = [source.entries((release, 5), 300, sd) for release in range(3)]
    assert (drawn != np.rint(np.dot(weights, parts))).any()


@pytest.mark.parametrize("weights", [[1.0], [0.3125, 0.5, 1.0]])
def test_the_careful_path_agrees_for_sums_too(weights, monkeypatch):
    labels = [(release, 5) for release in range(len(weights))]
    fast = ExactNoise(KEY).weighted(labels, weights, 100, 1e8)
    monkeypatch.setattr(module, "_ABSOLUTE", 1.0)
    np.testing.assert_array_equal(ExactNoise(KEY).weighted(labels, weights, 100, 1e8), fast)


def test_keys_of_two_draws_differ_without_the_keys_of_the_tests(monkeypatch):
    """Tests draw keys from their names; here the system draws them, as it does for everybody else."""
    spec = importlib.util.spec_from_file_location("secrets_of_the_system", secrets.__file__)
    system = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(system)
    assert secrets.token_bytes is not system.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", system.token_bytes)
    monkeypatch.setattr(secrets, "token_hex", system.token_hex)
    rows = np.ones((50, 3))

    def release():
        privacy = Privacy(1.0, 1e-5, bound=1.0, center=np.zeros(3))
        return PrivatePCA(2, **privacy.settings).fit(rows).components_.tobytes()

    for draw in (release, lambda: Secrets.new(2).to_json(), lambda: Session.new(secure_roster())):
        assert draw() != draw()
    of_owner = Secrets.new(2).to_json()
    drawn = [of_owner["enc"], *(value for item in of_owner["sums"] for value in item.values())]
    assert len(set(drawn)) == len(drawn) == 9
