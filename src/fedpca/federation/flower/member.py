"""Membership: a node as a member of a study, which signs what it sends; and the roster of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedpca._typing import JSON
from fedpca.errors import NodeConfigError, NodeError
from fedpca.federation.flower.exchanges import Reply
from fedpca.federation.flower.request import NOTHING, Request
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.trust import Roster, Signer, SigningKey
from fedpca.trust.agreement import PROMISE, checked, of_privacy, of_rows, require_agreed

KEYS = ("key", "roster")
"""Of a node config: both, or neither."""

RUN = ("rank", "center", "scale")
"""Settings that a run always states; with the promise of private releases, if it requires any."""


@dataclass(frozen=True)
class Membership:
    """A node's key, and the roster that its owner has agreed on.

    Attributes:
        signer: of the node; what it signs names the roster.
    """

    signer: Signer

    @classmethod
    def from_config(cls, config: Mapping[str, object], client: str) -> Self | None:
        """That of a node config; None without a roster.

        Raises:
            NodeError, ValueError, OSError: the key or the roster cannot be used, or is of another client.
        """
        given = [name for name in KEYS if name in config]
        if not given:
            return None
        for name in KEYS:
            if not isinstance(config.get(name), str) or not config[name]:
                rule = f"a node with {given[0]} needs {' and '.join(KEYS)}, a file each"
                got = f"got {name}={config.get(name)!r:.80}; set both in the node config, or neither."
                raise NodeConfigError(f"{rule}, {got}", rule)
        signer = Roster.load(str(config["roster"])).signer(SigningKey.load(str(config["key"])))
        if signer.member.id != client:
            raise NodeError(
                f"client-id must be that of the key in the roster, {signer.member.id!r:.80}, got "
                f"{client!r:.80}; correct the node config."
            )
        return cls(signer)

    def check(self, request: Request) -> None:
        """Raise a NodeError, before anything is read or spent, for a run of anything else than was agreed on.

        Args:
            request: see `Node.reply`; `to_request` is part of it.
        """
        ours, study = self.signer.roster, request.get("study")
        if study is None:
            raise NodeError(
                f"this node takes part in study {ours.study!r:.80} alone, and the run has no roster; set "
                "roster in the run config."
            )
        if study != ours.study:
            raise NodeError(
                f"this node takes part in study {ours.study!r:.80} alone, and the run is of {study!r:.80}."
            )
        theirs = list(request["rosters"])
        if ours.hash not in theirs:
            older = theirs and theirs[-1] in ours.predecessors
            which = "older than that of this node" if older else "not one that follows that of this node"
            raise NodeError(f"the roster of the run is {which}; give both the newest roster.")
        if self.signer.member.key.text not in request["keys"]:
            raise NodeError(
                f"the roster of the run has no longer the key of {self.signer.member.id!r:.80}; get the "
                "newest roster, and a key that is in it."
            )
        check_settings(ours, request)

    def check_privacy(self, privacy: Privacy | None) -> None:
        """Raise a NodeError for a bound or mechanism that was not agreed on; a run limits the rest."""
        found = of_privacy(privacy)
        self._require({name: found[name] for name in ("mechanism", "bound")}, "correct the node config")

    def _require(self, found: JSON, remedy: str) -> None:
        settings, where = self.signer.roster.settings, f"the roster of study {self.signer.roster.study!r:.80}"
        require_agreed(settings, found, where, remedy, error=NodeError)

    def check_secure(self, request: Request, *, secure: bool) -> None:
        """Raise a NodeError for a run that does not sum as the roster states, or under another roster."""
        ours = self.signer.roster
        if is_secure(ours) != secure:
            agreed, run = (
                ("secure sums", "is without them") if is_secure(ours) else ("no secure sums", "has them")
            )
            raise NodeError(
                f"the members of study {ours.study!r:.80} have agreed on {agreed}, and the run {run}; "
                "nothing was sent. Give this node and the run the same roster."
            )
        if secure and request["rosters"][-1] != ours.hash:
            raise NodeError(
                "secure sums need the same roster everywhere, and that of the run is newer than that of this "
                "node; give this node the newest roster."
            )

    def check_features(self, rows: RowReader) -> None:
        """Raise a NodeError for rows of other features than the roster states."""
        remedy = "select them with columns in the node config"
        self._require(of_rows(rows.n_features, rows.feature_names), remedy)

    def sign(self, reply: Reply) -> Reply:
        """The reply with the member's signature; "waits" says nothing that would need one."""
        if reply.kind == "waits":
            return reply
        return reply._replace(contents=self.signer.sign(reply.contents))


def is_secure(roster: Roster | None) -> bool:
    """Whether members have agreed on secure sums."""
    return roster is not None and "colluding" in roster.settings


def to_request(roster: Roster) -> JSON:
    """What a request tells every node about the roster of the run."""
    return {
        "study": roster.study,
        "rosters": [*roster.predecessors, roster.hash],
        "keys": [member.key.text for member in roster.members.values()],
    }


def run_settings(request: Mapping[str, Any]) -> JSON:
    """What a run config or a request states of what all share; a NodeError, as all of it is public."""
    if missing := [name for name in RUN if name not in request]:
        raise NodeError(f"the run must state {', '.join(RUN)}, and {missing[0]} is missing.")
    names = RUN if request.get("epsilon", NOTHING) == NOTHING else (*RUN, *PROMISE)
    try:
        return checked({name: request[name] for name in names if name in request}, "the run")
    except (TypeError, ValueError) as error:
        raise NodeError(str(error)) from error


def check_settings(roster: Roster, request: Mapping[str, object]) -> None:
    """Raise a NodeError for a run with other settings than its roster states."""
    found = {name: request.get(name) for name in (*RUN, *PROMISE) if name != "mechanism"}
    where = f"the roster of study {roster.study!r:.80}"
    remedy = "correct the run config, or agree on another roster"
    require_agreed(roster.settings, found, where, remedy, error=NodeError)


def checked_successor(roster: Roster, kept: Path) -> Roster:
    """The roster of a run, if it is that of the runs before it in its folder, or follows it.

    Args:
        roster: of this run.
        kept: where that of the last run is, if there was one.
    """
    if not kept.exists():
        return roster
    before = Roster.load(kept)
    if before.study != roster.study:
        raise ValueError(
            f"{kept.parent} is of study {before.study!r:.80}, and the roster of {roster.study!r:.80}; choose "
            "another folder."
        )
    if before.hash not in (*roster.predecessors, roster.hash):
        raise ValueError(
            f"the roster ({roster.hash[:19]}...) does not follow that of the run before it in this folder "
            f"({before.hash[:19]}...); get the newest roster."
        )
    return roster
