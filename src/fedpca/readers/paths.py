"""From a path, a glob or a folder to the files it stands for, all of one format."""

import hashlib
import os
import stat
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from shutil import copyfileobj, rmtree
from tempfile import mkdtemp
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fedpca._util.files import is_url
from fedpca._util.text import join_names
from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Source
from fedpca.readers.remote import RemoteFile, find_remote

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".xlsx": "xlsx",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".npy": "npy",
    ".npz": "npz",
    ".h5ad": "h5ad",
    ".zarr": "zarr",
    ".bed": "bed",
    ".pgen": "pgen",
}
_TEXT = (".csv", ".tsv", ".txt", ".jsonl")
_REMOTE = ("csv", "tsv", "txt", "jsonl", "parquet")  # formats that are read from URLs
_PACKED = (".gz", ".bz2", ".zst")  # text only
_GENOTYPES = (".pgen", ".bed")  # of a prefix without ending, the first that exists
_BESIDE = {".bed": (".bim", ".fam"), ".pgen": (".pvar", ".psam", ".pvar.zst")}

State = tuple[int, int, int | str]  # the second is its size
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find(paths: Paths) -> tuple[str, list[Source]]:
    """The format, and the files in the order of their names."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError("path must name a file, a folder or a glob, got an empty list.")
    files: list[Source] = [file for path in given for file in _files(path)]
    require_distinct(files)
    kinds: dict[str, Source] = {}
    for file in files:
        kinds.setdefault(format_of(file), file)
    if len(kinds) > 1:
        raise FileFormatError(
            f"all files must have one format, got {join_names([str(file) for file in kinds.values()])}; "
            "select one format, as in 'folder/*.parquet'."
        )
    kind = next(iter(kinds))
    remote = [file for file in files if isinstance(file, RemoteFile)]
    if remote and kind not in _REMOTE:
        raise FileFormatError(f"{remote[0]}: URLs must be of text or Parquet files; copy it to this machine.")
    return kind, files


def is_standard_input(paths: Paths) -> bool:
    """Whether the path is -, alone."""
    return paths == "-" or (isinstance(paths, list | tuple) and list(paths) == ["-"])


class StandardInput:
    """A copy of standard input, because rows may be read twice; it is removed with this object.

    Attributes:
        path: of the copy.
    """

    def __init__(self) -> None:
        folder = mkdtemp(prefix="fedpca-")  # for its owner only
        weakref.finalize(self, rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / "stdin"
        with self.path.open("wb") as file:
            copyfileobj(sys.stdin.buffer, file)


def require_distinct(files: Sequence[Source]) -> None:
    """Reject files given more than once, also under several names."""
    times = Counter(str(file.resolve()) for file in files)
    if repeated := list(dict.fromkeys(str(file) for file in files if times[str(file.resolve())] > 1)):
        raise ValueError(
            f"files must be given once, because all their rows count, but {join_names(repeated)} appears "
            "more than once; leave it out."
        )


def format_of(path: Source) -> str:
    """By the ending of the name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in _PACKED and suffixes[-2] in _TEXT:
        return FORMATS[suffixes[-2]]
    if not suffixes or suffixes[-1] not in FORMATS:
        raise FileFormatError(
            f"{path} must end in one of {', '.join(FORMATS)}; rename or convert it, or select files with a "
            "pattern such as 'folder/*.csv'."
        )
    return FORMATS[suffixes[-1]]


def state(path: Source) -> State:
    """Changes when the file, or one in the folder, is written to or replaced."""
    if isinstance(path, RemoteFile):
        return path.state()
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        return found.st_ino, found.st_size, found.st_mtime_ns
    # A .zarr folder itself does not change with the values in it: its files do.
    listed = hashlib.sha256()
    n_bytes = 0
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            each = (Path(folder) / name).stat()
            n_bytes += each.st_size
            listed.update(repr((folder, name, each.st_ino, each.st_size, each.st_mtime_ns)).encode())
    return found.st_ino, n_bytes, listed.hexdigest()


def _files(path: str | os.PathLike[str]) -> Sequence[Source]:
    text = os.fspath(path)
    if is_url(text):
        if urlsplit(text).scheme.lower() != "file":
            return find_remote(text)
        text = url2pathname(urlsplit(text).path)
    if text == "-":
        raise ValueError("standard input (-) must be the only path, got others; leave them out.")
    if has_magic(text) and not os.path.lexists(text):
        found = [Path(match) for match in sorted(glob(text, recursive=True))]
        if not found:
            raise FileNotFoundError(f"no file matches {text}; check the pattern.")
        return [file for match in found for file in _inside(match)]
    found = list(_inside(Path(text)))
    if not found:
        raise FileNotFoundError(f"{text} is an empty folder; it must contain files of rows.")
    return found


def with_prefix(path: Path) -> Path | None:
    """The file of genotypes that a prefix stands for, as PLINK takes it: north.pgen or north.bed of north."""
    files = (path.with_name(path.name + ending) for ending in _GENOTYPES)
    return next((file for file in files if file.is_file()), None)


def _inside(path: Path) -> Iterator[Path]:
    """The file itself, or all in the folder and its folders, less what is hidden or starts with "_"."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if (genotypes := with_prefix(path)) is None:
            raise FileNotFoundError(f"{path}: no such file; check the path.") from None
        yield genotypes
        return
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}.") from error
    if stat.S_ISDIR(mode) and path.suffix.lower() != ".zarr":
        try:
            entries = sorted(path.iterdir())
        except OSError as error:
            raise type(error)(f"cannot read {path}: {error.strerror}.") from error
        beside = {
            entry.stem + ending for entry in entries for ending in _BESIDE.get(entry.suffix.lower(), ())
        }
        for entry in entries:
            if not entry.name.startswith((".", "_")) and entry.name not in beside:
                yield from _inside(entry)
    elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        yield path
    else:
        raise FileFormatError(
            f"{path} must be a file, because rows may be read twice, but is a pipe or device; save it first."
        )
