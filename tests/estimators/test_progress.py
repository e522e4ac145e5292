"""Bars say how far work has come, and nothing is shown unless somebody asks."""

import sys

import numpy as np
import pytest

import fedpca
from fedpca import progress
from fedpca.federation.one_process.simulate import simulate

ROWS = np.random.default_rng(0).normal(size=(100, 5))


def test_silence_by_default(capsys):
    fedpca.FederatedPCA(2).fit(ROWS, groups=np.arange(100) % 7)
    assert capsys.readouterr() == ("", "")


def test_a_federation_shows_its_clients(capsys):
    with progress.enabled():
        fedpca.FederatedPCA(2).fit(ROWS, groups=np.arange(100) % 7)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "7 of 7 clients" in shown.err


def test_private_clients_in_several_steps_are_counted_once(capsys):
    privacy = fedpca.Privacy(1.0, 1e-3, 3.0, center="private", evaluate=False)
    with progress.enabled():
        fedpca.FederatedPCA(2, privacy=privacy).fit(ROWS, groups=np.arange(100) % 3)
    assert "3 of 3 clients" in capsys.readouterr().err


def test_a_simulation_shows_its_messages(capsys):
    with progress.enabled():
        simulate({"a": [ROWS[:50], ROWS[50:]], "b": [ROWS]}, 2)
    assert "3 of 3 messages" in capsys.readouterr().err


def test_parts_and_unknown_totals(capsys):
    with progress.enabled():
        with progress.bar("file", 2500.0, "MB") as bar:
            bar.advance(1.5)
        assert list(progress.track(iter("ab"), "letters", "letters")) == ["a", "b"]
    shown = capsys.readouterr().err
    assert "1.5 of 2,500 MB" in shown
    assert "2 letters" in shown


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"fedpca\[progress\]"), progress.enabled():
        pass
