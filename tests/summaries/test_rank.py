"""Rank rules: fixed, the paper's band, a share of the variance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import StreamingPCA
from fedpca.summaries.rank import EnergyBand, FixedRank, VarianceShare

spectra = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30).map(lambda s: np.sort(s)[::-1])


@given(spectrum=spectra, rank=st.integers(1, 40))
def test_the_band_moves_by_at_most_one_and_comes_to_rest_inside_or_at_an_end(spectrum, rank):
    band, total = EnergyBand(0.01, 0.10), float(spectrum @ spectrum)
    rank = min(rank, len(spectrum))
    for _ in range(len(spectrum) + 2):
        following = band.next_rank(rank, spectrum, total)
        assert abs(following - rank) <= 1
        if following in (rank, len(spectrum) + 1):
            break
        rank = following
    else:
        pytest.fail("the rank never came to rest")
    share = spectrum[rank - 1] / spectrum[:rank].sum()
    next_share = spectrum[rank] / spectrum[: rank + 1].sum() if rank < len(spectrum) else None
    assert share >= 0.01 or rank == 1
    assert share <= 0.10 or next_share is None or next_share < 0.01


def test_the_band_cannot_grow_past_one_over_high():
    flat = np.ones(30)
    rank, band = 1, EnergyBand(0.01, 0.10)
    for _ in range(50):
        rank = band.next_rank(rank, flat, 30.0)
    assert rank == 10


@given(spectrum=spectra, share=st.floats(0.01, 0.999))
def test_a_share_is_reached_with_as_few_directions_as_can(spectrum, share):
    total = float(spectrum @ spectrum)
    shown = VarianceShare(share).n_components(1, spectrum, total)
    explained = np.cumsum(spectrum**2) / total
    assert explained[shown - 1] >= share * (1 - 1e-9)
    assert shown == 1 or explained[shown - 2] < share


def test_a_share_out_of_reach_asks_for_more_directions():
    assert VarianceShare(0.9).next_rank(4, np.ones(4), total=100.0) == 8
    assert VarianceShare(0.9).n_components(4, np.ones(4), total=100.0) == 4


def test_rules_start_within_the_features():
    assert FixedRank(10).start(3) == EnergyBand(first=10).start(3) == VarianceShare(0.5).start(3) == 3


@pytest.mark.parametrize("bounds", [(0.1, 0.01), (-0.1, 0.5), (0.1, 0.1), (1, 10), (float("nan"), 0.1)])
def test_a_band_out_of_order_is_refused(bounds):
    with pytest.raises(ValueError, match="low < high"):
        EnergyBand(*bounds)


@pytest.mark.parametrize("tracker", ["nystrom", "exact"])
def test_the_band_is_reached_soon_in_a_long_stream(tracker, rng):
    """Periods of the fast kernel grow: one step for each would take a long stream for a few steps."""
    rows = rng.normal(size=(4000, 300)) / np.sqrt(np.arange(1, 301))
    pca = StreamingPCA(3, energy=EnergyBand(0.02, 0.03), tracker=tracker)
    for batch in np.array_split(rows, 8):
        pca.partial_fit(batch)
    values = pca.singular_values_
    assert 0.02 <= values[-1] / values.sum() <= 0.03
