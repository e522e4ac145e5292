"""Secure sums on Flower: totals are the plain sums of those who took part, whoever drops out, and when."""

import os
import random

import pytest
from flower_grid import pretend_to_be_flower, run
from flower_secure import (
    DroppingGrid,
    SecureClub,
    random_pattern,
    summary_in,
    without_waiting,
)

import fedpca

N_PATTERNS = 180


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    pretend_to_be_flower(monkeypatch)
    without_waiting(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the test


def try_run(club, grid, **config):
    """A run's summary, and whether it ended with a model."""
    try:
        return run(grid, club.server, **club.run_config | config), True
    except RuntimeError:
        return summary_in(club.server), False


class TestDropouts:
    @pytest.mark.parametrize("seed", range(N_PATTERNS))
    def test_patterns(self, tmp_path, seed):
        rng = random.Random(seed)
        n = rng.randint(4, 6)
        threshold = (n + 1) // 2 + 1
        club = SecureClub(tmp_path, n, least=rng.randint(threshold, max(threshold, n - 1)))
        grid = DroppingGrid(club.nodes(), random_pattern(rng, range(1, n + 1)))
        expect = rng.choice((0, club.roster.settings["least"]))
        summary, done = try_run(club, grid, expect=expect, retries=0)
        sums = club.check_totals()
        if done:
            assert [entry["owners"] for entry in summary["secure"]["sums"]] == [list(each) for each in sums]
            assert summary["contributors"]["heart"]["rows"] == summary["secure"]["sums"][-1]["rows"]
            assert fedpca.load(club.server / "model.safetensors").rank == 2
        else:
            assert "too few members were there in time" in summary["problem"]
            assert not (club.server / "model.safetensors").exists()
        again = run(club.grid(), club.server, **club.run_config)  # all are there: what was begun goes on
        assert again["secure"]["session"] == summary["secure"]["session"]
        assert club.check_totals()[: len(sums)] == sums
