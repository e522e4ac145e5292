"""An experiment: settings, measurements case by case, plots, and a verdict."""

import csv
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fedpca import progress
from fedpca._typing import Array

Value = str | int | float | bool
Record = dict[str, Value]
Case = Mapping[str, Value]
Outcome = Literal["held", "held with a correction", "did not hold"]
ROUNDING = 1e-12  # shares and ratios below this are rounding errors


class Table(list[Record]):
    """A tidy table: one record per measurement.

    >>> table = Table([{"method": "a", "error": 1.0}, {"method": "b", "error": 2.0}])
    >>> table.where(method="b").column("error")
    array([2.])
    """

    def where(self, **wanted: Value) -> Self:
        """The records with these values."""
        return type(self)(row for row in self if all(row.get(key) == value for key, value in wanted.items()))

    def column(self, name: str) -> Array:
        """The values of a column, one per record."""
        return np.array([row[name] for row in self])

    def distinct(self, name: str) -> list[Any]:
        """The distinct values of a column, in order of first appearance."""
        return list(dict.fromkeys(row[name] for row in self if name in row))

    def mean(self, name: str, **wanted: Value) -> float:
        """The mean of a column over the records with these values."""
        values = self.where(**wanted).column(name)
        if not len(values):
            raise ValueError(f"no measurement of {name} has {wanted}.")
        return float(np.mean(values))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Self]]:
        """Records grouped by their values in these columns, in order of first appearance."""
        parts: dict[tuple[Any, ...], Self] = {}
        for row in self:
            parts.setdefault(tuple(row[name] for name in names), type(self)()).append(row)
        yield from parts.items()

    def save(self, path: Path) -> None:
        """Write a CSV file."""
        columns = list(dict.fromkeys(name for row in self for name in row))
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(self)


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper holds.

    Attributes:
        outcome: whether it held.
        points: the reasons, one sentence or a few each, with the measured numbers.
    """

    outcome: Outcome
    points: tuple[str, ...]


def format_share(share: float) -> str:
    """A share or an excess in a table.

    >>> format_share(0.0321), format_share(-2.2e-16)
    ('3.2e-02', '≤ 1e-12')
    """
    return f"{share:.1e}" if share > ROUNDING else f"≤ {ROUNDING:g}"


def join_numbers(numbers: Sequence[float]) -> str:
    """Numbers in the text of a verdict.

    >>> join_numbers([0.5, 2.0]), join_numbers([])
    ('0.5, 2', 'none')
    """
    return ", ".join(f"{number:g}" for number in numbers) if numbers else "none"


@dataclass(frozen=True)
class Experiment(ABC):
    """A figure or table of the paper. Its fields are its settings; the defaults are the paper's.

    It is measured case by case, so that an interrupted run can be resumed. Cases are independent: each draws
    its random numbers from `generator`, and gives the same result when it is run alone.
    """

    name: ClassVar[str]  # on the command line, and of the output folder
    figure: ClassVar[str]  # the figure or table of the paper, as in "Figure 4a"
    title: ClassVar[str]
    claim: ClassVar[str]  # the paper's claim
    full_outcome: ClassVar[Outcome]  # of the verdict with the paper's settings, as last measured

    seed: int = 0

    @abstractmethod
    def quick(self) -> Self:
        """The same experiment with smaller settings: it takes seconds."""

    @abstractmethod
    def cases(self) -> Sequence[Case]:
        """What to measure, in order; a case is a few strings and numbers."""

    @abstractmethod
    def measure(self, case: Case) -> list[Record]:
        """Measure one case. `run` adds the values of the case to each record."""

    @abstractmethod
    def draw(self, table: Table) -> Mapping[str, Any]:
        """Matplotlib figures, by a description that is used as alt text."""

    @abstractmethod
    def verdict(self, table: Table) -> Verdict:
        """Whether the claim holds, decided from the table alone."""

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        """Small tables for the page, by caption: lines of cells, headings first."""
        return {}

    def left_out(self) -> str:
        """How the settings differ from the paper's; empty if they do not."""
        changes = []
        for field in fields(self):
            paper, own = field.default, getattr(self, field.name)
            if own != paper and field.name != "seed":
                changes.append(_change(field.name.replace("_", " "), paper, own))
        return "; ".join(changes)

    def generator(self, case: Case) -> np.random.Generator:
        """The random number generator of a case."""
        return np.random.default_rng([self.seed, int(_fingerprint(dict(case)), 16)])

    def run(self, folder: Path) -> "Result":
        """Measure the cases that have no results yet, and write `table.csv` to the folder.

        The results of a case are saved when it is done, in one file per settings. Cases whose data cannot be
        found are skipped.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"measured-{_fingerprint(asdict(self))}.jsonl"
        done = _read(log)
        table, missing = Table(), []
        for case in progress.track(self.cases(), self.name, "cases"):
            key = _fingerprint(dict(case))
            if key not in done:
                try:
                    done[key] = [{**case, **_plain(record)} for record in self.measure(case)]
                except FileNotFoundError as error:
                    missing.append(str(error))
                    continue
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"case": key, "records": done[key]}) + "\n")
            table.extend(done[key])
        table.save(folder / "table.csv")
        return Result(self, table, tuple(dict.fromkeys(missing)))


@dataclass(frozen=True)
class Result:
    """An experiment, its measurements, and why cases were skipped."""

    experiment: Experiment
    table: Table
    missing: tuple[str, ...] = ()


def _change(name: str, paper: Any, own: Any) -> str:
    """A changed setting in words.

    >>> _change("alphas", (0.1, 1.0, 2.0), (1.0, 2.0)), _change("n rows", 4000, 800)
    ('alphas without 0.1', 'n rows 800 instead of 4000')
    >>> _change("draws", tuple(range(9)), (1, 2))
    'draws only 1, 2'
    """
    if isinstance(paper, tuple) and isinstance(own, tuple):
        if own and set(own) < set(paper):
            missing = [value for value in paper if value not in own]
            few, word = (missing, "without") if len(missing) <= 2 * len(own) else (own, "only")
            return f"{name} {word} {', '.join(map(str, few))}"
        return f"{name} {', '.join(map(str, own))} instead of {', '.join(map(str, paper))}"
    return f"{name} {own} instead of {'all' if paper is None else paper}"


def _fingerprint(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(log: Path) -> dict[str, list[Record]]:
    if not log.exists():
        return {}
    contents = log.read_bytes()
    end = contents.rfind(b"\n") + 1  # a crash may have left an incomplete line after it
    os.truncate(log, end)
    found = [json.loads(line) for line in contents[:end].splitlines()]
    return {line["case"]: line["records"] for line in found}


def _plain(record: Mapping[str, Any]) -> Record:
    """NumPy scalars as Python numbers, which JSON can hold."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in record.items()}
