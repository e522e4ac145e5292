"""One page about all experiments: the claims, the measurements, and whether the claims hold."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from reproduction.base import Result, Verdict

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #2a7d3f; --middle: #a66f00; --bad: #b3261e; }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: .5rem; }
h2 small { font-weight: normal; opacity: .7; margin-left: .5em; }
blockquote { margin: .5rem 0; padding-left: 1rem; border-left: 3px solid var(--line); }
img { max-width: 100%; height: auto; background: white; border-radius: 4px; }
.outcome { font-weight: 600; color: white; padding: .1rem .6rem; border-radius: 1rem; white-space: nowrap; }
.held { background: var(--good); } .corrected { background: var(--middle); } .not { background: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { text-align: right; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
"""
_CLASSES = {"held": "held", "held with a correction": "corrected", "did not hold": "not"}


def write_page(folder: Path, results: Sequence[Result], note: str) -> Path:
    """Write index.html with all plots embedded, and the plots as SVG and PNG files beside the tables.

    Args:
        note: one sentence on how the numbers were measured.
    """
    sections = [_section(result, folder / result.experiment.name) for result in results]
    page = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>The paper, reproduced</title>
<style>{_STYLE}</style>
<h1>“Federated Principal Component Analysis”, reproduced</h1>
<p>Figures and tables of the paper (Grammenos, Mendoza-Smith, Crowcroft, Mascolo; NeurIPS 2020), computed
again with correct baselines and sound metrics, beside the paper's metric and the printed values.
{html.escape(note)}</p>
{_left_out(results)}
{_overview(results)}
{"".join(sections)}
</html>
"""
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _left_out(results: Sequence[Result]) -> str:
    """What smaller settings leave out, one item per experiment."""
    items = [
        f"<li>{html.escape(result.experiment.title)}: {html.escape(changes)}"
        for result in results
        if (changes := result.experiment.left_out())
    ]
    if not items:
        return ""
    return f"<p>Smaller settings, by experiment:</p><ul>{''.join(items)}</ul>"


def _overview(results: Sequence[Result]) -> str:
    lines = [["figure or table", "experiment", "claim"]]
    for result in results:
        experiment = result.experiment
        link = f'<a href="#{experiment.name}">{html.escape(experiment.title)}</a>'
        lines.append([experiment.figure, link, _badge(result)])
    return f'<div class="words">{_html_table("Verdicts", lines, escape=False)}</div>'


def _badge(result: Result) -> str:
    if not result.table:
        return "not measured"
    outcome = result.experiment.verdict(result.table).outcome
    return f'<span class="outcome {_CLASSES[outcome]}">{outcome}</span>'


def _section(result: Result, folder: Path) -> str:
    experiment, table = result.experiment, result.table
    measured = _measured(result, folder) if table else ""
    return f"""
<section id="{experiment.name}">
<h2>{html.escape(experiment.title)} <small>{html.escape(experiment.figure)}</small></h2>
<blockquote>{html.escape(experiment.claim)}</blockquote>
{measured}
{"".join(f"<p>Not measured: {html.escape(reason)}</p>" for reason in result.missing)}
</section>
"""


def _measured(result: Result, folder: Path) -> str:
    experiment, table = result.experiment, result.table
    images = []
    for number, (text, figure) in enumerate(experiment.draw(table).items(), start=1):
        links = []
        for kind in ("svg", "png"):
            drawn = _rendered(figure, kind)
            (folder / f"plot-{number}.{kind}").write_bytes(drawn)
            links.append(f'<a href="{experiment.name}/plot-{number}.{kind}">{kind.upper()}</a>')
            if kind == "svg":
                data = base64.b64encode(drawn).decode()
        images.append(
            f'<p><img src="data:image/svg+xml;base64,{data}" alt="{html.escape(text)}"><br>'
            f"<small>{' '.join(links)}</small></p>"
        )
    verdict = experiment.verdict(table)
    points = [*verdict.points, *_disagreement(result, verdict)]
    tables = [_html_table(caption, lines) for caption, lines in experiment.tabulate(table).items()]
    return f"""<p>{_badge(result)}</p>
<ul>{"".join(f"<li>{html.escape(point)}" for point in points)}</ul>
{"".join(images)}
{"".join(tables)}
<p><a href="{experiment.name}/table.csv">All measurements</a> ({len(table)} rows)</p>"""


def _disagreement(result: Result, verdict: Verdict) -> list[str]:
    """Why the verdict is another than with the paper's settings, if it is."""
    full, left_out = result.experiment.full_outcome, result.experiment.left_out()
    if not left_out or full == verdict.outcome:
        return []
    return [
        f"The verdict differs from that of the full run, where the claim {full}. What these settings leave "
        f"out decides it there: {left_out}."
    ]


def _rendered(figure: Any, kind: str) -> bytes:
    file = io.BytesIO()
    # The same figure gives the same file: no date, no random names.
    with rc_context({"svg.hashsalt": "fedpca"}):
        undated = {"metadata": {"Date": None}} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=150, bbox_inches="tight", **undated)
    return file.getvalue()


def _html_table(caption: str, lines: Sequence[Sequence[str]], *, escape: bool = True) -> str:
    def cell(tag: str, text: str) -> str:
        return f"<{tag}>{html.escape(text) if escape else text}"

    head, *body = lines
    rows = ["<tr>" + "".join(cell("th", text) for text in head)]
    rows += ["<tr>" + "".join(cell("td", text) for text in line) for line in body]
    return f'<div class="wide"><table><caption>{html.escape(caption)}</caption>{"".join(rows)}</table></div>'
