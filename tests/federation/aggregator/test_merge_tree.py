"""The merge follows from the set of children, bit for bit, and a change recomputes one path of it."""

import random
import time

import numpy as np
import pytest
from helpers import assert_summarizes, bits, power_law, rows_of, shortfall
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Aggregator, Moments, Privacy, StreamingPCA, Subspace, merge_tree
from fedpca.federation.aggregator.tree import MergeTree

SUMMARIES = {
    kind: [
        make(np.random.default_rng(seed).normal(size=(6, 4)) * [4, 3, 2, 1] + seed / 9) for seed in range(40)
    ]
    for kind, make in (("subspace", lambda rows: Subspace.from_rows(rows, 3)), ("moments", Moments.from_rows))
}


def built(members, fanout, rank=1):
    tree = MergeTree(rank, fanout)
    for name, summary in members.items():
        tree.set(name, summary)
    return tree


@given(
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39) | st.none()), min_size=1, max_size=120),
    st.sampled_from([2, 3, 8]),
    st.sampled_from(sorted(SUMMARIES)),
)
def test_any_history_of_the_same_children_gives_the_same_bits(changes, fanout, kind):
    tree, members = MergeTree(1, fanout), {}
    for step, (number, which) in enumerate(changes):
        summary = None if which is None else SUMMARIES[kind][which]
        tree.set(f"{number}", summary)
        members[f"{number}"] = summary
        if summary is None:
            del members[f"{number}"]
        if members and step % 7 == 0:
            tree.merged()  # partial merges are kept from here on
    if members:
        names = sorted(members)
        random.Random(0).shuffle(names)
        assert bits(tree.merged()) == bits(built({name: members[name] for name in names}, fanout).merged())


@pytest.mark.parametrize("kind", ["subspace", "moments"])
def test_one_change_recomputes_one_path(monkeypatch, kind):
    summaries = SUMMARIES[kind]
    tree = built({f"{number}": summaries[number % 40] for number in range(3000)}, 8)
    merges, merge_parts = [], MergeTree._merge_parts
    monkeypatch.setattr(
        MergeTree, "_merge_parts", lambda tree, parts: merges.append(parts) or merge_parts(tree, parts)
    )
    tree.merged()
    whole = len(merges)
    for change in (("5", summaries[3]), ("new", summaries[4]), ("7", None)):
        merges.clear()
        tree.set(*change)
        merged = tree.merged()
        assert len(merges) * 20 < whole
        merges.clear()
        assert tree.merged() is merged
        assert not merges


def test_the_model_of_many_is_that_of_all_rows():
    tables = [rows_of(seed, 9) for seed in range(300)]
    for make in (Subspace.from_rows, Moments.from_rows):
        aggregator = Aggregator()
        for child, rows in enumerate(tables):
            aggregator.receive(f"{child}", 0, make(rows))
        assert_summarizes(aggregator.model(), tables)


@pytest.mark.slow
def test_the_tree_is_as_accurate_as_merging_in_order_of_names():
    rows = power_law(np.random.default_rng(0), 20_000, 60, alpha=0.7)
    parts = [
        StreamingPCA(8).fit(part).subspace_ for part in np.array_split(rows[np.argsort(rows[:, 0])], 400)
    ]
    aggregator = Aggregator(8)
    for child, part in enumerate(parts):
        aggregator.receive(f"{child}", 0, part)
    hashed = shortfall(aggregator.model().components, rows)
    assert hashed < 1.5 * shortfall(merge_tree(parts, 8).components, rows) + 1e-12


def test_what_goes_up_is_what_the_model_is_made_of():
    aggregator = Aggregator(2)
    for seed in range(30):
        aggregator.receive(f"{seed}", 0, Subspace.from_rows(rows_of(seed), 5))
    assert bits(aggregator.summary().subspace(2)) == bits(aggregator.model())
    assert aggregator.summary().rank > 2


PRIVACY = Privacy(2.0, 1e-5, 3.0, center=None, evaluate=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["subspace", "moments"])
@pytest.mark.long
def test_receiving_does_not_take_longer_with_many_children(kind):
    """The fastest of many, as other programs run at the same time."""
    make = Moments.from_rows if kind == "moments" else lambda rows: Subspace.from_rows(rows, 10)
    summaries = [make(np.random.default_rng(seed).normal(size=(30, 100))) for seed in range(40)]
    times = {10: [], 3000: []}
    aggregators = {n: Aggregator(5) for n in times}
    for n, aggregator in aggregators.items():
        for child in range(n):
            aggregator.receive(f"{child}", 0, summaries[child % 40])
    for version in range(1, 100):
        for n, aggregator in aggregators.items():
            started = time.perf_counter()
            aggregator.receive(f"{version % 10}", version, summaries[version % 40])
            times[n].append(time.perf_counter() - started)
    assert min(times[3000]) < 1.2 * min(times[10])
