"""What the benchmarks of private components share: the data, the mechanisms, how close an answer is.

Rows are clipped to a ball whose radius, and center, are taken from the rows themselves and treated as public:
what they would cost is not in epsilon. The answer that components are compared with is the exact one of the
clipped rows, so that noise is all that separates them.

Keys of the noise are made from seeds: tables repeat, and nothing here is private.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, lgamma, pi, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.common import Array, random_basis

if TYPE_CHECKING:
    from fedpca import Privacy
    from fedpca.privacy.clipping import Clipping
    from fedpca.summaries.certificate import Certificate

DATA = Path(os.environ.get("FEDPCA_DATA", Path(__file__).parents[2] / "shared" / "data"))

# How they are named in tables. The masks of published formulas are so large that their exact noise takes
# seconds at d = 784: floats of the same distribution stand in for it.
GRAM, SKETCH, MOD_SULQ = "gram", "sketch", "MOD-SuLQ"
STREAMING, PAPER = "streaming MOD-SuLQ, analytic", "streaming MOD-SuLQ, paper"
MECHANISMS = (GRAM, SKETCH, STREAMING, MOD_SULQ, PAPER)


class Score(NamedTuple):
    """How close components are to the exact ones.

    q: |<v1, v1_hat>|, the paper's q_A.  affinity: ||U^T U_hat||_F^2 / r.
    captured: variance inside the span / the most that r directions can hold.
    """

    q: float
    affinity: float
    captured: float


@dataclass(frozen=True)
class Task:
    """Rows, shape (n, d), of which `rank` components are wanted.

    center: the public vector that is subtracted, or None.  bound: the public radius that rows are clipped to.
    """

    name: str
    rows: Array
    rank: int
    center: Array | None = None
    bound: float = 1.0

    @property
    def n_features(self) -> int:
        return int(self.rows.shape[1])

    @property
    def shape(self) -> str:
        return f"d = {self.n_features}, n = {len(self.rows)}, r = {self.rank}"

    @cached_property
    def clipping(self) -> Clipping:
        from fedpca.privacy.clipping import Clipping

        return Clipping(self.bound, self.center)

    @cached_property
    def points(self) -> Array:
        """The clipped rows, on the lattice."""
        return self.clipping.points(self.clipping.deviations(self.rows))

    @cached_property
    def covariance(self) -> Array:
        """The mean of x x^T over the clipped rows, in the unit ball."""
        from fedpca.privacy.clipping import RADIUS

        return self.points.T @ self.points / (RADIUS**2 * len(self.points))

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues, descending, and eigenvectors, as rows."""
        values, vectors = np.linalg.eigh(self.covariance)
        return values[::-1], vectors.T[::-1]

    def score(self, components: Array) -> Score:
        """Of at most `rank` orthonormal rows; one that is missing counts as orthogonal to all."""
        values, truth = self.spectrum
        components = components[: self.rank]
        q = abs(float(components[0] @ truth[0])) if len(components) else 0.0
        affinity = float(np.square(components @ truth[: self.rank].T).sum()) / self.rank
        held = float(np.einsum("ij,jk,ik->", components, self.covariance, components))
        return Score(q, affinity, held / float(values[: self.rank].sum()))

    @property
    def chance(self) -> Score:
        """What random directions score on average."""
        d = self.n_features
        cosine = exp(lgamma(d / 2) - lgamma((d + 1) / 2)) / sqrt(pi)
        values = self.spectrum[0]
        held = self.rank * float(values.mean() / values[: self.rank].sum())
        return Score(cosine, self.rank / d, held)


# Data.


def power_law_task(n: int, d: int, *, alpha: float, rank: int, seed: int) -> Task:
    """The paper's rows: standard deviations i^-alpha along random directions, divided by the largest norm."""
    rng = np.random.default_rng(seed)
    basis = random_basis(d, d, rng)
    rows = (rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis
    rows /= np.linalg.norm(rows, axis=1).max()
    return Task(f"power law, alpha = {alpha:g}", rows, rank)


def centered_task(name: str, rows: Array, rank: int) -> Task:
    """Rows about their exact mean, clipped at the 90th percentile of their distance from it."""
    mean = rows.mean(axis=0)
    bound = float(np.percentile(np.linalg.norm(rows - mean, axis=1), 90))
    return Task(name, rows, rank, mean, bound)


def digits_task() -> Task:
    from sklearn.datasets import load_digits

    return centered_task("digits", load_digits().data / 16, rank=5)


def wine_task() -> Task | None:
    """Red wine, every feature standardized; None, and a line, if the file is missing."""
    path = found("winequality-red.csv")
    if path is None:
        return None
    rows = np.loadtxt(path, delimiter=";", skiprows=1)[:, :11]  # without the quality
    return centered_task("red wine", (rows - rows.mean(axis=0)) / rows.std(axis=0), rank=2)


def mnist_task() -> Task | None:
    """The 10,000 test images; None, and a line, if the file is missing."""
    path = found("mnist_test.npz")
    return None if path is None else centered_task("MNIST test", np.load(path)["X"] / 255.0, rank=6)


def found(name: str) -> Path | None:
    path = DATA / name
    if path.exists():
        return path
    print(f"Left out: {name} is not in the folder that FEDPCA_DATA names.\n", flush=True)
    return None


# Mechanisms.


def settings(task: Task, name: str, epsilon: float, delta: float) -> Privacy:
    from fedpca import Privacy

    return Privacy(epsilon, delta, task.bound, mechanism=name, center=None, evaluate=False)


def key(*parts: object) -> bytes:
    """32 bytes of its own for every combination of names, numbers and a seed."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=32).digest()


def released(task: Task, name: str, epsilon: float, delta: float, *, seed: int, batch: int) -> Score:
    """Score one release by a mechanism of the library, or by the paper's algorithms, about the public center.

    The estimator would do the same, and refuse a delta of one over the number of rows or more, which the
    paper's settings have.
    """
    from fedpca.privacy.clipping import RADIUS
    from fedpca.privacy.mechanisms import build
    from fedpca.privacy.noise import ExactNoise
    from reproduction.fast_noise import FastNoise
    from reproduction.noisy_summary import noisy_summary

    own = key(task.name, name, epsilon, delta, seed)
    if name in (GRAM, SKETCH):
        privacy = settings(task, name, epsilon, delta)
        mechanism = build(privacy, task.clipping, task.n_features, rank=task.rank)
        mechanism.take(task.points)
        summary = noisy_summary(mechanism, ExactNoise(own), certificate(privacy))
        return task.score(summary.subspace(task.rank).components)

    from fedpca.paper.fpca_edge import FPCAEdge
    from fedpca.paper.mod_sulq import mod_sulq
    from fedpca.paper.noise import paper_omega
    from fedpca.privacy.calibration import analytic_sigma

    d, rows = task.n_features, task.points / RADIUS
    if name == MOD_SULQ:
        found = mod_sulq(rows, task.rank, epsilon=epsilon, delta=delta, noise=FastNoise(own))
        return task.score(found.components)
    analytic = name == STREAMING
    edge = FPCAEdge(
        d,
        min(2 * task.rank + 10, d),
        batch,
        sigma=analytic_sigma(epsilon, delta) if analytic else paper_omega(epsilon, delta, d, 1),
        noise=ExactNoise(own) if analytic else FastNoise(own),
    )
    edge.update(rows)
    return task.score(edge.summary().components)


def certificate(privacy: Privacy) -> Certificate:
    """As much of a certificate as a mechanism needs."""
    from fedpca.summaries.certificate import Certificate

    return Certificate(private=False, epsilon=privacy.epsilon, delta=privacy.delta, mu=privacy.mu)


# Statistics.


def mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over the seeds."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def at_chance(values: Sequence[float], chance: float) -> bool:
    """Whether the mean is not above chance by more than three of its standard errors."""
    return bool(np.mean(values) <= chance + 3 * np.std(values) / sqrt(len(values)))
