"""The section about rows: where they lie along the components, and which are far from what was learned."""

from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from fedpca.report.figures import DOT, RAMP, SERIES, canvas
from fedpca.report.formatting import clean, number, share, some
from fedpca.report.layout import Chart, Choice, Section, Table
from fedpca.report.sample import CONFIDENCE, Sample
from fedpca.summaries.subspace import Subspace


class _Group(NamedTuple):
    """Rows of one color."""

    name: str
    color: str
    chosen: NDArray[np.bool_]


def rows_section(model: Subspace, sample: Sample, by: str) -> Section:
    """Scores, and anomaly scores with their limits.

    Args:
        by: the name of what rows are colored by, or "".
    """
    drawn = len(sample.scores)
    words = (
        f"{some(sample.read, 'row')} read"
        + (f", {number(drawn)} of them drawn at random." if drawn < sample.read else "."),
        "Every point is a row: this page is as confidential as the rows are, whatever the model promises.",
    )
    groups = [] if sample.colors is None else _groups(sample.colors)
    pairs = list(combinations(range(sample.scores.shape[1]), 2)) or [(0, 0)]
    charts = [_scores(model, sample, pair, groups, by) for pair in pairs]
    labels = [f"{first + 1} and {second + 1}" for first, second in pairs]
    scores = charts[0] if len(charts) == 1 else Choice("scores", "Components", labels, charts)
    return Section("rows", "Rows", words, (scores, _anomalies(sample)))


def _groups(values: NDArray[Any]) -> list[_Group]:
    """Rows by their values where these are few; else by ranges of numbers, or the commonest values."""
    names, counts = np.unique(values.astype(str), return_counts=True)
    if len(names) <= len(SERIES):
        return [_Group(str(name), SERIES[place], values == name) for place, name in enumerate(names)]
    numbers = _numbers(values)
    if numbers is not None:
        edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, len(RAMP) + 1)))
        places = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
        return [
            _Group(f"{number(low)} to {number(high)}", RAMP[place], (places == place) & ~np.isnan(numbers))
            for place, (low, high) in enumerate(pairwise(edges))
        ]
    common = sorted(names[np.argsort(-counts, kind="stable")][: len(SERIES) - 1])
    groups = [_Group(str(name), SERIES[place], values == name) for place, name in enumerate(common)]
    others = ~np.logical_or.reduce([group.chosen for group in groups])
    return [*groups, _Group(f"{number(len(names) - len(common))} others", SERIES[-1], others)]


def _numbers(values: NDArray[Any]) -> NDArray[np.float64] | None:
    """Values as numbers, if all are: NaN where there is none."""
    try:
        numbers = values.astype(float)
    except ValueError:
        return None
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers if len(np.unique(numbers[~np.isnan(numbers)])) > 1 else None


def _scores(model: Subspace, sample: Sample, pair: tuple[int, int], groups: list[_Group], by: str) -> Chart:
    first, second = pair
    x = sample.scores[:, first]
    # Along one component alone, chance spreads points that would hide each other.
    y = sample.scores[:, second] if second else np.random.default_rng(0).uniform(-1, 1, len(x))
    longest = max((len(group.name) for group in groups), default=0)
    columns = 5 if longest < 4 else 3 if longest < 10 else 2
    figure, axes = canvas((320 if second else 200) + 22 * -(-len(groups) // columns))
    for name, color, chosen in groups or [_Group("all", SERIES[0], np.ones(len(x), dtype=bool))]:
        label = clean(name, 20) or "(none)"
        label = f" {label}" if label.startswith("_") else label  # or matplotlib leaves it out
        axes.plot(x[chosen], y[chosen], "o", color=color, ms=DOT, mew=0, alpha=0.75, label=label)
    shares = model.explained_variance_ratio
    axes.set(xlabel=f"component {first + 1}, {share(shares[first])} of the variance")
    if second:
        axes.set(ylabel=f"component {second + 1}, {share(shares[second])}")
    else:
        axes.set(yticks=[], ylim=(-2, 2))
    if groups:
        figure.legend(loc="outside lower center", ncols=columns, title=clean(by, 30) or None, markerscale=1.6)
    title = f"Components {first + 1} and {second + 1}" if second else "Component 1"
    caption, numbers = _told(sample, title, [first, second] if second else [first], groups)
    return Chart(
        f"scores-{first + 1}-{second + 1}" if second else "scores-1", title, caption, figure, numbers
    )


def _told(sample: Sample, title: str, places: list[int], groups: list[_Group]) -> tuple[str, Table]:
    """A caption, and the numbers behind it: medians of groups or, without any, quantiles."""
    scores = sample.scores[:, places]
    heads = [f"component {place + 1}" for place in places]
    if not groups:
        quantiles = np.quantile(scores, [0, 0.25, 0.5, 0.75, 1], axis=0)
        names = ("least", "a quarter below", "half below", "three quarters below", "most")
        lines = [(name, *(f"{x:.4g}" for x in line)) for name, line in zip(names, quantiles, strict=True)]
        half = [
            f"from {low:.3g} to {high:.3g} along {head}"
            for (low, high), head in zip(quantiles[[1, 3]].T, heads, strict=True)
        ]
        return f"Half of the rows lie {', and half '.join(half)}.", Table(title, ("scores", *heads), lines)
    middles = {group.name: np.median(scores[group.chosen], axis=0) for group in groups if group.chosen.any()}
    sizes = {group.name: int(group.chosen.sum()) for group in groups}
    lines = [(clean(n), number(sizes[n]), *(f"{x:.4g}" for x in middle)) for n, middle in middles.items()]
    low, high = (pick(middles, key=lambda name: middles[name][0]) for pick in (min, max))
    caption = (
        f"Along component {places[0] + 1}, {clean(low, 30)} lies lowest and {clean(high, 30)} highest, by "
        "their medians."
    )
    return caption, Table(title, ("group", "rows", *(f"median, {head}" for head in heads)), lines)


def _anomalies(sample: Sample) -> Chart:
    figure, axes = canvas(320)
    axes.plot(_visible(sample.t2), _visible(sample.spe), "o", color=SERIES[0], ms=DOT, mew=0, alpha=0.6)
    axes.set(xscale="log", yscale="log", xlabel="T², distance within the components")
    axes.set(ylabel="SPE, distance from them")
    for axis, values in ((axes.xaxis, sample.t2), (axes.yaxis, sample.spe)):
        if np.ptp(np.log10(_visible(values))) < 1.5:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda number, _: f"{number:g}")
        axis.set_minor_formatter(lambda number, _: "")
    told = []
    for line, limit, above, name in (
        (axes.axvline, sample.most_t2, sample.above_t2, "T²"),
        (axes.axhline, sample.most_spe, sample.above_spe, "SPE"),
    ):
        if limit < np.inf:
            line(limit, color=SERIES[1], linestyle="--", linewidth=1.5)
            told.append(f"{number(above)} ({share(above / sample.read)}) are above {limit:.4g} of {name}")
    caption = "No limits are known: the model has too few rows, and leaves nothing out."
    if told:
        caption = (
            f"Dashed: limits that {1 - CONFIDENCE:.0%} of rows like those learned would pass if they were "
            "Gaussian, as real rows seldom are"
            + ("; that of SPE has the mean and variance of these rows' own. " if sample.matched else ". ")
            + f"Of {some(sample.read, 'row')}, {' and '.join(told)}."
        )
    quantiles = np.quantile([sample.t2, sample.spe], [0.5, 0.9, 0.99, 1], axis=1)
    names = ("half of the rows", "90% of the rows", "99% of the rows", "all rows drawn")
    lines = [(name, *(f"{x:.4g}" for x in line)) for name, line in zip(names, quantiles, strict=True)]
    limits = (sample.most_t2, sample.most_spe)
    edges = [f"{limit:.4g}" if limit < np.inf else "not known" for limit in limits]
    numbers = Table("Anomaly scores", ("at most", "T²", "SPE"), [*lines, ("limit", *edges)])
    return Chart("anomalies", "How far rows lie from what was learned", caption, figure, numbers)


def _visible(values: Any) -> Any:
    """Values that a logarithmic axis can show, which is not to be stretched by rounding errors."""
    return np.maximum(values, max(float(values.max()) * 1e-9, 1e-300))
