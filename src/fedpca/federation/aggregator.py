"""Aggregator: the latest summary of every child, and the model they make together."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fedpca._util.text import utc_timestamp
from fedpca.errors import SummaryRejected
from fedpca.federation.message import child_name, version_number
from fedpca.federation.store import Event, FolderStore, MemoryStore, State, Store
from fedpca.metrics import principal_angles
from fedpca.privacy import Privacy
from fedpca.privacy.mechanisms import calibrate
from fedpca.summaries import validation
from fedpca.summaries.merging import check_compatible, merge_tree
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


@dataclass(frozen=True)
class Child:
    """What an aggregator knows about a child: its version, and how many rows it speaks for."""

    version: int
    count: float


class Aggregator:
    """A map from children to the latest version of what each said; its model is a function of that map alone.

    So it does not matter in which order summaries come, whether some come twice, late, or not at all. An
    aggregator is itself a child of its parent: hand up `summary()` with `version`.

    Args:
        rank: directions of the model; all by default.
        store: where states are kept: a folder, or a `Store`. What `receive` has taken is in it, so that a
            restart with the same store gives the same model, bit for bit. None: in memory.
        like: refuse what does not merge with this, `Subspace.empty(n_features, feature_names=...)`, say.
            None: whoever comes first decides on the features, and on centering.
        privacy: refuse what is not at least as private as this, or claims more than its bound allows.
        max_rows: refuse a child that claims to speak for more rows than this.
        fanout: how many summaries are merged at a time.

    >>> aggregator = Aggregator(rank=1)
    >>> rows = np.random.default_rng(0).normal(size=(20, 3)) * [3, 1, 1]
    >>> aggregator.receive("north", 1, Subspace.from_rows(rows[:8]))
    True
    >>> aggregator.receive("south", 1, Subspace.from_rows(rows[8:]))
    True
    >>> aggregator.receive("north", 1, Subspace.from_rows(rows[:8]))        # again: nothing changes
    False
    >>> aggregator.model()
    Subspace(rank=1, n_features=3, count=20, explained=91.5%)
    """

    def __init__(
        self,
        rank: int | None = None,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        like: Summary | None = None,
        privacy: Privacy | None = None,
        max_rows: float = 1e15,
        fanout: int = 8,
    ) -> None:
        if rank is not None:
            validation.integer(rank, "rank", at_least=1)
        self.rank = rank
        self.fanout = validation.integer(fanout, "fanout", at_least=2)
        self.like = like
        self.privacy = privacy
        self.max_rows = max_rows
        self.store: Store
        if store is None:
            self.store = MemoryStore()
        elif hasattr(store, "states"):
            self.store = store  # type: ignore[assignment]
        else:
            self.store = FolderStore(store)
        self._states = dict(self.store.states())
        self._lock = threading.RLock()
        self._model: Subspace | None = None
        self._recorded: tuple[int, Subspace] | None = None

    def receive(self, child: str, version: int, summary: Summary) -> bool:
        """Take what a child says, if it is newer than what it said before.

        Returns:
            Whether it was; then it is in the store. What is not newer is ignored.

        Raises:
            SummaryRejected: with the reason, if it cannot be right. The child's last good word stays.
        """
        try:
            name, version = child_name(child), version_number(version)
        except (TypeError, ValueError) as error:
            raise SummaryRejected(str(error)) from error
        with self._lock:
            if name in self._states and version <= self._states[name].version:
                return False
            try:
                summary = self._admitted(name, summary)
            except (ValueError, TypeError) as error:
                self._note(name, version, "refused", reason=str(error))
                raise SummaryRejected(f"{name!r}, version {version}: {error}") from error
            self._put(name, State(version, summary))
            self._note(name, version, "accepted", summary.count)
        return True

    def withdraw(self, child: str) -> bool:
        """Take a child's contribution out of the model, for good: only a newer version brings it back.

        Returns:
            Whether there was one.
        """
        name = child_name(child)
        with self._lock:
            state = self._states.get(name)
            if state is None or state.summary is None:
                return False
            self._put(name, State(state.version + 1, None))
            self._note(name, state.version + 1, "withdrawn", state.summary.count)
        return True

    def record(self) -> bool:
        """Note in the history how the model stands, and how far it has turned since it was noted last.

        For whoever runs a federation: at its start and end, and now and then in between. It costs a merge.

        Returns:
            Whether there was anything to note: a model, and another one than last time.

        >>> aggregator = Aggregator(rank=1)
        >>> aggregator.receive("north", 1, Subspace.from_rows([[1.0, 0.0], [-1.0, 0.0]]))
        True
        >>> aggregator.record(), aggregator.record()
        (True, False)
        >>> aggregator.receive("south", 1, Subspace.from_rows([[0.0, 3.0], [0.0, -3.0]]))
        True
        >>> aggregator.record()
        True
        >>> event = aggregator.history[-1]
        >>> event.what, event.count, event.children, event.explained, round(event.angle, 4)
        ('model', 4.0, 2, 0.9, 1.5708)
        """
        with self._lock:
            try:
                version, model = self.version, self.model()
            except ValueError:  # nobody has contributed, or what they said does not go together
                return False
            before, self._recorded = self._recorded, (version, model)
            if before is None:  # after a restart the model is that of the store
                known = any(event.what == "model" and event.version == version for event in self.history)
            else:
                known = before[0] == version
            if not known:
                angle = None if before is None else _largest_angle(before[1], model)
                explained = float(model.explained_variance_ratio.sum())
                children = len(self._parts())
                self._note("", version, "model", model.count, "", children, explained, angle)
            return not known

    def _put(self, name: str, state: State) -> None:
        self.store.put(name, state)  # first: what is in memory must never be more than what is on disk
        self._states[name] = state
        self._model = None

    def _note(self, *facts: Any, **more: Any) -> None:
        self.store.note(Event(utc_timestamp(), *facts, **more))

    def _admitted(self, name: str, summary: Any) -> Summary:
        """The summary, every number of it checked as if it came from a stranger."""
        if not isinstance(summary, Summary):
            raise TypeError(f"a summary must be a Subspace or Moments, got {type(summary).__name__}.")
        summary = replace(summary)  # built anew: its own checks
        if not 0 < summary.count <= self.max_rows:
            raise ValueError(f"count must be above 0 and at most {self.max_rows:g}, got {summary.count:g}.")
        others = [s.summary for n, s in self._states.items() if s.summary is not None and n != name]
        if self.like is not None:
            others.append(self.like)
        check_compatible([*others, summary])
        if self.privacy is not None:
            _check_private(summary, self.privacy)
        return summary

    # --- what they say together ---

    @property
    def children(self) -> Mapping[str, Child]:
        """Who contributes now."""
        with self._lock:
            return MappingProxyType(
                {
                    name: Child(state.version, state.summary.count)
                    for name, state in sorted(self._states.items())
                    if state.summary is not None
                }
            )

    @property
    def versions(self) -> Mapping[str, int]:
        """The latest version of every child, of those withdrawn, too."""
        with self._lock:
            return MappingProxyType({name: state.version for name, state in sorted(self._states.items())})

    @property
    def history(self) -> list[Event]:
        """Who said what, and when."""
        return self.store.history()

    @property
    def version(self) -> int:
        """Grows with everything taken; the same after a restart."""
        with self._lock:
            return sum(state.version + 1 for state in self._states.values())

    def model(self) -> Subspace:
        """The components of all rows behind the latest summaries, of whoever has contributed so far."""
        with self._lock:
            if self._model is None:
                merged = self._merged(self.rank)
                self._model = merged.subspace(self.rank)
            return self._model

    def summary(self) -> Summary:
        """What to tell a parent: with more directions than the model has, or as exact moments."""
        rank = None
        with self._lock:
            if self.rank is not None:
                rank = exchange_rank(self.rank, self._parts()[0].n_features)
            return self._merged(None if self._all_moments() else rank)

    def _merged(self, rank: int | None) -> Summary:
        parts = self._parts()
        if rank is not None:
            rank = min(rank, parts[0].n_features)
        return merge_tree(parts, None if self._all_moments() else rank, fanout=self.fanout)

    def _all_moments(self) -> bool:
        return all(isinstance(part, Moments) for part in self._parts())

    def _parts(self) -> list[Summary]:
        """The latest summaries, in an order that depends on names alone."""
        parts = [state.summary for _, state in sorted(self._states.items()) if state.summary is not None]
        if not parts:
            raise ValueError("no child has contributed yet.")
        return parts

    def __repr__(self) -> str:
        children = self.children
        rows = sum(child.count for child in children.values())
        return f"Aggregator({len(children)} children, {rows:g} rows)"


def _largest_angle(before: Subspace, model: Subspace) -> float | None:
    """In radians; None between what cannot be compared."""
    if not before.rank or not model.rank or before.n_features != model.n_features:
        return None
    return float(principal_angles(before, model).max())


def _check_private(summary: Summary, privacy: Privacy) -> None:
    """At least as private as asked for, and no larger than clipped rows and noise can be."""
    certificate = summary.certificate
    if certificate is None or not certificate.private:
        raise ValueError("the summary has no privacy certificate; fit with privacy=Privacy(...).")
    for name in ("epsilon", "delta"):
        stated, limit = getattr(certificate, name), getattr(privacy, name)
        if not stated <= limit:
            raise ValueError(f"its {name} is {stated:g}; at most {limit:g} is accepted.")
    if certificate.adjacency != privacy.adjacency:
        raise ValueError(f"its adjacency is {certificate.adjacency!r}, not {privacy.adjacency!r}.")
    releases, n_features = certificate.merged, summary.n_features
    if not releases <= summary.count:
        raise ValueError(f"{summary.count:g} rows cannot be in {releases} releases.")
    noise = 6 * np.sqrt(releases * n_features) * calibrate(privacy, n_features).sigma
    if isinstance(summary, Subspace):
        noise = releases * n_features * calibrate(privacy, n_features).edge(n_features)
    most = privacy.bound**2 * (summary.count + noise)
    if summary.total > most:
        raise ValueError(
            f"its total {summary.total:.4g} is more than {summary.count:g} rows within "
            f"bound={privacy.bound:g} and noise can have, {most:.4g}."
        )
