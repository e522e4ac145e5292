"""Plots of a federation: what each client has done to the model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpca._util.text import sanitize
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.influence import Influence
from fedpca.federation.one_process.federated_pca import FederatedPCA
from fedpca.plot.style import SERIES, axes_for, name_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 15


def influence(federation: FederatedPCA | Aggregator, ax: "Axes | None" = None) -> "Axes":
    """How far the components turn if a client is left out, as bars, at most 15.

    Clients that move the model far beyond their share of the rows have another color.

    >>> import fedpca, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> rows = {f"site {i}": rng.normal(size=(50, 4)) * [4, 3, 1, 1] for i in range(5)}
    >>> axes = influence(fedpca.FederatedPCA(2).fit_clients(rows))
    >>> axes.get_xlabel(), len(axes.patches)
    ('largest principal angle (°)', 5)
    """
    if isinstance(federation, Aggregator):
        found = federation.influence()
    elif isinstance(federation, FederatedPCA):
        found = federation.influence_
    else:
        raise TypeError(
            f"federation must be a fitted FederatedPCA or an Aggregator, got {type(federation).__name__}."
        )
    known = {name: one for name, one in found.items() if one.angle is not None}
    if not known:
        raise ValueError("influence needs two clients or more, with components: none is known here.")
    with axes_for(ax) as axes:
        draw_influence(axes, known)
    return axes


# --- shared with reports ---


def turn(one: Influence) -> float:
    """How far the model turns without a client, in degrees."""
    return float(np.degrees(one.angle or 0.0))


def by_turn(influences: Mapping[str, Influence]) -> list[str]:
    """The clients, whom the model needs most first."""
    return sorted(influences, key=lambda name: (-turn(influences[name]), name))


def draw_influence(axes: "Axes", influences: Mapping[str, Influence]) -> None:
    shown = by_turn(influences)[:MAX_BARS]
    turns = [turn(influences[name]) for name in shown]
    colors = [SERIES[1] if influences[name].suspicious else SERIES[0] for name in shown]
    draw_bars(axes, shown, turns, colors, "largest principal angle (°)")
    axes.set_xlim(0, max(1.05 * turns[0], 1e-6))


def draw_bars(
    axes: "Axes", names: Sequence[str], values: Sequence[float], colors: Sequence[str], unit: str
) -> None:
    """A bar per name, from the top."""
    axes.barh(np.arange(len(values)), values, color=colors, height=0.7)
    name_axis(axes, [sanitize(name, 18) for name in names])
    axes.set(xlabel=unit)
