"""Times and values of a certificate as text."""

from typing import Any

from fedpca._util.text import format_number, sanitize


def cell(value: Any) -> str:
    """A value of a certificate as the text of a table cell.

    >>> cell(4.0), cell([2.0, 4.0]), cell("gram"), cell(None)
    ('4', '2, 4', 'gram', '')
    """
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return sanitize(value, 120) if isinstance(value, str) else format_number(value)


def timestamp(time: str) -> str:
    """An ISO 8601 time, to the second.

    >>> timestamp("2026-11-15T21:31:42.035+00:00"), timestamp("")
    ('2026-11-15 21:31:42', '')
    """
    return sanitize(time.replace("T", " ")[:19], 19)
