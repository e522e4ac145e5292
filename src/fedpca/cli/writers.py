"""Tables and scores as files, in the format that the ending of the name selects, a batch at a time.

A file appears once it is complete: an error or an interrupt leaves nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from fedpca._util.extras import require
from fedpca._util.text import join_names
from fedpca.cli.common import check_output_path, output_file
from fedpca.cli.h5ad import open_h5ad

if TYPE_CHECKING:
    from fedpca._typing import JSON, AnyArray
    from fedpca.estimators.scoring import ModelPCA

    Columns = Mapping[str, AnyArray | Sequence[object]]
    WriteTable = Callable[[Columns], None]
    WriteScores = Callable[[AnyArray, Columns], None]

STDOUT = Path("-")
TABLES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
SCORES = (*TABLES, ".npy", ".h5ad", ".eigenvec")
# What names a row in these formats: copied without being asked for, where the rows have it.
DEFAULT_IDS = {".h5ad": (["obs_names"],), ".eigenvec": (["fid", "iid"], ["iid"])}


def ending(out: Path, endings: Sequence[str]) -> str:
    """The ending of an output, which must be one of `endings`."""
    name = out.name.lower()
    found = next((ending for ending in endings if name.endswith(ending)), None)
    if found is None:
        raise typer.BadParameter(f"outputs must end in one of {', '.join(endings)}, got {out}.")
    return found


def score_names(n_components: int, wanted: Sequence[str] = ("components",)) -> list[str]:
    """Names of the columns of scores: of "components" one each."""
    components = [f"pc{i}" for i in range(1, n_components + 1)]
    return [name for each in wanted for name in (components if each == "components" else [each])]


def check_scores_path(out: Path, kind: str, force: bool) -> None:
    """Reject an output of scores that exists or cannot be written."""
    for path in _files(out, kind):
        check_output_path(path, force)


def check_kept(kind: str, kept: Sequence[str], columns: Sequence[str]) -> None:
    """Reject columns that cannot be copied into a format beside the scores."""
    if kind == ".eigenvec" and len(kept) not in (1, 2):
        given = join_names(kept) or "none, and the rows have no column iid"
        raise typer.BadParameter(
            f"--keep must name the ids of .eigenvec, one column (IID) or two (FID, IID), got {given}."
        )
    if kind == ".h5ad" and (bad := [name for name in kept if "/" in name or name == "_index"]):
        raise typer.BadParameter(f"--keep cannot copy {join_names(bad)} to .h5ad; rename, or write .parquet.")
    if kind != ".h5ad" and (both := sorted({*columns} & {*kept})):
        raise ValueError(f"--keep cannot copy {join_names(both)}: scores are written under this name.")


@contextmanager
def open_scores(
    out: Path, kind: str, pca: "ModelPCA", columns: Sequence[str], force: bool
) -> "Iterator[WriteScores]":
    """A function that appends the scores and the copied columns of some rows."""
    opened: AbstractContextManager[WriteScores]
    with ExitStack() as stack:
        files = [stack.enter_context(output_file(path, force)) for path in _files(out, kind)]
        if kind == ".npy":
            opened = _open_npy(*files)
        elif kind == ".h5ad":
            opened = open_h5ad(pca, *files)
        elif kind == ".eigenvec":
            opened = _open_eigenvec(pca, *files)
        else:
            opened = _open_score_table(kind, columns, *files or (sys.stdout.buffer,))
        yield stack.enter_context(opened)
    if out == STDOUT:
        sys.stdout.buffer.flush()  # so that a full disk is an error


def _files(out: Path, kind: str) -> tuple[Path, ...]:
    if out == STDOUT:
        return ()
    return (out, out.with_suffix(".eigenval")) if kind == ".eigenvec" else (out,)


def write_tables(tables: "Mapping[Path, Columns]", force: bool) -> None:
    """Write tables that are in memory: all or none."""
    with ExitStack() as stack:
        for out, columns in tables.items():
            file = stack.enter_context(output_file(out, force))
            with _open_table(ending(out, TABLES), file) as write:
                write(columns)


@contextmanager
def _open_table(kind: str, target: Path | BinaryIO, **text_options: object) -> "Iterator[WriteTable]":
    """A function that appends rows, given as columns. `target` is a path or, for text, an open file."""
    purpose = f"writing {kind}"
    arrow = require("pyarrow", extra="cli", purpose=purpose)
    with ExitStack() as stack:
        sink: Any = str(target) if isinstance(target, Path) else target
        if kind == ".parquet":
            open_writer = require("pyarrow.parquet", extra="cli", purpose=purpose).ParquetWriter
        else:
            csv = require("pyarrow.csv", extra="cli", purpose=purpose)
            delimiter = "," if kind.startswith(".csv") else "\t"
            options = csv.WriteOptions(delimiter=delimiter, **text_options)
            open_writer = partial(csv.CSVWriter, write_options=options)
        if kind.endswith(".gz"):
            sink = stack.enter_context(arrow.CompressedOutputStream(sink, "gzip"))
        writer: Any = None
        schema: Any = None

        def write(columns: "Columns") -> None:
            nonlocal writer, schema
            table = arrow.table(columns)
            if writer is None:
                # A column that is missing everywhere so far may still contain text.
                types = [arrow.string() if arrow.types.is_null(each) else each for each in table.schema.types]
                schema = arrow.schema(list(zip(table.column_names, types, strict=True)))
                writer = stack.enter_context(open_writer(sink, schema))
            writer.write_table(table.cast(schema))

        yield write


@contextmanager
def _open_score_table(kind: str, names: Sequence[str], target: Path | BinaryIO) -> "Iterator[WriteScores]":
    with _open_table(kind, target) as write_table:

        def write(scores: "AnyArray", passthrough: "Columns") -> None:
            write_table({**passthrough, **dict(zip(names, scores.T, strict=True))})

        yield write


@contextmanager
def _open_eigenvec(pca: "ModelPCA", vectors: Path, values: Path) -> "Iterator[WriteScores]":
    """PLINK 2's files of principal components: ids and scores with a header, and one variance per line."""
    values.write_text("".join(f"{variance:.10g}\n" for variance in pca.explained_variance_))
    with (
        vectors.open("wb") as file,
        _open_table(".tsv", file, include_header=False, quoting_style="none") as write_table,
    ):

        def write(scores: "AnyArray", passthrough: "Columns") -> None:
            names = score_names(scores.shape[1])
            if not file.tell():
                header = ["FID", "IID"][-len(passthrough) :] + [name.upper() for name in names]
                file.write(("#" + "\t".join(header) + "\n").encode())
            ids = {name: [_plink_id(value, name) for value in column] for name, column in passthrough.items()}
            write_table(ids | dict(zip(names, scores.T, strict=True)))

        yield write


def _plink_id(value: object, column: str) -> str:
    text = "" if value is None else str(value)
    if text.split() != [text] or '"' in text:
        raise ValueError(
            f"ids in .eigenvec must be text without spaces and quotes, but {column} contains others; keep "
            "another column."
        )
    return text


@contextmanager
def _open_npy(path: Path) -> "Iterator[WriteScores]":
    """An array; the number of rows is written into its header at the end."""
    from numpy.lib import format

    with path.open("wb") as file:
        n_rows = 0
        header: JSON = {}

        def write(scores: "AnyArray", passthrough: "Columns") -> None:
            nonlocal n_rows
            if not header:
                descr = format.dtype_to_descr(scores.dtype)
                header.update(descr=descr, fortran_order=False, shape=scores.shape)
                format.write_array_header_1_0(file, header)
            n_rows += len(scores)
            file.write(scores.astype(header["descr"]).tobytes())

        yield write
        if header:
            # NumPy leaves room in its header for the number of rows to grow in place.
            file.seek(0)
            format.write_array_header_1_0(file, header | {"shape": (n_rows, header["shape"][1])})
