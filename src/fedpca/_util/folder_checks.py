"""Whether a folder does what ledgers, stores and states rely on: tried with a second process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpca._util.files import append_json_line, atomic_write, create_exclusive, fsync_dir, json_lines
from fedpca._util.locks import file_lock, open_file

_LINES = 200  # of each of two processes: enough for them to meet, and less than a second on a slow drive
_OTHER = "import sys; from fedpca._util.folder_checks import other; other(*sys.argv[1:])"


@dataclass(frozen=True)
class Property:
    """Something that a folder has to do.

    Attributes:
        name: what.
        holds: whether it did.
        text: for whom it matters or, if it did not hold, what was seen.
    """

    name: str
    holds: bool
    text: str


def check_folder(folder: Path) -> list[Property]:
    """Try a folder in a folder of its own, which is removed again; OSError if nothing can be written.

    Two processes of one machine take part: what two machines see of each other is not tried.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} must be a folder, and is none; name the one to be tried.")
    with tempfile.TemporaryDirectory(prefix=".fedpca-", dir=folder.resolve()) as scratch:
        return list(_properties(Path(scratch)))


def _properties(folder: Path) -> Iterator[Property]:
    for name, needed_by, problem in (
        ("locks", "ledgers, stores, rosters, states", _locks),
        ("locks by a symbolic link", "a ledger under two names", _locks_by_links),
        ("appended lines", "ledgers, histories", _appends),
        ("renames", "stores, states, rosters, model files", _renames),
        ("hard links", "new ledgers, shared folders: files that are made once", _hard_links),
        ("fsync", "whatever must survive a crash of the machine", _syncs),
    ):
        try:
            found = problem(folder)
        except (OSError, ValueError) as error:
            found = str(error)
        yield Property(name, not found, found or needed_by)


def _locks(folder: Path) -> str:
    return _excluded(folder / "locked", folder / "locked")


def _locks_by_links(folder: Path) -> str:
    path, link = folder / "linked", folder / "link"
    path.touch()
    link.symlink_to(path)
    return _excluded(path, link)


def _excluded(path: Path, name: Path) -> str:
    """What is wrong with a lock on a file that another process tries by another name."""
    with file_lock(path):
        if _run("lock", name) != "held":
            return "two processes held one lock at once"
    return "" if _run("lock", name) == "free" else "a lock was not released"


def _appends(folder: Path) -> str:
    path = folder / "lines"
    path.touch()
    with _start("append", path) as process:
        _append(path, "this")
        process.communicate()
    lines = json_lines(path.read_bytes())
    if len(lines) == 2 * _LINES and len(set(lines)) == 2 * _LINES:
        return ""
    return f"of {2 * _LINES} lines that two processes appended, {len(set(lines))} are there"


def _append(path: Path, who: str) -> None:
    for number in range(_LINES):
        with file_lock(path, create=False) as file:
            append_json_line(file, {"who": who, "number": number})


def _renames(folder: Path) -> str:
    path = folder / "renamed"
    for contents in (b"first", b"second"):
        with atomic_write(path) as temporary:
            temporary.write_bytes(contents)
        with open_file(path, os.O_RDONLY) as file:
            if file.readall() != contents or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return "a file that was replaced is still the old one"
    return ""


def _hard_links(folder: Path) -> str:
    (folder / "linked once").touch()
    os.link(folder / "linked once", folder / "linked twice")
    made = create_exclusive(folder / "made", b"first"), create_exclusive(folder / "made", b"second")
    return "" if made == (True, False) else "a file was made twice"


def _syncs(folder: Path) -> str:
    with (folder / "synced").open("wb") as file:
        os.fsync(file.fileno())
    fsync_dir(folder)
    return ""


def _start(what: str, path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _OTHER, what, str(path)], stdout=subprocess.PIPE, text=True
    )


def _run(what: str, path: Path) -> str:
    with _start(what, path) as process:
        answer = process.communicate()[0]
    if process.returncode:
        raise OSError(f"the second process failed with exit code {process.returncode}")
    return answer


def other(what: str, name: str) -> None:
    """What the second process does."""
    if what == "append":
        _append(Path(name), "other")
        return
    try:
        with file_lock(Path(name), wait=False):
            sys.stdout.write("free")
    except BlockingIOError:
        sys.stdout.write("held")
