"""A federation without a server: owners drop summaries into a shared folder, and its readers merge them."""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from fedpca._util.files import create_exclusive
from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.message import child_name, file_name, version_number
from fedpca.summaries import model_file, validation
from fedpca.summaries.summary import Summary, from_file

_FILE_NAME = re.compile(r"([a-z0-9_%-]+)\.(0|[1-9][0-9]{0,18})\.safetensors")


@dataclass(frozen=True)
class SkippedFile:
    """A file of a shared folder that did not count.

    Attributes:
        file: its name.
        reason: why.
        stamp: changes when the file does.
    """

    file: str
    reason: str
    stamp: str = field(default="", repr=False)


def drop(folder: str | os.PathLike[str], child: str, version: int, summary: Summary) -> str:
    """Put a summary into a shared folder, whole or not at all, for `collect` to find.

    The file is a model file like any other: `fedpca.load` reads it, too. Doing it again changes nothing.

    Args:
        folder: one that exists, or a URL such as "s3://bucket/study", which needs the extra "folder".
        child: whose it is: any name.
        version: a whole number, larger than those before. What another version said stays in the folder;
            readers take the newest.
        summary: of all rows of this child so far: a `Subspace` or `Moments`, a private release included.

    Returns:
        Where it is.

    Raises:
        FileExistsError: there is something else under this version; it stays.

    >>> import tempfile, numpy as np, fedpca
    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     path = drop(shared, "north", 1, Subspace.from_rows(rows))
    ...     Path(path).name, fedpca.load(path).count
    ('north.1.safetensors', 20.0)
    """
    child, version = child_name(child), version_number(version)
    if not isinstance(summary, Summary):
        raise TypeError(f"a summary must be a Subspace or Moments, got {type(summary).__name__}.")
    arrays, facts = summary.arrays, summary.metadata
    name = f"{file_name(child)}.{version}.safetensors"
    contents = model_file.encode(summary.kind, arrays, facts | {"child": child, "version": version})
    place = _place(folder)
    if not place.create(name, contents) and place.read(name, len(contents) + 1) != contents:
        raise FileExistsError(
            f"version {version} of {child!r} is in {folder} already, with other contents; "
            "drop a newer version."
        )
    return place.path(name)


def collect(
    folder: str | os.PathLike[str],
    aggregator: Aggregator,
    *,
    before: Iterable[SkippedFile] = (),
    max_bytes: int = 2**30,
) -> list[SkippedFile]:
    """Hand the newest good version of every child in a shared folder to an aggregator.

    No file can make it fail, or make it read or write anything outside the folder. What the aggregator has
    is not read again; hidden files, such as those half written, are passed over. How the model stands
    then is noted in the aggregator's history.

    Args:
        folder: as for `drop`.
        aggregator: takes the summaries, or refuses them.
        before: what the last call returned: files ignored then are looked at again only if they changed.
        max_bytes: larger files are ignored unread.

    Returns:
        The files that did not count, and why; older versions than the one that counts are not listed.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     for seed, child in enumerate(["north", "south"]):
    ...         rows = np.random.default_rng(seed).normal(size=(20, 3))
    ...         path = drop(shared, child, 1, Subspace.from_rows(rows))
    ...     size = Path(shared, "notes.txt").write_text("what we did")
    ...     aggregator = Aggregator(rank=1)
    ...     collect(shared, aggregator)
    [SkippedFile(file='notes.txt', reason='not a name that drop gives to a file.')]
    >>> aggregator.model().count
    40.0
    """
    validation.integer(max_bytes, "max_bytes", at_least=1)
    place = _place(folder)
    ignored: list[SkippedFile] = []
    known = {(old.file, old.stamp): old for old in before}
    versions: dict[str, list[tuple[int, _Entry]]] = {}
    for entry in sorted(place.entries()):
        match = _FILE_NAME.fullmatch(entry.name)
        if entry.name.startswith("."):
            continue
        if not entry.plain:
            ignored.append(entry.ignored("not a plain file."))
        elif match is None:
            ignored.append(entry.ignored("not a name that drop gives to a file."))
        elif entry.size > max_bytes:
            ignored.append(entry.ignored(f"{entry.size} bytes are more than max_bytes={max_bytes}."))
        else:
            versions.setdefault(match[1], []).append((int(match[2]), entry))
    have = {file_name(name): version for name, version in aggregator.versions.items()}
    for stem, found in sorted(versions.items()):
        for version, entry in sorted(found, reverse=True):
            if version <= have.get(stem, -1):
                break
            if old := known.get((entry.shown, entry.stamp)):
                ignored.append(old)
                continue
            try:
                child, summary = _read(place, entry.name, max_bytes)
            except (
                Exception
            ) as error:  # a stranger wrote it: whatever is wrong with it is wrong with it alone
                ignored.append(entry.ignored(str(error) or type(error).__name__))
                continue
            try:
                aggregator.receive(child, version, summary)
            except SummaryRejected as refusal:
                ignored.append(entry.ignored(f"refused: {refusal}"))
                continue
            break
    aggregator.record()
    return sorted(ignored, key=lambda item: item.file)


def _read(place: "_Place", name: str, max_bytes: int) -> tuple[str, Summary]:
    """Who speaks in a file, and what it says: parsed from a copy, which nobody can change meanwhile."""
    contents = place.read(name, max_bytes + 1)
    if len(contents) > max_bytes:
        raise ValueError(f"it has grown to more than max_bytes={max_bytes}.")
    kind, arrays, facts = model_file.decode(contents, name)
    summary = from_file(name, kind, arrays, facts)
    child, version = child_name(facts.get("child")), facts.get("version")
    if type(version) is not int or name != f"{file_name(child)}.{version}.safetensors":
        raise ValueError(f"renamed: it is version {version!r} of {child!r}.")
    return child, summary


# --- folders and buckets ---


class _Entry(NamedTuple):
    name: str
    plain: bool
    size: int
    stamp: str

    @property
    def shown(self) -> str:
        return self.name.encode(errors="backslashreplace").decode()

    def ignored(self, reason: str) -> SkippedFile:
        reason = reason if len(reason) <= 500 else reason[:497] + "..."
        return SkippedFile(self.shown, reason.encode(errors="backslashreplace").decode(), self.stamp)


class _Place(Protocol):
    def path(self, name: str) -> str: ...
    def entries(self) -> list[_Entry]: ...
    def read(self, name: str, max_bytes: int) -> bytes:
        """The file, or as much of it."""

    def create(self, name: str, contents: bytes) -> bool:
        """Whether the file is new; if there is one of this name, it stays."""


def _place(folder: str | os.PathLike[str]) -> _Place:
    where = os.fspath(folder)
    if isinstance(folder, str) and "://" in where and not where.startswith("file://"):
        return _Bucket(where)
    return _Local(Path(where.removeprefix("file://")))


class _Local:
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
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # gone since
                    continue
                stamp = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ino}"
                found.append(_Entry(entry.name, stat.S_ISREG(facts.st_mode), facts.st_size, stamp))
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        # Neither a link to elsewhere nor a pipe that blocks, even if it took the place of a file just now.
        descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("not a plain file.")
            return file.read(max_bytes)

    def create(self, name: str, contents: bytes) -> bool:
        return create_exclusive(self.folder / name, contents)


class _Bucket:
    """A place that fsspec knows. Where uploads are not atomic, half a file is ignored until it is whole."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(
                f"{url} needs fsspec: pip install 'fedpca[folder]', or name a local folder."
            ) from error
        self.url = url.rstrip("/")
        self.files, path = url_to_fs(self.url)
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
