"""Figures: matplotlib figures of phone width, and the same as SVG whose colors a page can set."""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fedpca._util.extras import require
from fedpca.plot.style import DOT, FAINT, GRID, INK, MUTED, RAMP, SERIES, drawing, short_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_figure = require("matplotlib.figure", extra="report", purpose="a report")

WIDTH = 380  # pixels: fits a phone, and two fit side by side on a larger screen

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", FAINT: "faint"}
_VARIABLES |= {color: f"series-{i}" for i, color in enumerate(SERIES, start=1)}
_VARIABLES |= {color: f"ramp-{i}" for i, color in enumerate(RAMP, start=1)}


def canvas(height: float = 280) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes, `height` pixels tall."""
    figure = _figure.Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
    axes = figure.subplots()
    short_numbers(axes)
    return figure, axes


def save(figure: "Figure", path: Path) -> None:
    """Write the figure as .png or .svg."""
    with drawing():
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=200, metadata=metadata)


def inline(figure: "Figure", name: str, label: str) -> str:
    """The figure as SVG within a page: text stays text, colors are CSS variables, ids start with `name`.

    Args:
        label: for screen readers.
    """
    file = io.StringIO()
    with drawing():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for metadata in root.findall(f"{_SVG}metadata"):
        root.remove(metadata)
    for element in root.iter():
        _join_dots(element)
        for key, value in element.attrib.items():
            element.attrib[key] = _attribute(key, value, name)
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
ElementTree.register_namespace("", _SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == _LINK:
        return f"#{name}-{value[1:]}"
    if key == "d":
        return re.sub(r"-?\d+\.\d{2,}", lambda digits: f"{float(digits[0]):.1f}", value)
    value = value.replace("url(#", f"url(#{name}-")
    if key == "style":
        value = re.sub(r"#[0-9a-f]{6}", _variable, value)
        value = re.sub(r"font: ([0-9.]+)px [^;]*", r"font-size: \1px", value)
        value = re.sub(r"font-family: [^;]*;? ?", "", value)  # the page's font
    return value


def _variable(color: re.Match[str]) -> str:
    variable = _VARIABLES.get(color[0])
    return f"var(--{variable}, {color[0]})" if variable else color[0]


def _join_dots(element: Any) -> None:
    """Many markers become one path with round line ends: a tenth of the bytes."""
    dots = element.findall(f"{_SVG}use")
    if len(dots) < 8:
        return
    path = "".join(f"M{float(dot.get('x')):.1f} {float(dot.get('y')):.1f}h0" for dot in dots)
    style = dots[0].get("style").replace("fill", "stroke")
    for child in list(element):
        element.remove(child)
    round_ends = f"{style}; fill: none; stroke-width: {DOT}; stroke-linecap: round"
    ElementTree.SubElement(element, f"{_SVG}path", {"d": path, "style": round_ends})
