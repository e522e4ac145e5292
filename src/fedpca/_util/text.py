"""Text for messages: numbers, shares, counted nouns, lists of names, untrusted text made safe, times."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from unicodedata import normalize

_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")


def format_number(value: float) -> str:
    """A whole number with thousands separators, any other with four significant digits.

    >>> format_number(1797.0), format_number(0.73846), format_number(1e-6), format_number(123456789)
    ('1,797', '0.7385', '1e-06', '123,456,789')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share in percent; 0% and 100% only where it is exactly that, but for rounding.

    >>> percent(0.7384), percent(0.00001), percent(0.99999), percent(1 - 1e-16)
    ('73.8%', 'less than 0.1%', 'more than 99.9%', '100%')
    """
    share = round(share, 12)
    if 0 < share < 0.0005:
        return "less than 0.1%"
    if 0.9995 <= share < 1:
        return "more than 99.9%"
    return f"{100 * share:.1f}%" if share not in (0, 1) else f"{100 * share:.0f}%"


def pluralize(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun.

    >>> pluralize(1, "row"), pluralize(2000, "row"), pluralize(3, "entry", "entries"), pluralize(2.5, "row")
    ('1 row', '2,000 rows', '3 entries', '2.5 rows')
    """
    return f"{format_number(count)} {noun if count == 1 else plural or noun + 's'}"


def feature_label(feature: int, names: Sequence[str] | None) -> str:
    """The name of a feature; of one without, or of blanks only, its number from 1, as components have it.

    >>> feature_label(1, ("height", "weight")), feature_label(1, None)
    ('weight', 'feature 2')
    """
    name = names[feature] if names else ""
    return name if name.strip() else f"feature {feature + 1}"


def join_names(names: Sequence[str], limit: int = 8) -> str:
    """Names separated by commas, at most `limit` of them.

    >>> join_names([f"c{number}" for number in range(20)], limit=3)
    'c0, c1, c2 and 17 more'
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def sanitize(text: object, limit: int | None = None) -> str:
    """Untrusted text made safe for a terminal, a log or a page: printable, at most `limit` characters.

    >>> sanitize("\\x1b[31mred"), sanitize("north\\x00\\u202e"), sanitize("a very long name", limit=9)
    ('?[31mred', 'north??', 'a ver…ame')
    """
    text = str(text)
    if limit is not None:
        text = " ".join(text[: 20 * limit].split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if limit is None or len(text) <= limit:
        return text
    end = (limit - 1) * 2 // 5
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def told_apart(name: str) -> str:
    """A name that is not to be taken for another: with its codes, unless it is plain ASCII.

    >>> told_apart("north"), told_apart("n\u043erth"), told_apart("north ")
    ('north', "n\u043erth ('n\\\\u043erth')", "north  ('north ')")
    """
    return name if _PLAIN.fullmatch(name) else f"{sanitize(name)} ({name!a})"


def looks(name: str) -> str:
    """The same for names that look the same but for letters of other alphabets: é can be one letter or two.

    >>> looks("e\u0301 "), looks("north\u200b")
    ('\xe9', 'north')
    """
    letters = (" " if letter.isspace() else letter for letter in normalize("NFKC", name))
    return " ".join("".join(letter for letter in letters if letter.isprintable()).split())


def utc_timestamp() -> str:
    """The time now, in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
