"""Pictures: matplotlib figures the size of a telephone, and the same as SVG that a page can color."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("a report needs matplotlib: pip install 'fedpca[report]'.") from error

WIDTH = 380  # pixels: all fits a telephone, and two fit side by side elsewhere
DOT = 4.5

# Colors by the names of the page's CSS variables, which have others in the dark.
INK, MUTED, GRID, FAINT = "#1c2128", "#57606a", "#d9dde3", "#868e98"
SERIES = (
    "#2767c8", "#b4500a", "#1b7f45", "#8447c9", "#c2255c", "#0b7285", "#7f5a0d", "#5f6773", "#5c7f00",
    "#b5179e",
)  # fmt: skip
RAMP = ("#c9680a", "#c2434f", "#94388f", "#5a3fae", "#1f2f86")
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", FAINT: "faint"}
_VARIABLES |= {color: f"series-{place}" for place, color in enumerate(SERIES, start=1)}
_VARIABLES |= {color: f"ramp-{place}" for place, color in enumerate(RAMP, start=1)}

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
    "text.parse_math": False,  # names of others may hold dollars
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Within, figures look like those of a report."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page's fonts have what matplotlib's lack
        yield


def canvas(height: float = 280) -> tuple[Any, Any]:
    """A figure with one pair of axes, `height` pixels tall."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
    return figure, figure.subplots()


def save(figure: Any, path: Path) -> None:
    """The picture as a file: .png or .svg."""
    with drawing():
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=200, metadata=metadata)


def inline(figure: Any, name: str, label: str) -> str:
    """The picture as SVG within a page: text is text, colors are the page's, and all ids start with `name`.

    Args:
        label: what a screen reader says.
    """
    file = io.StringIO()
    with drawing():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for junk in root.findall(f"{_SVG}metadata"):
        root.remove(junk)
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
    return value


def _variable(color: re.Match[str]) -> str:
    variable = _VARIABLES.get(color[0])
    return f"var(--{variable}, {color[0]})" if variable else color[0]


def _join_dots(element: Any) -> None:
    """Thousands of markers as one path, whose round ends are the dots: a tenth of the bytes."""
    dots = element.findall(f"{_SVG}use")
    if len(dots) < 50:
        return
    path = "".join(f"M{float(dot.get('x')):.1f} {float(dot.get('y')):.1f}h0" for dot in dots)
    style = dots[0].get("style").replace("fill", "stroke")
    for child in list(element):
        element.remove(child)
    round_ends = f"{style}; fill: none; stroke-width: {DOT}; stroke-linecap: round"
    ElementTree.SubElement(element, f"{_SVG}path", {"d": path, "style": round_ends})
