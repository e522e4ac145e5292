"""What a page is made of: sections of charts, choices between charts, and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_LINES = 50


@dataclass(frozen=True)
class Table:
    """Lines of text under a heading; of many lines the first, and a word about the rest.

    >>> table = Table("Squares", ("n", "square"), [(str(n), str(n * n)) for n in range(1000)])
    >>> len(table.shown), table.rest
    (50, 'and 950 more')
    """

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        return self.lines[:MOST_LINES]

    @property
    def wordy(self) -> bool:
        return any(len(line[-1]) > 30 for line in self.shown)

    @property
    def rest(self) -> str:
        more = len(self.lines) - MOST_LINES
        return f"and {more:,} more" if more > 0 else ""


@dataclass(frozen=True)
class Chart:
    """A picture, what there is to see in it, and the numbers behind it.

    Attributes:
        name: of the picture's files, and within the page.
        title: above it.
        caption: what to see, in a sentence or two.
        figure: matplotlib's.
        numbers: the table behind it.
    """

    name: str
    title: str
    caption: str
    figure: Any
    numbers: Table


@dataclass(frozen=True)
class Choice:
    """Two or more charts, of which one is shown: whichever the reader picks."""

    name: str
    title: str
    labels: Sequence[str]
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Section:
    """A heading, some words, and what is under it."""

    name: str
    title: str
    words: Sequence[str]
    items: Sequence[Chart | Choice | Table]

    @property
    def charts(self) -> list[Chart]:
        found: list[Chart] = []
        for item in self.items:
            found += item.charts if isinstance(item, Choice) else [item] if isinstance(item, Chart) else []
        return found
