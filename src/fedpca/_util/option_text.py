"""Settings written as text, in options of the command line and in node configs: names, characters."""

import re
from collections.abc import Iterable

_NAME = re.compile(r'\s*"((?:[^"]|"")*)"\s*(?=,|\Z)|([^,]*)')
CHARACTERS = {"\t": "tab", " ": "space"}  # which are hard to type or to see, by name


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
