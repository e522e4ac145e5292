"""What liars do to the model of ten owners of MNIST, three of them lying, with each rule of robust merging.

    python -m benchmarks.liars           # 784 pixels; half an hour on one core
    python -m benchmarks.liars --quick   # pixels averaged by fours, 196: a minute
    python -m benchmarks.liars --constants   # other values of the constants of robust.py, 196 pixels

Owners are alike (rows at random), unlike (shares of every digit from Dirichlet(0.5)), or have one digit each.
Judged are the first five directions against those of all rows of all ten owners, before the lies: the largest
angle, and the variance captured as a share of the best possible. Mean over seeds, and in brackets the worst.
"the honest": the plain merge of the seven others. A lie that replaces an owner's rows loses these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from benchmarks.common import Array, heading, machine, options, table

OWNERS, LIARS, RANK = 10, 3, 5
SEEDS = range(100, 110)
RULES = ("plain", "the honest", "cap", "median", "trim")


class Truth:
    """All rows, and their directions."""

    def __init__(self, rows: Array, labels: Array) -> None:
        self.rows, self.labels, self.d = rows, labels, rows.shape[1]
        self.mean = rows.mean(axis=0)
        self.covariance = np.cov(rows.T, bias=True)
        energies, vectors = np.linalg.eigh(self.covariance)
        self.energies, self.vectors = energies[::-1], vectors[:, ::-1]

    def judge(self, model: Any) -> tuple[float, float]:
        components = model.subspace(RANK).components
        components = np.linalg.qr(components.T)[0].T if len(components) else components
        cosines = np.linalg.svd(components @ self.vectors[:, :RANK], compute_uv=False)
        least = cosines[-1] if len(cosines) == RANK else 0.0
        captured = np.trace(components @ self.covariance @ components.T) / self.energies[:RANK].sum()
        return float(np.degrees(np.arccos(min(least, 1.0)))), float(captured)


def split(truth: Truth, kind: str, rng: np.random.Generator) -> list[Array]:
    """The rows of each owner."""
    if kind == "alike":
        return np.array_split(rng.permutation(len(truth.rows)), OWNERS)
    if kind == "one digit each":
        return [np.flatnonzero(truth.labels == digit) for digit in rng.permutation(OWNERS)]
    parts: list[list[int]] = [[] for _ in range(OWNERS)]
    for digit in range(10):
        own = rng.permutation(np.flatnonzero(truth.labels == digit))
        stops = (np.cumsum(rng.dirichlet(np.full(OWNERS, 0.5)))[:-1] * len(own)).astype(int)
        for part, some in zip(parts, np.split(own, stops), strict=True):
            part.extend(some)
    return [np.array(part) for part in parts]


Lie = Callable[[Any, "Draw"], Any]


class Draw:
    """What the liars of one federation agree on."""

    def __init__(self, truth: Truth, seed: int) -> None:
        self.truth, self.rng = truth, np.random.default_rng(seed)
        self.direction = self.unit()
        self.rotation = np.linalg.qr(self.rng.standard_normal((truth.d, truth.d)))[0]

    def unit(self) -> Array:
        direction = self.rng.standard_normal(self.truth.d)
        return direction / np.linalg.norm(direction)


def spike(size: float) -> Lie:
    def lie(own: Any, draw: Draw) -> Any:
        u = draw.direction
        return replace(own, scatter=own.scatter + own.count * size * np.outer(u, u))

    return lie


def own_spikes(own: Any, draw: Draw) -> Any:
    u = draw.unit()
    return replace(own, scatter=own.scatter + own.count * 8 * np.outer(u, u))


def rotated(own: Any, draw: Draw) -> Any:
    return replace(own, scatter=draw.rotation @ own.scatter @ draw.rotation.T)


def inflated(own: Any, draw: Draw) -> Any:
    return rotated(own, draw).scaled(sqrt(1e12 / own.count))


def far_mean(own: Any, draw: Draw) -> Any:
    return replace(own, mean=own.mean + 1e3 * draw.direction)


def negative(own: Any, draw: Draw) -> Any:
    first = draw.truth.vectors[:, :RANK]
    return replace(own, scatter=own.scatter - own.count * 30 * first @ first.T)


def huge(own: Any, draw: Draw) -> Any:
    from fedpca import Moments

    return Moments.from_rows(1e100 * draw.direction * np.array([[1.0], [1.5]]))


def shared_direction(own: Any, draw: Draw) -> Any:
    u = draw.truth.vectors[:, 12]
    return replace(own, scatter=own.scatter + own.count * 8 * np.outer(u, u))


def erased(own: Any, draw: Draw) -> Any:
    first = draw.truth.vectors[:, :RANK]
    rest = np.eye(draw.truth.d) - first @ first.T
    mean = draw.truth.mean + rest @ (own.mean - draw.truth.mean)
    return replace(own, scatter=rest @ own.scatter @ rest, mean=mean)


def exchanged(share: float) -> Lie:
    """The truth, but directions 6 to 10 have the energy of the first five, mixed with the liar's own."""

    def lie(own: Any, draw: Draw) -> Any:
        truth = draw.truth
        energies = truth.energies.copy()
        energies[: 2 * RANK] = [*np.zeros(RANK), *truth.energies[:RANK]]
        false = own.count * (truth.vectors * energies) @ truth.vectors.T
        mean = (1 - share) * own.mean + share * truth.mean
        return replace(own, scatter=(1 - share) * own.scatter + share * false, mean=mean)

    return lie


LIES: dict[str, Lie] = {
    "none": lambda own, draw: own,
    "spike of 1e4": spike(1e4),
    "spike of 8": spike(8),
    "spikes of 8, one per liar": own_spikes,
    "rotated basis": rotated,
    "rotated, 1e12 rows": inflated,
    "far mean": far_mean,
    "negative energy (private)": negative,
    "two rows of 1e100": huge,
    "spike along direction 13": shared_direction,
    "first five erased": erased,
    "first ten exchanged": exchanged(1.0),
    "70 % exchanged": exchanged(0.7),
}


def private(own: Any, truth: Truth, rng: np.random.Generator) -> Any:
    """The moments as a private release has them: noise of 2 % of the largest energy, and a certificate."""
    from fedpca.summaries.certificate import Certificate

    edge = 0.02 * own.count * truth.energies[0]
    noise = np.triu(rng.standard_normal((truth.d, truth.d)) * edge / (2 * sqrt(truth.d)))
    noise = noise + np.triu(noise, 1).T
    certificate = Certificate(private=True, epsilon=1.0, delta=1e-6, mu=0.2, noise_edge=float(edge))
    return replace(own, scatter=own.scatter + noise).with_about(certificate=certificate)


def merged(owners: dict[str, Any], rule: str) -> Any:
    from fedpca.federation.aggregator.robust import merge_robust
    from fedpca.summaries.merging import merge_distinct

    if rule == "plain":
        return merge_distinct(list(owners.values()))
    if rule == "the honest":
        return merge_distinct(list(owners.values())[LIARS:])
    return merge_robust(owners, rule)  # type: ignore[arg-type]


def main() -> None:
    from fedpca import Moments
    from reproduction import datasets

    parser = options(__doc__, "pixels averaged by fours")
    parser.add_argument("--constants", action="store_true", help="other values of the constants")
    arguments = parser.parse_args()
    found = datasets.load("mnist-test")
    rows, labels = np.asarray(found.rows, np.float64) / 255, np.asarray(found.labels)
    if arguments.quick or arguments.constants:
        rows = 2 * rows.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    truth = Truth(rows, labels)
    print(machine())
    if arguments.constants:
        constants(truth)
        return
    for kind in ("alike", "Dirichlet(0.5)", "one digit each"):
        judged: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            honest = [Moments.from_rows(rows[part]) for part in split(truth, kind, rng)]
            for name, lie in LIES.items():
                draw, of_lie = Draw(truth, seed), honest
                if "private" in name:
                    of_lie = [private(own, truth, rng) for own in honest]
                told = [lie(own, draw) if i < LIARS else own for i, own in enumerate(of_lie)]
                owners = {f"owner {i}": own for i, own in enumerate(told)}
                for rule in RULES:
                    judged.setdefault((name, rule), []).append(truth.judge(merged(owners, rule)))
        heading(f"Owners: {kind}; degrees, captured (worst)")
        table(("lie", *RULES), [(name, *(shown(judged[name, rule]) for rule in RULES)) for name in LIES])


CONSTANTS: dict[str, tuple[float, ...]] = {
    "_LOEWNER": (1.25, 1.5, 2.0, 3.0, 5.0),
    "_RIDGE": (0.05, 0.2, 0.5, 1.0, 2.0),
    "_FAR": (1.25, 1.5, 2.0, 2.5, 4.0),
    "_TRIM_ROUNDS": (1, 3, 10, 30),
    "_MEDIAN_ROUNDS": (3, 10, 30, 100),
}


def constants(truth: Truth) -> None:
    """The share that "trim" captures with other values: without a lie, and with the lie that costs most."""
    from benchmarks.constants import set_to
    from fedpca.federation.aggregator import robust

    for kind in ("alike", "Dirichlet(0.5)"):
        federations = [one for seed in SEEDS[:2] for one in _federations(truth, kind, seed)]
        lines = []
        for name, values in CONSTANTS.items():
            for value in values:
                captured: dict[str, list[float]] = {}
                with set_to(robust, name, value):
                    for lie, owners in federations:
                        captured.setdefault(lie, []).append(truth.judge(merged(owners, "trim"))[1])
                means = {lie: float(np.mean(each)) for lie, each in captured.items()}
                honest = means.pop("none")
                worst = min(means, key=means.__getitem__)
                lines.append((name, f"{value:g}", f"{honest:.4f}", f"{means[worst]:.4f}", worst))
        heading(f'"trim", owners: {kind}; captured, mean of {len(SEEDS[:2])} seeds')
        table(("constant", "value", "no lie", "the worst lie", "which"), lines)


def _federations(truth: Truth, kind: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lies that tell values apart, with the owners who have them."""
    from fedpca import Moments

    rng = np.random.default_rng(seed)
    honest = [Moments.from_rows(truth.rows[part]) for part in split(truth, kind, rng)]
    for name in ("none", "spike of 8", "rotated basis", "spike along direction 13", "70 % exchanged"):
        draw = Draw(truth, seed)
        parts = [LIES[name](own, draw) if i < LIARS else own for i, own in enumerate(honest)]
        yield name, {f"owner {i}": own for i, own in enumerate(parts)}


def shown(found: list[tuple[float, float]]) -> str:
    degrees, captured = np.array(found).T
    return f"{degrees.mean():.1f}, {captured.mean():.4f} ({captured.min():.4f})"


if __name__ == "__main__":
    main()
