"""Monitoring: outliers found, false alarms, the sensor named, and time per row.

    python -m benchmarks.monitoring                  # all four
    python -m benchmarks.monitoring adbench          # PCADetector, PyOD's PCA and IsolationForest in one run
    python -m benchmarks.monitoring alarms faults speed

Data from the folder FEDPCA_DATA (`docs/data-sets.md`). All sets have one setting, the default. ADBench (Han
et al. 2022) has labeled outliers: fits see 70 % of the rows, with outliers and without labels, and the
others are scored, three times.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import Array, heading, machine, table

SEEDS = 3
FAULT_ROWS = 48  # of an injected fault: two days of air quality


def data_folder() -> Path:
    return Path(os.environ.get("FEDPCA_DATA", "."))


# --- outliers ---


def adbench() -> Iterator[tuple[str, Array, Array]]:
    for path in sorted((data_folder() / "adbench").glob("*.npz")):
        with np.load(path) as contents:
            yield path.stem, contents["X"].astype(np.float64), contents["y"].astype(int)


def outlier_scores(train: Array, test: Array, seed: int) -> Iterator[tuple[str, Array]]:
    """What each method says of the rows of a test; higher is more unusual."""
    from sklearn.ensemble import IsolationForest

    from fedpca import PCADetector, StreamingPCA

    yield "PCADetector", -PCADetector().fit(train).score_samples(test)
    yield "without trimming", -PCADetector(trim=0.0).fit(train).score_samples(test)
    pca = StreamingPCA(0.9, scale="std").fit(train)
    yield "likelihood, 90 %, not trimmed", -pca.score_samples(test)
    yield "IsolationForest", -IsolationForest(random_state=seed).fit(train).score_samples(test)
    try:
        from pyod.models.pca import PCA
    except ImportError:
        return
    # Where a direction has no variance PyOD divides by zero, and rows are infinitely far.
    yield "PyOD's PCA", np.nan_to_num(PCA().fit(train).decision_function(test))


def compare_outliers(only: int | None) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score
    from sklearn.model_selection import train_test_split

    heading("ADBench: AUROC and average precision, mean over three splits")
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, rows, labels in adbench():
        if only is not None and len(rows) > only:
            continue
        for seed in range(SEEDS):
            train, test, _, truth = train_test_split(
                rows, labels, test_size=0.3, stratify=labels, random_state=seed
            )
            for method, scores in outlier_scores(train, test, seed):
                quality = roc_auc_score(truth, scores), average_precision_score(truth, scores)
                found.setdefault(method, {}).setdefault(name, []).append(quality)
    means = {
        method: {name: np.mean(values, axis=0) for name, values in sets.items()}
        for method, sets in found.items()
    }
    names = list(means["PCADetector"])
    lines = [[name, *("{:.3f} / {:.3f}".format(*sets[name]) for sets in means.values())] for name in names]
    lines.append(
        ["mean", *("{:.3f} / {:.3f}".format(*np.mean([*sets.values()], axis=0)) for sets in means.values())]
    )
    table(["set", *means], lines)


# --- false alarms ---


def normal_rows() -> Iterator[tuple[str, Array]]:
    """Real rows without known faults; those of a time are shuffled before they are split."""
    import pandas as pd
    from sklearn.datasets import load_breast_cancer, load_digits

    folder = data_folder()
    for color in ("red", "white"):
        wine = pd.read_csv(folder / f"winequality-{color}.csv", sep=";")
        yield f"{color} wine", wine.drop(columns="quality").to_numpy(float)
    with np.load(folder / "tables.npz") as tables:
        for name in ("satellite", "image_segments", "cardio", "spam", "randhie"):
            yield name, tables[name].astype(np.float64)
    yield "air quality", air_quality(folder)
    with np.load(folder / "motes_q8calibVolt.npz") as motes:
        yield "voltage of motes", np.where(motes["X"] == 0, np.nan, motes["X"])
    yield "digits", load_digits().data
    yield "breast cancer", load_breast_cancer().data
    with np.load(folder / "isolet1.npz") as isolet:
        yield "letters", isolet["X"]


def air_quality(folder: Path) -> Array:
    """Hourly rows of 12 sensors, NaN where missing; the thirteenth has values in one row of ten only."""
    import pandas as pd

    table = pd.read_csv(folder / "air_quality_uci.csv.gz")
    numbers = table.select_dtypes("number").to_numpy(float)
    numbers = np.where(numbers == -200, np.nan, numbers)
    return numbers[:, np.isnan(numbers).mean(axis=0) < 0.5]


def count_alarms() -> None:
    from fedpca import PCADetector

    heading("False alarms at 1 %: share of rows held out above the limit, median and range of three splits")
    lines = []
    for name, rows in normal_rows():
        shares, ordered = [], 0.0
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(rows))
            cut = int(0.7 * len(rows))
            shares.append(share_above(PCADetector().fit(rows[order[:cut]]), rows[order[cut:]]))
        ordered = share_above(PCADetector().fit(rows[: int(0.7 * len(rows))]), rows[int(0.7 * len(rows)) :])
        lines.append(
            [name, "x".join(map(str, rows.shape)), f"{np.median(shares):.2%}",
             f"{min(shares):.2%} to {max(shares):.2%}", f"{ordered:.1%}"]
        )  # fmt: skip
    table(["rows", "shape", "split at random", "range", "the last 30 % in order of the file"], lines)


def share_above(detector: Any, rows: Array) -> float:
    return float(np.mean(detector.predict(rows) == -1))


# --- the sensor named ---


def plant(seed: int, n_rows: int = 4000) -> Array:
    """A simulated plant: 33 tags of mixed units, 6 hidden causes that change slowly, noise of .3 to .6."""
    rng = np.random.default_rng(seed)
    causes = np.zeros((n_rows, 6))
    steps = rng.normal(size=(n_rows, 6))
    for i in range(1, n_rows):
        causes[i] = 0.95 * causes[i - 1] + np.sqrt(1 - 0.95**2) * steps[i]
    loadings = np.random.default_rng(0).normal(size=(6, 33)) / np.sqrt(6)
    tags = causes @ loadings + rng.uniform(0.3, 0.6, size=33) * rng.normal(size=(n_rows, 33))
    return tags * 10.0 ** np.random.default_rng(1).integers(-2, 4, size=33)


def with_fault(kind: str, rows: Array, sensor: int, size: float, rng: np.random.Generator) -> Array:
    """Rows in which one sensor is at fault by so much in its own units: bias, drift, stuck or noise."""
    faulty = rows.copy()
    values = faulty[:, sensor]
    if kind == "bias":
        values += size * rng.choice([-1, 1])
    elif kind == "drift":
        values += size * rng.choice([-1, 1]) * np.linspace(0, 2, len(rows))  # size on average
    elif kind == "noise":
        values += size * rng.normal(size=len(rows))
    else:
        values[:] = np.nanmean(values) + size * rng.choice([-1, 1])
    return faulty


def name_sensors(share: float | int) -> None:
    from fedpca import PCADetector

    heading(f"The sensor named of a fault of {FAULT_ROWS} rows: share that is right, n_components={share}")
    streams = {"air quality": air_quality(data_folder()), "plant of 33 tags": plant(5)}
    lines = []
    for name, rows in streams.items():
        # Normal hours of all seasons for the fit; faults in the hours between.
        block = np.arange(len(rows)) // 168
        train, others = (
            rows[block % 2 == 0],
            [rows[block == each] for each in np.unique(block[block % 2 == 1])],
        )
        detector = PCADetector(share).fit(train)
        deviations = np.nanstd(train, axis=0)
        for size in (2.0, 3.0, 4.0):
            for kind in ("bias", "drift", "stuck", "noise"):
                rights = [
                    rights_of(
                        detector, kind, part, sensor, size * deviations[sensor], np.random.default_rng(i)
                    )
                    for i, part in enumerate(others[:20])
                    for sensor in range(rows.shape[1])
                    if len(part) >= FAULT_ROWS and not np.isnan(part[:FAULT_ROWS, sensor]).mean() > 0.5
                ]
                lines.append([name, kind, f"{size:g}", *(f"{x:.1%}" for x in np.mean(rights, axis=0))])
    table(
        ["stream", "fault", "deviations", "named", "largest contribution", "largest residual",
         "named, of one row", "fault in alarm"], lines
    )  # fmt: skip


def rights_of(detector: Any, kind: str, rows: Array, sensor: int, size: float, rng: Any) -> tuple[float, ...]:
    """Whether each rule names the sensor, from all rows of the fault, and how often from one row."""
    start = rng.integers(len(rows) - FAULT_ROWS + 1)
    faulty = with_fault(kind, rows[start : start + FAULT_ROWS], sensor, size, rng)
    found = detector.contributions(faulty)
    rules = [found.reduction.sum(axis=0), found.score.sum(axis=0), found.spe.sum(axis=0)]
    alone = float(np.mean(found.named == sensor))
    alarm = float(np.mean(detector.predict(faulty) == -1))
    return *(float(each.argmax() == sensor) for each in rules), alone, alarm


# --- time ---


def time_rows() -> None:
    from fedpca import PCADetector

    heading("Time of one row, d = 50, one at a time")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 6)) @ rng.normal(size=(6, 50)) + 0.3 * rng.normal(size=(5000, 50))
    detector = PCADetector().fit(rows)
    lines = []
    for name, call in (("score_samples", detector.score_samples), ("contributions", detector.contributions)):
        times = []
        for i in range(2000):
            start = perf_counter()
            call(rows[i : i + 1])
            times.append(perf_counter() - start)
        lines.append([name, f"{1e3 * np.median(times):.3f} ms", f"{1e3 * np.quantile(times, 0.9):.3f} ms"])
    table(["call", "median", "90 %"], lines)


def main() -> None:
    parts = ("adbench", "alarms", "faults", "speed")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=parts)
    parser.add_argument("--most-rows", type=int, help="leave larger sets of ADBench out")
    parser.add_argument("--share", type=float, default=0.5, help="n_components of faults")
    args = parser.parse_args()
    print(machine())
    warnings.simplefilter("ignore")  # of constant features, and of PyOD's divisions
    if "adbench" in args.parts:
        compare_outliers(args.most_rows)
    if "alarms" in args.parts:
        count_alarms()
    if "faults" in args.parts:
        name_sensors(int(args.share) if args.share >= 1 else args.share)
    if "speed" in args.parts:
        time_rows()


if __name__ == "__main__":
    main()
