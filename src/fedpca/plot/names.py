"""Names beside points, where they can be read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpca._typing import Array
from fedpca._util.extras import require
from fedpca._util.text import sanitize
from fedpca.plot.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LETTERS = 18
_LETTER, _LINE = 0.62, 1.3  # width and height of text, in units of the size of its font
_GAP = 3.0  # between a point and its name, in points
_RISE = 0.6  # of a line, where an arrow would run through the name


def draw_names(axes: "Axes", points: Array, names: Sequence[str]) -> None:
    """Write names beside points, shape (n, 2): away from 0 or, where there is no room, above or below.

    A name that would cover one before it, or leave the axes, is left out. Limits of the axes, and legends
    beside them, must be final.
    """
    size = require("matplotlib.font_manager", extra="plot", purpose="a plot").FontProperties(size="small")
    letter, line = _LETTER * size.get_size_in_points(), _LINE * size.get_size_in_points()
    halo = require("matplotlib.patheffects", extra="plot", purpose="a plot")
    around = [halo.withStroke(linewidth=2.5, foreground=axes.get_facecolor())]
    figure = axes.get_figure(root=True)
    assert figure is not None
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # only then axes have the size that they are drawn in
    width, height = np.array(axes.get_window_extent().size) * 72 / figure.dpi
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float, float]] = []  # where a name starts and ends, and its height
    for (x, y), name in zip(points.tolist(), names, strict=True):
        text = sanitize(name, _MOST_LETTERS)
        at_x = (x - left) / (right - left) * width
        for to_right, rise in ((x >= 0, 0.0), (x < 0, _RISE * line if y >= 0 else -_RISE * line)):
            at_y = (y - bottom) / (top - bottom) * height + rise
            start = at_x + _GAP if to_right else at_x - _GAP - letter * len(text)
            end = start + letter * len(text)
            is_inside = start >= 0 and end <= width and line / 2 <= at_y <= height - line / 2
            if is_inside and all(start > e or end < s or abs(at_y - h) > line for s, e, h in taken):
                taken.append((start, end, at_y))
                axes.annotate(
                    text, (x, y), (_GAP if to_right else -_GAP, rise), textcoords="offset points",
                    ha="left" if to_right else "right", va="center", fontproperties=size, color=INK,
                    path_effects=around,
                )  # fmt: skip
                break
