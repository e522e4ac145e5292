"""A tracker that is rebuilt with its key and re-advanced: nothing is spent or drawn a second time."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from fedpca import Privacy
from fedpca.privacy import PrivateTracker, StepSum
from fedpca.summaries.rank import FixedRank

KEY = bytes(range(32))
PROMISE = {"epsilon": 4.0, "delta": 1e-6}


def rows_of_units(seed=0, n_rows=3000):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, 4)) * [40.0, 3.0, 0.5, 1.0] + [100.0, 0.0, 7.0, -3.0]


def tracker(key=KEY, **more):
    return PrivateTracker(4, FixedRank(2), Privacy(**PROMISE, **more), scale="std", key=key)


def all_sums(rows, key=KEY):
    """The sums of one owner who takes all steps alone, and the tracker."""
    alone, sums = tracker(key), []
    while not alone.is_prepared:
        sums.append(alone.step_sum([rows], len(rows)))
        alone.advance(sums[-1])
    return sums, alone


def costs(built):
    return [(entry.mechanism, entry.mu) for entry in built.ledger.entries]


def test_replayed_and_paid_it_goes_on_where_it_was():
    rows = rows_of_units()
    sums, alone = all_sums(rows)
    again = tracker()
    for pooled in sums:
        again.replay(pooled, paid=True)
    assert again.is_prepared
    assert costs(again) == []  # it has spent nothing itself
    for each in (alone, again):
        each.update([rows], len(rows))
    first, second = alone.release(), again.release()
    np.testing.assert_array_equal(
        first.scatter, second.scatter
    )  # the same key, rows and sums: the same noise
    assert first.certificate.steps == second.certificate.steps
    assert costs(alone)[-1] == costs(again)[-1]


def test_a_step_in_the_middle_is_the_same():
    rows = rows_of_units()
    sums, _ = all_sums(rows)
    again = tracker()
    for pooled in sums[:3]:
        again.replay(pooled, paid=True)
    drawn = again.step_sum([rows], len(rows))
    assert (drawn.step, drawn.n_rows) == (sums[3].step, 3000)
    np.testing.assert_array_equal(drawn.total, sums[3].total)


def test_one_who_took_no_part_spends_everything_on_the_release():
    sums, _ = all_sums(rows_of_units())
    late, rows = tracker(key=None), rows_of_units(1, 2000)
    for pooled in sums:
        late.replay(pooled, paid=False)
    late.update([rows], len(rows))
    certificate = late.release().certificate
    privacy = Privacy(**PROMISE)
    assert costs(late) == [("gram", pytest.approx(privacy.mu * sqrt(1 - privacy.evaluation_share)))]
    assert [step.step for step in certificate.steps] == ["gram"]


def test_what_was_paid_and_what_was_left_add_up():
    rows = rows_of_units()
    sums, alone = all_sums(rows)
    for paid in ({1, 2}, {1, 2, 3, 4}, set()):
        some = tracker(key=None)
        for number, pooled in enumerate(sums):
            some.replay(pooled, paid=number in paid)
        some.update([rows], len(rows))
        some.release()
        steps = [cost for number, cost in enumerate([("rows", 0.0), *costs(alone)]) if number in paid]
        squares = sum(mu**2 for _, mu in [*steps, *costs(some)])
        privacy = Privacy(**PROMISE)
        assert squares == pytest.approx(privacy.mu**2 * (1 - privacy.evaluation_share))


def test_a_round_that_began_here_ends_here():
    rows = rows_of_units()
    sums, _ = all_sums(rows)
    begun = tracker()
    begun.step_sum([rows], len(rows))
    with pytest.raises(ValueError, match="ends here: call advance"):
        begun.replay(sums[0], paid=False)
    begun.advance(sums[0])
    with pytest.raises(ValueError, match="call step_sum first"):
        begun.advance(sums[1])  # never by accident
    with pytest.raises(ValueError, match="must be that of 'scales'"):
        begun.replay(sums[0], paid=False)
    with pytest.raises(ValueError, match="must be finite"):
        begun.replay(StepSum("scales", np.full(484, np.nan), 10), paid=False)
    for pooled in sums[1:]:
        begun.replay(pooled, paid=False)
    with pytest.raises(ValueError, match="nothing to find privately"):
        begun.replay(sums[-1], paid=False)


def test_a_stream_that_began_is_no_replay():
    stream = tracker(key=None)
    stream.update([rows_of_units()[:50]], 50)
    with pytest.raises(ValueError, match="ends here"):
        stream.replay(all_sums(rows_of_units())[0][1], paid=True)


def test_a_key_has_32_bytes():
    with pytest.raises(ValueError, match="key must have 32 bytes, got 5"):
        tracker(key=b"short")


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_honest_sums_pass_and_others_do_not(adjacency):
    rows = rows_of_units() * 1e6
    alone, judge = tracker(None, adjacency=adjacency), tracker(None, adjacency=adjacency)
    while not alone.is_prepared:
        own = alone.step_sum([rows], len(rows))
        judge.model.check_own(own)
        if own.step != "rows":
            with pytest.raises(ValueError, match="rows and noise have at most"):
                judge.model.check_own(replace(own, total=own.total + 1e9))
            with pytest.raises(ValueError, match="whole numbers"):
                judge.model.check_own(replace(own, total=own.total + 0.5))
        with pytest.raises(ValueError, match=f"must be that of {own.step!r}"):
            judge.model.check_own(replace(own, total=np.zeros(3)))
        with pytest.raises(ValueError, match="must be of rows clipped to"):
            judge.model.check_own(replace(own, radius=own.radius + 1))
        judge.model.check_own(replace(own, radius=own.radius * (1 + 1e-15)))  # rounded on another machine
        with pytest.raises(ValueError, match="one owner with 1 to"):
            judge.model.check_own(replace(own, n_rows=0))
        alone.advance(own)
        judge.replay(own, paid=False)
    with pytest.raises(ValueError, match="nothing to find"):
        judge.model.check_own(own)
    alone.update([rows], len(rows))
    model = alone.release().subspace(2)
    own = alone.evaluation_sum([rows], len(rows), model)
    judge.model.evaluation_sum(model).check_own(own)
    with pytest.raises(ValueError, match="rows and noise have at most"):
        judge.model.evaluation_sum(model).check_own(replace(own, total=10 * own.total + 1e12))
    assert judge.evaluation(own, model) == alone.evaluation(own, model)


def test_thresholds_know_the_noise_of_those_who_sent_a_sum():
    """Of a histogram that nobody's rows are in, no bin may rise, however many noises are in it."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        judge = tracker(None)
        judge.replay(StepSum("rows", np.zeros(0), 3000, noise=1.0), paid=False)
        step = judge.model.next
        noise = np.rint(rng.normal(scale=step.blocks[0].sd * sqrt(50), size=step.length))
        judge.replay(StepSum("scales", noise, 3000, noise=50.0), paid=False)
        found += np.isfinite(judge.model.clipping.scale).any()
    assert found <= 2
