"""Files that survive crashes: atomic writes, exclusive creation, appended JSON lines."""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from fedpca._util.locks import folder_lock

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(text: str) -> bool:
    """Whether a path has a protocol.

    >>> is_url("https://example.org/rows.csv"), is_url("C:/rows.csv")
    (True, False)
    """
    return bool(_URL.match(text))


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path of this machine; rejects URLs.

    >>> local_path("s3://bucket/rows.parquet")
    Traceback (most recent call last):
    ...
    ValueError: remote paths are not supported, got s3://bucket/rows.parquet; use a file on this machine.
    """
    text = os.fspath(path)
    if is_url(text):
        raise ValueError(f"remote paths are not supported, got {text}; use a file on this machine.")
    return Path(path)


@contextmanager
def atomic_write(path: Path, *, owner_only: bool = False) -> Iterator[Path]:
    """A temporary file in the same folder that replaces `path` once the block ends, else is removed.

    Args:
        path: the file to write.
        owner_only: nobody but its owner may read the file; else it has the usual permissions, or those of
            the file that it replaces.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "notes.txt"
    >>> with atomic_write(path) as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}; create it.")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; choose another name.")
    temporary = _temporary(path)
    try:
        if owner_only:
            temporary.touch(0o600)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists() and not owner_only:
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def create_exclusive(path: Path, contents: bytes, *, owner_only: bool = False) -> bool:
    """Create a file, complete or not at all; False if one of this name exists, which is left as it is.

    With `owner_only` nobody but its owner may ever read it.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "notes.txt"
    >>> create_exclusive(path, b"first"), create_exclusive(path, b"second"), path.read_bytes()
    (True, False, b'first')
    """
    temporary = _temporary(path)
    try:
        mode = 0o600 if owner_only else 0o666
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with _named(path), open(descriptor, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, never over an existing file
        except FileExistsError:
            return False
        except OSError:  # some network drives have no hard links
            with folder_lock(path.parent):  # a rename replaces: one at a time may look and rename
                if os.path.lexists(path):
                    return False
                os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of writers that were killed; only for a folder that nobody writes to now."""
    for path in folder.glob(".fedpca-*.part"):
        path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".fedpca-{secrets.token_hex(8)}.part")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in an error of the system, which names none where a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def fsync_dir(folder: Path) -> None:
    """Make new names in a folder survive a crash."""
    if os.name == "nt":  # no folder can be opened there, and the file system keeps a journal of names
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_json_line(file: FileIO, record: Mapping[str, object], *, known: int | None = None) -> int:
    """Append one JSON object as a line, flush it to disk, and read it again.

    A torn last line is removed first.

    Args:
        file: open to read and append, and locked.
        record: the object.
        known: how many bytes of the file the caller has read; by default, all.

    Returns:
        The size of the file.

    Raises:
        OSError: somebody else wrote at the same moment. The line may be in the file, and may not.
    """
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    end = file.seek(0, os.SEEK_END)
    if known not in (None, end):
        raise _not_alone(file)
    if end:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            last = file.readall().rpartition(b"\n")[2]
            if _is_complete(last):
                line = b"\n" + line
            else:
                end = file.truncate(end - len(last))
    with _named(Path(file.name)):
        left = line
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    file.seek(end)
    if file.readall() != line:
        raise _not_alone(file)
    return end + len(line)


def _not_alone(file: FileIO) -> OSError:
    return OSError(
        errno.EIO,
        "somebody else wrote to the file at the same moment, although it is locked; keep it on a local disk, "
        "and see what `fedpca check-folder` says of its folder",
    )


def json_lines(contents: bytes) -> list[bytes]:
    """The lines of a file of JSON lines. A torn last line is left out; a complete one needs no newline.

    >>> json_lines(b'{"a": 1}\\n{"b": 2}'), json_lines(b'{"a": 1}\\n{"b": ')
    ([b'{"a": 1}', b'{"b": 2}'], [b'{"a": 1}'])
    """
    *lines, last = contents.split(b"\n")
    return [*lines, last] if _is_complete(last) else lines


def _is_complete(last: bytes) -> bool:
    """Whether a last line without a newline was written in full: a prefix of a JSON object never parses."""
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return False
    return True
