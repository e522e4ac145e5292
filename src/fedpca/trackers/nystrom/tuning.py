"""Tuning: the thresholds and sizes of the kernel, with their reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """When rows go through the exact update, and how long panels and periods are.

    K is the number of probes. Reasons are given here in short, with measurements in
    docs/explanation/kernel.md.

    Attributes:
        noise_slack: factor of the residual that rows are expected to have, over that of the stream so far,
            where it was not measured.
        early_slack: more of it, K / (rows so far) times this: directions fit the first rows best.
        drift_tolerance: excess residual of a panel, as a share of the energy of the weakest direction wanted,
            that is not drift: what is missed so cannot change a wanted direction by more.
        outlier_share: the same of a single row, which alone could make up such a share of a direction.
        ill_conditioned: least ratio of the weakest singular value wanted to the largest, in units of
            sqrt(eps). At this ratio its energy is twice the shift of the solver.
        recovery: how much larger the ratio must be to leave the exact update again, so as not to alternate.
        flat: flatness above which there are twice as many probes, and periods stay short.
        very_flat: flatness above which a short stream goes through the exact update.
        very_flat_rows: rows per probe up to which a stream is short.
        min_gain: share of the energy wanted that another pass over the first rows must add to be worth it.
        look_rows: rows with news that are searched for new directions.
        max_fresh: new directions that become probes at a time, at most.
        stands_out: energy of such a direction, in units of the median of those rows.
        settled_rows: rows after which a new direction must be as strong as those carried to be carried on.
        wary_rows: rows per panel after news, doubled with every panel without.
        uneven: squared variation of residuals above which a few directions make them up: then a period
            starts with a search for these.
        kept_bytes: what the first rows may take and be kept, so that a short stream has an exact result.
        sample_rows: rows of those, drawn at random, in which probes for all of them are found,
        sample_per_probe: and at least so many per probe.
        direct_rows: if no more can be kept, their directions are found exactly.
        max_passes: over the rows kept, as long as these add to the directions found.
        free_probes: probes per period left for directions that the history has not shown.
        buffer_rows: rows that the buffer holds,
        buffer_per_probe: and at least this many rows per probe: the first rows are the first probes.
        min_panel_rows: fewer rows are buffered once there are probes.
        max_panel_rows: rows per panel,
        max_wary_rows: and where the rank follows the stream, with forgetting, and of the first of a period
            with a flat spectrum.
        period_per_probe: least rows per period and probe: a period ends in matrices of this size.
        max_period_per_probe: most rows per period and probe (as of 32 probes, if there are fewer),
        max_period_forgetting: and where the rank follows the stream, and with forgetting.
        max_period_adaptive: most rows per period while the rank follows an energy band, which it does between
            periods.
        history_per_row: rows of the stream so far per row of the next period,
        history_per_row_flat: and for a flat spectrum.
    """

    noise_slack: float = 1.0
    early_slack: float = 4.0
    drift_tolerance: float = 1e-3
    outlier_share: float = 0.5
    ill_conditioned: float = 8.0
    recovery: float = 4.0
    flat: float = 1.0
    very_flat: float = 8.0
    very_flat_rows: int = 64
    min_gain: float = 1e-3
    look_rows: int = 64
    max_fresh: int = 8
    stands_out: float = 3.0
    settled_rows: int = 512
    wary_rows: int = 128
    uneven: float = 0.2
    kept_bytes: int = 2**25
    sample_rows: int = 512
    direct_rows: int = 256
    sample_per_probe: int = 12
    max_passes: int = 5
    free_probes: int = 1
    buffer_rows: int = 128  # factorized exactly: enough for good first probes
    buffer_per_probe: int = 2
    min_panel_rows: int = 32
    max_panel_rows: int = 65_536
    max_wary_rows: int = 1024
    period_per_probe: int = 2
    max_period_per_probe: float = 4096
    max_period_forgetting: float = 128
    max_period_adaptive: float = 256
    history_per_row: float = 3.0
    history_per_row_flat: float = 4.0


TUNING = Tuning()
