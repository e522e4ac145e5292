"""Examples that are slow or need torch or triton (see `make test-torch`); the noise of all tests."""

import hashlib
import os
import secrets
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count

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


# Noise of tests in this process is drawn from keys made of the test's name: a test gives the same every time.
# Processes that tests start, such as those of the command line, draw keys of their own. FEDPCA_TEST_NOISE,
# any text, gives other keys: a test has to pass with nearly all of them.
SALT = os.environ.get("FEDPCA_TEST_NOISE", "")


@contextmanager
def _keys_of(name):
    serial = count()

    def key(size=32):
        return hashlib.shake_256(f"{SALT} {name} {next(serial)}".encode()).digest(size)

    def hexadecimal(size=32):
        return key(size).hex() if size == 32 else token_hex(size)  # shorter ones are identifiers

    token_bytes, token_hex = secrets.token_bytes, secrets.token_hex
    secrets.token_bytes, secrets.token_hex = key, hexadecimal
    try:
        yield
    finally:
        secrets.token_bytes, secrets.token_hex = token_bytes, token_hex


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _keys_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with _keys_of(f"{fixturedef.baseid} {fixturedef.argname} {request.node.nodeid}"):
        return (yield)
