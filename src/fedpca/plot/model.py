"""Plots of a model: explained variance, and loadings."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpca._util.text import feature_label, sanitize
from fedpca.estimators.base import BasePCA
from fedpca.plot.style import FAINT, INK, SERIES, axes_for, integer_axis, name_axis
from fedpca.summaries.certificate import noise_edge
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_COMPONENTS = 50
MAX_LOADINGS = 15


def scree(model: BasePCA | Summary, ax: "Axes | None" = None) -> "Axes":
    """The share of the variance that each component explains, as bars.

    Components that the model carries for merging only are gray. A dashed line is the noise level of a
    private model: components below it cannot be distinguished from noise.

    >>> import fedpca
    >>> from sklearn.datasets import load_wine
    >>> pca = fedpca.StreamingPCA(4, scale="std").fit(load_wine().data)
    >>> axes = scree(pca)
    >>> axes.get_ylabel(), len(axes.patches)
    ('explained variance (%)', 12)
    """
    subspace, n_shown = shown_components(model)
    with axes_for(ax) as axes:
        draw_scree(axes, subspace, n_shown)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(loc="upper right")
    return axes


def loadings(model: BasePCA | Summary, ax: "Axes | None" = None, *, component: int = 1) -> "Axes":
    """The features with the largest weights in a component, at most 15, as bars.

    >>> import fedpca
    >>> from sklearn.datasets import load_wine
    >>> wine = load_wine(as_frame=True).data
    >>> axes = loadings(fedpca.StreamingPCA(2, scale="std").fit(wine))
    >>> axes.get_yticklabels()[0].get_text()
    'flavanoids'
    """
    subspace, n_shown = shown_components(model)
    index = component_index(component, n_shown)
    with axes_for(ax) as axes:
        draw_loadings(axes, subspace, index)
    return axes


# --- shared with reports ---


def shown_components(model: BasePCA | Summary, n_components: int | None = None) -> tuple[Subspace, int]:
    """All components of a model, and how many to show: none without variance."""
    if isinstance(model, BasePCA):
        subspace, n_shown = model.subspace_, model.n_components_
    elif isinstance(model, Subspace | Moments):
        subspace = model.subspace()
        n_shown = subspace.rank
    else:
        raise TypeError(f"model must be a fitted PCA, a Subspace or Moments, got {type(model).__name__}.")
    n_shown = n_shown if n_components is None else n_components
    return subspace, min(n_shown, int(np.count_nonzero(subspace.singular_values)))


def component_index(component: object, n_shown: int) -> int:
    """The index of a component that is counted from 1."""
    if not isinstance(component, int | np.integer) or not 1 <= component <= n_shown:
        raise ValueError(f"component must lie in 1 to {n_shown}, got {component!r}.")
    return int(component) - 1


def noise_level(model: Subspace) -> float:
    """The share of the variance below which components of a private model may be noise; 0 if unknown."""
    if model.certificate is None or model.certificate.evaluation is not None or not model.total:
        return 0.0
    # Half the edge: the variances of a model are already shrunk by what noise adds to them.
    level = noise_edge(model.certificate) / 2 / model.total
    return level if level < np.inf else 0.0


def draw_scree(axes: "Axes", model: Subspace, n_shown: int) -> None:
    """Bars of the explained variance, and the noise level, with labels for a legend."""
    shares = model.explained_variance_ratio[:MAX_COMPONENTS]
    components = np.arange(1, len(shares) + 1)
    width = min(0.8, 0.25 * len(shares))
    axes.bar(components[:n_shown], 100 * shares[:n_shown], width, color=SERIES[0], label="shown")
    if len(shares) > n_shown:
        axes.bar(components[n_shown:], 100 * shares[n_shown:], width, color=FAINT, label="kept for merging")
    if level := noise_level(model):
        axes.axhline(100 * level, color=SERIES[1], linestyle="--", linewidth=1.5, label="noise level")
    axes.set(xlabel="component", ylabel="explained variance (%)")
    integer_axis(axes, len(shares))


def draw_loadings(axes: "Axes", model: Subspace, i: int) -> NDArray[np.intp]:
    """Bars of the largest loadings of component i; returns their features, the largest first."""
    weights = model.components[i].astype(float)
    order = np.argsort(-np.abs(weights), kind="stable")[:MAX_LOADINGS]
    values = weights[order]
    bars = np.arange(len(order))
    axes.barh(bars, values, color=[SERIES[0] if weight >= 0 else SERIES[1] for weight in values], height=0.7)
    axes.axvline(0, color=INK, linewidth=0.8)
    name_axis(axes, [sanitize(feature_label(int(feature), model.feature_names), 18) for feature in order])
    axes.set(xlabel=f"loading on component {i + 1}")
    return order
