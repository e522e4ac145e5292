"""Membership: a node as a member of a study, which signs what it sends; and the roster of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedpca._typing import JSON
from fedpca.errors import NodeConfigError, NodeError
from fedpca.federation.aggregator.membership import other_features
from fedpca.federation.flower.exchanges import Reply
from fedpca.federation.flower.request import Request
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.trust import Roster, Signer, SigningKey

KEYS = ("key", "roster")
"""Of a node config: both, or neither."""

_IN_REQUEST = ("rank", "center", "scale", "epsilon", "delta", "bound", "adjacency")


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

    def check(self, request: Request, privacy: Privacy | None) -> None:
        """Raise a NodeError, before anything is read or spent, for a run of anything else than was agreed on.

        Args:
            request: see `Node.reply`; `to_request` is part of it.
            privacy: of the node's rows.
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
        for name in ("mechanism", "bound"):
            stated, mine = ours.settings.get(name), getattr(privacy, name, None)
            if stated is not None and mine != stated:
                raise NodeError(
                    f"{name} must be {stated!r:.80}, as the roster states, got {mine!r}; correct the node "
                    "config."
                )

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
        roster = self.signer.roster
        match other_features(roster, rows.n_features, rows.feature_names):
            case "features":
                raise NodeError(
                    f"the roster states {len(roster.settings['features'])} features by name, and the rows "
                    f"have {rows.n_features}, or others, or in another order; select them with columns in "
                    "the node config."
                )
            case "n_features":
                raise NodeError(
                    f"the roster states {roster.settings['n_features']} features, and the rows have "
                    f"{rows.n_features}; select them with columns in the node config."
                )

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


def check_settings(roster: Roster, request: Mapping[str, object]) -> None:
    """Raise a NodeError for a run with other settings than its roster states."""
    for name in _IN_REQUEST:
        if name not in roster.settings:
            continue
        stated, found = roster.settings[name], request.get(name)
        if name == "scale" and stated == "none":
            stated = ""
        if name == "bound" and isinstance(stated, str):
            stated = 0.0  # found privately
        if found != stated:
            raise NodeError(
                f"{name} must be {stated!r:.80} in a run of study {roster.study!r:.80}, as its "
                f"roster states, got {found!r:.80}; correct the run config, or agree on another roster."
            )


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
