"""A minority of owners who lie cannot take the model; each lie takes a plain merge."""

import random
from dataclasses import replace
from math import hypot, sqrt

import numpy as np
import pytest
from command_line import invoke
from helpers import KINDS, awkward, bits
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.datasets import load_digits

import fedpca
from fedpca import Aggregator, FederatedPCA, Moments, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator.robust import Robust, _capped_counts, merge_robust, what_counts
from fedpca.federation.one_process.simulate import Faults, simulate
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.merging import merge_distinct

pytestmark = pytest.mark.slow  # all of it together

RULES = ("cap", "median", "trim")
RANK = 5


@pytest.fixture(scope="module")
def digits():
    """Images of digits in random order."""
    rows = load_digits().data / 16
    return rows[np.random.default_rng(0).permutation(len(rows))]


def owners_of(rows, make=Moments.from_rows, n_owners=10):
    return {f"owner {i}": make(part) for i, part in enumerate(np.array_split(rows, n_owners))}


def truncated(rows):
    return Subspace.from_rows(rows, rank=20)


def captured(model, rows, rank=RANK):
    """The variance along the first components, as a share of the best possible."""
    covariance = np.cov(rows.T)
    components = np.linalg.qr(model.subspace(rank).components.T)[0].T
    return np.trace(components @ covariance @ components.T) / np.linalg.eigvalsh(covariance)[-rank:].sum()


def direction(own):
    return np.linalg.qr(np.random.default_rng(1).normal(size=(own.n_features, 1)))[0][:, 0]


def with_rows(own, rows):
    """The summary of an owner who has these rows, too."""
    return merge_distinct([own, type(own).from_rows(rows)])


def spike(own, size=1e4):
    return with_rows(own, np.outer([1.0, -1.0], direction(own) * sqrt(size * own.count / 2)) + own.mean)


def subtle_spike(own):
    return spike(own, 8.0)


def rotated(own):
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(own.n_features, own.n_features)))[0]
    if isinstance(own, Moments):
        return replace(own, scatter=turn @ own.scatter @ turn.T)
    return replace(own, components=own.components @ turn)


def inflated(own):
    return rotated(own).scaled(sqrt(1e12 / own.count))


def far_mean(own):
    return replace(own, mean=own.mean + 1e3 * direction(own))


def huge(own):
    return type(own).from_rows(1e100 * np.outer([1.0, 1.5], direction(own)))


def exchanged(own):
    """The lie of who knows the model: directions 6 to 10 have the energy of the first five."""
    components = StreamingPCA(2 * RANK).fit(load_digits().data / 16).components_
    exchange = np.eye(own.n_features) - components.T @ components
    exchange += components[RANK:].T @ components[:RANK]
    return replace(own, scatter=exchange @ own.scatter @ exchange.T)


LIES = [spike, subtle_spike, rotated, inflated, far_mean, huge]


def with_liars(owners, lie, number=3):
    return {name: lie(own) if i < number else own for i, (name, own) in enumerate(owners.items())}


@pytest.mark.parametrize("robust", ["median", "trim"])
@pytest.mark.parametrize("make", [Moments.from_rows, truncated], ids=["moments", "subspaces"])
@pytest.mark.parametrize("lie", LIES)
def test_three_liars_of_ten_take_a_plain_merge_and_no_robust_one(digits, lie, make, robust):
    told = with_liars(owners_of(digits, make), lie)
    assert captured(merge_distinct(list(told.values())), digits) < 0.97
    assert captured(merge_robust(told, robust), digits) > 0.99


def test_liars_who_know_the_model_are_trimmed(digits):
    told = with_liars(owners_of(digits), exchanged)
    assert captured(merge_distinct(list(told.values())), digits) < 0.97
    assert captured(merge_robust(told, "cap"), digits) < 0.97
    assert captured(merge_robust(told, "trim"), digits) > 0.99


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("lie", [huge, far_mean])
def test_caps_hold_for_counts_and_lengths(digits, lie, robust):
    told = with_liars(owners_of(digits), lie)
    assert captured(merge_distinct(list(told.values())), digits) < 0.97
    assert captured(merge_robust(told, robust), digits) > 0.98


def test_four_liars_of_nine_are_a_minority(digits):
    told = with_liars(owners_of(digits, n_owners=9), spike, 4)
    assert captured(merge_robust(told, "trim"), digits) > 0.98


@pytest.mark.parametrize("make", [Moments.from_rows, truncated], ids=["moments", "subspaces"])
@pytest.mark.parametrize("robust", RULES)
def test_without_a_lie_alike_owners_have_about_the_model_of_a_plain_merge(digits, robust, make):
    owners = owners_of(digits, make)
    plain, robust_one = merge_distinct(list(owners.values())), merge_robust(owners, robust)
    assert captured(robust_one, digits) > captured(plain, digits) - 1e-3
    assert robust_one.total == pytest.approx(plain.total, rel=0.05)
    assert np.abs(robust_one.mean - plain.mean).max() < 0.05


@pytest.mark.parametrize("make", [Moments.from_rows, Subspace.from_rows])
@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_owners_have_the_model_of_a_plain_merge(kind, robust, make):
    own = make(awkward(kind, 40, 6, seed=1))
    owners = dict.fromkeys("abcd", own)
    plain, found = merge_distinct(list(owners.values())), merge_robust(owners, robust)
    assert found.count == plain.count == 160
    np.testing.assert_allclose(found.mean, plain.mean, rtol=1e-12, atol=0)
    np.testing.assert_allclose(found.scatter, plain.scatter, atol=1e-10 * plain.total, rtol=1e-7)
    assert found.total == pytest.approx(plain.total)


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("make", [Moments.from_rows, Subspace.from_rows])
@pytest.mark.parametrize("unit", [1e-140, 1e-30, 1e100, 1e140])
def test_any_unit_has_the_same_model(digits, robust, make, unit):
    powered = 2.0 ** round(np.log2(unit))  # rows are multiplied without rounding
    rows = digits[:, 20:28] + 0.1 * digits[:, 36:44]
    owners = owners_of(rows, make)
    owners["liar"] = make(np.tile(np.eye(8)[0] * 3, (100, 1)) * np.array([1, -1] * 50)[:, None])
    of_unit = owners_of(rows * powered, make)
    of_unit["liar"] = make(np.tile(np.eye(8)[0] * 3, (100, 1)) * np.array([1, -1] * 50)[:, None] * powered)
    expected = merge_robust(owners, robust, rank=3)
    found = merge_robust(of_unit, robust, rank=3)
    np.testing.assert_allclose(found.singular_values / powered, expected.singular_values, rtol=1e-8)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-8)


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("make", [Moments.from_rows, Subspace.from_rows])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1e8])
def test_rows_that_do_not_vary_are_an_owner_like_any_other(digits, robust, make, shift):
    rows = digits[:, 20:28] + shift
    single = merge_robust({f"{i}": make(row[None]) for i, row in enumerate(rows[:7])}, robust)
    assert single.count == 7
    owners = owners_of(rows, make) | {"constant": make(np.tile(rows[3] / 3, (150, 1)))}
    assert captured(merge_robust(owners, robust), rows, 3) > 0.95


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("lie", [None, spike, far_mean])
def test_counts_add_up_without_rounding(digits, robust, lie):
    owners = owners_of(digits[: 10 * 31 + 7, :20], n_owners=7)
    if lie is not None:
        owners["owner 3"] = lie(owners["owner 3"])
    counts = _capped_counts(np.array([own.count for own in owners.values()]), None)
    assert merge_robust(owners, robust).count == counts.sum()


def test_the_median_minimizes_the_sum_of_distances():
    rng = np.random.default_rng(3)
    scatters = []
    for _ in range(6):
        basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        scatters.append((basis * [*rng.uniform(size=2), 2.0]) @ basis.T)  # no eigenvalue above the cap
    count = 1e6  # so many rows have next to no sampling noise
    owners = {f"{i}": Moments(count, np.zeros(3), count * own) for i, own in enumerate(scatters)}
    found = minimize(
        lambda flat: sum(np.linalg.norm(scatter - flat.reshape(3, 3)) for scatter in scatters),
        np.mean(scatters, axis=0).ravel(),
        options={"gtol": 1e-10},
    )
    median = merge_robust(owners, "median")
    np.testing.assert_allclose(median.scatter / median.count, found.x.reshape(3, 3), atol=1e-5)


def test_a_direction_of_one_owner_is_cut_back_to_what_all_have():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(7, 300, 6)) * [4, 3, 2, 1, 1, 0]
    owners = {f"{i}": Moments.from_rows(part) for i, part in enumerate(rows)}
    rows[0, :, 5] = 3.9 * rng.normal(size=300)  # below the cap of lengths
    told = owners | {"0": Moments.from_rows(rows[0])}
    plain, found = merge_distinct(list(told.values())), merge_robust(told, "trim")
    reference = 0.5 * plain.total / plain.count / 6
    assert plain.scatter[5, 5] / plain.count > 2
    assert found.scatter[5, 5] / found.count < 2 * reference / 7


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("make", [Moments.from_rows, truncated], ids=["moments", "subspaces"])
def test_the_order_of_children_changes_no_bit(digits, robust, make):
    children = list(with_liars(owners_of(digits, make), spike).items())
    found = set()
    for seed in range(5):
        random.Random(seed).shuffle(children)
        found.add(bits(merge_robust(dict(children), robust)))
    assert len(found) == 1


@given(
    st.lists(st.floats(1, 1e12), min_size=2, max_size=12),
    st.one_of(st.none(), st.floats(0.01, 1)),
)
def test_no_child_has_more_than_its_share_or_than_the_median_child(counts, max_share):
    counts = np.array(counts)
    capped = _capped_counts(counts, max_share)
    assert (capped <= counts).all()
    assert (capped > 0).all()
    if max_share is None:
        assert capped.max() == np.sort(counts)[(len(counts) - 1) // 2]
        return
    share = capped.max() / capped.sum()
    assert share <= max(max_share, 1 / len(counts)) * (1 + 1e-9)
    if counts.max() <= max_share * counts.sum():
        np.testing.assert_array_equal(capped, counts)
    elif max_share * len(counts) > 1:
        assert share == pytest.approx(max_share)


def test_max_share_limits_the_weight_of_an_owner():
    rows = np.random.default_rng(5).normal(size=(4, 100, 2))
    owners = {f"{i}": Moments.from_rows(part) for i, part in enumerate(rows)}
    owners["0"] = owners["0"].scaled(10)
    assert merge_robust(owners, Robust("cap", max_share=0.5)).count == pytest.approx(600)
    assert merge_robust(owners, "cap").count == pytest.approx(400)


@pytest.mark.parametrize("robust", RULES)
def test_uncentered_owners_have_no_mean(robust):
    rows = np.random.default_rng(6).normal(size=(5, 100, 4)) * [3, 2, 1, 1] + 1
    owners = {f"{i}": Moments.from_rows(part, center=False) for i, part in enumerate(rows)}
    found = merge_robust(owners, robust)
    assert not found.centered
    assert not found.mean.any()
    np.testing.assert_allclose(
        found.scatter / 500, rows.reshape(-1, 4).T @ rows.reshape(-1, 4) / 500, atol=0.8
    )


def scaled(rows):
    return Moments.from_rows(rows, scale="std")


@pytest.mark.parametrize("robust", RULES)
def test_units_do_not_matter_where_rows_are_scaled(digits, robust):
    rows = digits[:, 18:26]
    units = 2.0 ** np.arange(-12, 4, 2)
    lie = with_liars(owners_of(rows, scaled), spike_of_last)
    there = with_liars(owners_of(rows * units, scaled), lambda own: spike_of_last(own, units[-1]))
    here, there = (merge_robust(owners, robust).standardized() for owners in (lie, there))
    np.testing.assert_allclose(here.scatter, there.scatter, rtol=1e-9, atol=1e-9 * here.total)


def spike_of_last(own, unit=1.0):
    own = own.with_about(scale=None)
    scatter = own.scatter + np.diag([*np.zeros(own.n_features - 1), own.count * 100 * unit**2])
    return replace(own, scatter=scatter).with_about(scale="std")


def test_moments_with_missing_entries_keep_a_scaling():
    rng = np.random.default_rng(7)
    owners = {}
    for i in range(5):
        rows = rng.normal(size=(80, 4)) * [5, 2, 1, 1]
        rows[rng.uniform(size=rows.shape) < 0.1] = np.nan
        owners[f"{i}"] = StreamingPCA(2, scale="std", tracker="exact").fit(rows).summary_
    assert owners["0"].scaling is not None
    for robust in RULES:
        found = merge_robust(owners, robust).subspace()
        np.testing.assert_allclose(found.scale, [5, 2, 1, 1], rtol=0.2)


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_a_parent_accepts_scaled_regions(robust, missing):
    rows = np.random.default_rng(1).normal(size=(900, 8)) * np.logspace(-3, 3, 8) + 5.0
    rows[np.random.default_rng(0).random(rows.shape) < missing] = np.nan
    region, root = Aggregator(rank=3, robust=robust), Aggregator(rank=3)
    for i, part in enumerate(np.array_split(rows, 9)):
        part = part * np.where(np.arange(8) == 7, 1e6, 1.0) if i == 0 else part
        own = StreamingPCA(3, scale="std").fit(part).summary_
        region.receive(f"{i}", 1, own if missing else Moments.from_rows(part, scale="std"))
    summary = region.summary()
    assert (summary.scaling is None) == (not missing)
    root.receive("region", 1, summary)
    assert root.model() == region.model()


def test_rows_divided_by_numbers_keep_these():
    rows = np.random.default_rng(8).normal(size=(5, 50, 3)) * [1, 10, 100]
    owners = {
        f"{i}": Subspace.from_rows(part, scale=[1.0, 10.0, 100.0]).with_about(names=["a", "b", "c"])
        for i, part in enumerate(rows)
    }
    found = merge_robust(owners, "trim")
    np.testing.assert_array_equal(found.scale, [1, 10, 100])
    assert found.feature_names == ("a", "b", "c")
    assert found.singular_values[0] < 1.5 * found.singular_values[-1]


def test_subspaces_and_moments_together(digits):
    owners = owners_of(digits)
    mixed = {name: own.subspace(25) if i % 2 else own for i, (name, own) in enumerate(owners.items())}
    found = merge_robust(with_liars(mixed, far_mean), "trim")
    assert isinstance(found, Subspace)
    assert captured(found, digits) > 0.99


def test_more_directions_than_are_compared(digits, monkeypatch):
    monkeypatch.setattr("fedpca.federation.aggregator.robust._MAX_BASIS", 12)
    told = with_liars(owners_of(digits, truncated), subtle_spike)
    found = merge_robust(told, "trim")
    assert found.rank <= 12
    assert captured(found, digits) > 0.98


def test_features_that_an_owner_does_not_know_are_refused():
    whole = Moments.from_rows(np.random.default_rng(9).normal(size=(30, 2)))
    narrow = Moments(2, [7.0, 0.0], [[2.0, 0.0], [0.0, 0.0]], observed=[2, 0])
    with pytest.raises(ValueError, match=r"know all features.*leave out"):
        merge_robust({"a": whole, "b": whole, "c": narrow}, "median")
    aggregator = Aggregator(robust="median")
    aggregator.receive("a", 0, whole)
    with pytest.raises(SummaryRejected, match=r"'c'.*know all features"):
        aggregator.receive("c", 0, narrow)
    assert list(aggregator.children) == ["a"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("mean",), "robust must be None or one of 'cap', 'median', 'trim', got 'mean'"),
        ((None, 0.5), "max_share is for robust merging; give robust='cap'"),
        (("cap", 0), "max_share must be a share above 0 and at most 1, got 0"),
        (("cap", 1.5), "at most 1, got 1.5"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Robust.of(*settings)


@pytest.mark.parametrize(
    "use",
    [
        lambda rule: Aggregator(robust=rule),
        lambda rule: FederatedPCA(1, robust=rule).fit(np.eye(3)),
        lambda rule: simulate({"a": [np.eye(3)]}, 1, robust=rule),
        lambda rule: merge_robust({}, rule),
    ],
)
def test_whoever_takes_a_rule_checks_it(use):
    with pytest.raises(ValueError, match="robust must be None or one of"):
        use("mean")


# --- private releases ---


@pytest.fixture(scope="module")
def releases(digits):
    """Private moments of seven owners."""
    privacy = Privacy(20.0, 1e-5, 4.0, center=np.zeros(20), evaluate=False)
    return {
        f"{i}": PrivatePCA(3, **privacy.settings).fit(part).summary_
        for i, part in enumerate(np.array_split(digits[:, 20:40], 7))
    }


@pytest.mark.parametrize("robust", RULES)
def test_the_certificate_of_private_releases_stays_true(releases, robust):
    found = merge_robust(releases, robust)
    plain = merge_distinct(list(releases.values()))
    for name in ("private", "epsilon", "delta", "merged", "mechanism", "bound", "warnings"):
        assert getattr(found.certificate, name) == getattr(plain.certificate, name)
    if robust == "cap":
        assert found.certificate.noise_edge == pytest.approx(plain.certificate.noise_edge, rel=0.01)
    edges = [own.certificate.noise_edge for own in releases.values()]
    assert plain.certificate.noise_edge <= found.certificate.noise_edge * 1.01
    assert found.certificate.noise_edge < 2 * hypot(*edges)
    np.testing.assert_allclose(found.scatter, plain.scatter, atol=0.1 * np.linalg.norm(plain.scatter, 2))


@pytest.mark.parametrize("robust", ["median", "trim"])
def test_negative_energy_of_private_releases_hides_no_direction(digits, robust):
    def release(rows):
        own = Moments.from_rows(rows)
        noise = np.random.default_rng(int(1e6 * rows[0].sum())).normal(size=own.scatter.shape) * 0.1
        certificate = Certificate(private=True, epsilon=1.0, delta=1e-5, mu=0.2, noise_edge=2.0)
        return replace(own, scatter=own.scatter + (noise + noise.T) / 2, about=About(certificate=certificate))

    def lie(own):
        return replace(own, scatter=own.scatter - own.count * 30 * first.T @ first)

    first = StreamingPCA(RANK).fit(digits).components_
    told = with_liars(owners_of(digits, release), lie)
    assert captured(merge_distinct(list(told.values())), digits) < 0.97
    assert captured(merge_robust(told, robust), digits) > 0.99


# --- where it is used ---


@pytest.mark.parametrize("make", [Moments.from_rows, truncated], ids=["moments", "subspaces"])
def test_an_aggregator_merges_robustly_in_any_order_and_after_a_restart(digits, make, tmp_path):
    messages = [(name, 1, own) for name, own in with_liars(owners_of(digits, make), spike).items()]
    models = set()
    for seed in range(3):
        random.Random(seed).shuffle(messages)
        with Aggregator(RANK, robust="trim", store=tmp_path / f"{seed}") as aggregator:
            for message in messages:
                aggregator.receive(*message)
            models.add(bits(aggregator.model()))
        again = Aggregator(RANK, robust="trim", store=tmp_path / f"{seed}")
        models.add(bits(again.model()))
    assert len(models) == 1
    assert captured(again.model(), digits) > 0.99
    assert captured(Aggregator(RANK, store=tmp_path / "0").model(), digits) < 0.97
    assert captured(again.summary(), digits) > 0.99


@pytest.mark.parametrize("robust", RULES)
@pytest.mark.parametrize("first", [True, False])
def test_a_child_whose_rows_do_not_vary_stops_no_other(digits, robust, first):
    honest = owners_of(digits[:, 20:26], n_owners=7)
    constant = {"constant": Moments(250.0, np.arange(1, 7) / 7, np.zeros((6, 6)))}
    aggregator = Aggregator(rank=3, robust=robust)
    for name, own in (constant | honest if first else honest | constant).items():
        aggregator.receive(name, 1, own)
    aggregator.model()
    assert not aggregator.quarantined
    assert len(aggregator.children) == 8


@pytest.mark.parametrize("place", [0, 3, 6])
def test_whoever_stops_the_robust_merge_is_set_aside_and_no_other(digits, place, monkeypatch):
    def what_counts_unless_culprit(children, *settings):
        if "culprit" in children:
            raise ArithmeticError("the culprit does not merge")
        return what_counts(children, *settings)

    monkeypatch.setattr("fedpca.federation.aggregator.children_merge.what_counts", what_counts_unless_culprit)
    owners = list(owners_of(digits[:, 20:26], n_owners=7).items())
    owners[place] = ("culprit", owners[place][1])
    aggregator = Aggregator(rank=3, robust="trim")
    for name, own in owners:
        aggregator.receive(name, 1, own)
    aggregator.model()
    assert list(aggregator.quarantined) == ["culprit"]
    assert len(aggregator.children) == 6


def test_an_aggregator_follows_its_children(digits):
    aggregator = Aggregator(RANK, robust="median")
    owners = owners_of(digits)
    for name, own in owners.items():
        aggregator.receive(name, 1, own)
    before = aggregator.model()
    assert aggregator.record()
    assert aggregator.history[-1].what == "model"
    aggregator.receive("owner 0", 2, spike(owners["owner 0"]))
    assert aggregator.model() != before
    aggregator.receive("owner 0", 3, owners["owner 0"])
    assert aggregator.model() == before
    aggregator.withdraw("owner 0")
    expected = merge_robust({name: owners[name] for name in list(owners)[1:]}, "median")
    np.testing.assert_allclose(aggregator.summary().scatter, expected.scatter, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [Moments.from_rows, truncated], ids=["moments", "subspaces"])
def test_what_counts_merges_into_the_robust_model(digits, make):
    told = with_liars(owners_of(digits, make), rotated)
    counted = what_counts(told, Robust("trim"))
    rows = {name: own.count for name, own in counted.items()}
    assert list(rows) == sorted(told)
    assert (
        max(rows[f"owner {i}"] for i in range(3)) < 1e-6 < 50 < min(rows[f"owner {i}"] for i in range(3, 10))
    )
    assert sum(rows.values()) == pytest.approx(len(digits))
    found, merged = merge_robust(told, "trim"), merge_distinct(list(counted.values()))
    np.testing.assert_allclose(found.scatter, merged.scatter, atol=1e-9 * merged.total)


def test_the_influence_is_that_of_what_counts(digits):
    aggregator, plain = Aggregator(RANK, robust="trim"), Aggregator(RANK)
    for name, own in with_liars(owners_of(digits), spike, 1).items():
        aggregator.receive(name, 1, own)
        plain.receive(name, 1, own)
    assert plain.influence()["owner 0"].suspicious
    found = aggregator.influence()
    assert not any(own.suspicious for own in found.values())
    assert max(own.angle for own in found.values()) < np.radians(20)


def test_of_fewer_than_three_only_caps_apply(digits, caplog):
    two = owners_of(digits, n_owners=2)
    told = with_liars(two, inflated, 1)
    aggregator = Aggregator(RANK, robust="trim")
    for name, own in told.items():
        aggregator.receive(name, 0, own)
    assert aggregator.model() == merge_robust(told, "cap").subspace(RANK)
    assert "robust='trim' needs at least 3 owners, got 2: only the caps apply." in caplog.text
    assert aggregator.model().count == pytest.approx(2 * two["owner 1"].count, rel=1e-3)
    with pytest.warns(UserWarning, match="needs at least 3 owners, got 1"):
        FederatedPCA(2, robust="median").fit(digits)


def test_who_has_no_weight_is_named_in_the_log(digits, caplog):
    merge_robust(with_liars(owners_of(digits), rotated, 1), "trim")
    assert "robust='trim' gives no weight to 'owner 0'" in caplog.text


@pytest.mark.parametrize("tracker", ["exact", "nystrom"])
def test_a_client_with_broken_rows_does_not_take_the_model(digits, tracker):
    groups = np.arange(len(digits)) % 9
    broken = digits.copy()
    broken[groups == 0] *= 300
    plain, robust = (
        FederatedPCA(RANK, tracker=tracker, random_state=0, robust=rule).fit(broken, groups=groups)
        for rule in (None, "trim")
    )
    assert captured(plain.model_, digits) < 0.98 < 0.99 < captured(robust.model_, digits)
    assert robust.get_params()["robust"] == "trim"
    assert robust.transform(digits).shape == (len(digits), RANK)


@pytest.mark.slow
def test_a_simulation_with_faults_has_the_robust_model(digits):
    clients = {f"{i}": np.array_split(part, 3) for i, part in enumerate(np.array_split(digits, 10))}
    clients["0"] = [1e4 * batch for batch in clients["0"]]
    faults = Faults(stragglers=0.3, late=0.2, duplicates=0.5, crashes=0.3, seed=1)
    faulty = simulate(clients, RANK, faults=faults, robust="median")
    assert faulty.crashes
    assert faulty.model == simulate(clients, RANK, robust="median").model
    assert captured(simulate(clients, RANK).model, digits) < 0.97
    assert captured(faulty.model, digits) > 0.99


@pytest.mark.slow
def test_the_command_line_merges_robustly(digits, tmp_path):
    paths = []
    for name, own in with_liars(owners_of(digits), spike).items():
        paths.append(tmp_path / f"{name}.safetensors")
        own.save(paths[-1])

    def merge(*arguments):
        return invoke(["merge", *map(str, [*paths, *arguments])])

    out = tmp_path / "all.safetensors"
    assert merge("-o", out, "--robust", "trim").exit_code == 0
    assert captured(fedpca.load(out), digits) > 0.99
    paths.reverse()
    before = out.read_bytes()
    assert merge("-o", out, "--robust", "trim", "--force").exit_code == 0
    assert out.read_bytes() == before
    refused = merge("-o", tmp_path / "no", "--max-share", "0.5")
    assert refused.exit_code == 1
    assert "max_share is for robust merging" in refused.stderr
    assert not (tmp_path / "no").exists()
    simulated = invoke(["simulate", "--robust", "cap", "--max-share", "0.2", "--crashes", "0.1"])
    assert "the same, bit for bit" in simulated.stdout


def alike(mean, covariance, count, share_of_noise, rng):
    """Moments of rows that differ by a share of what sampling makes of them."""
    drawn = rng.multivariate_normal(np.zeros(len(mean)), covariance, int(count))
    own = (1 - share_of_noise) * covariance + share_of_noise * drawn.T @ drawn / count
    return Moments(count, mean, count * own)


def halves(energies):
    """The first five and the next five variances, averaged."""
    energies[:10] = np.tile((energies[:5] + energies[5:10]) / 2, 2)


def ninth(energies):
    energies[:5], energies[8] = energies[:5] / 1.5, energies[4] * 1.5


@pytest.mark.parametrize("rule", ["median", "trim"])
@pytest.mark.parametrize("share_of_noise", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(
    ("lie", "n_owners", "liars"), [(ninth, 10, 3), (halves, 10, 3), (halves, 9, 4), (ninth, 10, 4)]
)
def test_liars_who_agree_gain_nothing_over_a_plain_merge(rule, lie, n_owners, liars, share_of_noise):
    """One summary of all liars, or almost, within the sampling noise of honest owners."""
    gained = []
    for seed in range(3):
        rng = np.random.default_rng(1000 + seed)
        rows = rng.permutation(load_digits().data)
        parts = np.array_split(rows, n_owners)
        honest = Moments.from_rows(np.vstack(parts[liars:]))
        energies, vectors = np.linalg.eigh(honest.scatter / honest.count)
        energies, vectors = energies[::-1].clip(0), vectors[:, ::-1]
        lie(energies)
        told = {
            f"{i}": alike(honest.mean, (vectors * energies) @ vectors.T, len(part), share_of_noise, rng)
            if i < liars
            else Moments.from_rows(part)
            for i, part in enumerate(parts)
        }
        plain = captured(merge_distinct(list(told.values())), rows)
        gained.append(captured(merge_robust(told, rule), rows) - plain)
        counted = what_counts(told, Robust(rule))
        weight = sum(counted[f"{i}"].count for i in range(liars)) / sum(own.count for own in counted.values())
        assert weight < 1.02 * liars / n_owners
    assert np.mean(gained) > -1e-3  # .08 less without a floor under distances


@pytest.mark.parametrize("rule", ["median", "trim"])
def test_an_owner_in_the_middle_has_no_more_than_its_share(rule):
    """It sends what all others have on average, without sampling noise of its own: the nearest to all."""
    parts = np.array_split(np.random.default_rng(0).permutation(load_digits().data), 10)
    told = {f"{i}": Moments.from_rows(part) for i, part in enumerate(parts)}
    middle = merge_distinct([told[f"{i}"] for i in range(1, 10)])
    told["0"] = Moments(len(parts[0]), middle.mean, middle.scatter * (len(parts[0]) / middle.count))
    counted = what_counts(told, Robust(rule))
    assert counted["0"].count < 1.2 / 10 * sum(own.count for own in counted.values())  # all without a floor


def test_owners_who_agree_are_no_liars_where_they_are_most():
    """Seven of one summary and three who put in a direction: the three have no weight."""
    rows = np.random.default_rng(0).normal(size=(500, 6)) * [4, 3, 2, 1, 1, 1]
    own = Moments.from_rows(rows)
    told = with_liars({f"{i}": own for i in range(10)}, lambda own: spike(own, 50))
    counted = what_counts(told, Robust("trim"))
    assert sum(counted[f"{i}"].count for i in range(3)) < 1e-6 * own.count


def test_groups_of_owners_with_one_strong_direction_let_no_liar_in():
    """Their rows have so few degrees of freedom that some owners agree by chance."""
    for seed in range(5):
        rows = np.random.default_rng(seed).normal(size=(10, 200, 8)) * np.arange(1, 9) ** -2.0
        owners = {f"{i}": Moments.from_rows(part) for i, part in enumerate(rows)}
        told = with_liars(owners, lambda own: spike(own, 3))
        counted = what_counts(told, Robust("trim"))
        liars = sum(counted[f"{i}"].count for i in range(3))
        assert liars < 0.01 * sum(own.count for own in counted.values())
