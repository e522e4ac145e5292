"""Robust merging: the model of owners a minority of whom may lie.

Owner i has n_i rows with mean m_i and scatter S_i. With a center m, the weighted median of the means feature
by feature, its mean scatter about it is

    A_i = S_i / n_i + (m_i - m)(m_i - m)^T.

A rule gives weights to owners, and cuts back what they have; what is left of them is merged as usual. Each
rule takes the steps of the one before and adds one.

- "cap": no owner weighs more than the median owner (or `max_share`), and no eigenvalue of A_i is above the
  largest of the median owner.
- "median": weights are those of the geometric median of the A_i. Distances below the
  sampling noise of an owner count as equal, for a minority of owners who agree more than that the more so:
  liars who send one summary are nearer to each other than honest owners are.
- "trim": the geometric median is a reference R for what owners have along each direction. The A_i are cut
  back to A_i <= 2 R in the Loewner order, and owners far from the others, compared with the median owner,
  lose their weight: Tukey's biweight, from the geometric median on.

To cut back is to shrink rows linearly about the center, x -> T_i (x - m): means and scatters fit together.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from fedpca._typing import Array
from fedpca._util.text import join_names, sanitize
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.linalg import rounding_level, with_fixed_signs
from fedpca.summaries.merging import merge_tree
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary, all_moments

RobustRule = Literal["cap", "median", "trim"]
LEAST_OWNERS = 3  # of fewer, there is no majority

_log = logging.getLogger("fedpca.federation")
# Of "trim", with three of ten owners lying (`benchmarks.liars --constants`): alike owners hardly notice the
# first two. Unlike ones, Dirichlet(0.5), capture .9983 of the best possible without a lie, and .970 with the
# worst; with 1.25 for the first .996 and .983, with 5 .9987 and .967; with .05 for the second .998 and .974,
# with 2 .9987 and .968. The third trades more: with 1.25 unlike owners capture .976 and alike ones .9992,
# with 1.5 .995 and .9999, above 2 nothing is gained.
_LOEWNER = 2.0  # times the reference is the most that an owner may have along a direction
_RIDGE = 0.5  # of the mean variance of a feature is added to the reference: small owners have sampling noise
_FAR = 2.0  # times the distance of the median owner, from where on an owner has no weight
# At most: rounds end when they have settled. 3 and 100 of the median, and 10 and 30 of the trim, differ by
# 1e-4 of the captured variance at most.
_MEDIAN_ROUNDS = 100
_TRIM_ROUNDS = 10
_SETTLED = 1e-12  # the change of a weight, a share of one: no more than rounding is left
_LEAST_WEIGHT = 1e-12
_NEAR = 1e-6  # of the largest distance: nearer owners count as this far
# In standard deviations of sampling noise: owners with rows drawn at random from digits are .7 to .9 from
# their mean, 1.1 where four of nine lie, and .8 to 1.1, times the root of two, from one another. So distances
# below the first tell nothing; who are nearer to each other than the second are more alike than owners of
# different rows, and their distances below the third tell nothing. Without the last two, four of nine who
# agree have .55 of the weight; with 1 for the first and without them, "median" hardly notices a mild lie of
# one in three.
_NOISE = 0.8
_ALIKE = 0.7
_AGREED = 1.1
_MOSTLY_OFFSET = 1e-6  # of the energy is left about the mean: rounding may be a part of it that matters
_MAX_BASIS = 512  # directions that subspaces are compared in


@dataclass(frozen=True)
class Robust:
    """How to merge children a minority of whom may lie.

    Attributes:
        rule: "cap", "median" or "trim".
        max_share: the largest weight of a child, as a share of all; by default no child weighs more than the
            median child. Below one over the number of children, all weigh the same.

    >>> Robust("cap", max_share=0.2)
    Robust(rule='cap', max_share=0.2)
    """

    rule: RobustRule
    max_share: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in get_args(RobustRule):
            known = ", ".join(map(repr, get_args(RobustRule)))
            raise ValueError(f"robust must be None or one of {known}, got {self.rule!r:.80}.")
        share = self.max_share
        if share is not None and (not validation.is_real(share) or not 0 < share <= 1):
            raise ValueError(f"max_share must be a share above 0 and at most 1, got {share!r:.80}.")

    @classmethod
    def of(cls, robust: "Robust | str | None", max_share: float | None = None) -> "Robust | None":
        """The rule, given as itself or by its name, and its share; None for none."""
        if robust is None and max_share is not None:
            raise ValueError("max_share is for robust merging; give robust='cap', or leave it out.")
        if robust is None or isinstance(robust, Robust):
            return robust
        return cls(cast("RobustRule", robust), max_share)

    def too_few(self, number: int) -> str:
        """A warning where there is no majority, or ""."""
        if number >= LEAST_OWNERS:
            return ""
        return (
            f"robust={self.rule!r} needs at least {LEAST_OWNERS} owners, got {number}: only the caps apply."
        )


def check_known(summary: Summary) -> None:
    """Reject a summary that does not know every feature: what owners do not share cannot be compared."""
    if summary.observed is not None:
        raise ValueError(
            "robust merging needs owners that know all features, and no row of some knows one; leave out "
            "these features, with features='intersection' or before fitting, or merge without robust."
        )


def merge_robust(
    children: Mapping[str, Summary], robust: Robust | RobustRule, *, rank: int | None = None
) -> Summary:
    """The summary of all children, a minority of whom may lie.

    It is the same for any order of the children, bit for bit.

    Args:
        children: summaries by name, at least one. With fewer than three only the caps apply.
        robust: "cap", "median" or "trim", or a `Robust` with the largest weight of a child.
        rank: directions to keep; all by default.

    Returns:
        Moments if all summaries are and no rank is asked for. Its count is the sum of the counts that are
        left after the cap; its mean and its scatter per row are the robust ones.

    >>> rng = np.random.default_rng(0)
    >>> owners = {f"{i}": Moments.from_rows(rng.normal(size=(500, 3)) * [3, 1, 1]) for i in range(5)}
    >>> owners["0"] = Moments.from_rows(rng.normal(size=(9, 3)) * [1, 1, 1e9])
    >>> merge_robust(owners, "trim").subspace(1).components.round(1)
    array([[ 1.,  0., -0.]])
    """
    rule = robust if isinstance(robust, Robust) else Robust(robust)
    return merge_tree(list(what_counts(children, rule).values()), rank)


def what_counts(children: Mapping[str, Summary], robust: Robust) -> dict[str, Summary]:
    """What is left of each child, in the order of names: its weight as the count, and its rows cut back.

    Their plain merge is the robust merge of the children. Who has no weight keeps almost none, and so a place
    in the certificate of the merge: a release that decided on weights was used.
    """
    names = sorted(name for name in children if children[name].count) or sorted(children)[:1]
    summaries = [children[name] for name in names]
    check_compatible(summaries)
    for summary in summaries:
        check_known(summary)
    if text := robust.too_few(len(summaries)):
        _log.warning("%s", text)
    if len(summaries) == 1:
        return dict(zip(names, summaries, strict=True))
    counts = _capped_counts(np.array([summary.count for summary in summaries]), robust.max_share)
    if isinstance(summaries[0].scale, str):
        counted, weights = _counted_unscaled(cast("list[Moments]", summaries), counts, robust.rule)
    else:
        plain = [summary.with_about(scale=None) for summary in summaries]
        left, weights = _counted(plain, counts, robust.rule)
        counted = [each.with_about(scale=summaries[0].scale) for each in left]
    without = [repr(sanitize(name, 100)) for name, weight in zip(names, weights, strict=True) if not weight]
    if without:
        _log.warning("robust=%r gives no weight to %s: far from the others", robust.rule, join_names(without))
    named = [each.with_about(names=own.feature_names) for each, own in zip(counted, summaries, strict=True)]
    return dict(zip(names, named, strict=True))


def _capped_counts(counts: Array, max_share: float | None) -> Array:
    """The counts that children weigh with."""
    ordered = np.sort(counts)
    if max_share is None:
        return np.minimum(counts, ordered[(len(counts) - 1) // 2])
    limit = ordered[0]
    for capped in range(len(counts)):  # that many of the largest have the limit
        if capped * max_share >= 1:
            break
        rest = ordered[: len(counts) - capped]
        limit = max_share * rest.sum() / (1 - capped * max_share)
        if limit >= rest[-1]:
            break
    return np.minimum(counts, max(limit, ordered[0]))


def _counts_left(weights: Array, total: float) -> Array:
    """What children count with: the total in shares of their weights, and almost nothing for none.

    They are multiples of one power of two, so they add up to the total without rounding, in any order: a
    sum that is a hair above what an owner declared, or below what a parent asks for, would be rejected.
    """
    unit = 2.0 ** (np.frexp(total)[1] - 50)
    left = np.rint(total * np.maximum(weights, _LEAST_WEIGHT) / unit) * unit
    left[np.argmax(left)] += total - left.sum()
    return left


def _counted_unscaled(
    moments: Sequence[Moments], counts: Array, rule: RobustRule
) -> tuple[list[Summary], Array]:
    """What is left of moments whose scale is a rule, in units of the median owner's standard deviations.

    In units of their own, features with large numbers would hide all others. The scale of the merge follows
    from what is left; where entries were missing, from the median owner's means and variances.
    """
    scalings = [summary.scaling_of_rows() for summary in moments]
    means = np.array([scaling.mean for scaling in scalings])
    variances = np.array([scaling.variance for scaling in scalings])
    mean, variance = _weighted_median(means, counts), _weighted_median(variances, counts)
    spreads = variances + (means - mean) ** 2
    middle, largest = _weighted_median(spreads, counts), spreads.max(axis=0)
    divisor = np.sqrt(np.where(middle > 0, middle, np.where(largest > 0, largest, 1.0)))
    counted, weights = _counted([summary.divided(divisor) for summary in moments], counts, rule)
    left = [cast("Moments", each).divided(1 / divisor) for each in counted]
    observed = [
        scaling.observed * (each.count / own.count)
        for own, scaling, each in zip(moments, scalings, left, strict=True)
    ]
    mean, variance = _within_energy(mean, variance, np.sum(observed, axis=0), left)
    found: list[Summary] = []
    for own, each, entries in zip(moments, left, observed, strict=True):
        known = None if _is_complete(own) else Scaling(entries, mean, variance)
        found.append(each.with_about(scale=own.scale, scaling=known))
    return found, weights


def _is_complete(moments: Moments) -> bool:
    """Whether the scale of moments follows from their scatter: no entry of a row was missing."""
    if moments.scaling is None:
        return True
    return moments.centered and bool((moments.scaling.observed == moments.count).all())


def _within_energy(
    mean: Array, variance: Array, observed: Array, left: Sequence[Moments]
) -> tuple[Array, Array]:
    """A mean and variance of observed entries that have no more energy than what is left of all rows.

    More would be no scaling of any rows, and a parent would reject it.
    """
    energy = np.sum([np.diag(each.scatter) + each.count * each.mean**2 for each in left], axis=0)
    most = np.divide(energy, observed, out=np.zeros_like(mean), where=observed > 0)
    mean = np.clip(mean, -np.sqrt(most), np.sqrt(most))
    return mean, np.minimum(variance, most - mean**2).clip(0.0)


def _counted(
    summaries: Sequence[Summary], counts: Array, rule: RobustRule
) -> tuple[Sequence[Summary], Array]:
    """What is left of summaries without a scale, and their weights."""
    private = {summary.certificate is not None for summary in summaries}
    if all_moments(summaries) and len(private) == 1:
        owners = _Owners.of_moments(cast("Sequence[Moments]", summaries), counts)
    else:
        subspaces = [summary.subspace() for summary in summaries]
        owners, summaries = _Owners.of_subspaces(subspaces, counts), subspaces
    weights = counts / counts.sum()
    if rule != "cap" and len(summaries) >= LEAST_OWNERS:
        noise = owners.sampling_noise(counts)
        weights = _median_weights(_Distances(owners.scatters, weights, noise), weights)
        if rule == "trim":
            owners = owners.cut_back(weights)
            weights = counts / counts.sum()
            weights = _trimmed_weights(_Distances(owners.scatters, weights, noise), weights)
    left = _counts_left(weights, float(counts.sum()))
    return [owners.summary(i, own, float(left[i])) for i, own in enumerate(summaries)], weights


@dataclass(frozen=True)
class _Owners:
    """What owners have per row about a common center, cut back, in a basis.

    Attributes:
        center: shape (d,).
        offsets: of the owners' means from the center, shape (k, q).
        scatters: about the center, shape (k, q, q).
        rests: energies outside the basis, shape (k,).
        basis: orthonormal rows, shape (q, d); None for all features.
    """

    center: Array
    offsets: Array
    scatters: Array
    rests: Array
    basis: Array | None

    @classmethod
    def of_moments(cls, moments: Sequence[Moments], counts: Array) -> Self:
        weights = counts / counts.sum()
        center, offsets = _centered(moments, weights)
        parts = [
            np.linalg.eigh(summary.scatter / summary.count + np.outer(offset, offset))
            for summary, offset in zip(moments, offsets, strict=True)
        ]
        caps = _Caps.of([squares for squares, _ in parts], weights, len(center))
        scatters = np.empty((len(parts), len(center), len(center)))
        for i, (squares, vectors) in enumerate(parts):
            limited, shrinkage = caps.limited(squares)
            scatters[i] = (vectors * limited) @ vectors.T
            offsets[i] = vectors @ (shrinkage * (vectors.T @ offsets[i]))
        return cls(center, offsets, scatters, np.zeros(len(parts)), None)

    @classmethod
    def of_subspaces(cls, subspaces: Sequence[Subspace], counts: Array) -> Self:
        weights = counts / counts.sum()
        center, offsets = _centered(subspaces, weights)
        parts = []
        for summary, offset in zip(subspaces, offsets, strict=True):
            kept = (summary.singular_values / np.sqrt(summary.count))[:, None] * summary.components
            _, lengths, directions = np.linalg.svd(np.vstack([kept, offset]), full_matrices=False)
            parts.append((lengths[::-1] ** 2, directions[::-1]))
        caps = _Caps.of([squares for squares, _ in parts], weights, len(center))
        capped = []
        for i, (squares, directions) in enumerate(parts):
            limited, shrinkage = caps.limited(squares)
            capped.append(np.sqrt(limited)[:, None] * directions)
            offsets[i] = (shrinkage * (directions @ offsets[i])) @ directions
        basis = _joint_basis(capped, weights)
        lost = np.array([part.discarded / part.count for part in subspaces])
        lost = np.minimum(lost, _weighted_median(lost, weights))
        projected = [rows @ basis.T for rows in capped]
        outside = [
            np.vdot(rows, rows) - np.vdot(own, own) for rows, own in zip(capped, projected, strict=True)
        ]
        rests = lost + np.maximum(outside, 0.0)
        scatters = np.array([own.T @ own for own in projected])
        return cls(center, offsets @ basis.T, scatters, rests, basis)

    def sampling_noise(self, counts: Array) -> float:
        """The standard deviation of the scatter of the median owner, in Frobenius norm, for Gaussian rows."""
        traces = np.trace(self.scatters, axis1=1, axis2=2) + self.rests
        unit = np.abs(self.scatters).max(initial=0.0) or 1.0  # in any unit; squares stay in range
        norms = unit * np.linalg.norm(self.scatters / unit, axis=(1, 2))
        return float(_weighted_median(np.hypot(traces, norms) / np.sqrt(counts), counts))

    def cut_back(self, reference: Array) -> Self:
        """Scatters of at most twice the reference, the mean with these weights, in the Loewner order."""
        squares, vectors = np.linalg.eigh(np.tensordot(reference, self.scatters, 1))
        squares = np.maximum(squares, 0.0)
        ridge = _RIDGE * (squares.sum() + reference @ self.rests) / len(self.center)
        if not ridge:
            return self
        roots = np.sqrt(squares + ridge)
        colored, whitened = vectors * roots, vectors / roots
        offsets, scatters = np.empty_like(self.offsets), np.empty_like(self.scatters)
        for i, scatter in enumerate(self.scatters):
            own, directions = np.linalg.eigh(whitened.T @ scatter @ whitened)
            left = colored @ directions
            scatters[i] = (left * np.clip(own, -_LOEWNER, _LOEWNER)) @ left.T
            shrinkage = np.sqrt(_LOEWNER / np.maximum(own, _LOEWNER))
            offsets[i] = left @ (shrinkage * (directions.T @ (whitened.T @ self.offsets[i])))
        return type(self)(self.center, offsets, scatters, self.rests, self.basis)

    def summary(self, i: int, own: Summary, count: float) -> Summary:
        """What is left of an owner, with this count."""
        offset = self.offsets[i]
        scatter = _about_mean(self.scatters[i], offset, private=own.certificate is not None) * count
        certificate = own.certificate and own.certificate.scaled(count / own.count)
        if self.basis is None:
            about = About(certificate=certificate)
            return Moments(count, self.center + offset, scatter, own.centered, about=about)
        squares, vectors = np.linalg.eigh(scatter)
        total = float(np.trace(scatter)) + count * self.rests[i]
        kept = np.flatnonzero(squares > rounding_level(own.n_features) * squares[-1:].sum())[::-1]
        kept = kept[: cast("Subspace", own).rank]
        dtype = cast("Subspace", own).components.dtype
        return Subspace.unchecked(
            components=with_fixed_signs(vectors[:, kept].T @ self.basis).astype(dtype, copy=False),
            singular_values=np.sqrt(squares[kept]),
            mean=self.center + offset @ self.basis,
            count=count,
            total=total,
            centered=own.centered,
            about=About(certificate=certificate),
        )


@dataclass(frozen=True)
class _Caps:
    """The largest eigenvalue of an owner, and how far below zero the noise of private releases may go."""

    above: float
    below: float
    n_features: int

    @classmethod
    def of(cls, spectra: Sequence[Array], weights: Array, n_features: int) -> Self:
        """Those of the median owner; spectra ascend."""
        above = _weighted_median(np.array([squares[-1] for squares in spectra]), weights)
        below = _weighted_median(np.array([-squares[0] for squares in spectra]), weights)
        return cls(max(float(above), 0.0), max(float(below), 0.0), n_features)

    def limited(self, squares: Array) -> tuple[Array, Array]:
        """Eigenvalues within the caps, and the lengths of rows along their directions, times as much.

        What rounding leaves along other directions of an owner with huge rows is no energy of its rows.
        """
        size = np.abs(squares)
        real = size > rounding_level(self.n_features) * size.max(initial=0.0)
        limited = np.where(real, np.clip(squares, -self.below, self.above), 0.0)
        shrinkage = np.sqrt(np.divide(self.above, size, out=np.ones_like(size), where=size > self.above))
        return limited, np.where(real, shrinkage, 0.0)


def _about_mean(scatter: Array, offset: Array, *, private: bool) -> Array:
    """The scatter about a mean, from that about a center that is this far from it.

    Of rows far from the center, and all of them alike, the difference is rounding, with negative energies.
    """
    found = scatter - np.outer(offset, offset)
    found = (found + found.T) / 2
    if private or np.trace(found) > _MOSTLY_OFFSET * np.trace(scatter):
        return found
    squares, vectors = np.linalg.eigh(found)
    squares[squares < rounding_level(len(found)) * np.trace(scatter)] = 0.0
    return (vectors * squares) @ vectors.T


def _centered(summaries: Sequence[Summary], weights: Array) -> tuple[Array, Array]:
    """The center, and the offsets of the means from it."""
    means = np.array([summary.mean for summary in summaries])
    center = _weighted_median(means, weights)
    return center, means - center


def _joint_basis(capped: Sequence[Array], weights: Array) -> Array:
    """Orthonormal rows that span the owners' rows, or the leading directions of these if they are many."""
    n_features = capped[0].shape[1]
    parts = []
    for rows, weight in zip(capped, weights, strict=True):
        lengths = np.sqrt(weight) * np.linalg.norm(rows, axis=1)
        order = np.flatnonzero(lengths)[::-1]
        unit = rows[order] / np.linalg.norm(rows[order], axis=1, keepdims=True)
        parts.append(
            Subspace.unchecked(
                components=unit,
                singular_values=lengths[order],
                mean=np.zeros(n_features),
                count=1.0,
                total=float(lengths @ lengths),
                centered=False,
            )
        )
    return merge_tree(parts, min(_MAX_BASIS, n_features)).subspace().components


def _weighted_median(values: Array, weights: Array) -> Array:
    """The least of values, shape (k, ...), with half the weight at or below it."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    first = np.argmax(below >= (0.5 - 1e-12) * weights.sum(), axis=0)
    chosen = np.take_along_axis(order, first[None], axis=0)
    median: Array = np.take_along_axis(values, chosen, axis=0)[0]
    return median


class _Distances:
    """Of owners' scatters from weighted means of them.

    Args:
        scatters: shape (k, q, q).
        weights: of the owners, before any is taken off.
        noise: the sampling noise of an owner's scatter.
    """

    def __init__(self, scatters: Array, weights: Array, noise: float) -> None:
        flat = scatters.reshape(len(scatters), -1)
        flat = flat - weights @ flat  # what all have in common would only round
        unit = np.abs(flat).max(initial=0.0) or 1.0  # in any unit; products stay in range
        self._products = (flat / unit) @ (flat / unit).T
        agree = _agree(self._products, weights, noise / unit)
        self._least = np.where(agree, _AGREED, _NOISE) * (noise / unit)

    def __call__(self, weights: Array) -> Array:
        """Distances from a mean, shape (k,); those that tell nothing count as large as sampling noise."""
        along = self._products @ weights
        away = np.sqrt(np.maximum(np.diag(self._products) - 2 * along + weights @ along, 0.0))
        return np.maximum(away, np.maximum(self._least, _NEAR * float(away.max())))


def _agree(products: Array, weights: Array, noise: float) -> Array:
    """Who is in a group, a minority, whose owners are more alike than owners with rows of their own are."""
    squares = np.diag(products)
    apart = -2 * products
    apart += squares
    apart += squares[:, None]
    np.sqrt(np.maximum(apart, 0.0, out=apart), out=apart)
    _, groups = connected_components(sparse.csr_array(apart <= _ALIKE * np.sqrt(2) * noise))
    shares = np.bincount(groups, weights) / weights.sum()
    found: Array = (np.bincount(groups) > 1)[groups] & (shares < 0.5)[groups]
    return found


def _median_weights(distances: _Distances, weights: Array) -> Array:
    """The weights whose mean is the geometric median, by Weiszfeld's iteration."""
    found = weights
    for _ in range(_MEDIAN_ROUNDS):
        before, away = found, distances(found)
        if not away.all():
            return weights
        found = weights / away
        found = found / found.sum()
        if np.abs(found - before).max() <= _SETTLED:
            break
    return found


def _trimmed_weights(distances: _Distances, weights: Array) -> Array:
    """Tukey's biweight of the distances, in units of the median owner's, from the geometric median on."""
    found = _median_weights(distances, weights)
    for _ in range(_TRIM_ROUNDS):
        before, away = found, distances(found)
        unit = _FAR * float(_weighted_median(away, weights))
        if not unit:
            return weights
        found = weights * np.maximum(1 - (away / unit) ** 2, 0.0) ** 2
        found = found / found.sum()
        if np.abs(found - before).max() <= _SETTLED:
            break
    return found
