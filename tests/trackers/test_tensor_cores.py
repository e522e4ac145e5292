"""The kernels that multiply rows in bfloat16: on a GPU, or interpreted on the CPU."""

import importlib
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def kernels(monkeypatch):
    """The kernels, and a function that puts arrays where they run."""
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="triton is not installed: make test-torch")
    name = "fedpca.trackers.on_device.tensor_cores"
    monkeypatch.delitem(sys.modules, name, raising=False)  # decorated for the GPU, if it was imported before
    return importlib.import_module(name), lambda values: torch.asarray(values, device=device)


def centered(rows, roots, shift):
    """The rows that are to be multiplied, in float64."""
    values = rows.cpu().double().numpy() - shift.astype(np.float32)
    return values if roots is None else values * roots[:, None]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize(("shape", "weighted"), [((300, 40), True), ((131, 300), False)])
def test_sums_are_those_of_rounded_rows(kernels, dtype, shape, weighted, rng):
    module, to = kernels
    torch = sys.modules["torch"]
    rows = to(20 * rng.normal(size=shape) + 30).to(getattr(torch, dtype))
    roots = rng.uniform(size=len(rows)).astype(np.float32) if weighted else None
    own = None if roots is None else to(roots)
    shift = rng.normal(size=shape[1]) + 30
    values = centered(rows, roots, shift)
    rounded, row_sum, energy = module.rounded_rows(rows, own, to(shift))
    rounded = rounded.cpu().double().numpy()
    assert not rounded[:, shape[1] :].any()  # what was added to make tiles
    rounded = rounded[:, : shape[1]]
    assert (np.abs(rounded - values) <= 2**-7 * np.abs(values) + 1e-4).all()  # interpreters truncate
    np.testing.assert_allclose(
        row_sum.cpu(), (values if roots is None else roots[:, None] * values).sum(axis=0), atol=1e-2
    )
    sums = module.TensorCoreProducts()(rows, own, to(shift))
    assert float(energy) == pytest.approx(np.sum(rounded**2), rel=1e-5)
    scatter = sums.scatter().cpu().numpy()
    np.testing.assert_array_equal(scatter, scatter.T)
    size = np.sqrt(np.diag(rounded.T @ rounded))
    assert np.abs((scatter - rounded.T @ rounded) / np.outer(size, size)).max() < 1e-5
    np.testing.assert_array_equal(sums.row_sum.cpu(), row_sum.cpu())
    assert sums.energy == energy


def test_chunks_add_up_in_a_fixed_order(kernels, monkeypatch, rng):
    module, to = kernels
    rows, shift = to(rng.normal(size=(500, 30)).astype(np.float32)), to(np.zeros(30))
    whole = module.TensorCoreProducts()(rows, None, shift)
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", 128 * 256)
    first, second = (module.TensorCoreProducts()(rows, None, shift) for _ in range(2))
    scatter = first.scatter()
    assert (scatter == second.scatter()).all()
    assert (first.row_sum == second.row_sum).all()
    assert first.energy == second.energy
    assert float(first.energy) == pytest.approx(float(whole.energy), rel=1e-5)
    np.testing.assert_allclose(scatter.cpu(), whole.scatter().cpu(), atol=1e-3)


def test_rows_in_any_layout(kernels, rng):
    module, to = kernels
    rows, shift = to(rng.normal(size=(200, 60)).astype(np.float32)), to(np.zeros(30))
    expected = module.TensorCoreProducts()(rows[:, :30].contiguous(), None, shift).scatter()
    for same in (rows[:, :30], rows[:, :30].T.contiguous().T):
        assert (module.TensorCoreProducts()(same, None, shift).scatter() == expected).all()


@pytest.mark.parametrize("padded", [256, 1024, 1536, 4096])
@pytest.mark.parametrize("descriptors", [False, True])
def test_tiles_cover_the_upper_triangle_once(kernels, padded, descriptors):
    module, _ = kernels
    tiles = module.tiles_for(descriptors=descriptors)
    assert padded % tiles.height == padded % tiles.width == 0
    assert not tiles.descriptors or tiles.height == tiles.width
    corners = module._upper_corners(padded, tiles.height, tiles.width, sys.modules["torch"].device("cpu"))
    covered = np.zeros((padded, padded), int)
    for top, left in corners.tolist():
        covered[top : top + tiles.height, left : left + tiles.width] += 1
    assert covered.max() == 1
    assert covered[np.triu_indices(padded)].all()


@pytest.mark.parametrize("n_known", [75, 3, 0])
def test_columns_are_made_orthonormal(n_known, rng):
    pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    import torch

    from fedpca.backend.torch_cuda import orthonormal_columns

    columns = rng.normal(size=(500, n_known)) @ (
        10.0 ** -np.arange(n_known)[:, None] / 8 * rng.normal(size=(n_known, 75))
    )
    found = orthonormal_columns(torch.asarray(columns)).numpy()
    assert np.isfinite(found).all()
    if n_known == 75:  # of 1 to 1e-74, those above rounding
        strong = np.linalg.svd(columns, full_matrices=False)[0][:, :6]
        assert np.linalg.norm(strong - found @ (found.T @ strong)) < 1e-6
    assert np.linalg.norm(found, axis=0).max() < 1 + 1e-9


@pytest.mark.parametrize("padded", [256, 512, 768, 1024, 1536, 2048, 4096, 8192])
def test_a_chip_has_work_for_all_its_parts(kernels, padded):
    module, _ = kernels
    tiles = (padded // 128) * (padded // 128 + 1) // 2
    n_splits = module.splits_for(tiles, 132)
    turns = n_splits * tiles / 132
    assert turns / np.ceil(turns) >= 0.75
    assert n_splits == 1 or n_splits * padded**2 <= 2**25  # partial products: no more than 128 MB
    assert module.splits_for(tiles, 1) == 1  # interpreted
