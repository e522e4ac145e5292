"""Plots of rows: scores on components, and biplots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import AnyArray, Array, ArrayLike, RowsLike
from fedpca._util.text import feature_label, percent
from fedpca.backend import to_host
from fedpca.estimators.base import BasePCA
from fedpca.estimators.scoring import ModelPCA
from fedpca.plot.groups import Group, as_texts, group_rows, labeled
from fedpca.plot.model import component_index, shown_components
from fedpca.plot.names import draw_names
from fedpca.plot.style import INK, SERIES, axes_for, name_axis, scatter
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ARROWS = 8
_LENGTH = 0.85  # of the longest arrow, of the way to the edge


def scores(
    model: BasePCA | Summary,
    rows: RowsLike = None,
    ax: "Axes | None" = None,
    *,
    scores: ArrayLike | None = None,
    color: ArrayLike | None = None,
    components: Sequence[int] = (1, 2),
) -> "Axes":
    """Rows along two components, or along one.

    Args:
        model: whose components they are.
        rows: shape (n, d); or None, with `scores`.
        ax: axes to draw on.
        scores: what `transform` has given of the rows, shape (n, r), instead of them.
        color: one value per row. Up to ten values have a color each; more numbers or dates are divided into
            five ranges; of other values the nine most common have one. Rows without a value are gray.
        components: which, counted from 1; a model of one component shows that one.

    >>> import fedpca
    >>> from sklearn.datasets import load_wine
    >>> wine = load_wine()
    >>> pca = fedpca.StreamingPCA(3, scale="std").fit(wine.data)
    >>> axes = fedpca.plot.scores(pca, wine.data, color=wine.target_names[wine.target], components=(1, 3))
    >>> axes.get_ylabel()
    'component 3 (11.1%)'
    """
    subspace, points, chosen = _points(model, rows, scores, components)
    groups = _colors(color, len(points))
    with axes_for(ax) as axes:
        if len(chosen) == 1:
            draw_strips(axes, subspace, points[:, 0], chosen[0], groups)
        else:
            draw_scores(axes, subspace, points, chosen, groups)
            _legend(axes, groups, outside=ax is None)
    return axes


def biplot(
    model: BasePCA | Summary,
    rows: RowsLike = None,
    ax: "Axes | None" = None,
    *,
    scores: ArrayLike | None = None,
    color: ArrayLike | None = None,
    components: Sequence[int] = (1, 2),
) -> "Axes":
    """Rows along two components, and arrows for the features with the largest loadings there.

    The further a row lies in the direction of an arrow, the larger is its value of that feature, as far as
    these components tell. All arrows are enlarged by one factor; a name that would cover another is left out.
    Arguments as those of `scores`.

    >>> import fedpca
    >>> from sklearn.datasets import load_wine
    >>> wine = load_wine(as_frame=True)
    >>> pca = fedpca.StreamingPCA(2, scale="std").fit(wine.data)
    >>> axes = fedpca.plot.biplot(pca, wine.data, color=wine.target)
    >>> sum(text.get_text() == "" for text in axes.texts)    # arrows
    8
    """
    subspace, points, chosen = _points(model, rows, scores, components)
    if len(chosen) < 2:
        raise ValueError("a biplot needs two components, and the model has one; use fedpca.plot.scores.")
    groups = _colors(color, len(points))
    with axes_for(ax) as axes:
        draw_scores(axes, subspace, points, chosen, groups)
        _legend(axes, groups, outside=ax is None)
        draw_arrows(axes, subspace, points, chosen)
    return axes


def _points(
    model: BasePCA | Summary, rows: RowsLike, ready: ArrayLike | None, components: Sequence[int]
) -> tuple[Subspace, Array, list[int]]:
    """The model, the coordinates of rows along the components chosen, and the indices of these."""
    subspace, n_shown = shown_components(model)
    if (rows is None) == (ready is None):
        raise TypeError("give either rows or scores.")
    if not n_shown:
        raise ValueError("the model has no components: there is nothing to plot.")
    if np.shape(components) not in ((1,), (2,)):
        raise ValueError(f"components must be one or two, such as (1, 2), got {components!r}.")
    if n_shown == 1 and tuple(components) == (1, 2):
        components = (1,)
    chosen = [component_index(component, n_shown) for component in components]
    if ready is None:
        named = subspace if hasattr(rows, "columns") else subspace.with_about(names=None)
        pca = model if isinstance(model, BasePCA) else ModelPCA(named, n_shown)
        ready = to_host(pca.transform(rows))
    points = np.asarray(ready, dtype=float)
    if points.ndim != 2 or points.shape[1] <= max(chosen):
        raise ValueError(
            f"scores must have a column for each component chosen, {max(chosen) + 1}, got shape "
            f"{points.shape}."
        )
    return subspace, points[:, chosen], chosen


def _colors(color: ArrayLike | None, n_rows: int) -> list[Group]:
    if color is None:
        return []
    if np.ndim(color) != 1:
        raise ValueError(
            f"color must have one value per row, got {type(color).__name__}; pass a column of these."
        )
    texts = as_texts(color)
    if len(texts) != n_rows:
        raise ValueError(f"color must have one value per row: {n_rows} rows, got {len(texts)} values.")
    return labeled(group_rows(texts), 36)  # two times


def _legend(axes: "Axes", groups: list[Group], outside: bool) -> None:
    if groups:
        place = axes.legend(markerscale=1.6)
        if outside:
            place.set(loc="center left", bbox_to_anchor=(1.0, 0.5))


# --- shared with reports ---


def axis_label(model: Subspace, i: int) -> str:
    return f"component {i + 1} ({percent(float(model.explained_variance_ratio[i]))})"


def draw_scores(
    axes: "Axes", model: Subspace, points: Array, components: Sequence[int], groups: list[Group]
) -> None:
    """Points along two components, by group."""
    scatter(axes, points[:, 0], points[:, 1], groups or [_everything(points)])
    axes.set(xlabel=axis_label(model, components[0]), ylabel=axis_label(model, components[1]))


def draw_strips(axes: "Axes", model: Subspace, points: Array, component: int, groups: list[Group]) -> None:
    """Points along one component, a strip per group; random heights spread points that coincide."""
    scatter(axes, points, strip_heights(groups, len(points)), groups or [_everything(points)])
    axes.set(xlabel=axis_label(model, component))
    name_axis(axes, [group.name for group in groups] or [""])


def strip_heights(groups: list[Group], count: int) -> Array:
    """Where points are drawn above and below the middle of their strips, 0, 1 and so on."""
    heights = np.random.default_rng(0).uniform(-0.35, 0.35, count)
    for i, group in enumerate(groups):
        heights[group.mask] += i
    return heights


def _everything(points: Array) -> Group:
    return Group("rows", SERIES[0], np.ones(len(points), dtype=bool))


def strongest(weights: AnyArray, count: int) -> NDArray[np.intp]:
    """The features with the largest weights on some components together, shape (k, d), the largest first."""
    lengths = np.square(weights.astype(float)).sum(axis=0)
    return np.argsort(-lengths, kind="stable")[:count]


def arrow_factor(points: Array, tips: Array) -> float:
    """What enlarges arrows, shape (2, n), so that they reach about as far as points, shape (m, 2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.abs(points).max(axis=0)[:, None] / np.abs(tips)
    room = room[np.isfinite(room) & (room > 0)]
    return _LENGTH * float(room.min(initial=np.inf) if room.size else 1.0)


def draw_arrows(axes: "Axes", model: Subspace, points: Array, components: Sequence[int]) -> None:
    """Arrows for the features with the largest loadings on two components, over their points."""
    weights = model.components[list(components)].astype(float)
    features = strongest(weights, MAX_ARROWS)
    tips = weights[:, features]
    tips *= arrow_factor(points, tips)
    for x, y in tips.T:
        axes.annotate(
            "", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2, "shrinkA": 0}
        )
    draw_names(axes, tips.T, [feature_label(int(feature), model.feature_names) for feature in features])
