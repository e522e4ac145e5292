"""What a page consists of: sections of charts, choices between charts, explorers and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

MAX_LINES = 50
_SCROLL_LINES = 20

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Lines of text under a heading: the first `MAX_LINES`, and how many more there are.

    >>> table = Table("Squares", ("n", "square"), [(str(n), str(n * n)) for n in range(1000)])
    >>> len(table.shown), table.rest
    (50, '950 more not shown')
    """

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        return self.lines[:MAX_LINES]

    @property
    def is_long(self) -> bool:
        """Whether it gets a scroll box beside a chart."""
        return len(self.lines) > _SCROLL_LINES

    @property
    def has_long_cells(self) -> bool:
        return any(len(line[-1]) > 30 for line in self.shown)

    @property
    def rest(self) -> str:
        more = len(self.lines) - MAX_LINES
        return f"{more:,} more not shown" if more > 0 else ""


@dataclass(frozen=True)
class Chart:
    """A figure with a caption and its data.

    Attributes:
        name: of the chart's files, and its id within the page.
        title: above the figure.
        caption: what the figure shows, in a sentence or two.
        figure: a matplotlib figure.
        numbers: the data of the figure.
    """

    name: str
    title: str
    caption: str
    figure: "Figure"
    numbers: Table


@dataclass(frozen=True)
class Choice:
    """Two or more charts, shown one at a time; the reader chooses which."""

    name: str
    title: str
    labels: Sequence[str]
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Explorer:
    """A picture that the page's script lets readers explore, or a table that it searches.

    Attributes:
        name: of the plot or table in the page's data.
        title: above it.
        caption: what it shows, in a sentence or two.
        still: without scripts, and on paper: the chart or charts, of which the first is explored; None of a
            table, which is not there then.
    """

    name: str
    title: str
    caption: str
    still: Chart | Choice | None = None


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs of text, and items below them."""

    name: str
    title: str
    paragraphs: Sequence[str]
    items: Sequence[Chart | Choice | Explorer | Table]

    @property
    def alone(self) -> Sequence[Chart | Choice | Explorer | Table]:
        """The last item of an odd number, which has a line of its own; tables to search do not count."""
        items = [item for item in self.items if not (isinstance(item, Explorer) and item.still is None)]
        return items[-1:] if len(items) % 2 else ()

    @property
    def charts(self) -> list[Chart]:
        found: list[Chart] = []
        for item in (each.still if isinstance(each, Explorer) else each for each in self.items):
            found += item.charts if isinstance(item, Choice) else [item] if isinstance(item, Chart) else []
        return found
