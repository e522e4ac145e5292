"""Locks: who may write to a file now, whatever its name, and which process made an object.

A lock belongs to the contents: it is held on a descriptor of the file itself, so that a symbolic link, a hard
link and a mount of one file all lead to one lock. It belongs to one process: a fork does not have it, and
does not keep it.
"""

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

# How often a file may be replaced while it is waited for: each time, whoever replaced it held the lock.
_MOST_REPLACED = 1000

_held: set[FileIO] = set()  # descriptors with a lock of this process
_forks = 0


def process() -> tuple[int, int]:
    """This process, for objects that must not be used in another one that has a copy of them.

    Two numbers: how many forks lie between it and the first, since numbers of processes are used again; and
    its own, since a library in C may fork without Python.
    """
    return _forks, os.getpid()


def _after_fork() -> None:
    """In the child: its parent's locks are not its own, and must not outlive the parent's use of them."""
    global _forks
    _forks += 1
    for file in _held:
        file.close()  # unlike unlocking, this leaves the parent its lock
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def file_lock(path: Path, *, wait: bool = True, create: bool = True) -> Iterator[FileIO]:
    """Lock a file and open it to read and append; the system releases it when the process dies.

    Args:
        path: the file.
        wait: for whoever holds it.
        create: an empty file that only its owner can read, if there is none.

    Raises:
        BlockingIOError: another process or thread holds it, and `wait` is False.
        FileNotFoundError: there is none, and `create` is False.
        ValueError: it is a folder, a pipe or a device.
    """
    with _locked(path, wait, create) as file:
        _held.add(file)
        mine = process()
        try:
            yield file
        finally:
            _held.discard(file)
            # Another thread may have forked in between: its child has a copy of the descriptor, with which
            # the lock would outlive this block.
            if mine == process():
                _unlock(file.fileno())


def _locked(path: Path, wait: bool, create: bool) -> FileIO:
    """The file that has this name at the moment at which its lock is ours."""
    for _ in range(_MOST_REPLACED):
        file = open_file(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0))
        try:
            _lock(file.fileno(), wait)
            if is_at(file, path):
                return file
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):  # of the lock, where the system names no file
                error.filename = str(path)
            raise
        file.close()
    raise OSError(
        errno.EAGAIN,
        f"{path} is replaced again and again, or is on a file system where files have no lasting number; "
        "move it to a local disk",
    )


def is_at(file: FileIO, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def open_file(path: Path, flags: int) -> FileIO:
    """Open a regular file, a new one for its owner only; ValueError for what else may never answer."""
    quick = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags | quick, 0o600)
    except OSError as error:
        # A folder, a pipe that nobody reads, and a socket.
        if error.errno in (errno.EISDIR, errno.ENXIO) or path.is_dir():
            raise _not_a_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path)
    return FileIO(str(path), "rb+" if flags & os.O_RDWR else "rb", opener=lambda *_: descriptor)


def _not_a_file(path: Path) -> ValueError:
    return ValueError(f"{path} must be a file, and is a folder, a pipe or a device; move it away.")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for a moment."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, wait=True)
        mine = process()
        try:
            yield
        finally:
            if mine == process():
                _unlock(descriptor)
    finally:
        os.close(descriptor)


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    # Locked bytes cannot be read by others there: one far behind the end of any ledger or roster.
    _FAR = 2**30

    def _lock(descriptor: int, wait: bool) -> None:
        while True:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "it is locked") from error
                time.sleep(0.05)
            else:
                os.lseek(descriptor, 0, os.SEEK_SET)
                return

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
