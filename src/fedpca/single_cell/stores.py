"""Files that AnnData wrote, changed as a whole or not at all, whenever the process is killed."""

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpca._typing import Array
from fedpca._util.extras import require
from fedpca._util.files import atomic_write, fsync_dir

KINDS = (".h5ad", ".zarr")
_SLOTS = ("obsm", "varm", "uns")


@contextmanager
def opened(path: Path, mode: str) -> Iterator[Any]:
    """The group of a file."""
    if path.is_dir():
        zarr = require("zarr", extra="files", purpose="reading .zarr folders")
        group = zarr.open_group(path, mode=mode, use_consolidated=False)
        is_consolidated = mode != "r" and _is_consolidated(path)
        yield group
        if is_consolidated:  # else nobody would see what is new
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that version 3 does not specify what is there already
                zarr.consolidate_metadata(group.store)
    else:
        h5py = require("h5py", extra="files", purpose="reading .h5ad files")
        with h5py.File(path, mode) as file:
            yield file


def _is_consolidated(path: Path) -> bool:
    zarr = require("zarr", extra="files", purpose="reading .zarr folders")
    return zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None


def write_rows(group: Any, name: str, shape: tuple[int, int], batches: Iterator[Array]) -> None:
    """A float32 array in AnnData's format, of batches of rows that come in order."""
    if hasattr(group, "create_array"):
        array = group.create_array(
            name, shape=shape, dtype="float32", chunks=(min(shape[0], 2**16), shape[1])
        )
    else:
        array = group.create_dataset(name, shape=shape, dtype="float32")
    array.attrs["encoding-type"], array.attrs["encoding-version"] = "array", "0.2.0"
    start = 0
    for rows in batches:
        array[start : start + len(rows)] = rows
        start += len(rows)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A copy of a file or folder in the same place that replaces it once the block ends, else is removed.

    A file needs as much free disk as it has bytes. Of a folder, what is not in obsm, varm or uns is linked.
    """
    if not path.is_dir():
        with atomic_write(path) as copy:
            shutil.copyfile(path, copy)
            yield copy
        return
    copy, old = (path.with_name(f".fedpca-{secrets.token_hex(8)}.part") for _ in range(2))
    try:
        copy.mkdir()
        for entry in path.iterdir():
            if entry.is_dir() and entry.name not in _SLOTS:
                shutil.copytree(entry, copy / entry.name, copy_function=_link)
            elif entry.is_dir():
                shutil.copytree(entry, copy / entry.name)
            else:
                shutil.copy2(entry, copy / entry.name)
        yield copy
        # A kill between the two leaves both as .fedpca-*.part, in the same place: rename the one wanted.
        os.rename(path, old)
        try:
            os.rename(copy, path)
        except BaseException:
            os.rename(old, path)
            raise
        fsync_dir(path.parent)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # some drives have no hard links
        shutil.copy2(source, target)
