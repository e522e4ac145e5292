"""The algebra of the fast kernel, function by function, against scipy.linalg and explicit scatters."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from helpers import power_law, shortfall, sparse_rows, track
from scipy import sparse

from fedpca import Subspace
from fedpca.errors import NonFiniteError
from fedpca.trackers import Nystrom
from fedpca.trackers.nystrom import first_rows, solve, tuning
from fedpca.trackers.nystrom.coverage import Coverage
from fedpca.trackers.nystrom.drift import ANY_ROWS, Residuals, Thresholds
from fedpca.trackers.nystrom.few_rows import exact_pairs
from fedpca.trackers.nystrom.first_rows import FirstRows
from fedpca.trackers.nystrom.period import SketchPeriod
from fedpca.trackers.nystrom.probes import Probes
from fedpca.trackers.nystrom.products import project, score_products
from fedpca.trackers.nystrom.start import mixed

EPS = np.finfo(np.float64).eps
D = 40

CENTERED = pytest.mark.parametrize("centered", [True, False])
WEIGHTED = pytest.mark.parametrize("weighted", [True, False])
NO_HISTORY = Subspace.empty(D)


def history_of(rng, centered=True, rank=6, dtype=np.float64):
    rows = power_law(rng, 200, D, mean_size=1.0).astype(dtype)
    return Subspace.from_rows(rows, rank, center=centered)


def orthonormal_rows(rng, n, known=None):
    rows = rng.normal(size=(n, D))
    if known is not None:
        rows -= rows @ known.T @ known
    return np.ascontiguousarray(scipy.linalg.orth(rows.T).T)


def period_rows(rng, n=300, dtype=np.float64):
    return power_law(rng, n, D, mean_size=2.0).astype(dtype)


def explicit_scatter(history, rows, weights):
    """C of the derivation, term by term, from the rows themselves."""
    V, S, mu0, n0 = history.components, history.singular_values, history.mean, history.count
    V = V.astype(np.float64)
    w = weights.sum()
    kept = (V.T * S**2) @ V
    if not history.centered:
        return kept + (rows.T * weights) @ rows
    mean = weights @ rows / w
    deviations, step = rows - mean, mean - mu0
    return kept + (deviations.T * weights) @ deviations + n0 * w / (n0 + w) * np.outer(step, step)


def filled_period(history, extra, rows, weights, n_panels=3):
    period = SketchPeriod(history, extra, ANY_ROWS)
    for part in np.array_split(np.arange(len(rows)), n_panels):
        roots = None if weights is None else np.sqrt(weights[part]).astype(rows.dtype)
        panel = rows[part] if roots is None else rows[part] * roots[:, None]
        assert not len(period.add(panel, roots).left)
    return period


def assert_close(actual, expected, rtol=1e-11):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max(initial=1e-300))


# --- T and Y ---


@CENTERED
@WEIGHTED
@pytest.mark.parametrize("sigma", [0.0, 0.37])
@pytest.mark.parametrize("rank", [0, 6])
def test_sums_of_a_period_give_t_and_y_of_the_explicit_scatter(centered, weighted, sigma, rank, rng):
    history = history_of(rng, centered, rank) if rank else Subspace.empty(D, centered=centered)
    extra, rows = orthonormal_rows(rng, 5, history.components), period_rows(rng)
    weights = rng.uniform(0, 3, len(rows)) if weighted else None
    period = filled_period(history, extra, rows, weights)
    W = np.vstack([history.components, extra])
    C = explicit_scatter(history, rows, np.ones(len(rows)) if weights is None else weights)
    C += sigma * np.eye(D)
    T, B = solve.probe_scatter(period.M, history, sigma)
    assert_close(T, W @ C @ W.T)
    assert_close(B @ np.vstack([period.Q, W, history.mean]), W @ C)


@WEIGHTED
def test_sums_of_sparse_rows_are_those_of_dense_rows(weighted, rng):
    history, rows = history_of(rng), sparse_rows(rng, 200, D)
    extra = orthonormal_rows(rng, 3, history.components)
    roots = np.sqrt(rng.uniform(0, 3, 200)) if weighted else None
    panel = rows.toarray() if roots is None else rows.toarray() * roots[:, None]
    periods = [SketchPeriod(history, extra, ANY_ROWS) for _ in range(2)]
    periods[0].add(panel, roots)
    periods[1].add(sparse.csr_array(panel), roots)
    assert_close(periods[1].M, periods[0].M)
    assert_close(periods[1].Q, periods[0].Q)


@CENTERED
def test_mean_and_total_are_those_of_all_rows(centered, rng):
    history, rows, weights = history_of(rng, centered), period_rows(rng), rng.uniform(0, 3, 300)
    w, p = weights.sum(), weights @ rows
    mean, total = solve.common_mean(history, p, w, float(weights @ (rows**2).sum(axis=1)))
    expected = (history.count * history.mean + p) / (history.count + w) if centered else np.zeros(D)
    assert_close(mean, expected)
    discarded = history.discarded  # what the history has lost counts in the total
    assert total == pytest.approx(np.trace(explicit_scatter(history, rows, weights)) + discarded, rel=1e-12)


def test_the_weight_between_groups():
    assert solve.between_weight(0.0, 5.0) == 0.0
    assert solve.between_weight(30.0, 10.0) == 7.5


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("n_rows", [200, 20_000])
def test_the_shift_exceeds_the_rounding_of_t(scale, n_rows, rng):
    history = history_of(rng, dtype=np.float32)
    history = history.scaled(scale).translated((scale - 1) * history.mean)
    rows = (scale * (power_law(rng, n_rows, D, alpha=2.0) + 1)).astype(np.float32)
    extra = orthonormal_rows(rng, 5, history.components).astype(np.float32)
    period = filled_period(history, extra, rows, None, n_panels=-(-n_rows // 1000))
    sigma = solve.shift(period.energy, history.singular_values, period.eps)
    T, _ = solve.probe_scatter(period.M, history, 0.0)
    W = period.directions[:-1].astype(np.float64)
    exact = W @ explicit_scatter(history, rows.astype(np.float64), np.ones(n_rows)) @ W.T
    assert np.linalg.norm(T - exact, 2) < sigma / 4


# --- Y^T T^+ Y ---


def positive_semidefinite(rng, spectrum):
    basis = np.linalg.qr(rng.normal(size=(D, len(spectrum))))[0]
    return (basis * spectrum) @ basis.T


def explicit_nystrom(C, W, n_max):
    """The leading part of Y^T T^+ Y, by scipy alone."""
    Y = W @ C
    approximation = Y.T @ scipy.linalg.pinvh(W @ C @ W.T, rtol=1e-13) @ Y
    squares, vectors = scipy.linalg.eigh(approximation)
    return (vectors[:, -n_max:] * squares[-n_max:]) @ vectors[:, -n_max:].T


SPECTRA = {
    "flat": np.linspace(2.0, 1.0, D),
    "steep": np.arange(1.0, D + 1) ** -2.0,
    "low rank": np.array([5.0, 3.0, 1.0]),
    "graded": 10.0 ** -np.linspace(0, 12, D),
}


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("n_probes", [1, 8, 20])
def test_eigenpairs_are_those_of_scipys_pseudoinverse(spectrum, n_probes, rng):
    C, W = positive_semidefinite(rng, spectrum), orthonormal_rows(rng, n_probes)
    Y, T = W @ C, W @ C @ W.T
    n_max = max(1, n_probes // 2)
    components, squares = solve.nystrom_eigenpairs(Y, T, n_max, EPS)
    assert len(squares) == len(components) <= n_max
    assert (np.diff(squares) <= 0).all()
    assert_close(components @ components.T, np.eye(len(components)), 1e-8)
    assert_close((components.T * squares) @ components, explicit_nystrom(C, W, n_max), 1e-8)


def test_probes_that_span_the_rows_give_them_exactly(rng):
    C = positive_semidefinite(rng, SPECTRA["low rank"])
    W = orthonormal_rows(rng, 10)
    Y = W @ C
    components, squares = solve.nystrom_eigenpairs(Y, W @ C @ W.T, 10, EPS)
    assert len(squares) == 3
    assert_close((components.T * squares) @ components, C, 1e-10)


@pytest.mark.parametrize("name", SPECTRA)
def test_the_approximation_never_exceeds_the_scatter(name, rng):
    C, W = positive_semidefinite(rng, SPECTRA[name]), orthonormal_rows(rng, 12)
    Y = W @ C
    components, squares = solve.nystrom_eigenpairs(Y, W @ C @ W.T, 12, EPS)
    assert np.linalg.eigvalsh(C - (components.T * squares) @ components).min() > -1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponents", [(0, 3, 6, 9, 12), (0, 5, 10, 15, 20), (0, 17, 18, 19, 20)])
def test_eigenpairs_of_a_graded_scatter_are_positive_and_orthonormal(dtype, exponents, rng):
    basis = np.linalg.qr(rng.normal(size=(D, 5)))[0]
    C = (basis * 10.0 ** -np.array(exponents)) @ basis.T
    W = np.linalg.qr(basis + 1e-7 * rng.normal(size=basis.shape))[0].T
    Y, eps = (W @ C).astype(dtype), float(np.finfo(dtype).eps)
    components, squares = solve.nystrom_eigenpairs(Y, W @ C @ W.T, 5, eps)
    assert len(squares)
    assert (squares > 0).all()
    expected = 10.0 ** -np.array(exponents)[: len(squares)]
    np.testing.assert_allclose(squares, expected, rtol=1e-2, atol=1e-13)
    assert_close(components @ components.T, np.eye(len(squares)), 1e-6)


def test_no_probes_give_no_directions():
    components, squares = solve.nystrom_eigenpairs(np.zeros((0, D)), np.eye(0), 5, EPS)
    assert components.shape == (0, D)
    assert len(squares) == 0


@CENTERED
@WEIGHTED
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_period_closes_with_the_nystrom_approximation_of_everything(centered, weighted, dtype, rng):
    history, rows = history_of(rng, centered, dtype=dtype), period_rows(rng, dtype=dtype)
    extra = orthonormal_rows(rng, 5, history.components).astype(dtype)
    weights = rng.uniform(0, 3, len(rows)) if weighted else None
    period = filled_period(history, extra, rows, weights)
    before = period.M.copy(), period.Q.copy()
    found = period.close(history, 8)
    np.testing.assert_array_equal(period.M, before[0])
    np.testing.assert_array_equal(period.Q, before[1])
    weights = np.ones(len(rows)) if weights is None else weights
    C = explicit_scatter(history, rows.astype(np.float64), weights)
    W = period.directions[:-1].astype(np.float64)
    sigma = solve.shift(period.energy, history.singular_values, period.eps)
    expected = explicit_nystrom(C + sigma * np.eye(D), W, 8)
    squares = np.linalg.eigvalsh(expected)[: -found.rank - 1 : -1] - sigma
    assert_close(found.singular_values**2, squares, 1000 * np.finfo(dtype).eps)
    assert found.count == pytest.approx(history.count + weights.sum(), rel=1e-6)
    assert found.total == pytest.approx(np.trace(C) + history.discarded, rel=1e-5)
    projection = found.components.T @ found.components
    leading = scipy.linalg.eigh(expected)[1][:, -found.rank :]
    assert_close(projection, leading @ leading.T, 1e-2 if dtype == np.float32 else 1e-9)


def test_a_period_without_weight_leaves_the_history_as_it_is(rng):
    history = history_of(rng)
    period = filled_period(history, history.components[:0], period_rows(rng), np.zeros(300))
    assert period.close(history, 6) is history


def test_scaling_a_period_scales_its_weights(rng):
    history, rows, weights = history_of(rng), period_rows(rng), rng.uniform(0.5, 2, 300)
    extra = orthonormal_rows(rng, 5, history.components)
    scaled, lighter = (filled_period(history, extra, rows, given) for given in (weights, 0.09 * weights))
    scaled.scale(0.3)
    assert_close(scaled.M, lighter.M)
    assert_close(scaled.Q, lighter.Q)
    assert scaled.energy == pytest.approx(lighter.energy)


# --- what goes through the exact update ---


def thresholds(history, **changes):
    expected = 1.5 * history.discarded / history.count
    weakest = float(history.singular_values[-1]) ** 2
    return Thresholds(Residuals(expected), 1e-3 * weakest, 0.5 * weakest)._replace(**changes)


def test_rows_like_those_before_are_accumulated(rng):
    rows = power_law(rng, 4000, D)
    history = Subspace.from_rows(rows[:2000], 6)
    period = SketchPeriod(history, history.components[:0], thresholds(history))
    added = period.add(rows[2000:], None)
    assert (added.n_tested, added.n_news, len(added.left)) == (2000, 0, 0)
    assert period.n_rows == 2000


def test_single_outliers_are_returned_and_nothing_of_them_is_kept(rng):
    rows = power_law(rng, 3000, D)
    history = Subspace.from_rows(rows[:2000], 6)
    panel = rows[2000:].copy()
    panel[[3, 700]] = 1e3 * rng.normal(size=(2, D))
    period = SketchPeriod(history, history.components[:0], thresholds(history))
    np.testing.assert_array_equal(period.add(panel, None).left, [3, 700])
    without = SketchPeriod(history, history.components[:0], thresholds(history))
    without.add(np.delete(panel, [3, 700], axis=0), None)
    assert_close(period.M, without.M)
    assert_close(period.Q, without.Q)
    assert period.energy == pytest.approx(without.energy)
    assert period.n_rows == without.n_rows == 998


def test_many_outliers_make_a_panel_of_new_directions(rng):
    history = history_of(rng)
    panel = history.mean + 1e3 * rng.normal(size=(40, D)) * (np.arange(40) < 10)[:, None]
    period = SketchPeriod(history, history.components[:0], thresholds(history))
    assert len(period.add(panel, None).left) == 40
    assert period.n_rows == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_rows_that_cannot_be_squared_are_refused(bad, rng):
    history, rows = history_of(rng), period_rows(rng)
    rows[7, 3] = bad
    with pytest.raises(NonFiniteError), np.errstate(all="ignore"):
        SketchPeriod(history, history.components[:0], ANY_ROWS).add(rows, None)


def cusum(residual, weights, energy, mean, variance, drift):
    """Where news start and end, row by row of the derivation."""
    surplus, first = 0.0, 0
    for start in range(0, len(residual), 32):
        part = slice(start, start + 32)
        w = weights[part].sum()
        surplus += residual[part].sum() - mean * w - np.sqrt(variance * w) - 1e-6 * energy[part].sum()
        if surplus <= 0:
            surplus, first = 0.0, start + 32
        elif surplus > drift + 6 * np.sqrt(32 * variance):
            return first, min(start + 32, len(residual))
    return len(residual), len(residual)


@WEIGHTED
@pytest.mark.parametrize("change", [0, 40, 64, 250, 299, 1000])
def test_news_are_where_the_cusum_test_says(weighted, change, rng):
    residual, energy = rng.chisquare(30, 300), rng.chisquare(50, 300)
    residual[change:] *= 1.7
    weights = rng.uniform(0.5, 2, 300) if weighted else np.ones(300)
    limits = Thresholds(Residuals(30.0, 60.0), 5.0, np.inf)
    found = limits.news(energy, residual * weights, np.sqrt(weights) if weighted else None, 0.0)
    assert found[:2] == cusum(residual * weights, weights, energy, 30.0, 60.0, 5.0)
    if change == 64 and not weighted:
        assert found[0] == 64


def test_excess_is_carried_from_panel_to_panel(rng):
    residual, energy = rng.chisquare(30, 320) * 1.25, np.ones(320)
    limits = Thresholds(Residuals(30.0, 60.0), 5.0, np.inf)
    whole, surplus, at = limits.news(energy, residual, None, 0.0)[1], 0.0, 0
    assert whole < 320
    while at < 320:
        start, stop, surplus = limits.news(energy[:32], residual[at : at + 32], None, surplus)
        if start < 32:
            break
        at += 32
    assert at + stop == whole  # in panels of 32 rows it is found at the same row


# --- rows that are few ---


@pytest.mark.parametrize("shape", [(30, 50), (900, 60), (60, 900), (1000, 900)])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_pairs_of_few_rows_are_exact(shape, alpha, rng):
    rows = rng.normal(size=shape) * np.arange(1, shape[1] + 1) ** -alpha
    components, values = exact_pairs(rows, 5, 12, 0.0)
    exact = np.linalg.svd(rows, compute_uv=False)[:12]
    np.testing.assert_allclose(values[:5], exact[:5], rtol=1e-10)
    np.testing.assert_allclose(values, exact, rtol=1e-5)
    assert_close(components @ components.T, np.eye(12), 1e-11)
    assert np.sum((rows @ components[:5].T) ** 2) > (1 - 1e-10) * np.sum(exact[:5] ** 2)


@WEIGHTED
def test_first_rows_are_kept_as_they_came(weighted, rng):
    rows, weights = rng.normal(size=(700, D)), rng.uniform(0.5, 2, 700)
    kept = FirstRows(D, np.dtype(float), 700 * D * 8, center=True)
    for part in np.split(np.arange(700), [1, 2, 30, 31, 200, 640]):
        kept = kept.with_rows(sparse.csr_array(rows[part]), np.sqrt(weights[part]) if weighted else None)
    assert kept.room == 0
    for start in (0, 1, 250, 699):
        np.testing.assert_array_equal(np.concatenate([part for part, _ in kept.parts(start)]), rows[start:])
    found = kept.subspace(4, 9)
    expected = Subspace.from_rows(rows, 9, sample_weight=weights if weighted else None)
    assert_close(found.singular_values, expected.singular_values, 1e-10)
    assert_close(found.mean, expected.mean)
    assert found.total == pytest.approx(expected.total)


def test_more_first_rows_leave_the_earlier_ones_as_they_are(rng):
    rows, few = rng.normal(size=(500, D)), FirstRows(D, np.dtype(float), 600 * D * 8, center=True)
    few = few.with_rows(rows[:100], None)
    before = few.subspace(4, 9)
    many = few.with_rows(rows[100:], np.full(400, 2.0)).scaled(0.5)
    assert (few.n_rows, many.n_rows) == (100, 500)
    np.testing.assert_array_equal(np.concatenate([part for part, _ in many.parts()]), rows)
    assert few.subspace(4, 9) == before
    assert many.subspace(4, 9).count == pytest.approx(100 / 4 + 400)


def test_first_rows_that_are_orthogonal_are_all_seen(monkeypatch):
    monkeypatch.setattr("fedpca.trackers.nystrom.tracker.TUNING", replace(tuning.TUNING, kept_bytes=2**21))
    frequency = 1 / np.arange(1, 301)
    lost = []
    for seed in range(3):
        drawn = np.random.default_rng(seed).choice(300, 900, p=frequency / frequency.sum())
        rows = np.eye(300)[drawn]
        lost.append(shortfall(track(Nystrom, rows, 20).summary().components[:20], rows))
    assert np.mean(lost) < 1e-4


def test_sums_of_rows_with_random_signs_have_their_scatter(rng):
    rows, roots = rng.normal(size=(512, 3)) * [3, 2, 1] + 5, rng.uniform(0.5, 1.5, 512)
    mean = roots**2 @ rows / np.sum(roots**2)
    panel = rows * roots[:, None]
    scatters = []
    for seed in range(200):
        sums = mixed(panel, roots, mean, 4, np.random.default_rng(seed))
        assert sums.shape == (128, 3)
        scatters.append(sums.T @ sums)
    deviations = panel - roots[:, None] * mean
    assert_close(np.mean(scatters, axis=0), deviations.T @ deviations, 0.03)


def test_a_summary_after_every_row_takes_few_exact_solutions(rng, monkeypatch):
    sizes = []

    def counted(rows, *settings):
        sizes.append(len(rows))
        return exact_pairs(rows, *settings)

    monkeypatch.setattr(first_rows, "exact_pairs", counted)
    monkeypatch.setattr(first_rows, "_FREE_ENTRIES", 100 * D)
    rows = power_law(rng, 500, D)
    kept = FirstRows(D, np.dtype(float), 500 * D * 8, center=True)
    for i in range(500):
        kept = kept.with_rows(rows[i : i + 1], None)
        found = kept.subspace(4, 20)
    sizes = [size for size in sizes if size > 100]
    assert sum(sizes) <= 9 * 500
    best = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:4]
    np.testing.assert_allclose(found.singular_values[:4], best, rtol=1e-4)


# --- directions that are fair to late ones ---


@pytest.mark.parametrize("n_wanted", [1, 3, 9])
def test_what_is_kept_along_fair_directions_never_exceeds_what_was_kept(n_wanted, rng):
    for _ in range(20):
        basis = Subspace(
            orthonormal_rows(rng, 10), np.sort(rng.uniform(1, 3, 10))[::-1], np.zeros(D), 1000, 400.0
        )
        rotation = scipy.linalg.qr(rng.normal(size=(10, 10)))[0]
        coverage = Coverage((rotation * rng.uniform(0, 1000, 10)) @ rotation.T, 1000.0)
        fair, _ = coverage.fair(basis, n_wanted)
        before, after = ((s.components.T * s.singular_values**2) @ s.components for s in (basis, fair))
        assert np.linalg.eigvalsh(before - after).min() > -1e-12
        assert_close(fair.components @ fair.components.T, np.eye(10), 1e-12)
        assert (np.diff(fair.singular_values) <= 1e-12).all()
        kept = fair.singular_values[:n_wanted] ** 2
        energy = np.sum(
            (basis.singular_values[:, None] * basis.components @ fair.components[:n_wanted].T) ** 2
        )
        assert kept.sum() >= (1 - 5.1e-3) * energy
        wanted = fair.components[:n_wanted] @ basis.components.T
        assert (kept >= (1 - 0.051) * np.vecdot(wanted, wanted * basis.singular_values**2)).all()


def test_a_late_direction_is_not_tilted_towards_old_noise(rng):
    """Noise of size 1 in all directions, half of them carried all the time; then one more, of size 10."""
    n, late = 5000, np.eye(D)[-1] * 0.8 + np.eye(D)[0] * 0.6
    squares = np.r_[
        np.full(D // 2, float(n)), 36 * n * 0.64
    ]  # what was kept; the late one for 36 n / 100 rows
    carried = np.vstack([np.eye(D)[: D // 2], np.eye(D)[-1:]])
    scatter = np.diag(squares)
    scatter[0, -1] = scatter[-1, 0] = 36 * n * 0.48
    scatter[0, 0] += 36 * n * 0.36
    values, vectors = np.linalg.eigh(scatter / 30)
    basis = Subspace(
        vectors.T[::-1] @ carried, np.sqrt(values[::-1]), np.zeros(D), n, D * n / 30 + 36 * n / 30
    )
    rows = np.diag(np.r_[np.full(D // 2, float(n)), 0.0])
    coverage = Coverage(vectors.T[::-1] @ rows @ vectors.T[::-1].T, float(n))
    tilted, fair = basis.components[0], coverage.fair(basis, 1)[0].components[0]
    assert (fair @ late) ** 2 > (tilted @ late) ** 2
    assert coverage.of_all(basis).fair(basis, 1)[0] is basis


# --- products of a panel ---


def probes_of(history, extra, outlier_energy=np.inf, dtype=np.float64):
    directions = np.vstack([history.components, extra, history.mean]).astype(dtype, order="C")
    offsets = directions[:-1] @ directions[-1]
    mean_square = float(history.mean @ history.mean)
    return Probes(directions, offsets, mean_square, outlier_energy)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@WEIGHTED
def test_a_panel_is_projected_and_its_outliers_zeroed(dtype, weighted, rng):
    history, rows = history_of(rng), period_rows(rng, 100)
    rows[[2, 50]] += 100 * rng.normal(size=(2, D))
    roots = np.sqrt(rng.uniform(0.5, 3, 100)) if weighted else np.ones(100)
    probes = probes_of(history, orthonormal_rows(rng, 4, history.components), 1e3, dtype)
    panel = (rows * roots[:, None]).astype(dtype)
    scores, stats = project(panel, roots.astype(dtype) if weighted else None, probes)
    deviations, W = rows - history.mean, probes.directions[:-1].astype(np.float64)
    residual = roots**2 * ((deviations - deviations @ W.T @ W) ** 2).sum(axis=1)
    is_outlier = residual > 1e3 + 1e-4 * roots**2 * (rows**2).sum(axis=1)
    assert set(np.flatnonzero(is_outlier)) == {2, 50}
    kept = roots * ~is_outlier
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    assert_close(scores, np.vstack([(deviations @ W.T).T, np.ones(100)]) * kept, rtol)
    assert_close(stats.energy, kept**2 * (rows**2).sum(axis=1), rtol)
    assert_close(stats.residual, residual * ~is_outlier, 100 * rtol)
    np.testing.assert_array_equal(stats.is_outlier, is_outlier)
    assert_close(stats.sums, [np.sum(values, dtype=np.float64) for values in stats], 1e-12)


def test_products_of_scores_and_rows(rng):
    scores, panel = rng.normal(size=(5, 100)), rng.normal(size=(100, D))
    assert_close(score_products(scores, panel), scores @ panel, 1e-13)
    assert_close(score_products(scores, sparse.csr_array(panel)), scores @ panel, 1e-13)


# --- small parts ---


def test_directions_of_rows_outside_a_subspace(rng):
    V, sample = orthonormal_rows(rng, 6), rng.normal(size=(4, D))
    found = solve.residual_directions(sample, V)
    assert_close(found @ found.T, np.eye(4), 1e-13)
    assert_close(found @ V.T + 1, np.ones((4, 6)), 1e-13)
    expected = scipy.linalg.orth((sample - sample @ V.T @ V).T)
    assert_close(found.T @ found, expected @ expected.T, 1e-12)


def test_no_known_directions(rng):
    sample = rng.normal(size=(4, D))
    found = solve.residual_directions(sample, np.zeros((0, D)))
    expected = scipy.linalg.orth(sample.T)
    assert_close(found.T @ found, expected @ expected.T, 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_add_no_direction_are_left_out(dtype, rng):
    V, fresh = orthonormal_rows(rng, 6), rng.normal(size=(2, D))
    within = rng.normal(size=(3, 6)) @ V
    sample = np.vstack([within, fresh, fresh[:1], np.zeros((1, D))]).astype(dtype)
    found = solve.residual_directions(sample, V.astype(dtype))
    expected = scipy.linalg.orth((fresh - fresh @ V.T @ V).T)
    assert found.shape == (2, D)
    assert_close(found.T @ found, expected @ expected.T, 1e-5 if dtype == np.float32 else 1e-11)
    assert solve.residual_directions(within.astype(dtype), V.astype(dtype)).shape == (0, D)


def test_small_residuals_are_orthogonal_too(rng):
    V = orthonormal_rows(rng, 6)
    sample = rng.normal(size=(3, 6)) @ V + 1e-9 * rng.normal(size=(3, D))
    found = solve.residual_directions(sample, V)
    assert found.shape == (3, D)
    assert np.abs(found @ V.T).max() < 1e-12


def test_inverse_roots_and_roots(rng):
    factor = rng.normal(size=(7, 9))
    matrix = factor @ factor.T * np.outer(10.0 ** np.arange(7), 10.0 ** np.arange(7))
    R = solve.inverse_root(matrix, 1e-6)
    scale = np.sqrt(np.diag(matrix))
    assert_close(R.T @ R * np.outer(scale, scale), scipy.linalg.inv(matrix / np.outer(scale, scale)), 1e-10)
    assert_close(solve.root(matrix) @ solve.root(matrix).T, matrix, 1e-12)
    singular = factor[:, :3] @ factor[:, :3].T
    assert solve.inverse_root(singular, 1e-6) is None
    assert_close(solve.root(singular) @ solve.root(singular).T, singular, 1e-12)
    assert solve.inverse_root(matrix, 2.0) is None
