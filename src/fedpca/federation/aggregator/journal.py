"""Journal: what happened to children and the model, in the history of a store and in the log."""

import logging

from fedpca._util.text import sanitize
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.store import ChildEvent, ModelEvent, State, Store
from fedpca.metrics import principal_angles
from fedpca.summaries.subspace import Subspace

_log = logging.getLogger("fedpca.federation")
_REMEMBERED = 10_000  # rejections that are not logged again when they are repeated


class Journal:
    """The events of an aggregator.

    Args:
        store: keeps the history.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rejections: set[tuple[str, int, str]] = set()

    def accepted(self, child: str, version: int, count: float, *, warning: str, left_out: str) -> None:
        """A summary is in the model."""
        event = ChildEvent(
            child=child, version=version, what="accepted", count=count, warning=warning, left_out=left_out
        )
        self._store.log(event)
        _log.info("accepted %r, version %d: %g rows", sanitize(child, 100), version, count)
        if left_out:
            _log.info("left out of %r: %s", sanitize(child, 100), left_out)
        if warning:
            _log.warning("%r: %s", sanitize(child, 100), warning)

    def rejected(self, child: str, version: int, reason: str) -> None:
        """A message was refused; the same again, as of a file that is collected again, is not logged."""
        if (child, version, reason) in self._rejections:
            return
        if len(self._rejections) >= _REMEMBERED:
            self._rejections.clear()
        self._rejections.add((child, version, reason))
        self._store.log(ChildEvent(child=child, version=version, what="rejected", reason=reason))
        _log.warning("rejected %r, version %d: %s", sanitize(child, 100), version, reason)

    def withdrawn(self, child: str, version: int, count: float) -> None:
        """A child was removed from the model."""
        self._store.log(ChildEvent(child=child, version=version, what="withdrawn", count=count))
        _log.info("withdrew %r: %g rows", sanitize(child, 100), count)

    def quarantine(self, message: Message, reason: str, kept: State) -> None:
        """Set a child aside in the store, which keeps a state without its summary."""
        count = 0.0 if message.summary is None else message.summary.count
        event = ChildEvent(
            child=message.child, version=message.version, what="quarantined", count=count, reason=reason
        )
        self._store.quarantine(event, kept)
        _log.error("quarantined %r, version %d: %s", sanitize(message.child, 100), message.version, reason)

    def remind_of_quarantine(self) -> None:
        """Who was set aside before."""
        for name, reason in self._store.quarantined().items():
            _log.warning("quarantined: %r: %s", sanitize(name, 100), reason)

    def has_model(self, version: int) -> bool:
        """Whether the model of a version is in the history."""
        return any(event.what == "model" and event.version == version for event in self._store.history())

    def recorded(
        self, model: Subspace, version: int, n_children: int, *, before: Subspace | None, warning: str
    ) -> None:
        """There is a new model.

        Args:
            before: the last one that was recorded, if it is known.
        """
        event = ModelEvent(
            version=version,
            count=model.count,
            children=n_children,
            explained=float(model.explained_variance_ratio.sum()),
            angle=None if before is None else _largest_angle(before, model),
            warning=warning,
        )
        self._store.log(event)
        if warning:
            _log.warning("%s", warning)


def _largest_angle(before: Subspace, model: Subspace) -> float | None:
    """In radians; None if the models cannot be compared."""
    if not before.rank or not model.rank or before.n_features != model.n_features:
        return None
    return float(principal_angles(before, model).max())
