"""Private models of rows in many places: the total of all parts keeps its promise, and gets one noise."""

import numpy as np
import pytest

from fedpca import FederatedPCA, Privacy, PrivatePCA, SecureSums, fit_files
from fedpca.auditing.distinguish import distinguish
from fedpca.federation.engines.private_parts import PrivateParts, added
from fedpca.privacy import exit
from fedpca.privacy.calibration import epsilon_of
from fedpca.readers import open_rows

DELTA = 1e-5
RUNS = 2000
AWKWARD = [
    [1e-310, 1, 0, 0], [1e-200, 1e200, 0, 0], [np.inf, 0, -np.inf, 1],
    [5e-324] * 4, [np.nan] * 4, [1.7e308] * 4,
]  # fmt: skip


def noisy_sum(rows, privacy, monkeypatch):
    """The first sum over rows in three parts, as it is after its noise was drawn."""
    parts = PrivateParts(privacy, rows.shape[1], 1, len(rows))
    places = np.array_split(rows, 3)
    task = parts.task
    total = added([task.part_sum([part], number) for number, part in enumerate(places)])
    seen = []
    monkeypatch.setattr(parts._machine, "add", lambda given, receipt: seen.append(given.total))
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
    class Halved(exit.ExactNoise):
        def weighted(self, *arguments):
            return np.rint(super().weighted(*arguments) / 2)

    monkeypatch.setattr(exit, "ExactNoise", Halved)
    assert not audited(monkeypatch)[2]


def test_parts_without_rows_add_nothing():
    assert added([None, None]) is None


# --- every way in which private rows are taken ---


def as_stream(rows, privacy, scale):
    pca = PrivatePCA(2, scale=scale, **privacy.settings)
    for part in np.array_split(rows, 5):
        pca.partial_fit(part)
    pca.release()


def as_file(rows, privacy, scale):
    np.save("rows.npy", rows)
    pca = PrivatePCA(2, scale=scale, **privacy.settings)
    fit_files(pca, open_rows("rows.npy", private=True))


def as_clients(rows, **settings):
    FederatedPCA(2, **settings).fit(rows, groups=np.arange(len(rows)) % 3)


def as_secure_sums(rows, **settings):
    FederatedPCA(2, secure=SecureSums(least=3), **settings).fit(rows, groups=np.arange(len(rows)) % 3)


def as_parts(rows, privacy, scale):
    parts = PrivateParts(privacy, rows.shape[1], 2, len(rows), scale=scale)
    while (task := parts.task) is not None:
        places = enumerate(np.array_split(rows, 3))
        parts.add(added([task.part_sum([part], number) for number, part in places]))
    assert parts.model.certificate.private


@pytest.mark.slow
@pytest.mark.parametrize("take", [as_stream, as_file, as_clients, as_secure_sums, as_parts])
@pytest.mark.parametrize(
    "settings",
    [{}, {"scale": "std"}, {"bound": "sphere", "center": "pairs"}, {"bound": 3.0, "center": None}],
    ids=str,
)
def test_no_value_of_a_record_decides_whether_rows_are_taken(tmp_path, monkeypatch, take, settings):
    """Not even where numpy is set to raise, which would show what a record is like."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(900, 4)) * [5, 3, 1, 1] + 2
    scale = settings.get("scale")
    rest = {name: value for name, value in settings.items() if name != "scale"}
    for row in AWKWARD:
        rows[450] = row
        with np.errstate(all="raise"):
            take(rows, privacy=Privacy(8.0, 1e-6, **rest), scale=scale)
