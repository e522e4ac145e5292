"""Where pictures begin."""

from typing import Any


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 11, height: float = 4.2, **sharing: Any
) -> tuple[Any, Any]:
    """A matplotlib figure and its axes: one, or an array of them."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'fedpca[reproduce]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **sharing)
