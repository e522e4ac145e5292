"""The sections about a federation: contributions, the model over time, incidents."""

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fedpca._util.text import format_number, join_names, pluralize, sanitize
from fedpca.federation import Influence
from fedpca.report.figures import FAINT, MUTED, SERIES, canvas, legend
from fedpca.report.formatting import percent, timestamp
from fedpca.report.layout import Chart, Section, Table
from fedpca.report.run import Run, downsample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_BARS = 15


def contributions(run: Run) -> Section:
    """Rows in the model, by client."""
    ordered = sorted(run.contributions.items(), key=lambda item: (-item[1], item[0]))
    total = sum(run.contributions.values())
    if not total:
        paragraphs = (*run.notes, "No client has contributed.")
        return Section("contributions", "Contributions", paragraphs, ())
    largest, rows = ordered[0]
    caption = (
        f"{pluralize(len(ordered), 'client')} contributed {pluralize(total, 'row')}. The largest share is "
        f"that of {sanitize(largest, 40)}, {percent(rows / total)}."
    )
    figure = _bars(ordered, "rows", sum(rows for _, rows in ordered[_MAX_BARS:]))
    lines = [
        (
            sanitize(name, 60),
            format_number(rows),
            percent(rows / total),
            *([percent(run.energy_shares[name])] if name in run.energy_shares else []),
            *([sanitize(run.left_out.get(name, ""), 300)] if run.left_out else []),
        )
        for name, rows in ordered
    ]
    head = ("client", "rows", "share", *(("share of energy",) if run.energy_shares else ()))
    head = (*head, *(("features left out",) if run.left_out else ()))
    numbers = Table("Rows per client", head, lines)
    chart = Chart("contributions", "Rows per client", caption, figure, numbers)
    return Section("contributions", "Contributions", run.notes, (chart,))


def influence(run: Run) -> Section:
    """How far the model turns without each client, and what that costs the client."""
    known = {name: one for name, one in run.influence.items() if one.angle is not None}
    if not known:
        return Section("influence", "Influence", (), ())
    ordered = sorted(known, key=lambda name: (-_turn(known[name]), name))
    shown, first = ordered[:_MAX_BARS], known[ordered[0]]
    more = ""
    if len(ordered) > _MAX_BARS:
        more = f" The {_MAX_BARS} of {format_number(len(ordered))} clients that turn it most are shown."
    figure = _bars([(name, _turn(known[name])) for name in ordered], "largest principal angle (°)", 0.0)
    for bar, name in zip(figure.axes[0].patches, shown, strict=True):
        if known[name].suspicious:
            bar.set_facecolor(SERIES[1])
    figure.axes[0].set_xlim(0, max(1.05 * _turn(first), 1e-6))
    caption = (
        f"How far the components turn if a client is left out. Most without {sanitize(ordered[0], 40)}, by "
        f"{_degrees(_turn(first))}; it has {percent(first.row_share)} of the rows.{more}"
    )
    if suspicious := [sanitize(name, 40) for name in ordered if known[name].suspicious]:
        caption += f" Far beyond its share of the rows: {join_names(suspicious, 3)} (in another color)."
    lines = [
        (
            sanitize(name, 60),
            _degrees(_turn(one)),
            percent(one.row_share),
            percent(one.energy_share),
            percent(one.direction_share),
        )
        for name, one in ((name, known[name]) for name in ordered)
    ]
    head = ("client", "angle without it", "share of rows", "share of energy", "largest share of a direction")
    title = "The model without each client"
    turned = Chart("influence", title, caption, figure, Table(title, head, lines))
    return Section("influence", "Influence", (), (turned, _captured(run, ordered)))


def _captured(run: Run, ordered: list[str]) -> Chart:
    """The share of each client's variance along the components, with and without it."""
    pairs = [
        (name, run.influence[name].captured, run.influence[name].captured_without or 0.0) for name in ordered
    ]
    shown = pairs[:_MAX_BARS]
    places = np.arange(len(shown))
    figure, axes = canvas(110 + 20 * len(shown))
    found, without = [100 * high for _, high, _ in shown], [100 * low for _, _, low in shown]
    axes.hlines(places, without, found, color=FAINT, linewidth=2)
    axes.plot(without, places, "o", ms=7, mfc="none", mec=SERIES[1], mew=1.6, label="without it")
    axes.plot(found, places, "o", ms=7, color=SERIES[0], mew=0, label="with it")
    axes.set_yticks(places, [sanitize(name, 18) for name, _, _ in shown])
    axes.invert_yaxis()
    axes.set(xlabel="variance of its own rows captured (%)")
    axes.grid(visible=False, axis="y")
    legend(figure, 2)
    name, most, least = max(pairs, key=lambda pair: pair[1] - pair[2])
    caption = (
        "What the components capture of the variance of each client's own rows, by its summary, if it is "
        f"part of the model and if it is not. The difference is largest for {sanitize(name, 40)}: "
        f"{percent(most)} with it, {percent(least)} without."
    )
    lines = [(sanitize(name, 60), percent(high), percent(low)) for name, high, low in pairs]
    title = "Variance captured of each client"
    head = ("client", "with it", "without it")
    return Chart("captured", title, caption, figure, Table(title, head, lines))


def _turn(one: Influence) -> float:
    """In degrees."""
    return float(np.degrees(one.angle or 0.0))


def over_time(run: Run) -> Section:
    """Rows, explained variance and principal angles over time."""
    charts = [_growth(run)] if len(run.growth) > 1 else []
    if len(run.updates) > 1:
        charts.append(_explained(run))
        if any(update.angle is not None for update in run.updates):
            charts.append(_angles(run))
    return Section("over-time", "Model over time", (), charts)


def _growth(run: Run) -> Chart:
    points = downsample(run.growth)
    scale, unit = _time_unit(run)
    times, rows = [point.time / scale for point in points], [point.rows for point in points]
    figure, axes = canvas()
    axes.step(times, rows, where="post", color=SERIES[0])
    axes.fill_between(times, rows, step="post", color=SERIES[0], alpha=0.15, linewidth=0)
    axes.set(xlabel=unit, ylabel="rows in the model", ylim=(0, None))
    last = points[-1]
    half = next(point.time for point in points if point.rows >= last.rows / 2) / scale
    caption = (
        f"The final model contains {pluralize(last.rows, 'row')} from {pluralize(last.clients, 'client')}. "
        f"Half of that number was reached after {half:.3g} {unit}."
    )
    lines = [
        (f"{point.time / scale:.3f}", format_number(point.rows), format_number(point.clients))
        for point in downsample(run.growth, 50)
    ]
    title = "Rows over time"
    return Chart("growth", title, caption, figure, Table(title, (unit, "rows", "clients"), lines))


def _explained(run: Run) -> Chart:
    updates = downsample(run.updates)
    scale, unit = _time_unit(run)
    figure, axes = canvas()
    shares = [100 * update.explained for update in updates]
    axes.plot([update.time / scale for update in updates], shares, "o-", ms=4, color=SERIES[2])
    axes.set(xlabel=unit, ylabel="explained variance (%)")
    caption = (
        f"The components explained {percent(updates[0].explained)} of the variance at first, and "
        f"{percent(updates[-1].explained)} at the end."
    )
    lines = [
        (f"{update.time / scale:.3f}", percent(update.explained)) for update in downsample(run.updates, 50)
    ]
    title = "Explained variance over time"
    return Chart("explained", title, caption, figure, Table(title, (unit, "explained variance"), lines))


def _angles(run: Run) -> Chart:
    angles = [(update.time, np.degrees(update.angle)) for update in run.updates if update.angle is not None]
    points = downsample(angles)
    scale, unit = _time_unit(run)
    figure, axes = canvas()
    axes.plot(
        [time / scale for time, _ in points], [angle for _, angle in points], "o-", ms=4, color=SERIES[3]
    )
    axes.set(xlabel=unit, ylabel="largest principal angle (°)", ylim=(0, None))
    caption = (
        f"The largest principal angle between the components and those of {run.angle_reference} was "
        f"{_degrees(points[0][1])} at first, and {_degrees(points[-1][1])} at the end."
    )
    lines = [(f"{time / scale:.3f}", _degrees(angle)) for time, angle in downsample(points, 50)]
    numbers = Table("Principal angles over time", (unit, f"angle to {run.angle_reference}"), lines)
    return Chart("angles", "Principal angles over time", caption, figure, numbers)


def _degrees(angle: float) -> str:
    return f"{angle:.2f}°" if angle >= 0.01 or angle == 0 else "less than 0.01°"


def incidents(run: Run) -> Section:
    """Reply times and stragglers; clients that were rejected, failed, withdrew or did not reply."""
    items: list[Chart | Table] = []
    paragraphs = []
    if run.incidents:
        counts = Counter(incident.status for incident in run.incidents).most_common()
        counted = ", ".join(f"{format_number(count)} {sanitize(status, 60)}" for status, count in counts)
        paragraphs.append(f"Incidents: {counted}.")
    if len(run.reply_times) > 2:
        items.append(_reply_times(run))
        late = [sanitize(name, 40) for name in run.stragglers]
        paragraphs.append(
            f"Stragglers (more than twice the median reply time): {join_names(late, 3) if late else 'none'}."
        )
    if run.incidents:
        lines = [
            (
                sanitize(incident.client, 60),
                sanitize(incident.status, 60),
                timestamp(incident.time),
                sanitize(incident.reason, 300),
            )
            for incident in run.incidents
        ]
        items.append(Table("Incidents", ("client", "status", "time", "reason"), lines))
    return Section("incidents", "Stragglers and incidents", paragraphs, items)


def _reply_times(run: Run) -> Chart:
    scale, unit = _time_unit(run, run.reply_times.values())
    times = ((name, time / scale) for name, time in run.reply_times.items())
    ordered = sorted(times, key=lambda item: -item[1])
    middle = median(time for _, time in ordered)
    figure = _bars(ordered, unit, 0.0)
    figure.axes[0].axvline(middle, color=MUTED, linestyle="--", linewidth=1.2)
    slowest, time = ordered[0]
    caption = (
        f"The median reply time is {middle:.3g} {unit} (dashed line). The slowest client, "
        f"{sanitize(slowest, 40)}, took {time:.3g} {unit}."
    )
    if len(ordered) > _MAX_BARS:
        caption += f" The {_MAX_BARS} slowest of {format_number(len(ordered))} clients are shown."
    lines = [(sanitize(name, 60), f"{time:.3f}") for name, time in ordered]
    title = "Reply time per client"
    return Chart("reply-times", title, caption, figure, Table(title, ("client", unit), lines))


def _bars(ordered: list[tuple[str, float]], unit: str, rest: float) -> "Figure":
    """The first of them as bars, and the sum of all others as one more."""
    names = [sanitize(name, 18) for name, _ in ordered[:_MAX_BARS]]
    values = [value for _, value in ordered[:_MAX_BARS]]
    colors = [SERIES[0]] * len(values)
    if rest:
        names, values = [*names, f"{format_number(len(ordered) - _MAX_BARS)} others"], [*values, rest]
        colors.append(FAINT)
    figure, axes = canvas(80 + 20 * len(values))
    axes.barh(np.arange(len(values)), values, color=colors, height=0.7)
    axes.set_yticks(np.arange(len(values)), names)
    axes.invert_yaxis()
    axes.set(xlabel=unit)
    axes.grid(visible=False, axis="y")
    return figure


def _time_unit(run: Run, times: Iterable[float] | None = None) -> tuple[float, str]:
    """A unit in which times are readable: what to divide them by, and its name."""
    if run.steps:
        return 1.0, "steps"
    if times is None:
        times = [*(point.time for point in run.growth), *(update.time for update in run.updates)]
    longest = max(times, default=0.0)
    for seconds, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * seconds:
            return seconds, unit
    return 1.0, "seconds"
