"""Patchworks: rows that know different features, kept apart so that they merge exactly in any order.

A feature is unknown to rows if no value of it had been observed when they came: a sensor that starts late,
a site that does not measure it. Unknown is not zero. Such rows say nothing about that feature's mean, nor
about its covariance with any other. With parts p of n_p rows, means m_p and scatters S_p, each over the
features it knows, and with sums over the parts that know feature j, or both j and k,

    mean_j = sum n_p m_pj / sum n_p,
    cov_jk = sum (S_p,jk + n_p (m_pj - mean_j)(m_pk - mean_k)) / sum n_p.

Covariances of different rows may not be those of any one table: where the matrix has negative eigenvalues
these are set to zero, and the variances restored.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import ClassVar, Self, TypeVar

import numpy as np

from fedpca._typing import JSON, AnyArray, Array, DTypeLike
from fedpca.backend import ops
from fedpca.summaries import validation
from fedpca.summaries.about import NOTHING, About, with_prefix
from fedpca.summaries.algebra import pooled, rounding_floor
from fedpca.summaries.base import BaseSummary
from fedpca.summaries.feature_names import feature_labels
from fedpca.summaries.linalg import leading_singular_pairs, rounding_level, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.pooling import combined, pool
from fedpca.summaries.rank import part_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary, all_moments

_S = TypeVar("_S", bound=BaseSummary)

_MAX_WEIGHT = 1e15  # of a feature that few rows know: a quarter of 1 / eps
_MAX_CLASSES = 256  # of features known to the same parts
_MAX_PAIRED = 2048  # size of the eigenproblem of all classes together: 1.2 s on a core
MAX_PARTS = 16  # more sets of known features than this are not kept apart


class Patchwork(BaseSummary):
    """A summary of `parts`, no two of which know the same features; what merges is these.

    What it shows, such as a mean, is that of all rows that know a feature; `observed` counts them.
    """

    shown: ClassVar[type[BaseSummary]]  # what a part is, and what the whole looks like

    @abstractmethod
    def of(self, parts: Sequence[Summary], about: About | None = None) -> Self:
        """A patchwork like this one of other parts."""

    def without_parts(self) -> Self:
        observed = None if self.known.all() else np.where(self.known, self.count, 0.0)
        values = {field.name: getattr(self, field.name) for field in fields(self.shown)}  # type: ignore[arg-type]
        return self.shown(**values | {"observed": observed})  # type: ignore[return-value]

    def scaled(self, factor: float) -> Self:
        return self.of([part.scaled(factor) for part in self.parts], self.about.weighted(factor**2))

    @property
    def metadata(self) -> JSON:
        facts = {name: fact for name, fact in self.about.facts.items() if name != "certificate"}
        return facts | {"parts": [part.metadata for part in self.parts]}

    @property
    def arrays(self) -> dict[str, Array]:
        of_parts = (
            (f"{i}.{name}", array) for i, part in enumerate(self.parts) for name, array in part.arrays.items()
        )
        return self.about.arrays | dict(of_parts)

    @classmethod
    def _of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        found = metadata["parts"]
        if not isinstance(found, list) or not all(isinstance(part, dict) for part in found):
            raise TypeError("parts must be a list of JSON objects.")
        if any("parts" in part for part in found):
            raise ValueError("parts must not have parts of their own.")
        parts = [
            cls.shown.from_file_contents(with_prefix(arrays, f"{i}."), part) for i, part in enumerate(found)
        ]
        return cls._of_facts(parts, About.of_contents(arrays, {"certificate": None} | metadata), metadata)

    @classmethod
    @abstractmethod
    def _of_facts(cls, parts: Sequence[BaseSummary], about: About, metadata: JSON) -> Self:
        """The patchwork in a model file."""


class MomentsPatchwork(Patchwork, Moments):
    """The moments of rows that know different features.

    >>> whole = Moments.from_rows([[1.0, 300.0], [3.0, 302.0]])
    >>> narrow = Moments(2, [7.0, 0.0], [[2.0, 0.0], [0.0, 0.0]], observed=[2, 0])
    >>> pooled = MomentsPatchwork([whole, narrow])
    >>> pooled.mean, pooled.observed
    (array([  4.5, 301. ]), array([4., 2.]))
    """

    shown = Moments

    def __init__(self, parts: Sequence[Moments], about: About = NOTHING) -> None:
        parts = ordered(parts)
        if any(part.certificate for part in parts):
            raise ValueError("private moments know every feature: they are no parts.")
        whole = _Pooled.of(parts)
        scatter = whole.offsets.T @ whole.offsets
        for part in parts:
            scatter += part.scatter
        self._freeze(
            {
                "count": whole.count,
                "mean": whole.mean,
                "scatter": whole.covariance(scatter),
                "centered": parts[0].centered,
                "observed": whole.observed,
                "parts": parts,
            }
        )
        self._freeze({"about": self._checked_about(about)})

    def of(self, parts: Sequence[Summary], about: About | None = None) -> Self:
        return type(self)(parts, self.about if about is None else about)  # type: ignore[arg-type]

    @classmethod
    def _of_facts(cls, parts: Sequence[BaseSummary], about: About, metadata: JSON) -> Self:
        return cls(parts, about)  # type: ignore[arg-type]

    def divided(self, divisor: Array) -> Self:
        about = replace(self.about, scale=None, scaling=None)
        return self.of([part.divided(divisor) for part in self.parts], about)

    def without_scatter_of(self, which: AnyArray) -> Self:
        return self.of([part.without_scatter_of(which) for part in self.parts]) if which.any() else self

    def _leading(self, rank: int | None) -> Subspace:
        width = None if rank is None else part_rank(rank, self.n_features)
        return SubspacePatchwork([part.subspace(width) for part in self.parts], rank, self.about)


class SubspacePatchwork(Patchwork, Subspace):
    """The leading directions of rows that know different features, at most `rank` of them."""

    shown = Subspace

    def __init__(self, parts: Sequence[Subspace], rank: int | None = None, about: About = NOTHING) -> None:
        parts = ordered(parts)
        if rank is not None:
            rank = validation.rank(rank, parts[0].n_features)
        whole = _Pooled.of(parts)
        rows = np.concatenate(
            [*(part.singular_values[:, None] * part.components for part in parts), whole.offsets]
        )
        weights = whole.feature_weights()
        total = float(weights @ np.sum(rows**2, axis=0))
        # What truncation lost is taken to be spread evenly over the features that a part knows.
        total += sum(part.discarded * float(weights[part.known].mean()) for part in parts if part.discarded)
        dtype = np.result_type(*(part.components.dtype for part in parts))
        floor = rounding_floor(total, whole.count, whole.mean, dtype)
        components, singular_values = leading_singular_pairs(whole.covariance_rows(rows), rank, floor)
        shown = Subspace.unchecked(
            components=with_fixed_signs(components).astype(dtype, copy=False),
            singular_values=singular_values,
            mean=whole.mean,
            count=whole.count,
            total=total,
            centered=parts[0].centered,
            observed=whole.observed,
        )
        self._freeze(vars(shown) | {"parts": parts})
        certificate = combined(parts, summed=False)
        self._freeze({"about": self._checked_about(replace(about, certificate=certificate))})

    def of(self, parts: Sequence[Summary], about: About | None = None) -> Self:
        return type(self)(parts, self.rank or None, self.about if about is None else about)  # type: ignore[arg-type]

    @classmethod
    def _of_facts(cls, parts: Sequence[BaseSummary], about: About, metadata: JSON) -> Self:
        return cls(parts, metadata["rank"], about)  # type: ignore[arg-type]

    @property
    def metadata(self) -> JSON:
        return super().metadata | {"rank": self.rank or 1}

    def truncate(self, rank: int) -> Self:
        width = part_rank(validation.rank(rank, self.n_features), self.n_features)
        return type(self)([part.truncate(width) for part in self.parts], rank, self.about)

    def astype(self, dtype: DTypeLike) -> Self:
        return self.of([part.astype(dtype) for part in self.parts])


PATCHED: Mapping[str, type[Patchwork]] = {"moments": MomentsPatchwork, "subspace": SubspacePatchwork}
"""The class of patchworks of each kind of summary in model files."""


# --- pooling ---


@dataclass(frozen=True, slots=True)
class _Pooled:
    """What the means of several parts give.

    Attributes:
        count: number of all rows.
        observed: rows that know each feature, shape (d,).
        mean: of each feature over those, shape (d,).
        offsets: sqrt(n_p) (m_p - mean), zero where unknown, shape (p, d).
        known: which part knows which feature, 0.0 or 1.0, shape (p, d).
        counts: rows of each part, shape (p,).
    """

    count: float
    observed: Array
    mean: Array
    offsets: Array
    known: Array
    counts: Array

    @classmethod
    def of(cls, parts: Sequence[BaseSummary]) -> "_Pooled":
        counts = np.array([part.count for part in parts])
        known = np.array([part.known for part in parts], dtype=np.float64)
        observed, mean, offsets = pooled(counts[:, None] * known, np.array([part.mean for part in parts]))
        return cls(float(counts.sum()), observed, mean, offsets, known, counts)

    def feature_weights(self) -> Array:
        """All rows per row that knows a feature, shape (d,); 0 for a feature that none knows."""
        return _ratio(self.count, self.observed)

    def covariance(self, scatter: Array) -> Array:
        """The scatter of all rows, if all knew all features, shape (d, d): `count` times the covariances.

        Args:
            scatter: the sum of the parts' scatters and of the outer products of `offsets`.
        """
        scatter = scatter * self._pair_weights(self.known)
        return _nearest_scatter(scatter)

    def covariance_rows(self, rows: Array) -> Array:
        """Rows, shape (k, d), whose Gram matrix is `covariance` of that of `rows`.

        Weights are the same for all features known to the same parts, so the problem is one of a few
        directions per such class of features. With very many classes only the leading directions have the
        weights of pairs; the others have those of single features, which make covariances too small.
        """
        columns, classes = np.unique(self.known, axis=1, return_inverse=True)
        n_classes = columns.shape[1]
        n_paired = _MAX_PAIRED // n_classes if n_classes <= _MAX_CLASSES else 0
        components, singular_values = leading_singular_pairs(rows)
        rows = singular_values[:, None] * components
        leading = self._paired_rows(rows[:n_paired], columns, classes.reshape(-1))
        return np.concatenate([leading, rows[n_paired:] * np.sqrt(self.feature_weights())])

    def _paired_rows(self, rows: Array, columns: Array, classes: AnyArray) -> Array:
        """`covariance_rows` with the weights of pairs; `columns` of `known`, one per class of features."""
        if not len(rows):
            return rows
        weights = self._pair_weights(columns)
        members = [np.flatnonzero(classes == c) for c in range(len(weights))]
        bases, triangles = zip(*(np.linalg.qr(rows[:, own].T) for own in members), strict=True)
        blocks = [
            [weight * (one @ other.T) for weight, other in zip(row, triangles, strict=True)]
            for row, one in zip(weights, triangles, strict=True)
        ]
        squares, vectors = np.linalg.eigh(np.block(blocks))
        factors = np.sqrt(np.maximum(squares, 0.0)) * vectors
        result = np.zeros((len(squares), rows.shape[1]))
        stop = 0
        for own, basis in zip(members, bases, strict=True):
            start, stop = stop, stop + basis.shape[1]
            result[:, own] = (basis @ factors[start:stop]).T
        wanted = self.feature_weights() * np.sum(rows**2, axis=0)
        return result * np.sqrt(_ratio(wanted, np.sum(result**2, axis=0)))

    def _pair_weights(self, known: Array) -> Array:
        """All rows per row that knows both features, 0 if none does; `known` has shape (p, features)."""
        return _ratio(self.count, (known * self.counts[:, None]).T @ known)


def _ratio(numerator: Array | float, denominator: Array) -> Array:
    """Their ratio, limited; 0 where the denominator is."""
    with np.errstate(over="ignore"):
        ratio = np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)
    return np.minimum(ratio, _MAX_WEIGHT)


def _nearest_scatter(matrix: Array) -> Array:
    """The matrix without its negative eigenvalues, its diagonal as it was."""
    squares, vectors = np.linalg.eigh(matrix)
    if squares[0] >= -rounding_level(len(matrix)) * squares[-1]:
        return matrix
    positive = (vectors * np.maximum(squares, 0.0)) @ vectors.T
    scale = np.sqrt(_ratio(np.maximum(np.diag(matrix), 0.0), np.diag(positive)))
    return scale[:, None] * positive * scale


def ordered(parts: Iterable[_S]) -> tuple[_S, ...]:
    """Checked parts in an order of their own, whatever the one they come in, without names."""
    parts = sorted(parts, key=pattern)
    if not 2 <= len(parts) <= MAX_PARTS:
        raise ValueError(f"parts must be 2 to {MAX_PARTS}, got {len(parts)}.")
    if len({pattern(part) for part in parts}) < len(parts):
        raise ValueError("parts must not know the same features; merge those that do.")
    if len({(part.n_features, part.centered) for part in parts}) > 1 or any(part.parts for part in parts):
        raise ValueError("parts must have the same features, be centered alike, and have no parts.")
    if not all(part.count for part in parts):
        raise ValueError("parts must have rows.")
    for part in parts:  # times their weights, energies must not overflow
        energy = part.total + part.count * float(part.mean @ part.mean)  # type: ignore[attr-defined]
        validation.raw_energy(_MAX_WEIGHT * part.n_features * energy, 0.0, part.mean)
    return tuple(part.with_about(names=None) if part.feature_names else part for part in parts)


def pattern(part: BaseSummary) -> bytes:
    """Which features a part knows, as a key."""
    return part.known.tobytes()


# --- merging ---


def merge_patches(summaries: Sequence[Summary], rank: int | None, about: About) -> Summary:
    """Merge what knows the same features; if that is not all, what remains are the parts of the result."""
    parts = merge_leaves(summaries, rank)
    if len(parts) == 1:
        merged = parts[0].changed(about=about)
    elif all_moments(parts) and not any(part.certificate for part in parts):
        merged = MomentsPatchwork(parts, about)  # type: ignore[arg-type]
    else:
        return SubspacePatchwork([part.subspace() for part in parts], rank, about)
    return merged if rank is None else merged.subspace(rank)


def merge_leaves(
    summaries: Sequence[Summary], rank: int | None = None, known_beside: AnyArray | bool = False
) -> list[Summary]:
    """One summary for each set of known features, at most `MAX_PARTS`.

    `rank` is that of the whole; without it nothing is truncated. There is a warning of features that none
    of the result knows any more, but for those that are `known_beside` it.
    """
    leaves = [leaf for summary in summaries for leaf in summary.leaves if leaf.count]
    parts = every = _merge_by_pattern(leaves or list(summaries[:1]), rank)
    while len(parts) > MAX_PARTS:
        parts = _merge_by_pattern(_with_one_pattern_fewer(parts), rank)
    if parts is not every:
        names = next((summary.feature_names for summary in summaries if summary.feature_names), None)
        _warn_of_lost_features(known_to_any(every) & ~(known_to_any(parts) | known_beside), names)
    return parts


def known_to_any(summaries: Iterable[Summary]) -> AnyArray:
    """Which features any of the summaries knows, shape (d,), bool."""
    known: AnyArray = np.logical_or.reduce([summary.known for summary in summaries])
    return known


def _warn_of_lost_features(lost: AnyArray, names: tuple[str, ...] | None) -> None:
    if lost.any():
        warnings.warn(
            f"more than {MAX_PARTS} different sets of known features are not kept apart: the result knows "
            f"nothing about {feature_labels(lost, names)}. Leave out what few owners know.",
            stacklevel=2,
        )


def _merge_by_pattern(leaves: Sequence[Summary], rank: int | None) -> list[Summary]:
    groups: dict[bytes, list[Summary]] = {}
    for leaf in leaves:
        groups.setdefault(pattern(leaf), []).append(leaf)
    width = None if rank is None else part_rank(rank, leaves[0].n_features)
    return [
        pool(group, width, About(certificate=combined(group, summed=all_moments(group))))
        for group in groups.values()
    ]


def _with_one_pattern_fewer(parts: Sequence[Summary]) -> list[Summary]:
    """The parts, two of them restricted to the features that both know.

    Of all pairs the one that forgets the fewest entries, and if possible no feature altogether.
    """
    known = np.array([part.known for part in parts])

    def loss(pair: tuple[int, int]) -> tuple[bool, float, list[bytes]]:
        both, others = known[[*pair]].all(axis=0), np.delete(known, pair, axis=0).any(axis=0)
        lost = known[[*pair]] & ~both
        entries = sum(parts[i].count * np.count_nonzero(own) for i, own in zip(pair, lost, strict=True))
        return bool((lost & ~others).any()), entries, sorted(pattern(parts[i]) for i in pair)

    pair = min(combinations(range(len(parts)), 2), key=loss)
    both: AnyArray = known[pair[0]] & known[pair[1]]
    return [restricted(part, both) if i in pair else part for i, part in enumerate(parts)]


def restricted(part: Summary, known: AnyArray) -> Summary:
    """The part without what it knows of other features than these."""
    observed, mean = part.count * known, part.mean * known
    if isinstance(part, Moments):
        return replace(part, mean=mean, scatter=part.scatter * np.outer(known, known), observed=observed)
    rows = part.singular_values[:, None] * part.components * known
    components, singular_values = leading_singular_pairs(rows)
    return Subspace.unchecked(
        components=components.astype(part.components.dtype, copy=False),
        singular_values=singular_values,
        mean=mean,
        count=part.count,
        total=ops.energy(rows) + part.discarded * np.count_nonzero(known) / np.count_nonzero(part.known),
        centered=part.centered,
        observed=observed,
    )
