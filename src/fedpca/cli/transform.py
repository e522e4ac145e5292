"""fedpca transform: the coordinates of rows along a model's components, a batch at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from fedpca.backend.prefetch import prefetch
from fedpca.cli import models
from fedpca.cli.common import AsJson, Force, bars, must_be_free, names, say, some, whole

_ENDINGS = (".parquet", ".csv", ".npy")


def transform(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    path: Annotated[list[str], typer.Argument(metavar="PATH...")],
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv or .npy.")],
    components: Annotated[
        int | None, typer.Option(min=1, help="How many; by default as many as the model shows.")
    ] = None,
    aside: Annotated[str | None, typer.Option(help="Names of columns to copy, as ids.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether text files start with names.")
    ] = None,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a batch; a few batches are in memory.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write coordinates of rows along a model's components.

    PATH is a file, a folder or a glob of rows with the columns that the model was fitted on; others in it are
    passed over. The result has a row for each, with columns pc1, pc2, ... after those copied.
    """
    kind, copied = out.suffix.lower(), names(aside) or []
    if kind not in _ENDINGS:
        raise typer.BadParameter(f"--out must end in one of {', '.join(_ENDINGS)}, got {out}.")
    if kind == ".npy" and copied:
        raise typer.BadParameter(
            "--aside needs names of columns, which .npy has none of: write .parquet or .csv."
        )
    must_be_free(out, force)

    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.progress import bar
    from fedpca.readers import open_rows

    summary, shown = models.read(model)
    rows = open_rows(path, columns=summary.feature_names, aside=copied, header=header, batch_rows=batch_rows)
    if rows.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {rows.n_features}; "
            "read the files the model is of, or others like them."
        )
    wanted = min(components or shown, summary.n_features)
    if not shown:
        raise ValueError(f"{model} must have components, and has none: its rows do not vary; use another.")
    pca = StreamingPCA(wanted, center=summary.centered)
    pca.merge(replace(summary, feature_names=None))  # rows come without, as arrays

    columns = [f"pc{place}" for place in range(1, pca.n_components_ + 1)]
    if both := set(columns) & set(copied):
        raise ValueError(f"--aside must not name {', '.join(sorted(both))}: the result has such columns.")
    done = 0
    with (
        bars(),
        bar("rows", rows.n_rows, "rows") as moving,
        whole(out, force) as file,
        _written(kind, file, columns) as table,
        prefetch(rows.batches()) as batches,
    ):
        for batch in batches:
            table.write(pca.transform(batch.rows), batch.aside)
            done += batch.rows.shape[0]
            moving.advance(batch.rows.shape[0])
    facts = {"out": str(out), "rows": done, "columns": [*copied, *columns]}
    say(facts, as_json, f"{out}: {some(done, 'row')} of {some(len(columns), 'component')}")


class _Table(Protocol):
    def write(self, scores: Any, aside: dict[str, Any]) -> None: ...


@contextmanager
def _written(kind: str, path: Path, columns: list[str]) -> Iterator[_Table]:
    table = _Npy(path) if kind == ".npy" else _Arrow(kind, path, columns)
    try:
        yield table
    finally:
        table.close()


class _Npy:
    """Scores as NumPy's table; how many rows there were is written into its start at the end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._rows = 0
        self._like: Any = None

    def write(self, scores: Any, aside: dict[str, Any]) -> None:
        if self._like is None:
            self._like = scores
            self._start()
        self._rows += len(scores)
        self._file.write(scores.astype(self._like.dtype).tobytes())

    def _start(self) -> None:
        from numpy.lib import format

        # NumPy leaves room in its header for the number of rows to grow in place.
        shape = (self._rows, self._like.shape[1])
        facts = {"descr": format.dtype_to_descr(self._like.dtype), "fortran_order": False, "shape": shape}
        format.write_array_header_1_0(self._file, facts)

    def close(self) -> None:
        if self._like is not None:
            self._file.seek(0)
            self._start()
        self._file.close()


class _Arrow:
    """Scores and what is copied as Parquet or CSV."""

    def __init__(self, kind: str, path: Path, columns: list[str]) -> None:
        try:
            import pyarrow
            import pyarrow.csv
            import pyarrow.parquet
        except ImportError:
            raise ImportError(f"{kind} needs pyarrow: pip install 'fedpca[cli]'; or write .npy.") from None
        self._arrow, self._kind, self._path, self._columns = pyarrow, kind, path, columns
        self._writer: Any = None

    def write(self, scores: Any, aside: dict[str, Any]) -> None:
        arrow = self._arrow
        table = arrow.table({**aside, **dict(zip(self._columns, scores.T, strict=True))})
        if self._writer is None:
            # What is missing everywhere so far may yet come as text.
            types = [arrow.string() if arrow.types.is_null(kind) else kind for kind in table.schema.types]
            schema = arrow.schema(list(zip(table.column_names, types, strict=True)))
            writer = arrow.csv.CSVWriter if self._kind == ".csv" else arrow.parquet.ParquetWriter
            self._schema, self._writer = schema, writer(str(self._path), schema)
        self._writer.write_table(table.cast(self._schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
