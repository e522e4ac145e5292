"""Pool: running sums over all children, against which a new summary is tried in constant time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedpca._typing import Array
from fedpca.privacy import Privacy
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate, Release, shared_cost
from fedpca.summaries.merging import check_compatible, check_scales, check_spheres, merge_distinct
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

INTERSECTION = "Aggregator(features='intersection', expected=...)"
"""How to merge children of different features."""
_TINY = np.finfo(np.float64).tiny
_FAR_ABOVE = 10.0  # times its share of rows
# Below this share of what was subtracted, a difference has fewer than ten digits left, and is summed anew.
_MOSTLY_ROUNDING = 1e-6


class Share(NamedTuple):
    """The share of a child in all rows, and in their energy: within the child, and by its mean."""

    rows: float
    energy: float

    @property
    def suspicious(self) -> bool:
        """Whether the energy is far above what so many rows have in the other children."""
        return self.energy > _FAR_ABOVE * self.rows

    def warning(self) -> str:
        """What is suspicious, or ""."""
        if not self.suspicious:
            return ""
        return f"{self.energy:.3g} of the energy, but only {self.rows:.3g} of the rows."


@dataclass
class _Sums:
    """Sums over children that can be added and subtracted; means are about the mean of the first child.

    Energies, `within` children and of their means, `squares`, are those of all features together, shape (1,).
    Where features are yet to be scaled, they are those of each, shape (d,).
    """

    number: int
    named: int
    count: float
    observed: Array  # rows that know each feature
    within: Array
    offset: Array
    squares: Array

    def plus(self, other: "_Sums", sign: int = 1) -> "_Sums":
        return _Sums(
            self.number + sign * other.number,
            self.named + sign * other.named,
            self.count + sign * other.count,
            self.observed + sign * other.observed,
            self.within + sign * other.within,
            self.offset + sign * other.offset,
            self.squares + sign * other.squares,
        )

    def is_mostly_rounding(self, subtracted: "_Sums") -> bool:
        """Whether little is left, of any sum, beside what was subtracted last."""
        return any(
            bool(np.any(left < _MOSTLY_ROUNDING * part))
            for left, part in (
                (self.count, subtracted.count),
                (self.observed, subtracted.observed),
                (np.sum(self.within + self.squares), np.sum(subtracted.within + subtracted.squares)),
            )
        )

    @property
    def mean(self) -> Array:
        return self.offset / np.maximum(self.observed, _TINY)

    @property
    def energies(self) -> Array:
        """Of all rows about their mean, in the shape of `within`."""
        of_mean = _in_shape_of(self.within, self.observed * self.mean**2)
        return np.maximum(self.within, 0.0) + np.maximum(self.squares - of_mean, 0.0)


class Pool:
    """All children together, as far as a new one has to go with them.

    What can go wrong when valid summaries are merged is tried with one stand-in for all other children: a
    summary with their count, mean, energy and names. Streams and ledgers are looked up by their ids. So the
    time of `try_merge` does not depend on the number of children.
    """

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}
        self._streams: dict[str, str] = {}  # the child of every private stream
        self._ledgers: dict[str, dict[str, Release]] = {}  # by child, a release of each that uses a ledger
        self._origin: Array | None = None
        self._names: tuple[str, ...] | None = None
        self._sums: _Sums | None = None

    def __len__(self) -> int:
        return len(self._summaries)

    @property
    def summaries(self) -> Mapping[str, Summary]:
        """Those of all children, by name."""
        return MappingProxyType(self._summaries)

    def set(self, child: str, summary: Summary | None) -> None:
        """Add or replace a child; None removes it."""
        before = self._summaries.pop(child, None)
        if before is not None:
            self._subtract(child, before)
        if summary is None:
            return
        if self._sums is None:
            self._origin, self._names = summary.mean, None
        self._names = self._names or summary.feature_names
        self._summaries[child] = summary
        part = self._part(summary)
        self._sums = part if self._sums is None else self._sums.plus(part)
        for release in _releases(summary):
            if release.stream:
                self._streams[release.stream] = child
            if release.ledger:
                self._ledgers.setdefault(release.ledger, {})[child] = release

    def _subtract(self, child: str, summary: Summary) -> None:
        self._sums = self._without(child, summary)
        if self._sums is not None and not self._sums.named:
            self._names = None
        for release in _releases(summary):
            self._streams.pop(release.stream or "", None)
            users = self._ledgers.get(release.ledger or "", {})
            users.pop(child, None)
            if not users:
                self._ledgers.pop(release.ledger or "", None)

    def _without(self, child: str, summary: Summary) -> _Sums | None:
        """The sums over all other children than this one, whose summary is in them."""
        assert self._sums is not None
        if self._sums.number == 1:
            return None
        part = self._part(summary)
        left = self._sums.plus(part, -1)
        if left.is_mostly_rounding(part):
            parts = [self._part(other) for name, other in self._summaries.items() if name != child]
            left = parts[0]
            for other in parts[1:]:
                left = left.plus(other)
        return left

    def _part(self, summary: Summary) -> _Sums:
        assert self._origin is not None
        observed, offset = _observed(summary), summary.mean - self._origin
        within = _within(summary)
        return _Sums(
            1,
            summary.feature_names is not None,
            summary.count,
            observed,
            within,
            observed * offset,
            _in_shape_of(within, observed * offset**2),
        )

    # --- a new summary ---

    def try_merge(self, child: str, summary: Summary, privacy: Privacy | None) -> None:
        """Raise if a summary does not merge with those of the other children, or cannot be stored."""
        self._check_releases(child, summary, privacy)
        others = self._stand_in(child, summary)
        merged = summary
        if others is not None:
            merged = summary.with_about(scale=None)  # all have the same, and it changes nothing else
            check_compatible([others, merged], INTERSECTION)
            some = next(iter(self._summaries.values()))
            check_scales([some, summary])
            check_spheres([some, summary])
            merged = merge_distinct([others, merged])
        validation.raw_energy(merged.total, merged.count, merged.mean)
        json.dumps(merged.metadata, allow_nan=False)

    def _stand_in(self, child: str, summary: Summary) -> Summary | None:
        """One summary in place of all other children, of the kind of the new one."""
        known = self._summaries.get(child)
        sums = self._sums if known is None else self._without(child, known)
        if sums is None:
            return None
        assert self._origin is not None
        some = next(iter(self._summaries.values()))
        names = self._names if sums.named else None
        observes = sums.observed > 0
        mean = (
            np.where(observes, self._origin + sums.mean, 0.0) if some.centered else np.zeros(some.n_features)
        )
        observed = None if observes.all() else sums.count * observes
        energies, d = sums.energies, some.n_features
        if isinstance(summary, Subspace):
            components, energy = np.zeros((0, d), summary.components.dtype), float(energies.sum())
            return Subspace(
                components, np.zeros(0), mean, sums.count, energy, some.centered, observed, about=About(names)
            )
        certificate = summary.certificate and _NEUTRAL
        if certificate is not None and some.certificate is not None:
            certificate = replace(certificate, clipping=some.certificate.clipping)
        scatter = np.diag(observes * (energies / (d if len(energies) < d else 1)))
        about = About(names, certificate=certificate)
        return Moments(sums.count, mean, scatter, some.centered, observed, about=about)

    def _check_releases(self, child: str, summary: Summary, privacy: Privacy | None) -> None:
        """Refuse a copied stream, and a shared ledger that has spent more than is accepted."""
        for release in _releases(summary):
            owner = self._streams.get(release.stream or "", child)
            if owner != child:
                raise ValueError(
                    f"its private stream {release.stream!r:.80} is that of {owner!r:.80} already: rows and "
                    "noise would count twice. Send a release of its own rows."
                )
            users = self._ledgers.get(release.ledger or "", {})
            others = list(islice((other for name, other in users.items() if name != child), 2))
            if others:  # more than one have passed this check before
                epsilon, delta, _ = shared_cost([*others, release])
                if privacy is not None and not (epsilon <= privacy.epsilon and delta <= privacy.delta):
                    raise ValueError(
                        f"its ledger is that of {next(iter(users))!r:.80}, too, and has spent {epsilon:g} at "
                        f"delta={delta:g}; at most {privacy.epsilon:g} at {privacy.delta:g} is accepted."
                    )

    # --- shares ---

    def share(self, child: str) -> Share:
        """The share of one child, in constant time."""
        assert self._sums is not None
        part, whole = self._part(self._summaries[child]), self._sums.energies
        apart = _in_shape_of(part.within, part.observed * (part.mean - self._sums.mean) ** 2)
        divisor = _divisor(whole, self._sums.observed)
        energy, total = float(np.sum((part.within + apart) / divisor)), float(np.sum(whole / divisor))
        return Share(part.count / self._sums.count, _ratio(energy, max(total, energy)))

    def shares(self) -> Mapping[str, Share]:
        """The shares of all children."""
        if not self._summaries:
            return {}
        summaries = self._summaries.values()
        counts = np.array([summary.count for summary in summaries])
        means = np.array([summary.mean for summary in summaries]) - self._origin
        observed = np.array([_observed(summary) for summary in summaries])
        means -= np.einsum("ij,ij->j", observed, means) / np.maximum(observed.sum(axis=0), _TINY)
        within = np.array([_within(summary) for summary in summaries])
        energies = within + _in_shape_of(within, observed * means**2)
        energies /= _divisor(energies.sum(axis=0), observed.sum(axis=0))
        rows, total = counts / counts.sum(), float(energies.sum())
        return {
            child: Share(float(row), _ratio(float(energy), total))
            for child, row, energy in zip(self._summaries, rows, energies.sum(axis=1), strict=True)
        }


def _within(summary: Summary) -> Array:
    """The energy of rows about their mean: of all features, or of each if they are yet to be scaled."""
    if isinstance(summary, Moments) and isinstance(summary.scale, str):
        return np.maximum(np.diag(summary.scatter), 0.0)
    return np.array([max(summary.total, 0.0)])


def _in_shape_of(energies: Array, of_features: Array) -> Array:
    """Numbers of each feature, shape (..., d); summed, if `energies` are those of all features together."""
    if energies.shape[-1] == of_features.shape[-1]:
        return of_features
    return of_features.sum(axis=-1, keepdims=True)


def _divisor(energies: Array, observed: Array) -> Array:
    """What energies of all rows are divided by: of each feature so that it has an energy of one per row."""
    if len(energies) < len(observed):
        return np.ones_like(energies)
    return np.where(energies > 0, energies / np.maximum(observed, _TINY), 1.0)


_NEUTRAL = Certificate(private=True, epsilon=0.0, delta=0.0, mu=0.0)


def _observed(summary: Summary) -> Array:
    """The number of rows that know each feature."""
    return np.full(summary.n_features, summary.count) if summary.observed is None else summary.observed


def _releases(summary: Summary) -> tuple[Release, ...]:
    return () if summary.certificate is None else summary.certificate.all_releases()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
