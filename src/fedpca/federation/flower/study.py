"""Study: the exchanges of a run, from the server's side.

Most runs have one exchange: nodes send releases. If the scale of many features is wanted, nodes send their
`Scaling` first, and get the scale of all. If nodes find scale, center or bound privately, they send noisy
sums, one exchange per step, and get what was pooled so far; after the releases they evaluate the model.

Every exchange ends with the nodes that replied in time, and goes on with them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.files import atomic_write
from fedpca._util.text import sanitize, utc_timestamp
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.flower.exchanges import OwnerScaling, OwnerSum, Published
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.federation.flower.round import (
    CONTRIBUTING,
    NodeReply,
    Outcome,
    Round,
    array_record,
    failure,
    is_lost,
)
from fedpca.federation.membership import check_declared
from fedpca.federation.message import Message, require_summary
from fedpca.privacy import Privacy, PrivateTracker, StepSum
from fedpca.privacy.steps import check_sum, count_rows
from fedpca.summaries import model_file, validation
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import ArrayRecord, ConfigRecord, RecordDict  # noqa: E402
from flwr.app import Message as FlowerMessage  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

_log = logging.getLogger("fedpca.federation.flower.server_app")
_KINDS = ("release", "scaling", "sum", "waits")
_MAY_CHANGE = ("rank", "rosters", "keys")  # from one run in a folder to the next
_LEAST_EVALUATED = 0.5  # of the rows of a model

_Features = tuple[int, tuple[str, ...] | None]
_Owner = TypeVar("_Owner", OwnerScaling, OwnerSum)


class Study:
    """The exchanges of one run.

    Args:
        grid: Flower's.
        aggregator: receives every release as soon as it arrives.
        request: see `Node.reply`.
        folder: keeps what was published, for later runs: nodes that join then use it, too.
        deadline: seconds from now, after which the run ends. An exchange that others follow takes half of
            what is left, at most.
        expect: end an exchange as soon as this many nodes have contributed; 0 waits. Nodes that fail or are
            rejected do not count: one of them must not end it before the others have replied.
        quorum: fewest nodes to begin private steps, or to find a scale.
        retries: how often the request to a node that crashed or was lost is repeated.
        max_bytes: larger replies are rejected before they are parsed.
        stable_nodes: whether a node has the same number in every run, so that a client belongs to the node
            that used its name first.

    Attributes:
        replies: the final reply of every node, in order of arrival.
        no_reply: nodes that did not reply to the last request for releases.
        problem: why exchanges ended early, or "".
        evaluation: how good the model is, for summary.json; None if it was not evaluated.
    """

    def __init__(
        self,
        grid: Grid,
        aggregator: Aggregator,
        request: Mapping[str, Any],
        *,
        folder: Path,
        deadline: float,
        expect: int = 0,
        quorum: int = 1,
        retries: int = 2,
        max_bytes: int = 2**30,
        stable_nodes: bool = True,
    ) -> None:
        self.replies: dict[int, NodeReply] = {}
        self.no_reply: list[int] = []
        self.problem = ""
        self.evaluation: JSON | None = None
        self._grid = grid
        self._aggregator = aggregator
        self._request = dict(request)
        self._file = folder / "published.safetensors"
        self._end = time.monotonic() + deadline
        self._expect = expect
        self._quorum = quorum
        self._retries = retries
        self._max_bytes = max_bytes
        self._stable_nodes = stable_nodes
        self._final: set[int] = set()  # nodes that get no further request
        self._node_of: dict[str, int] = {}  # which node a client's release came from first
        self._client_of: dict[int, str] = {}  # whose release came from a node
        self._unrecorded = 0  # releases since the model was recorded
        self._next_record = 0.0  # not before this time
        self._began = 0.0  # the exchange now
        self._awaited: dict[str, set[int]] = {}  # whose scaling or sum the exchange before it took
        self._scalings: dict[str, OwnerScaling] = {}  # of the exchange now, by client
        self._sums: dict[str, OwnerSum] = {}
        self._sent_by: dict[str, set[int]] = {}  # the nodes that these came from
        self._newest: dict[str, int] = {}  # version of a client's scaling or sum in this run
        self._rows: dict[tuple[str, int], int] = {}  # of clients that take private steps, by version
        self._published = self._load()
        self._features: _Features | None = None
        self._tracker: PrivateTracker | None = None  # takes part in no step: it knows which comes next
        if self._published.sums:
            n_features, names = self._published.facts["features"]
            self._begin_steps((n_features, None if names is None else tuple(names)))

    # --- what was published ---

    @property
    def _settings(self) -> JSON:
        """What scale and private steps depend on."""
        return {name: value for name, value in self._request.items() if name not in _MAY_CHANGE}

    def _load(self) -> Published:
        if not self._file.exists():
            return Published(facts={"settings": self._settings, "clients": []})
        published = Published.decode(self._file.read_bytes(), self._file)
        if (before := published.facts.get("settings")) != self._settings:
            raise ValueError(
                f"{self._file} is of runs with {before}, and this one has {self._settings}; choose another "
                "folder, or delete the file to begin again, with new versions of all nodes."
            )
        if len(published.sums) == 1:  # rows were counted, and nothing was spent: whoever is there now begins
            return replace(published, sums=(), rank=0)
        return published

    def _publish(self, published: Published) -> None:
        """Written down before any node gets it: a later run must not publish anything else."""
        with atomic_write(self._file, owner_only=True) as temporary:
            temporary.write_bytes(published.encode())
        self._published = published

    # --- exchanges ---

    def run(self) -> None:
        """All exchanges up to the releases."""
        while not self.problem:
            self._began, self._scalings, self._sums, self._sent_by = time.monotonic(), {}, {}, {}
            current = self._round(self._receive, self._end_of_exchange, self._is_enough, self._published)
            try:
                current.run()
            finally:
                self.replies |= current.replies
                self.no_reply = current.no_reply
            try:
                if not self._conclude():
                    return
            except ValueError as error:  # public: about numbers of rows and sums
                self.problem = sanitize(str(error), 500)

    def _round(
        self,
        receive: Callable[[int, FlowerMessage | Exception], NodeReply],
        end: Callable[[], float],
        enough: Callable[[Mapping[int, NodeReply]], bool],
        published: Published,
        only: Collection[int] | None = None,
    ) -> Round:
        content = RecordDict({"request": ConfigRecord(self._request)})
        if not published.is_empty:
            content["published"] = array_record({"message": replace(published, facts={}).encode()})

        def to_node(node: int) -> RecordDict | None:
            return content if (node not in self._final if only is None else node in only) else None

        return Round(self._grid, to_node, receive, end=end, enough=enough, retries=self._retries)

    @property
    def _will_evaluate(self) -> bool:
        return self._tracker is not None and self._tracker.is_prepared and self._tracker.can_evaluate

    @property
    def _takes_steps(self) -> bool:
        return bool(self._scalings or self._sums) or (
            self._tracker is not None and not self._tracker.is_prepared
        )

    def _end_of_exchange(self) -> float:
        """Half of what was left when it began, if another exchange will follow."""
        if self._takes_steps or self._will_evaluate:
            return self._began + (self._end - self._began) / 2
        return self._end

    def _is_enough(self, replies: Mapping[int, NodeReply]) -> bool:
        """Clients count, not nodes: one that repeats what another said must not end an exchange."""
        if 0 < self._expect <= len(self._node_of.keys() | self._taken.keys()):
            return True
        return bool(self._takes_steps and self._awaited) and all(
            client in self._taken or nodes <= replies.keys() for client, nodes in self._awaited.items()
        )

    @property
    def _taken(self) -> dict[str, OwnerScaling | OwnerSum]:
        return {**self._scalings, **self._sums}

    def _conclude(self) -> bool:
        """Publish what an exchange before the releases has found, if there was one."""
        taken = self._taken
        first = self._published.is_empty
        stuck = ""
        if first and 0 < len(taken) < self._quorum:
            stuck = (
                f"{len(taken)} of {self._quorum} nodes were there to begin with; nothing was spent. Run "
                "again when more have joined."
            )
        elif not taken and self._tracker is not None and not self._tracker.is_prepared:
            stuck = "no node that began the private steps replied in time; run again when they are there."
        if stuck and not any(reply.what in CONTRIBUTING for reply in self.replies.values()):
            self.problem = stuck
        if stuck or not taken:
            return False
        published = self._published
        if self._scalings:
            self._reject_others(self._scalings, self._features_of_most(self._scalings))
            merged = Scaling.merge(each.scaling for each in self._scalings.values())
            published = replace(published, scale=merged.scale(self._request["scale"]))
        if self._sums:
            if self._tracker is None:
                features = self._features_of_most(self._sums)
                self._reject_others(self._sums, features)
                self._begin_steps(features)
                published = replace(published, rank=self._request["rank"])
            pooled = StepSum.pooled([each.own for each in self._sums.values()])
            assert self._tracker is not None
            self._tracker.replay(pooled, paid=False)
            published = published.with_sum(pooled)
            _log.info("fedpca: private step %r of %d nodes", pooled.step, len(self._sums))
        if first:
            published = replace(
                published,
                facts=published.facts
                | {
                    "features": self._features,
                    "clients": sorted(self._taken),
                },
            )
        self._awaited = {client: self._sent_by[client] for client in self._taken}
        self._publish(published)
        return True

    def _begin_steps(self, features: _Features) -> None:
        floor = PrivacyFloor.from_config(self._request)
        assert floor is not None
        self._features = features
        n_features, names = features
        rank = min(self._published.rank or self._request["rank"], n_features)
        privacy: Privacy = replace(floor.privacy, center="private" if self._request["center"] else None)
        self._tracker = PrivateTracker(
            n_features,
            FixedRank(rank),
            privacy,
            scale="std" if self._request["scale"] else None,
            feature_names=names,
        )
        for pooled in self._published.sums:
            self._tracker.replay(pooled, paid=False)

    def _features_of_most(self, taken: Mapping[str, OwnerScaling | OwnerSum]) -> _Features:
        expected = self._aggregator.expected
        counts = Counter(
            each.features
            for each in taken.values()
            if expected is None or each.features[0] == expected.n_features
        )
        if not counts:
            raise ValueError("no node has the number of features of the run; correct features.")
        return counts.most_common(1)[0][0]

    def _reject_others(self, taken: dict[str, _Owner], features: _Features) -> None:
        """Go on without clients of other features than most have."""
        for client in list(taken):
            if reason := _difference(features, taken[client].features):
                del taken[client]
                for node in self._sent_by[client]:
                    self.replies[node] = replace(self.replies[node], what="rejected", reason=reason)
                    self._final.add(node)

    # --- replies ---

    def _receive(self, node: int, message: FlowerMessage | Exception) -> NodeReply:
        """Take what a node sent. Anyone may have sent it: nothing in it may end the run."""
        client, reason = "", ""
        what: Outcome = "failed"
        try:
            if failed := failure(message):
                client, reason = failed
            else:
                assert not isinstance(message, Exception)
                what = "rejected"
                kind, contents = self._contents(message)
                if kind == "waits":
                    client, what = contents[:1000].decode(), "waiting"
                    reason = "a private step is taken without it."
                else:
                    decoded = model_file.decode(contents, f"the {kind}")
                    client = str(decoded[2].get("child", ""))  # as it claims, whatever else is wrong
                    what, reason = self._take(node, kind, contents, decoded)
        except Exception as error:
            reason = str(error) or type(error).__name__
        reply = NodeReply(node, sanitize(client, 100), what, sanitize(reason, 500), utc_timestamp())
        if not is_lost(message) and what not in ("taken", "waiting"):
            self._final.add(node)
        self._unrecorded += what == "accepted"
        self._record_model()
        return reply

    def _take(
        self, node: int, kind: str, contents: bytes, decoded: model_file.Contents
    ) -> tuple[Outcome, str]:
        if kind == "scaling":
            scaling = OwnerScaling.from_contents(*decoded, "the scaling")
            self._check_signed(scaling, contents, float(scaling.scaling.observed.max()))
            if not self._request["scale"] or self._published.scale is not None:
                raise ValueError("no scaling was requested.")
            self._check_rows(float(scaling.scaling.observed.max()))
            self._add(self._scalings, node, scaling)
            return "taken", "its scaling, but no release yet."
        if kind == "sum":
            owner = OwnerSum.from_contents(*decoded, "the sum")
            self._check_signed(owner, contents, owner.own.n_rows)
            self._check_sum(owner)
            self._add(self._sums, node, owner)
            return "taken", f"its sum of {owner.own.step!r}, but no release yet."
        return self._take_release(node, Message.from_contents(*decoded, "the release"), contents)

    def _check_signed(self, owner: OwnerScaling | OwnerSum, contents: bytes, n_rows: float) -> None:
        """With a roster, refuse what is not from a member, an older version than known, or of too many rows.

        Releases are checked by the aggregator.
        """
        roster = self._aggregator.roster
        if roster is None:
            return
        roster.check(contents, owner.child, f"the {owner.kind}")
        known = max(self._aggregator.versions.get(owner.child, 0), self._newest.get(owner.child, 0))
        if owner.version < known:
            raise ValueError(
                f"rolled back: version {known} of {owner.child!r:.80} is known, and this is version "
                f"{owner.version}; send the newest."
            )
        check_declared(roster, owner.child, n_rows)

    def _add(self, taken: dict[str, _Owner], node: int, owner: _Owner) -> None:
        """What a client says counts once, from however many nodes it came."""
        nodes = self._sent_by.setdefault(owner.child, set())
        known = taken.get(owner.child)
        is_newer = self._aggregator.roster is not None and known is not None and owner.version > known.version
        if known is not None and nodes != {node} and not is_newer and known.encode() != owner.encode():
            raise ValueError(f"node {min(nodes)} is {owner.child!r} already; give each its own client-id.")
        taken[owner.child] = owner
        self._newest[owner.child] = owner.version
        nodes.add(node)

    def _take_release(self, node: int, release: Message, contents: bytes) -> tuple[Outcome, str]:
        """A name belongs to a key, with a roster, from whatever node it comes; and to a node without one."""
        client, has_roster = release.child, self._aggregator.roster is not None
        if self._node_of.get(client, node) != node and not has_roster:
            raise ValueError(
                f"node {self._node_of[client]} is {client!r} already; give each its own client-id."
            )
        is_new = self._aggregator.receive(
            client,
            release.version,
            require_summary(release.summary),
            sender=str(node) if self._stable_nodes and not has_roster else "",
            signed=contents if has_roster else b"",
        )
        self._node_of.setdefault(client, node)
        self._client_of[node] = client
        latest = self._aggregator.versions[client]
        if is_new:
            return "accepted", self._missed(client)
        if release.version == latest:
            return "unchanged", ""
        return "outdated", (
            f"version {release.version} is older than version {latest} in the store; increase "
            "version in its node config."
        )

    def _missed(self, client: str) -> str:
        """What an accepted client took no part in."""
        clients = self._published.facts.get("clients", [])
        if client in clients or (self._published.scale is None and not self._published.sums):
            return ""
        found = "the scale" if self._published.scale is not None else "what was found privately"
        return f"it joined later: {found} is that of the rows of others."

    def _check_rows(self, n_rows: float) -> None:
        least, most = max(1, self._aggregator.least_rows), self._aggregator.max_rows
        if not least <= n_rows <= most:
            raise ValueError(
                f"its number of rows must be at least {least} and at most {most:g}, got {n_rows:g}."
            )

    def _check_sum(self, owner: OwnerSum) -> None:
        own = owner.own
        self._check_rows(own.n_rows)
        n_rows = self._rows.get((owner.child, owner.version), own.n_rows)
        if own.n_rows != n_rows:
            raise ValueError(f"n_rows must stay {n_rows}, got {own.n_rows}.")
        if PrivacyFloor.from_config(self._request) is None:
            raise ValueError("no sum was requested: the run states no epsilon.")
        if self._tracker is None:
            check_sum(own, count_rows(), [])
        else:
            assert self._features is not None
            if reason := _difference(self._features, owner.features):
                raise ValueError(reason)
            self._tracker.check_sum(own)
        self._rows[owner.child, owner.version] = own.n_rows

    def _contents(self, message: FlowerMessage) -> tuple[str, bytes]:
        kind = next((kind for kind in _KINDS if kind in message.content), "release")
        record = message.content.get(kind)
        if not isinstance(record, ArrayRecord):
            raise TypeError(f"a {kind} must be an ArrayRecord, got {type(record).__name__}.")
        if "message" not in record:
            raise ValueError(f"a {kind} must have an array 'message', and this one has none.")
        contents: bytes = record["message"].data
        if len(contents) > self._max_bytes:
            raise ValueError(f"a {kind} of {len(contents)} bytes is larger than max-bytes={self._max_bytes}.")
        return kind, contents

    def _record_model(self) -> None:
        """Record the model when a quarter of the children are new since the last time, to bound merge cost.

        Where merges are slow, they take a tenth of the time at most.
        """
        now = time.monotonic()
        many = 4 * self._unrecorded >= len(self._aggregator.children)
        if self._unrecorded and many and now >= self._next_record:
            self._aggregator.record()
            self._unrecorded, self._next_record = 0, now + 10 * (time.monotonic() - now)

    # --- after the releases ---

    def evaluated(self, model: Subspace) -> Subspace:
        """The model with a measure of how good it is, by the nodes that released in this run."""
        if not self._will_evaluate or not model.rank or model.certificate is None:
            return model
        tracker = self._tracker
        assert tracker is not None
        nodes = {node for node, reply in self.replies.items() if reply.what in ("accepted", "unchanged")}
        clients = {self._client_of[node] for node in nodes}
        sums: dict[str, OwnerSum] = {}

        def receive(node: int, message: FlowerMessage | Exception) -> NodeReply:
            reply = self._receive_evaluation(node, message, model, sums)
            return replace(reply, client=self.replies[node].client)

        current = self._round(
            receive,
            lambda: self._end,
            lambda replies: clients == sums.keys() or nodes <= replies.keys(),
            replace(self._published, model=model),
            only=nodes,
        )
        current.run()
        missing = {
            self.replies[node].client: current.replies[node].reason if node in current.replies else "no reply"
            for node in sorted(nodes)
            if self._client_of[node] not in sums
        }
        n_rows = sum(each.own.n_rows for each in sums.values())
        self.evaluation = {"rows": n_rows, "missing": missing}
        if n_rows < _LEAST_EVALUATED * model.count:
            return model
        found = tracker.evaluation(StepSum.pooled([each.own for each in sums.values()]), model)
        factor = model.count / n_rows  # what nodes are missing is taken to be alike
        found = replace(
            found,
            energies=tuple(factor * energy for energy in found.energies),
            rest=factor * found.rest,
            sd=factor * found.sd,
        )
        explained, low, high = found.explained()
        self.evaluation |= {"explained": explained, "interval": [low, high], "beyond": found.beyond}
        return replace(model, certificate=model.certificate.evaluated(found)).evaluated(found)

    def _receive_evaluation(
        self, node: int, message: FlowerMessage | Exception, model: Subspace, sums: dict[str, OwnerSum]
    ) -> NodeReply:
        what: Outcome = "failed"
        try:
            if failed := failure(message):
                raise ValueError(failed[1])
            assert not isinstance(message, Exception)
            what = "rejected"
            kind, contents = self._contents(message)
            owner = OwnerSum.from_contents(*model_file.decode(contents, f"the {kind}"), "the sum")
            client = self._client_of[node]
            if owner.child != client:
                raise ValueError(f"its sum must be that of {client!r:.80}, got {owner.child!r:.80}.")
            self._check_signed(owner, contents, owner.own.n_rows)
            n_rows = self._aggregator.children[client].count
            if owner.own.n_rows != n_rows:
                raise ValueError(f"n_rows must be that of its release, {n_rows:g}, got {owner.own.n_rows}.")
            assert self._tracker is not None
            self._tracker.check_evaluation_sum(owner.own, model)
            sums[client], what, reason = owner, "taken", "its evaluation."
        except Exception as error:
            reason = str(error) or type(error).__name__
        return NodeReply(node, "", what, sanitize(reason, 500), utc_timestamp())


def _difference(ours: _Features, theirs: _Features) -> str:
    """Why owners with these features cannot be added up, or ""."""
    if ours[0] != theirs[0]:
        return f"all must have the same features, got {ours[0]} and {theirs[0]}."
    try:
        validation.same_names(ours[1], theirs[1])
    except ValueError as error:
        return str(error)
    return ""
