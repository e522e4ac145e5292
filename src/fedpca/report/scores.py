"""The section about rows: scores along the components, and the outlier map."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import AnyArray, Array
from fedpca._util.text import format_number, pluralize, sanitize
from fedpca.report.figures import RAMP, SERIES, canvas, legend, log_axis, scatter
from fedpca.report.formatting import percent
from fedpca.report.layout import Chart, Choice, Section, Table
from fedpca.report.sample import CONFIDENCE, Sample
from fedpca.summaries.subspace import Subspace

_MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>")


class _Group(NamedTuple):
    """Rows of one color."""

    name: str
    color: str
    mask: NDArray[np.bool_]


def scores_section(model: Subspace, sample: Sample, color_name: str) -> Section:
    """Score plots, and the outlier map with its limits.

    Args:
        color_name: what rows are colored by, or "".
    """
    n_drawn = len(sample.scores)
    paragraphs = (
        f"{pluralize(sample.n_read, 'row')} read"
        + (f"; a random sample of {format_number(n_drawn)} is shown." if n_drawn < sample.n_read else "."),
        "Each point is a row: this page is as confidential as the rows, even if the model is private.",
    )
    groups = [] if sample.colors is None else _groups(sample.colors)
    n_components = sample.scores.shape[1]
    if n_components == 1:
        scores: Chart | Choice = _strip_plot(model, sample, groups, color_name)
    else:
        pairs = list(combinations(range(n_components), 2))
        charts = [_score_plot(model, sample, pair, groups, color_name) for pair in pairs]
        labels = [f"{first + 1} and {second + 1}" for first, second in pairs]
        scores = charts[0] if len(charts) == 1 else Choice("scores", "Components", labels, charts)
    return Section("scores", "Scores and outliers", paragraphs, (scores, _outlier_map(sample)))


# --- groups ---


def _groups(values: AnyArray) -> list[_Group]:
    """Rows by value where there are few; else by ranges of numbers or times, or the most common values."""
    names, counts = np.unique(values.astype(str), return_counts=True)
    if len(names) <= len(SERIES):
        numbers = _numbers(names)
        ordered = names if numbers is None else names[np.argsort(numbers)]
        return [_Group(str(name), SERIES[i], values == name) for i, name in enumerate(ordered)]
    if (numbers := _numbers(values)) is not None:
        return _ranges(numbers, lambda edges: [format_number(edge) for edge in edges])
    if (times := _times(values)) is not None:
        return _ranges(times, _dates)
    common = sorted(names[np.argsort(-counts, kind="stable")][: len(SERIES) - 1])
    groups = [_Group(str(name), SERIES[i], values == name) for i, name in enumerate(common)]
    others = ~np.logical_or.reduce([group.mask for group in groups])
    return [*groups, _Group(f"{format_number(len(names) - len(common))} others", SERIES[-1], others)]


def _ranges(numbers: Array, labels: Callable[[Array], list[str]]) -> list[_Group]:
    """About equally many rows per color of the ramp; missing values have none."""
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, len(RAMP) + 1)))
    bins = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    return [
        _Group(f"{low} to {high}", RAMP[i], (bins == i) & ~np.isnan(numbers))
        for i, (low, high) in enumerate(pairwise(labels(edges)))
    ]


def _numbers(values: AnyArray) -> Array | None:
    """Values as numbers, NaN where missing; None unless all are numbers, and at least two differ."""
    numbers = np.full(len(values), np.nan)
    known = ~np.isin(values.astype(str), _MISSING)
    try:
        numbers[known] = values[known].astype(float)
    except ValueError:
        return None
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers if len(np.unique(numbers[~np.isnan(numbers)])) > 1 else None


def _times(values: AnyArray) -> Array | None:
    """Values as seconds since 1970, NaN where missing; None unless all are ISO 8601 dates or times."""
    seconds = np.full(len(values), np.nan)
    for i, text in enumerate(values):
        if text in _MISSING:
            continue
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            return None
        seconds[i] = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds if len(np.unique(seconds[~np.isnan(seconds)])) > 1 else None


def _dates(seconds: Array) -> list[str]:
    """Seconds since 1970 as dates, with the time of day where dates alone would be equal."""
    times = [datetime.fromtimestamp(float(second), UTC) for second in seconds]
    dates = [f"{time:%Y-%m-%d}" for time in times]
    return dates if len(set(dates)) == len(dates) else [f"{time:%Y-%m-%d %H:%M}" for time in times]


def _labels(groups: list[_Group], limit: int) -> list[_Group]:
    return [group._replace(name=sanitize(group.name, limit) or "(none)") for group in groups]


# --- charts ---


def _score_plot(
    model: Subspace, sample: Sample, pair: tuple[int, int], groups: list[_Group], color_name: str
) -> Chart:
    first, second = pair
    longest = max((len(group.name) for group in groups), default=0)
    columns, limit = 5, 4
    if longest > 3:
        columns, limit = 3, 9
    if longest > 9:
        columns, limit = (1, 36) if longest > 16 and len(groups) <= len(RAMP) else (2, 16)
    figure, axes = canvas(320 + 22 * -(-len(groups) // columns))
    everything = _Group("all", SERIES[0], np.ones(len(sample.scores), dtype=bool))
    scatter(axes, sample.scores[:, first], sample.scores[:, second], _labels(groups, limit) or [everything])
    axes.set(xlabel=_axis_label(model, first), ylabel=_axis_label(model, second))
    if groups:
        legend(figure, columns, sanitize(color_name, 30))
    title = f"Scores on components {first + 1} and {second + 1}"
    caption, numbers = _caption(sample, title, [first, second], groups)
    return Chart(f"scores-{first + 1}-{second + 1}", title, caption, figure, numbers)


def _strip_plot(model: Subspace, sample: Sample, groups: list[_Group], color_name: str) -> Chart:
    """The scores on one component, a strip per group; random heights spread points that coincide."""
    strips = _labels(groups, 14) or [_Group("", SERIES[0], np.ones(len(sample.scores), dtype=bool))]
    heights = np.random.default_rng(0).uniform(-0.35, 0.35, len(sample.scores))
    for i, strip in enumerate(strips):
        heights[strip.mask] += i
    figure, axes = canvas(130 + 30 * len(strips))
    scatter(axes, sample.scores[:, 0], heights, strips)
    axes.set(xlabel=_axis_label(model, 0), ylabel=sanitize(color_name, 30), ylim=(len(strips) - 0.4, -0.6))
    axes.set_yticks(range(len(groups)), [strip.name for strip in strips] if groups else [])
    axes.grid(visible=False, axis="y")
    title = "Scores on component 1"
    caption, numbers = _caption(sample, title, [0], groups)
    return Chart("scores-1", title, caption, figure, numbers)


def _axis_label(model: Subspace, i: int) -> str:
    return f"component {i + 1} ({percent(model.explained_variance_ratio[i])})"


def _caption(sample: Sample, title: str, components: list[int], groups: list[_Group]) -> tuple[str, Table]:
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
    t2, spe = _positive(sample.t2), _positive(sample.spe)
    figure, axes = canvas(320)
    scatter(axes, t2, spe, [_Group("rows", SERIES[0], np.ones(len(t2), dtype=bool))])
    axes.set(xscale="log", yscale="log", xlabel="Hotelling's T²", ylabel="SPE (squared prediction error)")
    log_axis(axes.xaxis, t2)
    log_axis(axes.yaxis, spe)
    above = []
    for draw_line, limit, count, name in (
        (axes.axvline, sample.t2_limit, sample.n_above_t2, "T²"),
        (axes.axhline, sample.spe_limit, sample.n_above_spe, "SPE"),
    ):
        if limit < np.inf:
            draw_line(limit, color=SERIES[1], linestyle="--", linewidth=1.5)
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


def _positive(values: Array) -> Array:
    """Values for a logarithmic axis, which rounding errors should not stretch."""
    return np.maximum(values, max(float(values.max()) * 1e-9, 1e-300))
