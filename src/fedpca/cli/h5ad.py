"""Scores as an .h5ad file, laid out as AnnData writes it and scanpy expects it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca._util.extras import require
from fedpca._util.text import feature_label

if TYPE_CHECKING:
    from fedpca._typing import AnyArray
    from fedpca.estimators.scoring import ModelPCA

    WriteScores = Callable[[AnyArray, Mapping[str, Sequence[object] | AnyArray]], None]


@contextmanager
def open_h5ad(pca: "ModelPCA", path: Path) -> "Iterator[WriteScores]":
    """A function that collects scores and copied columns, for an AnnData file without X.

    Scores, loadings and variances are where scanpy has them, copied columns in obs. The file is put together
    in memory: HDF5 cannot close one that the disk has no room for.
    """
    import numpy as np

    h5py = require("h5py", extra="files", purpose="writing .h5ad files")
    arrow = require("pyarrow", extra="files", purpose="writing .h5ad files")
    scores: list[AnyArray] = []
    copied: list[Any] = []

    def write(some: "AnyArray", passthrough: "Mapping[str, Sequence[object] | AnyArray]") -> None:
        scores.append(some.astype("float32"))
        copied.append(arrow.table(passthrough))

    yield write
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        _encode(file, "anndata", "0.1.0")
        for name in ("layers", "obsm", "obsp", "varm", "varp", "uns"):
            _encode(file.create_group(name), "dict", "0.1.0")
        _write_array(file["obsm"], "X_pca", np.concatenate(scores))
        obs = arrow.concat_tables(copied, promote_options="permissive")
        if "obs_names" in obs.column_names:
            names = obs.column("obs_names").cast(arrow.string()).to_pylist()
            obs = obs.drop_columns("obs_names")
        else:
            names = [str(row) for row in range(len(file["obsm/X_pca"]))]
        _write_frame(file, "obs", names, obs)
        features = [feature_label(i, pca.model.feature_names) for i in range(pca.n_features_in_)]
        _write_frame(file, "var", features, arrow.table({}))
        _write_array(file["varm"], "PCs", pca.components_.T)
        result = _encode(file["uns"].create_group("pca"), "dict", "0.1.0")
        _write_array(result, "variance", pca.explained_variance_)
        _write_array(result, "variance_ratio", pca.explained_variance_ratio_)
        settings = _encode(result.create_group("params"), "dict", "0.1.0")
        for name, value in {"zero_center": pca.model.centered, "use_highly_variable": False}.items():
            settings[name] = value
            _encode(settings[name], "numeric-scalar", "0.2.0")
        file.flush()
        path.write_bytes(file.id.get_file_image())


def _encode(node: Any, kind: str, version: str) -> Any:
    """What AnnData's file format says a node is; see "on-disk format" in its documentation."""
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version
    return node


def _write_array(group: Any, name: str, values: "AnyArray") -> None:
    group[name] = values
    _encode(group[name], "array", "0.2.0")


def _write_text(group: Any, name: str, values: Sequence[str]) -> None:
    h5py = require("h5py", extra="files", purpose="writing .h5ad files")
    _encode(group.create_dataset(name, data=values, dtype=h5py.string_dtype()), "string-array", "0.2.0")


def _write_frame(file: Any, name: str, index: Sequence[str], table: Any) -> None:
    frame = _encode(file.create_group(name), "dataframe", "0.2.0")
    frame.attrs["_index"], frame.attrs["column-order"] = "_index", table.column_names
    _write_text(frame, "_index", index)
    for column in table.column_names:
        _write_column(frame, column, table.column(column))


def _write_column(frame: Any, name: str, column: Any) -> None:
    """Numbers as they are, with a mask where integers are missing; all else as text, in categories if any
    repeats, as AnnData does.
    """
    import numpy as np

    arrow = require("pyarrow", extra="files", purpose="writing .h5ad files")
    whole, boolean = arrow.types.is_integer(column.type), arrow.types.is_boolean(column.type)
    if (whole or boolean) and column.null_count:
        kind = "nullable-boolean" if boolean else "nullable-integer"
        stored = _encode(frame.create_group(name), kind, "0.1.0")
        _write_array(stored, "values", column.fill_null(False if boolean else 0).to_numpy())
        _write_array(stored, "mask", column.is_null().to_numpy())
    elif whole or boolean or arrow.types.is_floating(column.type):
        _write_array(frame, name, column.to_numpy())
    else:
        encoded = column.cast(arrow.large_string()).combine_chunks().dictionary_encode()
        categories = encoded.dictionary.to_pylist()
        if len(categories) == len(column):
            _write_text(frame, name, categories)
            return
        ordered = sorted(categories)
        rank = {category: i for i, category in enumerate(ordered)}
        codes = np.array([*(rank[category] for category in categories), -1], np.int32)
        stored = _encode(frame.create_group(name), "categorical", "0.2.0")
        stored.attrs["ordered"] = False
        _write_array(stored, "codes", codes[encoded.indices.fill_null(-1).to_numpy()])
        _write_text(stored, "categories", ordered)
