"""Figures: matplotlib figures of phone width, and the same as SVG whose colors a page can set."""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from fedpca._typing import ArrayLike
from fedpca._util.extras import require
from fedpca.plot.style import DOT, FAINT, GRID, INK, MUTED, RAMP, SERIES, drawing, short_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_figure = require("matplotlib.figure", extra="report", purpose="a report")

Limits = tuple[float, float]  # of an axis

UNIT: Limits = (-1.1, 1.1)  # of correlations
_ROOM = 0.05  # beyond the outermost points, of their distance
ZOOMED = 16.0  # pixels beside the tick labels of a y axis: they are longer when readers zoom
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


def span(values: ArrayLike) -> Limits:
    """Limits of an axis with room for all values; around them where all are the same.

    >>> span([0.0, 100.0]), span([5.0, 5.0]), span([])
    ((-5.0, 105.0), (4.0, 6.0), (-1.0, 1.0))
    """
    values = np.asarray(values, dtype=float)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    room = _ROOM * (high - low) if high > low else max(1.0, 0.1 * abs(low))
    return low - room, high + room


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
    _mark(root)
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


_CLASSES = (  # of the groups of a picture, by their ids
    (re.compile(r"axes_1$"), "axes"),
    (re.compile(r"patch_2$"), "frame"),
    (re.compile(r"legend_1$"), "redrawn"),
    (re.compile(r"axes_1/(line2d|text)_\d+$"), "redrawn"),
    (re.compile(r"matplotlib.axis_\d$"), "scale"),
    (re.compile(r"matplotlib.axis_\d/[xy]tick_\d+$"), "tick"),
    (re.compile(r"matplotlib.axis_\d/text_\d+$"), "label"),
    (re.compile(r"guide-([a-z]+)$"), r"guide \1"),
)


def _mark(root: Any) -> None:
    """Classes for what the page's script moves, and what it draws anew."""
    for parent in root.iter():
        for element in parent:
            path = f"{parent.get('id')}/{element.get('id')}"
            for pattern, name in _CLASSES:
                if found := pattern.search(path):
                    element.set("class", found.expand(name))


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
