"""One page about all experiments: the claims, the measurements, and whether the claims hold."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction.base import Result

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
    """Write index.html with all plots embedded, and the plots as PNG files beside the tables.

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
{_overview(results)}
{"".join(sections)}
</html>
"""
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


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
        png = _png(figure)
        (folder / f"plot-{number}.png").write_bytes(png)
        data = base64.b64encode(png).decode()
        images.append(f'<p><img src="data:image/png;base64,{data}" alt="{html.escape(text)}"></p>')
    tables = [_html_table(caption, lines) for caption, lines in experiment.tabulate(table).items()]
    return f"""<p>{_badge(result)} {html.escape(experiment.verdict(table).why)}</p>
{"".join(images)}
{"".join(tables)}
<p><a href="{experiment.name}/table.csv">All measurements</a> ({len(table)} rows)</p>"""


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
    return file.getvalue()


def _html_table(caption: str, lines: Sequence[Sequence[str]], *, escape: bool = True) -> str:
    def cell(tag: str, text: str) -> str:
        return f"<{tag}>{html.escape(text) if escape else text}"

    head, *body = lines
    rows = ["<tr>" + "".join(cell("th", text) for text in head)]
    rows += ["<tr>" + "".join(cell("td", text) for text in line) for line in body]
    return f'<div class="wide"><table><caption>{html.escape(caption)}</caption>{"".join(rows)}</table></div>'
