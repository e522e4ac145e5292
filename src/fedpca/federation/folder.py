"""A federation without a server: owners publish summaries in a shared folder, and its readers merge them."""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from fedpca._util.extras import require
from fedpca._util.files import create_exclusive
from fedpca._util.text import sanitize
from fedpca.errors import ModelFileError, SummaryRejected
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.message import Message, file_name, require_summary
from fedpca.summaries import validation
from fedpca.summaries.summary import Summary

_FILE_NAME = re.compile(r"([a-z0-9_%-]+)\.(0|[1-9][0-9]{0,18})\.safetensors")


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


def publish(folder: str | os.PathLike[str], child: str, version: int, summary: Summary) -> str:
    """Write a summary to a shared folder, completely or not at all, for `collect` to find.

    The file is a model file like any other: `fedpca.load` reads it, too. Publishing it again changes nothing.

    Args:
        folder: a folder that exists, or a URL such as "s3://bucket/study", which needs the extra "folder".
        child: the name of the owner: any text.
        version: a whole number, larger than those before. Files of older versions stay in the folder;
            readers use the newest.
        summary: of all rows of this child so far: a `Subspace` or `Moments`, a private release included.

    Returns:
        The path of the file.

    Raises:
        FileExistsError: this version exists with other contents; it is left as it is.

    >>> import tempfile, numpy as np, fedpca
    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     path = publish(shared, "north", 1, fedpca.Subspace.from_rows(rows))
    ...     Path(path).name, fedpca.load(path).count
    ('north.1.safetensors', 20.0)
    """
    message = Message(child, version, require_summary(summary))
    name, contents = _file_name(message), message.encode()
    storage = _open_storage(folder)
    if not storage.create(name, contents) and storage.read(name, len(contents) + 1) != contents:
        raise FileExistsError(
            f"version {message.version} of {message.child!r} already exists in {folder} with other contents; "
            "publish a newer version."
        )
    return storage.path(name)


def collect(
    folder: str | os.PathLike[str],
    aggregator: Aggregator,
    *,
    before: Iterable[SkippedFile] = (),
    max_bytes: int = 2**30,
) -> list[SkippedFile]:
    """Hand the newest valid version of every child in a shared folder to an aggregator.

    No file can make it fail, or make it read or write anything outside the folder. Versions that the
    aggregator has are not read again; hidden files, such as unfinished ones, are skipped. The resulting model
    is recorded in the aggregator's history. Limits on what counts, such as `max_rows` and `max_rms`, are
    those of the aggregator.

    Args:
        folder: as for `publish`.
        aggregator: receives the summaries.
        before: the result of the last call: invalid files are read again only if they changed, rejected ones
            also if the aggregator has.
        max_bytes: larger files are skipped unread.

    Returns:
        The files that do not count, and why; older versions than the one that counts are not listed.

    >>> import tempfile, numpy as np, fedpca
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     for seed, child in enumerate(["north", "south"]):
    ...         rows = np.random.default_rng(seed).normal(size=(20, 3))
    ...         path = publish(shared, child, 1, fedpca.Subspace.from_rows(rows))
    ...     size = Path(shared, "notes.txt").write_text("meeting at ten")
    ...     aggregator = Aggregator(rank=1)
    ...     collect(shared, aggregator)
    [SkippedFile(file='notes.txt', reason='file name is not <child>.<version>.safetensors.')]
    >>> aggregator.model().count
    40.0
    """
    validation.integer(max_bytes, "max_bytes", at_least=1)
    storage = _open_storage(folder)
    known = {(old.file, old.stamp): old for old in before}
    received = {file_name(child): version for child, version in aggregator.versions.items()}
    candidates, skipped = _candidates(storage, max_bytes)
    for stem, versions in sorted(candidates.items()):
        for version, entry in sorted(versions, reverse=True):
            if version <= received.get(stem, -1):
                break
            problem = known.get((entry.shown, entry.stamp))
            problem = problem or known.get((entry.shown, _stamp_of_rejection(entry, aggregator)))
            problem = problem or _hand_over(storage, entry, aggregator, max_bytes)
            if problem is None:
                break  # older versions do not count
            skipped.append(problem)
    aggregator.record()
    return sorted(skipped, key=lambda item: item.file)


def _candidates(
    storage: "_Storage", max_bytes: int
) -> tuple[dict[str, list[tuple[int, "_Entry"]]], list[SkippedFile]]:
    """The files that may be messages, with their versions, by child; and those that cannot be."""
    candidates: dict[str, list[tuple[int, _Entry]]] = {}
    skipped = []
    for entry in storage.entries():
        match = _FILE_NAME.fullmatch(entry.name)
        if entry.name.startswith("."):
            continue
        if not entry.is_file:
            skipped.append(entry.skipped("not a regular file."))
        elif match is None:
            skipped.append(entry.skipped("file name is not <child>.<version>.safetensors."))
        elif entry.size > max_bytes:
            skipped.append(entry.skipped(f"{entry.size} bytes are more than max_bytes={max_bytes}."))
        else:
            candidates.setdefault(match[1], []).append((int(match[2]), entry))
    return candidates, skipped


def _hand_over(
    storage: "_Storage", entry: "_Entry", aggregator: Aggregator, max_bytes: int
) -> SkippedFile | None:
    """Read a file and hand its message to the aggregator; returns why it does not count, or None."""
    try:
        message, summary = _read(storage, entry.name, max_bytes)
    except ModelFileError as error:
        return entry.skipped(str(error), entry.stamp)
    except Exception as error:  # permissions and networks change without a trace in the file
        return entry.skipped(str(error) or type(error).__name__)
    try:
        aggregator.receive(message.child, message.version, summary)
    except SummaryRejected as rejection:
        return entry.skipped(f"rejected: {rejection}", _stamp_of_rejection(entry, aggregator))
    except OSError:  # of the store, for all files alike
        raise
    except Exception as error:  # anyone may have written the file: no fault of it may stop the others
        return entry.skipped(f"rejected: {type(error).__name__}: {error}")
    return None


def _read(storage: "_Storage", name: str, max_bytes: int) -> tuple[Message, Summary]:
    """The message in a file, decoded from a copy in memory that nobody can change meanwhile."""
    contents = storage.read(name, max_bytes + 1)
    if len(contents) > max_bytes:
        raise ValueError(f"it has grown to more than max_bytes={max_bytes}.")
    message = Message.decode(contents, name)
    if name != _file_name(message):
        raise ModelFileError(f"renamed: it is version {message.version} of {message.child!r}.")
    if message.summary is None:
        raise ModelFileError("it has no summary; only the aggregator withdraws a child.")
    return message, message.summary


def _stamp_of_rejection(entry: "_Entry", aggregator: Aggregator) -> str:
    """What another child has sent may be the reason, and may change."""
    return f"{entry.stamp} {aggregator.version}"


def _file_name(message: Message) -> str:
    return f"{file_name(message.child)}.{message.version}.safetensors"


# --- folders and buckets ---


class _Entry(NamedTuple):
    name: str
    is_file: bool
    size: int
    stamp: str

    @property
    def shown(self) -> str:
        return sanitize(self.name)

    def skipped(self, reason: str, stamp: str = "") -> SkippedFile:
        return SkippedFile(self.shown, sanitize(reason, limit=500), stamp)


class _Storage(Protocol):
    def path(self, name: str) -> str: ...
    def entries(self) -> list[_Entry]: ...
    def read(self, name: str, max_bytes: int) -> bytes:
        """The file, or its first `max_bytes`."""

    def create(self, name: str, contents: bytes) -> bool:
        """Create a file, completely or not at all; False if one of this name exists."""


def _open_storage(folder: str | os.PathLike[str]) -> _Storage:
    path = os.fspath(folder)
    if isinstance(folder, str) and "://" in path and not path.startswith("file://"):
        return _Bucket(path)
    return _LocalFolder(Path(path.removeprefix("file://")))


class _LocalFolder:
    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}; make or mount it first.")
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def entries(self) -> list[_Entry]:
        found = []
        with os.scandir(self.folder) as listing:
            for entry in listing:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
                found.append(_Entry(entry.name, stat.S_ISREG(status.st_mode), status.st_size, stamp))
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        # Neither a link to elsewhere nor a pipe that blocks, even if one has just replaced the file.
        descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("not a regular file.")
            return file.read(max_bytes)

    def create(self, name: str, contents: bytes) -> bool:
        return create_exclusive(self.folder / name, contents)


class _Bucket:
    """A folder behind a URL, by fsspec. Where uploads are not atomic, unfinished files are skipped."""

    def __init__(self, url: str) -> None:
        fsspec = require("fsspec", extra="folder", purpose=f"the shared folder {url}")
        self.url = url.rstrip("/")
        self.files, path = fsspec.url_to_fs(self.url)
        self.folder = path.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def entries(self) -> list[_Entry]:
        self.files.invalidate_cache()
        try:
            listing = self.files.ls(self.folder, detail=True)
        except FileNotFoundError:  # a bucket has no empty folders
            return []
        found = []
        for entry in listing:
            name = entry["name"].rstrip("/").rpartition("/")[2]
            stamp = " ".join(f"{key}={entry[key]}" for key in sorted(entry))
            found.append(_Entry(name, entry["type"] == "file", int(entry["size"] or 0), stamp))
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        return bytes(self.files.cat_file(f"{self.folder}/{name}", start=0, end=max_bytes))

    def create(self, name: str, contents: bytes) -> bool:
        try:
            self.files.pipe_file(f"{self.folder}/{name}", contents, mode="create")
        except FileExistsError:
            return False
        return True
