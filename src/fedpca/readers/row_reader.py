"""RowReader: the rows of files, batch after batch, as often as needed."""

import hashlib
import json
import logging
import re
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca._util.option_text import advice
from fedpca._util.text import join_names, pluralize
from fedpca.backend import dense
from fedpca.errors import FileFormatError
from fedpca.readers import anndata, arrays
from fedpca.readers.columnar import ArrowFile, ParquetFile
from fedpca.readers.data_file import Batch, DataFile, ReadRequest, Source
from fedpca.readers.dialect import DELIMITERS, Dialect
from fedpca.readers.excel import ExcelFile
from fedpca.readers.json_lines import JsonFile
from fedpca.readers.paths import Paths, StandardInput, State, find, is_standard_input, state
from fedpca.readers.tables import TableFile
from fedpca.readers.text import TextFile, numbered
from fedpca.summaries import validation

if TYPE_CHECKING:
    from fedpca.genetics.variants import VariantMatch

_log = logging.getLogger(__name__)
_BATCH_ENTRIES = 2**21  # 16 MB as float64
_MIN_ROWS, _MAX_ROWS = 16, 2**16
# Their package stands above this one, and is imported when such a file is opened.
_GENOTYPES = {"bed": "fedpca.genetics.bed:open_bed", "pgen": "fedpca.genetics.pgen:open_pgen"}
_ID = re.compile(r"(.*[^A-Za-z])?[iI][dD]|.*[a-z]I[dD]")  # and not: acid, grid
_OF_CELLS = ("decimal", "thousands", "na_values", "skip_lines")  # what a dialect says about any table
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")  # of columns without names
_MAX_DROPPED = 8  # more columns are better selected than dropped

Names = tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class RowReader:
    """The rows of one or more files; see `open_rows`.

    Iterating gives all rows as arrays, from the first, each time anew. `batches` gives them with their names.

    Attributes:
        feature_names: one per feature; None if the files have none.
        n_features: how many columns a batch has.
        n_rows: None if it is known only after reading, as in text files.
        sparse: whether batches are `csr_array`.
        dtype: of the batches, float32 or float64.
        batch_rows: maximum rows per batch. It may have fewer: batches end where files and their blocks do.
        passthrough: names of the passthrough columns.
    """

    feature_names: tuple[str, ...] | None
    n_features: int
    n_rows: int | None
    sparse: bool
    dtype: np.dtype[Any]
    batch_rows: int
    passthrough: tuple[str, ...]
    _files: tuple[DataFile, ...]
    _states: tuple[State, ...]  # of the files when they were opened
    _options: str  # those of text and Excel files, as given
    _copy: StandardInput | None  # exists as long as the reader

    def __iter__(self) -> Iterator[Any]:
        """All rows."""
        for batch in self.batches():
            yield batch.rows

    def batches(self, skip: int = 0) -> Iterator[Batch]:
        """Rows with their names and the passthrough columns, after the first `skip` rows.

        Skipped rows are not even read, except from text, Arrow streams and compressed .npz. A batch that
        starts where one of an earlier pass did equals that one.
        """
        left = validation.integer(skip, "skip", at_least=0)
        read = 0
        for file, opened in zip(self._files, self._states, strict=True):
            if file.n_rows is not None and file.n_rows <= left:
                left -= file.n_rows
                read += file.n_rows
                continue
            _require_unchanged(file.path, opened)
            _log.debug("reading %s", file.path)
            skipped = 0 if file.n_rows is None else left
            left, read = left - skipped, read + skipped
            apart = _stored_apart(file, self.passthrough, self.feature_names)
            request = ReadRequest(self.feature_names, apart, self.dtype, self.batch_rows, skipped)
            for batch in file.read(request):
                batch = _with_features(batch, self.passthrough)
                read += len(batch)
                if left < len(batch):
                    yield batch.skip(left) if left else batch
                left = max(left - len(batch), 0)
            _require_unchanged(file.path, opened)
        if not read:
            raise FileFormatError(f"{self._where} contains no rows.")
        if left:
            raise ValueError(f"skip must be at most the number of rows, {read}, got skip={skip}.")

    def nearest_start(self, row: int) -> int:
        """The row nearest to this one from which `batches` can skip to at no cost; 0 if there is none."""
        best = first = 0
        for file in self._files:
            if file.n_rows is None:
                return 0
            starts = file.starts()
            i = bisect(starts, row - first)
            found = [first + start for start in starts[max(i - 1, 0) : i + 1]]
            best = min([best, *found], key=lambda start: abs(start - row))
            first += file.n_rows
        return best

    @contextmanager
    def naming_infinity(self) -> Iterator[None]:
        """What is raised of rows with an infinite entry, with the place of the first one."""
        try:
            yield
        except FileFormatError:
            raise
        except ValueError as error:
            if "infinity" not in str(error):
                raise
            if (found := self._first_infinity()) is None:
                raise
            raise found from None

    @property
    def passthrough_names(self) -> tuple[str, ...]:
        """Names of the columns that all files can pass through."""
        first, *others = (file.passthrough_names for file in self._files)
        return tuple(name for name in first if all(name in other for other in others))

    @property
    def matches(self) -> "tuple[VariantMatch, ...]":
        """How the variants of each file of genotypes are those of `columns`; empty for other files."""
        return tuple(file.match for file in self._files if file.match is not None)

    def fingerprint(self) -> str:
        """A hash of the files, as they were when opened, of the columns read, and of the options."""
        files = [
            (str(file.path.resolve()), size, changed)
            for file, (_, size, changed) in zip(self._files, self._states, strict=True)
        ]
        contents = json.dumps([files, self.feature_names, str(self.dtype), self._options])
        return hashlib.sha256(contents.encode()).hexdigest()

    def _first_infinity(self) -> FileFormatError | None:
        """An error that names it; None if there is none."""
        for file in self._files:
            done = 0
            for batch in file.read(ReadRequest(self.feature_names, (), self.dtype, self.batch_rows, 0)):
                rows, columns = np.nonzero(np.isinf(dense(batch.rows)))
                if len(rows):
                    place, column = file.place(done + int(rows[0]) + 1), int(columns[0])
                    names = self.feature_names or numbered(self.n_features)
                    remedies = ["correct or empty the entry"]
                    if isinstance(file, TextFile | ExcelFile):
                        remedies.append(f"take it for missing with {advice('na_values', ['inf', '-inf'])}")
                    if self.feature_names:
                        remedies.append(f"leave the column out with {advice('drop', [names[column]])}")
                    problem = f"{place}: {names[column]} contains infinity, and entries must be finite"
                    return FileFormatError(problem, *remedies)
                done += len(batch)
        return None

    @property
    def _where(self) -> str:
        more = len(self._files) - 1
        return f"{self._files[0].path}" + (f" and {more} more" if more else "")

    def __repr__(self) -> str:
        more = len(self._files) - 1
        n_rows = "" if self.n_rows is None else f", n_rows={self.n_rows}"
        files = f"'{self._files[0].path.name}'" + (f" and {more} more" if more else "")
        return f"RowReader({files}, n_features={self.n_features}{n_rows}{', sparse' * self.sparse})"


def open_rows(
    path: Paths,
    *,
    columns: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    passthrough: Iterable[str] = (),
    numeric_only: bool = False,
    header: bool | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    na_values: Iterable[str] = (),
    comment: str | None = None,
    encoding: str | None = None,
    skip_lines: int = 0,
    sheet: str | None = None,
    private: bool = False,
    width: int | None = None,
    n_rows: int | None = None,
    batch_rows: int | None = None,
) -> RowReader:
    """Open files of rows, of any size, to be read a batch at a time.

    Formats, by the ending of the name: .csv, .tsv, .txt and .jsonl (also .gz, .bz2, .zst), .xlsx, .parquet,
    .arrow and .feather, .npy, .npz, .h5ad, .zarr, and .bed and .pgen of PLINK. Integers, decimals and
    booleans become float64; float32 stays. An empty cell, NA, null or NaN is a missing entry. Lists in a
    column of Parquet, Arrow or .jsonl files, such as embeddings, are features named embedding_0,
    embedding_1 and so on.

    Args:
        path: a file, a glob, a folder (with those in it; hidden ones and those that start with "_" are
            skipped), or a list of these. All files must have one format and the same columns; columns are
            matched by name, files read in the order of their paths. Text and Parquet files may be
            behind URLs such as https:// or s3://. "-" is text on standard input, which is first copied to a
            temporary file, because rows may be read twice. A prefix stands for PLINK's files: north for
            north.pgen or north.bed.
        columns: names of the columns to read, in this order; all of them if None. Columns of text and Excel
            files without names have numbers, from 1: "1", "3-5"; the model then knows them as "column 3".
            The name of a column of lists stands for all its elements, also in `drop`. Variants of PLINK's
            files are matched by position and alleles, or by id: swapped alleles and the other strand are
            corrected for, and what a file does not have is missing; `matches` says how many.
        drop: names of columns to leave out.
        passthrough: names of columns that are returned beside the rows, such as ids or labels. They are no
            features, unless `columns` names them, too. From text and Excel files they come as text, features
            as numbers; from .h5ad and .zarr they are columns of `obs` or features, from .bed and .pgen
            those of the .fam or .psam file or variants, from .npz other arrays.
        numeric_only: leave out columns that are not numeric, with a warning that names them.
        header: whether the first line of a text or Excel file contains names; by default if there is no
            number in it.
        delimiter: the character between cells of a text file. By default a tab in .tsv; otherwise comma,
            semicolon, tab, "|" or, in .txt, a space, whichever divides the first lines evenly.
        decimal: the decimal point of a text file; by default a comma if the first lines leave no doubt.
        thousands: the separator of groups of three digits in a text file; by default there is none.
        na_values: cells of a text file that stand for a missing value, besides an empty cell, NA, null and
            NaN. A number stands for all cells of the same value.
        comment: what a line of a text file starts with if it is to be ignored.
        encoding: of a text file, a name that Python knows; by default UTF-8, or UTF-16 if it starts with a
            byte order mark.
        skip_lines: lines of a text file, or rows of a sheet, above the names or the first row, such as a
            title.
        sheet: the name of the sheet of an Excel file; by default the first one. `decimal`, `thousands` and
            `na_values` apply to its cells, too.
        private: detect nothing from the rows, because one record could decide it. In text files the delimiter
            comes from the header line, the decimal point is ".", all columns are features, a cell that is
            not a number is missing, every line is a row, and one that cannot be parsed is a row of missing
            values; lists must have a fixed size. Set it for a private fit.
        width: with `private`, how many cells a line of text has, if it has no header.
        n_rows: with `private`, how many rows there are: of an Excel file it must be given, because empty rows
            at the end leave no trace.
        batch_rows: maximum rows per batch; by default as many as make 16 MB, of Parquet 32 MB.

    >>> import numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.arange(10.0).reshape(5, 2))
    >>> [batch.shape for batch in open_rows(path, batch_rows=2)]
    [(2, 2), (2, 2), (1, 2)]
    """
    drop, passthrough = _names(drop, "drop"), _names(passthrough, "passthrough")
    columns = None if columns is None else _names(columns, "columns")
    na_values = _names(na_values, "na_values")
    dialect = Dialect(delimiter, decimal, thousands, na_values, comment, encoding, skip_lines)
    copy = StandardInput() if is_standard_input(path) else None
    paths: Sequence[Source]
    kind, paths = find(path) if copy is None else ("txt", [copy.path])
    if kind == "jsonl" and private:
        raise FileFormatError(
            f"{paths[0]}: columns of a private fit must not depend on its rows, as those of .jsonl files do; "
            "convert it to Parquet or CSV."
        )
    of_cells = _OF_CELLS if kind == "xlsx" else dialect.given if kind in DELIMITERS else ()
    if wrong := [name for name in dialect.given if name not in of_cells]:
        raise ValueError(f"{wrong[0]} is for text files, and {paths[0]} is none; leave it out.")
    if sheet is not None and kind != "xlsx":
        raise ValueError(f"sheet is for Excel files, and {paths[0]} is none; leave it out.")
    _require_stated(kind, paths, private, width, n_rows)
    states = [state(each) for each in paths]
    for each, (_, n_bytes, _) in zip(paths, states, strict=True):
        if not n_bytes and each.is_file():
            raise FileFormatError(f"{each} contains no rows.")
    open_file = _opener(kind, columns, header, dialect, sheet, private, width, n_rows)
    files = [open_file(each) for each in paths]
    if (columns is not None or drop or passthrough or numeric_only) and _number_columns(files):
        columns = None if columns is None else _expanded(columns, files[0])
        drop, passthrough = _expanded(drop, files[0]), _expanded(passthrough, files[0])
    columns = None if columns is None else _elements(columns, files[:1])
    drop = _elements(drop, files)
    if numeric_only:
        if private and kind in (*DELIMITERS, "xlsx"):
            raise FileFormatError(
                f"numeric_only needs the types of columns, but in {paths[0]} private rows would decide them",
                f"leave columns out with {advice('drop')}",
            )
        drop = (*drop, *_left_out(files, columns, {*drop, *passthrough}))
    features = _features(files[0], columns, drop, passthrough)
    _require_columns(files[0], drop, dict.fromkeys(name for file in files for name in file.names or ()))
    for file in files:
        _require_same_columns(files[0], file, columns, features, drop, passthrough)
        _require_numeric(file, features)
    if columns is None and not private and isinstance(files[0], TableFile):
        _warn_of_ids(files[0], features or ())
    n_features = files[0].n_columns if features is None else len(features)
    if batch_rows is None:
        # Every column of a batch of Parquet has its price: of twice the size, all is a tenth faster.
        entries = 2 * _BATCH_ENTRIES if kind == "parquet" else _BATCH_ENTRIES
        batch_rows = min(max(entries // n_features, _MIN_ROWS), _MAX_ROWS)
    counts = [file.n_rows for file in files]
    reader = RowReader(
        feature_names=features,
        n_features=n_features,
        n_rows=None if None in counts else sum(count or 0 for count in counts),
        sparse=files[0].sparse,
        dtype=np.result_type(*(file.dtype(features) for file in files)),
        batch_rows=validation.integer(batch_rows, "batch_rows", at_least=1),
        passthrough=passthrough,
        _files=tuple(files),
        _states=tuple(states),
        _options=repr((dialect, sheet)),
        _copy=copy,
    )
    _log.info("opened %s of format %s: %r", pluralize(len(files), "file"), kind, reader)
    for match in reader.matches:
        _log.info("%s", match)
    return reader


def options_of(path: Paths) -> Collection[str]:
    """The arguments of `open_rows` that say how files of this format are written."""
    kind = "txt" if is_standard_input(path) else find(path)[0]
    if kind == "xlsx":
        return ("header", "sheet", *_OF_CELLS)
    return ("header", *Dialect.__slots__) if kind in DELIMITERS else ()


def _opener(
    kind: str,
    columns: Names | None,
    header: bool | None,
    dialect: Dialect,
    sheet: str | None,
    private: bool,
    width: int | None,
    n_rows: int | None,
) -> Callable[[Any], DataFile]:
    match kind:
        case "csv" | "tsv" | "txt":
            return partial(
                TextFile,
                delimiters=DELIMITERS[kind],
                header=header,
                dialect=dialect,
                private=private,
                width=width,
                private_rows=n_rows,
            )
        case "xlsx":
            return partial(
                ExcelFile, sheet=sheet, header=header, dialect=dialect, private=private, private_rows=n_rows
            )
        case "jsonl":
            return JsonFile
        case "parquet":
            return partial(ParquetFile, private=private)
        case "arrow":
            return partial(ArrowFile, private=private)
        case "npy":
            return arrays.open_npy
        case "npz":
            return arrays.open_npz
        case "h5ad":
            return anndata.open_h5ad
        case "zarr":
            return anndata.open_zarr
        case _:
            return partial(resolve_name(_GENOTYPES[kind]), columns=columns)


def _require_stated(
    kind: str, paths: Sequence[Source], private: bool, width: int | None, n_rows: int | None
) -> None:
    """Check what the caller says about the form of private rows, and where nothing else may decide it."""
    for name, value in (("width", width), ("n_rows", n_rows)):
        if value is None:
            continue
        validation.integer(value, name, at_least=1)
        if not private:
            raise ValueError(f"{name} is for private rows; leave it out.")
        if kind not in (*DELIMITERS, *(["xlsx"] if name == "n_rows" else [])):
            raise ValueError(f"{name} is not for {paths[0]}, which tells it; leave it out.")
    if n_rows is not None and len(paths) > 1:
        raise ValueError(
            f"n_rows is that of one file, got {len(paths)} files; put the rows into one, or into Parquet."
        )
    if private and kind == "xlsx" and len(paths) > 1:
        raise FileFormatError(
            f"{paths[0]}: private rows of Excel must be in one file, whose number of rows you state; convert "
            "the files to Parquet."
        )


def _number_columns(files: Sequence[DataFile]) -> bool:
    """Call columns without names by their numbers, if they are those of tables; whether that was done."""
    tables = [file for file in files if isinstance(file, TableFile) and file.names is None]
    for file in tables:
        file.number_columns()
    return bool(tables) and len(tables) == len(files)


def _expanded(names: Names, file: DataFile) -> Names:
    """Names of columns in place of their numbers and ranges of numbers."""
    known = tuple(file.passthrough_names)
    found: list[str] = []
    for name in names:
        if name not in known and (match := _RANGE.fullmatch(name.strip())):
            first, last = int(match[1]), int(match[2] or match[1])
            if not 1 <= first <= last <= len(known):
                raise ValueError(
                    f"columns without names have the numbers 1 to {len(known)} in {file.path}, got {name!r}."
                )
            found += known[first - 1 : last]
        else:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _names(names: Iterable[str], argument: str) -> Names:
    if isinstance(names, str):
        raise TypeError(f"{argument} must be a list of names, got {names!r}; pass {argument}=[{names!r}].")
    return tuple(dict.fromkeys(names))


def _left_out(files: Iterable[DataFile], columns: Names | None, known: Collection[str]) -> Names:
    """The names of columns that are not numeric in some file, besides those known; a warning names them."""
    found = {
        name: reason.contains
        for file in files
        for name, reason in file.non_numeric.items()
        if file.names is not None and name not in known and (columns is None or name in columns)
    }
    if found:
        names = join_names([f"{name} ({contains})" for name, contains in found.items()])
        warnings.warn(f"left out because not numeric: {names}.", stacklevel=3)
    return tuple(found)


def _warn_of_ids(file: TableFile, features: Names) -> None:
    """Warn of features that are ids by their names, or because they never repeat."""
    never_repeat = file.counters(features)
    ids = [name for name in features if name in never_repeat or _ID.fullmatch(name)]
    if ids:
        warnings.warn(
            f"{join_names(ids)} may be {'an id' if len(ids) == 1 else 'ids'}, by the name or because the "
            f"values never repeat, but {'is a feature' if len(ids) == 1 else 'are features'}; drop "
            f"{_them(ids)} unless measured.",
            stacklevel=3,
        )


def _elements(names: Names, files: Iterable[DataFile]) -> Names:
    """Names with those of the elements in place of columns of lists."""
    return tuple(
        dict.fromkeys(
            element for name in names for file in files for element in file.lists.get(name, (name,))
        )
    )


def _features(file: DataFile, columns: Names | None, drop: Names, passthrough: Names) -> Names | None:
    """The names of the features; None for all columns of a file without names."""
    if file.names is None:
        if columns is not None or drop:
            raise ValueError(
                f"columns cannot be selected: {file.path} has no column names; use a format with names."
            )
        return None
    _require_columns(file, columns or (), file.names)
    excluded = {*drop}
    # In some formats passthrough columns are stored apart from the rows.
    if columns is None and isinstance(file, TableFile):
        excluded |= {*_elements(passthrough, [file])}
    features = tuple(name for name in (file.names if columns is None else columns) if name not in excluded)
    if "" in features:
        unnamed = file.names.count("")
        # In the first of many cells.
        may_be_title = isinstance(file, TextFile | ExcelFile) and 2 * unnamed >= len(file.names)
        raise FileFormatError(
            f"{file.path}: columns must have names, but column {file.names.index('') + 1} has none",
            "name it" if unnamed == 1 else "name all columns",
            *([f"pass {advice('skip_lines')} if lines above the names are a title"] if may_be_title else []),
            f"leave {'it' if unnamed == 1 else 'those without'} out with {advice('drop', [''])}",
        )
    if not features:
        raise ValueError(
            f"at least one column must be left to read, got none of those in {file.path}; encode columns of "
            "text as numbers, or select others."
        )
    return features


def _stored_apart(file: DataFile, passthrough: Names, features: Names | None) -> Names:
    """Passthrough columns that are not among the rows of the file."""
    if isinstance(file, TableFile):
        return tuple(name for name in passthrough if name not in (features or ()))
    return tuple(name for name in passthrough if name in file.passthrough_names)


def _with_features(batch: Batch, passthrough: Names) -> Batch:
    """A batch with all passthrough columns: those that are features are copied from its rows."""
    if len(batch.passthrough) == len(passthrough) or batch.feature_names is None:
        return batch
    columns = {
        name: batch.passthrough[name]
        if name in batch.passthrough
        else dense(batch.rows[:, [batch.feature_names.index(name)]]).ravel()
        for name in passthrough
    }
    return replace(batch, passthrough=columns)


def _require_same_columns(
    first: DataFile,
    file: DataFile,
    columns: Names | None,
    features: Names | None,
    drop: Names,
    passthrough: Names,
) -> None:
    """Reject a file whose columns, at least those needed, differ from those of the first."""
    if first.sparse != file.sparse:
        raise FileFormatError(
            f"files must all be sparse or all dense, got {first.path} and {file.path}; convert one."
        )
    _require_columns(file, passthrough, dict.fromkeys([*file.passthrough_names, *(features or ())]))
    if first.names is None or file.names is None:
        if first.names is not file.names or first.n_columns != file.n_columns:
            raise FileFormatError(
                f"files must have the same columns, got {_width(first)} in {first.path} and {_width(file)} "
                f"in {file.path}; read them separately, or convert one."
            )
        return
    needed = {*(features or ()), *passthrough}
    duplicates = [name for name, times in Counter(file.names).items() if times > 1 and name in needed]
    if duplicates:
        first_row = file.first_row() if isinstance(file, TextFile | ExcelFile) else 0
        by_number = f"{advice('skip_lines', first_row)} and {advice('header', False)}"
        raise FileFormatError(
            f"{file.path}: column names must be unique, but {join_names(duplicates)} "
            f"{'appears' if len(duplicates) == 1 else 'appear'} twice",
            "rename columns",
            *([f"read columns by number with {by_number}"] if first_row else []),
        )
    if first.match is not None and file.match is not None and not first.match.shares(file.match):
        raise FileFormatError(
            f"files must have other people with the same variants, but {first.path} and {file.path} have no "
            "variant in common; put chromosomes together with plink2 --pmerge-list."
        )
    if columns is not None:
        _require_columns(file, columns, file.names)
        return
    for one, other in ((first, file), (file, first)):
        others = {*(other.names or ()), *drop}
        if only := [name for name in one.names or () if name not in others]:
            raise FileFormatError(
                f"files must have the same columns, but {join_names(only)} "
                f"{'is' if len(only) == 1 else 'are'} in {one.path} and not in {other.path}",
                *(
                    [f"leave {_them(only)} out with {advice('drop', only)}"]
                    if len(only) <= _MAX_DROPPED
                    else []
                ),
                f"select columns that all files have with {advice('columns')}",
            )


def _width(file: DataFile) -> str:
    return f"{file.n_columns} {'named' if file.names else 'unnamed'}"


def _require_columns(file: DataFile, wanted: Iterable[str], known: Collection[str]) -> None:
    known_set = set(known)
    if unknown := [name for name in wanted if name not in known_set]:
        noun = "column" if len(unknown) == 1 else "columns"
        raise ValueError(
            f"unknown {noun} {join_names([repr(name) for name in unknown])} in {file.path}; "
            f"{_similar(unknown, known)}it has {join_names(list(known)) or 'none'}."
        )


def _similar(unknown: list[str], known: Collection[str]) -> str:
    """The columns that were probably meant, as a question; nothing if none are similar."""
    folded = {name.casefold(): name for name in known}
    found = [get_close_matches(name.casefold(), folded, n=1, cutoff=0.75) for name in unknown[:8]]
    meant = list(dict.fromkeys(repr(folded[match]) for matches in found for match in matches))
    return f"did you mean {join_names(meant)}? " if meant else ""


def _require_numeric(file: DataFile, features: Names | None) -> None:
    bad = {name: file.non_numeric[name] for name in features or file.non_numeric if name in file.non_numeric}
    if not bad:
        return
    having: dict[str, list[str]] = {}
    for name, reason in bad.items():
        having.setdefault(reason.contains, []).append(name)
    contents = join_names(
        [
            f"{join_names(names)} {'contains' if len(names) == 1 else 'contain'} {what}"
            for what, names in having.items()
        ]
    )
    problem = f"{file.path}: columns must be numeric, but {contents}"
    other, some = file.other_tables(), len(bad) < file.n_columns
    if features is None:
        raise FileFormatError(
            problem,
            f"pass {advice('header', True)} if its first line contains names",
            *([f"leave out such columns with {advice('numeric_only', True)}"] if some else []),
            *other,
        )
    conversions: dict[str, list[str]] = {}
    for name, reason in bad.items():
        if reason.conversion:
            conversions.setdefault(reason.conversion, []).append(name)
    convert = " and ".join(conversion.format(join_names(names)) for conversion, names in conversions.items())
    left_out = [name for name, reason in bad.items() if not reason.conversion]
    if convert and left_out:
        drop = f"{convert}, and leave {join_names(left_out)} out with {advice('drop', left_out)}"
        raise FileFormatError(problem, drop, *other)
    convert = convert or f"encode {_them(bad)} as numbers"
    raise FileFormatError(problem, convert, *_drop_remedies(list(bad), features), *other)


def _drop_remedies(names: list[str], features: Names) -> list[str]:
    """How to leave columns out, if any would be left."""
    if len(names) == len(features):
        return []
    if len(names) > _MAX_DROPPED:
        return [
            f"select the columns to read with {advice('columns')}",
            f"leave out all such columns with {advice('numeric_only', True)}",
        ]
    return [f"leave {_them(names)} out with {advice('drop', names)}"]


def _them(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _require_unchanged(path: Source, opened: State) -> None:
    try:
        now = state(path)
    except ConnectionError:
        raise
    except OSError as error:
        raise FileNotFoundError(f"{path} was removed since it was opened; reopen what exists now.") from error
    if now != opened:
        raise FileFormatError(
            f"{path} changed while it was read; read it when nothing writes to it, or read a copy."
        )
