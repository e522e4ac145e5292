"""Scores as files, in the format that the ending of the name selects, a batch at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from numpy.lib import format as npy_format

from fedpca._typing import AnyArray
from fedpca._util.files import atomic_write, local_path
from fedpca._util.text import join_names
from fedpca.writers.h5ad import open_h5ad
from fedpca.writers.tables import TABLES, Columns, ending, open_table

if TYPE_CHECKING:
    from fedpca.estimators.base import BasePCA

WriteScores = Callable[[AnyArray, Columns], None]

SCORES = (*TABLES, ".npy", ".h5ad", ".eigenvec")
# What names a row in these formats: copied without being asked for, where the rows have it.
DEFAULT_IDS = {".h5ad": (["obs_names"],), ".eigenvec": (["fid", "iid"], ["iid"])}


class Append(Protocol):
    """Appends the scores of some rows to a file."""

    def __call__(self, scores: AnyArray, passthrough: Columns = ..., /) -> None:
        """Append scores, shape (n, columns), and the columns to copy beside them, of n entries each."""


@contextmanager
def open_scores(
    target: str | os.PathLike[str] | BinaryIO, pca: "BasePCA", columns: Sequence[str] | None = None
) -> Iterator[Append]:
    """A file of scores, which appears once the block ends. What is yielded appends those of some rows.

    .parquet, .csv, .tsv, .csv.gz and .tsv.gz are tables: the copied columns, then the scores. .npy has the
    scores only. .h5ad is AnnData without X, with scores, loadings and variances where scanpy has them, and
    the copied columns in obs. .eigenvec is text as PLINK 2 writes it, of one or two columns of ids and the
    scores, with the variances in .eigenval beside it.

    Args:
        target: the file to write; an open binary file gets CSV.
        pca: a fitted estimator, whose components, features and variances are part of some formats.
        columns: what to call the scores; by default pc1, pc2 and so on.

    >>> import fedpca, numpy as np, tempfile
    >>> rows = np.random.default_rng(0).normal(size=(50, 3))
    >>> pca = fedpca.StreamingPCA(2).fit(rows)
    >>> path = Path(tempfile.mkdtemp()) / "scores.tsv"
    >>> with open_scores(path, pca) as write:
    ...     write(pca.transform(rows), {"id": range(50)})
    >>> path.read_text().splitlines()[0].split()
    ['"id"', '"pc1"', '"pc2"']
    """
    path = local_path(target) if isinstance(target, str | os.PathLike) else None
    kind = ".csv" if path is None else ending(path, SCORES)
    components = score_names(pca.n_components_)
    names = components if columns is None else list(columns)
    if names != components:
        require_any_scores(kind)
    with ExitStack() as stack:
        opened: AbstractContextManager[WriteScores]
        files: list[Any] = [target]
        if path is not None:
            files = [stack.enter_context(atomic_write(file)) for file in score_files(path)]
        if kind == ".npy":
            opened = _open_npy(*files)
        elif kind == ".h5ad":
            opened = open_h5ad(pca, *files)
        elif kind == ".eigenvec":
            opened = _open_eigenvec(pca, *files)
        else:
            opened = _open_score_table(kind, names, *files)
        write = stack.enter_context(opened)

        def append(scores: AnyArray, passthrough: Columns = MappingProxyType({}), /) -> None:
            check_passthrough(kind, tuple(passthrough), names)
            write(scores, passthrough)

        yield append


def score_files(path: Path) -> tuple[Path, ...]:
    """The files that scores of this name are written to."""
    return (path, path.with_suffix(".eigenval")) if path.name.lower().endswith(".eigenvec") else (path,)


def score_names(
    n_components: int, wanted: Sequence[str] = ("components",), features: Sequence[str] = ()
) -> list[str]:
    """Names of the columns of scores: of "components" one each, of "contributions" one per feature."""
    many = {
        "components": [f"pc{i}" for i in range(1, n_components + 1)],
        "contributions": [f"contribution {name}" for name in features],
    }
    return [name for each in wanted for name in many.get(each, [each])]


def require_any_scores(kind: str) -> None:
    """Reject formats that have scores of components only."""
    if kind in (".h5ad", ".eigenvec"):
        raise ValueError(f"{kind} files have scores of components only; write .parquet or .csv.")


def check_passthrough(kind: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Reject columns that cannot be copied beside scores of this format."""
    if kind == ".npy" and names:
        raise ValueError(
            f".npy has no room for columns beside the scores (--keep), got {join_names(names)}; write "
            ".parquet or .csv."
        )
    if kind == ".eigenvec" and len(names) not in (1, 2):
        raise ValueError(
            ".eigenvec needs the ids of the rows (--keep), one column (IID) or two (FID, IID), got "
            f"{join_names(names) or 'none'}."
        )
    if kind == ".h5ad" and (bad := [name for name in names if "/" in name or name == "_index"]):
        raise ValueError(f".h5ad cannot have columns {join_names(bad)} (--keep); rename, or write .parquet.")
    if kind != ".h5ad" and (both := sorted({*columns} & {*names})):
        raise ValueError(f"scores are written as {join_names(both)}; copy (--keep) columns of other names.")


@contextmanager
def _open_score_table(kind: str, names: Sequence[str], target: Path | BinaryIO) -> Iterator[WriteScores]:
    with open_table(kind, target) as write_table:

        def write(scores: AnyArray, passthrough: Columns) -> None:
            write_table({**passthrough, **dict(zip(names, scores.T, strict=True))})

        yield write


@contextmanager
def _open_eigenvec(pca: "BasePCA", vectors: Path, values: Path) -> Iterator[WriteScores]:
    """PLINK 2's files of principal components: ids and scores with a header, and one variance per line."""
    values.write_text("".join(f"{variance:.10g}\n" for variance in pca.explained_variance_))
    with (
        vectors.open("wb") as file,
        open_table(".tsv", file, include_header=False, quoting_style="none") as write_table,
    ):

        def write(scores: AnyArray, passthrough: Columns) -> None:
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
def _open_npy(path: Path) -> Iterator[WriteScores]:
    """An array; the number of rows is written into its header at the end."""
    with path.open("wb") as file:
        n_rows = 0
        header: dict[str, Any] = {}

        def write(scores: AnyArray, passthrough: Columns) -> None:
            nonlocal n_rows
            if not header:
                descr = npy_format.dtype_to_descr(scores.dtype)
                header.update(descr=descr, fortran_order=False, shape=scores.shape)
                npy_format.write_array_header_1_0(file, header)
            n_rows += len(scores)
            file.write(scores.astype(header["descr"]).tobytes())

        yield write
        if header:
            # NumPy leaves room in its header for the number of rows to grow in place.
            file.seek(0)
            npy_format.write_array_header_1_0(file, header | {"shape": (n_rows, header["shape"][1])})
