"""Model files of earlier code: every release reads them, with every number and promise in them.

The files in `model_files` have format version 1. They stay as they were written and are never written anew;
files of a later format version join them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import fedpca
from fedpca import Moments, Subspace
from fedpca.summaries.certificate import noise_edge

FOLDER = Path(__file__).parent / "model_files"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
NAMES = sorted(EXPECTED)
CERTIFIED = [name for name in NAMES if EXPECTED[name]["epsilon"] is not None]


def old_file(name):
    return FOLDER / f"{name}.safetensors"


def header_of(path):
    """The JSON object that fedpca writes into a file's metadata, by safetensors alone."""
    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["fedpca"])


def stated(path):
    """What the certificate in a file states; null is the same as a key that is not there."""
    certificate = json.loads(header_of(path)["facts"])["certificate"]
    return {name: value for name, value in (certificate or {}).items() if value is not None}


def assert_close(found, expected, tolerance=1e-12):
    """Equal up to rounding, relative to the largest entry."""
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    size = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=0, atol=tolerance * size)


def assert_expected(summary, name):
    """The summary is what was written into the file called `name`."""
    expected = EXPECTED[name]
    assert type(summary).__name__ == expected["kind"]
    for array, values in expected["arrays"].items():
        assert getattr(summary, array).dtype == expected["dtypes"][array]
        assert_close(getattr(summary, array), values)
    assert_close(summary.count, expected["count"])
    assert_close(summary.total, expected["total"])
    assert summary.centered is expected["centered"]
    names = expected["feature_names"]
    assert summary.feature_names == (None if names is None else tuple(names))
    if expected["epsilon"] is None:
        assert summary.certificate is None
    else:
        assert summary.certificate.epsilon == expected["epsilon"]
        assert summary.certificate.delta == expected["delta"]


def test_every_file_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.safetensors")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_old_file_loads_with_every_number_it_was_written_with(name):
    assert header_of(old_file(name))["format_version"] == 1
    assert_expected(fedpca.load(old_file(name)), name)


@pytest.mark.parametrize("name", NAMES)
def test_an_old_file_is_saved_again_with_nothing_lost(name, tmp_path):
    again = tmp_path / "model.safetensors"
    fedpca.load(old_file(name)).save(again)
    assert_expected(fedpca.load(again), name)
    assert stated(again) == stated(old_file(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_directions_of_an_old_file_are_what_they_were(name):
    """Of a private release that takes its certificate: what noise adds to the variances is taken off, and
    what does not rise above its edge, half of it once shrunk, is left out."""
    subspace = Subspace.load(old_file(name))
    expected = np.array(EXPECTED[name]["singular_values_of_all_directions"])
    if EXPECTED[name]["kind"] == "Moments":
        expected = expected[expected**2 > noise_edge(subspace.certificate) / 2]
    assert_close(subspace.singular_values, expected, 1e-9)


@pytest.mark.parametrize("name", CERTIFIED)
def test_an_old_release_shows_its_promise(name):
    shown = repr(fedpca.load(old_file(name)))
    seeded = name == "private-with-warnings"
    assert ("NOT private" in shown) == seeded
    assert (f"epsilon={EXPECTED[name]['epsilon']:g}" in shown) != seeded


@pytest.mark.parametrize("kind", [Subspace, Moments])
def test_old_files_merge(kind):
    loaded = [
        summary
        for summary in (fedpca.load(old_file(name)) for name in NAMES if name not in CERTIFIED)
        if isinstance(summary, kind) and summary.centered and summary.feature_names is None
    ]
    assert len(loaded) > 1
    assert fedpca.merge(loaded).count == sum(summary.count for summary in loaded)


def test_old_releases_merge_and_promise_the_weakest_of_their_promises():
    names = ["private-gram-subspace", "private-sketch", "private-merged-subspaces", "private-mod-sulq"]
    merged = fedpca.merge([fedpca.load(old_file(name)) for name in names], rank=3)
    for promised in ("epsilon", "delta"):
        assert getattr(merged.certificate, promised) == max(EXPECTED[name][promised] for name in names)
