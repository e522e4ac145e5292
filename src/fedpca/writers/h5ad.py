"""Scores as an .h5ad file, where scanpy expects them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.extras import require
from fedpca._util.text import feature_label

if TYPE_CHECKING:
    from fedpca.estimators.base import BasePCA

_PURPOSE = "writing .h5ad files"


@contextmanager
def open_h5ad(
    pca: "BasePCA", path: Path
) -> Iterator[Callable[[AnyArray, Mapping[str, AnyArray | Sequence[object]]], None]]:
    """A function that collects scores and copied columns, for an AnnData file without X.

    Scores, loadings and variances are where scanpy has them, copied columns in obs. The file is put together
    in memory: HDF5 cannot close one that the disk has no room for.
    """
    # Seconds of import: as early as it takes to say that it is not installed, and only for this format.
    anndata = require("anndata", extra="single-cell", purpose=_PURPOSE)
    h5py = require("h5py", extra="single-cell", purpose=_PURPOSE)
    pandas = require("pandas", extra="single-cell", purpose=_PURPOSE)
    arrow = require("pyarrow", extra="files", purpose=_PURPOSE)
    scores: list[AnyArray] = []
    copied: list[Any] = []

    def write(some: AnyArray, passthrough: Mapping[str, AnyArray | Sequence[object]]) -> None:
        scores.append(some.astype("float32"))
        copied.append(arrow.table(passthrough))

    yield write
    coordinates, table = np.concatenate(scores), arrow.concat_tables(copied, promote_options="permissive")
    obs = pandas.DataFrame({name: _series(table.column(name)) for name in table.column_names})
    names = obs.pop("obs_names") if "obs_names" in obs else range(len(coordinates))
    obs.index = [str(name) for name in names]
    features = [feature_label(i, pca.subspace_.feature_names) for i in range(pca.n_features_in_)]
    cells = anndata.AnnData(
        obs=obs,
        var=pandas.DataFrame(index=features),
        obsm={"X_pca": coordinates},
        varm={"PCs": pca.components_.T},
        uns={
            "pca": {
                "variance": pca.explained_variance_,
                "variance_ratio": pca.explained_variance_ratio_,
                "params": {"zero_center": pca.subspace_.centered, "use_highly_variable": False},
            }
        },
    )
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        anndata.io.write_elem(file, "/", cells)
        if "raw" in file:  # an empty mark, which AnnData's own files are without
            del file["raw"]
        file.flush()
        path.write_bytes(file.id.get_file_image())


def _series(column: Any) -> Any:
    """Numbers as they are, with a mask where integers are missing; all else as text,
    in categories if any repeats or is missing, as AnnData does.
    """
    arrow, arrays = (
        require("pyarrow", extra="files", purpose=_PURPOSE),
        require("pandas.arrays", extra="single-cell", purpose=_PURPOSE),
    )
    types = arrow.types
    whole, boolean = types.is_integer(column.type), types.is_boolean(column.type)
    if (whole or boolean) and column.null_count:
        arrays = require("pandas.arrays", extra="single-cell", purpose=_PURPOSE)
        masked = arrays.BooleanArray if boolean else arrays.IntegerArray
        values = column.fill_null(False if boolean else 0).to_numpy()
        return masked(values, column.is_null().to_numpy())
    if whole or boolean or arrow.types.is_floating(column.type):
        return column.to_numpy()
    text = column.cast(arrow.large_string()).to_pandas()
    return text if text.is_unique and not column.null_count else text.astype("category")
