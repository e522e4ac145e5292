"""Conventions: in which other convention cells of text would be numbers, for advice on how to read them."""

from collections.abc import Iterable

from fedpca._util.option_text import advice
from fedpca.readers.data_file import NonNumeric
from fedpca.readers.dialect import Dialect

_CONVENTIONS: tuple[dict[str, str], ...] = (  # in which text may be numbers, the most frequent first
    {},
    {"thousands": ","},
    {"decimal": ","},
    {"thousands": ".", "decimal": ","},
    {"thousands": "'"},
    {"thousands": " "},
    {"thousands": " ", "decimal": ","},
    {"thousands": "'", "decimal": ","},
)
_CALLED = {"thousands": "thousands separators", "decimal": "decimal commas"}
OR_MISSING = f"or list what stands for a missing value with {advice('na_values')}"


class Conventions:
    """How many cells of a column each convention reads as numbers.

    >>> column = Conventions(Dialect(decimal="."))
    >>> column.add(["1,001.5", "2,040.25", "?"])
    >>> column.reason("line 2").contains
    'numbers with thousands separators, from line 2, and text'
    """

    def __init__(self, dialect: Dialect) -> None:
        self._n_cells = 0
        self._readers: dict[tuple[tuple[str, str], ...], Dialect] = {}  # by what is new in them
        for convention in _CONVENTIONS:
            new = tuple(each for each in convention.items() if each[1] != getattr(dialect, each[0]))
            if (other := dialect.read_as(convention) if new else dialect) is not None:
                self._readers.setdefault(new, other)
        self._counts = dict.fromkeys(self._readers, 0)

    def add(self, cells: Iterable[str | float]) -> None:
        """Count cells that are not missing."""
        for cell in cells:
            self._n_cells += 1
            for new, dialect in self._readers.items():
                self._counts[new] += not isinstance(cell, str) or dialect.number(cell) is not None

    def reason(self, where: str) -> NonNumeric | None:
        """Why the column cannot be read as it is; None if it has few numbers in any convention."""
        most = max(self._counts.values())
        if 2 * most <= self._n_cells:
            return None
        if self._counts[()] == most:
            return NonNumeric(
                f"numbers and, in {where}, text",
                f"correct or empty the cells of {{}} that are not numbers, {OR_MISSING}",
            )
        fitting = [new for new, count in self._counts.items() if count == most]
        fewest = min(map(len, fitting))
        fitting = [new for new in fitting if len(new) == fewest][:2]
        found = " or ".join(" and ".join(_CALLED[name] for name, _ in new) for new in fitting)
        options = " or ".join(" and ".join(advice(*each) for each in new) for new in fitting)
        contains, convert = f"numbers with {found}, from {where}", f"read {{}} with {options}"
        if most < self._n_cells:
            contains += ", and text"
            convert += f", and correct or empty the cells that are not numbers, {OR_MISSING}"
        return NonNumeric(contains, convert)
