"""Real rows as the paper's experiments use them."""

import numpy as np

from fedpca import datasets
from fedpca._typing import Array

SOURCES = {
    "light": "motes-light",
    "temperature": "motes-temperature",
    "volt": "motes-voltage",
    "humidity": "motes-humidity",
    "mnist": "mnist-test",
    "wine": "wine-red",
}


def paper_rows(name: str, *, center: bool, multiple_of: int = 1) -> Array:
    """Rows of one of `SOURCES`, shape (n, d).

    As in the paper: motes and (red) wine unscaled; MNIST with pixels from 0 to 255, and the label as its
    first feature.

    Args:
        center: subtract the mean of all rows first. A stream cannot do that, but some of the paper's
            experiments do.
        multiple_of: drop the last rows so that their number is a multiple of this.
    """
    dataset = datasets.load(SOURCES[name])
    rows = np.asarray(dataset.rows, dtype=np.float64)
    if name == "mnist" and dataset.labels is not None:
        rows = np.column_stack([dataset.labels, rows])
    rows = rows[: len(rows) // multiple_of * multiple_of]
    return rows - rows.mean(axis=0) if center else rows
