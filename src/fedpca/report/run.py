"""Run: how a federation went, whoever ran it."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedpca.federation import Aggregator, FolderStore, HistoryEvent
from fedpca.federation.estimator import FederatedPCA
from fedpca.federation.simulate import Simulation


class Growth(NamedTuple):
    """Rows and clients behind the model at some time."""

    time: float
    rows: float
    clients: int


class Move(NamedTuple):
    """The share of the variance that the model explains at some time, and how far it turned, in radians."""

    time: float
    explained: float
    angle: float | None


class Trouble(NamedTuple):
    """Who did not count, or not at once: what happened, and why."""

    who: str
    what: str
    when: str
    reason: str


@dataclass(frozen=True)
class Run:
    """How a federation went. Times are seconds from its start, or steps of a simulation.

    Attributes:
        contributions: rows in the model, by client.
        growth: how the model grew.
        moves: how it turned.
        turned_from: from which model.
        answered: when each client had its last word.
        troubles: who was refused, failed, left or fell silent.
        steps: whether times are steps of a simulation.
        story: what else there is to tell, in sentences.
    """

    contributions: Mapping[str, float]
    growth: list[Growth] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    turned_from: str = "the model before"
    answered: Mapping[str, float] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    steps: bool = False
    story: tuple[str, ...] = ()

    @property
    def stragglers(self) -> dict[str, float]:
        """Clients that took more than twice as long as half of them did, slowest first."""
        if len(self.answered) < 3:
            return {}
        usual = median(self.answered.values())
        late = {who: time for who, time in self.answered.items() if time > 2 * usual > 0}
        return dict(sorted(late.items(), key=lambda item: -item[1]))


def run_of(source: Any) -> Run:
    """How it went, from what there is: a folder, an aggregator, a simulation, a fitted `FederatedPCA`."""
    if isinstance(source, Simulation):
        return _of_simulation(source)
    if isinstance(source, Aggregator):
        rows = {name: child.count for name, child in source.children.items()}
        return _of_history(source.history, rows)
    if isinstance(source, FederatedPCA):
        return _of_estimator(source)
    if isinstance(source, str | os.PathLike):
        return _of_folder(Path(source))
    raise TypeError(
        "run must be a folder, an Aggregator, a Simulation or a fitted FederatedPCA, got "
        f"{type(source).__name__}."
    )


def _of_folder(folder: Path) -> Run:
    """What a Flower run left (summary.json, store/), or the store of an aggregator (history.jsonl)."""
    summary, store = folder / "summary.json", folder / "store"
    if (folder / "history.jsonl").is_file():
        return _of_history(FolderStore(folder).history())
    if not summary.is_file():
        raise FileNotFoundError(
            f"{folder} must be the folder of a run, with summary.json, or the store of an aggregator, with "
            "history.jsonl, and has neither; name another."
        )
    events = FolderStore(store).history() if store.is_dir() else []
    try:
        return _of_flower(json.loads(summary.read_text(encoding="utf-8")), events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{summary} must be what a run left, and is not ({error}); run it again.") from error


def _of_flower(summary: Mapping[str, Any], events: list[HistoryEvent]) -> Run:
    started = str(summary["started"])
    rows = {str(name): float(child["rows"]) for name, child in summary["contributors"].items()}
    before = _of_history(events, rows)
    answered, troubles = {}, [trouble for trouble in before.troubles if trouble.when < started]
    for answer in summary["replies"]:
        who = str(answer["client"] or f"node {answer['node']}")
        if answer["what"] in ("accepted", "unchanged"):
            answered[who] = _seconds(started, str(answer["time"]))
        else:
            what, when, why = (str(answer[key]) for key in ("what", "time", "reason"))
            troubles.append(Trouble(who, what, when, why))
    silent = [Trouble(f"node {node}", "silent", "", "it gave no answer.") for node in summary["no_reply"]]
    story = (f"There is no model of this run: {summary['problem']}",) if summary["problem"] else ()
    return Run(rows, before.growth, before.moves, answered=answered, troubles=troubles + silent, story=story)


def _of_history(events: list[HistoryEvent], contributions: Mapping[str, float] | None = None) -> Run:
    if not events:
        return Run(contributions or {})
    start = events[0].time
    rows: dict[str, float] = {}
    growth, moves, answered, troubles = [], [], {}, []
    together = 0.0
    for event in events:
        seconds = _seconds(start, event.time)
        match event.what:
            case "model":
                moves.append(Move(seconds, event.explained, event.angle))
                continue
            case "rejected":
                troubles.append(Trouble(event.child, event.what, event.time, event.reason))
                continue
            case "accepted":
                together += event.count - rows.get(event.child, 0.0)
                rows[event.child] = event.count
                answered[event.child] = seconds
            case "withdrawn":
                together -= rows.pop(event.child, 0.0)
                reason = f"its {event.count:g} rows are out of the model."
                troubles.append(Trouble(event.child, event.what, event.time, reason))
        growth.append(Growth(seconds, together, len(rows)))
    return Run(contributions or rows, growth, moves, answered=answered, troubles=troubles)


def _of_simulation(simulation: Simulation) -> Run:
    growth, answered = [], {}
    for delivery in simulation.timeline:
        if delivery.changed:
            answered[delivery.client] = delivery.time
        growth.append(Growth(delivery.time, delivery.rows, len(answered)))
    idle = sum(not delivery.changed for delivery in simulation.timeline)
    return Run(
        simulation.contributions,
        growth,
        [Move(look.time, look.explained, look.angle) for look in simulation.snapshots],
        "the final model",
        answered,
        [
            Trouble(name, "silent", "", "it dropped out before it had said all.")
            for name in simulation.dropped_out
        ],
        steps=True,
        story=(
            f"A simulation: {idle} of {len(simulation.timeline)} messages came late or twice and changed "
            f"nothing; aggregators were killed and restarted {simulation.crashes} times.",
        ),
    )


def _of_estimator(pca: FederatedPCA) -> Run:
    given = pca.contributions_.items()
    troubles = [Trouble(name, "failed", "", one.problem) for name, one in given if one.problem]
    return Run({name: float(one.rows) for name, one in given if not one.problem}, troubles=troubles)


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def thinned(things: list[Any], most: int = 300) -> list[Any]:
    """At most so many of them, the last included.

    >>> thinned(list(range(10)), most=4)
    [0, 3, 6, 9]
    """
    step = -(-(len(things) - 1) // (most - 1)) if len(things) > most else 1
    kept: Iterable[Any] = things[::step]
    return [*kept, *([things[-1]] if things and (len(things) - 1) % step else [])]
