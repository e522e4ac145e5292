"""Errors of trackers while rows stream in."""

from collections.abc import Iterator, Mapping

import numpy as np

from fedpca._typing import Array
from fedpca.trackers import Tracker
from reproduction.base import Record
from reproduction.baselines import EnergyThresholds, Spirit
from reproduction.exact import batches
from reproduction.methods import components


def make_adaptive_spirit(n_features: int, remember: float) -> Spirit:
    """SPIRIT with an adaptive rank, as on Synth(alpha): it starts at 3 and may change at every row."""
    rule = EnergyThresholds(first=3)
    return Spirit(n_features, rule, remember=remember, holdoff=0, oversample=0, center=False)


def follow(rows: Array, trackers: Mapping[str, Tracker], every: int) -> Iterator[Record]:
    """Feed rows to trackers, and every `every` rows measure how well each fits all rows so far.

    * method, t: the tracker, and the number of rows so far.
    * rank: its current number of directions.
    * error: mean squared distance of the rows so far from its current subspace, as in the paper's text.
    * least: the smallest error possible with `rank` directions.

    Errors are at least the rounding error of the rows' energy.

    >>> from reproduction.methods import make_tracker
    >>> rows = np.tile(np.diag([3.0, 2.0, 1.0]), (2, 1))
    >>> for record in follow(rows, {"F-PCA": make_tracker("F-PCA", 3, 1, block_rows=3)}, every=3):
    ...     print(record["t"], record["rank"], round(record["error"], 6), round(record["least"], 6))
    3 1 1.666667 1.666667
    6 1 1.666667 1.666667
    """
    scatter, seen = np.zeros((rows.shape[1], rows.shape[1])), 0
    for batch in batches(rows, every):
        seen += len(batch)
        scatter += batch.T @ batch
        squares = np.linalg.eigvalsh(scatter)[::-1]
        energy = float(np.trace(scatter))
        floor = rows.shape[1] * np.finfo(np.float64).eps * energy
        for method, tracker in trackers.items():
            tracker.update(batch)
            found = components(tracker)
            missed = energy - float(np.sum((found @ scatter) * found))
            best = float(np.sum(squares[len(found) :]))
            yield {
                "method": method,
                "t": seen,
                "rank": len(found),
                "error": max(missed, floor) / seen,
                "least": max(best, floor) / seen,
            }
