"""Settings written as text, in options of the command line and in node configs: names, characters."""

import re
import shlex
from collections.abc import Iterable

_NAME = re.compile(r'\s*"((?:[^"]|"")*)"\s*(?=,|\Z)|([^,]*)')
CHARACTERS = {"\t": "tab", " ": "space"}  # which are hard to type or to see, by name
_MARKS = (",", ".", "'")  # quoted, since they would be lost in a sentence, or hard to read
_CHOICES = {  # of arguments whose value is for the user to choose
    "header": "header=True or header=False (--header or --no-header)",
    "na_values": "na_values=[...] (--na-values VALUES)",
    "n_rows": "n_rows=... (--n-rows N)",
    "skip_lines": "skip_lines=... (--skip-lines N)",
    "width": "width=... (--width N)",
    "columns": "columns=[...] (--columns NAMES)",
    "drop": "drop=[...] (--drop NAMES)",
}


def split_names(text: str) -> list[str]:
    """Names separated by commas; one in double quotes is taken as it is, with commas and blanks.

    >>> split_names("height, weight"), split_names('"glucose, fasting"," weight"'), split_names("")
    (['height', 'weight'], ['glucose, fasting', ' weight'], [''])
    """
    names, end = [], -1
    while end < len(text):
        found = _NAME.match(text, end + 1)
        assert found is not None  # a plain name may be anything up to a comma
        quoted, plain = found.groups()
        names.append(plain.strip() if quoted is None else quoted.replace('""', '"'))
        end = found.end()
    return names


def format_names(names: Iterable[str]) -> str:
    """What `split_names` parses.

    >>> print(format_names(["patient id", "ward, bed", " gram"]))
    patient id,"ward, bed"," gram"
    """
    return ",".join(_quoted(name) for name in names)


def _quoted(name: str) -> str:
    is_plain = "," not in name and not name.startswith('"') and name == name.strip()
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def parse_character(text: str) -> str:
    r"""A character, which may be given by name.

    >>> [parse_character(text) for text in (";", "tab", r"\t", "space")]
    [';', '\t', '\t', ' ']
    """
    named = {name: character for character, name in CHARACTERS.items()} | {"\\t": "\t"}
    return named.get(text, text)


def advice(name: str, value: object = None) -> str:
    """An argument of `open_rows`, and the same option of the commands; without a value, one to choose.

    >>> print(advice("drop", ["patient id", "ward, bed"]))
    drop=['patient id', 'ward, bed'] (--drop 'patient id,"ward, bed"')
    >>> print(advice("header", True), advice("delimiter", ";"), advice("na_values"))
    header=True (--header) delimiter=';' (--delimiter ';') na_values=[...] (--na-values VALUES)
    """
    if value is None:
        return _CHOICES[name]
    option = f"--{name.replace('_', '-')}"
    if value is False:
        option = f"--no-{name}"
    elif isinstance(value, str):
        text = CHARACTERS.get(value, value)
        option += f" {repr(text) if text in _MARKS else shlex.quote(text)}"
    elif isinstance(value, Iterable):
        option += f" {shlex.quote(format_names(value))}"
    elif value is not True:
        option += f" {value}"
    return f"{name}={value!r} ({option})"
