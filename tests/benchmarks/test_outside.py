"""The tests that others defined run, in small, and find what they say."""

import numpy as np
import pytest

from benchmarks import outside


@pytest.mark.slow
def test_private_components_of_a_rotated_map_are_compared_with_the_exact_ones(rng):
    rows = rng.normal(size=(4000, 20)) * np.array([8.0, 4.0] + [1.0] * 18)
    scores = outside.map_of_europe(2, rows)
    assert [each.shape for each in scores.values()] == [(2, 2)] * 2
    assert min(each.min() for each in scores.values()) > 0.98
    # Noise is there: an exact method would have 1.
    assert max(each.max() for each in scores.values()) < 1 - 1e-9


def test_a_component_that_is_not_found_scores_zero():
    assert outside.cosines(np.array([[0.6, 0.8]]), np.eye(2)).tolist() == [0.6, 0.0]


def test_coinpress_rows_are_about_their_mean(capsys):
    people = outside.europe()
    if people is None:
        assert "europe_pcs.npz" in capsys.readouterr().out
        pytest.skip("europe_pcs.npz is not in FEDPCA_DATA")
    assert people.rows.shape == (1387, 20)
    assert abs(people.rows.mean(axis=0)).max() < 1e-3  # CoinPress takes the mean to be 0


@pytest.mark.slow
@pytest.mark.parametrize(("rows_of", "m"), [(outside.brownian, 1), (outside.weak_spikes, 5)])
def test_every_method_reads_a_stream_of_single_rows(rows_of, m):
    rows, found = rows_of(3000, 12, np.random.default_rng(0))
    assert found == m
    assert abs(rows.mean(axis=0)).max() < 1e-12
    errors = outside.stream_errors(rows_of, 1, 150, first=50, d=12)
    assert set(errors) == set(outside.STREAMS)
    assert errors["fedpca, learn_one"][0] < 1e-9 < errors["no update"][0]


def test_streams_have_the_covariance_of_their_source():
    rng = np.random.default_rng(0)
    rows, _ = outside.brownian(40_000, 10, rng)
    expected = np.minimum(*np.indices((10, 10)) + 1) / 10
    np.testing.assert_allclose(rows.T @ rows / len(rows), expected, atol=0.03)
    rows, _ = outside.weak_spikes(40_000, 10, rng)
    values = np.linalg.eigvalsh(rows.T @ rows / len(rows))[::-1]
    np.testing.assert_allclose(values, [*np.linspace(1.6, 1.5, 5), *[1.0] * 5], atol=0.05)


def test_the_error_of_a_subspace_is_that_of_its_projection(rng):
    a, b = (np.linalg.qr(rng.normal(size=(9, 3)))[0].T for _ in range(2))
    expected = np.square(a.T @ a - b.T @ b).sum() / np.square(a.T @ a).sum()
    assert outside.subspace_error(b, a) == pytest.approx(expected)


@pytest.mark.slow
def test_noise_of_privacy_remains_where_rows_have_none():
    losses = outside.spiked_losses(3000, 20, 0.001, 1)
    assert losses["not private"] < 1e-6
    assert 1e-6 < losses["length and mean known"] < 0.01
    assert losses["nothing known"] < 0.05
