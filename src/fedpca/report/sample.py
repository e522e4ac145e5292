"""Sample: what a report shows of rows, from one pass over any number of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpca import progress
from fedpca._typing import AnyArray, Array, ArrayLike, RowsLike
from fedpca.backend import batch_slices, dense
from fedpca.estimators.anomaly_limits import chi_squared_limit
from fedpca.estimators.streaming import StreamingPCA
from fedpca.readers import Batch, RowReader
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace

MAX_ROWS = 2000
CONFIDENCE = 0.99
_MAX_COMPONENTS = 4
_BATCH_ROWS = 4096
_BINS_PER_DOUBLING = 256


@dataclass(frozen=True)
class Sample:
    """Scores and anomaly scores of a uniform sample of rows, and how many of all rows exceed the limits.

    Attributes:
        n_read: number of rows read.
        scores: of the sampled rows, shape (n, at most 4).
        spe: squared prediction errors of the sampled rows, shape (n,).
        t2: Hotelling's T² of the sampled rows, shape (n,).
        colors: values to color the sampled rows by, as text, shape (n,); or None.
        spe_limit: the limit of spe, infinite where it is unknown; see `anomaly_limits`.
        t2_limit: the limit of t2, likewise.
        is_spe_limit_fitted: whether spe_limit was estimated from the rows read, not from the model.
        n_above_spe: number of rows read above the limit of spe.
        n_above_t2: number of rows read above the limit of t2.
    """

    n_read: int
    scores: Array
    spe: Array
    t2: Array
    colors: AnyArray | None
    spe_limit: float
    t2_limit: float
    is_spe_limit_fitted: bool
    n_above_spe: int
    n_above_t2: int


def sample_rows(rows: RowsLike, model: Subspace, n_shown: int, color: object) -> Sample:
    """Read rows once: draw a uniform sample, count the rows above the limits.

    Args:
        rows: see `write_report`.
        n_shown: number of components to compute scores for.
        color: see `write_report`.
    """
    oversample = max(model.rank - n_shown, 0)
    pca = StreamingPCA(n_shown, center=model.centered, scale=model.scale, oversample=oversample)
    pca.merge(replace(model, certificate=None))
    spe_limit, t2_limit = pca.anomaly_limits(CONFIDENCE)
    rng = np.random.default_rng(0)
    kept: dict[str, Any] = {}
    n_read = n_above_t2 = 0
    total = squares = 0.0
    histogram: Counter[float] = Counter()
    with progress.bar("rows", getattr(rows, "n_rows", None), "rows") as bar:
        for part, colors in _batches(rows, model, color):
            if part.rows.shape[1] != model.n_features:
                raise ValueError(
                    f"rows must have the model's {model.n_features} features, got {part.rows.shape[1]}; pass "
                    "rows with the columns the model was fitted to."
                )
            spe, t2 = pca.anomaly_scores(part)
            n_read += len(spe)
            n_above_t2 += int(np.count_nonzero(t2 > t2_limit))
            total, squares = total + float(spe.sum()), squares + float(spe @ spe)
            histogram.update(_log_bins(spe).tolist())
            # Every row draws a number, and the rows with the smallest are kept: a uniform sample.
            new = {"draw": rng.uniform(size=len(spe)), "spe": spe, "t2": t2}
            new["scores"] = pca.transform(part)[:, :_MAX_COMPONENTS]
            if colors is not None:
                new["colors"] = _texts(colors)
            kept = {name: np.concatenate([kept[name], new[name]]) if kept else new[name] for name in new}
            smallest = np.sort(np.argsort(kept["draw"])[:MAX_ROWS])
            kept = {name: values[smallest] for name, values in kept.items()}
            bar.advance(len(spe))
    if not n_read:
        raise ValueError("rows is empty.")
    del kept["draw"]
    mean, variance = total / n_read, squares / n_read - (total / n_read) ** 2
    # The rows give a better limit than the spectrum does, if there are enough of them.
    is_fitted = spe_limit < np.inf and n_read * (1 - CONFIDENCE) >= 1 and variance > 1e-9 * mean**2
    if is_fitted:
        spe_limit = chi_squared_limit(mean, variance / mean**2, CONFIDENCE)
    limit_bin = float(_log_bins(spe_limit))
    return Sample(
        **({"colors": None} | kept),
        n_read=n_read,
        spe_limit=2 ** (limit_bin / _BINS_PER_DOUBLING),
        t2_limit=t2_limit,
        is_spe_limit_fitted=is_fitted,
        n_above_spe=sum(count for bin_, count in histogram.items() if bin_ > limit_bin),
        n_above_t2=n_above_t2,
    )


def _log_bins(spe: ArrayLike) -> Array:
    """Bins of a logarithmic histogram of squared errors: their limit is known only at the end."""
    return np.ceil(_BINS_PER_DOUBLING * np.log2(np.maximum(spe, np.finfo(float).tiny)))


def _texts(values: ArrayLike) -> AnyArray:
    """Values to color by, as text; times to the second, dates without a time of day."""
    values = np.asarray(values)
    if values.dtype.kind == "M":
        values = [time.removesuffix("T00:00:00") for time in np.datetime_as_string(values, unit="s")]
    return np.array([str(value) for value in values], dtype=object)


def _batches(rows: RowsLike, model: Subspace, color: Any) -> Iterator[tuple[Batch, Any]]:
    """Batches of rows, each with the values to color them by."""
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
            raise ValueError(
                f"color must be one value per row where columns have no names, got color={color!r}."
            )
        color = rows[color]
    if hasattr(rows, "columns") and model.feature_names:
        rows = rows[list(model.feature_names)]
    validation.require_table(rows)
    if hasattr(rows, "columns"):
        rows = rows.to_numpy()
    colors = None if color is None else np.asarray(color)
    if colors is not None and len(colors) != rows.shape[0]:
        raise ValueError(
            f"color must have one value per row: {rows.shape[0]} rows, got {len(colors)} values."
        )
    for some in batch_slices(rows.shape[0], _BATCH_ROWS):
        yield Batch(rows[some], model.feature_names), None if colors is None else colors[some]
