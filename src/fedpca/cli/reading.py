"""Which rows of files are read, and how: options of every command that opens rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fedpca._typing import JSON
from fedpca._util.option_text import parse_character
from fedpca.cli.options import TEXT_FILES, BatchRows, File, Flag, Names, Text, WrongUsage, at_least
from fedpca.errors import ModelFileError
from fedpca.genetics import VariantList, read_list
from fedpca.genetics.variants import left_out
from fedpca.readers import RowReader, open_rows
from fedpca.readers.paths import find
from fedpca.readers.row_reader import options_of
from fedpca.summaries import model_file

_Character = Annotated[str, Parameter(metavar="CHARACTER")]


@Parameter(name="*", group=TEXT_FILES)
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How text and Excel files are written: arguments of `open_rows`."""

    header: Annotated[bool | None, Parameter(negative="--no-header")] = None
    """Whether text files have a header row. By default they do if the first line contains no number."""
    delimiter: _Character | None = None
    """Delimiter of cells; tab and space by name. By default it is detected from the first lines."""
    decimal: _Character | None = None
    """Decimal mark. By default a point, or a comma if the first lines leave no doubt."""
    thousands: _Character | None = None
    """Separator of groups of three digits. By default none."""
    na_values: Annotated[Names | None, Parameter(metavar="VALUES")] = None
    """Cells that stand for a missing value, as in '?,-999', besides empty cells, NA, null, NaN."""
    comment: Annotated[str | None, Parameter(metavar="TEXT")] = None
    """Skip lines that start with this, as in '#'."""
    encoding: Text | None = None
    """Encoding of text, as in latin-1. By default UTF-8."""
    skip_lines: Annotated[int | None, at_least(1)] = None
    """Skip so many lines above the header, such as a title; rows, of an Excel file."""
    sheet: Text | None = None
    """The sheet of Excel files. By default the first."""

    def given(self) -> dict[str, Any]:
        """Those that are given; --no-header is, too."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        for name in {"delimiter", "thousands"} & found.keys():
            found[name] = parse_character(found[name])
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Table:
    """Which columns are features."""

    columns: Names | None = None
    """Columns to read, as in a,b,c; those of text without a header by number, as in 1,3-5. A name with commas
    or blanks around it is in double quotes. By default all."""
    drop: Names | None = None
    """Columns to leave out, as in id,site."""
    numeric_only: Flag = False
    """Leave out columns that are not numeric, with a warning."""

    def open(self, path: Sequence[str], reading: Reading, **more: Any) -> RowReader:
        """The rows of files, with more arguments of `open_rows`."""
        columns, drop = self.columns, self.drop or ()
        settings = {"columns": columns, "drop": drop, "numeric_only": self.numeric_only}
        return open_rows(path, **settings | reading.given() | more)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PrivateTable(Table):
    """The same of rows that may be private, with what nothing may be found in them."""

    width: Annotated[int | None, at_least(1), Parameter(group=TEXT_FILES)] = None
    """Of private text without a header: the number of cells of a line, which no row may decide."""
    n_rows: Annotated[int | None, at_least(1), Parameter(group=TEXT_FILES)] = None
    """Of a private Excel file: its number of rows, because empty ones at the end leave no trace."""
    batch_rows: BatchRows = None

    def open(self, path: Sequence[str], reading: Reading, **more: Any) -> RowReader:
        """The same; `private` says whether they are."""
        stated = {"width": self.width, "n_rows": self.n_rows, "batch_rows": self.batch_rows}
        return super().open(path, reading, **stated | more)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Variants:
    """Genotypes that are matched to a list."""

    variants: Annotated[File | None, Parameter(metavar="LIST")] = None
    """Match the variants of genotypes to this list: a model, a file of fedpca scale, a .pvar or .bim file, or
    text with one name per line, as 1:55516888:G:A. Swapped alleles and strands are corrected, A/T and C/G
    left out."""

    def listed(self, table: Table, files: Sequence[str]) -> VariantList | None:
        """The list, for files of genotypes."""
        if self.variants is None:
            return None
        if table.columns is not None:
            raise WrongUsage("--variants cannot be combined with --columns: both name what to read.")
        if find(files)[0] not in ("bed", "pgen"):
            raise ValueError(
                f"--variants is for genotypes, .bed or .pgen, and {files[0]} is none; leave it out."
            )
        return read_list(self.variants)


def reading_of(path: Path, contents: bytes, rows: Sequence[str], given: Reading) -> JSON:
    """How to read more rows of a model: as given, and else as those of its fit were, if they have options."""
    if not rows:
        return given.given()
    stored = model_file.decode(contents, path)[2].get("reading", {})
    if not isinstance(stored, dict) or not stored.keys() <= asdict(given).keys():
        raise ModelFileError(f"{path} is damaged: reading must be options of how text is read.")
    known = options_of(rows)
    return {name: value for name, value in stored.items() if name in known} | given.given()


def columns_of(listed: VariantList | None) -> Mapping[str, Any]:
    """The variants of a list, as an argument of `open_rows`."""
    return {} if listed is None else {"columns": listed.names}


def variants_json(rows: RowReader, listed: VariantList | None) -> JSON:
    """How variants were matched, and to which list."""
    return {
        "variants": [match.to_json() for match in rows.matches],
        "variant_list": None if listed is None else listed.to_json(),
    }


def matched_variants(rows: RowReader, listed: VariantList | None = None) -> list[str]:
    """A line per file of genotypes whose variants are not simply those wanted, or are those of a list."""
    lines = [str(match) for match in rows.matches if listed is not None or not match.is_exact]
    if listed is not None and listed.ambiguous:
        lines[0] += f"; of {listed.path} {left_out(listed.ambiguous)}"
    return lines
