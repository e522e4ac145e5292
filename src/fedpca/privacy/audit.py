"""audit: try to catch a private configuration breaking its promise, by telling two worlds apart.

Two data sets differ in one row. The trust boundary, rows in and release out, runs thousands of times on each,
and a test tries to tell from the releases which it was. Whoever can do so better than the promise allows has
found a bug. Not finding one is no proof.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt

import numpy as np
from scipy.special import betaincinv, ndtri

from fedpca._typing import Array
from fedpca.privacy.mechanisms.registry import mechanism_class
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.settings import Privacy
from fedpca.privacy.tracker import PrivateTracker
from fedpca.summaries import validation

_ROWS = 8
_OUTLIER = 8.0


@dataclass(frozen=True)
class Finding:
    """What one pair of worlds showed: lower bounds that hold with the audit's confidence.

    Attributes:
        pair: which.
        epsilon: no (smaller epsilon, delta) can be true.
        mu: no smaller mu can be true.
    """

    pair: str
    epsilon: float
    mu: float


@dataclass(frozen=True, repr=False)
class Audit:
    """The outcome of an audit.

    Attributes:
        privacy: the settings audited, at the epsilon and delta of the audit.
        mu: what their certificate promises.
        passed: whether nothing was found beyond the promise.
        findings: one for each pair of worlds.
        runs: how often each world ran.
    """

    privacy: Privacy
    mu: float
    passed: bool
    findings: tuple[Finding, ...]
    runs: int

    def __repr__(self) -> str:
        worst = max(self.findings, key=lambda finding: finding.mu)
        verdict = "nothing found beyond the promise" if self.passed else "THE PROMISE IS BROKEN"
        return (
            f"Audit({'passed' if self.passed else 'FAILED'}: {verdict}; promised mu={self.mu:.3g}, shown "
            f"at least mu={worst.mu:.3g} ({worst.pair}), in {self.runs} runs per data set)"
        )


def audit(
    privacy: Privacy,
    *,
    epsilon: float = 8.0,
    delta: float = 1e-5,
    n_features: int = 3,
    runs: int = 4000,
    confidence: float = 0.999,
) -> Audit:
    """Run a private configuration on pairs of worlds that differ in one row, and try to tell them apart.

    The settings are those given but for epsilon, delta, the ledger and the length of a public center: few
    features and a large epsilon are where a test sees most. At (8, 1e-5) and 4000 runs, noise 1.4 times too
    small is found for certain, 1.2 times too small seven times in ten; at (1, 1e-5) only gross errors are.

    Args:
        privacy: the settings.
        epsilon, delta: to audit at; the code that runs is the same.
        n_features: at least 2.
        runs: of each world; a world that is one of several pairs runs once for all of them.
        confidence: that a failure is real.

    >>> audit(Privacy(epsilon=1.0, delta=1e-6, bound=5.0), runs=200).passed
    True
    """
    if not isinstance(privacy, Privacy):
        raise TypeError(f"audit needs a Privacy, got {privacy!r}.")
    validation.integer(n_features, "n_features", at_least=2)
    validation.integer(runs, "runs", at_least=100)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got confidence={confidence!r}.")
    settings = replace(
        privacy,
        epsilon=epsilon,
        delta=delta,
        ledger=None,
        insecure_seed_for_tests=None,
        center=(privacy.center[0],) * n_features if isinstance(privacy.center, tuple) else privacy.center,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of thousands of fits, on rows that are nearly all zero
        return _audit(settings, n_features, runs, confidence)


def _audit(settings: Privacy, n_features: int, runs: int, confidence: float) -> Audit:
    pairs = list(_pairs(settings, n_features))
    scores: dict[tuple[_World, str], Array] = {}
    for world in {world for pair in pairs for world in pair.worlds}:
        its_pairs = [pair for pair in pairs if world in pair.worlds]
        rows = world.rows(settings)
        of_runs = np.array([_scores(settings, rows, world.at_once, its_pairs) for _ in range(runs)])
        scores |= {(world, pair.name): of_runs[:, i] for i, pair in enumerate(its_pairs)}
    alpha = (1 - confidence) / len(pairs) / 2  # errors at most add up, also of pairs that share a world
    findings = []
    for pair in pairs:
        ours, theirs = (scores[world, pair.name] for world in pair.worlds)
        findings.append(Finding(pair.name, *_distinguish(ours, theirs, settings.delta, alpha)))
    mu = _promised(settings, n_features)
    passed = all(finding.epsilon <= settings.epsilon and finding.mu <= mu for finding in findings)
    return Audit(settings, mu, passed, tuple(findings), runs)


# --- worlds ---


@dataclass(frozen=True)
class _World:
    """Rows that are zero but for one.

    Attributes:
        row: that one, in units of the bound.
        index: which it is.
        at_once: whether all rows are at hand for the private centre, as in `fit`, and not a stream.
    """

    row: tuple[float, ...]
    index: int
    at_once: bool = False

    def rows(self, privacy: Privacy) -> Array:
        """As the privacy settings expect them, shape (n, d)."""
        n_features = len(self.row)
        rows = np.zeros((_rows_before(privacy, n_features) + _ROWS, n_features))
        rows[self.index] = self.row
        center = privacy.public_center(n_features)
        return privacy.bound * rows + (0.0 if center is None else center)


@dataclass(frozen=True)
class _Pair:
    """Two worlds that differ in one row, and where to look for it.

    Attributes:
        scatter: direction of the released scatter in which the row shows, shape (d, d).
        mean: direction of the released mean, shape (d,).
        sums: direction of the sums for a private center, shape (d,), which other owners see.
        reports: weights of what several reports have shown.
    """

    name: str
    worlds: tuple[_World, _World]
    scatter: Array
    mean: Array
    sums: Array
    reports: Array


def _rows_before(privacy: Privacy, n_features: int) -> int:
    """How many rows of a stream go into a private centre before any counts."""
    return 0


def _pairs(privacy: Privacy, n_features: int) -> Iterator[_Pair]:
    unit = np.eye(n_features)
    nothing = 0.0 * unit[0]
    blank = privacy.adjacency == "zero-out"
    start = _rows_before(privacy, n_features)

    def pair(name: str, one: Array, other: Array, index: int = start, at_once: bool = False) -> _Pair:
        worlds = [_World(tuple(row.tolist()), index, at_once) for row in (one, other)]
        scatter = np.outer(one, one) - np.outer(other, other)
        column = Schedule(privacy.releases).column
        return _Pair(name, (worlds[0], worlds[1]), scatter, nothing, nothing, column)

    plus, minus = (unit[0] + unit[1]) / sqrt(2), (unit[0] - unit[1]) / sqrt(2)
    diagonal = pair("diagonal", unit[0], nothing if blank else unit[1])
    across = pair("off the diagonal", plus, nothing if blank else minus)
    outlier = pair(f"outlier, {_OUTLIER:g} times the bound", _OUTLIER * unit[0], nothing)
    yield from (diagonal, across, outlier)
    yield replace(across, name="lower triangle", scatter=np.outer(unit[1], unit[0]))
    if privacy.releases > 1 or mechanism_class(privacy).continuous:
        # Would show noise that is the same in two reports.
        yield replace(diagonal, name="difference of reports", reports=np.array([1.0, -1.0]))
    if privacy.center == "private":
        yield pair("diagonal, all rows at once", unit[0], nothing if blank else unit[1], at_once=True)
        for name, index, at_once in (("first row, mean, all at once", 0, True), ("mean", start, False)):
            opposite = pair(name, unit[0], nothing if blank else -unit[0], index, at_once)
            yield replace(opposite, scatter=np.zeros_like(unit), mean=unit[0])
            if at_once:
                of_sums = "first row, sums for the center"
                yield replace(opposite, name=of_sums, scatter=np.zeros_like(unit), sums=unit[0])


def _scores(privacy: Privacy, rows: Array, at_once: bool, pairs: Sequence[_Pair]) -> Array:
    """How much the releases of one run of a world show of the row in question, one score per pair."""
    tracker = PrivateTracker(rows.shape[1], None, privacy, batch_rows=_ROWS)
    sums = np.zeros(rows.shape[1])
    while at_once and not tracker.is_prepared:
        tracker.advance(tracker.step_sum([rows], len(rows)))
    reports = max(privacy.releases, *(len(pair.reports) for pair in pairs))
    shares = np.empty((reports, len(pairs)))
    for report in range(reports):
        batch = rows if report == 0 else np.repeat(rows[-1:], _ROWS, axis=0)
        tracker.update([batch], len(batch))
        release = tracker.release()
        scatter = release.scatter
        shares[report] = [
            np.vdot(scatter, pair.scatter) + release.mean @ pair.mean + sums @ pair.sums for pair in pairs
        ]
    # The reports are B (C x + z): undo B, to see C x + z, in which the noises are independent.
    increments = np.diff(shares, axis=0, prepend=0.0)
    column = Schedule(privacy.releases).column
    seen = [np.convolve(column, increment)[:reports] for increment in increments.T]
    return np.array([pair.reports @ its[: len(pair.reports)] for pair, its in zip(pairs, seen, strict=True)])


def _promised(privacy: Privacy, n_features: int) -> float:
    """The mu that a certificate of these settings states."""
    tracker = PrivateTracker(n_features, None, privacy, batch_rows=_ROWS)
    rows = np.zeros((_rows_before(privacy, n_features) + _ROWS, n_features))
    tracker.update([rows], len(rows))
    certificate = tracker.release().certificate
    assert certificate is not None
    return float(certificate.mu)


# --- the test ---


def _distinguish(ours: Array, theirs: Array, delta: float, alpha: float) -> tuple[float, float]:
    """Lower bounds on epsilon and mu: thresholds are chosen on one half of the runs, judged on the other."""
    half = len(ours) // 2
    first, second = (ours[:half], theirs[:half]), (ours[half:], theirs[half:])
    thresholds = np.unique(np.quantile(np.concatenate(first), np.linspace(0.002, 0.998, 250)))
    by_epsilon = max(thresholds, key=lambda threshold: _epsilon(_rates(*first, threshold, alpha / 4), delta))
    by_mu = max(thresholds, key=lambda threshold: _mu(_rates(*first, threshold, alpha / 2)))
    epsilon = _epsilon(_rates(*second, by_epsilon, alpha / 4), delta)
    mu = _mu(_rates(*second, by_mu, alpha / 2))
    return max(epsilon, 0.0), max(mu, 0.0)


@dataclass(frozen=True)
class _Rates:
    """How often scores lie above and below a threshold: at least, or at most, but for the error allowed."""

    hit: float
    false_alarm: float
    true_negative: float
    miss: float


def _rates(ours: Array, theirs: Array, threshold: float, alpha: float) -> _Rates:
    hit = _at_least(int(np.sum(ours > threshold)), len(ours), alpha)
    true_negative = _at_least(int(np.sum(theirs <= threshold)), len(theirs), alpha)
    return _Rates(hit, 1 - true_negative, true_negative, 1 - hit)


def _epsilon(rates: _Rates, delta: float) -> float:
    """hit <= e^epsilon false_alarm + delta, and the same for the complements."""
    return max(
        _log_ratio(rates.hit - delta, rates.false_alarm), _log_ratio(rates.true_negative - delta, rates.miss)
    )


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0:
        return -inf
    return log(numerator / denominator) if denominator > 0 else inf


def _mu(rates: _Rates) -> float:
    """The best test of a mu-GDP mechanism has Phi^-1(hit) - Phi^-1(false_alarm) = mu."""
    if rates.hit <= 0 or rates.false_alarm >= 1:
        return -inf
    return float(ndtri(rates.hit) - ndtri(rates.false_alarm))


def _at_least(successes: int, runs: int, alpha: float) -> float:
    """The lower end for a probability (Clopper, Pearson 1934)."""
    return float(betaincinv(successes, runs - successes + 1, alpha)) if successes else 0.0
