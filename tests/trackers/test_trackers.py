"""The suite every tracker passes, and in part every baseline: a new tracker is one line in the list."""

import pickle

import numpy as np
import pytest
from helpers import (
    KINDS,
    assert_valid,
    awkward,
    pooled,
    power_law,
    scatter_of,
    shortfall,
    singular_values,
    sparse_rows,
    track,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedpca import Moments, Subspace, merge
from fedpca.backend import HOST, batch_slices
from fedpca.metrics import captured_variance, principal_angles
from fedpca.summaries.rank import EnergyBand, FixedRank, VarianceShare
from fedpca.trackers import TRACKERS, Block, Exact, Nystrom, fastest
from reproduction.baselines import BASELINES, FrequentDirections

EVERY = pytest.mark.parametrize("tracker", TRACKERS.values(), ids=TRACKERS)
ALL = TRACKERS | {tracker.__name__: tracker for tracker in BASELINES}
BASELINES_TOO = pytest.mark.parametrize("tracker", ALL.values(), ids=ALL)


@BASELINES_TOO
@given(
    kind=st.sampled_from(KINDS),
    n_rows=st.integers(1, 300),
    n_features=st.integers(1, 40),
    batch=st.sampled_from([1, 3, 50, 300]),
    center=st.booleans(),
    seed=st.integers(0, 99),
)
def test_awkward_rows_give_a_valid_summary(tracker, kind, n_rows, n_features, batch, center, seed):
    rows = awkward(kind, n_rows, n_features, seed)
    tracked = track(tracker, rows, min(3, n_features), batch, center=center)
    summary = tracked.summary()
    assert_valid(summary)
    assert summary.count == n_rows
    _, mean, scatter, energy = pooled([rows], center)
    np.testing.assert_allclose(summary.mean, mean, atol=1e-9 * np.sqrt(energy / n_rows))
    assert summary.total == pytest.approx(np.trace(scatter), rel=1e-7, abs=1e-9 * energy)
    if tracker in (*TRACKERS.values(), FrequentDirections):  # what is kept never exceeds the truth
        assert np.linalg.eigvalsh(scatter - scatter_of(summary)).min() >= -1e-7 * energy


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [20, 300])
def test_the_leading_directions_are_found(tracker, dtype, n_features, rng):
    rows = power_law(rng, 2000, n_features).astype(dtype)
    summary = track(tracker, rows, rank=5, batch=500, dtype=dtype).summary()
    assert summary.components.dtype == dtype
    assert shortfall(summary.components[:5], rows) < 1e-5
    np.testing.assert_allclose(summary.singular_values[:5], singular_values(rows)[:5], rtol=1e-3)


@EVERY
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_any_batch_size_gives_the_same_directions(tracker, batch, rng):
    rows = power_law(rng, 1000, 60)
    whole = track(tracker, rows, batch=len(rows)).summary()
    parts = track(tracker, rows, batch=batch).summary()
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-12)
    assert parts.total == pytest.approx(whole.total, rel=1e-10)
    assert shortfall(parts.components[:3], rows) < 1e-6


@EVERY
def test_exact_low_rank_is_recovered_to_rounding(tracker, rng):
    rows = rng.normal(size=(900, 4)) @ rng.normal(size=(4, 120)) + rng.normal(size=120)
    summary = track(tracker, rows, rank=6, batch=200).summary()
    assert summary.rank == 4
    assert shortfall(summary.components, rows) < 1e-10


@EVERY
def test_a_stream_that_changes_its_directions_is_followed(tracker, rng):
    first, second = rng.normal(size=(2, 1500, 400)) * 0.01
    first[:, :3] += rng.normal(size=(1500, 3))
    second[:, 3:6] += rng.normal(size=(1500, 3))
    rows = np.concatenate([first, second])
    assert shortfall(track(tracker, rows, rank=6, batch=250).summary().components[:6], rows) < 1e-6


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_rows_that_are_directions_of_their_own_are_not_lost(tracker, dtype, rng):
    rows = rng.standard_t(2.5, size=(6000, 300)).astype(dtype)
    lost = shortfall(track(tracker, rows, rank=5, batch=500, dtype=dtype).summary().components[:5], rows)
    assert lost < 0.01


@EVERY
def test_rows_sorted_along_the_first_component(tracker, rng):
    rows = power_law(rng, 3000, 400)
    first = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][0]
    rows = rows[np.argsort(rows @ first)]
    assert shortfall(track(tracker, rows, rank=10, batch=500).summary().components[:10], rows) < 1e-5


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_far_from_the_origin_lose_no_digits(tracker, dtype, rng):
    rows = power_law(rng, 1500, 300)
    far = (rows + 1e4 * rng.normal(size=300)).astype(dtype)
    summary = track(tracker, far, rank=5, batch=100, dtype=dtype).summary()
    assert shortfall(summary.components[:5], far) < 1e-5
    # and a stream that moves away only later
    late = np.concatenate([rows[:200].astype(dtype), far])
    summary = track(tracker, late, rank=5, batch=100, dtype=dtype).summary()
    assert shortfall(summary.components[:5], late) < 1e-5


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("floor", [0, 1e-6, 1e-4])
def test_a_steep_spectrum_gains_no_energy(tracker, dtype, floor, rng):
    basis = np.linalg.qr(rng.normal(size=(400, 400)))[0]
    rows = (rng.normal(size=(3000, 400)) * np.maximum(10.0 ** -np.arange(400), floor)) @ basis
    rows = rows.astype(dtype)
    values = track(tracker, rows, rank=3, batch=100, dtype=dtype).summary().singular_values[:3]
    np.testing.assert_allclose(values, singular_values(rows)[:3], rtol=1e-3 if dtype == np.float32 else 1e-6)


@EVERY
def test_a_mean_that_jumps_in_float32(tracker, rng):
    rows = power_law(rng, 3000, 300) + np.repeat(10 * rng.normal(size=(6, 300)), 500, axis=0)
    rows = rows.astype(np.float32)
    summary = track(tracker, rows, rank=3, batch=37, dtype=np.float32).summary()
    deviations = rows - rows.mean(axis=0, dtype=np.float64)
    exact = singular_values(rows)
    assert summary.total == pytest.approx(np.sum(deviations**2), rel=1e-5)
    assert (summary.singular_values**2 <= exact[: summary.rank] ** 2 + 1e-5 * exact[0] ** 2).all()


@EVERY
def test_features_of_very_different_size_in_float32(tracker, rng):
    rows = np.c_[rng.normal(5e4, 2e4, 2000), rng.normal(40, 12, 2000), rng.random((2000, 8))].astype(
        np.float32
    )
    values = track(tracker, rows, rank=5, batch=100, dtype=np.float32).summary().singular_values[:5]
    exact = np.linalg.svd(rows - rows.mean(axis=0, dtype=np.float64), compute_uv=False)[:5]
    np.testing.assert_allclose(values, exact, rtol=1e-4)


@BASELINES_TOO
def test_merging_keeps_the_dtype(tracker, rng):
    rows = power_law(rng, 900, 40).astype(np.float32)
    tracked = track(tracker, rows[:300], batch=100, dtype=np.float32)
    tracked.merge(Subspace.from_rows(rows[300:600].astype(np.float64)))
    tracked.update(rows[600:])
    assert tracked.summary().components.dtype == np.float32


@EVERY
def test_weights_count_as_repeated_rows(tracker, rng):
    rows, weights = power_law(rng, 400, 50), rng.integers(0, 4, 400).astype(float)
    weighted = track(tracker, rows, weights=weights, batch=90).summary()
    repeated = Moments.from_rows(np.repeat(rows, weights.astype(int), axis=0))
    assert weighted.count == repeated.count
    np.testing.assert_allclose(weighted.mean, repeated.mean, atol=1e-12)
    assert weighted.total == pytest.approx(repeated.total)
    assert principal_angles(weighted.components[:3], repeated.subspace(3)).max() < 1e-2


@EVERY
@pytest.mark.parametrize("batch", [5, 90])
def test_forgetting_equals_merging_with_forgetting(tracker, batch, rng):
    rows = power_law(rng, 450, 30)
    tracked = tracker(30, FixedRank(3), oversample=27)  # all directions are carried: nothing is truncated
    parts = []
    for start in range(0, 450, batch):
        tracked.decay(0.9)
        tracked.update(rows[start : start + batch])
        parts.append(Subspace.from_rows(rows[start : start + batch]))
    expected = parts[0]
    for part in parts[1:]:
        expected = merge([expected, part], forget=0.9)
    summary = tracked.summary()
    assert summary.count == pytest.approx(expected.count)
    np.testing.assert_allclose(summary.mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(scatter_of(summary), scatter_of(expected), atol=1e-8 * expected.total)


@EVERY
def test_a_drifting_stream_is_followed_when_it_forgets(tracker, rng):
    n_features, angles = 300, np.linspace(0, np.pi / 2, 60)
    forgetful, faithful = (tracker(n_features, FixedRank(1)) for _ in range(2))
    for angle in angles:  # one strong direction turns by a right angle
        rows = 0.05 * rng.normal(size=(80, n_features))
        rows[:, :2] += rng.normal(size=(80, 1)) * [np.cos(angle), np.sin(angle)]
        forgetful.decay(0.7)
        forgetful.update(rows)
        faithful.update(rows)
    now = np.zeros((1, n_features))
    now[0, 1] = 1
    assert np.cos(principal_angles(forgetful.summary().components[:1], now)[0]) > 0.99
    assert np.cos(principal_angles(faithful.summary().components[:1], now)[0]) < 0.9


@BASELINES_TOO
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array])
def test_sparse_rows_give_what_dense_rows_give(tracker, form, rng):
    rows = sparse_rows(rng, 700, 300)
    dense = track(tracker, rows.toarray(), batch=200).summary()
    kept = track(tracker, form(rows), batch=200).summary()
    np.testing.assert_allclose(kept.mean, dense.mean, atol=1e-12)
    np.testing.assert_allclose(kept.singular_values, dense.singular_values, rtol=1e-8)
    assert captured_variance(kept.components[:3], rows.toarray()) == pytest.approx(
        captured_variance(dense.components[:3], rows.toarray()), abs=1e-8
    )


@BASELINES_TOO
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32])
def test_other_dtypes_are_converted(tracker, dtype, rng):
    rows = (20 * np.abs(power_law(rng, 600, 40))).astype(dtype)
    summary = track(tracker, rows, batch=150).summary()
    expected = track(tracker, rows.astype(np.float64), batch=150).summary()
    np.testing.assert_allclose(summary.singular_values, expected.singular_values, rtol=1e-9)


@BASELINES_TOO
def test_looking_does_not_change_the_stream(tracker, rng):
    rows = power_law(rng, 1200, 80)
    looked, blind = tracker(80, FixedRank(4)), tracker(80, FixedRank(4))
    for start in range(0, 1200, 45):
        looked.update(rows[start : start + 45])
        blind.update(rows[start : start + 45])
        looked.summary()
        looked.state()
    assert looked.summary() == blind.summary()


@BASELINES_TOO
def test_rows_and_weights_stay_as_they_were(tracker, rng):
    rows, weights = power_law(rng, 300, 20), rng.uniform(size=300)
    before = rows.copy(), weights.copy()
    rows.flags.writeable = weights.flags.writeable = False
    tracked = track(tracker, rows, batch=100, weights=weights)
    tracked.decay(0.5)
    tracked.update(rows)
    np.testing.assert_array_equal(rows, before[0])
    np.testing.assert_array_equal(weights, before[1])


@BASELINES_TOO
def test_a_pickled_tracker_goes_on_as_if_nothing_had_happened(tracker, rng):
    rows = power_law(rng, 1000, 60)
    tracked = track(tracker, rows[:530], batch=53)
    revived = pickle.loads(pickle.dumps(tracked))
    for one in (tracked, revived):
        one.update(rows[530:])
    assert revived.summary() == tracked.summary()


@EVERY
def test_merging_other_summaries_equals_seeing_their_rows(tracker, rng):
    rows = power_law(rng, 900, 40)
    tracked = tracker(40, FixedRank(3), oversample=37)
    tracked.update(rows[:300])
    tracked.update(rows[300:310])  # some rows still wait
    tracked.merge(Subspace.from_rows(rows[310:500]), Moments.from_rows(rows[500:700]))
    tracked.update(rows[700:])
    expected = Moments.from_rows(rows)
    summary = tracked.summary()
    assert summary.count == 900
    np.testing.assert_allclose(summary.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(scatter_of(summary), expected.scatter, atol=1e-9 * expected.total)


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_merging_far_from_the_origin(tracker, dtype, rng):
    rows = (power_law(rng, 900, 30) + 1e4 * rng.normal(size=30)).astype(dtype)
    tracked = tracker(30, FixedRank(3), dtype=dtype)
    for part in np.array_split(rows, 6):
        tracked.merge(Subspace.from_rows(part[:70]))
        tracked.update(part[70:])
    summary = tracked.summary()
    np.testing.assert_allclose(summary.mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-9)
    assert shortfall(summary.components[:3], rows) < 1e-5


@BASELINES_TOO
@pytest.mark.parametrize("forget", [1e-3, 0.5])
def test_forgetting_almost_everything_at_once(tracker, forget, rng):
    tracked = tracker(20, FixedRank(2))
    for row in power_law(rng, 400, 20):
        tracked.decay(forget)
        tracked.update(row[None])
    assert_valid(tracked.summary())
    assert tracked.summary().count == pytest.approx(1 / (1 - forget**2))


@BASELINES_TOO
def test_energy_lost_before_a_merge_stays_on_the_books(tracker, rng):
    rows = power_law(rng, 400, 40)
    truncated = Subspace.from_rows(rows[:200], rank=3)
    tracked = tracker(40, FixedRank(3))
    tracked.merge(truncated)
    tracked.update(rows[200:])
    assert tracked.summary().total == pytest.approx(Moments.from_rows(rows).total)
    state = tracked.state()
    assert state.total == pytest.approx(tracked.summary().total)


@EVERY
def test_every_rank_rule_works_in_every_tracker(tracker, rng):
    rows = power_law(rng, 4000, 100, alpha=1.0)
    banded = tracker(100, EnergyBand(low=0.02, high=0.2))
    shared = tracker(100, VarianceShare(0.9))
    for start in range(0, 4000, 400):
        banded.update(rows[start : start + 400])
        shared.update(rows[start : start + 400])
    spectrum = singular_values(rows)
    rank = banded.view().n_components
    assert 0.02 <= spectrum[rank - 1] / spectrum[:rank].sum() <= 0.2
    rank = shared.view().n_components
    needed = int(np.searchsorted(np.cumsum(spectrum**2) / np.sum(spectrum**2), 0.9)) + 1
    assert needed <= rank <= needed + 1


@BASELINES_TOO
def test_a_tracker_takes_the_settings_it_declares(tracker):
    values = {"backend": HOST, "block_rows": 7, "mixed_units": True, "seed": 3}
    assert tracker.settings <= set(values)
    tracker(20, FixedRank(2), **{name: values[name] for name in tracker.settings})
    for name in {"block_rows", "seed"} - tracker.settings:
        with pytest.raises(TypeError, match=name):
            tracker(20, FixedRank(2), **{name: values[name]})


def test_the_exact_tracker_is_exact_in_any_order(rng):
    rows = power_law(rng, 2000, 50, mean_size=100)
    expected = Subspace.from_rows(rows, 8)
    for order in (slice(None), rng.permutation(2000), np.argsort(rows[:, 0])):
        summary = track(Exact, rows[order], rank=8, batch=33).summary().truncate(8)
        assert principal_angles(summary, expected).max() < 1e-6
        np.testing.assert_allclose(summary.singular_values, expected.singular_values, rtol=1e-10)


@pytest.mark.parametrize("block_rows", [1, 5, 50, 1000])
def test_the_block_tracker_is_the_papers_iteration(block_rows, rng):
    """SVD_r of [U S, block], block after block, written with numpy's SVD alone; leftover rows included."""
    rows, rank = power_law(rng, 230, 30), 4
    kept = np.zeros((0, 30))
    for start in range(0, 230, block_rows):
        _, values, directions = np.linalg.svd(
            np.concatenate([kept, rows[start : start + block_rows]]), full_matrices=False
        )
        kept = values[:rank, None] * directions[:rank]
    tracked = track(Block, rows, rank, batch=19, block_rows=block_rows, oversample=0, center=False)
    np.testing.assert_allclose(scatter_of(tracked.summary()), kept.T @ kept, atol=1e-10)


def test_rank_adapts_by_one_once_a_block(rng):
    rows = rng.normal(size=(100, 20)) * ([1.0] * 6 + [1e-3] * 14)
    tracked = Block(20, EnergyBand(low=0.01, high=0.05), block_rows=10, oversample=0, center=False)
    ranks = []
    for start in range(0, 100, 10):
        tracked.update(rows[start : start + 10])
        ranks.append(tracked.rank)
    assert ranks[:6] == [2, 3, 4, 5, 6, 7]  # the seventh is tried, found empty, dropped
    assert set(ranks[6:]) <= {6, 7}


@pytest.mark.slow
def test_the_fast_kernel_does_not_lose_to_the_block_update():
    def presorted(rng):
        rows = power_law(rng, 3000, 400)
        return rows[np.argsort(rows @ Subspace.from_rows(rows, 1).components[0])]

    def changing(rng):
        return np.concatenate([power_law(rng, 2000, 400), power_law(rng, 2000, 400)])

    for make in (lambda rng: power_law(rng, 3000, 400), presorted, changing):
        lost = {Nystrom: [], Block: []}
        for seed in range(5):
            rows = make(np.random.default_rng(seed))
            for tracker, losses in lost.items():
                losses.append(shortfall(track(tracker, rows, 10, 500).summary().components[:10], rows))
        assert np.median(lost[Nystrom]) <= np.median(lost[Block])


def test_the_fastest_tracker_is_chosen_by_features_and_rank():
    assert fastest(256, FixedRank(1)) == fastest(800, FixedRank(100)) == "exact"
    assert fastest(257, FixedRank(1)) == fastest(801, FixedRank(100)) == "nystrom"


# --- the fast kernel: short streams, news, batches ---


def remembering(n_kept, n_features, rank):
    """The fast kernel with room for so many first rows only: a long stream in a short test."""
    tracked = Nystrom(n_features, FixedRank(rank))
    tracked._first_rows.max_rows = n_kept
    return tracked


def fed(tracked, rows, batch):
    for start in range(0, len(rows), batch):
        tracked.update(rows[start : start + batch])
    return tracked


@pytest.mark.parametrize("shape", [(150, 700), (900, 300), (420, 420)])
@pytest.mark.parametrize("batch", [1, 64, 1000])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_fast_kernel_is_exact_while_rows_are_few(shape, batch, alpha, rng):
    rows = rng.normal(size=shape) * np.arange(1, shape[1] + 1) ** -alpha + rng.normal(size=shape[1])
    summary = fed(Nystrom(shape[1], FixedRank(6)), rows, batch).summary()
    assert shortfall(summary.components[:6], rows) < 1e-9
    np.testing.assert_allclose(summary.singular_values[:6], singular_values(rows)[:6], rtol=1e-9)
    whole = fed(Nystrom(shape[1], FixedRank(6)), rows.astype(np.float32), len(rows)).summary()
    assert shortfall(whole.components[:6], rows) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1500, 617), (400, 2000)])
@pytest.mark.parametrize("alpha", [0.25, 3.0])
def test_few_rows_of_many_directions_are_exact(shape, alpha, rng):
    rows = rng.normal(size=shape) * np.arange(1, shape[1] + 1) ** -alpha
    summary = fed(Nystrom(shape[1], FixedRank(10)), rows, len(rows)).summary()
    assert shortfall(summary.components[:10], rows) < 1e-12
    np.testing.assert_allclose(summary.singular_values[:10], singular_values(rows)[:10], rtol=1e-12)


@pytest.mark.parametrize("batch", [32, 50, 100, 333, 1000])
@pytest.mark.parametrize(("n_new", "size"), [(60, 20), (200, 10)])
def test_a_new_direction_of_few_rows_is_found_in_any_batches(batch, n_new, size, rng):
    rows = rng.normal(size=(4000, 300))
    rows[:, :4] *= [12, 11, 10, 9]
    rows[2200 : 2200 + n_new, 200] += size * rng.normal(size=n_new)
    summary = fed(remembering(1000, 300, 5), rows, batch).summary()
    best = np.linalg.eigh(np.cov(rows.T))[1][:, -5:]
    new = best[:, np.argmax(np.abs(best[200]))]
    assert np.linalg.norm(summary.components[:5] @ new) ** 2 > 0.9
    assert shortfall(summary.components[:5], rows) < 2e-3


@pytest.mark.slow
def test_batches_hardly_matter_to_the_fast_kernel(rng):
    rows = 0.2 * rng.normal(size=(6000, 300))
    rows[np.arange(6000), np.arange(6000) // 300] += 5 * rng.normal(size=6000)  # twenty in sequence
    lost = [
        shortfall(fed(remembering(1500, 300, 10), rows, batch).summary().components[:10], rows)
        for batch in (32, 64, 100, 256, 512, 1024)
    ]
    other = shortfall(track(Block, rows, 10, 500).summary().components[:10], rows)
    assert max(lost) < 1.5 * min(lost) + 1e-4
    assert max(lost) < 2 * other


@pytest.mark.parametrize("batch", [45, 500])
def test_what_the_fast_kernel_keeps_of_a_drifting_stream_never_exceeds_the_truth(batch, rng):
    rows = rng.normal(size=(3000, 60))
    for start in range(0, 3000, 250):
        rows[start : start + 250] += 4 * rng.normal(size=(250, 1)) * rng.normal(size=60) / 8
    tracked = fed(remembering(500, 60, 4), rows, batch)
    for summary in (tracked.summary(), tracked.state()):
        assert_valid(summary)
        _, _, scatter, energy = pooled([rows], True)
        assert np.linalg.eigvalsh(scatter - scatter_of(summary)).min() >= -1e-7 * energy


@pytest.mark.parametrize("seed", range(3))
def test_the_fast_kernel_does_not_lose_to_larger_windows(seed):
    """Flat and spiked spectra, for which IncrementalPCA gets the rows of a thousand at once."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(5000, 300))
    rows[:, :5] *= 2
    whole = fed(remembering(2500, 300, 5), rows, 1000).summary()
    window = track(Block, rows, 5, 1000, block_rows=1000, oversample=0).summary()
    assert shortfall(whole.components[:5], rows) < shortfall(window.components[:5], rows)


def test_the_fast_kernel_adapts_its_rank_within_a_block(rng):
    rows = power_law(rng, 6000, 300, alpha=0.5)
    tracked = Nystrom(300, EnergyBand(low=0.02, high=0.05, first=1))
    ranks = []
    for start in range(0, 6000, 100):
        tracked.update(rows[start : start + 100])
        ranks.append(tracked.rank)
    settled = ranks[-1]
    assert settled > 5
    assert min(ranks[5:]) >= settled - 1
    rows = rows * np.r_[20.0, np.ones(299)]  # one direction outweighs the others from now on
    for start in range(0, 6000, 100):
        tracked.update(rows[start : start + 100])
        values = tracked.state().singular_values[: tracked.rank]
        if start > 600:  # never longer out of the band than a period of 256 rows takes
            assert values[-1] / values.sum() <= 0.05 + 0.01


@EVERY
@pytest.mark.parametrize("n_before", [0, 5, 400, 3000])
def test_a_branch_leaves_the_tracker_as_it_is(tracker, n_before, rng):
    rows = power_law(rng, n_before + 700, 30)
    first, more = rows[:n_before], rows[n_before:]
    trunk, alone = (tracker(30, FixedRank(3)) for _ in range(2))
    for part in batch_slices(n_before, 64):
        trunk.update(first[part])
        alone.update(first[part])
    branch = trunk.branch()
    branch.decay(0.5)
    branch.update(10 * more[::-1])
    assert trunk.summary() == alone.summary()
    for part in batch_slices(len(more), 64):
        trunk.update(more[part])
        alone.update(more[part])
    assert trunk.summary() == alone.summary()


@pytest.mark.parametrize("view", [np.s_[:, ::2], np.s_[::-1, 30::-1]], ids=["every other column", "reversed"])
def test_moments_of_any_view_of_float32_rows(view, rng):
    """BLAS takes copies of such rows, whose products are not quite symmetric."""
    for _ in range(10):
        rows = rng.normal(size=(3004, 62)) / np.arange(1, 63) ** 0.7 + rng.normal(size=62)
        rows = rows.astype(np.float32)[view]
        state = track(Exact, rows, 5, 751, dtype=np.float32).state()
        assert isinstance(state, Moments)
        np.testing.assert_allclose(state.scatter, pooled([rows], True)[2], atol=1e-5 * state.total)
