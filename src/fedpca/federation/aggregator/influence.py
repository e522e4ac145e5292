"""Influence: what every child has done to the model, by what the model is without it.

With S the scatter of all n rows about their mean m, and S_i, n_i and m_i those of a child, the others have

    S - S_i - n n_i / (n - n_i) (m_i - m)(m_i - m)^T,

so that a model without a child needs no merge of the others, only the leading eigenvectors of this, which are
looked for where those of S are, and where the child's own are. Where this would not be accurate, or does not
hold, the others are merged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import radians
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca._typing import Array
from fedpca._util.text import join_names, sanitize
from fedpca.federation.aggregator.pool import Share
from fedpca.federation.aggregator.tree import MergeTree
from fedpca.metrics import principal_angles
from fedpca.summaries.algebra import pooled_mean
from fedpca.summaries.certificate import PRIVATE_SCALE, noise_edge
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_FEW = 16  # children of which all others are merged: exact, and soon done
_FAR = radians(30.0)
_BEYOND = 20.0  # times its odds in rows
_MANY = 1 / 3  # of the rows: no outlier
_MAX_DIRECTIONS = 64  # of the model, in which a child's share is looked for
_ACCURATE = 1e-9  # of the largest eigenvalue: what is left of a difference of scatters is accurate above this
_CONVERGED = 1e-4  # in radians: the error of an angle
_ROUNDS = 4  # of Davidson's method
_SMALL = 64  # features, all of whose directions are looked into
_INACCURATE = 1e-2  # in radians: from an estimate of the error of an angle on, the others are merged
_BATCH = 64  # children whose eigenproblems are solved together


@dataclass(frozen=True)
class Influence:
    """What a child has done to the model.

    Attributes:
        row_share: its share of all rows.
        energy_share: its share of the energy of all rows about their mean; see `ChildInfo`.
        direction_share: its largest share of that energy along any one direction within the model. About its
            share of rows where children are alike, and 1 where it alone has put a direction into the model.
        angle: the largest principal angle between the model and the model without it, in radians; None if
            either has no directions.
        captured: the share of the variance of its own rows, by its summary, along the model's components.
        captured_without: along those of the model without it; None if there is none.
    """

    row_share: float
    energy_share: float
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
    summaries: Mapping[str, Summary],
    shares: Mapping[str, Share],
    tree: MergeTree,
    model: Subspace,
) -> dict[str, Influence]:
    """The influence of every child, by name, at the cost of a few merges of all.

    Args:
        summaries: by name.
        shares: by name.
        tree: of the same summaries.
        model: the merge of all.
    """
    summaries = {name: summaries[name] for name in sorted(summaries)}  # sums round in this order
    own = direction_shares(summaries, model)
    without = _without_each(summaries, tree, model)
    return {
        name: Influence(
            *shares[name],
            own[name],
            without[name].angle,
            captured(summaries[name], model.components, model.scale),
            without[name].captured,
        )
        for name in summaries
    }


def influence_warning(
    summaries: Mapping[str, Summary],
    shares: Mapping[str, Share],
    tree: MergeTree,
    model: Subspace,
) -> str:
    """Which children move the model far beyond their shares of rows, or "".

    Others are merged only for those that may.
    """
    own = {
        name: _largest_share(scatter)
        for name, scatter in _in_units_of_all(summaries, model).items()
        if _is_beyond(min(float(np.linalg.norm(scatter)), 1.0), shares[name].rows)  # at least the share
    }
    beyond = [name for name in shares if name in own and _is_beyond(own[name], shares[name].rows)]
    found = {}
    for name, without in _merged_without(beyond, summaries, tree, model):
        found[name] = Influence(*shares[name], own[name], without.angle, 0.0, None)
    return suspects_in_words(found)


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


def direction_shares(summaries: Mapping[str, Summary], model: Subspace) -> dict[str, float]:
    """The largest share of each child in the energy along any one direction of the model."""
    return {name: _largest_share(own) for name, own in _in_units_of_all(summaries, model).items()}


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


# --- without each ---


class _Without(NamedTuple):
    """How far the model without a child is from the model, and what it captures of the child's variance."""

    angle: float | None
    captured: float | None


def _without_each(summaries: Mapping[str, Summary], tree: MergeTree, model: Subspace) -> dict[str, _Without]:
    found: dict[str, _Without] = {}
    plain = all(_is_plain(summary) for summary in summaries.values())
    if plain and model.rank and len(summaries) > _FEW:
        moments = {name: each for name, each in summaries.items() if isinstance(each, Moments)}
        subspaces = {name: each for name, each in summaries.items() if isinstance(each, Subspace)}
        if not subspaces:
            found = dict(_without_moments(moments, tree, model))
        elif not moments:
            found = dict(_without_subspaces(subspaces, tree, model))
    left = [name for name in summaries if name not in found]
    return found | dict(_merged_without(left, summaries, tree, model))


def _is_plain(summary: Summary) -> bool:
    """Whether scatters of such summaries add up, and come apart again."""
    certificate, scaling = summary.certificate, summary.scaling
    return (
        summary.observed is None
        and (scaling is None or (summary.centered and bool((scaling.observed == summary.count).all())))
        and (certificate is None or certificate.scale != PRIVATE_SCALE)
    )


def _merged_without(
    names: Sequence[str], summaries: Mapping[str, Summary], tree: MergeTree, model: Subspace
) -> Iterator[tuple[str, _Without]]:
    """By merging all others, for each of these names."""
    for name, others in tree.others(names):
        if others is None:
            yield name, _Without(None, None)
            continue
        rank = None if tree.rank is None else min(tree.rank, others.n_features)
        yield name, _compared(summaries[name], others.subspace(rank), model)


def _compared(summary: Summary, without: Subspace, model: Subspace) -> _Without:
    angle = None
    if without.rank and model.rank:
        angle = float(principal_angles(model, without).max())
    return _Without(angle, captured(summary, without.components, without.scale))


def _without_subspaces(
    summaries: Mapping[str, Subspace], tree: MergeTree, model: Subspace
) -> Iterator[tuple[str, _Without]]:
    """In coordinates of the leading directions of all rows, and of what a child has beside them.

    What others have beside them is taken to be the same in all directions: angles are within a few percent.
    Children for whom that is not accurate are left out.
    """
    names, children = list(summaries), list(summaries.values())
    counts = np.array([child.count for child in children])
    count, mean, _ = pooled_mean(counts, np.array([child.mean for child in children]))
    if model.n_features <= _SMALL:
        basis = np.eye(model.n_features)
    else:
        basis = tree.merged().components.astype(np.float64)  # type: ignore[union-attr]
        for _ in range(2):  # those of all rows, whatever merges have left out
            image = np.zeros_like(basis)
            for child in children:
                rows = _rows_about(mean, child)
                image += (rows @ basis.T).T @ rows
            basis = np.ascontiguousarray(np.linalg.qr(image.T)[0].T)
    coordinates, products = [], []
    for child in children:
        rows = _rows_about(mean, child)
        coordinates.append(rows @ basis.T)
        products.append(rows @ rows.T)
    squares, rotation = np.linalg.eigh(sum(own.T @ own for own in coordinates))
    squares, rotation = squares[::-1], rotation[:, ::-1]
    n_dimensions = min(model.n_features, sum(map(len, coordinates)))
    beside = max(n_dimensions - len(squares), 0)
    energy_beside = max(sum(float(np.trace(own)) for own in products) - float(squares.sum()), 0.0)
    smallest = max(_ACCURATE * squares[0], squares[-1] if beside else 0.0)
    by_size: dict[int, list[int]] = {}
    for i, own in enumerate(coordinates):
        if counts[i] < count:
            by_size.setdefault(len(own), []).append(i)
    for same in by_size.values():
        for start in range(0, len(same), _BATCH):
            batch = same[start : start + _BATCH]
            factors = np.ones((len(batch), len(coordinates[batch[0]]), 1))
            factors[:, -1, 0] = np.sqrt(count / (count - counts[batch]))  # of the row of the mean
            inside = factors * np.array([coordinates[i] @ rotation for i in batch])
            own = factors * np.array([products[i] for i in batch]) * factors.transpose(0, 2, 1)
            outside = _roots(own - inside @ inside.transpose(0, 2, 1))
            if not beside:
                outside = outside[:, :, :0]
            others_beside = energy_beside - np.sum(outside**2, axis=(1, 2))
            values, vectors = _eigenpairs_without(
                squares, inside, outside, np.maximum(others_beside, 0.0) / max(beside, 1), model.rank
            )
            out, kept = vectors[:, model.rank :], vectors[:, : model.rank]
            sines = np.linalg.eigvalsh(out.transpose(0, 2, 1) @ out)[:, -1]
            cosines = np.linalg.eigvalsh(kept.transpose(0, 2, 1) @ kept)[:, 0]
            angles = np.arctan2(np.sqrt(np.maximum(sines, 0.0)), np.sqrt(np.maximum(cosines, 0.0)))
            beyond = np.linalg.norm(vectors[:, len(squares) :], axis=(1, 2))
            errors = beyond * squares[-1] / np.maximum(values, _ACCURATE * squares[0])
            rows = np.concatenate([inside, outside], axis=2)[:, :-1]  # without that of the mean
            along = np.sum((rows @ vectors) ** 2, axis=(1, 2))
            for i, value, error, angle, energy in zip(batch, values, errors, angles, along, strict=True):
                if value > smallest and error < _INACCURATE:
                    total = children[i].total
                    yield names[i], _Without(float(angle), float(energy) / total if total > 0 else 0.0)


def _rows_about(mean: Array, child: Subspace) -> Array:
    """Rows whose Gram matrix is the scatter of a child's rows about a mean, shape (r + 1, d)."""
    rows = child.singular_values[:, None] * child.components
    return np.concatenate([rows, np.sqrt(child.count) * (child.mean - mean)[None]])


def _roots(products: Array) -> Array:
    """Coordinates, shape (k, s, s), of rows that have these products, shape (k, s, s)."""
    squares, vectors = np.linalg.eigh(products)
    return vectors * np.sqrt(np.maximum(squares, 0.0))[:, None, :]


def _eigenpairs_without(
    squares: Array, inside: Array, outside: Array, rest: Array, rank: int
) -> tuple[Array, Array]:
    """The smallest of the leading eigenvalues, shape (k,), and the eigenvectors, shape (k, q + t, rank).

    Args:
        squares: eigenvalues of the scatter of all rows, shape (q,).
        inside: coordinates of each child's rows along their eigenvectors, shape (k, s, q).
        outside: coordinates of what they have beside these, shape (k, s, t).
        rest: the variance of all others there, in any direction, shape (k,).
        rank: how many.
    """
    n_children, _, width = inside.shape
    size = width + outside.shape[2]
    matrix = np.zeros((n_children, size, size))
    matrix[:, :width, :width] = np.diag(squares) - inside.transpose(0, 2, 1) @ inside
    matrix[:, :width, width:] = -inside.transpose(0, 2, 1) @ outside
    matrix[:, width:, :width] = matrix[:, :width, width:].transpose(0, 2, 1)
    matrix[:, width:, width:] = rest[:, None, None] * np.eye(size - width)
    values, vectors = np.linalg.eigh(matrix)
    return values[:, -rank], vectors[:, :, -rank:]


def _without_moments(
    summaries: Mapping[str, Moments], tree: MergeTree, model: Subspace
) -> Iterator[tuple[str, _Without]]:
    """By subtracting each child from the sum; children for whom that is not accurate are left out."""
    whole = tree.merged()
    if not isinstance(whole, Moments) or (whole.certificate is not None and tree.rank is None):
        return
    rank = model.rank if whole.certificate is None else min(tree.rank or 1, whole.n_features)
    edges = {name: noise_edge(summary.certificate) for name, summary in summaries.items()}
    noise = sum(edge**2 for edge in edges.values())
    diagonal = np.abs(np.diag(whole.scatter))
    everything, _ = _of_scale(whole.scatter, whole)
    squares, vectors = np.linalg.eigh(everything)
    start = np.ascontiguousarray(vectors[:, ::-1][:, : 2 * rank + 10].T)
    for name, child in summaries.items():
        rest = whole.count - child.count
        if not rest > 0:
            continue
        offset = child.mean - whole.mean
        scatter = whole.scatter - child.scatter
        if whole.centered:
            scatter -= np.outer(whole.count * child.count / rest * offset, offset)
        if np.any(np.abs(np.diag(scatter)) < _ACCURATE * diagonal):
            continue
        matrix, scale = _of_scale(scatter, whole, rest)
        values, components = _leading(matrix, rank, start)
        if not values[-1] > _ACCURATE * squares[-1] and whole.certificate is None:
            continue
        edge = np.sqrt(max(noise - edges[name] ** 2, 0.0))
        components = components[values > edge]
        angle = float(principal_angles(model, components).max()) if len(components) else None
        yield name, _Without(angle, captured(child, components, scale))


def _of_scale(scatter: Array, whole: Moments, count: float | None = None) -> tuple[Array, Array | None]:
    """A scatter of so many rows divided by their scale, if that is a rule, and the scale of the result."""
    if not isinstance(whole.scale, str):
        return scatter, whole.scale
    rows = whole.count if count is None else count
    variances = np.maximum(np.diag(scatter), 0.0) / rows
    scaling = Scaling(np.full(len(scatter), rows), whole.mean, variances)
    scale = scaling.scale(whole.scale)
    varies = ~scaling.constant
    return np.where(varies & varies[:, None], scatter / scale / scale[:, None], 0.0), scale


def _leading(matrix: Array, rank: int, start: Array) -> tuple[Array, Array]:
    """The leading eigenvalues of a symmetric matrix, and eigenvectors as rows.

    They are looked for within the span of `start`, orthonormal rows, and of what the matrix adds to it
    (Davidson's method); if they are not found soon, in the whole space.
    """
    size, width = len(matrix), len(start)
    basis, image = start, start @ matrix
    for _ in range(_ROUNDS):
        if len(basis) + rank > size // 2:
            break
        values, inner = _top(image @ basis.T, width)
        gap, values, inner = values[rank - 1] - values[-1], values[:rank], inner[:rank]
        vectors = inner @ basis
        residual = inner @ image - values[:, None] * vectors  # of directions beside the basis
        if np.linalg.norm(residual) <= _CONVERGED * gap:
            return values, vectors
        residual -= (residual @ basis.T) @ basis
        added = np.linalg.qr(residual.T)[0].T
        basis, image = np.concatenate([basis, added]), np.concatenate([image, added @ matrix])
    values, vectors = eigh(matrix, subset_by_index=(size - rank, size - 1))
    return values[::-1], vectors[:, ::-1].T


def _top(matrix: Array, rank: int) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values[::-1][:rank], vectors[:, ::-1][:, :rank].T
