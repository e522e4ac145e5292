"""What the documentation says of monitoring: outliers found, and sensors named."""

import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from benchmarks import monitoring
from fedpca import PCADetector


@pytest.fixture(scope="module")
def plant():
    """A detector of a simulated plant, and a part of it that the detector does not know."""
    rows = monitoring.plant(5)
    return PCADetector().fit(rows[:3000]), rows[3000:3200], rows[:3000].std(axis=0)


@pytest.mark.parametrize("kind", ["bias", "drift", "stuck", "noise"])
def test_the_sensor_at_fault_is_named(kind, plant):
    detector, rows, deviations = plant
    named = [
        monitoring.rights_of(detector, kind, rows, tag, 2 * deviations[tag], np.random.default_rng(tag))[0]
        for tag in range(33)
    ]
    assert np.mean(named) >= 0.9


def test_outliers_are_found_as_well_as_by_an_isolation_forest():
    sets = ("15_Hepatitis", "27_PageBlocks", "31_satimage-2", "41_Waveform", "45_wine")
    ours, theirs = [], []
    for name in sets:
        path = monitoring.data_folder() / "adbench" / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"{path.name} in the folder adbench of FEDPCA_DATA")
        with np.load(path) as contents:
            rows, labels = contents["X"], contents["y"]
        train, test, _, truth = train_test_split(rows, labels, test_size=0.3, stratify=labels, random_state=0)
        ours.append(roc_auc_score(truth, -PCADetector().fit(train).score_samples(test)))
        theirs.append(roc_auc_score(truth, -IsolationForest(random_state=0).fit(train).score_samples(test)))
    assert np.mean(ours) > np.mean(theirs) - 0.005
