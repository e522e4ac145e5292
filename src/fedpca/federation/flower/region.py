"""Region: a federation that is itself a client of another, and sends what its own clients have merged."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedpca.errors import NodeError, SummaryRejected
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.flower.exchanges import Published, Reply
from fedpca.federation.flower.member import KEYS, Membership, is_secure
from fedpca.federation.flower.node import require_text
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.federation.flower.request import Request, check_name, config_error, public_reason
from fedpca.federation.message import Message
from fedpca.summaries import validation
from fedpca.trust import Roster

_KEYS = ("client-id", "region", *KEYS)
_QUORUM = 2  # of a folder without a run: one client's summary would leave as it is


@dataclass(frozen=True)
class Region:
    """A regional federation as a client of its parent.

    It has no rows and spends nothing. Its version is that of its store: it grows with every release that a
    regional run accepts.

    Attributes:
        client: the name of the region, as a client of its parent.
        folder: that of the regional runs; if these have a roster, all clients of the region are checked.
        membership: in the study of the parent, whose runs alone it answers, with signed replies; None answers
            any run.
    """

    client: str
    folder: Path
    membership: Membership | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """A region as Flower's node config describes it.

        >>> Region.from_config({"client-id": "the north", "region": "/srv/north"}).client
        'the north'
        """
        if unknown := sorted(set(config) - set(_KEYS)):
            raise NodeError(
                f"unknown key in the node config of a region: {', '.join(unknown)}; known are "
                f"{', '.join(_KEYS)}. A region has no rows or privacy settings of its own; its clients have."
            )
        client, folder = require_text(config, "client-id"), Path(require_text(config, "region"))
        try:
            membership = Membership.from_config(config, client)
        except (ValueError, OSError) as error:
            raise config_error(error) from error
        return cls(client, folder, membership)

    def reply(self, request: Request, published: Published | None = None) -> Reply:
        """The reply to a request: the release, whatever was published (see `Node.reply`)."""
        check_name(request, self.client)
        if self.membership is not None:
            self.membership.check(request, None)
        reply = Reply("release", self.release(request))
        return reply if self.membership is None else self.membership.sign(reply)

    def secure_reply(
        self, request: Request, board: Mapping[str, bytes], known: Collection[str]
    ) -> dict[str, bytes]:
        """No region takes part in the secure sums of its parent: its rows are those of others."""
        raise NodeError(
            "a region has no rows, and takes no part in secure sums; let its clients sum securely inside, "
            "and give the parent a roster without colluding."
        )

    def release(self, request: Request) -> bytes:
        """The merged summary of all clients so far, as an encoded message (see `Node.release`).

        Below the quorum of the regional runs it is a message without a summary: what the region sent before
        counts no more.
        """
        store, roster, last = (self.folder / name for name in ("store", "roster.toml", "summary.json"))
        if not store.is_dir():
            raise NodeError("the region has no store: set region to the folder of its runs on this machine.")
        agreed = Roster.load(roster) if roster.exists() else None
        settings = json.loads(last.read_bytes()) if last.exists() else {}
        secure = is_secure(agreed)
        aggregator = Aggregator(
            validation.integer(request["rank"], "rank", at_least=1),
            store=store,
            least_rows=settings.get("least_rows") or 0,
            roster=None if secure else agreed,  # nobody signs a sum over all
            robust=settings.get("robust"),
            max_share=settings.get("max_share"),
        )
        quorum = 1 if secure else settings.get("quorum", _QUORUM)
        if len(aggregator.children) < quorum:
            if not aggregator.versions:
                raise NodeError(f"no client of the region has contributed yet, and its quorum is {quorum}.")
            return Message(self.client, aggregator.version, None).encode()
        version, summary = aggregator.version, aggregator.summary()
        if summary.centered != bool(request["center"]):
            raise NodeError(
                f"the run requires center={bool(request['center'])}, but this region has "
                f"center={summary.centered}."
            )
        if (summary.scale is None) == bool(scale := request.get("scale", "")):
            raise NodeError(f"the run requires scale={scale!r}, but this region {_scaled(summary.scale)}.")
        if floor := PrivacyFloor.from_config(request):  # what the parent would reject is not sent
            try:
                Aggregator(privacy=floor.privacy).receive(self.client, version, summary)
            except SummaryRejected as error:  # about the merged certificate, which would have been sent
                raise NodeError(str(error)) from error
        return Message(self.client, version, summary).encode()

    def public_message(self, error: Exception) -> str:
        """What others may learn about an error: nothing of its clients, or of where they are kept."""
        return public_reason(error)


def _scaled(scale: object) -> str:
    return "has no scale" if scale is None else "has a scale"
