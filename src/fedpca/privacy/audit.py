"""audit: try to catch a private configuration breaking its promise, by telling two worlds apart.

Two data sets differ in one row. The trust boundary, rows in and noisy sums out, runs thousands of times on
each, and a test tries to tell from the sums which it was. Whoever can do so better than the ledger was
debited for has found a bug. Not finding one is no proof.

Private steps end with a sum over the owners of a federation, which is public. So the auditor plays the other
owners: what they report leads every run along the path that is wanted, and what one owner adds, a few rows
and noise, is looked at. As a step costs little, little can be seen of it. So each is also looked at alone, at
an epsilon so large that it costs what the whole did before.
"""

import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from math import hypot, inf, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtri

from fedpca._typing import Array
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.ledger import Ledger, total_mu
from fedpca.privacy.mechanisms.registry import mechanism_class
from fedpca.privacy.preparation import Found
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import DYADIC, HIGHEST, LOWEST, Histogram, Step, StepSum
from fedpca.privacy.sums import PrivateSums
from fedpca.privacy.tracker import PrivateTracker
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace

_ROWS = 64
_OUTLIER = 8.0
_LONG, _SHORTER = 1.43 * 2.0**13, 1.43 * 2.0**9
_MANY, _FEW = 10**6, 5  # rows of other owners
_SPHERE = 0.02  # sqrt(d) / (mu n) with rows enough for a center, not for a length
_FAR, _NEAR = 8, 0  # powers of two: how far from the origin these rows are
_LOUD = 16.0  # where the ledger was debited nothing
_WITHIN = 0.99
_PARTS = {
    "rows": (),
    "scales": ("scales",),
    "lengths and spread": ("lengths", "spread"),
    "mean": ("mean",),
    "radius": ("radius",),
}
_RELEASE, _EVALUATION = "release", "evaluation"
_RIDGE = 1e-6

_Scale = Literal["std"] | None


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


def _audit(settings: Privacy, scale: _Scale, n_features: int, runs: int, confidence: float) -> Audit:
    looks = [look for case in _cases(settings, scale, n_features) for look in _looks(case, runs)]
    alpha = (1 - confidence) / len(looks) / 2  # errors at most add up, also of looks that share a world
    findings = []
    for look in looks:
        epsilon, mu = _distinguish(look.ours, look.theirs, settings.delta, alpha)
        passed = mu <= look.promised and epsilon <= epsilon_of(look.promised, settings.delta)
        findings.append(Finding(look.name, epsilon, mu, look.promised, passed))
    passed = all(finding.passed for finding in findings)
    return Audit(settings, _promised(settings, n_features), passed, tuple(findings), runs)


def _promised(privacy: Privacy, n_features: int) -> float:
    """The mu that a certificate of these settings states."""
    if not privacy.paper_calibrated:
        return privacy.mu
    tracker = PrivateTracker(n_features, None, privacy, batch_rows=_ROWS)
    tracker.update([np.zeros((_ROWS, n_features))], _ROWS)
    certificate = tracker.release().certificate
    assert certificate is not None
    return float(certificate.mu)


# --- worlds ---


@dataclass(frozen=True)
class _Owners:
    """The other owners, as they report themselves: rows of length one about the origin.

    Attributes:
        n_rows: how many they have.
        far: how long their rows are said to be before a center is known, a power of two; None if that is not
            found, so that there is no center.
    """

    n_rows: int
    far: int | None = _FAR

    def sum(self, step: Step) -> StepSum:
        """Their sum, which ends the round."""
        total = np.zeros(step.length)
        if step.name == "scales":
            total.reshape(-1, DYADIC.n_bins)[:, -LOWEST] = self.n_rows / 2
        elif step.name == "lengths and spread":
            total[DYADIC.n_bins - LOWEST] = self.n_rows / 2
            if self.far is not None:
                total[self.far - LOWEST] = self.n_rows
        elif step.name == "radius":
            total[-LOWEST * _histogram(step.length).per_octave] = self.n_rows
        return StepSum(step.name, total, self.n_rows, radius=step.radius)


def _histogram(length: int) -> Histogram:
    """The histogram of so many bins."""
    return Histogram((length - 1) // (HIGHEST - LOWEST))


@dataclass(frozen=True, eq=False)
class _Case:
    """Two worlds that differ in one row, how they run, and where that row shows.

    Attributes:
        ours, theirs: the row, shape (d,).
        others: all other rows, shape (n - 1, d).
        look: directions in which it shows, shape (2, d).
        center, partner: what it lies about, and what it is paired with, shape (d,).
        index: which row it is.
        owners: the others, in rounds; None in a stream.
        step: of a stream, the one that takes the row; None where it is released.
        only: the block that alone is looked at, and with which a run ends; None for all.
    """

    name: str
    privacy: Privacy
    scale: _Scale
    ours: Array
    theirs: Array
    others: Array
    look: Array
    center: Array
    partner: Array
    index: int = 0
    owners: _Owners | None = None
    step: Step | None = None
    only: str | None = None

    @property
    def reports(self) -> int:
        return max(self.privacy.releases, 2 if mechanism_class(self.privacy).continuous else 1)

    def opposite(self) -> "_Case":
        """The same with a row that is replaced by the one across the center, where means differ most."""
        if self.privacy.adjacency == "zero-out":
            return self
        return replace(self, theirs=2 * self.center - self.ours)


def _cases(privacy: Privacy, scale: _Scale, d: int) -> Iterator[_Case]:
    """All pairs of worlds, each with the blocks that were not seen before, each of them alone."""
    finds = privacy.needs_steps or scale is not None
    known = set()
    for case in _cases_of_steps(privacy, scale, d) if finds else _cases_of_release(privacy, d):
        yield case
        run = _Run(case, case.ours)
        for block in run.blocks:
            if block.name != _RELEASE and block.name not in known:
                known.add(block.name)
                yield _louder(_alone(case, block.name, run))
    if finds:
        yield from _cases_of_stream(privacy, scale, d)


def _louder(alone: _Case) -> _Case:
    """The same at an epsilon so large that what is looked at costs what the whole did before."""
    privacy = alone.privacy
    promised = next(block.promised for block in _Run(alone, alone.ours).blocks if block.name == alone.only)
    mu = privacy.mu * (privacy.mu / promised if promised else _LOUD)
    return replace(alone, privacy=replace(privacy, epsilon=epsilon_of(mu, privacy.delta)))


def _alone(case: _Case, block: str, run: "_Run") -> _Case:
    """The worlds that show most in one block of a run."""
    alone, (one, other), owners = case, case.look, case.owners
    if block in ("scales", "spread"):
        alone = _case("", case.privacy, _LONG * one, _SHORTER * other, pairs=True)
    elif block == "mean":
        alone, owners = case.opposite(), _Owners(_MANY, far=_NEAR)  # which takes one step
    elif block.startswith(_EVALUATION):  # one row beyond the radius, one within it
        radius = run.radius * (sqrt(2) if run.pairs else 1.0)
        alone = _case("", case.privacy, _LONG * radius * one, _WITHIN * radius * other, pairs=run.pairs)
    return replace(alone, name=f"{block} alone", scale=case.scale, owners=owners, only=block)


def _cases_of_release(privacy: Privacy, d: int) -> Iterator[_Case]:
    unit = np.eye(d)
    plus, minus = (unit[0] + unit[1]) / sqrt(2), (unit[0] - unit[1]) / sqrt(2)
    pairs = privacy.center == "pairs"
    length = (1.0 if isinstance(privacy.bound, str) else privacy.bound) * (sqrt(2) if pairs else 1.0)
    yield _case("diagonal", privacy, length * unit[0], length * unit[1], pairs=pairs)
    yield _case("off the diagonal", privacy, length * plus, length * minus, pairs=pairs)
    outlier = _case("", privacy, _OUTLIER * length * unit[0], length * unit[1], pairs=pairs)
    theirs = outlier.theirs if pairs else np.full(d, np.nan)
    yield replace(outlier, name=f"outlier, {_OUTLIER:g} times the bound", theirs=theirs)


def _cases_of_steps(privacy: Privacy, scale: _Scale, d: int) -> Iterator[_Case]:
    """The paths that other owners can lead along, those first that stay the same at any epsilon."""
    paths = {"many rows": _Owners(_MANY)}
    if privacy.center == "private":
        paths["no center"] = _Owners(_MANY, far=None)
    if privacy.bound == "private" and scale is None:
        paths["fewer rows"] = _Owners(round(sqrt(d) / (privacy.mu * _SPHERE)), far=_NEAR)
    if privacy.center == "private" and scale is None:
        paths["few rows"] = _Owners(_FEW)
    one, other = _dense_directions(d)
    for name, owners in paths.items():
        pairs = privacy.center == "pairs" or name in ("no center", "few rows")
        case = _case(name, privacy, _LONG * one, _SHORTER * other, pairs=pairs)
        yield replace(case, scale=scale, owners=owners)


def _cases_of_stream(privacy: Privacy, scale: _Scale, d: int) -> Iterator[_Case]:
    """A row in every step of a stream, and one in the release."""
    usual, steps, pairs = _usual_stream(privacy, scale, d)
    one, other = _dense_directions(d)
    case = _case("", privacy, _LONG * one, _SHORTER * other, pairs=pairs, shift=_shift(privacy))
    rest = case.others if pairs else np.full_like(case.others, np.nan)  # nothing is exactly at the center
    case = replace(case, scale=scale, others=np.concatenate([usual, rest]))
    start, names = 0, set()
    for step, summed in steps:
        if step.name not in names:
            names.add(step.name)
            of_step = replace(case, name=f"stream, {step.name}", index=start, step=step)
            yield of_step.opposite() if step.name == "mean" else of_step
        start += summed.n_rows
    yield replace(case, name=f"stream, {_RELEASE}", index=len(case.others))


def _usual_stream(privacy: Privacy, scale: _Scale, d: int) -> tuple[Array, list[tuple[Step, StepSum]], bool]:
    """As many usual rows as the steps of a stream take, these steps, and whether pairs are released then."""
    tracker = PrivateTracker(d, None, replace(privacy, insecure_seed_for_tests=0), scale=scale)
    steps: list[tuple[Step, StepSum]] = []
    _overhear(tracker, steps)
    public, rng, parts = privacy.public_center(d), np.random.default_rng(0), []
    while not isinstance(tracker._stage, PrivateSums):
        parts.append(rng.normal(size=(_ROWS, d)) + (_shift(privacy) if public is None else public))
        tracker.update(parts[-1:], _ROWS)
    taken = sum(summed.n_rows for _, summed in steps)
    return np.concatenate(parts)[:taken], steps, tracker._stage.clipping.pairs


def _shift(privacy: Privacy) -> float:
    """Where the rows of a stream are about, if that is to be found."""
    return 2.0 if privacy.center == "private" else 0.0


def _case(name: str, privacy: Privacy, one: Array, other: Array, *, pairs: bool, shift: float = 0.0) -> _Case:
    """Worlds whose row shows as `one` or `other`: about the center, or in the difference from its partner.

    A row that is taken out has no entry that is observed, and so lies at the center of every step. In a pair
    it lies at the origin, and leaves its partner there.
    """
    d = len(one)
    public = privacy.public_center(d)
    center = np.full(d, shift) if public is None else public
    if pairs:
        partner = -other
        ours, theirs = partner + one, np.zeros(d)
    else:
        partner = center
        taken_out = privacy.adjacency == "zero-out"
        ours, theirs = center + one, np.full(d, np.nan) if taken_out else center + other
    look = np.array([one / np.linalg.norm(one), other / np.linalg.norm(other)])
    others = np.repeat(partner[None], _ROWS - 1, axis=0)
    return _Case(name, privacy, None, ours, theirs, others, look, center, partner)


def _dense_directions(d: int) -> Array:
    """Two orthogonal directions, shape (2, d), that show in every feature."""
    other = np.append(np.ones(d - 1), 1.0 - d)
    return np.array([np.ones(d) / sqrt(d), other / np.linalg.norm(other)])


# --- runs ---


class _Block(NamedTuple):
    """A noisy sum that left the trust boundary, or a part with noise of its own.

    Attributes:
        promised: the mu that the ledger was debited for it.
    """

    name: str
    numbers: Array
    promised: float


class _Run:
    """One run of a world.

    Attributes:
        blocks: all that was seen.
        pairs: whether differences of pairs were released.
        steps: of a stream.
        scale: what features were divided by, in rounds; 1 for nothing.
        radius: that of the evaluation, if there is one.
        promised: the mu that the ledger was debited for the row in question.
    """

    def __init__(self, case: _Case, row: Array) -> None:
        self._case = case
        self._rows = np.insert(case.others, case.index, row, axis=0)
        self._ledger = Ledger(epsilon=case.privacy.epsilon, delta=case.privacy.delta)
        privacy = replace(case.privacy, ledger=self._ledger)
        self._tracker = PrivateTracker(len(row), None, privacy, scale=case.scale, batch_rows=_ROWS)
        self.blocks: list[_Block] = []
        self.steps: list[tuple[Step, StepSum]] = []
        self.pairs = False
        self.scale: Array | float = 1.0
        self.radius = 0.0
        ended = False
        if case.owners is not None:
            ended = self._go_rounds(case.owners)
        elif not self._tracker.is_prepared:
            _overhear(self._tracker, self.steps)
        if not ended:
            self._release()
            self._evaluate()
        self.promised = self._debited()

    def _debited(self, since: int = 0) -> float:
        """For the row in question, by entries of the ledger."""
        index, entries = self._case.index, self._ledger.entries[since:]
        return total_mu([e for e in entries if e.start <= index < (inf if e.stop is None else e.stop)])

    def _go_rounds(self, owners: _Owners) -> bool:
        """All rounds of private steps, or those up to the block that is looked at; whether there was one."""
        while not self._tracker.is_prepared:
            preparation, before = self._tracker._preparation(), len(self._ledger.entries)
            step, scale = preparation.step, preparation._clipping.scale
            assert step is not None
            self.scale = 1.0 if scale is None else scale
            summed = self._tracker.step_sum([self._rows], len(self._rows))
            self._add_blocks(step, summed.total, self._debited(before))
            if self._case.only in _PARTS[step.name]:
                return True
            self._tracker.advance(owners.sum(step))
        return False

    def _add_blocks(self, step: Step, total: Array, promised: float) -> None:
        ends = np.cumsum([block.length for block in step.blocks])[:-1]
        parts = np.split(total, ends) if step.blocks else []
        for name, block, numbers in zip(_PARTS[step.name], step.blocks, parts, strict=True):
            self.blocks.append(_Block(name, numbers, promised * sqrt(block.share / step.share)))

    def _release(self) -> None:
        tracker, rows, seen = self._tracker, self._rows, []
        more = np.repeat(self._case.others[-1:], _ROWS, axis=0)
        before = len(self._ledger.entries)
        tracker.update([rows], len(rows))
        while not tracker.is_prepared:  # a stream that took more steps than usual
            tracker.update([more], _ROWS)
        for report in range(self._case.reports):
            if report:
                tracker.update([more], _ROWS)
            release = tracker.release()
            seen += [release.scatter.ravel(), release.mean]
        assert release.certificate is not None
        self.pairs = "pairs" in (release.certificate.clipping or "")
        if (step := self._case.step) is not None:
            taken = (summed.total for known, summed in self.steps if known.name == step.name)
            self._add_blocks(step, next(taken, np.zeros(step.length)), 0.0)
        self.blocks.append(_Block(_RELEASE, np.concatenate(seen), self._debited(before)))

    def _evaluate(self) -> None:
        """Along public directions: those in which the row shows."""
        if (evaluation := self._tracker._evaluation) is None:
            return
        self.radius = evaluation._found.radius
        case, before = self._case, len(self._ledger.entries)
        ones = np.ones(2)
        model = Subspace(case.look, ones, case.center, float(_ROWS), 2.0)
        total = self._tracker.evaluation_sum([self._rows], len(self._rows), model).total
        name = f"{_EVALUATION} of pairs" if self.pairs else _EVALUATION
        self.blocks.append(_Block(name, total, self._debited(before)))


def _overhear(tracker: PrivateTracker, steps: list[tuple[Step, StepSum]]) -> None:
    """Note the steps of a stream with their noisy sums, of which nobody else hears."""
    preparation = tracker._preparation()
    preparation._search = _noted(preparation._search, steps)
    next(preparation._search)


def _noted(
    search: Generator[Step, StepSum, Found], steps: list[tuple[Step, StepSum]]
) -> Generator[Step, StepSum, Found]:
    """A search that has begun already."""
    summed: StepSum = yield None  # type: ignore[misc]
    while True:
        try:
            step = search.send(summed)
        except StopIteration as end:
            return end.value
        summed = yield step
        steps.append((step, summed))


# --- where to look ---


class _Look(NamedTuple):
    """Scores of the runs of two worlds.

    Attributes:
        ours, theirs: shape (runs,).
        promised: the mu by which they may differ.
    """

    name: str
    ours: Array
    theirs: Array
    promised: float


def _looks(case: _Case, runs: int) -> Iterator[_Look]:
    """Run both worlds, and combine what their blocks show."""
    first = _Run(case, case.ours)
    blocks = first.blocks
    weights = [_weights(case, block.name, len(block.numbers), first.scale) for block in blocks]
    views = [(i, i) for i in range(len(blocks))]  # of a block, where the row shows in another
    if case.only is not None:
        views = [(i, i) for i, block in enumerate(blocks) if block.name == case.only][:1]
    elif case.step is None:
        views += [view for i in range(len(blocks) - 1) for view in ((i, i + 1), (i + 1, i))]
    worlds = [
        [_seen(_Run(case, row), weights, views) for _ in range(runs)] for row in (case.ours, case.theirs)
    ]
    ours, theirs = ([np.array(scores) for scores in zip(*world, strict=True)] for world in worlds)
    seen = dict(zip(views, zip(ours, theirs, strict=True), strict=True))
    alone = [_combined(seen[view]) for view in views if view[0] == view[1]]
    if case.only is not None:
        yield _Look(case.name, *alone[0], blocks[views[0][0]].promised)
        return
    yield _Look(case.name, *_combined(*alone), first.promised)
    for i, j in views[len(blocks) :: 2]:
        # Would show noise that is the same in both.
        name = f"{case.name}, noise of {blocks[i].name} and {blocks[j].name}"
        crossed = _combined(seen[i, i], seen[j, j], seen[i, j], seen[j, i])
        yield _Look(name, *crossed, hypot(blocks[i].promised, blocks[j].promised))


def _seen(run: _Run, weights: list[Array], views: list[tuple[int, int]]) -> list[Array]:
    """The scores of every view."""
    scores: list[Array] = []
    for block, where in views:
        seen = run.blocks[block : block + 1]  # some runs of a stream cannot be evaluated
        numbers, of_row = seen[0].numbers if seen else np.zeros(0), weights[where]
        length = min(len(numbers), len(of_row))
        scores.append(numbers[:length] @ of_row[:length])
    return scores


def _combined(*worlds: tuple[Array, Array]) -> tuple[Array, Array]:
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


def _weights(case: _Case, name: str, length: int, scale: Array | float) -> Array:
    """Where the row of a case shows in a block of so many numbers, shape (length, scores)."""
    rows = [row for row in (case.ours, case.theirs) if np.isfinite(row).all()]
    if name.startswith(_EVALUATION):
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
    assert name == _RELEASE
    d = len(case.ours)
    products = [np.outer(one, other).ravel() for one in case.look for other in case.look]
    of_report = np.zeros((d * d + d, 6))
    of_report[: d * d, :4], of_report[d * d :, 4:] = np.transpose(products), case.look.T
    return np.kron(np.eye(length // len(of_report)), of_report)


def _indicators(values: list[Array], length: int) -> Array:
    """Bins of values, one per feature if there are as many, and those of zeros, shape (length, scores)."""
    histogram = _histogram(length // len(values[0]))
    first = histogram.n_bins * np.arange(len(values[0]))
    indicators = np.zeros((length, len(values) + 1))
    for column, of_row in enumerate([*values, 0.0 * values[0]]):
        indicators[first + histogram.bins(np.abs(of_row)), column] = 1.0
    return indicators


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
