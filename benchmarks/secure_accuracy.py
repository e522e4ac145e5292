"""How good private components are when owners share the noise by secure sums, against one pool of all rows.

    python -m benchmarks.secure_accuracy            # 40 seeds of digits, 5 of MNIST
    python -m benchmarks.secure_accuracy --quick    # 3 seeds of digits
    python -m benchmarks.secure_accuracy digits     # one data set

digits   10 owners of random rows, or one per digit; r = 5, epsilon = 2, least 6.
mnist    the 10,000 test images, 50 owners of unequal sizes; r = 6, epsilon = 1, `least` by default.

delta = 1e-5, and one owner may collude. "public": the exact mean as a public center, and the 90th percentile
of distances from it as a public bound; "private": nothing about the rows is public.

pool         one StreamingPCA with the same Privacy on all rows
secure       the real protocol, in one process, all owners present
local        FederatedPCA, every owner with noise of its own
drop-outs    as many owners as may be missing send no masked words in any sum
their pool   one StreamingPCA on the rows of those who are left

The evaluation is on. Affinity is ||U^T U_hat||_F^2 / r with the exact components of all rows; where fewer
than r components rise above the noise, the r leading directions of the release are judged. Mean ± standard
error over the seeds, which change the noise and who drops out; all noise is exact.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from benchmarks.common import Array, heading, machine, options, table, verdict
from benchmarks.private import Task, digits_task, mnist_task

LIMIT = 0.01  # of affinity, below one pool

Owners = list[Array]


def leading(scatter: Array, rank: int) -> Array:
    return np.linalg.eigh(scatter)[1].T[::-1][:rank]


def affinity(components: Array, truth: Array) -> float:
    return float(np.square(components @ truth.T).sum()) / len(truth)


def pooled(rows: Array, settings: dict, rank: int) -> Array:
    from fedpca import PrivatePCA

    pca = PrivatePCA(rank, **settings).fit(rows)
    return leading(pca.release().scatter, rank)


def local(owners: Owners, settings: dict, rank: int) -> Array:
    from fedpca import FederatedPCA, Privacy

    pca = FederatedPCA(rank, privacy=Privacy(**settings))
    pca.fit_clients({f"{i:03}": rows for i, rows in enumerate(owners)})
    return leading(pca._source.whole.scatter, rank)


def secured(
    owners: Owners, settings: dict, rank: int, least: int | None, absent: set[int]
) -> tuple[Array, float]:
    """The directions that a study finds, and the variance of the noise in its release."""
    from fedpca import Privacy, SecureSums
    from fedpca.federation.one_process.secure_clients import SecureClients
    from fedpca.secure.fit import PrivateFit
    from fedpca.secure.rows import OwnerRows

    def missing() -> Iterator[Array]:
        raise ConnectionError("gone")

    tables = {f"{i:03}": OwnerRows.of_table(rows) for i, rows in enumerate(owners)}
    tables |= {f"{i:03}": replace(tables[f"{i:03}"], parts=missing) for i in absent}
    privacy = Privacy(**settings)
    n_features = owners[0].shape[1]
    study = SecureClients(
        tables, {}, lambda: PrivateFit(privacy, n_features, rank), SecureSums(least=least), privacy
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        result = study.run(pool)
    release = next(part for part in result.fit.taken if part.sum == "gram")
    assert len(release.owners) == len(owners) - len(absent)
    return leading(result.fit.view.whole.scatter, rank), release.noise


def measure(
    title: str,
    task: Task,
    cut: Callable[[int], Owners],
    *,
    epsilon: float,
    least: int | None,
    seeds: range,
    judged: bool,
) -> None:
    """The table of one way to cut rows into owners."""
    owners = cut(0)
    fewest = least or (len(owners) + 1) // 2 + 1
    heading(
        f"{title}: {task.shape}, {len(owners)} owners of {min(map(len, owners))} to {max(map(len, owners))} "
        f"rows, epsilon = {epsilon:g}, delta = 1e-5, least = {fewest}, {len(seeds)} seeds"
    )
    deviations = task.rows - task.rows.mean(axis=0)
    truth = leading(deviations.T @ deviations, task.rank)
    base = {"epsilon": epsilon, "delta": 1e-5}
    public = base | {"bound": task.bound, "center": task.center}
    lines, found = [], {}
    for name, settings in (("public", public), ("private", base)):
        scores: dict[str, list[float]] = {
            what: [] for what in ("pool", "secure", "local", "drop-outs", "their pool")
        }
        noises: dict[str, float] = {}
        for seed in seeds:
            owners, rng = cut(seed), np.random.default_rng(seed)
            absent = set(rng.choice(len(owners), len(owners) - fewest, replace=False).tolist())
            left = np.concatenate([rows for i, rows in enumerate(owners) if i not in absent])
            all_present, noises["secure"] = secured(owners, settings, task.rank, least, set())
            some_present, noises["drop-outs"] = secured(owners, settings, task.rank, least, absent)
            for what, components in (
                ("pool", pooled(task.rows, settings, task.rank)),
                ("secure", all_present),
                ("local", local(owners, settings, task.rank)),
                ("drop-outs", some_present),
                ("their pool", pooled(left, settings, task.rank)),
            ):
                scores[what].append(affinity(components, truth))
        lines += [
            (name, what, mean_and_error(values), f"{noises.get(what, 1.0):.3f}" if what != "local" else "-")
            for what, values in scores.items()
        ]
        found[name] = scores
    table(("center, bound", "", "affinity", "variance of the noise"), lines)
    for name, scores in found.items():
        for what, other in (("secure", "pool"), ("drop-outs", "their pool")):
            difference = float(np.mean(scores[what]) - np.mean(scores[other]))
            error = np.hypot(standard_error(scores[what]), standard_error(scores[other]))
            text = f"{title}, {name}: {what} within {LIMIT} of {'one pool' if other == 'pool' else other}"
            shown = f"{difference:+.4f} ± {error:.4f}"
            if judged and what == "secure":
                verdict(difference >= -LIMIT, text, shown)
            else:
                print(f"      {text}: {shown}", flush=True)


def standard_error(values: list[float]) -> float:
    return float(np.std(values) / np.sqrt(max(len(values) - 1, 1)))


def mean_and_error(values: list[float]) -> str:
    return f"{np.mean(values):.4f} ± {standard_error(values):.4f}"


def digits(seeds: range) -> None:
    from sklearn.datasets import load_digits

    task, labels = digits_task(), load_digits().target

    def at_random(seed: int) -> Owners:
        order = np.random.default_rng(seed).permutation(len(task.rows))
        return np.array_split(task.rows[order], 10)

    def by_digit(seed: int) -> Owners:
        return [task.rows[labels == digit] for digit in range(10)]

    measure("digits", task, at_random, epsilon=2.0, least=6, seeds=seeds, judged=True)
    measure("digits, one owner per digit", task, by_digit, epsilon=2.0, least=6, seeds=seeds, judged=False)


def mnist(seeds: range) -> None:
    task = mnist_task()
    if task is None:
        return

    def unequal(seed: int) -> Owners:
        """Log-normal sizes, 10 rows at least."""
        rng = np.random.default_rng(seed)
        sizes = rng.lognormal(sigma=1.0, size=50)
        sizes = 10 + np.floor(sizes / sizes.sum() * (len(task.rows) - 500)).astype(int)
        order = rng.permutation(len(task.rows))
        return np.split(task.rows[order], np.cumsum(sizes)[:-1])

    measure("MNIST test", task, unequal, epsilon=1.0, least=None, seeds=seeds, judged=True)


def main() -> None:
    parser = options(__doc__, "3 seeds of digits")
    parser.add_argument("names", nargs="*", metavar="name", help="digits or mnist; both if none is given")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {"digits", "mnist"}:
        parser.error(f"data sets are digits and mnist, got {', '.join(sorted(unknown))}.")
    names = arguments.names or (["digits"] if arguments.quick else ["digits", "mnist"])
    warnings.simplefilter("ignore")
    print(f"# Accuracy of secure sums\n\n{machine()}")
    if "digits" in names:
        digits(range(3 if arguments.quick else 40))
    if "mnist" in names:
        mnist(range(1 if arguments.quick else 5))


if __name__ == "__main__":
    main()
