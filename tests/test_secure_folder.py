"""Secure sums through a shared folder: whoever drops out, and whatever the folder does."""

import numpy as np
import pytest
from secure_folders import PLAIN, FolderStudy

import fedpca
from fedpca.federation.secure_folder import current_round
from fedpca.secure.record import Record


def check_totals(study):
    """Every total is the plain sum of those present, bit for bit; returns how many there are."""
    record = Record(study.session(), study.board())
    for number in range(record.n_totals):
        np.testing.assert_array_equal(record.total(number).words, study.expected_total(number))
    return record.n_totals


def check_ended(study, done):
    """There is a model, or too few were there in some round."""
    if not done.waits_for:
        assert fedpca.load(study.shared / "model.safetensors").n_features == 3
        return True
    now = current_round(study.board(), study.session())
    assert len(now.there) < now.needed
    assert f"at least {now.needed} are needed" in done.waits_for
    assert "model" not in study.board()
    return False


def test_all_there_gives_the_model_of_all_rows(tmp_path):
    study = FolderStudy(tmp_path, **PLAIN)
    assert study.run().waits_for == ""
    assert check_totals(study) == 2
    model = fedpca.load(tmp_path / "shared" / "model.safetensors")
    rows = np.concatenate(study.tables)
    assert model.count == len(rows)
    np.testing.assert_allclose(model.mean, rows.mean(axis=0), atol=1e-6)
    covariance = np.cov(rows.T)
    top = np.linalg.eigh(covariance)[1][:, ::-1][:, :2].T
    assert fedpca.metrics.affinity(model.components[:2], top) > 1 - 1e-9
    assert study.visit(0).sent == ()  # nothing twice, nothing after the end


def drop_outs(seed, n_members):
    """Who comes in which round: some stay away for a round, some for good."""
    rng = np.random.default_rng(seed)
    late, gone = rng.uniform(0, 0.5), rng.uniform(0, 0.04)
    away = rng.uniform(size=(n_members, 201)) < late
    away |= np.logical_or.accumulate(rng.uniform(size=(n_members, 201)) < gone, axis=1)
    return lambda index, round: not away[index, round]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_whoever_drops_out_totals_are_those_of_who_is_in_or_there_is_none(tmp_path, part):
    ended = []
    for seed in range(20 * part, 20 * part + 20):
        (tmp_path / str(seed)).mkdir()
        n_members = 4 + seed % 3
        study = FolderStudy(tmp_path / str(seed), n_members, seed, **PLAIN)
        done = study.run(drop_outs(seed, n_members))
        check_totals(study)
        ended.append(check_ended(study, done))
    assert 0 < sum(ended) < 20


@pytest.mark.parametrize("seed", range(3))
def test_a_few_drop_outs(tmp_path, seed):
    study = FolderStudy(tmp_path, 5, seed, **PLAIN)
    check_ended(study, study.run(drop_outs(seed, 5)))
    check_totals(study)
