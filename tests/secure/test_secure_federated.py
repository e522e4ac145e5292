"""FederatedPCA with secure sums: real protocol messages among clients of one process."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

import fedpca
from fedpca import FederatedPCA, Privacy, PrivatePCA, SecureSums
from fedpca.errors import SecureError
from fedpca.federation.one_process.secure_clients import SecureClients
from fedpca.metrics import affinity
from fedpca.privacy.clipping import RADIUS
from fedpca.secure.fit import PrivateFit
from fedpca.secure.rows import OwnerRows

pytest.importorskip("cryptography")

PRIVACY = {"epsilon": 8.0, "delta": 1e-5}


def tables(n_clients=5, n_rows=2000, n_features=8, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) * np.linspace(4, 0.5, n_features) + np.arange(n_features)
    cuts = np.sort(rng.choice(n_rows - 2, n_clients - 1, replace=False) + 1)
    return {f"client {i}": part for i, part in enumerate(np.split(rows, cuts))}


def test_without_privacy_it_is_numpys_pca_of_all_rows():
    clients = tables()
    pca = FederatedPCA(3, secure=SecureSums(largest=50.0)).fit_clients(clients)
    rows = np.concatenate(list(clients.values()))
    singular, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[1:]
    assert affinity(pca.components_, directions[:3]) > 1 - 1e-12
    np.testing.assert_allclose(pca.mean_, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(pca.explained_variance_, singular[:3] ** 2 / (len(rows) - 1), rtol=1e-7)
    assert pca.n_samples_seen_ == len(rows)
    assert pca.model_.certificate is None
    assert pca.influence_ == {}
    for name, part in clients.items():
        given = pca.contributions_[name]
        assert (given.rows, given.captured, given.epsilon, given.problem) == (len(part), None, None, "")


def test_groups_frames_scales_and_scores_work_as_ever():
    pandas = pytest.importorskip("pandas")
    clients = tables()
    rows = np.concatenate(list(clients.values()))
    names = [f"x{i}" for i in range(8)]
    frames = {name: pandas.DataFrame(part, columns=names) for name, part in clients.items()}
    secure = SecureSums(largest=50.0)
    pca = FederatedPCA(3, scale="std", secure=secure).fit_clients(frames)
    plain = FederatedPCA(3, scale="std").fit_clients(frames)
    assert list(pca.feature_names_in_) == names
    np.testing.assert_allclose(pca.scale_, plain.scale_, rtol=1e-7)
    frame = pandas.DataFrame(rows, columns=names)
    np.testing.assert_allclose(np.abs(pca.transform(frame)), np.abs(plain.transform(frame)), atol=1e-4)
    groups = np.repeat(list(clients), [len(part) for part in clients.values()])
    again = clone(pca).fit(rows, groups=groups)
    assert affinity(again.components_, pca.components_) > 1 - 1e-9
    assert pickle.loads(pickle.dumps(again)).n_components_ == 3


def test_with_privacy_clients_share_the_noise_of_one_pool():
    clients = tables()
    rows = np.concatenate(list(clients.values()))
    privacy = Privacy(**PRIVACY)
    pca = FederatedPCA(2, privacy=privacy, secure=SecureSums()).fit_clients(clients)
    pool = PrivatePCA(2, **PRIVACY).fit(rows)
    certificate = pca.model_.certificate
    assert certificate == pca.subspace_.certificate
    assert (certificate.private, certificate.epsilon, certificate.delta) == (True, 8.0, 1e-5)
    assert certificate.sigma == pytest.approx(pool.subspace_.certificate.sigma, rel=0.1)
    record = certificate.secure
    assert record.members == tuple(clients)
    assert (record.least, record.colluding, record.threshold) == (4, 1, 4)
    assert {part.owners for part in record.sums} == {tuple(clients)}
    assert {part.noise for part in record.sums} == {5 / 4}
    assert [part.sum for part in record.sums] == [step.step for step in certificate.steps]
    assert {given.epsilon for given in pca.contributions_.values()} == {8.0}
    assert affinity(pca.components_, pool.components_) > 0.9


@pytest.mark.slow
def test_an_epsilon_whose_exponential_no_float_holds():
    pca = FederatedPCA(3, privacy=Privacy(1000.0, 1e-6), secure=SecureSums(least=4)).fit_clients(tables())
    assert pca.model_.certificate.secure.aliasing == 0.0


def test_the_noise_of_the_total_has_the_stated_variance():
    """The exact products of all rows are known here, and what is left of the total is its noise."""
    clients = tables(6)
    privacy = Privacy(**PRIVACY, bound=8.0, center=np.arange(8.0), evaluate=False)
    residuals = []
    for absent in (0, 1):
        rows = {name: OwnerRows.of_table(part) for name, part in clients.items()}
        for name in list(rows)[:absent]:
            rows[name] = replace(rows[name], parts=dropped)
        for _ in range(15):
            result = run(rows, lambda: PrivateFit(privacy, 8, 2), SecureSums(least=5), privacy)
            (part,) = result.fit.taken
            assert part.noise == pytest.approx((6 - absent) / (5 - absent))
            exact = PrivateFit(privacy, 8, 2)
            exact.begin(part.rows, part.noise)
            pooled = np.concatenate([clients[name] for name in part.owners])
            statistic = exact.vector([pooled], np.random.default_rng(0))
            scatter = result.fit.view.whole.scatter / 64 * RADIUS**2
            noise = np.concatenate([np.diag(scatter), scatter[np.triu_indices(8, 1)]]) - statistic
            (_, on), (_, off) = exact.next.blocks
            deviations = np.repeat([on, off], [8, 28]) * part.noise**0.5
            residuals.append(noise / deviations)
    variances = np.square(residuals).mean()
    assert variances == pytest.approx(1.0, abs=5 * np.sqrt(2 / np.size(residuals)))


def dropped():
    raise ConnectionError("gone")


def run(rows, make, secure, privacy):
    with ThreadPoolExecutor(2) as pool:
        return SecureClients(rows, {}, make, secure, privacy).run(pool)


class TestDropOuts:
    def test_a_client_that_fails_is_left_out(self):
        clients = tables()
        clients["client 2"] = clients["client 2"] * 100  # beyond the bound
        clients["client 4"] = clients["client 4"][:, :5]
        secure = SecureSums(largest=50.0, least=4)
        with pytest.raises(SecureError, match="at least 4 of 5 clients, and 3 are left"):
            FederatedPCA(3, secure=secure).fit_clients(clients)
        clients["client 4"] = tables()["client 4"]
        with pytest.warns(UserWarning, match=r"left out 1 of 5 clients.*largest=50"):
            pca = FederatedPCA(3, secure=secure).fit_clients(clients)
        assert "nothing was sent" in pca.contributions_["client 2"].problem
        assert pca.contributions_["client 2"].rows == 0
        left = np.concatenate([part for name, part in clients.items() if name != "client 2"])
        directions = np.linalg.svd(left - left.mean(axis=0), full_matrices=False)[2]
        assert affinity(pca.components_, directions[:3]) > 1 - 1e-12
        assert pca.n_samples_seen_ == len(left)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(6))
    def test_clients_that_go_at_any_sum_leave_the_rows_of_the_others(self, seed):
        rng = np.random.default_rng(seed)
        clients = tables(7, seed=seed)
        rows, reads = {}, {}
        for name, part in clients.items():
            table = OwnerRows.of_table(part)
            last = int(rng.integers(0, 8)) if name in ("client 0", "client 3") else 99

            def parts(table=table, name=name, last=last):
                reads[name] = reads.get(name, 0) + 1
                if reads[name] > last:
                    raise ConnectionError("gone")
                return table.parts()

            rows[name] = replace(table, parts=parts)
        privacy = Privacy(**PRIVACY)
        result = run(rows, lambda: PrivateFit(privacy, 8, 2), SecureSums(least=5), privacy)
        taken = result.fit.taken
        assert set(result.problems) <= {"client 0", "client 3"}
        counts = [len(part.owners) for part in taken]
        assert counts == sorted(counts, reverse=True)
        for part in taken:
            assert part.noise == pytest.approx(len(part.owners) / (len(part.owners) - 1))
            assert part.rows == sum(len(clients[name]) for name in part.owners)
        assert result.model.certificate.secure.sums == taken
        truth = np.concatenate([clients[name] for name in result.owners])
        truth = np.linalg.svd(truth - truth.mean(axis=0), full_matrices=False)[2][:2]
        assert affinity(result.model.components, truth) > 0.8

    def test_a_client_without_rows_or_with_other_names(self):
        pandas = pytest.importorskip("pandas")
        frames = {name: pandas.DataFrame(part, columns=list("abcdefgh")) for name, part in tables(6).items()}
        frames["client 1"] = frames["client 1"][:0]
        frames["client 5"] = frames["client 5"].rename(columns={"a": "z"})
        with pytest.warns(UserWarning, match="left out 2 of 6"):
            pca = FederatedPCA(2, secure=SecureSums(largest=50.0)).fit_clients(frames)
        assert "not those of most clients" in pca.contributions_["client 5"].problem
        assert sorted(name for name, given in pca.contributions_.items() if given.problem) == [
            "client 1",
            "client 5",
        ]


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"robust": "trim"}, "robust must be None"),
            ({"features": "intersection"}, "features must be 'same'"),
            ({"tracker": "exact"}, "tracker must be 'auto'"),
            ({"n_components": None}, "n_components must be a whole number"),
            ({"n_components": 0.9}, "n_components must be a whole number"),
            ({"energy": (0.01, 0.1)}, "energy None"),
            ({"privacy": Privacy(**PRIVACY)}, "not both"),
            ({"secure": SecureSums()}, "need privacy"),
            ({"secure": SecureSums(least=3, largest=1.0)}, "least must be from 4 to 5"),
            ({"secure": SecureSums(colluding=4, largest=1.0)}, "colluding must be at most"),
            ({"n_components": 9}, "at most the number of features"),
            ({"privacy": Privacy(**PRIVACY, releases=2), "secure": SecureSums()}, "one release"),
            ({"privacy": Privacy(**PRIVACY), "secure": SecureSums(), "scale": "binomial"}, "'std'"),
            ({"privacy": Privacy(epsilon=1.0, delta=0.1), "secure": SecureSums()}, "one over the number"),
            (
                {"privacy": Privacy(epsilon=0.01, delta=1e-5), "secure": SecureSums(), "scale": "std"},
                "nothing was spent",
            ),
        ],
        ids=str,
    )
    def test_settings_that_secure_sums_cannot_have(self, settings, message):
        pca = FederatedPCA(**{"n_components": 2, "secure": SecureSums(largest=50.0), **settings})
        with pytest.raises(ValueError, match=message):
            pca.fit_clients(tables())

    def test_what_are_no_settings(self):
        with pytest.raises(TypeError, match="secure must be a SecureSums"):
            FederatedPCA(2, secure=True).fit_clients(tables())

    def test_streams(self):
        clients = tables()
        clients["client 3"] = iter([clients["client 3"]])
        with pytest.raises(ValueError, match=r"'client 3' are batches that are read once; pass tables"):
            FederatedPCA(2, secure=SecureSums(largest=50.0)).fit_clients(clients)

    def test_fewer_than_three_clients(self):
        with pytest.raises(ValueError, match="3 to 1000 members, got 1"):
            FederatedPCA(2, secure=SecureSums(largest=50.0)).fit(np.concatenate(list(tables().values())))

    def test_a_ledger_of_several_clients(self, tmp_path):
        privacy = Privacy(**PRIVACY, ledger=tmp_path / "ledger")
        with pytest.raises(ValueError, match="account of one client"):
            FederatedPCA(2, privacy=privacy, secure=SecureSums()).fit_clients(tables())
        assert not (tmp_path / "ledger").exists()

    def test_all_clients_beyond_the_bound(self):
        with pytest.raises(SecureError, match="0 are left"):
            FederatedPCA(2, secure=SecureSums(largest=0.1)).fit_clients(tables())


def test_warnings_are_those_of_the_settings():
    clients = {name: np.column_stack([part, np.ones(len(part))]) for name, part in tables().items()}
    with pytest.warns(UserWarning, match="vary"):
        FederatedPCA(2, scale="std", secure=SecureSums(largest=50.0)).fit_clients(clients)
    privacy = Privacy(epsilon=20.0, delta=1e-5, bound=500.0, center=[0.0] * 8)
    with pytest.warns(UserWarning, match="far too large"):
        FederatedPCA(2, privacy=privacy, secure=SecureSums()).fit_clients(tables())
    privacy = Privacy(epsilon=0.01, delta=1e-5, bound=10.0, center=[0.0] * 8)
    with pytest.warns(UserWarning, match="above the noise"):
        FederatedPCA(2, privacy=privacy, secure=SecureSums()).fit_clients(tables())


def test_the_public_name():
    assert fedpca.SecureSums is SecureSums
