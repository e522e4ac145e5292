"""BoardFiles: the board of a session of secure sums in a folder, every message a file that is written once."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedpca._util.files import create_exclusive, remove_leftovers
from fedpca.errors import SecureError

_NAME = re.compile(r"(\d\d/)?[a-z]+(/\d\d\d)?")


class BoardFiles(Mapping[str, bytes]):
    """Messages by name, read when they are needed: masked words are large.

    Args:
        folder: created, for its owner only. One process at a time writes to it.

    >>> from tempfile import mkdtemp
    >>> board = BoardFiles(Path(mkdtemp()) / "board")
    >>> board.add("00/total", b"sum")
    >>> dict(board), BoardFiles(board.folder)["00/total"]
    ({'00/total': b'sum'}, b'sum')
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(folder)
        self._names = {path.name.replace("-", "/"): path for path in sorted(folder.glob("[!.]*"))}

    def add(self, name: str, contents: bytes) -> None:
        """Write a message; the same again changes nothing.

        Raises:
            SecureError: there is another one of this name, or it is no name of a message.
        """
        if not _NAME.fullmatch(name):
            raise SecureError(f"messages must have names of messages, and {name!r:.80} is none.")
        path = self.folder / name.replace("/", "-")
        if not create_exclusive(path, contents, owner_only=True) and path.read_bytes() != contents:
            raise SecureError(
                f"every message must be sent once, and there is another {name} than before; nothing more is "
                "answered: ask whoever sent it."
            )
        self._names[name] = path

    def __getitem__(self, name: str) -> bytes:
        return self._names[name].read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names
