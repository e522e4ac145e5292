"""Awkward rows, what independent linear algebra says about them, and what several files of tests do."""

import sys
from dataclasses import fields, replace
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import sparse

import fedpca
from fedpca import Aggregator, Moments, Subspace
from fedpca.backend.ops import batch_slices
from fedpca.privacy.clipping import Pairing
from fedpca.privacy.exit import Exit
from fedpca.privacy.mechanisms import Mechanism
from fedpca.privacy.noise import ExactNoise
from fedpca.summaries.certificate import Secured, SecureSum
from fedpca.summaries.rank import FixedRank


def power_law(rng, n_rows, n_features, alpha=1.0, mean_size=0.1):
    """Gaussian rows with standard deviations i^-alpha along random directions, about a random mean."""
    basis = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    spread = np.arange(1.0, n_features + 1) ** -alpha
    return (rng.normal(size=(n_rows, n_features)) * spread) @ basis + mean_size * rng.normal(size=n_features)


def rows_of(seed=0, n_rows=60, n_features=8):
    """Rows of one client of many, whose means differ."""
    return power_law(np.random.default_rng(seed), n_rows, n_features) + 0.1 * seed


def sparse_rows(rng, n_rows, n_features, density=0.05):
    """CSR rows of which only some entries are not zero."""
    filled = rng.uniform(size=(n_rows, n_features)) < density
    return sparse.csr_array(np.where(filled, 3 * rng.uniform(size=filled.shape), 0.0))


def awkward(kind, n_rows, n_features, seed):
    """Rows that break careless linear algebra."""
    rng = np.random.default_rng(seed)
    rows = power_law(rng, n_rows, n_features)
    match kind:
        case "ordinary":
            return rows
        case "low rank":
            return rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, n_features)) + 1.0
        case "repeated rows":
            return rows[rng.integers(0, max(1, n_rows // 8 + 1), n_rows) % max(n_rows, 1)]
        case "constant columns":
            rows[:, ::2] = 3.7
            return rows
        case "constant":
            return np.full((n_rows, n_features), 0.1)
        case "zero":
            return np.zeros((n_rows, n_features))
        case "far from the origin":
            return rows + 1e6
        case "one outlier":
            rows[n_rows // 2 : n_rows // 2 + 1] *= 1e4
            return rows
        case "tiny":
            return rows * 1e-120
        case "huge":
            return rows * 1e120
        case "graded":
            basis = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
            return (rng.normal(size=(n_rows, n_features)) * np.logspace(0, -9, n_features)) @ basis
    raise ValueError(kind)


KINDS = [
    "ordinary", "low rank", "repeated rows", "constant columns", "constant", "zero",
    "far from the origin", "one outlier", "tiny", "huge", "graded",
]  # fmt: skip


@st.composite
def rows_of_clients(draw, min_clients=1, max_clients=6, max_rows=40, max_features=12):
    """Tables of the same features, unequal sizes, some without rows, each awkward in its own way."""
    n_features = draw(st.integers(1, max_features))
    n_clients = draw(st.integers(min_clients, max_clients))
    scale = draw(st.sampled_from(["tiny", "huge", "usual"]))
    kinds = [scale] if scale != "usual" else [kind for kind in KINDS if kind not in ("tiny", "huge")]
    return [
        awkward(
            draw(st.sampled_from(kinds)),
            draw(st.integers(0, max_rows)),
            n_features,
            draw(st.integers(0, 999)),
        )
        for _ in range(n_clients)
    ]


def scatter_of(summary):
    """The scatter a summary stands for, shape (d, d)."""
    if isinstance(summary, Moments):
        return summary.scatter
    scaled = summary.singular_values[:, None] * summary.components.astype(np.float64)
    return scaled.T @ scaled


def pooled(tables, center=True):
    """Count, mean, scatter and raw energy of all rows in one place, by numpy alone."""
    rows = np.concatenate([np.asarray(table, dtype=np.float64) for table in tables])
    n_features = rows.shape[1]
    mean = rows.mean(axis=0) if center and len(rows) else np.zeros(n_features)
    deviations = rows - mean
    return len(rows), mean, deviations.T @ deviations, float((rows**2).sum())


def assert_summarizes(summary, tables, center=True, rtol=1e-9):
    """The summary is that of all rows together, to rounding of the rows themselves."""
    count, mean, scatter, energy = pooled(tables, center)
    assert summary.count == count
    size = np.sqrt(energy / max(count, 1))
    np.testing.assert_allclose(summary.mean, mean, rtol=rtol, atol=rtol * size)
    np.testing.assert_allclose(scatter_of(summary), scatter, rtol=rtol, atol=rtol * energy)
    np.testing.assert_allclose(summary.total, np.trace(scatter), rtol=rtol, atol=rtol * energy)


def assert_valid(subspace):
    """Built anew from its parts, the subspace passes every check of a summary that arrives from elsewhere."""
    assert isinstance(subspace, Subspace)
    parts = (subspace.components, subspace.singular_values, subspace.mean, subspace.count, subspace.total)
    Subspace(*parts, subspace.centered, about=subspace.about)


def singular_values(rows, center=True):
    """All of them, exact to rounding of the largest: nothing is squared."""
    rows = np.asarray(rows, dtype=np.float64)
    for _ in range(2 if center else 0):  # twice: a mean far from zero rounds
        rows = rows - rows.mean(axis=0)
    triangle = np.linalg.qr(rows if len(rows) > rows.shape[1] else rows.T, mode="r")
    return np.linalg.svd(triangle, compute_uv=False)


def shortfall(components, rows, center=True):
    """1 - captured variance / the most that so many directions can capture, by numpy."""
    rows = np.asarray(rows, dtype=np.float64)
    deviations = rows - rows.mean(axis=0) if center else rows
    basis = np.linalg.qr(np.asarray(components, dtype=np.float64).T)[0]
    best = np.sum(singular_values(rows, center)[: basis.shape[1]] ** 2)
    return 1 - np.sum((deviations @ basis) ** 2) / best


def bits(summary):
    """Everything in a summary, arrays as bytes: -0.0 differs from 0.0, float32 from float64."""
    values = {field.name: getattr(summary, field.name) for field in fields(summary)}
    return tuple(
        (name, value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else (name, type(value), repr(value))
        for name, value in values.items()
    )


def fit_in_batches(pca, rows, batch=50, **settings):
    """An estimator that was given all rows, so many at a time."""
    for part in batch_slices(rows.shape[0], batch):
        pca.partial_fit(rows[part, :], **settings)
    return pca


def track(tracker, rows, rank=3, batch=None, weights=None, **settings):
    """A tracker of a class, given all rows, so many at a time, or at once; `rank` may be a rule."""
    made = tracker(rows.shape[1], FixedRank(rank) if isinstance(rank, int) else rank, **settings)
    for part in batch_slices(rows.shape[0], batch or rows.shape[0]):
        made.update(rows[part], None if weights is None else weights[part])
    return made


def aggregate(messages, rank=3):
    """An aggregator that has received these messages."""
    aggregator = Aggregator(rank)
    for message in messages:
        aggregator.receive(*message)
    return aggregator


def disk_full(*args):
    """To take the place of a function that writes."""
    raise OSError(28, "No space left on device")


def geometric(low, high):
    """Numbers between these, as often small as large."""
    return st.floats(log(low), log(high)).map(exp)


def row_results(pca, rows):
    """What an estimator computes for each row: scores, SPE, T² and log-likelihood, each of shape (n, ...)."""
    return (pca.transform(rows), *pca.anomaly_scores(rows), pca.score_samples(rows))


def assert_same_results(pca, rows, parts, expected):
    """Results of rows in batches are those expected: to 1e-12 of each row, in float32 to 1e-6."""
    found, truth = (
        {name: np.concatenate([part[i] for part in some]) for i, name in enumerate(_RESULTS)}
        for some in (parts, expected)
    )
    size = np.linalg.norm(np.nan_to_num(rows - pca.mean_), axis=1) + np.linalg.norm(pca.mean_)
    smallest = float(pca.explained_variance_[-1])
    limits = {  # what an error of the size of the row does to the others
        "scores": size[:, None],
        "spe": size**2,
        "t2": 2 * size**2 / smallest,
        "log-likelihood": size**2 / min(pca.noise_variance_ or smallest, smallest),
    }
    eps = 1e-12 if pca.components_.dtype == rows.dtype == np.float64 else 1e-6
    for name, limit in limits.items():
        assert (np.abs(found[name] - truth[name]) <= eps * limit).all(), name


_RESULTS = ("scores", "spe", "t2", "log-likelihood")


def edge_of_rounding(n_rows, n_features, radius=2.0**12):
    """Rows made so that the last bit of a norm decides to which integer their first entry goes."""
    rows = np.random.default_rng(0).normal(size=(n_rows, n_features))
    norms = np.linalg.norm(rows, axis=1)
    halves = np.floor(rows[:, 0] / norms * radius) + 0.5
    rest = np.sqrt(np.maximum((rows[:, 0] * radius / halves) ** 2 - rows[:, 0] ** 2, 0))
    rows[:, 1:] *= (rest / np.sqrt((rows[:, 1:] ** 2).sum(axis=1)))[:, None]
    return rows


# --- rows in mixed units ---


def exact_scaling(rows, weights=None):
    """Weights, means and variances of the observed entries, in extended precision."""
    rows = np.asarray(rows, dtype=np.longdouble)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights)
    own = np.where(np.isnan(rows), 0, weights[:, None]).astype(np.longdouble)
    observed = own.sum(axis=0)
    divisor = np.where(observed > 0, observed, 1)
    mean = (own * np.nan_to_num(rows)).sum(axis=0) / divisor
    variance = (own * np.nan_to_num(rows - mean) ** 2).sum(axis=0) / divisor
    return observed, mean, variance


def standardized(rows, weights=None):
    """Rows less their means over their standard deviations, in extended precision; 0 if constant."""
    _, mean, variance = exact_scaling(rows, weights)
    rows = np.asarray(rows, dtype=np.longdouble)
    scale = np.where(np.ptp(np.asarray(rows, np.float64), axis=0) > 0, np.sqrt(variance), 1)
    return np.where(np.ptp(np.asarray(rows, np.float64), axis=0) > 0, (rows - mean) / scale, 0).astype(float)


def assert_pca_of(summary, rows, weights=None, atol=1e-10, center=True):
    """The summary has the scatter, scale and mean of the standardized rows."""
    subspace = summary.subspace()
    expected = standardized(rows, weights)
    weights = np.ones(len(rows)) if weights is None else weights
    scatter = (expected * np.asarray(weights)[:, None]).T @ expected / np.sum(weights)
    found = (subspace.components.T * subspace.singular_values**2) @ subspace.components / subspace.count
    np.testing.assert_allclose(found, scatter, atol=atol)
    _, mean, variance = exact_scaling(rows, weights)
    constant = np.ptp(rows, axis=0) == 0
    scale = np.where(constant, 1, np.sqrt(variance.astype(float)))
    np.testing.assert_allclose(subspace.scale, scale, rtol=1e-9)
    np.testing.assert_allclose(subspace.mean * subspace.scale, mean.astype(float), rtol=1e-9, atol=1e-300)
    assert subspace.total == pytest.approx(subspace.count * np.count_nonzero(~constant), rel=1e-9)


@st.composite
def mixed_units(draw, min_rows=1, max_rows=60, constant=True):
    """Rows of features in units from 1e-6 to 1e9, means up to a million deviations away, some constant."""
    n_rows, n_features = draw(st.integers(min_rows, max_rows)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    units = 10.0 ** rng.uniform(-6, 9, n_features)
    away = draw(st.sampled_from([0.0, 1.0, 1e3, 1e6])) * rng.normal(size=n_features)
    mixed = rng.normal(size=(n_rows, n_features)) @ (
        np.eye(n_features) + 0.3 * rng.normal(size=(n_features,) * 2)
    )
    rows = units * (mixed + away)
    if constant and draw(st.booleans()):
        rows[:, draw(st.integers(0, n_features - 1))] = draw(st.sampled_from([0.0, 0.1, 1e9, -3.7]))
    return rows


def cut(draw, rows):
    """Rows of unequal owners, in any order, some with one row."""
    places = draw(st.lists(st.integers(0, len(rows)), max_size=5))
    parts = np.split(rows, sorted(places))
    return draw(st.permutations([part for part in parts if len(part)]))


def secrets_in(value):
    """All sums that are not noised, and all keys, that can be reached from an object."""
    found, seen, todo = [], set(), [value]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        has_keys = isinstance(value, Exit) and value.has_keys
        if has_keys or isinstance(value, Mechanism | Pairing | ExactNoise):
            found.append(value)
        todo += getattr(value, "__dict__", {}).values()
        todo += value.values() if isinstance(value, dict) else ()
        todo += value if isinstance(value, list | tuple) else ()
    return found


_SOURCE = str(Path(fedpca.__file__).parent)


class Interrupter:
    """Raises KeyboardInterrupt at one line of the library; counts the lines that came before it."""

    def __init__(self, at):
        self.at = at
        self.lines = 0

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self.trace


def interrupted(call, at):
    """Whether the call had so many lines; it was interrupted at the last."""
    with Interrupter(at):
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


def secured(summary):
    """A private summary as secure sums of five of seven owners would have it."""
    members = [f"owner {number}" for number in range(7)]
    sums = SecureSum("mean", members[1:], 1500, 6 / 5), SecureSum("gram", members[1:6], 1300, 5 / 4)
    promise = "holds against the coordinator together with any 1 of the 7 members"
    record = Secured("heart", members, 5, 1, 5, sums, sigma=3.0, aliasing=1e-40, promise=promise)
    return summary.with_about(certificate=replace(summary.certificate, secure=record))
