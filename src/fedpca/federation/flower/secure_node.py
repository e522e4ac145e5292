"""SecureNode: a node's part in secure sums, kept in a folder.

Flower may run every request in a new process. So secrets are drawn once, and whatever leaves is written down
before it does and served unchanged.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedpca.errors import NodeError
from fedpca.federation.flower.board_files import BoardFiles
from fedpca.federation.flower.gate import Gate
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.secure.owner_state import OwnerFiles
from fedpca.secure.rows import OwnerRows
from fedpca.secure.study import OwnerStudy, fit_of, privacy_of
from fedpca.secure.wire import digest
from fedpca.trust import Signer

_SETTINGS = ("epsilon", "delta", "bound", "center", "adjacency", "mechanism")


class SecureNode:
    """One version of one owner's rows in a secure study.

    A version takes part in one session: of two sums over almost the same owners the difference would show the
    others.

    Args:
        folder: of this version; created, for its owner only.
        signer: the member, with the roster that it has agreed on.
        privacy: the settings, with the ledger that pays; None without noise.
        gate: what may leave.
        rows: opens them.
    """

    def __init__(
        self,
        folder: Path,
        signer: Signer,
        privacy: Privacy | None,
        gate: Gate,
        rows: Callable[[], RowReader],
    ) -> None:
        self._folder = folder
        self._signer = signer
        self._privacy = privacy
        self._gate = gate
        self._rows = rows

    def reply(self, board: Mapping[str, bytes], known: Collection[str]) -> dict[str, bytes]:
        """The messages to send now.

        Args:
            board: what is new on it for this node.
            known: names of messages that the server has, and which are not sent again.

        Raises:
            NodeError: this node takes no part, before anything is read or spent.
            SecureError: the board contradicts what this node knows; nothing new is sent.
        """
        self._check_settings()
        roster, session = self._signer.roster, board["session"]
        folder = self._of_session(session)
        files = OwnerFiles(folder)
        with files.locked():
            received = BoardFiles(folder / "board")
            for name, contents in board.items():
                received.add(name, contents)
            with self._gate.in_public():
                study = OwnerStudy(
                    roster,
                    session,
                    self._signer.key,
                    fit_of(roster),
                    OwnerRows.of_reader(self._rows()),
                    files,
                    privacy=self._privacy,
                    ledger=None if self._privacy is None else self._privacy.open_ledger(),
                    policy=self._gate.policy,
                )
                study.reply(received)
            return {name: contents for name, contents in files.sent.items() if name not in known}

    def _check_settings(self) -> None:
        """Raise a NodeError for other settings than those of the roster."""
        agreed = privacy_of(self._signer.roster)
        for name in _SETTINGS:
            stated, mine = getattr(agreed, name, None), getattr(self._privacy, name, None)
            if mine != stated:
                raise NodeError(
                    f"{name} must be {stated!r} in this secure study, as its roster states, got {mine!r}; "
                    "correct the node config."
                )

    def _of_session(self, session: bytes) -> Path:
        """The folder of a session, if this version has not been summed in another one."""
        folder = self._folder / digest(session)[:32]
        for other in self._folder.glob("*/sent/*masked*"):
            if (begun := other.parents[1]) != folder:
                raise NodeError(
                    f"this version of the rows takes part in session {begun.name[:16]}, and in no other; run "
                    "in the folder of that session, or increase version in the node config to take part in "
                    "another one, which spends anew."
                )
        return folder
