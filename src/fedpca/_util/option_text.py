"""Settings written as text, in options of the command line and in node configs: names, characters."""

import csv
import io
from collections.abc import Iterable

CHARACTERS = {"\t": "tab", " ": "space"}  # which are hard to type or to see, by name


def split_names(text: str) -> list[str]:
    """Names separated by commas; one that contains a comma is in double quotes, as in CSV.

    >>> split_names("height, weight"), split_names('"glucose, fasting",weight'), split_names("")
    (['height', 'weight'], ['glucose, fasting', 'weight'], [''])
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))] or [""]


def format_names(names: Iterable[str]) -> str:
    """What `split_names` parses.

    >>> print(format_names(["patient id", "ward, bed"]))
    patient id,"ward, bed"
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def parse_character(text: str) -> str:
    r"""A character, which may be given by name.

    >>> [parse_character(text) for text in (";", "tab", r"\t", "space")]
    [';', '\t', '\t', ' ']
    """
    named = {name: character for character, name in CHARACTERS.items()} | {"\\t": "\t"}
    return named.get(text, text)
