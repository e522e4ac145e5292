"""Files behind URLs, by fsspec: found, and read in parts."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import has_magic
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from fedpca._util.extras import require

_HTTP = ("http", "https")
_CONNECT_SECONDS, _READ_SECONDS = 30, 120
_CHANGES = ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created")


class RemoteFile:
    """One file behind a URL, with what readers need of a path. As text it is the URL without secrets.

    Attributes:
        name: the last part of the path.
        suffixes: the endings of the name.
    """

    def __init__(self, url: str, files: Any, path: str) -> None:
        self._url, self._files, self._path = url, files, path
        parts = urlsplit(url)
        self._is_http = parts.scheme.lower() in _HTTP
        location = PurePosixPath(parts.path if self._is_http else path)
        self.name, self.suffixes = location.name, location.suffixes
        # Neither a password nor the signature of a signed URL belongs into a message.
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __str__(self) -> str:
        return self._shown

    def is_file(self) -> bool:
        """Whether it is none of the folders that are one table."""
        return True

    def resolve(self) -> str:
        """What no other file has."""
        return self._url

    def state(self) -> tuple[int, int, str]:
        """Changes with the file, if the server tells."""
        with _clear_errors(self):
            self._files.invalidate_cache()
            found = self._files.info(self._path)
        changed = " ".join(f"{found[key]}" for key in _CHANGES if found.get(key))
        size = found.get("size")
        return 0, -1 if size is None else int(size), changed

    @contextmanager
    def open(self, at_random: bool = False) -> Iterator[Any]:
        """A file of bytes, read from its start on or at random; only what is read is transferred."""
        how: dict[str, Any] = {}
        if at_random:
            how = {"cache_type": "none"}
        elif self._is_http:
            how = {"block_size": 0}  # one request
        with _clear_errors(self):
            file = self._files.open(self._path, "rb", **how)
        with file:
            yield _Reads(self, file)


class _Reads(io.RawIOBase):
    """A file whose errors name the URL."""

    def __init__(self, source: RemoteFile, file: Any) -> None:
        self._source, self._file = source, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def read(self, size: int = -1) -> bytes:
        with _clear_errors(self._source):
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _clear_errors(self._source):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def find_remote(url: str) -> list[RemoteFile]:
    """The files that a URL, a pattern or a folder stands for, in the order of their names."""
    scheme = urlsplit(url).scheme.lower()
    fsspec = require("fsspec", extra="url", purpose=f"reading from {scheme}://")
    settings = _http_settings() if scheme in _HTTP else {}
    try:
        files, path = fsspec.url_to_fs(url, **settings)
    except ValueError as error:
        raise ValueError(
            f"the protocol must be one that fsspec knows, such as https:// or s3://, got {scheme}://."
        ) from error
    except ImportError as error:
        raise ImportError(f"reading from {scheme}:// needs one more package: {error}.") from error
    file = RemoteFile(url, files, path)
    if scheme in _HTTP:  # there are no folders, and ? starts a query
        return [file]
    with _clear_errors(file):
        files.invalidate_cache()
        if has_magic(path):
            found = files.glob(path)
        elif files.isdir(path):
            found = [each for each in files.find(path) if not _is_hidden(each, path)]
        else:
            return [file]
    if not found:
        raise FileNotFoundError(f"no file matches {file}; check the URL.")
    return [RemoteFile(files.unstrip_protocol(each), files, each) for each in sorted(found)]


def _http_settings() -> dict[str, Any]:
    """A limit for each step, not for a file of any size; proxies and passwords as the system has them."""
    aiohttp = require("aiohttp", extra="url", purpose="reading from https://")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _is_hidden(path: str, folder: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.removeprefix(folder).split("/"))


@contextmanager
def _clear_errors(source: RemoteFile) -> Iterator[None]:
    """Turn whatever fsspec and its packages raise into one line that names the URL."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        status = getattr(cause, "status", None)
        if isinstance(cause, ValueError):  # of a file that can be read from its start only
            raise ConnectionError(
                f"the server of {source} must support range requests, which Parquet needs; copy the file to "
                "this machine."
            ) from error
        if status in (401, 403) or isinstance(cause, PermissionError):
            raise PermissionError(f"cannot read {source}: access denied; check your credentials.") from error
        if status == 404 or (isinstance(cause, FileNotFoundError) and status is None):
            raise FileNotFoundError(f"{source}: no such file; check the URL.") from error
        reason = f"HTTP status {status}" if status else type(cause).__name__
        raise ConnectionError(f"cannot read {source} ({reason}); check the URL and the network.") from error
