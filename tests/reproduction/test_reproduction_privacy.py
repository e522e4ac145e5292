"""The experiments with privacy: their methods do what they say, and measure what they should."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca import Privacy
from fedpca.metrics import alignment
from reproduction import datasets, projections
from reproduction.base import Table
from reproduction.projections import Projections, fpca_as_released
from reproduction.utility import Utility, chance, merge_blocks, mod_sulq_as_released, release_components

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows():
    """In the unit ball, with a variance along every axis that is not that of the next."""
    drawn = np.random.default_rng(3).normal(size=(600, 6)) * np.array([1.0, 0.6, 0.4, 0.3, 0.2, 0.1])
    return drawn / np.linalg.norm(drawn, axis=1).max()


@pytest.fixture(scope="module")
def exact(rows):
    return np.linalg.svd(rows)[2]


def covariances(rows, block_rows):
    return np.array([part.T @ part / block_rows for part in np.split(rows, len(rows) // block_rows)])


class TestMethods:
    def test_merged_blocks_that_lose_nothing_are_pca(self, rows, exact):
        np.testing.assert_allclose(alignment(merge_blocks(covariances(rows, 50), 6), exact), 1, atol=1e-9)

    def test_negative_directions_of_a_block_do_not_count(self):
        noisy = np.array([np.diag([-5.0, 0.0, 1.0])])
        np.testing.assert_allclose(np.abs(merge_blocks(noisy, 1)), [[0, 0, 1]])
        np.testing.assert_allclose(np.abs(merge_blocks(noisy, 1, unit_weights=True)), [[1, 0, 0]])

    def test_both_forms_of_the_released_fpca_agree(self, rows, rng):
        streamed = fpca_as_released(rows, 0.0, 2, 50, rng)
        at_once = merge_blocks(covariances(rows, 50), 2, unit_weights=True)
        np.testing.assert_allclose(alignment(streamed, at_once), 1, atol=1e-9)

    def test_a_huge_epsilon_costs_nothing(self, rows, exact, rng):
        privacy = Privacy(1e6, 0.05, bound=1.0, center=None, evaluate=False)
        found = release_components(rows, privacy, 3, rng)
        np.testing.assert_allclose(alignment(found, exact), 1, atol=1e-4)

    def test_the_released_mod_sulq_has_no_noise_below_the_diagonal(self, rng):
        """Huge noise on 2 x 2 entries but the lower left: what it adds there would show in the answer."""
        covariance = np.array([[0.0, 0.0], [1e9, 0.0]])
        np.testing.assert_allclose(np.abs(mod_sulq_as_released(covariance, 1.0, 1, rng)), [[0, 1]], atol=1e-6)

    @pytest.mark.parametrize("n_features", [2, 11, 20])
    def test_chance_is_the_mean_of_random_directions(self, n_features, rng):
        drawn = rng.normal(size=(40_000, n_features))
        cosines = np.abs(drawn[:, 0]) / np.linalg.norm(drawn, axis=1)
        assert chance(n_features) == pytest.approx(cosines.mean(), abs=0.005)


UTILITY = Utility(alphas=(0.5, 1.0), epsilons=(1.0, 4.0), simulations=8)


@pytest.fixture(scope="module")
def utility(tmp_path_factory):
    return UTILITY.run(tmp_path_factory.mktemp("utility")).table


class TestUtility:
    # Means of other simulations with the same settings, by other code.
    @pytest.mark.parametrize(
        ("method", "epsilon", "of_half", "of_one", "within"),
        [
            ("F-PCA", 4.0, 0.19, 0.19, 0.17),
            ("F-PCA, least noise", 1.0, 0.93, 0.97, 0.05),
            ("fedpca", 1.0, 1.0, 1.0, 0.01),
            ("MOD-SuLQ", 4.0, 0.92, 0.95, 0.08),
            ("MOD-SuLQ, not symmetric", 4.0, 0.36, 0.43, 0.22),
            ("MOD-SuLQ as released", 4.0, 0.98, 0.98, 0.03),
            ("MOD-SuLQ, not symmetric, as released", 4.0, 0.94, 0.96, 0.05),
            ("F-PCA as released", 4.0, 0.96, 0.98, 0.06),
        ],
    )
    def test_utility_is_what_it_was_found_to_be_elsewhere(
        self, utility, method, epsilon, of_half, of_one, within
    ):
        for alpha, expected in ((0.5, of_half), (1.0, of_one)):
            q = utility.mean("q", method=method, alpha=alpha, epsilon=epsilon)
            assert q == pytest.approx(expected, abs=within)

    def test_the_lemma_requires_far_too_much_noise(self, utility):
        noise = {
            method: utility.mean("noise", method=method, epsilon=1.0) for method in utility.distinct("method")
        }
        assert noise["F-PCA"] == pytest.approx(171, abs=1)
        assert noise["F-PCA as released"] == pytest.approx(1.71, abs=0.01)
        assert noise["MOD-SuLQ"] == pytest.approx(43, abs=1)
        assert noise["MOD-SuLQ as released"] == 0

    def test_the_verdict_is_decided_by_the_table(self, utility):
        assert UTILITY.verdict(utility).outcome == "did not hold"
        better = Table({**row, "q": 0.9} if row["method"] == "F-PCA" else row for row in utility)
        assert UTILITY.verdict(better).outcome == "held"
        upside_down = Table(
            {**row, "q": 1 - row["alpha"] / 2} if row["method"] == "MOD-SuLQ" else row for row in better
        )
        assert UTILITY.verdict(upside_down).outcome == "held with a correction"

    def test_figures_and_tables(self, utility):
        (figure,) = UTILITY.draw(utility).values()
        assert len(figure.axes) == 8
        for lines in UTILITY.tabulate(utility).values():
            assert len({len(line) for line in lines}) == 1


WINE = replace(Projections(), names=("wine",), epsilons=(0.1, 1.0), wine_draws=8, points=50)


@pytest.fixture(scope="module")
def wine(real_data, tmp_path_factory):
    loaded = real_data("wine-red")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", lambda name: loaded)
        return WINE.run(tmp_path_factory.mktemp("projections")).table


class TestProjections:
    # Of one run of the released code, on the same rows.
    @pytest.mark.parametrize(
        ("method", "expected", "within"),
        [
            (projections.PLAIN, (1, 1, 1), 1e-3),
            (projections.MASK_RELEASED, (1, 0.953, 0.952), 0.05),
            (projections.MOD_SULQ_RELEASED, (0.994, 0.979, 0.787), 0.01),
            (projections.MOD_SULQ_UNSCALED, (1, 1, 1), 1e-3),
        ],
    )
    def test_what_was_run_comes_out_as_it_did(self, wine, method, expected, within):
        row = wine.where(kind="score", way=projections.AS_RUN, method=method)[0]
        assert [row["q1"], row["q2"], row["q3"]] == pytest.approx(expected, abs=within)

    def test_its_noise_is_negligible(self, wine):
        row = wine.where(kind="score", method=projections.MASK_RELEASED, epsilon=0.1)[0]
        assert row["over_own"] == pytest.approx(0.985 / 5.29e6, rel=0.01)
        assert row["over_least"] < 1e-4

    def test_with_the_noise_that_privacy_requires_only_fedpca_finds_the_first_axis(self, wine):
        q = {
            method: wine.mean("q1", kind="score", method=method, epsilon=0.1)
            for method in projections.MASKED[projections.PRIVATE]
        }
        assert q[projections.FEDPCA] > 0.99
        assert q[projections.MASK] < 0.45
        assert q[projections.MOD_SULQ] < 0.55

    def test_the_wrong_pictures_of_figures_10_and_11_are_mentioned(self, wine):
        assert any("show the pictures of epsilon = 0.6 once more" in p for p in WINE.verdict(wine).points)

    def test_the_verdict_is_decided_by_the_table(self, wine):
        assert WINE.verdict(wine).outcome == "did not hold"
        better = Table(
            {**row, "q1": 0.99, "q2": 0.99} if row["method"] == projections.MASK else row for row in wine
        )
        assert WINE.verdict(better).outcome == "held"

    def test_figures_and_tables(self, wine):
        first, other = WINE.draw(wine).values()
        assert [len(first.axes), len(other.axes)] == [8 + 1, 5 + 1]  # panels, and a color bar
        assert first.axes[-1].get_ylabel() == other.axes[-1].get_ylabel() == "fixed acidity, g/l"
        images = Table({**row, "dataset": "mnist", "color": i % 10} for i, row in enumerate(wine))
        for figure in replace(WINE, names=("mnist",)).draw(images).values():
            (legend,) = figure.legends
            assert [text.get_text().strip("$") for text in legend.get_texts()][-1].endswith("9}")
            assert len(legend.get_texts()) == 10
        (lines,) = WINE.tabulate(wine).values()
        assert len({len(line) for line in lines}) == 1
        assert len(wine.where(kind="point", method=projections.OFFLINE, way=projections.AS_RUN)) <= 50
