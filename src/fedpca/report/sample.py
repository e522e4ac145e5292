"""Sample: what a report shows of rows, from one pass over any number of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca import progress
from fedpca._typing import AnyArray, Array, ArrayLike, RowsLike
from fedpca._util.text import sanitize
from fedpca.backend import batch_slices, dense
from fedpca.estimators.anomaly_limits import chi_squared_limit
from fedpca.estimators.scoring import ModelPCA
from fedpca.plot.groups import Group, as_texts, group_rows
from fedpca.readers import Batch, RowReader
from fedpca.report.alarms import AlarmLog
from fedpca.report.figures import Limits, span
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace

MAX_ROWS = 2000
CONFIDENCE = 0.99
MAX_SCORES = 20  # components with scores
_MAX_COLUMNS = 20
_BATCH_ROWS = 4096
_BINS_PER_DOUBLING = 256
_COLUMN = "column "

Passthrough = Iterable[str] | Mapping[str, ArrayLike] | None


class LogAxis(NamedTuple):
    """A logarithmic axis: smaller values are drawn at `least`; `limits` are decimal logarithms."""

    least: float
    limits: Limits


def _log_axis(values: Array, limit: float) -> LogAxis:
    """Rounding errors do not stretch it."""
    least = float(values.max(initial=0.0)) * 1e-9 or 1e-9
    shown = [*np.maximum(values, least), *([limit] if limit < np.inf else [])]
    return LogAxis(least, span(np.log10(shown)))


@dataclass(frozen=True)
class Sample:
    """Scores and anomaly scores of a uniform sample of rows, and how many of all rows exceed the limits.

    Attributes:
        n_read: number of rows read.
        numbers: of the sampled rows, in the order read, from 1; shape (n,).
        scores: of the sampled rows, shape (n, at most 20).
        spe: squared prediction errors of the sampled rows, shape (n,).
        t2: Hotelling's T² of the sampled rows, shape (n,).
        columns: passthrough columns of the sampled rows by name, as text, each of shape (n,).
        color: the name of the one to color by, or "".
        spe_limit: the limit of spe, infinite where it is unknown; see `anomaly_limits`.
        t2_limit: the limit of t2, likewise.
        is_spe_limit_fitted: whether spe_limit was estimated from the rows read, not from the model.
        n_above_spe: number of rows read above the limit of spe.
        n_above_t2: number of rows read above the limit of t2.
    """

    n_read: int
    numbers: AnyArray
    scores: Array
    spe: Array
    t2: Array
    columns: Mapping[str, AnyArray]
    color: str
    spe_limit: float
    t2_limit: float
    is_spe_limit_fitted: bool
    n_above_spe: int
    n_above_t2: int

    @property
    def colors(self) -> AnyArray | None:
        """Values to color by, as text, shape (n,); or None."""
        return self.columns.get(self.color)

    @property
    def groups(self) -> list[Group]:
        """The rows by color; none where there is nothing to color by."""
        return [] if self.colors is None else group_rows(self.colors)

    @property
    def on_map(self) -> NDArray[np.bool_]:
        """The rows that have values: those without any are exactly at the center. Shape (n,)."""
        found: NDArray[np.bool_] = (self.t2 > 0) | (self.spe > 0)
        return found

    @property
    def map_axes(self) -> tuple[LogAxis, LogAxis]:
        """The axes of T² and SPE, with room for the limits of both."""
        return (
            _log_axis(self.t2[self.on_map], self.t2_limit),
            _log_axis(self.spe[self.on_map], self.spe_limit),
        )


def sample_rows(
    rows: RowsLike,
    model: Subspace,
    n_shown: int,
    color: object = None,
    passthrough: Passthrough = None,
    alarms: AlarmLog | None = None,
) -> Sample:
    """Read rows once: draw a uniform sample, count the rows above the limits.

    Args:
        rows: see `write_report`.
        n_shown: number of components to compute scores for.
        color: see `write_report`.
        passthrough: see `write_report`.
        alarms: what a detector says of the rows, which takes them all.
    """
    pca, rng = ModelPCA(model, n_shown), np.random.default_rng(0)
    spe_limit, t2_limit = pca.anomaly_limits(CONFIDENCE)
    kept: dict[str, Any] = {}
    n_read = n_above_t2 = 0
    total = squares = 0.0
    histogram: Counter[float] = Counter()
    naming = rows.naming_infinity() if isinstance(rows, RowReader) else nullcontext()
    with naming, progress.bar("rows", getattr(rows, "n_rows", None), "rows") as bar:
        for part, columns in _batches(rows, model, color, passthrough):
            if part.rows.shape[1] != model.n_features:
                raise ValueError(
                    f"rows must have the model's {model.n_features} features, got {part.rows.shape[1]}; pass "
                    "rows with the columns the model was fitted to."
                )
            spe, t2 = pca.anomaly_scores(part)
            if alarms is not None:
                alarms.see(part)
            new: dict[str, Any] = {"number": np.arange(n_read + 1, n_read + len(spe) + 1)}
            n_read += len(spe)
            n_above_t2 += int(np.count_nonzero(t2 > t2_limit))
            total, squares = total + float(spe.sum()), squares + float(spe @ spe)
            histogram.update(_log_bins(spe).tolist())
            # Every row draws a number, and the rows with the smallest are kept: a uniform sample.
            new |= {"draw": rng.uniform(size=len(spe)), "spe": spe, "t2": t2}
            new["scores"] = pca.transform(part)[:, :MAX_SCORES]
            new |= {_COLUMN + name: as_texts(values) for name, values in columns.items()}
            kept = {name: np.concatenate([kept[name], new[name]]) if kept else new[name] for name in new}
            smallest = np.sort(np.argsort(kept["draw"])[:MAX_ROWS])
            kept = {name: values[smallest] for name, values in kept.items()}
            bar.advance(len(spe))
    if not n_read:
        raise ValueError("rows must have at least one row, got none; leave out rows to show the model alone.")
    mean, variance = total / n_read, squares / n_read - (total / n_read) ** 2
    # The rows give a better limit than the spectrum does, if there are enough of them.
    is_fitted = spe_limit < np.inf and n_read * (1 - CONFIDENCE) >= 1 and variance > 1e-9 * mean**2
    if is_fitted:
        spe_limit = chi_squared_limit(mean, variance / mean**2, CONFIDENCE)
    limit_bin = float(_log_bins(spe_limit))
    return Sample(
        n_read=n_read,
        numbers=kept["number"],
        scores=kept["scores"],
        spe=kept["spe"],
        t2=kept["t2"],
        columns={
            name.removeprefix(_COLUMN): values for name, values in kept.items() if name.startswith(_COLUMN)
        },
        color=_color_name(color),
        spe_limit=2 ** (limit_bin / _BINS_PER_DOUBLING),
        t2_limit=t2_limit,
        is_spe_limit_fitted=is_fitted,
        n_above_spe=sum(count for bin_, count in histogram.items() if bin_ > limit_bin),
        n_above_t2=n_above_t2,
    )


def _log_bins(spe: ArrayLike) -> Array:
    """Bins of a logarithmic histogram of squared errors: their limit is known only at the end."""
    return np.ceil(_BINS_PER_DOUBLING * np.log2(np.maximum(spe, np.finfo(float).tiny)))


def _color_name(color: Any) -> str:
    """The name of the column to color by, or ""."""
    if color is None or isinstance(color, str):
        return color or ""
    name = getattr(color, "name", None)  # of a Series
    return name if isinstance(name, str) and name else "color"


def _batches(
    rows: RowsLike, model: Subspace, color: Any, passthrough: Passthrough
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Batches of rows, each with its passthrough columns."""
    if isinstance(rows, RowReader):
        yield from _file_batches(rows, color, passthrough)
        return
    columns = _columns(rows, color, passthrough)
    if hasattr(rows, "columns") and model.feature_names:
        rows = rows[list(model.feature_names)]
    validation.require_table(rows)
    if hasattr(rows, "columns"):
        rows = rows.to_numpy()
    for name, values in columns.items():
        if len(values) != rows.shape[0]:
            what = "color" if name == _color_name(color) else f"passthrough column {sanitize(name, 60)!r}"
            raise ValueError(
                f"{what} must have one value per row: {rows.shape[0]} rows, got {len(values)} values."
            )
    for some in batch_slices(rows.shape[0], _BATCH_ROWS):
        part = {name: values[some] for name, values in columns.items()}
        yield Batch(rows[some], model.feature_names), part


def _file_batches(
    rows: RowReader, color: Any, passthrough: Passthrough
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    names = list(rows.feature_names or ())
    if passthrough:
        raise ValueError("passthrough columns of files are those of open_rows(..., passthrough=...).")
    if color is not None and (not isinstance(color, str) or color not in (*names, *rows.passthrough)):
        raise ValueError(
            f"color must be the name of a feature or a passthrough column of the files, got {color!r:.80}."
        )
    _check_count(rows.passthrough)
    for batch in rows.batches():
        columns: dict[str, Any] = {name: batch.passthrough[name] for name in rows.passthrough}
        if color in names:
            columns[color] = dense(batch.rows[:, [names.index(color)]]).ravel()
        yield batch, columns


def _columns(rows: RowsLike, color: Any, passthrough: Passthrough) -> dict[str, AnyArray]:
    """Passthrough columns of rows in memory, by name; the one to color by is among them."""
    is_frame = hasattr(rows, "columns")
    columns: dict[str, Any] = {}
    given: Any = passthrough
    if isinstance(passthrough, Mapping) or hasattr(passthrough, "columns"):
        columns = {str(name): given[name] for name in getattr(given, "columns", given)}
    elif passthrough is not None:
        names = [passthrough] if isinstance(passthrough, str) else list(passthrough)
        unknown = [name for name in names if not is_frame or name not in rows.columns]
        if unknown:
            raise ValueError(
                "passthrough must name columns of the rows, or give one value per row for each name, got "
                f"{sanitize(unknown[0], 60)!r}."
            )
        columns = {str(name): rows[name] for name in names}
    if isinstance(color, str) and color not in columns:
        if not is_frame:
            raise ValueError(
                f"color must be one value per row where columns have no names, got color={color!r}."
            )
        if color not in rows.columns:
            raise ValueError(
                f"color must name a column of the rows, or give one value per row, got {color!r:.80}."
            )
        columns[color] = rows[color]
    elif color is not None and not isinstance(color, str):
        columns[_color_name(color)] = color
    _check_count(columns)
    return {name: np.asarray(values) for name, values in columns.items()}


def _check_count(columns: Collection[str]) -> None:
    if len(columns) > _MAX_COLUMNS:
        raise ValueError(
            f"a report shows at most {_MAX_COLUMNS} passthrough columns, got {len(columns)}; choose some."
        )
