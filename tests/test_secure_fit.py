"""What secure sums are of, driven without masks: plain sums of owners' integers, and one pool's noise."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedpca import Privacy, StreamingPCA
from fedpca.metrics import affinity
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
    """A study of owners with these tables: `present(number of the sum)` names who is in it.

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
    return fits[-1], sums


def shares(rows, n_owners=5, seed=0):
    """Unequal owners' rows."""
    cuts = np.sort(np.random.default_rng(seed).choice(len(rows) - 1, n_owners - 1, replace=False) + 1)
    return np.split(rows, cuts)


def spread_rows(n_rows=3000, n_features=12, seed=1):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) * np.linspace(5, 0.5, n_features)
    return rows @ np.linalg.qr(rng.normal(size=(n_features, n_features)))[0] + rng.normal(size=n_features) * 3


def test_private_sums_give_what_one_pool_gives():
    rows = spread_rows()
    privacy = Privacy(epsilon=8.0, delta=1e-5, insecure_seed_for_tests=1)
    fit, sums = drive(lambda: PrivateFit(privacy, 12, 3), shares(rows))
    assert [part.name for part in sums][-2:] == ["gram", "evaluation"]
    assert np.hypot.reduce([part.mu for part in sums]) == pytest.approx(privacy.mu, rel=1e-9)
    pool = StreamingPCA(3, privacy=privacy).fit(rows)
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
