"""fedpca transform: scores of rows on a model's components, a batch at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from fedpca._util.extras import require
from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    BatchRows,
    DataPaths,
    Force,
    ModelPath,
    check_output_path,
    output_file,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)

_ENDINGS = (".parquet", ".csv", ".npy")


@reading_options
def transform(
    model: ModelPath,
    path: DataPaths,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .parquet, .csv or .npy.")
    ],
    components: Annotated[
        int | None,
        typer.Option(
            "--components",
            "-n",
            metavar="N",
            min=1,
            help="Number of components. By default as many as the model shows.",
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns to copy into the result, such as ids.")
    ] = None,
    batch_rows: BatchRows = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Write the scores of rows on a model's components: columns pc1, pc2, ...

    The files must have the columns that the model was fitted to, in any order; other columns are ignored.

    Example:

    ```
    fedpca transform model.safetensors 2025.parquet --keep id -o scores.parquet
    ```
    """
    kind, kept = out.suffix.lower(), parse_names(keep) or []
    if kind not in _ENDINGS:
        raise typer.BadParameter(f"--out must end in one of {', '.join(_ENDINGS)}, got {out}.")
    if kind == ".npy" and kept:
        raise typer.BadParameter("--keep needs column names, which .npy has not; write .parquet or .csv.")
    check_output_path(out, force)

    from fedpca.backend.prefetch import prefetch
    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.progress import bar
    from fedpca.readers import open_rows

    summary, shown = model_files.read(model)
    if not shown:
        why = "the training rows do not vary" if summary.certificate is None else "none rises above its noise"
        raise ValueError(f"{model} has no components: {why}.")
    model_files.require_components(model, summary, components)
    rows = open_rows(path, columns=summary.feature_names, passthrough=kept, batch_rows=batch_rows, **reading)
    if rows.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {rows.n_features}; "
            "use files with the columns of the fit."
        )
    pca = StreamingPCA(min(components or shown, summary.n_features), center=summary.centered).merge(summary)
    columns = [f"pc{i}" for i in range(1, pca.n_components_ + 1)]
    if both := set(columns) & set(kept):
        raise ValueError(f"--keep cannot copy {', '.join(sorted(both))}: scores are written under this name.")
    done = empty = 0
    with (
        progress_bars(),
        bar("rows", rows.n_rows, "rows") as progress,
        output_file(out, force) as file,
        _open_table(kind, file, columns) as table,
        prefetch(rows.batches()) as batches,
    ):
        for batch in batches:
            table.write(pca.transform(batch), batch.passthrough)
            done += len(batch)
            empty += batch.n_empty_rows()
            progress.advance(len(batch))
    data = {"out": str(out), "rows": done, "rows_without_values": empty, "columns": [*kept, *columns]}
    text = f"{out}: {pluralize(done, 'row')} of {pluralize(len(columns), 'component')}"
    if empty:
        text += f"; {pluralize(empty, 'row')} without any value {'has' if empty == 1 else 'have'} scores of 0"
    print_result(data, as_json, text)


class _Table(Protocol):
    def write(self, scores: Any, passthrough: Mapping[str, Any]) -> None: ...


@contextmanager
def _open_table(kind: str, path: Path, columns: list[str]) -> Iterator[_Table]:
    table = _Npy(path) if kind == ".npy" else _Arrow(kind, path, columns)
    try:
        yield table
    finally:
        table.close()


class _Npy:
    """Scores as an .npy file; the number of rows is written into its header at the end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._rows = 0
        self._first: Any = None

    def write(self, scores: Any, passthrough: Mapping[str, Any]) -> None:
        if self._first is None:
            self._first = scores
            self._write_header()
        self._rows += len(scores)
        self._file.write(scores.astype(self._first.dtype).tobytes())

    def _write_header(self) -> None:
        from numpy.lib import format

        # NumPy leaves room in its header for the number of rows to grow in place.
        shape = (self._rows, self._first.shape[1])
        header = {"descr": format.dtype_to_descr(self._first.dtype), "fortran_order": False, "shape": shape}
        format.write_array_header_1_0(self._file, header)

    def close(self) -> None:
        if self._first is not None:
            self._file.seek(0)
            self._write_header()
        self._file.close()


class _Arrow:
    """Scores and copied columns as Parquet or CSV."""

    def __init__(self, kind: str, path: Path, columns: list[str]) -> None:
        module, name = ("csv", "CSVWriter") if kind == ".csv" else ("parquet", "ParquetWriter")
        purpose = f"writing {kind} (but not .npy)"
        self._open = getattr(require(f"pyarrow.{module}", extra="cli", purpose=purpose), name)
        self._arrow = require("pyarrow", extra="cli", purpose=purpose)
        self._path, self._columns = path, columns
        self._writer: Any = None

    def write(self, scores: Any, passthrough: Mapping[str, Any]) -> None:
        arrow = self._arrow
        table = arrow.table({**passthrough, **dict(zip(self._columns, scores.T, strict=True))})
        if self._writer is None:
            # A column that is missing everywhere so far may still contain text.
            types = [arrow.string() if arrow.types.is_null(kind) else kind for kind in table.schema.types]
            schema = arrow.schema(list(zip(table.column_names, types, strict=True)))
            self._schema, self._writer = schema, self._open(str(self._path), schema)
        self._writer.write_table(table.cast(self._schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
