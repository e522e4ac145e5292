"""The section about rows: scores along the components, and the outlier map."""

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from fedpca._util.text import feature_label, format_number, percent, pluralize, sanitize
from fedpca.plot.groups import Group, labeled
from fedpca.plot.rows import MAX_ARROWS, draw_arrows, draw_scores, draw_strips, strongest
from fedpca.plot.style import RAMP, SERIES, legend, log_axis, scatter
from fedpca.report.data import STRIP_LETTERS
from fedpca.report.figures import ZOOMED, canvas, span
from fedpca.report.layout import Chart, Choice, Explorer, Section, Table
from fedpca.report.sample import CONFIDENCE, Sample
from fedpca.summaries.subspace import Subspace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COMPONENTS = 4  # whose pairs have a picture each
_NO_MAP = (
    "There is no outlier map: the components explain all of the variance, so that no row is away from them. "
    "A model of fewer components has one."
)
_HOW_TO = (
    "Each point is a row: point at one for its values, click to mark it in all plots. Drag to move; to zoom, "
    "use the buttons, or the wheel after a click or with Ctrl."
)


def scores_section(model: Subspace, sample: Sample, n_shown: int) -> Section:
    """Score plots, the outlier map with its limits, and a table of the rows."""
    beyond = model.total - float(np.square(model.singular_values[:n_shown]).sum())
    # A map of rounding errors would show nothing; noise hides what is beyond the components.
    has_map = model.certificate is not None or beyond > 1e-9 * model.total
    n_drawn = len(sample.scores)
    paragraphs = (
        f"{pluralize(sample.n_read, 'row')} read"
        + (f"; a random sample of {format_number(n_drawn)} is shown." if n_drawn < sample.n_read else "."),
        "Each point is a row: this page is as confidential as the rows, even if the model is private.",
        *([] if has_map else [_NO_MAP]),
    )
    groups = sample.groups
    n_components = min(sample.scores.shape[1], _MAX_COMPONENTS)
    if n_components == 1:
        scores: Chart | Choice = _strip_plot(model, sample, groups)
    else:
        pairs = list(combinations(range(n_components), 2))
        charts = [_score_plot(model, sample, pair, groups) for pair in pairs]
        labels = [f"{first + 1} and {second + 1}" for first, second in pairs]
        biplot = _biplot(model, sample, groups)
        scores = Choice("scores", "Components", [*labels, "biplot"], [*charts, biplot])
    how_to = (
        f"{_HOW_TO} Where the legend lists colors, a click on one hides its rows."
        if sample.columns
        else _HOW_TO
    )
    items = [Explorer("scores", "Scores", how_to, scores)]
    if has_map:
        chart = _outlier_map(sample)
        items.append(Explorer("outliers", chart.title, chart.caption, chart))
    items.append(Explorer("rows", "Rows", "A row that is chosen here is marked in the plots."))
    return Section("scores", "Scores and outliers", paragraphs, items)


def _score_plot(model: Subspace, sample: Sample, pair: tuple[int, int], groups: list[Group]) -> Chart:
    figure, _ = _plane(model, sample, pair, groups)
    first, second = pair
    title = f"Scores on components {first + 1} and {second + 1}"
    caption, numbers = _caption(sample, title, [first, second], groups)
    return Chart(f"scores-{first + 1}-{second + 1}", title, caption, figure, numbers)


def _biplot(model: Subspace, sample: Sample, groups: list[Group]) -> Chart:
    figure, axes = _plane(model, sample, (0, 1), groups)
    draw_arrows(axes, model, sample.scores[:, :2], (0, 1))
    title = "Biplot of components 1 and 2"
    caption = (
        "The further a row lies in the direction of an arrow, the larger its value of that feature, as far "
        "as these components tell."
    )
    features = strongest(model.components[:2], MAX_ARROWS)
    lines = [
        (
            sanitize(feature_label(int(i), model.feature_names), 60),
            *(f"{weight:+.4g}" for weight in model.components[:2, i]),
        )
        for i in features
    ]
    return Chart(
        "biplot", title, caption, figure, Table(title, ("arrow", "component 1", "component 2"), lines)
    )


def _plane(
    model: Subspace, sample: Sample, pair: tuple[int, int], groups: list[Group]
) -> "tuple[Figure, Axes]":
    """A figure of the scores on two components, by group."""
    longest = max((len(group.name) for group in groups), default=0)
    columns, limit = 5, 4
    if longest > 3:
        columns, limit = 3, 9
    if longest > 9:
        columns, limit = (1, 36) if longest > 16 and len(groups) <= len(RAMP) + 1 else (2, 16)
    figure, axes = canvas(320 + 22 * -(-len(groups) // columns))
    points = sample.scores[:, pair]
    draw_scores(axes, model, points, pair, labeled(groups, limit))
    axes.set(xlim=span(points[:, 0]), ylim=span(points[:, 1]))
    axes.yaxis.labelpad = ZOOMED
    if groups:
        legend(figure, columns, sanitize(sample.color, 30))
    return figure, axes


def _strip_plot(model: Subspace, sample: Sample, groups: list[Group]) -> Chart:
    figure, axes = canvas(130 + 30 * max(len(groups), 1))
    draw_strips(axes, model, sample.scores[:, 0], 0, labeled(groups, STRIP_LETTERS))
    axes.set_xlim(span(sample.scores[:, 0]))
    axes.set(ylabel=sanitize(sample.color, 30))
    title = "Scores on component 1"
    caption, numbers = _caption(sample, title, [0], groups)
    return Chart("scores-1", title, caption, figure, numbers)


def _caption(sample: Sample, title: str, components: list[int], groups: list[Group]) -> tuple[str, Table]:
    """A caption and its data: medians by group or, without groups, quantiles."""
    scores = sample.scores[:, components]
    heads = [f"component {i + 1}" for i in components]
    if not groups:
        quantiles = np.quantile(scores, [0, 0.25, 0.5, 0.75, 1], axis=0)
        names = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
        lines = [(name, *(f"{x:.4g}" for x in line)) for name, line in zip(names, quantiles, strict=True)]
        middle = [
            f"between {low:.3g} and {high:.3g} on {head}"
            for (low, high), head in zip(quantiles[[1, 3]].T, heads, strict=True)
        ]
        caption = f"The middle half of the rows lies {', and '.join(middle)}."
        return caption, Table(title, ("statistic", *heads), lines)
    medians = {group.name: np.median(scores[group.mask], axis=0) for group in groups if group.mask.any()}
    sizes = {group.name: int(group.mask.sum()) for group in groups}
    lines = [
        (sanitize(name, 60), format_number(sizes[name]), *(f"{x:.4g}" for x in middle))
        for name, middle in medians.items()
    ]
    low, high = (pick(medians, key=lambda name: medians[name][0]) for pick in (min, max))
    caption = (
        f"On component {components[0] + 1}, group {sanitize(low, 30)} has the lowest median score and group "
        f"{sanitize(high, 30)} the highest."
        if len(medians) > 1
        else f"All rows are in group {sanitize(low, 30)}."
    )
    return caption, Table(title, ("group", "rows shown", *(f"median on {head}" for head in heads)), lines)


def _outlier_map(sample: Sample) -> Chart:
    across, up = sample.map_axes
    t2 = np.maximum(sample.t2[sample.on_map], across.least)
    spe = np.maximum(sample.spe[sample.on_map], up.least)
    figure, axes = canvas(320)
    scatter(axes, t2, spe, [Group("rows", SERIES[0], np.ones(len(t2), dtype=bool))])
    axes.set(xscale="log", yscale="log", xlabel="Hotelling's T²", ylabel="SPE (squared prediction error)")
    axes.set(xlim=np.power(10, across.limits), ylim=np.power(10, up.limits))
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    axes.yaxis.labelpad = ZOOMED
    above = []
    for draw_line, limit, count, name in (
        (axes.axvline, sample.t2_limit, sample.n_above_t2, "T²"),
        (axes.axhline, sample.spe_limit, sample.n_above_spe, "SPE"),
    ):
        if limit < np.inf:
            gid = "guide-x" if draw_line == axes.axvline else "guide-y"
            draw_line(limit, color=SERIES[1], linestyle="--", linewidth=1.5, gid=gid)
            share = percent(count / sample.n_read)
            above.append(f"{format_number(count)} ({share}) exceed the {name} limit of {limit:.4g}")
    caption = "T² measures the distance from the mean within the components, SPE the distance from them. "
    if above:
        caption += (
            f"Dashed lines: {CONFIDENCE:.0%} limits, assuming Gaussian data (real data rarely is). "
            + ("The SPE limit is estimated from these rows. " if sample.is_spe_limit_fitted else "")
            + f"Of {pluralize(sample.n_read, 'row')}, {' and '.join(above)}."
        )
    else:
        caption += "There are no limits: the model has too few rows, and no variance outside its components."
    quantiles = np.quantile([sample.t2, sample.spe], [0.5, 0.9, 0.99, 1], axis=1)
    names = ("median", "90% quantile", "99% quantile", "maximum of the rows shown")
    lines = [(name, *(f"{x:.4g}" for x in line)) for name, line in zip(names, quantiles, strict=True)]
    limits = [
        f"{limit:.4g}" if limit < np.inf else "unknown" for limit in (sample.t2_limit, sample.spe_limit)
    ]
    numbers = Table("Outlier map", ("statistic", "T²", "SPE"), [*lines, ("limit", *limits)])
    return Chart("outliers", "Outlier map (SPE and Hotelling's T²)", caption, figure, numbers)
