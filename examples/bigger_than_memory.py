"""Fit and transform files in less memory than their size; stop half-way and resume.

Run `python examples/bigger_than_memory.py [FOLDER]`. It writes 290 MB of Parquet files and a table.
"""

import resource
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fedpca
from fedpca.readers import open_rows

MONTHS, ROWS, FEATURES = 12, 50_000, 120


def write_months(folder: Path) -> None:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((6, FEATURES), np.float32)
    for month in range(MONTHS):
        rows = rng.standard_normal((ROWS, FEATURES), np.float32)
        rows += rng.standard_normal((ROWS, 6), np.float32) @ mixing
        table = pa.table({f"x{feature}": rows[:, feature] for feature in range(FEATURES)})
        pq.write_table(table, folder / f"month-{month:02}.parquet", compression="none", use_dictionary=False)


def megabytes_used() -> float:
    """Peak memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main(folder: Path) -> None:
    writer = get_context("spawn").Process(target=write_months, args=(folder,))
    writer.start()  # in a process of its own, so that its memory is not counted here
    writer.join()
    size = sum(file.stat().st_size for file in folder.glob("*.parquet")) / 1e6
    rows = open_rows(folder / "month-*.parquet", batch_rows=5000)
    print(f"{size:.0f} MB in {MONTHS} files: {rows}")

    pca = fedpca.StreamingPCA(n_components=6)
    before = megabytes_used()
    for batch in rows:
        pca.partial_fit(batch)
    print(f"fitted in {megabytes_used() - before:.0f} MB of memory")

    # The same, stopped after some batches: the summary includes the number of rows.
    stopped = fedpca.StreamingPCA(n_components=6)
    for batch, _ in zip(rows, range(33), strict=False):
        stopped.partial_fit(batch)
    stopped.subspace_.save(folder / "so-far.safetensors")
    so_far = fedpca.load(folder / "so-far.safetensors")
    resumed = fedpca.StreamingPCA(n_components=6).merge(so_far)
    for batch in rows.batches(skip=resumed.n_samples_seen_):
        resumed.partial_fit(batch.rows)
    angle = np.degrees(fedpca.metrics.principal_angles(resumed.components_, pca.components_).max())
    print(
        f"stopped after {so_far.count:.0f} rows and resumed: {angle:.3f} degrees from the uninterrupted fit"
    )

    scores = np.lib.format.open_memmap(folder / "scores.npy", "w+", np.float32, (rows.n_rows, 6))
    done = 0
    for batch in rows:
        scores[done : done + len(batch)] = pca.transform(batch)
        done += len(batch)
    scores.flush()
    share = scores.var(axis=0).sum() / (pca.explained_variance_.sum() / pca.explained_variance_ratio_.sum())
    print(f"scores of {done} rows explain {share:.1%} of the variance")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
