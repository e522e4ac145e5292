"""Intake: the scalings and sums of clients before their releases, checked as they come, each counted once."""

from typing import TypeVar

from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.membership import check_declared
from fedpca.federation.flower.exchanges import OwnerScaling, OwnerSum
from fedpca.trust.envelope import Signature

_Owner = TypeVar("_Owner", OwnerScaling, OwnerSum)


class Intake:
    """What clients have sent in the exchange now.

    Args:
        aggregator: whose roster and limits hold for it, too.

    Attributes:
        scalings, sums: by client.
        sent_by: the nodes that these came from.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._newest: dict[str, int] = {}  # version of a client's scaling or sum in this run
        self._rows: dict[tuple[str, int], int] = {}  # of clients that take private steps, by version
        self.begin()

    def begin(self) -> None:
        """A new exchange."""
        self.scalings: dict[str, OwnerScaling] = {}
        self.sums: dict[str, OwnerSum] = {}
        self.sent_by: dict[str, set[int]] = {}

    @property
    def taken(self) -> dict[str, OwnerScaling | OwnerSum]:
        """All that was sent, by client."""
        return {**self.scalings, **self.sums}

    def check_signed(
        self, owner: OwnerScaling | OwnerSum, signature: Signature | None, n_rows: float
    ) -> None:
        """With a roster, refuse what is not from a member, an older version than known, or of too many rows.

        Releases are checked by the aggregator.
        """
        roster = self._aggregator.roster
        if roster is None:
            return
        roster.check_signature(signature, owner.child, f"the {owner.kind}")
        known = max(self._aggregator.versions.get(owner.child, 0), self._newest.get(owner.child, 0))
        if owner.version < known:
            raise ValueError(
                f"rolled back: version {known} of {owner.child!r:.80} is known, and this is version "
                f"{owner.version}; send the newest."
            )
        check_declared(roster, owner.child, n_rows)

    def check_rows(self, n_rows: float) -> None:
        """Refuse as few or as many rows as a release may not have."""
        least, most = max(1, self._aggregator.limits.least_rows), self._aggregator.limits.max_rows
        if not least <= n_rows <= most:
            raise ValueError(
                f"its number of rows must be at least {least} and at most {most:g}, got {n_rows:g}."
            )

    def check_same_rows(self, owner: OwnerSum) -> None:
        """Refuse another number of rows than in the steps before."""
        n_rows = self._rows.get((owner.child, owner.version), owner.own.n_rows)
        if owner.own.n_rows != n_rows:
            raise ValueError(f"n_rows must stay {n_rows}, got {owner.own.n_rows}.")

    def note_rows(self, owner: OwnerSum) -> None:
        """The number of rows of a client that takes a private step."""
        self._rows[owner.child, owner.version] = owner.own.n_rows

    def add(self, taken: dict[str, _Owner], node: int, owner: _Owner) -> None:
        """What a client says counts once, from however many nodes it came."""
        nodes = self.sent_by.setdefault(owner.child, set())
        known = taken.get(owner.child)
        is_newer = self._aggregator.roster is not None and known is not None and owner.version > known.version
        if known is not None and nodes != {node} and not is_newer and known.encode() != owner.encode():
            raise ValueError(f"node {min(nodes)} is {owner.child!r} already; give each its own client-id.")
        taken[owner.child] = owner
        self._newest[owner.child] = owner.version
        nodes.add(node)
