"""fedpca merge counts rows once."""

import os
import shutil

import numpy as np
import pytest
from command_line import invoke
from helpers import rows_of

import fedpca
from fedpca import Moments, Scaling, Subspace


def run(*arguments):
    return invoke(arguments)


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


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", ["moments", "subspace"])
def test_an_earlier_result_is_no_input(tmp_path, monkeypatch, kind, center):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a", "b", "c")):
        own = Moments.from_rows(rows_of(seed, 50, 4) / (1 + seed), center=center)
        (own if kind == "moments" else own.subspace()).save(f"{name}.safetensors")
    files = [f"{name}.safetensors" for name in ("a", "b", "c")]
    assert invoke(["merge", *files, "-o", "all.safetensors"]).exit_code == 0
    for inputs in (["all.safetensors", *files], [*files, "all.safetensors"]):
        done = invoke(["merge", *inputs, "-o", "new.safetensors"])
        assert done.exit_code == 1
        assert "all.safetensors has the rows of all the others; leave it out" in " ".join(done.stderr.split())
    fedpca.load("a.safetensors").with_about(names=tuple("pqrs")).save("named.safetensors")
    done = invoke(["merge", "a.safetensors", "named.safetensors", "-o", "new.safetensors"])
    assert done.exit_code == 1
    assert not (tmp_path / "new.safetensors").exists()


def test_unit_rows_of_two_owners_are_no_copies(tmp_path, monkeypatch):
    """Their counts and energies agree."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a", "b")):
        rows = rows_of(seed, 50, 4)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        Moments.from_rows(rows, center=False).save(f"{name}.safetensors")
    done = invoke(["merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors"])
    assert done.exit_code == 0
