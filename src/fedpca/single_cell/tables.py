"""Tables of cells: an AnnData object, or a file in its format that is read in batches and written to."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca._util.extras import require
from fedpca._util.files import local_path
from fedpca._util.text import join_names
from fedpca.backend import batch_slices
from fedpca.errors import FileFormatError
from fedpca.readers import anndata as readers
from fedpca.readers.data_file import ReadRequest, translate_errors
from fedpca.readers.paths import state
from fedpca.single_cell import stores

BATCH_ROWS = 2048
_BATCH_ENTRIES = 2**22  # of dense cells; 16 MB as float32


@dataclass(frozen=True)
class Slots:
    """What is stored of a model.

    Attributes:
        names: of the slots in obsm, varm and uns.
        loadings: shape (n_genes, n_comps); zero for genes that were not selected.
        facts: what is put in uns.
    """

    names: tuple[str, str, str]
    loadings: Array
    facts: dict[str, Any]


class Table(ABC):
    """Cells and genes with their columns.

    Attributes:
        name: for messages.
        obs, var: data frames of what is known of cells and genes.
    """

    name: str
    obs: Any
    var: Any

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """All cells in order, shape (n, n_genes), dense or CSR."""

    @abstractmethod
    def store(self, slots: Slots, scores: Iterator[Array]) -> None:
        """Keep a model and the scores of all cells, which come in order."""

    @abstractmethod
    def check_writable(self) -> None:
        """Reject a table that could not be stored to."""

    @property
    def genes(self) -> tuple[str, ...]:
        return tuple(map(str, self.var.index))

    def column(self, frame: str, name: str) -> AnyArray:
        """A column of obs or var."""
        columns = getattr(self, frame)
        if name not in columns:
            known = join_names([str(column) for column in columns]) or "none"
            raise ValueError(f"unknown column {name!r} in {frame} of {self.name}; it has {known}.")
        return np.asarray(columns[name])


def open_table(data: Any, layer: str | None) -> Table:
    """The table of an AnnData object, or of the path of an .h5ad file or a .zarr folder."""
    anndata = require("anndata", extra="single-cell", purpose="fedpca.single_cell")
    if isinstance(data, str | os.PathLike):
        return FileTable(local_path(data), layer)
    if isinstance(data, anndata.AnnData):
        return ObjectTable(data, layer)
    raise TypeError(
        f"data must be AnnData, the path of an .h5ad file or .zarr folder, or a list of these, got "
        f"{type(data).__name__}; wrap an array as anndata.AnnData(array)."
    )


class ObjectTable(Table):
    """An AnnData object; one that is backed is read from its file in batches."""

    name = "adata"

    def __init__(self, adata: Any, layer: str | None) -> None:
        self.adata, self.obs, self.var = adata, adata.obs, adata.var
        if layer is not None and layer not in adata.layers:
            known = join_names(list(adata.layers)) or "none"
            raise ValueError(f"unknown layer {layer!r} in adata; it has {known}.")
        self._cells = adata.X if layer is None else adata.layers[layer]
        if self._cells is None:
            raise ValueError("adata must have X, got None; name a layer.")
        if getattr(self._cells, "format", "csr") != "csr":
            if not hasattr(self._cells, "tocsr") or (adata.isbacked and layer is None):
                raise ValueError(
                    f"X on disk must be CSR or dense, got {self._cells.format}; write it as CSR."
                )
            self._cells = self._cells.tocsr()
        if self._cells.dtype.kind not in "buif":
            raise ValueError(f"cells must be real numbers, got dtype {self._cells.dtype}; convert them.")

    def batches(self) -> Iterator[Any]:
        n_cells, n_genes = self._cells.shape
        is_sparse = hasattr(self._cells, "format")
        size = BATCH_ROWS if is_sparse else min(BATCH_ROWS, max(16, _BATCH_ENTRIES // n_genes))
        for part in batch_slices(n_cells, size):
            rows = self._cells[part]
            yield rows.compute() if hasattr(rows, "compute") else rows  # of dask

    def check_writable(self) -> None:
        if self.adata.is_view and self.adata.isbacked:
            raise ValueError(
                "adata must not be a view of backed cells; take .to_memory() of it, or all cells."
            )

    def store(self, slots: Slots, scores: Iterator[Array]) -> None:
        obsm, varm, uns = slots.names
        self.adata.obsm[obsm] = np.concatenate([*scores])
        self.adata.varm[varm] = slots.loadings
        self.adata.uns[uns] = slots.facts


class FileTable(Table):
    """A file that AnnData wrote. Its cells are never all in memory, and no handle is held."""

    def __init__(self, path: Path, layer: str | None) -> None:
        if path.suffix not in stores.KINDS:
            raise ValueError(f"path must end in .h5ad or .zarr, got {path}; write it with AnnData.")
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; check the path.")
        path = path.resolve()  # a link stays one, and what it points to changes
        self.name, self.path, self._state = str(path), path, state(path)
        opened = readers.open_h5ad if path.suffix == ".h5ad" else readers.open_zarr
        self._file = opened(path, layer)
        if self._file.names is None:
            raise FileFormatError(f"{path} must be written by AnnData, but is one array.")

    @cached_property
    def obs(self) -> Any:
        return self._frame("obs")

    @cached_property
    def var(self) -> Any:
        return self._frame("var")

    def _frame(self, name: str) -> Any:
        read_elem = require("anndata", extra="single-cell", purpose="fedpca.single_cell").io.read_elem
        with translate_errors(self.path, "AnnData file"), stores.opened(self.path, "r") as group:
            return read_elem(group[name])

    def batches(self) -> Iterator[Any]:
        file = self._file
        size = BATCH_ROWS if file.sparse else min(BATCH_ROWS, max(16, _BATCH_ENTRIES // file.n_columns))
        request = ReadRequest(file.names, (), file.dtype(None), size, 0)
        self._check_unchanged()
        for batch in file.read(request):
            yield batch.rows
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not self.path.exists() or state(self.path) != self._state:
            raise FileFormatError(f"{self.path} changed while it was read; begin again.")

    def check_writable(self) -> None:
        folder = self.path.parent
        is_read_only = not self.path.stat().st_mode & 0o222
        if is_read_only or not os.access(self.path, os.W_OK) or not os.access(folder, os.W_OK):
            raise PermissionError(
                f"{self.path} must be writable, for the result; copy it, or change its mode."
            )

    def store(self, slots: Slots, scores: Iterator[Array]) -> None:
        obsm, varm, uns = slots.names
        shape = len(self.obs), slots.loadings.shape[1]
        write_elem = require("anndata", extra="single-cell", purpose="fedpca.single_cell").io.write_elem
        with self._changed() as group:
            for place, name in zip(("obsm", "varm", "uns"), slots.names, strict=True):
                if place not in group:
                    write_elem(group, place, {})
                if name in group[place]:
                    del group[place][name]
            stores.write_rows(group["obsm"], obsm, shape, scores)
            write_elem(group["varm"], varm, slots.loadings)
            write_elem(group["uns"], uns, slots.facts)

    @contextmanager
    def _changed(self) -> Iterator[Any]:
        with stores.replaced(self.path) as copy:
            with stores.opened(copy, "r+") as group:
                yield group
            self._check_unchanged()
