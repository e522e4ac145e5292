"""Region: a federation that is itself a client of another, and sends what its own clients have merged."""

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Self

from fedpca._typing import JSON
from fedpca._util.files import atomic_write
from fedpca._util.locks import file_lock
from fedpca.errors import NodeError, SummaryRejected
from fedpca.federation.aggregator.admission import Limits
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.robust import Robust
from fedpca.federation.flower.exchanges import Published, Reply
from fedpca.federation.flower.form import check_form
from fedpca.federation.flower.member import KEYS, Membership, is_secure, run_settings
from fedpca.federation.flower.node import require_text
from fedpca.federation.flower.request import Request, check_name, config_error, public_reason
from fedpca.privacy import Privacy
from fedpca.summaries import validation
from fedpca.summaries.summary import Summary
from fedpca.trust import Roster

_KEYS = ("client-id", "region", *KEYS)
_SENT = "sent.json"  # the version that was sent last, and of what
_QUORUM = 2  # of a folder without a run: one client's summary would leave as it is


@dataclass(frozen=True)
class Region:
    """A regional federation as a client of its parent.

    It has no rows and spends nothing. Its version is that of its store, or larger: it grows with
    everything that makes it send something else, such as a release that a regional run accepted, other
    settings of such a run, or more components that its parent asks for.

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
            self.membership.check(request)
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
        if not self.folder.is_dir():
            raise NodeError("the region has no folder: set region to the folder of its runs on this machine.")
        with file_lock(self.folder / _SENT) as kept:  # until it is read: what is sent later is newer
            version, summary = self._merged(request)
            return Message(self.client, self._version(kept, version, summary), summary).encode()

    def _version(self, kept: FileIO, version: int, summary: Summary | None) -> int:
        """That of the store, unless something else was sent under it: a parent refuses what is not newer."""
        digest = hashlib.sha256(Message(self.client, 0, summary).encode()).hexdigest()
        last, known = -1, ""
        if contents := kept.readall():
            try:
                sent: JSON = json.loads(contents)
                last, known = validation.integer(sent["version"], "version", at_least=0), sent["sha256"]
            except (ValueError, TypeError, KeyError, RecursionError):  # torn: what was sent is not known
                last = time.time_ns() // 1_000_000  # above it, as versions of stores are of the clock
        if known == digest:
            return last
        version = max(version, last + 1)
        with atomic_write(self.folder / _SENT, owner_only=True) as temporary:
            temporary.write_text(json.dumps({"version": version, "sha256": digest}))
        return version

    def _merged(self, request: Request) -> tuple[int, Summary | None]:
        """The version of the store, and what is to be sent; None below the quorum."""
        run = run_settings(request)
        store, roster, last = (self.folder / name for name in ("store", "roster.toml", "summary.json"))
        if not store.is_dir():
            raise NodeError("the region has no store: set region to the folder of its runs on this machine.")
        agreed = Roster.load(roster) if roster.exists() else None
        try:
            settings = json.loads(last.read_bytes()) if last.exists() else {}
            quorum = validation.integer(settings.get("quorum", _QUORUM), "quorum", at_least=1)
            limits = Limits(
                settings.get("least_rows", Limits.least_rows),
                settings.get("max_rows") or Limits.max_rows,
                settings.get("max_rms") or Limits.max_rms,
            )
            robust = Robust.of(settings.get("robust"), settings.get("max_share"))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise NodeError(
                "the last run of the region did not begin: correct its run config, and run again."
            ) from error
        secure = is_secure(agreed)
        merged = Aggregator.merged_in(
            store,
            run["rank"],
            limits=limits,
            roster=None if secure else agreed,  # nobody signs a sum over all
            robust=robust,
        )
        quorum = 1 if secure else quorum
        version, summary = merged.version, merged.summary
        if summary is None or merged.n_children < quorum:
            if not merged.n_known:
                raise NodeError(f"no client of the region has contributed yet, and its quorum is {quorum}.")
            return version, None
        check_form(run, summary)
        if privacy := Privacy.agreed(run):  # what the parent would reject is not sent
            try:
                Aggregator(privacy=privacy).receive(self.client, version, summary)
            except SummaryRejected as error:  # about the merged certificate, which would have been sent
                raise NodeError(str(error)) from error
        return version, summary

    def public_message(self, error: Exception) -> str:
        """What others may learn about an error: nothing of its clients, or of where they are kept."""
        return public_reason(error)
