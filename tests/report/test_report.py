"""Reports are correct for every kind of model and run, and untrusted text stays text."""

import base64
import hashlib
import json
import re
from dataclasses import asdict, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import power_law, secured
from sklearn.decomposition import PCA

import fedpca
from fedpca import Aggregator, FederatedPCA, Moments, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.errors import SummaryRejected
from fedpca.federation.one_process.simulate import Faults, simulate
from fedpca.readers import open_rows
from fedpca.summaries.about import About

pytest.importorskip("matplotlib", reason="the report extra")
pytest.importorskip("jinja2", reason="the report extra")

from fedpca._util.text import percent
from fedpca.report import write_report
from fedpca.report.model import explained_variance
from fedpca.report.run import load_run
from fedpca.report.sample import sample_rows
from fedpca.summaries.certificate import Certificate, Release

pytestmark = pytest.mark.slow  # all of it together

HOSTILE = "</text></svg><script>alert(1)</script>\x00\u202e$\\frac{$ &amp; _名" + "x" * 10_000


class Scripts(HTMLParser):
    """The attributes and contents of all script elements, as a browser sees them; and the page's policy."""

    def __init__(self, text):
        super().__init__()
        self.found, self.policy, self.open = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.open = tag == "script"
        if self.open:
            self.found.append((attributes, ""))
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]

    def handle_endtag(self, tag):
        self.open = False

    def handle_data(self, data):
        if self.open:
            attributes, before = self.found.pop()
            self.found.append((attributes, before + data))


def data_of(text):
    """What the page's script shows, or None if it has none; scripts are checked and nothing else may run."""
    page = Scripts(text)
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    if not page.found:
        assert "script-src" not in rules
        return None
    (kind, data), (attributes, script) = page.found
    assert (kind, attributes) == ({"type": "application/json", "id": "report-data"}, {})
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not re.search(r"innerHTML|outerHTML|eval|Function\(|fetch|XMLHttp|import|\.write", script)
    assert not re.search(r"[<>&\u2028\u2029]", data)
    return json.loads(data)


def written(path, *arguments, **options):
    """Write a page and check what holds for every page: self-contained, one script, valid, not large."""
    text = write_report(path / "report.html", *arguments, **options).read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    data_of(text)
    rest = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(
        r"<script|javascript:|\son\w+=|@import|<(?!link rel=\"icon\")link|\x00|\u202e", rest, re.I
    )
    assert set(re.findall(r"https?://[^\"' <]+", text)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip
    assert all(
        reference.startswith("#")
        for reference in re.findall(r"(?:url\(|href=\")([^\")]+)", rest.replace('href="data:,"', ""))
    )
    ids = re.findall(r"\sid=\"([^\"]+)\"", text)
    assert len(set(ids)) == len(ids)
    for svg in pictures(text):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > 20
    return text


def pictures(text):
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


def table(text, title):
    """The lines of a table, without its head."""
    found = re.search(
        rf"<caption class=\"visually-hidden\">{re.escape(title)}</caption>.*?<tbody>(.*?)</tbody>",
        text,
        re.DOTALL,
    )
    lines = re.findall(r"<tr>(.*?)</tr>", found[1], re.DOTALL)
    return [
        [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)]
        for line in lines
    ]


def sections(text):
    return re.findall(r"<section id=\"([^\"]+)\"", text)


def share(cell):
    return float(cell.removeprefix("more than ").rstrip("%")) / 100


# --- numbers ---


def test_explained_variance_and_loadings_are_those_of_pca(tmp_path, rng):
    rows = power_law(rng, 500, 6) * 3
    pca = StreamingPCA(3).fit(rows)
    text = written(tmp_path, pca)
    offline = PCA().fit(rows)
    lines = table(text, "Explained variance")
    shares = [share(line[2]) for line in lines]
    np.testing.assert_allclose(shares, offline.explained_variance_ratio_[: len(lines)], atol=6e-4)
    np.testing.assert_allclose(
        [float(line[1]) for line in lines], offline.explained_variance_[: len(lines)], rtol=1e-3
    )
    assert [line[3] for line in lines] == ["shown"] * 3 + ["kept for merging"] * 3
    together = [share(line[1]) for line in table(text, "Cumulative explained variance")]
    np.testing.assert_allclose(together[:3], np.cumsum(offline.explained_variance_ratio_)[:3], atol=6e-4)
    for i in range(3):
        loadings = {name: float(weight) for name, weight in table(text, f"Loadings of component {i + 1}")}
        weights = [abs(loadings[f"feature {feature + 1}"]) for feature in range(6)]
        np.testing.assert_allclose(weights, np.abs(offline.components_[i]), atol=6e-5)
    assert sections(text) == ["explained-variance", "loadings"]


@pytest.mark.slow
def test_what_exact_pca_explains_lies_within_the_bounds(tmp_path, rng):
    parts = [power_law(rng, 60, 12, alpha=0.5) + client for client in range(4)]
    model = fedpca.merge([Subspace.from_rows(part, rank=5) for part in parts], rank=5)
    best = np.cumsum(PCA().fit(np.concatenate(parts)).explained_variance_ratio_)
    lines = table(written(tmp_path, model), "Cumulative explained variance")
    for truth, (_, low, high) in zip(best, lines, strict=False):
        assert share(low) - 6e-4 <= truth <= share(high) + 1.1e-3
    assert share(lines[0][2]) < 0.999


def test_bounds_on_exact_pca_are_marks_and_not_areas(rng):
    model = StreamingPCA(10, tracker="nystrom").fit(rng.normal(size=(500, 400))).subspace_
    _, cumulative = explained_variance(model, 10).items
    (axes,) = cumulative.figure.axes
    assert not axes.patches
    assert max(line.get_linewidth()[0] for line in axes.collections) <= 2


def test_one_percent_of_rows_exceed_the_limits(rng):
    spread = np.array([5.0, 4.0, 3.0, 1.5, 1.2, 1.0, 1.0, 1.0])
    model = Subspace.from_rows(rng.normal(size=(20_000, 8)) * spread, rank=5)
    fresh = sample_rows(rng.normal(size=(100_000, 8)) * spread, model, 3, None)
    assert fresh.n_read == 100_000
    assert len(fresh.scores) == 2000
    assert 0.008 < fresh.n_above_t2 / fresh.n_read < 0.012
    assert 0.008 < fresh.n_above_spe / fresh.n_read < 0.012


def test_the_spe_limit_is_estimated_from_the_rows(rng):
    spread = 1 / np.arange(1, 61)
    model = Subspace.from_rows(rng.normal(size=(5000, 60)) * spread, rank=5)
    rows = rng.normal(size=(50_000, 60)) * spread
    fresh = sample_rows(rows, model, 5, None)
    assert 0.008 < fresh.n_above_spe / fresh.n_read < 0.018
    pca = StreamingPCA(5).merge(model)
    spe, _ = pca.anomaly_scores(rows)
    assert np.count_nonzero(spe > fresh.spe_limit) == pytest.approx(fresh.n_above_spe, abs=2)
    assert np.mean(spe > pca.anomaly_limits()[0]) > 0.05  # the limit from the spectrum alone is less accurate
    few = sample_rows(rows[:50], model, 5, None)
    assert not few.is_spe_limit_fitted
    assert few.spe_limit == pytest.approx(pca.anomaly_limits()[0], rel=0.003)


def test_no_map_of_rounding_errors_is_drawn(tmp_path, rng):
    rows = rng.normal(size=(3, 3))
    model = Subspace.from_rows(rows)
    assert "There is no outlier map" in written(tmp_path, model, rows=rows)


def test_rows_are_drawn_uniformly_whatever_the_batches(tmp_path, rng):
    rows = rng.normal(size=(10_000, 3))
    rows[:, 0] = np.linspace(-9, 9, len(rows))
    np.save(tmp_path / "rows.npy", rows)
    model = Subspace.from_rows(rows)
    drawn = [
        sample_rows(open_rows(tmp_path / "rows.npy", batch_rows=size), model, 3, None)
        for size in (77, 10_000)
    ]
    np.testing.assert_allclose(drawn[0].scores, drawn[1].scores)
    counts = np.histogram(drawn[0].scores[:, 0], bins=10)[0]  # of 200 expected in each tenth, +- 4 deviations
    assert counts.min() > 140
    assert counts.max() < 260
    np.testing.assert_allclose(sample_rows(rows, model, 3, None).scores, drawn[0].scores)


@pytest.mark.slow
def test_groups_have_their_own_medians(tmp_path, rng):
    pd = pytest.importorskip("pandas")
    rows = np.concatenate([rng.normal(size=(50, 4)), rng.normal(size=(70, 4)) + np.array([9, 0, 0, 0])])
    frame = pd.DataFrame(rows, columns=list("abcd"))
    site = np.repeat(["north", "south"], [50, 70])
    pca = StreamingPCA(2).fit(frame)
    text = written(tmp_path, pca, rows=frame, color=site)
    lines = table(text, "Scores on components 1 and 2")
    assert [line[:2] for line in lines] == [["north", "50"], ["south", "70"]]
    scores = PCA(2).fit(rows).transform(rows)
    medians = [np.median(scores[site == name, 0]) for name in ("north", "south")]
    np.testing.assert_allclose(np.abs([float(line[2]) for line in lines]), np.abs(medians), rtol=1e-3)
    assert "has the lowest median score" in text
    by_name = written(tmp_path, pca, rows=frame.assign(site=site)[["site", *"dcba"]], color="site")
    assert [line[:2] for line in table(by_name, "Scores on components 1 and 2")] == [
        line[:2] for line in lines
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("color", "groups"),
    [
        (np.arange(300) % 10, [str(digit) for digit in range(10)]),
        (np.linspace(0, 1, 300), ["0 to 0.2", "0.2 to 0.4", "0.4 to 0.6", "0.6 to 0.8", "0.8 to 1"]),
        (np.where(np.arange(300) < 280, "most", np.arange(300).astype(str)), None),
        (
            np.where(np.arange(300) < 20, np.nan, np.arange(300.0)),
            ["20 to 75.8", "75.8 to 131.6", "131.6 to 187.4", "187.4 to 243.2", "243.2 to 299", "missing"],
        ),
        (["same"] * 300, ["same"]),
        (np.arange(300) % 8 + 5, [str(number) for number in range(5, 13)]),
        (
            np.datetime64("2026-01-01") + np.arange(300),
            [
                "2026-01-01 to 2026-03-01", "2026-03-01 to 2026-04-30", "2026-04-30 to 2026-06-29",
                "2026-06-29 to 2026-08-28", "2026-08-28 to 2026-10-27",
            ],
        ),
        (
            [f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z" for minute in range(300)],
            [
                "2026-01-01 00:00 to 2026-01-01 00:59", "2026-01-01 00:59 to 2026-01-01 01:59",
                "2026-01-01 01:59 to 2026-01-01 02:59", "2026-01-01 02:59 to 2026-01-01 03:59",
                "2026-01-01 03:59 to 2026-01-01 04:59",
            ],
        ),
        (np.repeat(np.array(["2026-01-01", "2026-02-01"], "M8[ns]"), 150), ["2026-01-01", "2026-02-01"]),
        ([""] * 150 + ["_hidden"] * 150, ["_hidden", "missing"]),
    ],
)  # fmt: skip
def test_rows_can_be_colored_by_any_column(tmp_path, rng, color, groups):
    rows = rng.normal(size=(300, 3))
    text = written(tmp_path, Subspace.from_rows(rows), rows=rows, color=color)
    lines = table(text, "Scores on components 1 and 2")
    assert groups is None or [line[0] for line in lines] == groups
    assert sum(int(line[1]) for line in lines) == 300


@pytest.mark.slow
def test_one_component_has_a_strip_per_group(tmp_path, rng):
    rows = rng.normal(size=(90, 3))
    text = written(tmp_path, Subspace.from_rows(rows, 1), rows=rows, color=np.repeat(["a", "b", "c"], 30))
    (chart,) = re.findall(r"<svg[^>]*aria-label=\"Scores on component 1.*?</svg>", text, re.DOTALL)
    heights = [float(y) for y in re.findall(r"y=\"([\d.]+)\"[^>]*>[abc]</text>", chart)]
    assert heights == sorted(set(heights))
    assert len(heights) == 3
    assert [line[:2] for line in table(text, "Scores on component 1")] == [
        ["a", "30"],
        ["b", "30"],
        ["c", "30"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("largest", "label"), [(2e5, "200k"), (3e6, "2M"), (2e9, "2e9"), (5e-7, "5e−7")])
def test_tick_labels_are_short(tmp_path, largest, label):
    rows = np.outer(np.linspace(-largest, largest, 50), np.eye(3)[0])
    text = written(tmp_path, Subspace.from_rows(rows, 1), rows=rows)
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", pictures(text)[2])
    assert label in ticks
    assert max(len(tick) for tick in ticks if "component" not in tick) <= 7


# --- what readers explore ---


def test_the_data_of_a_page_are_the_scores_and_loadings(tmp_path, rng):
    rows = power_law(rng, 300, 6) * 3
    pca = StreamingPCA(3).fit(rows)
    data = data_of(written(tmp_path, pca, rows=rows))
    offline, weights = (
        PCA(3).fit(rows),
        np.array([values(data, "features", f"loading on {k}") for k in (1, 2, 3)]),
    )
    signs = np.sign((weights * offline.components_[:, _order(data)]).sum(axis=1))
    np.testing.assert_allclose(weights, signs[:, None] * offline.components_[:, _order(data)], atol=1e-4)
    assert values(data, "rows", "row") == list(range(1, 301))
    expected = signs * offline.transform(rows)
    scores = [values(data, "rows", f"component {k}") for k in (1, 2, 3)]
    np.testing.assert_allclose(np.array(scores).T, expected, rtol=1e-4, atol=1e-4)
    spe, t2 = pca.anomaly_scores(rows)
    np.testing.assert_allclose(values(data, "rows", "SPE"), spe, rtol=1e-4)
    np.testing.assert_allclose(values(data, "rows", "T²"), t2, rtol=1e-4)
    np.testing.assert_allclose(
        values(data, "features", "variance"), rows.var(axis=0, ddof=1)[_order(data)], rtol=1e-4
    )
    captured = (offline.explained_variance_[:, None] * offline.components_**2).sum(axis=0)
    np.testing.assert_allclose(
        values(data, "features", "explained"), (captured / rows.var(axis=0, ddof=1))[_order(data)], rtol=1e-4
    )


def test_the_correlations_of_a_page_are_those_of_rows(tmp_path, rng):
    rows = power_law(rng, 300, 6) * 3
    data = data_of(written(tmp_path, StreamingPCA(3).fit(rows)))
    expected = np.corrcoef(rows.T, PCA(3).fit(rows).transform(rows).T)[:6, 6:][_order(data)]
    found = np.array([values(data, "features", f"correlation with {k}") for k in (1, 2, 3)]).T
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=6e-4)


def column(data, table, name):
    (found,) = (each for each in data["tables"][table]["columns"] if each["name"] == name)
    return found


def values(data, table, name):
    return column(data, table, name)["values"]


def texts(column):
    """The text of every line of a column."""
    return [column["texts"][code] for code in column["codes"]]


def passthrough_of(text):
    """The passthrough columns of a page: those that rows can be colored by."""
    return [each for each in data_of(text)["tables"]["rows"]["columns"] if "labels" in each or "ends" in each]


def _order(data):
    return [int(name.removeprefix("feature ")) - 1 for name in texts(column(data, "features", "feature"))]


def test_a_page_without_rows_has_nothing_about_any(tmp_path, rng):
    text = written(tmp_path, Subspace.from_rows(rng.normal(size=(50, 4))))
    assert data_of(text)["tables"].keys() == {"features"}
    assert "as confidential as the rows" not in text
    assert data_of(written(tmp_path, Subspace.empty(4))) is None


def test_a_frame_shows_no_column_that_was_not_named(tmp_path, rng):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=list("abc"))
    people = frame.assign(name=[f"Jane {i}" for i in range(40)], site=["north", "south"] * 20)
    people.index = [f"patient {i}" for i in range(40)]
    text = written(tmp_path, StreamingPCA(2).fit(frame), rows=people, color="site")
    assert [column["name"] for column in passthrough_of(text)] == ["site"]
    assert "Jane" not in text
    assert "patient" not in text
    named = written(tmp_path, StreamingPCA(2).fit(frame), rows=people, passthrough=["name"])
    (column,) = passthrough_of(named)
    assert texts(column) == list(people["name"])
    assert data_of(named)["tables"]["rows"]["color"] == 0


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (np.arange(40) % 3, None),
        (np.arange(40) / 7, ["0", "2.786", "5.571"]),
        (np.datetime64("2026-01-01") + np.arange(40), ["2026-01-01", "2026-01-20", "2026-02-09"]),
        ([f"id {i}" for i in range(40)], None),
        ([""] * 40, None),
        ([None, *range(39)], ["0", "19", "38"]),
        (np.arange(1000.0) - 500, ["≤ −490", "−0.5", "≥ 489"]),
    ],
)
def test_a_passthrough_column_has_a_kind_of_colors(tmp_path, rng, values, ends):
    rows = rng.normal(size=(len(values), 3))
    (column,) = passthrough_of(
        written(tmp_path, Subspace.from_rows(rows), rows=rows, passthrough={"what": values})
    )
    assert len(column["codes"]) == len(values)
    if ends is None:
        assert len(column["groups"]) == len(column["texts"])
        assert max(column["groups"]) == len(column["labels"]) - 1 < 10
        assert sum(column["sizes"]) == len(values)
    else:
        assert column["ends"] == ends
        of_rows = [column["places"][code] for code in column["codes"]]
        assert sum(place is None for place in of_rows) == (values[0] is None)
        known = [place for place in of_rows if place is not None]
        assert known == sorted(known)
        assert (known[0], known[-1]) == (0, 399)


def test_texts_are_in_the_order_that_people_expect(tmp_path, rng):
    rows = rng.normal(size=(4, 2))
    text = written(
        tmp_path, Subspace.from_rows(rows), rows=rows, passthrough={"id": ["b 10", "", "b 9", "A"]}
    )
    (column,) = passthrough_of(text)
    assert column["texts"] == ["A", "b 9", "b 10", ""]
    assert column["known"] == 3


# --- a federation ---


def federation(folder=None, n_clients=6):
    aggregator = Aggregator(2, store=folder)
    for client in range(n_clients):
        rows = power_law(np.random.default_rng(client), 30 + client, 5)
        aggregator.receive(f"client {client}", 1, Subspace.from_rows(rows))
        aggregator.record()
    with pytest.raises(SummaryRejected):
        aggregator.receive("mallory", 1, Subspace.from_rows(np.eye(3)))
    aggregator.withdraw("client 0")
    aggregator.record()
    return aggregator


@pytest.mark.slow
def test_the_run_of_an_aggregator_and_of_its_store(tmp_path):
    aggregator = federation(tmp_path / "store")
    run = load_run(aggregator)
    assert replace(run, influence={}, notes=()) == load_run(tmp_path / "store")  # not in a history
    assert run.influence == aggregator.influence()
    assert run.contributions == {f"client {client}": 30.0 + client for client in range(1, 6)}
    assert [(incident.client, incident.status) for incident in run.incidents] == [
        ("mallory", "rejected"), ("client 0", "withdrawn"),
    ]  # fmt: skip
    assert [point.rows for point in run.growth] == [30, 61, 93, 126, 160, 195, 165]
    assert len(run.updates) == 7
    text = written(tmp_path, aggregator.model(), run=tmp_path / "store")
    assert table(text, "Rows per client")[0] == ["client 5", "35", "21.2%"]
    assert "same features" in table(text, "Incidents")[0][3]
    assert sections(text) == ["explained-variance", "loadings", "contributions", "over-time", "incidents"]
    angles = table(text, "Principal angles over time")
    expected = [event.angle for event in aggregator.history if event.what == "model"][1:]
    shown = [0.0 if "less" in cell else float(cell.rstrip("°")) for _, cell in angles]
    np.testing.assert_allclose(shown, np.degrees(expected), atol=0.01)


def liar_among(n_clients):
    """An aggregator one of whose clients, "client 2", varies along a direction that no other has."""
    aggregator, rng = Aggregator(3), np.random.default_rng(0)
    for client in range(n_clients):
        rows = rng.normal(size=(40, 8)) * [5, 4, 3, 1, 1, 1, 1, 0.5]
        rows[:, 7] *= 100 if client == 2 else 1
        aggregator.receive(f"client {client}", 1, Subspace.from_rows(rows))
    return aggregator


@pytest.mark.slow
@pytest.mark.parametrize("n_clients", [6, 30])
def test_the_influence_of_clients(tmp_path, n_clients):
    aggregator = liar_among(n_clients)
    found = aggregator.influence()
    text = written(tmp_path, aggregator.model(), run=aggregator, pictures=tmp_path / "pictures")
    assert "influence" in sections(text)
    turned = table(text, "The model without each client")
    assert len(turned) == n_clients
    assert turned[0][:2] == ["client 2", f"{np.degrees(found['client 2'].angle):.2f}°"]
    assert "Far beyond its share of the rows: client 2 (in another color)." in text
    assert ("The 15 of 30 clients" in text) == (n_clients == 30)
    shares = {line[0]: line[1:] for line in table(text, "Variance captured of each client")}
    for name, one in found.items():
        assert shares[name] == [f"{100 * share:.1f}%" for share in (one.captured, one.captured_without)]
    assert {"influence.svg", "captured.png"} <= {path.name for path in (tmp_path / "pictures").iterdir()}


def test_one_client_has_no_influence_to_show(tmp_path):
    assert "influence" not in sections(written(tmp_path, liar_among(1).model(), run=liar_among(1)))


def flower_folder(folder, **changes):
    aggregator = federation(folder / "store", n_clients=9)
    times = [3, 4, 4, 5, 5, 6, 6, 7, 50]
    answers = [
        {"node": str(node), "client": f"client {node}", "what": "accepted", "reason": "",
         "time": f"2026-11-15T10:00:{seconds:02}.000+00:00"}
        for node, seconds in enumerate(times)
    ]  # fmt: skip
    failed = {
        "node": "77",
        "client": "",
        "what": "failed",
        "reason": "bad.csv, line 2",
        "time": "2026-11-15T10:00:01",
    }
    summary = {
        "started": "2026-11-15T10:00:00.000+00:00", "model": "model.safetensors", "problem": "",
        "replies": [*answers, failed],
        "contributors": {
            name: {"rows": child.count} | asdict(aggregator.influence()[name])
            for name, child in aggregator.children.items()
        },
        "quarantined": {"torn": "torn.state is damaged"}, "no_reply": ["123456"],
        "roster": {"study": "heart", "hash": "sha256:", "members": 9, "not_heard_from": ["client 9"]},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return aggregator.model()


@pytest.mark.slow
def test_stragglers_and_incidents_of_a_run(tmp_path):
    model = flower_folder(tmp_path)
    text = written(tmp_path, model, run=tmp_path)
    assert "Stragglers (more than twice the median reply time): client 8." in text
    assert table(text, "Reply time per client")[0] == ["client 8", "50.000"]
    incidents = table(text, "Incidents")
    assert [line[:2] for line in incidents] == [
        ["node 77", "failed"], ["torn", "quarantined"], ["node 123456", "no reply"],
    ]  # fmt: skip
    assert [len(line) for line in table(text, "Rows per client")] == [3] * 8
    assert incidents[0][2:] == ["2026-11-15 10:00:01", "bad.csv, line 2"]


@pytest.mark.slow
def test_a_run_of_secure_sums_shows_members_and_not_their_parts(tmp_path):
    sums = [
        {"sum": "gram", "owners": ["client 0", "client 1", "client 2"], "rows": 900, "noise": 1.5},
        {"sum": "evaluation", "owners": ["client 0", "client 2"], "rows": 700, "noise": 1.5},
    ]
    secure = {"least": 2, "members": [f"client {node}" for node in range(4)], "sums": sums}
    roster = {"study": "heart", "hash": "sha256:", "members": 5, "not_heard_from": ["client 3", "client 4"]}
    model = flower_folder(tmp_path, secure=secure, roster=roster)
    page = written(tmp_path, model, run=tmp_path)
    assert "not visible, by design: the server learned secure sums over at least 2 members" in page
    assert "3 of 5 members are in a sum; in none: client 3, client 4." in page
    assert table(page, "Members in each sum") == [
        ["rows in the sum", "900", "700"],
        ["client 0", "in it", "in it"],
        ["client 1", "in it", "–"],
        ["client 2", "in it", "in it"],
        ["client 3", "–", "–"],
        ["client 4", "–", "–"],
    ]
    assert "contributed" not in page.replace("What each member contributed", "")
    assert "not heard from" not in page
    assert "Stragglers (" not in page
    assert table(page, "Last reply of each member")[0] == ["client 8", "50.000"]
    assert load_run(tmp_path).n_clients == 3
    flower_folder(tmp_path / "other", secure=secure | {"sums": []}, problem="too few members", model=None)
    page = written(tmp_path, model, run=tmp_path / "other")
    assert "No sum was opened." in page


@pytest.mark.slow
def test_a_run_without_a_model_says_why(tmp_path):
    model = flower_folder(tmp_path, model=None, problem="2 clients have contributed, and quorum=3")
    page = written(tmp_path, model, run=tmp_path)
    assert "This run produced no model: 2 clients have contributed, and quorum=3" in page
    flower_folder(tmp_path / "other", problem="interrupted by OSError")
    page = written(tmp_path, model, run=tmp_path / "other")
    assert "This run did not end normally: interrupted by OSError" in page
    assert "Only members of study &#39;heart&#39; are accepted; not heard from: client 9." in page
    flower_folder(tmp_path / "open", roster="no roster: senders are not verified")
    assert "No roster: senders are not verified." in written(tmp_path, model, run=tmp_path / "open")


def test_a_folder_of_something_else(tmp_path):
    model = Subspace.from_rows(np.eye(3))
    with pytest.raises(FileNotFoundError, match=r"neither summary.json nor history.jsonl"):
        write_report(tmp_path / "report.html", model, run=tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "history.jsonl").touch()
    assert "No client has contributed" in written(tmp_path, model, run=tmp_path / "store")
    (tmp_path / "report.html").unlink()
    (tmp_path / "summary.json").write_text('{"replies": 3}')
    with pytest.raises(ValueError, match="is not a valid summary of a run"):
        write_report(tmp_path / "report.html", model, run=tmp_path)
    with pytest.raises(TypeError, match="run must be a folder"):
        write_report(tmp_path / "report.html", model, run=3)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_a_simulation(tmp_path):
    rng = np.random.default_rng(0)
    clients = {f"{c}": [power_law(rng, 20, 5) for _ in range(5)] for c in range(6)}
    faults = Faults(stragglers=0.5, dropouts=0.3, duplicates=0.5, crashes=0.2, seed=1)
    storm = simulate(clients, 2, faults=faults)
    text = written(tmp_path, storm.model, run=storm)
    assert f"restarted {storm.crashes} time" in text
    assert {line[0] for line in table(text, "Incidents")} == set(storm.dropped_out)
    assert (
        table(text, "Principal angles over time")[-1][1] == "0.00°"
        or "less" in table(text, "Principal angles over time")[-1][1]
    )
    assert sum(float(line[1]) for line in table(text, "Rows per client")) == storm.model.count


def test_a_federated_estimator_brings_its_contributions(tmp_path, rng):
    clients = {"a": rng.normal(size=(30, 4)), "b": rng.normal(size=(50, 4)), "bad": rng.normal(size=(9, 3))}
    with pytest.warns(UserWarning, match="bad"):
        pca = FederatedPCA(2).fit_clients(clients)
    text = written(tmp_path, pca)
    assert [line[:2] for line in table(text, "Rows per client")] == [["b", "50"], ["a", "30"]]
    assert table(text, "Incidents")[0][0] == "bad"


# --- privacy ---


@pytest.fixture(scope="module")
def merged():
    """Noisy releases of three owners, and their merge."""
    rng = np.random.default_rng(3)
    releases = []
    for n_rows in (400, 401, 402):
        privacy = Privacy(2.0, 1e-5, bound=2.0, center=np.zeros(12), evaluate=False)
        releases.append(PrivatePCA(**privacy.settings).fit(power_law(rng, n_rows, 12)).release())
    return fedpca.merge(releases)


@pytest.mark.slow
def test_the_certificate_and_the_noise_edge(tmp_path, merged):
    text = written(tmp_path, merged, n_components=11)
    model = merged.subspace()
    assert 0 < model.rank < 11
    assert f"cannot be distinguished from noise: none of the {model.rank} shown" in text
    shares = [line[2] for line in table(text, "Explained variance")]
    assert shares == [percent(share) for share in model.singular_values**2 / merged.total]
    stated = dict(table(text, "Certificate"))
    assert stated["epsilon"] == "2"
    assert stated["delta"] == "1e-05"
    assert stated["noise was added to"] == "the Gram matrix"
    assert stated["releases merged"] == "3"
    assert [line[1] for line in table(text, "Releases")] == ["400", "401", "402"]
    assert "The discarded variance is unknown" in text
    assert "as confidential as the rows" not in text


@pytest.mark.slow
def test_secure_sums_are_told_in_words(tmp_path, merged):
    assert "Secure sums" not in written(tmp_path, merged)
    privacy = Privacy(2.0, 1e-5, bound=2.0, center=np.zeros(12), evaluate=False)
    rows = power_law(np.random.default_rng(3), 1300, 12)
    plain, release = (
        PrivatePCA(**privacy.settings).partial_fit(part).release() for part in (rows[:400], rows)
    )
    release = secured(release)
    text = written(tmp_path, release)
    assert "Every sum has at least 5 owners." in text
    assert "The promise holds against the coordinator together with any 1 of the 7 members." in text
    assert "5 together with the coordinator can read what every single owner sent." in text
    assert "fedpca secure verify" in text
    assert "6 of 7 members took part. In no sum: owner 0." in text
    sums = table(text, "Who is in each sum")
    assert [line[1] for line in sums] == ["6 of 7", "5 of 7"]
    assert [line[3] for line in sums] == ["1.2×", "1.25×"]
    assert [line[4] for line in sums] == ["owner 0", "owner 0, owner 6"]
    terms = dict(table(text, "Terms"))
    assert terms["fewest owners in a sum"] == terms["owners that it takes to open a sum"] == "5"
    both = written(tmp_path, fedpca.merge([release, plain]))
    assert "1 release in this model is no secure sum: whoever collected it saw it." in both
    record = release.certificate.secure
    odd = replace(
        record, study=HOSTILE[:500], promise=HOSTILE[:1500], members=[*record.members, HOSTILE[:90]]
    )
    written(tmp_path, release.with_about(certificate=replace(release.certificate, secure=odd)))


@pytest.mark.slow
def test_a_model_that_is_not_private_says_so(tmp_path):
    seeded = Privacy(2.0, 1e-5, bound=4.0, insecure_seed_for_tests=1, center=None, evaluate=False)
    pca = PrivatePCA(2, **seeded.settings).fit(np.random.default_rng(0).normal(size=(200, 3)))
    text = written(tmp_path, pca)
    assert "NOT private" in text
    assert "Warning: NOT PRIVATE: the noise came from a seed" in text
    assert (
        "none"
        in re.search(r"<dt>privacy</dt><dd>(.*?)</dd>", written(tmp_path, Subspace.from_rows(np.eye(3))))[1]
    )


# --- any model, any text ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        Subspace.from_rows([[1.0], [2.0], [4.0]]),
        Subspace.from_rows(np.random.default_rng(0).normal(size=(40, 5)), rank=1),
        Subspace.from_rows(np.ones((9, 4))),
        Subspace.from_rows(np.ones((1, 4))),
        Subspace.empty(4),
        Moments.from_rows(np.random.default_rng(0).normal(size=(40, 4))),
        Subspace.from_rows(np.random.default_rng(0).normal(size=(40, 5)), center=False),
        Subspace.from_rows(np.random.default_rng(0).normal(size=(40, 5)) * 1e-120),
        Subspace(np.eye(3)[:2], np.array([2.0, 0.0]), np.zeros(3), 9.0, 4.0),
        Subspace.from_rows(np.eye(3)).with_about(
            certificate=Certificate(False, 1e9, 1.0, 1e300, noise_edge=1e300)
        ),
        StreamingPCA(2).fit(np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)),
        Subspace.from_rows(np.random.default_rng(0).normal(size=(300, 120))),
    ],
    ids=["one feature", "rank 1", "constant", "one row", "empty", "moments", "uncentered", "tiny",
         "no variance", "odd certificate", "float32", "many components"],
)  # fmt: skip
def test_every_model_has_a_page(tmp_path, model):
    text = written(tmp_path, model)
    n_features = model.n_features_in_ if isinstance(model, StreamingPCA) else model.n_features
    rows = np.random.default_rng(1).normal(size=(20, n_features))
    rows[3, 0] = np.nan if n_features > 1 else 0.0
    assert len(pictures(written(tmp_path, model, rows=rows))) >= len(pictures(text))


@pytest.mark.slow
def test_untrusted_text_stays_text(tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    names = (HOSTILE, HOSTILE + "2", "$x_1$")
    hostile = HOSTILE[:1900]
    certificate = Certificate(
        True, 1.0, 1e-5, 0.2, unit=hostile, mechanism=hostile, center=f"public | {hostile}",
        warnings=(hostile,), assumes=hostile, noise_edge=1.0,
        releases=(Release(1.0, 1e-5, 0.2, release=hostile, time=hostile), Release(1.0, 1e-5, 0.2)),
    )  # fmt: skip
    model = Subspace.from_rows(rows).with_about(names=names, certificate=certificate)
    folder = tmp_path / "run"
    (folder / "store").mkdir(parents=True)
    flower_folder(
        folder,
        contributors={HOSTILE: {"rows": 20}, "\ud800": {"rows": 5}},
        quarantined={HOSTILE: HOSTILE},
        replies=[{"node": "1", "client": HOSTILE, "what": "rejected", "reason": HOSTILE, "time": HOSTILE}],
    )
    text = written(
        tmp_path, model, rows=rows, color=[HOSTILE, "b"] * 25, run=folder, title=HOSTILE,
        passthrough={HOSTILE: [HOSTILE + str(i) for i in range(50)]},
    )  # fmt: skip
    assert "&lt;script&gt;" in text
    assert "$x_1$" in text


@pytest.mark.slow
def test_pages_stay_small(tmp_path, rng, monkeypatch):
    """Of 10,000 clients, 100,000 features and many rows."""
    n_features = 100_000
    basis = np.linalg.qr(rng.normal(size=(n_features, 6)))[0].T
    model = Subspace(
        basis, np.arange(6.0, 0, -1), np.zeros(n_features), 1000.0, 100.0,
        about=About(tuple(f"feature with a rather long name, number {i}" for i in range(n_features))),
    )  # fmt: skip
    aggregator = Aggregator(1)
    for client in range(200):
        aggregator.receive(f"client {client}", 1, Subspace.from_rows(np.eye(2) * (client + 1)))
    run = replace(
        load_run(aggregator),
        contributions={f"client {client}": 1.0 + client for client in range(10_000)},
        reply_times={f"client {client}": 1.0 + client for client in range(10_000)},
        incidents=load_run(federation()).incidents * 5000,
    )
    monkeypatch.setattr("fedpca.report.write.load_run", lambda source: run)
    text = written(tmp_path, model, run=aggregator, rows=rng.normal(size=(100, n_features)))
    assert "9,985 others" in text
    assert "9,950 more not shown" in text
    assert "The 15 of 100,000 features shown" in text


@pytest.mark.slow
@pytest.mark.long
def test_a_page_of_many_rows_and_features_is_below_three_megabytes(tmp_path, rng):
    rows = rng.normal(size=(20_000, 2000)).astype(np.float32)
    model = Subspace(
        np.linalg.qr(rng.normal(size=(2000, 20)))[0].T, np.arange(20.0, 0, -1), np.zeros(2000), 20_000.0, 1e5,
        about=About(tuple(f"a feature with quite a long name, number {i}" for i in range(2000))),
    )  # fmt: skip
    passthrough = {"id": [f"row number {i}" for i in range(20_000)], "weight": rng.normal(size=20_000)}
    path = tmp_path / "report.html"
    write_report(path, model, rows=rows, color=rng.integers(0, 10, 20_000), passthrough=passthrough)
    assert path.stat().st_size < 3_000_000
    data = data_of(path.read_text(encoding="utf-8"))
    assert data["tables"]["features"]["size"] == 1000
    assert len(data["plots"]["scores"]["states"][0]["axes"]) == 20
    assert data["tables"]["rows"]["size"] == len(values(data, "rows", "component 20")) == 2000


@pytest.mark.slow
def test_the_same_page_again(tmp_path, rng):
    rows = rng.normal(size=(60, 4))
    first, again = (written(tmp_path, Subspace.from_rows(rows), rows=rows) for _ in range(2))
    assert first == again


# --- outputs ---


@pytest.mark.slow
def test_the_circle_and_the_biplot_of_paper_have_the_numbers(tmp_path, rng):
    rows = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) * [1.0, 3.0, 9.0, 1.0, 0.0] + 7.0
    deviations = rows - rows.mean(axis=0)
    _, _, components = np.linalg.svd(deviations, full_matrices=False)
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(np.corrcoef(rows.T, (deviations @ components[:2].T).T)[:5, 5:])
    text = written(tmp_path, StreamingPCA(2).fit(rows), rows=rows)
    for name, values in (("circle", expected), ("biplot", components[:2].T)):
        lines = re.findall(
            r"<tr>(<th scope=.row.*?)</tr>", text.split(f'id="{name}-chart"')[1].split("</table>")[0]
        )
        cells = [re.findall(r">([^<]+)</t[hd]>", line) for line in lines]
        assert sorted(cell[0] for cell in cells) == [f"feature {i}" for i in range(1, 6)]
        for feature, *numbers in cells:
            found = np.abs([float(number) for number in numbers])
            assert np.allclose(found, np.abs(values[int(feature.split()[1]) - 1]), atol=1e-3)


def test_pictures_are_files_too(tmp_path, rng):
    rows = rng.normal(size=(60, 4))
    text = written(
        tmp_path, Subspace.from_rows(rows, rank=2), rows=rows, pictures=tmp_path / "deep" / "pictures"
    )
    files = {path.name for path in (tmp_path / "deep" / "pictures").iterdir()}
    assert {name.removesuffix(".png") for name in files if name.endswith(".png")} == {
        "scree", "cumulative", "scores-1-2", "biplot", "outliers", "circle", "loadings-1", "loadings-2",
    }  # fmt: skip
    assert len(files) == 2 * len(pictures(text))
    for path in (tmp_path / "deep" / "pictures").iterdir():
        contents = path.read_bytes()
        assert contents.startswith(b"\x89PNG") or re.search(
            rb"<text[^>]*>[^<]*(component|Hotelling)", contents
        )
        assert b"var(--" not in contents
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["pictures"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"rows": np.ones((5, 2))}, "the model's 4 features, got 2"),
        ({"rows": np.ones((0, 4))}, "at least one row, got none; leave out rows"),
        ({"color": "site"}, "color and passthrough are about rows, but there are none"),
        ({"passthrough": ["site"]}, "color and passthrough are about rows, but there are none"),
        ({"rows": np.ones((5, 4)), "color": [1, 2]}, "one value per row: 5 rows, got 2"),
        ({"rows": np.ones((5, 4)), "color": "site"}, "one value per row where columns have no names"),
        ({"rows": np.ones((5, 4)), "passthrough": ["site"]}, "must name columns of the rows"),
        ({"rows": np.ones((5, 4)), "passthrough": {"site": [1]}}, "'site' must have one value per row: 5"),
        (
            {"rows": np.ones((5, 4)), "passthrough": {str(i): np.ones(5) for i in range(21)}},
            "at most 20 passthrough columns, got 21",
        ),
    ],
)
def test_bad_rows_or_colors_leave_no_file(tmp_path, rng, options, rule):
    with pytest.raises(ValueError, match=rule):
        write_report(tmp_path / "report.html", Subspace.from_rows(rng.normal(size=(9, 4))), **options)
    assert not list(tmp_path.iterdir())


def test_a_color_that_is_no_column_leaves_no_file(tmp_path, rng):
    frame = pytest.importorskip("pandas").DataFrame(rng.normal(size=(9, 4)), columns=list("abcd"))
    with pytest.raises(ValueError, match=r"color must name a column of the rows, or .* got 'site'"):
        write_report(tmp_path / "report.html", StreamingPCA(2).fit(frame), rows=frame, color="site")
    assert not list(tmp_path.iterdir())


def test_bad_models_and_paths_are_rejected(tmp_path):
    with pytest.raises(TypeError, match="model must be a fitted PCA, a Subspace or Moments, got ndarray"):
        write_report(tmp_path / "report.html", np.eye(3))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(tmp_path / "none" / "report.html", Subspace.from_rows(np.eye(3)))


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_named(fork, missing):
    program = f"import sys; sys.modules['{missing}'] = None; import fedpca.report"
    _, _, errors = fork(program).wait()
    assert errors.endswith(f"a report needs {missing}: pip install 'fedpca[report]'.\n")


# --- the command ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(200, 3)) * [3, 2, 1]
    lines = [f"{a},{b},{c},{'north' if a > 0 else 'south'},{i}" for i, (a, b, c) in enumerate(rows.tolist())]
    Path("rows.csv").write_text("\n".join(["a,b,c,site,number", *lines]))
    command("fit", "rows.csv", "--drop", "site,number", "--components", 2, "--out", "model.safetensors")
    return tmp_path


def command(*arguments):
    from command_line import invoke

    return invoke(arguments)


@pytest.mark.slow
def test_the_command_writes_a_page(folder):
    done = command(
        "report", "model.safetensors", "--rows", "rows.csv", "--color", "site", "--out", "r.html",
        "--pictures", "pictures", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"out": "r.html", "pictures": "pictures"}
    text = Path("r.html").read_text()
    assert "<title>model.safetensors</title>" in text
    assert {line[0] for line in table(text, "Scores on components 1 and 2")} == {"north", "south"}
    assert [line[3] for line in table(text, "Explained variance")] == ["shown", "shown", "kept for merging"]
    assert (folder / "pictures" / "scree.png").exists()
    kept = command(
        "report", "model.safetensors", "--rows", "rows.csv", "--keep", "site,number", "-o", "k.html"
    )
    assert kept.exit_code == 0, kept.output
    assert [column["name"] for column in passthrough_of(Path("k.html").read_text())] == ["site", "number"]
    features = command(
        "report", "model.safetensors", "--rows", "rows.csv", "--keep", "b,site", "-o", "b.html"
    )
    assert features.exit_code == 0, features.output
    column, _ = passthrough_of(Path("b.html").read_text())
    written = np.loadtxt("rows.csv", delimiter=",", skiprows=1, usecols=1)
    np.testing.assert_allclose(np.array(texts(column), dtype=float), written, rtol=1e-5)
    assert (np.argsort(np.array(column["codes"]), kind="stable") == np.argsort(written)).all()
    by_feature = command("report", "model.safetensors", "--rows", "rows.csv", "--color", "a", "-o", "f.html")
    assert by_feature.exit_code == 0, by_feature.output
    assert "Open in a browser: f.html" in by_feature.stdout
    assert len(table(Path("f.html").read_text(), "Scores on components 1 and 2")) == 5


@pytest.mark.slow
def test_the_command_shows_a_run(folder):
    federation(folder / "store")
    done = command("report", "model.safetensors", "--run", "store", "--out", "r.html")
    assert done.exit_code == 0, done.output
    assert "contributions" in sections(Path("r.html").read_text())


@pytest.mark.slow
def test_the_command_refuses_before_it_works(folder):
    Path("there.html").write_text("mine")
    Path("full").mkdir()
    Path("full", "mine").write_text("mine")
    ask = ("report", "model.safetensors", "--out")
    for wrong, rule in [
        ((*ask, "there.html"), "there.html already exists"),
        ((*ask, "none/r.html"), "there is no folder none"),
        ((*ask, "r.html", "--pictures", "full"), "full must be a new or empty folder"),
        ((*ask, "r.html", "--rows", "rows.csv", "--color", "nowhere"), "unknown column 'nowhere'"),
        ((*ask, "r.html", "--rows", "rows.csv", "--keep", "a,nowhere"), "unknown column 'nowhere'"),
        ((*ask, "r.html", "--run", "full"), "neither summary.json nor history.jsonl"),
    ]:
        done = command(*wrong)
        assert done.exit_code == 1, wrong
        assert rule in done.stderr
        assert done.stderr.count("\n") == 1
    assert command(*ask, "r.html", "--color", "site").exit_code == 2
    assert command(*ask, "r.html", "--keep", "site").exit_code == 2
    assert not Path("r.html").exists()
    assert Path("there.html").read_text() == "mine"
    assert command(*ask, "there.html", "--pictures", "full", "--force").exit_code == 0
    assert Path("full", "mine").read_text() == "mine"


@pytest.mark.slow
def test_simulate_ends_in_a_report(folder):
    done = command(
        "simulate",
        "rows.csv",
        "--client",
        "site",
        "--drop",
        "number",
        "--components",
        2,
        "--report",
        "storm.html",
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == "storm.html"
    text = Path("storm.html").read_text()
    assert {line[0] for line in table(text, "Scores on components 1 and 2")} == {"north", "south"}
    assert {line[0] for line in table(text, "Rows per client")} == {"north", "south"}
    again = command("simulate", "--report", "storm.html")
    assert again.exit_code == 1
    assert "already exists" in again.stderr
