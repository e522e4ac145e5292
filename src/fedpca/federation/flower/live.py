"""Live: what a node keeps that no backup may bring back, in a folder beside its state folder."""

import json
import secrets
from pathlib import Path

from fedpca._typing import JSON
from fedpca._util.files import atomic_write
from fedpca.errors import NodeError


class Live:
    """The folder of a node's sessions of secure sums, and of the keys of noise that is still to be drawn.

    A session that is set back might answer twice, and whoever has a key can take off the noise that follows
    from it. So both are outside of the state folder, which is backed up. A random word is written in both
    folders, and another one at every visit: where they differ, one of the two is missing or of another time.
    Both list the versions and sessions that were begun: one that only the state folder knows was lost with
    what it had drawn, and is not begun a second time.

    Args:
        state: the state folder of the node.

    Attributes:
        folder: `state` with "-live" at the end of its name.
    """

    def __init__(self, state: Path) -> None:
        state = state.resolve()
        self.folder = state.with_name(f"{state.name}-live")
        self._in_state, self._in_folder = state / "live.json", self.folder / "live.json"

    def enter(self, version: int, session: str = "") -> None:
        """Before something of a version is drawn: the folders must belong together. The caller has the lock.

        Args:
            version: of the rows.
            session: of secure sums, if it is drawn for one.

        Raises:
            NodeError: they do not, or what was drawn for this version or in this session is no longer here.
        """
        kept, live = _read(self._in_state), _read(self._in_folder)
        word, begun = kept.get("word", ""), [f"version {version}", f"session {session}"][: 1 + bool(session)]
        if live and word not in live["words"]:
            raise NodeError(
                'the state folder and the folder beside it that ends in "-live" are not of the same time: '
                "one of them comes from a backup or a copy. Use those that belong together or, if they are "
                'lost, remove the folder that ends in "-live" and increase version in the node config to '
                "begin again, which spends anew."
            )
        known, here = kept.get("begun", []), live.get("begun", [])
        if lost := [name for name in begun if name in known and name not in here]:
            again = (
                "let the server begin another session, in a folder of its own"
                if lost == begun[1:]
                else "increase version in the node config"
            )
            raise NodeError(
                f"what was drawn for {lost[0]:.48} is missing: it is in the folder beside the state folder "
                f'that ends in "-live", and never in a backup. Bring that folder back if it was moved, or '
                f"{again} to begin again, which spends anew."
            )
        new = secrets.token_hex(16)
        here, known = sorted({*here, *begun}), sorted({*known, *begun})
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for path, found in (
            (self._in_folder, {"words": [word, new], "begun": here}),  # either word, if killed here
            (self._in_state, {"word": new, "begun": known}),
            (self._in_folder, {"words": [new], "begun": here}),
        ):
            write(path, json.dumps(found).encode())


def write(path: Path, contents: bytes) -> None:
    """Write a file whole or not at all, for its owner only."""
    with atomic_write(path, owner_only=True) as temporary:
        temporary.write_bytes(contents)


def _read(path: Path) -> JSON:
    if not path.exists():
        return {}
    found: JSON = json.loads(path.read_bytes())
    return found
