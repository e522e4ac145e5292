"""Figures 4a, 4b, 6, 7, 8 and 9: what they measure, against values known independently."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction import datasets
from reproduction.base import Experiment, Table
from reproduction.datasets import synth
from reproduction.methods import components, make_tracker
from reproduction.over_time import follow
from reproduction.over_time_real import OverTimeReal, ranks_taken
from reproduction.over_time_synthetic import OverTimeSynthetic, directions_for
from reproduction.real_errors import RealErrors
from reproduction.scores import Offline
from reproduction.synthetic_errors import SpectrumErrors, SyntheticErrors

pytestmark = pytest.mark.slow


def test_errors_over_time_are_distances_from_the_subspace() -> None:
    rows = synth(0.5, 12, 90, seed=1)
    tracker = make_tracker("F-PCA", 12, 3, block_rows=10)
    records = list(follow(rows, {"F-PCA": tracker, "fedpca": make_tracker("fedpca", 12, 3)}, every=40))
    assert [record["t"] for record in records] == [40, 40, 80, 80, 90, 90]
    basis = tracker.summary().components
    assert records[-2]["error"] == pytest.approx(
        np.mean(np.sum((rows - rows @ basis.T @ basis) ** 2, axis=1))
    )
    least = np.sum(np.linalg.svd(rows, compute_uv=False)[3:] ** 2) / 90
    assert records[-2]["least"] == pytest.approx(least)
    assert records[-2]["error"] > records[-1]["error"] == pytest.approx(least)


def test_the_directions_that_hold_a_share_of_the_energy() -> None:
    rows = np.diag([4.0, 3.0, 2.0, 1.0])  # energies 16, 9, 4, 1 of 30
    assert [directions_for(rows, share) for share in (0.5, 0.8, 0.95, 0.999)] == [1, 2, 3, 4]


def test_f_pca_on_synthetic_rows_has_the_errors_of_an_independent_run() -> None:
    """Least error and excess for d = 400, r = 10, b = 50 and a flat spectrum, where draws hardly differ."""
    experiment = SpectrumErrors(alphas=(0.01,), n_simulations=1)
    rows = synth(0.01, 400, 4000, seed=experiment.generator(experiment.cases()[0]))
    (record,) = follow(rows, {"F-PCA": make_tracker("F-PCA", 400, 10, block_rows=50)}, every=4000)
    assert record["least"] == pytest.approx(0.7663, rel=0.06)  # scaled by the largest norm, which is random
    assert float(record["error"]) / float(record["least"]) - 1 == pytest.approx(5.56e-3, rel=0.15)


def test_the_rank_of_f_pca_cannot_pass_ten() -> None:
    flat = np.random.default_rng(0).normal(size=(2000, 100))
    assert (max(ranks_taken(flat, 5)), max(ranks_taken(flat, 12))) == (10, 12)


@pytest.fixture(scope="module")
def tiny_errors(tmp_path_factory: pytest.TempPathFactory) -> Table:
    experiment = SyntheticErrors(alphas=(1e-3, 1.0), n_features=40, n_rows=800, n_simulations=2)
    return experiment.run(tmp_path_factory.mktemp("errors")).table


def test_on_flat_spectra_the_papers_metric_is_chance(tiny_errors: Table) -> None:
    for method in ("F-PCA", "PM", "FD", "GROUSE 2/k"):
        assert tiny_errors.mean("ln_mse", alpha=1e-3, method=method) == pytest.approx(
            np.log(0.727 / 40), abs=0.3
        )


def test_more_directions_than_shown_beat_exactly_as_many(tiny_errors: Table) -> None:
    exact, sketch, f_pca, plain = (
        tiny_errors.mean("excess", alpha=1.0, method=method) for method in ("fedpca", "FD 2r", "F-PCA", "FD")
    )
    assert abs(exact) < 1e-9 < sketch < f_pca < plain


@pytest.fixture
def at_hand(real_data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments find real data where the tests do; without it, a test is skipped."""
    found = {name: real_data(name) for name in ("wine-red", "motes-light", "motes-voltage", "mnist-test")}
    monkeypatch.setattr(datasets, "load", found.__getitem__)


@pytest.mark.usefixtures("at_hand")
def test_wine_over_time_ends_as_printed_and_breaks_the_upper_bound(tmp_path: Path) -> None:
    experiment = OverTimeReal(names=("wine",), every=310)
    table = experiment.run(tmp_path).table
    last = {record["method"]: record for record in table.where(t=1550)}
    assert np.log(last["F-PCA adaptive"]["error"]) == pytest.approx(-2.43, abs=0.01)
    assert last["F-PCA adaptive"]["error"] == pytest.approx(0.0878713, rel=1e-5)
    assert last["fedpca"]["error"] == pytest.approx(0.0878701, rel=1e-5)
    assert np.log(last["PM"]["error"]) == pytest.approx(-0.87, abs=0.05)
    assert last["F-PCA lo"]["rank"] == last["F-PCA hi"]["rank"] == 5
    assert last["F-PCA adaptive"]["error"] > last["F-PCA lo"]["least"] * (1 + 1e-5)
    assert experiment.verdict(table).outcome == "did not hold"


@pytest.mark.usefixtures("at_hand")
def test_the_bound_on_light_fails_above_and_holds_below() -> None:
    records = Table(OverTimeReal(every=700).measure({"dataset": "light"}))
    error = records.where(method="F-PCA adaptive").column("error")
    assert np.all(error > records.where(method="F-PCA lo").column("least"))
    assert np.all(error >= records.where(method="F-PCA hi").column("least"))
    assert records.where(method="F-PCA adaptive")[-1]["rank"] == 7
    assert np.log(records.where(method="F-PCA hi")[-1]["error"]) == pytest.approx(13.42, abs=0.005)


@pytest.mark.usefixtures("at_hand")
def test_baselines_are_compared_with_f_pca_at_their_own_rank() -> None:
    """On Light adaptive F-PCA ends with 7 directions: no match for baselines with 10."""
    experiment = OverTimeReal(names=("light",), every=1000)
    table = Table({"dataset": "light", **row} for row in experiment.measure({"dataset": "light"}))
    last = {str(row["method"]): row for row in table.where(t=7700)}
    assert last["F-PCA adaptive"]["rank"] == 7 < last["F-PCA"]["rank"] == last["FD"]["rank"] == 10
    assert last["SPIRIT"]["error"] < last["F-PCA adaptive"]["error"]
    first, second = experiment.verdict(table).points[:2]
    assert "no corrected baseline" in first
    assert "light (7, 10)" in second
    better = Table({**row, "error": 1.0} if row["method"] == "PM" else row for row in table)
    assert "PM on light (rank 10" in experiment.verdict(better).points[0]


@pytest.mark.usefixtures("at_hand")
def test_the_rank_of_spirit_is_the_measured_one(tmp_path: Path) -> None:
    experiment = RealErrors(names=("volt", "wine"), max_rows=1000)
    table = experiment.run(tmp_path).table
    (row,) = table.where(dataset="volt", method="SPIRIT adaptive")
    (about,) = (point for point in experiment.verdict(table).points if "only one vector" in point)
    assert f"SPIRIT ends on volt at {row['rank']}" in about
    assert "the released SPIRIT ended at rank 1" in about
    assert row["lowest_rank"] <= row["rank"] <= row["highest_rank"]
    other = Table({**row, "rank": 17} if row["dataset"] == "volt" else row for row in table)
    assert any("on volt at 17" in point for point in experiment.verdict(other).points)
    without = experiment.verdict(table.where(dataset="wine"))
    assert not any("only one vector" in point for point in without.points)


@pytest.mark.usefixtures("at_hand")
def test_the_quick_verdict_on_real_data_is_the_full_one(tmp_path: Path) -> None:
    """What decides Figure 4a is that SPIRIT without forgetting is ahead on MNIST."""
    quick = RealErrors().quick()
    assert "mnist" in quick.names
    experiment = replace(quick, names=("mnist",), max_rows=1000)
    table = experiment.run(tmp_path).table
    verdict = experiment.verdict(table)
    assert verdict.outcome == RealErrors.full_outcome == "did not hold"
    assert any("SPIRIT on mnist" in point for point in verdict.points)


def test_the_quick_verdict_on_synthetic_data_is_the_full_one(tmp_path: Path) -> None:
    """What decides Figure 4b is that SPIRIT without forgetting is ahead at alpha = 0.5."""
    quick = SyntheticErrors().quick()
    assert 0.5 in quick.alphas
    experiment = replace(quick, alphas=(0.5,))
    records = Table()
    for case in experiment.cases():
        rows = synth(0.5, experiment.n_features, experiment.n_rows, seed=experiment.generator(case))
        offline = Offline.of(rows)
        for method in ("F-PCA", "SPIRIT"):
            tracker = make_tracker(method, experiment.n_features, experiment.rank, block_rows=50)
            tracker.update(rows)
            records.append({"method": method, **offline.scores(components(tracker))})
    excess = {name: np.median(records.where(method=name).column("excess")) for name in ("F-PCA", "SPIRIT")}
    assert excess["SPIRIT"] < 0.9 * excess["F-PCA"]
    assert SyntheticErrors.full_outcome == "did not hold"


TINY: list[Experiment] = [
    SyntheticErrors(alphas=(1e-3, 2.0), n_features=30, n_rows=300, n_simulations=2),
    SpectrumErrors(alphas=(0.1, 2.0), n_features=30, n_rows=300, n_simulations=2, rank=4),
    OverTimeSynthetic(alphas=(0.5, 2.0), n_features=30, n_rows=300, n_simulations=1),
]


@pytest.mark.parametrize("experiment", TINY, ids=lambda experiment: experiment.name)
def test_they_run_draw_and_decide(experiment: Experiment, tmp_path: Path) -> None:
    result = experiment.run(tmp_path)
    assert all(len(text) > 50 for text in experiment.draw(result.table))
    for lines in experiment.tabulate(result.table).values():
        assert len({len(line) for line in lines}) == 1
    assert all(experiment.verdict(result.table).points)
    again = replace(experiment).run(tmp_path / "again")
    assert again.table == result.table


def test_a_subspace_of_all_directions_is_no_curve_that_falls_out_of_the_panel() -> None:
    experiment = OverTimeSynthetic(alphas=(0.1,), n_features=20, n_rows=300, n_simulations=1)
    (case,) = experiment.cases()
    table = Table({**case, **record} for record in experiment.measure(case))
    assert table.where(method="SPIRIT 0.9").column("rank").max() == 20
    _, errors = experiment.draw(table).values()
    axis = errors.axes[0]
    drawn = [y for line in axis.lines if line.get_marker() != "v" for y in line.get_ydata() if y == y]
    assert min(drawn) > 1e-9
    assert axis.get_ylim()[0] <= min(drawn)
    assert "exact to rounding" in [text.get_text() for text in errors.legends[0].get_texts()]


def test_where_f_pca_has_the_smaller_error_it_has_more_components(tmp_path: Path) -> None:
    experiment = OverTimeSynthetic(alphas=(0.5, 3.0), n_features=60, n_rows=1000, n_simulations=1)
    table = experiment.run(tmp_path).table.where(t=1000)
    for alpha, more in ((0.5, "SPIRIT 1"), (3.0, "F-PCA adaptive")):
        ours, theirs = (table.where(alpha=alpha, method=name)[0] for name in ("F-PCA adaptive", "SPIRIT 1"))
        assert (
            (ours["rank"] > theirs["rank"]) == (ours["error"] < theirs["error"]) == (more == ours["method"])
        )
