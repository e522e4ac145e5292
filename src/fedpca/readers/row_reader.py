"""Rows of files, batch after batch, as often as they are asked for."""

import csv
import io
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca._util.text import join_names
from fedpca.errors import FileFormatError
from fedpca.readers import anndata, arrays, plink, tables
from fedpca.readers.data_file import Batch, Part, Reading
from fedpca.readers.paths import Paths, find, state
from fedpca.summaries import validation

_BATCH_NUMBERS = 2**21  # 16 MB as float64
_FEWEST_ROWS, _MOST_ROWS = 16, 2**16

Names = tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """The rows of one or more files; see `open_rows`.

    Iterating gives all rows as arrays, from the first, each time anew: what a fit needs.

    Attributes:
        feature_names: one a feature; None if the files have none.
        n_features: how many columns a batch has.
        n_rows: None if only reading tells, as in text files.
        sparse: whether batches are `csr_array`.
        dtype: of the batches, float32 or float64.
        batch_rows: the most rows of a batch. It may have fewer: batches end where files and their blocks do.
        aside: names of the columns kept aside.
    """

    feature_names: tuple[str, ...] | None
    n_features: int
    n_rows: int | None
    sparse: bool
    dtype: np.dtype[Any]
    batch_rows: int
    aside: tuple[str, ...]
    _parts: tuple[Part, ...]
    _states: tuple[Any, ...]  # of the files when they were opened

    def __iter__(self) -> Iterator[Any]:
        """All rows. At the end, a column without a value in any of them is refused: it teaches nothing."""
        empty = None
        for batch in self.batches():
            empty = self._empty_in(batch.rows, empty)
            yield batch.rows
        self._refuse_empty(empty)

    def _empty_in(self, rows: Any, columns: list[int] | None) -> list[int]:
        """Those of the columns, of all for None, that have no value in these rows."""
        if columns is None:
            columns = list(range(0 if self.sparse else self.n_features))
        return [] if not columns else np.array(columns)[np.isnan(rows[:, columns]).all(axis=0)].tolist()

    def _refuse_empty(self, columns: list[int] | None) -> None:
        if columns:
            names = self.feature_names or [f"number {i + 1}" for i in range(self.n_features)]
            empty = [names[i] for i in columns]
            raise FileFormatError(
                f"{self._where}: columns must have a value in some row, and {join_names(empty)} have none; "
                f"{_leave_out(empty) if self.feature_names else 'write the file without them.'}"
            )

    def batches(self, skip: int = 0) -> Iterator[Batch]:
        """Rows with what is kept aside, after the first `skip` rows, which are not worked on.

        They are not read either, but for text, Arrow streams and compressed .npz. A batch that starts where
        one of an earlier pass did is the same as that one.
        """
        left = validation.integer(skip, "skip", at_least=0)
        read = 0
        for part, opened in zip(self._parts, self._states, strict=True):
            if part.n_rows is not None and part.n_rows <= left:
                left -= part.n_rows
                read += part.n_rows
                continue
            _unchanged(part.path, opened)
            passed = 0 if part.n_rows is None else left
            left, read = left - passed, read + passed
            for batch in part.read(
                Reading(self.feature_names, self.aside, self.dtype, self.batch_rows, passed)
            ):
                n_rows = batch.rows.shape[0]
                read += n_rows
                if left < n_rows:
                    yield batch if not left else _after(batch, left)
                left = max(left - n_rows, 0)
            _unchanged(part.path, opened)
        if not read:
            raise FileFormatError(f"{self._where} must hold rows, and holds none.")
        if left:
            raise ValueError(f"skip must be at most the number of rows, {read}, got skip={skip}.")

    @property
    def _where(self) -> str:
        more = len(self._parts) - 1
        return f"{self._parts[0].path}" + (f" and {more} more" if more else "")

    def __repr__(self) -> str:
        more = len(self._parts) - 1
        n_rows = "" if self.n_rows is None else f", n_rows={self.n_rows}"
        files = f"'{self._parts[0].path.name}'" + (f" and {more} more" if more else "")
        return f"Rows({files}, n_features={self.n_features}{n_rows}{', sparse' * self.sparse})"


def open_rows(
    path: Paths,
    *,
    columns: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    aside: Iterable[str] = (),
    header: bool | None = None,
    batch_rows: int | None = None,
) -> Rows:
    """Open files of rows, of any size, to be read a batch at a time.

    Formats, by the ending of the name: .csv and .tsv (also .gz, .bz2, .zst), .parquet, .arrow and .feather,
    .npy, .npz, .h5ad, .zarr, and .bed of PLINK. Whole numbers, decimals and yes or no become float64; float32
    stays. An empty cell, NA, null or NaN is a missing entry.

    Args:
        path: a file, a glob, a folder (with those in it; hidden ones and those that start with "_" are passed
            over), or a list of these. All files must have one format and the same columns; columns are
            matched by name, files read in the order of their paths.
        columns: names of the columns to read, in this order; all of them if None.
        drop: names of columns to leave out.
        aside: names of columns to leave out of the rows and hand over beside them, as ids or labels. From
            text files they come as the text they are; from .h5ad and .zarr they are columns of `obs`, from
            .bed those of the .fam file, from .npz other arrays.
        header: whether the first line of a text file holds names; by default if no number is in it.
        batch_rows: the most rows of a batch; by default as many as make 16 MB, of Parquet 32 MB.

    >>> import numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.arange(10.0).reshape(5, 2))
    >>> [batch.shape for batch in open_rows(path, batch_rows=2)]
    [(2, 2), (2, 2), (1, 2)]
    """
    drop, aside = _names(drop, "drop"), _names(aside, "aside")
    columns = None if columns is None else _names(columns, "columns")
    kind, files = find(path)
    states = [state(file) for file in files]
    for file, (_, n_bytes, _) in zip(files, states, strict=True):
        if not n_bytes and file.is_file():
            raise FileFormatError(f"{file} must hold rows, and is empty.")
    open_part = _opener(kind, header)
    parts = [open_part(file) for file in files]
    chosen = _chosen(parts[0], columns, drop, aside)
    for part in parts:
        _same_columns(parts[0], part, columns, drop, aside)
        _numbers(part, chosen)
    n_features = parts[0].n_columns if chosen is None else len(chosen)
    if batch_rows is None:
        # Every column of a batch of Parquet has its price: of twice the size, all is a tenth faster.
        numbers = 2 * _BATCH_NUMBERS if kind == "parquet" else _BATCH_NUMBERS
        batch_rows = min(max(numbers // n_features, _FEWEST_ROWS), _MOST_ROWS)
    counts = [part.n_rows for part in parts]
    return Rows(
        feature_names=chosen,
        n_features=n_features,
        n_rows=None if None in counts else sum(count or 0 for count in counts),
        sparse=parts[0].sparse,
        dtype=np.result_type(*(part.dtype(chosen) for part in parts)),
        batch_rows=validation.integer(batch_rows, "batch_rows", at_least=1),
        aside=aside,
        _parts=tuple(parts),
        _states=tuple(states),
    )


def _opener(kind: str, header: bool | None) -> Callable[[Path], Part]:
    match kind:
        case "csv":
            return partial(tables.open_text, delimiter=",", header=header)
        case "tsv":
            return partial(tables.open_text, delimiter="\t", header=header)
        case "parquet":
            return tables.open_parquet
        case "arrow":
            return tables.open_arrow
        case "npy":
            return arrays.open_npy
        case "npz":
            return arrays.open_npz
        case "h5ad":
            return anndata.open_h5ad
        case "zarr":
            return anndata.open_zarr
        case _:
            return plink.open_bed


def _names(names: Iterable[str], what: str) -> Names:
    if isinstance(names, str):
        raise TypeError(f"{what} must be a list of names, got {names!r}; pass {what}=[{names!r}].")
    return tuple(dict.fromkeys(names))


def _same_columns(first: Part, part: Part, columns: Names | None, drop: Names, aside: Names) -> None:
    """Refuse a file whose columns, those asked for at least, are not those of the first."""
    if first.sparse != part.sparse:
        raise FileFormatError(
            f"files must all be sparse or all dense, got {first.path} and {part.path}; convert one."
        )
    _known(part, aside, part.asides, "aside")
    if first.names is None or part.names is None:
        if first.names is not part.names or first.n_columns != part.n_columns:
            raise FileFormatError(
                f"files must have the same columns: {_width(first)} in {first.path}, {_width(part)} in "
                f"{part.path}; read them apart, or convert one."
            )
        return
    twice = [name for name, times in Counter(part.names).items() if times > 1]
    if twice:
        raise FileFormatError(
            f"{part.path}: columns must have names of their own, and {join_names(twice)} comes twice; rename."
        )
    if columns is not None:
        _known(part, columns, part.names, "columns")
        return
    for one, other in ((first, part), (part, first)):
        others = {*(other.names or ()), *drop}
        if only := [name for name in one.names or () if name not in others]:
            raise FileFormatError(
                f"files must have the same columns: {join_names(only)} is in {one.path} and not in "
                f"{other.path}; leave it out, or name those that all have: columns=[...] (--columns)."
            )


def _width(part: Part) -> str:
    return f"{part.n_columns} {'named' if part.names else 'unnamed'}"


def _chosen(part: Part, columns: Names | None, drop: Names, aside: Names) -> Names | None:
    """The names of the features; None for all columns of a file without names."""
    if part.names is None:
        if columns is not None or drop:
            raise ValueError(f"columns and drop are names, and {part.path} has none; add a line of names.")
        return None
    _known(part, columns or (), part.names, "columns")
    _known(part, drop, part.names, "drop")
    left_out = {*drop, *(aside if part.asides == part.names else ())}  # else they are no columns
    chosen = tuple(name for name in (part.names if columns is None else columns) if name not in left_out)
    if "" in chosen:
        raise FileFormatError(
            f"{part.path}: columns must have names, and number {part.names.index('') + 1} has none; name it, "
            "or leave it out: drop=[''] (--drop '')."
        )
    if not chosen:
        raise ValueError(f"one column at least must be left to read, got none of those in {part.path}.")
    return chosen


def _known(part: Part, asked: Names, there: Collection[str], what: str) -> None:
    known = set(there)
    if strange := [name for name in asked if name not in known]:
        raise ValueError(
            f"there must be a column for each name ({what}): {part.path} has no {join_names(strange)}; "
            f"there are {join_names(list(there)) or 'none to name'}."
        )


def _numbers(part: Part, chosen: Names | None) -> None:
    """Refuse columns of anything but numbers."""
    bad = {
        name: part.others[name] for name in (part.others if chosen is None else chosen) if name in part.others
    }
    if bad:
        held = join_names([f"{name} holds {what}" for name, what in bad.items()])
        remedy = _leave_out(list(bad))
        if chosen is None:
            remedy = "correct it or, if the first line holds names, say header=True (--header)."
        raise FileFormatError(f"{part.path}: columns must hold numbers, and {held}; {remedy}")


def _leave_out(names: list[str]) -> str:
    if len(names) > 8:
        return "name those to keep: columns=[...] (--columns)."
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return f"leave out: drop={names} (--drop {shlex.quote(line.getvalue())})."


def _after(batch: Batch, skip: int) -> Batch:
    return Batch(batch.rows[skip:], {name: values[skip:] for name, values in batch.aside.items()})


def _unchanged(path: Path, opened: Any) -> None:
    try:
        now = state(path)
    except OSError as error:
        raise FileNotFoundError(f"{path} is not there any more; open again what is there now.") from error
    if now != opened:
        raise FileFormatError(
            f"{path} changed while it was read; read it when nothing writes to it, or read a copy."
        )
