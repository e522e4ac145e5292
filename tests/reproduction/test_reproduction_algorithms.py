"""The smallest private batch of Algorithm 1, and the factors of Algorithms 4 and 5."""

import numpy as np
import pytest

from fedpca.paper.noise import paper_omega
from fedpca.privacy.calibration import analytic_sigma, delta_of
from reproduction import first_batch
from reproduction.base import Table
from reproduction.datasets import synth
from reproduction.first_batch import FirstBatch, noisy_stream
from reproduction.forgetting import CHANGED, SAME, Forgetting, _name

BATCHES = FirstBatch(n_rows=4_000, omega=0.2, batch_rows=40, simulations=1)
FACTORS = Forgetting(n_features=12, n_rows=2_000, next_rows=100, block_rows=20, rank=3, n_simulations=2)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    return BATCHES.run(tmp_path_factory.mktemp("first-batch")).table


@pytest.fixture(scope="module")
def factors(tmp_path_factory):
    return FACTORS.run(tmp_path_factory.mktemp("forgetting")).table


@pytest.mark.parametrize("name", ["batches", "factors"])
def test_each_draws_tabulates_and_judges(name, request):
    table, experiment = request.getfixturevalue(name), {"batches": BATCHES, "factors": FACTORS}[name]
    assert all(len(text) > 50 for text in experiment.draw(table))
    for lines in experiment.tabulate(table).values():
        assert len({len(line) for line in lines}) == 1
    verdict = experiment.verdict(table)
    assert verdict.outcome == experiment.full_outcome
    assert "nan" not in " ".join(verdict.points)


# --- the smallest private batch ---


def test_the_first_batch_has_t_rows_and_the_noise_of_t_rows():
    """T is where Lemma 2's omega falls to the fixed one."""
    first, sd = next(BATCHES.batches(first_batch.FIRST_ONLY))
    assert paper_omega(1.0, 0.05, 20, first) <= sd == 0.2 < paper_omega(1.0, 0.05, 20, first - 1)
    assert first == 1614
    assert BATCHES.printed_minimum() == pytest.approx(1 / 0.2 / (paper_omega(1.0, 0.05, 20, 1)))
    assert BATCHES.printed_minimum() < 1
    sizes = {way: [size for size, _ in BATCHES.batches(way)] for way in first_batch.COLORS}
    assert sizes[first_batch.FIRST_ONLY] == [1614] + 59 * [40]
    assert sizes[first_batch.EVERY] == [1614, 1614]
    assert sizes[first_batch.AS_PRINTED] == 100 * [40]
    assert sizes[first_batch.ONCE] == [4000]
    assert all(sum(of_way) <= 4000 for of_way in sizes.values())


def test_the_guarantee_is_that_of_the_batch_with_the_least_noise_per_row(batches):
    """Checked with the exact delta of a Gaussian of that noise."""
    found = {way: batches.where(way=way)[0]["epsilon"] for way in first_batch.COLORS}
    for way, epsilon in found.items():
        if epsilon:
            deltas = [delta_of(np.sqrt(2) / (size * sd), epsilon) for size, sd in BATCHES.batches(way)]
            assert max(deltas) == pytest.approx(0.05, rel=1e-3)
    assert found[first_batch.ANALYTIC] <= 1
    assert found[first_batch.ONCE] == pytest.approx(1, abs=1e-6)
    stricter = FirstBatch(n_rows=200, omega=0.01, batch_rows=40)
    size, sd = next(stricter.batches(first_batch.AS_PRINTED))
    assert size * sd < analytic_sigma(1.0, 0.05)  # less noise than any (1, 0.05) mechanism needs


def test_without_noise_and_truncation_a_stream_of_batches_is_pca(rng):
    rows = synth(1.0, 8, 300, seed=1)
    exact = np.linalg.svd(rows)[2]
    *_, (seen, found) = noisy_stream(rows, [(100, 0.0), (50, 0.0), (150, 0.0)], 8, rng)
    assert seen == 300
    np.testing.assert_allclose(np.abs(np.sum(found * exact, axis=1)), 1, atol=1e-9)


def test_the_verdict_on_batches_is_decided_by_the_table(batches):
    assert BATCHES.verdict(batches).outcome == "did not hold"  # T as printed is below one row
    tiny = FirstBatch(n_rows=4_000, omega=1e-5, batch_rows=40, simulations=1)
    assert tiny.printed_minimum() > 1
    private = Table({**row, "epsilon": 0.5} for row in batches)
    assert tiny.verdict(private).outcome == "held"


# --- forgetting and enhancing ---


def test_forgetting_helps_after_a_change_and_costs_without_one(factors):
    last = factors.where(t=1900)
    excess = {
        (stream, forget): last.mean("excess", stream=stream, factors=_name(forget, 1.0))
        for stream in (CHANGED, SAME)
        for forget in (1.0, 0.9)
    }
    assert excess[CHANGED, 0.9] < excess[CHANGED, 1.0] / 2
    assert excess[SAME, 0.9] > excess[SAME, 1.0]


def test_an_enhancing_factor_only_scales(factors):
    last = factors.where(t=1900)
    for plain, enhanced in zip(
        last.where(factors=_name(0.9, 1.0)), last.where(factors=_name(0.9, 1 / 0.9)), strict=True
    ):
        assert enhanced["scale"] / plain["scale"] == pytest.approx(1 / 0.9, rel=1e-6)
        assert enhanced["excess"] == pytest.approx(plain["excess"], rel=1e-6)


def test_weights_are_those_of_the_rows_scaled_block_by_block():
    """With every direction kept, the subspace is the SVD of all rows, each times its factors."""
    experiment = Forgetting(
        factors=((0.9, 1 / 0.9),),
        n_features=4,
        rank=4,
        n_rows=80,
        block_rows=20,
        next_rows=20,
        n_simulations=1,
    )
    case = experiment.cases()[1]
    rows = synth(1.0, 4, 80, seed=experiment.generator(case))
    row = experiment.measure(case)[-1]
    assert row["t"] == 60
    weights = np.repeat([0.9**2, 0.9, 1.0], 20) * np.repeat([1.0, 1 / 0.9, 1 / 0.9], 20)
    _, values, components = np.linalg.svd(weights[:, None] * rows[:60])
    first = np.array(row["first"].split(), dtype=float)
    assert abs(first @ components[0]) == pytest.approx(1, abs=1e-12)
    assert row["scale"] == pytest.approx(values[0] / np.linalg.norm(rows[:60] @ components[0]))


def test_the_verdict_on_factors_is_decided_by_the_table(factors):
    useless = Table({**row, "excess": 0.1} for row in factors)
    assert FACTORS.verdict(useless).outcome == "did not hold"
