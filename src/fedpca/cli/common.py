"""What commands share: options, results on stdout, progress bars, output files."""

import inspect as introspection
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from fedpca._util.option_text import parse_character, split_names

DataPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Files, folders, patterns or URLs of rows, read in this order; - is text on standard input.",
    ),
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, as fit and merge write it.")]
Components = Annotated[
    int | None,
    typer.Option(
        "--components",
        "-n",
        metavar="N",
        min=1,
        help="Number of components. By default as many as the model shows.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Columns to read, as in a,b,c; those of text without a header by number, as in 1,3-5. A name "
        "with commas or blanks around it is in double quotes. By default all.",
    ),
]
Drop = Annotated[str | None, typer.Option(metavar="NAMES", help="Columns to leave out, as in id,site.")]
NumericOnly = Annotated[
    bool, typer.Option("--numeric-only", help="Leave out columns that are not numeric, with a warning.")
]


Width = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Of private text without a header: the number of cells of a line, which no row may decide.",
        rich_help_panel="Text files",
    ),
]
RowsStated = Annotated[
    int | None,
    typer.Option(
        "--n-rows",
        metavar="N",
        min=1,
        help="Of a private Excel file: its number of rows, because empty ones at the end leave no trace.",
        rich_help_panel="Text files",
    ),
]


def _text_option(kind: Any, *names: str, **settings: Any) -> Any:
    return Annotated[kind, typer.Option(*names, rich_help_panel="Text files", **settings)]


_READING = {  # arguments of `open_rows`
    "header": _text_option(
        bool | None,
        "--header/--no-header",
        help="Whether text files have a header row. By default they do if the first line contains no number.",
    ),
    "delimiter": _text_option(
        str | None,
        metavar="CHARACTER",
        help="Delimiter of cells; tab and space by name. By default it is detected from the first lines.",
    ),
    "decimal": _text_option(
        str | None,
        metavar="CHARACTER",
        help="Decimal mark. By default a point, or a comma if the first lines leave no doubt.",
    ),
    "thousands": _text_option(
        str | None, metavar="CHARACTER", help="Separator of groups of three digits. By default none."
    ),
    "na_values": _text_option(
        str | None,
        metavar="VALUES",
        help="Cells that stand for a missing value, as in '?,-999', besides empty cells, NA, null, NaN.",
    ),
    "comment": _text_option(str | None, metavar="TEXT", help="Skip lines that start with this, as in '#'."),
    "encoding": _text_option(
        str | None, metavar="NAME", help="Encoding of text, as in latin-1. By default UTF-8."
    ),
    "skip_lines": _text_option(
        int | None,
        metavar="N",
        min=1,
        help="Skip so many lines above the header, such as a title; rows, of an Excel file.",
    ),
    "sheet": Annotated[
        str | None, typer.Option(metavar="NAME", help="The sheet of Excel files. By default the first.")
    ],
}


class Reading(TypedDict):
    """Those arguments, as `reading_options` gives them to a command."""

    header: bool | None
    delimiter: str | None
    decimal: str | None
    thousands: str | None
    na_values: Sequence[str]
    comment: str | None
    encoding: str | None
    skip_lines: int
    sheet: str | None


BatchRows = Annotated[
    int | None,
    typer.Option(metavar="ROWS", min=1, help="Maximum rows per batch; a few batches are in memory."),
]


class RobustRule(StrEnum):
    """How to merge owners of whom a minority may lie."""

    CAP = "cap"
    MEDIAN = "median"
    TRIM = "trim"


Robust = Annotated[
    RobustRule | None,
    typer.Option(
        help="Limit what a minority of dishonest owners can do to the model, if owners are alike: cap limits "
        "rows and lengths, median takes the geometric median, trim also leaves out owners far from the "
        "others. By default all owners are trusted.",
    ),
]
MaxShare = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="With --robust, the largest weight of an owner, as a share of all. By default no owner weighs "
        "more than the median owner.",
    ),
]
PolicyPath = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="A policy.toml, the rules for what may leave; checked before anything is spent or written.",
    ),
]
RowsOfModel = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="A file, folder or pattern of all rows of the model; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]

_TABLES_AND_PAGES = (".csv", ".tsv", ".txt", ".json", ".parquet", ".npy", ".npz", ".h5ad", ".html", ".pdf")

_quiet: ContextVar[bool] = ContextVar("fedpca.cli.quiet", default=False)


@contextmanager
def quiet_output(quiet: bool) -> Iterator[None]:
    """Whether results for people and progress bars are left out inside."""
    token = _quiet.set(quiet)
    try:
        yield
    finally:
        _quiet.reset(token)


def print_result(data: Mapping[str, object], as_json: bool, text: str) -> None:
    """The result on stdout: as JSON for programs, or as text for people."""
    if as_json:
        typer.echo(json.dumps(data, allow_nan=False))
    elif not _quiet.get():
        typer.echo(text)


@contextmanager
def progress_bars() -> Iterator[None]:
    """Progress bars, if stderr is a terminal."""
    if _quiet.get() or not sys.stderr.isatty():
        yield
        return
    from fedpca import progress

    with progress.enabled():
        yield


def reading_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of text files, which it takes as `reading`, arguments of `open_rows`."""
    own = introspection.signature(function)

    @wraps(function)
    def run(**arguments: Any) -> None:
        reading = {name: arguments.pop(name) for name in _READING}
        for name in ("delimiter", "thousands"):
            if reading[name] is not None:
                reading[name] = parse_character(reading[name])
        reading["na_values"] = parse_names(reading["na_values"]) or ()
        reading["skip_lines"] = reading["skip_lines"] or 0
        function(**arguments, reading=reading)

    keyword = introspection.Parameter.KEYWORD_ONLY
    parameters = [
        *(parameter for parameter in own.parameters.values() if parameter.name != "reading"),
        *(
            introspection.Parameter(name, keyword, default=None, annotation=kind)
            for name, kind in _READING.items()
        ),
    ]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, **_READING}
    del run.__annotations__["reading"]
    return run


def parse_names(text: str | None) -> list[str] | None:
    """The names of an option; None if it is not given."""
    return None if text is None else split_names(text)


@contextmanager
def wrong_usage() -> Iterator[None]:
    """What cannot be written as wanted, as an error of the command's options."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def check_output_path(out: Path, force: bool) -> None:
    """Reject an output that exists or cannot be written: before the work, not after it."""
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; choose a file to write.")
    if out.exists() and not force:
        raise FileExistsError(f"{out} already exists; choose another path or pass --force.")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: there is no folder {out.parent}; create it.")
    if not os.access(out.parent, os.W_OK):
        raise PermissionError(f"cannot write {out}: {out.parent} is not writable; choose another folder.")


def check_no_input(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to overwrite what is read, even by force."""
    outputs = [path for path in outputs if path.exists()]
    for path in inputs:
        for written in outputs:
            if path.exists() and path.samefile(written):
                raise FileExistsError(f"{written} is read by this command; choose another path to write.")


def check_model_path(out: Path, force: bool) -> None:
    """The same for a model, whose name must not end like that of a table or a page."""
    if out.suffix.lower() in _TABLES_AND_PAGES:
        raise typer.BadParameter(
            f"a model file ends in .safetensors, got {out}; `fedpca transform` writes scores as a table, and "
            "`fedpca inspect --loadings` the components."
        )
    check_output_path(out, force)


@contextmanager
def output_file(out: Path, force: bool) -> Iterator[Path]:
    """A file to write, which replaces `out` once it is complete, and else is removed."""
    from fedpca._util.files import atomic_write

    check_output_path(out, force)
    with atomic_write(out) as temporary:
        yield temporary
        check_output_path(out, force)
