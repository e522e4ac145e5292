"""pca: what scanpy.pp.pca gives, of cells that need not fit in memory."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from fedpca._typing import AnyArray, Array, ArrayLike
from fedpca._util.text import join_names, sanitize
from fedpca.backend import dense
from fedpca.progress import bar
from fedpca.readers.paths import require_distinct
from fedpca.single_cell.tables import FileTable, ObjectTable, Slots, Table, open_table
from fedpca.summaries import validation
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.linalg import with_fixed_signs
from fedpca.summaries.subspace import Subspace
from fedpca.trackers.passes import by_passes

if TYPE_CHECKING:
    from anndata import AnnData

_N_COMPS = 50  # scanpy's default
_MAX_GENES_AT_ONCE = 5000  # up to here the scatter of all genes is kept: 200 MB
_HIGHLY_VARIABLE = "highly_variable"


def pca(
    data: "AnnData | str | os.PathLike[str] | Sequence[AnnData | str | os.PathLike[str]]",
    n_comps: int | None = None,
    *,
    layer: str | None = None,
    mask_var: str | ArrayLike | None = "auto",
    log_normalize: float | None = None,
    batch_key: str | None = None,
    key_added: str | None = None,
) -> Subspace:
    """Principal components of cells, stored where `scanpy.pp.pca` stores them: the same components.

    `obsm["X_pca"]` gets the scores, `varm["PCs"]` the loadings, and `uns["pca"]` params, variance and
    variance_ratio. Cells are read in batches and sparse ones stay sparse. A file is read without being
    loaded, and replaced as a whole by one with these slots: killed meanwhile, an .h5ad file is as it was. A
    .zarr folder takes two renames: killed between them, the old one is beside it, as `.fedpca-*.part`.

    Up to 5,000 genes take two passes over the cells and the memory of some scatters (2,000 genes: 32 MB
    each); with more genes, basis vectors are kept and cells are read 10 to 20 times.

    Args:
        data: AnnData in memory or backed, the path of an .h5ad file or of AnnData's .zarr folder; or a list
            of these with the same genes, each an owner of cells: all get scores on common components. Sparse
            matrices on disk must be CSR.
        n_comps: how many components, less than there are cells and genes; None for 50, or one less than
            there are cells or genes.
        layer: the layer to take instead of X.
        mask_var: the genes to use: a column of var, one boolean per gene, or None for all; "auto" for
            var["highly_variable"] if there is such a column, else all.
        log_normalize: for raw counts: while they are read, the counts of each cell are divided by their total
            over all genes, times this number, and taken as log(1 + x), as `scanpy.pp.normalize_total` with
            this target_sum and `scanpy.pp.log1p` do. None takes cells as they are.
        batch_key: a column of obs that says whose cells they are. The components are those of all cells
            together, as a merge of all batches gives them: batch effects stay. It is kept in params.
        key_added: the name of all three slots, instead of "X_pca", "PCs" and "pca".

    Returns:
        The model, of the genes used: to save, merge, or transform other cells with.

    Raises:
        ValueError: the data do not allow it; nothing has been written.

    >>> import anndata, numpy as np
    >>> counts = np.random.default_rng(0).poisson(2.0, size=(300, 40)).astype(np.float32)
    >>> adata = anndata.AnnData(counts)
    >>> pca(adata, n_comps=5, log_normalize=1e4)
    Subspace(rank=5, n_features=40, count=300, explained=21.3%)
    >>> adata.obsm["X_pca"].shape, adata.varm["PCs"].shape, sorted(adata.uns["pca"])
    ((300, 5), (40, 5), ['params', 'variance', 'variance_ratio'])
    """
    several = data if isinstance(data, list | tuple) else [data]
    if not several:
        raise ValueError("data must be cells, got an empty list.")
    tables = [open_table(one, layer) for one in several]
    require_distinct([table.path for table in tables if isinstance(table, FileTable)])
    objects = [id(table.adata) for table in tables if isinstance(table, ObjectTable)]
    if len({*objects}) < len(objects):
        raise ValueError("data must be given once, because all cells count; leave out the repeated AnnData.")
    if key_added is not None and (not isinstance(key_added, str) or not key_added or "/" in key_added):
        raise ValueError(f"key_added must be a name without a slash, or None, got {key_added!r}.")
    genes = _common_genes(tables)
    named, mask = _mask(tables, mask_var)
    n_cells, n_used = sum(len(table.obs) for table in tables), int(np.count_nonzero(mask))
    n_comps = _checked_n_comps(n_comps, n_cells, n_used)
    if log_normalize is not None and not (validation.is_real(log_normalize) and 0 < log_normalize < np.inf):
        raise ValueError(f"log_normalize must be a positive number or None, got {log_normalize!r}.")
    for table in tables:
        if batch_key is not None:
            table.column("obs", batch_key)
        table.check_writable()

    def cells(some: Sequence[Table]) -> Iterator[Any]:
        for table in some:
            with bar("cells", len(table.obs), "cells") as progress:
                for rows in table.batches():
                    yield _prepared(rows, mask, log_normalize, table.name)
                    progress.advance(rows.shape[0])

    model = _leading(lambda: cells(tables), n_used, n_comps)
    model = model.with_about(names=tuple(np.array(genes, object)[mask]))
    slots = _slots(model, mask, _params(mask_var, named, layer, log_normalize, batch_key), key_added)
    for table in tables:
        table.store(slots, (_scores(rows, model) for rows in cells([table])))
    return model


def _leading(read: Callable[[], Iterator[Any]], n_genes: int, n_comps: int) -> Subspace:
    """The leading components of all cells, exactly, with the signs of scikit-learn and so of scanpy.

    Single-cell spectra have a long, flat tail. A one-pass method with little memory does not find its single
    directions: all of the scatter is kept or, where that is too large, cells are read again.
    """
    have_converged = True
    if n_genes > _MAX_GENES_AT_ONCE:
        model, have_converged = by_passes(read, n_genes, n_comps)
    else:
        model = _by_scatter(read(), n_comps)
    if not model.total > 0:
        raise ValueError("cells must differ in the genes selected, but all are equal.")
    if not have_converged:
        warnings.warn(
            f"the last of {n_comps} components have not converged; take fewer components or genes.",
            stacklevel=3,
        )
    return model


def _by_scatter(cells: Iterator[Any], n_comps: int) -> Subspace:
    """From the scatter of all cells about the mean of the first ones, near that of all.

    Kept for the components alone, it needs none of the precautions of the exact tracker, which takes half as
    long again. Lanczos iteration takes seconds where an eigenproblem of all 5,000 genes takes minutes.
    """
    first = dense(next(cells)).astype(np.float64)
    count, origin = 0, first.mean(axis=0)
    sums, scatter = np.zeros(len(origin)), np.zeros(2 * origin.shape)
    for rows in chain([first], (dense(more).astype(np.float64) for more in cells)):
        rows -= origin
        count += len(rows)
        sums += rows.sum(axis=0)
        scatter += rows.T @ rows
    scatter -= sums[:, None] @ (sums[None, :] / count)
    total = float(np.trace(scatter))
    if not total > 0:
        return Subspace.from_rows(origin[None, :])
    start = np.random.default_rng(0).normal(size=len(origin))
    energies, directions = eigsh(scatter, n_comps, v0=start)
    order = np.argsort(-energies)
    components = with_fixed_signs(directions[:, order].T)
    return Subspace(
        components, np.sqrt(np.maximum(energies[order], 0.0)), origin + sums / count, count, total
    )


def _common_genes(tables: Sequence[Table]) -> tuple[str, ...]:
    first, *others = tables
    for other in others:
        if other.genes != first.genes:
            differing = sorted({*first.genes} ^ {*other.genes})
            what = f"{join_names(differing, 3)} in one only" if differing else "in another order"
            raise ValueError(
                f"all data must have the same genes in the same order, but {other.name} has not those of "
                f"{first.name}: {what}; select genes that all have, in one order."
            )
    return first.genes


def _mask(tables: Sequence[Table], mask_var: Any) -> tuple[str | None, AnyArray]:
    """The column that selects the genes, if it is one; which genes are selected, shape (n_genes,)."""
    first, n_genes = tables[0], len(tables[0].var)
    named = mask_var if isinstance(mask_var, str) else None
    if named == "auto" and named not in first.var:
        named = _HIGHLY_VARIABLE if _HIGHLY_VARIABLE in first.var else None
        mask_var = named
    if mask_var is None:
        return None, np.ones(n_genes, dtype=bool)
    if named is None:
        return None, _checked_mask(np.asarray(mask_var), n_genes, "mask_var")
    masks = [
        _checked_mask(table.column("var", named), n_genes, f"var[{named!r}] of {table.name}")
        for table in tables
    ]
    if any(not np.array_equal(mask, masks[0]) for mask in masks):
        raise ValueError(
            f"var[{named!r}] must select the same genes in all data; choose them for all cells together, "
            "and pass one mask_var."
        )
    return named, masks[0]


def _checked_mask(mask: AnyArray, n_genes: int, what: str) -> AnyArray:
    if mask.shape != (n_genes,):
        raise ValueError(
            f"{what} must have one boolean per gene, {n_genes}, got shape {mask.shape}; of names, "
            "var_names.isin(names) makes a mask."
        )
    others = [entry for entry in mask if not isinstance(entry, bool | np.bool_)]
    if others:
        raise ValueError(
            f"{what} must be True or False for every gene, got {sanitize(others[0], 30)} and the like for "
            f"{len(others)}; fill in what is missing, or compare it with something."
        )
    if not mask.any():
        raise ValueError(f"{what} must select genes, but all of it is False.")
    return mask.astype(bool)


def _checked_n_comps(n_comps: int | None, n_cells: int, n_genes: int) -> int:
    smaller = min(n_cells, n_genes)
    if smaller < 2:
        raise ValueError(f"PCA needs at least 2 cells and 2 genes, got {n_cells} and {n_genes}.")
    if n_comps is None:
        return min(_N_COMPS, smaller - 1)
    n_comps = validation.integer(n_comps, "n_comps", at_least=1)
    if n_comps >= smaller:
        raise ValueError(
            f"n_comps must be less than the number of cells, {n_cells}, and of genes used, {n_genes}, got "
            f"{n_comps}."
        )
    return n_comps


def _prepared(rows: Any, mask: AnyArray, target_sum: float | None, name: str) -> Any:
    """The genes used of some cells, as finite numbers, log-normalized where that is wanted."""
    if target_sum is not None:
        stored = rows.data if sparse.issparse(rows) else rows
        if stored.size and stored.min() < 0:
            raise ValueError(
                f"{name}: counts must not be negative, got {stored.min():g}; leave out log_normalize."
            )
        totals = np.asarray(rows.sum(axis=1, dtype=np.float64)).ravel()
        factors = target_sum / np.where(totals > 0, totals, 1.0)
        if sparse.issparse(rows):
            rows = (sparse.diags_array(factors) @ rows).tocsr()[:, mask].log1p()
        else:
            rows = np.log1p(factors[:, None] * rows[:, mask])
    elif not mask.all():
        rows = rows[:, mask]
    values = rows.data if sparse.issparse(rows) else rows
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: values must be finite, got NaN or infinity; impute or remove those cells.")
    return rows


def _scores(rows: Any, model: Subspace) -> Array:
    """Of cells, shape (n_cells, n_comps), float32 as scanpy's."""
    return np.asarray(rows @ model.components.T - model.mean @ model.components.T, np.float32)


def _params(
    mask_var: Any, named: str | None, layer: str | None, log_normalize: float | None, batch_key: str | None
) -> dict[str, Any]:
    """Those of scanpy, and ours where they are in use."""
    mask = named if isinstance(mask_var, str) or mask_var is None else np.asarray(mask_var)
    params = {"zero_center": True, "use_highly_variable": named == _HIGHLY_VARIABLE, "mask_var": mask}
    ours = {"layer": layer, "log_normalize": log_normalize, "batch_key": batch_key}
    return params | {name: value for name, value in ours.items() if value is not None}


def _slots(model: Subspace, mask: AnyArray, params: dict[str, Any], key_added: str | None) -> Slots:
    loadings = np.zeros((len(mask), model.rank))
    loadings[mask] = model.components.T
    facts = {
        "params": params,
        "variance": model.singular_values**2 / degrees_of_freedom(model.count),
        "variance_ratio": model.explained_variance_ratio,
    }
    return Slots(("X_pca", "PCs", "pca") if key_added is None else (key_added,) * 3, loadings, facts)
