"""Tuning: the thresholds and sizes of the kernel, each with its reason.

*Measured* refers to `python -m benchmarks.tuning`, which tries other values on eight streams (d = 400, r =
10, n = 8000), *prototype* to streams that were tried when the kernel was designed. K is the number of probes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """When rows go through the exact update, and how long panels and periods are."""

    # --- rows that are compared with those before ---

    # The residual expected, over that of the stream so far, and K / (rows so far) times this more. Only where
    # residuals were not measured: directions fit the rows they were found in best.
    noise_slack: float = 1.0
    early_slack: float = 4.0
    # Excess residual of a panel that is not drift, as a share of the energy of the weakest direction wanted:
    # what is missed so cannot change a wanted direction by more. Measured: the same from 0 to 1e-2.
    drift_tolerance: float = 1e-3
    # Residual of a single row, the same share: a larger row could make up a direction by itself. Measured: at
    # 4, heavy tails lose twice as much; at 0.25, rows take 17 % longer.
    outlier_share: float = 0.5

    # --- spectra that products do not serve ---

    # Least ratio of the weakest singular value wanted to the largest, in units of sqrt(eps): its energy is
    # then twice the shift that the first direction alone causes.
    ill_conditioned: float = 8.0
    recovery: float = 4.0  # by which it must be larger to leave the exact update: no going to and fro
    # Flatness (energy outside, in units of as many directions like the weakest wanted) above which there are
    # twice as many probes, and shorter periods. Measured: at 2, singular values like i^-1/2 lose five times
    # as much; at 0, a row of any stream takes 1.5 times as long.
    flat: float = 1.0
    # Flatness above which a stream goes through the exact update until it has so many rows per probe.
    # Measured for singular values like i^-0.1: 3.9 % short; without it 4.6 %, in three quarters of the time;
    # with the exact update for all rows 3.3 %, in 1.8 times the time.
    very_flat: float = 8.0
    very_flat_rows: int = 64

    # --- news ---

    # Rows with news that are searched for new directions; how many become probes at a time; and their least
    # energy, in units of the median. Prototype: 128 rows are no more accurate, and take 2.5 times as long for
    # heavy tails.
    look_rows: int = 64
    max_fresh: int = 8
    stands_out: float = 3.0
    # Rows after which a new direction must be as strong as the others. Prototype: with 256, sorted clusters
    # lose 3 to 9 times as much.
    settled_rows: int = 512
    wary_rows: int = 128  # per panel after news, doubled with every panel without
    # Squared variation of residuals above which few directions make them up: a period begins with a search.
    uneven: float = 0.2
    # Share of the energy of the weakest direction wanted below which such residuals are not worth a search:
    # half of its singular value, in all rows together, changes no direction wanted for another.
    matters: float = 0.25

    # --- the first rows ---

    # What they may take and be kept, so that a short stream has an exact result. The copy takes 4 % of the
    # time of 20,000 rows of 1000 features, which the fewer periods at the start save.
    kept_bytes: int = 2**25
    direct_rows: int = 256  # if no more can be kept, their directions are found exactly: a small eigenproblem
    # Rows of those, drawn at random, in which the first probes are found, and at least so many per probe. One
    # pass over all serves singular values like 1/i then, three to five flat ones.
    sample_rows: int = 512
    sample_per_probe: int = 12
    max_passes: int = 5
    # Share of the energy wanted that another pass must add. Measured: at 1e-2 a flat spectrum loses 10 %
    # more, at 1e-4 it takes 10 to 16 % longer.
    min_gain: float = 1e-3

    # --- sizes of buffers and panels ---

    # Probes left for directions that the history has not shown: one that rises too slowly to be drift is
    # found through it, and loses 1.4 times less. Measured: more lose accuracy elsewhere, since fewer are
    # carried.
    free_probes: int = 1
    # Rows that the buffer holds, factorized exactly, and at least so many per probe: the first probes.
    # Measured: 32 lose 1.5 times as much, 512 take 18 % longer.
    buffer_rows: int = 128
    buffer_per_probe: int = 2
    # Fewer are buffered. Measured: 32 rows cost 1.1 to 2.7 times as much per row as 1024, 8 rows 1.5 to 8
    # times.
    min_panel_rows: int = 32
    # Threads work for milliseconds before they meet, and Python once per panel.
    max_panel_rows: int = 65_536
    # With forgetting, ranks that follow the stream, and in the first panel of a period of a flat spectrum.
    # Measured: the same within 20 % from 256 to 2048. Rows that drift go through the exact update by panels.
    max_wary_rows: int = 1024

    # --- periods ---

    # Least rows per period and probe: its end, 8 K² d operations, then costs no more than its rows, 4 K d
    # each.
    period_per_probe: int = 2
    # Most rows per period and probe: two long panels, since all threads wait for its end;
    max_period_per_probe: float = 4096
    max_period_forgetting: float = (
        128  # with forgetting and adaptive ranks, where the end is 2 % of the cost;
    )
    max_period_adaptive: float = (
        256  # and most rows at all while the rank adapts, which it does between periods.
    )
    min_probes_of_period: int = (
        32  # of which these are counted at least: few probes would end periods too often
    )
    # Rows of the stream so far per row of the next period: later ones change the directions less. Measured:
    # half of the stream would lose 1.4 times as much for a flat spectrum.
    history_per_row: float = 3.0
    history_per_row_flat: float = 4.0


TUNING = Tuning()
