"""Exported transforms give, in faiss, the scores that `transform` gives."""

import numpy as np
import pytest

import fedpca
from fedpca.writers import write_faiss

faiss = pytest.importorskip("faiss", reason="the faiss extra")
pytestmark = pytest.mark.client


def some_rows(seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(400, 12)) @ rng.normal(size=(12, 12)) + np.arange(12.0)).astype(np.float32)


@pytest.mark.parametrize(
    "settings", [{}, {"scale": "std"}, {"center": False}, {"scale": "std", "center": False}]
)
@pytest.mark.parametrize("whiten", [False, True])
def test_scores_are_those_of_transform(tmp_path, settings, whiten):
    pca = fedpca.StreamingPCA(5, whiten=whiten, **settings).fit(some_rows())
    write_faiss(pca, tmp_path / "model.vt")
    rows = some_rows(seed=1)
    expected = pca.transform(rows)
    found = faiss.read_VectorTransform(str(tmp_path / "model.vt")).apply_py(rows)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_an_index_behind_it_finds_the_nearest_of_the_scores(tmp_path):
    rows = some_rows()
    model = fedpca.Subspace.from_rows(rows)
    write_faiss(model, tmp_path / "model.vt", n_components=6)
    index = faiss.IndexPreTransform(
        faiss.read_VectorTransform(str(tmp_path / "model.vt")), faiss.IndexFlatL2(6)
    )
    index.add(rows)
    _, found = index.search(rows[:20], 5)
    scores = model.truncate(6).project(rows)
    distances = np.linalg.norm(scores[:20, None] - scores[None], axis=2)
    assert np.array_equal(found, np.argsort(distances, axis=1)[:, :5])


MODELS = {
    "all": lambda: fedpca.Subspace.from_rows(some_rows()),
    "of no variance": lambda: fedpca.Subspace.from_rows(np.ones((3, 4))),
    "tiny": lambda: fedpca.Subspace.from_rows(some_rows() * np.float64(1e-50)),
    "a file": lambda: "model.safetensors",
}


@pytest.mark.parametrize(
    ("model", "settings", "problem"),
    [
        ("all", {"n_components": 40}, "n_components must be at most 12"),
        ("of no variance", {}, "without components"),
        ("tiny", {"whiten": True}, "numbers of a faiss transform are float32"),
        ("a file", {}, "model must be a fitted PCA"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(tmp_path, model, settings, problem):
    with pytest.raises((ValueError, TypeError), match=problem):
        write_faiss(MODELS[model](), tmp_path / "model.vt", **settings)
    assert not list(tmp_path.iterdir())
