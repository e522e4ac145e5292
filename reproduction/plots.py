"""Figures and axes to draw on, and values that are only rounding errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedpca._typing import Array
from reproduction.base import ROUNDING

ALPHA_LABEL = "alpha (steps not to scale)"


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = 11, height: float = 4.2, **sharing: Any
) -> tuple[Any, Any]:
    """A matplotlib figure and its axes: one, or an array of them. No display is needed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **sharing)


def draw_above(
    axis: Any, xs: Sequence[float] | Array, values: Sequence[float] | Array, style: str = "o", *,
    rounding: float = ROUNDING, **look: Any,
) -> None:  # fmt: skip
    """Draw values; those that are rounding errors are hollow triangles at the lower edge.

    So the scale is that of the other values, and no arbitrary small number is drawn as if it were measured.

    Args:
        rounding: values up to this are rounding errors.
    """
    xs, values = np.asarray(xs, dtype=np.float64), np.asarray(values, dtype=np.float64)
    exact = ~(values > rounding)
    axis.plot(xs, np.where(exact, np.nan, values), style, **look)
    axis.margins(y=0.1)  # for the triangles
    edge = {name: look[name] for name in ("color", "alpha") if name in look}
    below = sum(bool(np.isin(xs[exact], line.get_xdata()).any()) for line in _triangles(axis))
    axis.plot(
        xs[exact], np.full(exact.sum(), 0.025 + 0.03 * below), "v", transform=axis.get_xaxis_transform(),
        fillstyle="none", markersize=7, zorder=3, **edge,
    )  # fmt: skip


def explain_triangles(axis: Any, *others: Any, label: str = "exact to rounding") -> None:
    """Add the hollow triangles to what the legend of an axis shows, if it or others have any."""
    if any(_triangles(drawn) for drawn in (axis, *others)):
        axis.plot([], [], "v", color="black", fillstyle="none", markersize=7, label=label)


def _triangles(axis: Any) -> list[Any]:
    return [line for line in axis.lines if line.get_marker() == "v" and len(line.get_xdata())]


def log_ticks(axis: Any) -> None:
    """A logarithmic vertical axis with plain numbers at 1, 2 and 5 times the powers of ten."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    few_decades = high / low < 1e3
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def side_by_side(position: int, of: int, width: float = 0.7) -> float:
    """The offset of one of several markers that share a tick."""
    return width * ((position + 0.5) / of - 0.5)
