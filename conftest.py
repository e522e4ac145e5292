"""Examples that are slow, and those that need torch or triton, which `make test-torch` installs."""

from importlib.util import find_spec

import pytest

NEEDS_TORCH = "fedpca.backend.prefetch.prefetch_to_device"
HAS_TORCH = find_spec("torch") is not None
SLOW = {
    "docs/coming-from/incremental-pca.md",
    "docs/explanation/kernel.md",
    "docs/how-to/dask.md",
    "docs/reference/privacy.md",
    "docs/reference/report.md",
    "docs/tutorial.md",
    "src/fedpca/privacy/audit.py",
    "src/fedpca/report/write.py",
}

collect_ignore = []
if not HAS_TORCH:
    collect_ignore += ["docs/how-to/embeddings-on-a-gpu.md"]
if find_spec("triton") is None:
    collect_ignore += ["src/fedpca/trackers/nystrom/triton_kernel.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == NEEDS_TORCH and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        if item.path.relative_to(item.config.rootpath).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
