"""Numbers and names as a reader, a picture and a page can take them."""

import json
from typing import Any


def clean(text: Any, most: int = 60) -> str:
    """Text of others that is safe in a picture or a page: printable, on one line, and not long.

    >>> clean("north\\x00\\u202e"), clean("a very long name", most=9)
    ('north??', 'a ver…ame')
    """
    text = " ".join(str(text)[: 20 * most].split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) <= most:
        return text
    end = (most - 1) * 2 // 5
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def number(value: float) -> str:
    """A number in as few digits as tell it.

    >>> number(1797.0), number(0.73846), number(1e-6), number(123456789)
    ('1,797', '0.7385', '1e-06', '123,456,789')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def share(value: float) -> str:
    """A share in percent; never 0% or 100% of what is only near to it.

    >>> share(0.7384), share(0.00001), share(0.99999), share(1.0)
    ('73.8%', 'less than 0.1%', 'more than 99.9%', '100%')
    """
    if 0 < value < 0.0005:
        return "less than 0.1%"
    if 0.9995 <= value < 1:
        return "more than 99.9%"
    return f"{100 * value:.1f}%" if value not in (0, 1) else f"{100 * value:.0f}%"


def some(count: float, one: str, more: str = "") -> str:
    """A number of things.

    >>> some(1, "row"), some(2000, "row"), some(3, "entry", "entries")
    ('1 row', '2,000 rows', '3 entries')
    """
    return f"{number(count)} {one if count == 1 else more or one + 's'}"


def value(thing: Any) -> str:
    """Whatever a certificate says, in a line.

    >>> value(4.0), value(True), value({"id": "a"}), value(None)
    ('4', 'yes', '{"id": "a"}', '')
    """
    if thing is None:
        return ""
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, int | float):
        return number(thing) if abs(thing) < 1e300 else clean(thing)
    return clean(thing if isinstance(thing, str) else json.dumps(thing, default=str), 120)


def moment(time: str) -> str:
    """A time as a reader likes it.

    >>> moment("2026-11-15T21:31:42.035+00:00"), moment("")
    ('2026-11-15 21:31:42', '')
    """
    return clean(time.replace("T", " ")[:19])
