"""Settings all tests share."""

import os
from pathlib import Path

# Several threads of the linear algebra library make work on small matrices five times slower.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

# The same examples every time, and no deadline: machines are shared, and speed is measured in benchmarks/.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

DATA = Path(os.environ.get("FEDPCA_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def real_data():
    """A loader of real data by file name; skips the test where the data is not at hand."""

    def find(name):
        path = DATA / name
        if not path.exists():
            pytest.skip(f"{name} not found: set FEDPCA_DATA to the folder that holds it")
        return path

    def load(name):
        return np.load(find(name))

    load.path = find
    return load


@pytest.fixture
def rng():
    return np.random.default_rng(20)
