"""Reports in a real browser: plots and tables to explore, by mouse, touch and keys, with any names."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA

from fedpca import Moments, StreamingPCA, Subspace

pytest.importorskip("matplotlib", reason="the report extra")
pytest.importorskip("jinja2", reason="the report extra")

from fedpca.report import write_report

pytestmark = pytest.mark.engine

HOSTILE = (
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\"'&`$\\u003c\u2028 שלום \u202e"
    + "x" * 500
)
WINE = load_wine(as_frame=True)
ROWS = (WINE.data - WINE.data.mean()) / WINE.data.std()
SHOWN_BAR = ".legend:not([hidden]) .color-bar span"
AGES = np.round(np.linspace(18, 90, len(ROWS)), 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    passthrough = {
        "cultivar": [f"cultivar {c}" for c in WINE.target],
        "age": np.where(np.arange(len(ROWS)) == 5, np.nan, AGES),
        "day": np.datetime64("2026-01-01") + np.arange(len(ROWS)),
        "id": [f"wine-{i:03}" for i in range(len(ROWS))],
        "pressure": 1000 + np.arange(len(ROWS)) / 1e5,
        "dose": np.where(np.arange(len(ROWS)) % 5, np.arange(len(ROWS)) % 3, np.nan),
        "drift": np.linspace(-2e-9, 2e-9, len(ROWS)),
    }
    write_report(
        folder / "wine.html", StreamingPCA(4).fit(ROWS), rows=ROWS, color="cultivar", passthrough=passthrough
    )
    many = rng.normal(size=(60, 25)) * np.linspace(9, 1, 25)
    write_report(folder / "many.html", Moments.from_rows(many), rows=many, n_components=20)
    write_report(folder / "one.html", Subspace.from_rows(many, 1), rows=many, color=np.arange(60) % 3)
    write_report(folder / "row.html", Subspace.from_rows(many, 2), rows=many[:1])
    write_report(folder / "long.html", Subspace.from_rows(many, 2), rows=np.resize(many, (30_000, 25)))
    write_report(folder / "no-rows.html", Subspace.from_rows(many, 3))
    turns = np.arange(8) * np.pi / 4
    octagon = rng.normal(size=(60, 2)) @ [np.cos(turns) / 2, np.sin(turns) / 2]
    names = [f"feature number {i}" for i in range(8)]
    line = Subspace([[1.0, 0.0]], [2.0], [0.0, 0.0], 9, 5.0)
    write_report(folder / "line.html", line, rows=np.arange(8.0)[:, None] * [1.0, 0.0])
    write_report(folder / "octagon.html", Subspace.from_rows(octagon, 2).with_about(names=names))
    names = [f"{HOSTILE}{i}" for i in range(23)] + ["__proto__", "constructor"]
    write_report(
        folder / "hostile.html",
        Subspace.from_rows(many, 3).with_about(names=names),
        rows=many,
        color=np.array([HOSTILE, "toString", "__proto__"])[np.arange(60) % 3],
        passthrough={HOSTILE: [f"{HOSTILE}{i}" for i in range(60)], "__proto__": np.arange(60.0)},
        title=HOSTILE,
    )
    return folder


@pytest.fixture
def visit(browser, folder):
    """Opens a page; at the end there must be no messages, errors, dialogs, requests or violated policies."""
    contexts, wrong = [], []

    def visit(name, **options):
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.add_init_script(
            "addEventListener('securitypolicyviolation', event => console.error(event.violatedDirective))"
        )
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: wrong.append(request.url) if "file:" not in request.url else None)
        page.goto((folder / f"{name}.html").as_uri())
        settle(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [text for text in wrong if text != "data:,"] == []


def settle(page):
    """Wait until all is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, condition):
    """Wait for a condition; playwright's own way needs `eval`, which the page's policy forbids."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise AssertionError(condition)


def view(page, name):
    found = page.locator(f"[data-view={name}]")
    found.scroll_into_view_if_needed()
    return found


def texts(card, selector):
    settle(card.page)
    return card.locator(selector).all_text_contents()


def ticks(card):
    return texts(card, ".tick text")


def choose(card, label, option):
    card.get_by_role("combobox", name=label).select_option(label=option)
    settle(card.page)


def hover(card, k):
    """Point at the k-th point drawn; the facts of its tooltip, and where it is."""
    box = card.locator(".dot").nth(k).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    card.page.mouse.move(x, y)
    return tooltip(card), (x, y)


def tooltip(card):
    assert card.locator(".tooltip").is_visible()
    names, values = (card.locator(f".tooltip {tag}").all_text_contents() for tag in ("span", "bdi"))
    return dict(zip(names, values, strict=True))


def number(text):
    return float(text.replace("−", "-").replace(",", ""))


def scores():
    return StreamingPCA(4).fit(ROWS).transform(ROWS)


# --- points ---


def test_pointing_at_a_point_shows_its_row(visit):
    card = view(visit("wine"), "scores")
    expected, found = scores(), []
    for k in (0, 17, 60, 99, 150):
        facts, place = hover(card, k)
        row = int(facts["row"]) - 1
        assert facts["id"] == f"wine-{row:03}"
        assert facts["cultivar"] == f"cultivar {WINE.target[row]}"
        assert number(facts["component 1"]) == pytest.approx(expected[row, 0], rel=1e-3)
        assert number(facts["component 2"]) == pytest.approx(expected[row, 1], rel=1e-3)
        found.append((*place, *expected[row, :2]))
    x, y, first, second = np.array(found).T
    assert np.corrcoef(x, first)[0, 1] > 0.9999  # where it is drawn is where it belongs
    assert np.corrcoef(y, second)[0, 1] < -0.9999
    card.page.mouse.move(2, 2)
    assert not card.locator(".tooltip").is_visible()


def test_readers_choose_two_components(visit):
    page = visit("many")
    card = view(page, "scores")
    assert card.get_by_role("combobox", name="Vertical").locator("option").count() == 20
    choose(card, "Vertical", next(text for text in texts(card, "option") if text.startswith("17 ")))
    choose(card, "Horizontal", next(text for text in texts(card, "option") if text.startswith("3 ")))
    across, up = texts(card, ".label text")
    assert across.startswith("component 3 (")
    assert up.startswith("component 17 (")
    assert {"component 3", "component 17"} <= hover(card, 5)[0].keys()


def test_zoom_and_pan(visit):
    page = visit("wine")
    card = view(page, "scores")
    plot, home = card.locator(".plot"), ticks(card)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 150)
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, 40)
    until(page, f"scrollY != {scrolled}")  # a plot that nobody clicked lets the page scroll
    assert ticks(card) == home

    def changed(act):
        before = ticks(card)
        act()
        return ticks(card) != before

    view(page, "scores")
    box = plot.bounding_box()
    page.mouse.click(box["x"] + 200, box["y"] + 150)
    assert changed(lambda: [page.mouse.wheel(0, -100) for _ in range(4)])
    assert changed(lambda: card.get_by_role("button", name="Reset").click())
    assert ticks(card) == home
    assert changed(lambda: [card.get_by_role("button", name="Zoom in").click() for _ in range(3)])
    assert changed(lambda: [card.get_by_role("button", name="Zoom out").click() for _ in range(3)])

    def drag():
        page.mouse.move(box["x"] + 200, box["y"] + 150)
        page.mouse.down()
        page.mouse.move(box["x"] + 290, box["y"] + 200, steps=4)
        page.mouse.up()

    first = card.locator(".dot").first
    before = first.bounding_box()
    drag()
    settle(page)
    after = first.bounding_box()
    assert after["x"] - before["x"] == pytest.approx(90, abs=2)
    assert after["y"] - before["y"] == pytest.approx(50, abs=2)


def test_keys_do_all_of_it(visit):
    page = visit("wine")
    card = view(page, "scores")
    home = ticks(card)
    plot = card.locator(".plot")
    plot.focus()
    assert plot.get_attribute("aria-label").count("Arrow keys")
    for keys in (["+"] * 3, ["ArrowLeft"] * 4, ["ArrowUp"] * 4, ["-"] * 2):
        before = ticks(card)
        for key in keys:
            page.keyboard.press(key)
        assert ticks(card) != before
    page.keyboard.press("0")
    assert ticks(card) == home
    order, spoken = np.argsort(scores()[:, 0]), card.locator("[aria-live]")
    for key, place in [("n", 0), ("n", 1), ("p", 0), ("p", -1)]:
        page.keyboard.press(key)
        row = order[place] + 1
        assert tooltip(card)["row"] == str(row)
        assert f"row: {row}," in spoken.text_content()
    page.keyboard.press("Escape")
    assert not card.locator(".tooltip").is_visible()


def test_a_tap_shows_a_row(visit):
    page = visit("wine", has_touch=True)
    card = view(page, "outliers")
    box = card.locator(".dot").nth(3).bounding_box()
    page.touchscreen.tap(box["x"] + 3, box["y"] + 3)
    spe, t2 = StreamingPCA(4).fit(ROWS).anomaly_scores(ROWS)
    facts = tooltip(card)
    assert number(facts["SPE"]) == pytest.approx(spe[int(facts["row"]) - 1], rel=1e-3)
    assert number(facts["T²"]) == pytest.approx(t2[int(facts["row"]) - 1], rel=1e-3)


# --- colors ---


def test_categories_are_series_that_can_be_hidden(visit):
    card = view(visit("wine"), "scores")
    shown = ".dot"
    legend = card.get_by_role("group", name="Colors by cultivar")
    assert legend.get_by_role("button").all_text_contents() == [f"cultivar {c}" for c in range(3)]
    fills = set(card.locator(shown).evaluate_all("all => all.map(it => getComputedStyle(it).fill)"))
    assert len(fills) == 3
    legend.get_by_role("button", name="cultivar 1").press("Enter")
    assert card.page.evaluate("document.activeElement.textContent") == "cultivar 1"
    for name in ("scores", "outliers"):
        visible = view(card.page, name).locator(shown).filter(visible=True).count()
        assert visible == np.count_nonzero(WINE.target != 1)
    assert legend.get_by_role("button", name="cultivar 1").get_attribute("aria-pressed") == "false"


def test_rows_without_a_value_are_a_gray_group_that_can_be_hidden(visit):
    card = view(visit("wine"), "scores")
    choose(card, "Color", "dose")
    shown = card.locator(".dot")
    legend = card.get_by_role("group", name="Colors by dose")
    assert legend.get_by_role("button").all_text_contents() == ["0", "1", "2", "missing"]
    n_missing = shown.evaluate_all("all => all.map(it => it.style.fill)").count("var(--faint)")
    assert n_missing == len(ROWS[::5])
    legend.get_by_role("button", name="missing").click()
    assert shown.filter(visible=True).count() == len(ROWS) - n_missing


@pytest.mark.parametrize(
    ("column", "ends", "n_missing"),
    [("age", [18.0, 90.0], 1), ("day", ["2026-01-", "2026-06-"], 0)],
)
def test_numbers_and_dates_are_ramps_with_a_color_bar(visit, column, ends, n_missing):
    card = view(visit("wine"), "scores")
    choose(card, "Color", column)
    low, _, high = texts(card, SHOWN_BAR)
    if column == "age":
        assert number(low.strip("≤ ")) == pytest.approx(ends[0], abs=1)
        assert number(high.strip("≥ ")) == pytest.approx(ends[1], abs=1)
    else:
        assert ends[0] in low
        assert ends[1] in high
    fills = card.locator(".dot").evaluate_all("all => all.map(it => it.style.fill)")
    assert fills.count("var(--faint)") == n_missing
    assert texts(card, ".legend:not([hidden]) .missing") == ["missing"] * n_missing
    assert len(set(fills)) > 50
    choose(card, "Color", "none")
    assert texts(card, ".legend:not([hidden])") == []


def test_the_ends_of_a_color_bar_differ_and_have_one_minus_sign(visit):
    card = view(visit("wine"), "scores")
    choose(card, "Color", "pressure")
    assert len({text.strip("≤≥ ") for text in texts(card, SHOWN_BAR)}) == 3
    choose(card, "Color", "drift")
    assert "-" not in "".join(texts(card, SHOWN_BAR))


def test_the_number_of_a_row_is_exact(visit):
    page = visit("long")
    card = view(page, "scores")
    data = page.evaluate("JSON.parse(document.getElementById('report-data').textContent)")
    numbers = data["tables"]["rows"]["columns"][0]["values"]
    card.locator(".plot").focus()
    shown = []
    for _ in range(5):
        page.keyboard.press("p")
        shown.append(int(card.locator(".tooltip bdi").first.text_content()))
    assert set(shown) <= set(numbers)
    assert max(shown) > 9999


def test_colors_follow_dark_mode(visit):
    fills = [
        view(visit("wine", color_scheme=scheme), "scores")
        .locator(".dot")
        .first.evaluate("it => getComputedStyle(it).fill")
        for scheme in ("light", "dark")
    ]
    assert fills[0] != fills[1]


# --- features ---


def test_the_biplot_has_arrows_of_the_strongest_features(visit):
    card = view(visit("wine"), "scores")
    assert card.locator(".arrow").count() == 0
    card.get_by_role("checkbox", name="Features as arrows").check()
    settle(card.page)
    assert card.locator(".arrow").count() == 8
    lengths = np.hypot(*PCA(2).fit(ROWS).components_)
    strongest = {ROWS.columns[i] for i in np.argsort(-lengths)[:8]}
    shown = {name for name in texts(card, ".name") if "…" not in name}
    assert shown
    assert shown <= strongest


def test_names_that_stand_apart_are_all_there(visit):
    card = view(visit("octagon"), "loadings")
    for _ in range(2):
        assert sorted(texts(card, ".name")) == [f"feature number {i}" for i in range(8)]
        card.get_by_role("checkbox", name="Correlation circle").check()


def test_the_correlation_circle_has_the_correlations(visit):
    card = view(visit("wine"), "loadings")
    expected = np.corrcoef(ROWS.T, scores().T)[:13, 13:]
    weights = PCA(2).fit(ROWS).components_
    card.get_by_role("checkbox", name="Correlation circle").check()
    settle(card.page)
    assert card.locator(".circle").is_visible()
    assert texts(card, ".label text")[0] == "correlation with component 1"
    for k in (0, 5, 12):
        facts, _ = hover(card, k)
        feature = list(ROWS.columns).index(facts["feature"])
        for component in (1, 2):
            found = number(facts[f"correlation with {component}"])
            assert found == pytest.approx(expected[feature, component - 1], abs=2e-3)
            loading = number(facts[f"loading on {component}"])
            assert abs(loading) == pytest.approx(abs(weights[component - 1, feature]), abs=1e-4)


# --- tables ---


def lines(card):
    return [
        [cell.text_content() for cell in line.locator("th, td").all()]
        for line in card.locator("tbody tr").all()
    ]


def test_features_are_searched_and_sorted(visit):
    card = view(visit("wine"), "features")
    search = card.get_by_role("searchbox", name="Search features")
    search.fill("  MAGN ")
    assert [line[0] for line in lines(card)] == ["magnesium"]
    assert card.get_by_role("status").text_content() == "1 of 13 features"
    search.fill("")
    card.get_by_role("button", name="loading on 2").press("Enter")
    head = card.get_by_role("columnheader", name="loading on 2")
    assert head.get_attribute("aria-sort") == "descending"
    weights = np.abs(PCA(2).fit(ROWS).components_[1])
    order = [ROWS.columns[i] for i in np.argsort(-weights)]
    assert [line[0] for line in lines(card)] == order
    card.get_by_role("button", name="loading on 2").click()
    assert [line[0] for line in lines(card)] == order[::-1]
    card.get_by_role("button", name="feature", exact=True).click()
    assert [line[0] for line in lines(card)] == sorted(ROWS.columns)
    assert {line[-1] for line in lines(card)} == {"1"}  # variances: they are standardized


def test_rows_are_searched_sorted_and_marked(visit):
    page = visit("wine")
    card = view(page, "rows")
    spe, _ = StreamingPCA(4).fit(ROWS).anomaly_scores(ROWS)
    card.get_by_role("button", name="SPE", exact=True).click()
    assert [int(line[0]) - 1 for line in lines(card)] == np.argsort(-spe)[:25].tolist()
    assert "SPE" in lines(card)[0][-1]
    card.get_by_role("button", name="Show more").click()
    assert len(lines(card)) == 100
    card.get_by_role("searchbox").fill("wine-042")
    ((row, *_),) = lines(card)
    assert row == "43"
    card.locator("tbody button").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "43"
    assert card.locator("tbody button").get_attribute("aria-pressed") == "true"
    for name in ("scores", "outliers"):
        ring = view(page, name).locator(".ring")
        assert ring.get_attribute("visibility") == "visible"
    facts, (x, y) = hover(view(page, "scores"), 30)
    page.mouse.click(x, y)
    card.get_by_role("searchbox").fill("")
    assert card.locator("tr.picked th").text_content() == facts["row"]


# --- any page ---


def test_outliers_without_any_error_have_an_axis(visit):
    card = view(visit("line"), "outliers")
    numbers = [float(text.replace("−", "-")) for text in ticks(card) if not text.startswith("0.")]
    assert len(numbers) > 2
    assert min(numbers) >= 1e-12


@pytest.mark.parametrize("name", ["one", "row", "many", "no-rows", "hostile"])
@pytest.mark.parametrize("width", [1200, 360])
def test_every_page_can_be_explored(visit, name, width):
    page = visit(name)
    page.set_viewport_size({"width": width, "height": 900})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.locator("[data-view]").filter(visible=True).count()
    assert shown == {"one": 4, "no-rows": 2}.get(name, 5)
    for box in page.get_by_role("checkbox").all():
        box.check()
    for select in page.get_by_role("combobox").all():
        for i in range(select.locator("option").count()):
            select.select_option(index=i)
            settle(page)
    for button in page.locator("[data-view] button").filter(visible=True).all()[:40]:
        button.click()
    drawn = (
        "all => all.flatMap(it => [it.getAttribute('cx'), it.getAttribute('cy')]).filter(at => !isFinite(at))"
    )
    assert page.locator(".dot").evaluate_all(drawn) == []


def test_names_are_text_whatever_they_contain(visit):
    page = visit("hostile")
    facts, _ = hover(view(page, "scores"), 7)
    assert any("</script><script>alert(1)" in value for value in facts.values())
    assert any("<script>" in line[0] for line in lines(view(page, "features")))
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0


def test_the_policy_lets_nothing_else_run(browser, folder):
    page = browser.new_page()
    violated = []
    page.on("console", lambda message: violated.append(message.text))
    page.goto((folder / "wine.html").as_uri())
    attack = """() => {
      const results = [];
      for (const act of [
        () => document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hacked = 1'>"),
        () => document.createElement("script").text = "window.hacked = 1",
        () => document.body.setAttribute("onclick", "window.hacked = 1"),
      ]) { try { act(); results.push("ran"); } catch (error) { results.push(error.name); } }
      // Later, because what a debugger evaluates may evaluate more.
      setTimeout(() => { try { eval("window.hacked = 1"); } catch (error) { window.stopped = error.name; } });
      return results;
    }"""
    assert page.evaluate(attack) == ["TypeError"] * 3
    until(page, "window.stopped == 'EvalError'")
    assert page.evaluate("window.hacked ?? null") is None
    assert page.evaluate("fetch('https://localhost:9/').then(() => 1, () => 0)") == 0
    assert any(re.search("Content Security Policy", text) for text in violated)
    page.close()
