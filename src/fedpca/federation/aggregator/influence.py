"""Influence: what every child has done to the model, by what the model of all others is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import pi, radians

import numpy as np

from fedpca._typing import Array
from fedpca._util.text import join_names, sanitize
from fedpca.federation.aggregator.tree import MergeTree
from fedpca.metrics import principal_angles
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_FAR = radians(30.0)
# Times its odds in rows: ten owners of MNIST have up to 1.4 times where they are alike, 5 where they are not,
# 19 with one digit each; one who adds a spike with as much energy as it has, 50 and more.
_BEYOND = 20.0
_MANY = 1 / 3  # of the rows: such a child turns the model by its size
_MAX_DIRECTIONS = 64  # of the model, in which a child's share is looked for: an eigenproblem for each child
_SMALL = 64  # features, of which others are merged with all directions: then angles are exact
_ACCURATE = 1e-9  # of the largest eigenvalue: what is left of a difference of scatters is accurate above this


@dataclass(frozen=True)
class Influence:
    """What a child has done to the model.

    Attributes:
        row_share: its share of all rows.
        direction_share: its largest share of the energy of all rows about their mean, along any one direction
            within the model. About its share of rows where children are alike, and 1 where it alone has put a
            direction into the model.
        angle: the largest principal angle between the model and the model without it, in radians, a right one
            if the model lacks a direction because of the child; None if either has no directions.
        captured: the share of the variance of its own rows, by its summary, along the model's components.
        captured_without: along those of the model without it; None if there is none.
    """

    row_share: float
    direction_share: float
    angle: float | None
    captured: float
    captured_without: float | None

    @property
    def suspicious(self) -> bool:
        """Whether it moves the model far beyond its share of rows.

        True if it has less than a third of the rows, its odds in some direction of the model are more than
        20 times its odds in rows, and without it the model turns by more than 30 degrees.
        """
        return (
            _is_beyond(self.direction_share, self.row_share) and self.angle is not None and self.angle > _FAR
        )

    def warning(self) -> str:
        """What is suspicious, or ""."""
        if not self.suspicious:
            return ""
        assert self.angle is not None
        return (
            f"{self.direction_share:.3g} of the variance along a direction of the model, but only "
            f"{self.row_share:.3g} of the rows; without it, the model turns by {np.degrees(self.angle):.0f} "
            "degrees."
        )


def influence(
    summaries: Mapping[str, Summary], rows: Mapping[str, float], tree: MergeTree, model: Subspace
) -> dict[str, Influence]:
    """The influence of every child, by name, at the cost of three merges of two summaries for each.

    Args:
        summaries: by name.
        rows: the share of each in all rows.
        tree: of the same summaries.
        model: the merge of all.
    """
    summaries = {name: summaries[name] for name in sorted(summaries)}  # sums round in this order
    rank = tree.rank
    if model.n_features <= _SMALL:
        tree = MergeTree.of(summaries, None, tree.fanout)
        model = tree.merged().subspace(_kept(rank, model))
    own = _in_units_of_all(summaries, model)
    found = {}
    for name, without in _models_without(list(summaries), tree, rank):
        summary = summaries[name]
        found[name] = Influence(
            rows[name],
            _largest_share(own[name]),
            None if without is None else _largest_angle(model, without),
            captured(summary, model.components, model.scale),
            None if without is None else captured(summary, without.components, without.scale),
        )
    return {name: found[name] for name in summaries}


def influence_warning(
    summaries: Mapping[str, Summary], rows: Mapping[str, float], tree: MergeTree, model: Subspace
) -> str:
    """Which children move the model far beyond their shares of rows, or "".

    Others are merged only for those that may.
    """
    shares = {
        name: _largest_share(scatter)
        for name, scatter in _in_units_of_all(summaries, model).items()
        if _is_beyond(min(float(np.linalg.norm(scatter)), 1.0), rows[name])  # at least the share
    }
    beyond = [name for name, share in shares.items() if _is_beyond(share, rows[name])]
    found = {}
    for name, without in _models_without(beyond, tree, tree.rank):
        angle = None if without is None else _largest_angle(model, without)
        found[name] = Influence(rows[name], shares[name], angle, 0.0, None)
    return suspects_in_words(found)


def row_shares(summaries: Mapping[str, Summary]) -> dict[str, float]:
    """The share of each in all rows."""
    total = sum(summary.count for summary in summaries.values())
    return {name: summary.count / total for name, summary in summaries.items()}


def _models_without(
    names: Sequence[str], tree: MergeTree, rank: int | None
) -> Iterator[tuple[str, Subspace | None]]:
    """The model of all others, for each of these names; None if there is no other."""
    for name, others in tree.others(names):
        yield name, None if others is None else others.subspace(_kept(rank, others))


def _kept(rank: int | None, summary: Summary) -> int | None:
    return None if rank is None else min(rank, summary.n_features)


def _largest_angle(model: Subspace, other: Subspace) -> float | None:
    """In radians; None if either has no directions."""
    if not model.rank or not other.rank:
        return None
    if model.certificate is None and model.rank < other.rank:  # not for noise: the child hides a direction
        return pi / 2
    return float(principal_angles(model, other).max())


def suspects_in_words(found: Mapping[str, Influence]) -> str:
    """Which children are suspicious, and what the first of them has, or ""."""
    suspects = [name for name, one in found.items() if one.suspicious]
    if not suspects:
        return ""
    suspects.sort(key=lambda name: (-found[name].direction_share, name))
    names = join_names([repr(sanitize(name, 100)) for name in suspects])
    return f"far more influence than rows: {names}; the first has {found[suspects[0]].warning()}"


def _is_beyond(direction_share: float, row_share: float) -> bool:
    if row_share >= _MANY:
        return False
    return direction_share * (1 - row_share) > _BEYOND * row_share * (1 - direction_share)


# --- along the model ---


def captured(summary: Summary, components: Array, scale: Array | None) -> float:
    """The share of a summary's variance along components of rows divided by a scale."""
    if not isinstance(summary, Moments):
        along, total = (
            _energy(summary.singular_values[:, None] * (summary.components @ components.T)),
            summary.total,
        )
    else:
        divisor = _divisor(summary, scale)
        components = components / divisor
        along = float(np.vdot(components @ summary.scatter, components))
        total = float(np.sum(np.diag(summary.scatter) / divisor**2))
    return along / total if total > 0 else 0.0


def _largest_share(scatter: Array) -> float:
    """Of a child along any one direction, in units in which all children together have one."""
    return float(np.clip(np.linalg.eigvalsh(scatter)[-1], 0.0, 1.0)) if len(scatter) else 0.0


def _in_units_of_all(summaries: Mapping[str, Summary], model: Subspace) -> dict[str, Array]:
    """The scatter of each child along directions of the model, in units in which that of all is one."""
    components = model.components[:_MAX_DIRECTIONS].astype(np.float64)
    own = {name: _scatter_along(summary, components, model) for name, summary in summaries.items()}
    squares, vectors = np.linalg.eigh(sum(own.values(), start=np.zeros(2 * (len(components),))))
    kept = squares > _ACCURATE * squares[-1:].sum()
    to_one = vectors[:, kept] / np.sqrt(squares[kept])
    return {name: to_one.T @ scatter @ to_one for name, scatter in own.items()}


def _scatter_along(summary: Summary, components: Array, model: Subspace) -> Array:
    """The scatter of a child's rows about the model's mean along components, shape (r, r)."""
    divisor = _divisor(summary, model.scale)
    found = np.zeros(2 * (len(components),))
    for leaf in summary.leaves:
        offset = components @ (leaf.known * (leaf.mean / divisor - model.mean))
        found += leaf.count * np.outer(offset, offset)
        if isinstance(leaf, Moments):
            scaled = components / divisor
            found += scaled @ leaf.scatter @ scaled.T
        else:
            rows = leaf.singular_values[:, None] * (leaf.components @ components.T)
            found += rows.T @ rows
    return found


def _divisor(summary: Summary, scale: Array | None) -> Array:
    """What the numbers of a summary are to be divided by to be those of rows divided by a scale."""
    divisor = np.ones(summary.n_features) if scale is None else scale
    return divisor / summary.scale if isinstance(summary.scale, np.ndarray) else divisor


def _energy(rows: Array) -> float:
    return float(np.vdot(rows, rows))
