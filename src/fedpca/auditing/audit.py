"""audit: try to catch a private configuration breaking its promise, by telling two worlds apart.

Two data sets differ in one row. The trust boundary, rows in and noisy sums out, runs thousands of times on
each, and a test tries to tell from the sums which it was. Whoever can do so better than the ledger was
debited for has found a bug. Not finding one is no proof.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Literal

from fedpca.auditing.distinguish import distinguish
from fedpca.auditing.looks import looks
from fedpca.auditing.run import Scale
from fedpca.auditing.worlds import cases
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.settings import Privacy
from fedpca.summaries import validation


@dataclass(frozen=True)
class Finding:
    """What one pair of worlds showed: lower bounds that hold with the audit's confidence.

    Attributes:
        pair: which, and what was looked at.
        epsilon: no (smaller epsilon, delta) can be true.
        mu: no smaller mu can be true.
        promised: the mu that the ledger was debited for it.
        passed: whether no more was found than that.
    """

    pair: str
    epsilon: float
    mu: float
    promised: float
    passed: bool


@dataclass(frozen=True, repr=False)
class Audit:
    """The outcome of an audit.

    Attributes:
        privacy: the settings audited, at the epsilon and delta of the audit.
        mu: what their certificate promises.
        passed: whether nothing was found beyond the promise.
        findings: one for each pair of worlds and what was looked at.
        runs: how often each world ran.
    """

    privacy: Privacy
    mu: float
    passed: bool
    findings: tuple[Finding, ...]
    runs: int

    def __repr__(self) -> str:
        worst = max(self.findings, key=lambda finding: (not finding.passed, finding.mu / self.mu))
        verdict = "nothing found beyond the promise" if self.passed else "THE PROMISE IS BROKEN"
        return (
            f"Audit({'passed' if self.passed else 'FAILED'}: {verdict}; promised mu={worst.promised:.3g}, "
            f"shown at least mu={worst.mu:.3g} ({worst.pair}), in {self.runs} runs per data set)"
        )


def audit(
    privacy: Privacy,
    *,
    scale: Literal["std"] | None = None,
    epsilon: float = 8.0,
    delta: float = 1e-5,
    n_features: int = 3,
    runs: int = 4000,
    confidence: float = 0.999,
) -> Audit:
    """Run a private configuration on pairs of data sets that differ in one row, and try to tell them apart.

    The settings are those given but for epsilon, delta, the ledger and the length of a public center: few
    features and a large epsilon are where a test sees most. At (8, 1e-5) and 4000 runs, noise 1.4 times too
    small is found for certain, 1.2 times too small eight times in ten in a release, and two times in a
    histogram, whose noise is rounded to counts; at (1, 1e-5) only gross errors are. What is found privately
    is audited step by step and as a whole, in rounds and from a stream.

    Args:
        privacy: the settings.
        scale: the estimator's: "std" to audit that the scale is found privately, too.
        epsilon, delta: to audit at; the code that runs is the same.
        n_features: at least 2.
        runs: per data set.
        confidence: that a failure is real.

    >>> audit(Privacy(epsilon=1.0, delta=1e-6, bound=5.0, center=None), runs=200).passed
    True
    """
    if not isinstance(privacy, Privacy):
        raise TypeError(f"audit needs a Privacy, got {privacy!r}.")
    if scale not in ("std", None):
        raise ValueError(f"scale must be 'std' or None, since public numbers cost nothing, got {scale!r}.")
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
        warnings.simplefilter("ignore")  # of thousands of fits, on rows that are nearly all the same
        return _audit(settings, scale, n_features, runs, confidence)


def _audit(settings: Privacy, scale: Scale, n_features: int, runs: int, confidence: float) -> Audit:
    found = [look for case in cases(settings, scale, n_features) for look in looks(case, runs)]
    alpha = (1 - confidence) / len(found) / 2  # errors at most add up, also of looks that share a world
    findings = []
    for look in found:
        epsilon, mu = distinguish(look.ours, look.theirs, settings.delta, alpha)
        passed = mu <= look.promised and epsilon <= epsilon_of(look.promised, settings.delta)
        findings.append(Finding(look.name, epsilon, mu, look.promised, passed))
    passed = all(finding.passed for finding in findings)
    return Audit(settings, settings.mu, passed, tuple(findings), runs)
