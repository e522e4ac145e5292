"""Round: one request to all nodes as they appear, and their replies, until enough have come or time is up."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread
from typing import Literal, TypeVar

from fedpca._util.extras import require
from fedpca._util.text import sanitize, utc_timestamp

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402
from flwr.app import Message as FlowerMessage  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from httpx import HTTPError  # noqa: E402

_log = logging.getLogger("fedpca.federation.flower.server_app")
_PAUSE = 0.5  # seconds between two looks: nodes themselves look every three
_KINDS = ("release", "scaling", "sum", "waits")

Outcome = Literal["accepted", "unchanged", "outdated", "taken", "waiting", "withdrawn", "rejected", "failed"]
_Opened = TypeVar("_Opened")
CONTRIBUTING = ("accepted", "unchanged", "outdated")
"""Outcomes of a release that is in the model, or a newer one of the same client."""


@dataclass(frozen=True)
class NodeReply:
    """The final reply of a node in a run.

    Attributes:
        node: Flower's number of it.
        client: its name, as it claims; "" if unknown.
        what: of a release "accepted"; "unchanged", if the aggregator had this version; "outdated", if it had
            a newer one; of a scaling or sum before a release "taken"; "waiting", if it missed the first of
            these; "withdrawn", if it was in the model and has nothing to send any more; "rejected"; or
            "failed".
        reason: why it was not accepted, unless it is unchanged; of one that was, what it took no part in.
        time: UTC.
    """

    node: int
    client: str
    what: Outcome
    reason: str
    time: str


class Round:
    """Requests to all nodes as they appear, and their replies.

    Args:
        grid: Flower's.
        content: the request to a node; None if it gets none.
        receive: makes the reply of a node out of its message, or of what Flower raised instead.
        end: when the round ends at the latest, in seconds of `time.monotonic`; it may change meanwhile.
        enough: whether it ends now, given the replies so far.
        retries: how often the request to a node that crashed or was lost is repeated.

    Attributes:
        replies: the final reply of every node, in order of arrival.
        connected: the nodes that are there; None before the first look.
    """

    def __init__(
        self,
        grid: Grid,
        content: Callable[[int], RecordDict | None],
        receive: Callable[[int, FlowerMessage | Exception], NodeReply],
        *,
        end: Callable[[], float],
        enough: Callable[[Mapping[int, NodeReply]], bool],
        retries: int,
    ) -> None:
        self.replies: dict[int, NodeReply] = {}
        self.connected: set[int] | None = None
        self._grid = grid
        self._content = content
        self._receive = receive
        self._end = end
        self._enough = enough
        self._retries = retries
        self._requests: Counter[int] = Counter()  # sent so far, by node
        self._pending: set[int] = set()  # nodes with a request and no reply to it
        self._incoming: Queue[tuple[int, FlowerMessage | Exception]] = Queue()

    @property
    def no_reply(self) -> list[int]:
        """The nodes that got a request and sent no final reply."""
        return sorted(set(self._requests) - set(self.replies))

    @property
    def _complete(self) -> bool:
        return self._enough(self.replies)

    def run(self) -> None:
        """Send requests and process replies until the end, or until there are enough."""
        while (left := self._end() - time.monotonic()) > 0 and not self._complete:
            self._send_requests(left)
            try:
                node, message = self._incoming.get(timeout=min(_PAUSE, left))
            except Empty:
                continue
            self._pending.remove(node)
            if is_lost(message) and self._requests[node] <= self._retries:
                continue  # the request is repeated once the node is there
            self.replies[node] = reply = self._receive(node, message)
            level = logging.WARNING if reply.what in ("rejected", "failed") else logging.INFO
            reason = f": {reply.reason}" if reply.reason else ""
            _log.log(level, "fedpca: %r %s%s", reply.client or node, reply.what, reason)

    def _send_requests(self, left: float) -> None:
        """Send the request to every node that has none, and listen for the reply."""
        try:
            self.connected = {*self._grid.get_node_ids()}
            for node in sorted(self.connected - {*self.replies} - self._pending):
                content = self._content(node)
                if content is None:
                    continue
                message = FlowerMessage(content, node, "query", ttl=left)
                for name in self._grid.push_messages([message]):
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
        while reply is None and time.monotonic() < self._end():
            try:
                reply = next(iter(self._grid.pull_messages([name])), None)
            except HTTPError as error:
                _log.warning("fedpca: the SuperLink does not respond: %s", error)
            except Exception as error:
                reply = error
            if reply is not None:
                self._incoming.put((node, reply))
            time.sleep(_PAUSE)


def array_record(contents: Mapping[str, bytes]) -> ArrayRecord:
    """Byte strings by name, as Flower carries them."""
    return ArrayRecord(
        {name: Array("uint8", (len(each),), "fedpca message", each) for name, each in contents.items()}
    )


def failure(message: FlowerMessage | Exception) -> tuple[str, str] | None:
    """Client and reason, of a message that says why there is no reply; None of others."""
    if isinstance(message, Exception):
        return "", f"Flower cannot read its reply ({type(message).__name__}: {message})"
    if message.has_error():
        return "", f"Flower's error {message.error.code}: {message.error.reason}"
    if "failed" in message.content:
        failed = message.content["failed"]
        if not isinstance(failed, ConfigRecord) or not {"client", "reason"} <= set(failed):
            raise ValueError("a failure must be a ConfigRecord with a client and a reason.")
        return str(failed["client"]), str(failed["reason"])
    return None


def is_lost(message: FlowerMessage | Exception) -> bool:
    """Whether a node crashed, or its reply cannot be read: it may do better."""
    return isinstance(message, Exception) or message.has_error()


def received(
    node: int,
    message: FlowerMessage | Exception,
    opened: Callable[[FlowerMessage], tuple[str, _Opened]],
    take: Callable[[int, _Opened], tuple[Outcome, str]],
) -> NodeReply:
    """Take what a node sent. Anyone may have sent it: nothing in it may end the run.

    Args:
        opened: whom it claims to be of, whatever else is wrong, and what it contains.
        take: what becomes of that, and why.
    """
    client, reason = "", ""
    what: Outcome = "failed"
    try:
        if failed := failure(message):
            client, reason = failed
        else:
            assert not isinstance(message, Exception)
            what = "rejected"
            client, contents = opened(message)
            what, reason = take(node, contents)
    except Exception as error:
        reason = str(error) or type(error).__name__
    return NodeReply(node, sanitize(client, 100), what, sanitize(reason, 500), utc_timestamp())


def contents_of(message: FlowerMessage, max_bytes: int) -> tuple[str, bytes]:
    """What kind of reply a node sent, and its bytes; raises for what is none, or too large."""
    kind = next((kind for kind in _KINDS if kind in message.content), "release")
    record = message.content.get(kind)
    if not isinstance(record, ArrayRecord):
        raise TypeError(f"a {kind} must be an ArrayRecord, got {type(record).__name__}.")
    if "message" not in record:
        raise ValueError(f"a {kind} must have an array 'message', and this one has none.")
    contents: bytes = record["message"].data
    if len(contents) > max_bytes:
        raise ValueError(f"a {kind} of {len(contents)} bytes is larger than max-bytes={max_bytes}.")
    return kind, contents
