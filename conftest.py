"""Examples that need torch or triton, which are installed by `make test-torch` only."""

from importlib.util import find_spec

import pytest

NEEDS_TORCH = "fedpca.backend.prefetch.prefetch_to_device"
HAS_TORCH = find_spec("torch") is not None

collect_ignore = []
if not HAS_TORCH:
    collect_ignore += ["docs/how-to/embeddings-on-a-gpu.md"]
if find_spec("triton") is None:
    collect_ignore += ["src/fedpca/trackers/nystrom/triton_kernel.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == NEEDS_TORCH and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
