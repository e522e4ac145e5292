"""The page: sections as one self-contained HTML file, charts as picture files."""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.files import atomic_write
from fedpca._util.version import __version__
from fedpca.report.figures import inline, save
from fedpca.report.layout import Choice, Explorer, Section, Table

_jinja2 = require("jinja2", extra="report", purpose="a report")
_FOLDER = Path(__file__).parent


def write_page(
    path: Path,
    title: str,
    key_figures: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    data: JSON | None = None,
) -> None:
    """Write the page, atomically.

    Args:
        key_figures: the numbers at the top of the page, each with its name.
        data: what explorers show; without any, the page has no script.
    """
    environment = _jinja2.Environment(
        autoescape=True,  # untrusted names are text, never markup
        undefined=_jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests |= {
        "choice": lambda item: isinstance(item, Choice),
        "explorer": lambda item: isinstance(item, Explorer),
        "table": lambda item: isinstance(item, Table),
    }
    template, style = (_read(name) for name in ("page.html.jinja", "style.css"))
    script = "" if data is None else _script()
    text = environment.from_string(template).render(
        title=title,
        key_figures=key_figures,
        sections=sections,
        style=style,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=data,
        json=_json(data),
        colors=_colors(data),
        svg=inline,
        version=__version__,
    )
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _colors(data: JSON | None) -> list[tuple[int, JSON]]:
    """The columns that rows can be colored by, with their numbers."""
    columns = data["tables"].get("rows", {"columns": []})["columns"] if data else []
    return [(i, column) for i, column in enumerate(columns) if "labels" in column or "ends" in column]


def _read(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """The only script that a page may run: its policy has the hash of it."""
    return f'"use strict";\n(() => {{\n{_read("explore.js")}}})();\n'


def _json(data: JSON | None) -> str:
    """JSON that is inert within a page, whatever text it contains."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def write_pictures(folder: Path, sections: Sequence[Section]) -> None:
    """Write every chart as .png and .svg."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fedpca-") as temporary:  # all of them, or none
        for section in sections:
            for chart in section.charts:
                for ending in (".png", ".svg"):
                    save(chart.figure, Path(temporary) / f"{chart.name}{ending}")
        folder.mkdir(exist_ok=True)
        for path in Path(temporary).iterdir():
            os.replace(path, folder / path.name)
