"""simulate: a federation with faults, all from one seed; the model does not depend on them."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from sklearn.base import clone

from fedpca import progress
from fedpca._typing import RowsLike
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.robust import Robust, RobustRule
from fedpca.federation.aggregator.store import MemoryStore
from fedpca.metrics import principal_angles
from fedpca.summaries import validation
from fedpca.summaries.scaling import ScaleLike, ScaleRule, Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_SNAPSHOTS = 40


@dataclass(frozen=True)
class Faults:
    """The faults of a simulation, each as a share between 0 and 1.

    Attributes:
        stragglers: clients that are ten times slower than the others.
        late: clients that join when others are half done.
        dropouts: clients that stop sending at some point.
        duplicates: messages that arrive a second time, later.
        crashes: messages after which the receiving aggregator is killed, and restarted from its store.
        seed: decides which clients and messages these are.
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
    """A message that arrived.

    Attributes:
        time: of arrival.
        client, version: the sender and the version of its summary.
        changed: whether it was newer than what the aggregator had.
        crashed: whether the aggregator was killed afterwards.
        rows: of the model then.
    """

    time: float
    client: str
    version: int
    changed: bool
    crashed: bool
    rows: float


@dataclass(frozen=True)
class Snapshot:
    """The model at some time.

    Attributes:
        time: in the steps of the simulation.
        rows, clients: behind the model.
        explained: the share of the variance along its components.
        angle: the largest between its components and those of the final model, in radians.
    """

    time: float
    rows: float
    clients: int
    explained: float
    angle: float


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated federation.

    Attributes:
        model: of the latest summary of every client.
        timeline: all messages, in order of arrival.
        dropped_out: clients that stopped before they had sent all batches.
        crashes: how many times an aggregator was killed.
        contributions: rows in the model, by client.
        snapshots: the model over time, at most 40 times.
    """

    model: Subspace
    timeline: tuple[Delivery, ...]
    dropped_out: tuple[str, ...]
    crashes: int
    contributions: Mapping[str, float]
    snapshots: tuple[Snapshot, ...]


def simulate(
    clients: Mapping[str, Iterable[RowsLike]],
    n_components: int,
    *,
    faults: Faults | None = None,
    fanout: int = 8,
    center: bool = True,
    scale: ScaleLike = None,
    robust: Robust | RobustRule | None = None,
) -> Simulation:
    """Simulate clients that send a summary to their region after every batch, and regions that do the same
    to the root.

    Args:
        clients: by name, batches of rows.
        n_components: directions of the model.
        faults: none by default.
        fanout: clients per region.
        center: whether to subtract the mean.
        scale: what every feature is divided by: "std", "binomial", numbers or nothing. Where summaries are no
            moments, the rules stand for the scale of all rows, which clients exchange beforehand.
        robust: as for `Aggregator`. All clients then send to the root, because a minority can be found only
            among all of them.

    >>> rng = np.random.default_rng(0)
    >>> clients = {f"{c}": [rng.normal(size=(20, 4)) for _ in range(5)] for c in range(6)}
    >>> faulty = simulate(clients, 2, faults=Faults(stragglers=0.3, duplicates=0.5, crashes=0.2), fanout=3)
    >>> reference = simulate(clients, 2, fanout=3)
    >>> faulty.model == reference.model, faulty.crashes > 0
    (True, True)
    """
    faults = faults or Faults()
    rng = np.random.default_rng(faults.seed)
    batches = {name: list(parts) for name, parts in clients.items()}
    pca = StreamingPCA(n_components, center=center, scale=scale)
    rows = [batch for parts in batches.values() for batch in parts]
    if rows and pca._needs_scaling(np.shape(rows[0])[1]):
        pca.scale = Scaling.merge(map(Scaling.from_rows, rows)).scale(cast("ScaleRule", scale))
    sent, dropped_out = _messages(batches, pca, faults, rng)
    tree = _Tree(sorted(clients), n_components, fanout, Robust.of(robust))
    timeline: list[Delivery] = []
    contributions: dict[str, float] = {}
    stages: list[tuple[float, int, Subspace]] = []
    snapshot_at = {round(i) for i in np.linspace(0, len(sent) - 1, _SNAPSHOTS)}
    crashes = 0
    for i in progress.track(range(len(sent)), "simulation", "messages"):
        time, _, client, version, summary = heapq.heappop(sent)
        crashed = bool(rng.uniform() < faults.crashes)
        changed = tree.deliver(client, version, summary, crashed)
        crashes += crashed
        timeline.append(Delivery(time, client, version, changed, crashed, tree.rows()))
        if changed:
            contributions[client] = summary.count
        if i in snapshot_at:
            stages.append((time, len(contributions), tree.model()))
    final = tree.model()
    snapshots = tuple(_snapshot(*stage, final) for stage in stages)
    return Simulation(final, tuple(timeline), dropped_out, crashes, contributions, snapshots)


def _snapshot(time: float, clients: int, model: Subspace, final: Subspace) -> Snapshot:
    angle = float(principal_angles(model, final).max(initial=0.0))
    return Snapshot(time, model.count, clients, float(model.explained_variance_ratio.sum()), angle)


_Sent = tuple[float, int, str, int, Summary]  # time of arrival, order of sending, client, version, summary


def _messages(
    clients: Mapping[str, list[RowsLike]], estimator: StreamingPCA, faults: Faults, rng: np.random.Generator
) -> tuple[list[_Sent], tuple[str, ...]]:
    """All messages of all clients, as a heap by time of arrival; and the clients that drop out."""
    messages: list[_Sent] = []
    dropped_out = []
    for name, batches in sorted(clients.items()):
        pace = 10.0 if rng.uniform() < faults.stragglers else 1.0
        joins = 5.0 if rng.uniform() < faults.late else 0.0
        last = len(batches)
        if rng.uniform() < faults.dropouts and last > 1:
            last = int(rng.integers(1, last))
            dropped_out.append(name)
        pca = clone(estimator)
        for version, batch in enumerate(batches[:last]):
            pca.partial_fit(batch)
            sent = joins + pace * (version + rng.uniform())
            copies = 1 + (rng.uniform() < faults.duplicates)
            for copy in range(copies):
                arrival = sent + rng.exponential(pace) + 3 * copy
                heapq.heappush(messages, (arrival, len(messages), name, version, pca.summary_))
    return messages, tuple(dropped_out)


class _Tree:
    """A root, its regions, and their stores, which outlive them; with a robust root there are no regions."""

    def __init__(self, names: list[str], rank: int, fanout: int, robust: Robust | None) -> None:
        validation.integer(fanout, "fanout", at_least=2)
        self._rank = rank
        self._robust = robust
        regions = (f"region {i // fanout}" if robust is None else "root" for i in range(len(names)))
        self._region_of = dict(zip(names, regions, strict=True))
        self._stores = {name: MemoryStore() for name in ("root", *self._region_of.values())}
        self._nodes = {name: self._start(name) for name in self._stores}

    def _start(self, name: str) -> Aggregator:
        return Aggregator(self._rank, store=self._stores[name], robust=self._robust)

    def deliver(self, client: str, version: int, summary: Summary, crash: bool) -> bool:
        name = self._region_of[client]
        changed = self._nodes[name].receive(client, version, summary)
        if crash:
            self._nodes[name] = self._start(name)
        if name == "root":
            return changed
        region = self._nodes[name]
        self._nodes["root"].receive(name, region.version, region.summary())
        if crash:
            self._nodes["root"] = self._start("root")
        return changed

    def rows(self) -> float:
        return sum(child.count for child in self._nodes["root"].children.values())

    def model(self) -> Subspace:
        return self._nodes["root"].model()
