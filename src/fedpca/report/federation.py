"""The sections about a federation: who contributed, how the model came to be, what went wrong."""

from collections import Counter
from statistics import median
from typing import Any

import numpy as np

from fedpca._util.text import join_names
from fedpca.report.figures import FAINT, MUTED, SERIES, canvas
from fedpca.report.formatting import clean, moment, number, share, some
from fedpca.report.layout import Chart, Section, Table
from fedpca.report.run import Run, thinned

_MOST_BARS = 15


def contributions(run: Run) -> Section:
    """Who contributed what."""
    ordered = sorted(run.contributions.items(), key=lambda item: (-item[1], item[0]))
    together = sum(run.contributions.values())
    if not together:
        words = (*run.story, "Nobody has contributed.")
        return Section("contributions", "Who contributed what", words, ())
    caption = (
        f"{some(len(ordered), 'client')} contributed {some(together, 'row')}; the largest, "
        f"{clean(ordered[0][0], 40)}, has {share(ordered[0][1] / together)} of them."
    )
    figure = _bars(ordered, "rows", sum(rows for _, rows in ordered[_MOST_BARS:]))
    lines = [(clean(name), number(rows), share(rows / together)) for name, rows in ordered]
    numbers = Table("Rows by client", ("client", "rows", "share"), lines)
    chart = Chart("contributions", "Rows by client", caption, figure, numbers)
    return Section("contributions", "Who contributed what", run.story, (chart,))


def over_time(run: Run) -> Section:
    """How the model grew and turned."""
    charts = [_growth(run)] if len(run.growth) > 1 else []
    if len(run.moves) > 1:
        charts.append(_explained(run))
        if any(move.angle is not None for move in run.moves):
            charts.append(_angles(run))
    return Section("over-time", "Over time", (), charts)


def _growth(run: Run) -> Chart:
    points = thinned(run.growth)
    scale, unit = _clock(run)
    figure, axes = canvas()
    axes.step([p.time / scale for p in points], [p.rows for p in points], where="post", color=SERIES[0])
    axes.fill_between(
        [p.time / scale for p in points], [p.rows for p in points], step="post", color=SERIES[0], alpha=0.15,
        linewidth=0,
    )  # fmt: skip
    axes.set(xlabel=unit, ylabel="rows behind the model", ylim=(0, None))
    last = points[-1]
    half = next(p.time for p in points if p.rows >= last.rows / 2) / scale
    caption = (
        f"The model ended with {some(last.rows, 'row')} of {some(last.clients, 'client')}; half of the "
        f"rows were there after {half:.3g} {unit}."
    )
    lines = [(f"{p.time / scale:.3f}", number(p.rows), number(p.clients)) for p in thinned(run.growth, 50)]
    return Chart("growth", "Rows", caption, figure, Table("Rows over time", (unit, "rows", "clients"), lines))


def _explained(run: Run) -> Chart:
    moves = thinned(run.moves)
    scale, unit = _clock(run)
    figure, axes = canvas()
    shares = [100 * move.explained for move in moves]
    axes.plot([move.time / scale for move in moves], shares, marker="o", markersize=4, color=SERIES[2])
    axes.set(xlabel=unit, ylabel="% of the variance")
    caption = (
        f"Its components held {share(moves[0].explained)} of the variance of the rows at first, and "
        f"{share(moves[-1].explained)} at the end."
    )
    lines = [(f"{move.time / scale:.3f}", share(move.explained)) for move in thinned(run.moves, 50)]
    numbers = Table("Variance explained over time", (unit, "of the variance"), lines)
    return Chart("explained", "Variance explained", caption, figure, numbers)


def _angles(run: Run) -> Chart:
    turns = thinned([(move.time, np.degrees(move.angle)) for move in run.moves if move.angle is not None])
    scale, unit = _clock(run)
    figure, axes = canvas()
    axes.plot([time / scale for time, _ in turns], [angle for _, angle in turns], "o-", ms=4, color=SERIES[3])
    axes.set(xlabel=unit, ylabel="degrees", ylim=(0, None))
    caption = (
        f"The largest principal angle between the components and those of {run.turned_from}: "
        f"{_degrees(turns[0][1])} at first, {_degrees(turns[-1][1])} at the end."
    )
    lines = [(f"{time / scale:.3f}", _degrees(angle)) for time, angle in thinned(turns, 50)]
    numbers = Table("Angles over time", (unit, f"from {run.turned_from}"), lines)
    return Chart("angles", "How the components turned", caption, figure, numbers)


def _degrees(angle: float) -> str:
    return f"{angle:.2f}°" if angle >= 0.01 or angle == 0 else "less than 0.01°"


def troubles(run: Run) -> Section:
    """Stragglers, refusals, failures and silence."""
    items: list[Chart | Table] = []
    words = []
    if run.troubles:
        counted = Counter(trouble.what for trouble in run.troubles).most_common()
        words.append(", ".join(f"{number(times)} {clean(what)}" for what, times in counted) + ".")
    if len(run.answered) > 2:
        items.append(_answers(run))
        late = [clean(name, 40) for name in run.stragglers]
        words.append(
            f"Stragglers, who took more than twice as long as half of the clients: {join_names(late, 3)}."
            if late
            else "No stragglers: nobody took more than twice as long as half of the clients."
        )
    if run.troubles:
        lines = [
            (clean(each.who), clean(each.what), moment(each.when), clean(each.reason, 300))
            for each in run.troubles
        ]
        items.append(Table("Who was refused, failed or fell silent", ("who", "what", "when", "why"), lines))
    return Section("troubles", "Stragglers and refusals", words, items)


def _answers(run: Run) -> Chart:
    scale, unit = _clock(run, run.answered.values())
    ordered = sorted(((name, time / scale) for name, time in run.answered.items()), key=lambda item: -item[1])
    usual = median(time for _, time in ordered)
    figure = _bars(ordered, unit, 0.0)
    figure.axes[0].axvline(usual, color=MUTED, linestyle="--", linewidth=1.2)
    caption = (
        f"Half of the clients had their last word within {usual:.3g} {unit} (dashed); the slowest, "
        f"{clean(ordered[0][0], 40)}, after {ordered[0][1]:.3g}."
    )
    if len(ordered) > _MOST_BARS:
        caption += f" These are the {_MOST_BARS} slowest of {number(len(ordered))}."
    lines = [(clean(name), f"{time:.3f}") for name, time in ordered]
    numbers = Table("When they answered", ("client", unit), lines)
    return Chart("answers", "When they answered", caption, figure, numbers)


def _bars(ordered: list[tuple[str, float]], unit: str, rest: float) -> Any:
    """The first of them as bars, and the sum of all others as one more."""
    names = [clean(name, 18) for name, _ in ordered[:_MOST_BARS]]
    values = [value for _, value in ordered[:_MOST_BARS]]
    colors = [SERIES[0]] * len(values)
    if rest:
        names, values = [*names, f"{number(len(ordered) - _MOST_BARS)} others"], [*values, rest]
        colors.append(FAINT)
    figure, axes = canvas(80 + 20 * len(values))
    axes.barh(np.arange(len(values)), values, color=colors, height=0.7)
    axes.set_yticks(np.arange(len(values)), names)
    axes.invert_yaxis()
    axes.set(xlabel=unit)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=False, axis="y")
    return figure


def _clock(run: Run, times: Any = None) -> tuple[float, str]:
    """What to divide times by, and in which unit they then are."""
    if run.steps:
        return 1.0, "steps"
    if times is None:
        times = [*(point.time for point in run.growth), *(move.time for move in run.moves)]
    longest = max(times, default=0.0)
    for seconds, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * seconds:
            return seconds, unit
    return 1.0, "seconds"
