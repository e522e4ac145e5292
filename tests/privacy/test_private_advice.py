"""What a private model says about itself, and what a private fit warns of: from released numbers only."""

import warnings
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers import rows_of
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

import fedpca
from fedpca import FederatedPCA, Ledger, Moments, Privacy, PrivatePCA, Subspace
from fedpca.privacy import StepSum
from fedpca.privacy.calibration import epsilon_of, mu_of
from fedpca.privacy.clipping import RADIUS, clipped
from fedpca.report.write import write_report

DIGITS = load_digits().data
CENTER = DIGITS.mean(axis=0)


def messages(call):
    """The result of a call, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(warning.message) for warning in caught]


def about_digits(**settings):
    given = {"epsilon": 1.0, "delta": 1e-5, "bound": 35.0, "center": CENTER, "evaluate": False} | settings
    return Privacy(**given)


def true_shares(bound=35.0):
    """Shares of the variance of the clipped rows, by component."""
    points = clipped(DIGITS - CENTER, bound) * (bound / RADIUS)
    values = np.linalg.eigvalsh(points.T @ points)[::-1]
    return values / values.sum()


# --- totals and shares come from the released trace; what is below the edge is not counted ---


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_those_of_the_clipped_rows_and_count_no_noise(seed):
    privacy = about_digits(insecure_seed_for_tests=seed)
    pca, _ = messages(lambda: PrivatePCA(3, **privacy.settings).fit(DIGITS))
    assert pca.n_components_ == 3
    assert pca.explained_variance_ratio_.sum() == pytest.approx(true_shares()[:3].sum(), rel=0.15)
    assert pca.subspace_.total == pytest.approx(pca.release().total)
    trace = pca.release().total / (len(DIGITS) - 1)
    left_out = (trace - pca.explained_variance_.sum()) / (64 - 3)
    assert pca.noise_variance_ == pytest.approx(left_out)
    spe, _ = pca.anomaly_scores(DIGITS)
    assert 0.7 * spe.mean() < 61 * pca.noise_variance_ < 1.4 * spe.mean()
    limit, _ = pca.anomaly_limits(0.99)
    assert np.mean(spe > limit) < 0.2
    assert pca.score(DIGITS) > -220  # it was hundreds lower when noise counted as variance


@pytest.mark.parametrize("seed", range(4))
def test_a_share_of_the_variance_is_not_filled_up_with_noise(seed):
    privacy = about_digits(insecure_seed_for_tests=seed)
    pca, said = messages(lambda: PrivatePCA(0.8, **privacy.settings).fit(DIGITS))
    everything, _ = messages(lambda: PrivatePCA(**privacy.settings).fit(DIGITS))
    assert pca.n_components_ == everything.n_components_ < 13  # 13 are needed
    assert any("less than the 80.0% asked for" in text for text in said)
    modest, said = messages(lambda: PrivatePCA(0.2, **privacy.settings).fit(DIGITS))
    assert modest.n_components_ == 2
    assert not said


def test_no_direction_below_the_edge_is_given_by_any_summary():
    release, _ = messages(lambda: PrivatePCA(5, **about_digits().settings).fit(DIGITS).release())
    edge = release.certificate.noise_edge
    risen = np.count_nonzero(np.linalg.eigvalsh(release.scatter) > edge)
    for rank in (None, 3, 64):
        subspace = release.subspace(rank)
        assert subspace.rank == min(risen, rank or risen)
        assert (subspace.singular_values**2 > edge / 2).all()
        assert subspace.total == pytest.approx(release.total)
    assert fedpca.merge([release], 64).rank == risen


def test_of_noise_alone_nothing_is_shown_and_that_is_said(tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 40)) * 1e-3
    for n_components, mechanism in product((None, 2, 0.5), ("gram", "sketch")):
        privacy = Privacy(
            1.0, 1e-5, 10.0, mechanism=mechanism, insecure_seed_for_tests=2, center=None, evaluate=False
        )
        pca, said = messages(lambda n=n_components, p=privacy: PrivatePCA(n, **p.settings).fit(rows))
        assert pca.n_components_ == 0, (n_components, mechanism)
        assert any("above the noise" in text for text in said)
        assert pca.components_.shape == (0, 40)
        assert pca.transform(rows).shape == (500, 0)
        assert np.isfinite(pca.score(rows))
        assert pca.explained_variance_ratio_.sum() == 0
        page = write_report(tmp_path / "report.html", pca).read_text()
        assert "Nothing rises above the noise" in page


def leading(model):
    return model.components if isinstance(model, Subspace) else model.components_


def released_together(parts, privacy):
    """Releases of owners who take the private steps together."""
    owners = [PrivatePCA(1, **privacy.settings) for _ in parts]
    while not all(owner.is_prepared for owner in owners):
        sums = [owner.step_sum(part) for owner, part in zip(owners, parts, strict=True)]
        for owner in owners:
            owner.advance(StepSum.pooled(sums))
    return [owner.partial_fit(part).release() for owner, part in zip(owners, parts, strict=True)]


@pytest.mark.parametrize("path", ["fit", "federated", "merged"])
def test_the_noise_of_a_private_center_is_not_shown_as_a_component(path):
    """Rows vary along the first two features only; the center's noise is along all of them."""
    shown = []
    for seed in range(6):
        rows = np.random.default_rng(seed).normal(size=(300, 40)) * np.sqrt([0.7, 0.1, *[0.005] * 38])
        privacy = Privacy(2.0, 1e-5, 1.3, center="private", evaluate=False)
        if path == "fit":
            model, _ = messages(lambda r=rows, p=privacy: PrivatePCA(1, **p.settings).fit(r))
        elif path == "federated":
            model, _ = messages(
                lambda r=rows, p=privacy: FederatedPCA(1, privacy=p).fit(r, groups=np.arange(300) % 3)
            )
        else:
            releases, _ = messages(lambda r=rows, p=privacy: released_together([r[:151], r[151:]], p))
            model = fedpca.merge(releases, 1)
        shown += [(component[:2] ** 2).sum() for component in leading(model)]
    assert len(shown) > 3
    assert np.median(shown) > 0.5  # 0.1 to 0.4 while the noise of the center was in the scatter


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_score_without_noise_variance_overflows_in_silence(scale):
    """A released trace below what the components explain leaves no noise variance."""
    rows = np.random.default_rng(0).normal(size=(500, 40))
    for seed in range(10):
        privacy = Privacy(1.0, 1e-5, 10.0, insecure_seed_for_tests=seed, center=None, evaluate=False)
        pca, _ = messages(lambda p=privacy: PrivatePCA(2, **p.settings).fit(1e-3 * rows))
        score, said = messages(lambda p=pca: p.score(scale * rows))
        assert not said
        assert pca.noise_variance_ > 0 or score < -1e200
    assert not np.isnan(score)


@pytest.mark.parametrize("mechanism", ["gram", "sketch"])
def test_the_noise_of_the_center_of_a_stream_is_not_shown(mechanism):
    rows = np.random.default_rng(0).normal(size=(4000, 60)) * np.sqrt([0.15, *[0.001] * 59])
    privacy = Privacy(
        4.0, 1e-6, 1.0, mechanism=mechanism, center="private", insecure_seed_for_tests=0, evaluate=False
    )
    pca = PrivatePCA(3, **privacy.settings).partial_fit(rows)
    messages(pca.release)
    assert abs(pca.components_[0, 0]) > 0.95
    assert (pca.explained_variance_[1:] < 0.02).all()  # 0.08 if rows are about a center a quarter bound off
    assert np.linalg.norm(pca.mean_) < 0.1


def test_fewer_components_than_asked_for_warn_in_every_path():
    def stream():
        pca = PrivatePCA(20, **about_digits().settings)
        for part in np.array_split(DIGITS, 5):
            pca.partial_fit(part)
        pca.release()
        return pca

    clients = dict(zip("ab", np.array_split(DIGITS, 2), strict=True))
    for call in (
        lambda: PrivatePCA(20, **about_digits().settings).fit(DIGITS),
        stream,
        lambda: FederatedPCA(20, privacy=about_digits()).fit_clients(clients),
    ):
        pca, said = messages(call)
        assert 0 < pca.n_components_ < 20
        assert said == [text for text in said if "n_components=20 was asked for, and only" in text]
        assert len(said) == 1


def test_a_second_look_at_the_same_release_says_nothing_again():
    pca, said = messages(lambda: PrivatePCA(20, **about_digits().settings).fit(DIGITS))
    assert len(said) == 1
    assert messages(pca.release)[1] == []


# --- a bound that does not fit ---


@pytest.mark.parametrize("mechanism", ["gram", "sketch"])
@pytest.mark.parametrize("path", ["fit", "stream"])
def test_a_bound_far_too_large_warns_with_the_remedy(mechanism, path):
    rows = np.random.default_rng(0).normal(size=(8000, 6)) * [3, 2, 1, 1, 1, 1]  # typically 4.1 long

    def learn(bound):
        privacy = Privacy(4.0, 1e-6, bound, mechanism=mechanism, center=None, evaluate=False)
        pca = PrivatePCA(1, **privacy.settings)
        return pca.fit(rows) if path == "fit" else (pca.partial_fit(rows).release(), pca)[1]

    pca, said = messages(lambda: learn(40.0))
    (text,) = [text for text in said if text.startswith("bound=40 is far too large")]
    release = pca.release()
    typical = np.sqrt(release.total / release.count)
    assert typical == pytest.approx(4.1, rel=0.35)
    assert f"{typical:.2g} long" in text
    assert not [text for text in messages(lambda: learn(4.0))[1] if text.startswith("bound=")]


def test_noise_alone_is_no_reason_to_call_a_bound_too_large():
    """With few rows the released trace says nothing about their lengths."""
    said = []
    for seed in range(40):
        privacy = Privacy(0.5, 1e-5, 5.0, insecure_seed_for_tests=seed, center=None, evaluate=False)
        rows = rows_of(seed, 60, 30)
        said += messages(lambda r=rows, p=privacy: PrivatePCA(**p.settings).fit(r))[1]
    assert not [text for text in said if text.startswith("bound=")]


# --- a center far away, or not found ---


def paths_to_a_model(rows, privacy):
    def stream():
        pca = PrivatePCA(1, **privacy.settings)
        for part in np.array_split(rows, 10):
            pca.partial_fit(part)
        return pca.release()

    return {
        "fit": lambda: PrivatePCA(1, **privacy.settings).fit(rows),
        "stream": stream,
        "federated": lambda: FederatedPCA(1, privacy=replace(privacy)).fit_clients(
            dict(zip("abc", np.array_split(rows, 3), strict=True))
        ),
    }


@pytest.mark.parametrize("path", ["fit", "stream", "federated"])
@pytest.mark.parametrize("mechanism", ["gram", "sketch"])
@pytest.mark.parametrize("bound", [3.0, "private"])
def test_wherever_the_mean_is_the_component_is_found_and_nothing_is_warned_of(path, mechanism, bound):
    """A center that is not found is said in the certificate: differences of pairs of rows need none."""
    privacy = Privacy(4.0, 1e-5, bound, mechanism=mechanism)
    rows = np.random.default_rng(0).normal(size=(6000, 8)) * [2, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5]
    for distance in (0.0, 3.0, 90.0, 1e6):
        mean = np.zeros(8)
        mean[1] = distance
        model, said = messages(paths_to_a_model(rows + mean, privacy)[path])
        assert said == []
        summary = model.subspace(1) if isinstance(model, Moments | Subspace) else model.subspace_
        assert abs(summary.components[0, 0]) > 0.95
        if summary.certificate.center == "private":
            assert np.linalg.norm(summary.mean - mean) < 1.0
        else:
            assert summary.certificate.center == "none: differences of pairs"
            assert not summary.mean.any()
        assert summary.certificate.center == "private" or distance > 3


# --- one account for every fit ---


def fits_twice(privacy):
    rows = DIGITS[:300]
    twice = PrivatePCA(1, **privacy.settings)
    yield lambda: (twice.fit(rows), twice.fit(rows))
    pca = PrivatePCA(1, **privacy.settings)
    yield lambda: (pca.fit(rows), clone(pca).fit(rows))
    copied = PrivatePCA(1, **privacy.settings)
    yield lambda: [each.fit(rows) for each in (clone(copied), deepcopy(copied))]
    streams = PrivatePCA(1, **privacy.settings)
    yield lambda: [clone(streams).partial_fit(rows).release() for _ in range(2)]
    searched = PrivatePCA(1, **privacy.settings)
    yield lambda: GridSearchCV(searched, {"n_components": [1, 2]}, cv=2).fit(rows)
    federated = FederatedPCA(1, privacy=replace(privacy))
    yield lambda: [federated.fit(rows, groups=np.arange(300) % 2) for _ in range(2)]


@pytest.mark.parametrize("how", range(6))
def test_one_privacy_without_a_ledger_fitted_twice_warns(how):
    call = list(fits_twice(about_digits()))[how]
    said = messages(call)[1]
    assert any("this is fit number 2 with the same settings" in text for text in said)
    paid = epsilon_of(np.sqrt(2) * mu_of(1.0, 1e-5), 1e-5)
    assert any(f"epsilon={paid:.3g} by now, not 1" in text for text in said)


def test_one_fit_an_equal_privacy_or_a_ledger_does_not_warn():
    ledger = Ledger(epsilon=10.0, delta=1e-5)
    for call in (
        lambda: PrivatePCA(1, **about_digits().settings).fit(DIGITS),
        lambda: [PrivatePCA(1, **about_digits().settings).fit(DIGITS) for _ in range(2)],
        lambda: [PrivatePCA(1, **p.settings).fit(DIGITS) for p in 2 * [about_digits(ledger=ledger)]],
        lambda: FederatedPCA(1, privacy=about_digits()).fit(DIGITS, groups=np.arange(1797) % 3),
    ):
        assert messages(call)[1] == []


def test_merging_releases_that_may_be_of_the_same_rows_warns():
    releases = [PrivatePCA(1, **about_digits().settings).fit(DIGITS).release() for _ in range(3)]
    merged, said = messages(lambda: fedpca.merge(releases))
    assert isinstance(merged, Moments)
    assert len(said) == 1
    assert "3 releases were paid for in memory, and have 1797 records each" in said[0]
    other = PrivatePCA(1, **about_digits().settings).fit(DIGITS[:1000]).release()
    ledger = Ledger(epsilon=10.0, delta=1e-5)
    shared = [PrivatePCA(1, **about_digits(ledger=ledger).settings).fit(DIGITS).release() for _ in "ab"]
    clean = Subspace.from_rows(DIGITS)
    for parts in ([releases[0], other], shared, releases[:1]):
        assert messages(lambda p=parts: fedpca.merge(p))[1] == []
    assert "no certificate: 1 of 2 summaries" in messages(lambda: fedpca.merge([releases[0], clean]))[1][0]


# --- settings stay what they were ---


def test_no_setting_can_be_changed_in_mid_stream():
    private = about_digits(releases=3).settings
    changes = {"releases": 2, "epsilon": 2.0, "center": None, "n_components": 2, "scale": np.ones(64)}
    for name, value in changes.items():
        pca = PrivatePCA(1, **private).partial_fit(DIGITS[:100]).set_params(**{name: value})
        with pytest.raises(ValueError, match=rf"{name} must stay .* as it was when the stream began"):
            pca.partial_fit(DIGITS[:100])
    pca = PrivatePCA(1, **private).partial_fit(DIGITS).set_params(**deepcopy(private))
    pca.partial_fit(DIGITS).release()
    pca.set_params(epsilon=2.0).fit(DIGITS)  # anew
    assert pca.subspace_.certificate.epsilon == 2.0


# --- columns that are mostly one value, scaled privately ---


def seldom(n_rows, shares):
    """Columns that are one, rather than zero, in such shares of the rows."""
    random = np.random.default_rng(0)
    return (random.uniform(size=(n_rows, len(shares))) < shares).astype(float)


def test_columns_that_are_mostly_one_value_get_a_private_scale_if_rows_suffice():
    rows = seldom(20_000, [0.5, 0.3, 0.1, 0.05])
    pca, told = messages(lambda: PrivatePCA(2, scale="std", epsilon=4.0, delta=1e-6).fit(rows))
    np.testing.assert_allclose(pca.scale_, rows.std(axis=0), rtol=0.4)
    assert not any("no scale was found" in text for text in told)
    assert pca.subspace_.certificate.evaluation.left_out == 0


def test_columns_without_a_scale_are_named_and_counted_and_planned():
    rows = seldom(3000, [0.5, 0.4, 0.3, 0.005])
    privacy = Privacy(2.0, 1e-6)
    pca, told = messages(lambda: PrivatePCA(1, scale="std", **privacy.settings).fit(rows))
    (text,) = [text for text in told if "no scale was found" in text]
    assert "1 of 4 features" in text
    assert "Shares of the variance are those of the other features" in text
    evaluation = pca.subspace_.certificate.evaluation
    assert evaluation.left_out == 1
    assert evaluation.describe().endswith("Not counted: 1 feature left out, for want of a scale.")
    assert "will be left out" in fedpca.plan(privacy, 4, 3000, scale="std").advice
    assert "left out" not in fedpca.plan(privacy, 4, 3000).advice


def test_where_little_noise_is_there_long_rows_are_clipped_and_not_all():
    """Rows with a few large variances, many components: as much noise as for the longest drowns the last."""
    random = np.random.default_rng(0)
    axes = np.linalg.qr(random.normal(size=(20, 20)))[0]
    rows = (random.normal(size=(6000, 20)) * 2.0 ** -np.minimum(np.arange(20) / 2, 4)) @ axes.T

    def affinity(epsilon, **settings):
        found = []
        for seed in range(3):
            privacy = Privacy(epsilon, 1e-5, insecure_seed_for_tests=seed, **settings)
            model, _ = messages(lambda privacy=privacy: PrivatePCA(6, **privacy.settings).fit(rows))
            found.append(float(np.sum((model.components_ @ axes[:, :6]) ** 2)) / 6)
        return np.mean(found)

    few, more = affinity(1.0), affinity(4.0)
    assert more > few - 0.02
    assert few > affinity(1.0, bound="sphere") - 0.06


@pytest.mark.long
def test_rows_of_all_directions_alike_lose_little_by_the_length_that_is_found():
    """Like word vectors: long tails that turn no component, so that noise is all that a length can cost."""
    random = np.random.default_rng(2)
    variances = np.arange(1.0, 101) ** -0.9
    rows = (
        random.normal(size=(20_000, 100)) * np.sqrt(variances) * np.exp(0.5 * random.normal(size=(20_000, 1)))
    )
    exact = np.linalg.eigh(np.cov(rows, rowvar=False))[1][:, -6:]

    def affinity(epsilon, bound):
        found = []
        for seed in range(3):
            privacy = Privacy(epsilon, 1e-5, bound, insecure_seed_for_tests=seed)
            model, _ = messages(lambda privacy=privacy: PrivatePCA(6, **privacy.settings).fit(rows))
            found.append(float(np.sum((model.components_ @ exact) ** 2)) / 6)
        return np.mean(found)

    few, more = affinity(1.0, "private"), affinity(4.0, "private")
    assert more > few > affinity(1.0, "sphere") - 0.007
    assert more > 0.99
