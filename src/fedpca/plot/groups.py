"""Rows by color: few values have a color each, many numbers or dates are ranges of a ramp."""

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca._typing import AnyArray, Array, ArrayLike
from fedpca._util.text import format_number, sanitize
from fedpca.plot.style import FAINT, RAMP, SERIES

_MOST_LETTERS = 500  # of a value: arrays of text have room for the longest in every entry
_MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>", "NA", "null")  # of readers, and of what becomes text
_SLASHES = re.compile(r"^(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})\b")
_POINTS = re.compile(r"^(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})\b")
_SLATE = SERIES[7]  # hardly a color
_BRIGHT = tuple(color for color in SERIES if color != _SLATE)


class Group(NamedTuple):
    """Rows of one color."""

    name: str
    color: str
    mask: NDArray[np.bool_]


def group_rows(values: AnyArray) -> list[Group]:
    """Rows by value where there are few; else by ranges of numbers or times, or the most common values.

    Rows without a value are the last group, in gray.

    Args:
        values: one per row, as text; see `as_texts`.

    >>> [(group.name, int(group.mask.sum())) for group in group_rows(as_texts(["b", "a", None, "b"]))]
    [('a', 1), ('b', 2), ('missing', 1)]
    """
    if (ramp := as_ramp(values)) is not None:
        kind, places = ramp
        groups, known = _ranges(kind, places), ~np.isnan(places)
    else:
        numbers = as_numbers(values)
        known = values != "" if numbers is None else ~np.isnan(numbers)
        groups = _by_value(values, known)
    return groups if known.all() else [*groups, Group("missing", FAINT, ~known)]


def _by_value(values: AnyArray, known: NDArray[np.bool_]) -> list[Group]:
    names, counts = np.unique(values[known].astype(str), return_counts=True)
    if len(names) <= len(SERIES):
        numbers = as_numbers(names)
        ordered = names if numbers is None else names[np.argsort(numbers)]
        return [Group(str(name), SERIES[i], values == name) for i, name in enumerate(ordered)]
    common = sorted(names[np.argsort(-counts, kind="stable")][: len(_BRIGHT)])
    groups = [Group(str(name), _BRIGHT[i], values == name) for i, name in enumerate(common)]
    others = known & ~np.logical_or.reduce([group.mask for group in groups])
    return [*groups, Group(f"{format_number(len(names) - len(common))} others", _SLATE, others)]


def labeled(groups: list[Group], limit: int) -> list[Group]:
    """Groups whose names are at most `limit` characters of safe text."""
    return [group._replace(name=sanitize(group.name, limit) or "(none)") for group in groups]


def as_texts(values: ArrayLike) -> AnyArray:
    """Values as text, of a long one its start; times to the second, dates without a time of day.

    What is missing is "", and a whole number has no decimals.

    >>> as_texts(np.array([2.0, 0.5, np.nan])).tolist()
    ['2', '0.5', '']
    """
    values = np.asarray(values)
    if values.dtype.kind == "M":
        times = [time.removesuffix("T00:00:00") for time in np.datetime_as_string(values, unit="s")]
        return np.where(np.isnat(values), "", times).astype(object)
    return np.array([_text(value) for value in values], dtype=object)


def _text(value: object) -> str:
    text = str(value)
    if isinstance(value, str):
        return text[:_MOST_LETTERS]
    return "" if text in _MISSING else "0" if text == "-0.0" else text.removesuffix(".0")[:_MOST_LETTERS]


def as_ramp(values: AnyArray) -> tuple[Literal["number", "time"], Array] | None:
    """More than ten different numbers or times, as numbers, NaN where missing; None for other values.

    >>> as_ramp(as_texts(range(20)))[0], as_ramp(as_texts(range(3)))
    ('number', None)
    """
    kind: Literal["number", "time"] = "number"
    places = as_numbers(values)
    if places is None:
        kind, places = "time", as_times(values)
    if places is None or len(np.unique(values[~np.isnan(places)].astype(str))) <= len(SERIES):
        return None
    return kind, places


def as_numbers(values: AnyArray) -> Array | None:
    """Values as numbers, NaN where missing; None unless all are numbers, and at least two differ."""
    numbers = np.full(len(values), np.nan)
    known = ~np.isin(values.astype(str), _MISSING)
    try:
        numbers[known] = values[known].astype(float)
    except ValueError:
        return None
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers if len(np.unique(numbers[~np.isnan(numbers)])) > 1 else None


def as_times(values: AnyArray) -> Array | None:
    """Values as seconds since 1970, NaN where missing; None unless all are dates or times.

    They are of ISO 8601, or like 2012/1/31 or 31.1.2012. 1/2/2012 is February or January: text.
    """
    seconds = np.full(len(values), np.nan)
    for i, text in enumerate(values):
        if text in _MISSING:
            continue
        try:
            time = datetime.fromisoformat(_POINTS.sub(_dashes, _SLASHES.sub(_dashes, text)))
        except ValueError:
            return None
        seconds[i] = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds if len(np.unique(seconds[~np.isnan(seconds)])) > 1 else None


def _dashes(found: re.Match[str]) -> str:
    return f"{found['year']}-{int(found['month']):02}-{int(found['day']):02}"


def _ranges(kind: Literal["number", "time"], numbers: Array) -> list[Group]:
    """About equally many rows per color of the ramp."""
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, len(RAMP) + 1)))
    bins = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    known = ~np.isnan(numbers)
    return [
        Group(f"{low} to {high}", RAMP[i], (bins == i) & known)
        for i, (low, high) in enumerate(pairwise(ramp_labels(kind, edges)))
    ]


def ramp_labels(kind: Literal["number", "time"], values: Array) -> list[str]:
    """Different numbers or times of a ramp as different texts."""
    return _numbers(values) if kind == "number" else _dates(values)


def _numbers(values: Array) -> list[str]:
    """Different numbers as different texts: with more digits where they are close."""
    texts, digits = [format_number(value) for value in values], 4
    while len(set(texts)) < len(np.unique(values)):
        digits += 1
        texts = [f"{value:.{digits}g}" for value in values]
    return texts


def _dates(seconds: Array) -> list[str]:
    """Different seconds since 1970 as different texts: dates, or times of day where dates would be equal."""
    times = [datetime.fromtimestamp(float(second), UTC) for second in seconds]
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%H:%M:%S"):
        texts = [time.strftime(form) for time in times]
        if len(set(texts)) == len(texts):
            break
    return texts
