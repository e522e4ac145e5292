"""Plan: the cost of privacy, and whether any component survives the noise, before a single row is touched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log10, sqrt
from typing import Literal

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.mechanisms.base import Calibration, Mechanism
from fedpca.privacy.mechanisms.gram import Gram
from fedpca.privacy.mechanisms.registry import calibrate, mechanism_class
from fedpca.privacy.rules import check_delta_for_rows
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.search_plan import Outlook, expected, rows_for_scale
from fedpca.privacy.settings import Privacy
from fedpca.summaries import validation

_GOOD = 0.9  # the expected |<v, v_hat>| that counts as found
_TYPICAL = sqrt(0.5)  # of the bound: the assumed root mean square of the lengths of rows
_NEVER = 2**62
_ITERATIONS = 8  # of rows, and what is spent on private steps over so many
_SIMULATED = 256  # features
_DRAWS = 8
_SIMULATED_ROWS = 1000
_SHIFTS = 2.0 ** np.array([0.0, 0.25, 0.5, 0.75])
_NO_TAILS = " and rows have no long tails"  # on Volt, which has, 0.94 was expected where 0.63 was reached
_SMALLEST_GAP = 0.1  # of a variance: directions closer than this count as this far apart


@dataclass(frozen=True, repr=False)
class Plan:
    """What a private release would be like. Sums and eigenvalues are in the units of the data, squared; where
    the bound is not public, in units of the mean square of the lengths of rows.

    Attributes:
        privacy: the settings.
        mu: the cost of all releases to every record.
        sensitivity, sigma: in units of bound², or of rows of length one.
        noise_edge: the largest eigenvalue that noise alone has, in a sum over rows; signals below it drown.
        spectrum: variances along the leading directions that were given or assumed.
        n_components: how many are wanted.
        rows_needed: rows for which the last of them is expected to be found, with a cosine of 0.9.
        n_rows: how many there are, if given.
        components_found: how many of those so many rows would show, if `n_rows` is given.
        affinity: the expected mean squared cosine between the components wanted and those found, if `n_rows`
            is given. For Gaussian rows: where a few rows are much longer than the others, clipping them turns
            the components as well. None with a scale that is to be found: what features are left out, and
            how long tails are, no plan can know.
        captured: the variance that those found would explain, as a share of what the best would.
        affinity_limit, captured_limit: the same with a scale that is to be found, if no feature were left out
            and none had a long tail: hardly more can be expected, and it may be far less.
        memory: bytes at an owner of rows.
        advice: all of it in a sentence or two.
    """

    privacy: Privacy
    n_features: int
    mu: float
    sensitivity: float
    sigma: float
    noise_edge: float
    spectrum: Array
    n_components: int
    rows_needed: int
    n_rows: int | None
    components_found: int | None
    affinity: float | None
    captured: float | None
    affinity_limit: float | None
    captured_limit: float | None
    memory: int
    advice: str

    def __repr__(self) -> str:
        facts = ",\n     ".join(self._facts())
        return f"{type(self).__name__}({facts})\n{self.advice}"

    def _facts(self) -> list[str]:
        """Lines of the representation."""
        unit = "" if isinstance(self.privacy.bound, str) else " bound²"
        rows = "" if self.n_rows is None else f", rows={self.n_rows:,}, found={self.components_found}"
        if self.affinity is not None:
            rows += f", affinity={self.affinity:.2f}, captured={self.captured:.2f}"
        if self.affinity_limit is not None:
            rows += f", affinity_limit={self.affinity_limit:.2f}, captured_limit={self.captured_limit:.2f}"
        return [
            f"mu={self.mu:.4g}, sigma={self.sigma:.4g}{unit}, noise_edge={self.noise_edge:.4g}",
            f"rows_needed={self.rows_needed:,}{rows}, memory={self.memory / 1e6:.1f} MB",
        ]


def plan_release(
    privacy: Privacy,
    n_features: int,
    n_rows: int | None = None,
    spectrum: Sequence[float] | None = None,
    *,
    n_components: int = 1,
    noise: float = 1.0,
    typical: float | None = None,
    scale: Literal["std"] | None = None,
) -> Plan:
    """What to expect of a release whose noise has `noise` times the variance of one owner's: see `plan`."""
    if not isinstance(privacy, Privacy):
        raise TypeError(f"plan needs a Privacy, got {privacy!r}.")
    n_features = validation.integer(n_features, "n_features", at_least=1)
    n_components = validation.rank(n_components, n_features, "n_components")
    privacy.public_center(n_features)
    if n_rows is not None:
        n_rows = validation.integer(n_rows, "n_rows", at_least=1)
        check_delta_for_rows(privacy.delta, n_rows)
    mechanism = mechanism_class(privacy)
    mechanism.check_features(n_features)
    if scale not in (None, "std"):
        raise ValueError(f"scale must be None or 'std', got scale={scale!r}.")
    variances, condition = _spectrum(spectrum, typical, privacy, n_features, n_components)

    def noise_of(rank: int, rows: float) -> tuple[Calibration, float, Outlook]:
        outlook = expected(privacy, n_features, rank, rows, noise, finds_scale=scale is not None)
        calibration = calibrate(privacy, mu=outlook.mu, joint=outlook.joint, pairs=outlook.clipping.pairs)
        edge = calibration.edge(n_features) * Schedule(privacy.releases).accumulated(privacy.releases)
        return calibration, edge * outlook.clipping.unit * sqrt(noise), outlook

    def edge_of(rank: int, rows: float) -> float:
        return noise_of(rank, rows)[1]

    fewest = 1 if scale is None else rows_for_scale(privacy, n_features, noise)
    needed = [
        max(_rows_needed(mechanism, partial(edge_of, rank), variances, rank, n_features), fewest)
        for rank in range(1, n_components + 1)
    ]
    calibration, edge, outlook = noise_of(n_components, needed[-1] if n_rows is None else n_rows)
    quality: tuple[float | None, float | None] = None, None
    if n_rows is not None:
        if n_rows >= fewest:
            per_row = edge * mechanism.rows_factor / n_rows
            quality = _quality(per_row, variances, outlook, n_components, n_features)
        else:
            quality = 0.0, 0.0
    found = None if n_rows is None else sum(rows <= n_rows for rows in needed)
    rows_needed = needed[-1]
    return Plan(
        privacy=privacy,
        n_features=n_features,
        mu=privacy.mu,
        sensitivity=calibration.sensitivity,
        sigma=calibration.sigma,
        noise_edge=edge,
        spectrum=variances,
        n_components=n_components,
        rows_needed=rows_needed,
        n_rows=n_rows,
        components_found=found,
        affinity=quality[0] if scale is None else None,
        captured=quality[1] if scale is None else None,
        affinity_limit=None if scale is None else quality[0],
        captured_limit=None if scale is None else quality[1],
        memory=mechanism.memory(n_features, n_components),
        advice=_advice(privacy, n_features, n_components, rows_needed, n_rows, found, condition, fewest)
        + _of_scale(outlook.least_variation),
    )


def _spectrum(
    spectrum: Sequence[float] | None,
    typical: float | None,
    privacy: Privacy,
    n_features: int,
    n_components: int,
) -> tuple[Array, str]:
    """The variances given or assumed, of clipped rows, and what the plan is true for.

    Where the bound is not public, variances are shares of the total: only these matter then.
    """
    bound = 1.0 if isinstance(privacy.bound, str) else privacy.bound
    if spectrum is None:
        if typical is not None and not (validation.is_real(typical) and 0 < typical < np.inf):
            raise ValueError(f"typical must be the length of a row, above 0, got typical={typical!r}.")
        if isinstance(privacy.bound, str):
            if typical is not None:
                raise ValueError("typical is compared with a public bound: give one, or leave out typical.")
            weights = 1 / np.arange(1.0, n_features + 1)
            return weights / weights.sum(), f"if variances fall as 1, 1/2, 1/3{_NO_TAILS}"
        length = _TYPICAL * bound if typical is None else min(typical, bound)
        weights = 1 / np.arange(1.0, n_features + 1)
        about = "as long as the bound" if typical is None else f"{typical:g} long"
        return length**2 * weights / weights.sum(), f"if rows are about {about}"
    if typical is not None:
        raise ValueError("typical and spectrum both state how long rows are: give one of them.")
    variances = np.sort(np.asarray(spectrum, dtype=np.float64).ravel())[::-1]
    if not len(variances) or not np.isfinite(variances).all() or variances[-1] < 0 or not variances[0] > 0:
        raise ValueError("spectrum must be variances along the leading directions: finite, not negative.")
    if len(variances) < n_components:
        raise ValueError(
            f"spectrum must have a variance for every component: {n_components} wanted, "
            f"{len(variances)} given."
        )
    if len(variances) > n_features:
        raise ValueError(
            f"spectrum must have at most one variance per feature: {n_features} features, {len(variances)} "
            "given."
        )
    if isinstance(privacy.bound, str):
        total = float(variances.sum())
        if len(variances) < n_features and total > 1 + 1e-9:
            raise ValueError(
                f"spectrum must be shares of the total variance, or all {n_features} variances, where no "
                f"bound is public: {len(variances)} were given, which add up to {total:g}."
            )
        return variances / (
            total if len(variances) == n_features else 1.0
        ), f"if variances are as given{_NO_TAILS}"
    # Clipped rows vary by at most bound², in proportions that clipping hardly changes.
    return variances * min(1.0, bound**2 / variances.sum()), "if variances are as given"


def _rows_needed(
    mechanism: type[Mechanism],
    edge_of: Callable[[float], float],
    variances: Array,
    rank: int,
    n_features: int,
) -> int:
    """Rows for which the first `rank` directions are found, the last with an expected cosine of 0.9.

    Noise of standard deviation s mixes a direction of eigenvalue l with one of eigenvalue m by s / (l - m),
    so that cosine² = 1 - s² times the sum of 1 / (l - m)² over the directions left out; all m = 0 gives the
    textbook's 1 - (edge / 2 l)². What is spent on private steps depends on the rows in turn.
    """
    variance = float(variances[rank - 1])
    if variance <= 0:
        return _NEVER
    left_out = np.zeros(n_features - rank)
    left_out[: len(variances) - rank] = variances[rank:]
    gaps = np.maximum(variance - left_out, _SMALLEST_GAP * variance)
    needed = float(_NEVER)
    for _ in range(_ITERATIONS):
        sd = edge_of(needed) / (2 * sqrt(n_features))
        rows = sd * float(np.linalg.norm(1 / gaps)) / sqrt(1 - _GOOD**2)
        needed = min(rows * mechanism.rows_factor, float(_NEVER))
    return min(ceil(needed), _NEVER)


def _quality(
    edge: float, variances: Array, outlook: Outlook, rank: int, n_features: int
) -> tuple[float, float]:
    """The affinity and the captured variance to expect, from a few draws of noise of this edge per row.

    Many features are replaced by fewer with the same edge: only that matters far from the leading directions.
    That the center is off adds a direction to the scatter.
    """
    size = min(n_features, _SIMULATED)
    random = np.random.default_rng(0)
    points, shrinkage = _clipped(variances, outlook, random)
    length = outlook.clipping.bound or 1.0
    known, energies = np.zeros((2, size))
    known[: len(points)], energies[: len(points)] = variances[:size], points
    best = float(known[:rank].sum())
    affinities, captured = [], []
    for _ in range(_DRAWS):
        noise = random.standard_normal((size, size))
        off = random.standard_normal(size) * (outlook.offset * shrinkage / sqrt(size))
        scatter = np.diag(energies) + edge / length**2 / sqrt(8 * size) * (noise + noise.T)
        _, vectors = np.linalg.eigh(scatter + np.outer(off, off))
        squares = vectors[:, -rank:] ** 2
        affinities.append(float(squares[:rank].sum()) / rank)
        captured.append(float(known @ squares.sum(axis=1)) / best)
    return float(np.mean(affinities)), min(float(np.mean(captured)), 1.0)


def _clipped(variances: Array, outlook: Outlook, random: np.random.Generator) -> tuple[Array, float]:
    """Leading variances of points of the unit ball, of Gaussian rows, and how much shorter points are."""
    leading = variances[:_SIMULATED]
    squares = np.square(random.standard_normal((_SIMULATED_ROWS, len(leading))))
    lengths = np.sqrt(squares @ leading + variances[_SIMULATED:].sum())  # many others are alike in all rows
    bound = outlook.clipping.bound
    if outlook.rule is not None:  # as a histogram finds it, wherever in an octave lengths are
        histogram = outlook.rule.histogram
        counts = (histogram.counts(lengths * shift) for shift in _SHIFTS)
        found = [outlook.rule.radius(histogram.lengths(each, sd=0.0)) for each in counts]
        bound = float(np.mean(found / _SHIFTS))
    factors = 1 / (lengths if bound is None else np.maximum(lengths, bound))
    return leading * (factors**2 @ squares) / squares.sum(axis=0), float(factors.mean())


def _advice(
    privacy: Privacy,
    n_features: int,
    n_components: int,
    needed: int,
    n_rows: int | None,
    found: int | None,
    condition: str,
    fewest: int,
) -> str:
    components = "1 component" if n_components == 1 else f"{n_components} components"
    wanted = f"About {rounded(needed):,} rows are needed for {components}"
    remedy = "A larger epsilon or fewer features need fewer."
    if not isinstance(privacy.bound, str):
        remedy = "A larger epsilon, fewer features or a tighter bound need fewer."
    if mechanism_class(privacy).rows_factor > 1 and n_features <= Gram.max_features:
        remedy = "mechanism='gram' needs several times fewer."
    if n_rows is None:
        return f"{wanted}, {condition}.\n{remedy}"
    start = f"With {n_rows:,} rows and {n_features} features"
    if n_rows < fewest:
        return f"{start} the fit will be refused: their scale needs about {rounded(fewest):,} rows."
    will = "will" if fewest == 1 else "will at best"  # with a scale that is to be found
    if n_rows >= needed:
        return f"{start} {components} {will} be found, {condition}; about {rounded(needed):,} rows would do."
    if not found:
        return f"{start} nothing will survive the noise, {condition}.\n{wanted}.\n{remedy}"
    return f"{start} about {found} of {components} {will} be found, {condition}.\n{wanted}.\n{remedy}"


def _of_scale(least_variation: float) -> str:
    """What a plan cannot know of features that are to be scaled, or ""."""
    if not least_variation:
        return ""
    digits = max(0, -floor(log10(least_variation)) - 2)  # never 100%
    return (
        f"\nFeatures with one value in {1 - least_variation:.{digits}%} of rows or more will be left out, "
        "and long tails have the scale of their common values: how far that turns components, no plan can "
        "know. So affinity and captured variance are limits."
    )


def rounded(rows: int) -> int:
    """Two digits: the estimate has no more."""
    return int(float(f"{rows:.1e}"))
