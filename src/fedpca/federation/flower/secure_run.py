"""SecureRun: all exchanges of secure sums in one run, from the server's side.

The server is the coordinator of a session: it keeps the board, hands every node what it needs of it, and
takes the nodes' messages, each signed by a member. It learns totals alone. The board is in the folder of the
run: a run that was interrupted goes on in the next one.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.files import remove_leftovers
from fedpca._util.text import join_names, sanitize
from fedpca.errors import SecureError
from fedpca.federation.flower.round import NodeReply, Outcome, Round, array_record, is_lost, received
from fedpca.federation.folder.secure import SharedSession
from fedpca.secure import CheckedBoard, Coordinator, relevant
from fedpca.secure.messages import owner_of
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust import Roster

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import ArrayRecord, ConfigRecord, RecordDict  # noqa: E402
from flwr.app import Message as FlowerMessage  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

_log = logging.getLogger("fedpca.federation.flower.server_app")
_NOT_VISIBLE = (
    "what each member contributed is not visible, by design: the contributor of this run is the sum over the "
    "owners in sums"
)
_NOBODY = -1  # the number of a node that has not said yet which member it is


class SecureRun:
    """The exchanges of one run of a secure study.

    Every exchange ends when all members that are connected have replied, if they are enough; that of keys
    when all members have, or `expect`.

    Args:
        grid: Flower's.
        roster: of the study.
        request: see `Node.secure_reply`.
        folder: keeps the board.
        deadline: seconds from now, after which the run ends. An exchange takes half of what is left, at most.
        expect: go on as soon as this many members have sent their keys; 0 waits for all of them.
        retries: how often the request to a node that crashed or was lost is repeated.
        max_bytes: larger replies are rejected before they are parsed.

    Attributes:
        roster: of the study.
        board: of the session.
        replies: the last reply of every node, in order of arrival.
        problem: why there is no model, or "".
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        request: Mapping[str, Any],
        *,
        folder: Path,
        deadline: float,
        expect: int = 0,
        retries: int = 2,
        max_bytes: int = 2**30,
    ) -> None:
        self.roster = roster
        self.replies: dict[int, NodeReply] = {}
        self.problem = ""
        folder.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(folder)
        shared = SharedSession(folder, roster)
        self._shared = SharedSession.new(folder, roster) if shared.board.is_empty else shared
        self.board = self._shared.board
        self._session = self._shared.session
        self._coordinator = Coordinator(self._shared.progress)
        self._terms = self._session.terms
        self._grid = grid
        self._request = dict(request)
        self._end = time.monotonic() + deadline
        self._expect = max(expect, self._terms.least) if expect else self._terms.n_members
        self._retries = retries
        self._max_bytes = max_bytes
        self._asked: set[int] = set()
        self._final: set[int] = set()  # nodes that get no further request
        self._unresponsive: set[int] = set()  # nodes that an exchange has waited for in vain: none does again
        self._member_of: dict[int, int] = {}  # number of the member that a node claims to be
        self._sending: dict[int, set[str]] = {}  # names on the board that the last request to a node had
        self._has: dict[int, set[str]] = {}  # names on the board that a node has
        self._refused: dict[str, str] = {}  # whose messages do not count, and why
        self._senders_now: set[str] = set()  # members that have sent something in the exchange now

    @property
    def no_reply(self) -> list[int]:
        """The nodes that were asked and have never replied."""
        return sorted(self._asked - self.replies.keys())

    @property
    def has_ended(self) -> bool:
        """Whether all totals are on the board."""
        return self._coordinator.has_ended

    @property
    def model(self) -> Subspace:
        """The model of the session, once all totals are on the board."""
        return self._shared.progress.model(self.board)

    @property
    def release(self) -> Summary:
        """What the model is taken from."""
        return self._shared.progress.release(self.board)

    @property
    def not_heard_from(self) -> list[str]:
        """Members who are in no sum."""
        in_sums = {owner for total in self._shown.totals for owner in total.owners}
        return [member for member in self._terms.ids if member not in in_sums]

    @property
    def _shown(self) -> CheckedBoard:
        return CheckedBoard(self._session, self.board)

    @property
    def state(self) -> JSON:
        """Who takes part in the session, and who is in which sum, for summary.json."""
        shown = self._shown
        members = shown.members if shown.has("members") else ()
        return {
            "session": self._session.id,
            "state": "done" if self.has_ended else self._coordinator.state,
            "least": self._terms.least,
            "colluding": self._terms.colluding,
            "threshold": self._terms.threshold,
            "members": [self._terms.ids[index] for index in members],
            "sums": [
                {"sum": total.name, "owners": list(total.owners), "rows": total.rows, "noise": total.noise}
                for total in shown.totals
            ],
            "contributions": _NOT_VISIBLE,
            "refused": self._refused,
        }

    def run(self) -> None:
        """Exchange messages until there is a model; if the run ends before, `problem` says why."""
        new = self._coordinator.advance(self.board)
        if self.has_ended:
            return
        while not self.has_ended:
            state = self._coordinator.state
            new = new or self._exchange(state)
            for name, problem in self._coordinator.problems.items():
                if (sender := owner_of(name)) is not None:
                    self._refused[self._terms.ids[sender]] = sanitize(problem, 500)
            if not new and self._coordinator.state == state:
                self.problem = self._shortage()
                return
            self.board.publish(new)
            for name in new:
                _log.info("fedpca: session %s: %s", self._session.id[:16], name)
            new = self._coordinator.advance(self.board)
        self._announce_the_end()
        self._name_those_in_sums()

    def _name_those_in_sums(self) -> None:
        """Say in the reply of every node whether its rows are in the model."""
        sums = {total.name: total.owners for total in self._shown.totals}
        for node, reply in self.replies.items():
            missed = [repr(name) for name, owners in sums.items() if reply.client not in owners]
            if reply.what == "taken" and len(missed) < len(sums):
                reason = f"it was not there for {join_names(missed)}." if missed else ""
                self.replies[node] = replace(reply, what="accepted", reason=reason)
            elif reply.what == "taken":
                reason = "the sums were taken without it: it was not there in time."
                self.replies[node] = replace(reply, what="waiting", reason=reason)

    def _shortage(self) -> str:
        refused = "".join(f" {client!r}: {reason}" for client, reason in self._refused.items())
        now = self._shown.waiting.describe(self._terms.ids)
        return sanitize(
            f"too few members were there in time: the session {now}. Run again in this "
            "folder to go on when they are there, or in another one to begin again, which spends anew."
            + (f" Refused:{refused}" if refused else ""),
            1000,
        )

    # --- one exchange ---

    def _exchange(self, state: str) -> dict[str, bytes]:
        """Request what the session waits for, and return what to publish next; nothing if too few replied, or
        if the next request follows from the replies."""
        end = self._half_of_what_is_left()
        found: dict[str, bytes] = {}
        n_tried = -1
        self._senders_now = set()

        def enough(_: object) -> bool:
            nonlocal found, n_tried
            if len(self.board) != n_tried and self._may_close(current):
                n_tried = len(self.board)
                found = self._coordinator.advance(self.board, closing=self._is_closing())
            return bool(found) or self._coordinator.state != state

        current = Round(
            self._grid, self._content, self._receive, end=lambda: end, enough=enough, retries=self._retries
        )
        current.run()
        self.replies |= current.replies
        self._asked |= current.replies.keys() | {*current.no_reply}
        self._unresponsive -= current.replies.keys()
        if time.monotonic() >= end:
            self._unresponsive |= {*current.no_reply}
        return found or (
            self._coordinator.advance(self.board, closing=True) if self._coordinator.state == state else {}
        )

    def _announce_the_end(self) -> None:
        """Give all that are connected the last total: they close their books."""
        end = self._half_of_what_is_left()
        current = Round(
            self._grid,
            self._content,
            self._receive,
            end=lambda: end,
            enough=lambda _: self._have_replied(current),
            retries=0,
        )
        current.run()

    def _half_of_what_is_left(self) -> float:
        """When an exchange ends at the latest: nobody knows how many follow, and each must have some time.

        It ends before as soon as all that are connected have replied. One that did not is not waited for
        again, so that halves are taken once per node that is lost, not once per exchange.
        """
        now = time.monotonic()
        return now + (self._end - now) / 2

    def _may_close(self, current: Round) -> bool:
        """Whether all members have replied, or all that are connected."""
        return self._senders_now >= {*self._coordinator.waiting_for} or self._have_replied(current)

    def _have_replied(self, current: Round) -> bool:
        """Whether all nodes that are connected have replied, but for those that did not reply before."""
        if current.connected is None:
            return False
        return not ({*current.no_reply} & current.connected - self._unresponsive)

    def _is_closing(self) -> bool:
        """Whether to go on without some: at the beginning, only if so many are there as are expected."""
        n_keys = sum(name.startswith("keys/") for name in self.board)
        return self._coordinator.state != "keys" or n_keys >= self._expect

    def _content(self, node: int) -> RecordDict | None:
        """What a node needs of the board and does not have; None if nobody waits for it."""
        member, coordinator = self._member_of.get(node, _NOBODY), self._coordinator
        # Whoever is not in a sum can help to open it; and all get the end.
        waits = member == _NOBODY or coordinator.state in ("opened", "done")
        if node in self._final or not (waits or self._terms.ids[member] in coordinator.waiting_for):
            return None
        needed = relevant(self.board, member)
        self._sending[node] = {*needed}
        for name in self._has.get(node, set()) - {"session"}:
            needed.pop(name, None)
        senders = {name: owner_of(name) for name in self.board}
        known = [
            name for name, sender in senders.items() if sender is not None and member in (sender, _NOBODY)
        ]
        request = ConfigRecord(self._request | {"known": known})
        return RecordDict({"request": request, "board": array_record(needed)})

    def _receive(self, node: int, message: FlowerMessage | Exception) -> NodeReply:
        """Take the messages of a node. Anyone may have sent them: nothing in them may end the run."""
        reply = received(node, message, lambda sent: (_client(sent), sent), self._take)
        if reply.what == "rejected" or (reply.what == "failed" and not is_lost(message)):
            self._final.add(node)
            self._refused[reply.client or f"node {node}"] = reply.reason
        return reply

    def _messages(self, message: FlowerMessage) -> dict[str, bytes]:
        record = message.content.get("messages")
        if not isinstance(record, ArrayRecord):
            raise TypeError(f"messages must be an ArrayRecord, got {type(record).__name__}.")
        messages = {name: array.data for name, array in record.items()}
        if (size := sum(map(len, messages.values()))) > self._max_bytes:
            raise ValueError(f"messages of {size} bytes are larger than max-bytes={self._max_bytes}.")
        return messages

    def _take(self, node: int, sent: FlowerMessage) -> tuple[Outcome, str]:
        client, messages = _client(sent), self._messages(sent)
        if client not in self._terms.ids:
            raise SecureError(f"{client!r:.80} is not a member of study {self._session.roster.study!r:.80}.")
        index = self._terms.ids.index(client)
        for name, contents in messages.items():
            if owner_of(name) != index:
                raise SecureError(f"{name!r:.80} is not a message of {client!r:.80}.")
            self.board.check_size(name, len(contents))
            self._session.read(name, contents)
            self._senders_now.add(client)
        self.board.publish(messages)
        self._member_of[node] = index
        self._has[node] = self._has.get(node, set()) | self._sending[node]
        return "taken", ""


def _client(message: FlowerMessage) -> str:
    """Whom a node claims to be."""
    member = message.content.get("member")
    if not isinstance(member, ConfigRecord):
        raise TypeError("a reply in a run of secure sums must name a member, and this one does not.")
    return str(member["client"])
