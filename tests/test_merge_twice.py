"""fedpca merge counts rows once."""

import os
import shutil

import pytest
from helpers import rows_of
from typer.testing import CliRunner

from fedpca import Scaling, Subspace
from fedpca.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        Subspace.from_rows(rows_of(seed, 50, 3)).save(f"{name}.safetensors")
    return tmp_path


def test_an_input_that_is_the_output_is_refused_even_by_force(folder):
    assert run("merge", "a.safetensors", "b.safetensors", "-o", "all.safetensors").exit_code == 0
    before = (folder / "all.safetensors").read_bytes()
    again = run(
        "merge", "a.safetensors", "all.safetensors", "b.safetensors", "-o", "all.safetensors", "--force"
    )
    assert again.exit_code
    assert "is read by this command" in again.output + again.stderr
    assert (folder / "all.safetensors").read_bytes() == before


@pytest.mark.parametrize("link", [os.link, os.symlink, shutil.copyfile])
def test_the_same_rows_under_two_names_are_refused(folder, link):
    link(folder / "a.safetensors", folder / "c.safetensors")
    found = run("merge", "a.safetensors", "b.safetensors", "c.safetensors", "-o", "all.safetensors")
    assert found.exit_code
    assert "all" in found.output + found.stderr
    assert not (folder / "all.safetensors").exists()


def test_the_same_scaling_under_two_names_is_refused(folder):
    for name in "xy":
        Scaling.from_rows(rows_of(0, 50, 3)).save(f"{name}.safetensors")
    found = run("merge", "x.safetensors", "y.safetensors", "-o", "all.safetensors")
    assert found.exit_code
    assert "same contents" in found.output + found.stderr
