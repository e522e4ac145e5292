"""Real rows as the paper's experiments use them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedpca._typing import Array
from reproduction import datasets
from reproduction.datasets.content import Content
from reproduction.datasets.files import Files, FileSet

SOURCES = {
    "light": "motes-light",
    "temperature": "motes-temperature",
    "volt": "motes-voltage",
    "humidity": "motes-humidity",
    "mnist": "mnist-test",
    "wine": "wine-red",
}
STAND_INS = {"lab temperature": "temperature", "lab humidity": "humidity"}
"""Stand-ins for two of the paper's datasets, which are hard to obtain, and what each stands in for.

Half-hour means of 50 sensors of the same laboratory (Intel Berkeley): other rows, and fewer. No printed value
belongs to them.
"""


def paper_rows(name: str, *, center: bool, multiple_of: int = 1) -> Array:
    """Rows of one of `SOURCES` or `STAND_INS`, shape (n, d).

    As in the paper: motes and (red) wine unscaled; MNIST with pixels from 0 to 255, and the label as its
    first feature.

    Args:
        center: subtract the mean of all rows first. A stream cannot do that, but some of the paper's
            experiments do.
        multiple_of: drop the last rows so that their number is a multiple of this.
    """
    if name in STAND_INS:
        rows = np.asarray(_stand_in(name).find().rows, dtype=np.float64)
    else:
        dataset = datasets.load(SOURCES[name])
        rows = np.asarray(dataset.rows, dtype=np.float64)
        if name == "mnist" and dataset.labels is not None:
            rows = np.column_stack([dataset.labels, rows])
    rows = rows[: len(rows) // multiple_of * multiple_of]
    return rows - rows.mean(axis=0) if center else rows


def is_motes(name: str) -> bool:
    """Whether the rows are readings of sensors."""
    return name not in ("mnist", "wine")


def _stand_in(name: str) -> Files:
    file, quantity = "intel_lab_30min.npz", STAND_INS[name]
    return Files(
        name,
        (FileSet((file,), partial(_read_quantity, quantity=quantity)),),
        manual_steps=(
            f"It is a stand-in for {SOURCES[quantity]}: put {file}, with arrays named "
            f"{' and '.join(STAND_INS.values())} of half-hour means (one row per half hour, one column per "
            "sensor), into a folder that the environment variable FEDPCA_DATA names."
        ),
    )


def _read_quantity(paths: Sequence[Path], quantity: str) -> Content:
    with np.load(paths[0]) as arrays:
        return Content(arrays[quantity])
