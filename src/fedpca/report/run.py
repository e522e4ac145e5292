"""Run: the history of a federation, from whatever recorded it."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedpca._typing import JSON
from fedpca._util.text import join_names, pluralize, sanitize
from fedpca.federation import Aggregator, FolderStore, HistoryEvent, Influence
from fedpca.federation.federated_pca import FederatedPCA
from fedpca.federation.simulate import Simulation
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
        energy_shares: each client's share of the energy of all rows about their mean, where it is known.
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
    energy_shares: Mapping[str, float] = field(default_factory=dict)
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


def load_run(source: object) -> Run:
    """The history of a federation: from a folder, an aggregator, a simulation or a fitted `FederatedPCA`."""
    if isinstance(source, Simulation):
        return _from_simulation(source)
    if isinstance(source, Aggregator):
        children = source.children
        run = _from_history(source.history, {name: child.count for name, child in children.items()})
        return replace(
            run,
            energy_shares={name: child.energy_share for name, child in children.items()},
            influence=source.influence(),
            left_out={name: child.left_out for name, child in children.items() if child.left_out},
            notes=(
                *run.notes,
                _membership(_study(source), source.not_heard_from),
                *_robustness(source.robust),
            ),
        )
    if isinstance(source, FederatedPCA):
        return _from_estimator(source)
    if isinstance(source, str | os.PathLike):
        return _from_folder(Path(source))
    raise TypeError(
        "run must be a folder, an Aggregator, a Simulation or a fitted FederatedPCA, got "
        f"{type(source).__name__}."
    )


def _study(aggregator: Aggregator) -> str | None:
    return None if aggregator.roster is None else aggregator.roster.study


def _membership(study: str | None, not_heard_from: Iterable[str]) -> str:
    """Whose summaries count, as a sentence."""
    if study is None:
        return f"{ANYONE.capitalize()}."
    silent = [sanitize(name, 100) for name in not_heard_from]
    missing = f"; not heard from: {join_names(silent)}" if silent else ""
    return f"Only members of study {sanitize(study, 100)!r} are accepted{missing}."


def _robustness(rule: str | None) -> tuple[str, ...]:
    """How clients were merged, as a sentence, if not simply added up."""
    if rule is None:
        return ()
    return (
        f"Merged with robust={sanitize(rule, 20)!r}: a minority of clients cannot corrupt the model if "
        "clients are alike. Those without influence were left out of it.",
    )


def _from_folder(folder: Path) -> Run:
    """From the output of a Flower run (summary.json, store/), or an aggregator's store (history.jsonl)."""
    summary, store = folder / "summary.json", folder / "store"
    if (folder / "history.jsonl").is_file():
        return _from_history(FolderStore(folder).history())
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


def _from_flower(summary: JSON, events: list[HistoryEvent]) -> Run:
    started = str(summary["started"])
    contributors = {str(name): child for name, child in summary["contributors"].items()}
    rows = {name: float(child["rows"]) for name, child in contributors.items()}
    secure = _secure_sums(summary)
    settled = ("accepted", "unchanged") if secure is None else ("accepted", "taken")
    earlier = _from_history(events, rows)
    reply_times = {}
    incidents = [incident for incident in earlier.incidents if incident.time < started]
    for reply in summary["replies"]:
        client = str(reply["client"] or f"node {reply['node']}")
        if reply["what"] in settled:
            reply_times[client] = _seconds(started, str(reply["time"]))
        else:
            status, time, reason = (str(reply[key]) for key in ("what", "time", "reason"))
            incidents.append(Incident(client, status, time, reason))
    incidents += [
        Incident(str(name), "quarantined", "", str(reason)) for name, reason in summary["quarantined"].items()
    ]
    incidents += [
        Incident(f"node {node}", "no reply", "", "the node did not reply during the run.")
        for node in summary["no_reply"]
    ]
    roster = summary["roster"] or {}  # None: the run did not begin
    heard = {"study": None, "not_heard_from": []} if roster == ANYONE else roster
    notes = earlier.notes
    if heard:
        silent = heard.get("not_heard_from", ()) if secure is None else ()  # of sums: who is in none
        notes = (*notes, _membership(heard["study"], silent))
    notes = (*notes, *_robustness(summary.get("robust")))
    if summary["problem"]:
        what = "This run produced no model" if summary["model"] is None else "This run did not end normally"
        notes = (f"{what}: {summary['problem']}", *notes)
    run = Run(
        rows,
        earlier.growth,
        earlier.updates,
        reply_times=reply_times,
        incidents=incidents,
        notes=notes,
        energy_shares={name: float(child["energy_share"]) for name, child in contributors.items()},
        influence={name: _influence(child) for name, child in contributors.items() if "angle" in child},
    )
    if secure is None:
        return run
    # The one contributor is the sum over all: nothing is known about the parts of members.
    return replace(run, contributions={}, growth=[], energy_shares={}, influence={}, secure=secure)


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


def _from_history(events: list[HistoryEvent], contributions: Mapping[str, float] | None = None) -> Run:
    if not events:
        return Run(contributions or {})
    start = events[0].time
    rows: dict[str, float] = {}
    left_out: dict[str, str] = {}
    growth, updates, reply_times, incidents = [], [], {}, []
    total, warning = 0.0, ""
    for event in events:
        seconds = _seconds(start, event.time)
        match event.what:
            case "model":
                updates.append(ModelUpdate(seconds, event.explained, event.angle))
                warning = event.warning
                continue
            case "rejected":
                incidents.append(Incident(event.child, event.what, event.time, event.reason))
                continue
            case "accepted":
                total += event.count - rows.get(event.child, 0.0)
                rows[event.child] = event.count
                left_out[event.child] = event.left_out
                reply_times[event.child] = seconds
            case "withdrawn" | "quarantined":
                total -= rows.pop(event.child, 0.0)
                left_out.pop(event.child, None)
                reason = event.reason or f"removed from the model: {pluralize(event.count, 'row')}."
                incidents.append(Incident(event.child, event.what, event.time, reason))
        growth.append(Growth(seconds, total, len(rows)))
    notes = (f"Warning: {warning}",) if warning else ()
    return Run(
        contributions or rows,
        growth,
        updates,
        reply_times=reply_times,
        incidents=incidents,
        notes=notes,
        left_out={client: text for client, text in left_out.items() if text},
    )


def _from_simulation(simulation: Simulation) -> Run:
    growth, reply_times = [], {}
    for delivery in simulation.timeline:
        if delivery.changed:
            reply_times[delivery.client] = delivery.time
        growth.append(Growth(delivery.time, delivery.rows, len(reply_times)))
    n_ignored = sum(not delivery.changed for delivery in simulation.timeline)
    return Run(
        simulation.contributions,
        growth,
        [ModelUpdate(shot.time, shot.explained, shot.angle) for shot in simulation.snapshots],
        "the final model",
        reply_times,
        [
            Incident(name, "dropped out", "", "the client did not send all of its updates.")
            for name in simulation.dropped_out
        ],
        steps=True,
        notes=(
            f"This federation was simulated. {n_ignored} of {pluralize(len(simulation.timeline), 'message')} "
            "arrived late or twice and changed nothing; aggregators were killed and restarted "
            f"{pluralize(simulation.crashes, 'time')}.",
        ),
    )


def _from_estimator(pca: FederatedPCA) -> Run:
    clients = pca.contributions_.items()
    incidents = [Incident(name, "failed", "", one.problem) for name, one in clients if one.problem]
    return Run(
        {name: float(one.rows) for name, one in clients if not one.problem},
        incidents=incidents,
        notes=_robustness(pca.robust),
        influence=pca.influence_,
        left_out={name: one.left_out for name, one in clients if one.left_out},
    )


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def downsample(items: list[Any], limit: int = 300) -> list[Any]:
    """At most `limit` items, evenly spaced, the last included.

    >>> downsample(list(range(10)), limit=4)
    [0, 3, 6, 9]
    """
    step = -(-(len(items) - 1) // (limit - 1)) if len(items) > limit else 1
    return [*items[::step], *([items[-1]] if items and (len(items) - 1) % step else [])]
