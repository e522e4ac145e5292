"""SecureNode: a node's part in secure sums, kept in a folder.

Flower may run every request in a new process. So the node keeps a copy of the board, and visits it as an
owner visits a shared folder: secrets are drawn once, and whatever leaves is written down before it does.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedpca._util.files import create_exclusive
from fedpca.errors import NodeError, SecureError
from fedpca.federation.flower.gate import Gate
from fedpca.federation.folder.secure import SharedSession
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.secure.messages import owner_of, place_of
from fedpca.secure.rows import OwnerRows
from fedpca.secure.session import Session
from fedpca.trust import Signer

_VERSION = "version"  # the file that says which one is summed


class SecureNode:
    """One version of one owner's rows in secure sums.

    A version is summed in one session, whatever a server asks for: every other one spends anew and, without
    noise, the difference of two sums over almost the same owners shows the others.

    Args:
        folder: of all sessions; created, for its owner only.
        version: of the rows.
        signer: the member, with the roster that it has agreed on.
        privacy: the settings, with the ledger that pays; None without noise.
        gate: what may leave.
        rows: opens them.
    """

    def __init__(
        self,
        folder: Path,
        version: int,
        signer: Signer,
        privacy: Privacy | None,
        gate: Gate,
        rows: Callable[[], RowReader],
    ) -> None:
        self._folder = folder
        self._version = version
        self._signer = signer
        self._privacy = privacy
        self._gate = gate
        self._rows = rows

    def reply(self, board: Mapping[str, bytes], known: Collection[str]) -> dict[str, bytes]:
        """The messages to send now.

        Args:
            board: what is new on it for this node, and the session.
            known: names of messages that the server has, and which are not sent again.

        Raises:
            NodeError: this node takes no part, before anything is read or spent.
            SecureError: the board contradicts what this node knows; nothing new is sent.
        """
        roster = self._signer.roster
        session = Session(roster, board["session"])
        copy = self._of_session(session) / "board"
        copy.mkdir(mode=0o700, exist_ok=True)
        if strange := [name for name in board if place_of(name) is None]:
            raise SecureError(f"a board must have messages of a session only, got {strange[0]!r:.80}.")
        ours = SharedSession(copy, roster)
        ours.board.publish(board)
        with self._gate.in_public():
            ours.visit(
                self._signer.key,
                lambda: OwnerRows.of_reader(self._rows()),
                self._folder,
                ledger=None if self._privacy is None else self._privacy.open_ledger(),
                policy=self._gate.policy,
            )
        index = session.index_of(self._signer.key)
        return {
            name: contents
            for name, contents in ours.board.items()
            if name not in known and owner_of(name) == index
        }

    def _of_session(self, session: Session) -> Path:
        """The folder of a session, if this version has not been summed in another one."""
        folder = self._folder / session.id[:32]
        for other in {masked.parents[1] for masked in self._folder.glob("*/sent/*-masked-*")} - {folder}:
            if (other / _VERSION).read_text() == str(self._version):
                raise NodeError(
                    f"version {self._version} of the rows is summed in session {other.name}, and in no "
                    "other; run in the folder of that session, or increase version in the node config to be "
                    "summed again, which spends anew."
                )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_exclusive(folder / _VERSION, str(self._version).encode(), owner_only=True)
        return folder
