"""Ten numbers, kept per release: benchmarks/history.csv.

    make benchmark ARGS=--record      # measures, and adds a line
    make benchmark ARGS=--compare     # measures, and exits with 1 if one is worse than in the last line

Speed is in CPU time on one thread, as a multiple of the least that numpy needs on the same rows, so that
machines can be compared; rows and noise are the same every time.
"""

from __future__ import annotations

import csv
import datetime
import statistics
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Array, heading, machine, number, power_law, table
from reproduction.exact import Exact, batches

HISTORY = Path(__file__).with_name("history.csv")
ROUNDS = 7


class Number(NamedTuple):
    """One of the ten: what it is, how much worse it may get, as a share of it, and how it is measured.

    Less is better, but for those that are `shares`, of at most 1: of these the distance to 1 counts.
    """

    about: str
    tolerance: float
    measure: Callable[[], float]
    share: bool = False


def times_as_long(run: Callable[[], Any], least: Callable[[], Any]) -> float:
    """The median ratio of CPU times, in turn; each is repeated to take a hundredth of a second or more."""

    def repeats(call: Callable[[], Any]) -> int:
        call()
        start, n = process_time(), 0
        while process_time() - start < 0.01:
            call()
            n += 1
        return n

    def seconds(call: Callable[[], Any], n: int) -> float:
        start = process_time()
        for _ in range(n):
            call()
        return (process_time() - start) / n

    n, n_least = repeats(run), repeats(least)
    return statistics.median(seconds(run, n) / seconds(least, n_least) for _ in range(ROUNDS))


def fit(rows: Array, rank: int, *, batch: int = 1000, tracker: str = "auto") -> Any:
    from fedpca import StreamingPCA

    pca = StreamingPCA(rank, tracker=tracker, n_jobs=1)
    for part in batches(rows, batch):
        pca.partial_fit(part)
    return pca


def exact_time() -> float:
    rows = power_law(20_000, 100, dtype="float32")
    return times_as_long(lambda: fit(rows, 10).components_, lambda: rows.T @ rows)


def fast_time() -> float:
    rows = power_law(20_000, 1000, dtype="float32")
    return times_as_long(lambda: fit(rows, 10, tracker="nystrom").components_, lambda: rows @ rows[:10].T)


def one_row_time() -> float:
    from fedpca import StreamingPCA

    names = [f"x{j}" for j in range(50)]
    row = power_law(1, 50)[0]
    pca, mapping, scatter = StreamingPCA(5), dict(zip(names, row.tolist(), strict=True)), np.zeros((50, 50))

    def least() -> None:
        nonlocal scatter
        scatter += np.outer(row, row)

    return times_as_long(lambda: pca.learn_one(mapping), least)


def merge_time() -> float:
    from fedpca import Subspace, merge

    parts = [Subspace.from_rows(power_law(400, 200, seed=seed), rank=20) for seed in range(16)]
    stacked = np.concatenate([part.components for part in parts])
    return times_as_long(lambda: merge(parts, rank=20), lambda: np.linalg.svd(stacked, full_matrices=False))


def traced_peak(run: Callable[[], Any]) -> int:
    """Bytes beyond what was there before; the first run fills caches."""
    run()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def fast_memory() -> float:
    rows = power_law(2000, 5000, dtype="float32")
    return traced_peak(lambda: fit(rows, 10, batch=100, tracker="nystrom").components_) / (5000 * 10 * 8)


def exact_memory() -> float:
    rows = power_law(1000, 200)
    return traced_peak(lambda: fit(rows, 10, batch=100).components_) / (200 * 200 * 8)


def lost() -> float:
    rows = power_law(10_000, 1000, alpha=0.4)
    return Exact.of(rows, 10).shortfall(fit(rows, 10, batch=100, tracker="nystrom").components_)


def private_affinity() -> float:
    from sklearn.datasets import load_digits

    from fedpca import PrivatePCA, metrics

    rows, found = load_digits().data, []
    exact = fit(rows, 2).components_
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the noise is from a seed
        for seed in range(10):
            release = PrivatePCA(2, epsilon=4, delta=1e-5, insecure_seed_for_tests=seed).fit(rows).release()
            found.append(metrics.affinity(np.linalg.eigh(release.scatter)[1][:, -2:].T, exact))
    return float(np.mean(found))


def outliers_found() -> float:
    """The area under the ROC curve of malignant among benign, one in ten of all."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.metrics import roc_auc_score

    from fedpca import PCADetector

    rows, benign = load_breast_cancer(return_X_y=True)
    kept = np.concatenate([np.flatnonzero(benign), np.flatnonzero(1 - benign)[:40]])
    return float(roc_auc_score(1 - benign[kept], -PCADetector().fit(rows[kept]).score_samples(rows[kept])))


def package_size() -> float:
    """Kilobytes of the package as installed, without what Python compiles."""
    import fedpca

    files = Path(fedpca.__path__[0]).rglob("*")
    return (
        sum(file.stat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts) / 1e3
    )


# Tolerances: three records in a row, on a machine with seven times as many processes as cores, differed by
# 11 % in speed, and not at all in the others, which depend on the builds of libraries.
NUMBERS = {
    "exact fit": Number("20,000 x 100 float32, times X'X", 0.25, exact_time),
    "fast fit": Number("20,000 x 1,000 float32, r = 10, times one projection", 0.25, fast_time),
    "one row": Number("learn_one, d = 50, times an outer product", 0.25, one_row_time),
    "merge": Number("16 summaries of 20 directions, d = 200, times one SVD", 0.25, merge_time),
    "fast memory": Number("d = 5,000, r = 10, batches of 100, times d r", 0.1, fast_memory),
    "exact memory": Number("d = 200, batches of 100, times d^2", 0.1, exact_memory),
    "lost": Number("shortfall of the fast tracker, alpha = 0.4, d = 1,000", 0.1, lost),
    "private": Number("affinity, digits, r = 2, epsilon = 4, mean of 10", 0.05, private_affinity, share=True),
    "outliers": Number("AUROC, breast cancer", 0.05, outliers_found, share=True),
    "size": Number("kB of the package", 0.2, package_size),
}


def measured(numbers: Mapping[str, Number]) -> dict[str, float]:
    return {name: each.measure() for name, each in numbers.items()}


def is_worse(each: Number, before: float, now: float) -> bool:
    if each.share:
        before, now = 1 - before, 1 - now
    return now > before * (1 + each.tolerance)


def recorded(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def record(path: Path = HISTORY, numbers: Mapping[str, Number] = NUMBERS) -> None:
    """Measure, and add a line."""
    from fedpca import __version__

    lines = recorded(path) if path.exists() else []
    found = {name: f"{value:.4g}" for name, value in measured(numbers).items()}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines.append({"version": __version__, "date": today, **found, "machine": machine()})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[-1]), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{path.name}: {len(lines)} line{'s' * (len(lines) > 1)}")


def compare(path: Path = HISTORY, numbers: Mapping[str, Number] = NUMBERS) -> int:
    """Measure, and compare with the last line: 1 if a number is worse than its tolerance allows."""
    last, now = recorded(path)[-1], measured(numbers)
    print(machine())
    heading(f"Ten numbers, and those of {last['version']} on {last['date']}")
    lines, status = [], 0
    for name, each in numbers.items():
        before = float(last[name]) if last.get(name) else float("nan")  # a new one has none
        worse = is_worse(each, before, now[name])
        status |= worse
        lines.append(
            [name, each.about, number(before), number(now[name]), f"{each.tolerance:.0%}", "WORSE" * worse]
        )
    table(["number", "", "then", "now", "tolerance", ""], lines)
    return status
