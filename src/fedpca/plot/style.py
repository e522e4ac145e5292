"""The look of every chart: colors, axes, labels and points."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DOT = 4.5  # diameter of a point, in pixels of a report
_ROUNDS = 8
_SIZE = (6.4, 4.2)  # of a figure, in inches

# Colors by the names of a report's CSS variables, which have other values in dark mode.
INK, MUTED, GRID, FAINT = "#1c2128", "#57606a", "#d9dde3", "#868e98"
SERIES = (
    "#2767c8", "#b4500a", "#1b7f45", "#8447c9", "#c2255c", "#0b7285", "#7f5a0d", "#5f6773", "#5c7f00",
    "#b5179e",
)  # fmt: skip
RAMP = ("#c9680a", "#c2434f", "#94388f", "#5a3fae", "#1f2f86")

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


def _matplotlib(module: str = "matplotlib") -> Any:
    return require(module, extra="plot", purpose="a plot")


@contextmanager
def drawing() -> Iterator[None]:
    """Within, figures have the style of a report."""
    with _matplotlib().rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page's fonts have what matplotlib's lack
        yield


@contextmanager
def axes_for(ax: "Axes | None") -> "Iterator[Axes]":
    """The axes to draw on: the caller's, or those of a new figure in the style of a report."""
    if ax is not None:
        if not isinstance(ax, _matplotlib("matplotlib.axes").Axes):
            raise TypeError(f"ax must be axes of matplotlib, or None, got {type(ax).__name__}.")
        with _matplotlib().rc_context({"text.parse_math": False}):
            yield ax
        return
    with drawing():
        pyplot = _matplotlib("matplotlib.pyplot")
        pyplot.rcParams["font.size"] = 11
        _, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
        short_numbers(axes)
        yield axes


def short_numbers(axes: "Axes") -> None:
    """Few and short tick labels on both axes."""
    ticker = _matplotlib("matplotlib.ticker")
    axes.locator_params(axis="x", nbins=5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _, axis=axis: _tick_label(value, axis)))


def integer_axis(axes: "Axes", count: int) -> None:
    """An x axis of the integers 1 to `count`."""
    axes.xaxis.set_major_locator(_matplotlib("matplotlib.ticker").MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlim(0.4, count + 0.6)
    axes.grid(visible=False, axis="x")


def name_axis(axes: "Axes", names: Sequence[str]) -> None:
    """A y axis of names, from the top; names are text, whatever they contain."""
    axes.set_yticks(np.arange(len(names)), names)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(name_limits(len(names)))
    axes.grid(visible=False, axis="y")


def name_limits(count: int) -> tuple[float, float]:
    """Of a y axis of so many names."""
    return count - 0.4, -0.6


def legend(figure: "Figure", columns: int, title: str = "") -> None:
    """A legend below the axes, where it covers nothing."""
    figure.legend(loc="outside lower center", ncols=columns, title=title or None, markerscale=1.6)


def log_axis(axis: "Axis") -> None:
    """Tick labels of a logarithmic axis whose limits are set, enough of them where it is short."""
    ticker, decades = _matplotlib("matplotlib.ticker"), np.ptp(np.log10(axis.get_view_interval()))
    if decades < 0.5:
        axis.set_major_locator(ticker.MaxNLocator(4))
    elif decades < 1.5:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
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
                x[some], y[some], "o", color=color, ms=DOT, mew=0, alpha=0.75,
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
