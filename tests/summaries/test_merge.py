"""Merging summaries equals summarizing all rows in one place."""

import numpy as np
import pytest
from helpers import assert_summarizes, assert_valid, power_law, rows_of_clients, scatter_of
from hypothesis import given
from hypothesis import strategies as st

import fedpca
from fedpca import Moments, Subspace, merge, merge_tree
from fedpca.paper.merges import basic_merge, faster_merge, merge_r, merge_r_as_printed


@given(tables=rows_of_clients(), center=st.booleans(), order=st.randoms(use_true_random=False))
def test_merging_subspaces_equals_pooling_rows(tables, center, order):
    summaries = [Subspace.from_rows(table, center=center) for table in tables]
    order.shuffle(summaries)
    merged = merge(summaries)
    assert_valid(merged)
    assert_summarizes(merged, tables, center)


@given(tables=rows_of_clients(), center=st.booleans(), fanout=st.integers(2, 4))
def test_any_tree_gives_the_same(tables, center, fanout):
    summaries = [Subspace.from_rows(table, center=center) for table in tables]
    assert_summarizes(merge_tree(summaries, fanout=fanout), tables, center)
    folded = summaries[0]
    for summary in summaries[1:]:
        folded = merge([summary, folded])
    assert_summarizes(folded, tables, center)


@given(tables=rows_of_clients(), center=st.booleans())
def test_moments_sum_exactly_and_mix_with_subspaces(tables, center):
    moments = [Moments.from_rows(table, center=center) for table in tables]
    merged = merge(moments)
    assert isinstance(merged, Moments)
    assert_summarizes(merged, tables, center)
    mixed = merge([moments[0], *(Subspace.from_rows(table, center=center) for table in tables[1:])])
    assert_summarizes(mixed, tables, center, rtol=1e-7)


@given(
    tables=rows_of_clients(min_clients=3),
    rank=st.integers(1, 3),
    fanout=st.integers(2, 3),
    center=st.booleans(),
)
def test_a_tree_adds_moments_and_truncates_at_the_root_only(tables, rank, fanout, center):
    rank = min(rank, tables[0].shape[1])
    moments = [Moments.from_rows(table, center=center) for table in tables]
    by_tree, at_once = merge_tree(moments, rank, fanout=fanout), merge(moments, rank)
    assert np.array_equal(by_tree.singular_values, at_once.singular_values)
    assert np.array_equal(by_tree.components, at_once.components)


def test_a_tree_of_moments_loses_nothing_to_its_inner_nodes(rng):
    tables = [power_law(rng, 40, 120, alpha=0.3) for _ in range(20)]
    pooled = Subspace.from_rows(np.concatenate(tables), 5)
    moments = [Moments.from_rows(table) for table in tables]
    mixed = [*moments[:10], *(Subspace.from_rows(table) for table in tables[10:12]), *moments[12:]]
    for parts in (moments, mixed):
        merged = merge_tree(parts, rank=5, fanout=4)
        assert np.allclose(merged.singular_values, pooled.singular_values, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:n_components=", "ignore:all 64 releases were paid for in memory")
def test_private_moments_are_added_before_their_noise_is_taken_off(rng):
    rows = rng.normal(size=(6400, 30)) / np.sqrt(np.arange(1, 31))
    releases = [
        fedpca.PrivatePCA(5, epsilon=1.0, delta=1e-5, bound=3.0, center=None, evaluate=False)
        .fit(part)
        .release()
        for part in np.array_split(rows, 64)
    ]
    summed = merge(releases).subspace(5)
    for merged in (
        merge_tree(releases, rank=5),
        merge([*releases, Subspace.empty(30, centered=False)], rank=5),
    ):
        assert np.allclose(merged.singular_values, summed.singular_values, rtol=1e-9)
        assert fedpca.metrics.affinity(merged, summed) == pytest.approx(1)


@given(tables=rows_of_clients(min_clients=2), rank=st.integers(1, 4))
def test_a_truncated_merge_never_exceeds_the_truth_and_says_what_it_lost(tables, rank):
    rank = min(rank, tables[0].shape[1])
    exact = merge([Subspace.from_rows(table) for table in tables])
    merged = merge([Subspace.from_rows(table, rank) for table in tables], rank)
    assert merged.rank <= rank
    missing = scatter_of(exact) - scatter_of(merged)
    size = exact.total + exact.count * float(exact.mean @ exact.mean)
    assert np.linalg.eigvalsh(missing).min() >= -1e-9 * size
    lost = merged.total - float(merged.singular_values @ merged.singular_values)
    assert np.trace(missing) == pytest.approx(lost, rel=1e-9, abs=1e-9 * size)


def test_without_means_the_result_would_be_wrong(rng):
    sites = [power_law(rng, 80, 20, mean_size=3.0) for _ in range(6)]
    merged = merge([Subspace.from_rows(site) for site in sites], rank=5)
    careless = merge([Subspace.from_rows(site - site.mean(axis=0)) for site in sites], rank=5)
    rows = np.concatenate(sites)
    assert fedpca.metrics.captured_variance(merged, rows) == pytest.approx(1, abs=1e-12)
    assert fedpca.metrics.captured_variance(careless, rows) < 0.9


def test_forgetting_fades_all_but_the_last(rng):
    old, new = (Subspace.from_rows(power_law(rng, 50, 6)) for _ in range(2))
    merged = merge([old, new], forget=0.5)
    assert merged.count == 0.25 * old.count + new.count
    mean = (0.25 * old.count * old.mean + new.count * new.mean) / merged.count
    np.testing.assert_allclose(merged.mean, mean)
    offsets = [
        weight * part.count * np.outer(part.mean - mean, part.mean - mean)
        for part, weight in ((old, 0.25), (new, 1))
    ]
    expected = 0.25 * scatter_of(old) + scatter_of(new) + sum(offsets)
    np.testing.assert_allclose(scatter_of(merged), expected, atol=1e-12)
    assert merged.total == pytest.approx(np.trace(expected))


def test_the_empty_summary_changes_nothing(rng):
    summary = Subspace.from_rows(power_law(rng, 30, 5))
    for empty in (Subspace.empty(5), Subspace.from_rows(np.empty((0, 5)))):
        for merged in (merge([summary, empty]), merge([empty, summary]), merge([empty, summary, empty])):
            np.testing.assert_allclose(scatter_of(merged), scatter_of(summary), atol=1e-14)
            assert (merged.count, merged.rank) == (summary.count, summary.rank)
    assert merge([Subspace.empty(5), Subspace.empty(5)]) == Subspace.empty(5)


def test_huge_counts_neither_overflow_nor_drown(rng):
    small = Subspace.from_rows(power_law(rng, 30, 5))
    huge = Subspace.from_rows(power_law(rng, 30, 5), sample_weight=np.full(30, 1e12))
    merged = merge([huge, small, huge])
    assert merged.count == 6e13 + 30
    assert_valid(merged)
    assert np.isfinite(merged.singular_values).all()


def test_arguments_stay_as_they_were(rng):
    parts = [Subspace.from_rows(power_law(rng, 30, 5)) for _ in range(3)]
    before = [(part.components.copy(), part.singular_values.copy(), part.mean.copy()) for part in parts]
    merge(parts, rank=2, forget=0.9)
    merge_tree(parts, rank=2, fanout=2)
    for part, arrays in zip(parts, before, strict=True):
        for now, then in zip((part.components, part.singular_values, part.mean), arrays, strict=True):
            np.testing.assert_array_equal(now, then)


def test_names_travel_and_different_names_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(3), columns=["height", "weight", "age"])
    named, nameless = Subspace.from_rows(frame), Subspace.from_rows(np.eye(3))
    assert merge([nameless, named]).feature_names == ("height", "weight", "age")
    reordered = Subspace.from_rows(frame[["weight", "height", "age"]])
    with pytest.raises(ValueError, match="one has 'height' where another has 'weight'"):
        merge([named, reordered])


PAPER_MERGES = [merge_r, basic_merge, faster_merge]


def test_merge_r_as_printed_is_the_corrected_one_until_the_second_basis_lies_in_the_first(rng):
    first, second = (Subspace.from_rows(rng.normal(size=(40, 12)), rank=4, center=False) for _ in range(2))
    components, singular_values = merge_r_as_printed(first, second, 4)
    corrected = merge_r(first, second, 4)
    np.testing.assert_allclose(singular_values, corrected.singular_values, rtol=1e-12)
    np.testing.assert_allclose(
        components.T @ components, corrected.components.T @ corrected.components, atol=1e-12
    )
    components, _ = merge_r_as_printed(first, first, 8)
    assert np.abs(components @ components.T - np.eye(8)).max() > 1e-3
    corrected = merge_r(first, first, 8).components
    np.testing.assert_allclose(corrected @ corrected.T, np.eye(len(corrected)), atol=1e-12)


@pytest.mark.parametrize("algorithm", PAPER_MERGES)
def test_the_papers_merges_agree_with_ours_on_full_rank_input(algorithm, rng):
    first, second = (Subspace.from_rows(power_law(rng, 60, 30), 8, center=False) for _ in range(2))
    expected = merge([first, second], 8)
    merged = algorithm(first, second, 8)
    assert fedpca.metrics.principal_angles(merged, expected).max() < 1e-12
    np.testing.assert_allclose(merged.singular_values, expected.singular_values, rtol=1e-12)
    assert np.abs(merged.components @ merged.components.T - np.eye(8)).max() < 1e-12
    assert (merged.count, merged.total) == (expected.count, pytest.approx(expected.total))


@pytest.mark.parametrize("algorithm", PAPER_MERGES)
@given(tables=rows_of_clients(min_clients=2, max_clients=2))
def test_the_papers_merges_survive_awkward_input(algorithm, tables):
    first, second = (Subspace.from_rows(table, center=False) for table in tables)
    merged = algorithm(first, second)
    assert_valid(merged)
    assert_summarizes(merged, tables, center=False, rtol=1e-8)


@pytest.mark.parametrize("algorithm", [basic_merge, faster_merge])
def test_forgetting_and_enhancing_scale_the_two_sides(algorithm, rng):
    first, second = (Subspace.from_rows(power_law(rng, 60, 10), center=False) for _ in range(2))
    merged = algorithm(first, second, forget=0.9, enhance=2.0)
    np.testing.assert_allclose(
        scatter_of(merged), 0.81 * scatter_of(first) + 4 * scatter_of(second), atol=1e-10
    )


def test_the_papers_merges_refuse_means(rng):
    centered = Subspace.from_rows(power_law(rng, 20, 4))
    for algorithm in PAPER_MERGES:
        with pytest.raises(ValueError, match="center=False"):
            algorithm(centered, centered)
    with pytest.raises(ValueError, match="enhance must be"):
        basic_merge(Subspace.empty(3, centered=False), Subspace.empty(3, centered=False), enhance=0.5)
