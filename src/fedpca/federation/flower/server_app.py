"""The ServerApp: requests the release of every node, receives them as they arrive, and ends by a deadline."""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Literal

from fedpca._util.extras import require
from fedpca._util.files import atomic_write, file_lock
from fedpca._util.text import sanitize, utc_timestamp
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.flower.logs import show_in_flower
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.federation.message import Message, require_summary
from fedpca.summaries import model_file, validation
from fedpca.summaries.subspace import Subspace

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict  # noqa: E402
from flwr.app import Message as FlowerMessage  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from httpx import HTTPError  # noqa: E402

app = ServerApp()
_log = logging.getLogger(__name__)
_PAUSE = 0.5  # seconds

Outcome = Literal["accepted", "unchanged", "outdated", "rejected", "failed"]
_CONTRIBUTING = ("accepted", "unchanged", "outdated")


@dataclass(frozen=True)
class NodeReply:
    """The final reply of a node in a run.

    Attributes:
        node: Flower's number of it.
        client: its name, as it claims; "" if unknown.
        what: "accepted"; "unchanged", if the aggregator had this version; "outdated", if it had a newer one;
            "rejected"; or "failed".
        reason: why it was not accepted, unless it is unchanged.
        time: UTC.
    """

    node: int
    client: str
    what: Outcome
    reason: str
    time: str


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run with the settings of the run config."""
    show_in_flower()
    config = context.run_config
    folder = Path(str(config["folder"]))
    if not folder.is_absolute():
        raise ValueError(f"folder must be an absolute path on the server, got folder={config['folder']!r}.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with file_lock(folder / "lock", wait=False):
            run(grid, config, folder)
    except BlockingIOError as error:
        raise RuntimeError(
            f"another run writes to {folder}; wait for it, or choose another folder."
        ) from error


def run(grid: Grid, config: Mapping[str, Any], folder: Path) -> None:
    """Request all releases, and write store/, model.safetensors and summary.json to the folder.

    summary.json is written whatever happens. An old model of a run without one becomes
    model-previous.safetensors.
    """
    summary: dict[str, Any] = {
        "started": utc_timestamp(),
        "finished": None,
        "model": None,
        "problem": "",
        "warning": "",
        "rows": 0.0,
        "contributors": {},
        "quarantined": {},
        "replies": [],
        "no_reply": [],
    }
    try:
        _run(grid, config, folder, summary)
    except BaseException as error:
        summary["problem"] = sanitize(f"{type(error).__name__}: {error}", 500)
        raise
    finally:
        if summary["model"] is None:
            _set_old_model_aside(folder, summary)
        summary["finished"] = utc_timestamp()
        with atomic_write(folder / "summary.json", owner_only=True) as temporary:
            temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    _log.info("fedpca: %d clients, %d rows, in %s", len(summary["contributors"]), summary["rows"], folder)
    if summary["problem"]:
        raise RuntimeError(summary["problem"])


def _set_old_model_aside(folder: Path, summary: dict[str, Any]) -> None:
    """Rename the model of an earlier run; if that fails, the summary says so."""
    model = folder / "model.safetensors"
    try:
        if model.exists():
            model.replace(folder / "model-previous.safetensors")
    except OSError as error:
        old = f"{model.name} is that of an earlier run and could not be renamed: {error}"
        summary["problem"] = sanitize(f"{summary['problem']} {old}", 1000)


def _run(grid: Grid, config: Mapping[str, Any], folder: Path, summary: dict[str, Any]) -> None:
    """The run itself; enters what happens in the summary, as it happens."""
    quorum = validation.integer(config["quorum"], "quorum", at_least=1)
    aggregator, request = _set_up(config, folder)
    with aggregator:
        aggregator.record()  # the model before: from then on the angles between models are known
        current = _Round(
            grid,
            aggregator,
            request,
            deadline=_deadline(config["deadline"]),
            expect=validation.integer(config["expect"], "expect", at_least=0),
            retries=validation.integer(config["retries"], "retries", at_least=0),
            max_bytes=validation.integer(config["max-bytes"], "max-bytes", at_least=1),
            stable_nodes=not config.get("simulate"),
        )
        interrupted = ""
        try:
            current.run()
        except Exception as error:  # what was accepted before counts
            _log.exception("fedpca: the run was interrupted")
            interrupted = sanitize(f"interrupted by {type(error).__name__}: {error}", 500)
        summary["replies"] = [asdict(reply) | {"node": str(reply.node)} for reply in current.replies.values()]
        summary["no_reply"] = [str(node) for node in current.no_reply]
        aggregator.record()
        problem = _save_model(aggregator, quorum, folder)
        summary["model"] = None if problem else "model.safetensors"
        summary["problem"] = problem or interrupted
        summary.update(_contributions(aggregator))


def _contributions(aggregator: Aggregator) -> dict[str, Any]:
    """Who is in the model, how much of it, and what is suspicious about that."""
    children, history = aggregator.children, aggregator.history
    since = {event.child: event.time for event in history if event.what == "accepted"}
    warnings = [event.warning for event in history if event.what == "model"]
    return {
        "warning": warnings[-1] if warnings and children else "",
        "rows": sum(child.count for child in children.values()),
        "contributors": {
            name: {
                "version": child.version,
                "rows": child.count,
                "row_share": child.row_share,
                "energy_share": child.energy_share,
                "since": since.get(name),
            }
            for name, child in children.items()
        },
        "quarantined": dict(aggregator.quarantined),
    }


def _set_up(config: Mapping[str, Any], folder: Path) -> tuple[Aggregator, dict[str, Any]]:
    """The aggregator of a run, and the request to every node."""
    rank = validation.integer(config["rank"], "rank", at_least=1)
    features = validation.integer(config["features"], "features", at_least=0)
    center = bool(config["center"])
    floor = PrivacyFloor.from_config(config)
    aggregator = Aggregator(
        rank,
        store=folder / "store",
        expected=Subspace.empty(features, centered=center) if features else None,
        privacy=None if floor is None else floor.privacy,
        max_rows=float(config["max-rows"]) or 1e15,
        max_rms=float(config["max-rms"]) or inf,
    )
    return aggregator, {"rank": rank, "center": center} | ({} if floor is None else floor.to_config())


def _deadline(value: object) -> float:
    if not validation.is_real(value) or not 0 < value < inf:
        raise ValueError(f"deadline must be a number of seconds above 0, got deadline={value!r}.")
    return float(value)


def _save_model(aggregator: Aggregator, quorum: int, folder: Path) -> str:
    """Write the model, or return why there is none."""
    if (found := len(aggregator.children)) < quorum:
        return f"quorum not reached: {found} of {quorum} clients; run again when more have joined."
    try:
        aggregator.model().save(folder / "model.safetensors")
    except Exception as error:
        _log.exception("fedpca: no model")
        return sanitize(f"{type(error).__name__}: {error}", 500)
    return ""


class _Round:
    """Requests to all nodes as they appear, and their replies, until the deadline.

    Args:
        grid: Flower's.
        aggregator: receives every release as soon as it arrives.
        request: see `Node.release`.
        deadline: seconds from now, after which the round ends.
        expect: end as soon as this many nodes have contributed; 0 waits for the deadline. Nodes that fail or
            are rejected do not count: one of them must not end the round before the others have replied.
        retries: how often the request to a node that crashed or was lost is repeated.
        max_bytes: larger releases are rejected before they are parsed.
        stable_nodes: whether a node has the same number in every run, so that a client belongs to the node
            that used its name first.

    Attributes:
        replies: the final reply of every node, in order of arrival.
    """

    def __init__(
        self,
        grid: Grid,
        aggregator: Aggregator,
        request: Mapping[str, Any],
        *,
        deadline: float,
        expect: int = 0,
        retries: int = 2,
        max_bytes: int = 2**30,
        stable_nodes: bool = True,
    ) -> None:
        self.replies: dict[int, NodeReply] = {}
        self._grid = grid
        self._aggregator = aggregator
        self._request = dict(request)
        self._end = time.monotonic() + deadline
        self._expect = expect
        self._retries = retries
        self._max_bytes = max_bytes
        self._stable_nodes = stable_nodes
        self._requests: Counter[int] = Counter()  # sent so far, by node
        self._pending: set[int] = set()  # nodes with a request and no reply to it
        self._node_of: dict[str, int] = {}  # which node a client's release came from
        self._incoming: Queue[tuple[int, FlowerMessage | Exception]] = Queue()
        self._unrecorded = 0  # releases since the model was recorded
        self._next_record = 0.0  # not before this time

    @property
    def no_reply(self) -> list[int]:
        """The nodes that got a request and sent no final reply."""
        return sorted(set(self._requests) - set(self.replies))

    @property
    def _complete(self) -> bool:
        contributed = sum(reply.what in _CONTRIBUTING for reply in self.replies.values())
        return 0 < self._expect <= contributed

    def run(self) -> None:
        """Send requests and process replies until the deadline, or until all expected nodes contributed."""
        while (left := self._end - time.monotonic()) > 0 and not self._complete:
            self._send_requests(left)
            try:
                node, message = self._incoming.get(timeout=min(_PAUSE, left))
            except Empty:
                continue
            self._pending.remove(node)
            lost = isinstance(message, Exception) or message.has_error()
            if lost and self._requests[node] <= self._retries:
                continue  # the request is repeated once the node is there
            self.replies[node] = reply = self._process_reply(node, message)
            level = logging.INFO if reply.what in _CONTRIBUTING else logging.WARNING
            _log.log(level, "fedpca: %r %s. %s", reply.client or node, reply.what, reply.reason)
            self._unrecorded += reply.what == "accepted"
            self._record_model()

    def _send_requests(self, left: float) -> None:
        """Send the request to every node that has none, and listen for the reply."""
        content = RecordDict({"request": ConfigRecord(self._request)})
        try:
            for node in sorted({*self._grid.get_node_ids()} - {*self.replies} - self._pending):
                for name in self._grid.push_messages([FlowerMessage(content, node, "query", ttl=left)]):
                    if name:
                        self._requests[node] += 1
                        self._pending.add(node)
                        Thread(target=self._listen, args=(name, node), daemon=True).start()
        except HTTPError as error:  # a busy SuperLink does not end the round
            _log.warning("fedpca: the SuperLink does not respond: %s", error)

    def _listen(self, name: str, node: int) -> None:
        """Put the reply to a message into the queue when it arrives.

        Each listener has its own thread: a reply that Flower cannot read, or that a node never sends
        completely, delays no other.
        """
        reply: FlowerMessage | Exception | None = None
        while reply is None and time.monotonic() < self._end:
            try:
                reply = next(iter(self._grid.pull_messages([name])), None)
            except HTTPError as error:
                _log.warning("fedpca: the SuperLink does not respond: %s", error)
            except Exception as error:
                reply = error
            if reply is not None:
                self._incoming.put((node, reply))
            time.sleep(_PAUSE)

    def _process_reply(self, node: int, message: FlowerMessage | Exception) -> NodeReply:
        """Hand a release to the aggregator. Anyone may have sent it: nothing in it may end the run."""
        client, reason = "", ""
        what: Outcome = "failed"
        try:
            if isinstance(message, Exception):
                reason = f"Flower cannot read its reply ({type(message).__name__}: {message})"
            elif message.has_error():
                reason = f"Flower's error {message.error.code}: {message.error.reason}"
            elif "failed" in message.content:
                failed = message.content["failed"]
                client, reason = str(failed["client"]), str(failed["reason"])
            else:
                what = "rejected"
                contents = model_file.decode(self._contents(message), "the release")
                client = str(contents[2].get("child", ""))  # as it claims, whatever else is wrong
                release = Message.from_contents(*contents, "the release")
                if self._node_of.get(client, node) != node:
                    raise ValueError(
                        f"node {self._node_of[client]} is {client!r} already; give each its own client-id."
                    )
                summary, sender = require_summary(release.summary), str(node) if self._stable_nodes else ""
                is_new = self._aggregator.receive(client, release.version, summary, sender=sender)
                self._node_of[client] = node
                latest = self._aggregator.versions[client]
                if is_new or release.version == latest:
                    what = "accepted" if is_new else "unchanged"
                else:
                    what = "outdated"
                    reason = (
                        f"version {release.version} is older than version {latest} in the store; increase "
                        "version in its node config."
                    )
        except Exception as error:
            reason = str(error) or type(error).__name__
        return NodeReply(node, sanitize(client, 100), what, sanitize(reason, 500), utc_timestamp())

    def _contents(self, message: FlowerMessage) -> bytes:
        record = message.content.get("release")
        if not isinstance(record, ArrayRecord):
            raise TypeError(f"a release must be an ArrayRecord, got {type(record).__name__}.")
        if "message" not in record:
            raise ValueError("a release must have an array 'message', and this one has none.")
        contents = record["message"].data
        if len(contents) > self._max_bytes:
            raise ValueError(
                f"a release of {len(contents)} bytes is larger than max-bytes={self._max_bytes}."
            )
        return contents

    def _record_model(self) -> None:
        """Record the model when a quarter of the children are new since the last time, to bound merge cost.

        Where merges are slow, they take a tenth of the time at most.
        """
        now = time.monotonic()
        many = 4 * self._unrecorded >= len(self._aggregator.children)
        if self._unrecorded and many and now >= self._next_record:
            self._aggregator.record()
            self._unrecorded, self._next_record = 0, now + 10 * (time.monotonic() - now)
