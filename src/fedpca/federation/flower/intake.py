"""Intake: the scalings and sums of clients before their releases, checked as they come, each counted once."""

from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.membership import check_agreed_rows
from fedpca.federation.aggregator.message import Message


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
        self._rows: dict[tuple[str, int], float] = {}  # of clients that take private steps, by version
        self.begin()

    def begin(self) -> None:
        """A new exchange."""
        self.scalings: dict[str, Message] = {}
        self.sums: dict[str, Message] = {}
        self.sent_by: dict[str, set[int]] = {}

    @property
    def taken(self) -> dict[str, Message]:
        """All that was sent, by client."""
        return {**self.scalings, **self.sums}

    def check_signed(self, message: Message) -> None:
        """With a roster, refuse what is not from a member, an older version than known, or of too many rows.

        Releases are checked by the aggregator.
        """
        roster, child = self._aggregator.roster, message.child
        if roster is None:
            return
        roster.check_signature(message.signature, child)
        known = max(self._aggregator.versions.get(child, 0), self._newest.get(child, 0))
        if message.version < known:
            raise ValueError(
                f"rolled back: version {known} of {child!r:.80} is known, and this is version "
                f"{message.version}; send the newest."
            )
        check_agreed_rows(roster, message)

    def check_rows(self, n_rows: float) -> None:
        """Refuse as few or as many rows as a release may not have."""
        least, most = max(1, self._aggregator.limits.least_rows), self._aggregator.limits.max_rows
        if not least <= n_rows <= most:
            raise ValueError(
                f"its number of rows must be at least {least} and at most {most:g}, got {n_rows:g}."
            )

    def check_same_rows(self, message: Message) -> None:
        """Refuse another number of rows than in the steps before."""
        n_rows = self._rows.get((message.child, message.version), message.n_rows)
        if message.n_rows != n_rows:
            raise ValueError(f"n_rows must stay {n_rows}, got {message.n_rows}.")

    def note_rows(self, message: Message) -> None:
        """The number of rows of a client that takes a private step."""
        self._rows[message.child, message.version] = message.n_rows

    def add(self, taken: dict[str, Message], node: int, message: Message) -> None:
        """What a client says counts once, from however many nodes it came."""
        child = message.child
        nodes, known = self.sent_by.setdefault(child, set()), taken.get(child)
        is_newer = (
            self._aggregator.roster is not None and known is not None and message.version > known.version
        )
        if known is not None and nodes != {node} and not is_newer and known.encode() != message.encode():
            raise ValueError(f"node {min(nodes)} is {child!r} already; give each its own client-id.")
        taken[child] = message
        self._newest[child] = message.version
        nodes.add(node)
