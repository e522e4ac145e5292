"""The rows of a file, a batch at a time."""

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpca.linalg import Array

_BATCH_ROWS = 1024
_BATCH_NUMBERS = 2**22


class Source(NamedTuple):
    """Names of the features, if the file has them, and batches of rows, shape (n, n_features)."""

    names: tuple[str, ...] | None
    batches: Iterator[Array]


def open_source(path: Path) -> Source:
    """Open an .npy file, memory-mapped, or a .csv file of numbers.

    The first line of a .csv file holds the names of the features if no number is in it. An empty cell is a
    missing entry. Messages name lines and columns, and never say what is in them.
    """
    if path.suffix not in (".npy", ".csv"):
        raise ValueError(f"source must be a .npy or .csv file, got {path.name}; convert it.")
    if not path.is_file():
        raise FileNotFoundError(f"source {path.name} is not there; mount it, or correct the node config.")
    return _open_npy(path) if path.suffix == ".npy" else _open_csv(path)


def _open_npy(path: Path) -> Source:
    try:
        rows = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ValueError(f"{path.name} is not an .npy file of numbers ({error}).") from error
    if rows.ndim != 2:
        raise ValueError(f"{path.name} must have rows and columns, got shape {rows.shape}.")
    size = _batch_rows(rows.shape[1])
    return Source(None, (np.asarray(rows[start : start + size]) for start in range(0, len(rows), size)))


def _open_csv(path: Path) -> Source:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next(csv.reader(file), [])
    has_names = bool(first) and not any(_is_number(cell) for cell in first)
    return Source(tuple(first) if has_names else None, _csv_batches(path, len(first), has_names))


def _csv_batches(path: Path, n_features: int, has_names: bool) -> Iterator[Array]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        rows = (_csv_row(path, reader.line_num, cells, n_features) for cells in reader if cells)
        if has_names:
            next(reader)
        while batch := list(islice(rows, _batch_rows(n_features))):
            yield np.array(batch)


def _csv_row(path: Path, line: int, cells: list[str], n_features: int) -> list[float]:
    if len(cells) != n_features:
        raise ValueError(f"{path.name}, line {line}: {len(cells)} cells, and {n_features} in the first line.")
    for column, cell in enumerate(cells, start=1):
        if not _is_number(cell):
            raise ValueError(f"{path.name}, line {line}, column {column} is not a number.")
    return [float(cell) if cell.strip() else np.nan for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip() or "nan")
    except ValueError:
        return False
    return True


def _batch_rows(n_features: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_NUMBERS // max(n_features, 1)))
