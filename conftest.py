"""Examples that are slow or need torch, triton or a client; the noise of all tests."""

import hashlib
import os
import secrets
import shutil
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count

import pytest

NEEDS_TORCH = "fedpca.parallel.prefetch_to_device"
HAS_TORCH = find_spec("torch") is not None
SLOW = {
    "docs/coming-from/incremental-pca.md",
    "docs/explanation/kernel.md",
    "docs/how-to/dask.md",
    "docs/how-to/hospitals-with-a-roster.md",
    "docs/reference/federation.md",
    "docs/reference/privacy.md",
    "docs/reference/report.md",
    "docs/tutorial.md",
    "src/fedpca/auditing/audit.py",
    "src/fedpca/report/write.py",
}
SPARK = {"docs/how-to/spark.md", "src/fedpca/federation/engines/spark.py"}
CLIENT = {  # need scanpy, onnxruntime or Spark, in `make test-clients`
    "docs/how-to/vector-index.md",
    "src/fedpca/writers/faiss.py",
    "src/fedpca/writers/onnx.py",
    *SPARK,
}

collect_ignore = []
if find_spec("pyspark") is None or not (shutil.which("java") or "JAVA_HOME" in os.environ):
    collect_ignore += sorted(SPARK)
else:  # on this machine only, with this Python
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = (
        "--conf spark.ui.enabled=false --conf spark.log.level=OFF",
        "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1",
        "--conf spark.sql.shuffle.partitions=2",  # tables are small, and runs are short
        "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'",
        "pyspark-shell",
    )
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", " ".join(options))
if not HAS_TORCH:
    collect_ignore += ["docs/how-to/embeddings-on-a-gpu.md"]
if find_spec("triton") is None:
    collect_ignore += ["src/fedpca/trackers/on_device/tensor_cores.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == NEEDS_TORCH and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        path = item.path.relative_to(item.config.rootpath).as_posix()
        if path in SLOW:
            item.add_marker(pytest.mark.slow)
        if path in CLIENT:
            item.add_marker(pytest.mark.client)


# Noise of tests in this process is drawn from keys made of the test's name, wherever its file lies: a test
# gives the same every time. Processes that tests start, such as those of the command line, draw keys of their
# own. FEDPCA_TEST_NOISE, any text, gives other keys: a test has to pass with nearly all of them.
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


def _name(node):
    return node.nodeid.rpartition("/")[2]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _keys_of(_name(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with _keys_of(f"{fixturedef.argname} {_name(request.node)}"):
        return (yield)
