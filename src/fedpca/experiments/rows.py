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
    """Rows of one of `SOURCES`, shape (n, d): as they are for motes and wine, which is red.

    The paper's MNIST has the label as its first feature, and pixels from 0 to 255.

    Args:
        center: subtract the mean of all rows beforehand, which no stream can, but the paper does for some.
        multiple_of: the rest of the rows is left out.
    """
    dataset = datasets.load(SOURCES[name])
    rows = np.asarray(dataset.rows, dtype=np.float64)
    if name == "mnist":
        rows = np.column_stack([dataset.labels, rows])
    rows = rows[: len(rows) // multiple_of * multiple_of]
    return rows - rows.mean(axis=0) if center else rows
