"""Sample: what a report shows of rows, from one pass over as many as there are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedpca import progress
from fedpca.estimator import StreamingPCA
from fedpca.linalg import Array
from fedpca.readers import Rows
from fedpca.subspace import Subspace

MOST_ROWS = 2000
CONFIDENCE = 0.99
_MOST_COMPONENTS = 4
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class Limits:
    """What 99 of a hundred rows like those learned stay below, if they are Gaussian; None: not known.

    Attributes:
        t2: of Hotelling's T², by the F distribution.
        spe: of the squared prediction error, by Box's approximation: a multiple of a chi-squared variable
            with the mean and the variance that the spectrum left out gives.
    """

    t2: float | None
    spe: float | None


@dataclass(frozen=True)
class Sample:
    """Rows as the model sees them.

    Attributes:
        read: how many rows there were.
        scores: of a uniform sample of them, shape (n, at most 4).
        spe: squared prediction errors of the sample, shape (n,).
        t2: its Hotelling's T², shape (n,).
        colors: what it is coloured by, as text, shape (n,); or None.
        limits: for spe and t2.
        above_spe: how many of all rows are above the limit.
        above_t2: the same.
    """

    read: int
    scores: Array
    spe: Array
    t2: Array
    colors: NDArray[Any] | None
    limits: Limits
    above_spe: int
    above_t2: int


def limits_of(model: Subspace, shown: int) -> Limits:
    """The limits of a model of which so many components are shown.

    What it carries beyond them counts as it is; what it does not carry is taken to be spread evenly over all
    other directions.
    """
    count, others = model.count, model.n_features - model.rank
    t2 = spe = None
    if count > shown + 1:
        scale = shown * (count**2 - 1) / (count * (count - shown))
        t2 = float(scale * stats.f.ppf(CONFIDENCE, shown, count - shown))
    divisor = max(count - 1, 1.0)
    variances = model.singular_values[shown:] ** 2 / divisor
    even = model.left_out / divisor / others if others else 0.0
    first = float(variances.sum()) + others * even
    second = float(np.square(variances).sum()) + others * even**2
    if first * divisor > 1e-9 * model.total:  # else it is rounding
        spe = float(second / first * stats.chi2.ppf(CONFIDENCE, first**2 / second))
    return Limits(t2, spe)


def sample(rows: Any, model: Subspace, shown: int, color: Any) -> Sample:
    """One pass over rows: how many there are and are above the limits, and a uniform sample.

    Args:
        rows: see `write_report`.
        color: the same.
    """
    pca = StreamingPCA(shown, center=model.centered)
    pca.merge(replace(model, feature_names=None, certificate=None))
    limits = limits_of(model, pca.n_components_)
    rng = np.random.default_rng(0)
    kept: dict[str, Any] = {}
    read = above_spe = above_t2 = 0
    with progress.bar("rows", getattr(rows, "n_rows", None), "rows") as bar:
        for part, colors in _parts(rows, model, color):
            if part.shape[1] != model.n_features:
                raise ValueError(
                    f"rows must have the model's {model.n_features} features, got {part.shape[1]}; show "
                    "those the model is of, or others like them."
                )
            spe, t2 = pca.anomaly_scores(part)
            read += len(spe)
            above_spe += int(np.count_nonzero(spe > (limits.spe or np.inf)))
            above_t2 += int(np.count_nonzero(t2 > (limits.t2 or np.inf)))
            # Every row draws a number, and the smallest stay: all are as likely to.
            new = {"draw": rng.uniform(size=len(spe)), "spe": spe, "t2": t2}
            new["scores"] = pca.transform(part)[:, :_MOST_COMPONENTS]
            if colors is not None:
                new["colors"] = np.array([str(value) for value in colors], dtype=object)
            kept = {name: np.concatenate([kept[name], new[name]]) if kept else new[name] for name in new}
            stay = np.sort(np.argsort(kept["draw"])[:MOST_ROWS])
            kept = {name: values[stay] for name, values in kept.items()}
            bar.advance(len(spe))
    if not read:
        raise ValueError("rows must hold rows, and hold none.")
    del kept["draw"]
    return Sample(
        **({"colors": None} | kept), read=read, limits=limits, above_spe=above_spe, above_t2=above_t2
    )


def _parts(rows: Any, model: Subspace, color: Any) -> Iterator[tuple[Any, Any]]:
    """Rows without their names, a batch at a time, and what they are coloured by."""
    if isinstance(rows, Rows):
        names = list(rows.feature_names or ())
        for batch in rows.batches():
            colors = batch.aside.get(color)
            if color in names:
                column = batch.rows[:, [names.index(color)]]
                colors = (column.toarray() if rows.sparse else column).ravel()
            yield batch.rows, colors
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
    for start in range(0, rows.shape[0], _BATCH_ROWS):
        some = slice(start, start + _BATCH_ROWS)
        yield rows[some], None if colors is None else colors[some]
