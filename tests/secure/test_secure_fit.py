"""What secure sums are of, driven without masks: plain sums of owners' integers, and one pool's noise."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedpca import Privacy, PrivatePCA
from fedpca.metrics import affinity
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.privacy.noise import ExactNoise
from fedpca.secure.fit import PrivateFit
from fedpca.secure.plain_fit import PlainFit


@dataclass(frozen=True)
class Total:
    name: str
    values: np.ndarray
    rows: int
    owners: tuple[str, ...]
    noise: float


def drive(make, tables, *, noise=1.0, key=bytes(32), present=None, batch=97):
    """A study of owners with these tables: `present(number of the sum)` says who is in it.

    Owners and coordinator each have a fit of their own, as in a real study.
    """
    fits = [make() for _ in range(len(tables) + 1)]
    n_rows = [len(table) for table in tables]
    for fit in fits:
        fit.begin(sum(n_rows), noise)
    sums, number = [], 0
    while (announced := fits[-1].next) is not None:
        who = range(len(tables)) if present is None else present(number)
        total = np.zeros(announced.length, dtype=np.int64)
        for i in who:
            random = np.random.default_rng([number, i])
            parts = np.array_split(tables[i], max(1, len(tables[i]) // batch))
            vector = fits[i].vector(iter(parts), random)
            assert (np.rint(vector) == vector).all()
            total += vector.astype(np.int64)
        drawn = [
            ExactNoise(key).entries((number, j), length, sd * noise**0.5) if sd else np.zeros(length)
            for j, (length, sd) in enumerate(announced.blocks)
        ]
        values = total.astype(np.float64) + np.concatenate(drawn)
        owners, rows = tuple(f"owner {i}" for i in who), sum(n_rows[i] for i in who)
        for fit in fits:
            assert fit.next == announced
            fit.add(Total(announced.name, values, rows, owners, noise))
        sums.append(announced)
        number += 1
    assert number <= fits[0].most_sums
    assert max(each.length for each in sums) <= fits[0].most_words
    return fits[-1], sums


def shares(rows, n_owners=5, seed=0):
    """Unequal owners' rows."""
    cuts = np.sort(np.random.default_rng(seed).choice(len(rows) - 1, n_owners - 1, replace=False) + 1)
    return np.split(rows, cuts)


def spread_rows(n_rows=3000, n_features=12, seed=1):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) * np.linspace(5, 0.5, n_features)
    return rows @ np.linalg.qr(rng.normal(size=(n_features, n_features)))[0] + rng.normal(size=n_features) * 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mechanism": "sketch"},
        {"scale": "std"},
        {"center": None},
        {"center": None, "scale": "std"},
        {"bound": 9.0, "center": None},
    ],
    ids=["gram", "sketch", "scale", "length", "scale and length", "public"],
)
@pytest.mark.parametrize("n_features", [2, 40])
def test_the_longest_sum_is_known_before_the_first(settings, n_features):
    settings = {**settings}
    scale = settings.pop("scale", None)
    privacy = Privacy(epsilon=8.0, delta=1e-5, **settings)
    tables = shares(spread_rows(n_features=n_features))
    fit, sums = drive(lambda: PrivateFit(privacy, n_features, 1, scale=scale), tables)
    longest = max(each.length for each in sums)
    # Without a sum of rows in the release, it may be a little shorter.
    assert longest <= fit.most_words <= longest + n_features


def test_private_sums_give_what_one_pool_gives():
    rows = spread_rows()
    privacy = Privacy(epsilon=8.0, delta=1e-5)
    fit, sums = drive(lambda: PrivateFit(privacy, 12, 3), shares(rows))
    assert [part.name for part in sums][-2:] == ["gram", "evaluation"]
    assert np.hypot.reduce([part.mu for part in sums]) == pytest.approx(privacy.mu, rel=1e-9)
    pool = PrivatePCA(3, **privacy.settings).fit(rows)
    assert affinity(fit.model.components, pool.components_) > 0.99
    certificate, other = fit.model.certificate, pool.subspace_.certificate
    assert certificate.noise_edge == pytest.approx(other.noise_edge, rel=0.3)
    assert [step.step for step in certificate.steps] == [step.step for step in other.steps]
    assert certificate.epsilon == 8.0
    assert certificate.records == 3000
    assert certificate.evaluation.explained()[0] == pytest.approx(other.evaluation.explained()[0], abs=0.05)


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("center", [True, False])
def test_plain_sums_give_numpys_components(center, scale):
    rows = spread_rows() * np.logspace(-3, 3, 12)
    largest = float(np.abs(rows).max()) * 3
    fit, sums = drive(lambda: PlainFit(largest, 12, 4, center=center, scale=scale), shares(rows))
    assert [part.name for part in sums] == ["sums", "products"]
    expected = rows - rows.mean(axis=0) if center else rows
    expected = expected / rows.std(axis=0) if scale else expected
    singular, directions = np.linalg.svd(expected, full_matrices=False)[1:]
    model = fit.model
    assert affinity(model.components, directions[:4]) > 1 - 1e-10
    np.testing.assert_allclose(model.singular_values, singular[:4], rtol=1e-6)
    mean = rows.mean(axis=0) / (rows.std(axis=0) if scale else 1.0) if center else np.zeros(12)
    np.testing.assert_allclose(model.mean, mean, rtol=1e-7 if scale else 1e-12, atol=1e-12)
    assert model.certificate is None


PUBLIC = {"center": (0.0,) * 12, "bound": 12.0}


@pytest.mark.parametrize(
    ("settings", "scale", "names"),
    [
        (PUBLIC, None, ["gram"]),
        ({"center": None}, None, ["radius", "gram"]),
        ({"center": "pairs", "bound": "sphere"}, None, ["gram"]),
        ({"center": "pairs", "bound": 12.0}, None, ["gram"]),
        ({"mechanism": "sketch"}, None, ["lengths and spread", "mean", "sketch"]),
        ({"adjacency": "zero-out"}, None, ["lengths and spread", "mean", "gram"]),
        ({}, "std", ["scales", "lengths and spread", "mean", "gram"]),
        ({}, np.full(12, 2.0), ["lengths and spread", "mean", "gram"]),
    ],
    ids=str,
)
def test_every_kind_of_private_model_is_a_list_of_sums(settings, scale, names):
    rows = spread_rows()
    privacy = Privacy(epsilon=20.0, delta=1e-5, **settings)
    fit, sums = drive(lambda: PrivateFit(privacy, 12, 3, scale=scale), shares(rows))
    taken = [part.name for part in sums]
    assert sorted(set(taken) - {"evaluation"}, key=taken.index) == names
    assert np.hypot.reduce([part.mu for part in sums]) == pytest.approx(privacy.mu, rel=1e-9)
    pool = PrivatePCA(3, scale=scale, **privacy.settings).fit(rows)
    assert affinity(fit.model.components, pool.components_) > 0.95
    other = pool.subspace_.certificate
    assert [part.step for part in fit.model.certificate.steps] == [part.step for part in other.steps]
    assert [part.sum for part in fit.taken] == taken
    assert fit.model.count == 3000


def test_the_sum_over_owners_is_that_of_one_pool_exactly():
    rows = spread_rows()
    fits = [PrivateFit(Privacy(epsilon=1.0, delta=1e-5, **PUBLIC), 12, 3) for _ in range(6)]
    vectors = []
    for fit, table in zip(fits, [*shares(rows), rows], strict=True):
        fit.begin(3000, 1.2)
        vectors.append(fit.vector([table], np.random.default_rng(0)))
    points = clipped(rows, 12.0)
    products = points.T @ points
    np.testing.assert_array_equal(sum(vectors[:5]), vectors[5])
    np.testing.assert_array_equal(vectors[5][:12], np.diag(products))
    np.testing.assert_array_equal(vectors[5][12:], products[np.triu_indices(12, 1)])
    (diagonal, above), announced = fits[0].next.blocks, fits[0].next
    assert diagonal[1] == pytest.approx(np.sqrt(2) / announced.mu * RADIUS**2)
    assert above[1] == pytest.approx(1 / announced.mu * RADIUS**2)


def test_a_certificate_states_the_noise_that_is_in_the_total():
    rows = spread_rows()
    privacy = Privacy(epsilon=4.0, delta=1e-5, **PUBLIC)
    edges, deviations = [], []
    for noise in (1.0, 2.25):
        fit, _ = drive(lambda: PrivateFit(privacy, 12, 3), shares(rows), noise=noise)
        edges.append(fit.model.certificate.noise_edge)
        deviations.append(fit.model.certificate.evaluation.sd)
        assert fit.model.certificate.sigma == pytest.approx(np.sqrt(2 / 0.95) / privacy.mu)
    assert edges[1] / edges[0] == pytest.approx(1.5)
    assert deviations[1] / deviations[0] == pytest.approx(1.5)


def test_more_noise_means_other_steps():
    privacy = Privacy(epsilon=1.0, delta=1e-5)
    names = []
    for noise in (1.0, 400.0):
        fit = PrivateFit(privacy, 12, 3)
        fit.begin(3000, noise)
        names.append(fit.next.name)
    assert names == ["lengths and spread", "gram"]  # of so noisy sums, only pairs are of use


def test_where_nothing_rises_above_the_noise_there_is_no_evaluation():
    rows = np.random.default_rng(0).normal(size=(40, 12))
    fit, sums = drive(lambda: PrivateFit(Privacy(epsilon=0.1, delta=1e-5, **PUBLIC), 12, 3), shares(rows))
    assert [part.name for part in sums] == ["gram"]
    assert fit.model.rank == 0
    assert "none rises" in fit.view.shortfall()
    assert "far too large" in fit.bound_warning() or not fit.bound_warning()


def test_a_public_bound_that_is_too_large_is_named():
    privacy = Privacy(epsilon=20.0, delta=1e-5, center=(0.0,) * 12, bound=500.0)
    fit, _ = drive(lambda: PrivateFit(privacy, 12, 3), shares(spread_rows()))
    assert "far too large" in fit.bound_warning()


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"releases": 2}, "one release"),
            ({"insecure_seed_for_tests": 1}, "random keys"),
            ({"center": (0.0,) * 11}, "12 features"),
        ],
        ids=str,
    )
    def test_settings_that_are_no_list_of_sums(self, settings, message):
        with pytest.raises(ValueError, match=message):
            PrivateFit(Privacy(epsilon=1.0, delta=1e-5, **settings), 12, 3)

    def test_what_is_no_privacy(self):
        with pytest.raises(TypeError, match=r"fedpca\.Privacy"):
            PrivateFit(None, 12, 3)

    def test_too_many_features(self):
        with pytest.raises(ValueError, match="at most 4096"):
            PrivateFit(Privacy(epsilon=1.0, delta=1e-5), 5000, 3)

    @pytest.mark.parametrize("rows", [0, 1, 2**28 + 1])
    def test_numbers_of_rows(self, rows):
        with pytest.raises(ValueError, match="rows of all owners"):
            PrivateFit(Privacy(epsilon=1.0, delta=1e-10), 12, 3).begin(rows, 1.2)

    def test_a_delta_of_one_over_the_number_of_rows(self):
        with pytest.raises(ValueError, match="one over the number of rows"):
            PrivateFit(Privacy(epsilon=1.0, delta=1e-3), 12, 3).begin(1000, 1.2)

    def test_too_few_rows_for_a_scale(self):
        with pytest.raises(ValueError, match="nothing was spent"):
            PrivateFit(Privacy(epsilon=1.0, delta=1e-5), 12, 3, scale="std").begin(100, 1.2)

    def test_sums_before_they_begin(self):
        for fit in (PrivateFit(Privacy(epsilon=1.0, delta=1e-5), 12, 3), PlainFit(1.0, 12, 3)):
            with pytest.raises(ValueError, match="call begin"):
                _ = fit.next
            with pytest.raises(ValueError, match="no model yet"):
                _ = fit.model

    def test_totals_after_the_last_sum(self):
        fit, _ = drive(lambda: PlainFit(1.0, 2, 1), shares(np.full((9, 2), 0.5), 3))
        with pytest.raises(ValueError, match="all sums were taken"):
            fit.add(Total("products", np.zeros(5), 9, ("a",), 0.0))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "mean"}, "must be that of"),
            ({"values": np.zeros(5)}, "with shape"),
            ({"values": np.full(78, np.nan)}, "other numbers"),
            ({"values": np.full(78, 1e15)}, "other numbers"),
            ({"rows": 0}, "1 to 3000 rows"),
            ({"rows": 3001}, "1 to 3000 rows"),
            ({"noise": 0.5}, "noise of a total"),
            ({"noise": np.inf}, "noise of a total"),
        ],
        ids=str,
    )
    def test_totals_that_honest_owners_do_not_have(self, changes, message):
        fit = PrivateFit(Privacy(epsilon=1.0, delta=1e-5, **PUBLIC), 12, 3)
        fit.begin(3000, 1.2)
        total = Total("gram", np.zeros(78), 3000, ("a", "b"), 1.2)
        with pytest.raises(ValueError, match=message):
            fit.add(replace(total, **changes))

    @pytest.mark.parametrize("largest", [0.0, -1.0, np.inf, np.nan, "1", None, True])
    def test_bounds_that_are_none(self, largest):
        with pytest.raises(ValueError, match="largest must be a positive number"):
            PlainFit(largest, 12, 3)

    def test_entries_beyond_the_bound(self):
        fit = PlainFit(10.0, 2, 1)
        fit.begin(9, 0.0)
        for rows in ([[1.0, -10.5]], [[np.inf, 0.0]]):
            with pytest.raises(ValueError, match=r"largest=10.* nothing was sent"):
                fit.vector([np.array(rows)], None)

    @pytest.mark.parametrize("number", [0, 1])
    def test_plain_totals_of_no_rows(self, number):
        rows = np.random.default_rng(0).normal(size=(30, 3))
        fit = PlainFit(10.0, 3, 1)
        fit.begin(30, 0.0)
        if number:
            fit.add(Total("sums", fit.vector([rows], None).astype(float), 30, ("a",), 0.0))
        values = fit.vector([rows], None).astype(float)
        values[0] = -1.0 if number else 31.0
        with pytest.raises(ValueError, match=r"not one of rows|other numbers"):
            fit.add(Total(fit.next.name, values, 30, ("a",), 0.0))


class TestPlainSums:
    def check(self, fit, rows, *, rtol=1e-7):
        """Equal to numpy's moments of these rows, up to quantization."""
        scatter = (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0))
        moments = fit.view.whole
        deviation = np.sqrt(np.diag(scatter))
        np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-9 * deviation.max())
        np.testing.assert_allclose(
            moments.scatter, scatter, rtol=0, atol=rtol * np.outer(deviation, deviation).max()
        )
        assert moments.count == len(rows)

    def test_drop_outs_leave_the_moments_of_the_others(self):
        tables = shares(spread_rows())
        fit, _ = drive(
            lambda: PlainFit(100.0, 12, 4),
            tables,
            present=lambda number: range(5) if not number else (0, 2, 3),
        )
        self.check(fit, np.concatenate([tables[i] for i in (0, 2, 3)]))
        assert [part.owners for part in fit.taken][1] == ("owner 0", "owner 2", "owner 3")

    def test_owners_of_the_second_sum_alone_count_as_well(self):
        tables = shares(spread_rows())
        tables[4] = tables[4] + 3.0  # unlike the others
        fit, _ = drive(
            lambda: PlainFit(100.0, 12, 4),
            tables,
            present=lambda number: range(4) if not number else range(5),
        )
        self.check(fit, np.concatenate(tables))

    def test_owners_of_the_second_sum_alone_that_are_too_far_off(self):
        tables = [np.random.default_rng(i).normal(size=(10, 2)) * 1e-6 for i in range(3)]
        tables[2] += 5.0
        with pytest.raises(ValueError, match="not one of rows"):
            drive(
                lambda: PlainFit(10.0, 2, 1), tables, present=lambda number: range(3) if number else range(2)
            )

    @pytest.mark.parametrize("n_rows", [3, 64, 5000])
    def test_large_means_constants_and_repeated_rows(self, n_rows):
        rng = np.random.default_rng(2)
        rows = np.stack(
            [
                1e4 + rng.normal(size=n_rows),
                np.full(n_rows, 7.0),
                np.zeros(n_rows),
                1e-3 * rng.normal(size=n_rows),
            ],
            axis=1,
        )
        rows[n_rows // 2 :] = rows[-1]
        fit, _ = drive(lambda: PlainFit(2e4, 4, 2), shares(rows, 3), batch=10)
        self.check(fit, rows, rtol=1e-5)
        assert fit.view.whole.scatter[1, 1] == pytest.approx(0.0, abs=1e-6)

    def test_missing_entries_are_at_the_mean(self):
        rows = spread_rows(500)
        gaps = np.random.default_rng(3).random(rows.shape) < 0.2
        holes = np.where(gaps, np.nan, rows)
        holes[:, 5] = np.nan
        fit, _ = drive(lambda: PlainFit(100.0, 12, 3), shares(holes))
        holes[:, 5] = 0.0
        filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
        self.check(fit, filled)
        assert fit.view.whole.observed[5] == 0

    def test_a_scale_of_missing_entries_is_that_of_the_others(self):
        rows = spread_rows(500)
        holes = np.where(np.random.default_rng(3).random(rows.shape) < 0.2, np.nan, rows)
        fit, _ = drive(lambda: PlainFit(100.0, 12, 3, scale="std"), shares(holes))
        np.testing.assert_allclose(fit.model.scale, np.nanstd(holes, axis=0), rtol=1e-6)
        fit, _ = drive(lambda: PlainFit(100.0, 12, 3, center=False, scale="std"), shares(holes))
        np.testing.assert_allclose(fit.model.scale, np.nanstd(holes, axis=0), rtol=1e-6)

    def test_public_scales(self):
        rows, scale = spread_rows(), np.linspace(1, 5, 12)
        fit, _ = drive(lambda: PlainFit(100.0, 12, 3, scale=scale), shares(rows))
        deviations = (rows - rows.mean(axis=0)) / scale
        assert affinity(fit.model.components, np.linalg.svd(deviations)[2][:3]) > 1 - 1e-9

    def test_products_of_an_owner_are_exact(self):
        rows = spread_rows(700)
        fit = PlainFit(100.0, 12, 3)
        fit.begin(700, 0.0)
        fit.add(Total("sums", fit.vector([rows], None).astype(float), 700, ("a",), 0.0))
        products = fit.vector(np.array_split(rows, 7), None)
        unit = 2 ** ((56 - 10) // 2)
        mean, spread = fit._mean, fit._spread
        points = (
            np.rint((rows / 100.0 - mean) / spread * unit).astype(np.int64).astype(object)
        )  # Python's integers
        expected = points.T @ points
        assert products[:-12].tolist() == expected[np.triu_indices(12)].tolist()
