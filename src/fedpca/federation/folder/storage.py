"""Files in a shared folder or bucket: listed, read and created, whoever else writes there."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from fedpca._util.extras import require
from fedpca._util.files import create_exclusive
from fedpca._util.text import sanitize


@dataclass(frozen=True)
class SkippedFile:
    """A file in a shared folder that does not count.

    Attributes:
        file: its name.
        reason: why.
        stamp: changes when the file does and, if an aggregator rejected it, when the aggregator does; "" if
            the file could not be read, which has to be tried again.
    """

    file: str
    reason: str
    stamp: str = field(default="", repr=False)


class Entry(NamedTuple):
    """A file, as a listing has it; `stamp` changes when it does."""

    name: str
    is_file: bool
    size: int
    stamp: str

    @property
    def shown(self) -> str:
        """The name, for people."""
        return sanitize(self.name)

    def skipped(self, reason: str, stamp: str = "") -> SkippedFile:
        """The file as one that does not count."""
        return SkippedFile(self.shown, sanitize(reason, limit=500), stamp)


class Storage(Protocol):
    """A folder that others write to as well."""

    def path(self, name: str) -> str:
        """The whole path of a file."""

    def entries(self) -> list[Entry]:
        """All files."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """The file, or its first `max_bytes`."""

    def create(self, name: str, contents: bytes) -> bool:
        """Create a file, completely or not at all; False if one of this name exists."""


def open_storage(folder: str | os.PathLike[str]) -> Storage:
    """A folder of this machine, or one behind a URL."""
    path = os.fspath(folder)
    if isinstance(folder, str) and "://" in path and not path.startswith("file://"):
        return Bucket(path)
    return LocalFolder(Path(path.removeprefix("file://")))


class LocalFolder:
    """A folder of this machine, or one that is mounted."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}; make or mount it first.")
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def entries(self) -> list[Entry]:
        found = []
        with os.scandir(self.folder) as listing:
            for entry in listing:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
                found.append(Entry(entry.name, stat.S_ISREG(status.st_mode), status.st_size, stamp))
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        # Neither a link to elsewhere nor a pipe that blocks, even if one has just replaced the file.
        descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("not a regular file.")
            return file.read(min(max_bytes, status.st_size + 1))  # Python reserves as much as may come

    def create(self, name: str, contents: bytes) -> bool:
        return create_exclusive(self.folder / name, contents)


class Bucket:
    """A folder behind a URL, by fsspec. Where uploads are not atomic, unfinished files are skipped."""

    def __init__(self, url: str) -> None:
        fsspec = require("fsspec", extra="folder", purpose=f"the shared folder {url}")
        self.url = url.rstrip("/")
        self.files, path = fsspec.url_to_fs(self.url)
        self.folder = path.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def entries(self) -> list[Entry]:
        self.files.invalidate_cache()
        try:
            listing = self.files.ls(self.folder, detail=True)
        except FileNotFoundError:  # a bucket has no empty folders
            return []
        found = []
        for entry in listing:
            name = entry["name"].rstrip("/").rpartition("/")[2]
            stamp = " ".join(f"{key}={entry[key]}" for key in sorted(entry))
            found.append(Entry(name, entry["type"] == "file", int(entry["size"] or 0), stamp))
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        return bytes(self.files.cat_file(f"{self.folder}/{name}", start=0, end=max_bytes))

    def create(self, name: str, contents: bytes) -> bool:
        try:
            self.files.pipe_file(f"{self.folder}/{name}", contents, mode="create")
        except FileExistsError:
            return False
        return True
