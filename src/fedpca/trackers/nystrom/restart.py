"""Restart: many rows with new directions at once, by products; on a device, where updates take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpca._typing import DeviceArray
from fedpca.trackers.nystrom.drift import ANY_ROWS

if TYPE_CHECKING:
    from fedpca.trackers.nystrom.tracker import Nystrom


def restart(tracker: Nystrom, panel: DeviceArray, roots: DeviceArray | None) -> None:
    """Learn from many rows with new directions by products, more and more rows at a time."""
    first, start, size = not tracker._basis.count, 0, tracker.buffer_capacity
    while start < panel.shape[0]:
        part = slice(start, min(start + size, panel.shape[0]))
        _refine_probes(tracker, panel[part, :], None if roots is None else roots[part])
        start, size = start + size, tracker.tuning.restart_growth * size
    if first and tracker._origin is None and tracker._is_far_from_origin():  # start again, at another origin
        step = tracker.backend.asarray(tracker._move_origin(tracker._basis.mean), tracker.dtype)
        tracker._basis = tracker._empty_basis()
        restart(tracker, panel - (step if roots is None else roots[:, None] * step), roots)
    elif first and tracker._needs_exact_update():
        tracker._basis = tracker._empty_basis()
        tracker._append(panel, roots)


def _refine_probes(tracker: Nystrom, rows: DeviceArray, roots: DeviceArray | None) -> None:
    """Directions of rows by products with some of them; if need be again, with the directions found."""
    n_extra = max(tracker.tuning.extra_probes, tracker.n_probes // 4)
    probes = tracker._sample_probes(rows, roots, tracker.n_probes + n_extra, tracker._basis)
    passes = 2 if tracker._rows_remaining < 8 * rows.shape[0] or probes.shape[0] < 4 * tracker.rank else 1
    n_found, energy = 0, 0.0
    while True:
        period = tracker._open_period(probes, ANY_ROWS)
        period.add(rows, roots)
        found = period.close(tracker._basis, period.n_probes)
        tracker._flatness = tracker._flatness_of(found)
        n_before, n_found = n_found, min(found.rank, tracker.rank)
        energy_before, energy = energy, float(np.sum(found.singular_values[: tracker.rank] ** 2))
        passes -= 1
        is_lacking = n_before < n_found < tracker.rank
        has_gained = energy > (1 + tracker.tuning.min_gain) * energy_before
        if passes <= 0 and not is_lacking and not (tracker._flatness > tracker.tuning.flat and has_gained):
            break
        found = found.truncate(tracker.n_probes)
        others = tracker._sample_probes(rows, roots, n_extra, found)
        probes = tracker._outside_basis(tracker.backend.xp.concat([found.components, others]))
    tracker._basis = found.truncate(tracker.n_carried)
    tracker._adapt()
