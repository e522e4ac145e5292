"""Shares, times and values of a certificate as text."""

from typing import Any

from fedpca._util.text import format_number, sanitize


def percent(share: float) -> str:
    """A share in percent; 0% and 100% only where it is exactly that.

    >>> percent(0.7384), percent(0.00001), percent(0.99999), percent(1.0)
    ('73.8%', 'less than 0.1%', 'more than 99.9%', '100%')
    """
    if 0 < share < 0.0005:
        return "less than 0.1%"
    if 0.9995 <= share < 1:
        return "more than 99.9%"
    return f"{100 * share:.1f}%" if share not in (0, 1) else f"{100 * share:.0f}%"


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
