"""simulate: a federation in which things go wrong, all from one seed, to see that the model does not care."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca import progress
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.store import MemoryStore
from fedpca.metrics import principal_angles
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_SNAPSHOTS = 40


@dataclass(frozen=True)
class Faults:
    """What goes wrong, each as a share between 0 and 1.

    Attributes:
        stragglers: clients ten times as slow as the others.
        late: clients that join when others are half done.
        dropouts: clients that fall silent at some point, for good.
        duplicates: messages that arrive twice, the second time later.
        crashes: messages after which the aggregator that took them is killed, and restarted from its store.
        seed: which clients and messages these are.
    """

    stragglers: float = 0.0
    late: float = 0.0
    dropouts: float = 0.0
    duplicates: float = 0.0
    crashes: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("stragglers", "late", "dropouts", "duplicates", "crashes"):
            if not validation.is_real(share := getattr(self, name)) or not 0 <= share <= 1:
                raise ValueError(f"{name} must be a share between 0 and 1, got {name}={share!r}.")


@dataclass(frozen=True)
class Delivery:
    """A message that arrived: when, whose, whether it changed anything, and the rows of the model then."""

    time: float
    client: str
    version: int
    changed: bool
    crashed: bool
    rows: float


@dataclass(frozen=True)
class Snapshot:
    """How the model stood at some time: its rows, clients and share of the variance.

    `angle` is the largest between its components and those of the final model, in radians.
    """

    time: float
    rows: float
    clients: int
    explained: float
    angle: float


@dataclass(frozen=True)
class Simulation:
    """How a simulated federation went.

    Attributes:
        model: of the latest word of every client.
        timeline: what arrived, in order of time.
        silent: clients that dropped out before they had said all.
        crashes: how many aggregators were killed.
        contributions: rows in the model, by client.
        snapshots: how the model came to be what it is; some tens of them, whatever the number of messages.
    """

    model: Subspace
    timeline: tuple[Delivery, ...]
    silent: tuple[str, ...]
    crashes: int
    contributions: Mapping[str, float]
    snapshots: tuple[Snapshot, ...]


def simulate(
    clients: Mapping[str, Iterable[Any]],
    n_components: int,
    *,
    faults: Faults | None = None,
    fanout: int = 8,
    center: bool = True,
) -> Simulation:
    """Run clients that tell their region after every batch, regions that tell the root, and what goes wrong.

    Args:
        clients: by name, batches of rows.
        n_components: directions of the model.
        faults: what goes wrong; nothing by default.
        fanout: clients a region.
        center: whether to subtract the mean.

    >>> rng = np.random.default_rng(0)
    >>> clients = {f"{c}": [rng.normal(size=(20, 4)) for _ in range(5)] for c in range(6)}
    >>> stormy = simulate(clients, 2, faults=Faults(stragglers=0.3, duplicates=0.5, crashes=0.2), fanout=3)
    >>> calm = simulate(clients, 2, fanout=3)
    >>> stormy.model == calm.model, stormy.crashes > 0
    (True, True)
    """
    faults = faults or Faults()
    rng = np.random.default_rng(faults.seed)
    messages, silent = _messages(clients, n_components, faults, rng, center)
    tree = _Tree(sorted(clients), n_components, fanout)
    timeline: list[Delivery] = []
    contributions: dict[str, float] = {}
    stages: list[tuple[float, int, Subspace]] = []
    looks = {round(place) for place in np.linspace(0, len(messages) - 1, _SNAPSHOTS)}
    crashes = 0
    for place in progress.track(range(len(messages)), "simulation", "messages"):
        time, _, client, version, summary = heapq.heappop(messages)
        crashed = bool(rng.uniform() < faults.crashes)
        changed = tree.deliver(client, version, summary, crashed)
        crashes += crashed
        timeline.append(Delivery(time, client, version, changed, crashed, tree.rows()))
        if changed:
            contributions[client] = summary.count
        if place in looks:
            stages.append((time, len(contributions), tree.model()))
    final = tree.model()
    snapshots = tuple(_snapshot(*stage, final) for stage in stages)
    return Simulation(final, tuple(timeline), silent, crashes, contributions, snapshots)


def _snapshot(time: float, clients: int, model: Subspace, final: Subspace) -> Snapshot:
    angle = float(principal_angles(model, final).max(initial=0.0))
    return Snapshot(time, model.count, clients, float(model.explained_variance_ratio.sum()), angle)


_Message = tuple[float, int, str, int, Summary]


def _messages(
    clients: Mapping[str, Iterable[Any]],
    n_components: int,
    faults: Faults,
    rng: np.random.Generator,
    center: bool,
) -> tuple[list[_Message], tuple[str, ...]]:
    """All that clients send, with the times at which it arrives."""
    messages: list[_Message] = []
    silent = []
    for name, batches in sorted(clients.items()):
        pace = 10.0 if rng.uniform() < faults.stragglers else 1.0
        joins = 5.0 if rng.uniform() < faults.late else 0.0
        batches = list(batches)
        last = len(batches)
        if rng.uniform() < faults.dropouts and last > 1:
            last = int(rng.integers(1, last))
            silent.append(name)
        pca = StreamingPCA(n_components, center=center)
        for version, batch in enumerate(batches[:last]):
            pca.partial_fit(batch)
            sent = joins + pace * (version + rng.uniform())
            copies = 1 + (rng.uniform() < faults.duplicates)
            for copy in range(copies):
                arrival = sent + rng.exponential(pace) + 3 * copy
                heapq.heappush(messages, (arrival, len(messages), name, version, pca.summary_))
    return messages, tuple(silent)


class _Tree:
    """A root, its regions, and their stores, which outlive them."""

    def __init__(self, names: list[str], rank: int, fanout: int) -> None:
        validation.integer(fanout, "fanout", at_least=2)
        self._rank = rank
        self._region_of = {name: f"region {place // fanout}" for place, name in enumerate(names)}
        self._stores = {name: MemoryStore() for name in ("root", *self._region_of.values())}
        self._nodes = {name: self._start(name) for name in self._stores}

    def _start(self, name: str) -> Aggregator:
        return Aggregator(self._rank, store=self._stores[name])

    def deliver(self, client: str, version: int, summary: Summary, crash: bool) -> bool:
        name = self._region_of[client]
        changed = self._nodes[name].receive(client, version, summary)
        if crash:
            self._nodes[name] = self._start(name)
        region = self._nodes[name]
        self._nodes["root"].receive(name, region.version, region.summary())
        if crash:
            self._nodes["root"] = self._start("root")
        return changed

    def rows(self) -> float:
        return sum(child.count for child in self._nodes["root"].children.values())

    def model(self) -> Subspace:
        return self._nodes["root"].model()
