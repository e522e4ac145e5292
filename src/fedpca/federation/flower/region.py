"""Region: a federation that is itself a client of another, and says what its own clients say together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedpca.errors import NodeError
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.flower.node import text_of
from fedpca.privacy import Privacy
from fedpca.summaries import model_file, validation

_KEYS = ("client-id", "region")


@dataclass(frozen=True)
class Region:
    """A regional federation as a client of its parent.

    It has no rows and spends nothing. Its version is that of its store: it grows with every release that a
    regional run takes.

    Attributes:
        client: its name, by which the parent knows it.
        folder: that of the regional runs.
    """

    client: str
    folder: Path

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A region as Flower's node config describes it.

        >>> Region.from_config({"client-id": "the north", "region": "/srv/north"}).client
        'the north'
        """
        if unknown := sorted(set(config) - set(_KEYS)):
            raise NodeError(
                f"a region has no {', '.join(unknown)}, only {' and '.join(_KEYS)}: its clients have the "
                "rows, and promise what there is to promise."
            )
        return cls(text_of(config, "client-id"), Path(text_of(config, "region")))

    def release(self, ask: Mapping[str, Any]) -> bytes:
        """What this region says when asked (see `Node.release`): what its clients have said so far."""
        store = self.folder / "store"
        if not store.is_dir():
            raise NodeError("its region has no store: name the folder of a regional run on this machine.")
        aggregator = Aggregator(validation.integer(ask["rank"], "rank", at_least=1), store=str(store))
        if not aggregator.children:
            raise NodeError("no client of its region has contributed yet.")
        version, summary = aggregator.version, aggregator.summary()
        if summary.centered != bool(ask["center"]):
            raise NodeError(
                f"center must be {summary.centered}, as in its region, got {bool(ask['center'])}."
            )
        if "epsilon" in ask:  # what the parent would refuse does not leave
            privacy = Privacy(ask["epsilon"], ask["delta"], ask["bound"], adjacency=ask["adjacency"])
            Aggregator(privacy=privacy).receive(self.client, version, summary)
        arrays, facts = summary.arrays, summary.metadata
        return model_file.encode(summary.kind, arrays, facts | {"child": self.client, "version": version})

    def told(self, error: Exception) -> str:
        """What others may know of an error: all of it, for there are no rows here."""
        return str(error)
