"""Reports in a real browser: layout, contrast, keyboard, phones, dark mode, print, accessibility."""

import re

import numpy as np
import pytest
from helpers import power_law, secured
from sklearn.datasets import load_wine

import fedpca
from fedpca import Policy, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.disclosure import RowCounts
from fedpca.federation.one_process.simulate import Faults, simulate

pytest.importorskip("matplotlib", reason="the report extra")
pytest.importorskip("jinja2", reason="the report extra")

from fedpca.approval.package import release_facts
from fedpca.approval.sign_off import sign_off_page
from fedpca.report import write_report

pytestmark = pytest.mark.engine

PAGES = ["rows", "private", "federation", "small", "units"]

OPEN = "document.querySelectorAll('details').forEach(each => each.open = true)"

# Visible text whose contrast with its background is below 4.5, as WCAG 2 defines it.
POOR_TEXT = """() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = color => {
    const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    const [r, g, b] = channels(color).map(c => linear(c / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if ((channels(color)[3] ?? 1) > .5) return color;
    }
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(".visually-hidden, .skip-link")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < 4.5) poor.push([element.textContent.trim(), contrast]);
  }
  return poor;
}"""

# Every visible chart: its size, what is drawn in it, its text, text outside of it, and texts that overlap.
CHARTS = """() => [...document.querySelectorAll("svg:not(svg svg)")].filter(
  svg => svg.checkVisibility()).map(svg => {
  const box = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll("path, use, circle")].filter(
    it => !it.closest("defs, clipPath")).map(
    it => it.getBoundingClientRect()).filter(at => at.width + at.height > 1);
  const texts = [...svg.querySelectorAll("text")];
  const size = it => parseFloat(getComputedStyle(it).fontSize) * box.width / svg.viewBox.baseVal.width;
  return {
    name: svg.parentElement.parentElement.id, width: box.width, height: box.height, drawn: drawn.length,
    smallest: Math.min(...texts.map(size)), texts: texts.length,
    outside: texts.filter(it => {
      const at = it.getBoundingClientRect();
      const over = [box.left - at.left, at.right - box.right, box.top - at.top, at.bottom - box.bottom];
      return Math.max(...over) > 3;
    }).map(it => it.textContent),
    overlaps: texts.flatMap((it, i) => texts.slice(i + 1).filter(other => {
      const [a, b] = [it.getBoundingClientRect(), other.getBoundingClientRect()];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      return across > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    }).map(other => [it.textContent, other.textContent])),
  };
})"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages, of different models."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    wine = load_wine(as_frame=True)
    rows = (wine.data - wine.data.mean()) / wine.data.std()
    pca = StreamingPCA(4).fit(rows)
    write_report(
        folder / "rows.html", pca, rows=rows, color=[f"cultivar {c}" for c in wine.target], title="Wine"
    )
    privacy = Privacy(2.0, 1e-5, bound=4.0, center=np.zeros(12), evaluate=False)
    releases = [PrivatePCA(4, **privacy.settings).fit(power_law(rng, 400, 12)).release() for _ in range(3)]
    write_report(folder / "private.html", fedpca.merge(releases), n_components=4)
    clients = {
        f"a client with quite a long name, number {c}": np.array_split(rows.to_numpy()[c::20], 3)
        for c in range(20)
    }
    storm = simulate(clients, 3, faults=Faults(0.3, 0.2, 0.3, 0.3, 0.1, seed=2))
    write_report(folder / "federation.html", storm.model, run=storm, rows=rows, color=rows["alcohol"])
    write_report(
        folder / "small.html", Subspace.from_rows(rng.normal(size=(300, 6)), 1), rows=rng.normal(size=(99, 6))
    )
    units = rng.normal(size=(500, 3)) * [60_000, 25_000, 300]
    dates = np.datetime64("2026-01-01T00:00:00") + np.arange(500) * np.timedelta64(7, "h")
    write_report(folder / "units.html", StreamingPCA(2).fit(units), rows=units, color=dates)
    return folder


FILES = {"model.safetensors": b"", "certificate.json": b"", "report.html": b""}


def sign_off(policy, *, names, n_rows=500, privacy=None, secure=False):
    """The page to sign, of a model with these columns."""
    rows = np.random.default_rng(0).normal(size=(n_rows, len(names)))
    if privacy is None:
        summary, counts = Subspace.from_rows(rows, 3), RowCounts.of(rows)
    else:
        summary, counts = PrivatePCA(3, **privacy.settings).partial_fit(rows).release(), None
    summary = secured(summary) if secure else summary
    release = release_facts(summary.with_about(names=names), 3, policy, counts, FILES)
    return sign_off_page("a model with quite a long name " * 10, release, 64 * "0")


@pytest.mark.parametrize("paper", ["A4", "Letter", "Legal"])
def test_the_page_to_sign_fits_on_one_sheet(browser, tmp_path, paper):
    long = [f"a column with quite a long name, number {i}" for i in range(50)]
    privacy = Privacy(1e-3, 1e-12, bound=4.0, center="pairs", evaluate=False)
    pages = {
        "plain": sign_off(Policy(), names=["age", "dose", "weight"]),
        "no policy": sign_off(None, names=long),
        "long": sign_off(Policy.preset("tre"), names=long),
        "private": sign_off(
            Policy.preset("strict"), names=long, n_rows=123_456, privacy=privacy, secure=True
        ),
    }
    page = browser.new_page()
    for name, text in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        printed = page.pdf(format=paper)
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1, name
        assert page.evaluate(POOR_TEXT) == []
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


@pytest.fixture
def visit(browser, folder):
    """Opens a page; at the end there must be no console messages, errors or network requests."""
    contexts, messages, requests = [], [], []

    def visit(name, width=1200, scheme="light", **options):
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert messages == []
    assert [url for url in requests if not url.startswith((folder.as_uri(), "data:"))] == []


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("name", PAGES)
def test_charts_are_drawn_and_fit(visit, name, width):
    page = visit(name, width)
    page.evaluate(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.evaluate(CHARTS)
    assert len(charts) >= 3
    for chart in charts:
        assert chart["width"] > 250, chart
        assert chart["height"] > 100, chart
        assert chart["drawn"] > 5, chart
        assert chart["texts"] > 3, chart
        assert chart["smallest"] > 9, chart
        assert chart["outside"] == [], chart
        assert chart["overlaps"] == [], chart


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_has_contrast(visit, name, scheme):
    page = visit(name, scheme=scheme)
    page.evaluate(OPEN)
    assert page.evaluate(POOR_TEXT) == []


def test_charts_have_other_colors_in_dark_mode(visit):
    of_body = "getComputedStyle(document.body).backgroundColor"
    of_text = "getComputedStyle(document.querySelector('svg text')).fill"
    of_bars = (
        """[...document.querySelectorAll("#scree-chart path")].map(path => getComputedStyle(path).fill)"""
    )
    light, dark = visit("rows"), visit("rows", scheme="dark")
    for expression in (of_body, of_text, of_bars):
        assert light.evaluate(expression) != dark.evaluate(expression)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chart_colors_have_contrast(visit, scheme):
    """At least 3 to 1 against the card, as WCAG requires of graphics."""
    style = "getComputedStyle(document.documentElement)"
    page = visit("rows", scheme=scheme)
    names = [f"--series-{i}" for i in range(1, 11)] + [f"--ramp-{i}" for i in range(1, 6)]
    card, *colors = page.evaluate(
        f"{['--card', '--faint', *names]}.map(name => {style}.getPropertyValue(name))"
    )
    for color in colors:
        high, low = sorted((luminance(card), luminance(color)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, color


def luminance(color):
    channels = np.array([int(color.strip()[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_keys_and_clicks_choose_a_chart(visit):
    page = visit("rows", reduced_motion="reduce", java_script_enabled=False)
    shown = (
        """[...document.querySelectorAll(".choice figure")].filter(f => f.checkVisibility()).map(f => f.id)"""
    )
    assert page.evaluate(shown) == ["scores-1-2-chart", "loadings-1-chart"]
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "scores":
            break
    assert (
        page.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle") == "solid"
    )
    page.keyboard.press("ArrowRight")
    assert page.evaluate(shown) == ["scores-1-3-chart", "loadings-1-chart"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(shown) == ["biplot-chart", "loadings-1-chart"]
    page.get_by_role("radio", name="3", exact=True).check()
    assert page.evaluate(shown) == ["biplot-chart", "loadings-3-chart"]


def test_data_tables_open_by_key(visit):
    page = visit("rows")
    numbers = page.locator("#scree-chart table")
    assert not numbers.is_visible()
    page.locator("#scree-chart summary").focus()
    page.keyboard.press("Enter")
    assert numbers.is_visible()
    assert numbers.locator("tbody tr").count() == 12


def test_the_skip_link_comes_first(visit):
    page = visit("rows")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip-link"
    assert page.locator(".skip-link").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("name", PAGES)
def test_headings_labels_and_landmarks(visit, name):
    page = visit(name)
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title()
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(it => Number(it.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    unnamed = """[...document.querySelectorAll("[role=img], [role=region], nav, input")].filter(
        it => !(it.labels?.[0]?.textContent || it.ariaLabel || "").trim()).length"""
    assert page.evaluate(unnamed) == 0
    assert page.locator("figure figcaption").count() == page.locator("figure").count()
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
        assert page.get_by_role("region", name=link.text_content(), exact=True).count() >= 1
    headless = "[...document.querySelectorAll('table')].filter(it => !it.caption || !it.tHead).length"
    assert page.evaluate(headless) == 0
    assert page.get_by_role("img").count() >= 3


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("table", ["Certificate", "Releases"])
def test_the_certificate_is_not_clipped(visit, table, width):
    page = visit("private", width)
    sizes = "it => [it.scrollHeight - it.clientHeight, it.scrollWidth - it.clientWidth]"
    hidden = page.get_by_role("region", name=table, exact=True).evaluate(sizes)
    assert max(hidden) <= 0


def test_print_shows_every_chart(visit):
    page = visit("rows")
    page.emulate_media(media="print")
    hidden = """[...document.querySelectorAll("figure:not([data-view])")].filter(
        it => !it.checkVisibility()).length"""
    assert page.locator("figure svg").count() > 15
    assert page.evaluate(hidden) == 0
    assert not page.locator("nav").is_visible()
    assert not page.locator("[data-view]").filter(visible=True).count()
    n_sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert n_sheets <= page.locator("figure svg").filter(visible=True).count() / 2  # two side by side


def test_without_scripts_there_are_pictures(visit):
    page = visit("rows", java_script_enabled=False)
    assert page.locator("#scores-1-2-chart").is_visible()
    assert page.locator("#outliers-chart").is_visible()
    assert page.get_by_text("With scripts, this page has plots to explore").is_visible()
    assert not page.locator("[data-view]").filter(visible=True).count()
    assert not visit("rows").locator(".still").filter(visible=True).count()


def test_reduced_motion(visit):
    scrolling = "getComputedStyle(document.documentElement).scrollBehavior"
    assert visit("small").evaluate(scrolling) == "smooth"
    assert visit("small", reduced_motion="reduce").evaluate(scrolling) == "auto"
