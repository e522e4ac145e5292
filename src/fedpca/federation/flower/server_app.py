"""The ServerApp: ask whoever is there, take releases as they come, and end by a deadline."""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp
    from httpx import HTTPError
except ImportError as error:
    raise ImportError("a federation on Flower needs flwr: pip install 'fedpca[flower]'.") from error

from fedpca._util.files import atomic_write, file_lock
from fedpca._util.text import utc_timestamp
from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator import Aggregator
from fedpca.privacy import Privacy
from fedpca.summaries import model_file, validation
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary, from_file

app = ServerApp()
_log = logging.getLogger("flwr")
_PAUSE = 0.5


@dataclass(frozen=True)
class Answer:
    """A node's last word in a run.

    Attributes:
        node: Flower's number of it.
        client: whose it is, as it says; "" if unknown.
        what: "accepted"; "unchanged", if the aggregator had it; "refused"; or "failed".
        reason: why it was refused, or failed.
        time: UTC.
    """

    node: int
    client: str
    what: str
    reason: str
    time: str


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, as the run config says."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    if not folder.is_absolute():
        raise ValueError(f"folder must be an absolute path on the server, got folder={config['folder']!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(folder / "lock", wait=False):
            run(grid, config, folder)
    except BlockingIOError as error:
        raise RuntimeError(f"another run writes to {folder}; wait for it, or name another folder.") from error


def run(grid: Grid, config: Mapping[str, Any], folder: Path) -> None:
    """Gather answers, and leave store/, model.safetensors and summary.json in the folder."""
    privacy = None
    if config["epsilon"]:
        privacy = Privacy(config["epsilon"], config["delta"], config["bound"], adjacency=config["adjacency"])
    rank = validation.integer(config["rank"], "rank", at_least=1)
    quorum = validation.integer(config["quorum"], "quorum", at_least=1)
    center, features = bool(config["center"]), validation.integer(config["features"], "features", at_least=0)
    like = Subspace.empty(features, centered=center) if features else None
    aggregator = Aggregator(rank, store=str(folder / "store"), like=like, privacy=privacy)
    ask: dict[str, Any] = {"rank": rank, "center": center}
    if privacy is not None:
        ask |= {key: getattr(privacy, key) for key in ("epsilon", "delta", "bound", "adjacency")}
    aggregator.record()  # so that how far the model turns is known from the first release on
    started = utc_timestamp()
    answers, silent = gather(
        grid,
        aggregator,
        ask,
        deadline=float(config["deadline"]),
        expect=validation.integer(config["expect"], "expect", at_least=0),
        retries=validation.integer(config["retries"], "retries", at_least=0),
        max_bytes=validation.integer(config["max-bytes"], "max-bytes", at_least=1),
    )
    aggregator.record()
    problem = ""
    model = None
    if (found := len(aggregator.children)) < quorum:
        problem = f"{found} clients have contributed, and quorum={quorum}; run again when more are there."
    else:
        try:
            model = aggregator.model()
            model.save(folder / "model.safetensors")
        except ValueError as error:  # contributions that are right one by one, but not together
            problem = str(error)
    since = {event.child: event.time for event in aggregator.history if event.what == "accepted"}
    contributors = {
        name: {"version": child.version, "rows": child.count, "since": since.get(name)}
        for name, child in aggregator.children.items()
    }
    summary = {
        "started": started,
        "finished": utc_timestamp(),
        "model": None if model is None else "model.safetensors",
        "problem": problem,
        "rows": sum(child.count for child in aggregator.children.values()),
        "contributors": contributors,
        "answers": [asdict(answer) | {"node": str(answer.node)} for answer in answers],
        "silent": [str(node) for node in silent],
    }
    with atomic_write(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    _log.info("fedpca: %d clients, %d rows, in %s", found, summary["rows"], folder)
    if problem:
        raise RuntimeError(problem)


def gather(
    grid: Grid,
    aggregator: Aggregator,
    ask: Mapping[str, Any],
    *,
    deadline: float,
    expect: int = 0,
    retries: int = 2,
    max_bytes: int = 2**30,
) -> tuple[list[Answer], list[int]]:
    """Ask every node as it appears, and hand every release to the aggregator the moment it arrives.

    Args:
        grid: Flower's.
        aggregator: takes releases, or refuses them.
        ask: see `Node.release`.
        deadline: seconds, after which nobody is waited for.
        expect: end as soon as so many nodes have had their last word; 0 waits for the deadline.
        retries: how often a node that crashed or was lost is asked again. What it said stands.
        max_bytes: larger releases are refused unread.

    Returns:
        Last words in the order they came, and nodes that had none.
    """
    end = time.monotonic() + deadline
    answers: dict[int, Answer] = {}
    asked: Counter[int] = Counter()
    waiting: set[int] = set()
    node_of: dict[str, int] = {}
    replies: Queue[tuple[int, Message | Exception]] = Queue()
    taken, rested = 0, 0.0
    while (left := end - time.monotonic()) > 0 and not 0 < expect <= len(answers):
        content = RecordDict({"ask": ConfigRecord(dict(ask))})
        try:
            for node in sorted({*grid.get_node_ids()} - {*answers} - waiting):
                for name in grid.push_messages([Message(content, node, "query", ttl=left)]):
                    if name:
                        asked[node] += 1
                        waiting.add(node)
                        Thread(target=_listen, args=(grid, name, node, end, replies), daemon=True).start()
        except HTTPError as error:  # a busy SuperLink is no reason to give up
            _log.warning("fedpca: the SuperLink does not answer: %s", error)
        try:
            node, reply = replies.get(timeout=min(_PAUSE, left))
        except Empty:
            continue
        waiting.remove(node)
        lost = isinstance(reply, Exception) or reply.has_error()
        if lost and asked[node] <= retries:
            continue  # asked again, once it is there
        answers[node] = answer = _taken(reply, node, aggregator, node_of, max_bytes)
        _log.info("fedpca: %r %s %s", answer.client or node, answer.what, answer.reason)
        # How the model moves is noted once a quarter of all have spoken, so that few merges are spent on it;
        # and where they are large, a tenth of the time at most.
        taken += answer.what == "accepted"
        begun = time.monotonic()
        if taken and begun >= rested and 4 * taken >= len(aggregator.children):
            aggregator.record()
            taken, rested = 0, begun + 10 * (time.monotonic() - begun)
    return list(answers.values()), sorted(set(asked) - set(answers))


def _listen(
    grid: Grid, name: str, node: int, end: float, replies: Queue[tuple[int, Message | Exception]]
) -> None:
    """Put the reply to a message into `replies` when it comes.

    Each has a thread of its own: what Flower cannot read, or waits for because a node never sends all of it,
    costs nobody else.
    """
    reply: Message | Exception | None = None
    while reply is None and time.monotonic() < end:
        try:
            reply = next(iter(grid.pull_messages([name])), None)
        except HTTPError as error:
            _log.warning("fedpca: the SuperLink does not answer: %s", error)
        except Exception as error:
            reply = error
        if reply is not None:
            replies.put((node, reply))
        time.sleep(_PAUSE)


def _taken(
    reply: Message | Exception, node: int, aggregator: Aggregator, node_of: dict[str, int], max_bytes: int
) -> Answer:
    """What became of a reply. A stranger wrote it: nothing in it may end the run."""
    client, what, reason = "", "refused", ""
    try:
        if isinstance(reply, Exception):
            what, reason = "failed", f"Flower cannot read its reply ({type(reply).__name__}: {reply})"
        elif reply.has_error():
            what, reason = "failed", f"Flower's error {reply.error.code}: {reply.error.reason}"
        elif "failed" in reply.content:
            failed = reply.content["failed"]
            what, client, reason = "failed", str(failed["client"]), str(failed["reason"])
        else:
            release = reply.content["release"]
            assert isinstance(release, ArrayRecord)
            client, version, summary = read_release(release["file"].data, max_bytes)
            if node_of.setdefault(client, node) != node:
                raise ValueError(f"another node, {node_of[client]}, is {client!r}; give each its own name.")
            what = "accepted" if aggregator.receive(client, version, summary) else "unchanged"
    except SummaryRejected as refusal:
        reason = str(refusal)
    except Exception as error:
        reason = str(error) or type(error).__name__
    return Answer(node, _short(client, 100), what, _short(reason, 500), utc_timestamp())


def read_release(contents: bytes, max_bytes: int) -> tuple[str, int, Summary]:
    """Client, version and summary in the bytes of a model file from a stranger."""
    if len(contents) > max_bytes:
        raise ValueError(f"a release of {len(contents)} bytes is larger than max-bytes={max_bytes}.")
    kind, arrays, facts = model_file.decode(contents, "the release")
    summary = from_file("the release", kind, arrays, facts)
    client, version = facts.get("child"), facts.get("version")
    if not isinstance(client, str) or type(version) is not int:
        raise ValueError("a release must say whose it is and of which version.")
    return client, version, summary


def _short(text: str, most: int) -> str:
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text.encode(errors="backslashreplace").decode()
