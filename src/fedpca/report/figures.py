"""Figures: matplotlib figures of phone width, and the same as SVG whose colors a page can set."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

mpl = require("matplotlib", extra="report", purpose="a report")
_ticker = require("matplotlib.ticker", extra="report", purpose="a report")
_figure = require("matplotlib.figure", extra="report", purpose="a report")

WIDTH = 380  # pixels: fits a phone, and two fit side by side on a larger screen
_DOT = 4.5  # diameter of a point, in pixels
_ROUNDS = 8

# Colors by the names of the page's CSS variables, which have other values in dark mode.
INK, MUTED, GRID, FAINT = "#1c2128", "#57606a", "#d9dde3", "#868e98"
SERIES = (
    "#2767c8", "#b4500a", "#1b7f45", "#8447c9", "#c2255c", "#0b7285", "#7f5a0d", "#5f6773", "#5c7f00",
    "#b5179e",
)  # fmt: skip
RAMP = ("#c9680a", "#c2434f", "#94388f", "#5a3fae", "#1f2f86")
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", FAINT: "faint"}
_VARIABLES |= {color: f"series-{i}" for i, color in enumerate(SERIES, start=1)}
_VARIABLES |= {color: f"ramp-{i}" for i, color in enumerate(RAMP, start=1)}

_STYLE: Any = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "font.size": 12.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedpca",
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Within, figures have the style of a report."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page's fonts have what matplotlib's lack
        yield


def canvas(height: float = 280) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes, `height` pixels tall."""
    figure = _figure.Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
    axes = figure.subplots()
    axes.locator_params(axis="x", nbins=5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_ticker.FuncFormatter(lambda value, _, axis=axis: _tick_label(value, axis)))
    return figure, axes


def integer_axis(axes: "Axes", count: int) -> None:
    """An x axis of the integers 1 to `count`."""
    axes.xaxis.set_major_locator(_ticker.MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlim(0.4, count + 0.6)
    axes.grid(visible=False, axis="x")


def legend(figure: "Figure", columns: int, title: str = "") -> None:
    """A legend below the axes, where it covers nothing."""
    figure.legend(loc="outside lower center", ncols=columns, title=title or None, markerscale=1.6)


def log_axis(axis: "Axis", values: AnyArray) -> None:
    """Tick labels of a logarithmic axis, enough of them where the values span little."""
    if np.ptp(np.log10(values)) < 1.5:
        axis.set_major_locator(_ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: _plain(value))
    axis.set_minor_formatter(lambda value, _: "")


def scatter(axes: "Axes", x: AnyArray, y: AnyArray, groups: Sequence[tuple[str, str, AnyArray]]) -> None:
    """Points by group (label, color, mask), drawn in rounds over the groups, so that none covers another."""
    order = np.random.default_rng(0).permutation(len(x))
    rounds = _ROUNDS if len(groups) > 1 else 1
    for i in range(rounds):
        for label, color, mask in groups:
            some = order[i::rounds][mask[order[i::rounds]]]
            label = f" {label}" if label.startswith("_") else label  # matplotlib hides those
            axes.plot(
                x[some], y[some], "o", color=color, ms=_DOT, mew=0, alpha=0.75,
                label=label if i == 0 else "_",
            )  # fmt: skip


def _tick_label(value: float, axis: "Axis") -> str:
    """A short label: in thousands (k) or millions (M) where the axis has large numbers."""
    largest = max(map(abs, axis.get_view_interval()))
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if 10_000 <= largest < 1e9 and largest >= unit and value:
            return f"{_plain(value / unit)}{suffix}"
    return _plain(value)


def _plain(value: float) -> str:
    """A number with at most six digits, a minus sign, and a short exponent."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.6g}").replace("-", "\N{MINUS SIGN}")


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
    round_ends = f"{style}; fill: none; stroke-width: {_DOT}; stroke-linecap: round"
    ElementTree.SubElement(element, f"{_SVG}path", {"d": path, "style": round_ends})
