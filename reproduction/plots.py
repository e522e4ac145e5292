"""Figures and axes to draw on."""

from typing import Any

from matplotlib.figure import Figure


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = 11, height: float = 4.2, **sharing: Any
) -> tuple[Any, Any]:
    """A matplotlib figure and its axes: one, or an array of them. No display is needed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **sharing)
