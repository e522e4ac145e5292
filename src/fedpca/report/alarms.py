"""The section about alarms: the rows above the limit, what caused them, and contributions over time."""

import heapq

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca._util.text import feature_label, format_number, percent, pluralize, sanitize
from fedpca.estimators.detector import PCADetector
from fedpca.plot.style import SERIES, name_axis
from fedpca.readers import Batch
from fedpca.report.figures import canvas
from fedpca.report.layout import MAX_LINES, Chart, Section, Table

_LARGEST = 5  # contributions of an alarm
_MAX_FEATURES = 20  # in the map
_MAX_BINS = 64  # of rows, in their order; twice as many are merged in pairs
_LEVELS = 6  # of color
_SOME_ROWS = 1024  # whose contributions are in memory at a time, of a batch


class AlarmLog:
    """What a detector says of rows, in their order, in memory that does not grow.

    Attributes:
        n_rows: how many there were.
        n_alarms: how many were above the limit.
        worst: of alarms with the highest scores: score, number of the row, its contributions and reductions.
    """

    def __init__(self, detector: PCADetector) -> None:
        self._detector = detector
        self.limit = detector.limit_
        self.n_rows = self.n_alarms = 0
        self.worst: list[tuple[float, int, Array, Array]] = []
        self.reductions = np.zeros(detector.n_features_in_)  # of all alarms
        self._sums: list[Array] = []  # of the contributions of the rows of each bin
        self._bin_rows = 1
        self._in_last = 0  # rows in the last bin

    def see(self, batch: Batch) -> None:
        """Take more rows."""
        for start in range(0, len(batch), _SOME_ROWS):
            some = batch.skip(start).first(_SOME_ROWS)
            found = self._detector.contributions(some)
            scores = found.score.sum(axis=1)
            above = np.flatnonzero(scores > self.limit)
            self.n_alarms += len(above)
            self.reductions += found.reduction[above].sum(axis=0)
            for i in above[np.argsort(-scores[above])][:MAX_LINES]:
                alarm = float(scores[i]), -(self.n_rows + int(i) + 1), found.score[i], found.reduction[i]
                push = heapq.heappush if len(self.worst) < MAX_LINES else heapq.heappushpop
                push(self.worst, alarm)  # of equal scores the first row
            self._add_to_bins(found.score)
            self.n_rows += len(scores)

    def _add_to_bins(self, contributions: Array) -> None:
        while len(contributions):
            if not self._sums or self._in_last == self._bin_rows:
                if len(self._sums) == 2 * _MAX_BINS:
                    self._sums = [self._sums[i] + self._sums[i + 1] for i in range(0, 2 * _MAX_BINS, 2)]
                    self._bin_rows *= 2
                self._sums.append(np.zeros(contributions.shape[1]))
                self._in_last = 0
            taken = contributions[: self._bin_rows - self._in_last]
            self._sums[-1] += taken.sum(axis=0)
            self._in_last += len(taken)
            contributions = contributions[len(taken) :]

    def means(self) -> tuple[Array, AnyArray]:
        """The mean contribution of each feature in each bin, shape (bins, d), and the edges of bins."""
        edges = np.minimum(np.arange(len(self._sums) + 1) * self._bin_rows, self.n_rows)
        return np.array(self._sums) / np.diff(edges)[:, None], edges


def alarms_section(log: AlarmLog, names: tuple[str, ...] | None) -> Section:
    """The rows above the limit, with their largest contributions, and a map of all over time."""
    share = percent(log.n_alarms / log.n_rows)
    text = (
        f"{format_number(log.n_alarms)} of {pluralize(log.n_rows, 'row')} ({share}) are above the limit of "
        f"the score, {log.limit:.4g}. The score is that of T², SPE and the Mahalanobis distance together, 3 "
        "in the mean of normal rows."
    )
    paragraphs = [text]
    if log.n_alarms:
        named = _label(int(log.reductions.argmax()), names)
        paragraphs.append(
            f"{named} explains the alarms best: reconstructed from all other features, it lowers their "
            "scores most. Contributions add up to the score; the largest one need not be the cause."
        )
    items: list[Chart | Table] = [_map(log, names)]
    if log.n_alarms:
        items.append(_table(log, names))
    return Section("alarms", "Alarms", paragraphs, items)


def _table(log: AlarmLog, names: tuple[str, ...] | None) -> Table:
    lines = []
    for score, number, contributions, reductions in sorted(log.worst, key=lambda alarm: -alarm[1]):
        largest = np.argsort(-contributions, kind="stable")[:_LARGEST]
        parts = ", ".join(f"{_label(int(i), names)} {percent(contributions[i] / score)}" for i in largest)
        lines.append((format_number(-number), f"{score:.4g}", _label(int(reductions.argmax()), names), parts))
    title = "Alarms" if log.n_alarms <= MAX_LINES else f"The {MAX_LINES} alarms with the highest scores"
    return Table(title, ("row", "score", "caused by", "largest contributions to the score"), lines)


def _map(log: AlarmLog, names: tuple[str, ...] | None) -> Chart:
    means, edges = log.means()
    features = np.argsort(-means.max(axis=0), kind="stable")[:_MAX_FEATURES]
    shown = means[:, features].T
    largest = float(shown.max(initial=0.0)) or 1.0
    # By the root: contributions are squares.
    levels = np.ceil(np.sqrt(shown / largest) * _LEVELS).astype(int)
    figure, axes = canvas(60 + 18 * len(features))
    for place, line in enumerate(levels):
        for level in range(1, _LEVELS + 1):
            bars = [(edges[i] + 0.5, edges[i + 1] - edges[i]) for i in np.flatnonzero(line == level)]
            if bars:
                axes.broken_barh(
                    bars, (place - 0.45, 0.9), color=SERIES[1], alpha=level / _LEVELS, linewidth=0
                )
    labels = [_label(int(i), names, 16) for i in features]
    name_axis(axes, labels)
    axes.set(xlim=(0.5, log.n_rows + 0.5), xlabel="row")
    title = "Contributions over time"
    per_bin = int(edges[1])
    mean_of = "" if per_bin == 1 else f", means of {format_number(per_bin)} rows each"
    caption = (
        f"What each feature adds to the score{mean_of}, of the {len(features)} features that add most: "
        f"the darker the more, up to {largest:.3g}."
    )
    peaks = means.argmax(axis=0)
    lines = [
        (
            _label(int(i), names),
            f"{means[:, i].mean():.3g}",
            f"{means[peaks[i], i]:.3g}",
            _rows(edges, int(peaks[i])),
        )
        for i in features
    ]
    numbers = Table(title, ("feature", "mean of all rows", "largest", "in rows"), lines)
    return Chart("contributions", title, caption, figure, numbers)


def _rows(edges: AnyArray, place: int) -> str:
    first, last = int(edges[place]) + 1, int(edges[place + 1])
    return format_number(first) if first == last else f"{format_number(first)} to {format_number(last)}"


def _label(index: int, names: tuple[str, ...] | None, longest: int = 60) -> str:
    return sanitize(feature_label(index, names), longest)
