"""Experiments resume where they stopped, are reproducible, and make one page."""

import csv
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedpca.paper import theory
from reproduction import rows
from reproduction.__main__ import main
from reproduction.base import Experiment, Result, Table, Verdict, format_share
from reproduction.methods import COLORS, components, make_tracker
from reproduction.page import write_page
from reproduction.plots import draw_above, explain_triangles, log_ticks, subplots
from reproduction.rows import STAND_INS, paper_rows
from reproduction.run import EXPERIMENTS, reproduce
from reproduction.scores import Offline, ln_mse

measured = []


@dataclass(frozen=True)
class Throws(Experiment):
    """A die, thrown a few times."""

    name: ClassVar[str] = "throws"
    figure: ClassVar[str] = "Figure 0"
    title: ClassVar[str] = "Throws <of a die>"
    claim: ClassVar[str] = "It is fair."
    full_outcome: ClassVar[str] = "held"

    throws: int = 3
    faces: tuple[int, ...] = (1, 2, 3, 4, 5, 6)

    def quick(self):
        return replace(self, throws=1)

    def cases(self):
        return [{"throw": number} for number in range(self.throws)]

    def measure(self, case):
        if case["throw"] == 7:
            raise FileNotFoundError("there is no seventh die.")
        measured.append(case["throw"])
        return [{"eyes": self.generator(case).integers(1, 7)}]

    def draw(self, table):
        figure, axes = subplots(height=2)
        axes.plot(table.column("eyes"))
        return {"Eyes & throws": figure}

    def verdict(self, table):
        fair = table.mean("eyes") < 6
        return Verdict("held" if fair else "did not hold", (f"{len(table)} throws & more.", "And dice."))


@pytest.fixture(autouse=True)
def forget():
    measured.clear()


def test_an_interrupted_run_is_resumed(tmp_path):
    experiment = Throws(throws=5)
    whole = experiment.run(tmp_path / "whole").table
    cases = experiment.cases()
    measured.clear()

    class Interrupted(Throws):
        def measure(self, case):
            if case["throw"] == 3:
                raise KeyboardInterrupt
            return super().measure(case)

    with pytest.raises(KeyboardInterrupt):
        Interrupted(throws=5).run(tmp_path)
    assert measured == [0, 1, 2]
    assert experiment.run(tmp_path).table == whole
    assert measured == [case["throw"] for case in cases]
    with (tmp_path / "table.csv").open() as file:
        assert [int(row["eyes"]) for row in csv.DictReader(file)] == list(whole.column("eyes"))


@pytest.mark.parametrize("left", [-10, 10, 0])
def test_a_line_torn_by_a_crash_is_measured_again(tmp_path, left):
    experiment = Throws()
    table = experiment.run(tmp_path).table
    (log,) = tmp_path.glob("*.jsonl")
    log.write_bytes(log.read_bytes()[:left])
    measured.clear()
    assert experiment.run(tmp_path).table == table
    assert experiment.run(tmp_path).table == table
    assert measured == ([2] if left < 0 else [0, 1, 2])


def test_other_settings_are_measured_again_and_the_old_ones_stay(tmp_path):
    first = Throws().run(tmp_path).table
    assert Throws(seed=1).run(tmp_path).table != first
    measured.clear()
    assert Throws().run(tmp_path).table == first
    assert measured == []


def test_a_case_gives_the_same_result_alone(tmp_path):
    many, one = Throws(throws=5).run(tmp_path / "many"), Throws(throws=1).run(tmp_path / "one")
    assert many.table[:1] == one.table


def test_cases_without_data_are_skipped_and_reported(tmp_path):
    result = Throws(throws=9).run(tmp_path / "throws")
    assert len(result.table) == 8
    assert result.missing == ("there is no seventh die.",)
    page = write_page(tmp_path, [result], "").read_text()
    assert "Not measured: there is no seventh die." in page


def test_there_is_no_verdict_without_measurements(tmp_path):
    result = Result(Throws(), Table(), ("there are no dice.",))
    page = write_page(tmp_path, [result], "").read_text()
    assert 'class="outcome' not in page
    assert "Not measured: there are no dice." in page


def test_the_page_is_one_file_that_escapes_what_it_quotes(tmp_path):
    page = write_page(tmp_path, [Throws().run(tmp_path / "throws")], "Once & for all.").read_text()
    assert "Throws &lt;of a die&gt;" in page
    assert "Once &amp; for all." in page
    assert 'alt="Eyes &amp; throws"' in page
    assert re.findall(r'src="(?!data:)', page) == []
    assert page.count('class="outcome held"') == 2  # in the overview, and above the points
    assert "<li>3 throws &amp; more.<li>And dice.</ul>" in page


def test_pictures_are_written_as_svg_and_png_and_are_the_same_every_time(tmp_path):
    result = Throws().run(tmp_path / "throws")
    page = write_page(tmp_path, [result], "").read_text()
    files = {kind: tmp_path / "throws" / f"plot-1.{kind}" for kind in ("svg", "png")}
    first = {kind: file.read_bytes() for kind, file in files.items()}
    assert first["png"].startswith(b"\x89PNG")
    assert b"<svg" in first["svg"][:1000]
    assert 'src="data:image/svg+xml;base64,' in page
    assert all(f'href="throws/plot-1.{kind}"' in page for kind in files)
    write_page(tmp_path, [result], "")
    assert {kind: file.read_bytes() for kind, file in files.items()} == first


def test_the_head_lists_what_smaller_settings_leave_out(tmp_path):
    assert Throws().left_out() == Throws(seed=4).left_out() == ""
    assert Throws(throws=2, faces=(1, 2, 6)).left_out() == "throws 2 instead of 3; faces without 3, 4, 5"
    assert Throws(faces=(7,)).left_out() == "faces 7 instead of 1, 2, 3, 4, 5, 6"
    page = write_page(tmp_path, [Throws(throws=2).run(tmp_path / "throws")], "").read_text()
    head = page[: page.index("<section")]
    assert "<li>Throws &lt;of a die&gt;: throws 2 instead of 3</ul>" in head
    assert "Smaller settings" not in write_page(tmp_path, [Throws().run(tmp_path / "throws")], "").read_text()


def test_a_verdict_that_differs_from_that_of_the_full_run_says_so(tmp_path):
    class Unfair(Throws):
        full_outcome = "did not hold"

    page = write_page(tmp_path, [Unfair(throws=2).run(tmp_path / "throws")], "").read_text()
    assert "differs from that of the full run, where the claim did not hold" in page
    assert "decides it there: throws 2 instead of 3." in page
    for experiment in (Unfair(), Throws(throws=2)):  # the full run itself, and one that agrees
        page = write_page(tmp_path, [experiment.run(tmp_path / "throws")], "").read_text()
        assert "differs from that of the full run" not in page


def test_rounding_errors_are_drawn_at_the_edge_and_do_not_set_the_scale():
    _, axis = subplots()
    draw_above(axis, [0, 1, 2], [1e-3, 1e-16, -1e-16], "o", color="red", label="some")
    draw_above(axis, [1, 2, 3], [1e-2, 1e-15, 0.1], "o", color="blue", label="others")
    log_ticks(axis)
    assert axis.get_ylim()[0] > 1e-5
    explain_triangles(axis)
    assert axis.get_legend_handles_labels()[1] == ["some", "others", "exact to rounding"]
    triangles = [line for line in axis.lines if line.get_marker() == "v" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in triangles] == [[1, 2], [2]]
    assert triangles[0].get_ydata()[0] < triangles[1].get_ydata()[0]  # not on top of each other
    _, bare = subplots()
    draw_above(bare, [0], [1.0], label="one")
    explain_triangles(bare)
    assert bare.get_legend_handles_labels()[1] == ["one"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.5, "5.0e-01"), (1e-13, "≤ 1e-12"), (-2e-16, "≤ 1e-12"), (0.0, "≤ 1e-12")]
)
def test_tables_show_no_rounding_errors(share, text):
    assert format_share(share) == text


def test_tables():
    table = Table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 4, "b": "x"}])
    assert table.distinct("b") == ["x", "y"]
    assert table.mean("a", b="x") == 2.5
    assert [(key, list(part.column("a"))) for key, part in table.groups("b")] == [
        (("x",), [1, 4]),
        (("y",), [2]),
    ]
    with pytest.raises(ValueError, match="no measurement of a has"):
        table.mean("a", b="z")


def test_scores_against_numpy():
    rows = np.random.default_rng(0).normal(size=(60, 6)) * [5, 4, 3, 2, 1, 1]
    _, values, exact = np.linalg.svd(rows, full_matrices=False)
    offline = Offline.of(rows)
    perfect = offline.scores(exact[:2])
    assert perfect["excess"] == pytest.approx(0, abs=1e-12)
    assert perfect["shortfall"] == pytest.approx(0, abs=1e-12)
    assert perfect["sine"] < 1e-7
    wrong = offline.scores(exact[[0, 2]])
    assert wrong["error"] == pytest.approx((values[1] ** 2 + np.sum(values[3:] ** 2)) / 60)
    assert wrong["shortfall"] == pytest.approx(
        1 - (values[0] ** 2 + values[2] ** 2) / np.sum(values[:2] ** 2)
    )
    assert wrong["sine"] == pytest.approx(1)
    assert offline.scores(exact[:1], rank=2)["shortfall"] == pytest.approx(
        1 - values[0] ** 2 / np.sum(values[:2] ** 2)
    )


def test_chance_level_of_the_papers_metric():
    """ln(0.727 / d): |entries| of two random bases differ by 2 (1 - 2 / pi) / d, squared, on average."""
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(300, 10)))[0].T for _ in range(2)]
    assert ln_mse(*bases) == pytest.approx(np.log(0.727 / 300), abs=0.1)


@pytest.mark.parametrize("method", [*COLORS, "F-PCA adaptive", "SPIRIT adaptive", "GROUSE 2/k"])
def test_every_method_finds_a_dominant_direction_about_the_origin(method):
    rng = np.random.default_rng(0)
    rows = (
        rng.normal(size=(2000, 12)) * 0.1 + rng.normal(size=(2000, 1)) * 0.2 * np.eye(12)[3] + np.eye(12)[3]
    )
    tracker = make_tracker(method, 12, 2, block_rows=20)
    tracker.update(rows)
    found = components(tracker)
    assert np.abs(found[0] @ np.eye(12)[3]) > 0.95


@pytest.fixture
def lab():
    """Skips the test where the stand-ins are not there."""
    if not (Path(os.environ.get("FEDPCA_DATA", "")) / "intel_lab_30min.npz").is_file():
        pytest.skip("intel_lab_30min.npz, a file of the folder FEDPCA_DATA")


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("name", STAND_INS)
def test_stand_ins_are_read_and_belong_to_other_rows(name):
    found = paper_rows(name, center=True, multiple_of=50)
    assert found.shape == (200, 50)
    assert np.abs(found.mean(axis=0)).max() < 1e-12
    assert name not in rows.SOURCES
    assert STAND_INS[name] in rows.SOURCES


def test_a_missing_stand_in_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPCA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"stand-in for motes-humidity: put intel_lab_30min\.npz"):
        paper_rows("lab humidity", center=True)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_complete(name):
    experiment = EXPERIMENTS[name]()
    assert experiment.name == name
    assert experiment.full_outcome in ("held", "held with a correction", "did not hold")
    assert experiment.left_out() == "" != experiment.quick().left_out()
    for made in (experiment, experiment.quick()):
        cases = [tuple(sorted(case.items())) for case in made.cases()]
        assert len(cases) == len(set(cases)) > 0
    assert experiment.quick() != experiment


def test_reproduce_runs_experiments_and_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "throws", Throws)
    assert "Measured with smaller settings" in reproduce(["throws"], tmp_path, quick=True).read_text()
    page = reproduce(["throws"], tmp_path, seed=3)
    result = Throws(seed=3).run(tmp_path / "throws")
    assert isinstance(result, Result)
    assert "seed 3" in page.read_text()


# --- the page about the paper ---

CHECKED = (Path(__file__).parents[2] / "docs" / "paper-checked.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_on_the_page(name):
    assert f"`{name}`" in CHECKED


@pytest.mark.parametrize(
    "erratum",
    [
        "0.01 in the text, 0.05 in the caption",
        "6498",
        "Temperature has r = 20 in the text, 10 in the script",
        "O(r(d + kr)) bits",
        '"below 0.3" in the text and "at most 0.2"',
        "(Lemma 1)",
        "(Theorem 1, from MOSES)",
        "(Lemma 3)",
        "(Lemma 11, Theorem 2)",
        "the picture of epsilon = 0.6",
        "forgetting and enhancing factors",
        "Algorithm 1, the first batch",
    ],
)
def test_the_page_lists_the_errata(erratum):
    assert erratum in CHECKED


def test_functions_that_the_page_names_exist():
    named = re.findall(r"`(\w+)` in `fedpca\.paper\.theory`", CHECKED)
    assert {"moses_error_bound", "energy_sum", "merge_distance_bound", "merge_error_bound"} <= set(named)
    assert all(hasattr(theory, name) for name in named)


# --- the command ---


def test_the_command_runs_the_named_experiments_and_prints_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "throws", Throws)
    main(["throws", "--quick"])
    assert capsys.readouterr().out == "Open in a browser: build/reproduction-quick/index.html\n"
    page = (tmp_path / "build" / "reproduction-quick" / "index.html").read_text()
    assert "Measured with smaller settings" in page
    assert re.findall(r'<section id="(.*?)">', page) == ["throws"]
    main(["throws", "--quick"])
    assert measured == [0]

    main(["throws", "--out", "pages", "--seed", "3"])
    assert "the paper&#x27;s settings and seed 3" in (tmp_path / "pages" / "index.html").read_text()


def test_the_command_runs_all_experiments_by_default(tmp_path, monkeypatch):
    asked = []

    def reproduced(names, folder, **settings):
        asked.append((names, folder, settings))
        return folder / "index.html"

    monkeypatch.setattr("reproduction.__main__.reproduce", reproduced)
    main(["--out", str(tmp_path)])
    assert asked == [(list(EXPERIMENTS), tmp_path, {"quick": False, "seed": 0})]


def test_the_command_lists_experiments_and_rejects_others(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert "merging" in capsys.readouterr().err
