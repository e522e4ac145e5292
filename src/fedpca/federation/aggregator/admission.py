"""Which summaries an aggregator accepts: private enough, and no larger than clipped rows and noise can be."""

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.backend import ops
from fedpca.privacy import Privacy
from fedpca.privacy.mechanisms import MECHANISMS, calibrate
from fedpca.privacy.mechanisms.base import SUM_WEIGHT
from fedpca.summaries import validation
from fedpca.summaries.certificate import CORRECTED_SCALE, PRIVATE_SCALE, PUBLIC_SCALE, Certificate, noise_edge
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

# So that a billion children fit, and weights of features that few rows know.
_MAX_ENERGY = 1e-30 * ops.max_energy()
_MOST_NOISE = 10.0  # times that of the settings: stronger promises than required have more noise
# A Gaussian vector or matrix exceeds its expected norm by this many standard deviations of an entry (of a
# symmetric matrix: off the diagonal) with a probability below 1e-12.
_TAIL_VECTOR = 7.5
_TAIL_MATRIX = 10.5
_FEW_FEATURES = 10  # of fewer, the trace can exceed that of the rows by as many edges of the noise
_PAIRS = "none: differences of pairs"
_CENTER_KINDS = {"none: about the origin", "public", "private", _PAIRS}
_SCALE_KINDS = {PUBLIC_SCALE, PRIVATE_SCALE, CORRECTED_SCALE}
_SCALING_ROUNDING = 1e-3  # of float32 rows
_CLIPPING_KINDS = ("ball", "sphere", "ball, differences of pairs", "sphere, differences of pairs")


@dataclass(frozen=True)
class Limits:
    """What a child may claim.

    Attributes:
        least_rows: the fewest rows of a child, and of a group of them that know the same features.
        max_rows: the most rows.
        max_rms: the largest root-mean-square length of rows about the origin: divided by their scale, if that
            is numbers, and else as they are.

    >>> Limits(least_rows=20, max_rms=100.0)
    Limits(least_rows=20, max_rows=1000000000000000.0, max_rms=100.0)
    """

    least_rows: int = 0
    max_rows: float = 1e15
    max_rms: float = inf

    def __post_init__(self) -> None:
        validation.integer(self.least_rows, "least_rows", at_least=0)
        for name in ("max_rows", "max_rms"):
            if not validation.is_real(value := getattr(self, name)) or not value > 0:
                raise ValueError(f"{name} must be a number above 0, got {name}={value!r}.")

    def check(self, summary: Summary) -> None:
        """Reject a summary of too few, too many or too long rows, or too large to be merged with others."""
        if not 0 < summary.count <= self.max_rows:
            raise ValueError(f"count must be above 0 and at most {self.max_rows:g}, got {summary.count:g}.")
        energy = max(summary.total, 0.0) + summary.count * float(summary.mean @ summary.mean)
        length = sqrt(energy / summary.count)
        if length > self.max_rms:
            raise ValueError(
                f"the root-mean-square length of its rows must be at most {self.max_rms:g}, got {length:.4g}."
            )
        if energy * summary.n_features > _MAX_ENERGY:
            raise ValueError(
                f"its energy {energy:.3g} is too large to be merged with others; rescale the rows."
            )
        check_least_rows(summary, self.least_rows)


def check_sender(child: str, known: str, sender: str) -> None:
    """Reject a name that belongs to another sender; an unknown one, "", owns none."""
    if known and known != sender:
        found = f"sender {sender!r:.80}" if sender else "an unknown sender"
        raise ValueError(
            f"the name belongs to sender {known!r:.80}, and this is from {found}; give each client a name of "
            f"its own, or, if this one has a new key, withdraw({child!r:.80}) first."
        )


def constructed_again(summary: Summary) -> Summary:
    """The same summary, after all its checks."""
    if summary.parts:
        return type(summary).from_file_contents(summary.arrays, summary.metadata)
    return replace(summary)


def check_least_rows(summary: Summary, least_rows: int) -> None:
    """Reject a summary of fewer rows, or in which fewer rows alone know the same features."""
    fewest = min(leaf.count for leaf in summary.leaves)
    if fewest < least_rows:
        alone = " that alone know the same features" if summary.parts else ""
        raise ValueError(
            f"at least least_rows={least_rows} rows must be behind a summary, got {fewest:g}{alone}; wait "
            "for more."
        )


def check_scaling(summary: Summary) -> None:
    """Reject moments whose scaling claims more than their rows can have: it is not limited by anything else.

    The entries that were observed are entries of the rows, and have no more energy than all of them.
    """
    if not isinstance(summary, Moments) or not isinstance(summary.scale, str):
        return
    scaling = summary.scaling_of_rows()
    scaling.with_names(summary.feature_names).scale(summary.scale)  # raises if the rule does not fit
    if summary.scaling is None:
        return
    known, energy = np.zeros(summary.n_features), np.zeros(summary.n_features)
    for leaf in summary.leaves:
        known += leaf.count * leaf.known
        energy += np.diag(leaf.scatter) + leaf.count * leaf.mean**2
    claimed = scaling.observed * (scaling.variance + scaling.mean**2)
    slack = 1 + _SCALING_ROUNDING
    if (scaling.observed > slack * known).any() or (claimed > slack * energy).any():
        raise ValueError(
            "its scaling has more observed entries, or larger ones, than its rows; fit the rows again."
        )


def check_private(summary: Summary, privacy: Privacy) -> None:
    """Reject a summary that is less private than required, or larger than clipped rows and noise can be."""
    certificate = summary.certificate
    if certificate is None:
        raise ValueError("the summary has no privacy certificate; fit with privacy=Privacy(...).")
    _check_promise(summary, certificate, privacy)
    if not certificate.merged <= summary.count:
        raise ValueError(f"{summary.count:g} rows cannot be in {certificate.merged} releases.")
    _check_noise(summary, certificate, privacy)
    reach = _reach(summary, certificate, privacy)
    bound, merged = _bound(certificate, privacy), certificate.merged
    # Rows lie within the bound about centers that may differ between the releases of a merge.
    rows = summary.count * (bound**2 + (reach**2 if merged > 1 and summary.centered else 0.0))
    if isinstance(summary, Subspace):
        n_features = summary.n_features
        # Directions keep the noise that is positive: at most the edge, in each of them.
        edge = calibrate(privacy, pairs=True).edge(n_features) * _strength(certificate, privacy)
        noise = _unit(certificate, privacy) * merged * max(n_features, _FEW_FEATURES) * edge
    else:
        extra = _center_noise(summary, certificate, privacy)
        # The trace of noise whose edge is 2 s sqrt(d) has a standard deviation of s sqrt(2 d), the edge over
        # sqrt(2): 5 edges are 7 of them, exceeded with a probability of 1e-12.
        noise = 5 * noise_edge(certificate) + extra
    if summary.total > rows + noise:
        raise ValueError(
            f"its total {summary.total:.4g} is more than {summary.count:g} rows within bound={bound:g} and "
            f"noise can have, {rows + noise:.4g}."
        )
    if not isinstance(summary, Subspace):
        _check_eigenvalues(summary.scatter, rows, certificate, extra)


def _check_promise(summary: Summary, certificate: Certificate, privacy: Privacy) -> None:
    if not certificate.private:
        raise ValueError("its noise came from a seed, so it is not private; fit without a seed.")
    if certificate.warnings:
        raise ValueError(f"its promise is weakened: {certificate.warnings[0]:.200}; release it again.")
    for name in ("epsilon", "delta"):
        stated, limit = getattr(certificate, name), getattr(privacy, name)
        if not stated <= limit:
            raise ValueError(f"its {name} is {stated:g}; at most {limit:g} is accepted.")
    if certificate.adjacency != privacy.adjacency:
        raise ValueError(f"its adjacency is {certificate.adjacency!r:.80}, not {privacy.adjacency!r}.")
    if unknown := sorted(set(certificate.mechanism.split(" | ")) - set(MECHANISMS)):
        raise ValueError(f"its mechanism is {unknown[0]!r:.80}; known are {', '.join(MECHANISMS)}.")
    if unknown := sorted(set(certificate.center.split(" | ")) - _CENTER_KINDS):
        raise ValueError(f"its center is {unknown[0]!r:.80}; known are {', '.join(sorted(_CENTER_KINDS))}.")
    if (certificate.scale is None) != (summary.scale is None):
        raise ValueError(
            "its certificate must state where its scale came from, and only if it has one, got "
            f"{certificate.scale!r:.80}; release it again."
        )
    if certificate.scale is not None and certificate.scale not in _SCALE_KINDS:
        raise ValueError(
            f"its scale is {certificate.scale!r:.80}; known are {', '.join(sorted(_SCALE_KINDS))}."
        )
    if certificate.clipping not in _CLIPPING_KINDS:
        raise ValueError(
            f"its clipping is {certificate.clipping!r:.80}; known are {', '.join(_CLIPPING_KINDS)}."
        )
    if isinstance(privacy.bound, str):
        return
    if not certificate.clipping.startswith("ball"):
        raise ValueError(
            "its rows were scaled to length one, not clipped to a bound; at most "
            f"bound={privacy.bound:g} is accepted."
        )
    if (bound := _largest_bound(certificate)) > privacy.bound * (1 + 1e-9):
        raise ValueError(f"its bound is {bound:g}; at most {privacy.bound:g} is accepted.")


def _largest_bound(certificate: Certificate) -> float:
    bounds = certificate.bound if isinstance(certificate.bound, tuple) else (certificate.bound or inf,)
    return max(bounds, default=inf)


def _bound(certificate: Certificate, privacy: Privacy) -> float:
    """The length of clipped rows: as required or, where anything is accepted, as stated."""
    if not isinstance(privacy.bound, str):
        return privacy.bound
    return 1.0 if (certificate.clipping or "").startswith("sphere") else _largest_bound(certificate)


def _unit(certificate: Certificate, privacy: Privacy) -> float:
    """The scatter of rows in units of that of their points."""
    of_pairs = (certificate.clipping or "").endswith("pairs")
    return _bound(certificate, privacy) ** 2 * (2.0 if of_pairs else 1.0)


def _check_noise(summary: Summary, certificate: Certificate, privacy: Privacy) -> None:
    """Reject a release that states more noise than the settings explain: it could hide anything."""
    if certificate.noise_edge is None:
        if not isinstance(summary, Subspace):
            raise ValueError("private moments must state the edge of their noise; release them again.")
        return
    n_features = summary.n_features
    edge = calibrate(privacy, pairs=True).edge(n_features) * sqrt(certificate.merged)
    edge *= _unit(certificate, privacy)
    if certificate.noise_edge > _MOST_NOISE * edge:
        raise ValueError(
            f"the edge of its noise is {certificate.noise_edge:.4g}, more than {_MOST_NOISE:g} times what "
            f"epsilon={privacy.epsilon:g} needs, {edge:.4g}; release with a larger epsilon or fewer releases."
        )


def _strength(certificate: Certificate, privacy: Privacy) -> float:
    """How many times more noise a stronger promise than required explains."""
    return min(max(privacy.epsilon / max(certificate.epsilon, 1e-300), 1.0), _MOST_NOISE)


def _reach(summary: Summary, certificate: Certificate, privacy: Privacy) -> float:
    """How far from the origin the mean can lie; rejects one that is farther from a known center.

    A private center may be anywhere, and so may a public one that the settings do not have.
    """
    kinds = set(certificate.center.split(" | "))
    if kinds == {_PAIRS} and summary.mean.any():
        raise ValueError("its mean must be zero: differences of pairs of rows show none.")
    if not summary.centered or kinds == {_PAIRS}:
        return 0.0
    public = privacy.public_center(summary.n_features)
    if public is None or kinds != {"public"}:
        return inf
    bound = _bound(certificate, privacy)
    distance = float(np.linalg.norm(summary.mean - public))
    if distance > bound:
        raise ValueError(f"its mean is {distance:.4g} from the public center; at most bound={bound:g}.")
    return float(np.linalg.norm(public)) + bound


def _center_noise(summary: Summary, certificate: Certificate, privacy: Privacy) -> float:
    """By how much the noisy mean that is subtracted from a scatter can change an eigenvalue."""
    if "private" not in certificate.center:
        return 0.0
    root = sqrt(summary.n_features)
    bound = _bound(certificate, privacy)
    sigma = noise_edge(certificate) / (sqrt(2.0) * root) / bound  # of a sum of rows, times the bound
    length = sigma / SUM_WEIGHT * (root + _TAIL_VECTOR)
    releases = certificate.all_releases()
    rows = 1 / summary.count
    if len(releases) > 1:  # a part of the rows went into the center
        rows = sum(4 / max(release.records or 1, 1) for release in releases) / len(releases)
    return 2 * sqrt(len(releases)) * bound * length + length**2 * rows


def _check_eigenvalues(scatter: Array, rows: float, certificate: Certificate, extra: float) -> None:
    """Reject eigenvalues below minus the noise, or above what the rows can have and noise."""
    noise = noise_edge(certificate) * (1 + _TAIL_MATRIX / (2 * sqrt(len(scatter)))) + extra
    low, high = np.linalg.eigvalsh(scatter)[[0, -1]]
    if low < -noise or high > rows + noise:
        raise ValueError(
            f"its scatter has eigenvalues from {low:.4g} to {high:.4g}; those of clipped rows and "
            f"noise lie from {-noise:.4g} to {rows + noise:.4g}."
        )
