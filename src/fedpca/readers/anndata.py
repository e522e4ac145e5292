"""HDF5 and Zarr: tables laid out as AnnData writes them (.h5ad, .zarr), and plain Zarr arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca._util.text import join_names
from fedpca.errors import FileFormatError
from fedpca.readers.arrays import ArrayFile, Csr, OpenFile


def open_h5ad(path: Path, layer: str | None = None) -> ArrayFile:
    """`X` of an .h5ad file, dense or CSR, with the names of `var`; columns of `obs` can be passed through.

    With `layer` that layer instead of `X`.
    """
    return ArrayFile(path, ".h5ad file", partial(_open_h5ad, layer=layer))


def open_zarr(path: Path, layer: str | None = None) -> ArrayFile:
    """A Zarr array, or a group that AnnData wrote."""
    return ArrayFile(path, "Zarr array or AnnData store", partial(_open_zarr, layer=layer))


@contextmanager
def _open_h5ad(path: Path, layer: str | None) -> Iterator[OpenFile]:
    h5py = require("h5py", extra="files", purpose="reading .h5ad files")
    with h5py.File(path, "r") as file:
        yield _anndata(path, file, layer)


@contextmanager
def _open_zarr(path: Path, layer: str | None) -> Iterator[OpenFile]:
    zarr = require("zarr", extra="files", purpose="reading .zarr folders")
    node = zarr.open(path, mode="r")
    if hasattr(node, "shape"):
        yield OpenFile(node, chunk_rows=_chunk_rows(node))
    else:
        yield _anndata(path, node, layer)


def _anndata(path: Path, group: Any, layer: str | None) -> OpenFile:
    if layer is not None:
        layers = group.get("layers", {})
        if layer not in layers:
            raise FileFormatError(
                f"unknown layer {layer!r} in {path}; it has {join_names(list(layers)) or 'none'}."
            )
        what, rows = f"layer {layer!r}", layers[layer]
    elif "X" in group:
        what, rows = "X", group["X"]
    else:
        raise FileFormatError(f"{path} must be written by AnnData, and has no X.")
    obs, var = group["obs"], group["var"]
    if not hasattr(rows, "shape"):
        layout = rows.attrs.get("encoding-type", "other")
        if layout != "csr_matrix":
            raise FileFormatError(
                f"{path}: {what} must be a csr_matrix or an array, got {layout}; write it with "
                "adata.X.tocsr()."
            )
        rows = Csr(rows["data"], rows["indices"], rows["indptr"], rows.attrs["shape"])
    names = _Column(var[var.attrs["_index"]])[:]
    columns = {"obs_names" if name == obs.attrs["_index"] else name: _Column(obs[name]) for name in obs}
    return OpenFile(rows, tuple(str(name) for name in names), columns, _chunk_rows(rows))


def _chunk_rows(rows: Any) -> int:
    chunks = getattr(rows, "chunks", None)
    return int(chunks[0]) if chunks else 1


class _Column:
    """A column of `obs` or `var`: plain values, codes of categories, or values with a mask."""

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if hasattr(self.stored, "shape"):
            return _plain(self.stored[rows])
        if "categories" in self.stored:
            categories = [*_plain(self.stored["categories"][:]), None]  # the code of a missing one is -1
            return np.array(categories, object)[self.stored["codes"][rows]]
        values = _plain(self.stored["values"][rows]).astype(object)
        values[self.stored["mask"][rows]] = None
        return values


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Text as Python's own, which HDF5 has as bytes and Zarr as a type of its own."""
    if values.dtype.kind not in "OST":
        return values
    text = [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]
    return np.array([*text, None], object)[:-1]
