"""What an experiment is: settings, measurements case by case, pictures, and a verdict."""

import csv
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fedpca import progress
from fedpca._typing import Array

Value = str | int | float | bool
Record = dict[str, Value]
Case = Mapping[str, Value]


class Table(list[Record]):
    """A tidy table: one record a measurement.

    >>> table = Table([{"method": "a", "error": 1.0}, {"method": "b", "error": 2.0}])
    >>> table.where(method="b").column("error")
    array([2.])
    """

    def where(self, **wanted: Value) -> Self:
        """The records that have these values."""
        return type(self)(row for row in self if all(row.get(key) == value for key, value in wanted.items()))

    def column(self, name: str) -> Array:
        """The values of a column, one a record."""
        return np.array([row[name] for row in self])

    def distinct(self, name: str) -> list[Any]:
        """The different values of a column, in order of their first appearance."""
        return list(dict.fromkeys(row[name] for row in self if name in row))

    def mean(self, name: str, **wanted: Value) -> float:
        """The mean of a column over the records that have these values."""
        values = self.where(**wanted).column(name)
        if not len(values):
            raise ValueError(f"no measurement of {name} has {wanted}.")
        return float(np.mean(values))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Self]]:
        """Records with equal values in these columns, in order of their first appearance."""
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
    """What became of a claim.

    Attributes:
        outcome: whether it held.
        why: a paragraph, with the numbers measured here.
    """

    outcome: Literal["held", "held with a correction", "did not hold"]
    why: str


@dataclass(frozen=True)
class Experiment(ABC):
    """A figure or table of the paper. Its fields are its settings, and their defaults are the paper's.

    It is measured case by case, so that a run may be interrupted, and go on later. No case knows of the
    others: each draws its random numbers from `generator`, and comes out the same alone.
    """

    name: ClassVar[str]  # on the command line, and of its folder
    shows: ClassVar[str]  # which figure or table, as in "Figure 4a"
    title: ClassVar[str]
    claim: ClassVar[str]  # what the paper says

    seed: int = 0

    @abstractmethod
    def quick(self) -> Self:
        """The same with smaller settings: a matter of seconds."""

    @abstractmethod
    def cases(self) -> Sequence[Case]:
        """What there is to measure: each a few words and numbers, in the order in which they are done."""

    @abstractmethod
    def measure(self, case: Case) -> list[Record]:
        """Measure one case; what the case says need not be repeated."""

    @abstractmethod
    def draw(self, table: Table) -> Mapping[str, Any]:
        """Matplotlib figures, by what they show: it is read to those who cannot see them."""

    @abstractmethod
    def verdict(self, table: Table) -> Verdict:
        """What became of the claim, decided by the table alone."""

    def tabulate(self, table: Table) -> Mapping[str, Sequence[Sequence[str]]]:
        """Small tables to print, by their captions: lines of cells, headings first."""
        return {}

    def generator(self, case: Case) -> np.random.Generator:
        """Random numbers for one case."""
        return np.random.default_rng([self.seed, int(_fingerprint(dict(case)), 16)])

    def run(self, folder: Path) -> "Result":
        """Measure what has not been measured yet, and leave `table.csv` in the folder.

        Every case is on disk when it is done. Other settings have a file of their own. What needs data that
        is not at hand is left out.
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
    """An experiment, what it measured, and why some of it was left out."""

    experiment: Experiment
    table: Table
    missing: tuple[str, ...] = ()


def _fingerprint(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(log: Path) -> dict[str, list[Record]]:
    if not log.exists():
        return {}
    contents = log.read_bytes()
    whole = contents.rfind(b"\n") + 1  # what follows was torn by a crash
    os.truncate(log, whole)
    found = [json.loads(line) for line in contents[:whole].splitlines()]
    return {line["case"]: line["records"] for line in found}


def _plain(record: Mapping[str, Any]) -> Record:
    """Numbers of numpy as Python's own."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in record.items()}
