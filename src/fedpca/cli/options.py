"""What commands share: options, one dataclass per concept, results on stdout, progress bars, output files."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from fedpca import progress
from fedpca._util.files import atomic_write, local_path
from fedpca._util.option_text import split_names

FORMATS = Group("Formats", sort_key=1)
PRIVACY = Group("Privacy", sort_key=2)
TEXT_FILES = Group("Text files", sort_key=3)
_TABLES_AND_PAGES = (".csv", ".tsv", ".txt", ".json", ".parquet", ".npy", ".npz", ".h5ad", ".html", ".pdf")


STANDARD_STREAM = "\0-"  # stands for a lone "-", which cyclopts takes for an unknown option


class WrongUsage(Exception):
    """Options that cannot be combined, or a value that an option cannot have: exit code 2."""


def _file(kind: Any, tokens: Sequence[Token]) -> Path:
    return local_path(tokens[0].value)


def _files(kind: Any, tokens: Sequence[Token]) -> list[Path]:
    return [local_path(token.value) for token in tokens]


def _names(kind: Any, tokens: Sequence[Token]) -> list[str]:
    return split_names(tokens[0].value)


def _integer(kind: Any, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)  # cyclopts would round 1.5
    except ValueError:
        raise ValueError(f"must be an integer, got {plain(tokens[0].value)!r}.") from None


def plain(value: Any) -> Any:
    """The value of an argument, with every lone "-" as it was written."""
    if isinstance(value, str | Path) and str(value) == STANDARD_STREAM:
        return type(value)("-")
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: plain(getattr(value, each.name)) for each in fields(value)})
    return value


def option(*names: str, **settings: Any) -> Parameter:
    """How an option is written, as in `option("--out", "-o", metavar="FILE")`."""
    return Parameter(name=names or None, **settings)


def at_least(least: int, metavar: str = "N") -> Parameter:
    """An integer from `least`."""
    return Parameter(metavar=metavar, converter=_integer, validator=Number(gte=least))


INTEGER = Parameter(metavar="N", converter=_integer)


Flag = Annotated[bool, Parameter(show_default=False)]
File = Annotated[Path, Parameter(converter=_file, metavar="FILE")]
Files = Annotated[list[Path], Parameter(converter=_files, metavar="FILE")]
Text = Annotated[str, Parameter(metavar="NAME")]
Real = Annotated[float, Parameter(metavar="NUMBER")]
Names = Annotated[list[str], Parameter(converter=_names, n_tokens=1, metavar="NAMES")]
Out = Annotated[File, option("--out", "-o")]
Components = Annotated[int, option("--components", "-n"), at_least(1)]
BatchRows = Annotated[
    int | None,
    at_least(1, "ROWS"),
    Parameter(help="Maximum rows per batch; a few batches are in memory."),
]
DataPaths = Annotated[
    list[str],
    Parameter(
        name="PATH",
        help="Files, folders, patterns or URLs of rows, read in this order; - is text on standard input.",
    ),
]
ModelPath = Annotated[File, Parameter(name="MODEL", help="A model file, as fit and merge write it.")]
ShownComponents = Annotated[
    Components | None, Parameter(help="Number of components. By default as many as the model shows.")
]
Force = Annotated[Flag, Parameter(help="Overwrite the output if it exists.")]
PolicyPath = Annotated[
    File | None,
    Parameter(
        name="--policy",
        help="A policy.toml, the rules for what may leave; checked before anything is spent or written.",
    ),
]
RowsOfModel = Annotated[
    list[str] | None,
    Parameter(metavar="PATH", help="A file, folder or pattern of all rows of the model; may be repeated."),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints."""

    as_json: Annotated[Flag, option("--json")] = False
    """Print the result as JSON."""
    quiet: Annotated[Flag, option("--quiet", "-q")] = False
    """Print only warnings and errors."""
    verbose: Annotated[Flag, option("--verbose", "-v")] = False
    """Log each step to stderr."""
    debug: Flag = False
    """Log details, and show tracebacks of errors."""

    def result(self, data: Mapping[str, object], text: str) -> None:
        """The result on stdout: as JSON for programs, or as text for people."""
        if self.as_json:
            echo(json.dumps(data, allow_nan=False))
        elif not self.quiet:
            echo(text)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Progress bars, if stderr is a terminal."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        with progress.enabled():
            yield


def echo(text: str) -> None:
    """A line on stdout."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """A line on stderr: a warning, or what has happened."""
    sys.stderr.write(f"fedpca: {text}\n")


@contextmanager
def wrong_usage() -> Iterator[None]:
    """What cannot be written as wanted, as an error of the command's options."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise WrongUsage(str(error)) from error


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
        raise WrongUsage(
            f"a model file ends in .safetensors, got {out}; `fedpca transform` writes scores as a table, and "
            "`fedpca inspect --loadings` the components."
        )
    check_output_path(out, force)


def check_folder_path(folder: Path, force: bool) -> None:
    """Reject a folder to write that has files, unless by force."""
    if folder.exists() and not (folder.is_dir() and (force or not any(folder.iterdir()))):
        raise FileExistsError(f"{folder} must be a new or empty folder; choose another, or pass --force.")


@contextmanager
def output_file(out: Path, force: bool) -> Iterator[Path]:
    """A file to write, which replaces `out` once it is complete, and else is removed."""
    check_output_path(out, force)
    with atomic_write(out) as temporary:
        yield temporary
        check_output_path(out, force)
