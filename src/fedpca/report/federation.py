"""The sections about a federation: contributions, the model over time, incidents."""

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fedpca._util.text import format_number, join_names, percent, pluralize, sanitize
from fedpca.plot.clients import MAX_BARS, by_turn, draw_bars, draw_influence, turn
from fedpca.plot.style import FAINT, MUTED, SERIES, legend, name_axis
from fedpca.report.figures import canvas
from fedpca.report.formatting import timestamp
from fedpca.report.layout import Chart, Section, Table
from fedpca.report.run import OpenedSums, Run, downsample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def contributions(run: Run) -> Section:
    """Rows in the model, by client; of secure sums, who is in which."""
    if run.secure is not None:
        return _in_sums(run, run.secure)
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
    figure = _bars(ordered, "rows", sum(rows for _, rows in ordered[MAX_BARS:]))
    lines = [
        (
            sanitize(name, 60),
            format_number(rows),
            percent(rows / total),
            *([sanitize(run.left_out.get(name, ""), 300)] if run.left_out else []),
        )
        for name, rows in ordered
    ]
    head = ("client", "rows", "share", *(("features left out",) if run.left_out else ()))
    numbers = Table("Rows per client", head, lines)
    chart = Chart("contributions", "Rows per client", caption, figure, numbers)
    return Section("contributions", "Contributions", run.notes, (chart,))


def _in_sums(run: Run, secure: OpenedSums) -> Section:
    """Which members are in which sum: all that is known about what each contributed."""
    paragraphs = [
        *run.notes,
        "What each member contributed is not visible, by design: the server learned secure sums over at "
        f"least {secure.least} members, and how many rows each member has.",
    ]
    if not secure.sums:
        return Section("contributions", "Contributions", (*paragraphs, "No sum was opened."), ())
    n_members = len(secure.members)
    absent = [sanitize(name, 40) for name in secure.members if name not in secure.took_part]
    part = f"{run.n_clients} of {n_members} members are in a sum; in none: {join_names(absent, 10)}."
    paragraphs.append(part if absent else f"All {n_members} members are in a sum.")
    lines = [("rows in the sum", *(format_number(each.rows) for each in secure.sums))]
    lines += [
        (sanitize(name, 60), *("in it" if name in each.members else "–" for each in secure.sums))
        for name in secure.members
    ]
    head = ("member", *(sanitize(each.name, 40) for each in secure.sums))
    return Section("contributions", "Contributions", paragraphs, (Table("Members in each sum", head, lines),))


def influence(run: Run) -> Section:
    """How far the model turns without each client, and what that costs the client."""
    known = {name: one for name, one in run.influence.items() if one.angle is not None}
    if not known:
        return Section("influence", "Influence", (), ())
    ordered = by_turn(known)
    first = known[ordered[0]]
    more = ""
    if len(ordered) > MAX_BARS:
        more = f" The {MAX_BARS} of {format_number(len(ordered))} clients that turn it most are shown."
    figure, axes = canvas(80 + 20 * min(len(ordered), MAX_BARS))
    draw_influence(axes, known)
    caption = (
        f"How far the components turn if a client is left out. Most without {sanitize(ordered[0], 40)}, by "
        f"{_degrees(turn(first))}; it has {percent(first.row_share)} of the rows.{more}"
    )
    if suspicious := [sanitize(name, 40) for name in ordered if known[name].suspicious]:
        caption += f" Far beyond its share of the rows: {join_names(suspicious, 3)} (in another color)."
    lines = [
        (
            sanitize(name, 60),
            _degrees(turn(one)),
            percent(one.row_share),
            percent(one.direction_share),
        )
        for name, one in ((name, known[name]) for name in ordered)
    ]
    head = ("client", "angle without it", "share of rows", "largest share of a direction")
    title = "The model without each client"
    turned = Chart("influence", title, caption, figure, Table(title, head, lines))
    return Section("influence", "Influence", (), (turned, _captured(run, ordered)))


def _captured(run: Run, ordered: list[str]) -> Chart:
    """The share of each client's variance along the components, with and without it."""
    pairs = [
        (name, run.influence[name].captured, run.influence[name].captured_without or 0.0) for name in ordered
    ]
    shown = pairs[:MAX_BARS]
    places = np.arange(len(shown))
    figure, axes = canvas(110 + 20 * len(shown))
    found, without = [100 * high for _, high, _ in shown], [100 * low for _, _, low in shown]
    axes.hlines(places, without, found, color=FAINT, linewidth=2)
    axes.plot(without, places, "o", ms=7, mfc="none", mec=SERIES[1], mew=1.6, label="without it")
    axes.plot(found, places, "o", ms=7, color=SERIES[0], mew=0, label="with it")
    name_axis(axes, [sanitize(name, 18) for name, _, _ in shown])
    axes.set(xlabel="variance of its own rows captured (%)")
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
        items.append(_reply_times(run) if run.secure is None else _last_replies(run))
    if len(run.reply_times) > 2 and run.secure is None:
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
    ordered, unit = _slowest_first(run)
    middle = median(time for _, time in ordered)
    figure = _bars(ordered, unit, 0.0)
    figure.axes[0].axvline(middle, color=MUTED, linestyle="--", linewidth=1.2)
    slowest, time = ordered[0]
    caption = (
        "From the start to a client's latest message in the model, over all exchanges. The median reply time "
        f"is {middle:.3g} {unit} (dashed line). The slowest client, {sanitize(slowest, 40)}, took {time:.3g} "
        f"{unit}."
    )
    return _reply_chart("Reply time per client", caption, figure, ("client", unit), ordered)


def _last_replies(run: Run) -> Chart:
    """Of secure sums, where the times of members are of different exchanges, and not to be compared."""
    ordered, unit = _slowest_first(run)
    unit = f"{unit} after the start"
    last, time = ordered[0]
    caption = (
        "A run of secure sums has several exchanges, and a member's last reply may be in any of them: "
        f"whoever drops out has an early one. The last reply of all, that of {sanitize(last, 40)}, came "
        f"{time:.3g} {unit}."
    )
    figure = _bars(ordered, unit, 0.0)
    return _reply_chart("Last reply of each member", caption, figure, ("member", unit), ordered)


def _slowest_first(run: Run) -> tuple[list[tuple[str, float]], str]:
    """Clients and their reply times, and the unit of these."""
    scale, unit = _time_unit(run, run.reply_times.values())
    times = ((name, time / scale) for name, time in run.reply_times.items())
    return sorted(times, key=lambda item: -item[1]), unit


def _reply_chart(
    title: str, caption: str, figure: "Figure", head: tuple[str, str], ordered: list[tuple[str, float]]
) -> Chart:
    if len(ordered) > MAX_BARS:
        caption += f" The {MAX_BARS} slowest of {format_number(len(ordered))} {head[0]}s are shown."
    lines = [(sanitize(name, 60), f"{time:.3f}") for name, time in ordered]
    return Chart("reply-times", title, caption, figure, Table(title, head, lines))


def _bars(ordered: list[tuple[str, float]], unit: str, rest: float) -> "Figure":
    """The first of them as bars, and the sum of all others as one more."""
    names = [name for name, _ in ordered[:MAX_BARS]]
    values = [value for _, value in ordered[:MAX_BARS]]
    colors = [SERIES[0]] * len(values)
    if rest:
        names, values = [*names, f"{format_number(len(ordered) - MAX_BARS)} others"], [*values, rest]
        colors.append(FAINT)
    figure, axes = canvas(80 + 20 * len(values))
    draw_bars(axes, names, values, colors, unit)
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
