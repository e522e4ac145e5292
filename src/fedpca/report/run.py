"""Run: the history of a federation, from whatever recorded it."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedpca._typing import JSON
from fedpca._util.text import join_names, pluralize, sanitize
from fedpca.federation import Aggregator, FolderStore, HistoryEvent, Influence, ModelEvent, Robust
from fedpca.federation.one_process.federated_pca import FederatedPCA
from fedpca.federation.one_process.simulate import Simulation
from fedpca.trust.roster import ANYONE


class Growth(NamedTuple):
    """Rows and clients in the model at some time."""

    time: float
    rows: float
    clients: int


class ModelUpdate(NamedTuple):
    """A model at some time: its explained variance ratio, and the largest principal angle in radians."""

    time: float
    explained: float
    angle: float | None


class Incident(NamedTuple):
    """A contribution that is not in the model, or was removed from it."""

    client: str
    status: str
    time: str
    reason: str


class SecureSum(NamedTuple):
    """A secure sum: its name, who is in it, and how many rows they have together."""

    name: str
    members: tuple[str, ...]
    rows: float


@dataclass(frozen=True)
class OpenedSums:
    """The secure sums of a run, of which nobody knows the parts.

    Attributes:
        least: the fewest members in a sum.
        members: of the study, whether they are in a sum or not.
        sums: those that were opened, in their order.
    """

    least: int
    members: tuple[str, ...]
    sums: tuple[SecureSum, ...]

    @property
    def took_part(self) -> tuple[str, ...]:
        """Members who are in some sum."""
        return tuple(name for name in self.members if any(name in each.members for each in self.sums))


@dataclass(frozen=True)
class Run:
    """The history of a federation. Times are seconds since its start, or steps of a simulation.

    Attributes:
        contributions: rows in the model, by client.
        growth: rows and clients in the model over time.
        updates: the model over time.
        angle_reference: the model that angles are measured from.
        reply_times: time of each client's latest accepted message.
        incidents: clients that were rejected, failed, quarantined, withdrew or did not reply.
        steps: whether times are steps of a simulation.
        notes: further remarks, as sentences.
        influence: what each client has done to the model, where it is known.
        left_out: features that were left out of a client's summary, and their share of its variance.
        secure: the sums of a run of secure sums, whose contributions are not known; None of others.
    """

    contributions: Mapping[str, float]
    growth: list[Growth] = field(default_factory=list)
    updates: list[ModelUpdate] = field(default_factory=list)
    angle_reference: str = "the previous model"
    reply_times: Mapping[str, float] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    steps: bool = False
    notes: tuple[str, ...] = ()
    influence: Mapping[str, Influence] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    secure: OpenedSums | None = None

    @property
    def n_clients(self) -> int:
        """How many clients, or members of secure sums, are in the model."""
        return len(self.contributions) if self.secure is None else len(self.secure.took_part)

    @property
    def stragglers(self) -> dict[str, float]:
        """Clients that took more than twice the median reply time, slowest first.

        None of secure sums: their times are of several exchanges.
        """
        if len(self.reply_times) < 3 or self.secure is not None:
            return {}
        middle = median(self.reply_times.values())
        late = {client: time for client, time in self.reply_times.items() if time > 2 * middle > 0}
        return dict(sorted(late.items(), key=lambda item: -item[1]))


class _Event(NamedTuple):
    """What happened in a run, whatever recorded it.

    Attributes:
        what: happened to the client: it has "accepted" rows in the model or a message that is "unchanged", or
            there is an incident; or "model", and then there is an `update`.
        client: its name.
        rows: of the client in the model from then on; None where that is not known, or the same.
        seconds: since the start; None where that is not known.
        replied: likewise, if this is the client's latest reply.
        time: of an incident.
        reason: of an incident; of a model, what is suspicious about it.
        left_out: features that were left out, and their share of the variance.
        update: of the model.
    """

    what: str
    client: str = ""
    rows: float | None = None
    seconds: float | None = None
    replied: float | None = None
    time: str = ""
    reason: str = ""
    left_out: str = ""
    update: ModelUpdate | None = None


def load_run(source: object) -> Run:
    """The history of a federation: from a folder, an aggregator, a simulation or a fitted `FederatedPCA`."""
    if isinstance(source, Simulation):
        return _run(
            _simulated(source), angle_reference="the final model", steps=True, notes=(_faults(source),)
        )
    if isinstance(source, Aggregator):
        study, children = None if source.roster is None else source.roster.study, source.children
        return _run(
            _recorded(source.history),
            contributions={name: child.count for name, child in children.items()},
            influence=source.influence(),
            notes=(_membership(study, source.not_heard_from), *_robustness(source.robust)),
        )
    if isinstance(source, FederatedPCA):
        return _run(_fitted(source), influence=source.influence_, notes=_robustness(source.robust))
    if isinstance(source, str | os.PathLike):
        return _from_folder(Path(source))
    raise TypeError(
        "run must be a folder, an Aggregator, a Simulation or a fitted FederatedPCA, got "
        f"{type(source).__name__}."
    )


def _run(
    events: Iterable[_Event],
    *,
    contributions: Mapping[str, float] | None = None,
    notes: tuple[str, ...] = (),
    **known: Any,
) -> Run:
    """A run from what happened in it, in this order, and from what is known of its end.

    Args:
        contributions: rows in the model, by client; by default those that the events tell.
        known: other attributes of `Run` that the events do not tell.
    """
    rows: dict[str, float] = {}
    left_out: dict[str, str] = {}
    growth, updates, reply_times, incidents = [], [], {}, []
    total, warning = 0.0, ""
    for event in events:
        if event.update is not None:
            updates.append(event.update)
            warning = event.reason
            continue
        if event.what not in ("accepted", "unchanged"):
            incidents.append(Incident(event.client, event.what, event.time, event.reason))
        if event.what in ("withdrawn", "quarantined"):
            total -= rows.pop(event.client, 0.0)
            left_out.pop(event.client, None)
        elif event.rows is not None:
            total += event.rows - rows.get(event.client, 0.0)
            rows[event.client], left_out[event.client] = event.rows, event.left_out
        if event.replied is not None:
            reply_times[event.client] = event.replied
        if event.seconds is not None and event.what != "rejected":
            growth.append(Growth(event.seconds, total, len(rows)))
    return Run(
        contributions or rows,
        growth,
        updates,
        reply_times=reply_times,
        incidents=incidents,
        notes=(*([f"Warning: {warning}"] if warning else []), *notes),
        left_out={client: text for client, text in left_out.items() if text},
        **known,
    )


def _recorded(history: list[HistoryEvent]) -> Iterator[_Event]:
    """By an aggregator."""
    for event in history:
        seconds = _seconds(history[0].time, event.time)
        if isinstance(event, ModelEvent):
            update = ModelUpdate(seconds, event.explained, event.angle)
            yield _Event(event.what, reason=event.warning, update=update)
        elif event.what == "accepted":
            yield _Event(event.what, event.child, event.count, seconds, seconds, left_out=event.left_out)
        else:
            removed = f"removed from the model: {pluralize(event.count, 'row')}."
            yield _Event(event.what, event.child, None, seconds, None, event.time, event.reason or removed)


def _simulated(simulation: Simulation) -> Iterator[_Event]:
    total, rows = 0.0, dict.fromkeys(simulation.contributions, 0.0)
    for delivery in simulation.timeline:
        if delivery.changed:
            rows[delivery.client] = rows.get(delivery.client, 0.0) + delivery.rows - total
            total = delivery.rows
            yield _Event("accepted", delivery.client, rows[delivery.client], delivery.time, delivery.time)
        else:
            yield _Event("unchanged", delivery.client, seconds=delivery.time)
    for shot in simulation.snapshots:
        yield _Event("model", update=ModelUpdate(shot.time, shot.explained, shot.angle))
    for name in simulation.dropped_out:
        yield _Event("dropped out", name, reason="the client did not send all of its updates.")


def _fitted(pca: FederatedPCA) -> Iterator[_Event]:
    for name, one in pca.contributions_.items():
        if one.problem:
            yield _Event("failed", name, reason=one.problem)
        else:
            yield _Event("accepted", name, float(one.rows), left_out=one.left_out)


def _faults(simulation: Simulation) -> str:
    n_ignored = sum(not delivery.changed for delivery in simulation.timeline)
    return (
        f"This federation was simulated. {n_ignored} of {pluralize(len(simulation.timeline), 'message')} "
        "arrived late or twice and changed nothing; aggregators were killed and restarted "
        f"{pluralize(simulation.crashes, 'time')}."
    )


def _membership(study: str | None, not_heard_from: Iterable[str]) -> str:
    """Whose summaries count, as a sentence."""
    if study is None:
        return f"{ANYONE.capitalize()}."
    silent = [sanitize(name, 100) for name in not_heard_from]
    missing = f"; not heard from: {join_names(silent)}" if silent else ""
    return f"Only members of study {sanitize(study, 100)!r} are accepted{missing}."


def _robustness(robust: Robust | str | None) -> tuple[str, ...]:
    """How clients were merged, as a sentence, if not simply added up."""
    if robust is None:
        return ()
    rule = robust.rule if isinstance(robust, Robust) else sanitize(robust, 20)
    return (
        f"Merged with robust={rule!r}: a minority of clients cannot corrupt the model if "
        "clients are alike. Those without influence were left out of it.",
    )


def _from_folder(folder: Path) -> Run:
    """From the output of a Flower run (summary.json, store/), or an aggregator's store (history.jsonl)."""
    summary, store = folder / "summary.json", folder / "store"
    if (folder / "history.jsonl").is_file():
        return _run(_recorded(FolderStore(folder).history()))
    if not summary.is_file():
        raise FileNotFoundError(
            f"{folder} must be the folder of a run or the store of an aggregator, but has neither "
            "summary.json nor history.jsonl; choose another folder."
        )
    events = FolderStore(store).history() if store.is_dir() else []
    try:
        return _from_flower(json.loads(summary.read_text(encoding="utf-8")), events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{summary} is not a valid summary of a run ({error}); run it again.") from error


def _from_flower(summary: JSON, history: list[HistoryEvent]) -> Run:
    """Of a Flower run: its summary, and what its aggregator recorded of this and earlier runs."""
    earlier, started = _run(_recorded(history)), str(summary["started"])
    children = {str(name): child for name, child in summary["contributors"].items()}
    roster, secure = summary["roster"], _secure_sums(summary)
    if roster == ANYONE:
        roster = {"study": None}
    silent = roster.get("not_heard_from", ()) if roster and secure is None else ()  # of sums: who is in none
    ended = "did not end normally" if summary["model"] is not None else "produced no model"
    run = _run(
        _replied(summary, started),
        contributions={name: float(child["rows"]) for name, child in children.items()},
        influence={name: _influence(child) for name, child in children.items() if "angle" in child},
        notes=(
            *([f"This run {ended}: {summary['problem']}"] if summary["problem"] else []),
            *earlier.notes,
            *([_membership(roster["study"], silent)] if roster else []),  # None: the run did not begin
            *_robustness(summary.get("robust")),
        ),
    )
    incidents = [incident for incident in earlier.incidents if incident.time < started] + run.incidents
    run = replace(run, growth=earlier.growth, updates=earlier.updates, incidents=incidents)
    if secure is None:
        return run
    # The one contributor is the sum over all: nothing is known about the parts of members.
    return replace(run, contributions={}, growth=[], influence={}, secure=secure)


def _replied(summary: JSON, started: str) -> Iterator[_Event]:
    settled = ("accepted", "taken" if summary.get("secure") else "unchanged")
    for reply in summary["replies"]:
        client = str(reply["client"] or f"node {reply['node']}")
        what, time, reason = (str(reply[key]) for key in ("what", "time", "reason"))
        if what in settled:
            yield _Event("unchanged", client, replied=_seconds(started, time))
        else:
            yield _Event(what, client, time=time, reason=reason)
    for name, reason in summary["quarantined"].items():
        yield _Event("quarantined", str(name), reason=str(reason))
    for node in summary["no_reply"]:
        yield _Event("no reply", f"node {node}", reason="the node did not reply during the run.")


def _secure_sums(summary: JSON) -> OpenedSums | None:
    """Who is in which sum; None of a run without secure sums."""
    if not (state := summary.get("secure")):
        return None
    sums = tuple(
        SecureSum(str(each["sum"]), tuple(map(str, each["owners"])), float(each["rows"]))
        for each in state["sums"]
    )
    silent = (summary["roster"] or {}).get("not_heard_from", ())
    return OpenedSums(int(state["least"]), tuple(dict.fromkeys(map(str, (*state["members"], *silent)))), sums)


def _influence(child: JSON) -> Influence:
    found = (child[each.name] for each in fields(Influence))
    values: JSON = {
        each.name: None if value is None else float(value)
        for each, value in zip(fields(Influence), found, strict=True)
    }
    return Influence(**values)


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def downsample(items: list[Any], limit: int = 300) -> list[Any]:
    """At most `limit` items, evenly spaced, the last included.

    >>> downsample(list(range(10)), limit=4)
    [0, 3, 6, 9]
    """
    step = -(-(len(items) - 1) // (limit - 1)) if len(items) > limit else 1
    return [*items[::step], *([items[-1]] if items and (len(items) - 1) % step else [])]
