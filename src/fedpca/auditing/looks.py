"""Where a row shows in what runs of two worlds released, and the scores of all runs there."""

from collections.abc import Iterator
from math import hypot, sqrt
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.auditing.run import EVALUATION, RELEASE, Case, Run, histogram_of

_RIDGE = 1e-6


class Look(NamedTuple):
    """Scores of the runs of two worlds.

    Attributes:
        ours, theirs: shape (runs,).
        promised: the mu by which they may differ.
    """

    name: str
    ours: Array
    theirs: Array
    promised: float


def looks(case: Case, runs: int) -> Iterator[Look]:
    """Run both worlds, and combine what their blocks show."""
    first = Run(case, case.ours)
    blocks = first.blocks
    weights = [_weights(case, block.name, len(block.numbers), first.scale) for block in blocks]
    views = [(i, i) for i in range(len(blocks))]  # of a block, where the row shows in another
    if case.only is not None:
        views = [(i, i) for i, block in enumerate(blocks) if block.name == case.only][:1]
    elif case.step is None:
        views += [view for i in range(len(blocks) - 1) for view in ((i, i + 1), (i + 1, i))]
    worlds = [
        [_seen(Run(case, row), weights, views) for _ in range(runs)] for row in (case.ours, case.theirs)
    ]
    ours, theirs = ([np.array(scores) for scores in zip(*world, strict=True)] for world in worlds)
    seen = dict(zip(views, zip(ours, theirs, strict=True), strict=True))
    alone = [combined(seen[view]) for view in views if view[0] == view[1]]
    if case.only is not None:
        yield Look(case.name, *alone[0], blocks[views[0][0]].promised)
        return
    yield Look(case.name, *combined(*alone), first.promised)
    for i, j in views[len(blocks) :: 2]:
        # Would show noise that is the same in both.
        name = f"{case.name}, noise of {blocks[i].name} and {blocks[j].name}"
        crossed = combined(seen[i, i], seen[j, j], seen[i, j], seen[j, i])
        yield Look(name, *crossed, hypot(blocks[i].promised, blocks[j].promised))


def _seen(run: Run, weights: list[Array], views: list[tuple[int, int]]) -> list[Array]:
    """The scores of every view."""
    scores: list[Array] = []
    for block, where in views:
        seen = run.blocks[block : block + 1]  # some runs of a stream cannot be evaluated
        numbers, of_row = seen[0].numbers if seen else np.zeros(0), weights[where]
        length = min(len(numbers), len(of_row))
        scores.append(numbers[:length] @ of_row[:length])
    return scores


def combined(*worlds: tuple[Array, Array]) -> tuple[Array, Array]:
    """The combination of all scores that tells two worlds apart best in the first half of the runs.

    Fisher's: exact for Gaussian noise, and it finds noise that cancels.
    """
    ours, theirs = (np.column_stack(scores) for scores in zip(*worlds, strict=True))
    half = len(ours) // 2
    spread = np.std(np.concatenate([ours[:half], theirs[:half]]), axis=0)
    ours, theirs = (scores / np.where(spread > 0, spread, 1.0) for scores in (ours, theirs))
    covariance = sum(np.atleast_2d(np.cov(scores[:half].T)) for scores in (ours, theirs)) / 2
    difference = ours[:half].mean(axis=0) - theirs[:half].mean(axis=0)
    weights = np.linalg.solve(covariance + _RIDGE * np.eye(len(difference)), difference)
    return ours @ weights, theirs @ weights


def _weights(case: Case, name: str, length: int, scale: Array | float) -> Array:
    """Where the row of a case shows in a block of so many numbers, shape (length, scores)."""
    rows = [row for row in (case.ours, case.theirs) if np.isfinite(row).all()]
    if name.startswith(EVALUATION):
        return np.eye(length)
    if name == "mean":
        return case.look.T
    if name == "scales":
        return _indicators([sqrt(0.5) * (row - case.partner) for row in rows], length)
    if name in ("lengths", "radius", "spread"):
        about = {"lengths": 0.0 * case.center, "radius": case.center, "spread": case.partner / scale}[name]
        factor = sqrt(0.5) if name == "spread" else 1.0
        lengths = [factor * np.linalg.norm(row / scale - about) for row in rows]
        return _indicators([np.array([value]) for value in lengths], length)
    assert name == RELEASE
    d = len(case.ours)
    products = [np.outer(one, other).ravel() for one in case.look for other in case.look]
    of_report = np.zeros((d * d + d, 6))
    of_report[: d * d, :4], of_report[d * d :, 4:] = np.transpose(products), case.look.T
    return np.kron(np.eye(length // len(of_report)), of_report)


def _indicators(values: list[Array], length: int) -> Array:
    """Bins of values, one per feature if there are as many, and those of zeros, shape (length, scores)."""
    histogram = histogram_of(length // len(values[0]))
    first = histogram.n_bins * np.arange(len(values[0]))
    indicators = np.zeros((length, len(values) + 1))
    for column, of_row in enumerate([*values, 0.0 * values[0]]):
        indicators[first + histogram.bins(np.abs(of_row)), column] = 1.0
    return indicators
