"""Sample: what a report shows of rows, from one pass over as many as there are."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca import progress
from fedpca._typing import Array
from fedpca.backend import batch_slices, dense
from fedpca.estimators.anomaly import chi_squared_limit
from fedpca.estimators.streaming import StreamingPCA
from fedpca.readers import Batch, RowReader
from fedpca.summaries.subspace import Subspace

MAX_ROWS = 2000
CONFIDENCE = 0.99
_MOST_COMPONENTS = 4
_BATCH_ROWS = 4096
_STEPS = 256  # of a doubling


@dataclass(frozen=True)
class Sample:
    """Rows as the model sees them.

    Attributes:
        read: how many rows there were.
        scores: of a uniform sample of them, shape (n, at most 4).
        spe: squared prediction errors of the sample, shape (n,).
        t2: its Hotelling's T², shape (n,).
        colors: what it is colored by, as text, shape (n,); or None.
        most_spe: the limit of spe, infinite where it is not known; see `anomaly_limits`.
        most_t2: that of t2.
        matched: whether the limit of spe has the mean and variance of the spe of all rows read.
        above_spe: how many of all rows are above the limit.
        above_t2: the same.
    """

    read: int
    scores: Array
    spe: Array
    t2: Array
    colors: NDArray[Any] | None
    most_spe: float
    most_t2: float
    matched: bool
    above_spe: int
    above_t2: int


def sample(rows: Any, model: Subspace, shown: int, color: Any) -> Sample:
    """One pass over rows: how many there are and are above the limits, and a uniform sample.

    Args:
        rows: see `write_report`.
        color: the same.
    """
    pca = StreamingPCA(shown, center=model.centered, oversample=max(model.rank - shown, 0))
    pca.merge(replace(model, certificate=None))
    most_spe, most_t2 = pca.anomaly_limits(CONFIDENCE)
    rng = np.random.default_rng(0)
    kept: dict[str, Any] = {}
    read = above_t2 = 0
    total = squares = 0.0
    heights: Counter[float] = Counter()
    with progress.bar("rows", getattr(rows, "n_rows", None), "rows") as bar:
        for part, colors in _parts(rows, model, color):
            if part.rows.shape[1] != model.n_features:
                raise ValueError(
                    f"rows must have the model's {model.n_features} features, got {part.rows.shape[1]}; show "
                    "those the model is of, or others like them."
                )
            spe, t2 = pca.anomaly_scores(part)
            read += len(spe)
            above_t2 += int(np.count_nonzero(t2 > most_t2))
            total, squares = total + float(spe.sum()), squares + float(spe @ spe)
            heights.update(_heights(spe).tolist())
            # Every row draws a number, and the smallest stay: all are as likely to.
            new = {"draw": rng.uniform(size=len(spe)), "spe": spe, "t2": t2}
            new["scores"] = pca.transform(part)[:, :_MOST_COMPONENTS]
            if colors is not None:
                new["colors"] = np.array([str(value) for value in colors], dtype=object)
            kept = {name: np.concatenate([kept[name], new[name]]) if kept else new[name] for name in new}
            stay = np.sort(np.argsort(kept["draw"])[:MAX_ROWS])
            kept = {name: values[stay] for name, values in kept.items()}
            bar.advance(len(spe))
    if not read:
        raise ValueError("rows must hold rows, and hold none.")
    del kept["draw"]
    mean, variance = total / read, squares / read - (total / read) ** 2
    # Rows tell better than the spectrum where their limit is, if there are enough to tell.
    matched = most_spe < np.inf and read * (1 - CONFIDENCE) >= 1 and variance > 1e-9 * mean**2
    if matched:
        most_spe = chi_squared_limit(mean, variance, CONFIDENCE)
    edge = float(_heights(most_spe))
    return Sample(
        **({"colors": None} | kept),
        read=read,
        most_spe=2 ** (edge / _STEPS),
        most_t2=most_t2,
        matched=matched,
        above_spe=sum(count for height, count in heights.items() if height > edge),
        above_t2=above_t2,
    )


def _heights(spe: Any) -> Any:
    """In which step of a logarithmic ladder squared errors lie: to count those above a limit known later."""
    return np.ceil(_STEPS * np.log2(np.maximum(spe, np.finfo(float).tiny)))


def _parts(rows: Any, model: Subspace, color: Any) -> Iterator[tuple[Batch, Any]]:
    """Rows, a batch at a time, and what they are colored by."""
    if isinstance(rows, RowReader):
        names = list(rows.feature_names or ())
        for batch in rows.batches():
            colors = batch.passthrough.get(color)
            if color in names:
                colors = dense(batch.rows[:, [names.index(color)]]).ravel()
            yield batch, colors
        return
    if isinstance(color, str):
        if not hasattr(rows, "columns"):
            raise ValueError(f"color must be one value a row where columns have no names, got {color!r}.")
        color = rows[color]
    if hasattr(rows, "columns"):
        rows = (rows[list(model.feature_names)] if model.feature_names else rows).to_numpy()
    colors = None if color is None else np.asarray(color)
    if colors is not None and len(colors) != rows.shape[0]:
        raise ValueError(f"color must have one value a row, {rows.shape[0]}, got {len(colors)}.")
    for some in batch_slices(rows.shape[0], _BATCH_ROWS):
        yield Batch(rows[some], model.feature_names), None if colors is None else colors[some]
