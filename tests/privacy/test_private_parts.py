"""Private models of rows in many places: the total of all parts keeps its promise, and gets one noise."""

import numpy as np
import pytest

from fedpca import Privacy
from fedpca.auditing.distinguish import distinguish
from fedpca.federation.engines import private_parts
from fedpca.federation.engines.private_parts import PrivateParts, added
from fedpca.privacy.calibration import epsilon_of

DELTA = 1e-5
RUNS = 2000


def noisy_sum(rows, privacy, monkeypatch):
    """The first sum over rows in three parts, as it is after its noise was drawn."""
    parts = PrivateParts(privacy, rows.shape[1], 1, len(rows))
    places = np.array_split(rows, 3)
    task = parts.task
    total = added([task.part_sum([part], number) for number, part in enumerate(places)])
    seen = []
    monkeypatch.setattr(parts._fit, "add", lambda given: seen.append(given.values))
    monkeypatch.setattr(parts._ledger, "complete", lambda entry: None)
    parts.add(total)
    return seen[0], total.values


def audited(monkeypatch):
    """Whether the sums of two tables that differ in one row are as hard to distinguish as promised."""
    rows = np.random.default_rng(0).normal(size=(9, 2))
    other = rows.copy()
    rows[4], other[4] = (3.0, 0.0), (0.0, 3.0)  # as far apart as rows within the bound can be
    worlds = []
    for table in (rows, other):
        drawn = []
        for _ in range(RUNS):
            privacy = Privacy(8.0, DELTA, bound=3.0, center=None, evaluate=False)
            values, exact = noisy_sum(table, privacy, monkeypatch)
            drawn.append(values)
        worlds.append((np.array(drawn), exact))
    direction = worlds[0][1] - worlds[1][1]
    spread = np.maximum(worlds[0][0].std(axis=0), 1e-9)
    weights = direction / spread**2  # the most powerful test of a shift
    ours, theirs = (values @ weights for values, _ in worlds)
    epsilon, mu = distinguish(ours, theirs, DELTA, alpha=1e-4)
    promised = Privacy(8.0, DELTA, bound=3.0, center=None, evaluate=False).mu
    return mu, promised, epsilon <= epsilon_of(promised, DELTA) and mu <= promised


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore:delta")
def test_the_total_of_all_parts_keeps_its_promise(monkeypatch):
    mu, promised, kept = audited(monkeypatch)
    assert kept
    assert mu > 0.7 * promised  # and the noise is no larger than needed


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore:delta")
def test_less_noise_is_caught(monkeypatch):
    class Halved(private_parts.ExactNoise):
        def entries(self, *arguments):
            return np.rint(super().entries(*arguments) / 2)

    monkeypatch.setattr(private_parts, "ExactNoise", Halved)
    assert not audited(monkeypatch)[2]


def test_parts_without_rows_add_nothing():
    assert added([None, None]) is None
