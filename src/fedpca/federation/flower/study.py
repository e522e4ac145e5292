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
from typing import Any

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.files import atomic_write
from fedpca._util.text import sanitize
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.message import Message, require_summary
from fedpca.federation.aggregator.owner_sum import Features, OwnerSum
from fedpca.federation.flower.evaluation_round import EvaluationRound
from fedpca.federation.flower.exchanges import Published, needs_scaling, shared_model
from fedpca.federation.flower.form import check_common, check_form
from fedpca.federation.flower.intake import Intake
from fedpca.federation.flower.request import digest_of_name
from fedpca.federation.flower.round import (
    CONTRIBUTING,
    NodeReply,
    Outcome,
    Round,
    array_record,
    contents_of,
    is_lost,
    received,
)
from fedpca.privacy import StepSum
from fedpca.privacy.model import PrivateModel
from fedpca.privacy.sums import Sum
from fedpca.summaries import validation
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust import envelope
from fedpca.trust.envelope import Envelope

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import ConfigRecord, RecordDict  # noqa: E402
from flwr.app import Message as FlowerMessage  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

_log = logging.getLogger("fedpca.federation.flower.server_app")
_MAY_CHANGE = ("rank", "rosters", "keys")  # from one run in a folder to the next


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
        self._node_of: dict[str, int] = {}  # which node has used a client's name first in this run
        self._released: set[str] = set()  # clients whose release came in this run
        self._client_of: dict[int, str] = {}  # whose release came from a node
        self._refused: dict[int, str] = {}  # nodes whose scaling or sum was taken, and why it counts no more
        self._unrecorded = 0  # releases since the model was recorded
        self._next_record = 0.0  # not before this time
        self._began = 0.0  # the exchange now
        self._awaited: dict[str, set[int]] = {}  # whose scaling or sum the exchange before it took
        self._intake = Intake(aggregator)  # of the exchange now
        self._published = self._load()
        self._features: Features | None = None
        self._machine: PrivateModel | None = None  # it knows which step comes next
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
            return Published(facts={"settings": self._settings, "clients": {}})
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
            self._began = time.monotonic()
            self._intake.begin()
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
            finally:
                for node, reason in self._refused.items():
                    self.replies[node] = replace(self.replies[node], what="rejected", reason=reason)
                self._refused.clear()

    def _round(
        self,
        receive: Callable[[int, FlowerMessage | Exception], NodeReply],
        end: Callable[[], float],
        enough: Callable[[Mapping[int, NodeReply]], bool],
        published: Published,
        only: Collection[int] | None = None,
    ) -> Round:
        given = {}
        if not published.is_empty:
            given = {"published": array_record({"message": replace(published, facts={}).encode()})}

        def to_node(node: int) -> RecordDict | None:
            if node in self._final if only is None else node not in only:
                return None
            taken = [
                digest_of_name(client) for client, holder in self._holders.items() if holder != str(node)
            ]
            request = self._request | ({"taken": taken} if taken else {})
            return RecordDict({"request": ConfigRecord(request), **given})

        return Round(self._grid, to_node, receive, end=end, enough=enough, retries=self._retries)

    # --- names ---

    @property
    def _holders(self) -> dict[str, str]:
        """The node that each name belongs to: the first that used it, in this run or before.

        With a roster a name belongs to a key, whatever node its messages come from.
        """
        if self._aggregator.roster is not None:
            return {}
        before: dict[str, str] = {}
        if self._stable_nodes:
            known, taken = self._aggregator.versions, self._published.facts.get("clients", {})
            before = {client: node for client, node in taken.items() if client not in known}
            before |= self._aggregator.senders  # of others that were known, withdrawn ones are free
        return {client: str(node) for client, node in self._node_of.items()} | before

    def _check_name(self, node: int, client: str) -> None:
        """A name stays with its node from the first exchange to the last."""
        holder = self._holders.get(client, str(node))
        if holder != str(node):
            raise ValueError(f"node {holder} is {client!r:.80} already; give each its own client-id.")

    def _name_of(self, node: int) -> str:
        """The client that a node was, if its message does not say; "" if it was none."""
        return next((client for client, holder in self._holders.items() if holder == str(node)), "")

    # --- the end of an exchange ---

    @property
    def _will_evaluate(self) -> bool:
        return self._machine is not None and self._machine.can_evaluate

    @property
    def _takes_steps(self) -> bool:
        return bool(self._intake.scalings or self._intake.sums) or (
            self._machine is not None and self._machine.step is not None
        )

    def _end_of_exchange(self) -> float:
        """Half of what was left when it began, if another exchange will follow."""
        if self._takes_steps or self._will_evaluate:
            return self._began + (self._end - self._began) / 2
        return self._end

    def _is_enough(self, replies: Mapping[int, NodeReply]) -> bool:
        """Clients count, not nodes: one that repeats what another said must not end an exchange."""
        if 0 < self._expect <= len(self._released | self._intake.taken.keys()):
            return True
        return bool(self._takes_steps and self._awaited) and all(
            client in self._intake.taken or nodes <= replies.keys() for client, nodes in self._awaited.items()
        )

    def _conclude(self) -> bool:
        """Publish what an exchange before the releases has found, if there was one."""
        taken = self._intake.taken
        first = self._published.is_empty
        stuck = ""
        if first and 0 < len(taken) < self._quorum:
            stuck = (
                f"{len(taken)} of {self._quorum} nodes were there to begin with; nothing was spent. Run "
                "again when more have joined."
            )
        elif not taken and self._machine is not None and self._machine.step is not None:
            stuck = "no node that began the private steps replied in time; run again when they are there."
        if stuck and not any(reply.what in CONTRIBUTING for reply in self.replies.values()):
            self.problem = stuck
        if stuck or not taken:
            return False
        published = self._published
        if self._intake.scalings:
            self._reject_others(self._intake.scalings, self._features_of_most(self._intake.scalings))
            merged = Scaling.merge(each.of(Scaling) for each in self._intake.scalings.values())
            published = replace(published, scale=merged.scale(self._request["scale"]))
        if self._intake.sums:
            if self._machine is None:
                features = self._features_of_most(self._intake.sums)
                self._reject_others(self._intake.sums, features)
                self._begin_steps(features)
                published = replace(published, rank=self._request["rank"])
            pooled = StepSum.pooled([each.of(OwnerSum).own for each in self._intake.sums.values()])
            assert self._machine is not None
            self._machine.add_pooled(pooled, paid=False)
            published = published.with_sum(pooled)
            _log.info("fedpca: private step %r of %d nodes", pooled.step, len(self._intake.sums))
        if first:
            published = replace(
                published,
                facts=published.facts
                | {
                    "features": self._features,
                    "clients": {client: str(self._node_of[client]) for client in self._intake.taken},
                },
            )
        self._awaited = {client: self._intake.sent_by[client] for client in self._intake.taken}
        self._publish(published)
        return True

    def _begin_steps(self, features: Features) -> None:
        self._features = features
        self._machine = shared_model(self._request, features, self._published)

    def _features_of_most(self, taken: Mapping[str, Message]) -> Features:
        return Counter(each.features for each in taken.values()).most_common(1)[0][0]

    def _reject_others(self, taken: dict[str, Message], features: Features) -> None:
        """Go on without clients of other features than most have."""
        for client in list(taken):
            if reason := _difference(features, taken[client].features):
                del taken[client]
                nodes = self._intake.sent_by[client]
                self._refused |= dict.fromkeys(nodes, reason)
                self._final |= nodes

    # --- replies ---

    def _receive(self, node: int, message: FlowerMessage | Exception) -> NodeReply:
        reply = received(node, message, self._opened, self._take)
        reply = replace(reply, client=reply.client or sanitize(self._name_of(node), 100))
        if not is_lost(message) and reply.what not in ("taken", "waiting"):
            self._final.add(node)
        self._unrecorded += reply.what == "accepted"
        self._record_model()
        return reply

    def _opened(self, message: FlowerMessage) -> tuple[str, tuple[str, Envelope | None]]:
        kind, contents = contents_of(message, self._max_bytes)
        if kind == "waits":
            return contents[:1000].decode(), (kind, None)
        file = envelope.read(contents, f"the {kind}")
        return str(file.metadata.get("child", "")), (kind, file)

    def _take(self, node: int, opened: tuple[str, Envelope | None]) -> tuple[Outcome, str]:
        kind, file = opened
        if file is None:
            return "waiting", "a private step is taken without it."
        message = Message.from_envelope(file, f"the {kind}")
        if kind == "release":
            return self._take_release(node, message)
        self._intake.check_signed(message)
        self._check_name(node, message.child)
        self._check_features(message)
        self._intake.check_rows(message.n_rows)
        if kind == "scaling":
            self._check_scaling(message)
            self._intake.add(self._intake.scalings, node, message)
            reason = "its scaling, but no release yet."
        else:
            self._check_sum(message)
            self._intake.add(self._intake.sums, node, message)
            reason = f"its sum of {message.of(OwnerSum).own.step!r}, but no release yet."
        self._node_of.setdefault(message.child, node)
        return "taken", reason

    def _take_release(self, node: int, release: Message) -> tuple[Outcome, str]:
        """A name belongs to a key, with a roster, from whatever node it comes; and to a node without one."""
        client, has_roster = release.child, self._aggregator.roster is not None
        self._check_name(node, client)
        if release.content is None:
            return self._leave(release)
        summary = require_summary(release.content)
        check_form(self._request, summary)
        check_common(
            self._request,
            summary,
            self._published.scale,
            self._machine,
            is_first=not self._aggregator.children,
        )
        sender = str(node) if self._stable_nodes and not has_roster else ""
        is_new = self._aggregator.receive_message(release, sender=sender)
        self._node_of.setdefault(client, node)
        self._client_of[node] = client
        self._released.add(client)
        if self._intake.scalings:  # of many features, and this release is of few
            self._reject_others(self._intake.scalings, release.features)
        latest = self._aggregator.versions[client]
        if is_new:
            return "accepted", self._missed(client)
        if release.version == latest:
            return "unchanged", ""
        return "outdated", (
            f"version {release.version} is older than version {latest} in the store; increase "
            "version in its node config."
        )

    def _leave(self, release: Message) -> tuple[Outcome, str]:
        """Withdraw a client that has no rows to send any more, such as a region below its quorum."""
        client, roster = release.child, self._aggregator.roster
        if roster is not None:
            roster.check_signature(release.signature, client)
        if client not in self._aggregator.children:
            return "failed", "it has nothing to send: fewer clients than its quorum have contributed to it."
        if release.version <= (known := self._aggregator.versions[client]):
            raise ValueError(f"version {known} is known, and this is version {release.version}.")
        self._aggregator.withdraw(client)
        return "withdrawn", "it has nothing to send any more: its rows were taken out of the model."

    def _missed(self, client: str) -> str:
        """What an accepted client took no part in."""
        clients = self._published.facts.get("clients", {})
        if client in clients or (self._published.scale is None and not self._published.sums):
            return ""
        found = "the scale" if self._published.scale is not None else "what was found privately"
        return f"it joined later: {found} is that of the rows of others."

    def _check_scaling(self, owner: Message) -> None:
        """Refuse a scaling that no release could go with, before it counts as anything."""
        owner.of(Scaling)
        asked = self._request["scale"] != "none" and self._published.scale is None
        if not asked or "epsilon" in self._request:
            raise ValueError("no scaling was requested.")
        n_features = owner.features[0]
        if not needs_scaling(n_features, self._request["rank"]):
            raise ValueError(f"no scaling was requested of {n_features} features: moments have it.")
        if self._aggregator.children:
            raise ValueError(
                "releases that have a scale of their own are in the store: select the same features as the "
                "others, or run in another folder."
            )

    def _check_features(self, owner: Message) -> None:
        """Refuse other features than the run requires."""
        expected = self._aggregator.expected
        if expected is not None and (reason := _difference(_features_of(expected), owner.features)):
            raise ValueError(reason)

    def _check_sum(self, owner: Message) -> None:
        own = owner.of(OwnerSum).own
        self._intake.check_same_rows(owner)
        if "epsilon" not in self._request:
            raise ValueError("no sum was requested: the run states no epsilon.")
        if self._machine is None:
            Sum("rows", (), 0.0).check_own(own)
        else:
            assert self._features is not None
            if reason := _difference(self._features, owner.features):
                raise ValueError(reason)
            self._machine.check_own(own)
        self._intake.note_rows(owner)

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
        machine = self._machine
        assert machine is not None
        nodes = {node for node, reply in self.replies.items() if reply.what in ("accepted", "unchanged")}
        clients = {node: self._client_of[node] for node in nodes}
        evaluation = EvaluationRound(machine, model, clients, self._aggregator, self._intake, self._max_bytes)

        def receive(node: int, message: FlowerMessage | Exception) -> NodeReply:
            return replace(evaluation.receive(node, message), client=self.replies[node].client)

        current = self._round(
            receive,
            lambda: self._end,
            lambda replies: evaluation.is_complete or nodes <= replies.keys(),
            replace(self._published, model=model),
            only=nodes,
        )
        current.run()
        missing = {
            self.replies[node].client: current.replies[node].reason if node in current.replies else "no reply"
            for node in sorted(nodes)
            if clients[node] not in evaluation.sums
        }
        self.evaluation = {"rows": evaluation.n_rows, "missing": missing}
        evaluated, found = evaluation.result()
        self.evaluation |= found
        return evaluated


def _features_of(summary: Summary) -> Features:
    return summary.n_features, summary.feature_names


def _difference(ours: Features, theirs: Features) -> str:
    """Why owners with these features cannot be added up, or ""."""
    if ours[0] != theirs[0]:
        return f"all must have the same features, got {ours[0]} and {theirs[0]}."
    try:
        validation.same_names(ours[1], theirs[1])
    except ValueError as error:
        return str(error)
    return ""
