"""What commands share: options, bars, outputs that are whole or not there."""

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Tell the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it is there.")]


def say(facts: Mapping[str, Any], as_json: bool, text: str) -> None:
    """The result, on stdout: for programs or for people."""
    typer.echo(json.dumps(facts, allow_nan=False) if as_json else text)


def some(count: float, one: str) -> str:
    """A number of things.

    >>> some(1, "row"), some(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,.0f} {one}{'' if count == 1 else 's'}"


def names(text: str | None) -> list[str] | None:
    """Names separated by commas; one with a comma in it stands in double quotes, as in CSV.

    >>> names("height, weight"), names('"glucose, fasting",weight'), names(""), names(None)
    (['height', 'weight'], ['glucose, fasting', 'weight'], [''], None)
    """
    if text is None:
        return None
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))] or [""]


def printable(text: str) -> str:
    """Text of others, names of columns say, that is safe to show in a terminal.

    >>> printable("\\x1b[31mred")
    '?[31mred'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def must_be_free(out: Path, force: bool) -> None:
    """Refuse an output that is there already, or cannot be: before the work, not after it."""
    if out.is_dir():
        raise IsADirectoryError(f"{out} must be a file to write, and is a folder; name a file in it.")
    if out.exists() and not force:
        raise FileExistsError(f"{out} is there already; name another, or overwrite it with --force.")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: there is no folder {out.parent}; make it.")
    if not os.access(out.parent, os.W_OK):
        raise PermissionError(f"cannot write {out}: {out.parent} must be writable; name another folder.")


@contextmanager
def whole(out: Path, force: bool) -> Iterator[Path]:
    """A file to write, which takes the place of `out` when all is written, and else is removed."""
    from fedpca._util.files import atomic_write

    must_be_free(out, force)
    with atomic_write(out) as temporary:
        yield temporary
        must_be_free(out, force)


@contextmanager
def bars() -> Iterator[None]:
    """Progress bars, where somebody can see them."""
    if not sys.stderr.isatty():
        yield
        return
    from fedpca import progress

    with progress.enabled():
        yield
