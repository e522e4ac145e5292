"""Where the files of a dataset are: in the folder FEDPCA_DATA names, in the user's cache, or on the web."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedpca import progress
from reproduction.datasets.content import Content

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileSet:
    """Files that together contain a dataset; there may be several such sets, in different formats.

    Attributes:
        files: their names.
        read: takes their paths, in this order.
        url: where they can be downloaded from, when a file's name is added; None if nowhere.
    """

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Content]
    url: str | None = None


@dataclass(frozen=True)
class Files:
    """The files of one dataset.

    Attributes:
        name: of the dataset.
        file_sets: the first one found is read; the first one with a URL is downloaded.
        sha256: of the content, see `Content.sha256`; None where the reader checks.
        manual_steps: where nothing can be downloaded: how a user can create one of the file sets.
    """

    name: str
    file_sets: tuple[FileSet, ...]
    sha256: str | None = None
    manual_steps: str = ""

    def find(self) -> Content:
        """Their content, from the first folder that has them."""
        for folder in folders():
            for file_set in self.file_sets:
                paths = [folder / file for file in file_set.files]
                if all(path.is_file() for path in paths):
                    where = ", ".join(map(str, paths))
                    _log.info("reading %s from %s", self.name, where)
                    return self._read(file_set, paths, where, "Replace it, or remove it and try again.")
        for file_set in self.file_sets:
            if file_set.url is not None:
                return self._download(file_set)
        raise FileNotFoundError(f"{self._not_found()}, and cannot be downloaded. {self.manual_steps}")

    def _download(self, file_set: FileSet) -> Content:
        cache = cache_folder()
        urls = [f"{file_set.url}{file}" for file in file_set.files]
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # Files come into the cache together, after they were checked: what is there is complete.
            with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as folder:
                paths = [Path(folder) / file for file in file_set.files]
                for url, path in zip(urls, paths, strict=True):
                    _log.info("downloading %s", url)
                    _fetch(url, path)
                content = self._read(file_set, paths, ", ".join(urls), "Nothing was kept.")
                for path in paths:
                    os.replace(path, cache / path.name)
        except (OSError, HTTPException) as error:
            raise FileNotFoundError(
                f"{self._not_found()}, and cannot be downloaded: {str(error) or type(error).__name__}. Fetch "
                f"{' and '.join(urls)} where that is possible, and put {' and '.join(file_set.files)} into "
                f"{cache}, or into a folder that the environment variable FEDPCA_DATA names."
            ) from error
        return content

    def _read(self, file_set: FileSet, paths: Sequence[Path], where: str, remedy: str) -> Content:
        try:
            content = file_set.read(paths)
        except Exception as error:  # the files may be anything
            raise ValueError(f"{where} cannot be read as {self.name} ({error}). {remedy}") from error
        if self.sha256 not in (None, found := content.sha256()):
            raise ValueError(
                f"{where} must contain {self.name}, with sha256 {self.sha256} of its numbers, got {found}. "
                f"{remedy}"
            )
        return content

    def _not_found(self) -> str:
        return f"{self.name} is not in {' or '.join(map(str, folders()))}"


def folders() -> list[Path]:
    """Where files are searched, in this order: the folder that FEDPCA_DATA names, if it is set; the cache."""
    name = os.environ.get("FEDPCA_DATA")
    if not name:
        return [cache_folder()]
    if not Path(name).is_dir():
        raise FileNotFoundError(f"FEDPCA_DATA must be a folder, got FEDPCA_DATA={name}.")
    return [Path(name), cache_folder()]


def cache_folder() -> Path:
    """Where downloads are kept for this user; it need not exist."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # others are to be ignored
        return Path(named) / "fedpca"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedpca"


def _fetch(url: str, path: Path) -> None:
    request = Request(url, headers={"User-Agent": "fedpca"})  # some servers reject Python's default
    try:
        response = urlopen(request, timeout=60)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    with response, path.open("wb") as file:
        size = response.headers["Content-Length"]
        total = None if size is None else int(size)
        with progress.bar(path.name, total and total / 1e6, "MB") as bar:
            while chunk := response.read(2**16):
                file.write(chunk)
                bar.advance(len(chunk) / 1e6)
        if total not in (None, file.tell()):
            raise ConnectionError(f"{url} broke off after {file.tell()} of {total} bytes")
