"""Aggregator: the latest summary of every child, and the model of all of them."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fedpca.errors import SummaryRejected
from fedpca.federation.message import Message, child_name, require_summary, version_number
from fedpca.federation.store import ChildEvent, FolderStore, HistoryEvent, MemoryStore, ModelEvent, Store
from fedpca.metrics import principal_angles
from fedpca.privacy import Privacy
from fedpca.privacy.mechanisms import calibrate
from fedpca.summaries import validation
from fedpca.summaries.merging import all_moments, check_compatible, merge_tree
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


@dataclass(frozen=True)
class ChildInfo:
    """The latest version of a child, and its number of rows."""

    version: int
    count: float


class Aggregator:
    """The latest summary of every child. The model depends on these alone.

    So it does not matter in which order messages arrive, or whether some arrive twice, late, or never. An
    aggregator can itself be a child of another one: send `summary()` with `version`.

    Args:
        rank: directions of the model; all by default.
        store: a folder, or a `Store`, that keeps all accepted messages: a restart with the same store gives
            the same model, bit for bit. None keeps them in memory.
        expected: reject summaries that do not merge with this one, such as
            `Subspace.empty(n_features, feature_names=...)`. None: the first summary decides on the features
            and on centering.
        privacy: reject summaries that are less private than this, or larger than its bound allows.
        max_rows: reject a child that claims more rows than this.
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
        expected: Summary | None = None,
        privacy: Privacy | None = None,
        max_rows: float = 1e15,
        fanout: int = 8,
    ) -> None:
        if rank is not None:
            validation.integer(rank, "rank", at_least=1)
        self.rank = rank
        self.fanout = validation.integer(fanout, "fanout", at_least=2)
        self.expected = expected
        self.privacy = privacy
        self.max_rows = max_rows
        self.store: Store
        if store is None:
            self.store = MemoryStore()
        elif isinstance(store, str | os.PathLike):
            self.store = FolderStore(store)
        else:
            self.store = store
        self._messages = dict(self.store.messages())
        self._lock = threading.RLock()
        self._model: Subspace | None = None
        self._recorded: tuple[int, Subspace] | None = None

    def receive(self, child: str, version: int, summary: Summary) -> bool:
        """Accept the summary of a child if its version is newer than the one before.

        Returns:
            Whether it is newer; then it is in the store. Older versions are ignored.

        Raises:
            SummaryRejected: with the reason, if it is not valid. The child's previous version is kept.
        """
        try:
            child, version = child_name(child), version_number(version)
        except (TypeError, ValueError) as error:
            raise SummaryRejected(str(error)) from error
        with self._lock:
            if child in self._messages and version <= self._messages[child].version:
                return False
            try:
                summary = self._validated(child, summary)
            except (ValueError, TypeError) as error:
                self.store.log(ChildEvent(child=child, version=version, what="rejected", reason=str(error)))
                raise SummaryRejected(f"{child!r}, version {version}: {error}") from error
            self._put(Message(child, version, summary))
            self.store.log(ChildEvent(child=child, version=version, what="accepted", count=summary.count))
        return True

    def withdraw(self, child: str) -> bool:
        """Remove a child's contribution from the model; only a newer version brings it back.

        Returns:
            Whether there was one.
        """
        child = child_name(child)
        with self._lock:
            last = self._messages.get(child)
            if last is None or last.summary is None:
                return False
            version = last.version + 1
            self._put(Message(child, version, None))
            count = last.summary.count
            self.store.log(ChildEvent(child=child, version=version, what="withdrawn", count=count))
        return True

    def record(self) -> bool:
        """Log the model in the history, and how far its components turned since the last one logged.

        Call it at the start and end of a run, and from time to time in between. It costs a merge.

        Returns:
            Whether there was a new model to log.

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
            except ValueError:  # no child has contributed, or their summaries do not merge
                return False
            before, self._recorded = self._recorded, (version, model)
            if before is None:  # after a restart the model is that of the store
                known = any(event.what == "model" and event.version == version for event in self.history)
            else:
                known = before[0] == version
            if not known:
                event = ModelEvent(
                    version=version,
                    count=model.count,
                    children=len(self._parts()),
                    explained=float(model.explained_variance_ratio.sum()),
                    angle=None if before is None else _largest_angle(before[1], model),
                )
                self.store.log(event)
            return not known

    def _put(self, message: Message) -> None:
        self.store.put(message)  # first: memory must never be ahead of the disk
        self._messages[message.child] = message
        self._model = None

    def _validated(self, child: str, summary: Any) -> Summary:
        """The summary, every number of it checked: it may come from anyone."""
        summary = replace(require_summary(summary))  # constructed again, with all its checks
        if not 0 < summary.count <= self.max_rows:
            raise ValueError(f"count must be above 0 and at most {self.max_rows:g}, got {summary.count:g}.")
        others = [
            message.summary
            for name, message in self._messages.items()
            if message.summary is not None and name != child
        ]
        if self.expected is not None:
            others.append(self.expected)
        check_compatible([*others, summary])
        if self.privacy is not None:
            _check_private(summary, self.privacy)
        return summary

    # --- the children together ---

    @property
    def children(self) -> Mapping[str, ChildInfo]:
        """All children that contribute now, by name."""
        with self._lock:
            return MappingProxyType(
                {
                    name: ChildInfo(message.version, message.summary.count)
                    for name, message in sorted(self._messages.items())
                    if message.summary is not None
                }
            )

    @property
    def versions(self) -> Mapping[str, int]:
        """The latest version of every child, including withdrawn ones."""
        with self._lock:
            return MappingProxyType(
                {name: message.version for name, message in sorted(self._messages.items())}
            )

    @property
    def history(self) -> list[HistoryEvent]:
        """All events, oldest first: messages accepted and rejected, children withdrawn, models recorded."""
        return self.store.history()

    @property
    def version(self) -> int:
        """Grows with every accepted message; the same after a restart."""
        with self._lock:
            return sum(message.version + 1 for message in self._messages.values())

    def model(self) -> Subspace:
        """The components of all rows behind the latest summaries."""
        with self._lock:
            if self._model is None:
                merged = self._merged(self.rank)
                self._model = merged.subspace(self.rank and min(self.rank, merged.n_features))
            return self._model

    def summary(self) -> Summary:
        """What to send to a parent: more directions than the model has, or exact moments."""
        with self._lock:
            rank = self.rank
            if rank is not None:
                rank = exchange_rank(rank, self._parts()[0].n_features)
            return self._merged(rank)

    def _merged(self, rank: int | None) -> Summary:
        """Exact moments if all summaries are, else at most `rank` directions."""
        parts = self._parts()
        if rank is None or all_moments(parts):
            return merge_tree(parts, fanout=self.fanout)
        return merge_tree(parts, min(rank, parts[0].n_features), fanout=self.fanout)

    def _parts(self) -> list[Summary]:
        """The latest summaries, in the order of the children's names."""
        latest = (message.summary for _, message in sorted(self._messages.items()))
        parts = [summary for summary in latest if summary is not None]
        if not parts:
            raise ValueError("no child has contributed yet.")
        return parts

    def __repr__(self) -> str:
        children = self.children
        rows = sum(child.count for child in children.values())
        return f"Aggregator({len(children)} children, {rows:g} rows)"


def _largest_angle(before: Subspace, model: Subspace) -> float | None:
    """In radians; None if the models cannot be compared."""
    if not before.rank or not model.rank or before.n_features != model.n_features:
        return None
    return float(principal_angles(before, model).max())


def _check_private(summary: Summary, privacy: Privacy) -> None:
    """Reject a summary that is less private, or larger than clipped rows and noise can be."""
    certificate = summary.certificate
    if certificate is None:
        raise ValueError("the summary has no privacy certificate; fit with privacy=Privacy(...).")
    if not certificate.private:
        raise ValueError("its noise came from a seed, so it is not private; fit without a seed.")
    for name in ("epsilon", "delta"):
        stated, limit = getattr(certificate, name), getattr(privacy, name)
        if not stated <= limit:
            raise ValueError(f"its {name} is {stated:g}; at most {limit:g} is accepted.")
    if certificate.adjacency != privacy.adjacency:
        raise ValueError(f"its adjacency is {certificate.adjacency!r}, not {privacy.adjacency!r}.")
    releases, n_features = certificate.merged, summary.n_features
    if not releases <= summary.count:
        raise ValueError(f"{summary.count:g} rows cannot be in {releases} releases.")
    calibration = calibrate(privacy, n_features)
    if isinstance(summary, Subspace):  # noise in every direction that is kept
        noise = releases * n_features * calibration.edge(n_features)
    else:  # of the trace: six standard deviations
        noise = 6 * np.sqrt(releases * n_features) * calibration.sigma
    limit = privacy.bound**2 * (summary.count + noise)
    if summary.total > limit:
        raise ValueError(
            f"its total {summary.total:.4g} is more than {summary.count:g} rows within "
            f"bound={privacy.bound:g} and noise can have, {limit:.4g}."
        )
